// What goes of a directory of checkpoints (checkpoint.h): what a killed run left, what an earlier run saved.
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"

typedef enum { FILE_OTHER, FILE_MARK, FILE_VALUES } FileKind;

// Exactly what checkpoint_path() writes: model_1.bin is somebody's own. *tail: behind the name of a
// checkpoint's file, "" or ".tmp".
static FileKind kind_of(const char* name, const char** tail, int* step) {
    static const struct {
        const char *before, *behind;
        FileKind kind;
    } forms[] = {
        {"DONE_", "", FILE_MARK}, {"model_", ".bin", FILE_VALUES}, {"state_", "_00000.bin", FILE_VALUES}};
    for (int i = 0; i < 3; i++) {
        size_t before = strlen(forms[i].before), behind = strlen(forms[i].behind);
        int num_digits = 0;
        if (strncmp(name, forms[i].before, before) == 0) {
            num_digits = checkpoint_step_parse(name + before, CHECKPOINT_STEP_DIGITS, step);
        }
        *tail = name + before + num_digits + behind;
        if (num_digits == 0 || strncmp(*tail - behind, forms[i].behind, behind) != 0) { continue; }
        return forms[i].kind;
    }
    return FILE_OTHER;
}

enum { NO_STEP = -1 };

// Removes files of that kind that end in `tail`, but not those of step `kept`; returns how many.
static int remove_files(const char* directory, FileKind kind, const char* tail, int kept) {
    DIR* dir = opendir(directory);
    int num_removed = 0;
    if (dir == NULL) { return 0; }
    for (const struct dirent* entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        const char* rest;
        char path[CHECKPOINT_PATH_CHARS];
        int step;
        if (kind_of(entry->d_name, &rest, &step) != kind || strcmp(rest, tail) != 0 || step == kept) {
            continue;
        }
        int num_chars = snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (num_chars < CHECKPOINT_PATH_CHARS && unlink(path) == 0) { num_removed++; }
    }
    closedir(dir);
    return num_removed;
}

int checkpoint_remove_leftovers(const char* directory) {
    return remove_files(directory, FILE_MARK, ".tmp", NO_STEP) +
           remove_files(directory, FILE_VALUES, ".tmp", NO_STEP);
}

int checkpoint_remove_others(const char* directory, int step) {
    int num_marks = remove_files(directory, FILE_MARK, "", step);
    remove_files(directory, FILE_VALUES, "", step);
    return num_marks;
}
