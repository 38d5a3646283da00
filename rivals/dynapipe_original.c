// dynapipe_original.c -- DynaPipe's own method (see rivals.h): samples in order, dynamic program, largest
// differencing, and for every replica by itself the best of all orders, modes and schedules.
#include "rivals.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include "../util/numbers.h"
#include "balance.h"
#include "microbatch_dp.h"
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/problem.h"

// --- a short path -----------------------------------------------------------------------------------------
//
// Strips to begin with, then 2-opt and or-opt moves over the nearest neighbours of every point until none
// helps (Bentley, ORSA J. Computing 1992), then small kicks: swap two neighbouring stretches, mend, keep it
// if it is not longer (iterated local search: Lourenco, Martin, Stuetzle 2003). Everything is made of
// reversals of a stretch of the path, so a kick that did not help is undone by the same reversals backwards.

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

// Between the points at two places; beyond the ends of the path there is nothing, at distance 0.
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

// Moves the stretch [i, j] between places q and q + 1 outside of it, reversed or not.
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

// Until no point in the queue finds a move; returns the distance saved.
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

// --- kicks -------------------------------------------------------------------------------------------------

// Two neighbouring stretches change places; undone where repair does not make up for it.
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

// --- the initial path --------------------------------------------------------------------------------------

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

enum { THRESHOLD_TOKENS = 16, SQUARE_TOKENS = 12 };

static const int64_t THRESHOLD2 = (int64_t)THRESHOLD_TOKENS * THRESHOLD_TOKENS;

// --- samples of equal lengths -----------------------------------------------------------------------------

// Numbers the different (enc, dec) / tokens; returns how many. In ids sorted by both, equal ones stand
// together.
static int32_t number_lengths(int32_t* number_of, const int32_t* sorted, const PlanSample* samples,
                              int32_t num_samples) {
    int32_t num = 0;
    for (int32_t k = 0; k < num_samples; k++) {
        const PlanSample* here = &samples[sorted[k]];
        const PlanSample* before = k > 0 ? &samples[sorted[k - 1]] : NULL;
        bool same =
            before && before->enc_tokens == here->enc_tokens && before->dec_tokens == here->dec_tokens;
        number_of[sorted[k]] = same ? num - 1 : num;
        num += !same;
    }
    return num;
}

// --- complete linkage -------------------------------------------------------------------------------------

// Nearest-neighbour chain (Benzecri 1982; Murtagh 1983): walk to the nearest cluster until two are each
// other's nearest, and merge them. A cluster with no other within the threshold is finished.
typedef struct {
    int32_t num;
    int32_t* distance2;  // [num * num]
    int32_t* live;       // [num_live] clusters not yet finished or merged, ascending
    int32_t num_live;
    int32_t* merged_into;  // [num] itself: not merged
    int32_t *chain, num_chain;
} Linkage;

static int32_t* linkage_distance(const Linkage* linkage, int32_t a, int32_t b) {
    return &linkage->distance2[(int64_t)a * linkage->num + b];
}

static void linkage_remove(Linkage* linkage, int32_t a) {
    int32_t k = 0;
    while (linkage->live[k] != a) { k++; }
    memmove(linkage->live + k, linkage->live + k + 1,
            (size_t)(--linkage->num_live - k) * sizeof *linkage->live);
}

// Ties: the one before in the chain, then the smallest.
static int32_t linkage_nearest(const Linkage* linkage, int32_t a, int32_t before) {
    int32_t best = before, least = before >= 0 ? *linkage_distance(linkage, a, before) : (int32_t)THRESHOLD2;
    for (int32_t k = 0; k < linkage->num_live; k++) {
        int32_t b = linkage->live[k], d = *linkage_distance(linkage, a, b);
        if (b != a && d < least) { least = d, best = b; }
    }
    return best;
}

static void linkage_merge(Linkage* linkage, int32_t a, int32_t b) {
    int32_t gone = a < b ? a : b, kept = a < b ? b : a;
    linkage->merged_into[gone] = kept;
    linkage_remove(linkage, gone);
    for (int32_t k = 0; k < linkage->num_live; k++) {
        int32_t c = linkage->live[k], d = *linkage_distance(linkage, gone, c);
        if (c == kept || d <= *linkage_distance(linkage, kept, c)) { continue; }
        *linkage_distance(linkage, kept, c) = d;
        *linkage_distance(linkage, c, kept) = d;
    }
}

