/*
records.h -- samples from JSON files in the usual formats of data sets (doc/data.md; the table in records.c).

If two formats fit, the first in the list is taken. Numbers and truth values become their JSON text: 5, 0.1,
true; numbers have the fewest digits that identify them. If the field `task` is missing or empty, the file's
base name is used. Other fields are ignored. \u0000 in a text is kept (not in a task's name); invalid UTF-8
and half surrogate pairs are bad records. A file with one object that is not a record but has a list of
objects,
{"data": [{..}, ..]}, is read as that list.

Conversations. Consecutive messages of one side are joined by a newline. A content may be a list of {"type":
"text", "text"}. Tool calls (tool_calls, function_call) are part of the assistant's text: one line {"name":
"f", "arguments": {..}} each, after its content; arguments given as JSON text are kept. An answer that is
empty or has "weight": 0 is read but not learnt; what follows the last learnt answer is dropped.

Templates, by name (plain, alpaca, chatml, llama2, llama3) or as a text with {fields}. Each turn of a
conversation goes through the template, the first one with the system's message. A user's own text may contain
{inputs}, {targets}, {system} or any field of the record in braces; {{ and }} are braces; \n, \t and \\ are as
in C. Its last field is {targets} or the field with the targets: the text before it is the input, the rest the
target. If the text has no {system}, the system's message is put in front. {<|name|>}, anything in <>, is a
special token of the tokenizer; of chatml and llama3 it is text where the tokenizer has none of this name.
*/
#pragma once

#include <jansson.h>
#include "../../util/arena.h"
#include "../data_json.h"
#include "json_values.h"

// UTF-8, NUL-terminated, may contain NULs; text NULL: absent.
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
    bool is_read;  // the targets are context, not learnt; never in the last turn
} RecordTurn;

// User-defined field names; both NULL: recognised. targets alone: a text. asks: for ./generate the last
// turn's targets may be missing (their text is NULL), a conversation may end with a question, and the field
// with the inputs decides the format.
typedef struct {
    const char *inputs, *targets;
    bool asks;
} RecordFields;

// "Alpaca (instruction, input -> output)", "body -> label"
enum { RECORD_FORM_CHARS = 160 };
void record_form_text(RecordForm form, const RecordFields* fields, char* out, size_t out_bytes);

// --- templates -------------------------------------------------------------------------------------------

typedef struct {
    DataTemplate form;
    char* custom;  // the text of a user's own one; NULL: none
    Arena arena;   // memory of its own texts
} RecordTemplate;

// targets_field: the records' name for the targets besides {targets}; NULL: as in the records' format.
// STATUS_BAD_OPTION lists the valid names, or what is misplaced.
Status record_template_open(RecordTemplate* out, const char* text, const char* targets_field);
// The same from data.json's texts, which are borrowed. STATUS_BAD_OPTION: a brace without a field.
Status record_template_of(RecordTemplate* out, const DataTemplate* form);
void record_template_close(RecordTemplate* form);  // an all-zero one is allowed

// The form's `prompt` of a user's own text, for data.json: its input with {inputs} where a prompt goes.
Status record_template_set_prompt(RecordTemplate* form, const char* inputs_field);
// The template's text after the last field of an input; in the template's memory.
Status record_template_tail(RecordTemplate* form, RecordText* out);
// A template's text without fields as it is tokenised: doubled braces are single ones, the name of a special
// token stands between two DATA_SPECIAL.
Status record_template_plain(RecordText* out, const char* begin, const char* end, Arena* arena);
// The prompt's text with `text` for {inputs}.
Status record_template_ask(const RecordTemplate* form, RecordText text, Arena* arena, RecordText* out);
// The input of turns[last] and all that was said before it, as one text (encoder-decoder).
Status record_template_join(const RecordTemplate* form, const RecordTurn* turns, int32_t last, Arena* arena,
                            RecordText* out);
// The first {field} from `at` on: its name, and the text after it; NULL: none.
const char* record_template_field(const char* at, const char** name, size_t* name_chars);

// --- reading ---------------------------------------------------------------------------------------------

enum { RECORD_MAX_TASK_BYTES = 255 };

typedef struct {
    RecordFields fields;
    const char* task_field;      // NULL: "task"
    const RecordTemplate* form;  // borrowed
} RecordOptions;

// The texts are valid UTF-8, NUL-terminated, and valid until the reader's next call.
typedef struct {
    RecordText task;
    RecordText json;      // the text in the file, without a NUL after it
    RecordFields fields;  // the fields used; NULL: of a chat
    RecordForm form;
    // [num_turns] after the template (for prompts, the last targets are unchanged); a text has one without
    // inputs
    const RecordTurn* turns;
    int32_t num_turns;
    bool end;  // end of the file: nothing else is set
} Record;

typedef struct {
    JsonValues values;
    RecordOptions options;
    char file_task[RECORD_MAX_TASK_BYTES + 1];  // base name without .jsonl, .json, .ndjson, .gz, .zst
    Arena arena;
    json_t* root;     // of the last record
    RecordText json;  // the same as text
    json_t* list;     // its elements are the records
    size_t list_at;
} RecordReader;

// The reader owns the descriptor, also on failure; `path` is used in messages and as the samples' task. On
// failure there is nothing to close.
Status record_reader_open(RecordReader* reader, int file, const char* path, const RecordOptions* options);
void record_reader_close(RecordReader* reader);  // an all-zero reader is allowed
// The next record. STATUS_BAD_FORMAT: only this one is lost, the next call continues. Any other failure is
// final.
Status record_reader_next(RecordReader* reader, Record* out);

// --- files -----------------------------------------------------------------------------------------------

typedef struct {
    char* path;
    int copy;           // descriptor of the unnamed copy; -1: none
    int64_t num_bytes;  // compressed size of compressed files
} RecordFile;

typedef struct {
    RecordFile* files;
    int32_t num_files;
    int64_t num_bytes;
    int32_t num_folders;  // subfolders of the given folders, which are not read
} RecordFiles;

// A folder stands for all its *.json, *.jsonl, *.ndjson, also with .gz or .zst, sorted by name, without
// subfolders. "-" is standard input; it, and whatever cannot be read twice (a pipe), is first copied to an
// unnamed file in $TMPDIR (/tmp). STATUS_IO names missing files and folders without such files.
Status record_files_open(RecordFiles* out, char** paths, int num_paths);
void record_files_close(RecordFiles* files);  // an all-zero one is allowed
bool record_files_is_data(const char* path);  // is the name that of a JSON file?
// Opens a reader at the file's beginning.
Status record_files_read(const RecordFiles* files, int32_t file, const RecordOptions* options,
                         RecordReader* out);
