// draft.c -- see draft.h.
#include "draft.h"

#include <string.h>

bool pipe_place_make(PipePlace* out, const PlanProblem* problem, const Placement* placement,
                     int32_t replica) {
    CostRank has[PLAN_MAX_STAGES];
    bool fits = true;
    out->problem = problem;
    out->ranks = plan_problem_ranks(problem, replica);
    out->placement = *placement;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        out->chunks[k] = cost_chunk_make(problem->costs, placement, k);
    }
    cost_ranks_make(has, problem->costs, placement, problem->P);
    for (int32_t s = 0; s < problem->P; s++) {
        out->limit_bytes[s] =
            machine_limit_bytes(machine_stage(out->ranks, s), problem->request->memory_limit_bytes);
        out->state_bytes[s] = cost_rank_state_bytes(problem->costs, &has[s]);
        out->available_bytes[s] =
            out->limit_bytes[s] > 0 ? out->limit_bytes[s] - out->state_bytes[s] : COST_LIMIT;
        out->tail_ns[s] = cost_rank_reduce_ns(problem->costs, &has[s], problem->R);
        fits &= out->available_bytes[s] > 0;
    }
    return fits;
}

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
    const Placement* placement = &place->placement;
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
    const Placement* placement = &place->placement;
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
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t cell = (place->placement.num_chunks + s) * stride;
        CostJobs jobs;
        cost_jobs_of_share(&jobs, problem->costs, cost_share_of(&place->placement, s), parts);
        bool travels_whole = place->placement.head == HEAD_BY_ROWS && problem->costs->head_rows_whole;
        int64_t all_bytes = cost_round(parts->head_in_bytes);
        share_cost(&out[cell], place, s, &jobs, travels_whole ? all_bytes : jobs.boundary_bytes,
                   travels_whole ? all_bytes : jobs.part_bytes);
        if (bytes != NULL) { bytes[cell] = row_bytes(&jobs, false, jobs.boundary_bytes, 0); }
        parts_bytes += plan_align_bytes(jobs.part_bytes) + plan_align_bytes(jobs.factor_bytes);
    }
    return problem->count_buffers ? parts_bytes + plan_align_bytes(cost_round(parts->head_in_bytes)) : 0;
}

static void kept_cost(PipeCost* out, RankBytes* bytes, const PipePlace* place, int32_t k,
                      const PlanSample* cut) {
    const CostModel* costs = place->problem->costs;
    out->kept_bytes = plan_align_bytes(cost_kept_bytes(costs, &place->chunks[k], cut, false));
    out->kept_grad_bytes = plan_align_bytes(cost_kept_bytes(costs, &place->chunks[k], cut, true));
    if (bytes == NULL) { return; }
    bytes->kept_bytes = out->kept_bytes, bytes->kept_grad_bytes = out->kept_grad_bytes;
}

int64_t pipe_costs_make(PipeCost* out, RankBytes* bytes, int64_t stride, const PipePlace* place,
                        const uint8_t* modes, const MbShape* shape, const PlanSample* cut) {
    const PlanProblem* problem = place->problem;
    CostParts parts[RECOMPUTE_COUNT];
    bool known[RECOMPUTE_COUNT] = {false};
    int32_t K = place->placement.num_chunks;
    int64_t in_bytes = 0, parts_bytes = 0, scratch_bytes = 0;
    if (place->placement.head != HEAD_WHOLE) {
        cost_parts(&parts[RECOMPUTE_NONE], &problem->table, RECOMPUTE_NONE, shape);
        known[RECOMPUTE_NONE] = true;
        parts_bytes = shares_make(out, bytes, stride, place, &parts[RECOMPUTE_NONE]);
    }
    for (int32_t k = 0; k < K; k++) {
        RecomputeMode mode = (RecomputeMode)modes[k];
        CostJobs jobs;
        if (!known[mode]) { cost_parts(&parts[mode], &problem->table, mode, shape); }
        known[mode] = true;
        cost_jobs_of_stage(&jobs, problem->costs, &place->chunks[k], &parts[mode]);
        chunk_cost(&out[k * stride], place, k, mode, &jobs, in_bytes, k == K - 1 ? parts_bytes : 0);
        if (bytes != NULL) {
            bytes[k * stride] = row_bytes(&jobs, out[k * stride].drops, in_bytes, jobs.boundary_bytes);
        }
        if (cut != NULL) {
            kept_cost(&out[k * stride], bytes != NULL ? &bytes[k * stride] : NULL, place, k, cut);
        }
        in_bytes = jobs.boundary_bytes;
        scratch_bytes = jobs.scratch_bytes > scratch_bytes ? jobs.scratch_bytes : scratch_bytes;
    }
    return scratch_bytes;
}

