// dynapipe_llmc.c -- a run of the plugin inside a trainer of llm.c's family: tensors, session, data, steps,
// checkpoints.
#include "dynapipe_llmc.h"

#include <math.h>
#include <stdarg.h>
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

int dynapipe_tensors_init(DynapipeTensors* out, int32_t num_tensors, int32_t num_layers,
                          const size_t* sizes_of_1, const size_t* sizes_of_2, const int32_t* where,
                          size_t num_values) {
    memset(out, 0, sizeof *out);
    out->num_tensors = num_tensors;
    out->num_layers = num_layers;
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
                "parameter tensor %d: %zu values with one layer, %zu with two: this model cannot be cut "
                "---> layers that are all alike, each tensor with all of them in a row",
                i, sizes_of_1[i], sizes_of_2[i]);
        }
        if (!grows && where[i] == 0) {
            return (int)FAIL(
                STATUS_OUT_OF_RANGE,
                "parameter tensor %d is of no layer, and the adapter does not know which range needs it "
                "---> add it there (where[%d])",
                i, i);
        }
        out->where[i] = grows ? DYNAPIPE_TENSOR_LAYERS : where[i];
        out->count[i] = (int64_t)sizes_of_1[i];
    }
    if (dynapipe_tensors_total(out) == (int64_t)num_values) { return 0; }
    return (int)FAIL(
        STATUS_OUT_OF_RANGE,
        "the sizes of %d parameter tensors do not add up to num_parameters, %zu: this model cannot be cut "
        "---> all of the model's tensors in fill_in_parameter_sizes()",
        num_tensors, num_values);
}

static bool in_slice(const DynapipeSlice* slice, int32_t where) {
    return (slice->has_first && (where & DYNAPIPE_TENSOR_FIRST) != 0) ||
           (slice->has_norm && (where & DYNAPIPE_TENSOR_NORM) != 0) ||
           (slice->has_head && (where & DYNAPIPE_TENSOR_HEAD) != 0);
}

static bool is_tied(const DynapipeTensors* tensors, int32_t i) {
    enum { BOTH = DYNAPIPE_TENSOR_FIRST | DYNAPIPE_TENSOR_HEAD };
    return (tensors->where[i] & BOTH) == BOTH;
}

DynapipeRole dynapipe_tensors_role(const DynapipeTensors* tensors, DynapipeRange blocks,
                                   int32_t first_layer) {
    const int32_t L = tensors->num_layers;  // blocks: the embedding is 0, layer l is l + 1, the head L + 1
    int32_t begin = blocks.begin > 0 ? blocks.begin - 1 : 0, end = blocks.end - 1 < L ? blocks.end - 1 : L;
    DynapipeRole role;
    memset(&role, 0, sizeof role);
    role.first_layer = first_layer;
    role.num_layers = end > begin ? end - begin : 0;
    role.feeds = blocks.head == DYNAPIPE_HEAD_FEEDS;
    role.is_share = blocks.head == DYNAPIPE_HEAD_BY_ROWS;
    role.has_first = blocks.begin == 0;
    role.has_head = blocks.end == L + 2 && !role.is_share;
    role.has_norm = role.feeds || role.has_head;
    return role;
}

