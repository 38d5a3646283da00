#include "measure_times.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"
#include "measure_estimate.h"
#include "measure_points.h"

enum { NUM_ROUNDS = 20 };

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

// Larger shapes than any measured lie on the line of the last two knots. So a curve does not end level, where
// its last points were pooled: these are one knot in their middle; and the knot before the last is not near
// it.
static int end_curve(double* x, double* y, int num_points) {
    int pool = num_points - 1, kept = 0;
    if (num_points < 2) { return num_points; }
    while (pool > 0 && y[pool - 1] == y[num_points - 1]) { pool--; }
    double last = 0;
    for (int i = pool; i < num_points; i++) { last += x[i] / (num_points - pool); }
    for (int i = 0; i < pool; i++) { kept += x[i] <= last * 0.55; }
    x[kept] = last;
    y[kept] = y[num_points - 1];
    return kept + 1;
}

// y of a feature's points, not below the one before nor below 0; the main one's curve begins at its first
// point, the others' at 0. Points count by how exact they are: by the job that they are a part of.
static void set_curve(CostCurve* curve, double* x, double* y, const double* weights, int num_points,
                      bool is_main) {
    curve->num_knots = 0;
    measure_isotonic(y, weights, num_points);
    num_points = end_curve(x, y, num_points);
    if (num_points > 0 && !is_main) { curve->x[curve->num_knots++] = 1; }
    for (int i = 0; i < num_points && curve->num_knots < COST_MAX_KNOTS; i++) {
        if (curve->num_knots > 0 && x[i] <= curve->x[curve->num_knots - 1]) { continue; }
        curve->x[curve->num_knots] = x[i];
        curve->y[curve->num_knots++] = y[i] > 0 ? y[i] : 0;
    }
}

// Through what the feature's points take beyond the others' curves. Attention has no weights.
static void fit_feature(CostPartMode* part, const MeasurePoints* p, const CostPartMode* base,
                        CostFeature feature, JobKind job) {
    double x[MEASURE_MAX_POINTS], y[MEASURE_MAX_POINTS], weights[MEASURE_MAX_POINTS];
    CostCurve fitted = {0}, *curve = &part->time_ns[job].curves[feature];
    int num_points = 0;
    curve->num_knots = 0;
    if (is_quadratic(feature) && job == JOB_W) { return; }
    for (int32_t i = 0; i < p->num_points; i++) {
        const MeasuredPoint* point = &p->points[i];
        if (point->feature != feature || !point->is_known) { continue; }
        double ns = point->times.ns[job], known = time_at(part, job, &point->shape);
        if (base != NULL) { known += time_at(base, job, &point->shape); }
        x[num_points] = measure_points_feature(&point->shape, feature);
        y[num_points] = ns - known;
        weights[num_points++] = 1 / (1 + ns * ns);
    }
    set_curve(&fitted, x, y, weights, num_points, feature == p->main);
    *curve = fitted;
}

