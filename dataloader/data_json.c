#include "data_json.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <jansson.h>

enum { PATH_CHARS = 4200 };

static const char* const tokenizer_names[] = {"unknown", "bytes", "gpt2", "byt5", "sentencepiece"};
static const char* const end_names[] = {"unknown", "newline", "eos", "none"};
enum { NUM_TOKENIZERS = sizeof tokenizer_names / sizeof tokenizer_names[0] };
enum { NUM_ENDS = sizeof end_names / sizeof end_names[0] };

const DataJson data_json_plain = {.prompt = "{inputs}",
                                  .system = "{content}\n",
                                  .user = "{system}{content}",
                                  .next = "{content}",
                                  .assistant = "{content}",
                                  .joint = "\n",
                                  .turn_end = "\n"};

typedef struct {
    const char* name;
    size_t offset;
} Text;
static const Text texts[] = {
    {"name", offsetof(DataJson, name)},           {"context", offsetof(DataJson, context)},
    {"next", offsetof(DataJson, next)},           {"joint", offsetof(DataJson, joint)},
    {"turn_end", offsetof(DataJson, turn_end)},   {"prompt", offsetof(DataJson, prompt)},
    {"system", offsetof(DataJson, system)},       {"user", offsetof(DataJson, user)},
    {"assistant", offsetof(DataJson, assistant)}, {"record", offsetof(DataJson, record)},
};
static const Text fields[] = {
    {"inputs", offsetof(DataJson, inputs_field)},
    {"targets", offsetof(DataJson, targets_field)},
    {"task", offsetof(DataJson, task_field)},
};

// Objects of texts in data.json.
static const struct {
    const char* name;
    const Text* texts;
    int num_texts;
} groups[] = {{"template", texts, sizeof texts / sizeof texts[0]},
              {"fields", fields, sizeof fields / sizeof fields[0]}};
enum { NUM_GROUPS = sizeof groups / sizeof groups[0] };

static const char* const long_names[] = {"cut-input-end", "cut-input-start", "cut-input-middle", "skip"};
enum { NUM_LONGS = sizeof long_names / sizeof long_names[0] };

static char** text_of(const DataJson* data, const Text* text) {
    return (char**)((uintptr_t)data + text->offset);
}

static void path_in(char out[PATH_CHARS], const char* folder, const char* name) {
    snprintf(out, PATH_CHARS, "%s/%s", folder, name);
}

// --- writing
// -------------------------------------------------------------------------------------------------

// NULL: a text is not UTF-8.
static json_t* to_json(const DataJson* data) {
    char hash[24];
    snprintf(hash, sizeof hash, "%016llx", (unsigned long long)data->vocab.hash);
    json_t* root = json_pack("{s:s, s:i, s:i, s:i, s:s, s:s}", "tokenizer",
                             tokenizer_names[data->vocab.tokenizer], "tokens", (int)data->vocab.num_tokens,
                             "end", (int)data->vocab.eot_token, "padding", (int)data->vocab.pad_token,
                             "vocabulary", hash, "input_end", end_names[data->vocab.input_end]);
    bool is_text = true;
    for (int g = 0; g < NUM_GROUPS; g++) {
        json_t* group = json_object();
        for (int i = 0; i < groups[g].num_texts; i++) {
            const char* text = *text_of(data, &groups[g].texts[i]);
            if (text == NULL) { continue; }
            is_text = json_object_set_new(group, groups[g].texts[i].name, json_string(text)) == 0 && is_text;
        }
        if (json_object_size(group) > 0) { json_object_set(root, groups[g].name, group); }
        json_decref(group);
    }
    if (data->long_samples != LONG_CUT_END) {
        json_object_set_new(root, "long_samples", json_string(long_names[data->long_samples]));
    }
    if (is_text) { return root; }
    json_decref(root);
    return NULL;
}

char* data_json_text(const DataJson* data) {
    json_t* root = to_json(data);
    char* text = root == NULL ? NULL : json_dumps(root, JSON_PRESERVE_ORDER | JSON_INDENT(2));
    json_decref(root);
    return text;
}

Status data_json_write(const DataJson* data, const char* folder) {
    char path[PATH_CHARS], *text = data_json_text(data);
    FileWriter writer;
    if (text == NULL) {
        return FAIL(
            STATUS_BAD_FORMAT,
            "data.json: a text of the template, or a field's name, is not UTF-8 ---> write it as UTF-8");
    }
    path_in(path, folder, "data.json");
    Status status = file_writer_open(&writer, path);
    if (status == STATUS_OK) {
        file_writer_write(&writer, text, strlen(text));
        file_writer_write(&writer, "\n", 1);
        status = file_writer_commit(&writer);
    }
    free(text);
    return status;
}

// --- reading
// -------------------------------------------------------------------------------------------------

static Status read_name(int* out, const json_t* root, const char* field, const char* const* names,
                        int num_names, const char* path) {
    const char* value = json_string_value(json_object_get(root, field));
    for (int i = 1; value != NULL && i < num_names; i++) {
        if (strcmp(value, names[i]) == 0) {
            *out = i;
            return STATUS_OK;
        }
    }
    return FAIL(STATUS_BAD_FORMAT, "%s: \"%s\" is missing or unknown ---> prepare the data again", path,
                field);
}

