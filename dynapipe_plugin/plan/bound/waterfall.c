// waterfall.c -- see waterfall.h.
#include "waterfall.h"

#include <string.h>

#include "../pipe/pipe_adaptive.h"
#include "../pipe/pipe_schedule.h"
#include "../problem/microbatch.h"
#include "../types/mb_shape.h"

#define X(name, text) text,
const char* const waterfall_names[WATERFALL_COUNT] = {WATERFALL_LIST(X)};
#undef X

enum { NUM_LEVELS = WATERFALL_COUNT + 1 };

// What is taken away, in the order of the levels.
typedef struct {
    bool free_transfers;  // and no tails
    bool no_recompute;
    bool no_constants;
    bool no_padding;
} Ideal;

// The level that a part begins at.
typedef struct {
    const Plan* plan;
    const PlanRequest* request;
    const PlanSample* samples;
    const CostModel* costs;  // as they are
    const CostModel* pure;   // without constants and floors of times
    CostStage stages[PLAN_MAX_STAGES];
    int64_t level_ns[NUM_LEVELS];
    bool memory_is_short;
    Arena* arena;
} Fall;

// --- one replica's pipeline, from the plan ---------------------------------------------------------------

// The micro-batch with the true lengths of its samples.
static MbShape true_shape(const Plan* plan, const PlanSample* samples, const PlanMicrobatch* mb) {
    MbShape shape = {0};
    for (int32_t q = mb->sequence_begin; q < mb->sequence_end; q++) {
        for (int32_t i = plan->sequences[q].segment_begin; i < plan->sequences[q].segment_end; i++) {
            const PlanSample* s = &samples[plan->segments[i].sample_idx];
            mb_shape_add(&shape, s->enc_tokens, s->dec_tokens, s->supervised_tokens);
        }
    }
    return shape;
}

static Status pipe_of_replica(PipeProblem* out, const Fall* fall, int32_t first_mb, int32_t M, int32_t r,
                              Ideal ideal) {
    const Plan* plan = fall->plan;
    const MachineRank* ranks = machine_replica(fall->request->machine, r * plan->P);
    const CostModel* costs = ideal.no_constants ? fall->pure : fall->costs;
    PipeCost* cells;
    PIPE_NEW(cells, fall->arena, PipeCost, (int64_t)plan->P * M);
    *out = (PipeProblem){.P = plan->P, .M = M, .cost = cells};
    for (int32_t s = 0; s < plan->P; s++) {
        out->memory_limit_bytes[s] = INT64_MAX;
        out->tail_ns[s] = ideal.free_transfers ? 0 : cost_reduce_ns(fall->costs, &fall->stages[s], plan->R);
    }
    for (int32_t m = 0; m < M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[first_mb + m];
        MbShape shape = ideal.no_padding ? true_shape(plan, fall->samples, mb) : mb->shape;
        CostJobs jobs[RECOMPUTE_COUNT][PLAN_MAX_STAGES];
        bool known[RECOMPUTE_COUNT] = {false};
        for (int32_t s = 0; s < plan->P; s++) {
            int mode = ideal.no_recompute ? RECOMPUTE_NONE : mb->recompute[s];
            if (!known[mode]) {
                cost_stages(jobs[mode], costs, fall->stages, plan->P, (RecomputeMode)mode, &shape);
            }
            known[mode] = true;
            PipeCost* cell = &cells[(int64_t)s * M + m];
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                cell->job_ns[kind] =
                    machine_job_ns(machine_stage(ranks, s), (JobKind)kind, jobs[mode][s].job_ns[kind]);
            }
            cell->drops = mode != RECOMPUTE_NONE && costs->recompute_is_job[mode];
            if (!cell->drops) { cell->job_ns[JOB_R] = 0; }
            int64_t out_bytes = jobs[mode][s].boundary_bytes;
            bool sends = s < plan->P - 1, buffers = fall->request->memory_rule == MEMORY_BUFFERS;
            cell->stored_bytes = jobs[mode][s].stored_bytes + (buffers ? out_bytes : 0);
            cell->input_bytes = s > 0 && buffers ? jobs[mode][s - 1].boundary_bytes : 0;
            if (sends && !ideal.free_transfers) {
                cell->transfer_ns = machine_transfer_ns(machine_stage(ranks, s), fall->costs, out_bytes);
            }
        }
    }
    return STATUS_OK;
}

