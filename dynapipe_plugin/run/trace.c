// trace.c -- the jobs and links of a step, measured; its error; the file that shows it.
#include "trace.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include "../plan/memory_layout.h"
#include "../plan/plan_message.h"
#include "../plan/simulate.h"

// clang-format off
#define X(name, text) text,
static const char* const kind_text[] = {INSTR_LIST(X) "reduce", "update", "share"};
#undef X
// clang-format on

static_assert(sizeof kind_text / sizeof kind_text[0] == TRACE_KIND_COUNT, "one text per kind");

const char* trace_kind_text(int32_t kind) {
    return kind >= 0 && kind < TRACE_KIND_COUNT ? kind_text[kind] : "unknown";
}

// --- idle time -------------------------------------------------------------------------------------------
double trace_rank_idle_predicted(const Plan* plan, int32_t rank) {
    const PlanRank* list = &plan->ranks[rank];
    int64_t busy_ns = 0;
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        if (plan_instr_is_job((InstrKind)instr->kind)) { busy_ns += instr->end_ns - instr->begin_ns; }
    }
    return plan->makespan_ns > 0 ? 1.0 - (double)busy_ns / (double)plan->makespan_ns : 0.0;
}

// --- a step's error ---------------------------------------------------------------------------------------

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// The jobs of a stage that ran: one after the other.
typedef struct {
    const SessionSpan** spans;
    int32_t num;
} StageJobs;

// The first that has not ended at `ns`.
static int32_t job_after(const StageJobs* jobs, int64_t ns) {
    int32_t low = 0, high = jobs->num;
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (jobs->spans[middle]->end_ns <= ns) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low;
}

// Time in [begin, end) in which neither stage runs a job.
static int64_t free_ns(const StageJobs* const stages[2], int64_t begin_ns, int64_t end_ns) {
    int64_t at_ns = begin_ns, sum_ns = 0;
    int32_t next[2] = {job_after(stages[0], begin_ns), job_after(stages[1], begin_ns)};
    while (at_ns < end_ns) {
        int64_t free_until_ns = end_ns, busy_until_ns = at_ns;
        for (int k = 0; k < 2; k++) {
            while (next[k] < stages[k]->num && stages[k]->spans[next[k]]->end_ns <= at_ns) { next[k]++; }
            if (next[k] == stages[k]->num) { continue; }
            const SessionSpan* job = stages[k]->spans[next[k]];
            if (job->begin_ns <= at_ns) { busy_until_ns = larger(busy_until_ns, job->end_ns); }
            free_until_ns = smaller(free_until_ns, job->begin_ns);
        }
        if (busy_until_ns == at_ns) { sum_ns += free_until_ns - at_ns; }
        at_ns = busy_until_ns > at_ns ? busy_until_ns : free_until_ns;
    }
    return sum_ns;
}

// *link_ns: when the message before over the same link was there.
static int64_t transfer_ns(const SessionSpans* it, const StageJobs* const ends[2], const SessionSpan* send,
                           const SessionSpan* recv, int64_t planned_ns, int64_t* link_ns) {
    int64_t posted_ns = larger(send->begin_ns, recv->begin_ns), begin_ns = larger(posted_ns, *link_ns);
    int64_t took_ns = recv->end_ns - begin_ns;
    *link_ns = larger(*link_ns, recv->end_ns);
    // Seen together with the message before, or nothing was sent: unknown.
    if (took_ns <= 0 || (begin_ns > posted_ns && took_ns < planned_ns)) { return planned_ns; }
    if (it->moves_alone || took_ns <= planned_ns) { return took_ns; }
    return larger(planned_ns, free_ns(ends, begin_ns, recv->end_ns));
}

// Where the receive of a message is; of a send or receive.
static const SessionSpan** receive_of(const SessionSpan** received, PlanMessage* message, const Plan* plan,
                                      const PlanInstr* instr) {
    if (!plan_message_of(message, &plan->placement, plan->P, instr)) { return NULL; }
    int64_t row = (int64_t)message->kind * placement_num_rows(&plan->placement, plan->P) + message->row;
    return &received[row * plan->M + instr->mb];
}

