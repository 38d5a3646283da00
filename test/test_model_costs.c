// test_model_costs.c -- the cost model's bytes are those of the model: state of every stage, tied copies
// included.
#include "../dynapipe_plugin/adapters/llmc_model.h"
#include "../dynapipe_plugin/base/rng.h"
#include "../dynapipe_plugin/run/session.h"
#include "../llmc/gpt2.h"
#include "test.h"

static const ModelConfig config = {.kind = &gpt2_kind,
                                   .max_seq_len = 64,
                                   .vocab = 250,
                                   .padded_vocab = 256,
                                   .num_layers = 5,
                                   .num_heads = 2,
                                   .channels = 32};

// Parameters of the slice that stage s of P has.
static int64_t slice_params(const StageLayers* layers, bool is_last, OpsContext* ops) {
    Model model;
    model_init(&model, &config, layers->layer_begin, layers->layer_end, is_last, ops);
    int64_t num_params = model.num_params;
    model_free(&model);
    return num_params;
}

static void state_is_that_of_the_slices(void) {
    OpsContext* ops = ops_create(1);
    for (int32_t P = 1; P <= 5; P++) {
        Dynapipe dp = {.num_stages = P, .num_replicas = 1, .plan_threads = 1};
        DynapipeCosts* costs = NULL;
        CHECK_EQ(dynapipe_llmc_costs(&costs, &dp, &config, 0), 0);
        for (int32_t s = 0; s <= P; s++) {  // s = P: the last stage with the head alone
            bool is_last = s >= P - 1;
            StageLayers layers = {config.num_layers * s / P, s < P ? config.num_layers * (s + 1) / P : 5};
            if (P == 1 && s == P) { continue; }
            CostStage stage = cost_stage_make(&costs->model, &layers, s < P ? s : P - 1, P);
            // parameters, gradients, m, v
            CHECK_EQ(cost_state_bytes(&costs->model, &stage), 16 * slice_params(&layers, is_last, ops));
        }
        free(costs);
    }
    ops_free(ops);
}

// ZeRO-1 shares m and v, a part at a time: at most one value per part more than an equal share.
static void replicas_share_moments(void) {
    OpsContext* ops = ops_create(1);
    Dynapipe dp = {.num_stages = 2, .num_replicas = 3, .plan_threads = 1};
    DynapipeCosts* costs = NULL;
    CHECK_EQ(dynapipe_llmc_costs(&costs, &dp, &config, 1), 0);
    for (int32_t s = 0; s < 2; s++) {
        StageLayers layers = {s * 2, s == 0 ? 2 : 5};
        CostStage stage = cost_stage_make(&costs->model, &layers, s, 2);
        int64_t num_params = slice_params(&layers, s == 1, ops),
                bytes = cost_state_bytes(&costs->model, &stage);
        int64_t least = 8 * num_params + (8 * num_params + 2) / 3;
        CHECK(bytes >= least && bytes <= least + 4 * 4);
    }
    free(costs);
    ops_free(ops);
}

// What a stage is given for a micro-batch is never less than its slice asks for, and little more: per part 16
// tokens and rows of rounding, and for the head alone the slots that only a stage with layers needs.
static void activations_are_those_of_the_slices(void) {
    OpsContext* ops = ops_create(1);
    const int32_t P = 3, cuts[][4] = {{0, 1, 3, 5}, {0, 2, 4, 5}, {0, 3, 5, 5}, {0, 4, 5, 5}};
    Dynapipe dp = {.num_stages = P, .num_replicas = 1, .plan_threads = 1};
    DynapipeCosts* costs = NULL;
    Rng rng = rng_seed(9);
    CHECK_EQ(dynapipe_llmc_costs(&costs, &dp, &config, 0), 0);
    for (int32_t k = 0; k < 4 * P; k++) {
        int32_t s = k % P;
        StageLayers layers = {cuts[k / P][s], cuts[k / P][s + 1]};
        CostStage stage = cost_stage_make(&costs->model, &layers, s, P);
        Model model;
        model_init(&model, &config, layers.layer_begin, layers.layer_end, s == P - 1, ops);
        int64_t num_layers = layers.layer_end - layers.layer_begin, C = config.channels;
        int64_t row = 4 * (2 * C + 2 + config.padded_vocab), slot = 4 * (num_layers > 0 ? 0 : 5 * C);
        int64_t token = 4 * (num_layers * (15 * C + 6) + 6 * C);
        for (int32_t i = 0; i < 200; i++) {
            int32_t tokens = rng_between(&rng, 1, 3000), rows = rng_between(&rng, 0, tokens);
            MbShape shape = {.num_seqs = 1, .enc_tokens = tokens, .supervised_tokens = rows};
            int64_t asked = gpt2_acts_bytes(&model, tokens, rows, MODEL_KEEP | MODEL_HEAD);
            int64_t given = cost_stored_bytes(&costs->model, &stage, RECOMPUTE_NONE, &shape);
            int64_t rounding = 32 * (token + slot) + 32 * row;
            CHECK(given >= asked && given <= asked + slot * tokens + rounding);
            CHECK(cost_forward_bytes(&costs->model, &stage, RECOMPUTE_FULL, &shape) >=
                  gpt2_acts_bytes(&model, tokens, rows, 0));
            CHECK(cost_scratch_bytes(&costs->model, &stage, &shape) >=
                  gpt2_scratch_bytes(&model, tokens, rows, tokens));
        }
        model_free(&model);
    }
    free(costs);
    ops_free(ops);
}

// Where a batch fits into some memory, it fits into more, down to little above what its longest sample needs.
static void more_memory_never_hurts(void) {
    Dynapipe dp = {.num_stages = 1, .num_replicas = 1, .plan_threads = 1};
    DynapipeCosts* costs = NULL;
    CHECK_EQ(dynapipe_llmc_costs(&costs, &dp, &config, 0), 0);
    PlanSample samples[80];
    Rng rng = rng_seed(5);
    for (int32_t i = 0; i < 80; i++) {
        int32_t n = rng_between(&rng, 8, i % 10 == 0 ? 200 : 60);
        samples[i] = (PlanSample){.enc_tokens = n, .supervised_tokens = rng_between(&rng, 1, n)};
    }
    PlanRequest request = {.recompute = RECOMPUTE_CHOICE_AUTO, .P = 1, .R = 1, .max_seq_tokens = 200};
    request.stages[0] = (StageLayers){0, config.num_layers};
    int32_t num_fitting = 0;
    for (int64_t limit_bytes = 2 << 20; limit_bytes < 12 << 20; limit_bytes += 100 * 1000) {
        Arena arena = {0};
        Plan plan;
        request.memory_limit_bytes = limit_bytes;
        Status status = plan_make(&plan, &request, &costs->model, samples, 80, &arena);
        CHECK(num_fitting == 0 || status == STATUS_OK);
        num_fitting += status == STATUS_OK;
        arena_free(&arena);
    }
    CHECK(num_fitting > 70);
    free(costs);
}

int main(void) {
    RUN(state_is_that_of_the_slices);
    RUN(replicas_share_moments);
    RUN(activations_are_those_of_the_slices);
    RUN(more_memory_never_hurts);
    return test_end();
}
