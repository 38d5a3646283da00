/*
measure.h -- what a model costs on these ranks, measured or as measured before: the inside of
dynapipe_measure().

    measure_fresh()   times, by running small ranges of the model (measure_times.h), each rank's speed, and
the links (measure_machine.h) measure_kept.h    these in a file, so that the next start takes none
    measure_bytes.h   bytes and parameters: asked of the model at every start, since that takes milliseconds
*/
#pragma once

#include "measure_machine.h"

// The shapes that this run will have: longest windows of the first batches (rounded up, so that runs alike
// measure alike), largest micro-batch.
Status measure_wanted(Measure* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks);

// Times of every part and job, links, in what ranks differ; no bytes. found[num_ranks]: each rank and its
// link as they came out; NULL: not wanted. A collective: all ranks get the same bits. Prints one line on rank
// 0.
Status measure_fresh(DynapipeCosts* out, MachineRank* found, Measure* m);

// Bytes and state, for num_replicas and zero_stage of the session. The same bits on all ranks: where they
// differ (a rank with more threads needs more), the larger. A collective.
Status measure_bytes_all(CostModel* out, Dynapipe* dp, const DynapipeBlocks_v1* blocks);

// A model that cannot be measured: what is wrong with it, in words.
Status measure_check(const DynapipeBlocks_v1* blocks);