Status session_errors_split(SessionErrors* out, const SessionSpans* it, Arena* scratch) {
    const Plan* plan = it->plan;
    const PlanRank* lists = plan->ranks + it->replica * plan->P;
    StageJobs jobs[PLAN_MAX_STAGES];
    int64_t *jobs_ns[PLAN_MAX_STAGES], *all_ns[PLAN_MAX_STAGES], predicted_ns, with_jobs_ns, with_all_ns;
    const SessionSpan** received;
    PlanMessage message;
    ARENA_TRY_NEW(received, scratch, const SessionSpan*,
                  PLAN_MESSAGE_KINDS* placement_num_rows(&plan->placement, plan->P) * (int64_t)plan->M);
    for (int32_t s = 0; s < plan->P; s++) {
        jobs[s].num = 0;
        ARENA_TRY_NEW(jobs[s].spans, scratch, const SessionSpan*, lists[s].num_instrs);
        ARENA_TRY_NEW(jobs_ns[s], scratch, int64_t, lists[s].num_instrs);
        ARENA_TRY_NEW(all_ns[s], scratch, int64_t, lists[s].num_instrs);
        for (int32_t i = 0; i < lists[s].num_instrs; i++) {
            const PlanInstr* instr = &lists[s].instrs[i];
            const SessionSpan* span = &it->spans[s][i];
            bool is_job = plan_instr_is_job((InstrKind)instr->kind), has_run = span->end_ns > span->begin_ns;
            int64_t ns = instr->end_ns - instr->begin_ns;
            if (is_job && has_run) { jobs[s].spans[jobs[s].num++] = span; }
            jobs_ns[s][i] = all_ns[s][i] = is_job && has_run ? span->end_ns - span->begin_ns : ns;
            const SessionSpan** at =
                plan_instr_is_recv(instr->kind) ? receive_of(received, &message, plan, instr) : NULL;
            if (at != NULL) { *at = span; }
        }
    }
    for (int32_t s = 0; s < plan->P; s++) {
        int64_t link_ns = 0;
        for (int32_t i = 0; i < lists[s].num_instrs; i++) {
            const PlanInstr* instr = &lists[s].instrs[i];
            const SessionSpan** at =
                plan_instr_is_send(instr->kind) ? receive_of(received, &message, plan, instr) : NULL;
            if (at == NULL || *at == NULL) { continue; }
            const StageJobs* const ends[2] = {&jobs[s],
                                              &jobs[plan_message_reader(&plan->placement, message).stage]};
            all_ns[s][i] = transfer_ns(it, ends, &it->spans[s][i], *at, all_ns[s][i], &link_ns);
        }
    }
    TRY(plan_makespan(&predicted_ns, plan, it->replica, NULL, scratch));
    TRY(plan_makespan(&with_jobs_ns, plan, it->replica, (const int64_t* const*)jobs_ns, scratch));
    TRY(plan_makespan(&with_all_ns, plan, it->replica, (const int64_t* const*)all_ns, scratch));
    out->jobs_ns = with_jobs_ns - predicted_ns;
    out->transfers_ns = with_all_ns - with_jobs_ns;
    return STATUS_OK;
}

double session_errors_part(const SessionErrors* errors, int64_t part_ns) {
    return errors->predicted_ns > 0 ? (double)part_ns / (double)errors->predicted_ns : 0;
}

// --- the file ----------------------------------------------------------------------------------------------

enum { PROCESS_PREDICTED = 1, PROCESS_MEASURED = 2 };
typedef enum { SIDE_JOBS, SIDE_SENDS, SIDE_RECEIVES, NUM_SIDES } TraceSide;
// "tid" of a row: the steps first, then rank by rank. Lanes beyond the available ones share the last.
enum { TID_STEPS = 0, TIDS_OF_SIDE = 1024, TIDS_OF_RANK = TIDS_OF_SIDE * NUM_SIDES };

typedef struct {
    FILE* file;
    const Plan* plan;
    int process;
    bool any_event;
} TraceWriter;

