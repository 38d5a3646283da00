// test_cost_model.c -- monotone, saturating, additive over stages, exact text, refused nonsense.
#include "../dynapipe_plugin/plan/cost_file.h"
#include "../dynapipe_plugin/plan/cost_model.h"
#include "cost_one.h"

#include <math.h>
#include <unistd.h>

#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static CostModel model, other;

static char* text_of(const CostModel* costs, const char* signature) {
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* out = open_memstream(&text, &num_bytes);
    cost_model_print(costs, signature, out);
    fclose(out);
    return text;
}

static int64_t* field_of(MbShape* shape, int f) {
    int64_t* const fields[] = {&shape->num_seqs,         &shape->enc_tokens,  &shape->enc_squares,
                               &shape->dec_tokens,       &shape->dec_squares, &shape->cross_products,
                               &shape->supervised_tokens};
    return fields[f];
}

static MbShape random_shape(Rng* rng) {
    MbShape shape;
    for (int f = 0; f < FEATURE_COUNT; f++) {
        *field_of(&shape, f) = rng_between(rng, 0, rng_below(rng, 4) ? 3000 : 100000000);
    }
    return shape;
}

// A known formula by hand: floor, constant, line, knots, slope before the first and after the last.
static void formula_has_the_documented_value(void) {
    CostFormula f = {.constant = 10, .floor = 25};
    f.curves[FEATURE_ENC_TOKENS] = (CostCurve){3, {100, 200, 400}, {50, 150, 190}};
    f.curves[FEATURE_SUPERVISED] = (CostCurve){1, {4}, {8}};
    const struct {
        int64_t tokens, supervised;
        double value;
    } cases[] = {{0, 0, 25},    {49, 0, 25},   {60, 0, 25},   {70, 0, 30},    {100, 0, 60},
                 {150, 3, 116}, {200, 0, 160}, {300, 0, 180}, {400, 10, 220}, {900, 0, 300}};
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        MbShape shape = {.enc_tokens = cases[i].tokens, .supervised_tokens = cases[i].supervised};
        CHECK_NEAR(cost_formula_value(&f, &shape), cases[i].value, 1e-9);
    }
    f.constant = 10,
    f.floor = 0;  // the first slope leads to -50 at no tokens, which must not eat the constant
    CHECK_NEAR(cost_formula_value(&f, &(MbShape){0}), 10, 0);
    CHECK_NEAR(cost_formula_value(&f, &(MbShape){.enc_tokens = 40}), 10, 0);
    CHECK_NEAR(cost_formula_value(&f, &(MbShape){.enc_tokens = 51}), 11, 1e-9);
}

// A larger shape never costs less; all costs at once are the same numbers as one by one; none is negative.
static void costs_are_monotone_and_consistent(void) {
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 300; round++) {
        CostJobs jobs[4], more[4];
        CostStage stages[4];
        PlanRequest request = {.P = rng_between(&rng, 1, 4)};
        int32_t enc = rng_between(&rng, 2, 6), dec = rng_between(&rng, 0, 6), P = request.P;
        random_cost_model(&model, &rng, enc, dec);
        CHECK_OK(cost_model_check(&model));
        equal_stages(&request, enc + dec);
        for (int32_t s = 0; s < P; s++) {
            stages[s] = cost_stage_make(&model, &request.placement.chunks[s], s, P);
        }
        RecomputeMode mode = rng_below(&rng, 2) ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        MbShape shape = random_shape(&rng), larger = shape;
        *field_of(&larger, (int)rng_below(&rng, FEATURE_COUNT)) +=
            rng_between(&rng, 1, round % 3 ? 3 : 100000);
        cost_stages(jobs, &model, stages, P, mode, &shape);
        cost_stages(more, &model, stages, P, mode, &larger);
        for (int32_t s = 0; s < P; s++) {
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                CHECK_EQ(jobs[s].job_ns[kind], cost_job_ns(&model, &stages[s], (JobKind)kind, mode, &shape));
                CHECK(jobs[s].job_ns[kind] >= 0 && jobs[s].job_ns[kind] <= more[s].job_ns[kind]);
            }
            CHECK_EQ(jobs[s].stored_bytes, cost_stored_bytes(&model, &stages[s], mode, &shape));
            CHECK_EQ(jobs[s].forward_bytes, cost_forward_bytes(&model, &stages[s], mode, &shape));
            CHECK_EQ(jobs[s].boundary_bytes, cost_boundary_bytes(&model, &stages[s], &shape));
            CHECK_EQ(jobs[s].scratch_bytes, cost_scratch_bytes(&model, &stages[s], &shape));
            CHECK(jobs[s].stored_bytes <= more[s].stored_bytes &&
                  jobs[s].forward_bytes <= more[s].forward_bytes);
            CHECK(jobs[s].boundary_bytes <= more[s].boundary_bytes &&
                  jobs[s].scratch_bytes <= more[s].scratch_bytes);
            if (mode == RECOMPUTE_NONE) { CHECK_EQ(jobs[s].job_ns[JOB_R] + jobs[s].forward_bytes, 0); }
        }
        CHECK_EQ(jobs[P - 1].boundary_bytes, 0);
    }
}

