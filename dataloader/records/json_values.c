#define _GNU_SOURCE  // pipe2
#include "json_values.h"

#include <errno.h>
#include <fcntl.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

enum { READ_BYTES = 1 << 16 };

extern char** environ;

// --- bytes -----------------------------------------------------------------------------------------------

// A packed file is unpacked by a child process that inherits the descriptor, so its offset remains the
// position in the file. A pipe has no offset and is read as it is.
static Status start_unpacker(JsonValues* values) {
    unsigned char magic[4] = {0};
    ssize_t got = pread(values->file, magic, sizeof magic, lseek(values->file, 0, SEEK_CUR));
    bool is_gzip = got >= 2 && memcmp(magic, "\x1f\x8b", 2) == 0;
    bool is_zstd = got == 4 && memcmp(magic, "\x28\xb5\x2f\xfd", 4) == 0;
    if (!is_gzip && !is_zstd) { return STATUS_OK; }
    char* arguments[] = {is_gzip ? (char*)"gzip" : (char*)"zstd", (char*)"-dc", NULL};
    int ends[2];
    if (pipe2(ends, O_CLOEXEC) != 0) { return FAIL(STATUS_IO, "%s: %s", values->path, strerror(errno)); }
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, values->file, STDIN_FILENO);
    posix_spawn_file_actions_adddup2(&actions, ends[1], STDOUT_FILENO);
    posix_spawn_file_actions_addopen(&actions, STDERR_FILENO, "/dev/null", O_WRONLY, 0);
    int error = posix_spawnp(&values->unpacker, arguments[0], &actions, NULL, arguments, environ);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    values->in = ends[0];
    if (error == 0) { return STATUS_OK; }
    values->unpacker = 0;
    return FAIL(STATUS_BAD_OPTION, "%s: packed, and %s cannot be run: %s ---> install it, or unpack the file",
                values->path, arguments[0], strerror(error));
}

// *got is 0 only at the end. A pipe returns what it has, because an interactive caller waits for each answer.
static Status read_bytes(JsonValues* values, void* out, size_t num_bytes, size_t* got) {
    ssize_t length;
    do { length = read(values->in, out, num_bytes); } while (length < 0 && errno == EINTR);
    if (length < 0) { return FAIL(STATUS_IO, "%s: cannot read: %s", values->path, strerror(errno)); }
    *got = (size_t)length;
    if (length > 0 || values->unpacker == 0) { return STATUS_OK; }
    int state = -1;
    waitpid(values->unpacker, &state, 0);
    values->unpacker = 0;
    if (state == 0) { return STATUS_OK; }
    return FAIL(STATUS_IO, "%s: packed data is damaged or cut off ---> download or pack it again",
                values->path);
}

Status json_values_open(JsonValues* out, int file, const char* path, size_t max_bytes) {
    JsonValues values = {.file = file,
                         .in = file,
                         .path = strdup(path),
                         .max_bytes = max_bytes > 0 ? max_bytes : JSON_VALUES_MAX_BYTES,
                         .next_line = 1};
    Status status = values.path != NULL ? start_unpacker(&values)
                                        : FAIL(STATUS_NO_MEMORY, "%s: no memory to read it", path);
    if (status != STATUS_OK) {
        json_values_close(&values);
        return status;
    }
    *out = values;
    return STATUS_OK;
}

void json_values_close(JsonValues* values) {
    if (values->path == NULL) { return; }
    if (values->in != values->file) { close(values->in); }
    if (values->unpacker > 0) { waitpid(values->unpacker, NULL, 0); }
    close(values->file);
    free(values->path);
    free(values->buffer);
    *values = (JsonValues){0};
}

