// test_session_model.c -- models put into a session: what does not fit together is named on every rank before
// anything travels, nothing runs without a model, and all of the model counts once.
#include "../dynapipe_plugin/run/session.h"
#include "ranks.h"
#include "test.h"
#include "tied_case.h"
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
    dp->request.placement.num_chunks = NUM_STAGES;
    for (int32_t s = 0; s < NUM_STAGES; s++) { dp->request.placement.stage_of[s] = (int16_t)s; }
    TRY(session_options_take(&dp->options, &argc, argv, NULL));
    for (int32_t r = 0; r < transport->num_ranks; r++) { ranks[r] = r; }
    TRY(collective_init(&dp->world, &dp->transport, ranks, transport->num_ranks, INT64_C(20000000000)));
    for (int32_t r = 0; r < dp->num_replicas; r++) { ranks[r] = r * NUM_STAGES + dp->stage; }
    TRY(collective_init(&dp->replicas, &dp->transport, ranks, dp->num_replicas, INT64_C(20000000000)));
    return session_device_open(dp, NULL);
}

static void session_off(Dynapipe* dp) {
    executor_free(dp->executor);
    free(dp->tied_given);
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
    DynapipeSpan span;
    int32_t num_spans;
    EXPECT(dynapipe_counted(&dp, &span, 1, &num_spans) == STATUS_BAD_OPTION);
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
    EXPECT(dp.tied.num_groups == 1 && dp.tied.groups[0].begin == 2 * dp.stage && dp.params.num_tied == 0);
    dp.run.zero_stage = 1;
    dynapipe_shard(&dp, &begin, &end);
    EXPECT(begin == collective_slice(params.num_params, 2, dp.replica));
    EXPECT(end == collective_slice(params.num_params, 2, dp.replica + 1));
    session_off(&dp);
    return STATUS_OK;
}

static void each_range_gets_one_model(void) {
    CHECK_EQ(ranks_run(2 * NUM_STAGES, RANKS_CHECKED, attach_body, NULL, results, 1), 0);
}

// --- several ranges a rank, the head shared --------------------------------------------------------------

// A vee of six layers over three stages, a layer each; stages 0 and 2 have shares of the head.
static void place_vee(Placement* out, HeadSplit head) {
    const int16_t stage_of[] = {0, 1, 2, 2, 1, 0}, begin[] = {0, 512, 512, 1024};
    *out = (Placement){.num_chunks = 6, .head = (uint8_t)head};
    for (int32_t k = 0; k < 6; k++) {
        out->stage_of[k] = stage_of[k];
        out->chunks[k] = (LayerRange){k, k + 1};
    }
    memcpy(out->head_begin, begin, sizeof begin);
}

static ToyModel toy_of_row(HeadSplit head, int32_t row) {
    bool is_share = row >= 6, is_last = row == 5;
    ToyModel toy = {.layer_begin = is_share ? 6 : row,
                    .layer_end = is_share ? 6 : row + 1,
                    .is_first = row == 0,
                    .is_last = is_last && head == HEAD_WHOLE};
    if (is_last && head != HEAD_WHOLE) { toy.head = DYNAPIPE_HEAD_FEEDS; }
    if (is_share) {
        toy.head = head == HEAD_BY_ROWS ? DYNAPIPE_HEAD_BY_ROWS : DYNAPIPE_HEAD_BY_VOCABULARY;
    }
    return toy;
}

static Status shared_body(Transport* t, void* arg) {
    const HeadSplit head = *(const HeadSplit*)arg;
    Dynapipe dp;
    TRY(session_on(&dp, t));
    place_vee(&dp.request.placement, head);
    int32_t rows[3] = {dp.stage, 5 - dp.stage, 6 + dp.stage}, num_ranges = session_num_ranges(&dp);
    EXPECT(num_ranges == 2 + (head != HEAD_WHOLE && dp.stage != 1));
    ToyModel toys[3];
    const DynapipeParams_v1 params = params_of(&toys[0], NULL, 0);
    Status status = STATUS_OK;
    for (int32_t i = num_ranges - 1; i >= 0; i--) {  // in any order
        toys[i] = toy_of_row(head, rows[i]);
        status = (Status)dynapipe_attach(&dp, i, &toy_api, &toys[i], i == 0 ? &params : NULL);
        EXPECT(i == 0 || status == STATUS_OK);
    }
    EXPECT(status == STATUS_OK);
    TRY(collective_barrier(&dp.world));
    session_off(&dp);
    return STATUS_OK;
}

