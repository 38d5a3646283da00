#include "measure.h"

#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>
#include "measure_bytes.h"
#include "../plan/problem.h"
#include "../run/hosts.h"
#include "../run/session.h"
#include "../../util/files.h"
#include "../../util/numbers.h"
#include "../../util/program.h"

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

double measure_mean(double* values, int32_t num_values) {
    int32_t out = num_values / 8, n = num_values - 2 * out;
    double sum = 0;
    qsort(values, (size_t)num_values, sizeof *values, compare_doubles);
    for (int32_t i = out; i < out + n; i++) { sum += values[i]; }
    return n > 0 ? sum / n : 0;
}

// Each value begins a pool of its own; where a pool lies below the one before it, both become one. The pool
// that ends at i is values[begin .. i], all the same.
void measure_isotonic(double* values, const double* weights, int32_t num_values) {
    for (int32_t i = 1; i < num_values; i++) {
        double sum = values[i] * weights[i], weight = weights[i];
        int32_t begin = i;
        while (begin > 0 && values[begin - 1] > sum / weight) {
            begin--;
            sum += values[begin] * weights[begin];
            weight += weights[begin];
        }
        for (int32_t k = begin; k <= i; k++) { values[k] = sum / weight; }
    }
}

// --- measure_speed --------------------

void measure_speed_add(MeasureSpeed* speed, const double mine_ns[JOB_COUNT],
                       const double mean_ns[JOB_COUNT]) {
    if (speed->num_points == MEASURE_SPEED_POINTS) { return; }
    for (JobKind kind = JOB_F; kind < JOB_R; kind++) {
        speed->points[kind][speed->num_points].mine_ns = mine_ns[kind];
        speed->points[kind][speed->num_points].mean_ns = mean_ns[kind];
    }
    speed->num_points++;
}

// By mine / mean. Points of two.
static int compare_ratios(const void* a, const void* b) {
    const double *x = a, *y = b;
    double left = x[0] * y[1], right = y[0] * x[1];
    return (left > right) - (left < right);
}

double measure_speed_slow(MeasureSpeed* speed, JobKind kind) {
    const int32_t n = speed->num_points, out = n / 8;
    double mine_ns = 0, mean_ns = 0;
    qsort(speed->points[kind], (size_t)n, sizeof speed->points[kind][0], compare_ratios);
    for (int32_t i = out; i < n - out; i++) {
        mine_ns += speed->points[kind][i].mine_ns;
        mean_ns += speed->points[kind][i].mean_ns;
    }
    return mine_ns > 0 && mean_ns > 0 ? mine_ns / mean_ns : 1;
}

// Times that lie apart by more than machine_check() takes say nothing of the machine.
static double sane(double slow) {
    return slow < MACHINE_LEAST_SLOW  ? MACHINE_LEAST_SLOW
           : slow > MACHINE_MOST_SLOW ? MACHINE_MOST_SLOW
                                      : slow;
}

