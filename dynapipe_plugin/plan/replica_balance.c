// replica_balance.c -- largest differencing over R-tuples of bins, then moves and swaps.
#include "replica_balance.h"

#include <string.h>

// A bin is a chain of jobs; a tuple is R bins in ascending order of their sums.
typedef struct {
    int64_t sum;
    int32_t head, tail;  // -1: empty
} Bin;

typedef struct {
    int64_t spread;  // fullest - emptiest: the key
    int32_t age;     // first come first served among equals
    Bin* bins;       // [R]
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

// Bin k of `a` takes in bin R - 1 - k of `b`; then a is sorted again (insertion sort: stable).
static void tuple_merge(Tuple* a, const Tuple* b, int32_t R, int32_t* next) {
    for (int32_t k = 0; k < R; k++) {
        Bin *bin = &a->bins[k], *other = &b->bins[R - 1 - k];
        bin->sum += other->sum;
        if (other->head < 0) { continue; }
        if (bin->head < 0) {
            bin->head = other->head;
        } else {
            next[bin->tail] = other->head;
        }
        bin->tail = other->tail;
    }
    for (int32_t k = 1; k < R; k++) {
        Bin bin = a->bins[k];
        int32_t i = k;
        for (; i > 0 && a->bins[i - 1].sum > bin.sum; i--) { a->bins[i] = a->bins[i - 1]; }
        a->bins[i] = bin;
    }
    a->spread = a->bins[R - 1].sum - a->bins[0].sum;
}

// Jobs enter in descending order of work; `ids` is that order.
static Status difference(int32_t* replica_of, const int64_t* work, const int32_t* ids, int32_t M, int32_t R,
                         Arena* arena) {
    TupleHeap heap = {ARENA_NEW(arena, Tuple, M), 0};
    int32_t* next = ARENA_NEW(arena, int32_t, M);
    Bin* bins = ARENA_NEW(arena, Bin, (size_t)M * (size_t)R);
    if (!heap.heap || !next || !bins) {
        return FAIL(STATUS_NO_MEMORY, "balance of %d jobs, %d replicas", M, R);
    }
    int32_t age = 0;
    for (; age < M; age++) {
        Tuple tuple = {work[ids[age]], age, bins + (int64_t)age * R};
        for (int32_t k = 0; k < R; k++) { tuple.bins[k] = (Bin){0, -1, -1}; }
        tuple.bins[R - 1] = (Bin){work[ids[age]], ids[age], ids[age]};
        next[ids[age]] = -1;
        heap_push(&heap, tuple);
    }
    while (heap.num > 1) {
        Tuple a = heap_pop(&heap), b = heap_pop(&heap);
        tuple_merge(&a, &b, R, next);
        a.age = age++;
        heap_push(&heap, a);
    }
    for (int32_t r = 0; r < R; r++) {
        for (int32_t i = heap.heap[0].bins[r].head; i >= 0; i = next[i]) { replica_of[i] = r; }
    }
    return STATUS_OK;
}

// The best single move of job i (to replica r), or swap of jobs i and j, out of the fullest replica.
typedef struct {
    int64_t fullest;  // of the two replicas, afterwards
    int32_t i, j, r;  // j = -1: a move
} Exchange;

static Exchange exchange_find(const int32_t* replica_of, const int64_t* work, const int64_t* sum,
                              int32_t full, int32_t M, int32_t R) {
    Exchange best = {sum[full], -1, -1, -1};
    for (int32_t i = 0; i < M; i++) {
        if (replica_of[i] != full) { continue; }
        for (int32_t r = 0; r < R; r++) {
            int64_t after = sum[r] + work[i] > sum[full] - work[i] ? sum[r] + work[i] : sum[full] - work[i];
            if (r != full && after < best.fullest) { best = (Exchange){after, i, -1, r}; }
        }
        for (int32_t j = 0; j < M; j++) {
            int64_t gain = work[i] - work[j];
            if (replica_of[j] == full || gain <= 0) { continue; }
            int64_t there = sum[replica_of[j]] + gain, here = sum[full] - gain;
            int64_t after = there > here ? there : here;
            if (after < best.fullest) { best = (Exchange){after, i, j, replica_of[j]}; }
        }
    }
    return best;
}

enum { MAX_EXCHANGES = 64, MAX_EXCHANGE_JOBS = 4096 };

static void improve(int32_t* replica_of, const int64_t* work, int64_t* sum, int32_t M, int32_t R) {
    for (int32_t i = 0; i < M; i++) { sum[replica_of[i]] += work[i]; }
    for (int round = 0; round < MAX_EXCHANGES && M <= MAX_EXCHANGE_JOBS; round++) {
        int32_t full = 0;
        for (int32_t r = 1; r < R; r++) { full = sum[r] > sum[full] ? r : full; }
        Exchange best = exchange_find(replica_of, work, sum, full, M, R);
        if (best.i < 0) { break; }
        int64_t moved = work[best.i] - (best.j >= 0 ? work[best.j] : 0);
        replica_of[best.i] = best.r;
        if (best.j >= 0) { replica_of[best.j] = full; }
        sum[full] -= moved;
        sum[best.r] += moved;
    }
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
    int64_t *work = ARENA_NEW(arena, int64_t, M), *sum = ARENA_NEW(arena, int64_t, R);
    if (!ids || !spare || !work || !sum) { return FAIL(STATUS_NO_MEMORY, "balance of %d jobs", M); }
    // At least 1: jobs with work never share a replica while another is empty. At most: no sum overflows.
    int64_t most = INT64_MAX / 2 / (M + 1);
    for (int32_t i = 0; i < M; i++) { work[i] = work_ns[i] < 1 ? 1 : work_ns[i] > most ? most : work_ns[i]; }
    sort_descending(ids, spare, work, M);
    TRY(difference(replica_of, work, ids, M, R, arena));
    if (improves) { improve(replica_of, work, sum, M, R); }
    return STATUS_OK;
}

Status replica_balance_assign(int32_t* replica_of, const int64_t* work_ns, int32_t M, int32_t R,
                              Arena* arena) {
    return assign(replica_of, work_ns, M, R, true, arena);
}

Status replica_balance_difference(int32_t* replica_of, const int64_t* work_ns, int32_t M, int32_t R,
                                  Arena* arena) {
    return assign(replica_of, work_ns, M, R, false, arena);
}

Status replica_balance(ReplicaLists* out, const MicrobatchList* list, int32_t R, Arena* arena) {
    int32_t M = list->num_mbs;
    if (R < 1 || R > PLAN_MAX_REPLICAS) { return FAIL(STATUS_OUT_OF_RANGE, "%d replicas", R); }
    int32_t* replica_of = ARENA_NEW(arena, int32_t, M);
    int64_t* work = ARENA_NEW(arena, int64_t, M);
    *out =
        (ReplicaLists){.R = R, .mbs = ARENA_NEW(arena, int32_t, M), .work_ns = ARENA_NEW(arena, int64_t, R)};
    if (!replica_of || !work || !out->mbs || !out->work_ns) {
        return FAIL(STATUS_NO_MEMORY, "%d micro-batches", M);
    }
    bool chosen = true;
    for (int32_t m = 0; m < M; m++) {
        work[m] = list->mbs[m].work_ns;
        replica_of[m] = list->mbs[m].replica;
        chosen &= replica_of[m] >= 0 && replica_of[m] < R;
    }
    if (!chosen) { TRY(replica_balance_assign(replica_of, work, M, R, arena)); }
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
