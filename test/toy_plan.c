#include "toy_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

// Progress of one micro-batch on one stage.
typedef struct {
    bool split, recompute, waits_act, waits_grad;  // drawn at the start
    bool got_act, got_grad, f, r, b, w, act_pending, grad_pending;
} Cell;

typedef struct {
    ToyPlan* toy;
    Rng* rng;
    Cell* cells;  // [P * M]
    Arena* arena;
} Maker;

static Cell* cell(const Maker* mk, int32_t s, int32_t m) {
    return &mk->cells[s * mk->toy->plan.M + m];
}

static void append(const Maker* mk, int32_t s, int32_t m, InstrKind kind, int32_t peer_step) {
    Plan* plan = &mk->toy->plan;
    int32_t rank = plan->mbs[m].replica * plan->P + s;
    PlanRank* list = &plan->ranks[rank];
    list->instrs[list->num_instrs++] =
        (PlanInstr){.kind = (uint8_t)kind, .mb = m, .peer = peer_step == 0 ? -1 : rank + peer_step};
}

// What cell (s, m) could do next; up to 5 kinds. The order of the list has no meaning.
static int32_t enabled(const Maker* mk, int32_t s, int32_t m, InstrKind* kinds) {
    const Cell* c = cell(mk, s, m);
    bool is_last = s == mk->toy->plan.P - 1;
    int32_t n = 0;
    if (!c->f && c->got_act) { kinds[n++] = INSTR_FWD; }
    if (c->f && c->recompute && !c->r) { kinds[n++] = INSTR_REC; }
    if (c->f && (!c->recompute || c->r) && !c->b && (is_last || c->got_grad)) { kinds[n++] = INSTR_BWD; }
    if (c->b && c->split && !c->w) { kinds[n++] = INSTR_WGT; }
    if (c->act_pending && c->waits_act) { kinds[n++] = INSTR_WAIT_ACT; }
    if (c->grad_pending && c->waits_grad) { kinds[n++] = INSTR_WAIT_GRAD; }
    return n;
}

static void do_job(const Maker* mk, int32_t s, int32_t m, InstrKind kind) {
    Cell* c = cell(mk, s, m);
    append(mk, s, m, kind, kind == INSTR_WAIT_ACT ? 1 : kind == INSTR_WAIT_GRAD ? -1 : 0);
    c->f |= kind == INSTR_FWD;
    c->r |= kind == INSTR_REC;
    c->b |= kind == INSTR_BWD;
    c->w |= kind == INSTR_WGT;
    if (kind == INSTR_WAIT_ACT) { c->act_pending = false; }
    if (kind == INSTR_WAIT_GRAD) { c->grad_pending = false; }
    if (kind == INSTR_FWD && s < mk->toy->plan.P - 1) {
        append(mk, s, m, INSTR_SEND_ACT, 1);
        append(mk, s + 1, m, INSTR_RECV_ACT, -1);
        c->act_pending = cell(mk, s + 1, m)->got_act = true;
    }
    if (kind == INSTR_BWD && s > 0) {
        append(mk, s, m, INSTR_SEND_GRAD, -1);
        append(mk, s - 1, m, INSTR_RECV_GRAD, 1);
        c->grad_pending = cell(mk, s - 1, m)->got_grad = true;
    }
}

static void draw_lists(const Maker* mk) {
    Plan* plan = &mk->toy->plan;
    for (;;) {
        int32_t num_choices = 0, chosen_s = 0, chosen_m = 0;
        InstrKind chosen = INSTR_COUNT, kinds[6];
        for (int32_t s = 0; s < plan->P; s++) {
            for (int32_t m = 0; m < plan->M; m++) {
                int32_t n = enabled(mk, s, m, kinds);
                for (int32_t i = 0; i < n; i++) {
                    if (rng_below(mk->rng, (uint32_t)++num_choices) > 0) { continue; }
                    chosen = kinds[i];
                    chosen_s = s;
                    chosen_m = m;
                }
            }
        }
        if (num_choices == 0) { return; }
        do_job(mk, chosen_s, chosen_m, chosen);
    }
}

