// What goes of a directory of checkpoints (checkpoint.h): what a killed run left, what an earlier run saved.
#include <ctype.h>
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"

typedef enum { FILE_OTHER, FILE_MARK, FILE_VALUES } FileKind;

// *tail: behind the name of a checkpoint's file, "" or ".tmp".
static FileKind kind_of(const char* name, const char** tail) {
    int num_chars = 0;
    (void)sscanf(name, "DONE_%*8[0-9]%n", &num_chars);
    FileKind kind = num_chars > 0 ? FILE_MARK : FILE_VALUES;
    if (num_chars == 0) { (void)sscanf(name, "model_%*8[0-9].bin%n", &num_chars); }
    if (num_chars == 0) { (void)sscanf(name, "state_%*8[0-9]_%*5[0-9].bin%n", &num_chars); }
    *tail = name + num_chars;
    return num_chars > 0 ? kind : FILE_OTHER;
}

static bool is_of_step(const char* name, int step) {
    char digits[16];
    int num_chars = snprintf(digits, sizeof digits, "_%08d", step);
    const char* at = strchr(name, '_');
    return at != NULL && strncmp(at, digits, (size_t)num_chars) == 0 &&
           !isdigit((unsigned char)at[num_chars]);
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
        if (kind_of(entry->d_name, &rest) != kind || strcmp(rest, tail) != 0) { continue; }
        if (kept != NO_STEP && is_of_step(entry->d_name, kept)) { continue; }
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
