// test_stage_split.c -- against every way to cut the layers.
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static CostModel costs;
static PlanSample samples[64];

// Time of one part over all samples; cost is linear here, so it does not matter how samples are grouped.
static double part_time(int part, int32_t num_samples) {
    double sum = 0;
    for (int32_t i = 0; i < num_samples; i++) {
        MbShape shape = {0};
        mb_shape_add(&shape, samples[i].enc_tokens, samples[i].dec_tokens, samples[i].supervised_tokens);
        for (int kind = JOB_F; kind <= JOB_W; kind++) {
            sum += cost_formula_value(&costs.parts[RECOMPUTE_NONE][part].time_ns[kind], &shape);
        }
    }
    return sum;
}

typedef struct {
    double slowest, squares;
} Grade;

static Grade grade_of(const StageLayers* stages, int32_t P, const double* part_ns) {
    Grade grade = {0, 0};
    for (int32_t s = 0; s < P; s++) {
        double time_ns = (s == 0) * part_ns[PART_EMBEDDING] + (s == P - 1) * part_ns[PART_HEAD];
        for (int32_t l = stages[s].layer_begin; l < stages[s].layer_end; l++) {
            time_ns += part_ns[l < costs.num_enc_layers ? PART_ENC_LAYER : PART_DEC_LAYER];
        }
        grade.slowest = time_ns > grade.slowest ? time_ns : grade.slowest;
        grade.squares += time_ns * time_ns;
    }
    return grade;
}

// Best slowest stage, then best sum of squares, over all cuts. Bit l of `cuts`: a stage begins at layer l
// + 1.
static Grade brute_force(int32_t P, int32_t L, const double* part_ns) {
    Grade best = {1e300, 1e300};
    for (uint32_t cuts = 0; cuts < 1u << (L - 1); cuts++) {
        StageLayers stages[16] = {{0, 0}};
        int32_t s = 0;
        if (__builtin_popcount(cuts) != P - 1) { continue; }
        for (int32_t l = 0; l < L; l++) {
            stages[s].layer_end = l + 1;
            if (l < L - 1 && cuts >> l & 1) { stages[++s].layer_begin = l + 1; }
        }
        Grade grade = grade_of(stages, P, part_ns);
        bool equal = grade.slowest <= best.slowest * (1 + 1e-9) && grade.slowest >= best.slowest * (1 - 1e-9);
        if (equal ? grade.squares < best.squares : grade.slowest < best.slowest) { best = grade; }
    }
    return best;
}

static void split_equals_brute_force(void) {
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 150; round++) {
        StageLayers stages[PLAN_MAX_STAGES], again[PLAN_MAX_STAGES];
        int32_t enc = rng_between(&rng, 1, 8), dec = round % 3 == 0 ? rng_between(&rng, 1, 4) : 0,
                L = enc + dec;
        int32_t P = rng_between(&rng, 1, L < 6 ? L : 6), num = rng_between(&rng, 1, 40);
        double part_ns[PART_COUNT];
        linear_cost_model(&costs, &rng, enc, dec);
        CostPartMode* head = &costs.parts[RECOMPUTE_NONE][PART_HEAD];
        cost_formula_add_line(&head->time_ns[JOB_F], FEATURE_ENC_TOKENS, round % 2 ? 40000 : 0);
        random_samples(samples, num, &rng, (int)rng_below(&rng, 4), dec > 0);
        for (int part = 0; part < PART_COUNT; part++) { part_ns[part] = part_time(part, num); }
        CHECK_OK(stage_split_make(stages, &(PlanRequest){.P = P, .R = 1}, &costs, samples, num, 1));
        CHECK_OK(stage_split_make(again, &(PlanRequest){.P = P, .R = 1}, &costs, samples, num, 1));
        CHECK_EQ(memcmp(stages, again, (size_t)P * sizeof *stages), 0);
        CHECK_EQ(stages[0].layer_begin, 0);
        CHECK_EQ(stages[P - 1].layer_end, L);
        for (int32_t s = 0; s < P; s++) {
            CHECK(stages[s].layer_end > stages[s].layer_begin);
            if (s > 0) { CHECK_EQ(stages[s].layer_begin, stages[s - 1].layer_end); }
        }
        Grade best = brute_force(P, L, part_ns), found = grade_of(stages, P, part_ns);
        CHECK_NEAR(found.slowest / best.slowest, 1, 1e-6);
        CHECK_NEAR(found.squares / best.squares, 1, 1e-6);
    }
}

