/*
microbatch_dp.h -- cut the ordered samples into consecutive micro-batches (DynaPipe, EuroSys'24; spec section
c).

    minimise   (P - 1) * t_max + (1 / R) * sum of t        over consecutive partitions with every t <= t_max
    f(0) = 0,  f(n) = min { f(i) + t(i, n) : i < n, (i, n] fits in memory, t(i, n) <= t_max },  ties: smallest
i

t(i, n) is the time of all jobs of samples i..n-1 of the order on the *slowest* stage; the original has equal
stages, where that is the same. f falls as t_max grows, so caps are searched by bisection with the bound
(P - 1) * (smallest cap of the range) + f(largest cap): exact, and O(N^2) per cap that is looked at. Intervals
longer than a limit are not made at all once a line below their times proves that no such cap can win
(microbatch_intervals.h).

The original (`dynapipe`) thins the caps to one per 5 ms and takes the first of these that is feasible: memory
per micro-batch available / P, then available, each without recomputation, then with. There "available" is
that of the tightest stage. Where no thinned cap is feasible (a short batch: all lie within 5 ms) the original
fails, and we try every cap, since a run must not end there. Ours (`dynamic`, layout padded) tries every cap,
lets one sample alone use more than its share, and shares memory as 1F1B does (P - s micro-batches on stage
s).
*/
#pragma once

#include "../problem/microbatch.h"

typedef struct {
    int64_t thinning_ns;    // a cap is kept if it exceeds the last kept one by more; 0: every distinct value
    int32_t ramp_percent;   // of (P - 1) * t_max that is charged
    MicrobatchShare share;  // of memory, for micro-batches of several samples
    bool single_alone;      // one sample may use all of it
    RecomputeMode mode;
    MbLayout layout;  // RAGGED or PADDED
} MicrobatchDpOptions;

enum { MICROBATCH_DP_THINNING_NS = 5000000 };  // the original's compile-time constant

// Cuts of order[0..N): micro-batch k is order[cut[k] .. cut[k + 1]).
typedef struct {
    int32_t num_mbs;
    int32_t* cut;            // [num_mbs + 1]
    int64_t cap_ns, sum_ns;  // t_max and the sum of t
    int64_t objective_ns;    // (P - 1) * cap * ramp + sum / R
} MicrobatchDpCuts;

// STATUS_INFEASIBLE (without a message of its own: see the builds) where no cap that was kept is feasible.
Status microbatch_dp_cut(MicrobatchDpCuts* out, const PlanProblem* problem, const int32_t* order,
                         const MicrobatchDpOptions* options, Arena* arena);

MicrobatchBuild microbatch_dp_build, microbatch_dp_build_original;