// The begin of another event, or all of it.
static void put(TraceWriter* w, const char* format, ...) __attribute__((format(printf, 2, 3)));
static void put(TraceWriter* w, const char* format, ...) {
    va_list args;
    va_start(args, format);
    fputs(w->any_event ? ",\n" : "\n", w->file);
    vfprintf(w->file, format, args);
    va_end(args);
    w->any_event = true;
}

static TraceSide side_of(int32_t kind) {
    return plan_instr_is_send(kind) ? SIDE_SENDS : plan_instr_is_recv(kind) ? SIDE_RECEIVES : SIDE_JOBS;
}

static int32_t tid_of(int32_t rank, TraceSide side, int32_t lane) {
    return (rank + 1) * TIDS_OF_RANK + (int32_t)side * TIDS_OF_SIDE +
           (lane < TIDS_OF_SIDE ? lane : TIDS_OF_SIDE - 1);
}

static void put_name(TraceWriter* w, const char* what, int32_t tid, const char* name) {
    put(w, "{\"ph\":\"M\",\"name\":\"%s\",\"pid\":%d,\"tid\":%d,\"args\":{\"name\":\"%s\"}}", what,
        w->process, tid, name);
}

static void put_lane(TraceWriter* w, int32_t rank, TraceSide side, int32_t lane) {
    const int32_t P = w->plan->P, tid = tid_of(rank, side, lane);
    char name[96], number[16] = "";
    if (lane > 0) { snprintf(number, sizeof number, " (%d)", (int)lane + 1); }
    if (side == SIDE_JOBS) {
        snprintf(name, sizeof name, "rank %d: replica %d, stage %d%s", (int)rank, (int)(rank / P),
                 (int)(rank % P), number);
    } else {
        snprintf(name, sizeof name, "rank %d %s%s", (int)rank, side == SIDE_SENDS ? "sends" : "receives",
                 number);
    }
    put_name(w, "thread_name", tid, name);
    put(w, "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
        w->process, tid, tid);
}

// planned_ns -1: the plan has no such instruction.
static void put_event(TraceWriter* w, int32_t rank, int32_t tid, const TraceEvent* e, int64_t planned_ns) {
    const Placement* placement = &w->plan->placement;
    const bool is_job = plan_instr_is_job((InstrKind)e->kind);
    const bool has_pieces = placement->num_chunks > w->plan->P || placement->head != HEAD_WHOLE;
    const char* category = is_job                          ? "job"
                           : side_of(e->kind) != SIDE_JOBS ? "transfer"
                           : plan_instr_is_wait(e->kind)   ? "wait"
                                                           : "other";
    char mb[24] = "", piece[24] = "";
    if (e->mb >= 0) { snprintf(mb, sizeof mb, " mb %d", (int)e->mb); }
    if (has_pieces && e->chunk >= 0) {
        snprintf(piece, sizeof piece, e->chunk < placement->num_chunks ? " chunk %d" : " head",
                 (int)e->chunk);
    }
    put(w,
        "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,\"name\":\"%s%s%s\",\"cat\":\"%s\","
        "\"args\":{\"rank\":%d",
        w->process, tid, (double)e->begin_ns / 1e3, (double)(e->end_ns - e->begin_ns) / 1e3,
        trace_kind_text(e->kind), mb, piece, category, (int)rank);
    if (e->mb >= 0) { fprintf(w->file, ",\"mb\":%d", (int)e->mb); }
    if (e->peer >= 0) { fprintf(w->file, ",\"peer\":%d", (int)e->peer); }
    if (w->process == PROCESS_MEASURED) {
        fprintf(w->file, ",\"wait_ns\":%lld", (long long)e->wait_ns);
        if (planned_ns >= 0) { fprintf(w->file, ",\"planned_ns\":%lld", (long long)planned_ns); }
    }
    fputs("}}", w->file);
}

