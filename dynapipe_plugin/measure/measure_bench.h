/*
measure_bench.h -- one range of a model with the buffers of its largest micro-batch, and the time of its jobs
on micro-batches of chosen shape, mean over the ranks.

Every time is the mean of a few runs (measure_estimate.h); on a GPU a run is several jobs queued in a row.
Pages are touched before the first: a step in training finds them so. All ranks measure the same point at the
same time, so that what they share (memory bandwidth, caches) is in the times, and all learn the same numbers:
what is decided by them is decided alike. How a rank differs from the mean goes to measure_speed.h.
*/
#pragma once

#include "../run/session.h"
#include "measure_ranges.h"
#include "measure_shapes.h"
#include "measure_speed.h"

// What is measured, for whom, and how far it has come.
typedef struct {
    Dynapipe* dp;
    const DynapipeBlocks_v1* blocks;
    MeasureLengths lengths;     // longest windows measured
    int32_t max_tokens;         // largest micro-batch measured, of either side
    int64_t budget_ns;          // for all points
    int64_t (*clock_ns)(void);  // what the model takes is measured by; NULL: the machine's
    int32_t num_points, points_done;
    int64_t list_end_ns;  // of the points now measured: until so much is spent
    int32_t list_points_left;
    int64_t begin_ns;  // by clock_now_ns()
    int64_t spent_ns;  // since then, mean over the ranks, after the last point
    MeasureSpeed speed;
    bool shows;        // how far it has come, now and then
    int64_t shown_ns;  // what was spent when it last did
} Measure;

static inline bool measure_is_gpu(const Measure* m) {
    return m->dp->device.api != NULL;
}

typedef struct {
    Measure* measure;
    MeasureModel model;
    bool is_first, is_last;
    MeasureArrays arrays;
    float* losses;  // host
    void *in, *out, *dout, *din, *acts, *scratch;
} Bench;

typedef struct {
    double ns[JOB_COUNT];  // F, B, W
} BenchTimes;

// With buffers for any of these shapes. A collective; after a failure, too, bench_free().
Status bench_init(Bench* bench, Measure* m, MeasureSlice slice, const MeasureShape* shapes,
                  int32_t num_shapes);
void bench_free(Bench* bench);

// out[num_shapes]: bytes that a run of each shape goes through, parameters, gradients, activations; mean over
// the ranks. A collective.
Status bench_touched_bytes(double* out, Bench* bench, const MeasureShape* shapes, int32_t num_shapes);

// A GPU that did nothing runs at a low clock: keeps it busy for a while. A collective.
Status bench_warm(Bench* bench, const MeasureShape* shape);

// A collective. The point's share of what is left of the budget decides how often each job runs.
Status bench_time(BenchTimes* out, Bench* bench, const MeasureShape* shape);

// Zeroing gradients and blocks->update: ns that a parameter of this range costs once a step. A collective.
Status bench_update_ns(double* out, Bench* bench);
