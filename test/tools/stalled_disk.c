/*
stalled_disk.c -- data on a disk that gives nothing until the file STALLED_DISK_GO is there (a minute at
most): preloaded (LD_PRELOAD), it holds up who asks for the pages of a piece to verify (sample_file.c, by
madvise()).
*/
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

int madvise(void* at, size_t num_bytes, int advice) {
    static int (*real)(void*, size_t, int);
    if (real == NULL) { *(void**)&real = dlsym(RTLD_NEXT, "madvise"); }
    const char* go = getenv("STALLED_DISK_GO");
    for (int i = 0; i < 6000 && advice == MADV_WILLNEED && go != NULL && access(go, F_OK) != 0; i++) {
        usleep(10000);
    }
    return real(at, num_bytes, advice);
}
