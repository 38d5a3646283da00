#include "sampling.h"

#include <math.h>
#include <stdlib.h>

static int32_t likeliest(const float* logits, int vocab) {
    int32_t best = 0;
    for (int32_t id = 1; id < vocab; id++) {
        if (logits[id] > logits[best]) { best = id; }
    }
    return best;
}

static int compare(const void* a, const void* b) {
    const SamplingPlace *x = (const SamplingPlace*)a, *y = (const SamplingPlace*)b;
    if (x->logit != y->logit) { return x->logit > y->logit ? -1 : 1; }
    return x->id < y->id ? -1 : 1;
}

// Of the sorted places, how many are drawn from; their logits become probabilities, not yet divided by *sum.
static int keep(SamplingPlace* places, int vocab, const Sampling* sampling, double* sum) {
    int count = sampling->top_k > 0 && sampling->top_k < vocab ? sampling->top_k : vocab;
    double whole = 0, largest = places[0].logit;
    for (int i = 0; i < count; i++) {
        places[i].logit = exp((places[i].logit - largest) / sampling->temperature);
        whole += places[i].logit;
    }
    int kept = 0;
    for (*sum = 0; kept < count; kept++) {
        if (kept > 0 && *sum >= sampling->top_p * whole) { break; }
        *sum += places[kept].logit;
    }
    return kept;
}

int32_t sampling_pick(const float* logits, int vocab, const Sampling* sampling, Mt19937* generator,
                      SamplingPlace* work) {
    if (sampling->temperature <= 0) { return likeliest(logits, vocab); }
    for (int32_t id = 0; id < vocab; id++) { work[id] = (SamplingPlace){(double)logits[id], id}; }
    qsort(work, (size_t)vocab, sizeof *work, compare);
    double sum;
    int kept = keep(work, vocab, sampling, &sum);
    double at = (double)mt19937_uniform(generator) * sum;
    for (int i = 0; i < kept; i++) {
        at -= work[i].logit;
        if (at < 0) { return work[i].id; }
    }
    return work[kept - 1].id;  // rounding
}
