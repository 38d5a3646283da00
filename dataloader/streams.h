/*
streams.h -- fixed-shape batches for the stock trainer without the plugin: llm.c's consecutive tokens, or
pairs of input and target for encoder-decoder models.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "../dynapipe_plugin/dynapipe.h"
#include "../util/status.h"
#include "loader.h"

typedef struct {
    int64_t position;     // batches returned since the start; may be set to any number >= 0
    int64_t num_batches;  // of an epoch, at least 1
    int64_t num_tokens;   // of all files
    int32_t vocab, eot_token, pad_token;
    int32_t tokenizer;  // SampleTokenizer
    uint64_t vocab_hash;
    SampleShards* shards;
} StreamInfo;

typedef struct TokenStream TokenStream;
typedef struct PairStream PairStream;

// A batch is B*T + 1 consecutive tokens of one file: inputs are the first B*T, targets the last B*T. The
// next batch begins B*T tokens later. A remainder at the end of a file is dropped, and after the last file
// the next epoch begins. Shuffled, every epoch permutes the files and the batches of each. Reads llm.c's
// token files and sample files, whose samples are concatenated in file order. `pattern`: a glob; every file
// must have B*T + 1 tokens.
Status token_stream_open(TokenStream** out, const char* pattern, int32_t B, int32_t T, bool shuffle,
                         uint64_t seed);
void token_stream_close(TokenStream* stream);  // NULL is allowed
StreamInfo* token_stream_info(TokenStream* stream);
Status token_stream_next_batch(TokenStream* stream, int32_t* inputs, int32_t* targets);  // (B, T) each

// A batch is `rows` samples, each padded to max_seq_tokens and its target to max_target_tokens (collate.h).
// Samples are in file order or shuffled over all tasks, every epoch anew. A batch may span two epochs.
// batch_tokens, encoder_decoder and the mixture's options are ignored.
Status pair_stream_open(PairStream** out, const char* pattern, int32_t rows, const LoaderOptions* options);
void pair_stream_close(PairStream* stream);  // NULL is allowed
StreamInfo* pair_stream_info(PairStream* stream);
const Loader* pair_stream_loader(const PairStream* stream);  // its samples
// The next batch: num_seqs = rows, num_tokens = rows * max_seq_tokens, num_dec_tokens = rows *
// max_target_tokens; num_rows counts target tokens without padding. The caller sets loss_scale. The arrays
// are valid until the next call.
Status pair_stream_next_batch(PairStream* stream, DynapipeBatch* out);
