#include "measure_shapes.h"

#include <stdlib.h>

#include "../../util/numbers.h"
#include "../plan/problem/shape_rules.h"
#include "../run/session.h"

// --- what a model takes ------------------------------------------------------------------------------------

static int32_t round_up(int32_t n, int64_t multiple) {
    return (int32_t)((n + multiple - 1) / multiple * multiple);
}

int32_t measure_padded_tokens(const DynapipeBlocks_v1* blocks, int32_t num_tokens) {
    const ShapeRules rules = session_rules(&blocks->shapes);
    return rules.padded ? (int32_t)shape_rules_round(&rules, num_tokens, 1) : num_tokens;
}

// What a window's length is a multiple of. Where the number of windows has a limit, any number of them will
// do then (seqs_multiple 1).
static int64_t window_multiple(const ShapeRules* rules) {
    return rules->padded ? shape_rules_multiple(rules, rules->max_seqs > 0 ? 1 : 0) : 1;
}

// The longest window that a side may have: padding goes beyond what the data has, not beyond the model.
static int32_t longest_window(const DynapipeBlocks_v1* blocks, int64_t multiple, int32_t wanted) {
    int32_t longest = round_up(wanted, multiple), most = blocks->max_seq_tokens;
    if (most > 0 && longest > most) { longest = (int32_t)(most / multiple * multiple); }
    return longest > 0 ? longest : 1;
}

static void fit_windows(MeasureSide* side, const DynapipeBlocks_v1* blocks, const ShapeRules* rules,
                        int32_t wanted) {
    if (wanted == 0) { return; }
    int64_t multiple = window_multiple(rules);
    int32_t longest = longest_window(blocks, multiple, wanted);
    if (rules->padded) { side->long_tokens = side->short_tokens = round_up(side->long_tokens, multiple); }
    if (side->long_tokens > longest) { side->long_tokens = longest; }
    if (side->short_tokens > side->long_tokens) { side->short_tokens = side->long_tokens; }
}

// So many windows of this length that tokens are a multiple.
static int64_t seqs_multiple(const ShapeRules* rules, const MeasureSide* side) {
    int64_t multiple = rules->padded && rules->tokens_multiple > 1 ? rules->tokens_multiple : 1;
    return side->num_seqs > 0 ? multiple / shape_greatest_divisor(multiple, side->long_tokens) : 1;
}

static int64_t squares_of(const MeasureSide* side) {
    int64_t l = side->long_tokens, s = side->short_tokens;
    return side->num_seqs > 0 ? l * l + (side->num_seqs - 1) * s * s : 0;
}

// The number of windows that both sides take: a multiple of this.
static int32_t seqs_step(const ShapeRules* rules, const MeasureShape* shape) {
    int64_t of_enc = seqs_multiple(rules, &shape->enc), of_dec = seqs_multiple(rules, &shape->dec);
    return (int32_t)(of_enc / shape_greatest_divisor(of_enc, of_dec) * of_dec);
}

static void set_seqs(MeasureShape* shape, int32_t num_seqs) {
    shape->enc.num_seqs = num_seqs;
    if (shape->dec.num_seqs > 0) { shape->dec.num_seqs = num_seqs; }
}

static bool is_allowed(const ShapeRules* rules, const MeasureShape* shape) {
    DynapipeBatch counts;
    measure_shape_counts(&counts, shape);
    MbShape features = measure_batch_shape(&counts);
    return shape_rules_allow(rules, &features);
}

static void shorten(MeasureSide* side) {
    side->long_tokens = (side->long_tokens + 1) / 2;
}

// Fewer windows, then shorter ones.
void measure_shape_fit(MeasureShape* shape, const DynapipeBlocks_v1* blocks, const MeasureLengths* lengths) {
    const ShapeRules rules = session_rules(&blocks->shapes);
    enum { HALVINGS = 31 };
    int32_t num_seqs = shape->enc.num_seqs;
    if (rules.max_seqs > 0 && num_seqs > rules.max_seqs) { num_seqs = (int32_t)rules.max_seqs; }
    for (int i = 0; i < HALVINGS; i++) {
        fit_windows(&shape->enc, blocks, &rules, lengths->seq_tokens);
        fit_windows(&shape->dec, blocks, &rules, lengths->target_tokens);
        int32_t step = seqs_step(&rules, shape);
        for (;; num_seqs /= 2) {
            num_seqs = round_up(num_seqs, step);
            set_seqs(shape, num_seqs);
            if (is_allowed(&rules, shape)) { return; }
            if (num_seqs == step) { break; }
        }
        shorten(&shape->enc);
        shorten(&shape->dec);
    }
}

// --- batches -----------------------------------------------------------------------------------------------

static bool is_crossed(const MeasureShape* shape) {
    return shape->crossed && shape->enc.num_seqs > 1;
}

