// command_replay.c -- ./dynapipe replay: how plans bear up when their times are off; a measured step again.
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../dynapipe_plugin/plan/replay/replay.h"
#include "plan_file.h"
#include "tool.h"
#include "trace_replay.h"

typedef struct {
    double noise;
    int32_t trials;
    int64_t seed;
    const char *slow_stage, *trace, *what_if;
} ReplayOptions;

#define FIELD(f) offsetof(ReplayOptions, f)
// clang-format off
static const OptionSpec specs[] = {
    {"--noise",      OPTION_DOUBLE, FIELD(noise),      "0.1", 0, 1,    NULL, "X", "standard deviation of every duration, as a part of it"},
    {"--trials",     OPTION_INT,    FIELD(trials),     "100", 1, 1e6,  NULL, "N", "times that the step is run through"},
    {"--seed",       OPTION_INT64,  FIELD(seed),       "1",   0, 9e18, NULL, "N", "of the noise; the same for all plans"},
    {"--slow-stage", OPTION_STRING, FIELD(slow_stage), NULL,  0, 0,    NULL, "S:X", "jobs of stage S take X times as long as planned, e.g. 0:1.2"},
    {"--trace",      OPTION_STRING, FIELD(trace),      NULL,  0, 0,    NULL, "FILE", "no plans: the step of the trainer's --trace, its critical path"},
    {"--what-if",    OPTION_STRING, FIELD(what_if),    NULL,  0, 0,    NULL, "LIST", "of it: link=2x,rank=1:1.5x,jitter=0,jobs=planned,late=0,order=PLAN"},
};
// clang-format on

static const ToolUsage usage = {
    .arguments = "PLAN... | --trace FILE",
    .about =
        "Keeps a plan's orders and draws every job's and transfer's duration anew. Several plans meet the\n"
        "same noise. PLAN is what plan --text or --dump-plan of the trainer wrote.\n"
        "--trace: the measured step from its jobs, messages and waits, where its time went, and what\n"
        "it would have taken with faster links, no jitter, no late messages, another order, a faster\n"
        "rank; + joins changes.\n",
    .specs = specs,
    .num_specs = sizeof specs / sizeof specs[0],
    .min_files = 0,
    .max_files = 1000,
};

static Status parse_slow_stage(ReplayNoise* noise, const char* text) {
    if (text == NULL) { return STATUS_OK; }
    char* end;
    long stage = strtol(text, &end, 10);
    double factor = end > text && *end == ':' ? strtod(end + 1, &end) : 0;
    bool whole = *end == '\0' && stage >= 0 && stage < PLAN_MAX_STAGES;
    if (!whole || !(factor >= 0.01 && factor <= 100)) {
        return FAIL(STATUS_BAD_OPTION, "--slow-stage %s ---> STAGE:FACTOR, e.g. 2:1.2; factors 0.01 to 100",
                    text);
    }
    noise->slow_stage = (int32_t)stage;
    noise->slow_permille = (int32_t)lround(factor * 1000);
    return STATUS_OK;
}

static double percent(int64_t ns, int64_t of_ns) {
    return of_ns > 0 ? 100.0 * (double)(ns - of_ns) / (double)of_ns : 0;
}

static void print_row(const char* path, int name_chars, const Plan* plan, const ReplayResult* result) {
    int32_t most = 0;
    int64_t most_ns = INT64_MIN;
    for (int32_t s = 0; s < plan->P; s++) {
        int64_t grown_ns = result->mean_wait_ns[s] - result->planned_wait_ns[s];
        if (grown_ns > most_ns) {
            most = s;
            most_ns = grown_ns;
        }
    }
    printf("%-*s %9.3f %9.3f %9.3f %9.3f %9.3f %+7.1f%%  stage %d, %+.3f\n", name_chars, path,
           (double)result->planned_ns / 1e6, (double)result->p50_ns / 1e6, (double)result->mean_ns / 1e6,
           (double)result->p90_ns / 1e6, (double)result->worst_ns / 1e6,
           percent(result->p90_ns, result->planned_ns), most, (double)most_ns / 1e6);
}

