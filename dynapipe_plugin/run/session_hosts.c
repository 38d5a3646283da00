// session_hosts.c -- which rank is on which host, and who is still there when a run ends because nothing
// moved.
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../util/program.h"
#include "session.h"
#include "transport.h"

enum { MOST_NAMED = 8 };
_Static_assert((int)TAG_ROLL < (int)TRANSPORT_TAG_END, "tags of the transport");
#define ROLL_NS INT64_C(2000000000)

Status session_hosts_gather(Dynapipe* dp) {
    const int32_t num_ranks = dp->transport.num_ranks;
    dp->hosts = calloc((size_t)num_ranks, sizeof *dp->hosts);
    if (dp->hosts == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d hosts", num_ranks); }
    char* mine = dp->hosts[dp->transport.rank];
    if (gethostname(mine, TRANSPORT_HOST_CHARS - 1) != 0) { snprintf(mine, TRANSPORT_HOST_CHARS, "?"); }
    TRY(collective_share(&dp->world, dp->hosts, sizeof *dp->hosts));
    for (int32_t r = 1; r < num_ranks; r++) {
        if (strcmp(dp->hosts[r], dp->hosts[0]) != 0) { dp->transport.hosts = dp->hosts; }
    }
    return STATUS_OK;
}

// --- the roll call ---------------------------------------------------------------------------------------

// `is_here`: (num_ranks) that have called. Requests that are not done stay where they are: the process ends.
typedef struct {
    void** requests;
    bool *is_open, *is_here;
    char* calls;
} Roll;

static void call_and_listen(const Dynapipe* dp, Roll* roll, int64_t wait_ns) {
    const Transport* t = &dp->transport;
    const int32_t num_ranks = t->num_ranks, last = num_ranks - 1;
    const bool listens = t->rank == 0 || t->rank == last;
    void* sent[2] = {NULL, NULL};
    if (t->rank != 0 && t->api->isend(t->ctx, 0, TAG_ROLL, "!", 1, &sent[0]) != STATUS_OK) { sent[0] = NULL; }
    if (t->rank != last && t->api->isend(t->ctx, last, TAG_ROLL, "!", 1, &sent[1]) != STATUS_OK) {
        sent[1] = NULL;
    }
    for (int32_t r = 0; r < num_ranks && listens; r++) {
        roll->is_open[r] = r != t->rank && t->api->irecv(t->ctx, r, TAG_ROLL, &roll->calls[r], 1,
                                                         &roll->requests[r]) == STATUS_OK;
    }
    int64_t begin_ns = clock_now_ns();
    for (bool waits = true; waits && clock_now_ns() - begin_ns < wait_ns;) {
        waits = !listens;
        for (int32_t r = 0; r < num_ranks; r++) {
            int done = 0;
            if (!roll->is_open[r]) { continue; }
            roll->is_open[r] = t->api->test(t->ctx, roll->requests[r], &done) == STATUS_OK && !done;
            roll->is_here[r] = done != 0;
            waits |= roll->is_open[r];
        }
        for (int i = 0; i < 2; i++) {
            int done = 0;
            if (sent[i] != NULL && (t->api->test(t->ctx, sent[i], &done) != STATUS_OK || done)) {
                sent[i] = NULL;
            }
        }
        usleep(1000);
    }
}

static void name_missing(const Dynapipe* dp, const Roll* roll) {
    char text[1024] = "";
    int32_t num_missing = 0;
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        if (roll->is_here[r]) { continue; }
        if (num_missing++ >= MOST_NAMED) { continue; }
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "%srank %s", used > 0 ? ", " : "",
                 TRANSPORT_RANK(&dp->transport, r));
    }
    if (num_missing == 0) { return; }
    if (num_missing > MOST_NAMED) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, " and %d more", num_missing - MOST_NAMED);
    }
    fprintf(
        stderr,
        "no sign of life from %s ---> see whether the host is up and its network too, and what its ranks do; "
        "a job that takes longer than --comm-timeout %d looks like that as well\n",
        text, dp->options.comm_timeout_s);
    fflush(stderr);
}

void session_roll_call(const Dynapipe* dp) {
    const int32_t num_ranks = dp->transport.num_ranks, rank = dp->transport.rank;
    const bool listens = rank == 0 || rank == num_ranks - 1;
    Roll roll = {.requests = calloc((size_t)num_ranks, sizeof(void*)),
                 .is_open = calloc(2 * (size_t)num_ranks, sizeof(bool)),
                 .calls = calloc((size_t)num_ranks, 1)};
    if (roll.requests == NULL || roll.is_open == NULL || roll.calls == NULL) { return; }
    roll.is_here = roll.is_open + num_ranks;
    roll.is_here[rank] = true;
    // Ranks give up at different times, by about a job. Whoever ends first ends all.
    int64_t wait_ns = ROLL_NS + (int64_t)dp->options.comm_timeout_s * 1000000000 / 20;
    call_and_listen(dp, &roll, listens ? wait_ns : wait_ns + ROLL_NS);
    if (rank == 0 || (listens && !roll.is_here[0])) { name_missing(dp, &roll); }
}
