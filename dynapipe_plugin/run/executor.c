// executor.c -- one rank's instruction list, in order; transfers in the background.
#include "executor.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../base/clock.h"
#include "executor_parts.h"
#include "transfer_groups.h"

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
    free(ex->grouped);
    free(ex->group_room);
    free(ex->mbs);
    free(ex);
}

void executor_use_device(Executor* ex, Device device) {
    ex->device = device;
    ex->transfers.jobs.device = device;
}

void executor_position(const Executor* ex, char* out, size_t out_bytes) {
    transfers_position(&ex->transfers, out, out_bytes);
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

Status executor_reserve(Executor* ex, int32_t M, int32_t num_instrs) {
    if (M > ex->max_mbs) {
        free(ex->mbs);
        ex->mbs = malloc((size_t)M * sizeof *ex->mbs);
        ex->max_mbs = ex->mbs == NULL ? 0 : M;
        if (ex->mbs == NULL) { return FAIL(STATUS_NO_MEMORY, "executor: %d micro-batches", (int)M); }
    }
    if (M > 0) { memset(ex->mbs, 0, (size_t)M * sizeof *ex->mbs); }
    return transfers_begin(&ex->transfers, num_instrs + EXECUTOR_SPARE_EVENTS);
}

// Groups of my list, where the transport has them.
static Status find_groups(Executor* ex, const Plan* plan) {
    if (ex->transfers.transport->api->group_begin == NULL) { return STATUS_OK; }
    int32_t longest = 1;
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        if (plan->ranks[r].num_instrs > longest) { longest = plan->ranks[r].num_instrs; }
    }
    if (longest > ex->max_instrs) {
        free(ex->grouped);
        free(ex->group_room);
        ex->grouped = malloc((size_t)longest);
        ex->group_room = malloc((size_t)longest * sizeof *ex->group_room);
        bool failed = ex->grouped == NULL || ex->group_room == NULL;
        ex->max_instrs = failed ? 0 : longest;
        if (failed) { return FAIL(STATUS_NO_MEMORY, "executor: %d instructions", (int)longest); }
    }
    transfer_groups_find(ex->grouped, plan, ex->rank, ex->group_room);
    return STATUS_OK;
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
    return FAIL(
        STATUS_INVALID_PLAN,
        "rank %d: %s mb %d needs %lld bytes of %s, the plan gives %lld ---> its bytes must come from counts "
        "as dynapipe.h says: see what dynapipe_check_model() finds",
        (int)ex->rank, trace_kind_text(instr->kind), (int)instr->mb, (long long)num_bytes, buffer_text[kind],
        (long long)(is_missing ? 0 : mb->buffer_bytes[kind]));
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
    switch (instr->kind) {
        case INSTR_FWD:
        case INSTR_REC: {
            bool keeps = instr->kind == INSTR_REC || !mb->has_rec;
            TRY(need_buffer(ex, instr, keeps ? BUFFER_ACTS : BUFFER_FORWARD,
                            ex->api->acts_bytes(ex->model, batch, keeps ? KEEP | HEAD : 0)));
            TRY(need_buffer(ex, instr, BUFFER_SCRATCH, ex->api->scratch_bytes(ex->model, batch)));
            if (!is_first) { TRY(need_buffer(ex, instr, BUFFER_IN, mb->in_bytes)); }
            if (!is_last && instr->kind == INSTR_FWD) {
                TRY(need_buffer(ex, instr, BUFFER_OUT, mb->out_bytes));
            }
            break;
        }
        case INSTR_BWD:
            if (!is_first) { TRY(need_buffer(ex, instr, BUFFER_DIN, mb->in_bytes)); }
            if (!is_last) { TRY(need_buffer(ex, instr, BUFFER_DOUT, mb->out_bytes)); }
            break;
        case INSTR_RECV_ACT:
        case INSTR_SEND_GRAD:
        case INSTR_WAIT_GRAD:
            if (is_first) { return fail_instr(ex, instr, "the first stage has nobody before it"); }
            TRY(need_buffer(ex, instr, instr->kind == INSTR_RECV_ACT ? BUFFER_IN : BUFFER_DIN, mb->in_bytes));
            break;
        case INSTR_SEND_ACT:
        case INSTR_RECV_GRAD:
        case INSTR_WAIT_ACT:
            if (is_last) { return fail_instr(ex, instr, "the last stage has nobody behind it"); }
            TRY(need_buffer(ex, instr, instr->kind == INSTR_RECV_GRAD ? BUFFER_DOUT : BUFFER_OUT,
                            mb->out_bytes));
            break;
        default: break;
    }
    return STATUS_OK;
}

