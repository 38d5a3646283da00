// test_placement.c -- placements: made, with room, and split into stages.
#include "../dynapipe_plugin/plan/placement.h"
#include "../dynapipe_plugin/plan/types.h"
#include "../util/numbers.h"
#include "cost_one.h"
#include "random_plan.h"
#include "random_problem.h"
#include "test.h"

#include <math.h>

static uint64_t seed;

// --- placement make --------------------------------------------------------------------------------------
// placements by shape and from text: what each shape is, what is refused.

// Every layer in one chunk, chunks as large as any or one more.
static void check_even(const Placement* placement, int32_t begin, int32_t end, int32_t first, int32_t num) {
    int32_t least = INT32_MAX, most = 0;
    for (int32_t k = first; k < first + num; k++) {
        const LayerRange* layers = &placement->chunks[k];
        int32_t has = layers->layer_end - layers->layer_begin;
        CHECK_EQ(layers->layer_begin, k == first ? begin : placement->chunks[k - 1].layer_end);
        least = has < least ? has : least;
        most = has > most ? has : most;
    }
    CHECK_EQ(placement->chunks[first + num - 1].layer_end, end);
    CHECK(least >= 1 && most <= least + 1);
}

static void shapes_are_as_drawn(void) {
    Rng rng = rng_seed(seed);
    for (int32_t round = 0; round < 300; round++) {
        int32_t P = rng_between(&rng, 1, 12), enc = rng_between(&rng, P, 4 * P),
                dec = rng_between(&rng, P, 4 * P);
        Placement placement;
        CHECK_OK(placement_make(&placement, PLACEMENT_LINEAR, false, P, enc, dec));
        CHECK(placement_is_linear(&placement, P));
        check_even(&placement, 0, enc + dec, 0, P);
        CHECK_OK(placement_make(&placement, PLACEMENT_INTERLEAVED, false, P, enc, dec));
        check_even(&placement, 0, enc + dec, 0, 2 * P);
        for (int32_t k = 0; k < 2 * P; k++) { CHECK_EQ(placement.stage_of[k], k % P); }
        CHECK_OK(placement_make(&placement, PLACEMENT_VEE, false, P, enc, dec));
        for (int32_t k = 0; k < P; k++) {
            CHECK_EQ(placement.stage_of[k], placement.stage_of[2 * P - 1 - k]);
        }
        CHECK_EQ(placement.stage_of[0], 0);
        for (int32_t turned = 0; turned < 2; turned++) {
            CHECK_OK(placement_make(&placement, PLACEMENT_STACKS, turned, P, enc, dec));
            check_even(&placement, 0, enc, 0, P);
            check_even(&placement, enc, enc + dec, P, P);
            CHECK_EQ(placement.stage_of[P], turned ? P - 1 : 0);
            CHECK_EQ(placement.stage_of[2 * P - 1], turned ? 0 : P - 1);
        }
        CHECK_OK(placement_check(&placement, P, enc + dec, false));
    }
    Placement untouched = {.num_chunks = 77};
    CHECK_FAILS(placement_make(&untouched, PLACEMENT_VEE, false, 4, 7, 0), STATUS_BAD_OPTION,
                "takes 8 layers");
    CHECK_FAILS(placement_make(&untouched, PLACEMENT_STACKS, false, 4, 24, 3), STATUS_BAD_OPTION,
                "takes 4 decoder layers");
    CHECK_EQ(untouched.num_chunks, 77);
}

// What any placement is, is what its text is read as.
static void text_says_everything(void) {
    Rng rng = rng_seed(seed + 1);
    for (int32_t round = 0; round < 500; round++) {
        char text[4096] = "", head[1024];
        int32_t P = rng_between(&rng, 1, 9), L = rng_between(&rng, P, 5 * P), chars = 0;
        Placement drawn, read = {0};
        random_placement(&drawn, &rng, P, L);
        for (int32_t k = 0; k < drawn.num_chunks; k++) {
            chars += snprintf(text + chars, sizeof text - (size_t)chars, "%s%d:%d", k > 0 ? "," : "",
                              drawn.stage_of[k], drawn.chunks[k].layer_end - drawn.chunks[k].layer_begin);
        }
        chars = snprintf(head, sizeof head, "%s", head_names[drawn.head]);
        for (int32_t s = 0; s < P && drawn.head != HEAD_WHOLE; s++) {
            chars += snprintf(head + chars, sizeof head - (size_t)chars, "%c%d", s > 0 ? ',' : ':',
                              drawn.head_begin[s + 1] - drawn.head_begin[s]);
        }
        CHECK_OK(placement_parse_head(&read, P, head));
        CHECK_OK(placement_parse(&read, P, L, 0, false, text));
        CHECK(memcmp(&read, &drawn, sizeof read) == 0);
    }
}

