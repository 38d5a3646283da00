// checker_batch.c -- made-up micro-batches, small, as the model's shapes ask for them.
#include <stdio.h>

#include "../plan/problem/shape_rules.h"
#include "../plan/types/mb_shape.h"
#include "../run/session.h"
#include "checker.h"

// Gradients of a row's loss are multiplied by it: a power of two, so that doubling it is exact.
#define LOSS_SCALE 0.125F

// --- lengths ---------------------------------------------------------------------------------------------

int32_t checker_length(const Checker* c, int32_t num_tokens) {
    int32_t most = c->blocks->max_seq_tokens;
    return most > 0 && num_tokens > most ? most : num_tokens;
}

static int32_t length_of(const CheckerSequence* sequence, bool is_decoder) {
    return is_decoder ? sequence->num_dec_tokens : sequence->num_tokens;
}

// What windows are padded to; 0: they are not.
static int32_t padded_tokens(const Checker* c, const CheckerSequence* sequences, int32_t num_sequences,
                             bool is_decoder, int32_t padding) {
    const ShapeRules rules = session_rules(&c->blocks->shapes);
    int32_t longest = 0, most = c->blocks->max_seq_tokens;
    if (!rules.padded && padding == 0) { return 0; }
    for (int32_t i = 0; i < num_sequences; i++) {
        int32_t length = length_of(&sequences[i], is_decoder);
        if (length > longest) { longest = length; }
    }
    longest += padding;
    if (most > 0 && longest > most) { longest = most; }
    return (int32_t)shape_rules_round(&rules, longest, num_sequences);
}

// Not more than the kernels take at a time?
static bool is_allowed(const Checker* c, const CheckerSequence* sequences, int32_t num_sequences,
                       int32_t padding) {
    const ShapeRules rules = session_rules(&c->blocks->shapes);
    const bool has_decoder = c->blocks->num_dec_layers > 0;
    int32_t T = padded_tokens(c, sequences, num_sequences, false, padding);
    int32_t dec_T = has_decoder ? padded_tokens(c, sequences, num_sequences, true, padding) : 0;
    MbShape shape = {0};
    for (int32_t i = 0; i < num_sequences; i++) {
        int32_t length = length_of(&sequences[i], false), dec_length = length_of(&sequences[i], true);
        mb_shape_add(&shape, T > 0 ? T : length, dec_T > 0 ? dec_T : dec_length, 0);
    }
    return shape_rules_allow(&rules, &shape);
}

static void shorten(CheckerSequence* sequence, int32_t num_tokens, bool has_decoder) {
    if (sequence->num_tokens > num_tokens) { sequence->num_tokens = num_tokens; }
    if (sequence->num_dec_tokens > num_tokens) { sequence->num_dec_tokens = num_tokens; }
    int32_t supervised = length_of(sequence, has_decoder);
    if (sequence->num_rows > supervised) { sequence->num_rows = supervised; }
}

int32_t checker_standard(const Checker* c, CheckerSequence out[CHECKER_MOST_SEQUENCES], int32_t idx) {
    static const struct {
        int32_t num_sequences;
        CheckerSequence sequences[CHECKER_MOST_SEQUENCES];  // id, tokens, decoder's, rows
    } standard[CHECKER_STANDARD] = {
        {1, {{1, 7, 4, 3}}},
        {4, {{2, 5, 3, 2}, {3, 1, 2, 1}, {4, 3, 1, 0}, {5, 4, 5, 4}}},
        {2, {{6, 30, 2, 15}, {7, 2, 30, 1}}},  // 32 tokens, 16 rows: what sizes are rounded up to
    };
    const bool has_decoder = c->blocks->num_dec_layers > 0;
    int32_t num_sequences = standard[idx].num_sequences, longest = 0;
    for (int32_t i = 0; i < num_sequences; i++) {
        out[i] = standard[idx].sequences[i];
        if (!has_decoder) { out[i].num_dec_tokens = 0; }
        shorten(&out[i], checker_length(c, INT32_MAX), has_decoder);
        if (out[i].num_tokens > longest) { longest = out[i].num_tokens; }
        if (out[i].num_dec_tokens > longest) { longest = out[i].num_dec_tokens; }
    }
    while (num_sequences > 1 && !is_allowed(c, out, num_sequences, 0)) { num_sequences--; }
    while (longest > 1 && !is_allowed(c, out, num_sequences, 0)) { shorten(&out[0], --longest, has_decoder); }
    return num_sequences;
}

// One side of a micro-batch being filled.
typedef struct {
    int32_t *cu_seqlens, *tokens, *positions, *seq_lens;
    uint32_t* keys;
    int32_t num_tokens, longest;
    bool has_padding;
} Side;

static Status make_side(Checker* c, Side* side, const CheckerSequence* sequences, int32_t num_sequences,
                        bool is_decoder, int32_t T) {
    int32_t most = 0;
    for (int32_t i = 0; i < num_sequences; i++) {
        int32_t length = length_of(&sequences[i], is_decoder);
        most += T > 0 ? T : length;
    }
    *side = (Side){.cu_seqlens = CHECKER_NEW(c, int32_t, num_sequences + 1),
                   .tokens = CHECKER_NEW(c, int32_t, most),
                   .positions = CHECKER_NEW(c, int32_t, most),
                   .seq_lens = CHECKER_NEW(c, int32_t, num_sequences),
                   .keys = CHECKER_NEW(c, uint32_t, most)};
    if (!side->cu_seqlens || !side->tokens || !side->positions || !side->seq_lens || !side->keys) {
        return checker_no_memory();
    }
    for (int32_t i = 0; i < num_sequences; i++) {
        Rng rng = rng_seed((uint64_t)sequences[i].id * 2 + is_decoder);
        int32_t length = length_of(&sequences[i], is_decoder);
        int32_t window = T > 0 ? T : length;
        for (int32_t t = 0; t < window; t++) {
            int32_t at = side->num_tokens + t;
            side->tokens[at] = rng_between(&rng, 0, c->blocks->vocab - 1);
            side->positions[at] = t;
            side->keys[at] = (uint32_t)rng_u64(&rng);
        }
        side->seq_lens[i] = length;
        side->has_padding |= window > length;
        side->num_tokens += window;
        side->cu_seqlens[i + 1] = side->num_tokens;
        if (window > side->longest) { side->longest = window; }
    }
    return STATUS_OK;
}

