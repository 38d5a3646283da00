#define _GNU_SOURCE  // open_memstream
#include "hf_tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bpe.h"
#include "../../util/arena.h"
#include "../../util/files.h"

#define BLANK "\xe2\x96\x81"  // U+2581, which stands for a blank in pieces
#define AS_T5                                                                                          \
    "---> of Unigram, only what T5's tokenizer.json has works; else give spiece.model to --tokenizer " \
    "sentencepiece"
#define AS_GPT2 "---> of BPE, only what GPT-2's tokenizer.json has works"
#define WORKS "---> a tokenizer.json as of T5 (Unigram) or of GPT-2 (byte-level BPE) works"

// --- rules -----------------------------------------------------------------------------------------------

// What the value at a path like "model.vocab" must be: values as JSON, "|" between them. A missing value is
// null.
typedef struct {
    const char *path, *allowed;
} Rule;

static const Rule bpe_rules[] = {
    {"model.continuing_subword_prefix", "null|\"\""},
    {"model.end_of_word_suffix", "null|\"\""},
    {"model.byte_fallback", "null|false"},
    {"model.ignore_merges", "null|false"},
    {"model.dropout", "null|0|0.0"},
    {"normalizer", "null"},
    {"pre_tokenizer.type", "\"ByteLevel\""},
    {"pre_tokenizer.add_prefix_space", "false"},
    {"pre_tokenizer.use_regex", "null|true"},
    {"post_processor.type", "null|\"ByteLevel\""},
    {NULL, NULL},
};
static const Rule unigram_rules[] = {
    {"model.byte_fallback", "null|false"},
    {"post_processor.type", "\"TemplateProcessing\""},
    {NULL, NULL},
};
static const Rule metaspace_rules[] = {
    {"type", "\"Metaspace\""},
    {"replacement", "\"" BLANK "\""},
    {"prepend_scheme", "null|\"always\""},
    {"add_prefix_space", "null|true"},
    {"split", "null|true"},
    {NULL, NULL},
};
static const Rule word_split_rules[] = {{"type", "\"WhitespaceSplit\""}, {NULL, NULL}};
static const Rule character_map_rules[] = {{"type", "\"Precompiled\""}, {NULL, NULL}};
static const Rule strip_rules[] = {
    {"type", "\"Strip\""}, {"strip_left", "false"}, {"strip_right", "true"}, {NULL, NULL}};
static const Rule fold_rules[] = {{"type", "\"Replace\""},
                                  {"pattern.Regex", "\" {2,}\""},
                                  {"content", "\" \"|\"" BLANK "\""},
                                  {NULL, NULL}};

// NULL: nothing there.
static const json_t* value_at(const json_t* root, const char* path) {
    for (char name[64]; root != NULL && *path != '\0'; path += strspn(path, ".")) {
        size_t length = strcspn(path, ".");
        snprintf(name, sizeof name, "%.*s", (int)length, path);
        root =
            json_is_array(root) ? json_array_get(root, strtoul(name, NULL, 10)) : json_object_get(root, name);
        path += length;
    }
    return root;
}

// The value as JSON, cut to 60 bytes.
static void print_value(char out[64], const json_t* value) {
    char* text = value != NULL ? json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT) : NULL;
    snprintf(out, 64, "%.60s", text != NULL ? text : "null");
    free(text);
}

static const Rule* broken_rule(const json_t* root, const Rule* rules) {
    for (; rules->path != NULL; rules++) {
        char text[64];
        print_value(text, value_at(root, rules->path));
        size_t length = strlen(text);
        const char* at = rules->allowed;
        while (at != NULL && !(strncmp(at, text, length) == 0 && (at[length] == '|' || at[length] == '\0'))) {
            at = strchr(at, '|');
            at = at != NULL ? at + 1 : NULL;
        }
        if (at == NULL) { return rules; }
    }
    return NULL;
}

