/*
record_form.h -- what a JSON object says as inputs and targets, in the forms that data sets have.

    form       fields                                        inputs -> targets
    chat       messages: [{role, content}, ..]               what precedes each answer -> the answer
    ShareGPT   conversations: [{from, value}, ..]            the same
    TRL        prompt, completion: [{role, content}, ..]     the same, of which the completion's are learnt
    plain      inputs, targets
    Alpaca     instruction, input (may be missing), output   instruction, newline, input -> output
    Dolly      instruction, context (the same), response     instruction, newline, context -> response
    pairs      prompt, completion; prompt, response; question, answer; input, output
    text       text                                          nothing -> all of it
    named      --inputs-field, --targets-field

Numbers and truth values are texts (record_text.h). Of two forms that fit, the one above is taken.
Conversations: record_chat.h.
*/
#pragma once

#include "json_values.h"
#include "record_text.h"

typedef enum {
    RECORD_CHAT,
    RECORD_SHAREGPT,
    RECORD_PROMPT_CHAT,
    RECORD_PLAIN,
    RECORD_ALPACA,
    RECORD_DOLLY,
    RECORD_PROMPT,
    RECORD_RESPONSE,
    RECORD_INPUT,
    RECORD_QUESTION,
    RECORD_TEXT,
    RECORD_NAMED,
    RECORD_FORMS
} RecordForm;

typedef struct {
    RecordText inputs, targets;
    bool is_read;  // the targets are context, not learnt; never of the last turn
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

bool record_form_is_chat(RecordForm form);  // turns of a conversation, not one input

// "Alpaca (instruction, input -> output)", "body -> label"
enum { RECORD_FORM_CHARS = 160 };
void record_form_text(RecordForm form, const RecordFields* fields, char* out, size_t out_bytes);

// The list of objects in an object of no form that is known: the only one it has, {"data": [{..}, ..]}. NULL:
// none.
json_t* record_form_list(const json_t* root, const RecordFields* fields);

// Texts live in `root` and `arena`. STATUS_BAD_FORMAT names the field that is missing or of another type.
Status record_form_read(RecordContent* out, const json_t* root, const RecordFields* fields,
                        const JsonValues* values, Arena* arena);
