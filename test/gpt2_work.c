// gpt2_work.c -- see gpt2_work.h.
#include "gpt2_work.h"

#include <stdlib.h>
#include <string.h>

#include "../util/numbers.h"

const ModelConfig gpt2_work_config = {.kind = &gpt2_kind,
                                      .max_seq_len = 4 * GPT2_WORK_LONGEST,
                                      .vocab = 131,
                                      .num_layers = 5,
                                      .num_heads = 3,
                                      .channels = 36,
                                      .padded_vocab = 256};

// Token `i` of sample `id`, also the target of row i - 1.
static int32_t token_of(const Gpt2Work* work, int32_t id, int32_t i) {
    Rng rng = rng_seed(work->seed + 1000 * (uint64_t)id + (uint64_t)i);
    return (int32_t)rng_below(&rng, (uint32_t)gpt2_work_config.vocab);
}

// Windows [begin, end) of a plan as the model reads them; the last rows of each sample are supervised.
// Padding only where asked for.
static DynapipeBatch batch_make(const Gpt2Work* work, int32_t begin, int32_t end, bool padded, Arena* arena) {
    const Plan* plan = work->plan;
    int32_t most = 0;
    for (int32_t w = begin; w < end; w++) { most += plan->sequences[w].enc_tokens; }
    int32_t *cu_seqlens = ARENA_NEW(arena, int32_t, end - begin + 1),
            *tokens = ARENA_NEW(arena, int32_t, most);
    int32_t *positions = ARENA_NEW(arena, int32_t, most), *rows = ARENA_NEW(arena, int32_t, most);
    int32_t *targets = ARENA_NEW(arena, int32_t, most), num_tokens = 0, num_rows = 0, longest = 0;
    int64_t num_squares = 0;
    for (int32_t w = begin; w < end; w++) {
        const PlanSequence* window = &plan->sequences[w];
        int32_t first = num_tokens;
        for (int32_t g = window->segment_begin; g < window->segment_end; g++) {
            int32_t id = plan->segments[g].sample_idx, n = work->samples[id].enc_tokens;
            for (int32_t i = 0; i < n; i++, num_tokens++) {
                tokens[num_tokens] = token_of(work, id, i);
                if (i < n - work->samples[id].supervised_tokens) { continue; }
                rows[num_rows] = num_tokens;
                targets[num_rows++] = token_of(work, id, i + 1);
            }
        }
        while (padded && num_tokens - first < window->enc_tokens) {
            tokens[num_tokens++] = gpt2_work_config.vocab - 1;
        }
        for (int32_t i = first; i < num_tokens; i++) { positions[i] = i - first; }
        cu_seqlens[w - begin + 1] = num_tokens;
        longest = num_tokens - first > longest ? num_tokens - first : longest;
        num_squares += (int64_t)(num_tokens - first) * (num_tokens - first);
    }
    return (DynapipeBatch){.num_seqs = end - begin,
                           .num_tokens = num_tokens,
                           .num_rows = num_rows,
                           .max_seq_tokens = longest,
                           .num_squares = num_squares,
                           .cu_seqlens = cu_seqlens,
                           .tokens = tokens,
                           .positions = positions,
                           .rows = rows,
                           .targets = targets};
}

static float loss_scale(const Gpt2Work* work) {
    return work->num_rows > 0 ? (float)(1.0 / (double)work->num_rows) : 0.0f;
}

Gpt2Work gpt2_work_make(const Plan* plan, const PlanSample* samples, uint64_t seed, Arena* arena) {
    Gpt2Work work = {.plan = plan,
                     .samples = samples,
                     .seed = seed,
                     .batches = ARENA_NEW(arena, DynapipeBatch, plan->M),
                     .losses = ARENA_NEW(arena, float*, plan->M)};
    for (int32_t m = 0; m < plan->M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[m];
        work.batches[m] = batch_make(&work, mb->sequence_begin, mb->sequence_end, true, arena);
        work.losses[m] = ARENA_NEW(arena, float, work.batches[m].num_rows);
        work.num_rows += work.batches[m].num_rows;
    }
    for (int32_t m = 0; m < plan->M; m++) { work.batches[m].loss_scale = loss_scale(&work); }
    return work;
}

void* gpt2_work_memory(int64_t num_bytes) {
    size_t rounded = ((size_t)num_bytes / PLAN_BUFFER_ALIGN + 1) * PLAN_BUFFER_ALIGN;
    void* memory = aligned_alloc(PLAN_BUFFER_ALIGN, rounded);
    memset(memory, 0xff, rounded);
    return memory;
}

void gpt2_work_run_plainly(Model* model, const Gpt2Work* work, float** losses, Arena* arena) {
    for (int32_t m = 0; m < work->plan->M; m++) {
        const PlanMicrobatch* mb = &work->plan->mbs[m];
        float* next = losses[m] = ARENA_NEW(arena, float, work->batches[m].num_rows);
        for (int32_t w = mb->sequence_begin; w < mb->sequence_end; w++) {
            DynapipeBatch b = batch_make(work, w, w + 1, false, arena);
            b.loss_scale = loss_scale(work);
            const DynapipeModel_v1* api = &dynapipe_llmc_model;
            void* acts = gpt2_work_memory(api->acts_bytes(model, &b, MODEL_KEEP | MODEL_HEAD));
            void* scratch = gpt2_work_memory(api->scratch_bytes(model, &b));
            api->forward(model, &b, NULL, NULL, acts, scratch, next, MODEL_KEEP | MODEL_HEAD);
            api->backward_inputs(model, &b, NULL, acts, NULL, NULL, scratch);
            api->backward_weights(model, &b, acts, NULL, scratch);
            next += b.num_rows;
            free(acts);
            free(scratch);
        }
    }
}
