// What goes of a directory of checkpoints (checkpoint.h): what a killed run left, what an earlier run saved.
#include <dirent.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "checkpoint.h"

typedef enum { FILE_OTHER, FILE_MARK, FILE_VALUES } FileKind;

// Behind num_digits digits or, of a step beyond them, a longer number without zeros before it; NULL: not
// there.
static const char* skip_number(const char* text, size_t num_digits) {
    size_t length = strspn(text, "0123456789");
    bool is_printed = length == num_digits || (length > num_digits && text[0] != '0');
    return is_printed ? text + length : NULL;
}

static const char* skip(const char* text, const char* word) {
    return text != NULL && strncmp(text, word, strlen(word)) == 0 ? text + strlen(word) : NULL;
}

// *tail: behind the name of a checkpoint's file, "" or ".tmp".
static FileKind kind_of(const char* name, const char** tail) {
    enum { STEP_DIGITS = 8, RANK_DIGITS = 5 };
    const char* at;
    if ((at = skip(name, "DONE_")) != NULL) {
        *tail = skip_number(at, STEP_DIGITS);
        return *tail != NULL ? FILE_MARK : FILE_OTHER;
    }
    if ((at = skip(name, "model_")) != NULL) {
        at = skip_number(at, STEP_DIGITS);
    } else if ((at = skip(name, "state_")) != NULL) {
        at = skip(skip_number(at, STEP_DIGITS), "_");
        if (at != NULL) { at = skip_number(at, RANK_DIGITS); }
    }
    *tail = skip(at, ".bin");
    return *tail != NULL ? FILE_VALUES : FILE_OTHER;
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
