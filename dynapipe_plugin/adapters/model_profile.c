#include "model_profile.h"

#include <string.h>

enum { SHORT_TOKENS = 32 };

typedef struct {
    const ModelProfile* about;
    OpsContext* ops;
    ModelBenchSync* sync;
    void* ctx;
} Runner;

static void bench_open(Bench* bench, const Runner* runner, int layer_begin, int layer_end, bool is_last) {
    ModelConfig config = runner->about->config;
    config.num_layers = 3;  // a first, a middle, a last one
    if (config.kind->has_decoder) { config.num_dec_layers = 3; }
    int32_t target = runner->about->max_target_tokens, longest = runner->about->max_seq_tokens;
    model_bench_init(bench, &config, layer_begin, layer_end, is_last, runner->about->max_tokens,
                     target > longest ? target : longest, runner->ops);
    bench->budget_ns = runner->about->budget_ns;
    bench->sync = runner->sync;
    bench->ctx = runner->ctx;
    bench->clock_ns = runner->about->clock_ns;
}

// --- shapes -----------------------------------------------------------------------------------------------

typedef enum { ENCODER, DECODER } Side;  // a model with one stack has the first

static CostFeature tokens_of(Side side) {
    return side == ENCODER ? FEATURE_ENC_TOKENS : FEATURE_DEC_TOKENS;
}

// Sequences of seq_tokens; the other side's, where there is one, have other_seq_tokens each.
static BenchShape side_shape(const Bench* bench, Side side, int num_tokens, int seq_tokens,
                             int other_seq_tokens) {
    int num_seqs = (num_tokens + seq_tokens - 1) / seq_tokens;
    BenchSide one = {num_tokens, seq_tokens}, other = {num_seqs * other_seq_tokens, other_seq_tokens};
    if (side == DECODER) { return (BenchShape){.enc = other, .dec = one}; }
    return bench->model.config.kind->has_decoder ? (BenchShape){.enc = one, .dec = other}
                                                 : (BenchShape){.enc = one};
}

// Sequences of 32 beside one token each.
static BenchShape short_shape(const Bench* bench, Side side, int num_tokens) {
    return side_shape(bench, side, num_tokens, SHORT_TOKENS, 1);
}

// --- curves -----------------------------------------------------------------------------------------------

static void curve_add(CostCurve* curve, double x, double y) {
    if (curve->num_knots == COST_MAX_KNOTS) { return; }
    double floor = curve->num_knots > 0 ? curve->y[curve->num_knots - 1] : 0;
    curve->x[curve->num_knots] = x;
    curve->y[curve->num_knots++] = y > floor ? y : floor;  // costs never fall as a shape grows
}

// Token counts to measure: `first`, twice that and so on, half steps from 4 * 32 (a GPU: 4 * 64) on, and the
// largest. A GPU is not filled by fewer than 64 tokens: one time for all of them.
static int token_points(int32_t points[COST_MAX_KNOTS], const Bench* bench, int32_t max_tokens) {
    int n = 0;
    int32_t first = model_bench_is_gpu(bench) ? 2 * SHORT_TOKENS : 8;
    int32_t halves_from = first < SHORT_TOKENS ? 4 * SHORT_TOKENS : 4 * first;
    for (int32_t t = first; t < max_tokens && n < COST_MAX_KNOTS - 1; t *= 2) {
        points[n++] = t;
        if (t >= halves_from && t + t / 2 < max_tokens && n < COST_MAX_KNOTS - 1) { points[n++] = t + t / 2; }
    }
    points[n++] = max_tokens;
    return n;
}

static void measure_tokens(CostPartMode* layer, Bench* bench, Side side) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, bench, bench->max_tokens);
    for (int i = 0; i < num_points; i++) {
        BenchShape shape = short_shape(bench, side, points[i]);
        BenchTimes times = model_bench_time(bench, &shape);
        for (int job = JOB_F; job <= JOB_W; job++) {
            curve_add(&layer->time_ns[job].curves[tokens_of(side)], points[i], times.ns[job]);
        }
    }
}

