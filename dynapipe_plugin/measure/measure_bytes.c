#include "measure_bytes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/numbers.h"
#include "../plan/problem.h"
#include "../run/session.h"

// --- ranges ------------------------------------------------------------------------------------------------

bool measure_slice_valid(const DynapipeBlocks_v1* blocks, MeasureSlice slice) {
    int32_t L = measure_num_blocks(blocks);
    bool head_alone_fits = !blocks->shapes.head_has_layer;
    if (slice.begin < 0 || slice.end > L || slice.begin > slice.end) { return false; }
    if (slice.has_head && slice.end < L) { return false; }
    if (!slice.has_head && slice.end == L && !head_alone_fits) { return false; }
    return slice.begin < slice.end || (slice.has_head && L > 0 && head_alone_fits);
}

// Of a DynapipeRange: the embedding is block 0, a decoder's belongs to its first block.
static int32_t cut_before(const DynapipeBlocks_v1* blocks, int32_t block) {
    const PlanChain chain = measure_chain(blocks);
    bool has_second = chain.num_dec_layers > 0 && block > plan_chain_first_dec(&chain);
    return block == 0 ? 0 : block + 1 + has_second;
}

static DynapipeRange slice_blocks(const DynapipeBlocks_v1* blocks, MeasureSlice slice) {
    return (DynapipeRange){.begin = cut_before(blocks, slice.begin),
                           .end = cut_before(blocks, slice.end) + slice.has_head};
}

CostStage measure_slice_stage(const DynapipeBlocks_v1* blocks, MeasureSlice slice) {
    const PlanChain chain = measure_chain(blocks);
    const BlockRange range = {slice.begin, slice.end};
    return cost_stage_make(&chain, &range, slice.begin == 0, slice.has_head);
}

Status measure_failed(const DynapipeBlocks_v1* blocks, const char* function, int error) {
    const char* why = blocks->why != NULL ? blocks->why(blocks->ctx) : NULL;
    if (why != NULL) { return FAIL(STATUS_DEVICE, "%s: %s: %s", blocks->signature, function, why); }
    return FAIL(STATUS_DEVICE, "%s: %s: error %d", blocks->signature, function, error);
}

static Status make_range(MeasureModel* out, const DynapipeBlocks_v1* blocks, DynapipeRange range,
                         bool has_values) {
    *out = (MeasureModel){0};
    int error = blocks->make(blocks->ctx, range, has_values, &out->model, &out->params);
    if (error != 0) {
        *out = (MeasureModel){0};
        return measure_failed(blocks, "make", error);
    }
    Status status = interface_check_params(&out->params, false);
    if (status != STATUS_OK) { measure_drop(blocks, out); }
    return status;
}

Status measure_make(MeasureModel* out, const DynapipeBlocks_v1* blocks, MeasureSlice slice, bool has_values) {
    return make_range(out, blocks, slice_blocks(blocks, slice), has_values);
}

void measure_drop(const DynapipeBlocks_v1* blocks, MeasureModel* model) {
    if (model->model != NULL) { blocks->drop(blocks->ctx, model->model); }
    *model = (MeasureModel){0};
}

bool measure_shares_head(const DynapipeBlocks_v1* blocks) {
    bool by_vocabulary = blocks->api->part_bytes != NULL && !blocks->shapes.head_has_layer;
    return measure_num_blocks(blocks) > 0 && (blocks->shapes.head_by_rows || by_vocabulary);
}

// Of a head that can be shared: the last block alone, the same where it feeds the head, no block that feeds
// the head, and a share by rows.
typedef enum {
    HEAD_RANGE_PLAIN,
    HEAD_RANGE_FEEDS,
    HEAD_RANGE_FEEDS_ALONE,
    HEAD_RANGE_SHARE,
    HEAD_RANGE_COUNT
} HeadRange;

static Status make_head_range(MeasureModel* out, const DynapipeBlocks_v1* blocks, HeadRange which) {
    int32_t L = measure_num_blocks(blocks);
    DynapipeRange range = slice_blocks(blocks, (MeasureSlice){L - 1, L, false});
    if (which == HEAD_RANGE_FEEDS) { range.head = DYNAPIPE_HEAD_FEEDS; }
    if (which == HEAD_RANGE_FEEDS_ALONE) {
        range = (DynapipeRange){.begin = range.end, .end = range.end, .head = DYNAPIPE_HEAD_FEEDS};
    }
    if (which == HEAD_RANGE_SHARE) {
        range = (DynapipeRange){.begin = range.end, .end = range.end + 1, .head = DYNAPIPE_HEAD_BY_ROWS};
    }
    return make_range(out, blocks, range, false);
}

// --- shapes that a model's kernels take --------------------------------------------------------------------

static int32_t round_up(int32_t n, int64_t multiple) {
    return (int32_t)((n + multiple - 1) / multiple * multiple);
}

// Where the number of windows has a limit, their length alone makes tokens a multiple.
static void fit_windows(MeasureSide* side, const DynapipeBlocks_v1* blocks, const ShapeRules* rules,
                        int32_t wanted) {
    if (wanted == 0) { return; }
    int64_t multiple = rules->padded ? shape_rules_multiple(rules, rules->max_seqs > 0 ? 1 : 0) : 1;
    int32_t longest = round_up(wanted, multiple), most = blocks->max_seq_tokens;
    if (most > 0 && longest > most) { longest = (int32_t)(most / multiple * multiple); }
    if (longest < 1) { longest = 1; }
    if (rules->padded) { side->long_tokens = side->short_tokens = round_up(side->long_tokens, multiple); }
    if (side->long_tokens > longest) { side->long_tokens = longest; }
    if (side->short_tokens > side->long_tokens) { side->short_tokens = side->long_tokens; }
}

// So many windows of this length, or a multiple, that tokens are a multiple.
static int64_t seqs_multiple(const ShapeRules* rules, const MeasureSide* side) {
    int64_t multiple = rules->padded && rules->tokens_multiple > 1 ? rules->tokens_multiple : 1;
    return side->num_seqs > 0 ? multiple / shape_greatest_divisor(multiple, side->long_tokens) : 1;
}

// Fewer windows, then shorter ones.
void measure_shape_fit(MeasureShape* shape, const DynapipeBlocks_v1* blocks, const MeasureLengths* lengths) {
    enum { HALVINGS = 31 };
    const ShapeRules rules = session_rules(&blocks->shapes);
    MeasureSide *enc = &shape->enc, *dec = &shape->dec;
    int32_t num_seqs = enc->num_seqs;
    if (rules.max_seqs > 0 && num_seqs > rules.max_seqs) { num_seqs = (int32_t)rules.max_seqs; }
    for (int i = 0; i < HALVINGS; i++) {
        fit_windows(enc, blocks, &rules, lengths->seq_tokens);
        fit_windows(dec, blocks, &rules, lengths->target_tokens);
        int64_t of_enc = seqs_multiple(&rules, enc), of_dec = seqs_multiple(&rules, dec);
        int32_t step = (int32_t)(of_enc / shape_greatest_divisor(of_enc, of_dec) * of_dec);
        for (;; num_seqs /= 2) {
            enc->num_seqs = num_seqs = round_up(num_seqs, step);
            if (dec->num_seqs > 0) { dec->num_seqs = num_seqs; }
            MbShape features = measure_mb_shape(shape);
            if (shape_rules_allow(&rules, &features)) { return; }
            if (num_seqs == step) { break; }
        }
        enc->long_tokens = (enc->long_tokens + 1) / 2;
        dec->long_tokens = (dec->long_tokens + 1) / 2;
    }
}

static int64_t squares_of(const MeasureSide* side) {
    int64_t l = side->long_tokens, s = side->short_tokens;
    return side->num_seqs > 0 ? l * l + (side->num_seqs - 1) * s * s : 0;
}

