#include "collate.h"

#include "../util/numbers.h"

// One side of the windows while it is filled; the decoder's side may be unused.
typedef struct {
    int32_t *cu_seqlens, *tokens, *positions, *seq_lens;
    uint32_t* keys;
    int32_t num_seqs, num_tokens;
    bool padded;
} Side;

typedef struct {
    const CollateParams* params;
    const Loader* loader;
    const LoaderBatch* batch;
    int32_t pad_token, start_token;
    Side enc, dec;
    int32_t *rows, *targets, *row_tasks;
    int32_t num_rows;
    int32_t* sample;  // the tokens of one sample
} Collation;

// Of one segment: the sample's tokens [begin, end) (through the encoder, if there is one), the number of
// decoder tokens, and the number of supervised rows: those from first_row on whose next token is not in a
// gap.
typedef struct {
    int32_t begin, end, num_dec, first_row, num_rows;
    const SampleGap* gaps;
    int32_t num_gaps;
} SegmentRange;

// --- keys ------------------------------------------------------------------------------------------------

static uint64_t sample_key(const CollateParams* params, int32_t sample_idx) {
    uint64_t step_key = rng_mix(rng_mix(params->seed + 0x9e3779b97f4a7c15u) + (uint64_t)params->step);
    return rng_mix(step_key + (uint64_t)sample_idx * 0x9e3779b97f4a7c15u);
}

static uint32_t token_key(uint64_t key, int32_t position, bool is_decoder) {
    return (uint32_t)(rng_mix(key + 2 * (uint64_t)position + is_decoder) >> 32);
}

uint32_t collate_token_key(const CollateParams* params, int32_t sample_idx, int32_t position,
                           bool is_decoder) {
    return token_key(sample_key(params, sample_idx), position, is_decoder);
}

// --- counting ---------------------------------------------------------------------------------------------

// Rows [*begin, *end) predict the tokens of gap g.
static void gap_rows(const SegmentRange* range, int32_t g, int32_t* begin, int32_t* end) {
    int32_t row = (int32_t)range->gaps[g].begin - 1;
    int32_t gap_end = (int32_t)range->gaps[g].end - 1;
    *begin = row < range->end ? row : range->end;
    *end = gap_end < range->end ? gap_end : range->end;
    if (*begin < range->first_row) { *begin = range->first_row; }
    if (*end < *begin) { *end = *begin; }
}

static void count_rows(SegmentRange* range) {
    range->num_rows = range->end > range->first_row ? range->end - range->first_row : 0;
    for (int32_t g = 0; g < range->num_gaps && range->num_rows > 0; g++) {
        int32_t begin, end;
        gap_rows(range, g, &begin, &end);
        range->num_rows -= end - begin;
    }
}

static Status segment_range(SegmentRange* out, const Loader* loader, const LoaderBatch* batch,
                            const PlanSegment* segment, const CollateParams* params) {
    if (segment->sample_idx < 0 || segment->sample_idx >= batch->num_samples) {
        return FAIL(STATUS_INVALID_PLAN, "segment of sample %d, the batch has %d", segment->sample_idx,
                    batch->num_samples);
    }
    const LoaderSample* sample = &batch->samples[segment->sample_idx];
    int64_t num_tokens = (int64_t)sample->n_input + sample->n_target - 1;
    if (params->encoder_decoder) { num_tokens = sample->n_input > 0 ? sample->n_input : 1; }
    int64_t end = (int64_t)segment->first_token + segment->num_tokens;
    bool cut = end != num_tokens || segment->first_token != 0;
    if (segment->first_token < 0 || segment->num_tokens < 1 || end > num_tokens ||
        (params->encoder_decoder && cut)) {
        return FAIL(STATUS_INVALID_PLAN, "segment of sample %d: tokens %d and %d more, the sample has %lld",
                    segment->sample_idx, segment->first_token, segment->num_tokens, (long long)num_tokens);
    }
    SegmentRange range = {.begin = segment->first_token, .end = (int32_t)end};
    if (params->encoder_decoder) {
        range.num_dec = range.num_rows = sample->n_target;
    } else {
        // Token i predicts token i + 1, which is in the target from i = n_input - 1 on.
        range.first_row = params->supervise_inputs || sample->n_input == 0 ? 0 : sample->n_input - 1;
        if (range.first_row < range.begin) { range.first_row = range.begin; }
        range.num_gaps = params->supervise_inputs ? 0 : loader_gaps(loader, sample, &range.gaps);
        count_rows(&range);
    }
    *out = range;
    return STATUS_OK;
}

