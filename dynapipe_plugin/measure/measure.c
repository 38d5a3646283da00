#include "measure.h"

#include <ctype.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "../../util/files.h"
#include "../../util/numbers.h"
#include "../../util/program.h"
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
enum { MIN_RUNS = 2, MAX_RUNS = 16 };
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
    double ns[JOB_COUNT];  // F, B, W
} BenchTimes;

static bool measure_is_gpu(const Measure* m) {
    return m->dp->device.api != NULL;
}

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
    int num_jobs, num_runs;  // F, B and, where it is a job, W
    int queued[JOB_COUNT];   // of each in a row
    double ns[JOB_COUNT][MAX_RUNS + 1];
} Runs;

// On a CPU: another microbatch's jobs come between two of this one's, and what these had in the core's own
// caches goes.
static void cool(const Measure* m) {
    enum { LINE_BYTES = 64 };
    unsigned sum = 0;
    for (size_t i = 0; i < m->cold_bytes; i += LINE_BYTES) { sum += ((volatile unsigned char*)m->cold)[i]; }
    (void)sum;
}

// Each job once, or several in a row. (B in a row reads its own output where it expects activations: other
// values, the same work.)
static Status run_once(double* spent_ns, Runs* runs, Bench* bench, const DynapipeBatch* batch) {
    *spent_ns = 0;
    for (int job = 0; job < runs->num_jobs; job++) {
        TRY(finish(bench));
        cool(bench->measure);
        Moment begin = moment_now(bench->measure);
        for (int i = 0; i < runs->queued[job]; i++) { TRY(run_job(bench, batch, (JobKind)job)); }
        TRY(finish(bench));
        double ns = since(bench->measure, begin);
        runs->ns[job][runs->num_runs] = ns / runs->queued[job];
        *spent_ns += ns;
    }
    runs->num_runs++;
    return STATUS_OK;
}

static int queue_length(double job_ns) {
    double wanted = QUEUED_NS / fmax(job_ns, 1);
    return wanted < 1 ? 1 : wanted > MAX_QUEUED ? MAX_QUEUED : (int)wanted;
}

