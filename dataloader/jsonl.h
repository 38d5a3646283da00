/*
jsonl.h -- reads samples from lines of JSON: {"task": "name", "inputs": "text", "targets": "text"}

    JsonlReader reader;
    TRY(jsonl_open(&reader, "tasks.jsonl", 0));
    for (;;) {
        JsonlSample sample;
        Status status = jsonl_next(&reader, &sample);      // "tasks.jsonl:7: field \"inputs\" is missing"
        if (status == STATUS_BAD_FORMAT) { continue; }     // only that line is lost
        if (status != STATUS_OK || sample.end) { break; }
    }
    jsonl_close(&reader);

`inputs` and `targets` must be strings of which one at least is not empty; `task` may be missing or empty: the
file's base name stands in. Other fields are ignored, blank lines and a byte-order mark skipped. A \u0000
inside a text is kept (not in a task name); invalid UTF-8 and half surrogate pairs are bad lines. Memory: the
longest line and its decoded form; a line beyond the limit is passed over without being held.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include "../dynapipe_plugin/base/status.h"

enum { JSONL_MAX_LINE_BYTES = 1 << 28, JSONL_MAX_TASK_BYTES = 255 };

// One sample; the texts are valid UTF-8, NUL-terminated, and belong to the reader until its next call.
typedef struct {
    const char *task, *inputs, *targets;
    size_t task_bytes, inputs_bytes, targets_bytes;
    bool end;  // no line was left: nothing else is set
} JsonlSample;

typedef struct {
    FILE* stream;
    char* path;
    char* file_task;  // base name without ".jsonl" or ".json"
    char* buffer;     // bytes [begin, end) are read and not yet used
    size_t begin, end, capacity;
    size_t max_line_bytes;
    int64_t line_number;  // of the line read last, from 1
    int64_t bytes_read;   // of the file, up to the end of that line
    bool at_end;
    void* root;  // json_t* of the last sample
} JsonlReader;

// max_line_bytes 0 means JSONL_MAX_LINE_BYTES. On failure there is nothing to close.
Status jsonl_open(JsonlReader* reader, const char* path, size_t max_line_bytes);
// The same on an open stream, which the reader takes over; `path` only names it in messages.
Status jsonl_open_stream(JsonlReader* reader, FILE* stream, const char* path, size_t max_line_bytes);
void jsonl_close(JsonlReader* reader);  // an all-zero reader is fine

// The next sample. STATUS_BAD_FORMAT: this line is bad, the next call goes on behind it. Any other failure
// (STATUS_IO, STATUS_NO_MEMORY) is final.
Status jsonl_next(JsonlReader* reader, JsonlSample* out);
