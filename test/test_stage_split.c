// test_stage_split.c -- against every way to cut the layers.
#include <math.h>

#include "../dynapipe_plugin/plan/placement.h"
#include "../dynapipe_plugin/plan/types.h"
#include "cost_one.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static CostModel costs;
static PlanSample samples[64];

// --- brute force over every split ------------------------------------------------------------------------

// What one part takes over all samples and keeps of an average micro-batch. Costs are linear here, so it does
// not matter how samples are grouped.
typedef struct {
    double kept_ns, lean_ns;        // nothing, or everything recomputed
    double kept_bytes, lean_bytes;  // of an average micro-batch
    double longest_bytes;           // of the longest sample, recomputed
    double state_bytes;
} PartWork;

typedef struct {
    double slowest, squares;
} Grade;

typedef struct {
    int32_t P, L;
    bool head_has_layer;
    PartWork part[PART_COUNT];
    double limit_bytes;      // INFINITY: none
    double buffer_bytes[2];  // beside the longest sample; of stages without and with decoder layers
    LayerRange stages[8];    // the split under trial
    Grade best;
    int64_t num_fitting;
} Brute;

static double sample_value(const CostFormula* formula, const PlanSample* sample) {
    MbShape shape = {0};
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    return cost_formula_value(formula, &shape);
}

static PartWork part_work(int part, int32_t num_samples, double num_mbs) {
    const CostPartMode *kept = &costs.parts[RECOMPUTE_NONE][part], *lean = &costs.parts[RECOMPUTE_FULL][part];
    PartWork work = {.state_bytes = (double)costs.part_state_bytes[part]};
    for (int32_t i = 0; i < num_samples; i++) {
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            work.kept_ns += sample_value(&kept->time_ns[kind], &samples[i]);
            work.lean_ns += sample_value(&lean->time_ns[kind], &samples[i]);
        }
        double lean_bytes = sample_value(&lean->stored_bytes, &samples[i]);
        work.kept_bytes += sample_value(&kept->stored_bytes, &samples[i]) / num_mbs;
        work.lean_bytes += lean_bytes / num_mbs;
        work.longest_bytes = fmax(work.longest_bytes, lean_bytes);
    }
    return work;
}

// The rule of stage_split.c: infinite where the state leaves no room for the longest sample or for P - s
// average micro-batches, all recomputed; of P - s + 1 of them as many are recomputed as must be.
static double stage_ns(const Brute* brute, int32_t s) {
    const LayerRange* layers = &brute->stages[s];
    double count[PART_COUNT] = {[PART_EMBEDDING] = s == 0, [PART_HEAD] = s == brute->P - 1};
    for (int32_t l = layers->layer_begin; l < layers->layer_end; l++) {
        count[l < costs.num_enc_layers ? PART_ENC_LAYER : PART_DEC_LAYER]++;
    }
    bool has_dec = count[PART_DEC_LAYER] > 0,
         begins_decoder = has_dec && layers->layer_begin <= costs.num_enc_layers;
    bool ends_encoder =
        costs.num_dec_layers > 0 && count[PART_ENC_LAYER] > 0 && layers->layer_end >= costs.num_enc_layers;
    PartWork sum = {.state_bytes = begins_decoder && s > 0 ? brute->part[PART_EMBEDDING].state_bytes : 0};
    if (count[PART_ENC_LAYER] > 0) { sum.state_bytes += (double)costs.part_state_bytes[ONCE_ENC]; }
    if (has_dec) { sum.state_bytes += (double)costs.part_state_bytes[ONCE_DEC]; }
    if (ends_encoder) { sum.state_bytes += (double)costs.part_state_bytes[ONCE_ENC_END]; }
    if (s == brute->P - 1 && (s == 0 || begins_decoder)) {  // one copy of a tied embedding
        sum.state_bytes -= (double)costs.tied_head_state_bytes;
    }
    for (int part = 0; part < PART_COUNT; part++) {
        const PartWork* one = &brute->part[part];
        sum.kept_ns += count[part] * one->kept_ns;
        sum.lean_ns += count[part] * one->lean_ns;
        sum.kept_bytes += count[part] * one->kept_bytes;
        sum.lean_bytes += count[part] * one->lean_bytes;
        sum.longest_bytes += count[part] * one->longest_bytes;
        sum.state_bytes += count[part] * one->state_bytes;
    }
    double room = brute->limit_bytes - sum.state_bytes, num_mbs = brute->P - s + 1;
    if (sum.longest_bytes + brute->buffer_bytes[has_dec] > room || sum.lean_bytes * (num_mbs - 1) > room) {
        return INFINITY;
    }
    if (num_mbs * sum.kept_bytes <= room) { return sum.kept_ns; }
    double share = fmin((num_mbs * sum.kept_bytes - room) / (num_mbs * (sum.kept_bytes - sum.lean_bytes)), 1);
    return (1 - share) * sum.kept_ns + share * sum.lean_ns;
}

