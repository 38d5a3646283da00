#include "bpe.h"

#include <jansson.h>
#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#ifdef DYNAPIPE_UTF8PROC
#include <utf8proc.h>
#endif
#include "../../util/arena.h"
#include "../../util/numbers.h"

// White space is listed because PCRE2's \s includes U+180E, which Unicode removed from it in version 6.3.
#define SPACES \
    "\\x09-\\x0d\\x20\\x85\\xa0\\x{1680}\\x{2000}-\\x{200a}\\x{2028}\\x{2029}\\x{202f}\\x{205f}\\x{3000}"
// GPT-2's; behind Digits, whose digits are words alone, and end what is before them.
#define SPLIT_PATTERN(digits, ends)                                              \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+|" digits "| ?[^" SPACES "\\p{L}\\p{N}]+|" \
    "[" SPACES "]+(?![^" SPACES ends "])|[" SPACES "]+"
// Qwen2's and Llama 3's, which differ in the digits of a word, as their files and PCRE2 have white space.
#define LIKE_QWEN2(digits, in_class, space, other)                                        \
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|" digits "| ?[^" in_class \
    "\\p{L}\\p{N}]+[\\r\\n]*|" space "*[\\r\\n]+|" space "+(?!" other ")|" space "+"
static const char* const known_splits[][2] = {
    {LIKE_QWEN2("\\p{N}", "\\s", "\\s", "\\S"),
     LIKE_QWEN2("\\p{N}", SPACES, "[" SPACES "]", "[^" SPACES "]")},
    {LIKE_QWEN2("\\p{N}{1,3}", "\\s", "\\s", "\\S"),
     LIKE_QWEN2("\\p{N}{1,3}", SPACES, "[" SPACES "]", "[^" SPACES "]")}};

enum {
    MAX_TOKEN_BYTES = 255,
    ALPHABET_CHARS = 324,
    MAX_VOCAB = 1 << 24,
    CACHE_SLOTS = 1 << 16,
    CACHE_WORD_BYTES = 30,  // longer words, and those of more tokens, are rare and not cached
    CACHE_WORD_TOKENS = 12,
};

typedef struct {
    uint64_t pair;   // left id << 32 | right id
    int32_t rank;    // line of merges.txt: the lowest rank merges first
    int32_t merged;  // id of the two together; -1: free slot
} Merge;

typedef struct {
    int32_t id;           // -1: merged into its left neighbour
    uint32_t prev, next;  // num_symbols: none
} Symbol;

typedef struct {
    uint8_t num_bytes, num_tokens;  // num_bytes 0: free
    unsigned char word[CACHE_WORD_BYTES];
    int32_t tokens[CACHE_WORD_TOKENS];
} CacheEntry;

struct Bpe {
    int32_t num_tokens, eot_token, bos_token;
    int32_t byte_ids[256];        // token of each single byte
    const unsigned char** texts;  // [num_tokens]
    uint8_t* text_bytes;          // [num_tokens]
    bool* is_special;             // [num_tokens]: no text becomes it
    Arena arena;                  // memory of these, and of what follows up to `split`
    int32_t* words;               // hash table of the tokens that are taken whole (ignore_merges), or NULL
    uint32_t word_mask;           // its slots - 1, a power of two minus one
    const char* pattern;          // of the split; NULL: GPT-2's
    bool composes;                // texts, to NFC, before
    Merge* merges;                // hash table by pair, linear probing
    uint32_t merge_mask;
    pcre2_code* split;
    pcre2_match_data* match;
    CacheEntry* cache;  // [CACHE_SLOTS], a word in the slot of its hash
    Symbol* symbols;    // the current word
    uint64_t* heap;     // rank << 32 | position of the left symbol; the lowest on top
    size_t word_capacity, heap_length;
};

// --- tables ----------------------------------------------------------------------------------------------

// The bytes of a word in the printable alphabet; -1 if a character is not in it or the token is too long.
// byte_of[c] is the byte of character U+c.
static int spell_bytes(const int16_t byte_of[ALPHABET_CHARS], const char* word,
                       unsigned char out[MAX_TOKEN_BYTES]) {
    int length = 0;
    for (const unsigned char* at = (const unsigned char*)word; *at != '\0'; at++) {
        unsigned c = *at;
        if (c >= 0xc2 && c <= 0xdf) {
            c = (c & 0x1f) << 6 | (*++at & 0x3f);  // jansson has checked the UTF-8
        } else if (c >= 0x80) {
            return -1;
        }
        if (c >= ALPHABET_CHARS || byte_of[c] < 0 || length == MAX_TOKEN_BYTES) { return -1; }
        out[length++] = (unsigned char)byte_of[c];
    }
    return length;
}

