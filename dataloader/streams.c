#include "streams.h"

#include <stdlib.h>
#include <string.h>
#include "collate.h"
#include "loader.h"
#include "../util/numbers.h"

struct TokenStream {
    StreamInfo info;
    SampleShards shards;
    int64_t batch_tokens;  // B * T
    bool shuffle;
    uint64_t seed;
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
        stream->info.num_tokens += file->num_tokens;
        stream->info.num_batches += file_batches(stream, f);
    }
    const SampleFile* first = &stream->shards.files[0];
    stream->info.vocab = first->vocab;
    stream->info.eot_token = first->eot_token;
    stream->info.pad_token = -1;
    stream->info.tokenizer = (int32_t)first->tokenizer;
    stream->info.vocab_hash = first->vocab_hash;
    stream->info.shards = &stream->shards;
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

StreamInfo* token_stream_info(TokenStream* stream) {
    return &stream->info;
}

// File and window of batch `place` of an epoch.
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
    if (stream->info.position < 0) { stream->info.position = 0; }
    locate(stream, (uint64_t)(stream->info.position / stream->info.num_batches),
           stream->info.position % stream->info.num_batches, &f, &window);
    TRY(sample_file_read_tokens(&stream->shards.files[f], window * stream->batch_tokens,
                                stream->batch_tokens + 1, stream->window));
    memcpy(inputs, stream->window, (size_t)stream->batch_tokens * sizeof *inputs);
    memcpy(targets, stream->window + 1, (size_t)stream->batch_tokens * sizeof *targets);
    stream->info.position++;
    return STATUS_OK;
}

// --- pairs of input and target ----------------------------------------------------------------------------

struct PairStream {
    StreamInfo info;
    LoaderOptions options;
    Loader* loader;  // of the samples; the stream has its own order
    int32_t rows;
    int64_t num_samples;
    uint32_t* ids;  // [num_samples] in file order
    Arena arena;    // the last batch
};

static Status pair_stream_open_in(PairStream* stream, const char* pattern) {
    TRY(loader_open(&stream->loader, pattern, &stream->options));
    stream->num_samples = loader_info(stream->loader)->num_samples;
    stream->ids = malloc((size_t)stream->num_samples * sizeof *stream->ids);
    if (stream->ids == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for the order", pattern); }
    const LoaderInfo* data = loader_info(stream->loader);
    int64_t num_batches = data->num_samples / stream->rows;
    stream->info = (StreamInfo){.num_batches = num_batches > 0 ? num_batches : 1,
                                .num_tokens = data->num_tokens,
                                .vocab = data->vocab,
                                .eot_token = data->eot_token,
                                .pad_token = data->pad_token,
                                .tokenizer = (int32_t)data->tokenizer,
                                .vocab_hash = data->vocab_hash,
                                .shards = loader_shards(stream->loader)};
    int64_t n = 0;
    LoaderSample sample;
    for (int64_t id = 0; n < stream->num_samples; id++) {
        if (loader_sample_by_id(stream->loader, id, 0, &sample)) { stream->ids[n++] = (uint32_t)id; }
    }
    return STATUS_OK;
}

Status pair_stream_open(PairStream** out, const char* pattern, int32_t rows, const LoaderOptions* options) {
    int64_t longest = options->max_seq_tokens > options->max_target_tokens ? options->max_seq_tokens
                                                                           : options->max_target_tokens;
    if (rows < 1 || rows * longest > INT32_MAX - 1) {
        return FAIL(STATUS_BAD_OPTION, "-b %d, -t %d: no batch ---> use 1 or more, below 2^31 tokens in all",
                    rows, options->max_seq_tokens);
    }
    PairStream* stream = calloc(1, sizeof *stream);
    if (stream == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for a stream", pattern); }
    stream->options = *options;
    stream->options.batch_tokens = 1;
    stream->options.encoder_decoder = true;
    stream->options.mixture = MIXTURE_PROPORTIONAL;
    stream->options.weights = NULL;
    stream->rows = rows;
    Status status = pair_stream_open_in(stream, pattern);
    if (status != STATUS_OK) {
        pair_stream_close(stream);
        return status;
    }
    *out = stream;
    return STATUS_OK;
}

void pair_stream_close(PairStream* stream) {
    if (stream == NULL) { return; }
    loader_close(stream->loader);
    arena_free(&stream->arena);
    free(stream->ids);
    free(stream);
}

// Sample number n since the start.
static void draw(const PairStream* stream, uint64_t n, LoaderSample* out) {
    uint64_t num_samples = (uint64_t)stream->num_samples;
    uint64_t epoch = n / num_samples, place = n % num_samples, pass = 0;
    if (stream->options.shuffle) {
        uint64_t key = rng_mix(stream->options.seed + epoch * 0x9e3779b97f4a7c15u);
        place = shuffle_index(num_samples, key, place);
        pass = rng_mix(key + 1);
    }
    loader_sample_by_id(stream->loader, stream->ids[place], pass, out);
}

Status pair_stream_next_batch(PairStream* stream, DynapipeBatch* out) {
    Arena* arena = &stream->arena;
    arena_reset(arena);
    LoaderSample* samples = ARENA_NEW(arena, LoaderSample, stream->rows);
    PlanSequence* sequences = ARENA_NEW(arena, PlanSequence, stream->rows);
    PlanSegment* segments = ARENA_NEW(arena, PlanSegment, stream->rows);
    if (samples == NULL || sequences == NULL || segments == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a batch of %d samples", stream->rows);
    }
    for (int32_t r = 0; r < stream->rows; r++) {
        draw(stream, (uint64_t)stream->info.position * (uint64_t)stream->rows + (uint64_t)r, &samples[r]);
        segments[r] = (PlanSegment){r, 0, samples[r].n_input > 0 ? samples[r].n_input : 1};
        sequences[r] =
            (PlanSequence){r, r + 1, stream->options.max_seq_tokens, stream->options.max_target_tokens};
    }
    LoaderBatch batch = {.num_samples = stream->rows, .samples = samples, .step = stream->info.position};
    CollateParams params = {.seed = stream->options.seed,
                            .step = stream->info.position,
                            .supervise_inputs = stream->options.supervise_inputs,
                            .encoder_decoder = true,
                            .pad_token = -1,
                            .start_token = -1};
    TRY(collate(out, stream->loader, &batch, sequences, stream->rows, segments, &params, arena));
    stream->info.position++;
    return STATUS_OK;
}

StreamInfo* pair_stream_info(PairStream* stream) {
    return &stream->info;
}

const Loader* pair_stream_loader(const PairStream* stream) {
    return stream->loader;
}
