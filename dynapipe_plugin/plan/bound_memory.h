/*
bound_memory.h -- no stage can hold more byte-seconds than its free memory times the step.

A micro-batch i on stage s holds a_i bytes from its forward to its backward, at least for
    rho_i = F + everything downstream and back + B + W
so sum a_i rho_i / free bytes <= time that stage s has. Small micro-batches hold less, but pay their constants
more often; recomputation holds less, but works more. Both are weighed at once: for any 0 <= lambda <= 1
    time >= 1/R sum over samples j of min over modes and over micro-batch tokens T of
        lambda * (work of j + constants * l_j / T) + (1 - lambda) * a_j * (rho of j alone + rho per token * (T
- l_j)) / free where l_j are the tokens of j, l_j <= T <= what memory holds. lambda = 1 is work alone, 0 is
memory alone; the largest of a few lambda is taken. Holds for every composition, mode per micro-batch and
stage, both memory rules.
*/
#pragma once

#include "bound_line.h"

// Time that stage s needs between its first job and its last; 0 where memory is no limit.
// `work_ns`: what it needs without looking at memory; less than that is not looked for.
double bound_memory_stage(const BoundLines* lines, int32_t s, double work_ns);

// The same for the mean stage of whatever split the layers take.
double bound_memory_any_split(const BoundLines* lines, double work_ns);
