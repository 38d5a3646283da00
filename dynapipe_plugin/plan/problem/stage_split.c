/*
stage_split.c -- contiguous layers onto P stages, embedding and head priced in; exact.

    g(p, l) = min { max(g(p-1, k), time of layers k..l-1 as stage p-1) : p-1 <= k < l }     the slowest stage
                  (k <= l for p = P: the last stage may have the head alone, unless head_has_layer)
    h(p, l) = min { h(p-1, k) + (that time)^2 : that time <= g(P, L) }                       among those:
evenest

Of splits that are equally slow the most even one is taken (the ramp passes every stage), of equally even ones
that with fewer layers on early stages (they hold the most micro-batches). Times are those of the sample mix
in chunks of a typical micro-batch, all jobs, nothing recomputed. Where memory is limited, a stage must hold
its model state beside the longest sample (with scratch and transfers, where buffers count), and beside P - s
typical micro-batches, in the leanest recompute mode.

Where ranks differ, a stage is as slow as the mean of its replicas, which share the work by their speed, or as
the slowest of them: of these two splits the one whose replicas together get more done. Its memory is the
least of its ranks'.
*/
#include "stage_split.h"

#include <ctype.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../types/mb_shape.h"

enum { CHUNKS_PER_STAGE = 4 };

// Beyond any sum of times: stages whose memory does not suffice.
static const int64_t TOO_LARGE = COST_LIMIT * COST_MAX_LAYERS;

// One part of the model over the whole mix: ns of all jobs, and bytes kept of an average micro-batch.
typedef struct {
    int64_t kept_ns, kept_bytes;  // nothing recomputed
    int64_t lean_ns, lean_bytes;  // in the mode that keeps least
    int64_t longest_bytes;        // the longest sample alone, in that mode
} PartCost;

typedef struct {
    int32_t P, L;
    bool head_has_layer;
    const CostModel* costs;
    PartCost part[PART_COUNT];
    int64_t limit_bytes[PLAN_MAX_STAGES];  // INT64_MAX: none
    double slow[PLAN_MAX_STAGES];          // so many times as long take the stage's jobs
    bool differs;
    int64_t buffer_bytes[2];  // scratch and transfers of the longest sample, where they count; of stages
                              // without and with decoder layers
} Split;

// What a stage takes. Where P - s + 1 average micro-batches are more than its memory holds, the share of them
// that must be recomputed is.
static int64_t stage_cost(const Split* split, int32_t s, const int32_t count[PIECE_COUNT],
                          int64_t state_bytes) {
    PartCost sum = {0};
    for (int part = 0; part < PART_COUNT; part++) {
        const PartCost* one = &split->part[part];
        sum.kept_ns += count[part] * one->kept_ns;
        sum.lean_ns += count[part] * one->lean_ns;
        sum.kept_bytes += count[part] * one->kept_bytes;
        sum.lean_bytes += count[part] * one->lean_bytes;
        sum.longest_bytes += count[part] * one->longest_bytes;
    }
    int64_t free_bytes = split->limit_bytes[s] - state_bytes, in_flight = split->P - s + 1;
    int64_t buffer_bytes = split->buffer_bytes[count[PART_DEC_LAYER] > 0];
    if (free_bytes < sum.longest_bytes + buffer_bytes || free_bytes < sum.lean_bytes * (in_flight - 1)) {
        return TOO_LARGE;
    }
    int64_t over_bytes = in_flight * sum.kept_bytes - free_bytes;
    int64_t saved_bytes = in_flight * (sum.kept_bytes - sum.lean_bytes);
    if (over_bytes <= 0 || saved_bytes <= 0) { return sum.kept_ns; }
    double share = (double)over_bytes / (double)saved_bytes;
    return sum.kept_ns + (int64_t)((share < 1 ? share : 1) * (double)(sum.lean_ns - sum.kept_ns));
}

static int64_t stage_time(const Split* split, int32_t s, int32_t begin, int32_t end) {
    LayerRange layers = {begin, end};
    CostStage stage = cost_stage_make(split->costs, &layers, s, split->P);
    int32_t count[PIECE_COUNT];
    cost_stage_parts(count, split->costs, &stage);
    int64_t time_ns = stage_cost(split, s, count, cost_state_bytes(split->costs, &stage));
    if (!split->differs || time_ns >= TOO_LARGE) { return time_ns; }
    return (int64_t)fmin((double)time_ns * split->slow[s], (double)TOO_LARGE - 1024);
}

