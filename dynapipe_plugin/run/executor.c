// executor.c -- one rank's instruction list, in order; transfers in the background.
#include "executor.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../base/clock.h"
#include "transfers.h"

enum {
    FORWARD_TAG = TRANSPORT_TAG_END / 4,  // of all micro-batches: they pass a link in their order
    SPARE_EVENTS = 8,
    KEEP = DYNAPIPE_FORWARD_KEEP,
    HEAD = DYNAPIPE_FORWARD_HEAD
};

typedef enum { LINK_IN, LINK_DOUT, LINK_OUT, LINK_DIN, LINK_COUNT } Link;

// What this rank knows of one micro-batch in this step.
typedef struct {
    unsigned char* buffer[BUFFER_COUNT];  // NULL: none
    int64_t buffer_bytes[BUFFER_COUNT];
    int64_t boundary_bytes;
    uint8_t transfer[LINK_COUNT];  // TransferState
    uint32_t seen;                 // while checking: bit per InstrKind that the list had so far
    bool present, has_wgt, has_rec;
} MbState;

struct Executor {
    const DynapipeModel_v1* api;
    void* model;
    Transfers transfers;
    MbState* mbs;
    int32_t max_mbs;
    int32_t rank, stage, num_stages;  // of the step in progress
    unsigned char* scratch;
    const ExecutorStep* step;
};

static const uint8_t link_buffer[LINK_COUNT] = {BUFFER_IN, BUFFER_DOUT, BUFFER_OUT, BUFFER_DIN};

#define X(name, text) text,
static const char* const buffer_text[] = {BUFFER_LIST(X)};
#undef X

Status executor_create(Executor** out, const DynapipeModel_v1* api, void* model, Transport* transport,
                       int64_t timeout_ns) {
    Executor* ex = calloc(1, sizeof *ex);
    if (ex == NULL) { return FAIL(STATUS_NO_MEMORY, "executor: no memory"); }
    ex->api = api;
    ex->model = model;
    ex->transfers.transport = transport;
    ex->transfers.timeout_ns = timeout_ns;
    ex->rank = transport->rank;
    *out = ex;
    return STATUS_OK;
}

void executor_free(Executor* ex) {
    if (ex == NULL) { return; }
    transfers_free(&ex->transfers);
    free(ex->mbs);
    free(ex);
}

const TraceRank* executor_trace(const Executor* ex) {
    return &ex->transfers.trace;
}

void executor_trace_add(Executor* ex, TraceKind kind, int64_t begin_ns, int64_t end_ns) {
    TraceRank* trace = &ex->transfers.trace;
    if (trace->num_events >= ex->transfers.max_events) { return; }
    trace->events[trace->num_events++] =
        (TraceEvent){.kind = (int32_t)kind, .mb = -1, .peer = -1, .begin_ns = begin_ns, .end_ns = end_ns};
    if (end_ns > trace->end_ns) { trace->end_ns = end_ns; }
}

// Room for a step of M micro-batches and num_instrs instructions; kept for the next.
static Status reserve(Executor* ex, int32_t M, int32_t num_instrs) {
    if (M > ex->max_mbs) {
        free(ex->mbs);
        ex->mbs = malloc((size_t)M * sizeof *ex->mbs);
        ex->max_mbs = ex->mbs == NULL ? 0 : M;
        if (ex->mbs == NULL) { return FAIL(STATUS_NO_MEMORY, "executor: %d micro-batches", (int)M); }
    }
    if (M > 0) { memset(ex->mbs, 0, (size_t)M * sizeof *ex->mbs); }
    return transfers_begin(&ex->transfers, num_instrs + SPARE_EVENTS);
}

// --- checking a plan against the model -------------------------------------------------------------------
static Status fail_instr(const Executor* ex, const PlanInstr* instr, const char* why) {
    return FAIL(STATUS_INVALID_PLAN, "rank %d: %s mb %d: %s", (int)ex->rank, trace_kind_text(instr->kind),
                (int)instr->mb, why);
}

