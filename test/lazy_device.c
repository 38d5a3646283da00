#include "lazy_device.h"

#include <stdlib.h>
#include <string.h>

#include "../util/program.h"

enum { MAX_WORK = 4096 };

typedef enum {
    WORK_FORWARD,
    WORK_BACKWARD_INPUTS,
    WORK_BACKWARD_WEIGHTS,
    WORK_COMBINE,
    WORK_MARK,
    WORK_JOIN
} WorkKind;

enum { MAX_PARTS = 8 };

typedef struct {
    WorkKind kind;
    ToyModel* toy;
    const DynapipeBatch* batch;
    const void *in, *dout;
    void *out, *acts, *din, *scratch;
    float* losses;
    int flags, idx;  // of the mark, or the transfer that is joined
    int32_t num_parts;
    const void* parts[MAX_PARTS];
    void* factors[MAX_PARTS];
} Work;

typedef struct {
    int32_t peer, tag;
    void* data;
    size_t num_bytes;
    bool is_send, is_done;
    int after;      // work queued before it
    int group;      // transfers of one group have one number
    void* request;  // of the host's transport, once begun
} Move;

struct LazyModel {
    LazyDevice* lazy;
    ToyModel* toy;
};

struct LazyDevice {
    Transport* host;
    LazyModel models[LAZY_MAX_MODELS];
    int num_models;
    Rng rng;
    Work work[MAX_WORK];
    int num_work, num_worked;
    Move moves[MAX_WORK];
    int num_moves, num_moved, group;
    bool in_group, forgets, failed;
    int num_groups, group_moves, largest_group;
    int32_t num_marks, num_passed, most_marks;
    int64_t mark_ns[MAX_WORK];
    bool mark_done[MAX_WORK];
    float losses[TOY_MAX_ROWS];  // of infer()
};

// --- the queues ------------------------------------------------------------------------------------------
static bool run_work(LazyDevice* lazy) {
    if (lazy->num_worked == lazy->num_work) { return false; }
    const Work* w = &lazy->work[lazy->num_worked];
    if (w->kind == WORK_JOIN && !lazy->moves[w->idx].is_done) { return false; }
    int rc = 0;
    if (w->kind == WORK_FORWARD) {
        rc = toy_api.forward(w->toy, w->batch, w->in, w->out, w->acts, w->scratch, w->losses, w->flags);
    } else if (w->kind == WORK_BACKWARD_INPUTS) {
        rc = toy_api.backward_inputs(w->toy, w->batch, w->in, w->acts, w->dout, w->din, w->scratch);
    } else if (w->kind == WORK_BACKWARD_WEIGHTS) {
        rc = toy_api.backward_weights(w->toy, w->batch, w->acts, w->dout, w->scratch);
    } else if (w->kind == WORK_COMBINE) {
        void* const* factors = w->din == NULL ? NULL : w->factors;
        rc = toy_api.combine(w->toy, w->batch, w->num_parts, w->parts, w->din, factors, w->losses);
    } else if (w->kind == WORK_MARK) {
        lazy->mark_done[w->idx] = true;
        lazy->num_passed++;
        lazy->mark_ns[w->idx] = clock_now_ns();
    }
    lazy->failed |= rc != 0;
    lazy->num_worked++;
    return true;
}

// The transfer, or group, whose turn it is.
static Status run_moves(LazyDevice* lazy, bool* moved) {
    if (lazy->num_moved == lazy->num_moves ||
        (lazy->in_group && lazy->moves[lazy->num_moved].group == lazy->group)) {
        return STATUS_OK;
    }
    const DynapipeTransport_v1* api = lazy->host->api;
    int group = lazy->moves[lazy->num_moved].group;
    bool all_done = true;
    for (int i = lazy->num_moved; i < lazy->num_moves && lazy->moves[i].group == group; i++) {
        Move* m = &lazy->moves[i];
        if (m->is_done) { continue; }
        if (lazy->num_worked < m->after) { return STATUS_OK; }
        if (m->request == NULL) {
            TRY(m->is_send
                    ? api->isend(lazy->host->ctx, m->peer, m->tag, m->data, m->num_bytes, &m->request)
                    : api->irecv(lazy->host->ctx, m->peer, m->tag, m->data, m->num_bytes, &m->request));
        }
        int done;
        TRY(api->test(lazy->host->ctx, m->request, &done));
        m->is_done = done != 0;
        all_done &= m->is_done;
        *moved |= m->is_done;
    }
    while (all_done && lazy->num_moved < lazy->num_moves && lazy->moves[lazy->num_moved].group == group) {
        lazy->num_moved++;
    }
    return STATUS_OK;
}

