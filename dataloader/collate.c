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
    int32_t pad_token;  // also before every target
    Side enc, dec;
    int32_t *rows, *targets, *row_tasks;  // room for one a token
    int32_t num_rows;
    int32_t* sample;  // the tokens of one sample
    DynapipeBatch* out;
    Arena* arena;
} Collation;

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

static int64_t max_of(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// The windows' sizes. Returns the length of the longest sample in them.
static int32_t measure(DynapipeBatch* out, const LoaderBatch* batch, const PlanSequence* sequences,
                       int32_t num_sequences, const PlanSegment* segments) {
    int32_t longest = 0;
    out->num_seqs = num_sequences;
    for (int32_t s = 0; s < num_sequences; s++) {
        int64_t enc = sequences[s].enc_tokens, dec = sequences[s].dec_tokens;
        out->num_tokens += sequences[s].enc_tokens;
        out->num_dec_tokens += sequences[s].dec_tokens;
        out->num_squares += enc * enc;
        out->num_dec_squares += dec * dec;
        out->num_cross += enc * dec;
        out->max_seq_tokens = (int32_t)max_of(enc, out->max_seq_tokens);
        out->max_dec_seq_tokens = (int32_t)max_of(dec, out->max_dec_seq_tokens);
        for (int32_t g = sequences[s].segment_begin; g < sequences[s].segment_end; g++) {
            const LoaderSample* sample = &batch->samples[segments[g].sample_idx];
            longest = (int32_t)max_of(sample->n_input + sample->n_target, longest);
        }
    }
    return longest;
}

// --- filling ---------------------------------------------------------------------------------------------

static Status side_init(Side* side, int32_t num_seqs, int32_t num_tokens, Arena* arena) {
    ARENA_TRY_NEW(side->cu_seqlens, arena, int32_t, num_seqs + 1);
    ARENA_TRY_NEW(side->tokens, arena, int32_t, num_tokens);
    ARENA_TRY_NEW(side->positions, arena, int32_t, num_tokens);
    ARENA_TRY_NEW(side->seq_lens, arena, int32_t, num_seqs);
    ARENA_TRY_NEW(side->keys, arena, uint32_t, num_tokens);
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

static int32_t encoder_tokens(const LoaderSample* sample) {
    return (int32_t)max_of(sample->n_input, 1);
}

// Decoder tokens [begin, end), and with the first of them the encoder's.
static void append_pair(Collation* at, const LoaderSample* sample, int32_t begin, int32_t end, uint64_t key) {
    for (int32_t i = 0; i < encoder_tokens(sample) && begin == 0; i++) {
        int32_t token = sample->n_input > 0 ? at->sample[i] : loader_info(at->loader)->eot_token;
        side_append(&at->enc, token, token_key(key, i, false));
    }
    const int32_t* target = at->sample + sample->n_input;
    for (int32_t i = begin; i < end; i++) {
        append_row(at, at->dec.num_tokens, target[i], sample->task);
        side_append(&at->dec, i == 0 ? at->pad_token : target[i - 1], token_key(key, i, true));
    }
}

// Token i predicts token i + 1, which is in the target from i = n_input - 1 on.
static void append_tokens(Collation* at, const PlanSegment* segment, const LoaderSample* sample,
                          uint64_t key) {
    bool all = at->params->supervise_inputs;
    const SampleGap* gaps = NULL;
    int32_t num_gaps = all ? 0 : loader_gaps(at->loader, sample, &gaps), g = 0;
    for (int32_t i = segment->first_token; i < segment->first_token + segment->num_tokens; i++) {
        while (g < num_gaps && i + 1 >= (int32_t)gaps[g].end) { g++; }
        bool in_gap = g < num_gaps && i + 1 >= (int32_t)gaps[g].begin;
        if (all || (i + 1 >= sample->n_input && !in_gap)) {
            append_row(at, at->enc.num_tokens, at->sample[i + 1], sample->task);
        }
        side_append(&at->enc, at->sample[i], token_key(key, i, false));
    }
}

// The sample's (decoder) tokens before the segment and all of its encoder tokens are kept from earlier
// pieces.
static Status describe_piece(Collation* at, const PlanSegment* segment, const LoaderSample* sample,
                             int32_t num_tokens, uint64_t key) {
    bool pairs = at->params->encoder_decoder;
    int32_t begin = segment->first_token, num_enc = pairs ? encoder_tokens(sample) : 0;
    uint32_t *keys, *enc_keys;
    ARENA_TRY_NEW(keys, at->arena, uint32_t, begin);
    ARENA_TRY_NEW(enc_keys, at->arena, uint32_t, num_enc);
    for (int32_t i = 0; i < begin; i++) { keys[i] = token_key(key, i, pairs); }
    for (int32_t i = 0; i < num_enc; i++) { enc_keys[i] = token_key(key, i, false); }
    at->out->kept_tokens = num_tokens;
    at->out->kept_begin = begin;
    at->out->kept_enc_tokens = num_enc;
    at->out->kept_keys = keys;
    at->out->kept_enc_keys = enc_keys;
    at->out->num_prefix = (int64_t)segment->num_tokens * begin;
    if (begin > 0) { at->out->num_cross += (int64_t)segment->num_tokens * num_enc; }
    return STATUS_OK;
}

static Status append_segment(Collation* at, const PlanSequence* sequence, const PlanSegment* segment) {
    const LoaderSample* sample = &at->batch->samples[segment->sample_idx];
    const bool pairs = at->params->encoder_decoder;
    const bool is_cut_pair = pairs && sequence->dec_tokens < sample->n_target;
    const int32_t num_tokens = is_cut_pair ? sample->n_target
                               : pairs     ? encoder_tokens(sample)
                                           : sample->n_input + sample->n_target - 1;
    TRY(loader_read(at->loader, sample, at->sample));
    uint64_t key = sample_key(at->params, segment->sample_idx);
    if (segment->num_tokens != num_tokens) { TRY(describe_piece(at, segment, sample, num_tokens, key)); }
    if (pairs) {
        int32_t num_dec = is_cut_pair ? segment->num_tokens : sample->n_target;
        append_pair(at, sample, segment->first_token, segment->first_token + num_dec, key);
    } else {
        append_tokens(at, segment, sample, key);
    }
    return STATUS_OK;
}

static Status append_sequence(Collation* at, const PlanSequence* sequence, const PlanSegment* segments) {
    for (int32_t g = sequence->segment_begin; g < sequence->segment_end; g++) {
        TRY(append_segment(at, sequence, &segments[g]));
    }
    int32_t first_position = segments[sequence->segment_begin].first_token;
    side_end_window(&at->enc, sequence->enc_tokens, first_position, at->pad_token);
    if (at->params->encoder_decoder) {
        side_end_window(&at->dec, sequence->dec_tokens, first_position, at->pad_token);
    }
    return STATUS_OK;
}

Status collate(DynapipeBatch* out, const Loader* loader, const LoaderBatch* batch,
               const PlanSequence* sequences, int32_t num_sequences, const PlanSegment* segments,
               const CollateParams* params, Arena* arena) {
    DynapipeBatch result = {0};
    const int32_t longest_sample = measure(&result, batch, sequences, num_sequences, segments);
    const LoaderInfo* info = loader_info(loader);
    int32_t most_rows = params->encoder_decoder ? result.num_dec_tokens : result.num_tokens;
    Collation at = {.params = params,
                    .loader = loader,
                    .batch = batch,
                    .out = &result,
                    .arena = arena,
                    .pad_token = info->pad_token};
    if (at.pad_token < 0) { at.pad_token = info->eot_token < info->num_ids ? info->eot_token : 0; }
    ARENA_TRY_NEW(at.rows, arena, int32_t, most_rows);
    ARENA_TRY_NEW(at.targets, arena, int32_t, most_rows);
    ARENA_TRY_NEW(at.row_tasks, arena, int32_t, most_rows);
    ARENA_TRY_NEW(at.sample, arena, int32_t, longest_sample);
    TRY(side_init(&at.enc, num_sequences, result.num_tokens, arena));
    if (params->encoder_decoder) { TRY(side_init(&at.dec, num_sequences, result.num_dec_tokens, arena)); }
    for (int32_t s = 0; s < num_sequences; s++) { TRY(append_sequence(&at, &sequences[s], segments)); }
    result.num_rows = at.num_rows;
    result.cu_seqlens = at.enc.cu_seqlens;
    result.tokens = at.enc.tokens;
    result.positions = at.enc.positions;
    result.seq_lens = at.enc.padded ? at.enc.seq_lens : NULL;
    result.token_keys = at.enc.keys;
    result.rows = at.rows;
    result.targets = at.targets;
    result.row_tasks = at.row_tasks;
    result.dec_cu_seqlens = at.dec.cu_seqlens;
    result.dec_tokens = at.dec.tokens;
    result.dec_positions = at.dec.positions;
    result.dec_seq_lens = at.dec.padded ? at.dec.seq_lens : NULL;
    result.dec_token_keys = at.dec.keys;
    *out = result;
    return STATUS_OK;
}
