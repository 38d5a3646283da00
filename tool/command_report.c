// command_report.c -- ./dynapipe report: what a training run logged, as one page.
#include <math.h>
#include <string.h>

#include "report_html.h"
#include "tool.h"

typedef struct {
    const char *out, *trace, *what_if;
} ReportOptions;

// clang-format off
static const OptionSpec specs[] = {
    {"--out", OPTION_STRING, offsetof(ReportOptions, out), "report.html", 0, 0, NULL, "FILE", "the page (-: standard output); also -o FILE"},
    {"--trace",   OPTION_STRING, offsetof(ReportOptions, trace),   NULL, 0, 0, NULL, "FILE", "a step of the run, from its --trace: timeline, critical path, what if"},
    {"--what-if", OPTION_STRING, offsetof(ReportOptions, what_if), NULL, 0, 0, NULL, "LIST", "of that step, as ./dynapipe replay"},
};
// clang-format on

static const ToolUsage usage = {
    .arguments = "RUN...",
    .about = "Draws what the trainer logged in its -o directory (or metrics.jsonl in there): loss, loss\n"
             "per task, throughput, padding, idle time, predicted against measured step time, MFU, memory\n"
             "and planning, over the steps. Several runs stand side by side. Validation losses come from\n"
             "main.log beside it where no record has them. The page needs no network.\n",
    .specs = specs,
    .num_specs = sizeof specs / sizeof specs[0],
    .min_files = 1,
    .max_files = REPORT_MAX_RUNS,
};

static Status load_trace(TraceReplay** out, const ReportOptions* options, Arena* arena) {
    *out = NULL;
    if (options->trace == NULL) { return STATUS_OK; }
    TraceReplay* replay = arena_alloc(arena, sizeof *replay);
    if (replay == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for it", options->trace); }
    TRY(trace_replay_make(replay, options->trace, options->what_if, arena));
    *out = replay;
    return STATUS_OK;
}

// A trace of another run would be drawn as one of this run's steps. Both have a step's prediction, to a ns.
static Status check_same_run(const TraceFile* file, const Metrics* metrics, const char* trace_path,
                             const char* metrics_path) {
    static const char remedy[] = "give the trace and the metrics.jsonl of one run";
    int32_t num_ranks = file->P * file->R, at = 0;
    while (at < metrics->num_steps && metrics->steps[at] != (double)file->step) { at++; }
    if (metrics->num_ranks > 0 && metrics->num_ranks != num_ranks) {
        return FAIL(STATUS_MISMATCH, "%s has %d stages x %d replicas, %s has %d ranks ---> %s", trace_path,
                    file->P, file->R, metrics_path, metrics->num_ranks, remedy);
    }
    if (at == metrics->num_steps) {
        return FAIL(STATUS_MISMATCH, "%s is of step %lld, which is not in %s ---> %s", trace_path,
                    (long long)file->step, metrics_path, remedy);
    }
    double predicted_ns = 1e6 * metrics->values[METRIC_PREDICTED_MS][at];
    if (file->has_errors &&
        fabs(predicted_ns - (double)file->errors.predicted_ns) > 1 + 1e-9 * predicted_ns) {
        return FAIL(STATUS_MISMATCH, "%s: step %lld was predicted to take %.3f ms, in %s %.3f ms ---> %s",
                    trace_path, (long long)file->step, (double)file->errors.predicted_ns / 1e6, metrics_path,
                    predicted_ns / 1e6, remedy);
    }
    return STATUS_OK;
}

// Which run it is: its folder, where the file is called what the trainer calls it.
static Status name_run(const char** out, const char* path, Arena* arena) {
    static const char file[] = "/metrics.jsonl";
    size_t length = strlen(path), of_file = sizeof file - 1;
    bool is_usual = length > of_file && strcmp(path + length - of_file, file) == 0;
    char* name;
    ARENA_TRY_NEW(name, arena, char, length + 1);
    memcpy(name, path, is_usual ? length - of_file : length);
    *out = name;
    return STATUS_OK;
}

static Status run(const ReportOptions* options, char** paths, int32_t num_runs, Metrics* metrics,
                  Arena* arena) {
    ReportRun runs[REPORT_MAX_RUNS];
    TraceReplay* trace;
    TRY(load_trace(&trace, options, arena));
    for (int32_t k = 0; k < num_runs; k++) {
        TRY(metrics_load(&metrics[k], paths[k]));
        runs[k] = (ReportRun){&metrics[k], paths[k]};
        if (num_runs > 1) { TRY(name_run(&runs[k].name, paths[k], arena)); }
    }
    if (trace != NULL) { TRY(check_same_run(&trace->file, &metrics[0], options->trace, paths[0])); }
    TRY(report_html_write(options->out, runs, num_runs, trace));
    if (strcmp(options->out, "-") == 0) { return STATUS_OK; }
    printf("%s:", options->out);
    for (int32_t k = 0; k < num_runs; k++) {
        printf("%s %d steps, %d tasks",
               k == 0       ? ""
               : k % 3 == 0 ? ";\n "
                            : ";",
               metrics[k].num_steps, metrics[k].num_tasks);
    }
    printf("\n");
    return STATUS_OK;
}

int command_report(int argc, char** argv) {
    static char long_name[] = "--out";
    ReportOptions options = {0};
    Metrics metrics[REPORT_MAX_RUNS];
    bool help;
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "-o") == 0) { argv[i] = long_name; }
    }
    memset(metrics, 0, sizeof metrics);
    Status status = tool_take(&usage, &options, &argc, argv, &help);
    if (status != STATUS_OK || help) { return status == STATUS_OK ? TOOL_OK : tool_fail(status); }
    Arena arena = {0};
    status = run(&options, argv + 1, argc - 1, metrics, &arena);
    for (int32_t k = 0; k < REPORT_MAX_RUNS; k++) { metrics_free(&metrics[k]); }
    arena_free(&arena);
    return status == STATUS_OK ? TOOL_OK : tool_fail(status);
}
