#include "slow_disk.h"

#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

_Atomic int slow_disk_ms, slow_disk_chunks, slow_disk_asked;

// NOLINTNEXTLINE(readability-inconsistent-declaration-parameter-name): replaces libc's
int madvise(void* at, size_t num_bytes, int advice) {
    if (advice == MADV_WILLNEED) {
        atomic_fetch_add(&slow_disk_asked, 1);
        if (atomic_fetch_sub(&slow_disk_chunks, 1) > 0) {
            usleep(1000 * (useconds_t)atomic_load(&slow_disk_ms));
        }
    }
    return (int)syscall(SYS_madvise, at, num_bytes, advice);
}
