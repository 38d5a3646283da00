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

// Memory that grows in place; every page is touched before it is returned.
//
//     PageMemory memory = {0};                     // a valid, empty one
//     page_memory_grow(&memory, num_bytes);        // memory.data: num_bytes or more, zeroed where new
//     page_memory_free(&memory);
//
// The first write to a page costs 0.4 s of processor time per GiB in 4 KiB pages. Without touching, the
// first job that writes would pay for it, and again after each move. So several times the size is reserved
// as addresses, which is free, and new pages are touched on request. Huge pages are not requested: on
// virtual machines the first touch of 400 MiB of them took 2.0 s instead of 0.3 s.

typedef struct {
    void* data;              // aligned to PAGE_MEMORY_ALIGN; NULL: empty
    int64_t num_bytes;       // whole pages
    int64_t reserved_bytes;  // private to arena.c
} PageMemory;

enum { PAGE_MEMORY_ALIGN = 2 << 20 };  // a huge page

// Grows to at least that many bytes. Contents are kept within the reserved range; beyond it data moves and
// is zeroed. False: no memory; the old state or empty.
bool page_memory_grow(PageMemory* memory, int64_t num_bytes);
void page_memory_free(PageMemory* memory);