// Cutting the layers differently moves cost between stages but neither makes nor loses any (but for
// rounding).
static void stages_add_up_to_the_model(void) {
    Rng rng = rng_seed(seed + 1);
    for (int round = 0; round < 100; round++) {
        PlanRequest request = {.P = rng_between(&rng, 1, 5)};
        linear_cost_model(&model, &rng, 5, 3);
        equal_stages(&request, 8);
        LayerRange all = {0, 8};
        CostStage whole = cost_stage_make(&model, &all, 0, 1);
        MbShape shape = random_shape(&rng);
        int64_t sum_ns = 0, sum_bytes = 0;
        for (int32_t s = 0; s < request.P; s++) {
            CostStage stage = cost_stage_make(&model, &request.placement.chunks[s], s, request.P);
            sum_ns += cost_job_ns(&model, &stage, JOB_B, RECOMPUTE_NONE, &shape);
            sum_bytes += cost_state_bytes(&model, &stage);
            CHECK_EQ(stage.has_dec_embedding,
                     s > 0 && stage.layers.layer_begin <= 5 && stage.layers.layer_end > 5);
            // what more than one stage has
            if (stage.has_dec_embedding) { sum_bytes -= model.part_state_bytes[PART_EMBEDDING]; }
            if (stage.has_dec_embedding && stage.has_head) { sum_bytes += model.tied_head_state_bytes; }
            if (s > 0 && stage.layers.layer_begin < 5) { sum_bytes -= model.part_state_bytes[ONCE_ENC]; }
            if (stage.layers.layer_begin > 5 && stage.layers.layer_begin < 8) {
                sum_bytes -= model.part_state_bytes[ONCE_DEC];
            }
        }
        if (request.P > 1) { sum_bytes -= model.tied_head_state_bytes; }
        CHECK_NEAR(sum_ns, cost_job_ns(&model, &whole, JOB_B, RECOMPUTE_NONE, &shape), 5);
        CHECK_EQ(sum_bytes, cost_state_bytes(&model, &whole));
    }
}