static bool is_crossed(const MeasureShape* shape) {
    return shape->crossed && shape->enc.num_seqs > 1;
}

static int64_t cross_of(const MeasureShape* shape) {
    int64_t el = shape->enc.long_tokens, es = shape->enc.short_tokens, others = shape->enc.num_seqs - 1;
    int64_t dl = shape->dec.long_tokens, ds = shape->dec.short_tokens;
    return is_crossed(shape) ? el * ds + es * dl + (others - 1) * es * ds : el * dl + others * es * ds;
}

// Of a piece that is not the first, nothing.
static MeasureSide encoder_side(const MeasureShape* shape) {
    bool is_earlier = shape->prefix > 0 && shape->dec.num_seqs > 0;
    return is_earlier ? (MeasureSide){.num_seqs = shape->enc.num_seqs} : shape->enc;
}

void measure_shape_counts(DynapipeBatch* out, const MeasureShape* shape) {
    const MeasureSide enc = encoder_side(shape), *dec = &shape->dec;
    *out = (DynapipeBatch){.num_seqs = enc.num_seqs,
                           .num_tokens = measure_side_tokens(&enc),
                           .num_rows = shape->num_rows,
                           .max_seq_tokens = enc.long_tokens,
                           .num_squares = squares_of(&enc),
                           .loss_scale = shape->num_rows > 0 ? 1.0f / (float)shape->num_rows : 1.0f};
    if (dec->num_seqs > 0) {
        out->num_dec_tokens = measure_side_tokens(dec);
        out->max_dec_seq_tokens = dec->long_tokens;
        out->num_dec_squares = squares_of(dec);
        out->num_cross = cross_of(shape);
    }
    if (shape->prefix == 0) { return; }
    int32_t num_tokens = dec->num_seqs > 0 ? dec->long_tokens : enc.long_tokens;
    out->kept_tokens = shape->prefix + num_tokens;
    out->kept_begin = shape->prefix;
    out->kept_enc_tokens = dec->num_seqs > 0 ? shape->enc.long_tokens : 0;
    out->num_prefix = (int64_t)num_tokens * shape->prefix;
}

MbShape measure_mb_shape(const MeasureShape* shape) {
    DynapipeBatch counts;
    measure_shape_counts(&counts, shape);
    return (MbShape){.num_seqs = counts.num_seqs,
                     .enc_tokens = counts.num_tokens,
                     .enc_squares = counts.num_squares,
                     .dec_tokens = counts.num_dec_tokens,
                     .dec_squares = counts.num_dec_squares,
                     .cross_products = counts.num_cross,
                     .supervised_tokens = counts.num_rows,
                     .prefix_tokens = counts.kept_begin,
                     .prefix_products = counts.num_prefix,
                     .prefix_enc_tokens = counts.kept_enc_tokens};
}

// --- batches -----------------------------------------------------------------------------------------------

// One side of a microbatch, encoder (or the only one) or decoder.
typedef struct {
    int32_t *cu_seqlens, *tokens, *positions, *seq_lens;
    uint32_t* keys;
    int32_t num_tokens, longest;
    int64_t num_squares;
    bool has_padding;
} MadeSide;

static int32_t made_length(const MadeWindow* window, int side) {
    return window->padded[side] > 0 ? window->padded[side] : window->tokens[side];
}

// Windows of at most `most` tokens, all of a side padded to one length, `padding` more than the longest,
// where it is positive or kernels ask for it. Within the kernels' limits?
static bool fit_made(MadeWindow* windows, int32_t num, const DynapipeBlocks_v1* blocks, int32_t padding,
                     int32_t most) {
    const ShapeRules rules = session_rules(&blocks->shapes);
    const bool has_dec = blocks->num_dec_layers > 0;
    int32_t longest[2] = {0, 0};
    MbShape shape = {0};
    for (int32_t i = 0; i < 2 * num; i++) {
        MadeWindow* window = &windows[i / 2];
        int32_t* tokens = &window->tokens[i % 2];
        if (*tokens > most) { *tokens = most; }
        if (*tokens > longest[i % 2]) { longest[i % 2] = *tokens; }
        if (i % 2 == has_dec && window->num_rows > *tokens) { window->num_rows = *tokens; }
    }
    for (int32_t i = 0; i < num; i++) {
        for (int side = 0; side < 2; side++) {
            const bool pads = (rules.padded || padding > 0) && longest[side] > 0;
            int32_t wanted = longest[side] + padding;
            if (blocks->max_seq_tokens > 0 && wanted > blocks->max_seq_tokens) {
                wanted = blocks->max_seq_tokens;
            }
            windows[i].padded[side] = pads ? (int32_t)shape_rules_round(&rules, wanted, num) : 0;
        }
        mb_shape_add(&shape, made_length(&windows[i], 0), made_length(&windows[i], 1), 0);
    }
    return shape_rules_allow(&rules, &shape);
}

Status made_fit(MadeWindow* windows, int32_t* num, const DynapipeBlocks_v1* blocks, int32_t padding) {
    const int32_t limit = blocks->max_seq_tokens > 0 ? blocks->max_seq_tokens : INT32_MAX;
    int32_t most = 1;
    for (int32_t i = 0; i < 2 * *num; i++) {
        if (windows[i / 2].tokens[i % 2] > most) { most = windows[i / 2].tokens[i % 2]; }
    }
    if (most > limit) { most = limit; }
    while (!fit_made(windows, *num, blocks, padding, most) && (padding > 0 || *num > 1 || most > 1)) {
        *(padding > 0 ? &padding : *num > 1 ? num : &most) -= 1;
    }
    if (windows->padded[0] <= limit) { return STATUS_OK; }
    return FAIL(
        STATUS_OUT_OF_RANGE,
        "windows must be padded to %d tokens, max_seq_tokens is %d ---> check a model that takes longer "
        "sequences",
        (int)windows->padded[0], (int)limit);
}

static Status made_side(MadeSide* out, const MadeWindow* windows, int32_t num, int which, int32_t vocab,
                        Arena* arena) {
    MadeSide side = {0};
    int64_t most = 0;
    for (int32_t i = 0; i < num; i++) { most += made_length(&windows[i], which); }
    ARENA_TRY_NEW(side.cu_seqlens, arena, int32_t, num + 1);
    ARENA_TRY_NEW(side.tokens, arena, int32_t, most);
    ARENA_TRY_NEW(side.positions, arena, int32_t, most);
    ARENA_TRY_NEW(side.seq_lens, arena, int32_t, num);
    ARENA_TRY_NEW(side.keys, arena, uint32_t, most);
    for (int32_t i = 0; i < num; i++) {
        Rng rng = rng_seed((uint64_t)windows[i].id * 2 + (uint64_t)which);
        int32_t length = made_length(&windows[i], which);
        for (int32_t t = 0; t < length; t++) {
            side.tokens[side.num_tokens] = rng_between(&rng, 0, vocab - 1);
            side.positions[side.num_tokens] = t;
            side.keys[side.num_tokens++] = (uint32_t)rng_u64(&rng);
        }
        side.seq_lens[i] = windows[i].tokens[which];
        side.has_padding |= length > side.seq_lens[i];
        side.num_squares += (int64_t)length * length;
        side.cu_seqlens[i + 1] = side.num_tokens;
        if (length > side.longest) { side.longest = length; }
    }
    if (!side.has_padding) { side.seq_lens = NULL; }
    *out = side;
    return STATUS_OK;
}

