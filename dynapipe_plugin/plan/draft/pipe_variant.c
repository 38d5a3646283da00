#include "pipe_variant.h"
#include "../simulate.h"

#include "../schedule.h"

int32_t pipe_variants(PipeVariant out[MAX_VARIANTS], const PlanRequest* request) {
    static const PipeVariant all[] = {
        {.name = "adaptive+w", .policy = &pipe_policy_adaptive, .split_backward = true, .tight = false},
        {.name = "adaptive+w", .policy = &pipe_policy_adaptive, .split_backward = true, .tight = true},
        {.name = "1f1b+w", .policy = &pipe_policy_1f1b, .split_backward = true, .tight = false},
        {.name = "adaptive", .policy = &pipe_policy_adaptive, .split_backward = false, .tight = false},
        {.name = "1f1b", .policy = &pipe_policy_1f1b, .split_backward = false, .tight = false},
        {.name = "adaptive", .policy = &pipe_policy_adaptive, .split_backward = false, .tight = true},
        {.name = "gpipe+w", .policy = &pipe_policy_gpipe, .split_backward = true, .tight = false},
        {.name = "gpipe", .policy = &pipe_policy_gpipe, .split_backward = false, .tight = false},
    };
    bool ours = request->batching == BATCHING_DYNAMIC;
    bool original = request->batching == BATCHING_DYNAPIPE;
    bool may_split = request->split_backward == SPLIT_BACKWARD_ON ||
                     (request->split_backward == SPLIT_BACKWARD_AUTO && ours);
    bool may_join = request->split_backward != SPLIT_BACKWARD_ON;
    bool linear = request->placement.num_chunks == 0 || placement_is_linear(&request->placement, request->P);
    int32_t num = 0;
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) {
        const PipePolicy* policy = all[i].policy;
        bool allowed = false;
        switch (request->schedule) {
            case SCHEDULE_GPIPE: allowed = policy == &pipe_policy_gpipe; break;
            case SCHEDULE_1F1B: allowed = policy == &pipe_policy_1f1b; break;
            case SCHEDULE_ADAPTIVE: allowed = policy == &pipe_policy_adaptive; break;
            default:  // each method as it is known; ours may take whatever is fastest
                allowed = ours       ? policy != &pipe_policy_gpipe
                          : original ? policy != &pipe_policy_gpipe && !all[i].tight
                                     : policy == &pipe_policy_1f1b;
        }
        if (all[i].tight && !ours) { allowed = false; }
        if (!linear && request->schedule == SCHEDULE_AUTO) { allowed = policy == &pipe_policy_adaptive; }
        if (allowed && (all[i].split_backward ? may_split : may_join)) { out[num++] = all[i]; }
    }
    return num;
}

Status pipe_variant_build(PipeSchedule* out, const PipeProblem* pipe, const int32_t* order,
                          const PipeVariant* variant, Arena* arena) {
    if (variant->policy == NULL) { return pipe_schedule_one_by_one(out, pipe, order, arena); }
    if (variant->has_rule) { return pipe_adaptive_build(out, pipe, order, &variant->rule, arena); }
    if (!variant->tight) { return variant->policy->build(out, pipe, order, variant->split_backward, arena); }
    PipeAdaptiveRule rule = pipe_adaptive_rule(pipe, variant->split_backward);
    int32_t K = pipe_num_chunks(pipe);
    for (int32_t k = 0; k < K; k++) { rule.max_in_flight[k] = K - k; }
    return pipe_adaptive_build(out, pipe, order, &rule, arena);
}

// One simulation. INT64_MAX where the variant does not fit in memory.
static Status evaluate(int64_t* makespan_ns, const PipeProblem* pipe, const int32_t* order,
                       const PipeVariant* variant, Arena* scratch) {
    arena_reset(scratch);
    *makespan_ns = INT64_MAX;
    PipeSchedule schedule;
    PipeTimeline timeline;
    Status status = pipe_variant_build(&schedule, pipe, order, variant, scratch);
    if (status == STATUS_INFEASIBLE) { return STATUS_OK; }
    TRY(status);
    TRY(pipe_simulate(&timeline, pipe, &schedule, scratch));
    for (int32_t s = 0; s < pipe->P; s++) {
        if (timeline.peak_bytes[s] > pipe->memory_limit_bytes[s]) { return STATUS_OK; }
    }
    *makespan_ns = timeline.makespan_ns;
    return STATUS_OK;
}

Status pipe_variants_best(PipeVariantBest* out, const PipeProblem* pipe, const int32_t* order,
                          const PipeVariant* variants, int32_t num_variants, Arena* scratch) {
    PipeVariantBest best = {.makespan_ns = INT64_MAX, .variant = 0};
    for (int32_t i = 0; i < num_variants; i++) {
        int64_t makespan_ns;
        TRY(evaluate(&makespan_ns, pipe, order, &variants[i], scratch));
        if (makespan_ns < best.makespan_ns) { best = (PipeVariantBest){makespan_ns, i}; }
    }
    *out = best;
    return STATUS_OK;
}
