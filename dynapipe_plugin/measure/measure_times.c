#include "measure_times.h"

#include <stdlib.h>
#include <string.h>

#include "../base/clock.h"
#include "measure_estimate.h"

enum { SHORT_TOKENS = 32, MAX_POINTS = 5 * COST_MAX_KNOTS, NUM_ROUNDS = 20 };

typedef enum { ENCODER, DECODER } Side;  // a model with one stack has the first

// A shape to measure, and the feature that it tells of.
typedef struct {
    MeasureShape shape;
    CostFeature feature;
    bool is_known, is_deep;
    BenchTimes times;
} Point;

// The points of one range. What its part takes is beyond `base`, where there is one.
typedef struct {
    MeasureSlice slice;
    MeasureSlice deep;  // of several such layers, for small shapes; empty: none
    CostPart part, base;
    bool has_base;
    CostFeature main;  // what a job costs however little it has to do stands in this one's curve
    int32_t num_points;
    Point points[MAX_POINTS];
} Points;

// --- shapes ------------------------------------------------------------------------------------------------

static CostFeature tokens_of(Side side) {
    return side == ENCODER ? FEATURE_ENC_TOKENS : FEATURE_DEC_TOKENS;
}

// Windows of seq_tokens; the other side's, where there is one, have other_seq_tokens each.
static MeasureShape side_shape(const Measure* m, Side side, int32_t num_tokens, int32_t seq_tokens,
                               int32_t other_seq_tokens) {
    int32_t longest = side == ENCODER ? m->lengths.seq_tokens : m->lengths.target_tokens;
    int32_t window = seq_tokens < num_tokens ? seq_tokens : num_tokens;
    window = window < longest ? window : longest;
    int32_t num_seqs = (num_tokens + window - 1) / window;
    MeasureSide one = {num_seqs, window, window}, other = {num_seqs, other_seq_tokens, other_seq_tokens};
    MeasureShape shape = {.enc = side == ENCODER ? one : other, .dec = side == ENCODER ? other : one};
    if (m->lengths.target_tokens == 0) { shape.dec = (MeasureSide){0}; }
    measure_shape_fit(&shape, m->blocks, &m->lengths);
    return shape;
}

static double feature_of(const MeasureShape* shape, CostFeature feature) {
    double value[FEATURE_COUNT];
    DynapipeBatch batch;
    measure_shape_counts(&batch, shape);
    MbShape features = measure_batch_shape(&batch);
    cost_shape_features(value, &features);
    return value[feature];
}

static void add_point(Points* p, MeasureShape shape, CostFeature feature) {
    double x = feature_of(&shape, feature);
    for (int32_t i = 0; i < p->num_points; i++) {  // padding made it one that there is
        if (p->points[i].feature == feature && feature_of(&p->points[i].shape, feature) >= x) { return; }
    }
    if (p->num_points < MAX_POINTS) {
        p->points[p->num_points++] = (Point){.shape = shape, .feature = feature};
    }
}

// Token counts to measure: `first`, twice that and so on, half steps from 4 * 32 (a GPU: 4 * 64) on, and the
// largest. A GPU is not filled by fewer than 64 tokens: one time for all of them.
static int token_points(int32_t points[COST_MAX_KNOTS], const Measure* m, int32_t max_tokens) {
    int n = 0;
    int32_t first = measure_is_gpu(m) ? 2 * SHORT_TOKENS : 8;
    int32_t halves_from = first < SHORT_TOKENS ? 4 * SHORT_TOKENS : 4 * first;
    for (int32_t t = first; t < max_tokens && n < COST_MAX_KNOTS - 1; t *= 2) {
        points[n++] = t;
        if (t >= halves_from && t + t / 2 < max_tokens && n < COST_MAX_KNOTS - 1) { points[n++] = t + t / 2; }
    }
    points[n++] = max_tokens;
    return n;
}