// One end of a message's arrow, inside the event: from a send's begin to the last ns of its receive. Both
// ends identify the message by its number (plan_message.h).
static void put_arrow(TraceWriter* w, int32_t tid, const TraceEvent* e) {
    const Plan* plan = w->plan;
    const bool is_send = side_of(e->kind) == SIDE_SENDS;
    PlanInstr instr = {.kind = (uint8_t)e->kind, .chunk = (int16_t)e->chunk, .peer = e->peer};
    PlanMessage message;
    if (side_of(e->kind) == SIDE_JOBS || e->end_ns == e->begin_ns ||
        !plan_message_of(&message, &plan->placement, plan->P, &instr)) {
        return;
    }
    int64_t row = (int64_t)e->mb * placement_num_rows(&plan->placement, plan->P) + message.row;
    put(w,
        "{\"ph\":%s,\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"name\":\"message\",\"cat\":\"message\",\"id\":%lld}",
        is_send ? "\"s\"" : "\"f\",\"bp\":\"e\"", w->process, tid,
        (double)(is_send ? e->begin_ns : e->end_ns - 1) / 1e3,
        (long long)((row * PLAN_MESSAGE_KINDS + message.kind) * 2 + w->process - 1));
}

// By the times at which `rank` ran the jobs of its list.
static Status put_memory(TraceWriter* w, const TraceRank* rank, Arena* arena) {
    PlanRank list = w->plan->ranks[rank->rank];
    PlanInstr* instrs;
    MemoryCurve curve = {0};
    ARENA_TRY_NEW(instrs, arena, PlanInstr, list.num_instrs);
    for (int32_t i = 0; i < list.num_instrs; i++) {
        instrs[i] = list.instrs[i];
        bool is_job = plan_instr_is_job((InstrKind)instrs[i].kind);
        instrs[i].begin_ns = is_job ? rank->events[i].begin_ns : 0;
        instrs[i].end_ns = is_job ? rank->events[i].end_ns : 0;
    }
    list.instrs = instrs;
    TRY(memory_curve_make(&curve, &list, MEMORY_BUFFERS, arena));
    for (int32_t i = 0; i < curve.num_steps; i++) {
        put(w,
            "{\"ph\":\"C\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"name\":\"rank %d "
            "memory\",\"args\":{\"MiB\":%.3f}}",
            w->process, tid_of(rank->rank, SIDE_JOBS, 0), (double)curve.steps[i].begin_ns / 1e3, rank->rank,
            (double)curve.steps[i].num_bytes / (1024 * 1024));
    }
    return STATUS_OK;
}

// Events by their begin: qsort() has no context argument.
static int compare_begins(const void* a, const void* b) {
    const TraceEvent *x = *(const TraceEvent*const*)a, *y = *(const TraceEvent*const*)b;
    if (x->begin_ns != y->begin_ns) { return x->begin_ns < y->begin_ns ? -1 : 1; }
    if (x->end_ns != y->end_ns) { return x->end_ns < y->end_ns ? -1 : 1; }
    return (x > y) - (x < y);
}

// A viewer nests the events of a row by time, and events that overlap partly cannot nest. A rank's messages
// may overlap, so every event gets the first free lane of its side.
static Status put_rank(TraceWriter* w, const TraceRank* rank, Arena* arena) {
    const PlanRank* list = &w->plan->ranks[rank->rank];
    const TraceEvent** order;
    int64_t* lane_ends_ns[NUM_SIDES];
    int32_t num_lanes[NUM_SIDES] = {0};
    ARENA_TRY_NEW(order, arena, const TraceEvent*, rank->num_events);
    for (int side = 0; side < NUM_SIDES; side++) {
        ARENA_TRY_NEW(lane_ends_ns[side], arena, int64_t, rank->num_events);
    }
    for (int32_t i = 0; i < rank->num_events; i++) { order[i] = &rank->events[i]; }
    qsort(order, (size_t)rank->num_events, sizeof *order, compare_begins);
    for (int32_t i = 0; i < rank->num_events; i++) {
        const TraceSide side = side_of(order[i]->kind);
        const bool is_wait = plan_instr_is_wait(order[i]->kind);
        const int64_t idx = order[i] - rank->events;
        int64_t planned_ns = -1;
        int32_t lane = 0;
        if (is_wait && w->process == PROCESS_PREDICTED) { continue; }
        if (idx < list->num_instrs && !is_wait) {
            planned_ns = list->instrs[idx].end_ns - list->instrs[idx].begin_ns;
        }
        while (lane < num_lanes[side] && lane_ends_ns[side][lane] > order[i]->begin_ns) { lane++; }
        if (lane == num_lanes[side] && num_lanes[side]++ < TIDS_OF_SIDE) {
            put_lane(w, rank->rank, side, lane);
        }
        lane_ends_ns[side][lane] = order[i]->end_ns;
        int32_t tid = tid_of(rank->rank, side, lane);
        put_event(w, rank->rank, tid, order[i], planned_ns);
        put_arrow(w, tid, order[i]);
    }
    return put_memory(w, rank, arena);
}

