#include "collate.h"

// The arrays of the batch while they are filled.
typedef struct {
    int32_t* cu_seqlens;
    int32_t* tokens;
    int32_t* positions;
    int32_t* rows;
    int32_t* targets;
    int32_t* row_tasks;
    int32_t* sample;  // the tokens of one sample
    int32_t num_tokens, num_rows;
} Collation;

// Of one segment: rows i in [begin, end) of its sample, of which [first_row, end) are supervised.
typedef struct {
    int32_t begin, end, first_row;
} RowRange;

static Status segment_rows(RowRange* out, const LoaderBatch* batch, const PlanSegment* segment,
                           bool supervise_inputs) {
    if (segment->sample_idx < 0 || segment->sample_idx >= batch->num_samples) {
        return FAIL(STATUS_INVALID_PLAN, "segment of sample %d, the batch has %d", segment->sample_idx,
                    batch->num_samples);
    }
    const LoaderSample* sample = &batch->samples[segment->sample_idx];
    int64_t num_rows = (int64_t)sample->n_input + sample->n_target - 1;
    int64_t end = (int64_t)segment->first_token + segment->num_tokens;
    if (segment->first_token < 0 || segment->num_tokens < 1 || end > num_rows) {
        return FAIL(STATUS_INVALID_PLAN, "segment of sample %d: tokens %d and %d more, the sample has %lld",
                    segment->sample_idx, segment->first_token, segment->num_tokens, (long long)num_rows);
    }
    // Row i predicts token i + 1, which lies in the target from i = n_input - 1 on.
    int32_t first_row = supervise_inputs || sample->n_input == 0 ? 0 : sample->n_input - 1;
    *out = (RowRange){segment->first_token, (int32_t)end,
                      first_row > segment->first_token ? first_row : segment->first_token};
    return STATUS_OK;
}

// Check everything and count what will be needed.
static Status measure(DynapipeBatch* out, int32_t* longest_sample, const LoaderBatch* batch,
                      const PlanSequence* sequences, int32_t num_sequences, const PlanSegment* segments,
                      bool supervise_inputs) {
    int64_t num_tokens = 0, num_rows = 0;
    for (int32_t s = 0; s < num_sequences; s++) {
        const PlanSequence* sequence = &sequences[s];
        int64_t used_tokens = 0;
        for (int32_t g = sequence->segment_begin; g < sequence->segment_end; g++) {
            RowRange range;
            TRY(segment_rows(&range, batch, &segments[g], supervise_inputs));
            const LoaderSample* sample = &batch->samples[segments[g].sample_idx];
            int32_t length = sample->n_input + sample->n_target;
            *longest_sample = length > *longest_sample ? length : *longest_sample;
            used_tokens += segments[g].num_tokens;
            num_rows += range.end > range.first_row ? range.end - range.first_row : 0;
        }
        if (used_tokens < 1 || used_tokens > sequence->enc_tokens || sequence->dec_tokens != 0) {
            return FAIL(STATUS_INVALID_PLAN,
                        "sequence %d: %lld tokens of samples in a window of %d (decoder %d)", s,
                        (long long)used_tokens, sequence->enc_tokens, sequence->dec_tokens);
        }
        num_tokens += sequence->enc_tokens;
        out->max_seq_tokens =
            sequence->enc_tokens > out->max_seq_tokens ? sequence->enc_tokens : out->max_seq_tokens;
    }
    if (num_sequences < 0 || num_tokens > INT32_MAX) {
        return FAIL(STATUS_INVALID_PLAN, "micro-batch of %d sequences and %lld tokens", num_sequences,
                    (long long)num_tokens);
    }
    out->num_seqs = num_sequences;
    out->num_tokens = (int32_t)num_tokens;
    out->num_rows = (int32_t)num_rows;
    return STATUS_OK;
}

static Status append_segment(Collation* at, const Loader* loader, const LoaderBatch* batch,
                             const PlanSegment* segment, bool supervise_inputs) {
    const LoaderSample* sample = &batch->samples[segment->sample_idx];
    RowRange range;
    TRY(segment_rows(&range, batch, segment, supervise_inputs));
    TRY(loader_read(loader, sample, at->sample));
    for (int32_t i = range.begin; i < range.end; i++) {
        if (i >= range.first_row) {
            at->rows[at->num_rows] = at->num_tokens;
            at->targets[at->num_rows] = at->sample[i + 1];
            at->row_tasks[at->num_rows++] = sample->task;
        }
        at->tokens[at->num_tokens++] = at->sample[i];
    }
    return STATUS_OK;
}

static Status append_sequence(Collation* at, const Loader* loader, const LoaderBatch* batch,
                              const PlanSequence* sequence, const PlanSegment* segments,
                              bool supervise_inputs) {
    int32_t begin = at->num_tokens, end = begin + sequence->enc_tokens;
    for (int32_t g = sequence->segment_begin; g < sequence->segment_end; g++) {
        TRY(append_segment(at, loader, batch, &segments[g], supervise_inputs));
    }
    while (at->num_tokens < end) { at->tokens[at->num_tokens++] = loader_eot_token(loader); }
    int32_t first_position = segments[sequence->segment_begin].first_token;
    for (int32_t i = begin; i < end; i++) { at->positions[i] = first_position + i - begin; }
    return STATUS_OK;
}

Status collate(DynapipeBatch* out, const Loader* loader, const LoaderBatch* batch,
               const PlanSequence* sequences, int32_t num_sequences, const PlanSegment* segments,
               bool supervise_inputs, Arena* arena) {
    DynapipeBatch result = {0};
    int32_t longest_sample = 0;
    TRY(measure(&result, &longest_sample, batch, sequences, num_sequences, segments, supervise_inputs));
    Collation at = {.cu_seqlens = ARENA_NEW(arena, int32_t, num_sequences + 1),
                    .tokens = ARENA_NEW(arena, int32_t, result.num_tokens),
                    .positions = ARENA_NEW(arena, int32_t, result.num_tokens),
                    .rows = ARENA_NEW(arena, int32_t, result.num_rows),
                    .targets = ARENA_NEW(arena, int32_t, result.num_rows),
                    .row_tasks = ARENA_NEW(arena, int32_t, result.num_rows),
                    .sample = ARENA_NEW(arena, int32_t, longest_sample)};
    if (at.cu_seqlens == NULL || at.tokens == NULL || at.positions == NULL || at.rows == NULL ||
        at.targets == NULL || at.row_tasks == NULL || at.sample == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a micro-batch of %d tokens", result.num_tokens);
    }
    for (int32_t s = 0; s < num_sequences; s++) {
        TRY(append_sequence(&at, loader, batch, &sequences[s], segments, supervise_inputs));
        at.cu_seqlens[s + 1] = at.num_tokens;
    }
    result.cu_seqlens = at.cu_seqlens;
    result.tokens = at.tokens;
    result.positions = at.positions;
    result.rows = at.rows;
    result.targets = at.targets;
    result.row_tasks = at.row_tasks;
    *out = result;
    return STATUS_OK;
}
