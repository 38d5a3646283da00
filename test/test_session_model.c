// test_session_model.c -- models put into a session: what does not fit together is named on every rank before
// anything travels, and nothing runs without a model.
#include "../dynapipe_plugin/run/session.h"
#include "ranks.h"
#include "test.h"
#include "toy_model.h"

static RankResult results[RANKS_MAX];

enum { NUM_STAGES = 3 };

// A session as far as dynapipe_choose_stages() takes it.
static Status session_on(Dynapipe* dp, Transport* transport) {
    char* argv[] = {"test", NULL};
    int argc = 1;
    int32_t ranks[RANKS_MAX];
    *dp = (Dynapipe){.transport = *transport, .num_stages = NUM_STAGES};
    dp->num_replicas = transport->num_ranks / NUM_STAGES;
    dp->stage = transport->rank % NUM_STAGES;
    dp->replica = transport->rank / NUM_STAGES;
    TRY(session_options_take(&dp->options, &argc, argv, NULL));
    for (int32_t r = 0; r < transport->num_ranks; r++) { ranks[r] = r; }
    TRY(collective_init(&dp->world, &dp->transport, ranks, transport->num_ranks, INT64_C(20000000000)));
    for (int32_t r = 0; r < dp->num_replicas; r++) { ranks[r] = r * NUM_STAGES + dp->stage; }
    TRY(collective_init(&dp->replicas, &dp->transport, ranks, dp->num_replicas, INT64_C(20000000000)));
    return session_device_open(dp, NULL);
}

static void session_off(Dynapipe* dp) {
    executor_free(dp->executor);
    session_device_close(dp);
    tied_groups_free(&dp->tied);
    collective_free(&dp->replicas);
    collective_free(&dp->world);
}

// Layers 0 and 1, 2 and 3, 4 and 5: boundaries of 8 and of 3 channels.
static ToyModel toy_of(int32_t stage) {
    return (ToyModel){.layer_begin = 2 * stage,
                      .layer_end = 2 * stage + 2,
                      .is_first = stage == 0,
                      .is_last = stage == NUM_STAGES - 1};
}

static DynapipeParams_v1 params_of(ToyModel* toy, const DynapipeTied* tied, int32_t num_tied) {
    return (DynapipeParams_v1){.params = toy->da,
                               .grads = toy->da,
                               .num_params = sizeof toy->da / sizeof(float),
                               .num_tied = num_tied,
                               .tied = tied};
}

static Status attach_body(Transport* t, void* arg) {
    (void)arg;
    Dynapipe dp;
    TRY(session_on(&dp, t));
    ToyModel toy = toy_of(dp.stage);
    DynapipeTied tied = {4, 2 * dp.stage, 6};
    DynapipeParams_v1 params = params_of(&toy, &tied, 1);
    DynapipeStep_v1 step;
    int64_t begin, end;
    double loss;
    EXPECT(dynapipe_step(&dp, &step) == STATUS_BAD_OPTION);
    EXPECT(strstr(status_message(), "no model for range 0 of 1 ---> dynapipe_attach()") != NULL);
    EXPECT(dynapipe_share_params(&dp) == STATUS_BAD_OPTION);
    EXPECT(dynapipe_validate(&dp, 1, &loss, NULL) == STATUS_BAD_OPTION);
    EXPECT(dynapipe_attach(&dp, 1, &toy_api, &toy, &params) == STATUS_OUT_OF_RANGE);
    EXPECT(strstr(status_message(), "a model for range 1: this rank has 1") != NULL);
    EXPECT(dynapipe_attach(&dp, -1, &toy_api, &toy, &params) == STATUS_OUT_OF_RANGE);
    params.tied = NULL;
    EXPECT(dynapipe_attach(&dp, 0, &toy_api, &toy, &params) == STATUS_OUT_OF_RANGE);
    params.tied = &tied;
    TRY((Status)dynapipe_attach(&dp, 0, &toy_api, &toy, &params));
    EXPECT(dynapipe_attach(&dp, 0, &toy_api, &toy, &params) == STATUS_OUT_OF_RANGE);
    EXPECT(strstr(status_message(), "range 0 has a model already") != NULL);
    EXPECT(dp.tied.num_groups == 1 && dp.tied.groups[0].begin == 2 * dp.stage && dp.params.tied == NULL);
    dp.run.zero_stage = 1;
    dynapipe_shard(&dp, 0, &begin, &end);
    EXPECT(begin == collective_slice(params.num_params, 2, dp.replica));
    EXPECT(end == collective_slice(params.num_params, 2, dp.replica + 1));
    dynapipe_shard(&dp, 1, &begin, &end);
    EXPECT(begin == 0 && end == 0);
    session_off(&dp);
    return STATUS_OK;
}

static void each_range_gets_one_model(void) {
    CHECK_EQ(ranks_run(2 * NUM_STAGES, RANKS_CHECKED, attach_body, NULL, results, 1), 0);
}

static Status mismatch_body(Transport* t, void* arg) {
    int32_t wrong_rank = *(const int32_t*)arg;
    Dynapipe dp;
    TRY(session_on(&dp, t));
    ToyModel toy = toy_of(dp.stage);
    if (t->rank == wrong_rank) { toy.layer_begin += 2; }  // takes 3 channels, gets 8
    DynapipeParams_v1 params = params_of(&toy, NULL, 0);
    Status status = (Status)dynapipe_attach(&dp, 0, &toy_api, &toy, &params);
    EXPECT(status == (wrong_rank >= 0 ? STATUS_MISMATCH : STATUS_OK));
    if (wrong_rank >= 0) {
        char words[96];
        snprintf(words, sizeof words,
                 "ranks %d and %d: of 48 + 0 tokens, 1536 bytes leave the one's blocks, 576 enter",
                 wrong_rank - 1, wrong_rank);
        EXPECT(strstr(status_message(), words) != NULL);
    }
    TRY(collective_barrier(&dp.world));
    session_off(&dp);
    return STATUS_OK;
}

static void stages_that_do_not_fit_together_are_named(void) {
    int32_t wrong_ranks[] = {-1, 1, 4};
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(ranks_run(2 * NUM_STAGES, RANKS_CHECKED, mismatch_body, &wrong_ranks[i], results, 1), 0);
    }
}

int main(void) {
    RUN(each_range_gets_one_model);
    RUN(stages_that_do_not_fit_together_are_named);
    return test_end();
}
