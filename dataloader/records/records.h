/*
record_text.h -- JSON values as the texts of a record, in an arena.

A string is its characters, a number or a truth value what JSON writes for it: 5, 0.1, true. Numbers have as
many digits as tell them from others, at most 17; whole ones have no point, however they were written.
*/
#pragma once

#include <jansson.h>
#include <stdbool.h>
#include "json_values.h"
#include "../../util/arena.h"

// UTF-8 with a NUL behind it, which may have more within; text NULL: there is none.
typedef struct {
    const char* text;
    size_t num_bytes;
} RecordText;

// --- record_form --------------------
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

// "Alpaca (instruction, input -> output)", "body -> label"
enum { RECORD_FORM_CHARS = 160 };
void record_form_text(RecordForm form, const RecordFields* fields, char* out, size_t out_bytes);

// --- record_chat --------------------
/*
record_chat.h -- a conversation as turns: what others say, and the assistant's answer.

Roles: system (developer); user (human); assistant (gpt, bot, chatgpt, model), also as function_call; tool
(function, observation, ipython), which speaks to the model as a user does. Messages of one side in a row are
joined by a newline. A content may be a list of {"type": "text", "text"}.

Calls of tools (tool_calls, function_call) are what the assistant says: a line {"name": "f", "arguments":
{..}} each, behind its content. Arguments that are text of JSON stand as they are.

An answer that is empty or has "weight": 0 is read, not learnt; what follows the last one that is learnt is
left out.
*/

// --- record_template --------------------
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

// --- record_reader --------------------
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

// --- record_files --------------------
/*
record_files.h -- the files that prepare_data is told to read: files, folders, standard input.

A folder stands for all of its *.json, *.jsonl, *.ndjson, each also with .gz or .zst, by name, not for folders
in it.
"-" is standard input; that, and whatever cannot be read twice (a pipe), is copied to a nameless file in
$TMPDIR
(/tmp) first.
*/

typedef struct {
    char* path;
    int copy;           // descriptor of the nameless copy; -1: none
    int64_t num_bytes;  // packed, where it is packed
} RecordFile;

typedef struct {
    RecordFile* files;
    int32_t num_files, capacity;
    int64_t num_bytes;
    int32_t num_folders;  // in the folders that were named: they are not read
} RecordFiles;

// STATUS_IO names what is not there, and folders without such files.
Status record_files_open(RecordFiles* out, char** paths, int num_paths);
void record_files_close(RecordFiles* files);  // an all-zero one is fine

// Does its name say that it is JSON: *.json, *.jsonl, *.ndjson, packed or not?
bool record_files_is_data(const char* path);

// From its beginning.
Status record_files_read(const RecordFiles* files, int32_t file, const RecordOptions* options,
                         RecordReader* out);
