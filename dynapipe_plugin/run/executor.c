// executor.c -- one rank's instruction list, in order; transfers in the background.
#include "executor.h"

#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"
#include "../plan/lists/plan_message.h"
#include "executor_parts.h"
#include "transfer_groups.h"

Status executor_create(Executor** out, const ExecutorRange* ranges, int32_t num_ranges, Transport* transport,
                       int64_t timeout_ns) {
    Executor* ex = calloc(1, sizeof *ex);
    if (ex != NULL) { ex->ranges = calloc((size_t)num_ranges, sizeof *ex->ranges); }
    if (ex == NULL || ex->ranges == NULL) {
        free(ex);
        return FAIL(STATUS_NO_MEMORY, "executor: no memory");
    }
    memcpy(ex->ranges, ranges, (size_t)num_ranges * sizeof *ranges);
    ex->num_ranges = num_ranges;
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
    free(ex->states);
    free(ex->ranges);
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
    trace->events[trace->num_events++] = (TraceEvent){
        .kind = (int32_t)kind, .chunk = -1, .mb = -1, .peer = -1, .begin_ns = begin_ns, .end_ns = end_ns};
    if (end_ns > trace->end_ns) { trace->end_ns = end_ns; }
}

Status executor_reserve(Executor* ex, int32_t M, int32_t num_events) {
    int64_t num_states = (int64_t)M * ex->num_rows;
    if (num_states > ex->max_states) {
        free(ex->states);
        ex->states = malloc((size_t)num_states * sizeof *ex->states);
        ex->max_states = ex->states == NULL ? 0 : num_states;
        if (ex->states == NULL) { return FAIL(STATUS_NO_MEMORY, "executor: %d micro-batches", (int)M); }
    }
    if (num_states > 0) { memset(ex->states, 0, (size_t)num_states * sizeof *ex->states); }
    return transfers_begin(&ex->transfers, num_events + EXECUTOR_SPARE_EVENTS);
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

// --- instructions ----------------------------------------------------------------------------------------
// A transfer as this rank sees it: of row `idx` over `link`, with the tag of the row that it is the input of.
typedef struct {
    Link link;
    int32_t tag;
    bool is_send;
} End;

static End end_of(const Executor* ex, const PlanInstr* instr, int32_t idx) {
    const Row* row = &ex->rows[idx];
    InstrKind kind = (InstrKind)instr->kind;
    bool is_act = kind == INSTR_SEND_ACT || kind == INSTR_RECV_ACT || kind == INSTR_WAIT_ACT;
    bool is_fact = kind == INSTR_SEND_FACT || kind == INSTR_RECV_FACT || kind == INSTR_WAIT_FACT;
    bool is_send = !plan_instr_is_recv(kind);
    Link link = is_fact   ? LINK_FACT
                : is_act  ? (is_send ? LINK_OUT : LINK_IN)
                : is_send ? LINK_DIN
                          : LINK_DOUT;
    bool is_behind = !row->is_share && (link == LINK_OUT || link == LINK_DOUT);
    return (End){link, executor_tag(ex, instr->mb, row->row + is_behind, is_fact ? 2 : !is_act), is_send};
}

static int64_t end_bytes(const Row* row, const RowState* state, Link link) {
    bool is_grad = link == LINK_DIN || link == LINK_DOUT;
    if (link == LINK_FACT) { return state->fact_bytes; }
    if (row->is_share) { return is_grad ? state->grad_bytes : state->in_bytes; }
    return link == LINK_IN || link == LINK_DIN ? state->in_bytes : state->out_bytes;
}

static void* end_data(const Executor* ex, int32_t idx, int32_t mb, Link link) {
    bool is_share = ex->rows[idx].is_share;
    switch (link) {
        case LINK_IN: return executor_in(ex, idx, mb);
        case LINK_DIN: return executor_din(ex, idx, mb);
        case LINK_OUT: return is_share ? executor_in(ex, idx, mb) : executor_out(ex, idx, mb);
        case LINK_DOUT: return is_share ? executor_din(ex, idx, mb) : executor_dout(ex, idx, mb);
        default: return executor_dout(ex, idx, mb);
    }
}

static Status run_transfer(Executor* ex, const PlanInstr* instr) {
    int32_t idx = executor_end_of(ex, instr);
    RowState* state = executor_state(ex, idx, instr->mb);
    End end = end_of(ex, instr, idx);
    TransferName name = {instr->kind, instr->chunk, instr->mb};
    return transfers_post(&ex->transfers, name, instr->peer, end.tag, end_data(ex, idx, instr->mb, end.link),
                          end_bytes(&ex->rows[idx], state, end.link), &state->transfer[end.link]);
}

static Status run_wait(Executor* ex, const PlanInstr* instr) {
    int32_t idx = executor_end_of(ex, instr);
    TransferName name = {instr->kind, instr->chunk, instr->mb};
    TraceEvent* event = transfers_event(&ex->transfers, name, instr->peer);
    Link link = end_of(ex, instr, idx).link;
    TRY(transfers_wait(&ex->transfers, &executor_state(ex, idx, instr->mb)->transfer[link], name));
    event->end_ns = clock_now_ns();
    event->wait_ns = event->end_ns - event->begin_ns;
    return STATUS_OK;
}

Status executor_claim(Executor* ex, const ExecutorStep* step, StepClaim* claim) {
    const Plan* plan = step->plan;
    const PlanRank* rank = &plan->ranks[ex->rank];
    TRY(executor_place(ex, &plan->placement, plan->P));
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (instr->kind <= INSTR_REC || plan_instr_is_wait(instr->kind)) { continue; }
        if (instr->mb < 0 || instr->mb >= plan->M || step->batches[instr->mb] == NULL) {
            return executor_fail(ex, instr, "no batch for it on this rank");
        }
        int32_t idx = executor_end_of(ex, instr), s = instr->peer - ex->first_rank;
        if (idx < 0 || s < 0 || s >= ex->num_stages) {
            return executor_fail(ex, instr,
                                 "this rank has no such chunk, or its peer is not the rank of one");
        }
        RowState state = {0};
        executor_measure(ex, idx, step->batches[instr->mb], &state);
        End end = end_of(ex, instr, idx);
        step_claim_add(&claim->with[s], end.is_send, end.tag, end_bytes(&ex->rows[idx], &state, end.link));
    }
    return STATUS_OK;
}

