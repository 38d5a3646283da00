// trace.c -- records to bytes and back, idle time, and the Chrome trace.
#include "trace.h"

#include <errno.h>
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

static bool is_job(int32_t kind) {
    return kind == INSTR_FWD || kind == INSTR_BWD || kind == INSTR_WGT || kind == INSTR_REC;
}

static bool is_transfer(int32_t kind) {
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
        if (is_job(instr->kind)) { busy_ns += instr->end_ns - instr->begin_ns; }
    }
    return plan->makespan_ns > 0 ? 1.0 - (double)busy_ns / (double)plan->makespan_ns : 0.0;
}

// --- Chrome trace ----------------------------------------------------------------------------------------
enum { PROCESS_PREDICTED = 1, PROCESS_MEASURED = 2 };

static void begin_event(TraceWriter* w) {
    fprintf(w->file, "%s", w->any_event ? ",\n" : "\n");
    w->any_event = true;
}

static void write_name(TraceWriter* w, const char* what, int process, int thread, const char* name) {
    begin_event(w);
    fprintf(w->file, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", what,
            process, thread, name);
}

static void write_rows(TraceWriter* w, int32_t P, int32_t num_ranks) {
    for (int process = PROCESS_PREDICTED; process <= PROCESS_MEASURED; process++) {
        write_name(w, "process_name", process, 0, process == PROCESS_PREDICTED ? "predicted" : "measured");
        for (int32_t r = 0; r < num_ranks; r++) {
            char name[96];
            snprintf(name, sizeof name, "rank %d (replica %d stage %d)", (int)r, (int)(r / P), (int)(r % P));
            write_name(w, "thread_name", process, 2 * r, name);
            snprintf(name, sizeof name, "rank %d transfers", (int)r);
            write_name(w, "thread_name", process, 2 * r + 1, name);
        }
    }
    write_name(w, "thread_name", PROCESS_MEASURED, 2 * num_ranks, "steps");
}

static void write_placement(TraceWriter* w, const Placement* placement, int32_t P) {
    fprintf(w->file, ",\"stage_of\":[");
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        fprintf(w->file, "%s%d", k > 0 ? "," : "", placement->stage_of[k]);
    }
    fprintf(w->file, "],\"head\":%d,\"head_begin\":[", placement->head);
    for (int32_t s = 0; s <= P && placement->head != HEAD_WHOLE; s++) {
        fprintf(w->file, "%s%d", s > 0 ? "," : "", placement->head_begin[s]);
    }
    fprintf(w->file, "]");
}

static void begin_file(TraceWriter* w, const TraceStep* step) {
    fprintf(w->file, "\"otherData\":{\"format\":\"" TRACE_FORMAT "\",\"stages\":%d,\"replicas\":%d",
            step->plan->P, step->plan->R);
    write_placement(w, &step->plan->placement, step->plan->P);
    fprintf(w->file, ",\"clocks\":[");
    for (int32_t r = 0; r < step->num_ranks; r++) {
        TraceClock one = step->clocks != NULL ? step->clocks[r] : (TraceClock){0};
        fprintf(w->file, "%s{\"rank\":%d,\"offset_ns\":%lld,\"error_ns\":%lld}", r > 0 ? "," : "", r,
                (long long)one.offset_ns, (long long)one.error_ns);
    }
    fprintf(w->file, "]},\n\"traceEvents\":[");
    write_rows(w, step->plan->P, step->num_ranks);
}

// A span in a row, up to its args.
static void write_span(TraceWriter* w, int process, int row, int64_t begin_ns, int64_t end_ns) {
    begin_event(w);
    fprintf(w->file, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,", process, row,
            (double)begin_ns / 1e3, (double)(end_ns - begin_ns) / 1e3);
}

static const char* category_of(int32_t kind) {
    return is_job(kind)               ? "job"
           : is_transfer(kind)        ? "transfer"
           : plan_instr_is_wait(kind) ? "wait"
                                      : "other";
}

