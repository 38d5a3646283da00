/*
machine_io.h -- the lines of a cost file that say in what ranks differ.

    rank 2 slow F 1.5 B 1.5 W 1.4 R 1.5 memory 0 link latency_ns 0 bytes_per_ns 0
*/
#pragma once

#include "cost_reader.h"
#include "machine.h"

// A line for each rank, if there are any. (`pulls` is the transport's, not kept.)
void machine_print(const Machine* machine, FILE* out);

// The line behind its first word, of rank *num_ranks, which must be its number: one more of (*ranks)[], which
// the caller frees, also after a failure. Values are machine_check()'s to judge.
Status machine_line_parse(CostReader* r, MachineRank** ranks, int32_t* num_ranks);
