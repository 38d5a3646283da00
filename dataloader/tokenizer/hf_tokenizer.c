#include "hf_tokenizer.h"

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "bpe.h"
#include "../../util/files.h"

#define BLANK "\xe2\x96\x81"  // U+2581, which stands for a blank in pieces
#define AS_T5                                                                                          \
    "---> of Unigram, only what T5's tokenizer.json has works; else give spiece.model to --tokenizer " \
    "sentencepiece"

// As in sentencepiece_model.proto.
enum { PIECE_NORMAL = 1, PIECE_UNKNOWN = 2, PIECE_CONTROL = 3 };

typedef struct {
    const json_t* root;
    const json_t* model;
    const char* name;
    size_t num_pieces;     // of the model and the added tokens
    const char** pieces;   // [num_pieces], borrowed from root
    double* scores;        // [num_pieces]
    uint8_t* types;        // [num_pieces]
    const char* charsmap;  // base64
    const char *eos, *unk;
} Unigram;

// The "type" of a part; "null" if the part is missing, "?" if it has no type.
static const char* hf_unigram_type(const json_t* part) {
    if (part == NULL || json_is_null(part)) { return "null"; }
    const char* type = json_string_value(json_object_get(part, "type"));
    return type != NULL ? type : "?";
}

static bool is_type(const json_t* part, const char* type) {
    return strcmp(hf_unigram_type(part), type) == 0;
}

// Part i of a "Sequence" (its parts are in `field`), or the part itself; NULL after the end.
static const json_t* step_of(const json_t* part, const char* field, size_t i) {
    if (is_type(part, "Sequence")) { return json_array_get(json_object_get(part, field), i); }
    return i == 0 && !is_type(part, "null") ? part : NULL;
}

// --- pieces ----------------------------------------------------------------------------------------------

static Status take_pieces(Unigram* u) {
    size_t i;
    const json_t *pair, *vocab = json_object_get(u->model, "vocab");
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
    const json_t* unk = json_object_get(u->model, "unk_id");
    if (!json_is_integer(unk) || json_integer_value(unk) < 0 ||
        (size_t)json_integer_value(unk) >= json_array_size(vocab)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model.unk_id names none of the %zu pieces " AS_T5, u->name,
                    json_array_size(vocab));
    }
    size_t unk_id = (size_t)json_integer_value(unk);
    u->types[unk_id] = PIECE_UNKNOWN;
    u->unk = u->pieces[unk_id];
    if (json_is_true(json_object_get(u->model, "byte_fallback"))) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model.byte_fallback is true " AS_T5, u->name);
    }
    return STATUS_OK;
}

// Special tokens of the vocabulary, and those after it (T5's sentinels in some files): never produced from
// text.
static Status take_added(Unigram* u) {
    size_t i;
    const json_t* token;
    json_array_foreach(json_object_get(u->root, "added_tokens"), i, token) {
        const char* content = json_string_value(json_object_get(token, "content"));
        const json_t* id_value = json_object_get(token, "id");
        json_int_t id = json_integer_value(id_value);
        if (content == NULL || content[0] == '\0' || !json_is_integer(id_value) || id < 0 ||
            (size_t)id >= u->num_pieces) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: added_tokens[%zu] \"%.60s\": id %lld ---> ids must be 0 ... %zu, without a gap",
                        u->name, i, content != NULL ? content : "", (long long)id, u->num_pieces - 1);
        }
        if (!json_is_true(json_object_get(token, "special"))) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: added_tokens[%zu] \"%.60s\" is not special, so it is searched in texts " AS_T5,
                        u->name, i, content);
        }
        if (u->pieces[id] != NULL && strcmp(u->pieces[id], content) != 0) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: added_tokens[%zu] \"%.60s\" has the id %lld of \"%.60s\" " AS_T5, u->name, i,
                        content, (long long)id, u->pieces[id]);
        }
        u->pieces[id] = content;
        if (u->types[id] != PIECE_UNKNOWN) { u->types[id] = PIECE_CONTROL; }
    }
    for (i = 0; i < u->num_pieces; i++) {
        if (u->pieces[i] == NULL) {
            return FAIL(STATUS_BAD_FORMAT, "%s: added_tokens: none has the id %zu " AS_T5, u->name, i);
        }
        // such a piece would let the library join words, which Hugging Face splits
        bool spans = strstr(u->pieces[i] + 1, BLANK) != NULL && u->types[i] == PIECE_NORMAL;
        if (spans) {
            return FAIL(STATUS_BAD_FORMAT, "%s: model.vocab[%zu] \"%.60s\" spans words " AS_T5, u->name, i,
                        u->pieces[i]);
        }
    }
    return STATUS_OK;
}