static void bad_text_is_refused(void) {
    static const char* const chunks[] = {
        "",        "zigzag",   "0",       "0:",          "0:2,1:2,", "0:2,,1:2",
        "0:2,2:2", "0:2,-1:2", "0:2 1:2", "0:2;1:2",     "0:+2,1:2", "0:2,1:2x",
        "0:2,1:3", "0:4",      "0:0,1:4", "0:1,1:0,0:3", "1:4,1:0",  "0:99999999999999999999,1:2"};
    static const char* const heads[] = {
        "",       "half",          "whole:512,512",     "rows:",         "rows:1024",
        "rows:1", "rows:512,512,", "rows:512,511",      "rows:1024,-1",  "rows:512,512,0",
        "vocab",  "vocabulary ",   "vocabulary:1e3,24", "rows:1024,1024"};
    Placement before = {.num_chunks = 5, .head = HEAD_BY_ROWS}, placement = before;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        CHECK_FAILS(placement_parse(&placement, 2, 4, 0, false, chunks[i]), STATUS_BAD_OPTION, "--->");
    }
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        CHECK_FAILS(placement_parse_head(&placement, 2, heads[i]), STATUS_BAD_OPTION, "--head");
    }
    CHECK(memcmp(&placement, &before, sizeof before) == 0);
    CHECK_OK(placement_parse(&placement, 2, 4, 0, false, "0:2,1:2,0:0"));
    CHECK_EQ(placement.head, HEAD_BY_ROWS);
    placement = before;
    CHECK(placement_parse(&placement, 2, 4, 0, true, "0:2,1:2,0:0") != STATUS_OK);
}

// A word leaves the choice, a list takes it away; both leave what they do not speak of.
static void words_say_what_is_left_to_choose(void) {
    PlanRequest request = {.P = 2, .choose_stages = true};
    placement_linear(&request.placement, request.placement.chunks, 2);
    CHECK_OK(placement_words_take(&request, 4, 0, NULL, NULL));
    CHECK(request.placements == PLACEMENT_AUTO && request.heads == HEAD_CHOICE_AUTO && request.choose_stages);
    CHECK_OK(placement_words_take(&request, 4, 0, "vee", "rows:24,1000"));
    CHECK(request.placements == PLACEMENT_VEE && request.choose_stages && request.placement.num_chunks == 4);
    CHECK(request.heads == HEAD_CHOICE_GIVEN && request.placement.head == HEAD_BY_ROWS);
    CHECK_EQ(request.placement.head_begin[1], 24);
    CHECK_OK(placement_words_take(&request, 4, 0, "1:3,0:1", "vocabulary"));
    CHECK(request.placements == PLACEMENT_GIVEN && !request.choose_stages);
    CHECK(request.heads == HEAD_CHOICE_VOCABULARY && request.placement.head_begin[1] == HEAD_UNITS / 2);
    CHECK_EQ(request.placement.chunks[0].layer_end, 3);
    CHECK_FAILS(placement_words_take(&request, 4, 0, "1:3,0:2", NULL), STATUS_BAD_OPTION, "5 of 4 layers");
    CHECK_FAILS(placement_words_take(&request, 3, 0, "interleaved", NULL), STATUS_BAD_OPTION,
                "takes 4 layers");
    CHECK_OK(placement_words_check(2, "stacks", "rows:24,1000"));
    CHECK_OK(placement_words_check(2, "1:3,0:2", NULL));  // of which model is not known
    CHECK_FAILS(placement_words_check(2, "vees", NULL), STATUS_BAD_OPTION, "---> auto, linear, interleaved");
    CHECK_FAILS(placement_words_check(3, NULL, "rows:24,1000"), STATUS_BAD_OPTION, "for each of 3 stages");
}

// The plain placement of a shape is of that shape whatever its layers; of another shape it is only where both
// are drawn alike.
static void a_placement_is_of_its_shape(void) {
    static const bool expected[4][4] = {{true, false, false, false},
                                        {false, true, false, true},
                                        {false, false, true, true},
                                        {false, true, false, true}};
    for (int32_t P = 2; P <= 5; P++) {
        for (int made = 0; made < 4; made++) {
            Placement placement;
            CHECK_OK(
                placement_make(&placement, (PlacementChoice)(PLACEMENT_LINEAR + made), false, P, 12, 12));
            placement.chunks[0].layer_end = placement.chunks[1].layer_begin = 1;
            for (int kind = 0; kind < 4; kind++) {
                CHECK_EQ(placement_is_of(&placement, (PlacementChoice)(PLACEMENT_LINEAR + kind), P),
                         expected[made][kind]);
            }
            CHECK(placement_is_of(&placement, PLACEMENT_AUTO, P));
            Placement twice = placement;  // down and up twice
            for (int32_t k = 0; k < 2 * P; k++) { twice.stage_of[2 * P + k] = placement.stage_of[k]; }
            twice.num_chunks = 4 * P;
            CHECK_EQ(placement_is_of(&twice, PLACEMENT_VEE, P), made == 2);
            placement.stage_of[P - 1] = 0;
            for (int kind = 0; kind < 4; kind++) {
                CHECK(!placement_is_of(&placement, (PlacementChoice)(PLACEMENT_LINEAR + kind), P));
            }
        }
    }
}

