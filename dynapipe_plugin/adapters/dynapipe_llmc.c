// dynapipe_llmc.c -- a run of the plugin inside a trainer of llm.c's family: session, data, steps,
// checkpoints.
#include "dynapipe_llmc.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../../util/files.h"
#include "../../util/numbers.h"
#include "../../util/options.h"
#include "../../util/program.h"
#include "../../util/status.h"
#include "llmc_record.h"
#include "llmc_seal.h"

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
           (slice->has_last && (where & DYNAPIPE_TENSOR_LAST) != 0);
}

static bool is_tied(const DynapipeTensors* tensors, int32_t i) {
    enum { BOTH = DYNAPIPE_TENSOR_FIRST | DYNAPIPE_TENSOR_LAST };
    return (tensors->where[i] & BOTH) == BOTH;
}

// Blocks: the embedding is 0, layer l is l + 1, the head num_layers + 1.
DynapipeSlice dynapipe_tensors_slice(const DynapipeTensors* tensors, DynapipeRange blocks) {
    int32_t L = tensors->num_layers, layer_begin = blocks.begin > 0 ? blocks.begin - 1 : 0;
    int32_t layer_end = blocks.end - 1 < L ? blocks.end - 1 : L;
    DynapipeSlice slice = {.num_layers = layer_end - layer_begin,
                           .has_first = blocks.begin == 0,
                           .has_last = blocks.end == L + 2};
    int64_t whole = 0;
    for (int32_t i = 0; i < tensors->num_tensors; i++) {
        int64_t count = tensors->count[i];
        slice.begin[i] = slice.num_values;
        slice.whole[i] = whole;
        if (of_layers(tensors, i)) {
            slice.count[i] = slice.num_layers * count;
            slice.whole[i] += layer_begin * count;
        } else if (in_slice(&slice, tensors->where[i])) {
            slice.count[i] = count;
            if (is_tied(tensors, i)) {
                slice.tied[slice.num_tied++] = (DynapipeTied){i, slice.begin[i], count};
            }
        }
        slice.num_values += slice.count[i];
        whole += whole_count(tensors, i);
    }
    return slice;
}

// --- files -----------------------------------------------------------------------------------------------

enum { PIECE_BYTES = 1 << 22 };  // between a device and a file

typedef struct {
    const char* path;
    int fd;
    const DynapipeCopies* copies;
    bool is_reading;
    char* piece;  // [PIECE_BYTES]; NULL: values are in host memory
    int32_t value_bytes;
    int64_t begin_byte;  // in the file, of the body that `sum` is of
    uint64_t* sum;       // of the values that go by; NULL: nobody asks
} Mover;

static void add_to_sum(const Mover* mover, const char* host, int64_t num_bytes, int64_t at) {
    if (mover->sum == NULL) { return; }
    int64_t first = (at - mover->begin_byte) / mover->value_bytes;
    dynapipe_seal_add(mover->sum, first, host, num_bytes / mover->value_bytes, mover->value_bytes);
}

static Status read_bytes(const Mover* mover, char* host, int64_t num_bytes, int64_t at) {
    while (num_bytes > 0) {
        ssize_t moved = pread(mover->fd, host, (size_t)num_bytes, (off_t)at);
        if (moved < 0 && errno == EINTR) { continue; }
        if (moved <= 0) {
            return FAIL(STATUS_IO, "%s: reading at byte %lld: %s ---> copy the checkpoint again", mover->path,
                        (long long)at, moved == 0 ? "it ends" : strerror(errno));
        }
        host += moved;
        num_bytes -= moved;
        at += moved;
    }
    return STATUS_OK;
}

static Status move_bytes(const Mover* mover, char* host, int64_t num_bytes, int64_t at) {
    int error = 0;
    if (mover->is_reading) {
        TRY(read_bytes(mover, host, num_bytes, at));
    } else {
        error = file_write_at(mover->fd, host, (size_t)num_bytes, at);
    }
    if (error != 0) {
        return FAIL(STATUS_IO, "%s: writing %lld bytes at %lld: %s ---> free room on that disk", mover->path,
                    (long long)num_bytes, (long long)at, strerror(error));
    }
    add_to_sum(mover, host, num_bytes, at);
    return STATUS_OK;
}

static Status move_values(const Mover* mover, char* values, int64_t num_bytes, int64_t at) {
    if (mover->piece == NULL) { return move_bytes(mover, values, num_bytes, at); }
    for (int64_t done = 0; done < num_bytes; done += PIECE_BYTES) {
        int64_t part = num_bytes - done < PIECE_BYTES ? num_bytes - done : PIECE_BYTES;
        if (!mover->is_reading) { mover->copies->to_host(mover->piece, values + done, (size_t)part); }
        TRY(move_bytes(mover, mover->piece, part, at + done));
        if (mover->is_reading) { mover->copies->from_host(values + done, mover->piece, (size_t)part); }
    }
    return STATUS_OK;
}

