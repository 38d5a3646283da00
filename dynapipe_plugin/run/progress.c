#include "progress.h"

#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"
#include "transport.h"

enum {
    PROBE_BYTES = 1 << 20,
    SEND_AFTER_NS = 1000 * 1000,
    ALONE_NS = 4 * 1000 * 1000,  // a network card has moved it by then
    COST_NS = 20 * 1000 * 1000,
    COST_TRIES = 3,  // a busy machine makes it look dear, never cheap
};
#define MOST_COST 0.02

// A thread needs several looks of both sides, over TCP at least; where others use the cores, longer.
static const int64_t windows_ns[] = {5 * 1000 * 1000, 20 * 1000 * 1000, 80 * 1000 * 1000};
enum { NUM_WINDOWS = sizeof windows_ns / sizeof windows_ns[0] };

static const int64_t naps_ns[] = {1000 * 1000, 100 * 1000};
enum { NUM_NAPS = sizeof naps_ns / sizeof naps_ns[0] };

typedef struct {
    const Transport* transport;
    Collective* world;
    unsigned char *sent, *got;
} Probe;

// A job: no call of the transport.
static void compute(int64_t ns) {
    for (int64_t begin_ns = clock_now_ns(); clock_now_ns() - begin_ns < ns;) {}
}

static Status finish(const Probe* probe, int32_t peer, void* request) {
    Backoff backoff = {0};
    const Transport* t = probe->transport;
    for (int done = 0;;) {
        TRY(t->api->test(t->ctx, request, &done));
        if (done) { return STATUS_OK; }
        if (backoff_gives_up(&backoff, probe->world->timeout_ns)) {
            return FAIL(STATUS_COMM,
                        "whether messages move alone: rank %d waits for rank %s, nothing moved for %.1f s "
                        "---> see what rank %d does, or raise --comm-timeout",
                        (int)t->rank, TRANSPORT_RANK(t, peer), (double)probe->world->timeout_ns / 1e9,
                        (int)peer);
        }
        backoff_pause(&backoff);
    }
}

// Over the link behind every second rank, all at once; *late: on this rank it was not there when the job
// ended.
static Status send_over(const Probe* probe, int32_t parity, int64_t window_ns, bool* late) {
    const Transport* t = probe->transport;
    bool is_sender = t->rank % 2 == parity;
    int32_t peer = is_sender ? t->rank + 1 : t->rank - 1;
    bool takes_part = peer >= 0 && peer < t->num_ranks;
    volatile unsigned char* last = &probe->got[PROBE_BYTES - 1];
    void* request = NULL;
    *last = 0;
    if (takes_part && !is_sender) {
        TRY(t->api->irecv(t->ctx, peer, TAG_PROGRESS, probe->got, PROBE_BYTES, &request));
    }
    TRY(collective_barrier(probe->world));
    bool is_early = *last != 0;
    if (takes_part && is_sender) {
        compute(SEND_AFTER_NS);
        TRY(t->api->isend(t->ctx, peer, TAG_PROGRESS, probe->sent, PROBE_BYTES, &request));
    }
    compute(window_ns);
    *late = takes_part && !is_sender && (is_early || *last == 0);
    return takes_part ? finish(probe, peer, request) : STATUS_OK;
}

// Whether on every link a message came during a job.
static Status all_arrive(const Probe* probe, int64_t window_ns, bool* out) {
    double num_late = 0;
    for (int32_t parity = 0; parity < 2; parity++) {
        bool late;
        TRY(send_over(probe, parity, window_ns, &late));
        num_late += late;
    }
    TRY(collective_all_reduce_sum(probe->world, &num_late, 1));
    *out = num_late == 0;
    return STATUS_OK;
}