static int32_t id_of(const json_t* root, const char* word) {
    const json_t* id = json_object_get(root, word);
    return id != NULL ? (int32_t)json_integer_value(id) : -1;
}

static Status load_tokens(Bpe* bpe, json_t* root, const char* path) {
    size_t num_tokens = json_object_size(root);
    if (num_tokens == 0 || num_tokens > MAX_VOCAB) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %zu tokens ---> use GPT-2's vocab.json, {\"token\": id, ...}",
                    path, num_tokens);
    }
    bpe->num_tokens = (int32_t)num_tokens;
    bpe->bos_token = -1;
    ARENA_TRY_NEW(bpe->texts, &bpe->arena, const unsigned char*, num_tokens);
    ARENA_TRY_NEW(bpe->text_bytes, &bpe->arena, uint8_t, num_tokens);
    ARENA_TRY_NEW(bpe->is_special, &bpe->arena, bool, num_tokens);
    int16_t byte_of[ALPHABET_CHARS];
    int num_hidden = 0;
    memset(byte_of, -1, sizeof byte_of);
    memset(bpe->byte_ids, -1, sizeof bpe->byte_ids);
    for (int byte = 0; byte < 256; byte++) {
        bool visible = (byte >= '!' && byte <= '~') || (byte >= 0xa1 && byte <= 0xac) || byte >= 0xae;
        byte_of[visible ? byte : 256 + num_hidden++] = (int16_t)byte;
    }
    const char* word;
    json_t* value;
    json_object_foreach(root, word, value) {
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        if (id < 0 || (size_t)id >= num_tokens || bpe->texts[id] != NULL) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: token \"%.60s\": its id is not 0 ... %zu, or taken ---> use "
                        "GPT-2's vocab.json",
                        path, word, num_tokens - 1);
        }
        unsigned char bytes[MAX_TOKEN_BYTES], *text;
        int length = spell_bytes(byte_of, word, bytes);
        if (length <= 0) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: token \"%.60s\" is not 1 ... %d bytes in GPT-2's alphabet ---> use GPT-2's "
                        "vocab.json",
                        path, word, MAX_TOKEN_BYTES);
        }
        ARENA_TRY_NEW(text, &bpe->arena, unsigned char, length);
        bpe->texts[id] = memcpy(text, bytes, (size_t)length);
        bpe->text_bytes[id] = (uint8_t)length;
        if (length == 1) { bpe->byte_ids[bytes[0]] = (int32_t)id; }
    }
    for (int byte = 0; byte < 256; byte++) {
        if (bpe->byte_ids[byte] < 0) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: no token for byte 0x%02x ---> a byte-level vocabulary has all 256", path, byte);
        }
    }
    return STATUS_OK;
}

// end: its text; NULL: GPT-2's, or Llama 3's.
static Status find_end(Bpe* bpe, const json_t* root, const char* end, const char* path) {
    bpe->eot_token = id_of(root, end != NULL ? end : BPE_EOT_TEXT);
    if (end == NULL && bpe->eot_token < 0) { bpe->eot_token = id_of(root, "<|end_of_text|>"); }
    if (bpe->eot_token < 0) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: no token %.60s to end texts with ---> use the files of one model: "
                    "tokenizer_config.json names its eos_token",
                    path, end != NULL ? end : BPE_EOT_TEXT);
    }
    bpe->is_special[bpe->eot_token] = true;
    return STATUS_OK;
}

// The slot of a word that is a token, or a free slot (-1).
static int32_t* find_word(const Bpe* bpe, const unsigned char* word, size_t num_bytes) {
    for (uint32_t slot = (uint32_t)hash_finish(hash_bytes(HASH_SEED, word, num_bytes));; slot++) {
        int32_t* id = &bpe->words[slot & bpe->word_mask];
        if (*id < 0 || (bpe->text_bytes[*id] == num_bytes && memcmp(bpe->texts[*id], word, num_bytes) == 0)) {
            return id;
        }
    }
}

