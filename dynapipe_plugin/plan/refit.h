/*
refit.h -- a cost model's factors from measured jobs (least squares).

Small symmetric systems A x = b, A positive definite, in a packed lower triangle.

    a[least_squares_at(i, j)], j <= i      A = sum of w t t', b = sum of w t y: normal equations

Plain IEEE additions, products, quotients and roots in one fixed order: the same bits everywhere.
*/
#pragma once

#include <stdint.h>
#include "cost_model.h"

enum {
    LEAST_SQUARES_MOST = 2 * PASS_TERMS,
    LEAST_SQUARES_PACKED = LEAST_SQUARES_MOST * (LEAST_SQUARES_MOST + 1) / 2
};

static inline int32_t least_squares_at(int32_t i, int32_t j) {
    return i >= j ? i * (i + 1) / 2 + j : j * (j + 1) / 2 + i;
}

// --- sums over measured jobs -------------------------------------------------------------------------

/*
The measured jobs of one rank against the cost model's terms: sums of a few hundred doubles.

    measured time = sum over terms c of factor_c * term_c, weighted with 1 / predicted time

so that a job counts as much as the time it takes, and its error relative to that. One side for jobs F and R
(recomputation), one for B and W, whose terms a joint backward has together. Jobs far from the other
jobs (a pause of the operating system) are left out: iteratively reweighted least squares with Huber's
weights, first on the rank's own jobs, then by the factors of all ranks.
*/

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

// `kept` is how much of the job counts, 0 to 1; `scatter` the relative deviation of jobs.
void refit_sums_add(RefitSums* sums, RefitSide side, const RefitJob* job, double kept, double scatter);

// to = old * to + from
void refit_sums_merge(RefitSums* to, double old, const RefitSums* from);

// How much of each job counts, into kept[num_jobs], from the rank's own jobs; `errors` has room for as many.
// Any few jobs can be fitted exactly. Returns the scatter.
double refit_sums_weigh(double* kept, double* errors, RefitSide side, const RefitJob* jobs, int32_t num_jobs);
// The same with known factors of the side's columns.
double refit_sums_weigh_by(double* kept, double* errors, RefitSide side, const RefitJob* jobs,
                           int32_t num_jobs, const double factor[REFIT_COLUMNS]);

// --- factors -----------------------------------------------------------------------------------------

/*
Factors of the cost model's terms that all ranks share, and how slow each rank is in addition.

    time of a job on rank r = slow[r][pass] * sum over terms c of factor[c] * term_c

The terms' factors explain how times depend on shapes, on all ranks; slow what remains of one rank. Both stay
near 1, the cost file's value, where the jobs determine little. That prior is stronger for a rank than for a
term: what one rank's head explains as well as its speed is attributed to the head. For a rank that is slow in
spite of it the prior weakens (Student's prior). Gauss-Newton; a rank's own slow is eliminated from its sums
before they are added up (the Schur complement), so a round is one sum over the ranks of a few kilobytes,
whatever their number:

    for (round < REFIT_ROUNDS) {
        refit_share(mine, block, &shared, &rank);     this rank's sums, its own unknowns taken out
        ... add `mine` up over all ranks -> all ...
        refit_solve(&shared, all, history);           the same bits on all ranks
        refit_rank_solve(&rank, block, &shared);
    }
    ... weigh jobs by what was found, and once more ...

Only ratios of both can be measured; refit_publish() lets the rank in the middle be 1.
*/

enum { REFIT_WEIGHINGS = 2, REFIT_ROUNDS = 4 };  // rounds of each

// How much of the sums of earlier blocks counts in the next: about ten blocks are remembered.
#define REFIT_REMEMBERED 0.9

typedef struct {
    double factor[SIDE_COUNT][REFIT_COLUMNS];
} RefitShared;

typedef struct {
    double slow[PASS_COUNT];
} RefitRank;

RefitShared refit_shared_one(void);
RefitRank refit_rank_one(void);

// For the sum over ranks: the normal equations of the shared factors.
void refit_share(RefitSums out[SIDE_COUNT], const RefitSums block[SIDE_COUNT], const RefitShared* shared,
                 const RefitRank* rank);

// `history`: sums of earlier blocks, as refit_alike() made them of each and all ranks added them up.
void refit_solve(RefitShared* shared, const RefitSums all[SIDE_COUNT], const RefitSums history[SIDE_COUNT]);
void refit_rank_solve(RefitRank* rank, const RefitSums block[SIDE_COUNT], const RefitShared* shared);

// A block as if its rank had the predicted speed: sums that stay valid when its speed changes.
void refit_alike(RefitSums out[SIDE_COUNT], const RefitSums block[SIDE_COUNT], const RefitRank* rank);

// Divides each pass of ranks[] by the (lower) median rank's, and multiplies the terms by that.
// room[num_ranks].
void refit_publish(CostScale* scale, RefitRank* ranks, int32_t num_ranks, const RefitShared* shared,
                   double* room);

// The factors for plans from `now`, where `before` is in use: halfway, since blocks scatter; all the way
// where more than a tenth has changed.
RefitRank refit_smooth(const RefitRank* before, const RefitRank* now);
// In steps of 1 / SCALE_ONE; 1 where it is within a hundredth of that.
double refit_round_slow(double slow);
