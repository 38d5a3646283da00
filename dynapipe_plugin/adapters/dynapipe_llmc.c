// dynapipe_llmc.c -- a run of the plugin inside a trainer of llm.c's family: session, data, steps,
// checkpoints.
#include "dynapipe_llmc.h"

#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/checkpoint_files.h"
#include "../../util/files.h"
#include "../../util/numbers.h"
#include "../../util/options.h"
#include "../../util/program.h"
#include "../../util/status.h"

// === tensors ========================================================================================
// --- what there is ---------------------------------------------------------------------------------------

int dynapipe_tensors_init(DynapipeTensors* out, int32_t num_tensors, int32_t num_layers,
                          const size_t* sizes_of_1, const size_t* sizes_of_2, const int32_t* where) {
    *out = (DynapipeTensors){.num_tensors = num_tensors, .num_layers = num_layers};
    if (num_tensors < 1 || num_tensors > DYNAPIPE_MAX_TENSORS || num_layers < 1) {
        return (int)FAIL(
            STATUS_OUT_OF_RANGE,
            "a model of %d tensors and %d layers ---> at least 1 of each, and at most %d tensors "
            "(DYNAPIPE_MAX_TENSORS)",
            num_tensors, num_layers, DYNAPIPE_MAX_TENSORS);
    }
    for (int32_t i = 0; i < num_tensors; i++) {
        bool grows = sizes_of_2[i] > sizes_of_1[i];
        if (grows && sizes_of_2[i] != 2 * sizes_of_1[i]) {
            return (int)FAIL(
                STATUS_OUT_OF_RANGE,
                "parameter tensor %d: %zu values with one layer, %zu with two: this model cannot "
                "be cut ---> layers that are all alike, each tensor with all of them in a row",
                i, sizes_of_1[i], sizes_of_2[i]);
        }
        if (!grows && where[i] == 0) {
            return (int)FAIL(STATUS_OUT_OF_RANGE,
                             "parameter tensor %d is of no layer, and nothing says which range needs it ---> "
                             "say so in the adapter (where[%d])",
                             i, i);
        }
        out->where[i] = grows ? DYNAPIPE_TENSOR_LAYERS : where[i];
        out->count[i] = (int64_t)sizes_of_1[i];
    }
    return 0;
}

static bool of_layers(const DynapipeTensors* tensors, int32_t i) {
    return (tensors->where[i] & DYNAPIPE_TENSOR_LAYERS) != 0;
}

static int64_t whole_count(const DynapipeTensors* tensors, int32_t i) {
    return tensors->count[i] * (of_layers(tensors, i) ? tensors->num_layers : 1);
}

int64_t dynapipe_tensors_total(const DynapipeTensors* tensors) {
    int64_t total = 0;
    for (int32_t i = 0; i < tensors->num_tensors; i++) { total += whole_count(tensors, i); }
    return total;
}

// --- a slice ---------------------------------------------------------------------------------------------

static bool in_slice(const DynapipeSlice* slice, int32_t where) {
    return (slice->has_first && (where & DYNAPIPE_TENSOR_FIRST) != 0) ||
           (slice->has_norm && (where & DYNAPIPE_TENSOR_NORM) != 0) ||
           (slice->has_head && (where & DYNAPIPE_TENSOR_HEAD) != 0);
}

static bool is_tied(const DynapipeTensors* tensors, int32_t i) {
    enum { BOTH = DYNAPIPE_TENSOR_FIRST | DYNAPIPE_TENSOR_HEAD };
    return (tensors->where[i] & BOTH) == BOTH;
}

// Blocks: the embedding is 0, layer l is l + 1, the head num_layers + 1.
static void add_blocks(DynapipeSlice* slice, int32_t L, DynapipeRange blocks) {
    int32_t begin = blocks.begin > 0 ? blocks.begin - 1 : 0, end = blocks.end - 1 < L ? blocks.end - 1 : L;
    bool is_share = blocks.head == DYNAPIPE_HEAD_BY_ROWS, has_head = blocks.end == L + 2;
    slice->has_first |= blocks.begin == 0;
    slice->has_norm |= blocks.head == DYNAPIPE_HEAD_FEEDS || (has_head && !is_share);
    slice->has_head |= has_head;
    if (begin >= end) { return; }
    slice->run_begin[slice->num_runs] = begin;
    slice->run_end[slice->num_runs++] = end;
    slice->num_layers += end - begin;
}

DynapipeSlice dynapipe_tensors_slice(const DynapipeTensors* tensors, const DynapipeRange* ranges,
                                     int32_t num_ranges) {
    DynapipeSlice slice;
    memset(&slice, 0, sizeof slice);
    for (int32_t r = 0; r < num_ranges; r++) { add_blocks(&slice, tensors->num_layers, ranges[r]); }
    for (int32_t i = 0; i < tensors->num_tensors; i++) {
        slice.begin[i] = slice.num_values;
        if (of_layers(tensors, i)) {
            slice.count[i] = slice.num_layers * tensors->count[i];
        } else if (in_slice(&slice, tensors->where[i])) {
            slice.count[i] = tensors->count[i];
            if (is_tied(tensors, i)) {
                DynapipeTied tied = {i, slice.begin[i], slice.count[i]};
                slice.tied[slice.num_tied++] = tied;
            }
        }
        slice.num_values += slice.count[i];
    }
    return slice;
}

int32_t dynapipe_tensors_pieces(const DynapipeTensors* tensors, const DynapipeSlice* slice, int32_t i,
                                DynapipeTensorPiece out[DYNAPIPE_MAX_RANGES]) {
    int64_t whole = 0, at = slice->begin[i];
    int32_t num = 0;
    for (int32_t before = 0; before < i; before++) { whole += whole_count(tensors, before); }
    if (!of_layers(tensors, i)) {
        DynapipeTensorPiece all = {at, whole, slice->count[i]};
        out[0] = all;
        return slice->count[i] > 0;
    }
    for (int32_t r = 0; r < slice->num_runs; r++) {
        int64_t count = (slice->run_end[r] - slice->run_begin[r]) * tensors->count[i];
        DynapipeTensorPiece run = {at, whole + slice->run_begin[r] * tensors->count[i], count};
        out[num++] = run;
        at += count;
    }
    return num;
}

// --- files -----------------------------------------------------------------------------------------------

// Values between this rank's memory and a file.
typedef struct {
    CheckpointFile file;
    const DynapipeCopies* copies;
    bool is_reading;
    char* room;  // [ROOM_BYTES]; NULL: values are in host memory
    const DynapipeBody* body;
} Mover;

enum { ROOM_BYTES = 1 << 22 };

static Status move_bytes(Mover* mover, char* host, int64_t num_bytes, int64_t at, bool counts) {
    const DynapipeBody* body = mover->body;
    if (mover->is_reading) {
        TRY(checkpoint_file_read(&mover->file, host, num_bytes, at));
    } else {
        TRY(checkpoint_file_write(&mover->file, host, num_bytes, at));
    }
    checkpoint_sum_add(counts ? body->sum : NULL, (at - body->file_at) / body->value_bytes, host,
                       num_bytes / body->value_bytes, body->value_bytes);
    return STATUS_OK;
}

