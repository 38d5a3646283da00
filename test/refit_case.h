/*
refit_case.h -- steps that never ran: what ranks would have measured of a plan by other costs than it was
made with, and how long it would have taken.
*/
#pragma once

#include "../util/numbers.h"
#include "../dynapipe_plugin/plan/cost_model.h"
#include "../dynapipe_plugin/plan/plan.h"
#include "../dynapipe_plugin/run/trace.h"

typedef struct {
    const CostModel* costs;
    const double* slow;  // [P * R] of all jobs; NULL: 1
    double noise;        // relative deviation of a job
    int32_t one_in;      // of so many jobs one was interrupted and took 3 to 10 times as long; 0: none
} RefitTruth;

// A GPT of 8 layers and 4 heads on one machine.
typedef struct {
    int32_t channels, padded_vocab;
    double comm_latency_ns, comm_bytes_per_ns;
} RefitCaseModel;
void refit_case_costs(CostModel* out, RefitCaseModel model);

// Of one rank. Memory from `arena`.
Status refit_case_trace(TraceRank* out, const Plan* plan, int32_t rank, const RefitTruth* truth, Rng* rng,
                        Arena* arena);
// A cost file that is wrong: the head takes so many times what is true, attention so many times.
void refit_case_wrong(CostModel* out, const CostModel* truth, double head, double attention);

// What the ranks make of jobs[num_ranks]: as run/session_refit does it, without messages. Forgets them.
void refit_case_fit(CostScale* scale, RefitRank* ranks, TraceJobs* jobs, int32_t num_ranks,
                    RefitSums history[SIDE_COUNT]);
