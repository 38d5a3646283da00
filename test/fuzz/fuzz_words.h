// fuzz_words.h -- an input as a command line: words between newlines.
#pragma once

#include "fuzz.h"

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