static Status place_buffers(Executor* ex, const PlanRank* rank, int32_t M) {
    const ExecutorStep* step = ex->step;
    ex->scratch = NULL;
    if (rank->arena_bytes > step->arena_bytes || (uintptr_t)step->arena % PLAN_BUFFER_ALIGN != 0) {
        return FAIL(
            STATUS_INVALID_PLAN,
            "rank %d: the plan lays out %lld bytes, the arena has %lld at %p (needs a multiple of %d)",
            (int)ex->rank, (long long)rank->arena_bytes, (long long)step->arena_bytes, step->arena,
            (int)PLAN_BUFFER_ALIGN);
    }
    for (int32_t i = 0; i < rank->num_buffers; i++) {
        const PlanBuffer* b = &rank->buffers[i];
        bool is_scratch = b->kind == BUFFER_SCRATCH;
        if (b->kind >= BUFFER_COUNT || (!is_scratch && (b->mb < 0 || b->mb >= M)) || b->offset_bytes < 0 ||
            b->num_bytes < 0 || b->offset_bytes > rank->arena_bytes - b->num_bytes ||
            b->offset_bytes % PLAN_BUFFER_ALIGN != 0) {
            return FAIL(STATUS_INVALID_PLAN, "rank %d: buffer %d (kind %d, mb %d) lies outside the arena",
                        (int)ex->rank, (int)i, (int)b->kind, (int)b->mb);
        }
        unsigned char* place = (unsigned char*)step->arena + b->offset_bytes;
        if (is_scratch) {
            ex->scratch = place;
            for (int32_t m = 0; m < M; m++) { ex->mbs[m].buffer_bytes[BUFFER_SCRATCH] = b->num_bytes; }
            continue;
        }
        if (ex->mbs[b->mb].buffer[b->kind] != NULL) {
            return FAIL(STATUS_INVALID_PLAN, "rank %d: two buffers %s of mb %d", (int)ex->rank,
                        buffer_text[b->kind], (int)b->mb);
        }
        ex->mbs[b->mb].buffer[b->kind] = place;
        ex->mbs[b->mb].buffer_bytes[b->kind] = b->num_bytes;
    }
    return STATUS_OK;
}

static Status need_buffer(const Executor* ex, const PlanInstr* instr, BufferKind kind, int64_t num_bytes) {
    const MbState* mb = &ex->mbs[instr->mb];
    bool is_missing = kind == BUFFER_SCRATCH ? ex->scratch == NULL : mb->buffer[kind] == NULL;
    if (num_bytes <= (is_missing ? 0 : mb->buffer_bytes[kind])) { return STATUS_OK; }
    return FAIL(STATUS_INVALID_PLAN,
                "rank %d: %s mb %d needs %lld bytes of %s, the plan gives %lld ---> the cost file belongs to "
                "another model: make it again with ./profile_costs",
                (int)ex->rank, trace_kind_text(instr->kind), (int)instr->mb, (long long)num_bytes,
                buffer_text[kind], (long long)(is_missing ? 0 : mb->buffer_bytes[kind]));
}