// The job lists of replica r; without R where nothing is recomputed. `split`: some weight gradients are jobs.
static Status schedule_of_replica(PipeSchedule* out, bool* split, const Fall* fall,
                                  const PipeProblem* problem, int32_t first_mb, int32_t r) {
    TRY(pipe_schedule_init(out, problem, fall->arena));
    *split = false;
    for (int32_t s = 0; s < problem->P; s++) {
        const PlanRank* rank = &fall->plan->ranks[r * problem->P + s];
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            static const int kinds[] = {
                [INSTR_FWD] = JOB_F, [INSTR_BWD] = JOB_B, [INSTR_WGT] = JOB_W, [INSTR_REC] = JOB_R};
            const PlanInstr* instr = &rank->instrs[i];
            int32_t m = instr->mb - first_mb;
            if (instr->kind > INSTR_REC) { continue; }
            if (m < 0 || m >= problem->M || out->num_jobs[s] >= problem->M * JOB_COUNT) {
                return FAIL(STATUS_INVALID_PLAN, "waterfall: rank %d runs a job of another replica",
                            r * problem->P + s);
            }
            JobKind kind = (JobKind)kinds[instr->kind];
            *split |= kind == JOB_W;
            if (kind == JOB_R && !pipe_cost(problem, s, m)->drops) { continue; }
            pipe_schedule_push(out, s, kind, s, m);
        }
    }
    return STATUS_OK;
}

// --- levels ----------------------------------------------------------------------------------------------

static Status simulate(int64_t* makespan_ns, const Fall* fall, const PipeProblem* problem,
                       const PipeSchedule* schedule) {
    PipeTimeline timeline;
    TRY(pipe_simulate(&timeline, problem, schedule, fall->arena));
    *makespan_ns = timeline.makespan_ns;
    return STATUS_OK;
}

static int64_t smaller_of(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// In the plan's order, and in the adaptive order if any is allowed: the faster.
static Status fastest(int64_t* makespan_ns, const Fall* fall, const PipeProblem* problem,
                      const PipeSchedule* own, const PipeSchedule* any) {
    TRY(simulate(makespan_ns, fall, problem, own));
    if (any != NULL) {
        int64_t ns;
        TRY(simulate(&ns, fall, problem, any));
        *makespan_ns = smaller_of(ns, *makespan_ns);
    }
    return STATUS_OK;
}

// Something is recomputed, or one more micro-batch would not have fitted somewhere.
static Status look_for_shortage(Fall* fall, int32_t first_mb, int32_t M, int32_t r) {
    PipeProblem problem;
    PipeSchedule schedule;
    PipeTimeline timeline;
    bool split;
    TRY(pipe_of_replica(&problem, fall, first_mb, M, r, (Ideal){0}));
    TRY(schedule_of_replica(&schedule, &split, fall, &problem, first_mb, r));
    TRY(pipe_simulate(&timeline, &problem, &schedule, fall->arena));
    for (int32_t s = 0; s < problem.P; s++) {
        const MachineRank* rank = machine_stage(machine_replica(fall->request->machine, r * problem.P), s);
        int64_t limit_bytes = machine_limit_bytes(rank, fall->request->memory_limit_bytes);
        int64_t least_bytes = INT64_MAX;
        if (limit_bytes == 0) { continue; }
        for (int32_t m = 0; m < M; m++) {
            const PipeCost* cell = pipe_cost(&problem, s, m);
            least_bytes = smaller_of(least_bytes, cell->stored_bytes + cell->input_bytes);
            fall->memory_is_short |= fall->plan->mbs[first_mb + m].recompute[s] != RECOMPUTE_NONE;
        }
        int64_t free_bytes =
            limit_bytes - cost_state_bytes(fall->costs, &fall->stages[s]) - timeline.peak_bytes[s];
        fall->memory_is_short |= least_bytes > free_bytes;
    }
    return STATUS_OK;
}

static void raise(int64_t* level_ns, int64_t ns) {
    *level_ns = ns > *level_ns ? ns : *level_ns;
}

// Work alone: what the last levels need. Returns the work of all stages together.
static int64_t add_work_levels(Fall* fall, const PipeProblem* problem, bool split) {
    int64_t total_ns = 0, arrival[PLAN_MAX_STAGES], tail[PLAN_MAX_STAGES];
    if (problem->M == 0) { return 0; }  // a replica without samples
    for (int32_t s = 0; s < problem->P; s++) { arrival[s] = tail[s] = INT64_MAX; }
    for (int32_t m = 0; m < problem->M; m++) {
        int64_t before_ns = 0, behind_ns = 0;
        for (int32_t s = 0; s < problem->P; s++) {
            const int64_t* ns = pipe_cost(problem, s, m)->job_ns;
            arrival[s] = smaller_of(arrival[s], before_ns);
            tail[s] = smaller_of(tail[s], split ? 0 : behind_ns);
            before_ns += ns[JOB_F];
            behind_ns += ns[JOB_B] + ns[JOB_W];
        }
    }
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t work_ns = 0;
        for (int32_t m = 0; m < problem->M; m++) {
            const int64_t* ns = pipe_cost(problem, s, m)->job_ns;
            work_ns += ns[JOB_F] + ns[JOB_B] + ns[JOB_W];
        }
        raise(&fall->level_ns[WATERFALL_RAMP], arrival[s] + work_ns + tail[s]);
        raise(&fall->level_ns[WATERFALL_STAGES], work_ns);
        total_ns += work_ns;
    }
    raise(&fall->level_ns[WATERFALL_REPLICAS], total_ns / problem->P);
    return total_ns;
}