static Status make_words(Bpe* bpe) {
    size_t num_slots = 16;
    while (num_slots < 2 * (size_t)bpe->num_tokens) { num_slots *= 2; }
    bpe->word_mask = (uint32_t)num_slots - 1;
    ARENA_TRY_NEW(bpe->words, &bpe->arena, int32_t, num_slots);
    memset(bpe->words, -1, num_slots * sizeof bpe->words[0]);
    for (int32_t id = 0; id < bpe->num_tokens; id++) {
        if (!bpe->is_special[id]) { *find_word(bpe, bpe->texts[id], bpe->text_bytes[id]) = id; }
    }
    return STATUS_OK;
}

// The slot of a pair, or the free slot for it.
static Merge* find_merge(const Bpe* bpe, int32_t left, int32_t right) {
    uint64_t pair = (uint64_t)(uint32_t)left << 32 | (uint32_t)right;
    for (uint32_t slot = (uint32_t)rng_mix(pair);; slot++) {
        Merge* merge = &bpe->merges[slot & bpe->merge_mask];
        if (merge->merged < 0 || merge->pair == pair) { return merge; }
    }
}

// One line "left right"; the two together are a token as well.
static Status add_merge(Bpe* bpe, const json_t* root, const char* line, size_t num_bytes, int32_t rank,
                        const char* path, int line_number) {
    char both[8 * MAX_TOKEN_BYTES];
    const char* blank = (const char*)memchr(line, ' ', num_bytes);
    if (blank == NULL || num_bytes > sizeof both - 1) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: line %d is not two tokens with a blank between ---> download it again", path,
                    line_number);
    }
    size_t left_bytes = (size_t)(blank - line), right_bytes = num_bytes - left_bytes - 1;
    memcpy(both, line, left_bytes);
    both[left_bytes] = '\0';
    int32_t left = id_of(root, both);
    memcpy(both + left_bytes, blank + 1, right_bytes);
    both[left_bytes + right_bytes] = '\0';
    int32_t ids[3] = {left, id_of(root, both + left_bytes), id_of(root, both)};
    static const char* const names[] = {"left", "right", "merged"};
    for (int i = 0; i < 3; i++) {
        if (ids[i] >= 0) { continue; }
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: line %d: the %s token is not in the vocabulary ---> give the vocab.json that belongs "
            "to it",
            path, line_number, names[i]);
    }
    Merge* merge = find_merge(bpe, ids[0], ids[1]);
    if (bpe->is_special[ids[2]]) {
        return FAIL(STATUS_BAD_FORMAT, "%s: line %d makes a special token ---> use the files of one model",
                    path, line_number);
    }
    if (merge->merged >= 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: line %d repeats an earlier merge", path, line_number);
    }
    *merge = (Merge){(uint64_t)(uint32_t)ids[0] << 32 | (uint32_t)ids[1], rank, ids[2]};
    return STATUS_OK;
}

static Status make_merges(Bpe* bpe, size_t num_merges, const char* path) {
    size_t num_slots = 16;
    while (num_slots < 2 * num_merges) { num_slots *= 2; }
    bpe->merge_mask = (uint32_t)num_slots - 1;
    bpe->merges = malloc(num_slots * sizeof bpe->merges[0]);
    if (bpe->merges == NULL) {
        return FAIL(STATUS_NO_MEMORY, "%s: no memory for %zu merges", path, num_merges);
    }
    memset(bpe->merges, -1, num_slots * sizeof bpe->merges[0]);
    return STATUS_OK;
}

static Status load_merges(Bpe* bpe, const json_t* root, const VocabFile* table) {
    size_t num_lines = 1;
    for (size_t i = 0; i < table->num_bytes; i++) { num_lines += table->text[i] == '\n'; }
    TRY(make_merges(bpe, num_lines, table->name));
    int32_t rank = 0;
    int line_number = 1;
    const char* end = table->text + table->num_bytes;
    for (const char *line = table->text, *next; line < end; line = next, line_number++) {
        const char* newline = (const char*)memchr(line, '\n', (size_t)(end - line));
        size_t num_bytes = (size_t)((newline != NULL ? newline : end) - line);
        next = line + num_bytes + 1;
        if (num_bytes > 0 && line[num_bytes - 1] == '\r') { num_bytes--; }
        bool is_comment = num_bytes >= 8 && memcmp(line, "#version", 8) == 0;
        if (num_bytes == 0 || is_comment) { continue; }
        TRY(add_merge(bpe, root, line, num_bytes, rank++, table->name, line_number));
    }
    return STATUS_OK;
}

