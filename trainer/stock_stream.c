#include "stock_stream.h"

#include <stdio.h>
#include <stdlib.h>

#include "../dataloader/collate.h"
#include "../llmc/llmc_error.h"

static void check(Status status) {
    if (status == STATUS_OK) { return; }
    fprintf(stderr, "error: %s\n", status_message());
    exit(EXIT_FAILURE);
}

static void open_tokens(StockStream* s, const char* pattern, bool shuffle, uint64_t seed) {
    size_t n = (size_t)s->rows * (size_t)s->seq_tokens;
    check(token_stream_open(&s->tokens, pattern, s->rows, s->seq_tokens, shuffle, seed));
    s->inputs = llmc_alloc((4 * n + (size_t)s->rows + 1) * sizeof(int32_t), "a batch");
    s->targets = s->inputs + n;
    s->positions = s->targets + n;
    s->every_row = s->positions + n;
    s->cu_seqlens = s->every_row + n;
    for (size_t i = 0; i < n; i++) {
        s->positions[i] = (int32_t)(i % (size_t)s->seq_tokens);
        s->every_row[i] = (int32_t)i;
    }
    for (int b = 0; b <= s->rows; b++) { s->cu_seqlens[b] = b * s->seq_tokens; }
}

void stock_stream_open(StockStream* out, const TrainFlags* flags, const ModelKind* kind, const char* pattern,
                       bool shuffle, uint64_t seed) {
    *out = (StockStream){.rows = flags->rows, .seq_tokens = flags->seq_tokens, .seed = seed};
    if (!kind->has_decoder) {
        open_tokens(out, pattern, shuffle, seed);
        size_t n = (size_t)out->rows * (size_t)out->seq_tokens;
        if (flags->dropout > 0) { out->keys = llmc_alloc(n * sizeof(uint32_t), "keys of dropout"); }
        return;
    }
    out->target_tokens = flags->target_tokens > 0 ? flags->target_tokens : flags->seq_tokens;
    LoaderOptions options = {.batch_tokens = 1,
                             .max_seq_tokens = out->seq_tokens,
                             .encoder_decoder = true,
                             .max_target_tokens = out->target_tokens,
                             .temperature = 1,
                             .seed = seed,
                             .shuffle = shuffle};
    check(pair_stream_open(&out->pairs, pattern, out->rows, &options));
}

void stock_stream_close(StockStream* s) {
    token_stream_close(s->tokens);
    pair_stream_close(s->pairs);
    free(s->inputs);
    free(s->keys);
    *s = (StockStream){0};
}

ModelBatch stock_stream_shape(const StockStream* s) {
    ModelBatch batch = {.num_seqs = s->rows,
                        .num_tokens = s->rows * s->seq_tokens,
                        .num_rows = s->rows * (s->pairs != NULL ? s->target_tokens : s->seq_tokens),
                        .max_seq_tokens = s->seq_tokens};
    if (s->pairs != NULL) {
        batch.num_dec_tokens = s->rows * s->target_tokens;
        batch.max_dec_seq_tokens = s->target_tokens;
    }
    return batch;
}

static ModelBatch next_pairs(StockStream* s) {
    DynapipeBatch b;
    check(pair_stream_next_batch(s->pairs, &b));
    return (ModelBatch){.num_seqs = b.num_seqs,
                        .num_tokens = b.num_tokens,
                        .num_rows = b.num_rows,
                        .max_seq_tokens = b.max_seq_tokens,
                        .cu_seqlens = b.cu_seqlens,
                        .tokens = b.tokens,
                        .positions = b.positions,
                        .rows = b.rows,
                        .targets = b.targets,
                        .seq_lens = b.seq_lens,
                        .token_keys = b.token_keys,
                        .num_dec_tokens = b.num_dec_tokens,
                        .max_dec_seq_tokens = b.max_dec_seq_tokens,
                        .dec_cu_seqlens = b.dec_cu_seqlens,
                        .dec_tokens = b.dec_tokens,
                        .dec_positions = b.dec_positions,
                        .dec_seq_lens = b.dec_seq_lens,
                        .dec_token_keys = b.dec_token_keys};
}

// Of the batch to come, a row being a sample.
static void fill_keys(StockStream* s) {
    const CollateParams params = {.seed = s->seed, .step = token_stream_position(s->tokens)};
    for (int b = 0; b < s->rows && s->keys != NULL; b++) {
        uint32_t* row = s->keys + (size_t)b * (size_t)s->seq_tokens;
        for (int t = 0; t < s->seq_tokens; t++) { row[t] = collate_token_key(&params, b, t, false); }
    }
}

ModelBatch stock_stream_next(StockStream* s) {
    if (s->pairs != NULL) { return next_pairs(s); }
    fill_keys(s);
    check(token_stream_next_batch(s->tokens, s->inputs, s->targets));
    ModelBatch batch = stock_stream_shape(s);
    batch.cu_seqlens = s->cu_seqlens;
    batch.tokens = s->inputs;
    batch.positions = s->positions;
    batch.rows = s->every_row;
    batch.targets = s->targets;
    batch.token_keys = s->keys;
    return batch;
}

void stock_stream_reset(StockStream* s) {
    s->pairs != NULL ? pair_stream_reset(s->pairs) : token_stream_reset(s->tokens);
}

int64_t stock_stream_position(const StockStream* s) {
    return s->pairs != NULL ? pair_stream_position(s->pairs) : token_stream_position(s->tokens);
}

void stock_stream_seek(StockStream* s, int64_t position) {
    s->pairs != NULL ? pair_stream_seek(s->pairs, position) : token_stream_seek(s->tokens, position);
}

int64_t stock_stream_num_batches(const StockStream* s) {
    return s->pairs != NULL ? pair_stream_num_batches(s->pairs) : token_stream_num_batches(s->tokens);
}

int64_t stock_stream_num_tokens(const StockStream* s) {
    return s->pairs != NULL ? loader_num_tokens(pair_stream_loader(s->pairs))
                            : token_stream_num_tokens(s->tokens);
}

int32_t stock_stream_vocab(const StockStream* s) {
    return s->pairs != NULL ? loader_vocab(pair_stream_loader(s->pairs)) : token_stream_vocab(s->tokens);
}

uint64_t stock_stream_vocab_hash(const StockStream* s) {
    return s->pairs != NULL ? loader_vocab_hash(pair_stream_loader(s->pairs))
                            : token_stream_vocab_hash(s->tokens);
}

int32_t stock_stream_eot_token(const StockStream* s) {
    return s->pairs != NULL ? loader_eot_token(pair_stream_loader(s->pairs))
                            : token_stream_eot_token(s->tokens);
}

int32_t stock_stream_pad_token(const StockStream* s) {
    return s->pairs != NULL ? loader_pad_token(pair_stream_loader(s->pairs)) : -1;
}

int32_t stock_stream_start_token(const StockStream* s) {
    int32_t pad = stock_stream_pad_token(s);
    return pad >= 0 ? pad : stock_stream_eot_token(s);
}

int32_t stock_stream_tokenizer(const StockStream* s) {
    return s->pairs != NULL ? loader_tokenizer(pair_stream_loader(s->pairs))
                            : token_stream_tokenizer(s->tokens);
}

SampleShards* stock_stream_shards(StockStream* s) {
    return s->pairs != NULL ? pair_stream_shards(s->pairs) : token_stream_shards(s->tokens);
}