Status made_batch(DynapipeBatch* out, const MadeWindow* windows, int32_t num, int32_t vocab, Arena* arena) {
    const bool has_dec = windows[0].tokens[1] > 0;
    MadeSide enc, dec = {0};
    int32_t *rows, *targets, *tasks, num_rows = 0;
    int64_t num_cross = 0;
    TRY(made_side(&enc, windows, num, 0, vocab, arena));
    if (has_dec) { TRY(made_side(&dec, windows, num, 1, vocab, arena)); }
    const int32_t *ends = has_dec ? dec.cu_seqlens : enc.cu_seqlens, most = ends[num];
    ARENA_TRY_NEW(rows, arena, int32_t, most);
    ARENA_TRY_NEW(targets, arena, int32_t, most);
    ARENA_TRY_NEW(tasks, arena, int32_t, most);
    for (int32_t i = 0; i < num; i++) {
        Rng rng = rng_seed((uint64_t)windows[i].id + 1000003);
        int32_t end = ends[i] + windows[i].tokens[has_dec];
        for (int32_t left = windows[i].num_rows; left > 0; left--) {  // counted from the sample's end
            rows[num_rows] = end - left;
            targets[num_rows++] = rng_between(&rng, 0, vocab - 1);
        }
        num_cross += (int64_t)made_length(&windows[i], 0) * made_length(&windows[i], 1);
    }
    *out = (DynapipeBatch){.num_seqs = num,
                           .num_tokens = enc.num_tokens,
                           .num_rows = num_rows,
                           .max_seq_tokens = enc.longest,
                           .num_squares = enc.num_squares,
                           .cu_seqlens = enc.cu_seqlens,
                           .tokens = enc.tokens,
                           .positions = enc.positions,
                           .rows = rows,
                           .targets = targets,
                           .row_tasks = tasks,
                           .loss_scale = 1.0f / (float)(num_rows > 0 ? num_rows : 1),
                           .seq_lens = enc.seq_lens,
                           .token_keys = enc.keys,
                           .num_dec_tokens = dec.num_tokens,
                           .max_dec_seq_tokens = dec.longest,
                           .num_dec_squares = dec.num_squares,
                           .num_cross = num_cross,
                           .dec_cu_seqlens = dec.cu_seqlens,
                           .dec_tokens = dec.tokens,
                           .dec_positions = dec.positions,
                           .dec_seq_lens = dec.seq_lens,
                           .dec_token_keys = dec.keys};
    return STATUS_OK;
}

// Tokens [begin, end) of window 0 of one side, and the other windows where `end` is its last one.
static Status piece_side(DynapipeBatch* b, bool is_decoder, int32_t begin, int32_t end, Arena* arena) {
    const int32_t* whole = is_decoder ? b->dec_cu_seqlens : b->cu_seqlens;
    int32_t *cu_seqlens, longest = 0;
    int64_t num_squares = 0;
    ARENA_TRY_NEW(cu_seqlens, arena, int32_t, b->num_seqs + 1);
    for (int32_t i = 0; i < b->num_seqs; i++) {
        cu_seqlens[i + 1] = (i == 0 ? end : whole[i + 1]) - begin;
        int64_t num = cu_seqlens[i + 1] - cu_seqlens[i];
        num_squares += num * num;
        if (num > longest) { longest = (int32_t)num; }
    }
    if (is_decoder) {
        b->dec_cu_seqlens = cu_seqlens;
        b->num_dec_tokens = cu_seqlens[b->num_seqs];
        b->max_dec_seq_tokens = longest;
        b->num_dec_squares = num_squares;
        b->dec_tokens += begin, b->dec_positions += begin, b->dec_token_keys += begin;
    } else {
        b->cu_seqlens = cu_seqlens;
        b->num_tokens = cu_seqlens[b->num_seqs];
        b->max_seq_tokens = longest;
        b->num_squares = num_squares;
        b->tokens += begin, b->positions += begin, b->token_keys += begin;
    }
    return STATUS_OK;
}

Status made_piece(DynapipeBatch* out, const DynapipeBatch* whole, int32_t begin, int32_t end, Arena* arena) {
    const bool has_dec = whole->num_dec_tokens > 0;
    const int32_t num_tokens = (has_dec ? whole->dec_cu_seqlens : whole->cu_seqlens)[1];
    DynapipeBatch b = *whole;
    int32_t first_row = 0, *rows;
    b.num_seqs = end == num_tokens ? whole->num_seqs : 1;
    TRY(piece_side(&b, has_dec, begin, end, arena));
    if (has_dec) {
        const int32_t num_enc = whole->cu_seqlens[1];
        TRY(piece_side(&b, false, begin == 0 ? 0 : num_enc, num_enc, arena));
        b.kept_enc_tokens = num_enc;
        b.kept_enc_keys = whole->token_keys;
        b.num_cross = (int64_t)num_enc * (end - begin);
        if (b.num_seqs > 1) { b.num_cross += whole->num_cross - (int64_t)num_enc * num_tokens; }
    }
    int32_t tokens_end = begin + (has_dec ? b.num_dec_tokens : b.num_tokens);
    ARENA_TRY_NEW(rows, arena, int32_t, whole->num_rows);
    while (first_row < whole->num_rows && whole->rows[first_row] < begin) { first_row++; }
    b.num_rows = 0;
    for (int32_t r = first_row; r < whole->num_rows && whole->rows[r] < tokens_end; r++) {
        rows[b.num_rows++] = whole->rows[r] - begin;
    }
    b.rows = rows;
    b.targets += first_row, b.row_tasks += first_row;
    b.kept_tokens = num_tokens;
    b.kept_begin = begin;
    b.kept_keys = has_dec ? whole->dec_token_keys : whole->token_keys;
    b.num_prefix = (int64_t)begin * (end - begin);
    *out = b;
    return STATUS_OK;
}

Status measure_shape_batch(DynapipeBatch* out, const MeasureShape* shape, int32_t vocab, Arena* arena) {
    const MeasureSide *enc = &shape->enc, *dec = &shape->dec;
    const bool has_dec = dec->num_seqs > 0;
    MadeWindow* windows;
    int32_t left = shape->num_rows;  // the last ones of all
    ARENA_TRY_NEW(windows, arena, MadeWindow, enc->num_seqs);
    for (int32_t i = enc->num_seqs - 1; i >= 0; i--) {
        MadeWindow* window = &windows[i];
        window->id = i;
        window->tokens[0] = i == 0 ? enc->long_tokens : enc->short_tokens;
        if (has_dec) { window->tokens[1] = i == is_crossed(shape) ? dec->long_tokens : dec->short_tokens; }
        window->num_rows = left < window->tokens[has_dec] ? left : window->tokens[has_dec];
        left -= window->num_rows;
    }
    windows[0].tokens[has_dec] += shape->prefix;
    TRY(made_batch(out, windows, enc->num_seqs, vocab, arena));
    if (shape->prefix == 0) { return STATUS_OK; }
    return made_piece(out, out, shape->prefix, windows[0].tokens[has_dec], arena);
}

// --- lines above points ------------------------------------------------------------------------------------
// A linear program of eight unknowns (Dantzig 1947): its dual has a row for each of them and a column for
// each point, and the empty solution is feasible for the simplex method. Points on one line give that line;
// points that are the largest of several lines, or rounded up, give lines above all of them.

enum {
    CONSTANT = FEATURE_COUNT,
    NUM_UNKNOWNS,
    MAX_PIVOTS = 2000  // a fit takes some tens; rounding could make one go in circles
};
// Of numbers near 1: what is smaller is the rounding of some hundreds of sums.
static const double ROUNDING = 1e-10;

// Row k: an unknown of the lines; columns: points, then the slack of each row, then the right-hand side. The
// last row holds what is left of the objective. Unknowns are counted in the largest of each feature and of y,
// so that all numbers are near 1.
typedef struct {
    int32_t num_points, num_columns;
    double* row[NUM_UNKNOWNS + 1];  // [num_columns] each
    double largest[NUM_UNKNOWNS], largest_y;
} Tableau;

static double feature_of(const MeasurePoint* point, int32_t k) {
    return k == CONSTANT ? 1 : point->x[k];
}

