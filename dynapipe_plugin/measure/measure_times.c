// measure_times.c -- what the jobs of small ranges of a model take, and curves through it.
#include "measure.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../util/numbers.h"
#include "../plan/problem.h"

// --- estimates ---------------------------------------------------------------------------------------------

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

// Each value begins a pool of its own; where a pool is below the one before it, the two are merged. The pool
// that ends at i is values[begin .. i], all equal.
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

void measure_speed_add(MeasureSpeed* speed, const double mine_ns[JOB_COUNT],
                       const double mean_ns[JOB_COUNT]) {
    if (speed->num_points == MEASURE_SPEED_POINTS) { return; }
    for (int kind = JOB_F; kind < JOB_R; kind++) {
        speed->points[kind][speed->num_points][0] = mine_ns[kind];
        speed->points[kind][speed->num_points][1] = mean_ns[kind];
    }
    speed->num_points++;
}

// --- one range of a model, with the buffers of its largest microbatch -------------------------------------
// Every time is the mean of a few runs; on a GPU a run is several jobs queued in a row. Pages are touched
// before the first run, as in a training step. All ranks measure the same point at the same time, so that
// times include what they share (memory bandwidth, caches), and all get the same means, so that all decide
// alike.
enum { MEASURE_SWEEPS = 4, MAX_RUNS = 5 };  // runs of a job in a sweep, at least one
// On a GPU: jobs queued in a row for one time, so that starting them costs as much as in training.
enum { MAX_QUEUED = 32, QUEUED_NS = 4000000, GPU_WARM_NS = 300000000 };
// A first run as long as this gains nothing from caches: it counts.
enum { LONG_RUN_NS = 20000000, POINT_NS = 40000000 };

typedef struct {
    Measure* measure;
    MeasureModel model;
    bool is_first, is_last;
    Arena arena;    // of the batch
    float* losses;  // host
    void *in, *out, *dout, *din, *acts, *scratch, *kept, *dkept;
} Bench;

typedef struct {
    double ns[JOB_COUNT];       // F, B, W
    double base_ns[JOB_COUNT];  // of a range that is run in turns with it; else 0
} BenchTimes;

static Status take_memory(const Dynapipe* dp, void** out, int64_t num_bytes, const char* what) {
    const Device* device = &dp->device;
    Status status;
    if (num_bytes <= 0) { num_bytes = 1; }
    if (device->api != NULL) {
        status = (Status)device->api->alloc(device->ctx, out, num_bytes);
    } else {
        size_t whole = ((size_t)num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
        *out = aligned_alloc(PLAN_BUFFER_ALIGN, whole);
        status = *out != NULL ? STATUS_OK : STATUS_NO_MEMORY;
        if (*out != NULL) { memset(*out, 0, whole); }  // touch its pages
    }
    if (status == STATUS_OK) { return status; }
    *out = NULL;
    return FAIL(STATUS_NO_MEMORY,
                "no memory to measure with: %lld bytes of %s ---> shorter sequences (-t; of profile_costs "
                "--tokens, --mb-tokens) need less",
                (long long)num_bytes, what);
}

static void bench_free(Bench* bench) {
    const Device* device = &bench->measure->dp->device;
    void* buffers[] = {bench->in,   bench->out,     bench->dout, bench->din,
                       bench->acts, bench->scratch, bench->kept, bench->dkept};
    for (size_t i = 0; i < sizeof buffers / sizeof *buffers; i++) {
        if (device->api != NULL) {
            device->api->release(device->ctx, buffers[i]);
        } else {
            free(buffers[i]);
        }
    }
    free(bench->losses);
    arena_free(&bench->arena);
    measure_drop(bench->measure->blocks, &bench->model);
}

// Small numbers of either sign, valid for the model as float32, bfloat16 or float16: both halves of a word
// are the same bfloat16, 0.02 to 0.4.
static Status fill_boundary(const Dynapipe* dp, void* memory, int64_t num_bytes) {
    size_t num_words = (size_t)num_bytes / sizeof(uint32_t);
    uint32_t* words = (uint32_t*)malloc((num_words + 1) * sizeof *words);
    if (words == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for activations to measure with"); }
    for (size_t i = 0; i < num_words; i++) {
        uint32_t half = 0x3ca4u + (uint32_t)(i * 37 % 512) + (i % 3 == 0 ? 0x8000u : 0);
        words[i] = half << 16 | half;
    }
    Status status = session_copy(dp->device, memory, words, num_words * sizeof *words);
    free(words);
    return status;
}

// The needs of the largest of the shapes.
typedef struct {
    int64_t before, after, acts, scratch, kept, dkept;
    int32_t num_tokens;
} BenchBytes;

static int32_t smaller(int64_t a, int64_t b) {
    return (int32_t)(a < b ? a : b);
}

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
        if (shapes[i].prefix > 0) {
            most.kept = larger(most.kept, api->kept_bytes(model, &batch, 0));
            most.dkept = larger(most.dkept, api->kept_bytes(model, &batch, 1));
        }
        if (!bench->is_first) { most.before = larger(most.before, api->boundary_bytes(model, &batch, 0)); }
        if (!bench->is_last) { most.after = larger(most.after, api->boundary_bytes(model, &batch, 1)); }
    }
    return most;
}