static Status read_number(int32_t* out, const json_t* root, const char* field, int32_t least,
                          const char* path) {
    const json_t* value = json_object_get(root, field);
    if (!json_is_integer(value) || json_integer_value(value) < least ||
        json_integer_value(value) > INT32_MAX) {
        return FAIL(STATUS_BAD_FORMAT, "%s: \"%s\" is no number from %d on ---> prepare the data again", path,
                    field, least);
    }
    *out = (int32_t)json_integer_value(value);
    return STATUS_OK;
}

static Status read_vocab(SampleVocab* out, const json_t* root, const char* path) {
    int tokenizer, input_end;
    const char* hash = json_string_value(json_object_get(root, "vocabulary"));
    TRY(read_name(&tokenizer, root, "tokenizer", tokenizer_names, NUM_TOKENIZERS, path));
    TRY(read_name(&input_end, root, "input_end", end_names, NUM_ENDS, path));
    TRY(read_number(&out->num_tokens, root, "tokens", 1, path));
    TRY(read_number(&out->eot_token, root, "end", 0, path));
    TRY(read_number(&out->pad_token, root, "padding", -1, path));
    out->tokenizer = (SampleTokenizer)tokenizer;
    out->input_end = (SampleInputEnd)input_end;
    out->hash = hash != NULL ? strtoull(hash, NULL, 16) : 0;
    return STATUS_OK;
}

static Status read_group(DataJson* out, const json_t* root, int g, const char* path) {
    const json_t* group = json_object_get(root, groups[g].name);
    for (int i = 0; i < groups[g].num_texts; i++) {
        const Text* text = &groups[g].texts[i];
        const json_t* value = json_object_get(group, text->name);
        if (value == NULL) { continue; }
        char* copy = json_is_string(value) ? strdup(json_string_value(value)) : NULL;
        if (copy == NULL) {
            return FAIL(STATUS_BAD_FORMAT, "%s: \"%s\": \"%s\" is no text ---> prepare the data again", path,
                        groups[g].name, text->name);
        }
        *text_of(out, text) = copy;
    }
    return STATUS_OK;
}

static Status read_long_samples(LongSamples* out, const json_t* root, const char* path) {
    const json_t* value = json_object_get(root, "long_samples");
    for (int i = 0; i < NUM_LONGS; i++) {
        const bool is_this = json_is_string(value) && strcmp(json_string_value(value), long_names[i]) == 0;
        if (is_this || (value == NULL && i == LONG_CUT_END)) {
            *out = (LongSamples)i;
            return STATUS_OK;
        }
    }
    return FAIL(STATUS_BAD_FORMAT, "%s: \"long_samples\" is unknown ---> prepare the data again", path);
}

Status data_json_parse(DataJson* out, const char* text, size_t num_bytes, const char* name) {
    json_error_t error;
    *out = (DataJson){0};
    json_t* root = json_loadb(text, num_bytes, JSON_REJECT_DUPLICATES, &error);
    if (root == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s: not JSON at byte %d: %s ---> prepare the data again", name,
                    error.position, error.text);
    }
    Status status = read_vocab(&out->vocab, root, name);
    if (status == STATUS_OK) { status = read_long_samples(&out->long_samples, root, name); }
    for (int g = 0; g < NUM_GROUPS && status == STATUS_OK; g++) { status = read_group(out, root, g, name); }
    json_decref(root);
    if (status != STATUS_OK) { data_json_free(out); }
    return status;
}

Status data_json_read(DataJson* out, const char* folder, bool* is_there) {
    char path[PATH_CHARS], *text;
    size_t num_bytes;
    *out = (DataJson){0};
    path_in(path, folder, "data.json");
    *is_there = access(path, F_OK) == 0;
    if (!*is_there) { return STATUS_OK; }
    TRY(file_read_text(&text, &num_bytes, path));
    Status status = data_json_parse(out, text, num_bytes, path);
    free(text);
    return status;
}

void data_json_free(DataJson* data) {
    for (int g = 0; g < NUM_GROUPS; g++) {
        for (int i = 0; i < groups[g].num_texts; i++) { free(*text_of(data, &groups[g].texts[i])); }
    }
    *data = (DataJson){0};
}

// --- copies
// --------------------------------------------------------------------------------------------------

static Status copy_file(const char* from, const char* to) {
    FileMap map;
    FileWriter writer;
    TRY(file_map_open(&map, from));
    Status status = file_writer_open(&writer, to);
    if (status == STATUS_OK) {
        file_writer_write(&writer, map.data, map.num_bytes);
        status = file_writer_commit(&writer);
    }
    file_map_close(&map);
    return status;
}

Status data_json_copy(const char* from, const char* to) {
    // data.json last: where it is, the others are
    static const char* const names[] = {"tokenizer.bin", "vocab.json",     "merges.txt",
                                        "spiece.model",  "tokenizer.json", "data.json"};
    enum { NUM_NAMES = sizeof names / sizeof names[0] };
    char source[PATH_CHARS], target[PATH_CHARS];
    path_in(source, from, names[NUM_NAMES - 1]);
    if (access(source, F_OK) != 0) { return STATUS_OK; }
    for (int i = 0; i < NUM_NAMES; i++) {
        path_in(source, from, names[i]);
        path_in(target, to, names[i]);
        if (access(source, F_OK) == 0) { TRY(copy_file(source, target)); }
    }
    return STATUS_OK;
}
