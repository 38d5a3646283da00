/*
plan_mutant.h -- a plan to be broken, and what of it to break.
*/
#pragma once

#include "random_plan.h"
#include "test.h"

typedef struct {
    Plan* plan;
    PlanSample* samples;
    Rng* rng;
} Mutant;

static PlanRank* any_rank(Mutant* mutant) {
    return &mutant->plan->ranks[rng_below(mutant->rng, (uint32_t)(mutant->plan->P * mutant->plan->R))];
}

// A random instruction of this kind on this rank, -1 if there is none.
static int32_t any_instr(Mutant* mutant, const PlanRank* rank, InstrKind kind) {
    int32_t found = -1, num = 0;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        if (rank->instrs[i].kind != kind) { continue; }
        if (rng_below(mutant->rng, (uint32_t)++num) == 0) { found = i; }
    }
    return found;
}

// Of that micro-batch and chunk; -1: there is none.
static int32_t find_instr(const PlanRank* rank, InstrKind kind, int32_t chunk, int32_t mb) {
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (instr->kind == kind && instr->chunk == chunk && instr->mb == mb) { return i; }
    }
    return -1;
}

static PlanBuffer* any_buffer(Mutant* mutant, const PlanRank* rank, int32_t not_kind) {
    if (rank->num_buffers == 0) { return NULL; }
    PlanBuffer* buffer = &rank->buffers[rng_below(mutant->rng, (uint32_t)rank->num_buffers)];
    return buffer->kind == not_kind ? NULL : buffer;
}

// Take instruction i out and put it in at place j; buffers keep the instructions they live over.
static void move_instr(PlanRank* rank, int32_t i, int32_t j) {
    PlanInstr moved = rank->instrs[i];
    int32_t step = i < j ? 1 : -1;
    for (int32_t k = i; k != j; k += step) { rank->instrs[k] = rank->instrs[k + step]; }
    rank->instrs[j] = moved;
}