static Status move_values(Mover* mover, char* values, int64_t num_bytes, int64_t at, bool counts) {
    if (mover->room == NULL) { return move_bytes(mover, values, num_bytes, at, counts); }
    for (int64_t done = 0; done < num_bytes; done += ROOM_BYTES) {
        int64_t part = num_bytes - done < ROOM_BYTES ? num_bytes - done : (int64_t)ROOM_BYTES;
        if (!mover->is_reading) { mover->copies->to_host(mover->room, values + done, (size_t)part); }
        TRY(move_bytes(mover, mover->room, part, at + done, counts));
        if (mover->is_reading) { mover->copies->from_host(values + done, mover->room, (size_t)part); }
    }
    return STATUS_OK;
}

static Status move_tensors(Mover* mover, const DynapipeSlice* slice, const DynapipeTensors* tensors,
                           char* values) {
    const int64_t value_bytes = mover->body->value_bytes;
    for (int32_t i = 0; i < tensors->num_tensors; i++) {
        DynapipeTensorPiece pieces[DYNAPIPE_MAX_RANGES];
        bool is_copy = is_tied(tensors, i) && !slice->has_first;
        int32_t num = is_copy && !mover->is_reading ? 0 : dynapipe_tensors_pieces(tensors, slice, i, pieces);
        for (int32_t p = 0; p < num; p++) {
            TRY(move_values(mover, values + pieces[p].begin * value_bytes, pieces[p].count * value_bytes,
                            mover->body->at + pieces[p].whole * value_bytes, !is_copy));
        }
    }
    return STATUS_OK;
}

