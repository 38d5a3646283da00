/*
measure.h -- costs of a model on these ranks, measured now or before: the inside of
dynapipe_measure().

    measure_fresh()      times, by running small ranges of the model; each rank's speed; the links
    measure_kept_*()     these in a file, so that the next start takes no time
    measure_bytes.h      bytes and parameters: asked of the model at every start
*/
#pragma once

#include "../plan/cost_model.h"
#include "../run/session.h"
#include "measure_bytes.h"

enum { MEASURE_SPEED_POINTS = 1024 };  // later ones are left out

// Each rank's own times, relative to the mean of all ranks. Zeros: nothing yet.
typedef struct {
    int32_t num_points;
    double points[JOB_R][MEASURE_SPEED_POINTS][2];  // of F, B, W: mine, mean
} MeasureSpeed;

// The subject and progress of a measurement.
typedef struct {
    Dynapipe* dp;
    const DynapipeBlocks_v1* blocks;
    MeasureLengths lengths;           // longest windows measured
    int32_t max_tokens;               // largest microbatch measured, of either side
    int64_t budget_ns;                // for all points
    int64_t (*clock_ns)(void);        // of jobs whose times are made up; NULL: the machine's
    int32_t points_done, num_sweeps;  // whole sweeps
    int64_t list_end_ns;              // of the points now measured: until so much is spent
    int32_t list_points_left;
    bool is_warm;      // a GPU that has been kept busy
    int64_t begin_ns;  // by clock_now_ns()
    int64_t spent_ns;  // since then, mean over the ranks, after the last point
    MeasureSpeed speed;
    unsigned char* cold;  // what is read between two jobs; NULL: nothing
    size_t cold_bytes;
} Measure;

static inline bool measure_is_gpu(const Measure* m) {
    return m->dp->device.api != NULL;
}

// --- measure_times.c ---------------------------------------------------------------------------------------

// time_ns of every part and job, update_ns_per_byte; the rest stays as it is. A collective: all ranks get the
// same bits.
Status measure_times(CostModel* out, Measure* m);
// Full recomputation costs a second forward: derived from mode none for mode full.
void measure_times_set_recompute(CostModel* out);

// --- measure.c ---------------------------------------------------------------------------------------------

// Times of every part and job, links, in what ranks differ; no bytes. found[num_ranks]: each rank and its
// link as measured; NULL: not wanted. A collective: all ranks get the same bits. Prints one line on rank 0.
Status measure_fresh(DynapipeCosts* out, MachineRank* found, Measure* m);
// With room for num_ranks ranks after the struct; free() ends both. NULL: no memory.
DynapipeCosts* measure_costs_new(int32_t num_ranks);

// STATUS_OUT_OF_RANGE: a model that cannot be measured.
Status measure_check(const DynapipeBlocks_v1* blocks);
// The shapes that this run will have: longest windows of the first batches (rounded up, so that similar runs
// measure the same), largest microbatch.
Status measure_wanted(Measure* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks);

// --- evaluation of measurements ----------------------------------------------------------------------------

// The mean without the eighth (rounded down) at either end: what plans add up are means, of jobs that are
// disturbed now and then, too. Sorts the values. 0 values: 0.
double measure_mean(double* values, int32_t num_values);
// The non-decreasing y with the least sum of weight * (y - value)^2: values that fall are replaced by their
// weighted mean (pool adjacent violators: Ayer et al. 1955; Barlow et al. 1972). weights > 0. In place.
void measure_isotonic(double* values, const double* weights, int32_t num_values);

void measure_speed_add(MeasureSpeed* speed, const double mine_ns[JOB_COUNT], const double mean_ns[JOB_COUNT]);

// Differences below these are noise: in the times of all jobs (of one kind of job: twice that), of a message.
// Plans of two runs on equal machines are then equal.
#define MEASURE_SPEED_NOISE 0.03
#define MEASURE_LINK_NOISE 0.20
// Speeds that are close together become 1, such links the cost model's. Returns whether any rank or link
// still differs.
bool measure_machine_settle(MachineRank* ranks, int32_t num_ranks);

// --- kept from run to run ----------------------------------------------------------------------------------

enum { MEASURE_PATH_CHARS = 3800 };

// false: there is no such folder ($HOME is not set either), or its name is too long.
bool measure_kept_path(char out[MEASURE_PATH_CHARS], const char* signature, const CostMeasured* about);
// false: there is no file, or it was not measured on this model, on ranks like these and on windows at least
// as long; `why` tells why a file cannot be read, else it is "". *machine: as
// cost_file_load()'s, of no rank or about->num_ranks; NULL: not wanted.
bool measure_kept_load(CostModel* out, Machine* machine, char why[STATUS_MESSAGE_BYTES], const char* path,
                       const char* signature, const CostMeasured* about);
Status measure_kept_save(const CostModel* model, const Machine* machine, const char* path,
                         const char* signature);