static void tableau_fill(Tableau* t, double* cells, const MeasurePoint* points) {
    const double LEAST = 1e-4;  // of the largest y: smaller points have no more weight than that
    for (int32_t k = 0; k <= NUM_UNKNOWNS; k++) { t->row[k] = cells + (size_t)k * (size_t)t->num_columns; }
    for (int32_t i = 0; i < t->num_points; i++) {
        double weight = 1 / (points[i].y / t->largest_y + LEAST);
        for (int32_t k = 0; k < NUM_UNKNOWNS; k++) {
            double value = t->largest[k] > 0 ? weight * feature_of(&points[i], k) / t->largest[k] : 0;
            t->row[k][i] = value;
            t->row[k][t->num_columns - 1] += value;
        }
        t->row[NUM_UNKNOWNS][i] = weight * points[i].y / t->largest_y;
    }
    for (int32_t k = 0; k < NUM_UNKNOWNS; k++) { t->row[k][t->num_points + k] = 1; }
}

// Puts the column that gains most in place of the row that limits it; false: the optimum is found.
static bool pivot(Tableau* t) {
    const int32_t rhs = t->num_columns - 1;
    double most = ROUNDING, least = INFINITY;
    int32_t column = -1, out = -1;
    for (int32_t c = 0; c < rhs; c++) {
        if (t->row[NUM_UNKNOWNS][c] > most) { most = t->row[NUM_UNKNOWNS][c], column = c; }
    }
    for (int32_t k = 0; k < NUM_UNKNOWNS && column >= 0; k++) {
        double ratio = t->row[k][column] > ROUNDING ? t->row[k][rhs] / t->row[k][column] : INFINITY;
        if (ratio < least) { least = ratio, out = k; }
    }
    if (out < 0) { return false; }
    double scale = 1 / t->row[out][column];
    for (int32_t c = 0; c <= rhs; c++) { t->row[out][c] *= scale; }
    for (int32_t k = 0; k <= NUM_UNKNOWNS; k++) {
        double times = t->row[k][column];
        for (int32_t c = 0; c <= rhs && k != out; c++) { t->row[k][c] -= times * t->row[out][c]; }
    }
    return true;
}

// A slope that is a whole number up to rounding errors is rounded.
static double tidy(double slope) {
    double near = round(slope);
    return fabs(slope - near) < 1e-6 * (1 + near) ? near : slope;
}

// Slopes are slightly too small where they approximate steps, and lines over squares are bent along the
// lengths of windows: so all are raised by a part. Any remaining deficit is added to the constant.
static void raise_lines(CostFormula* out, double slope[NUM_UNKNOWNS], const MeasurePoint* points,
                        int32_t num_points) {
    enum { BENT_PART = 256, STEP_PART = 4096 };  // of a slope
    bool is_bent =
        slope[FEATURE_ENC_SQUARES] > 0 || slope[FEATURE_DEC_SQUARES] > 0 || slope[FEATURE_CROSS_PRODUCTS] > 0;
    double missing = 0;
    for (int32_t k = 0; k < NUM_UNKNOWNS; k++) { slope[k] += slope[k] / (is_bent ? BENT_PART : STEP_PART); }
    for (int32_t i = 0; i < num_points; i++) {
        double line = 0;
        for (int32_t k = 0; k < NUM_UNKNOWNS; k++) { line += slope[k] * feature_of(&points[i], k); }
        missing = fmax(missing, points[i].y - line);
    }
    out->constant = ceil(slope[CONSTANT] + missing);
    for (int32_t f = 0; f < FEATURE_COUNT; f++) {
        if (slope[f] > 0) { cost_formula_add_line(out, (CostFeature)f, slope[f]); }
    }
}

