#include "bpe.h"

#define PCRE2_CODE_UNIT_WIDTH 8
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <pcre2.h>

#include "../util/numbers.h"

// White space is spelled out: PCRE2's own \s has U+180E besides, which Unicode took out of it in version 6.3.
#define SPACES \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPLIT_PATTERN                                                           \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACES "\\p{L}\\p{N}]+|" \
    "[" SPACES "]+(?![^" SPACES "])|[" SPACES "]+"

enum {
    MAX_TEXT_BYTES = 1 << 30,
    CACHE_SLOTS = 1 << 17,  // words known at a time: half of it; then the cache begins anew
    CACHE_WORD_BYTES = 64,  // longer words are rare and not kept
};

typedef struct {
    int32_t id;           // -1: merged into its left neighbour
    uint32_t prev, next;  // num_symbols: none
} Symbol;

typedef struct {
    uint32_t text_begin, tokens_begin;  // into the cache's text and tokens
    uint32_t hash;
    uint16_t num_bytes, num_tokens;  // num_bytes 0: free
} CacheEntry;

struct Bpe {
    BpeVocab vocab;
    pcre2_code* split;  // NULL: the bytes tokenizer
    pcre2_match_data* match;

    CacheEntry* cache;          // [CACHE_SLOTS], linear probing
    unsigned char* cache_text;  // [CACHE_SLOTS / 2 * CACHE_WORD_BYTES]
    int32_t* cache_tokens;      // as many: a token is at least one byte
    uint32_t num_cached, cached_text_bytes, num_cached_tokens;

    Symbol* symbols;  // one word in the making
    uint64_t* heap;   // rank << 32 | position of the left symbol; the lowest on top
    size_t word_capacity, heap_length;
};

// --- growing ---------------------------------------------------------------------------------------------

