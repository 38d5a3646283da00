// test_stage_search.c -- the split of a run against plans of its batches made here, split by split.
#include "../dynapipe_plugin/plan/stage_search.h"

#include <stdlib.h>

#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/placement.h"
#include "random_problem.h"
#include "test.h"

enum { NUM_BATCHES = 3, PLANNING_NS = 4000000 };

static uint64_t seed;
static RandomProblem problem;

typedef struct {
    StageBatch batch[NUM_BATCHES];
    PlanRequest request;
} Case;

// The problem's samples in NUM_BATCHES parts.
static void draw_case(Case* out, Rng* rng, int32_t P, int32_t L, int32_t num_samples) {
    random_problem(&problem, rng, num_samples);
    random_cost_model(&problem.costs, rng, rng_below(rng, 2) ? L : L / 2, 0);
    problem.costs.chain.num_dec_layers = L - problem.costs.chain.num_enc_layers;
    out->request = problem.request;
    out->request.P = P;
    out->request.R = rng_between(rng, 1, 2);
    out->request.batching = rng_below(rng, 4) == 0 ? BATCHING_PACKED_RAGGED : BATCHING_DYNAMIC;
    out->request.schedule = SCHEDULE_AUTO;
    out->request.split_backward = SPLIT_BACKWARD_AUTO;
    out->request.choose_stages = true;
    int32_t begin = 0;
    for (int32_t b = 0; b < NUM_BATCHES; b++) {
        int32_t end = num_samples * (b + 1) / NUM_BATCHES;
        out->batch[b] = (StageBatch){problem.samples + begin, end - begin};
        begin = end;
    }
}

// Mean makespan of the batches in this placement; 0 where one does not fit.
static int64_t placed_ns(const Case* about, const Placement* placement) {
    PlanRequest request = about->request;
    Arena arena = {0};
    int64_t sum_ns = 0;
    bool fits = true;
    request.choose_stages = false;
    request.effort = plan_effort(&request, (int64_t)PLANNING_NS * request.R);
    request.placement = *placement;
    request.placements = PLACEMENT_GIVEN;
    request.heads = HEAD_CHOICE_GIVEN;
    for (int32_t b = 0; b < NUM_BATCHES && fits; b++) {
        Plan plan;
        const StageBatch* batch = &about->batch[b];
        Status status =
            plan_make(&plan, &request, &problem.costs, batch->samples, batch->num_samples, &arena);
        CHECK(status == STATUS_OK || status == STATUS_INFEASIBLE);
        fits = status == STATUS_OK;
        if (fits) { sum_ns += plan.makespan_ns; }
    }
    arena_free(&arena);
    return fits ? sum_ns / NUM_BATCHES : 0;
}

static int64_t planned_ns(const Case* about, const BlockRange* stages) {
    Placement placement = {.num_chunks = 0};
    placement_linear(&placement, stages, about->request.P);
    return placed_ns(about, &placement);
}

// What it says is what plan_make says, and no boundary moved by one layer makes plans faster.
static void no_neighbour_is_faster(void) {
    Rng rng = rng_seed(seed);
    for (int round = 0; round < test_rounds(12); round++) {
        Case about;
        StageChoice choice, again;
        int32_t P = rng_between(&rng, 2, 4), L = P + rng_between(&rng, 0, 5);
        draw_case(&about, &rng, P, L, rng_between(&rng, 6, 60));
        CHECK_OK(stage_search(&choice, &about.request, &problem.costs, about.batch, NUM_BATCHES,
                              STAGE_SEARCH_USUAL_NS));
        CHECK_OK(stage_search(&again, &about.request, &problem.costs, about.batch, NUM_BATCHES,
                              STAGE_SEARCH_USUAL_NS));
        CHECK(memcmp(choice.placement.chunks, again.placement.chunks, sizeof choice.placement.chunks) == 0);
        CHECK_OK(placement_check(&choice.placement, P, &problem.costs.chain, false));
        CHECK_EQ(choice.makespan_ns, planned_ns(&about, choice.placement.chunks));
        CHECK(choice.makespan_ns <= choice.balanced_ns);
        for (int32_t s = 0; s + 1 < P; s++) {
            for (int32_t step = -1; step <= 1; step += 2) {
                Placement moved = choice.placement;
                placement_shift(&moved, &problem.costs.chain, step < 0 ? s : s + 1, step < 0 ? s + 1 : s);
                if (!stage_may_have(&moved.chunks[s], s, P, false) ||
                    !stage_may_have(&moved.chunks[s + 1], s + 1, P, false)) {
                    continue;
                }
                int64_t ns = planned_ns(&about, moved.chunks);
                CHECK(ns == 0 || ns >= choice.makespan_ns);
            }
        }
    }
}

