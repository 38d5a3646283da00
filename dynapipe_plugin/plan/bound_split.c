// bound_split.c -- see bound_split.h.
#include "bound_split.h"

#include <math.h>
#include <string.h>

// Of the lightest sample alone, per part; the work of all samples together.
typedef struct {
    double F[PART_COUNT], B[PART_COUNT], BW[PART_COUNT], turn[PART_COUNT];
    double work[PART_COUNT], forward_backward[PART_COUNT], backward[PART_COUNT];
} Prices;

typedef struct {
    const BoundLines* lines;
    Prices prices;
    double transfer_ns;  // of the lightest sample, one way
} Split;

static double lightest(const BoundLines* lines, const BoundLine* line) {
    const MicrobatchProblem* problem = lines->problem;
    double least = INFINITY;
    for (int32_t i = 0; i < problem->num_samples; i++) {
        least = fmin(least, bound_line_sample(line, &problem->samples[i]));
    }
    return least;
}

// Share of one replica: at least one micro-batch's constants, or those of the micro-batches that memory
// allows.
static double share(const BoundLines* lines, const BoundLine* line) {
    double R = lines->problem->R, total = lines->extent.total[FEATURE_ENC_TOKENS];
    return bound_line_total(line, &lines->extent, 0) / R +
           line->constant * fmax(1, total / lines->largest_tokens / R);
}

static void prices_make(Prices* out, const BoundLines* lines) {
    for (int part = 0; part < PART_COUNT; part++) {
        const BoundPart* p = &lines->part[part];
        BoundLine forward_backward = p->F, backward = p->BW;
        bound_line_add(&forward_backward, 1, &p->B);
        out->F[part] = lightest(lines, &p->F);
        out->B[part] = lightest(lines, &p->B);
        out->BW[part] = lightest(lines, &p->BW);
        out->turn[part] = lightest(lines, &p->turn);
        out->work[part] = share(lines, &p->work);
        out->forward_backward[part] = share(lines, &forward_backward);
        out->backward[part] = share(lines, &backward);
    }
}

// Sum over `count` of each part.
static double priced(const double price[PART_COUNT], const int32_t count[PART_COUNT]) {
    double sum = 0;
    for (int part = 0; part < PART_COUNT; part++) { sum += count[part] > 0 ? count[part] * price[part] : 0; }
    return sum;
}

static void count_layers(int32_t count[PART_COUNT], const Split* split, int32_t begin, int32_t end) {
    int32_t enc = split->lines->problem->costs->num_enc_layers;
    count[PART_ENC_LAYER] = (end < enc ? end : enc) - (begin < enc ? begin : enc);
    count[PART_DEC_LAYER] = end - begin - count[PART_ENC_LAYER];
}

// Layers begin .. end - 1 as stage s: the last of its jobs, and what follows, cannot end before.
static double stage_time(const Split* split, int32_t s, int32_t begin, int32_t end) {
    const MicrobatchProblem* problem = split->lines->problem;
    const Prices* prices = &split->prices;
    int32_t L = problem->costs->num_enc_layers + problem->costs->num_dec_layers;
    int32_t before[PART_COUNT] = {0}, own[PART_COUNT] = {0}, above[PART_COUNT] = {0};
    count_layers(before, split, 0, begin);
    count_layers(own, split, begin, end);
    count_layers(above, split, end, L);
    before[PART_EMBEDDING] = s > 0;
    own[PART_EMBEDDING] = s == 0;
    own[PART_HEAD] = s == problem->P - 1;
    above[PART_HEAD] = !own[PART_HEAD];
    StageLayers layers = {begin, end};
    CostStage stage = cost_stage_make(problem->costs, &layers, s, problem->P);
    double reduce = (double)cost_reduce_ns(problem->costs, &stage, problem->R);
    double arrival = priced(prices->F, before) + s * split->transfer_ns;
    double back = s * split->transfer_ns, work = priced(prices->work, own);
    double turn = arrival + priced(prices->F, own) + priced(prices->turn, above) +
                  2 * (problem->P - 1 - s) * split->transfer_ns;
    double longest = arrival + work + reduce;
    if (split->lines->joint_backward) {
        back += priced(prices->BW, before);
        longest = fmax(longest, arrival + work + back);
    } else {
        back += priced(prices->B, before);
        longest = fmax(longest, arrival + priced(prices->forward_backward, own) + back);
    }
    return fmax(longest, turn + priced(prices->backward, own) + reduce);
}

double bound_split_best(const BoundLines* lines) {
    enum { MOST_LAYERS = 2 * COST_MAX_LAYERS };
    const MicrobatchProblem* problem = lines->problem;
    const CostModel* costs = problem->costs;
    Split split = {.lines = lines};
    int32_t L = costs->num_enc_layers + costs->num_dec_layers;
    double best[MOST_LAYERS + 1], next[MOST_LAYERS + 1];
    prices_make(&split.prices, lines);
    if (costs->comm_bytes_per_ns > 0) {
        split.transfer_ns =
            costs->comm_latency_ns + lightest(lines, &lines->boundary) / costs->comm_bytes_per_ns;
    }
    for (int32_t l = 1; l <= L; l++) { best[l] = stage_time(&split, 0, 0, l); }
    for (int32_t p = 1; p < problem->P; p++) {
        // the last stage ends with the last layer, and may be the head alone
        bool last = p == problem->P - 1;
        for (int32_t l = last ? L : p + 1; l <= L; l++) {
            next[l] = INFINITY;
            for (int32_t k = p; k < l + last; k++) {
                if (best[k] >= next[l]) { continue; }
                next[l] = fmin(next[l], fmax(best[k], stage_time(&split, p, k, l)));
            }
        }
        memcpy(best, next, (size_t)(L + 1) * sizeof *best);
    }
    return best[L];
}
