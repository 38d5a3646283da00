/*
cost_rank.h -- what a rank has of the model, all its chunks and its share of the head together: parameters,
gradients, optimizer state, and what its gradients are summed with.

Several chunks of a rank have what they share once: the embedding of both sides, a stack's table, a tied head.
*/
#pragma once

#include "cost_model.h"

typedef struct {
    int32_t count[PIECE_COUNT];  // layers; of all other pieces at most one
    double matrix;               // of the head's matrix, besides these: 0 to 1
    double tied_bytes;           // gradients that it exchanges with other ranks of its replica
} CostRank;

// Of all P stages.
void cost_ranks_make(CostRank* out, const CostModel* model, const Placement* placement, int32_t P);

int64_t cost_rank_state_bytes(const CostModel* model, const CostRank* rank);
// What follows a rank's last job: gradients are summed over copies and replicas.
int64_t cost_rank_reduce_ns(const CostModel* model, const CostRank* rank, int32_t num_replicas);
// Of every byte of parameters, without what tied copies exchange.
double cost_reduce_ns_per_byte(const CostModel* model, int32_t num_replicas);
// The update, on a rank that takes so many times as long. It is no part of plans: all ranks begin it
// together, when they know the norm of the gradients, so the rank with most parameters is waited for in any
// order.
int64_t cost_rank_update_ns(const CostModel* model, const CostRank* rank, double slow);

// The same of a rank that has this chunk alone, the head whole; on other ranks, what is left of the model.
int64_t cost_state_bytes(const CostModel* model, const CostStage* stage);
int64_t cost_reduce_ns(const CostModel* model, const CostStage* stage, int32_t num_replicas);
int64_t cost_update_ns(const CostModel* model, const CostStage* stage, double slow);