static void a_given_split_is_only_priced(void) {
    Rng rng = rng_seed(seed + 2);
    Case about;
    StageChoice choice;
    draw_case(&about, &rng, 2, 6, 30);
    about.request.choose_stages = false;
    about.request.placement.chunks[0] = (BlockRange){0, 1};
    about.request.placement.chunks[1] = (BlockRange){1, 6};
    CHECK_OK(stage_search(&choice, &about.request, &problem.costs, about.batch, NUM_BATCHES,
                          STAGE_SEARCH_USUAL_NS));
    CHECK_EQ(choice.num_splits, 1);
    CHECK_EQ(choice.placement.chunks[0].end, 1);
    CHECK_EQ(choice.makespan_ns, planned_ns(&about, about.request.placement.chunks));
}

// Chunks as told, the head to be chosen: no slower than the whole head there, and what it says is what it
// takes.
static void of_given_chunks_the_head_is_chosen(void) {
    Rng rng = rng_seed(seed + 6);
    int num_shared = 0;
    for (int round = 0; round < test_rounds(8); round++) {
        Case about;
        StageChoice choice;
        int32_t P = rng_between(&rng, 2, 3), L = 2 * P + rng_between(&rng, 0, 4);
        draw_case(&about, &rng, P, L, rng_between(&rng, 6, 60));
        about.request.batching = BATCHING_DYNAMIC;
        about.request.choose_stages = false;
        about.request.heads = HEAD_CHOICE_AUTO;
        Placement* told = &about.request.placement;
        CHECK_OK(placement_make(told, PLACEMENT_VEE, false, P, &problem.costs.chain));
        told->chunks[0].end = told->chunks[1].begin = 1;
        CHECK_OK(stage_search(&choice, &about.request, &problem.costs, about.batch, NUM_BATCHES,
                              STAGE_SEARCH_USUAL_NS));
        int64_t whole_ns = placed_ns(&about, told);
        CHECK(whole_ns == 0 || choice.makespan_ns <= whole_ns);
        CHECK_EQ(choice.makespan_ns, placed_ns(&about, &choice.placement));
        num_shared += choice.placement.head != HEAD_WHOLE;
        about.request.heads = HEAD_CHOICE_VOCABULARY;
        const Placement before = *told;
        CHECK_OK(stage_search(&choice, &about.request, &problem.costs, about.batch, NUM_BATCHES,
                              STAGE_SEARCH_USUAL_NS));
        CHECK_EQ(choice.placement.head, HEAD_BY_VOCABULARY);
        placement_copy_head(&choice.placement, &before);
        CHECK(placement_equal(&choice.placement, &before, P));
    }
    CHECK(num_shared >= test_rounds(2));
}

