// toy_buffers.c -- buffers of the toy model's plans, as tightly as lifetimes allow.
#include "toy_plan_parts.h"

// peer -1: any.
static int32_t place_of(const PlanRank* list, InstrKind kind, int32_t chunk, int32_t m, int32_t peer) {
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        bool is_it = instr->kind == kind && instr->chunk == chunk && instr->mb == m;
        if (is_it && (peer < 0 || instr->peer == peer)) { return i; }
    }
    return -1;
}

static bool meet(const PlanBuffer* a, const PlanBuffer* b) {
    return a->instr_begin < b->instr_end && b->instr_begin < a->instr_end;
}

// Lowest place free over [begin, end).
static void add_buffer(PlanRank* list, BufferKind kind, int32_t chunk, int32_t m, int64_t num_bytes,
                       int32_t begin, int32_t end) {
    PlanBuffer fresh = {.kind = (uint8_t)kind,
                        .chunk = (int16_t)chunk,
                        .mb = m,
                        .num_bytes = num_bytes,
                        .instr_begin = begin,
                        .instr_end = end};
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t i = 0; i < list->num_buffers; i++) {
            const PlanBuffer* b = &list->buffers[i];
            bool apart = fresh.offset_bytes + num_bytes <= b->offset_bytes ||
                         b->offset_bytes + b->num_bytes <= fresh.offset_bytes;
            if (apart || !meet(b, &fresh)) { continue; }
            fresh.offset_bytes = (b->offset_bytes + b->num_bytes + PLAN_BUFFER_ALIGN - 1) /
                                 PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
            moved = true;
        }
    }
    list->buffers[list->num_buffers++] = fresh;
    if (fresh.offset_bytes + num_bytes > list->arena_bytes) {
        list->arena_bytes = fresh.offset_bytes + num_bytes;
    }
}

// One micro-batch on one rank, while its buffers are placed.
typedef struct {
    const ToyPlan* toy;
    PlanRank* list;
    const DynapipeBatch* batch;
    int32_t m, first_rank, stage;
} Placing;

static int32_t at(const Placing* p, InstrKind kind, int32_t chunk) {
    return place_of(p->list, kind, chunk, p->m, -1);
}

static int32_t at_peer(const Placing* p, InstrKind kind, int32_t chunk, int32_t row) {
    return place_of(p->list, kind, chunk, p->m, p->first_rank + toy_stage_of(p->toy, row));
}

// Behind a wait, or, where it never comes, the list.
static int32_t behind(const Placing* p, int32_t wait) {
    return wait < 0 ? p->list->num_instrs : wait + 1;
}

static int32_t later(int32_t a, int32_t b) {
    return a > b ? a : b;
}

static void add(const Placing* p, BufferKind kind, int32_t chunk, int64_t num_bytes, int32_t begin,
                int32_t end) {
    add_buffer(p->list, kind, chunk, p->m, num_bytes, begin, end);
}

// Hidden states of the last chunk, what comes back of them, and what the shares get.
static void add_head_buffers(const Placing* p, int64_t num_bytes, int32_t done) {
    int32_t last = toy_last_chunk(p->toy), fwd = at(p, INSTR_FWD, last), bwd = at(p, INSTR_BWD, last);
    int32_t out_end = fwd + 1, dout_begin = bwd;
    ToyModel model = toy_plan_model(p->toy, last);
    int64_t part = toy_api.part_bytes(&model, p->batch, DYNAPIPE_FORWARD_KEEP);
    int64_t fact = toy_api.factor_bytes(&model, p->batch);
    for (int32_t row = last + 1; row < toy_num_rows(p->toy); row++) {
        if (!toy_has_row(p->toy, row)) { continue; }
        bool here = toy_stage_of(p->toy, row) == p->stage;
        int32_t back = here ? at(p, INSTR_FWD, row) : at_peer(p, INSTR_RECV_GRAD, last, row);
        int32_t sent = here ? back + 1 : behind(p, at_peer(p, INSTR_WAIT_ACT, last, row));
        out_end = later(out_end, sent);
        if (!toy_by_vocabulary(p->toy)) {
            dout_begin = back < dout_begin ? back : dout_begin;
            continue;
        }
        int32_t fact_end =
            here ? at(p, INSTR_WGT, row) + 1 : behind(p, at_peer(p, INSTR_WAIT_FACT, row, row));
        add(p, BUFFER_PART, row, part, back, bwd + 1);
        add(p, BUFFER_FACT, row, fact, bwd, fact_end);
    }
    add(p, BUFFER_OUT, last, num_bytes, fwd, out_end);
    add(p, BUFFER_DOUT, last, num_bytes, dout_begin, done);
}

