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

typedef struct {
    const char* name;
    size_t offset;
} Text;
static const Text texts[] = {
    {"name", offsetof(DataJson, name)},           {"prompt", offsetof(DataJson, prompt)},
    {"system", offsetof(DataJson, system)},       {"user", offsetof(DataJson, user)},
    {"assistant", offsetof(DataJson, assistant)},
};
enum { NUM_TEXTS = sizeof texts / sizeof texts[0] };

static char** text_of(DataJson* data, int i) {
    return (char**)(void*)((char*)data + texts[i].offset);
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
    json_t* form = json_object();
    bool is_text = true;
    for (int i = 0; i < NUM_TEXTS; i++) {
        const char* text = *text_of((DataJson*)(uintptr_t)data, i);
        is_text =
            is_text && (text == NULL || json_object_set_new(form, texts[i].name, json_string(text)) == 0);
    }
    if (json_object_size(form) > 0) { json_object_set(root, "template", form); }
    json_decref(form);
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
        return FAIL(STATUS_BAD_FORMAT,
                    "data.json: a text of the template is not UTF-8 ---> write it as UTF-8");
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

static Status read_template(DataJson* out, const json_t* form, const char* path) {
    for (int i = 0; i < NUM_TEXTS; i++) {
        const json_t* value = json_object_get(form, texts[i].name);
        if (value == NULL) { continue; }
        char* copy = json_is_string(value) ? strdup(json_string_value(value)) : NULL;
        if (copy == NULL) {
            return FAIL(STATUS_BAD_FORMAT, "%s: \"template\": \"%s\" is no text ---> prepare the data again",
                        path, texts[i].name);
        }
        *text_of(out, i) = copy;
    }
    return STATUS_OK;
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
    if (status == STATUS_OK) { status = read_template(out, json_object_get(root, "template"), name); }
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
    for (int i = 0; i < NUM_TEXTS; i++) { free(*text_of(data, i)); }
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

// --- forms
// ---------------------------------------------------------------------------------------------------

// "{name" and "}" around a field's name; NULL: no field begins here.
static const char* field_end(const char* begin) {
    size_t num_chars = strspn(begin + 1, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_");
    return num_chars > 0 && begin[num_chars + 1] == '}' ? begin + num_chars + 1 : NULL;
}

char* data_json_fill(const char* form, DataFieldFind find, void* context, size_t* num_bytes) {
    char* out = NULL;
    FILE* memory = open_memstream(&out, num_bytes);
    if (memory == NULL) { return NULL; }
    for (const char* c = form; *c != '\0'; c++) {
        size_t value_bytes = 0;
        const char* end = *c == '{' ? field_end(c) : NULL;
        const char* value = end != NULL ? find(context, c + 1, (size_t)(end - c - 1), &value_bytes) : NULL;
        if (value == NULL) {
            fputc(*c, memory);
            continue;
        }
        fwrite(value, 1, value_bytes, memory);
        c = end;
    }
    if (fclose(memory) != 0) {
        free(out);
        return NULL;
    }
    return out;
}