static void huge_costs_saturate(void) {
    Rng rng = rng_seed(seed + 2);
    LayerRange all = {0, 1024};
    CostStage stage = cost_stage_make(&model, &all, 0, 1);
    MbShape shape = {INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX, INT64_MAX};
    linear_cost_model(&model, &rng, 1024, 0);
    model.parts[RECOMPUTE_NONE][PART_ENC_LAYER].time_ns[JOB_F].constant = 1e18;
    CHECK_OK(cost_model_check(&model));
    CHECK_EQ(cost_job_ns(&model, &stage, JOB_F, RECOMPUTE_NONE, &shape), COST_LIMIT);
    CHECK_EQ(cost_stored_bytes(&model, &stage, RECOMPUTE_FULL, &shape), COST_LIMIT);
    model.part_state_bytes[PART_ENC_LAYER] = COST_LIMIT;
    model.tied_head_state_bytes = model.part_state_bytes[PART_HEAD] + 1;
    CHECK_FAILS(cost_model_check(&model), STATUS_BAD_FORMAT, "tied head_state_bytes");
    model.tied_head_state_bytes = 0;
    model.tied_stack_bytes = -1;
    CHECK_FAILS(cost_model_check(&model), STATUS_BAD_FORMAT, "tied stack_bytes");
    CHECK_EQ(cost_state_bytes(&model, &stage), COST_LIMIT);
    model.comm_bytes_per_ns = 1e-300;
    CHECK_EQ(cost_transfer_ns(&model, INT64_MAX), COST_LIMIT);
    model.comm_bytes_per_ns = 0;
    CHECK_EQ(cost_transfer_ns(&model, 1000), 0);
    model.update_ns_per_byte = 0;
    CHECK_EQ(cost_reduce_ns(&model, &stage, 1), 0);  // one rank: nobody to reduce with
}

// Behind a stage's last job: tied gradients between first and last stage, a ring over replicas; and the
// update.
static void tail_has_the_documented_value(void) {
    memset(&model, 0, sizeof model);
    model.num_enc_layers = 4;
    model.part_param_bytes[PART_ENC_LAYER] = 1000;
    model.part_param_bytes[PART_EMBEDDING] = 500;
    model.reduce_bytes_per_ns = 2;
    model.update_ns_per_byte = 3;
    model.tied_param_bytes = 400;
    model.part_state_bytes[PART_EMBEDDING] = model.part_state_bytes[PART_HEAD] = 1600;
    model.part_param_bytes[PART_HEAD] = 400;
    model.tied_head_state_bytes = 1600;
    LayerRange first = {0, 2}, middle = {2, 3}, all = {0, 4};
    CostStage stages[] = {cost_stage_make(&model, &first, 0, 3), cost_stage_make(&model, &middle, 1, 3),
                          cost_stage_make(&model, &all, 0, 1)};
    CHECK_EQ(cost_reduce_ns(&model, &stages[0], 1), 2 * 400 / 2);
    CHECK_EQ(cost_reduce_ns(&model, &stages[0], 4), 2 * 400 / 2 + 2500 * 2 * 3 / 4 / 2);
    CHECK_EQ(cost_reduce_ns(&model, &stages[1], 2), 1000 * 2 / 2 / 2);
    CHECK_EQ(cost_reduce_ns(&model, &stages[2], 1), 0);  // first and last at once: nothing is tied
    CHECK_EQ(cost_update_ns(&model, &stages[0], 1), 2500 * 3);
    CHECK_EQ(cost_update_ns(&model, &stages[1], 1.5), 1500 * 3);
    CHECK_EQ(cost_update_ns(&model, &stages[2], 1), 4500 * 3);
}