static Status move_slice(Mover* mover, const DynapipeSlice* slice, const DynapipeTensors* tensors,
                         char* values) {
    if (mover->copies != NULL) {
        mover->room = (char*)malloc(ROOM_BYTES);
        if (mover->room == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a piece of a checkpoint"); }
    }
    Status status = move_tensors(mover, slice, tensors, values);
    free(mover->room);
    return status;
}

int dynapipe_tensors_write(const char* path, const DynapipeBody* body, const DynapipeSlice* slice,
                           const DynapipeTensors* tensors, const void* values, const DynapipeCopies* copies) {
    Mover mover;
    memset(&mover, 0, sizeof mover);
    mover.copies = copies;
    mover.body = body;
    Status status = checkpoint_file_open_tmp(&mover.file, path);
    if (status != STATUS_OK) { return (int)status; }
    status = move_slice(&mover, slice, tensors, (char*)(uintptr_t)values);
    if (status == STATUS_OK) { return (int)checkpoint_file_sync(&mover.file); }
    checkpoint_file_close(&mover.file);
    return (int)status;
}

int dynapipe_tensors_read(const char* path, const DynapipeBody* body, const DynapipeSlice* slice,
                          const DynapipeTensors* tensors, void* values, const DynapipeCopies* copies) {
    Mover mover;
    memset(&mover, 0, sizeof mover);
    mover.copies = copies;
    mover.body = body;
    mover.is_reading = true;
    Status status = checkpoint_file_open(&mover.file, path);
    if (status != STATUS_OK) { return (int)status; }
    status = move_slice(&mover, slice, tensors, (char*)values);
    checkpoint_file_close(&mover.file);
    return (int)status;
}

// === session ========================================================================================
// Checkpoints that nobody asked for must not fill a disk: so many of these are kept.
enum { DYNAPIPE_LLMC_MAX_SAID = 16, DYNAPIPE_LLMC_TIMED_KEPT = 2 };

struct DynapipeLlmc {
    Dynapipe* dp;  // NULL: --fixed-length
    DynapipeLlmcOptions options;
    DynapipeRun_v1 about;
    DynapipeDataInfo_v1 info;
    double* task_loss;          // [info.num_tasks]
    char* model_path;           // the file that the model begins with; NULL: not looked at
    uint64_t model_vocab_hash;  // of the data that it was trained on; 0: unknown
    const char* said[DYNAPIPE_LLMC_MAX_SAID];
    int num_said;
    bool warned_of_output;  // standard output is lost
    int has_dumped;         // --dump-gradients is done
    int has_begun;          // from a checkpoint, or anew in a folder that may have some
    SaveInterval save_every;
    int32_t first_step;              // that this run began with
    int32_t tried_step, saved_step;  // last tried to save; last saved or gone on from; -1: none
    double saved_s;                  // when, by dynapipe_seconds()
    bool is_timed, save_failed;      // the save at hand is the clock's alone; the last failed
    int32_t timed_steps[DYNAPIPE_LLMC_TIMED_KEPT];  // such saves, newest first; 0: none
};

static inline int llmc_is_main(const DynapipeLlmc* run) {
    return dynapipe_rank(run->dp) == 0;
}

enum { LLMC_HEADER_INTS = CHECKPOINT_HEADER_INTS, LLMC_HEADER_BYTES = CHECKPOINT_HEADER_BYTES };

typedef struct {
    char model[CHECKPOINT_PATH_CHARS], state[CHECKPOINT_PATH_CHARS];
} LlmcPaths;

static LlmcPaths llmc_paths_of(const char* directory, int32_t step) {
    LlmcPaths paths;
    checkpoint_path(paths.model, directory, CHECKPOINT_MODEL_FILE, step);
    checkpoint_path(paths.state, directory, CHECKPOINT_STATE_FILE, step);
    return paths;
}

// Values of a state file's body: m, v, maybe master weights.
static inline int64_t llmc_state_values(const DynapipeLlmcCheckpoint* c) {
    return (c->master != NULL ? 3 : 2) * dynapipe_tensors_total(c->tensors);
}

// Of these two files; whoever writes or reads has its part, rank 0 the record's.
typedef struct {
    uint64_t model, state;
} LlmcSums;

static inline DynapipeBody llmc_model_body(const DynapipeLlmcCheckpoint* c, uint64_t* sum) {
    return (DynapipeBody){c->model_header_bytes, c->param_bytes, c->model_header_bytes, sum};
}

// i: 0 m, 1 v, 2 master weights.
static inline DynapipeBody llmc_state_body(const DynapipeLlmcCheckpoint* c, int i, uint64_t* sum) {
    int64_t at = LLMC_HEADER_BYTES + 4 * i * dynapipe_tensors_total(c->tensors);
    return (DynapipeBody){at, (int32_t)sizeof(float), LLMC_HEADER_BYTES, sum};
}

// === stop ===========================================================================================
// when a run inside a trainer of llm.c's family saves, and how it ends by a signal.
static void llmc_watch(DynapipeLlmc* run) {
    const char* given = run->options.checkpoint_every;
    run->saved_step = run->tried_step = -1;
    dynapipe_llmc_check(run, (int)save_interval_parse(&run->save_every, "--checkpoint-every",
                                                      given != NULL ? given : SAVE_INTERVAL_USUAL));
}

int dynapipe_llmc_is_told_to_end(const DynapipeLlmc* run) {
    return dynapipe_stop_signal(run->dp) != 0;
}

int dynapipe_llmc_is_due(DynapipeLlmc* run, int32_t step) {
    bool is_end = dynapipe_llmc_is_told_to_end(run) != 0;
    bool is_due = save_interval_is_due(&run->save_every, step, dynapipe_seconds(run->dp) - run->saved_s);
    run->is_timed = is_due && !is_end && run->options.checkpoint_every == NULL;
    return (is_end || is_due) && step != run->tried_step;
}

// Of what the clock alone had saved, the newest are kept; what is saved by anybody's word counts as theirs.
static void llmc_saved(DynapipeLlmc* run, const char* directory, int32_t step) {
    enum { KEPT = DYNAPIPE_LLMC_TIMED_KEPT };
    run->saved_step = step;
    run->saved_s = dynapipe_seconds(run->dp);
    if (!run->is_timed) { return; }
    run->is_timed = false;
    int32_t oldest = run->timed_steps[KEPT - 1];
    memmove(run->timed_steps + 1, run->timed_steps, sizeof(int32_t) * (KEPT - 1));
    run->timed_steps[0] = step;
    if (oldest > 0 && llmc_is_main(run)) { checkpoint_remove(directory, oldest); }
}

static bool llmc_begin_save(DynapipeLlmc* run, int32_t step) {
    bool is_new = step != run->tried_step;
    if (!is_new && run->timed_steps[0] == step) { run->timed_steps[0] = 0; }  // asked for, now
    run->tried_step = step;
    return is_new;
}

static void say_stopped(const DynapipeLlmc* run, const char* directory, int32_t step) {
    const char* name = stop_signal_name(dynapipe_stop_signal(run->dp));
    if (step <= run->first_step) {
        printf("stopped by %s before the first step of this run: nothing to save\n", name);
    } else if (directory == NULL) {
        printf("stopped by %s after step %d of %d, nothing is saved ---> an output folder (--output-dir, -o) "
               "saves\n",
               name, step, run->info.num_steps);
    } else if (run->saved_step != step) {
        printf("stopped by %s after step %d of %d, which is not saved ---> resuming goes on from the newest "
               "checkpoint that %s has\n",
               name, step, run->info.num_steps, directory);
    } else {
        printf("stopped by %s after step %d of %d, saved in %s ---> resuming (--resume 1, -y 1) goes on from "
               "there\n",
               name, step, run->info.num_steps, directory);
    }
}

void dynapipe_llmc_end(DynapipeLlmc* run, const char* directory, int32_t step) {
    int status = stop_signal_exit_status(dynapipe_stop_signal(run->dp));
    bool is_lost = run->save_failed && directory != NULL;
    if (llmc_is_main(run) && step < run->info.num_steps) { say_stopped(run, directory, step); }
    fflush(stdout);
    int lost_status = dynapipe_llmc_close(run);
    exit(is_lost ? EXIT_FAILURE : status != 0 ? status : lost_status);
}

// === run ============================================================================================
// session, options, data and steps of a run inside a trainer of llm.c's family.
// --- options ---------------------------------------------------------------------------------------------

#define FIELD(f) offsetof(DynapipeLlmcOptions, f)
// clang-format off
static const OptionSpec specs[] = {
    {"--train-data",       OPTION_STRING, FIELD(train_data),       NULL, 0, 0, NULL, "FILES", "samples to train on: a pattern of sample files or llm.c's token files; default: the program's own"},
    {"--val-data",         OPTION_STRING, FIELD(val_data),         NULL, 0, 0, NULL, "FILES", "the same for validation; default: the program's own, and with --train-data none"},
    {"--model",            OPTION_STRING, FIELD(model),            NULL, 0, 0, NULL, "FILE", "checkpoint to begin with; default: the program's own"},
    {"--batch-tokens",     OPTION_INT64,  FIELD(batch_tokens),     "0",  0, 1e18, NULL, "N", "tokens of a step over all ranks; 0: the program's batch for each rank"},
    {"--max-tokens",       OPTION_INT,    FIELD(max_tokens),       "0",  0, 1e9, NULL, "N", "longest sample; 0: the program's sequence length"},
    {"--steps",            OPTION_INT,    FIELD(steps),            "0",  0, 2e9, NULL, "N", "steps; 0: one pass over the data, with --fixed-length the program's own number"},
    {"--val-batches",      OPTION_INT,    FIELD(val_batches),     "-1", -1, 2e9, NULL, "N", "batches of --batch-tokens of a validation; -1: all of the data"},
    {"--lr",               OPTION_DOUBLE, FIELD(lr),               "0",  0, 1e3, NULL, "X", "learning rate; 0: the program's"},
    {"--output-dir",       OPTION_STRING, FIELD(output_dir),       NULL, 0, 0, NULL, "DIR", "checkpoints and metrics.jsonl"},
    {"--resume",           OPTION_INT,    FIELD(resume),           "0",  0, 2e9, NULL, "N", "1: go on from the newest checkpoint in --output-dir; N > 1: from that of step N"},
    {"--checkpoint-every", OPTION_STRING, FIELD(checkpoint_every), NULL, 0, 0, NULL, "N", "steps between checkpoints, or a time: 90s, 10m, 2h; 0: one at the end; default: 10m (besides the program's own), the newest two of these are kept"},
    {"--verify",           OPTION_INT,    FIELD(verify),           "1",  0, 1, NULL, "0|1", "0: take checkpoints and data without comparing their sums with those that were saved"},
    {"--overwrite",        OPTION_INT,    FIELD(overwrite),        "0",  0, 1, NULL, "0|1", "1: a new run may replace an earlier one's checkpoints in the same folder"},
    {"--check-model",      OPTION_INT,    FIELD(check_model),      "0",  0, 1, NULL, "0|1", "1: only check that this tree's functions do what the plugin takes them for, on a small model"},
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };
enum { FIRST_COMMON = NUM_SPECS - 4 };  // from here on: also of programs with flags of their own

static const char* const FIXED_LENGTH = "--fixed-length";

// An option without a value, so it is taken out before others look at argv.
static bool take_fixed_length(int* argc, char** argv) {
    int kept = 1;
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], FIXED_LENGTH) != 0) { argv[kept++] = argv[i]; }
    }
    bool found = kept < *argc;
    argv[kept] = NULL;
    *argc = kept;
    return found;
}

static void print_help(const char* program) {
    printf("usage: mpirun -np RANKS %s --train-data FILES [--options]\n"
           "This trainer with the plugin: a mixture of tasks with samples of very different lengths, on a "
           "pipeline of ranks.\n"
           "  %-26s the program's own loop as it was, in one process, without the plugin\n",
           program, FIXED_LENGTH);
    options_print(specs, NUM_SPECS, stdout);
    printf("\n");
    dynapipe_print_options(stdout);
}