static Status put_predicted(TraceWriter* w, Arena* arena) {
    const Plan* plan = w->plan;
    w->process = PROCESS_PREDICTED;
    put_name(w, "process_name", TID_STEPS, "predicted");
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        const PlanRank* list = &plan->ranks[r];
        TraceRank rank = {.rank = r, .num_events = list->num_instrs};
        ARENA_TRY_NEW(rank.events, arena, TraceEvent, list->num_instrs);
        for (int32_t i = 0; i < list->num_instrs; i++) {
            const PlanInstr* instr = &list->instrs[i];
            rank.events[i] = (TraceEvent){instr->kind,     instr->chunk,  instr->mb, instr->peer,
                                          instr->begin_ns, instr->end_ns, 0};
        }
        TRY(put_rank(w, &rank, arena));
    }
    return STATUS_OK;
}

// Times in the file count from the begin of the first rank.
static Status put_measured(TraceWriter* w, int64_t step, const TraceRank* ranks, Arena* arena) {
    const int32_t num_ranks = w->plan->P * w->plan->R;
    int64_t begin_ns = INT64_MAX, end_ns = 0;
    w->process = PROCESS_MEASURED;
    for (int32_t k = 0; k < num_ranks; k++) {
        begin_ns = smaller(begin_ns, ranks[k].begin_ns);
        end_ns = larger(end_ns, ranks[k].end_ns);
    }
    put_name(w, "process_name", TID_STEPS, "measured");
    put_name(w, "thread_name", TID_STEPS, "steps");
    put(w,
        "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":0,\"dur\":%.3f,\"name\":\"step %lld\",\"cat\":\"step\"}",
        w->process, TID_STEPS, (double)(end_ns - begin_ns) / 1e3, (long long)step);
    for (int32_t k = 0; k < num_ranks; k++) {
        TraceRank rank = ranks[k];
        ARENA_TRY_NEW(rank.events, arena, TraceEvent, rank.num_events);
        for (int32_t i = 0; i < rank.num_events; i++) {
            rank.events[i] = ranks[k].events[i];
            rank.events[i].begin_ns -= begin_ns;
            rank.events[i].end_ns -= begin_ns;
        }
        TRY(put_rank(w, &rank, arena));
    }
    return STATUS_OK;
}

Status trace_write(const char* path, int64_t step, const Plan* plan, const TraceRank* ranks) {
    TraceWriter writer = {.file = fopen(path, "w"), .plan = plan};
    if (writer.file == NULL) { return FAIL(STATUS_IO, "%s: cannot be written: %s", path, strerror(errno)); }
    Arena arena = {0};
    fprintf(writer.file, "{\"displayTimeUnit\":\"ms\",\n\"traceEvents\":[");
    Status status = put_predicted(&writer, &arena);
    if (status == STATUS_OK) { status = put_measured(&writer, step, ranks, &arena); }
    arena_free(&arena);
    fprintf(writer.file, "\n]}\n");
    bool failed = ferror(writer.file) != 0;
    failed |= fclose(writer.file) != 0;
    if (status != STATUS_OK || !failed) { return status; }
    return FAIL(STATUS_IO, "%s: could not be written whole: %s", path, strerror(errno));
}