static int64_t max_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Checks everything and counts what will be needed.
static Status measure(DynapipeBatch* out, int32_t* longest_sample, const Loader* loader,
                      const LoaderBatch* batch, const PlanSequence* sequences, int32_t num_sequences,
                      const PlanSegment* segments, const CollateParams* params) {
    int64_t num_tokens = 0, num_dec_tokens = 0, num_rows = 0;
    for (int32_t s = 0; s < num_sequences; s++) {
        const PlanSequence* sequence = &sequences[s];
        int64_t used_tokens = 0, used_dec_tokens = 0;
        for (int32_t g = sequence->segment_begin; g < sequence->segment_end; g++) {
            SegmentRange range;
            TRY(segment_range(&range, loader, batch, &segments[g], params));
            const LoaderSample* sample = &batch->samples[segments[g].sample_idx];
            *longest_sample = (int32_t)max_of(sample->n_input + sample->n_target, *longest_sample);
            used_tokens += segments[g].num_tokens;
            used_dec_tokens += range.num_dec;
            num_rows += range.num_rows;
        }
        if (used_tokens < 1 || used_tokens > sequence->enc_tokens || used_dec_tokens > sequence->dec_tokens ||
            (!params->encoder_decoder && sequence->dec_tokens != 0)) {
            return FAIL(STATUS_INVALID_PLAN,
                        "sequence %d: %lld tokens of samples in a window of %d (decoder %lld in %d)", s,
                        (long long)used_tokens, sequence->enc_tokens, (long long)used_dec_tokens,
                        sequence->dec_tokens);
        }
        int64_t enc = sequence->enc_tokens, dec = sequence->dec_tokens;
        num_tokens += enc;
        num_dec_tokens += dec;
        out->num_squares += enc * enc;
        out->num_dec_squares += dec * dec;
        out->num_cross += enc * dec;
        out->max_seq_tokens = (int32_t)max_of(sequence->enc_tokens, out->max_seq_tokens);
        out->max_dec_seq_tokens = (int32_t)max_of(sequence->dec_tokens, out->max_dec_seq_tokens);
    }
    if (num_sequences < 0 || num_tokens > INT32_MAX || num_dec_tokens > INT32_MAX) {
        return FAIL(STATUS_INVALID_PLAN, "microbatch of %d sequences and %lld + %lld tokens", num_sequences,
                    (long long)num_tokens, (long long)num_dec_tokens);
    }
    out->num_seqs = num_sequences;
    out->num_tokens = (int32_t)num_tokens;
    out->num_dec_tokens = (int32_t)num_dec_tokens;
    out->num_rows = (int32_t)num_rows;
    return STATUS_OK;
}

// --- filling ---------------------------------------------------------------------------------------------

static Status side_init(Side* side, int32_t num_seqs, int32_t num_tokens, Arena* arena) {
    *side = (Side){.cu_seqlens = ARENA_NEW(arena, int32_t, num_seqs + 1),
                   .tokens = ARENA_NEW(arena, int32_t, num_tokens),
                   .positions = ARENA_NEW(arena, int32_t, num_tokens),
                   .seq_lens = ARENA_NEW(arena, int32_t, num_seqs),
                   .keys = ARENA_NEW(arena, uint32_t, num_tokens)};
    if (side->cu_seqlens == NULL || side->tokens == NULL || side->positions == NULL ||
        side->seq_lens == NULL || side->keys == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a microbatch of %d tokens", num_tokens);
    }
    return STATUS_OK;
}

static void side_append(Side* side, int32_t token, uint32_t key) {
    side->tokens[side->num_tokens] = token;
    side->keys[side->num_tokens++] = key;
}

// Pads the window to num_tokens; its positions continue from first_position.
static void side_end_window(Side* side, int32_t num_tokens, int32_t first_position, int32_t pad_token) {
    int32_t begin = side->cu_seqlens[side->num_seqs], end = begin + num_tokens;
    side->seq_lens[side->num_seqs] = side->num_tokens - begin;
    side->padded |= side->num_tokens < end;
    while (side->num_tokens < end) { side_append(side, pad_token, 0); }
    for (int32_t i = begin; i < end; i++) { side->positions[i] = first_position + i - begin; }
    side->cu_seqlens[++side->num_seqs] = end;
}

static void append_row(Collation* at, int32_t row, int32_t target, int32_t task) {
    at->rows[at->num_rows] = row;
    at->targets[at->num_rows] = target;
    at->row_tasks[at->num_rows++] = task;
}

