// short_path.c -- see short_path.h. Everything is made of reversals of a stretch of the path, so a kick that
// did not help is undone by the same reversals backwards.
#include "short_path.h"

#include <stdbool.h>
#include <stdlib.h>

#include "../../../util/numbers.h"
#include "../pipe/pipe_schedule.h"

enum { NUM_NEIGHBOURS = 6, MAX_SEGMENT = 3, MAX_STRETCH = 30, JOURNAL_SPACE = 4096 };
enum { KICKS_PER_POINT = 5, MAX_KICKS = 500 };

typedef struct {
    int32_t i, j;
} Reversal;

typedef struct {
    const PathPoint* points;
    int32_t num;
    int32_t *path, *place;  // path[place[a]] == a
    int32_t* neighbours;    // [num][NUM_NEIGHBOURS], nearest first; -1: none left
    int32_t* queue;         // ring of points to look at
    int32_t queue_begin, queue_count;
    bool* queued;
    Reversal* journal;
    int32_t num_journal;
    bool journal_lost;  // did not fit: cannot be undone
} Walk;

static int64_t distance(const PathPoint* a, const PathPoint* b) {
    return (int64_t)abs(a->x - b->x) + abs(a->y - b->y);
}

// Between the points at two places; beyond the ends of the path lies nothing, at no distance.
static int64_t between(const Walk* walk, int32_t p, int32_t q) {
    if (p < 0 || q < 0 || p >= walk->num || q >= walk->num) { return 0; }
    return distance(&walk->points[walk->path[p]], &walk->points[walk->path[q]]);
}

static void look_at(Walk* walk, int32_t p) {
    if (p < 0 || p >= walk->num || walk->queued[walk->path[p]]) { return; }
    walk->queued[walk->path[p]] = true;
    walk->queue[(walk->queue_begin + walk->queue_count++) % walk->num] = walk->path[p];
}

static void reverse(Walk* walk, int32_t i, int32_t j) {
    if (walk->num_journal < JOURNAL_SPACE) {
        walk->journal[walk->num_journal++] = (Reversal){i, j};
    } else {
        walk->journal_lost = true;
    }
    for (; i < j; i++, j--) {
        int32_t a = walk->path[i], b = walk->path[j];
        walk->path[i] = b;
        walk->path[j] = a;
        walk->place[b] = i;
        walk->place[a] = j;
    }
}

// --- moves ------------------------------------------------------------------------------------------------

// Reverse [i, j] if that is shorter.
static int64_t try_reverse(Walk* walk, int32_t i, int32_t j) {
    if (i >= j) { return 0; }
    int64_t gain =
        between(walk, i - 1, i) + between(walk, j, j + 1) - between(walk, i - 1, j) - between(walk, i, j + 1);
    if (gain <= 0) { return 0; }
    reverse(walk, i, j);
    look_at(walk, i - 1);
    look_at(walk, i);
    look_at(walk, j);
    look_at(walk, j + 1);
    return gain;
}

// 2-opt: an edge at `a` is replaced by one to a near point, or to nothing.
static int64_t improve_two(Walk* walk, int32_t a) {
    int32_t p = walk->place[a];
    int64_t after = between(walk, p, p + 1), before = between(walk, p - 1, p), gain = 0;
    for (int k = 0; k < NUM_NEIGHBOURS && gain == 0; k++) {
        int32_t c = walk->neighbours[(int64_t)a * NUM_NEIGHBOURS + k];
        if (c < 0) { break; }
        int64_t d = distance(&walk->points[a], &walk->points[c]);
        int32_t q = walk->place[c];
        if (d >= after && d >= before) { break; }
        if (d < after) { gain = q > p ? try_reverse(walk, p + 1, q) : try_reverse(walk, q + 1, p); }
        if (gain == 0 && d < before) {
            gain = q < p ? try_reverse(walk, q, p - 1) : try_reverse(walk, p, q - 1);
        }
    }
    if (gain == 0) { gain = try_reverse(walk, p + 1, walk->num - 1); }
    if (gain == 0) { gain = try_reverse(walk, 0, p); }
    if (gain == 0) { gain = try_reverse(walk, p, walk->num - 1); }
    if (gain == 0) { gain = try_reverse(walk, 0, p - 1); }
    return gain;
}

