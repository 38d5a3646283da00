/*
slow_disk.c -- data on a disk that takes a second for each MiB that is verified (sample_verify.c asks for its
pages by madvise()): preloaded (LD_PRELOAD). Each of them leaves a byte in the file SLOW_DISK_READ.
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int madvise(void* at, size_t num_bytes, int advice) {
    static int (*real)(void*, size_t, int);
    if (real == NULL) { *(void**)&real = dlsym(RTLD_NEXT, "madvise"); }
    const char* path = getenv("SLOW_DISK_READ");
    if (advice == MADV_WILLNEED && path != NULL) {
        int fd = open(path, O_WRONLY | O_CREAT | O_APPEND, 0644);
        if (fd >= 0 && write(fd, "r", 1) == 1) { sleep(1); }
        if (fd >= 0) { close(fd); }
    }
    return real(at, num_bytes, advice);
}
