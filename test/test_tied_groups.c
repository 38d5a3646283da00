// test_tied_groups.c -- copies of parameters on any stages: every copy gets the sum of all, in the order of
// ranks, bit for bit; what is told wrongly is named on every rank.
#include "../util/program.h"
#include "ranks.h"
#include "test.h"
#include "tied_case.h"

static uint64_t seed;
static RankResult results[RANKS_MAX];

enum { SECOND_NS = 1000000000 };

static void arrive_late(Rng* rng) {
    int64_t end_ns = clock_now_ns() + (rng_below(rng, 4) == 0 ? rng_between(rng, 0, 300000) : 0);
    while (clock_now_ns() < end_ns) {}
}

static Status check_groups(const TiedCase* it, const TiedGroups* tied, int32_t stage) {
    int32_t expected = 0;
    for (int32_t g = 0; g < it->num_groups; g++) {
        int32_t copies = 0;
        for (int32_t s = 0; s < it->num_stages; s++) { copies += it->has[g][s]; }
        expected += copies > 1 && it->has[g][stage];
    }
    EXPECT(tied->num_groups == expected);
    for (int32_t i = 1; i < tied->num_groups; i++) {
        EXPECT(tied->groups[i - 1].group < tied->groups[i].group);
    }
    for (int32_t i = 1; i < tied->num_holders; i++) {
        for (int32_t k = 0; k < i; k++) {
            EXPECT(memcmp(tied->holders[i].stages, tied->holders[k].stages, sizeof tied->holders[i].stages) !=
                   0);
        }
    }
    return STATUS_OK;
}

// As session_step.c does it.
static Status sum_all(const TiedCase* it, const Sums* sums, const TiedGroups* tied, unsigned char* grads,
                      int32_t rank) {
    const int32_t bytes_per_value = collective_type_bytes(it->type);
    int32_t stage = rank % it->num_stages;
    int64_t n = it->num_params[stage];
    Rng rng = rng_seed(it->seed + (uint64_t)rank);
    for (int64_t k = 0; k < n; k++) { tied_case_store(it, grads, k, tied_case_value(it, true, rank, k)); }
    for (int32_t i = 0; i < tied->num_groups; i++) {
        const TiedGroup* group = &tied->groups[i];
        arrive_late(&rng);
        TRY(sums->api->sum_copies(sums->ctx, group->holders, grads + group->begin * bytes_per_value,
                                  group->count, it->type));
    }
    for (int64_t k = 0; k < n; k++) {
        EXPECT(tied_case_load(it, grads, k) == tied_case_after_groups(it, true, rank, k));
    }
    arrive_late(&rng);
    TRY(sums->api->reduce_scatter(sums->ctx, grads, n, it->type));
    TRY(sums->api->all_gather(sums->ctx, grads, n, bytes_per_value));
    for (int64_t k = 0; k < n; k++) {
        EXPECT(tied_case_load(it, grads, k) == tied_case_after_replicas(it, true, stage, k));
    }
    return STATUS_OK;
}

static Status sums_body(Transport* t, void* arg) {
    const TiedCase* it = arg;
    int32_t P = it->num_stages, stage = t->rank % P, ranks[RANKS_MAX];
    Collective world, replicas;
    TRY(ranks_world(&world, t));
    for (int32_t r = 0; r < it->num_replicas; r++) { ranks[r] = r * P + stage; }
    TRY(collective_init(&replicas, t, ranks, it->num_replicas, (int64_t)20 * SECOND_NS));
    DynapipeTied list[TIED_CASE_GROUPS];
    DynapipeParams_v1 params = {.num_params = it->num_params[stage], .grad_type = (int32_t)it->type};
    params.tied = list;
    params.num_tied = tied_case_list(it, stage, list);
    TiedGroups tied;
    Sums sums;
    TRY(tied_groups_open(&tied, &world, P, &params));
    memset(list, 0xee, sizeof list);  // copied, not kept
    TRY(sums_host_open(&sums, &replicas, &tied, (Device){0}, NULL, 0));
    unsigned char* grads = malloc((size_t)params.num_params * sizeof(float) + 1);
    EXPECT(grads != NULL);
    Status status = check_groups(it, &tied, stage);
    for (int step = 0; status == STATUS_OK && step < 3; step++) {
        status = sum_all(it, &sums, &tied, grads, t->rank);
    }
    free(grads);
    sums_close(&sums);
    tied_groups_free(&tied);
    collective_free(&replicas);
    collective_free(&world);
    return status;
}

static void every_copy_gets_the_sum_of_all(void) {
    Rng rng = rng_seed(seed);
    int num_groups = 0;
    for (int trial = 0; trial < test_rounds(150); trial++) {
        TiedCase it;
        bool is_long = trial % 50 == 0;  // several messages, whose memory is used in turns
        int32_t P = rng_between(&rng, 1, is_long ? 2 : 6), R = rng_between(&rng, 1, P < 3 ? 4 : 2);
        if (is_long) { R = 2; }
        do {
            tied_case_draw(&it, &rng, P, R, is_long ? 1100001 : rng_between(&rng, 1, 5000));
        } while (is_long && it.num_params[0] < 1100000);
        num_groups += it.num_groups;
        int failed = ranks_run(P * R, sums_body, &it, results, 1);
        CHECK_EQ(failed, 0);
        if (failed > 0) { printf("trial %d: %d stages, %d replicas\n", trial, P, R); }
    }
    CHECK(num_groups > test_rounds(100));
}

