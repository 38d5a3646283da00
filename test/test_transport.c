// test_transport.c -- loopback, bare and checked: order, lengths, rendezvous, failures; planted faults are
// found.
#include <stdbool.h>
#include <math.h>

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
        for (int kind = RANKS_PLAIN; kind <= RANKS_CHECKED; kind++) {
            uint64_t run_seed = seed + (uint64_t)R;
            CHECK_EQ(ranks_run(R, (RanksKind)kind, exchange_body, &run_seed, results, 1), 0);
        }
    }
}

static Status large_body(Transport* t, void* arg) {
    return transport_cases_large(t, *(size_t*)arg);
}

static void large_messages_go_both_ways(void) {
    size_t lengths[] = {0, 1, 4097, 5 * 1024 * 1024 + 3};
    for (size_t i = 0; i < 4; i++) {
        CHECK_EQ(ranks_run(2, RANKS_PLAIN, large_body, &lengths[i], results, 1), 0);
        CHECK_EQ(ranks_run(2, RANKS_CHECKED, large_body, &lengths[i], results, 1), 0);
    }
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
        for (int kind = RANKS_PLAIN; kind <= RANKS_CHECKED; kind++) {
            CHECK(ranks_run(2, (RanksKind)kind, mismatch_body, cases[i], results, 0) > 0);
            CHECK_EQ(results[1].status, STATUS_MISMATCH);
            char words[64];
            snprintf(words, sizeof words, "expects %zu bytes, tag 3", cases[i][1]);
            CHECK(strstr(results[1].message, words) != NULL);
        }
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
    for (int kind = RANKS_PLAIN; kind <= RANKS_CHECKED; kind++) {
        CHECK_EQ(ranks_run(4, (RanksKind)kind, abort_body, NULL, results, 0), 4);
        for (int r = 0; r < 4; r++) {
            CHECK_EQ(results[r].status, r == 2 ? STATUS_IO : STATUS_COMM);
            CHECK(strstr(results[r].message, "the disk is full") != NULL);
            CHECK_EQ(results[r].close_status, STATUS_OK);
        }
    }
}

static void arguments_out_of_range_are_errors(void) {
    Transport ends[2];
    char byte = 0;
    void* request;
    CHECK_FAILS(transport_loopback_open(ends, 0), STATUS_OUT_OF_RANGE, "0 ranks");
    CHECK_OK(transport_loopback_open(ends, 2));
    CHECK_FAILS(ends[0].api->isend(ends[0].ctx, 2, 0, &byte, 1, &request), STATUS_OUT_OF_RANGE, "ranks 0..1");
    CHECK_OK(transport_check_open(&ends[0], ends[0]));
    CHECK_FAILS(ends[0].api->isend(ends[0].ctx, 1, TRANSPORT_TAG_END, &byte, 1, &request),
                STATUS_OUT_OF_RANGE, "valid are 0..");
    CHECK_FAILS(ends[0].api->irecv(ends[0].ctx, 1, -1, &byte, 1, &request), STATUS_OUT_OF_RANGE, "tag -1");
    CHECK_FAILS(ends[0].api->irecv(ends[0].ctx, 0, 1, &byte, 1, &request), STATUS_OUT_OF_RANGE, "no peer 0");
    CHECK_EQ(strcmp(ends[0].api->name, "loopback+check"), 0);
    CHECK_OK(transport_close(&ends[0]));
    CHECK_OK(transport_close(&ends[1]));
}

// --- faults that only the checking decorator sees --------------------------------------------------------
typedef struct {
    Transport ends[2];
    float sent[16], got[16];
    void *send, *receive;
} Pair;

static void pair_open(Pair* pair) {
    *pair = (Pair){0};
    CHECK_OK(transport_loopback_open(pair->ends, 2));
    for (int r = 0; r < 2; r++) { CHECK_OK(transport_check_open(&pair->ends[r], pair->ends[r])); }
    for (int i = 0; i < 16; i++) { pair->sent[i] = (float)i; }
}

static Status pair_send(Pair* pair) {
    Transport* t = &pair->ends[0];
    return t->api->isend(t->ctx, 1, 8, pair->sent, sizeof pair->sent, &pair->send);
}

static Status pair_receive(Pair* pair) {
    Transport* t = &pair->ends[1];
    return t->api->irecv(t->ctx, 0, 8, pair->got, sizeof pair->got, &pair->receive);
}

