/*
model_profile.h -- measures the parts of a GPT-2 on this machine: what ./profile_costs writes.

Three slices are timed: a middle layer, the first layer with the embedding, whose part is the difference, and
the head alone. Curves over tokens come from sequences of 32, the curve over squared lengths from what a
single long sequence costs beyond them (on a GPU: a full micro-batch of such sequences), the head's from the
number of supervised rows. Every time is the lower quartile of a few runs; on a GPU a run is several jobs
queued in a row. Ends the program where there is no memory for it.
*/
#pragma once

#include "../../llmc/gpt2.h"
#include "../plan/cost_model.h"

typedef struct {
    ModelConfig config;
    int32_t max_tokens;      // largest micro-batch measured
    int32_t max_seq_tokens;  // longest sequence, at most max_tokens and config.max_seq_len
    int64_t budget_ns;       // spent on one point at most, after its first run
} ModelProfile;

// Called before every point: ranks that measure together begin it together. NULL: alone.
typedef void ModelProfileSync(void* ctx);

// Times only: time_ns of every part and job, update_ns_per_byte. Bytes, rates of transfers and the rest stay
// as they are.
void model_profile_measure(CostModel* out, const ModelProfile* about, OpsContext* ops, ModelProfileSync* sync,
                           void* ctx);

// Full recompute costs another forward: from mode none to mode full.
void model_profile_set_recompute(CostModel* out);
