/*
t5_chain.h -- a T5 cut into slices, and all jobs of one micro-batch over them, in memory full of NaN; and
small micro-batches from samples that are functions of a seed.
*/
#pragma once

#include "t5_golden.h"

// --- slices -----------------------------------------------------------------------------------------------

enum { T5_CHAIN_MAX_SLICES = 9 };

typedef struct {
    Model model;
    void *acts, *scratch;
    floatX *out, *din;  // boundary behind, gradient of the one before
} T5Stage;

void t5_stage_open(T5Stage* stage, const ModelConfig* config, int begin, int end, bool is_last, float dropout,
                   const ModelBatch* batch, OpsContext* ops);
void t5_stage_close(T5Stage* stage);

enum {
    T5_CHAIN_RECOMPUTE = 1,  // forward without KEEP first
    T5_CHAIN_W_AT_ONCE = 2   // W right behind its B; else after all of B, first slice first
};

// Slices [cuts[i], cuts[i + 1]), a 0 behind the last cut, of the model with t5_golden_params: losses
// (num_rows); gradients are added to `grads`, which lies as a checkpoint.
void t5_chain_run(const ModelConfig* config, float dropout, const ModelBatch* batch, const int* cuts,
                  int options, float* losses, float* grads, OpsContext* ops);

// Worst relative error of any tensor of two gradients that lie as a checkpoint; of losses.
double t5_chain_worst_grad(const ModelConfig* config, const float* a, const float* b, OpsContext* ops);
double t5_chain_worst_loss(const float* a, const float* b, int num_rows);

void* t5_chain_poisoned(int64_t num_bytes);  // full of NaN; free()
float* t5_chain_zeros(int64_t num_values);

// --- samples ----------------------------------------------------------------------------------------------

enum { T5_SAMPLES_MAX_SEQS = 12, T5_SAMPLES_MAX_TOKENS = 2400 };

typedef struct {
    ModelBatch batch;  // points at what follows
    int32_t cu_seqlens[T5_SAMPLES_MAX_SEQS + 1], dec_cu_seqlens[T5_SAMPLES_MAX_SEQS + 1];
    int32_t seq_lens[T5_SAMPLES_MAX_SEQS], dec_seq_lens[T5_SAMPLES_MAX_SEQS];
    int32_t tokens[T5_SAMPLES_MAX_TOKENS], dec_tokens[T5_SAMPLES_MAX_TOKENS];
    int32_t rows[T5_SAMPLES_MAX_TOKENS], targets[T5_SAMPLES_MAX_TOKENS];
    uint32_t keys[T5_SAMPLES_MAX_TOKENS], dec_keys[T5_SAMPLES_MAX_TOKENS];
} T5Samples;

typedef struct {
    uint64_t seed;
    int id, num_enc, num_dec, vocab;
    int percent_supervised;
} T5Sample;

void t5_samples_begin(T5Samples* out);
// Its tokens, targets and keys depend on the sample alone. Padded with tokens up to these lengths; a batch
// with padding has lengths of all its sequences.
void t5_samples_add(T5Samples* out, const T5Sample* sample, int pad_enc, int pad_dec);