static Status replay_file(const char* path, int name_chars, const ReplayNoise* noise, int64_t* p90_ns,
                          Arena* arena) {
    Plan plan;
    ReplayResult result;
    TRY(plan_file_load(&plan, path, arena));
    Status status = plan_replay(&result, &plan, noise, arena);
    if (status != STATUS_OK) {
        char why[400];
        snprintf(why, sizeof why, "%s", status_message());
        // (a stage that the plan has not is a wrong --slow-stage)
        return FAIL(status == STATUS_OUT_OF_RANGE ? STATUS_BAD_OPTION : status, "%.80s: %s", path, why);
    }
    print_row(path, name_chars, &plan, &result);
    *p90_ns = result.p90_ns;
    return STATUS_OK;
}

static Status run(const ReplayOptions* options, int num_files, char** files, Arena* arena) {
    ReplayNoise noise = {.noise_permille = (int32_t)lround(options->noise * 1000),
                         .trials = options->trials,
                         .seed = (uint64_t)options->seed};
    TRY(parse_slow_stage(&noise, options->slow_stage));
    int name_chars = 4, best = 0;
    int64_t best_ns = INT64_MAX;
    for (int i = 0; i < num_files; i++) {
        int chars = (int)strlen(files[i]);
        name_chars = chars > name_chars ? chars : name_chars;
    }
    printf("noise %.1f%%, %d trials, seed %" PRId64 "%s%s; times in ms\n", noise.noise_permille / 10.0,
           noise.trials, options->seed, options->slow_stage != NULL ? ", slow stage " : "",
           options->slow_stage != NULL ? options->slow_stage : "");
    printf("%-*s %9s %9s %9s %9s %9s %8s  waiting grows most\n", name_chars, "plan", "planned", "P50", "mean",
           "P90", "worst", "P90 off");
    for (int i = 0; i < num_files; i++) {
        int64_t p90_ns;
        arena_reset(arena);
        TRY(replay_file(files[i], name_chars, &noise, &p90_ns, arena));
        if (p90_ns < best_ns) {
            best = i;
            best_ns = p90_ns;
        }
    }
    if (num_files > 1) { printf("best P90: %s\n", files[best]); }
    return STATUS_OK;
}

static Status check_sources(const ReplayOptions* options, int num_files) {
    if ((options->trace != NULL) != (num_files > 0) && (options->trace != NULL || options->what_if == NULL)) {
        return STATUS_OK;
    }
    return FAIL(STATUS_BAD_OPTION,
                "replay: %s ---> usage: ./dynapipe replay PLAN..., or --trace FILE [--what-if LIST]",
                options->trace != NULL ? "plans and a trace"
                : num_files > 0        ? "--what-if is for a trace"
                                       : "no plan");
}

static Status run_trace(const ReplayOptions* options, Arena* arena) {
    TraceReplay* replay = arena_alloc(arena, sizeof *replay);
    if (replay == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a trace"); }
    TRY(trace_replay_make(replay, options->trace, options->what_if, arena));
    trace_replay_print(replay, stdout);
    return STATUS_OK;
}

int command_replay(int argc, char** argv) {
    ReplayOptions options = {0};
    bool help;
    Status status = tool_take(&usage, &options, &argc, argv, &help);
    if (status != STATUS_OK || help) { return status == STATUS_OK ? TOOL_OK : tool_fail(status); }
    Arena arena = {0};
    status = check_sources(&options, argc - 1);
    if (status == STATUS_OK) {
        status =
            options.trace != NULL ? run_trace(&options, &arena) : run(&options, argc - 1, argv + 1, &arena);
    }
    arena_free(&arena);
    return status == STATUS_OK ? TOOL_OK : tool_fail(status);
}
