/*
generator.h -- the parts of ./generate: a model with its tokenizer, prompts, answers.

    GeneratorModel model;                          // checkpoints, Hugging Face's files
    Prompts prompts;                               // --prompt, lines of text, records
    generator_answer(&model, &options, &prompts);  // tokens, texts, scores

Errors are a Status with a message that includes the remedy (util/status.h).
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "../dataloader/records/records.h"
#include "../dataloader/tokenizer/tokenizer.h"
#include "../llmc/completion.h"
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
    int32_t long_samples;  // 0: from data.json; else a LongSamples + 1
    bool quiet, raw;       // raw: texts are continued without a template
} GeneratorOptions;

// --- the model ---------------------------------------------------------------------------------------------

typedef struct {
    OpsContext* ops;
    Model model;
    TokenizerFolder tokens;
    char path[4096];  // of the file or folder that the weights came from
    int32_t start_token, end_token;
} GeneratorModel;

Status generator_model_open(GeneratorModel* out, const GeneratorOptions* options);
void generator_model_close(GeneratorModel* model);  // an all-zero one is fine

// --- prompts -----------------------------------------------------------------------------------------------

// PART_TEXT is continued: without template and end.
typedef enum { PART_INPUT, PART_ANSWER, PART_TEXT } PromptPartKind;

// Of a prompt: an input (with template), an earlier answer in a chat, or a text.
typedef struct {
    char* text;
    size_t num_bytes;
    PromptPartKind kind;
} PromptPart;

typedef struct {
    PromptPart* parts;
    int num_parts;
    char* line;           // original line of text; NULL: JSON
    void* record;         // json_t* of a record, written with the answer
    char *task, *target;  // NULL: not known
} Prompt;

typedef struct {
    const GeneratorOptions* options;
    const char* name;  // where prompts come from, in messages
    RecordFiles files;
    int32_t next_file;
    RecordReader reader;
    bool is_reading;
    bool is_stdin, is_terminal;  // is_terminal: interactive
    bool is_open, is_typed;      // is_typed: lines from standard input, one by one
    bool is_json;                // the file that is read
    bool is_at_end;
    RecordTemplate form;
    RecordFields fields;
    const char* task_field;
    bool joins_turns;     // of a chat: earlier turns are text of the input (encoder-decoder)
    int64_t num_bad;      // skipped records
    int64_t line_number;  // of typed input
    char* line;
    size_t line_capacity;
    Arena arena;
} Prompts;

Status prompts_open(Prompts* out, const GeneratorOptions* options);
// Called first: the template and field names of the model's data. `data` must outlive the prompts.
Status prompts_set_form(Prompts* prompts, const DataJson* data, bool joins_turns);
// At the end *out is all zero: num_parts 0. Bad records are reported, counted and skipped; a failure is
// final.
Status prompts_next(Prompts* prompts, Prompt* out);
void prompts_close(Prompts* prompts);
void prompt_free(Prompt* prompt);

// --- answers -----------------------------------------------------------------------------------------------

Status generator_answer(GeneratorModel* model, const GeneratorOptions* options, Prompts* prompts);
