#include "memory_layout.h"

#include <string.h>
#include "plan_message.h"
#include "schedule.h"
#include "../../util/numbers.h"

static void add_step(MemoryCurve* curve, int64_t begin_ns, int64_t num_bytes) {
    if (curve->num_steps > 0 && curve->steps[curve->num_steps - 1].num_bytes == num_bytes) { return; }
    curve->steps[curve->num_steps++] = (MemoryStep){begin_ns, num_bytes};
    if (num_bytes > curve->peak_bytes) {
        curve->peak_bytes = num_bytes;
        curve->peak_ns = begin_ns;
    }
}

Status memory_curve_make(MemoryCurve* out, const PlanRank* rank, MemoryRule rule, Arena* arena) {
    int32_t num_instrs = rank->num_instrs;
    MemoryCurve curve = {.steps = ARENA_NEW(arena, MemoryStep, 2 * (size_t)num_instrs + 1)};
    int64_t* change_bytes = ARENA_NEW(arena, int64_t, (size_t)num_instrs + 1);  // before each instruction
    if (curve.steps == NULL || change_bytes == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory to draw %d instructions ---> free memory", num_instrs);
    }
    for (int32_t i = 0; i < rank->num_buffers; i++) {
        const PlanBuffer* buffer = &rank->buffers[i];
        if (rule == MEMORY_ACTIVATIONS && buffer->kind != BUFFER_ACTS) { continue; }
        if (buffer->instr_begin < 0 || buffer->instr_end > num_instrs ||
            buffer->instr_end < buffer->instr_begin) {
            return FAIL(STATUS_INVALID_PLAN,
                        "buffer %d lives over instructions %d to %d of %d ---> check the plan first", i,
                        buffer->instr_begin, buffer->instr_end, num_instrs);
        }
        int64_t units = buffer->num_bytes / PLAN_BUFFER_ALIGN + (buffer->num_bytes % PLAN_BUFFER_ALIGN > 0);
        change_bytes[buffer->instr_begin] += units * PLAN_BUFFER_ALIGN;
        change_bytes[buffer->instr_end] -= units * PLAN_BUFFER_ALIGN;
    }
    int64_t now_ns = 0, alive_bytes = 0;
    for (int32_t i = 0; i < num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        bool is_job = instr->kind <= INSTR_REC;
        bool is_wait = plan_instr_is_wait(instr->kind);
        if (is_job && instr->begin_ns > now_ns) { now_ns = instr->begin_ns; }
        alive_bytes += change_bytes[i];
        add_step(&curve, now_ns, alive_bytes);
        if ((is_job || is_wait) && instr->end_ns > now_ns) { now_ns = instr->end_ns; }
    }
    alive_bytes += change_bytes[num_instrs];
    add_step(&curve, now_ns, alive_bytes);
    *out = curve;
    return STATUS_OK;
}

// --- layout ------------------------------------------------------------------------------------------

/*
Layout of a rank's arena (memory_layout.h).

Time is cut into blocks about as long as a buffer lives, and each block lists what is placed and alive in it
by ascending address. An item looks for its gap only in the blocks of its own lifetime, with a cursor in each
that only moves up: so an order takes time linear in the buffers as long as few are alive at a time. An order
is abandoned as soon as it needs more than the best so far. While climbing, the items before the moved one
are not placed again.
*/

enum { MAX_CLIMBS = 300, MAX_IDLE_CLIMBS = 24, MIN_BLOCK_INSTANTS = 8 };

typedef struct {
    int32_t idx;  // into buffers; last tie-breaker of every comparison, so the order is total
    int64_t num_bytes;
    int32_t begin, end;
    int32_t block_begin, block_end;
} Item;

typedef struct {
    int64_t begin_bytes, end_bytes;
    int32_t begin, end;  // life
    int32_t idx;
} PlacedItem;

// What is placed: block b has items[first[b]] .. items[first[b] + num[b] - 1], ascending begin_bytes.
typedef struct {
    int32_t num_blocks;
    const int32_t* first;  // [num_blocks], room for all that ever live in the block
    int32_t* num;          // [num_blocks]
    PlacedItem* items;
} Placed;

// --- first fit --------------------------------------------------------------------------------------------