// --- tokenizer.json --------------------------------------------------------------------------------------

#define AS_GPT2                                                                                      \
    "---> of tokenizer.json, only byte-level BPE as GPT-2's works, with Digits before ByteLevel as " \
    "SmolLM's, or with one Split by a Regex, Isolated, before ByteLevel as Qwen2's and Llama 3's"
// Not where it is the split that is refused: these have none, and GPT-2's would give other ids.
#define OR_TABLES AS_GPT2 "; else put vocab.json and merges.txt in its place"

// What else the file must say: a part, its field (NULL: the part itself), and the values allowed as JSON, "|"
// between them. A missing value is null.
static const struct {
    const char *part, *field, *allowed;
} rules[] = {
    {"model", "type", "null|\"BPE\""},
    {"model", "continuing_subword_prefix", "null|\"\""},
    {"model", "end_of_word_suffix", "null|\"\""},
    {"model", "byte_fallback", "null|false"},
    {"model", "ignore_merges", "null|false|true"},
    {"model", "dropout", "null|0|0.0"},
    {"normalizer", NULL, "null|{\"type\":\"NFC\"}"},
    {"pre_tokenizer", "type", "\"ByteLevel\""},
    {"pre_tokenizer", "add_prefix_space", "false"},
    {"pre_tokenizer", "use_regex", "null|true"},
};

// The Regex of a pre_tokenizer as Qwen2 and Llama 3 have it; NULL: it is another one.
static const char* split_of(json_t* root) {
    const char *list, *first, *regex, *behavior, *second;
    int inverts, has_prefix, splits_again;
    const bool is_split =
        json_unpack(root, "{s:{s:s, s:[{s:s, s:{s:s}, s:s, s:b}, {s:s, s:b, s:b}!]}}", "pre_tokenizer",
                    "type", &list, "pretokenizers", "type", &first, "pattern", "Regex", &regex, "behavior",
                    &behavior, "invert", &inverts, "type", &second, "add_prefix_space", &has_prefix,
                    "use_regex", &splits_again) == 0 &&
        strcmp(list, "Sequence") == 0 && strcmp(first, "Split") == 0 && strcmp(behavior, "Isolated") == 0 &&
        !inverts && strcmp(second, "ByteLevel") == 0 && !has_prefix && !splits_again;
    return is_split ? regex : NULL;
}

// The pattern of SmolLM's and StarCoder's; NULL: it is another one.
static const char* digits_of(json_t* root) {
    const char *list, *first, *second;
    int single, has_prefix, splits = 1;
    const bool is_digits =
        json_unpack(root, "{s:{s:s, s:[{s:s, s:b}, {s:s, s:b, s?b}!]}}", "pre_tokenizer", "type", &list,
                    "pretokenizers", "type", &first, "individual_digits", &single, "type", &second,
                    "add_prefix_space", &has_prefix, "use_regex", &splits) == 0 &&
        strcmp(list, "Sequence") == 0 && strcmp(first, "Digits") == 0 && strcmp(second, "ByteLevel") == 0 &&
        !has_prefix && splits;
    return !is_digits ? NULL
           : single   ? SPLIT_PATTERN("\\p{N}", "\\p{N}")
                      : SPLIT_PATTERN("\\p{N}+", "\\p{N}");
}

static Status find_split(Bpe* bpe, const char* regex, const char* path) {
    for (size_t i = 0; i < sizeof known_splits / sizeof known_splits[0]; i++) {
        if (strcmp(regex, known_splits[i][0]) == 0) { bpe->pattern = known_splits[i][1]; }
    }
    if (bpe->pattern != NULL) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: pre_tokenizer: the pattern \"%.40s\" is neither Qwen2's nor Llama 3's ---> use another "
                "tokenizer",
                path, regex);
}

