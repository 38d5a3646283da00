// Which checkpoints a directory has (checkpoint.h): the empty file DONE_%08d says that a step's files are
// complete.
#include <dirent.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"
#include "llmc_error.h"

void checkpoint_path(char out[CHECKPOINT_PATH_CHARS], const char* directory, CheckpointName name, int step) {
    char file_name[64] = "";
    switch (name) {
        case CHECKPOINT_MODEL_FILE:
            snprintf(file_name, sizeof file_name, "model_%0*d.bin", CHECKPOINT_STEP_DIGITS, step);
            break;
        case CHECKPOINT_STATE_FILE:
            snprintf(file_name, sizeof file_name, "state_%0*d_00000.bin", CHECKPOINT_STEP_DIGITS, step);
            break;
        case CHECKPOINT_DONE_FILE:
            snprintf(file_name, sizeof file_name, "DONE_%0*d", CHECKPOINT_STEP_DIGITS, step);
            break;
    }
    snprintf(out, CHECKPOINT_PATH_CHARS, "%.*s/%s", CHECKPOINT_PATH_CHARS - 70, directory, file_name);
}

int checkpoint_step_parse(const char* text, int least_digits, int* step) {
    char again[24];
    char* end = NULL;
    if (*text < '0' || *text > '9') { return 0; }
    long long value = strtoll(text, &end, 10);
    int num_digits = snprintf(again, sizeof again, "%0*lld", least_digits, value);
    if (value > INT_MAX || end - text != num_digits || strncmp(text, again, (size_t)num_digits) != 0) {
        return 0;
    }
    *step = (int)value;
    return num_digits;
}

bool checkpoint_mark_done(const char* directory, int step, char* error) {
    char path[CHECKPOINT_PATH_CHARS];
    checkpoint_path(path, directory, CHECKPOINT_DONE_FILE, step);
    CheckpointFile file;
    return checkpoint_file_create(&file, path, 0, error) && checkpoint_file_sync(&file, error) &&
           checkpoint_file_rename(path, error);
}

void checkpoint_unmark(const char* directory, int step) {
    char path[CHECKPOINT_PATH_CHARS];
    checkpoint_path(path, directory, CHECKPOINT_DONE_FILE, step);
    unlink(path);
}

static int ascending(const void* a, const void* b) {
    int x = *(const int*)a, y = *(const int*)b;
    return (x > y) - (x < y);
}

int checkpoint_list_done(const char* directory, int** out) {
    int num_steps = 0, num_allocated = 0;
    *out = NULL;
    DIR* dir = opendir(directory);
    if (dir == NULL) { return 0; }
    for (const struct dirent* entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        int step, num_digits = 0;
        if (strncmp(entry->d_name, "DONE_", 5) == 0) {
            num_digits = checkpoint_step_parse(entry->d_name + 5, CHECKPOINT_STEP_DIGITS, &step);
        }
        if (num_digits == 0 || entry->d_name[5 + num_digits] != '\0') { continue; }
        if (num_steps == num_allocated) {
            num_allocated = 2 * num_allocated + 16;
            int* longer = realloc(*out, sizeof **out * (size_t)num_allocated);
            if (longer == NULL) { break; }
            *out = longer;
        }
        (*out)[num_steps++] = step;
    }
    closedir(dir);
    if (num_steps > 0) { qsort(*out, (size_t)num_steps, sizeof **out, ascending); }
    return num_steps;
}

int checkpoint_find_latest(const char* directory) {
    return checkpoint_find_before(directory, INT_MAX);
}

int checkpoint_find_before(const char* directory, int step) {
    int* steps;
    int num_steps = checkpoint_list_done(directory, &steps), found = -1;
    for (int i = 0; i < num_steps && steps[i] < step; i++) { found = steps[i]; }
    free(steps);
    return found;
}

bool checkpoint_has_done(const char* directory, int step) {
    return step >= 0 && step < INT_MAX && checkpoint_find_before(directory, step + 1) == step;
}

void checkpoint_remove(const char* directory, int step) {
    static const CheckpointName order[] = {CHECKPOINT_DONE_FILE, CHECKPOINT_STATE_FILE,
                                           CHECKPOINT_MODEL_FILE};
    for (int k = 0; k < 3; k++) {
        char path[CHECKPOINT_PATH_CHARS];
        checkpoint_path(path, directory, order[k], step);
        unlink(path);
    }
}

// All marks before any file: the newest mark is never one whose step is half gone.
int checkpoint_remove_later(const char* directory, int step) {
    int* steps;
    int num_steps = checkpoint_list_done(directory, &steps), first = 0;
    while (first < num_steps && steps[first] <= step) { first++; }
    for (int i = first; i < num_steps; i++) { checkpoint_unmark(directory, steps[i]); }
    for (int i = first; i < num_steps; i++) { checkpoint_remove(directory, steps[i]); }
    free(steps);
    return num_steps - first;
}

void checkpoint_prune(const char* directory, int step, int keep_newest, int keep_multiples_of) {
    if (keep_newest <= 0) { return; }
    int* steps;
    int num_steps = checkpoint_list_done(directory, &steps);
    while (num_steps > 0 && steps[num_steps - 1] > step) { num_steps--; }
    for (int i = 0; i < num_steps - keep_newest; i++) {
        if (keep_multiples_of > 0 && steps[i] % keep_multiples_of == 0) { continue; }
        checkpoint_remove(directory, steps[i]);
    }
    free(steps);
}