// A few things, chosen by lot.
static Status run_some(LazyDevice* lazy) {
    bool moved = false;
    for (int tries = rng_between(&lazy->rng, 0, 3); tries > 0; tries--) {
        if (rng_between(&lazy->rng, 0, 1) == 0) {
            run_work(lazy);
        } else {
            TRY(run_moves(lazy, &moved));
        }
    }
    return lazy->failed ? FAIL(STATUS_DEVICE, "lazy: a job failed") : STATUS_OK;
}

// --- the model -------------------------------------------------------------------------------------------
static void add_work(LazyDevice* lazy, Work work) {
    if (lazy->num_work == MAX_WORK) { abort(); }
    lazy->work[lazy->num_work++] = work;
}

static void queue(LazyModel* model, Work work) {
    work.toy = model->toy;
    add_work(model->lazy, work);
}

static int64_t lazy_acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    return toy_api.acts_bytes(((LazyModel*)model)->toy, batch, flags);
}

static int64_t lazy_scratch_bytes(void* model, const DynapipeBatch* batch) {
    return toy_api.scratch_bytes(((LazyModel*)model)->toy, batch);
}

static int64_t lazy_boundary_bytes(void* model, const DynapipeBatch* batch, int is_behind) {
    return toy_api.boundary_bytes(((LazyModel*)model)->toy, batch, is_behind);
}

static int lazy_forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                        void* scratch, float* losses, int flags) {
    queue(model, (Work){.kind = WORK_FORWARD,
                        .batch = batch,
                        .in = in,
                        .out = out,
                        .acts = acts,
                        .scratch = scratch,
                        .losses = losses,
                        .flags = flags});
    return 0;
}

static int lazy_backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                                const void* dout, void* din, void* scratch) {
    queue(model, (Work){.kind = WORK_BACKWARD_INPUTS,
                        .batch = batch,
                        .in = in,
                        .acts = acts,
                        .dout = dout,
                        .din = din,
                        .scratch = scratch});
    return 0;
}

static int lazy_backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                                 void* scratch) {
    queue(model,
          (Work){
              .kind = WORK_BACKWARD_WEIGHTS, .batch = batch, .acts = acts, .dout = dout, .scratch = scratch});
    return 0;
}

static int64_t lazy_part_bytes(void* model, const DynapipeBatch* batch, int flags) {
    return toy_api.part_bytes(((LazyModel*)model)->toy, batch, flags);
}

static int64_t lazy_factor_bytes(void* model, const DynapipeBatch* batch) {
    return toy_api.factor_bytes(((LazyModel*)model)->toy, batch);
}

static int lazy_combine(void* model, const DynapipeBatch* batch, int32_t num_parts, const void* const* parts,
                        void* dout, void* const* factors, float* losses) {
    Work work = {.kind = WORK_COMBINE, .batch = batch, .din = dout, .losses = losses};
    if (num_parts > MAX_PARTS) { abort(); }
    work.num_parts = num_parts;
    for (int32_t p = 0; p < num_parts; p++) {
        work.parts[p] = parts[p];
        if (factors != NULL) { work.factors[p] = factors[p]; }
    }
    queue(model, work);
    return 0;
}

static int64_t lazy_cache_bytes(void* model, const DynapipeCache* cache) {
    (void)model;
    (void)cache;
    return 0;
}

