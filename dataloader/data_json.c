#include "data_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>
#include "../util/files.h"
#include "../util/numbers.h"

enum { PATH_CHARS = 4200 };
#define AGAIN "---> prepare the data again"

static const char* const tokenizer_names[] = {"unknown", "bytes", "gpt2", "byt5", "sentencepiece", NULL};
static const char* const end_names[] = {"unknown", "newline", "eos", "none", NULL};

const DataTemplate data_plain = {.prompt = "{inputs}",
                                 .system = "{content}\n",
                                 .user = "{system}{content}",
                                 .next = "{content}",
                                 .assistant = "{content}",
                                 .joint = "\n",
                                 .turn_end = "\n"};

// Texts in objects of data.json.
#define FORM(name) \
    { "template", #name, offsetof(DataJson, form.name) }
#define FIELD(name) \
    { "fields", #name, offsetof(DataJson, name##_field) }
static const struct {
    const char *group, *name;
    size_t offset;
} data_texts[] = {FORM(name),    FORM(context),  FORM(next), FORM(joint),     FORM(turn_end),
                  FORM(prompt),  FORM(system),   FORM(user), FORM(assistant), FORM(record),
                  FIELD(inputs), FIELD(targets), FIELD(task)};
enum { NUM_TEXTS = sizeof data_texts / sizeof data_texts[0] };

static const char** text_of(const DataJson* data, int i) {
    return (const char**)((uintptr_t)data + data_texts[i].offset);
}

static void path_in(char out[PATH_CHARS], const char* folder, const char* name) {
    snprintf(out, PATH_CHARS, "%s/%s", folder, name);
}

// --- writing ---------------------------------------------------------------------------------------------

char* data_json_text(const DataJson* data) {
    char hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)data->vocab.hash);
    json_t* root = json_pack("{s:s, s:i, s:i, s:i, s:s, s:s}", "tokenizer",
                             tokenizer_names[data->vocab.tokenizer], "tokens", (int)data->vocab.num_tokens,
                             "end", (int)data->vocab.eot_token, "padding", (int)data->vocab.pad_token,
                             "vocabulary", hash, "input_end", end_names[data->vocab.input_end]);
    bool is_text = root != NULL;
    for (int i = 0; i < NUM_TEXTS && is_text; i++) {
        const char* text = *text_of(data, i);
        if (text == NULL) { continue; }
        json_t* group = json_object_get(root, data_texts[i].group);
        if (group == NULL) {
            json_object_set_new(root, data_texts[i].group, json_object());
            group = json_object_get(root, data_texts[i].group);
        }
        is_text = json_object_set_new(group, data_texts[i].name, json_string(text)) == 0;
    }
    char* text = is_text ? json_dumps(root, JSON_PRESERVE_ORDER | JSON_INDENT(2)) : NULL;
    json_decref(root);
    return text;
}

Status data_json_write(const DataJson* data, const char* folder) {
    char path[PATH_CHARS], *text = data_json_text(data);
    if (text == NULL) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "data.json: a text of the template, or a field's name, is not UTF-8 ---> write it as UTF-8");
    }
    path_in(path, folder, "data.json");
    size_t num_bytes = strlen(text);
    text[num_bytes++] = '\n';  // replaces the NUL
    Status status = file_write(path, text, num_bytes);
    free(text);
    return status;
}

// --- reading ---------------------------------------------------------------------------------------------

// The index of the name; 0 is "unknown".
static Status read_name(int* out, const json_t* root, const char* field, const char* const* names,
                        const char* path) {
    const json_t* value = json_object_get(root, field);
    for (int i = 1; json_is_string(value) && names[i] != NULL; i++) {
        if (strcmp(json_string_value(value), names[i]) == 0) {
            *out = i;
            return STATUS_OK;
        }
    }
    return FAIL(STATUS_BAD_FORMAT, "%s: \"%s\" is missing or unknown " AGAIN, path, field);
}

