// plan_words.h -- the words of a plan's text form, shared by plan_print.c and plan_parse.c; and where a job,
// send or receive stands in pairs of instructions.
#pragma once

#include "plan.h"

#define PLAN_MAGIC "dynapipe-plan 1"

extern const char* const plan_instr_words[INSTR_COUNT];
extern const char* const plan_buffer_words[BUFFER_COUNT];
extern const char* const plan_layout_words[LAYOUT_COUNT];
extern const char* const plan_recompute_words[RECOMPUTE_COUNT];

static inline bool plan_instr_is_job(InstrKind kind) {
    return kind <= INSTR_REC;
}

// The job kind of a job instruction.
JobKind plan_instr_job(InstrKind kind);

// Characters that names of policies may have: a-z 0-9 _ - + . ; not empty, shorter than the field.
bool plan_name_is_valid(const char* name);
