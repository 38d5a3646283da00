// search_check.c -- see search_check.h.
#include "search_check.h"
#include "../dynapipe_plugin/plan/simulate.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../dynapipe_plugin/plan/draft/replica_problem.h"

#define REQUIRE(cond, ...)                         \
    do {                                           \
        if (!(cond)) {                             \
            printf("%s:%d: ", __FILE__, __LINE__); \
            printf(__VA_ARGS__);                   \
            printf(" (%s)\n", #cond);              \
            return false;                          \
        }                                          \
    } while (0)

// Chains: doubly linked, disjoint, all samples, none empty. The ids are all different.
static bool chains_are_sound(const SearchState* state, Arena* arena) {
    bool* seen = ARENA_NEW(arena, bool, state->N);
    bool* id_seen = ARENA_NEW(arena, bool, state->problem->num_samples);
    int32_t num_seen = 0;
    for (int32_t m = 0; m < state->M; m++) {
        int32_t count = 0;
        for (int32_t i = state->head[m], before = -1; i >= 0; before = i, i = state->next[i]) {
            REQUIRE(i < state->N && !seen[i], "sample %d is in two chains", i);
            REQUIRE(state->prev[i] == before, "sample %d: prev", i);
            REQUIRE(state->mb_of[i] == m, "sample %d of micro-batch %d says %d", i, m, state->mb_of[i]);
            REQUIRE(!id_seen[state->ids[i]], "sample id %d is there twice", state->ids[i]);
            seen[i] = id_seen[state->ids[i]] = true;
            count++;
        }
        REQUIRE(count > 0 && count == state->count[m], "micro-batch %d of %d samples says %d", m, count,
                state->count[m]);
        num_seen += count;
    }
    REQUIRE(num_seen == state->N, "%d of %d samples", num_seen, state->N);
    return true;
}

static bool order_is_permutation(const SearchState* state, Arena* arena) {
    bool* seen = ARENA_NEW(arena, bool, state->M);
    for (int32_t k = 0; k < state->M; k++) {
        int32_t m = state->order[k];
        REQUIRE(m >= 0 && m < state->M && !seen[m], "order has %d at %d", m, k);
        seen[m] = true;
    }
    return true;
}

static bool costs_are_equal(const PipeCost* a, const PipeCost* b, int32_t s, int32_t m) {
    REQUIRE(memcmp(a->job_ns, b->job_ns, sizeof a->job_ns) == 0, "stage %d micro-batch %d: times", s, m);
    REQUIRE(a->stored_bytes == b->stored_bytes, "stage %d micro-batch %d: stored", s, m);
    REQUIRE(a->input_bytes == b->input_bytes, "stage %d micro-batch %d: input", s, m);
    REQUIRE(a->forward_bytes == b->forward_bytes, "stage %d micro-batch %d: forward", s, m);
    REQUIRE(a->transfer_ns == b->transfer_ns && a->part_ns == b->part_ns && a->factor_ns == b->factor_ns,
            "row %d micro-batch %d: transfer", s, m);
    REQUIRE(a->boundary_bytes == b->boundary_bytes, "stage %d micro-batch %d: boundary", s, m);
    REQUIRE(a->mode == b->mode && a->drops == b->drops, "stage %d micro-batch %d: mode", s, m);
    return true;
}

// The simulator on the schedule that is built, or memory that cannot be divided.
static bool makespan_is_sound(const SearchState* state, const PipeProblem* pipe, Arena* arena) {
    PipeSchedule schedule;
    PipeTimeline timeline;
    if (state->makespan_ns == INT64_MAX) { return true; }
    REQUIRE(pipe_adaptive_build(&schedule, pipe, state->order, &state->rule, arena) == STATUS_OK, "build");
    REQUIRE(pipe_simulate(&timeline, pipe, &schedule, arena) == STATUS_OK, "simulate");
    REQUIRE(timeline.makespan_ns == state->makespan_ns, "makespan %lld, simulated %lld",
            (long long)state->makespan_ns, (long long)timeline.makespan_ns);
    for (int32_t s = 0; s < state->P; s++) {
        REQUIRE(timeline.peak_bytes[s] <= pipe->memory_limit_bytes[s], "stage %d over its limit", s);
    }
    return true;
}

bool search_state_is_sound(const SearchState* state, Arena* arena) {
    PlanRequest request = *state->problem->request;
    PlanProblem problem;
    MicrobatchList list;
    ReplicaProblem replica;
    if (!chains_are_sound(state, arena) || !order_is_permutation(state, arena)) { return false; }
    request.placement = state->placement;
    REQUIRE(plan_problem_init(&problem, &request, state->problem->costs, state->problem->samples,
                              state->problem->num_samples) == STATUS_OK,
            "stages");
    REQUIRE(microbatch_list_reserve(&list, state->M, state->N, arena) == STATUS_OK, "memory");
    int32_t *ids = ARENA_NEW(arena, int32_t, state->N), *mbs = ARENA_NEW(arena, int32_t, state->M);
    for (int32_t m = 0; m < state->M; m++) {
        int32_t num = 0;
        for (int32_t i = 0; i < state->N; i++) {  // not along the chain
            if (state->mb_of[i] == m) { ids[num++] = state->ids[i]; }
        }
        microbatch_list_append(&list, &problem, state->layout, RECOMPUTE_NONE, ids, num);
        REQUIRE(memcmp(&list.mbs[m].shape, &state->shape[m], sizeof(MbShape)) == 0, "micro-batch %d: shape",
                m);
        mbs[m] = m;
    }
    REQUIRE(replica_problem_make(&replica, &problem, &list, 0, mbs, state->M, state->mode, arena) ==
                STATUS_OK,
            "prices");
    REQUIRE(state->pipe.P == state->P && state->pipe.M == state->M && state->pipe.cost == state->cost,
            "pipe");
    for (int32_t row = 0; row < state->num_rows; row++) {
        for (int32_t m = 0; m < state->M; m++) {
            if (!costs_are_equal(pipe_cost(&replica.pipe, row, m), pipe_cost(&state->pipe, row, m), row, m)) {
                return false;
            }
        }
    }
    for (int32_t s = 0; s < state->P; s++) {
        REQUIRE(replica.pipe.tail_ns[s] == state->pipe.tail_ns[s], "stage %d: tail", s);
        REQUIRE(replica.pipe.memory_limit_bytes[s] == state->pipe.memory_limit_bytes[s],
                "stage %d: limit %lld, should be %lld", s, (long long)state->pipe.memory_limit_bytes[s],
                (long long)replica.pipe.memory_limit_bytes[s]);
    }
    for (int32_t k = 0; k < state->K; k++) {
        REQUIRE(state->rule.max_in_flight[k] >= 1, "chunk %d: nothing may be in flight", k);
    }
    return makespan_is_sound(state, &replica.pipe, arena);
}
