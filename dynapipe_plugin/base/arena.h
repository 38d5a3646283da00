/*
arena.h -- memory that is given back all at once.

    Arena arena = {0};                           // a valid, empty arena
    int64_t* times_ns = ARENA_NEW(&arena, int64_t, M);
    arena_reset(&arena);                         // forget everything, keep the blocks for the next plan
    arena_free(&arena);

Blocks grow by doubling, so a plan that has the shape of an earlier one allocates nothing. Not thread-safe:
one arena, one thread at a time.
*/
#pragma once

#include <stddef.h>
#include "status.h"

typedef struct ArenaBlock ArenaBlock;

typedef struct {
    ArenaBlock* first;    // chain of blocks, oldest first
    ArenaBlock* current;  // the block that serves now
} Arena;

// Zeroed memory, aligned to 16 bytes; NULL if the host has none left. 0 bytes gives a unique pointer.
void* arena_alloc(Arena* arena, size_t num_bytes);

// Not zeroed: for inner loops that write all of it.
void* arena_alloc_raw(Arena* arena, size_t num_bytes);

// The same for `count` items of `item_bytes`; NULL also where the product overflows.
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
