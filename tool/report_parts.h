// report_parts.h -- what the parts of a report share: its runs, and what follows from their records.
#pragma once

#include "../util/arena.h"
#include "report_html.h"

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

// [num_steps], times `factor`.
Status report_derive(double** out, const Metrics* metrics, Derive* f, double factor, Arena* arena);
// Of the finite values; NAN where there are none.
Status report_median(double* out, const Metrics* metrics, Derive* f, Arena* arena);
double report_largest(const double* values, int32_t count);
double report_mean_between(const double* values, int32_t begin, int32_t end);
// Steps of "now" and "in the beginning".
int32_t report_span_steps(int32_t num_steps);
// Whole run, over all of its starts; NAN: not known.
double report_total_padding_percent(const Metrics* metrics);
double report_total_tokens(const Metrics* metrics);
double report_total_s(const Metrics* metrics);

// --- report_charts.c, report_runs.c, report_tasks.c ---

Status report_charts_print(const Report* report);
// What ran, and its numbers: cards of one run, a table of several.
Status report_runs_print(const Report* report);
Status report_tasks_print(const Report* report);