static Status run_instr(Executor* ex, const PlanInstr* instr) {
    bool moved = false;
    if (ex->device.api == NULL) { TRY(transfers_poll(&ex->transfers, &moved)); }  // else the host runs ahead
    if (instr->kind <= INSTR_REC) { return executor_run_job(ex, instr); }
    return plan_instr_is_wait(instr->kind) ? run_wait(ex, instr) : run_transfer(ex, instr);
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
    const PlanRank* rank = &plan->ranks[ex->rank];
    ex->step = step;
    TRY(executor_place(ex, &plan->placement, plan->P));
    int32_t most_mbs = TAG_FORWARD / 3 / ex->most_places;
    if (plan->M >= most_mbs) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "%d micro-batches in a step, less than %d are supported ---> smaller -d or larger ones",
                    (int)plan->M, (int)most_mbs);
    }
    TRY(executor_reserve(ex, plan->M, rank->num_instrs));
    TRY(executor_prepare(ex, rank, plan->M));
    TRY(find_groups(ex, plan));
    return run_list(ex, rank);
}

Status executor_queue_begin(Executor* ex, TraceKind kind) {
    TraceEvent* event = transfers_event(&ex->transfers, (TransferName){(int32_t)kind, -1, -1}, -1);
    return job_marks_open(&ex->transfers.jobs, (int32_t)(event - ex->transfers.trace.events));
}

Status executor_queue_end(Executor* ex) {
    return job_marks_close(&ex->transfers.jobs);
}

Status executor_finish(Executor* ex) {
    TRY(transfers_finish(&ex->transfers));
    ex->transfers.trace.end_ns = clock_now_ns();
    TRY(job_marks_read(&ex->transfers.jobs, &ex->transfers.trace));
    for (int32_t i = 0; i < ex->num_ranges; i++) {
        const DynapipeModel_v1* api = ex->ranges[i].api;
        int rc = api->finish == NULL ? 0 : api->finish(ex->ranges[i].model);
        if (rc != 0) {
            return FAIL(STATUS_COMM, "rank %d: the model %s returned error %d at the end of a step",
                        (int)ex->rank, api->name, rc);
        }
    }
    return STATUS_OK;
}

Status executor_run(Executor* ex, const ExecutorStep* step) {
    TRY(executor_start(ex, step));
    return executor_finish(ex);
}