// In mid-run: the present placement's own time, and one of the same chunks and head that is no slower and
// takes what it says. Linear, or a vee with its head whole or shared; nearly all layers in the last chunk.
static void a_search_from_a_placement_on_ends_no_slower(void) {
    Rng rng = rng_seed(seed + 4);
    int num_moved = 0;
    for (int round = 0; round < test_rounds(12); round++) {
        Case about;
        StageChoice choice, again;
        int64_t present_ns, again_ns;
        bool is_vee = round % 2;
        int32_t P = rng_between(&rng, 2, is_vee ? 3 : 4), K = is_vee ? 2 * P : P,
                L = K + rng_between(&rng, 2, 6);
        draw_case(&about, &rng, P, L, rng_between(&rng, 6, 60));
        if (is_vee) { about.request.batching = BATCHING_DYNAMIC; }
        Placement* now = &about.request.placement;
        const PlanChain* chain = &problem.costs.chain;
        const int32_t num_blocks = plan_chain_num_blocks(chain);
        CHECK_OK(placement_make(now, is_vee ? PLACEMENT_VEE : PLACEMENT_LINEAR, false, P, chain));
        if (round % 4 == 3) { placement_share_head(now, HEAD_BY_VOCABULARY, P); }
        for (int32_t k = 0; k < K; k++) { now->chunks[k] = (BlockRange){k, k == K - 1 ? num_blocks : k + 1}; }
        CHECK_OK(stage_search_again(&choice, &present_ns, &about.request, &problem.costs, about.batch,
                                    NUM_BATCHES, 150000000));
        CHECK_OK(stage_search_again(&again, &again_ns, &about.request, &problem.costs, about.batch,
                                    NUM_BATCHES, 150000000));
        CHECK(placement_equal(&choice.placement, &again.placement, P));
        CHECK_EQ(present_ns, placed_ns(&about, now));
        CHECK_EQ(choice.makespan_ns, placed_ns(&about, &choice.placement));
        CHECK(choice.makespan_ns <= present_ns || present_ns == 0);
        CHECK(choice.placement.num_chunks == K && choice.placement.head == now->head);
        CHECK(memcmp(choice.placement.stage_of, now->stage_of, (size_t)K * sizeof *now->stage_of) == 0);
        CHECK_OK(placement_check(&choice.placement, P, chain, about.request.rules.head_has_layer));
        num_moved += choice.makespan_ns < present_ns;
        CHECK_OK(stage_search_again(&choice, &present_ns, &about.request, &problem.costs, about.batch,
                                    NUM_BATCHES, 0));
        CHECK(choice.num_splits <= 4);
    }
    CHECK(num_moved >= test_rounds(6));
}

// The first step's plan says what is missing: here the split of equal work, and no time.
static void where_nothing_fits_there_is_a_split_all_the_same(void) {
    Rng rng = rng_seed(seed + 3);
    Case about;
    StageChoice choice;
    draw_case(&about, &rng, 3, 6, 30);
    about.request.memory_limit_bytes = 1;
    CHECK_OK(stage_search(&choice, &about.request, &problem.costs, about.batch, NUM_BATCHES,
                          STAGE_SEARCH_USUAL_NS));
    CHECK_OK(placement_check(&choice.placement, 3, &problem.costs.chain, false));
    CHECK_EQ(choice.makespan_ns, 0);
    CHECK_OK(stage_search(&choice, &about.request, &problem.costs, NULL, 0, STAGE_SEARCH_USUAL_NS));
    CHECK_OK(placement_check(&choice.placement, 3, &problem.costs.chain, false));
}

static void effort_grows_with_time(void) {
    PlanRequest request = {.batching = BATCHING_DYNAMIC, .P = 4, .R = 1};
    CHECK_EQ(plan_effort(&request, 0), 1);
    CHECK(plan_effort(&request, 20000000) > plan_effort(&request, 10000000));
    CHECK_EQ(plan_effort(&request, INT64_MAX), INT32_MAX);
    request.batching = BATCHING_PACKED;
    CHECK_EQ(plan_effort(&request, 20000000), 0);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(no_neighbour_is_faster);
    RUN(a_given_split_is_only_priced);
    RUN(of_given_chunks_the_head_is_chosen);
    RUN(a_search_from_a_placement_on_ends_no_slower);
    RUN(where_nothing_fits_there_is_a_split_all_the_same);
    RUN(effort_grows_with_time);
    return test_end();
}
