// executor_infer.c -- new tokens of some sequences through the stages of one replica, behind a cache.
#include "../base/clock.h"
#include "executor_parts.h"

static int64_t aligned(int64_t num_bytes) {
    return (num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
}

int64_t executor_infer_bytes(const Executor* ex, const DynapipeBatch* batch) {
    return aligned(ex->api->boundary_bytes(ex->model, batch, 0)) +
           aligned(ex->api->boundary_bytes(ex->model, batch, 1)) +
           aligned(ex->api->infer_bytes(ex->model, batch));
}

int64_t executor_cache_bytes(const Executor* ex, const DynapipeCache* cache) {
    return aligned(ex->api->cache_bytes(ex->model, cache));
}

// in and out are empty where the batch has no tokens for the layers on that side (an encoder that is done).
// The model waits for `next` inside the call, where no deadline is looked at: what it reads is here before.
Status executor_run_infer(Executor* ex, const ExecutorInfer* f) {
    int64_t in_bytes = f->prev_rank < 0 ? 0 : ex->api->boundary_bytes(ex->model, f->batch, 0);
    int64_t out_bytes = f->next_rank < 0 ? 0 : ex->api->boundary_bytes(ex->model, f->batch, 1);
    int64_t needed_bytes = executor_infer_bytes(ex, f->batch);
    if (needed_bytes > f->arena_bytes) {
        return FAIL(STATUS_OUT_OF_RANGE, "rank %d: inference needs %lld bytes, the arena has %lld",
                    (int)ex->rank, (long long)needed_bytes, (long long)f->arena_bytes);
    }
    unsigned char *in = f->arena, *out = in + aligned(ex->api->boundary_bytes(ex->model, f->batch, 0));
    unsigned char* scratch = out + aligned(ex->api->boundary_bytes(ex->model, f->batch, 1));
    TRY(executor_reserve(ex, 1, 3));
    uint8_t *arrived = &ex->mbs[0].transfer[LINK_IN], *sent = &ex->mbs[0].transfer[LINK_OUT];
    int64_t before_ns = clock_now_ns();
    if (in_bytes > 0) {
        TRY(transfers_post(&ex->transfers, INSTR_RECV_ACT, 0, f->prev_rank, TAG_FORWARD, in, in_bytes,
                           arrived));
        TRY(transfers_wait(&ex->transfers, arrived, INSTR_FWD, 0));
        TRY(transfers_finish(&ex->transfers));
    }
    Status status;
    TraceEvent* event = executor_job_begin(ex, INSTR_FWD, 0, before_ns, &status);
    TRY(status);
    int rc = ex->api->infer(ex->model, f->batch, f->cache, f->prev_rank < 0 ? NULL : in,
                            f->next_rank < 0 ? NULL : out, scratch, f->next);
    TRY(executor_job_end(ex, event, rc));
    if (out_bytes > 0) {
        TRY(transfers_post(&ex->transfers, INSTR_SEND_ACT, 0, f->next_rank, TAG_FORWARD, out, out_bytes,
                           sent));
    }
    return executor_finish(ex);
}
