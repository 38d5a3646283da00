/*
toy_plan.h -- random valid plans (random_plan.h) for the toy model, whose buffers have exactly what it asks
for.
*/
#pragma once

#include "../util/arena.h"
#include "../util/numbers.h"
#include "../dynapipe_plugin/plan/plan.h"
#include "toy_model.h"

typedef struct {
    Plan plan;
    ToyBatch* batches;  // [M]
    int32_t num_layers;
} ToyPlan;

// P stages, R replicas; chunks and shares of the head anywhere.
void toy_plan_make(ToyPlan* out, Rng* rng, int32_t P, int32_t R, int32_t num_samples, Arena* arena);
// M microbatches; chunk s on stage s, the head whole.
void toy_plan_make_linear(ToyPlan* out, Rng* rng, int32_t P, int32_t R, int32_t M, Arena* arena);

// Of a chunk, or K + s: of the head's share of stage s.
ToyModel toy_plan_model(const ToyPlan* toy, int32_t row);
// The rows of a rank: its chunks, then its share. Returns how many.
enum { TOY_MAX_ROWS_HERE = TOY_MAX_LAYERS + 1 };
int32_t toy_plan_rows(const ToyPlan* toy, int32_t rank, int32_t rows[TOY_MAX_ROWS_HERE]);

// Take instruction `idx` of a rank away; buffers keep their places.
void toy_plan_remove(ToyPlan* toy, int32_t rank, int32_t idx);
// First instruction of that kind on a rank, -1: none. mb -1: of any.
int32_t toy_plan_find(const ToyPlan* toy, int32_t rank, InstrKind kind, int32_t mb);

// The plain loop that every plan must agree with: all layers, one microbatch after the other.
void toy_plan_run_directly(const ToyPlan* toy, ToyModel* model, float losses[][TOY_MAX_ROWS]);
