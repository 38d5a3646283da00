/*
generator.h -- what ./generate consists of: a model with its tokenizer, prompts, answers.

    GeneratorModel model;                       // generator_model.c: checkpoints, Hugging Face's files
    Prompts prompts;                            // generator_prompts.c: --prompt, lines of text, records
    generator_answer(&model, &options, &prompts);   // generator_answer.c: tokens, texts, scores

Whatever fails returns a Status with a message that says what to do (util/status.h).
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
    const char *inputs_field, *targets_field, *task_field;  // NULL: as data.json says, else recognised
    int32_t max_tokens, max_slots, threads;
    double temperature, top_p;
    int32_t top_k;
    int64_t seed;
    int32_t long_samples;  // 0: as data.json says; else a LongSamples + 1
    bool quiet, raw;       // raw: texts are continued as they are
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

// PART_TEXT is gone on with: no template stands around it, and nothing ends it.
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
    char* line;           // of text, as it came; NULL: of JSON
    void* record;         // json_t* of a record, given back with an answer
    char *task, *target;  // NULL: not known
} Prompt;

typedef struct {
    const GeneratorOptions* options;
    const char* name;  // where prompts come from, in messages
    RecordFiles files;
    int32_t next_file;
    RecordReader reader;
    bool is_reading;
    bool is_stdin, is_terminal;  // is_terminal: somebody types
    bool is_json;                // the file that is read
    bool is_at_end;
    RecordTemplate form;
    RecordFields fields;
    const char* task_field;
    bool joins_turns;     // of a chat: earlier turns are text of the input (encoder-decoder)
    int64_t num_bad;      // records that were passed over
    int64_t line_number;  // of what is typed
    char* line;
    size_t line_capacity;
    Arena arena;
} Prompts;

Status prompts_open(Prompts* out, const GeneratorOptions* options);
// Before the first: what the model's data had around its texts, and its names. `data` outlives the prompts.
Status prompts_set_form(Prompts* prompts, const DataJson* data, bool joins_turns);
// At the end *out is all zero: num_parts 0. Records that are bad are said, counted and passed over; a failure
// is final.
Status prompts_next(Prompts* prompts, Prompt* out);
void prompts_close(Prompts* prompts);
void prompt_free(Prompt* prompt);

// --- answers -----------------------------------------------------------------------------------------------

Status generator_answer(GeneratorModel* model, const GeneratorOptions* options, Prompts* prompts);
