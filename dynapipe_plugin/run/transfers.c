// transfers.c -- transfers and jobs in flight, in the order in which they were posted.
#include "transfers.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "../plan/plan_message.h"
#include "transport.h"
#include "../../util/program.h"

static Status job_marks_begin(JobMarks* m, int32_t max_jobs) {
    if (m->device.api == NULL) { return STATUS_OK; }
    if (max_jobs > m->max_jobs) {
        free(m->jobs);
        m->jobs = (JobMark*)malloc((size_t)max_jobs * sizeof *m->jobs);
        m->max_jobs = m->jobs == NULL ? 0 : max_jobs;
        if (m->jobs == NULL) { return FAIL(STATUS_NO_MEMORY, "executor: room for %d jobs", (int)max_jobs); }
    }
    m->num_jobs = m->num_done = 0;
    return m->device.api->begin(m->device.ctx, 2 * max_jobs);
}

static void job_marks_free(JobMarks* m) {
    free(m->jobs);
    *m = (JobMarks){0};
}

Status job_marks_open(JobMarks* m, int32_t event_idx) {
    if (m->device.api == NULL) { return STATUS_OK; }
    JobMark* job = &m->jobs[m->num_jobs];
    job->event_idx = event_idx;
    return m->device.api->mark(m->device.ctx, &job->begin);
}

Status job_marks_close(JobMarks* m) {
    if (m->device.api == NULL) { return STATUS_OK; }
    TRY(m->device.api->mark(m->device.ctx, &m->jobs[m->num_jobs].end));
    m->num_jobs++;
    return STATUS_OK;
}

// Called repeatedly: num_done grows; *moved becomes true if a job is done.
static Status job_marks_poll(JobMarks* m, bool* moved) {
    while (m->num_done < m->num_jobs) {
        int done = 0;
        TRY(m->device.api->is_done(m->device.ctx, m->jobs[m->num_done].end, &done));
        if (!done) { break; }
        m->num_done++;
        *moved = true;
    }
    return STATUS_OK;
}

Status job_marks_read(JobMarks* m, TraceRank* trace) {
    if (m->device.api == NULL) { return STATUS_OK; }
    int64_t before_ns = trace->begin_ns;
    int32_t job = 0;
    for (int32_t i = 0; i < trace->num_events; i++) {
        TraceEvent* event = &trace->events[i];
        if (job < m->num_jobs && m->jobs[job].event_idx == i) {
            TRY(m->device.api->mark_ns(m->device.ctx, m->jobs[job].begin, &event->begin_ns));
            TRY(m->device.api->mark_ns(m->device.ctx, m->jobs[job].end, &event->end_ns));
            job++;
            // Two clocks: a tiny difference must not look like time that runs backwards.
            if (event->begin_ns < before_ns) { event->begin_ns = before_ns; }
            if (event->end_ns < event->begin_ns) { event->end_ns = event->begin_ns; }
            bool is_job = event->kind < INSTR_COUNT;  // else: sums
            event->wait_ns = is_job ? event->begin_ns - before_ns : 0;
            trace->wait_ns += event->wait_ns;
            trace->busy_ns += is_job ? event->end_ns - event->begin_ns : 0;
            before_ns = event->end_ns;
        } else if (event->kind == INSTR_WAIT_ACT || event->kind == INSTR_WAIT_GRAD) {
            event->begin_ns = event->end_ns = before_ns;
        }
        if (event->end_ns > trace->end_ns) { trace->end_ns = event->end_ns; }
    }
    return m->device.api->settle(m->device.ctx);
}

// --- transfers ---------------------------------------------------------------------------------------------

Status transfers_begin(Transfers* t, int32_t num_events) {
    if (num_events > t->max_events) {
        free(t->trace.events);
        free(t->items);
        t->trace.events = (TraceEvent*)malloc((size_t)num_events * sizeof *t->trace.events);
        t->items = (Transfer*)malloc((size_t)num_events * sizeof *t->items);
        bool failed = t->trace.events == NULL || t->items == NULL;
        t->max_events = failed ? 0 : num_events;
        if (failed) { return FAIL(STATUS_NO_MEMORY, "transfers: room for %d", (int)num_events); }
    }
    if (t->transport->api->reserve != NULL) {
        TRY(t->transport->api->reserve(t->transport->ctx, num_events));
    }
    TRY(job_marks_begin(&t->jobs, num_events));
    t->num_items = 0;
    int64_t now_ns = clock_now_ns();
    t->trace = (TraceRank){
        .rank = t->transport->rank, .events = t->trace.events, .begin_ns = now_ns, .end_ns = now_ns};
    return STATUS_OK;
}

