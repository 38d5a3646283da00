/*
data_json.h -- what a folder's data.json says of its tokens and texts: which tokenizer, what ends a text, and
what stood around a question when the model learned to answer it.

    {"tokenizer": "gpt2", "tokens": 50257, "end": 50256, "padding": -1, "vocabulary": "0123456789abcdef",
     "input_end": "none", "template": {"name": "chatml",
        "prompt": "<|im_start|>user\n{inputs}<|im_end|>\n<|im_start|>assistant\n",
        "system": "<|im_start|>system\n{content}<|im_end|>\n",
        "user": "{system}<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n",
        "next": "\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n",
        "assistant": "{content}", "joint": "", "turn_end": "<|im_end|>"},
     "fields": {"inputs": "ask", "targets": "say", "task": "kind"}, "long_samples": "cut-input-start"}

prepare_data writes it beside tokenizer.bin; the trainer copies it, with the tokenizer's files, beside its
checkpoints, and ./generate reads it there. "template" and each of its texts may be missing: data_json_form().
{{ and }} are braces.

A question alone is `prompt`: {inputs} is its one field, or of several (which a record has to bring) that of
the inputs. A record is `record`, where there is one: a template of somebody's own, with the records' names;
or with a context of its own (Alpaca's input) `context`; else `prompt`. In a chat, the first turn's input is
`user`, with `system` as {system}, where somebody says that; a later one's is `next`. input_end comes behind
each, in tokens (sample_file.h), then the answer, `assistant`, and the token that ends texts. Where earlier
turns are part of an input (encoder-decoder models), `joint` stands before their answers and `turn_end` behind
them instead. "fields" are --inputs-field and the like, "long_samples" the option of this name; missing where
nobody gave them.
*/
#pragma once

#include <stdbool.h>
#include "../util/status.h"
#include "loader.h"
#include "sample_file.h"

typedef struct {
    SampleVocab vocab;
    // of the template; each owned, NULL: none
    char *name, *prompt, *record, *context, *system, *user, *next, *assistant, *joint, *turn_end;
    char *inputs_field, *targets_field, *task_field;  // the same
    LongSamples long_samples;
} DataJson;

// A text of the template, or what it is where there is none: what people say, line by line. One of DataJson's
// fields but `name`; `context` and `record`: NULL, the prompt's form serves.
#define data_json_form(data, field) ((data)->field != NULL ? (data)->field : data_json_plain.field)
extern const DataJson data_json_plain;

Status data_json_write(const DataJson* data, const char* folder);
// *is_there false: no such file (STATUS_OK, *out all zero).
Status data_json_read(DataJson* out, const char* folder, bool* is_there);
// The same from memory; `name` stands in messages.
Status data_json_parse(DataJson* out, const char* text, size_t num_bytes, const char* name);
char* data_json_text(const DataJson* data);  // what is written, free() it; NULL: a text is not UTF-8
void data_json_free(DataJson* data);         // an all-zero one is fine

// data.json and the tokenizer's files that `from` has, to the folder `to`; nothing where `from` has no
// data.json.
Status data_json_copy(const char* from, const char* to);
