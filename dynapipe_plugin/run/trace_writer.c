#include "trace_writer.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "../plan/lists/memory_curve.h"
#include "../plan/lists/plan_message.h"
#include "trace_rows.h"

enum { PROCESS_PREDICTED = 1, PROCESS_MEASURED = 2 };
// "tid" of a row: steps first, then rank by rank. More lanes than there are places for share the last one.
enum { TID_STEPS = 0, TIDS_OF_SIDE = 1024, TIDS_OF_RANK = TIDS_OF_SIDE * TRACE_SIDES };

static const double BYTES_PER_MIB = 1024 * 1024;

// --- the file's head, rows -------------------------------------------------------------------------------

static void begin_event(TraceWriter* w) {
    fprintf(w->file, "%s", w->any_event ? ",\n" : "\n");
    w->any_event = true;
}

static int32_t tid_of(int32_t rank, TraceSide side, int32_t lane) {
    return (rank + 1) * TIDS_OF_RANK + (int32_t)side * TIDS_OF_SIDE +
           (lane < TIDS_OF_SIDE ? lane : TIDS_OF_SIDE - 1);
}

static void write_name(TraceWriter* w, const char* what, int process, int32_t tid, const char* name) {
    begin_event(w);
    fprintf(w->file, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", what,
            process, tid, name);
}

static void write_lane_name(TraceWriter* w, int process, const Plan* plan, int32_t rank, TraceSide side,
                            int32_t lane) {
    char name[96], number[16] = "";
    if (lane > 0) { snprintf(number, sizeof number, " (%d)", lane + 1); }
    if (side == TRACE_JOBS_SIDE) {
        snprintf(name, sizeof name, "rank %d: replica %d, stage %d%s", rank, rank / plan->P, rank % plan->P,
                 number);
    } else {
        snprintf(name, sizeof name, "rank %d %s%s", rank, side == TRACE_SENDS ? "sends" : "receives", number);
    }
    int32_t tid = tid_of(rank, side, lane);
    write_name(w, "thread_name", process, tid, name);
    begin_event(w);
    fprintf(
        w->file,
        "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
        process, tid, tid);
}

// Rows of a rank that no earlier step had.
static void name_lanes(TraceWriter* w, int process, const Plan* plan, int32_t rank, const TraceLanes* lanes) {
    for (int side = 0; side < TRACE_SIDES; side++) {
        int32_t num_ranks = plan->P * plan->R;
        int32_t* named =
            &w->num_named[((process - PROCESS_PREDICTED) * num_ranks + rank) * TRACE_SIDES + side];
        int32_t most = lanes->num_lanes[side] < TIDS_OF_SIDE ? lanes->num_lanes[side] : TIDS_OF_SIDE;
        for (; *named < most; (*named)++) {
            write_lane_name(w, process, plan, rank, (TraceSide)side, *named);
        }
    }
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
    write_name(w, "process_name", PROCESS_PREDICTED, TID_STEPS, "predicted");
    if (step->ranks == NULL) { return; }
    write_name(w, "process_name", PROCESS_MEASURED, TID_STEPS, "measured");
    write_name(w, "thread_name", PROCESS_MEASURED, TID_STEPS, "steps");
}

// --- events ----------------------------------------------------------------------------------------------

// A span in a row, up to its args.
static void write_span(TraceWriter* w, int process, int32_t tid, int64_t begin_ns, int64_t end_ns) {
    begin_event(w);
    fprintf(w->file, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,", process, tid,
            (double)begin_ns / 1e3, (double)(end_ns - begin_ns) / 1e3);
}

