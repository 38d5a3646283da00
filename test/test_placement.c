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

// Layers [begin, end), each block in one chunk, chunks as large as any or a layer more; where there are fewer
// layers than chunks, a block more.
static void check_even(const Placement* placement, const PlanChain* chain, int32_t begin, int32_t end,
                       int32_t first, int32_t num) {
    const bool whole = end - begin >= num;
    double least = INFINITY, most = 0;
    for (int32_t k = first; k < first + num; k++) {
        const BlockRange* blocks = &placement->chunks[k];
        double has = whole ? plan_chain_length(chain, blocks) : blocks->end - blocks->begin;
        CHECK_EQ(blocks->begin,
                 k == first ? plan_chain_block_of(chain, begin) : placement->chunks[k - 1].end);
        CHECK(!whole || has == floor(has));
        least = fmin(least, has);
        most = fmax(most, has);
    }
    CHECK_EQ(placement->chunks[first + num - 1].end, plan_chain_block_of(chain, end));
    CHECK(least >= 1 && most <= least + 1);
}

static PlanChain random_chain(Rng* rng, int32_t num_enc, int32_t num_dec) {
    PlanChain chain = {num_enc, num_dec, rng_between(rng, 1, 3), rng_between(rng, 1, 3), rng_below(rng, 2)};
    return chain;
}

static void shapes_are_as_drawn(void) {
    Rng rng = rng_seed(seed);
    for (int32_t round = 0; round < 300; round++) {
        int32_t P = rng_between(&rng, 1, 12), enc = rng_between(&rng, (P + 1) / 2, 4 * P),
                dec = rng_between(&rng, (P + 1) / 2, 4 * P);
        PlanChain chain = random_chain(&rng, enc, dec);
        Placement placement;
        if (enc < P) { chain.enc_blocks = rng_between(&rng, 2, 3); }
        if (dec < P) { chain.dec_blocks = rng_between(&rng, 2, 3); }
        CHECK_OK(placement_make(&placement, PLACEMENT_LINEAR, false, P, &chain));
        CHECK(placement_is_linear(&placement, P));
        check_even(&placement, &chain, 0, enc + dec, 0, P);
        CHECK_OK(placement_make(&placement, PLACEMENT_INTERLEAVED, false, P, &chain));
        check_even(&placement, &chain, 0, enc + dec, 0, 2 * P);
        for (int32_t k = 0; k < 2 * P; k++) { CHECK_EQ(placement.stage_of[k], k % P); }
        CHECK_OK(placement_make(&placement, PLACEMENT_VEE, false, P, &chain));
        for (int32_t k = 0; k < P; k++) {
            CHECK_EQ(placement.stage_of[k], placement.stage_of[2 * P - 1 - k]);
        }
        CHECK_EQ(placement.stage_of[0], 0);
        for (int32_t turned = 0; turned < 2; turned++) {
            CHECK_OK(placement_make(&placement, PLACEMENT_STACKS, turned, P, &chain));
            check_even(&placement, &chain, 0, enc, 0, P);
            check_even(&placement, &chain, enc, enc + dec, P, P);
            CHECK_EQ(placement.stage_of[P], turned ? P - 1 : 0);
            CHECK_EQ(placement.stage_of[2 * P - 1], turned ? 0 : P - 1);
        }
        CHECK_OK(placement_check(&placement, P, &chain, false));
    }
    Placement untouched = {.num_chunks = 77};
    const PlanChain seven = {7, 0, 1, 1, false}, three = {3, 0, 2, 1, false}, few_dec = {24, 3, 2, 1, false};
    CHECK_FAILS(placement_make(&untouched, PLACEMENT_VEE, false, 4, &seven), STATUS_BAD_OPTION,
                "takes 8 blocks, the model has 7");
    CHECK_FAILS(placement_make(&untouched, PLACEMENT_VEE, false, 4, &three), STATUS_BAD_OPTION,
                "takes 8 blocks, the model has 6");
    CHECK_FAILS(placement_make(&untouched, PLACEMENT_STACKS, false, 4, &few_dec), STATUS_BAD_OPTION,
                "takes 4 decoder blocks");
    CHECK_EQ(untouched.num_chunks, 77);
}

