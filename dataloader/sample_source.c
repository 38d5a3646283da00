#include "sample_source.h"

#include <stdlib.h>

#include "../util/numbers.h"
#include "llmc_tokens.h"
#include "sample_cut.h"

enum { T5_SENTINELS = 100, BYT5_FIRST_SENTINEL = 259 };

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
    if (options->span_corruption && !options->encoder_decoder) {
        return FAIL(STATUS_BAD_OPTION,
                    "--span-corruption on: needs a model with an encoder ---> leave it out");
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
        if (file->num_gaps > 0) {
            return FAIL(
                STATUS_BAD_OPTION,
                "%s: conversations of several answers in one sample, an encoder-decoder model has one "
                "answer each ---> run prepare_data again with --turns apart",
                file->path);
        }
    }
    return STATUS_OK;
}

// The ids that a tokenizer keeps for sentinels, [*begin, *end); step: in which order. none: an empty range.
static void tokenizer_sentinels(const SampleFile* file, int32_t* begin, int32_t* end, int32_t* step) {
    *begin = *end = 0;
    *step = -1;
    if (file->tokenizer == TOKENIZER_SENTENCEPIECE && file->vocab > T5_SENTINELS) {
        *begin = file->vocab - T5_SENTINELS;  // <extra_id_0> is the last
        *end = file->vocab;
    }
    if (file->tokenizer == TOKENIZER_BYT5 && file->vocab > BYT5_FIRST_SENTINEL) {
        *begin = BYT5_FIRST_SENTINEL;  // Hugging Face counts up; others have gone down
        *end = file->vocab;
        *step = 1;
    }
}

static Status choose_sentinels(SampleSource* source) {
    const SampleFile* file = &source->shards.files[0];
    const LoaderOptions* options = &source->options;
    SpanCorruption* spans = &source->spans;
    int32_t begin, end, step;
    tokenizer_sentinels(file, &begin, &end, &step);
    if (options->sentinel_step != 0) { step = options->sentinel_step; }
    int32_t first = options->sentinel_first;
    if (first == 0 && begin == end) {
        return FAIL(STATUS_BAD_OPTION,
                    "%s: its tokenizer has no sentinels for --span-corruption ---> name tokens that the text "
                    "does not have with --sentinel-first and --sentinel-step",
                    file->path);
    }
    if (first == 0) { first = step > 0 ? begin : end - 1; }
    bool outside = first < begin || first >= end;  // as many as T5 has, if there are
    if (outside) {
        begin = first - T5_SENTINELS + 1 > 0 ? first - T5_SENTINELS + 1 : 0;
        end = file->vocab - first < T5_SENTINELS ? file->vocab : first + T5_SENTINELS;
    }
    spans->sentinel_first = first;
    spans->sentinel_step = step;
    spans->num_sentinels = step > 0 ? end - first : first - begin + 1;
    int32_t last = first + (spans->num_sentinels - 1) * step;
    int32_t low = first < last ? first : last, high = first < last ? last : first;
    bool has_eot = file->eot_token >= low && file->eot_token <= high;
    bool has_pad = file->pad_token >= low && file->pad_token <= high;
    if (spans->num_sentinels < 1 || low < 0 || high >= file->vocab || has_eot || has_pad) {
        return FAIL(STATUS_BAD_OPTION,
                    "--sentinel-first %d: tokens %d to %d would be sentinels, of a vocabulary of %d with "
                    "end-of-text %d and padding %d ---> choose others",
                    first, low, high, file->vocab, file->eot_token, file->pad_token);
    }
    return STATUS_OK;
}

static Status open_texts(SampleSource* source) {
    const LoaderOptions* options = &source->options;
    const SampleFile* file = &source->shards.files[0];
    SpanCorruption* spans = &source->spans;
    bool bytes = file->tokenizer == TOKENIZER_BYT5 || file->tokenizer == TOKENIZER_BYTES;
    spans->noise_density = options->noise_density != 0 ? options->noise_density : 0.15;
    spans->mean_span = options->mean_noise_span != 0 ? options->mean_noise_span : bytes ? 20 : 3;
    spans->eot_token = file->eot_token;
    if (!(spans->noise_density > 0 && spans->noise_density < 1)) {
        return FAIL(STATUS_BAD_OPTION, "--noise-density %g ---> use a share between 0 and 1",
                    spans->noise_density);
    }
    if (!(spans->mean_span >= 1 && spans->mean_span <= SPAN_CORRUPTION_MAX_TOKENS)) {
        return FAIL(STATUS_BAD_OPTION, "--mean-noise-span %g ---> use 1 token or more", spans->mean_span);
    }
    TRY(choose_sentinels(source));
    int32_t piece_tokens =
        span_corruption_longest(spans, options->max_seq_tokens, options->max_target_tokens);
    if (piece_tokens == 0) {
        return FAIL(STATUS_BAD_OPTION,
                    "-t %d, targets of %d tokens: too short for --span-corruption ---> use at least 2 and 3",
                    options->max_seq_tokens, options->max_target_tokens);
    }
    return text_pieces_init(&source->pieces, &source->shards, piece_tokens);
}

static Status open_in(SampleSource* source, const char* pattern) {
    const LoaderOptions* options = &source->options;
    bool cut = options->long_samples != LONG_SKIP && !options->encoder_decoder;
    TRY(sample_shards_open(&source->shards, pattern, cut ? options->max_seq_tokens : 0, false));
    source->num_ids = source->shards.first_sample[source->shards.num_files];
    if (options->span_corruption) {
        TRY(open_texts(source));
        source->num_ids = source->pieces.num_pieces;
    } else if (options->encoder_decoder) {
        TRY(check_targets(source));
    }
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
    text_pieces_free(&source->pieces);
    *source = (SampleSource){0};
}

