/*
refit_solve.h -- factors of the cost model's terms that all ranks share, and how slow each rank is beyond.

    time of a job on rank r = slow[r][pass] * sum over terms c of factor[c] * term_c

The terms' factors explain how times depend on shapes, on all ranks; slow what is left of one rank. Both stay
near 1, what the cost file says, where the jobs say little. That holds a rank back more than a term: what one
rank's head explains as well as its speed is the head's. A rank that is slow in spite of it is held back no
more (Student's prior). Gauss-Newton; a rank's own slow is eliminated from its sums
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
#pragma once

#include "refit_sums.h"

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

// A block as if its rank were as fast as the cost model says: sums that stay true when its speed changes.
void refit_alike(RefitSums out[SIDE_COUNT], const RefitSums block[SIDE_COUNT], const RefitRank* rank);

// Divides each pass of ranks[] by the (lower) median rank's, and hands that to the terms. room[num_ranks].
void refit_publish(CostScale* scale, RefitRank* ranks, int32_t num_ranks, const RefitShared* shared,
                   double* room);

// What plans use of `now`, where `before` is what they used: halfway there, since blocks scatter; all the way
// where more than a tenth has changed.
RefitRank refit_smooth(const RefitRank* before, const RefitRank* now);
// In steps of 1 / SCALE_ONE; 1 where it is within a hundredth of that.
double refit_round_slow(double slow);
