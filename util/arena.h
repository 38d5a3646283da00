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

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
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

// --- page memory ---------------------------------------------------------------------------------------

// Memory that grows in place, each page of it touched before it is handed out.
//
//     PageMemory memory = {0};                     // a valid, empty one
//     page_memory_grow(&memory, num_bytes);        // memory.data: num_bytes or more, zeroed where new
//     page_memory_free(&memory);
//
// The kernel makes a page when it is first written: 0.4 s of processor a GiB in pages of 4 KiB, which would
// fall into whatever job is the first to write there, and again into the first after each growth where
// growing means another place. So addresses for several times as much are reserved, which costs nothing, and
// only what is new is touched, when it is asked for. Huge pages are not asked for: on virtual machines the
// first touch of 400 MiB of them took 2.0 s in place of 0.3 s.

typedef struct {
    void* data;              // aligned to PAGE_MEMORY_ALIGN; NULL: empty
    int64_t num_bytes;       // whole pages
    int64_t reserved_bytes;  // private to arena.c
} PageMemory;

enum { PAGE_MEMORY_ALIGN = 2 << 20 };  // a huge page

// At least that many bytes. Contents are kept unless more than what was reserved is asked for: then data is
// elsewhere and zeroed. False: no memory; it is as it was, or empty.
bool page_memory_grow(PageMemory* memory, int64_t num_bytes);
void page_memory_free(PageMemory* memory);