void transfers_free(Transfers* t) {
    free(t->trace.events);
    free(t->items);
    job_marks_free(&t->jobs);
    *t = (Transfers){0};
}

TransferWords transfer_words(const Transfers* t, int32_t kind, int32_t chunk, int32_t mb) {
    TransferWords out;
    snprintf(out.text, sizeof out.text, t->says_chunks && chunk >= 0 ? "%s mb %d chunk %d" : "%s mb %d",
             trace_kind_text(kind), (int)mb, (int)chunk);
    return out;
}

TraceEvent* transfers_event(Transfers* t, const PlanInstr* instr) {
    TraceEvent* event = &t->trace.events[t->trace.num_events++];
    int64_t now_ns = clock_now_ns();
    *event = (TraceEvent){.kind = instr->kind,
                          .chunk = instr->chunk,
                          .mb = instr->mb,
                          .peer = instr->peer,
                          .begin_ns = now_ns,
                          .end_ns = now_ns};
    return event;
}

Status transfers_post(Transfers* t, const PlanInstr* instr, int32_t tag, void* data, int64_t num_bytes,
                      uint8_t* state) {
    Transfer transfer = {.state = state, .event_idx = t->trace.num_events};
    transfers_event(t, instr);
    if (num_bytes == 0) {
        *state = TRANSFER_DONE;
        return STATUS_OK;
    }
    const DynapipeTransport_v1* api = t->transport->api;
    void* ctx = t->transport->ctx;
    const int32_t peer = instr->peer;
    TRY(plan_instr_is_recv(instr->kind)
            ? api->irecv(ctx, peer, tag, data, (size_t)num_bytes, &transfer.request)
            : api->isend(ctx, peer, tag, data, (size_t)num_bytes, &transfer.request));
    t->items[t->num_items++] = transfer;
    *state = TRANSFER_POSTED;
    return STATUS_OK;
}

static void note_done(Transfers* t, const Transfer* transfer) {
    TraceEvent* event = &t->trace.events[transfer->event_idx];
    const DynapipeTransport_v1* api = t->transport->api;
    *transfer->state = TRANSFER_DONE;
    event->end_ns = clock_now_ns();
    if (api->when != NULL && api->when(t->transport->ctx, &event->begin_ns, &event->end_ns) != STATUS_OK) {
        event->begin_ns = event->end_ns;
    }
}

Status transfers_poll(Transfers* t, bool* moved) {
    bool in_order = t->transport->api->join != NULL, stop = false;
    int32_t kept = 0;
    Status status = job_marks_poll(&t->jobs, moved);
    for (int32_t i = 0; i < t->num_items; i++) {
        Transfer transfer = t->items[i];
        int done = 0;
        if (status == STATUS_OK && !stop) {
            status = t->transport->api->test(t->transport->ctx, transfer.request, &done);
        }
        if (!done) {  // done: released, also with an error
            t->items[kept++] = transfer;
            stop = in_order;
            continue;
        }
        *moved = true;
        note_done(t, &transfer);
    }
    t->num_items = kept;
    return status;
}

static void append(char* out, size_t out_bytes, const char* fmt, ...) __attribute__((format(printf, 3, 4)));
static void append(char* out, size_t out_bytes, const char* fmt, ...) {
    size_t used = strlen(out);
    va_list args;
    va_start(args, fmt);
    vsnprintf(out + used, out_bytes - used, fmt, args);
    va_end(args);
}

