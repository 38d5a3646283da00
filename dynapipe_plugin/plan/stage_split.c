/*
stage_split.c -- contiguous layers onto P stages, embedding and head priced in; exact (planner.h,
stage_split_make).

    g(p, l) = min { max(g(p-1, k), time of layers k..l-1 as stage p-1) : p-1 <= k < l }     the slowest stage
    h(p, l) = min { h(p-1, k) + (that time)^2 : that time <= g(P, L) }                       among those:
evenest

Of splits that are equally slow the most even one is taken (the ramp passes every stage), of equally even ones
that with fewer layers on early stages (they hold the most micro-batches). Times are those of the sample mix
in chunks of a typical micro-batch, all jobs, nothing recomputed.
*/
#include <stdlib.h>
#include <string.h>

#include "planner.h"

enum { CHUNKS_PER_STAGE = 4 };

// F + B + W of one part (count 1) over the whole mix.
static void parts_time(int64_t time_ns[PART_COUNT], const CostModel* costs, const PlanSample* samples,
                       int32_t num_samples, int32_t P) {
    int32_t num_chunks = P * CHUNKS_PER_STAGE < num_samples ? P * CHUNKS_PER_STAGE : num_samples;
    double sum[PART_COUNT] = {0};
    for (int32_t c = 0; c < num_chunks; c++) {
        MbShape shape = {0};
        for (int32_t i = c; i < num_samples; i += num_chunks) {
            mb_shape_add(&shape, samples[i].enc_tokens, samples[i].dec_tokens, samples[i].supervised_tokens);
        }
        for (int part = 0; part < PART_COUNT; part++) {
            const CostPartMode* none = &costs->parts[RECOMPUTE_NONE][part];
            sum[part] += cost_formula_value(&none->time_ns[JOB_F], &shape) +
                         cost_formula_value(&none->time_ns[JOB_B], &shape) +
                         cost_formula_value(&none->time_ns[JOB_W], &shape);
        }
    }
    for (int part = 0; part < PART_COUNT; part++) {
        double limit = (double)COST_LIMIT / 4;
        time_ns[part] = (int64_t)((sum[part] < limit ? sum[part] : limit) + 0.5);
    }
}

typedef struct {
    int32_t P, L, num_enc_layers;
    int64_t part_ns[PART_COUNT];
} Split;

static int64_t stage_time(const Split* split, int32_t s, int32_t begin, int32_t end) {
    int32_t enc_end = end < split->num_enc_layers ? end : split->num_enc_layers;
    int32_t num_enc = enc_end > begin ? enc_end - begin : 0;
    return num_enc * split->part_ns[PART_ENC_LAYER] +
           (end - begin - num_enc) * split->part_ns[PART_DEC_LAYER] +
           (s == 0 ? split->part_ns[PART_EMBEDDING] : 0) +
           (s == split->P - 1 ? split->part_ns[PART_HEAD] : 0);
}

// The smallest possible time of the slowest stage. best[l]: of the first p stages on the first l layers.
static int64_t slowest_make(const Split* split, int64_t* best, int64_t* next) {
    for (int32_t l = 1; l <= split->L; l++) { best[l] = stage_time(split, 0, 0, l); }
    for (int32_t p = 1; p < split->P; p++) {
        for (int32_t l = p + 1; l <= split->L; l++) {
            next[l] = INT64_MAX;
            for (int32_t k = p; k < l; k++) {
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
            for (int32_t k = p; k < l; k++) {  // ascending: ties keep the smaller k, fewer layers before
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

Status stage_split_make(StageLayers* out, int32_t P, const CostModel* costs, const PlanSample* samples,
                        int32_t num_samples) {
    int32_t L = costs->num_enc_layers + costs->num_dec_layers;
    if (P < 1 || P > L || P > PLAN_MAX_STAGES) {
        return FAIL(STATUS_BAD_OPTION, "--stages %d: the model has %d layers ---> give 1 to %d", P, L,
                    L < PLAN_MAX_STAGES ? L : PLAN_MAX_STAGES);
    }
    Split split = {.P = P, .L = L, .num_enc_layers = costs->num_enc_layers};
    parts_time(split.part_ns, costs, samples, num_samples, P);
    int64_t* best = calloc((size_t)(L + 1), sizeof *best);
    int64_t* next = calloc((size_t)(L + 1), sizeof *next);
    int32_t* from = calloc((size_t)P * (size_t)(L + 1), sizeof *from);
    Status status = best && next && from ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "stage split of %d layers", L);
    if (status == STATUS_OK) {
        evenest_make(&split, slowest_make(&split, best, next), best, next, from);
        for (int32_t p = P - 1, end = L; p >= 0; p--) {
            int32_t begin = p > 0 ? from[p * (L + 1) + end] : 0;
            out[p] = (StageLayers){begin, end};
            end = begin;
        }
    }
    free(best);
    free(next);
    free(from);
    return status;
}
