// draft.c -- see draft.h.
#include "draft.h"

#include <string.h>

// --- prices -----------------------------------------------------------------------------------------------

static void set_times(PipeCost* out, const PipePlace* place, int32_t stage, const CostJobs* jobs) {
    const MachineRank* rank = machine_stage(place->ranks, stage);
    memcpy(out->job_ns, jobs->job_ns, sizeof out->job_ns);
    if (!out->drops) { out->job_ns[JOB_R] = 0; }
    if (rank == NULL) { return; }
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        out->job_ns[kind] = machine_job_ns(rank, (JobKind)kind, out->job_ns[kind]);
    }
}

// parts_bytes: all that the chunk which feeds a shared head holds for it, besides hidden states.
static void chunk_cost(PipeCost* out, const PipePlace* place, int32_t k, RecomputeMode mode,
                       const CostJobs* jobs, int64_t in_bytes, int64_t parts_bytes) {
    const PlanProblem* problem = place->problem;
    const Placement* placement = place->placement;
    bool buffers = problem->count_buffers, last = k == placement->num_chunks - 1;
    bool sends = !last && !placement_hands_over(placement, k);
    int64_t out_bytes = buffers && (sends || last) ? plan_align_bytes(jobs->boundary_bytes) + parts_bytes : 0;
    int32_t stage = placement->stage_of[k];
    *out = (PipeCost){.boundary_bytes = jobs->boundary_bytes,
                      .mode = mode,
                      .drops = problem->costs->recompute_is_job[mode] && mode != RECOMPUTE_NONE};
    out->stored_bytes = (buffers ? plan_align_bytes(jobs->stored_bytes) : jobs->stored_bytes) + out_bytes;
    out->forward_bytes = out->drops ? plan_align_bytes(jobs->forward_bytes) + out_bytes : 0;
    out->input_bytes = k == 0 || !buffers ? 0 : plan_align_bytes(in_bytes);
    if (sends) {
        out->transfer_ns = machine_between_ns(place->ranks, problem->costs, stage, placement->stage_of[k + 1],
                                              jobs->boundary_bytes);
    }
    set_times(out, place, stage, jobs);
}

// in_bytes, part_bytes: of its transfers, which by some rules are smaller than its buffers.
static void share_cost(PipeCost* out, const PipePlace* place, int32_t s, const CostJobs* jobs,
                       int64_t in_bytes, int64_t part_bytes) {
    const PlanProblem* problem = place->problem;
    const Placement* placement = place->placement;
    int32_t last = placement->stage_of[placement->num_chunks - 1];
    *out = (PipeCost){.stored_bytes = jobs->stored_bytes, .boundary_bytes = jobs->boundary_bytes};
    set_times(out, place, s, jobs);
    if (s == last || !placement_has_share(placement, s)) { return; }
    if (problem->count_buffers) {
        out->stored_bytes = plan_align_bytes(jobs->stored_bytes) + plan_align_bytes(jobs->boundary_bytes) +
                            plan_align_bytes(jobs->part_bytes) + plan_align_bytes(jobs->factor_bytes);
    }
    out->transfer_ns = machine_between_ns(place->ranks, problem->costs, last, s, in_bytes);
    out->part_ns = machine_between_ns(place->ranks, problem->costs, s, last, part_bytes);
    if (jobs->factor_bytes > 0) {
        out->factor_ns = machine_between_ns(place->ranks, problem->costs, last, s, jobs->factor_bytes);
    }
}

static RankBytes row_bytes(const CostJobs* jobs, bool drops, int64_t in_bytes, int64_t out_bytes) {
    return (RankBytes){.acts_bytes = jobs->stored_bytes,
                       .forward_bytes = drops ? jobs->forward_bytes : 0,
                       .in_bytes = in_bytes,
                       .out_bytes = out_bytes,
                       .part_bytes = jobs->part_bytes,
                       .factor_bytes = jobs->factor_bytes};
}

// Returns what the chunk that feeds them holds, as buffers: their parts, the gradient made of these, factors.
static int64_t shares_make(PipeCost* out, RankBytes* bytes, int64_t stride, const PipePlace* place,
                           const CostParts* parts) {
    const PlanProblem* problem = place->problem;
    int64_t parts_bytes = 0;
    for (int32_t s = 0; s < place->P; s++) {
        int64_t cell = (place->placement->num_chunks + s) * stride;
        CostJobs jobs;
        cost_jobs_of_share(&jobs, problem->costs, cost_share_of(place->placement, s), parts);
        bool travels_whole = place->placement->head == HEAD_BY_ROWS && problem->costs->head_rows_whole;
        int64_t all_bytes = cost_round(parts->head_in_bytes);
        share_cost(&out[cell], place, s, &jobs, travels_whole ? all_bytes : jobs.boundary_bytes,
                   travels_whole ? all_bytes : jobs.part_bytes);
        if (bytes != NULL) { bytes[cell] = row_bytes(&jobs, false, jobs.boundary_bytes, 0); }
        parts_bytes += plan_align_bytes(jobs.part_bytes) + plan_align_bytes(jobs.factor_bytes);
    }
    return problem->count_buffers ? parts_bytes + plan_align_bytes(cost_round(parts->head_in_bytes)) : 0;
}

