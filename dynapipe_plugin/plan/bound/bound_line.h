/*
bound_line.h -- straight lines below the cost formulas: what any micro-batch of a batch costs at least.

A micro-batch pays max(floor, const + sum over features c_f(x_f)) for a job of a part. Its line is
    constant + sum over features rate_f * x_f
with rate_f = min over 1 <= x <= largest_f of c_f(x) / x, which on a piecewise linear c is at x = 1, at a knot
or at the end. A curve whose line begins below zero (a fit with a large constant) borrows from the constant
what it lacks at zero; the rest of the constant stays. Lines add up over micro-batches, and features over the
samples in them: tokens, squares and products of padded or packed sequences are at least those of their
samples. The largest x is that of a micro-batch of the whole batch, padded to its longest, or what memory
holds.
*/
#pragma once

#include "bound_batch.h"

typedef struct {
    double constant;
    double rate[FEATURE_COUNT];
} BoundLine;

typedef struct {
    double total[FEATURE_COUNT];    // over all samples, unpadded; no sequences (packing may join them)
    double largest[FEATURE_COUNT];  // that one micro-batch can have
} BoundExtent;

// Of one part of the model, or the sum over the parts of a stage.
typedef struct {
    BoundLine job[RECOMPUTE_COUNT][JOB_COUNT];  // by index in PlanProblem.modes
    BoundLine stored[RECOMPUTE_COUNT];          // bytes
    BoundLine work;      // F + B + W + R; every feature in the mode where it is cheapest, as modes may differ
    BoundLine turn;      // F + B the same way; with W where no plan in question splits backward
    BoundLine F, B, BW;  // each the same way
} BoundPart;

// Where ranks differ: a rank's jobs of one kind take at least so many times what the lines say.
//     least   on any rank of those in question, whichever replica
//     share   a replica's share of the work, the mean over the R of them: R min over r of (y_r slow_r), with
//             weights y_r that are as 1 / slow of the ranks and add up to 1. For then the slowest replica
//             takes sum of y_r slow_r work_r at least, and work_r add up to all work.
typedef struct {
    double least[JOB_COUNT], share[JOB_COUNT];
} BoundSpeed;

// What the planner may still choose: nothing; the layers of each stage, one chunk a stage and the head whole;
// anything.
typedef enum { BOUND_GIVEN, BOUND_ANY_SPLIT, BOUND_ANY_PLACEMENT } BoundFreedom;

typedef struct {
    const PlanProblem* problem;
    const BoundBatch* batch;
    bool joint_backward;
    BoundFreedom freedom;
    bool head_is_whole;  // in every placement in question
    BoundExtent extent;
    BoundPart part[PART_COUNT];
    BoundLine head_alone[JOB_COUNT];  // of the head where it is shared: nothing is recomputed
    BoundLine stage_stored;           // once per stage
    BoundLine boundary;               // bytes that a boundary sends at least
    double largest_tokens;  // true tokens of enc side that one micro-batch can have, memory considered
    BoundSpeed all;         // of all ranks
    BoundSpeed stage[PLAN_MAX_STAGES];      // of the ranks of one stage
    MachineRank lightest[PLAN_MAX_STAGES];  // what the fastest of them and the fastest link there do
    MachineRank lightest_all;
    double most_slow;  // of any job on any rank; 1 where they do not differ
} BoundLines;

// Borrows all arguments.
void bound_lines_make(BoundLines* out, const PlanProblem* problem, const BoundBatch* batch,
                      bool joint_backward);

// out += count * line
void bound_line_add(BoundLine* out, double count, const BoundLine* line);
// Of a sample: what it adds to the features of its micro-batch at least (no sequence: packing may join them).
void bound_features(double out[FEATURE_COUNT], const PlanSample* sample);
// A line without its constant there.
double bound_line_slope(const BoundLine* line, const double features[FEATURE_COUNT]);
// Of a micro-batch of one sample; of all samples together (`num_mbs` micro-batches).
double bound_line_sample(const BoundLine* line, const PlanSample* sample);
double bound_line_total(const BoundLine* line, const BoundExtent* extent, double num_mbs);

// Which ranks a sum is for: one stage's, or any.
enum { BOUND_ANY_STAGE = -1 };
// The lightest of them, link included (not of any); NULL: they do not differ.
const MachineRank* bound_lightest(const BoundLines* lines, int32_t s);
// What the roomiest rank of a stage of the placement has beside its model state; COST_LIMIT: no limit.
int64_t bound_free_bytes(const BoundLines* lines, int32_t s);
// One part there: constants on the fastest rank; rates too, or (`shared`) those of a replica's share.
void bound_part_scale(BoundPart* out, const BoundLines* lines, int part, int32_t s, bool shared);
// The sum over count[part] parts there.
void bound_part_sum(BoundPart* out, const BoundLines* lines, const int32_t count[PART_COUNT], int32_t s,
                    bool shared);
// The same for a chunk of the placement; for `share` of the head on stage s: F with the gradient of inputs,
// and W, whole constants, no bytes; for all that a stage has, its share included.
void bound_part_chunk(BoundPart* out, const BoundLines* lines, int32_t k, bool shared);
void bound_part_share(BoundPart* out, const BoundLines* lines, double share, int32_t s, bool shared);
void bound_part_stage(BoundPart* out, const BoundLines* lines, int32_t s, bool shared);
// The part of the head that stage s has by the placement; 0 where it is whole.
double bound_share_of(const BoundLines* lines, int32_t s);
// One transfer there and one back between two stages, whatever it sends: over the slowest link on the way.
void bound_link_add(BoundLine* out, const BoundLines* lines, int32_t from, int32_t to);
int64_t bound_between_ns(const BoundLines* lines, int32_t from, int32_t to, int64_t num_bytes);