// Each instruction once per micro-batch, after what it builds on, and with the right neighbour.
static Status check_order(Executor* ex, const PlanInstr* instr) {
    MbState* mb = &ex->mbs[instr->mb];
    bool is_first = ex->stage == 0, is_last = ex->stage == ex->num_stages - 1;
    uint32_t before[INSTR_COUNT] = {
        [INSTR_FWD] = is_first ? 0 : 1u << INSTR_RECV_ACT,
        [INSTR_REC] = 1u << INSTR_FWD,
        [INSTR_BWD] = 1u << (mb->has_rec ? INSTR_REC : INSTR_FWD) | (is_last ? 0 : 1u << INSTR_RECV_GRAD),
        [INSTR_WGT] = 1u << INSTR_BWD,
        [INSTR_SEND_ACT] = 1u << INSTR_FWD,
        [INSTR_SEND_GRAD] = 1u << INSTR_BWD,
        [INSTR_WAIT_ACT] = 1u << INSTR_SEND_ACT,
        [INSTR_WAIT_GRAD] = 1u << INSTR_SEND_GRAD,
    };
    uint32_t missing = before[instr->kind] & ~mb->seen;
    for (int32_t kind = 0; kind < INSTR_COUNT; kind++) {
        if (missing & 1u << kind) {
            char why[64];
            snprintf(why, sizeof why, "comes before %s", trace_kind_text(kind));
            return fail_instr(ex, instr, why);
        }
    }
    if (mb->seen & 1u << instr->kind) { return fail_instr(ex, instr, "twice in the list"); }
    mb->seen |= 1u << instr->kind;
    bool to_next = instr->kind == INSTR_SEND_ACT || instr->kind == INSTR_RECV_GRAD;
    bool to_prev = instr->kind == INSTR_SEND_GRAD || instr->kind == INSTR_RECV_ACT;
    if ((to_next && instr->peer != ex->rank + 1) || (to_prev && instr->peer != ex->rank - 1)) {
        return fail_instr(ex, instr, "its peer is not the neighbouring stage");
    }
    return STATUS_OK;
}

// Every buffer the instruction touches is there and large enough for this model.
static Status check_buffers(Executor* ex, const PlanInstr* instr) {
    MbState* mb = &ex->mbs[instr->mb];
    const DynapipeBatch* batch = ex->step->batches[instr->mb];
    bool is_first = ex->stage == 0, is_last = ex->stage == ex->num_stages - 1;
    int64_t boundary = mb->boundary_bytes;
    switch (instr->kind) {
        case INSTR_FWD:
        case INSTR_REC: {
            bool keeps = instr->kind == INSTR_REC || !mb->has_rec;
            TRY(need_buffer(ex, instr, keeps ? BUFFER_ACTS : BUFFER_FORWARD,
                            ex->api->acts_bytes(ex->model, batch, keeps ? KEEP | HEAD : 0)));
            TRY(need_buffer(ex, instr, BUFFER_SCRATCH, ex->api->scratch_bytes(ex->model, batch)));
            if (!is_first) { TRY(need_buffer(ex, instr, BUFFER_IN, boundary)); }
            if (!is_last && instr->kind == INSTR_FWD) { TRY(need_buffer(ex, instr, BUFFER_OUT, boundary)); }
            break;
        }
        case INSTR_BWD:
            if (!is_first) { TRY(need_buffer(ex, instr, BUFFER_DIN, boundary)); }
            if (!is_last) { TRY(need_buffer(ex, instr, BUFFER_DOUT, boundary)); }
            break;
        case INSTR_RECV_ACT:
        case INSTR_SEND_GRAD:
        case INSTR_WAIT_GRAD:
            if (is_first) { return fail_instr(ex, instr, "the first stage has nobody before it"); }
            TRY(need_buffer(ex, instr, instr->kind == INSTR_RECV_ACT ? BUFFER_IN : BUFFER_DIN, boundary));
            break;
        case INSTR_SEND_ACT:
        case INSTR_RECV_GRAD:
        case INSTR_WAIT_ACT:
            if (is_last) { return fail_instr(ex, instr, "the last stage has nobody behind it"); }
            TRY(need_buffer(ex, instr, instr->kind == INSTR_RECV_GRAD ? BUFFER_DOUT : BUFFER_OUT, boundary));
            break;
        default: break;
    }
    return STATUS_OK;
}

