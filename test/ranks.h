/*
ranks.h -- run one function per rank, as threads over the loopback transport, and collect what went wrong.

    static Status body(Transport* transport, void* arg) { ... }
    RankResult results[4];
    ranks_run(4, body, arg, results);

test.h's counters belong to the main thread, so a body reports by its Status; EXPECT is CHECK for bodies.
*/
#pragma once

#include "../util/status.h"
#include "../dynapipe_plugin/run/collective.h"
#include "../dynapipe_plugin/run/transport.h"

enum { RANKS_MAX = 16 };

typedef struct {
    Status status;        // of the body
    Status close_status;  // of closing its transport
    char message[1024];
    char close_message[1024];
} RankResult;

typedef Status (*RankBody)(Transport* transport, void* arg);

// A body that fails aborts the transport, as a trainer does, so that the others end too. Returns the number
// of ranks whose body or close failed, and prints each one if `print`.
int ranks_run(int32_t num_ranks, RankBody body, void* arg, RankResult* results, int print);

#define EXPECT(cond)                                                                                \
    do {                                                                                            \
        if (!(cond)) { return FAIL(STATUS_COUNT, "%s:%d: EXPECT(%s)", __FILE__, __LINE__, #cond); } \
    } while (0)

// Poll until done, at most 20 seconds.
Status ranks_wait(Transport* transport, void* request);
// Of all ranks; messages may take 20 seconds.
Status ranks_world(Collective* out, Transport* transport);