static Status init_here(Bench* bench, MeasureSlice slice, const MeasureShape* shapes, int32_t num_shapes) {
    const Dynapipe* dp = bench->measure->dp;
    TRY(measure_make(&bench->model, bench->measure->blocks, slice, true));
    BenchBytes bytes = bytes_of(bench, shapes, num_shapes);
    TRY(take_memory(dp, &bench->acts, bytes.acts, "activations"));
    TRY(take_memory(dp, &bench->scratch, bytes.scratch, "scratch"));
    if (bytes.kept > 0) {
        TRY(take_memory(dp, &bench->kept, bytes.kept, "keys and values"));
        TRY(take_memory(dp, &bench->dkept, bytes.dkept, "gradients of keys and values"));
        TRY(fill_boundary(dp, bench->kept, bytes.kept));
    }
    if (!bench->is_first) {
        TRY(take_memory(dp, &bench->in, bytes.before, "inputs"));
        TRY(take_memory(dp, &bench->din, bytes.before, "gradients of inputs"));
        TRY(fill_boundary(dp, bench->in, bytes.before));
    }
    if (!bench->is_last) {
        TRY(take_memory(dp, &bench->out, bytes.after, "outputs"));
        TRY(take_memory(dp, &bench->dout, bytes.after, "gradients of outputs"));
        TRY(fill_boundary(dp, bench->dout, bytes.after));
    }
    bench->losses = (float*)calloc((size_t)bytes.num_tokens + 1, sizeof(float));
    if (bench->losses == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for losses"); }
    bench->measure->blocks->api->zero_gradients(bench->model.model);  // touch their pages
    return STATUS_OK;
}

// --- times of this rank ------------------------------------------------------------------------------------

static Status finish(const Bench* bench) {
    const DynapipeModel_v1* api = bench->measure->blocks->api;
    int error = api->finish != NULL ? api->finish(bench->model.model) : 0;
    return error == 0 ? STATUS_OK : measure_failed(bench->measure->blocks, "finish", error);
}

static Status run_job(Bench* bench, const DynapipeBatch* batch, JobKind job) {
    static const char* const names[] = {"forward", "backward_inputs", "backward_weights"};
    const DynapipeModel_v1* api = bench->measure->blocks->api;
    void* model = bench->model.model;
    int error;
    if (job == JOB_F) {
        error = api->forward(model, batch, bench->in, bench->out, bench->acts, bench->scratch, bench->losses,
                             DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD);
    } else if (job == JOB_B) {
        error = api->backward_inputs(model, batch, bench->in, bench->acts, bench->dout, bench->din,
                                     bench->scratch);
    } else {
        error = api->backward_weights(model, batch, bench->acts, bench->dout, bench->scratch);
    }
    return error == 0 ? STATUS_OK : measure_failed(bench->measure->blocks, names[job], error);
}

typedef struct {
    int64_t wall_ns, cpu_ns;
} Moment;

static Moment moment_now(const Measure* m) {
    struct timespec cpu;
    if (m->clock_ns != NULL) { return (Moment){m->clock_ns(), INT64_MAX}; }
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &cpu);
    return (Moment){clock_now_ns(), (int64_t)cpu.tv_sec * 1000000000 + cpu.tv_nsec};
}

// On a CPU at most the processor time of this process: other load is excluded. (A thread that waits for a GPU
// may sleep.)
static double since(const Measure* m, Moment begin) {
    Moment end = moment_now(m);
    int64_t wall_ns = end.wall_ns - begin.wall_ns, cpu_ns = end.cpu_ns - begin.cpu_ns;
    bool by_cpu = m->clock_ns == NULL && !measure_is_gpu(m) && cpu_ns < wall_ns;
    return (double)(by_cpu ? cpu_ns : wall_ns);
}

typedef struct {
    Bench* bench;
    DynapipeBatch batch;
    int num_jobs, num_runs;  // F, B and, where it is a job, W
    int queued[JOB_COUNT];   // of each in a row
    double ns[JOB_COUNT][MAX_RUNS + 1];
} Runs;

static Status runs_init(Runs* runs, Bench* bench, const MeasureShape* shape) {
    const DynapipeBlocks_v1* blocks = bench->measure->blocks;
    runs->bench = bench;
    runs->num_jobs = blocks->api->backward_weights != NULL ? 3 : 2;
    runs->num_runs = 0;
    for (int job = 0; job < JOB_COUNT; job++) { runs->queued[job] = 1; }
    arena_reset(&bench->arena);
    TRY(measure_shape_batch(&runs->batch, shape, blocks->vocab, &bench->arena));
    runs->batch.kept = bench->kept, runs->batch.dkept = bench->dkept;
    return STATUS_OK;
}

// On a CPU: another microbatch's jobs come between two of this one's, and what these had in the core's own
// caches goes.
static void cool(const Measure* m) {
    enum { LINE_BYTES = 64 };
    unsigned sum = 0;
    for (size_t i = 0; i < m->cold_bytes; i += LINE_BYTES) { sum += ((volatile unsigned char*)m->cold)[i]; }
    (void)sum;
}

// Each job of each range once, or several in a row. (B in a row reads its own output where it expects
// activations: other values, the same work.)
static Status run_once(double* spent_ns, Runs* all, int num_ranges) {
    *spent_ns = 0;
    for (Runs* runs = all; runs < all + num_ranges; runs++) {
        const Measure* m = runs->bench->measure;
        for (int job = 0; job < runs->num_jobs; job++) {
            TRY(finish(runs->bench));
            cool(m);
            Moment begin = moment_now(m);
            for (int i = 0; i < runs->queued[job]; i++) {
                TRY(run_job(runs->bench, &runs->batch, (JobKind)job));
            }
            TRY(finish(runs->bench));
            double ns = since(m, begin);
            runs->ns[job][runs->num_runs] = ns / runs->queued[job];
            *spent_ns += ns;
        }
        runs->num_runs++;
    }
    return STATUS_OK;
}

static int queue_length(double job_ns) {
    double wanted = QUEUED_NS / fmax(job_ns, 1);
    return wanted < 1 ? 1 : wanted > MAX_QUEUED ? MAX_QUEUED : (int)wanted;
}

static void means_of(double out[JOB_COUNT], Runs* runs) {
    for (int job = 0; job < runs->num_jobs; job++) { out[job] = measure_mean(runs->ns[job], runs->num_runs); }
}

