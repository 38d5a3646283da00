/*
text_walk.h -- one walk over the fields of a record prints it, reads it, or adds it to a hash.

A walk is a list of calls in the order of the text: words, and fields between them. Words are separated by
blanks, commas and colons. Reading is safe on hostile text: every number has a range, and a message has the
line. Only reading writes to the fields.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "../../util/arena.h"
#include "../../util/status.h"

typedef enum { TEXT_PRINT, TEXT_PARSE, TEXT_HASH } TextMode;

typedef struct {
    TextMode mode;
    uint64_t hash;
    FILE* out;
    // The text that is read.
    const char *name, *at, *end;
    int32_t line;
    Arena* arena;
} TextWalk;

typedef struct {
    const char* text;
    int32_t length;
} TextWord;

TextWord text_word(const TextWalk* walk);  // the next one, not taken; no bytes at the end of a line
Status text_fail(const TextWalk* walk, const char* expected);
// How many things that take a line each the rest of the text can hold.
int64_t text_most_lines(const TextWalk* walk);

// These words, and ends of lines; and such that are not always there: are they?
Status text_literal(TextWalk* walk, const char* words);
bool text_optional(TextWalk* walk, bool is_there, const char* words);
// After these words: a whole number of 1 (a bool), 2, 4 or 8 bytes in [low, high]; a finite one; one of some
// words.
Status text_int(TextWalk* walk, const char* words, int64_t low, int64_t high, void* field, size_t num_bytes);
Status text_real(TextWalk* walk, const char* words, double* field);
Status text_choice(TextWalk* walk, const char* words, const char* what, const char* const* names,
                   int32_t num_names, int32_t width, uint8_t* field);

#define TEXT_INT(walk, words, low, high, field) \
    TRY(text_int((walk), (words), (low), (high), &(field), sizeof(field)))