static void ranges_and_shares_are_attached_in_any_order(void) {
    HeadSplit heads[] = {HEAD_WHOLE, HEAD_BY_ROWS, HEAD_BY_VOCABULARY};
    for (int i = 0; i < 3; i++) {
        CHECK_EQ(ranks_run(NUM_STAGES, RANKS_CHECKED, shared_body, &heads[i], results, 1), 0);
    }
}

// --- tables that are not complete ------------------------------------------------------------------------

static Status refuses(Dynapipe* dp, const DynapipeModel_v1* api, ToyModel* toy,
                      const DynapipeParams_v1* params, const char* words) {
    EXPECT(dynapipe_attach(dp, 0, api, toy, params) == STATUS_OUT_OF_RANGE);
    if (strstr(status_message(), words) != NULL) { return STATUS_OK; }
    return FAIL(STATUS_COUNT, "not \"%s\" but: %s", words, status_message());
}

static Status incomplete_body(Transport* t, void* arg) {
    (void)arg;
    Dynapipe dp;
    TRY(session_on(&dp, t));
    ToyModel toy = toy_of(dp.stage);
    const DynapipeParams_v1 right = params_of(&toy, NULL, 0);
    TRY(refuses(&dp, NULL, &toy, &right, "no table of functions (api)"));
#define WITHOUT(member)                                                                \
    do {                                                                               \
        DynapipeModel_v1 api = toy_api;                                                \
        api.member = NULL;                                                             \
        TRY(refuses(&dp, &api, &toy, &right, " has no " #member " ---> of Dynapipe")); \
    } while (0)
    WITHOUT(acts_bytes);
    WITHOUT(scratch_bytes);
    WITHOUT(boundary_bytes);
    WITHOUT(forward);
    WITHOUT(backward_inputs);
    WITHOUT(zero_gradients);
    WITHOUT(name);
#undef WITHOUT
    DynapipeParams_v1 params = right;
    params.grads = NULL;
    TRY(refuses(&dp, &toy_api, &toy, &params, "parameters, but no array of them or of their gradients"));
    params = right;
    params.params = NULL;
    TRY(refuses(&dp, &toy_api, &toy, &params, "parameters, but no array of them"));
    TRY(refuses(&dp, &toy_api, &toy, NULL, "0 parameters, but no array of them"));
    params = right;
    params.num_params = -1;
    TRY(refuses(&dp, &toy_api, &toy, &params, "-1 parameters, but no array"));
    params = right;
    params.reserved[3] = 1;
    TRY(refuses(&dp, &toy_api, &toy, &params, "DynapipeParams_v1.reserved[3] is set"));
    DynapipeModel_v1 newer = toy_api;
    newer.reserved[0] = (void (*)(void))(uintptr_t)1;
    TRY(refuses(&dp, &newer, &toy, &right, "DynapipeModel_v1.reserved[0] is set"));
    params = right;
    params.grad_type = 3;
    TRY(refuses(&dp, &toy_api, &toy, &params, "gradients of type 3 ---> DYNAPIPE_FLOAT32 (0)"));
    params.grad_type = DYNAPIPE_FLOAT16;
    params.param_type = -1;
    TRY(refuses(&dp, &toy_api, &toy, &params, "parameters of type -1, gradients of type 2"));
    params = right;
    params.grad_type = t->rank == 1 ? DYNAPIPE_BFLOAT16 : DYNAPIPE_FLOAT32;
    EXPECT(dynapipe_attach(&dp, 0, &toy_api, &toy, &params) == STATUS_MISMATCH);
    EXPECT(strstr(status_message(), "ranks 0 and 1: parameters of type 0 and 0, gradients of type 0 and 1") !=
           NULL);
    TRY((Status)dynapipe_attach(&dp, 0, &toy_api_joint, &toy, &right));  // what may be NULL
    session_off(&dp);
    return STATUS_OK;
}

static void what_a_model_lacks_is_named(void) {
    CHECK_EQ(ranks_run(NUM_STAGES, RANKS_CHECKED, incomplete_body, NULL, results, 1), 0);
}

// --- counting --------------------------------------------------------------------------------------------

enum { MOST_VALUES = 4096 };

// How often a value was counted, over all ranks.
typedef struct {
    TiedCase layout;
    int32_t zero_stage;
    int32_t groups[TIED_CASE_GROUPS][MOST_VALUES];  // of a group's values
    int32_t others[RANKS_MAX][MOST_VALUES];         // [stage] of those that no group has
    pthread_mutex_t lock;
} Counting;

// To which counter value k of a stage belongs.
static int32_t* counter_of(Counting* c, int32_t stage, int64_t k) {
    for (int32_t g = 0; g < c->layout.num_groups; g++) {
        int64_t at = k - c->layout.begins[g][stage];
        if (c->layout.has[g][stage] && at >= 0 && at < c->layout.counts[g]) { return &c->groups[g][at]; }
    }
    return &c->others[stage][k];
}

static Status count_spans(Counting* c, Dynapipe* dp) {
    DynapipeSpan spans[TIED_CASE_GROUPS + 1];
    int32_t num_spans;
    int64_t begin, end, last = -1;
    dynapipe_shard(dp, &begin, &end);
    TRY((Status)dynapipe_counted(dp, spans, TIED_CASE_GROUPS + 1, &num_spans));
    pthread_mutex_lock(&c->lock);
    bool is_sound = true;
    for (int32_t i = 0; i < num_spans; i++) {
        is_sound &= spans[i].begin > last && spans[i].end > spans[i].begin;
        is_sound &= spans[i].begin >= begin && spans[i].end <= end;
        last = spans[i].end;
        for (int64_t k = spans[i].begin; k < spans[i].end; k++) { ++*counter_of(c, dp->stage, k); }
    }
    pthread_mutex_unlock(&c->lock);
    EXPECT(is_sound);
    if (num_spans > 0) {
        EXPECT(dynapipe_counted(dp, spans, num_spans - 1, &num_spans) == STATUS_OUT_OF_RANGE);
    }
    return STATUS_OK;
}

static Status count_body(Transport* t, void* arg) {
    Counting* c = arg;
    int32_t P = c->layout.num_stages, ranks[RANKS_MAX];
    Dynapipe dp = {.transport = *t, .num_stages = P, .num_replicas = c->layout.num_replicas};
    dp.stage = t->rank % P;
    dp.replica = t->rank / P;
    dp.run.zero_stage = c->zero_stage;
    const ExecutorRange range = {&toy_api, NULL};
    TRY(executor_create(&dp.executor, &range, 1, &dp.transport, 0));
    for (int32_t r = 0; r < t->num_ranks; r++) { ranks[r] = r; }
    TRY(collective_init(&dp.world, &dp.transport, ranks, t->num_ranks, INT64_C(20000000000)));
    DynapipeTied list[TIED_CASE_GROUPS];
    dp.params = (DynapipeParams_v1){.num_params = c->layout.num_params[dp.stage], .tied = list};
    dp.params.num_tied = tied_case_list(&c->layout, dp.stage, list);
    TRY(tied_groups_open(&dp.tied, &dp.world, P, &dp.params));
    Status status = count_spans(c, &dp);
    executor_free(dp.executor);
    tied_groups_free(&dp.tied);
    collective_free(&dp.world);
    return status;
}

// A group that some stage has: once; a stage's own values: once.
static void check_counts(Counting* c) {
    for (int32_t s = 0; s < c->layout.num_stages; s++) {
        for (int64_t k = 0; k < c->layout.num_params[s]; k++) { CHECK_EQ(*counter_of(c, s, k), 1); }
    }
}

static void every_parameter_is_counted_once(void) {
    static Counting c;
    Rng rng = rng_seed(1);
    for (int trial = 0; trial < 150 && test_failures == 0; trial++) {
        int32_t P = rng_between(&rng, 1, 6), R = rng_between(&rng, 1, P < 3 ? 4 : 2);
        memset(&c, 0, sizeof c);
        pthread_mutex_init(&c.lock, NULL);
        tied_case_draw(&c.layout, &rng, P, R, rng_between(&rng, 1, 300));
        c.zero_stage = trial % 2;
        CHECK_EQ(ranks_run(P * R, RANKS_CHECKED, count_body, &c, results, 1), 0);
        check_counts(&c);
        pthread_mutex_destroy(&c.lock);
    }
}

int main(void) {
    RUN(each_range_gets_one_model);
    RUN(ranges_and_shares_are_attached_in_any_order);
    RUN(what_a_model_lacks_is_named);
    RUN(every_parameter_is_counted_once);
    return test_end();
}