// A long sequence, of which one does not fill a GPU: as many as a micro-batch holds.
static int num_long(const Bench* bench, int32_t seq_tokens) {
    int num_seqs = bench->max_tokens / seq_tokens;
    return model_bench_is_gpu(bench) && num_seqs > 1 ? num_seqs : 1;
}

// `x` of the feature that the shape has beyond what the layer's other curves were measured with, and its time
// beyond theirs. A GPU takes nothing more below the first length measured.
static void add_beyond(CostPartMode* layer, const Bench* bench, CostFeature feature, JobKind job, double x,
                       double time_ns, const MbShape* known) {
    CostFormula* time = &layer->time_ns[job];
    CostFormula others = *time;
    others.curves[feature].num_knots = 0;
    if (model_bench_is_gpu(bench) && time->curves[feature].num_knots == 0) {
        curve_add(&time->curves[feature], 1, 0);
    }
    curve_add(&time->curves[feature], x, time_ns - cost_formula_value(&others, known));
}

// What long sequences cost beyond their tokens is attention's; sequences of 32 have 32 squares per token.
static void measure_squares(CostPartMode* layer, Bench* bench, Side side, int32_t max_seq_tokens) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, bench, max_seq_tokens);
    CostFeature feature = side == ENCODER ? FEATURE_ENC_SQUARES : FEATURE_DEC_SQUARES;
    for (int i = 0; i < num_points; i++) {
        int32_t S = points[i], num_tokens = num_long(bench, S) * S;
        if (S < 4 * SHORT_TOKENS) { continue; }
        BenchShape shape = side_shape(bench, side, num_tokens, S, 1);
        BenchTimes times = model_bench_time(bench, &shape);
        MbShape known = {0};
        *(side == ENCODER ? &known.enc_tokens : &known.dec_tokens) = num_tokens;
        for (int job = JOB_F; job <= JOB_B; job++) {
            add_beyond(layer, bench, feature, (JobKind)job, (double)num_tokens * (S - SHORT_TOKENS),
                       times.ns[job], &known);
        }
    }
}

// --- cross-attention --------------------------------------------------------------------------------------

// Keys and values: of encoder tokens, in every decoder layer.
static void measure_keys(CostPartMode* layer, Bench* bench) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, bench, bench->max_tokens);
    for (int i = 0; i < num_points; i++) {
        if (points[i] < SHORT_TOKENS) { continue; }
        BenchShape shape = side_shape(bench, ENCODER, points[i], SHORT_TOKENS, 1);
        BenchTimes times = model_bench_time(bench, &shape);
        MbShape known = {.dec_tokens = shape.dec.num_tokens};
        for (int job = JOB_F; job <= JOB_W; job++) {
            add_beyond(layer, bench, FEATURE_ENC_TOKENS, (JobKind)job, points[i], times.ns[job], &known);
        }
    }
}

// Scores, beside long sequences on both sides. The curves of tokens have one product per token.
static void measure_products(CostPartMode* layer, Bench* bench, const ModelProfile* about) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, bench, about->max_seq_tokens);
    for (int i = 0; i < num_points; i++) {
        int32_t S = points[i], num_seqs = num_long(bench, S);
        int32_t D = about->max_target_tokens < S ? about->max_target_tokens : S;
        if (S < 4 * SHORT_TOKENS) { continue; }
        BenchShape shape = side_shape(bench, ENCODER, num_seqs * S, S, D);
        BenchTimes times = model_bench_time(bench, &shape);
        MbShape known = {.enc_tokens = shape.enc.num_tokens, .dec_tokens = shape.dec.num_tokens};
        known.dec_squares = D > SHORT_TOKENS ? known.dec_tokens * (D - SHORT_TOKENS) : 0;
        double products = (double)num_seqs * ((double)S * D - S - D);
        for (int job = JOB_F; job <= JOB_B && products > 0; job++) {
            add_beyond(layer, bench, FEATURE_CROSS_PRODUCTS, (JobKind)job, products, times.ns[job], &known);
        }
    }
}

// --- embeddings, head -------------------------------------------------------------------------------------

