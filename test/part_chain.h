/*
part_chain.h -- a model of any kind laid out on several ranks, all in this process: ranks with any ranges and
shares of the head, and the jobs of one microbatch over them, in memory full of NaN.
*/
#pragma once

#include "../util/numbers.h"
#include "../llmc/model.h"

enum { PART_CHAIN_MAX_RANKS = 8, PART_CHAIN_MAX_CHUNKS = 16 };

// --- who has what ------------------------------------------------------------------------------------------

typedef struct {
    int num_ranks;
    ModelPart parts[PART_CHAIN_MAX_RANKS];
} PartLayout;

// The chain cut at random, its chunks anywhere; the head as `sharing` says, with shares of any length.
PartLayout part_layout_random(Rng* rng, const ModelConfig* config, ModelSharing sharing);

// The head of a layout whose last range feeds it: stage s from places[s] to places[s + 1].
void part_layout_share(PartLayout* layout, const ModelConfig* config, ModelSharing sharing,
                       const int32_t* places);

// --- microbatches -----------------------------------------------------------------------------------------

enum { PART_BATCH_MAX_SEQS = 6, PART_BATCH_MAX_TOKENS = 40 * PART_BATCH_MAX_SEQS };
typedef struct {
    ModelBatch batch;  // points at what follows
    int32_t cu_seqlens[PART_BATCH_MAX_SEQS + 1], dec_cu_seqlens[PART_BATCH_MAX_SEQS + 1];
    int32_t tokens[PART_BATCH_MAX_TOKENS], dec_tokens[PART_BATCH_MAX_TOKENS];
    int32_t positions[PART_BATCH_MAX_TOKENS], dec_positions[PART_BATCH_MAX_TOKENS];
    int32_t rows[PART_BATCH_MAX_TOKENS], targets[PART_BATCH_MAX_TOKENS];
    uint32_t keys[PART_BATCH_MAX_TOKENS], dec_keys[PART_BATCH_MAX_TOKENS];
} PartBatch;

// most_rows: supervised tokens, at most.
void part_batch_random(PartBatch* out, Rng* rng, const ModelConfig* config, int num_seqs, int most_rows);

// --- runs --------------------------------------------------------------------------------------------------

// Where models come from and what is done with them.
typedef struct {
    const ModelConfig* config;
    float dropout;
    OpsContext* ops;
    const float* params;  // of the whole model, as a checkpoint has them
} PartRun;

enum { PART_CHAIN_RECOMPUTE = 1 };  // forward without KEEP first
// losses (num_rows); gradients, of all copies, are added to `grads`, which lies as a checkpoint.
void part_chain_train(const PartRun* run, const PartLayout* layout, const ModelBatch* batch, int options,
                      float* losses, float* grads);
// Losses without KEEP.
void part_chain_validate(const PartRun* run, const PartLayout* layout, const ModelBatch* batch,
                         float* losses);

// Of generation: the model with its caches. `cache->memory` is not looked at.
typedef struct PartGeneration PartGeneration;
PartGeneration* part_generation_open(const PartRun* run, const PartLayout* layout, const ModelCache* about);
void part_generation_call(PartGeneration* g, const ModelBatch* batch, const ModelCache* cache, int32_t* next);
void part_generation_close(PartGeneration* g);

// Fills a rank's values from a checkpoint's.
void part_fill(Model* model, const float* params);