static Status check_rules(const json_t* root, const Rule* rules, const char* name, const char* prefix,
                          const char* remedy) {
    const Rule* broken = broken_rule(root, rules);
    if (broken == NULL) { return STATUS_OK; }
    char text[64];
    print_value(text, value_at(root, broken->path));
    return FAIL(STATUS_BAD_FORMAT, "%s: %s%s is %s, not %s %s", name, prefix, broken->path, text,
                broken->allowed, remedy);
}

// --- Unigram ---------------------------------------------------------------------------------------------

// As in sentencepiece_model.proto.
enum { PIECE_NORMAL = 1, PIECE_UNKNOWN = 2, PIECE_CONTROL = 3 };

typedef struct {
    const json_t* root;
    const char* name;
    Arena arena;
    size_t num_pieces;     // of the model and the added tokens
    const char** pieces;   // [num_pieces], borrowed from root
    double* scores;        // [num_pieces]
    uint8_t* types;        // [num_pieces]
    const char* charsmap;  // base64
    const char *eos, *unk;
} Unigram;

// Part i of a "Sequence" (its parts are in `field`), or the part itself; NULL after the end.
static const json_t* step_of(const json_t* part, const char* field, size_t i) {
    const char* type = json_string_value(json_object_get(part, "type"));
    if (type != NULL && strcmp(type, "Sequence") == 0) {
        return json_array_get(json_object_get(part, field), i);
    }
    return i == 0 && json_is_object(part) ? part : NULL;
}

static Status take_pieces(Unigram* u) {
    const json_t *vocab = value_at(u->root, "model.vocab"), *added = value_at(u->root, "added_tokens");
    const json_t *pair, *token, *unk = value_at(u->root, "model.unk_id");
    size_t i, in_model = json_array_size(vocab);
    if (in_model == 0) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: model.vocab is no list [[\"piece\", score], ...] ---> download it again", u->name);
    }
    u->num_pieces = in_model;
    json_array_foreach(added, i, token) {
        json_int_t id = json_integer_value(json_object_get(token, "id"));
        u->num_pieces += id >= 0 && (size_t)id >= in_model;
    }
    ARENA_TRY_NEW(u->pieces, &u->arena, const char*, u->num_pieces);
    ARENA_TRY_NEW(u->scores, &u->arena, double, u->num_pieces);
    ARENA_TRY_NEW(u->types, &u->arena, uint8_t, u->num_pieces);
    json_array_foreach(vocab, i, pair) {
        const char* piece = json_string_value(json_array_get(pair, 0));
        const json_t* score = json_array_get(pair, 1);
        if (json_array_size(pair) != 2 || piece == NULL || piece[0] == '\0' || !json_is_number(score)) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: model.vocab[%zu] is not [\"piece\", score] ---> download it again", u->name, i);
        }
        u->pieces[i] = piece;
        u->scores[i] = json_number_value(score);
        u->types[i] = PIECE_NORMAL;
    }
    json_int_t unk_id = json_is_integer(unk) ? json_integer_value(unk) : -1;
    if (unk_id < 0 || (size_t)unk_id >= in_model) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model.unk_id names none of the %zu pieces " AS_T5, u->name,
                    in_model);
    }
    u->types[unk_id] = PIECE_UNKNOWN;
    u->unk = u->pieces[unk_id];
    return STATUS_OK;
}

