// test_gpt2_costs.c -- the cost model's bytes are those of the model: state of every stage, tied copies
// included.
#include "../dynapipe_plugin/adapters/llmc_gpt2.h"
#include "../dynapipe_plugin/base/rng.h"
#include "../dynapipe_plugin/run/session.h"
#include "test.h"

static const Gpt2Config config = {
    .max_seq_len = 64, .vocab = 250, .padded_vocab = 256, .num_layers = 5, .num_heads = 2, .channels = 32};

// Parameters of the slice that stage s of P has.
static int64_t slice_params(const StageLayers* layers, OpsContext* ops) {
    Gpt2 model;
    gpt2_init(&model, config, layers->layer_begin, layers->layer_end, ops);
    int64_t num_params = model.num_params;
    gpt2_free(&model);
    return num_params;
}

static void state_is_that_of_the_slices(void) {
    OpsContext* ops = ops_create(1);
    for (int32_t P = 1; P <= 5; P++) {
        Dynapipe dp = {.num_stages = P, .num_replicas = 1, .plan_threads = 1};
        DynapipeCosts* costs = NULL;
        CHECK_EQ(dynapipe_gpt2_costs(&costs, &dp, &config, 0), 0);
        for (int32_t s = 0; s < P; s++) {
            StageLayers layers = {config.num_layers * s / P, config.num_layers * (s + 1) / P};
            CostStage stage = cost_stage_make(&costs->model, &layers, s, P);
            // parameters, gradients, m, v
            CHECK_EQ(cost_state_bytes(&costs->model, &stage), 16 * slice_params(&layers, ops));
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
    CHECK_EQ(dynapipe_gpt2_costs(&costs, &dp, &config, 1), 0);
    for (int32_t s = 0; s < 2; s++) {
        StageLayers layers = {s * 2, s == 0 ? 2 : 5};
        CostStage stage = cost_stage_make(&costs->model, &layers, s, 2);
        int64_t num_params = slice_params(&layers, ops), bytes = cost_state_bytes(&costs->model, &stage);
        int64_t least = 8 * num_params + (8 * num_params + 2) / 3;
        CHECK(bytes >= least && bytes <= least + 4 * 4);
    }
    free(costs);
    ops_free(ops);
}

// Where a batch fits into some memory, it fits into more, down to little above what its longest sample needs.
static void more_memory_never_hurts(void) {
    Dynapipe dp = {.num_stages = 1, .num_replicas = 1, .plan_threads = 1};
    DynapipeCosts* costs = NULL;
    CHECK_EQ(dynapipe_gpt2_costs(&costs, &dp, &config, 0), 0);
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
    RUN(more_memory_never_hurts);
    return test_end();
}
