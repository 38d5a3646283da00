/*
memory_layout.c -- see memory_layout.h.

Placing an item scans what is placed so far in ascending address; whether an element lives at the same time is
collected without branches, a block at a time, since no branch predictor knows. An order is given up as soon
as it needs more than the best so far. While climbing, what stands before the moved item is not placed again.
*/
#include "memory_layout.h"

#include <string.h>

#include "../base/rng.h"
#include "pipe_schedule.h"

enum { MAX_CLIMBS = 300, SCAN_BLOCK = 32 };

typedef struct {
    int32_t idx;  // into buffers; last resort of every comparison, so the order is total
    int64_t num_bytes;
    int32_t begin, end;
} Item;

// What is placed, in ascending order of begin_bytes; of equals the earlier placed first.
typedef struct {
    int32_t num;
    int64_t *begin_bytes, *end_bytes;
    struct PlacedLife {
        int32_t begin, end;
    } * lives;
    int32_t* idx;  // of the item
} Placed;

static int64_t align_up(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
}

// --- first fit --------------------------------------------------------------------------------------------

// The lowest address where the item fits.
static int64_t find_gap(const Placed* placed, const Item* item) {
    int64_t at_bytes = 0;
    for (int32_t k = 0; k < placed->num;) {
        int32_t hits[SCAN_BLOCK], num_hits = 0;
        int32_t stop = placed->num - k < SCAN_BLOCK ? placed->num : k + SCAN_BLOCK;
        for (; k < stop; k++) {
            hits[num_hits] = k;
            num_hits += (placed->lives[k].begin < item->end) & (item->begin < placed->lives[k].end);
        }
        for (int32_t i = 0; i < num_hits; i++) {
            if (placed->begin_bytes[hits[i]] - at_bytes >= item->num_bytes) { return at_bytes; }
            int64_t end_bytes = placed->end_bytes[hits[i]];
            at_bytes = end_bytes > at_bytes ? end_bytes : at_bytes;
        }
    }
    return at_bytes;
}

static void placed_insert(Placed* placed, const Item* item, int64_t at_bytes) {
    int32_t low = 0, high = placed->num;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (placed->begin_bytes[middle] > at_bytes) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    size_t num_behind = (size_t)(placed->num - low);
    memmove(placed->begin_bytes + low + 1, placed->begin_bytes + low, num_behind * sizeof(int64_t));
    memmove(placed->end_bytes + low + 1, placed->end_bytes + low, num_behind * sizeof(int64_t));
    memmove(placed->lives + low + 1, placed->lives + low, num_behind * sizeof placed->lives[0]);
    memmove(placed->idx + low + 1, placed->idx + low, num_behind * sizeof(int32_t));
    placed->begin_bytes[low] = at_bytes;
    placed->end_bytes[low] = at_bytes + item->num_bytes;
    placed->lives[low] = (struct PlacedLife){item->begin, item->end};
    placed->idx[low] = item->idx;
    placed->num++;
}

static Status placed_init(Placed* placed, int32_t num_items, Arena* arena) {
    placed->num = 0;
    PIPE_NEW(placed->begin_bytes, arena, int64_t, num_items);
    PIPE_NEW(placed->end_bytes, arena, int64_t, num_items);
    PIPE_NEW(placed->lives, arena, struct PlacedLife, num_items);
    PIPE_NEW(placed->idx, arena, int32_t, num_items);
    return STATUS_OK;
}

// --- the bound --------------------------------------------------------------------------------------------

Status memory_layout_bound(const PlanBuffer* buffers, int32_t num_buffers, int64_t* bound_bytes,
                           Arena* arena) {
    int32_t last = 0;
    for (int32_t i = 0; i < num_buffers; i++) {
        last = buffers[i].instr_end > last ? buffers[i].instr_end : last;
    }
    int64_t* change_bytes;  // at each instant: what begins less what ends
    PIPE_NEW(change_bytes, arena, int64_t, (int64_t)last + 1);
    for (int32_t i = 0; i < num_buffers; i++) {
        int64_t num_bytes = align_up(buffers[i].num_bytes);
        change_bytes[buffers[i].instr_begin] += num_bytes;
        change_bytes[buffers[i].instr_end] -= num_bytes;
    }
    int64_t alive_bytes = 0, most_bytes = 0;
    for (int32_t t = 0; t <= last; t++) {
        alive_bytes += change_bytes[t];
        if (alive_bytes > most_bytes) { most_bytes = alive_bytes; }
    }
    *bound_bytes = most_bytes;
    return STATUS_OK;
}

