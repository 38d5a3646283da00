// test_host_cores.c -- ranks of one process share one host; what it has is what they may run on.
#include "../dynapipe_plugin/run/hosts.h"

#include <stdbool.h>
#include <unistd.h>

#include "ranks.h"
#include "test.h"

static void quotas_are_whole_cores(void) {
    CHECK_EQ(host_cores_quota("max 100000\n"), 0);
    CHECK_EQ(host_cores_quota("200000 100000\n"), 2);
    CHECK_EQ(host_cores_quota("250000 100000"), 2);
    CHECK_EQ(host_cores_quota("10000 100000"), 1);
    const char* const none[] = {"", "100000", "-1 100000", "5 0", "nan nan", "1e300 1e-300"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) { CHECK_EQ(host_cores_quota(none[i]), 0); }
}

static Status find_body(Transport* t, void* arg) {
    Collective world = {0};
    HostCores hosts = {0};
    int32_t ranks[8] = {0, 1, 2, 3, 4, 5, 6, 7};
    TRY(collective_init(&world, t, ranks, t->num_ranks, INT64_C(20000000000)));
    TRY(host_cores_find(&hosts, &world, *(int32_t*)arg + t->rank));  // the last has the most threads
    EXPECT(hosts.num_ranks == t->num_ranks && hosts.num_hosts == 1);
    EXPECT(hosts.sharers[0] == t->num_ranks && hosts.threads[0] == *(int32_t*)arg + t->num_ranks - 1);
    EXPECT(hosts.cores[0] >= 1 && hosts.cores[0] <= sysconf(_SC_NPROCESSORS_CONF));
    for (int32_t r = 0; r < t->num_ranks; r++) { EXPECT(hosts.host[r] == 0); }
    bool lacks = (int64_t)hosts.threads[0] * hosts.sharers[0] > hosts.cores[0];
    EXPECT(host_cores_short(&hosts) == (lacks ? 0 : -1));
    EXPECT(hosts.is_roomy == (hosts.cores[0] / hosts.sharers[0] > hosts.threads[0]));
    host_cores_free(&hosts);
    collective_free(&world);
    return STATUS_OK;
}

static void ranks_of_a_process_share_its_cores(void) {
    RankResult results[8];
    unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    unsetenv("MPI_LOCALNRANKS");
    int32_t counts[] = {1, 100000};
    for (int i = 0; i < 2; i++) {
        for (int32_t num_ranks = 2; num_ranks <= 5; num_ranks++) {
            CHECK_EQ(ranks_run(num_ranks, RANKS_CHECKED, find_body, &counts[i], results, 1), 0);
        }
    }
}

// The host that lacks most is the one to name.
static void the_host_that_lacks_most_is_named(void) {
    int32_t host[] = {0, 0, 1, 2, 2}, cores[] = {2, 1, 1}, threads[] = {1, 3, 4}, sharers[] = {2, 1, 2};
    HostCores hosts = {5, 3, host, cores, threads, sharers, false};
    CHECK_EQ(host_cores_short(&hosts), 2);
    threads[2] = 0;
    CHECK_EQ(host_cores_short(&hosts), 1);
    cores[1] = 3;
    CHECK_EQ(host_cores_short(&hosts), -1);
}

int main(void) {
    RUN(quotas_are_whole_cores);
    RUN(ranks_of_a_process_share_its_cores);
    RUN(the_host_that_lacks_most_is_named);
    return test_end();
}
