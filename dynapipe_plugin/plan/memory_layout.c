#include "memory_layout.h"

#include <stdlib.h>
#include <string.h>

#include "../base/rng.h"
#include "pipe_schedule.h"

enum { MAX_CLIMBS = 300 };

typedef struct {
    int32_t idx;  // into buffers; last resort of every comparison, so the order is total
    int64_t num_bytes;
    int32_t begin, end;
} Item;

typedef struct {
    int64_t begin_bytes, end_bytes;
    int32_t begin, end;
} Placed;

static int64_t align_up(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
}

static int descending(int64_t a, int64_t b) {
    return a > b ? -1 : a < b;
}

static int by_bytes(const void* a, const void* b) {
    const Item *x = a, *y = b;
    int order = descending(x->num_bytes, y->num_bytes);
    if (order == 0) { order = descending(x->end - x->begin, y->end - y->begin); }
    return order != 0 ? order : descending(y->idx, x->idx);
}

static int by_life(const void* a, const void* b) {
    const Item *x = a, *y = b;
    int order = descending(x->end - x->begin, y->end - y->begin);
    return order != 0 ? order : by_bytes(a, b);
}

static int by_area(const void* a, const void* b) {
    const Item *x = a, *y = b;
    int order = descending(x->num_bytes * (x->end - x->begin), y->num_bytes * (y->end - y->begin));
    return order != 0 ? order : by_bytes(a, b);
}

static int by_begin(const void* a, const void* b) {
    const Item *x = a, *y = b;
    int order = descending(y->begin, x->begin);
    return order != 0 ? order : by_bytes(a, b);
}

// First fit in the order of items[]; placed[] is kept in ascending order of begin_bytes.
static int64_t place_in_order(const Item* items, int32_t num_items, int64_t* offsets, Placed* placed) {
    int64_t arena_bytes = 0;
    for (int32_t i = 0; i < num_items; i++) {
        Item item = items[i];
        int64_t at_bytes = 0;
        for (int32_t k = 0; k < i; k++) {
            const Placed* other = &placed[k];
            if (other->begin >= item.end || item.begin >= other->end) { continue; }
            if (other->begin_bytes - at_bytes >= item.num_bytes) { break; }
            if (other->end_bytes > at_bytes) { at_bytes = other->end_bytes; }
        }
        offsets[item.idx] = at_bytes;
        int32_t slot = i;
        for (; slot > 0 && placed[slot - 1].begin_bytes > at_bytes; slot--) {
            placed[slot] = placed[slot - 1];
        }
        placed[slot] = (Placed){at_bytes, at_bytes + item.num_bytes, item.begin, item.end};
        if (at_bytes + item.num_bytes > arena_bytes) { arena_bytes = at_bytes + item.num_bytes; }
    }
    return arena_bytes;
}

typedef struct {
    int32_t at, ends;
    int64_t bytes;
} Edge;

static int by_instant(const void* a, const void* b) {
    const Edge *x = a, *y = b;
    return x->at != y->at ? (x->at < y->at ? -1 : 1) : y->ends - x->ends;
}

Status memory_layout_bound(const PlanBuffer* buffers, int32_t num_buffers, int64_t* bound_bytes,
                           Arena* arena) {
    Edge* edges;
    PIPE_NEW(edges, arena, Edge, 2 * (int64_t)num_buffers);
    for (int32_t i = 0; i < num_buffers; i++) {
        int64_t bytes = align_up(buffers[i].num_bytes);
        edges[2 * i] = (Edge){buffers[i].instr_begin, 0, bytes};
        edges[2 * i + 1] = (Edge){buffers[i].instr_end, 1, -bytes};
    }
    qsort(edges, (size_t)num_buffers * 2, sizeof *edges, by_instant);
    int64_t alive_bytes = 0, most_bytes = 0;
    for (int32_t i = 0; i < 2 * num_buffers; i++) {
        alive_bytes += edges[i].bytes;
        if (alive_bytes > most_bytes) { most_bytes = alive_bytes; }
    }
    *bound_bytes = most_bytes;
    return STATUS_OK;
}