int64_t pipe_costs_make(PipeCost* out, RankBytes* bytes, int64_t stride, const PipePlace* place,
                        const uint8_t* modes, int64_t mode_stride, const MbShape* shape) {
    const PlanProblem* problem = place->problem;
    CostParts parts[RECOMPUTE_COUNT];
    bool known[RECOMPUTE_COUNT] = {false};
    int32_t K = place->placement->num_chunks;
    int64_t in_bytes = 0, parts_bytes = 0, scratch_bytes = 0;
    if (place->placement->head != HEAD_WHOLE) {
        cost_parts(&parts[RECOMPUTE_NONE], &problem->table, RECOMPUTE_NONE, shape);
        known[RECOMPUTE_NONE] = true;
        parts_bytes = shares_make(out, bytes, stride, place, &parts[RECOMPUTE_NONE]);
    }
    for (int32_t k = 0; k < K; k++) {
        RecomputeMode mode = (RecomputeMode)modes[k * mode_stride];
        CostJobs jobs;
        if (!known[mode]) { cost_parts(&parts[mode], &problem->table, mode, shape); }
        known[mode] = true;
        cost_jobs_of_stage(&jobs, problem->costs, &place->chunks[k], &parts[mode]);
        chunk_cost(&out[k * stride], place, k, mode, &jobs, in_bytes, k == K - 1 ? parts_bytes : 0);
        if (bytes != NULL) {
            bytes[k * stride] = row_bytes(&jobs, out[k * stride].drops, in_bytes, jobs.boundary_bytes);
        }
        in_bytes = jobs.boundary_bytes;
        scratch_bytes = jobs.scratch_bytes > scratch_bytes ? jobs.scratch_bytes : scratch_bytes;
    }
    return scratch_bytes;
}

// What a stage's limit loses to buffers that no micro-batch holds: scratch, and the largest gradient to send.
static int64_t pipe_passing_bytes(const PipeProblem* pipe, int32_t s, int64_t scratch_bytes) {
    int64_t gradient_bytes = 0;
    for (int32_t k = 0; k < pipe_num_chunks(pipe); k++) {
        if (pipe_stage_of(pipe, k) != s) { continue; }
        for (int32_t m = 0; m < pipe->M; m++) {
            int64_t bytes = pipe_cost(pipe, k, m)->input_bytes;
            if (bytes > gradient_bytes) { gradient_bytes = bytes; }
        }
    }
    return plan_align_bytes(scratch_bytes) + gradient_bytes;
}

void pipe_limits_make(PipeProblem* pipe, const PlanProblem* problem, const int64_t* available_bytes,
                      const int64_t* headroom_bytes, int64_t scratch_bytes, const MbShape* shapes) {
    for (int32_t s = 0; s < pipe->P; s++) {
        int64_t limit_bytes = available_bytes[s], least_bytes = 0;
        pipe->memory_limit_bytes[s] = INT64_MAX;
        if (limit_bytes == COST_LIMIT) { continue; }
        if (problem->count_buffers) { limit_bytes -= pipe_passing_bytes(pipe, s, scratch_bytes); }
        for (int32_t m = 0; m < pipe->M && headroom_bytes[s] > 0; m++) {
            int64_t bytes = shapes == NULL || shapes[m].num_seqs == 1 ? pipe_alone_bytes(pipe, s, m) : 0;
            if (bytes > least_bytes) { least_bytes = bytes; }
        }
        if (least_bytes > limit_bytes) { least_bytes = limit_bytes; }
        limit_bytes -= headroom_bytes[s];
        pipe->memory_limit_bytes[s] = limit_bytes > least_bytes ? limit_bytes : least_bytes;
    }
}

static void price(ReplicaProblem* replica, const PlanProblem* problem, const MicrobatchList* list,
                  int32_t m) {
    PipeCost* costs = (PipeCost*)(uintptr_t)replica->pipe.cost;
    const PipePlace place = {problem, plan_problem_ranks(problem, replica->replica), &problem->placement,
                             problem->chunks, problem->P};
    int64_t scratch_bytes =
        pipe_costs_make(costs + m, replica->bytes + m, replica->pipe.M, &place, replica->modes + m,
                        replica->pipe.M, &list->mbs[replica->mbs[m]].shape);
    for (int32_t s = 0; s < problem->P; s++) {
        if (scratch_bytes > replica->scratch_bytes[s]) { replica->scratch_bytes[s] = scratch_bytes; }
    }
}

