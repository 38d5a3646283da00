#include "stock_answer.h"

#include <stdlib.h>

#include "../llmc/llmc_error.h"

int stock_answer(Model* model, const StockQuestion* q, int32_t* out) {
    const ModelKind* kind = model->config.kind;
    const bool two_sides = kind->has_decoder;
    int most = two_sides || q->num_prompt + q->max_tokens <= model->config.max_seq_len
                   ? q->max_tokens
                   : model->config.max_seq_len - q->num_prompt;
    int32_t slot = 0, num_before = 0, num_enc = q->num_prompt, next = q->start_token, position = 0;
    int32_t cu_seqlens[2] = {0, q->num_prompt}, dec_cu_seqlens[2] = {0, 1};
    int32_t* positions = (int32_t*)llmc_alloc(sizeof(int32_t) * (size_t)q->num_prompt, "positions");
    for (int i = 0; i < q->num_prompt; i++) { positions[i] = i; }
    ModelBatch batch = {.num_seqs = 1,
                        .num_tokens = q->num_prompt,
                        .num_rows = 1,
                        .max_seq_tokens = q->num_prompt,
                        .cu_seqlens = cu_seqlens,
                        .tokens = q->prompt,
                        .positions = positions,
                        .num_dec_tokens = two_sides ? 1 : 0,
                        .max_dec_seq_tokens = two_sides ? 1 : 0,
                        .dec_cu_seqlens = dec_cu_seqlens,
                        .dec_tokens = &next,
                        .dec_positions = &position};
    ModelCache cache = {.num_slots = 1,
                        .max_tokens = two_sides ? q->max_tokens + 1 : q->num_prompt + q->max_tokens,
                        .max_enc_tokens = two_sides ? q->num_prompt : 0,
                        .slots = &slot,
                        .num_before = &num_before,
                        .num_enc = &num_enc};
    void* memory = ops_alloc(model->ops, (size_t)kind->cache_bytes(model, &cache), "keys and values");
    void* scratch = ops_alloc(model->ops, (size_t)kind->infer_bytes(model, &batch), "an answer");
    cache.memory = memory;
    int num_said = 0;
    while (num_said < most) {
        int32_t token;
        kind->infer(model, &batch, &cache, NULL, NULL, scratch, &token);
        if (token == q->end_token) { break; }
        out[num_said++] = next = token;
        num_before += two_sides ? 1 : batch.num_tokens;
        position = num_before;
        batch.num_tokens = batch.max_seq_tokens = cu_seqlens[1] = two_sides ? 0 : 1;
        batch.tokens = &next;
        batch.positions = &position;
    }
    ops_sync(model->ops);
    ops_release(model->ops, scratch);
    ops_release(model->ops, memory);
    free(positions);
    return num_said;
}
