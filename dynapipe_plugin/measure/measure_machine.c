#include "measure_machine.h"

#include <math.h>
#include <stdlib.h>

#include "../run/link_probe.h"

// Links are compared by a message of this size, about what a small micro-batch sends.
enum { USUAL_BYTES = 256 << 10 };

// --- found -------------------------------------------------------------------------------------------------

static double message_ns(const MachineRank* rank) {
    return rank->link_latency_ns + USUAL_BYTES / rank->link_bytes_per_ns;
}

// Behind a replica's last stage is another replica: no activation passes there. Where there is one stage,
// none passes anywhere, and sums of a GPU's go by what links are found to be.
static bool is_within(int32_t rank, int32_t num_stages) {
    return num_stages == 1 || rank % num_stages != num_stages - 1;
}

// The mean latency, and the mean time of a byte. Where there is one rank, memory's own rate.
static void set_mean(CostModel* out, const LinkCosts* links, int32_t num_ranks, int32_t num_stages) {
    double latency_ns = 0, ns_per_byte = 0;
    int32_t num_links = 0;
    for (int32_t r = 0; r + 1 < num_ranks; r++) {
        if (!is_within(r, num_stages)) { continue; }
        latency_ns += links[r].latency_ns;
        ns_per_byte += 1 / links[r].bytes_per_ns;
        num_links++;
    }
    out->comm_latency_ns = num_links > 0 ? latency_ns / num_links : 20e3;
    out->comm_bytes_per_ns = num_links > 0 ? num_links / ns_per_byte : 3;
}

static Status measure_links(CostModel* out, MachineRank* ranks, Dynapipe* dp) {
    int32_t num_links = dp->transport.num_ranks - 1;
    LinkCosts* links = calloc((size_t)num_links + 1, sizeof *links);
    if (links == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d links", num_links); }
    Status status = link_probe(links, &dp->world, dp->stream, (TransportChoice)dp->options.transport);
    if (status == STATUS_OK) { set_mean(out, links, dp->transport.num_ranks, dp->num_stages); }
    for (int32_t r = 0; r < num_links; r++) {
        if (!is_within(r, dp->num_stages)) { continue; }  // 0: no link of its own
        ranks[r].link_latency_ns = links[r].latency_ns;
        ranks[r].link_bytes_per_ns = links[r].bytes_per_ns;
    }
    free(links);
    return status;
}

// All stages' replicas at once, as at the end of a step; the mean time of a byte. On a GPU, and where there
// are no replicas, sums travel as fast as other messages.
static Status measure_sums(CostModel* out, const Measure* m) {
    Dynapipe* dp = m->dp;
    out->reduce_bytes_per_ns = out->comm_bytes_per_ns;
    if (dp->num_replicas < 2 || dp->replicas.num_ranks < 2 || measure_is_gpu(m)) { return STATUS_OK; }
    double bytes_per_ns;
    TRY(link_probe_sums(&bytes_per_ns, &dp->replicas));
    double ns_per_byte = 1 / bytes_per_ns;
    TRY(collective_all_reduce_sum(&dp->world, &ns_per_byte, 1));
    out->reduce_bytes_per_ns = dp->transport.num_ranks / ns_per_byte;
    return STATUS_OK;
}

Status measure_machine(CostModel* out, MachineRank* ranks, Measure* m) {
    for (int32_t r = 0; r < m->dp->transport.num_ranks; r++) { ranks[r] = machine_rank(NULL, r); }
    TRY(measure_speed_agree(ranks, &m->speed, &m->dp->world));
    TRY(measure_links(out, ranks, m->dp));
    return measure_sums(out, m);
}

// --- settled -----------------------------------------------------------------------------------------------

// How many times as long the slowest rank takes as the quickest, less 1: of the jobs [begin, end) together.
static double spread(const MachineRank* ranks, int32_t num_ranks, int begin, int end) {
    double least = INFINITY, most = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        double slow = 0;
        for (int kind = begin; kind < end; kind++) { slow += ranks[r].slow[kind]; }
        least = slow < least ? slow : least;
        most = slow > most ? slow : most;
    }
    return most / least - 1;
}

// One kind of job alone is measured less well than all of them together.
static bool settle_speeds(MachineRank* ranks, int32_t num_ranks) {
    bool differ = spread(ranks, num_ranks, JOB_F, JOB_R) > MEASURE_SPEED_NOISE;
    for (int kind = JOB_F; kind < JOB_COUNT; kind++) {
        differ |= spread(ranks, num_ranks, kind, kind + 1) > 2 * MEASURE_SPEED_NOISE;
    }
    for (int kind = JOB_F; kind < JOB_COUNT; kind++) {
        if (differ && spread(ranks, num_ranks, kind, kind + 1) > MEASURE_SPEED_NOISE) { continue; }
        for (int32_t r = 0; r < num_ranks; r++) { ranks[r].slow[kind] = 1; }
    }
    return differ;
}

static bool settle_links(MachineRank* ranks, int32_t num_links) {
    double least_ns = INFINITY, most_ns = 0;
    for (int32_t r = 0; r < num_links; r++) {
        if (ranks[r].link_bytes_per_ns <= 0) { continue; }
        double ns = message_ns(&ranks[r]);
        least_ns = ns < least_ns ? ns : least_ns;
        most_ns = ns > most_ns ? ns : most_ns;
    }
    if (most_ns > least_ns * (1 + MEASURE_LINK_NOISE)) { return true; }
    for (int32_t r = 0; r < num_links; r++) { ranks[r].link_latency_ns = ranks[r].link_bytes_per_ns = 0; }
    return false;
}

bool measure_machine_settle(MachineRank* ranks, int32_t num_ranks) {
    bool links_differ = settle_links(ranks, num_ranks - 1), speeds_differ = settle_speeds(ranks, num_ranks);
    return links_differ || speeds_differ;
}

// --- costs -------------------------------------------------------------------------------------------------

DynapipeCosts* measure_costs_new(int32_t num_ranks) {
    return calloc(1, sizeof(DynapipeCosts) + (size_t)num_ranks * sizeof(MachineRank));
}

MachineRank* measure_costs_ranks(DynapipeCosts* costs) {
    return (MachineRank*)(costs + 1);
}
