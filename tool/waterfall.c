// waterfall.c -- see waterfall.h.
#include "waterfall.h"
#include "../dynapipe_plugin/plan/simulate.h"

#include <string.h>
#include "../dynapipe_plugin/plan/draft.h"
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/types.h"

#define X(name, text) text,
const char* const waterfall_names[WATERFALL_COUNT] = {WATERFALL_LIST(X)};
#undef X

enum { NUM_LEVELS = WATERFALL_COUNT + 1 };

// Obstacles removed, in the order of the levels.
typedef struct {
    bool free_transfers;  // and no tails
    bool no_recompute;
    bool no_constants;
    bool no_padding;
} Ideal;

// The level at which a part begins.
typedef struct {
    const Plan* plan;
    const PlanRequest* request;
    const PlanSample* samples;
    const PlanProblem* problem;  // with full costs
    const PlanProblem* pure;     // without constants and minimum times
    int64_t level_ns[NUM_LEVELS];
    bool memory_is_short;
    bool has_other_times;  // the lists' job times differ from the costs
    int64_t last_end_ns;   // of the lists' jobs
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
    const PlanProblem* problem = ideal.no_constants ? fall->pure : fall->problem;
    PipePlace place;
    pipe_place_make(&place, problem, &plan->placement, r);
    int32_t num_rows = placement_num_rows(&plan->placement, plan->P);
    PipeCost* cells;
    uint8_t modes[PLAN_MAX_CHUNKS];
    ARENA_TRY_NEW(cells, fall->arena, PipeCost, (int64_t)num_rows * M);
    *out = (PipeProblem){.P = plan->P, .M = M, .cost = cells, .placement = &plan->placement};
    out->pulls = machine_pulls(fall->request->machine) && !ideal.free_transfers;
    for (int32_t s = 0; s < plan->P; s++) {
        int64_t reduce_ns = cost_rank_reduce_ns(problem->costs, &problem->has[s], plan->R);
        out->memory_limit_bytes[s] = INT64_MAX;
        out->tail_ns[s] = ideal.free_transfers ? 0 : reduce_ns;
    }
    for (int32_t m = 0; m < M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[first_mb + m];
        MbShape shape = ideal.no_padding ? true_shape(plan, fall->samples, mb) : mb->shape;
        for (int32_t k = 0; k < problem->K; k++) {
            modes[k] = ideal.no_recompute ? RECOMPUTE_NONE : mb->recompute[k];
        }
        pipe_costs_make(cells + m, NULL, M, &place, modes, &shape);
        for (int32_t row = 0; row < num_rows && ideal.free_transfers; row++) {
            PipeCost* cell = &cells[(int64_t)row * M + m];
            cell->transfer_ns = cell->part_ns = cell->factor_ns = 0;
        }
    }
    return STATUS_OK;
}

static bool is_of_stage(const PipeProblem* problem, int32_t row, int32_t s) {
    return pipe_has_row(problem, row) && pipe_stage_of(problem, row) == s;
}

