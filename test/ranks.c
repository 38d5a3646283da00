#include "ranks.h"

#include <pthread.h>
#include <stdio.h>

#include "../util/program.h"
#include "../dynapipe_plugin/run/transport.h"

typedef struct {
    Transport transport;
    RankBody body;
    void* arg;
    RankResult* result;
} Rank;

static void* rank_main(void* arg) {
    Rank* rank = arg;
    RankResult* result = rank->result;
    *result = (RankResult){0};
    result->status = rank->body(&rank->transport, rank->arg);
    if (result->status != STATUS_OK) {
        snprintf(result->message, sizeof result->message, "%s", status_message());
        if (rank->transport.api != NULL) {
            rank->transport.api->abort(rank->transport.ctx, status_message());
        }
    }
    result->close_status = transport_close(&rank->transport);
    if (result->close_status != STATUS_OK) {
        snprintf(result->close_message, sizeof result->close_message, "%s", status_message());
    }
    return NULL;
}

int ranks_run(int32_t num_ranks, RankBody body, void* arg, RankResult* results, int print) {
    Transport ends[RANKS_MAX];
    Rank ranks[RANKS_MAX];
    pthread_t threads[RANKS_MAX];
    if (num_ranks > RANKS_MAX || transport_loopback_open(ends, num_ranks) != STATUS_OK) { return num_ranks; }
    for (int32_t r = 0; r < num_ranks; r++) {
        ranks[r] = (Rank){.transport = ends[r], .body = body, .arg = arg, .result = &results[r]};
    }
    for (int32_t r = 0; r < num_ranks; r++) { pthread_create(&threads[r], NULL, rank_main, &ranks[r]); }
    int failed = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        pthread_join(threads[r], NULL);
        const RankResult* result = &results[r];
        if (result->status == STATUS_OK && result->close_status == STATUS_OK) { continue; }
        failed++;
        if (print) { printf("rank %d: %s %s\n", (int)r, result->message, result->close_message); }
    }
    return failed;
}

Status ranks_wait(Transport* transport, void* request) {
    Backoff backoff = {0};
    int64_t end_ns = clock_now_ns() + (int64_t)20 * 1000000000;
    for (int done = 0; !done;) {
        TRY(transport->api->test(transport->ctx, request, &done));
        if (!done) { backoff_pause(&backoff); }
        if (clock_now_ns() > end_ns) { return FAIL(STATUS_COMM, "ranks_wait: 20 s passed"); }
    }
    return STATUS_OK;
}

Status ranks_world(Collective* out, Transport* transport) {
    int32_t ranks[RANKS_MAX];
    for (int32_t r = 0; r < transport->num_ranks; r++) { ranks[r] = r; }
    return collective_init(out, transport, ranks, transport->num_ranks, INT64_C(20000000000));
}
