/*
cost_reader.h -- the words of a cost file (cost_model_io.c), one after the other, and where they stand; and
how numbers are written there.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../../../util/status.h"

// Never reads past the terminating 0.
typedef struct {
    const char* name;    // of the file, for messages
    const char* cursor;  // after the last word
    const char* word;    // the last word, not terminated
    int word_bytes;
    int line, field;
} CostReader;

// STATUS_BAD_FORMAT: names the line, the field and the word.
Status cost_reader_fail(const CostReader* r, const char* expected);
// false at the end of the line
bool cost_reader_word(CostReader* r);
// Step to the next line that has words, and onto its first word; false at the end of the text.
bool cost_reader_line(CostReader* r, const char* line);

// Of the last word: is it this, which of these, which number do these characters of it make?
bool cost_reader_is(const CostReader* r, const char* text);
Status cost_reader_choose(const CostReader* r, int* out, const char* const* names, int num_names,
                          const char* what);
Status cost_reader_digits(const CostReader* r, double* out, const char* digits, int num_digits);

// Of the next word.
Status cost_reader_expect(CostReader* r, const char* text);
Status cost_reader_number(CostReader* r, double* out);
Status cost_reader_int(CostReader* r, int64_t* out, int64_t max);

// As short as reads back to the same double.
void cost_number_print(double v, FILE* out);
