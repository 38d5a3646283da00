/*
plan_text.h -- the words of a plan's text form (plan_text.c describes it).
*/
#pragma once

#include "plan.h"

extern const char* const plan_instr_words[INSTR_COUNT];
extern const char* const plan_buffer_words[BUFFER_COUNT];
extern const char* const plan_head_words[HEAD_COUNT];
extern const char* const plan_layout_words[LAYOUT_COUNT];

// Characters that names of policies may have: a-z 0-9 _ - + . ; not empty, shorter than the field.
bool plan_name_is_valid(const char* name);
