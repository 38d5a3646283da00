/*
refit_sums.h -- what the jobs of one rank say of the cost model's terms: sums of a few hundred doubles.

    measured time = sum over terms c of factor_c * term_c, weighted with 1 / predicted time

so that a job counts as much as the time it takes, and its error relative to that. One side for jobs F and R
(a forward again), one for B and W, whose terms a joint backward has together. Jobs far from what the other
jobs say (a pause of the operating system) are left out: iteratively reweighted least squares with Huber's
weights, first on the rank's own jobs, then by what all ranks made of theirs.
*/
#pragma once

#include "cost_scale.h"
#include "least_squares.h"

typedef enum { SIDE_FORWARD, SIDE_BACKWARD, SIDE_COUNT } RefitSide;

enum { REFIT_COLUMNS = 2 * PASS_TERMS };  // of SIDE_BACKWARD: those of B, those of W

static inline int32_t refit_side_columns(RefitSide side) {
    return side == SIDE_FORWARD ? PASS_TERMS : 2 * PASS_TERMS;
}

// Which pass column `c` of a side belongs to.
static inline CostPass refit_column_pass(RefitSide side, int32_t c) {
    return side == SIDE_FORWARD ? PASS_FORWARD : c < PASS_TERMS ? PASS_INPUTS : PASS_WEIGHTS;
}

typedef struct {
    double term[REFIT_COLUMNS];  // predicted, ns; for the rank it ran on
    double measured_ns;
} RefitJob;

// Doubles only: sums of ranks are sums of these.
typedef struct {
    double a[LEAST_SQUARES_PACKED], b[REFIT_COLUMNS];  // w t t', w t y
    double term_ns[REFIT_COLUMNS];                     // of all jobs together
    double noise_ns;                                   // w error^2, of jobs that scatter as most do
    double num_jobs, predicted_ns;
} RefitSums;

// `kept` is how much of the job counts, 0 to 1; `scatter` by how much jobs are off, in relation.
void refit_sums_add(RefitSums* sums, RefitSide side, const RefitJob* job, double kept, double scatter);

// to = old * to + from
void refit_sums_merge(RefitSums* to, double old, const RefitSums* from);

// How much of each job counts, into kept[num_jobs], by what the rank's jobs say alone; `errors` is room for
// as many. Few jobs can be fitted whatever they are. Returns the scatter.
double refit_sums_weigh(double* kept, double* errors, RefitSide side, const RefitJob* jobs, int32_t num_jobs);
// The same by factors of the side's columns that are known.
double refit_sums_weigh_by(double* kept, double* errors, RefitSide side, const RefitJob* jobs,
                           int32_t num_jobs, const double factor[REFIT_COLUMNS]);
