/*
hf_tokenizer.h -- Hugging Face's tokenizer.json, for the two kinds that can be reproduced exactly.

    Unigram   as in T5: a SentencePiece character map, words split at white space, Metaspace.
              Converted back to a SentencePiece model for the sentencepiece library.
    BPE       as in GPT-2: byte-level, GPT-2's split pattern, no normalizer. Converted to the tables of bpe.h.

Other features (WordPiece, other splits, byte fallback, non-special tokens that are searched in texts ...) are
refused with a message that names the field and what is supported. "truncation", "padding" and "decoder" do
not affect encoding and are ignored; special tokens are not searched in texts.
*/
#pragma once

#include <stddef.h>
#include "../../util/status.h"

typedef enum { HF_UNIGRAM, HF_BPE } HfKind;

typedef struct {
    HfKind kind;
    char* model;  // HF_UNIGRAM: a serialised ModelProto (spiece.h), model_bytes long
    size_t model_bytes;
    char *vocab, *merges;  // HF_BPE: the contents of vocab.json and merges.txt, NUL-terminated
} HfTokenizer;

Status hf_tokenizer_open(HfTokenizer* out, const char* path);
// The same from memory; `name` is used in messages. On failure *out is all zero.
Status hf_tokenizer_parse(HfTokenizer* out, const char* name, const char* text, size_t num_bytes);
void hf_tokenizer_close(HfTokenizer* hf);  // an all-zero one is allowed
