#include "slow_disk.h"

#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

static _Atomic int slow_ms, slow_chunks, num_asked;

void slow_disk_set(int ms, int chunks) {
    atomic_store(&slow_ms, ms);
    atomic_store(&slow_chunks, chunks);
    atomic_store(&num_asked, 0);
}

int slow_disk_asked(void) {
    return atomic_load(&num_asked);
}

// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): replaces libc's
int madvise(void* at, size_t num_bytes, int advice) {
    if (advice == MADV_WILLNEED) {
        atomic_fetch_add(&num_asked, 1);
        if (atomic_fetch_sub(&slow_chunks, 1) > 0) { usleep(1000 * (useconds_t)atomic_load(&slow_ms)); }
    }
    return (int)syscall(SYS_madvise, at, num_bytes, advice);
}
