#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // fallocate
#endif
#include "checkpoint_file.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include "llmc_error.h"

// Beyond RLIMIT_FSIZE the system sends SIGXFSZ, which would end the program, before it returns EFBIG. These
// two hold the signal back in this thread, and take it if it came.
static sigset_t xfsz_block(void) {
    sigset_t xfsz, before;
    sigemptyset(&xfsz);
    sigaddset(&xfsz, SIGXFSZ);
    pthread_sigmask(SIG_BLOCK, &xfsz, &before);
    return before;
}

static void xfsz_restore(sigset_t before) {
    int saved_errno = errno;
    if (!sigismember(&before, SIGXFSZ)) {
        sigset_t xfsz;
        sigemptyset(&xfsz);
        sigaddset(&xfsz, SIGXFSZ);
        const struct timespec now = {0};
        while (sigtimedwait(&xfsz, NULL, &now) == SIGXFSZ) {}
        pthread_sigmask(SIG_SETMASK, &before, NULL);
    }
    errno = saved_errno;
}

static bool set_path(CheckpointFile* file, const char* path, char* error) {
    *file = (CheckpointFile){.fd = -1};
    if (strlen(path) + 5 > sizeof file->path) {
        return llmc_fail(error, "%s: path too long ---> use one under %zu characters", llmc_path_tail(path),
                         sizeof file->path - 5);
    }
    strcpy(file->path, path);
    return true;
}

static void tmp_path(char* out, const char* path) {
    snprintf(out, CHECKPOINT_PATH_CHARS, "%.*s.tmp", CHECKPOINT_PATH_CHARS - 5, path);
}

void checkpoint_file_close(CheckpointFile* file) {
    if (file->fd >= 0) { close(file->fd); }
    file->fd = -1;
}

void checkpoint_file_remove_tmp(const char* path) {
    char tmp[CHECKPOINT_PATH_CHARS];
    tmp_path(tmp, path);
    unlink(tmp);
}

static bool write_failed(CheckpointFile* file, const char* doing, int reason, char* error) {
    checkpoint_file_close(file);
    checkpoint_file_remove_tmp(file->path);
    bool is_full = reason == ENOSPC || reason == EDQUOT || reason == EFBIG;
    return llmc_fail(error, "%s: cannot %s: %s ---> %s; nothing was replaced", llmc_path_tail(file->path),
                     doing, strerror(reason),
                     is_full ? "free some space, or keep fewer checkpoints (-nk)" : "check the disk");
}

// Space is reserved now rather than missed later; file systems that cannot reserve get the length alone.
static int reserve(int fd, int64_t num_bytes) {
    if (num_bytes == 0) { return 0; }
    sigset_t before = xfsz_block();
    int result = fallocate(fd, 0, 0, num_bytes);
    if (result != 0 && (errno == EOPNOTSUPP || errno == ENOSYS)) { result = ftruncate(fd, num_bytes); }
    xfsz_restore(before);
    return result == 0 ? 0 : errno;
}

