/*
data_json.h -- the file data.json of a folder of prepared data: which tokenizer made the tokens, what ends an
input, and what stood around a question when the model learned to answer it.

    {"tokenizer": "gpt2", "tokens": 50257, "end": 50256, "padding": -1, "vocabulary": "0123456789abcdef",
     "input_end": "none", "template": {"name": "chatml",
        "prompt": "<|im_start|>user\n{inputs}<|im_end|>\n<|im_start|>assistant\n",
        "system": "<|im_start|>system\n{content}<|im_end|>\n",
        "user": "{system}<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n",
        "next": "\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n",
        "assistant": "{content}", "joint": "", "turn_end": "<|im_end|>"},
     "fields": {"inputs": "ask", "targets": "say", "task": "kind"}, "long_samples": "cut-input-start"}

prepare_data writes it beside tokenizer.bin; the trainer copies it, with the tokenizer's files, beside its
checkpoints, where ./generate reads it. "template" and each of its texts may be missing: those of data_plain
are meant then. "fields" are --inputs-field and the like, "long_samples" the option of this name.
*/
#pragma once

#include <stdbool.h>
#include "../util/status.h"
#include "loader.h"
#include "sample_file.h"

// What stands around what people say. {{ and }} are braces; the fields in single ones are named below.
typedef struct {
    const char* name;       // NULL: plain
    const char* prompt;     // a question without a record: {inputs}, and fields that a record has to bring
    const char* record;     // a record by a template of the user's own, with the records' names; or NULL
    const char* context;    // a record with a context: {instruction} and {context}; NULL: prompt
    const char* system;     // the system's message, {content}
    const char* user;       // the input of a conversation's first turn: {system} and {content}
    const char* next;       // of each later turn: {content}
    const char* assistant;  // an answer: {content}
    const char *joint, *turn_end;  // before and after an answer that is part of an input (encoder-decoder)
} DataTemplate;

extern const DataTemplate data_plain;  // what people say, line by line

typedef struct {
    SampleVocab vocab;
    DataTemplate form;                                      // read: complete
    const char *inputs_field, *targets_field, *task_field;  // NULL: not given
    LongSamples long_samples;
    void* owned;  // what the texts above lie in, of a file that was read
} DataJson;

Status data_json_write(const DataJson* data, const char* folder);
// *is_there false: no such file (STATUS_OK, and *out as if it were empty).
Status data_json_read(DataJson* out, const char* folder, bool* is_there);
// The same from memory; `name` stands in messages.
Status data_json_parse(DataJson* out, const char* text, size_t num_bytes, const char* name);
char* data_json_text(const DataJson* data);  // what is written, free() it; NULL: a text is not UTF-8
void data_json_free(DataJson* data);         // an all-zero one is fine

// data.json and the tokenizer's files that `from` has, to the folder `to`; nothing where `from` has no
// data.json.
Status data_json_copy(const char* from, const char* to);