static Status move_tensors(const Mover* mover, int64_t at, const DynapipeSlice* slice,
                           const DynapipeTensors* tensors, char* values) {
    Mover uncounted = *mover;
    uncounted.sum = NULL;
    for (int32_t i = 0; i < tensors->num_tensors; i++) {
        bool is_copy = is_tied(tensors, i) && !slice->has_first;
        if (slice->count[i] == 0 || (is_copy && !mover->is_reading)) { continue; }
        TRY(move_values(is_copy ? &uncounted : mover, values + slice->begin[i] * mover->value_bytes,
                        slice->count[i] * mover->value_bytes, at + slice->whole[i] * mover->value_bytes));
    }
    return STATUS_OK;
}

static Status move_slice(Mover* mover, int64_t at, const DynapipeSlice* slice, const DynapipeTensors* tensors,
                         char* values) {
    mover->fd = open(mover->path, mover->is_reading ? O_RDONLY : O_WRONLY);
    if (mover->fd < 0) {
        return FAIL(STATUS_IO, "%s: %s ---> all ranks must see the same folder", mover->path,
                    strerror(errno));
    }
    if (mover->copies != NULL) { mover->piece = malloc(PIECE_BYTES); }
    Status status = mover->copies != NULL && mover->piece == NULL
                        ? FAIL(STATUS_NO_MEMORY, "no memory for a piece of %s", mover->path)
                        : move_tensors(mover, at, slice, tensors, values);
    if (status == STATUS_OK && !mover->is_reading && fsync(mover->fd) != 0) {
        status = FAIL(STATUS_IO, "%s: %s ---> free room on that disk", mover->path, strerror(errno));
    }
    free(mover->piece);
    close(mover->fd);
    return status;
}

int dynapipe_tensors_write(const char* path, const DynapipeBody* body, const DynapipeSlice* slice,
                           const DynapipeTensors* tensors, const void* values, const DynapipeCopies* copies) {
    Mover mover = {.path = path,
                   .copies = copies,
                   .value_bytes = body->value_bytes,
                   .begin_byte = body->file_at,
                   .sum = body->sum};
    return (int)move_slice(&mover, body->at, slice, tensors, (char*)(uintptr_t)values);
}

int dynapipe_tensors_read(const char* path, const DynapipeBody* body, const DynapipeSlice* slice,
                          const DynapipeTensors* tensors, void* values, const DynapipeCopies* copies) {
    Mover mover = {.path = path,
                   .copies = copies,
                   .is_reading = true,
                   .value_bytes = body->value_bytes,
                   .begin_byte = body->file_at,
                   .sum = body->sum};
    return (int)move_slice(&mover, body->at, slice, tensors, values);
}

// === session ========================================================================================
// the inside of a DynapipeLlmc: what llmc_run.c, llmc_checkpoint.c, llmc_resume.c and
// llmc_stop.c share.
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

// llmc_stop.c
void dynapipe_llmc_watch(DynapipeLlmc* run);                     // the options are known
bool dynapipe_llmc_begin_save(DynapipeLlmc* run, int32_t step);  // false: it was tried already
void dynapipe_llmc_saved(DynapipeLlmc* run, const char* directory, int32_t step);

// llmc_run.c
// theirs: what a checkpoint was trained on; 0: unknown. The data is open.
Status dynapipe_llmc_check_vocabulary(const DynapipeLlmc* run, uint64_t theirs, const char* path);

// llmc_checkpoint.c
void dynapipe_llmc_remove(const char* directory, int32_t step);  // a step's files, its mark first

static inline int dynapipe_llmc_is_main(const DynapipeLlmc* run) {
    return dynapipe_rank(run->dp) == 0;
}

/*
the files of a checkpoint, as llmc_checkpoint.c writes and llmc_resume.c reads them;
llmc_steps.c: which there are.

State file: 256 int32 (magic 20240527, version 1, processes 1, rank 0, has master weights, loader shuffles
0, [10] step, [20..23] two uint64 states of the model's random numbers, [200..239] the first 40 of its model
file's), then float32 m, v and maybe master weights, and the run's record (llmc_record.h). Both files' headers
end with a seal (llmc_seal.h), where the tree's model file begins with 256 ints.
*/
enum { LLMC_PATH_CHARS = 4096, LLMC_HEADER_INTS = DYNAPIPE_SEAL_HEADER_INTS };
enum { LLMC_HEADER_BYTES = 4 * LLMC_HEADER_INTS };
enum { STATE_MAGIC = 20240527, STATE_VERSION = 1 };
enum { STATE_PROCESSES = 2, STATE_RANK, STATE_MASTER, STATE_SHUFFLES, STATE_STEP = 10, STATE_RNG = 20 };

