#include "trace_rows.h"

#include <stdlib.h>

#include "../plan/lists/plan_message.h"

// --- rows ------------------------------------------------------------------------------------------------

typedef struct {
    int64_t begin_ns, end_ns;
    int32_t idx;
} Span;

static int compare_spans(const void* a, const void* b) {
    const Span *x = a, *y = b;
    int order = (x->begin_ns > y->begin_ns) - (x->begin_ns < y->begin_ns);
    if (order == 0) { order = (x->end_ns > y->end_ns) - (x->end_ns < y->end_ns); }
    return order != 0 ? order : (x->idx > y->idx) - (x->idx < y->idx);
}

TraceSide trace_side_of(int32_t kind) {
    return plan_instr_is_send(kind)   ? TRACE_SENDS
           : plan_instr_is_recv(kind) ? TRACE_RECEIVES
                                      : TRACE_JOBS_SIDE;
}

Status trace_lanes_make(TraceLanes* out, const TraceRank* rank, Arena* arena) {
    Span* spans;
    int64_t* free_ns;  // of each lane
    *out = (TraceLanes){0};
    ARENA_TRY_NEW(out->lane, arena, int32_t, rank->num_events);
    ARENA_TRY_NEW(spans, arena, Span, rank->num_events);
    ARENA_TRY_NEW(free_ns, arena, int64_t, rank->num_events);
    for (int side = 0; side < TRACE_SIDES; side++) {
        int32_t num_spans = 0, num_lanes = 0;
        for (int32_t i = 0; i < rank->num_events; i++) {
            const TraceEvent* event = &rank->events[i];
            if (trace_side_of(event->kind) != (TraceSide)side) { continue; }
            spans[num_spans++] = (Span){event->begin_ns, event->end_ns, i};
        }
        qsort(spans, (size_t)num_spans, sizeof *spans, compare_spans);
        for (int32_t i = 0; i < num_spans; i++) {
            int32_t lane = 0;
            while (lane < num_lanes && free_ns[lane] > spans[i].begin_ns) { lane++; }
            num_lanes += lane == num_lanes;
            free_ns[lane] = spans[i].end_ns;
            out->lane[spans[i].idx] = lane;
        }
        out->num_lanes[side] = num_lanes;
    }
    return STATUS_OK;
}

// --- arrows ----------------------------------------------------------------------------------------------

// Which cell of a micro-batch, of so many: a row and a kind name one message (plan_message.h). -1: none.
static int64_t cell_of(const Plan* plan, const TraceEvent* event) {
    PlanInstr instr = {.kind = (uint8_t)event->kind, .chunk = (int16_t)event->chunk, .peer = event->peer};
    PlanMessage message;
    int32_t num_rows = placement_num_rows(&plan->placement, plan->P);
    if (!trace_kind_is_transfer(event->kind) || event->mb < 0 || event->mb >= plan->M) { return -1; }
    if (!plan_message_of(&message, &plan->placement, plan->P, &instr)) { return -1; }
    return ((int64_t)event->mb * num_rows + message.row) * PLAN_MESSAGE_KINDS + message.kind;
}

Status trace_messages_make(TraceMessage** out, int32_t* num_messages, const Plan* plan,
                           const TraceRank* ranks, int32_t num_ranks, Arena* arena) {
    int64_t num_cells = (int64_t)plan->M * placement_num_rows(&plan->placement, plan->P) * PLAN_MESSAGE_KINDS;
    TraceMessage* cells;
    ARENA_TRY_NEW(cells, arena, TraceMessage, num_cells);
    for (int64_t i = 0; i < num_cells; i++) { cells[i] = (TraceMessage){-1, -1, -1, -1}; }
    for (int32_t k = 0; k < num_ranks; k++) {
        for (int32_t i = 0; i < ranks[k].num_events; i++) {
            int32_t kind = ranks[k].events[i].kind;
            int64_t cell = cell_of(plan, &ranks[k].events[i]);
            if (cell < 0) { continue; }
            if (plan_instr_is_send(kind)) {
                cells[cell].from = k, cells[cell].send = i;
            } else {
                cells[cell].to = k, cells[cell].receive = i;
            }
        }
    }
    int32_t num = 0;
    for (int64_t i = 0; i < num_cells; i++) {
        TraceMessage message = cells[i];
        bool both = message.from >= 0 && message.to >= 0;
        if (both && ranks[message.from].events[message.send].peer == ranks[message.to].rank &&
            ranks[message.to].events[message.receive].peer == ranks[message.from].rank) {
            cells[num++] = message;
        }
    }
    *out = cells;
    *num_messages = num;
    return STATUS_OK;
}