static Status allocate_pieces(Unigram* u) {
    const json_t* vocab = json_object_get(u->model, "vocab");
    size_t i, in_model = json_array_size(vocab), added = 0;
    const json_t* token;
    if (!json_is_array(vocab) || in_model == 0) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: model.vocab is no list [[\"piece\", score], ...] ---> download it again", u->name);
    }
    json_array_foreach(json_object_get(u->root, "added_tokens"), i, token) {
        json_int_t id = json_integer_value(json_object_get(token, "id"));
        added += id >= 0 && (size_t)id >= in_model;
    }
    u->num_pieces = in_model + added;
    u->pieces = calloc(u->num_pieces, sizeof u->pieces[0]);
    u->scores = calloc(u->num_pieces, sizeof u->scores[0]);
    u->types = calloc(u->num_pieces, sizeof u->types[0]);
    return u->pieces != NULL && u->scores != NULL && u->types != NULL
               ? STATUS_OK
               : FAIL(STATUS_NO_MEMORY, "%s: no memory for %zu pieces", u->name, u->num_pieces);
}

// --- processing before and after the model ----------------------------------------------------------------

static Status check_metaspace(const json_t* step, const char* name) {
    const char* replacement = json_string_value(json_object_get(step, "replacement"));
    if (replacement == NULL || strcmp(replacement, BLANK) != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: pre_tokenizer: Metaspace.replacement is not " BLANK " " AS_T5,
                    name);
    }
    const char* prepend = json_string_value(json_object_get(step, "prepend_scheme"));
    if (prepend != NULL && strcmp(prepend, "always") != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: pre_tokenizer: Metaspace.prepend_scheme is not \"always\" " AS_T5,
                    name);
    }
    if (json_is_false(json_object_get(step, "add_prefix_space"))) {
        return FAIL(STATUS_BAD_FORMAT, "%s: pre_tokenizer: Metaspace.add_prefix_space is false " AS_T5, name);
    }
    if (json_is_false(json_object_get(step, "split"))) {
        return FAIL(STATUS_BAD_FORMAT, "%s: pre_tokenizer: Metaspace.split is false " AS_T5, name);
    }
    return STATUS_OK;
}

// Metaspace, with or without WhitespaceSplit before it.
static Status check_pre_tokenizer(const Unigram* u, bool* splits) {
    const json_t* part = json_object_get(u->root, "pre_tokenizer");
    const json_t* first = step_of(part, "pretokenizers", 0);
    *splits = is_type(first, "WhitespaceSplit");
    const json_t* metaspace = step_of(part, "pretokenizers", *splits ? 1 : 0);
    if (!is_type(metaspace, "Metaspace") || step_of(part, "pretokenizers", *splits ? 2 : 1) != NULL) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: pre_tokenizer is \"%.60s\"%s, not WhitespaceSplit and Metaspace " AS_T5, u->name,
                    hf_unigram_type(part), is_type(part, "Sequence") ? " of other parts" : "");
    }
    return check_metaspace(metaspace, u->name);
}

static bool is_right_strip(const json_t* step) {
    return is_type(step, "Strip") && json_is_false(json_object_get(step, "strip_left")) &&
           json_is_true(json_object_get(step, "strip_right"));
}

