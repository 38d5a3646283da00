#include "search_replicas.h"

#include <math.h>
#include <string.h>

#include "../schedule.h"

Status search_replicas_order(Search* search, const int32_t* num_of) {
    const double* slow = search->slow;
    int32_t *order, R = search->R;
    if (search->replica != NULL) { return STATUS_OK; }
    ARENA_TRY_NEW(order, &search->lists, int32_t, R);
    for (int32_t r = 0; r < R; r++) {  // descending, stable
        int32_t k = r;
        for (; k > 0 && slow != NULL; k--) {
            bool had = num_of[order[k - 1]] > 0, has = num_of[r] > 0;
            if (had != has ? had : slow[order[k - 1]] >= slow[r]) { break; }
            order[k] = order[k - 1];
        }
        order[k] = r;
    }
    for (int32_t k = R - 1; k > 1 && slow != NULL; k--) {
        if (num_of[order[k]] == 0) { continue; }
        int32_t fastest = order[k];
        memmove(order + 2, order + 1, (size_t)(k - 1) * sizeof *order);
        order[1] = fastest;
        break;
    }
    search->replica = order;
    return STATUS_OK;
}

// How much longer a replica takes shows in its makespan: those that ended late get less in the next round.
static bool correct_speeds(Search* search) {
    double sum = 0, most = 0, least = INFINITY;
    for (int32_t r = 0; r < search->R; r++) {
        double ns = (double)search->state[r].makespan_ns;
        if (search->state[r].N == 0) { continue; }
        sum += ns;
        most = fmax(most, ns);
        least = fmin(least, ns);
    }
    for (int32_t r = 0; r < search->R && most > 0; r++) {
        double ns = (double)search->state[r].makespan_ns;
        if (search->state[r].N > 0) { search->slow[search->replica[r]] *= ns * search->R / sum; }
    }
    return most > least * 1.02;
}

static int64_t slowest_ns(const Search* search) {
    int64_t slowest = 0;
    for (int32_t r = 0; r < search->R; r++) {
        if (search->state[r].makespan_ns > slowest) { slowest = search->state[r].makespan_ns; }
    }
    return slowest;
}

// Ranks that differ: as often as the replicas' speeds turn out to be others.
static Status first_rounds(Search* search) {
    enum { MOST_ROUNDS = 3 };
    Search begin = *search, best = {.R = 0};
    for (int32_t round = 0; round < MOST_ROUNDS; round++) {
        search->replica = NULL;
        search->placement = begin.placement;
        Status status = search_first_round(search);
        if (status == STATUS_INFEASIBLE && best.R > 0) { break; }
        TRY(status);
        if (best.R == 0 || slowest_ns(search) < slowest_ns(&best)) { best = *search; }
        if (search->R == 1 || search->budget < begin.budget / 2 || !correct_speeds(search)) { break; }
    }
    search->state = best.state;
    search->replica = best.replica;
    search->placement = best.placement;
    return STATUS_OK;
}

Status search_first(Search* search) {
    if (!search->problem->differs) { return search_first_round(search); }
    ARENA_TRY_NEW(search->slow, &search->lists, double, search->R);
    memcpy(search->slow, search->problem->replica_slow, sizeof *search->slow * (size_t)search->R);
    return first_rounds(search);
}
