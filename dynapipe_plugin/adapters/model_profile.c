#include "model_profile.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../llmc/device_values.h"
#include "../../llmc/llmc_error.h"
#include "../../llmc/optimizer.h"
#include "../base/clock.h"

enum { SHORT_TOKENS = 32, MIN_RUNS = 3, MAX_RUNS = 15 };
// On a GPU: jobs queued one behind the other for one time, so that starting them costs what it does in
// training.
enum { MAX_QUEUED = 32, QUEUED_NS = 4000000, GPU_WARM_NS = 300000000 };

// One slice with the buffers of its largest micro-batch: arrays and losses on the host, the rest on the
// device.
typedef struct {
    Model model;
    int32_t *tokens, *positions, *rows, *targets, *cu_seqlens;
    float* losses;
    floatX *in, *out, *dout, *din;
    void *acts, *scratch;
} Bench;

typedef struct {
    const ModelProfile* about;
    ModelProfileSync* sync;
    void* ctx;
} Runner;

typedef struct {
    double ns[JOB_COUNT];  // F, B, W
} JobTimes;

static bool is_gpu(const Model* model) {
    return ops_stream(model->ops) != NULL;
}

static void bench_free(Bench* bench) {
    OpsContext* ops = bench->model.ops;
    void* buffers[] = {bench->in, bench->out, bench->dout, bench->din, bench->acts, bench->scratch};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) { ops_release(ops, buffers[i]); }
    free(bench->tokens);
    free(bench->losses);
    model_free(&bench->model);
}

// Small values that repeat, different enough from one another.
static void fill_params(const Model* model) {
    enum { PIECE = 1 << 20 };
    float* piece = llmc_alloc(PIECE * sizeof *piece, "parameters to measure");
    for (int64_t begin = 0; begin < model->num_params; begin += PIECE) {
        int64_t n = model->num_params - begin < PIECE ? model->num_params - begin : PIECE;
        for (int64_t i = 0; i < n; i++) {
            piece[i] = (float)(((begin + i) * 2654435761u >> 8) % 2001) * 2e-5f - 0.02f;
        }
        device_values_upload(model->ops, model->params + begin, piece, (size_t)n);
    }
    free(piece);
}

static void fill_boundaries(Bench* bench, size_t num_values) {
    float* values = llmc_alloc(num_values * sizeof *values, "activations to measure");
    for (size_t i = 0; i < num_values; i++) { values[i] = (float)(i % 17) * 0.05f - 0.4f; }
    device_values_upload(bench->model.ops, bench->in, values, num_values);
    device_values_upload(bench->model.ops, bench->dout, values, num_values);
    free(values);
}

static void bench_init(Bench* bench, const ModelProfile* about, int layer_begin, int layer_end, bool is_last,
                       OpsContext* ops) {
    *bench = (Bench){0};
    int n = about->max_tokens;
    model_init(&bench->model, &about->config, layer_begin, layer_end, is_last, ops);
    model_alloc_grads(&bench->model);
    fill_params(&bench->model);
    const Model* model = &bench->model;
    char what[96];
    snprintf(what, sizeof what, "a micro-batch of %d tokens (a smaller --mb-tokens or --tokens needs less)",
             n);
    size_t boundary_bytes = (size_t)gpt2_boundary_bytes(model, n);
    bench->in = ops_alloc(ops, boundary_bytes, what);
    bench->out = ops_alloc(ops, boundary_bytes, what);
    bench->dout = ops_alloc(ops, boundary_bytes, what);
    bench->din = ops_alloc(ops, boundary_bytes, what);
    bench->acts = ops_alloc(ops, (size_t)gpt2_acts_bytes(model, n, n, MODEL_KEEP | MODEL_HEAD), what);
    bench->scratch = ops_alloc(ops, (size_t)gpt2_scratch_bytes(model, n, n, about->max_seq_tokens), what);
    fill_boundaries(bench, (size_t)n * (size_t)about->config.channels);
    size_t count = (size_t)n + 1;
    bench->losses = llmc_alloc(count * sizeof(float), "losses");
    bench->tokens = llmc_alloc(5 * count * sizeof(int32_t), "a batch");
    bench->positions = bench->tokens + count;
    bench->rows = bench->positions + count;
    bench->targets = bench->rows + count;
    bench->cu_seqlens = bench->targets + count;
}

// A micro-batch of num_tokens in sequences of seq_tokens, the last num_rows of them supervised.
static ModelBatch bench_batch(Bench* bench, int num_tokens, int seq_tokens, int num_rows) {
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
    return (ModelBatch){
        .num_seqs = num_seqs,
        .num_tokens = num_tokens,
        .num_rows = num_rows,
        .max_seq_tokens = seq_tokens < num_tokens ? seq_tokens : num_tokens,
        .cu_seqlens = bench->cu_seqlens,
        .tokens = bench->tokens,
        .positions = bench->positions,
        .rows = bench->rows,
        .targets = bench->targets,
        .loss_scale = 1e-3f,
    };
}

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// On a CPU with one thread its own time on a core: what else the machine does then stays out. (A thread that
// waits for a GPU may sleep.)
static int64_t job_clock_ns(const Model* model) {
    return ops_num_threads(model->ops) == 1 && !is_gpu(model) ? clock_cpu_ns() : clock_now_ns();
}

