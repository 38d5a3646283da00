#include "memory_layout.h"

#include <stdlib.h>
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

// Time is cut into blocks about as long as a buffer lives, and each block lists what is placed and alive in
// it by ascending address. An item looks for its gap only in the blocks of its own life, with a cursor in
// each that only moves up: so an order takes time linear in the buffers as long as few are alive at a time.

enum { MAX_CLIMBS = 300, MAX_IDLE_CLIMBS = 24, MIN_BLOCK_INSTANTS = 8, NUM_ORDERS = 4, ALWAYS_TRIED = 2 };

typedef struct {
    int32_t idx;  // into buffers
    int32_t begin, end, block_begin, block_end;
    int64_t num_bytes;
    int64_t key;  // placed by falling key
} Item;

typedef struct {
    int64_t begin_bytes, end_bytes;
    int32_t begin, end;  // life
} PlacedItem;

typedef struct {
    Item* items;  // in the order of placing
    int32_t num_items, num_blocks;
    int32_t *first, *num, *cursor;  // [num_blocks] of `placed`: block b has num[b] from first[b] on
    PlacedItem* placed;
    int64_t *offsets, *best_offsets;  // by buffer; best_: of the smallest arena so far, the latest of equals
    int64_t best_bytes;
} Layout;

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

// The lowest address where the item fits.
static int64_t find_gap(const Layout* layout, const Item* item) {
    int64_t at_bytes = 0, before_bytes = -1;
    for (int32_t b = item->block_begin; b < item->block_end; b++) { layout->cursor[b] = 0; }
    while (at_bytes > before_bytes) {  // until all blocks agree
        before_bytes = at_bytes;
        for (int32_t b = item->block_begin; b < item->block_end; b++) {
            const PlacedItem* others = layout->placed + layout->first[b];
            int32_t k = layout->cursor[b];
            for (; k < layout->num[b] && others[k].begin_bytes - at_bytes < item->num_bytes; k++) {
                bool alive = (others[k].begin < item->end) & (item->begin < others[k].end);
                int64_t end_bytes = alive ? others[k].end_bytes : 0;
                at_bytes = end_bytes > at_bytes ? end_bytes : at_bytes;
            }
            layout->cursor[b] = k;
        }
    }
    return at_bytes;
}

static void insert(Layout* layout, const Item* item, int64_t at_bytes) {
    for (int32_t b = item->block_begin; b < item->block_end; b++) {
        PlacedItem* others = layout->placed + layout->first[b];
        int32_t low = 0, high = layout->num[b], num = layout->num[b]++;
        while (low < high) {
            int32_t middle = (low + high) / 2;
            if (others[middle].begin_bytes > at_bytes) {
                high = middle;
            } else {
                low = middle + 1;
            }
        }
        memmove(others + low + 1, others + low, (size_t)(num - low) * sizeof *others);
        others[low] = (PlacedItem){at_bytes, at_bytes + item->num_bytes, item->begin, item->end};
    }
}

// Places all items in their order, the first `kept` where they are in the best layout; keeps the result if
// the arena is within limit_bytes.
static bool try_order(Layout* layout, int32_t kept, int64_t limit_bytes) {
    int64_t most_bytes = 0, *offsets = layout->offsets;
    memset(layout->num, 0, (size_t)layout->num_blocks * sizeof *layout->num);
    for (int32_t i = 0; i < layout->num_items; i++) {
        const Item* item = &layout->items[i];
        int64_t at_bytes = i < kept ? layout->best_offsets[item->idx] : find_gap(layout, item);
        int64_t end_bytes = at_bytes + item->num_bytes;
        if (end_bytes > limit_bytes) { return false; }
        offsets[item->idx] = at_bytes;
        insert(layout, item, at_bytes);
        most_bytes = end_bytes > most_bytes ? end_bytes : most_bytes;
    }
    layout->best_bytes = most_bytes;
    layout->offsets = layout->best_offsets;
    layout->best_offsets = offsets;
    return true;
}

// Equal keys: largest first, then longest living.
static int compare_items(const void* a, const void* b) {
    const Item *x = (const Item*)a, *y = (const Item*)b;
    int32_t x_life = x->end - x->begin, y_life = y->end - y->begin;
    if (x->key != y->key) { return x->key > y->key ? -1 : 1; }
    if (x->num_bytes != y->num_bytes) { return x->num_bytes > y->num_bytes ? -1 : 1; }
    return x_life != y_life ? (x_life > y_life ? -1 : 1) : x->idx - y->idx;
}

// By size, begin, life or area.
static void sort_items(Layout* layout, int32_t order) {
    for (int32_t i = 0; i < layout->num_items; i++) {
        Item* item = &layout->items[i];
        int64_t life = item->end - item->begin, blocks = item->num_bytes / PLAN_BUFFER_ALIGN;
        const int64_t keys[NUM_ORDERS] = {blocks, -item->begin, life, blocks * life};
        item->key = keys[order];
    }
    qsort(layout->items, (size_t)layout->num_items, sizeof *layout->items, compare_items);
}

