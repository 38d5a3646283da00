// trace.c -- the jobs and links of a step, measured; its error; the file that shows it.
#include "trace.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../plan/memory_layout.h"
#include "../plan/plan_message.h"
#include "../plan/plan_text.h"
#include "../plan/replay.h"

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

// --- instructions and their events -------------------------------------------------------------------------

// By kind, chunk and microbatch.
typedef struct {
    int64_t key;
    int32_t event;
} Keyed;

static int compare_keys(const void* a, const void* b) {
    int64_t x = ((const Keyed*)a)->key, y = ((const Keyed*)b)->key;
    return (x > y) - (x < y);
}

static int64_t key_of(const Plan* plan, const PlanInstr* instr) {
    int64_t row = plan_instr_row(&plan->placement, plan->P, instr);
    return ((row + 1) * INSTR_COUNT + instr->kind) * (plan->M + 1) + instr->mb + 1;
}

Status trace_match(int32_t** event_of, const Plan* plan, const TraceRank* trace, Arena* arena) {
    const PlanRank* list = &plan->ranks[trace->rank];
    Keyed* events;
    int32_t num_events = 0;
    ARENA_TRY_NEW(events, arena, Keyed, trace->num_events);
    ARENA_TRY_NEW(*event_of, arena, int32_t, list->num_instrs);
    for (int32_t i = 0; i < trace->num_events; i++) {
        const TraceEvent* e = &trace->events[i];
        if (e->kind >= INSTR_COUNT) { continue; }
        PlanInstr instr = {
            .kind = (uint8_t)e->kind, .chunk = (int16_t)e->chunk, .mb = e->mb, .peer = e->peer};
        events[num_events++] = (Keyed){key_of(plan, &instr), i};
    }
    qsort(events, (size_t)num_events, sizeof *events, compare_keys);
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const Keyed wanted = {key_of(plan, &list->instrs[i]), 0};
        const Keyed* found =
            (const Keyed*)bsearch(&wanted, events, (size_t)num_events, sizeof *events, compare_keys);
        (*event_of)[i] = found != NULL ? found->event : -1;
    }
    return STATUS_OK;
}

// --- jobs ------------------------------------------------------------------------------------------------

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

// It counts if it was predicted to take time.
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

// Forward and gradient of inputs of a share are one job: each is assigned its predicted part of it.
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
        jobs->jobs[side] = (RefitJob*)malloc(TRACE_JOBS_MOST * sizeof(RefitJob));
        if (jobs->jobs[side] == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to measure jobs"); }
    }
    if (jobs->room == NULL) { jobs->room = (double*)malloc(2 * TRACE_JOBS_MOST * sizeof(double)); }
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
                     .has = (uint8_t*)calloc((size_t)num_cells + 1, 1)};
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

// --- links -----------------------------------------------------------------------------------------------

// A rank that polls its messages all the time is sometimes delayed by a switch of threads.
static const double LOOK_NS = 50e3;
// Smaller changes are ignored: of a transfer; of a step, the total excess of its transfers.
static const double LINK_SAME = 0.1, LEAST_OF_STEP = 0.01;
// Where messages are predicted to take less than this of a step, delays are not caused by the link.
static const double LEAST_SHARE = 0.005;
// The fastest of up to this many sends counts; of more, the mean of the fastest 1 / ONE_OF of them.
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

// For a message of a chunk; 0: of a share of the head, which sends many small messages at once.
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

// --- ratios of links ---------------------------------------------------------------------------------------

// The one nearer to 1; 1 where they are on different sides of it.
static double nearer(double a, double b) {
    if ((a > 1) != (b > 1)) { return 1; }
    return fabs(a - 1) < fabs(b - 1) ? a : b;
}

double trace_links_both(LinkSeen one_end, LinkSeen other_end) {
    if (one_end.ratio <= 0 || other_end.ratio <= 0) { return 0; }
    double ratio = nearer(one_end.ratio, other_end.ratio), share = one_end.share + other_end.share;
    bool matters = share >= LEAST_SHARE && fabs(ratio - 1) * share >= LEAST_OF_STEP;
    if (!matters || fabs(ratio - 1) <= LINK_SAME) { return 1; }
    return ratio < LINK_LEAST ? LINK_LEAST : ratio > LINK_MOST ? LINK_MOST : ratio;
}

