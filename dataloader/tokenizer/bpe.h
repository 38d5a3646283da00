/*
bpe.h -- text to tokens: exactly GPT-2's byte-level byte-pair encoding, or Qwen2's, Llama 3's or SmolLM's.

    text --split pattern--> words --bytes--> symbols --merge the neighbours of lowest rank--> tokens

vocab.json maps each token to its id, merges.txt lists "left right", best first. Both spell bytes in GPT-2's
printable alphabet: the 188 visible Latin-1 characters stand for themselves, the other 68 bytes, in order, for
U+0100, U+0101 ... ("Ġ", U+0120, is the blank). All checks of the tables happen when they are opened.

Sources: Radford et al. 2019 (GPT-2), section 2.2, with the split pattern of its released encoder; merging as
in Sennrich et al. 2016, section 3.2. Equal to Hugging Face's `tokenizers`, token by token (test_tokenizer.c).
Special tokens inside a text, such as "<|endoftext|>", are ordinary text; bpe_encode never returns one. Qwen2
and Llama 3 split by other patterns, SmolLM and StarCoder digits from all
else. Llama 3 takes words that are tokens whole. Qwen2 composes characters first (NFC), for which the library
utf8proc is needed.

Cost: a cached word is one look-up; another of n bytes O(n log n). Encoding writes the cache, so one thread
per Bpe; everything else is read-only.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "../data_json.h"
#include "../../util/status.h"

#define BPE_EOT_TEXT "<|endoftext|>"

typedef struct Bpe Bpe;

// A growing array of tokens: all zero is empty; reuse it to avoid allocations.
typedef struct {
    int32_t* ids;
    int64_t num_tokens, capacity;
} BpeTokens;

// vocab.json and merges.txt, or, with merges NULL, a tokenizer.json as of GPT-2, Qwen2, Llama 3 or SmolLM,
// which has both. Other features (Unigram, other splits, normalizers ...) are refused by field; what does not
// affect encoding is ignored. end: the text of the end-of-text token; NULL: "<|endoftext|>" or
// "<|end_of_text|>". Messages name file, and token or line.
Status bpe_open(Bpe** out, const VocabFile* vocab, const VocabFile* merges, const char* end);
void bpe_close(Bpe* bpe);  // NULL is allowed

int32_t bpe_num_tokens(const Bpe* bpe);  // the vocabulary
int32_t bpe_eot_token(const Bpe* bpe);
bool bpe_is_special(const Bpe* bpe, int32_t token);  // no text becomes it
int32_t bpe_bos_token(const Bpe* bpe);               // before each text, as post_processor says; -1: none

// Appends the tokens of a text. STATUS_BAD_FORMAT if the text is not UTF-8; `out` is then unchanged.
Status bpe_encode(Bpe* bpe, const char* text, size_t num_bytes, BpeTokens* out);
Status bpe_tokens_add(BpeTokens* tokens, int32_t token);  // one more, e.g. the end-of-text token
void bpe_tokens_free(BpeTokens* tokens);

// The 1 ... 255 bytes of a token of the vocabulary, not NUL-terminated; valid until close.
const unsigned char* bpe_token_text(const Bpe* bpe, int32_t token, int32_t* num_bytes);
