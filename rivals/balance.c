/*
balance.c -- largest differencing over R-tuples of bins, then moves and swaps.

A tuple keeps only the bins that have something: most tuples are one job, and while the tuple of the largest
spread still has empty bins, merging in another one is an insertion. So M jobs take O(M R) time in all, with a
small constant, and O(M) memory.
*/
#include "balance.h"

#include <string.h>

// A bin is a chain of jobs; a tuple is R bins in ascending order of their sums.
typedef struct {
    int64_t sum;
    int32_t head, tail;
} Bin;

typedef struct {
    int64_t spread;  // fullest - emptiest: the key
    int32_t age;     // first come first served among equals
    int32_t num_bins, max_bins;
    Bin* bins;  // [num_bins] the last ones of the R; those before are empty
} Tuple;

typedef struct {
    Tuple* heap;
    int32_t num;
} TupleHeap;

static bool tuple_before(const Tuple* a, const Tuple* b) {
    return a->spread != b->spread ? a->spread > b->spread : a->age < b->age;
}

static void heap_push(TupleHeap* heap, Tuple tuple) {
    int32_t i = heap->num++;
    while (i > 0 && tuple_before(&tuple, &heap->heap[(i - 1) / 2])) {
        heap->heap[i] = heap->heap[(i - 1) / 2];
        i = (i - 1) / 2;
    }
    heap->heap[i] = tuple;
}

static Tuple heap_pop(TupleHeap* heap) {
    Tuple top = heap->heap[0], last = heap->heap[--heap->num];
    int32_t i = 0;
    for (int32_t child; (child = 2 * i + 1) < heap->num; i = child) {
        if (child + 1 < heap->num && tuple_before(&heap->heap[child + 1], &heap->heap[child])) { child++; }
        if (!tuple_before(&heap->heap[child], &last)) { break; }
        heap->heap[i] = heap->heap[child];
    }
    heap->heap[i] = last;
    return top;
}

static void bin_take(Bin* bin, const Bin* other, int32_t* next) {
    bin->sum += other->sum;
    next[bin->tail] = other->head;
    bin->tail = other->tail;
}

// Stable: of equal sums the first stays first. `spare` has room for them.
static void sort_bins(Bin* bins, Bin* spare, int32_t num) {
    enum { RUN = 8 };
    for (int32_t begin = 0; begin < num; begin += RUN) {
        int32_t end = begin + RUN < num ? begin + RUN : num;
        for (int32_t k = begin + 1; k < end; k++) {
            Bin bin = bins[k];
            int32_t i = k;
            for (; i > begin && bins[i - 1].sum > bin.sum; i--) { bins[i] = bins[i - 1]; }
            bins[i] = bin;
        }
    }
    for (int32_t width = RUN; width < num; width *= 2) {
        for (int32_t begin = 0; begin < num; begin += 2 * width) {
            int32_t mid = begin + width < num ? begin + width : num, i = begin, j = mid;
            int32_t end = begin + 2 * width < num ? begin + 2 * width : num;
            for (int32_t k = begin; k < end; k++) {
                bool left = j == end || (i < mid && bins[i].sum <= bins[j].sum);
                spare[k] = left ? bins[i++] : bins[j++];
            }
        }
        memcpy(bins, spare, (size_t)num * sizeof *bins);
    }
}

// Room for num_bins, contents undefined.
static bool tuple_reserve(Tuple* tuple, int32_t num_bins, int32_t R, Arena* arena) {
    if (tuple->max_bins >= num_bins) { return true; }
    int32_t max_bins = 2 * num_bins < R ? 2 * num_bins : R;
    Bin* bins = ARENA_NEW(arena, Bin, max_bins);
    if (bins == NULL) { return false; }
    memcpy(bins, tuple->bins, (size_t)tuple->num_bins * sizeof *bins);
    tuple->bins = bins;
    tuple->max_bins = max_bins;
    return true;
}

