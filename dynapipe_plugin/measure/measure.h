/*
measure_estimate.h -- what several measurements of one quantity say, without a bias to either side.

What a plan adds up are means: of jobs that are disturbed now and then, too. So no minimum and no quartile is
taken, and a point that came out below a smaller one is not raised to it: both are as likely to be off.
*/
#pragma once

#include <stdint.h>
#include "measure_bytes.h"
#include "../plan/cost_file.h"
#include "../plan/cost_model.h"
#include "../run/collective.h"
#include "../run/session.h"

// The mean of those in the middle: of num_values an eighth (rounded down) is left out at either end, so that
// one that took a holiday counts for nothing. Sorts them. 0 values: 0.
double measure_mean(double* values, int32_t num_values);

// The non-decreasing y with the least sum of weight * (y - value)^2: values that fall are replaced by their
// weighted mean (pool adjacent violators: Ayer et al. 1955; Barlow et al. 1972). weights > 0. In place.
void measure_isotonic(double* values, const double* weights, int32_t num_values);

// --- measure_speed --------------------
/*
measure_speed.h -- how many times as long as the mean of all ranks a rank takes, by what it took itself for
every point that was measured.
*/

enum { MEASURE_SPEED_POINTS = 256 };  // later ones are left out

// What every rank keeps for itself. Zeros: nothing yet.
typedef struct {
    int32_t num_points;
    struct {
        double mine_ns, mean_ns;
    } points[JOB_R][MEASURE_SPEED_POINTS];  // F, B, W
} MeasureSpeed;

void measure_speed_add(MeasureSpeed* speed, const double mine_ns[JOB_COUNT], const double mean_ns[JOB_COUNT]);

// Of one kind of job: sum of mine over sum of means, without the eighth of the points where mine is farthest
// above the mean and the eighth where it is farthest below. 1: nothing was measured.
double measure_speed_slow(MeasureSpeed* speed, JobKind kind);

// --- measure_bench --------------------
/*
measure_bench.h -- one range of a model with the buffers of its largest micro-batch, and the time of its jobs
on micro-batches of chosen shape, mean over the ranks.

Every time is the mean of a few runs (measure_estimate.h); on a GPU a run is several jobs queued in a row.
Pages are touched before the first: a step in training finds them so. All ranks measure the same point at the
same time, so that what they share (memory bandwidth, caches) is in the times, and all learn the same numbers:
what is decided by them is decided alike. How a rank differs from the mean goes to measure_speed.h.
*/

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

// --- measure_points --------------------
/*
measure_points.h -- which shapes are measured of which range of a model, and what each of them tells of.

    tokens          windows of 32, a decoder's beside one token of the encoder each
    squares         a single long window (on a GPU: a full micro-batch of them)
    keys, values    of a decoder layer's cross-attention: windows of 32 beside one token of the decoder each
    cross products  long windows on both sides
    rows            of the head: from the number of supervised rows
Of each, from few to as many as a micro-batch has: doubled every time, and, where time is left, steps between.
*/

enum { MEASURE_MAX_POINTS = 5 * COST_MAX_KNOTS };

// A shape to measure, and the feature that it tells of.
typedef struct {
    MeasureShape shape;
    CostFeature feature;
    bool is_small;    // a curve that ends here says nothing of larger ones: it is measured whatever it takes
    bool is_between;  // two others, whose line says nearly as much
    bool is_known, is_deep;
    BenchTimes times;  // of one layer
} MeasuredPoint;

// The points of one range. What its part takes is beyond `base`, where there is one.
typedef struct {
    MeasureSlice slice;
    MeasureSlice deep;  // of several such layers, for small shapes; empty: none
    CostPart part, base;
    bool has_base;
    CostFeature main;  // what a job costs however little it has to do stands in this one's curve
    int32_t share;     // of the time, against the other lists
    int32_t num_points;
    MeasuredPoint points[MEASURE_MAX_POINTS];
} MeasurePoints;

enum { LIST_LAYER, LIST_EMBEDDING, LIST_DEC_LAYER, LIST_DEC_EMBEDDING, LIST_HEAD, MEASURE_LISTS };