static void climb(Layout* layout, int64_t enough_bytes) {
    Item* items = layout->items;
    uint32_t num = (uint32_t)layout->num_items;
    Rng rng = rng_seed(num);
    for (int32_t round = 0, idle = 0; round < MAX_CLIMBS && idle <= MAX_IDLE_CLIMBS; round++) {
        int64_t before_bytes = layout->best_bytes;
        if (before_bytes <= enough_bytes) { return; }
        // mostly a buffer at the top, now and then another, before some buffer ahead of it
        int32_t from = (int32_t)num - 1;
        while (from > 0 && layout->best_offsets[items[from].idx] + items[from].num_bytes < before_bytes) {
            from--;
        }
        if (from == 0 || rng_below(&rng, 4) == 0) { from = (int32_t)rng_below(&rng, num); }
        int32_t to = (int32_t)rng_below(&rng, (uint32_t)from + 1);
        Item moved = items[from];
        memmove(items + to + 1, items + to, (size_t)(from - to) * sizeof *items);
        items[to] = moved;
        if (!try_order(layout, to, before_bytes)) {
            memmove(items + to, items + to + 1, (size_t)(from - to) * sizeof *items);
            items[from] = moved;
        }
        idle = layout->best_bytes < before_bytes ? 0 : idle + 1;
    }
}

static Status layout_make(Layout* it, const PlanBuffer* buffers, int32_t num_buffers, Arena* arena) {
    int64_t total_life = 0, num_places = 0;
    int32_t last = 1;
    *it = (Layout){.best_bytes = INT64_MAX};
    ARENA_TRY_NEW(it->items, arena, Item, num_buffers);
    ARENA_TRY_NEW(it->offsets, arena, int64_t, num_buffers);
    ARENA_TRY_NEW(it->best_offsets, arena, int64_t, num_buffers);
    for (int32_t i = 0; i < num_buffers; i++) {
        const PlanBuffer* buffer = &buffers[i];
        if (buffer->num_bytes == 0) { continue; }
        it->items[it->num_items++] = (Item){.idx = i,
                                            .begin = buffer->instr_begin,
                                            .end = buffer->instr_end,
                                            .num_bytes = plan_align_bytes(buffer->num_bytes)};
        total_life += buffer->instr_end - buffer->instr_begin;
        last = buffer->instr_end > last ? buffer->instr_end : last;
    }
    int64_t instants =
        it->num_items > 0 ? total_life / it->num_items : 0;  // of a block: 3 blocks an item or so
    instants = instants > MIN_BLOCK_INSTANTS ? instants : (int)MIN_BLOCK_INSTANTS;
    it->num_blocks = (int32_t)((last + instants - 1) / instants);
    ARENA_TRY_NEW(it->first, arena, int32_t, it->num_blocks + 1);
    for (int32_t i = 0; i < it->num_items; i++) {
        Item* item = &it->items[i];
        item->block_begin = (int32_t)(item->begin / instants);
        item->block_end = (int32_t)((item->end + instants - 1) / instants);
        for (int32_t b = item->block_begin; b < item->block_end; b++, num_places++) { it->first[b + 1]++; }
    }
    for (int32_t b = 0; b < it->num_blocks; b++) { it->first[b + 1] += it->first[b]; }
    ARENA_TRY_NEW(it->num, arena, int32_t, it->num_blocks);
    ARENA_TRY_NEW(it->cursor, arena, int32_t, it->num_blocks);
    ARENA_TRY_NEW(it->placed, arena, PlacedItem, num_places);
    return STATUS_OK;
}

Status memory_layout_place(PlanBuffer* buffers, int32_t num_buffers, int64_t enough_bytes,
                           int64_t* arena_bytes, Arena* arena) {
    Layout layout;
    int64_t bound_bytes;
    int32_t best = 0, last = 0;
    TRY(memory_layout_bound(buffers, num_buffers, &bound_bytes, arena));
    TRY(layout_make(&layout, buffers, num_buffers, arena));
    bool may_fit = bound_bytes <= enough_bytes;  // else any layout will do
    for (int32_t k = 0; k < (may_fit ? NUM_ORDERS : 1) && layout.best_bytes > bound_bytes; k++) {
        if (k >= ALWAYS_TRIED && layout.best_bytes <= enough_bytes) { break; }
        sort_items(&layout, k);
        if (try_order(&layout, 0, layout.best_bytes - 1)) { best = k; }
        last = k;
    }
    if (best != last) { sort_items(&layout, best); }
    if (may_fit) { climb(&layout, enough_bytes); }
    for (int32_t i = 0; i < num_buffers; i++) {
        buffers[i].offset_bytes = buffers[i].num_bytes > 0 ? layout.best_offsets[i] : 0;
    }
    *arena_bytes = layout.num_items > 0 ? layout.best_bytes : 0;
    return STATUS_OK;
}
