/*
microbatch_ragged.h -- `dynamic` without padding: longest first into capacities that taper.

    capacity of micro-batch k of M (per replica), e = its distance from the nearer end:
        body                                                        e >= depth
        body * (end + (100 - end) * e / depth) / 100                e <  depth

The ramp of a pipeline is paid by the first and last micro-batches, so these are small; without padding, cost
is additive, so samples need not be neighbours in length (Graham's longest processing time rule, 1969, into
bins of unequal capacity). First replicas (largest differencing on the samples), then micro-batches within
each. A sample's weight is what it adds, on the slowest stage, to an average micro-batch. Where memory does
not let a sample into any micro-batch, one more is opened, so M is a wish. Finally micro-batches are ordered
by work: smallest at both ends. O(N log N) while memory is not tight.
*/
#pragma once

#include "../problem/microbatch.h"

// Used where no taper is given: 3 P micro-batches per replica, P of them smaller at each end.
MicrobatchTaper microbatch_taper_default(const MicrobatchProblem* problem);

MicrobatchBuild microbatch_ragged_build, microbatch_dynamic_build;
MicrobatchCandidates microbatch_ragged_candidates, microbatch_dynamic_candidates;
