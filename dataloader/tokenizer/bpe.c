#include "bpe.h"

#include <jansson.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "../../util/files.h"
#include "../../util/numbers.h"

enum { MAX_TOKEN_BYTES = 255, ALPHABET_CHARS = 324, MAX_VOCAB = 1 << 24 };

// Token id by bytes, for loading.
typedef struct {
    int32_t* slots;  // -1: free
    uint32_t mask;
} TokenIndex;

// byte_of[c] is the byte of character U+c in the printable alphabet, -1 if there is none.
static void fill_alphabet(int16_t byte_of[ALPHABET_CHARS]) {
    int next = 256;
    memset(byte_of, -1, ALPHABET_CHARS * sizeof byte_of[0]);
    for (int byte = 0; byte < 256; byte++) {
        bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        byte_of[visible ? byte : next++] = (int16_t)byte;
    }
}

// The bytes of a word in the printable alphabet; -1 if a character is not in it or the token is too long.
static int spell_bytes(const int16_t byte_of[ALPHABET_CHARS], const char* word, size_t num_bytes,
                       unsigned char out[MAX_TOKEN_BYTES]) {
    int length = 0;
    for (size_t i = 0; i < num_bytes; i++) {
        unsigned c = (unsigned char)word[i];
        if (c >= 0xc2 && c <= 0xdf && i + 1 < num_bytes) {
            c = (c & 0x1f) << 6 | ((unsigned char)word[++i] & 0x3f);
        } else if (c >= 0x80) {
            return -1;
        }
        if (c >= ALPHABET_CHARS || byte_of[c] < 0 || length == MAX_TOKEN_BYTES) { return -1; }
        out[length++] = (unsigned char)byte_of[c];
    }
    return length;
}

static uint32_t slots_for(size_t num_items) {
    uint32_t num_slots = 16;
    while (num_slots < 2 * num_items) { num_slots *= 2; }
    return num_slots;
}

// The slot of the token with these bytes, or the free slot for it.
static int32_t* index_slot(const BpeVocab* vocab, const TokenIndex* index, const unsigned char* bytes,
                           int length) {
    uint32_t slot = (uint32_t)hash_finish(hash_bytes(HASH_SEED, bytes, (size_t)length));
    for (;; slot++) {
        int32_t* id = &index->slots[slot & index->mask];
        if (*id < 0) { return id; }
        const uint32_t* begin = &vocab->text_begin[*id];
        if (begin[1] - begin[0] == (uint32_t)length &&
            memcmp(vocab->text + begin[0], bytes, (size_t)length) == 0) {
            return id;
        }
    }
}

// words[id] = spelling of the token, borrowed from `root`.
static Status order_words(const char** words, json_t* root, const char* path) {
    size_t num_tokens = json_object_size(root);
    const char* word;
    json_t* value;
    json_object_foreach(root, word, value) {
        if (!json_is_integer(value)) {
            return FAIL(STATUS_BAD_FORMAT, "%s: token \"%.60s\": its id is not a whole number", path, word);
        }
        json_int_t id = json_integer_value(value);
        if (id < 0 || (size_t)id >= num_tokens || words[id] != NULL) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: token \"%.60s\": id %lld is %s ---> ids must be 0 ... %zu, each once", path,
                        word, (long long)id, id < 0 || (size_t)id >= num_tokens ? "out of range" : "taken",
                        num_tokens - 1);
        }
        words[id] = word;
    }
    return STATUS_OK;
}

static Status fill_tokens(BpeVocab* vocab, TokenIndex* index, const char** words, const int16_t* byte_of,
                          const char* path) {
    uint32_t used = 0;
    unsigned char bytes[MAX_TOKEN_BYTES];
    for (int32_t id = 0; id < vocab->num_tokens; id++) {
        int length = spell_bytes(byte_of, words[id], strlen(words[id]), bytes);
        if (length <= 0) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: token %d \"%.60s\" is not 1 ... %d bytes in GPT-2's alphabet ---> use GPT-2's "
                        "vocab.json",
                        path, id, words[id], MAX_TOKEN_BYTES);
        }
        memcpy(vocab->text + used, bytes, (size_t)length);
        vocab->text_begin[id] = used;
        vocab->text_begin[id + 1] = used += (uint32_t)length;
        *index_slot(vocab, index, bytes, length) = id;
    }
    for (int byte = 0; byte < 256; byte++) {
        bytes[0] = (unsigned char)byte;
        vocab->byte_ids[byte] = *index_slot(vocab, index, bytes, 1);
        if (vocab->byte_ids[byte] < 0) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: no token for byte 0x%02x ---> a byte-level vocabulary has all 256", path, byte);
        }
    }
    vocab->eot_token =
        *index_slot(vocab, index, (const unsigned char*)BPE_EOT_TEXT, (int)strlen(BPE_EOT_TEXT));
    if (vocab->eot_token < 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: no token %s ---> use GPT-2's vocab.json", path, BPE_EOT_TEXT);
    }
    return STATUS_OK;
}

