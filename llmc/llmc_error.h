/*
llmc_error.h -- an error that a user can fix uses util/status.h: a function returns a Status or false, and
status_message() names file or option and field, with the remedy after "---> ". An error that no user can fix
(no memory for the parameters, a bug) ends the program at once, as in llm.c.
*/
#pragma once

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../util/status.h"

// For functions that return a bool: llmc_fail() records the message and returns false.
#define llmc_ok(status) ((status) == STATUS_OK)
static inline bool llmc_refuse(Status status) {
    (void)status;
    return false;
}
#define llmc_fail(...) llmc_refuse(FAIL(STATUS_BAD_FORMAT, __VA_ARGS__))

// Uninitialised memory, 64-byte aligned, free() it; ends the program on failure.
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