// Which of the rank's pieces; nothing where each has one.
static void write_piece(TraceWriter* w, const Plan* plan, const TraceEvent* e) {
    const Placement* placement = &plan->placement;
    bool is_plain = placement->num_chunks <= plan->P && placement->head == HEAD_WHOLE;
    if (is_plain || e->chunk < 0) { return; }
    if (e->chunk >= placement->num_chunks) {
        fprintf(w->file, " head");
    } else {
        fprintf(w->file, " chunk %d", (int)e->chunk);
    }
}

// planned_ns -1: nothing was planned for it, or it is the plan's own.
static void write_event(TraceWriter* w, int process, int32_t rank, const TraceStep* of, const TraceEvent* e,
                        int64_t planned_ns) {
    write_span(w, process, 2 * rank + is_transfer(e->kind), e->begin_ns, e->end_ns);
    fprintf(w->file, "\"name\":\"%s", trace_kind_text(e->kind));
    if (e->mb >= 0) { fprintf(w->file, " mb %d", (int)e->mb); }
    write_piece(w, of->plan, e);
    fprintf(w->file, "\",\"cat\":\"%s\",\"args\":{\"step\":%lld,\"rank\":%d,\"kind\":\"%s\"",
            category_of(e->kind), (long long)of->step, (int)rank, trace_kind_text(e->kind));
    if (e->mb >= 0) { fprintf(w->file, ",\"mb\":%d,\"chunk\":%d", (int)e->mb, (int)e->chunk); }
    if (e->peer >= 0) { fprintf(w->file, ",\"peer\":%d", (int)e->peer); }
    if (process == PROCESS_MEASURED) {
        fprintf(w->file, ",\"begin_ns\":%lld,\"end_ns\":%lld,\"wait_ns\":%lld", (long long)e->begin_ns,
                (long long)e->end_ns, (long long)e->wait_ns);
    }
    if (planned_ns >= 0) { fprintf(w->file, ",\"planned_ns\":%lld", (long long)planned_ns); }
    if (planned_ns >= 0 && is_job(e->kind)) {
        fprintf(w->file, ",\"off_ns\":%lld", (long long)(e->end_ns - e->begin_ns - planned_ns));
    }
    fprintf(w->file, "}}");
}

Status trace_writer_open(TraceWriter* writer, const char* path) {
    *writer = (TraceWriter){.file = fopen(path, "w"), .path = path};
    if (writer->file == NULL) { return FAIL(STATUS_IO, "%s: cannot be written: %s", path, strerror(errno)); }
    fprintf(writer->file, "{\"displayTimeUnit\":\"ms\",\n");
    return STATUS_OK;
}

// What the plan has for an event of a rank, which began as its `nth`: events stand about where their
// instructions do. -1: nothing.
static int64_t planned_for(const PlanRank* list, const TraceEvent* e, int32_t nth) {
    for (int32_t k = 0; k < list->num_instrs && e->kind < INSTR_COUNT; k++) {
        const PlanInstr* instr = &list->instrs[(nth + k) % list->num_instrs];
        bool is_it = instr->kind == e->kind && instr->mb == e->mb && instr->chunk == e->chunk &&
                     instr->peer == e->peer;
        if (is_it) { return instr->end_ns - instr->begin_ns; }
    }
    return -1;
}

static void write_predicted(TraceWriter* w, const TraceStep* step, int64_t step_ns) {
    for (int32_t r = 0; r < step->num_ranks; r++) {
        for (int32_t i = 0; i < step->plan->ranks[r].num_instrs; i++) {
            const PlanInstr* instr = &step->plan->ranks[r].instrs[i];
            TraceEvent e = {.kind = instr->kind,
                            .chunk = instr->chunk,
                            .mb = instr->mb,
                            .peer = instr->peer,
                            .begin_ns = step_ns + instr->begin_ns,
                            .end_ns = step_ns + instr->end_ns};
            if (plan_instr_is_wait(instr->kind)) { continue; }
            write_event(w, PROCESS_PREDICTED, r, step, &e, -1);
        }
    }
}

