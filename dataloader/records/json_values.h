/*
json_values.h -- the bytes of a file, unpacked where it is packed: plain, gzip (.gz) or Zstandard (.zst).

Its first bytes decide which, not its name. A file of several packed parts, one after another, is read
to its end. zlib (1.2) and libzstd (1.4) do the work; built without one of them, its files are refused with a
message.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "../../util/status.h"

typedef struct ByteSource ByteSource;

// The same on an open stream, which the source takes over (also on failure); `name` is the path in messages.
Status byte_source_open_stream(ByteSource** out, FILE* stream, const char* name);

int64_t byte_source_position(const ByteSource* source);  // bytes of the file that were read: for progress

/*
A file cut into the texts of its records: lines of JSON, the elements of one JSON array, or
objects one after another.

A file whose first character is '[' is an array, however its lines are broken. One that begins with an object
of several lines has objects, and commas between them at will; any other has one value a line, blank lines
aside. A byte-order mark is passed over. Values are told apart by brackets and quotes alone: whether one is
JSON, says who parses it. A value beyond the limit is passed over without being held.
*/

enum { JSON_VALUES_MAX_BYTES = 1 << 28 };

typedef struct {
    ByteSource* source;
    char* path;
    char* buffer;  // bytes [begin, end) are read and not yet used
    size_t begin, end, capacity;
    size_t max_bytes;      // of one value
    int64_t line_number;   // where the value given last begins, from 1
    int64_t next_line;     // where the next byte stands
    int64_t value_number;  // of the value given last, from 1
    int64_t list_number;   // for who takes it apart: the part that messages are of, from 1; 0: none
    bool at_end, is_begun, is_open, is_array, is_spread, array_ended;
} JsonValues;

// Takes over the source, also on failure. max_bytes 0: JSON_VALUES_MAX_BYTES.
Status json_values_open(JsonValues* out, ByteSource* source, const char* path, size_t max_bytes);
void json_values_close(JsonValues* values);  // an all-zero one is fine

// The next value's text, valid until the next call; *text NULL: no more. STATUS_BAD_FORMAT: this value is
// lost, the next call goes on after it. Any other failure is final.
Status json_values_next(JsonValues* values, const char** text, size_t* num_bytes);

// For files that may have text as well, before the first value: does it begin as an object does, or an array
// of objects? Nothing is taken.
Status json_values_is_json(JsonValues* values, bool* is_json);
// Of a file of text, the next line as it is, without its end (newline, or CR and newline); *text NULL: no
// more.
Status json_values_next_line(JsonValues* values, const char** text, size_t* num_bytes);
// Is nothing left after the value given last? Its text is no more valid then.
Status json_values_is_last(JsonValues* values, bool* is_last);

// STATUS_BAD_FORMAT: "file.json:12: what is wrong", of the value given last ("file.json:12, record 3: " in an
// array).
Status json_values_fail(const JsonValues* values, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