PipeProblem pipe_place_problem(const PipePlace* place, int32_t M) {
    const PlanProblem* problem = place->problem;
    PipeProblem pipe = {.P = problem->P,
                        .M = M,
                        .placement = &place->placement,
                        .pulls = machine_pulls(problem->request->machine)};
    for (int32_t s = 0; s < problem->P; s++) {
        pipe.memory_limit_bytes[s] = INT64_MAX;
        pipe.tail_ns[s] = place->tail_ns[s];
    }
    return pipe;
}

size_t replica_problem_layout(ReplicaProblem* replica, char* block) {
    const PipePlace* place = replica->place;
    size_t M = (size_t)replica->pipe.M, K = (size_t)place->placement.num_chunks;
    size_t cost_bytes = (size_t)placement_num_rows(&place->placement, replica->pipe.P) * M * sizeof(PipeCost);
    size_t shape_bytes = M * sizeof(MbShape), scratch_bytes = M * sizeof(int64_t);
    size_t piece_bytes = M * (sizeof(PlanSegment) + sizeof(int32_t));
    if (block != NULL) {
        replica->block = block;
        replica->pipe.cost = replica->cost = (PipeCost*)block;
        replica->shape = (MbShape*)(block + cost_bytes);
        replica->scratch_bytes = (int64_t*)(block + cost_bytes + shape_bytes);
        replica->piece = (PlanSegment*)(void*)(block + cost_bytes + shape_bytes + scratch_bytes);
        replica->piece_before = (int32_t*)(replica->piece + M);
        if (replica->pipe.piece_before != NULL) { replica->pipe.piece_before = replica->piece_before; }
        replica->modes = (uint8_t*)(replica->piece_before + M);
    }
    return cost_bytes + shape_bytes + scratch_bytes + piece_bytes + (M * K + 7) / 8 * 8;
}

void replica_problem_link(ReplicaProblem* replica) {
    int32_t M = replica->pipe.M;
    replica->pipe.piece_before = NULL;
    for (int32_t m = 0; m < M; m++) {
        const PlanSegment* piece = &replica->piece[m];
        replica->piece_before[m] = -1;
        if (piece->num_tokens > 0) { replica->pipe.piece_before = replica->piece_before; }
        for (int32_t i = 0; i < M && piece->first_token > 0; i++) {
            const PlanSegment* other = &replica->piece[i];
            bool is_before = other->num_tokens > 0 && other->sample_idx == piece->sample_idx &&
                             other->first_token + other->num_tokens == piece->first_token;
            if (is_before) { replica->piece_before[m] = i; }
        }
    }
}

void replica_problem_price(ReplicaProblem* replica, int32_t m) {
    int64_t M = replica->pipe.M, K = replica->place->placement.num_chunks;
    RankBytes* bytes = replica->bytes == NULL ? NULL : replica->bytes + m;
    const PlanSegment* piece = &replica->piece[m];
    bool is_first = piece->num_tokens > 0 && piece->first_token == 0;
    replica->scratch_bytes[m] = pipe_costs_make(
        replica->cost + m, bytes, M, replica->place, replica->modes + m * K, &replica->shape[m],
        is_first ? &replica->place->problem->samples[piece->sample_idx] : NULL);
}

static int64_t largest_scratch_bytes(const ReplicaProblem* replica) {
    int64_t most_bytes = 0;
    for (int32_t m = 0; m < replica->pipe.M; m++) {
        if (replica->scratch_bytes[m] > most_bytes) { most_bytes = replica->scratch_bytes[m]; }
    }
    return most_bytes;
}

