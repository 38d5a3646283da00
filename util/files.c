#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // fallocate
#endif

#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { WRITER_BUFFER_BYTES = 1 << 20 };

Status file_map_descriptor(FileMap* out, int fd, const char* path) {
    struct stat info;
    *out = (FileMap){0};
    if (fstat(fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        return FAIL(STATUS_IO, "%s: not a regular file", path);
    }
    if (info.st_size == 0) { return STATUS_OK; }
    void* data = mmap(NULL, (size_t)info.st_size, PROT_READ, MAP_SHARED, fd, 0);
    if (data == MAP_FAILED) {
        return FAIL(STATUS_IO, "%s: cannot map %lld bytes: %s", path, (long long)info.st_size,
                    strerror(errno));
    }
    *out = (FileMap){(const unsigned char*)data, (size_t)info.st_size};
    return STATUS_OK;
}

Status file_map_open(FileMap* out, const char* path) {
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) { return FAIL(STATUS_IO, "%s: cannot open: %s", path, strerror(errno)); }
    Status status = file_map_descriptor(out, fd, path);
    close(fd);
    return status;
}

void file_map_close(FileMap* map) {
    if (map->data != NULL) { munmap((void*)(uintptr_t)map->data, map->num_bytes); }
    *map = (FileMap){0};
}

Status file_read_text(char** out, size_t* out_bytes, const char* path) {
    FileMap map = {0};
    TRY(file_map_open(&map, path));
    char* text = (char*)malloc(map.num_bytes + 1);
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
    writer->buffer = (unsigned char*)malloc(WRITER_BUFFER_BYTES);
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
        write_fully(writer, (const unsigned char*)data, num_bytes);
    } else if (num_bytes > 0) {
        memcpy(writer->buffer + writer->buffered_bytes, data, num_bytes);
        writer->buffered_bytes += num_bytes;
    }
}

// Devices and pipes cannot be renamed, kept or synced.
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

Status file_write(const char* path, const void* data, size_t num_bytes) {
    FileWriter writer;
    TRY(file_writer_open(&writer, path));
    file_writer_write(&writer, data, num_bytes);
    return file_writer_commit(&writer);
}

Status file_copy(const char* from, const char* to) {
    FileMap map = {0};
    TRY(file_map_open(&map, from));
    Status status = file_write(to, map.data, map.num_bytes);
    file_map_close(&map);
    return status;
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
        int error = errno;  // some file systems return another error than EEXIST for an existing folder
        bool is_there = stat(partial, &info) == 0;
        if (is_there && S_ISDIR(info.st_mode)) { continue; }
        return FAIL(STATUS_IO, "%s: cannot create directory: %s ---> choose a place where you may write",
                    partial, strerror(is_there ? ENOTDIR : error));
    }
    return STATUS_OK;
}

// --- file part -----------------------------------------------------------------------------------------

// Beyond RLIMIT_FSIZE the system sends SIGXFSZ, which would end the program, before it returns EFBIG. These
// two block the signal in this thread and discard it.
static sigset_t xfsz_block(void) {
    sigset_t xfsz, before;
    sigemptyset(&xfsz);
    sigaddset(&xfsz, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &xfsz, &before);
    return before;
}

static void xfsz_restore(sigset_t before) {
    if (sigismember(&before, SIGXFSZ)) { return; }
    sigset_t xfsz;
    sigemptyset(&xfsz);
    sigaddset(&xfsz, SIGXFSZ);
    const struct timespec now = {0};
    while (sigtimedwait(&xfsz, NULL, &now) == SIGXFSZ) {}
    pthread_sigmask(SIG_SETMASK, &before, NULL);
}

int file_write_at(int fd, const void* data, size_t num_bytes, int64_t at) {
    sigset_t before = xfsz_block();
    int error = 0;
    for (const char* cursor = (const char*)data; num_bytes > 0 && error == 0;) {
        ssize_t written = pwrite(fd, cursor, num_bytes, (off_t)at);
        if (written < 0 && errno == EINTR) { continue; }
        if (written <= 0) {
            error = written == 0 ? ENOSPC : errno;
            break;
        }
        cursor += written;
        at += written;
        num_bytes -= (size_t)written;
    }
    xfsz_restore(before);
    return error;
}

