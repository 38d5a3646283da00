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
#pragma once

#include "bound_line.h"

// Of the whole model, and of its head alone: all work; F and gradients of inputs. A head that may be shared
// counts as the cheaper of both ways. Rates as bound_part_scale has them.
typedef struct {
    BoundLine work, turn, head_work, head_turn;
} BoundWhole;

BoundWhole bound_whole_make(const BoundLines* lines, bool shared);

typedef struct {
    double even_ns, head_ns, memory_ns;  // memory_ns 0: no limit somewhere, or it is no more than the others
    double chain_ns;
    int32_t chain_sample;
} BoundFree;

// STATUS_NO_MEMORY of the host, or STATUS_OK. `scratch` is reset.
Status bound_free_make(BoundFree* out, const BoundLines* lines, Arena* scratch);

// Of one sample, on any placement, without transfers and reduction: all parts forwards and backwards, each
// kind of job in its cheapest mode, and the weight gradients of the first layer and its embedding at least.
double bound_free_chain(const BoundLines* lines, const PlanSample* sample);
