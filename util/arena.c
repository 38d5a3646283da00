#ifndef _GNU_SOURCE
#define _GNU_SOURCE  // mremap
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

bool page_memory_grow(PageMemory* memory, int64_t num_bytes) {
    int64_t page_bytes = sysconf(_SC_PAGESIZE);
    num_bytes = (num_bytes + page_bytes - 1) / page_bytes * page_bytes;
    if (num_bytes <= memory->num_bytes) { return true; }
    void* data =
        memory->data == NULL
            ? mmap(NULL, (size_t)num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)
            : mremap(memory->data, (size_t)memory->num_bytes, (size_t)num_bytes, MREMAP_MAYMOVE);
    if (data == MAP_FAILED) { return false; }
    for (int64_t at = memory->num_bytes; at < num_bytes; at += page_bytes) { ((volatile char*)data)[at] = 0; }
    *memory = (PageMemory){data, num_bytes};
    return true;
}

void page_memory_free(PageMemory* memory) {
    if (memory->data != NULL) { munmap(memory->data, (size_t)memory->num_bytes); }
    *memory = (PageMemory){0};
}
