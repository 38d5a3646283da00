/*
measure_speed.h -- how many times as long as the mean of all ranks a rank takes, by what it took itself for
every point that was measured.
*/
#pragma once

#include "../plan/cost/machine.h"
#include "../run/collective.h"

enum { MEASURE_SPEED_POINTS = 256 };  // later ones are left out

// What every rank keeps for itself. Zeros: nothing yet.
typedef struct {
    int32_t num_points;
    struct {
        double mine_ns, mean_ns;
    } points[JOB_R][MEASURE_SPEED_POINTS];  // F, B, W
} MeasureSpeed;

void measure_speed_add(MeasureSpeed* speed, const double mine_ns[JOB_COUNT], const double mean_ns[JOB_COUNT]);

// Of one kind of job: sum of mine over sum of means, without the eighth of the points where mine is farthest
// above the mean and the eighth where it is farthest below. 1: nothing was measured.
double measure_speed_slow(MeasureSpeed* speed, JobKind kind);

// ranks[world->num_ranks].slow, the same bits on all ranks. R is F. A collective.
Status measure_speed_agree(MachineRank* ranks, MeasureSpeed* speed, Collective* world);