typedef struct {
    char model[LLMC_PATH_CHARS], state[LLMC_PATH_CHARS], done[LLMC_PATH_CHARS];
} LlmcPaths;

static inline LlmcPaths llmc_paths_of(const char* directory, int32_t step) {
    enum { DIRECTORY_CHARS = LLMC_PATH_CHARS - 64 };
    LlmcPaths paths;
    snprintf(paths.model, LLMC_PATH_CHARS, "%.*s/model_%08d.bin", DIRECTORY_CHARS, directory, step);
    snprintf(paths.state, LLMC_PATH_CHARS, "%.*s/state_%08d_00000.bin", DIRECTORY_CHARS, directory, step);
    snprintf(paths.done, LLMC_PATH_CHARS, "%.*s/DONE_%08d", DIRECTORY_CHARS, directory, step);
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

// Over all ranks, mod 2^64; did all succeed?
bool dynapipe_llmc_add_sums(DynapipeLlmc* run, bool ok, LlmcSums* sums);

// The largest step below `below` that is marked done in the folder; -1: none.
int32_t dynapipe_llmc_done_before(const char* directory, int32_t below);
// Marks of later steps go.
void dynapipe_llmc_unmark_later(const char* directory, int32_t step);

// === run ============================================================================================
// session, options, data and steps of a run inside a trainer of llm.c's family. Its
// checkpoints: llmc_checkpoint.c, llmc_resume.c.
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
    if (run->options.output_dir != NULL && run->dp != NULL && dynapipe_llmc_is_main(run)) {
        dynapipe_llmc_check(run, (int)file_make_directory(run->options.output_dir));
    }
}

// --- session ---------------------------------------------------------------------------------------------

DynapipeLlmc* dynapipe_llmc_open_as(int32_t header_interface, int* argc, char*** argv, int has_options) {
    const char* own[NUM_SPECS + 1] = {NULL};
    int first = has_options ? 0 : FIRST_COMMON;
    for (int i = first; i < NUM_SPECS; i++) { own[i - first] = specs[i].name; }
    DynapipeLlmc* run = calloc(1, sizeof(DynapipeLlmc));
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
    dynapipe_llmc_watch(run);
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
    if (!dynapipe_llmc_is_main(run)) { return; }
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

Status dynapipe_llmc_check_vocabulary(const DynapipeLlmc* run, uint64_t theirs, const char* path) {
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
        dynapipe_llmc_check(run,
                            (int)dynapipe_llmc_check_vocabulary(run, run->model_vocab_hash, run->model_path));
    }
    run->task_loss = calloc((size_t)run->info.num_tasks + 1, sizeof(double));
    if (run->task_loss == NULL) { dynapipe_llmc_die(run, "no memory for the tasks' losses"); }
    if (!dynapipe_llmc_is_main(run)) { return; }
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
    dynapipe_llmc_check(run,
                        dynapipe_check_model(run->dp, blocks, dynapipe_llmc_is_main(run) ? stdout : NULL));
    exit(dynapipe_llmc_close(run));
}

DynapipeRange dynapipe_llmc_place(DynapipeLlmc* run, const DynapipeBlocks_v1* blocks) {
    DynapipeCosts* costs;
    DynapipeRange mine;
    int32_t num_ranges;
    if (run->options.check_model) { check_model_and_end(run, blocks); }
    dynapipe_llmc_check(run, dynapipe_measure(run->dp, blocks, &costs));
    dynapipe_llmc_check(run, dynapipe_choose_stages(run->dp, costs, &mine, 1, &num_ranges));
    if (dynapipe_llmc_is_main(run)) {
        printf("ranks: %d = %d stages x %d replicas, threads per rank %d; %d steps of at most %lld tokens\n",
               dynapipe_num_ranks(run->dp), dynapipe_num_stages(run->dp), dynapipe_num_replicas(run->dp),
               dynapipe_threads(run->dp), run->info.num_steps, (long long)run->about.batch_tokens);
        fflush(stdout);
    }
    return mine;
}

