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

static Status check_bytes(const Plan* plan, const PlanReplicaPlaces* replica, int32_t rank, int32_t m) {
    int32_t s = rank % plan->P;
    const PlanPlaces *here = plan_places(replica, s, m), *next = plan_places(replica, s + 1, m);
    const PlanBuffer *mine = plan->ranks[rank].buffers, *theirs = plan->ranks[rank + 1].buffers;
    const struct { BufferKind mine, theirs; } pairs[] = {{BUFFER_OUT, BUFFER_IN}, {BUFFER_DOUT, BUFFER_DIN}};
    for (int32_t i = 0; i < 2; i++) {
        int64_t my_bytes = mine[here->buffer[pairs[i].mine]].num_bytes;
        int64_t their_bytes = theirs[next->buffer[pairs[i].theirs]].num_bytes;
        if (my_bytes == their_bytes) { continue; }
        return FAIL(STATUS_INVALID_PLAN, "ranks %d and %d, micro-batch %d: %s has %lld bytes, %s %lld", rank,
                    rank + 1, m, plan_buffer_words[pairs[i].mine], (long long)my_bytes,
                    plan_buffer_words[pairs[i].theirs], (long long)their_bytes);
    }
    return STATUS_OK;
}

static bool is_through(const RankState* state, int32_t instr) {
    return instr < 0 || state->through[instr];
}

// Run one rank until it must wait. True if it got anywhere.
static bool advance(const Plan* plan, const PlanReplicaPlaces* replica, RankState* state, int32_t rank) {
    const PlanRank* list = &plan->ranks[rank];
    int32_t before = state->next;
    for (; state->next < list->num_instrs; state->next++) {
        const PlanInstr* instr = &list->instrs[state->next];
        const int32_t* at = plan_places(replica, rank % plan->P, instr->mb)->at;
        bool can_run = true;
        switch ((InstrKind)instr->kind) {
            case INSTR_FWD:
            case INSTR_REC: can_run = is_through(state, at[INSTR_RECV_ACT]); break;
            case INSTR_BWD:
            case INSTR_WGT: can_run = is_through(state, at[INSTR_RECV_GRAD]); break;
            case INSTR_WAIT_ACT: can_run = is_through(state, at[INSTR_SEND_ACT]); break;
            case INSTR_WAIT_GRAD: can_run = is_through(state, at[INSTR_SEND_GRAD]); break;
            default: state->ops[state->posted++] = state->next; break;
        }
        if (!can_run) { break; }
    }
    return state->next > before;
}

// The first transfers of two neighbours that are not through yet: do they meet?
static bool meet(const Plan* plan, RankState* a, RankState* b, int32_t rank) {
    if (a->done == a->posted || b->done == b->posted) { return false; }
    const PlanInstr* mine = &plan->ranks[rank].instrs[a->ops[a->done]];
    const PlanInstr* theirs = &plan->ranks[rank + 1].instrs[b->ops[b->done]];
    bool forward = mine->kind == INSTR_SEND_ACT && theirs->kind == INSTR_RECV_ACT;
    bool backward = mine->kind == INSTR_RECV_GRAD && theirs->kind == INSTR_SEND_GRAD;
    if (!(forward || backward) || mine->mb != theirs->mb) { return false; }
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
        used += snprintf(text + used, sizeof text - (size_t)used, "%srank %d at %s mb %d",
                         used > 0 ? ", " : "", r, plan_instr_words[list->instrs[i].kind], list->instrs[i].mb);
    }
    return FAIL(STATUS_DEADLOCK, "plan: transfers wait for each other: %s", text);
}

static Status run_replica(const Plan* plan, const PlanReplicaPlaces* replica, RankState* states,
                          int32_t first_rank) {
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t r = first_rank; r < first_rank + plan->P; r++) {
            moved |= advance(plan, replica, &states[r], r);
            while (r > first_rank && meet(plan, &states[r - 1], &states[r], r - 1)) { moved = true; }
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
    PIPE_NEW(states, arena, RankState, num_ranks);
    for (int32_t r = 0; r < num_ranks; r++) {
        PIPE_NEW(states[r].ops, arena, int32_t, plan->ranks[r].num_instrs);
        PIPE_NEW(states[r].through, arena, uint8_t, plan->ranks[r].num_instrs);
    }
    for (int32_t m = 0; m < plan->M; m++) {
        for (int32_t s = 0; s < plan->P - 1; s++) {
            int32_t r = plan->mbs[m].replica;
            if (!plan_has_replica(plan, r)) { break; }
            TRY(check_bytes(plan, &replicas[r], r * plan->P + s, m));
        }
    }
    for (int32_t r = 0; r < plan->R; r++) {
        if (plan_has_replica(plan, r)) { TRY(run_replica(plan, &replicas[r], states, r * plan->P)); }
    }
    return STATUS_OK;
}
