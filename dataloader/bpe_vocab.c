#include "bpe_vocab.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

#include "../util/files.h"
#include "../util/numbers.h"

enum { MAX_TOKEN_BYTES = 255, ALPHABET_CHARS = 324, MAX_VOCAB = 1 << 24 };

// Token id by its bytes, while loading.
typedef struct {
    int32_t* slots;  // -1: free
    uint32_t mask;
} TokenIndex;

// byte_of[c] is the byte that character U+c stands for in the printable alphabet, -1 where it stands for
// none.
static void fill_alphabet(int16_t byte_of[ALPHABET_CHARS]) {
    int next = 256;
    memset(byte_of, -1, ALPHABET_CHARS * sizeof byte_of[0]);
    for (int byte = 0; byte < 256; byte++) {
        bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        byte_of[visible ? byte : next++] = (int16_t)byte;
    }
}

// Bytes that a word of the printable alphabet spells; -1 if a character is not of it or the token is too
// long.
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

// Where the token with these bytes is, or the free slot where it would be.
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
    // Bytes spelled are never more than characters, and those never more than the bytes of the file.
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

Status bpe_vocab_bytes(BpeVocab* out) {
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