// The job lists of replica r; without R if nothing is recomputed. `split`: some weight gradients are
// separate jobs.
static Status schedule_of_replica(PipeSchedule* out, bool* split, const Fall* fall,
                                  const PipeProblem* problem, int32_t first_mb, int32_t r) {
    TRY(pipe_schedule_init(out, problem, fall->arena));
    *split = false;
    for (int32_t s = 0; s < problem->P; s++) {
        const PlanRank* rank = &fall->plan->ranks[r * problem->P + s];
        int32_t room = 0;
        for (int32_t k = 0; k < pipe_num_rows(problem); k++) {
            room += is_of_stage(problem, k, s) ? problem->M * JOB_COUNT : 0;
        }
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            static const int kinds[] = {
                [INSTR_FWD] = JOB_F, [INSTR_BWD] = JOB_B, [INSTR_WGT] = JOB_W, [INSTR_REC] = JOB_R};
            const PlanInstr* instr = &rank->instrs[i];
            int32_t m = instr->mb - first_mb;
            int32_t row = instr->chunk;
            if (instr->kind > INSTR_REC) { continue; }
            if (m < 0 || m >= problem->M || row < 0 || row >= pipe_num_rows(problem) ||
                !is_of_stage(problem, row, s) || out->num_jobs[s] >= room) {
                return FAIL(STATUS_INVALID_PLAN, "waterfall: rank %d runs a job of another replica",
                            r * problem->P + s);
            }
            JobKind kind = (JobKind)kinds[instr->kind];
            *split |= kind == JOB_W && row < pipe_num_chunks(problem);
            if (kind == JOB_R && !pipe_cost(problem, row, m)->drops) { continue; }
            pipe_schedule_push(out, s, kind, row, m);
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

// The faster of the plan's order and, if any order is allowed, the adaptive one.
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

// The peak of a micro-batch on a stage; whether any of its chunks there is recomputed.
static int64_t bytes_of_stage(const PipeProblem* problem, int32_t s, int32_t m) {
    int64_t sum = 0;
    for (int32_t row = 0; row < pipe_num_rows(problem); row++) {
        const PipeCost* cell = pipe_cost(problem, row, m);
        if (is_of_stage(problem, row, s)) { sum += cell->stored_bytes + cell->input_bytes; }
    }
    return sum;
}

static bool is_recomputed(const PipeProblem* problem, int32_t s, int32_t m) {
    bool any = false;
    for (int32_t k = 0; k < pipe_num_chunks(problem); k++) {
        any |= is_of_stage(problem, k, s) && pipe_cost(problem, k, m)->mode != RECOMPUTE_NONE;
    }
    return any;
}

// Compares the job times in the lists with the costs.
static void compare_times(Fall* fall, const PipeTimeline* timeline, int32_t P, int32_t r) {
    for (int32_t s = 0; s < P; s++) {
        const PlanRank* rank = &fall->plan->ranks[r * P + s];
        int64_t work_ns = 0;
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            const PlanInstr* instr = &rank->instrs[i];
            if (instr->kind > INSTR_REC) { continue; }
            work_ns += instr->end_ns - instr->begin_ns;
            if (instr->end_ns > fall->last_end_ns) { fall->last_end_ns = instr->end_ns; }
        }
        fall->has_other_times |= work_ns != timeline->busy_ns[s];
    }
}

// True if something is recomputed, or one more micro-batch would not have fitted on some stage.
static Status look_for_shortage(Fall* fall, int32_t first_mb, int32_t M, int32_t r) {
    PipeProblem problem;
    PipeSchedule schedule;
    PipeTimeline timeline;
    bool split;
    TRY(pipe_of_replica(&problem, fall, first_mb, M, r, (Ideal){0}));
    TRY(schedule_of_replica(&schedule, &split, fall, &problem, first_mb, r));
    TRY(pipe_simulate(&timeline, &problem, &schedule, fall->arena));
    compare_times(fall, &timeline, problem.P, r);
    for (int32_t s = 0; s < problem.P; s++) {
        const MachineRank* rank = machine_stage(machine_replica(fall->request->machine, r * problem.P), s);
        int64_t limit_bytes = machine_limit_bytes(rank, fall->request->memory_limit_bytes);
        int64_t least_bytes = INT64_MAX;
        if (limit_bytes == 0) { continue; }
        for (int32_t m = 0; m < M; m++) {
            least_bytes = smaller_of(least_bytes, bytes_of_stage(&problem, s, m));
            fall->memory_is_short |= is_recomputed(&problem, s, m);
        }
        int64_t state_bytes = cost_rank_state_bytes(fall->problem->costs, &fall->problem->has[s]);
        int64_t free_bytes = limit_bytes - state_bytes - timeline.peak_bytes[s];
        fall->memory_is_short |= least_bytes > free_bytes;
    }
    return STATUS_OK;
}

static void raise(int64_t* level_ns, int64_t ns) {
    *level_ns = ns > *level_ns ? ns : *level_ns;
}

// The time before the first job of each stage, and after its last job if that is a B, over all
// micro-batches.
static void ends_make(int64_t arrival[PLAN_MAX_STAGES], int64_t tail[PLAN_MAX_STAGES],
                      const PipeProblem* problem, bool split) {
    for (int32_t s = 0; s < problem->P; s++) { arrival[s] = tail[s] = INT64_MAX; }
    for (int32_t m = 0; m < problem->M; m++) {
        int64_t before_ns = 0, after_ns = 0;
        bool seen[PLAN_MAX_STAGES] = {false};
        for (int32_t k = 0; k < pipe_num_chunks(problem); k++) {
            const int64_t* ns = pipe_cost(problem, k, m)->job_ns;
            int32_t s = pipe_stage_of(problem, k);
            if (!seen[s]) {
                arrival[s] = smaller_of(arrival[s], before_ns);
                tail[s] = smaller_of(tail[s], after_ns);
            }
            seen[s] = true;
            before_ns += ns[JOB_F];
            after_ns += ns[JOB_B] + ns[JOB_W];
        }
        for (int32_t s = 0; s < problem->P; s++) {
            if (!seen[s]) { arrival[s] = smaller_of(arrival[s], before_ns); }
        }
    }
    for (int32_t s = 0; s < problem->P; s++) {
        bool ends_with_w =
            split || (pipe_shares_head(problem) && is_of_stage(problem, pipe_num_chunks(problem) + s, s));
        if (ends_with_w || tail[s] == INT64_MAX) { tail[s] = 0; }
    }
}

// Only the work, for the last levels. Returns the sum over all stages.
static int64_t add_work_levels(Fall* fall, const PipeProblem* problem, bool split) {
    int64_t total_ns = 0, arrival[PLAN_MAX_STAGES], tail[PLAN_MAX_STAGES];
    if (problem->M == 0) { return 0; }  // a replica without samples
    ends_make(arrival, tail, problem, split);
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t work_ns = 0;
        for (int32_t row = 0; row < pipe_num_rows(problem); row++) {
            for (int32_t m = 0; m < problem->M && is_of_stage(problem, row, s); m++) {
                const int64_t* ns = pipe_cost(problem, row, m)->job_ns;
                work_ns += ns[JOB_F] + ns[JOB_W] + (row < pipe_num_chunks(problem) ? ns[JOB_B] : 0);
            }
        }
        raise(&fall->level_ns[WATERFALL_RAMP], arrival[s] + work_ns + tail[s]);
        raise(&fall->level_ns[WATERFALL_STAGES], work_ns);
        total_ns += work_ns;
    }
    raise(&fall->level_ns[WATERFALL_REPLICAS], total_ns / problem->P);
    return total_ns;
}