// What any placement is, is what its text is read as.
static void text_says_everything(void) {
    Rng rng = rng_seed(seed + 1);
    for (int32_t round = 0; round < 500; round++) {
        char text[4096] = "", head[1024];
        int32_t P = rng_between(&rng, 1, 9), chars = 0;
        const PlanChain chain = random_chain(&rng, rng_between(&rng, P, 5 * P),
                                             rng_between(&rng, 0, 2) * rng_between(&rng, 0, P));
        Placement drawn, read = {0};
        random_placement(&drawn, &rng, P, plan_chain_num_blocks(&chain));
        for (int32_t k = 0; k < drawn.num_chunks; k++) {
            double layers = plan_chain_length(&chain, &drawn.chunks[k]);
            chars +=
                snprintf(text + chars, sizeof text - (size_t)chars, "%s%d:%.*f", k > 0 ? "," : "",
                         drawn.stage_of[k], layers == floor(layers) ? 0 : rng_between(&rng, 1, 3), layers);
        }
        chars = snprintf(head, sizeof head, "%s", head_names[drawn.head]);
        for (int32_t s = 0; s < P && drawn.head != HEAD_WHOLE; s++) {
            chars += snprintf(head + chars, sizeof head - (size_t)chars, "%c%d", s > 0 ? ',' : ':',
                              drawn.head_begin[s + 1] - drawn.head_begin[s]);
        }
        CHECK_OK(placement_parse_head(&read, P, head));
        CHECK_OK(placement_parse(&read, P, &chain, false, text));
        CHECK(memcmp(&read, &drawn, sizeof read) == 0);
        placement_print(text, &drawn, &chain, P);
        if (strchr(text, '+') != NULL) { *strchr(text, '+') = '\0'; }
        CHECK_EQ(strchr(text, ':') == NULL, placement_is_linear(&drawn, P));
        CHECK_OK(placement_parse(&read, P, &chain, false, text));
        CHECK(placement_equal(&read, &drawn, P));
    }
}

static void bad_text_is_refused(void) {
    static const char* const chunks[] = {
        "",           "zigzag",    "0",           "0:",          "0:2,1:2,",  "0:2,,1:2",
        "0:2,2:2",    "0:2,-1:2",  "0:2 1:2",     "0:2;1:2",     "0:+2,1:2",  "0:2,1:2x",
        "0:2,1:3",    "0:4",       "0:0,1:4",     "0:1,1:0,0:3", "1:4,1:0",   "0:99999999999999999999,1:2",
        "0:.5,1:3.5", "0:1.5,1:2", "0:0.2,1:3.8", "0:1.5.5,1:2", "0.5:2,1:2", "0:1e0,1:3"};
    static const char* const heads[] = {
        "",       "half",          "whole:512,512",     "rows:",         "rows:1024",
        "rows:1", "rows:512,512,", "rows:512,511",      "rows:1024,-1",  "rows:512,512,0",
        "vocab",  "vocabulary ",   "vocabulary:1e3,24", "rows:1024,1024"};
    const PlanChain chain = {4, 0, 2, 1, false};
    Placement before = {.num_chunks = 5, .head = HEAD_BY_ROWS}, placement = before;
    for (size_t i = 0; i < sizeof chunks / sizeof *chunks; i++) {
        CHECK_FAILS(placement_parse(&placement, 2, &chain, false, chunks[i]), STATUS_BAD_OPTION, "--->");
    }
    CHECK_FAILS(placement_parse(&placement, 2, &chain, false, "0:2,2:2"), STATUS_BAD_OPTION,
                "layers of each of 2 stages, or stage:layers of every chunk, stages 0 to 1");
    for (size_t i = 0; i < sizeof heads / sizeof *heads; i++) {
        CHECK_FAILS(placement_parse_head(&placement, 2, heads[i]), STATUS_BAD_OPTION, "--head");
    }
    CHECK(memcmp(&placement, &before, sizeof before) == 0);
    CHECK_OK(placement_parse(&placement, 2, &chain, false, "0:2,1:2,0:0"));
    CHECK_EQ(placement.head, HEAD_BY_ROWS);
    placement = before;
    CHECK(placement_parse(&placement, 2, &chain, true, "0:2,1:2,0:0") != STATUS_OK);
}