static Status load_tokens(BpeVocab* vocab, TokenIndex* index, const int16_t* byte_of, const BpeTable* table) {
    const char* path = table->name;
    json_error_t error;
    json_t* root = json_loadb(table->text, table->num_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s: line %d: not JSON: %s", path, error.line, error.text);
    }
    size_t num_tokens = json_object_size(root);
    Status status = STATUS_OK;
    const char** words = calloc(num_tokens + 1, sizeof words[0]);
    // Decoding never makes a text longer.
    vocab->text = malloc(table->num_bytes + 1);
    vocab->text_begin = calloc(num_tokens + 1, sizeof vocab->text_begin[0]);
    *index = (TokenIndex){.mask = slots_for(num_tokens) - 1};
    index->slots = malloc(((size_t)index->mask + 1) * sizeof index->slots[0]);
    if (num_tokens == 0 || num_tokens > MAX_VOCAB) {
        status = FAIL(STATUS_BAD_FORMAT, "%s: %zu tokens ---> use GPT-2's vocab.json, {\"token\": id, ...}",
                      path, num_tokens);
    } else if (words == NULL || vocab->text == NULL || vocab->text_begin == NULL || index->slots == NULL) {
        status = FAIL(STATUS_NO_MEMORY, "%s: no memory for %zu tokens", path, num_tokens);
    } else {
        memset(index->slots, -1, ((size_t)index->mask + 1) * sizeof index->slots[0]);
        vocab->num_tokens = (int32_t)num_tokens;
        status = order_words(words, root, path);
        if (status == STATUS_OK) { status = fill_tokens(vocab, index, words, byte_of, path); }
    }
    free(words);
    json_decref(root);
    return status;
}

// One line "left right" of merges.txt.
static Status add_merge(BpeVocab* vocab, const TokenIndex* index, const int16_t* byte_of, const char* line,
                        size_t line_bytes, int32_t rank, const char* path, int line_number) {
    const char* blank = memchr(line, ' ', line_bytes);
    unsigned char both[2 * MAX_TOKEN_BYTES];
    int left = -1, right = -1;
    if (blank != NULL) {
        left = spell_bytes(byte_of, line, (size_t)(blank - line), both);
        if (left > 0) {
            right = spell_bytes(byte_of, blank + 1, line_bytes - (size_t)(blank - line) - 1, both + left);
        }
    }
    if (left <= 0 || right <= 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: line %d is not two tokens with a blank between", path,
                    line_number);
    }
    int32_t left_id = *index_slot(vocab, index, both, left);
    int32_t right_id = *index_slot(vocab, index, both + left, right);
    int32_t merged = *index_slot(vocab, index, both, left + right);
    if (left_id < 0 || right_id < 0 || merged < 0) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: line %d: the %s is not in the vocabulary ---> give the vocab.json that belongs to it", path,
            line_number,
            left_id < 0    ? "left token"
            : right_id < 0 ? "right token"
                           : "merged token");
    }
    uint64_t pair = (uint64_t)(uint32_t)left_id << 32 | (uint32_t)right_id;
    uint32_t slot = (uint32_t)rng_mix(pair) & vocab->merge_mask;
    for (; vocab->merges[slot].merged >= 0; slot = (slot + 1) & vocab->merge_mask) {
        if (vocab->merges[slot].pair == pair) {
            return FAIL(STATUS_BAD_FORMAT, "%s: line %d repeats an earlier merge", path, line_number);
        }
    }
    vocab->merges[slot] = (BpeMerge){.pair = pair, .rank = rank, .merged = merged};
    return STATUS_OK;
}

