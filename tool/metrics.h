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

// Of metrics.jsonl, or of the folder that it lies in. STATUS_BAD_FORMAT names file and line. An all-zero `out`
// afterwards where it fails.
Status metrics_load(Metrics* out, const char* path_or_folder);
void metrics_free(Metrics* metrics);