// In the first sweep the first run warms up and shows how long the others will take. base: in turns with it,
// since a machine drifts by more than a small part of a layer takes; NULL: none.
static Status time_here(BenchTimes* out, Bench* bench, Bench* base, const MeasureShape* shape,
                        double share_ns) {
    const int num = base != NULL ? 2 : 1;
    Runs all[2];
    double run_ns;
    *out = (BenchTimes){0};
    TRY(runs_init(&all[0], bench, shape));
    if (base != NULL) {
        MeasureShape without_rows = *shape;
        without_rows.num_rows = 0;
        TRY(runs_init(&all[1], base, &without_rows));
    }
    TRY(run_once(&run_ns, all, num));
    const bool is_warm = bench->measure->num_sweeps > 0 && !measure_is_gpu(bench->measure);
    const bool counts = run_ns >= LONG_RUN_NS || is_warm;
    double spent_ns = counts ? run_ns : 0;
    if (measure_is_gpu(bench->measure) && !counts) {
        for (int i = 0; i < num; i++) { all[i].num_runs = 0; }
        TRY(run_once(&run_ns, all, num));
        for (int i = 0; i < num; i++) {
            for (int job = 0; job < all[i].num_jobs; job++) {
                all[i].queued[job] = queue_length(all[i].ns[job][0]);
            }
        }
    }
    for (int i = 0; i < num && !counts; i++) { all[i].num_runs = 0; }
    while (all[0].num_runs < MAX_RUNS && (all[0].num_runs < 1 || spent_ns + run_ns < share_ns)) {
        TRY(run_once(&run_ns, all, num));
        spent_ns += run_ns;
    }
    means_of(out->ns, &all[0]);
    if (base != NULL) { means_of(out->base_ns, &all[1]); }
    return STATUS_OK;
}

