/*
search.h -- our method: which samples form a microbatch, on which replica, in which order, what is recomputed
and where the pieces of the model lie. Every answer is judged by simulating the whole pipeline.

    construct   a field of candidates: every placement that the request allows, with a number of microbatches,
                a rule for what is recomputed and a number in flight. Samples are put into microbatches
largest first. Each is simulated; then the field is halved again and again, and the rest get better settings
(coordinate descent) and better layers. improve     local search on every replica of the best: samples and
recomputation. Replicas exchange samples.

The work is limited by jobs simulated, never by a clock: the same plan on every machine.
*/
#pragma once

#include "draft.h"

// The effort that takes about that long on one core: 1 ... INT32_MAX.
int32_t search_effort(int32_t P, int64_t search_ns);

// places: those to choose from (placement_field). The request's effort: simulations of 5 P microbatches each;
// 0: those of about 25 ms of a core for a replica of a few hundred samples. Where nothing is found that fits
// in memory, makespan_ns is INT64_MAX; some change may make it fit (draft.h). before: of the same problem
// with more memory, whose best candidates are tried, too; NULL: none.
Status search_draft(Draft* out, const PlanProblem* problem, const Placement* places, int32_t num_places,
                    const Draft* before, Arena* arena);
