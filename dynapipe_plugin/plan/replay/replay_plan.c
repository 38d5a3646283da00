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

// The item of instruction i of stage s: a job, or the transfer that it is about.
static Status item_of(ReplayItem* out, const Part* part, int32_t s, int32_t i) {
    const Plan* plan = part->plan;
    const PlanInstr* instr = &plan->ranks[part->replica * plan->P + s].instrs[i];
    PlanMessage message = {.row = instr->chunk};
    if (instr->mb < part->begin || instr->mb >= part->end) {
        return FAIL(STATUS_INVALID_PLAN,
                    "replica %d stage %d, instruction %d: micro-batch %d is another's ---> check the plan",
                    part->replica, s, i, instr->mb);
    }
    bool is_job = plan_instr_is_job((InstrKind)instr->kind);
    bool is_there = is_job ? plan_has_row(&plan->placement, plan->P, instr->chunk)
                           : plan_message_of(&message, &plan->placement, plan->P, instr);
    if (!is_there) {
        return FAIL(STATUS_INVALID_PLAN,
                    "replica %d stage %d, instruction %d: there is no such chunk ---> check the plan",
                    part->replica, s, i);
    }
    JobKind job = plan_instr_job((InstrKind)instr->kind);
    *out = (ReplayItem){.kind = (uint8_t)(is_job ? (int)job : JOB_COUNT + message.kind),
                        .chunk = message.row,
                        .mb = instr->mb - part->begin,
                        .ns = instr_ns(part, s, i),
                        .instant_ns = -1};
    return STATUS_OK;
}

// --- links of their own: jobs and what leaves the stage ----------------------------------------------------

// [rows * M] of every message of a kind, -1.
static Status message_table(int64_t* table[PLAN_MESSAGE_KINDS], const Part* part, Arena* arena) {
    int64_t num_rows = placement_num_rows(&part->plan->placement, part->plan->P);
    int64_t num_cells = num_rows * (part->end - part->begin);
    for (int k = 0; k < PLAN_MESSAGE_KINDS; k++) {
        ARENA_TRY_NEW(table[k], arena, int64_t, num_cells);
        for (int64_t i = 0; i < num_cells; i++) { table[k][i] = -1; }
    }
    return STATUS_OK;
}

static int64_t* cell_of(int64_t* const table[PLAN_MESSAGE_KINDS], const Part* part, const ReplayItem* item) {
    return &table[item->kind - JOB_COUNT][(int64_t)item->chunk * (part->end - part->begin) + item->mb];
}

// posted[kind]: how many jobs of its receiver stand before a receive; -1: nobody posts it.
static Status list_posts(int64_t* posted[PLAN_MESSAGE_KINDS], const Part* part, Arena* arena) {
    int32_t P = part->plan->P;
    TRY(message_table(posted, part, arena));
    for (int32_t s = 0; s < P; s++) {
        const PlanRank* rank = &part->plan->ranks[part->replica * P + s];
        int32_t num_jobs = 0;
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            ReplayItem item;
            num_jobs += plan_instr_is_job((InstrKind)rank->instrs[i].kind);
            if (!plan_instr_is_recv(rank->instrs[i].kind)) { continue; }
            TRY(item_of(&item, part, s, i));
            *cell_of(posted, part, &item) = num_jobs;
        }
    }
    return STATUS_OK;
}

static Status list_links(ReplayLists* lists, const Part* part, int32_t s,
                         int64_t* const posted[PLAN_MESSAGE_KINDS], Arena* arena) {
    const PlanRank* rank = &part->plan->ranks[part->replica * part->plan->P + s];
    ARENA_TRY_NEW(lists->sends[s], arena, ReplaySend, rank->num_instrs);
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (plan_instr_is_job((InstrKind)instr->kind)) {
            TRY(item_of(&lists->items[s][lists->num_items[s]++], part, s, i));
        } else if (plan_instr_is_send(instr->kind)) {
            ReplaySend* send = &lists->sends[s][lists->num_sends[s]++];
            TRY(item_of(&send->item, part, s, i));
            send->sent = lists->num_items[s];
            send->posted = (int32_t)*cell_of(posted, part, &send->item);
            if (send->posted >= 0) { continue; }
            return FAIL(STATUS_INVALID_PLAN,
                        "replica %d stage %d, instruction %d: nobody receives that ---> check the plan",
                        part->replica, s, i);
        }
    }
    return STATUS_OK;
}

// --- messages that are pulled: jobs and what the stage takes -----------------------------------------------

// send_ns[kind]: [rows * M] of every message, -1: nobody sends it.
static Status list_sends(int64_t* send_ns[PLAN_MESSAGE_KINDS], const Part* part, Arena* arena) {
    int32_t P = part->plan->P;
    TRY(message_table(send_ns, part, arena));
    for (int32_t s = 0; s < P; s++) {
        const PlanRank* rank = &part->plan->ranks[part->replica * P + s];
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            ReplayItem item;
            if (!plan_instr_is_send(rank->instrs[i].kind)) { continue; }
            TRY(item_of(&item, part, s, i));
            *cell_of(send_ns, part, &item) = item.ns;
        }
    }
    return STATUS_OK;
}

static Status list_pulls(ReplayLists* lists, const Part* part, int32_t s,
                         int64_t* const send_ns[PLAN_MESSAGE_KINDS], Arena* arena) {
    const PlanRank* rank = &part->plan->ranks[part->replica * part->plan->P + s];
    StageOrder order;
    TRY(stage_order(&order, part->plan, rank, arena));
    for (int32_t k = 0; k < order.num; k++) {
        int32_t i = order.instrs[k];
        const PlanInstr* instr = &rank->instrs[i];
        ReplayItem item;
        TRY(item_of(&item, part, s, i));
        item.instant_ns = instr->end_ns == instr->begin_ns ? instr->begin_ns : -1;
        if (item.kind >= JOB_COUNT) {
            item.ns = *cell_of(send_ns, part, &item);
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
    ReplayLists lists = {
        .P = plan->P, .M = part->end - part->begin, .placement = &plan->placement, .pulls = plan->pulls};
    int64_t* messages[PLAN_MESSAGE_KINDS];
    if (!plan_placement_is_sane(&plan->placement, plan->P)) {
        return FAIL(STATUS_INVALID_PLAN, "plan: chunks on stages that are not there ---> check the plan");
    }
    TRY(plan->pulls ? list_sends(messages, part, scratch) : list_posts(messages, part, scratch));
    for (int32_t s = 0; s < plan->P; s++) {
        ARENA_TRY_NEW(lists.items[s], scratch, ReplayItem,
                      plan->ranks[part->replica * plan->P + s].num_instrs);
        TRY(plan->pulls ? list_pulls(&lists, part, s, messages, scratch)
                        : list_links(&lists, part, s, messages, scratch));
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
    ARENA_TRY_NEW(sums.makespan_ns, scratch, int64_t, noise->trials);
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
