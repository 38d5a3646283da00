// test_search_places.c -- where the search begins: placements that are valid, of the kinds that are asked
// for, dealt so that no single layer is better elsewhere; and a head that is told stays.
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/placement.h"
#include "../dynapipe_plugin/plan/search/search_places.h"
#include "../dynapipe_plugin/plan/types.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem about;

static bool init(PlanProblem* out) {
    return plan_problem_init(out, &about.request, &about.costs, about.samples, about.num_samples) ==
           STATUS_OK;
}

// --- loads, by single layers -----------------------------------------------------------------------------

static double piece_ns(const PlanProblem* problem, CostPart part) {
    MbShape all = {0};
    CostParts parts;
    for (int32_t i = 0; i < problem->num_samples; i++) {
        const PlanSample* sample = &problem->samples[i];
        mb_shape_add(&all, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    }
    cost_parts(&parts, &problem->table, problem->modes[0], &all);
    return parts.part[part][JOB_F] + parts.part[part][JOB_B] + parts.part[part][JOB_W];
}

static double sum_of_squares(const PlanProblem* problem, const Placement* placement, int32_t* slowest) {
    double load[PLAN_MAX_STAGES] = {0}, sum = 0, head = piece_ns(problem, PART_HEAD);
    int32_t K = placement->num_chunks;
    for (int32_t k = 0; k < K; k++) {
        double* of_stage = &load[placement->stage_of[k]];
        for (int32_t l = placement->chunks[k].layer_begin; l < placement->chunks[k].layer_end; l++) {
            *of_stage += piece_ns(problem, l < about.costs.num_enc_layers ? PART_ENC_LAYER : PART_DEC_LAYER);
        }
    }
    load[placement->stage_of[0]] += piece_ns(problem, PART_EMBEDDING);
    if (placement->head == HEAD_WHOLE) { load[placement->stage_of[K - 1]] += head; }
    for (int32_t s = 0; s < problem->P; s++) {
        if (placement->head != HEAD_WHOLE) {
            load[s] += head * (placement->head_begin[s + 1] - placement->head_begin[s]) / HEAD_UNITS;
        }
        sum += load[s] * load[s];
        if (load[s] > load[*slowest]) { *slowest = s; }
    }
    return sum;
}

static void check_no_layer_is_better_elsewhere(const PlanProblem* problem, const Placement* placement) {
    int32_t slowest = 0, ignored = 0, K = placement->num_chunks;
    double before = sum_of_squares(problem, placement, &slowest);
    for (int32_t from = 0; from < K; from++) {
        bool may_be_empty =
            from == K - 1 && placement->head == HEAD_WHOLE && !about.request.rules.head_has_layer;
        int32_t num = placement->chunks[from].layer_end - placement->chunks[from].layer_begin;
        if (placement->stage_of[from] != slowest || num < (may_be_empty ? 1 : 2)) { continue; }
        for (int32_t to = 0; to < K; to++) {
            if (placement->stage_of[to] == slowest) { continue; }
            Placement moved = *placement;
            for (int32_t k = from; k < to; k++) {
                moved.chunks[k].layer_end = --moved.chunks[k + 1].layer_begin;
            }
            for (int32_t k = from; k > to; k--) {
                moved.chunks[k - 1].layer_end = ++moved.chunks[k].layer_begin;
            }
            CHECK(sum_of_squares(problem, &moved, &ignored) >= before * (1 - 1e-6));
        }
    }
}

// --- laws ------------------------------------------------------------------------------------------------

static bool turns(const Placement* placement, int32_t P) {
    return placement->num_chunks > P && placement->stage_of[P] == P - 1;
}

static void check_kind(const Placement* placement, const PlanRequest* request) {
    int32_t P = request->P, K = placement->num_chunks;
    CHECK(K % P == 0);
    for (int32_t k = 0; k < K; k++) {
        bool back = turns(placement, P) && k / P % 2 == 1;
        CHECK_EQ(placement->stage_of[k], back ? P - 1 - k % P : k % P);
    }
    switch (request->placements) {
        case PLACEMENT_LINEAR: CHECK_EQ(K, P); break;
        case PLACEMENT_INTERLEAVED: CHECK(K > P && !turns(placement, P)); break;
        case PLACEMENT_VEE: CHECK(K > P && turns(placement, P)); break;
        case PLACEMENT_STACKS: CHECK(K % (2 * P) == 0); break;
        default: break;
    }
    if (request->heads == HEAD_CHOICE_WHOLE) { CHECK_EQ(placement->head, HEAD_WHOLE); }
    if (request->heads == HEAD_CHOICE_ROWS) { CHECK_EQ(placement->head, HEAD_BY_ROWS); }
    if (request->heads == HEAD_CHOICE_VOCABULARY) { CHECK_EQ(placement->head, HEAD_BY_VOCABULARY); }
}

static void places_are_what_is_asked_for(void) {
    Rng rng = rng_seed(seed);
    int32_t num_several = 0, num_shared = 0, num_stacks = 0;
    for (int32_t round = 0; round < 600; round++) {
        static Placement places[SEARCH_MAX_PLACES];
        PlanProblem problem;
        random_problem(&about, &rng, 20);
        about.request.placements = (PlacementChoice)rng_between(&rng, 0, PLACEMENT_COUNT - 1);
        about.request.heads = (HeadChoice)rng_between(&rng, 0, HEAD_CHOICE_COUNT - 1);
        about.request.choose_stages = round % 3 > 0;
        if (!init(&problem)) { continue; }
        int32_t num = search_places(places, &problem), P = problem.P;
        int32_t num_layers = about.costs.num_enc_layers + about.costs.num_dec_layers;
        CHECK(num >= 1 && num <= SEARCH_MAX_PLACES);
        for (int32_t i = 0; i < num; i++) {
            const Placement* place = &places[i];
            CHECK_OK(placement_check(place, P, num_layers, about.request.rules.head_has_layer));
            bool is_own = memcmp(place, &problem.placement, sizeof *place) == 0;
            if (is_own || P == 1) { continue; }
            if (about.request.placements == PLACEMENT_GIVEN) {
                CHECK_EQ(place->num_chunks, problem.placement.num_chunks);
            } else {
                check_kind(place, &about.request);
            }
            const PlacementRoom room = {&about.costs, problem.limit_bytes, P, ROOM_WANTED,
                                        about.request.rules.head_has_layer};
            if (about.request.choose_stages && placement_has_enough(&room, place)) {
                check_no_layer_is_better_elsewhere(&problem, place);
            }
            num_shared += place->head != HEAD_WHOLE;
            num_stacks += about.costs.num_dec_layers > 0 && place->num_chunks % (2 * P) == 0;
        }
        num_several += num > 1;
        if (test_failures > 0) {
            printf("seed %llu, round %d: P %d, kind %d, head %d\n", (unsigned long long)seed, round, P,
                   about.request.placements, about.request.heads);
            break;
        }
    }
    printf("     several places %d times, head shared %d times, %d over two stacks\n", num_several,
           num_shared, num_stacks);
    CHECK(num_several > 150 && num_shared > 150 && num_stacks > 20);
}

// Shares of random sizes, some of nothing.
static void share_unevenly(Placement* placement, int32_t P, Rng* rng) {
    placement_share_head(placement, (HeadSplit)rng_between(rng, HEAD_BY_ROWS, HEAD_BY_VOCABULARY), P);
    for (int32_t s = 1; s < P; s++) {
        placement->head_begin[s] = (int16_t)rng_between(rng, placement->head_begin[s - 1], HEAD_UNITS);
    }
}

// Whatever layers and stages may do. Where the placement is given, too, but its layers may move, units of the
// head may.
static void a_head_that_is_told_stays(void) {
    Rng rng = rng_seed(seed);
    int32_t num_plans = 0, num_given = 0;
    for (int32_t round = 0; round < 80; round++) {
        Arena arena = {0};
        Plan plan;
        random_problem(&about, &rng, 40);
        PlanRequest* request = &about.request;
        int32_t P = request->P;
        request->placements = (PlacementChoice)rng_between(&rng, 0, PLACEMENT_COUNT - 1);
        request->heads = HEAD_CHOICE_GIVEN;
        request->choose_stages = round % 4 > 0;
        request->effort = 3000;
        if (request->placement.num_chunks == 0) {
            placement_linear(&request->placement, request->placement.chunks, P);
        }
        share_unevenly(&request->placement, P, &rng);
        const Placement told = request->placement;
        Status status = plan_make(&plan, request, &about.costs, about.samples, about.num_samples, &arena);
        if (status == STATUS_OK) {
            bool is_given = request->placements == PLACEMENT_GIVEN;
            num_plans++;
            num_given += is_given;
            CHECK_EQ(plan.placement.head, told.head);
            for (int32_t s = 0; s <= P && !(is_given && request->choose_stages); s++) {
                CHECK_EQ(plan.placement.head_begin[s], told.head_begin[s]);
            }
            for (int32_t k = 0; k < told.num_chunks && is_given; k++) {
                CHECK_EQ(plan.placement.stage_of[k], told.stage_of[k]);
            }
        }
        arena_free(&arena);
        if (test_failures == 0) { continue; }
        printf("seed %llu, round %d: P %d, kind %d\n", (unsigned long long)seed, round, P,
               request->placements);
        break;
    }
    printf("     %d plans, %d of them of a given placement\n", num_plans, num_given);
    CHECK(num_plans > 30 && num_given > 4);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(places_are_what_is_asked_for);
    RUN(a_head_that_is_told_stays);
    return test_end();
}
