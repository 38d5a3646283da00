#include "token_stream.h"

#include <stdlib.h>
#include <string.h>

#include "../util/numbers.h"
#include "shuffle.h"

struct TokenStream {
    SampleShards shards;
    int64_t batch_tokens;  // B * T
    bool shuffle;
    uint64_t seed;
    int64_t num_tokens, num_batches;  // of all files; of one epoch
    int64_t position;
    int32_t* window;  // [batch_tokens + 1]
};

static int64_t file_batches(const TokenStream* stream, int32_t f) {
    return (stream->shards.files[f].num_tokens - 1) / stream->batch_tokens;
}

static Status open_in(TokenStream* stream, const char* pattern, int32_t B, int32_t T) {
    TRY(sample_shards_open(&stream->shards, pattern, 0, true));
    for (int32_t f = 0; f < stream->shards.num_files; f++) {
        const SampleFile* file = &stream->shards.files[f];
        if (file->num_tokens < stream->batch_tokens + 1) {
            return FAIL(STATUS_BAD_OPTION,
                        "%s: %lld tokens, a batch of -b %d x -t %d needs %lld ---> lower -b or -t",
                        file->path, (long long)file->num_tokens, B, T, (long long)stream->batch_tokens + 1);
        }
        stream->num_tokens += file->num_tokens;
        stream->num_batches += file_batches(stream, f);
    }
    stream->window = malloc(((size_t)stream->batch_tokens + 1) * sizeof *stream->window);
    if (stream->window == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for a batch", pattern); }
    return STATUS_OK;
}

Status token_stream_open(TokenStream** out, const char* pattern, int32_t B, int32_t T, bool shuffle,
                         uint64_t seed) {
    if (B < 1 || T < 1 || (int64_t)B * T > INT32_MAX - 1) {
        return FAIL(STATUS_BAD_OPTION, "-b %d, -t %d: no batch ---> use 1 or more, below 2^31 tokens in all",
                    B, T);
    }
    TokenStream* stream = calloc(1, sizeof *stream);
    if (stream == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for a stream", pattern); }
    stream->batch_tokens = (int64_t)B * T;
    stream->shuffle = shuffle;
    stream->seed = seed;
    Status status = open_in(stream, pattern, B, T);
    if (status != STATUS_OK) {
        token_stream_close(stream);
        return status;
    }
    *out = stream;
    return STATUS_OK;
}

void token_stream_close(TokenStream* stream) {
    if (stream == NULL) { return; }
    sample_shards_close(&stream->shards);
    free(stream->window);
    free(stream);
}

// File and window of batch number `place` of an epoch.
static void locate(const TokenStream* stream, uint64_t epoch, int64_t place, int32_t* file, int64_t* window) {
    uint64_t key = rng_mix(stream->seed + epoch * 0x9e3779b97f4a7c15u);
    int32_t num_files = stream->shards.num_files, f = 0;
    for (int32_t i = 0; i < num_files; i++) {
        f = stream->shuffle ? (int32_t)shuffle_index((uint64_t)num_files, key, (uint64_t)i) : i;
        if (place < file_batches(stream, f)) { break; }
        place -= file_batches(stream, f);
    }
    *file = f;
    *window = place;
    if (stream->shuffle) {
        uint64_t file_key = rng_mix(key + 1 + (uint64_t)f);
        *window = (int64_t)shuffle_index((uint64_t)file_batches(stream, f), file_key, (uint64_t)place);
    }
}

Status token_stream_next_batch(TokenStream* stream, int32_t* inputs, int32_t* targets) {
    int32_t f;
    int64_t window;
    locate(stream, (uint64_t)(stream->position / stream->num_batches), stream->position % stream->num_batches,
           &f, &window);
    TRY(sample_file_read_tokens(&stream->shards.files[f], window * stream->batch_tokens,
                                stream->batch_tokens + 1, stream->window));
    memcpy(inputs, stream->window, (size_t)stream->batch_tokens * sizeof *inputs);
    memcpy(targets, stream->window + 1, (size_t)stream->batch_tokens * sizeof *targets);
    stream->position++;
    return STATUS_OK;
}

void token_stream_reset(TokenStream* stream) {
    stream->position = 0;
}

int64_t token_stream_position(const TokenStream* stream) {
    return stream->position;
}

void token_stream_seek(TokenStream* stream, int64_t position) {
    stream->position = position > 0 ? position : 0;
}

int64_t token_stream_num_batches(const TokenStream* stream) {
    return stream->num_batches;
}

int64_t token_stream_num_tokens(const TokenStream* stream) {
    return stream->num_tokens;
}

int32_t token_stream_vocab(const TokenStream* stream) {
    return stream->shards.files[0].vocab;
}

uint64_t token_stream_vocab_hash(const TokenStream* stream) {
    return stream->shards.files[0].vocab_hash;
}

int32_t token_stream_eot_token(const TokenStream* stream) {
    return stream->shards.files[0].eot_token;
}

int32_t token_stream_tokenizer(const TokenStream* stream) {
    return (int32_t)stream->shards.files[0].tokenizer;
}

SampleShards* token_stream_shards(TokenStream* stream) {
    return &stream->shards;
}