Status measure_lines_fit(CostFormula* out, const MeasurePoint* points, int32_t num_points) {
    Tableau t = {.num_points = num_points, .num_columns = num_points + NUM_UNKNOWNS + 1};
    double slope[NUM_UNKNOWNS];
    *out = (CostFormula){0};
    for (int32_t i = 0; i < num_points; i++) {
        for (int32_t k = 0; k < NUM_UNKNOWNS; k++) {
            t.largest[k] = fmax(t.largest[k], feature_of(&points[i], k));
        }
        t.largest_y = fmax(t.largest_y, points[i].y);
    }
    if (!(t.largest_y > 0)) { return STATUS_OK; }
    double* cells = (double*)calloc((NUM_UNKNOWNS + 1) * (size_t)t.num_columns, sizeof *cells);
    if (cells == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to fit %d points", num_points); }
    tableau_fill(&t, cells, points);
    for (int32_t i = 0; i < MAX_PIVOTS && pivot(&t); i++) {}
    for (int32_t k = 0; k < NUM_UNKNOWNS; k++) {
        double dual = -t.row[NUM_UNKNOWNS][num_points + k];
        slope[k] = t.largest[k] > 0 && dual > ROUNDING ? tidy(dual * t.largest_y / t.largest[k]) : 0;
    }
    free(cells);
    raise_lines(out, slope, points, num_points);
    return STATUS_OK;
}

// --- ranges to query ---------------------------------------------------------------------------------------

// Of each stack, whose layers are `num` blocks. Those that a chain is too short for are invalid.
enum {
    STACK_FIRST,                                     // + i - 1: its first i blocks, up to 2 num
    STACK_ONE = STACK_FIRST + 2 * CHAIN_MAX_BLOCKS,  // + j: block j of its second layer
    STACK_LAYER = STACK_ONE + CHAIN_MAX_BLOCKS,   // + j: from there on as many as a layer has; of one layer
                                                  // all, all but the first block
    STACK_MORE = STACK_LAYER + CHAIN_MAX_BLOCKS,  // + j: and one more
    STACK_RANGES = STACK_MORE + CHAIN_MAX_BLOCKS
};
enum {
    RANGE_WHOLE,
    RANGE_ENC,
    RANGE_DEC = RANGE_ENC + STACK_RANGES,
    RANGE_ENC_END = RANGE_DEC + STACK_RANGES,  // the encoder's last layer
    RANGE_DEC_HEAD,                            // the whole decoder and the head
    RANGE_LAST,                                // the last layer and the head
    RANGE_HEAD,                                // the head alone
    RANGE_WITH_LAST,                           // all blocks but the first
    RANGE_BEFORE_LAST,                         // all but the first and the last
    RANGE_OTHERS,                              // from here on: only for bytes that the pieces do not cover
    NUM_OTHERS = 20,
    NUM_WHOLE_OTHERS = 13,  // of whole layers
    RANGE_COUNT = RANGE_OTHERS + NUM_OTHERS
};

enum {
    NUM_SHAPES = 1500,             // asked in milliseconds
    MOST_POWER = 17,               // of two
    MOST_TOKENS = 1 << MOST_POWER  // of a microbatch that is asked about; lines go straight on
};

typedef struct {
    const DynapipeBlocks_v1* blocks;
    PlanChain chain;
    MeasureSlice slices[RANGE_COUNT];
    bool valid[RANGE_COUNT];
    int32_t count[RANGE_COUNT][PIECE_COUNT];  // of each piece in the range
    MeasureModel models[RANGE_COUNT];
    MeasureModel of_head[HEAD_RANGE_COUNT];  // where it can be shared
    DynapipeBatch batches[NUM_SHAPES];
    MeasurePoint points[PIECE_COUNT][NUM_SHAPES];  // x is set once
} Asker;

static void add_range(Asker* a, int32_t r, int32_t begin, int32_t end, bool has_head) {
    a->slices[r] = (MeasureSlice){begin, end, has_head};
    a->valid[r] = measure_slice_valid(a->blocks, a->slices[r]);
    if (!a->valid[r]) { return; }
    CostStage stage = measure_slice_stage(a->blocks, a->slices[r]);
    memcpy(a->count[r], stage.count, sizeof stage.count);
}

// An encoder's ranges do not end it unless there are no others; none has the chain's last block in rows.
static void find_stack(Asker* a, int32_t first_range, int32_t first, int32_t end, int32_t num, bool is_enc) {
    const int32_t last = is_enc && a->chain.num_dec_layers > 0 ? end - 1 : end;
    for (int32_t i = 1; i <= 2 * num && first + i <= end; i++) {
        add_range(a, first_range + STACK_FIRST + i - 1, first, first + i, false);
    }
    const int32_t middle = first + 2 * num <= end ? first + num : first;  // of one layer, that one
    if (middle == first && num > 1) {
        add_range(a, first_range + STACK_LAYER + 1, first + 1, first + num, false);
        if (first > 0) { add_range(a, first_range + STACK_LAYER, first, first + num, false); }
    }
    for (int32_t j = 0; j < num; j++) {
        const int32_t begin = middle + j;
        add_range(a, first_range + STACK_ONE + j, begin, begin + 1, false);
        if (middle == first) { continue; }
        if (begin + num <= (j == 0 ? end : last)) {
            add_range(a, first_range + STACK_LAYER + j, begin, begin + num, false);
        }
        if (begin + num < last) { add_range(a, first_range + STACK_MORE + j, begin, begin + num + 1, false); }
    }
}

// Of a layer that has them all: the blocks that are no last block in rows.
static int32_t usual_blocks(const PlanChain* chain, bool is_enc) {
    const int32_t layers = is_enc ? chain->num_enc_layers : chain->num_dec_layers;
    const bool is_last = chain->last_in_rows && layers == 1 && is_enc == (chain->num_dec_layers == 0);
    return (is_enc ? chain->enc_blocks : chain->dec_blocks) - is_last;
}

static void find_ranges(Asker* a) {
    const PlanChain* chain = &a->chain;
    const int32_t L = plan_chain_num_blocks(chain), E = plan_chain_first_dec(chain), e = chain->enc_blocks;
    const bool has_dec = chain->num_dec_layers > 0, has_parts = chain->enc_blocks * chain->dec_blocks > 1;
    const int32_t d = chain->dec_blocks, l = has_dec ? d : e;
    const MeasureSlice others[NUM_OTHERS] = {
        // of whole layers
        {0, E, false},
        {0, L, false},
        {0, L / 2, false},
        {L / 2, L, true},
        {e, L, true},
        {e, L, false},
        {E - e, L, true},
        {e, E, false},
        {0, E + d, false},
        {E - e, E + d, false},
        {E / 2, L, false},
        {L - 2 * l, L, true},
        {L - 2 * l, L, false},
        // of parts of them
        {1, L, true},
        {1, E, false},
        {L - 1, L, true},
        {L - 1, L, false},
        {E - 1, E + 1, false},
        {E - 1, L, true},
        {0, E + 1, false},
    };
    add_range(a, RANGE_WHOLE, 0, L, true);
    const int32_t end = L - chain->last_in_rows;
    find_stack(a, RANGE_ENC, 0, has_dec ? E : end, usual_blocks(chain, true), true);
    find_stack(a, RANGE_DEC, E, end, usual_blocks(chain, false), false);
    if (has_dec && E > e) { add_range(a, RANGE_ENC_END, E - e, E, false); }
    if (has_dec) { add_range(a, RANGE_DEC_HEAD, E, L, true); }
    if (L > l) {
        add_range(a, RANGE_LAST, L - l, L, true);
        add_range(a, RANGE_HEAD, L, L, true);
    }
    if (has_parts) {
        add_range(a, RANGE_WITH_LAST, 1, L, false);
        add_range(a, RANGE_BEFORE_LAST, 1, L - 1, false);
    }
    for (int32_t i = 0; i < (has_parts ? NUM_OTHERS : NUM_WHOLE_OTHERS); i++) {
        add_range(a, RANGE_OTHERS + i, others[i].begin, others[i].end, others[i].has_head);
    }
}

// --- pieces of ranges --------------------------------------------------------------------------------------

static double beyond(double value, double known) {
    return fmax(value - known, 0);
}

// What `more` has beyond `less` (-1: nothing), where both ranges exist.
static bool difference(double* out, const Asker* a, const double* value, int32_t more, int32_t less) {
    if (!a->valid[more] || (less >= 0 && !a->valid[less])) { return false; }
    *out = less >= 0 ? beyond(value[more], value[less]) : value[more];
    return true;
}

// The piece that is raised where a range has more than the sum of its pieces.
static int32_t piece_for_rest(const int32_t count[PIECE_COUNT]) {
    return count[PART_HEAD]        ? (int)PART_HEAD
           : count[ONCE_ENC_END]   ? (int)ONCE_ENC_END
           : count[ONCE_DEC]       ? (int)ONCE_DEC
           : count[PART_EMBEDDING] ? (int)PART_EMBEDDING
                                   : (int)ONCE_ENC;
}

// Buffers that blocks of one kind have once may be shared with other kinds: of all[j] for block j alone,
// `of_layer` for all of them, the part that all have. (The rest of each is added up in a layer.)
static double once_in_common(const double all[CHAIN_MAX_BLOCKS], int32_t num, double of_layer) {
    double sorted[CHAIN_MAX_BLOCKS], excess = -of_layer, common = 0;
    for (int32_t j = 0; j < num; j++) {
        int32_t at = j;
        for (; at > 0 && sorted[at - 1] > all[j]; at--) { sorted[at] = sorted[at - 1]; }
        sorted[at] = all[j];
        excess += all[j];
    }
    for (int32_t j = 0; j < num - 1 && excess > 0; j++) {
        double step = fmin(sorted[j] - common, excess / (num - 1 - j));
        common += step;
        excess -= step * (num - 1 - j);
    }
    return num > 1 ? common : all[0];
}

// The blocks of a stack's layers, and what a range of them has once.
static void take_stack(double piece[PIECE_COUNT], const Asker* a, const double* value, bool is_enc) {
    const int32_t num = usual_blocks(&a->chain, is_enc);
    const int32_t range = is_enc ? RANGE_ENC : RANGE_DEC, whole = is_enc ? RANGE_WHOLE : RANGE_DEC_HEAD;
    const int32_t first = range + STACK_FIRST;
    double *block = &piece[is_enc ? PART_ENC_BLOCK : PART_DEC_BLOCK], alone[CHAIN_MAX_BLOCKS] = {0};
    double *once = &piece[is_enc ? ONCE_ENC_BLOCK : ONCE_DEC_BLOCK], of_layer = 0;
    for (int32_t j = 0; j < num; j++) {
        const int32_t layer = range + STACK_LAYER + j, more = range + STACK_MORE + j;
        bool found = difference(&block[j], a, value, more, layer) ||
                     difference(&block[j], a, value, first + num + j, first + num + j - 1) ||
                     (j == 0 && num > 1 && difference(&block[j], a, value, first + num - 1, layer + 1)) ||
                     difference(&block[j], a, value, first + j, j > 0 ? first + j - 1 : -1);
        if (!found && j == 0) { difference(&block[j], a, value, whole, -1); }
        if (difference(&alone[j], a, value, range + STACK_ONE + j, -1)) {
            alone[j] = beyond(alone[j], block[j]);
        }
        of_layer -= block[j];
    }
    if (!a->valid[range + STACK_LAYER]) { return; }
    of_layer = fmax(of_layer + value[range + STACK_LAYER], 0);
    double common = piece[is_enc ? ONCE_ENC : ONCE_DEC] = once_in_common(alone, num, of_layer);
    for (int32_t j = 0; j < num; j++) { once[j] = beyond(alone[j], common); }
}

// value[range], 0 of invalid ranges -> piece[], each >= 0, no range's sum of pieces below its value. Of an
// exact sum of pieces: these, where the chain is long enough to tell them apart.
static void take_apart(double piece[PIECE_COUNT], const Asker* a, const double value[RANGE_COUNT]) {
    for (int32_t p = 0; p < PIECE_COUNT; p++) { piece[p] = 0; }
    take_stack(piece, a, value, true);
    if (a->chain.num_dec_layers > 0) { take_stack(piece, a, value, false); }
    if (a->chain.last_in_rows) {
        const int32_t before = a->valid[RANGE_BEFORE_LAST] ? (int32_t)RANGE_BEFORE_LAST : -1;
        difference(&piece[PART_LAST_BLOCK], a, value, RANGE_WITH_LAST, before);
    }
    // the others are what ranges have beyond these, the head last
    for (int with_head = 0; with_head < 2; with_head++) {
        for (int32_t r = 0; r < RANGE_COUNT; r++) {
            if (!a->valid[r] || a->slices[r].has_head != (with_head == 1)) { continue; }
            double sum = 0;
            for (int32_t p = 0; p < PIECE_COUNT; p++) { sum += a->count[r][p] * piece[p]; }
            piece[piece_for_rest(a->count[r])] += beyond(value[r], sum);
        }
    }
}

// --- shapes to query ---------------------------------------------------------------------------------------

// A whole number up to `most`: its ends, or any, all magnitudes alike, half of them at powers of two (and
// eighths between) and one beside, where kernels may begin to work in another way.
static int32_t draw_count(Rng* rng, int32_t most) {
    int32_t power = 0, ends = (int32_t)rng_below(rng, 8);
    if (ends < 2) { return ends == 0 ? 1 : most; }
    while (power < 30 && (1 << (power + 1)) <= most) { power++; }
    int32_t n = 1 << rng_between(rng, 0, power);
    if (rng_below(rng, 2)) {
        n += rng_between(rng, 0, n - 1);
    } else {
        n += (n >= 8 ? n / 8 * rng_between(rng, 0, 7) : 0) + rng_between(rng, -1, 1);
    }
    return n < 1 ? 1 : n > most ? most : n;
}

// All windows but one may be shorter.
static MeasureSide draw_side(Rng* rng, int32_t num_seqs, int32_t longest) {
    MeasureSide side = {.num_seqs = num_seqs, .long_tokens = draw_count(rng, longest)};
    int32_t most_short = MOST_TOKENS / num_seqs;
    side.short_tokens = rng_below(rng, 2) ? side.long_tokens : draw_count(rng, side.long_tokens);
    if (side.short_tokens > most_short) { side.short_tokens = most_short; }
    return side;
}

// So many tokens, as near as that goes, in as few windows as possible.
static MeasureSide few_windows(int32_t num_tokens, int32_t longest) {
    if (longest == 0) { return (MeasureSide){0}; }
    int32_t num_seqs = (num_tokens + longest - 1) / longest, window = num_tokens / num_seqs;
    return (MeasureSide){num_seqs, num_tokens - (num_seqs - 1) * window, window};
}

// Half of the shapes are any windows; half any number of tokens in few windows on one side, windows of one
// token on the other, or few on both.
static void make_shapes(Asker* a, const MeasureLengths* wanted) {
    Rng rng = rng_seed(1);
    const ShapeRules rules = session_rules(&a->blocks->shapes);
    const int64_t multiple = rules.padded ? shape_rules_multiple(&rules, 1) : 1;
    const MeasureLengths lengths = {round_up(wanted->seq_tokens, multiple),
                                    round_up(wanted->target_tokens, multiple)};
    const bool has_dec = lengths.target_tokens > 0;
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        MeasureShape shape = {0};
        MeasureSide *enc = &shape.enc, *dec = &shape.dec;
        if (i % 2) {
            int32_t num_seqs = draw_count(&rng, rng_below(&rng, 2) ? 64 : 8192);
            *enc = draw_side(&rng, num_seqs, lengths.seq_tokens);
            if (has_dec) { *dec = draw_side(&rng, num_seqs, lengths.target_tokens); }
            shape.crossed = rng_below(&rng, 2) > 0;
        } else {
            // first one token more than each power of two: there kernels begin another block
            int32_t turn = i / 2, way = has_dec ? turn % 3 : 0, power = turn / (has_dec ? 3 : 1);
            int32_t num_tokens = power < MOST_POWER ? (1 << power) + 1 : draw_count(&rng, MOST_TOKENS);
            *enc = few_windows(num_tokens, way == 1 ? 1 : lengths.seq_tokens);
            *dec = few_windows(num_tokens, way == 0 && has_dec ? 1 : lengths.target_tokens);
            bool as_dec = way == 1 || (way == 2 && dec->num_seqs > enc->num_seqs);
            if (as_dec) { enc->num_seqs = dec->num_seqs; }
            if (has_dec) { dec->num_seqs = enc->num_seqs; }
        }
        if (i / 2 % 2) {  // tokens become a multiple by longer windows, else by more of them
            enc->long_tokens = round_up(enc->long_tokens, multiple);
            dec->long_tokens = round_up(dec->long_tokens, multiple);
        }
        measure_shape_fit(&shape, a->blocks, &lengths);
        int32_t num_tokens = measure_side_tokens(has_dec ? dec : enc);
        shape.num_rows = rng_below(&rng, i % 2 ? 4 : 2) == 0 ? 0 : draw_count(&rng, num_tokens);
        measure_shape_counts(&a->batches[i], &shape);
        MbShape features = measure_mb_shape(&shape);
        for (int p = 0; p < PIECE_COUNT; p++) { cost_shape_features(a->points[p][i].x, &features); }
    }
}

