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
#include "../util/status.h"
#include "sample_shards.h"

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