// A receive may as well be posted behind jobs that do not need it, but not behind other transfers.
static void delay_receives(const Maker* mk) {
    Plan* plan = &mk->toy->plan;
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        PlanRank* list = &plan->ranks[r];
        for (int32_t i = list->num_instrs - 2; i >= 0; i--) {
            for (int32_t k = i; k + 1 < list->num_instrs; k++) {
                PlanInstr receive = list->instrs[k], job = list->instrs[k + 1];
                bool is_receive = receive.kind == INSTR_RECV_ACT || receive.kind == INSTR_RECV_GRAD;
                bool may_move = is_receive && job.kind <= INSTR_REC && job.mb != receive.mb;
                if (!may_move || rng_below(mk->rng, 3) == 0) { break; }
                list->instrs[k] = job;
                list->instrs[k + 1] = receive;
            }
        }
    }
}

// --- buffers ---------------------------------------------------------------------------------------------
static int32_t place_of(const PlanRank* list, InstrKind kind, int32_t m) {
    for (int32_t i = 0; i < list->num_instrs; i++) {
        if (list->instrs[i].kind == kind && list->instrs[i].mb == m) { return i; }
    }
    return -1;
}

static bool meet(const PlanBuffer* a, const PlanBuffer* b) {
    return a->instr_begin < b->instr_end && b->instr_begin < a->instr_end;
}