void dynapipe_llmc_attach(DynapipeLlmc* run, const DynapipeModel_v1* api, void* model,
                          const DynapipeParams_v1* params) {
    dynapipe_llmc_check(run, dynapipe_attach(run->dp, 0, api, model, params));
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
    if (dynapipe_llmc_is_main(run)) { standard_output_warn(&run->warned_of_output); }
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

// === steps ==========================================================================================
// which steps a folder has checkpoints of: those with a mark, the empty file DONE_%08d.
// -1: no mark, or not the one that this step would be given (DONE_7).
static int32_t step_of_mark(const char* name) {
    char mark[32];
    long long step = strncmp(name, "DONE_", 5) == 0 ? strtoll(name + 5, NULL, 10) : -1;
    if (step < 0 || step > INT32_MAX) { return -1; }
    snprintf(mark, sizeof mark, "DONE_%08lld", step);
    return strcmp(name, mark) == 0 ? (int32_t)step : -1;
}

// The next step that is marked done, of an open folder; -1: no more.
static int32_t next_done(DIR* dir) {
    for (const struct dirent* entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        int32_t step = step_of_mark(entry->d_name);
        if (step >= 0) { return step; }
    }
    return -1;
}

int32_t dynapipe_llmc_done_before(const char* directory, int32_t below) {
    int32_t newest = -1;
    DIR* dir = opendir(directory);
    if (dir == NULL) { return -1; }
    for (int32_t step = next_done(dir); step >= 0; step = next_done(dir)) {
        if (step < below && step > newest) { newest = step; }
    }
    closedir(dir);
    return newest;
}

void dynapipe_llmc_unmark_later(const char* directory, int32_t step) {
    for (int32_t later = dynapipe_llmc_done_before(directory, INT32_MAX); later > step;
         later = dynapipe_llmc_done_before(directory, later)) {
        LlmcPaths paths = llmc_paths_of(directory, later);
        unlink(paths.done);
    }
}

void dynapipe_llmc_remove(const char* directory, int32_t step) {
    LlmcPaths paths = llmc_paths_of(directory, step);
    unlink(paths.done);
    unlink(paths.state);
    unlink(paths.model);
}

// === stop ===========================================================================================
// when a run inside a trainer of llm.c's family saves, and how it ends by a signal.
void dynapipe_llmc_watch(DynapipeLlmc* run) {
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
void dynapipe_llmc_saved(DynapipeLlmc* run, const char* directory, int32_t step) {
    enum { KEPT = DYNAPIPE_LLMC_TIMED_KEPT };
    run->saved_step = step;
    run->saved_s = dynapipe_seconds(run->dp);
    if (!run->is_timed) { return; }
    run->is_timed = false;
    int32_t oldest = run->timed_steps[KEPT - 1];
    memmove(run->timed_steps + 1, run->timed_steps, sizeof(int32_t) * (KEPT - 1));
    run->timed_steps[0] = step;
    if (oldest > 0 && dynapipe_llmc_is_main(run)) { dynapipe_llmc_remove(directory, oldest); }
}

bool dynapipe_llmc_begin_save(DynapipeLlmc* run, int32_t step) {
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
    if (dynapipe_llmc_is_main(run) && step < run->info.num_steps) { say_stopped(run, directory, step); }
    fflush(stdout);
    int lost_status = dynapipe_llmc_close(run);
    exit(is_lost ? EXIT_FAILURE : status != 0 ? status : lost_status);
}

// === checkpoint =====================================================================================
// llm.c's checkpoints by all ranks together: rank 0 makes the files, each rank writes
// its slice, rank 0 seals and renames them when all succeeded.
// --- sums ------------------------------------------------------------------------------------------------

enum { NUM_PIECES = 4 };  // of 64 bits, so that doubles add them exactly

bool dynapipe_llmc_add_sums(DynapipeLlmc* run, bool ok, LlmcSums* sums) {
    uint64_t both[2] = {sums->model, sums->state};
    double values[1 + 2 * NUM_PIECES] = {ok ? 0 : 1};
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

static const char* tmp_of(char out[LLMC_PATH_CHARS + 8], const char* path) {
    snprintf(out, LLMC_PATH_CHARS + 8, "%s.tmp", path);
    return out;
}

// What a file has besides the slices' values.
typedef struct {
    int64_t at;
    const void* data;
    int64_t num_bytes;
} Part;

// error: an errno, or 0. fd: -1: none; it is closed.
static Status close_written(int fd, int error, const char* tmp) {
    if (error == 0 && fsync(fd) != 0) { error = errno; }
    if (fd >= 0 && close(fd) != 0 && error == 0) { error = errno; }
    if (error == 0) { return STATUS_OK; }
    return FAIL(STATUS_IO, "%s: %s ---> a folder with room where you may write", tmp, strerror(error));
}

// PATH.tmp of num_bytes with these parts, the rest zeros.
static Status create_file(const char* path, int64_t num_bytes, const Part* parts, int num_parts) {
    char tmp[LLMC_PATH_CHARS + 8];
    int fd = open(tmp_of(tmp, path), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0666);
    int error = fd >= 0 ? file_reserve(fd, num_bytes) : errno;
    for (int i = 0; i < num_parts && error == 0; i++) {
        error = file_write_at(fd, parts[i].data, (size_t)parts[i].num_bytes, parts[i].at);
    }
    return close_written(fd, error, tmp);
}

static Status create_model(const DynapipeLlmcCheckpoint* c, const char* path) {
    Part header = {0, c->model_header, c->model_header_bytes};
    return create_file(path, c->model_header_bytes + dynapipe_tensors_total(c->tensors) * c->param_bytes,
                       &header, 1);
}

// *sum: of the record.
static Status create_state(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const char* path, int32_t step,
                           uint64_t* sum) {
    const void* position;
    size_t num_bytes;
    Status status = (Status)dynapipe_position(run->dp, &position, &num_bytes);
    if (status != STATUS_OK) { return status; }
    int32_t header[LLMC_HEADER_INTS] = {STATE_MAGIC, STATE_VERSION, 1, 0};
    header[STATE_MASTER] = c->master != NULL;
    header[STATE_STEP] = step;
    memcpy(&header[STATE_RNG], c->rng_states, sizeof c->rng_states);
    if (c->model_header_bytes == LLMC_HEADER_BYTES) {
        memcpy(&header[DYNAPIPE_SEAL_STATE_MODEL], c->model_header, 4 * DYNAPIPE_SEAL_STATE_MODEL_INTS);
    }
    LlmcRecord record = dynapipe_record_of(position, num_bytes);
    dynapipe_seal_add(sum, llmc_state_values(c), &record.hash, 2, 4);
    int64_t at = LLMC_HEADER_BYTES + 4 * llmc_state_values(c), behind = at + (int64_t)sizeof record;
    Part parts[] = {
        {0, header, sizeof header}, {at, &record, sizeof record}, {behind, position, (int64_t)num_bytes}};
    return create_file(path, behind + (int64_t)num_bytes, parts, 3);
}

// All ranks have the same values of a slice (zero stage 0), so those of one replica write.
static Status write_slices(const DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const LlmcPaths* paths,
                           LlmcSums* sums) {
    if (dynapipe_replica(run->dp) != 0) { return STATUS_OK; }
    char tmp[LLMC_PATH_CHARS + 8];
    const float* bodies[] = {c->m, c->v, c->master};
    DynapipeBody body = llmc_model_body(c, &sums->model);
    TRY((Status)dynapipe_tensors_write(tmp_of(tmp, paths->model), &body, c->slice, c->tensors, c->params,
                                       c->copies));
    for (int i = 0; i < 3; i++) {
        if (bodies[i] == NULL) { continue; }
        body = llmc_state_body(c, i, &sums->state);
        TRY((Status)dynapipe_tensors_write(tmp_of(tmp, paths->state), &body, c->slice, c->tensors, bodies[i],
                                           c->copies));
    }
    return STATUS_OK;
}

// Into PATH.tmp, whose header is there.
static Status seal_file(const char* path, const DynapipeSeal* seal) {
    int32_t header[LLMC_HEADER_INTS];
    char tmp[LLMC_PATH_CHARS + 8];
    int fd = open(tmp_of(tmp, path), O_RDWR | O_CLOEXEC);
    int error = fd >= 0 ? 0 : errno;
    if (error == 0) {
        ssize_t num_bytes = pread(fd, header, sizeof header, 0);
        error = num_bytes == (ssize_t)sizeof header ? 0 : num_bytes < 0 ? errno : EIO;
    }
    if (error == 0) {
        dynapipe_seal_write(header, seal);
        error = file_write_at(fd, header, sizeof header, 0);
    }
    return close_written(fd, error, tmp);
}

static DynapipeSeal seal_of(const DynapipeLlmc* run, int32_t step, uint64_t sum, uint64_t model_sum) {
    return (DynapipeSeal){
        .step = step, .body_sum = sum, .vocab_hash = run->info.vocab_hash, .model_sum = model_sum};
}

static Status seal_both(const DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const LlmcPaths* paths,
                        int32_t step, const LlmcSums* sums) {
    if (c->model_header_bytes != LLMC_HEADER_BYTES) { return STATUS_OK; }
    DynapipeSeal model = seal_of(run, step, sums->model, 0);
    DynapipeSeal state = seal_of(run, step, sums->state, sums->model);
    TRY(seal_file(paths->model, &model));
    return seal_file(paths->state, &state);
}

static Status rename_tmp(const char* path) {
    char tmp[LLMC_PATH_CHARS + 8];
    if (rename(tmp_of(tmp, path), path) == 0) { return STATUS_OK; }
    return FAIL(STATUS_IO, "%s: %s ---> a folder where you may write", path, strerror(errno));
}

static Status sync_folder(const char* path) {
    int error = file_sync_folder(path);
    if (error == 0) { return STATUS_OK; }
    return FAIL(STATUS_IO, "%s: its folder cannot be synced: %s ---> check the disk", path, strerror(error));
}

// A mark never stands beside a model of one run and a state of another, not even where the machine goes down;
// and none of a run that was left behind the newest.
static Status commit(const char* directory, const LlmcPaths* paths, int32_t step) {
    unlink(paths->done);
    TRY(rename_tmp(paths->model));
    TRY(rename_tmp(paths->state));
    dynapipe_llmc_unmark_later(directory, step);
    TRY(create_file(paths->done, 0, NULL, 0));
    TRY(sync_folder(paths->done));
    TRY(rename_tmp(paths->done));
    return sync_folder(paths->done);
}

// Whether all ranks succeeded; the first to fail says why. Their sums are added.
static bool all_wrote(DynapipeLlmc* run, Status status, const char* what, LlmcSums* sums) {
    if (status != STATUS_OK) { fprintf(stderr, "warning: %s not saved: %s\n", what, dynapipe_error()); }
    return dynapipe_llmc_add_sums(run, status == STATUS_OK, sums);
}

static bool all_succeeded(DynapipeLlmc* run, Status status, const char* what) {
    LlmcSums none = {0, 0};
    return all_wrote(run, status, what, &none);
}

static void drop_tmp(const char* path) {
    char tmp[LLMC_PATH_CHARS + 8];
    unlink(tmp_of(tmp, path));
}

static bool save(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const LlmcPaths* paths, int32_t step) {
    bool is_main = dynapipe_llmc_is_main(run);
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
    status = is_main ? seal_both(run, c, paths, step, &sums) : STATUS_OK;
    if (is_main && status == STATUS_OK) { status = commit(c->directory, paths, step); }
    return all_succeeded(run, status, "checkpoint");
}

void dynapipe_llmc_save(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, int32_t step) {
    if (!dynapipe_llmc_begin_save(run, step)) { return; }
    LlmcPaths paths = llmc_paths_of(c->directory, step);
    bool saved = save(run, c, &paths, step);
    run->save_failed = !saved;
    if (saved) { dynapipe_llmc_saved(run, c->directory, step); }
    if (!dynapipe_llmc_is_main(run)) { return; }
    if (saved) {
        printf("saved %s\n", paths.model);
        fflush(stdout);
    } else {
        drop_tmp(paths.model);
        drop_tmp(paths.state);
    }
}

void dynapipe_llmc_dump_gradients(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const void* grads) {
    const char* path = dynapipe_option(run->dp, "--dump-gradients");
    if (path == NULL || run->has_dumped) { return; }
    run->has_dumped = 1;
    bool is_main = dynapipe_llmc_is_main(run);
    char tmp[LLMC_PATH_CHARS + 8];
    LlmcSums sums = {0, 0};
    DynapipeBody body = llmc_model_body(c, &sums.model);
    bool saved = all_succeeded(run, is_main ? create_model(c, path) : STATUS_OK, "gradients");
    Status status = STATUS_OK;
    if (saved && dynapipe_replica(run->dp) == 0) {
        status =
            (Status)dynapipe_tensors_write(tmp_of(tmp, path), &body, c->slice, c->tensors, grads, c->copies);
    }
    saved = saved && all_wrote(run, status, "gradients", &sums);
    if (saved && is_main) {
        DynapipeSeal seal = seal_of(run, 0, sums.model, 0);
        status = c->model_header_bytes == LLMC_HEADER_BYTES ? seal_file(path, &seal) : STATUS_OK;
        if (status == STATUS_OK) { status = rename_tmp(path); }
    }
    saved = saved && all_succeeded(run, status, "gradients");
    if (saved) { return; }
    if (is_main) { drop_tmp(path); }
    dynapipe_llmc_die(run, "--dump-gradients: cannot be written ---> name a file where you may write");
}

// === resume =========================================================================================
// going on from llm.c's checkpoints, all ranks together: which one, and is it what was
// saved?
// --- which -----------------------------------------------------------------------------------------------

// --resume 1 and a program's own flag: the newest.
static int32_t step_asked_for(const DynapipeLlmc* run, const char* directory) {
    int32_t step = run->options.resume;
    if (step <= 1) { return dynapipe_llmc_done_before(directory, INT32_MAX); }
    return dynapipe_llmc_done_before(directory, step + 1) == step ? step : -1;
}

int32_t dynapipe_llmc_latest(DynapipeLlmc* run, const char* directory) {
    double step = dynapipe_llmc_is_main(run) ? step_asked_for(run, directory) : 0;
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &step, 1));
    run->has_begun = 1;
    if (step < 0 && run->options.resume > 1) {
        dynapipe_llmc_check(run, (int)FAIL(STATUS_BAD_OPTION,
                                           "--resume %d: no finished checkpoint of that step in %s ---> the "
                                           "newest there is of step %d (--resume 1; -1: none)",
                                           run->options.resume, directory,
                                           dynapipe_llmc_done_before(directory, INT32_MAX)));
    }
    if (step < 0 && dynapipe_llmc_is_main(run)) {
        printf("%s: no finished checkpoint to go on from: a new run begins\n", directory);
        fflush(stdout);
    }
    return (int32_t)step;
}

void dynapipe_llmc_begin(DynapipeLlmc* run, const char* directory) {
    if (run->has_begun || directory == NULL) { return; }
    run->has_begun = 1;
    double newest = dynapipe_llmc_is_main(run) ? dynapipe_llmc_done_before(directory, INT32_MAX) : 0;
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
    bool is_main = dynapipe_llmc_is_main(run);
    LlmcSums main_sums = {is_main ? model : 0, is_main ? state : 0}, none = {0, 0};
    dynapipe_llmc_add_sums(run, true, &main_sums);
    return dynapipe_llmc_add_sums(run, main_sums.model == model && main_sums.state == state, &none);
}

// Differs where two files differ in length, header (a seal is in it) or one of 64 blocks of 4 KiB.
static uint64_t fingerprint(const FileMap* map) {
    enum { NUM_BLOCKS = 64, BLOCK_BYTES = 4096 };
    uint64_t length = map->num_bytes, hash = hash_bytes(HASH_SEED, &length, sizeof length);
    size_t last = map->num_bytes > BLOCK_BYTES ? map->num_bytes - BLOCK_BYTES : 0;
    for (size_t i = 0; i < NUM_BLOCKS; i++) {
        size_t at = i == NUM_BLOCKS - 1 ? last : last / (NUM_BLOCKS - 1) * i;
        size_t part = map->num_bytes - at < BLOCK_BYTES ? map->num_bytes - at : BLOCK_BYTES;
        if (part > 0) { hash = hash_bytes(hash, map->data + at, part); }
    }
    return hash_finish(hash);
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
    dynapipe_seal_add(&sum, begin, map->data + LLMC_HEADER_BYTES + begin * value_bytes, end - begin,
                      value_bytes);
    return sum;
}

// Of a file that all ranks have alike.
static Status check_sealed(DynapipeLlmc* run, DynapipeSeal* seal, const FileMap* map, const char* path) {
    int32_t header[LLMC_HEADER_INTS];
    if (map->num_bytes < LLMC_HEADER_BYTES) { return STATUS_OK; }
    memcpy(header, map->data, sizeof header);
    TRY(dynapipe_seal_read(seal, header, path));
    LlmcSums sums = {0, 0};
    if (!seal->is_sealed) { return STATUS_OK; }
    sums.model = share_of_sum(run, map);
    dynapipe_llmc_add_sums(run, true, &sums);
    return dynapipe_seal_check(seal, path, sums.model);
}

void dynapipe_llmc_check_model_file(DynapipeLlmc* run, const char* path) {
    FileMap map = {0};
    DynapipeSeal seal = {.is_sealed = 0};
    double num_opened = file_map_open(&map, path) == STATUS_OK;
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &num_opened, 1));
    if (num_opened == 0) { return; }  // the program's own words for that
    Status status = STATUS_OK;
    if (num_opened < dynapipe_num_ranks(run->dp) || !all_have(run, fingerprint(&map), 0)) {
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
    int fd = open(path, O_RDONLY);
    struct stat about;
    if (fd < 0 || fstat(fd, &about) != 0) {
        Status status =
            FAIL(STATUS_IO, "%s: %s ---> copy the checkpoint again, whole", path, strerror(errno));
        if (fd >= 0) { close(fd); }
        return status;
    }
    bool ok = about.st_size >= num_bytes && (!is_exact || about.st_size == num_bytes) &&
              pread(fd, header, (size_t)header_bytes, 0) == (ssize_t)header_bytes;
    close(fd);
    if (ok) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT, "%s: %lld bytes, but this model's has %lld ---> use another checkpoint",
                path, (long long)about.st_size, (long long)num_bytes);
}