DynapipeSlice dynapipe_tensors_slice(const DynapipeTensors* tensors, const DynapipeRange* ranges,
                                     int32_t num_ranges) {
    DynapipeSlice slice;
    memset(&slice, 0, sizeof slice);
    for (int32_t r = 0; r < num_ranges; r++) {
        DynapipeRole role = dynapipe_tensors_role(tensors, ranges[r], 0);
        slice.has_first |= role.has_first;
        slice.has_norm |= role.has_norm;
        slice.has_head |= role.has_head || role.is_share;
        if (role.num_layers == 0) { continue; }
        slice.run_begin[slice.num_runs] = ranges[r].begin > 0 ? ranges[r].begin - 1 : 0;
        slice.run_end[slice.num_runs] = slice.run_begin[slice.num_runs] + role.num_layers;
        slice.num_runs++;
        slice.num_layers += role.num_layers;
    }
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

void* dynapipe_tensors_nowhere(int32_t i) {
    enum { APART = 64 };
    static char nowhere[APART * DYNAPIPE_MAX_TENSORS];
    return nowhere + APART * i;
}

void dynapipe_tensors_point(const DynapipeTensors* tensors, const DynapipeSlice* slice, void* pointers,
                            void* values, int32_t value_bytes, int32_t first_layer) {
    for (int32_t i = 0; i < tensors->num_tensors; i++) {
        int64_t at = slice->begin[i] + (of_layers(tensors, i) ? first_layer * tensors->count[i] : 0);
        ((void**)pointers)[i] =
            slice->count[i] > 0 ? (char*)values + at * value_bytes : (char*)dynapipe_tensors_nowhere(i);
    }
}

void dynapipe_tensors_advance(const DynapipeTensors* tensors, void* pointers, int32_t value_bytes,
                              int32_t num_layers) {
    for (int32_t i = 0; i < tensors->num_tensors; i++) {
        if (of_layers(tensors, i)) { ((char**)pointers)[i] += num_layers * tensors->count[i] * value_bytes; }
    }
}

// Values [begin, begin + count) of the slice's arrays are [whole, whole + count) of the whole model's.
typedef struct {
    int64_t begin, whole, count;
} Piece;

// The pieces of tensor i; returns how many.
static int32_t tensor_pieces(const DynapipeTensors* tensors, const DynapipeSlice* slice, int32_t i,
                             Piece out[DYNAPIPE_MAX_RANGES]) {
    int64_t whole = 0, at = slice->begin[i];
    for (int32_t before = 0; before < i; before++) { whole += whole_count(tensors, before); }
    if (!of_layers(tensors, i)) {
        Piece all = {at, whole, slice->count[i]};
        out[0] = all;
        return slice->count[i] > 0;
    }
    for (int32_t r = 0; r < slice->num_runs; r++) {
        Piece run = {at, whole + slice->run_begin[r] * tensors->count[i],
                     (slice->run_end[r] - slice->run_begin[r]) * tensors->count[i]};
        out[r] = run;
        at += run.count;
    }
    return slice->num_runs;
}

void dynapipe_tensors_copy(const DynapipeTensors* tensors, const DynapipeSlice* slice, void* to,
                           const void* whole, int32_t value_bytes,
                           void (*copy)(void* to, const void* from, size_t num_bytes)) {
    for (int32_t i = 0; i < tensors->num_tensors; i++) {
        Piece pieces[DYNAPIPE_MAX_RANGES];
        int32_t num = tensor_pieces(tensors, slice, i, pieces);
        for (int32_t p = 0; p < num; p++) {
            void* there = (char*)to + pieces[p].begin * value_bytes;
            const void* here = (const char*)whole + pieces[p].whole * value_bytes;
            size_t num_bytes = (size_t)(pieces[p].count * value_bytes);
            if (copy != NULL) {
                copy(there, here, num_bytes);
            } else {
                memcpy(there, here, num_bytes);
            }
        }
    }
}

// === session ========================================================================================
enum {
    MAX_SAID = 16,
};

struct DynapipeLlmc {
    Dynapipe* dp;  // NULL: --fixed-length
    DynapipeLlmcOptions options;
    bool has_options;  // the program has no flags of its own
    DynapipeRun_v1 about;
    DynapipeDataInfo_v1 info;
    double* task_loss;          // [info.num_tasks]
    char* model_path;           // the file that the model begins with; NULL: not checked
    uint64_t model_vocab_hash;  // of the data that it was trained on; 0: unknown
    const char* said[MAX_SAID];
    int num_said;
    bool warned_of_output;  // standard output is lost
    DynapipeLlmcTree tree;
    const char* log_dir;       // NULL: none
    int32_t step, first_step;  // updates so far, and before this run
    bool is_open;              // a step is made and not ended yet
    DynapipeReport_v1 report;  // of that step
    int32_t validated_step;    // that val_loss is of; -1: none
    float val_loss;
    bool has_dumped;  // dump-gradients is done
    bool has_begun;   // from a checkpoint, or anew in a folder that may have some
    SaveInterval save_every;
    int32_t tried_step, saved_step;  // last tried to save; last saved or resumed from; -1: none
    double saved_s;                  // when, by dynapipe_seconds()
    bool is_timed, save_failed;      // the save at hand is the clock's alone; the last failed
};

static bool is_main(const DynapipeLlmc* run) {
    return dynapipe_rank(run->dp) == 0;
}

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
    {"--val-samples",      OPTION_INT,    FIELD(val_samples),     "-1", -1, 2e9, NULL, "N", "samples of a validation, of all tasks; -1: all of the data"},
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
    printf("\nBelow and in messages -i -j -e -d -t -o -y are --train-data --val-data --model --batch-tokens "
           "--max-tokens --output-dir --resume.\n");
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
    if (run->options.output_dir != NULL && run->dp != NULL && is_main(run)) {
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
    run->has_options = has_options != 0;
    run->saved_step = run->tried_step = run->validated_step = -1;
    const char* every = run->options.checkpoint_every;
    dynapipe_llmc_check(run, (int)save_interval_parse(&run->save_every, "--checkpoint-every",
                                                      every != NULL ? every : SAVE_INTERVAL_USUAL));
    return run;
}

int dynapipe_llmc_is_on(const DynapipeLlmc* run) {
    return run != NULL && run->dp != NULL;
}

// Each rank prints this: none has joined the others.
static const DynapipeLlmc* need_open(const DynapipeLlmc* run) {
    if (run != NULL) { return run; }
    fprintf(stderr, "error: the plugin is asked before DYNAPIPE_OPEN, the first line of main() ---> "
                    "dynapipe_plugin/install.sh --check names the lines that are missing\n");
    exit(EXIT_FAILURE);
}

const DynapipeLlmcOptions* dynapipe_llmc_options(const DynapipeLlmc* run) {
    return &need_open(run)->options;
}

Dynapipe* dynapipe_llmc_session(const DynapipeLlmc* run) {
    return need_open(run)->dp;
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

void dynapipe_llmc_die(DynapipeLlmc* run, const char* format, ...) {
    char why[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(why, sizeof why, format, args);
    va_end(args);
    dynapipe_abort(run->dp, why);
    exit(EXIT_FAILURE);
}

void dynapipe_llmc_say_once(DynapipeLlmc* run, const char* literal) {
    for (int i = 0; i < run->num_said; i++) {
        if (run->said[i] == literal) { return; }
    }
    if (run->num_said < MAX_SAID) { run->said[run->num_said++] = literal; }
    if (!is_main(run)) { return; }
    printf("%s\n", literal);
    fflush(stdout);
}

// === is the tree what the adapter takes it for? =====================================================
void dynapipe_llmc_expect_calls(DynapipeLlmc* run, const char* function, int32_t num,
                                const char* const* names, const int* calls, const int* wanted) {
    for (int32_t i = 0; i < num; i++) {
        if (wanted[i] < 0 || calls[i] == wanted[i]) { continue; }
        dynapipe_llmc_die(
            run,
            "%s made %d calls of %s, a slice needs %d: it would not be trained as the whole model is ---> "
            "call it by llm.c's name after the first include of the adapter, or wrap its name there "
            "(doc/porting.md)",
            function, calls[i], names[i], wanted[i]);
    }
}

void dynapipe_llmc_expect_close(DynapipeLlmc* run, double ours, double theirs, double limit,
                                const char* what) {
    if (isfinite(ours) && isfinite(theirs) && fabs(ours - theirs) <= limit) { return; }
    dynapipe_llmc_die(
        run,
        "%s is %.7g by the tree's own functions and %.7g in a slice: the tree computes something that no "
        "slice would ---> wrap what is new there, as the adapter does (doc/porting.md)",
        what, theirs, ours);
}

DynapipeBatch* dynapipe_llmc_made_up(const int* lengths, int num_seqs, int vocab) {
    int32_t num_tokens = 0;
    for (int i = 0; i < num_seqs; i++) { num_tokens += lengths[i]; }
    size_t num_ints = (size_t)num_seqs + 1 + 5 * (size_t)num_tokens;
    DynapipeBatch* batch = (DynapipeBatch*)calloc(1, sizeof(DynapipeBatch) + num_ints * sizeof(int32_t));
    if (batch == NULL) { dynapipe_llmc_die(NULL, "no memory for a microbatch of %d tokens", num_tokens); }
    int32_t *cu_seqlens = (int32_t*)(batch + 1), *tokens = cu_seqlens + num_seqs + 1,
            *targets = tokens + num_tokens;
    int32_t *positions = targets + num_tokens, *rows = positions + num_tokens, n = 0;
    uint32_t noise = 1;
    for (int i = 0; i < num_seqs; i++) {
        for (int t = 0; t < lengths[i]; t++, n++) {
            noise = noise * 1664525u + 1013904223u;
            tokens[n] = (int32_t)((noise >> 8) % (uint32_t)vocab);
            noise = noise * 1664525u + 1013904223u;
            targets[n] = (int32_t)((noise >> 8) % (uint32_t)vocab);
            positions[n] = t;
            rows[n] = n;
        }
        cu_seqlens[i + 1] = n;
        batch->num_squares += (int64_t)lengths[i] * lengths[i];
        batch->max_seq_tokens = lengths[i] > batch->max_seq_tokens ? lengths[i] : batch->max_seq_tokens;
    }
    batch->num_seqs = num_seqs;
    batch->num_tokens = batch->num_rows = num_tokens;
    batch->cu_seqlens = cu_seqlens;
    batch->tokens = tokens;
    batch->targets = targets;
    batch->positions = positions;
    batch->rows = rows;
    batch->row_tasks = rows + num_tokens;  // zeros
    batch->loss_scale = 1.0f / (float)num_tokens;
    return batch;
}

// === data, model ====================================================================================
void dynapipe_llmc_loader(DynapipeLlmc* run, const char* pattern, int rows, int tokens) {
    if (run->about.train_pattern != NULL) {
        run->about.val_pattern = pattern;
        return;
    }
    run->about.train_pattern = pattern;
    run->about.rows = rows;
    run->about.max_seq_tokens = tokens;
}

static Status check_vocabulary(const DynapipeLlmc* run, uint64_t theirs, const char* path) {
    uint64_t ours = run->info.vocab_hash;
    if (ours == theirs || ours == 0 || theirs == 0) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION,
                "%s: trained on tokens of vocabulary %016llx, the data has those of %016llx ---> data of "
                "this model's "
                "tokenizer",
                path, (unsigned long long)theirs, (unsigned long long)ours);
}

// The program's, with what the options say in its place.
static void take_about(DynapipeLlmc* run, const DynapipeRun_v1* about) {
    const DynapipeLlmcOptions* options = &run->options;
    DynapipeRun_v1* to = &run->about;
    int64_t own_tokens = (int64_t)to->rows * to->max_seq_tokens * dynapipe_num_ranks(run->dp);
    to->batch_tokens = about->batch_tokens > 0     ? about->batch_tokens
                       : options->batch_tokens > 0 ? options->batch_tokens
                                                   : own_tokens;
    to->num_steps = about->num_steps != 0 ? about->num_steps : options->steps > 0 ? options->steps : -1;
    to->overfit = about->overfit;
    to->skip_verify = options->verify == 0;
    to->keeps_layers = 1;  // the adapters move none
    if (about->max_seq_tokens > 0) { to->max_seq_tokens = about->max_seq_tokens; }
    if (options->max_tokens > 0) { to->max_seq_tokens = options->max_tokens; }
    if (options->train_data != NULL || options->val_data != NULL) { to->val_pattern = options->val_data; }
    if (options->train_data != NULL) { to->train_pattern = options->train_data; }
}

static Status check_data(const DynapipeLlmc* run, int32_t model_tokens, int32_t model_vocab) {
    if (run->about.max_seq_tokens > model_tokens) {
        return FAIL(
            STATUS_BAD_OPTION,
            "samples of up to %d tokens (--max-tokens, -t), but the model takes %d ---> give at most that",
            run->about.max_seq_tokens, model_tokens);
    }
    if (run->info.num_ids > model_vocab) {
        return FAIL(
            STATUS_BAD_OPTION,
            "the data has %lld ids, the model %d ---> data of this model's tokenizer, or another model",
            (long long)run->info.num_ids, model_vocab);
    }
    if (run->info.vocab < model_vocab && is_main(run)) {
        fprintf(
            stderr,
            "warning: the data has %d ids, the model %d: were they made for one another? ---> data of this "
            "model's tokenizer (./prepare_data --tokenizer)\n",
            run->info.vocab, model_vocab);
    }
    return run->model_path != NULL ? check_vocabulary(run, run->model_vocab_hash, run->model_path)
                                   : STATUS_OK;
}

void dynapipe_llmc_open_data(DynapipeLlmc* run, const DynapipeRun_v1* about, int32_t model_tokens,
                             int32_t model_vocab) {
    take_about(run, about);
    dynapipe_llmc_check(run, dynapipe_open_data(run->dp, &run->about));
    dynapipe_llmc_check(run, dynapipe_data_info(run->dp, &run->info));
    dynapipe_llmc_check(run, (int)check_data(run, model_tokens, model_vocab));
    run->task_loss = (double*)calloc((size_t)run->info.num_tasks + 1, sizeof(double));
    if (run->task_loss == NULL) { dynapipe_llmc_die(run, "no memory for the tasks' losses"); }
    if (!is_main(run)) { return; }
    printf("data: %lld samples of %d tasks, %lld tokens; %lld longer than %d cut%s, %lld skipped\n",
           (long long)run->info.num_samples, run->info.num_tasks, (long long)run->info.num_tokens,
           (long long)run->info.num_truncated, run->about.max_seq_tokens,
           run->info.num_truncated > 0 ? " (--max-tokens, -t)" : "", (long long)run->info.num_skipped);
}

int32_t dynapipe_llmc_num_steps(const DynapipeLlmc* run) {
    return run->info.num_steps;
}

int32_t dynapipe_llmc_place(DynapipeLlmc* run, const DynapipeBlocks_v1* blocks,
                            DynapipeRange out[DYNAPIPE_MAX_RANGES]) {
    DynapipeCosts* costs;
    int32_t num_ranges;
    if (run->options.check_model) {
        dynapipe_llmc_check(run, dynapipe_check_model(run->dp, blocks, is_main(run) ? stdout : NULL));
        exit(dynapipe_llmc_close(run));
    }
    dynapipe_llmc_check(run, dynapipe_measure(run->dp, blocks, &costs));
    dynapipe_llmc_check(run, dynapipe_choose_stages(run->dp, costs, out, DYNAPIPE_MAX_RANGES, &num_ranges));
    if (is_main(run)) {
        printf("ranks: %d = %d stages x %d replicas, threads per rank %d; %d steps of at most %lld tokens\n",
               dynapipe_num_ranks(run->dp), dynapipe_num_stages(run->dp), dynapipe_num_replicas(run->dp),
               dynapipe_threads(run->dp), run->info.num_steps, (long long)run->about.batch_tokens);
        fflush(stdout);
    }
    return num_ranges;
}

void dynapipe_llmc_begin(DynapipeLlmc* run, const DynapipeLlmcTree* tree, const char* log_dir) {
    run->tree = *tree;
    run->log_dir = log_dir;
}

void dynapipe_llmc_attach(DynapipeLlmc* run, int32_t idx, const DynapipeModel_v1* api, void* model,
                          const DynapipeParams_v1* params) {
    dynapipe_llmc_check(run, dynapipe_attach(run->dp, idx, api, model, idx == 0 ? params : NULL));
}

int dynapipe_llmc_is_whole(DynapipeLlmc* run) {
    if (dynapipe_num_stages(run->dp) == 1) { return 1; }
    dynapipe_llmc_say_once(
        run, "this model is split over several stages, so samples of its text and multiple-choice "
             "questions are skipped ---> run them from a checkpoint with --stages 1");
    return 0;
}

// === training =======================================================================================
// Before the first step: a new run must not replace another's checkpoints.
static void begin_run(DynapipeLlmc* run) {
    if (run->has_begun || run->log_dir == NULL) { return; }
    run->has_begun = true;
    double newest = is_main(run) ? checkpoint_find_latest(run->log_dir) : 0;
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &newest, 1));
    if (newest < 0 || run->options.overwrite) { return; }
    dynapipe_llmc_check(run,
                        (int)FAIL(STATUS_BAD_OPTION,
                                  "%s has an earlier run's checkpoints, up to step %.0f ---> go on from them "
                                  "(--resume 1, -y 1), take another folder, or --overwrite 1",
                                  run->log_dir, newest));
}