// Raises every level to that of replica r; adds its work to *total_ns.
static Status add_replica(Fall* fall, int64_t* total_ns, int32_t first_mb, int32_t M, int32_t r) {
    static const Ideal ideals[] = {[WATERFALL_COMMUNICATION] = {0},
                                   [WATERFALL_MEMORY] = {.free_transfers = true},
                                   [WATERFALL_RECOMPUTE] = {.free_transfers = true},
                                   [WATERFALL_LAUNCH] = {.free_transfers = true, .no_recompute = true},
                                   [WATERFALL_PADDING] = {true, true, true, false},
                                   [WATERFALL_ORDER] = {true, true, true, true}};
    int32_t order[1], *in_turn = order;
    if (M > 0) { ARENA_TRY_NEW(in_turn, fall->arena, int32_t, M); }
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
            for (int32_t k = 0; k < pipe_num_chunks(&problem); k++) { rule.max_in_flight[k] = M; }
            TRY(pipe_adaptive_build(&any, &problem, in_turn, &rule, fall->arena));
        }
        int64_t ns;
        TRY(fastest(&ns, fall, &problem, &own, free_order ? &any : NULL));
        before_ns = smaller_of(before_ns, ns);  // the easier problem may fit another order less well
        raise(&fall->level_ns[level], before_ns);
        if (level == WATERFALL_ORDER) { *total_ns += add_work_levels(fall, &problem, split); }
    }
    return STATUS_OK;
}

static void drop_constants(CostModel* costs) {
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                costs->parts[mode][part].time_ns[kind].constant = 0;
                costs->parts[mode][part].time_ns[kind].floor = 0;
            }
        }
    }
}

// The problem that the plan solves: its placement, no memory limit.
static Status problem_of_plan(const PlanProblem** out, Fall* fall, const CostModel* costs,
                              int32_t num_samples) {
    PlanProblem* problem;
    PlanRequest* request;
    ARENA_TRY_NEW(problem, fall->arena, PlanProblem, 1);
    ARENA_TRY_NEW(request, fall->arena, PlanRequest, 1);
    *request = *fall->request;
    request->placement = fall->plan->placement;
    request->memory_limit_bytes = 0;
    TRY(plan_problem_init(problem, request, costs, fall->samples, num_samples));
    *out = problem;
    return STATUS_OK;
}

static bool has_limit(const PlanRequest* request) {
    for (int32_t r = 0; r < request->P * request->R; r++) {
        const MachineRank* rank = machine_stage(machine_replica(request->machine, r), 0);
        if (machine_limit_bytes(rank, request->memory_limit_bytes) > 0) { return true; }
    }
    return false;
}