static void linkage_run(Linkage* linkage) {
    while (linkage->num_live > 0) {
        if (linkage->num_chain == 0) { linkage->chain[linkage->num_chain++] = linkage->live[0]; }
        int32_t a = linkage->chain[linkage->num_chain - 1];
        int32_t before = linkage->num_chain > 1 ? linkage->chain[linkage->num_chain - 2] : -1;
        int32_t b = linkage_nearest(linkage, a, before);
        if (b < 0) {
            linkage_remove(linkage, a);
            linkage->num_chain--;
        } else if (b == before) {
            linkage_merge(linkage, a, b);
            linkage->num_chain -= 2;
        } else {
            linkage->chain[linkage->num_chain++] = b;
        }
    }
}

// Distances from the threshold on are equal: nothing is merged there.
static int32_t distance2_of(const PlanSample* a, const PlanSample* b) {
    int64_t x = (int64_t)a->enc_tokens - b->enc_tokens, y = (int64_t)a->dec_tokens - b->dec_tokens;
    bool far =
        x >= THRESHOLD_TOKENS || x <= -THRESHOLD_TOKENS || y >= THRESHOLD_TOKENS || y <= -THRESHOLD_TOKENS;
    int64_t d = far ? THRESHOLD2 : x * x + y * y;
    return (int32_t)(d < THRESHOLD2 ? d : THRESHOLD2);
}

// number_of[]: from numbers of lengths to numbers of clusters.
static Status link_lengths(int32_t* number_of, int32_t num, const PlanSample* samples, int32_t num_samples,
                           Arena* arena) {
    Linkage linkage = {.num = num, .num_live = num};
    int32_t* sample_of;
    ARENA_TRY_NEW(sample_of, arena, int32_t, num);
    ARENA_TRY_NEW(linkage.distance2, arena, int32_t, (int64_t)num * num);
    ARENA_TRY_NEW(linkage.live, arena, int32_t, num);
    ARENA_TRY_NEW(linkage.merged_into, arena, int32_t, num);
    ARENA_TRY_NEW(linkage.chain, arena, int32_t, num + 1);
    for (int32_t i = 0; i < num_samples; i++) { sample_of[number_of[i]] = i; }
    for (int32_t a = 0; a < num; a++) {
        linkage.live[a] = linkage.merged_into[a] = a;
        for (int32_t b = 0; b < num; b++) {
            *linkage_distance(&linkage, a, b) = distance2_of(&samples[sample_of[a]], &samples[sample_of[b]]);
        }
    }
    linkage_run(&linkage);
    for (int32_t i = 0; i < num_samples; i++) {
        int32_t c = number_of[i];
        while (linkage.merged_into[c] != c) { c = linkage.merged_into[c]; }
        number_of[i] = c;
    }
    return STATUS_OK;
}

// Every sample's square, by its corner: equal corners get one number.
static Status square_lengths(int32_t* number_of, const PlanSample* samples, int32_t num_samples,
                             Arena* arena) {
    PlanSample* corners;
    int32_t* sorted;
    ARENA_TRY_NEW(corners, arena, PlanSample, num_samples);
    ARENA_TRY_NEW(sorted, arena, int32_t, num_samples);
    for (int32_t i = 0; i < num_samples; i++) {
        corners[i].enc_tokens = samples[i].enc_tokens / SQUARE_TOKENS;
        corners[i].dec_tokens = samples[i].dec_tokens / SQUARE_TOKENS;
    }
    TRY(sample_order_sorted(sorted, corners, num_samples, arena));
    number_lengths(number_of, sorted, corners, num_samples);
    return STATUS_OK;
}

Status original_clusters_make(int32_t* cluster_of, int32_t* num_clusters, const PlanSample* samples,
                              int32_t num_samples, Arena* arena) {
    int32_t *sorted, *name;
    ARENA_TRY_NEW(sorted, arena, int32_t, num_samples);
    ARENA_TRY_NEW(name, arena, int32_t, num_samples);
    TRY(sample_order_sorted(sorted, samples, num_samples, arena));
    int32_t num = number_lengths(cluster_of, sorted, samples, num_samples), num_named = 0;
    if (num <= ORIGINAL_MAX_LINKAGE) {
        TRY(link_lengths(cluster_of, num, samples, num_samples, arena));
    } else {
        TRY(square_lengths(cluster_of, samples, num_samples, arena));
    }
    for (int32_t i = 0; i < num_samples; i++) {  // names from 1
        if (name[cluster_of[i]] == 0) { name[cluster_of[i]] = ++num_named; }
        cluster_of[i] = name[cluster_of[i]] - 1;
    }
    *num_clusters = num_named;
    return STATUS_OK;
}