// Folds consecutive blanks.
static bool is_blank_folding(const json_t* step) {
    const char* pattern = json_string_value(json_object_get(json_object_get(step, "pattern"), "Regex"));
    const char* content = json_string_value(json_object_get(step, "content"));
    return is_type(step, "Replace") && pattern != NULL && strcmp(pattern, " {2,}") == 0 && content != NULL &&
           (strcmp(content, BLANK) == 0 || strcmp(content, " ") == 0);
}

// The character map, then stripping and folding of blanks as WhitespaceSplit does. SentencePiece does both,
// so without WhitespaceSplit both must be present.
static Status check_normalizer(Unigram* u, bool splits) {
    const json_t* part = json_object_get(u->root, "normalizer");
    bool strips = splits, folds = splits;
    for (size_t i = 0;; i++) {
        const json_t* step = step_of(part, "normalizers", i);
        if (step == NULL) { break; }
        bool known = i == 0 ? is_type(step, "Precompiled") : is_right_strip(step) || is_blank_folding(step);
        if (!known) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: normalizer: step %zu is \"%.60s\" as T5 does not have it " AS_T5, u->name, i,
                        hf_unigram_type(step));
        }
        if (i == 0) { u->charsmap = json_string_value(json_object_get(step, "precompiled_charsmap")); }
        strips = strips || is_right_strip(step);
        folds = folds || is_blank_folding(step);
    }
    if (u->charsmap == NULL) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: normalizer has no \"Precompiled\" with precompiled_charsmap " AS_T5, u->name);
    }
    if (!strips || !folds) {
        return FAIL(STATUS_BAD_FORMAT, "%s: normalizer leaves %s, and there is no WhitespaceSplit " AS_T5,
                    u->name, strips ? "runs of blanks" : "blanks at the end");
    }
    return STATUS_OK;
}

// One end-of-text token after the text and nothing else.
static Status take_eos(Unigram* u) {
    const json_t* part = json_object_get(u->root, "post_processor");
    const json_t* single = json_object_get(part, "single");
    if (!is_type(part, "TemplateProcessing")) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: post_processor is \"%.60s\", not \"TemplateProcessing\" with </s> " AS_T5, u->name,
                    hf_unigram_type(part));
    }
    const json_t* text = json_object_get(json_array_get(single, 0), "Sequence");
    const json_t* end = json_object_get(json_array_get(single, 1), "SpecialToken");
    u->eos = json_string_value(json_object_get(end, "id"));
    if (json_array_size(single) != 2 || text == NULL || u->eos == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s: post_processor.single is not the text and an end token " AS_T5,
                    u->name);
    }
    size_t id = 0;
    while (id < u->num_pieces && strcmp(u->pieces[id], u->eos) != 0) { id++; }
    if (id == u->num_pieces || u->types[id] != PIECE_CONTROL) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: post_processor: \"%.60s\" is no special token of added_tokens " AS_T5, u->name,
                    u->eos);
    }
    return STATUS_OK;
}

// --- writing the model -----------------------------------------------------------------------------------

static int base64_digit(char c) {
    if (c >= 'A' && c <= 'Z') { return c - 'A'; }
    if (c >= 'a' && c <= 'z') { return c - 'a' + 26; }
    if (c >= '0' && c <= '9') { return c - '0' + 52; }
    return c == '+' ? 62 : c == '/' ? 63 : -1;
}