// What is available, less what no microbatch holds (scratch, the largest gradient to send), less headroom.
void replica_problem_limit(ReplicaProblem* replica) {
    const PipePlace* place = replica->place;
    PipeProblem* pipe = &replica->pipe;
    bool counts = place->problem->count_buffers;
    int64_t passing_bytes[PLAN_MAX_STAGES];
    if (!place->problem->has_limit) { return; }
    for (int32_t s = 0; s < pipe->P; s++) { passing_bytes[s] = 0; }
    for (int32_t k = 0; k < place->placement.num_chunks && counts; k++) {
        int64_t* most_bytes = &passing_bytes[place->placement.stage_of[k]];
        for (int32_t m = 0; m < pipe->M; m++) {
            int64_t bytes = pipe_cost(pipe, k, m)->input_bytes;
            if (bytes > *most_bytes) { *most_bytes = bytes; }
        }
    }
    int64_t scratch_bytes = counts ? plan_align_bytes(largest_scratch_bytes(replica)) : 0;
    for (int32_t s = 0; s < pipe->P; s++) {
        int64_t limit_bytes = place->available_bytes[s] - passing_bytes[s] - scratch_bytes, least_bytes = 0;
        if (place->available_bytes[s] == COST_LIMIT) { continue; }
        for (int32_t m = 0; m < pipe->M && replica->headroom_bytes[s] > 0; m++) {
            bool counts_alone = !replica->may_split || replica->shape[m].num_seqs == 1;
            int64_t bytes = counts_alone ? pipe_alone_bytes(pipe, s, m) : 0;
            if (bytes > least_bytes) { least_bytes = bytes; }
        }
        if (least_bytes > limit_bytes) { least_bytes = limit_bytes; }
        limit_bytes -= replica->headroom_bytes[s];
        pipe->memory_limit_bytes[s] = limit_bytes > least_bytes ? limit_bytes : least_bytes;
    }
}

Status replica_problem_make(ReplicaProblem* out, const PlanProblem* problem, const MicrobatchList* list,
                            int32_t r, const int32_t* mbs, int32_t num_mbs, const uint8_t* modes,
                            Arena* arena) {
    ReplicaProblem replica = {.place = NULL};
    PipePlace* place;
    int32_t K = problem->K;
    ARENA_TRY_NEW(place, arena, PipePlace, 1);
    pipe_place_make(place, problem, &problem->placement, r);
    replica.place = place;
    replica.pipe = pipe_place_problem(place, num_mbs);
    char* block = (char*)arena_alloc(arena, replica_problem_layout(&replica, NULL));
    if (block == NULL) { return FAIL(STATUS_NO_MEMORY, "planner: no host memory left"); }
    replica_problem_layout(&replica, block);
    ARENA_TRY_NEW(replica.bytes, arena, RankBytes, (int64_t)problem->num_rows * num_mbs);
    ARENA_TRY_NEW(replica.mbs, arena, int32_t, num_mbs);
    for (int32_t m = 0; m < num_mbs; m++) {
        const Microbatch* mb = &list->mbs[mbs[m]];
        replica.mbs[m] = mbs[m];
        replica.shape[m] = mb->shape;
        replica.piece[m] = mb->piece;
        for (int32_t k = 0; k < K; k++) {
            replica.modes[m * K + k] = modes == NULL ? (uint8_t)mb->mode : modes[m * K + k];
        }
        replica_problem_price(&replica, m);
    }
    replica_problem_link(&replica);
    replica_problem_limit(&replica);
    *out = replica;
    return STATUS_OK;
}

// --- schedules that fit -----------------------------------------------------------------------------------

Status pipe_variant_build(PipeSchedule* out, const PipeProblem* pipe, const int32_t* order,
                          const PipeVariant* variant, Arena* arena) {
    if (variant->policy == NULL) { return pipe_schedule_one_by_one(out, pipe, order, arena); }
    if (variant->has_rule) { return pipe_adaptive_build(out, pipe, order, &variant->rule, arena); }
    return variant->policy->build(out, pipe, order, variant->split_backward, arena);
}

enum { MAX_RAISES = 4, MAX_RECOMPUTE_ROUNDS = 3 };

// Jobs in order, and when they run. STATUS_OK with over_bytes set where a microbatch does not fit even
// alone.
static Status schedule(ReplicaPlan* plan, Arena* arena) {
    PipeProblem* pipe = &plan->problem.pipe;
    int32_t* order;
    memset(plan->over_bytes, 0, sizeof plan->over_bytes);
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
            if (over > plan->over_bytes[s]) { plan->over_bytes[s] = over; }
        }
    }
    return STATUS_OK;
}