static void need_finite(DynapipeLlmc* run, double value) {
    if (isfinite(value)) { return; }
    dynapipe_llmc_die(run, "the loss or its gradient is not a finite number ---> try a smaller learning rate "
                           "(--lr, -l) or a longer warmup (-u)");
}

float dynapipe_llmc_step(DynapipeLlmc* run) {
    DynapipeStep_v1 step;
    begin_run(run);
    dynapipe_llmc_check(run, dynapipe_step(run->dp, &step));
    need_finite(run, step.loss);
    memset(&run->report, 0, sizeof run->report);
    run->report.norm = run->report.loss_z = run->report.norm_z = NAN;
    run->is_open = true;
    return (float)step.loss;
}

int dynapipe_llmc_has_stepped(const DynapipeLlmc* run) {
    return run->is_open;
}

DynapipeReport_v1* dynapipe_llmc_report(DynapipeLlmc* run) {
    return &run->report;
}

static void dump_gradients(DynapipeLlmc* run);

float dynapipe_llmc_norm(DynapipeLlmc* run) {
    enum { MOST_SPANS = 4 * DYNAPIPE_MAX_TENSORS };
    DynapipeSpan spans[MOST_SPANS];
    DynapipeLlmcArrays arrays;
    int32_t num_spans;
    double squares = 0;
    dump_gradients(run);
    run->tree.arrays(&arrays, NULL);
    dynapipe_llmc_check(run, dynapipe_counted(run->dp, spans, MOST_SPANS, &num_spans));
    for (int32_t s = 0; s < num_spans; s++) {
        squares += run->tree.sum_squares((char*)arrays.grads + spans[s].begin * arrays.value_bytes,
                                         spans[s].end - spans[s].begin);
    }
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &squares, 1));
    need_finite(run, squares);
    run->report.norm = sqrt(squares);
    return (float)run->report.norm;
}

