#include "trace_jobs.h"

#include <stdlib.h>
#include <string.h>

#include "../plan/lists/plan_message.h"
#include "../plan/lists/plan_words.h"

typedef struct {
    TraceJobs* jobs;
    const Plan* plan;
    const CostModel* costs;
    CostStage chunks[PLAN_MAX_CHUNKS];
    int32_t s;
    MachineRank machine;
    uint8_t* has;  // [rows * M] bits 1 << JobKind that this rank's list has
} Reader;

static void slow_terms(const Reader* r, double term[PASS_TERMS], JobKind kind) {
    for (int32_t i = 0; i < PASS_TERMS; i++) { term[i] *= r->machine.slow[kind]; }
}

// Room for a job of that side; NULL: there is none left.
static RefitJob* new_job(const Reader* r, RefitSide side, double measured_ns) {
    TraceJobs* jobs = r->jobs;
    if (jobs->num_jobs[side] == TRACE_JOBS_MOST || measured_ns <= 0) { return NULL; }
    RefitJob* job = &jobs->jobs[side][jobs->num_jobs[side]];
    *job = (RefitJob){.measured_ns = measured_ns};
    return job;
}

static double job_ns(const RefitJob* job) {
    double sum_ns = 0;
    for (int32_t c = 0; c < REFIT_COLUMNS; c++) { sum_ns += job->term[c]; }
    return sum_ns;
}

// It counts, where it was to take any time.
static void keep_job(const Reader* r, RefitSide side, const RefitJob* job) {
    if (job_ns(job) > 0) { r->jobs->num_jobs[side]++; }
}

static uint8_t jobs_of(const Reader* r, int32_t row, int32_t mb) {
    return r->has[(int64_t)row * r->plan->M + mb];
}

static void add_job(const Reader* r, JobKind kind, int32_t chunk, int32_t mb, double measured_ns) {
    const PlanMicrobatch* about = &r->plan->mbs[mb];
    const CostStage* stage = &r->chunks[chunk];
    RecomputeMode mode = (RecomputeMode)about->recompute[chunk];
    bool is_backward = kind == JOB_B || kind == JOB_W, is_dropped = jobs_of(r, chunk, mb) & 1 << JOB_R;
    RefitSide side = is_backward ? SIDE_BACKWARD : SIDE_FORWARD;
    if (kind == JOB_F && is_dropped && stage->has_head) { return; }
    RefitJob* job = new_job(r, side, measured_ns);
    if (job == NULL) { return; }
    double* term = kind == JOB_W ? &job->term[PASS_TERMS] : job->term;
    cost_scale_terms(term, r->costs, stage, kind, mode, &about->shape);
    slow_terms(r, term, kind);
    if (kind == JOB_B && !(jobs_of(r, chunk, mb) & 1 << JOB_W)) {
        cost_scale_terms(&job->term[PASS_TERMS], r->costs, stage, JOB_W, mode, &about->shape);
        slow_terms(r, &job->term[PASS_TERMS], JOB_W);
    }
    keep_job(r, side, job);
}

static void share_terms(const Reader* r, double term[PASS_TERMS], JobKind kind, const MbShape* shape) {
    const Placement* placement = &r->plan->placement;
    int32_t units = placement->head_begin[r->s + 1] - placement->head_begin[r->s];
    cost_scale_share_terms(term, r->costs, (double)units / HEAD_UNITS, kind, shape);
    slow_terms(r, term, kind);
}

// Forward and gradient of inputs of a share are one job: each takes the part of it that it was to take.
static void add_share(const Reader* r, JobKind kind, int32_t mb, double measured_ns) {
    const MbShape* shape = &r->plan->mbs[mb].shape;
    RefitJob forward = {0}, backward = {0};
    if (kind == JOB_F) {
        share_terms(r, forward.term, JOB_F, shape);
        share_terms(r, backward.term, JOB_B, shape);
    } else {
        share_terms(r, &backward.term[PASS_TERMS], JOB_W, shape);
    }
    double forward_ns = job_ns(&forward), all_ns = forward_ns + job_ns(&backward);
    for (int side = 0; side < SIDE_COUNT && all_ns > 0; side++) {
        const RefitJob* part = side == SIDE_FORWARD ? &forward : &backward;
        RefitJob* job = new_job(r, (RefitSide)side, measured_ns * job_ns(part) / all_ns);
        if (job == NULL) { continue; }
        memcpy(job->term, part->term, sizeof job->term);
        keep_job(r, (RefitSide)side, job);
    }
}

// Jobs run in the order of the list, so the n-th event of a job is the n-th job instruction.
static void add_all(Reader* r, const PlanRank* rank, const TraceRank* trace) {
    int32_t e = 0, K = r->plan->placement.num_chunks;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        while (e < trace->num_events && !plan_instr_is_job((InstrKind)trace->events[e].kind)) { e++; }
        if (e == trace->num_events) { return; }
        const TraceEvent* event = &trace->events[e++];
        bool is_it = event->kind == instr->kind && event->mb == instr->mb && event->chunk == instr->chunk;
        if (!is_it) { return; }
        JobKind kind = plan_instr_job((InstrKind)instr->kind);
        double measured_ns = (double)(event->end_ns - event->begin_ns);
        if (instr->chunk >= K) {
            add_share(r, kind, instr->mb, measured_ns);
        } else {
            add_job(r, kind, instr->chunk, instr->mb, measured_ns);
        }
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
    const Placement* placement = &plan->placement;
    int64_t num_cells = (int64_t)placement_num_rows(placement, plan->P) * plan->M;
    Reader reader = {.jobs = jobs,
                     .plan = plan,
                     .costs = costs,
                     .s = trace->rank % plan->P,
                     .machine = machine_rank(machine, trace->rank),
                     .has = calloc((size_t)num_cells + 1, 1)};
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        reader.chunks[k] = cost_chunk_make(costs, placement, k);
    }
    Status status = reader.has != NULL ? reserve(jobs) : FAIL(STATUS_NO_MEMORY, "no memory to measure jobs");
    for (int32_t i = 0; i < rank->num_instrs && status == STATUS_OK; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        reader.has[(int64_t)instr->chunk * plan->M + instr->mb] |=
            (uint8_t)(1 << plan_instr_job((InstrKind)instr->kind));
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
