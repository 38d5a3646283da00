/*
metrics.h -- what a training run wrote into metrics.jsonl, one record a line:
    {"kind":"run","command":..,"commit":..,"model":..,"machine":..,"options":{..},"step":N}   each start, at N
    {"step":N,"loss":..,"task_loss":{..},..}                                                  each step
    {"kind":"validation","step":N,"loss":..,"tasks":{..}}, or {"validation":N,"loss":..,"task_loss":{..}},
        both with exact_match and rouge_l by task where there were answers
    {"refit":N,..}                                             measured steps corrected the costs
Validation losses come from main.log beside it where no record has them.

A value that is missing, null, NaN or no number is NAN, and so is what follows from it. A run that went back
to a checkpoint has steps twice; the later ones count, and of validations and corrections too, so nothing is
counted twice. A last line that was cut off is left out and mentioned.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "trace_view.h"
#include "../util/arena.h"
#include "../util/status.h"

// clang-format off
#define METRIC_LIST(X)                                                           \
    X(METRIC_LOSS,              "loss")                                          \
    X(METRIC_NORM,              "norm")                                          \
    X(METRIC_LR,                "lr")                                            \
    X(METRIC_SUPERVISED_TOKENS, "supervised_tokens")                             \
    X(METRIC_TOTAL_TOKENS,      "total_tokens")                                  \
    X(METRIC_COMPUTED_TOKENS,   "computed_tokens")                               \
    X(METRIC_STEP_MS,           "step_ms")                                       \
    X(METRIC_PLAN_MS,           "plan_ms")                                       \
    X(METRIC_PLAN_WAIT_MS,      "plan_wait_ms")                                  \
    X(METRIC_PREDICTED_MS,      "predicted_ms")                                  \
    X(METRIC_JOBS_OFF_MS,       "jobs_off_ms")                                   \
    X(METRIC_TRANSFERS_OFF_MS,  "transfers_off_ms")                              \
    X(METRIC_WAITING_OFF_MS,    "waiting_off_ms")                                \
    X(METRIC_BOUND_MS,          "bound_ms")                                      \
    X(METRIC_IDLE,              "idle")       /* a list: the mean of its ranks */ \
    X(METRIC_PEAK_BYTES,        "peak_bytes") /* a list: the largest */           \
    X(METRIC_RSS_BYTES,         "rss_bytes")  /* a list: the largest */           \
    X(METRIC_MFU,               "mfu")        /* a share of 1 */                  \
    X(METRIC_WALL_S,            "wall_s")     /* of this start */                 \
    X(METRIC_TOKENS_TOTAL,      "tokens_total")
// clang-format on

#define X(name, key) name,
typedef enum { METRIC_LIST(X) METRIC_COUNT } Metric;
#undef X

enum { METRICS_MAX_TASKS = 256, METRICS_MAX_OPTIONS = 256 };

typedef struct {
    char* name;
    double* losses;               // [num_steps]
    double* validation_losses;    // [num_validations]
    double exact_match, rouge_l;  // of the last answers, shares of 1
} MetricsTask;

// What the last start said of itself; NULL where it did not.
typedef struct {
    char *command, *commit, *model, *machine;
    int32_t num_options;
    char *option_names[METRICS_MAX_OPTIONS], *option_values[METRICS_MAX_OPTIONS];
} MetricsRun;

typedef struct {
    MetricsRun run;
    int32_t num_resumes, max_resumes;
    double* resume_steps;  // rising; behind them the run was started again
    int32_t num_steps, max_steps;
    double* steps;                  // [num_steps] rising
    double* values[METRIC_COUNT];   // [num_steps] each
    int32_t num_tasks, tasks_left;  // tasks_left: names beyond METRICS_MAX_TASKS met
    MetricsTask tasks[METRICS_MAX_TASKS];
    int32_t num_validations, max_validations;
    double *validation_steps, *validation_losses;  // rising
    int32_t num_scores, max_scores;
    double *score_steps, *exact_match, *rouge_l;  // rising; means over tasks, shares of 1
    int32_t num_refits, max_refits;
    double* refit_steps;  // rising; behind them the costs were corrected
    int32_t num_ranks;    // of the last step's lists; 0: it has none
    int32_t cut_line;     // a last line left out; 0: none
} Metrics;

