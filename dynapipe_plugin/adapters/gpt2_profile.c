#include "gpt2_profile.h"

#include <stdlib.h>
#include <string.h>

#include "../../llmc/optimizer.h"
#include "../base/clock.h"

enum { SHORT_TOKENS = 32, MIN_RUNS = 3, MAX_RUNS = 15 };

// One slice with the buffers of its largest micro-batch.
typedef struct {
    Gpt2 model;
    int32_t *tokens, *positions, *rows, *targets, *cu_seqlens;
    float *in, *out, *dout, *din, *losses;
    void *acts, *scratch;
} Bench;

typedef struct {
    const Gpt2Profile* about;
    Gpt2ProfileSync* sync;
    void* ctx;
} Runner;

typedef struct {
    double ns[JOB_COUNT];  // F, B, W
} JobTimes;

static void* bench_alloc(size_t num_bytes) {
    void* memory = aligned_alloc(256, (num_bytes + 511) / 256 * 256);
    if (memory != NULL) { memset(memory, 0, num_bytes); }
    return memory;
}

static void bench_free(Bench* bench) {
    gpt2_free(&bench->model);
    free(bench->tokens);
    free(bench->in);
    free(bench->acts);
    free(bench->scratch);
}

static Status bench_init(Bench* bench, const Gpt2Profile* about, int layer_begin, int layer_end, bool is_last,
                         OpsContext* ops) {
    *bench = (Bench){0};
    size_t n = (size_t)about->max_tokens, C = (size_t)about->config.channels;
    gpt2_init(&bench->model, about->config, layer_begin, layer_end, is_last, ops);
    gpt2_alloc_grads(&bench->model);
    for (int64_t i = 0; i < bench->model.num_params; i++) {
        bench->model.params[i] = (float)((i * 2654435761u >> 8) % 2001) * 2e-5f - 0.02f;
    }
    bench->tokens = bench_alloc(5 * (n + 1) * sizeof(int32_t));
    bench->in = bench_alloc((4 * C + 1) * n * sizeof(float));
    bench->acts = bench_alloc((size_t)gpt2_acts_bytes(&bench->model, (int)n, (int)n, GPT2_KEEP | GPT2_HEAD));
    bench->scratch = bench_alloc((size_t)gpt2_scratch_bytes(&bench->model, (int)n, (int)n, (int)n));
    if (bench->tokens == NULL || bench->in == NULL || bench->acts == NULL || bench->scratch == NULL) {
        bench_free(bench);
        return FAIL(STATUS_NO_MEMORY, "no memory to measure %zu tokens ---> give a smaller --tokens", n);
    }
    bench->positions = bench->tokens + n;
    bench->rows = bench->positions + n;
    bench->targets = bench->rows + n;
    bench->cu_seqlens = bench->targets + n;
    bench->out = bench->in + n * C;
    bench->dout = bench->out + n * C;
    bench->din = bench->dout + n * C;
    bench->losses = bench->din + n * C;
    for (size_t i = 0; i < n * C; i++) { bench->in[i] = bench->dout[i] = (float)(i % 17) * 0.05f - 0.4f; }
    return STATUS_OK;
}

// A micro-batch of num_tokens in sequences of seq_tokens, the last num_rows of them supervised.
static Gpt2Batch bench_batch(Bench* bench, int num_tokens, int seq_tokens, int num_rows) {
    int num_seqs = 0;
    for (int i = 0; i < num_tokens; i++) {
        if (i % seq_tokens == 0) { bench->cu_seqlens[num_seqs++] = i; }
        bench->positions[i] = i % seq_tokens;
        bench->tokens[i] = (i * 31) % bench->model.config.vocab;
    }
    bench->cu_seqlens[num_seqs] = num_tokens;
    for (int i = 0; i < num_rows; i++) {
        bench->rows[i] = num_tokens - num_rows + i;
        bench->targets[i] = (i * 17) % bench->model.config.vocab;
    }
    return (Gpt2Batch){
        num_seqs,          num_tokens,    num_rows,         seq_tokens < num_tokens ? seq_tokens : num_tokens,
        bench->cu_seqlens, bench->tokens, bench->positions, bench->rows,
        bench->targets};
}

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// With one thread its own time on a core: what else the machine does then stays out.
static int64_t job_clock_ns(const Gpt2* model) {
    return ops_num_threads(model->ops) == 1 ? clock_cpu_ns() : clock_now_ns();
}