static void add_tokens(Points* p, const Measure* m, Side side, int step) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, m, m->max_tokens);
    for (int i = (num_points - 1) % step; i < num_points; i += step) {
        add_point(p, side_shape(m, side, points[i], SHORT_TOKENS, 1), tokens_of(side));
    }
}

// A long window, of which one does not fill a GPU: as many as a micro-batch holds.
static int32_t num_long(const Measure* m, int32_t seq_tokens) {
    int32_t num_seqs = m->max_tokens / seq_tokens;
    return measure_is_gpu(m) && num_seqs > 1 ? num_seqs : 1;
}

static void add_squares(Points* p, const Measure* m, Side side) {
    int32_t points[COST_MAX_KNOTS];
    int32_t longest = side == ENCODER ? m->lengths.seq_tokens : m->lengths.target_tokens;
    int num_points = token_points(points, m, longest);
    for (int i = 0; i < num_points; i++) {
        int32_t S = points[i];
        if (S < 2 * SHORT_TOKENS) { continue; }
        add_point(p, side_shape(m, side, num_long(m, S) * S, S, 1),
                  side == ENCODER ? FEATURE_ENC_SQUARES : FEATURE_DEC_SQUARES);
    }
}

// Keys and values, of encoder tokens, in every decoder layer; scores, of long windows on both sides.
static void add_cross(Points* p, const Measure* m) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, m, m->max_tokens);
    for (int i = 0; i < num_points; i++) {
        if (points[i] < SHORT_TOKENS) { continue; }
        add_point(p, side_shape(m, ENCODER, points[i], SHORT_TOKENS, 1), FEATURE_ENC_TOKENS);
    }
    num_points = token_points(points, m, m->lengths.seq_tokens);
    for (int i = 0; i < num_points; i++) {
        int32_t S = points[i], D = m->lengths.target_tokens < S ? m->lengths.target_tokens : S;
        if (S < 2 * SHORT_TOKENS) { continue; }
        add_point(p, side_shape(m, ENCODER, num_long(m, S) * S, S, D), FEATURE_CROSS_PRODUCTS);
    }
}

// Per token: the gradient of the head's inputs is zero but for the supervised rows. The rest is per row.
static void add_head(Points* p, const Measure* m, Side side) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, m, m->max_tokens);
    MeasureShape all = side_shape(m, side, m->max_tokens, SHORT_TOKENS, 1);
    add_point(p, all, tokens_of(side));
    for (int i = 0; i < num_points; i++) {
        MeasureShape shape = side_shape(m, side, points[i], SHORT_TOKENS, 1);
        shape.num_rows = measure_side_tokens(side == ENCODER ? &shape.enc : &shape.dec);
        add_point(p, shape, FEATURE_SUPERVISED);
    }
}

// --- curves ------------------------------------------------------------------------------------------------

static double time_at(const CostPartMode* part, JobKind job, const MeasureShape* shape) {
    DynapipeBatch batch;
    measure_shape_counts(&batch, shape);
    MbShape features = measure_batch_shape(&batch);
    return cost_formula_value(&part->time_ns[job], &features);
}

static bool is_quadratic(CostFeature feature) {
    return feature == FEATURE_ENC_SQUARES || feature == FEATURE_DEC_SQUARES ||
           feature == FEATURE_CROSS_PRODUCTS;
}

// y of a feature's points, not below the one before nor below 0; the main one's curve begins at its first
// point, the others' at 0. Points count by how exact they are: by the job that they are a part of.
static void set_curve(CostCurve* curve, double* x, double* y, const double* weights, int num_points,
                      bool is_main) {
    curve->num_knots = 0;
    measure_isotonic(y, weights, num_points);
    if (num_points > 0 && !is_main) { curve->x[curve->num_knots++] = 1; }
    for (int i = 0; i < num_points && curve->num_knots < COST_MAX_KNOTS; i++) {
        if (curve->num_knots > 0 && x[i] <= curve->x[curve->num_knots - 1]) { continue; }
        curve->x[curve->num_knots] = x[i];
        curve->y[curve->num_knots++] = y[i] > 0 ? y[i] : 0;
    }
}

