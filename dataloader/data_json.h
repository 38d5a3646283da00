/*
data_json.h -- the file data.json of a folder of prepared data: the tokenizer, what ends an input, and the
template.

    {"tokenizer": "gpt2", "tokens": 50257, "end": 50256, "padding": -1, "vocabulary": "0123456789abcdef",
     "input_end": "none", "template": {"name": "chatml",
        "prompt": "<|im_start|>user\n{inputs}<|im_end|>\n<|im_start|>assistant\n",
        "system": "<|im_start|>system\n{content}<|im_end|>\n",
        "user": "{system}<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n",
        "next": "\n<|im_start|>user\n{content}<|im_end|>\n<|im_start|>assistant\n",
        "assistant": "{content}", "joint": "", "turn_end": "<|im_end|>"},
     "fields": {"inputs": "ask", "targets": "say", "task": "kind"}}

prepare_data writes it beside tokenizer.bin. The trainer copies it, with the tokenizer's files, beside its
checkpoints, where ./generate reads it. A missing "template" or text of it defaults to that of data_plain.
"fields" are --inputs-field and the like.
*/
#pragma once

#include <stdbool.h>
#include "../util/status.h"
#include "sample_file.h"

// The text around messages. {{ and }} are braces; the fields in single braces are named below.
typedef struct {
    const char* name;              // NULL: plain
    const char* prompt;            // without a record: {inputs}, and fields that a record must have
    const char* record;            // a record by a user's own template, with the records' names; or NULL
    const char* context;           // a record with a context: {instruction} and {context}; NULL: prompt
    const char* system;            // the system's message, {content}
    const char* user;              // the input of a conversation's first turn: {system} and {content}
    const char* next;              // of each later turn: {content}
    const char* assistant;         // an answer: {content}
    const char *joint, *turn_end;  // before and after an answer that is part of an input (encoder-decoder)
} DataTemplate;

// Before and after the name of a special token in a text that a template has made. No text in UTF-8 has it.
#define DATA_SPECIAL '\xff'

extern const DataTemplate data_plain;  // the messages, line by line

typedef struct {
    SampleVocab vocab;
    DataTemplate form;                                      // complete after reading
    const char *inputs_field, *targets_field, *task_field;  // NULL: not given
    void* owned;                                            // memory of the texts of a file
} DataJson;

Status data_json_write(const DataJson* data, const char* folder);
// *is_there false: no such file (STATUS_OK, and *out is empty).
Status data_json_read(DataJson* out, const char* folder, bool* is_there);
// The same from memory; `name` is used in messages.
Status data_json_parse(DataJson* out, const char* text, size_t num_bytes, const char* name);
char* data_json_text(const DataJson* data);  // file contents, free() it; NULL: a text is not UTF-8
void data_json_free(DataJson* data);         // an all-zero one is allowed

// A hash of what maps text to ids: tokens with ids, and merges, of GPT-2's vocab.json and merges.txt (NULL:
// of a tokenizer.json, which has both); pieces with scores, without sentinels, of a spiece.model (or a
// tokenizer.json of pieces). Never 0. `name` is used in messages.
typedef struct {
    const char *name, *text;
    size_t num_bytes;
} VocabFile;
Status vocab_hash_json(uint64_t* out, SampleTokenizer* kind, const VocabFile* vocab, const VocabFile* merges);
Status vocab_hash_pieces(uint64_t* out, const VocabFile* model);
// The same of a folder as Hugging Face has it, and its kind; TOKENIZER_UNKNOWN: no tokenizer there that is
// known here. ByT5's has no files, so no hash (0).
Status vocab_hash_folder(uint64_t* out, SampleTokenizer* kind, const char* folder);
// STATUS_MISMATCH: the folder's tokenizer does not map text to ids as that of the data, whose kind and hash
// are given, did. `model` and `data` name the two in the message, such as "-e gpt2/". *is_known: both are.
Status vocab_check_folder(bool* is_known, const char* folder, const char* model, const char* data,
                          SampleTokenizer kind, uint64_t hash);
const char* tokenizer_name(SampleTokenizer kind);
// Of a folder's tokenizer_config.json, all defaults without one, STATUS_BAD_FORMAT of a broken one: does it
// name ByT5's tokenizer, is "add_bos_token" false? "extra_ids"; -1: not said. The text of "eos_token"; "":
// not said.
typedef struct {
    bool is_byt5, without_bos;
    int32_t extra_ids;
    char end[64];
} TokenizerConfig;
Status tokenizer_config_read(TokenizerConfig* out, const char* folder);

// The files of a model's tokenizer, all that transformers' AutoTokenizer takes, those that are there.
// foreign: the first in `folder` that `from` does not have, left by an earlier run; NULL: none.
Status tokenizer_files_copy(const char* from, const char* to);
const char* tokenizer_files_foreign(const char* from, const char* folder);

// Copies data.json and its tokenizer files from `from` to the folder `to`; nothing if there is no
// data.json.
Status data_json_copy(const char* from, const char* to);
