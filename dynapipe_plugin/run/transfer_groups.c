#include "transfer_groups.h"

#include <string.h>

static bool is_transfer(const PlanInstr* instr) {
    return instr->kind >= INSTR_RECV_ACT && instr->kind <= INSTR_SEND_GRAD;
}

static bool uses_link(const PlanInstr* instr, int32_t peer) {
    return is_transfer(instr) && instr->peer == peer;
}

// What the other end of that instruction is called there.
static InstrKind opposite(InstrKind kind) {
    return kind == INSTR_SEND_ACT    ? INSTR_RECV_ACT
           : kind == INSTR_RECV_ACT  ? INSTR_SEND_ACT
           : kind == INSTR_SEND_GRAD ? INSTR_RECV_GRAD
                                     : INSTR_SEND_GRAD;
}

static bool is_send(const PlanInstr* instr) {
    return instr->kind == INSTR_SEND_ACT || instr->kind == INSTR_SEND_GRAD;
}

static bool same_transfer(const PlanInstr* mine, const PlanInstr* theirs) {
    return opposite((InstrKind)mine->kind) == (InstrKind)theirs->kind && mine->mb == theirs->mb;
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
        if (adjacent && is_send(a) != is_send(b) && same_transfer(a, a_there) && same_transfer(b, b_there)) {
            out[i] = 1;
            i++;  // b is taken
            k++;
        }
    }
}

void transfer_groups_find(uint8_t* out, const Plan* plan, int32_t rank, int32_t* room) {
    memset(out, 0, (size_t)plan->ranks[rank].num_instrs);
    int32_t stage = rank % plan->P;
    if (stage > 0) { find_on_link(out, plan, rank, rank - 1, room); }
    if (stage < plan->P - 1) { find_on_link(out, plan, rank, rank + 1, room); }
}
