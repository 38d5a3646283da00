// planner.c -- the method: drafts in the simulator, the best that fits, instruction lists, bound, check.
#include "planner.h"

#include <string.h>

#include "plan_assemble.h"
#include "plan_by_rule.h"
#include "plan_search.h"
#include "search.h"

static Status make_drafts(PlanDrafts* drafts) {
    if (!plan_is_searched(&drafts->request)) { return plan_by_rule(drafts); }
    TRY(plan_search(drafts));
    if (drafts->best_draft == NULL) { TRY(plan_by_rule(drafts)); }
    return plan_by_baselines(drafts);
}

// Instruction lists of the best draft, the bound beside it, and every rule that plans keep.
static Status finish(Plan* out, PlanDrafts* drafts, Arena* arena) {
    const PlanProblem* problem = &drafts->problem;
    const Draft* draft = drafts->best_draft;
    if (draft == NULL) { return FAIL(STATUS_INFEASIBLE, "%s", drafts->failure); }
    bool joint_backward = true;
    TRY(plan_drafts_place(drafts, &draft->placement));
    for (int32_t r = 0; r < problem->R; r++) {
        ReplicaPlan* replica = &drafts->best[r];
        joint_backward &= !replica->variant.split_backward;
        memset(replica->ranks, 0, sizeof replica->ranks);
        if (drafts->request.one_replica && r != drafts->request.my_replica) { continue; }
        TRY(replica_plan_emit(replica, problem, draft->replicas.begin[r], r * problem->P, arena));
    }
    Plan plan;
    TRY(plan_assemble(&plan, problem, &draft->list, drafts->best, arena));
    if (drafts->bound.bound_ns == 0 || drafts->bound_is_joint != joint_backward) {
        lower_bound_make(&drafts->bound, problem, joint_backward);
    }
    plan_set_bound(&plan, drafts->bound.bound_ns);
    TRY(plan_check(&plan, problem->samples, problem->num_samples));
    TRY(plan_check_shapes(&plan, &drafts->request.rules));
    *out = plan;
    return STATUS_OK;
}

Status plan_make(Plan* out, const PlanRequest* request, const CostModel* costs, const PlanSample* samples,
                 int32_t num_samples, Arena* arena) {
    PlanDrafts drafts;
    Status status = plan_drafts_begin(&drafts, request, costs, samples, num_samples);
    if (status == STATUS_OK) { status = make_drafts(&drafts); }
    if (status == STATUS_OK) { status = finish(out, &drafts, arena); }
    plan_drafts_free(&drafts);
    return status;
}

int32_t plan_effort(const PlanRequest* request, int64_t planning_ns) {
    return plan_is_searched(request) ? search_effort(request->P, planning_ns) : 0;
}
