#include "measure_bytes.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../plan/problem.h"
#include "../run/executor.h"
#include "../run/session.h"
#include "../../util/numbers.h"

bool measure_slice_valid(const DynapipeBlocks_v1* blocks, MeasureSlice slice) {
    int32_t L = measure_num_layers(blocks);
    bool head_alone_fits = !blocks->shapes.head_has_layer;
    if (slice.begin < 0 || slice.end > L || slice.begin > slice.end) { return false; }
    if (slice.has_head && slice.end < L) { return false; }
    if (!slice.has_head && slice.end == L && !head_alone_fits) { return false; }
    return slice.begin < slice.end || (slice.has_head && L > 0 && head_alone_fits);
}

// The block before which the chain is cut in front of this layer: the embedding is block 0, a decoder's goes
// with its first layer.
static int32_t cut_before(const DynapipeBlocks_v1* blocks, int32_t layer) {
    bool behind_second = blocks->num_dec_layers > 0 && layer > blocks->num_layers;
    return layer == 0 ? 0 : layer + 1 + behind_second;
}

static DynapipeRange measure_slice_blocks(const DynapipeBlocks_v1* blocks, MeasureSlice slice) {
    return (DynapipeRange){.begin = cut_before(blocks, slice.begin),
                           .end = cut_before(blocks, slice.end) + slice.has_head};
}

CostStage measure_slice_stage(const DynapipeBlocks_v1* blocks, MeasureSlice slice) {
    int32_t first_dec = blocks->num_layers;
    bool begins_dec =
        blocks->num_dec_layers > 0 && slice.begin > 0 && slice.begin <= first_dec && first_dec < slice.end;
    return (CostStage){.layers = {slice.begin, slice.end},
                       .has_embedding = slice.begin == 0,
                       .has_head = slice.has_head,
                       .has_dec_embedding = begins_dec};
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
    Status status = interface_check_params(&out->params);
    if (status != STATUS_OK) { measure_drop(blocks, out); }
    return status;
}

Status measure_make(MeasureModel* out, const DynapipeBlocks_v1* blocks, MeasureSlice slice, bool has_values) {
    return make_range(out, blocks, measure_slice_blocks(blocks, slice), has_values);
}

bool measure_shares_head(const DynapipeBlocks_v1* blocks) {
    return !blocks->shapes.head_has_layer && measure_num_layers(blocks) > 0 &&
           executor_can_share(blocks->api, HEAD_BY_ROWS);
}

static Status measure_make_head(MeasureModel* out, const DynapipeBlocks_v1* blocks, MeasureHead which) {
    int32_t L = measure_num_layers(blocks);
    DynapipeRange range = measure_slice_blocks(blocks, (MeasureSlice){L - 1, L, false});
    if (which == MEASURE_FEEDS) { range.head = DYNAPIPE_HEAD_FEEDS; }
    if (which == MEASURE_SHARE) {
        range = (DynapipeRange){.begin = range.end, .end = range.end + 1, .head = DYNAPIPE_HEAD_BY_ROWS};
    }
    return make_range(out, blocks, range, false);
}

void measure_drop(const DynapipeBlocks_v1* blocks, MeasureModel* model) {
    if (model->model != NULL) { blocks->drop(blocks->ctx, model->model); }
    *model = (MeasureModel){0};
}

// --- measure_shapes --------------------

// --- what a model takes ------------------------------------------------------------------------------------

static int32_t round_up(int32_t n, int64_t multiple) {
    return (int32_t)((n + multiple - 1) / multiple * multiple);
}

