#include "toy_plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "toy_plan_parts.h"

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

static Cell* cell(const Maker* mk, int32_t row, int32_t m) {
    return &mk->cells[row * mk->toy->plan.M + m];
}

// An instruction on the stage of `row`, named by `chunk`; other: row whose stage is at the other end, -1: a
// job.
static void append(const Maker* mk, int32_t row, int32_t chunk, int32_t m, InstrKind kind, int32_t other) {
    Plan* plan = &mk->toy->plan;
    int32_t first = plan->mbs[m].replica * plan->P;
    PlanRank* list = &plan->ranks[first + toy_stage_of(mk->toy, row)];
    list->instrs[list->num_instrs++] =
        (PlanInstr){.kind = (uint8_t)kind,
                    .chunk = (int16_t)chunk,
                    .mb = m,
                    .peer = other < 0 ? -1 : first + toy_stage_of(mk->toy, other)};
}

// Every share's part is back.
static bool has_parts(const Maker* mk, int32_t m) {
    bool all = true;
    for (int32_t row = toy_num_chunks(mk->toy); row < toy_num_rows(mk->toy); row++) {
        all &= !toy_has_row(mk->toy, row) || cell(mk, row, m)->f;
    }
    return all;
}

// What a row could do next of a micro-batch; up to 6 kinds. The order of the list has no meaning.
static int32_t enabled(const Maker* mk, int32_t row, int32_t m, InstrKind* kinds) {
    const Cell* c = cell(mk, row, m);
    bool got_grad = row == toy_last_chunk(mk->toy) ? has_parts(mk, m) : c->got_grad;
    bool share = toy_is_share(mk->toy, row);
    int32_t n = 0;
    if (!c->f && c->got_act) { kinds[n++] = INSTR_FWD; }
    if (!share && c->f && c->recompute && !c->r) { kinds[n++] = INSTR_REC; }
    if (!share && c->f && (!c->recompute || c->r) && !c->b && got_grad) { kinds[n++] = INSTR_BWD; }
    if (!share && c->b && c->split && !c->w) { kinds[n++] = INSTR_WGT; }
    if (share && c->f && !c->w && (c->got_fact || !toy_by_vocabulary(mk->toy))) { kinds[n++] = INSTR_WGT; }
    if (c->act_pending && c->waits_act) { kinds[n++] = INSTR_WAIT_ACT; }
    if (c->grad_pending && c->waits_grad) { kinds[n++] = INSTR_WAIT_GRAD; }
    if (c->fact_pending && c->waits_fact) { kinds[n++] = INSTR_WAIT_FACT; }
    return n;
}

// What row `from` made goes into `to`: over a link, where they are apart.
static void hand_on(const Maker* mk, int32_t from, int32_t to, int32_t m) {
    cell(mk, to, m)->got_act = true;
    if (toy_same_stage(mk->toy, from, to)) { return; }
    append(mk, from, from, m, INSTR_SEND_ACT, to);
    append(mk, to, to, m, INSTR_RECV_ACT, from);
    cell(mk, toy_is_share(mk->toy, to) ? to : from, m)->act_pending = true;
}

static void hand_back(const Maker* mk, int32_t from, int32_t to, int32_t m) {
    cell(mk, to, m)->got_grad = true;
    if (toy_same_stage(mk->toy, from, to)) { return; }
    append(mk, from, from, m, INSTR_SEND_GRAD, to);
    append(mk, to, to, m, INSTR_RECV_GRAD, from);
    cell(mk, from, m)->grad_pending = true;
}

static void hand_factors(const Maker* mk, int32_t share, int32_t m) {
    int32_t last = toy_last_chunk(mk->toy);
    cell(mk, share, m)->got_fact = true;
    if (toy_same_stage(mk->toy, last, share)) { return; }
    append(mk, last, share, m, INSTR_SEND_FACT, share);
    append(mk, share, share, m, INSTR_RECV_FACT, last);
    cell(mk, share, m)->fact_pending = true;
}

