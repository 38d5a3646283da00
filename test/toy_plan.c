#include "toy_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Progress of one micro-batch on one chunk, or on a share of the head. The messages between the last chunk
// and a share stand with the share.
typedef struct {
    bool split, recompute, waits_act, waits_grad, waits_fact;  // drawn at the start
    bool got_act, got_grad, got_fact, f, r, b, w, act_pending, grad_pending, fact_pending;
} Cell;

typedef struct {
    ToyPlan* toy;
    Rng* rng;
    Cell* cells;  // [K + P][M]
    Arena* arena;
} Maker;

static int32_t num_chunks(const ToyPlan* toy) {
    return toy->plan.placement.num_chunks;
}

static int32_t last_chunk(const ToyPlan* toy) {
    return num_chunks(toy) - 1;
}

static int32_t stage_of(const ToyPlan* toy, int32_t row) {
    return row < num_chunks(toy) ? toy->plan.placement.stage_of[row] : row - num_chunks(toy);
}

static bool is_share(const ToyPlan* toy, int32_t row) {
    return row >= num_chunks(toy);
}

static bool has_row(const ToyPlan* toy, int32_t row) {
    return !is_share(toy, row) || placement_has_share(&toy->plan.placement, stage_of(toy, row));
}

static bool same_stage(const ToyPlan* toy, int32_t a, int32_t b) {
    return stage_of(toy, a) == stage_of(toy, b);
}

static bool by_vocabulary(const ToyPlan* toy) {
    return toy->plan.placement.head == HEAD_BY_VOCABULARY;
}

static int32_t num_rows(const ToyPlan* toy) {
    return num_chunks(toy) + (toy->plan.placement.head == HEAD_WHOLE ? 0 : toy->plan.P);
}

static Cell* cell(const Maker* mk, int32_t row, int32_t m) {
    return &mk->cells[row * mk->toy->plan.M + m];
}

// An instruction on the stage of `row`, named by `chunk`; other: row whose stage is at the other end, -1: a
// job.
static void append(const Maker* mk, int32_t row, int32_t chunk, int32_t m, InstrKind kind, int32_t other) {
    Plan* plan = &mk->toy->plan;
    int32_t first = plan->mbs[m].replica * plan->P;
    PlanRank* list = &plan->ranks[first + stage_of(mk->toy, row)];
    list->instrs[list->num_instrs++] = (PlanInstr){.kind = (uint8_t)kind,
                                                   .chunk = (int16_t)chunk,
                                                   .mb = m,
                                                   .peer = other < 0 ? -1 : first + stage_of(mk->toy, other)};
}

// Every share's part is back.
static bool has_parts(const Maker* mk, int32_t m) {
    bool all = true;
    for (int32_t row = num_chunks(mk->toy); row < num_rows(mk->toy); row++) {
        all &= !has_row(mk->toy, row) || cell(mk, row, m)->f;
    }
    return all;
}

// What a row could do next of a micro-batch; up to 6 kinds. The order of the list has no meaning.
static int32_t enabled(const Maker* mk, int32_t row, int32_t m, InstrKind* kinds) {
    const Cell* c = cell(mk, row, m);
    bool got_grad = row == last_chunk(mk->toy) ? has_parts(mk, m) : c->got_grad;
    bool share = is_share(mk->toy, row);
    int32_t n = 0;
    if (!c->f && c->got_act) { kinds[n++] = INSTR_FWD; }
    if (!share && c->f && c->recompute && !c->r) { kinds[n++] = INSTR_REC; }
    if (!share && c->f && (!c->recompute || c->r) && !c->b && got_grad) { kinds[n++] = INSTR_BWD; }
    if (!share && c->b && c->split && !c->w) { kinds[n++] = INSTR_WGT; }
    if (share && c->f && !c->w && (c->got_fact || !by_vocabulary(mk->toy))) { kinds[n++] = INSTR_WGT; }
    if (c->act_pending && c->waits_act) { kinds[n++] = INSTR_WAIT_ACT; }
    if (c->grad_pending && c->waits_grad) { kinds[n++] = INSTR_WAIT_GRAD; }
    if (c->fact_pending && c->waits_fact) { kinds[n++] = INSTR_WAIT_FACT; }
    return n;
}

