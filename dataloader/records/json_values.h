/*
json_values.h -- the values of a JSON file as texts: lines of JSON, the elements of one JSON array, or
consecutive objects.

A file that begins with '[' is an array. One that begins with an object of several lines contains objects with
optional commas between them; any other has one value per line, blank lines are ignored. A byte-order mark is
skipped. Values are separated by brackets and quotes alone; the caller parses them. Files packed by gzip or
Zstandard (by their first bytes) are unpacked by the programs gzip and zstd to an unnamed file in $TMPDIR
(/tmp).
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "../../util/files.h"
#include "../../util/status.h"

typedef struct {
    char* path;
    FileMap map;           // the whole file, unpacked
    size_t at;             // the next byte
    int64_t line_number;   // where the last value begins, from 1
    int64_t next_line;     // line of the next byte
    int64_t value_number;  // number of the last value, from 1
    int64_t list_number;   // set by the caller for messages: the part of the value, from 1; 0: none
    bool is_begun, is_array, is_spread, has_ended;
} JsonValues;

// Takes ownership of the descriptor, also on failure.
Status json_values_open(JsonValues* out, int file, const char* path);
void json_values_close(JsonValues* values);  // an all-zero one is allowed

// The next value's text, valid until close; *text NULL: end. STATUS_BAD_FORMAT: this value is lost, the next
// call continues after it.
Status json_values_next(JsonValues* values, const char** text, size_t* num_bytes);
// Does the file begin like an object or an array of objects? Otherwise it may be plain text.
bool json_values_is_json(const JsonValues* values);
// The next line of a text file, without its end (newline, or CR and newline); NULL: end.
const char* json_values_next_line(JsonValues* values, size_t* num_bytes);
bool json_values_is_last(JsonValues* values);  // is nothing left after the last value?

// STATUS_BAD_FORMAT: "file.json:12: what is wrong", about the last value ("file.json:12, record 3: " in an
// array).
Status json_values_fail(const JsonValues* values, const char* format, ...)
    __attribute__((format(printf, 2, 3)));

// Copies what is left of a stream to an unnamed file in $TMPDIR. `name` is used in messages.
Status json_values_copy(int* out, FILE* from, const char* name);
