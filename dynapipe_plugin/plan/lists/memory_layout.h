/*
memory_layout.h -- puts buffers with known lifetimes into one arena (dynamic storage allocation).

Buffers that live at the same time must not overlap; the arena should be small. NP-hard, so: place buffers one
after the other, each into the lowest gap that is free during its life (first fit), in several orders (largest
first; longest living first; area; by begin), and keep the smallest arena (Sekiyama et al., arXiv 1804.10001;
Pisarchyk & Lee, arXiv 2001.03288). Where that is more than `enough_bytes`, climb: buffers that stick out at
the top are placed earlier, as long as the arena does not grow (hill climbing, as in TVM's memory planner). It
gives up after some moves in a row that lessen nothing; what cannot fit by the bound is laid out in one order.
All of it stops early at the lower bound: the most bytes alive at one instant.
*/
#pragma once

#include "../../../util/arena.h"
#include "plan.h"

// Sets offset_bytes of every buffer, a multiple of PLAN_BUFFER_ALIGN, from num_bytes, instr_begin, instr_end.
// Buffers of no bytes get offset 0. *arena_bytes is a multiple of PLAN_BUFFER_ALIGN too, and at most
// enough_bytes where a layout of that was found. 0 <= instr_begin < instr_end. Per order tried: O(n) times
// the buffers alive at a time. Memory: O(n + last instr_end).
Status memory_layout_place(PlanBuffer* buffers, int32_t num_buffers, int64_t enough_bytes,
                           int64_t* arena_bytes, Arena* arena);

// The most (aligned) bytes alive at one instant: no layout needs less.
Status memory_layout_bound(const PlanBuffer* buffers, int32_t num_buffers, int64_t* bound_bytes,
                           Arena* arena);
