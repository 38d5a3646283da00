#include "refit_sums.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WEIGH_ROUNDS = 6, WEIGH_LEAST_JOBS = 8 };

static const double FIRST_RATIO = 2.5;  // from the median: more cannot be explained by the shapes of jobs
static const double LEAST_SCATTER = 0.003, USUAL_SCATTER = 0.05;
static const double HUBER = 2.5, FAR = 6;  // times the scatter: counts less, not at all
static const double WEIGH_PRIOR = 0.01;    // of factors around 1, in jobs

static double predicted_ns(const RefitJob* job, int32_t n) {
    double sum = 0;
    for (int32_t c = 0; c < n; c++) { sum += job->term[c]; }
    return sum;
}

void refit_sums_add(RefitSums* sums, RefitSide side, const RefitJob* job, double kept, double scatter) {
    int32_t n = refit_side_columns(side);
    double predicted = predicted_ns(job, n);
    if (!(predicted > 0 && kept > 0)) { return; }
    double w = kept / predicted;
    least_squares_add(sums->a, sums->b, n, job->term, job->measured_ns, w);
    for (int32_t c = 0; c < n; c++) { sums->term_ns[c] += kept * job->term[c]; }
    sums->noise_ns += kept * predicted * scatter * scatter;
    sums->num_jobs += kept;
    sums->predicted_ns += kept * predicted;
}

void refit_sums_merge(RefitSums* to, double old, const RefitSums* from) {
    double* sum = (double*)to;
    const double* add = (const double*)from;
    for (size_t i = 0; i < sizeof *to / sizeof *sum; i++) { sum[i] = old * sum[i] + add[i]; }
}

// --- jobs that say nothing -------------------------------------------------------------------------------

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double median(double* values, int32_t num) {
    qsort(values, (size_t)num, sizeof *values, compare_doubles);
    return values[num / 2];
}

// What the jobs that count say, with a light hand towards 1.
static void fit_alone(double factor[REFIT_COLUMNS], RefitSide side, const RefitJob* jobs, const double* kept,
                      int32_t num_jobs) {
    int32_t n = refit_side_columns(side);
    RefitSums sums = {0};
    for (int32_t i = 0; i < num_jobs; i++) {  // one vote a job: a long one may be the one interrupted
        refit_sums_add(&sums, side, &jobs[i], kept[i] / predicted_ns(&jobs[i], n), 0);
    }
    for (int32_t c = 0; c < n; c++) {
        sums.a[least_squares_at(c, c)] += WEIGH_PRIOR;
        sums.b[c] += WEIGH_PRIOR;
    }
    least_squares_solve(factor, sums.a, sums.b, n);
}

static void weigh_first(double* kept, double* ratios, RefitSide side, const RefitJob* jobs,
                        int32_t num_jobs) {
    int32_t n = refit_side_columns(side);
    for (int32_t i = 0; i < num_jobs; i++) { ratios[i] = jobs[i].measured_ns / predicted_ns(&jobs[i], n); }
    double middle = median(ratios, num_jobs);
    for (int32_t i = 0; i < num_jobs; i++) {
        double ratio = jobs[i].measured_ns / predicted_ns(&jobs[i], n) / middle;
        double off = ratio > 1 ? ratio : 1 / ratio;
        kept[i] = off <= FIRST_RATIO ? 1 : FIRST_RATIO / off / off;
    }
}

double refit_sums_weigh_by(double* kept, double* errors, RefitSide side, const RefitJob* jobs,
                           int32_t num_jobs, const double factor[REFIT_COLUMNS]) {
    int32_t n = refit_side_columns(side);
    for (int32_t i = 0; i < num_jobs; i++) {
        double fitted = 0;
        for (int32_t c = 0; c < n; c++) { fitted += factor[c] * jobs[i].term[c]; }
        kept[i] = errors[i] = fabs(jobs[i].measured_ns - fitted) / predicted_ns(&jobs[i], n);
    }
    double scatter = num_jobs > 0 ? fmax(1.4826 * median(errors, num_jobs), LEAST_SCATTER) : 1;
    for (int32_t i = 0; i < num_jobs; i++) {
        double off = kept[i] / scatter;
        kept[i] = off <= HUBER ? 1 : off <= FAR ? HUBER / off : 0;
    }
    return scatter;
}

double refit_sums_weigh(double* kept, double* errors, RefitSide side, const RefitJob* jobs,
                        int32_t num_jobs) {
    for (int32_t i = 0; i < num_jobs; i++) { kept[i] = 1; }
    double scatter = USUAL_SCATTER;
    if (num_jobs < WEIGH_LEAST_JOBS) { return scatter; }
    weigh_first(kept, errors, side, jobs, num_jobs);
    for (int round = 0; round < WEIGH_ROUNDS; round++) {
        double factor[REFIT_COLUMNS];
        fit_alone(factor, side, jobs, kept, num_jobs);
        scatter = refit_sums_weigh_by(kept, errors, side, jobs, num_jobs, factor);
    }
    return scatter;
}