double trace_links_settle(double before, double now) {
    return before > 0 && now > 0 ? nearer(before, now) : 1;
}

// --- a step's error ---------------------------------------------------------------------------------------

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int64_t** new_times(const Plan* plan, int32_t replica, Arena* scratch) {
    int64_t** ns = ARENA_NEW(scratch, int64_t*, plan->P);
    for (int32_t s = 0; s < plan->P && ns != NULL; s++) {
        ns[s] = ARENA_NEW(scratch, int64_t, plan->ranks[replica * plan->P + s].num_instrs);
        if (ns[s] == NULL) { return NULL; }
    }
    return ns;
}

static int64_t predicted_of(const SessionSpans* it, int32_t s, int32_t i) {
    const PlanInstr* instr = &it->plan->ranks[it->replica * it->plan->P + s].instrs[i];
    return it->predicted_ns != NULL ? it->predicted_ns[s][i] : instr->end_ns - instr->begin_ns;
}

// --- how long a transfer took ------------------------------------------------------------------------------

// Where the receiver of a message has its receive.
typedef struct {
    int32_t* at[PLAN_MESSAGE_KINDS];  // [rows * M] instruction of the message's reader; -1: none
} Receives;

static int64_t cell_of(const Plan* plan, PlanMessage message, int32_t mb) {
    return (int64_t)message.row * plan->M + mb;
}