// Three copies of T5's embedding at most: of the first stage, where the decoder begins, and of a tied head;
// biases of a stack go round where it has more than one stage.
static void copies_of_the_embedding_are_exchanged(void) {
    memset(&model, 0, sizeof model);
    model.num_enc_layers = model.num_dec_layers = 3;
    model.part_param_bytes[PART_ENC_LAYER] = 1000;
    model.part_param_bytes[PART_DEC_LAYER] = 2000;
    model.part_param_bytes[PART_EMBEDDING] = 400;
    model.part_param_bytes[ONCE_ENC] = model.part_param_bytes[ONCE_DEC] = 20;
    model.part_param_bytes[ONCE_ENC_END] = 7;
    model.part_state_bytes[PART_EMBEDDING] = 1600;
    model.reduce_bytes_per_ns = 2;
    model.update_ns_per_byte = 3;
    model.tied_param_bytes = 400;
    model.tied_stack_bytes = 20;
    for (int tied = 0; tied < 2; tied++) {
        int64_t once = tied ? 400 : 0;  // there and back at 2 bytes per ns
        model.part_param_bytes[PART_HEAD] = 450;
        model.part_state_bytes[PART_HEAD] = 1800;
        model.tied_head_state_bytes = tied ? 1600 : 0;
        const struct {
            LayerRange layers;
            int32_t s, P;
            int64_t tied_ns, param_bytes, state_bytes;
        } cases[] = {
            {{0, 2}, 0, 3, 400 + 20, 400 + 2 * 1000 + 20, 1600},
            {{2, 4}, 1, 3, 400 + 20 + 20, 400 + 1000 + 2000 + 20 + 20 + 7, 1600},
            {{4, 6}, 2, 3, once + 20, 450 + 2 * 2000 + 20, 1800},
            {{6, 6}, 3, 4, once, 450, 1800},
            {{3, 6}, 1, 2, 400, 3 * 2000 + 20 + 450 + (tied ? 0 : 400), 1800 + (tied ? 0 : 1600)},
            {{0, 3}, 0, 2, 400, 400 + 3 * 1000 + 20 + 7, 1600},
            {{0, 4}, 0, 2, once + 20, 400 + 3 * 1000 + 2000 + 20 + 20 + 7, 1600},
            {{4, 5}, 1, 3, 20, 2000 + 20, 0},
            {{0, 6}, 0, 1, 0, 3 * 3000 + 47 + 450 + (tied ? 0 : 400), 1800 + (tied ? 0 : 1600)},
        };
        for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
            CostStage stage = cost_stage_make(&model, &cases[i].layers, cases[i].s, cases[i].P);
            CHECK_EQ(cost_update_ns(&model, &stage, 1), 3 * cases[i].param_bytes);
            CHECK_EQ(cost_reduce_ns(&model, &stage, 1), cases[i].tied_ns);
            CHECK_EQ(cost_reduce_ns(&model, &stage, 2), cases[i].tied_ns + (cases[i].param_bytes + 1) / 2);
            CHECK_EQ(cost_state_bytes(&model, &stage), cases[i].state_bytes);
        }
    }
}

static void text_round_trips(void) {
    Rng rng = rng_seed(seed + 3);
    for (int round = 0; round < 60; round++) {
        random_cost_model(&model, &rng, rng_between(&rng, 1, 9), rng_between(&rng, 0, 9));
        model.parts[RECOMPUTE_FULL][PART_HEAD].offered = rng_below(&rng, 2);
        char* text = text_of(&model, "gpt2 C 8");
        CHECK_OK(cost_model_parse(&other, text, "costs", "gpt2 C 8"));
        char* again = text_of(&other, "gpt2 C 8");
        CHECK(strcmp(text, again) == 0);
        CHECK_EQ(cost_mode_offered(&other, RECOMPUTE_FULL), model.parts[RECOMPUTE_FULL][PART_HEAD].offered);
        size_t rest = offsetof(CostModel, stage_stored_bytes);  // all that is not by part
        CHECK_EQ(memcmp((char*)&other + rest, (char*)&model + rest, sizeof model - rest), 0);
        for (int k = 0; k < 20; k++) {  // to the last bit
            MbShape shape = random_shape(&rng);
            for (int part = 0; part < PART_COUNT; part++) {
                double a = cost_formula_value(&model.parts[0][part].time_ns[JOB_F], &shape);
                CHECK(a == cost_formula_value(&other.parts[0][part].time_ns[JOB_F], &shape));
            }
        }
        free(text);
        free(again);
    }
}

static void files_are_saved_and_bound_to_a_model(void) {
    Rng rng = rng_seed(seed + 4);
    char path[] = "/tmp/test_cost_model_XXXXXX";
    close(mkstemp(path));
    random_cost_model(&model, &rng, 4, 0);
    CHECK_OK(cost_model_save(&model, path, "gpt2 C 64 NH 2 V 300 threads 1"));
    CHECK_OK(cost_model_load(&other, path, "gpt2 C 64 NH 2 V 300 threads 1"));
    CHECK_OK(cost_model_load(&other, path, NULL));
    CHECK_EQ(memcmp(&model.boundary_bytes, &other.boundary_bytes, sizeof model.boundary_bytes), 0);
    CHECK_FAILS(cost_model_load(&other, path, "gpt2 C 128"), STATUS_MISMATCH, "./profile_costs");
    CHECK_FAILS(cost_model_load(&other, "/no/such/file", NULL), STATUS_IO, "/no/such/file");
    model.comm_latency_ns = NAN;
    CHECK_FAILS(cost_model_save(&model, path, "x"), STATUS_BAD_FORMAT, "comm latency_ns");
    unlink(path);
}

