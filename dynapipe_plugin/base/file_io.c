#include "file_io.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

enum { WRITER_BUFFER_BYTES = 1 << 20 };

Status file_map_open(FileMap* out, const char* path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) { return FAIL(STATUS_IO, "%s: cannot open: %s", path, strerror(errno)); }
    struct stat info;
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        close(fd);
        return FAIL(STATUS_IO, "%s: not a regular file", path);
    }
    FileMap map = {.num_bytes = (size_t)info.st_size};
    if (map.num_bytes > 0) {
        void* data = mmap(NULL, map.num_bytes, PROT_READ, MAP_SHARED, fd, 0);
        if (data == MAP_FAILED) {
            close(fd);
            return FAIL(STATUS_IO, "%s: cannot map %zu bytes: %s", path, map.num_bytes, strerror(errno));
        }
        map.data = data;
    }
    close(fd);
    *out = map;
    return STATUS_OK;
}

void file_map_close(FileMap* map) {
    if (map->data != NULL) { munmap((void*)(uintptr_t)map->data, map->num_bytes); }
    *map = (FileMap){0};
}

Status file_read_text(char** out, size_t* out_bytes, const char* path) {
    FileMap map = {0};
    TRY(file_map_open(&map, path));
    char* text = malloc(map.num_bytes + 1);
    if (text == NULL) {
        file_map_close(&map);
        return FAIL(STATUS_NO_MEMORY, "%s: no memory for its %zu bytes", path, map.num_bytes);
    }
    if (map.num_bytes > 0) { memcpy(text, map.data, map.num_bytes); }
    text[map.num_bytes] = '\0';
    *out = text;
    if (out_bytes != NULL) { *out_bytes = map.num_bytes; }
    file_map_close(&map);
    return STATUS_OK;
}

Status file_writer_open(FileWriter* writer, const char* path) {
    *writer = (FileWriter){.fd = -1};
    if (strlen(path) >= sizeof writer->path) {
        return FAIL(STATUS_IO, "%.60s...: path too long ---> use one under %zu characters", path,
                    sizeof writer->path);
    }
    snprintf(writer->path, sizeof writer->path, "%s", path);
    struct stat info;
    bool in_place = stat(path, &info) == 0 && !S_ISREG(info.st_mode);
    snprintf(writer->tmp_path, sizeof writer->tmp_path, "%s%s", path, in_place ? "" : ".tmp");
    writer->buffer = malloc(WRITER_BUFFER_BYTES);
    if (writer->buffer == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for a write buffer", path); }
    writer->fd = open(writer->tmp_path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
    if (writer->fd < 0) {
        free(writer->buffer);
        writer->buffer = NULL;
        return FAIL(STATUS_IO, "%s: cannot create: %s ---> choose another place", writer->tmp_path,
                    strerror(errno));
    }
    return STATUS_OK;
}

static void write_fully(FileWriter* writer, const unsigned char* data, size_t num_bytes) {
    while (num_bytes > 0 && writer->error == 0) {
        ssize_t written = write(writer->fd, data, num_bytes);
        if (written < 0) {
            if (errno != EINTR) { writer->error = errno; }
            continue;
        }
        data += written;
        num_bytes -= (size_t)written;
    }
}

static void flush_buffer(FileWriter* writer) {
    write_fully(writer, writer->buffer, writer->buffered_bytes);
    writer->buffered_bytes = 0;
}

void file_writer_write(FileWriter* writer, const void* data, size_t num_bytes) {
    if (num_bytes > WRITER_BUFFER_BYTES - writer->buffered_bytes) { flush_buffer(writer); }
    if (num_bytes > WRITER_BUFFER_BYTES) {
        write_fully(writer, data, num_bytes);
    } else if (num_bytes > 0) {
        memcpy(writer->buffer + writer->buffered_bytes, data, num_bytes);
        writer->buffered_bytes += num_bytes;
    }
}

// Devices, pipes: nothing to rename, to keep, or to sync.
static bool is_in_place(const FileWriter* writer) {
    return strcmp(writer->tmp_path, writer->path) == 0;
}

Status file_writer_commit(FileWriter* writer) {
    bool in_place = is_in_place(writer);
    flush_buffer(writer);
    if (writer->error == 0 && !in_place && fsync(writer->fd) != 0) { writer->error = errno; }
    if (close(writer->fd) != 0 && writer->error == 0) { writer->error = errno; }
    writer->fd = -1;
    if (writer->error == 0 && !in_place && rename(writer->tmp_path, writer->path) != 0) {
        writer->error = errno;
    }
    int error = writer->error;
    if (error != 0) {
        file_writer_abort(writer);
        return FAIL(STATUS_IO,
                    "%s: cannot write: %s ---> free space or choose another place; what was there is kept",
                    writer->path, strerror(error));
    }
    free(writer->buffer);
    writer->buffer = NULL;
    return STATUS_OK;
}

void file_writer_abort(FileWriter* writer) {
    if (writer->buffer == NULL) { return; }
    if (writer->fd >= 0) { close(writer->fd); }
    writer->fd = -1;
    if (!is_in_place(writer)) { unlink(writer->tmp_path); }
    free(writer->buffer);
    writer->buffer = NULL;
}

Status file_make_directory(const char* path) {
    char partial[4096];
    size_t length = strlen(path);
    if (length == 0 || length >= sizeof partial) {
        return FAIL(STATUS_IO, "'%.60s': not a usable directory name", path);
    }
    for (size_t i = 1; i <= length; i++) {
        if (i < length && path[i] != '/') { continue; }
        memcpy(partial, path, i);
        partial[i] = '\0';
        struct stat info;
        if (mkdir(partial, 0755) == 0) { continue; }
        int error = errno;  // some file systems say of what is there that it may not be made
        bool is_there = stat(partial, &info) == 0;
        if (is_there && S_ISDIR(info.st_mode)) { continue; }
        return FAIL(STATUS_IO, "%s: cannot create directory: %s ---> choose a place where you may write",
                    partial, strerror(is_there ? ENOTDIR : error));
    }
    return STATUS_OK;
}
