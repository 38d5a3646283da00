#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // MAP_ANONYMOUS
#endif
#include "page_memory.h"

#include <sys/mman.h>
#include <unistd.h>

enum { RESERVE_TIMES = 4 };

static int64_t round_up(int64_t num_bytes, int64_t to) {
    return (num_bytes + to - 1) / to * to;
}

// Addresses only. They begin at a huge page, should the system make these: what lies before and behind is
// given back.
static void* reserve(int64_t num_bytes) {
    char* all = mmap(NULL, (size_t)(num_bytes + PAGE_MEMORY_ALIGN), PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (all == MAP_FAILED) { return NULL; }
    int64_t before_bytes = round_up((int64_t)(uintptr_t)all, PAGE_MEMORY_ALIGN) - (int64_t)(uintptr_t)all;
    if (before_bytes > 0) { munmap(all, (size_t)before_bytes); }
    munmap(all + before_bytes + num_bytes, (size_t)(PAGE_MEMORY_ALIGN - before_bytes));
    return all + before_bytes;
}

static bool move(PageMemory* memory, int64_t num_bytes) {
    page_memory_free(memory);
    int64_t reserved_bytes = round_up(RESERVE_TIMES * num_bytes, PAGE_MEMORY_ALIGN);
    void* data = reserve(reserved_bytes);
    if (data == NULL) {  // a limit on addresses (ulimit -v)
        reserved_bytes = round_up(num_bytes, PAGE_MEMORY_ALIGN);
        data = reserve(reserved_bytes);
    }
    if (data == NULL) { return false; }
    *memory = (PageMemory){.data = data, .reserved_bytes = reserved_bytes};
    return true;
}

static bool touch(PageMemory* memory, int64_t num_bytes, int64_t page_bytes) {
    volatile char* fresh = (char*)memory->data + memory->num_bytes;
    int64_t fresh_bytes = num_bytes - memory->num_bytes;
    if (mprotect((void*)fresh, (size_t)fresh_bytes, PROT_READ | PROT_WRITE) != 0) { return false; }
    for (int64_t at = 0; at < fresh_bytes; at += page_bytes) { fresh[at] = 0; }
    memory->num_bytes = num_bytes;
    return true;
}

bool page_memory_grow(PageMemory* memory, int64_t num_bytes) {
    if (num_bytes <= memory->num_bytes) { return true; }
    int64_t page_bytes = sysconf(_SC_PAGESIZE), wanted_bytes = round_up(num_bytes, page_bytes);
    if (wanted_bytes > memory->reserved_bytes && !move(memory, wanted_bytes)) { return false; }
    return touch(memory, wanted_bytes, page_bytes);
}

void page_memory_free(PageMemory* memory) {
    if (memory->data != NULL) { munmap(memory->data, (size_t)memory->reserved_bytes); }
    *memory = (PageMemory){0};
}
