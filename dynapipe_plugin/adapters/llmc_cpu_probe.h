/*
llmc_cpu_probe.h -- is a slice what their trainer computes? Before the model is cut: two short made-up
sequences of different lengths through their own gpt2_forward() and gpt2_backward(), each alone as B = 1, and
through the slice of all blocks, one behind the other as B = n, T = 1. Part of llmc_cpu_main.h.

Finds in every run what --check-model cannot see as it compares slices with slices: an attention of another
name, rotary positions, a loss of their own, whatever knows of T and is not wrapped by llmc_cpu.h.
*/
#pragma once
#ifdef DYNAPIPE

#include <math.h>
#include "llmc_cpu_model.h"

enum { DYNAPIPE_PROBE_SEQS = 2, DYNAPIPE_PROBE_LONG = 9, DYNAPIPE_PROBE_SHORT = 6 };
enum { DYNAPIPE_PROBE_TOKENS = DYNAPIPE_PROBE_LONG + DYNAPIPE_PROBE_SHORT };

typedef struct {
    DynapipeBatch batch;  // every token of it is supervised
    int32_t cu_seqlens[DYNAPIPE_PROBE_SEQS + 1];
    int32_t tokens[DYNAPIPE_PROBE_TOKENS], positions[DYNAPIPE_PROBE_TOKENS], rows[DYNAPIPE_PROBE_TOKENS];
    int32_t targets[DYNAPIPE_PROBE_TOKENS], row_tasks[DYNAPIPE_PROBE_TOKENS];
    double theirs[DYNAPIPE_PROBE_SEQS], ours[DYNAPIPE_PROBE_SEQS];          // mean losses of the sequences
    double their_norm[DYNAPIPE_CPU_PARAMS], our_norm[DYNAPIPE_CPU_PARAMS];  // of gradients, by tensor
    DynapipeCpuRange range;                                                 // all blocks, their parameters
} DynapipeCpuProbe;

// --- what is computed ------------------------------------------------------------------------------------

static inline void dynapipe_probe_make_up(DynapipeCpuProbe* probe, int num_seqs) {
    static const int lengths[DYNAPIPE_PROBE_SEQS] = {DYNAPIPE_PROBE_LONG, DYNAPIPE_PROBE_SHORT};
    const GPT2Config* config = &dynapipe_cpu_model.config;
    DynapipeBatch* batch = &probe->batch;
    uint32_t noise = 1;
    memset(batch, 0, sizeof *batch);
    for (int i = 0; i < num_seqs; i++) {
        int T = lengths[i] < config->max_seq_len ? lengths[i] : config->max_seq_len, n = batch->num_tokens;
        for (int t = 0; t < T; t++, n++) {
            noise = noise * 1664525u + 1013904223u;
            probe->tokens[n] = (int32_t)((noise >> 8) % (uint32_t)config->vocab_size);
            noise = noise * 1664525u + 1013904223u;
            probe->targets[n] = (int32_t)((noise >> 8) % (uint32_t)config->vocab_size);
            probe->positions[n] = t;
            probe->rows[n] = n;
        }
        batch->num_tokens = probe->cu_seqlens[i + 1] = n;
        batch->num_squares += T * T;
        batch->max_seq_tokens = T > batch->max_seq_tokens ? T : batch->max_seq_tokens;
    }
    batch->num_seqs = num_seqs;
    batch->num_rows = batch->num_tokens;
    batch->cu_seqlens = probe->cu_seqlens;
    batch->tokens = probe->tokens;
    batch->positions = probe->positions;
    batch->rows = probe->rows;
    batch->targets = probe->targets;
    batch->row_tasks = probe->row_tasks;
    batch->loss_scale = 1.0f / (float)batch->num_rows;
}

static inline void dynapipe_probe_norms(double* out, const DynapipeCpuProbe* probe) {
    const DynapipeSlice* slice = &probe->range.slice;
    for (int i = 0; i < DYNAPIPE_CPU_PARAMS; i++) {
        double squares = 0;
        for (int64_t k = slice->begin[i]; k < slice->begin[i] + slice->count[i]; k++) {
            squares += (double)probe->range.model.grads_memory[k] * probe->range.model.grads_memory[k];
        }
        out[i] = sqrt(squares);
    }
}

// One sequence alone, as ever, on a copy of their struct, so that theirs stays as unused as it is. Of the
// first the gradients, too.
static inline void dynapipe_probe_theirs(DynapipeCpuProbe* probe, const GPT2* whole, int i) {
    GPT2 model = *whole;
    int t = probe->cu_seqlens[i], T = probe->cu_seqlens[i + 1] - t;
    model.acts_memory = model.grads_memory = model.grads_acts_memory = NULL;
    gpt2_forward(&model, probe->tokens + t, probe->targets + t, 1, (size_t)T);
    probe->theirs[i] = (double)model.mean_loss;
    if (i == 0) {
        gpt2_backward(&model);
        probe->range.model.grads_memory = model.grads_memory;
        dynapipe_probe_norms(probe->their_norm, probe);
    }
    free(model.acts_memory);
    free(model.grads_acts_memory);
    if (model.inputs != whole->inputs) { free(model.inputs); }
    if (model.targets != whole->targets) { free(model.targets); }
}