// The stretch [i, j] goes between places q and q + 1 outside of it, turned round or not.
static void move_stretch(Walk* walk, int32_t i, int32_t j, int32_t q, bool turned) {
    int32_t length = j - i + 1, first = q > j ? i : q + 1, last = q > j ? q : j;
    reverse(walk, first, last);
    if (q > j) {  // [j + 1, q] backwards, then the stretch, turned
        reverse(walk, first, last - length);
        if (!turned) { reverse(walk, last - length + 1, last); }
    } else {  // the stretch, turned, then [q + 1, i - 1] backwards
        reverse(walk, first + length, last);
        if (!turned) { reverse(walk, first, first + length - 1); }
    }
    int32_t to = q > j ? last - length + 1 : first;
    look_at(walk, to - 1);
    look_at(walk, to);
    look_at(walk, to + length - 1);
    look_at(walk, to + length);
    look_at(walk, q > j ? i - 1 : j);
    look_at(walk, q > j ? i : j + 1);
}

// The stretch between places q and q + 1: `a_first`: the end at place p comes first there.
static int64_t try_insert(Walk* walk, int32_t i, int32_t j, int32_t p, int32_t q, bool a_first,
                          int64_t removed) {
    if (q >= i - 1 && q <= j) { return 0; }
    int32_t other = i + j - p, head = a_first ? p : other, tail = a_first ? other : p;
    int64_t added = between(walk, q, head) + between(walk, tail, q + 1) - between(walk, q, q + 1);
    if (added >= removed) { return 0; }
    move_stretch(walk, i, j, q, head != i);
    return removed - added;
}

// or-opt: up to three points that begin or end with `a` move beside a near point.
static int64_t improve_stretch(Walk* walk, int32_t a) {
    int32_t p = walk->place[a];
    for (int32_t length = 1; length <= MAX_SEGMENT; length++) {
        for (int side = 0; side < (length > 1 ? 2 : 1); side++) {
            int32_t i = side ? p - length + 1 : p, j = i + length - 1;
            if (i < 0 || j >= walk->num) { continue; }
            int64_t removed = between(walk, i - 1, i) + between(walk, j, j + 1) - between(walk, i - 1, j + 1);
            if (removed <= 0 || (i == 0 && j == walk->num - 1)) { continue; }
            for (int k = 0; k < NUM_NEIGHBOURS; k++) {
                int32_t c = walk->neighbours[(int64_t)a * NUM_NEIGHBOURS + k];
                if (c < 0 || distance(&walk->points[a], &walk->points[c]) >= removed) { break; }
                int32_t q = walk->place[c];
                int64_t gain = try_insert(walk, i, j, p, q, true, removed);
                if (gain == 0) { gain = try_insert(walk, i, j, p, q - 1, false, removed); }
                if (gain > 0) { return gain; }
            }
        }
    }
    return 0;
}

// Until no point in the queue finds a move; returns what was saved.
static int64_t mend(Walk* walk) {
    int64_t gain = 0;
    while (walk->queue_count > 0) {
        int32_t a = walk->queue[walk->queue_begin];
        walk->queue_begin = (walk->queue_begin + 1) % walk->num;
        walk->queue_count--;
        walk->queued[a] = false;
        int64_t saved = improve_two(walk, a);
        if (saved == 0) { saved = improve_stretch(walk, a); }
        if (saved > 0) { look_at(walk, walk->place[a]); }
        gain += saved;
    }
    return gain;
}

// --- kicks ------------------------------------------------------------------------------------------------

// Two neighbouring stretches change places; undone where mending does not make up for it.
static void kick(Walk* walk, Rng* rng) {
    int32_t most = walk->num / 3 < MAX_STRETCH ? walk->num / 3 : MAX_STRETCH;
    int32_t first = rng_between(rng, 1, most), second = rng_between(rng, 1, most);
    int32_t i = rng_between(rng, 0, walk->num - first - second), j = i + first, end = j + second;
    int64_t added = between(walk, i - 1, j) + between(walk, end - 1, i) + between(walk, j - 1, end) -
                    between(walk, i - 1, i) - between(walk, j - 1, j) - between(walk, end - 1, end);
    walk->num_journal = 0;
    walk->journal_lost = false;
    reverse(walk, i, end - 1);
    reverse(walk, i, i + second - 1);
    reverse(walk, i + second, end - 1);
    look_at(walk, i - 1);
    look_at(walk, i);
    look_at(walk, i + second - 1);
    look_at(walk, i + second);
    look_at(walk, end - 1);
    look_at(walk, end);
    if (mend(walk) >= added || walk->journal_lost) { return; }
    for (int32_t k = walk->num_journal; k > 0; k--) {
        Reversal undo = walk->journal[k - 1];
        reverse(walk, undo.i, undo.j);
    }
}

