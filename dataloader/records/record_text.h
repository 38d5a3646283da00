/*
record_text.h -- JSON values as the texts of a record, in an arena.

A string is its characters, a number or a truth value what JSON writes for it: 5, 0.1, true. Numbers have as
many digits as tell them from others, at most 17; whole ones have no point, however they were written.
*/
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include "../../util/arena.h"

// UTF-8 with a NUL behind it, which may have more within; text NULL: there is none.
typedef struct {
    const char* text;
    size_t num_bytes;
} RecordText;

// False where the value is neither string nor number nor truth value (or, text NULL, there is no memory).
bool record_field_text(const json_t* value, RecordText* out, Arena* arena);

// Any value on one line of JSON, with a blank behind commas and colons. Text NULL where there is no memory.
RecordText record_text_json(const json_t* value, Arena* arena);

// Texts joined, in the arena; text NULL where there is no memory.
RecordText record_text_join(const RecordText* parts, int32_t num_parts, Arena* arena);

const char* record_type_name(const json_t* value);  // "an array"
