/*
llmc_error.h -- how llmc/ reports what a user can mend: return false, and put one line into `error`.

    char error[LLMC_ERROR_CHARS];
    if (!checkpoint_read_config(&config, &gpt2_kind, path, error)) { fprintf(stderr, "%s\n", error); exit(1);
}

The line names file or option and field, and after "---> " the remedy. What no user can mend (no memory for
the parameters, a bug) ends the program at once, as in llm.c.
*/
#pragma once

#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { LLMC_ERROR_CHARS = 256 };

// Always false, so that it can be returned. error NULL: nobody wants to know.
__attribute__((format(printf, 2, 3))) static inline bool llmc_fail(char* error, const char* format, ...) {
    if (error != NULL) {
        va_list args;
        va_start(args, format);
        vsnprintf(error, LLMC_ERROR_CHARS, format, args);
        va_end(args);
    }
    return false;
}

// The end of a long path, so that the remedy behind it is not cut off.
static inline const char* llmc_path_tail(const char* path) {
    size_t num_chars = strlen(path);
    return num_chars > 80 ? path + num_chars - 80 : path;
}

// Memory with rubbish in it, 64-byte aligned, free() it; ends the program where there is none.
static inline void* llmc_alloc_raw(size_t num_bytes, const char* what) {
    void* memory = NULL;
    if (posix_memalign(&memory, 64, num_bytes > 0 ? num_bytes : 64) != 0) {
        fprintf(stderr, "no memory for %zu bytes of %s ---> use a smaller model or more stages\n", num_bytes,
                what);
        exit(1);
    }
    return memory;
}

// The same, zeroed.
static inline void* llmc_alloc(size_t num_bytes, const char* what) {
    void* memory = llmc_alloc_raw(num_bytes, what);
    memset(memory, 0, num_bytes);
    return memory;
}