// A window of at least so many tokens of which any number is a micro-batch that the model takes.
static int32_t measure_padded_tokens(const DynapipeBlocks_v1* blocks, int32_t num_tokens) {
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

// --- measure_lines --------------------

enum { CONSTANT = FEATURE_COUNT, NUM_UNKNOWNS, MAX_PIVOTS = 2000 };

// Row k: an unknown of the lines; columns: points, then the slack of each row, then the right-hand side. The
// last row holds what is left of the objective.
typedef struct {
    int32_t num_points, num_columns;
    double* cell;  // [NUM_UNKNOWNS + 1][num_columns]
} Tableau;

static double* row_of(const Tableau* t, int32_t k) {
    return t->cell + (size_t)k * (size_t)t->num_columns;
}

// Largest of each feature and of y: unknowns are counted in these, so that all numbers are near 1.
typedef struct {
    double x[NUM_UNKNOWNS], y;
} Largest;

static double feature_of(const MeasurePoint* point, int32_t k) {
    return k == CONSTANT ? 1 : point->x[k];
}

static Largest largest_of(const MeasurePoint* points, int32_t num_points) {
    Largest out = {0};
    for (int32_t i = 0; i < num_points; i++) {
        for (int32_t k = 0; k < NUM_UNKNOWNS; k++) { out.x[k] = fmax(out.x[k], feature_of(&points[i], k)); }
        out.y = fmax(out.y, points[i].y);
    }
    return out;
}

static void tableau_fill(Tableau* t, const MeasurePoint* points, const Largest* largest) {
    const double LEAST = 1e-4;  // of the largest y: what is smaller counts no more than that
    int32_t rhs = t->num_columns - 1;
    for (int32_t i = 0; i < t->num_points; i++) {
        double weight = 1 / (points[i].y / largest->y + LEAST);
        for (int32_t k = 0; k < NUM_UNKNOWNS; k++) {
            double value = largest->x[k] > 0 ? weight * feature_of(&points[i], k) / largest->x[k] : 0;
            row_of(t, k)[i] = value;
            row_of(t, k)[rhs] += value;
        }
        row_of(t, NUM_UNKNOWNS)[i] = weight * points[i].y / largest->y;
    }
    for (int32_t k = 0; k < NUM_UNKNOWNS; k++) { row_of(t, k)[t->num_points + k] = 1; }
}

static int32_t entering_column(const Tableau* t) {
    const double* objective = row_of(t, NUM_UNKNOWNS);
    int32_t best = -1;
    double most = 1e-10;
    for (int32_t c = 0; c < t->num_columns - 1; c++) {
        if (objective[c] > most) { most = objective[c], best = c; }
    }
    return best;
}

static int32_t leaving_row(const Tableau* t, int32_t column) {
    int32_t best = -1;
    double least = INFINITY;
    for (int32_t k = 0; k < NUM_UNKNOWNS; k++) {
        const double* row = row_of(t, k);
        if (row[column] <= 1e-12) { continue; }
        double ratio = row[t->num_columns - 1] / row[column];
        if (ratio < least) { least = ratio, best = k; }
    }
    return best;
}

static void pivot(Tableau* t, int32_t pivot_row, int32_t column) {
    double* from = row_of(t, pivot_row);
    double scale = 1 / from[column];
    for (int32_t c = 0; c < t->num_columns; c++) { from[c] *= scale; }
    for (int32_t k = 0; k <= NUM_UNKNOWNS; k++) {
        double* row = row_of(t, k);
        double times = row[column];
        if (k == pivot_row || times == 0) { continue; }
        for (int32_t c = 0; c < t->num_columns; c++) { row[c] -= times * from[c]; }
    }
}

// Between the points, slopes are a little off where they stand for steps. And where lines rise with squares
// they are bent along the lengths of windows: between two points that they touch they may lie below what is
// straight.
static void lift(double slope[NUM_UNKNOWNS]) {
    bool is_bent =
        slope[FEATURE_ENC_SQUARES] > 0 || slope[FEATURE_DEC_SQUARES] > 0 || slope[FEATURE_CROSS_PRODUCTS] > 0;
    for (int32_t k = 0; k < NUM_UNKNOWNS; k++) { slope[k] += slope[k] / (is_bent ? 256 : 4096); }
}

// Bytes above which no point may lie: what rounding of numbers and of the last pivots left goes to the
// constant.
static void raise_constant(CostFormula* out, double slope[NUM_UNKNOWNS], const MeasurePoint* points,
                           int32_t num_points) {
    double missing = 0;
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

// Of a slope that is a whole number but for rounding errors: that.
static double tidy(double slope) {
    double near = round(slope);
    return fabs(slope - near) < 1e-6 * (1 + near) ? near : slope;
}

Status measure_lines_fit(CostFormula* out, const MeasurePoint* points, int32_t num_points) {
    *out = (CostFormula){0};
    Largest largest = largest_of(points, num_points);
    if (!(largest.y > 0)) { return STATUS_OK; }
    Tableau t = {.num_points = num_points, .num_columns = num_points + NUM_UNKNOWNS + 1};
    t.cell = calloc((NUM_UNKNOWNS + 1) * (size_t)t.num_columns, sizeof *t.cell);
    if (t.cell == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to fit %d points", num_points); }
    tableau_fill(&t, points, &largest);
    for (int32_t i = 0; i < MAX_PIVOTS; i++) {
        int32_t column = entering_column(&t), row = column < 0 ? -1 : leaving_row(&t, column);
        if (row < 0) { break; }
        pivot(&t, row, column);
    }
    double slope[NUM_UNKNOWNS];
    for (int32_t k = 0; k < NUM_UNKNOWNS; k++) {
        double dual = -row_of(&t, NUM_UNKNOWNS)[num_points + k];
        slope[k] = largest.x[k] > 0 && dual > 1e-12 ? tidy(dual * largest.y / largest.x[k]) : 0;
    }
    free(t.cell);
    lift(slope);
    raise_constant(out, slope, points, num_points);
    return STATUS_OK;
}

// --- measure_pieces --------------------

static void add(MeasureRanges* r, int32_t which, MeasureSlice slice, bool wanted) {
    r->slices[which] = slice;
    r->valid[which] = wanted && measure_slice_valid(r->blocks, slice);
}

static void count_pieces(MeasureRanges* r) {
    for (int32_t i = 0; i < RANGE_COUNT; i++) {
        if (!r->valid[i]) { continue; }
        CostStage stage = measure_slice_stage(r->blocks, r->slices[i]);
        cost_stage_count(r->count[i], r->blocks->num_layers, r->blocks->num_dec_layers, &stage);
    }
}

static void measure_ranges_find(MeasureRanges* out, const DynapipeBlocks_v1* blocks) {
    const int32_t L = measure_num_layers(blocks), E = blocks->num_layers;
    const bool has_dec = blocks->num_dec_layers > 0;
    *out = (MeasureRanges){.blocks = blocks};
    add(out, RANGE_WHOLE, (MeasureSlice){0, L, true}, true);
    add(out, RANGE_FIRST, (MeasureSlice){0, 1, false}, true);
    add(out, RANGE_FIRST_TWO, (MeasureSlice){0, 2, false}, E >= 2);
    add(out, RANGE_ENC, (MeasureSlice){1, 2, false}, E >= 2 + has_dec);
    add(out, RANGE_ENC_TWO, (MeasureSlice){1, 3, false}, E >= 3 + has_dec);
    add(out, RANGE_ENC_END, (MeasureSlice){E - 1, E, false}, has_dec && E >= 2);
    add(out, RANGE_ACROSS, (MeasureSlice){E - 1, E + 1, false}, has_dec);
    add(out, RANGE_DEC_FIRST, (MeasureSlice){E, E + 1, false}, has_dec);
    add(out, RANGE_DEC_FIRST_TWO, (MeasureSlice){E, E + 2, false}, has_dec);
    add(out, RANGE_DEC, (MeasureSlice){E + 1, E + 2, false}, has_dec);
    add(out, RANGE_DEC_TWO, (MeasureSlice){E + 1, E + 3, false}, has_dec);
    add(out, RANGE_DEC_HEAD, (MeasureSlice){E, L, true}, has_dec);
    add(out, RANGE_LAST, (MeasureSlice){L - 1, L, true}, L >= 2);
    add(out, RANGE_HEAD, (MeasureSlice){L, L, true}, L >= 2);
    const MeasureSlice others[] = {
        {0, E, false},     {0, L, false},     {0, L / 2, false}, {L / 2, L, true},
        {1, L, true},      {1, L, false},     {E - 1, L, true},  {1, E, false},
        {0, E + 1, false}, {E / 2, L, false}, {L - 2, L, true},  {L - 2, L, false},
    };
    for (int32_t i = 0; i < RANGE_COUNT - RANGE_OTHERS; i++) { add(out, RANGE_OTHERS + i, others[i], true); }
    count_pieces(out);
}

// --- pieces ------------------------------------------------------------------------------------------------

typedef struct {
    const MeasureRanges* ranges;
    const double* value;
    double* piece;
} Apart;

static bool has(const Apart* a, int32_t range) {
    return a->ranges->valid[range];
}

static double beyond(double value, double known) {
    return fmax(value - known, 0);
}

// One layer more, of the first stack.
static double enc_layer(const Apart* a) {
    const double* v = a->value;
    if (has(a, RANGE_ENC_TWO) && has(a, RANGE_ENC)) { return beyond(v[RANGE_ENC_TWO], v[RANGE_ENC]); }
    if (has(a, RANGE_FIRST_TWO) && has(a, RANGE_FIRST)) { return beyond(v[RANGE_FIRST_TWO], v[RANGE_FIRST]); }
    if (a->ranges->blocks->num_layers > 1) { return beyond(v[RANGE_WHOLE], v[RANGE_LAST]); }
    return has(a, RANGE_FIRST) ? v[RANGE_FIRST] : v[RANGE_WHOLE];
}

static void take_enc(Apart* a) {
    const double* v = a->value;
    double layer = a->piece[PART_ENC_LAYER] = enc_layer(a);
    double once = has(a, RANGE_ENC)       ? beyond(v[RANGE_ENC], layer)
                  : has(a, RANGE_ENC_END) ? beyond(v[RANGE_ENC_END], layer)
                                          : 0;
    a->piece[ONCE_ENC] = once;
    a->piece[PART_EMBEDDING] = has(a, RANGE_FIRST) ? beyond(v[RANGE_FIRST], layer + once) : 0;
    if (has(a, RANGE_ENC_END)) { a->piece[ONCE_ENC_END] = beyond(v[RANGE_ENC_END], layer + once); }
}

static double dec_layer(const Apart* a) {
    const double* v = a->value;
    if (has(a, RANGE_DEC_TWO) && has(a, RANGE_DEC)) { return beyond(v[RANGE_DEC_TWO], v[RANGE_DEC]); }
    if (has(a, RANGE_DEC_FIRST_TWO) && has(a, RANGE_DEC_FIRST)) {
        return beyond(v[RANGE_DEC_FIRST_TWO], v[RANGE_DEC_FIRST]);
    }
    if (a->ranges->blocks->num_dec_layers > 1) { return beyond(v[RANGE_DEC_HEAD], v[RANGE_LAST]); }
    return has(a, RANGE_DEC_FIRST) ? v[RANGE_DEC_FIRST] : v[RANGE_DEC_HEAD];
}

static void take_dec(Apart* a) {
    const double* v = a->value;
    double layer = a->piece[PART_DEC_LAYER] = dec_layer(a);
    double one = has(a, RANGE_DEC) ? v[RANGE_DEC] : 0;
    if (has(a, RANGE_DEC_FIRST)) { one = fmax(one, v[RANGE_DEC_FIRST]); }
    a->piece[ONCE_DEC] = beyond(one, layer);
}

static double sum_of(const Apart* a, int32_t range) {
    double sum = 0;
    for (int32_t p = 0; p < PIECE_COUNT; p++) { sum += a->ranges->count[range][p] * a->piece[p]; }
    return sum;
}

// Which piece takes what a range has beyond the sum of its pieces.
static int32_t piece_for_rest(const int32_t count[PIECE_COUNT]) {
    return count[PART_HEAD]        ? PART_HEAD
           : count[ONCE_ENC_END]   ? ONCE_ENC_END
           : count[PART_DEC_LAYER] ? ONCE_DEC
           : count[PART_EMBEDDING] ? PART_EMBEDDING
                                   : ONCE_ENC;
}

void measure_pieces(double piece[PIECE_COUNT], const MeasureRanges* ranges, const double value[RANGE_COUNT]) {
    Apart a = {ranges, value, piece};
    for (int32_t p = 0; p < PIECE_COUNT; p++) { piece[p] = 0; }
    take_enc(&a);
    if (ranges->blocks->num_dec_layers > 0) { take_dec(&a); }
    for (int32_t with_head = 0; with_head < 2; with_head++) {  // the head takes what nothing before it does
        for (int32_t i = 0; i < RANGE_COUNT; i++) {
            if (!ranges->valid[i] || ranges->slices[i].has_head != with_head) { continue; }
            piece[piece_for_rest(ranges->count[i])] += beyond(value[i], sum_of(&a, i));
        }
    }
}

// --- measure_bytes --------------------

// --- shapes to ask at --------------------------------------------------------------------------------------

enum {
    NUM_SHAPES = 1500,
    NUM_EDGES = 4,
    EDGE_ROWS = 3,
    NUM_POWERS = 13,
    NUM_STEPS = 8,
    MOST_TOKENS = 1 << 17
};

// Counts to ask with, arrays NULL; and what the planner sees of such a micro-batch.
typedef struct {
    DynapipeBatch batch;
    double x[FEATURE_COUNT];
} AskShape;

// A whole number up to `most`, all magnitudes alike; half of them at powers of two and right beside them.
static int32_t draw_count(Rng* rng, int32_t most) {
    int32_t power = 0;
    while (power < 30 && (1 << (power + 1)) <= most) { power++; }
    int32_t n = 1 << rng_between(rng, 0, power);
    n += rng_below(rng, 2) ? rng_between(rng, 0, n - 1) : rng_between(rng, -1, 1);
    return n < 1 ? 1 : n > most ? most : n;
}

static int32_t at_most(int32_t n, int32_t most) {
    return n < most ? n : most;
}

// All windows but one may be shorter.
static MeasureSide draw_side(Rng* rng, int32_t num_seqs, int32_t longest) {
    MeasureSide side = {.num_seqs = num_seqs};
    side.long_tokens = draw_count(rng, longest);
    side.short_tokens = rng_below(rng, 2) ? side.long_tokens : draw_count(rng, side.long_tokens);
    side.short_tokens = at_most(side.short_tokens, MOST_TOKENS / num_seqs);
    return side;
}

// Few and many windows, of a token, short and long ones, on either side: the edges of what there can be.
static MeasureSide edge_side(int32_t which, int32_t num_seqs, int32_t longest) {
    const int32_t windows[NUM_EDGES] = {1, at_most(17, longest), at_most(129, longest), longest};
    int32_t window = at_most(windows[which % NUM_EDGES], MOST_TOKENS / num_seqs);
    return (MeasureSide){num_seqs, window, window};
}

static const int32_t many[NUM_EDGES] = {1, 17, 257, 8192};

// i < EDGE_ROWS * NUM_EDGES^2 (two sides: ^3)
static void edge_make(MeasureShape* out, const MeasureLengths* lengths, int32_t i) {
    int32_t num_seqs = many[i / EDGE_ROWS % NUM_EDGES], rest = i / EDGE_ROWS / NUM_EDGES;
    out->enc = edge_side(rest, num_seqs, lengths->seq_tokens);
    if (lengths->target_tokens > 0) {
        out->dec = edge_side(rest / NUM_EDGES, num_seqs, lengths->target_tokens);
    }
}

// About so many tokens in as few windows as that takes.
static MeasureSide few_windows(int32_t num_tokens, int32_t longest) {
    int32_t num_seqs = (num_tokens + longest - 1) / longest, window = num_tokens / num_seqs;
    return (MeasureSide){num_seqs, num_tokens - (num_seqs - 1) * window, window};
}

// Tokens in as few windows as that takes on one side, windows of a token on the other; or on both: eight
// steps from each power of two to the next, and one token more, where kernels may begin to work in another
// way.
static void threshold_make(MeasureShape* out, const MeasureLengths* lengths, int32_t i) {
    int32_t power = i / 2 / NUM_STEPS % NUM_POWERS, step = i / 2 % NUM_STEPS;
    int32_t num_tokens = (NUM_STEPS + step) * (1 << (power + 1)) + i % 2;
    int32_t sides = i / 2 / NUM_STEPS / NUM_POWERS;
    const MeasureSide none = {0};
    MeasureSide enc = few_windows(num_tokens, lengths->seq_tokens);
    MeasureSide dec = lengths->target_tokens > 0 ? few_windows(num_tokens, lengths->target_tokens) : none;
    int32_t num_seqs =
        sides == 1 || (sides == 2 && dec.num_seqs > enc.num_seqs) ? dec.num_seqs : enc.num_seqs;
    const MeasureSide ones = {num_seqs, 1, 1};
    out->enc = sides == 1 ? ones : enc;
    out->dec = dec.num_seqs == 0 ? none : sides == 0 ? ones : dec;
    out->enc.num_seqs = num_seqs;
    if (out->dec.num_seqs > 0) { out->dec.num_seqs = num_seqs; }
}

static int32_t num_edges(const MeasureLengths* lengths) {
    return EDGE_ROWS * NUM_EDGES * NUM_EDGES * (lengths->target_tokens > 0 ? NUM_EDGES : 1);
}

// Edges come first, then thresholds, the others are drawn.
static bool is_edge(const MeasureLengths* lengths, int32_t i) {
    return i < num_edges(lengths);
}

static bool is_threshold(const MeasureLengths* lengths, int32_t i) {
    return !is_edge(lengths, i) &&
           i - num_edges(lengths) < 2 * NUM_POWERS * NUM_STEPS * (lengths->target_tokens > 0 ? 3 : 1);
}

static void shape_make(MeasureShape* out, Rng* rng, const MeasureLengths* lengths, int32_t i) {
    const bool has_dec = lengths->target_tokens > 0;
    *out = (MeasureShape){0};
    if (is_edge(lengths, i)) {
        edge_make(out, lengths, i);
        return;
    }
    if (is_threshold(lengths, i)) {
        threshold_make(out, lengths, i - num_edges(lengths));
        return;
    }
    int32_t num_seqs = draw_count(rng, rng_below(rng, 2) ? 64 : 8192);
    out->enc = draw_side(rng, num_seqs, lengths->seq_tokens);
    if (has_dec) { out->dec = draw_side(rng, num_seqs, lengths->target_tokens); }
    out->crossed = rng_below(rng, 2) > 0;
}

// Tokens become what padded kernels take by more windows (measure_shape_fit) or by longer ones: here.
static void lengthen(MeasureShape* shape, const DynapipeBlocks_v1* blocks) {
    shape->enc.long_tokens = measure_padded_tokens(blocks, shape->enc.long_tokens);
    shape->dec.long_tokens = measure_padded_tokens(blocks, shape->dec.long_tokens);
}

static void shapes_make(AskShape shapes[NUM_SHAPES], const DynapipeBlocks_v1* blocks,
                        const MeasureLengths* wanted) {
    Rng rng = rng_seed(1);
    const MeasureLengths padded = {measure_padded_tokens(blocks, wanted->seq_tokens),
                                   measure_padded_tokens(blocks, wanted->target_tokens)};
    const MeasureLengths* lengths = &padded;
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        MeasureShape shape;
        shape_make(&shape, &rng, lengths, i);
        if (i / 2 % 2) { lengthen(&shape, blocks); }
        measure_shape_fit(&shape, blocks, lengths);
        int32_t num_tokens = measure_side_tokens(lengths->target_tokens > 0 ? &shape.dec : &shape.enc);
        const int32_t rows[EDGE_ROWS] = {0, 1, num_tokens};
        int32_t drawn = rng_below(&rng, 3) ? draw_count(&rng, num_tokens) : num_tokens;
        shape.num_rows = is_edge(lengths, i) ? rows[i % EDGE_ROWS] : is_threshold(lengths, i) ? 0 : drawn;
        measure_shape_counts(&shapes[i].batch, &shape);
        MbShape features = measure_batch_shape(&shapes[i].batch);
        cost_shape_features(shapes[i].x, &features);
    }
}

// --- asking ------------------------------------------------------------------------------------------------

typedef int64_t Ask(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts);

static int64_t ask_kept(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts) {
    return api->acts_bytes(model, counts, DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD);
}

static int64_t ask_dropped(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts) {
    return api->acts_bytes(model, counts, 0);
}

static int64_t ask_scratch(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts) {
    return api->scratch_bytes(model, counts);
}

static int64_t ask_behind(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts) {
    return api->boundary_bytes(model, counts, 1);
}

typedef struct {
    const DynapipeBlocks_v1* blocks;
    MeasureRanges ranges;
    MeasureModel models[RANGE_COUNT];
    MeasureModel of_head[MEASURE_HEAD_COUNT];  // where it can be shared
    AskShape shapes[NUM_SHAPES];
    MeasurePoint points[PIECE_COUNT][NUM_SHAPES];
} Asker;

static void ask_all(double value[RANGE_COUNT], const Asker* a, Ask* ask, const DynapipeBatch* counts) {
    for (int32_t r = 0; r < RANGE_COUNT; r++) {
        value[r] = a->ranges.valid[r] ? (double)ask(a->blocks->api, a->models[r].model, counts) : 0;
    }
}

static void set_point(Asker* a, int32_t piece, int32_t i, double y) {
    for (int f = 0; f < FEATURE_COUNT; f++) { a->points[piece][i].x[f] = a->shapes[i].x[f]; }
    a->points[piece][i].y = y;
}

static Status fit_pieces(CostFormula out[PIECE_COUNT], Asker* a, Ask* ask) {
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        double value[RANGE_COUNT], piece[PIECE_COUNT];
        ask_all(value, a, ask, &a->shapes[i].batch);
        measure_pieces(piece, &a->ranges, value);
        for (int32_t p = 0; p < PIECE_COUNT; p++) { set_point(a, p, i, piece[p]); }
    }
    for (int32_t p = 0; p < PIECE_COUNT; p++) { TRY(measure_lines_fit(&out[p], a->points[p], NUM_SHAPES)); }
    return STATUS_OK;
}

// The most that any range asks for.
static Status fit_scratch(CostFormula* out, Asker* a) {
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        double value[RANGE_COUNT], most = 0;
        ask_all(value, a, ask_scratch, &a->shapes[i].batch);
        for (int32_t r = 0; r < RANGE_COUNT; r++) { most = fmax(most, value[r]); }
        for (int h = 0; h < MEASURE_HEAD_COUNT; h++) {
            const MeasureModel* of_head = &a->of_head[h];
            const DynapipeBatch* counts = &a->shapes[i].batch;
            if (of_head->model == NULL) { continue; }
            most = fmax(most, (double)ask_scratch(a->blocks->api, of_head->model, counts));
        }
        set_point(a, 0, i, most);
    }
    return measure_lines_fit(out, a->points[0], NUM_SHAPES);
}

