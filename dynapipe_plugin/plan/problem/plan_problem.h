/*
plan_problem.h -- the planning problem: what every pass of the planner is asked.

Samples, costs, machine, placement and memory of one global batch, checked and looked up once. All passes are
pure functions of it: integers decide, ties go to the smaller sample id.
*/
#pragma once

#include "../cost/cost_share.h"
#include "../cost/machine.h"
#include "../types/plan_request.h"

typedef struct {
    const PlanRequest* request;
    const CostModel* costs;
    CostTable table;            // of costs, for inner loops
    const PlanSample* samples;  // index = sample id
    int32_t num_samples;
    int32_t P, R;
    int32_t K, num_rows;  // chunks; with shares of the head
    Placement placement;  // the request's
    CostStage chunks[PLAN_MAX_CHUNKS];
    CostRank has[PLAN_MAX_STAGES];  // what the ranks of a stage have of the model
    // Of the machine (machine.h), for passes that do not know which replica they work for.
    int64_t limit_bytes[PLAN_MAX_STAGES];       // memory of the stage's ranks: the least; 0: no limit
    int64_t most_limit_bytes[PLAN_MAX_STAGES];  // the most; 0: no limit on some rank
    double stage_slow[PLAN_MAX_STAGES];         // how long jobs take there, the mean over replicas ...
    double replica_slow[PLAN_MAX_REPLICAS];     // ... and in a replica, links considered, relative to others
    bool differs;                               // false: these are all 1
    bool has_limit;                             // any rank
    int64_t available_bytes[PLAN_MAX_STAGES];   // limit_bytes - model state; COST_LIMIT where there is none
    // Of these, what drafts leave free for what they do not count: by how much the instruction lists of
    // earlier ones came out over the limit (memory_fit.h). 0 after init.
    int64_t headroom_bytes[PLAN_MAX_STAGES];
    bool count_buffers;  // received and sent activations and scratch count (request->memory_rule)
    int32_t num_modes;   // recompute modes a pass may use, in the order they are tried
    RecomputeMode modes[RECOMPUTE_COUNT];
} PlanProblem;

// STATUS_INFEASIBLE where the model state alone exceeds the limit; STATUS_BAD_OPTION where the cost model
// offers no recompute mode that the request allows. Borrows all arguments.
Status plan_problem_init(PlanProblem* out, const PlanRequest* request, const CostModel* costs,
                         const PlanSample* samples, int32_t num_samples);

// has_limit and the limits of all stages, by what the request says now.
void plan_problem_limit(PlanProblem* out);

// The ranks of a replica, NULL: all alike; and what one has for activations, COST_LIMIT where there is no
// limit.
const MachineRank* plan_problem_ranks(const PlanProblem* problem, int32_t replica);
int64_t plan_problem_available(const PlanProblem* problem, const MachineRank* rank, const CostRank* has);

// [R], or NULL: all alike.
static inline const double* plan_problem_replica_slow(const PlanProblem* problem) {
    return problem->differs ? problem->replica_slow : NULL;
}

// What takes so long on an average rank, on those of stage s.
static inline int64_t plan_problem_stage_ns(const PlanProblem* problem, int32_t s, int64_t work_ns) {
    return problem->differs ? cost_round((double)work_ns * problem->stage_slow[s]) : work_ns;
}

// "--memory-limit", or the rank's own: whose limit binds on this stage, for messages.
const char* plan_problem_limit_words(char out[MACHINE_LIMIT_CHARS], const PlanProblem* problem,
                                     int32_t stage);
