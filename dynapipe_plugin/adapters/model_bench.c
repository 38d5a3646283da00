#include "model_bench.h"

#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../llmc/device_values.h"
#include "../../llmc/llmc_error.h"
#include "../../llmc/optimizer.h"
#include "../base/clock.h"

enum { MIN_RUNS = 3, MAX_RUNS = 15 };
// On a GPU: jobs queued one behind the other for one time, so that starting them costs what it does in
// training.
enum { MAX_QUEUED = 32, QUEUED_NS = 4000000, GPU_WARM_NS = 300000000 };

// --- memory -----------------------------------------------------------------------------------------------

void model_bench_free(Bench* bench) {
    OpsContext* ops = bench->model.ops;
    void* buffers[] = {bench->in, bench->out, bench->dout, bench->din, bench->acts, bench->scratch};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) { ops_release(ops, buffers[i]); }
    free(bench->ints);
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

static int32_t* take_ints(int32_t** at, size_t count) {
    int32_t* taken = *at;
    *at += count;
    return taken;
}

static void alloc_arrays(Bench* bench) {
    enum { NUM_ARRAYS = 8 };
    size_t count = (size_t)bench->max_tokens + 1;
    bench->losses = llmc_alloc(count * sizeof(float), "losses");
    int32_t* at = bench->ints = llmc_alloc(NUM_ARRAYS * count * sizeof(int32_t), "a batch");
    BenchArrays* sides[] = {&bench->enc, &bench->dec};
    for (int i = 0; i < 2; i++) {
        sides[i]->cu_seqlens = take_ints(&at, count);
        sides[i]->tokens = take_ints(&at, count);
        sides[i]->positions = take_ints(&at, count);
    }
    bench->rows = take_ints(&at, count);
    bench->targets = take_ints(&at, count);
}

void model_bench_init(Bench* bench, const ModelConfig* config, int layer_begin, int layer_end, bool is_last,
                      int max_tokens, int max_seq_tokens, OpsContext* ops) {
    int n = max_tokens;
    *bench = (Bench){.max_tokens = n};
    model_init(&bench->model, config, layer_begin, layer_end, is_last, ops);
    model_alloc_grads(&bench->model);
    fill_params(&bench->model);
    const Model* model = &bench->model;
    const ModelKind* kind = config->kind;
    ModelBatch most = {.num_seqs = n, .num_tokens = n, .num_rows = n, .max_seq_tokens = max_seq_tokens};
    if (kind->has_decoder) { most.num_dec_tokens = n, most.max_dec_seq_tokens = max_seq_tokens; }
    char what[96];
    snprintf(what, sizeof what, "a micro-batch of %d tokens (a smaller --mb-tokens or --tokens needs less)",
             n);
    int64_t before = kind->boundary_bytes(model, &most, 0), behind = kind->boundary_bytes(model, &most, 1);
    size_t boundary_bytes = (size_t)(before > behind ? before : behind);
    bench->in = ops_alloc(ops, boundary_bytes, what);
    bench->out = ops_alloc(ops, boundary_bytes, what);
    bench->dout = ops_alloc(ops, boundary_bytes, what);
    bench->din = ops_alloc(ops, boundary_bytes, what);
    bench->acts = ops_alloc(ops, (size_t)kind->acts_bytes(model, &most, MODEL_KEEP | MODEL_HEAD), what);
    bench->scratch = ops_alloc(ops, (size_t)kind->scratch_bytes(model, &most), what);
    fill_boundaries(bench, boundary_bytes / sizeof(floatX));
    alloc_arrays(bench);
}

// --- micro-batches ----------------------------------------------------------------------------------------

// The number of sequences.
static int fill_side(const BenchArrays* arrays, const BenchSide* side, int vocab) {
    int num_seqs = 0;
    for (int i = 0; i < side->num_tokens; i++) {
        if (i % side->seq_tokens == 0) { arrays->cu_seqlens[num_seqs++] = i; }
        arrays->positions[i] = i % side->seq_tokens;
        arrays->tokens[i] = (i * 31) % vocab;
    }
    arrays->cu_seqlens[num_seqs] = side->num_tokens;
    return num_seqs;
}

static int longest(const BenchSide* side) {
    return side->seq_tokens < side->num_tokens ? side->seq_tokens : side->num_tokens;
}

static ModelBatch batch_make(Bench* bench, const BenchShape* shape) {
    const ModelConfig* config = &bench->model.config;
    const bool has_dec = config->kind->has_decoder;
    int num_seqs = fill_side(&bench->enc, &shape->enc, config->vocab);
    int num_tokens = has_dec ? shape->dec.num_tokens : shape->enc.num_tokens;
    for (int i = 0; i < shape->num_rows; i++) {
        bench->rows[i] = num_tokens - shape->num_rows + i;
        bench->targets[i] = (i * 17) % config->vocab;
    }
    ModelBatch batch = {
        .num_seqs = num_seqs,
        .num_tokens = shape->enc.num_tokens,
        .num_rows = shape->num_rows,
        .max_seq_tokens = longest(&shape->enc),
        .cu_seqlens = bench->enc.cu_seqlens,
        .tokens = bench->enc.tokens,
        .positions = bench->enc.positions,
        .rows = bench->rows,
        .targets = bench->targets,
        .loss_scale = 1e-3f,
    };
    if (!has_dec) { return batch; }
    int num_dec_seqs = fill_side(&bench->dec, &shape->dec, config->vocab);
    assert(num_dec_seqs == num_seqs);
    (void)num_dec_seqs;
    batch.num_dec_tokens = shape->dec.num_tokens;
    batch.max_dec_seq_tokens = longest(&shape->dec);
    batch.dec_cu_seqlens = bench->dec.cu_seqlens;
    batch.dec_tokens = bench->dec.tokens;
    batch.dec_positions = bench->dec.positions;
    return batch;
}

