/*
memory_layout.h -- a rank's arena: which buffers are alive in it over time, and where.

A rank works through its list in order, so a buffer is taken when its first instruction is reached and given
back when its last one is done. Transfers and posts take no time of their own; a wait lasts until its transfer
has ended. Bytes are rounded up to PLAN_BUFFER_ALIGN, so the peak is memory_layout_bound's: what the best
layout would need. (test_timeline_svg)
*/
#pragma once

#include "plan.h"
#include "types.h"
#include "../../util/arena.h"

// From begin_ns on, until the next step. Several steps may begin at the same time: a spike.
typedef struct {
    int64_t begin_ns, num_bytes;
} MemoryStep;

typedef struct {
    int32_t num_steps;
    MemoryStep* steps;  // begin_ns never falls
    int64_t peak_bytes;
    int64_t peak_ns;  // when it is first reached
} MemoryCurve;

// rule: which buffers count. Model state does not. Needs a plan whose buffers live inside the list
// (plan_check).
Status memory_curve_make(MemoryCurve* out, const PlanRank* rank, MemoryRule rule, Arena* arena);

// --- layout ------------------------------------------------------------------------------------------

/*
Puts buffers with known lifetimes into one arena (dynamic storage allocation).

Buffers that live at the same time must not overlap; the arena should be small. NP-hard, so: place buffers one
after the other, each into the lowest gap that is free during its life (first fit), in several orders (largest
first; longest living first; area; by begin), and keep the smallest arena (Sekiyama et al., arXiv 1804.10001;
Pisarchyk & Lee, arXiv 2001.03288). Where that is more than `enough_bytes`, climb: buffers that stick out at
the top are placed earlier, as long as the arena does not grow (hill climbing, as in TVM's memory planner). It
stops after some moves in a row without gain; what cannot fit by the bound is laid out in one order.
All of it stops early at the lower bound: the most bytes alive at one instant.
*/

// Sets offset_bytes of every buffer, a multiple of PLAN_BUFFER_ALIGN, from num_bytes, instr_begin, instr_end.
// Buffers of no bytes get offset 0. *arena_bytes is a multiple of PLAN_BUFFER_ALIGN too, and at most
// enough_bytes where a layout of that was found. 0 <= instr_begin < instr_end. Per order tried: O(n) times
// the buffers alive at a time. Memory: O(n + last instr_end).
Status memory_layout_place(PlanBuffer* buffers, int32_t num_buffers, int64_t enough_bytes,
                           int64_t* arena_bytes, Arena* arena);

// The most (aligned) bytes alive at one instant: no layout needs less.
Status memory_layout_bound(const PlanBuffer* buffers, int32_t num_buffers, int64_t* bound_bytes,
                           Arena* arena);
