// report_numbers.c -- what follows from a run's records: rates, percentages, medians, totals.
#include <math.h>
#include <stdlib.h>

#include "report_parts.h"

enum { LAST_STEPS = 5 };  // "now" is the mean of these, as in dev/task_losses.sh

#define OF_RECORD(name, metric)                      \
    double name(const Metrics* metrics, int32_t i) { \
        return metrics->values[metric][i];           \
    }
OF_RECORD(report_loss, METRIC_LOSS)
OF_RECORD(report_step_ms, METRIC_STEP_MS)
OF_RECORD(report_predicted_ms, METRIC_PREDICTED_MS)
OF_RECORD(report_bound_ms, METRIC_BOUND_MS)
OF_RECORD(report_plan_ms, METRIC_PLAN_MS)
OF_RECORD(report_plan_wait_ms, METRIC_PLAN_WAIT_MS)
OF_RECORD(report_norm, METRIC_NORM)
OF_RECORD(report_lr, METRIC_LR)
OF_RECORD(report_peak_bytes, METRIC_PEAK_BYTES)
OF_RECORD(report_rss_bytes, METRIC_RSS_BYTES)
#undef OF_RECORD

double report_supervised_per_s(const Metrics* metrics, int32_t i) {
    return metrics->values[METRIC_SUPERVISED_TOKENS][i] * 1000 / metrics->values[METRIC_STEP_MS][i];
}

double report_padding_percent(const Metrics* metrics, int32_t i) {
    return 100 * (1 - metrics->values[METRIC_TOTAL_TOKENS][i] / metrics->values[METRIC_COMPUTED_TOKENS][i]);
}

double report_idle_percent(const Metrics* metrics, int32_t i) {
    return 100 * metrics->values[METRIC_IDLE][i];
}

double report_mfu_percent(const Metrics* metrics, int32_t i) {
    return 100 * metrics->values[METRIC_MFU][i];
}

// Percent of what was predicted; > 0: longer.
double report_off_percent(const Metrics* metrics, int32_t i) {
    double predicted_ms = metrics->values[METRIC_PREDICTED_MS][i];
    return 100 * (metrics->values[METRIC_STEP_MS][i] - predicted_ms) / predicted_ms;
}

static double part_percent(const Metrics* metrics, Metric part, int32_t i) {
    return 100 * metrics->values[part][i] / metrics->values[METRIC_PREDICTED_MS][i];
}

double report_jobs_off_percent(const Metrics* metrics, int32_t i) {
    return part_percent(metrics, METRIC_JOBS_OFF_MS, i);
}

double report_transfers_off_percent(const Metrics* metrics, int32_t i) {
    return part_percent(metrics, METRIC_TRANSFERS_OFF_MS, i);
}

double report_waiting_off_percent(const Metrics* metrics, int32_t i) {
    return part_percent(metrics, METRIC_WAITING_OFF_MS, i);
}

Status report_derive(double** out, const Metrics* metrics, Derive* f, double factor, Arena* arena) {
    *out = ARENA_NEW(arena, double, metrics->num_steps);
    if (*out == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for %d steps ---> free memory", metrics->num_steps);
    }
    for (int32_t i = 0; i < metrics->num_steps; i++) { (*out)[i] = factor * f(metrics, i); }
    return STATUS_OK;
}

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

Status report_median(double* out, const Metrics* metrics, Derive* f, Arena* arena) {
    double* sorted;
    TRY(report_derive(&sorted, metrics, f, 1, arena));
    int32_t n = 0;
    for (int32_t i = 0; i < metrics->num_steps; i++) {
        if (isfinite(sorted[i])) { sorted[n++] = sorted[i]; }
    }
    qsort(sorted, (size_t)n, sizeof(double), compare_doubles);
    *out = n == 0 ? NAN : n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    return STATUS_OK;
}

double report_mean_between(const double* values, int32_t begin, int32_t end) {
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = begin; i < end; i++) {
        if (!isfinite(values[i])) { continue; }
        sum += values[i];
        n++;
    }
    return n > 0 ? sum / n : NAN;
}

double report_largest(const double* values, int32_t count) {
    double largest = NAN;
    for (int32_t i = 0; i < count; i++) {
        if (isfinite(values[i])) { largest = fmax(largest, values[i]); }
    }
    return largest;
}

int32_t report_span_steps(int32_t num_steps) {
    return num_steps < 2 * LAST_STEPS ? (num_steps + 1) / 2 : LAST_STEPS;
}

// --- totals ----------------------------------------------------------------------------------------------

double report_total_padding_percent(const Metrics* metrics) {
    const double *total = metrics->values[METRIC_TOTAL_TOKENS],
                 *computed = metrics->values[METRIC_COMPUTED_TOKENS];
    double all = 0, all_computed = 0;
    for (int32_t i = 0; i < metrics->num_steps; i++) {
        bool known = isfinite(total[i]) && isfinite(computed[i]);
        all += known ? total[i] : 0;
        all_computed += known ? computed[i] : 0;
    }
    return all_computed > 0 ? 100 * (1 - all / all_computed) : NAN;
}

// What a counter has counted that may begin again with every start of a run: it falls there.
static double counted(const double* values, int32_t count) {
    double before = 0, last = NAN;
    for (int32_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) { continue; }
        if (values[i] < last) { before += last; }
        last = values[i];
    }
    return before + last;
}

static double sum_of(const double* values, int32_t count) {
    return report_mean_between(values, 0, count) * count;
}

double report_total_tokens(const Metrics* metrics) {
    double tokens = counted(metrics->values[METRIC_TOKENS_TOTAL], metrics->num_steps);
    return isfinite(tokens) ? tokens : sum_of(metrics->values[METRIC_TOTAL_TOKENS], metrics->num_steps);
}

double report_total_s(const Metrics* metrics) {
    double wall_s = counted(metrics->values[METRIC_WALL_S], metrics->num_steps);
    return isfinite(wall_s) ? wall_s : sum_of(metrics->values[METRIC_STEP_MS], metrics->num_steps) / 1e3;
}