static Status check_rules(const json_t* root, bool has_split, const char* path) {
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        if (has_split && strcmp(rules[i].part, "pre_tokenizer") == 0) { continue; }
        const json_t* value = json_object_get(root, rules[i].part);
        if (rules[i].field != NULL) { value = json_object_get(value, rules[i].field); }
        char* text = value != NULL ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
        char shown[64];
        snprintf(shown, sizeof shown, "%.60s", text != NULL ? text : "null");
        free(text);
        size_t length = strlen(shown);
        const char* at = rules[i].allowed;
        while (at != NULL &&
               !(strncmp(at, shown, length) == 0 && (at[length] == '|' || at[length] == '\0'))) {
            at = strchr(at, '|');
            at = at != NULL ? at + 1 : NULL;
        }
        if (at != NULL) { continue; }
        return FAIL(STATUS_BAD_FORMAT, "%s: %s%s%s is %s, not %s " AS_GPT2 "%s", path, rules[i].part,
                    rules[i].field != NULL ? "." : "", rules[i].field != NULL ? rules[i].field : "", shown,
                    rules[i].allowed,
                    strcmp(rules[i].part, "model") == 0
                        ? "; else put spiece.model or tokenizer.model beside it"
                        : "");
    }
    return STATUS_OK;
}

// A post_processor adds nothing, or a token before each text.
static Status read_post_processor(Bpe* bpe, const json_t* vocab, json_t* part, const char* path) {
    const char *type = json_string_value(json_object_get(part, "type")), *text, *bos = NULL;
    size_t i;
    json_t* step;
    if (type == NULL) { type = part == NULL || json_is_null(part) ? "ByteLevel" : "no text"; }
    if (strcmp(type, "ByteLevel") == 0) { return STATUS_OK; }
    if (strcmp(type, "Sequence") == 0) {
        json_array_foreach(json_object_get(part, "processors"), i, step) {
            TRY(read_post_processor(bpe, vocab, step, path));
        }
        return STATUS_OK;
    }
    if (strcmp(type, "TemplateProcessing") == 0 &&
        (json_unpack(part, "{s:[{s:{s:s}}!]}", "single", "Sequence", "id", &text) == 0 ||
         json_unpack(part, "{s:[{s:{s:s}}, {s:{s:s}}!]}", "single", "SpecialToken", "id", &bos, "Sequence",
                     "id", &text) == 0)) {
        bpe->bos_token = bos != NULL ? id_of(vocab, bos) : bpe->bos_token;
        if (bos == NULL || bpe->bos_token >= 0) { return STATUS_OK; }
    }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: post_processor.type is \"%.40s\": more than a special token before each text " AS_GPT2,
                path, type);
}

// Merges are "left right" or ["left", "right"], depending on the version. Added tokens are searched in texts
// by others; here text that spells one stays text. So they must look like special ones.
static Status load_json(Bpe* bpe, json_t* root, const char* end, const char* path) {
    json_t *model = json_object_get(root, "model"), *vocab = json_object_get(model, "vocab");
    const json_t *merges = json_object_get(model, "merges"), *merge, *token,
                 *added = json_object_get(root, "added_tokens");
    const char* split = split_of(root);
    size_t i;
    bpe->pattern = digits_of(root);
    TRY(check_rules(root, split != NULL || bpe->pattern != NULL, path));
    if (split != NULL) { TRY(find_split(bpe, split, path)); }
    bpe->composes = json_is_object(json_object_get(root, "normalizer"));
#ifndef DYNAPIPE_UTF8PROC
    if (bpe->composes) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: normalizer is NFC, this program was built without utf8proc ---> install "
                    "libutf8proc-dev, then make prepare_data generate again",
                    path);
    }
#endif
    if (!json_is_object(vocab) || !json_is_array(merges)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model.%s " OR_TABLES, path,
                    json_is_object(vocab) ? "merges is no list" : "vocab is no object {\"token\": id, ...}");
    }
    json_array_foreach(added, i, token) {
        const char* content = json_string_value(json_object_get(token, "content"));
        if (content == NULL || (content[0] != '<' && !json_is_true(json_object_get(token, "special")))) {
            return FAIL(STATUS_BAD_FORMAT, "%s: added_tokens[%zu] is \"%.60s\", no special token " OR_TABLES,
                        path, i, content != NULL ? content : "no string");
        }
        json_object_set(vocab, content, json_object_get(token, "id"));
    }
    TRY(load_tokens(bpe, vocab, path));
    json_array_foreach(added, i, token) {
        bpe->is_special[id_of(vocab, json_string_value(json_object_get(token, "content")))] = true;
    }
    TRY(find_end(bpe, vocab, end, path));
    TRY(read_post_processor(bpe, vocab, json_object_get(root, "post_processor"), path));
    if (json_is_true(json_object_get(model, "ignore_merges"))) { TRY(make_words(bpe)); }
    TRY(make_merges(bpe, json_array_size(merges), path));
    json_array_foreach(merges, i, merge) {
        char line[8 * MAX_TOKEN_BYTES] = "";
        const char *left = json_string_value(json_array_get(merge, 0)),
                   *right = json_string_value(json_array_get(merge, 1)), *both = json_string_value(merge);
        if (both != NULL) { snprintf(line, sizeof line, "%s", both); }
        if (left != NULL && right != NULL) { snprintf(line, sizeof line, "%s %s", left, right); }
        TRY(add_merge(bpe, vocab, line, strlen(line), (int32_t)i, path, (int)i + 1));
    }
    return STATUS_OK;
}