// What row `from` made goes into `to`: over a link, where they are apart.
static void hand_on(const Maker* mk, int32_t from, int32_t to, int32_t m) {
    cell(mk, to, m)->got_act = true;
    if (same_stage(mk->toy, from, to)) { return; }
    append(mk, from, from, m, INSTR_SEND_ACT, to);
    append(mk, to, to, m, INSTR_RECV_ACT, from);
    cell(mk, is_share(mk->toy, to) ? to : from, m)->act_pending = true;
}

static void hand_back(const Maker* mk, int32_t from, int32_t to, int32_t m) {
    cell(mk, to, m)->got_grad = true;
    if (same_stage(mk->toy, from, to)) { return; }
    append(mk, from, from, m, INSTR_SEND_GRAD, to);
    append(mk, to, to, m, INSTR_RECV_GRAD, from);
    cell(mk, from, m)->grad_pending = true;
}

static void hand_factors(const Maker* mk, int32_t share, int32_t m) {
    int32_t last = last_chunk(mk->toy);
    cell(mk, share, m)->got_fact = true;
    if (same_stage(mk->toy, last, share)) { return; }
    append(mk, last, share, m, INSTR_SEND_FACT, share);
    append(mk, share, share, m, INSTR_RECV_FACT, last);
    cell(mk, share, m)->fact_pending = true;
}

// A row's wait; of what the last chunk sends to a share, that chunk's.
static void do_wait(const Maker* mk, int32_t row, int32_t m, InstrKind kind) {
    Cell* c = cell(mk, row, m);
    int32_t last = last_chunk(mk->toy);
    bool share = is_share(mk->toy, row);
    if (kind == INSTR_WAIT_ACT) {
        append(mk, share ? last : row, share ? last : row, m, kind, share ? row : row + 1);
        c->act_pending = false;
    } else if (kind == INSTR_WAIT_GRAD) {
        append(mk, row, row, m, kind, share ? last : row - 1);
        c->grad_pending = false;
    } else {
        append(mk, last, row, m, kind, row);
        c->fact_pending = false;
    }
}

static void do_job(const Maker* mk, int32_t row, int32_t m, InstrKind kind) {
    const ToyPlan* toy = mk->toy;
    Cell* c = cell(mk, row, m);
    bool is_last = row == last_chunk(toy);
    if (kind > INSTR_REC) {
        do_wait(mk, row, m, kind);
        return;
    }
    append(mk, row, row, m, kind, -1);
    c->f |= kind == INSTR_FWD;
    c->r |= kind == INSTR_REC;
    c->b |= kind == INSTR_BWD;
    c->w |= kind == INSTR_WGT;
    if (kind == INSTR_FWD && is_share(toy, row)) { hand_back(mk, row, last_chunk(toy), m); }
    if (kind == INSTR_FWD && row < last_chunk(toy)) { hand_on(mk, row, row + 1, m); }
    for (int32_t share = num_chunks(toy); is_last && share < num_rows(toy); share++) {
        if (!has_row(toy, share)) { continue; }
        if (kind == INSTR_FWD) { hand_on(mk, row, share, m); }
        if (kind == INSTR_BWD && by_vocabulary(toy)) { hand_factors(mk, share, m); }
    }
    if (kind == INSTR_BWD && row > 0) { hand_back(mk, row, row - 1, m); }
}

static void draw_lists(const Maker* mk) {
    Plan* plan = &mk->toy->plan;
    for (;;) {
        int32_t num_choices = 0, chosen_row = 0, chosen_m = 0;
        InstrKind chosen = INSTR_COUNT, kinds[8];
        for (int32_t row = 0; row < num_rows(mk->toy); row++) {
            for (int32_t m = 0; m < plan->M; m++) {
                int32_t n = enabled(mk, row, m, kinds);
                for (int32_t i = 0; i < n; i++) {
                    if (rng_below(mk->rng, (uint32_t)++num_choices) > 0) { continue; }
                    chosen = kinds[i];
                    chosen_row = row;
                    chosen_m = m;
                }
            }
        }
        if (num_choices == 0) { return; }
        do_job(mk, chosen_row, chosen_m, chosen);
    }
}

static bool is_receive(const PlanInstr* instr) {
    return instr->kind == INSTR_RECV_ACT || instr->kind == INSTR_RECV_GRAD || instr->kind == INSTR_RECV_FACT;
}