// Special tokens of the vocabulary, and those after it (T5's sentinels in some files): never produced from
// text.
static Status take_added(Unigram* u) {
    size_t i;
    const json_t* token;
    json_array_foreach(value_at(u->root, "added_tokens"), i, token) {
        const char* content = json_string_value(json_object_get(token, "content"));
        const json_t* value = json_object_get(token, "id");
        json_int_t id = json_is_integer(value) ? json_integer_value(value) : -1;
        bool in_range = content != NULL && content[0] != '\0' && id >= 0 && (size_t)id < u->num_pieces;
        bool is_free = in_range && (u->pieces[id] == NULL || strcmp(u->pieces[id], content) == 0);
        if (!is_free || !json_is_true(json_object_get(token, "special"))) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: added_tokens[%zu] \"%.60s\" is not a special token with an id of its own, 0 ... "
                        "%zu " AS_T5,
                        u->name, i, content != NULL ? content : "", u->num_pieces - 1);
        }
        u->pieces[id] = content;
        if (u->types[id] != PIECE_UNKNOWN) { u->types[id] = PIECE_CONTROL; }
    }
    for (i = 0; i < u->num_pieces; i++) {
        if (u->pieces[i] == NULL) {
            return FAIL(STATUS_BAD_FORMAT, "%s: added_tokens: none has the id %zu " AS_T5, u->name, i);
        }
        // such a piece would let the library join words, which Hugging Face splits
        if (strstr(u->pieces[i] + 1, BLANK) != NULL && u->types[i] == PIECE_NORMAL) {
            return FAIL(STATUS_BAD_FORMAT, "%s: model.vocab[%zu] \"%.60s\" spans words " AS_T5, u->name, i,
                        u->pieces[i]);
        }
    }
    return STATUS_OK;
}

// Before the model: Metaspace, with or without WhitespaceSplit before it; the character map, then stripping
// and folding of blanks as WhitespaceSplit does. SentencePiece does both, so without WhitespaceSplit both
// must be present.
static Status check_steps(Unigram* u) {
    const json_t *split = value_at(u->root, "pre_tokenizer"), *map = value_at(u->root, "normalizer"), *step;
    bool splits = broken_rule(step_of(split, "pretokenizers", 0), word_split_rules) == NULL;
    bool strips = splits, folds = splits;
    TRY(check_rules(step_of(split, "pretokenizers", splits), metaspace_rules, u->name,
                    "pre_tokenizer: Metaspace.", AS_T5));
    bool has_more = step_of(split, "pretokenizers", (size_t)splits + 1) != NULL;
    TRY(check_rules(step_of(map, "normalizers", 0), character_map_rules, u->name, "normalizer: first step's ",
                    AS_T5));
    u->charsmap = json_string_value(value_at(step_of(map, "normalizers", 0), "precompiled_charsmap"));
    for (size_t i = 1; (step = step_of(map, "normalizers", i)) != NULL; i++) {
        bool is_strip = broken_rule(step, strip_rules) == NULL,
             is_fold = broken_rule(step, fold_rules) == NULL;
        has_more = has_more || (!is_strip && !is_fold);
        strips = strips || is_strip;
        folds = folds || is_fold;
    }
    if (!has_more && u->charsmap != NULL && strips && folds) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT, "%s: %s " AS_T5, u->name,
                has_more              ? "pre_tokenizer or normalizer has steps that T5 does not have"
                : u->charsmap == NULL ? "normalizer has no precompiled_charsmap"
                                      : "normalizer leaves blanks at the end or in a row");
}

// One end-of-text token after the text and nothing else.
static Status take_eos(Unigram* u) {
    const json_t* single = value_at(u->root, "post_processor.single");
    u->eos = json_string_value(value_at(single, "1.SpecialToken.id"));
    if (json_array_size(single) != 2 || value_at(single, "0.Sequence") == NULL || u->eos == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s: post_processor.single is not the text and an end token " AS_T5,
                    u->name);
    }
    for (size_t id = 0; id < u->num_pieces; id++) {
        if (u->types[id] == PIECE_CONTROL && strcmp(u->pieces[id], u->eos) == 0) { return STATUS_OK; }
    }
    return FAIL(STATUS_BAD_FORMAT, "%s: post_processor: \"%.60s\" is no special token of added_tokens " AS_T5,
                u->name, u->eos);
}

// --- writing the model -----------------------------------------------------------------------------------

// Decodes base64 into the arena; false if it is none.
static bool decode_base64(Unigram* u, unsigned char** out, size_t* num_bytes) {
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    size_t length = strcspn(u->charsmap, "=");
    *out = ARENA_NEW(&u->arena, unsigned char, length + 1);
    *num_bytes = 0;
    uint32_t bits = 0;
    for (size_t i = 0; *out != NULL && i < length; i++) {
        const char* digit = strchr(digits, u->charsmap[i]);
        if (digit == NULL) { return false; }
        bits = bits << 6 | (uint32_t)(digit - digits);
        if (i % 4 != 0) { (*out)[(*num_bytes)++] = (unsigned char)(bits >> (6 - 2 * (i % 4))); }
    }
    return *out != NULL;
}

