#include "arena.h"

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

enum { ARENA_ALIGN = 16, ARENA_FIRST_BLOCK_BYTES = 64 * 1024 };

struct ArenaBlock {
    ArenaBlock* next;
    size_t capacity_bytes;
    size_t used_bytes;
    size_t unused;  // keeps the payload behind the header aligned to ARENA_ALIGN
};

static ArenaBlock* block_create(size_t capacity_bytes) {
    if (capacity_bytes > SIZE_MAX - sizeof(ArenaBlock)) { return NULL; }
    ArenaBlock* block = malloc(sizeof(ArenaBlock) + capacity_bytes);
    if (block != NULL) { *block = (ArenaBlock){.capacity_bytes = capacity_bytes}; }
    return block;
}

// The next block of the chain that can take num_bytes; later blocks are kept from before a reset.
static ArenaBlock* block_for(Arena* arena, size_t num_bytes) {
    ArenaBlock* block = arena->current;
    while (block != NULL && block->capacity_bytes - block->used_bytes < num_bytes && block->next != NULL) {
        block = block->next;
    }
    if (block != NULL && block->capacity_bytes - block->used_bytes >= num_bytes) { return block; }
    size_t capacity_bytes = block == NULL ? ARENA_FIRST_BLOCK_BYTES : block->capacity_bytes * 2;
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
