#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // fallocate
#endif
#include "file_part.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

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
    for (const char* cursor = data; num_bytes > 0 && error == 0;) {
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
    return error == EINVAL ? 0 : error;  // of networks' file systems some cannot
}