// --- the order --------------------------------------------------------------------------------------------

static Status path_of_clusters(int32_t* path, const int32_t* cluster_of, int32_t num_clusters,
                               const PlanSample* samples, int32_t num_samples, Arena* arena) {
    PathPoint* points;
    int64_t *enc, *dec, *num;
    ARENA_TRY_NEW(points, arena, PathPoint, num_clusters);
    ARENA_TRY_NEW(enc, arena, int64_t, num_clusters);
    ARENA_TRY_NEW(dec, arena, int64_t, num_clusters);
    ARENA_TRY_NEW(num, arena, int64_t, num_clusters);
    for (int32_t i = 0; i < num_samples; i++) {
        enc[cluster_of[i]] += samples[i].enc_tokens;
        dec[cluster_of[i]] += samples[i].dec_tokens;
        num[cluster_of[i]]++;
    }
    for (int32_t c = 0; c < num_clusters; c++) {
        points[c] = (PathPoint){(int32_t)(enc[c] / num[c]), (int32_t)(dec[c] / num[c])};
    }
    TRY(short_path_make(path, points, num_clusters, arena));
    PathPoint first = points[path[0]], last = points[path[num_clusters - 1]];
    if ((int64_t)first.x + first.y >= (int64_t)last.x + last.y) { return STATUS_OK; }
    for (int32_t i = 0, j = num_clusters - 1; i < j; i++, j--) {
        int32_t swapped = path[i];
        path[i] = path[j];
        path[j] = swapped;
    }
    return STATUS_OK;
}

Status original_order_make(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena) {
    bool decoder = false;
    for (int32_t i = 0; i < num_samples; i++) { decoder |= samples[i].dec_tokens > 0; }
    if (!decoder) { return sample_order_sorted(order, samples, num_samples, arena); }
    int32_t *cluster_of, *path, *next, num_clusters;
    ARENA_TRY_NEW(cluster_of, arena, int32_t, num_samples);
    ARENA_TRY_NEW(path, arena, int32_t, num_samples);
    ARENA_TRY_NEW(next, arena, int32_t, num_samples + 1);  // where the next sample of a cluster goes
    TRY(original_clusters_make(cluster_of, &num_clusters, samples, num_samples, arena));
    TRY(path_of_clusters(path, cluster_of, num_clusters, samples, num_samples, arena));
    int32_t* count;
    ARENA_TRY_NEW(count, arena, int32_t, num_clusters);
    for (int32_t i = 0; i < num_samples; i++) { count[cluster_of[i]]++; }
    for (int32_t k = 0, begin = 0; k < num_clusters; k++) {
        next[path[k]] = begin;
        begin += count[path[k]];
    }
    for (int32_t i = 0; i < num_samples; i++) { order[next[cluster_of[i]]++] = i; }
    return STATUS_OK;
}

// --- orders of micro-batches -------------------------------------------------------------------------------

enum { MAX_ROUNDS = 300 };
enum { STATE_CLUSTERS, STATE_AS_THEY_CAME, STATE_ENDED };

static int64_t distance2(const OriginalPoint* a, const OriginalPoint* b) {
    int64_t sum = 0;
    for (int i = 0; i < ORIGINAL_FEATURES; i++) {
        int64_t d = a->us[i] > b->us[i] ? a->us[i] - b->us[i] : b->us[i] - a->us[i];
        if (d > INT32_MAX / 2) { d = INT32_MAX / 2; }  // 18 minutes: four squares fit
        sum += d * d;
    }
    return sum;
}

static int32_t nearest(const OriginalPoint* point, const OriginalPoint* centre, int32_t k, int64_t* least) {
    int32_t best = 0;
    *least = INT64_MAX;
    for (int32_t c = 0; c < k; c++) {
        int64_t d = distance2(point, &centre[c]);
        if (d < *least) { *least = d, best = c; }
    }
    return best;
}