// --- balanced, and with room -----------------------------------------------------------------------------

static RandomProblem about;

typedef double Grade(const Placement* placement, const PlacementScale* scale);

static double work_squares(const Placement* placement, const PlacementScale* scale) {
    double sum = 0;
    for (int32_t s = 0; s < scale->P; s++) {
        double ns = 0;
        for (int32_t k = 0; k < placement->num_chunks; k++) {
            int32_t count[PIECE_COUNT];
            CostStage chunk = cost_chunk_make(scale->costs, placement, k);
            cost_stage_parts(count, scale->costs, &chunk);
            for (int part = 0; part < PART_COUNT && placement->stage_of[k] == s; part++) {
                ns += count[part] * scale->part_ns[part] * scale->slow[s];
            }
        }
        sum += ns * ns;
    }
    return sum;
}

// The most by which a stage's state exceeds its limit.
static double over_bytes(const Placement* placement, const PlacementScale* scale) {
    CostRank has[PLAN_MAX_STAGES];
    double over = -INFINITY;
    cost_ranks_make(has, scale->costs, placement, scale->P);
    for (int32_t s = 0; s < scale->P; s++) {
        over = fmax(over, (double)(cost_rank_state_bytes(scale->costs, &has[s]) - scale->limit_bytes[s]));
    }
    return over;
}

// The least grade over all numbers of layers of the chunks from `k` on.
static double least_of(Placement* placement, int32_t k, int32_t begin, int32_t L, Grade* grade,
                       const PlacementScale* scale) {
    int32_t K = placement->num_chunks;
    double least = INFINITY;
    for (int32_t end = k == K - 1 ? L : begin + 1; end <= L; end++) {
        placement->chunks[k] = (LayerRange){begin, end};
        bool has_layer = scale->head_has_layer || placement->head != HEAD_WHOLE;
        if (!stage_may_have(&placement->chunks[k], k, K, has_layer)) { continue; }
        least = fmin(least,
                     k < K - 1 ? least_of(placement, k + 1, end, L, grade, scale) : grade(placement, scale));
    }
    return least;
}

// Single moves, so not always the best of all numbers of layers (by brute force), but nearly so; room
// wherever there is some, in nearly all cases. Nothing but layers changes, or with moves_head, shares by
// vocabulary.
static void balance_and_room_are_nearly_the_best(void) {
    Rng rng = rng_seed(seed);
    int num = 0, num_best = 0, num_fitting = 0, num_found = 0, num_shares = 0;
    for (int round = 0; round < 600; round++) {
        random_problem(&about, &rng, 20);
        int32_t P = rng_between(&rng, 2, 4), num_enc = about.costs.num_enc_layers,
                num_dec = about.costs.num_dec_layers, L = num_enc + num_dec;
        PlacementChoice kind = (PlacementChoice)rng_between(&rng, PLACEMENT_LINEAR, PLACEMENT_VEE);
        Placement start, all, moved;
        about.request.P = P;
        about.request.rules.head_has_layer = round % 4 == 3;
        if (L > 12 || placement_make(&start, kind, false, P, num_enc, num_dec) != STATUS_OK) { continue; }
        if (round % 2) { placement_share_head(&start, (HeadSplit)rng_below(&rng, HEAD_COUNT), P); }
        PlacementScale scale =
            placement_scale_make(&about.request, &about.costs, about.samples, about.num_samples, ROOM_WANTED);
        double largest = over_bytes(&start, &scale);
        for (int32_t s = 0; s < P; s++) {
            scale.limit_bytes[s] = (int64_t)largest * rng_between(&rng, 70, 120) / 100;
        }
        moved = all = start;
        placement_balance(&moved, &scale);
        CHECK_OK(placement_check(&moved, P, L, scale.head_has_layer));
        if (start.head == HEAD_WHOLE) {
            double best = least_of(&all, 0, 0, L, work_squares, &scale), found = work_squares(&moved, &scale);
            CHECK(found <= best * 1.3);
            num++;
            num_best += found <= best * 1.01;
        }
        bool fits = least_of(&all, 0, 0, L, over_bytes, &scale) < 0;
        moved = start;
        placement_make_room(&moved, &scale, false);
        CHECK_OK(placement_check(&moved, P, L, scale.head_has_layer));
        CHECK(memcmp(moved.stage_of, start.stage_of, sizeof start.stage_of) == 0);
        CHECK(memcmp(moved.head_begin, start.head_begin, sizeof start.head_begin) == 0);
        CHECK(fits || over_bytes(&moved, &scale) >= 0);
        num_fitting += fits;
        num_found += fits && over_bytes(&moved, &scale) < 0;
        placement_make_room(&moved, &scale, true);
        CHECK_OK(placement_check(&moved, P, L, scale.head_has_layer));
        num_shares += memcmp(moved.head_begin, start.head_begin, sizeof start.head_begin) != 0;
    }
    printf("     balanced best %d of %d times; room %d of %d times; shares moved %d times\n", num_best, num,
           num_found, num_fitting, num_shares);
    CHECK(num > 100 && num_best * 100 > num * 90 && num_fitting > 100 && num_shares > 10);
    CHECK(num_found * 100 >= num_fitting * 97);
}

