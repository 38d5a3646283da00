#include "memory_fit.h"
#include "../simulate.h"

#include <string.h>

#include "../schedule.h"

enum { MAX_RAISES = 6, MAX_RECOMPUTE_ROUNDS = 8 };

typedef struct {
    ReplicaPlan* plan;
    const PlanProblem* problem;
    const MicrobatchList* list;
    int32_t first_mb, first_rank;
    int64_t over_bytes[PLAN_MAX_STAGES];  // what the last attempt needed beyond the limit
} Fit;

static bool is_over(const Fit* fit) {
    for (int32_t s = 0; s < fit->plan->problem.pipe.P; s++) {
        if (fit->over_bytes[s] > 0) { return true; }
    }
    return false;
}

static bool counts_buffers(const Fit* fit) {
    return fit->problem->count_buffers;
}

static const MachineRank* fit_rank(const Fit* fit, int32_t s) {
    return machine_stage(plan_problem_ranks(fit->problem, fit->plan->problem.replica), s);
}

static int64_t rank_limit_bytes(const Fit* fit, int32_t s) {
    return machine_limit_bytes(fit_rank(fit, s), fit->problem->request->memory_limit_bytes);
}

// Jobs in order, and when they run. STATUS_OK with over_bytes set where a micro-batch does not fit even
// alone.
static Status schedule(Fit* fit, Arena* arena) {
    ReplicaPlan* plan = fit->plan;
    PipeProblem* pipe = &plan->problem.pipe;
    memset(fit->over_bytes, 0, sizeof fit->over_bytes);
    int32_t* order;
    ARENA_TRY_NEW(order, arena, int32_t, pipe->M);
    for (int32_t m = 0; m < pipe->M; m++) { order[m] = m; }
    Status status = pipe_variant_build(&plan->schedule, pipe, order, &plan->variant, arena);
    if (status != STATUS_INFEASIBLE) {
        TRY(status);
        return pipe_simulate(&plan->timeline, pipe, &plan->schedule, arena);
    }
    for (int32_t s = 0; s < pipe->P; s++) {
        for (int32_t m = 0; m < pipe->M; m++) {
            int64_t over = pipe_alone_bytes(pipe, s, m) - pipe->memory_limit_bytes[s];
            if (over > fit->over_bytes[s]) { fit->over_bytes[s] = over; }
        }
    }
    return STATUS_OK;
}

// Instruction lists and their memory. Slack is for the lists that are run: it never makes them larger than
// the limit, so whether they fit shows without.
static Status lay_out(Fit* fit, bool with_slack, Arena* arena) {
    ReplicaPlan* plan = fit->plan;
    PipeProblem* pipe = &plan->problem.pipe;
    ReplicaListsInput input = {.problem = pipe,
                               .schedule = &plan->schedule,
                               .bytes = plan->problem.bytes,
                               .scratch_bytes = plan->problem.scratch_bytes,
                               .first_mb = fit->first_mb,
                               .first_rank = fit->first_rank,
                               .with_slack = with_slack};
    for (int32_t s = 0; s < pipe->P; s++) {
        int64_t limit_bytes = counts_buffers(fit) ? rank_limit_bytes(fit, s) : 0;
        plan->ranks[s].state_bytes = cost_rank_state_bytes(fit->problem->costs, &fit->problem->has[s]);
        input.enough_bytes[s] = limit_bytes > 0 ? limit_bytes - plan->ranks[s].state_bytes : INT64_MAX;
    }
    TRY(replica_lists_make(plan->ranks, &plan->timeline, &input, arena));
    for (int32_t s = 0; s < pipe->P; s++) {
        PlanRank* rank = &plan->ranks[s];
        int64_t limit_bytes = counts_buffers(fit) ? rank_limit_bytes(fit, s) : 0;
        rank->own_limit_bytes = limit_bytes == fit->problem->request->memory_limit_bytes ? 0 : limit_bytes;
        int64_t over = rank->arena_bytes + rank->state_bytes - limit_bytes;
        if (limit_bytes > 0 && over > 0) { fit->over_bytes[s] = over; }
    }
    return STATUS_OK;
}

// STATUS_OK with over_bytes set, fitting or not. Where buffers do not count, no layout is needed to tell.
static Status attempt(Fit* fit, Arena* arena) {
    const PlanProblem* problem = fit->problem;
    TRY(schedule(fit, arena));
    if (is_over(fit) || !problem->has_limit) { return STATUS_OK; }
    if (counts_buffers(fit)) { return lay_out(fit, false, arena); }
    for (int32_t s = 0; s < problem->P; s++) {
        const MachineRank* rank = machine_stage(plan_problem_ranks(problem, fit->plan->problem.replica), s);
        int64_t over =
            fit->plan->timeline.peak_bytes[s] - plan_problem_available(problem, rank, &problem->has[s]);
        if (over > 0) { fit->over_bytes[s] = over; }
    }
    return STATUS_OK;
}

static void raise_headroom(Fit* fit) {
    for (int32_t s = 0; s < fit->plan->problem.pipe.P; s++) {
        fit->plan->problem.headroom_bytes[s] += fit->over_bytes[s];
    }
    replica_problem_set_limits(&fit->plan->problem, fit->problem);
}

