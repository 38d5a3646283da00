/*
generator.h -- what ./generate does: a model with its tokenizer, prompts, answers. Errors are a Status with a
message that includes the remedy (util/status.h).
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "../dataloader/records/records.h"
#include "../util/status.h"

typedef struct {
    const char* model;      // a folder of checkpoints, model_*.bin, a folder of Hugging Face's files
    const char* tokenizer;  // a folder; NULL: the model's
    const char *prompt, *file;
    const char *inputs_field, *targets_field, *task_field;  // NULL: from data.json, else recognised
    int32_t max_tokens, max_slots, threads;
    double temperature, top_p;
    int32_t top_k;
    int64_t seed;
    int32_t long_samples;  // a LongSamples
    bool quiet, raw;       // raw: texts are continued without a template
    bool json, special_tokens;
} GeneratorOptions;

Status generator_run(const GeneratorOptions* options);

// --- prompts -----------------------------------------------------------------------------------------------

// PART_TEXT is continued: without template and end.
typedef enum { PART_INPUT, PART_ANSWER, PART_TEXT } PromptPartKind;

// Of a prompt: an input (with template), an earlier answer in a chat, or a text.
typedef struct {
    char* text;  // terminated
    size_t num_bytes;
    PromptPartKind kind;
} PromptPart;

typedef struct {
    PromptPart* parts;
    int num_parts;
    RecordText line, record;    // the line of text, or the record's JSON
    const char *task, *target;  // NULL: not known
    bool is_blank;              // a line of blanks, whose answer is empty
} Prompt;

typedef struct {
    const GeneratorOptions* options;
    const char* name;  // where prompts come from, in messages
    RecordFiles files;
    int32_t next_file;
    RecordReader reader;  // of the file that is read
    bool is_reading, is_json, is_at_end;
    bool is_stdin, is_terminal;  // is_terminal: interactive
    bool is_open, is_typed;      // is_typed: lines from standard input, one by one
    char* line;                  // the last of these
    size_t line_capacity;
    int64_t line_number;
    RecordTemplate form;
    RecordFields fields;
    const char* task_field;
    bool joins_turns;  // of a chat: earlier turns are text of the input (encoder-decoder)
    int64_t num_bad;   // skipped records
} Prompts;

Status prompts_open(Prompts* out, const GeneratorOptions* options);
// Called first: the template and field names of the model's data. `data` must outlive the prompts.
Status prompts_set_form(Prompts* prompts, const DataJson* data, bool joins_turns);
// At the end num_parts is 0. Texts are in `arena`. Bad records are reported, counted and skipped; a failure
// is final.
Status prompts_next(Prompts* prompts, Prompt* out, Arena* arena);
void prompts_close(Prompts* prompts);