static Grade grade_of(const Brute* brute) {
    Grade grade = {0, 0};
    for (int32_t s = 0; s < brute->P; s++) {
        double time_ns = stage_ns(brute, s);
        grade.slowest = fmax(grade.slowest, time_ns);
        grade.squares += time_ns * time_ns;
    }
    return grade;
}

// Best slowest stage, then best sum of squares, over all ends of stage s and those behind it.
static void try_all(Brute* brute, int32_t s, int32_t begin) {
    bool is_last = s == brute->P - 1;
    for (int32_t end = is_last ? brute->L : begin + 1; end <= brute->L; end++) {
        brute->stages[s] = (LayerRange){begin, end};
        if (!is_last) {
            try_all(brute, s + 1, end);
            continue;
        }
        if (!stage_may_have(&brute->stages[s], s, brute->P, brute->head_has_layer)) { continue; }
        Grade grade = grade_of(brute), best = brute->best;
        if (isinf(grade.slowest)) { continue; }
        brute->num_fitting++;
        bool equal = grade.slowest <= best.slowest * (1 + 1e-9) && grade.slowest >= best.slowest * (1 - 1e-9);
        if (equal ? grade.squares < best.squares : grade.slowest < best.slowest) { brute->best = grade; }
    }
}

// Where nothing fits, as if memory did not matter.
static void brute_force(Brute* brute) {
    for (int pass = 0; pass < 2 && brute->num_fitting == 0; pass++) {
        brute->best = (Grade){1e300, 1e300};
        if (pass == 1) { brute->limit_bytes = INFINITY; }
        try_all(brute, 0, 0);
    }
}

// Recomputing keeps a part of the bytes and takes the time of another forward.
static void draw_costs(Rng* rng, int32_t num_enc, int32_t num_dec, int64_t head_ns_per_token) {
    linear_cost_model(&costs, rng, num_enc, num_dec);
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        cost_formula_add_line(&costs.parts[mode][PART_HEAD].time_ns[JOB_F], FEATURE_ENC_TOKENS,
                              (double)head_ns_per_token);
    }
    double share = rng_between(rng, 1, 9) / 10.0;
    for (int part = 0; part < PART_COUNT; part++) {
        CostPartMode* full = &costs.parts[RECOMPUTE_FULL][part];
        full->stored_bytes.curves[FEATURE_ENC_TOKENS].y[0] *= share;
    }
}

static void check_is_a_split(const LayerRange* stages, int32_t P, int32_t L) {
    CHECK_EQ(stages[0].layer_begin, 0);
    CHECK_EQ(stages[P - 1].layer_end, L);
    for (int32_t s = 0; s < P; s++) {
        CHECK(stage_may_have(&stages[s], s, P, false));
        if (s > 0) { CHECK_EQ(stages[s].layer_begin, stages[s - 1].layer_end); }
    }
}

