/*
hf_tokenizer.h -- Hugging Face's tokenizer.json: the two kinds that can be repeated token by token, no other.

    Unigram   as of T5: a SentencePiece character map, words split at white space, Metaspace. It becomes the
              SentencePiece model that it was once made from, so the sentencepiece library does the work.
    BPE       as of GPT-2: byte-level, GPT-2's split pattern, no normalizer. It becomes the tables of bpe.h.

What a file asks for beyond that (WordPiece, other splits, byte fallback, tokens that are searched in texts
without being special ...) is refused with a message that names the field and what would work. "truncation",
"padding" and "decoder" do not change what a text becomes and are not looked at; special tokens are not
searched in texts.
*/
#pragma once

#include <stddef.h>
#include "../../util/status.h"

typedef enum { HF_UNIGRAM, HF_BPE } HfKind;

typedef struct {
    HfKind kind;
    char* model;  // HF_UNIGRAM: a serialised ModelProto (spiece.h), model_bytes long
    size_t model_bytes;
    char *vocab, *merges;  // HF_BPE: what vocab.json and merges.txt would hold, NUL-terminated
} HfTokenizer;

Status hf_tokenizer_open(HfTokenizer* out, const char* path);
// The same from memory; `name` stands in messages. On failure *out is all zero.
Status hf_tokenizer_parse(HfTokenizer* out, const char* name, const char* text, size_t num_bytes);
void hf_tokenizer_close(HfTokenizer* hf);  // an all-zero one is fine
