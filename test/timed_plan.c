#include "timed_plan.h"
#include "../dynapipe_plugin/plan/simulate.h"

#undef NDEBUG
#include <assert.h>
#include <stdio.h>

#include "../dynapipe_plugin/plan/instructions.h"
#include "../dynapipe_plugin/plan/plan_message.h"

static void require(Status status) {
    if (status != STATUS_OK) { fprintf(stderr, "timed_plan: %s\n", status_message()); }
    assert(status == STATUS_OK);
}

static void add_instr(PlanRank* rank, uint8_t kind, int32_t chunk, int32_t mb, int32_t peer,
                      const PipeSpan* span) {
    rank->instrs[rank->num_instrs++] = (PlanInstr){.kind = kind,
                                                   .chunk = (int16_t)chunk,
                                                   .mb = mb,
                                                   .peer = peer,
                                                   .begin_ns = span->begin_ns,
                                                   .end_ns = span->end_ns};
}

// Receives, or sends, that stand at most before job `pos`, from *next on.
static void add_transfers(const Plan* plan, PlanRank* rank, const CommOrder* order, int32_t s, int32_t P,
                          bool receives, int32_t pos, int32_t* next) {
    for (; *next < order->num_ops[s] && order->ops[s][*next].pos <= pos; ++*next) {
        const CommOp* op = &order->ops[s][*next];
        if (plan_instr_is_recv(op->kind) != receives) { continue; }
        add_instr(rank, op->kind, op->chunk, plan->M + op->mb, plan->R * P + op->peer,
                  &(PipeSpan){op->begin_ns, op->end_ns});
    }
}

void timed_plan_add_replica(Plan* plan, const PipeProblem* problem, const PipeSchedule* schedule,
                            Arena* arena) {
    static const uint8_t instr_of[JOB_COUNT] = {
        [JOB_F] = INSTR_FWD, [JOB_B] = INSTR_BWD, [JOB_W] = INSTR_WGT, [JOB_R] = INSTR_REC};
    PipeTimeline timeline;
    CommOrder order;
    require(pipe_simulate(&timeline, problem, schedule, arena));
    require(comm_order_make(&order, problem, schedule, &timeline, arena));
    for (int32_t s = 0; s < problem->P; s++) {
        PlanRank* rank = &plan->ranks[plan->R * problem->P + s];
        rank->instrs = ARENA_NEW(arena, PlanInstr, schedule->num_jobs[s] + order.num_ops[s]);
        add_transfers(plan, rank, &order, s, problem->P, true, INT32_MAX, &(int32_t){0});
        for (int32_t i = 0, k = 0; i <= schedule->num_jobs[s]; i++) {
            add_transfers(plan, rank, &order, s, problem->P, false, i, &k);
            if (i == schedule->num_jobs[s]) { break; }
            PipeJob job = schedule->jobs[s][i];
            add_instr(rank, instr_of[job.kind], job.chunk, plan->M + job.mb, -1, &timeline.job[s][i]);
        }
    }
    for (int32_t m = 0; m < problem->M; m++) { plan->mbs[plan->M++].replica = plan->R; }
    if (timeline.makespan_ns > plan->makespan_ns) { plan->makespan_ns = timeline.makespan_ns; }
    plan->R++;
}

Plan timed_plan(const PipeProblem* problem, int32_t most_replicas, int32_t most_mbs, Arena* arena) {
    Plan plan = {.P = problem->P, .pulls = problem->pulls};
    if (problem->placement == NULL) {
        placement_linear(&plan.placement, plan.placement.chunks, plan.P);
    } else {
        plan.placement = *problem->placement;
    }
    plan.mbs = ARENA_NEW(arena, PlanMicrobatch, most_mbs);
    plan.ranks = ARENA_NEW(arena, PlanRank, problem->P * most_replicas);
    return plan;
}