// --- measure_times --------------------
/*
measure_times.h -- the times of a cost model: what the parts of a model take on these ranks.

Ranges are timed: a middle layer (of a chain of one, that), the first layer with the embedding, whose part is
the difference, and the head alone (or, where it is never alone, with the last layer); of an encoder-decoder
both kinds of layer. Where one layer and all it works on would stay in a cache, several in a row are timed: in
training a stage of several works through other micro-batches in between. Each point (measure_points.h) tells
of one feature. A feature's curve goes through what its points take beyond all other features of their shape,
where these rise; a few rounds of that find all of them (Gauss-Seidel).
*/

// time_ns of every part and job, update_ns_per_byte; the rest stays as it is. A collective; all ranks get the
// same bits.
Status measure_times(CostModel* out, Measure* m);

// Full recompute costs another forward: from mode none to mode full.
void measure_times_set_recompute(CostModel* out);

// --- measure_kept --------------------
/*
measure_kept.h -- what was measured, kept in a file from run to run.

In $DYNAPIPE_CACHE, else $XDG_CACHE_HOME/dynapipe, else ~/.cache/dynapipe; a file for each signature, number
of ranks (and ranks per host, and replicas) and interface. The text is cost_model_io.c's. Only rank 0 calls
these.
*/

enum { MEASURE_PATH_CHARS = 3800 };

// false: there is no such folder to be had ($HOME is not set either), or its name is too long.
bool measure_kept_path(char out[MEASURE_PATH_CHARS], const char* signature, const CostMeasured* about);

// What is kept there, if it was measured on this model, on ranks like these and on windows at least as long.
// false: nothing, or nothing that serves; `why` (256 characters) says why a file cannot be read, else it is
// "".
// *machine: as cost_file_load()'s, of no rank or about->num_ranks; NULL: not wanted.
bool measure_kept_load(CostModel* out, Machine* machine, char* why, const char* path, const char* signature,
                       const CostMeasured* about);
Status measure_kept_save(const CostModel* model, const Machine* machine, const char* path,
                         const char* signature);

// --- measure_machine --------------------
/*
measure_machine.h -- links and sums of a cost model, and in what ranks and links differ (plan/cost/machine.h).

What differs by no more than noise does not differ: plans of two runs on machines that are alike are alike.
*/

// Beyond these, jobs take longer on one rank than on another (one kind of them alone: beyond twice that), a
// link is slower than another.
#define MEASURE_SPEED_NOISE 0.03
#define MEASURE_LINK_NOISE 0.20

// comm_* (the mean of all links) and reduce_bytes_per_ns; ranks[num_ranks]: speeds by the points that were
// timed, and links, as found. The same bits on all ranks. A collective.
Status measure_machine(CostModel* out, MachineRank* ranks, Measure* m);

// Speeds that lie close together become 1, links that do become the cost model's. Returns whether any rank or
// link is left that differs.
bool measure_machine_settle(MachineRank* ranks, int32_t num_ranks);

// A cost model to be filled, of ranks that are alike, with room for num_ranks of them: ranks stand behind the
// struct. NULL: no memory.
DynapipeCosts* measure_costs_new(int32_t num_ranks);

// --- measure --------------------
/*
measure.h -- what a model costs on these ranks, measured or as measured before: the inside of
dynapipe_measure().

    measure_fresh()   times, by running small ranges of the model (measure_times.h), each rank's speed, and
the links (measure_machine.h) measure_kept.h    these in a file, so that the next start takes none
    measure_bytes.h   bytes and parameters: asked of the model at every start, since that takes milliseconds
*/

// The shapes that this run will have: longest windows of the first batches (rounded up, so that runs alike
// measure alike), largest micro-batch.
Status measure_wanted(Measure* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks);

// Times of every part and job, links, in what ranks differ; no bytes. found[num_ranks]: each rank and its
// link as they came out; NULL: not wanted. A collective: all ranks get the same bits. Prints one line on rank
// 0.
Status measure_fresh(DynapipeCosts* out, MachineRank* found, Measure* m);

// A model that cannot be measured: what is wrong with it, in words.
Status measure_check(const DynapipeBlocks_v1* blocks);