static Status prepare(Executor* ex, const PlanRank* rank, int32_t M) {
    const ExecutorStep* step = ex->step;
    bool is_last = ex->stage == ex->num_stages - 1;
    TRY(place_buffers(ex, rank, M));
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (instr->kind >= INSTR_COUNT || instr->mb < 0 || instr->mb >= M) {
            return FAIL(STATUS_INVALID_PLAN, "rank %d: instruction %d has kind %d, mb %d", (int)ex->rank,
                        (int)i, (int)instr->kind, (int)instr->mb);
        }
        MbState* mb = &ex->mbs[instr->mb];
        const DynapipeBatch* batch = step->batches[instr->mb];
        if (batch == NULL) { return fail_instr(ex, instr, "no batch for it on this rank"); }
        if (is_last && (step->losses == NULL || step->losses[instr->mb] == NULL) && batch->num_rows > 0) {
            return fail_instr(ex, instr, "nowhere to put its losses");
        }
        if (!mb->present) { mb->boundary_bytes = ex->api->boundary_bytes(ex->model, batch); }
        mb->present = true;
        mb->has_wgt |= instr->kind == INSTR_WGT;
        mb->has_rec |= instr->kind == INSTR_REC;
    }
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        TRY(check_buffers(ex, &rank->instrs[i]));
        TRY(check_order(ex, &rank->instrs[i]));
    }
    return STATUS_OK;
}

// --- instructions ----------------------------------------------------------------------------------------
// before_ns: when the rank turned to this job.
static TraceEvent* job_begin(Executor* ex, int32_t kind, int32_t mb, int64_t before_ns) {
    TraceEvent* event = transfers_event(&ex->transfers, kind, mb, -1);
    event->wait_ns = event->begin_ns - before_ns;
    return event;
}

// rc: what the model returned.
static Status job_end(Executor* ex, TraceEvent* event, int rc) {
    event->end_ns = clock_now_ns();
    ex->transfers.trace.busy_ns += event->end_ns - event->begin_ns;
    if (rc == 0) { return STATUS_OK; }
    Status status = rc > 0 && rc < STATUS_COUNT ? (Status)rc : STATUS_OUT_OF_RANGE;
    return FAIL(status, "rank %d: %s mb %d: the model %s returned error %d", (int)ex->rank,
                trace_kind_text(event->kind), (int)event->mb, ex->api->name, rc);
}

static int call_model(Executor* ex, const PlanInstr* instr) {
    const DynapipeModel_v1* api = ex->api;
    const ExecutorStep* step = ex->step;
    const MbState* mb = &ex->mbs[instr->mb];
    const DynapipeBatch* batch = step->batches[instr->mb];
    bool is_first = ex->stage == 0, is_last = ex->stage == ex->num_stages - 1;
    void *in = is_first ? NULL : mb->buffer[BUFFER_IN], *din = is_first ? NULL : mb->buffer[BUFFER_DIN];
    void *out = is_last ? NULL : mb->buffer[BUFFER_OUT], *dout = is_last ? NULL : mb->buffer[BUFFER_DOUT];
    float* losses = is_last ? step->losses[instr->mb] : NULL;
    int rc = 0;
    switch (instr->kind) {
        case INSTR_FWD:
            if (mb->has_rec) {
                return api->forward(ex->model, batch, in, out, mb->buffer[BUFFER_FORWARD], ex->scratch, NULL,
                                    step->loss_scale, 0);
            }
            return api->forward(ex->model, batch, in, out, mb->buffer[BUFFER_ACTS], ex->scratch, losses,
                                step->loss_scale, KEEP | HEAD);
        case INSTR_REC:  // its output went out long ago
            return api->forward(ex->model, batch, in, NULL, mb->buffer[BUFFER_ACTS], ex->scratch, losses,
                                step->loss_scale, KEEP | HEAD);
        case INSTR_BWD:
            rc = api->backward_inputs(ex->model, batch, in, mb->buffer[BUFFER_ACTS], dout, din, ex->scratch);
            if (rc != 0 || mb->has_wgt) { return rc; }
            return api->backward_weights(ex->model, batch, mb->buffer[BUFFER_ACTS], dout, ex->scratch);
        default: return api->backward_weights(ex->model, batch, mb->buffer[BUFFER_ACTS], dout, ex->scratch);
    }
}

