// waterfall.c -- see waterfall.h.
#include "waterfall.h"

#include <math.h>

#include "../dynapipe_plugin/plan/draft.h"
#include "../dynapipe_plugin/plan/instructions.h"
#include "../dynapipe_plugin/plan/schedule.h"
#include "../util/program.h"
#include "problem.h"

#define X(name, text) text,
const char* const waterfall_names[WATERFALL_COUNT] = {WATERFALL_LIST(X)};
#undef X

// Obstacles removed.
typedef struct {
    bool free_transfers;  // and no tails
    bool no_recompute, no_constants, no_padding;
} Ideal;

typedef struct {
    const Plan* plan;
    const PlanRequest* request;
    const PlanProblem *problem, *pure;  // pure: without constants and minimum times
    int64_t level_ns[WATERFALL_COUNT];  // at which a part begins
    double offload_bytes_per_ns;
    Arena* arena;
} Fall;

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static void raise(int64_t* level_ns, int64_t ns) {
    *level_ns = ns > *level_ns ? ns : *level_ns;
}

// --- one replica's pipeline, from the plan ---------------------------------------------------------------

// The microbatch with the true lengths of its samples; one with a piece has them.
static MbShape true_shape(const Plan* plan, const PlanSample* samples, int32_t m) {
    const PlanMicrobatch* mb = &plan->mbs[m];
    MbShape shape = {0};
    if (plan_has_piece(plan, m)) { return mb->shape; }
    for (int32_t q = mb->sequence_begin; q < mb->sequence_end; q++) {
        for (int32_t i = plan->sequences[q].segment_begin; i < plan->sequences[q].segment_end; i++) {
            const PlanSample* s = &samples[plan->segments[i].sample_idx];
            mb_shape_add(&shape, s->enc_tokens, s->dec_tokens, s->supervised_tokens);
        }
    }
    return shape;
}

static int32_t first_mb_of(const Plan* plan, int32_t replica) {
    int32_t m = 0;
    while (m < plan->M && plan->mbs[m].replica < replica) { m++; }
    return m;
}

static Status pipe_of_replica(PipeProblem* out, const Fall* fall, int32_t r, Ideal ideal) {
    const Plan* plan = fall->plan;
    const int32_t first_mb = first_mb_of(plan, r), M = first_mb_of(plan, r + 1) - first_mb;
    const PlanProblem* problem = ideal.no_constants ? fall->pure : fall->problem;
    PipePlace place;
    pipe_place_make(&place, problem, &plan->placement, r);
    int32_t num_rows = placement_num_rows(&plan->placement, plan->P);
    PipeCost* cells;
    uint8_t modes[PLAN_MAX_CHUNKS];
    int32_t* before;
    ARENA_TRY_NEW(cells, fall->arena, PipeCost, (int64_t)num_rows * M);
    ARENA_TRY_NEW(before, fall->arena, int32_t, M);
    *out = (PipeProblem){
        .P = plan->P, .M = M, .cost = cells, .piece_before = before, .placement = &plan->placement};
    out->pulls = machine_pulls(problem->request->machine) && !ideal.free_transfers;
    for (int32_t s = 0; s < plan->P; s++) {
        int64_t reduce_ns = cost_rank_reduce_ns(problem->costs, &problem->has[s], plan->R);
        out->memory_limit_bytes[s] = INT64_MAX;
        out->tail_ns[s] = ideal.free_transfers ? 0 : reduce_ns;
    }
    for (int32_t m = 0; m < M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[first_mb + m];
        MbShape shape = ideal.no_padding ? true_shape(plan, problem->samples, first_mb + m) : mb->shape;
        for (int32_t k = 0; k < problem->K; k++) {
            modes[k] = ideal.no_recompute ? RECOMPUTE_NONE : mb->recompute[k];
        }
        bool begins = plan_goes_on(plan, first_mb + m) && !mb->continues;
        const int32_t sequence = mb->sequence_begin;
        pipe_costs_make(
            cells + m, NULL, M, &place, modes, &shape,
            begins ? &problem->samples[plan->segments[plan->sequences[sequence].segment_begin].sample_idx]
                   : NULL);
        before[m] = mb->continues ? m - 1 : -1;
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
                                  const PipeProblem* problem, int32_t r) {
    const int32_t first_mb = first_mb_of(fall->plan, r);
    TRY(pipe_schedule_init(out, problem, fall->arena));
    *split = false;
    for (int32_t s = 0; s < problem->P; s++) {
        const PlanRank* rank = &fall->plan->ranks[r * problem->P + s];
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            const PlanInstr* instr = &rank->instrs[i];
            if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
            JobKind kind = plan_instr_job((InstrKind)instr->kind);
            *split |= kind == JOB_W && instr->chunk < pipe_num_chunks(problem);
            if (kind == JOB_R && !pipe_cost(problem, instr->chunk, instr->mb - first_mb)->drops) { continue; }
            pipe_schedule_push(out, s, kind, instr->chunk, instr->mb - first_mb);
        }
    }
    return STATUS_OK;
}

