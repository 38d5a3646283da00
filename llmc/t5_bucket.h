/*
t5_bucket.h -- T5's relative positions in buckets (Raffel et al. 2020, section 2.1), the same on CPU and GPU.

A distance j - i (key minus query) of less than num_buckets / 2 has its own bucket; larger ones share buckets
that grow logarithmically up to max_distance; beyond it is the last bucket. Bidirectional: half the buckets
are for j > i; otherwise these count as distance 0. As in Hugging Face's _relative_position_bucket. The host
converts the logarithm to integer thresholds once, so nothing depends on logf. test_t5_bucket.c compares
it with the formula.
*/
#pragma once

#include <math.h>

enum { T5_MAX_BUCKETS = 128 };

typedef struct {
    int num_buckets;            // in all, 2 to T5_MAX_BUCKETS
    int num_side_buckets;       // per direction
    int num_exact;              // distances with a bucket of their own
    int last_begin;             // distance at which the last bucket of the side begins
    int bidirectional;          // half the buckets for j > i
    int begin[T5_MAX_BUCKETS];  // (num_side_buckets) the smallest distance of each bucket
} T5Buckets;

// max_distance > num_exact, num_side_buckets >= 2.
static inline T5Buckets t5_buckets(int num_buckets, int max_distance, int bidirectional) {
    T5Buckets t;
    t.num_buckets = num_buckets;
    t.bidirectional = bidirectional;
    t.num_side_buckets = bidirectional ? num_buckets / 2 : num_buckets;
    t.num_exact = t.num_side_buckets / 2;
    const int num_log = t.num_side_buckets - t.num_exact;
    const double per_octave = num_log / log((double)max_distance / t.num_exact);
    int distance = t.num_exact;
    for (int b = 0; b < t.num_side_buckets; b++) {
        t.begin[b] = b;
        if (b <= t.num_exact) { continue; }
        // 1e-9: a distance with a whole logarithm is in the upper bucket
        while (log((double)distance / t.num_exact) * per_octave + 1e-9 < b - t.num_exact) { distance++; }
        t.begin[b] = distance;
    }
    t.last_begin = t.begin[t.num_side_buckets - 1];
    return t;
}

#ifdef __CUDACC__
#define T5_HOST_DEVICE __host__ __device__
#else
#define T5_HOST_DEVICE
#endif

// The bucket of distance = key minus query.
static inline T5_HOST_DEVICE int t5_bucket(const T5Buckets* t, int distance) {
    int first = 0, away = -distance;
    if (distance > 0) {
        first = t->bidirectional ? t->num_side_buckets : 0;
        away = t->bidirectional ? distance : 0;
    }
    if (away < t->num_exact) { return first + away; }
    int b = t->num_exact;
    while (b + 1 < t->num_side_buckets && away >= t->begin[b + 1]) { b++; }
    return first + b;
}