// Bin k of `a` takes in bin R - 1 - k of `b`, k counting the empty ones too; then a is sorted again. Stable,
// in the order of k: b's fullest bin, which goes to k = 0, comes first among equals.
static bool tuple_merge(Tuple* a, const Tuple* b, int32_t R, int32_t* next, Bin* spare, Arena* arena) {
    int32_t num_a = a->num_bins, num_b = b->num_bins, num = num_a + num_b < R ? num_a + num_b : R;
    if (!tuple_reserve(a, num, R, arena)) { return false; }
    if (num_b == 1 && num_a < R) {  // one more bin
        int32_t k = 0;
        for (; k < num_a && a->bins[k].sum < b->bins[0].sum; k++) {}
        memmove(a->bins + k + 1, a->bins + k, (size_t)(num_a - k) * sizeof *a->bins);
        a->bins[k] = b->bins[0];
    } else {
        memmove(a->bins + num - num_a, a->bins, (size_t)num_a * sizeof *a->bins);
        for (int32_t k = 0; k < num_b; k++) {
            const Bin* from = &b->bins[num_b - 1 - k];
            if (k < num - num_a) {
                a->bins[k] = *from;
            } else {
                bin_take(&a->bins[k], from, next);
            }
        }
        sort_bins(a->bins, spare, num);
    }
    a->num_bins = num;
    a->spread = a->bins[num - 1].sum - (num == R ? a->bins[0].sum : 0);
    return true;
}

// Jobs enter in descending order of work; `ids` is that order.
static Status difference(int32_t* replica_of, const int64_t* work, const int32_t* ids, int32_t M, int32_t R,
                         Arena* arena) {
    TupleHeap heap = {ARENA_NEW(arena, Tuple, M), 0};
    int32_t* next = ARENA_NEW(arena, int32_t, M);
    Bin *bins = ARENA_NEW(arena, Bin, M), *spare = ARENA_NEW(arena, Bin, R);
    if (!heap.heap || !next || !bins || !spare) {
        return FAIL(STATUS_NO_MEMORY, "balance of %d jobs, %d replicas", M, R);
    }
    int32_t age = 0;
    for (; age < M; age++) {
        int32_t id = ids[age];
        bins[age] = (Bin){work[id], id, id};
        next[id] = -1;
        heap_push(&heap, (Tuple){work[id], age, 1, 1, bins + age});
    }
    while (heap.num > 1) {
        Tuple a = heap_pop(&heap), b = heap_pop(&heap);
        if (!tuple_merge(&a, &b, R, next, spare, arena)) {
            return FAIL(STATUS_NO_MEMORY, "balance of %d jobs, %d replicas", M, R);
        }
        a.age = age++;
        heap_push(&heap, a);
    }
    const Tuple* all = &heap.heap[0];
    for (int32_t k = 0; k < all->num_bins; k++) {
        int32_t r = R - all->num_bins + k;
        for (int32_t i = all->bins[k].head; i >= 0; i = next[i]) { replica_of[i] = r; }
    }
    return STATUS_OK;
}

enum { MAX_EXCHANGES = 64, MAX_EXCHANGE_JOBS = 4096 };

// Jobs by replica, ascending in work, ties to the smaller index: jobs[begin[r]] .. jobs[begin[r] + num[r] -
// 1].
typedef struct {
    const int64_t* work;
    int32_t *jobs, *begin, *num;
    int64_t* sum;  // [R]
} Shelves;

// The best single move of job i (to replica r), or swap of jobs i and j, out of the fullest replica.
typedef struct {
    int64_t fullest;  // of the two replicas, afterwards
    int32_t i, j, r;  // j = -1: a move
} Exchange;

