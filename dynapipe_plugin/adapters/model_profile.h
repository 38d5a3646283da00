/*
model_profile.h -- measures the parts of a model on this machine: what ./profile_costs writes.

Slices are timed: a middle layer, the first layer with the embedding, whose part is the difference, and the
head alone; of an encoder-decoder model both kinds of layer, and the decoder's first with its embedding.
    tokens          from sequences of 32, a decoder's beside one token of the encoder each
    squares         what a single long sequence costs beyond these (on a GPU: a full micro-batch of them)
    keys, values    of a decoder layer's cross-attention: what sequences of 32 cost beside one token of the
                    decoder each, per encoder token
    cross products  what long sequences on both sides cost beyond all that
    rows            of the head: from the number of supervised rows
*/
#pragma once

#include "../../llmc/model.h"
#include "../plan/cost_model.h"
#include "model_bench.h"

typedef struct {
    ModelConfig config;
    int32_t max_tokens;         // largest micro-batch measured, of either side
    int32_t max_seq_tokens;     // longest sequence, at most max_tokens and what the model takes
    int32_t max_target_tokens;  // longest of the decoder's side; 0 of models without
    int64_t budget_ns;          // spent on one point at most, after its first run
    int64_t (*clock_ns)(void);  // what the model takes is measured by; NULL: the machine's
} ModelProfile;

// Times only: time_ns of every part and job, update_ns_per_byte. Bytes, rates of transfers and the rest stay
// as they are.
void model_profile_measure(CostModel* out, const ModelProfile* about, OpsContext* ops, ModelBenchSync* sync,
                           void* ctx);

// Full recompute costs another forward: from mode none to mode full.
void model_profile_set_recompute(CostModel* out);
