#include "transfers.h"

#include <stdlib.h>

#include "../base/clock.h"
#include "backoff.h"

Status transfers_begin(Transfers* t, int32_t num_events) {
    if (num_events > t->max_events) {
        free(t->trace.events);
        free(t->items);
        t->trace.events = malloc((size_t)num_events * sizeof *t->trace.events);
        t->items = malloc((size_t)num_events * sizeof *t->items);
        bool failed = t->trace.events == NULL || t->items == NULL;
        t->max_events = failed ? 0 : num_events;
        if (failed) { return FAIL(STATUS_NO_MEMORY, "transfers: room for %d", (int)num_events); }
    }
    t->num_items = 0;
    t->last_progress_ns = clock_now_ns();
    t->trace = (TraceRank){.rank = t->transport->rank,
                           .events = t->trace.events,
                           .begin_ns = t->last_progress_ns,
                           .end_ns = t->last_progress_ns};
    return STATUS_OK;
}

void transfers_free(Transfers* t) {
    free(t->trace.events);
    free(t->items);
    *t = (Transfers){0};
}

TraceEvent* transfers_event(Transfers* t, int32_t kind, int32_t mb, int32_t peer) {
    TraceEvent* event = &t->trace.events[t->trace.num_events++];
    int64_t now_ns = clock_now_ns();
    *event = (TraceEvent){.kind = kind, .mb = mb, .peer = peer, .begin_ns = now_ns, .end_ns = now_ns};
    return event;
}

Status transfers_post(Transfers* t, int32_t kind, int32_t mb, int32_t peer, int32_t tag, void* data,
                      int64_t num_bytes, uint8_t* state) {
    Transfer transfer = {.state = state, .event_idx = t->trace.num_events};
    transfers_event(t, kind, mb, peer);
    const DynapipeTransport_v1* api = t->transport->api;
    void* ctx = t->transport->ctx;
    bool is_receive = kind == INSTR_RECV_ACT || kind == INSTR_RECV_GRAD;
    TRY(is_receive ? api->irecv(ctx, peer, tag, data, (size_t)num_bytes, &transfer.request)
                   : api->isend(ctx, peer, tag, data, (size_t)num_bytes, &transfer.request));
    t->items[t->num_items++] = transfer;
    *state = TRANSFER_POSTED;
    return STATUS_OK;
}

Status transfers_poll(Transfers* t, bool* moved) {
    int32_t kept = 0;
    Status status = STATUS_OK;
    for (int32_t i = 0; i < t->num_items; i++) {
        Transfer transfer = t->items[i];
        int done = 0;
        if (status == STATUS_OK) {
            status = t->transport->api->test(t->transport->ctx, transfer.request, &done);
        }
        if (!done) {  // done: gone, with an error too
            t->items[kept++] = transfer;
            continue;
        }
        *moved = true;
        *transfer.state = TRANSFER_DONE;
        t->last_progress_ns = clock_now_ns();
        t->trace.events[transfer.event_idx].end_ns = t->last_progress_ns;
    }
    t->num_items = kept;
    return status;
}

static Status fail_stuck(const Transfers* t, const uint8_t* state, int32_t kind, int32_t mb) {
    TraceEvent missing = {.kind = kind, .mb = mb, .peer = -1};
    for (int32_t i = 0; i < t->num_items; i++) {
        if (t->items[i].state == state) { missing = t->trace.events[t->items[i].event_idx]; }
    }
    return FAIL(
        STATUS_COMM,
        "rank %d: %s mb %d waits for %s mb %d with rank %d, nothing moved for %.1f s ---> see what rank "
        "%d does, or raise --comm-timeout",
        (int)t->transport->rank, trace_kind_text(kind), (int)mb, trace_kind_text(missing.kind),
        (int)missing.mb, (int)missing.peer, (double)t->timeout_ns / 1e9, (int)missing.peer);
}

Status transfers_wait(Transfers* t, const uint8_t* state, int32_t kind, int32_t mb) {
    Backoff backoff = {0};
    int64_t begin_ns = clock_now_ns();
    t->last_progress_ns = begin_ns;
    while (*state != TRANSFER_DONE) {
        bool moved = false;
        TRY(transfers_poll(t, &moved));
        if (moved) {
            backoff = (Backoff){0};
            continue;
        }
        backoff_pause(&backoff);
        if (t->timeout_ns > 0 && clock_now_ns() - t->last_progress_ns > t->timeout_ns) {
            return fail_stuck(t, state, kind, mb);
        }
    }
    t->trace.wait_ns += clock_now_ns() - begin_ns;
    return STATUS_OK;
}

Status transfers_finish(Transfers* t) {
    while (t->num_items > 0) {
        Transfer last = t->items[t->num_items - 1];
        TraceEvent event = t->trace.events[last.event_idx];
        TRY(transfers_wait(t, last.state, event.kind, event.mb));
    }
    return STATUS_OK;
}