// k-means++ (Arthur & Vassilvitskii, SODA'07): each further centre is a point, chosen with a probability
// proportional to its squared distance. Fewer than k where no other point is left.
static int32_t choose_centres(OriginalPoint* centre, const OriginalPoint* points, int32_t M, int32_t k,
                              Rng* rng) {
    int32_t num = 1;
    centre[0] = points[rng_below(rng, (uint32_t)M)];
    for (; num < k; num++) {
        uint64_t sum = 0, before = 0;
        int64_t d;
        for (int32_t m = 0; m < M; m++) {
            nearest(&points[m], centre, num, &d);
            sum += (uint64_t)d >> 16;  // sums of thousands fit
        }
        if (sum == 0) { break; }
        uint64_t at = rng_u64(rng) % sum;
        for (int32_t m = 0; m < M && before <= at; m++) {
            nearest(&points[m], centre, num, &d);
            before += (uint64_t)d >> 16;
            if (before > at) { centre[num] = points[m]; }
        }
    }
    return num;
}

static void kmeans(int32_t* cluster_of, const OriginalPoint* points, int32_t M, int32_t k, Rng* rng) {
    OriginalPoint centre[ORIGINAL_MAX_CLUSTERS];
    k = choose_centres(centre, points, M, k, rng);
    for (int32_t m = 0; m < M; m++) { cluster_of[m] = -1; }
    for (int round = 0; round < MAX_ROUNDS; round++) {
        bool changed = false;
        int64_t sum[ORIGINAL_MAX_CLUSTERS][ORIGINAL_FEATURES] = {{0}}, num[ORIGINAL_MAX_CLUSTERS] = {0}, d;
        for (int32_t m = 0; m < M; m++) {
            int32_t c = nearest(&points[m], centre, k, &d);
            changed |= cluster_of[m] != c;
            cluster_of[m] = c;
            num[c]++;
            for (int i = 0; i < ORIGINAL_FEATURES; i++) { sum[c][i] += points[m].us[i]; }
        }
        if (!changed) { return; }
        for (int32_t c = 0; c < k; c++) {
            for (int i = 0; i < ORIGINAL_FEATURES && num[c] > 0; i++) {
                centre[c].us[i] = sum[c][i] / num[c];
            }
        }
    }
}

Status original_orders_init(OriginalOrders* out, const OriginalPoint* points, int32_t M, Rng* rng,
                            Arena* arena) {
    int32_t k = M > 20 ? 3 : 4, *cluster_of;
    *out = (OriginalOrders){.M = M, .every_order = M <= k};
    ARENA_TRY_NEW(out->members, arena, int32_t, M);
    ARENA_TRY_NEW(cluster_of, arena, int32_t, M);
    if (out->every_order) {
        for (int32_t m = 0; m < M; m++) { cluster_of[m] = m; }
    } else {
        kmeans(cluster_of, points, M, k, rng);
    }
    int32_t num = 0;
    for (int32_t c = 0; c < k; c++) {
        int32_t begin = num;
        for (int32_t m = 0; m < M; m++) {
            if (cluster_of[m] == c) { out->members[num++] = m; }
        }
        if (num == begin) { continue; }
        out->cluster[out->num_clusters] = out->num_clusters;
        out->begin[++out->num_clusters] = num;
    }
    return STATUS_OK;
}

// The next in lexicographic order; false after the last.
static bool next_permutation(int32_t* item, int32_t num) {
    int32_t i = num - 2, j = num - 1;
    while (i >= 0 && item[i] > item[i + 1]) { i--; }
    if (i < 0) { return false; }
    while (item[j] < item[i]) { j--; }
    int32_t swapped = item[i];
    item[i] = item[j];
    item[j] = swapped;
    for (int32_t a = i + 1, b = num - 1; a < b; a++, b--) {
        swapped = item[a];
        item[a] = item[b];
        item[b] = swapped;
    }
    return true;
}

bool original_orders_next(OriginalOrders* orders, int32_t* order, Rng* rng) {
    if (orders->state == STATE_ENDED) { return false; }
    if (orders->state == STATE_AS_THEY_CAME) {
        for (int32_t m = 0; m < orders->M; m++) { order[m] = m; }
        orders->state = STATE_ENDED;
        return true;
    }
    int32_t num = 0;
    for (int32_t i = 0; i < orders->num_clusters; i++) {
        int32_t c = orders->cluster[i], begin = num;
        for (int32_t k = orders->begin[c]; k < orders->begin[c + 1]; k++) {
            order[num++] = orders->members[k];
        }
        for (int32_t k = num - 1; k > begin; k--) {  // Fisher and Yates
            int32_t j = rng_between(rng, begin, k), swapped = order[k];
            order[k] = order[j];
            order[j] = swapped;
        }
    }
    if (!next_permutation(orders->cluster, orders->num_clusters)) {
        orders->state = orders->every_order ? STATE_ENDED : STATE_AS_THEY_CAME;
    }
    return true;
}