static void write_measured(TraceWriter* w, const TraceStep* step) {
    for (int32_t k = 0; k < step->num_ranks; k++) {
        const TraceRank* rank = &step->ranks[k];
        for (int32_t i = 0; i < rank->num_events; i++) {
            TraceEvent e = rank->events[i];
            e.begin_ns -= w->origin_ns;
            e.end_ns -= w->origin_ns;
            bool is_planned = is_job(e.kind) || is_transfer(e.kind);
            write_event(w, PROCESS_MEASURED, rank->rank, step, &e,
                        is_planned ? planned_for(&step->plan->ranks[rank->rank], &e, i) : -1);
        }
    }
}

static int64_t first_begin_ns(const TraceRank* ranks, int32_t num_ranks) {
    int64_t begin_ns = INT64_MAX;
    for (int32_t i = 0; i < num_ranks; i++) {
        if (ranks[i].begin_ns < begin_ns) { begin_ns = ranks[i].begin_ns; }
    }
    return begin_ns;
}

static void write_step(TraceWriter* w, const TraceStep* step, int64_t begin_ns) {
    int64_t end_ns = begin_ns;
    for (int32_t k = 0; k < step->num_ranks; k++) {
        if (step->ranks[k].end_ns > end_ns) { end_ns = step->ranks[k].end_ns; }
    }
    write_span(w, PROCESS_MEASURED, 2 * step->num_ranks, begin_ns - w->origin_ns, end_ns - w->origin_ns);
    fprintf(w->file,
            "\"name\":\"step %lld\",\"cat\":\"step\",\"args\":{\"step\":%lld,\"plan_hash\":\"%016llx\","
            "\"policy\":\"%s\",\"schedule\":\"%s\"",
            (long long)step->step, (long long)step->step, (unsigned long long)step->plan_hash,
            step->plan->policy, step->plan->schedule);
    const SessionErrors* errors = step->errors;
    if (errors != NULL) {
        fprintf(w->file,
                ",\"predicted_ns\":%lld,\"measured_ns\":%lld,\"jobs_off_ns\":%lld,\"transfers_off_ns\":%lld,"
                "\"waiting_off_ns\":%lld",
                (long long)errors->predicted_ns, (long long)errors->measured_ns, (long long)errors->jobs_ns,
                (long long)errors->transfers_ns, (long long)errors->waiting_ns);
    }
    fprintf(w->file, "}}");
}

Status trace_writer_add_step(TraceWriter* w, const TraceStep* step) {
    if (step->num_ranks != step->plan->P * step->plan->R) {
        return FAIL(STATUS_OUT_OF_RANGE, "trace: %d records for %d ranks", (int)step->num_ranks,
                    (int)(step->plan->P * step->plan->R));
    }
    int64_t begin_ns = first_begin_ns(step->ranks, step->num_ranks);
    if (w->num_steps++ == 0) {
        w->origin_ns = begin_ns;
        begin_file(w, step);
    }
    write_step(w, step, begin_ns);
    write_predicted(w, step, begin_ns - w->origin_ns);
    write_measured(w, step);
    return STATUS_OK;
}

Status trace_writer_close(TraceWriter* writer) {
    if (writer->file == NULL) { return STATUS_OK; }
    fprintf(writer->file, writer->num_steps > 0 ? "\n]}\n" : "\"traceEvents\":[]}\n");
    bool failed = ferror(writer->file) != 0;
    failed |= fclose(writer->file) != 0;
    writer->file = NULL;
    if (failed) {
        return FAIL(STATUS_IO, "%s: could not be written whole: %s", writer->path, strerror(errno));
    }
    return STATUS_OK;
}