// --- opening ---------------------------------------------------------------------------------------------

static Status compile_split(Bpe* bpe, const char* path) {
    int error;
    PCRE2_SIZE offset;
    const char* pattern = bpe->pattern != NULL ? bpe->pattern : SPLIT_PATTERN(" ?\\p{N}+", "");
    bpe->split = pcre2_compile((PCRE2_SPTR)pattern, PCRE2_ZERO_TERMINATED,
                               PCRE2_UTF | PCRE2_UCP | PCRE2_ANCHORED, &error, &offset, NULL);
    if (bpe->split == NULL) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "%s: split pattern: error %d ---> use another tokenizer (PCRE2 must be built with Unicode "
            "support)",
            path, error);
    }
    (void)pcre2_jit_compile(bpe->split, PCRE2_JIT_COMPLETE);  // otherwise it is interpreted, equally
    bpe->match = pcre2_match_data_create_from_pattern(bpe->split, NULL);
    bpe->cache = calloc(CACHE_SLOTS, sizeof bpe->cache[0]);
    if (bpe->match != NULL && bpe->cache != NULL) { return STATUS_OK; }
    return FAIL(STATUS_NO_MEMORY, "no memory for the tokenizer's cache");
}

Status bpe_open(Bpe** out, const VocabFile* vocab, const VocabFile* merges, const char* end) {
    json_error_t error;
    json_t* root = json_loadb(vocab->text, vocab->num_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s: line %d: not JSON: %s ---> download it again", vocab->name,
                    error.line, error.text);
    }
    Bpe* bpe = calloc(1, sizeof *bpe);
    Status status = bpe == NULL      ? FAIL(STATUS_NO_MEMORY, "%s: no memory for it", vocab->name)
                    : merges == NULL ? load_json(bpe, root, end, vocab->name)
                                     : load_tokens(bpe, root, vocab->name);
    if (status == STATUS_OK && merges != NULL) { status = find_end(bpe, root, end, vocab->name); }
    if (status == STATUS_OK && merges != NULL) { status = load_merges(bpe, root, merges); }
    if (status == STATUS_OK) { status = compile_split(bpe, vocab->name); }
    json_decref(root);
    if (status != STATUS_OK) {
        bpe_close(bpe);
        return status;
    }
    *out = bpe;
    return STATUS_OK;
}

void bpe_close(Bpe* bpe) {
    if (bpe == NULL) { return; }
    pcre2_match_data_free(bpe->match);
    pcre2_code_free(bpe->split);
    arena_free(&bpe->arena);
    free(bpe->merges);
    free(bpe->cache);
    free(bpe->symbols);
    free(bpe->heap);
    free(bpe);
}

int32_t bpe_num_tokens(const Bpe* bpe) {
    return bpe->num_tokens;
}

int32_t bpe_eot_token(const Bpe* bpe) {
    return bpe->eot_token;
}

bool bpe_is_special(const Bpe* bpe, int32_t token) {
    return bpe->is_special[token];
}

int32_t bpe_bos_token(const Bpe* bpe) {
    return bpe->bos_token;
}

const unsigned char* bpe_token_text(const Bpe* bpe, int32_t token, int32_t* num_bytes) {
    *num_bytes = bpe->text_bytes[token];
    return bpe->texts[token];
}

// --- memory ----------------------------------------------------------------------------------------------

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
    const Merge* merge = find_merge(bpe, symbol->id, bpe->symbols[symbol->next].id);
    if (merge->merged >= 0) { heap_push(bpe, (uint64_t)(uint32_t)merge->rank << 32 | left); }
}

