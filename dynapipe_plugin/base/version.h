/*
version.h -- what was built: for --version, and for records of runs.
*/
#pragma once

#include <stdbool.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

// As `git describe` names it: 12 digits, "-dirty" behind them where files had been edited; "unknown" where
// the build does not say (another tree's, or one without git).
const char* version_commit(void);
// "train_gpt2 of DynaPipe for llm.c, commit 1234567890ab" and the compiler, a line.
void version_print(const char* program, FILE* out);
// Is --version among the arguments?
bool version_is_wanted(int argc, char** argv);

#ifdef __cplusplus
}
#endif