// Through what the feature's points take beyond the others' curves. Attention has no weights.
static void fit_feature(CostPartMode* part, const Points* p, const CostPartMode* base, CostFeature feature,
                        JobKind job) {
    double x[MAX_POINTS], y[MAX_POINTS], weights[MAX_POINTS];
    CostCurve fitted = {0}, *curve = &part->time_ns[job].curves[feature];
    int num_points = 0;
    curve->num_knots = 0;
    if (is_quadratic(feature) && job == JOB_W) { return; }
    for (int32_t i = 0; i < p->num_points; i++) {
        const Point* point = &p->points[i];
        if (point->feature != feature || !point->is_known) { continue; }
        double ns = point->times.ns[job], known = time_at(part, job, &point->shape);
        if (base != NULL) { known += time_at(base, job, &point->shape); }
        x[num_points] = feature_of(&point->shape, feature);
        y[num_points] = ns - known;
        weights[num_points++] = 1 / (1 + ns * ns);
    }
    set_curve(&fitted, x, y, weights, num_points, feature == p->main);
    *curve = fitted;
}

static void fit_part(CostModel* out, const Points* p) {
    CostPartMode* part = &out->parts[RECOMPUTE_NONE][p->part];
    const CostPartMode* base = p->has_base ? &out->parts[RECOMPUTE_NONE][p->base] : NULL;
    CostPartMode fitted = {0};
    for (int round = 0; round < NUM_ROUNDS; round++) {
        for (int f = 0; f < FEATURE_COUNT; f++) {
            for (JobKind job = JOB_F; job <= JOB_W; job++) {
                fit_feature(&fitted, p, base, (CostFeature)f, job);
            }
        }
    }
    for (int f = 0; f < FEATURE_COUNT; f++) {  // the embedding has two sides, measured one after the other
        for (JobKind job = JOB_F; job <= JOB_W; job++) {
            const CostCurve* curve = &fitted.time_ns[job].curves[f];
            if (curve->num_knots > 0) { part->time_ns[job].curves[f] = *curve; }
        }
    }
}

// --- measuring ---------------------------------------------------------------------------------------------

static double run_ns(const BenchTimes* times) {
    return times->ns[JOB_F] + times->ns[JOB_B] + times->ns[JOB_W];
}

// Would this point take more than half of the time that is left? By the one before it of its feature; the
// curve goes on as a straight line then. All ranks have the same numbers.
static bool is_too_long(const Measure* m, const Points* p, int32_t i) {
    const Point *point = &p->points[i], *last = i > 0 ? &p->points[i - 1] : NULL;
    if (i < 2 || last->feature != point->feature || p->points[i - 2].feature != point->feature) {
        return false;
    }
    if (!last->is_known) { return true; }
    double growth = feature_of(&point->shape, point->feature) / feature_of(&last->shape, point->feature);
    return 2 * growth * run_ns(&last->times) > (double)(m->budget_ns - m->spent_ns) / 2;
}

// On warm-up, all that of this slice is to be measured, in the order of the list.
static Status time_points(Points* p, Measure* m, Bench* bench, bool deep) {
    double num_layers = deep ? p->deep.end - p->deep.begin : 1;
    Status status = STATUS_OK;
    for (int32_t i = 0; i < p->num_points && status == STATUS_OK; i++) {
        Point* point = &p->points[i];
        if (point->is_deep != deep) { continue; }
        point->is_known = !is_too_long(m, p, i);
        if (!point->is_known) {
            m->num_points--;
            continue;
        }
        status = bench_time(&point->times, bench, &point->shape);
        for (int job = 0; job < JOB_COUNT; job++) { point->times.ns[job] /= num_layers; }
    }
    return status;
}

