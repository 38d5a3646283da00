// plan_check_comm.c -- messages agree at both ends, and the lists run to their end under the hardest rules a
// transport may have: a send is done only together with its receive (no buffers in between), and each rank's
// transfers happen one after the other in list order (NCCL on one stream).
#include "../pipe/pipe_schedule.h"
#include "plan_check_parts.h"
#include "plan_words.h"

typedef struct {
    int32_t next;      // instruction that the rank has reached
    int32_t posted;    // transfers that it has started: ops[0 .. posted)
    int32_t done;      // of these, that are through
    int32_t* ops;      // instruction indices of started transfers
    uint8_t* through;  // [num_instrs] is this transfer through?
} RankState;

// --- messages have one size at both ends ------------------------------------------------------------------

typedef struct {
    const Plan* plan;
    const PlanReplicaPlaces* replica;
    int32_t first_rank, m;
} Sizes;

static const PlanBuffer* buffer_of(const Sizes* sizes, int32_t row, BufferKind kind) {
    const PlanRank* rank = &sizes->plan->ranks[sizes->first_rank + plan_stage_of_place(sizes->plan, row)];
    int32_t i = plan_places(sizes->replica, row, sizes->m)->buffer[kind];
    return i < 0 ? NULL : &rank->buffers[i];
}

// Where both are there.
static Status check_pair(const Sizes* sizes, int32_t row, BufferKind kind, int32_t other_row,
                         BufferKind other_kind) {
    const PlanBuffer *one = buffer_of(sizes, row, kind), *other = buffer_of(sizes, other_row, other_kind);
    if (one == NULL || other == NULL || one->num_bytes == other->num_bytes) { return STATUS_OK; }
    return FAIL(STATUS_INVALID_PLAN,
                "ranks %d and %d, micro-batch %d: %s of chunk %d has %lld bytes, %s of chunk %d %lld",
                sizes->first_rank + plan_stage_of_place(sizes->plan, row),
                sizes->first_rank + plan_stage_of_place(sizes->plan, other_row), sizes->m,
                plan_buffer_words[kind], one->chunk, (long long)one->num_bytes, plan_buffer_words[other_kind],
                other->chunk, (long long)other->num_bytes);
}

// By rows a share has some of the rows that the last chunk sends.
static Status check_rows(const Sizes* sizes, int32_t row) {
    int64_t all_bytes = buffer_of(sizes, sizes->plan->placement.num_chunks - 1, BUFFER_OUT)->num_bytes;
    const PlanBuffer* in = buffer_of(sizes, row, BUFFER_IN);
    TRY(check_pair(sizes, row, BUFFER_IN, row, BUFFER_DIN));
    if (in == NULL || in->num_bytes <= all_bytes) { return STATUS_OK; }
    return FAIL(STATUS_INVALID_PLAN,
                "rank %d, micro-batch %d: in of chunk %d has %lld bytes, more than the %lld of all rows",
                sizes->first_rank + plan_stage_of_place(sizes->plan, row), sizes->m, row,
                (long long)in->num_bytes, (long long)all_bytes);
}

static Status check_bytes(const Sizes* sizes) {
    const Plan* plan = sizes->plan;
    int32_t K = plan->placement.num_chunks;
    for (int32_t k = 0; k < K - 1; k++) {
        TRY(check_pair(sizes, k, BUFFER_OUT, k + 1, BUFFER_IN));
        TRY(check_pair(sizes, k, BUFFER_DOUT, k + 1, BUFFER_IN));
        TRY(check_pair(sizes, k, BUFFER_DOUT, k + 1, BUFFER_DIN));
    }
    if (!plan_shares_head(plan)) { return STATUS_OK; }
    TRY(check_pair(sizes, K - 1, BUFFER_OUT, K - 1, BUFFER_DOUT));
    for (int32_t row = K; row < K + plan->P; row++) {
        if (plan_stage_of_place(plan, row) < 0) { continue; }
        if (!plan_is_by_vocabulary(plan)) {
            TRY(check_rows(sizes, row));
            continue;
        }
        TRY(check_pair(sizes, K - 1, BUFFER_OUT, row, BUFFER_IN));
        TRY(check_pair(sizes, row + plan->P, BUFFER_PART, row, BUFFER_DIN));
        TRY(check_pair(sizes, row + plan->P, BUFFER_FACT, row, BUFFER_FACT));
    }
    return STATUS_OK;
}

// --- the lists run ----------------------------------------------------------------------------------------

static bool is_through(const RankState* state, int32_t instr) {
    return instr < 0 || state->through[instr];
}

// All parts of the gradient that the last chunk waits for.
static bool parts_are_there(const Plan* plan, const PlanReplicaPlaces* replica, const RankState* state,
                            int32_t m) {
    int32_t first_end = plan->placement.num_chunks + plan->P;
    for (int32_t end = first_end; end < first_end + plan->P; end++) {
        if (plan_stage_of_place(plan, end) < 0) { continue; }
        if (!is_through(state, plan_places(replica, end, m)->at[INSTR_RECV_GRAD])) { return false; }
    }
    return true;
}

