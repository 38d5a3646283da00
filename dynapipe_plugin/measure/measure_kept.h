/*
measure_kept.h -- what was measured, kept in a file from run to run.

In $DYNAPIPE_CACHE, else $XDG_CACHE_HOME/dynapipe, else ~/.cache/dynapipe; a file for each signature, number
of ranks (and ranks per host, and replicas) and interface. The text is cost_model_io.c's. Only rank 0 calls
these.
*/
#pragma once

#include "../plan/cost/cost_file.h"

enum { MEASURE_PATH_CHARS = 3800 };

// false: there is no such folder to be had ($HOME is not set either), or its name is too long.
bool measure_kept_path(char out[MEASURE_PATH_CHARS], const char* signature, const CostMeasured* about);

// What is kept there, if it was measured on this model, on ranks like these and on windows at least as long.
// false: nothing, or nothing that serves; `why` (256 characters) says why a file cannot be read, else it is
// "".
// *machine: as cost_file_load()'s, of no rank or about->num_ranks; NULL: not wanted.
bool measure_kept_load(CostModel* out, Machine* machine, char* why, const char* path, const char* signature,
                       const CostMeasured* about);
Status measure_kept_save(const CostModel* model, const Machine* machine, const char* path,
                         const char* signature);