// Instruction lists and their memory. Slack applies to the lists that are run: it never makes them larger
// than the limit, so whether they fit is known without it.
static Status lay_out(ReplicaPlan* plan, int32_t first_mb, bool with_slack, Arena* arena) {
    const PipePlace* place = plan->problem.place;
    const PlanProblem* problem = place->problem;
    int64_t scratch_bytes[PLAN_MAX_STAGES];
    ReplicaListsInput input = {.problem = &plan->problem.pipe,
                               .schedule = &plan->schedule,
                               .bytes = plan->problem.bytes,
                               .scratch_bytes = scratch_bytes,
                               .first_mb = first_mb,
                               .first_rank = plan->replica * problem->P,
                               .with_slack = with_slack};
    for (int32_t s = 0; s < problem->P; s++) {
        bool is_limited = problem->count_buffers && place->limit_bytes[s] > 0;
        scratch_bytes[s] = largest_scratch_bytes(&plan->problem);
        plan->ranks[s].state_bytes = place->state_bytes[s];
        input.enough_bytes[s] = is_limited ? place->available_bytes[s] : INT64_MAX;
    }
    TRY(replica_lists_make(plan->ranks, &plan->timeline, &input, arena));
    for (int32_t s = 0; s < problem->P && problem->count_buffers; s++) {
        PlanRank* rank = &plan->ranks[s];
        int64_t limit_bytes = place->limit_bytes[s];
        int64_t over_bytes = rank->arena_bytes + rank->state_bytes - limit_bytes;
        rank->own_limit_bytes = limit_bytes == problem->request->memory_limit_bytes ? 0 : limit_bytes;
        if (limit_bytes > 0 && over_bytes > 0) { plan->over_bytes[s] = over_bytes; }
    }
    return STATUS_OK;
}

static bool is_over(const ReplicaPlan* plan) {
    for (int32_t s = 0; s < plan->problem.pipe.P; s++) {
        if (plan->over_bytes[s] > 0) { return true; }
    }
    return false;
}

// STATUS_OK with over_bytes set, fitting or not. Where buffers do not count, no layout is needed to tell.
static Status attempt(ReplicaPlan* plan, Arena* arena) {
    const PipePlace* place = plan->problem.place;
    TRY(schedule(plan, arena));
    if (is_over(plan) || !place->problem->has_limit) { return STATUS_OK; }
    if (place->problem->count_buffers) { return lay_out(plan, 0, false, arena); }
    for (int32_t s = 0; s < plan->problem.pipe.P; s++) {
        plan->over_bytes[s] = plan->timeline.peak_bytes[s] - place->available_bytes[s];
    }
    return STATUS_OK;
}

// False: that changes no limit.
static bool raise_headroom(ReplicaPlan* plan) {
    ReplicaProblem* replica = &plan->problem;
    int64_t before[PLAN_MAX_STAGES];
    memcpy(before, replica->pipe.memory_limit_bytes, sizeof before);
    for (int32_t s = 0; s < replica->pipe.P; s++) {
        if (plan->over_bytes[s] > 0) { replica->headroom_bytes[s] += plan->over_bytes[s]; }
    }
    replica_problem_limit(replica);
    return memcmp(before, replica->pipe.memory_limit_bytes, sizeof before) != 0;
}

// The microbatch and chunk on stage s that keep most and could keep less. False: none.
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

// Drop the activations of the microbatches that hold most on stages over the limit, until that suffices by
// itself; of all if `all`. False where there is nothing left to drop.
static bool recompute_more(ReplicaPlan* plan, bool all) {
    ReplicaProblem* replica = &plan->problem;
    bool changed = false;
    for (int32_t s = 0; s < replica->pipe.P; s++) {
        int64_t left_bytes = plan->over_bytes[s];
        int32_t k, m;
        while (left_bytes > 0 && find_largest(&k, &m, &replica->pipe, s)) {
            if (!all) { left_bytes -= pipe_cost(&replica->pipe, k, m)->stored_bytes; }
            replica->modes[m * replica->place->placement.num_chunks + k] = RECOMPUTE_FULL;
            replica_problem_price(replica, m);
            changed = true;
        }
    }
    return changed;
}

static bool may_recompute(const PlanProblem* problem) {
    return problem->modes[problem->num_modes - 1] == RECOMPUTE_FULL;
}

