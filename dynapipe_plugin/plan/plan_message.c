#include "plan_message.h"

#include "plan.h"
#include "simulate.h"
#include "../../util/numbers.h"

static bool is_share(const Placement* placement, int32_t row) {
    return row >= placement->num_chunks;
}

bool plan_has_row(const Placement* placement, int32_t P, int32_t row) {
    if (row < 0 || row >= placement_num_rows(placement, P)) { return false; }
    return !is_share(placement, row) || placement_has_share(placement, row - placement->num_chunks);
}

bool plan_placement_is_sane(const Placement* placement, int32_t P) {
    bool sane = P >= 1 && P <= PLAN_MAX_STAGES && placement->num_chunks >= 1 &&
                placement->num_chunks <= PLAN_MAX_CHUNKS && placement->head < HEAD_COUNT;
    for (int32_t k = 0; sane && k < placement->num_chunks; k++) {
        sane = placement->stage_of[k] >= 0 && placement->stage_of[k] < P;
    }
    return sane;
}

// --- instructions ------------------------------------------------------------------------------------

// The row at the other end of an activation or a part of a gradient that concerns the last chunk.
static int32_t share_of_peer(const Placement* placement, int32_t P, const PlanInstr* instr) {
    return instr->peer < 0 ? -1 : placement->num_chunks + instr->peer % P;
}

bool plan_message_of(PlanMessage* out, const Placement* placement, int32_t P, const PlanInstr* instr) {
    int32_t K = placement->num_chunks, chunk = instr->chunk, row = chunk;
    int32_t behind = chunk < K - 1 ? chunk + 1 : chunk == K - 1 ? share_of_peer(placement, P, instr) : -1;
    PipeMessageKind kind;
    switch ((InstrKind)instr->kind) {
        case INSTR_SEND_ACT:
        case INSTR_WAIT_ACT: row = behind;  // fall through
        case INSTR_RECV_ACT: kind = MESSAGE_ACT; break;
        case INSTR_RECV_GRAD: row = behind;  // fall through
        case INSTR_SEND_GRAD:
        case INSTR_WAIT_GRAD: kind = MESSAGE_GRAD; break;
        case INSTR_SEND_FACT:
        case INSTR_WAIT_FACT:
        case INSTR_RECV_FACT: kind = MESSAGE_FACTORS; break;
        default: return false;
    }
    bool is_there = chunk >= 0 && row > 0 && plan_has_row(placement, P, row) &&
                    (kind != MESSAGE_FACTORS || (row >= K && placement->head == HEAD_BY_VOCABULARY));
    *out = (PlanMessage){.kind = (uint8_t)kind, .row = (int16_t)row};
    return is_there;
}

int32_t plan_instr_row(const Placement* placement, int32_t P, const PlanInstr* instr) {
    PlanMessage message;
    if (instr->kind > INSTR_REC) { return plan_message_of(&message, placement, P, instr) ? message.row : -1; }
    return plan_has_row(placement, P, instr->chunk) ? instr->chunk : -1;
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

// --- hashes ------------------------------------------------------------------------------------------

// A plan as one number: every field of plan.h, in the order of the text form.

static void add(uint64_t* hash, int64_t value) {
    *hash = hash_bytes(*hash, &value, sizeof value);
}

static void add_name(uint64_t* hash, const char* name) {
    size_t length = strlen(name);
    add(hash, (int64_t)length);
    *hash = hash_bytes(*hash, name, length);
}

static void add_placement(uint64_t* hash, const Plan* plan) {
    const Placement* placement = &plan->placement;
    add(hash, placement->num_chunks);
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        add(hash, placement->stage_of[k]);
        add(hash, placement->chunks[k].layer_begin);
        add(hash, placement->chunks[k].layer_end);
    }
    add(hash, placement->head);
    for (int32_t s = 0; s <= plan->P && placement->head != HEAD_WHOLE; s++) {
        add(hash, placement->head_begin[s]);
    }
}

static void add_microbatch(uint64_t* hash, const Plan* plan, const PlanMicrobatch* mb) {
    add(hash, mb->replica);
    add(hash, mb->layout);
    add(hash, mb->sequence_begin);
    add(hash, mb->sequence_end);
    add(hash, mb->shape.num_seqs);
    add(hash, mb->shape.enc_tokens);
    add(hash, mb->shape.enc_squares);
    add(hash, mb->shape.dec_tokens);
    add(hash, mb->shape.dec_squares);
    add(hash, mb->shape.cross_products);
    add(hash, mb->shape.supervised_tokens);
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) { add(hash, mb->recompute[k]); }
}

static void add_rank(uint64_t* hash, const PlanRank* rank) {
    add(hash, rank->num_instrs);
    add(hash, rank->num_buffers);
    add(hash, rank->arena_bytes);
    add(hash, rank->state_bytes);
    if (rank->own_limit_bytes > 0) { add(hash, rank->own_limit_bytes); }
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        add(hash, instr->kind);
        add(hash, instr->chunk);
        add(hash, instr->mb);
        add(hash, instr->peer);
        add(hash, instr->begin_ns);
        add(hash, instr->end_ns);
    }
    for (int32_t i = 0; i < rank->num_buffers; i++) {
        const PlanBuffer* buffer = &rank->buffers[i];
        add(hash, buffer->kind);
        add(hash, buffer->chunk);
        add(hash, buffer->mb);
        add(hash, buffer->offset_bytes);
        add(hash, buffer->num_bytes);
        add(hash, buffer->instr_begin);
        add(hash, buffer->instr_end);
    }
}

static uint64_t decisions(const Plan* plan) {
    uint64_t hash = HASH_SEED;
    add(&hash, plan->P);
    add(&hash, plan->R);
    add(&hash, plan->M);
    add(&hash, plan->N);
    add(&hash, plan->num_sequences);
    add(&hash, plan->num_segments);
    add_name(&hash, plan->policy);
    add_name(&hash, plan->schedule);
    if (plan->pulls) { add(&hash, 1); }
    add(&hash, plan->memory_limit_bytes);
    add(&hash, plan->makespan_ns);
    add(&hash, plan->bound_ns);
    add_placement(&hash, plan);
    for (int32_t m = 0; m < plan->M; m++) { add_microbatch(&hash, plan, &plan->mbs[m]); }
    for (int32_t i = 0; i < plan->num_sequences; i++) {
        add(&hash, plan->sequences[i].segment_begin);
        add(&hash, plan->sequences[i].segment_end);
        add(&hash, plan->sequences[i].enc_tokens);
        add(&hash, plan->sequences[i].dec_tokens);
    }
    for (int32_t i = 0; i < plan->num_segments; i++) {
        add(&hash, plan->segments[i].sample_idx);
        add(&hash, plan->segments[i].first_token);
        add(&hash, plan->segments[i].num_tokens);
    }
    return hash;
}

uint64_t plan_hash(const Plan* plan) {
    uint64_t hash = decisions(plan);
    for (int32_t r = 0; r < plan->P * plan->R; r++) { add_rank(&hash, &plan->ranks[r]); }
    return hash_finish(hash);
}

uint64_t plan_hash_decisions(const Plan* plan) {
    return hash_finish(decisions(plan));
}

uint64_t plan_hash_replica(const Plan* plan, int32_t replica) {
    uint64_t hash = HASH_SEED;
    for (int32_t s = 0; s < plan->P; s++) { add_rank(&hash, &plan->ranks[replica * plan->P + s]); }
    return hash_finish(hash);
}