// --- orders -----------------------------------------------------------------------------------------------

typedef enum { BY_BYTES, BY_LIFE, BY_AREA, BY_BEGIN, ORDER_COUNT } ItemOrder;

// Larger keys come first.
static uint64_t item_key(const Item* item, ItemOrder order) {
    uint64_t life = (uint64_t)(item->end - item->begin),
             blocks = (uint64_t)item->num_bytes / PLAN_BUFFER_ALIGN;
    switch (order) {
        case BY_BYTES: return blocks;
        case BY_LIFE: return life;
        case BY_AREA: return blocks * life;
        default: return INT32_MAX - (uint64_t)item->begin;
    }
}

// Stable: least significant digit first.
static void sort_items(Item* items, Item* spare, int32_t num_items, ItemOrder order) {
    uint64_t lowest = UINT64_MAX, highest = 0;
    for (int32_t i = 0; i < num_items; i++) {
        uint64_t key = item_key(&items[i], order);
        lowest = key < lowest ? key : lowest;
        highest = key > highest ? key : highest;
    }
    for (int32_t shift = 0; num_items > 1 && shift < 64 && (highest - lowest) >> shift > 0; shift += 8) {
        int32_t begin[257] = {0};
        for (int32_t i = 0; i < num_items; i++) {
            begin[((highest - item_key(&items[i], order)) >> shift & 255) + 1]++;
        }
        for (int32_t digit = 0; digit < 256; digit++) { begin[digit + 1] += begin[digit]; }
        for (int32_t i = 0; i < num_items; i++) {
            spare[begin[(highest - item_key(&items[i], order)) >> shift & 255]++] = items[i];
        }
        memcpy(items, spare, (size_t)num_items * sizeof(Item));
    }
}

// --- the search -------------------------------------------------------------------------------------------

typedef struct {
    Item* items;  // in the order of placing
    int32_t num_items;
    Placed placed, base_placed;       // base_: what climbing starts from
    int64_t *offsets, *best_offsets;  // by buffer; best_: of the smallest arena so far, the latest of equals
    int32_t* rank;                    // by buffer: place in the base's order
    int64_t best_bytes;
} Layout;

// Place items[first ..] behind those that are placed already, which take arena_bytes. Keeps the result if the
// arena is no larger than the best so far.
static bool try_order(Layout* layout, int32_t first, int64_t arena_bytes) {
    for (int32_t i = first; i < layout->num_items; i++) {
        const Item* item = &layout->items[i];
        int64_t at_bytes = find_gap(&layout->placed, item), end_bytes = at_bytes + item->num_bytes;
        if (end_bytes > layout->best_bytes) { return false; }
        layout->offsets[item->idx] = at_bytes;
        placed_insert(&layout->placed, item, at_bytes);
        arena_bytes = end_bytes > arena_bytes ? end_bytes : arena_bytes;
    }
    layout->best_bytes = arena_bytes;
    int64_t* offsets = layout->best_offsets;
    layout->best_offsets = layout->offsets;
    layout->offsets = offsets;
    Placed placed = layout->base_placed;
    layout->base_placed = layout->placed;
    layout->placed = placed;
    return true;
}

// Start again from the first `first` items of the base. Returns the bytes that they take.
static int64_t keep_first(Layout* layout, int32_t first) {
    const Placed* base = &layout->base_placed;
    Placed* placed = &layout->placed;
    int64_t arena_bytes = 0;
    placed->num = 0;
    for (int32_t k = 0; k < base->num; k++) {
        int32_t idx = base->idx[k];
        if (layout->rank[idx] >= first) { continue; }
        placed->begin_bytes[placed->num] = layout->offsets[idx] = base->begin_bytes[k];
        placed->end_bytes[placed->num] = base->end_bytes[k];
        placed->lives[placed->num] = base->lives[k];
        placed->idx[placed->num++] = idx;
        arena_bytes = base->end_bytes[k] > arena_bytes ? base->end_bytes[k] : arena_bytes;
    }
    return arena_bytes;
}