// A receive may as well be posted behind jobs that do not need it, but not behind other transfers.
static void delay_receives(const Maker* mk) {
    Plan* plan = &mk->toy->plan;
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        PlanRank* list = &plan->ranks[r];
        for (int32_t i = list->num_instrs - 2; i >= 0; i--) {
            for (int32_t k = i; k + 1 < list->num_instrs; k++) {
                PlanInstr receive = list->instrs[k], job = list->instrs[k + 1];
                bool may_move = is_receive(&receive) && job.kind <= INSTR_REC && job.mb != receive.mb;
                if (!may_move || rng_below(mk->rng, 3) == 0) { break; }
                list->instrs[k] = job;
                list->instrs[k + 1] = receive;
            }
        }
    }
}

// --- buffers ---------------------------------------------------------------------------------------------
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
    return place_of(p->list, kind, chunk, p->m, p->first_rank + stage_of(p->toy, row));
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
    int32_t last = last_chunk(p->toy), fwd = at(p, INSTR_FWD, last), bwd = at(p, INSTR_BWD, last);
    int32_t out_end = fwd + 1, dout_begin = bwd;
    ToyModel model = toy_plan_model(p->toy, last);
    int64_t part = toy_api.part_bytes(&model, p->batch, DYNAPIPE_FORWARD_KEEP);
    int64_t fact = toy_api.factor_bytes(&model, p->batch);
    for (int32_t row = last + 1; row < num_rows(p->toy); row++) {
        if (!has_row(p->toy, row)) { continue; }
        bool here = stage_of(p->toy, row) == p->stage;
        int32_t back = here ? at(p, INSTR_FWD, row) : at_peer(p, INSTR_RECV_GRAD, last, row);
        int32_t sent = here ? back + 1 : behind(p, at_peer(p, INSTR_WAIT_ACT, last, row));
        out_end = later(out_end, sent);
        if (!by_vocabulary(p->toy)) {
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
    bool here = same_stage(p->toy, row, last_chunk(p->toy));
    int32_t fwd = at(p, INSTR_FWD, row), wgt = at(p, INSTR_WGT, row);
    if (!by_vocabulary(p->toy)) {
        batch.num_rows =
            p->batch->num_rows * begin[1] / HEAD_UNITS - p->batch->num_rows * begin[0] / HEAD_UNITS;
    }
    int64_t in_bytes = toy_api.boundary_bytes(&model, &batch, 0);
    int64_t part =
        by_vocabulary(p->toy) ? toy_api.part_bytes(&model, &batch, DYNAPIPE_FORWARD_KEEP) : in_bytes;
    add(p, BUFFER_ACTS, row, toy_api.acts_bytes(&model, &batch, DYNAPIPE_FORWARD_KEEP), fwd, wgt + 1);
    if (here) { return; }
    add(p, BUFFER_IN, row, in_bytes, at(p, INSTR_RECV_ACT, row), fwd + 1);
    add(p, BUFFER_DIN, row, part, fwd, behind(p, at(p, INSTR_WAIT_GRAD, row)));
    if (by_vocabulary(p->toy)) {
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
    if (k > 0 && same_stage(p->toy, k - 1, k)) {
        add(p, BUFFER_IN, k, before, at(p, INSTR_FWD, k - 1), bwd + 1);
    } else if (k > 0) {
        add(p, BUFFER_IN, k, before, at(p, INSTR_RECV_ACT, k), bwd + 1);
        add(p, BUFFER_DIN, k, before, bwd, behind(p, at(p, INSTR_WAIT_GRAD, k)));
    }
    if (k == last_chunk(p->toy)) {
        if (num_rows(p->toy) > num_chunks(p->toy)) { add_head_buffers(p, after, done); }
    } else if (same_stage(p->toy, k, k + 1)) {
        add(p, BUFFER_DOUT, k, after, at(p, INSTR_BWD, k + 1), done);
    } else {
        add(p, BUFFER_OUT, k, after, fwd, behind(p, at(p, INSTR_WAIT_ACT, k)));
        add(p, BUFFER_DOUT, k, after, at(p, INSTR_RECV_GRAD, k), done);
    }
}

static void place_buffers(const ToyPlan* toy, int32_t rank) {
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
            is_share(toy, rows[i]) ? add_share_buffers(&p, rows[i]) : add_chunk_buffers(&p, rows[i]);
        }
    }
}

