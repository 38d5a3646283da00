/*
original_order.h -- the order in which the original cuts its samples (spec section b).

Decoder-only: descending (length, id). Encoder-decoder: samples are clustered by (enc, dec) length (complete
linkage, Euclidean, merged while closer than 16), and the clusters put on a short open path by the L1 distance
of their centroids, cut to integers; inside a cluster samples keep their order. The original finds the path
with a travelling-salesman solver, we with short_path.h. It begins at the end with the longer samples.

Beyond ORIGINAL_MAX_LINKAGE different lengths, clusters are squares of 12 x 12 tokens: no two samples of one
are 16 apart either.
*/
#pragma once

#include "../../../util/arena.h"
#include "../../../util/status.h"
#include "../types/plan_types.h"

enum { ORIGINAL_MAX_LINKAGE = 1024 };

Status original_order_make(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena);

// cluster_of[num]: 0 .. *num_clusters - 1, numbered as they first occur.
Status original_clusters_make(int32_t* cluster_of, int32_t* num_clusters, const PlanSample* samples,
                              int32_t num_samples, Arena* arena);
