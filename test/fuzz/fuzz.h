// fuzz.h -- what every target needs: libFuzzer's entries, a condition that must hold, the input as a text or
// as a command line.
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#define REQUIRE(condition)                      \
    do {                                        \
        if (!(condition)) { __builtin_trap(); } \
    } while (0)

int LLVMFuzzerInitialize(int* argc, char*** argv);
int LLVMFuzzerTestOneInput(const uint8_t* data, size_t num_bytes);

// NUL-terminated, in memory of its exact length: free() it. A NUL inside ends the text early.
static inline char* fuzz_text(const uint8_t* data, size_t num_bytes) {
    char* text = (char*)malloc(num_bytes + 1);
    REQUIRE(text != NULL);
    if (num_bytes > 0) { memcpy(text, data, num_bytes); }
    text[num_bytes] = '\0';
    return text;
}

// Two files in one input: the bytes before the first empty line, and behind it (*second_at).
static inline size_t fuzz_first_bytes(const uint8_t* data, size_t num_bytes, size_t* second_at) {
    size_t at = 0;
    while (at + 1 < num_bytes && (data[at] != '\n' || data[at + 1] != '\n')) { at++; }
    bool is_cut = at + 1 < num_bytes;
    *second_at = is_cut ? at + 2 : num_bytes;
    return is_cut ? at : num_bytes;
}

// Every error says what to do.
static inline bool fuzz_has_remedy(const char* message) {
    return strstr(message, " ---> ") != NULL;
}

// The input as a command line: words between newlines.
enum { FUZZ_MAX_WORDS = 32 };

typedef struct {
    char* text;  // free() it
    int argc;
    char* argv[FUZZ_MAX_WORDS + 2];  // NULL behind the last
    char program[16];
} FuzzWords;

static inline void fuzz_words_split(FuzzWords* out, const char* program, const uint8_t* data,
                                    size_t num_bytes) {
    *out = (FuzzWords){.text = fuzz_text(data, num_bytes), .argc = 1};
    memcpy(out->program, program, strlen(program) + 1);
    out->argv[0] = out->program;
    for (char* at = out->text; at != NULL && out->argc <= FUZZ_MAX_WORDS;) {
        out->argv[out->argc++] = at;
        at = strchr(at, '\n');
        if (at != NULL) { *at++ = '\0'; }
    }
}
