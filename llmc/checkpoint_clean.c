// What goes of a directory of checkpoints (checkpoint.h): what a killed run left, what an earlier run saved.
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

// Removes files of that kind that end in `tail`; returns how many.
static int remove_files(const char* directory, FileKind kind, const char* tail) {
    DIR* dir = opendir(directory);
    int num_removed = 0;
    if (dir == NULL) { return 0; }
    for (const struct dirent* entry = readdir(dir); entry != NULL; entry = readdir(dir)) {
        const char* rest;
        char path[CHECKPOINT_PATH_CHARS];
        if (kind_of(entry->d_name, &rest) != kind || strcmp(rest, tail) != 0) { continue; }
        int num_chars = snprintf(path, sizeof path, "%s/%s", directory, entry->d_name);
        if (num_chars < CHECKPOINT_PATH_CHARS && unlink(path) == 0) { num_removed++; }
    }
    closedir(dir);
    return num_removed;
}

int checkpoint_remove_leftovers(const char* directory) {
    return remove_files(directory, FILE_MARK, ".tmp") + remove_files(directory, FILE_VALUES, ".tmp");
}

int checkpoint_remove_all(const char* directory) {
    int num_marks = remove_files(directory, FILE_MARK, "");
    remove_files(directory, FILE_VALUES, "");
    return num_marks;
}
