// transport_main.c -- ranks of mpirun run the cases of every transport; test/test_mpi_transport.sh drives it.
//     mpirun -np N transport_main exchange|abort|kill|in-flight|wait|overlap
//                                 mismatch SENT EXPECTED | measure
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "../../util/program.h"
#include "../../util/numbers.h"
#include "../../dynapipe_plugin/run/collective.h"
#include "../../dynapipe_plugin/run/hosts.h"
#include "../ranks.h"
#include "../transport_cases.h"

static Status run_exchange(Transport* t) {
    size_t lengths[] = {0, 1, 1000, 100000, 5 * 1024 * 1024 + 3};
    for (uint64_t seed = 1; seed <= 4; seed++) { TRY(transport_cases_exchange(t, seed, 60)); }
    for (size_t i = 0; i < 5 && t->num_ranks > 1; i++) { TRY(transport_cases_large(t, lengths[i])); }
    return STATUS_OK;
}

static Status wait_for_ever(Transport* t) {
    char byte;
    void* request;
    TRY(t->api->irecv(t->ctx, (t->rank + 1) % t->num_ranks, 0, &byte, 1, &request));
    for (int done = 0; !done;) {
        TRY(t->api->test(t->ctx, request, &done));
        usleep(50);
    }
    return STATUS_OK;
}

// Rank 1 fails (or dies) while the others wait for ever.
static Status run_abort(Transport* t, bool dies) {
    if (t->rank != 1) { return wait_for_ever(t); }
    usleep(200000);
    if (dies) { kill(getpid(), SIGKILL); }
    return FAIL(STATUS_IO, "the disk is full");
}

// The sender has nothing to complain of, but stays: where it finalizes while the other gives up, mpirun once
// waited for ever.
static Status run_mismatch(Transport* t, size_t sent_bytes, size_t expected_bytes) {
    TRY(transport_cases_mismatch(t, sent_bytes, expected_bytes));
    return wait_for_ever(t);
}

static Status run_in_flight(Transport* t) {
    static char bytes[64];
    void* request;
    return t->api->irecv(t->ctx, (t->rank + 1) % t->num_ranks, 0, bytes, 64, &request);
}

// Two ranks, with a thread that looks every 100 us. Rank 0 posts a message and computes 100 ms, rank 1 posts
// its receive after 20 ms: when does it have the data?
static Status run_overlap(Transport* t) {
    size_t lengths[] = {64 << 10, 1 << 20, 8 << 20};
    int32_t ranks[] = {0, 1};
    bool is_on;
    Collective c;
    TRY(collective_init(&c, t, ranks, 2, 0));
    TRY(t->api->progress(t->ctx, 100000, &is_on));
    EXPECT(is_on);
    for (int i = 0; i < 6; i++) {
        void* request;
        char* data = calloc(1, lengths[i % 3]);
        EXPECT(data != NULL);
        TRY(collective_barrier(&c));
        int64_t begin_ns = clock_now_ns();
        if (t->rank == 0) {
            TRY(t->api->isend(t->ctx, 1, 1, data, lengths[i % 3], &request));
            while (clock_now_ns() - begin_ns < 100000000) {}
            TRY(ranks_wait(t, request));
        } else {
            usleep(20000);
            TRY(t->api->irecv(t->ctx, 0, 1, data, lengths[i % 3], &request));
            TRY(ranks_wait(t, request));
            double ms = (double)(clock_now_ns() - begin_ns) / 1e6;
            if (i >= 3) { printf("overlap %zu KB: %.1f ms\n", lengths[i % 3] >> 10, ms); }
        }
        free(data);
    }
    collective_free(&c);
    return STATUS_OK;
}

// Whether a thread has to move messages: every rank finds the same, and what it found works.
static Status run_measure(Transport* t) {
    int32_t ranks[RANKS_MAX], messages;
    bool is_on;
    Collective c;
    for (int32_t r = 0; r < t->num_ranks; r++) { ranks[r] = r; }
    TRY(collective_init(&c, t, ranks, t->num_ranks, (int64_t)20 * 1000000000));
    TRY(messages_measure(&messages, &c));
    TRY(collective_all_equal_u64(&c, (uint64_t)messages, "choice"));
    collective_free(&c);
    TRY(t->api->progress(t->ctx, messages > MESSAGES_PULLED ? messages : 100000, &is_on));
    EXPECT(is_on);
    if (t->rank == 0) { printf("messages %s (%d)\n", messages_text(messages), (int)messages); }
    return transport_cases_exchange(t, 6, 30);
}

static double cpu_seconds(void) {  // of all threads of this process
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

// Everybody but rank 0 waits one second for it; what does that cost in time on a core?
static Status run_wait(Transport* t) {
    char byte = 0;
    void* request;
    if (t->rank > 0) {
        double before = cpu_seconds();
        TRY(t->api->irecv(t->ctx, 0, 1, &byte, 1, &request));
        TRY(ranks_wait(t, request));
        printf("waiting costs %.1f %%\n", 100 * (cpu_seconds() - before));
        return STATUS_OK;
    }
    usleep(1000000);
    for (int32_t r = 1; r < t->num_ranks; r++) {
        TRY(t->api->isend(t->ctx, r, 1, &byte, 1, &request));
        TRY(ranks_wait(t, request));
    }
    return STATUS_OK;
}

static Status run(Transport* t, int argc, char** argv) {
    const char* what = argc > 1 ? argv[1] : "";
    if (strcmp(what, "exchange") == 0) { return run_exchange(t); }
    if (strcmp(what, "mismatch") == 0 && argc == 4) {
        return run_mismatch(t, strtoull(argv[2], NULL, 10), strtoull(argv[3], NULL, 10));
    }
    if (strcmp(what, "abort") == 0) { return run_abort(t, false); }
    if (strcmp(what, "kill") == 0) { return run_abort(t, true); }
    if (strcmp(what, "in-flight") == 0) { return run_in_flight(t); }
    if (strcmp(what, "wait") == 0) { return run_wait(t); }
    if (strcmp(what, "measure") == 0) { return run_measure(t); }
    if (strcmp(what, "overlap") == 0) { return run_overlap(t); }
    return FAIL(STATUS_BAD_OPTION, "%s: not a case", what);
}

int main(int argc, char** argv) {
#ifdef DYNAPIPE_MPI
    Transport transport;
    int64_t begin_ns = clock_now_ns();
    if (transport_mpi_open(&transport, &argc, &argv) != STATUS_OK) {
        fprintf(stderr, "%s\n", status_message());
        return 1;
    }
    if (transport.rank == 0) { printf("opened in %.0f ms\n", (double)(clock_now_ns() - begin_ns) / 1e6); }
    int32_t rank = transport.rank;
    Status status = run(&transport, argc, argv);
    if (status != STATUS_OK) { transport.api->abort(transport.ctx, status_message()); }
    if (transport_close(&transport) != STATUS_OK) {
        fprintf(stderr, "%s\n", status_message());
        return 3;
    }
    if (rank == 0) { printf("passed\n"); }
    return 0;
#else
    (void)argc;
    (void)argv;
    (void)run;
    return 77;
#endif
}