// Of metrics.jsonl, or of the folder that it lies in. STATUS_BAD_FORMAT names file and line. An all-zero
// `out` afterwards where it fails.
Status metrics_load(Metrics* out, const char* path_or_folder);
void metrics_free(Metrics* metrics);

// --- line_chart --------------------
/*
line_chart.h -- values over training steps as one inline SVG: lines, a band where many steps share a pixel.

Up to CHART_BUCKETS points are drawn as they are; of more, each bucket's mean as a line and 80 in 100 of its
values as a band; a pointer is told the whole range. What is not finite leaves a gap. Values far above nearly
all others (a first step that warms up) are cut off at the top and counted in a note, so that the rest can be
read. Where all values are above 0, a box to tick shows them on a logarithmic axis: a second drawing that the
style sheet hides or shows, without scripts. Colours and fonts come from the page's style sheet (classes s0
... s7, b0 ..., d0 ..., k0 ...; log and lin of the two drawings, mark of lines at steps).
*/

enum { CHART_BUCKETS = 240, CHART_MAX_SERIES = 8 };

typedef struct {
    const char* name;
    const double *steps, *values;  // borrowed; [num_points], steps rising
    int32_t num_points;
    bool dots;  // mark every point: for series with few
} ChartSeries;

typedef struct {
    const char* title;  // any text
    const char* unit;   // "ms", "%"; "" for a bare number
    ChartSeries series[CHART_MAX_SERIES];
    int32_t num_series;
    bool from_zero;    // the axis begins at 0 where no value is negative
    bool show_zero;    // a line at 0: for what has a sign
    double last_step;  // the axis of all charts: first_step .. last_step
    double first_step;
    const char* log_id;   // NULL: no logarithmic axis; else a word that the page has once
    const double* marks;  // [num_marks] steps at which a line stands; borrowed
    int32_t num_marks;
} LineChart;

typedef struct {
    const Metrics* metrics;
    const char* name;  // where the numbers are from; any text
} ReportRun;

// --- report_parts --------------------
// report_parts.h -- what the parts of a report share: its runs, and what follows from their records.

typedef struct {
    FILE* out;
    const ReportRun* runs;
    int32_t num_runs;
    double first_step, last_step;  // of all charts
    const double* marks;           // [num_marks] steps at which a run was started again
    int32_t num_marks;
    FILE* left_out;  // words about charts that are not drawn, "; " before each
    Arena* arena;
} Report;

// --- report_numbers.c ---

typedef double Derive(const Metrics* metrics, int32_t i);  // of a step's record; NAN: not known

Derive report_loss, report_supervised_per_s, report_padding_percent, report_idle_percent, report_mfu_percent,
    report_off_percent, report_jobs_off_percent, report_waiting_off_percent, report_transfers_off_percent,
    report_step_ms, report_predicted_ms, report_bound_ms, report_plan_ms, report_plan_wait_ms, report_norm,
    report_lr, report_peak_bytes, report_rss_bytes;

// --- report_charts.c, report_runs.c, report_tasks.c ---

// --- report_html --------------------
/*
report_html.h -- training runs as one page: losses, speed, padding, idle time, predictions, memory, planning.

One run with all that it says, or several side by side, a line each. Charts that would show nothing, one value
throughout or none, are left out and named in a line. One HTML file that needs nothing else: style sheet and
charts (line_chart.h) lie in it, no scripts. It keeps the rules of XML too, so tests read it back. Dark where
the browser is.
*/

enum { REPORT_MAX_RUNS = 8 };

// `trace`: one step of the first run explained, or NULL.
Status report_html_print(FILE* out, const ReportRun* runs, int32_t num_runs, const TraceReplay* trace);
// The same to a file, whole or not at all; "-": stdout.
Status report_html_write(const char* path, const ReportRun* runs, int32_t num_runs, const TraceReplay* trace);