// A head of five layers' cost: the last stage keeps one layer, the others share the rest evenly.
static void heavy_head_leaves_the_rest_even(void) {
    StageLayers stages[4];
    PlanSample one = {100, 0, 100};
    memset(&costs, 0, sizeof costs);
    costs.num_enc_layers = 13;
    cost_formula_add_line(&costs.parts[RECOMPUTE_NONE][PART_ENC_LAYER].time_ns[JOB_F], FEATURE_ENC_TOKENS,
                          1000);
    cost_formula_add_line(&costs.parts[RECOMPUTE_NONE][PART_HEAD].time_ns[JOB_F], FEATURE_SUPERVISED, 5500);
    CHECK_OK(stage_split_make(stages, &(PlanRequest){.P = 4, .R = 1}, &costs, &one, 1, 1));
    CHECK_EQ(stages[0].layer_end, 4);
    CHECK_EQ(stages[1].layer_end, 8);
    CHECK_EQ(stages[2].layer_end, 12);
    one.supervised_tokens = 0;  // nothing supervised: 13 layers over 4, the short ones first
    CHECK_OK(stage_split_make(stages, &(PlanRequest){.P = 4, .R = 1}, &costs, &one, 1, 1));
    CHECK_EQ(stages[0].layer_end, 3);
    CHECK_EQ(stages[1].layer_end, 6);
    CHECK_EQ(stages[2].layer_end, 9);
}

// Layers of 5 5 2 2 2 2 and a head of 5: the slowest stage comes first (5 | 5 2 2 | 2 2 5), though 5 5 | 2 2
// 2 | 2 5 has the smaller sum of squares. And the same the other way round, with an embedding of 5.
static void slowest_stage_goes_before_evenness(void) {
    for (int reversed = 0; reversed < 2; reversed++) {
        StageLayers stages[3];
        PlanSample one = {100, 100, 100};
        memset(&costs, 0, sizeof costs);
        costs.num_enc_layers = reversed ? 4 : 2;
        costs.num_dec_layers = reversed ? 2 : 4;
        CostPartMode* parts = costs.parts[RECOMPUTE_NONE];
        CostPart end = reversed ? PART_EMBEDDING : PART_HEAD;
        cost_formula_add_line(&parts[PART_ENC_LAYER].time_ns[JOB_F], FEATURE_ENC_TOKENS,
                              reversed ? 2000 : 5000);
        cost_formula_add_line(&parts[PART_DEC_LAYER].time_ns[JOB_F], FEATURE_DEC_TOKENS,
                              reversed ? 5000 : 2000);
        cost_formula_add_line(&parts[end].time_ns[JOB_F], FEATURE_SUPERVISED, 5000);
        CHECK_OK(stage_split_make(stages, &(PlanRequest){.P = 3, .R = 1}, &costs, &one, 1, 1));
        CHECK_EQ(stages[0].layer_end, reversed ? 2 : 1);
        CHECK_EQ(stages[1].layer_end, reversed ? 5 : 4);
    }
}

static void too_many_stages_are_refused(void) {
    StageLayers stages[PLAN_MAX_STAGES];
    Rng rng = rng_seed(seed);
    linear_cost_model(&costs, &rng, 3, 0);
    random_samples(samples, 4, &rng, 0, false);
    CHECK_FAILS(stage_split_make(stages, &(PlanRequest){.P = 4, .R = 1}, &costs, samples, 4, 1),
                STATUS_BAD_OPTION, "--stages 4: the model has 3");
    CHECK_FAILS(stage_split_make(stages, &(PlanRequest){.P = 0, .R = 1}, &costs, samples, 4, 1),
                STATUS_BAD_OPTION, "give 1 to 3");
    CHECK_OK(stage_split_make(stages, &(PlanRequest){.P = 3, .R = 1}, &costs, samples, 4, 1));
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(split_equals_brute_force);
    RUN(heavy_head_leaves_the_rest_even);
    RUN(slowest_stage_goes_before_evenness);
    RUN(too_many_stages_are_refused);
    return test_end();
}
