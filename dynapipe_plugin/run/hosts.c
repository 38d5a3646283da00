#define _GNU_SOURCE  // sched_getaffinity

#include "hosts.h"

#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include "transport.h"
#include "../../util/numbers.h"
#include "../../util/program.h"

int32_t local_ranks_count(int32_t num_ranks) {
    const char* text = getenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    if (text == NULL) { text = getenv("MPI_LOCALNRANKS"); }
    int32_t local = text != NULL ? atoi(text) : 0;
    return local >= 1 && local <= num_ranks ? local : num_ranks;
}

int32_t local_ranks_threads(int32_t asked, int32_t num_ranks) {
    if (asked > 0) { return asked; }
    const char* text = getenv("OMP_NUM_THREADS");
    if (text != NULL && atoi(text) > 0) { return atoi(text); }
    int32_t cores = (int32_t)sysconf(_SC_NPROCESSORS_ONLN), ranks = local_ranks_count(num_ranks);
    return cores > ranks ? cores / ranks : 1;
}

// --- hosts and their cores -----------------------------------------------------------------------------
// Every rank tells all others where it runs; each rank adds up the cores.

enum { MASK_WORDS = 128 };  // 8192 cores

typedef struct {
    uint64_t host;  // of its name
    int32_t num_threads, quota;
    uint64_t mask[MASK_WORDS];  // cores this rank may use
} Place;

int32_t host_cores_quota(const char* text) {
    double quota, period;
    if (sscanf(text, "%lf %lf", &quota, &period) != 2 || !(period > 0) || !(quota > 0)) { return 0; }
    double cores = quota / period;
    return cores < 1 ? 1 : cores < 1e6 ? (int32_t)cores : 0;
}

static int32_t read_quota(void) {
    char text[64] = "";
    FILE* file = fopen("/sys/fs/cgroup/cpu.max", "r");
    if (file == NULL) { return 0; }
    if (fgets(text, sizeof text, file) == NULL) { text[0] = '\0'; }
    fclose(file);
    return host_cores_quota(text);
}

// A mask of the size that the kernel wants; where that fails, all cores.
static void find_mask(uint64_t mask[MASK_WORDS]) {
    memset(mask, 0, MASK_WORDS * sizeof *mask);
    if (sched_getaffinity(0, MASK_WORDS * sizeof *mask, (cpu_set_t*)(void*)mask) == 0) { return; }
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    for (long i = 0; i < cores && i < 64 * MASK_WORDS; i++) { mask[i / 64] |= UINT64_C(1) << i % 64; }
}

static void find_place(Place* place, const Collective* world, int32_t num_threads) {
    char name[256] = "";
    memset(place, 0, sizeof *place);
    gethostname(name, sizeof name - 1);
    place->host = hash_finish(hash_bytes(HASH_SEED, name, strlen(name)));
    if (local_ranks_count(world->num_ranks) == 1) { place->host += (uint64_t)world->my_idx + 1; }
    place->num_threads = num_threads;
    place->quota = read_quota();
    find_mask(place->mask);
}

static int32_t count_cores(const uint64_t mask[MASK_WORDS], int32_t quota) {
    int32_t cores = 0;
    for (int32_t i = 0; i < MASK_WORDS; i++) { cores += __builtin_popcountll(mask[i]); }
    if (quota > 0 && quota < cores) { cores = quota; }
    return cores > 0 ? cores : 1;
}

// Hosts in the order of their first rank; the mask of a host's cores is gathered in its first rank's place.
static void add_up(HostCores* out, Place* places, int32_t* first) {
    for (int32_t r = 0; r < out->num_ranks; r++) {
        int32_t h = 0;
        while (h < out->num_hosts && places[first[h]].host != places[r].host) { h++; }
        if (h == out->num_hosts) { first[out->num_hosts++] = r; }
        Place* all = &places[first[h]];
        for (int32_t i = 0; i < MASK_WORDS; i++) { all->mask[i] |= places[r].mask[i]; }
        if (places[r].num_threads > out->threads[h]) { out->threads[h] = places[r].num_threads; }
        out->host[r] = h;
        out->sharers[h]++;
        out->cores[h] = count_cores(all->mask, all->quota);
    }
}

