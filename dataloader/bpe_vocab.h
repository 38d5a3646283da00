/*
bpe_vocab.h -- the tables of a byte-level tokenizer: bytes of every token, and which pairs merge in which
order.

vocab.json maps each token to its id, merges.txt lists "left right", best first. Both spell bytes in GPT-2's
printable alphabet: the 188 visible Latin-1 characters stand for themselves, the other 68 bytes, in order, for
U+0100, U+0101 ... ("Ġ", U+0120, is the blank). All checks happen here, so encoding cannot fail on a table.
*/
#pragma once

#include <stddef.h>
#include <stdint.h>
#include "../util/numbers.h"
#include "../util/status.h"

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

// One of the two tables as text; `name` stands in messages.
typedef struct {
    const char *name, *text;
    size_t num_bytes;
} BpeTable;

// Messages name file, and token or line. On failure *out is all zero.
Status bpe_vocab_load(BpeVocab* out, const char* vocab_path, const char* merges_path);
Status bpe_vocab_parse(BpeVocab* out, const BpeTable* vocab, const BpeTable* merges);
Status bpe_vocab_bytes(BpeVocab* out);  // id = byte, end-of-text 256, no merges
void bpe_vocab_free(BpeVocab* vocab);   // an all-zero one is fine

// The merge of two neighbours, NULL if they never merge.
static inline const BpeMerge* bpe_vocab_find_merge(const BpeVocab* vocab, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint32_t slot = (uint32_t)rng_mix(pair);; slot++) {
        const BpeMerge* merge = &vocab->merges[slot & vocab->merge_mask];
        if (merge->merged < 0) { return NULL; }
        if (merge->pair == pair) { return merge; }
    }
}