static JobTimes bench_time(const Runner* runner, Bench* bench, int num_tokens, int seq_tokens, int num_rows) {
    double ns[3][MAX_RUNS];
    Gpt2Batch batch = bench_batch(bench, num_tokens, seq_tokens, num_rows);
    Gpt2* model = &bench->model;
    const float *in = model->is_first ? NULL : bench->in, *dout = model->is_last ? NULL : bench->dout;
    float *out = model->is_last ? NULL : bench->out, *din = model->is_first ? NULL : bench->din;
    if (runner->sync != NULL) { runner->sync(runner->ctx); }
    int64_t spent_ns = 0;
    int num_runs = 0;
    for (int run = -1; run < MAX_RUNS && (run < MIN_RUNS || spent_ns < runner->about->budget_ns); run++) {
        int64_t t0 = job_clock_ns(model);
        gpt2_forward(model, &batch, in, out, bench->acts, bench->scratch, bench->losses, 1e-3f,
                     GPT2_KEEP | GPT2_HEAD);
        int64_t t1 = job_clock_ns(model);
        gpt2_backward_inputs(model, &batch, in, bench->acts, dout, din, bench->scratch);
        int64_t t2 = job_clock_ns(model);
        gpt2_backward_weights(model, &batch, bench->acts, dout, bench->scratch);
        int64_t t3 = job_clock_ns(model);
        if (run < 0) { continue; }  // warms caches
        ns[0][run] = (double)(t1 - t0);
        ns[1][run] = (double)(t2 - t1);
        ns[2][run] = (double)(t3 - t2);
        spent_ns += t3 - t0;
        num_runs++;
    }
    JobTimes times = {0};
    static const JobKind kinds[3] = {JOB_F, JOB_B, JOB_W};
    for (int k = 0; k < 3; k++) {
        qsort(ns[k], (size_t)num_runs, sizeof(double), compare_doubles);
        times.ns[kinds[k]] = ns[k][num_runs / 4];  // noise only ever adds
    }
    return times;
}

// --- curves ----------------------------------------------------------------------------------------------

static void curve_add(CostCurve* curve, double x, double y) {
    if (curve->num_knots == COST_MAX_KNOTS) { return; }
    double floor = curve->num_knots > 0 ? curve->y[curve->num_knots - 1] : 0;
    curve->x[curve->num_knots] = x;
    curve->y[curve->num_knots++] = y > floor ? y : floor;  // costs never fall as a shape grows
}

static double curve_at(const CostCurve* curve, double x) {
    CostFormula formula = {.curves = {[FEATURE_ENC_TOKENS] = *curve}};
    MbShape shape = {.enc_tokens = (int64_t)x};
    return cost_formula_value(&formula, &shape);
}

// Token counts to measure: 8, 16, 32, 64, 128, then half steps up to the largest.
static int token_points(int32_t points[COST_MAX_KNOTS], int32_t max_tokens) {
    int n = 0;
    for (int32_t t = 8; t < max_tokens && n < COST_MAX_KNOTS - 1; t *= 2) {
        points[n++] = t;
        if (t >= 128 && t + t / 2 < max_tokens && n < COST_MAX_KNOTS - 1) { points[n++] = t + t / 2; }
    }
    points[n++] = max_tokens;
    return n;
}

static void measure_layer(CostPartMode* layer, const Runner* runner, Bench* bench) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, runner->about->max_tokens);
    for (int i = 0; i < num_points; i++) {
        JobTimes times = bench_time(runner, bench, points[i], SHORT_TOKENS, 0);
        for (int kind = JOB_F; kind <= JOB_W; kind++) {
            curve_add(&layer->time_ns[kind].curves[FEATURE_ENC_TOKENS], points[i], times.ns[kind]);
        }
    }
    // What one long sequence costs beyond its tokens is attention's; sequences of 32 have 32 squares per
    // token.
    for (int i = 0; i < num_points; i++) {
        double T = points[i];
        if (points[i] < 4 * SHORT_TOKENS) { continue; }
        JobTimes times = bench_time(runner, bench, points[i], points[i], 0);
        for (int kind = JOB_F; kind <= JOB_B; kind++) {
            CostFormula* time = &layer->time_ns[kind];
            double beyond = times.ns[kind] - curve_at(&time->curves[FEATURE_ENC_TOKENS], T);
            curve_add(&time->curves[FEATURE_ENC_SQUARES], T * T - SHORT_TOKENS * T, beyond);
        }
    }
}

