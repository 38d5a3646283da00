#include "replica_lists.h"

// A rank that does not fit goes from one to the next. What it waits for then is held longer by its sender,
// which may come to be over by that.
static const int32_t jobs_ahead[] = {INT32_MAX, 3, 1, 0};
enum { NUM_LEVELS = sizeof jobs_ahead / sizeof jobs_ahead[0], MAX_ROUNDS = 8 };

// False: no rank is over that could post later.
static bool next_levels(int32_t levels[PLAN_MAX_STAGES], const PlanRank* ranks,
                        const ReplicaListsInput* input) {
    bool any = false;
    for (int32_t s = 0; s < input->problem->P; s++) {
        if (ranks[s].arena_bytes <= input->enough_bytes[s] || levels[s] == NUM_LEVELS - 1) { continue; }
        levels[s]++;
        any = true;
    }
    return any;
}

static Status make_lists(PlanRank* ranks, const ReplicaListsInput* input, const PipeTimeline* timeline,
                         const CommOrder* order, const int32_t* levels, Arena* arena) {
    RankListInput one = {.problem = input->problem,
                         .schedule = input->schedule,
                         .timeline = timeline,
                         .order = order,
                         .bytes = input->bytes,
                         .first_mb = input->first_mb,
                         .first_rank = input->first_rank,
                         .with_slack = input->with_slack};
    for (int32_t s = 0; s < input->problem->P; s++) {
        one.is_late = levels[s] > 0;
        TRY(rank_list_make(&ranks[s], &one, s, input->scratch_bytes[s], input->enough_bytes[s], arena));
    }
    return STATUS_OK;
}

static Status make(PlanRank* ranks, PipeTimeline* timeline, const ReplicaListsInput* input, Arena* arena,
                   Arena* scratch) {
    CommOrder order;
    PipeTimeline late;
    int32_t levels[PLAN_MAX_STAGES] = {0}, ahead[PLAN_MAX_STAGES];
    TRY(comm_order_make(&order, input->problem, input->schedule, timeline, scratch));
    TRY(make_lists(ranks, input, timeline, &order, levels, arena));
    bool is_late = false;
    for (int32_t round = 0; round < MAX_ROUNDS && next_levels(levels, ranks, input); round++) {
        is_late = true;
        for (int32_t s = 0; s < input->problem->P; s++) { ahead[s] = jobs_ahead[levels[s]]; }
        TRY(comm_order_make_late(&order, &late, input->problem, input->schedule, timeline, ahead, arena));
        TRY(make_lists(ranks, input, &late, &order, levels, arena));
    }
    if (is_late) { *timeline = late; }
    return STATUS_OK;
}

Status replica_lists_make(PlanRank* ranks, PipeTimeline* timeline, const ReplicaListsInput* input,
                          Arena* arena) {
    Arena scratch = {0};  // else the order would stay with the plan
    Status status = make(ranks, timeline, input, arena, &scratch);
    arena_free(&scratch);
    return status;
}

int64_t replica_lists_makespan(const PlanRank* ranks, const PipeProblem* problem,
                               const PipeSchedule* schedule, const PipeTimeline* simulated) {
    int64_t makespan_ns = simulated->makespan_ns;
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t work_ns = 0, end_ns = 0;
        for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
            work_ns += simulated->job[s][i].end_ns - simulated->job[s][i].begin_ns;
        }
        for (int32_t i = 0; i < ranks[s].num_instrs; i++) {
            const PlanInstr* instr = &ranks[s].instrs[i];
            if (instr->kind > INSTR_REC) { continue; }
            work_ns -= instr->end_ns - instr->begin_ns;
            end_ns = instr->end_ns;
        }
        if (work_ns != 0) { return simulated->makespan_ns; }
        end_ns += problem->tail_ns[s];
        makespan_ns = end_ns > makespan_ns ? end_ns : makespan_ns;
    }
    return makespan_ns;
}