static bool is_own(const char* word) {
    for (int i = 0; i < NUM_SPECS; i++) {
        size_t length = strlen(specs[i].name);
        if (strncmp(word, specs[i].name, length) == 0 && (word[length] == '\0' || word[length] == '=')) {
            return true;
        }
    }
    return false;
}

// The program has no arguments of its own, so what is left is a slip.
static void take_options(DynapipeLlmc* run, int* argc, char** argv) {
    for (int i = 1; i < *argc; i++) {
        if (strcmp(argv[i], "--help") != 0) { continue; }
        if (run->dp == NULL || dynapipe_rank(run->dp) == 0) { print_help(argv[0]); }
        exit(dynapipe_llmc_close(run));
    }
    for (int i = 1; i < *argc && run->dp == NULL; i++) {
        if (strncmp(argv[i], "--", 2) != 0 || is_own(argv[i])) { continue; }
        dynapipe_llmc_check(run, (int)FAIL(STATUS_BAD_OPTION,
                                           "%s: means nothing with --fixed-length, the program's own loop "
                                           "---> leave one of the two out",
                                           argv[i]));
    }
    dynapipe_llmc_check(run, (int)options_take(specs, NUM_SPECS, &run->options, argc, argv, NULL));
    if (*argc > 1) {
        dynapipe_llmc_check(
            run, (int)FAIL(STATUS_BAD_OPTION, "%s: not an option ---> --help lists them all", argv[1]));
    }
    if (run->options.resume && run->options.output_dir == NULL) {
        dynapipe_llmc_die(run, "--resume 1: from where? ---> add --output-dir DIR");
    }
    if (run->options.output_dir != NULL && run->dp != NULL && llmc_is_main(run)) {
        dynapipe_llmc_check(run, (int)file_make_directory(run->options.output_dir));
    }
}

// --- session ---------------------------------------------------------------------------------------------

DynapipeLlmc* dynapipe_llmc_open_as(int32_t header_interface, int* argc, char*** argv, int has_options) {
    const char* own[NUM_SPECS + 1] = {NULL};
    int first = has_options ? 0 : FIRST_COMMON;
    for (int i = first; i < NUM_SPECS; i++) { own[i - first] = specs[i].name; }
    DynapipeLlmc* run = (DynapipeLlmc*)calloc(1, sizeof(DynapipeLlmc));
    if (run == NULL) {
        dynapipe_abort(NULL, "no memory for a run");
        exit(EXIT_FAILURE);
    }
    dynapipe_llmc_check(run, (int)options_defaults(specs, NUM_SPECS, &run->options));
    if (!take_fixed_length(argc, *argv)) {
        standard_output_open(true);
        dynapipe_watch_signals(NULL);
        dynapipe_llmc_check(run, dynapipe_open_as(header_interface, &run->dp, argc, argv, own));
        dynapipe_watch_signals(run->dp);
    }
    if (has_options) {
        take_options(run, argc, *argv);
    } else if (run->dp != NULL) {
        dynapipe_llmc_check(run, (int)options_take(specs + FIRST_COMMON, NUM_SPECS - FIRST_COMMON,
                                                   &run->options, argc, *argv, NULL));
    }
    llmc_watch(run);
    return run;
}

int dynapipe_llmc_is_on(const DynapipeLlmc* run) {
    return run != NULL && run->dp != NULL;
}

// Each rank alone says so: none has joined the others.
static void need_open(const DynapipeLlmc* run) {
    if (run != NULL) { return; }
    fprintf(stderr, "error: the plugin is asked before DYNAPIPE_OPEN, the first line of main() ---> "
                    "dynapipe_plugin/install.sh --check says which lines are missing\n");
    exit(EXIT_FAILURE);
}

const DynapipeLlmcOptions* dynapipe_llmc_options(const DynapipeLlmc* run) {
    need_open(run);
    return &run->options;
}

Dynapipe* dynapipe_llmc_session(const DynapipeLlmc* run) {
    need_open(run);
    return run->dp;
}

int dynapipe_llmc_close(DynapipeLlmc* run) {
    if (run == NULL) { return EXIT_SUCCESS; }
    bool has_lost =
        run->save_failed || run->warned_of_output || (run->dp != NULL && dynapipe_lost_lines(run->dp) > 0);
    dynapipe_close(run->dp);
    free(run->task_loss);
    free(run->model_path);
    free(run);
    return has_lost ? EXIT_FAILURE : EXIT_SUCCESS;
}

void dynapipe_llmc_check(DynapipeLlmc* run, int code) {
    if (code == 0) { return; }
    dynapipe_abort(run->dp, dynapipe_error());
    exit(dynapipe_exit_status(code));
}

void dynapipe_llmc_die(DynapipeLlmc* run, const char* why) {
    dynapipe_abort(run->dp, why);
    exit(EXIT_FAILURE);
}

void dynapipe_llmc_say_once(DynapipeLlmc* run, const char* line) {
    for (int i = 0; i < run->num_said; i++) {
        if (run->said[i] == line) { return; }
    }
    if (run->num_said < DYNAPIPE_LLMC_MAX_SAID) { run->said[run->num_said++] = line; }
    if (!llmc_is_main(run)) { return; }
    printf("%s\n", line);
    fflush(stdout);
}

// --- data, model -----------------------------------------------------------------------------------------

static void check_data_fits(DynapipeLlmc* run, int32_t model_tokens, int32_t model_vocab) {
    if (run->about.max_seq_tokens > model_tokens) {
        dynapipe_llmc_check(run, (int)FAIL(STATUS_BAD_OPTION,
                                           "samples of up to %d tokens (--max-tokens, -t), but the model "
                                           "takes %d ---> give at most that",
                                           run->about.max_seq_tokens, model_tokens));
    }
    if (run->info.vocab > model_vocab) {
        dynapipe_llmc_check(run, (int)FAIL(STATUS_BAD_OPTION,
                                           "the data has %d ids, the model %d ---> data of this model's "
                                           "tokenizer, or another model",
                                           run->info.vocab, model_vocab));
    }
}

static Status llmc_check_vocabulary(const DynapipeLlmc* run, uint64_t theirs, const char* path) {
    uint64_t ours = run->info.vocab_hash;
    if (ours == theirs || ours == 0 || theirs == 0) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION,
                "%s: trained on tokens of vocabulary %016llx, the data has those of %016llx ---> data of "
                "this model's tokenizer",
                path, (unsigned long long)theirs, (unsigned long long)ours);
}