// What the plan was made for is what the model gets.
static Status check_counts(const Executor* ex, int32_t m, const DynapipeBatch* b) {
    const MbShape* shape = &ex->step->plan->mbs[m].shape;
    bool is_same = b->num_seqs == shape->num_seqs && b->num_tokens == shape->enc_tokens &&
                   b->num_squares == shape->enc_squares && b->num_dec_tokens == shape->dec_tokens &&
                   b->num_dec_squares == shape->dec_squares && b->num_cross == shape->cross_products &&
                   b->num_rows == shape->supervised_tokens;
    if (is_same) { return STATUS_OK; }
    return FAIL(
        STATUS_INVALID_PLAN,
        "rank %d: mb %d: a batch of %d sequences, %d + %d tokens (squares %lld + %lld, products %lld) "
        "and %d rows, the plan has %lld, %lld + %lld (%lld + %lld, %lld) and %lld",
        (int)ex->rank, (int)m, (int)b->num_seqs, (int)b->num_tokens, (int)b->num_dec_tokens,
        (long long)b->num_squares, (long long)b->num_dec_squares, (long long)b->num_cross, (int)b->num_rows,
        (long long)shape->num_seqs, (long long)shape->enc_tokens, (long long)shape->dec_tokens,
        (long long)shape->enc_squares, (long long)shape->dec_squares, (long long)shape->cross_products,
        (long long)shape->supervised_tokens);
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
        if (!mb->present) {
            TRY(check_counts(ex, instr->mb, batch));
            mb->in_bytes = ex->stage > 0 ? ex->api->boundary_bytes(ex->model, batch, 0) : 0;
            mb->out_bytes = is_last ? 0 : ex->api->boundary_bytes(ex->model, batch, 1);
        }
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
TraceEvent* executor_job_begin(Executor* ex, int32_t kind, int32_t mb, int64_t before_ns, Status* status) {
    *status = transfers_wait_for_room(&ex->transfers);
    TraceEvent* event = transfers_event(&ex->transfers, kind, mb, -1);
    event->wait_ns = event->begin_ns - before_ns;
    if (*status != STATUS_OK) { return event; }
    *status = job_marks_open(&ex->transfers.jobs, (int32_t)(event - ex->transfers.trace.events));
    const DynapipeDevice_v1* device = ex->device.api;
    if (device != NULL && device->range_begin != NULL) {
        char text[32];
        snprintf(text, sizeof text, "%s mb %d", trace_kind_text(kind), (int)mb);
        device->range_begin(ex->device.ctx, text);
    }
    return event;
}

Status executor_job_end(Executor* ex, TraceEvent* event, int rc) {
    const DynapipeDevice_v1* device = ex->device.api;
    if (device != NULL && device->range_end != NULL) { device->range_end(ex->device.ctx); }
    event->end_ns = clock_now_ns();
    if (device == NULL) { ex->transfers.trace.busy_ns += event->end_ns - event->begin_ns; }
    if (rc == 0) { return job_marks_close(&ex->transfers.jobs); }
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
                                    0);
            }
            return api->forward(ex->model, batch, in, out, mb->buffer[BUFFER_ACTS], ex->scratch, losses,
                                KEEP | HEAD);
        case INSTR_REC:  // its output went out long ago
            return api->forward(ex->model, batch, in, NULL, mb->buffer[BUFFER_ACTS], ex->scratch, losses,
                                KEEP | HEAD);
        case INSTR_BWD:
            rc = api->backward_inputs(ex->model, batch, in, mb->buffer[BUFFER_ACTS], dout, din, ex->scratch);
            if (rc != 0 || mb->has_wgt || api->backward_weights == NULL) { return rc; }
            return api->backward_weights(ex->model, batch, mb->buffer[BUFFER_ACTS], dout, ex->scratch);
        default:
            if (api->backward_weights == NULL) { return 0; }
            return api->backward_weights(ex->model, batch, mb->buffer[BUFFER_ACTS], dout, ex->scratch);
    }
}

static Status run_job(Executor* ex, const PlanInstr* instr) {
    const MbState* mb = &ex->mbs[instr->mb];
    bool is_backward = instr->kind == INSTR_BWD || instr->kind == INSTR_WGT;
    bool reads_link = is_backward ? ex->stage < ex->num_stages - 1 : ex->stage > 0;
    const uint8_t* arrival = &mb->transfer[is_backward ? LINK_DOUT : LINK_IN];
    int64_t before_ns = clock_now_ns();
    if (reads_link) { TRY(transfers_wait(&ex->transfers, arrival, instr->kind, instr->mb)); }
    Status status;
    TraceEvent* event = executor_job_begin(ex, instr->kind, instr->mb, before_ns, &status);
    TRY(status);
    return executor_job_end(ex, event, call_model(ex, instr));
}

static int32_t transfer_tag(int32_t mb, Link link) {
    return TAG_STEP + 2 * mb + (link == LINK_DOUT || link == LINK_DIN);
}

static Status run_transfer(Executor* ex, const PlanInstr* instr, Link link) {
    MbState* mb = &ex->mbs[instr->mb];
    int64_t num_bytes = link == LINK_IN || link == LINK_DIN ? mb->in_bytes : mb->out_bytes;
    return transfers_post(&ex->transfers, instr->kind, instr->mb, instr->peer, transfer_tag(instr->mb, link),
                          mb->buffer[link_buffer[link]], num_bytes, &mb->transfer[link]);
}

