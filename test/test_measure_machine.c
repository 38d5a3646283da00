// test_measure_machine.c -- in what ranks and links differ: a rank that is slower is found, on all ranks
// alike, and by how much; a link that is slower too; what is no more than noise is none.
#include "../util/program.h"
#include "../util/numbers.h"
#include "../dynapipe_plugin/measure/measure.h"
#include "../dynapipe_plugin/run/hosts.h"
#include "clock_model.h"
#include "ranks.h"
#include "test.h"

enum { NUM_RANKS = 4, MOST_REQUESTS = 64 };

// --- a transport of which one link is slow
// -------------------------------------------------------------------

typedef struct {
    Transport inner;
    int32_t slow_peer;  // -1: none
    int64_t delay_ns;
    struct {
        void* inner;
        int64_t ready_ns;
    } requests[MOST_REQUESTS];
} Slow;

// A message to or from that peer is done no sooner than delay_ns after it was posted.
static Status slow_add(Slow* slow, int32_t peer, void* inner, void** request) {
    for (int i = 0; i < MOST_REQUESTS; i++) {
        if (slow->requests[i].inner != NULL) { continue; }
        slow->requests[i].inner = inner;
        slow->requests[i].ready_ns = clock_now_ns() + (peer == slow->slow_peer ? slow->delay_ns : 0);
        *request = &slow->requests[i];
        return STATUS_OK;
    }
    return FAIL(STATUS_COUNT, "too many requests");
}

static Status slow_isend(void* ctx, int32_t peer, int32_t tag, const void* data, size_t num_bytes,
                         void** request) {
    Slow* slow = ctx;
    void* inner;
    TRY(slow->inner.api->isend(slow->inner.ctx, peer, tag, data, num_bytes, &inner));
    return slow_add(slow, peer, inner, request);
}

static Status slow_irecv(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes, void** request) {
    Slow* slow = ctx;
    void* inner;
    TRY(slow->inner.api->irecv(slow->inner.ctx, peer, tag, data, num_bytes, &inner));
    return slow_add(slow, peer, inner, request);
}

static Status slow_test(void* ctx, void* request, int* done) {
    Slow* slow = ctx;
    int i = 0;
    while (&slow->requests[i] != request) { i++; }
    *done = 0;
    if (clock_now_ns() < slow->requests[i].ready_ns) { return STATUS_OK; }
    TRY(slow->inner.api->test(slow->inner.ctx, slow->requests[i].inner, done));
    if (*done) { slow->requests[i].inner = NULL; }
    return STATUS_OK;
}

static const DynapipeTransport_v1 slow_api = {
    .name = "slow", .isend = slow_isend, .irecv = slow_irecv, .test = slow_test};

// --- ranks -------------------------------------------------------------------------------------------------

typedef struct {
    double slower;         // rank 2's jobs
    int32_t slow_link;     // between this rank and the next; -1: none
    int64_t delay_ns;      // there
    int32_t num_replicas;  // all ranks are; 1: all are stages
    struct {
        DynapipeCosts costs;
        uint64_t machine_hash;
        MachineRank ranks[NUM_RANKS], found[NUM_RANKS];
    } of[NUM_RANKS];
} Case;

static Status open_session(Dynapipe* dp, Transport* transport, int32_t num_replicas) {
    int32_t ranks[RANKS_MAX];
    *dp = (Dynapipe){.transport = *transport, .num_replicas = num_replicas};
    dp->num_stages = transport->num_ranks / num_replicas;
    for (int32_t r = 0; r < transport->num_ranks; r++) { ranks[r] = r; }
    TRY(collective_init(&dp->world, &dp->transport, ranks, transport->num_ranks, INT64_C(20000000000)));
    if (num_replicas == 1) { return STATUS_OK; }
    for (int32_t r = 0; r < num_replicas; r++) {
        ranks[r] = r * dp->num_stages + transport->rank % dp->num_stages;
    }
    return collective_init(&dp->replicas, &dp->transport, ranks, num_replicas, INT64_C(20000000000));
}