void dynapipe_llmc_end_step(DynapipeLlmc* run) {
    if (!run->is_open) { return; }
    run->is_open = false;
    run->report.step = ++run->step;
    run->report.log_dir = run->log_dir;
    dynapipe_llmc_check(run, dynapipe_share_params(run->dp));
    dynapipe_llmc_check(run, dynapipe_report(run->dp, &run->report));
    if (is_main(run)) { standard_output_warn(&run->warned_of_output); }
}

int32_t dynapipe_llmc_num_done(const DynapipeLlmc* run) {
    return run->step;
}

float dynapipe_llmc_validate(DynapipeLlmc* run, int32_t max_samples) {
    begin_run(run);
    if (run->about.val_pattern == NULL) {
        dynapipe_llmc_say_once(run, "no validation data: its loss is nan ---> name some (--val-data, -j)");
        return NAN;
    }
    if (run->validated_step == run->step) { return run->val_loss; }
    double loss;
    dynapipe_llmc_check(run, dynapipe_validate(run->dp, max_samples, &loss, run->task_loss));
    dynapipe_llmc_end_if_told(run);
    DynapipeValidation_v1 validation = {
        .step = run->step, .loss = loss, .task_loss = run->task_loss, .log_dir = run->log_dir};
    dynapipe_llmc_check(run, dynapipe_report_validation(run->dp, &validation));
    run->validated_step = run->step;
    return run->val_loss = (float)loss;
}

// === checkpoint files ===============================================================================
// A checkpoint at hand.
typedef struct {
    char model[CHECKPOINT_PATH_CHARS], state[CHECKPOINT_PATH_CHARS];  // its files
    DynapipeLlmcArrays arrays;
    int64_t num_values;             // of the whole model
    uint64_t model_sum, state_sum;  // of the bodies; each rank has a part of them
} Checkpoint;

static int64_t state_values(const Checkpoint* c) {
    return (c->arrays.master != NULL ? 3 : 2) * c->num_values;
}

static bool can_seal(const Checkpoint* c) {
    return c->arrays.header_bytes == CHECKPOINT_HEADER_BYTES;
}

static void begin_checkpoint(DynapipeLlmc* run, Checkpoint* c, const char* directory, int32_t step) {
    memset(c, 0, sizeof *c);
    checkpoint_path(c->model, directory, CHECKPOINT_MODEL_FILE, step);
    checkpoint_path(c->state, directory, CHECKPOINT_STATE_FILE, step);
    run->tree.arrays(&c->arrays, c->model);
    c->num_values = dynapipe_tensors_total(run->tree.tensors);
}

// An array of the slice's values, and where the whole model's are in a file.
typedef struct {
    char* values;
    int32_t value_bytes;
    int64_t at, body_at;  // bytes; the file's body, which has the sum, begins at body_at
    uint64_t* sum;        // NULL: not needed
} Body;