// The head alone: not the first stage.
static bool may_be_empty(const Split* split, int32_t p) {
    return p == split->P - 1 && !split->head_has_layer;
}

// The smallest possible time of the slowest stage. best[l]: of the first p stages on the first l layers.
static int64_t slowest_make(const Split* split, int64_t* best, int64_t* next) {
    for (int32_t l = 1; l <= split->L; l++) { best[l] = stage_time(split, 0, 0, l); }
    for (int32_t p = 1; p < split->P; p++) {
        for (int32_t l = p + 1; l <= split->L; l++) {
            next[l] = INT64_MAX;
            for (int32_t k = p; k < l + may_be_empty(split, p); k++) {
                int64_t last = stage_time(split, p, k, l), slowest = best[k] > last ? best[k] : last;
                next[l] = slowest < next[l] ? slowest : next[l];
            }
        }
        memcpy(best, next, (size_t)(split->L + 1) * sizeof *best);
    }
    return best[split->L];
}

// Squares of times scaled so that their sum over all stages cannot overflow.
static int64_t squared(int64_t time_ns, int64_t slowest_ns) {
    int64_t scaled = time_ns / (slowest_ns / (1 << 26) + 1);
    return scaled * scaled;
}

// from[p * (L + 1) + l]: where stage p begins if stages 0..p end at layer l. h in best[], -1: impossible.
static void evenest_make(const Split* split, int64_t slowest_ns, int64_t* best, int64_t* next,
                         int32_t* from) {
    int32_t L = split->L;
    best[0] = -1;
    for (int32_t l = 1; l <= L; l++) {
        int64_t time_ns = stage_time(split, 0, 0, l);
        best[l] = time_ns <= slowest_ns ? squared(time_ns, slowest_ns) : -1;
    }
    for (int32_t p = 1; p < split->P; p++) {
        for (int32_t l = 0; l <= L; l++) {
            next[l] = -1;
            // ascending: ties keep the smaller k, fewer layers before
            for (int32_t k = p; k < l + may_be_empty(split, p); k++) {
                int64_t time_ns = stage_time(split, p, k, l);
                if (best[k] < 0 || time_ns > slowest_ns) { continue; }
                int64_t sum = best[k] + squared(time_ns, slowest_ns);
                if (next[l] < 0 || sum < next[l]) {
                    next[l] = sum;
                    from[p * (L + 1) + l] = k;
                }
            }
        }
        memcpy(best, next, (size_t)(L + 1) * sizeof *best);
    }
}

static double all_jobs_ns(const CostModel* costs, int mode, int part, const MbShape* shape) {
    const CostFormula* time_ns = costs->parts[mode][part].time_ns;
    return cost_formula_value(&time_ns[JOB_F], shape) + cost_formula_value(&time_ns[JOB_B], shape) +
           cost_formula_value(&time_ns[JOB_W], shape) +
           (costs->recompute_is_job[mode] ? cost_formula_value(&time_ns[JOB_R], shape) : 0);
}

static void add_shape(MbShape* shape, const PlanSample* sample) {
    mb_shape_add(shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
}

static int64_t rounded(double value) {
    double limit = (double)COST_LIMIT / 4;
    return (int64_t)((value < limit ? value : limit) + 0.5);
}

// The mode that keeps least of an average micro-batch.
static int leanest_mode(const CostModel* costs, const MbShape* average) {
    int leanest = RECOMPUTE_NONE;
    double least = INFINITY;
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        double bytes = 0;
        if (!cost_mode_offered(costs, (RecomputeMode)mode)) { continue; }
        for (int part = 0; part < PART_COUNT; part++) {
            bytes += cost_formula_value(&costs->parts[mode][part].stored_bytes, average);
        }
        if (bytes < least) {
            least = bytes;
            leanest = mode;
        }
    }
    return leanest;
}

static void buffers_add(Split* split, const MbShape* alone) {
    const CostModel* costs = split->costs;
    double bytes = cost_formula_value(&costs->scratch_bytes, alone) +
                   3 * cost_formula_value(&costs->boundary_bytes, alone);
    for (int dec = 0; dec < 2; dec++) {
        if (dec) { bytes += 3 * cost_formula_value(&costs->dec_boundary_bytes, alone); }
        int64_t buffer_bytes = rounded(bytes);
        if (buffer_bytes > split->buffer_bytes[dec]) { split->buffer_bytes[dec] = buffer_bytes; }
    }
}

