#include "plan_message.h"

#include "plan.h"
#include "simulate.h"

static bool is_share(const Placement* placement, int32_t row) {
    return row >= placement->num_chunks;
}

bool plan_has_row(const Placement* placement, int32_t P, int32_t row) {
    if (row < 0 || row >= placement_num_rows(placement, P)) { return false; }
    return !is_share(placement, row) || placement_has_share(placement, row - placement->num_chunks);
}

// --- instructions ------------------------------------------------------------------------------------

bool plan_message_of(PlanMessage* out, const Placement* placement, int32_t P, const PlanInstr* instr) {
    int32_t K = placement->num_chunks, chunk = instr->chunk, row = chunk;
    if (instr->kind < INSTR_RECV_ACT || instr->kind >= INSTR_COUNT) { return false; }
    uint8_t kind = plan_instr_message(instr->kind);
    bool receives = plan_instr_is_recv(instr->kind);
    // Who sends an activation, and who receives a gradient, names the chunk before its row.
    if (kind == MESSAGE_ACT ? !receives : kind == MESSAGE_GRAD && receives) {
        row = chunk < K - 1 ? chunk + 1 : chunk == K - 1 && instr->peer >= 0 ? K + instr->peer % P : -1;
    }
    *out = (PlanMessage){.kind = kind, .row = (int16_t)row};
    return chunk >= 0 && row > 0 && plan_has_row(placement, P, row) &&
           (kind != MESSAGE_FACTORS || (row >= K && placement->head == HEAD_BY_VOCABULARY));
}

// --- jobs --------------------------------------------------------------------------------------------

static PlanJobAt job_at(const Placement* placement, JobKind kind, int32_t row) {
    return (PlanJobAt){(uint8_t)kind, (int16_t)row, (int16_t)placement_stage_of(placement, row)};
}

PlanJobAt plan_message_maker(const Placement* placement, PlanMessage message) {
    int32_t last = placement->num_chunks - 1, row = message.row;
    bool share = is_share(placement, row);
    switch ((PipeMessageKind)message.kind) {
        case MESSAGE_ACT: return job_at(placement, JOB_F, share ? last : row - 1);
        case MESSAGE_GRAD: return job_at(placement, share ? JOB_F : JOB_B, row);
        default: return job_at(placement, JOB_B, last);
    }
}

PlanJobAt plan_message_reader(const Placement* placement, PlanMessage message) {
    int32_t last = placement->num_chunks - 1, row = message.row;
    switch ((PipeMessageKind)message.kind) {
        case MESSAGE_ACT: return job_at(placement, JOB_F, row);
        case MESSAGE_GRAD: return job_at(placement, JOB_B, is_share(placement, row) ? last : row - 1);
        default: return job_at(placement, JOB_W, row);
    }
}

static int32_t add_shares(PlanMessage* out, int32_t num, const Placement* placement, int32_t P,
                          PipeMessageKind kind) {
    for (int32_t s = 0; s < P && placement->head != HEAD_WHOLE; s++) {
        if (!placement_has_share(placement, s)) { continue; }
        out[num++] = (PlanMessage){(uint8_t)kind, (int16_t)(placement->num_chunks + s)};
    }
    return num;
}

int32_t plan_job_reads(PlanMessage out[PLAN_MAX_MESSAGES], const Placement* placement, int32_t P,
                       JobKind kind, int32_t chunk) {
    bool share = is_share(placement, chunk), last = chunk == placement->num_chunks - 1;
    if (kind == JOB_F && chunk > 0) {
        out[0] = (PlanMessage){MESSAGE_ACT, (int16_t)chunk};
        return 1;
    }
    if (kind == JOB_B && !share && !last) {
        out[0] = (PlanMessage){MESSAGE_GRAD, (int16_t)(chunk + 1)};
        return 1;
    }
    if (kind == JOB_B && last) { return add_shares(out, 0, placement, P, MESSAGE_GRAD); }
    if (kind == JOB_W && share && placement->head == HEAD_BY_VOCABULARY) {
        out[0] = (PlanMessage){MESSAGE_FACTORS, (int16_t)chunk};
        return 1;
    }
    return 0;
}

int32_t plan_job_makes(PlanMessage out[PLAN_MAX_MESSAGES], const Placement* placement, int32_t P,
                       JobKind kind, int32_t chunk) {
    bool share = is_share(placement, chunk), last = chunk == placement->num_chunks - 1;
    int32_t num = 0;
    if (kind == JOB_F && (share || !last)) {
        out[num++] = share ? (PlanMessage){MESSAGE_GRAD, (int16_t)chunk}
                           : (PlanMessage){MESSAGE_ACT, (int16_t)(chunk + 1)};
    } else if (kind == JOB_F) {
        num = add_shares(out, num, placement, P, MESSAGE_ACT);
    } else if (kind == JOB_B && !share) {
        if (chunk > 0) { out[num++] = (PlanMessage){MESSAGE_GRAD, (int16_t)chunk}; }
        bool factors = last && placement->head == HEAD_BY_VOCABULARY;
        if (factors) { num = add_shares(out, num, placement, P, MESSAGE_FACTORS); }
    }
    return num;
}
