/*
record_reader.h -- samples from files of JSON, in the forms that data sets have (record_form.h).

    RecordReader reader;
    TRY(record_reader_open(&reader, "tasks.jsonl.gz", &options));
    for (;;) {
        Record record;
        Status status = record_reader_next(&reader, &record);  // "tasks.jsonl.gz:7: field \"inputs\" is
missing" if (status == STATUS_BAD_FORMAT) { continue; }          // only that record is lost if (status !=
STATUS_OK || record.end) { break; }
    }
    record_reader_close(&reader);

Lines, one array or objects (json_values.h), plain or packed (byte_source.h). A file of one object that is no
record, but has a list of objects, {"data": [{..}, ..]}, is that list. The field `task` may be missing or
empty: the file's base name stands in. Other fields are ignored. A \u0000 inside a text is kept (not in a task
name); invalid UTF-8 and half surrogate pairs are bad records. Memory: the longest record and its decoded
form.
*/
#pragma once

#include "record_template.h"

enum { RECORD_MAX_TASK_BYTES = 255 };

typedef struct {
    RecordFields fields;
    const char* task_field;      // NULL: "task"
    const RecordTemplate* form;  // borrowed
    size_t max_bytes;            // of one record; 0: JSON_VALUES_MAX_BYTES
} RecordOptions;

// The texts are valid UTF-8, NUL-terminated, and belong to the reader until its next call.
typedef struct {
    RecordText task;
    RecordText json;      // what stands in the file, without a NUL behind it
    RecordFields fields;  // that it was read from; NULL: of a chat
    RecordForm form;
    // [num_turns] as the template has them (of what asks, the last targets are as the record has them); of a
    // text, the only one has no inputs
    const RecordTurn* turns;
    int32_t num_turns;
    bool end;  // none was left: nothing else is set
} Record;

typedef struct {
    JsonValues values;
    RecordOptions options;
    char* file_task;  // base name without .jsonl, .json, .ndjson, .gz, .zst
    Arena arena;
    json_t* root;     // of the last record
    RecordText json;  // the same as text
    json_t* list;     // the records are its elements
    size_t list_at;
} RecordReader;

// On failure there is nothing to close.
Status record_reader_open(RecordReader* reader, const char* path, const RecordOptions* options);
// The same on an open stream, which the reader takes over; `path` names it in messages and, as a task, its
// samples.
Status record_reader_open_stream(RecordReader* reader, FILE* stream, const char* path,
                                 const RecordOptions* options);
void record_reader_close(RecordReader* reader);  // an all-zero reader is fine

// The next record. STATUS_BAD_FORMAT: it is bad, the next call goes on behind it. Any other failure is final.
Status record_reader_next(RecordReader* reader, Record* out);