// The first run warms caches and shows how long the others will take.
static Status time_here(BenchTimes* out, Bench* bench, const MeasureShape* shape, double share_ns) {
    const DynapipeBlocks_v1* blocks = bench->measure->blocks;
    Runs runs = {.num_jobs = blocks->api->backward_weights != NULL ? 3 : 2, .queued = {1, 1, 1}};
    DynapipeBatch batch;
    double run_ns;
    arena_reset(&bench->arena);
    TRY(measure_shape_batch(&batch, shape, blocks->vocab, &bench->arena));
    batch.kept = bench->kept, batch.dkept = bench->dkept;
    TRY(run_once(&run_ns, &runs, bench, &batch));
    const bool counts = run_ns >= LONG_RUN_NS;
    double spent_ns = counts ? run_ns : 0;
    if (measure_is_gpu(bench->measure) && !counts) {
        runs.num_runs = 0;
        TRY(run_once(&run_ns, &runs, bench, &batch));
        for (int job = 0; job < runs.num_jobs; job++) { runs.queued[job] = queue_length(runs.ns[job][0]); }
    }
    if (!counts) { runs.num_runs = 0; }
    int least = counts ? 1 : MIN_RUNS;
    while (runs.num_runs < MAX_RUNS && (runs.num_runs < least || spent_ns + run_ns < share_ns)) {
        TRY(run_once(&run_ns, &runs, bench, &batch));
        spent_ns += run_ns;
    }
    *out = (BenchTimes){0};
    for (int job = 0; job < runs.num_jobs; job++) {
        out->ns[job] = measure_mean(runs.ns[job], runs.num_runs);
    }
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

enum { SUM_SPENT = JOB_COUNT, SUM_FAILED, NUM_SUMS };

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
static Status bench_time(BenchTimes* out, Bench* bench, const MeasureShape* shape) {
    Measure* m = bench->measure;
    int32_t num_left = m->list_points_left > 1 ? m->list_points_left-- : 1;
    double values[NUM_SUMS] = {0}, share_ns = (double)(m->list_end_ns - m->spent_ns) / num_left;
    BenchTimes times = {0};
    TRY(collective_barrier(&m->dp->world));
    Status status = time_here(&times, bench, shape, fmin(share_ns, POINT_NS));
    memcpy(values, times.ns, sizeof times.ns);
    TRY(bench_agree(values, m, status));
    memcpy(out->ns, values, sizeof out->ns);
    measure_speed_add(&m->speed, times.ns, out->ns);
    m->points_done++;
    return STATUS_OK;
}

// An idle GPU runs at a low clock: it is kept busy for a while. Ranks may need different numbers of rounds.
static Status bench_init(Bench* bench, Measure* m, MeasureSlice slice, const MeasureShape* shapes,
                         int32_t num_shapes) {
    double values[NUM_SUMS] = {0};
    *bench = (Bench){.measure = m, .is_first = slice.begin == 0, .is_last = slice.has_head};
    TRY(bench_agree(values, m, init_here(bench, slice, shapes, num_shapes)));
    if (!measure_is_gpu(m) || m->clock_ns != NULL) { return STATUS_OK; }
    int64_t begin_ns = clock_now_ns();
    BenchTimes times;
    Status status;
    do {
        status = time_here(&times, bench, &shapes[num_shapes - 1], POINT_NS);
    } while (status == STATUS_OK && clock_now_ns() - begin_ns < GPU_WARM_NS);
    return bench_agree(values, m, status);
}

// Zeroing gradients and the optimizer: ns for each byte of gradients.
static Status bench_update(CostModel* out, Bench* bench) {
    const DynapipeParams_v1* params = &bench->model.params;
    double values[NUM_SUMS] = {0}, least_ns = INFINITY, ns = 0;
    TRY(collective_barrier(&bench->measure->dp->world));
    Status status = STATUS_OK;
    for (int run = -1; run < MIN_RUNS && status == STATUS_OK; run++) {  // the first makes its memory
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
    BenchTimes times;                     // of one layer
    BenchTimes blocks[CHAIN_MAX_BLOCKS];  // of each of its blocks: parts of it
} MeasuredPoint;

// The points of one range: of a layer, whose blocks are the parts from `part` on, or of a part beside a
// layer, whose time is the excess over the parts from `base` on.
typedef struct {
    MeasureSlice slice;
    MeasureSlice deep;  // of several such layers, for small shapes; empty: none
    CostPart part, base;
    int32_t num_parts, num_base;
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
    embedding->base = layer->part;
    embedding->num_base = num;
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
static void list_head(MeasurePoints* last, MeasurePoints* head, const Measure* m, Side side) {
    const PlanChain chain = measure_chain(m->blocks);
    int32_t L = plan_chain_num_blocks(&chain), num = side == ENCODER ? chain.enc_blocks : chain.dec_blocks;
    Counts counts = token_counts(m, m->max_tokens);
    head->slice = (MeasureSlice){L, L, true};
    head->part = PART_HEAD;
    head->share = 4;
    if (!measure_slice_valid(m->blocks, head->slice)) {
        head->slice = (MeasureSlice){L - num, L, true};
        head->base = side == ENCODER ? PART_ENC_BLOCK : PART_DEC_BLOCK;
        head->num_base = num;
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
static void fit_feature(CostPartMode* part, const MeasurePoints* p, int32_t block, const CostPartMode* base,
                        CostFeature feature, JobKind job) {
    double x[MEASURE_MAX_POINTS], y[MEASURE_MAX_POINTS], weights[MEASURE_MAX_POINTS];
    CostCurve fitted = {0}, *curve = &part->time_ns[job].curves[feature];
    int n = 0;
    curve->num_knots = 0;
    if (is_quadratic(feature) && job == JOB_W) { return; }
    for (int32_t i = 0; i < p->num_points; i++) {
        const MeasuredPoint* point = &p->points[i];
        if (point->feature != feature || !point->is_known) { continue; }
        double ns = point->blocks[block].ns[job], known = time_at(part, job, &point->shape);
        for (int32_t j = 0; j < p->num_base; j++) { known += time_at(&base[j], job, &point->shape); }
        x[n] = point_feature(&point->shape, feature);
        y[n] = ns - known;
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
    const CostPartMode* base = &out->parts[RECOMPUTE_NONE][p->base];
    CostPartMode fitted = {0};
    for (int round = 0; round < NUM_ROUNDS; round++) {
        for (int f = 0; f < FEATURE_COUNT; f++) {
            for (int job = JOB_F; job <= JOB_W; job++) {
                fit_feature(&fitted, p, block, base, (CostFeature)f, (JobKind)job);
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
// block.

typedef struct {
    Bench one, deep, blocks[CHAIN_MAX_BLOCKS];
} Benches;

static int32_t layers_of(const MeasurePoints* p, const MeasuredPoint* point) {
    return point->is_deep ? (p->deep.end - p->deep.begin) / p->num_parts : 1;
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
    double last_ns = last->times.ns[JOB_F] + last->times.ns[JOB_B] + last->times.ns[JOB_W];
    double left_ns = (double)(m->list_end_ns - m->spent_ns);
    return growth * last_ns * (layers_of(p, point) + has_blocks(p)) >
           left_ns * (point->is_between ? 0.125 : 0.75);
}

static Status time_blocks(MeasuredPoint* point, const MeasurePoints* p, Benches* benches) {
    double sum_ns[JOB_COUNT] = {0};
    point->blocks[0] = point->times;
    if (!has_blocks(p)) { return STATUS_OK; }
    for (int32_t j = 0; j < p->num_parts; j++) {
        BenchTimes* times = &point->blocks[j];
        TRY(bench_time(times, &benches->blocks[j], &point->shape));
        for (int job = 0; job < JOB_COUNT; job++) { sum_ns[job] += times->ns[job]; }
    }
    for (int32_t j = 0; j < p->num_parts; j++) {
        double* ns = point->blocks[j].ns;
        for (int job = 0; job < JOB_COUNT; job++) {
            ns[job] *= sum_ns[job] > 0 ? point->times.ns[job] / sum_ns[job] : 0;
        }
    }
    return STATUS_OK;
}

// Points between others come last: then the time left is known.
static Status time_points(MeasurePoints* p, Measure* m, Benches* benches) {
    for (int between = 0; between < 2; between++) {
        for (MeasuredPoint* point = p->points; point < p->points + p->num_points; point++) {
            if (point->is_between != (between == 1)) { continue; }
            point->is_known = !is_too_long(m, p, point);
            if (!point->is_known) {
                m->list_points_left -= times_of_point(p);
                continue;
            }
            TRY(bench_time(&point->times, point->is_deep ? &benches->deep : &benches->one, &point->shape));
            for (int job = 0; job < JOB_COUNT; job++) { point->times.ns[job] /= layers_of(p, point); }
            TRY(time_blocks(point, p, benches));
        }
    }
    return STATUS_OK;
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

static Status measure_points(MeasurePoints* p, Measure* m, CostModel* out, bool with_update) {
    Benches benches = {.one = {.measure = m}, .deep = {.measure = m}};
    for (int32_t j = 0; j < CHAIN_MAX_BLOCKS; j++) { benches.blocks[j].measure = m; }
    Status status = open_bench(&benches.one, p, m, p->slice, false);
    if (status == STATUS_OK) { status = find_deep(p, &benches.one); }
    if (status == STATUS_OK) { status = open_bench(&benches.deep, p, m, p->deep, true); }
    for (int32_t j = 0; has_blocks(p) && j < p->num_parts && status == STATUS_OK; j++) {
        status = open_bench(&benches.blocks[j], p, m, p->blocks[j], false);
    }
    if (status == STATUS_OK) { status = time_points(p, m, &benches); }
    if (status == STATUS_OK && with_update) { status = bench_update(out, &benches.one); }
    for (int32_t j = 0; j < CHAIN_MAX_BLOCKS; j++) { bench_free(&benches.blocks[j]); }
    bench_free(&benches.deep);
    bench_free(&benches.one);
    for (int32_t j = 0; j < p->num_parts && status == STATUS_OK; j++) { fit_part(out, p, j); }
    return status;
}

// Each list has its share of the time left: what one does not need goes to the next ones.
static Status measure_lists(CostModel* out, Measure* m, MeasurePoints* lists) {
    const PlanChain chain = measure_chain(m->blocks);
    const bool has_dec = chain.num_dec_layers > 0;
    int32_t share_left = 0;
    list_stack(&lists[LIST_LAYER], &lists[LIST_EMBEDDING], m, ENCODER);
    if (has_dec) { list_stack(&lists[LIST_DEC_LAYER], &lists[LIST_DEC_EMBEDDING], m, DECODER); }
    list_head(&lists[LIST_LAST], &lists[LIST_HEAD], m, has_dec ? DECODER : ENCODER);
    for (int i = 0; i < MEASURE_LISTS; i++) { share_left += lists[i].share; }
    int with_update = lists[LIST_EMBEDDING].num_points > 0 ? LIST_EMBEDDING : LIST_LAYER;
    for (int i = 0; i < MEASURE_LISTS; i++) {
        if (lists[i].num_points == 0) { continue; }
        m->list_end_ns = m->spent_ns + (m->budget_ns - m->spent_ns) / share_left * lists[i].share;
        m->list_points_left = lists[i].num_points * times_of_point(&lists[i]);
        TRY(measure_points(&lists[i], m, out, i == with_update));
        share_left -= lists[i].share;
    }
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
    m->cold_bytes =
        measure_is_gpu(m) ? 0 : (size_t)(cache_bytes > 0 ? smaller(4 * cache_bytes, most_bytes) : 8 << 20);
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

// --- links, sums, and differences between ranks ------------------------------------------------------------

// After a replica's last stage comes another replica: no activation is sent there. With one stage none is
// sent anywhere, and sums of a GPU use the measured rate of links.
static bool is_within(int32_t rank, int32_t num_stages) {
    return num_stages == 1 || rank % num_stages != num_stages - 1;
}

// The cost model gets the mean latency, and the mean time of a byte. With one rank, memory's own rate.
static Status measure_links(CostModel* out, MachineRank* ranks, Dynapipe* dp) {
    int32_t num_links = dp->transport.num_ranks - 1, num_within = 0;
    double latency_ns = 0, ns_per_byte = 0;
    LinkCosts* links = (LinkCosts*)calloc((size_t)num_links + 1, sizeof *links);
    if (links == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d links", num_links); }
    Status status = link_probe(links, &dp->world, dp->stream, (TransportChoice)dp->options.transport);
    for (int32_t r = 0; r < num_links; r++) {
        if (status != STATUS_OK || !is_within(r, dp->num_stages)) { continue; }  // 0: no link of its own
        ranks[r].link_latency_ns = links[r].latency_ns;
        ranks[r].link_bytes_per_ns = links[r].bytes_per_ns;
        latency_ns += links[r].latency_ns;
        ns_per_byte += 1 / links[r].bytes_per_ns;
        num_within++;
    }
    out->comm_latency_ns = num_within > 0 ? latency_ns / num_within : 20e3;
    out->comm_bytes_per_ns = num_within > 0 ? num_within / ns_per_byte : 3;
    free(links);
    return status;
}

// All stages' replicas at once, as at the end of a step; the mean time of a byte. On a GPU, and where there
// are no replicas, sums travel as fast as other messages.
static Status measure_sums(CostModel* out, const Measure* m) {
    Dynapipe* dp = m->dp;
    out->reduce_bytes_per_ns = out->comm_bytes_per_ns;
    if (dp->num_replicas < 2 || dp->replicas.num_ranks < 2 || measure_is_gpu(m)) { return STATUS_OK; }
    double bytes_per_ns = 0;
    TRY(link_probe_sums(&bytes_per_ns, &dp->replicas));
    double ns_per_byte = 1 / bytes_per_ns;
    TRY(collective_all_reduce_sum(&dp->world, &ns_per_byte, 1));
    out->reduce_bytes_per_ns = dp->transport.num_ranks / ns_per_byte;
    return STATUS_OK;
}

// Speeds from the timed points; a measurement that machine_check() would refuse has failed.
static Status measure_speeds(MachineRank* ranks, Measure* m) {
    Collective* world = &m->dp->world;
    double mine[JOB_R];
    const void* slow;
    for (int kind = JOB_F; kind < JOB_R; kind++) {
        double value = session_refit_ratio(m->speed.points[kind], m->speed.num_points);
        mine[kind] = value > 0 ? fmin(fmax(value, MACHINE_LEAST_SLOW), MACHINE_MOST_SLOW) : 1;
    }
    TRY(collective_each(world, mine, sizeof mine, &slow));
    for (int32_t r = 0; r < world->num_ranks; r++) {
        ranks[r] = machine_rank(NULL, r);
        memcpy(ranks[r].slow, (const double*)slow + (size_t)r * JOB_R, sizeof mine);
        ranks[r].slow[JOB_R] = ranks[r].slow[JOB_F];
    }
    return STATUS_OK;
}

// How many times as long the slowest rank takes as the fastest, less 1: of the jobs [begin, end) together.
static double spread(const MachineRank* ranks, int32_t num_ranks, int begin, int end) {
    double least = INFINITY, most = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        double slow = 0;
        for (int kind = begin; kind < end; kind++) { slow += ranks[r].slow[kind]; }
        least = fmin(least, slow);
        most = fmax(most, slow);
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

// Links are compared by a message of about what a small microbatch sends.
static bool settle_links(MachineRank* ranks, int32_t num_links) {
    enum { USUAL_BYTES = 256 << 10 };
    double least_ns = INFINITY, most_ns = 0;
    for (int32_t r = 0; r < num_links; r++) {
        if (ranks[r].link_bytes_per_ns <= 0) { continue; }
        double ns = ranks[r].link_latency_ns + USUAL_BYTES / ranks[r].link_bytes_per_ns;
        least_ns = fmin(least_ns, ns);
        most_ns = fmax(most_ns, ns);
    }
    if (most_ns > least_ns * (1 + MEASURE_LINK_NOISE)) { return true; }
    for (int32_t r = 0; r < num_links; r++) { ranks[r].link_latency_ns = ranks[r].link_bytes_per_ns = 0; }
    return false;
}

bool measure_machine_settle(MachineRank* ranks, int32_t num_ranks) {
    bool links_differ = settle_links(ranks, num_ranks - 1), speeds_differ = settle_speeds(ranks, num_ranks);
    return links_differ || speeds_differ;
}

// --- a fresh measurement -----------------------------------------------------------------------------------

DynapipeCosts* measure_costs_new(int32_t num_ranks) {
    return (DynapipeCosts*)calloc(1, sizeof(DynapipeCosts) + (size_t)num_ranks * sizeof(MachineRank));
}

static MachineRank* costs_ranks(DynapipeCosts* costs) {
    return (MachineRank*)(costs + 1);
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

Status measure_fresh(DynapipeCosts* out, MachineRank* found, Measure* m) {
    const int32_t num_ranks = m->dp->transport.num_ranks;
    CostModel* costs = &out->model;
    MachineRank* ranks = costs_ranks(out);
    TRY(measure_times(costs, m));
    TRY(measure_speeds(ranks, m));
    TRY(measure_links(costs, ranks, m->dp));
    TRY(measure_sums(costs, m));
    if (found != NULL) { memcpy(found, ranks, (size_t)num_ranks * sizeof *ranks); }
    bool differ = measure_machine_settle(ranks, num_ranks);
    out->machine = differ ? (Machine){.num_ranks = num_ranks, .ranks = ranks} : (Machine){0};
    for (int part = 0; part < PART_COUNT; part++) {
        costs->parts[RECOMPUTE_NONE][part].offered = costs->parts[RECOMPUTE_FULL][part].offered = true;
    }
    costs->recompute_is_job[RECOMPUTE_FULL] = true;
    costs->chain = measure_chain(m->blocks);
    costs->measured = about_of(m);
    measure_times_set_recompute(costs);
    if (m->dp->transport.rank == 0) {
        printf("measured %s: %d points in %.1f s\n", m->blocks->signature, m->points_done,
               (double)(clock_now_ns() - m->begin_ns) / 1e9);
        fflush(stdout);
    }
    return cost_model_check(costs);
}

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
    MeasureLengths longest, most = {dp->run.max_seq_tokens, dp->run.max_target_tokens};
    TRY(longest_samples(&longest, dp));
    *out =
        (Measure){.dp = dp, .blocks = blocks, .lengths = {most.seq_tokens, has_dec ? most.target_tokens : 0}};
    if (dp->options.batching != BATCHING_PACKED) {
        out->lengths.seq_tokens = smaller(up_to_power(longest.seq_tokens), most.seq_tokens);
        out->lengths.target_tokens =
            has_dec ? smaller(up_to_power(longest.target_tokens), most.target_tokens) : 0;
    }
    // where the number of stages is to be chosen, all ranks may be one replica
    int64_t of_step = dp->run.batch_tokens / (dp->options.num_stages > 0 ? dp->num_replicas : 1);
    out->max_tokens =
        smaller(measure_is_gpu(out) ? GPU_TOKENS : CPU_TOKENS, up_to_power(smaller(of_step, 1 << 30)));
    out->max_tokens =
        (int32_t)larger(out->max_tokens, larger(out->lengths.seq_tokens, out->lengths.target_tokens));
    out->budget_ns = (int64_t)(dp->options.measure_seconds * 1e9);
    return STATUS_OK;
}

// --- kept from run to run ----------------------------------------------------------------------------------

static bool find_folder(char out[MEASURE_PATH_CHARS]) {
    static const char* const places[][2] = {
        {"DYNAPIPE_CACHE", ""}, {"XDG_CACHE_HOME", "/dynapipe"}, {"HOME", "/.cache/dynapipe"}};
    for (int i = 0; i < 3; i++) {
        const char* value = getenv(places[i][0]);
        if (value == NULL || value[0] == '\0') { continue; }
        int n = snprintf(out, MEASURE_PATH_CHARS, "%s%s", value, places[i][1]);
        return n > 0 && n < MEASURE_PATH_CHARS;
    }
    return false;
}

// Its bytes show code, compiler and flags. Unknown: the seed.
static uint64_t program_hash(void) {
    uint64_t hash = HASH_SEED, bytes[1024];
    FILE* program = fopen("/proc/self/exe", "rb");
    if (program == NULL) { return hash; }
    for (size_t n; (n = fread(bytes, 1, sizeof bytes, program)) > 0;) { hash = hash_bytes(hash, bytes, n); }
    fclose(program);
    return hash;
}

// For people: the signature's words; and a hash of the whole key, for what they omit:
// ranks, and the program.
bool measure_kept_path(char out[MEASURE_PATH_CHARS], const char* signature, const CostMeasured* about) {
    enum { MOST_SHOWN = 100 };
    int32_t numbers[] = {about->interface, about->num_ranks, about->ranks_per_host, about->num_replicas};
    uint64_t hash = hash_bytes(program_hash(), numbers, sizeof numbers);
    hash = hash_finish(hash_bytes(hash, signature, strlen(signature)));
    char words[MOST_SHOWN + 1];
    size_t n = 0;
    for (const char* at = signature; *at != '\0' && n < MOST_SHOWN; at++) {
        words[n++] = isalnum((unsigned char)*at) || *at == '-' || *at == '.' ? *at : '_';
    }
    words[n] = '\0';
    if (!find_folder(out)) { return false; }
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

bool measure_kept_load(CostModel* out, Machine* machine, char why[STATUS_MESSAGE_BYTES], const char* path,
                       const char* signature, const CostMeasured* about) {
    why[0] = '\0';
    if (access(path, F_OK) != 0) { return false; }
    CostModel* kept = (CostModel*)malloc(sizeof *kept);
    Machine of_kept = {0};
    bool is_read = kept != NULL && cost_file_load(kept, &of_kept, path, signature) == STATUS_OK;
    if (!is_read) {
        snprintf(why, STATUS_MESSAGE_BYTES, "%s", kept != NULL ? status_message() : "no memory");
    }
    bool is_good = is_read && serves(&kept->measured, about);
    if (is_good && of_kept.num_ranks != 0 && of_kept.num_ranks != about->num_ranks) {
        snprintf(why, STATUS_MESSAGE_BYTES, "it describes %d ranks, there are %d", of_kept.num_ranks,
                 about->num_ranks);
        is_good = false;
    }
    if (is_good) { *out = *kept; }
    if (is_good && machine != NULL) {
        *machine = of_kept;
    } else {
        free((void*)of_kept.ranks);
    }
    free(kept);
    return is_good;
}

// Written under a name of this process's own, then renamed: of several runs that end at once, one file is
// kept whole.
Status measure_kept_save(const CostModel* model, const Machine* machine, const char* path,
                         const char* signature) {
    char parent[MEASURE_PATH_CHARS], mine[MEASURE_PATH_CHARS + 32];
    snprintf(parent, sizeof parent, "%s", path);
    *strrchr(parent, '/') = '\0';
    TRY(file_make_directory(parent));
    snprintf(mine, sizeof mine, "%s.%ld", path, (long)getpid());
    TRY(cost_file_save(model, machine, mine, signature));
    if (rename(mine, path) == 0) { return STATUS_OK; }
    Status status = FAIL(STATUS_IO, "%s: %s", path, strerror(errno));
    (void)unlink(mine);
    return status;
}

// --- --costs, kept files, or measured now ------------------------------------------------------------------

// The result of rank 0, for all; then, where it has ranks, these.
typedef struct {
    int32_t status, is_known;
    char message[1024];
    CostModel model;
    Machine machine;
} Found;

// Measured in the blocks that the model's layers have?
static bool has_blocks_of(const CostModel* model, const Measure* m) {
    const PlanChain chain = measure_chain(m->blocks);
    return model->chain.enc_blocks == chain.enc_blocks && model->chain.dec_blocks == chain.dec_blocks &&
           model->chain.last_in_rows == chain.last_in_rows;
}

static void find_kept(Found* found, const Measure* m, const char* path) {
    char why[STATUS_MESSAGE_BYTES];
    CostMeasured about = about_of(m);
    found->is_known =
        measure_kept_load(&found->model, &found->machine, why, path, m->blocks->signature, &about);
    if (found->is_known && !has_blocks_of(&found->model, m)) {
        free((void*)found->machine.ranks);
        found->machine = (Machine){0};
        found->is_known = false;
        snprintf(why, sizeof why, "a layer has another number of blocks");
    }
    bool is_long = strlen(path) > 72;  // 100 columns
    if (found->is_known) { printf("costs: as measured before%s(%s)\n", is_long ? "\n        " : " ", path); }
    if (why[0] != '\0') { printf("costs: measured anew, the kept file cannot be used: %s\n", why); }
    fflush(stdout);
}

// A named file is used on any ranks, without its measurements of single ranks.
static void find_named(Found* found, const Measure* m) {
    const char* path = m->dp->options.costs;
    const int32_t num_ranks = m->dp->transport.num_ranks;
    found->status = (int32_t)cost_file_load(&found->model, &found->machine, path, m->blocks->signature);
    found->is_known = true;
    if (found->status == STATUS_OK && !has_blocks_of(&found->model, m)) {
        found->status = (int32_t)FAIL(
            STATUS_BAD_OPTION,
            "--costs %s: measured on layers of %d and %d blocks, not of this model's ---> measure "
            "again",
            path, found->model.chain.enc_blocks, found->model.chain.dec_blocks);
    }
    snprintf(found->message, sizeof found->message, "%s", status_message());
    int32_t described = found->machine.num_ranks;
    if (found->status != STATUS_OK || described == 0 || described == num_ranks) { return; }
    printf("costs: %s describes %d ranks, there are %d: their differences are left out\n", path, described,
           num_ranks);
    fflush(stdout);
    free((void*)found->machine.ranks);
    found->machine = (Machine){0};
}

static Status share_found(DynapipeCosts* out, Found* found, Dynapipe* dp) {
    const MachineRank* mine = found->machine.ranks;
    MachineRank* ranks = costs_ranks(out);
    TRY(collective_broadcast(&dp->world, found, sizeof *found, 0));
    if (found->status != STATUS_OK) { return FAIL((Status)found->status, "%s", found->message); }
    if (!found->is_known) { return STATUS_OK; }
    int32_t num_ranks = found->machine.num_ranks;  // 0, or as many as there are
    size_t num_bytes = (size_t)num_ranks * sizeof *ranks;
    out->model = found->model;
    out->machine = num_ranks > 0 ? (Machine){.num_ranks = num_ranks, .ranks = ranks} : (Machine){0};
    if (num_ranks > 0 && dp->transport.rank == 0) { memcpy(ranks, mine, num_bytes); }
    return num_ranks > 0 ? collective_broadcast(&dp->world, ranks, num_bytes, 0) : STATUS_OK;
}

static Status find_costs(bool* is_known, DynapipeCosts* out, const Measure* m, const char* path) {
    Dynapipe* dp = m->dp;
    Found* found = (Found*)calloc(1, sizeof *found);
    if (found == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a cost model"); }
    if (dp->transport.rank == 0 && dp->options.costs != NULL) {
        find_named(found, m);
    } else if (dp->transport.rank == 0 && dp->options.measure != MEASURE_AGAIN && path[0] != '\0') {
        find_kept(found, m, path);
    }
    const MachineRank* of_file = dp->transport.rank == 0 ? found->machine.ranks : NULL;
    Status status = share_found(out, found, dp);
    *is_known = found->is_known;
    free((void*)of_file);
    free(found);
    return status;
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
    TRY(find_costs(&is_known, out, m, path));
    if (!is_known) { TRY(measure_fresh(out, NULL, m)); }
    int32_t* messages = &out->model.measured.messages;
    bool is_new = !is_known || *messages == MESSAGES_UNKNOWN;
    TRY(session_messages_find(m->dp, messages));
    is_new = is_new && (!is_known || (*messages != MESSAGES_UNKNOWN && m->dp->options.costs == NULL));
    if (is_new && m->dp->transport.rank == 0) { keep(out, m, path); }
    return STATUS_OK;
}

// --- bytes, the same on all ranks --------------------------------------------------------------------------

// Where ranks' kernels need different bytes, *out has no less than any rank's.
static Status raise_over_ranks(CostModel* out, Dynapipe* dp) {
    CostModel* models = (CostModel*)malloc(2 * sizeof *models);
    Status status = models != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "no memory for a cost model");
    if (status == STATUS_OK) { models[0] = *out; }
    for (int32_t r = 0; r < dp->transport.num_ranks && status == STATUS_OK; r++) {
        models[1] = models[0];
        status = collective_broadcast(&dp->world, &models[1], sizeof *models, r);
        if (r == 0) { *out = models[1]; }
        measure_bytes_raise(out, &models[1]);
    }
    free(models);
    return status;
}

static Status measure_bytes_all(CostModel* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks) {
    MeasureLengths lengths = {dp->run.max_seq_tokens, dp->run.max_target_tokens};
    const void* shared;
    uint64_t mine = 0;  // failed
    bool differ = false;
    out->chain = measure_chain(blocks);  // times are of blocks, however many layers there are
    Status status = measure_bytes_fill(out, blocks, &lengths);
    if (status == STATUS_OK) { mine = hash_finish(hash_bytes(HASH_SEED, out, sizeof *out)) | 1; }
    Status sent = collective_each(&dp->world, &mine, sizeof mine, &shared);
    TRY(status);
    TRY(sent);
    const uint64_t* hashes = (const uint64_t*)shared;
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        differ |= hashes[r] != hashes[0];
        if (hashes[r] == 0) { return FAIL(STATUS_DEVICE, "rank %d could not ask its model for bytes", r); }
    }
    return differ ? raise_over_ranks(out, dp) : STATUS_OK;
}

static Status make_costs(DynapipeCosts* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks) {
    Measure m;
    TRY(measure_check(blocks));
    if (dp->links == NULL) { TRY(session_device_open(dp, NULL)); }
    TRY(measure_wanted(&m, dp, blocks));
    TRY(measure_or_find(out, &m));
    TRY(measure_bytes_all(&out->model, dp, blocks));
    out->shapes = blocks->shapes;
    out->has_weights_job = blocks->api->backward_weights != NULL;
    out->shares_head = !measure_shares_head(blocks)                          ? HEAD_WHOLE
                       : executor_can_share(blocks->api, HEAD_BY_VOCABULARY) ? HEAD_BY_VOCABULARY
                                                                             : HEAD_BY_ROWS;
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