// Small shapes whose layer, with all it works on, would stay in a cache from run to run, as it does not in
// training. All ranks choose alike.
static Status find_deep(Points* p, Bench* bench) {
    enum { CPU_COLD_BYTES = 32 << 20, GPU_COLD_BYTES = 128 << 20 };
    double touched[MAX_POINTS] = {0}, cold = measure_is_gpu(bench->measure) ? GPU_COLD_BYTES : CPU_COLD_BYTES;
    MeasureShape shapes[MAX_POINTS];
    if (p->deep.begin == p->deep.end) { return STATUS_OK; }
    for (int32_t i = 0; i < p->num_points; i++) { shapes[i] = p->points[i].shape; }
    TRY(bench_touched_bytes(touched, bench, shapes, p->num_points));
    for (int32_t i = 0; i < p->num_points; i++) { p->points[i].is_deep = touched[i] < cold; }
    return STATUS_OK;
}

static Status measure_deep(Points* p, Measure* m) {
    MeasureShape shapes[MAX_POINTS];
    int32_t num_shapes = 0;
    Bench bench;
    for (int32_t i = 0; i < p->num_points; i++) {
        if (p->points[i].is_deep) { shapes[num_shapes++] = p->points[i].shape; }
    }
    if (num_shapes == 0) { return STATUS_OK; }
    Status status = bench_init(&bench, m, p->deep, shapes, num_shapes);
    if (status == STATUS_OK) { status = bench_warm(&bench, &shapes[num_shapes - 1]); }
    if (status == STATUS_OK) { status = time_points(p, m, &bench, true); }
    bench_free(&bench);
    return status;
}

static Status measure_update(CostModel* out, Bench* bench) {
    double update_ns;
    TRY(bench_update_ns(&update_ns, bench));
    int32_t bytes_per_value = collective_type_bytes((DynapipeType)bench->model.params.grad_type);
    out->update_ns_per_byte = update_ns / bytes_per_value;
    return STATUS_OK;
}

static Status measure_points(Points* p, Measure* m, CostModel* out, bool with_update) {
    MeasureShape shapes[MAX_POINTS];
    Bench bench;
    for (int32_t i = 0; i < p->num_points; i++) { shapes[i] = p->points[i].shape; }
    Status status = bench_init(&bench, m, p->slice, shapes, p->num_points);
    if (status == STATUS_OK) { status = find_deep(p, &bench); }
    if (status == STATUS_OK) { status = measure_deep(p, m); }
    if (status == STATUS_OK) { status = bench_warm(&bench, &shapes[p->num_points - 1]); }
    if (status == STATUS_OK) { status = time_points(p, m, &bench, false); }
    if (status == STATUS_OK && with_update) { status = measure_update(out, &bench); }
    bench_free(&bench);
    if (status == STATUS_OK) { fit_part(out, p); }
    return status;
}

enum { LAYER, EMBEDDING, DEC_LAYER, DEC_EMBEDDING, HEAD, NUM_LISTS };

// Layer `second` of a stack where that can be a range, else its first with the embedding, else all there is.
static MeasureSlice layer_slice(const DynapipeBlocks_v1* blocks, int32_t first) {
    MeasureSlice slices[] = {{first + 1, first + 2, false}, {first, first + 1, false}};
    bool in_stack = first > 0 ? blocks->num_dec_layers > 1 : blocks->num_layers > 1;
    for (int i = !in_stack; i < 2; i++) {
        if (measure_slice_valid(blocks, slices[i])) { return slices[i]; }
    }
    return (MeasureSlice){first, measure_num_layers(blocks), true};
}