bool checkpoint_file_create(CheckpointFile* out, const char* path, int64_t num_bytes, char* error) {
    if (!set_path(out, path, error)) { return false; }
    char tmp[CHECKPOINT_PATH_CHARS];
    tmp_path(tmp, path);
    unlink(tmp);
    out->fd = open(tmp, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (out->fd < 0) {
        return llmc_fail(error, "%s.tmp: cannot create: %s ---> choose a writable directory",
                         llmc_path_tail(path), strerror(errno));
    }
    int reason = reserve(out->fd, num_bytes);
    if (reason != 0) { return write_failed(out, "reserve its length", reason, error); }
    out->num_bytes = num_bytes;
    return true;
}

static bool open_file(CheckpointFile* file, const char* name, int flags, const char* remedy, char* error) {
    file->fd = open(name, flags | O_CLOEXEC);
    struct stat info;
    if (file->fd < 0) {
        return llmc_fail(error, "%s: cannot open: %s ---> %s", llmc_path_tail(name), strerror(errno), remedy);
    }
    if (fstat(file->fd, &info) != 0 || !S_ISREG(info.st_mode)) {
        checkpoint_file_close(file);
        return llmc_fail(error, "%s: not a regular file ---> %s", llmc_path_tail(name), remedy);
    }
    file->num_bytes = info.st_size;
    return true;
}

bool checkpoint_file_open_tmp(CheckpointFile* out, const char* path, char* error) {
    if (!set_path(out, path, error)) { return false; }
    char tmp[CHECKPOINT_PATH_CHARS];
    tmp_path(tmp, path);
    return open_file(out, tmp, O_RDWR, "another rank failed, or -o is not shared by all machines", error);
}

bool checkpoint_file_open(CheckpointFile* out, const char* path, char* error) {
    return set_path(out, path, error) && open_file(out, path, O_RDONLY, "name an existing checkpoint", error);
}

static _Atomic int64_t bytes_done;

int64_t checkpoint_file_bytes_done(void) {
    return atomic_load_explicit(&bytes_done, memory_order_relaxed);
}

bool checkpoint_file_read(const CheckpointFile* file, void* data, int64_t num_bytes, int64_t offset,
                          char* error) {
    for (char* cursor = data; num_bytes > 0;) {
        ssize_t done = pread(file->fd, cursor, (size_t)num_bytes, (off_t)offset);
        if (done < 0 && errno == EINTR) { continue; }
        if (done <= 0) {
            return llmc_fail(error, "%s: cannot read byte %lld: %s ---> use another checkpoint",
                             llmc_path_tail(file->path), (long long)offset,
                             done == 0 ? "file ends" : strerror(errno));
        }
        cursor += done;
        num_bytes -= done;
        offset += done;
        atomic_fetch_add_explicit(&bytes_done, done, memory_order_relaxed);
    }
    return true;
}

bool checkpoint_file_write(CheckpointFile* file, const void* data, int64_t num_bytes, int64_t offset,
                           char* error) {
    int reason = 0;
    sigset_t before = xfsz_block();
    for (const char* cursor = data; num_bytes > 0 && reason == 0;) {
        ssize_t done = pwrite(file->fd, cursor, (size_t)num_bytes, (off_t)offset);
        if (done < 0 && errno == EINTR) { continue; }
        if (done <= 0) {
            reason = done == 0 ? ENOSPC : errno;
            break;
        }
        cursor += done;
        num_bytes -= done;
        offset += done;
        atomic_fetch_add_explicit(&bytes_done, done, memory_order_relaxed);
    }
    xfsz_restore(before);
    return reason == 0 || write_failed(file, "write", reason, error);
}

bool checkpoint_file_sync(CheckpointFile* file, char* error) {
    if (fsync(file->fd) != 0) { return write_failed(file, "sync", errno, error); }
    int fd = file->fd;
    file->fd = -1;
    return close(fd) == 0 || write_failed(file, "close", errno, error);
}

bool checkpoint_file_sync_directory(const char* path, char* error) {
    char directory[CHECKPOINT_PATH_CHARS];
    snprintf(directory, sizeof directory, "%s", path);
    char* slash = strrchr(directory, '/');
    if (slash == NULL) {
        strcpy(directory, ".");
    } else {
        slash[slash == directory ? 1 : 0] = '\0';
    }
    int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    // some file systems (of networks) cannot sync a directory: EINVAL
    bool ok = fd >= 0 && (fsync(fd) == 0 || errno == EINVAL);
    int reason = errno;
    if (fd >= 0) { close(fd); }
    return ok || llmc_fail(error, "%s: cannot sync directory: %s ---> check the disk",
                           llmc_path_tail(directory), strerror(reason));
}

bool checkpoint_file_rename(const char* path, char* error) {
    char tmp[CHECKPOINT_PATH_CHARS];
    tmp_path(tmp, path);
    if (rename(tmp, path) != 0) {
        int reason = errno;
        unlink(tmp);
        return llmc_fail(
            error, "%s.tmp: cannot rename to %s: %s ---> a rank failed to write its part, or the disk did",
            llmc_path_tail(path), llmc_path_tail(path), strerror(reason));
    }
    return checkpoint_file_sync_directory(path, error);
}
