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

// The host has a spare core, and mpirun lets the rank use it.
static bool is_roomy(const HostCores* hosts, const int32_t* of_ranks) {
    for (int32_t r = 0; r < hosts->num_ranks; r++) {
        int32_t h = hosts->host[r];
        bool on_host = hosts->cores[h] / hosts->sharers[h] > hosts->threads[h];
        if (!on_host || of_ranks[r] <= hosts->threads[h]) { return false; }
    }
    return true;
}

// Hosts in the order of their first rank; the mask of a host's cores is gathered in its first rank's place.
static void add_up(HostCores* out, Place* places, int32_t* first, int32_t* of_ranks) {
    for (int32_t r = 0; r < out->num_ranks; r++) {
        int32_t h = 0;
        of_ranks[r] = count_cores(places[r].mask, places[r].quota);
        while (h < out->num_hosts && places[first[h]].host != places[r].host) { h++; }
        if (h == out->num_hosts) { first[out->num_hosts++] = r; }
        Place* all = &places[first[h]];
        for (int32_t i = 0; i < MASK_WORDS; i++) { all->mask[i] |= places[r].mask[i]; }
        if (places[r].num_threads > out->threads[h]) { out->threads[h] = places[r].num_threads; }
        out->host[r] = h;
        out->sharers[h]++;
        out->cores[h] = count_cores(all->mask, all->quota);
    }
    out->is_roomy = is_roomy(out, of_ranks);
}

Status host_cores_find(HostCores* out, Collective* world, int32_t num_threads) {
    const int32_t n = world->num_ranks;
    Place* places = (Place*)calloc((size_t)n, sizeof *places);
    int32_t* lists = (int32_t*)calloc(6 * (size_t)n, sizeof *lists);
    Status status = places != NULL && lists != NULL
                        ? STATUS_OK
                        : FAIL(STATUS_NO_MEMORY, "no memory for the hosts of %d ranks", n);
    if (status == STATUS_OK) {
        find_place(&places[world->my_idx], world, num_threads);
        status = collective_share(world, places, sizeof *places);
    }
    if (status == STATUS_OK) {
        *out = (HostCores){n, 0, lists, lists + n, lists + 2 * n, lists + 3 * n, false};
        add_up(out, places, lists + 4 * n, lists + 5 * n);
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
    ALONE_NS = 4 * 1000 * 1000,  // a network card has moved it within that time
    COST_NS = 20 * 1000 * 1000,
    COST_TRIES = 3,  // other load raises the measured cost, never lowers it
};
#define MOST_COST 0.02

// A thread needs several looks of both sides, over TCP at least; longer where others use the cores.
static const int64_t windows_ns[] = {5 * 1000 * 1000, 20 * 1000 * 1000, 80 * 1000 * 1000};
enum { NUM_WINDOWS = sizeof windows_ns / sizeof windows_ns[0] };

static const int64_t naps_ns[] = {1000 * 1000, 100 * 1000};
enum { NUM_NAPS = sizeof naps_ns / sizeof naps_ns[0] };

#define LAST_ROUND INT64_MAX  // of messages that are under way while the ranks meet

typedef struct {
    Collective* world;
    unsigned char *sent, *got;
} Probe;

// A job: no call of the transport.
static void compute(int64_t ns) {
    for (int64_t begin_ns = clock_now_ns(); clock_now_ns() - begin_ns < ns;) {}
}

// Over the link after every second rank, all at once; *late: on this rank it had not arrived when the job
// ended.
static Status send_over(const Probe* probe, int32_t parity, int64_t window_ns, bool* late) {
    Collective* world = probe->world;
    bool is_sender = world->my_idx % 2 == parity;
    int32_t peer = is_sender ? world->my_idx + 1 : world->my_idx - 1;
    bool takes_part = peer >= 0 && peer < world->num_ranks;
    volatile unsigned char* last = &probe->got[PROBE_BYTES - 1];
    *last = 0;
    if (takes_part && !is_sender) {
        TRY(collective_receive(world, COLLECTIVE_PROBE, LAST_ROUND, peer, probe->got, PROBE_BYTES));
    }
    TRY(collective_barrier(world));
    bool is_early = *last != 0;
    if (takes_part && is_sender) {
        compute(SEND_AFTER_NS);
        TRY(collective_send(world, COLLECTIVE_PROBE, LAST_ROUND, peer, probe->sent, PROBE_BYTES));
    }
    compute(window_ns);
    *late = takes_part && !is_sender && (is_early || *last == 0);
    return collective_wait(world, COLLECTIVE_PROBE, LAST_ROUND);
}

// Did a message arrive during a job on every link?
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

// The thread's share of a core, on the rank where it is largest, while all ranks compute and wait for a
// message.
static Status measure_cost(const Probe* probe, double* out) {
    Collective* world = probe->world;
    const Transport* t = world->transport;
    int32_t n = world->num_ranks, next = (world->my_idx + 1) % n, prev = (world->my_idx + n - 1) % n;
    TRY(collective_receive(world, COLLECTIVE_PROBE, LAST_ROUND, prev, probe->got, 1));
    TRY(collective_barrier(world));
    int64_t begin_ns = clock_now_ns(), begin_cpu_ns = t->api->progress_cpu_ns(t->ctx);
    compute(COST_NS);
    int64_t cpu_ns = t->api->progress_cpu_ns(t->ctx) - begin_cpu_ns, ns = clock_now_ns() - begin_ns;
    double is_dear = (double)cpu_ns > MOST_COST * (double)ns, cost = (double)cpu_ns / (double)ns;
    TRY(collective_send(world, COLLECTIVE_PROBE, LAST_ROUND, next, probe->sent, 1));
    TRY(collective_wait(world, COLLECTIVE_PROBE, LAST_ROUND));
    double sums[2] = {is_dear, cost};
    TRY(collective_all_reduce_sum(world, sums, 2));
    *out = sums[0] > 0 ? 1 : sums[1] / n;  // the largest decides: all ranks wait for the slowest
    return STATUS_OK;
}

static Status switch_on(const Probe* probe, int64_t nap_ns, bool* is_on) {
    const Transport* t = probe->world->transport;
    bool mine = false;
    TRY(collective_barrier(probe->world));
    // A rank without links must still take part, or the others wait for its number.
    if (t->api->progress(t->ctx, nap_ns, &mine) != STATUS_OK) { mine = false; }
    double num_off = !mine;
    TRY(collective_all_reduce_sum(probe->world, &num_off, 1));
    *is_on = num_off == 0;
    if (!*is_on && mine) { TRY(t->api->progress(t->ctx, 0, &mine)); }
    return STATUS_OK;
}

// The longest nap with which messages arrive; the shortest where the thread is requested and none suffices.
// Leaves the thread on where one was found.
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

Status progress_choose(Progress* out, Collective* world, ProgressChoice choice, const HostCores* hosts) {
    const Transport* transport = world->transport;
    *out = (Progress){.reason = "they move by themselves"};
    if (transport->num_ranks == 1 || transport->api->progress == NULL || SIMULATED) { return STATUS_OK; }
    Probe probe = {.world = world};
    probe.sent = (unsigned char*)malloc(2 * (size_t)PROBE_BYTES);
    if (probe.sent == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a message"); }
    probe.got = probe.sent + PROBE_BYTES;
    memset(probe.sent, 1, PROBE_BYTES);
    memset(probe.got, 0, PROBE_BYTES);
    Status status = probe_all(&probe, out, choice, hosts);
    if (status == STATUS_OK) { free(probe.sent); }  // else it may still be in flight
    return status;
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
