/*
cost_share.h -- what a stage's share of the head costs (Placement.head).

A share of so many units takes its part of what the head takes beyond its constant, and the whole constant:
    H  (JOB_F)  forward and gradient of inputs in one
    V  (JOB_W)  gradient of its weights
By rows it has some of the supervised rows of every micro-batch, and a whole matrix; by vocabulary all rows,
and so many rows of the matrix, a multiple of SHARE_VOCAB_MULTIPLE. Nothing of it is recomputed.
*/
#pragma once

#include "cost_table.h"

enum { SHARE_VOCAB_MULTIPLE = 16 };

typedef struct {
    HeadSplit by;
    int32_t begin, end;  // units of HEAD_UNITS
} CostShare;

static inline CostShare cost_share_of(const Placement* placement, int32_t s) {
    return (CostShare){.by = (HeadSplit)placement->head,
                       .begin = placement->head_begin[s],
                       .end = placement->head_begin[s + 1]};
}

// Of num_rows supervised rows, those before `units`; of a matrix of num_rows rows (ids) alike.
static inline int64_t cost_share_rows(int64_t num_rows, int32_t units) {
    return num_rows * units / HEAD_UNITS;
}
static inline int64_t cost_share_ids(int64_t num_rows, int32_t units) {
    return units == HEAD_UNITS ? num_rows
                               : num_rows * units / HEAD_UNITS / SHARE_VOCAB_MULTIPLE * SHARE_VOCAB_MULTIPLE;
}

// Which part of the head's matrix the share has: 1 by rows.
double cost_share_of_matrix(const CostModel* model, CostShare share);

// parts: of RECOMPUTE_NONE. A share without units costs nothing.
void cost_jobs_of_share(CostJobs* out, const CostModel* model, CostShare share, const CostParts* parts);
