/*
generator.h -- what ./generate consists of: a model with its tokenizer, prompts, answers.

    GeneratorModel model;                       // generator_model.c: checkpoints, Hugging Face's files
    Prompts prompts;                            // generator_prompts.c: --prompt, lines of text, lines of JSON
    generator_answer(&model, &options, &prompts);   // generator_answer.c: tokens, texts, scores

Whatever fails returns a Status with a message that says what to do (base/status.h).
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../dataloader/tokenizer/tokenizer_folder.h"
#include "../dynapipe_plugin/base/status.h"
#include "../llmc/completion.h"

typedef struct {
    const char* model;      // a folder of checkpoints, model_*.bin, a folder of Hugging Face's files
    const char* tokenizer;  // a folder; NULL: the model's
    const char *prompt, *file;
    int32_t max_tokens, max_slots, threads;
    double temperature, top_p;
    int32_t top_k;
    int64_t seed;
    bool quiet, raw;  // raw: texts are continued as they are
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

// Of a prompt: an input (with template), or an earlier answer in a chat.
typedef struct {
    char* text;
    size_t num_bytes;
    bool is_answer;
} PromptPart;

typedef struct {
    PromptPart* parts;
    int num_parts;
    char* line;           // of text, as it came; NULL: of JSON
    void* record;         // json_t* of a line of JSON, given back with an answer
    char *task, *target;  // NULL: not known
} Prompt;

typedef struct {
    FILE* stream;  // NULL: --prompt
    const char* name;
    const GeneratorOptions* options;
    DataJson forms;    // borrowed texts, all there but `context`
    bool joins_turns;  // of a chat: earlier turns are text of the input (encoder-decoder)
    bool is_terminal;  // somebody types
    bool is_json;      // by its first line
    bool is_at_end;
    int64_t line_number;
    char* line;
    size_t line_capacity;
} Prompts;

Status prompts_open(Prompts* out, const GeneratorOptions* options);
// Before the first: what the model's data had around its texts.
void prompts_set_form(Prompts* prompts, const DataJson* data, bool joins_turns);
// At the end *out is all zero: num_parts 0.
Status prompts_next(Prompts* prompts, Prompt* out);
void prompts_close(Prompts* prompts);
void prompt_free(Prompt* prompt);

// generator_chat.c: what was said, up to where the assistant answers. `chat`: json_t* of an array of
// messages.
Status prompt_set_chat(const Prompts* prompts, Prompt* out, const void* chat);
// `form` with text for {inputs} and {content}, and the record's fields, as a part of the prompt.
Status prompt_add_part(Prompt* out, const char* form, const char* text, size_t num_bytes, const void* record,
                       bool is_answer);
Status prompts_fail_line(const Prompts* prompts, const char* what);

// --- answers -----------------------------------------------------------------------------------------------

Status generator_answer(GeneratorModel* model, const GeneratorOptions* options, Prompts* prompts);