void transfers_position(const Transfers* t, char* out, size_t out_bytes) {
    const JobMarks* jobs = &t->jobs;
    const TraceEvent* events = t->trace.events;
    out[0] = '\0';
    if (jobs->num_done > 0) {
        const TraceEvent* last = &events[jobs->jobs[jobs->num_done - 1].event_idx];
        append(out, out_bytes, "after %s, ", TRANSFER_WORDS(t, last));
    }
    append(out, out_bytes, "%d of %d queued jobs done", (int)jobs->num_done, (int)jobs->num_jobs);
    if (jobs->num_done < jobs->num_jobs) {
        const TraceEvent* next = &events[jobs->jobs[jobs->num_done].event_idx];
        append(out, out_bytes, ", at %s", TRANSFER_WORDS(t, next));
    }
    for (int32_t i = 0; i < t->num_items && i < 4; i++) {
        const TraceEvent* event = &events[t->items[i].event_idx];
        append(out, out_bytes, "%s %s with rank %d", i == 0 ? "; not through:" : ",",
               TRANSFER_WORDS(t, event), (int)event->peer);
    }
}

static Status fail_stuck(const Transfers* t, const uint8_t* state, const PlanInstr* instr) {
    TraceEvent missing = {.kind = instr->kind, .chunk = instr->chunk, .mb = instr->mb, .peer = -1};
    for (int32_t i = 0; i < t->num_items; i++) {
        if (t->items[i].state == state) { missing = t->trace.events[t->items[i].event_idx]; }
    }
    return FAIL(STATUS_COMM,
                "rank %d: %s waits for %s with rank %s, nothing moved for %.1f s ---> see what rank "
                "%d does, or raise --comm-timeout",
                (int)t->transport->rank, TRANSFER_WORDS(t, instr), TRANSFER_WORDS(t, &missing),
                TRANSPORT_RANK(t->transport, missing.peer), (double)t->timeout_ns / 1e9, (int)missing.peer);
}

// Is it done, or on a device does work queued from here on wait for it?
static Status is_over(const Transfers* t, const uint8_t* state, int* over) {
    *over = *state == TRANSFER_DONE;
    for (int32_t i = t->num_items - 1; i >= 0 && !*over && t->transport->api->join != NULL; i--) {
        if (t->items[i].state != state) { continue; }
        return t->transport->api->join(t->transport->ctx, t->items[i].request, over);
    }
    return STATUS_OK;
}

Status transfers_wait(Transfers* t, const uint8_t* state, const PlanInstr* instr) {
    Backoff backoff = {0};
    int64_t begin_ns = clock_now_ns();
    for (;;) {
        int over;
        bool moved = false;
        TRY(is_over(t, state, &over));
        if (over) { break; }
        TRY(transfers_poll(t, &moved));
        if (!backoff_next(&backoff, moved, t->timeout_ns)) { return fail_stuck(t, state, instr); }
    }
    if (t->transport->api->join == NULL) { t->trace.wait_ns += clock_now_ns() - begin_ns; }
    return STATUS_OK;
}

// Until a device has at most this many transfers and jobs left.
static Status wait_for_device(Transfers* t, int32_t most_items, int32_t most_jobs) {
    Backoff backoff = {0};
    while (t->num_items > most_items || t->jobs.num_jobs - t->jobs.num_done > most_jobs) {
        bool moved = false;
        TRY(transfers_poll(t, &moved));
        if (backoff_next(&backoff, moved, t->timeout_ns)) { continue; }
        char position[512];
        transfers_position(t, position, sizeof position);
        return FAIL(STATUS_COMM,
                    "rank %d: nothing moved for %.1f s, %s ---> see what the other ranks do, or raise "
                    "--comm-timeout",
                    (int)t->transport->rank, (double)t->timeout_ns / 1e9, position);
    }
    return STATUS_OK;
}

Status transfers_wait_for_room(Transfers* t) {
    return wait_for_device(t, INT32_MAX, TRANSFERS_JOBS_AHEAD);  // without a device there are no jobs
}

Status transfers_finish(Transfers* t) {
    if (t->jobs.device.api != NULL) { TRY(wait_for_device(t, 0, 0)); }
    while (t->num_items > 0) {
        Transfer last = t->items[t->num_items - 1];
        const TraceEvent* event = &t->trace.events[last.event_idx];
        PlanInstr instr = {.kind = (uint8_t)event->kind, .chunk = (int16_t)event->chunk, .mb = event->mb};
        TRY(transfers_wait(t, last.state, &instr));
    }
    return STATUS_OK;
}