static const char* category_of(int32_t kind) {
    return trace_kind_is_job(kind)        ? "job"
           : trace_kind_is_transfer(kind) ? "transfer"
           : plan_instr_is_wait(kind)     ? "wait"
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
static void write_event(TraceWriter* w, int process, int32_t rank, int32_t tid, const TraceStep* of,
                        const TraceEvent* e, int64_t planned_ns) {
    write_span(w, process, tid, e->begin_ns, e->end_ns);
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
    if (planned_ns >= 0 && trace_kind_is_job(e->kind)) {
        fprintf(w->file, ",\"off_ns\":%lld", (long long)(e->end_ns - e->begin_ns - planned_ns));
    }
    fprintf(w->file, "}}");
}

// What the plan has for an event of a rank, which began as its `nth`: events stand about where their
// instructions do. -1: nothing.
static int64_t planned_for(const PlanRank* list, const TraceEvent* e, int32_t nth) {
    bool is_planned = trace_kind_is_job(e->kind) || trace_kind_is_transfer(e->kind);
    for (int32_t k = 0; k < list->num_instrs && is_planned; k++) {
        const PlanInstr* instr = &list->instrs[(nth + k) % list->num_instrs];
        bool is_it = instr->kind == e->kind && instr->mb == e->mb && instr->chunk == e->chunk &&
                     instr->peer == e->peer;
        if (is_it) { return instr->end_ns - instr->begin_ns; }
    }
    return -1;
}

// --- arrows and memory -----------------------------------------------------------------------------------

static void write_arrow_end(TraceWriter* w, int process, int32_t tid, int64_t ns, const char* phase) {
    begin_event(w);
    fprintf(w->file,
            "{\"ph\":%s,\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"name\":\"message\",\"cat\":\"message\",\"id\":"
            "%lld}",
            phase, process, tid, (double)ns / 1e3, (long long)w->num_arrows);
}

// From a send's begin to the last ns of its receive, each inside of its event, whatever has no length left
// out. Where clocks say that a message arrived before it was sent there is none.
static void write_arrow(TraceWriter* w, int process, const TraceMessage* message, const TraceRank* ranks,
                        const TraceLanes* lanes) {
    const TraceRank *from = &ranks[message->from], *to = &ranks[message->to];
    const TraceEvent *send = &from->events[message->send], *receive = &to->events[message->receive];
    int32_t send_lane = lanes[message->from].lane[message->send];
    int32_t receive_lane = lanes[message->to].lane[message->receive];
    int64_t arrived_ns = receive->end_ns - 1;
    bool has_lengths = send->end_ns > send->begin_ns && receive->end_ns > receive->begin_ns;
    if (!has_lengths || arrived_ns < send->begin_ns) { return; }
    write_arrow_end(w, process, tid_of(from->rank, TRACE_SENDS, send_lane), send->begin_ns, "\"s\"");
    write_arrow_end(w, process, tid_of(to->rank, TRACE_RECEIVES, receive_lane), arrived_ns,
                    "\"f\",\"bp\":\"e\"");
    w->num_arrows++;
}

// The list with the times at which `events` have its jobs, from ns 0 on, and of its waits none. false: these
// are other jobs.
static bool time_list(PlanInstr* out, const PlanRank* list, const TraceRank* rank, int64_t zero_ns) {
    int32_t e = 0;
    for (int32_t i = 0; i < list->num_instrs; i++) {
        out[i] = list->instrs[i];
        out[i].begin_ns = out[i].end_ns = 0;
        if (!trace_kind_is_job(out[i].kind)) { continue; }
        while (e < rank->num_events && !trace_kind_is_job(rank->events[e].kind)) { e++; }
        const TraceEvent* event = e < rank->num_events ? &rank->events[e++] : NULL;
        if (event == NULL || event->kind != out[i].kind || event->mb != out[i].mb ||
            event->chunk != out[i].chunk) {
            return false;
        }
        out[i].begin_ns = event->begin_ns - zero_ns;
        out[i].end_ns = event->end_ns - zero_ns;
    }
    return true;
}

static Status write_memory(TraceWriter* w, int process, const TraceStep* step, const TraceRank* rank,
                           int64_t zero_ns, Arena* arena) {
    PlanRank list = step->plan->ranks[rank->rank];
    PlanInstr* instrs;
    MemoryCurve curve;
    ARENA_TRY_NEW(instrs, arena, PlanInstr, list.num_instrs);
    if (process == PROCESS_MEASURED) {
        if (!time_list(instrs, &list, rank, zero_ns)) { return STATUS_OK; }
        list.instrs = instrs;
    }
    TRY(memory_curve_make(&curve, &list, step->memory_rule, arena));
    for (int32_t i = 0; i < curve.num_steps; i++) {
        begin_event(w);
        fprintf(w->file,
                "{\"ph\":\"C\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"name\":\"rank %d "
                "memory\",\"args\":{\"MiB\":%.3f}}",
                process, tid_of(rank->rank, TRACE_JOBS_SIDE, 0),
                (double)(zero_ns + curve.steps[i].begin_ns) / 1e3, rank->rank,
                (double)curve.steps[i].num_bytes / BYTES_PER_MIB);
    }
    return STATUS_OK;
}

// --- steps -----------------------------------------------------------------------------------------------

Status trace_writer_open(TraceWriter* writer, const char* path) {
    *writer = (TraceWriter){.file = fopen(path, "w"), .path = path};
    if (writer->file == NULL) { return FAIL(STATUS_IO, "%s: cannot be written: %s", path, strerror(errno)); }
    fprintf(writer->file, "{\"displayTimeUnit\":\"ms\",\n");
    return STATUS_OK;
}

// What one process shows of a step that begins at zero_ns. Times of `ranks` are the file's.
static Status write_process(TraceWriter* w, int process, const TraceStep* step, const TraceRank* ranks,
                            int64_t zero_ns, Arena* arena) {
    TraceLanes* lanes;
    TraceMessage* messages;
    int32_t num_messages;
    ARENA_TRY_NEW(lanes, arena, TraceLanes, step->num_ranks);
    for (int32_t k = 0; k < step->num_ranks; k++) {
        const TraceRank* rank = &ranks[k];
        TRY(trace_lanes_make(&lanes[k], rank, arena));
        name_lanes(w, process, step->plan, rank->rank, &lanes[k]);
        for (int32_t i = 0; i < rank->num_events; i++) {
            const TraceEvent* e = &rank->events[i];
            int32_t tid = tid_of(rank->rank, trace_side_of(e->kind), lanes[k].lane[i]);
            bool is_own = process == PROCESS_PREDICTED;
            write_event(w, process, rank->rank, tid, step, e,
                        is_own ? -1 : planned_for(&step->plan->ranks[rank->rank], e, i));
        }
        TRY(write_memory(w, process, step, rank, zero_ns, arena));
    }
    TRY(trace_messages_make(&messages, &num_messages, step->plan, ranks, step->num_ranks, arena));
    for (int32_t i = 0; i < num_messages; i++) { write_arrow(w, process, &messages[i], ranks, lanes); }
    return STATUS_OK;
}

static Status write_predicted(TraceWriter* w, const TraceStep* step, int64_t zero_ns, Arena* arena) {
    TraceRank* ranks;
    ARENA_TRY_NEW(ranks, arena, TraceRank, step->num_ranks);
    for (int32_t r = 0; r < step->num_ranks; r++) {
        const PlanRank* list = &step->plan->ranks[r];
        ranks[r].rank = r;
        ARENA_TRY_NEW(ranks[r].events, arena, TraceEvent, list->num_instrs);
        for (int32_t i = 0; i < list->num_instrs; i++) {
            const PlanInstr* instr = &list->instrs[i];
            if (plan_instr_is_wait(instr->kind)) { continue; }
            ranks[r].events[ranks[r].num_events++] = (TraceEvent){.kind = instr->kind,
                                                                  .chunk = instr->chunk,
                                                                  .mb = instr->mb,
                                                                  .peer = instr->peer,
                                                                  .begin_ns = zero_ns + instr->begin_ns,
                                                                  .end_ns = zero_ns + instr->end_ns};
        }
    }
    return write_process(w, PROCESS_PREDICTED, step, ranks, zero_ns, arena);
}

static Status write_measured(TraceWriter* w, const TraceStep* step, int64_t zero_ns, Arena* arena) {
    TraceRank* ranks;
    ARENA_TRY_NEW(ranks, arena, TraceRank, step->num_ranks);
    for (int32_t k = 0; k < step->num_ranks; k++) {
        ranks[k] = step->ranks[k];
        ARENA_TRY_NEW(ranks[k].events, arena, TraceEvent, ranks[k].num_events);
        for (int32_t i = 0; i < ranks[k].num_events; i++) {
            ranks[k].events[i] = step->ranks[k].events[i];
            ranks[k].events[i].begin_ns -= w->origin_ns;
            ranks[k].events[i].end_ns -= w->origin_ns;
        }
    }
    return write_process(w, PROCESS_MEASURED, step, ranks, zero_ns, arena);
}

static int64_t first_begin_ns(const TraceStep* step) {
    int64_t begin_ns = INT64_MAX;
    for (int32_t i = 0; i < step->num_ranks && step->ranks != NULL; i++) {
        if (step->ranks[i].begin_ns < begin_ns) { begin_ns = step->ranks[i].begin_ns; }
    }
    return begin_ns < INT64_MAX ? begin_ns : 0;
}

static void write_step(TraceWriter* w, const TraceStep* step, int64_t begin_ns) {
    int64_t end_ns = begin_ns;
    for (int32_t k = 0; k < step->num_ranks; k++) {
        if (step->ranks[k].end_ns > end_ns) { end_ns = step->ranks[k].end_ns; }
    }
    write_span(w, PROCESS_MEASURED, TID_STEPS, begin_ns - w->origin_ns, end_ns - w->origin_ns);
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
    int32_t num_ranks = step->plan->P * step->plan->R;
    if (step->num_ranks != num_ranks) {
        return FAIL(STATUS_OUT_OF_RANGE, "trace: %d records for %d ranks", (int)step->num_ranks,
                    (int)num_ranks);
    }
    int64_t begin_ns = first_begin_ns(step);
    if (w->num_steps == 0) {
        w->num_named = calloc((size_t)(2 * num_ranks * TRACE_SIDES), sizeof *w->num_named);
        if (w->num_named == NULL) { return FAIL(STATUS_NO_MEMORY, "trace: no memory for its rows"); }
        w->origin_ns = begin_ns;
        begin_file(w, step);
    }
    w->num_steps++;
    Arena arena = {0};
    int64_t zero_ns = begin_ns - w->origin_ns;
    Status status = write_predicted(w, step, zero_ns, &arena);
    if (status == STATUS_OK && step->ranks != NULL) {
        write_step(w, step, begin_ns);
        status = write_measured(w, step, zero_ns, &arena);
    }
    arena_free(&arena);
    return status;
}

Status trace_writer_close(TraceWriter* writer) {
    if (writer->file == NULL) { return STATUS_OK; }
    fprintf(writer->file, writer->num_steps > 0 ? "\n]}\n" : "\"traceEvents\":[]}\n");
    bool failed = ferror(writer->file) != 0;
    failed |= fclose(writer->file) != 0;
    free(writer->num_named);
    writer->file = NULL;
    writer->num_named = NULL;
    if (failed) {
        return FAIL(STATUS_IO, "%s: could not be written whole: %s", writer->path, strerror(errno));
    }
    return STATUS_OK;
}
