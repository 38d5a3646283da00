#include "byte_source.h"

#include <errno.h>
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

// What a pipe has comes at once, not when 64 KiB are there: who asks line by line waits for each answer.
static Status read_more(ByteSource* source) {
    unsigned char* to = source->packed + source->end;
    size_t room = PACKED_BYTES - source->end, got;
    if (fileno(source->stream) < 0) {  // of memory
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

static Status open_packing(ByteSource* source) {
    static const unsigned char gzip_magic[] = {0x1f, 0x8b}, zstandard_magic[] = {0x28, 0xb5, 0x2f, 0xfd};
    TRY(fill(source));
    // a pipe may give less than the bytes that tell
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

Status byte_source_open(ByteSource** out, const char* path) {
    FILE* stream = fopen(path, "rbe");
    if (stream == NULL) { return FAIL(STATUS_IO, "%s: cannot open: %s", path, strerror(errno)); }
    return byte_source_open_stream(out, stream, path);
}

void byte_source_close(ByteSource* source) {
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

// --- unpacking -------------------------------------------------------------------------------------------

#if defined DYNAPIPE_ZLIB || defined DYNAPIPE_ZSTD
static Status fail_damaged(const ByteSource* source, const char* reason) {
    return FAIL(STATUS_IO, "%s: packed data is damaged: %s ---> download or pack it again", source->name,
                reason);
}
#endif

#ifdef DYNAPIPE_ZLIB
// One step: takes packed bytes, gives bytes, or both.
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

Status byte_source_read(ByteSource* source, void* out, size_t num_bytes, size_t* got) {
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