// --- what is told wrongly --------------------------------------------------------------------------------
typedef struct {
    DynapipeTied list[4][3];  // [rank]
    int32_t num_tied[4];
    int64_t num_params[4];
    Status status;
    const char* message;
} Wrong;

static Status wrong_body(Transport* t, void* arg) {
    const Wrong* wrong = arg;
    Collective world;
    TiedGroups tied;
    TRY(ranks_world(&world, t));
    DynapipeParams_v1 params = {.num_params = wrong->num_params[t->rank],
                                .num_tied = wrong->num_tied[t->rank],
                                .tied = wrong->list[t->rank]};
    Status status = tied_groups_open(&tied, &world, 2, &params);
    EXPECT(status == wrong->status);
    if (status != STATUS_OK && strstr(status_message(), wrong->message) == NULL) {
        return FAIL(STATUS_COUNT, "not \"%s\" but: %s", wrong->message, status_message());
    }
    TRY(collective_barrier(&world));  // everybody has heard of it, so all still work together
    if (status == STATUS_OK) { tied_groups_free(&tied); }
    collective_free(&world);
    return STATUS_OK;
}

// Two stages, two replicas; the right thing is a group 5 of ten values on both.
static void check_wrong(int32_t rank, int32_t num_tied, DynapipeTied first, DynapipeTied second,
                        Status status, const char* message) {
    Wrong wrong = {.status = status, .message = message};
    for (int32_t r = 0; r < 4; r++) {
        wrong.list[r][0] = (DynapipeTied){5, 20 * (r % 2), 10};
        wrong.num_tied[r] = 1;
        wrong.num_params[r] = 30;
        if (r != rank) { continue; }
        wrong.list[r][0] = first;
        wrong.list[r][1] = second;
        wrong.num_tied[r] = num_tied;
    }
    CHECK_EQ(ranks_run(4, wrong_body, &wrong, results, 1), 0);
}

static void what_is_told_wrongly_is_named_everywhere(void) {
    DynapipeTied none = {0}, right = {5, 0, 10};
    check_wrong(-1, 0, none, none, STATUS_OK, "");
    check_wrong(2, 1, (DynapipeTied){5, 21, 10}, none, STATUS_OUT_OF_RANGE,
                "rank 2: tied group 5 is 10 values from 21, of 30 parameters --->");
    check_wrong(1, 1, (DynapipeTied){5, -1, 10}, none, STATUS_OUT_OF_RANGE,
                "rank 1: tied group 5 is 10 values");
    check_wrong(0, 1, (DynapipeTied){5, 0, 0}, none, STATUS_OUT_OF_RANGE, "rank 0: tied group 5 is 0 values");
    check_wrong(0, 1, (DynapipeTied){5, 1, INT64_MAX}, none, STATUS_OUT_OF_RANGE,
                "rank 0: tied group 5 is 9223");
    check_wrong(3, 1, (DynapipeTied){-5, 0, 10}, none, STATUS_OUT_OF_RANGE, "rank 3: tied group -5 is");
    check_wrong(0, 2, right, (DynapipeTied){5, 10, 10}, STATUS_OUT_OF_RANGE,
                "rank 0: tied groups 5 and 5 are one");
    check_wrong(0, 2, right, (DynapipeTied){6, 9, 10}, STATUS_OUT_OF_RANGE,
                "rank 0: tied groups 5 and 6 are one, or overlap");
    check_wrong(1, 1, (DynapipeTied){5, 20, 9}, none, STATUS_MISMATCH,
                "tied group 5: rank 0 has 10 values of it, rank 1 has 9 --->");
}

static void replicas_of_a_stage_are_laid_out_alike(void) {
    Wrong wrong = {.status = STATUS_MISMATCH,
                   .message = "ranks 1 and 3 are replicas of a stage, but one has 30"};
    for (int32_t r = 0; r < 4; r++) {
        wrong.list[r][0] = (DynapipeTied){5, 0, 10};
        wrong.num_tied[r] = 1;
        wrong.num_params[r] = 30;
    }
    wrong.num_params[3] = 31;
    CHECK_EQ(ranks_run(4, wrong_body, &wrong, results, 1), 0);
    wrong.num_params[3] = 30;
    wrong.list[3][0].begin = 1;
    CHECK_EQ(ranks_run(4, wrong_body, &wrong, results, 1), 0);
    wrong.num_tied[3] = 0;
    CHECK_EQ(ranks_run(4, wrong_body, &wrong, results, 1), 0);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_copy_gets_the_sum_of_all);
    RUN(what_is_told_wrongly_is_named_everywhere);
    RUN(replicas_of_a_stage_are_laid_out_alike);
    return test_end();
}