static void run_job(Bench* bench, const ModelBatch* batch, JobKind kind) {
    Model* model = &bench->model;
    const floatX *in = model->is_first ? NULL : bench->in, *dout = model->is_last ? NULL : bench->dout;
    floatX *out = model->is_last ? NULL : bench->out, *din = model->is_first ? NULL : bench->din;
    switch (kind) {
        case JOB_F:
            gpt2_forward(model, batch, in, out, bench->acts, bench->scratch, bench->losses,
                         MODEL_KEEP | MODEL_HEAD);
            break;
        case JOB_B: gpt2_backward_inputs(model, batch, in, bench->acts, dout, din, bench->scratch); break;
        default: gpt2_backward_weights(model, batch, bench->acts, dout, bench->scratch);
    }
}

// Of one job of `num_queued` in a row. (B in a row finds its own output for fch: other values, the same
// work.)
static double time_job(Bench* bench, const ModelBatch* batch, JobKind kind, int num_queued) {
    ops_sync(bench->model.ops);
    int64_t begin_ns = job_clock_ns(&bench->model);
    for (int i = 0; i < num_queued; i++) { run_job(bench, batch, kind); }
    ops_sync(bench->model.ops);
    return (double)(job_clock_ns(&bench->model) - begin_ns) / num_queued;
}

static int queue_length(const Bench* bench, double job_ns) {
    if (!is_gpu(&bench->model)) { return 1; }
    double wanted = QUEUED_NS / (job_ns > 1 ? job_ns : 1);
    return wanted < 1 ? 1 : wanted > MAX_QUEUED ? MAX_QUEUED : (int)wanted;
}

static JobTimes bench_time(const Runner* runner, Bench* bench, int num_tokens, int seq_tokens, int num_rows) {
    static const JobKind kinds[3] = {JOB_F, JOB_B, JOB_W};
    double ns[3][MAX_RUNS], spent_ns = 0;
    int queued[3] = {1, 1, 1}, num_runs = 0;
    ModelBatch batch = bench_batch(bench, num_tokens, seq_tokens, num_rows);
    if (runner->sync != NULL) { runner->sync(runner->ctx); }
    for (int k = 0; k < 3; k++) { time_job(bench, &batch, kinds[k], 1); }  // warms caches
    for (int k = 0; k < 3 && is_gpu(&bench->model); k++) {
        queued[k] = queue_length(bench, time_job(bench, &batch, kinds[k], 1));
    }
    for (; num_runs < MAX_RUNS && (num_runs < MIN_RUNS || spent_ns < (double)runner->about->budget_ns);
         num_runs++) {
        for (int k = 0; k < 3; k++) {
            ns[k][num_runs] = time_job(bench, &batch, kinds[k], queued[k]);
            spent_ns += ns[k][num_runs] * queued[k];
        }
    }
    JobTimes times = {0};
    for (int k = 0; k < 3; k++) {
        qsort(ns[k], (size_t)num_runs, sizeof(double), compare_doubles);
        times.ns[kinds[k]] = ns[k][num_runs / 4];  // noise only ever adds
    }
    return times;
}