void dynapipe_llmc_open_data(DynapipeLlmc* run, const DynapipeRun_v1* about, int32_t model_tokens,
                             int32_t model_vocab) {
    run->about = *about;
    run->about.skip_verify = run->options.verify == 0;
    dynapipe_llmc_check(run, dynapipe_open_data(run->dp, &run->about));
    dynapipe_llmc_check(run, dynapipe_data_info(run->dp, &run->info));
    check_data_fits(run, model_tokens, model_vocab);
    if (run->model_path != NULL) {
        dynapipe_llmc_check(run, (int)llmc_check_vocabulary(run, run->model_vocab_hash, run->model_path));
    }
    run->task_loss = (double*)calloc((size_t)run->info.num_tasks + 1, sizeof(double));
    if (run->task_loss == NULL) { dynapipe_llmc_die(run, "no memory for the tasks' losses"); }
    if (!llmc_is_main(run)) { return; }
    printf("data: %lld samples of %d tasks, %lld tokens; %lld longer than %d cut%s, %lld skipped\n",
           (long long)run->info.num_samples, run->info.num_tasks, (long long)run->info.num_tokens,
           (long long)run->info.num_truncated, about->max_seq_tokens,
           run->info.num_truncated > 0 ? " (--max-tokens, -t)" : "", (long long)run->info.num_skipped);
}

int32_t dynapipe_llmc_num_steps(const DynapipeLlmc* run) {
    return run->info.num_steps;
}

// Says what it found and ends the program.
static void check_model_and_end(DynapipeLlmc* run, const DynapipeBlocks_v1* blocks) {
    dynapipe_llmc_check(run, dynapipe_check_model(run->dp, blocks, llmc_is_main(run) ? stdout : NULL));
    exit(dynapipe_llmc_close(run));
}

int32_t dynapipe_llmc_place(DynapipeLlmc* run, const DynapipeBlocks_v1* blocks,
                            DynapipeRange out[DYNAPIPE_MAX_RANGES]) {
    DynapipeCosts* costs;
    int32_t num_ranges;
    if (run->options.check_model) { check_model_and_end(run, blocks); }
    dynapipe_llmc_check(run, dynapipe_measure(run->dp, blocks, &costs));
    dynapipe_llmc_check(run, dynapipe_choose_stages(run->dp, costs, out, DYNAPIPE_MAX_RANGES, &num_ranges));
    if (llmc_is_main(run)) {
        printf("ranks: %d = %d stages x %d replicas, threads per rank %d; %d steps of at most %lld tokens\n",
               dynapipe_num_ranks(run->dp), dynapipe_num_stages(run->dp), dynapipe_num_replicas(run->dp),
               dynapipe_threads(run->dp), run->info.num_steps, (long long)run->about.batch_tokens);
        fflush(stdout);
    }
    return num_ranges;
}

void dynapipe_llmc_attach(DynapipeLlmc* run, int32_t idx, const DynapipeModel_v1* api, void* model,
                          const DynapipeParams_v1* params) {
    dynapipe_llmc_check(run, dynapipe_attach(run->dp, idx, api, model, idx == 0 ? params : NULL));
}

int dynapipe_llmc_is_whole(DynapipeLlmc* run) {
    if (dynapipe_num_stages(run->dp) == 1) { return 1; }
    dynapipe_llmc_say_once(run, "what runs the whole model on one rank (samples of its text, multiple-choice "
                                "questions) is passed over: it lies on several stages ---> run it on a "
                                "checkpoint, with --stages 1");
    return 0;
}

// --- training --------------------------------------------------------------------------------------------

int dynapipe_llmc_is_close(double a, double b, double limit) {
    return isfinite(a) && isfinite(b) && fabs(a - b) <= limit;
}

static void need_finite(DynapipeLlmc* run, double value) {
    if (isfinite(value)) { return; }
    dynapipe_llmc_die(run, "the loss or its gradient is not a finite number ---> try a smaller learning rate "
                           "(--lr, -l) or a longer warmup (-u)");
}

double dynapipe_llmc_step(DynapipeLlmc* run) {
    DynapipeStep_v1 step;
    dynapipe_llmc_check(run, dynapipe_step(run->dp, &step));
    need_finite(run, step.loss);
    return step.loss;
}

double dynapipe_llmc_norm(DynapipeLlmc* run, double counted_squares) {
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &counted_squares, 1));
    need_finite(run, counted_squares);
    return sqrt(counted_squares);
}

void dynapipe_llmc_end_step(DynapipeLlmc* run, const DynapipeReport_v1* report) {
    dynapipe_llmc_check(run, dynapipe_share_params(run->dp));
    dynapipe_llmc_check(run, dynapipe_report(run->dp, report));
    if (llmc_is_main(run)) { standard_output_warn(&run->warned_of_output); }
}

double dynapipe_llmc_validate(DynapipeLlmc* run, int32_t max_batches, int32_t step, const char* log_dir) {
    if (run->about.val_pattern == NULL) {
        dynapipe_llmc_say_once(run, "no validation data: its loss is nan ---> name some (--val-data, -j)");
        return NAN;
    }
    double loss;
    dynapipe_llmc_check(run, dynapipe_validate(run->dp, max_batches, &loss, run->task_loss));
    if (dynapipe_llmc_is_told_to_end(run)) { return NAN; }
    DynapipeValidation_v1 validation = {
        .step = step, .loss = loss, .task_loss = run->task_loss, .log_dir = log_dir};
    dynapipe_llmc_check(run, dynapipe_report_validation(run->dp, &validation));
    return loss;
}

// === checkpoint =====================================================================================
// llm.c's checkpoints by all ranks together: rank 0 makes the files, each rank writes
// its slice, rank 0 seals and renames them when all succeeded.
// --- sums ------------------------------------------------------------------------------------------------

enum { NUM_PIECES = 4 };  // of 64 bits, so that doubles add them exactly

// Over all ranks, mod 2^64; did all succeed?
static bool llmc_add_sums(DynapipeLlmc* run, bool ok, LlmcSums* sums) {
    uint64_t both[2] = {sums->model, sums->state};
    double values[1 + 2 * NUM_PIECES] = {ok ? 0.0 : 1.0};
    for (int i = 0; i < 2 * NUM_PIECES; i++) {
        values[1 + i] = (double)((both[i / NUM_PIECES] >> (16 * (i % NUM_PIECES))) & 0xffff);
    }
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, values, 1 + 2 * NUM_PIECES));
    both[0] = both[1] = 0;
    for (int i = 0; i < 2 * NUM_PIECES; i++) {
        both[i / NUM_PIECES] += (uint64_t)values[1 + i] << (16 * (i % NUM_PIECES));
    }
    *sums = (LlmcSums){both[0], both[1]};
    return values[0] == 0;
}

// --- writing ---------------------------------------------------------------------------------------------

// PATH.tmp of num_bytes that begins with a header, the rest zeros; it stays open.
static Status create_file(CheckpointFile* out, const char* path, int64_t num_bytes, const void* header,
                          int64_t header_bytes) {
    TRY(checkpoint_file_create(out, path, num_bytes));
    Status status = checkpoint_file_write(out, header, header_bytes, 0);
    if (status != STATUS_OK) { checkpoint_file_close(out); }
    return status;
}

