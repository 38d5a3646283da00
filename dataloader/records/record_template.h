/*
record_template.h -- what stands around inputs and targets, by name or as a text with {fields}.

    plain    system and newline, inputs | targets
    alpaca   Stanford Alpaca's text: "Below is an instruction ..", ### Instruction: .. ### Response: | targets
    chatml   <|im_start|>user, newline, inputs<|im_end|>, newline, <|im_start|>assistant, newline | targets
    llama2   [INST] <<SYS>> system <</SYS>> inputs [/INST] | blank, targets

Left of the bar is the input, right of it the target, which the end-of-text token ends in every template (in
ChatML it stands for <|im_end|>). Of a conversation each turn goes through the template, the system's message
in the first.

A text: {inputs}, {targets}, {system} or any field of the record in braces; {{ and }} are braces, \n, \t and
\\ what they are in C. What stands before {targets} (or the field that is recognised as the targets) is the
input, the rest the target, in which only fixed text may follow. {system} stands in front where the text does
not have it.
*/
#pragma once

#include "record_form.h"

enum { RECORD_TEMPLATE_TEXTS = 8 };

typedef struct {
    const char* name;              // "custom" for a text
    const char* system;            // around a system's message, {system}
    const char* first;             // the first turn's input
    const char* context;           // the same for a record with a context; NULL: first
    const char* next;              // input of each later turn
    const char* targets;           // NULL: behind {targets} in `first`
    const char *joint, *turn_end;  // where earlier turns are an input's text: before an answer, and behind it
    const char* alone;             // the input of a record that is no conversation; NULL: first
    bool is_custom;                // a text of somebody's own
    char* owned[RECORD_TEMPLATE_TEXTS];
} RecordTemplate;

// targets_field: what the targets are called besides {targets}; NULL: as the records' form has it.
// STATUS_BAD_OPTION says which names there are, or what stands in the wrong place.
Status record_template_open(RecordTemplate* out, const char* text, const char* targets_field);
void record_template_close(RecordTemplate* form);  // an all-zero one is fine

// content->turns as a model reads them, in the arena. STATUS_BAD_FORMAT: a field that the template names is
// missing. STATUS_BAD_OPTION: it does not have the field that is learnt in records of this form, or has
// another one behind it.
Status record_template_apply(const RecordTemplate* form, RecordContent* content, const json_t* root,
                             const JsonValues* values, Arena* arena);

// Is it a text of somebody's own in which targets of this field stand, by that name or as {targets}?
bool record_template_names(const RecordTemplate* form, const char* targets_field);

// What an input's end always is: its text behind the last field. In the form itself. targets_field: the name
// that the records have for the targets, NULL: none.
const char* record_template_tail(const RecordTemplate* form, const char* targets_field, size_t* num_bytes);

// The same as ./generate has it, cut where the targets begin (data_json.h, whose fields these are). Each
// owned, NULL where the template has none. `fields`: names that the records have for inputs and targets.
typedef struct {
    char *prompt, *record, *context, *system, *user, *next, *assistant, *joint, *turn_end;
} RecordChatForms;
Status record_template_chat_forms(const RecordTemplate* form, const RecordFields* fields,
                                  RecordChatForms* out);
void record_chat_forms_free(RecordChatForms* forms);
// And back: a template of these texts (all there but `record` and `context`), which it copies. Of records
// that ask (RecordFields) it makes the inputs that the first one made. STATUS_BAD_OPTION: a brace that is no
// field.
Status record_template_of_forms(RecordTemplate* out, const RecordChatForms* forms);

// The first {field} of a form that was opened, from `at` on: its name, and what stands behind it; NULL: none.
const char* record_template_field(const char* at, const char** name, size_t* name_chars);