static void fit_part(CostModel* out, const MeasurePoints* p) {
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

// One layer, and where `deep` several of them.
typedef struct {
    Bench one, deep;
} Benches;

static int32_t layers_of(const MeasurePoints* p, const MeasuredPoint* point) {
    return point->is_deep ? p->deep.end - p->deep.begin : 1;
}

// Would this point take more than its list can spare? By the largest before it of its feature; the curve goes
// on as a straight line then. All ranks have the same numbers.
static bool is_too_long(const Measure* m, const MeasurePoints* p, int32_t i) {
    const MeasuredPoint *point = &p->points[i], *last = NULL;
    for (int32_t k = 0; k < i; k++) {
        if (p->points[k].feature == point->feature && p->points[k].is_known) { last = &p->points[k]; }
    }
    if (point->is_small || last == NULL) { return false; }
    double growth = measure_points_feature(&point->shape, point->feature) /
                    measure_points_feature(&last->shape, point->feature);
    if (is_quadratic(point->feature)) {
        growth = pow(growth, 0.65);
    }  // the rest of the job grows by its root
    double expected_ns = growth * run_ns(&last->times) * layers_of(p, point);
    double left_ns = (double)(m->list_end_ns - m->spent_ns);
    return expected_ns > left_ns * (point->is_between ? 0.125 : 0.75);
}

static Status time_point(MeasuredPoint* point, const MeasurePoints* p, Measure* m, Benches* benches) {
    point->is_known = !is_too_long(m, p, (int32_t)(point - p->points));
    if (!point->is_known) {
        m->num_points--;
        m->list_points_left--;
        return STATUS_OK;
    }
    TRY(bench_time(&point->times, point->is_deep ? &benches->deep : &benches->one, &point->shape));
    for (int job = 0; job < JOB_COUNT; job++) { point->times.ns[job] /= layers_of(p, point); }
    return STATUS_OK;
}

// Steps between others come last: by then it is known what time is left.
static Status time_points(MeasurePoints* p, Measure* m, Benches* benches) {
    for (int between = 0; between < 2; between++) {
        for (int32_t i = 0; i < p->num_points; i++) {
            MeasuredPoint* point = &p->points[i];
            if (point->is_between == (between == 1)) { TRY(time_point(point, p, m, benches)); }
        }
    }
    return STATUS_OK;
}

// Small shapes whose layer, with all it works on, would stay in a cache from run to run, as it does not in
// training. All ranks choose alike.
static Status find_deep(MeasurePoints* p, Bench* bench) {
    enum { CPU_COLD_BYTES = 32 << 20, GPU_COLD_BYTES = 128 << 20 };
    double touched[MEASURE_MAX_POINTS] = {0};
    double cold = measure_is_gpu(bench->measure) ? GPU_COLD_BYTES : CPU_COLD_BYTES;
    MeasureShape shapes[MEASURE_MAX_POINTS];
    if (p->deep.begin == p->deep.end) { return STATUS_OK; }
    for (int32_t i = 0; i < p->num_points; i++) { shapes[i] = p->points[i].shape; }
    TRY(bench_touched_bytes(touched, bench, shapes, p->num_points));
    for (int32_t i = 0; i < p->num_points; i++) { p->points[i].is_deep = touched[i] < cold; }
    return STATUS_OK;
}

// With buffers for the shapes of the list that are measured so.
static Status open_bench(Bench* bench, MeasurePoints* p, Measure* m, bool deep) {
    MeasureShape shapes[MEASURE_MAX_POINTS];
    int32_t num_shapes = 0;
    for (int32_t i = 0; i < p->num_points; i++) {
        if (p->points[i].is_deep || !deep) { shapes[num_shapes++] = p->points[i].shape; }
    }
    if (num_shapes == 0) { return STATUS_OK; }
    TRY(bench_init(bench, m, deep ? p->deep : p->slice, shapes, num_shapes));
    return bench_warm(bench, &shapes[num_shapes - 1]);
}

static Status measure_update(CostModel* out, Bench* bench) {
    double update_ns;
    TRY(bench_update_ns(&update_ns, bench));
    int32_t bytes_per_value = collective_type_bytes((DynapipeType)bench->model.params.grad_type);
    out->update_ns_per_byte = update_ns / bytes_per_value;
    return STATUS_OK;
}

static Status measure_points(MeasurePoints* p, Measure* m, CostModel* out, bool with_update) {
    Benches benches = {.one = {.measure = m}, .deep = {.measure = m}};
    Status status = open_bench(&benches.one, p, m, false);
    if (status == STATUS_OK) { status = find_deep(p, &benches.one); }
    if (status == STATUS_OK) { status = open_bench(&benches.deep, p, m, true); }
    if (status == STATUS_OK) { status = time_points(p, m, &benches); }
    if (status == STATUS_OK && with_update) { status = measure_update(out, &benches.one); }
    bench_free(&benches.deep);
    bench_free(&benches.one);
    if (status == STATUS_OK) { fit_part(out, p); }
    return status;
}

// Each list its share of the time that is left: what one does not need is for those behind it.
static Status measure_lists(CostModel* out, Measure* m, MeasurePoints* lists) {
    int32_t share_left = 0;
    m->num_points = 1;  // the update
    for (int i = 0; i < MEASURE_LISTS; i++) {
        m->num_points += lists[i].num_points;
        share_left += lists[i].share;
    }
    int with_update = lists[LIST_EMBEDDING].num_points > 0 ? LIST_EMBEDDING : LIST_LAYER;
    for (int i = 0; i < MEASURE_LISTS; i++) {
        if (lists[i].num_points == 0) { continue; }
        m->list_end_ns = m->spent_ns + (m->budget_ns - m->spent_ns) / share_left * lists[i].share;
        m->list_points_left = lists[i].num_points;
        TRY(measure_points(&lists[i], m, out, i == with_update));
        share_left -= lists[i].share;
    }
    return STATUS_OK;
}

Status measure_times(CostModel* out, Measure* m) {
    MeasurePoints* lists = calloc(MEASURE_LISTS, sizeof *lists);
    if (lists == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for what is to be measured"); }
    for (int part = 0; part < PART_COUNT; part++) {
        memset(out->parts[RECOMPUTE_NONE][part].time_ns, 0, sizeof out->parts[RECOMPUTE_NONE][part].time_ns);
    }
    m->begin_ns = clock_now_ns();
    measure_points_list(lists, m);
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
