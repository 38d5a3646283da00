#include "measure_bench.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../../util/program.h"
#include "measure_estimate.h"

enum { MIN_RUNS = 2, MAX_RUNS = 16 };
// On a GPU: jobs queued one behind the other for one time, so that starting them costs what it does in
// training.
enum { MAX_QUEUED = 32, QUEUED_NS = 4000000, GPU_WARM_NS = 300000000 };
// A first run as long as this finds nothing in caches that the next ones would: it counts.
enum { LONG_RUN_NS = 20000000, POINT_NS = 40000000 };
enum { SHOW_EVERY_NS = 2000000000 };

// --- memory ------------------------------------------------------------------------------------------------

static Status take_memory(const Dynapipe* dp, void** out, int64_t num_bytes, const char* what) {
    const Device* device = &dp->device;
    Status status;
    if (num_bytes <= 0) { num_bytes = 1; }
    if (device->api != NULL) {
        status = device->api->alloc(device->ctx, out, num_bytes);
    } else {
        size_t whole = ((size_t)num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
        *out = aligned_alloc(PLAN_BUFFER_ALIGN, whole);
        status = *out != NULL ? STATUS_OK : STATUS_NO_MEMORY;
        if (*out != NULL) { memset(*out, 0, whole); }  // its pages are there
    }
    if (status == STATUS_OK) { return status; }
    *out = NULL;
    return FAIL(STATUS_NO_MEMORY,
                "no memory to measure with: %lld bytes of %s ---> shorter sequences (-t; of profile_costs "
                "--tokens, --mb-tokens) need less",
                (long long)num_bytes, what);
}

static void give_memory(const Dynapipe* dp, void* memory) {
    if (dp->device.api != NULL) {
        dp->device.api->release(dp->device.ctx, memory);
    } else {
        free(memory);
    }
}

void bench_free(Bench* bench) {
    const Dynapipe* dp = bench->measure->dp;
    void* buffers[] = {bench->in, bench->out, bench->dout, bench->din, bench->acts, bench->scratch};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) { give_memory(dp, buffers[i]); }
    free(bench->losses);
    measure_arrays_free(&bench->arrays);
    measure_drop(bench->measure->blocks, &bench->model);
}