// The micro-batch and chunk on stage s that keep most, and need not. False: none.
static bool find_largest(int32_t* chunk, int32_t* mb, const PipeProblem* pipe, int32_t s) {
    int64_t most_bytes = -1;
    for (int32_t k = 0; k < pipe_num_chunks(pipe); k++) {
        if (pipe_stage_of(pipe, k) != s) { continue; }
        for (int32_t m = 0; m < pipe->M; m++) {
            const PipeCost* cost = pipe_cost(pipe, k, m);
            if (cost->mode == RECOMPUTE_FULL || cost->stored_bytes <= most_bytes) { continue; }
            most_bytes = cost->stored_bytes;
            *chunk = k;
            *mb = m;
        }
    }
    return most_bytes >= 0;
}

// Drop the activations of those micro-batches that hold most on stages that are over, until that would do by
// itself; all of them if `all`. False where nothing is left to drop.
static bool recompute_more(Fit* fit, bool all) {
    ReplicaProblem* replica = &fit->plan->problem;
    bool changed = false;
    for (int32_t s = 0; s < replica->pipe.P; s++) {
        int64_t left_bytes = fit->over_bytes[s];
        int32_t k, m;
        while (left_bytes > 0 && find_largest(&k, &m, &replica->pipe, s)) {
            if (!all) { left_bytes -= pipe_cost(&replica->pipe, k, m)->stored_bytes; }
            replica_problem_set_mode(replica, fit->problem, fit->list, k, m, RECOMPUTE_FULL);
            changed = true;
        }
    }
    return changed;
}

static bool may_recompute(const PlanProblem* problem) {
    for (int32_t i = 0; i < problem->num_modes; i++) {
        if (problem->modes[i] == RECOMPUTE_FULL) { return true; }
    }
    return false;
}

static bool ignores_memory(const PipeVariant* variant) {
    return variant->policy == &pipe_policy_1f1b || variant->policy == &pipe_policy_gpipe ||
           variant->policy == &pipe_policy_cyclic;
}

static Status report(const Fit* fit) {
    const PlanRequest* request = fit->problem->request;
    char words[MACHINE_LIMIT_CHARS];
    for (int32_t s = 0; s < fit->plan->problem.pipe.P; s++) {
        if (fit->over_bytes[s] <= 0) { continue; }
        bool adapts = request->schedule == SCHEDULE_AUTO || request->schedule == SCHEDULE_ADAPTIVE;
        return FAIL(STATUS_INFEASIBLE,
                    "%s, %lld bytes: stage %d needs %lld bytes more with schedule %s ---> %s%s"
                    "more --stages, fewer tokens per micro-batch or a larger limit",
                    machine_limit_words(words, fit_rank(fit, s),
                                        fit->plan->problem.replica * fit->plan->problem.pipe.P + s),
                    (long long)rank_limit_bytes(fit, s), s, (long long)fit->over_bytes[s],
                    fit->plan->variant.name, adapts ? "" : "--schedule adaptive, ",
                    may_recompute(fit->problem) ? "" : "--recompute full or auto, ");
    }
    return FAIL(STATUS_INFEASIBLE, "--memory-limit: no schedule fits");
}

Status replica_plan_emit(ReplicaPlan* plan, const PlanProblem* problem, int32_t first_mb, int32_t first_rank,
                         Arena* arena) {
    Fit fit = {.plan = plan, .problem = problem, .first_mb = first_mb, .first_rank = first_rank};
    TRY(schedule(&fit, arena));
    return lay_out(&fit, true, arena);
}

Status memory_try(int64_t over_bytes[PLAN_MAX_STAGES], ReplicaPlan* plan, const PlanProblem* problem,
                  const MicrobatchList* list, Arena* scratch) {
    Fit fit = {.plan = plan, .problem = problem, .list = list};
    arena_reset(scratch);
    TRY(attempt(&fit, scratch));
    for (int32_t s = 0; s < problem->P; s++) {
        if (fit.over_bytes[s] > over_bytes[s]) { over_bytes[s] = fit.over_bytes[s]; }
    }
    return STATUS_OK;
}

Status memory_fit(ReplicaPlan* plan, const PlanProblem* problem, const MicrobatchList* list, Arena* scratch) {
    static const PipeVariant one_by_one = {.name = "adaptive"};
    Fit fit = {.plan = plan, .problem = problem, .list = list};
    ScheduleChoice choice = problem->request->schedule;
    bool may_adapt = choice == SCHEDULE_AUTO || choice == SCHEDULE_ADAPTIVE;
    bool may_drop = may_recompute(problem);
    int32_t num_raises = 0, num_rounds = 0;
    for (;;) {
        arena_reset(scratch);
        TRY(attempt(&fit, scratch));
        if (!is_over(&fit)) { return STATUS_OK; }
        if (choice == SCHEDULE_AUTO && ignores_memory(&plan->variant)) {
            bool splits = plan->variant.split_backward;
            plan->variant = (PipeVariant){.name = splits ? "adaptive+w" : "adaptive",
                                          .policy = &pipe_policy_adaptive,
                                          .split_backward = splits};
            continue;
        }
        bool adaptive = plan->variant.policy == &pipe_policy_adaptive ||
                        plan->variant.policy == &pipe_policy_cyclic_limited;
        if (adaptive && num_raises < MAX_RAISES) {
            raise_headroom(&fit);
            num_raises++;
            continue;
        }
        memset(plan->problem.headroom_bytes, 0, sizeof plan->problem.headroom_bytes);
        replica_problem_set_limits(&plan->problem, problem);
        if (may_drop && recompute_more(&fit, num_rounds >= MAX_RECOMPUTE_ROUNDS)) {
            num_raises = 0;
            num_rounds++;
            continue;
        }
        if (!may_adapt || plan->variant.policy == NULL) { return report(&fit); }
        plan->variant = one_by_one;
    }
}