static void put_varint(FILE* out, uint64_t value) {
    for (; value >= 128; value >>= 7) { fputc((int)(value & 127) | 128, out); }
    fputc((int)value, out);
}

static size_t varint_bytes(uint64_t value) {
    size_t num_bytes = 1;
    for (; value >= 128; value >>= 7) { num_bytes++; }
    return num_bytes;
}

// A bytes field: number (wire type 2), length, bytes. `field` is below 2^29.
static void put_bytes(FILE* out, uint32_t field, const void* bytes, size_t num_bytes) {
    put_varint(out, (uint64_t)field << 3 | 2);
    put_varint(out, num_bytes);
    fwrite(bytes, 1, num_bytes, out);
}

static size_t field_bytes(uint32_t field, size_t num_bytes) {
    return varint_bytes((uint64_t)field << 3) + varint_bytes(num_bytes) + num_bytes;
}

// ModelProto { pieces = 1 { piece = 1, score = 2, type = 3 }, trainer_spec = 2 { unk_piece = 45, eos_piece
// = 47 }, normalizer_spec = 3 { precompiled_charsmap = 2 } }. Missing fields have the library's default: a
// Unigram model, a blank before the text, blanks folded and stripped.
static void write_model(FILE* out, const Unigram* u, const unsigned char* charsmap, size_t charsmap_bytes) {
    for (size_t i = 0; i < u->num_pieces; i++) {
        size_t length = strlen(u->pieces[i]);
        float score = (float)u->scores[i];
        put_varint(out, 1 << 3 | 2);
        put_varint(out, field_bytes(1, length) + 1 + sizeof score + 2);
        put_bytes(out, 1, u->pieces[i], length);
        put_varint(out, 2 << 3 | 5);  // 4 bytes, little-endian
        fwrite(&score, sizeof score, 1, out);
        put_varint(out, 3 << 3);
        put_varint(out, u->types[i]);
    }
    size_t unk_bytes = strlen(u->unk), eos_bytes = strlen(u->eos);
    put_varint(out, 2 << 3 | 2);
    put_varint(out, field_bytes(45, unk_bytes) + field_bytes(47, eos_bytes));
    put_bytes(out, 45, u->unk, unk_bytes);
    put_bytes(out, 47, u->eos, eos_bytes);
    put_varint(out, 3 << 3 | 2);
    put_varint(out, field_bytes(2, charsmap_bytes));
    put_bytes(out, 2, charsmap, charsmap_bytes);
}

// The caller frees *model.
static Status convert(Unigram* u, char** model, size_t* num_bytes) {
    unsigned char* charsmap;
    size_t charsmap_bytes;
    TRY(take_pieces(u));
    TRY(check_rules(u->root, unigram_rules, u->name, "", AS_T5));
    TRY(take_added(u));
    TRY(check_steps(u));
    TRY(take_eos(u));
    if (!decode_base64(u, &charsmap, &charsmap_bytes)) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: normalizer: precompiled_charsmap is no base64 ---> download it again", u->name);
    }
    FILE* out = open_memstream(model, num_bytes);
    if (out != NULL) { write_model(out, u, charsmap, charsmap_bytes); }
    return out != NULL && fclose(out) == 0 ? STATUS_OK
                                           : FAIL(STATUS_NO_MEMORY, "%s: no memory for its model", u->name);
}

// --- byte-level BPE --------------------------------------------------------------------------------------