static Status read_number(int32_t* out, const json_t* root, const char* field, int32_t least,
                          const char* path) {
    const json_t* value = json_object_get(root, field);
    if (!json_is_integer(value) || json_integer_value(value) < least ||
        json_integer_value(value) > INT32_MAX) {
        return FAIL(STATUS_BAD_FORMAT, "%s: \"%s\" is no number from %d on " AGAIN, path, field, least);
    }
    *out = (int32_t)json_integer_value(value);
    return STATUS_OK;
}

static Status read_all(DataJson* out, const json_t* root, const char* path) {
    int tokenizer, input_end;
    const char* hash = json_string_value(json_object_get(root, "vocabulary"));
    TRY(read_name(&tokenizer, root, "tokenizer", tokenizer_names, path));
    TRY(read_name(&input_end, root, "input_end", end_names, path));
    TRY(read_number(&out->vocab.num_tokens, root, "tokens", 1, path));
    TRY(read_number(&out->vocab.eot_token, root, "end", 0, path));
    TRY(read_number(&out->vocab.pad_token, root, "padding", -1, path));
    out->vocab.tokenizer = (SampleTokenizer)tokenizer;
    out->vocab.input_end = (SampleInputEnd)input_end;
    out->vocab.hash = hash != NULL ? strtoull(hash, NULL, 16) : 0;
    for (int i = 0; i < NUM_TEXTS; i++) {
        const json_t* value = json_object_get(json_object_get(root, data_texts[i].group), data_texts[i].name);
        if (value == NULL) { continue; }
        if (!json_is_string(value)) {
            return FAIL(STATUS_BAD_FORMAT, "%s: \"%s\": \"%s\" is no text " AGAIN, path, data_texts[i].group,
                        data_texts[i].name);
        }
        *text_of(out, i) = json_string_value(value);
    }
    return STATUS_OK;
}

Status data_json_parse(DataJson* out, const char* text, size_t num_bytes, const char* name) {
    json_error_t error;
    *out = (DataJson){0};
    json_t* root = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s: not JSON at byte %d: %s " AGAIN, name, error.position,
                    error.text);
    }
    *out = (DataJson){.form = data_plain, .owned = root};
    Status status = read_all(out, root, name);
    if (status != STATUS_OK) { data_json_free(out); }
    return status;
}

Status data_json_read(DataJson* out, const char* folder, bool* is_there) {
    char path[PATH_CHARS], *text;
    size_t num_bytes;
    *out = (DataJson){.form = data_plain};
    path_in(path, folder, "data.json");
    *is_there = access(path, F_OK) == 0;
    if (!*is_there) { return STATUS_OK; }
    TRY(file_read_text(&text, &num_bytes, path));
    Status status = data_json_parse(out, text, num_bytes, path);
    free(text);
    return status;
}

void data_json_free(DataJson* data) {
    json_decref((json_t*)data->owned);
    *data = (DataJson){0};
}

// --- what maps text to ids -------------------------------------------------------------------------------

// Lengths are hashed too, so that "ab", "c" and "a", "bc" differ.
static uint64_t hash_text(uint64_t hash, const void* text, size_t num_bytes) {
    uint64_t length = num_bytes;
    return hash_bytes(hash_bytes(hash, &length, sizeof length), text, num_bytes);
}

static uint64_t hash_piece(uint64_t hash, const char* text, size_t num_bytes, float score) {
    static const char* const sentinels[] = {"<extra_id_", "\xe2\x96\x81<extra_id_"};  // T5's, mT5's
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(sentinels[i]);
        if (num_bytes > length && memcmp(text, sentinels[i], length) == 0) { return hash; }
    }
    return hash_bytes(hash_text(hash, text, num_bytes), &score, sizeof score);
}

// A protobuf's bytes that are not read yet, or a field's.
typedef struct {
    const uint8_t *at, *end;
} Proto;

