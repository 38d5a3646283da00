// test_transport.c -- loopback: order, lengths, rendezvous, failures.
#include <stdbool.h>

#include "../util/numbers.h"
#include "ranks.h"
#include "test.h"
#include "transport_cases.h"

static uint64_t seed;
static RankResult results[RANKS_MAX];

static Status exchange_body(Transport* t, void* arg) {
    return transport_cases_exchange(t, *(uint64_t*)arg, 40);
}

static void messages_arrive_whole_and_in_order(void) {
    for (int32_t R = 1; R <= 5; R++) {
        uint64_t run_seed = seed + (uint64_t)R;
        CHECK_EQ(ranks_run(R, exchange_body, &run_seed, results, 1), 0);
    }
}

static Status large_body(Transport* t, void* arg) {
    return transport_cases_large(t, *(size_t*)arg);
}

static void large_messages_go_both_ways(void) {
    size_t lengths[] = {0, 1, 4097, 5 * 1024 * 1024 + 3};
    for (size_t i = 0; i < 4; i++) { CHECK_EQ(ranks_run(2, large_body, &lengths[i], results, 1), 0); }
}

// A send ends only once its receive was posted, whatever its length: zero buffers.
static void a_send_is_done_when_the_receive_has_taken_it(void) {
    Transport ends[2];
    CHECK_OK(transport_loopback_open(ends, 2));
    char sent = 'x', got = 0;
    void *send, *receive;
    int done = 1;
    CHECK_OK(ends[0].api->isend(ends[0].ctx, 1, 5, &sent, 1, &send));
    for (int i = 0; i < 100; i++) {
        CHECK_OK(ends[0].api->test(ends[0].ctx, send, &done));
        CHECK_EQ(done, 0);
    }
    CHECK_OK(ends[1].api->irecv(ends[1].ctx, 0, 6, &got, 1, &receive));  // another tag takes nothing
    CHECK_OK(ends[0].api->test(ends[0].ctx, send, &done));
    CHECK_EQ(done, 0);
    void* right;
    CHECK_OK(ends[1].api->irecv(ends[1].ctx, 0, 5, &got, 1, &right));
    CHECK_OK(ends[0].api->test(ends[0].ctx, send, &done));
    CHECK_EQ(done, 1);
    CHECK_OK(ends[1].api->test(ends[1].ctx, right, &done));
    CHECK_EQ(done, 1);
    CHECK_EQ(got, 'x');
    CHECK_OK(ends[1].api->test(ends[1].ctx, receive, &done));
    CHECK_EQ(done, 0);
    CHECK_FAILS(transport_close(&ends[1]), STATUS_COMM, "rank 1 closes with 1 requests in flight");
    CHECK_FAILS(ends[0].api->isend(ends[0].ctx, 1, 5, &sent, 1, &send), STATUS_COMM, "rank 1 has left");
    CHECK_OK(transport_close(&ends[0]));
}

static Status mismatch_body(Transport* t, void* arg) {
    const size_t* lengths = arg;
    return transport_cases_mismatch(t, lengths[0], lengths[1]);
}

static void unequal_lengths_are_a_mismatch(void) {
    size_t cases[][2] = {{8, 16}, {16, 8}, {0, 1}, {1 << 20, 1 << 19}};
    for (size_t i = 0; i < 4; i++) {
        CHECK(ranks_run(2, mismatch_body, cases[i], results, 0) > 0);
        CHECK_EQ(results[1].status, STATUS_MISMATCH);
        char words[64];
        snprintf(words, sizeof words, "expects %zu bytes, tag 3", cases[i][1]);
        CHECK(strstr(results[1].message, words) != NULL);
    }
}

// Rank 2 fails; the others wait for it, or for each other, and must all learn why.
static Status abort_body(Transport* t, void* arg) {
    (void)arg;
    if (t->rank == 2) { return FAIL(STATUS_IO, "the disk is full"); }
    char byte;
    void* request;
    TRY(t->api->irecv(t->ctx, (t->rank + 1) % 4, 0, &byte, 1, &request));
    return ranks_wait(t, request);
}

static void an_abort_wakes_everybody(void) {
    CHECK_EQ(ranks_run(4, abort_body, NULL, results, 0), 4);
    for (int r = 0; r < 4; r++) {
        CHECK_EQ(results[r].status, r == 2 ? STATUS_IO : STATUS_COMM);
        CHECK(strstr(results[r].message, "the disk is full") != NULL);
        CHECK_EQ(results[r].close_status, STATUS_OK);
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(messages_arrive_whole_and_in_order);
    RUN(large_messages_go_both_ways);
    RUN(a_send_is_done_when_the_receive_has_taken_it);
    RUN(unequal_lengths_are_a_mismatch);
    RUN(an_abort_wakes_everybody);
    return test_end();
}