static Status load_merges(BpeVocab* vocab, const TokenIndex* index, const int16_t* byte_of,
                          const BpeTable* table) {
    const char *path = table->name, *text = table->text;
    size_t text_bytes = table->num_bytes, num_lines = 1;
    for (size_t i = 0; i < text_bytes; i++) { num_lines += text[i] == '\n'; }
    vocab->merge_mask = slots_for(num_lines) - 1;
    vocab->merges = malloc(((size_t)vocab->merge_mask + 1) * sizeof vocab->merges[0]);
    if (vocab->merges == NULL) {
        return FAIL(STATUS_NO_MEMORY, "%s: no memory for %zu merges", path, num_lines);
    }
    for (size_t i = 0; i <= vocab->merge_mask; i++) { vocab->merges[i].merged = -1; }
    int32_t rank = 0;
    int line_number = 0;
    for (const char *line = text, *end = text + text_bytes; line < end;) {
        const char* newline = memchr(line, '\n', (size_t)(end - line));
        size_t line_bytes = (size_t)((newline != NULL ? newline : end) - line);
        const char* next = newline != NULL ? newline + 1 : end;
        line_number++;
        if (line_bytes > 0 && line[line_bytes - 1] == '\r') { line_bytes--; }
        bool is_comment = line_bytes >= 8 && memcmp(line, "#version", 8) == 0;
        if (line_bytes > 0 && !is_comment) {
            TRY(add_merge(vocab, index, byte_of, line, line_bytes, rank++, path, line_number));
        }
        line = next;
    }
    return STATUS_OK;
}

Status bpe_vocab_parse(BpeVocab* out, const BpeTable* vocab, const BpeTable* merges) {
    int16_t byte_of[ALPHABET_CHARS];
    TokenIndex index = {0};
    *out = (BpeVocab){0};
    fill_alphabet(byte_of);
    Status status = load_tokens(out, &index, byte_of, vocab);
    if (status == STATUS_OK) { status = load_merges(out, &index, byte_of, merges); }
    free(index.slots);
    if (status != STATUS_OK) { bpe_vocab_free(out); }
    return status;
}

Status bpe_vocab_load(BpeVocab* out, const char* vocab_path, const char* merges_path) {
    BpeTable tables[2] = {{.name = vocab_path}, {.name = merges_path}};
    char* texts[2] = {NULL, NULL};
    Status status = STATUS_OK;
    *out = (BpeVocab){0};
    for (int i = 0; i < 2 && status == STATUS_OK; i++) {
        status = file_read_text(&texts[i], &tables[i].num_bytes, tables[i].name);
        tables[i].text = texts[i];
    }
    if (status == STATUS_OK) { status = bpe_vocab_parse(out, &tables[0], &tables[1]); }
    free(texts[0]);
    free(texts[1]);
    return status;
}

static Status bpe_vocab_bytes(BpeVocab* out) {
    enum { EOT_BYTES = sizeof BPE_EOT_TEXT - 1 };
    BpeVocab vocab = {.num_tokens = 257, .eot_token = 256};
    vocab.text = malloc(256 + EOT_BYTES);
    vocab.text_begin = malloc((257 + 1) * sizeof vocab.text_begin[0]);
    *out = (BpeVocab){0};
    if (vocab.text == NULL || vocab.text_begin == NULL) {
        bpe_vocab_free(&vocab);
        return FAIL(STATUS_NO_MEMORY, "no memory for the bytes tokenizer");
    }
    for (int byte = 0; byte < 256; byte++) {
        vocab.byte_ids[byte] = byte;
        vocab.text[byte] = (unsigned char)byte;
        vocab.text_begin[byte] = (uint32_t)byte;
    }
    memcpy(vocab.text + 256, BPE_EOT_TEXT, EOT_BYTES);
    vocab.text_begin[256] = 256;
    vocab.text_begin[257] = 256 + EOT_BYTES;
    *out = vocab;
    return STATUS_OK;
}

void bpe_vocab_free(BpeVocab* vocab) {
    free(vocab->text);
    free(vocab->text_begin);
    free(vocab->merges);
    *vocab = (BpeVocab){0};
}

// --- bpe -----------------------------------------------------------------------------------------------

// White space is listed because PCRE2's \s includes U+180E, which Unicode removed from it in version 6.3.
#define SPACES \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
#define SPLIT_PATTERN                                                           \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^" SPACES "\\p{L}\\p{N}]+|" \
    "[" SPACES "]+(?![^" SPACES "])|[" SPACES "]+"

enum {
    MAX_TEXT_BYTES = 1 << 30,
    CACHE_SLOTS = 1 << 17,  // at most half are used; then the cache is cleared
    CACHE_WORD_BYTES = 64,  // longer words are rare and not cached
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

    Symbol* symbols;  // the current word
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

// Lowest rank first, then leftmost; entries whose pair no longer exists are skipped.
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

// --- word cache -------------------------------------------------------------------------------------------

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

// Takes ownership of the vocabulary, also on failure.
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