static Status create_model(const DynapipeLlmcCheckpoint* c, const char* path) {
    CheckpointFile file;
    TRY(create_file(&file, path, c->model_header_bytes + dynapipe_tensors_total(c->tensors) * c->param_bytes,
                    c->model_header, c->model_header_bytes));
    return checkpoint_file_sync(&file);
}

// *sum: of the record.
static Status create_state(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const char* path, int32_t step,
                           uint64_t* sum) {
    CheckpointFile file;
    CheckpointRecord record = {NULL, 0, NULL};
    const void* position;
    TRY((Status)dynapipe_position(run->dp, &position, &record.position_bytes));
    record.position = (uint8_t*)(uintptr_t)position;
    int32_t header[LLMC_HEADER_INTS] = {CHECKPOINT_STATE_MAGIC, CHECKPOINT_STATE_VERSION, 1, 0};
    header[CHECKPOINT_STATE_MASTER] = c->master != NULL;
    header[CHECKPOINT_STATE_STEP] = step;
    memcpy(&header[CHECKPOINT_STATE_RNG], c->rng_states, sizeof c->rng_states);
    if (c->model_header_bytes == LLMC_HEADER_BYTES) {
        memcpy(&header[CHECKPOINT_STATE_MODEL], c->model_header, 4 * CHECKPOINT_STATE_MODEL_INTS);
    }
    int64_t at = LLMC_HEADER_BYTES + 4 * llmc_state_values(c);
    TRY(create_file(&file, path, at + checkpoint_record_bytes(&record), header, sizeof header));
    Status status = checkpoint_record_write(&file, &record, at, llmc_state_values(c), sum);
    if (status == STATUS_OK) { return checkpoint_file_sync(&file); }
    checkpoint_file_close(&file);
    return status;
}

// All ranks have the same values of a slice (zero stage 0), so those of one replica write.
static Status write_slices(const DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const LlmcPaths* paths,
                           LlmcSums* sums) {
    if (dynapipe_replica(run->dp) != 0) { return STATUS_OK; }
    const float* bodies[] = {c->m, c->v, c->master};
    DynapipeBody body = llmc_model_body(c, &sums->model);
    TRY((Status)dynapipe_tensors_write(paths->model, &body, c->slice, c->tensors, c->params, c->copies));
    for (int i = 0; i < 3; i++) {
        if (bodies[i] == NULL) { continue; }
        body = llmc_state_body(c, i, &sums->state);
        TRY((Status)dynapipe_tensors_write(paths->state, &body, c->slice, c->tensors, bodies[i], c->copies));
    }
    return STATUS_OK;
}

static Status seal(const DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const char* path, int32_t step,
                   uint64_t sum, uint64_t model_sum) {
    if (c->model_header_bytes != LLMC_HEADER_BYTES) { return STATUS_OK; }
    CheckpointSeal seal = {true, step, sum, run->info.vocab_hash, model_sum, 0};
    return checkpoint_seal_write(path, &seal);
}

// A mark never stands beside a model of one run and a state of another, not even where the machine goes down;
// and none of a run that was left stays behind the newest.
static Status commit(const char* directory, const LlmcPaths* paths, int32_t step) {
    checkpoint_unmark(directory, step);
    TRY(checkpoint_file_rename(paths->model));
    TRY(checkpoint_file_rename(paths->state));
    checkpoint_remove_later(directory, step);
    return checkpoint_mark_done(directory, step);
}

// Whether all ranks succeeded; the first to fail says why. Their sums are added.
static bool all_wrote(DynapipeLlmc* run, Status status, const char* what, LlmcSums* sums) {
    if (status != STATUS_OK) { fprintf(stderr, "warning: %s not saved: %s\n", what, dynapipe_error()); }
    return llmc_add_sums(run, status == STATUS_OK, sums);
}

static bool all_succeeded(DynapipeLlmc* run, Status status, const char* what) {
    LlmcSums none = {0, 0};
    return all_wrote(run, status, what, &none);
}

static bool save(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const LlmcPaths* paths, int32_t step) {
    bool is_main = llmc_is_main(run);
    LlmcSums sums = {0, 0};
    const void* position;
    size_t num_bytes;
    dynapipe_llmc_check(run,
                        dynapipe_position(run->dp, &position, &num_bytes));  // this rank's data is verified
    Status status = is_main ? file_make_directory(c->directory) : STATUS_OK;
    if (is_main && status == STATUS_OK) { status = create_model(c, paths->model); }
    if (is_main && status == STATUS_OK) { status = create_state(run, c, paths->state, step, &sums.state); }
    if (!all_succeeded(run, status, "checkpoint")) { return false; }
    if (!all_wrote(run, write_slices(run, c, paths, &sums), "checkpoint", &sums)) { return false; }
    if (is_main) { status = seal(run, c, paths->model, step, sums.model, 0); }
    if (is_main && status == STATUS_OK) { status = seal(run, c, paths->state, step, sums.state, sums.model); }
    if (is_main && status == STATUS_OK) { status = commit(c->directory, paths, step); }
    return all_succeeded(run, status, "checkpoint");
}

void dynapipe_llmc_save(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, int32_t step) {
    if (!llmc_begin_save(run, step)) { return; }
    LlmcPaths paths = llmc_paths_of(c->directory, step);
    bool saved = save(run, c, &paths, step);
    run->save_failed = !saved;
    if (saved) { llmc_saved(run, c->directory, step); }
    if (!llmc_is_main(run)) { return; }
    if (saved) {
        printf("saved %s\n", paths.model);
        fflush(stdout);
    } else {
        checkpoint_file_remove_tmp(paths.model);
        checkpoint_file_remove_tmp(paths.state);
    }
}

void dynapipe_llmc_dump_gradients(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const void* grads) {
    const char* path = dynapipe_option(run->dp, "--dump-gradients");
    if (path == NULL || run->has_dumped) { return; }
    run->has_dumped = 1;
    bool is_main = llmc_is_main(run);
    LlmcSums sums = {0, 0};
    DynapipeBody body = llmc_model_body(c, &sums.model);
    bool saved = all_succeeded(run, is_main ? create_model(c, path) : STATUS_OK, "gradients");
    Status status = STATUS_OK;
    if (saved && dynapipe_replica(run->dp) == 0) {
        status = (Status)dynapipe_tensors_write(path, &body, c->slice, c->tensors, grads, c->copies);
    }
    saved = saved && all_wrote(run, status, "gradients", &sums);
    if (saved && is_main) {
        status = seal(run, c, path, 0, sums.model, 0);
        if (status == STATUS_OK) { status = checkpoint_file_rename(path); }
    }
    saved = saved && all_succeeded(run, status, "gradients");
    if (saved) { return; }
    if (is_main) { checkpoint_file_remove_tmp(path); }
    dynapipe_llmc_die(run, "--debug dump-gradients: cannot be written ---> name a file where you may write");
}