typedef struct {
    const DynapipeLlmcTree* tree;
    CheckpointFile file;
    bool is_reading;
    char* room;  // [ROOM_BYTES]; NULL: values are in host memory
} Mover;

enum { ROOM_BYTES = 1 << 22 };

static Status move_bytes(Mover* mover, const Body* body, char* host, int64_t num_bytes, int64_t at,
                         bool counts) {
    if (mover->is_reading) {
        TRY(checkpoint_file_read(&mover->file, host, num_bytes, at));
    } else {
        TRY(checkpoint_file_write(&mover->file, host, num_bytes, at));
    }
    checkpoint_sum_add(counts ? body->sum : NULL, (at - body->body_at) / body->value_bytes, host,
                       num_bytes / body->value_bytes, body->value_bytes);
    return STATUS_OK;
}

static Status move_values(Mover* mover, const Body* body, char* values, int64_t num_bytes, int64_t at,
                          bool counts) {
    if (mover->room == NULL) { return move_bytes(mover, body, values, num_bytes, at, counts); }
    for (int64_t done = 0; done < num_bytes; done += ROOM_BYTES) {
        int64_t part = num_bytes - done < ROOM_BYTES ? num_bytes - done : (int64_t)ROOM_BYTES;
        if (!mover->is_reading) { mover->tree->to_host(mover->room, values + done, (size_t)part); }
        TRY(move_bytes(mover, body, mover->room, part, at + done, counts));
        if (mover->is_reading) { mover->tree->from_host(values + done, mover->room, (size_t)part); }
    }
    return STATUS_OK;
}

// Of a tied tensor only the first range's copy is written, and counts.
static Status move_tensors(Mover* mover, const Body* body) {
    const DynapipeLlmcTree* tree = mover->tree;
    for (int32_t i = 0; i < tree->tensors->num_tensors; i++) {
        Piece pieces[DYNAPIPE_MAX_RANGES];
        bool is_copy = is_tied(tree->tensors, i) && !tree->slice->has_first;
        int32_t num =
            is_copy && !mover->is_reading ? 0 : tensor_pieces(tree->tensors, tree->slice, i, pieces);
        for (int32_t p = 0; p < num; p++) {
            TRY(move_values(mover, body, body->values + pieces[p].begin * body->value_bytes,
                            pieces[p].count * body->value_bytes,
                            body->at + pieces[p].whole * body->value_bytes, !is_copy));
        }
    }
    return STATUS_OK;
}

// The slice's part of these arrays to PATH.tmp, which is there and long enough, or from PATH.
static Status move_bodies(const DynapipeLlmcTree* tree, const char* path, const Body* bodies, int num_bodies,
                          bool is_reading) {
    Mover mover;
    memset(&mover, 0, sizeof mover);
    mover.tree = tree;
    mover.is_reading = is_reading;
    if (tree->to_host != NULL) {
        mover.room = (char*)malloc(ROOM_BYTES);
        if (mover.room == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a piece of a checkpoint"); }
    }
    Status status =
        is_reading ? checkpoint_file_open(&mover.file, path) : checkpoint_file_open_tmp(&mover.file, path);
    if (status == STATUS_OK) {
        for (int i = 0; i < num_bodies && status == STATUS_OK; i++) {
            status = move_tensors(&mover, &bodies[i]);
        }
        if (status == STATUS_OK && !is_reading) {
            status = checkpoint_file_sync(&mover.file);
        } else {
            checkpoint_file_close(&mover.file);
        }
    }
    free(mover.room);
    return status;
}

static Body model_body(const Checkpoint* c, void* values, uint64_t* sum) {
    const DynapipeLlmcArrays* a = &c->arrays;
    Body body = {(char*)values, a->value_bytes, a->header_bytes, a->header_bytes, sum};
    return body;
}

// All ranks have the same values of a slice (zero stage 0), so those of one replica write, and count when
// read.
static Status move_slices(const DynapipeLlmc* run, Checkpoint* c, bool is_reading) {
    const DynapipeLlmcArrays* a = &c->arrays;
    const bool counts = dynapipe_replica(run->dp) == 0;
    float* arrays[3] = {a->m, a->v, a->master};
    Body model = model_body(c, a->params, counts ? &c->model_sum : NULL), state[3];
    if (!counts && !is_reading) { return STATUS_OK; }
    for (int i = 0; i < 3; i++) {
        Body body = {(char*)arrays[i], 4, CHECKPOINT_HEADER_BYTES + 4 * i * c->num_values,
                     CHECKPOINT_HEADER_BYTES, counts ? &c->state_sum : NULL};
        state[i] = body;
    }
    TRY(move_bodies(&run->tree, c->model, &model, 1, is_reading));
    return move_bodies(&run->tree, c->state, state, a->master != NULL ? 3 : 2, is_reading);
}

enum { NUM_PIECES = 4 };  // of 64 bits, so that doubles add them exactly

// Sums over all ranks, mod 2^64; did all succeed?
static bool add_sums(DynapipeLlmc* run, bool ok, uint64_t* model, uint64_t* state) {
    uint64_t* sums[2] = {model, state};
    double values[1 + 2 * NUM_PIECES] = {ok ? 0.0 : 1.0};
    for (int i = 0; i < 2 * NUM_PIECES; i++) {
        values[1 + i] = (double)((*sums[i / NUM_PIECES] >> (16 * (i % NUM_PIECES))) & 0xffff);
    }
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, values, 1 + 2 * NUM_PIECES));
    *model = *state = 0;
    for (int i = 0; i < 2 * NUM_PIECES; i++) {
        *sums[i / NUM_PIECES] += (uint64_t)values[1 + i] << (16 * (i % NUM_PIECES));
    }
    return values[0] == 0;
}

// --- writing ---------------------------------------------------------------------------------------------
// Rank 0 makes the files, each rank writes its slice, rank 0 seals and renames them when all succeeded.

// PATH.tmp of num_bytes that begins with a header, the rest zeros; it stays open.
static Status create_file(CheckpointFile* out, const char* path, int64_t num_bytes, const void* header,
                          int64_t header_bytes) {
    TRY(checkpoint_file_create(out, path, num_bytes));
    Status status = checkpoint_file_write(out, header, header_bytes, 0);
    if (status != STATUS_OK) { checkpoint_file_close(out); }
    return status;
}

