/*
tokenizer.h -- text to tokens by one of several tokenizers.

    bytes          the byte itself, 256 for end-of-text                          nothing to read
    gpt2           byte-level BPE (bpe.h)                                        vocab.json and merges.txt,
                   also Qwen2's or Llama 3's                                     or tokenizer.json
    byt5           the byte + 3; 0 padding, 1 </s>, 2 <unk>; 125 sentinels       nothing to read
    sentencepiece  pieces as in T5 (spiece.h), and sentinels after them         spiece.model
                   pieces as in Llama, without sentinels                         tokenizer.model

Ids are those of the sentencepiece library, of GPT-2's BPE and of ByT5's tokenizer, without special tokens:
text that spells one ("</s>", "<|endoftext|>") stays text. Templates name them.

T5's sentinels <extra_id_0> ... are ids that replace spans of text. T5 counts them from the end (<extra_id_0>
is the last id, 32099), ByT5's tokenizer in transformers upwards from 259. They are part of the vocabulary;
models have more rows (32128).

Encoding writes caches, so one thread per Tokenizer; everything else is read-only.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../data_json.h"
#include "../sample_file.h"
#include "bpe.h"
#include "../../util/status.h"

typedef struct {
    SampleTokenizer kind;
    const char* paths[2];  // gpt2: vocab.json, merges.txt, or tokenizer.json alone; sentencepiece: its model
    int32_t extra_ids;     // sentencepiece: sentinels after the pieces; T5 100, mT5 0; -1: by the model
    bool without_bos;      // tokenizer_begin() adds nothing
    const char* end;       // gpt2: the text of the end-of-text token; NULL: the usual one
} TokenizerOptions;

typedef struct Tokenizer Tokenizer;

// `options` is copied; its paths are borrowed until close.
Status tokenizer_open(Tokenizer** out, const TokenizerOptions* options);
void tokenizer_close(Tokenizer* tokenizer);  // NULL is allowed

// Ids, their number, end and padding. input_end is the default: end-of-text for encoder-decoder models
// (byt5, pieces), a newline for the others.
const SampleVocab* tokenizer_vocab(const Tokenizer* tokenizer);

// Appends the tokens of a text, without an end token. STATUS_BAD_FORMAT if BPE meets invalid UTF-8 (bytes
// accepts anything, SentencePiece uses U+FFFD), STATUS_OUT_OF_RANGE beyond 2^30 bytes; `out` is then
// unchanged.
Status tokenizer_encode(Tokenizer* tokenizer, const char* text, size_t num_bytes, BpeTokens* out);

// The same of a text that a template has made (DATA_SPECIAL); <extra_id_0> is T5's sentinel, if there is one.
// A name that no special token has is text, or, needs_all, STATUS_BAD_OPTION.
Status tokenizer_encode_filled(Tokenizer* tokenizer, const char* text, size_t num_bytes, bool needs_all,
                               BpeTokens* out);

// The same, and what ends it: a newline is text and may merge with what is before it, end-of-text is a token.
Status tokenizer_encode_ended(Tokenizer* tokenizer, const char* text, size_t num_bytes,
                              SampleInputEnd input_end, BpeTokens* out);

// Appends what stands before a text that is no continuation: <s> or <|begin_of_text|> where the model is a
// Llama's, else nothing.
Status tokenizer_begin(const Tokenizer* tokenizer, BpeTokens* out);

// The text of a token: 1 ... 255 bytes, not NUL-terminated; NULL for an id outside the vocabulary. In
// pieces, too, blanks are blanks: the first word of a text has one before it.
const unsigned char* tokenizer_token_text(const Tokenizer* tokenizer, int32_t token, int32_t* num_bytes);

bool tokenizer_is_sentinel(const Tokenizer* tokenizer, int32_t token);  // <extra_id_0> ...

// Writes FOLDER/tokenizer.bin in llm.c's format, version 2, little-endian: 256 int32 (0 magic 20240328, 1
// version 2, 2 number of tokens, 3 end-of-text token, then zeros), then one length byte and the bytes of
// every token.
Status tokenizer_save(const Tokenizer* tokenizer, const char* folder);

/*
The tokenizer of a folder: of prepared data, of checkpoints, or of Hugging Face's files; or "bytes", "byt5".

data.json names the tokenizer (data_json.h). Without it the files decide: spiece.model or tokenizer.model, a
tokenizer_config.json that names ByT5's, tokenizer.json, or vocab.json and merges.txt. input_end is then
end-of-text for encoder-decoder tokenizers and nothing for the others, whose prompts are continued texts.
*/

typedef struct {
    Tokenizer* tokenizer;
    DataJson data;        // vocab: of the tokenizer, with input_end as in the data if known
    char paths[2][4200];  // of the tokenizer's files
} TokenizerFolder;

// STATUS_BAD_FORMAT if the files differ from those recorded in data.json, STATUS_IO if there are none.
Status tokenizer_folder_open(TokenizerFolder* out, const char* folder);
void tokenizer_folder_close(TokenizerFolder* folder);  // an all-zero one is allowed
