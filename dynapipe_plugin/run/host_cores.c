// host_cores.c -- every rank says where it runs; the first adds it up and tells all.
#define _GNU_SOURCE  // sched_getaffinity
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../util/numbers.h"
#include "host_cores.h"
#include "local_ranks.h"

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

// A mask of the size that the kernel wants; where it cannot be had, all cores there are.
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

// A core to spare on its host, and mpirun lets the rank use it.
static bool is_roomy(const HostCores* hosts, const int32_t* of_ranks) {
    for (int32_t r = 0; r < hosts->num_ranks; r++) {
        int32_t h = hosts->host[r];
        bool on_host = hosts->cores[h] / hosts->sharers[h] > hosts->threads[h];
        if (!on_host || of_ranks[r] <= hosts->threads[h]) { return false; }
    }
    return true;
}

// Hosts in the order of their first rank.
static void add_up(HostCores* out, Place* places) {
    int32_t* first = out->sharers + out->num_ranks;  // [num_hosts] the rank whose place holds the host's mask
    int32_t* of_ranks = first + out->num_ranks;      // [num_ranks] cores that each may use
    for (int32_t r = 0; r < out->num_ranks; r++) {
        int32_t h = 0;
        of_ranks[r] = count_cores(places[r].mask, places[r].quota);
        while (h < out->num_hosts && places[first[h]].host != places[r].host) { h++; }
        if (h == out->num_hosts) {
            first[out->num_hosts++] = r;
            out->threads[h] = out->sharers[h] = 0;
        }
        Place* all = &places[first[h]];
        for (int32_t i = 0; i < MASK_WORDS; i++) { all->mask[i] |= places[r].mask[i]; }
        if (places[r].num_threads > out->threads[h]) { out->threads[h] = places[r].num_threads; }
        out->host[r] = h;
        out->sharers[h]++;
        out->cores[h] = count_cores(all->mask, all->quota);
    }
    out->is_roomy = is_roomy(out, of_ranks);
}

static Status gather_places(HostCores* out, Collective* world, int32_t num_threads) {
    Arena arena = {0};
    Place mine;
    CollectiveBytes* all = ARENA_NEW(&arena, CollectiveBytes, world->num_ranks);
    Place* places = ARENA_NEW(&arena, Place, world->num_ranks);
    find_place(&mine, world, num_threads);
    Status status = all == NULL || places == NULL
                        ? FAIL(STATUS_NO_MEMORY, "no memory for the places of %d ranks", world->num_ranks)
                        : collective_gather_bytes(world, &mine, sizeof mine, all, &arena);
    for (int32_t r = 0; r < world->num_ranks && status == STATUS_OK && world->my_idx == 0; r++) {
        if (all[r].num_bytes != sizeof mine) {
            status =
                FAIL(STATUS_MISMATCH, "rank %d is of another build ---> run the same build everywhere", r);
            break;
        }
        memcpy(&places[r], all[r].data, sizeof mine);
    }
    if (status == STATUS_OK && world->my_idx == 0) { add_up(out, places); }
    arena_free(&arena);
    return status;
}

Status host_cores_find(HostCores* out, Collective* world, int32_t num_threads) {
    const int32_t n = world->num_ranks;
    HostCores hosts = {.num_ranks = n};
    int32_t* all = calloc(6 * (size_t)n + 2, sizeof *all);  // the lists, what add_up() needs, two numbers
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the hosts of %d ranks", n); }
    hosts.host = all;
    hosts.cores = all + n;
    hosts.threads = all + 2 * n;
    hosts.sharers = all + 3 * n;
    Status status = gather_places(&hosts, world, num_threads);
    all[6 * n] = hosts.num_hosts;
    all[6 * n + 1] = hosts.is_roomy;
    if (status == STATUS_OK) {
        status = collective_broadcast(world, all, (6 * (size_t)n + 2) * sizeof *all, 0);
    }
    hosts.num_hosts = all[6 * n];
    hosts.is_roomy = all[6 * n + 1] != 0;
    if (status != STATUS_OK) {
        free(all);
        return status;
    }
    *out = hosts;
    return STATUS_OK;
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