static Status run_job(Executor* ex, const PlanInstr* instr) {
    const MbState* mb = &ex->mbs[instr->mb];
    bool is_backward = instr->kind == INSTR_BWD || instr->kind == INSTR_WGT;
    bool reads_link = is_backward ? ex->stage < ex->num_stages - 1 : ex->stage > 0;
    const uint8_t* arrival = &mb->transfer[is_backward ? LINK_DOUT : LINK_IN];
    int64_t before_ns = clock_now_ns();
    if (reads_link) { TRY(transfers_wait(&ex->transfers, arrival, instr->kind, instr->mb)); }
    TraceEvent* event = job_begin(ex, instr->kind, instr->mb, before_ns);
    return job_end(ex, event, call_model(ex, instr));
}

static Status run_transfer(Executor* ex, const PlanInstr* instr, Link link) {
    MbState* mb = &ex->mbs[instr->mb];
    bool is_grad = link == LINK_DOUT || link == LINK_DIN;
    return transfers_post(&ex->transfers, instr->kind, instr->mb, instr->peer, 2 * instr->mb + is_grad,
                          mb->buffer[link_buffer[link]], mb->boundary_bytes, &mb->transfer[link]);
}

static Status run_wait(Executor* ex, const PlanInstr* instr, Link link) {
    TraceEvent* event = transfers_event(&ex->transfers, instr->kind, instr->mb, instr->peer);
    TRY(transfers_wait(&ex->transfers, &ex->mbs[instr->mb].transfer[link], instr->kind, instr->mb));
    event->end_ns = clock_now_ns();
    event->wait_ns = event->end_ns - event->begin_ns;
    return STATUS_OK;
}

static Status run_instr(Executor* ex, const PlanInstr* instr) {
    bool moved = false;
    TRY(transfers_poll(&ex->transfers, &moved));
    switch (instr->kind) {
        case INSTR_RECV_ACT: return run_transfer(ex, instr, LINK_IN);
        case INSTR_RECV_GRAD: return run_transfer(ex, instr, LINK_DOUT);
        case INSTR_SEND_ACT: return run_transfer(ex, instr, LINK_OUT);
        case INSTR_SEND_GRAD: return run_transfer(ex, instr, LINK_DIN);
        case INSTR_WAIT_ACT: return run_wait(ex, instr, LINK_OUT);
        case INSTR_WAIT_GRAD: return run_wait(ex, instr, LINK_DIN);
        default: return run_job(ex, instr);
    }
}

Status executor_run(Executor* ex, const ExecutorStep* step) {
    const Plan* plan = step->plan;
    int32_t num_ranks = ex->transfers.transport->num_ranks;
    if (plan->P < 1 || (int64_t)plan->P * plan->R != num_ranks) {
        return FAIL(STATUS_INVALID_PLAN, "the plan is for %d stages x %d replicas, %d ranks are running",
                    (int)plan->P, (int)plan->R, (int)num_ranks);
    }
    if (plan->M >= FORWARD_TAG / 2) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "%d micro-batches in a step, less than %d are supported ---> smaller -d or larger ones",
                    (int)plan->M, FORWARD_TAG / 2);
    }
    const PlanRank* rank = &plan->ranks[ex->rank];
    ex->step = step;
    ex->num_stages = plan->P;
    ex->stage = ex->rank % plan->P;
    TRY(reserve(ex, plan->M, rank->num_instrs));
    TRY(prepare(ex, rank, plan->M));
    for (int32_t i = 0; i < rank->num_instrs; i++) { TRY(run_instr(ex, &rank->instrs[i])); }
    TRY(transfers_finish(&ex->transfers));
    ex->transfers.trace.end_ns = clock_now_ns();
    return STATUS_OK;
}

// --- forward only ----------------------------------------------------------------------------------------

// Arena of a forward pass: two inputs, two outputs, activations, scratch; each for the largest batch.
typedef struct {
    int64_t boundary_bytes, acts_bytes, scratch_bytes;  // rounded up to PLAN_BUFFER_ALIGN
} ForwardLayout;

