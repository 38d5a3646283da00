#include "largest_samples.h"

#include <stdlib.h>

static bool covers(const PlanSample* a, const PlanSample* b) {
    return a->enc_tokens >= b->enc_tokens && a->dec_tokens >= b->dec_tokens &&
           a->supervised_tokens >= b->supervised_tokens;
}

Status largest_samples_add(LargestSamples* largest, const PlanSample* lengths) {
    PlanSample* samples = largest->samples;
    int32_t kept = 0;
    for (int32_t i = 0; i < largest->num_samples; i++) {
        if (!covers(&samples[i], lengths)) { continue; }
        PlanSample found = samples[i];  // to the front: it most likely covers the next one too
        samples[i] = samples[0];
        samples[0] = found;
        return STATUS_OK;
    }
    for (int32_t i = 0; i < largest->num_samples; i++) {
        if (!covers(lengths, &samples[i])) { samples[kept++] = samples[i]; }
    }
    largest->num_samples = kept;
    if (kept == largest->max_samples) {
        int32_t max_samples = 2 * kept + 16;
        PlanSample* grown = realloc(samples, (size_t)max_samples * sizeof *grown);
        if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the largest samples"); }
        largest->samples = grown;
        largest->max_samples = max_samples;
    }
    largest->samples[largest->num_samples++] = *lengths;
    return STATUS_OK;
}

void largest_samples_free(LargestSamples* largest) {
    free(largest->samples);
    *largest = (LargestSamples){0};
}