// A row's wait; of what the last chunk sends to a share, that chunk's.
static void do_wait(const Maker* mk, int32_t row, int32_t m, InstrKind kind) {
    Cell* c = cell(mk, row, m);
    int32_t last = toy_last_chunk(mk->toy);
    bool share = toy_is_share(mk->toy, row);
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
    bool is_last = row == toy_last_chunk(toy);
    if (kind > INSTR_REC) {
        do_wait(mk, row, m, kind);
        return;
    }
    append(mk, row, row, m, kind, -1);
    c->f |= kind == INSTR_FWD;
    c->r |= kind == INSTR_REC;
    c->b |= kind == INSTR_BWD;
    c->w |= kind == INSTR_WGT;
    if (kind == INSTR_FWD && toy_is_share(toy, row)) { hand_back(mk, row, toy_last_chunk(toy), m); }
    if (kind == INSTR_FWD && row < toy_last_chunk(toy)) { hand_on(mk, row, row + 1, m); }
    for (int32_t share = toy_num_chunks(toy); is_last && share < toy_num_rows(toy); share++) {
        if (!toy_has_row(toy, share)) { continue; }
        if (kind == INSTR_FWD) { hand_on(mk, row, share, m); }
        if (kind == INSTR_BWD && toy_by_vocabulary(toy)) { hand_factors(mk, share, m); }
    }
    if (kind == INSTR_BWD && row > 0) { hand_back(mk, row, row - 1, m); }
}

static void draw_lists(const Maker* mk) {
    Plan* plan = &mk->toy->plan;
    for (;;) {
        int32_t num_choices = 0, chosen_row = 0, chosen_m = 0;
        InstrKind chosen = INSTR_COUNT, kinds[8];
        for (int32_t row = 0; row < toy_num_rows(mk->toy); row++) {
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
        for (int32_t row = 0; row < toy_num_rows(mk->toy); row++) {
            Cell draw = {.split = rng_below(rng, 2),
                         .recompute = rng_below(rng, 3) == 0,
                         .waits_act = rng_below(rng, 4) > 0,
                         .waits_grad = rng_below(rng, 4) > 0,
                         .waits_fact = rng_below(rng, 4) > 0,
                         .got_act = row == 0};
            *cell(mk, row, m) = draw;
            if (toy_is_share(mk->toy, row)) { continue; }
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
    int32_t most = toy_num_rows(out);
    Maker mk = {out, rng, ARENA_NEW(arena, Cell, most * M), arena};
    draw_microbatches(&mk);
    for (int32_t r = 0; r < P * R; r++) {
        plan->ranks[r].instrs = ARENA_NEW(arena, PlanInstr, 10 * M * most);
        plan->ranks[r].buffers = ARENA_NEW(arena, PlanBuffer, 8 * M * most + 1);
    }
    draw_lists(&mk);
    delay_receives(&mk);
    for (int32_t r = 0; r < P * R; r++) { toy_buffers_place(out, r); }
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
    model.head = toy_by_vocabulary(toy) ? DYNAPIPE_HEAD_BY_VOCABULARY : DYNAPIPE_HEAD_BY_ROWS;
    if (!toy_by_vocabulary(toy)) { return model; }
    model.vocab_begin = TOY_VOCAB * placement->head_begin[s] / HEAD_UNITS / 16 * 16;
    model.vocab_end = TOY_VOCAB * placement->head_begin[s + 1] / HEAD_UNITS / 16 * 16;
    return model;
}

ToyModel toy_plan_model(const ToyPlan* toy, int32_t row) {
    if (toy_is_share(toy, row)) { return share_model(toy, toy_stage_of(toy, row)); }
    bool is_last = row == toy_last_chunk(toy), is_shared = toy->plan.placement.head != HEAD_WHOLE;
    return (ToyModel){.layer_begin = toy->plan.placement.chunks[row].layer_begin,
                      .layer_end = toy->plan.placement.chunks[row].layer_end,
                      .is_first = row == 0,
                      .is_last = is_last && !is_shared,
                      .head = is_last && is_shared ? DYNAPIPE_HEAD_FEEDS : DYNAPIPE_HEAD_AS_BLOCKS,
                      .vocab_end = TOY_VOCAB};
}

int32_t toy_plan_rows(const ToyPlan* toy, int32_t rank, int32_t rows[TOY_MAX_ROWS_HERE]) {
    int32_t n = 0;
    for (int32_t row = 0; row < toy_num_rows(toy); row++) {
        if (toy_has_row(toy, row) && toy_stage_of(toy, row) == rank % toy->plan.P) { rows[n++] = row; }
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