// Behind ranges that end in the first stack, and what there is more behind those that end in the second.
static Status fit_boundaries(CostModel* out, Asker* a) {
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        double value[RANGE_COUNT], most[2] = {0};
        ask_all(value, a, ask_behind, &a->shapes[i].batch);
        for (int32_t r = 0; r < RANGE_COUNT; r++) {
            bool in_second = a->ranges.slices[r].end > a->blocks->num_layers;
            if (!a->ranges.slices[r].has_head) { most[in_second] = fmax(most[in_second], value[r]); }
        }
        set_point(a, 0, i, most[0]);
        set_point(a, 1, i, fmax(most[1] - most[0], 0));
    }
    TRY(measure_lines_fit(&out->boundary_bytes, a->points[0], NUM_SHAPES));
    return measure_lines_fit(&out->dec_boundary_bytes, a->points[1], NUM_SHAPES);
}

// --- a shared head -----------------------------------------------------------------------------------------
static int64_t ask_part(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts) {
    return api->part_bytes(model, counts, DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD);
}

static int64_t ask_factors(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts) {
    return api->factor_bytes(model, counts);
}

// Of the range that feeds the head, beyond what `without` says; NULL: all.
static Status fit_feeding(CostFormula* out, Asker* a, Ask* ask, const MeasureModel* without) {
    const DynapipeModel_v1* api = a->blocks->api;
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        const DynapipeBatch* counts = &a->shapes[i].batch;
        double all = (double)ask(api, a->of_head[MEASURE_FEEDS].model, counts);
        set_point(a, 0, i, without == NULL ? all : fmax(all - (double)ask(api, without->model, counts), 0));
    }
    return measure_lines_fit(out, a->points[0], NUM_SHAPES);
}