Status waterfall_make(Waterfall* out, const Plan* plan, const CostModel* costs, const PlanRequest* request,
                      const PlanSample* samples, int32_t num_samples, Arena* arena) {
    if (request->P != plan->P || request->R != plan->R || num_samples != plan->N) {
        return FAIL(STATUS_INVALID_PLAN,
                    "waterfall: the plan has %d stages, %d replicas and %d samples, the "
                    "problem %d, %d and %d ---> give the problem it was made for",
                    plan->P, plan->R, plan->N, request->P, request->R, num_samples);
    }
    Fall fall = {.plan = plan, .request = request, .samples = samples, .arena = arena};
    CostModel* pure;
    ARENA_TRY_NEW(pure, arena, CostModel, 1);
    *pure = *costs;
    drop_constants(pure);
    TRY(problem_of_plan(&fall.problem, &fall, costs, num_samples));
    TRY(problem_of_plan(&fall.pure, &fall, pure, num_samples));
    int64_t total_ns = 0;
    for (int32_t r = 0, first_mb = 0; r < plan->R; r++) {
        int32_t M = 0;
        while (first_mb + M < plan->M && plan->mbs[first_mb + M].replica == r) { M++; }
        TRY(add_replica(&fall, &total_ns, first_mb, M, r));
        first_mb += M;
    }
    // Receives that wait for memory let another message go first, so a plan with late receives may end
    // sooner.
    int64_t late_ns = plan->makespan_ns - fall.level_ns[0];
    bool may_differ = has_limit(request) && plan->makespan_ns >= fall.last_end_ns;
    if (fall.has_other_times || (late_ns != 0 && !may_differ)) {
        return FAIL(STATUS_INVALID_PLAN,
                    "waterfall: the plan says %lld ns, its jobs take %lld with these "
                    "costs ---> give the costs it was made with",
                    (long long)plan->makespan_ns, (long long)fall.level_ns[0]);
    }
    fall.level_ns[WATERFALL_EFFICIENCY] = total_ns / plan->P / plan->R;
    Waterfall made = {.makespan_ns = plan->makespan_ns, .bound_ns = plan->bound_ns};
    int64_t above_ns = smaller_of(fall.level_ns[0], plan->makespan_ns);
    for (int part = 0; part < WATERFALL_COUNT; part++) {
        int64_t level_ns = part + 1 < NUM_LEVELS - 1 ? fall.level_ns[part + 1] : plan->bound_ns;
        if (level_ns < plan->bound_ns) { level_ns = plan->bound_ns; }
        if (level_ns > above_ns) { level_ns = above_ns; }
        made.part_ns[part] = above_ns - level_ns;
        above_ns = level_ns;
    }
    made.part_ns[WATERFALL_MEMORY] += late_ns > 0 ? late_ns : 0;
    *out = made;
    return STATUS_OK;
}

// One row, its bar over the part [below_ns, below_ns + ns) of the makespan.
static void print_row(FILE* out, const char* name, int64_t below_ns, int64_t ns, int64_t makespan_ns) {
    enum { BAR_WIDTH = 50 };
    int64_t all_ns = makespan_ns > 0 ? makespan_ns : 1;
    double column = (double)BAR_WIDTH / (double)all_ns;
    int begin = (int)((double)below_ns * column + 0.5), end = (int)((double)(below_ns + ns) * column + 0.5);
    char bar[BAR_WIDTH + 1];
    for (int i = 0; i < end; i++) { bar[i] = i < begin ? ' ' : '#'; }
    bar[end > begin ? end : 0] = '\0';
    bool is_long = makespan_ns >= 1000000000;  // one unit for all rows
    fprintf(out, "%-19s %12.3f %-2s  %6.2f %%%s%s\n", name, (double)ns / (is_long ? 1e9 : 1e6),
            is_long ? "s" : "ms", 100.0 * (double)ns / (double)all_ns, end > begin ? "  " : "", bar);
}

void waterfall_print(const Waterfall* waterfall, FILE* out) {
    int64_t below_ns = waterfall->bound_ns;
    print_row(out, "bound", 0, waterfall->bound_ns, waterfall->makespan_ns);
    for (int part = WATERFALL_COUNT - 1; part >= 0; part--) {
        char name[32];
        snprintf(name, sizeof name, "  %s", waterfall_names[part]);
        print_row(out, name, below_ns, waterfall->part_ns[part], waterfall->makespan_ns);
        below_ns += waterfall->part_ns[part];
    }
    print_row(out, "makespan", 0, waterfall->makespan_ns, waterfall->makespan_ns);
}
