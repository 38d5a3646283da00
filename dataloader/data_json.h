/*
data_json.h -- what a folder's data.json says of its tokens and texts: which tokenizer, what ends a text, and
what stood around a question when the model learned to answer it.

    {"tokenizer": "gpt2", "tokens": 50257, "end": 50256, "padding": -1, "vocabulary": "0123456789abcdef",
     "input_end": "newline", "template": {"name": "chatml",
        "prompt": "<|im_start|>user\n{inputs}<|im_end|>\n<|im_start|>assistant\n",
        "system": "<|im_start|>system\n{content}<|im_end|>\n", "user":
"<|im_start|>user\n{content}<|im_end|>\n", "assistant": "<|im_start|>assistant\n{content}<|im_end|>\n"}}

prepare_data writes it beside tokenizer.bin; the trainer copies it, with the tokenizer's files, beside its
checkpoints, and ./generate reads it there. "template" and each of its texts may be missing: a question is
then its text alone. {inputs} is the question, {content} what somebody says in a chat; before an answer stands
what "assistant" has before its {content}. input_end comes behind all of that, in tokens (sample_file.h).
*/
#pragma once

#include <stdbool.h>
#include "../dynapipe_plugin/base/status.h"
#include "sample_file.h"

typedef struct {
    SampleVocab vocab;
    // of the template; each owned, NULL: none
    char *name, *prompt, *system, *user, *assistant;
} DataJson;

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

// `form` with each {field} replaced by what `find` says, in malloc'ed memory; NULL: no memory. A field that
// `find` does not know (NULL) stays as it is. *num_bytes: a text may have NULs within.
typedef const char* (*DataFieldFind)(void* context, const char* field, size_t field_chars, size_t* num_bytes);
char* data_json_fill(const char* form, DataFieldFind find, void* context, size_t* num_bytes);
