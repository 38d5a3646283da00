/*
page_memory.h -- memory that grows in place, each page of it touched before it is handed out.

    PageMemory memory = {0};                     // a valid, empty one
    page_memory_grow(&memory, num_bytes);        // memory.data: num_bytes or more, zeroed where new
    page_memory_free(&memory);

The kernel makes a page when it is first written: 0.4 s of processor a GiB in pages of 4 KiB, which would fall
into whatever job is the first to write there, and again into the first after each growth where growing means
another place. So addresses for several times as much are reserved, which costs nothing, and only what is new
is touched, when it is asked for. Huge pages are not asked for: on virtual machines the first touch of 400 MiB
of them took 2.0 s in place of 0.3 s.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    void* data;              // aligned to PAGE_MEMORY_ALIGN; NULL: empty
    int64_t num_bytes;       // whole pages
    int64_t reserved_bytes;  // private to page_memory.c
} PageMemory;

enum { PAGE_MEMORY_ALIGN = 2 << 20 };  // a huge page

// At least that many bytes. Contents are kept unless more than what was reserved is asked for: then data is
// elsewhere and zeroed. False: no memory; it is as it was, or empty.
bool page_memory_grow(PageMemory* memory, int64_t num_bytes);
void page_memory_free(PageMemory* memory);
