/*
toy_model.h -- a DynapipeModel_v1 whose sums are exact, so that any order of jobs must give the same bits.

Layer l: y[t][c] = a[l][c] * x[t][c % W(l)] + b[l][c] for c < W(l + 1), a in {-1, 1}, b small integers; widths
W change along the chain, so that boundaries do. x of the first layer comes from tokens and positions. Ids v
of a vocabulary have h[v] in {-1, 1}, the loss of a row is target * sum over v of h[v] * x[v % W]; a head
shared by vocabulary is a sum over its ids, its factors target * loss_scale. All values are small integers, so
float sums are exact; every gradient depends on the activations, on both ends of every message, and on memory
that must stay whole exactly as long as plan.h says: `in` is read again by backward_inputs, `dout` by
backward_weights. Every job scribbles over its scratch.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../dynapipe_plugin/dynapipe.h"
#include "../dynapipe_plugin/plan/plan.h"
#include "../util/arena.h"
#include "../util/numbers.h"

enum { TOY_CHANNELS = 8, TOY_MAX_LAYERS = 16, TOY_MAX_ROWS = 64 };  // channels at the widest
enum { TOY_VOCAB = 64 };
enum { TOY_SCRATCH_BYTES = 64 * TOY_CHANNELS * 4 + 4 };  // that any job needs

typedef struct {
    int32_t layer_begin, layer_end;
    bool is_first, is_last;  // is_last: the whole head
    // DynapipeHead: a range that feeds the head; a share of it, all layers of which lie before it
    int32_t head;
    int32_t vocab_begin, vocab_end;  // ids of the head, or its share
    float da[TOY_MAX_LAYERS][TOY_CHANNELS], db[TOY_MAX_LAYERS][TOY_CHANNELS], dh[TOY_VOCAB];
    void* device;         // of test_executor.c
    int32_t pause_ns;     // each job takes at least so long, times a number that varies
    int32_t fail_at_job;  // the job that returns an error, counted from 1; 0: none
    int32_t num_jobs;
    int32_t num_violations;  // calls that break dynapipe.h: a missing pointer, weights before inputs
} ToyModel;

extern const DynapipeModel_v1 toy_api;

// num_tokens random tokens, the last half of them (at least one) supervised; 0: an empty microbatch.
typedef struct {
    DynapipeBatch batch;
    int32_t tokens[64], positions[64], rows[64], targets[64], row_tasks[64], cu_seqlens[5];
} ToyBatch;

void toy_batch_init(ToyBatch* out, uint64_t seed, int32_t num_tokens);

// Random valid plans (random_plan.h) for it, whose buffers have exactly what it asks for.
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