static Status create_model(const Checkpoint* c, const char* path) {
    const DynapipeLlmcArrays* a = &c->arrays;
    CheckpointFile file;
    TRY(create_file(&file, path, a->header_bytes + c->num_values * a->value_bytes, a->header,
                    a->header_bytes));
    return checkpoint_file_sync(&file);
}

static Status create_state(DynapipeLlmc* run, Checkpoint* c, int32_t step) {
    const DynapipeLlmcArrays* a = &c->arrays;
    CheckpointFile file;
    CheckpointRecord record = {NULL, 0, NULL};
    const void* position;
    TRY((Status)dynapipe_position(run->dp, &position, &record.position_bytes));
    record.position = (uint8_t*)(uintptr_t)position;
    int32_t header[CHECKPOINT_HEADER_INTS] = {CHECKPOINT_STATE_MAGIC, CHECKPOINT_STATE_VERSION, 1, 0};
    header[CHECKPOINT_STATE_MASTER] = a->master != NULL;
    header[CHECKPOINT_STATE_STEP] = step;
    for (int i = 0; i < 2 && a->rng_states[i] != NULL; i++) {
        memcpy(&header[CHECKPOINT_STATE_RNG + 2 * i], a->rng_states[i], 8);
    }
    if (can_seal(c)) { memcpy(&header[CHECKPOINT_STATE_MODEL], a->header, 4 * CHECKPOINT_STATE_MODEL_INTS); }
    int64_t at = CHECKPOINT_HEADER_BYTES + 4 * state_values(c);
    TRY(create_file(&file, c->state, at + checkpoint_record_bytes(&record), header, sizeof header));
    Status status = checkpoint_record_write(&file, &record, at, state_values(c), &c->state_sum);
    if (status == STATUS_OK) { return checkpoint_file_sync(&file); }
    checkpoint_file_close(&file);
    return status;
}

static Status seal(const DynapipeLlmc* run, const Checkpoint* c, const char* path, int32_t step, uint64_t sum,
                   uint64_t model_sum) {
    if (!can_seal(c)) { return STATUS_OK; }
    CheckpointSeal seal = {true, step, sum, run->info.vocab_hash, model_sum, 0};
    return checkpoint_seal_write(path, &seal);
}

// A mark never stands beside a model of one run and a state of another, not even where the machine goes down;
// and marks of a run that was left do not stay after the newest.
static Status commit(const DynapipeLlmc* run, const Checkpoint* c, const char* directory, int32_t step) {
    TRY(seal(run, c, c->model, step, c->model_sum, 0));
    TRY(seal(run, c, c->state, step, c->state_sum, c->model_sum));
    checkpoint_unmark(directory, step);
    TRY(checkpoint_file_rename(c->model));
    TRY(checkpoint_file_rename(c->state));
    checkpoint_remove_later(directory, step);
    return checkpoint_mark_done(directory, step, run->is_timed);
}

// Whether all ranks succeeded; each that failed prints why. The sums are added.
static bool all_wrote(DynapipeLlmc* run, Status status, const char* what, Checkpoint* c) {
    if (status != STATUS_OK) { fprintf(stderr, "warning: %s not saved: %s\n", what, dynapipe_error()); }
    return add_sums(run, status == STATUS_OK, &c->model_sum, &c->state_sum);
}

static Status create_files(DynapipeLlmc* run, Checkpoint* c, const char* directory, int32_t step) {
    TRY(file_make_directory(directory));
    TRY(create_model(c, c->model));
    return create_state(run, c, step);
}

static bool save(DynapipeLlmc* run, Checkpoint* c, const char* directory, int32_t step) {
    const void* position;
    size_t num_bytes;
    dynapipe_llmc_check(run,
                        dynapipe_position(run->dp, &position, &num_bytes));  // this rank's data is verified
    Status status = is_main(run) ? create_files(run, c, directory, step) : STATUS_OK;
    const uint64_t record_sum = c->state_sum;
    if (!all_wrote(run, status, "checkpoint", c)) { return false; }
    c->state_sum = record_sum;
    if (!all_wrote(run, move_slices(run, c, false), "checkpoint", c)) { return false; }
    return all_wrote(run, is_main(run) ? commit(run, c, directory, step) : STATUS_OK, "checkpoint", c);
}

void dynapipe_llmc_save(DynapipeLlmc* run, const char* directory) {
    const int32_t step = run->step;
    if (step == run->tried_step) {
        bool is_there = is_main(run) && checkpoint_has_done(directory, step);
        if (is_there) { (void)checkpoint_mark_done(directory, step, false); }  // now somebody asks for it
        return;
    }
    Checkpoint c;
    run->tried_step = step;
    begin_checkpoint(run, &c, directory, step);
    bool saved = save(run, &c, directory, step);
    run->save_failed = !saved;
    if (saved) {
        run->saved_step = step;
        run->saved_s = dynapipe_seconds(run->dp);
        if (is_main(run)) {
            checkpoint_prune(directory, step, 0, 0);
            printf("saved %s\n", c.model);
        }
        fflush(stdout);
    } else if (is_main(run)) {
        checkpoint_file_remove_tmp(c.model);
        checkpoint_file_remove_tmp(c.state);
    }
}

void dynapipe_llmc_save_if_due(DynapipeLlmc* run) {
    const int32_t step = run->step;
    bool is_end = dynapipe_stop_signal(run->dp) != 0 || (run->has_options && step == run->info.num_steps);
    bool is_due = save_interval_is_due(&run->save_every, step, dynapipe_seconds(run->dp) - run->saved_s);
    if (run->log_dir == NULL || step == run->first_step || step == run->tried_step || !(is_end || is_due)) {
        return;
    }
    run->is_timed = !is_end && run->options.checkpoint_every == NULL;
    dynapipe_llmc_save(run, run->log_dir);
    run->is_timed = false;
}