static int64_t cross_of(const MeasureShape* shape) {
    int64_t el = shape->enc.long_tokens, es = shape->enc.short_tokens, others = shape->enc.num_seqs - 1;
    int64_t dl = shape->dec.long_tokens, ds = shape->dec.short_tokens;
    return is_crossed(shape) ? el * ds + es * dl + (others - 1) * es * ds : el * dl + others * es * ds;
}

void measure_shape_counts(DynapipeBatch* out, const MeasureShape* shape) {
    const MeasureSide *enc = &shape->enc, *dec = &shape->dec;
    *out = (DynapipeBatch){
        .num_seqs = enc->num_seqs,
        .num_tokens = measure_side_tokens(enc),
        .num_rows = shape->num_rows,
        .max_seq_tokens = enc->long_tokens,
        .num_squares = squares_of(enc),
        .loss_scale = shape->num_rows > 0 ? 1.0f / (float)shape->num_rows : 1.0f,
    };
    if (dec->num_seqs == 0) { return; }
    out->num_dec_tokens = measure_side_tokens(dec);
    out->max_dec_seq_tokens = dec->long_tokens;
    out->num_dec_squares = squares_of(dec);
    out->num_cross = cross_of(shape);
}

MbShape measure_batch_shape(const DynapipeBatch* batch) {
    return (MbShape){.num_seqs = batch->num_seqs,
                     .enc_tokens = batch->num_tokens,
                     .enc_squares = batch->num_squares,
                     .dec_tokens = batch->num_dec_tokens,
                     .dec_squares = batch->num_dec_squares,
                     .cross_products = batch->num_cross,
                     .supervised_tokens = batch->num_rows};
}

static int32_t* take(int32_t** at, size_t count) {
    int32_t* taken = *at;
    *at += count;
    return taken;
}

Status measure_arrays_init(MeasureArrays* out, int32_t max_tokens) {
    enum { NUM_ARRAYS = 9 };
    size_t count = (size_t)max_tokens + 1;
    *out = (MeasureArrays){.max_tokens = max_tokens};
    out->memory = calloc(NUM_ARRAYS * count, sizeof(int32_t));
    out->keys = calloc(count, sizeof(uint32_t));
    if (out->memory == NULL || out->keys == NULL) {
        measure_arrays_free(out);
        return FAIL(STATUS_NO_MEMORY, "no memory for a micro-batch of %d tokens", max_tokens);
    }
    int32_t* at = out->memory;
    for (int i = 0; i < 2; i++) {
        out->cu_seqlens[i] = take(&at, count);
        out->tokens[i] = take(&at, count);
        out->positions[i] = take(&at, count);
    }
    out->rows = take(&at, count);
    out->targets = take(&at, count);
    out->row_tasks = take(&at, count);
    for (size_t i = 0; i < count; i++) { out->keys[i] = (uint32_t)(rng_mix(i + 1) >> 32); }
    return STATUS_OK;
}

void measure_arrays_free(MeasureArrays* arrays) {
    free(arrays->memory);
    free(arrays->keys);
    *arrays = (MeasureArrays){0};
}

static void fill_side(MeasureArrays* arrays, int which, const MeasureSide* side, int32_t long_idx,
                      int32_t vocab) {
    int32_t at = 0;
    for (int32_t i = 0; i < side->num_seqs; i++) {
        arrays->cu_seqlens[which][i] = at;
        int32_t num_tokens = i == long_idx ? side->long_tokens : side->short_tokens;
        for (int32_t p = 0; p < num_tokens; p++, at++) {
            arrays->positions[which][at] = p;
            arrays->tokens[which][at] = (int32_t)((int64_t)at * 31 % vocab);
        }
    }
    arrays->cu_seqlens[which][side->num_seqs] = at;
}

void measure_shape_batch(DynapipeBatch* out, MeasureArrays* arrays, const MeasureShape* shape,
                         int32_t vocab) {
    const bool has_dec = shape->dec.num_seqs > 0;
    measure_shape_counts(out, shape);
    fill_side(arrays, 0, &shape->enc, 0, vocab);
    if (has_dec) { fill_side(arrays, 1, &shape->dec, is_crossed(shape), vocab); }
    int32_t first_row = (has_dec ? out->num_dec_tokens : out->num_tokens) - shape->num_rows;
    for (int32_t i = 0; i < shape->num_rows; i++) {
        arrays->rows[i] = first_row + i;
        arrays->targets[i] = (int32_t)((int64_t)i * 17 % vocab);
    }
    out->cu_seqlens = arrays->cu_seqlens[0];
    out->tokens = arrays->tokens[0];
    out->positions = arrays->positions[0];
    out->rows = arrays->rows;
    out->targets = arrays->targets;
    out->row_tasks = arrays->row_tasks;
    out->token_keys = arrays->keys;
    if (!has_dec) { return; }
    out->dec_cu_seqlens = arrays->cu_seqlens[1];
    out->dec_tokens = arrays->tokens[1];
    out->dec_positions = arrays->positions[1];
    out->dec_token_keys = arrays->keys;
}