Status plan_batch_make(const PlanProblem** out, const Plan* plan, const PlanRequest* request,
                       const CostModel* costs, const PlanSample* samples, Arena* arena) {
    PlanProblem* problem;
    PlanRequest* placed;
    ARENA_TRY_NEW(problem, arena, PlanProblem, 1);
    ARENA_TRY_NEW(placed, arena, PlanRequest, 1);
    *placed = *request;
    placed->placement = plan->placement;
    placed->memory_limit_bytes = 0;
    *out = problem;
    return plan_problem_init(problem, placed, costs, samples, plan->N);
}

Status plan_replica_simulate(PipeTimeline* out, const Plan* plan, const PlanProblem* batch, int32_t r,
                             Arena* arena) {
    const Fall fall = {.plan = plan, .problem = batch, .arena = arena};
    PipeProblem problem;
    PipeSchedule schedule;
    bool split;
    TRY(pipe_of_replica(&problem, &fall, r, (Ideal){0}));
    TRY(schedule_of_replica(&schedule, &split, &fall, &problem, r));
    TRY(pipe_simulate(out, &problem, &schedule, arena));
    out->makespan_ns = replica_lists_makespan(plan->ranks + r * plan->P, &problem, &schedule, out);
    return STATUS_OK;
}

// --- levels ----------------------------------------------------------------------------------------------

static Status simulate(int64_t* makespan_ns, const Fall* fall, const PipeProblem* problem,
                       const PipeSchedule* schedule) {
    PipeTimeline timeline;
    TRY(pipe_simulate(&timeline, problem, schedule, fall->arena));
    *makespan_ns = smaller(*makespan_ns, timeline.makespan_ns);
    return STATUS_OK;
}

// Only the work, for the last levels: each stage's, after the microbatch that comes first to its first chunk
// and before the one that is done first after it (where the stage ends with a B). Returns the sum over all
// stages.
static int64_t add_work_levels(Fall* fall, const PipeProblem* problem, bool split) {
    const int32_t K = pipe_num_chunks(problem);
    int64_t total_ns = 0;
    for (int32_t s = 0; s < problem->P && problem->M > 0; s++) {
        int64_t work_ns = 0, arrival_ns = INT64_MAX, tail_ns = INT64_MAX;
        for (int32_t m = 0; m < problem->M; m++) {
            int64_t before_ns = 0, after_ns = 0;
            bool comes = false;
            for (int32_t row = 0; row < pipe_num_rows(problem); row++) {
                const int64_t* ns = pipe_cost(problem, row, m)->job_ns;
                bool is_mine = is_of_stage(problem, row, s), is_chunk = row < K;
                if (is_mine) { work_ns += ns[JOB_F] + ns[JOB_W] + (is_chunk ? ns[JOB_B] : 0); }
                comes |= is_mine;
                before_ns += is_chunk && !comes ? ns[JOB_F] : 0;
                after_ns += is_chunk && !comes ? ns[JOB_B] + ns[JOB_W] : 0;
            }
            arrival_ns = smaller(arrival_ns, before_ns);
            tail_ns = smaller(tail_ns, after_ns);
        }
        bool ends_with_w = split || (pipe_shares_head(problem) && is_of_stage(problem, K + s, s));
        raise(&fall->level_ns[WATERFALL_RAMP], arrival_ns + work_ns + (ends_with_w ? 0 : tail_ns));
        raise(&fall->level_ns[WATERFALL_STAGES], work_ns);
        total_ns += work_ns;
    }
    raise(&fall->level_ns[WATERFALL_REPLICAS], total_ns / problem->P);
    return total_ns;
}

// Without a limit a stage holds more than it has room for: that share of all that its microbatches keep has
// to leave and come back within the step.
static void raise_offload_rate(double* bytes_per_ns, const Fall* fall, const PipeProblem* problem,
                               const PipeTimeline* timeline, int32_t r) {
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t rank = (int64_t)r * problem->P + s, stored_bytes = 0, most_bytes = timeline->peak_bytes[s];
        int64_t limit_bytes = problem_limit_bytes(fall->request, (int32_t)rank);
        int64_t room_bytes = limit_bytes - fall->plan->ranks[rank].state_bytes;
        for (int32_t row = 0; row < pipe_num_rows(problem); row++) {
            for (int32_t m = 0; m < problem->M && is_of_stage(problem, row, s); m++) {
                stored_bytes += pipe_cost(problem, row, m)->stored_bytes;
            }
        }
        if (limit_bytes == 0 || room_bytes >= most_bytes) { continue; }
        double out_bytes = (double)stored_bytes * (1.0 - (double)room_bytes / (double)most_bytes);
        *bytes_per_ns = fmax(*bytes_per_ns, out_bytes / (double)timeline->makespan_ns);
    }
}