// Raises every level by replica r; adds its work to *total_ns.
static Status add_replica(Fall* fall, int64_t* total_ns, int32_t first_mb, int32_t M, int32_t r) {
    static const Ideal ideals[] = {[WATERFALL_COMMUNICATION] = {0},
                                   [WATERFALL_MEMORY] = {.free_transfers = true},
                                   [WATERFALL_RECOMPUTE] = {.free_transfers = true},
                                   [WATERFALL_LAUNCH] = {.free_transfers = true, .no_recompute = true},
                                   [WATERFALL_PADDING] = {true, true, true, false},
                                   [WATERFALL_ORDER] = {true, true, true, true}};
    int32_t order[1], *in_turn = order;
    if (M > 0) { PIPE_NEW(in_turn, fall->arena, int32_t, M); }
    for (int32_t m = 0; m < M; m++) { in_turn[m] = m; }
    int64_t before_ns = INT64_MAX;
    fall->memory_is_short = false;
    TRY(look_for_shortage(fall, first_mb, M, r));
    for (int level = 0; level <= WATERFALL_ORDER; level++) {
        PipeProblem problem;
        PipeSchedule own, any;
        bool split, free_order = level > WATERFALL_MEMORY && fall->memory_is_short && M > 0;
        TRY(pipe_of_replica(&problem, fall, first_mb, M, r, ideals[level]));
        TRY(schedule_of_replica(&own, &split, fall, &problem, first_mb, r));
        if (free_order) {
            PipeAdaptiveRule rule = pipe_adaptive_rule(&problem, split);
            for (int32_t s = 0; s < problem.P; s++) { rule.max_in_flight[s] = M; }
            TRY(pipe_adaptive_build(&any, &problem, in_turn, &rule, fall->arena));
        }
        int64_t ns;
        TRY(fastest(&ns, fall, &problem, &own, free_order ? &any : NULL));
        before_ns = smaller_of(before_ns, ns);  // another order may suit the easier problem less
        raise(&fall->level_ns[level], before_ns);
        if (level == WATERFALL_ORDER) { *total_ns += add_work_levels(fall, &problem, split); }
    }
    return STATUS_OK;
}

static const CostModel* without_constants(const CostModel* costs, Arena* arena) {
    CostModel* pure = ARENA_NEW(arena, CostModel, 1);
    if (pure == NULL) { return NULL; }
    *pure = *costs;
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                pure->parts[mode][part].time_ns[kind].constant = 0;
                pure->parts[mode][part].time_ns[kind].floor = 0;
            }
        }
    }
    return pure;
}

