/*
tokenizer.h -- text to tokens, by one of several tokenizers: what prepare_data knows of them.

    bytes          the byte itself, 256 for end-of-text                          nothing to read
    gpt2           byte-level BPE (bpe.h)                                        vocab.json and merges.txt
    byt5           the byte + 3; 0 padding, 1 </s>, 2 <unk>; 125 sentinels       nothing to read
    sentencepiece  pieces as of T5 (spiece.h), and sentinels after them         spiece.model
    hf             either BPE or pieces (hf_tokenizer.h)                         tokenizer.json

Ids are those of the sentencepiece library, of GPT-2's BPE and of ByT5's tokenizer, without special tokens:
text that spells one ("</s>", "<extra_id_0>") stays text. Hugging Face's Unigram is SentencePiece written
anew, and differs in rare texts: it splits words at U+0085 too, drops what combines with a character that the
character map changes, and of two ways to cut a text whose scores are equal but for rounding takes the other
one (in 38 of 20968 texts of a mixture of tasks; the library's own versions differ in as many).

T5's sentinels <extra_id_0> ... are ids that stand for spans of text. T5 counts them from the end
(<extra_id_0> is the last id, 32099), ByT5's tokenizer in transformers upwards from 259. They count as part of
the vocabulary; models have still more rows (32128).

Thread rule: encoding writes caches, so one Tokenizer, one thread; everything else is read-only.
*/
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "../data_json.h"
#include "../sample_file.h"
#include "bpe.h"
#include "../../util/status.h"

#define TOKENIZER_CHOICES "bytes|gpt2|byt5|sentencepiece|hf"
typedef enum { CHOICE_BYTES, CHOICE_GPT2, CHOICE_BYT5, CHOICE_SENTENCEPIECE, CHOICE_HF } TokenizerChoice;

typedef struct {
    TokenizerChoice choice;
    const char *vocab, *merges;  // gpt2: paths of vocab.json and merges.txt
    const char* model;           // sentencepiece: path of spiece.model
    int32_t extra_ids;           // sentencepiece: sentinels after the pieces; T5 100, mT5 0
    const char* file;            // hf: path of tokenizer.json
} TokenizerOptions;

typedef struct Tokenizer Tokenizer;

// `options` is copied, its paths are borrowed until close.
Status tokenizer_open(Tokenizer** out, const TokenizerOptions* options);
void tokenizer_close(Tokenizer* tokenizer);  // NULL is fine

// Ids, their number, the end, padding; input_end is what suits: end-of-text for encoder-decoder models (byt5,
// pieces), a newline for the others.
const SampleVocab* tokenizer_vocab(const Tokenizer* tokenizer);

// Append the tokens of a text, without any end. STATUS_BAD_FORMAT where BPE meets text that is not UTF-8
// (bytes are taken as they are; to SentencePiece they are U+FFFD), STATUS_OUT_OF_RANGE beyond 2^30 bytes;
// `out` then holds what it held before.
Status tokenizer_encode(Tokenizer* tokenizer, const char* text, size_t num_bytes, BpeTokens* out);

// What a token looks like: 1 ... 255 bytes, not NUL-terminated; NULL for an id outside the vocabulary. A
// blank is a blank, also in pieces: the first word of a text has one before it.
const unsigned char* tokenizer_token_text(const Tokenizer* tokenizer, int32_t token, int32_t* num_bytes);

// Write FOLDER/tokenizer.bin in llm.c's format, version 2, little-endian: 256 int32 (0 magic 20240328, 1
// version 2, 2 number of tokens, 3 end-of-text token, then zeros), then one length byte and the bytes of
// every token. And copy the files that were read beside it, as vocab.json, merges.txt, spiece.model,
// tokenizer.json.
Status tokenizer_save(const Tokenizer* tokenizer, const char* folder);

// A file in the folder that belongs to another tokenizer, by name (an earlier run left it there); NULL: none.
const char* tokenizer_foreign_file(const Tokenizer* tokenizer, const char* folder);

/*
The tokenizer whose files lie in a folder: of prepared data, beside checkpoints, or of
Hugging Face's files.

data.json says which tokenizer it is (data_json.h). Without one the files do: tokenizer.json, spiece.model
(with T5's 100 sentinels), vocab.json and merges.txt, or a tokenizer_config.json that names ByT5's. input_end
is then end-of-text for encoder-decoder tokenizers and nothing for the others: texts are continued.
*/

typedef struct {
    Tokenizer* tokenizer;
    DataJson data;        // vocab: of the tokenizer and, where it is known, input_end as the data has it
    char paths[2][4200];  // of the tokenizer's files
} TokenizerFolder;

// STATUS_BAD_FORMAT where the files are not those that data.json was written with, STATUS_IO where there are
// none.
Status tokenizer_folder_open(TokenizerFolder* out, const char* folder);
void tokenizer_folder_close(TokenizerFolder* folder);  // an all-zero one is fine