// --- the draft ---------------------------------------------------------------------------------------------

Status microbatch_dp_build_original(MicrobatchList* out, const PlanProblem* problem, Arena* arena) {
    enum { THINNING_NS = 5000000 };  // the original's compile-time constant
    PlanProblem tight = *problem;    // every stage has the tightest one's memory
    MicrobatchDpOptions options[3 * RECOMPUTE_COUNT];
    int num_modes = problem->num_modes;
    int32_t* order;
    ARENA_TRY_NEW(order, arena, int32_t, problem->num_samples);
    TRY(original_order_make(order, problem->samples, problem->num_samples, arena));
    for (int32_t s = 0; s < problem->P; s++) {
        for (int32_t k = 0; k < problem->P; k++) {
            int64_t available = problem->available_bytes[k];
            if (available < tight.available_bytes[s]) { tight.available_bytes[s] = available; }
        }
    }
    for (int i = 0; i < 3 * num_modes; i++) {  // the third round, every cap, is not in the original
        options[i] = (MicrobatchDpOptions){
            .thinning_ns = i < 2 * num_modes ? THINNING_NS : 0,
            .ramp_percent = 100,
            .share = i < num_modes ? SHARE_UNIFORM : SHARE_ALONE,
            .mode = problem->modes[i % num_modes],
            .layout = problem->request->layout == LAYOUT_PADDED ? LAYOUT_PADDED : LAYOUT_RAGGED};
    }
    return microbatch_dp_first(out, &tight, order, options, 3 * num_modes, arena);
}

static const PipeVariant cyclic = {.name = "cyclic", .policy = &pipe_policy_cyclic};
static const PipeVariant cyclic_limited = {.name = "cyclic-limited", .policy = &pipe_policy_cyclic_limited};
static const PipeVariant one_f_one_b = {.name = "1f1b", .policy = &pipe_policy_1f1b};

typedef struct {
    const PlanProblem* problem;
    const MicrobatchList* list;
    int32_t replica;
    const int32_t* mbs;  // [M] of this replica
    int32_t M;
    Rng rng;
    int32_t* order;  // [M] being tried
    DraftReplica* best;
    RecomputeMode best_mode;
    Arena costs, runs;  // of one mode; of one simulation
} Search;

// Time of one layer at the front of the pipeline and of one at its end, which has the head.
static OriginalPoint features_of(const PlanProblem* problem, RecomputeMode mode, const MbShape* shape) {
    CostParts parts;
    cost_parts(&parts, &problem->table, mode, shape);
    const CostModel* costs = problem->costs;
    const double* first = parts.part[costs->num_enc_layers > 0 ? PART_ENC_LAYER : PART_DEC_LAYER];
    const double* last = parts.part[costs->num_dec_layers > 0 ? PART_DEC_LAYER : PART_ENC_LAYER];
    const double* head = parts.part[PART_HEAD];
    double first_back = first[JOB_B] + first[JOB_W] + first[JOB_R];
    double last_back = last[JOB_B] + last[JOB_W] + last[JOB_R] + head[JOB_B] + head[JOB_W] + head[JOB_R];
    return (OriginalPoint){{cost_round(first[JOB_F] / 1e3), cost_round((last[JOB_F] + head[JOB_F]) / 1e3),
                            cost_round(last_back / 1e3), cost_round(first_back / 1e3)}};
}

// All orders, one kind of schedule. *fits: did any?
static Status try_orders(bool* fits, Search* search, const PipeProblem* pipe, RecomputeMode mode,
                         const OriginalOrders* orders, const PipeVariant* variant) {
    OriginalOrders left = *orders;
    *fits = false;
    while (original_orders_next(&left, search->order, &search->rng)) {
        PipeVariantBest run;
        TRY(pipe_variants_best(&run, pipe, search->order, variant, 1, &search->runs));
        *fits |= run.makespan_ns < INT64_MAX;
        if (run.makespan_ns >= search->best->makespan_ns) { continue; }
        search->best->makespan_ns = run.makespan_ns;
        search->best->variant = *variant;
        search->best_mode = mode;
        for (int32_t i = 0; i < search->M; i++) { search->best->mbs[i] = search->mbs[search->order[i]]; }
    }
    return STATUS_OK;
}

