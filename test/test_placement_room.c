// test_placement_room.c -- model state that does not fit as layers lie: they move until it does, wherever
// some other layers of the same chunks would, by brute force over all of them; and nothing else changes.
#include "../dynapipe_plugin/plan/placement.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem about;

static int64_t largest_state(const Placement* placement, int32_t P, const int64_t* limits, int64_t* over) {
    CostRank has[PLAN_MAX_STAGES];
    int64_t largest = 0;
    *over = INT64_MIN;
    cost_ranks_make(has, &about.costs, placement, P);
    for (int32_t s = 0; s < P; s++) {
        int64_t bytes = cost_rank_state_bytes(&about.costs, &has[s]);
        largest = bytes > largest ? bytes : largest;
        if (limits != NULL && bytes - limits[s] > *over) { *over = bytes - limits[s]; }
    }
    return largest;
}

// The least that the fullest stage may be over, over all numbers of layers of the chunks from `k` on.
static int64_t least_over(Placement* placement, int32_t k, int32_t begin, int32_t num_layers, int32_t P,
                          const int64_t* limits) {
    int32_t K = placement->num_chunks;
    int64_t least = INT64_MAX, over;
    if (k == K - 1) {
        placement->chunks[k] = (LayerRange){begin, num_layers};
        if (!stage_may_have(&placement->chunks[k], k, K, about.request.rules.head_has_layer)) {
            return INT64_MAX;
        }
        largest_state(placement, P, limits, &over);
        return over;
    }
    for (int32_t end = begin + 1; end <= num_layers; end++) {
        placement->chunks[k] = (LayerRange){begin, end};
        over = least_over(placement, k + 1, end, num_layers, P, limits);
        if (over < least) { least = over; }
    }
    return least;
}

static void room_is_found_where_there_is_some(void) {
    Rng rng = rng_seed(seed);
    int32_t num_fitting = 0, num_found = 0, num_moved = 0, num_hopeless = 0;
    for (int32_t round = 0; round < 600; round++) {
        random_problem(&about, &rng, 4);
        int32_t P = rng_between(&rng, 2, 4), num_enc = about.costs.num_enc_layers;
        int32_t num_layers = num_enc + about.costs.num_dec_layers;
        Placement placement;
        PlacementChoice kind = (PlacementChoice)rng_between(&rng, PLACEMENT_LINEAR, PLACEMENT_VEE);
        if (num_layers > 12 ||
            placement_make(&placement, kind, false, P, num_enc, about.costs.num_dec_layers) != STATUS_OK) {
            continue;
        }
        placement_share_head(&placement, (HeadSplit)rng_below(&rng, HEAD_COUNT), P);
        int64_t limits[PLAN_MAX_STAGES], over, largest = largest_state(&placement, P, NULL, &over);
        for (int32_t s = 0; s < P; s++) { limits[s] = largest * rng_between(&rng, 70, 120) / 100; }
        PlacementRoom room = {.costs = &about.costs,
                              .limit_bytes = limits,
                              .P = P,
                              .wanted = ROOM_WANTED,
                              .head_has_layer = about.request.rules.head_has_layer};
        Placement all = placement, before = placement;
        bool fits = least_over(&all, 0, 0, num_layers, P, limits) < 0;
        placement_make_room(&placement, &room, false);
        CHECK_OK(placement_check(&placement, P, num_layers, room.head_has_layer));
        for (int32_t k = 0; k < before.num_chunks; k++) {
            CHECK_EQ(placement.stage_of[k], before.stage_of[k]);
        }
        for (int32_t s = 0; s <= P && before.head != HEAD_WHOLE; s++) {
            CHECK_EQ(placement.head_begin[s], before.head_begin[s]);
        }
        largest_state(&placement, P, limits, &over);
        CHECK(placement_has_room(&room, &placement) == (over < 0));
        num_moved += !placement_equal(&before, &placement, P);
        num_fitting += fits;
        num_found += fits && over < 0;
        num_hopeless += !fits;
        CHECK(fits || over >= 0);
        if (test_failures > 0) {
            printf("seed %llu, round %d\n", (unsigned long long)seed, round);
            break;
        }
    }
    printf("     fits some way %d times, found %d times; moved %d times; %d times not at all\n", num_fitting,
           num_found, num_moved, num_hopeless);
    CHECK(num_fitting > 100 && num_hopeless > 10 && num_moved > 100);
    CHECK(num_found * 100 >= num_fitting * 97);  // single moves, so not always
}

// Shares of a head by vocabulary move where they may.
static void shares_make_room_too(void) {
    Rng rng = rng_seed(seed + 1);
    int32_t num_less = 0;
    for (int32_t round = 0; round < 300; round++) {
        random_problem(&about, &rng, 4);
        int32_t P = about.request.P, num_enc = about.costs.num_enc_layers;
        int32_t num_layers = num_enc + about.costs.num_dec_layers;
        Placement fixed;
        if (P < 2 || placement_make(&fixed, PLACEMENT_LINEAR, false, P, num_enc,
                                    about.costs.num_dec_layers) != STATUS_OK) {
            continue;
        }
        placement_share_head(&fixed, HEAD_BY_VOCABULARY, P);
        Placement moved = fixed;
        int64_t limits[PLAN_MAX_STAGES], over, largest = largest_state(&fixed, P, NULL, &over);
        for (int32_t s = 0; s < P; s++) { limits[s] = largest * rng_between(&rng, 80, 110) / 100; }
        PlacementRoom room = {.costs = &about.costs, .limit_bytes = limits, .P = P, .wanted = ROOM_WANTED};
        int64_t lack = placement_make_room(&fixed, &room, false);
        int64_t less = placement_make_room(&moved, &room, true);
        CHECK_OK(placement_check(&moved, P, num_layers, false));
        num_less += less < lack;
    }
    printf("     shares leave more room %d times\n", num_less);
    CHECK(num_less > 20);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(room_is_found_where_there_is_some);
    RUN(shares_make_room_too);
    return test_end();
}