// === resume =========================================================================================
// going on from llm.c's checkpoints, all ranks together: which one, and is it what was
// saved?
// --- which -----------------------------------------------------------------------------------------------

// --resume 1 and a program's own flag: the newest.
static int32_t step_asked_for(const DynapipeLlmc* run, const char* directory) {
    int32_t step = run->options.resume;
    if (step <= 1) { return checkpoint_find_latest(directory); }
    return checkpoint_has_done(directory, step) ? step : -1;
}

int32_t dynapipe_llmc_latest(DynapipeLlmc* run, const char* directory) {
    double step = llmc_is_main(run) ? step_asked_for(run, directory) : 0;
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &step, 1));
    run->has_begun = 1;
    if (step < 0 && run->options.resume > 1) {
        dynapipe_llmc_check(run,
                            (int)FAIL(STATUS_BAD_OPTION,
                                      "--resume %d: no finished checkpoint of that step in %s ---> the "
                                      "newest there is of step %d (--resume 1; -1: none)",
                                      run->options.resume, directory, checkpoint_find_latest(directory)));
    }
    if (step < 0 && llmc_is_main(run)) {
        printf("%s: no finished checkpoint to go on from: a new run begins\n", directory);
        fflush(stdout);
    }
    return (int32_t)step;
}

void dynapipe_llmc_begin(DynapipeLlmc* run, const char* directory) {
    if (run->has_begun || directory == NULL) { return; }
    run->has_begun = 1;
    double newest = llmc_is_main(run) ? checkpoint_find_latest(directory) : 0;
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &newest, 1));
    if (newest < 0 || run->options.overwrite) { return; }
    dynapipe_llmc_check(run, (int)FAIL(STATUS_BAD_OPTION,
                                       "%s has an earlier run's checkpoints, up to step %.0f ---> go on from "
                                       "them (--resume 1, -y 1), take another folder, or --overwrite 1",
                                       directory, newest));
}

// --- a model file to begin with --------------------------------------------------------------------------

// Do all ranks have the same?
static bool all_have(DynapipeLlmc* run, uint64_t model, uint64_t state) {
    bool is_main = llmc_is_main(run);
    LlmcSums main_sums = {is_main ? model : 0, is_main ? state : 0}, none = {0, 0};
    llmc_add_sums(run, true, &main_sums);
    return llmc_add_sums(run, main_sums.model == model && main_sums.state == state, &none);
}

// This rank's share of the body's sum.
static uint64_t share_of_sum(const DynapipeLlmc* run, const FileMap* map) {
    enum { VERSION_BF16 = 5 };
    int32_t version, value_bytes;
    uint64_t sum = 0;
    memcpy(&version, map->data + sizeof version, sizeof version);
    value_bytes = version == VERSION_BF16 ? 2 : 4;
    int64_t num_values = ((int64_t)map->num_bytes - LLMC_HEADER_BYTES) / value_bytes;
    int32_t num_ranks = dynapipe_num_ranks(run->dp), rank = dynapipe_rank(run->dp);
    int64_t begin = num_values * rank / num_ranks, end = num_values * (rank + 1) / num_ranks;
    checkpoint_sum_add(&sum, begin, map->data + LLMC_HEADER_BYTES + begin * value_bytes, end - begin,
                       value_bytes);
    return sum;
}

// Of a file that all ranks have alike.
static Status check_sealed(DynapipeLlmc* run, CheckpointSeal* seal, const FileMap* map, const char* path) {
    int32_t header[LLMC_HEADER_INTS];
    if (map->num_bytes < LLMC_HEADER_BYTES) { return STATUS_OK; }
    memcpy(header, map->data, sizeof header);
    TRY(checkpoint_seal_get(seal, header, path));
    LlmcSums sums = {0, 0};
    if (!seal->is_sealed) { return STATUS_OK; }
    sums.model = share_of_sum(run, map);
    llmc_add_sums(run, true, &sums);
    return checkpoint_seal_check(seal, path, sums.model);
}

void dynapipe_llmc_check_model_file(DynapipeLlmc* run, const char* path) {
    FileMap map = {0};
    CheckpointSeal seal = {false, 0, 0, 0, 0, 0};
    double num_opened = file_map_open(&map, path) == STATUS_OK;
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &num_opened, 1));
    if (num_opened == 0) { return; }  // the program's own words for that
    Status status = STATUS_OK;
    if (num_opened < dynapipe_num_ranks(run->dp) || !all_have(run, checkpoint_fingerprint(path), 0)) {
        status = FAIL(STATUS_MISMATCH,
                      "%s: not all ranks have this file, the same one ---> a folder that all machines share",
                      path);
    } else if (run->options.verify) {
        status = check_sealed(run, &seal, &map, path);
    }
    file_map_close(&map);
    dynapipe_llmc_check(run, (int)status);
    run->model_vocab_hash = seal.vocab_hash;
    free(run->model_path);
    run->model_path = strdup(path);
}

// --- reading ---------------------------------------------------------------------------------------------

// The first header_bytes of a file of at least num_bytes.
static Status read_header(const char* path, void* header, int64_t header_bytes, int64_t num_bytes,
                          bool is_exact) {
    CheckpointFile file;
    TRY(checkpoint_file_open(&file, path));
    bool fits = file.num_bytes >= num_bytes && (!is_exact || file.num_bytes == num_bytes);
    int64_t found = file.num_bytes;
    Status status = fits ? checkpoint_file_read(&file, header, header_bytes, 0) : STATUS_OK;
    checkpoint_file_close(&file);
    if (fits) { return status; }
    return FAIL(STATUS_BAD_FORMAT, "%s: %lld bytes, but this model's has %lld ---> use another checkpoint",
                path, (long long)found, (long long)num_bytes);
}

// Without the seal, which is this checkpoint's own.
static bool is_same_header(const DynapipeLlmcCheckpoint* c, const void* header) {
    bool has_seal = c->model_header_bytes == LLMC_HEADER_BYTES;
    size_t num_bytes = has_seal ? 4 * CHECKPOINT_SEAL_BEGIN : (size_t)c->model_header_bytes;
    return memcmp(header, c->model_header, num_bytes) == 0;
}

// header: model_header_bytes.
static Status check_model_file(const DynapipeLlmcCheckpoint* c, const char* path, void* header) {
    int64_t num_bytes = c->model_header_bytes + dynapipe_tensors_total(c->tensors) * c->param_bytes;
    TRY(read_header(path, header, c->model_header_bytes, num_bytes, true));
    if (is_same_header(c, header)) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: another model's (its header differs from this run's) ---> the "
                "model that the run began with, or another output folder",
                path);
}