// Place of an item in the order that ends where the arena ends.
static int32_t find_top(const Layout* layout) {
    for (int32_t i = layout->num_items - 1; i > 0; i--) {
        const Item* item = &layout->items[i];
        if (layout->best_offsets[item->idx] + item->num_bytes == layout->best_bytes) { return i; }
    }
    return 0;
}

// What the present order gives: the best offsets may be those of another order that came out as small.
static void base_make(Layout* layout) {
    layout->base_placed.num = 0;
    for (int32_t i = 0; i < layout->num_items; i++) {
        const Item* item = &layout->items[i];
        placed_insert(&layout->base_placed, item, find_gap(&layout->base_placed, item));
        layout->rank[item->idx] = i;
    }
}

static void climb(Layout* layout, int64_t enough_bytes) {
    Rng rng = rng_seed((uint64_t)layout->num_items);
    if (layout->best_bytes <= enough_bytes) { return; }
    base_make(layout);
    for (int32_t round = 0; round < MAX_CLIMBS && layout->best_bytes > enough_bytes; round++) {
        // mostly the buffer at the top, now and then another, before some buffer ahead of it
        uint32_t num = (uint32_t)layout->num_items;
        int32_t from = rng_below(&rng, 4) > 0 ? find_top(layout) : (int32_t)rng_below(&rng, num);
        if (from == 0) { from = (int32_t)rng_below(&rng, num); }
        int32_t to = (int32_t)rng_below(&rng, (uint32_t)from + 1);
        int64_t arena_bytes = keep_first(layout, to);
        Item moved = layout->items[from];
        memmove(layout->items + to + 1, layout->items + to, (size_t)(from - to) * sizeof(Item));
        layout->items[to] = moved;
        if (try_order(layout, to, arena_bytes)) {
            for (int32_t i = to; i <= from; i++) { layout->rank[layout->items[i].idx] = i; }
            continue;
        }
        memmove(layout->items + to, layout->items + to + 1, (size_t)(from - to) * sizeof(Item));
        layout->items[from] = moved;
    }
}

static Status layout_init(Layout* layout, const PlanBuffer* buffers, int32_t num_buffers, Arena* arena) {
    *layout = (Layout){.best_bytes = INT64_MAX};
    PIPE_NEW(layout->items, arena, Item, num_buffers);
    PIPE_NEW(layout->offsets, arena, int64_t, num_buffers);
    PIPE_NEW(layout->best_offsets, arena, int64_t, num_buffers);
    PIPE_NEW(layout->rank, arena, int32_t, num_buffers);
    TRY(placed_init(&layout->placed, num_buffers, arena));
    TRY(placed_init(&layout->base_placed, num_buffers, arena));
    for (int32_t i = 0; i < num_buffers; i++) {
        if (buffers[i].num_bytes == 0) { continue; }
        layout->items[layout->num_items++] =
            (Item){i, align_up(buffers[i].num_bytes), buffers[i].instr_begin, buffers[i].instr_end};
    }
    return STATUS_OK;
}

Status memory_layout_place(PlanBuffer* buffers, int32_t num_buffers, int64_t enough_bytes,
                           int64_t* arena_bytes, Arena* arena) {
    Layout layout;
    Item *by_bytes, *best_items, *spare;
    int64_t bound_bytes;
    TRY(layout_init(&layout, buffers, num_buffers, arena));
    TRY(memory_layout_bound(buffers, num_buffers, &bound_bytes, arena));
    PIPE_NEW(by_bytes, arena, Item, num_buffers);
    PIPE_NEW(best_items, arena, Item, num_buffers);
    PIPE_NEW(spare, arena, Item, num_buffers);
    size_t items_bytes = (size_t)layout.num_items * sizeof(Item);
    // Every order ends in this one where it ties: bytes, then life, then the buffer's own number.
    sort_items(layout.items, spare, layout.num_items, BY_LIFE);
    sort_items(layout.items, spare, layout.num_items, BY_BYTES);
    memcpy(by_bytes, layout.items, items_bytes);
    for (int32_t k = BY_BYTES; k < ORDER_COUNT && layout.best_bytes > bound_bytes; k++) {
        memcpy(layout.items, by_bytes, items_bytes);
        sort_items(layout.items, spare, layout.num_items, (ItemOrder)k);
        int64_t before_bytes = layout.best_bytes;
        layout.placed.num = 0;
        if (try_order(&layout, 0, 0) && layout.best_bytes < before_bytes) {
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
