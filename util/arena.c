#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // MAP_ANONYMOUS
#endif

#include "arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { ARENA_ALIGN = 16, ARENA_FIRST_BLOCK_BYTES = 64 * 1024 };

struct ArenaBlock {
    ArenaBlock* next;
    size_t capacity_bytes;
    size_t used_bytes;
    size_t unused;  // keeps the payload after the header aligned to ARENA_ALIGN
};

static ArenaBlock* block_create(size_t capacity_bytes) {
    if (capacity_bytes > SIZE_MAX - sizeof(ArenaBlock)) { return NULL; }
    ArenaBlock* block = (ArenaBlock*)malloc(sizeof(ArenaBlock) + capacity_bytes);
    if (block != NULL) { *block = (ArenaBlock){.capacity_bytes = capacity_bytes}; }
    return block;
}

// The next block of the chain with room for num_bytes; later blocks are kept from before a reset.
static ArenaBlock* block_for(Arena* arena, size_t num_bytes) {
    ArenaBlock* block = arena->current;
    while (block != NULL && block->capacity_bytes - block->used_bytes < num_bytes && block->next != NULL) {
        block = block->next;
    }
    if (block != NULL && block->capacity_bytes - block->used_bytes >= num_bytes) { return block; }
    size_t capacity_bytes = block == NULL ? (size_t)ARENA_FIRST_BLOCK_BYTES : block->capacity_bytes * 2;
    if (capacity_bytes < num_bytes) { capacity_bytes = num_bytes; }
    ArenaBlock* fresh = block_create(capacity_bytes);
    if (fresh == NULL) { return NULL; }
    if (block == NULL) {
        arena->first = fresh;
    } else {
        block->next = fresh;
    }
    return fresh;
}

void* arena_alloc_raw(Arena* arena, size_t num_bytes) {
    if (num_bytes > SIZE_MAX - ARENA_ALIGN) { return NULL; }
    if (num_bytes == 0) { num_bytes = 1; }
    num_bytes = (num_bytes + ARENA_ALIGN - 1) / ARENA_ALIGN * ARENA_ALIGN;
    ArenaBlock* block = block_for(arena, num_bytes);
    if (block == NULL) { return NULL; }
    arena->current = block;
    void* out = (char*)(block + 1) + block->used_bytes;
    block->used_bytes += num_bytes;
    return out;
}

void* arena_alloc(Arena* arena, size_t num_bytes) {
    void* out = arena_alloc_raw(arena, num_bytes);
    return out != NULL ? memset(out, 0, num_bytes) : NULL;
}

void* arena_alloc_array(Arena* arena, size_t count, size_t item_bytes) {
    if (item_bytes != 0 && count > SIZE_MAX / item_bytes) { return NULL; }
    return arena_alloc(arena, count * item_bytes);
}

void arena_reset(Arena* arena) {
    for (ArenaBlock* block = arena->first; block != NULL; block = block->next) { block->used_bytes = 0; }
    arena->current = arena->first;
}

void arena_free(Arena* arena) {
    ArenaBlock* block = arena->first;
    while (block != NULL) {
        ArenaBlock* next = block->next;
        free(block);
        block = next;
    }
    *arena = (Arena){0};
}

// --- page memory ---------------------------------------------------------------------------------------

enum { RESERVE_TIMES = 4 };

static int64_t round_up(int64_t num_bytes, int64_t to) {
    return (num_bytes + to - 1) / to * to;
}

// Reserves addresses only. The range begins at a huge-page boundary; the excess on both sides is unmapped.
static void* reserve(int64_t num_bytes) {
    char* all = (char*)mmap(NULL, (size_t)(num_bytes + PAGE_MEMORY_ALIGN), PROT_NONE,
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
    if (data == NULL) {  // address space may be limited (ulimit -v)
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
