#include "jsonl.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <jansson.h>

enum { READ_BYTES = 1 << 18 };

static char* base_name(const char* path) {
    const char* slash = strrchr(path, '/');
    char* name = strdup(slash != NULL ? slash + 1 : path);
    if (name == NULL) { return NULL; }
    static const char* const endings[] = {".jsonl", ".json"};
    for (int i = 0; i < 2; i++) {
        size_t length = strlen(name), ending = strlen(endings[i]);
        if (length > ending && strcmp(name + length - ending, endings[i]) == 0) {
            name[length - ending] = '\0';
        }
    }
    if (strlen(name) > JSONL_MAX_TASK_BYTES) { name[JSONL_MAX_TASK_BYTES] = '\0'; }
    return name;
}

Status jsonl_open_stream(JsonlReader* reader, FILE* stream, const char* path, size_t max_line_bytes) {
    *reader = (JsonlReader){.stream = stream,
                            .path = strdup(path),
                            .file_task = base_name(path),
                            .max_line_bytes = max_line_bytes > 0 ? max_line_bytes : JSONL_MAX_LINE_BYTES};
    if (reader->path == NULL || reader->file_task == NULL) {
        jsonl_close(reader);
        return FAIL(STATUS_NO_MEMORY, "%s: no memory to read it", path);
    }
    return STATUS_OK;
}

Status jsonl_open(JsonlReader* reader, const char* path, size_t max_line_bytes) {
    *reader = (JsonlReader){0};
    FILE* stream = fopen(path, "rbe");
    if (stream == NULL) { return FAIL(STATUS_IO, "%s: cannot open: %s", path, strerror(errno)); }
    return jsonl_open_stream(reader, stream, path, max_line_bytes);
}

void jsonl_close(JsonlReader* reader) {
    if (reader->stream != NULL) { fclose(reader->stream); }
    json_decref(reader->root);
    free(reader->path);
    free(reader->file_task);
    free(reader->buffer);
    *reader = (JsonlReader){0};
}

// Read more behind `end`; bytes in use move to the front first.
static Status fill_buffer(JsonlReader* reader) {
    if (reader->begin > 0) {
        memmove(reader->buffer, reader->buffer + reader->begin, reader->end - reader->begin);
        reader->end -= reader->begin;
        reader->begin = 0;
    }
    if (reader->capacity - reader->end < READ_BYTES) {
        size_t capacity = 2 * reader->capacity + READ_BYTES;
        char* buffer = realloc(reader->buffer, capacity);
        if (buffer == NULL) {
            return FAIL(STATUS_NO_MEMORY, "%s:%lld: no memory for a line of more than %zu bytes",
                        reader->path, (long long)reader->line_number, reader->end);
        }
        reader->buffer = buffer;
        reader->capacity = capacity;
    }
    size_t got = fread(reader->buffer + reader->end, 1, READ_BYTES, reader->stream);
    if (got == 0 && ferror(reader->stream)) {
        return FAIL(STATUS_IO, "%s: cannot read: %s", reader->path, strerror(errno));
    }
    reader->end += got;
    reader->at_end = got == 0;
    return STATUS_OK;
}

// The next line, without its newline; *line NULL at the end of the file. A line beyond the limit is not held:
// *line_bytes is then max_line_bytes + 1 and its text is gone.
static Status next_line(JsonlReader* reader, const char** line, size_t* line_bytes) {
    size_t scanned = 0;
    bool too_long = false;
    reader->line_number++;
    for (;;) {
        size_t held = reader->end - reader->begin;
        const char* begin = reader->buffer != NULL ? reader->buffer + reader->begin : "";
        const char* newline = held > scanned ? memchr(begin + scanned, '\n', held - scanned) : NULL;
        size_t length = newline != NULL ? (size_t)(newline - begin) : held;
        too_long = too_long || length > reader->max_line_bytes;
        if (newline != NULL || reader->at_end) {
            size_t used = length + (newline != NULL);
            *line = newline == NULL && held == 0 && !too_long ? NULL : begin;
            *line_bytes = too_long ? reader->max_line_bytes + 1 : length;
            reader->begin += used;
            reader->bytes_read += (int64_t)used;
            return STATUS_OK;
        }
        if (too_long) {
            reader->begin = reader->end;
            reader->bytes_read += (int64_t)held;
            held = 0;
        }
        scanned = held;
        TRY(fill_buffer(reader));
    }
}