// The mix in chunks of about an average micro-batch, evenly mixed.
static void parts_make(Split* split, const CostModel* costs, const PlanSample* samples, int32_t num_samples,
                       int32_t num_chunks, bool counts_buffers) {
    double kept_ns[PART_COUNT] = {0}, lean_ns[PART_COUNT] = {0};
    MbShape average = {0};
    if (num_chunks > num_samples) { num_chunks = num_samples; }
    for (int32_t i = 0; i < num_samples; i += num_chunks) { add_shape(&average, &samples[i]); }
    int lean = leanest_mode(costs, &average);
    for (int32_t c = 0; c < num_chunks; c++) {
        MbShape shape = {0};
        for (int32_t i = c; i < num_samples; i += num_chunks) { add_shape(&shape, &samples[i]); }
        for (int part = 0; part < PART_COUNT; part++) {
            kept_ns[part] += all_jobs_ns(costs, RECOMPUTE_NONE, part, &shape);
            lean_ns[part] += all_jobs_ns(costs, lean, part, &shape);
            double kept_bytes = cost_formula_value(&costs->parts[RECOMPUTE_NONE][part].stored_bytes, &shape);
            double lean_bytes = cost_formula_value(&costs->parts[lean][part].stored_bytes, &shape);
            split->part[part].kept_bytes += rounded(kept_bytes / num_chunks);
            split->part[part].lean_bytes += rounded(lean_bytes / num_chunks);
        }
    }
    for (int part = 0; part < PART_COUNT; part++) {
        split->part[part].kept_ns = rounded(kept_ns[part]);
        split->part[part].lean_ns = rounded(lean_ns[part]);
        for (int32_t i = 0; i < num_samples; i++) {
            MbShape alone = {0};
            add_shape(&alone, &samples[i]);
            if (counts_buffers && part == 0) { buffers_add(split, &alone); }
            int64_t bytes = rounded(cost_formula_value(&costs->parts[lean][part].stored_bytes, &alone));
            if (bytes > split->part[part].longest_bytes) { split->part[part].longest_bytes = bytes; }
        }
    }
}

typedef struct {
    int64_t *best, *next;  // [L + 1]
    int32_t* from;         // [P * (L + 1)]
} Tables;

// Where no split fits in memory, the plan will say by how much; this answers as if memory did not matter.
static void best_split(LayerRange* out, Split* split, Tables* tables) {
    int32_t P = split->P, L = split->L;
    int64_t slowest_ns = slowest_make(split, tables->best, tables->next);
    if (slowest_ns >= TOO_LARGE) {
        for (int32_t s = 0; s < P; s++) { split->limit_bytes[s] = INT64_MAX; }
        slowest_ns = slowest_make(split, tables->best, tables->next);
    }
    evenest_make(split, slowest_ns, tables->best, tables->next, tables->from);
    for (int32_t p = P - 1, end = L; p >= 0; p--) {
        int32_t begin = p > 0 ? tables->from[p * (L + 1) + end] : 0;
        out[p] = (LayerRange){begin, end};
        end = begin;
    }
}

static void limits_make(Split* split, const PlanRequest* request) {
    for (int32_t s = 0; s < split->P; s++) {
        split->limit_bytes[s] = INT64_MAX;
        for (int32_t r = 0; r < request->R; r++) {
            const MachineRank* rank = machine_stage(machine_replica(request->machine, r * split->P), s);
            int64_t limit_bytes = machine_limit_bytes(rank, request->memory_limit_bytes);
            if (limit_bytes > 0 && limit_bytes < split->limit_bytes[s]) {
                split->limit_bytes[s] = limit_bytes;
            }
        }
    }
}

// Replicas that share the work by their speed; or the slowest.
static void slow_make(Split* split, const PlanRequest* request, bool slowest) {
    for (int32_t s = 0; s < split->P; s++) {
        double rate = 0, most = 0;
        for (int32_t r = 0; r < request->R; r++) {
            double slow = machine_slow(&machine_replica(request->machine, r * split->P)[s]);
            rate += 1 / slow;
            most = fmax(most, slow);
        }
        split->slow[s] = slowest ? most : request->R / rate;
    }
}

