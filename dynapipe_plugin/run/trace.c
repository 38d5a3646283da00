// trace.c -- records to bytes and back, and idle time.
#include "trace.h"

#include <string.h>

#include "../plan/lists/plan_message.h"

// clang-format off
#define X(name, text) text,
static const char* const kind_text[] = {INSTR_LIST(X) "reduce", "update", "share"};
#undef X
// clang-format on

_Static_assert(sizeof kind_text / sizeof kind_text[0] == TRACE_KIND_COUNT, "one text per kind");

const char* trace_kind_text(int32_t kind) {
    return kind >= 0 && kind < TRACE_KIND_COUNT ? kind_text[kind] : "unknown";
}

bool trace_kind_is_job(int32_t kind) {
    return kind == INSTR_FWD || kind == INSTR_BWD || kind == INSTR_WGT || kind == INSTR_REC;
}

bool trace_kind_is_transfer(int32_t kind) {
    return plan_instr_is_send(kind) || plan_instr_is_recv(kind);
}

// --- bytes -----------------------------------------------------------------------------------------------
#define PACKED_MAGIC 0x3245434152545044u  // "DPTRACE2"

typedef struct {
    uint64_t magic, event_bytes;
    int64_t rank, num_events, begin_ns, end_ns, busy_ns, wait_ns;
} PackedHead;

size_t trace_rank_packed_bytes(const TraceRank* rank) {
    return sizeof(PackedHead) + (size_t)rank->num_events * sizeof(TraceEvent);
}

void trace_rank_pack(const TraceRank* rank, void* out) {
    PackedHead head = {PACKED_MAGIC,   sizeof(TraceEvent), rank->rank,    rank->num_events,
                       rank->begin_ns, rank->end_ns,       rank->busy_ns, rank->wait_ns};
    memcpy(out, &head, sizeof head);
    if (rank->num_events > 0) {
        memcpy((char*)out + sizeof head, rank->events, (size_t)rank->num_events * sizeof(TraceEvent));
    }
}

Status trace_rank_unpack(TraceRank* out, const void* data, size_t num_bytes, Arena* arena) {
    PackedHead head;
    if (num_bytes < sizeof head) { return FAIL(STATUS_BAD_FORMAT, "trace: %zu bytes of a rank", num_bytes); }
    memcpy(&head, data, sizeof head);
    size_t event_bytes = num_bytes - sizeof head;
    if (head.magic != PACKED_MAGIC || head.event_bytes != sizeof(TraceEvent) || head.num_events < 0 ||
        event_bytes % sizeof(TraceEvent) != 0 ||
        (uint64_t)head.num_events != event_bytes / sizeof(TraceEvent) || head.num_events > INT32_MAX) {
        return FAIL(STATUS_BAD_FORMAT,
                    "trace: the record of a rank is damaged ---> run the same build everywhere");
    }
    *out = (TraceRank){.rank = (int32_t)head.rank,
                       .num_events = (int32_t)head.num_events,
                       .events = ARENA_NEW(arena, TraceEvent, head.num_events),
                       .begin_ns = head.begin_ns,
                       .end_ns = head.end_ns,
                       .busy_ns = head.busy_ns,
                       .wait_ns = head.wait_ns};
    if (out->events == NULL) { return FAIL(STATUS_NO_MEMORY, "trace: %zu bytes", event_bytes); }
    if (event_bytes > 0) { memcpy(out->events, (const char*)data + sizeof head, event_bytes); }
    return STATUS_OK;
}

// --- idle time -------------------------------------------------------------------------------------------
double trace_rank_idle_predicted(const Plan* plan, int32_t rank) {
    const PlanRank* list = &plan->ranks[rank];
    int64_t busy_ns = 0;
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        if (trace_kind_is_job(instr->kind)) { busy_ns += instr->end_ns - instr->begin_ns; }
    }
    return plan->makespan_ns > 0 ? 1.0 - (double)busy_ns / (double)plan->makespan_ns : 0.0;
}
