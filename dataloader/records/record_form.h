/*
record_form.h -- what a JSON object says as inputs and targets, in the forms that data sets have.

    form          fields                                                  inputs -> targets
    chat          messages: [{role, content}, ..]                         what precedes each answer -> the
answer ShareGPT      conversations: [{from, value}, ..]                      the same plain         inputs,
targets Alpaca        instruction, input (may be missing), output             instruction, newline, input ->
output Dolly         instruction, context (may be missing), response         instruction, newline, context ->
response prompt        prompt, completion (or response) question      question, answer text          text
nothing -> all of it named         --inputs-field, --targets-field

Roles: system (developer); user (human); assistant (gpt, bot, chatgpt, model); tool (function, observation,
ipython), which speaks to the model as a user does. Messages of one side in a row are joined by a newline;
what follows the last answer is left out. A content may be a list of {"type": "text", "text"}.
*/
#pragma once

#include <jansson.h>
#include "../../dynapipe_plugin/base/arena.h"
#include "json_values.h"

typedef enum {
    RECORD_CHAT,
    RECORD_SHAREGPT,
    RECORD_PLAIN,
    RECORD_ALPACA,
    RECORD_DOLLY,
    RECORD_PROMPT,
    RECORD_QUESTION,
    RECORD_TEXT,
    RECORD_NAMED,
    RECORD_FORMS
} RecordForm;

// "Alpaca (instruction, input -> output)"
const char* record_form_text(RecordForm form);

// UTF-8 with a NUL behind it, which may have more within; text NULL: there is none.
typedef struct {
    const char* text;
    size_t num_bytes;
} RecordText;

typedef struct {
    RecordText inputs, targets;
} RecordTurn;

typedef struct {
    RecordForm form;
    const char *inputs_field, *targets_field;  // NULL: of a chat; inputs_field also of a text
    bool asks;                                 // as in RecordFields
    RecordText system;                         // of a chat
    RecordText context;                        // of Alpaca and Dolly, where not empty
    RecordText instruction;                    // the same
    RecordTurn* turns;                         // [num_turns], at least 1; one but for chats
    int32_t num_turns;
} RecordContent;

// Fields with names of their own; both NULL: recognised. targets alone: a text.
// asks: of what is to be answered (./generate) the last turn's targets may be missing (their text is NULL
// then), a conversation may end with a question, and the field with the inputs says what form it is.
typedef struct {
    const char *inputs, *targets;
    bool asks;
} RecordFields;

// Texts live in `root` and `arena`. STATUS_BAD_FORMAT names the field that is missing or of another type.
Status record_form_read(RecordContent* out, const json_t* root, const RecordFields* fields,
                        const JsonValues* values, Arena* arena);

// A field as text: a string as it is, numbers and truth values as JSON has them. False where it is none of
// these.
bool record_field_text(const json_t* value, RecordText* out, Arena* arena);
const char* record_type_name(const json_t* value);  // "an array"

// Texts joined, in the arena; text NULL where there is no memory.
RecordText record_text_join(const RecordText* parts, int32_t num_parts, Arena* arena);
