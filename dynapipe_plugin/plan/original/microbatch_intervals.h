/*
microbatch_intervals.h -- times of the intervals (i, n] of an ordered batch that fit in memory, as many as are
needed.

Kept by their end n, shortest first: t ascends with length, and memory too, so the first interval that is too
large ends its row. Intervals up to a limit are known; the limit is raised until longer ones provably cannot
be part of an optimum. For that a line lies below every t:

    t(i, n) >= per_mb_ns + line_ns[n] - line_ns[i]

(the constant and the slopes of the cost model at every sample's own length: what padding adds is not
counted). Kernels that ask for tokens in multiples (shape_rules.h) can take less time for a longer interval
of short samples: a row may then end too early, and the optimum is one of the intervals known.
*/
#pragma once

#include "../problem/microbatch_price.h"
#include "microbatch_dp.h"

typedef struct {
    MbShape shape;
    int32_t enc, dec;  // longest, where padded
} GrowingInterval;

typedef struct {
    const PlanProblem* problem;
    const MicrobatchDpOptions* options;
    const int32_t* order;
    MicrobatchPricer pricer;
    int32_t N;
    int32_t* num;               // [N + 1] intervals known that end at n: (n-1, n], (n-2, n], ...
    int64_t** t;                // [N + 1] their times
    int64_t total;              // sum of num
    int64_t limit_ns;           // all intervals up to this long are known
    bool complete;              // and no longer ones fit in memory
    int64_t longest_single_ns;  // no cap below this is feasible
    int64_t singles_ns;         // sum of all samples on their own
    int64_t per_mb_ns;          // see the top
    int64_t* line_ns;           // [N + 1]
    int64_t* next_ns;        // [N + 1] the first that is longer than limit_ns; INT64_MAX: the row has ended
    GrowingInterval* grown;  // [N + 1] up to that one
} Intervals;

// The single samples. STATUS_INFEASIBLE (no message) where one does not fit.
Status intervals_init(Intervals* out, const PlanProblem* problem, const int32_t* order,
                      const MicrobatchDpOptions* options, Arena* arena);

// Raise limit_ns.
Status intervals_extend(Intervals* intervals, int64_t limit_ns, Arena* arena);

// No partition with all t <= longest_ns has a smaller sum of t, longer ones than limit_ns included. `g`: room
// for [N + 1].
int64_t intervals_least_sum(const Intervals* intervals, int64_t longest_ns, int64_t* g);

// Times of all known intervals, ascending and thinned: a value stays if it exceeds the last kept one by more
// than thinning_ns. Those of a lower limit are a prefix.
Status intervals_caps(int64_t** out, int32_t* num_caps, const Intervals* intervals, Arena* arena);

// What one sample needs on its own.
void interval_grow(GrowingInterval* interval, const PlanProblem* problem, MbLayout layout,
                   const PlanSample* sample);