// --- what is drawn ---------------------------------------------------------------------------------------
static MbShape shape_of(const DynapipeBatch* batch) {
    return (MbShape){.num_seqs = batch->num_seqs,
                     .enc_tokens = batch->num_tokens,
                     .enc_squares = batch->num_squares,
                     .supervised_tokens = batch->num_rows};
}

// Any contiguous cut with a layer for every chunk.
static void draw_chunks(Placement* out, Rng* rng, int32_t num_layers) {
    for (int32_t k = 0; k < out->num_chunks; k++) {
        int32_t begin = k == 0 ? 0 : out->chunks[k - 1].layer_end;
        int32_t most = num_layers - (out->num_chunks - 1 - k);
        out->chunks[k] =
            (LayerRange){begin, k == out->num_chunks - 1 ? most : rng_between(rng, begin + 1, most)};
    }
}

static void draw_placement(Placement* out, Rng* rng, int32_t P, int32_t num_layers, bool is_linear) {
    out->num_chunks = is_linear ? P : rng_between(rng, P, num_layers);
    draw_chunks(out, rng, num_layers);
    for (int32_t k = 0; k < out->num_chunks; k++) {
        out->stage_of[k] = (int16_t)(k < P ? k : rng_between(rng, 0, P - 1));
    }
    if (is_linear) { return; }
    for (int32_t k = out->num_chunks - 1; k > 0; k--) {
        int32_t other = rng_between(rng, 0, k);
        int16_t stage = out->stage_of[k];
        out->stage_of[k] = out->stage_of[other];
        out->stage_of[other] = stage;
    }
    out->head = (uint8_t)rng_between(rng, 0, HEAD_COUNT - 1);
    for (int32_t s = 1; s <= P; s++) {
        int32_t begin = out->head_begin[s - 1];
        out->head_begin[s] = (int16_t)(s == P || rng_below(rng, 6) == 0 ? HEAD_UNITS
                                       : rng_below(rng, 4) == 0         ? begin
                                                                : rng_between(rng, begin, HEAD_UNITS));
    }
}

static void draw_microbatches(const Maker* mk) {
    Plan* plan = &mk->toy->plan;
    Rng* rng = mk->rng;
    for (int32_t m = 0; m < plan->M; m++) {
        int32_t num_tokens = rng_below(rng, 16) == 0 ? 0 : rng_between(rng, 1, 64);
        toy_batch_init(&mk->toy->batches[m], rng_u64(rng), num_tokens);
        plan->mbs[m].shape = shape_of(&mk->toy->batches[m].batch);
        plan->mbs[m].replica = rng_between(rng, 0, plan->R - 1);
        for (int32_t row = 0; row < num_rows(mk->toy); row++) {
            Cell draw = {.split = rng_below(rng, 2),
                         .recompute = rng_below(rng, 3) == 0,
                         .waits_act = rng_below(rng, 4) > 0,
                         .waits_grad = rng_below(rng, 4) > 0,
                         .waits_fact = rng_below(rng, 4) > 0,
                         .got_act = row == 0};
            *cell(mk, row, m) = draw;
            if (is_share(mk->toy, row)) { continue; }
            plan->mbs[m].recompute[row] = draw.recompute ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        }
    }
}

static void make(ToyPlan* out, Rng* rng, int32_t P, int32_t R, int32_t M, bool is_linear, Arena* arena) {
    *out = (ToyPlan){.batches = ARENA_NEW(arena, ToyBatch, M),
                     .num_layers = rng_between(rng, P, TOY_MAX_LAYERS)};
    Plan* plan = &out->plan;
    *plan = (Plan){.P = P,
                   .R = R,
                   .M = M,
                   .mbs = ARENA_NEW(arena, PlanMicrobatch, M),
                   .ranks = ARENA_NEW(arena, PlanRank, P * R)};
    draw_placement(&plan->placement, rng, P, out->num_layers, is_linear);
    int32_t most = num_rows(out);
    Maker mk = {out, rng, ARENA_NEW(arena, Cell, most * M), arena};
    draw_microbatches(&mk);
    for (int32_t r = 0; r < P * R; r++) {
        plan->ranks[r].instrs = ARENA_NEW(arena, PlanInstr, 10 * M * most);
        plan->ranks[r].buffers = ARENA_NEW(arena, PlanBuffer, 8 * M * most + 1);
    }
    draw_lists(&mk);
    delay_receives(&mk);
    for (int32_t r = 0; r < P * R; r++) { place_buffers(out, r); }
}