// Small numbers of either sign, whether the model takes them as float32, bfloat16 or float16: both halves of
// a word are the same bfloat16, 0.02 to 0.4.
static Status fill_boundary(const Dynapipe* dp, void* memory, int64_t num_bytes) {
    size_t num_words = (size_t)num_bytes / sizeof(uint32_t);
    uint32_t* words = malloc((num_words + 1) * sizeof *words);
    if (words == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for activations to measure with"); }
    for (size_t i = 0; i < num_words; i++) {
        uint32_t half = 0x3ca4u + (uint32_t)(i * 37 % 512) + (i % 3 == 0 ? 0x8000u : 0);
        words[i] = half << 16 | half;
    }
    Status status = session_device_write(dp, memory, words, num_words * sizeof *words);
    free(words);
    return status;
}

// What the largest of the shapes asks for.
typedef struct {
    int64_t before, behind, acts, scratch;
    int32_t num_tokens;
} BenchBytes;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static BenchBytes bytes_of(const Bench* bench, const MeasureShape* shapes, int32_t num_shapes) {
    const DynapipeModel_v1* api = bench->measure->blocks->api;
    void* model = bench->model.model;
    BenchBytes most = {0};
    for (int32_t i = 0; i < num_shapes; i++) {
        DynapipeBatch batch;
        measure_shape_counts(&batch, &shapes[i]);
        most.num_tokens = (int32_t)larger(most.num_tokens, larger(batch.num_tokens, batch.num_dec_tokens));
        most.acts =
            larger(most.acts, api->acts_bytes(model, &batch, DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD));
        most.scratch = larger(most.scratch, api->scratch_bytes(model, &batch));
        if (!bench->is_first) { most.before = larger(most.before, api->boundary_bytes(model, &batch, 0)); }
        if (!bench->is_last) { most.behind = larger(most.behind, api->boundary_bytes(model, &batch, 1)); }
    }
    return most;
}

static Status take_buffers(Bench* bench, const BenchBytes* bytes) {
    const Dynapipe* dp = bench->measure->dp;
    TRY(take_memory(dp, &bench->acts, bytes->acts, "activations"));
    TRY(take_memory(dp, &bench->scratch, bytes->scratch, "scratch"));
    if (!bench->is_first) {
        TRY(take_memory(dp, &bench->in, bytes->before, "inputs"));
        TRY(take_memory(dp, &bench->din, bytes->before, "gradients of inputs"));
        TRY(fill_boundary(dp, bench->in, bytes->before));
    }
    if (!bench->is_last) {
        TRY(take_memory(dp, &bench->out, bytes->behind, "outputs"));
        TRY(take_memory(dp, &bench->dout, bytes->behind, "gradients of outputs"));
        TRY(fill_boundary(dp, bench->dout, bytes->behind));
    }
    bench->losses = calloc((size_t)bytes->num_tokens + 1, sizeof(float));
    if (bench->losses == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for losses"); }
    return measure_arrays_init(&bench->arrays, bytes->num_tokens);
}

// --- jobs --------------------------------------------------------------------------------------------------

static Status finish(const Bench* bench) {
    const DynapipeModel_v1* api = bench->measure->blocks->api;
    int error = api->finish != NULL ? api->finish(bench->model.model) : 0;
    return error == 0 ? STATUS_OK : measure_failed(bench->measure->blocks, "finish", error);
}

static Status run_job(Bench* bench, const DynapipeBatch* batch, JobKind job) {
    const DynapipeModel_v1* api = bench->measure->blocks->api;
    void* model = bench->model.model;
    const char* name = "forward";
    int error;
    if (job == JOB_F) {
        error = api->forward(model, batch, bench->in, bench->out, bench->acts, bench->scratch, bench->losses,
                             DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD);
    } else if (job == JOB_B) {
        name = "backward_inputs";
        error = api->backward_inputs(model, batch, bench->in, bench->acts, bench->dout, bench->din,
                                     bench->scratch);
    } else {
        name = "backward_weights";
        error = api->backward_weights(model, batch, bench->acts, bench->dout, bench->scratch);
    }
    return error == 0 ? STATUS_OK : measure_failed(bench->measure->blocks, name, error);
}

// --- times -------------------------------------------------------------------------------------------------

static int64_t process_cpu_ns(void) {
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

typedef struct {
    int64_t wall_ns, cpu_ns;
} Moment;

static Moment moment_now(const Measure* m) {
    if (m->clock_ns != NULL) { return (Moment){m->clock_ns(), INT64_MAX}; }
    return (Moment){clock_now_ns(), process_cpu_ns()};
}

// On a CPU no more than what this process has spent on cores: what else the machine does stays out. (A thread
// that waits for a GPU may sleep.)
static double since(const Measure* m, Moment begin) {
    Moment end = moment_now(m);
    int64_t wall_ns = end.wall_ns - begin.wall_ns, cpu_ns = end.cpu_ns - begin.cpu_ns;
    bool by_cpu = m->clock_ns == NULL && !measure_is_gpu(m) && cpu_ns < wall_ns;
    return (double)(by_cpu ? cpu_ns : wall_ns);
}

// Of one job of `num_queued` in a row. (B in a row finds its own output where it looks for activations: other
// values, the same work.)
static Status time_job(double* ns, Bench* bench, const DynapipeBatch* batch, JobKind job, int num_queued) {
    TRY(finish(bench));
    Moment begin = moment_now(bench->measure);
    for (int i = 0; i < num_queued; i++) { TRY(run_job(bench, batch, job)); }
    TRY(finish(bench));
    *ns = since(bench->measure, begin) / num_queued;
    return STATUS_OK;
}

typedef struct {
    JobKind jobs[3];
    int num_jobs, queued[JOB_COUNT], num_runs;
    double ns[JOB_COUNT][MAX_RUNS + 1];
} Runs;

static int queue_length(const Measure* m, double job_ns) {
    if (!measure_is_gpu(m)) { return 1; }
    double wanted = QUEUED_NS / (job_ns > 1 ? job_ns : 1);
    return wanted < 1 ? 1 : wanted > MAX_QUEUED ? MAX_QUEUED : (int)wanted;
}

static Status run_once(double* spent_ns, Runs* runs, Bench* bench, const DynapipeBatch* batch) {
    *spent_ns = 0;
    for (int k = 0; k < runs->num_jobs; k++) {
        JobKind job = runs->jobs[k];
        TRY(time_job(&runs->ns[job][runs->num_runs], bench, batch, job, runs->queued[job]));
        *spent_ns += runs->ns[job][runs->num_runs] * runs->queued[job];
    }
    runs->num_runs++;
    return STATUS_OK;
}

// The first run warms caches and says how long the others will be.
static Status run_all(Runs* runs, Bench* bench, const DynapipeBatch* batch, double share_ns) {
    double run_ns, spent_ns = 0;
    TRY(run_once(&run_ns, runs, bench, batch));
    bool counts = run_ns >= LONG_RUN_NS;
    if (measure_is_gpu(bench->measure) && !counts) {
        runs->num_runs = 0;
        TRY(run_once(&run_ns, runs, bench, batch));
        for (int k = 0; k < runs->num_jobs; k++) {
            runs->queued[runs->jobs[k]] = queue_length(bench->measure, runs->ns[runs->jobs[k]][0]);
        }
    }
    if (counts) { spent_ns = run_ns; }
    if (!counts) { runs->num_runs = 0; }
    int least = counts ? 1 : MIN_RUNS;
    while (runs->num_runs < MAX_RUNS && (runs->num_runs < least || spent_ns + run_ns < share_ns)) {
        TRY(run_once(&run_ns, runs, bench, batch));
        spent_ns += run_ns;
    }
    return STATUS_OK;
}

static Status time_here(BenchTimes* out, Bench* bench, const MeasureShape* shape, double share_ns) {
    const DynapipeBlocks_v1* blocks = bench->measure->blocks;
    Runs runs = {.jobs = {JOB_F, JOB_B, JOB_W}, .num_jobs = blocks->api->backward_weights != NULL ? 3 : 2};
    for (int k = 0; k < JOB_COUNT; k++) { runs.queued[k] = 1; }
    DynapipeBatch batch;
    measure_shape_batch(&batch, &bench->arrays, shape, blocks->vocab);
    TRY(run_all(&runs, bench, &batch, share_ns));
    *out = (BenchTimes){0};
    for (int k = 0; k < runs.num_jobs; k++) {
        out->ns[runs.jobs[k]] = measure_mean(runs.ns[runs.jobs[k]], runs.num_runs);
    }
    return STATUS_OK;
}

// --- all ranks ---------------------------------------------------------------------------------------------

// Whole lines: what mpirun starts finds a terminal even where its output becomes a file.
static void show_progress(Measure* m) {
    if (!m->shows || m->spent_ns - m->shown_ns < SHOW_EVERY_NS) { return; }
    m->shown_ns = m->spent_ns;
    printf("measuring %s: %d of %d points, %.1f s\n", m->blocks->signature, m->points_done, m->num_points,
           (double)m->spent_ns / 1e9);
    fflush(stdout);
}

enum { SUM_SPENT = JOB_COUNT, SUM_FAILED, NUM_SUMS };

// The mean over the ranks. Where one failed, all do. A collective.
static Status agree(double values[NUM_SUMS], Measure* m, Status status) {
    Dynapipe* dp = m->dp;
    values[SUM_SPENT] = (double)(clock_now_ns() - m->begin_ns);
    values[SUM_FAILED] = status != STATUS_OK;
    TRY(collective_all_reduce_sum(&dp->world, values, NUM_SUMS));
    double num_failed = values[SUM_FAILED];
    for (int i = 0; i < NUM_SUMS; i++) { values[i] /= dp->transport.num_ranks; }
    m->spent_ns = (int64_t)values[SUM_SPENT];
    if (status != STATUS_OK || num_failed == 0) { return status; }
    return FAIL(STATUS_DEVICE, "%s: %.0f other ranks could not be measured", m->blocks->signature,
                num_failed);
}

static Status init_here(Bench* bench, MeasureSlice slice, const MeasureShape* shapes, int32_t num_shapes) {
    TRY(measure_make(&bench->model, bench->measure->blocks, slice, true));
    BenchBytes bytes = bytes_of(bench, shapes, num_shapes);
    TRY(take_buffers(bench, &bytes));
    bench->measure->blocks->api->zero_gradients(bench->model.model);  // their pages are there
    return STATUS_OK;
}

Status bench_init(Bench* bench, Measure* m, MeasureSlice slice, const MeasureShape* shapes,
                  int32_t num_shapes) {
    double values[NUM_SUMS] = {0};
    *bench = (Bench){.measure = m, .is_first = slice.begin == 0, .is_last = slice.has_head};
    return agree(values, m, init_here(bench, slice, shapes, num_shapes));
}

Status bench_touched_bytes(double* out, Bench* bench, const MeasureShape* shapes, int32_t num_shapes) {
    const Dynapipe* dp = bench->measure->dp;
    const DynapipeParams_v1* params = &bench->model.params;
    int32_t bytes_per_value = collective_type_bytes((DynapipeType)params->grad_type) +
                              collective_type_bytes((DynapipeType)params->param_type);
    for (int32_t i = 0; i < num_shapes; i++) {
        BenchBytes bytes = bytes_of(bench, &shapes[i], 1);
        out[i] = (double)(params->num_params * bytes_per_value + bytes.acts + 2 * bytes.before) /
                 dp->transport.num_ranks;
    }
    return collective_all_reduce_sum(&bench->measure->dp->world, out, num_shapes);
}

Status bench_time(BenchTimes* out, Bench* bench, const MeasureShape* shape) {
    Measure* m = bench->measure;
    int32_t num_left = m->list_points_left > 1 ? m->list_points_left-- : 1;
    double values[NUM_SUMS] = {0}, share_ns = (double)(m->list_end_ns - m->spent_ns) / num_left;
    BenchTimes times = {0};
    TRY(collective_barrier(&m->dp->world));
    Status status = time_here(&times, bench, shape, fmin(share_ns, POINT_NS));
    memcpy(values, times.ns, sizeof times.ns);
    TRY(agree(values, m, status));
    memcpy(out->ns, values, sizeof out->ns);
    measure_speed_add(&m->speed, times.ns, out->ns);
    m->points_done++;
    show_progress(m);
    return STATUS_OK;
}

// Ranks may need different numbers of rounds.
Status bench_warm(Bench* bench, const MeasureShape* shape) {
    if (!measure_is_gpu(bench->measure) || bench->measure->clock_ns != NULL) { return STATUS_OK; }
    int64_t begin_ns = clock_now_ns();
    double values[NUM_SUMS] = {0};
    BenchTimes times;
    Status status;
    do {
        status = time_here(&times, bench, shape, POINT_NS);
    } while (status == STATUS_OK && clock_now_ns() - begin_ns < GPU_WARM_NS);
    return agree(values, bench->measure, status);
}

static Status update_once(double* ns, Bench* bench) {
    const DynapipeBlocks_v1* blocks = bench->measure->blocks;
    TRY(finish(bench));
    Moment begin = moment_now(bench->measure);
    blocks->api->zero_gradients(bench->model.model);
    int error = blocks->update != NULL ? blocks->update(blocks->ctx, bench->model.model) : 0;
    if (error != 0) { return measure_failed(blocks, "update", error); }
    TRY(finish(bench));
    *ns = since(bench->measure, begin);
    return STATUS_OK;
}

Status bench_update_ns(double* out, Bench* bench) {
    double values[NUM_SUMS] = {0}, least_ns = INFINITY, ns = 0;
    TRY(collective_barrier(&bench->measure->dp->world));
    Status status = STATUS_OK;
    for (int run = -1; run < MIN_RUNS && status == STATUS_OK; run++) {  // the first makes its memory
        status = update_once(&ns, bench);
        if (run >= 0) { least_ns = fmin(least_ns, ns); }
    }
    values[0] = least_ns < INFINITY ? least_ns : 0;
    TRY(agree(values, bench->measure, status));
    bench->measure->points_done++;
    show_progress(bench->measure);
    *out = bench->model.params.num_params > 0 ? values[0] / (double)bench->model.params.num_params : 0;
    return STATUS_OK;
}