// --- within the limits -----------------------------------------------------------------------------------

// `id` of the files' own samples here.
static LoaderSample whole_sample(const SampleShards* shards, int64_t id) {
    int32_t f = sample_shards_file(shards, id);
    SampleIndex index = shards->files[f].index[id - shards->first_sample[f]];
    return (LoaderSample){.id = id,
                          .task = shards->task_of[f][index.task],
                          .n_input = (int32_t)index.n_input,
                          .n_target = (int32_t)index.n_target};
}

static LoaderSample piece_sample(const SampleSource* source, int64_t id, uint64_t pass) {
    TextPiece piece = text_pieces_get(&source->pieces, &source->shards, id);
    SpanLengths lengths = span_corruption_lengths(&source->spans, piece.num_tokens);
    return (LoaderSample){.id = id,
                          .task = whole_sample(&source->shards, piece.sample_id).task,
                          .first_token = piece.first_token,
                          .n_input = lengths.n_input,
                          .n_target = lengths.n_target,
                          .n_answer = lengths.n_target,
                          .n_learnt = lengths.n_target,
                          .noise_key = rng_mix(rng_mix(pass) + (uint64_t)id)};
}

uint64_t sample_source_pass(uint64_t seed, uint64_t epoch) {
    uint64_t pass = rng_mix(rng_mix(seed + 0x9e3779b97f4a7c15u) + epoch);
    return pass > 0 ? pass : 1;
}

SampleFate sample_source_get(const SampleSource* source, int64_t id, uint64_t pass, LoaderSample* out) {
    if (source->options.span_corruption) {
        *out = piece_sample(source, id, pass);
        return SAMPLE_WHOLE;
    }
    const SampleShards* shards = &source->shards;
    int32_t f = sample_shards_file(shards, id);
    const SampleGap* gaps;
    int32_t num_gaps = sample_file_gaps(&shards->files[f], id - shards->first_sample[f], &gaps);
    *out = whole_sample(shards, id);
    return sample_cut(out, &source->options, gaps, num_gaps, shards->files[f].input_tail);
}

PlanSample sample_source_lengths(const SampleSource* source, const LoaderSample* sample) {
    if (source->options.encoder_decoder) {
        return (PlanSample){.enc_tokens = sample->n_input > 0 ? sample->n_input : 1,
                            .dec_tokens = sample->n_target,
                            .supervised_tokens = sample->n_target};
    }
    int32_t num_tokens = sample->n_input + sample->n_target - 1;
    int32_t learnt = sample->n_learnt - (sample->n_input == 0);  // nothing predicts the first token
    return (PlanSample){.enc_tokens = num_tokens,
                        .supervised_tokens = source->options.supervise_inputs ? num_tokens : learnt};
}

// --- tokens ----------------------------------------------------------------------------------------------

static Status read_corrupted(const SampleSource* source, const LoaderSample* sample, int32_t* out) {
    TextPiece piece = text_pieces_get(&source->pieces, &source->shards, sample->id);
    SpanLengths lengths = span_corruption_lengths(&source->spans, piece.num_tokens);
    if (lengths.n_input != sample->n_input || lengths.n_target != sample->n_target) {
        return FAIL(STATUS_OUT_OF_RANGE, "sample %lld: %d + %d tokens, as corrupted it has %d + %d",
                    (long long)sample->id, sample->n_input, sample->n_target, lengths.n_input,
                    lengths.n_target);
    }
    int32_t* text = malloc((size_t)piece.num_tokens * sizeof *text);
    if (text == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d tokens", piece.num_tokens); }
    Status status = text_pieces_read(&source->shards, &piece, text);
    if (status == STATUS_OK) {
        span_corruption_apply(&source->spans, sample->noise_key, text, piece.num_tokens, out,
                              out + lengths.n_input);
    }
    free(text);
    return status;
}

int32_t sample_source_gaps(const SampleSource* source, const LoaderSample* sample, const SampleGap** out) {
    if (source->options.span_corruption) { return 0; }
    const SampleShards* shards = &source->shards;
    int32_t f = sample_shards_file(shards, sample->id), num_gaps = 0;
    int32_t most = sample_file_gaps(&shards->files[f], sample->id - shards->first_sample[f], out);
    bool is_cut = sample->first_token + sample->hole_tokens > 0;
    uint32_t end = is_cut ? 0 : (uint32_t)(sample->n_input + sample->n_target);
    while (num_gaps < most && (*out)[num_gaps].begin < end) { num_gaps++; }
    return num_gaps;
}

Status sample_source_read(const SampleSource* source, const LoaderSample* sample, int32_t* out) {
    if (sample->id < 0 || sample->id >= source->num_ids) {
        return FAIL(STATUS_OUT_OF_RANGE, "sample %lld of %lld", (long long)sample->id,
                    (long long)source->num_ids);
    }
    if (source->options.span_corruption) { return read_corrupted(source, sample, out); }
    const SampleShards* shards = &source->shards;
    int32_t f = sample_shards_file(shards, sample->id);
    const SampleFile* file = &shards->files[f];
    int64_t idx = sample->id - shards->first_sample[f], count = (int64_t)sample->n_input + sample->n_target;
    int32_t front = sample->hole_tokens > 0 ? sample->hole_at : 0;
    if (front > 0) { TRY(sample_file_read(file, idx, sample->first_token, front, out)); }
    int64_t first = (int64_t)sample->first_token + front + sample->hole_tokens;
    return sample_file_read(file, idx, first, count - front, out + front);
}