// A word leaves the choice, a list takes it away; both leave what they do not speak of.
static void words_say_what_is_left_to_choose(void) {
    PlanRequest request = {.P = 2, .choose_stages = true};
    const PlanChain chain = {4, 0, 2, 1, false}, three = plan_chain_whole(3, 0);
    placement_linear(&request.placement, request.placement.chunks, 2);
    CHECK_OK(placement_words_take(&request, &chain, NULL, NULL));
    CHECK(request.placements == PLACEMENT_AUTO && request.heads == HEAD_CHOICE_AUTO && request.choose_stages);
    CHECK_OK(placement_words_take(&request, &chain, "vee", "rows:24,1000"));
    CHECK(request.placements == PLACEMENT_VEE && request.choose_stages && request.placement.num_chunks == 4);
    CHECK(request.heads == HEAD_CHOICE_GIVEN && request.placement.head == HEAD_BY_ROWS);
    CHECK_EQ(request.placement.head_begin[1], 24);
    CHECK_OK(placement_words_take(&request, &chain, "1:3,0:1", "vocabulary"));
    CHECK(request.placements == PLACEMENT_GIVEN && !request.choose_stages);
    CHECK(request.heads == HEAD_CHOICE_VOCABULARY && request.placement.head_begin[1] == HEAD_UNITS / 2);
    CHECK_EQ(request.placement.chunks[0].end, 6);
    CHECK_FAILS(placement_words_take(&request, &chain, "1:3,0:2", NULL), STATUS_BAD_OPTION, "5 of 4 layers");
    CHECK_FAILS(placement_words_take(&request, &three, "interleaved", NULL), STATUS_BAD_OPTION,
                "takes 4 blocks");
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
            const PlanChain chain = plan_chain_whole(12, 12);
            CHECK_OK(
                placement_make(&placement, (PlacementChoice)(PLACEMENT_LINEAR + made), false, P, &chain));
            placement.chunks[0].end = placement.chunks[1].begin = 1;
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

// Of a stage.
static double work_ns(const Placement* placement, const PlacementScale* scale, int32_t s) {
    double ns = 0;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        CostStage chunk = cost_chunk_make(scale->costs, placement, k);
        for (int part = 0; part < PART_COUNT && placement->stage_of[k] == s; part++) {
            ns += chunk.count[part] * scale->part_ns[part] * scale->slow[s];
        }
    }
    return ns;
}