static Status make_orders(OriginalOrders* out, Search* search, RecomputeMode mode) {
    OriginalPoint* points;
    ARENA_TRY_NEW(points, &search->costs, OriginalPoint, search->M);
    for (int32_t m = 0; m < search->M; m++) {
        points[m] = features_of(search->problem, mode, &search->list->mbs[search->mbs[m]].shape);
    }
    return original_orders_init(out, points, search->M, &search->rng, &search->costs);
}

// Cyclic without a limit and, only where no order of it fits, with the limit; then 1F1B.
static Status try_mode(Search* search, RecomputeMode mode) {
    const PlanProblem* problem = search->problem;
    int64_t num_cells = (int64_t)problem->P * search->M;
    ReplicaProblem replica;
    OriginalOrders orders;
    uint8_t* modes;
    bool fits;
    arena_reset(&search->costs);
    ARENA_TRY_NEW(modes, &search->costs, uint8_t, num_cells);
    memset(modes, (int)mode, (size_t)num_cells);
    TRY(replica_problem_make(&replica, problem, search->list, search->replica, search->mbs, search->M, modes,
                             &search->costs));
    TRY(make_orders(&orders, search, mode));
    TRY(try_orders(&fits, search, &replica.pipe, mode, &orders, &cyclic));
    if (!fits) { TRY(try_orders(&fits, search, &replica.pipe, mode, &orders, &cyclic_limited)); }
    if (problem->P == 1) { return STATUS_OK; }
    return try_orders(&fits, search, &replica.pipe, mode, &orders, &one_f_one_b);
}

static Status plan_replica(DraftReplica* out, Search* search, int32_t M, Arena* arena) {
    int64_t num_cells = (int64_t)search->problem->P * M;
    *out = (DraftReplica){.variant = cyclic_limited, .makespan_ns = INT64_MAX};
    out->M = M;
    ARENA_TRY_NEW(out->mbs, arena, int32_t, M);
    ARENA_TRY_NEW(search->order, arena, int32_t, M);
    ARENA_TRY_NEW(out->modes, arena, uint8_t, num_cells);
    memcpy(out->mbs, search->mbs, (size_t)M * sizeof *out->mbs);
    search->best = out;
    search->M = M;
    search->best_mode = search->list->mbs[0].mode;  // the same for all of the list
    for (int32_t i = 0; i < search->problem->num_modes; i++) {
        TRY(try_mode(search, search->problem->modes[i]));
    }
    memset(out->modes, (int)search->best_mode, (size_t)num_cells);
    return STATUS_OK;
}

// Karmarkar and Karp alone: no moves afterwards (spec section d).
static Status assign_replicas(ReplicaMbs* out, Draft* draft, int32_t R, Arena* arena) {
    int32_t M = draft->list.num_mbs, *replica_of;
    int64_t* work_ns;
    ARENA_TRY_NEW(replica_of, arena, int32_t, M);
    ARENA_TRY_NEW(work_ns, arena, int64_t, M);
    for (int32_t m = 0; m < M; m++) { work_ns[m] = draft->list.mbs[m].work_ns; }
    TRY(balance_difference(replica_of, work_ns, M, R, arena));
    for (int32_t m = 0; m < M; m++) { draft->list.mbs[m].replica = replica_of[m]; }
    return balance_replicas(out, &draft->list, R, NULL, arena);
}

Status original_draft(Draft* out, const PlanProblem* problem, Arena* arena) {
    Draft draft = {0};
    ReplicaMbs replicas;
    TRY(microbatch_dp_build_original(&draft.list, problem, arena));
    TRY(assign_replicas(&replicas, &draft, problem->R, arena));
    ARENA_TRY_NEW(draft.replica, arena, DraftReplica, problem->R);
    draft.placement = problem->request->placement;
    Search search = {.problem = problem, .list = &draft.list, .rng = rng_seed(0)};
    Status status = STATUS_OK;
    for (int32_t r = 0; r < problem->R && status == STATUS_OK; r++) {
        int32_t begin = replicas.begin[r];
        search.replica = r;
        search.mbs = replicas.mbs + begin;
        status = plan_replica(&draft.replica[r], &search, replicas.begin[r + 1] - begin, arena);
        int64_t makespan_ns = draft.replica[r].makespan_ns;
        if (makespan_ns > draft.makespan_ns) { draft.makespan_ns = makespan_ns; }
    }
    arena_free(&search.costs);
    arena_free(&search.runs);
    if (status == STATUS_OK) { *out = draft; }
    return status;
}