// The bytes of the character map; the caller frees them.
static Status decode_base64(const Unigram* u, unsigned char** out, size_t* num_bytes) {
    size_t length = strlen(u->charsmap);
    unsigned char* bytes = malloc(length + 1);
    if (bytes == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for the character map", u->name); }
    while (length > 0 && u->charsmap[length - 1] == '=') { length--; }
    uint32_t bits = 0;
    *num_bytes = 0;
    for (size_t i = 0; i < length; i++) {
        int digit = base64_digit(u->charsmap[i]);
        if (digit < 0) {
            free(bytes);
            return FAIL(
                STATUS_BAD_FORMAT,
                "%s: normalizer: precompiled_charsmap is no base64 at character %zu ---> download it again",
                u->name, i);
        }
        bits = bits << 6 | (uint32_t)digit;
        if (i % 4 != 0) { bytes[(*num_bytes)++] = (unsigned char)(bits >> (6 - 2 * (i % 4))); }
    }
    *out = bytes;
    return STATUS_OK;
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

static Status encode_model(const Unigram* u, char** model, size_t* num_bytes) {
    unsigned char* charsmap = NULL;
    size_t charsmap_bytes = 0;
    TRY(decode_base64(u, &charsmap, &charsmap_bytes));
    FILE* out = open_memstream(model, num_bytes);
    if (out != NULL) { write_model(out, u, charsmap, charsmap_bytes); }
    free(charsmap);
    bool failed = out == NULL || ferror(out);
    if (out != NULL && fclose(out) != 0) { failed = true; }
    return failed ? FAIL(STATUS_NO_MEMORY, "%s: no memory for its model", u->name) : STATUS_OK;
}

static Status convert(Unigram* u, char** model, size_t* num_bytes) {
    bool splits;
    TRY(allocate_pieces(u));
    TRY(take_pieces(u));
    TRY(take_added(u));
    TRY(check_pre_tokenizer(u, &splits));
    TRY(check_normalizer(u, splits));
    TRY(take_eos(u));
    return encode_model(u, model, num_bytes);
}

// The caller frees *model. `name` is used in messages.
static Status hf_unigram_to_model(const json_t* root, const char* name, char** model, size_t* num_bytes) {
    Unigram u = {.root = root, .model = json_object_get(root, "model"), .name = name};
    Status status = convert(&u, model, num_bytes);
    free(u.pieces);
    free(u.scores);
    free(u.types);
    return status;
}

#define WORKS "---> a tokenizer.json as of T5 (Unigram) or of GPT-2 (byte-level BPE) works"
#define AS_GPT2 "---> of BPE, only what GPT-2's tokenizer.json has works"

// --- byte-level BPE --------------------------------------------------------------------------------------

static bool is_null_or(const json_t* value, const char* text) {
    return value == NULL || json_is_null(value) ||
           (json_is_string(value) && strcmp(json_string_value(value), text) == 0);
}

static Status check_bpe_model(const json_t* model, const char* name) {
    static const char* const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    static const char* const flags[] = {"byte_fallback", "ignore_merges"};
    for (int i = 0; i < 2; i++) {
        const json_t* affix = json_object_get(model, affixes[i]);
        if (!is_null_or(affix, "")) {
            return FAIL(STATUS_BAD_FORMAT, "%s: model.%s is not empty " AS_GPT2, name, affixes[i]);
        }
        if (json_is_true(json_object_get(model, flags[i]))) {
            return FAIL(STATUS_BAD_FORMAT, "%s: model.%s is true " AS_GPT2, name, flags[i]);
        }
    }
    const json_t* dropout = json_object_get(model, "dropout");
    if (dropout != NULL && !json_is_null(dropout) && json_number_value(dropout) != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model.dropout makes tokens random ---> set it to null", name);
    }
    return STATUS_OK;
}

static Status check_bpe_steps(const json_t* root, const char* name) {
    const char* normalizer = hf_unigram_type(json_object_get(root, "normalizer"));
    if (strcmp(normalizer, "null") != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: normalizer is \"%.60s\", not null " AS_GPT2, name, normalizer);
    }
    const json_t* split = json_object_get(root, "pre_tokenizer");
    if (strcmp(hf_unigram_type(split), "ByteLevel") != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: pre_tokenizer is \"%.60s\", not \"ByteLevel\" " AS_GPT2, name,
                    hf_unigram_type(split));
    }
    if (!json_is_false(json_object_get(split, "add_prefix_space"))) {
        return FAIL(STATUS_BAD_FORMAT, "%s: pre_tokenizer.add_prefix_space is not false " AS_GPT2, name);
    }
    if (json_is_false(json_object_get(split, "use_regex"))) {
        return FAIL(STATUS_BAD_FORMAT, "%s: pre_tokenizer.use_regex is false " AS_GPT2, name);
    }
    const char* ending = hf_unigram_type(json_object_get(root, "post_processor"));
    if (strcmp(ending, "null") != 0 && strcmp(ending, "ByteLevel") != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: post_processor is \"%.60s\", not null or \"ByteLevel\" " AS_GPT2,
                    name, ending);
    }
    return STATUS_OK;
}