static void set_limits(ReplicaProblem* replica, const PlanProblem* problem) {
    int64_t available_bytes[PLAN_MAX_STAGES];
    for (int32_t s = 0; s < problem->P; s++) {
        const MachineRank* rank = machine_stage(plan_problem_ranks(problem, replica->replica), s);
        available_bytes[s] = plan_problem_available(problem, rank, &problem->has[s]);
    }
    pipe_limits_make(&replica->pipe, problem, available_bytes, replica->headroom_bytes,
                     replica->scratch_bytes[0], NULL);
}

Status replica_problem_make(ReplicaProblem* out, const PlanProblem* problem, const MicrobatchList* list,
                            int32_t r, const int32_t* mbs, int32_t num_mbs, const uint8_t* modes,
                            Arena* arena) {
    ReplicaProblem replica = {.replica = r};
    Placement* placement;
    PipeCost* costs;
    int64_t cells = (int64_t)problem->num_rows * num_mbs;
    ARENA_TRY_NEW(costs, arena, PipeCost, cells);
    ARENA_TRY_NEW(replica.bytes, arena, RankBytes, cells);
    ARENA_TRY_NEW(replica.modes, arena, uint8_t, (int64_t)problem->K * num_mbs);
    ARENA_TRY_NEW(replica.mbs, arena, int32_t, num_mbs);
    replica.pipe.cost = costs;
    ARENA_TRY_NEW(placement, arena, Placement, 1);
    *placement = problem->placement;
    replica.pipe.P = problem->P;
    replica.pipe.M = num_mbs;
    replica.pipe.placement = placement;
    replica.pipe.pulls = machine_pulls(problem->request->machine);
    for (int32_t m = 0; m < num_mbs; m++) {
        replica.mbs[m] = mbs[m];
        for (int32_t k = 0; k < problem->K; k++) {
            int64_t cell = (int64_t)k * num_mbs + m;
            replica.modes[cell] = modes == NULL ? (uint8_t)list->mbs[mbs[m]].mode : modes[cell];
        }
        price(&replica, problem, list, m);
    }
    for (int32_t s = 0; s < problem->P; s++) {
        replica.pipe.tail_ns[s] = cost_rank_reduce_ns(problem->costs, &problem->has[s], problem->R);
    }
    set_limits(&replica, problem);
    *out = replica;
    return STATUS_OK;
}

static void set_mode(ReplicaProblem* replica, const PlanProblem* problem, const MicrobatchList* list,
                     int32_t k, int32_t m, RecomputeMode mode) {
    replica->modes[(int64_t)k * replica->pipe.M + m] = (uint8_t)mode;
    price(replica, problem, list, m);
    set_limits(replica, problem);
}

// --- schedules that fit -----------------------------------------------------------------------------------

Status pipe_variant_build(PipeSchedule* out, const PipeProblem* pipe, const int32_t* order,
                          const PipeVariant* variant, Arena* arena) {
    if (variant->policy == NULL) { return pipe_schedule_one_by_one(out, pipe, order, arena); }
    if (variant->has_rule) { return pipe_adaptive_build(out, pipe, order, &variant->rule, arena); }
    return variant->policy->build(out, pipe, order, variant->split_backward, arena);
}

enum { MAX_RAISES = 4, MAX_RECOMPUTE_ROUNDS = 3 };

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

// Instruction lists and their memory. Slack applies to the lists that are run: it never makes them larger
// than the limit, so whether they fit is known without it.
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
        int64_t limit_bytes = fit->problem->count_buffers ? rank_limit_bytes(fit, s) : 0;
        plan->ranks[s].state_bytes = cost_rank_state_bytes(fit->problem->costs, &fit->problem->has[s]);
        input.enough_bytes[s] = limit_bytes > 0 ? limit_bytes - plan->ranks[s].state_bytes : INT64_MAX;
    }
    TRY(replica_lists_make(plan->ranks, &plan->timeline, &input, arena));
    for (int32_t s = 0; s < pipe->P; s++) {
        PlanRank* rank = &plan->ranks[s];
        int64_t limit_bytes = fit->problem->count_buffers ? rank_limit_bytes(fit, s) : 0;
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
    if (fit->problem->count_buffers) { return lay_out(fit, false, arena); }
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t over = fit->plan->timeline.peak_bytes[s] -
                       plan_problem_available(problem, fit_rank(fit, s), &problem->has[s]);
        if (over > 0) { fit->over_bytes[s] = over; }
    }
    return STATUS_OK;
}

