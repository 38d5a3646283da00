/*
original_permute.h -- the orders of micro-batches that the original tries (spec section f).

Up to k micro-batches (k = 4, or 3 where there are more than 20): all orders. More: k-means in four features
(forward time of the first and the last layer, backward time of the last and the first), then for every order
of the clusters one order of the micro-batches, shuffled inside each cluster; last the order they came in. The
original's random numbers have no seed; ours do, so a plan is the same every time.
*/
#pragma once

#include <stdbool.h>

#include "../../../util/arena.h"
#include "../../../util/numbers.h"
#include "../../../util/status.h"

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