Status host_cores_find(HostCores* out, Collective* world, int32_t num_threads) {
    const int32_t n = world->num_ranks;
    Place* places = (Place*)calloc((size_t)n, sizeof *places);
    int32_t* lists = (int32_t*)calloc(5 * (size_t)n, sizeof *lists);
    Status status = places != NULL && lists != NULL
                        ? STATUS_OK
                        : FAIL(STATUS_NO_MEMORY, "no memory for the hosts of %d ranks", n);
    if (status == STATUS_OK) {
        find_place(&places[world->my_idx], world, num_threads);
        status = collective_share(world, places, sizeof *places);
    }
    if (status == STATUS_OK) {
        *out = (HostCores){n, 0, lists, lists + n, lists + 2 * n, lists + 3 * n};
        add_up(out, places, lists + 4 * n);
    } else {
        free(lists);
    }
    free(places);
    return status;
}

void host_cores_free(HostCores* hosts) {
    free(hosts->host);
    *hosts = (HostCores){0};
}

int32_t host_cores_short(const HostCores* hosts) {
    int32_t worst = -1;
    int64_t most = 0;
    for (int32_t h = 0; h < hosts->num_hosts; h++) {
        int64_t lacks = (int64_t)hosts->threads[h] * hosts->sharers[h] - hosts->cores[h];
        if (lacks <= most) { continue; }
        worst = h;
        most = lacks;
    }
    return worst;
}

// --- do messages move while their ranks compute? -------------------------------------------------------

enum {
    PROBE_BYTES = 1 << 20,
    SEND_AFTER_NS = 1000 * 1000,
    ALONE_NS = 4 * 1000 * 1000,         // a network card has moved it within that time
    SHORT_WINDOW_NS = 5 * 1000 * 1000,  // a thread needs several looks of both sides, over TCP at least,
    LONG_WINDOW_NS = 80 * 1000 * 1000,  // and more time where others use the cores
    COST_NS = 20 * 1000 * 1000,
    COST_TRIES = 3,  // other load raises the measured cost, never lowers it
};
#define MOST_COST 0.02
static const int32_t naps_ns[] = {1000 * 1000, 100 * 1000};

typedef struct {
    Collective* world;
    unsigned char *sent, *got;
} Probe;

// A job: no call of the transport.
static void compute(int64_t ns) {
    for (int64_t begin_ns = clock_now_ns(); clock_now_ns() - begin_ns < ns;) {}
}

// Over the link after every second rank, all at once; *num_late grows by 1 where the message had not arrived
// when the job ended.
static Status send_over(const Probe* probe, int32_t parity, int64_t window_ns, double* num_late) {
    Collective* world = probe->world;
    bool is_sender = world->my_idx % 2 == parity;
    int32_t peer = is_sender ? world->my_idx + 1 : world->my_idx - 1;
    bool takes_part = peer >= 0 && peer < world->num_ranks;
    volatile unsigned char* last = &probe->got[PROBE_BYTES - 1];
    *last = 0;
    if (takes_part && !is_sender) {
        TRY(collective_receive(world, COLLECTIVE_PROBE, INT64_MAX, peer, probe->got, PROBE_BYTES));
    }
    TRY(collective_barrier(world));
    bool is_early = *last != 0;
    if (takes_part && is_sender) {
        compute(SEND_AFTER_NS);
        TRY(collective_send(world, COLLECTIVE_PROBE, INT64_MAX, peer, probe->sent, PROBE_BYTES));
    }
    compute(window_ns);
    *num_late += takes_part && !is_sender && (is_early || *last == 0);
    return collective_wait(world, COLLECTIVE_PROBE, INT64_MAX);
}

// Did a message arrive during a job on every link?
static Status all_arrive(const Probe* probe, int64_t window_ns, bool* out) {
    double num_late = 0;
    TRY(send_over(probe, 0, window_ns, &num_late));
    TRY(send_over(probe, 1, window_ns, &num_late));
    TRY(collective_all_reduce_sum(probe->world, &num_late, 1));
    *out = num_late == 0;
    return STATUS_OK;
}

