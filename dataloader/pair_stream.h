/*
pair_stream.h -- inputs and targets in batches of one shape, for the stock trainer of encoder-decoder models.

A batch is `rows` samples, each padded to max_seq_tokens and its target to max_target_tokens (collate.h: what
a model reads of them, and what is padding). Samples follow one another in file order, or shuffled, every
epoch in a fresh permutation (shuffle.h) of all of them, whatever their task. An epoch's end does not end a
batch.
*/
#pragma once

#include <stdint.h>
#include "../util/status.h"
#include "../dynapipe_plugin/dynapipe.h"
#include "loader.h"

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
