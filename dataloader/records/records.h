/*
records.h -- samples from files of JSON, in the forms that data sets have.

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

Of two forms that fit, the one above is taken. A string is its characters, a number or a truth value what JSON
writes for it: 5, 0.1, true; numbers have as many digits as tell them from others, at most 17. The field
`task` may be missing or empty: the file's base name is used. Other fields are ignored. \u0000 in a text is
kept (not in a task's name); invalid UTF-8 and half surrogate pairs are bad records. A file of one object that
is no record, but has a list of objects, {"data": [{..}, ..]}, is that list.

Conversations. Roles: system (developer); user (human); assistant (gpt, bot, chatgpt, model), also as
function_call; tool (function, observation, ipython), which speaks to the model as a user does. Messages of
one side in a row are joined by a newline. A content may be a list of {"type": "text", "text"}. Calls of tools
(tool_calls, function_call) are what the assistant says: a line {"name": "f", "arguments": {..}} each, after
its content; arguments that are text of JSON stay as they are. An answer that is empty or has "weight": 0 is
read, not learnt; what follows the last one that is learnt is left out.

Templates, by name or as a text with {fields}:

    plain    system and newline, inputs | targets
    alpaca   Stanford Alpaca's text: "Below is an instruction ..", ### Instruction: .. ### Response: | targets
    chatml   <|im_start|>user, newline, inputs<|im_end|>, newline, <|im_start|>assistant, newline | targets
    llama2   [INST] <<SYS>> system <</SYS>> inputs [/INST] | blank, targets

Left of the bar is the input, right of it the target, which the end-of-text token ends in every template (in
ChatML it stands for <|im_end|>). Of a conversation each turn goes through the template, the system's message
in the first. A text has {inputs}, {targets}, {system} or any field of the record in braces; {{ and }} are
braces, \n, \t and \\ what they are in C. What stands before {targets} (or the field that is recognised as the
targets) is the input, the rest the target, in which only fixed text may follow. {system} stands in front
where the text does not have it.
*/
#pragma once

#include <jansson.h>
#include "../../util/arena.h"
#include "../data_json.h"
#include "json_values.h"

// UTF-8 with a NUL after it, which may have more within; text NULL: there is none.
typedef struct {
    const char* text;
    size_t num_bytes;
} RecordText;

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

// Fields with names of their own; both NULL: recognised. targets alone: a text.
// asks: of what is to be answered (./generate) the last turn's targets may be missing (their text is NULL
// then), a conversation may end with a question, and the field with the inputs decides the form.
typedef struct {
    const char *inputs, *targets;
    bool asks;
} RecordFields;

// "Alpaca (instruction, input -> output)", "body -> label"
enum { RECORD_FORM_CHARS = 160 };
void record_form_text(RecordForm form, const RecordFields* fields, char* out, size_t out_bytes);

// --- templates -------------------------------------------------------------------------------------------

typedef struct {
    DataTemplate form;   // of a custom one not split yet: system, joint and turn_end alone
    const char* custom;  // the user's text; NULL: none, or it has been split
    Arena arena;         // of the texts that are this one's
} RecordTemplate;

// targets_field: the records' name for the targets besides {targets}; NULL: as the records' form has it.
// STATUS_BAD_OPTION lists the names that there are, or what stands in the wrong place.
Status record_template_open(RecordTemplate* out, const char* text, const char* targets_field);
// The same of data.json's texts, which are borrowed. STATUS_BAD_OPTION: a brace that is no field.
Status record_template_of(RecordTemplate* out, const DataTemplate* form);
void record_template_close(RecordTemplate* form);  // an all-zero one is fine

// Is it a text of the user's own in which targets of this field stand, by that name or as {targets}?
bool record_template_names(const RecordTemplate* form, const char* targets_field);
// A custom text becomes data.json's texts, cut where the targets begin. `fields`: the records' names.
Status record_template_split(RecordTemplate* form, const RecordFields* fields);
// The text after the last field of an input, in the template itself. targets_field: as for open.
const char* record_template_tail(const RecordTemplate* form, const char* targets_field, size_t* num_bytes);
// The prompt's text with `text` for {inputs}; `values` stands in messages.
Status record_template_ask(const RecordTemplate* form, RecordText text, const JsonValues* values,
                           Arena* arena, RecordText* out);
// The first {field} from `at` on: its name, and what follows it; NULL: none.
const char* record_template_field(const char* at, const char** name, size_t* name_chars);

// --- reading ---------------------------------------------------------------------------------------------

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
    RecordText json;      // what stands in the file, without a NUL after it
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

Status record_reader_open(RecordReader* reader, const char* path, const RecordOptions* options);
// The stream is the reader's, also on failure; `path` names it in messages and, as a task, its samples. On
// failure there is nothing to close.
Status record_reader_open_stream(RecordReader* reader, FILE* stream, const char* path,
                                 const RecordOptions* options);
void record_reader_close(RecordReader* reader);  // an all-zero reader is fine
// The next record. STATUS_BAD_FORMAT: only this one is lost, the next call reads on. Any other failure is
// final.
Status record_reader_next(RecordReader* reader, Record* out);

// --- files -----------------------------------------------------------------------------------------------

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

// A folder stands for all of its *.json, *.jsonl, *.ndjson, each also with .gz or .zst, by name, not for
// folders in it. "-" is standard input; that, and whatever cannot be read twice (a pipe), is copied to a
// nameless file in $TMPDIR (/tmp) first. STATUS_IO names what is not there, and folders without such files.
Status record_files_open(RecordFiles* out, char** paths, int num_paths);
void record_files_close(RecordFiles* files);  // an all-zero one is fine
bool record_files_is_data(const char* path);  // does its name say that it is JSON?
// Opens a reader at the file's beginning.
Status record_files_read(const RecordFiles* files, int32_t file, const RecordOptions* options,
                         RecordReader* out);