static bool job_can_run(const Plan* plan, const PlanReplicaPlaces* replica, const RankState* state,
                        const PlanInstr* instr) {
    const int32_t* at = plan_places(replica, instr->chunk, instr->mb)->at;
    if (instr->kind == INSTR_FWD || instr->kind == INSTR_REC) {
        return is_through(state, at[INSTR_RECV_ACT]);
    }
    if (!is_through(state, at[INSTR_RECV_GRAD]) || !is_through(state, at[INSTR_RECV_FACT])) { return false; }
    bool waits = plan_shares_head(plan) && instr->chunk == plan->placement.num_chunks - 1;
    return !waits || parts_are_there(plan, replica, state, instr->mb);
}

// Run one rank until it must wait. True if it got anywhere.
static bool advance(const Plan* plan, const PlanReplicaPlaces* replica, RankState* state, int32_t rank) {
    const PlanRank* list = &plan->ranks[rank];
    int32_t before = state->next;
    for (; state->next < list->num_instrs; state->next++) {
        const PlanInstr* instr = &list->instrs[state->next];
        InstrKind kind = (InstrKind)instr->kind;
        int32_t row = plan_place_of(&plan->placement, plan->P, kind, instr->chunk, instr->peer % plan->P);
        const int32_t* at = plan_places(replica, row, instr->mb)->at;
        bool can_run = true;
        switch (kind) {
            case INSTR_WAIT_ACT: can_run = is_through(state, at[INSTR_SEND_ACT]); break;
            case INSTR_WAIT_GRAD: can_run = is_through(state, at[INSTR_SEND_GRAD]); break;
            case INSTR_WAIT_FACT: can_run = is_through(state, at[INSTR_SEND_FACT]); break;
            default:
                if (plan_instr_is_job(kind)) {
                    can_run = job_can_run(plan, replica, state, instr);
                } else {
                    state->ops[state->posted++] = state->next;
                }
        }
        if (!can_run) { break; }
    }
    return state->next > before;
}

// The first transfer of a rank that is not through yet: is it the first of the rank at its other end, too?
static bool meet(const Plan* plan, RankState* states, int32_t rank) {
    RankState* a = &states[rank];
    if (a->done == a->posted) { return false; }
    const PlanInstr* mine = &plan->ranks[rank].instrs[a->ops[a->done]];
    RankState* b = &states[mine->peer];
    if (b->done == b->posted) { return false; }
    const PlanInstr* theirs = &plan->ranks[mine->peer].instrs[b->ops[b->done]];
    PlanMessage my_message, their_message;
    bool meets = theirs->peer == rank && theirs->mb == mine->mb &&
                 plan_instr_is_send(theirs->kind) != plan_instr_is_send(mine->kind) &&
                 plan_message_of(&my_message, &plan->placement, plan->P, mine) &&
                 plan_message_of(&their_message, &plan->placement, plan->P, theirs) &&
                 my_message.kind == their_message.kind && my_message.row == their_message.row;
    if (!meets) { return false; }
    a->through[a->ops[a->done++]] = 1;
    b->through[b->ops[b->done++]] = 1;
    return true;
}

static Status report(const Plan* plan, const RankState* states, int32_t first_rank) {
    char text[700] = "";
    int32_t used = 0;
    for (int32_t r = first_rank; r < first_rank + plan->P; r++) {
        const RankState* state = &states[r];
        const PlanRank* list = &plan->ranks[r];
        int32_t i = state->done < state->posted ? state->ops[state->done] : state->next;
        if (i >= list->num_instrs || used >= (int32_t)sizeof text) { continue; }
        used += snprintf(text + used, sizeof text - (size_t)used, "%srank %d at %s chunk %d mb %d",
                         used > 0 ? ", " : "", r, plan_instr_words[list->instrs[i].kind],
                         list->instrs[i].chunk, list->instrs[i].mb);
    }
    return FAIL(STATUS_DEADLOCK, "plan: transfers wait for each other: %s", text);
}

static Status run_replica(const Plan* plan, const PlanReplicaPlaces* replica, RankState* states,
                          int32_t first_rank) {
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t r = first_rank; r < first_rank + plan->P; r++) {
            moved |= advance(plan, replica, &states[r], r);
            while (meet(plan, states, r)) { moved = true; }
        }
    }
    for (int32_t r = first_rank; r < first_rank + plan->P; r++) {
        if (states[r].next < plan->ranks[r].num_instrs || states[r].done < states[r].posted) {
            return report(plan, states, first_rank);
        }
    }
    return STATUS_OK;
}

Status plan_check_comm(const Plan* plan, const PlanReplicaPlaces* replicas, Arena* arena) {
    int32_t num_ranks = plan->P * plan->R;
    RankState* states;
    ARENA_TRY_NEW(states, arena, RankState, num_ranks);
    for (int32_t r = 0; r < num_ranks; r++) {
        ARENA_TRY_NEW(states[r].ops, arena, int32_t, plan->ranks[r].num_instrs);
        ARENA_TRY_NEW(states[r].through, arena, uint8_t, plan->ranks[r].num_instrs);
    }
    for (int32_t m = 0; m < plan->M; m++) {
        int32_t r = plan->mbs[m].replica;
        if (!plan_has_replica(plan, r)) { continue; }
        TRY(check_bytes(&(Sizes){plan, &replicas[r], r * plan->P, m}));
    }
    for (int32_t r = 0; r < plan->R; r++) {
        if (plan_has_replica(plan, r)) { TRY(run_replica(plan, &replicas[r], states, r * plan->P)); }
    }
    return STATUS_OK;
}