static Status measure_body(Transport* t, void* arg) {
    Case* about = arg;
    Slow slow = {.inner = *t, .slow_peer = -1, .delay_ns = about->delay_ns};
    if (about->slow_link >= 0 && t->rank == about->slow_link) { slow.slow_peer = t->rank + 1; }
    if (about->slow_link >= 0 && t->rank == about->slow_link + 1) { slow.slow_peer = t->rank - 1; }
    Transport transport = {.api = &slow_api, .ctx = &slow, .rank = t->rank, .num_ranks = t->num_ranks};
    ClockModel model;
    Dynapipe dp;
    DynapipeCosts* costs = measure_costs_new(t->num_ranks);
    EXPECT(costs != NULL);
    clock_model_init(&model, 4, 0, false, false);
    if (t->rank == 2) { model.slower = about->slower; }
    TRY(open_session(&dp, &transport, about->num_replicas));
    Measure m = {.dp = &dp,
                 .blocks = &model.blocks,
                 .max_tokens = 128,
                 .lengths = {128, 0},
                 .budget_ns = INT64_C(60000000000),
                 .clock_ns = clock_model_ns};
    TRY(measure_fresh(costs, about->of[t->rank].found, &m));
    about->of[t->rank].costs = *costs;
    about->of[t->rank].machine_hash = machine_hash(&costs->machine);
    for (int32_t r = 0; r < t->num_ranks; r++) {
        about->of[t->rank].ranks[r] = machine_rank(&costs->machine, r);
    }
    free(costs);
    collective_free(&dp.replicas);
    collective_free(&dp.world);
    return STATUS_OK;
}

static Case* measure(double slower, int32_t slow_link, int64_t delay_ns, int32_t num_replicas) {
    static RankResult results[RANKS_MAX];
    static Case about;
    memset(&about, 0, sizeof about);
    about.slower = slower;
    about.slow_link = slow_link;
    about.delay_ns = delay_ns;
    about.num_replicas = num_replicas;
    CHECK_EQ(ranks_run(NUM_RANKS, RANKS_PLAIN, measure_body, &about, results, 1), 0);
    for (int32_t r = 1; r < NUM_RANKS; r++) {
        CHECK_EQ(about.of[r].machine_hash, about.of[0].machine_hash);
        CHECK_EQ(memcmp(&about.of[r].costs.model, &about.of[0].costs.model, sizeof(CostModel)), 0);
    }
    return &about;
}

// --- laws --------------------------------------------------------------------------------------------------

static void a_slow_rank_is_found(void) {
    const Case* about = measure(1.5, -1, 0, 1);
    CHECK_EQ(about->of[0].costs.machine.num_ranks, NUM_RANKS);
    for (int32_t r = 0; r < NUM_RANKS; r++) {
        for (JobKind kind = JOB_F; kind < JOB_COUNT; kind++) {
            CHECK_NEAR(about->of[0].ranks[r].slow[kind], (r == 2 ? 1.5 : 1) / 1.125, 1e-3);
        }
    }
}

static void noise_is_no_difference(void) {
    const Case* about = measure(1.02, -1, 0, 1);
    for (int32_t r = 0; r < NUM_RANKS; r++) {
        for (JobKind kind = JOB_F; kind < JOB_COUNT; kind++) {
            CHECK_EQ(about->of[0].ranks[r].slow[kind], 1);
        }
    }
    CHECK_NEAR(about->of[0].found[2].slow[JOB_F], 1.02 / 1.005, 1e-3);
}

// Of three links the one that takes 8 ms longer, wherever it is: of the first pairs or of the second.
static void a_slow_link_is_found(void) {
    const int64_t delay_ns = 8000000;
    for (int32_t link = 0; link < 2; link++) {
        const Case* about = measure(1, link, delay_ns, 1);
        const MachineRank* ranks = about->of[0].ranks;
        CHECK_EQ(about->of[0].costs.machine.num_ranks, NUM_RANKS);
        for (int32_t r = 0; r + 1 < NUM_RANKS; r++) {
            CHECK(ranks[r].link_bytes_per_ns > 0);
            CHECK((ranks[r].link_latency_ns >= (double)delay_ns) == (r == link));
        }
        CHECK_EQ(ranks[NUM_RANKS - 1].link_bytes_per_ns, 0);
        CHECK(about->of[0].costs.model.comm_latency_ns >= (double)delay_ns / 3);
    }
}

