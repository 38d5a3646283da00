#include "json_values.h"

#include <errno.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

// --- opening ---------------------------------------------------------------------------------------------

Status json_values_copy(int* out, FILE* from, const char* name) {
    const char* folder = getenv("TMPDIR");
    char path[4096], bytes[1 << 14];
    snprintf(path, sizeof path, "%s/prepare_data_XXXXXX",
             folder != NULL && folder[0] != '\0' ? folder : "/tmp");
    int copy = mkstemp(path);
    bool failed = copy < 0;
    if (!failed) { unlink(path); }
    for (size_t got; !failed && (got = fread(bytes, 1, sizeof bytes, from)) > 0;) {
        failed = write(copy, bytes, got) != (ssize_t)got;
    }
    *out = copy;
    if (!failed && !ferror(from)) { return STATUS_OK; }
    Status status =
        failed ? FAIL(STATUS_IO, "%s: cannot copy it to %s: %s ---> set TMPDIR to a folder with room", name,
                      path, strerror(errno))
               : FAIL(STATUS_IO, "%s: cannot read: %s", name, strerror(errno));
    if (copy >= 0) { close(copy); }
    return status;
}

// Replaces the descriptor of a packed file by that of its contents.
static Status unpack(int* file, const char* path) {
    unsigned char magic[4] = {0};
    ssize_t got = pread(*file, magic, sizeof magic, 0);
    bool is_gzip = got >= 2 && memcmp(magic, "\x1f\x8b", 2) == 0;
    bool is_zstd = got == 4 && memcmp(magic, "\x28\xb5\x2f\xfd", 4) == 0;
    if (!is_gzip && !is_zstd) { return STATUS_OK; }
    const char* program = is_gzip ? "gzip" : "zstd";
    char command[80];
    int copy = -1;
    snprintf(command, sizeof command, "exec %s -dc </proc/%ld/fd/%d 2>/dev/null", program, (long)getpid(),
             *file);
    FILE* unpacked = popen(command, "re");
    if (unpacked == NULL) { return FAIL(STATUS_IO, "%s: cannot unpack: %s", path, strerror(errno)); }
    Status status = json_values_copy(&copy, unpacked, path);
    int state = pclose(unpacked);
    TRY(status);
    close(*file);
    *file = copy;
    if (state == 0) { return STATUS_OK; }
    return WEXITSTATUS(state) == 127
               ? FAIL(STATUS_BAD_OPTION,
                      "%s: packed, and %s cannot be run ---> install it, or unpack the file", path, program)
               : FAIL(STATUS_IO, "%s: packed data is damaged or cut off ---> download or pack it again",
                      path);
}

static size_t mark_bytes(const JsonValues* values) {
    return values->map.num_bytes >= 3 && memcmp(values->map.data, "\xef\xbb\xbf", 3) == 0 ? 3 : 0;
}

Status json_values_open(JsonValues* out, int file, const char* path) {
    *out = (JsonValues){.next_line = 1};
    Status status = unpack(&file, path);
    if (status == STATUS_OK) { status = file_map_descriptor(&out->map, file, path); }
    close(file);
    TRY(status);
    out->at = mark_bytes(out);
    out->path = strdup(path);
    if (out->path != NULL) { return STATUS_OK; }
    json_values_close(out);
    return FAIL(STATUS_NO_MEMORY, "%s: no memory to read it", path);
}

void json_values_close(JsonValues* values) {
    file_map_close(&values->map);
    free(values->path);
    *values = (JsonValues){0};
}

Status json_values_fail(const JsonValues* values, const char* format, ...) {
    char reason[400], record[40] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(reason, sizeof reason, format, args);
    va_end(args);
    int64_t number = values->is_array ? values->value_number : values->list_number;
    if (number > 0) { snprintf(record, sizeof record, ", record %lld", (long long)number); }
    return FAIL(STATUS_BAD_FORMAT, "%s:%lld%s: %s", values->path, (long long)values->line_number, record,
                reason);
}

// --- bytes -----------------------------------------------------------------------------------------------

static int byte_at(const JsonValues* values, size_t at) {
    return at < values->map.num_bytes ? values->map.data[at] : -1;
}

static bool is_blank(int byte) {
    return byte == ' ' || byte == '\t' || byte == '\r' || byte == '\n';
}

static void advance(JsonValues* values, size_t to) {
    for (; values->at < to; values->at++) { values->next_line += values->map.data[values->at] == '\n'; }
}

// Skips blanks, line ends and, between elements, commas; returns the next byte, -1: end.
static int skip_blanks(JsonValues* values) {
    bool commas = values->is_array || values->is_spread;
    size_t at = values->at;
    while (is_blank(byte_at(values, at)) || (commas && byte_at(values, at) == ',')) { at++; }
    advance(values, at);
    return byte_at(values, at);
}