// Several layers behind the one that layer_slice() takes, if that is one: not the last of a stack, behind
// which an encoder ends. Empty where there are no two.
static MeasureSlice deep_slice(const DynapipeBlocks_v1* blocks, MeasureSlice one, int32_t first) {
    enum { MOST_LAYERS = 4 };
    int32_t stack_end = first > 0 ? measure_num_layers(blocks) : blocks->num_layers;
    int32_t end = one.begin + MOST_LAYERS < stack_end - 1 ? one.begin + MOST_LAYERS : stack_end - 1;
    MeasureSlice deep = {one.begin, end, false};
    bool serves = one.begin > first && end > one.begin + 1 && measure_slice_valid(blocks, deep);
    return serves ? deep : (MeasureSlice){0};
}

static void list_stack(Points* layer, Points* embedding, const Measure* m, Side side) {
    int32_t first = side == ENCODER ? 0 : m->blocks->num_layers;
    layer->slice = layer_slice(m->blocks, first);
    layer->deep = deep_slice(m->blocks, layer->slice, first);
    layer->part = side == ENCODER ? PART_ENC_LAYER : PART_DEC_LAYER;
    layer->main = tokens_of(side);
    add_tokens(layer, m, side, 1);
    add_squares(layer, m, side);
    if (side == DECODER) { add_cross(layer, m); }
    if (layer->slice.begin == first) { return; }  // the embedding is in it
    *embedding = (Points){.slice = {first, first + 1, false}, .part = PART_EMBEDDING};
    embedding->main = tokens_of(side);
    embedding->base = layer->part;
    embedding->has_base = true;
    add_tokens(embedding, m, side, 2);
}

static void list_head(Points* head, const Measure* m, Side side) {
    int32_t L = measure_num_layers(m->blocks);
    head->slice = (MeasureSlice){L, L, true};
    head->part = PART_HEAD;
    head->main = FEATURE_SUPERVISED;
    if (!measure_slice_valid(m->blocks, head->slice)) {
        head->slice = (MeasureSlice){L - 1, L, true};
        head->base = side == ENCODER ? PART_ENC_LAYER : PART_DEC_LAYER;
        head->has_base = true;
    }
    add_head(head, m, side);
}

static Status measure_lists(CostModel* out, Measure* m, Points* lists) {
    const bool has_dec = m->blocks->num_dec_layers > 0;
    list_stack(&lists[LAYER], &lists[EMBEDDING], m, ENCODER);
    if (has_dec) { list_stack(&lists[DEC_LAYER], &lists[DEC_EMBEDDING], m, DECODER); }
    list_head(&lists[HEAD], m, has_dec ? DECODER : ENCODER);
    m->num_points = 1;  // the update
    for (int i = 0; i < NUM_LISTS; i++) { m->num_points += lists[i].num_points; }
    int with_update = lists[EMBEDDING].num_points > 0 ? EMBEDDING : LAYER;
    for (int i = 0; i < NUM_LISTS; i++) {
        if (lists[i].num_points > 0) { TRY(measure_points(&lists[i], m, out, i == with_update)); }
    }
    return STATUS_OK;
}

Status measure_times(CostModel* out, Measure* m) {
    Points* lists = calloc(NUM_LISTS, sizeof *lists);
    if (lists == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for what is to be measured"); }
    for (int part = 0; part < PART_COUNT; part++) {
        memset(out->parts[RECOMPUTE_NONE][part].time_ns, 0, sizeof out->parts[RECOMPUTE_NONE][part].time_ns);
    }
    m->begin_ns = clock_now_ns();
    Status status = measure_lists(out, m, lists);
    free(lists);
    return status;
}

void measure_times_set_recompute(CostModel* out) {
    for (int part = 0; part < PART_COUNT; part++) {
        const CostPartMode* none = &out->parts[RECOMPUTE_NONE][part];
        CostPartMode* full = &out->parts[RECOMPUTE_FULL][part];
        memcpy(full->time_ns, none->time_ns, sizeof full->time_ns);
        full->time_ns[JOB_R] = none->time_ns[JOB_F];
    }
}
