#include "measure_speed.h"

#include <stdlib.h>

void measure_speed_add(MeasureSpeed* speed, const double mine_ns[JOB_COUNT],
                       const double mean_ns[JOB_COUNT]) {
    if (speed->num_points == MEASURE_SPEED_POINTS) { return; }
    for (JobKind kind = JOB_F; kind < JOB_R; kind++) {
        speed->points[kind][speed->num_points].mine_ns = mine_ns[kind];
        speed->points[kind][speed->num_points].mean_ns = mean_ns[kind];
    }
    speed->num_points++;
}

// By mine / mean. Points of two.
static int compare_ratios(const void* a, const void* b) {
    const double *x = a, *y = b;
    double left = x[0] * y[1], right = y[0] * x[1];
    return (left > right) - (left < right);
}

double measure_speed_slow(MeasureSpeed* speed, JobKind kind) {
    const int32_t n = speed->num_points, out = n / 8;
    double mine_ns = 0, mean_ns = 0;
    qsort(speed->points[kind], (size_t)n, sizeof speed->points[kind][0], compare_ratios);
    for (int32_t i = out; i < n - out; i++) {
        mine_ns += speed->points[kind][i].mine_ns;
        mean_ns += speed->points[kind][i].mean_ns;
    }
    return mine_ns > 0 && mean_ns > 0 ? mine_ns / mean_ns : 1;
}

// Times that lie apart by more than machine_check() takes say nothing of the machine.
static double sane(double slow) {
    return slow < MACHINE_LEAST_SLOW  ? MACHINE_LEAST_SLOW
           : slow > MACHINE_MOST_SLOW ? MACHINE_MOST_SLOW
                                      : slow;
}

Status measure_speed_agree(MachineRank* ranks, MeasureSpeed* speed, Collective* world) {
    const int32_t num_ranks = world->num_ranks;
    double* slow = calloc((size_t)num_ranks * JOB_R, sizeof *slow);
    if (slow == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    for (JobKind kind = JOB_F; kind < JOB_R; kind++) {
        slow[world->my_idx * JOB_R + (int32_t)kind] = measure_speed_slow(speed, kind);
    }
    Status status = collective_all_reduce_sum(world, slow, num_ranks * JOB_R);
    for (int32_t r = 0; r < num_ranks; r++) {
        for (JobKind kind = JOB_F; kind < JOB_R; kind++) {
            ranks[r].slow[kind] = sane(slow[r * JOB_R + (int32_t)kind]);
        }
        ranks[r].slow[JOB_R] = ranks[r].slow[JOB_F];
    }
    free(slow);
    return status;
}