// --- times ------------------------------------------------------------------------------------------------

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// On a CPU with one thread its own time on a core: what else the machine does then stays out. (A thread that
// waits for a GPU may sleep.)
static int64_t job_clock_ns(const Bench* bench) {
    const Model* model = &bench->model;
    if (bench->clock_ns != NULL) { return bench->clock_ns(); }
    return ops_num_threads(model->ops) == 1 && ops_stream(model->ops) == NULL ? clock_cpu_ns()
                                                                              : clock_now_ns();
}

static void run_job(Bench* bench, const ModelBatch* batch, JobKind job) {
    Model* model = &bench->model;
    const ModelKind* kind = model->config.kind;
    const floatX *in = model->is_first ? NULL : bench->in, *dout = model->is_last ? NULL : bench->dout;
    floatX *out = model->is_last ? NULL : bench->out, *din = model->is_first ? NULL : bench->din;
    switch (job) {
        case JOB_F:
            kind->forward(model, batch, in, out, bench->acts, bench->scratch, bench->losses,
                          MODEL_KEEP | MODEL_HEAD);
            break;
        case JOB_B: kind->backward_inputs(model, batch, in, bench->acts, dout, din, bench->scratch); break;
        default: kind->backward_weights(model, batch, bench->acts, dout, bench->scratch);
    }
}

// Of one job of `num_queued` in a row. (B in a row finds its own output for fch: other values, the same
// work.)
static double time_job(Bench* bench, const ModelBatch* batch, JobKind kind, int num_queued) {
    ops_sync(bench->model.ops);
    int64_t begin_ns = job_clock_ns(bench);
    for (int i = 0; i < num_queued; i++) { run_job(bench, batch, kind); }
    ops_sync(bench->model.ops);
    return (double)(job_clock_ns(bench) - begin_ns) / num_queued;
}

static int queue_length(const Bench* bench, double job_ns) {
    if (!model_bench_is_gpu(bench)) { return 1; }
    double wanted = QUEUED_NS / (job_ns > 1 ? job_ns : 1);
    return wanted < 1 ? 1 : wanted > MAX_QUEUED ? MAX_QUEUED : (int)wanted;
}

static BenchTimes measure(Bench* bench, const BenchShape* shape) {
    static const JobKind kinds[3] = {JOB_F, JOB_B, JOB_W};
    double ns[3][MAX_RUNS], spent_ns = 0;
    int queued[3] = {1, 1, 1}, num_runs = 0;
    ModelBatch batch = batch_make(bench, shape);
    for (int k = 0; k < 3; k++) { time_job(bench, &batch, kinds[k], 1); }  // warms caches
    for (int k = 0; k < 3 && model_bench_is_gpu(bench); k++) {
        queued[k] = queue_length(bench, time_job(bench, &batch, kinds[k], 1));
    }
    for (; num_runs < MAX_RUNS && (num_runs < MIN_RUNS || spent_ns < (double)bench->budget_ns); num_runs++) {
        for (int k = 0; k < 3; k++) {
            ns[k][num_runs] = time_job(bench, &batch, kinds[k], queued[k]);
            spent_ns += ns[k][num_runs] * queued[k];
        }
    }
    BenchTimes times = {0};
    for (int k = 0; k < 3; k++) {
        qsort(ns[k], (size_t)num_runs, sizeof(double), compare_doubles);
        times.ns[kinds[k]] = ns[k][num_runs / 4];  // noise only ever adds
    }
    return times;
}

BenchTimes model_bench_time(Bench* bench, const BenchShape* shape) {
    if (bench->sync != NULL) { bench->sync(bench->ctx); }
    return measure(bench, shape);
}

// Ranks may need different numbers of rounds.
void model_bench_warm(Bench* bench, const BenchShape* shape) {
    if (!model_bench_is_gpu(bench)) { return; }
    int64_t begin_ns = clock_now_ns();
    do { measure(bench, shape); } while (clock_now_ns() - begin_ns < GPU_WARM_NS && bench->budget_ns > 0);
}

double model_bench_update_ns(Bench* bench) {
    Optimizer optimizer;
    optimizer_init(&optimizer, OPTIMIZER_ADAMW, 0, bench->model.num_params, 0, 0, bench->model.ops);
    double ns[MIN_RUNS];
    if (bench->sync != NULL) { bench->sync(bench->ctx); }
    for (int run = -1; run < MIN_RUNS; run++) {
        ops_sync(bench->model.ops);
        int64_t begin_ns = job_clock_ns(bench);
        model_zero_grads(&bench->model);
        double sum = optimizer_sum_of_squares(&optimizer, &bench->model);
        optimizer_update(&optimizer, &bench->model, 0, 1, optimizer_clip_scale(sum, 1));
        ops_sync(bench->model.ops);
        if (run >= 0) { ns[run] = (double)(job_clock_ns(bench) - begin_ns); }
    }
    optimizer_free(&optimizer);
    qsort(ns, MIN_RUNS, sizeof(double), compare_doubles);
    return ns[0] / (double)bench->model.num_params;
}