static void dump_gradients(DynapipeLlmc* run) {
    const char* path = dynapipe_option(run->dp, "--dump-gradients");
    if (path == NULL || run->has_dumped) { return; }
    run->has_dumped = true;
    Checkpoint c;
    memset(&c, 0, sizeof c);
    run->tree.arrays(&c.arrays, path);
    c.num_values = dynapipe_tensors_total(run->tree.tensors);
    Body body = model_body(&c, c.arrays.grads, &c.model_sum);
    bool saved = all_wrote(run, is_main(run) ? create_model(&c, path) : STATUS_OK, "gradients", &c);
    Status status = STATUS_OK;
    if (saved && dynapipe_replica(run->dp) == 0) { status = move_bodies(&run->tree, path, &body, 1, false); }
    saved = saved && all_wrote(run, status, "gradients", &c);
    if (saved && is_main(run)) {
        status = seal(run, &c, path, 0, c.model_sum, 0);
        if (status == STATUS_OK) { status = checkpoint_file_rename(path); }
    }
    if (saved && all_wrote(run, status, "gradients", &c)) { return; }
    if (is_main(run)) { checkpoint_file_remove_tmp(path); }
    dynapipe_llmc_die(run, "--debug dump-gradients: cannot be written ---> name a file where you may write");
}

// --- a model file to begin with --------------------------------------------------------------------------

// Do all ranks have the same two numbers?
static bool all_have(DynapipeLlmc* run, uint64_t model, uint64_t state) {
    uint64_t first = is_main(run) ? model : 0, second = is_main(run) ? state : 0, none[2] = {0, 0};
    add_sums(run, true, &first, &second);
    return add_sums(run, first == model && second == state, &none[0], &none[1]);
}

// Of a file that all ranks have alike; each sums its share of the body.
static Status check_sealed(DynapipeLlmc* run, CheckpointSeal* seal, const FileMap* map, const char* path) {
    enum { VERSION_BF16 = 5 };
    int32_t header[CHECKPOINT_HEADER_INTS];
    uint64_t sum = 0, none = 0;
    if (map->num_bytes < CHECKPOINT_HEADER_BYTES) { return STATUS_OK; }
    memcpy(header, map->data, sizeof header);
    TRY(checkpoint_seal_get(seal, header, path));
    if (!seal->is_sealed) { return STATUS_OK; }
    const int32_t value_bytes = header[1] == VERSION_BF16 ? 2 : 4;
    int64_t num_values = ((int64_t)map->num_bytes - CHECKPOINT_HEADER_BYTES) / value_bytes;
    int32_t num_ranks = dynapipe_num_ranks(run->dp), rank = dynapipe_rank(run->dp);
    int64_t begin = num_values * rank / num_ranks, end = num_values * (rank + 1) / num_ranks;
    checkpoint_sum_add(&sum, begin, map->data + CHECKPOINT_HEADER_BYTES + begin * value_bytes, end - begin,
                       value_bytes);
    add_sums(run, true, &sum, &none);
    return checkpoint_seal_check(seal, path, sum);
}

void dynapipe_llmc_check_model_file(DynapipeLlmc* run, const char* path) {
    FileMap map = {0};
    CheckpointSeal seal = {false, 0, 0, 0, 0, 0};
    double num_opened = file_map_open(&map, path) == STATUS_OK;
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &num_opened, 1));
    if (num_opened == 0) { return; }  // the program has its own message for that
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

// --- resuming --------------------------------------------------------------------------------------------

// The first header_bytes of a file of num_bytes, or of more.
static Status read_header(const char* path, void* header, int64_t header_bytes, int64_t num_bytes,
                          bool may_be_more) {
    CheckpointFile file;
    TRY(checkpoint_file_open(&file, path));
    const int64_t found = file.num_bytes;
    bool fits = found == num_bytes || (may_be_more && found > num_bytes);
    Status status = fits ? checkpoint_file_read(&file, header, header_bytes, 0) : STATUS_OK;
    checkpoint_file_close(&file);
    if (fits) { return status; }
    return FAIL(STATUS_BAD_FORMAT, "%s: %lld bytes, but this model's has %lld ---> use another checkpoint",
                path, (long long)found, (long long)num_bytes);
}

// The seal is each checkpoint's own. header: header_bytes.
static Status check_model_file(const Checkpoint* c, void* header) {
    const DynapipeLlmcArrays* a = &c->arrays;
    TRY(read_header(c->model, header, a->header_bytes, a->header_bytes + c->num_values * a->value_bytes,
                    false));
    size_t num_bytes = can_seal(c) ? 4 * CHECKPOINT_SEAL_BEGIN : (size_t)a->header_bytes;
    if (memcmp(header, a->header, num_bytes) == 0) { return STATUS_OK; }
    return FAIL(
        STATUS_BAD_FORMAT,
        "%s: another model's (its header differs from this run's) ---> the model that the run began with, or "
        "another output folder",
        c->model);
}

static Status check_state_file(const Checkpoint* c, int32_t* header) {
    TRY(read_header(c->state, header, CHECKPOINT_HEADER_BYTES, CHECKPOINT_HEADER_BYTES + 4 * state_values(c),
                    true));
    const int has_master = c->arrays.master != NULL;
    if (header[0] == CHECKPOINT_STATE_MAGIC && header[1] == CHECKPOINT_STATE_VERSION &&
        header[CHECKPOINT_STATE_PROCESSES] == 1 && header[CHECKPOINT_STATE_RANK] == 0 &&
        header[CHECKPOINT_STATE_MASTER] == has_master) {
        return STATUS_OK;
    }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: magic %d, version %d, of %d processes, master weights %d; expected %d, %d, 1, %d ---> a "
                "state that "
                "the plugin wrote with the same settings",
                c->state, header[0], header[1], header[CHECKPOINT_STATE_PROCESSES],
                header[CHECKPOINT_STATE_MASTER], CHECKPOINT_STATE_MAGIC, CHECKPOINT_STATE_VERSION,
                has_master);
}

// From the record after the optimizer's values.
static Status restore_position(DynapipeLlmc* run, const Checkpoint* c, int32_t step, uint64_t* sum) {
    CheckpointFile file;
    CheckpointRecord record = {NULL, 0, NULL};
    int64_t num_values = state_values(c);
    TRY(checkpoint_file_open(&file, c->state));
    Status status =
        checkpoint_record_read(&record, &file, CHECKPOINT_HEADER_BYTES + 4 * num_values, num_values, sum);
    checkpoint_file_close(&file);
    if (status == STATUS_OK && record.position == NULL) {
        status = FAIL(
            STATUS_BAD_FORMAT,
            "%s: no position in the data: llm.c's own, or cut off ---> begin with its model file, without "
            "resuming",
            c->state);
    }
    if (status == STATUS_OK) {
        status = (Status)dynapipe_restore(run->dp, record.position, record.position_bytes, step);
    }
    free(record.position);
    free(record.settings);
    return status;
}