int64_t json_values_position(const JsonValues* values) {
    return lseek(values->file, 0, SEEK_CUR);
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

static Status fail_too_long(const JsonValues* values) {
    return json_values_fail(values, "longer than %zu bytes", values->max_bytes);
}

// Reads more after `end`; bytes in use move to the front first.
static Status fill_buffer(JsonValues* values) {
    if (values->begin > 0) {
        memmove(values->buffer, values->buffer + values->begin, values->end - values->begin);
        values->end -= values->begin;
        values->begin = 0;
    }
    if (values->capacity - values->end < READ_BYTES) {
        size_t capacity = 2 * values->capacity + READ_BYTES;
        char* buffer = realloc(values->buffer, capacity);
        if (buffer == NULL) {
            return FAIL(STATUS_NO_MEMORY, "%s:%lld: no memory for a record of more than %zu bytes",
                        values->path, (long long)values->line_number, values->end);
        }
        values->buffer = buffer;
        values->capacity = capacity;
    }
    size_t got = 0;
    TRY(read_bytes(values, values->buffer + values->end, READ_BYTES, &got));
    values->end += got;
    values->at_end = got == 0;
    return STATUS_OK;
}

// The byte at `offset` after `begin`, -1 after the last.
static Status look(JsonValues* values, size_t offset, int* byte) {
    while (values->end - values->begin <= offset && !values->at_end) { TRY(fill_buffer(values)); }
    bool held = values->end - values->begin > offset;
    *byte = held ? (unsigned char)values->buffer[values->begin + offset] : -1;
    return STATUS_OK;
}

static bool is_blank(int byte) {
    return byte == ' ' || byte == '\t' || byte == '\r';
}

static void drop(JsonValues* values, size_t num_bytes) {
    values->begin += num_bytes;
}

// Skips blanks, line ends and, in an array, commas.
static Status skip_blanks(JsonValues* values, bool commas, int* byte) {
    for (;; drop(values, 1)) {
        TRY(look(values, 0, byte));
        values->next_line += *byte == '\n';
        if (!is_blank(*byte) && *byte != '\n' && !(commas && *byte == ',')) { return STATUS_OK; }
    }
}

// A byte-order mark. From a pipe more than the first byte is read only if it may begin one.
static Status skip_mark(JsonValues* values) {
    static const int mark[] = {0xef, 0xbb, 0xbf};
    if (values->is_begun) { return STATUS_OK; }
    for (size_t i = 0; i < 3; i++) {
        int byte;
        TRY(look(values, i, &byte));
        values->is_begun = byte != mark[i];
        if (values->is_begun) { return STATUS_OK; }
    }
    drop(values, 3);
    values->is_begun = true;
    return STATUS_OK;
}

// State of a scan through a value.
typedef struct {
    int64_t depth;
    int before;      // the last byte except blanks and strings
    bool is_spread;  // an object of several lines, not in an array
    bool in_string, escaped, done;
} Scan;

// Does the value continue with this byte? done: it is the last.
static bool scan_byte(Scan* scan, int byte) {
    if (scan->in_string) {
        bool breaks =
            byte == '\n' && scan->is_spread;  // a JSON string has no newline: later lines are other values
        bool ends = (byte == '"' && !scan->escaped) || breaks;
        scan->escaped = byte == '\\' && !scan->escaped;
        scan->in_string = !ends;
        return true;
    }
    if (scan->depth == 0 && (byte == ',' || byte == ']' || byte == '}')) { return false; }
    if (scan->is_spread && scan->depth == 1 && byte == '{' && scan->before != ':') { return false; }
    if (byte == '"') { scan->in_string = true; }
    if (byte == '{' || byte == '[') { scan->depth++; }
    if (byte == '}' || byte == ']') { scan->done = --scan->depth == 0; }
    if (!is_blank(byte) && byte != '\n') { scan->before = byte; }
    return true;
}

// Is the object that begins here broken into lines? Then its first line ends where JSON allows a blank. (A
// truncated one ends elsewhere, and only itself is lost.)
static Status look_spread(JsonValues* values, bool* is_spread) {
    Scan scan = {0};
    *is_spread = false;
    for (size_t i = 0; i <= values->max_bytes && !scan.done; i++) {
        int byte;
        TRY(look(values, i, &byte));
        if (byte < 0) { break; }
        if (byte == '\n') {
            *is_spread = !scan.in_string && memchr("{[,:", scan.before, 4) != NULL;
            break;
        }
        scan_byte(&scan, byte);
    }
    return STATUS_OK;
}

static Status open_first(JsonValues* values) {
    int byte;
    TRY(skip_mark(values));
    TRY(skip_blanks(values, false, &byte));
    values->is_open = true;
    values->is_array = byte == '[';
    if (values->is_array) { drop(values, 1); }
    return byte == '{' ? look_spread(values, &values->is_spread) : STATUS_OK;
}

// The first non-blank byte from *offset on.
static Status look_past_blanks(JsonValues* values, size_t* offset, int* byte) {
    for (;; (*offset)++) {
        TRY(look(values, *offset, byte));
        if (!is_blank(*byte) && *byte != '\n') { return STATUS_OK; }
    }
}

Status json_values_is_json(JsonValues* values, bool* is_json) {
    size_t offset = 0;
    int byte;
    TRY(skip_mark(values));
    TRY(look_past_blanks(values, &offset, &byte));
    if (byte == '[') {
        offset++;
        TRY(look_past_blanks(values, &offset, &byte));
    }
    *is_json = byte == '{';
    return STATUS_OK;
}

// --- lines -------------------------------------------------------------------------------------------------

// The line that begins here, without its newline.
static Status next_line(JsonValues* values, const char** text, size_t* num_bytes) {
    size_t scanned = 0;
    bool too_long = false;
    values->line_number = values->next_line;
    for (;;) {
        size_t held = values->end - values->begin;
        const char* begin = values->buffer + values->begin;
        const char* newline = held > scanned ? memchr(begin + scanned, '\n', held - scanned) : NULL;
        size_t length = newline != NULL ? (size_t)(newline - begin) : held;
        too_long = too_long || length > values->max_bytes;
        if (newline != NULL || values->at_end) {
            drop(values, length + (newline != NULL));
            values->next_line += newline != NULL;
            *text = begin;
            *num_bytes = length;
            return too_long ? fail_too_long(values) : STATUS_OK;
        }
        if (too_long) {
            drop(values, held);
            held = 0;
        }
        scanned = held;
        TRY(fill_buffer(values));
    }
}

Status json_values_next_line(JsonValues* values, const char** text, size_t* num_bytes) {
    int byte;
    *text = NULL;
    *num_bytes = 0;
    TRY(skip_mark(values));
    TRY(look(values, 0, &byte));
    if (byte < 0) { return STATUS_OK; }
    TRY(next_line(values, text, num_bytes));
    *num_bytes -= *num_bytes > 0 && (*text)[*num_bytes - 1] == '\r';
    return STATUS_OK;
}

// --- elements of an array ---------------------------------------------------------------------------------

// The element, or the object of several lines, that begins here.
static Status next_element(JsonValues* values, const char** text, size_t* num_bytes) {
    size_t length = 0;
    bool too_long = false;
    Scan scan = {.is_spread = values->is_spread};
    while (!scan.done) {
        int byte;
        TRY(look(values, length, &byte));
        if (byte < 0) {
            drop(values, length);
            values->array_ended = true;
            return json_values_fail(values, "the file ends within this record");
        }
        if (!scan_byte(&scan, byte)) {
            if (byte != '}' || length > 0) { break; }  // an extra bracket is a separate value
            scan.done = true;
        }
        values->next_line += byte == '\n';
        length++;
        if (length > values->max_bytes) {
            too_long = true;
            drop(values, length);
            length = 0;
        }
    }
    *text = values->buffer + values->begin;
    *num_bytes = length;
    drop(values, length);
    return too_long ? fail_too_long(values) : STATUS_OK;
}

static Status next_of_array(JsonValues* values, const char** text, size_t* num_bytes) {
    int byte;
    TRY(skip_blanks(values, true, &byte));
    values->line_number = values->next_line;
    values->value_number++;
    if (values->array_ended) {
        if (byte < 0) { return STATUS_OK; }
        drop(values, values->end - values->begin);
        while (!values->at_end) {
            TRY(fill_buffer(values));
            drop(values, values->end - values->begin);
        }
        return json_values_fail(values, "something stands after the end of the array: it is not read");
    }
    if (byte == ']') {
        drop(values, 1);
        values->array_ended = true;
        values->value_number--;
        return next_of_array(values, text, num_bytes);
    }
    if (byte < 0) {
        values->array_ended = true;
        return json_values_fail(values, "the array has no end: the file may be cut off");
    }
    return next_element(values, text, num_bytes);
}

Status json_values_next(JsonValues* values, const char** text, size_t* num_bytes) {
    *text = NULL;
    *num_bytes = 0;
    if (!values->is_open) { TRY(open_first(values)); }
    if (values->is_array) { return next_of_array(values, text, num_bytes); }
    int byte;
    TRY(skip_blanks(values, values->is_spread, &byte));
    if (byte < 0) { return STATUS_OK; }
    values->value_number++;
    values->line_number = values->next_line;
    return values->is_spread && byte == '{' ? next_element(values, text, num_bytes)
                                            : next_line(values, text, num_bytes);
}

Status json_values_is_last(JsonValues* values, bool* is_last) {
    int byte;
    TRY(skip_blanks(values, values->is_spread, &byte));
    *is_last = byte < 0;
    return STATUS_OK;
}