// What the last chunk has where it feeds the head, what it hands on, and what comes back.
static Status fit_shared_head(CostModel* out, Asker* a) {
    const int once = ONCE_CHAIN_END - PART_COUNT;
    const MeasureModel* plain = &a->of_head[MEASURE_PLAIN];
    TRY(fit_feeding(&out->once_stored_bytes[once], a, ask_kept, plain));
    TRY(fit_feeding(&out->once_forward_bytes[once], a, ask_dropped, plain));
    TRY(fit_feeding(&out->head_in_bytes, a, ask_behind, NULL));
    TRY(fit_feeding(&out->head_part_bytes, a, ask_part, NULL));
    return fit_feeding(&out->head_factor_bytes, a, ask_factors, NULL);
}

static Status make_models(Asker* a) {
    for (int32_t r = 0; r < RANGE_COUNT; r++) {
        if (a->ranges.valid[r]) { TRY(measure_make(&a->models[r], a->blocks, a->ranges.slices[r], false)); }
    }
    for (int h = 0; h < MEASURE_HEAD_COUNT && measure_shares_head(a->blocks); h++) {
        TRY(measure_make_head(&a->of_head[h], a->blocks, (MeasureHead)h));
    }
    return STATUS_OK;
}

// --- all of it ---------------------------------------------------------------------------------------------
static Status fit_all(CostModel* out, Asker* a) {
    CostFormula kept[PIECE_COUNT], dropped[PIECE_COUNT];
    TRY(fit_pieces(kept, a, ask_kept));
    TRY(fit_pieces(dropped, a, ask_dropped));
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
    return measure_shares_head(a->blocks) ? fit_shared_head(out, a) : STATUS_OK;
}