static Status check_state_file(const DynapipeLlmcCheckpoint* c, const char* path, int32_t* header) {
    TRY(read_header(path, header, LLMC_HEADER_BYTES, LLMC_HEADER_BYTES + 4 * llmc_state_values(c), false));
    bool fits = header[0] == CHECKPOINT_STATE_MAGIC && header[1] == CHECKPOINT_STATE_VERSION &&
                header[CHECKPOINT_STATE_PROCESSES] == 1 && header[CHECKPOINT_STATE_RANK] == 0 &&
                header[CHECKPOINT_STATE_MASTER] == (c->master != NULL);
    if (fits) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: magic %d, version %d, of %d processes, master weights %d; expected %d, %d, 1, %d ---> a "
                "state that the plugin wrote with the same settings",
                path, header[0], header[1], header[CHECKPOINT_STATE_PROCESSES],
                header[CHECKPOINT_STATE_MASTER], CHECKPOINT_STATE_MAGIC, CHECKPOINT_STATE_VERSION,
                c->master != NULL);
}

// The record behind the optimizer's values.
static Status restore_position(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const char* path,
                               int32_t step, uint64_t* sum) {
    CheckpointFile file;
    CheckpointRecord record = {NULL, 0, NULL};
    int64_t num_values = llmc_state_values(c);
    TRY(checkpoint_file_open(&file, path));
    Status status =
        checkpoint_record_read(&record, &file, LLMC_HEADER_BYTES + 4 * num_values, num_values, sum);
    checkpoint_file_close(&file);
    if (status == STATUS_OK && record.position == NULL) {
        status = FAIL(STATUS_BAD_FORMAT,
                      "%s: no position in the data: llm.c's own, or cut off ---> begin with its model file, "
                      "without resuming",
                      path);
    }
    if (status == STATUS_OK) {
        status = (Status)dynapipe_restore(run->dp, record.position, record.position_bytes, step);
    }
    free(record.position);
    free(record.settings);
    return status;
}

// Values of this slice; of all ranks with the same ones, one counts them.
static Status read_slices(const DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const LlmcPaths* paths,
                          LlmcSums* sums) {
    bool counts = dynapipe_replica(run->dp) == 0;
    DynapipeBody body = llmc_model_body(c, counts ? &sums->model : NULL);
    TRY((Status)dynapipe_tensors_read(paths->model, &body, c->slice, c->tensors, c->params, c->copies));
    float* bodies[] = {c->m, c->v, c->master};
    for (int i = 0; i < 3; i++) {
        if (bodies[i] == NULL) { continue; }
        body = llmc_state_body(c, i, counts ? &sums->state : NULL);
        TRY((Status)dynapipe_tensors_read(paths->state, &body, c->slice, c->tensors, bodies[i], c->copies));
    }
    return STATUS_OK;
}

// The seals of both files: zeros where they have none, or are not looked at.
static Status read_seals(const DynapipeLlmc* run, const LlmcPaths* paths, const int32_t* model_header,
                         const int32_t* state_header, int32_t step, CheckpointSeal* model,
                         CheckpointSeal* state) {
    if (!run->options.verify) {
        if (llmc_is_main(run)) { printf("--verify 0: %s is taken as it is\n", paths->model); }
        return STATUS_OK;
    }
    TRY(checkpoint_seal_check_pair(model_header, paths->model, state_header, paths->state, step));
    TRY(checkpoint_seal_get(model, model_header, paths->model));
    TRY(checkpoint_seal_get(state, state_header, paths->state));
    return llmc_check_vocabulary(run, model->vocab_hash, paths->model);
}

// Do all ranks read what rank 0 reads? By its seals' sums, in which everything else is.
static Status check_same(DynapipeLlmc* run, const LlmcPaths* paths, const CheckpointSeal* model,
                         const CheckpointSeal* state) {
    if (all_have(run, model->header_sum, state->header_sum)) { return STATUS_OK; }
    return FAIL(
        STATUS_MISMATCH,
        "%s: not all ranks have the same file there, or the same state beside it ---> a folder that all "
        "machines share",
        paths->model);
}

static Status resume(DynapipeLlmc* run, DynapipeLlmcCheckpoint* c, int32_t step, int32_t* model_header) {
    LlmcPaths paths = llmc_paths_of(c->directory, step);
    int32_t header[LLMC_HEADER_INTS];
    CheckpointSeal model = {false, 0, 0, 0, 0, 0}, state = {false, 0, 0, 0, 0, 0};
    LlmcSums sums = {0, 0};
    TRY(check_model_file(c, paths.model, model_header));
    TRY(check_state_file(c, paths.state, header));
    bool can_seal = c->model_header_bytes == LLMC_HEADER_BYTES;
    if (can_seal) { TRY(read_seals(run, &paths, model_header, header, step, &model, &state)); }
    TRY(check_same(run, &paths, &model, &state));
    TRY(read_slices(run, c, &paths, &sums));
    uint64_t record_sum = 0;
    TRY(restore_position(run, c, paths.state, header[CHECKPOINT_STATE_STEP], &record_sum));
    if (llmc_is_main(run)) { sums.state += record_sum; }
    llmc_add_sums(run, true, &sums);
    TRY(checkpoint_seal_check(&model, paths.model, sums.model));
    TRY(checkpoint_seal_check(&state, paths.state, sums.state));
    memcpy(c->rng_states, &header[CHECKPOINT_STATE_RNG], sizeof c->rng_states);
    if (llmc_is_main(run)) {
        printf("resumed from %s, step %d\n", paths.state, header[CHECKPOINT_STATE_STEP]);
    }
    return STATUS_OK;
}

// What cannot be gone on from: what can.
static void die_of_checkpoint(DynapipeLlmc* run, const char* directory, int32_t step) {
    char why[1024];
    const char *error = dynapipe_error(), *remedy = strstr(error, " ---> ");
    int what_chars = remedy != NULL ? (int)(remedy - error) : (int)strlen(error);
    int32_t older = checkpoint_find_before(directory, step);
    if (older > 1 && run->options.resume) {
        snprintf(why, sizeof why, "%.*s ---> --resume %d goes on from step %d, the newest before it",
                 what_chars, error, older, older);
    } else if (older >= 0) {
        snprintf(why, sizeof why, "%.*s ---> remove DONE_%08d there, and the run goes on from step %d",
                 what_chars, error, step, older);
    } else {
        snprintf(why, sizeof why,
                 "%.*s ---> there is no finished checkpoint before it: begin anew in another folder",
                 what_chars, error);
    }
    dynapipe_llmc_die(run, why);
}

void dynapipe_llmc_resume(DynapipeLlmc* run, DynapipeLlmcCheckpoint* c, int32_t step) {
    int32_t* model_header = (int32_t*)calloc(1, (size_t)c->model_header_bytes + LLMC_HEADER_BYTES);
    if (model_header == NULL) { dynapipe_llmc_die(run, "no memory for a header"); }
    Status status = resume(run, c, step, model_header);
    free(model_header);
    if (status == STATUS_BAD_FORMAT || status == STATUS_IO) { die_of_checkpoint(run, c->directory, step); }
    dynapipe_llmc_check(run, (int)status);
    run->first_step = run->tried_step = run->saved_step = step;
}