// Every one that the request allows is legal, and of the kind and head that were asked for.
static void a_field_is_what_was_asked_for(void) {
    static Placement field[PLACEMENT_FIELD];
    Rng rng = rng_seed(seed + 1);
    for (int round = 0; round < 300; round++) {
        int32_t num = 0;
        PlanRequest* request = &about.request;
        random_problem(&about, &rng, 20);
        int32_t L = about.costs.num_enc_layers + about.costs.num_dec_layers;
        request->choose_stages = round % 2;
        request->placements = (PlacementChoice)rng_below(&rng, PLACEMENT_COUNT);
        request->heads = (HeadChoice)rng_below(&rng, HEAD_CHOICE_COUNT);
        request->memory_limit_bytes = rng_below(&rng, 2) ? 4000000 : 0;
        Status status = placement_field(field, &num, request, &about.costs, about.samples, 20, ROOM_WANTED);
        if (status != STATUS_OK) { CHECK(strstr(status_message(), "takes") != NULL); }
        CHECK(status != STATUS_OK || (num > 0 && num <= PLACEMENT_FIELD));
        for (int32_t i = 0; i < num; i++) {
            CHECK_OK(placement_check(&field[i], request->P, L, request->rules.head_has_layer));
            CHECK(request->P == 1 || placement_is_of(&field[i], request->placements, request->P));
            CHECK(request->heads < HEAD_CHOICE_WHOLE ||
                  field[i].head == (uint8_t)request->heads - HEAD_CHOICE_WHOLE);
        }
        request->P = L + 1;
        CHECK_FAILS(placement_field(field, &num, request, &about.costs, about.samples, 20, ROOM_WANTED),
                    STATUS_BAD_OPTION, "--stages");
    }
}

static void lists_are_read(void) {
    const char* good = "4,4,3,1";
    LayerRange out[4];
    CHECK_OK(stage_split_parse(out, 4, 12, true, good));
    CHECK_EQ(out[2].layer_begin, 8);
    CHECK_EQ(out[2].layer_end, 11);
    CHECK_EQ(out[3].layer_end, 12);
    CHECK_OK(stage_split_parse(out, 2, 12, false, "12,0"));
    CHECK_EQ(stage_split_parse(out, 2, 12, true, "12,0"), STATUS_BAD_OPTION);
    CHECK_OK(stage_split_parse(out, 1, 12, false, "12"));
    CHECK_EQ(stage_split_parse(out, 1, 0, false, "0"), STATUS_BAD_OPTION);
    const char* bad[] = {"",         "4,4,4",    "4,4,3,1,", "4,4,3,1,0",
                         "4,4,,4",   "4,4,3, 1", "+4,4,3,1", "0,4,4,4",
                         "4,4,-3,7", "4,4,3,2",  "4,4,3,1 ", "4,4,2,1",
                         "x",        "4;4;3;1",  "12,0,0,0", "4,4,3,99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_EQ(stage_split_parse(out, 4, 12, false, bad[i]), STATUS_BAD_OPTION);
        CHECK(strstr(status_message(), bad[i]) != NULL &&
              strstr(status_message(), "---> give 4 numbers") != NULL);
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(shapes_are_as_drawn);
    RUN(text_says_everything);
    RUN(bad_text_is_refused);
    RUN(words_say_what_is_left_to_choose);
    RUN(a_placement_is_of_its_shape);
    RUN(balance_and_room_are_nearly_the_best);
    RUN(a_field_is_what_was_asked_for);
    RUN(lists_are_read);
    return test_end();
}
