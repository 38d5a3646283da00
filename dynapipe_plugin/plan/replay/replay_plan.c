// replay_plan.c -- a plan replayed: durations, orders and transfers from its instruction lists.
#include <stdlib.h>

#include "../lists/plan_words.h"
#include "../pipe/pipe_schedule.h"
#include "replay_graph.h"
#include "stage_order.h"

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

static int64_t instr_ns(const Part* part, int32_t s, int32_t i) {
    const PlanInstr* instr = &part->plan->ranks[part->replica * part->plan->P + s].instrs[i];
    return part->instr_ns != NULL ? part->instr_ns[s][i] : instr->end_ns - instr->begin_ns;
}

static Status check_microbatch(const Part* part, int32_t s, int32_t i) {
    int32_t mb = part->plan->ranks[part->replica * part->plan->P + s].instrs[i].mb;
    if (mb >= part->begin && mb < part->end) { return STATUS_OK; }
    return FAIL(STATUS_INVALID_PLAN,
                "replica %d stage %d, instruction %d: micro-batch %d is another's ---> check the plan",
                part->replica, s, i, mb);
}

// --- links of their own: jobs and what leaves the stage ----------------------------------------------------

static Status list_links(ReplayLists* lists, const Part* part, int32_t s) {
    const PlanRank* rank = &part->plan->ranks[part->replica * part->plan->P + s];
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        ReplayItem item = {.mb = instr->mb - part->begin, .ns = instr_ns(part, s, i), .instant_ns = -1};
        if (plan_instr_is_job((InstrKind)instr->kind)) {
            item.kind = (uint8_t)plan_instr_job((InstrKind)instr->kind);
        } else if (instr->kind == INSTR_SEND_ACT) {
            item.kind = REPLAY_SEND_ACT;
        } else if (instr->kind == INSTR_SEND_GRAD) {
            item.kind = REPLAY_SEND_GRAD;
        } else {
            continue;
        }
        TRY(check_microbatch(part, s, i));
        lists->items[s][lists->num_items[s]++] = item;
    }
    return STATUS_OK;
}

// --- messages that are pulled: jobs and what the stage takes -----------------------------------------------

// send_ns[0]: of activations, [1]: of gradients; [P * M] by the sender, -1: it sends none.
static Status list_sends(int64_t* send_ns[2], const Part* part, Arena* arena) {
    int32_t P = part->plan->P, M = part->end - part->begin;
    for (int k = 0; k < 2; k++) {
        PIPE_NEW(send_ns[k], arena, int64_t, (int64_t)P * M);
        for (int32_t i = 0; i < P * M; i++) { send_ns[k][i] = -1; }
    }
    for (int32_t s = 0; s < P; s++) {
        const PlanRank* rank = &part->plan->ranks[part->replica * P + s];
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            bool is_grad = rank->instrs[i].kind == INSTR_SEND_GRAD;
            if (!is_grad && rank->instrs[i].kind != INSTR_SEND_ACT) { continue; }
            TRY(check_microbatch(part, s, i));
            send_ns[is_grad][s * M + rank->instrs[i].mb - part->begin] = instr_ns(part, s, i);
        }
    }
    return STATUS_OK;
}

static Status list_pulls(ReplayLists* lists, const Part* part, int32_t s, int64_t* const send_ns[2],
                         Arena* arena) {
    const PlanRank* rank = &part->plan->ranks[part->replica * part->plan->P + s];
    StageOrder order;
    TRY(stage_order(&order, part->plan, rank, arena));
    for (int32_t k = 0; k < order.num; k++) {
        int32_t i = order.instrs[k];
        const PlanInstr* instr = &rank->instrs[i];
        TRY(check_microbatch(part, s, i));
        ReplayItem item = {.mb = instr->mb - part->begin,
                           .instant_ns = instr->end_ns == instr->begin_ns ? instr->begin_ns : -1};
        if (plan_instr_is_job((InstrKind)instr->kind)) {
            item.kind = (uint8_t)plan_instr_job((InstrKind)instr->kind);
            item.ns = instr_ns(part, s, i);
        } else {
            bool is_grad = instr->kind == INSTR_RECV_GRAD;
            int32_t sender = is_grad ? s + 1 : s - 1;
            bool is_there = sender >= 0 && sender < lists->P;
            item.kind = is_grad ? REPLAY_SEND_GRAD : REPLAY_SEND_ACT;
            item.ns = is_there ? send_ns[is_grad][sender * lists->M + item.mb] : -1;
            if (item.ns < 0) {
                return FAIL(STATUS_INVALID_PLAN,
                            "replica %d stage %d, instruction %d: nobody sends that ---> check the plan",
                            part->replica, s, i);
            }
        }
        lists->items[s][lists->num_items[s]++] = item;
    }
    return STATUS_OK;
}

int64_t plan_tail_ns(const Plan* plan) {
    int64_t last_ns = plan->last_end_ns;
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
    const Plan* plan = part->plan;
    ReplayLists lists = {.P = plan->P, .M = part->end - part->begin, .pulls = plan->pulls};
    int64_t* send_ns[2];
    if (plan->pulls) { TRY(list_sends(send_ns, part, scratch)); }
    for (int32_t s = 0; s < plan->P; s++) {
        PIPE_NEW(lists.items[s], scratch, ReplayItem, plan->ranks[part->replica * plan->P + s].num_instrs);
        TRY(plan->pulls ? list_pulls(&lists, part, s, send_ns, scratch) : list_links(&lists, part, s));
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

static int compare_ns(const void* a, const void* b) {
    int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
    return (x > y) - (x < y);
}

// p50, p90 (the smallest makespan that at least 50 %, 90 % of the trials do not exceed), mean, worst. Sorts.
static void set_quantiles(ReplayResult* out, int64_t* makespan_ns, int32_t trials) {
    qsort(makespan_ns, (size_t)trials, sizeof *makespan_ns, compare_ns);
    int64_t whole = 0, rest = 0;  // of makespan / trials: the plain sum could overflow
    for (int32_t i = 0; i < trials; i++) {
        whole += makespan_ns[i] / trials;
        rest += makespan_ns[i] % trials;
    }
    out->mean_ns = whole + rest / trials;
    out->p50_ns = makespan_ns[((int64_t)trials * 5 + 9) / 10 - 1];
    out->p90_ns = makespan_ns[((int64_t)trials * 9 + 9) / 10 - 1];
    out->worst_ns = makespan_ns[trials - 1];
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
    set_quantiles(&result, sums.makespan_ns, noise->trials);
    result.planned_ns = sums.planned_ns;
    for (int32_t s = 0; s < plan->P; s++) {
        result.planned_wait_ns[s] = sums.planned_wait_ns[s] / plan->R;
        result.mean_wait_ns[s] = sums.wait_ns[s] / plan->R;
    }
    *out = result;
    return STATUS_OK;
}
