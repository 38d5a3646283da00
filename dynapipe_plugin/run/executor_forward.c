// executor_forward.c -- forward only, micro-batch after micro-batch: two inputs and two outputs take turns.
#include <string.h>

#include "../base/clock.h"
#include "executor_parts.h"

// Arena of a forward pass: two inputs, two outputs, activations, scratch; each for the largest batch.
typedef struct {
    int64_t in_bytes, out_bytes, acts_bytes, scratch_bytes;  // rounded up to PLAN_BUFFER_ALIGN
} ForwardLayout;

static void raise_to(int64_t* largest, int64_t num_bytes) {
    num_bytes = (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
    if (num_bytes > *largest) { *largest = num_bytes; }
}

static ForwardLayout forward_layout(const Executor* ex, const DynapipeBatch* batches, int32_t num_batches) {
    ForwardLayout layout = {0};
    for (int32_t i = 0; i < num_batches; i++) {
        raise_to(&layout.in_bytes, ex->api->boundary_bytes(ex->model, &batches[i], 0));
        raise_to(&layout.out_bytes, ex->api->boundary_bytes(ex->model, &batches[i], 1));
        raise_to(&layout.acts_bytes, ex->api->acts_bytes(ex->model, &batches[i], HEAD));
        raise_to(&layout.scratch_bytes, ex->api->scratch_bytes(ex->model, &batches[i]));
    }
    return layout;
}

int64_t executor_forward_bytes(const Executor* ex, const DynapipeBatch* batches, int32_t num_batches) {
    ForwardLayout layout = forward_layout(ex, batches, num_batches);
    return 2 * (layout.in_bytes + layout.out_bytes) + layout.acts_bytes + layout.scratch_bytes;
}

static Status forward_receive(Executor* ex, const ExecutorForward* f, int32_t i, unsigned char* in) {
    if (f->prev_rank < 0 || i >= f->num_batches) { return STATUS_OK; }
    return transfers_post(&ex->transfers, INSTR_RECV_ACT, i, f->prev_rank, TAG_FORWARD, in,
                          ex->api->boundary_bytes(ex->model, &f->batches[i], 0),
                          &ex->mbs[i].transfer[LINK_IN]);
}

// Batch i: its input was posted while batch i - 1 ran; its output's place was last used by batch i - 2.
static Status forward_one(Executor* ex, const ExecutorForward* f, const ForwardLayout* layout, int32_t i) {
    const DynapipeBatch* batch = &f->batches[i];
    unsigned char* arena = f->arena;
    unsigned char* in[2] = {arena, arena + layout->in_bytes};
    unsigned char* out = arena + 2 * layout->in_bytes + i % 2 * layout->out_bytes;
    unsigned char* acts = arena + 2 * (layout->in_bytes + layout->out_bytes);
    int64_t before_ns = clock_now_ns();
    TRY(forward_receive(ex, f, i + 1, in[(i + 1) % 2]));
    if (f->prev_rank >= 0) {
        TRY(transfers_wait(&ex->transfers, &ex->mbs[i].transfer[LINK_IN], INSTR_FWD, i));
    }
    if (f->next_rank >= 0 && i >= 2) {
        TRY(transfers_wait(&ex->transfers, &ex->mbs[i - 2].transfer[LINK_OUT], INSTR_FWD, i));
    }
    Status status;
    TraceEvent* event = executor_job_begin(ex, INSTR_FWD, i, before_ns, &status);
    TRY(status);
    int rc =
        ex->api->forward(ex->model, batch, f->prev_rank < 0 ? NULL : in[i % 2], f->next_rank < 0 ? NULL : out,
                         acts, acts + layout->acts_bytes, f->next_rank < 0 ? f->losses[i] : NULL, HEAD);
    TRY(executor_job_end(ex, event, rc));
    if (f->next_rank < 0) { return STATUS_OK; }
    return transfers_post(&ex->transfers, INSTR_SEND_ACT, i, f->next_rank, TAG_FORWARD, out,
                          ex->api->boundary_bytes(ex->model, batch, 1), &ex->mbs[i].transfer[LINK_OUT]);
}

Status executor_run_forward(Executor* ex, const ExecutorForward* f) {
    int64_t needed_bytes = executor_forward_bytes(ex, f->batches, f->num_batches);
    if (needed_bytes > f->arena_bytes) {
        return FAIL(STATUS_OUT_OF_RANGE, "rank %d: forward needs %lld bytes, the arena has %lld",
                    (int)ex->rank, (long long)needed_bytes, (long long)f->arena_bytes);
    }
    ForwardLayout layout = forward_layout(ex, f->batches, f->num_batches);
    TRY(executor_reserve(ex, f->num_batches, 3 * f->num_batches));
    TRY(forward_receive(ex, f, 0, f->arena));
    for (int32_t i = 0; i < f->num_batches; i++) { TRY(forward_one(ex, f, &layout, i)); }
    return executor_finish(ex);
}