// What is said of each rank comes back to the last bit; who reads the costs alone need not know.
static void files_keep_what_ranks_differ_in(void) {
    Rng rng = rng_seed(seed + 6);
    char path[] = "/tmp/test_cost_model_XXXXXX";
    close(mkstemp(path));
    random_cost_model(&model, &rng, 4, 0);
    for (int32_t n = 0; n < 20; n++) {
        MachineRank ranks[20];
        for (int32_t r = 0; r < n; r++) {
            ranks[r] = (MachineRank){.memory_limit_bytes = rng_below(&rng, 1000)};
            for (int k = 0; k < JOB_COUNT; k++) { ranks[r].slow[k] = 0.5 + rng_below(&rng, 1000) / 997.0; }
            ranks[r].link_latency_ns = rng_below(&rng, 1000) / 7.0;
            ranks[r].link_bytes_per_ns = rng_below(&rng, 1000) / 7.0;
        }
        Machine machine = {.num_ranks = n, .ranks = ranks}, back;
        CHECK_OK(cost_file_save(&model, &machine, path, "x"));
        CHECK_OK(cost_file_load(&other, &back, path, "x"));
        CHECK_EQ(back.num_ranks, n);
        CHECK_EQ(machine_hash(&back), machine_hash(&machine));
        free((void*)back.ranks);
        CHECK_OK(cost_model_load(&other, path, "x"));
        char *text = text_of(&model, "x"), *again = text_of(&other, "x");
        CHECK(strcmp(text, again) == 0);
        free(text);
        free(again);
    }
    unlink(path);
}