// With a heavy head and without, with memory that matters and without.
static void split_equals_brute_force(void) {
    Rng rng = rng_seed(seed);
    int num_alone = 0, num_limited = 0, num_impossible = 0, num_unlike_free = 0;
    for (int round = 0; round < 400; round++) {
        LayerRange stages[PLAN_MAX_STAGES], again[PLAN_MAX_STAGES], free[PLAN_MAX_STAGES];
        int32_t enc = rng_between(&rng, 1, 8), dec = round % 3 == 0 ? rng_between(&rng, 1, 4) : 0,
                L = enc + dec;
        int32_t P = rng_between(&rng, 1, L < 6 ? L : 6), num = rng_between(&rng, 1, 40);
        draw_costs(&rng, enc, dec, round % 2 ? rng_between(&rng, 10000, 40000) : 0);
        random_samples(samples, num, &rng, (int)rng_below(&rng, 4), dec > 0);
        PlanRequest request = {
            .P = P, .R = rng_between(&rng, 1, 2), .memory_rule = (MemoryRule)rng_below(&rng, 2)};
        request.rules.head_has_layer = round % 4 == 3;
        CHECK_OK(stage_split_make(free, &request, &costs, samples, num, 1));
        Brute brute = {.P = P, .L = L, .limit_bytes = INFINITY};
        brute.head_has_layer = request.rules.head_has_layer;
        double num_mbs = fmin(4 * P * request.R, num);
        for (int32_t i = 0; i < num && request.memory_rule == MEMORY_BUFFERS; i++) {
            double bytes = sample_value(&costs.scratch_bytes, &samples[i]) +
                           3 * sample_value(&costs.boundary_bytes, &samples[i]);
            double dec_bytes = bytes + 3 * sample_value(&costs.dec_boundary_bytes, &samples[i]);
            brute.buffer_bytes[0] = fmax(brute.buffer_bytes[0], bytes);
            brute.buffer_bytes[1] = fmax(brute.buffer_bytes[1], dec_bytes);
        }
        for (int part = 0; part < PART_COUNT; part++) { brute.part[part] = part_work(part, num, num_mbs); }
        if (rng_below(&rng, 3) > 0) {  // of what an even share of everything takes: 0.2 to 1.5 times
            double bytes = 0;
            for (int part = 0; part < PART_COUNT; part++) {
                const PartWork* work = &brute.part[part];
                double one = work->state_bytes + fmax(work->longest_bytes, work->kept_bytes * P);
                bytes += (part == PART_ENC_LAYER ? enc : part == PART_DEC_LAYER ? dec : 1) * one / P;
            }
            request.memory_limit_bytes = (int64_t)(bytes * rng_between(&rng, 20, 150) / 100) + 1;
            brute.limit_bytes = (double)request.memory_limit_bytes;
        }
        CHECK_OK(stage_split_make(stages, &request, &costs, samples, num, 1));
        CHECK_OK(stage_split_make(again, &request, &costs, samples, num, 1));
        CHECK_EQ(memcmp(stages, again, (size_t)P * sizeof *stages), 0);
        check_is_a_split(stages, P, L);
        brute_force(&brute);
        memcpy(brute.stages, stages, sizeof brute.stages);
        Grade found = grade_of(&brute);
        CHECK_NEAR(found.slowest / brute.best.slowest, 1, 1e-5);
        CHECK_NEAR(found.squares / brute.best.squares, 1, 1e-5);
        CHECK(!brute.head_has_layer || P == 1 || stages[P - 1].layer_begin < L);
        num_alone += stages[P - 1].layer_begin == L;
        num_limited += request.memory_limit_bytes > 0 && !isinf(brute.limit_bytes);
        num_impossible += request.memory_limit_bytes > 0 && isinf(brute.limit_bytes);
        num_unlike_free += memcmp(stages, free, (size_t)P * sizeof *stages) != 0;
    }
    CHECK(num_alone > 10 && num_limited > 60 && num_impossible > 10 && num_unlike_free > 10);
}