typedef struct {
    Item* items;  // in the order of placing
    int32_t num_items;
    Placed* placed;
    int64_t *offsets, *best_offsets;  // by buffer
    int64_t best_bytes;
} Layout;

// Place in the present order; keep the offsets if the arena is no larger than the best so far.
static bool try_order(Layout* layout) {
    int64_t num_bytes = place_in_order(layout->items, layout->num_items, layout->offsets, layout->placed);
    if (num_bytes > layout->best_bytes) { return false; }
    layout->best_bytes = num_bytes;
    int64_t* kept = layout->best_offsets;
    layout->best_offsets = layout->offsets;
    layout->offsets = kept;
    return true;
}

// Place of an item in the order that ends where the arena ends.
static int32_t find_top(const Layout* layout) {
    for (int32_t i = layout->num_items - 1; i > 0; i--) {
        const Item* item = &layout->items[i];
        if (layout->best_offsets[item->idx] + item->num_bytes == layout->best_bytes) { return i; }
    }
    return 0;
}

static void climb(Layout* layout, int64_t enough_bytes) {
    Rng rng = rng_seed((uint64_t)layout->num_items);
    for (int32_t round = 0; round < MAX_CLIMBS && layout->best_bytes > enough_bytes; round++) {
        // mostly the buffer at the top, now and then another, before some buffer ahead of it
        uint32_t num = (uint32_t)layout->num_items;
        int32_t from = rng_below(&rng, 4) > 0 ? find_top(layout) : (int32_t)rng_below(&rng, num);
        if (from == 0) { from = (int32_t)rng_below(&rng, num); }
        int32_t to = (int32_t)rng_below(&rng, (uint32_t)from + 1);
        Item moved = layout->items[from];
        memmove(layout->items + to + 1, layout->items + to, (size_t)(from - to) * sizeof(Item));
        layout->items[to] = moved;
        if (try_order(layout)) { continue; }
        memmove(layout->items + to, layout->items + to + 1, (size_t)(from - to) * sizeof(Item));
        layout->items[from] = moved;
    }
}

Status memory_layout_place(PlanBuffer* buffers, int32_t num_buffers, int64_t enough_bytes,
                           int64_t* arena_bytes, Arena* arena) {
    static int (*const orders[])(const void*, const void*) = {by_bytes, by_life, by_area, by_begin};
    enum { NUM_ORDERS = sizeof orders / sizeof orders[0] };
    Layout layout = {.best_bytes = INT64_MAX};
    Item* best_items;
    int64_t bound_bytes;
    PIPE_NEW(layout.items, arena, Item, num_buffers);
    PIPE_NEW(best_items, arena, Item, num_buffers);
    PIPE_NEW(layout.placed, arena, Placed, num_buffers);
    PIPE_NEW(layout.offsets, arena, int64_t, num_buffers);
    PIPE_NEW(layout.best_offsets, arena, int64_t, num_buffers);
    TRY(memory_layout_bound(buffers, num_buffers, &bound_bytes, arena));
    for (int32_t i = 0; i < num_buffers; i++) {
        if (buffers[i].num_bytes == 0) { continue; }
        layout.items[layout.num_items++] =
            (Item){i, align_up(buffers[i].num_bytes), buffers[i].instr_begin, buffers[i].instr_end};
    }
    size_t items_bytes = (size_t)layout.num_items * sizeof(Item);
    for (int32_t k = 0; k < NUM_ORDERS && layout.best_bytes > bound_bytes; k++) {
        qsort(layout.items, (size_t)layout.num_items, sizeof(Item), orders[k]);
        int64_t before_bytes = layout.best_bytes;
        if (try_order(&layout) && layout.best_bytes < before_bytes) {
            memcpy(best_items, layout.items, items_bytes);
        }
    }
    memcpy(layout.items, best_items, items_bytes);
    if (enough_bytes >= bound_bytes) { climb(&layout, enough_bytes); }
    for (int32_t i = 0; i < num_buffers; i++) {
        buffers[i].offset_bytes = buffers[i].num_bytes > 0 ? layout.best_offsets[i] : 0;
    }
    *arena_bytes = layout.best_bytes;
    return STATUS_OK;
}
