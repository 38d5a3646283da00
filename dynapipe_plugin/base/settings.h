/*
settings.h -- what a run was started with, as lines "name=value": kept in its checkpoints, so that a run that
goes on from them can say what it does otherwise.
*/
#pragma once

#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// Control characters of a value become \xNN (printable.h); NULL: not given.
void settings_add(FILE* out, const char* name, const char* value);
// In as few digits as tell it from all others.
void settings_add_number(FILE* out, const char* name, double value);
// The value of `name`, *num_chars long and not ended; NULL: not there.
const char* settings_find(const char* settings, const char* name, size_t* num_chars);
// A line for each setting that both have with another value: "warning: -l is 0.001, saved with 0.0003".
// Returns how many.
int settings_print_differences(FILE* out, const char* saved, const char* now);

#ifdef __cplusplus
}
#endif
