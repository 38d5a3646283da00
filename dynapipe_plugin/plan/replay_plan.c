// replay_plan.c -- a plan replayed: durations, orders and transfers from its instruction lists.
#include "pipe_schedule.h"
#include "plan_words.h"
#include "replay_graph.h"

// Micro-batches [begin, end) of the plan are this replica's. instr_ns: as in plan_makespan().
typedef struct {
    const Plan* plan;
    const int64_t* const* instr_ns;
    int32_t replica, begin, end;
} Part;

static Part part_of(const Plan* plan, int32_t replica, const int64_t* const* instr_ns) {
    Part part = {.plan = plan, .instr_ns = instr_ns, .replica = replica};
    while (part.begin < plan->M && plan->mbs[part.begin].replica != replica) { part.begin++; }
    part.end = part.begin;
    while (part.end < plan->M && plan->mbs[part.end].replica == replica) { part.end++; }
    return part;
}

static Status list_rank(ReplayLists* lists, const Part* part, int32_t s, Arena* arena) {
    const PlanRank* rank = &part->plan->ranks[part->replica * part->plan->P + s];
    ReplayItem* items;
    PIPE_NEW(items, arena, ReplayItem, rank->num_instrs);
    lists->items[s] = items;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        ReplayItem item = {.mb = instr->mb - part->begin, .ns = instr->end_ns - instr->begin_ns};
        if (part->instr_ns != NULL) { item.ns = part->instr_ns[s][i]; }
        if (plan_instr_is_job((InstrKind)instr->kind)) {
            item.kind = (uint8_t)plan_instr_job((InstrKind)instr->kind);
        } else if (instr->kind == INSTR_SEND_ACT) {
            item.kind = REPLAY_SEND_ACT;
        } else if (instr->kind == INSTR_SEND_GRAD) {
            item.kind = REPLAY_SEND_GRAD;
        } else {
            continue;
        }
        if (instr->mb < part->begin || instr->mb >= part->end) {
            return FAIL(
                STATUS_INVALID_PLAN,
                "replica %d stage %d, instruction %d: micro-batch %d is another's ---> check the plan",
                part->replica, s, i, instr->mb);
        }
        items[lists->num_items[s]++] = item;
    }
    return STATUS_OK;
}

int64_t plan_tail_ns(const Plan* plan) {
    int64_t last_ns = 0;
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
            const PlanInstr* instr = &plan->ranks[r].instrs[i];
            bool is_job = plan_instr_is_job((InstrKind)instr->kind);
            if (is_job && instr->end_ns > last_ns) { last_ns = instr->end_ns; }
        }
    }
    return plan->makespan_ns > last_ns ? plan->makespan_ns - last_ns : 0;
}

static Status graph_of(ReplayGraph* out, const Part* part, int64_t tail_ns, Arena* scratch) {
    ReplayLists lists = {.P = part->plan->P, .M = part->end - part->begin};
    for (int32_t s = 0; s < part->plan->P; s++) {
        TRY(list_rank(&lists, part, s, scratch));
        lists.tail_ns[s] = tail_ns;
    }
    return replay_graph_make(out, &lists, scratch);
}

static Status replay_replica(ReplaySums* sums, const Plan* plan, int32_t r, int64_t tail_ns,
                             const ReplayNoise* noise, Arena* scratch) {
    Part part = part_of(plan, r, NULL);
    ReplayGraph graph;
    TRY(graph_of(&graph, &part, tail_ns, scratch));
    return replay_graph_run(sums, &graph, noise, replay_replica_seed(noise->seed, r), scratch);
}

Status plan_makespan(int64_t* out_ns, const Plan* plan, int32_t replica, const int64_t* const* instr_ns,
                     Arena* scratch) {
    Part part = part_of(plan, replica, instr_ns);
    ReplayGraph graph;
    TRY(graph_of(&graph, &part, 0, scratch));
    return replay_graph_makespan(out_ns, &graph, scratch);
}

Status plan_replay(ReplayResult* out, const Plan* plan, const ReplayNoise* noise, Arena* scratch) {
    ReplaySums sums = {0};
    ReplayResult result = {0};
    TRY(replay_noise_check(noise, plan->P));
    if (plan->makespan_ns < 0 || plan->makespan_ns > INT64_MAX / 4) {
        return FAIL(STATUS_OUT_OF_RANGE, "plan: makespan of %lld ns ---> times of 0 ns up to days",
                    (long long)plan->makespan_ns);
    }
    PIPE_NEW(sums.makespan_ns, scratch, int64_t, noise->trials);
    int64_t tail_ns = plan_tail_ns(plan);
    for (int32_t r = 0; r < plan->R; r++) { TRY(replay_replica(&sums, plan, r, tail_ns, noise, scratch)); }
    replay_quantiles(&result, sums.makespan_ns, noise->trials);
    result.planned_ns = sums.planned_ns;
    for (int32_t s = 0; s < plan->P; s++) {
        result.planned_wait_ns[s] = sums.planned_wait_ns[s] / plan->R;
        result.mean_wait_ns[s] = sums.wait_ns[s] / plan->R;
    }
    *out = result;
    return STATUS_OK;
}
