/*
microbatch_dp.h -- cut ordered samples into consecutive micro-batches (DynaPipe, EuroSys'24; spec section c).

    minimise   (P - 1) * t_max + (1 / R) * sum of t        over consecutive partitions with every t <= t_max
    f(0) = 0,  f(n) = min { f(i) + t(i, n) : i < n, (i, n] fits in memory, t(i, n) <= t_max }
    ties: smallest i

t(i, n) is the time of all jobs of samples i..n-1 of the order on the *slowest* stage; the original has equal
stages, where that is the same. f falls as t_max grows, so caps are searched by bisection with the bound
(P - 1) * (smallest cap of the range) + f(largest cap): exact, and O(N^2) per cap that is looked at. Intervals
longer than a limit are not made at all once a line below their times proves that no such cap can win.

Ours (`dynamic`, layout padded) tries every cap, lets one sample alone use more than its share, and shares
memory as 1F1B does (P - s micro-batches on stage s). The original thins the caps
(rivals/dynapipe_original.c).
*/
#pragma once

#include "../dynapipe_plugin/plan/problem.h"

typedef struct {
    int64_t thinning_ns;    // a cap is kept if it exceeds the last kept one by more; 0: every distinct value
    int32_t ramp_percent;   // of (P - 1) * t_max that is charged
    MicrobatchShare share;  // of memory, for micro-batches of several samples
    bool single_alone;      // one sample may use all of it
    RecomputeMode mode;
    MbLayout layout;  // RAGGED or PADDED
} MicrobatchDpOptions;

// Cuts of order[0..N): micro-batch k is order[cut[k] .. cut[k + 1]).
typedef struct {
    int32_t num_mbs;
    int32_t* cut;            // [num_mbs + 1]
    int64_t cap_ns, sum_ns;  // t_max and the sum of t
    int64_t objective_ns;    // (P - 1) * cap * ramp + sum / R
} MicrobatchDpCuts;

// STATUS_INFEASIBLE (without a message) where no cap that was kept is feasible.
Status microbatch_dp_cut(MicrobatchDpCuts* out, const PlanProblem* problem, const int32_t* order,
                         const MicrobatchDpOptions* options, Arena* arena);

// The list of the first options that are feasible. STATUS_INFEASIBLE names the sample in the way.
Status microbatch_dp_first(MicrobatchList* out, const PlanProblem* problem, const int32_t* order,
                           const MicrobatchDpOptions* options, int num_options, Arena* arena);

MicrobatchBuild microbatch_dp_build;

/*
Inside, for test_microbatch_dp.c: times of the intervals (i, n] of an ordered batch that fit in memory.

Kept by their end n, shortest first: t ascends with length, and memory too, so the first interval that is too
large ends its row. Intervals up to a limit are known; the limit is raised until longer ones provably cannot
be part of an optimum. For that a line lies below every t:

    t(i, n) >= per_mb_ns + line_ns[n] - line_ns[i]

(the constant and the slopes of the cost model at every sample's own length: what padding adds is not
counted). Kernels that need tokens in multiples (ShapeRules) can take less time for a longer interval
of short samples: a row may then end too early, and the optimum is one of the intervals known.
*/
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
