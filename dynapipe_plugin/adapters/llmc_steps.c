// llmc_steps.c -- which steps a folder has checkpoints of: those with a mark, the empty file DONE_%08d.
#include <dirent.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "llmc_checkpoint.h"

// -1: no mark, or not the one that this step would be given (DONE_7).
static int32_t step_of_mark(const char* name) {
    char mark[32];
    long long step = strncmp(name, "DONE_", 5) == 0 ? strtoll(name + 5, NULL, 10) : -1;
    if (step < 0 || step > INT32_MAX) { return -1; }
    snprintf(mark, sizeof mark, "DONE_%08lld", step);
    return strcmp(name, mark) == 0 ? (int32_t)step : -1;
}

// The next step that is marked done, of an open folder; -1: no more.
static int32_t next_done(DIR* dir) {
    for (const struct dirent* entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        int32_t step = step_of_mark(entry->d_name);
        if (step >= 0) { return step; }
    }
    return -1;
}

int32_t dynapipe_llmc_done_before(const char* directory, int32_t below) {
    int32_t newest = -1;
    DIR* dir = opendir(directory);
    if (dir == NULL) { return -1; }
    for (int32_t step = next_done(dir); step >= 0; step = next_done(dir)) {
        if (step < below && step > newest) { newest = step; }
    }
    closedir(dir);
    return newest;
}

void dynapipe_llmc_unmark_later(const char* directory, int32_t step) {
    for (int32_t later = dynapipe_llmc_done_before(directory, INT32_MAX); later > step;
         later = dynapipe_llmc_done_before(directory, later)) {
        LlmcPaths paths = llmc_paths_of(directory, later);
        unlink(paths.done);
    }
}

void dynapipe_llmc_remove(const char* directory, int32_t step) {
    LlmcPaths paths = llmc_paths_of(directory, step);
    unlink(paths.done);
    unlink(paths.state);
    unlink(paths.model);
}