static int64_t lazy_infer_bytes(void* model, const DynapipeBatch* batch) {
    return lazy_acts_bytes(model, batch, DYNAPIPE_FORWARD_HEAD) + lazy_scratch_bytes(model, batch);
}

// Forward; the last stage waits for its result in here, where transfers do not move. next (num_rows): losses.
static int lazy_infer(void* model, const DynapipeBatch* batch, const DynapipeCache* cache, const void* in,
                      void* out, void* scratch, int32_t* next) {
    LazyDevice* lazy = ((LazyModel*)model)->lazy;
    (void)cache;
    unsigned char* behind_acts =
        (unsigned char*)scratch + lazy_acts_bytes(model, batch, DYNAPIPE_FORWARD_HEAD);
    lazy_forward(model, batch, in, out, scratch, behind_acts, lazy->losses, DYNAPIPE_FORWARD_HEAD);
    if (!((LazyModel*)model)->toy->is_last) { return 0; }
    while (run_work(lazy)) {}
    for (int32_t r = 0; r < batch->num_rows; r++) { next[r] = (int32_t)lazy->losses[r]; }
    return lazy->num_worked == lazy->num_work ? 0 : 1;
}

static void lazy_zero_gradients(void* model) {
    toy_api.zero_gradients(((LazyModel*)model)->toy);
}

// By now the executor has waited for everything.
static int lazy_finish(void* model) {
    const LazyDevice* lazy = ((const LazyModel*)model)->lazy;
    return lazy->num_worked == lazy->num_work && lazy->num_moved == lazy->num_moves ? 0 : 1;
}

const DynapipeModel_v1 lazy_model_api = {.name = "lazy toy",
                                         .acts_bytes = lazy_acts_bytes,
                                         .scratch_bytes = lazy_scratch_bytes,
                                         .boundary_bytes = lazy_boundary_bytes,
                                         .forward = lazy_forward,
                                         .backward_inputs = lazy_backward_inputs,
                                         .backward_weights = lazy_backward_weights,
                                         .zero_gradients = lazy_zero_gradients,
                                         .finish = lazy_finish,
                                         .cache_bytes = lazy_cache_bytes,
                                         .infer_bytes = lazy_infer_bytes,
                                         .infer = lazy_infer,
                                         .part_bytes = lazy_part_bytes,
                                         .factor_bytes = lazy_factor_bytes,
                                         .combine = lazy_combine};

// --- the device ------------------------------------------------------------------------------------------
static Status device_begin(void* ctx, int32_t num_marks) {
    LazyDevice* lazy = ctx;
    if (num_marks > MAX_WORK || lazy->num_worked < lazy->num_work) {
        return FAIL(STATUS_DEVICE, "lazy: not idle");
    }
    lazy->num_work = lazy->num_worked = lazy->num_moves = lazy->num_moved = 0;
    lazy->num_marks = lazy->num_passed = 0;
    lazy->group++;
    memset(lazy->mark_done, 0, sizeof lazy->mark_done);
    return STATUS_OK;
}

static Status device_mark(void* ctx, int32_t* out) {
    LazyDevice* lazy = ctx;
    *out = lazy->num_marks++;
    if (lazy->num_marks - lazy->num_passed > lazy->most_marks) {
        lazy->most_marks = lazy->num_marks - lazy->num_passed;
    }
    add_work(lazy, (Work){.kind = WORK_MARK, .idx = *out});
    return STATUS_OK;
}

static Status device_is_done(void* ctx, int32_t mark, int* done) {
    LazyDevice* lazy = ctx;
    TRY(run_some(lazy));
    *done = lazy->mark_done[mark];
    return STATUS_OK;
}

static Status device_mark_ns(void* ctx, int32_t mark, int64_t* out_ns) {
    *out_ns = ((LazyDevice*)ctx)->mark_ns[mark];
    return STATUS_OK;
}

static Status device_settle(void* ctx) {
    const LazyDevice* lazy = ctx;
    return lazy->num_worked == lazy->num_work ? STATUS_OK : FAIL(STATUS_DEVICE, "lazy: not idle");
}