// Tokens searched in the text before splitting: only end-of-text, which texts do not contain.
static Status check_bpe_added(const json_t* root, const char* name) {
    size_t i;
    const json_t *token, *added = json_object_get(root, "added_tokens");
    json_array_foreach(added, i, token) {
        const char* content = json_string_value(json_object_get(token, "content"));
        if (content == NULL || strcmp(content, BPE_EOT_TEXT) != 0) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: added_tokens[%zu] is \"%.60s\" ---> of BPE, only " BPE_EOT_TEXT
                        " may be added; leave the token out, or give vocab.json and merges.txt to "
                        "--tokenizer gpt2",
                        name, i, content != NULL ? content : "no string");
        }
    }
    return STATUS_OK;
}

// "left right" or ["left", "right"], depending on the version.
static Status print_merge(FILE* out, const json_t* merge, const char* name, size_t i) {
    const char *left = json_string_value(merge), *right = NULL;
    if (json_array_size(merge) == 2) {
        left = json_string_value(json_array_get(merge, 0));
        right = json_string_value(json_array_get(merge, 1));
    }
    if (left == NULL || (right == NULL) == (json_is_array(merge) != 0) || strchr(left, '\n') != NULL ||
        (right != NULL && strchr(right, '\n') != NULL)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model.merges[%zu] is not two tokens ---> download it again", name,
                    i);
    }
    fprintf(out, right != NULL ? "%s %s\n" : "%s\n", left, right);
    return STATUS_OK;
}

static Status print_merges(HfTokenizer* hf, const json_t* merges, const char* name) {
    size_t num_bytes, i;
    const json_t* merge;
    FILE* out = open_memstream(&hf->merges, &num_bytes);
    if (out == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its merges", name); }
    Status status = STATUS_OK;
    json_array_foreach(merges, i, merge) {
        if (status == STATUS_OK) { status = print_merge(out, merge, name, i); }
    }
    return fclose(out) == 0 || status != STATUS_OK
               ? status
               : FAIL(STATUS_NO_MEMORY, "%s: no memory for its merges", name);
}

static Status take_bpe(HfTokenizer* hf, const json_t* root, const json_t* model, const char* name) {
    hf->kind = HF_BPE;
    const json_t *vocab = json_object_get(model, "vocab"), *merges = json_object_get(model, "merges");
    if (!json_is_object(vocab) || !json_is_array(merges)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: model.%s ---> download it again", name,
                    json_is_object(vocab) ? "merges is no list" : "vocab is no object {\"token\": id, ...}");
    }
    TRY(check_bpe_model(model, name));
    TRY(check_bpe_steps(root, name));
    TRY(check_bpe_added(root, name));
    hf->vocab = json_dumps(vocab, JSON_COMPACT);
    if (hf->vocab == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for its vocabulary", name); }
    return print_merges(hf, merges, name);
}

// --- which kind ------------------------------------------------------------------------------------------

static Status take(HfTokenizer* hf, const json_t* root, const char* name) {
    const json_t* model = json_object_get(root, "model");
    if (!json_is_object(model)) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: \"model\" is no object: no tokenizer.json of Hugging Face's " WORKS, name);
    }
    const char* type = json_string_value(json_object_get(model, "type"));
    if (type == NULL) {  // older files have no type; the vocabulary's form decides
        bool has_merges = json_object_get(model, "merges") != NULL;
        type = json_is_array(json_object_get(model, "vocab")) ? "Unigram" : has_merges ? "BPE" : "none";
    }
    if (strcmp(type, "BPE") == 0) { return take_bpe(hf, root, model, name); }
    if (strcmp(type, "Unigram") == 0) {
        hf->kind = HF_UNIGRAM;
        return hf_unigram_to_model(root, name, &hf->model, &hf->model_bytes);
    }
    return FAIL(STATUS_BAD_FORMAT, "%s: model.type is \"%.60s\" " WORKS, name, type);
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