// While all ranks compute and wait for a message: does the thread take too much of a core anywhere?
static Status is_dear(const Probe* probe, bool* out) {
    Collective* world = probe->world;
    const Transport* t = world->transport;
    int32_t n = world->num_ranks, next = (world->my_idx + 1) % n, prev = (world->my_idx + n - 1) % n;
    TRY(collective_receive(world, COLLECTIVE_PROBE, INT64_MAX, prev, probe->got, 1));
    TRY(collective_barrier(world));
    int64_t begin_ns = clock_now_ns(), begin_cpu_ns = t->api->progress_cpu_ns(t->ctx);
    compute(COST_NS);
    int64_t cpu_ns = t->api->progress_cpu_ns(t->ctx) - begin_cpu_ns, ns = clock_now_ns() - begin_ns;
    double num_dear = (double)cpu_ns > MOST_COST * (double)ns;
    TRY(collective_send(world, COLLECTIVE_PROBE, INT64_MAX, next, probe->sent, 1));
    TRY(collective_wait(world, COLLECTIVE_PROBE, INT64_MAX));
    TRY(collective_all_reduce_sum(world, &num_dear, 1));
    *out = num_dear > 0;
    return STATUS_OK;
}

// A rank that cannot must still take part, or the others wait for its number.
static Status switch_thread(const Probe* probe, int64_t nap_ns, bool* is_on) {
    const Transport* t = probe->world->transport;
    bool mine = false;
    TRY(collective_barrier(probe->world));
    double num_off = t->api->progress(t->ctx, nap_ns, &mine) != STATUS_OK || !mine;
    TRY(collective_all_reduce_sum(probe->world, &num_off, 1));
    *is_on = num_off == 0;
    return STATUS_OK;
}

static Status probe_all(const Probe* probe, int32_t* messages) {
    bool arrive = false, is_on, dear = true;
    TRY(all_arrive(probe, ALONE_NS, &arrive));
    *messages = arrive ? MESSAGES_ALONE : MESSAGES_PULLED;
    for (size_t i = 0; i < sizeof naps_ns / sizeof *naps_ns && !arrive; i++) {
        TRY(switch_thread(probe, naps_ns[i], &is_on));
        for (int64_t ns = SHORT_WINDOW_NS; is_on && !arrive && ns <= LONG_WINDOW_NS; ns *= 4) {
            TRY(all_arrive(probe, ns, &arrive));
        }
        for (int32_t k = 0; arrive && dear && k < COST_TRIES; k++) { TRY(is_dear(probe, &dear)); }
        if (arrive && !dear) { *messages = naps_ns[i]; }
    }
    return switch_thread(probe, 0, &is_on);
}