// Raises every level to that of replica r; adds its work to *total_ns. any_order: without the memory limit
// the adaptive order may be faster than the plan's.
static Status add_replica(Fall* fall, int64_t* total_ns, int32_t r, bool any_order) {
    const int32_t M = first_mb_of(fall->plan, r + 1) - first_mb_of(fall->plan, r);
    static const Ideal ideals[] = {[WATERFALL_COMMUNICATION] = {0},
                                   [WATERFALL_MEMORY] = {.free_transfers = true},
                                   [WATERFALL_RECOMPUTE] = {.free_transfers = true},
                                   [WATERFALL_LAUNCH] = {.free_transfers = true, .no_recompute = true},
                                   [WATERFALL_PADDING] = {true, true, true, false},
                                   [WATERFALL_ORDER] = {true, true, true, true}};
    int32_t* in_turn;
    ARENA_TRY_NEW(in_turn, fall->arena, int32_t, M + 1);
    for (int32_t m = 0; m < M; m++) { in_turn[m] = m; }
    int64_t ns = INT64_MAX;  // falls: an easier problem may fit another order less well
    for (int level = 0; level <= WATERFALL_ORDER; level++) {
        PipeProblem problem;
        PipeSchedule schedule;
        bool split;
        TRY(pipe_of_replica(&problem, fall, r, ideals[level]));
        TRY(schedule_of_replica(&schedule, &split, fall, &problem, r));
        TRY(simulate(&ns, fall, &problem, &schedule));
        if (level > WATERFALL_MEMORY && any_order && M > 0) {
            PipeAdaptiveRule rule = pipe_adaptive_rule(&problem, split);
            for (int32_t k = 0; k < pipe_num_chunks(&problem); k++) { rule.max_in_flight[k] = M; }
            TRY(pipe_adaptive_build(&schedule, &problem, in_turn, &rule, fall->arena));
            PipeTimeline timeline;
            TRY(pipe_simulate(&timeline, &problem, &schedule, fall->arena));
            ns = smaller(ns, timeline.makespan_ns);
            if (level == WATERFALL_LAUNCH) {
                raise_offload_rate(&fall->offload_bytes_per_ns, fall, &problem, &timeline, r);
            }
        }
        raise(&fall->level_ns[level], ns);
        if (level == WATERFALL_ORDER) { *total_ns += add_work_levels(fall, &problem, split); }
    }
    return STATUS_OK;
}

Status waterfall_make(Waterfall* out, const Plan* plan, const CostModel* costs, const PlanRequest* request,
                      const PlanSample* samples, Arena* arena) {
    Fall fall = {.plan = plan, .request = request, .arena = arena};
    int64_t total_ns = 0;
    bool has_limit = false;
    CostModel* pure;
    ARENA_TRY_NEW(pure, arena, CostModel, 1);
    *pure = *costs;
    for (int i = 0; i < RECOMPUTE_COUNT * PART_COUNT * JOB_COUNT; i++) {
        CostFormula* time =
            &pure->parts[i / JOB_COUNT / PART_COUNT][i / JOB_COUNT % PART_COUNT].time_ns[i % JOB_COUNT];
        time->constant = time->floor = 0;
    }
    TRY(plan_batch_make(&fall.problem, plan, request, costs, samples, arena));
    TRY(plan_batch_make(&fall.pure, plan, request, pure, samples, arena));
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        const MachineRank* rank = machine_stage(machine_replica(request->machine, r), 0);
        has_limit |= machine_limit_bytes(rank, request->memory_limit_bytes) > 0;
    }
    for (int32_t r = 0; r < plan->R; r++) { TRY(add_replica(&fall, &total_ns, r, has_limit)); }
    fall.level_ns[WATERFALL_EFFICIENCY] = total_ns / plan->P / plan->R;
    *out = (Waterfall){
        .makespan_ns = plan->makespan_ns, .bound_ns = plan->bound_ns, .jobs_ns = fall.level_ns[0]};
    int64_t above_ns = smaller(fall.level_ns[0], plan->makespan_ns);
    if (fall.offload_bytes_per_ns > 0) {
        out->offload_bytes_per_ns = fall.offload_bytes_per_ns;
        out->offloaded_ns = above_ns - (fall.level_ns[1] - fall.level_ns[WATERFALL_LAUNCH]);
    }
    // Receives that wait for memory make the plan slower than its jobs alone (or faster: another message goes
    // first).
    out->part_ns[WATERFALL_MEMORY] = plan->makespan_ns - above_ns;
    for (int part = 0; part < WATERFALL_COUNT; part++) {
        int64_t level_ns = part + 1 < WATERFALL_COUNT ? fall.level_ns[part + 1] : 0;
        raise(&level_ns, plan->bound_ns);
        level_ns = smaller(level_ns, above_ns);
        out->part_ns[part] += above_ns - level_ns;
        above_ns = level_ns;
    }
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
    if (waterfall->offload_bytes_per_ns > 0 && waterfall->offloaded_ns < waterfall->makespan_ns) {
        fprintf(out, "if activations could be offloaded: %s, where %.1f GB/s go out and as many come back\n",
                TIME_TEXT(waterfall->offloaded_ns, 6), waterfall->offload_bytes_per_ns);
    }
}