// The seals of both files, zeros where they have none or are not compared; the same ones on all ranks?
static Status read_seals(DynapipeLlmc* run, const Checkpoint* c, const int32_t* model_header,
                         const int32_t* state_header, int32_t step, CheckpointSeal* model,
                         CheckpointSeal* state) {
    if (can_seal(c) && !run->options.verify) {
        if (is_main(run)) { printf("--verify 0: %s is not compared with its seal\n", c->model); }
    } else if (can_seal(c)) {
        TRY(checkpoint_seal_check_pair(model_header, c->model, state_header, c->state, step));
        TRY(checkpoint_seal_get(model, model_header, c->model));
        TRY(checkpoint_seal_get(state, state_header, c->state));
        TRY(check_vocabulary(run, model->vocab_hash, c->model));
    }
    if (all_have(run, model->header_sum, state->header_sum)) { return STATUS_OK; }
    return FAIL(STATUS_MISMATCH,
                "%s: not all ranks have the same file there, or the same state beside it ---> a folder that "
                "all machines "
                "share",
                c->model);
}

static Status resume(DynapipeLlmc* run, Checkpoint* c, int32_t step, int32_t* model_header) {
    int32_t header[CHECKPOINT_HEADER_INTS];
    CheckpointSeal model = {false, 0, 0, 0, 0, 0}, state = {false, 0, 0, 0, 0, 0};
    uint64_t record_sum = 0;
    TRY(check_model_file(c, model_header));
    TRY(check_state_file(c, header));
    TRY(read_seals(run, c, model_header, header, step, &model, &state));
    TRY(move_slices(run, c, true));
    TRY(restore_position(run, c, header[CHECKPOINT_STATE_STEP], &record_sum));
    if (is_main(run)) { c->state_sum += record_sum; }
    add_sums(run, true, &c->model_sum, &c->state_sum);
    TRY(checkpoint_seal_check(&model, c->model, c->model_sum));
    TRY(checkpoint_seal_check(&state, c->state, c->state_sum));
    for (int i = 0; i < 2 && c->arrays.rng_states[i] != NULL; i++) {
        memcpy(c->arrays.rng_states[i], &header[CHECKPOINT_STATE_RNG + 2 * i], 8);
    }
    if (is_main(run)) { printf("resumed from %s, step %d\n", c->state, header[CHECKPOINT_STATE_STEP]); }
    return STATUS_OK;
}

// A damaged checkpoint: which one is intact.
static void die_of_checkpoint(DynapipeLlmc* run, const char* directory, int32_t step) {
    const char *error = dynapipe_error(), *remedy = strstr(error, " ---> ");
    int what_chars = remedy != NULL ? (int)(remedy - error) : (int)strlen(error);
    int32_t older = checkpoint_find_before(directory, step);
    if (older > 1 && run->options.resume) {
        dynapipe_llmc_die(run, "%.*s ---> --resume %d goes on from step %d, the newest before it", what_chars,
                          error, older, older);
    }
    if (older >= 0) {
        dynapipe_llmc_die(run, "%.*s ---> remove DONE_%08d there, and the run goes on from step %d",
                          what_chars, error, step, older);
    }
    dynapipe_llmc_die(run,
                      "%.*s ---> there is no finished checkpoint before it: begin anew in another folder",
                      what_chars, error);
}

int dynapipe_llmc_resume(DynapipeLlmc* run, const char* directory) {
    const int32_t asked = run->options.resume;  // 0: by a flag of the program's
    double found = 0;
    if (is_main(run)) {
        found = asked <= 1                              ? checkpoint_find_latest(directory)
                : checkpoint_has_done(directory, asked) ? asked
                                                        : -1;
    }
    dynapipe_llmc_check(run, dynapipe_sum(run->dp, &found, 1));
    const int32_t step = (int32_t)found;
    run->has_begun = true;
    if (step < 0 && asked > 1) {
        dynapipe_llmc_check(
            run, (int)FAIL(STATUS_BAD_OPTION,
                           "--resume %d: no finished checkpoint of that step in %s ---> the newest there "
                           "is of step %d (--resume 1; -1: none)",
                           asked, directory, checkpoint_find_latest(directory)));
    }
    if (step < 0) {
        if (is_main(run)) {
            printf("%s: no finished checkpoint to go on from: a new run begins\n", directory);
        }
        fflush(stdout);
        return 0;
    }
    Checkpoint c;
    begin_checkpoint(run, &c, directory, step);
    int32_t* model_header = (int32_t*)calloc(1, (size_t)c.arrays.header_bytes + CHECKPOINT_HEADER_BYTES);
    if (model_header == NULL) { dynapipe_llmc_die(run, "no memory for a header"); }
    Status status = resume(run, &c, step, model_header);
    free(model_header);
    if (status == STATUS_BAD_FORMAT || status == STATUS_IO) { die_of_checkpoint(run, directory, step); }
    dynapipe_llmc_check(run, (int)status);
    run->step = run->first_step = run->tried_step = run->saved_step = step;
    return 1;
}

// --- told to end -----------------------------------------------------------------------------------------

static void print_stopped(const DynapipeLlmc* run) {
    const char *name = stop_signal_name(dynapipe_stop_signal(run->dp)), *directory = run->log_dir;
    if (run->step <= run->first_step) {
        printf("stopped by %s before the first step of this run: nothing to save\n", name);
        return;
    }
    printf("stopped by %s after step %d of %d, ", name, run->step, run->info.num_steps);
    if (directory == NULL) {
        printf("nothing is saved ---> an output folder (--output-dir, -o) saves\n");
    } else if (run->saved_step != run->step) {
        printf("which is not saved ---> resuming goes on from the newest checkpoint in %s\n", directory);
    } else {
        printf("saved in %s ---> resuming (--resume 1, -y 1) goes on from there\n", directory);
    }
}

void dynapipe_llmc_end_if_told(DynapipeLlmc* run) {
    const int signal = dynapipe_stop_signal(run->dp);
    if (signal == 0) { return; }
    dynapipe_llmc_end_step(run);
    dynapipe_llmc_save_if_due(run);
    const int status = stop_signal_exit_status(signal);
    bool is_lost = run->save_failed && run->log_dir != NULL;
    if (is_main(run) && run->step < run->info.num_steps) { print_stopped(run); }
    fflush(stdout);
    const int lost_status = dynapipe_llmc_close(run);
    exit(is_lost ? EXIT_FAILURE : status != 0 ? status : lost_status);
}
