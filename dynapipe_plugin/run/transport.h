/*
transport.h -- the ABI between the executor and the transports that move bytes between ranks.

Published structs are never edited: a change means DynapipeTransport_v2 plus one adapter file that lifts v1.
(v1 is not published before the first release.) All calls come from one thread per rank. Requests are opaque;
test() releases a finished one.

Transports of device memory have join() and the members after it. There a call refers to the position in the
device's queue of work at which it is made: isend: the data is ready once the work queued so far is done;
irecv: the buffer is free by then. test() reports to the host, as everywhere.
*/
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <time.h>
#include "../../util/program.h"
#include "../../util/status.h"

// 0 <= tag < TRANSPORT_TAG_END. MPI itself promises 2^15 only, but no implementation that we know has fewer
// than 2^21.
enum { TRANSPORT_TAG_END = 1 << 20 };

typedef struct {
    // Start moving `num_bytes` bytes; must not block. The buffer belongs to the transport until test()
    // reports done. Messages between two ranks with equal tags arrive in send order.
    Status (*isend)(void* ctx, int32_t peer, int32_t tag, const void* data, size_t num_bytes, void** request);
    Status (*irecv)(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes, void** request);
    // Poll one request and make progress on all. Sets *done to 0 or 1; at 1 the request is released.
    // STATUS_COMM where a peer failed; STATUS_MISMATCH where the message had another length.
    Status (*test)(void* ctx, void* request, int* done);
    // (optional, may be NULL) a peer must learn that this rank gives up; `why` is printed once.
    void (*abort)(void* ctx, const char* why);
    // STATUS_COMM if requests are still in flight.
    Status (*close)(void* ctx);

    // (optional, both may be NULL) From now on a thread polls every nap_ns whether what is in flight can
    // move, also while this rank computes; 0: no thread, as at the start. *is_on: whether it does; not all
    // transports can. Nothing is in flight during the call. And the processor time of that thread since then.
    Status (*progress)(void* ctx, int64_t nap_ns, bool* is_on);
    int64_t (*progress_cpu_ns)(void* ctx);

    // --- (optional, all NULL) device memory -------------------------------------------------------------
    // Room for this many requests at a time, so that posting allocates nothing. None is in flight.
    Status (*reserve)(void* ctx, int32_t num_requests);
    // Work queued on the device from here on waits for that request, which stays live. Does not block:
    // *joined is 0 where that is not possible yet; then test() requests, and call again.
    Status (*join)(void* ctx, void* request, int* joined);
    // The transfers posted in between start as one: none waits for another of them.
    Status (*group_begin)(void* ctx);
    Status (*group_end)(void* ctx);
    // When the request last released by test() was under way, in clock_now_ns() time.
    Status (*when)(void* ctx, int64_t* begin_ns, int64_t* end_ns);
} DynapipeTransport_v1;

enum { TRANSPORT_HOST_CHARS = 64, TRANSPORT_RANK_CHARS = TRANSPORT_HOST_CHARS + 24 };

// One rank's end of a transport.
typedef struct {
    const DynapipeTransport_v1* api;
    void* ctx;
    int32_t rank, num_ranks;
    char (*hosts)[TRANSPORT_HOST_CHARS];  // [num_ranks] host names, borrowed; NULL: all on one host
} Transport;

// "3"; where there are several hosts, "3 (on node17)". The text lives to the end of the expression.
typedef struct {
    char text[TRANSPORT_RANK_CHARS];
} TransportRank;
#define TRANSPORT_RANK(transport, rank) transport_rank(transport, rank).text

static inline TransportRank transport_rank(const Transport* transport, int32_t rank) {
    TransportRank out;
    bool is_known = transport->hosts != NULL && rank >= 0 && rank < transport->num_ranks;
    snprintf(out.text, sizeof out.text, is_known ? "%d (on %s)" : "%d", (int)rank,
             is_known ? transport->hosts[rank] : "");
    return out;
}

// `num_ranks` ends in one process, one thread each: out[0 .. num_ranks). Closing the last end frees the hub.
// Zero-buffer rendezvous: a send is done only when the matching receive has taken it.
Status transport_loopback_open(Transport* out, int32_t num_ranks);

#ifdef DYNAPIPE_MPI
// MPI: comm is a duplicate of MPI_COMM_WORLD. Initialises MPI if needed.
Status transport_mpi_open(Transport* out, int* argc, char*** argv);
#endif