Status measure_bytes_fill(CostModel* out, const DynapipeBlocks_v1* blocks, const MeasureLengths* lengths) {
    Asker* a = calloc(1, sizeof *a);
    if (a == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to ask a model for its bytes"); }
    a->blocks = blocks;
    measure_ranges_find(&a->ranges, blocks);
    shapes_make(a->shapes, blocks, lengths);
    Status status = make_models(a);
    if (status == STATUS_OK) { status = fit_all(out, a); }
    for (int32_t r = 0; r < RANGE_COUNT; r++) { measure_drop(blocks, &a->models[r]); }
    for (int h = 0; h < MEASURE_HEAD_COUNT; h++) { measure_drop(blocks, &a->of_head[h]); }
    free(a);
    return status;
}

// --- measure_state --------------------
// measure_state.c -- parameters, gradients and optimizer state of every piece, and what of it is tied: asked
// of ranges of the model.

typedef struct {
    const DynapipeBlocks_v1* blocks;
    MeasureRanges ranges;
    MeasureModel models[RANGE_COUNT];
    int64_t param_bytes, grad_bytes;  // of one value
    int32_t num_shards;
} State;

static int64_t type_bytes(int32_t type) {
    return type == DYNAPIPE_FLOAT32 ? 4 : 2;
}

static int64_t state_bytes(const State* s, int64_t num_values) {
    int64_t optimizer = num_values * s->blocks->optimizer_bytes;
    return num_values * (s->param_bytes + s->grad_bytes) + (optimizer + s->num_shards - 1) / s->num_shards;
}

static bool has_group(const DynapipeParams_v1* params, int32_t group) {
    for (int32_t i = 0; i < params->num_tied; i++) {
        if (params->tied[i].group == group) { return true; }
    }
    return false;
}

// Values of the tied groups that one range has, and another has (`others_too`) or has not.
static int64_t tied_values(const State* s, int32_t range, int32_t other, bool others_too) {
    int64_t num_values = 0;
    if (!s->ranges.valid[range]) { return 0; }
    const DynapipeParams_v1* params = &s->models[range].params;
    for (int32_t i = 0; i < params->num_tied; i++) {
        bool is_in = s->ranges.valid[other] && has_group(&s->models[other].params, params->tied[i].group);
        num_values += is_in == others_too ? params->tied[i].count : 0;
    }
    return num_values;
}

// What cost_state_bytes() adds and takes off for copies of the embedding is not in its sum of pieces.
static void without_copies(double value[RANGE_COUNT], const State* s, double embedding, double of_head) {
    for (int32_t r = 0; r < RANGE_COUNT; r++) {
        if (!s->ranges.valid[r]) { continue; }
        CostStage stage = measure_slice_stage(s->blocks, s->ranges.slices[r]);
        double copy = stage.has_dec_embedding ? fmin(embedding, value[r]) : 0;
        bool has_both = stage.has_head && (stage.has_embedding || stage.has_dec_embedding);
        value[r] = (double)s->models[r].params.num_params - copy + (has_both ? of_head : 0);
    }
}

// In values; of a chain too short to have a head apart from its embedding nothing is tied.
static void fill(CostModel* out, const State* s) {
    double value[RANGE_COUNT] = {0}, piece[PIECE_COUNT];
    const int32_t middle = s->ranges.valid[RANGE_ENC] ? RANGE_ENC : RANGE_ENC_END;
    int32_t head = s->ranges.valid[RANGE_HEAD] ? RANGE_HEAD : RANGE_LAST;
    int64_t of_head = tied_values(s, RANGE_FIRST, head, true);
    if (head == RANGE_LAST) { of_head -= tied_values(s, RANGE_FIRST, middle, true); }
    if (of_head < 0 || !s->ranges.valid[middle]) { of_head = 0; }
    without_copies(value, s, 0, (double)of_head);
    measure_pieces(piece, &s->ranges, value);
    without_copies(value, s, piece[PART_EMBEDDING], (double)of_head);
    measure_pieces(piece, &s->ranges, value);
    // (of a stack of two layers, what ends it looks like a part of its layers, not of what is tied)
    int64_t of_embedding = 0;
    if (s->ranges.valid[middle]) { of_embedding = tied_values(s, RANGE_FIRST, middle, false); }
    piece[PART_EMBEDDING] = fmax(piece[PART_EMBEDDING], (double)of_embedding);
    if (of_head > 0) { piece[PART_HEAD] = fmax(piece[PART_HEAD], (double)of_embedding); }
    for (int p = 0; p < PIECE_COUNT; p++) {
        int64_t num_values = (int64_t)piece[p];
        out->part_param_bytes[p] = num_values * s->grad_bytes;
        out->part_state_bytes[p] = state_bytes(s, num_values);
    }
    out->tied_param_bytes = of_embedding * s->grad_bytes;
    out->tied_stack_bytes = tied_values(s, RANGE_FIRST, middle, true) * s->grad_bytes;
    out->tied_head_state_bytes =
        of_head * (s->param_bytes + s->grad_bytes) + s->blocks->optimizer_bytes * of_head / s->num_shards;
}

// The head's matrix, which a share has of it, and what the chunk that feeds the head has besides.
static Status fill_shared_head(CostModel* out, const State* s) {
    MeasureModel of_head[MEASURE_HEAD_COUNT] = {{0}};
    int64_t num_values[MEASURE_HEAD_COUNT] = {0};
    Status status = STATUS_OK;
    for (int h = 0; h < MEASURE_HEAD_COUNT && status == STATUS_OK; h++) {
        status = measure_make_head(&of_head[h], s->blocks, (MeasureHead)h);
        num_values[h] = of_head[h].params.num_params;
    }
    for (int h = 0; h < MEASURE_HEAD_COUNT; h++) { measure_drop(s->blocks, &of_head[h]); }
    TRY(status);
    int64_t norm = num_values[MEASURE_FEEDS] - num_values[MEASURE_PLAIN];
    out->part_param_bytes[ONCE_CHAIN_END] = norm * s->grad_bytes;
    out->part_state_bytes[ONCE_CHAIN_END] = state_bytes(s, norm);
    out->head_param_bytes = num_values[MEASURE_SHARE] * s->grad_bytes;
    out->head_state_bytes = state_bytes(s, num_values[MEASURE_SHARE]);
    out->head_vocab = s->blocks->padded_vocab > 0 ? (int32_t)s->blocks->padded_vocab : s->blocks->vocab;
    out->head_is_tied = out->tied_head_state_bytes > 0;
    return STATUS_OK;
}

Status measure_state_fill(CostModel* out, const DynapipeBlocks_v1* blocks, int32_t num_replicas,
                          int32_t zero_stage) {
    State* s = calloc(1, sizeof *s);
    if (s == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to ask a model for its parameters"); }
    s->blocks = blocks;
    s->num_shards = zero_stage > 0 ? num_replicas : 1;
    measure_ranges_find(&s->ranges, blocks);
    Status status = STATUS_OK;
    for (int32_t r = 0; r < RANGE_COUNT && status == STATUS_OK; r++) {
        if (s->ranges.valid[r]) { status = measure_make(&s->models[r], blocks, s->ranges.slices[r], false); }
    }
    if (status == STATUS_OK) {
        s->param_bytes = type_bytes(s->models[RANGE_WHOLE].params.param_type);
        s->grad_bytes = type_bytes(s->models[RANGE_WHOLE].params.grad_type);
        fill(out, s);
        if (measure_shares_head(blocks)) { status = fill_shared_head(out, s); }
    }
    for (int32_t r = 0; r < RANGE_COUNT; r++) { measure_drop(blocks, &s->models[r]); }
    free(s);
    return status;
}

// --- measure_agree --------------------

// Straight lines; above both.
static void formula_raise(CostFormula* a, const CostFormula* b) {
    a->constant = fmax(a->constant, b->constant);
    a->floor = fmax(a->floor, b->floor);
    for (int f = 0; f < FEATURE_COUNT; f++) {
        const CostCurve *ours = &a->curves[f], *theirs = &b->curves[f];
        if (cost_curve_value(theirs, 1) > cost_curve_value(ours, 1)) { a->curves[f] = *theirs; }
    }
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static void bytes_raise(CostModel* a, const CostModel* b) {
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
    a->head_state_bytes = larger(a->head_state_bytes, b->head_state_bytes);
    a->head_param_bytes = larger(a->head_param_bytes, b->head_param_bytes);
    for (int p = 0; p < PIECE_COUNT; p++) {
        a->part_state_bytes[p] = larger(a->part_state_bytes[p], b->part_state_bytes[p]);
        a->part_param_bytes[p] = larger(a->part_param_bytes[p], b->part_param_bytes[p]);
    }
}

static Status raise_over_ranks(CostModel* out, Dynapipe* dp) {
    CostModel *mine = malloc(sizeof *mine), *theirs = malloc(sizeof *theirs);
    Status status =
        mine != NULL && theirs != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "no memory for a cost model");
    if (status == STATUS_OK) { *mine = *out; }
    for (int32_t r = 0; r < dp->transport.num_ranks && status == STATUS_OK; r++) {
        *theirs = *mine;
        status = collective_broadcast(&dp->world, theirs, sizeof *theirs, r);
        if (status != STATUS_OK) { break; }
        if (r == 0) { *out = *theirs; }
        bytes_raise(out, theirs);
    }
    free(mine);
    free(theirs);
    return status;
}

Status measure_agree(CostModel* out, Dynapipe* dp, Status status) {
    int32_t num_ranks = dp->transport.num_ranks;
    double* hashes = calloc(2 * (size_t)num_ranks, sizeof *hashes);
    if (hashes == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    hashes[dp->transport.rank] = (double)(hash_finish(hash_bytes(HASH_SEED, out, sizeof *out)) >> 12);
    hashes[num_ranks + dp->transport.rank] = status != STATUS_OK;
    Status sent = collective_all_reduce_sum(&dp->world, hashes, 2 * num_ranks);
    bool differ = false;
    int32_t failed = -1;
    for (int32_t r = 0; r < num_ranks; r++) {
        differ |= hashes[r] != hashes[0];
        if (hashes[num_ranks + r] != 0) { failed = r; }
    }
    free(hashes);
    if (status != STATUS_OK) { return status; }
    TRY(sent);
    if (failed >= 0) { return FAIL(STATUS_DEVICE, "rank %d could not ask its model for bytes", failed); }
    return differ ? raise_over_ranks(out, dp) : STATUS_OK;
}