// Lowest rank first, then leftmost; entries whose pair no longer exists are skipped.
static Status encode_word(Bpe* bpe, const unsigned char* word, uint32_t num_symbols, BpeTokens* out) {
    const int32_t whole = bpe->words != NULL ? *find_word(bpe, word, num_symbols) : -1;
    if (whole >= 0) { return bpe_tokens_add(out, whole); }
    TRY(word_reserve(bpe, num_symbols));
    TRY(tokens_reserve(out, num_symbols));
    Symbol* symbols = bpe->symbols;
    const uint32_t none = num_symbols;
    for (uint32_t i = 0; i < num_symbols; i++) {
        symbols[i] = (Symbol){bpe->byte_ids[word[i]], i > 0 ? i - 1 : none, i + 1};
    }
    bpe->heap_length = 0;
    for (uint32_t i = 0; i + 1 < num_symbols; i++) { push_pair(bpe, i); }
    while (bpe->heap_length > 0) {
        uint64_t key = heap_pop(bpe);
        uint32_t at = (uint32_t)key;
        Symbol* left = &symbols[at];
        if (left->id < 0 || left->next == none) { continue; }
        Symbol* right = &symbols[left->next];
        const Merge* merge = find_merge(bpe, left->id, right->id);
        if (merge->merged < 0 || (uint32_t)merge->rank != key >> 32) { continue; }
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

static Status encode_word_cached(Bpe* bpe, const unsigned char* word, uint32_t num_bytes, BpeTokens* out) {
    if (num_bytes > CACHE_WORD_BYTES) { return encode_word(bpe, word, num_bytes, out); }
    CacheEntry* entry = &bpe->cache[hash_finish(hash_bytes(HASH_SEED, word, num_bytes)) % CACHE_SLOTS];
    if (entry->num_bytes == num_bytes && memcmp(entry->word, word, num_bytes) == 0) {
        TRY(tokens_reserve(out, entry->num_tokens));
        memcpy(out->ids + out->num_tokens, entry->tokens, entry->num_tokens * sizeof out->ids[0]);
        out->num_tokens += entry->num_tokens;
        return STATUS_OK;
    }
    int64_t first = out->num_tokens;
    TRY(encode_word(bpe, word, num_bytes, out));
    int64_t num_tokens = out->num_tokens - first;
    if (num_tokens > CACHE_WORD_TOKENS) { return STATUS_OK; }
    entry->num_bytes = (uint8_t)num_bytes;
    entry->num_tokens = (uint8_t)num_tokens;
    memcpy(entry->word, word, num_bytes);
    memcpy(entry->tokens, out->ids + first, (size_t)num_tokens * sizeof out->ids[0]);
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

// ASCII is composed already. *out NULL: so is the text, or it is no UTF-8, which the split reports.
static Status compose(unsigned char** out, size_t* num_bytes, const char* text) {
    *out = NULL;
#ifdef DYNAPIPE_UTF8PROC
    size_t num_ascii = 0;
    while (num_ascii < *num_bytes && (unsigned char)text[num_ascii] < 0x80) { num_ascii++; }
    if (num_ascii == *num_bytes) { return STATUS_OK; }
    const utf8proc_ssize_t length = utf8proc_map((const utf8proc_uint8_t*)text, (utf8proc_ssize_t)*num_bytes,
                                                 out, UTF8PROC_STABLE | UTF8PROC_COMPOSE);
    if (length >= 0) { *num_bytes = (size_t)length; }
    if (length < 0 && length != UTF8PROC_ERROR_INVALIDUTF8) {
        return FAIL(STATUS_NO_MEMORY, "no memory to compose a text of %zu bytes", *num_bytes);
    }
#else
    (void)num_bytes, (void)text;
#endif
    return STATUS_OK;
}

Status bpe_encode(Bpe* bpe, const char* text, size_t num_bytes, BpeTokens* out) {
    int64_t before = out->num_tokens;
    unsigned char* composed = NULL;
    if (bpe->composes) { TRY(compose(&composed, &num_bytes, text)); }
    const unsigned char* bytes = composed != NULL ? composed : (const unsigned char*)text;
    Status status = encode_split(bpe, bytes, num_bytes, out);
    free(composed);
    if (status != STATUS_OK) { out->num_tokens = before; }
    return status;
}