static bool read_varint(Proto* p, uint64_t* out) {
    *out = 0;
    for (int shift = 0; shift < 64 && p->at < p->end; shift += 7) {
        *out |= (uint64_t)(*p->at & 0x7f) << shift;
        if (*p->at++ < 0x80) { return true; }
    }
    return false;
}

// The next field's number, 0 at the end or where it is broken, and its bytes.
static uint64_t next_field(Proto* p, Proto* field) {
    uint64_t tag, num_bytes = 0;
    if (p->at == p->end || !read_varint(p, &tag)) { return 0; }
    switch (tag & 7) {
        case 0:
            if (!read_varint(p, &num_bytes)) { return 0; }
            num_bytes = 0;
            break;
        case 1: num_bytes = 8; break;
        case 2:
            if (!read_varint(p, &num_bytes)) { return 0; }
            break;
        case 5: num_bytes = 4; break;
        default: return 0;
    }
    if (num_bytes > (uint64_t)(p->end - p->at)) { return 0; }
    *field = (Proto){p->at, p->at + num_bytes};
    p->at = field->end;
    return tag >> 3;
}

// ModelProto: field 1 is a piece, with its text (1) and score (2).
Status vocab_hash_pieces(uint64_t* out, const VocabFile* model) {
    Proto all = {(const uint8_t*)model->text, (const uint8_t*)model->text + model->num_bytes}, piece, field;
    uint64_t hash = HASH_SEED, number;
    int64_t num_pieces = 0;
    while ((number = next_field(&all, &piece)) != 0) {
        Proto text = {NULL, NULL};
        float score = 0;
        if (number != 1) { continue; }
        while ((number = next_field(&piece, &field)) != 0) {
            if (number == 1) { text = field; }
            if (number == 2 && field.end - field.at == 4) { memcpy(&score, field.at, sizeof score); }
        }
        if (text.at != NULL) {
            hash = hash_piece(hash, (const char*)text.at, (size_t)(text.end - text.at), score);
        }
        num_pieces++;
    }
    *out = hash_finish(hash) | 1;
    if (num_pieces > 0 && all.at == all.end) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT, "%s: no SentencePiece model ---> download it again", model->name);
}

static uint64_t hash_merges_text(uint64_t hash, const VocabFile* merges) {
    const char* end = merges->text + merges->num_bytes;
    for (const char *line = merges->text, *next; line < end; line = next) {
        const char* newline = (const char*)memchr(line, '\n', (size_t)(end - line));
        size_t num_bytes = (size_t)((newline != NULL ? newline : end) - line);
        next = line + num_bytes + 1;
        if (num_bytes > 0 && line[num_bytes - 1] == '\r') { num_bytes--; }
        bool is_comment = num_bytes >= 8 && memcmp(line, "#version", 8) == 0;
        if (num_bytes > 0 && !is_comment) { hash = hash_text(hash, line, num_bytes); }
    }
    return hash;
}

// Merges are "left right" or ["left", "right"], depending on the version.
static uint64_t hash_merges_json(uint64_t hash, const json_t* merges) {
    size_t i;
    const json_t* merge;
    json_array_foreach(merges, i, merge) {
        const char *left = json_string_value(json_array_get(merge, 0)),
                   *right = json_string_value(json_array_get(merge, 1)), *both = json_string_value(merge);
        json_t* joined = left != NULL && right != NULL ? json_sprintf("%s %s", left, right) : NULL;
        if (joined != NULL) { both = json_string_value(joined); }
        if (both != NULL) { hash = hash_text(hash, both, strlen(both)); }
        json_decref(joined);
    }
    return hash;
}

// In any order, as an object has none.
static uint64_t hash_ids(const json_t* vocab) {
    uint64_t sum = 0;
    const char* token;
    json_t* id;
    json_object_foreach((json_t*)(uintptr_t)vocab, token, id) {
        int64_t number = json_integer_value(id);
        sum += hash_finish(hash_bytes(hash_text(HASH_SEED, token, strlen(token)), &number, sizeof number));
    }
    return sum;
}

