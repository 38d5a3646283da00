/*
json_values.h -- the values of a JSON file as texts: lines of JSON, the elements of one JSON array, or
consecutive objects.

A file that begins with '[' is an array. One that begins with an object of several lines contains objects with
optional commas between them; any other has one value per line, blank lines are ignored. A byte-order mark is
skipped. Values are separated by brackets and quotes alone; the caller parses them. A value beyond the limit
is skipped without being stored. Files packed by gzip or Zstandard (by their first bytes) are unpacked by the
programs gzip and zstd.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>
#include "../../util/status.h"

enum { JSON_VALUES_MAX_BYTES = 1 << 28 };

typedef struct {
    int file;        // descriptor
    int in;          // `file`, or a pipe from the program that unpacks it
    pid_t unpacker;  // 0: none
    char* path;
    char* buffer;  // bytes [begin, end) are read and not yet used
    size_t begin, end, capacity;
    size_t max_bytes;      // of one value
    int64_t line_number;   // where the last value begins, from 1
    int64_t next_line;     // line of the next byte
    int64_t value_number;  // number of the last value, from 1
    int64_t list_number;   // set by the caller for messages: the part of the value, from 1; 0: none
    bool at_end, is_begun, is_open, is_array, is_spread, array_ended;
} JsonValues;

// Takes ownership of the descriptor, also on failure. max_bytes 0: JSON_VALUES_MAX_BYTES.
Status json_values_open(JsonValues* out, int file, const char* path, size_t max_bytes);
void json_values_close(JsonValues* values);              // an all-zero one is allowed
int64_t json_values_position(const JsonValues* values);  // bytes read of the file, for progress

// The next value's text, valid until the next call; *text NULL: end. STATUS_BAD_FORMAT: this value is lost,
// the next call continues after it. Any other failure is final.
Status json_values_next(JsonValues* values, const char** text, size_t* num_bytes);

// For files that may also contain plain text, before the first value: does it begin like an object or an
// array of objects? Reads no value.
Status json_values_is_json(JsonValues* values, bool* is_json);
// The next line of a text file, without its end (newline, or CR and newline); *text NULL: end.
Status json_values_next_line(JsonValues* values, const char** text, size_t* num_bytes);
// Is nothing left after the last value? Its text becomes invalid.
Status json_values_is_last(JsonValues* values, bool* is_last);

// STATUS_BAD_FORMAT: "file.json:12: what is wrong", about the last value ("file.json:12, record 3: " in an
// array).
Status json_values_fail(const JsonValues* values, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