static const DynapipeDevice_v1 device_api = {.name = "lazy",
                                             .begin = device_begin,
                                             .mark = device_mark,
                                             .is_done = device_is_done,
                                             .mark_ns = device_mark_ns,
                                             .settle = device_settle};

// --- the transport ---------------------------------------------------------------------------------------
static Status post(LazyDevice* lazy, Move move, void** request) {
    if (!lazy->in_group) { lazy->group++; }
    lazy->group_moves++;
    move.after = lazy->num_work;
    move.group = lazy->group;
    lazy->moves[lazy->num_moves] = move;
    *request = &lazy->moves[lazy->num_moves++];
    return STATUS_OK;
}

static Status lazy_isend(void* ctx, int32_t peer, int32_t tag, const void* data, size_t num_bytes,
                         void** request) {
    Move move = {
        .peer = peer, .tag = tag, .data = (void*)(uintptr_t)data, .num_bytes = num_bytes, .is_send = true};
    return post(ctx, move, request);
}

static Status lazy_irecv(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes, void** request) {
    return post(ctx, (Move){.peer = peer, .tag = tag, .data = data, .num_bytes = num_bytes}, request);
}

static Status lazy_test(void* ctx, void* request, int* done) {
    TRY(run_some(ctx));
    *done = ((const Move*)request)->is_done;
    return STATUS_OK;
}

static Status lazy_join(void* ctx, void* request, int* joined) {
    LazyDevice* lazy = ctx;
    const Move* move = request;
    // Now and then as with staging: not before the data is there.
    *joined = move->is_done || rng_between(&lazy->rng, 0, 3) > 0;
    if (*joined && !lazy->forgets) {
        add_work(lazy, (Work){.kind = WORK_JOIN, .idx = (int)(move - lazy->moves)});
    }
    return STATUS_OK;
}

static Status lazy_group_begin(void* ctx) {
    LazyDevice* lazy = ctx;
    lazy->in_group = true;
    lazy->group++;
    lazy->group_moves = 0;
    return STATUS_OK;
}

static Status lazy_group_end(void* ctx) {
    LazyDevice* lazy = ctx;
    lazy->in_group = false;
    lazy->num_groups++;
    if (lazy->group_moves > lazy->largest_group) { lazy->largest_group = lazy->group_moves; }
    return STATUS_OK;
}

static const DynapipeTransport_v1 transport_api = {.name = "lazy",
                                                   .isend = lazy_isend,
                                                   .irecv = lazy_irecv,
                                                   .test = lazy_test,
                                                   .join = lazy_join,
                                                   .group_begin = lazy_group_begin,
                                                   .group_end = lazy_group_end};

LazyDevice* lazy_device_create(Transport* host, uint64_t seed) {
    LazyDevice* lazy = calloc(1, sizeof *lazy);
    if (lazy == NULL) { abort(); }
    lazy->host = host;
    lazy->rng = rng_seed(seed);
    return lazy;
}

LazyModel* lazy_device_add(LazyDevice* lazy, ToyModel* toy) {
    if (lazy->num_models == LAZY_MAX_MODELS) { abort(); }
    lazy->models[lazy->num_models] = (LazyModel){lazy, toy};
    return &lazy->models[lazy->num_models++];
}

void lazy_device_free(LazyDevice* lazy) {
    free(lazy);
}

Device lazy_device(LazyDevice* lazy) {
    return (Device){&device_api, lazy};
}

Transport lazy_transport(LazyDevice* lazy) {
    return (Transport){
        .api = &transport_api, .ctx = lazy, .rank = lazy->host->rank, .num_ranks = lazy->host->num_ranks};
}

void lazy_device_forget_joins(LazyDevice* lazy) {
    lazy->forgets = true;
}

LazyCounts lazy_device_counts(const LazyDevice* lazy) {
    return (LazyCounts){lazy->num_groups, lazy->largest_group, lazy->most_marks};
}