// Returns 0, or what forward() or backward() do.
static inline int dynapipe_probe_ours(DynapipeCpuProbe* probe, void* acts, void* scratch, int has_gradients) {
    const DynapipeBatch* batch = &probe->batch;
    float losses[DYNAPIPE_PROBE_TOKENS];
    int flags = DYNAPIPE_FORWARD_HEAD | (has_gradients ? DYNAPIPE_FORWARD_KEEP : 0);
    if (dynapipe_cpu_forward(&probe->range, batch, NULL, NULL, acts, scratch, losses, flags) != 0) {
        return 1;
    }
    for (int i = 0; i < batch->num_seqs; i++) {
        int T = probe->cu_seqlens[i + 1] - probe->cu_seqlens[i];
        probe->ours[i] = 0;
        for (int t = probe->cu_seqlens[i]; t < probe->cu_seqlens[i + 1]; t++) {
            probe->ours[i] += (double)losses[t] / T;
        }
    }
    if (!has_gradients) { return 0; }
    dynapipe_cpu_zero_gradients(&probe->range);
    if (dynapipe_cpu_backward(&probe->range, batch, NULL, acts, NULL, NULL, scratch) != 0) { return 1; }
    dynapipe_probe_norms(probe->our_norm, probe);
    return 0;
}

// --- what is compared ------------------------------------------------------------------------------------

static inline int dynapipe_probe_losses(const DynapipeCpuProbe* probe) {
    for (int i = 0; i < probe->batch.num_seqs; i++) {
        if (dynapipe_llmc_is_close(probe->ours[i], probe->theirs[i], 1e-4 * fabs(probe->theirs[i]))) {
            continue;
        }
        snprintf(
            dynapipe_cpu_model.why, sizeof dynapipe_cpu_model.why,
            "gpt2_forward() of a sequence has the loss %.7g by itself, %.7g as a slice's micro-batch (%d "
            "sequences, T = 1): it is not computed token by token but for the calls of llm.c ---> "
            "doc/porting.md, CPU trainer",
            probe->theirs[i], probe->ours[i], probe->batch.num_seqs);
        return 1;
    }
    return 0;
}

static inline int dynapipe_probe_gradients(const DynapipeCpuProbe* probe) {
    double total = 0;
    for (int i = 0; i < DYNAPIPE_CPU_PARAMS; i++) { total += probe->their_norm[i] * probe->their_norm[i]; }
    for (int i = 0; i < DYNAPIPE_CPU_PARAMS; i++) {
        double limit = 1e-3 * probe->their_norm[i] + 1e-6 * sqrt(total);
        if (dynapipe_llmc_is_close(probe->our_norm[i], probe->their_norm[i], limit)) { continue; }
        snprintf(
            dynapipe_cpu_model.why, sizeof dynapipe_cpu_model.why,
            "gpt2_backward() of a sequence has gradients of norm %.7g for parameter tensor %d by itself, "
            "%.7g as a slice's micro-batch (T = 1) ---> doc/porting.md, CPU trainer",
            probe->their_norm[i], i, probe->our_norm[i]);
        return 1;
    }
    return 0;
}

// Theirs comes behind ours: a call that is missing there is known before.
static inline int dynapipe_probe_with(DynapipeCpuProbe* probe, const GPT2* whole, void* acts, void* scratch) {
    probe->range.model.grads_memory = (float*)calloc(whole->num_parameters, sizeof(float));
    if (probe->range.model.grads_memory == NULL) { return 1; }
    dynapipe_cpu_point_params(&probe->range.model.grads, &probe->range.slice,
                              probe->range.model.grads_memory);
    dynapipe_probe_make_up(probe, 1);
    int code = dynapipe_probe_ours(probe, acts, scratch, 1);
    free(probe->range.model.grads_memory);
    probe->range.model.grads_memory = NULL;
    if (code != 0) { return code; }
    dynapipe_probe_theirs(probe, whole, 0);
    free(probe->range.model.grads_memory);
    if (dynapipe_probe_losses(probe) != 0 || dynapipe_probe_gradients(probe) != 0) { return 1; }
    dynapipe_probe_make_up(probe, DYNAPIPE_PROBE_SEQS);
    if (dynapipe_probe_ours(probe, acts, scratch, 0) != 0) { return 1; }
    dynapipe_probe_theirs(probe, whole, 1);
    return dynapipe_probe_losses(probe);
}

// Behind dynapipe_cpu_describe(). Returns 0, or 1 and dynapipe_cpu_model.why. Takes a forward and backward of
// 9 tokens twice, a forward of 15 and of 6, and for so long the memory of the model's gradients.
static inline int dynapipe_probe(const GPT2* whole) {
    DynapipeCpuProbe* probe = (DynapipeCpuProbe*)calloc(1, sizeof(DynapipeCpuProbe));
    DynapipeRange all;
    memset(&all, 0, sizeof all);
    all.end = dynapipe_cpu_model.config.num_layers + 2;
    if (probe == NULL) { return 1; }
    probe->range.slice = dynapipe_tensors_slice(&dynapipe_cpu_model.tensors, all);
    probe->range.model = *whole;
    dynapipe_probe_make_up(probe, DYNAPIPE_PROBE_SEQS);
    int head = DYNAPIPE_FORWARD_HEAD, keep = head | DYNAPIPE_FORWARD_KEEP;
    int64_t kept_bytes = dynapipe_cpu_acts_bytes(&probe->range, &probe->batch, keep);
    int64_t passing_bytes = dynapipe_cpu_acts_bytes(&probe->range, &probe->batch, head);
    void* acts = malloc((size_t)(kept_bytes > passing_bytes ? kept_bytes : passing_bytes));
    void* scratch = malloc((size_t)dynapipe_cpu_scratch_bytes(&probe->range, &probe->batch));
    int code = acts == NULL || scratch == NULL ? 1 : dynapipe_probe_with(probe, whole, acts, scratch);
    free(acts);
    free(scratch);
    free(probe);
    return code;
}

#endif
