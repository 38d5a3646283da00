#include "line_log.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include "file_io.h"
#include "file_part.h"

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

// --- cutting -----------------------------------------------------------------------------------------------

// *step: INT64_MIN where the line is about none.
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

// What was removed can still be read by whoever has it open.
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
    if (ftruncate(to, 0) != 0) { error = errno; }  // what is empty is ours to fill, when there is room
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

// The file as it was before a line that could not be written; `old` (NULL: none): the line that it began
// over.
static void take_back(LineLog* log, const char* old) {
    int64_t old_bytes = old != NULL ? log->end - log->last : 0;
    int error = ftruncate(log->fd, log->end - old_bytes) == 0 ? 0 : errno;
    if (old == NULL) { return; }  // where that failed: the next line begins over the half of this one anyway
    if (error == 0) { error = file_write_at(log->fd, old, (size_t)old_bytes, log->last); }
    if (error == 0) { return; }
    log->num_lost++;
    log->end = log->last;
    log->last_key[0] = '\0';
    if (ftruncate(log->fd, log->end) != 0) { return; }  // as above
}

// The last line, malloced; NULL: cannot be read.
static char* last_line(const LineLog* log) {
    size_t num_bytes = (size_t)(log->end - log->last);
    char* line = malloc(num_bytes + 1);
    if (line != NULL && pread(log->fd, line, num_bytes, log->last) == (ssize_t)num_bytes) { return line; }
    free(line);
    return NULL;
}

// At the end, or over the last line where this one is about the same.
static int put_line(LineLog* log, const char* line) {
    char key[LINE_LOG_KEY_CHARS];
    int64_t step;
    key_of(key, &step, log, line);
    char* old = key[0] != '\0' && strcmp(key, log->last_key) == 0 ? last_line(log) : NULL;
    int64_t at = old != NULL ? log->last : log->end;
    size_t num_bytes = strlen(line);
    char* text = malloc(num_bytes + 1);
    int error = text == NULL ? ENOMEM : 0;
    if (error == 0 && old != NULL) { error = ftruncate(log->fd, at) == 0 ? 0 : errno; }
    if (error == 0) {
        memcpy(text, line, num_bytes);
        text[num_bytes] = '\n';
        error = file_write_at(log->fd, text, num_bytes + 1, at);
    }
    free(text);
    if (error == 0) {
        log->last = at;
        log->end = at + (int64_t)num_bytes + 1;
        memcpy(log->last_key, key, sizeof key);
    } else {
        take_back(log, old);
    }
    free(old);
    return error;
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