int file_reserve(int fd, int64_t num_bytes) {
    if (num_bytes == 0) { return 0; }
    sigset_t before = xfsz_block();
    int error;
    do { error = fallocate(fd, 0, 0, (off_t)num_bytes) == 0 ? 0 : errno; } while (error == EINTR);
    if (error == EOPNOTSUPP || error == ENOSYS) { error = ftruncate(fd, (off_t)num_bytes) == 0 ? 0 : errno; }
    xfsz_restore(before);
    return error;
}

int file_sync_folder(const char* path) {
    char folder[4096];
    if (strlen(path) >= sizeof folder) { return ENAMETOOLONG; }
    snprintf(folder, sizeof folder, "%s", path);
    char* slash = strrchr(folder, '/');
    if (slash == NULL) {
        strcpy(folder, ".");
    } else {
        slash[slash == folder ? 1 : 0] = '\0';
    }
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0) { return errno; }
    int error = fsync(fd) == 0 ? 0 : errno;
    close(fd);
    return error == EINVAL ? 0 : error;  // some network file systems do not support it
}

// --- line log ------------------------------------------------------------------------------------------

static Status open_file(int* fd, const LineLog* log) {
    *fd = open(log->path, O_RDWR | O_CREAT | O_CLOEXEC, 0644);
    if (*fd < 0) {
        return FAIL(STATUS_IO, "%s: cannot open: %s ---> choose a folder where you may write", log->path,
                    strerror(errno));
    }
    if (!log->is_locked || flock(*fd, LOCK_EX | LOCK_NB) == 0 || errno != EWOULDBLOCK) { return STATUS_OK; }
    close(*fd);
    return FAIL(STATUS_IO, "%s: another run writes here ---> give each run its own folder", log->path);
}

Status line_log_open(LineLog* out, const char* path, LineLogKey* key, bool locked) {
    *out = (LineLog){.key = key, .is_locked = locked};
    if (strlen(path) >= sizeof out->path) {
        return FAIL(STATUS_IO, "%.60s...: path too long ---> use one under %zu characters", path,
                    sizeof out->path);
    }
    snprintf(out->path, sizeof out->path, "%s", path);
    TRY(open_file(&out->fd, out));
    out->is_open = true;
    out->end = out->last = lseek(out->fd, 0, SEEK_END);
    return STATUS_OK;
}

void line_log_close(LineLog* log) {
    if (log->is_open) { close(log->fd); }
    log->is_open = false;
}

// --- truncating -------------------------------------------------------------------------------------------

// *step: INT64_MIN if the line has none.
static void key_of(char out[LINE_LOG_KEY_CHARS], int64_t* step, const LineLog* log, const char* line) {
    *step = INT64_MIN;
    size_t num_chars = log->key != NULL ? log->key(step, line, strlen(line)) : 0;
    if (num_chars >= LINE_LOG_KEY_CHARS) { num_chars = 0; }
    memcpy(out, line, num_chars);
    out[num_chars] = '\0';
}

static Status find_end(LineLog* log, int64_t last_step) {
    int fd = dup(log->fd);
    FILE* file = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (file == NULL) {
        if (fd >= 0) { close(fd); }
        return FAIL(STATUS_IO, "%s: cannot be read: %s", log->path, strerror(errno));
    }
    char *line = NULL, key[LINE_LOG_KEY_CHARS];
    size_t num_allocated = 0;
    ssize_t num_bytes;
    rewind(file);
    log->end = log->last = 0;
    log->last_key[0] = '\0';
    while ((num_bytes = getline(&line, &num_allocated, file)) > 0) {
        int64_t step;
        key_of(key, &step, log, line);
        if (line[num_bytes - 1] != '\n' || step > last_step) { break; }
        memcpy(log->last_key, key, sizeof key);
        log->last = log->end;
        log->end += num_bytes;
    }
    bool failed = ferror(file) != 0;
    free(line);
    fclose(file);
    return failed ? FAIL(STATUS_IO, "%s: cannot be read ---> check the disk", log->path) : STATUS_OK;
}

Status line_log_cut(LineLog* log, int64_t step) {
    log->end = log->last = 0;
    log->last_key[0] = '\0';
    if (step >= 0) { TRY(find_end(log, step)); }
    if (ftruncate(log->fd, log->end) == 0) { return STATUS_OK; }
    return FAIL(STATUS_IO, "%s: cannot be cut back: %s ---> choose a folder where you may write", log->path,
                strerror(errno));
}

