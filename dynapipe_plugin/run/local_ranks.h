/*
local_ranks.h -- how many ranks share this machine, and how many of its cores are one rank's.

Costs are measured for a number of threads per rank, and for ranks that share a machine.
*/
#pragma once

#include <stdint.h>

// Ranks on this machine's cores, of num_ranks in all: what mpirun says, else all of them.
int32_t local_ranks_count(int32_t num_ranks);

// Threads of one rank: `asked` if > 0, else OMP_NUM_THREADS, else its share of the cores; at least 1.
int32_t local_ranks_threads(int32_t asked, int32_t num_ranks);