// Lowest place free over [begin, end).
static void add_buffer(PlanRank* list, BufferKind kind, int32_t m, int64_t num_bytes, int32_t begin,
                       int32_t end) {
    PlanBuffer fresh = {
        .kind = (uint8_t)kind, .mb = m, .num_bytes = num_bytes, .instr_begin = begin, .instr_end = end};
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

static void add_mb_buffers(const ToyPlan* toy, PlanRank* list, int32_t s, int32_t m) {
    const DynapipeBatch* batch = &toy->batches[m].batch;
    ToyModel model = toy_plan_model(toy, s);
    int64_t before = toy_api.boundary_bytes(&model, batch, 0);
    int64_t behind = toy_api.boundary_bytes(&model, batch, 1);
    int32_t fwd = place_of(list, INSTR_FWD, m), rec = place_of(list, INSTR_REC, m);
    int32_t bwd = place_of(list, INSTR_BWD, m), wgt = place_of(list, INSTR_WGT, m);
    int32_t last = wgt < 0 ? bwd : wgt, never = list->num_instrs - 1;
    int32_t wait_act = place_of(list, INSTR_WAIT_ACT, m), wait_grad = place_of(list, INSTR_WAIT_GRAD, m);
    if (fwd < 0) { return; }  // another replica's
    add_buffer(list, BUFFER_ACTS, m, toy_api.acts_bytes(&model, batch, DYNAPIPE_FORWARD_KEEP),
               rec < 0 ? fwd : rec, last + 1);
    if (rec >= 0) { add_buffer(list, BUFFER_FORWARD, m, toy_api.acts_bytes(&model, batch, 0), fwd, fwd + 1); }
    if (s > 0) {
        add_buffer(list, BUFFER_IN, m, before, place_of(list, INSTR_RECV_ACT, m), bwd + 1);
        add_buffer(list, BUFFER_DIN, m, before, bwd, (wait_grad < 0 ? never : wait_grad) + 1);
    }
    if (s < toy->plan.P - 1) {
        add_buffer(list, BUFFER_OUT, m, behind, fwd, (wait_act < 0 ? never : wait_act) + 1);
        add_buffer(list, BUFFER_DOUT, m, behind, place_of(list, INSTR_RECV_GRAD, m), last + 1);
    }
}

static MbShape shape_of(const DynapipeBatch* batch) {
    return (MbShape){.num_seqs = batch->num_seqs,
                     .enc_tokens = batch->num_tokens,
                     .enc_squares = batch->num_squares,
                     .supervised_tokens = batch->num_rows};
}

void toy_plan_make(ToyPlan* out, Rng* rng, int32_t P, int32_t R, int32_t M, Arena* arena) {
    *out = (ToyPlan){.batches = ARENA_NEW(arena, ToyBatch, M),
                     .num_layers = rng_between(rng, P, TOY_MAX_LAYERS)};
    Plan* plan = &out->plan;
    *plan = (Plan){.P = P,
                   .R = R,
                   .M = M,
                   .mbs = ARENA_NEW(arena, PlanMicrobatch, M),
                   .ranks = ARENA_NEW(arena, PlanRank, P * R)};
    Maker mk = {out, rng, ARENA_NEW(arena, Cell, P * M), arena};
    for (int32_t s = 0; s < P; s++) {  // any contiguous split with a layer for everybody
        plan->placement.chunks[s].layer_begin = s == 0 ? 0 : plan->placement.chunks[s - 1].layer_end;
        int32_t most = out->num_layers - (P - 1 - s);
        plan->placement.chunks[s].layer_end =
            s == P - 1 ? most : rng_between(rng, plan->placement.chunks[s].layer_begin + 1, most);
    }
    for (int32_t m = 0; m < M; m++) {
        int32_t num_tokens = rng_below(rng, 16) == 0 ? 0 : rng_between(rng, 1, 64);
        toy_batch_init(&out->batches[m], rng_u64(rng), num_tokens);
        plan->mbs[m].shape = shape_of(&out->batches[m].batch);
        plan->mbs[m].replica = rng_between(rng, 0, R - 1);
        for (int32_t s = 0; s < P; s++) {
            Cell draw = {.split = rng_below(rng, 2),
                         .recompute = rng_below(rng, 3) == 0,
                         .waits_act = rng_below(rng, 4) > 0,
                         .waits_grad = rng_below(rng, 4) > 0,
                         .got_act = s == 0};
            plan->mbs[m].recompute[s] = draw.recompute ? RECOMPUTE_FULL : RECOMPUTE_NONE;
            *cell(&mk, s, m) = draw;
        }
    }
    for (int32_t r = 0; r < P * R; r++) {
        plan->ranks[r].instrs = ARENA_NEW(arena, PlanInstr, 10 * M);
        plan->ranks[r].buffers = ARENA_NEW(arena, PlanBuffer, 6 * M + 1);
    }
    draw_lists(&mk);
    delay_receives(&mk);
    for (int32_t r = 0; r < P * R; r++) {
        PlanRank* list = &plan->ranks[r];
        if (list->num_instrs > 0) {
            add_buffer(list, BUFFER_SCRATCH, -1, TOY_SCRATCH_BYTES, 0, list->num_instrs);
        }
        for (int32_t m = 0; m < M; m++) { add_mb_buffers(out, list, r % P, m); }
    }
}

ToyModel toy_plan_model(const ToyPlan* toy, int32_t rank) {
    int32_t s = rank % toy->plan.P;
    return (ToyModel){.layer_begin = toy->plan.placement.chunks[s].layer_begin,
                      .layer_end = toy->plan.placement.chunks[s].layer_end,
                      .is_first = s == 0,
                      .is_last = s == toy->plan.P - 1};
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
    *model = (ToyModel){.layer_end = toy->num_layers, .is_first = true, .is_last = true};
    for (int32_t m = 0; m < toy->plan.M; m++) {
        const DynapipeBatch* batch = &toy->batches[m].batch;
        toy_api.forward(model, batch, NULL, NULL, acts, scratch, losses[m],
                        DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD);
        toy_api.backward_inputs(model, batch, NULL, acts, NULL, NULL, scratch);
        toy_api.backward_weights(model, batch, acts, NULL, scratch);
    }
}