static Status find_receives(Receives* out, const SessionSpans* it, Arena* scratch) {
    const Plan* plan = it->plan;
    int64_t num_cells = (int64_t)placement_num_rows(&plan->placement, plan->P) * plan->M;
    for (int k = 0; k < PLAN_MESSAGE_KINDS; k++) {
        out->at[k] = ARENA_NEW(scratch, int32_t, num_cells);
        if (out->at[k] == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a step's errors"); }
        for (int64_t i = 0; i < num_cells; i++) { out->at[k][i] = -1; }
    }
    for (int32_t s = 0; s < plan->P; s++) {
        const PlanRank* list = &plan->ranks[it->replica * plan->P + s];
        for (int32_t i = 0; i < list->num_instrs; i++) {
            const PlanInstr* instr = &list->instrs[i];
            PlanMessage message;
            bool is_there = plan_instr_is_recv(instr->kind) &&
                            plan_message_of(&message, &plan->placement, plan->P, instr);
            if (is_there) { out->at[message.kind][cell_of(plan, message, instr->mb)] = i; }
        }
    }
    return STATUS_OK;
}

// The first job of a list that has not ended at `ns`: jobs run one after the other. After the last:
// num_instrs.
static int32_t job_after(const PlanRank* list, const SessionSpan* spans, int32_t from, int64_t ns) {
    int32_t i = from;
    while (i < list->num_instrs &&
           !(plan_instr_is_job((InstrKind)list->instrs[i].kind) && spans[i].end_ns > ns)) {
        i++;
    }
    return i;
}

// Where to begin the search for the first job of a list that ends after an instant: these instants ascend.
typedef struct {
    int32_t at;
    int64_t ns;
} Cursor;

static int32_t cursor_move(Cursor* cursor, const PlanRank* list, const SessionSpan* spans, int64_t ns) {
    cursor->at = job_after(list, spans, ns >= cursor->ns ? cursor->at : 0, ns);
    cursor->ns = ns;
    return cursor->at;
}

// One end of a transfer.
typedef struct {
    const PlanRank* list;
    const SessionSpan* spans;
    Cursor* cursor;
} End;

// Time in [begin, end) in which neither end runs a job.
static int64_t free_ns(const End ends[2], int64_t begin_ns, int64_t end_ns) {
    int64_t at_ns = begin_ns, sum_ns = 0;
    int32_t next[2];
    for (int k = 0; k < 2; k++) { next[k] = cursor_move(ends[k].cursor, ends[k].list, ends[k].spans, at_ns); }
    while (at_ns < end_ns) {
        int64_t free_until_ns = end_ns, busy_until_ns = at_ns;
        for (int k = 0; k < 2; k++) {
            next[k] = job_after(ends[k].list, ends[k].spans, next[k], at_ns);
            if (next[k] == ends[k].list->num_instrs) { continue; }
            const SessionSpan* job = &ends[k].spans[next[k]];
            if (job->begin_ns <= at_ns) { busy_until_ns = larger(busy_until_ns, job->end_ns); }
            free_until_ns = smaller(free_until_ns, job->begin_ns);
        }
        if (busy_until_ns > at_ns) {
            at_ns = busy_until_ns;
            continue;
        }
        sum_ns += free_until_ns - at_ns;
        at_ns = free_until_ns;
    }
    return sum_ns;
}

// A stage's messages, one after the other over one link, as planned.
typedef struct {
    const SessionSpans* all;
    int32_t s;
    int64_t link_ns;  // when the last message was there
    Cursor* cursors;  // [P]
} Sender;

static int64_t transfer_ns(Sender* sender, int32_t i, int32_t peer, int32_t peer_i) {
    const SessionSpans* it = sender->all;
    const PlanRank* ranks = it->plan->ranks + it->replica * it->plan->P;
    const int32_t s = sender->s;
    const End ends[2] = {{&ranks[s], it->spans[s], &sender->cursors[s]},
                         {&ranks[peer], it->spans[peer], &sender->cursors[peer]}};
    int64_t planned_ns = predicted_of(it, s, i);
    int64_t posted_ns = larger(it->spans[s][i].begin_ns, it->spans[peer][peer_i].begin_ns);
    int64_t begin_ns = larger(posted_ns, sender->link_ns), end_ns = it->spans[peer][peer_i].end_ns;
    sender->link_ns = larger(sender->link_ns, end_ns);
    // seen together with the message before, or nothing travelled: unknown
    if (end_ns <= begin_ns || (begin_ns > posted_ns && end_ns - begin_ns < planned_ns)) { return planned_ns; }
    if (it->moves_alone || end_ns - begin_ns <= planned_ns) { return end_ns - begin_ns; }
    return larger(planned_ns, free_ns(ends, begin_ns, end_ns));
}

// --- the two makespans -------------------------------------------------------------------------------------

static bool has_run(const SessionSpan* span) {
    return span->end_ns > span->begin_ns;
}

static Status measure_rank(int64_t* jobs_ns, int64_t* all_ns, const SessionSpans* it, int32_t s,
                           const Receives* receives, Arena* scratch) {
    const Plan* plan = it->plan;
    const PlanRank* list = &plan->ranks[it->replica * plan->P + s];
    Sender sender = {.all = it, .s = s, .cursors = ARENA_NEW(scratch, Cursor, plan->P)};
    if (sender.cursors == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a step's errors"); }
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        PlanMessage message;
        jobs_ns[i] = all_ns[i] = predicted_of(it, s, i);
        if (plan_instr_is_job((InstrKind)instr->kind)) {
            if (has_run(&it->spans[s][i])) {
                jobs_ns[i] = all_ns[i] = it->spans[s][i].end_ns - it->spans[s][i].begin_ns;
            }
            continue;
        }
        bool sends =
            plan_instr_is_send(instr->kind) && plan_message_of(&message, &plan->placement, plan->P, instr);
        int32_t recv = sends ? receives->at[message.kind][cell_of(plan, message, instr->mb)] : -1;
        if (recv < 0) { continue; }
        all_ns[i] = transfer_ns(&sender, i, plan_message_reader(&plan->placement, message).stage, recv);
    }
    return STATUS_OK;
}

Status session_errors_split(SessionErrors* out, const SessionSpans* it, Arena* scratch) {
    int64_t** jobs_ns = new_times(it->plan, it->replica, scratch);
    int64_t** all_ns = new_times(it->plan, it->replica, scratch);
    int64_t predicted_ns, with_jobs_ns, with_all_ns;
    if (jobs_ns == NULL || all_ns == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a step's errors"); }
    Receives receives;
    TRY(find_receives(&receives, it, scratch));
    for (int32_t s = 0; s < it->plan->P; s++) {
        TRY(measure_rank(jobs_ns[s], all_ns[s], it, s, &receives, scratch));
    }
    TRY(plan_makespan(&predicted_ns, it->plan, it->replica, it->predicted_ns, scratch));
    TRY(plan_makespan(&with_jobs_ns, it->plan, it->replica, (const int64_t* const*)jobs_ns, scratch));
    TRY(plan_makespan(&with_all_ns, it->plan, it->replica, (const int64_t* const*)all_ns, scratch));
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

static const double BYTES_PER_MIB = 1024 * 1024;

typedef struct {
    FILE* file;
    const TraceStep* step;
    int process;
    bool any_event;
} TraceWriter;

static void begin_event(TraceWriter* w) {
    fprintf(w->file, "%s", w->any_event ? ",\n" : "\n");
    w->any_event = true;
}

static TraceSide side_of(int32_t kind) {
    return plan_instr_is_send(kind) ? SIDE_SENDS : plan_instr_is_recv(kind) ? SIDE_RECEIVES : SIDE_JOBS;
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

static void write_lane_name(TraceWriter* w, int32_t rank, TraceSide side, int32_t lane) {
    const Plan* plan = w->step->plan;
    char name[96], number[16] = "";
    int32_t tid = tid_of(rank, side, lane);
    if (lane > 0) { snprintf(number, sizeof number, " (%d)", (int)lane + 1); }
    if (side == SIDE_JOBS) {
        snprintf(name, sizeof name, "rank %d: replica %d, stage %d%s", (int)rank, (int)(rank / plan->P),
                 (int)(rank % plan->P), number);
    } else {
        snprintf(name, sizeof name, "rank %d %s%s", (int)rank, side == SIDE_SENDS ? "sends" : "receives",
                 number);
    }
    write_name(w, "thread_name", w->process, tid, name);
    begin_event(w);
    fprintf(
        w->file,
        "{\"ph\":\"M\",\"name\":\"thread_sort_index\",\"pid\":%d,\"tid\":%d,\"args\":{\"sort_index\":%d}}",
        w->process, tid, tid);
}

// A span in a row, up to its args.
static void write_span(TraceWriter* w, int32_t tid, int64_t begin_ns, int64_t end_ns) {
    begin_event(w);
    fprintf(w->file, "{\"ph\":\"X\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"dur\":%.3f,", w->process, tid,
            (double)begin_ns / 1e3, (double)(end_ns - begin_ns) / 1e3);
}

// Which of the rank's chunks; empty where each rank has one.
static void write_piece(TraceWriter* w, const TraceEvent* e) {
    const Placement* placement = &w->step->plan->placement;
    bool is_plain = placement->num_chunks <= w->step->plan->P && placement->head == HEAD_WHOLE;
    if (is_plain || e->chunk < 0) { return; }
    if (e->chunk >= placement->num_chunks) {
        fprintf(w->file, " head");
    } else {
        fprintf(w->file, " chunk %d", (int)e->chunk);
    }
}

// planned_ns -1: the plan has no such instruction.
static void write_event(TraceWriter* w, int32_t rank, int32_t tid, const TraceEvent* e, int64_t planned_ns) {
    const char* kind = trace_kind_text(e->kind);
    const char* category = plan_instr_is_job((InstrKind)e->kind) ? "job"
                           : side_of(e->kind) != SIDE_JOBS       ? "transfer"
                           : plan_instr_is_wait(e->kind)         ? "wait"
                                                                 : "other";
    write_span(w, tid, e->begin_ns, e->end_ns);
    fprintf(w->file, "\"name\":\"%s", kind);
    if (e->mb >= 0) { fprintf(w->file, " mb %d", (int)e->mb); }
    write_piece(w, e);
    fprintf(w->file, "\",\"cat\":\"%s\",\"args\":{\"step\":%lld,\"rank\":%d,\"kind\":\"%s\"", category,
            (long long)w->step->step, (int)rank, kind);
    if (e->mb >= 0) { fprintf(w->file, ",\"mb\":%d,\"chunk\":%d", (int)e->mb, (int)e->chunk); }
    if (e->peer >= 0) { fprintf(w->file, ",\"peer\":%d", (int)e->peer); }
    if (w->process == PROCESS_MEASURED) {
        fprintf(w->file, ",\"begin_ns\":%lld,\"end_ns\":%lld,\"wait_ns\":%lld", (long long)e->begin_ns,
                (long long)e->end_ns, (long long)e->wait_ns);
        if (planned_ns >= 0) { fprintf(w->file, ",\"planned_ns\":%lld", (long long)planned_ns); }
        if (planned_ns >= 0 && plan_instr_is_job((InstrKind)e->kind)) {
            fprintf(w->file, ",\"off_ns\":%lld", (long long)(e->end_ns - e->begin_ns - planned_ns));
        }
    }
    fprintf(w->file, "}}");
}

// One end of a message's arrow, inside the event: from a send's begin to the last ns of its receive. Both
// ends identify the message by its number (plan_message.h).
static void write_arrow(TraceWriter* w, int32_t tid, const TraceEvent* e) {
    const Plan* plan = w->step->plan;
    PlanInstr instr = {.kind = (uint8_t)e->kind, .chunk = (int16_t)e->chunk, .peer = e->peer};
    PlanMessage message;
    bool is_send = side_of(e->kind) == SIDE_SENDS;
    if (side_of(e->kind) == SIDE_JOBS || e->end_ns == e->begin_ns ||
        !plan_message_of(&message, &plan->placement, plan->P, &instr)) {
        return;
    }
    int64_t row = (int64_t)e->mb * placement_num_rows(&plan->placement, plan->P) + message.row;
    begin_event(w);
    fprintf(
        w->file,
        "{\"ph\":%s,\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"name\":\"message\",\"cat\":\"message\",\"id\":%lld}",
        is_send ? "\"s\"" : "\"f\",\"bp\":\"e\"", w->process, tid,
        (double)(is_send ? e->begin_ns : e->end_ns - 1) / 1e3,
        (long long)((row * PLAN_MESSAGE_KINDS + message.kind) * 2 + w->process - 1));
}

// --- memory ------------------------------------------------------------------------------------------------

// The list with the times at which `rank` ran its jobs; nothing where these are other jobs.
static Status write_memory(TraceWriter* w, const TraceRank* rank, const int32_t* event_of, Arena* arena) {
    PlanRank list = w->step->plan->ranks[rank->rank];
    PlanInstr* instrs;
    MemoryCurve curve = {0};
    ARENA_TRY_NEW(instrs, arena, PlanInstr, list.num_instrs);
    for (int32_t i = 0; i < list.num_instrs; i++) {
        instrs[i] = list.instrs[i];
        instrs[i].begin_ns = instrs[i].end_ns = 0;
        if (!plan_instr_is_job((InstrKind)instrs[i].kind)) { continue; }
        if (event_of[i] < 0) { return STATUS_OK; }
        instrs[i].begin_ns = rank->events[event_of[i]].begin_ns;
        instrs[i].end_ns = rank->events[event_of[i]].end_ns;
    }
    list.instrs = instrs;
    TRY(memory_curve_make(&curve, &list, w->step->memory_rule, arena));
    for (int32_t i = 0; i < curve.num_steps; i++) {
        begin_event(w);
        fprintf(w->file,
                "{\"ph\":\"C\",\"pid\":%d,\"tid\":%d,\"ts\":%.3f,\"name\":\"rank %d memory\","
                "\"args\":{\"MiB\":%.3f}}",
                w->process, tid_of(rank->rank, SIDE_JOBS, 0), (double)curve.steps[i].begin_ns / 1e3,
                rank->rank, (double)curve.steps[i].num_bytes / BYTES_PER_MIB);
    }
    return STATUS_OK;
}

// --- rows --------------------------------------------------------------------------------------------------

// Events by their begin: qsort() has no context argument.
static int compare_begins(const void* a, const void* b) {
    const TraceEvent *x = *(const TraceEvent*const*)a, *y = *(const TraceEvent*const*)b;
    if (x->begin_ns != y->begin_ns) { return x->begin_ns < y->begin_ns ? -1 : 1; }
    if (x->end_ns != y->end_ns) { return x->end_ns < y->end_ns ? -1 : 1; }
    return (x > y) - (x < y);
}

// A viewer nests the events of a row by time, and events that overlap partly cannot nest. A rank's messages
// may overlap, so every event gets the first free lane of its side.
static Status make_lanes(TraceWriter* w, const TraceRank* rank, int32_t** out, Arena* arena) {
    const TraceEvent** order;
    int64_t* free_ns[NUM_SIDES];  // of each lane
    int32_t num_lanes[NUM_SIDES] = {0};
    ARENA_TRY_NEW(*out, arena, int32_t, rank->num_events);
    ARENA_TRY_NEW(order, arena, const TraceEvent*, rank->num_events);
    for (int side = 0; side < NUM_SIDES; side++) {
        ARENA_TRY_NEW(free_ns[side], arena, int64_t, rank->num_events);
    }
    for (int32_t i = 0; i < rank->num_events; i++) { order[i] = &rank->events[i]; }
    qsort(order, (size_t)rank->num_events, sizeof *order, compare_begins);
    for (int32_t i = 0; i < rank->num_events; i++) {
        TraceSide side = side_of(order[i]->kind);
        int32_t lane = 0;
        while (lane < num_lanes[side] && free_ns[side][lane] > order[i]->begin_ns) { lane++; }
        if (lane == num_lanes[side]) {
            if (lane < TIDS_OF_SIDE) { write_lane_name(w, rank->rank, side, lane); }
            num_lanes[side]++;
        }
        free_ns[side][lane] = order[i]->end_ns;
        (*out)[order[i] - rank->events] = lane;
    }
    return STATUS_OK;
}

static Status write_rank(TraceWriter* w, const TraceRank* rank, Arena* arena) {
    const PlanRank* list = &w->step->plan->ranks[rank->rank];
    int32_t *lanes, *event_of;
    int64_t* planned_ns;
    TRY(make_lanes(w, rank, &lanes, arena));
    TRY(trace_match(&event_of, w->step->plan, rank, arena));
    ARENA_TRY_NEW(planned_ns, arena, int64_t, rank->num_events);
    for (int32_t i = 0; i < rank->num_events; i++) { planned_ns[i] = -1; }
    for (int32_t i = 0; i < list->num_instrs; i++) {
        bool is_planned = event_of[i] >= 0 && !plan_instr_is_wait(list->instrs[i].kind);
        if (is_planned) { planned_ns[event_of[i]] = list->instrs[i].end_ns - list->instrs[i].begin_ns; }
    }
    for (int32_t i = 0; i < rank->num_events; i++) {
        const TraceEvent* e = &rank->events[i];
        int32_t tid = tid_of(rank->rank, side_of(e->kind), lanes[i]);
        write_event(w, rank->rank, tid, e, planned_ns[i]);
        write_arrow(w, tid, e);
    }
    return write_memory(w, rank, event_of, arena);
}

// --- the whole ---------------------------------------------------------------------------------------------

static void write_head(TraceWriter* w) {
    const TraceStep* step = w->step;
    const Placement* placement = &step->plan->placement;
    fprintf(w->file,
            "{\"displayTimeUnit\":\"ms\",\n\"otherData\":{\"format\":\"" TRACE_FORMAT
            "\",\"stages\":%d,\"replicas\":%d,\"stage_of\":[",
            step->plan->P, step->plan->R);
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        fprintf(w->file, "%s%d", k > 0 ? "," : "", placement->stage_of[k]);
    }
    fprintf(w->file, "],\"head\":%d,\"head_begin\":[", placement->head);
    for (int32_t s = 0; s <= step->plan->P && placement->head != HEAD_WHOLE; s++) {
        fprintf(w->file, "%s%d", s > 0 ? "," : "", placement->head_begin[s]);
    }
    fprintf(w->file, "],\"clocks\":[");
    for (int32_t r = 0; r < step->num_ranks; r++) {
        TraceClock one = {0, 0};
        if (step->clocks != NULL) { one = step->clocks[r]; }
        fprintf(w->file, "%s{\"rank\":%d,\"offset_ns\":%lld,\"error_ns\":%lld}", r > 0 ? "," : "", r,
                (long long)one.offset_ns, (long long)one.error_ns);
    }
    fprintf(w->file, "]},\n\"traceEvents\":[");
    write_name(w, "process_name", PROCESS_PREDICTED, TID_STEPS, "predicted");
    if (step->ranks == NULL) { return; }
    write_name(w, "process_name", PROCESS_MEASURED, TID_STEPS, "measured");
    write_name(w, "thread_name", PROCESS_MEASURED, TID_STEPS, "steps");
}

static Status write_predicted(TraceWriter* w, Arena* arena) {
    const Plan* plan = w->step->plan;
    w->process = PROCESS_PREDICTED;
    for (int32_t r = 0; r < w->step->num_ranks; r++) {
        const PlanRank* list = &plan->ranks[r];
        TraceRank rank = {.rank = r};
        ARENA_TRY_NEW(rank.events, arena, TraceEvent, list->num_instrs);
        for (int32_t i = 0; i < list->num_instrs; i++) {
            const PlanInstr* instr = &list->instrs[i];
            if (plan_instr_is_wait(instr->kind)) { continue; }
            rank.events[rank.num_events++] = (TraceEvent){.kind = instr->kind,
                                                          .chunk = instr->chunk,
                                                          .mb = instr->mb,
                                                          .peer = instr->peer,
                                                          .begin_ns = instr->begin_ns,
                                                          .end_ns = instr->end_ns};
        }
        TRY(write_rank(w, &rank, arena));
    }
    return STATUS_OK;
}

// Times in the file count from the begin of the first rank.
static Status write_measured(TraceWriter* w, Arena* arena) {
    const TraceStep* step = w->step;
    const SessionErrors* errors = step->errors;
    int64_t begin_ns = INT64_MAX, end_ns = 0;
    w->process = PROCESS_MEASURED;
    for (int32_t k = 0; k < step->num_ranks; k++) {
        if (step->ranks[k].begin_ns < begin_ns) { begin_ns = step->ranks[k].begin_ns; }
        if (step->ranks[k].end_ns > end_ns) { end_ns = step->ranks[k].end_ns; }
    }
    write_span(w, TID_STEPS, 0, end_ns - begin_ns);
    fprintf(w->file,
            "\"name\":\"step %lld\",\"cat\":\"step\",\"args\":{\"step\":%lld,\"plan_hash\":\"%016llx\","
            "\"policy\":\"%s\",\"schedule\":\"%s\"",
            (long long)step->step, (long long)step->step, (unsigned long long)step->plan_hash,
            step->plan->policy, step->plan->schedule);
    if (errors != NULL) {
        fprintf(w->file,
                ",\"predicted_ns\":%lld,\"measured_ns\":%lld,\"jobs_off_ns\":%lld,\"transfers_off_ns\":%lld,"
                "\"waiting_off_ns\":%lld",
                (long long)errors->predicted_ns, (long long)errors->measured_ns, (long long)errors->jobs_ns,
                (long long)errors->transfers_ns, (long long)errors->waiting_ns);
    }
    fprintf(w->file, "}}");
    for (int32_t k = 0; k < step->num_ranks; k++) {
        TraceRank rank = step->ranks[k];
        ARENA_TRY_NEW(rank.events, arena, TraceEvent, rank.num_events);
        for (int32_t i = 0; i < rank.num_events; i++) {
            rank.events[i] = step->ranks[k].events[i];
            rank.events[i].begin_ns -= begin_ns;
            rank.events[i].end_ns -= begin_ns;
        }
        TRY(write_rank(w, &rank, arena));
    }
    return STATUS_OK;
}

Status trace_write(const char* path, const TraceStep* step) {
    int32_t num_ranks = step->plan->P * step->plan->R;
    if (step->num_ranks != num_ranks) {
        return FAIL(STATUS_OUT_OF_RANGE, "trace: %d records for %d ranks", (int)step->num_ranks,
                    (int)num_ranks);
    }
    TraceWriter writer = {.file = fopen(path, "w"), .step = step};
    if (writer.file == NULL) { return FAIL(STATUS_IO, "%s: cannot be written: %s", path, strerror(errno)); }
    Arena arena = {0};
    write_head(&writer);
    Status status = write_predicted(&writer, &arena);
    if (status == STATUS_OK && step->ranks != NULL) { status = write_measured(&writer, &arena); }
    arena_free(&arena);
    fprintf(writer.file, "\n]}\n");
    bool failed = ferror(writer.file) != 0;
    failed |= fclose(writer.file) != 0;
    if (status != STATUS_OK || !failed) { return status; }
    return FAIL(STATUS_IO, "%s: could not be written whole: %s", path, strerror(errno));
}