// Between replicas no activation passes: there a link may be as slow as it likes.
static void links_between_replicas_do_not_count(void) {
    const double delay_ns = 8e6;
    for (int32_t link = 0; link < 2; link++) {
        const Case* about = measure(1, link, (int64_t)delay_ns, 2);
        CHECK((about->of[0].costs.model.comm_latency_ns > delay_ns / 3) == (link == 0));
        CHECK_EQ(about->of[0].found[1].link_bytes_per_ns, 0);
        CHECK(about->of[0].found[0].link_bytes_per_ns > 0 && about->of[0].found[2].link_bytes_per_ns > 0);
    }
}

// Sums go over the slow link, too: there and back.
static void sums_of_replicas_have_their_own_rate(void) {
    double usual = measure(1, -1, 0, NUM_RANKS)->of[0].costs.model.reduce_bytes_per_ns;
    double slow = measure(1, 1, 8000000, NUM_RANKS)->of[0].costs.model.reduce_bytes_per_ns;
    CHECK(usual > 0 && slow > 0);
    CHECK(slow < 1.5 * LINK_PROBE_BYTES / 2 / 8e6);
}

// Any speeds and links: those close together become one, any other stays as it was.
static void what_is_alike_is_settled(void) {
    Rng rng = rng_seed(7);
    for (int round = 0; round < 300; round++) {
        MachineRank ranks[5], before[5];
        bool wide_slow = rng_below(&rng, 2) > 0, wide_link = rng_below(&rng, 2) > 0;
        for (int32_t r = 0; r < 5; r++) {
            ranks[r] = machine_rank(NULL, r);
            ranks[r].slow[JOB_B] = 1 + rng_below(&rng, 1000) * 2.5e-5 + (wide_slow && r == 3 ? 0.1 : 0);
            ranks[r].slow[JOB_W] = 1 + (double)rng_below(&rng, 1000) * 5.8e-5;  // noise, with the others
            ranks[r].link_latency_ns = 1000;
            ranks[r].link_bytes_per_ns = 10 + rng_below(&rng, 100) * 0.015 + (wide_link && r == 1 ? 5 : 0);
        }
        memcpy(before, ranks, sizeof ranks);
        CHECK_EQ(measure_machine_settle(ranks, 5), wide_slow || wide_link);
        for (int32_t r = 0; r < 5; r++) {
            CHECK(ranks[r].slow[JOB_B] == (wide_slow ? before[r].slow[JOB_B] : 1));
            CHECK(ranks[r].slow[JOB_W] == (wide_slow ? before[r].slow[JOB_W] : 1) ||
                  ranks[r].slow[JOB_W] == 1);
            CHECK_EQ(ranks[r].slow[JOB_F], 1);
            if (r < 4) { CHECK(ranks[r].link_bytes_per_ns == (wide_link ? before[r].link_bytes_per_ns : 0)); }
        }
    }
    MachineRank alone = machine_rank(NULL, 0);
    CHECK(!measure_machine_settle(&alone, 1));
}

// One point in eight may be anything.
static void a_point_that_was_disturbed_is_left_out(void) {
    static MeasureSpeed speed;
    CHECK_EQ(measure_speed_slow(&speed, JOB_F), 1);
    for (int i = 0; i < 300; i++) {
        double mean[JOB_COUNT] = {100 + i, 100, 0}, mine[JOB_COUNT] = {1.3 * (100 + i), 70, 0};
        if (i % 9 == 0) { mine[JOB_F] *= i % 2 == 0 ? 50 : 0.01; }
        measure_speed_add(&speed, mine, mean);
    }
    CHECK_NEAR(measure_speed_slow(&speed, JOB_F), 1.3, 1e-9);
    CHECK_NEAR(measure_speed_slow(&speed, JOB_B), 0.7, 1e-9);
    CHECK_EQ(measure_speed_slow(&speed, JOB_W), 1);
}

int main(void) {
    RUN(a_slow_rank_is_found);
    RUN(noise_is_no_difference);
    RUN(a_slow_link_is_found);
    RUN(links_between_replicas_do_not_count);
    RUN(sums_of_replicas_have_their_own_rate);
    RUN(what_is_alike_is_settled);
    RUN(a_point_that_was_disturbed_is_left_out);
    return test_end();
}
