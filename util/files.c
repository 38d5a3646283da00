#include "files.h"

#include <errno.h>
#include <fcntl.h>
#include <libgen.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

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
    if (fd < 0) { return FAIL(STATUS_IO, "%s: cannot open: %s ---> check the path", path, strerror(errno)); }
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
    struct stat info;
    *writer = (FileWriter){.is_in_place = stat(path, &info) == 0 && !S_ISREG(info.st_mode)};
    if (strlen(path) >= sizeof writer->path) {
        return FAIL(STATUS_IO, "%.60s...: path too long ---> use one under %zu characters", path,
                    sizeof writer->path);
    }
    strcpy(writer->path, path);
    snprintf(writer->tmp_path, sizeof writer->tmp_path, "%s%s", path, writer->is_in_place ? "" : ".tmp");
    writer->file = fopen(writer->tmp_path, "wbe");
    if (writer->file != NULL) { return STATUS_OK; }
    return FAIL(STATUS_IO, "%s: cannot create: %s ---> choose another place", writer->tmp_path,
                strerror(errno));
}

void file_writer_write(FileWriter* writer, const void* data, size_t num_bytes) {
    bool failed = num_bytes > 0 && writer->error == 0 && fwrite(data, num_bytes, 1, writer->file) != 1;
    if (failed) { writer->error = errno; }
}

// Devices and pipes cannot be synced, renamed or removed.
Status file_writer_commit(FileWriter* writer) {
    errno = EIO;
    bool failed = fflush(writer->file) != 0 || ferror(writer->file);
    if (failed && writer->error == 0) { writer->error = errno; }
    if (writer->error == 0 && !writer->is_in_place && fsync(fileno(writer->file)) != 0) {
        writer->error = errno;
    }
    if (writer->error == 0 && !writer->is_in_place && rename(writer->tmp_path, writer->path) != 0) {
        writer->error = errno;
    }
    if (writer->error != 0) {
        file_writer_abort(writer);
        return FAIL(STATUS_IO,
                    "%s: cannot write: %s ---> free space or choose another place; what was there is kept",
                    writer->path, strerror(writer->error));
    }
    fclose(writer->file);
    writer->file = NULL;
    return STATUS_OK;
}

void file_writer_abort(FileWriter* writer) {
    if (writer->file == NULL) { return; }
    fclose(writer->file);
    writer->file = NULL;
    if (!writer->is_in_place) { unlink(writer->tmp_path); }
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

int file_write_at(int fd, const void* data, size_t num_bytes, int64_t at) {
    for (const char* cursor = (const char*)data; num_bytes > 0;) {
        ssize_t written = pwrite(fd, cursor, num_bytes, (off_t)at);
        if (written < 0 && errno == EINTR) { continue; }
        if (written <= 0) { return written == 0 ? ENOSPC : errno; }
        cursor += written;
        at += written;
        num_bytes -= (size_t)written;
    }
    return 0;
}

int file_sync_folder(const char* path) {
    char folder[4096];
    if (strlen(path) >= sizeof folder) { return ENAMETOOLONG; }
    strcpy(folder, path);
    int fd = open(dirname(folder), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
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
    strcpy(out->path, path);
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

static bool log_is_there(const LineLog* log) {
    struct stat named, opened;
    return stat(log->path, &named) == 0 && fstat(log->fd, &opened) == 0 && named.st_ino == opened.st_ino &&
           named.st_dev == opened.st_dev;
}

static Status make_again(LineLog* log) {
    char folder[LINE_LOG_PATH_CHARS];
    int fd;
    strcpy(folder, log->path);
    TRY(file_make_directory(dirname(folder)));
    TRY(open_file(&fd, log));
    if (lseek(fd, 0, SEEK_END) != 0) {
        close(fd);
        return FAIL(STATUS_IO, "%s: another run's, in place of this one's", log->path);
    }
    close(log->fd);
    log->fd = fd;
    log->end = log->last = 0;
    log->last_key[0] = '\0';
    fprintf(stderr, "warning: %s: was removed; made again\n", log->path);
    return STATUS_OK;
}

static void lose_line(LineLog* log, const char* why) {
    log->num_lost++;
    if (!log->is_failing) {
        fprintf(stderr, "warning: %s (the run goes on; lines are left out until they can be written)\n", why);
    }
    log->is_failing = true;
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
    int error = ftruncate(log->fd, at) == 0 ? file_write_at(log->fd, line, num_bytes, at) : errno;
    if (error == 0) { error = file_write_at(log->fd, "\n", 1, at + (int64_t)num_bytes); }
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
    if (!log_is_there(log) && make_again(log) != STATUS_OK) {
        lose_line(log, status_message());
        return;
    }
    int error = put_line(log, line);
    if (error != 0) {
        char why[LINE_LOG_PATH_CHARS + 128];
        snprintf(why, sizeof why, "%s: cannot be written: %s ---> free some space", log->path,
                 strerror(error));
        lose_line(log, why);
        return;
    }
    if (log->is_failing) {
        fprintf(stderr, "warning: %s: can be written again, %lld lines are missing\n", log->path,
                (long long)log->num_lost);
    }
    log->is_failing = false;
}