static inline Status transport_close(Transport* transport) {
    if (transport->api == NULL) { return STATUS_OK; }
    Status status = transport->api->close(transport->ctx);
    transport->api = NULL;
    return status;
}

// --- tags ------------------------------------------------------------------------------------------------
// Every tag of messages between ranks, in ranges of their own: a message of one part of the program is never
// taken for another's, even where a rank ends by an error while others still run.

enum {
    TAG_STEP = 0,                            // executor_tag()
    TAG_FORWARD = TRANSPORT_TAG_END / 4,     // + executor_tag() of microbatch 0, as these pass in their order
    TAG_COLLECTIVE = TRANSPORT_TAG_END / 2,  // + operation (collective.c)
    TAG_ROLL = TRANSPORT_TAG_END / 4 * 3,    // session.c
};

// --- backoff ---------------------------------------------------------------------------------------------
// How a rank waits for a transfer: spin a little, then give the core away, then sleep.
//
//     Backoff wait = {0};
//     while (!arrived(&moved)) {
//         if (!backoff_next(&wait, moved, timeout_ns)) { return fail(); }
//     }
//
// Waiting ranks share cores with computing ranks, so waiting must cost almost nothing; but most messages come
// within microseconds. A nap of 30 us takes about 85 us with Linux' default timer slack. Measured over MPI, 4
// ranks on 2 busy cores: a waiting rank takes 8 to 12 % of a core (naps of 100 us: 6 to 11 %).
//
// A rank gives up after polling for timeout_ns, not after that much time: where it was stopped itself
// (SIGSTOP, a paused machine), its message may have arrived in between, and the others may have been stopped
// too. So the time between two polls counts for BACKOFF_LOOK_NS at most, and after a stop it polls for
// BACKOFF_AGAIN_NS more; only BACKOFF_STOPS times, since a rank whose polls are always that far apart must
// end too.

enum { BACKOFF_SPINS = 64, BACKOFF_YIELDS = 64, BACKOFF_SLEEP_NS = 30 * 1000, BACKOFF_STOPS = 8 };
#define BACKOFF_LOOK_NS INT64_C(100000000)
#define BACKOFF_AGAIN_NS INT64_C(1000000000)

typedef struct {
    int32_t num_pauses;  // all back to 0 whenever something moved
    int32_t num_stops;   // stops after which it polled longer
    int64_t looked_ns;   // time of the last poll; 0: none yet
    int64_t waited_ns;   // time spent polling
} Backoff;

// At a poll at `now_ns`: has it polled for longer than timeout_ns (0: never)?
static inline bool backoff_gives_up_at(Backoff* wait, int64_t timeout_ns, int64_t now_ns) {
    int64_t passed_ns = wait->looked_ns == 0 ? 0 : now_ns - wait->looked_ns;
    wait->looked_ns = now_ns;
    wait->waited_ns += passed_ns < BACKOFF_LOOK_NS ? passed_ns : BACKOFF_LOOK_NS;
    bool was_stopped = passed_ns > BACKOFF_AGAIN_NS && wait->num_stops < BACKOFF_STOPS;
    if (was_stopped && wait->waited_ns > timeout_ns - BACKOFF_AGAIN_NS) {
        wait->num_stops++;
        wait->waited_ns = timeout_ns > BACKOFF_AGAIN_NS ? timeout_ns - BACKOFF_AGAIN_NS : 0;
    }
    return timeout_ns > 0 && wait->waited_ns > timeout_ns;
}

static inline void backoff_pause(Backoff* wait) {
    if (wait->num_pauses < BACKOFF_SPINS) {
        wait->num_pauses++;
#if defined(__x86_64__)
        __builtin_ia32_pause();
#endif
    } else if (wait->num_pauses < BACKOFF_SPINS + BACKOFF_YIELDS) {
        wait->num_pauses++;
        sched_yield();
    } else {
        struct timespec nap = {0, BACKOFF_SLEEP_NS};
        nanosleep(&nap, NULL);
    }
}

// After a poll: waits a little, or begins anew if something moved. False: it gives up.
static inline bool backoff_next(Backoff* wait, bool moved, int64_t timeout_ns) {
    if (moved) {
        *wait = (Backoff){0};
        return true;
    }
    if (backoff_gives_up_at(wait, timeout_ns, clock_now_ns())) { return false; }
    backoff_pause(wait);
    return true;
}