// --- writing -----------------------------------------------------------------------------------------------

static bool is_there(const LineLog* log) {
    struct stat named, opened;
    return stat(log->path, &named) == 0 && fstat(log->fd, &opened) == 0 && named.st_ino == opened.st_ino &&
           named.st_dev == opened.st_dev;
}

// A removed file can still be read through an open descriptor.
static Status copy_lines(const LineLog* log, int to) {
    char piece[16384];
    int error = 0;
    for (int64_t at = 0; at < log->end && error == 0;) {
        size_t wanted = log->end - at < (int64_t)sizeof piece ? (size_t)(log->end - at) : sizeof piece;
        ssize_t num_bytes = pread(log->fd, piece, wanted, at);
        if (num_bytes <= 0) {
            error = num_bytes < 0 ? errno : EIO;
        } else {
            error = file_write_at(to, piece, (size_t)num_bytes, at);
            at += num_bytes;
        }
    }
    if (error == 0) { return STATUS_OK; }
    if (ftruncate(to, 0) != 0) { error = errno; }  // an empty file can be filled once there is room
    return FAIL(STATUS_IO, "%s: is gone and cannot be made again: %s", log->path, strerror(error));
}

static Status make_again(LineLog* log) {
    char folder[LINE_LOG_PATH_CHARS];
    int fd;
    snprintf(folder, sizeof folder, "%s", log->path);
    char* slash = strrchr(folder, '/');
    if (slash != NULL && slash != folder) {
        *slash = '\0';
        TRY(file_make_directory(folder));
    }
    TRY(open_file(&fd, log));
    Status status = lseek(fd, 0, SEEK_END) == 0
                        ? copy_lines(log, fd)
                        : FAIL(STATUS_IO, "%s: another run's, in place of this one's", log->path);
    if (status != STATUS_OK) {
        close(fd);
        return status;
    }
    close(log->fd);
    log->fd = fd;
    return STATUS_OK;
}

static void lose_line(LineLog* log, const char* why) {
    log->num_lost++;
    if (!log->is_failing) {
        fprintf(stderr, "warning: %s (the run goes on; lines are left out until they can be written)\n", why);
    }
    log->is_failing = true;
}

static void end_failing(LineLog* log) {
    if (log->is_failing) {
        fprintf(stderr, "warning: %s: can be written again, %lld lines are missing\n", log->path,
                (long long)log->num_lost);
    }
    log->is_failing = false;
}

// Appends, or replaces the last line if this one has the same key. After a failed write no half of a line is
// left; a line that was to be replaced is lost as well.
static int put_line(LineLog* log, const char* line) {
    char key[LINE_LOG_KEY_CHARS];
    int64_t step;
    key_of(key, &step, log, line);
    bool replaces = key[0] != '\0' && strcmp(key, log->last_key) == 0;
    int64_t at = replaces ? log->last : log->end;
    size_t num_bytes = strlen(line);
    char* text = (char*)malloc(num_bytes + 1);
    int error = text == NULL ? ENOMEM : 0;
    if (error == 0) {
        memcpy(text, line, num_bytes);
        text[num_bytes] = '\n';
        error = ftruncate(log->fd, at) == 0 ? file_write_at(log->fd, text, num_bytes + 1, at) : errno;
    }
    free(text);
    log->last = log->end = at;
    if (error == 0) {
        log->end += (int64_t)num_bytes + 1;
        memcpy(log->last_key, key, sizeof key);
        return 0;
    }
    log->num_lost += replaces;
    log->last_key[0] = '\0';
    return ftruncate(log->fd, at) == 0 ? error : errno;
}

void line_log_write(LineLog* log, const char* line) {
    if (!log->is_open) { return; }
    if (!is_there(log)) {
        if (make_again(log) != STATUS_OK) {
            lose_line(log, status_message());
            return;
        }
        fprintf(stderr, "warning: %s: was removed; made again, with its lines so far\n", log->path);
    }
    int error = put_line(log, line);
    if (error == 0) {
        end_failing(log);
        return;
    }
    char why[LINE_LOG_PATH_CHARS + 128];
    snprintf(why, sizeof why, "%s: cannot be written: %s ---> free some space", log->path, strerror(error));
    lose_line(log, why);
}