// --- queries -----------------------------------------------------------------------------------------------

typedef enum { ASK_KEPT, ASK_DROPPED, ASK_SCRATCH, ASK_BOUNDARY, ASK_PART, ASK_FACTORS } Ask;

static double ask_model(const Asker* a, Ask what, void* model, int32_t i) {
    const DynapipeModel_v1* api = a->blocks->api;
    const DynapipeBatch* counts = &a->batches[i];
    const int keep = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD;
    return (double)(what == ASK_KEPT       ? api->acts_bytes(model, counts, keep)
                    : what == ASK_DROPPED  ? api->acts_bytes(model, counts, 0)
                    : what == ASK_SCRATCH  ? api->scratch_bytes(model, counts)
                    : what == ASK_BOUNDARY ? api->boundary_bytes(model, counts, 1)
                    : what == ASK_PART     ? api->part_bytes(model, counts, keep)
                                           : api->factor_bytes(model, counts));
}

static void ask_all(double value[RANGE_COUNT], const Asker* a, Ask what, int32_t i) {
    for (int32_t r = 0; r < RANGE_COUNT; r++) {
        value[r] = a->valid[r] ? ask_model(a, what, a->models[r].model, i) : 0;
    }
}

static Status fit_pieces(CostFormula out[PIECE_COUNT], Asker* a, Ask what) {
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        double value[RANGE_COUNT], piece[PIECE_COUNT];
        ask_all(value, a, what, i);
        take_apart(piece, a, value);
        for (int32_t p = 0; p < PIECE_COUNT; p++) { a->points[p][i].y = piece[p]; }
    }
    for (int32_t p = 0; p < PIECE_COUNT; p++) { TRY(measure_lines_fit(&out[p], a->points[p], NUM_SHAPES)); }
    return STATUS_OK;
}

// The largest need of any range.
static Status fit_scratch(CostFormula* out, Asker* a) {
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        double value[RANGE_COUNT], most = 0;
        ask_all(value, a, ASK_SCRATCH, i);
        for (int32_t r = 0; r < RANGE_COUNT; r++) { most = fmax(most, value[r]); }
        for (int h = 0; h < HEAD_RANGE_COUNT; h++) {
            void* model = a->of_head[h].model;
            if (model != NULL) { most = fmax(most, ask_model(a, ASK_SCRATCH, model, i)); }
        }
        a->points[0][i].y = most;
    }
    return measure_lines_fit(out, a->points[0], NUM_SHAPES);
}

