/*
lower_bound.h -- no plan for this batch, on these stages and replicas, can be faster.

    work     all unpadded work, nothing recomputed, spread evenly over P * R ranks
    chain    the longest single sample through all chunks and back, then its weight gradients and reduction
    stage    for each stage: earliest arrival at its lowest chunk + its share of the work, of all its chunks
and its share of the head + what must follow; or the earliest gradient at its highest chunk + backward work;
with one micro-batch's constants, or those that memory enforces memory   the same with bytes x minimum
residence / free memory, weighed against work (bound_memory.h) replica  the slowest replica's share of samples
that cannot be divided evenly, and its gradient reduction; 0 with one replica bound    the largest

It holds for every composition of micro-batches, padded or not, every recompute mode offered, both memory
rules, and for joint and split backward: jobs only grow with their shape (cost_model_check), and where a
formula is not a straight line through 0, work is charged along a line below it (bound_line.h). And for all
that the request leaves open (BoundFreedom):
    nothing                 the placement and head that are given
    layers between stages   every contiguous split with one chunk a stage and a whole head, the head alone on
                            the last stage included: the best of them by dynamic program, memory of every
                            stage included (bound_split.h)
    anything else           every placement of at least one chunk a stage, and every head that may be chosen
                            (bound_free.h): `stage` is then even work behind the earliest arrivals, or a whole
                            head between all forwards and backwards; `memory` that of all stages together
Not counted: padding, the constants of micro-batches that memory does not enforce, and how unequal
micro-batches get in each other's way. Of a shared head: links that are busy with other messages, factors.
test_lower_bound.c, test_optimum_bound.c
*/
#pragma once

#include "problem.h"

typedef struct {
    int64_t work_ns;
    int64_t chain_ns;
    int64_t stage_ns;
    int64_t memory_ns;  // 0: no limit, or no more than stage_ns
    int64_t replica_ns;
    int64_t bound_ns;
    int32_t chain_sample;  // the sample of the longest chain
    int32_t stage;         // the stage of the largest stage bound; -1 where the placement is not given
} LowerBound;

// joint_backward: no plan in question splits B and W, so a stage's last job is followed by backwards
// upstream. STATUS_NO_MEMORY of the host, and then a bound of 0, which is true of any plan; or STATUS_OK.
Status lower_bound_make(LowerBound* out, const PlanProblem* problem, bool joint_backward);

// --- bound_batch --------------------
/*
bound_batch.h -- the samples of a batch as the lower bound looks at them: equal ones together, few at a time.

    samples   every distinct (enc, dec, supervised) once, ascending, with how many there are
    least     those of which no other has less of everything: minima of whatever grows with lengths are there
    most      those of which no other has more of everything: maxima are there
    corners   at most BOUND_MAX_CLASSES samples of similar lengths together, as the shortest of each length
              among them; where there are no more distinct ones than that, these
*/

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

// --- bound_line --------------------
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

// Which ranks a sum is for: one stage's, or any.
enum { BOUND_ANY_STAGE = -1 };
// One part there: constants on the fastest rank; rates too, or (`shared`) those of a replica's share.
void bound_part_scale(BoundPart* out, const BoundLines* lines, int part, int32_t s, bool shared);

// --- bound_memory --------------------
/*
bound_memory.h -- no stage can hold more byte-seconds than its free memory times the step.

A micro-batch i on a stage holds a_i bytes from its forward to its backward, at least for
    rho_i = F + everything downstream and back + B + W
so sum a_i rho_i / free bytes <= time that the stage has. Small micro-batches hold less, but pay their
constants more often; recomputation holds less, but works more. Both are weighed at once: for any 0 <= w <= 1

    time >= g(w) = 1/R sum over samples j of min over modes and over micro-batch tokens T of
        w (work of j + constants l_j / T) + (1 - w) a_j (rho of j alone + rho per token (T - l_j)) / free

where l_j are the tokens of j, l_j <= T <= what memory holds. As a minimum of lines in w, g is concave, and
its tangents say where to look for its maximum and when to stop. Samples of similar lengths are counted as the
shortest of each length among them (bound_batch.h); their work beyond that is added at the lowest rates: g's
terms grow with the lengths, by at least that much. Holds for every composition, mode per micro-batch and
stage, both memory rules.

Several chunks of a stage add up, the minima of each taken alone. What holds nothing here (a share of the
head) is work only. Of all ranks of any placement together, see bound_free.h.

More layers on the stage, none fewer behind its begin: more bytes, less free memory, longer residence (a layer
that moves from downstream onto the stage adds its own F + B for what it took), more work. So the time of one
range of layers is a bound for every range that begins no later and has no fewer layers of either kind and no
smaller model state (bound_split.c).
*/