Status waterfall_make(Waterfall* out, const Plan* plan, const CostModel* costs, const PlanRequest* request,
                      const PlanSample* samples, int32_t num_samples, Arena* arena) {
    if (request->P != plan->P || request->R != plan->R || num_samples != plan->N) {
        return FAIL(STATUS_INVALID_PLAN,
                    "waterfall: the plan has %d stages, %d replicas and %d samples, the "
                    "problem %d, %d and %d ---> give the problem it was made for",
                    plan->P, plan->R, plan->N, request->P, request->R, num_samples);
    }
    Fall fall = {.plan = plan, .request = request, .samples = samples, .costs = costs, .arena = arena};
    fall.pure = without_constants(costs, arena);
    if (fall.pure == NULL) { return FAIL(STATUS_NO_MEMORY, "planner: no host memory left"); }
    for (int32_t s = 0; s < plan->P; s++) {
        fall.stages[s] = cost_stage_make(costs, &plan->placement.chunks[s], s, plan->P);
    }
    int64_t total_ns = 0;
    for (int32_t r = 0, first_mb = 0; r < plan->R; r++) {
        int32_t M = 0;
        while (first_mb + M < plan->M && plan->mbs[first_mb + M].replica == r) { M++; }
        TRY(add_replica(&fall, &total_ns, first_mb, M, r));
        first_mb += M;
    }
    if (fall.level_ns[0] != plan->makespan_ns) {
        return FAIL(STATUS_INVALID_PLAN,
                    "waterfall: the plan says %lld ns, its jobs take %lld with these "
                    "costs ---> give the costs it was made with",
                    (long long)plan->makespan_ns, (long long)fall.level_ns[0]);
    }
    fall.level_ns[WATERFALL_EFFICIENCY] = total_ns / plan->P / plan->R;
    Waterfall made = {.makespan_ns = plan->makespan_ns, .bound_ns = plan->bound_ns};
    int64_t above_ns = plan->makespan_ns;
    for (int part = 0; part < WATERFALL_COUNT; part++) {
        int64_t level_ns = part + 1 < NUM_LEVELS - 1 ? fall.level_ns[part + 1] : plan->bound_ns;
        if (level_ns < plan->bound_ns) { level_ns = plan->bound_ns; }
        if (level_ns > above_ns) { level_ns = above_ns; }
        made.part_ns[part] = above_ns - level_ns;
        above_ns = level_ns;
    }
    *out = made;
    return STATUS_OK;
}

void waterfall_print(const Waterfall* waterfall, FILE* out) {
    enum { BAR_WIDTH = 40 };
    int64_t makespan_ns = waterfall->makespan_ns > 0 ? waterfall->makespan_ns : 1;
    double percent = 100.0 / (double)makespan_ns;
    int64_t below_ns = 0, gap_ns = waterfall->makespan_ns - waterfall->bound_ns;
    fprintf(out, "%-18s %12.3f ms  %6.2f %%\n", "bound", (double)waterfall->bound_ns / 1e6,
            (double)waterfall->bound_ns * percent);
    for (int part = WATERFALL_COUNT - 1; part >= 0; part--) {
        int64_t ns = waterfall->part_ns[part];
        char bar[BAR_WIDTH + 1];
        int begin = gap_ns > 0 ? (int)(below_ns * BAR_WIDTH / gap_ns) : 0;
        int end = gap_ns > 0 ? (int)((below_ns + ns) * BAR_WIDTH / gap_ns) : 0;
        for (int i = 0; i < end; i++) { bar[i] = i < begin ? ' ' : '#'; }
        if (end == begin && ns > 0 && end < BAR_WIDTH) {
            memset(bar, ' ', (size_t)end);
            bar[end++] = '|';
        }
        bar[end] = '\0';
        fprintf(out, "  %-16s %12.3f ms  %6.2f %%%s%s\n", waterfall_names[part], (double)ns / 1e6,
                (double)ns * percent, end > 0 ? "  " : "", bar);
        below_ns += ns;
    }
    fprintf(out, "%-18s %12.3f ms  %6.2f %%\n", "makespan", (double)waterfall->makespan_ns / 1e6, 100.0);
}
