/*
measure_machine.h -- links and sums of a cost model, and in what ranks and links differ (plan/cost/machine.h).

What differs by no more than noise does not differ: plans of two runs on machines that are alike are alike.
*/
#pragma once

#include "../run/session.h"
#include "measure_bench.h"

// Beyond these, jobs take longer on one rank than on another (one kind of them alone: beyond twice that), a
// link is slower than another.
#define MEASURE_SPEED_NOISE 0.03
#define MEASURE_LINK_NOISE 0.20

// comm_* (the mean of all links) and reduce_bytes_per_ns; ranks[num_ranks]: speeds by the points that were
// timed, and links, as found. The same bits on all ranks. A collective.
Status measure_machine(CostModel* out, MachineRank* ranks, Measure* m);

// Speeds that lie close together become 1, links that do become the cost model's. Returns whether any rank or
// link is left that differs.
bool measure_machine_settle(MachineRank* ranks, int32_t num_ranks);

// A cost model to be filled, of ranks that are alike, with room for num_ranks of them: ranks stand behind the
// struct. NULL: no memory.
DynapipeCosts* measure_costs_new(int32_t num_ranks);
MachineRank* measure_costs_ranks(DynapipeCosts* costs);
