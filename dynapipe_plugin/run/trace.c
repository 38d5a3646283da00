// trace.c -- records to bytes and back, and idle time.
#include "trace.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../plan/memory_layout.h"
#include "../plan/plan_message.h"
#include "../plan/plan_text.h"

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

static bool trace_kind_is_transfer(int32_t kind) {
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

// --- trace_rows --------------------

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

static TraceSide trace_side_of(int32_t kind) {
    return plan_instr_is_send(kind)   ? TRACE_SENDS
           : plan_instr_is_recv(kind) ? TRACE_RECEIVES
                                      : TRACE_JOBS_SIDE;
}

// In any order of events; one that begins when another ends may follow it in its lane.
static Status trace_lanes_make(TraceLanes* out, const TraceRank* rank, Arena* arena) {
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

// Messages of which both ends were seen, in the order of micro-batches. Events that no plan with this
// placement has, and ends that name other ranks, make none.
static Status trace_messages_make(TraceMessage** out, int32_t* num_messages, const Plan* plan,
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

// --- trace_jobs --------------------

typedef struct {
    TraceJobs* jobs;
    const Plan* plan;
    const CostModel* costs;
    CostStage chunks[PLAN_MAX_CHUNKS];
    int32_t s;
    MachineRank machine;
    uint8_t* has;  // [rows * M] bits 1 << JobKind that this rank's list has
} Reader;

static void slow_terms(const Reader* r, double term[PASS_TERMS], JobKind kind) {
    for (int32_t i = 0; i < PASS_TERMS; i++) { term[i] *= r->machine.slow[kind]; }
}

// Room for a job of that side; NULL: there is none left.
static RefitJob* new_job(const Reader* r, RefitSide side, double measured_ns) {
    TraceJobs* jobs = r->jobs;
    if (jobs->num_jobs[side] == TRACE_JOBS_MOST || measured_ns <= 0) { return NULL; }
    RefitJob* job = &jobs->jobs[side][jobs->num_jobs[side]];
    *job = (RefitJob){.measured_ns = measured_ns};
    return job;
}

static double job_ns(const RefitJob* job) {
    double sum_ns = 0;
    for (int32_t c = 0; c < REFIT_COLUMNS; c++) { sum_ns += job->term[c]; }
    return sum_ns;
}

// It counts, where it was to take any time.
static void keep_job(const Reader* r, RefitSide side, const RefitJob* job) {
    if (job_ns(job) > 0) { r->jobs->num_jobs[side]++; }
}

static uint8_t jobs_of(const Reader* r, int32_t row, int32_t mb) {
    return r->has[(int64_t)row * r->plan->M + mb];
}

static void add_job(const Reader* r, JobKind kind, int32_t chunk, int32_t mb, double measured_ns) {
    const PlanMicrobatch* about = &r->plan->mbs[mb];
    const CostStage* stage = &r->chunks[chunk];
    RecomputeMode mode = (RecomputeMode)about->recompute[chunk];
    bool is_backward = kind == JOB_B || kind == JOB_W, is_dropped = jobs_of(r, chunk, mb) & 1 << JOB_R;
    RefitSide side = is_backward ? SIDE_BACKWARD : SIDE_FORWARD;
    if (kind == JOB_F && is_dropped && stage->has_head) { return; }
    RefitJob* job = new_job(r, side, measured_ns);
    if (job == NULL) { return; }
    double* term = kind == JOB_W ? &job->term[PASS_TERMS] : job->term;
    cost_scale_terms(term, r->costs, stage, kind, mode, &about->shape);
    slow_terms(r, term, kind);
    if (kind == JOB_B && !(jobs_of(r, chunk, mb) & 1 << JOB_W)) {
        cost_scale_terms(&job->term[PASS_TERMS], r->costs, stage, JOB_W, mode, &about->shape);
        slow_terms(r, &job->term[PASS_TERMS], JOB_W);
    }
    keep_job(r, side, job);
}

static void share_terms(const Reader* r, double term[PASS_TERMS], JobKind kind, const MbShape* shape) {
    const Placement* placement = &r->plan->placement;
    int32_t units = placement->head_begin[r->s + 1] - placement->head_begin[r->s];
    cost_scale_share_terms(term, r->costs, (double)units / HEAD_UNITS, kind, shape);
    slow_terms(r, term, kind);
}

// Forward and gradient of inputs of a share are one job: each takes the part of it that it was to take.
static void add_share(const Reader* r, JobKind kind, int32_t mb, double measured_ns) {
    const MbShape* shape = &r->plan->mbs[mb].shape;
    RefitJob forward = {0}, backward = {0};
    if (kind == JOB_F) {
        share_terms(r, forward.term, JOB_F, shape);
        share_terms(r, backward.term, JOB_B, shape);
    } else {
        share_terms(r, &backward.term[PASS_TERMS], JOB_W, shape);
    }
    double forward_ns = job_ns(&forward), all_ns = forward_ns + job_ns(&backward);
    for (int side = 0; side < SIDE_COUNT && all_ns > 0; side++) {
        const RefitJob* part = side == SIDE_FORWARD ? &forward : &backward;
        RefitJob* job = new_job(r, (RefitSide)side, measured_ns * job_ns(part) / all_ns);
        if (job == NULL) { continue; }
        memcpy(job->term, part->term, sizeof job->term);
        keep_job(r, (RefitSide)side, job);
    }
}

// Jobs run in the order of the list, so the n-th event of a job is the n-th job instruction.
static void add_all(Reader* r, const PlanRank* rank, const TraceRank* trace) {
    int32_t e = 0, K = r->plan->placement.num_chunks;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        while (e < trace->num_events && !plan_instr_is_job((InstrKind)trace->events[e].kind)) { e++; }
        if (e == trace->num_events) { return; }
        const TraceEvent* event = &trace->events[e++];
        bool is_it = event->kind == instr->kind && event->mb == instr->mb && event->chunk == instr->chunk;
        if (!is_it) { return; }
        JobKind kind = plan_instr_job((InstrKind)instr->kind);
        double measured_ns = (double)(event->end_ns - event->begin_ns);
        if (instr->chunk >= K) {
            add_share(r, kind, instr->mb, measured_ns);
        } else {
            add_job(r, kind, instr->chunk, instr->mb, measured_ns);
        }
    }
}

static Status reserve(TraceJobs* jobs) {
    for (int side = 0; side < SIDE_COUNT && jobs->room == NULL; side++) {
        jobs->jobs[side] = malloc(TRACE_JOBS_MOST * sizeof(RefitJob));
        if (jobs->jobs[side] == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to measure jobs"); }
    }
    if (jobs->room == NULL) { jobs->room = malloc(2 * TRACE_JOBS_MOST * sizeof(double)); }
    return jobs->room != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "no memory to measure jobs");
}

Status trace_jobs_add(TraceJobs* jobs, const Plan* plan, const TraceRank* trace, const CostModel* costs,
                      const Machine* machine) {
    const PlanRank* rank = &plan->ranks[trace->rank];
    const Placement* placement = &plan->placement;
    int64_t num_cells = (int64_t)placement_num_rows(placement, plan->P) * plan->M;
    Reader reader = {.jobs = jobs,
                     .plan = plan,
                     .costs = costs,
                     .s = trace->rank % plan->P,
                     .machine = machine_rank(machine, trace->rank),
                     .has = calloc((size_t)num_cells + 1, 1)};
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        reader.chunks[k] = cost_chunk_make(costs, placement, k);
    }
    Status status = reader.has != NULL ? reserve(jobs) : FAIL(STATUS_NO_MEMORY, "no memory to measure jobs");
    for (int32_t i = 0; i < rank->num_instrs && status == STATUS_OK; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        reader.has[(int64_t)instr->chunk * plan->M + instr->mb] |=
            (uint8_t)(1 << plan_instr_job((InstrKind)instr->kind));
    }
    if (status == STATUS_OK) { add_all(&reader, rank, trace); }
    free(reader.has);
    return status;
}

void trace_jobs_sum(RefitSums out[SIDE_COUNT], TraceJobs* jobs, const RefitShared* shared,
                    const RefitRank* rank) {
    memset(out, 0, SIDE_COUNT * sizeof *out);
    for (int side = 0; side < SIDE_COUNT; side++) {
        int32_t num = jobs->num_jobs[side];
        double *kept = jobs->room, *errors = jobs->room + TRACE_JOBS_MOST, factor[REFIT_COLUMNS] = {0};
        if (num == 0) { continue; }
        for (int32_t c = 0; c < refit_side_columns((RefitSide)side) && shared != NULL; c++) {
            factor[c] = shared->factor[side][c] * rank->slow[refit_column_pass((RefitSide)side, c)];
        }
        const RefitJob* all = jobs->jobs[side];
        double scatter = shared != NULL ? refit_sums_weigh_by(kept, errors, (RefitSide)side, all, num, factor)
                                        : refit_sums_weigh(kept, errors, (RefitSide)side, all, num);
        for (int32_t i = 0; i < num; i++) {
            refit_sums_add(&out[side], (RefitSide)side, &all[i], kept[i], scatter);
        }
    }
}

void trace_jobs_forget(TraceJobs* jobs) {
    memset(jobs->num_jobs, 0, sizeof jobs->num_jobs);
}

void trace_jobs_free(TraceJobs* jobs) {
    for (int side = 0; side < SIDE_COUNT; side++) { free(jobs->jobs[side]); }
    free(jobs->room);
    *jobs = (TraceJobs){0};
}

// --- trace_links --------------------

// A rank that looks at its messages all the time is away for a switch of threads now and then.
static const double LOOK_NS = 50e3;
// Less than this is no news: of a transfer; of a step, which is what transfers took too long in all.
static const double LINK_SAME = 0.1, LEAST_OF_STEP = 0.01;
// Where messages are to take less than this of a step, what delays them is not their link.
static const double LEAST_SHARE = 0.005;
// Of so many sends the quickest counts, or the mean of as many more as there are.
enum { ONE_OF = 32 };
static const double LINK_LEAST = 0.5, LINK_MOST = 16;

bool trace_links_expected(double* latency_ns, double* bytes_per_ns, const CostModel* costs,
                          const Machine* machine, int32_t rank) {
    MachineRank known = machine_rank(machine, rank);
    bool is_known = known.link_bytes_per_ns > 0;
    *latency_ns = is_known ? known.link_latency_ns : costs->comm_latency_ns;
    *bytes_per_ns = is_known ? known.link_bytes_per_ns : costs->comm_bytes_per_ns;
    return *bytes_per_ns > 0;
}

static bool ran_job_during(const TraceRank* trace, const TraceEvent* send) {
    for (int32_t i = 0; i < trace->num_events; i++) {
        const TraceEvent* event = &trace->events[i];
        bool is_job = event->kind < INSTR_COUNT && plan_instr_is_job((InstrKind)event->kind);
        if (is_job && event->begin_ns < send->end_ns && event->end_ns > send->begin_ns) { return true; }
    }
    return false;
}

static double ratio_of(double measured_ns, double predicted_ns, bool knows_when) {
    double more_ns = measured_ns - predicted_ns;
    if (knows_when) { return measured_ns / predicted_ns; }
    return more_ns > LOOK_NS ? 1 + (more_ns - LOOK_NS) / predicted_ns : 1;
}

static void add_send(TraceLinks* links, LinkSide side, double predicted_ns, double ratio) {
    links->predicted_ns[side] += predicted_ns;
    if (ratio > 0 && links->num[side] < TRACE_LINKS_MOST) { links->ratio[side][links->num[side]++] = ratio; }
}

// Of a message of a chunk; 0: of a share of the head, whose messages are many small ones at once.
static int64_t message_bytes(const CostModel* costs, const Placement* placement, PlanMessage message,
                             const MbShape* shape) {
    int32_t from = message.row - 1;
    if (message.row >= placement->num_chunks) { return 0; }
    CostStage stage = cost_chunk_make(costs, placement, from);
    return cost_boundary_bytes(costs, &stage, shape);
}

void trace_links_add(TraceLinks* links, const Plan* plan, const TraceRank* trace, const CostModel* costs,
                     const Machine* machine, bool knows_when) {
    links->step_ns += (double)(trace->end_ns - trace->begin_ns);
    for (int32_t i = 0; i < trace->num_events; i++) {
        const TraceEvent* event = &trace->events[i];
        PlanInstr instr = {.kind = (uint8_t)event->kind, .chunk = (int16_t)event->chunk, .peer = event->peer};
        PlanMessage message;
        bool sends = event->kind < INSTR_COUNT && plan_instr_is_send(event->kind) &&
                     plan_message_of(&message, &plan->placement, plan->P, &instr);
        bool to_next = event->peer == trace->rank + 1, is_near = to_next || event->peer == trace->rank - 1;
        if (!sends || !is_near) { continue; }
        double latency_ns, bytes_per_ns;
        int64_t num_bytes = message_bytes(costs, &plan->placement, message, &plan->mbs[event->mb].shape);
        if (num_bytes == 0 || !trace_links_expected(&latency_ns, &bytes_per_ns, costs, machine,
                                                    trace->rank - (to_next ? 0 : 1))) {
            continue;
        }
        double predicted_ns = latency_ns + (double)num_bytes / bytes_per_ns;
        bool counts = knows_when || !ran_job_during(trace, event);
        double ratio = ratio_of((double)(event->end_ns - event->begin_ns), predicted_ns, knows_when);
        add_send(links, to_next ? LINK_BEHIND : LINK_BEFORE, predicted_ns, counts ? ratio : 0);
    }
}

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

LinkSeen trace_links_take(const TraceLinks* links, LinkSide side) {
    int32_t num = links->num[side];
    double sorted[TRACE_LINKS_MOST], sum = 0;
    if (num < TRACE_LINKS_LEAST || links->step_ns <= 0) { return (LinkSeen){0}; }
    memcpy(sorted, links->ratio[side], (size_t)num * sizeof *sorted);
    qsort(sorted, (size_t)num, sizeof *sorted, compare_doubles);
    int32_t num_quick = (num + ONE_OF - 1) / ONE_OF;
    for (int32_t i = 0; i < num_quick; i++) { sum += sorted[i]; }
    return (LinkSeen){.ratio = sum / num_quick, .share = links->predicted_ns[side] / links->step_ns};
}

void trace_links_forget(TraceLinks* links) {
    memset(links->num, 0, sizeof links->num);
    memset(links->predicted_ns, 0, sizeof links->predicted_ns);
    links->step_ns = 0;
}

// --- what is made of it ----------------------------------------------------------------------------------

// Nearer to 1; 1 where one is above it and the other is not.
static double nearer(double a, double b) {
    if ((a > 1) != (b > 1)) { return 1; }
    return fabs(a - 1) < fabs(b - 1) ? a : b;
}

double trace_links_both(LinkSeen behind, LinkSeen before) {
    if (behind.ratio <= 0 || before.ratio <= 0) { return 0; }
    double ratio = nearer(behind.ratio, before.ratio), share = behind.share + before.share;
    bool matters = share >= LEAST_SHARE && fabs(ratio - 1) * share >= LEAST_OF_STEP;
    if (!matters || fabs(ratio - 1) <= LINK_SAME) { return 1; }
    return ratio < LINK_LEAST ? LINK_LEAST : ratio > LINK_MOST ? LINK_MOST : ratio;
}

double trace_links_settle(double before, double now) {
    return before > 0 && now > 0 ? nearer(before, now) : 1;
}

// --- trace_writer --------------------

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
    TraceMessage* messages = NULL;
    int32_t num_messages = 0;
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