static void add_share_buffers(const Placing* p, int32_t row) {
    ToyModel model = toy_plan_model(p->toy, row);
    DynapipeBatch batch = *p->batch;
    const int16_t* begin = &p->toy->plan.placement.head_begin[p->stage];
    bool here = toy_same_stage(p->toy, row, toy_last_chunk(p->toy));
    int32_t fwd = at(p, INSTR_FWD, row), wgt = at(p, INSTR_WGT, row);
    if (!toy_by_vocabulary(p->toy)) {
        batch.num_rows =
            p->batch->num_rows * begin[1] / HEAD_UNITS - p->batch->num_rows * begin[0] / HEAD_UNITS;
    }
    int64_t in_bytes = toy_api.boundary_bytes(&model, &batch, 0);
    int64_t part =
        toy_by_vocabulary(p->toy) ? toy_api.part_bytes(&model, &batch, DYNAPIPE_FORWARD_KEEP) : in_bytes;
    add(p, BUFFER_ACTS, row, toy_api.acts_bytes(&model, &batch, DYNAPIPE_FORWARD_KEEP), fwd, wgt + 1);
    if (here) { return; }
    add(p, BUFFER_IN, row, in_bytes, at(p, INSTR_RECV_ACT, row), fwd + 1);
    add(p, BUFFER_DIN, row, part, fwd, behind(p, at(p, INSTR_WAIT_GRAD, row)));
    if (toy_by_vocabulary(p->toy)) {
        add(p, BUFFER_FACT, row, toy_api.factor_bytes(&model, &batch), at(p, INSTR_RECV_FACT, row), wgt + 1);
    }
}

static void add_chunk_buffers(const Placing* p, int32_t k) {
    ToyModel model = toy_plan_model(p->toy, k);
    int64_t before = toy_api.boundary_bytes(&model, p->batch, 0);
    int64_t after = toy_api.boundary_bytes(&model, p->batch, 1);
    int32_t fwd = at(p, INSTR_FWD, k), rec = at(p, INSTR_REC, k), bwd = at(p, INSTR_BWD, k);
    int32_t wgt = at(p, INSTR_WGT, k), done = (wgt < 0 ? bwd : wgt) + 1;
    add(p, BUFFER_ACTS, k, toy_api.acts_bytes(&model, p->batch, DYNAPIPE_FORWARD_KEEP), rec < 0 ? fwd : rec,
        done);
    if (rec >= 0) { add(p, BUFFER_FORWARD, k, toy_api.acts_bytes(&model, p->batch, 0), fwd, fwd + 1); }
    if (k > 0 && toy_same_stage(p->toy, k - 1, k)) {
        add(p, BUFFER_IN, k, before, at(p, INSTR_FWD, k - 1), bwd + 1);
    } else if (k > 0) {
        add(p, BUFFER_IN, k, before, at(p, INSTR_RECV_ACT, k), bwd + 1);
        add(p, BUFFER_DIN, k, before, bwd, behind(p, at(p, INSTR_WAIT_GRAD, k)));
    }
    if (k == toy_last_chunk(p->toy)) {
        if (toy_num_rows(p->toy) > toy_num_chunks(p->toy)) { add_head_buffers(p, after, done); }
    } else if (toy_same_stage(p->toy, k, k + 1)) {
        add(p, BUFFER_DOUT, k, after, at(p, INSTR_BWD, k + 1), done);
    } else {
        add(p, BUFFER_OUT, k, after, fwd, behind(p, at(p, INSTR_WAIT_ACT, k)));
        add(p, BUFFER_DOUT, k, after, at(p, INSTR_RECV_GRAD, k), done);
    }
}

void toy_buffers_place(const ToyPlan* toy, int32_t rank) {
    const Plan* plan = &toy->plan;
    PlanRank* list = &plan->ranks[rank];
    int32_t rows[TOY_MAX_ROWS_HERE], num_here = toy_plan_rows(toy, rank, rows);
    if (list->num_instrs > 0) {
        add_buffer(list, BUFFER_SCRATCH, -1, -1, TOY_SCRATCH_BYTES, 0, list->num_instrs);
    }
    for (int32_t m = 0; m < plan->M; m++) {
        Placing p = {
            .toy = toy, .list = list, .batch = &toy->batches[m].batch, .m = m, .stage = rank % plan->P};
        p.first_rank = rank - p.stage;
        if (plan->mbs[m].replica != rank / plan->P) { continue; }
        for (int32_t i = 0; i < num_here; i++) {
            toy_is_share(toy, rows[i]) ? add_share_buffers(&p, rows[i]) : add_chunk_buffers(&p, rows[i]);
        }
    }
}