// --- the whole -------------------------------------------------------------------------------------------

static Status make_rows(Checker* c, DynapipeBatch* batch, const Side* side,
                        const CheckerSequence* sequences) {
    int32_t *rows = CHECKER_NEW(c, int32_t, side->num_tokens),
            *targets = CHECKER_NEW(c, int32_t, side->num_tokens),
            *tasks = CHECKER_NEW(c, int32_t, side->num_tokens);
    if (rows == NULL || targets == NULL || tasks == NULL) { return checker_no_memory(); }
    for (int32_t i = 0; i < batch->num_seqs; i++) {
        Rng rng = rng_seed((uint64_t)sequences[i].id + 1000003);
        for (int32_t r = 0; r < sequences[i].num_rows; r++) {
            int32_t behind = sequences[i].num_rows - r;  // counted from the sequence's end
            rows[batch->num_rows] = side->cu_seqlens[i] + side->seq_lens[i] - behind;
            targets[batch->num_rows++] = rng_between(&rng, 0, c->blocks->vocab - 1);
        }
    }
    batch->rows = rows;
    batch->targets = targets;
    batch->row_tasks = tasks;
    return STATUS_OK;
}

static void describe(CheckerBatch* out, const CheckerSequence* sequences, bool has_decoder, int32_t T) {
    int32_t num_seqs = out->batch.num_seqs;
    size_t room = sizeof out->what;
    int used = snprintf(out->what, room, "%d sequence%s of ", (int)num_seqs, num_seqs > 1 ? "s" : "");
    for (int32_t i = 0; i < num_seqs && used < (int)room; i++) {
        used += snprintf(out->what + used, room - (size_t)used, i > 0 ? ", %d" : "%d",
                         (int)sequences[i].num_tokens);
        if (!has_decoder || used >= (int)room) { continue; }
        used += snprintf(out->what + used, room - (size_t)used, "+%d", (int)sequences[i].num_dec_tokens);
    }
    if (used >= (int)room) { return; }
    used += snprintf(out->what + used, room - (size_t)used, " tokens");
    if (T > 0 && used < (int)room) {
        snprintf(out->what + used, room - (size_t)used, ", padded to %d", (int)T);
    }
}

static void count_pairs(DynapipeBatch* batch, const Side* enc, const Side* dec) {
    for (int32_t i = 0; i < batch->num_seqs; i++) {
        int64_t a = enc->cu_seqlens[i + 1] - enc->cu_seqlens[i];
        int64_t b = batch->num_dec_tokens > 0 ? dec->cu_seqlens[i + 1] - dec->cu_seqlens[i] : 0;
        batch->num_squares += a * a;
        batch->num_dec_squares += b * b;
        batch->num_cross += a * b;
    }
}

Status checker_batch(Checker* c, CheckerBatch* out, const CheckerSequence* sequences, int32_t num_sequences,
                     int32_t padding) {
    bool has_decoder = c->blocks->num_dec_layers > 0;
    Side enc, dec = {0};
    while (padding > 0 && !is_allowed(c, sequences, num_sequences, padding)) { padding--; }
    int32_t T = padded_tokens(c, sequences, num_sequences, false, padding);
    TRY(make_side(c, &enc, sequences, num_sequences, false, T));
    if (c->blocks->max_seq_tokens > 0 && enc.longest > c->blocks->max_seq_tokens) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "windows must be padded to %d tokens, max_seq_tokens is %d ---> check a model that takes "
                    "longer sequences",
                    (int)enc.longest, (int)c->blocks->max_seq_tokens);
    }
    *out = (CheckerBatch){.batch = {.num_seqs = num_sequences,
                                    .num_tokens = enc.num_tokens,
                                    .max_seq_tokens = enc.longest,
                                    .cu_seqlens = enc.cu_seqlens,
                                    .tokens = enc.tokens,
                                    .positions = enc.positions,
                                    .seq_lens = enc.has_padding ? enc.seq_lens : NULL,
                                    .token_keys = enc.keys,
                                    .loss_scale = LOSS_SCALE}};
    DynapipeBatch* batch = &out->batch;
    if (has_decoder) {
        int32_t dec_T = padded_tokens(c, sequences, num_sequences, true, padding);
        TRY(make_side(c, &dec, sequences, num_sequences, true, dec_T));
        batch->num_dec_tokens = dec.num_tokens;
        batch->max_dec_seq_tokens = dec.longest;
        batch->dec_cu_seqlens = dec.cu_seqlens;
        batch->dec_tokens = dec.tokens;
        batch->dec_positions = dec.positions;
        batch->dec_seq_lens = dec.has_padding ? dec.seq_lens : NULL;
        batch->dec_token_keys = dec.keys;
    }
    count_pairs(batch, &enc, &dec);
    describe(out, sequences, has_decoder, T);
    return make_rows(c, batch, has_decoder ? &dec : &enc, sequences);
}
