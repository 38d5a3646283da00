#include "record_reader.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

static char* base_name(const char* path) {
    static const char* const endings[] = {".gz", ".zst", ".jsonl", ".ndjson", ".json"};
    const char* slash = strrchr(path, '/');
    char* name = strdup(slash != NULL ? slash + 1 : path);
    if (name == NULL) { return NULL; }
    for (size_t i = 0; i < sizeof endings / sizeof endings[0]; i++) {
        size_t length = strlen(name), ending = strlen(endings[i]);
        if (length > ending && strcmp(name + length - ending, endings[i]) == 0) {
            name[length - ending] = '\0';
        }
    }
    if (strlen(name) > RECORD_MAX_TASK_BYTES) { name[RECORD_MAX_TASK_BYTES] = '\0'; }
    return name;
}

Status record_reader_open_stream(RecordReader* reader, FILE* stream, const char* path,
                                 const RecordOptions* options) {
    *reader = (RecordReader){.options = *options};
    if (reader->options.task_field == NULL) { reader->options.task_field = "task"; }
    ByteSource* source;
    TRY(byte_source_open_stream(&source, stream, path));
    TRY(json_values_open(&reader->values, source, path, options->max_bytes));
    reader->file_task = base_name(path);
    if (reader->file_task == NULL) {
        record_reader_close(reader);
        return FAIL(STATUS_NO_MEMORY, "%s: no memory to read it", path);
    }
    return STATUS_OK;
}

Status record_reader_open(RecordReader* reader, const char* path, const RecordOptions* options) {
    *reader = (RecordReader){0};
    FILE* stream = fopen(path, "rbe");
    if (stream == NULL) { return FAIL(STATUS_IO, "%s: cannot open: %s", path, strerror(errno)); }
    return record_reader_open_stream(reader, stream, path, options);
}

void record_reader_close(RecordReader* reader) {
    json_decref(reader->root);
    json_decref(reader->list);
    json_values_close(&reader->values);
    arena_free(&reader->arena);
    free(reader->file_task);
    *reader = (RecordReader){0};
}

static Status take_task(RecordReader* reader, Record* out) {
    const char* field = reader->options.task_field;
    const json_t* value = json_object_get(reader->root, field);
    out->task = (RecordText){reader->file_task, strlen(reader->file_task)};
    if (value == NULL) { return STATUS_OK; }
    if (!json_is_string(value)) {
        return json_values_fail(&reader->values, "field \"%s\" is %s, not a string", field,
                                record_type_name(value));
    }
    RecordText task = {json_string_value(value), json_string_length(value)};
    if (task.num_bytes > RECORD_MAX_TASK_BYTES) {
        return json_values_fail(&reader->values, "field \"%s\" has %zu bytes, at most %d are allowed", field,
                                task.num_bytes, RECORD_MAX_TASK_BYTES);
    }
    if (memchr(task.text, '\0', task.num_bytes) != NULL) {
        return json_values_fail(&reader->values, "field \"%s\" has a NUL character", field);
    }
    if (task.num_bytes > 0) { out->task = task; }
    return STATUS_OK;
}

static Status take_element(RecordReader* reader) {
    reader->root = json_incref(json_array_get(reader->list, reader->list_at++));
    reader->values.list_number = (int64_t)reader->list_at;
    reader->json = record_text_json(reader->root, &reader->arena);
    return reader->json.text != NULL ? STATUS_OK : json_values_no_memory(&reader->values);
}

// The first of the list that is the whole file, where it is one.
static Status open_list(RecordReader* reader) {
    bool is_last;
    json_t* list = reader->values.value_number == 1 && !reader->values.is_array
                       ? record_form_list(reader->root, &reader->options.fields)
                       : NULL;
    if (list == NULL) { return STATUS_OK; }
    TRY(json_values_is_last(&reader->values, &is_last));
    if (!is_last) { return STATUS_OK; }
    reader->list = json_incref(list);
    json_decref(reader->root);
    return take_element(reader);
}

// reader->root NULL: no more.
static Status next_root(RecordReader* reader) {
    json_decref(reader->root);
    reader->root = NULL;
    if (reader->list_at < json_array_size(reader->list)) { return take_element(reader); }
    const char* text;
    size_t num_bytes;
    TRY(json_values_next(&reader->values, &text, &num_bytes));
    if (text == NULL) { return STATUS_OK; }
    json_error_t error;
    size_t flags = JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL;
    reader->root = json_loadb(text, num_bytes, flags, &error);
    if (reader->root == NULL) {
        return json_values_fail(&reader->values, "not JSON at byte %d: %s", error.position, error.text);
    }
    reader->json = (RecordText){text, num_bytes};
    return open_list(reader);
}

Status record_reader_next(RecordReader* reader, Record* out) {
    *out = (Record){0};
    arena_reset(&reader->arena);
    TRY(next_root(reader));
    if (reader->root == NULL) {
        out->end = true;
        return STATUS_OK;
    }
    Record record = {0};
    RecordContent content;
    TRY(record_form_read(&content, reader->root, &reader->options.fields, &reader->values, &reader->arena));
    TRY(take_task(reader, &record));
    const RecordTurn* bare = content.turns;  // a template of somebody's own may have texts from other fields
    TRY(record_template_apply(reader->options.form, &content, reader->root, &reader->values, &reader->arena));
    const RecordTurn* turn = reader->options.form->is_custom ? &content.turns[0] : bare;
    const bool is_chat = record_form_is_chat(content.form);
    if (content.asks && !is_chat && turn->inputs.num_bytes + turn->targets.num_bytes == 0) {
        return json_values_fail(&reader->values, "nothing in it to answer");
    }
    record.json = reader->json;
    record.fields = (RecordFields){content.inputs_field, content.targets_field, content.asks};
    record.form = content.form;
    record.turns = content.turns;
    record.num_turns = content.num_turns;
    *out = record;
    return STATUS_OK;
}