// The lowest address where the item fits. cursor: [num_blocks], temporary.
static int64_t find_gap(const Placed* placed, const Item* item, int32_t* cursor) {
    int64_t at_bytes = 0, before_bytes = -1;
    for (int32_t b = item->block_begin; b < item->block_end; b++) { cursor[b] = 0; }
    while (at_bytes > before_bytes) {  // until all blocks agree
        before_bytes = at_bytes;
        for (int32_t b = item->block_begin; b < item->block_end; b++) {
            const PlacedItem* others = placed->items + placed->first[b];
            int32_t k = cursor[b], num = placed->num[b];
            for (; k < num && others[k].begin_bytes - at_bytes < item->num_bytes; k++) {
                bool alive = (others[k].begin < item->end) & (item->begin < others[k].end);
                int64_t end_bytes = alive ? others[k].end_bytes : 0;
                at_bytes = end_bytes > at_bytes ? end_bytes : at_bytes;
            }
            cursor[b] = k;
        }
    }
    return at_bytes;
}

static void placed_insert(Placed* placed, const Item* item, int64_t at_bytes) {
    PlacedItem fresh = {at_bytes, at_bytes + item->num_bytes, item->begin, item->end, item->idx};
    for (int32_t b = item->block_begin; b < item->block_end; b++) {
        PlacedItem* others = placed->items + placed->first[b];
        int32_t low = 0, high = placed->num[b]++;
        size_t num = (size_t)high;
        while (low < high) {
            int32_t middle = (low + high) / 2;
            if (others[middle].begin_bytes > at_bytes) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        memmove(others + low + 1, others + low, (num - (size_t)low) * sizeof *others);
        others[low] = fresh;
    }
}

static void placed_clear(Placed* placed) {
    memset(placed->num, 0, (size_t)placed->num_blocks * sizeof *placed->num);
}

// Removes what is at `first` or after it in the order.
static int64_t placed_copy_first(Placed* to, const Placed* from, const int32_t* rank, int32_t first,
                                 int64_t* offsets) {
    int64_t most_bytes = 0;
    for (int32_t b = 0; b < from->num_blocks; b++) {
        const PlacedItem* items = from->items + from->first[b];
        PlacedItem* kept = to->items + to->first[b];
        int32_t num = 0;
        for (int32_t k = 0; k < from->num[b]; k++) {
            if (rank[items[k].idx] >= first) { continue; }
            kept[num++] = items[k];
            offsets[items[k].idx] = items[k].begin_bytes;
            most_bytes = items[k].end_bytes > most_bytes ? items[k].end_bytes : most_bytes;
        }
        to->num[b] = num;
    }
    return most_bytes;
}

// --- the bound --------------------------------------------------------------------------------------------

Status memory_layout_bound(const PlanBuffer* buffers, int32_t num_buffers, int64_t* bound_bytes,
                           Arena* arena) {
    int32_t last = 0;
    for (int32_t i = 0; i < num_buffers; i++) {
        last = buffers[i].instr_end > last ? buffers[i].instr_end : last;
    }
    int64_t* change_bytes;  // at each instant: begins minus ends
    ARENA_TRY_NEW(change_bytes, arena, int64_t, (int64_t)last + 1);
    for (int32_t i = 0; i < num_buffers; i++) {
        int64_t num_bytes = plan_align_bytes(buffers[i].num_bytes);
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

// --- orders ------------------------------------------------------------------------------------------

// The first two are always tried: together they come within 0.9 % of all four (1,547 arenas of 40 plans).
typedef enum { BY_BYTES, BY_BEGIN, BY_LIFE, BY_AREA, ORDER_COUNT } ItemOrder;
enum { ALWAYS_TRIED = 2 };

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

typedef struct {
    uint64_t key;
    int32_t item;
} SortKey;

// order[]: item numbers, sorted anew by one more key. Stable: least significant digit first.
static void sort_order(int32_t* order, const Item* items, SortKey* keys, SortKey* spare, int32_t num_items,
                       ItemOrder by) {
    uint64_t lowest = UINT64_MAX, highest = 0;
    for (int32_t i = 0; i < num_items; i++) {
        uint64_t key = item_key(&items[order[i]], by);
        keys[i] = (SortKey){key, order[i]};
        lowest = key < lowest ? key : lowest;
        highest = key > highest ? key : highest;
    }
    for (int32_t shift = 0; num_items > 1 && shift < 64 && (highest - lowest) >> shift > 0; shift += 8) {
        int32_t begin[257] = {0};
        for (int32_t i = 0; i < num_items; i++) { begin[((highest - keys[i].key) >> shift & 255) + 1]++; }
        for (int32_t digit = 0; digit < 256; digit++) { begin[digit + 1] += begin[digit]; }
        for (int32_t i = 0; i < num_items; i++) {
            spare[begin[(highest - keys[i].key) >> shift & 255]++] = keys[i];
        }
        SortKey* sorted = spare;
        spare = keys;
        keys = sorted;
    }
    for (int32_t i = 0; i < num_items; i++) { order[i] = keys[i].item; }
}

// --- the search -------------------------------------------------------------------------------------------

typedef struct {
    const Item* items;  // by buffer, those of no bytes left out
    int32_t num_items;
    int32_t* order;                   // [num_items] the order of placing
    Placed placed, base_placed;       // base_: what climbing starts from
    int32_t* cursor;                  // [num_blocks]
    int64_t *offsets, *best_offsets;  // by buffer; best_: of the smallest arena so far, the latest of equals
    int32_t* rank;                    // by buffer: place in the base's order
    int64_t best_bytes;
} Layout;

// Place order[first ..] after those that are placed already, which take arena_bytes. Keeps the result if the
// arena is no larger than the best so far.
static bool try_order(Layout* layout, int32_t first, int64_t arena_bytes) {
    for (int32_t i = first; i < layout->num_items; i++) {
        const Item* item = &layout->items[layout->order[i]];
        int64_t at_bytes = find_gap(&layout->placed, item, layout->cursor);
        int64_t end_bytes = at_bytes + item->num_bytes;
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
    return placed_copy_first(&layout->placed, &layout->base_placed, layout->rank, first, layout->offsets);
}

// Place in the order of the item that ends where the arena ends.
static int32_t find_top(const Layout* layout) {
    for (int32_t i = layout->num_items - 1; i > 0; i--) {
        const Item* item = &layout->items[layout->order[i]];
        if (layout->best_offsets[item->idx] + item->num_bytes == layout->best_bytes) { return i; }
    }
    return 0;
}

// What the present order gives: the best offsets may be those of another order of the same size.
static void base_make(Layout* layout) {
    placed_clear(&layout->base_placed);
    for (int32_t i = 0; i < layout->num_items; i++) {
        const Item* item = &layout->items[layout->order[i]];
        int64_t at_bytes = find_gap(&layout->base_placed, item, layout->cursor);
        placed_insert(&layout->base_placed, item, at_bytes);
        layout->rank[item->idx] = i;
    }
}

static void climb(Layout* layout, int64_t enough_bytes) {
    int32_t* order = layout->order;
    Rng rng = rng_seed((uint64_t)layout->num_items);
    if (layout->best_bytes <= enough_bytes) { return; }
    base_make(layout);
    int64_t before_bytes = layout->best_bytes;
    for (int32_t round = 0, idle = 0; round < MAX_CLIMBS && layout->best_bytes > enough_bytes; round++) {
        idle = layout->best_bytes < before_bytes ? 0 : idle + 1;
        before_bytes = layout->best_bytes;
        if (idle > MAX_IDLE_CLIMBS) { return; }
        // mostly the buffer at the top, now and then another, before some buffer ahead of it
        uint32_t num = (uint32_t)layout->num_items;
        int32_t from = rng_below(&rng, 4) > 0 ? find_top(layout) : (int32_t)rng_below(&rng, num);
        if (from == 0) { from = (int32_t)rng_below(&rng, num); }
        int32_t to = (int32_t)rng_below(&rng, (uint32_t)from + 1), moved = order[from];
        int64_t arena_bytes = keep_first(layout, to);
        memmove(order + to + 1, order + to, (size_t)(from - to) * sizeof *order);
        order[to] = moved;
        if (try_order(layout, to, arena_bytes)) {
            for (int32_t i = to; i <= from; i++) { layout->rank[layout->items[order[i]].idx] = i; }
            continue;
        }
        memmove(order + to, order + to + 1, (size_t)(from - to) * sizeof *order);
        order[from] = moved;
    }
}

// --- the whole --------------------------------------------------------------------------------------------

static Status placed_init(Layout* layout, Item* items, Arena* arena) {
    int64_t total_life = 0, num_places = 0;
    int32_t last = 1, num_items = layout->num_items, *first;
    for (int32_t i = 0; i < num_items; i++) {
        total_life += items[i].end - items[i].begin;
        last = items[i].end > last ? items[i].end : last;
    }
    int64_t instants = num_items > 0 ? total_life / num_items : 0;  // of a block: then 3 blocks an item or so
    instants = instants > MIN_BLOCK_INSTANTS ? instants : (int)MIN_BLOCK_INSTANTS;
    int32_t num_blocks = (int32_t)((last + instants - 1) / instants);
    ARENA_TRY_NEW(first, arena, int32_t, num_blocks + 1);
    for (int32_t i = 0; i < num_items; i++) {
        items[i].block_begin = (int32_t)(items[i].begin / instants);
        items[i].block_end = (int32_t)((items[i].end + instants - 1) / instants);
        for (int32_t b = items[i].block_begin; b < items[i].block_end; b++, num_places++) { first[b + 1]++; }
    }
    for (int32_t b = 0; b < num_blocks; b++) { first[b + 1] += first[b]; }
    ARENA_TRY_NEW(layout->cursor, arena, int32_t, num_blocks);
    for (int32_t k = 0; k < 2; k++) {
        Placed* placed = k == 0 ? &layout->placed : &layout->base_placed;
        *placed = (Placed){.num_blocks = num_blocks, .first = first};
        ARENA_TRY_NEW(placed->num, arena, int32_t, num_blocks);
        ARENA_TRY_NEW(placed->items, arena, PlacedItem, num_places);
    }
    return STATUS_OK;
}

static Status layout_init(Layout* layout, const PlanBuffer* buffers, int32_t num_buffers, Arena* arena) {
    Item* items;
    *layout = (Layout){.best_bytes = INT64_MAX};
    ARENA_TRY_NEW(items, arena, Item, num_buffers);
    ARENA_TRY_NEW(layout->order, arena, int32_t, num_buffers);
    ARENA_TRY_NEW(layout->offsets, arena, int64_t, num_buffers);
    ARENA_TRY_NEW(layout->best_offsets, arena, int64_t, num_buffers);
    ARENA_TRY_NEW(layout->rank, arena, int32_t, num_buffers);
    for (int32_t i = 0; i < num_buffers; i++) {
        if (buffers[i].num_bytes == 0) { continue; }
        layout->order[layout->num_items] = layout->num_items;
        items[layout->num_items++] = (Item){.idx = i,
                                            .num_bytes = plan_align_bytes(buffers[i].num_bytes),
                                            .begin = buffers[i].instr_begin,
                                            .end = buffers[i].instr_end};
    }
    layout->items = items;
    return placed_init(layout, items, arena);
}

Status memory_layout_place(PlanBuffer* buffers, int32_t num_buffers, int64_t enough_bytes,
                           int64_t* arena_bytes, Arena* arena) {
    Layout layout;
    SortKey *keys, *spare;
    int32_t *by_bytes, *best_order;
    int64_t bound_bytes;
    TRY(layout_init(&layout, buffers, num_buffers, arena));
    TRY(memory_layout_bound(buffers, num_buffers, &bound_bytes, arena));
    ARENA_TRY_NEW(keys, arena, SortKey, num_buffers);
    ARENA_TRY_NEW(spare, arena, SortKey, num_buffers);
    ARENA_TRY_NEW(by_bytes, arena, int32_t, num_buffers);
    ARENA_TRY_NEW(best_order, arena, int32_t, num_buffers);
    size_t order_bytes = (size_t)layout.num_items * sizeof(int32_t);
    // Every order ends in this one where it ties: bytes, then life, then the buffer's own number.
    sort_order(layout.order, layout.items, keys, spare, layout.num_items, BY_LIFE);
    sort_order(layout.order, layout.items, keys, spare, layout.num_items, BY_BYTES);
    memcpy(by_bytes, layout.order, order_bytes);
    int32_t num_orders =
        bound_bytes <= enough_bytes ? ORDER_COUNT : BY_BYTES + 1;  // it cannot fit: any layout will do
    for (int32_t k = BY_BYTES; k < num_orders && layout.best_bytes > bound_bytes; k++) {
        if (k >= ALWAYS_TRIED && layout.best_bytes <= enough_bytes) { break; }
        if (k > BY_BYTES) {
            memcpy(layout.order, by_bytes, order_bytes);
            sort_order(layout.order, layout.items, keys, spare, layout.num_items, (ItemOrder)k);
        }
        int64_t before_bytes = layout.best_bytes;
        placed_clear(&layout.placed);
        if (try_order(&layout, 0, 0) && layout.best_bytes < before_bytes) {
            memcpy(best_order, layout.order, order_bytes);
        }
    }
    memcpy(layout.order, best_order, order_bytes);
    if (enough_bytes >= bound_bytes) { climb(&layout, enough_bytes); }
    for (int32_t i = 0; i < num_buffers; i++) {
        buffers[i].offset_bytes = buffers[i].num_bytes > 0 ? layout.best_offsets[i] : 0;
    }
    *arena_bytes = layout.best_bytes;
    return STATUS_OK;
}