// A piece of the model on the stage: its parts, and from the end of its forward to the begin of its backward.
typedef struct {
    BoundPart own;
    BoundLine away;
    bool has_input;  // that counts beside its activations
    double weight;   // it stands for so many
} BoundPiece;

// What a stage has: pieces, work that holds nothing, bytes beside model state.
typedef struct {
    int32_t num_pieces;
    const BoundPiece* pieces;
    BoundLine more_work;
    double free_bytes;  // > 0
} BoundStage;

// --- bound_chain --------------------
/*
bound_chain.h -- samples alone on a given placement, in whole ns: the longest way through it, and how early or
late each stage can be needed.

A chain is all forwards in the order of the chunks, the slowest share of the head where it is shared, all
backwards, then on each stage what it owes after its last one; transfers between stages only. Jobs are the
shortest of any micro-batch that holds the sample, on the fastest rank of their stage: jobs only grow with
their shape.
*/

// Minima over all samples, of each stage.
typedef struct {
    int64_t arrival_ns[PLAN_MAX_STAGES];  // before its first forward, its lowest chunk's
    int64_t turn_ns[PLAN_MAX_STAGES];     // before its first backward, its highest chunk's
    int64_t tail_ns[PLAN_MAX_STAGES];     // after its last backward, its lowest chunk's, upstream
    int64_t reduce_ns[PLAN_MAX_STAGES];   // after its last job
    int64_t longest_ns;                   // the longest chain of a sample ...
    int32_t longest_sample;               // ... and whose
} BoundChains;

// --- bound_split --------------------
/*
bound_split.h -- the stage bound of the best contiguous split of the layers over the stages.

    g(p, l) = min { max(g(p-1, k), bound of layers k..l-1 as stage p) : p <= k < l }
with for each stage arrival + work / R + what follows, all from the lines of bound_line.h. Exact over all
splits with at least one layer on every stage; the last may be the head alone.

With a memory limit, ranges whose model state leaves no room for the largest sample are impossible, and a
range takes at least what bound_memory.h says. That is worked out only where it can matter: on the best split
so far, and on the next best where it was not as good as it looked. Every minimum on the way is a lower bound,
as ranges only get slower.
*/

// --- bound_free --------------------
/*
bound_free.h -- what holds for every placement of the model on P stages, its head whole or shared in any way.

Every stage has a chunk, every chunk but the last a layer (the last may be the head alone). So
    even     of the stages in the order in which a micro-batch first comes to them, the i-th begins after the
             first i layers and i transfers. Work that is spread evenly over what is left of the step:
             time >= (work / R + sum of these arrivals + sum of what must follow) / P
             with one micro-batch's constants, or those that memory enforces
    head     where it must be whole, one stage does all of it, after all forwards, before all backwards
    chain    the longest single sample; of a head that may be shared, the P-th part
    memory   all bytes x minimum residence (bound_memory.h) in the free memory of all stages together, weighed
             against even work; what layers receive, and what the head holds, is left out, as it depends on
             the placement. Of equal layers in a row the residence falls evenly, and g is concave in it: the
             mean over them is at least that over the ends of its pieces.
*/

// Of the whole model, and of its head alone: all work; F and gradients of inputs. A head that may be shared
// counts as the cheaper of both ways. Rates as bound_part_scale has them.
typedef struct {
    BoundLine work, turn, head_work, head_turn;
} BoundWhole;

typedef struct {
    double even_ns, head_ns, memory_ns;  // memory_ns 0: no limit somewhere, or it is no more than the others
    double chain_ns;
    int32_t chain_sample;
} BoundFree;