static Status report(const ReplicaPlan* plan) {
    const PipePlace* place = plan->problem.place;
    const PlanProblem* problem = place->problem;
    char words[MACHINE_LIMIT_CHARS];
    int32_t s = 0;
    while (plan->over_bytes[s] <= 0) { s++; }
    bool adapts =
        problem->request->schedule == SCHEDULE_AUTO || problem->request->schedule == SCHEDULE_ADAPTIVE;
    return FAIL(STATUS_INFEASIBLE,
                "%s, %lld bytes: stage %d needs %lld bytes more with schedule %s ---> %s%s"
                "more --stages, fewer tokens per microbatch or a larger limit",
                machine_limit_words(words, machine_stage(place->ranks, s), plan->replica * problem->P + s),
                (long long)place->limit_bytes[s], s, (long long)plan->over_bytes[s], plan->variant.name,
                adapts ? "" : "--schedule adaptive, ",
                may_recompute(problem) ? "" : "--recompute full or auto, ");
}

// Fewer microbatches in flight in the chunks of stages over the limit; where each has one, in all chunks.
// False: none has more.
static bool admit_fewer(ReplicaPlan* plan) {
    const PipeProblem* pipe = &plan->problem.pipe;
    PipeVariant* variant = &plan->variant;
    if (!variant->has_rule) { variant->rule = pipe_adaptive_rule(pipe, variant->split_backward); }
    variant->has_rule = true;
    bool changed = false;
    for (int32_t all = 0; all < 2 && !changed; all++) {
        for (int32_t k = 0; k < pipe_num_chunks(pipe); k++) {
            int32_t* most = &variant->rule.max_in_flight[k];
            if (*most == 1 || (!all && plan->over_bytes[pipe_stage_of(pipe, k)] <= 0)) { continue; }
            *most = *most > pipe->M ? pipe->M : *most - (*most + 3) / 4;
            changed = true;
        }
    }
    return changed;
}

// The next change that may make it fit; false: there is none left.
static bool change(ReplicaPlan* plan, bool admit, int32_t* num_raises, int32_t* num_rounds) {
    const PlanProblem* problem = plan->problem.place->problem;
    const ScheduleChoice choice = problem->request->schedule;
    const PipePolicy* policy = plan->variant.policy;
    bool adapts = policy != NULL && policy->keeps_limit, splits = plan->variant.split_backward;
    if (choice == SCHEDULE_AUTO && policy != NULL && !adapts) {
        plan->variant = (PipeVariant){.name = splits ? "adaptive+w" : "adaptive",
                                      .policy = &pipe_policy_adaptive,
                                      .split_backward = splits};
        return true;
    }
    if (adapts && (*num_raises)++ < MAX_RAISES && raise_headroom(plan)) { return true; }
    memset(plan->problem.headroom_bytes, 0, sizeof plan->problem.headroom_bytes);
    bool changed = (admit && adapts && admit_fewer(plan)) ||
                   (may_recompute(problem) && recompute_more(plan, *num_rounds >= MAX_RECOMPUTE_ROUNDS));
    replica_problem_limit(&plan->problem);
    if (changed) {
        *num_raises = 0;
        ++*num_rounds;
        return true;
    }
    if ((choice != SCHEDULE_AUTO && choice != SCHEDULE_ADAPTIVE) || policy == NULL) { return false; }
    plan->variant = (PipeVariant){.name = "adaptive"};
    return true;
}

Status replica_plan_fit(ReplicaPlan* out, int64_t over_bytes[PLAN_MAX_STAGES], const PlanProblem* problem,
                        const Draft* draft, int32_t r, const int64_t* headroom_bytes, bool admit,
                        Arena* arena, Arena* scratch) {
    const DraftReplica* replica = &draft->replica[r];
    int32_t num_raises = 0, num_rounds = 0;
    TRY(replica_problem_make(&out->problem, problem, &draft->list, r, replica->mbs, replica->M,
                             replica->modes, arena));
    memcpy(out->problem.headroom_bytes, headroom_bytes, sizeof out->problem.headroom_bytes);
    replica_problem_limit(&out->problem);
    out->replica = r;
    out->variant = replica->variant;
    for (bool is_first = true;; is_first = false) {
        arena_reset(scratch);
        TRY(attempt(out, scratch));
        for (int32_t s = 0; s < problem->P && is_first; s++) {
            if (out->over_bytes[s] > over_bytes[s]) { over_bytes[s] = out->over_bytes[s]; }
        }
        if (!is_over(out)) { return STATUS_OK; }
        if (!change(out, admit, &num_raises, &num_rounds)) { return report(out); }
    }
}

Status replica_plan_emit(ReplicaPlan* plan, int32_t first_mb, Arena* arena) {
    TRY(schedule(plan, arena));
    return lay_out(plan, first_mb, true, arena);
}