Status vocab_hash_json(uint64_t* out, SampleTokenizer* kind, const VocabFile* vocab,
                       const VocabFile* merges) {
    json_error_t error;
    json_t* root = json_loadb(vocab->text, vocab->num_bytes, 0, &error);
    const json_t *model = json_object_get(root, "model"), *list = json_object_get(model, "vocab"), *piece;
    uint64_t hash = HASH_SEED, ids = hash_ids(merges != NULL ? root : list);
    size_t i;
    *kind = merges != NULL || json_is_object(list) ? TOKENIZER_GPT2 : TOKENIZER_UNKNOWN;
    json_array_foreach(list, i, piece) {
        const char* text = json_string_value(json_array_get(piece, 0));
        float score = (float)json_number_value(json_array_get(piece, 1));
        if (text != NULL) {
            hash = hash_piece(hash, text, json_string_length(json_array_get(piece, 0)), score);
        }
        *kind = TOKENIZER_SENTENCEPIECE;
    }
    if (*kind == TOKENIZER_GPT2) {
        hash = hash_bytes(hash, &ids, sizeof ids);
        hash = merges != NULL ? hash_merges_text(hash, merges)
                              : hash_merges_json(hash, json_object_get(model, "merges"));
    }
    *out = hash_finish(hash) | 1;
    bool is_json = root != NULL;
    json_decref(root);
    if (is_json) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT, "%s: line %d: not JSON: %s ---> download it again", vocab->name,
                error.line, error.text);
}

Status tokenizer_config_read(TokenizerConfig* out, const char* folder) {
    char path[PATH_CHARS];
    path_in(path, folder, "tokenizer_config.json");
    json_t* root = json_load_file(path, 0, NULL);
    const char* name = json_string_value(json_object_get(root, "tokenizer_class"));
    const json_t* number = json_object_get(root, "extra_ids");
    bool in_range =
        json_is_integer(number) && json_integer_value(number) >= 0 && json_integer_value(number) <= 100000;
    const json_t *eos = json_object_get(root, "eos_token"), *content = json_object_get(eos, "content");
    const char* end = json_string_value(content != NULL ? content : eos);
    *out = (TokenizerConfig){.is_byt5 = name != NULL && strcmp(name, "ByT5Tokenizer") == 0,
                             .without_bos = json_is_false(json_object_get(root, "add_bos_token")),
                             .extra_ids = in_range ? (int32_t)json_integer_value(number) : -1};
    snprintf(out->end, sizeof out->end, "%s", end != NULL ? end : "");
    const bool is_bad = !json_is_object(root) || (eos != NULL && !json_is_null(eos) && end == NULL);
    json_decref(root);
    if (!is_bad || access(path, F_OK) != 0) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT, "%s: no JSON object, or its eos_token no text ---> download it again",
                path);
}

const char* tokenizer_name(SampleTokenizer kind) {
    return tokenizer_names[kind];
}

// *text NULL: no such file.
static Status read_if_there(VocabFile* out, char path[PATH_CHARS], const char* folder, const char* name) {
    char* text = NULL;
    path_in(path, folder, name);
    *out = (VocabFile){.name = path};
    if (access(path, F_OK) == 0) { TRY(file_read_text(&text, &out->num_bytes, path)); }
    out->text = text;
    return STATUS_OK;
}

