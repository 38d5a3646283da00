#include "json_values.h"

#include <errno.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#ifdef DYNAPIPE_ZLIB
#include <zlib.h>
#endif
#ifdef DYNAPIPE_ZSTD
#include <zstd.h>
#endif

enum { PACKED_BYTES = 1 << 16, MAGIC_BYTES = 4 };

typedef enum { PLAIN, GZIP, ZSTANDARD } Packing;

struct ByteSource {
    FILE* stream;
    char* name;
    Packing packing;
    unsigned char packed[PACKED_BYTES];  // bytes [begin, end) are read and not yet used
    size_t begin, end;
    int64_t position;
    bool in_part;  // a packed part has begun and not ended
#ifdef DYNAPIPE_ZLIB
    z_stream gzip;
    bool has_gzip;
#endif
#ifdef DYNAPIPE_ZSTD
    ZSTD_DStream* zstandard;
#endif
};

// Returns what a pipe has at once instead of filling 64 KiB, because an interactive caller waits for each
// answer.
static Status read_more(ByteSource* source) {
    unsigned char* to = source->packed + source->end;
    size_t room = PACKED_BYTES - source->end, got;
    if (fileno(source->stream) < 0) {  // a memory stream
        got = fread(to, 1, room, source->stream);
        if (got == 0 && ferror(source->stream)) {
            return FAIL(STATUS_IO, "%s: cannot read: %s", source->name, strerror(errno));
        }
    } else {
        ssize_t num_bytes;
        do { num_bytes = read(fileno(source->stream), to, room); } while (num_bytes < 0 && errno == EINTR);
        if (num_bytes < 0) { return FAIL(STATUS_IO, "%s: cannot read: %s", source->name, strerror(errno)); }
        got = (size_t)num_bytes;
    }
    source->end += got;
    source->position += (int64_t)got;
    return STATUS_OK;
}

static Status fill(ByteSource* source) {
    source->begin = source->end = 0;
    return read_more(source);
}

static Status fail_missing(const ByteSource* source, const char* what, const char* package) {
    return FAIL(STATUS_BAD_OPTION,
                "%s: packed, and this program is built without %s ---> unpack it first, or install %s "
                "and make again",
                source->name, what, package);
}

static void byte_source_close(ByteSource* source) {
    if (source == NULL) { return; }
#ifdef DYNAPIPE_ZLIB
    if (source->has_gzip) { inflateEnd(&source->gzip); }
#endif
#ifdef DYNAPIPE_ZSTD
    ZSTD_freeDStream(source->zstandard);
#endif
    fclose(source->stream);
    free(source->name);
    free(source);
}

static Status open_packing(ByteSource* source) {
    static const unsigned char gzip_magic[] = {0x1f, 0x8b}, zstandard_magic[] = {0x28, 0xb5, 0x2f, 0xfd};
    TRY(fill(source));
    // a pipe may return fewer bytes than the signature needs
    for (size_t had = 0; source->end > had && source->end < MAGIC_BYTES;) {
        const size_t of_gzip = source->end < sizeof gzip_magic ? source->end : sizeof gzip_magic;
        if (memcmp(source->packed, gzip_magic, of_gzip) != 0 &&
            memcmp(source->packed, zstandard_magic, source->end) != 0) {
            break;
        }
        had = source->end;
        TRY(read_more(source));
    }
    if (source->end >= 2 && memcmp(source->packed, gzip_magic, 2) == 0) { source->packing = GZIP; }
    if (source->end >= 4 && memcmp(source->packed, zstandard_magic, 4) == 0) { source->packing = ZSTANDARD; }
    if (source->packing == GZIP) {
#ifdef DYNAPIPE_ZLIB
        source->has_gzip = inflateInit2(&source->gzip, 16 + MAX_WBITS) == Z_OK;
        if (!source->has_gzip) { return FAIL(STATUS_NO_MEMORY, "%s: no memory to unpack it", source->name); }
#else
        return fail_missing(source, "zlib", "zlib1g-dev");
#endif
    }
    if (source->packing == ZSTANDARD) {
#ifdef DYNAPIPE_ZSTD
        source->zstandard = ZSTD_createDStream();
        if (source->zstandard == NULL) {
            return FAIL(STATUS_NO_MEMORY, "%s: no memory to unpack it", source->name);
        }
        ZSTD_initDStream(source->zstandard);
#else
        return fail_missing(source, "libzstd", "libzstd-dev");
#endif
    }
    (void)fail_missing;
    return STATUS_OK;
}

Status byte_source_open_stream(ByteSource** out, FILE* stream, const char* name) {
    ByteSource* source = calloc(1, sizeof *source);
    char* copy = strdup(name);
    if (source == NULL || copy == NULL) {
        fclose(stream);
        free(source);
        free(copy);
        return FAIL(STATUS_NO_MEMORY, "%s: no memory to read it", name);
    }
    source->stream = stream;
    source->name = copy;
    Status status = open_packing(source);
    if (status != STATUS_OK) {
        byte_source_close(source);
        return status;
    }
    *out = source;
    return STATUS_OK;
}