static void append_pair(Collation* at, const LoaderSample* sample, uint64_t key) {
    for (int32_t i = 0; i < sample->n_input; i++) {
        side_append(&at->enc, at->sample[i], token_key(key, i, false));
    }
    if (sample->n_input == 0) {
        side_append(&at->enc, loader_info(at->loader)->eot_token, token_key(key, 0, false));
    }
    const int32_t* target = at->sample + sample->n_input;
    for (int32_t i = 0; i < sample->n_target; i++) {
        append_row(at, at->dec.num_tokens, target[i], sample->task);
        side_append(&at->dec, i == 0 ? at->start_token : target[i - 1], token_key(key, i, true));
    }
}

static Status append_segment(Collation* at, const PlanSegment* segment) {
    const LoaderSample* sample = &at->batch->samples[segment->sample_idx];
    SegmentRange range;
    TRY(segment_range(&range, at->loader, at->batch, segment, at->params));
    TRY(loader_read(at->loader, sample, at->sample));
    uint64_t key = sample_key(at->params, segment->sample_idx);
    if (at->params->encoder_decoder) {
        append_pair(at, sample, key);
        return STATUS_OK;
    }
    int32_t g = 0, gap_begin = range.end, gap_end = range.end;
    if (range.num_gaps > 0) { gap_rows(&range, 0, &gap_begin, &gap_end); }
    for (int32_t i = range.begin; i < range.end; i++) {
        while (i >= gap_end && ++g < range.num_gaps) { gap_rows(&range, g, &gap_begin, &gap_end); }
        bool in_gap = i >= gap_begin && i < gap_end;
        if (i >= range.first_row && !in_gap) {
            append_row(at, at->enc.num_tokens, at->sample[i + 1], sample->task);
        }
        side_append(&at->enc, at->sample[i], token_key(key, i, false));
    }
    return STATUS_OK;
}

static Status append_sequence(Collation* at, const PlanSequence* sequence, const PlanSegment* segments) {
    for (int32_t g = sequence->segment_begin; g < sequence->segment_end; g++) {
        TRY(append_segment(at, &segments[g]));
    }
    int32_t first_position = segments[sequence->segment_begin].first_token;
    side_end_window(&at->enc, sequence->enc_tokens, first_position, at->pad_token);
    if (at->params->encoder_decoder) { side_end_window(&at->dec, sequence->dec_tokens, 0, at->pad_token); }
    return STATUS_OK;
}

static void take_arrays(DynapipeBatch* out, const Collation* at) {
    const Side *enc = &at->enc, *dec = &at->dec;
    out->cu_seqlens = enc->cu_seqlens;
    out->tokens = enc->tokens;
    out->positions = enc->positions;
    out->seq_lens = enc->padded ? enc->seq_lens : NULL;
    out->token_keys = enc->keys;
    out->rows = at->rows;
    out->targets = at->targets;
    out->row_tasks = at->row_tasks;
    out->dec_cu_seqlens = dec->cu_seqlens;
    out->dec_tokens = dec->tokens;
    out->dec_positions = dec->positions;
    out->dec_seq_lens = dec->padded ? dec->seq_lens : NULL;
    out->dec_token_keys = dec->keys;
}

Status collate(DynapipeBatch* out, const Loader* loader, const LoaderBatch* batch,
               const PlanSequence* sequences, int32_t num_sequences, const PlanSegment* segments,
               const CollateParams* params, Arena* arena) {
    DynapipeBatch result = {0};
    int32_t longest_sample = 0;
    TRY(measure(&result, &longest_sample, loader, batch, sequences, num_sequences, segments, params));
    int32_t pad_token = loader_info(loader)->pad_token;
    if (pad_token < 0) { pad_token = loader_info(loader)->eot_token; }
    Collation at = {.params = params,
                    .loader = loader,
                    .batch = batch,
                    .pad_token = params->pad_token >= 0 ? params->pad_token : pad_token,
                    .start_token = params->start_token >= 0 ? params->start_token : pad_token,
                    .rows = ARENA_NEW(arena, int32_t, result.num_rows),
                    .targets = ARENA_NEW(arena, int32_t, result.num_rows),
                    .row_tasks = ARENA_NEW(arena, int32_t, result.num_rows),
                    .sample = ARENA_NEW(arena, int32_t, longest_sample)};
    if (at.rows == NULL || at.targets == NULL || at.row_tasks == NULL || at.sample == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a microbatch of %d rows", result.num_rows);
    }
    TRY(side_init(&at.enc, num_sequences, result.num_tokens, arena));
    if (params->encoder_decoder) { TRY(side_init(&at.dec, num_sequences, result.num_dec_tokens, arena)); }
    for (int32_t s = 0; s < num_sequences; s++) { TRY(append_sequence(&at, &sequences[s], segments)); }
    take_arrays(&result, &at);
    *out = result;
    return STATUS_OK;
}
