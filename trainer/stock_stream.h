/*
stock_stream.h -- batches of one shape, for the stock trainer: rows x -t consecutive tokens (token_stream.h),
or for an encoder-decoder rows of an input and a target, padded to -t and --target-tokens (pair_stream.h).

A failure ends the program with one message.
*/
#pragma once

#include "../dataloader/pair_stream.h"
#include "../dataloader/token_stream.h"
#include "../llmc/model.h"
#include "../llmc/train_flags.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct {
    TokenStream* tokens;  // one of the two
    PairStream* pairs;
    int rows, seq_tokens, target_tokens;
    int32_t *inputs, *targets, *positions, *every_row, *cu_seqlens;  // one allocation; of `tokens`
    uint32_t* keys;                                                  // of dropout; NULL without
    uint64_t seed;
} StockStream;

void stock_stream_open(StockStream* out, const TrainFlags* flags, const ModelKind* kind, const char* pattern,
                       bool shuffle, uint64_t seed);
void stock_stream_close(StockStream* stream);  // an all-zero one is fine

// The largest counts that a batch can have, without arrays.
ModelBatch stock_stream_shape(const StockStream* stream);
// Arrays are the stream's until the next call. loss_scale is 0.
ModelBatch stock_stream_next(StockStream* stream);
void stock_stream_reset(StockStream* stream);
int64_t stock_stream_position(const StockStream* stream);  // batches given out
void stock_stream_seek(StockStream* stream, int64_t position);

int64_t stock_stream_num_batches(const StockStream* stream);  // of one epoch
int64_t stock_stream_num_tokens(const StockStream* stream);   // of all files, or run through the model
int32_t stock_stream_vocab(const StockStream* stream);
uint64_t stock_stream_vocab_hash(const StockStream* stream);  // 0: unknown
int32_t stock_stream_eot_token(const StockStream* stream);
int32_t stock_stream_pad_token(const StockStream* stream);    // -1: none
int32_t stock_stream_start_token(const StockStream* stream);  // of a decoder
int32_t stock_stream_tokenizer(const StockStream* stream);
SampleShards* stock_stream_shards(StockStream* stream);  // the files

#ifdef __cplusplus
}
#endif
