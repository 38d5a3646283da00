#include "pair_stream.h"

#include <stdlib.h>

#include "../util/numbers.h"
#include "collate.h"
#include "shuffle.h"

struct PairStream {
    LoaderOptions options;
    Loader* loader;  // of the samples; the order is the stream's own
    int32_t rows;
    int64_t num_samples;
    uint32_t* ids;  // [num_samples] in file order
    int64_t position;
    Arena arena;  // the last batch
};

static Status open_in(PairStream* stream, const char* pattern) {
    TRY(loader_open(&stream->loader, pattern, &stream->options));
    stream->num_samples = loader_num_samples(stream->loader);
    stream->ids = malloc((size_t)stream->num_samples * sizeof *stream->ids);
    if (stream->ids == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for the order", pattern); }
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
    Status status = open_in(stream, pattern);
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
        draw(stream, (uint64_t)stream->position * (uint64_t)stream->rows + (uint64_t)r, &samples[r]);
        segments[r] = (PlanSegment){r, 0, samples[r].n_input > 0 ? samples[r].n_input : 1};
        sequences[r] =
            (PlanSequence){r, r + 1, stream->options.max_seq_tokens, stream->options.max_target_tokens};
    }
    LoaderBatch batch = {.num_samples = stream->rows, .samples = samples, .step = stream->position};
    CollateParams params = {.seed = stream->options.seed,
                            .step = stream->position,
                            .supervise_inputs = stream->options.supervise_inputs,
                            .encoder_decoder = true,
                            .pad_token = -1,
                            .start_token = -1};
    TRY(collate(out, stream->loader, &batch, sequences, stream->rows, segments, &params, arena));
    stream->position++;
    return STATUS_OK;
}

void pair_stream_reset(PairStream* stream) {
    stream->position = 0;
}

int64_t pair_stream_position(const PairStream* stream) {
    return stream->position;
}

void pair_stream_seek(PairStream* stream, int64_t position) {
    stream->position = position > 0 ? position : 0;
}

int64_t pair_stream_num_batches(const PairStream* stream) {
    int64_t num_batches = stream->num_samples / stream->rows;
    return num_batches > 0 ? num_batches : 1;
}

const Loader* pair_stream_loader(const PairStream* stream) {
    return stream->loader;
}

SampleShards* pair_stream_shards(PairStream* stream) {
    return loader_shards(stream->loader);
}
