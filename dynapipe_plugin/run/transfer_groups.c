#include "transfer_groups.h"

#include <string.h>

static bool is_receive(const PlanInstr* instr) {
    return instr->kind == INSTR_RECV_ACT || instr->kind == INSTR_RECV_GRAD || instr->kind == INSTR_RECV_FACT;
}

static bool is_send(const PlanInstr* instr) {
    return instr->kind == INSTR_SEND_ACT || instr->kind == INSTR_SEND_GRAD || instr->kind == INSTR_SEND_FACT;
}

static bool uses_link(const PlanInstr* instr, int32_t peer) {
    return (is_send(instr) || is_receive(instr)) && instr->peer == peer;
}

// What the other end of that instruction is called there.
static InstrKind opposite(InstrKind kind) {
    switch (kind) {
        case INSTR_SEND_ACT: return INSTR_RECV_ACT;
        case INSTR_RECV_ACT: return INSTR_SEND_ACT;
        case INSTR_SEND_GRAD: return INSTR_RECV_GRAD;
        case INSTR_RECV_GRAD: return INSTR_SEND_GRAD;
        case INSTR_SEND_FACT: return INSTR_RECV_FACT;
        default: return INSTR_SEND_FACT;
    }
}

// The chunk (or share of the head) whose input passes, in either direction: both ends name it.
static int32_t input_of(const Plan* plan, const PlanInstr* instr) {
    int32_t last = plan->placement.num_chunks - 1;
    if (instr->kind != INSTR_SEND_ACT && instr->kind != INSTR_RECV_GRAD) { return instr->chunk; }
    return instr->chunk < last ? instr->chunk + 1 : last + 1 + instr->peer % plan->P;
}

static bool same_transfer(const Plan* plan, const PlanInstr* mine, const PlanInstr* theirs) {
    return opposite((InstrKind)mine->kind) == (InstrKind)theirs->kind && mine->mb == theirs->mb &&
           input_of(plan, mine) == input_of(plan, theirs);
}

// Pairs on the link between rank and peer. room[k]: where the peer's k-th transfer over it stands.
static void find_on_link(uint8_t* out, const Plan* plan, int32_t rank, int32_t peer, int32_t* room) {
    const PlanRank *mine = &plan->ranks[rank], *theirs = &plan->ranks[peer];
    int32_t num_theirs = 0, k = 0;
    for (int32_t i = 0; i < theirs->num_instrs; i++) {
        if (uses_link(&theirs->instrs[i], rank)) { room[num_theirs++] = i; }
    }
    for (int32_t i = 0; i < mine->num_instrs; i++) {
        if (!uses_link(&mine->instrs[i], peer)) { continue; }
        int32_t here = k++;
        if (i + 1 >= mine->num_instrs || here + 1 >= num_theirs || !uses_link(&mine->instrs[i + 1], peer)) {
            continue;
        }
        const PlanInstr *a = &mine->instrs[i], *b = &mine->instrs[i + 1];
        const PlanInstr *a_there = &theirs->instrs[room[here]], *b_there = &theirs->instrs[room[here + 1]];
        bool adjacent = room[here + 1] == room[here] + 1;
        if (adjacent && is_send(a) != is_send(b) && same_transfer(plan, a, a_there) &&
            same_transfer(plan, b, b_there)) {
            out[i] = 1;
            i++;  // b is taken
            k++;
        }
    }
}

void transfer_groups_find(uint8_t* out, const Plan* plan, int32_t rank, int32_t* room) {
    memset(out, 0, (size_t)plan->ranks[rank].num_instrs);
    int32_t first = rank - rank % plan->P;
    bool is_peer[PLAN_MAX_STAGES] = {false};
    for (int32_t i = 0; i < plan->ranks[rank].num_instrs; i++) {
        int32_t s = plan->ranks[rank].instrs[i].peer - first;
        if (s >= 0 && s < plan->P) { is_peer[s] = true; }
    }
    for (int32_t s = 0; s < plan->P; s++) {
        if (is_peer[s]) { find_on_link(out, plan, rank, first + s, room); }
    }
}