// One edit of a good text each; the message names file, line and field, or what is missing.
static void broken_texts_are_refused(void) {
    static const struct {
        const char *from, *to, *words;
    } edits[] = {
        {"dynapipe-costs 4", "dynapipe-costs 2", "costs:1:2: \"2\""},
        {"layers 2 0", "layers 2 0\nmeasured interface 0", "expected ranks"},
        {"layers 2 0", "layers 2 0\nrank 1 slow", "ranks in order, from 0 on"},
        {"layers 2 0", "layers 2 0\nrank 0 slow F 1 B 1 W 1 R 1 memory 0", "expected link"},
        {"signature toy", "# signature", "no line \"signature"},
        {"layers 2 0", "layers 0 0", "layers: 0 and 0"},
        {"layers 2 0", "layers 2000 0", "costs:3:2"},
        {"layers 2 0", "layers 2 0 1", "costs:3:4: \"1\" ---> expected the end of the line"},
        {"layers 2 0", "layers 2.5 0", "whole number"},
        {"comm latency_ns ", "comm latency_ns 0x", "costs:4:3"},
        {"comm latency_ns ", "comm latency_ns -", "comm latency_ns is -"},
        {"reduce bytes_per_ns", "reduce bytes", "expected bytes_per_ns"},
        {"state embedding bytes", "state sofa bytes", "expected embedding, enc_layer"},
        {"recompute full job", "recompute full inside", "is not a job of its own"},
        {"recompute none inside", "recompute none job", "... R"},
        {"recompute none inside", "recompute none inside\nrecompute none inside", "given before"},
        {"mode none time F const", "mode none time F konst", "expected const"},
        {"mode none time F const ", "mode none time F const nan", "a finite decimal number"},
        {"mode none time F const ", "mode none time F const 1e999", "a finite decimal number"},
        {"part enc_layer mode none stored", "part enc_layer mode full stored", "given before"},
        {"part enc_layer mode none time F", "# ", "no line \"enc_layer ... F\""},
        {"enc_tokens 1:7\n", "enc_tokens 1:\n", "a finite decimal number"},
        {"enc_tokens 1:7\n", "enc_tokens\n", "a knot x:y"},
        {"enc_tokens 1:7\n", "enc_tokens 1:7 enc_tokens 1:7\n", "every feature once"},
        {"enc_tokens 1:7\n", "enc_tokens 5:7 4:8\n", "do not ascend"},
        {"enc_tokens 1:7\n", "enc_tokens 5:7 6:3\n", "do not ascend"},
        {"enc_tokens 1:7\n", "enc_tokens 0:7\n", "beyond 0"},
        {"enc_tokens 1:7\n", "enc_tokens 1:-7\n", "finite numbers, 0 to"},
        {"enc_tokens 1:7\n", "tokens 1:7\n", "a feature: seqs"},
        {"boundary const", "border const", "expected signature"},
        {"\nend\n", "\n", "no line \"end\""},
        {"\nend\n", "\nend\nlayers 2 0\n", "nothing after end"},
    };
    Rng rng = rng_seed(seed + 5);
    linear_cost_model(&model, &rng, 2, 0);
    model.parts[RECOMPUTE_NONE][PART_ENC_LAYER].time_ns[JOB_F] = (CostFormula){0};
    model.boundary_bytes = (CostFormula){.curves[FEATURE_ENC_TOKENS] = {1, {1}, {7}}};
    char* text = text_of(&model, "toy");
    CHECK_OK(cost_model_parse(&other, text, "costs", NULL));
    const MachineRank stands_still = {.slow = {1, 0, 1, 1}};
    const Machine machine = {.num_ranks = 1, .ranks = &stands_still};
    char path[] = "/tmp/test_cost_model_XXXXXX";
    close(mkstemp(path));
    CHECK_FAILS(cost_file_save(&model, &machine, path, NULL), STATUS_OUT_OF_RANGE, "0 times as long for B");
    unlink(path);
    for (size_t i = 0; i < sizeof edits / sizeof *edits; i++) {
        char* place = strstr(text, edits[i].from);
        CHECK(place != NULL);
        if (!place) { continue; }
        char* broken = malloc(strlen(text) + strlen(edits[i].to) + 1);
        sprintf(broken, "%.*s%s%s", (int)(place - text), text, edits[i].to, place + strlen(edits[i].from));
        CHECK_FAILS(cost_model_parse(&other, broken, "costs", NULL), STATUS_BAD_FORMAT, edits[i].words);
        free(broken);
    }
    free(text);
}

// Random damage never crashes, and what is accepted still passes the check (run under the sanitizers too).
static void damaged_texts_are_survived(void) {
    Rng rng = rng_seed(seed + 6);
    random_cost_model(&model, &rng, 2, 1);
    char* text = text_of(&model, "toy");
    size_t num_bytes = strlen(text);
    int accepted = 0;
    for (int round = 0; round < 3000; round++) {
        char* damaged = malloc(num_bytes + 1);
        memcpy(damaged, text, num_bytes + 1);
        if (round % 2) { damaged[rng_below(&rng, (uint32_t)num_bytes)] = 0; }
        for (int k = 0; k < 3; k++) {
            damaged[rng_below(&rng, (uint32_t)num_bytes)] = " \n#:.e-+0129azF\x80"[rng_below(&rng, 16)];
        }
        if (cost_model_parse(&other, damaged, "costs", NULL) == STATUS_OK) {
            accepted++;
            CHECK_OK(cost_model_check(&other));
        }
        free(damaged);
    }
    CHECK(accepted > 0 && accepted < 3000);
    free(text);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(formula_has_the_documented_value);
    RUN(costs_are_monotone_and_consistent);
    RUN(stages_add_up_to_the_model);
    RUN(huge_costs_saturate);
    RUN(tail_has_the_documented_value);
    RUN(copies_of_the_embedding_are_exchanged);
    RUN(text_round_trips);
    RUN(files_are_saved_and_bound_to_a_model);
    RUN(files_keep_what_ranks_differ_in);
    RUN(broken_texts_are_refused);
    RUN(damaged_texts_are_survived);
    return test_end();
}