// A GPU that did nothing runs at a low clock.
static void warm_gpu(const Runner* runner, Bench* bench) {
    if (!is_gpu(&bench->model)) { return; }
    Runner alone = *runner;
    alone.sync = NULL;  // ranks may need different numbers of rounds
    int64_t begin_ns = clock_now_ns();
    do {
        bench_time(&alone, bench, runner->about->max_tokens, SHORT_TOKENS, 0);
    } while (clock_now_ns() - begin_ns < GPU_WARM_NS && runner->about->budget_ns > 0);
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

// Token counts to measure: `first`, twice that and so on, half steps from 4 * 32 (a GPU: 4 * 64) on, and the
// largest.
static int token_points(int32_t points[COST_MAX_KNOTS], int32_t first, int32_t max_tokens) {
    int n = 0;
    int32_t halves_from = first < SHORT_TOKENS ? 4 * SHORT_TOKENS : 4 * first;
    for (int32_t t = first; t < max_tokens && n < COST_MAX_KNOTS - 1; t *= 2) {
        points[n++] = t;
        if (t >= halves_from && t + t / 2 < max_tokens && n < COST_MAX_KNOTS - 1) { points[n++] = t + t / 2; }
    }
    points[n++] = max_tokens;
    return n;
}

// A GPU is not filled by fewer than 64 tokens: one time for all of them.
static int32_t first_point(const Bench* bench) {
    return is_gpu(&bench->model) ? 2 * SHORT_TOKENS : 8;
}

// What one long sequence costs beyond its tokens is attention's; sequences of 32 have 32 squares per token.
// On a GPU, which one sequence does not fill: what a whole micro-batch of sequences of that length costs
// beyond.
static void measure_squares(CostPartMode* layer, const Runner* runner, Bench* bench, const int32_t* points,
                            int num_points) {
    const int32_t max_tokens = runner->about->max_tokens, max_seq_tokens = runner->about->max_seq_tokens;
    for (int i = 0; i < num_points && points[i] <= max_seq_tokens; i++) {
        int32_t S = points[i], num_tokens = is_gpu(&bench->model) ? max_tokens / S * S : S;
        double N = num_tokens;
        if (S < 4 * SHORT_TOKENS) { continue; }
        JobTimes times = bench_time(runner, bench, num_tokens, S, 0);
        for (int kind = JOB_F; kind <= JOB_B; kind++) {
            CostFormula* time = &layer->time_ns[kind];
            if (is_gpu(&bench->model) && time->curves[FEATURE_ENC_SQUARES].num_knots == 0) {
                curve_add(&time->curves[FEATURE_ENC_SQUARES], 1, 0);  // nothing of it below the first length
            }
            double beyond = times.ns[kind] - curve_at(&time->curves[FEATURE_ENC_TOKENS], N);
            curve_add(&time->curves[FEATURE_ENC_SQUARES], N * S - SHORT_TOKENS * N, beyond);
        }
    }
}

static void measure_layer(CostPartMode* layer, const Runner* runner, Bench* bench) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, first_point(bench), runner->about->max_tokens);
    for (int i = 0; i < num_points; i++) {
        JobTimes times = bench_time(runner, bench, points[i], SHORT_TOKENS, 0);
        for (int kind = JOB_F; kind <= JOB_W; kind++) {
            curve_add(&layer->time_ns[kind].curves[FEATURE_ENC_TOKENS], points[i], times.ns[kind]);
        }
    }
    num_points = token_points(points, first_point(bench), runner->about->max_seq_tokens);
    measure_squares(layer, runner, bench, points, num_points);
}

static void measure_embedding(CostPartMode* part, const CostPartMode* layer, const Runner* runner,
                              Bench* bench) {
    int32_t points[COST_MAX_KNOTS];
    int num_points = token_points(points, first_point(bench), runner->about->max_tokens);
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
    int num_points = token_points(points, first_point(bench), runner->about->max_tokens);
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
    optimizer_init(&optimizer, OPTIMIZER_ADAMW, 0, bench->model.num_params, 0, 0, bench->model.ops);
    double ns[MIN_RUNS];
    if (runner->sync != NULL) { runner->sync(runner->ctx); }
    for (int run = -1; run < MIN_RUNS; run++) {
        ops_sync(bench->model.ops);
        int64_t begin_ns = job_clock_ns(&bench->model);
        model_zero_grads(&bench->model);
        double sum = optimizer_sum_of_squares(&optimizer, &bench->model);
        optimizer_update(&optimizer, &bench->model, 0, 1, optimizer_clip_scale(sum, 1));
        ops_sync(bench->model.ops);
        if (run >= 0) { ns[run] = (double)(job_clock_ns(&bench->model) - begin_ns); }
    }
    optimizer_free(&optimizer);
    qsort(ns, MIN_RUNS, sizeof(double), compare_doubles);
    return ns[0] / (double)bench->model.num_params;
}

void model_profile_measure(CostModel* out, const ModelProfile* about, OpsContext* ops, ModelProfileSync* sync,
                           void* ctx) {
    Runner runner = {about, sync, ctx};
    ModelProfile three = *about;
    three.config.num_layers = 3;  // slices: a middle layer, the first layer, the head alone
    CostPartMode* parts = out->parts[RECOMPUTE_NONE];
    Bench bench;
    bench_init(&bench, &three, 1, 2, false, ops);
    warm_gpu(&runner, &bench);
    measure_layer(&parts[PART_ENC_LAYER], &runner, &bench);
    bench_free(&bench);
    bench_init(&bench, &three, 0, 1, false, ops);
    measure_embedding(&parts[PART_EMBEDDING], &parts[PART_ENC_LAYER], &runner, &bench);
    out->update_ns_per_byte = measure_update(&runner, &bench) / (double)sizeof(float);
    bench_free(&bench);
    bench_init(&bench, &three, 3, 3, true, ops);
    measure_head(&parts[PART_HEAD], &runner, &bench);
    bench_free(&bench);
}

void model_profile_set_recompute(CostModel* out) {
    for (int part = 0; part < PART_COUNT; part++) {
        const CostPartMode* none = &out->parts[RECOMPUTE_NONE][part];
        CostPartMode* full = &out->parts[RECOMPUTE_FULL][part];
        memcpy(full->time_ns, none->time_ns, sizeof full->time_ns);
        full->time_ns[JOB_R] = none->time_ns[JOB_F];
    }
}