static Status update_here(double* ns, Bench* bench) {
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

// --- times of all ranks ------------------------------------------------------------------------------------

enum { SUM_BASE = JOB_COUNT, SUM_SPENT = 2 * JOB_COUNT, SUM_FAILED, NUM_SUMS };

// The mean over the ranks. Where one failed, all do. A collective.
static Status bench_agree(double values[NUM_SUMS], Measure* m, Status status) {
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

// The point's share of what is left of the budget decides how often each job runs.
static Status bench_time(BenchTimes* out, Bench* bench, Bench* base, const MeasureShape* shape) {
    Measure* m = bench->measure;
    int32_t num_left = m->list_points_left > 1 ? m->list_points_left-- : 1;
    double values[NUM_SUMS] = {0}, share_ns = (double)(m->list_end_ns - m->spent_ns) / num_left;
    BenchTimes times = {0};
    TRY(collective_barrier(&m->dp->world));
    Status status = time_here(&times, bench, base, shape, fmin(share_ns, POINT_NS));
    memcpy(values, times.ns, sizeof times.ns);
    memcpy(values + SUM_BASE, times.base_ns, sizeof times.base_ns);
    TRY(bench_agree(values, m, status));
    memcpy(out->ns, values, sizeof out->ns);
    memcpy(out->base_ns, values + SUM_BASE, sizeof out->base_ns);
    measure_speed_add(&m->speed, times.ns, out->ns);
    m->points_done += m->num_sweeps == 0;
    return STATUS_OK;
}

// An idle GPU runs at a low clock: it is kept busy for a while. Ranks may need different numbers of rounds.
static Status bench_init(Bench* bench, Measure* m, MeasureSlice slice, const MeasureShape* shapes,
                         int32_t num_shapes) {
    double values[NUM_SUMS] = {0};
    *bench = (Bench){.measure = m, .is_first = slice.begin == 0, .is_last = slice.has_head};
    TRY(bench_agree(values, m, init_here(bench, slice, shapes, num_shapes)));
    if (!measure_is_gpu(m) || m->clock_ns != NULL || m->is_warm) { return STATUS_OK; }
    m->is_warm = true;
    int64_t begin_ns = clock_now_ns();
    BenchTimes times;
    Status status;
    do {
        status = time_here(&times, bench, NULL, &shapes[num_shapes - 1], POINT_NS);
    } while (status == STATUS_OK && clock_now_ns() - begin_ns < GPU_WARM_NS);
    return bench_agree(values, m, status);
}

// Zeroing gradients and the optimizer: ns for each byte of gradients.
static Status bench_update(CostModel* out, Bench* bench) {
    const DynapipeParams_v1* params = &bench->model.params;
    double values[NUM_SUMS] = {0}, least_ns = INFINITY, ns = 0;
    TRY(collective_barrier(&bench->measure->dp->world));
    Status status = STATUS_OK;
    for (int run = -1; run < 2 && status == STATUS_OK; run++) {  // the first makes its memory
        status = update_here(&ns, bench);
        if (run >= 0) { least_ns = fmin(least_ns, ns); }
    }
    values[0] = least_ns < INFINITY ? least_ns : 0;
    TRY(bench_agree(values, bench->measure, status));
    bench->measure->points_done++;
    double num_bytes = (double)params->num_params * collective_type_bytes((DynapipeType)params->grad_type);
    out->update_ns_per_byte = num_bytes > 0 ? values[0] / num_bytes : 0;
    return STATUS_OK;
}

// --- which shapes are measured -----------------------------------------------------------------------------
//     tokens          windows of 32, a decoder's beside one token of the encoder each
//     squares         a single long window (on a GPU: a full microbatch of them)
//     prefixes        a piece of a long sample after few and after many tokens of it
//     keys, values    of a decoder layer's cross-attention: windows of 32, each with one decoder token
//     cross products  long windows on both sides
//     rows            of the head, and of a last block in rows: from the number of supervised rows
// Of each, from few to as many as a microbatch has: doubled every time, and, where time is left, steps
// between.

enum { SHORT_TOKENS = 32, MEASURE_MAX_POINTS = 5 * COST_MAX_KNOTS };

typedef enum { ENCODER, DECODER } Side;  // a model with one stack has the first

// A shape to measure, and the feature whose curve it is a point of.
typedef struct {
    MeasureShape shape;
    CostFeature feature;
    bool is_small;    // a curve that ends here does not reach larger shapes: measured whatever its time
    bool is_between;  // two other points, whose line is almost as good
    bool is_known, is_deep;
    BenchTimes seen[MEASURE_SWEEPS][1 + CHAIN_MAX_BLOCKS];  // of one layer, and of each of its blocks alone
    BenchTimes blocks[CHAIN_MAX_BLOCKS];                    // of each of its blocks: parts of the layer
} MeasuredPoint;

// The points of one range: of a layer, whose blocks are the parts from `part` on, or of a part beside a
// layer, whose time is the excess over `base`.
typedef struct {
    MeasureSlice slice;
    MeasureSlice deep;  // of several such layers, for small shapes; empty: none
    MeasureSlice base;  // a layer without the part, run without supervised rows; empty: none
    CostPart part;
    int32_t num_parts;
    MeasureSlice blocks[CHAIN_MAX_BLOCKS];  // of num_parts > 1
    CostFeature main;                       // the constant cost of a job is in this one's curve
    int32_t share;                          // of the time, against the other lists
    int32_t num_points;
    MeasuredPoint points[MEASURE_MAX_POINTS];
} MeasurePoints;

enum { LIST_LAYER, LIST_EMBEDDING, LIST_DEC_LAYER, LIST_DEC_EMBEDDING, LIST_LAST, LIST_HEAD, MEASURE_LISTS };

static CostFeature tokens_of(Side side) {
    return side == ENCODER ? FEATURE_ENC_TOKENS : FEATURE_DEC_TOKENS;
}

static int32_t longest_of(const Measure* m, Side side) {
    return side == ENCODER ? m->lengths.seq_tokens : m->lengths.target_tokens;
}

// Windows of seq_tokens; the other side's, where there is one, have other_seq_tokens each.
static MeasureShape side_shape(const Measure* m, Side side, int32_t num_tokens, int32_t seq_tokens,
                               int32_t other_seq_tokens) {
    int32_t window = seq_tokens < num_tokens ? seq_tokens : num_tokens;
    if (window > longest_of(m, side)) { window = longest_of(m, side); }
    int32_t num_seqs = (num_tokens + window - 1) / window;
    MeasureSide one = {num_seqs, window, window}, other = {num_seqs, other_seq_tokens, other_seq_tokens};
    MeasureShape shape = {.enc = side == ENCODER ? one : other, .dec = side == ENCODER ? other : one};
    if (m->lengths.target_tokens == 0) { shape.dec = (MeasureSide){0}; }
    measure_shape_fit(&shape, m->blocks, &m->lengths);
    return shape;
}

static double point_feature(const MeasureShape* shape, CostFeature feature) {
    double value[FEATURE_COUNT];
    MbShape features = measure_mb_shape(shape);
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
    double x = point_feature(&shape, feature);
    for (int32_t k = 0; k < p->num_points; k++) {  // padding made it equal to another
        const MeasuredPoint* point = &p->points[k];
        if (point->feature == feature && point_feature(&point->shape, feature) >= x) { return; }
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

// Long windows; the other side's are of one token, or (cross) as long as they may be up to the same length.
static void add_long(MeasurePoints* p, const Measure* m, Side side, CostFeature feature, bool is_cross) {
    Counts counts = token_counts(m, longest_of(m, side));
    for (int i = 0; i < counts.num_counts; i++) {
        int32_t S = counts.tokens[i], num_seqs = measure_is_gpu(m) ? m->max_tokens / S : 1, other = 1;
        if (S < 2 * SHORT_TOKENS) { continue; }
        if (is_cross) { other = m->lengths.target_tokens < S ? m->lengths.target_tokens : S; }
        add_point(p, side_shape(m, side, (num_seqs > 1 ? num_seqs : 1) * S, S, other), feature, &counts, i);
    }
}

static bool takes_pieces(const DynapipeBlocks_v1* blocks) {
    return blocks->api->kept_bytes != NULL && !blocks->shapes.padded;
}

// A piece, after as many tokens of its sample, and after three times as many. Shorter samples are not cut.
// Few tokens take little time, whatever is left of it.
static void add_prefixes(MeasurePoints* p, const Measure* m, Side side) {
    enum { CPU_TOKENS = 256, GPU_TOKENS = 2048 };
    const int32_t limit = m->blocks->max_seq_tokens, longest = longest_of(m, side);
    const int32_t quarter = (limit > 0 && limit < longest ? limit : longest) / 4;
    const int32_t most = measure_is_gpu(m) ? GPU_TOKENS : CPU_TOKENS,
                  tokens = quarter < most ? quarter : most;
    const Counts small = {0};
    if (!takes_pieces(m->blocks) || tokens < PIECE_TILE) { return; }
    for (int32_t times = 1; times <= 3; times += 2) {
        MeasureShape shape = side_shape(m, side, tokens, tokens, 1);
        shape.prefix = times * tokens;
        add_point(p, shape, FEATURE_PREFIX_PRODUCTS, &small, 0);
    }
}

// Keys and values, of encoder tokens, in every decoder layer; scores, of long windows on both sides.
static void add_cross(MeasurePoints* p, const Measure* m) {
    Counts counts = token_counts(m, m->max_tokens);
    for (int i = 0; i < counts.num_counts; i++) {
        if (counts.tokens[i] < SHORT_TOKENS) { continue; }
        MeasureShape shape = side_shape(m, ENCODER, counts.tokens[i], SHORT_TOKENS, 1);
        add_point(p, shape, FEATURE_ENC_TOKENS, &counts, i);
    }
    add_long(p, m, ENCODER, FEATURE_CROSS_PRODUCTS, true);
}

// As many blocks as a layer has, after the first of its stack where these can be a range without the last
// block in rows; else the first layer with the embedding, else the whole model.
static MeasureSlice layer_slice(const DynapipeBlocks_v1* blocks, int32_t first, int32_t num) {
    const PlanChain chain = measure_chain(blocks);
    bool has_last = chain.last_in_rows && first + 2 * num == plan_chain_num_blocks(&chain);
    int32_t begin = first + num - has_last;
    MeasureSlice slices[] = {{begin, begin + num, false}, {first, first + num, false}};
    bool in_stack = first > 0 ? chain.num_dec_layers > 1 : chain.num_enc_layers > 1;
    for (int i = !in_stack; i < 2; i++) {
        if (measure_slice_valid(blocks, slices[i])) { return slices[i]; }
    }
    return (MeasureSlice){first, measure_num_blocks(blocks), true};
}

// Several layers after the first of a stack, where layer_slice() takes one of these: not an encoder's last,
// after which it ends. Empty where there are no two.
static MeasureSlice deep_slice(const DynapipeBlocks_v1* blocks, MeasureSlice one, int32_t first,
                               int32_t num) {
    enum { MOST_LAYERS = 4 };
    const PlanChain chain = measure_chain(blocks);
    int32_t L = plan_chain_num_blocks(&chain), stack_end = first > 0 ? L : plan_chain_first_dec(&chain);
    bool has_last = stack_end == L && !blocks->shapes.head_has_layer && !chain.last_in_rows;
    int32_t most = has_last ? stack_end : stack_end - num, end = one.begin + MOST_LAYERS * num;
    MeasureSlice deep = {one.begin, end < most ? end : most, false};
    bool serves = one.begin > first && deep.end > one.begin + num && measure_slice_valid(blocks, deep);
    return serves ? deep : (MeasureSlice){0};
}

static void list_stack(MeasurePoints* layer, MeasurePoints* embedding, const Measure* m, Side side) {
    const PlanChain chain = measure_chain(m->blocks);
    int32_t first = side == ENCODER ? 0 : plan_chain_first_dec(&chain);
    int32_t num = side == ENCODER ? chain.enc_blocks : chain.dec_blocks;
    layer->slice = layer_slice(m->blocks, first, num);
    layer->deep = deep_slice(m->blocks, layer->slice, first, num);
    layer->part = side == ENCODER ? PART_ENC_BLOCK : PART_DEC_BLOCK;
    layer->num_parts = num;
    for (int32_t j = 0; j < num; j++) {
        const int32_t past = (layer->slice.begin - first) % num,
                      at = layer->slice.begin + (j + num - past) % num;
        layer->blocks[j] = (MeasureSlice){at, at + 1, false};
    }
    layer->main = tokens_of(side);
    layer->share = 4;
    add_tokens(layer, m, side, true);
    add_long(layer, m, side, side == ENCODER ? FEATURE_ENC_SQUARES : FEATURE_DEC_SQUARES, false);
    if (side == DECODER) { add_cross(layer, m); }
    if ((side == DECODER) == (chain.num_dec_layers > 0)) { add_prefixes(layer, m, side); }
    if (layer->slice.begin == first) { return; }  // the embedding is in it
    embedding->slice = (MeasureSlice){first, first + num, false};
    embedding->part = PART_EMBEDDING;
    embedding->num_parts = 1;
    embedding->main = tokens_of(side);
    embedding->share = 1;
    embedding->base = layer->slice;
    add_tokens(embedding, m, side, false);
}

static void add_rows(MeasurePoints* p, const Measure* m, Side side, const Counts* counts) {
    p->num_parts = 1;
    p->main = FEATURE_SUPERVISED;
    for (int i = 0; i < counts->num_counts; i++) {
        MeasureShape shape = side_shape(m, side, counts->tokens[i], SHORT_TOKENS, 1);
        shape.num_rows = measure_side_tokens(side == ENCODER ? &shape.enc : &shape.dec);
        add_point(p, shape, FEATURE_SUPERVISED, counts, i);
    }
}

// Where the stream before it has all tokens, the gradient of the head's inputs costs time for each of them:
// it is zero but for the supervised rows. The rest is per row.
static void list_head(MeasurePoints* last, MeasurePoints* head, const Measure* m, Side side,
                      MeasureSlice layer) {
    const PlanChain chain = measure_chain(m->blocks);
    int32_t L = plan_chain_num_blocks(&chain), num = side == ENCODER ? chain.enc_blocks : chain.dec_blocks;
    Counts counts = token_counts(m, m->max_tokens);
    head->slice = (MeasureSlice){L, L, true};
    head->part = PART_HEAD;
    head->share = 4;
    if (!measure_slice_valid(m->blocks, head->slice)) {
        head->slice = (MeasureSlice){L - num, L, true};
        head->base = layer;
    }
    if (!chain.last_in_rows) {
        add_point(head, side_shape(m, side, m->max_tokens, SHORT_TOKENS, 1), tokens_of(side), &counts, 0);
    }
    add_rows(head, m, side, &counts);
    if (!chain.last_in_rows) { return; }
    last->slice = (MeasureSlice){L - 1, L, false};
    last->part = PART_LAST_BLOCK;
    last->share = 2;
    add_rows(last, m, side, &counts);
}

// --- curves ------------------------------------------------------------------------------------------------
// A feature's curve goes through the excess of its points over all other features of their shape, made
// non-decreasing; a few rounds of that find all curves (Gauss-Seidel).

enum { NUM_ROUNDS = 20 };

static double time_at(const CostPartMode* part, JobKind job, const MeasureShape* shape) {
    MbShape features = measure_mb_shape(shape);
    return cost_formula_value(&part->time_ns[job], &features);
}

static bool is_quadratic(CostFeature feature) {
    return feature == FEATURE_ENC_SQUARES || feature == FEATURE_DEC_SQUARES ||
           feature == FEATURE_CROSS_PRODUCTS || feature == FEATURE_PREFIX_PRODUCTS;
}

// Shapes larger than any measured are on the line of the last two knots. So a curve must not end level where
// its last points were pooled: these become one knot in their middle; and the knot before the last is not
// close to it.
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
// point, the others' at 0. Attention has no weights. Points are weighted by their accuracy: by the time of
// their job.
static void fit_feature(CostPartMode* part, const MeasurePoints* p, int32_t block, CostFeature feature,
                        JobKind job) {
    double x[MEASURE_MAX_POINTS], y[MEASURE_MAX_POINTS], weights[MEASURE_MAX_POINTS];
    CostCurve fitted = {0}, *curve = &part->time_ns[job].curves[feature];
    int n = 0;
    curve->num_knots = 0;
    if (is_quadratic(feature) && job == JOB_W) { return; }
    for (int32_t i = 0; i < p->num_points; i++) {
        const MeasuredPoint* point = &p->points[i];
        if (point->feature != feature || !point->is_known) { continue; }
        const BenchTimes* times = &point->blocks[block];
        double ns = times->ns[job];
        x[n] = point_feature(&point->shape, feature);
        y[n] = ns - times->base_ns[job] - time_at(part, job, &point->shape);
        weights[n++] = 1 / (1 + ns * ns);
    }
    if (feature == FEATURE_PREFIX_PRODUCTS) {  // a line: in the difference of both the others' errors cancel
        if (n < 2 || y[1] <= y[0]) { return; }
        *curve = (CostCurve){.num_knots = 1, .x = {x[1] - x[0]}, .y = {y[1] - y[0]}};
        return;
    }
    measure_isotonic(y, weights, n);
    n = end_curve(x, y, n);
    if (n > 0 && feature != p->main) { fitted.x[fitted.num_knots++] = 1; }
    for (int i = 0; i < n && fitted.num_knots < COST_MAX_KNOTS; i++) {
        if (fitted.num_knots > 0 && x[i] <= fitted.x[fitted.num_knots - 1]) { continue; }
        fitted.x[fitted.num_knots] = x[i];
        fitted.y[fitted.num_knots++] = fmax(y[i], 0);
    }
    *curve = fitted;
}

// Where no piece was measured: in causal layers every second product of squares is of tokens that see each
// other.
static void prefixes_of_squares(CostPartMode* part, CostFeature squares) {
    for (int job = JOB_F; job <= JOB_B; job++) {
        CostCurve* curves = part->time_ns[job].curves;
        int last = curves[squares].num_knots - 1;
        if (curves[FEATURE_PREFIX_PRODUCTS].num_knots > 0 || last < 0) { continue; }
        curves[FEATURE_PREFIX_PRODUCTS] =
            (CostCurve){.num_knots = 1, .x = {curves[squares].x[last]}, .y = {2 * curves[squares].y[last]}};
    }
}

static void fit_part(CostModel* out, const MeasurePoints* p, int32_t block) {
    CostPartMode* part = &out->parts[RECOMPUTE_NONE][p->part + block];
    CostPartMode fitted = {0};
    for (int round = 0; round < NUM_ROUNDS; round++) {
        for (int f = 0; f < FEATURE_COUNT; f++) {
            for (int job = JOB_F; job <= JOB_W; job++) {
                fit_feature(&fitted, p, block, (CostFeature)f, (JobKind)job);
            }
        }
    }
    for (int f = 0; f < FEATURE_COUNT; f++) {  // the embedding has two sides, measured one after the other
        for (int job = JOB_F; job <= JOB_W; job++) {
            const CostCurve* curve = &fitted.time_ns[job].curves[f];
            if (curve->num_knots > 0) { part->time_ns[job].curves[f] = *curve; }
        }
    }
}

// --- the points of a range, timed --------------------------------------------------------------------------
// A middle layer (of a chain of one, that one), the first layer with the embedding, whose part is the
// difference, and the head alone (or, where it is never alone, with the last layer); of an encoder-decoder
// both kinds of layer. Where one layer and all its data would stay in a cache, several in a row are timed: in
// training a stage of several layers processes other microbatches in between. A layer's time is divided among
// its blocks in proportion to the times of each alone: so its sum is measured as that of a layer of one
// block. The lists are swept several times: on a shared machine seconds are slow for all that is timed in
// them, and what counts of each point is the faster half of its sweeps.

typedef struct {
    Bench one, deep, base, blocks[CHAIN_MAX_BLOCKS];
} Benches;

static int32_t layers_of(const MeasurePoints* p, const MeasuredPoint* point) {
    return point->is_deep ? (p->deep.end - p->deep.begin) / p->num_parts : 1;
}

static bool has_base(const MeasurePoints* p) {
    return p->base.begin < p->base.end;
}

// Is each block measured alone?
static bool has_blocks(const MeasurePoints* p) {
    return p->num_parts > 1;
}

static int32_t times_of_point(const MeasurePoints* p) {
    return has_blocks(p) ? 1 + p->num_parts : 1;
}

// Would this point exceed the time left for its list? Estimated from the largest point before it of its
// feature; the curve then continues as a straight line. All ranks have the same numbers.
static bool is_too_long(const Measure* m, const MeasurePoints* p, const MeasuredPoint* point) {
    const MeasuredPoint* last = NULL;
    for (const MeasuredPoint* k = p->points; k < point; k++) {
        if (k->feature == point->feature && k->is_known) { last = k; }
    }
    if (point->is_small || last == NULL) { return false; }
    double growth =
        point_feature(&point->shape, point->feature) / point_feature(&last->shape, point->feature);
    if (is_quadratic(point->feature)) {
        growth = pow(growth, 0.65);
    }  // the rest of the job grows by its root
    const double* ns = last->seen[0][0].ns;
    double last_ns = ns[JOB_F] + ns[JOB_B] + ns[JOB_W];
    double left_ns = (double)(m->list_end_ns - m->spent_ns);
    return growth * last_ns * (layers_of(p, point) + has_blocks(p) + has_base(p)) >
           left_ns * (point->is_between ? 0.125 : 0.75);
}

static Status time_point(MeasuredPoint* point, const MeasurePoints* p, Benches* benches, BenchTimes* seen) {
    TRY(bench_time(seen, point->is_deep ? &benches->deep : &benches->one, has_base(p) ? &benches->base : NULL,
                   &point->shape));
    for (int job = 0; job < JOB_COUNT; job++) { seen->ns[job] /= layers_of(p, point); }
    for (int32_t j = 0; has_blocks(p) && j < p->num_parts; j++) {
        TRY(bench_time(&seen[1 + j], &benches->blocks[j], NULL, &point->shape));
    }
    return STATUS_OK;
}

// Points between others come last: then the time left is known. The first sweep decides which are measured.
static Status time_points(MeasurePoints* p, Measure* m, Benches* benches) {
    const int32_t sweep = m->num_sweeps;
    m->list_points_left = 0;
    for (int32_t i = 0; i < p->num_points; i++) {
        bool is_left = sweep == 0 || p->points[i].is_known;
        m->list_points_left += is_left ? times_of_point(p) : 0;
    }
    for (int between = 0; between < 2; between++) {
        for (MeasuredPoint* point = p->points; point < p->points + p->num_points; point++) {
            if (point->is_between != (between == 1)) { continue; }
            if (sweep == 0) {
                point->is_known = !is_too_long(m, p, point);
                m->list_points_left -= point->is_known ? 0 : times_of_point(p);
            }
            if (point->is_known) { TRY(time_point(point, p, benches, point->seen[sweep])); }
        }
    }
    return STATUS_OK;
}

static double faster_half(const MeasuredPoint* point, int32_t which, int job, int32_t num_sweeps) {
    double values[MEASURE_SWEEPS], sum = 0;
    const int32_t half = (num_sweeps + 1) / 2;
    for (int32_t i = 0; i < num_sweeps; i++) { values[i] = point->seen[i][which].ns[job]; }
    qsort(values, (size_t)num_sweeps, sizeof *values, compare_doubles);
    for (int32_t i = 0; i < half; i++) { sum += values[i]; }
    return sum / half;
}

// By as much as the median of the sweeps.
static double excess_over_base(const MeasuredPoint* point, int job, int32_t num_sweeps) {
    double values[MEASURE_SWEEPS];
    for (int32_t i = 0; i < num_sweeps; i++) {
        values[i] = point->seen[i][0].ns[job] - point->seen[i][0].base_ns[job];
    }
    qsort(values, (size_t)num_sweeps, sizeof *values, compare_doubles);
    return 0.5 * (values[(num_sweeps - 1) / 2] + values[num_sweeps / 2]);
}

static void settle_point(MeasuredPoint* point, const MeasurePoints* p, int32_t num_sweeps) {
    for (int job = 0; job < JOB_COUNT; job++) {
        double whole_ns = faster_half(point, 0, job, num_sweeps), sum_ns = 0;
        point->blocks[0].ns[job] = whole_ns;
        if (has_base(p)) {
            point->blocks[0].base_ns[job] = whole_ns - excess_over_base(point, job, num_sweeps);
        }
        if (!has_blocks(p)) { continue; }
        for (int32_t j = 0; j < p->num_parts; j++) {
            point->blocks[j].ns[job] = faster_half(point, 1 + j, job, num_sweeps);
            sum_ns += point->blocks[j].ns[job];
        }
        for (int32_t j = 0; j < p->num_parts; j++) {
            point->blocks[j].ns[job] *= sum_ns > 0 ? whole_ns / sum_ns : 0;
        }
    }
}

// Small shapes whose layer, with all its data (parameters, gradients, activations), would stay in a cache
// from run to run, unlike in training. The mean over the ranks: all choose alike.
static Status find_deep(MeasurePoints* p, Bench* bench) {
    enum { CPU_COLD_BYTES = 32 << 20, GPU_COLD_BYTES = 128 << 20 };
    Dynapipe* dp = bench->measure->dp;
    const DynapipeParams_v1* params = &bench->model.params;
    double touched[MEASURE_MAX_POINTS] = {0};
    double cold = measure_is_gpu(bench->measure) ? GPU_COLD_BYTES : CPU_COLD_BYTES;
    int32_t bytes_per_value = collective_type_bytes((DynapipeType)params->grad_type) +
                              collective_type_bytes((DynapipeType)params->param_type);
    if (p->deep.begin == p->deep.end) { return STATUS_OK; }
    for (int32_t i = 0; i < p->num_points; i++) {
        BenchBytes bytes = bytes_of(bench, &p->points[i].shape, 1);
        touched[i] = (double)(params->num_params * bytes_per_value + bytes.acts + 2 * bytes.before) /
                     dp->transport.num_ranks;
    }
    TRY(collective_all_reduce_sum(&dp->world, touched, p->num_points));
    for (int32_t i = 0; i < p->num_points; i++) { p->points[i].is_deep = touched[i] < cold; }
    return STATUS_OK;
}

// With buffers for the shapes of the list that are measured so.
static Status open_bench(Bench* bench, MeasurePoints* p, Measure* m, MeasureSlice slice, bool deep) {
    MeasureShape shapes[MEASURE_MAX_POINTS];
    int32_t num_shapes = 0;
    for (int32_t i = 0; i < p->num_points; i++) {
        if (p->points[i].is_deep || !deep) { shapes[num_shapes++] = p->points[i].shape; }
    }
    return num_shapes > 0 ? bench_init(bench, m, slice, shapes, num_shapes) : STATUS_OK;
}

static Status open_benches(Benches* benches, MeasurePoints* p, Measure* m) {
    TRY(open_bench(&benches->one, p, m, p->slice, false));
    TRY(find_deep(p, &benches->one));
    TRY(open_bench(&benches->deep, p, m, p->deep, true));
    if (has_base(p)) { TRY(open_bench(&benches->base, p, m, p->base, false)); }
    for (int32_t j = 0; has_blocks(p) && j < p->num_parts; j++) {
        TRY(open_bench(&benches->blocks[j], p, m, p->blocks[j], false));
    }
    return STATUS_OK;
}

// The ranges of a list are made anew in every sweep: those of all lists may be more than a device holds.
static Status sweep_list(MeasurePoints* p, Measure* m, CostModel* update) {
    Benches benches = {.one = {.measure = m}, .deep = {.measure = m}, .base = {.measure = m}};
    for (int32_t j = 0; j < CHAIN_MAX_BLOCKS; j++) { benches.blocks[j].measure = m; }
    Status status = open_benches(&benches, p, m);
    if (status == STATUS_OK) { status = time_points(p, m, &benches); }
    if (status == STATUS_OK && update != NULL) { status = bench_update(update, &benches.one); }
    for (int32_t j = 0; j < CHAIN_MAX_BLOCKS; j++) { bench_free(&benches.blocks[j]); }
    bench_free(&benches.base);
    bench_free(&benches.deep);
    bench_free(&benches.one);
    return status;
}

// The first sweep has half of the time, for it finds what is too long; the others share the rest. In a sweep
// each list has its share of what is left: what one does not need goes to the next ones.
static Status sweep_lists(CostModel* out, MeasurePoints* lists, Measure* m) {
    const bool is_first = m->num_sweeps == 0;
    const int64_t left_ns = m->budget_ns - m->spent_ns;
    const int64_t end_ns = m->spent_ns + left_ns / (is_first ? 2 : MEASURE_SWEEPS - m->num_sweeps);
    const int with_update = lists[LIST_EMBEDDING].num_points > 0 ? LIST_EMBEDDING : LIST_LAYER;
    int32_t share_left = 0;
    for (int i = 0; i < MEASURE_LISTS; i++) { share_left += lists[i].num_points > 0 ? lists[i].share : 0; }
    for (int i = 0; i < MEASURE_LISTS; i++) {
        if (lists[i].num_points == 0) { continue; }
        m->list_end_ns = m->spent_ns + (end_ns - m->spent_ns) / share_left * lists[i].share;
        TRY(sweep_list(&lists[i], m, is_first && i == with_update ? out : NULL));
        share_left -= lists[i].share;
    }
    return STATUS_OK;
}

// As many sweeps as fit the time, at least one.
static Status time_lists(CostModel* out, Measure* m, MeasurePoints* lists) {
    int64_t begin_ns, last_ns;
    do {
        begin_ns = m->spent_ns;
        TRY(sweep_lists(out, lists, m));
        m->num_sweeps++;
        last_ns = m->spent_ns - begin_ns;
    } while (m->num_sweeps < MEASURE_SWEEPS && m->spent_ns + last_ns <= m->budget_ns);
    for (MeasurePoints* p = lists; p < lists + MEASURE_LISTS; p++) {
        for (int32_t i = 0; i < p->num_points; i++) { settle_point(&p->points[i], p, m->num_sweeps); }
        for (int32_t j = 0; j < p->num_parts && p->num_points > 0; j++) { fit_part(out, p, j); }
    }
    return STATUS_OK;
}

static Status measure_lists(CostModel* out, Measure* m, MeasurePoints* lists) {
    const PlanChain chain = measure_chain(m->blocks);
    const bool has_dec = chain.num_dec_layers > 0;
    list_stack(&lists[LIST_LAYER], &lists[LIST_EMBEDDING], m, ENCODER);
    if (has_dec) { list_stack(&lists[LIST_DEC_LAYER], &lists[LIST_DEC_EMBEDDING], m, DECODER); }
    list_head(&lists[LIST_LAST], &lists[LIST_HEAD], m, has_dec ? DECODER : ENCODER,
              lists[has_dec ? LIST_DEC_LAYER : LIST_LAYER].slice);
    TRY(time_lists(out, m, lists));
    if (!takes_pieces(m->blocks)) { return STATUS_OK; }
    for (int32_t j = 0; j < (has_dec ? chain.dec_blocks : chain.enc_blocks); j++) {
        prefixes_of_squares(&out->parts[RECOMPUTE_NONE][cost_causal_part(&chain) + j],
                            has_dec ? FEATURE_DEC_SQUARES : FEATURE_ENC_SQUARES);
    }
    return STATUS_OK;
}

Status measure_times(CostModel* out, Measure* m) {
    MeasurePoints* lists = (MeasurePoints*)calloc(MEASURE_LISTS, sizeof *lists);
    if (lists == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for what is to be measured"); }
    for (int part = 0; part < PART_COUNT; part++) {
        memset(out->parts[RECOMPUTE_NONE][part].time_ns, 0, sizeof out->parts[RECOMPUTE_NONE][part].time_ns);
    }
    const int64_t cache_bytes = sysconf(_SC_LEVEL2_CACHE_SIZE), most_bytes = 16 << 20;
    const bool has_caches = m->clock_ns == NULL && !measure_is_gpu(m);
    m->cold_bytes =
        has_caches ? (size_t)(cache_bytes > 0 ? smaller(4 * cache_bytes, most_bytes) : 8 << 20) : 0;
    m->cold = (unsigned char*)malloc(m->cold_bytes + 1);
    if (m->cold != NULL) { memset(m->cold, 1, m->cold_bytes); }  // or all pages would be one page of zeros
    m->begin_ns = clock_now_ns();
    Status status =
        m->cold != NULL ? measure_lists(out, m, lists) : FAIL(STATUS_NO_MEMORY, "no memory to measure with");
    free(m->cold);
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
