// llmc_run.c -- session, options, data and steps of a run inside a trainer of llm.c's family. Its
// checkpoints: llmc_checkpoint.c, llmc_resume.c.
#include "llmc_run.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/files.h"
#include "../../util/options.h"
#include "../../util/program.h"
#include "llmc_session.h"

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
static void check_model(DynapipeLlmc* run, const DynapipeBlocks_v1* blocks) {
    dynapipe_llmc_check(run,
                        dynapipe_check_model(run->dp, blocks, dynapipe_llmc_is_main(run) ? stdout : NULL));
    exit(dynapipe_llmc_close(run));
}

DynapipeRange dynapipe_llmc_place(DynapipeLlmc* run, const DynapipeBlocks_v1* blocks) {
    DynapipeCosts* costs;
    DynapipeRange mine;
    int32_t num_ranges;
    if (run->options.check_model) { check_model(run, blocks); }
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