static size_t line_end(const JsonValues* values, size_t at) {
    const unsigned char* begin = values->map.data + at;
    const unsigned char* newline =
        at < values->map.num_bytes ? memchr(begin, '\n', values->map.num_bytes - at) : NULL;
    return newline != NULL ? at + (size_t)(newline - begin) : values->map.num_bytes;
}

bool json_values_is_json(const JsonValues* values) {
    size_t at = mark_bytes(values);
    while (is_blank(byte_at(values, at))) { at++; }
    for (at += byte_at(values, at) == '['; is_blank(byte_at(values, at));) { at++; }
    return byte_at(values, at) == '{';
}

const char* json_values_next_line(JsonValues* values, size_t* num_bytes) {
    if (values->at >= values->map.num_bytes) { return NULL; }
    const char* text = (const char*)values->map.data + values->at;
    size_t end = line_end(values, values->at);
    *num_bytes = end - values->at;
    *num_bytes -= *num_bytes > 0 && text[*num_bytes - 1] == '\r';
    values->line_number = values->next_line;
    advance(values, end < values->map.num_bytes ? end + 1 : end);
    return text;
}

// --- values ----------------------------------------------------------------------------------------------

// Is the object that begins here broken into lines? Then its first line ends where JSON allows a blank. (A
// truncated one ends elsewhere, and only itself is lost.)
static bool is_broken(const JsonValues* values) {
    size_t at = values->at, end = line_end(values, at);
    bool in_string = false;
    char last = '\0';
    for (; at < end; at++) {
        char byte = (char)values->map.data[at];
        if (in_string && byte == '\\') { at++; }
        if (byte == '"') { in_string = !in_string; }
        if (!in_string && !is_blank(byte)) { last = byte; }
    }
    return end < values->map.num_bytes && !in_string && memchr("{[,:", last, 4) != NULL;
}

// The end of the element, or the object of several lines, that begins here; 0: it has none.
static size_t element_end(const JsonValues* values) {
    int64_t depth = 0;
    char before = '\0';  // the last byte except blanks and strings
    bool in_string = false, escaped = false;
    for (size_t at = values->at; at < values->map.num_bytes; at++) {
        char byte = (char)values->map.data[at];
        if (in_string) {
            // a JSON string has no newline: in a file of objects later lines are other values
            in_string = !(byte == '"' && !escaped) && !(byte == '\n' && values->is_spread);
            escaped = byte == '\\' && !escaped;
            continue;
        }
        bool opens = byte == '{' || byte == '[', closes = byte == '}' || byte == ']';
        bool is_next = values->is_spread && depth == 1 && byte == '{' && before != ':';
        if (is_next || (depth == 0 && (closes || byte == ','))) {
            return at > values->at ? at : at + 1;  // an extra bracket is a value of its own
        }
        depth += opens - closes;
        if (closes && depth == 0) { return at + 1; }
        in_string = byte == '"';
        if (!is_blank(byte)) { before = byte; }
    }
    return 0;
}

Status json_values_next(JsonValues* values, const char** text, size_t* num_bytes) {
    *text = NULL;
    *num_bytes = 0;
    int byte = skip_blanks(values);
    if (!values->is_begun) {
        values->is_begun = true;
        values->is_array = byte == '[';
        values->is_spread = byte == '{' && is_broken(values);
        advance(values, values->at + values->is_array);
        byte = skip_blanks(values);
    }
    values->value_number++;
    values->line_number = values->next_line;
    if (values->is_array && !values->has_ended && byte == ']') {
        values->has_ended = true;
        advance(values, values->at + 1);
        byte = skip_blanks(values);
        values->line_number = values->next_line;
    }
    if (values->is_array && values->has_ended && byte >= 0) {
        advance(values, values->map.num_bytes);
        return json_values_fail(values, "something stands after the end of the array: it is not read");
    }
    if (byte < 0 && values->is_array && !values->has_ended) {
        values->has_ended = true;
        return json_values_fail(values, "the array has no end: the file may be cut off");
    }
    if (byte < 0) { return STATUS_OK; }
    size_t begin = values->at;
    bool is_element = values->is_array || (values->is_spread && byte == '{');
    size_t end = is_element ? element_end(values) : line_end(values, begin);
    advance(values, end > 0 ? end : values->map.num_bytes);
    if (end == 0) {
        values->has_ended = true;
        return json_values_fail(values, "the file ends within this record");
    }
    *text = (const char*)values->map.data + begin;
    *num_bytes = end - begin;
    return STATUS_OK;
}

bool json_values_is_last(JsonValues* values) {
    return skip_blanks(values) < 0;
}
