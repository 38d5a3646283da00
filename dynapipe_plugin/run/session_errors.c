// session_errors.c -- the plan's makespan again, with the measured times of its jobs and of its transfers.
#include "session_errors.h"

#include "../plan/plan_message.h"
#include "../plan/plan_text.h"
#include "../plan/replay.h"

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