// Place in replica r of the first job with at least this much work.
static int32_t shelves_find(const Shelves* shelves, int32_t r, int64_t work) {
    const int32_t* jobs = shelves->jobs + shelves->begin[r];
    int32_t low = 0, high = shelves->num[r];
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (shelves->work[jobs[middle]] >= work) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

static void swap_consider(Exchange* best, const Shelves* shelves, int32_t full, int32_t i, int32_t r,
                          int32_t at) {
    int32_t j = shelves->jobs[shelves->begin[r] + at];
    int64_t gain = shelves->work[i] - shelves->work[j];
    if (gain <= 0) { return; }
    int64_t there = shelves->sum[r] + gain, here = shelves->sum[full] - gain;
    int64_t after = there > here ? there : here;
    if (after < best->fullest || (after == best->fullest && best->i == i && best->j >= 0 && j < best->j)) {
        *best = (Exchange){after, i, j, r};
    }
}

// The fullest replica's sum falls and replica r's rises with the difference in work; the best is where they
// meet, so only the jobs next to that point count, on both sides the first of equals.
static void swaps_find(Exchange* best, const Shelves* shelves, int32_t full, int32_t i, int32_t r) {
    int64_t half = (shelves->sum[full] - shelves->sum[r]) / 2, meet = shelves->work[i] - half;
    int32_t at = shelves_find(shelves, r, meet);
    if (at < shelves->num[r]) { swap_consider(best, shelves, full, i, r, at); }
    if (at == 0) { return; }
    int64_t below = shelves->work[shelves->jobs[shelves->begin[r] + at - 1]];
    swap_consider(best, shelves, full, i, r, shelves_find(shelves, r, below));
}

static Exchange exchange_find(const int32_t* replica_of, const Shelves* shelves, int32_t full, int32_t M,
                              int32_t R) {
    const int64_t* sum = shelves->sum;
    Exchange best = {sum[full], -1, -1, -1};
    for (int32_t i = 0; i < M; i++) {
        if (replica_of[i] != full) { continue; }
        int64_t work = shelves->work[i];
        for (int32_t r = 0; r < R; r++) {
            int64_t after = sum[r] + work > sum[full] - work ? sum[r] + work : sum[full] - work;
            if (r != full && after < best.fullest) { best = (Exchange){after, i, -1, r}; }
        }
        for (int32_t r = 0; r < R; r++) {
            bool may_win = sum[r] + (sum[full] - sum[r] + 1) / 2 <= best.fullest;
            if (r != full && may_win) { swaps_find(&best, shelves, full, i, r); }
        }
    }
    return best;
}

static void shelves_remove(Shelves* shelves, int32_t r, int32_t job) {
    int32_t* jobs = shelves->jobs + shelves->begin[r];
    int32_t at = shelves_find(shelves, r, shelves->work[job]);
    while (jobs[at] != job) { at++; }
    memmove(jobs + at, jobs + at + 1, (size_t)(--shelves->num[r] - at) * sizeof *jobs);
}

static void shelves_insert(Shelves* shelves, int32_t r, int32_t job) {
    int32_t* jobs = shelves->jobs + shelves->begin[r];
    int64_t work = shelves->work[job];
    int32_t at = shelves_find(shelves, r, work);
    while (at < shelves->num[r] && shelves->work[jobs[at]] == work && jobs[at] < job) { at++; }
    memmove(jobs + at + 1, jobs + at, (size_t)(shelves->num[r]++ - at) * sizeof *jobs);
    jobs[at] = job;
}

// ids: all jobs in descending order of work, ties to the smaller index.
static Status shelves_init(Shelves* shelves, const int32_t* replica_of, const int64_t* work,
                           const int32_t* ids, int32_t M, int32_t R, Arena* arena) {
    *shelves = (Shelves){.work = work,
                         .jobs = ARENA_NEW(arena, int32_t, M + (int64_t)R * MAX_EXCHANGES),
                         .begin = ARENA_NEW(arena, int32_t, R),
                         .num = ARENA_NEW(arena, int32_t, R),
                         .sum = ARENA_NEW(arena, int64_t, R)};
    if (!shelves->jobs || !shelves->begin || !shelves->num || !shelves->sum) {
        return FAIL(STATUS_NO_MEMORY, "balance of %d jobs, %d replicas", M, R);
    }
    for (int32_t i = 0; i < M; i++) {
        shelves->num[replica_of[i]]++;
        shelves->sum[replica_of[i]] += work[i];
    }
    for (int32_t r = 1; r < R; r++) {  // each with room for all that may move in
        shelves->begin[r] = shelves->begin[r - 1] + shelves->num[r - 1] + MAX_EXCHANGES;
    }
    for (int32_t r = 0; r < R; r++) { shelves->num[r] = 0; }
    for (int32_t end = M, begin; end > 0; end = begin) {  // runs of equal work, the last run first
        begin = end - 1;
        while (begin > 0 && work[ids[begin - 1]] == work[ids[begin]]) { begin--; }
        for (int32_t k = begin; k < end; k++) {
            int32_t r = replica_of[ids[k]];
            shelves->jobs[shelves->begin[r] + shelves->num[r]++] = ids[k];
        }
    }
    return STATUS_OK;
}

static Status improve(int32_t* replica_of, const int64_t* work, const int32_t* ids, int32_t M, int32_t R,
                      Arena* arena) {
    Shelves shelves;
    if (M > MAX_EXCHANGE_JOBS) { return STATUS_OK; }
    TRY(shelves_init(&shelves, replica_of, work, ids, M, R, arena));
    int64_t* sum = shelves.sum;
    for (int round = 0; round < MAX_EXCHANGES; round++) {
        int32_t full = 0;
        for (int32_t r = 1; r < R; r++) { full = sum[r] > sum[full] ? r : full; }
        Exchange best = exchange_find(replica_of, &shelves, full, M, R);
        if (best.i < 0) { break; }
        int64_t moved = work[best.i] - (best.j >= 0 ? work[best.j] : 0);
        shelves_remove(&shelves, full, best.i);
        shelves_insert(&shelves, best.r, best.i);
        replica_of[best.i] = best.r;
        if (best.j >= 0) {
            shelves_remove(&shelves, best.r, best.j);
            shelves_insert(&shelves, full, best.j);
            replica_of[best.j] = full;
        }
        sum[full] -= moved;
        sum[best.r] += moved;
    }
    return STATUS_OK;
}

// ids[0..M) in descending order of work, ties to the smaller index (a merge sort).
static void sort_descending(int32_t* ids, int32_t* spare, const int64_t* work, int32_t M) {
    for (int32_t i = 0; i < M; i++) { ids[i] = i; }
    for (int64_t width = 1; width < M; width *= 2) {
        for (int64_t begin = 0; begin < M; begin += 2 * width) {
            int64_t mid = begin + width < M ? begin + width : M, i = begin, j = mid;
            int64_t end = begin + 2 * width < M ? begin + 2 * width : M;
            for (int64_t k = begin; k < end; k++) {
                bool left = j == end || (i < mid && work[ids[i]] >= work[ids[j]]);
                spare[k] = left ? ids[i++] : ids[j++];
            }
        }
        memcpy(ids, spare, (size_t)M * sizeof *ids);
    }
}

static Status assign(int32_t* replica_of, const int64_t* work_ns, int32_t M, int32_t R, bool improves,
                     Arena* arena) {
    if (M < 1 || R < 1) {
        return FAIL(STATUS_OUT_OF_RANGE, "%d jobs on %d replicas ---> at least one of each", M, R);
    }
    int32_t *ids = ARENA_NEW(arena, int32_t, M), *spare = ARENA_NEW(arena, int32_t, M);
    int64_t* work = ARENA_NEW(arena, int64_t, M);
    if (!ids || !spare || !work) { return FAIL(STATUS_NO_MEMORY, "balance of %d jobs", M); }
    // At least 1: jobs with work never share a replica while another is empty. At most: no sum overflows.
    int64_t most = INT64_MAX / 2 / (M + 1);
    for (int32_t i = 0; i < M; i++) { work[i] = work_ns[i] < 1 ? 1 : work_ns[i] > most ? most : work_ns[i]; }
    sort_descending(ids, spare, work, M);
    TRY(difference(replica_of, work, ids, M, R, arena));
    return improves ? improve(replica_of, work, ids, M, R, arena) : STATUS_OK;
}

Status balance_assign(int32_t* replica_of, const int64_t* work_ns, int32_t M, int32_t R, Arena* arena) {
    return assign(replica_of, work_ns, M, R, true, arena);
}

Status balance_difference(int32_t* replica_of, const int64_t* work_ns, int32_t M, int32_t R, Arena* arena) {
    return assign(replica_of, work_ns, M, R, false, arena);
}

Status balance_slow(int32_t* replica_of, const int64_t* work_ns, const double* slow, int32_t M, int32_t R,
                    Arena* arena) {
    int32_t *ids = ARENA_NEW(arena, int32_t, M), *spare = ARENA_NEW(arena, int32_t, M);
    double* sum = ARENA_NEW(arena, double, R);
    if (!ids || !spare || !sum) { return FAIL(STATUS_NO_MEMORY, "balance of %d jobs", M); }
    sort_descending(ids, spare, work_ns, M);
    for (int32_t k = 0; k < M; k++) {
        double work = work_ns[ids[k]] < 1 ? 1 : (double)work_ns[ids[k]];
        int32_t best = 0;
        for (int32_t r = 1; r < R; r++) {
            if ((sum[r] + work) * slow[r] < (sum[best] + work) * slow[best]) { best = r; }
        }
        replica_of[ids[k]] = best;
        sum[best] += work;
    }
    return STATUS_OK;
}

Status balance_replicas(ReplicaMbs* out, const MicrobatchList* list, int32_t R, const double* slow,
                        Arena* arena) {
    int32_t M = list->num_mbs;
    if (R < 1 || R > PLAN_MAX_REPLICAS) { return FAIL(STATUS_OUT_OF_RANGE, "%d replicas", R); }
    int32_t* replica_of = ARENA_NEW(arena, int32_t, M);
    int64_t* work = ARENA_NEW(arena, int64_t, M);
    *out = (ReplicaMbs){.R = R, .mbs = ARENA_NEW(arena, int32_t, M), .work_ns = ARENA_NEW(arena, int64_t, R)};
    if (!replica_of || !work || !out->mbs || !out->work_ns) {
        return FAIL(STATUS_NO_MEMORY, "%d micro-batches", M);
    }
    bool chosen = true;
    for (int32_t m = 0; m < M; m++) {
        work[m] = list->mbs[m].work_ns;
        replica_of[m] = list->mbs[m].replica;
        chosen &= replica_of[m] >= 0 && replica_of[m] < R;
    }
    if (!chosen && slow != NULL) { TRY(balance_slow(replica_of, work, slow, M, R, arena)); }
    if (!chosen && slow == NULL) { TRY(balance_assign(replica_of, work, M, R, arena)); }
    for (int32_t m = 0; m < M; m++) {
        out->begin[replica_of[m] + 1]++;
        out->work_ns[replica_of[m]] += work[m];
    }
    for (int32_t r = 0; r < R; r++) { out->begin[r + 1] += out->begin[r]; }
    int32_t* fill = ARENA_NEW(arena, int32_t, R);
    if (!fill) { return FAIL(STATUS_NO_MEMORY, "%d replicas", R); }
    for (int32_t m = 0; m < M; m++) {
        int32_t r = replica_of[m];
        out->mbs[out->begin[r] + fill[r]++] = m;
    }
    return STATUS_OK;
}