// How much of the mix all replicas get through in a nanosecond, each as its slowest stage.
static double split_rate(const Split* split, const PlanRequest* request, const LayerRange* stages) {
    Split alike = *split;
    double sum = 0;
    alike.differs = false;
    for (int32_t r = 0; r < request->R; r++) {
        double slowest_ns = 1;
        for (int32_t s = 0; s < split->P; s++) {
            const MachineRank* rank = &machine_replica(request->machine, r * split->P)[s];
            double ns = (double)stage_time(&alike, s, stages[s].layer_begin, stages[s].layer_end);
            slowest_ns = fmax(slowest_ns, ns * machine_slow(rank));
        }
        sum += 1 / slowest_ns;
    }
    return sum;
}

static void choose_split(LayerRange* out, Split* split, const PlanRequest* request, Tables* tables) {
    LayerRange by_slowest[PLAN_MAX_STAGES];
    split->differs = machine_differs(request->machine);
    limits_make(split, request);
    if (split->differs) { slow_make(split, request, false); }
    best_split(out, split, tables);
    if (!split->differs || request->R == 1) { return; }
    slow_make(split, request, true);
    best_split(by_slowest, split, tables);
    if (split_rate(split, request, by_slowest) > split_rate(split, request, out)) {
        memcpy(out, by_slowest, (size_t)split->P * sizeof *out);
    }
}

Status stage_split_make(LayerRange* out, const PlanRequest* request, const CostModel* costs,
                        const PlanSample* samples, int32_t num_samples, int32_t num_batches) {
    int32_t P = request->P;
    int32_t L = costs->num_enc_layers + costs->num_dec_layers;
    if (P < 1 || P > L || P > PLAN_MAX_STAGES) {
        return FAIL(STATUS_BAD_OPTION, "--stages %d: the model has %d layers ---> give 1 to %d", P, L,
                    L < PLAN_MAX_STAGES ? L : PLAN_MAX_STAGES);
    }
    TRY(machine_check(request->machine, P * request->R));
    Split split = {.P = P, .L = L, .head_has_layer = request->rules.head_has_layer, .costs = costs};
    int64_t num_chunks = (int64_t)CHUNKS_PER_STAGE * P * request->R * num_batches;
    parts_make(&split, costs, samples, num_samples,
               num_chunks < num_samples ? (int32_t)num_chunks : num_samples,
               request->memory_rule == MEMORY_BUFFERS);
    Tables tables = {.best = calloc((size_t)(L + 1), sizeof *tables.best),
                     .next = calloc((size_t)(L + 1), sizeof *tables.next),
                     .from = calloc((size_t)P * (size_t)(L + 1), sizeof *tables.from)};
    Status status = tables.best && tables.next && tables.from
                        ? STATUS_OK
                        : FAIL(STATUS_NO_MEMORY, "stage split of %d layers", L);
    if (status == STATUS_OK) { choose_split(out, &split, request, &tables); }
    free(tables.best);
    free(tables.next);
    free(tables.from);
    return status;
}

Status stage_split_parse(LayerRange* out, int32_t P, int32_t num_layers, bool head_has_layer,
                         const char* text) {
    int32_t begin = 0, s = 0;
    bool good = true;
    for (const char* at = text; good && s < P; s++) {
        char* end = NULL;
        long layers = isdigit((unsigned char)*at) ? strtol(at, &end, 10) : -1;
        good = layers >= 0 && layers <= num_layers - begin && *end == (s < P - 1 ? ',' : '\0');
        if (!good) { break; }
        out[s] = (LayerRange){begin, begin + (int32_t)layers};
        good = stage_may_have(&out[s], s, P, head_has_layer);
        begin += (int32_t)layers;
        at = end + 1;
    }
    if (good && begin == num_layers) { return STATUS_OK; }
    return FAIL(
        STATUS_BAD_OPTION,
        "--stage-split %.60s ---> give %d numbers that add up to %d layers, such as 4,4,3: each at least 1%s",
        text, P, num_layers,
        head_has_layer ? " (this model's head needs one, too)"
        : P > 1        ? ", but the last may be 0 (the head alone)"
                       : "");
}