Status vocab_hash_folder(uint64_t* out, SampleTokenizer* kind, const char* folder) {
    static const char* const names[] = {"spiece.model", "tokenizer.model", "vocab.json", "merges.txt",
                                        "tokenizer.json"};
    enum { PIECES, LLAMA_PIECES, VOCAB, MERGES, JSON, NUM };
    char paths[NUM][PATH_CHARS];
    VocabFile files[NUM] = {{0}};
    Status status = STATUS_OK;
    *out = 0;
    TokenizerConfig config;
    TRY(tokenizer_config_read(&config, folder));
    *kind = config.is_byt5 ? TOKENIZER_BYT5 : TOKENIZER_UNKNOWN;
    for (int i = 0; i < NUM && status == STATUS_OK; i++) {
        status = read_if_there(&files[i], paths[i], folder, names[i]);
    }
    const VocabFile* pieces = &files[files[PIECES].text != NULL ? PIECES : LLAMA_PIECES];
    if (status == STATUS_OK && pieces->text != NULL) {
        *kind = TOKENIZER_SENTENCEPIECE;
        status = vocab_hash_pieces(out, pieces);
    } else if (status == STATUS_OK && files[JSON].text != NULL) {
        status = vocab_hash_json(out, kind, &files[JSON], NULL);
    } else if (status == STATUS_OK && files[VOCAB].text != NULL && files[MERGES].text != NULL) {
        status = vocab_hash_json(out, kind, &files[VOCAB], &files[MERGES]);
    }
    for (int i = 0; i < NUM; i++) { free((char*)(uintptr_t)files[i].text); }
    return status;
}

Status vocab_check_folder(bool* is_known, const char* folder, const char* model, const char* data,
                          SampleTokenizer kind, uint64_t hash) {
    SampleTokenizer theirs;
    uint64_t their_hash;
    TRY(vocab_hash_folder(&their_hash, &theirs, folder));
    *is_known = theirs != TOKENIZER_UNKNOWN && kind != TOKENIZER_UNKNOWN;
    if (!*is_known || (kind == theirs && (their_hash == hash || their_hash == 0 || hash == 0))) {
        return STATUS_OK;
    }
    return FAIL(
        STATUS_MISMATCH,
        "%.80s: its tokenizer (%s, %016llx) is not that of %.80s (%s, %016llx): the same ids mean other text "
        "---> prepare the data with --tokenizer %.80s",
        model, tokenizer_name(theirs), (unsigned long long)their_hash, data, tokenizer_name(kind),
        (unsigned long long)hash, folder);
}

// --- copies ----------------------------------------------------------------------------------------------

// data.json last: if it exists, the others do
static const char* const file_names[] = {"tokenizer.bin",
                                         "vocab.json",
                                         "merges.txt",
                                         "spiece.model",
                                         "tokenizer.model",
                                         "tokenizer.json",
                                         "tokenizer_config.json",
                                         "special_tokens_map.json",
                                         "added_tokens.json",
                                         "data.json"};
enum { NUM_FILES = sizeof file_names / sizeof file_names[0], FIRST_OF_MODEL = 1, DATA_FILE = NUM_FILES - 1 };

static bool has_file(char path[PATH_CHARS], const char* folder, int i) {
    path_in(path, folder, file_names[i]);
    return access(path, F_OK) == 0;
}

static Status copy_files(const char* from, const char* to, int begin, int end) {
    char source[PATH_CHARS], target[PATH_CHARS];
    for (int i = begin; i < end; i++) {
        path_in(target, to, file_names[i]);
        if (has_file(source, from, i)) { TRY(file_copy(source, target)); }
    }
    return STATUS_OK;
}

Status tokenizer_files_copy(const char* from, const char* to) {
    return copy_files(from, to, FIRST_OF_MODEL, DATA_FILE);
}

const char* tokenizer_files_foreign(const char* from, const char* folder) {
    char path[PATH_CHARS];
    for (int i = FIRST_OF_MODEL; i < DATA_FILE; i++) {
        if (has_file(path, folder, i) && !has_file(path, from, i)) { return file_names[i]; }
    }
    return NULL;
}

Status data_json_copy(const char* from, const char* to) {
    char source[PATH_CHARS];
    return has_file(source, from, DATA_FILE) ? copy_files(from, to, 0, NUM_FILES) : STATUS_OK;
}