// The last block, or the one before it?
static bool ends_in_rows(const Asker* a, int32_t r) {
    return a->chain.last_in_rows && a->slices[r].end >= plan_chain_num_blocks(&a->chain) - 1;
}

// After ranges that end in the first stack, what there is more after those that end in the second, and of
// rows alone.
static Status fit_boundaries(CostModel* out, Asker* a) {
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        double value[RANGE_COUNT], most[3] = {0};
        ask_all(value, a, ASK_BOUNDARY, i);
        for (int32_t r = 0; r < RANGE_COUNT; r++) {
            const int which = ends_in_rows(a, r) ? 2 : a->slices[r].end > plan_chain_first_dec(&a->chain);
            if (!a->slices[r].has_head) { most[which] = fmax(most[which], value[r]); }
        }
        void* feeding = a->of_head[HEAD_RANGE_FEEDS].model;
        if (feeding != NULL) { most[2] = fmax(most[2], ask_model(a, ASK_BOUNDARY, feeding, i)); }
        a->points[0][i].y = most[0];
        a->points[1][i].y = beyond(most[1], most[0]);
        a->points[2][i].y = most[2];
    }
    TRY(measure_lines_fit(&out->boundary_bytes, a->points[0], NUM_SHAPES));
    TRY(measure_lines_fit(&out->dec_boundary_bytes, a->points[1], NUM_SHAPES));
    return measure_lines_fit(&out->head_in_bytes, a->points[2], NUM_SHAPES);
}

// Of the range that feeds a shared head, beyond what the same range without the head has (`is_more`), or all.
// What any range has, blocks or none, is a part of the blocks' bytes: without a block it is counted here.
static Status fit_feeding(CostFormula* out, Asker* a, Ask what, bool is_more) {
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        double all = ask_model(a, what, a->of_head[HEAD_RANGE_FEEDS].model, i);
        double plain = is_more ? ask_model(a, what, a->of_head[HEAD_RANGE_PLAIN].model, i) : 0;
        double more = beyond(all, plain);
        if (is_more && !a->blocks->shapes.head_has_layer) {
            more = fmax(more, ask_model(a, what, a->of_head[HEAD_RANGE_FEEDS_ALONE].model, i));
        }
        a->points[0][i].y = more;
    }
    return measure_lines_fit(out, a->points[0], NUM_SHAPES);
}

static Status fit_bytes(CostModel* out, Asker* a) {
    const int chain_end = ONCE_CHAIN_END - PART_COUNT;
    CostFormula kept[PIECE_COUNT], dropped[PIECE_COUNT];
    TRY(fit_pieces(kept, a, ASK_KEPT));
    TRY(fit_pieces(dropped, a, ASK_DROPPED));
    for (int part = 0; part < PART_COUNT; part++) {
        out->parts[RECOMPUTE_NONE][part].stored_bytes = out->parts[RECOMPUTE_FULL][part].stored_bytes =
            kept[part];
        out->parts[RECOMPUTE_FULL][part].forward_bytes = dropped[part];
    }
    for (int once = 0; once < ONCE_COUNT; once++) {
        out->once_stored_bytes[once] = kept[PART_COUNT + once];
        out->once_forward_bytes[once] = dropped[PART_COUNT + once];
    }
    out->stage_stored_bytes = out->stage_forward_bytes = (CostFormula){0};
    TRY(fit_scratch(&out->scratch_bytes, a));
    TRY(fit_boundaries(out, a));
    if (!measure_shares_head(a->blocks)) { return STATUS_OK; }
    TRY(fit_feeding(&out->once_stored_bytes[chain_end], a, ASK_KEPT, true));
    TRY(fit_feeding(&out->once_forward_bytes[chain_end], a, ASK_DROPPED, true));
    if (a->blocks->api->part_bytes == NULL) { return STATUS_OK; }  // by rows alone
    TRY(fit_feeding(&out->head_part_bytes, a, ASK_PART, false));
    return fit_feeding(&out->head_factor_bytes, a, ASK_FACTORS, false);
}

// Keys and values that blocks of a causal layer keep, for each of a sample's tokens and each of an encoder's
// (CostKept). False, none is cut: where anything else asks for some, too.
static bool fill_kept_of(CostKept kept[CHAIN_MAX_BLOCKS], const Asker* a, bool is_gradient) {
    const DynapipeModel_v1* api = a->blocks->api;
    const int32_t causal = cost_causal_part(&a->chain), has_dec = a->chain.num_dec_layers > 0;
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        const int32_t enc = a->batches[i].max_seq_tokens, dec = a->batches[i].max_dec_seq_tokens;
        double before[RANGE_COUNT] = {0};
        for (int32_t with_enc = 0; with_enc <= has_dec; with_enc++) {
            DynapipeBatch cut = {.kept_tokens = has_dec ? dec : enc, .kept_enc_tokens = with_enc ? enc : 0};
            double value[RANGE_COUNT] = {0}, piece[PIECE_COUNT];
            for (int32_t r = 0; r < RANGE_COUNT; r++) {
                if (!a->valid[r]) { continue; }
                double all = (double)api->kept_bytes(a->models[r].model, &cut, is_gradient);
                value[r] = beyond(all, before[r]);
                before[r] = all;
            }
            take_apart(piece, a, value);
            for (int32_t p = 0; p < PIECE_COUNT; p++) {
                const int32_t j = p - causal;
                if (piece[p] == 0) { continue; }
                if (j < 0 || j >= CHAIN_MAX_BLOCKS) { return false; }
                int32_t* most = with_enc ? &kept[j].enc_bytes : &kept[j].bytes;
                double bytes = ceil(piece[p] / round_up(with_enc ? enc : cut.kept_tokens, 16));
                if (bytes > INT32_MAX) { return false; }
                if (bytes > *most) { *most = (int32_t)bytes; }
            }
        }
    }
    return true;
}

static void fill_kept(CostModel* out, const Asker* a) {
    memset(out->kept, 0, sizeof out->kept);
    if (a->blocks->api->kept_bytes == NULL) { return; }
    if (!fill_kept_of(out->kept[0], a, false) || !fill_kept_of(out->kept[1], a, true)) {
        memset(out->kept, 0, sizeof out->kept);
    }
}

// --- parameters, gradients, optimizer state ----------------------------------------------------------------

typedef struct {
    int64_t grad_bytes, all_bytes;  // of one value; with the optimizer's
} StateBytes;

static bool has_group(const MeasureModel* range, int32_t group) {
    for (int32_t i = 0; i < range->params.num_tied; i++) {
        if (range->params.tied[i].group == group) { return true; }
    }
    return false;
}

// Values of the tied groups of the first range that another range has as well (`in_both`), or has not.
static int64_t tied_values(const Asker* a, int32_t other, bool in_both) {
    int64_t num_values = 0;
    const int32_t first_layer = RANGE_ENC + STACK_FIRST + a->chain.enc_blocks - 1;
    const MeasureModel* first = &a->models[first_layer];
    for (int32_t i = 0; i < first->params.num_tied && a->valid[first_layer]; i++) {
        const DynapipeTied* tied = &first->params.tied[i];
        bool is_in = a->valid[other] && has_group(&a->models[other], tied->group);
        if (is_in == in_both) { num_values += tied->count; }
    }
    return num_values;
}