void toy_plan_make(ToyPlan* out, Rng* rng, int32_t P, int32_t R, int32_t M, Arena* arena) {
    make(out, rng, P, R, M, false, arena);
}

void toy_plan_make_linear(ToyPlan* out, Rng* rng, int32_t P, int32_t R, int32_t M, Arena* arena) {
    make(out, rng, P, R, M, true, arena);
}

static ToyModel share_model(const ToyPlan* toy, int32_t s) {
    const Placement* placement = &toy->plan.placement;
    ToyModel model = {.layer_begin = toy->num_layers, .layer_end = toy->num_layers, .vocab_end = TOY_VOCAB};
    model.head = by_vocabulary(toy) ? DYNAPIPE_HEAD_BY_VOCABULARY : DYNAPIPE_HEAD_BY_ROWS;
    if (!by_vocabulary(toy)) { return model; }
    model.vocab_begin = TOY_VOCAB * placement->head_begin[s] / HEAD_UNITS / 16 * 16;
    model.vocab_end = TOY_VOCAB * placement->head_begin[s + 1] / HEAD_UNITS / 16 * 16;
    return model;
}

ToyModel toy_plan_model(const ToyPlan* toy, int32_t row) {
    if (is_share(toy, row)) { return share_model(toy, stage_of(toy, row)); }
    bool is_last = row == last_chunk(toy), is_shared = toy->plan.placement.head != HEAD_WHOLE;
    return (ToyModel){.layer_begin = toy->plan.placement.chunks[row].layer_begin,
                      .layer_end = toy->plan.placement.chunks[row].layer_end,
                      .is_first = row == 0,
                      .is_last = is_last && !is_shared,
                      .head = is_last && is_shared ? DYNAPIPE_HEAD_FEEDS : DYNAPIPE_HEAD_AS_BLOCKS,
                      .vocab_end = TOY_VOCAB};
}

int32_t toy_plan_rows(const ToyPlan* toy, int32_t rank, int32_t rows[TOY_MAX_ROWS_HERE]) {
    int32_t n = 0;
    for (int32_t row = 0; row < num_rows(toy); row++) {
        if (has_row(toy, row) && stage_of(toy, row) == rank % toy->plan.P) { rows[n++] = row; }
    }
    return n;
}

void toy_plan_remove(ToyPlan* toy, int32_t rank, int32_t idx) {
    PlanRank* list = &toy->plan.ranks[rank];
    list->num_instrs--;
    memmove(&list->instrs[idx], &list->instrs[idx + 1],
            (size_t)(list->num_instrs - idx) * sizeof *list->instrs);
}

int32_t toy_plan_find(const ToyPlan* toy, int32_t rank, InstrKind kind, int32_t mb) {
    const PlanRank* list = &toy->plan.ranks[rank];
    for (int32_t i = 0; i < list->num_instrs; i++) {
        if (list->instrs[i].kind == kind && (mb < 0 || list->instrs[i].mb == mb)) { return i; }
    }
    return -1;
}

void toy_plan_run_directly(const ToyPlan* toy, ToyModel* model, float losses[][TOY_MAX_ROWS]) {
    static _Alignas(64) unsigned char acts[1 << 20], scratch[1 << 16];
    *model =
        (ToyModel){.layer_end = toy->num_layers, .is_first = true, .is_last = true, .vocab_end = TOY_VOCAB};
    for (int32_t m = 0; m < toy->plan.M; m++) {
        const DynapipeBatch* batch = &toy->batches[m].batch;
        toy_api.forward(model, batch, NULL, NULL, acts, scratch, losses[m],
                        DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD);
        toy_api.backward_inputs(model, batch, NULL, acts, NULL, NULL, scratch);
        toy_api.backward_weights(model, batch, acts, NULL, scratch);
    }
}
