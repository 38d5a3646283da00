#include "trace_jobs.h"

#include <stdlib.h>
#include <string.h>

#include "../plan/lists/plan_words.h"

typedef struct {
    TraceJobs* jobs;
    const Plan* plan;
    const CostModel* costs;
    CostStage stage;
    int32_t s;
    MachineRank machine;
    uint8_t* has;  // [M] bits 1 << JobKind that this rank's list has
} Reader;

static void add_terms(const Reader* r, double term[PASS_TERMS], JobKind kind, RecomputeMode mode,
                      const MbShape* shape) {
    cost_scale_terms(term, r->costs, &r->stage, kind, mode, shape);
    for (int32_t i = 0; i < PASS_TERMS; i++) { term[i] *= r->machine.slow[kind]; }
}

static void add_job(const Reader* r, JobKind kind, int32_t mb, int64_t measured_ns) {
    const PlanMicrobatch* about = &r->plan->mbs[mb];
    RecomputeMode mode = (RecomputeMode)about->recompute[r->s];
    bool is_backward = kind == JOB_B || kind == JOB_W, is_dropped = r->has[mb] & 1 << JOB_R;
    RefitSide side = is_backward ? SIDE_BACKWARD : SIDE_FORWARD;
    if (r->jobs->num_jobs[side] == TRACE_JOBS_MOST || measured_ns <= 0) { return; }
    if (kind == JOB_F && is_dropped && r->stage.has_head) { return; }
    RefitJob* job = &r->jobs->jobs[side][r->jobs->num_jobs[side]];
    *job = (RefitJob){.measured_ns = (double)measured_ns};
    add_terms(r, kind == JOB_W ? &job->term[PASS_TERMS] : job->term, kind, mode, &about->shape);
    if (kind == JOB_B && !(r->has[mb] & 1 << JOB_W)) {
        add_terms(r, &job->term[PASS_TERMS], JOB_W, mode, &about->shape);
    }
    double predicted_ns = 0;
    for (int32_t c = 0; c < REFIT_COLUMNS; c++) { predicted_ns += job->term[c]; }
    if (predicted_ns > 0) { r->jobs->num_jobs[side]++; }
}

// Jobs run in the order of the list, so the n-th event of a job is the n-th job instruction.
static void add_all(Reader* r, const PlanRank* rank, const TraceRank* trace) {
    int32_t e = 0;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        while (e < trace->num_events && !plan_instr_is_job((InstrKind)trace->events[e].kind)) { e++; }
        if (e == trace->num_events) { return; }
        const TraceEvent* event = &trace->events[e++];
        if (event->kind != instr->kind || event->mb != instr->mb) { return; }
        add_job(r, plan_instr_job((InstrKind)instr->kind), instr->mb, event->end_ns - event->begin_ns);
    }
}

static Status reserve(TraceJobs* jobs) {
    for (int side = 0; side < SIDE_COUNT && jobs->room == NULL; side++) {
        jobs->jobs[side] = malloc(TRACE_JOBS_MOST * sizeof(RefitJob));
        if (jobs->jobs[side] == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to measure jobs"); }
    }
    if (jobs->room == NULL) { jobs->room = malloc(2 * TRACE_JOBS_MOST * sizeof(double)); }
    return jobs->room != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "no memory to measure jobs");
}

Status trace_jobs_add(TraceJobs* jobs, const Plan* plan, const TraceRank* trace, const CostModel* costs,
                      const Machine* machine) {
    const PlanRank* rank = &plan->ranks[trace->rank];
    int32_t s = trace->rank % plan->P;
    Reader reader = {.jobs = jobs,
                     .plan = plan,
                     .costs = costs,
                     .stage = cost_stage_make(costs, &plan->placement.chunks[s], s, plan->P),
                     .s = s,
                     .machine = machine_rank(machine, trace->rank),
                     .has = calloc((size_t)plan->M + 1, 1)};
    Status status = reader.has != NULL ? reserve(jobs) : FAIL(STATUS_NO_MEMORY, "no memory to measure jobs");
    for (int32_t i = 0; i < rank->num_instrs && status == STATUS_OK; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        reader.has[instr->mb] |= (uint8_t)(1 << plan_instr_job((InstrKind)instr->kind));
    }
    if (status == STATUS_OK) { add_all(&reader, rank, trace); }
    free(reader.has);
    return status;
}

void trace_jobs_sum(RefitSums out[SIDE_COUNT], TraceJobs* jobs, const RefitShared* shared,
                    const RefitRank* rank) {
    memset(out, 0, SIDE_COUNT * sizeof *out);
    for (int side = 0; side < SIDE_COUNT; side++) {
        int32_t num = jobs->num_jobs[side];
        double *kept = jobs->room, *errors = jobs->room + TRACE_JOBS_MOST, factor[REFIT_COLUMNS] = {0};
        if (num == 0) { continue; }
        for (int32_t c = 0; c < refit_side_columns((RefitSide)side) && shared != NULL; c++) {
            factor[c] = shared->factor[side][c] * rank->slow[refit_column_pass((RefitSide)side, c)];
        }
        const RefitJob* all = jobs->jobs[side];
        double scatter = shared != NULL ? refit_sums_weigh_by(kept, errors, (RefitSide)side, all, num, factor)
                                        : refit_sums_weigh(kept, errors, (RefitSide)side, all, num);
        for (int32_t i = 0; i < num; i++) {
            refit_sums_add(&out[side], (RefitSide)side, &all[i], kept[i], scatter);
        }
    }
}

void trace_jobs_forget(TraceJobs* jobs) {
    memset(jobs->num_jobs, 0, sizeof jobs->num_jobs);
}

void trace_jobs_free(TraceJobs* jobs) {
    for (int side = 0; side < SIDE_COUNT; side++) { free(jobs->jobs[side]); }
    free(jobs->room);
    *jobs = (TraceJobs){0};
}