static Status pair_test(Pair* pair) {
    Status status = STATUS_OK;
    for (int i = 0, done0 = 0, done1 = 0; i < 10 && status == STATUS_OK && !(done0 && done1); i++) {
        if (!done1) { status = pair->ends[1].api->test(pair->ends[1].ctx, pair->receive, &done1); }
        if (status == STATUS_OK && !done0) {
            status = pair->ends[0].api->test(pair->ends[0].ctx, pair->send, &done0);
        }
    }
    return status;
}

static void pair_abandon(Pair* pair) {
    for (int r = 0; r < 2; r++) { pair->ends[r].api->abort(pair->ends[r].ctx, "end of test"); }
    for (int r = 0; r < 2; r++) { CHECK_OK(transport_close(&pair->ends[r])); }
}

static void receive_buffers_are_nan_until_the_data_is_there(void) {
    Pair pair;
    pair_open(&pair);
    CHECK_OK(pair_receive(&pair));
    for (int i = 0; i < 16; i++) { CHECK(isnan(pair.got[i])); }
    CHECK_OK(pair_send(&pair));
    CHECK_OK(pair_test(&pair));
    CHECK_EQ(memcmp(pair.sent, pair.got, sizeof pair.sent), 0);
    for (int r = 0; r < 2; r++) { CHECK_OK(transport_close(&pair.ends[r])); }
}

static void touching_a_buffer_in_flight_is_found(void) {
    Pair pair;
    pair_open(&pair);
    CHECK_OK(pair_send(&pair));
    pair.sent[3] = 100;  // the sender writes too early
    CHECK_OK(pair_receive(&pair));
    CHECK_FAILS(pair_test(&pair), STATUS_INVALID_PLAN, "tag 8");
    pair_abandon(&pair);

    pair_open(&pair);
    CHECK_OK(pair_receive(&pair));
    pair.got[5] = 1;  // the receiver uses the buffer before its data is there
    CHECK_OK(pair_send(&pair));
    CHECK_FAILS(pair_test(&pair), STATUS_INVALID_PLAN, "wrote byte 20 of a buffer in flight");
    pair_abandon(&pair);
}

static void a_buffer_in_flight_is_not_posted_again(void) {
    Pair pair;
    pair_open(&pair);
    void* request;
    Transport* t = &pair.ends[1];
    CHECK_OK(pair_receive(&pair));
    CHECK_FAILS(t->api->irecv(t->ctx, 0, 9, pair.got + 15, 4, &request), STATUS_INVALID_PLAN, "in flight");
    CHECK_FAILS(t->api->isend(t->ctx, 0, 9, pair.got + 2, 8, &request), STATUS_INVALID_PLAN, "in flight");
    const unsigned char* last_byte = (const unsigned char*)pair.got + sizeof pair.got - 1;
    CHECK_FAILS(t->api->isend(t->ctx, 0, 9, last_byte, 1, &request), STATUS_INVALID_PLAN, "in flight");
    CHECK_OK(pair_send(&pair));
    CHECK_OK(pair_test(&pair));
    void *first, *second;  // two sends only read: fine
    CHECK_OK(t->api->isend(t->ctx, 0, 9, pair.got, 8, &first));
    CHECK_OK(t->api->isend(t->ctx, 0, 10, pair.got + 1, 8, &second));
    pair_abandon(&pair);
}

static void closing_with_requests_in_flight_is_an_error(void) {
    Pair pair;
    pair_open(&pair);
    CHECK_OK(pair_send(&pair));
    CHECK_FAILS(transport_close(&pair.ends[0]), STATUS_COMM,
                "1 requests in flight, the oldest a send to rank 1 tag 8, 64 bytes");
    CHECK_OK(transport_close(&pair.ends[1]));
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(messages_arrive_whole_and_in_order);
    RUN(large_messages_go_both_ways);
    RUN(a_send_is_done_when_the_receive_has_taken_it);
    RUN(unequal_lengths_are_a_mismatch);
    RUN(an_abort_wakes_everybody);
    RUN(arguments_out_of_range_are_errors);
    RUN(receive_buffers_are_nan_until_the_data_is_there);
    RUN(touching_a_buffer_in_flight_is_found);
    RUN(a_buffer_in_flight_is_not_posted_again);
    RUN(closing_with_requests_in_flight_is_an_error);
    return test_end();
}