// Share of a core that the thread takes, on the rank where it takes most, while all compute and wait for a
// message.
static Status measure_cost(const Probe* probe, double* out) {
    const Transport* t = probe->transport;
    int32_t next = (t->rank + 1) % t->num_ranks, prev = (t->rank + t->num_ranks - 1) % t->num_ranks;
    void *send, *receive;
    TRY(t->api->irecv(t->ctx, prev, TAG_PROGRESS, probe->got, 1, &receive));
    TRY(collective_barrier(probe->world));
    int64_t begin_ns = clock_now_ns(), begin_cpu_ns = t->api->progress_cpu_ns(t->ctx);
    compute(COST_NS);
    int64_t cpu_ns = t->api->progress_cpu_ns(t->ctx) - begin_cpu_ns, ns = clock_now_ns() - begin_ns;
    double is_dear = (double)cpu_ns > MOST_COST * (double)ns, cost = (double)cpu_ns / (double)ns;
    TRY(t->api->isend(t->ctx, next, TAG_PROGRESS, probe->sent, 1, &send));
    TRY(finish(probe, prev, receive));
    TRY(finish(probe, next, send));
    double sums[2] = {is_dear, cost};
    TRY(collective_all_reduce_sum(probe->world, sums, 2));
    *out = sums[0] > 0 ? 1 : sums[1] / t->num_ranks;  // dear for one: dear for all, who wait for it
    return STATUS_OK;
}

static Status switch_on(const Probe* probe, int64_t nap_ns, bool* is_on) {
    const Transport* t = probe->transport;
    bool mine = false;
    TRY(collective_barrier(probe->world));
    // A rank that has none is not to leave the others waiting for its number.
    if (t->api->progress(t->ctx, nap_ns, &mine) != STATUS_OK) { mine = false; }
    double num_off = !mine;
    TRY(collective_all_reduce_sum(probe->world, &num_off, 1));
    *is_on = num_off == 0;
    if (!*is_on && mine) { TRY(t->api->progress(t->ctx, 0, &mine)); }
    return STATUS_OK;
}

// The longest nap with which messages come; the shortest where it is asked for and none does. Leaves the
// thread on where one was found.
static Status find_nap(const Probe* probe, Progress* out, bool is_told) {
    for (int32_t i = 0; i < NUM_NAPS; i++) {
        bool is_on, arrive = false;
        TRY(switch_on(probe, naps_ns[i], &is_on));
        if (!is_on) { break; }
        for (int32_t k = 0; k < NUM_WINDOWS && !arrive; k++) {
            TRY(all_arrive(probe, windows_ns[k], &arrive));
        }
        out->nap_ns = naps_ns[i];
        if (arrive || (is_told && i == NUM_NAPS - 1)) { return STATUS_OK; }
    }
    out->nap_ns = 0;
    return STATUS_OK;
}

static Status probe_all(const Probe* probe, Progress* out, ProgressChoice choice, const HostCores* hosts) {
    bool alone = false, is_on;
    *out = (Progress){.pulls = true, .reason = "as told"};
    if (choice == PROGRESS_OFF) { return STATUS_OK; }
    if (choice == PROGRESS_AUTO && host_cores_short(hosts) >= 0) {
        *out = (Progress){.reason = "planned so, as if each thread had a core, which it has not"};
        return STATUS_OK;
    }
    TRY(all_arrive(probe, ALONE_NS, &alone));
    out->pulls = !alone;
    out->reason = alone ? "they move by themselves" : "a thread moves nothing";
    if (alone) { return STATUS_OK; }
    TRY(find_nap(probe, out, choice == PROGRESS_ON));
    bool is_free = out->nap_ns == 0 || choice == PROGRESS_ON || hosts->is_roomy;
    for (int32_t i = 0; i < COST_TRIES && !is_free; i++) {
        TRY(measure_cost(probe, &out->cost));
        is_free = out->cost <= MOST_COST;
    }
    if (out->nap_ns > 0 && out->cost <= MOST_COST) {
        out->pulls = false;
        out->reason = "a thread moves them";
        return STATUS_OK;
    }
    if (out->nap_ns > 0) { out->reason = "a thread would take more than 2% of the cores that compute"; }
    out->nap_ns = 0;
    return switch_on(probe, 0, &is_on);
}

Status progress_choose(Progress* out, const Transport* transport, Collective* world, ProgressChoice choice,
                       const HostCores* hosts) {
    *out = (Progress){.reason = "they move by themselves"};
    if (transport->num_ranks == 1 || transport->api->progress == NULL || SIMULATED) { return STATUS_OK; }
    Probe probe = {.transport = transport, .world = world};
    probe.sent = malloc(2 * (size_t)PROBE_BYTES);
    if (probe.sent == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a message"); }
    probe.got = probe.sent + PROBE_BYTES;
    memset(probe.sent, 1, PROBE_BYTES);
    memset(probe.got, 0, PROBE_BYTES);
    Status status = probe_all(&probe, out, choice, hosts);
    if (status == STATUS_OK) { free(probe.sent); }  // else it may still be in flight
    return status;
}