// What cost_state_bytes() adds and takes off for copies of the embedding is not in its sum of pieces.
static void take_values_apart(double piece[PIECE_COUNT], const Asker* a, double embedding, double of_head) {
    double value[RANGE_COUNT] = {0};
    for (int32_t r = 0; r < RANGE_COUNT; r++) {
        if (!a->valid[r]) { continue; }
        CostStage stage = measure_slice_stage(a->blocks, a->slices[r]);
        bool has_embedding = stage.count[PART_EMBEDDING] > 0 || stage.has_dec_embedding;
        bool has_both = stage.count[PART_HEAD] > 0 && has_embedding;
        double num_params = (double)a->models[r].params.num_params;
        double copy = stage.has_dec_embedding ? fmin(embedding, num_params + (has_both ? of_head : 0)) : 0;
        value[r] = num_params - copy + (has_both ? of_head : 0);
    }
    take_apart(piece, a, value);
}

// Of a chain too short to have a head apart from its embedding nothing is tied.
static void fill_state(CostModel* out, const Asker* a, const StateBytes* b) {
    double piece[PIECE_COUNT];
    const int32_t layer = RANGE_ENC + STACK_LAYER, middle = layer + !a->valid[layer];
    int32_t head = a->valid[RANGE_HEAD] ? RANGE_HEAD : RANGE_LAST;
    int64_t of_head = tied_values(a, head, true), of_embedding = 0;
    if (head == RANGE_LAST) { of_head -= tied_values(a, middle, true); }
    if (of_head < 0 || !a->valid[middle]) { of_head = 0; }
    if (a->valid[middle]) { of_embedding = tied_values(a, middle, false); }
    take_values_apart(piece, a, 0, (double)of_head);
    take_values_apart(piece, a, piece[PART_EMBEDDING], (double)of_head);
    // (of a stack of two layers, what ends it looks like a part of its layers, not of what is tied)
    piece[PART_EMBEDDING] = fmax(piece[PART_EMBEDDING], (double)of_embedding);
    if (of_head > 0) { piece[PART_HEAD] = fmax(piece[PART_HEAD], (double)of_embedding); }
    for (int p = 0; p < PIECE_COUNT; p++) {
        out->part_param_bytes[p] = (int64_t)piece[p] * b->grad_bytes;
        out->part_state_bytes[p] = (int64_t)piece[p] * b->all_bytes;
    }
    out->tied_param_bytes = of_embedding * b->grad_bytes;
    out->tied_stack_bytes = tied_values(a, middle, true) * b->grad_bytes;
    out->tied_head_state_bytes = of_head * b->all_bytes;
    if (!measure_shares_head(a->blocks)) { return; }
    int64_t share = a->of_head[HEAD_RANGE_SHARE].params.num_params;
    int64_t norm =
        a->of_head[HEAD_RANGE_FEEDS].params.num_params - a->of_head[HEAD_RANGE_PLAIN].params.num_params;
    out->part_param_bytes[ONCE_CHAIN_END] = norm * b->grad_bytes;
    out->part_state_bytes[ONCE_CHAIN_END] = norm * b->all_bytes;
    out->head_param_bytes = share * b->grad_bytes;
    out->head_state_bytes = share * b->all_bytes;
    out->head_vocab = a->blocks->padded_vocab > 0 ? (int32_t)a->blocks->padded_vocab : a->blocks->vocab;
    out->head_is_tied = out->tied_head_state_bytes > 0;
}

// --- all bytes ---------------------------------------------------------------------------------------------

static Status ask_and_fill(CostModel* out, Asker* a, const MeasureLengths* lengths) {
    for (int32_t r = 0; r < RANGE_COUNT; r++) {
        if (a->valid[r]) { TRY(measure_make(&a->models[r], a->blocks, a->slices[r], false)); }
    }
    for (int h = 0; h < HEAD_RANGE_COUNT && measure_shares_head(a->blocks); h++) {
        if (h == HEAD_RANGE_FEEDS_ALONE && a->blocks->shapes.head_has_layer) { continue; }
        TRY(make_head_range(&a->of_head[h], a->blocks, (HeadRange)h));
    }
    const DynapipeParams_v1* params = &a->models[RANGE_WHOLE].params;
    const int64_t grad_bytes = collective_type_bytes((DynapipeType)params->grad_type),
                  param_bytes = collective_type_bytes((DynapipeType)params->param_type),
                  all_bytes = param_bytes + grad_bytes + a->blocks->optimizer_bytes;
    const StateBytes b = {grad_bytes, all_bytes};
    out->optimizer_part = (double)a->blocks->optimizer_bytes / (double)all_bytes;
    fill_state(out, a, &b);
    make_shapes(a, lengths);
    fill_kept(out, a);
    return fit_bytes(out, a);
}

Status measure_bytes_fill(CostModel* out, const DynapipeBlocks_v1* blocks, const MeasureLengths* lengths) {
    Asker* a = (Asker*)calloc(1, sizeof *a);
    if (a == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to ask a model for its bytes"); }
    a->blocks = blocks;
    a->chain = measure_chain(blocks);
    find_ranges(a);
    Status status = ask_and_fill(out, a, lengths);
    for (int32_t r = 0; r < RANGE_COUNT; r++) { measure_drop(blocks, &a->models[r]); }
    for (int h = 0; h < HEAD_RANGE_COUNT; h++) { measure_drop(blocks, &a->of_head[h]); }
    free(a);
    return status;
}

// --- the same on all ranks ---------------------------------------------------------------------------------

// Straight lines; above both.
static void formula_raise(CostFormula* a, const CostFormula* b) {
    a->constant = fmax(a->constant, b->constant);
    a->floor = fmax(a->floor, b->floor);
    for (int f = 0; f < FEATURE_COUNT; f++) {
        if (cost_curve_value(&b->curves[f], 1) > cost_curve_value(&a->curves[f], 1)) {
            a->curves[f] = b->curves[f];
        }
    }
}

static void raise_to(int64_t* a, int64_t b) {
    if (b > *a) { *a = b; }
}

void measure_bytes_raise(CostModel* a, const CostModel* b) {
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            formula_raise(&a->parts[mode][part].stored_bytes, &b->parts[mode][part].stored_bytes);
            formula_raise(&a->parts[mode][part].forward_bytes, &b->parts[mode][part].forward_bytes);
        }
    }
    for (int once = 0; once < ONCE_COUNT; once++) {
        formula_raise(&a->once_stored_bytes[once], &b->once_stored_bytes[once]);
        formula_raise(&a->once_forward_bytes[once], &b->once_forward_bytes[once]);
    }
    formula_raise(&a->boundary_bytes, &b->boundary_bytes);
    formula_raise(&a->dec_boundary_bytes, &b->dec_boundary_bytes);
    formula_raise(&a->scratch_bytes, &b->scratch_bytes);
    formula_raise(&a->head_in_bytes, &b->head_in_bytes);
    formula_raise(&a->head_part_bytes, &b->head_part_bytes);
    formula_raise(&a->head_factor_bytes, &b->head_factor_bytes);
    raise_to(&a->head_state_bytes, b->head_state_bytes);
    raise_to(&a->head_param_bytes, b->head_param_bytes);
    for (int i = 0; i < 2 * CHAIN_MAX_BLOCKS; i++) {
        CostKept* kept = &a->kept[i / CHAIN_MAX_BLOCKS][i % CHAIN_MAX_BLOCKS];
        const CostKept* other = &b->kept[i / CHAIN_MAX_BLOCKS][i % CHAIN_MAX_BLOCKS];
        if (other->bytes > kept->bytes) { kept->bytes = other->bytes; }
        if (other->enc_bytes > kept->enc_bytes) { kept->enc_bytes = other->enc_bytes; }
    }
    for (int p = 0; p < PIECE_COUNT; p++) {
        raise_to(&a->part_state_bytes[p], b->part_state_bytes[p]);
        raise_to(&a->part_param_bytes[p], b->part_param_bytes[p]);
    }
}