// ranks[world->num_ranks].slow, the same bits on all ranks. R is F. A collective.
static Status measure_speed_agree(MachineRank* ranks, MeasureSpeed* speed, Collective* world) {
    const int32_t num_ranks = world->num_ranks;
    double* slow = calloc((size_t)num_ranks * JOB_R, sizeof *slow);
    if (slow == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    for (JobKind kind = JOB_F; kind < JOB_R; kind++) {
        slow[world->my_idx * JOB_R + (int32_t)kind] = measure_speed_slow(speed, kind);
    }
    Status status = collective_all_reduce_sum(world, slow, num_ranks * JOB_R);
    for (int32_t r = 0; r < num_ranks; r++) {
        for (JobKind kind = JOB_F; kind < JOB_R; kind++) {
            ranks[r].slow[kind] = sane(slow[r * JOB_R + (int32_t)kind]);
        }
        ranks[r].slow[JOB_R] = ranks[r].slow[JOB_F];
    }
    free(slow);
    return status;
}

// --- measure_bench --------------------

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

static void bench_free(Bench* bench) {
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

// With buffers for any of these shapes. A collective; after a failure, too, bench_free().
static Status bench_init(Bench* bench, Measure* m, MeasureSlice slice, const MeasureShape* shapes,
                         int32_t num_shapes) {
    double values[NUM_SUMS] = {0};
    *bench = (Bench){.measure = m, .is_first = slice.begin == 0, .is_last = slice.has_head};
    return agree(values, m, init_here(bench, slice, shapes, num_shapes));
}

// out[num_shapes]: bytes that a run of each shape goes through, parameters, gradients, activations; mean over
// the ranks. A collective.
static Status bench_touched_bytes(double* out, Bench* bench, const MeasureShape* shapes, int32_t num_shapes) {
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

// A collective. The point's share of what is left of the budget decides how often each job runs.
static Status bench_time(BenchTimes* out, Bench* bench, const MeasureShape* shape) {
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
static Status bench_warm(Bench* bench, const MeasureShape* shape) {
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

// Zeroing gradients and blocks->update: ns that a parameter of this range costs once a step. A collective.
static Status bench_update_ns(double* out, Bench* bench) {
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

// --- measure_points --------------------

enum { SHORT_TOKENS = 32 };

typedef enum { ENCODER, DECODER } Side;  // a model with one stack has the first

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

// Of that shape.
static double measure_points_feature(const MeasureShape* shape, CostFeature feature) {
    double value[FEATURE_COUNT];
    DynapipeBatch batch;
    measure_shape_counts(&batch, shape);
    MbShape features = measure_batch_shape(&batch);
    cost_shape_features(value, &features);
    return value[feature];
}

// Token counts to measure: `first`, twice that and so on, half steps between from 4 * 32 (a GPU: 4 * 64) on,
// and the largest. A GPU is not filled by fewer than 64 tokens: one time for all of them.
typedef struct {
    int num_counts;
    int32_t tokens[COST_MAX_KNOTS];
    bool is_between[COST_MAX_KNOTS];
} Counts;

static void add_count(Counts* counts, int32_t tokens, bool is_between) {
    if (counts->num_counts == COST_MAX_KNOTS - (is_between ? 2 : 1)) { return; }
    counts->is_between[counts->num_counts] = is_between;
    counts->tokens[counts->num_counts++] = tokens;
}

static Counts token_counts(const Measure* m, int32_t max_tokens) {
    Counts counts = {0};
    int32_t first = measure_is_gpu(m) ? 2 * SHORT_TOKENS : 8;
    int32_t halves_from = first < SHORT_TOKENS ? 4 * SHORT_TOKENS : 4 * first;
    for (int32_t t = first; t < max_tokens && t < 1 << 29; t *= 2) {
        add_count(&counts, t, false);
        if (t >= halves_from && t + t / 2 < max_tokens) { add_count(&counts, t + t / 2, true); }
    }
    if (counts.num_counts == COST_MAX_KNOTS - 1) { counts.num_counts--; }
    add_count(&counts, max_tokens, false);
    return counts;
}

static void add_point(MeasurePoints* p, MeasureShape shape, CostFeature feature, const Counts* counts,
                      int i) {
    enum { SMALL_TOKENS = 4 * SHORT_TOKENS };
    double x = measure_points_feature(&shape, feature);
    for (int32_t k = 0; k < p->num_points; k++) {  // padding made it one that there is
        const MeasuredPoint* point = &p->points[k];
        if (point->feature == feature && measure_points_feature(&point->shape, feature) >= x) { return; }
    }
    if (p->num_points == MEASURE_MAX_POINTS) { return; }
    p->points[p->num_points++] = (MeasuredPoint){.shape = shape,
                                                 .feature = feature,
                                                 .is_small = counts->tokens[i] <= SMALL_TOKENS,
                                                 .is_between = counts->is_between[i]};
}

static void add_tokens(MeasurePoints* p, const Measure* m, Side side, bool with_between) {
    Counts counts = token_counts(m, m->max_tokens);
    for (int i = 0; i < counts.num_counts; i++) {
        if (counts.is_between[i] && !with_between) { continue; }
        add_point(p, side_shape(m, side, counts.tokens[i], SHORT_TOKENS, 1), tokens_of(side), &counts, i);
    }
}

// A long window, of which one does not fill a GPU: as many as a micro-batch holds.
static int32_t num_long(const Measure* m, int32_t seq_tokens) {
    int32_t num_seqs = m->max_tokens / seq_tokens;
    return measure_is_gpu(m) && num_seqs > 1 ? num_seqs : 1;
}

static void add_squares(MeasurePoints* p, const Measure* m, Side side) {
    int32_t longest = side == ENCODER ? m->lengths.seq_tokens : m->lengths.target_tokens;
    Counts counts = token_counts(m, longest);
    for (int i = 0; i < counts.num_counts; i++) {
        int32_t S = counts.tokens[i];
        if (S < 2 * SHORT_TOKENS) { continue; }
        add_point(p, side_shape(m, side, num_long(m, S) * S, S, 1),
                  side == ENCODER ? FEATURE_ENC_SQUARES : FEATURE_DEC_SQUARES, &counts, i);
    }
}

// Keys and values, of encoder tokens, in every decoder layer; scores, of long windows on both sides.
static void add_cross(MeasurePoints* p, const Measure* m) {
    Counts counts = token_counts(m, m->max_tokens);
    for (int i = 0; i < counts.num_counts; i++) {
        if (counts.tokens[i] < SHORT_TOKENS) { continue; }
        add_point(p, side_shape(m, ENCODER, counts.tokens[i], SHORT_TOKENS, 1), FEATURE_ENC_TOKENS, &counts,
                  i);
    }
    counts = token_counts(m, m->lengths.seq_tokens);
    for (int i = 0; i < counts.num_counts; i++) {
        int32_t S = counts.tokens[i], D = m->lengths.target_tokens < S ? m->lengths.target_tokens : S;
        if (S < 2 * SHORT_TOKENS) { continue; }
        add_point(p, side_shape(m, ENCODER, num_long(m, S) * S, S, D), FEATURE_CROSS_PRODUCTS, &counts, i);
    }
}

// Per token: the gradient of the head's inputs is zero but for the supervised rows. The rest is per row.
static void add_head(MeasurePoints* p, const Measure* m, Side side) {
    Counts counts = token_counts(m, m->max_tokens);
    MeasureShape all = side_shape(m, side, m->max_tokens, SHORT_TOKENS, 1);
    add_point(p, all, tokens_of(side), &counts, 0);
    for (int i = 0; i < counts.num_counts; i++) {
        MeasureShape shape = side_shape(m, side, counts.tokens[i], SHORT_TOKENS, 1);
        shape.num_rows = measure_side_tokens(side == ENCODER ? &shape.enc : &shape.dec);
        add_point(p, shape, FEATURE_SUPERVISED, &counts, i);
    }
}

// --- ranges ------------------------------------------------------------------------------------------------

// Layer `second` of a stack where that can be a range, else its first with the embedding, else all there is.
static MeasureSlice layer_slice(const DynapipeBlocks_v1* blocks, int32_t first) {
    MeasureSlice slices[] = {{first + 1, first + 2, false}, {first, first + 1, false}};
    bool in_stack = first > 0 ? blocks->num_dec_layers > 1 : blocks->num_layers > 1;
    for (int i = !in_stack; i < 2; i++) {
        if (measure_slice_valid(blocks, slices[i])) { return slices[i]; }
    }
    return (MeasureSlice){first, measure_num_layers(blocks), true};
}

// Several layers behind the first of a stack, where layer_slice() takes one of these: not an encoder's last,
// behind which it ends. Empty where there are no two.
static MeasureSlice deep_slice(const DynapipeBlocks_v1* blocks, MeasureSlice one, int32_t first) {
    enum { MOST_LAYERS = 4 };
    int32_t L = measure_num_layers(blocks), stack_end = first > 0 ? L : blocks->num_layers;
    bool has_last = stack_end == L && !blocks->shapes.head_has_layer;
    int32_t most = has_last ? stack_end : stack_end - 1;
    MeasureSlice deep = {one.begin, one.begin + MOST_LAYERS < most ? one.begin + MOST_LAYERS : most, false};
    bool serves = one.begin > first && deep.end > one.begin + 1 && measure_slice_valid(blocks, deep);
    return serves ? deep : (MeasureSlice){0};
}

static void list_stack(MeasurePoints* layer, MeasurePoints* embedding, const Measure* m, Side side) {
    int32_t first = side == ENCODER ? 0 : m->blocks->num_layers;
    layer->slice = layer_slice(m->blocks, first);
    layer->deep = deep_slice(m->blocks, layer->slice, first);
    layer->part = side == ENCODER ? PART_ENC_LAYER : PART_DEC_LAYER;
    layer->main = tokens_of(side);
    layer->share = 4;
    add_tokens(layer, m, side, true);
    add_squares(layer, m, side);
    if (side == DECODER) { add_cross(layer, m); }
    if (layer->slice.begin == first) { return; }  // the embedding is in it
    *embedding = (MeasurePoints){.slice = {first, first + 1, false}, .part = PART_EMBEDDING};
    embedding->main = tokens_of(side);
    embedding->share = 1;
    embedding->base = layer->part;
    embedding->has_base = true;
    add_tokens(embedding, m, side, false);
}

static void list_head(MeasurePoints* head, const Measure* m, Side side) {
    int32_t L = measure_num_layers(m->blocks);
    head->slice = (MeasureSlice){L, L, true};
    head->part = PART_HEAD;
    head->main = FEATURE_SUPERVISED;
    head->share = 4;
    if (!measure_slice_valid(m->blocks, head->slice)) {
        head->slice = (MeasureSlice){L - 1, L, true};
        head->base = side == ENCODER ? PART_ENC_LAYER : PART_DEC_LAYER;
        head->has_base = true;
    }
    add_head(head, m, side);
}

// out[MEASURE_LISTS], zeros before; those without points are not the model's.
static void measure_points_list(MeasurePoints* out, const Measure* m) {
    const bool has_dec = m->blocks->num_dec_layers > 0;
    list_stack(&out[LIST_LAYER], &out[LIST_EMBEDDING], m, ENCODER);
    if (has_dec) { list_stack(&out[LIST_DEC_LAYER], &out[LIST_DEC_EMBEDDING], m, DECODER); }
    list_head(&out[LIST_HEAD], m, has_dec ? DECODER : ENCODER);
}

// --- measure_times --------------------

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

// --- measure_kept --------------------

static bool folder(char out[MEASURE_PATH_CHARS]) {
    static const struct {
        const char *variable, *below;
    } places[] = {{"DYNAPIPE_CACHE", ""}, {"XDG_CACHE_HOME", "/dynapipe"}, {"HOME", "/.cache/dynapipe"}};
    for (int i = 0; i < 3; i++) {
        const char* value = getenv(places[i].variable);
        if (value == NULL || value[0] == '\0') { continue; }
        int n = snprintf(out, MEASURE_PATH_CHARS, "%s%s", value, places[i].below);
        return n > 0 && n < MEASURE_PATH_CHARS;
    }
    return false;
}

// To be read by people: the signature's words; and a hash of the whole key, for what they leave out.
bool measure_kept_path(char out[MEASURE_PATH_CHARS], const char* signature, const CostMeasured* about) {
    enum { MOST_SHOWN = 100 };
    int32_t numbers[] = {about->interface, about->num_ranks, about->ranks_per_host, about->num_replicas};
    uint64_t hash = hash_bytes(HASH_SEED, numbers, sizeof numbers);
    hash = hash_finish(hash_bytes(hash, signature, strlen(signature)));
    char words[MOST_SHOWN + 1];
    size_t n = 0;
    for (const char* at = signature; *at != '\0' && n < MOST_SHOWN; at++) {
        words[n++] = isalnum((unsigned char)*at) || *at == '-' || *at == '.' ? *at : '_';
    }
    words[n] = '\0';
    if (!folder(out)) { return false; }
    size_t used = strlen(out);
    int more = snprintf(out + used, MEASURE_PATH_CHARS - used, "/%s_ranks_%d_%016llx.costs", words,
                        about->num_ranks, (unsigned long long)hash);
    return more > 0 && used + (size_t)more < MEASURE_PATH_CHARS;
}

static bool serves(const CostMeasured* kept, const CostMeasured* wanted) {
    return kept->interface == wanted->interface && kept->num_ranks == wanted->num_ranks &&
           kept->ranks_per_host == wanted->ranks_per_host && kept->num_replicas == wanted->num_replicas &&
           kept->seq_tokens >= wanted->seq_tokens && kept->target_tokens >= wanted->target_tokens;
}

bool measure_kept_load(CostModel* out, Machine* machine, char* why, const char* path, const char* signature,
                       const CostMeasured* about) {
    why[0] = '\0';
    if (access(path, F_OK) != 0) { return false; }
    CostModel* kept = malloc(sizeof *kept);
    Machine of_kept = {0};
    bool is_read = kept != NULL && cost_file_load(kept, &of_kept, path, signature) == STATUS_OK;
    if (!is_read) { snprintf(why, 256, "%s", kept != NULL ? status_message() : "no memory"); }
    bool is_good = is_read && serves(&kept->measured, about);
    if (is_good && of_kept.num_ranks != 0 && of_kept.num_ranks != about->num_ranks) {
        snprintf(why, 256, "it tells of %d ranks, there are %d", of_kept.num_ranks, about->num_ranks);
        is_good = false;
    }
    if (is_good) { *out = *kept; }
    bool wanted = is_good && machine != NULL;
    if (wanted) { *machine = of_kept; }
    if (!wanted) { free((void*)of_kept.ranks); }
    free(kept);
    return is_good;
}

// "X.costs.1234" and "X.costs.1234.tmp" that nobody has written to for an hour: of runs that were killed.
// (Their numbers are of processes on other machines, too.)
static void remove_leftovers(const char* folder) {
    enum { AN_HOUR_S = 3600 };
    DIR* dir = opendir(folder);
    if (dir == NULL) { return; }
    for (const struct dirent* entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        char path[2 * MEASURE_PATH_CHARS];
        struct stat about;
        const char* number = strstr(entry->d_name, ".costs.");
        if (number == NULL) { continue; }
        const char* rest = number + strlen(".costs.");
        size_t num_digits = strspn(rest, "0123456789");
        bool is_ours = num_digits > 0 && (rest[num_digits] == '\0' || strcmp(rest + num_digits, ".tmp") == 0);
        snprintf(path, sizeof path, "%s/%s", folder, entry->d_name);
        if (is_ours && stat(path, &about) == 0 && time(NULL) - about.st_mtime > AN_HOUR_S) { unlink(path); }
    }
    closedir(dir);
}

// Written beside under a name of this process's own, then renamed: of several runs that end at once, one is
// kept whole.
Status measure_kept_save(const CostModel* model, const Machine* machine, const char* path,
                         const char* signature) {
    char parent[MEASURE_PATH_CHARS], mine[MEASURE_PATH_CHARS + 32];
    snprintf(parent, sizeof parent, "%s", path);
    *strrchr(parent, '/') = '\0';
    TRY(file_make_directory(parent));
    remove_leftovers(parent);
    snprintf(mine, sizeof mine, "%s.%ld", path, (long)getpid());
    TRY(cost_file_save(model, machine, mine, signature));
    if (rename(mine, path) == 0) { return STATUS_OK; }
    Status status = FAIL(STATUS_IO, "%s: %s", path, strerror(errno));
    (void)unlink(mine);
    return status;
}

// --- measure_machine --------------------

// Links are compared by a message of this size, about what a small micro-batch sends.
enum { USUAL_BYTES = 256 << 10 };

// --- found -------------------------------------------------------------------------------------------------

static double message_ns(const MachineRank* rank) {
    return rank->link_latency_ns + USUAL_BYTES / rank->link_bytes_per_ns;
}

// Behind a replica's last stage is another replica: no activation passes there. Where there is one stage,
// none passes anywhere, and sums of a GPU's go by what links are found to be.
static bool is_within(int32_t rank, int32_t num_stages) {
    return num_stages == 1 || rank % num_stages != num_stages - 1;
}

// The mean latency, and the mean time of a byte. Where there is one rank, memory's own rate.
static void set_mean(CostModel* out, const LinkCosts* links, int32_t num_ranks, int32_t num_stages) {
    double latency_ns = 0, ns_per_byte = 0;
    int32_t num_links = 0;
    for (int32_t r = 0; r + 1 < num_ranks; r++) {
        if (!is_within(r, num_stages)) { continue; }
        latency_ns += links[r].latency_ns;
        ns_per_byte += 1 / links[r].bytes_per_ns;
        num_links++;
    }
    out->comm_latency_ns = num_links > 0 ? latency_ns / num_links : 20e3;
    out->comm_bytes_per_ns = num_links > 0 ? num_links / ns_per_byte : 3;
}

static Status measure_links(CostModel* out, MachineRank* ranks, Dynapipe* dp) {
    int32_t num_links = dp->transport.num_ranks - 1;
    LinkCosts* links = calloc((size_t)num_links + 1, sizeof *links);
    if (links == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d links", num_links); }
    Status status = link_probe(links, &dp->world, dp->stream, (TransportChoice)dp->options.transport);
    if (status == STATUS_OK) { set_mean(out, links, dp->transport.num_ranks, dp->num_stages); }
    for (int32_t r = 0; r < num_links; r++) {
        if (!is_within(r, dp->num_stages)) { continue; }  // 0: no link of its own
        ranks[r].link_latency_ns = links[r].latency_ns;
        ranks[r].link_bytes_per_ns = links[r].bytes_per_ns;
    }
    free(links);
    return status;
}

// All stages' replicas at once, as at the end of a step; the mean time of a byte. On a GPU, and where there
// are no replicas, sums travel as fast as other messages.
static Status measure_sums(CostModel* out, const Measure* m) {
    Dynapipe* dp = m->dp;
    out->reduce_bytes_per_ns = out->comm_bytes_per_ns;
    if (dp->num_replicas < 2 || dp->replicas.num_ranks < 2 || measure_is_gpu(m)) { return STATUS_OK; }
    double bytes_per_ns;
    TRY(link_probe_sums(&bytes_per_ns, &dp->replicas));
    double ns_per_byte = 1 / bytes_per_ns;
    TRY(collective_all_reduce_sum(&dp->world, &ns_per_byte, 1));
    out->reduce_bytes_per_ns = dp->transport.num_ranks / ns_per_byte;
    return STATUS_OK;
}

Status measure_machine(CostModel* out, MachineRank* ranks, Measure* m) {
    for (int32_t r = 0; r < m->dp->transport.num_ranks; r++) { ranks[r] = machine_rank(NULL, r); }
    TRY(measure_speed_agree(ranks, &m->speed, &m->dp->world));
    TRY(measure_links(out, ranks, m->dp));
    return measure_sums(out, m);
}

// --- settled -----------------------------------------------------------------------------------------------

// How many times as long the slowest rank takes as the quickest, less 1: of the jobs [begin, end) together.
static double spread(const MachineRank* ranks, int32_t num_ranks, int begin, int end) {
    double least = INFINITY, most = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        double slow = 0;
        for (int kind = begin; kind < end; kind++) { slow += ranks[r].slow[kind]; }
        least = slow < least ? slow : least;
        most = slow > most ? slow : most;
    }
    return most / least - 1;
}

// One kind of job alone is measured less well than all of them together.
static bool settle_speeds(MachineRank* ranks, int32_t num_ranks) {
    bool differ = spread(ranks, num_ranks, JOB_F, JOB_R) > MEASURE_SPEED_NOISE;
    for (int kind = JOB_F; kind < JOB_COUNT; kind++) {
        differ |= spread(ranks, num_ranks, kind, kind + 1) > 2 * MEASURE_SPEED_NOISE;
    }
    for (int kind = JOB_F; kind < JOB_COUNT; kind++) {
        if (differ && spread(ranks, num_ranks, kind, kind + 1) > MEASURE_SPEED_NOISE) { continue; }
        for (int32_t r = 0; r < num_ranks; r++) { ranks[r].slow[kind] = 1; }
    }
    return differ;
}

static bool settle_links(MachineRank* ranks, int32_t num_links) {
    double least_ns = INFINITY, most_ns = 0;
    for (int32_t r = 0; r < num_links; r++) {
        if (ranks[r].link_bytes_per_ns <= 0) { continue; }
        double ns = message_ns(&ranks[r]);
        least_ns = ns < least_ns ? ns : least_ns;
        most_ns = ns > most_ns ? ns : most_ns;
    }
    if (most_ns > least_ns * (1 + MEASURE_LINK_NOISE)) { return true; }
    for (int32_t r = 0; r < num_links; r++) { ranks[r].link_latency_ns = ranks[r].link_bytes_per_ns = 0; }
    return false;
}

bool measure_machine_settle(MachineRank* ranks, int32_t num_ranks) {
    bool links_differ = settle_links(ranks, num_ranks - 1), speeds_differ = settle_speeds(ranks, num_ranks);
    return links_differ || speeds_differ;
}

// --- costs -------------------------------------------------------------------------------------------------

DynapipeCosts* measure_costs_new(int32_t num_ranks) {
    return calloc(1, sizeof(DynapipeCosts) + (size_t)num_ranks * sizeof(MachineRank));
}

static MachineRank* measure_costs_ranks(DynapipeCosts* costs) {
    return (MachineRank*)(costs + 1);
}

// --- measure --------------------

// --- what to measure ---------------------------------------------------------------------------------------

Status measure_check(const DynapipeBlocks_v1* blocks) {
    TRY(interface_check_blocks(blocks));
    const char* line = blocks->signature;
    if (line == NULL || line[0] == '\0' || strpbrk(line, "\n\r#") != NULL || line[0] == ' ' ||
        line[strlen(line) - 1] == ' ') {
        return FAIL(
            STATUS_OUT_OF_RANGE,
            "DynapipeBlocks_v1: signature ---> give one line of words, without # and without blanks at "
            "its ends");
    }
    if (blocks->num_layers < 1 || blocks->num_dec_layers < 0 || blocks->vocab < 1) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "%s: %d layers, %d of a decoder, vocabulary of %d ---> give at least 1, 0, 1", line,
                    blocks->num_layers, blocks->num_dec_layers, blocks->vocab);
    }
    ShapeRules rules = session_rules(&blocks->shapes);
    return shape_rules_valid(&rules);
}

static int32_t up_to_power(int32_t n) {
    enum { LEAST = 64 };
    int32_t power = LEAST;
    while (power < n && power < 1 << 30) { power *= 2; }
    return power;
}

static int32_t less(int64_t a, int64_t b) {
    return (int32_t)(a < b ? a : b);
}

static Status longest_samples(MeasureLengths* out, Dynapipe* dp) {
    StageBatch batches[SESSION_MIXTURE];
    int32_t num_batches;
    Arena arena = {0};
    Status status = session_mixture(batches, &num_batches, dp, &arena);
    *out = (MeasureLengths){0};
    for (int32_t b = 0; b < num_batches; b++) {
        for (int32_t i = 0; i < batches[b].num_samples; i++) {
            const PlanSample* sample = &batches[b].samples[i];
            if (sample->enc_tokens > out->seq_tokens) { out->seq_tokens = sample->enc_tokens; }
            if (sample->dec_tokens > out->target_tokens) { out->target_tokens = sample->dec_tokens; }
        }
    }
    arena_free(&arena);
    return status;
}

Status measure_wanted(Measure* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks) {
    enum { CPU_TOKENS = 512, GPU_TOKENS = 16384 };
    MeasureLengths longest;
    const bool has_dec = blocks->num_dec_layers > 0;
    if (dp->train == NULL) {
        return FAIL(STATUS_BAD_OPTION,
                    "dynapipe_measure() needs to know the data ---> dynapipe_open_data() first");
    }
    if (has_dec != (dp->run.max_target_tokens > 0)) {
        return FAIL(
            STATUS_BAD_OPTION,
            "%s: %d decoder layers, but max_target_tokens is %d ---> an encoder-decoder has both, other "
            "models neither",
            blocks->signature, blocks->num_dec_layers, dp->run.max_target_tokens);
    }
    TRY(longest_samples(&longest, dp));
    bool is_packed = dp->options.batching == BATCHING_PACKED;
    MeasureLengths most = {dp->run.max_seq_tokens, dp->run.max_target_tokens};
    *out = (Measure){.dp = dp, .blocks = blocks};
    out->lengths.seq_tokens =
        is_packed ? most.seq_tokens : less(up_to_power(longest.seq_tokens), most.seq_tokens);
    if (has_dec) {
        out->lengths.target_tokens =
            is_packed ? most.target_tokens : less(up_to_power(longest.target_tokens), most.target_tokens);
    }
    int64_t of_step = dp->run.batch_tokens / dp->num_replicas;
    out->max_tokens =
        less(measure_is_gpu(out) ? GPU_TOKENS : CPU_TOKENS, up_to_power(less(of_step, 1 << 30)));
    if (out->max_tokens < out->lengths.seq_tokens) { out->max_tokens = out->lengths.seq_tokens; }
    if (out->max_tokens < out->lengths.target_tokens) { out->max_tokens = out->lengths.target_tokens; }
    out->budget_ns = (int64_t)(dp->options.measure_seconds * 1e9);
    return STATUS_OK;
}

static CostMeasured about_of(const Measure* m) {
    int32_t num_ranks = m->dp->transport.num_ranks;
    return (CostMeasured){.interface = DYNAPIPE_INTERFACE,
                          .num_ranks = num_ranks,
                          .ranks_per_host = local_ranks_count(num_ranks),
                          .num_replicas = m->dp->num_replicas,
                          .seq_tokens = m->lengths.seq_tokens,
                          .target_tokens = m->lengths.target_tokens};
}

// --- measuring ---------------------------------------------------------------------------------------------

static Status measure_ranks(DynapipeCosts* out, MachineRank* found, Measure* m) {
    const int32_t num_ranks = m->dp->transport.num_ranks;
    MachineRank* ranks = measure_costs_ranks(out);
    TRY(measure_machine(&out->model, ranks, m));
    if (found != NULL) { memcpy(found, ranks, (size_t)num_ranks * sizeof *ranks); }
    bool differ = measure_machine_settle(ranks, num_ranks);
    out->machine = differ ? (Machine){.num_ranks = num_ranks, .ranks = ranks} : (Machine){0};
    return STATUS_OK;
}

static void complete(CostModel* out, const Measure* m) {
    for (int part = 0; part < PART_COUNT; part++) {
        out->parts[RECOMPUTE_NONE][part].offered = out->parts[RECOMPUTE_FULL][part].offered = true;
    }
    out->recompute_is_job[RECOMPUTE_FULL] = true;
    out->num_enc_layers = m->blocks->num_layers;
    out->num_dec_layers = m->blocks->num_dec_layers;
    out->measured = about_of(m);
    measure_times_set_recompute(out);
}

Status measure_fresh(DynapipeCosts* out, MachineRank* found, Measure* m) {
    const bool is_main = m->dp->transport.rank == 0;
    m->shows = is_main && isatty(STDOUT_FILENO);
    TRY(measure_times(&out->model, m));
    TRY(measure_ranks(out, found, m));
    complete(&out->model, m);
    if (is_main) {
        printf("measured %s: %d points in %.1f s\n", m->blocks->signature, m->points_done,
               (double)(clock_now_ns() - m->begin_ns) / 1e9);
        fflush(stdout);
    }
    return cost_model_check(&out->model);
}

// --- --costs, kept files -----------------------------------------------------------------------------------

// What rank 0 found, for all; then, where it tells of ranks, these.
typedef struct {
    int32_t status;
    int32_t is_known;
    char message[1024];
    CostModel model;
    Machine machine;
} Found;

static void find_kept(Found* found, const Measure* m, const char* path) {
    char why[256];
    CostMeasured about = about_of(m);
    found->is_known =
        measure_kept_load(&found->model, &found->machine, why, path, m->blocks->signature, &about);
    bool is_long = strlen(path) > 72;  // 100 columns
    if (found->is_known) { printf("costs: as measured before%s(%s)\n", is_long ? "\n        " : " ", path); }
    if (why[0] != '\0') { printf("costs: measured anew, what was kept is of no use: %s\n", why); }
    fflush(stdout);
}

// A file that was named is used whatever ranks it was measured on; what it says of each of them then is of no
// use.
static void find_named(Found* found, const Measure* m) {
    const char* path = m->dp->options.costs;
    const int32_t num_ranks = m->dp->transport.num_ranks;
    found->status = (int32_t)cost_file_load(&found->model, &found->machine, path, m->blocks->signature);
    found->is_known = true;
    snprintf(found->message, sizeof found->message, "%s", status_message());
    int32_t told = found->machine.num_ranks;
    if (found->status != STATUS_OK || told == 0 || told == num_ranks) { return; }
    printf("costs: %s tells of %d ranks, there are %d: in what they differ is left out\n", path, told,
           num_ranks);
    fflush(stdout);
    free((void*)found->machine.ranks);
    found->machine = (Machine){0};
}

static void find_here(Found* found, const Measure* m, const char* path) {
    const SessionOptions* options = &m->dp->options;
    if (options->costs != NULL) {
        find_named(found, m);
    } else if (options->measure != MEASURE_AGAIN && path[0] != '\0') {
        find_kept(found, m, path);
    }
}

static Status share_found(DynapipeCosts* out, Found* found, Dynapipe* dp) {
    const Machine mine = found->machine;
    MachineRank* ranks = measure_costs_ranks(out);
    TRY(collective_broadcast(&dp->world, found, sizeof *found, 0));
    if (found->status != STATUS_OK) { return FAIL((Status)found->status, "%s", found->message); }
    if (!found->is_known) { return STATUS_OK; }
    out->model = found->model;
    int32_t num_ranks = found->machine.num_ranks;  // 0, or as many as there are
    out->machine = num_ranks > 0 ? (Machine){.num_ranks = num_ranks, .ranks = ranks} : (Machine){0};
    if (num_ranks == 0) { return STATUS_OK; }
    if (dp->transport.rank == 0) { memcpy(ranks, mine.ranks, (size_t)num_ranks * sizeof *ranks); }
    return collective_broadcast(&dp->world, ranks, (size_t)num_ranks * sizeof *ranks, 0);
}

static Status find(bool* is_known, DynapipeCosts* out, const Measure* m, const char* path) {
    Dynapipe* dp = m->dp;
    Found* found = calloc(1, sizeof *found);
    if (found == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a cost model"); }
    if (dp->transport.rank == 0) { find_here(found, m, path); }
    const MachineRank* of_file = found->machine.ranks;
    Status status = share_found(out, found, dp);
    *is_known = found->is_known;
    free((void*)of_file);
    free(found);
    return status;
}

// Windows that are measured are as long as those kept before, too: runs of two kinds do not take turns.
static void widen(Measure* m, const char* path) {
    char why[256];
    CostMeasured about = about_of(m);
    CostModel* kept = calloc(1, sizeof *kept);
    about.seq_tokens = about.target_tokens = 0;
    if (kept != NULL && measure_kept_load(kept, NULL, why, path, m->blocks->signature, &about)) {
        const CostMeasured* before = &kept->measured;
        MeasureLengths* now = &m->lengths;
        if (before->seq_tokens > now->seq_tokens) { now->seq_tokens = before->seq_tokens; }
        if (before->target_tokens > now->target_tokens) { now->target_tokens = before->target_tokens; }
    }
    free(kept);
}

static void keep(const DynapipeCosts* costs, const Measure* m, const char* path) {
    if (path[0] == '\0') {
        printf("costs: not kept for the next start: no folder ---> set DYNAPIPE_CACHE\n");
    } else if (measure_kept_save(&costs->model, &costs->machine, path, m->blocks->signature) != STATUS_OK) {
        printf("costs: not kept for the next start: %s ---> set DYNAPIPE_CACHE to a folder that can be "
               "written\n",
               status_message());
    }
    fflush(stdout);
}

// The key is rank 0's, should ranks differ in threads or cards.
static Status measure_or_find(DynapipeCosts* out, Measure* m) {
    char path[MEASURE_PATH_CHARS];
    bool is_known = false;
    CostMeasured about = about_of(m);
    snprintf(m->dp->model_name, sizeof m->dp->model_name, "%s", m->blocks->signature);
    if (!measure_kept_path(path, m->blocks->signature, &about)) { path[0] = '\0'; }
    TRY(find(&is_known, out, m, path));
    if (is_known) { return STATUS_OK; }
    if (m->dp->transport.rank == 0 && path[0] != '\0') { widen(m, path); }
    TRY(collective_broadcast(&m->dp->world, &m->lengths, sizeof m->lengths, 0));
    if (m->max_tokens < m->lengths.seq_tokens) { m->max_tokens = m->lengths.seq_tokens; }
    if (m->max_tokens < m->lengths.target_tokens) { m->max_tokens = m->lengths.target_tokens; }
    TRY(measure_fresh(out, NULL, m));
    if (m->dp->transport.rank == 0) { keep(out, m, path); }
    return STATUS_OK;
}

// --- all ---------------------------------------------------------------------------------------------------

static Status measure_bytes_all(CostModel* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks) {
    MeasureLengths lengths = {dp->run.max_seq_tokens, dp->run.max_target_tokens};
    out->num_enc_layers = blocks->num_layers;  // times are of layers, however many there are
    out->num_dec_layers = blocks->num_dec_layers;
    Status status = measure_bytes_fill(out, blocks, &lengths);
    if (status == STATUS_OK) {
        status = measure_state_fill(out, blocks, dp->num_replicas, dp->run.zero_stage);
    }
    return measure_agree(out, dp, status);
}

static Status make_costs(DynapipeCosts* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks) {
    Measure m;
    TRY(measure_check(blocks));
    if (dp->links == NULL) { TRY(session_device_open(dp, NULL)); }
    TRY(measure_wanted(&m, dp, blocks));
    TRY(measure_or_find(out, &m));
    TRY(measure_bytes_all(&out->model, dp, blocks));
    if (dp->run.zero_stage > 0) { out->model.update_ns_per_byte /= dp->num_replicas; }
    out->shapes = blocks->shapes;
    out->has_weights_job = blocks->api->backward_weights != NULL;
    out->shares_head = measure_shares_head(blocks) && executor_can_share(blocks->api, HEAD_BY_VOCABULARY);
    return cost_model_check(&out->model);
}

int dynapipe_measure(Dynapipe* dp, const DynapipeBlocks_v1* blocks, DynapipeCosts** out) {
    DynapipeCosts* costs = measure_costs_new(dp->transport.num_ranks);
    *out = NULL;
    if (costs == NULL) { return (int)FAIL(STATUS_NO_MEMORY, "no memory for a cost model"); }
    Status status = make_costs(costs, dp, blocks);
    if (status == STATUS_OK) {
        *out = costs;
    } else {
        free(costs);
    }
    return (int)status;
}