Status messages_measure(int32_t* messages, Collective* world) {
    const Transport* transport = world->transport;
    *messages = MESSAGES_ALONE;
    if (transport->num_ranks == 1 || transport->api->progress == NULL || SIMULATED) { return STATUS_OK; }
    Probe probe = {.world = world};
    probe.sent = (unsigned char*)malloc(2 * (size_t)PROBE_BYTES);
    if (probe.sent == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a message"); }
    probe.got = probe.sent + PROBE_BYTES;
    memset(probe.sent, 1, PROBE_BYTES);
    memset(probe.got, 0, PROBE_BYTES);
    Status status = probe_all(&probe, messages);
    if (status == STATUS_OK) { free(probe.sent); }  // else it may still be in flight
    return status;
}

const char* messages_text(int32_t messages) {
    return messages == MESSAGES_PULLED    ? "are received between jobs"
           : messages == MESSAGES_ALONE   ? "are received while ranks compute: they move by themselves"
           : messages == MESSAGES_UNKNOWN ? "are planned as if each thread had a core"
                                          : "are received while ranks compute: a thread moves them";
}

// --- links ---------------------------------------------------------------------------------------------

enum { SMALL_BYTES = 1024, NUM_ROUNDS = 9, NUM_SUMS = 5 };

static int compare_times(const void* a, const void* b) {
    int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
    return (x > y) - (x < y);
}

static double median_ns(int64_t* ns, int num_times) {
    qsort(ns, (size_t)num_times, sizeof *ns, compare_times);
    return (double)ns[num_times / 2];
}

// The first round trip opens connections and does not count.
static Status one_way_ns(double* out, Collective* links, int32_t peer, void* memory, size_t num_bytes) {
    int64_t ns[NUM_ROUNDS];
    for (int round = -1; round < NUM_ROUNDS; round++) {
        int64_t begin_ns = clock_now_ns();
        for (int leg = 0; leg < 2; leg++) {
            bool sends = (leg == 0) == (links->my_idx < peer);
            TRY(sends ? collective_send(links, COLLECTIVE_PROBE, 0, peer, memory, num_bytes)
                      : collective_receive(links, COLLECTIVE_PROBE, 0, peer, memory, num_bytes));
            TRY(collective_wait(links, COLLECTIVE_PROBE, 0));
        }
        if (round >= 0) { ns[round] = clock_now_ns() - begin_ns; }
    }
    *out = median_ns(ns, NUM_ROUNDS) / 2;
    return STATUS_OK;
}

// All begin together: no pair has the machine for itself. The first rank of a pair sends its numbers to all.
static Status probe_pairs(LinkCosts* out, Collective* links, Collective* world, void* memory, int32_t odd) {
    int32_t rank = links->my_idx, first = rank % 2 == odd ? rank : rank - 1;
    double small_ns, large_ns;
    TRY(collective_barrier(world));
    if (first < 0 || first + 1 >= links->num_ranks) { return STATUS_OK; }
    int32_t peer = first == rank ? rank + 1 : first;
    TRY(one_way_ns(&small_ns, links, peer, memory, SMALL_BYTES));
    TRY(one_way_ns(&large_ns, links, peer, memory, LINK_PROBE_BYTES));
    double beyond_ns = large_ns - small_ns;
    if (first != rank) { return STATUS_OK; }
    out[rank].latency_ns = small_ns;
    out[rank].bytes_per_ns = beyond_ns > 1 ? (LINK_PROBE_BYTES - SMALL_BYTES) / beyond_ns : 1e3;
    return STATUS_OK;
}

Status link_probe_run(LinkCosts* out, Transport* transport, Collective* world, void* memory) {
    int32_t num_links = transport->num_ranks - 1;
    Collective links;
    if (num_links < 1) { return STATUS_OK; }
    memset(out, 0, (size_t)num_links * sizeof *out);
    if (transport->api->reserve != NULL) { TRY(transport->api->reserve(transport->ctx, 2)); }
    TRY(collective_init(&links, transport, world->ranks, world->num_ranks, world->timeout_ns));
    Status status = STATUS_OK;
    for (int32_t odd = 0; odd < 2 && status == STATUS_OK; odd++) {
        status = probe_pairs(out, &links, world, memory, odd);
    }
    collective_free(&links);
    TRY(status);
    return collective_all_reduce_sum(world, &out[0].latency_ns, 2 * num_links);  // of each, one rank knows
}

#ifndef DYNAPIPE_CUDA
Status link_probe(LinkCosts* out, Collective* world, void* stream, TransportChoice choice) {
    (void)stream, (void)choice;
    void* memory = malloc(LINK_PROBE_BYTES);
    if (memory == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a message"); }
    memset(memory, 0, LINK_PROBE_BYTES);  // its pages are there
    Status status = link_probe_run(out, world->transport, world, memory);
    free(memory);
    return status;
}
#endif

// --- sums --------------------------------------------------------------------------------------------------

static Status sums_ns(double* out, Collective* group, float* values, int64_t num_values) {
    int64_t ns[NUM_SUMS];
    for (int round = -1; round < NUM_SUMS; round++) {  // the first makes its memory
        TRY(collective_barrier(group));
        int64_t begin_ns = clock_now_ns();
        TRY(collective_reduce_scatter_sum(group, values, num_values, DYNAPIPE_FLOAT32));
        TRY(collective_all_gather(group, values, num_values, sizeof *values));
        TRY(collective_barrier(group));  // the next step needs all of them
        if (round >= 0) { ns[round] = clock_now_ns() - begin_ns; }
    }
    *out = median_ns(ns, NUM_SUMS);
    return STATUS_OK;
}

Status link_probe_sums(double* bytes_per_ns, Collective* group) {
    const int64_t num_values = LINK_PROBE_BYTES / sizeof(float);
    double ns, passes = 2.0 * (group->num_ranks - 1) / group->num_ranks;
    float* values = (float*)malloc(LINK_PROBE_BYTES);
    if (values == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for sums"); }
    memset(values, 0, LINK_PROBE_BYTES);
    Status status = sums_ns(&ns, group, values, num_values);
    free(values);
    if (status == STATUS_OK) { *bytes_per_ns = passes * LINK_PROBE_BYTES / (ns > 1 ? ns : 1); }
    return status;
}