// --- the beginning ----------------------------------------------------------------------------------------

typedef struct {
    int64_t key;
    int32_t point;
} Keyed;

static int compare_keyed(const void* a, const void* b) {
    const Keyed *x = a, *y = b;
    return x->key != y->key ? (x->key > y->key) - (x->key < y->key)
                            : (x->point > y->point) - (x->point < y->point);
}

// Strips along x, run through upwards and downwards in turn, about sqrt(num / 2) of them.
static void begin_with_strips(Walk* walk, Keyed* keyed) {
    int32_t num = walk->num, num_strips = 1;
    while ((int64_t)num_strips * num_strips * 2 < num) { num_strips++; }
    for (int32_t a = 0; a < num; a++) { keyed[a] = (Keyed){walk->points[a].x, a}; }
    qsort(keyed, (size_t)num, sizeof *keyed, compare_keyed);
    for (int32_t i = 0; i < num; i++) {
        int64_t strip = (int64_t)i * num_strips / num, y = walk->points[keyed[i].point].y;
        keyed[i].key = (strip << 32) + (strip % 2 ? (INT64_C(1) << 31) - y : y);
    }
    qsort(keyed, (size_t)num, sizeof *keyed, compare_keyed);
    for (int32_t i = 0; i < num; i++) {
        walk->path[i] = keyed[i].point;
        walk->place[keyed[i].point] = i;
    }
}

static void neighbour_insert(Walk* walk, int32_t a, int32_t c, int64_t* nearest) {
    int64_t d = distance(&walk->points[a], &walk->points[c]);
    int32_t* list = &walk->neighbours[(int64_t)a * NUM_NEIGHBOURS];
    int k = NUM_NEIGHBOURS - 1;
    if (d >= nearest[k]) { return; }
    for (; k > 0 && nearest[k - 1] > d; k--) {
        nearest[k] = nearest[k - 1];
        list[k] = list[k - 1];
    }
    nearest[k] = d;
    list[k] = c;
}

// Sorted by x, a search to both sides ends where x alone is farther than the last of the list.
static void find_neighbours(Walk* walk, Keyed* keyed) {
    int32_t num = walk->num;
    for (int32_t a = 0; a < num; a++) { keyed[a] = (Keyed){walk->points[a].x, a}; }
    qsort(keyed, (size_t)num, sizeof *keyed, compare_keyed);
    for (int32_t i = 0; i < num; i++) {
        int64_t nearest[NUM_NEIGHBOURS];
        int32_t a = keyed[i].point;
        for (int k = 0; k < NUM_NEIGHBOURS; k++) {
            nearest[k] = INT64_MAX;
            walk->neighbours[(int64_t)a * NUM_NEIGHBOURS + k] = -1;
        }
        for (int32_t step = 1; step < num; step++) {
            bool left = i - step >= 0 && keyed[i].key - keyed[i - step].key < nearest[NUM_NEIGHBOURS - 1];
            bool right = i + step < num && keyed[i + step].key - keyed[i].key < nearest[NUM_NEIGHBOURS - 1];
            if (!left && !right) { break; }
            if (left) { neighbour_insert(walk, a, keyed[i - step].point, nearest); }
            if (right) { neighbour_insert(walk, a, keyed[i + step].point, nearest); }
        }
    }
}

Status short_path_make(int32_t* path, const PathPoint* points, int32_t num, Arena* arena) {
    Walk walk = {.points = points, .num = num, .path = path};
    Keyed* keyed;
    ARENA_TRY_NEW(walk.place, arena, int32_t, num);
    ARENA_TRY_NEW(walk.neighbours, arena, int32_t, (int64_t)num * NUM_NEIGHBOURS);
    ARENA_TRY_NEW(walk.queue, arena, int32_t, num);
    ARENA_TRY_NEW(walk.queued, arena, bool, num);
    ARENA_TRY_NEW(walk.journal, arena, Reversal, JOURNAL_SPACE);
    ARENA_TRY_NEW(keyed, arena, Keyed, num);
    begin_with_strips(&walk, keyed);
    find_neighbours(&walk, keyed);
    for (int32_t p = 0; p < num; p++) { look_at(&walk, p); }
    mend(&walk);
    Rng rng = rng_seed((uint64_t)num);
    int64_t num_kicks = (int64_t)KICKS_PER_POINT * num;
    if (num_kicks > MAX_KICKS) { num_kicks = MAX_KICKS; }
    for (int64_t k = 0; k < num_kicks && num >= 3; k++) { kick(&walk, &rng); }
    return STATUS_OK;
}
