/*
arena.h -- memory that is freed all at once.

    Arena arena = {0};                           // a valid, empty arena
    int64_t* times_ns = ARENA_NEW(&arena, int64_t, M);
    arena_reset(&arena);                         // invalidate everything, keep the blocks
    arena_free(&arena);

Blocks grow by doubling, so a plan of the same shape allocates nothing. Not thread-safe.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include "status.h"

typedef struct ArenaBlock ArenaBlock;

typedef struct {
    ArenaBlock* first;    // chain of blocks, oldest first
    ArenaBlock* current;  // the block in use
} Arena;

// Zeroed memory, aligned to 16 bytes; NULL if there is no memory. 0 bytes gives a unique pointer.
void* arena_alloc(Arena* arena, size_t num_bytes);

// Not zeroed: for inner loops that overwrite all of it.
void* arena_alloc_raw(Arena* arena, size_t num_bytes);

// The same for `count` items of `item_bytes`; NULL also if the product overflows.
void* arena_alloc_array(Arena* arena, size_t count, size_t item_bytes);
#define ARENA_NEW(arena, Type, count) ((Type*)arena_alloc_array((arena), (size_t)(count), sizeof(Type)))
// pointer = ARENA_NEW(..), in a function that returns Status.
#define ARENA_TRY_NEW(pointer, arena, Type, count)                                       \
    do {                                                                                 \
        (pointer) = ARENA_NEW((arena), Type, (count));                                   \
        if ((pointer) == NULL) { return FAIL(STATUS_NO_MEMORY, "no host memory left"); } \
    } while (0)

void arena_reset(Arena* arena);
void arena_free(Arena* arena);

// --- page memory ---------------------------------------------------------------------------------------

// Memory that grows without copying; every page is touched before it is returned. The first write to a page
// costs 0.4 s of processor time per GiB in 4 KiB pages, and the first job that writes would pay for it. Huge
// pages are not requested: on virtual machines the first touch of 400 MiB of them took 2.0 s instead of 0.3
// s.
typedef struct {
    void* data;         // NULL: empty
    int64_t num_bytes;  // whole pages
} PageMemory;

// Grows to at least that many bytes, keeps the contents, and may move them. False: no memory; unchanged.
bool page_memory_grow(PageMemory* memory, int64_t num_bytes);
void page_memory_free(PageMemory* memory);
