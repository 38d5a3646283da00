#include "session_options.h"

#include <string.h>
#include "../../util/options.h"
#include "../plan/problem/placement_words.h"

#define FIELD(f) offsetof(SessionOptions, f)
// Choices stand in the order of the enums in plan_request.h and loader.h.
// clang-format off
static const OptionSpec specs[] = {
    {"--stages",         OPTION_INT,    FIELD(stages),     "1",  1, PLAN_MAX_STAGES, NULL, "P", "pipeline stages"},
    {"--replicas",       OPTION_INT,    FIELD(replicas),   "0",  0, 512,  NULL, "R", "data-parallel replicas of the pipeline; 0: ranks / stages"},
    {"--stage-split",    OPTION_STRING, FIELD(stage_split), NULL, 0, 0,   NULL, "L,L,..", "layers of each stage; default: the fastest for the mixture"},
    {"--placement",      OPTION_STRING, FIELD(placement),  "auto", 0, 0, NULL, "WHERE",
     "which pieces of the model lie on which stage. linear: one each, in order; interleaved: every stage has several, in turn; "
     "vee: down the stages and up again; stacks: an encoder over all stages, then the decoder; auto: the fastest for the mixture; or stage:layers of every piece along "
     "the model, such as 0:3,1:3,1:3,0:3"},
    {"--head",           OPTION_STRING, FIELD(head),       "auto", 0, 0, NULL, "SPLIT",
     "who computes logits and losses. whole: the last piece; rows: every stage for some of the supervised tokens; vocabulary: "
     "every stage for some of the vocabulary; auto: the fastest for the mixture (with --stage-split whole); or vocabulary:256,256,512,0 "
     "(rows:..), a share of 1024 for each stage"},
    {"--batching",       OPTION_CHOICE, FIELD(batching),   "dynamic", 0, 0, "dynamic|dynapipe|packed|packed-ragged|padded|tokens|kk", NULL,
     "how samples form micro-batches. dynamic: the planner's choice, every step anew; dynapipe: as in the "
     "EuroSys'24 paper; packed: windows of -t tokens that attend across their samples, the classic baseline "
     "(so its gradients differ); packed-ragged: packs without that; padded: -b samples, padded to their "
     "longest; tokens: sorted by length, up to --mb-tokens each; kk: equal work in each, smallest ones at both "
     "ends"},
    {"--layout",         OPTION_CHOICE, FIELD(layout),     "ragged", 0, 0, "ragged|padded", NULL, "tokens of a micro-batch, for dynamic, dynapipe, tokens"},
    {"--schedule",       OPTION_CHOICE, FIELD(schedule),   "auto", 0, 0, "auto|gpipe|1f1b|adaptive", NULL, "pipeline order"},
    {"--split-backward", OPTION_CHOICE, FIELD(split_backward), "auto", 0, 0, "auto|on|off", NULL, "weight gradients as jobs of their own"},
    {"--recompute",      OPTION_CHOICE, FIELD(recompute),  "auto", 0, 0, "none|full|auto", NULL, "run forward again instead of keeping activations"},
    {"--memory-limit",   OPTION_INT64,  FIELD(memory_limit_bytes), "0", 0, 1e18, NULL, "BYTES", "per rank, model state included (K, M, G); 0: none; on a GPU what is free on the card"},
    {"--costs",          OPTION_STRING, FIELD(costs),      NULL, 0, 0, NULL, "FILE", "what the model costs, as ./profile_costs measured it; default: as measured here before, else measured now"},
    {"--measure",        OPTION_CHOICE, FIELD(measure),    "auto", 0, 0, "auto|again", NULL, "again: measure what the model costs, also where that was done before"},
    {"--measure-seconds", OPTION_DOUBLE, FIELD(measure_seconds), "4", 0, 1e6, NULL, "S", "for that, about; a small model takes less"},
    {"--effort",         OPTION_INT,    FIELD(effort),     "0",  0, 1e9,  NULL, "N", "simulations the planner may spend on a step; 0: as many as pay"},
    {"--plan-ahead",     OPTION_INT,    FIELD(plan_ahead), "2",  1, 64,   NULL, "K", "steps planned ahead in the background"},
    {"--plan-before",    OPTION_BOOL,   FIELD(plan_before), NULL, 0, 0,   NULL, NULL, "plan every step before the first one (to measure what planning costs)"},
    {"--mb-tokens",      OPTION_INT,    FIELD(mb_tokens),  "0",  0, 1e9,  NULL, "N", "tokens of a micro-batch for packed, packed-ragged, padded, tokens; 0: -t"},
    {"--refit",          OPTION_CHOICE, FIELD(refit),      "auto", 0, 0, "auto|off", NULL,
     "correct what jobs and links are said to take by what steps measured, so plans may differ from run to run; "
     "off: plans from the cost file alone, the same in every run"},
    {"--resplit",        OPTION_STRING, FIELD(resplit),    "auto", 0, 0, NULL, "auto|off|S:L,L,..",
     "layers move between ranks while the run goes on. auto: where ranks turn out to take other times than thought, and that "
     "wins more than 5 % of a step (not where layers or shares are told); S:L,L,..: behind step S, to these layers of each piece that there is then, or "
     "S:STAGE:L,STAGE:L,..[+HEAD] to any placement (more behind /)"},
    {"--long-samples",   OPTION_CHOICE, FIELD(long_samples), "cut-input-end", 0, 0, "cut-input-end|cut-input-start|cut-input-middle|skip", NULL, "samples longer than -t: what goes; the tail of the input (newline, </s>, a template's) stays, and targets are kept whole: where one alone is too long, the sample is skipped"},
    {"--loss-on",        OPTION_CHOICE, FIELD(loss_on),    "targets", 0, 0, "targets|all", NULL, "supervised tokens"},
    {"--span-corruption", OPTION_CHOICE, FIELD(span_corruption), "off", 0, 0, "off|on", NULL,
     "for encoder-decoder models: inputs and targets are made of plain text, as T5's were"},
    {"--noise-density",  OPTION_DOUBLE, FIELD(noise_density), "0.15", 0.001, 0.999, NULL, "X", "for --span-corruption: share of the text that becomes targets"},
    {"--mean-noise-span", OPTION_DOUBLE, FIELD(mean_noise_span), "0", 0, 1e6, NULL, "N", "tokens of a span, on average; 0: 3, of bytes 20"},
    {"--sentinel-first", OPTION_INT,    FIELD(sentinel_first), "0", 0, 2e9, NULL, "ID", "token that stands for the first span; 0: as the tokenizer has it"},
    {"--sentinel-step",  OPTION_INT,    FIELD(sentinel_step), "0", -1, 1, NULL, "1|-1", "the next spans' tokens count up or down; 0: as the tokenizer has it"},
    {"--mixture",        OPTION_CHOICE, FIELD(mixture),    "proportional", 0, 0, "proportional|temperature|weights", NULL, "weights of the tasks"},
    {"--mixture-cap",    OPTION_INT64,  FIELD(mixture_cap), "0", 0, 1e18, NULL, "N", "examples of a task that count at most; 0: all"},
    {"--temperature",    OPTION_DOUBLE, FIELD(temperature), "2", 0.01, 100, NULL, "X", "for --mixture temperature: weight ^ (1 / X)"},
    {"--weights",        OPTION_STRING, FIELD(weights),    NULL, 0, 0, NULL, "T=W,..", "for --mixture weights; a task that is not named gets 0. Names of the data may have = and , in them: the longest that fits is meant"},
    {"--seed",           OPTION_INT64,  FIELD(seed),       "42", 0, 9e18, NULL, "N", "of the data order and of new parameters"},
    {"--threads",        OPTION_INT,    FIELD(threads),    "0",  0, 1024, NULL, "N", "cores of a rank; 0: OMP_NUM_THREADS, else all cores / ranks"},
    {"--transport",      OPTION_CHOICE, FIELD(transport),  "auto", 0, 0, "auto|nccl|mpi", NULL, "between GPUs. mpi: through the host's memory, so that ranks can share a GPU; auto: nccl"},
    {"--progress",       OPTION_CHOICE, FIELD(progress),   "auto", 0, 0, "auto|on|off", NULL, "between CPUs: a thread moves messages while its rank computes; auto: where it takes next to nothing from that, measured, so that plans may differ between runs; on, off: they do not"},
    {"--comm-timeout",   OPTION_INT,    FIELD(comm_timeout_s), "300", 1, 1e6, NULL, "S", "seconds without a message before a rank gives up"},
    {"--check",          OPTION_BOOL,   FIELD(check),      NULL, 0, 0, NULL, NULL, "verify every message (slower)"},
    {"--quiet",          OPTION_BOOL,   FIELD(quiet),      NULL, 0, 0, NULL, NULL, "no line for each step"},
    {"--verbose",        OPTION_BOOL,   FIELD(verbose),    NULL, 0, 0, NULL, NULL, "below each step's line how it went against the plan: time, idle time, padding"},
    {"--print-plan",     OPTION_BOOL,   FIELD(print_plan), NULL, 0, 0, NULL, NULL, "print the plan of --show-step: table and timeline"},
    {"--dump-plan",      OPTION_STRING, FIELD(dump_plan),  NULL, 0, 0, NULL, "FILE", "write the plan of --show-step as text"},
    {"--trace",          OPTION_STRING, FIELD(trace),      NULL, 0, 0, NULL, "FILE", "write predicted and measured timeline of --show-step (Chrome, Perfetto)"},
    {"--show-step",      OPTION_INT,    FIELD(show_step),  "2",  1, 2e9,  NULL, "N", "the step that --print-plan, --dump-plan and --trace show"},
    {"--dump-gradients", OPTION_STRING, FIELD(dump_gradients), NULL, 0, 0, NULL, "FILE", "write the first step's gradients as a version 3 checkpoint"},
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

Status session_options_take(SessionOptions* out, int* argc, char** argv, const char* const* own) {
    *out = (SessionOptions){0};
    TRY(options_defaults(specs, NUM_SPECS, out));
    TRY(options_take(specs, NUM_SPECS, out, argc, argv, own));
    if (out->mixture == 2 && out->weights == NULL) {
        return FAIL(STATUS_BAD_OPTION, "--mixture weights: no weights ---> add --weights task=2,other=0.5");
    }
    if (out->mixture != 2 && out->weights != NULL) {
        return FAIL(STATUS_BAD_OPTION,
                    "--weights: only weighs the tasks with --mixture weights ---> add that");
    }
    return placement_words_check(out->stages, out->placement, out->head);
}

void session_options_print(FILE* out) {
    fprintf(out, "the plugin's options [default]:\n");
    options_print(specs, NUM_SPECS, out);
}

static const OptionSpec* find(const char* name) {
    for (int i = 0; i < NUM_SPECS; i++) {
        if (strcmp(specs[i].name, name) == 0) { return &specs[i]; }
    }
    return NULL;
}

const char* session_options_string(const SessionOptions* options, const char* name) {
    const OptionSpec* spec = find(name);
    if (spec == NULL || spec->type != OPTION_STRING) { return NULL; }
    return *(const char* const*)((const char*)options + spec->offset);
}

// --seed has a message of its own: the one saved is used (session_plan.c).
static const char* const settings[] = {
    "--batching",        "--layout",        "--mb-tokens",       "--long-samples",   "--loss-on",
    "--span-corruption", "--noise-density", "--mean-noise-span", "--sentinel-first", "--sentinel-step",
    "--mixture",         "--mixture-cap",   "--temperature",     "--weights"};

void session_options_all(const SessionOptions* options, FILE* out) {
    for (int i = 0; i < NUM_SPECS; i++) {
        options_add_setting(specs, NUM_SPECS, options, specs[i].name, out);
    }
}

void session_options_settings(const SessionOptions* options, FILE* out) {
    for (size_t i = 0; i < sizeof settings / sizeof *settings; i++) {
        options_add_setting(specs, NUM_SPECS, options, settings[i], out);
    }
}