static Status tokens_reserve(BpeTokens* tokens, int64_t more) {
    int64_t needed = tokens->num_tokens + more;
    if (needed <= tokens->capacity) { return STATUS_OK; }
    int64_t capacity = needed + needed / 2 + 64;
    int32_t* ids = realloc(tokens->ids, (size_t)capacity * sizeof ids[0]);
    if (ids == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %lld tokens", (long long)capacity); }
    tokens->ids = ids;
    tokens->capacity = capacity;
    return STATUS_OK;
}

Status bpe_tokens_add(BpeTokens* tokens, int32_t token) {
    TRY(tokens_reserve(tokens, 1));
    tokens->ids[tokens->num_tokens++] = token;
    return STATUS_OK;
}

void bpe_tokens_free(BpeTokens* tokens) {
    free(tokens->ids);
    *tokens = (BpeTokens){0};
}

// A word of n symbols has n - 1 pairs at first, and each of at most n - 1 merges adds two.
static Status word_reserve(Bpe* bpe, size_t num_symbols) {
    if (num_symbols <= bpe->word_capacity) { return STATUS_OK; }
    size_t capacity = num_symbols + num_symbols / 2 + 64;
    free(bpe->symbols);
    free(bpe->heap);
    bpe->word_capacity = 0;
    bpe->symbols = malloc(capacity * sizeof bpe->symbols[0]);
    bpe->heap = malloc(3 * capacity * sizeof bpe->heap[0]);
    if (bpe->symbols == NULL || bpe->heap == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a word of %zu bytes", num_symbols);
    }
    bpe->word_capacity = capacity;
    return STATUS_OK;
}

// --- merging one word ------------------------------------------------------------------------------------

static void heap_push(Bpe* bpe, uint64_t key) {
    size_t i = bpe->heap_length++;
    for (; i > 0 && bpe->heap[(i - 1) / 2] > key; i = (i - 1) / 2) { bpe->heap[i] = bpe->heap[(i - 1) / 2]; }
    bpe->heap[i] = key;
}

static uint64_t heap_pop(Bpe* bpe) {
    uint64_t top = bpe->heap[0], key = bpe->heap[--bpe->heap_length];
    size_t i = 0, length = bpe->heap_length;
    for (;;) {
        size_t child = 2 * i + 1;
        if (child + 1 < length && bpe->heap[child + 1] < bpe->heap[child]) { child++; }
        if (child >= length || bpe->heap[child] >= key) { break; }
        bpe->heap[i] = bpe->heap[child];
        i = child;
    }
    bpe->heap[i] = key;
    return top;
}

static void push_pair(Bpe* bpe, uint32_t left) {
    const Symbol* symbol = &bpe->symbols[left];
    const BpeMerge* merge = bpe_vocab_find_merge(&bpe->vocab, symbol->id, bpe->symbols[symbol->next].id);
    if (merge != NULL) { heap_push(bpe, (uint64_t)(uint32_t)merge->rank << 32 | left); }
}

// Lowest rank first, leftmost first among equals; a heap entry whose pair is gone meanwhile is passed over.
static Status encode_word(Bpe* bpe, const unsigned char* word, uint32_t num_symbols, BpeTokens* out) {
    TRY(word_reserve(bpe, num_symbols));
    TRY(tokens_reserve(out, num_symbols));
    Symbol* symbols = bpe->symbols;
    const uint32_t none = num_symbols;
    for (uint32_t i = 0; i < num_symbols; i++) {
        symbols[i] = (Symbol){bpe->vocab.byte_ids[word[i]], i > 0 ? i - 1 : none, i + 1};
    }
    bpe->heap_length = 0;
    for (uint32_t i = 0; i + 1 < num_symbols; i++) { push_pair(bpe, i); }
    while (bpe->heap_length > 0) {
        uint64_t key = heap_pop(bpe);
        uint32_t at = (uint32_t)key;
        Symbol* left = &symbols[at];
        if (left->id < 0 || left->next == none) { continue; }
        Symbol* right = &symbols[left->next];
        const BpeMerge* merge = bpe_vocab_find_merge(&bpe->vocab, left->id, right->id);
        if (merge == NULL || (uint32_t)merge->rank != key >> 32) { continue; }
        left->id = merge->merged;
        left->next = right->next;
        right->id = -1;
        if (left->prev != none) { push_pair(bpe, left->prev); }
        if (left->next != none) {
            symbols[left->next].prev = at;
            push_pair(bpe, at);
        }
    }
    for (uint32_t i = 0; i != none; i = symbols[i].next) { out->ids[out->num_tokens++] = symbols[i].id; }
    return STATUS_OK;
}

// --- words met before ------------------------------------------------------------------------------------

static void cache_store(Bpe* bpe, CacheEntry* entry, uint32_t hash, const unsigned char* word,
                        uint32_t num_bytes, const int32_t* tokens, int64_t num_tokens) {
    if (bpe->num_cached == CACHE_SLOTS / 2) {
        memset(bpe->cache, 0, CACHE_SLOTS * sizeof bpe->cache[0]);
        bpe->num_cached = bpe->cached_text_bytes = bpe->num_cached_tokens = 0;
        entry = &bpe->cache[hash & (CACHE_SLOTS - 1)];
    }
    *entry = (CacheEntry){.text_begin = bpe->cached_text_bytes,
                          .tokens_begin = bpe->num_cached_tokens,
                          .hash = hash,
                          .num_bytes = (uint16_t)num_bytes,
                          .num_tokens = (uint16_t)num_tokens};
    memcpy(bpe->cache_text + bpe->cached_text_bytes, word, num_bytes);
    memcpy(bpe->cache_tokens + bpe->num_cached_tokens, tokens, (size_t)num_tokens * sizeof tokens[0]);
    bpe->cached_text_bytes += num_bytes;
    bpe->num_cached_tokens += (uint32_t)num_tokens;
    bpe->num_cached++;
}

static Status encode_word_cached(Bpe* bpe, const unsigned char* word, uint32_t num_bytes, BpeTokens* out) {
    if (num_bytes > CACHE_WORD_BYTES) { return encode_word(bpe, word, num_bytes, out); }
    uint32_t hash = (uint32_t)hash_finish(hash_bytes(HASH_SEED, word, num_bytes));
    uint32_t slot = hash & (CACHE_SLOTS - 1);
    for (; bpe->cache[slot].num_bytes > 0; slot = (slot + 1) & (CACHE_SLOTS - 1)) {
        const CacheEntry* entry = &bpe->cache[slot];
        if (entry->hash == hash && entry->num_bytes == num_bytes &&
            memcmp(bpe->cache_text + entry->text_begin, word, num_bytes) == 0) {
            TRY(tokens_reserve(out, entry->num_tokens));
            memcpy(out->ids + out->num_tokens, bpe->cache_tokens + entry->tokens_begin,
                   entry->num_tokens * sizeof out->ids[0]);
            out->num_tokens += entry->num_tokens;
            return STATUS_OK;
        }
    }
    int64_t first = out->num_tokens;
    TRY(encode_word(bpe, word, num_bytes, out));
    cache_store(bpe, &bpe->cache[slot], hash, word, num_bytes, out->ids + first, out->num_tokens - first);
    return STATUS_OK;
}

// --- texts -----------------------------------------------------------------------------------------------

static Status encode_split(Bpe* bpe, const unsigned char* text, size_t num_bytes, BpeTokens* out) {
    uint32_t options = 0;  // the first match checks the whole text for UTF-8
    for (size_t begin = 0; begin < num_bytes; options = PCRE2_NO_UTF_CHECK) {
        int rc = pcre2_match(bpe->split, text, num_bytes, begin, options, bpe->match, NULL);
        if (rc <= 0) {
            char reason[120];
            pcre2_get_error_message(rc, (PCRE2_UCHAR*)reason, sizeof reason);
            size_t at = rc <= PCRE2_ERROR_UTF8_ERR1 && rc >= PCRE2_ERROR_UTF8_ERR21
                            ? pcre2_get_startchar(bpe->match)
                            : begin;
            return FAIL(STATUS_BAD_FORMAT, "text cannot be split at byte %zu: %s", at, reason);
        }
        size_t end = pcre2_get_ovector_pointer(bpe->match)[1];
        TRY(encode_word_cached(bpe, text + begin, (uint32_t)(end - begin), out));
        begin = end;
    }
    return STATUS_OK;
}

Status bpe_encode(Bpe* bpe, const char* text, size_t num_bytes, BpeTokens* out) {
    if (num_bytes > MAX_TEXT_BYTES) {
        return FAIL(STATUS_OUT_OF_RANGE, "a text of %zu bytes ---> split it into texts under %d bytes",
                    num_bytes, MAX_TEXT_BYTES);
    }
    const unsigned char* bytes = (const unsigned char*)text;
    int64_t before = out->num_tokens;
    if (bpe->split == NULL) {
        TRY(tokens_reserve(out, (int64_t)num_bytes));
        for (size_t i = 0; i < num_bytes; i++) { out->ids[out->num_tokens++] = bytes[i]; }
        return STATUS_OK;
    }
    Status status = encode_split(bpe, bytes, num_bytes, out);
    if (status != STATUS_OK) { out->num_tokens = before; }
    return status;
}

const unsigned char* bpe_token_text(const Bpe* bpe, int32_t token, int32_t* num_bytes) {
    if (token < 0 || token >= bpe->vocab.num_tokens) { return NULL; }
    const uint32_t* begin = &bpe->vocab.text_begin[token];
    *num_bytes = (int32_t)(begin[1] - begin[0]);
    return bpe->vocab.text + begin[0];
}

Status bpe_decode(const Bpe* bpe, const int32_t* tokens, int64_t num_tokens, char** text, size_t* num_bytes) {
    size_t total = 0;
    int32_t length = 0;
    for (int64_t i = 0; i < num_tokens; i++) {
        if (bpe_token_text(bpe, tokens[i], &length) == NULL) {
            return FAIL(STATUS_OUT_OF_RANGE, "token %d at position %lld is outside the vocabulary of %d",
                        tokens[i], (long long)i, bpe->vocab.num_tokens);
        }
        total += (size_t)length;
    }
    char* out = malloc(total + 1);
    if (out == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a text of %zu bytes", total); }
    char* at = out;
    for (int64_t i = 0; i < num_tokens; i++) {
        const unsigned char* bytes = bpe_token_text(bpe, tokens[i], &length);
        memcpy(at, bytes, (size_t)length);
        at += length;
    }
    *at = '\0';
    *text = out;
    *num_bytes = total;
    return STATUS_OK;
}

// --- open, close, save -----------------------------------------------------------------------------------

static Status compile_split(Bpe* bpe) {
    int error;
    PCRE2_SIZE offset;
    bpe->split = pcre2_compile((PCRE2_SPTR)SPLIT_PATTERN, PCRE2_ZERO_TERMINATED,
                               PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, NULL);
    if (bpe->split == NULL) {
        char reason[120];
        pcre2_get_error_message(error, (PCRE2_UCHAR*)reason, sizeof reason);
        return FAIL(STATUS_BAD_FORMAT, "split pattern: %s ---> PCRE2 must be built with Unicode support",
                    reason);
    }
    (void)pcre2_jit_compile(bpe->split,
                            PCRE2_JIT_COMPLETE);  // without a JIT the interpreter matches the same
    bpe->match = pcre2_match_data_create_from_pattern(bpe->split, NULL);
    bpe->cache = calloc(CACHE_SLOTS, sizeof bpe->cache[0]);
    bpe->cache_text = malloc((size_t)CACHE_SLOTS / 2 * CACHE_WORD_BYTES);
    bpe->cache_tokens = malloc((size_t)CACHE_SLOTS / 2 * CACHE_WORD_BYTES * sizeof bpe->cache_tokens[0]);
    if (bpe->match == NULL || bpe->cache == NULL || bpe->cache_text == NULL || bpe->cache_tokens == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for the tokenizer's cache");
    }
    return STATUS_OK;
}

// Takes the vocabulary over, also on failure.
static Status open_vocab(Bpe** out, BpeVocab* vocab, bool splits) {
    Bpe* bpe = calloc(1, sizeof *bpe);
    if (bpe == NULL) {
        bpe_vocab_free(vocab);
        return FAIL(STATUS_NO_MEMORY, "no memory for a tokenizer");
    }
    bpe->vocab = *vocab;
    Status status = splits ? compile_split(bpe) : STATUS_OK;
    if (status != STATUS_OK) {
        bpe_close(bpe);
        return status;
    }
    *out = bpe;
    return STATUS_OK;
}

Status bpe_open(Bpe** out, const char* vocab_path, const char* merges_path) {
    BpeVocab vocab;
    TRY(bpe_vocab_load(&vocab, vocab_path, merges_path));
    return open_vocab(out, &vocab, true);
}

Status bpe_open_tables(Bpe** out, const BpeTable* vocab, const BpeTable* merges) {
    BpeVocab tables;
    TRY(bpe_vocab_parse(&tables, vocab, merges));
    return open_vocab(out, &tables, true);
}

Status bpe_open_bytes(Bpe** out) {
    BpeVocab vocab;
    TRY(bpe_vocab_bytes(&vocab));
    return open_vocab(out, &vocab, false);
}

void bpe_close(Bpe* bpe) {
    if (bpe == NULL) { return; }
    bpe_vocab_free(&bpe->vocab);
    pcre2_match_data_free(bpe->match);
    pcre2_code_free(bpe->split);
    free(bpe->cache);
    free(bpe->cache_text);
    free(bpe->cache_tokens);
    free(bpe->symbols);
    free(bpe->heap);
    free(bpe);
}

int32_t bpe_num_tokens(const Bpe* bpe) {
    return bpe->vocab.num_tokens;
}

int32_t bpe_eot_token(const Bpe* bpe) {
    return bpe->vocab.eot_token;
}