static bool is_blank(const char* line, size_t num_bytes) {
    for (size_t i = 0; i < num_bytes; i++) {
        if (strchr(" \t\r", line[i]) == NULL || line[i] == '\0') { return false; }
    }
    return true;
}

static const char* type_name(const json_t* value) {
    static const char* const names[] = {
        [JSON_OBJECT] = "an object", [JSON_ARRAY] = "an array", [JSON_STRING] = "a string",
        [JSON_INTEGER] = "a number", [JSON_REAL] = "a number",  [JSON_TRUE] = "true",
        [JSON_FALSE] = "false",      [JSON_NULL] = "null"};
    return names[json_typeof(value)];
}

#define FAIL_LINE(...) fail_line(reader, __VA_ARGS__)
static Status fail_line(const JsonlReader* reader, const char* format, ...)
    __attribute__((format(printf, 2, 3)));
static Status fail_line(const JsonlReader* reader, const char* format, ...) {
    char reason[400];
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    return FAIL(STATUS_BAD_FORMAT, "%s:%lld: %s", reader->path, (long long)reader->line_number, reason);
}

static Status take_text(const JsonlReader* reader, const json_t* root, const char* field, const char** text,
                        size_t* num_bytes) {
    const json_t* value = json_object_get(root, field);
    if (value == NULL) { return FAIL_LINE("field \"%s\" is missing", field); }
    if (!json_is_string(value)) {
        return FAIL_LINE("field \"%s\" is %s, not a string", field, type_name(value));
    }
    *text = json_string_value(value);
    *num_bytes = json_string_length(value);
    return STATUS_OK;
}

static Status take_sample(const JsonlReader* reader, const json_t* root, JsonlSample* out) {
    if (!json_is_object(root)) { return FAIL_LINE("%s, not an object {...}", type_name(root)); }
    JsonlSample sample = {.task = reader->file_task, .task_bytes = strlen(reader->file_task)};
    if (json_object_get(root, "task") != NULL) {
        const char* task;
        size_t task_bytes;
        TRY(take_text(reader, root, "task", &task, &task_bytes));
        if (task_bytes > JSONL_MAX_TASK_BYTES) {
            return FAIL_LINE("field \"task\" has %zu bytes, at most %d are allowed", task_bytes,
                             JSONL_MAX_TASK_BYTES);
        }
        if (memchr(task, '\0', task_bytes) != NULL) {
            return FAIL_LINE("field \"task\" has a NUL character");
        }
        if (task_bytes > 0) {
            sample.task = task;
            sample.task_bytes = task_bytes;
        }
    }
    TRY(take_text(reader, root, "inputs", &sample.inputs, &sample.inputs_bytes));
    TRY(take_text(reader, root, "targets", &sample.targets, &sample.targets_bytes));
    if (sample.inputs_bytes == 0 && sample.targets_bytes == 0) {
        return FAIL_LINE("\"inputs\" and \"targets\" are both empty");
    }
    *out = sample;
    return STATUS_OK;
}

Status jsonl_next(JsonlReader* reader, JsonlSample* out) {
    const char* line;
    size_t line_bytes;
    *out = (JsonlSample){0};
    json_decref(reader->root);
    reader->root = NULL;
    do {
        TRY(next_line(reader, &line, &line_bytes));
        if (line == NULL) {
            out->end = true;
            return STATUS_OK;
        }
        if (line_bytes > reader->max_line_bytes) {
            return FAIL_LINE("longer than %zu bytes", reader->max_line_bytes);
        }
        if (reader->line_number == 1 && line_bytes >= 3 && memcmp(line, "\xef\xbb\xbf", 3) == 0) {
            line += 3;
            line_bytes -= 3;
        }
    } while (is_blank(line, line_bytes));

    json_error_t error;
    size_t flags = JSON_ALLOW_NUL | JSON_DECODE_ANY | JSON_REJECT_DUPLICATES | JSON_DECODE_INT_AS_REAL;
    reader->root = json_loadb(line, line_bytes, flags, &error);
    if (reader->root == NULL) { return FAIL_LINE("not JSON at byte %d: %s", error.position, error.text); }
    return take_sample(reader, reader->root, out);
}
