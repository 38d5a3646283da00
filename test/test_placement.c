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

// Even shares differ by one unit at most, and are all of the head.
static void heads_are_shared_by_all(void) {
    for (int32_t P = 1; P <= PLAN_MAX_STAGES; P++) {
        Placement placement;
        CHECK_OK(placement_make(&placement, PLACEMENT_LINEAR, false, P, P, 0));
        placement_share_head(&placement, HEAD_BY_ROWS, P);
        CHECK_OK(placement_check(&placement, P, P, false));
        for (int32_t s = 0; s < P; s++) {
            int32_t units = placement.head_begin[s + 1] - placement.head_begin[s];
            CHECK(placement_has_share(&placement, s) && units >= HEAD_UNITS / P &&
                  units <= HEAD_UNITS / P + 1);
        }
        placement_share_head(&placement, HEAD_WHOLE, P);
        CHECK(placement_is_linear(&placement, P) && !placement_has_share(&placement, 0));
    }
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

// --- placement room --------------------------------------------------------------------------------------
// model state that does not fit as layers lie: they move until it does, wherever
// some other layers of the same chunks would, by brute force over all of them; and nothing else changes.

static RandomProblem random_about;

static int64_t largest_state(const Placement* placement, int32_t P, const int64_t* limits, int64_t* over) {
    CostRank has[PLAN_MAX_STAGES];
    int64_t largest = 0;
    *over = INT64_MIN;
    cost_ranks_make(has, &random_about.costs, placement, P);
    for (int32_t s = 0; s < P; s++) {
        int64_t bytes = cost_rank_state_bytes(&random_about.costs, &has[s]);
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
        if (!stage_may_have(&placement->chunks[k], k, K, random_about.request.rules.head_has_layer)) {
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
        random_problem(&random_about, &rng, 4);
        int32_t P = rng_between(&rng, 2, 4), num_enc = random_about.costs.num_enc_layers;
        int32_t num_layers = num_enc + random_about.costs.num_dec_layers;
        Placement placement;
        PlacementChoice kind = (PlacementChoice)rng_between(&rng, PLACEMENT_LINEAR, PLACEMENT_VEE);
        if (num_layers > 12 || placement_make(&placement, kind, false, P, num_enc,
                                              random_about.costs.num_dec_layers) != STATUS_OK) {
            continue;
        }
        placement_share_head(&placement, (HeadSplit)rng_below(&rng, HEAD_COUNT), P);
        int64_t limits[PLAN_MAX_STAGES], over, largest = largest_state(&placement, P, NULL, &over);
        for (int32_t s = 0; s < P; s++) { limits[s] = largest * rng_between(&rng, 70, 120) / 100; }
        PlacementRoom room = {.costs = &random_about.costs,
                              .limit_bytes = limits,
                              .P = P,
                              .wanted = ROOM_WANTED,
                              .head_has_layer = random_about.request.rules.head_has_layer};
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
        random_problem(&random_about, &rng, 4);
        int32_t P = random_about.request.P, num_enc = random_about.costs.num_enc_layers;
        int32_t num_layers = num_enc + random_about.costs.num_dec_layers;
        Placement fixed;
        if (P < 2 || placement_make(&fixed, PLACEMENT_LINEAR, false, P, num_enc,
                                    random_about.costs.num_dec_layers) != STATUS_OK) {
            continue;
        }
        placement_share_head(&fixed, HEAD_BY_VOCABULARY, P);
        Placement moved = fixed;
        int64_t limits[PLAN_MAX_STAGES], over, largest = largest_state(&fixed, P, NULL, &over);
        for (int32_t s = 0; s < P; s++) { limits[s] = largest * rng_between(&rng, 80, 110) / 100; }
        PlacementRoom room = {
            .costs = &random_about.costs, .limit_bytes = limits, .P = P, .wanted = ROOM_WANTED};
        int64_t lack = placement_make_room(&fixed, &room, false);
        int64_t less = placement_make_room(&moved, &room, true);
        CHECK_OK(placement_check(&moved, P, num_layers, false));
        num_less += less < lack;
    }
    printf("     shares leave more room %d times\n", num_less);
    CHECK(num_less > 20);
}

// --- stage split -----------------------------------------------------------------------------------------

static CostModel costs;
static PlanSample samples[64];

typedef struct {
    double slowest, squares;
} Grade;

typedef struct {
    int32_t P, L;
    bool head_has_layer;
    double part_ns[2][PART_COUNT], part_bytes[3][PART_COUNT];  // kept, recomputed; the longest
    int64_t limit_bytes;
    LayerRange stages[8];  // the split under trial
    Grade best;
} Brute;

static Grade grade_of(const Brute* brute) {
    Grade grade = {0, 0};
    for (int32_t s = 0; s < brute->P; s++) {
        const LayerRange* layers = &brute->stages[s];
        CostStage stage = cost_stage_make(&costs, layers, s, brute->P);
        double ns[2], bytes[3], free_bytes = INFINITY, share = 0, held = brute->P - s + 1;
        for (int k = 2; k >= 0; k--) {
            const double *part_ns = brute->part_ns[k % 2], *part_bytes = brute->part_bytes[k];
            ns[k % 2] = (s == 0) * part_ns[PART_EMBEDDING] + (s == brute->P - 1) * part_ns[PART_HEAD];
            bytes[k] = (s == 0) * part_bytes[PART_EMBEDDING] + (s == brute->P - 1) * part_bytes[PART_HEAD];
            for (int32_t l = layers->layer_begin; l < layers->layer_end; l++) {
                int part = l < costs.num_enc_layers ? PART_ENC_LAYER : PART_DEC_LAYER;
                ns[k % 2] += part_ns[part];
                bytes[k] += part_bytes[part];
            }
        }
        if (brute->limit_bytes > 0) {
            free_bytes = (double)(brute->limit_bytes - cost_state_bytes(&costs, &stage));
            if (free_bytes < held * bytes[0]) {
                share = fmin((held * bytes[0] - free_bytes) / (held * (bytes[0] - bytes[1]) + 1), 1);
            }
        }
        double stage_ns = (1 - share) * ns[0] + share * ns[1];
        if (free_bytes <= 0 || free_bytes < fmax((held - 1) * bytes[1], bytes[2])) { stage_ns = INFINITY; }
        grade.slowest = fmax(grade.slowest, stage_ns);
        grade.squares += stage_ns * stage_ns;
    }
    return grade;
}

static bool is_better(Grade a, Grade b) {
    bool equal = fabs(a.slowest / b.slowest - 1) < 1e-9;
    return equal ? a.squares < b.squares : a.slowest < b.slowest;
}

static void try_all(Brute* brute, int32_t s, int32_t begin) {
    bool is_last = s == brute->P - 1;
    for (int32_t end = is_last ? brute->L : begin + 1; end <= brute->L; end++) {
        brute->stages[s] = (LayerRange){begin, end};
        if (!is_last) {
            try_all(brute, s + 1, end);
        } else if (stage_may_have(&brute->stages[s], s, brute->P, brute->head_has_layer)) {
            Grade grade = grade_of(brute);
            if (!isinf(grade.slowest) && is_better(grade, brute->best)) { brute->best = grade; }
        }
    }
}

// Against every way to cut the layers; costs are linear, so it does not matter how samples are grouped. With
// a heavy head and without, with memory that matters and without.
static void split_equals_brute_force(void) {
    Rng rng = rng_seed(seed);
    int num_alone = 0, num_limited = 0, num_impossible = 0, num_both = 0;
    for (int round = 0; round < 400; round++) {
        LayerRange stages[PLAN_MAX_STAGES];
        int32_t enc = rng_between(&rng, 1, 8), dec = round % 3 == 0 ? rng_between(&rng, 1, 4) : 0;
        int32_t L = enc + dec, P = rng_between(&rng, 1, L < 6 ? L : 6), num = rng_between(&rng, 1, 40);
        linear_cost_model(&costs, &rng, enc, dec);
        for (int mode = 0; mode < RECOMPUTE_COUNT && round % 2; mode++) {
            cost_formula_add_line(&costs.parts[mode][PART_HEAD].time_ns[JOB_F], FEATURE_ENC_TOKENS,
                                  rng_between(&rng, 10000, 40000));
        }
        random_samples(samples, num, &rng, (int)rng_below(&rng, 4), dec > 0);
        PlanRequest request = {.P = P, .R = rng_between(&rng, 1, 2)};
        request.rules.head_has_layer = round % 4 == 3;
        Brute brute = {
            .P = P, .L = L, .head_has_layer = request.rules.head_has_layer, .best = {1e300, 1e300}};
        MbShape all = {0};
        for (int32_t i = 0; i < num; i++) {
            mb_shape_add(&all, samples[i].enc_tokens, samples[i].dec_tokens, samples[i].supervised_tokens);
        }
        double even = 0;
        for (int part = 0; part < PART_COUNT; part++) {
            for (int k = 0; k < 2; k++) {
                const CostPartMode* mode = &costs.parts[k == 0 ? RECOMPUTE_NONE : RECOMPUTE_FULL][part];
                for (int kind = JOB_F; kind < JOB_COUNT; kind++) {
                    brute.part_ns[k][part] += cost_formula_value(&mode->time_ns[kind], &all);
                }
                brute.part_bytes[k][part] =
                    cost_formula_value(&mode->stored_bytes, &all) / fmin(4 * P * request.R, num);
            }
            for (int32_t i = 0; i < num; i++) {
                MbShape one = {0};
                mb_shape_add(&one, samples[i].enc_tokens, samples[i].dec_tokens,
                             samples[i].supervised_tokens);
                double bytes = cost_formula_value(&costs.parts[RECOMPUTE_FULL][part].stored_bytes, &one);
                brute.part_bytes[2][part] = fmax(brute.part_bytes[2][part], bytes);
            }
            even += (part == PART_ENC_LAYER   ? enc
                     : part == PART_DEC_LAYER ? dec
                                              : 1) *
                    ((double)costs.part_state_bytes[part] +
                     fmax(brute.part_bytes[2][part], P * brute.part_bytes[0][part])) /
                    P;
        }
        if (rng_below(&rng, 3) > 0) {
            brute.limit_bytes = request.memory_limit_bytes =
                (int64_t)(even * rng_between(&rng, 20, 150) / 100) + 1;
        }
        CHECK_OK(stage_split_make(stages, &request, &costs, samples, num, 1));
        try_all(&brute, 0, 0);
        bool is_impossible = brute.best.slowest == 1e300;
        if (is_impossible) { brute.limit_bytes = 0, try_all(&brute, 0, 0); }
        memcpy(brute.stages, stages, sizeof brute.stages);
        Grade found = grade_of(&brute);
        CHECK_NEAR(found.slowest / brute.best.slowest, 1, 1e-5);
        CHECK_NEAR(found.squares / brute.best.squares, 1, 1e-5);
        for (int32_t s = 0, next = 0; s < P; next = stages[s++].layer_end) {
            CHECK_EQ(stages[s].layer_begin, next);
            CHECK(stage_may_have(&stages[s], s, P, brute.head_has_layer));
            num_both += stages[s].layer_begin < enc && stages[s].layer_end > enc;
        }
        CHECK_EQ(stages[P - 1].layer_end, L);
        num_alone += stages[P - 1].layer_begin == L;
        num_limited += brute.limit_bytes > 0;
        num_impossible += is_impossible;
    }
    printf("     head alone %d, limited %d, impossible %d, both stacks %d\n", num_alone, num_limited,
           num_impossible, num_both);
    CHECK(num_alone > 10 && num_limited > 60 && num_impossible > 10 && num_both > 10);
}

static void too_many_stages_are_refused(void) {
    LayerRange stages[PLAN_MAX_STAGES];
    Rng rng = rng_seed(seed);
    linear_cost_model(&costs, &rng, 3, 0);
    random_samples(samples, 4, &rng, 0, false);
    CHECK_FAILS(stage_split_make(stages, &(PlanRequest){.P = 4, .R = 1}, &costs, samples, 4, 1),
                STATUS_BAD_OPTION, "--stages 4: the model has 3");
    CHECK_FAILS(stage_split_make(stages, &(PlanRequest){.P = 0, .R = 1}, &costs, samples, 4, 1),
                STATUS_BAD_OPTION, "give 1 to 3");
    CHECK_OK(stage_split_make(stages, &(PlanRequest){.P = 3, .R = 1}, &costs, samples, 4, 1));
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
    RUN(heads_are_shared_by_all);
    RUN(text_says_everything);
    RUN(bad_text_is_refused);
    RUN(words_say_what_is_left_to_choose);
    RUN(a_placement_is_of_its_shape);
    RUN(room_is_found_where_there_is_some);
    RUN(shares_make_room_too);
    RUN(split_equals_brute_force);
    RUN(too_many_stages_are_refused);
    RUN(lists_are_read);
    return test_end();
}