static double work_squares(const Placement* placement, const PlacementScale* scale) {
    double sum = 0;
    for (int32_t s = 0; s < scale->P; s++) {
        double ns = work_ns(placement, scale, s);
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

// The least grade over all numbers of blocks of the chunks from `k` on.
static double least_of(Placement* placement, int32_t k, int32_t begin, int32_t L, Grade* grade,
                       const PlacementScale* scale) {
    int32_t K = placement->num_chunks;
    double least = INFINITY;
    for (int32_t end = k == K - 1 ? L : begin + 1; end <= L; end++) {
        placement->chunks[k] = (BlockRange){begin, end};
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
        PlanChain* chain = &about.costs.chain;
        *chain = plan_chain_whole(chain->num_enc_layers, chain->num_dec_layers);
        int32_t P = rng_between(&rng, 2, 4), L = plan_chain_num_blocks(chain);
        PlacementChoice kind = (PlacementChoice)rng_between(&rng, PLACEMENT_LINEAR, PLACEMENT_VEE);
        Placement start, all, moved;
        about.request.P = P;
        about.request.rules.head_has_layer = round % 4 == 3;
        if (L > 12 || placement_make(&start, kind, false, P, chain) != STATUS_OK) { continue; }
        if (round % 2) { placement_share_head(&start, (HeadSplit)rng_below(&rng, HEAD_COUNT), P); }
        PlacementScale scale =
            placement_scale_make(&about.request, &about.costs, about.samples, about.num_samples, ROOM_WANTED);
        double largest = over_bytes(&start, &scale);
        for (int32_t s = 0; s < P; s++) {
            scale.limit_bytes[s] = (int64_t)largest * rng_between(&rng, 70, 120) / 100;
        }
        moved = all = start;
        placement_balance(&moved, &scale);
        CHECK_OK(placement_check(&moved, P, chain, scale.head_has_layer));
        if (start.head == HEAD_WHOLE) {
            double best = least_of(&all, 0, 0, L, work_squares, &scale), found = work_squares(&moved, &scale);
            CHECK(found <= best * 1.3);
            num++;
            num_best += found <= best * 1.01;
        }
        bool fits = least_of(&all, 0, 0, L, over_bytes, &scale) < 0;
        moved = start;
        placement_make_room(&moved, &scale, false);
        CHECK_OK(placement_check(&moved, P, chain, scale.head_has_layer));
        CHECK(memcmp(moved.stage_of, start.stage_of, sizeof start.stage_of) == 0);
        CHECK(memcmp(moved.head_begin, start.head_begin, sizeof start.head_begin) == 0);
        CHECK(fits || over_bytes(&moved, &scale) >= 0);
        num_fitting += fits;
        num_found += fits && over_bytes(&moved, &scale) < 0;
        placement_make_room(&moved, &scale, true);
        CHECK_OK(placement_check(&moved, P, chain, scale.head_has_layer));
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
        int32_t L = plan_chain_num_blocks(&about.costs.chain);
        request->choose_stages = round % 2;
        request->placements = (PlacementChoice)rng_below(&rng, PLACEMENT_COUNT);
        request->heads = (HeadChoice)rng_below(&rng, HEAD_CHOICE_COUNT);
        request->memory_limit_bytes = rng_below(&rng, 2) ? 4000000 : 0;
        Status status = placement_field(field, &num, request, &about.costs, about.samples, 20, ROOM_WANTED);
        if (status != STATUS_OK) { CHECK(strstr(status_message(), "takes") != NULL); }
        CHECK(status != STATUS_OK || (num > 0 && num <= PLACEMENT_FIELD));
        for (int32_t i = 0; i < num; i++) {
            CHECK_OK(
                placement_check(&field[i], request->P, &about.costs.chain, request->rules.head_has_layer));
            CHECK(request->P == 1 || placement_is_of(&field[i], request->placements, request->P));
            CHECK(request->heads < HEAD_CHOICE_WHOLE ||
                  field[i].head == (uint8_t)request->heads - HEAD_CHOICE_WHOLE);
        }
        request->P = L + 1;
        CHECK_FAILS(placement_field(field, &num, request, &about.costs, about.samples, 20, ROOM_WANTED),
                    STATUS_BAD_OPTION, "--stages");
    }
}

static double most_work(const Placement* placement, const PlacementScale* scale) {
    double most = 0;
    for (int32_t s = 0; s < scale->P; s++) { most = fmax(most, work_ns(placement, scale, s)); }
    return most;
}

// Ours alone, and only where the slowest stage gains from it: then every layer may be cut.
static void layers_are_cut_where_that_pays(void) {
    Rng rng = rng_seed(seed + 2);
    int num_cut = 0, num_whole = 0;
    for (int round = 0; round < 400; round++) {
        random_problem(&about, &rng, 20);
        PlanChain* chain = &about.costs.chain;
        const int32_t P = rng_between(&rng, 2, 6);
        about.request.P = P;
        about.request.batching = round % 4 == 3 ? BATCHING_KK : BATCHING_DYNAMIC;
        Placement start;
        PlacementChoice kind = (PlacementChoice)rng_between(&rng, PLACEMENT_LINEAR, PLACEMENT_VEE);
        if (placement_make(&start, kind, false, P, chain) != STATUS_OK) { continue; }
        PlacementScale scale =
            placement_scale_make(&about.request, &about.costs, about.samples, about.num_samples, ROOM_WANTED);
        Placement whole = start, cut = start;
        scale.may_cut = false;
        placement_balance(&whole, &scale);
        scale.may_cut =
            about.request.batching == BATCHING_DYNAMIC && chain->enc_blocks * chain->dec_blocks > 1;
        placement_balance(&cut, &scale);
        CHECK_OK(placement_check(&cut, P, chain, false));
        bool same = placement_equal(&cut, &whole, P);
        CHECK(same || (scale.may_cut && most_work(&cut, &scale) < most_work(&whole, &scale) * 0.99));
        num_cut += !same;
        num_whole += same && scale.may_cut;
    }
    CHECK(num_cut > 30 && num_whole > 30);
}

// What gpt-like layers on stages of their number and a half are: all alike, one layer and a half each.
static void twelve_layers_are_even_on_eight_stages(void) {
    static const struct {
        Batching batching;
        int32_t P, blocks;
        const char* text;
    } cases[] = {{BATCHING_DYNAMIC, 8, 2, "1.5,1.5,1.5,1.5,1.5,1.5,1.5,1.5"},
                 {BATCHING_DYNAMIC, 6, 2, "2,2,2,2,2,2"},
                 {BATCHING_DYNAMIC, 8, 1, "2,2,2,2,1,1,1,1"},
                 {BATCHING_PACKED, 8, 2, "2,2,2,2,1,1,1,1"}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        static Placement field[PLACEMENT_FIELD];
        char text[PLACEMENT_CHARS];
        int32_t num, layers[3] = {0};
        memset(&about, 0, sizeof about);
        about.costs.chain = (PlanChain){12, 0, cases[i].blocks, 1, false};
        for (int j = 0; j < cases[i].blocks; j++) {
            CostFormula* F = &about.costs.parts[RECOMPUTE_NONE][PART_ENC_BLOCK + j].time_ns[JOB_F];
            cost_formula_add_line(F, FEATURE_ENC_TOKENS, 100);
        }
        about.request = (PlanRequest){.batching = cases[i].batching,
                                      .P = cases[i].P,
                                      .R = 1,
                                      .choose_stages = true,
                                      .placements = PLACEMENT_LINEAR,
                                      .heads = HEAD_CHOICE_WHOLE};
        about.samples[0] = plan_sample(100, 0, 1);
        CHECK_OK(placement_field(field, &num, &about.request, &about.costs, about.samples, 1, ROOM_WANTED));
        for (int32_t s = 0; s < cases[i].P; s++) {
            layers[(int)placement_layers(&field[0], &about.costs.chain, s)]++;
        }
        placement_print(text, &field[0], &about.costs.chain, cases[i].P);
        bool is_uneven = strchr(cases[i].text, '1') != NULL && strchr(cases[i].text, '.') == NULL;
        if (is_uneven) { CHECK(layers[1] == 4 && layers[2] == 4); }
        if (!is_uneven) { CHECK(strcmp(text, cases[i].text) == 0); }
    }
}

static void lists_are_read(void) {
    const PlanChain chain = {12, 0, 2, 1, false}, none = {0, 0, 1, 1, false}, pair = {2, 2, 2, 3, false};
    Placement read = {.head = HEAD_BY_ROWS};
    const BlockRange* out = read.chunks;
    CHECK_OK(placement_parse(&read, 4, &chain, true, "4,4,3,1"));
    CHECK(read.head == HEAD_BY_ROWS && read.num_chunks == 4 && read.stage_of[3] == 3);
    CHECK(out[2].begin == 16 && out[2].end == 22 && out[3].end == 24);
    CHECK_OK(placement_parse(&read, 4, &chain, true, "4.5,3.5,3,1"));
    CHECK(out[0].end == 9 && out[1].end == 16);
    CHECK_OK(placement_parse(&read, 4, &pair, true, "1.5,0.83,1,0.67"));  // thirds, to the nearest block
    CHECK(out[0].end == 3 && out[1].end == 5 && out[2].end == 8);
    CHECK_OK(placement_parse(&read, 2, &chain, false, "12,0"));
    CHECK_FAILS(placement_parse(&read, 2, &chain, true, "12,0"), STATUS_BAD_OPTION, "head needs a layer");
    CHECK_OK(placement_parse(&read, 1, &chain, false, "12"));
    CHECK_EQ(placement_parse(&read, 1, &none, false, "0"), STATUS_BAD_OPTION);
    const char* bad[] = {
        "",          "4,4,4",      "4,4,3,1,", "4,4,3,1,0", "4,4,,4",   "4,4,3, 1",
        "+4,4,3,1",  "0,4,4,4",    "4,4,-3,7", "4,4,3,2",   "4,4,3,1 ", "4,4,2,1",
        "4.5,4,3,1", "4,4,3.9,.1", "x",        "4;4;3;1",   "12,0,0,0", "4,4,3,99999999999999999999"};
    for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
        CHECK_FAILS(placement_parse(&read, 4, &chain, false, bad[i]), STATUS_BAD_OPTION, "--->");
        CHECK(strstr(status_message(), bad[i]) != NULL);
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
    RUN(layers_are_cut_where_that_pays);
    RUN(twelve_layers_are_even_on_eight_stages);
    RUN(lists_are_read);
    return test_end();
}
