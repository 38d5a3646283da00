// balance.c -- microbatches onto replicas (rivals.h): multi-way largest differencing (Karmarkar & Karp 1982;
// spec section d), or, where replicas differ, largest first.
#include "rivals.h"

#include <stdlib.h>
#include <string.h>

// A bin is a chain of jobs; a tuple has R bins in ascending order of their sums, of which only the last
// num_bins, those with jobs, are kept.
typedef struct {
    int64_t sum;
    int32_t head, tail;
} Bin;

typedef struct {
    int64_t spread;  // fullest - emptiest: the key
    int32_t age;     // first come first served among equals
    int32_t num_bins, max_bins;
    Bin* bins;
} Tuple;

// Removes the tuple of the widest spread.
static Tuple take_widest(Tuple* tuples, int32_t* num) {
    int32_t best = 0;
    for (int32_t i = 1; i < *num; i++) {
        int64_t wider = tuples[i].spread - tuples[best].spread;
        if (wider > 0 || (wider == 0 && tuples[i].age < tuples[best].age)) { best = i; }
    }
    Tuple widest = tuples[best];
    tuples[best] = tuples[--*num];
    return widest;
}

// Bin k of `a` takes in bin R - 1 - k of `b`, empty ones counted; then they are sorted again (stably).
static Status tuple_merge(Tuple* a, const Tuple* b, int32_t R, int32_t* next, Bin* sorted, Arena* arena) {
    int32_t num = 0, empty = R - a->num_bins;
    for (int32_t k = 0; k < R; k++) {
        Bin bin = k < empty ? (Bin){0, -1, -1} : a->bins[k - empty];
        if (k < b->num_bins) {
            const Bin* other = &b->bins[b->num_bins - 1 - k];
            if (bin.head < 0) {
                bin = *other;
            } else {
                bin.sum += other->sum;
                next[bin.tail] = other->head;
                bin.tail = other->tail;
            }
        }
        if (bin.head < 0) { continue; }
        int32_t i = num++;
        for (; i > 0 && sorted[i - 1].sum > bin.sum; i--) { sorted[i] = sorted[i - 1]; }
        sorted[i] = bin;
    }
    if (a->max_bins < num) {
        a->max_bins = 2 * num;
        ARENA_TRY_NEW(a->bins, arena, Bin, a->max_bins);
    }
    memcpy(a->bins, sorted, (size_t)num * sizeof *sorted);
    a->num_bins = num;
    a->spread = sorted[num - 1].sum - (num == R ? sorted[0].sum : 0);
    return STATUS_OK;
}

typedef struct {
    int64_t work;
    int32_t id;
} Job;

static int compare_jobs(const void* a, const void* b) {
    const Job *x = a, *y = b;
    return x->work != y->work ? (x->work < y->work) - (x->work > y->work) : (x->id > y->id) - (x->id < y->id);
}

// In descending order of work, at least 1 each: jobs never share a replica while another is empty.
static Status sorted_jobs(Job** out, const int64_t* work_ns, int32_t M, Arena* arena) {
    ARENA_TRY_NEW(*out, arena, Job, M);
    for (int32_t i = 0; i < M; i++) { (*out)[i] = (Job){work_ns[i] < 1 ? 1 : work_ns[i], i}; }
    qsort(*out, (size_t)M, sizeof **out, compare_jobs);
    return STATUS_OK;
}

Status balance_difference(int32_t* replica_of, const int64_t* work_ns, int32_t M, int32_t R, Arena* arena) {
    Tuple* tuples;
    Job* jobs;
    Bin *bins, *sorted;
    int32_t *next, num = 0, age = 0;
    TRY(sorted_jobs(&jobs, work_ns, M, arena));
    ARENA_TRY_NEW(tuples, arena, Tuple, M);
    ARENA_TRY_NEW(next, arena, int32_t, M);
    ARENA_TRY_NEW(bins, arena, Bin, M);
    ARENA_TRY_NEW(sorted, arena, Bin, R);
    for (; age < M; age++) {
        int32_t id = jobs[age].id;
        bins[age] = (Bin){jobs[age].work, id, id};
        next[id] = -1;
        tuples[num++] = (Tuple){R > 1 ? jobs[age].work : 0, age, 1, 1, &bins[age]};
    }
    while (num > 1) {
        Tuple a = take_widest(tuples, &num), b = take_widest(tuples, &num);
        TRY(tuple_merge(&a, &b, R, next, sorted, arena));
        a.age = age++;
        tuples[num++] = a;
    }
    for (int32_t k = 0; k < tuples->num_bins; k++) {
        for (int32_t i = tuples->bins[k].head; i >= 0; i = next[i]) {
            replica_of[i] = R - tuples->num_bins + k;
        }
    }
    return STATUS_OK;
}

// Largest first, each to the replica that then ends first.
static Status largest_first(int32_t* replica_of, const int64_t* work_ns, const double* slow, int32_t M,
                            int32_t R, Arena* arena) {
    Job* jobs;
    double* sum;
    TRY(sorted_jobs(&jobs, work_ns, M, arena));
    ARENA_TRY_NEW(sum, arena, double, R);
    for (int32_t k = 0; k < M; k++) {
        double work = (double)jobs[k].work;
        int32_t best = 0;
        for (int32_t r = 1; r < R; r++) {
            if ((sum[r] + work) * slow[r] < (sum[best] + work) * slow[best]) { best = r; }
        }
        replica_of[jobs[k].id] = best;
        sum[best] += work;
    }
    return STATUS_OK;
}

Status balance_replicas(ReplicaMbs* out, const MicrobatchList* list, int32_t R, const double* slow,
                        Arena* arena) {
    int32_t M = list->num_mbs, *replica_of, *end;
    int64_t* work_ns;
    *out = (ReplicaMbs){.R = R};
    ARENA_TRY_NEW(replica_of, arena, int32_t, M);
    ARENA_TRY_NEW(work_ns, arena, int64_t, M);
    ARENA_TRY_NEW(out->mbs, arena, int32_t, M);
    ARENA_TRY_NEW(end, arena, int32_t, R);
    for (int32_t m = 0; m < M; m++) { work_ns[m] = list->mbs[m].work_ns; }
    TRY(slow != NULL ? largest_first(replica_of, work_ns, slow, M, R, arena)
                     : balance_difference(replica_of, work_ns, M, R, arena));
    for (int32_t m = 0; m < M; m++) { out->begin[replica_of[m] + 1]++; }
    for (int32_t r = 0; r < R; r++) { out->begin[r + 1] += end[r] = out->begin[r]; }
    for (int32_t m = 0; m < M; m++) { out->mbs[end[replica_of[m]]++] = m; }
    return STATUS_OK;
}
