/*
bound_batch.h -- the samples of a batch as the lower bound looks at them: equal ones together, few at a time.

    samples   every distinct (enc, dec, supervised) once, ascending, with how many there are
    least     those of which no other has less of everything: minima of whatever grows with lengths are there
    most      those of which no other has more of everything: maxima are there
    corners   at most BOUND_MAX_CLASSES samples of similar lengths together, as the shortest of each length
              among them; where there are no more distinct ones than that, these
*/
#pragma once

#include "../problem/microbatch.h"

enum { BOUND_MAX_CLASSES = 256 };

typedef struct {
    int32_t num;
    PlanSample* samples;
    int32_t* count;
    int32_t* first;  // smallest id
    int32_t num_least, num_most;
    int32_t *least, *most;  // indices into samples
    int32_t num_corners;
    PlanSample corners[BOUND_MAX_CLASSES];
    int32_t corner_count[BOUND_MAX_CLASSES];  // samples in that class
} BoundBatch;

// STATUS_NO_MEMORY, or STATUS_OK. test_bound_batch.c
Status bound_batch_make(BoundBatch* out, const PlanSample* samples, int32_t num_samples, Arena* arena);