// What the stack's first layer takes beyond one in the middle.
static void measure_embedding(CostPartMode* part, const CostPartMode* layer, Bench* bench, Side side) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, bench, bench->max_tokens);
    for (int i = 0; i < num_points; i += 2) {
        BenchShape shape = short_shape(bench, side, points[i]);
        BenchTimes times = model_bench_time(bench, &shape);
        CostFeature feature = tokens_of(side);
        for (int job = JOB_F; job <= JOB_W; job++) {
            double of_layer = cost_curve_value(&layer->time_ns[job].curves[feature], points[i]);
            curve_add(&part->time_ns[job].curves[feature], points[i], times.ns[job] - of_layer);
        }
    }
}

// Per token: dx_L is zero but for the supervised rows. The rest is per row.
static void measure_head(CostPartMode* part, Bench* bench, Side side) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, bench, bench->max_tokens);
    BenchShape all = short_shape(bench, side, bench->max_tokens);
    BenchTimes none = model_bench_time(bench, &all);
    CostFeature feature = tokens_of(side);
    for (int job = JOB_F; job <= JOB_W; job++) {
        curve_add(&part->time_ns[job].curves[feature], 1, none.ns[job] / bench->max_tokens);
    }
    for (int i = 0; i < num_points; i++) {
        BenchShape shape = short_shape(bench, side, points[i]);
        shape.num_rows = points[i];
        BenchTimes times = model_bench_time(bench, &shape);
        for (int job = JOB_F; job <= JOB_W; job++) {
            double of_tokens = part->time_ns[job].curves[feature].y[0] * points[i];
            curve_add(&part->time_ns[job].curves[FEATURE_SUPERVISED], points[i], times.ns[job] - of_tokens);
        }
    }
}

// --- all --------------------------------------------------------------------------------------------------

static void measure_decoder(CostPartMode* parts, const Runner* runner, Bench* bench) {
    CostPartMode* layer = &parts[PART_DEC_LAYER];
    bench_open(bench, runner, 4, 5, false);
    measure_tokens(layer, bench, DECODER);
    measure_squares(layer, bench, DECODER, runner->about->max_target_tokens);
    measure_keys(layer, bench);
    measure_products(layer, bench, runner->about);
    model_bench_free(bench);
    bench_open(bench, runner, 3, 4, false);
    measure_embedding(&parts[PART_EMBEDDING], layer, bench, DECODER);
    model_bench_free(bench);
}

void model_profile_measure(CostModel* out, const ModelProfile* about, OpsContext* ops, ModelBenchSync* sync,
                           void* ctx) {
    Runner runner = {about, ops, sync, ctx};
    const bool has_dec = about->config.kind->has_decoder;
    CostPartMode* parts = out->parts[RECOMPUTE_NONE];
    Bench bench;
    bench_open(&bench, &runner, 1, 2, false);
    BenchShape all = short_shape(&bench, ENCODER, about->max_tokens);
    model_bench_warm(&bench, &all);
    measure_tokens(&parts[PART_ENC_LAYER], &bench, ENCODER);
    measure_squares(&parts[PART_ENC_LAYER], &bench, ENCODER, about->max_seq_tokens);
    model_bench_free(&bench);
    bench_open(&bench, &runner, 0, 1, false);
    measure_embedding(&parts[PART_EMBEDDING], &parts[PART_ENC_LAYER], &bench, ENCODER);
    out->update_ns_per_byte = model_bench_update_ns(&bench) / (double)sizeof(float);
    model_bench_free(&bench);
    if (has_dec) { measure_decoder(parts, &runner, &bench); }
    int num_layers = has_dec ? 6 : 3;
    bench_open(&bench, &runner, num_layers, num_layers, true);
    measure_head(&parts[PART_HEAD], &bench, has_dec ? DECODER : ENCODER);
    model_bench_free(&bench);
}

void model_profile_set_recompute(CostModel* out) {
    for (int part = 0; part < PART_COUNT; part++) {
        const CostPartMode* none = &out->parts[RECOMPUTE_NONE][part];
        CostPartMode* full = &out->parts[RECOMPUTE_FULL][part];
        memcpy(full->time_ns, none->time_ns, sizeof full->time_ns);
        full->time_ns[JOB_R] = none->time_ns[JOB_F];
    }
}
