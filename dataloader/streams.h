/*
token_stream.h -- llm.c's fixed-length loader, for the stock trainer without the plugin.

A batch is B*T + 1 consecutive tokens of one file: inputs are the first B*T, targets the last B*T. The next
batch begins B*T tokens later; what is left at the end of a file is dropped, and behind the last file the next
epoch begins with the first. Shuffled, every epoch takes the files, and the batches of each, in a fresh
permutation (shuffle.h). Reads llm.c's token files and sample files, whose samples follow one another in file
order.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "loader.h"
#include "sample_file.h"
#include "../dynapipe_plugin/dynapipe.h"
#include "../util/status.h"

typedef struct TokenStream TokenStream;

// `pattern`: a glob; every file must have B*T + 1 tokens.
Status token_stream_open(TokenStream** out, const char* pattern, int32_t B, int32_t T, bool shuffle,
                         uint64_t seed);
void token_stream_close(TokenStream* stream);  // NULL is fine

// Fill inputs (B, T) and targets (B, T).
Status token_stream_next_batch(TokenStream* stream, int32_t* inputs, int32_t* targets);
void token_stream_reset(TokenStream* stream);

// The position is the number of batches given out since the start; seek takes any number >= 0.
int64_t token_stream_position(const TokenStream* stream);
void token_stream_seek(TokenStream* stream, int64_t position);

int64_t token_stream_num_batches(const TokenStream* stream);  // of one epoch
int64_t token_stream_num_tokens(const TokenStream* stream);   // of all files
int32_t token_stream_vocab(const TokenStream* stream);
uint64_t token_stream_vocab_hash(const TokenStream* stream);  // 0: unknown
int32_t token_stream_eot_token(const TokenStream* stream);
int32_t token_stream_tokenizer(const TokenStream* stream);  // SampleTokenizer
SampleShards* token_stream_shards(TokenStream* stream);     // the files; for sample_verify.h

// --- pair_stream --------------------
/*
pair_stream.h -- inputs and targets in batches of one shape, for the stock trainer of encoder-decoder models.

A batch is `rows` samples, each padded to max_seq_tokens and its target to max_target_tokens (collate.h: what
a model reads of them, and what is padding). Samples follow one another in file order, or shuffled, every
epoch in a fresh permutation (shuffle.h) of all of them, whatever their task. An epoch's end does not end a
batch.
*/

typedef struct PairStream PairStream;

// `pattern`: a glob. Of the options, batch_tokens, encoder_decoder and the mixture's are not looked at.
Status pair_stream_open(PairStream** out, const char* pattern, int32_t rows, const LoaderOptions* options);
void pair_stream_close(PairStream* stream);  // NULL is fine

// The next batch: num_seqs = rows, num_tokens = rows * max_seq_tokens, num_dec_tokens = rows *
// max_target_tokens; num_rows are the target tokens that are not padding. loss_scale is 0: the caller's. The
// arrays are the stream's until the next call.
Status pair_stream_next_batch(PairStream* stream, DynapipeBatch* out);
void pair_stream_reset(PairStream* stream);

// The position is the number of batches given out since the start; seek takes any number >= 0.
int64_t pair_stream_position(const PairStream* stream);
void pair_stream_seek(PairStream* stream, int64_t position);

int64_t pair_stream_num_batches(const PairStream* stream);   // that an epoch fills, at least 1
const Loader* pair_stream_loader(const PairStream* stream);  // its samples: vocabulary, counts, reading
SampleShards* pair_stream_shards(PairStream* stream);        // its files; for sample_verify.h