// Without the seal, which is this checkpoint's own.
static bool is_same_header(const DynapipeLlmcCheckpoint* c, const void* header) {
    bool has_seal = c->model_header_bytes == LLMC_HEADER_BYTES;
    size_t num_bytes = has_seal ? 4 * DYNAPIPE_SEAL_BEGIN : (size_t)c->model_header_bytes;
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
    bool fits = header[0] == STATE_MAGIC && header[1] == STATE_VERSION && header[STATE_PROCESSES] == 1 &&
                header[STATE_RANK] == 0 && header[STATE_MASTER] == (c->master != NULL);
    if (fits) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: magic %d, version %d, of %d processes, master weights %d; expected %d, %d, 1, %d ---> a "
                "state that the plugin wrote with the same settings",
                path, header[0], header[1], header[STATE_PROCESSES], header[STATE_MASTER], STATE_MAGIC,
                STATE_VERSION, c->master != NULL);
}

// The record behind the optimizer's values.
static Status restore_position(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* c, const char* path,
                               int32_t step, uint64_t* sum) {
    FileMap map;
    TRY(file_map_open(&map, path));
    LlmcRecord record;
    int64_t at = LLMC_HEADER_BYTES + 4 * llmc_state_values(c);
    Status status = dynapipe_record_read(&record, map.data + at, (int64_t)map.num_bytes - at, path);
    if (status == STATUS_OK) {
        dynapipe_seal_add(sum, llmc_state_values(c), &record.hash, 2, 4);
        const uint8_t* position = map.data + at + sizeof record;
        status = (Status)dynapipe_restore(run->dp, position, (size_t)record.position_bytes, step);
    }
    file_map_close(&map);
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
                         const int32_t* state_header, int32_t step, DynapipeSeal* model,
                         DynapipeSeal* state) {
    if (!run->options.verify) {
        if (dynapipe_llmc_is_main(run)) { printf("--verify 0: %s is taken as it is\n", paths->model); }
        return STATUS_OK;
    }
    TRY(dynapipe_seal_check_pair(model_header, paths->model, state_header, paths->state, step));
    TRY(dynapipe_seal_read(model, model_header, paths->model));
    TRY(dynapipe_seal_read(state, state_header, paths->state));
    return dynapipe_llmc_check_vocabulary(run, model->vocab_hash, paths->model);
}

