/*
bpe.h -- GPT-2's byte-level byte-pair encoding: the tables (bytes of every token, ranked merges) and the
encoder.

vocab.json maps each token to its id, merges.txt lists "left right", best first. Both spell bytes in GPT-2's
printable alphabet: the 188 visible Latin-1 characters stand for themselves, the other 68 bytes, in order, for
U+0100, U+0101 ... ("Ġ", U+0120, is the blank). All checks happen here, so encoding cannot fail on a table.
*/
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "../../util/numbers.h"
#include "../../util/status.h"

#define BPE_EOT_TEXT "<|endoftext|>"

typedef struct {
    uint64_t pair;   // left id << 32 | right id
    int32_t rank;    // line of merges.txt: the lowest rank merges first
    int32_t merged;  // id of the two together; -1: free slot
} BpeMerge;

typedef struct {
    int32_t num_tokens;     // ids are 0 ... num_tokens - 1
    int32_t eot_token;      // id of BPE_EOT_TEXT; never produced by encoding
    int32_t byte_ids[256];  // token of each single byte
    unsigned char* text;    // bytes of all tokens, one after the other
    uint32_t* text_begin;   // [num_tokens + 1] offsets into text
    BpeMerge* merges;       // hash table by pair, linear probing; NULL: nothing merges
    uint32_t merge_mask;    // slots - 1, a power of two minus one
} BpeVocab;

// One of the two tables as text; `name` is used in messages.
typedef struct {
    const char *name, *text;
    size_t num_bytes;
} BpeTable;

// Messages name file, and token or line. On failure *out is all zero.
Status bpe_vocab_load(BpeVocab* out, const char* vocab_path, const char* merges_path);
Status bpe_vocab_parse(BpeVocab* out, const BpeTable* vocab, const BpeTable* merges);
void bpe_vocab_free(BpeVocab* vocab);  // an all-zero one is allowed

// The merge of two neighbours, NULL if they never merge.
static inline const BpeMerge* bpe_vocab_find_merge(const BpeVocab* vocab, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint32_t slot = (uint32_t)rng_mix(pair);; slot++) {
        const BpeMerge* merge = &vocab->merges[slot & vocab->merge_mask];
        if (merge->merged < 0) { return NULL; }
        if (merge->pair == pair) { return merge; }
    }
}

/*
Text to tokens and back: exactly GPT-2's byte-pair encoding, or plain bytes.

    text --split pattern--> words --bytes--> symbols --merge the neighbours of lowest rank--> tokens

Sources: Radford et al. 2019 (GPT-2), section 2.2, with the split pattern of its released encoder; merging as
in Sennrich et al. 2016, section 3.2. Equal to Hugging Face's `tokenizers`, token by token (test_tokenizer.c).
"<|endoftext|>" inside a text is ordinary text; bpe_encode never returns the end-of-text token.

Cost: a cached word is one look-up in bounded memory; a new word of n bytes O(n log n). Encoding writes the
cache, so one thread per Bpe; everything else is read-only.
*/

typedef struct Bpe Bpe;

// A growing array of tokens: all zero is empty; reuse it to avoid allocations.
typedef struct {
    int32_t* ids;
    int64_t num_tokens, capacity;
} BpeTokens;

Status bpe_open(Bpe** out, const char* vocab_path, const char* merges_path);  // vocab.json and merges.txt
Status bpe_open_tables(Bpe** out, const BpeTable* vocab, const BpeTable* merges);  // the same from memory
Status bpe_open_bytes(Bpe** out);  // tokens 0 ... 255 are bytes, 256 is end-of-text
void bpe_close(Bpe* bpe);          // NULL is allowed

int32_t bpe_num_tokens(const Bpe* bpe);  // the vocabulary
int32_t bpe_eot_token(const Bpe* bpe);

// Appends the tokens of a text. STATUS_BAD_FORMAT if the text is not UTF-8 (the bytes tokenizer takes
// anything), STATUS_OUT_OF_RANGE beyond 2^30 bytes; `out` is then unchanged.
Status bpe_encode(Bpe* bpe, const char* text, size_t num_bytes, BpeTokens* out);
Status bpe_tokens_add(BpeTokens* tokens, int32_t token);  // one more, e.g. the end-of-text token
void bpe_tokens_free(BpeTokens* tokens);

// Bytes of one token, not NUL-terminated; NULL for an id outside the vocabulary.
const unsigned char* bpe_token_text(const Bpe* bpe, int32_t token, int32_t* num_bytes);

// Text of many tokens in malloc'ed, NUL-terminated memory that the caller frees.
Status bpe_decode(const Bpe* bpe, const int32_t* tokens, int64_t num_tokens, char** text, size_t* num_bytes);
