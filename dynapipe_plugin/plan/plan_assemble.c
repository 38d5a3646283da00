#include "plan_assemble.h"

#include <string.h>

#include "batching.h"
#include "schedule.h"

static void copy_microbatch(Plan* plan, const MicrobatchList* list, const ReplicaPlan* replica, int32_t r,
                            int32_t m) {
    const ReplicaProblem* problem = &replica->problem;
    const Microbatch* from = &list->mbs[problem->mbs[m]];
    PlanMicrobatch* to = &plan->mbs[plan->M++];
    *to = (PlanMicrobatch){.replica = r,
                           .layout = (uint8_t)from->layout,
                           .sequence_begin = plan->num_sequences,
                           .shape = from->shape};
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        to->recompute[k] = problem->modes[(int64_t)k * problem->pipe.M + m];
    }
    for (int32_t i = from->sequence_begin; i < from->sequence_end; i++) {
        const PlanSequence* seq = &list->sequences[i];
        int32_t num_segments = seq->segment_end - seq->segment_begin;
        memcpy(plan->segments + plan->num_segments, list->segments + seq->segment_begin,
               (size_t)num_segments * sizeof(PlanSegment));
        plan->sequences[plan->num_sequences++] =
            (PlanSequence){.segment_begin = plan->num_segments,
                           .segment_end = plan->num_segments + num_segments,
                           .enc_tokens = seq->enc_tokens,
                           .dec_tokens = seq->dec_tokens};
        plan->num_segments += num_segments;
    }
    to->sequence_end = plan->num_sequences;
}

// One name where all replicas agree, else "mixed"; replicas without work have no say.
static void set_schedule_name(Plan* plan, const ReplicaPlan* replicas) {
    const char* name = NULL;
    for (int32_t r = 0; r < plan->R; r++) {
        if (replicas[r].problem.pipe.M == 0) { continue; }
        bool differs = name != NULL && strcmp(name, replicas[r].variant.name) != 0;
        name = differs ? "mixed" : replicas[r].variant.name;
        if (differs) { break; }
    }
    snprintf(plan->schedule, sizeof plan->schedule, "%s", name != NULL ? name : replicas[0].variant.name);
}

void plan_set_bound(Plan* plan, int64_t bound_ns) {
    plan->bound_over_ns = bound_ns > plan->makespan_ns ? bound_ns - plan->makespan_ns : 0;
    plan->bound_ns = bound_ns - plan->bound_over_ns;
}

Status plan_assemble(Plan* out, const PlanProblem* problem, const MicrobatchList* list,
                     const ReplicaPlan* replicas, Arena* arena) {
    const PlanRequest* request = problem->request;
    Plan plan = {.P = problem->P,
                 .R = problem->R,
                 .N = problem->num_samples,
                 .one_replica = request->one_replica,
                 .my_replica = request->my_replica,
                 .pulls = machine_pulls(request->machine),
                 .memory_limit_bytes =
                     request->memory_rule == MEMORY_BUFFERS ? request->memory_limit_bytes : 0};
    ARENA_TRY_NEW(plan.mbs, arena, PlanMicrobatch, list->num_mbs);
    ARENA_TRY_NEW(plan.sequences, arena, PlanSequence, list->num_sequences);
    ARENA_TRY_NEW(plan.segments, arena, PlanSegment, list->num_segments);
    ARENA_TRY_NEW(plan.ranks, arena, PlanRank, plan.P * plan.R);
    plan.placement = problem->placement;
    snprintf(plan.policy, sizeof plan.policy, "%s", batching_policy(request->batching)->name);
    set_schedule_name(&plan, replicas);
    for (int32_t r = 0; r < plan.R; r++) {
        const ReplicaPlan* replica = &replicas[r];
        for (int32_t m = 0; m < replica->problem.pipe.M; m++) { copy_microbatch(&plan, list, replica, r, m); }
        for (int32_t s = 0; s < plan.P; s++) { plan.ranks[r * plan.P + s] = replica->ranks[s]; }
        if (replica->timeline.makespan_ns > plan.makespan_ns) {
            plan.makespan_ns = replica->timeline.makespan_ns;
        }
        if (plan.one_replica && replica->timeline.last_end_ns > plan.last_end_ns) {
            plan.last_end_ns = replica->timeline.last_end_ns;
        }
    }
    *out = plan;
    return STATUS_OK;
}