// False: that changes no limit.
static bool raise_headroom(Fit* fit) {
    ReplicaProblem* replica = &fit->plan->problem;
    int64_t before[PLAN_MAX_STAGES];
    memcpy(before, replica->pipe.memory_limit_bytes, sizeof before);
    for (int32_t s = 0; s < replica->pipe.P; s++) { replica->headroom_bytes[s] += fit->over_bytes[s]; }
    set_limits(replica, fit->problem);
    return memcmp(before, replica->pipe.memory_limit_bytes, sizeof before) != 0;
}

// The micro-batch and chunk on stage s that keep most and could keep less. False: none.
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

// Drop the activations of the micro-batches that hold most on stages over the limit, until that suffices by
// itself; of all if `all`. False where there is nothing left to drop.
static bool recompute_more(Fit* fit, bool all) {
    ReplicaProblem* replica = &fit->plan->problem;
    bool changed = false;
    for (int32_t s = 0; s < replica->pipe.P; s++) {
        int64_t left_bytes = fit->over_bytes[s];
        int32_t k, m;
        while (left_bytes > 0 && find_largest(&k, &m, &replica->pipe, s)) {
            if (!all) { left_bytes -= pipe_cost(&replica->pipe, k, m)->stored_bytes; }
            set_mode(replica, fit->problem, fit->list, k, m, RECOMPUTE_FULL);
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

static Status report(const Fit* fit) {
    const PlanRequest* request = fit->problem->request;
    char words[MACHINE_LIMIT_CHARS];
    for (int32_t s = 0; s < fit->plan->problem.pipe.P; s++) {
        if (fit->over_bytes[s] <= 0) { continue; }
        bool adapts = request->schedule == SCHEDULE_AUTO || request->schedule == SCHEDULE_ADAPTIVE;
        return FAIL(STATUS_INFEASIBLE,
                    "%s, %lld bytes: stage %d needs %lld bytes more with schedule %s ---> %s%s"
                    "more --stages, fewer tokens per microbatch or a larger limit",
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

// The next change that may make it fit; false: there is none left.
static bool change(Fit* fit, int32_t* num_raises, int32_t* num_rounds) {
    static const PipeVariant one_by_one = {.name = "adaptive"};
    ReplicaPlan* plan = fit->plan;
    const ScheduleChoice choice = fit->problem->request->schedule;
    const PipePolicy* policy = plan->variant.policy;
    bool adapts = policy != NULL && policy->keeps_limit;
    if (choice == SCHEDULE_AUTO && policy != NULL && !adapts) {
        bool splits = plan->variant.split_backward;
        plan->variant = (PipeVariant){.name = splits ? "adaptive+w" : "adaptive",
                                      .policy = &pipe_policy_adaptive,
                                      .split_backward = splits};
        return true;
    }
    if (adapts && (*num_raises)++ < MAX_RAISES && raise_headroom(fit)) { return true; }
    memset(plan->problem.headroom_bytes, 0, sizeof plan->problem.headroom_bytes);
    set_limits(&plan->problem, fit->problem);
    if (may_recompute(fit->problem) && recompute_more(fit, *num_rounds >= MAX_RECOMPUTE_ROUNDS)) {
        *num_raises = 0;
        ++*num_rounds;
        return true;
    }
    if ((choice != SCHEDULE_AUTO && choice != SCHEDULE_ADAPTIVE) || policy == NULL) { return false; }
    plan->variant = one_by_one;
    return true;
}

Status replica_plan_fit(ReplicaPlan* out, int64_t over_bytes[PLAN_MAX_STAGES], const PlanProblem* problem,
                        const Draft* draft, int32_t r, const int64_t* headroom_bytes, Arena* arena,
                        Arena* scratch) {
    const DraftReplica* replica = &draft->replica[r];
    Fit fit = {.plan = out, .problem = problem, .list = &draft->list};
    int32_t num_raises = 0, num_rounds = 0;
    TRY(replica_problem_make(&out->problem, problem, &draft->list, r, replica->mbs, replica->M,
                             replica->modes, arena));
    memcpy(out->problem.headroom_bytes, headroom_bytes, sizeof out->problem.headroom_bytes);
    set_limits(&out->problem, problem);
    out->variant = replica->variant;
    for (bool is_first = true;; is_first = false) {
        arena_reset(scratch);
        TRY(attempt(&fit, scratch));
        for (int32_t s = 0; s < problem->P && is_first; s++) {
            if (fit.over_bytes[s] > over_bytes[s]) { over_bytes[s] = fit.over_bytes[s]; }
        }
        if (!is_over(&fit)) { return STATUS_OK; }
        if (!change(&fit, &num_raises, &num_rounds)) { return report(&fit); }
    }
}