static Status run_wait(Executor* ex, const PlanInstr* instr, Link link) {
    TraceEvent* event = transfers_event(&ex->transfers, instr->kind, instr->mb, instr->peer);
    TRY(transfers_wait(&ex->transfers, &ex->mbs[instr->mb].transfer[link], instr->kind, instr->mb));
    event->end_ns = clock_now_ns();
    event->wait_ns = event->end_ns - event->begin_ns;
    return STATUS_OK;
}

Status executor_claim(const Executor* ex, const ExecutorStep* step, StepClaim* claim) {
    static const int8_t link_of[INSTR_COUNT] = {[INSTR_RECV_ACT] = LINK_IN,
                                                [INSTR_RECV_GRAD] = LINK_DOUT,
                                                [INSTR_SEND_ACT] = LINK_OUT,
                                                [INSTR_SEND_GRAD] = LINK_DIN};
    const Plan* plan = step->plan;
    const PlanRank* rank = &plan->ranks[ex->rank];
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        bool is_send = instr->kind == INSTR_SEND_ACT || instr->kind == INSTR_SEND_GRAD;
        if (!is_send && instr->kind != INSTR_RECV_ACT && instr->kind != INSTR_RECV_GRAD) { continue; }
        if (instr->mb < 0 || instr->mb >= plan->M || step->batches[instr->mb] == NULL) {
            return fail_instr(ex, instr, "no batch for it on this rank");
        }
        Link link = (Link)link_of[instr->kind];
        bool is_behind = link == LINK_OUT || link == LINK_DOUT;
        step_claim_add(is_behind ? &claim->to_next : &claim->to_prev, is_send, transfer_tag(instr->mb, link),
                       ex->api->boundary_bytes(ex->model, step->batches[instr->mb], is_behind));
    }
    return STATUS_OK;
}

static Status run_instr(Executor* ex, const PlanInstr* instr) {
    bool moved = false;
    if (ex->device.api == NULL) { TRY(transfers_poll(&ex->transfers, &moved)); }  // else the host runs ahead
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

static Status run_list(Executor* ex, const PlanRank* rank) {
    const DynapipeTransport_v1* api = ex->transfers.transport->api;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        bool paired = api->group_begin != NULL && ex->grouped[i] && i + 1 < rank->num_instrs;
        if (paired) { TRY(api->group_begin(ex->transfers.transport->ctx)); }
        TRY(run_instr(ex, &rank->instrs[i]));
        if (!paired) { continue; }
        TRY(run_instr(ex, &rank->instrs[++i]));
        TRY(api->group_end(ex->transfers.transport->ctx));
    }
    return STATUS_OK;
}

Status executor_start(Executor* ex, const ExecutorStep* step) {
    const Plan* plan = step->plan;
    int32_t num_ranks = ex->transfers.transport->num_ranks;
    if (plan->P < 1 || (int64_t)plan->P * plan->R != num_ranks) {
        return FAIL(STATUS_INVALID_PLAN, "the plan is for %d stages x %d replicas, %d ranks are running",
                    (int)plan->P, (int)plan->R, (int)num_ranks);
    }
    if (plan->M >= TAG_FORWARD / 2) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "%d micro-batches in a step, less than %d are supported ---> smaller -d or larger ones",
                    (int)plan->M, TAG_FORWARD / 2);
    }
    const PlanRank* rank = &plan->ranks[ex->rank];
    ex->step = step;
    ex->num_stages = plan->P;
    ex->stage = ex->rank % plan->P;
    TRY(executor_reserve(ex, plan->M, rank->num_instrs));
    TRY(prepare(ex, rank, plan->M));
    TRY(find_groups(ex, plan));
    return run_list(ex, rank);
}

Status executor_queue_begin(Executor* ex, TraceKind kind) {
    TraceEvent* event = transfers_event(&ex->transfers, (int32_t)kind, -1, -1);
    return job_marks_open(&ex->transfers.jobs, (int32_t)(event - ex->transfers.trace.events));
}

Status executor_queue_end(Executor* ex) {
    return job_marks_close(&ex->transfers.jobs);
}

Status executor_finish(Executor* ex) {
    TRY(transfers_finish(&ex->transfers));
    ex->transfers.trace.end_ns = clock_now_ns();
    TRY(job_marks_read(&ex->transfers.jobs, &ex->transfers.trace));
    if (ex->api->finish == NULL) { return STATUS_OK; }
    int rc = ex->api->finish(ex->model);
    return rc == 0 ? STATUS_OK
                   : FAIL(STATUS_COMM, "rank %d: the model %s returned error %d at the end of a step",
                          (int)ex->rank, ex->api->name, rc);
}

Status executor_run(Executor* ex, const ExecutorStep* step) {
    TRY(executor_start(ex, step));
    return executor_finish(ex);
}
