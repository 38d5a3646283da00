/*
rivals.h -- other methods, for comparisons: those of today's trainers, and DynaPipe's own method
(EuroSys '24; spec sections b to g). A program that links rivals/ offers them by --batching (plan/batching.h).
*/
#pragma once

#include <stdbool.h>

#include "../dynapipe_plugin/plan/batching.h"
#include "../util/numbers.h"

// --- the original: dynapipe_original.c --------------------------------------------------------------------

/*
Samples. Decoder-only: descending (length, id). Encoder-decoder: clustered by (enc, dec) length (complete
linkage, Euclidean, merged while closer than 16), and the clusters put on a short open path by the L1 distance
of their centroids, cut to integers; inside a cluster samples keep their order. The path begins at the end
with the longer samples. Beyond ORIGINAL_MAX_LINKAGE different lengths, clusters are squares of 12 x 12
tokens.

Microbatches are consecutive samples in this order:
    minimise   (P - 1) * t_max + (1 / R) * sum of t        over partitions with every t <= t_max
    f(0) = 0,  f(n) = min { f(i) + t(i, n) : i < n, (i, n] fits in memory, t(i, n) <= t_max }
    ties: smallest i
t(i, n) is the time of all jobs on the slowest stage. Values of t_max are thinned to one per 5 ms, and the
first of these is taken that is feasible: memory per microbatch available / P, then available, each without
recomputation, then with. "Available" is that of the tightest stage.

Orders. Up to k microbatches (k = 4, or 3 where there are more than 20): all. More: k-means in four features
(forward time of the first and the last layer, backward time of the last and the first), then for every order
of the clusters one order of the microbatches, shuffled inside each cluster; last the order they came in.

Where it differs from theirs: our random numbers have a seed; the path is found by 2-opt, not by a
travelling-salesman solver; a short batch, where all times lie within 5 ms, is tried with every t_max; where
the original gives up, a replica comes out with a makespan of INT64_MAX, and the planner makes it fit.
*/

MicrobatchBuild microbatch_build_original;

// STATUS_INFEASIBLE: no microbatches fit even one at a time (message: stage, bytes over, remedy).
Status original_draft(Draft* out, const PlanProblem* problem, Arena* arena);

// Parts of it, for tests.

typedef struct {
    int64_t thinning_ns;    // a t_max is kept if it exceeds the last kept one by more; 0: every value
    MicrobatchShare share;  // of memory
    RecomputeMode mode;
    MbLayout layout;  // RAGGED or PADDED
} OriginalCutOptions;

// Cuts of order[0 .. N): microbatch k is order[cut[k] .. cut[k + 1]).
typedef struct {
    int32_t num_mbs;
    int32_t* cut;          // [num_mbs + 1]
    int64_t objective_ns;  // (P - 1) * t_max + sum / R
} OriginalCuts;

// STATUS_INFEASIBLE (without a message) where no t_max that was kept is feasible.
Status original_cut(OriginalCuts* out, const PlanProblem* problem, const int32_t* order,
                    const OriginalCutOptions* options, Arena* arena);

typedef struct {
    int32_t x, y;
} PathPoint;

// path[0 .. num): every point once, on a short open path by L1 distance.
Status short_path_make(int32_t* path, const PathPoint* points, int32_t num, Arena* arena);

enum { ORIGINAL_MAX_LINKAGE = 1024 };

Status original_order_make(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena);

// cluster_of[num]: 0 .. *num_clusters - 1.
Status original_clusters_make(int32_t* cluster_of, int32_t* num_clusters, const PlanSample* samples,
                              int32_t num_samples, Arena* arena);

enum { ORIGINAL_FEATURES = 4, ORIGINAL_MAX_ORDERS = 25 };

typedef struct {
    double us[ORIGINAL_FEATURES];
} OriginalPoint;

// orders[*num][M] of microbatches with these features.
Status original_orders_make(int32_t* orders[ORIGINAL_MAX_ORDERS], int32_t* num, const OriginalPoint* points,
                            int32_t M, Rng* rng, Arena* arena);

extern const PipePolicy pipe_policy_cyclic, pipe_policy_cyclic_limited;

// --- replicas: balance.c ----------------------------------------------------------------------------------

// M jobs onto R replicas so that the fullest has as little as possible, by largest differencing: replicas in
// ascending order of their sums. Each gets a job where M >= R; ties go to the smaller index.
Status balance_difference(int32_t* replica_of, const int64_t* work_ns, int32_t M, int32_t R, Arena* arena);

// Replica r runs microbatches mbs[begin[r]] .. mbs[begin[r + 1] - 1] of the list, in list order.
typedef struct {
    int32_t R;
    int32_t begin[PLAN_MAX_REPLICAS + 1];
    int32_t* mbs;  // [num_mbs] indices into MicrobatchList.mbs
} ReplicaMbs;

// By largest differencing; where slow[r] says how many times as long each replica takes, largest first.
Status balance_replicas(ReplicaMbs* out, const MicrobatchList* list, int32_t R, const double* slow,
                        Arena* arena);

// --- today's batching: batching_rivals.c ------------------------------------------------------------------

MicrobatchBuild microbatch_packed_build, microbatch_packed_ragged_build;
MicrobatchBuild microbatch_padded_build, microbatch_tokens_build, microbatch_kk_build;

// The best of `num_variants` schedules on `order`; INT64_MAX: none fits in memory. `scratch` is reset.
Status pipe_variants_best(int64_t* makespan_ns, int32_t* variant, const PipeProblem* pipe,
                          const int32_t* order, const PipeVariant* variants, int32_t num_variants,
                          Arena* scratch);

// BatchingPolicy.drafts of all of them.
Status rival_drafts(Draft out[RIVAL_MAX_DRAFTS], int32_t* num, const PlanProblem* problem,
                    const PlanProblem* batching, Arena* arena);
