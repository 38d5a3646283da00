/*
toy_plan_parts.h -- what toy_plan.c (who does what when) and toy_buffers.c (where its data lie) share.
*/
#pragma once

#include "toy_plan.h"

static inline int32_t toy_num_chunks(const ToyPlan* toy) {
    return toy->plan.placement.num_chunks;
}

static inline int32_t toy_last_chunk(const ToyPlan* toy) {
    return toy_num_chunks(toy) - 1;
}

static inline int32_t toy_stage_of(const ToyPlan* toy, int32_t row) {
    return row < toy_num_chunks(toy) ? toy->plan.placement.stage_of[row] : row - toy_num_chunks(toy);
}

static inline bool toy_is_share(const ToyPlan* toy, int32_t row) {
    return row >= toy_num_chunks(toy);
}

static inline bool toy_has_row(const ToyPlan* toy, int32_t row) {
    return !toy_is_share(toy, row) || placement_has_share(&toy->plan.placement, toy_stage_of(toy, row));
}

static inline bool toy_same_stage(const ToyPlan* toy, int32_t a, int32_t b) {
    return toy_stage_of(toy, a) == toy_stage_of(toy, b);
}

static inline bool toy_by_vocabulary(const ToyPlan* toy) {
    return toy->plan.placement.head == HEAD_BY_VOCABULARY;
}

static inline int32_t toy_num_rows(const ToyPlan* toy) {
    return toy_num_chunks(toy) + (toy->plan.placement.head == HEAD_WHOLE ? 0 : toy->plan.P);
}

// Places the buffers of that rank, whose list is complete.
void toy_buffers_place(const ToyPlan* toy, int32_t rank);
