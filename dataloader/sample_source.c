#include "sample_source.h"

#include "llmc_tokens.h"

static Status check_options(const LoaderOptions* options) {
    if (options->max_seq_tokens < 1 || options->max_seq_tokens == INT32_MAX) {
        return FAIL(STATUS_BAD_OPTION, "-t: %d tokens in a sequence ---> use 1 or more",
                    options->max_seq_tokens);
    }
    if (options->encoder_decoder &&
        (options->max_target_tokens < 1 || options->max_target_tokens == INT32_MAX)) {
        return FAIL(STATUS_BAD_OPTION, "%d tokens in a target ---> use 1 or more",
                    options->max_target_tokens);
    }
    return STATUS_OK;
}

// llm.c's files are plain text: no input, no target.
static Status check_targets(const SampleSource* source) {
    for (int32_t f = 0; f < source->shards.num_files; f++) {
        const SampleFile* file = &source->shards.files[f];
        if (llmc_tokens_is(file)) {
            return FAIL(STATUS_BAD_OPTION,
                        "%s: plain text has no targets for an encoder-decoder model ---> make them of it "
                        "with --span-corruption on, or give samples that prepare_data wrote",
                        file->path);
        }
    }
    return STATUS_OK;
}

static Status open_in(SampleSource* source, const char* pattern) {
    const LoaderOptions* options = &source->options;
    bool cut = options->long_samples == LONG_TRUNCATE && !options->encoder_decoder;
    TRY(sample_shards_open(&source->shards, pattern, cut ? options->max_seq_tokens : 0, false));
    if (options->encoder_decoder) { TRY(check_targets(source)); }
    source->num_ids = source->shards.first_sample[source->shards.num_files];
    return STATUS_OK;
}

Status sample_source_open(SampleSource* out, const char* pattern, const LoaderOptions* options) {
    TRY(check_options(options));
    SampleSource source = {.options = *options};
    source.options.weights = NULL;  // only borrowed while opening
    Status status = open_in(&source, pattern);
    if (status != STATUS_OK) {
        sample_source_close(&source);
        return status;
    }
    *out = source;
    return STATUS_OK;
}

void sample_source_close(SampleSource* source) {
    sample_shards_close(&source->shards);
    *source = (SampleSource){0};
}

// --- within the limits -----------------------------------------------------------------------------------

static LoaderSample whole_sample(const SampleSource* source, int64_t id) {
    int32_t f = sample_shards_file(&source->shards, id);
    SampleIndex index = source->shards.files[f].index[id - source->shards.first_sample[f]];
    return (LoaderSample){.id = id,
                          .task = source->shards.task_of[f][index.task],
                          .n_input = (int32_t)index.n_input,
                          .n_target = (int32_t)index.n_target};
}

static bool too_long(const LoaderOptions* options, const LoaderSample* sample) {
    if (options->encoder_decoder) {
        return sample->n_input > options->max_seq_tokens || sample->n_target > options->max_target_tokens;
    }
    return sample->n_input + sample->n_target - 1 > options->max_seq_tokens;
}

static void truncate_sample(const LoaderOptions* options, LoaderSample* sample) {
    int32_t most_input = options->max_seq_tokens, most_target = options->max_target_tokens;
    if (!options->encoder_decoder) { most_target = options->max_seq_tokens + 1 - (sample->n_input > 0); }
    if (sample->n_target > most_target) { sample->n_target = most_target; }
    if (!options->encoder_decoder) { most_input = options->max_seq_tokens + 1 - sample->n_target; }
    if (sample->n_input > most_input) {
        sample->first_token = sample->n_input - most_input;
        sample->n_input = most_input;
    }
}

SampleFate sample_source_get(const SampleSource* source, int64_t id, LoaderSample* out) {
    LoaderSample sample = whole_sample(source, id);
    bool is_long = too_long(&source->options, &sample);
    if (is_long && source->options.long_samples == LONG_SKIP) { return SAMPLE_SKIPPED; }
    if (is_long) { truncate_sample(&source->options, &sample); }
    *out = sample;
    return is_long ? SAMPLE_TRUNCATED : SAMPLE_WHOLE;
}

PlanSample sample_source_lengths(const SampleSource* source, const LoaderSample* sample) {
    if (source->options.encoder_decoder) {
        return (PlanSample){.enc_tokens = sample->n_input > 0 ? sample->n_input : 1,
                            .dec_tokens = sample->n_target,
                            .supervised_tokens = sample->n_target};
    }
    int32_t num_tokens = sample->n_input + sample->n_target - 1;
    bool all = source->options.supervise_inputs || sample->n_input == 0;
    return (PlanSample){.enc_tokens = num_tokens, .supervised_tokens = all ? num_tokens : sample->n_target};
}

// --- tokens ----------------------------------------------------------------------------------------------

Status sample_source_read(const SampleSource* source, const LoaderSample* sample, int32_t* out) {
    if (sample->id < 0 || sample->id >= source->num_ids) {
        return FAIL(STATUS_OUT_OF_RANGE, "sample %lld of %lld", (long long)sample->id,
                    (long long)source->num_ids);
    }
    const SampleShards* shards = &source->shards;
    int32_t f = sample_shards_file(shards, sample->id);
    return sample_file_read(&shards->files[f], sample->id - shards->first_sample[f], sample->first_token,
                            (int64_t)sample->n_input + sample->n_target, out);
}