static void raise_to(int64_t* largest, int64_t num_bytes) {
    num_bytes = (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
    if (num_bytes > *largest) { *largest = num_bytes; }
}

static ForwardLayout forward_layout(const Executor* ex, const DynapipeBatch* batches, int32_t num_batches) {
    ForwardLayout layout = {0};
    for (int32_t i = 0; i < num_batches; i++) {
        raise_to(&layout.boundary_bytes, ex->api->boundary_bytes(ex->model, &batches[i]));
        raise_to(&layout.acts_bytes, ex->api->acts_bytes(ex->model, &batches[i], HEAD));
        raise_to(&layout.scratch_bytes, ex->api->scratch_bytes(ex->model, &batches[i]));
    }
    return layout;
}

int64_t executor_forward_bytes(const Executor* ex, const DynapipeBatch* batches, int32_t num_batches) {
    ForwardLayout layout = forward_layout(ex, batches, num_batches);
    return 4 * layout.boundary_bytes + layout.acts_bytes + layout.scratch_bytes;
}

static Status forward_receive(Executor* ex, const ExecutorForward* f, int32_t i, unsigned char* in) {
    if (f->prev_rank < 0 || i >= f->num_batches) { return STATUS_OK; }
    return transfers_post(&ex->transfers, INSTR_RECV_ACT, i, f->prev_rank, FORWARD_TAG, in,
                          ex->api->boundary_bytes(ex->model, &f->batches[i]), &ex->mbs[i].transfer[LINK_IN]);
}

// Batch i: its input was posted while batch i - 1 ran; its output's place was last used by batch i - 2.
static Status forward_one(Executor* ex, const ExecutorForward* f, const ForwardLayout* layout, int32_t i) {
    const DynapipeBatch* batch = &f->batches[i];
    unsigned char* arena = f->arena;
    unsigned char* in[2] = {arena, arena + layout->boundary_bytes};
    unsigned char* out = arena + (2 + i % 2) * layout->boundary_bytes;
    unsigned char* acts = arena + 4 * layout->boundary_bytes;
    int64_t before_ns = clock_now_ns();
    TRY(forward_receive(ex, f, i + 1, in[(i + 1) % 2]));
    if (f->prev_rank >= 0) {
        TRY(transfers_wait(&ex->transfers, &ex->mbs[i].transfer[LINK_IN], INSTR_FWD, i));
    }
    if (f->next_rank >= 0 && i >= 2) {
        TRY(transfers_wait(&ex->transfers, &ex->mbs[i - 2].transfer[LINK_OUT], INSTR_FWD, i));
    }
    TraceEvent* event = job_begin(ex, INSTR_FWD, i, before_ns);
    int rc =
        ex->api->forward(ex->model, batch, f->prev_rank < 0 ? NULL : in[i % 2], f->next_rank < 0 ? NULL : out,
                         acts, acts + layout->acts_bytes, f->next_rank < 0 ? f->losses[i] : NULL, 0.0f, HEAD);
    TRY(job_end(ex, event, rc));
    if (f->next_rank < 0) { return STATUS_OK; }
    return transfers_post(&ex->transfers, INSTR_SEND_ACT, i, f->next_rank, FORWARD_TAG, out,
                          ex->api->boundary_bytes(ex->model, batch), &ex->mbs[i].transfer[LINK_OUT]);
}

Status executor_run_forward(Executor* ex, const ExecutorForward* f) {
    int64_t needed_bytes = executor_forward_bytes(ex, f->batches, f->num_batches);
    if (needed_bytes > f->arena_bytes) {
        return FAIL(STATUS_OUT_OF_RANGE, "rank %d: forward needs %lld bytes, the arena has %lld",
                    (int)ex->rank, (long long)needed_bytes, (long long)f->arena_bytes);
    }
    ForwardLayout layout = forward_layout(ex, f->batches, f->num_batches);
    TRY(reserve(ex, f->num_batches, 3 * f->num_batches));
    TRY(forward_receive(ex, f, 0, f->arena));
    for (int32_t i = 0; i < f->num_batches; i++) { TRY(forward_one(ex, f, &layout, i)); }
    TRY(transfers_finish(&ex->transfers));
    ex->transfers.trace.end_ns = clock_now_ns();
    return STATUS_OK;
}