static void measure_embedding(CostPartMode* part, const CostPartMode* layer, const Runner* runner,
                              Bench* bench) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, runner->about->max_tokens);
    for (int i = 0; i < num_points; i += 2) {
        JobTimes times = bench_time(runner, bench, points[i], SHORT_TOKENS, 0);
        for (int kind = JOB_F; kind <= JOB_W; kind++) {
            double of_layer = curve_at(&layer->time_ns[kind].curves[FEATURE_ENC_TOKENS], points[i]);
            curve_add(&part->time_ns[kind].curves[FEATURE_ENC_TOKENS], points[i], times.ns[kind] - of_layer);
        }
    }
}

// Per token: dx_L is zero but for the supervised rows. The rest is per row.
static void measure_head(CostPartMode* part, const Runner* runner, Bench* bench) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, runner->about->max_tokens);
    JobTimes none = bench_time(runner, bench, runner->about->max_tokens, SHORT_TOKENS, 0);
    for (int kind = JOB_F; kind <= JOB_W; kind++) {
        double of_token = none.ns[kind] / runner->about->max_tokens;
        curve_add(&part->time_ns[kind].curves[FEATURE_ENC_TOKENS], 1, of_token);
    }
    for (int i = 0; i < num_points; i++) {
        JobTimes times = bench_time(runner, bench, points[i], SHORT_TOKENS, points[i]);
        for (int kind = JOB_F; kind <= JOB_W; kind++) {
            double of_tokens = part->time_ns[kind].curves[FEATURE_ENC_TOKENS].y[0] * points[i];
            curve_add(&part->time_ns[kind].curves[FEATURE_SUPERVISED], points[i], times.ns[kind] - of_tokens);
        }
    }
}

// Zeroing gradients, their norm, AdamW: what a parameter costs once a step.
static double measure_update(const Runner* runner, Bench* bench) {
    Optimizer optimizer;
    optimizer_init(&optimizer, 0, bench->model.num_params, 0, 0, bench->model.ops);
    double ns[MIN_RUNS];
    if (runner->sync != NULL) { runner->sync(runner->ctx); }
    for (int run = -1; run < MIN_RUNS; run++) {
        int64_t begin_ns = job_clock_ns(&bench->model);
        gpt2_zero_grads(&bench->model);
        double sum = optimizer_sum_of_squares(&optimizer, &bench->model);
        optimizer_update(&optimizer, &bench->model, 0, 1, optimizer_clip_scale(sum, 1));
        if (run >= 0) { ns[run] = (double)(job_clock_ns(&bench->model) - begin_ns); }
    }
    optimizer_free(&optimizer);
    qsort(ns, MIN_RUNS, sizeof(double), compare_doubles);
    return ns[0] / (double)bench->model.num_params;
}

Status gpt2_profile_measure(CostModel* out, const Gpt2Profile* about, OpsContext* ops, Gpt2ProfileSync* sync,
                            void* ctx) {
    Runner runner = {about, sync, ctx};
    Gpt2Profile three = *about;
    three.config.num_layers = 3;  // slices: a middle layer, the first layer, the head alone
    CostPartMode* parts = out->parts[RECOMPUTE_NONE];
    Bench bench;
    TRY(bench_init(&bench, &three, 1, 2, false, ops));
    measure_layer(&parts[PART_ENC_LAYER], &runner, &bench);
    bench_free(&bench);
    TRY(bench_init(&bench, &three, 0, 1, false, ops));
    measure_embedding(&parts[PART_EMBEDDING], &parts[PART_ENC_LAYER], &runner, &bench);
    out->update_ns_per_byte = measure_update(&runner, &bench) / (double)sizeof(floatX);
    bench_free(&bench);
    TRY(bench_init(&bench, &three, 3, 3, true, ops));
    measure_head(&parts[PART_HEAD], &runner, &bench);
    bench_free(&bench);
    return STATUS_OK;
}

void gpt2_profile_set_recompute(CostModel* out) {
    for (int part = 0; part < PART_COUNT; part++) {
        const CostPartMode* none = &out->parts[RECOMPUTE_NONE][part];
        CostPartMode* full = &out->parts[RECOMPUTE_FULL][part];
        memcpy(full->time_ns, none->time_ns, sizeof full->time_ns);
        full->time_ns[JOB_R] = none->time_ns[JOB_F];
    }
}