// --- unpacking -------------------------------------------------------------------------------------------

#if defined DYNAPIPE_ZLIB || defined DYNAPIPE_ZSTD
static Status fail_damaged(const ByteSource* source, const char* reason) {
    return FAIL(STATUS_IO, "%s: packed data is damaged: %s ---> download or pack it again", source->name,
                reason);
}
#endif

#ifdef DYNAPIPE_ZLIB
// One step: consumes packed bytes, produces bytes, or both.
static Status unpack_gzip(ByteSource* source, void* out, size_t num_bytes, size_t* got) {
    z_stream* gzip = &source->gzip;
    if (!source->in_part && inflateReset(gzip) != Z_OK) { return fail_damaged(source, "no gzip"); }
    gzip->next_in = source->packed + source->begin;
    gzip->avail_in = (uInt)(source->end - source->begin);
    gzip->next_out = out;
    gzip->avail_out = (uInt)(num_bytes < PACKED_BYTES ? num_bytes : PACKED_BYTES);
    size_t room = gzip->avail_out;
    int result = inflate(gzip, Z_NO_FLUSH);
    if (result != Z_OK && result != Z_STREAM_END && result != Z_BUF_ERROR) {
        return fail_damaged(source, gzip->msg != NULL ? gzip->msg : "no gzip");
    }
    source->begin = source->end - gzip->avail_in;
    source->in_part = result != Z_STREAM_END;
    *got = room - gzip->avail_out;
    return STATUS_OK;
}
#endif

#ifdef DYNAPIPE_ZSTD
static Status unpack_zstandard(ByteSource* source, void* out, size_t num_bytes, size_t* got) {
    ZSTD_inBuffer from = {source->packed, source->end, source->begin};
    ZSTD_outBuffer to = {out, num_bytes, 0};
    size_t left = ZSTD_decompressStream(source->zstandard, &to, &from);
    if (ZSTD_isError(left)) { return fail_damaged(source, ZSTD_getErrorName(left)); }
    source->begin = from.pos;
    source->in_part = left != 0;
    *got = to.pos;
    return STATUS_OK;
}
#endif

static Status unpack(ByteSource* source, void* out, size_t num_bytes, size_t* got) {
#ifdef DYNAPIPE_ZLIB
    if (source->packing == GZIP) { return unpack_gzip(source, out, num_bytes, got); }
#endif
#ifdef DYNAPIPE_ZSTD
    if (source->packing == ZSTANDARD) { return unpack_zstandard(source, out, num_bytes, got); }
#endif
    size_t held = source->end - source->begin;
    *got = held < num_bytes ? held : num_bytes;
    memcpy(out, source->packed + source->begin, *got);
    source->begin += *got;
    return STATUS_OK;
}

// Reads up to num_bytes > 0 bytes into `out`; *got is 0 only at the end. STATUS_IO names a file that cannot
// be read, or whose packed data is damaged or truncated.
static Status byte_source_read(ByteSource* source, void* out, size_t num_bytes, size_t* got) {
    *got = 0;
    for (;;) {
        if (source->begin < source->end || source->in_part) {
            size_t used = source->begin;
            TRY(unpack(source, out, num_bytes, got));
            if (*got > 0) { return STATUS_OK; }
            if (source->begin > used) { continue; }
        }
        if (source->begin < source->end) {
            return FAIL(STATUS_IO, "%s: packed data is damaged ---> download or pack it again", source->name);
        }
        TRY(fill(source));
        if (source->end == 0 && source->in_part) {
            return FAIL(STATUS_IO, "%s: packed data breaks off ---> download or pack it again", source->name);
        }
        if (source->end == 0) { return STATUS_OK; }
    }
}

int64_t byte_source_position(const ByteSource* source) {
    return source->position;
}

// --- json values ---------------------------------------------------------------------------------------

enum { READ_BYTES = 1 << 16 };

Status json_values_open(JsonValues* out, ByteSource* source, const char* path, size_t max_bytes) {
    JsonValues values = {.source = source,
                         .path = strdup(path),
                         .max_bytes = max_bytes > 0 ? max_bytes : JSON_VALUES_MAX_BYTES,
                         .next_line = 1};
    if (values.path == NULL) {
        byte_source_close(source);
        return FAIL(STATUS_NO_MEMORY, "%s: no memory to read it", path);
    }
    *out = values;
    return STATUS_OK;
}

void json_values_close(JsonValues* values) {
    byte_source_close(values->source);
    free(values->path);
    free(values->buffer);
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
    size_t got;
    TRY(byte_source_read(values->source, values->buffer + values->end, READ_BYTES, &got));
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
