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

More layers on the stage, none fewer behind its begin: more bytes, less free memory, longer residence (a layer
that moves from downstream onto the stage adds its own F + B for what it took), more work. So the time of one
range of layers is a bound for every range that begins no later and has no fewer layers of either kind and no
smaller model state (bound_split.c).
*/
#pragma once

#include "bound_line.h"

// A stage: its parts; from the end of its forward to the begin of its backward; bytes beside model state.
typedef struct {
    BoundPart own;
    BoundLine away;
    double free_bytes;  // > 0
    bool has_input;     // received from another stage
} BoundStage;

// What is downstream of a stage: turns of these parts, and transfers over `num_boundaries`, there and back.
void bound_memory_away(BoundLine* out, const BoundLines* lines, const BoundPart* below,
                       int32_t num_boundaries);

// Time that a stage needs between its first job and its last; 0 where memory is no limit. Stops looking when
// the result will not be more than `enough_ns`.
double bound_memory_stage(const BoundLines* lines, const BoundStage* stage, double enough_ns);
