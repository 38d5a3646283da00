// plan_by_rule.c -- see plan_by_rule.h.
#include "plan_by_rule.h"

#include <stdio.h>

#include "batching.h"
#include "schedule.h"

enum { POLICY_EFFORT = 300, BASELINES_MAX_SAMPLES = 4096 };

// The paper's, all of it.
static Status by_original(PlanDrafts* drafts, const PlanProblem* batching) {
    Draft* draft;
    ARENA_TRY_NEW(draft, &drafts->lists, Draft, 1);
    TRY(batching_policy(drafts->request.batching)->draft(draft, batching, &drafts->lists));
    return plan_drafts_fit(drafts, draft);
}

// Where memory is limited, fitting may cost time: then all drafts are fitted, and the fastest wins.
static Status by_policy(PlanDrafts* drafts, const PlanProblem* batching) {
    Draft* made;
    int32_t num, effort = drafts->request.effort > 0 ? drafts->request.effort : POLICY_EFFORT;
    Status status = STATUS_OK;
    if (plan_is_original(&drafts->request)) { return by_original(drafts, batching); }
    ARENA_TRY_NEW(made, &drafts->lists, Draft, POLICY_MAX_DRAFTS);
    TRY(policy_drafts(made, &num, &drafts->problem, batching, effort, &drafts->lists));
    for (int32_t i = 0; i < num; i++) {
        if (drafts->best_draft != NULL && made[i].makespan_ns >= drafts->best_ns) { break; }
        status = plan_drafts_fit(drafts, &made[i]);
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { return status; }
    }
    return drafts->best_draft != NULL ? STATUS_OK : status;
}

// Lack of memory is noted, the first one, and no failure here; others are returned.
static Status note(PlanDrafts* drafts, Status status) {
    if (status != STATUS_INFEASIBLE) { return status; }
    if (drafts->failure[0] == '\0') {
        snprintf(drafts->failure, sizeof drafts->failure, "%s", status_message());
    }
    return STATUS_OK;
}

Status plan_by_rule(PlanDrafts* drafts) {
    static const int32_t percents[] = {100, 90, 75, 50};
    TRY(plan_drafts_place(drafts, &drafts->begin));
    for (size_t i = 0; i < sizeof percents / sizeof percents[0]; i++) {
        PlanProblem batching = drafts->problem;
        for (int32_t s = 0; s < batching.P; s++) {
            batching.available_bytes[s] -= batching.available_bytes[s] / 100 * (100 - percents[i]);
        }
        Status status = by_policy(drafts, &batching);
        if (status == STATUS_OK) { return STATUS_OK; }
        TRY(note(drafts, status));
    }
    return STATUS_OK;
}

Status plan_by_baselines(PlanDrafts* drafts) {
    static const Batching known[] = {BATCHING_TOKENS, BATCHING_KK, BATCHING_PACKED_RAGGED};
    const Batching ours = drafts->request.batching;
    for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
        bool found = drafts->best_draft != NULL;
        if (found && drafts->problem.num_samples > BASELINES_MAX_SAMPLES) { break; }
        if (batching_policy(known[i]) == NULL) { break; }
        if (found && drafts->best_ns <= drafts->good_enough_ns) { break; }
        if (drafts->request.layout == LAYOUT_PADDED && known[i] != BATCHING_TOKENS) { break; }
        drafts->request.batching = known[i];
        Status status = plan_by_rule(drafts);
        drafts->request.batching = ours;
        TRY(status);
    }
    return STATUS_OK;
}