// A head of five and a half layers' cost: the last stage has it alone, the others share the layers evenly. Of
// four: it keeps one.
static void heavy_head_leaves_the_rest_even(void) {
    LayerRange stages[4];
    PlanSample one = {100, 0, 100};
    memset(&costs, 0, sizeof costs);
    costs.num_enc_layers = 13;
    cost_formula_add_line(&costs.parts[RECOMPUTE_NONE][PART_ENC_LAYER].time_ns[JOB_F], FEATURE_ENC_TOKENS,
                          1000);
    cost_formula_add_line(&costs.parts[RECOMPUTE_NONE][PART_HEAD].time_ns[JOB_F], FEATURE_SUPERVISED, 5500);
    CHECK_OK(stage_split_make(stages, &(PlanRequest){.P = 4, .R = 1}, &costs, &one, 1, 1));
    CHECK_EQ(stages[0].layer_end, 4);
    CHECK_EQ(stages[1].layer_end, 8);
    CHECK_EQ(stages[2].layer_end, 13);
    CHECK_EQ(stages[3].layer_begin, 13);
    one.supervised_tokens = 71;  // 3.9 layers
    CHECK_OK(stage_split_make(stages, &(PlanRequest){.P = 4, .R = 1}, &costs, &one, 1, 1));
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
        LayerRange stages[3];
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

// --- T5 ----------------------------------------------------------------------------------------------------

// Flops only, so that costs are linear.
static void t5_costs(int32_t num_enc, int32_t num_dec, int32_t padded_vocab) {
    CostAnalytic about = {.num_layers = num_enc,
                          .num_dec_layers = num_dec,
                          .channels = 64,
                          .num_heads = 4,
                          .head_size = 16,
                          .ffn_channels = 160,
                          .gated = true,
                          .tied_head = true,
                          .padded_vocab = padded_vocab,
                          .bytes_per_value = 4,
                          .flops_per_ns = 1e-3,
                          .attention_flops_per_ns = 1e-3,
                          .bytes_per_ns = 1e12};
    cost_model_analytic(&costs, &about);
    CHECK_OK(cost_model_check(&costs));
}

// Cuts inside the encoder, inside the decoder, a stage with both, the head alone: wherever the slowest stage
// is fastest, by trying them all.
static void cuts_of_t5_lie_anywhere(void) {
    static const struct {
        int32_t num_enc, num_dec, P, enc_tokens, dec_tokens, padded_vocab;
    } cases[] = {
        {12, 4, 4, 500, 110, 384},                               // ByT5: cuts inside the encoder only
        {2, 12, 4, 60, 200, 384},                                // inside the decoder only
        {6, 6, 3, 200, 180, 384},                                // a stage with both
        {6, 6, 2, 300, 300, 384},   {4, 4, 4, 200, 150, 12000},  // a head of more than a stage
        {3, 5, 5, 100, 100, 32128},
    };
    int num_enc_cuts = 0, num_dec_cuts = 0, num_both = 0, num_alone = 0, num_between = 0;
    Rng rng = rng_seed(seed + 1);
    for (int i = 0; i < 6; i++) {
        for (int round = 0; round < 20; round++) {
            int32_t P = cases[i].P, L = cases[i].num_enc + cases[i].num_dec, num = 24;
            LayerRange stages[PLAN_MAX_STAGES];
            t5_costs(cases[i].num_enc, cases[i].num_dec, cases[i].padded_vocab);
            for (int32_t k = 0; k < num; k++) {
                int32_t dec = rng_between(&rng, 1, 2 * cases[i].dec_tokens);
                samples[k] = (PlanSample){rng_between(&rng, 1, 2 * cases[i].enc_tokens), dec, dec};
            }
            PlanRequest request = {.P = P, .R = 1};
            CHECK_OK(stage_split_make(stages, &request, &costs, samples, num, 1));
            check_is_a_split(stages, P, L);
            Brute brute = {.P = P, .L = L, .limit_bytes = INFINITY};
            for (int part = 0; part < PART_COUNT; part++) {
                brute.part[part] = part_work(part, num, fmin(4 * P, num));
            }
            brute_force(&brute);
            memcpy(brute.stages, stages, sizeof brute.stages);
            CHECK_NEAR(grade_of(&brute).slowest / brute.best.slowest, 1, 1e-5);
            CHECK_NEAR(grade_of(&brute).squares / brute.best.squares, 1, 1e-5);
            for (int32_t s = 0; s < P; s++) {
                int32_t end = stages[s].layer_end, enc = cases[i].num_enc;
                num_enc_cuts += s < P - 1 && end < enc;
                num_dec_cuts += s < P - 1 && end > enc && end < L;
                num_between += end == enc;
                num_both += stages[s].layer_begin < enc && end > enc;
                num_alone += stages[s].layer_begin == end;
            }
        }
    }
    printf(
        "     cuts inside the encoder %d, the decoder %d, between %d; stages with both %d, head alone %d\n",
        num_enc_cuts, num_dec_cuts, num_between, num_both, num_alone);
    CHECK(num_enc_cuts > 50 && num_dec_cuts > 50 && num_both > 30 && num_alone > 15 && num_between > 0);
}

static double slowest_ns(const LayerRange stages[3], int64_t limit_bytes) {
    double slowest = 0;
    MbShape shape = {0};
    mb_shape_add(&shape, 400, 100, 100);
    for (int32_t s = 0; s < 3; s++) {
        CostStage stage = cost_stage_make(&costs, &stages[s], s, 3);
        double ns = 0;
        for (JobKind kind = JOB_F; kind <= JOB_W; kind++) {
            ns += (double)cost_job_ns(&costs, &stage, kind, RECOMPUTE_NONE, &shape);
        }
        slowest = cost_state_bytes(&costs, &stage) > limit_bytes ? INFINITY : fmax(slowest, ns);
    }
    return slowest;
}

// Where the decoder begins, the stage has the embedding as well: of little memory it has fewer layers, or the
// decoder begins on the first or on the last stage, which have one anyhow. (Activations take no memory here.)
static void the_decoders_embedding_takes_memory(void) {
    LayerRange stages[PLAN_MAX_STAGES];
    int num_moved = 0, num_limits = 0;
    t5_costs(3, 9, 5000);
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            costs.parts[mode][part].stored_bytes = costs.parts[mode][part].forward_bytes = (CostFormula){0};
        }
    }
    PlanSample one = {400, 100, 100};
    PlanRequest request = {.P = 3, .R = 1, .memory_rule = MEMORY_ACTIVATIONS};
    CHECK_OK(stage_split_make(stages, &request, &costs, &one, 1, 1));
    LayerRange unlimited = stages[1];
    CHECK(unlimited.layer_begin <= 3 && unlimited.layer_end > 3);  // the decoder begins in the middle
    int64_t embedding = costs.part_state_bytes[PART_EMBEDDING],
            layer = costs.part_state_bytes[PART_DEC_LAYER];
    for (int64_t limit = embedding; limit < embedding + 9 * layer; limit += layer / 5) {
        request.memory_limit_bytes = limit;
        double fastest = INFINITY;
        for (int32_t a = 1; a < 12; a++) {
            for (int32_t b = a + 1; b <= 12; b++) {
                LayerRange tried[3] = {{0, a}, {a, b}, {b, 12}};
                fastest = fmin(fastest, slowest_ns(tried, limit));
            }
        }
        if (isinf(fastest)) { continue; }
        CHECK_OK(stage_split_make(stages, &request, &costs, &one, 1, 1));
        CHECK_NEAR(slowest_ns(stages, limit) / fastest, 1, 1e-6);
        num_limits++;
        num_moved +=
            stages[1].layer_begin != unlimited.layer_begin || stages[1].layer_end != unlimited.layer_end;
    }
    printf("     %d limits, of which %d move the middle stage\n", num_limits, num_moved);
    CHECK(num_limits > 10 && num_moved > 3 && num_moved < num_limits);
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
    RUN(split_equals_brute_force);
    RUN(heavy_head_leaves_the_rest_even);
    RUN(slowest_stage_goes_before_evenness);
    RUN(too_many_stages_are_refused);
    RUN(cuts_of_t5_lie_anywhere);
    RUN(the_decoders_embedding_takes_memory);
    RUN(lists_are_read);
    return test_end();
}