// "left right" or ["left", "right"], depending on the version.
static Status print_merges(HfTokenizer* hf, const json_t* merges, const char* name) {
    size_t num_bytes, i;
    const json_t* merge;
    FILE* out = open_memstream(&hf->merges, &num_bytes);
    if (out == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its merges", name); }
    Status status = STATUS_OK;
    json_array_foreach(merges, i, merge) {
        const char *left = json_string_value(json_array_get(merge, 0)),
                   *right = json_string_value(json_array_get(merge, 1)), *both = json_string_value(merge);
        bool is_pair = json_array_size(merge) == 2 && left != NULL && right != NULL;
        if (both == NULL && !is_pair) {
            status = FAIL(STATUS_BAD_FORMAT, "%s: model.merges[%zu] is not two tokens ---> download it again",
                          name, i);
            break;
        }
        fprintf(out, is_pair ? "%s %s\n" : "%s\n", is_pair ? left : both, right);
    }
    return fclose(out) == 0 || status != STATUS_OK
               ? status
               : FAIL(STATUS_NO_MEMORY, "%s: no memory for its merges", name);
}

// Added tokens are searched in texts: only end-of-text may be one, which texts do not contain.
static Status take_bpe(HfTokenizer* hf, const json_t* root, const char* name) {
    const json_t *vocab = value_at(root, "model.vocab"), *merges = value_at(root, "model.merges"), *token;
    size_t i;
    hf->kind = HF_BPE;
    if (!json_is_object(vocab) || !json_is_array(merges)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model.%s ---> download it again", name,
                    json_is_object(vocab) ? "merges is no list" : "vocab is no object {\"token\": id, ...}");
    }
    TRY(check_rules(root, bpe_rules, name, "", AS_GPT2));
    json_array_foreach(value_at(root, "added_tokens"), i, token) {
        const char* content = json_string_value(json_object_get(token, "content"));
        if (content != NULL && strcmp(content, BPE_EOT_TEXT) == 0) { continue; }
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: added_tokens[%zu] is \"%.60s\" ---> of BPE, only " BPE_EOT_TEXT
                    " may be added; leave the token out, or give vocab.json and merges.txt to "
                    "--tokenizer gpt2",
                    name, i, content != NULL ? content : "no string");
    }
    hf->vocab = json_dumps(vocab, JSON_COMPACT);
    if (hf->vocab == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its vocabulary", name); }
    return print_merges(hf, merges, name);
}

// --- which kind ------------------------------------------------------------------------------------------

static Status take(HfTokenizer* hf, const json_t* root, const char* name) {
    const json_t* model = json_object_get(root, "model");
    const char* type = json_string_value(json_object_get(model, "type"));
    if (type == NULL) {  // older files have no type; the vocabulary's form decides
        type = json_is_array(json_object_get(model, "vocab")) ? "Unigram"
               : json_object_get(model, "merges") != NULL     ? "BPE"
                                                              : "none";
    }
    if (strcmp(type, "BPE") == 0) { return take_bpe(hf, root, name); }
    if (strcmp(type, "Unigram") != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model.type is \"%.60s\" " WORKS, name, type);
    }
    Unigram u = {.root = root, .name = name};
    hf->kind = HF_UNIGRAM;
    Status status = convert(&u, &hf->model, &hf->model_bytes);
    arena_free(&u.arena);
    return status;
}

Status hf_tokenizer_parse(HfTokenizer* out, const char* name, const char* text, size_t num_bytes) {
    json_error_t error;
    *out = (HfTokenizer){0};
    json_t* root = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s: line %d: not JSON: %s " WORKS, name, error.line, error.text);
    }
    HfTokenizer hf = {0};
    Status status = take(&hf, root, name);
    json_decref(root);
    if (status != STATUS_OK) {
        hf_tokenizer_close(&hf);
        return status;
    }
    *out = hf;
    return STATUS_OK;
}

Status hf_tokenizer_open(HfTokenizer* out, const char* path) {
    char* text;
    size_t num_bytes;
    *out = (HfTokenizer){0};
    TRY(file_read_text(&text, &num_bytes, path));
    Status status = hf_tokenizer_parse(out, path, text, num_bytes);
    free(text);
    return status;
}

void hf_tokenizer_close(HfTokenizer* hf) {
    free(hf->model);
    free(hf->vocab);
    free(hf->merges);
    *hf = (HfTokenizer){0};
}