// Do all ranks read what rank 0 reads? By its seals' sums, in which everything else is.
static Status check_same(DynapipeLlmc* run, const LlmcPaths* paths, const DynapipeSeal* model,
                         const DynapipeSeal* state) {
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
    DynapipeSeal model = {.is_sealed = 0}, state = {.is_sealed = 0};
    LlmcSums sums = {0, 0};
    TRY(check_model_file(c, paths.model, model_header));
    TRY(check_state_file(c, paths.state, header));
    bool can_seal = c->model_header_bytes == LLMC_HEADER_BYTES;
    if (can_seal) { TRY(read_seals(run, &paths, model_header, header, step, &model, &state)); }
    TRY(check_same(run, &paths, &model, &state));
    TRY(read_slices(run, c, &paths, &sums));
    uint64_t record_sum = 0;
    TRY(restore_position(run, c, paths.state, header[STATE_STEP], &record_sum));
    if (dynapipe_llmc_is_main(run)) { sums.state += record_sum; }
    dynapipe_llmc_add_sums(run, true, &sums);
    TRY(dynapipe_seal_check(&model, paths.model, sums.model));
    TRY(dynapipe_seal_check(&state, paths.state, sums.state));
    memcpy(c->rng_states, &header[STATE_RNG], sizeof c->rng_states);
    if (dynapipe_llmc_is_main(run)) { printf("resumed from %s, step %d\n", paths.state, header[STATE_STEP]); }
    return STATUS_OK;
}

// What cannot be gone on from: what can.
static void die_of_checkpoint(DynapipeLlmc* run, const char* directory, int32_t step) {
    char why[1024];
    const char *error = dynapipe_error(), *remedy = strstr(error, " ---> ");
    int what_chars = remedy != NULL ? (int)(remedy - error) : (int)strlen(error);
    int32_t older = dynapipe_llmc_done_before(directory, step);
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
    int32_t* model_header = calloc(1, (size_t)c->model_header_bytes + LLMC_HEADER_BYTES);
    if (model_header == NULL) { dynapipe_llmc_die(run, "no memory for a header"); }
    Status status = resume(run, c, step, model_header);
    free(model_header);
    if (status == STATUS_BAD_FORMAT || status == STATUS_IO) { die_of_checkpoint(run, c->directory, step); }
    dynapipe_llmc_check(run, (int)status);
    run->first_step = run->tried_step = run->saved_step = step;
}
