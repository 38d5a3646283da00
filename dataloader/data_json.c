#include "data_json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>

enum { PATH_CHARS = 4200 };
#define AGAIN "---> prepare the data again"

static const char* const tokenizer_names[] = {"unknown", "bytes", "gpt2", "byt5", "sentencepiece", NULL};
static const char* const end_names[] = {"unknown", "newline", "eos", "none", NULL};
static const char* const long_names[] = {"cut-input-end", "cut-input-start", "cut-input-middle", "skip",
                                         NULL};

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
    if (is_text && data->long_samples != LONG_CUT_END) {
        json_object_set_new(root, "long_samples", json_string(long_names[data->long_samples]));
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

// The index of the name, from `first` on.
static Status read_name(int* out, const json_t* value, const char* field, const char* const* names, int first,
                        const char* path) {
    for (int i = first; json_is_string(value) && names[i] != NULL; i++) {
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
    int tokenizer, input_end, long_samples = LONG_CUT_END;
    const char* hash = json_string_value(json_object_get(root, "vocabulary"));
    const json_t* way = json_object_get(root, "long_samples");
    TRY(read_name(&tokenizer, json_object_get(root, "tokenizer"), "tokenizer", tokenizer_names, 1, path));
    TRY(read_name(&input_end, json_object_get(root, "input_end"), "input_end", end_names, 1, path));
    if (way != NULL) { TRY(read_name(&long_samples, way, "long_samples", long_names, 0, path)); }
    TRY(read_number(&out->vocab.num_tokens, root, "tokens", 1, path));
    TRY(read_number(&out->vocab.eot_token, root, "end", 0, path));
    TRY(read_number(&out->vocab.pad_token, root, "padding", -1, path));
    out->vocab.tokenizer = (SampleTokenizer)tokenizer;
    out->vocab.input_end = (SampleInputEnd)input_end;
    out->vocab.hash = hash != NULL ? strtoull(hash, NULL, 16) : 0;
    out->long_samples = (LongSamples)long_samples;
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

// --- copies ----------------------------------------------------------------------------------------------

Status data_json_copy(const char* from, const char* to) {
    // data.json last: if it exists, the others do
    static const char* const names[] = {"tokenizer.bin", "vocab.json",     "merges.txt",
                                        "spiece.model",  "tokenizer.json", "data.json"};
    enum { NUM_NAMES = sizeof names / sizeof names[0] };
    char source[PATH_CHARS], target[PATH_CHARS];
    path_in(source, from, names[NUM_NAMES - 1]);
    if (access(source, F_OK) != 0) { return STATUS_OK; }
    for (int i = 0; i < NUM_NAMES; i++) {
        path_in(source, from, names[i]);
        path_in(target, to, names[i]);
        if (access(source, F_OK) == 0) { TRY(file_copy(source, target)); }
    }
    return STATUS_OK;
}
