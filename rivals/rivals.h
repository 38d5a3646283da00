/*
rivals.h -- other methods, for comparisons: those of today's trainers, and DynaPipe's own method
(EuroSys '24; spec sections b to g). A program that links rivals/ offers them by --batching (plan/batching.h).

Samples. Decoder-only: descending (length, id). Encoder-decoder: clustered by (enc, dec) length (complete
linkage, Euclidean, merged while closer than 16), and the clusters put on a short open path by the L1 distance
of their centroids, cut to integers; inside a cluster samples keep their order. The path begins at the end
with the longer samples. Beyond ORIGINAL_MAX_LINKAGE different lengths, clusters are squares of 12 x 12
tokens.

Micro-batches. Caps of the dynamic program (microbatch_dp.h) are thinned to one per 5 ms, and the first of
these that is feasible is taken: memory per micro-batch available / P, then available, each without
recomputation, then with. "Available" is that of the tightest stage.

Orders. Up to k micro-batches (k = 4, or 3 where there are more than 20): all. More: k-means in four features
(forward time of the first and the last layer, backward time of the last and the first), then for every order
of the clusters one order of the micro-batches, shuffled inside each cluster; last the order they came in.

Where it differs from theirs: our random numbers have a seed; the path is found by our own heuristic, not by a
travelling-salesman solver; a short batch, where all caps lie within 5 ms, is tried with every cap; where the
original gives up, a replica comes out with a makespan of INT64_MAX, and the planner makes it fit.
*/
#pragma once

#include <stdbool.h>

#include "../util/numbers.h"
#include "../dynapipe_plugin/plan/batching.h"

// --- the original: dynapipe_original.c --------------------------------------------------------------------

MicrobatchBuild microbatch_dp_build_original;

// STATUS_INFEASIBLE: no micro-batches fit even one at a time (message: stage, bytes over, remedy).
Status original_draft(Draft* out, const PlanProblem* problem, Arena* arena);

typedef struct {
    int32_t x, y;  // 0 .. 2^29
} PathPoint;

// path[0 .. num): every point once, on a short open path by L1 distance. O(num log num) and a bounded number
// of kicks. How close to the shortest: test_original_order.c.
Status short_path_make(int32_t* path, const PathPoint* points, int32_t num, Arena* arena);

enum { ORIGINAL_MAX_LINKAGE = 1024 };

Status original_order_make(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena);

// cluster_of[num]: 0 .. *num_clusters - 1, numbered as they first occur.
Status original_clusters_make(int32_t* cluster_of, int32_t* num_clusters, const PlanSample* samples,
                              int32_t num_samples, Arena* arena);

enum { ORIGINAL_FEATURES = 4, ORIGINAL_MAX_CLUSTERS = 4 };

typedef struct {
    int64_t us[ORIGINAL_FEATURES];
} OriginalPoint;

typedef struct {
    int32_t M;
    int32_t num_clusters, cluster[ORIGINAL_MAX_CLUSTERS];  // in the order of this round
    int32_t begin[ORIGINAL_MAX_CLUSTERS + 1];              // into members
    int32_t* members;                                      // [M] micro-batches by cluster
    bool every_order;  // as many clusters as micro-batches: the order they came in is among them
    int32_t state;
} OriginalOrders;

// points: [M]. Random numbers are taken from `rng`, here and in every _next.
Status original_orders_init(OriginalOrders* out, const OriginalPoint* points, int32_t M, Rng* rng,
                            Arena* arena);

// Writes order[M]; false after the last one. At least one is written.
bool original_orders_next(OriginalOrders* orders, int32_t* order, Rng* rng);

// --- schedules that methods choose from -------------------------------------------------------------------

enum { RIVAL_MAX_VARIANTS = 3 };

// Those that the request allows this batching. Returns how many.
int32_t rival_variants(PipeVariant out[RIVAL_MAX_VARIANTS], const PlanRequest* request);

typedef struct {
    int64_t makespan_ns;  // INT64_MAX: none fits in memory
    int32_t variant;
} PipeVariantBest;

// Best of `num_variants` variants on `order`. Temporaries: `scratch` is reset.
Status pipe_variants_best(PipeVariantBest* out, const PipeProblem* pipe, const int32_t* order,
                          const PipeVariant* variants, int32_t num_variants, Arena* scratch);

// --- today's batching: batching_rivals.c ------------------------------------------------------------------

MicrobatchBuild microbatch_packed_build, microbatch_packed_ragged_build;
MicrobatchBuild microbatch_padded_build, microbatch_tokens_build, microbatch_kk_build;

// The recompute mode of a finished list: the first in which every micro-batch keeps to its share of memory,
// else the first in which each fits alone. `unit` names its micro-batches in the message.
Status microbatch_list_choose_mode(MicrobatchList* list, const PlanProblem* problem, const char* unit);

// BatchingPolicy.drafts of all of them.
Status rival_drafts(Draft out[RIVAL_MAX_DRAFTS], int32_t* num, const PlanProblem* problem,
                    const PlanProblem* batching, int32_t effort, Arena* arena);
