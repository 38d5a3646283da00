#include "trace_view.h"
#include "../dynapipe_plugin/plan/simulate.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../dynapipe_plugin/plan/plan_text.h"
#include "../dynapipe_plugin/plan/replay.h"
#include "plan_views.h"
#include "../util/files.h"
#include "../util/program.h"

static const char REMEDY[] = "give a file that the trainer's --trace wrote";

// Days: sums stay far from the 64-bit limits.
#define MOST_NS (INT64_C(1) << 50)

static Status fail_event(const char* path, size_t idx, const char* why) {
    return FAIL(STATUS_BAD_FORMAT, "%s: event %zu: %s ---> %s", path, idx, why, REMEDY);
}

static bool read_int(int64_t* out, const json_t* object, const char* key, int64_t least, int64_t most) {
    const json_t* value = json_object_get(object, key);
    if (!json_is_integer(value)) { return false; }
    *out = json_integer_value(value);
    return *out >= least && *out <= most;
}

static int64_t int_or(const json_t* object, const char* key, int64_t least, int64_t most, int64_t otherwise) {
    int64_t value;
    return read_int(&value, object, key, least, most) ? value : otherwise;
}

// Names are printed, so only letters used by the planner are accepted.
static void read_name(char* out, size_t out_bytes, const json_t* object, const char* key) {
    const char* text = json_string_value(json_object_get(object, key));
    bool fits = text != NULL && strlen(text) < out_bytes && plan_name_is_valid(text);
    snprintf(out, out_bytes, "%s", fits ? text : "?");
}

static int32_t kind_of(const json_t* args) {
    const char* text = json_string_value(json_object_get(args, "kind"));
    for (int32_t kind = 0; kind < TRACE_KIND_COUNT && text != NULL; kind++) {
        if (strcmp(text, trace_kind_text(kind)) == 0) { return kind; }
    }
    return -1;
}

static Status read_placement(Placement* out, const json_t* other, int32_t P, const char* path) {
    const json_t *stage_of = json_object_get(other, "stage_of"),
                 *shares = json_object_get(other, "head_begin");
    size_t num_chunks = json_array_size(stage_of), num_shares = json_array_size(shares);
    int64_t head;
    bool good = num_chunks >= 1 && num_chunks <= PLAN_MAX_CHUNKS &&
                read_int(&head, other, "head", 0, HEAD_COUNT - 1) &&
                num_shares == (head == HEAD_WHOLE ? 0 : (size_t)P + 1);
    for (size_t k = 0; good && k < num_chunks; k++) {
        json_int_t s = json_integer_value(json_array_get(stage_of, k));
        good = json_is_integer(json_array_get(stage_of, k)) && s >= 0 && s < P;
        out->stage_of[k] = (int16_t)s;
    }
    for (size_t s = 0; good && s < num_shares; s++) {
        json_int_t units = json_integer_value(json_array_get(shares, s));
        good = units >= (s > 0 ? out->head_begin[s - 1] : 0) && units <= HEAD_UNITS;
        out->head_begin[s] = (int16_t)units;
    }
    if (!good) {
        return FAIL(STATUS_BAD_FORMAT, "%s: otherData: no stages of chunks and shares of the head ---> %s",
                    path, REMEDY);
    }
    out->num_chunks = (int32_t)num_chunks;
    out->head = (uint8_t)head;
    return STATUS_OK;
}

static Status read_head(TraceFile* out, const json_t* root, const char* path, Arena* arena) {
    const json_t* other = json_object_get(root, "otherData");
    const char* format = json_string_value(json_object_get(other, "format"));
    int64_t P, R;
    if (format == NULL || strcmp(format, TRACE_FORMAT) != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: otherData has no format \"%s\" ---> %s", path, TRACE_FORMAT,
                    REMEDY);
    }
    if (!read_int(&P, other, "stages", 1, PLAN_MAX_STAGES) ||
        !read_int(&R, other, "replicas", 1, PLAN_MAX_REPLICAS)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: otherData: stages and replicas of 1 to %d and %d ---> %s", path,
                    PLAN_MAX_STAGES, PLAN_MAX_REPLICAS, REMEDY);
    }
    out->P = (int32_t)P;
    out->R = (int32_t)R;
    TRY(read_placement(&out->placement, other, out->P, path));
    const json_t* clocks = json_object_get(other, "clocks");
    for (size_t i = 0; i < json_array_size(clocks); i++) {
        const json_t* one = json_array_get(clocks, i);
        int64_t error_ns = int_or(one, "error_ns", 0, MOST_NS, 0);
        if (error_ns < out->worst_clock.error_ns) { continue; }
        out->worst_clock = (TraceClock){int_or(one, "offset_ns", -INT64_MAX, INT64_MAX, 0), error_ns};
    }
    out->ranks = ARENA_NEW(arena, TraceFileRank, P * R);
    return out->ranks != NULL ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "%s: no memory for it", path);
}

static Status read_step(TraceFile* out, const json_t* args, const char* path, size_t idx) {
    if (!read_int(&out->step, args, "step", 0, INT32_MAX)) { return fail_event(path, idx, "no step"); }
    read_name(out->plan_hash, sizeof out->plan_hash, args, "plan_hash");
    read_name(out->policy, sizeof out->policy, args, "policy");
    read_name(out->schedule, sizeof out->schedule, args, "schedule");
    SessionErrors* errors = &out->errors;
    out->has_errors = read_int(&errors->predicted_ns, args, "predicted_ns", 1, MOST_NS) &&
                      read_int(&errors->measured_ns, args, "measured_ns", 1, MOST_NS) &&
                      read_int(&errors->jobs_ns, args, "jobs_off_ns", -MOST_NS, MOST_NS) &&
                      read_int(&errors->transfers_ns, args, "transfers_off_ns", -MOST_NS, MOST_NS);
    errors->waiting_ns = errors->measured_ns - errors->predicted_ns - errors->jobs_ns - errors->transfers_ns;
    return STATUS_OK;
}

// Viewers show dur (us) to a ns; the times in args are used here.
static Status check_dur(const json_t* event, int64_t ns, const char* path, size_t idx) {
    const json_t* dur = json_object_get(event, "dur");
    double apart_ns = dur == NULL ? 0 : json_number_value(dur) * 1e3 - (double)ns;
    if ((dur == NULL || json_is_number(dur)) && fabs(apart_ns) <= 1 + 1e-9 * (double)ns) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT,
                "%s: event %zu: its dur is %.3f us, from begin_ns to end_ns it is %.3f us ---> %s", path, idx,
                json_number_value(dur), (double)ns / 1e3, REMEDY);
}

// Finds an instruction on a rank of stage s; -1: unknown.
static int32_t row_of(const TraceFile* trace, const TraceEvent* event, int32_t s) {
    PlanInstr instr = {.kind = (uint8_t)event->kind, .chunk = (int16_t)event->chunk, .peer = event->peer};
    int32_t row = plan_instr_row(&trace->placement, trace->P, &instr);
    if (row < 0) { return -1; }
    PlanJobAt at = {.stage = (int16_t)placement_stage_of(&trace->placement, row)};
    PlanMessage message;
    if (plan_message_of(&message, &trace->placement, trace->P, &instr)) {
        at = plan_instr_is_recv(event->kind) ? plan_message_reader(&trace->placement, message)
                                             : plan_message_maker(&trace->placement, message);
    }
    return at.stage == s ? row : -1;
}

static Status read_event(TraceFileEvent* out, TraceFile* trace, int32_t rank, const json_t* event,
                         const char* path, size_t idx) {
    const json_t* args = json_object_get(event, "args");
    int64_t begin_ns, end_ns;
    int32_t kind = kind_of(args);
    if (kind < 0) { return fail_event(path, idx, "no such kind"); }
    int64_t mb = int_or(args, "mb", 0, TRACE_MAX_MBS - 1, -1);
    if (kind < INSTR_COUNT && mb < 0) { return fail_event(path, idx, "no such micro-batch"); }
    if (!read_int(&begin_ns, args, "begin_ns", 0, MOST_NS) ||
        !read_int(&end_ns, args, "end_ns", begin_ns, MOST_NS)) {
        return fail_event(path, idx, "times that cannot be");
    }
    TRY(check_dur(event, end_ns - begin_ns, path, idx));
    int32_t num_rows = placement_num_rows(&trace->placement, trace->P);
    *out = (TraceFileEvent){.event = {.kind = kind,
                                      .chunk = (int32_t)int_or(args, "chunk", 0, num_rows - 1, -1),
                                      .mb = (int32_t)mb,
                                      .peer = (int32_t)int_or(args, "peer", 0, trace->P * trace->R - 1, -1),
                                      .begin_ns = begin_ns,
                                      .end_ns = end_ns,
                                      .wait_ns = int_or(args, "wait_ns", 0, MOST_NS, 0)},
                            .row = -1,
                            .planned_ns = int_or(args, "planned_ns", 0, MOST_NS, -1)};
    if (kind < INSTR_COUNT) {
        out->row = row_of(trace, &out->event, rank % trace->P);
        if (out->row < 0) { return fail_event(path, idx, "no such chunk on this rank"); }
    }
    if (mb >= trace->M) { trace->M = (int32_t)mb + 1; }
    return STATUS_OK;
}

// Process 2 holds the measured events.
static bool is_measured(const json_t* event, const char* category) {
    const char* cat = json_string_value(json_object_get(event, "cat"));
    const char* phase = json_string_value(json_object_get(event, "ph"));
    if (phase != NULL && strcmp(phase, "X") != 0) { return false; }  // names, arrows, memory
    bool is_step = cat != NULL && strcmp(cat, "step") == 0;
    return int_or(event, "pid", 0, 9, 0) == 2 && cat != NULL && is_step == (strcmp(category, "step") == 0);
}

static Status find_step(TraceFile* out, const json_t* events, const char* path) {
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t* event = json_array_get(events, i);
        if (is_measured(event, "step")) { return read_step(out, json_object_get(event, "args"), path, i); }
    }
    return FAIL(STATUS_BAD_FORMAT, "%s: no step was measured ---> %s", path, REMEDY);
}

// Two passes over the events: count those of each rank, then read them.
static Status read_events(TraceFile* out, const json_t* events, const char* path, Arena* arena) {
    size_t num_events = json_array_size(events);
    if (num_events > TRACE_MAX_EVENTS) {
        return FAIL(STATUS_BAD_FORMAT, "%s: more than %d events ---> trace one step", path, TRACE_MAX_EVENTS);
    }
    for (int pass = 0; pass < 2; pass++) {
        for (size_t i = 0; i < num_events; i++) {
            const json_t *event = json_array_get(events, i), *args = json_object_get(event, "args");
            int64_t rank, step;
            if (!is_measured(event, "event")) { continue; }
            if (!read_int(&rank, args, "rank", 0, out->P * out->R - 1) ||
                !read_int(&step, args, "step", 0, INT32_MAX)) {
                return fail_event(path, i, "no such rank or step");
            }
            if (step != out->step) { continue; }
            TraceFileRank* of = &out->ranks[rank];
            if (pass == 1) {
                TRY(read_event(&of->events[of->num_events], out, (int32_t)rank, event, path, i));
            }
            of->num_events++;
        }
        for (int32_t r = 0; r < out->P * out->R && pass == 0; r++) {
            out->ranks[r].events = ARENA_NEW(arena, TraceFileEvent, out->ranks[r].num_events);
            if (out->ranks[r].events == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory for it", path); }
            out->ranks[r].num_events = 0;
        }
    }
    return STATUS_OK;
}

static Status read_root(TraceFile* out, const json_t* root, const char* path, Arena* arena) {
    const json_t* events = json_object_get(root, "traceEvents");
    TRY(read_head(out, root, path, arena));
    TRY(find_step(out, events, path));
    return read_events(out, events, path, arena);
}

Status trace_file_load(TraceFile* out, const char* path, Arena* arena) {
    char* text;
    size_t num_bytes;
    json_error_t error;
    TRY(file_read_text(&text, &num_bytes, path));
    json_t* root = json_loadb(text, num_bytes, 0, &error);
    free(text);
    if (root == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s:%d: %s ---> %s", path, error.line, error.text, REMEDY);
    }
    TraceFile trace = {0};
    Status status = read_root(&trace, root, path, arena);
    json_decref(root);
    if (status == STATUS_OK) { *out = trace; }
    return status;
}

// --- the graph of a measured step --------------------------------------------------------------------------

// Shorter waits are polling only; a message seen this soon after a job was detected because the job ended.
enum { LEAST_WAIT_NS = 2000, LOOK_NS = 50000 };

typedef struct {
    int64_t end_ns;
    int32_t node;
} JobEnd;

typedef struct {
    const TraceFile* trace;
    TraceGraph* graph;
    bool after_jobs;  // messages may wait for jobs
    int64_t origin_ns;
    int64_t* measured_ns;  // [num_nodes] end of a node as measured, from the origin
    int32_t num_rows;
    int32_t* node_at;               // [R * INSTR_COUNT * rows * M] of an event; 0: none
    const TraceEvent** event;       // [num_nodes]; NULL: a message
    JobEnd** jobs;                  // [ranks][num_jobs] sorted by end
    int32_t *num_jobs, *chain_end;  // [ranks]; chain_end: the last node except reductions
} Maker;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int32_t* node_at(const Maker* maker, int32_t replica, int32_t kind, int32_t row, int32_t mb) {
    int64_t list = ((int64_t)replica * INSTR_COUNT + kind) * maker->num_rows + row;
    return &maker->node_at[list * maker->trace->M + mb];
}

static bool is_counted(const TraceEvent* event) {
    return event->kind <= TRACE_REDUCE;
}

static TraceNodeKind node_kind(int32_t kind) {
    return kind <= INSTR_REC          ? NODE_JOB
           : plan_instr_is_wait(kind) ? NODE_WAIT
           : kind == TRACE_REDUCE     ? NODE_REDUCE
                                      : NODE_POST;
}

// When the rank reached the event, and when it continued.
static int64_t event_start_ns(const TraceEvent* event) {
    bool waited = event->kind <= INSTR_REC && event->wait_ns >= LEAST_WAIT_NS;
    return event->begin_ns - (waited ? event->wait_ns : 0);
}

static int64_t event_end_ns(const TraceEvent* event) {
    return node_kind(event->kind) == NODE_POST ? event->begin_ns : event->end_ns;
}

static TraceNode* add_node(Maker* maker, TraceNodeKind kind, int32_t rank, int32_t mb, int64_t measured_ns) {
    int32_t n = maker->graph->num_nodes++;
    maker->measured_ns[n] = measured_ns;
    maker->graph->nodes[n] =
        (TraceNode){.kind = (uint8_t)kind, .rank = rank, .mb = mb, .row = -1, .planned_ns = -1};
    return &maker->graph->nodes[n];
}

static int32_t index_of(const Maker* maker, const TraceNode* node) {
    return (int32_t)(node - maker->graph->nodes);
}

// For a node that posts a send; false for others.
static bool trace_graph_message(PlanMessage* out, const TraceNode* send) {
    *out = (PlanMessage){.kind = send->event_kind == INSTR_SEND_ACT    ? MESSAGE_ACT
                                 : send->event_kind == INSTR_SEND_GRAD ? MESSAGE_GRAD
                                                                       : MESSAGE_FACTORS,
                         .row = (int16_t)send->row};
    return plan_instr_is_send(send->event_kind);
}

// Adds a dependency to `node`; *joined: a join node made for that, 0: none. `nodes` has room for it.
static void trace_graph_wait_for(TraceGraph* graph, int32_t n, int32_t before, int32_t* joined) {
    TraceNode* node = &graph->nodes[n];
    *joined = 0;
    if (node->num_before < TRACE_MAX_BEFORE) {
        node->before[node->num_before++] = before;
        return;
    }
    int32_t* last = &node->before[TRACE_MAX_BEFORE - 1];
    *joined = graph->num_nodes++;
    graph->nodes[*joined] = (TraceNode){.kind = NODE_JOIN,
                                        .rank = node->rank,
                                        .mb = node->mb,
                                        .row = -1,
                                        .num_before = 2,
                                        .before = {*last, before},
                                        .planned_ns = -1};
    *last = *joined;
}

static void wait_for(Maker* maker, TraceNode* node, int32_t before) {
    int32_t joined;
    trace_graph_wait_for(maker->graph, index_of(maker, node), before, &joined);
    if (joined == 0) { return; }
    const int32_t* of = maker->graph->nodes[joined].before;
    maker->measured_ns[joined] = larger(maker->measured_ns[of[0]], maker->measured_ns[of[1]]);
}

// Distinguishes head shares from chunks.
static uint8_t job_of(const TraceFile* trace, int32_t kind, int32_t row) {
    if (row < trace->placement.num_chunks) { return (uint8_t)kind; }
    return kind == INSTR_FWD ? TRACE_JOB_HEAD : TRACE_JOB_HEAD_WEIGHTS;
}

// --- chains ------------------------------------------------------------------------------------------------

static Status add_rank(Maker* maker, int32_t rank) {
    const TraceFileRank* list = &maker->trace->ranks[rank];
    int32_t before = 0;  // posts hang on the chain and do not delay it
    for (int32_t i = 0; i < list->num_events; i++) {
        const TraceEvent* event = &list->events[i].event;
        if (!is_counted(event) || event->kind == TRACE_REDUCE) { continue; }
        TraceNodeKind kind = node_kind(event->kind);
        int32_t row = list->events[i].row,
                *at = node_at(maker, rank / maker->trace->P, event->kind, row, event->mb);
        if (*at != 0) {
            return FAIL(STATUS_BAD_FORMAT,
                        "rank %d: %s of micro-batch %d is there twice ---> give a file that the trainer's "
                        "--trace wrote",
                        rank, trace_kind_text(event->kind), event->mb);
        }
        TraceNode* node = add_node(maker, kind, rank, event->mb, event_end_ns(event) - maker->origin_ns);
        node->event_kind = (uint8_t)event->kind;
        node->row = row;
        if (kind == NODE_JOB) { node->job = job_of(maker->trace, event->kind, row); }
        node->planned_ns = list->events[i].planned_ns;
        node->gap_ns = event_start_ns(event) - maker->origin_ns - maker->measured_ns[before];
        if (kind != NODE_POST) { node->gap_ns = larger(node->gap_ns, 0); }
        if (kind == NODE_JOB) { node->ns = event->end_ns - event->begin_ns; }
        if (kind == NODE_WAIT) { node->ns = event->end_ns - event->begin_ns; }
        wait_for(maker, node, before);
        int32_t n = index_of(maker, node);
        maker->event[n] = event;
        *at = n;
        if (kind != NODE_POST) { before = n; }
    }
    maker->chain_end[rank] = before;
    return STATUS_OK;
}

// Gradients are reduced when all participants have arrived. The trace does not name them: a reduction that
// ended after everybody's last job may have waited for all.
static void add_reductions(Maker* maker) {
    int32_t all = 0;
    int64_t all_ns = 0;
    for (int32_t r = 0; r < maker->graph->num_ranks; r++) {
        TraceNode* node = add_node(maker, NODE_REDUCE, r, -1, 0);
        wait_for(maker, node, maker->chain_end[r]);
        wait_for(maker, node, all);
        all = index_of(maker, node);
        all_ns = larger(all_ns, maker->measured_ns[maker->chain_end[r]]);
        maker->measured_ns[all] = all_ns;
    }
    for (int32_t r = 0; r < maker->graph->num_ranks; r++) {
        const TraceFileRank* list = &maker->trace->ranks[r];
        for (int32_t i = 0; i < list->num_events; i++) {
            const TraceEvent* event = &list->events[i].event;
            if (event->kind != TRACE_REDUCE) { continue; }
            int32_t before = maker->chain_end[r];
            int64_t begin_ns = larger(event->begin_ns - maker->origin_ns, maker->measured_ns[before]);
            int64_t end_ns = larger(event->end_ns - maker->origin_ns, begin_ns);
            TraceNode* node = add_node(maker, NODE_REDUCE, r, -1, end_ns);
            node->event_kind = TRACE_REDUCE;
            node->gap_ns = begin_ns - maker->measured_ns[before];
            node->ns = end_ns - begin_ns;
            wait_for(maker, node, before);
            if (end_ns >= all_ns) {
                wait_for(maker, node, all);
                node->ns = end_ns - larger(begin_ns, all_ns);
            }
            maker->chain_end[r] = index_of(maker, node);
        }
    }
}

// --- messages ----------------------------------------------------------------------------------------------

static int compare_ends(const void* a, const void* b) {
    const JobEnd *x = a, *y = b;
    return x->end_ns != y->end_ns ? (x->end_ns > y->end_ns) - (x->end_ns < y->end_ns)
                                  : (x->node > y->node) - (x->node < y->node);
}

static Status list_jobs(Maker* maker, Arena* arena) {
    for (int32_t r = 0; r < maker->graph->num_ranks; r++) {
        maker->jobs[r] = ARENA_NEW(arena, JobEnd, maker->trace->ranks[r].num_events);
        if (maker->jobs[r] == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a trace"); }
    }
    for (int32_t n = 1; n < maker->graph->num_nodes; n++) {
        const TraceNode* node = &maker->graph->nodes[n];
        if (node->kind != NODE_JOB) { continue; }
        maker->jobs[node->rank][maker->num_jobs[node->rank]++] = (JobEnd){maker->measured_ns[n], n};
    }
    for (int32_t r = 0; r < maker->graph->num_ranks; r++) {
        qsort(maker->jobs[r], (size_t)maker->num_jobs[r], sizeof(JobEnd), compare_ends);
    }
    return STATUS_OK;
}

// The last job of a rank that ended in (begin, end]; 0: none.
static int32_t job_ending_in(const Maker* maker, int32_t rank, int64_t begin_ns, int64_t end_ns) {
    int32_t low = 0, high = maker->num_jobs[rank];
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (maker->jobs[rank][middle].end_ns <= end_ns) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    if (low == 0 || maker->jobs[rank][low - 1].end_ns <= begin_ns) { return 0; }
    return maker->jobs[rank][low - 1].node;
}

// The duration from its dependencies to `until` if a rank waited for it; otherwise at most the planned one.
static void set_duration(Maker* maker, TraceNode* node, int64_t until_ns, bool waited) {
    int64_t from_ns = 0;
    for (int32_t k = 0; k < node->num_before; k++) {
        from_ns = larger(from_ns, maker->measured_ns[node->before[k]]);
    }
    int64_t took_ns = larger(until_ns - from_ns, 0);
    node->ns = node->planned_ns >= 0 ? smaller(took_ns, node->planned_ns) : took_ns;
    node->late_ns = waited ? took_ns - node->ns : 0;
}

// A message posted by both ends at `posted` and received at `until`: was it detected right after a job of
// this rank?
static void wait_for_job(Maker* maker, TraceNode* node, int32_t rank, int64_t posted_ns, int64_t until_ns) {
    int64_t look_ns = larger(2 * node->planned_ns, LOOK_NS);
    if (!maker->after_jobs || until_ns - posted_ns <= look_ns) { return; }
    int32_t job = job_ending_in(maker, rank, posted_ns, until_ns);
    if (job != 0 && until_ns - maker->measured_ns[job] <= look_ns) { wait_for(maker, node, job); }
}

// Is `recv` the last to arrive of the messages that the job reads?
static bool came_last(const Maker* maker, int32_t recv, PlanJobAt reader) {
    const TraceFile* trace = maker->trace;
    const TraceNode* mine = &maker->graph->nodes[recv];
    PlanMessage reads[PLAN_MAX_MESSAGES];
    int32_t num = plan_job_reads(reads, &trace->placement, trace->P, (JobKind)reader.kind, reader.chunk);
    for (int32_t i = 0; i < num; i++) {
        int32_t other = *node_at(maker, mine->rank / trace->P, mine->event_kind, reads[i].row, mine->mb);
        if (other == 0 || other == recv) { continue; }
        int64_t later_ns = maker->event[other]->end_ns - maker->event[recv]->end_ns;
        if (later_ns > 0 || (later_ns == 0 && other > recv)) { return false; }
    }
    return true;
}

static void add_message(Maker* maker, int32_t send, int32_t recv, int32_t reader, bool is_last) {
    const TraceNode *from = &maker->graph->nodes[send], *to = &maker->graph->nodes[reader];
    const TraceEvent *got = maker->event[recv], *read = maker->event[reader];
    int64_t ready_ns = is_last ? read->begin_ns : smaller(got->end_ns, read->begin_ns);
    bool waited = read->wait_ns >= LEAST_WAIT_NS && ready_ns > event_start_ns(read);
    int64_t came_ns = smaller(got->end_ns, event_start_ns(read)) - maker->origin_ns;
    int64_t until_ns = waited ? ready_ns - maker->origin_ns : came_ns;
    int64_t posted_ns = larger(maker->measured_ns[send], maker->measured_ns[recv]);
    TraceNode* node = add_node(maker, NODE_MESSAGE, to->rank, to->mb, 0);
    node->event_kind = maker->graph->nodes[recv].event_kind;
    node->row = from->row;
    node->planned_ns = from->planned_ns;
    node->num_posts = 2;
    wait_for(maker, node, send);
    wait_for(maker, node, recv);
    wait_for_job(maker, node, from->rank, posted_ns, until_ns);
    wait_for_job(maker, node, to->rank, posted_ns, until_ns);
    set_duration(maker, node, until_ns, waited);
    maker->measured_ns[index_of(maker, node)] = until_ns;
    wait_for(maker, &maker->graph->nodes[reader], index_of(maker, node));
}

// A send that completed before the receive was posted did not wait for it.
static void add_release(Maker* maker, int32_t send, int32_t recv, int32_t wait) {
    const TraceEvent *sent = maker->event[send], *waits = maker->event[wait];
    bool waited = waits->end_ns - waits->begin_ns >= LEAST_WAIT_NS;
    int64_t until_ns = (waited ? waits->end_ns : smaller(sent->end_ns, waits->begin_ns)) - maker->origin_ns;
    int64_t posted_ns = maker->measured_ns[send];
    TraceNode* node =
        add_node(maker, NODE_RELEASE, maker->graph->nodes[send].rank, maker->graph->nodes[send].mb, until_ns);
    node->event_kind = maker->graph->nodes[send].event_kind;
    node->planned_ns = maker->graph->nodes[send].planned_ns;
    wait_for(maker, node, send);
    if (maker->measured_ns[recv] <= until_ns) {
        wait_for(maker, node, recv);
        posted_ns = larger(posted_ns, maker->measured_ns[recv]);
    }
    node->num_posts = node->num_before;
    wait_for_job(maker, node, maker->graph->nodes[recv].rank, posted_ns, until_ns);
    set_duration(maker, node, until_ns, waited);
    if (waited) { maker->graph->nodes[wait].ns = 0; }
    wait_for(maker, &maker->graph->nodes[wait], index_of(maker, node));
}

static void add_messages(Maker* maker) {
    const TraceFile* trace = maker->trace;
    int32_t num_events = maker->graph->num_nodes;
    for (int32_t n = 1; n < num_events; n++) {
        const TraceNode* send = &maker->graph->nodes[n];
        int32_t replica = send->rank / trace->P, mb = send->mb, row = send->row;
        PlanMessage message;
        if (send->kind != NODE_POST || !trace_graph_message(&message, send)) { continue; }
        PlanJobAt reads = plan_message_reader(&trace->placement, message);
        int32_t recv = *node_at(maker, replica, plan_recv_kind(message.kind), row, mb);
        int32_t reader = *node_at(maker, replica, plan_job_instr(reads.kind), reads.chunk, mb);
        int32_t wait = *node_at(maker, replica, plan_wait_kind(message.kind), row, mb);
        if (recv == 0 || reader == 0) { continue; }
        add_message(maker, n, recv, reader, came_last(maker, recv, reads));
        if (wait != 0) { add_release(maker, n, recv, wait); }
    }
}

// --- the whole graph ---------------------------------------------------------------------------------------

static Status trace_graph_sort(TraceGraph* graph, Arena* arena) {
    int32_t n = graph->num_nodes, num_edges = 0, done = 0, placed = 0;
    int32_t* missing = ARENA_NEW(arena, int32_t, n);
    int32_t* first = ARENA_NEW(arena, int32_t, n + 1);
    int32_t* next = ARENA_NEW(arena, int32_t, (int64_t)n * TRACE_MAX_BEFORE + 1);
    graph->order = ARENA_NEW(arena, int32_t, n);
    if (missing == NULL || first == NULL || next == NULL || graph->order == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a trace");
    }
    for (int32_t i = 0; i < n; i++) {
        missing[i] = graph->nodes[i].num_before;
        for (int32_t k = 0; k < missing[i]; k++) { first[graph->nodes[i].before[k] + 1]++; }
        num_edges += missing[i];
    }
    for (int32_t i = 0; i < n; i++) { first[i + 1] += first[i]; }
    int32_t* fill = ARENA_NEW(arena, int32_t, n);
    if (fill == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d edges", num_edges); }
    for (int32_t i = 0; i < n; i++) {
        for (int32_t k = 0; k < graph->nodes[i].num_before; k++) {
            int32_t before = graph->nodes[i].before[k];
            next[first[before] + fill[before]++] = i;
        }
    }
    for (int32_t i = 0; i < n; i++) {
        if (missing[i] == 0) { graph->order[placed++] = i; }
    }
    while (done < placed) {
        int32_t node = graph->order[done++];
        for (int32_t e = first[node]; e < first[node + 1]; e++) {
            if (--missing[next[e]] == 0) { graph->order[placed++] = next[e]; }
        }
    }
    return placed == n ? STATUS_OK
                       : FAIL(STATUS_DEADLOCK, "jobs and messages wait for each other in a circle");
}

static Status maker_init(Maker* maker, const TraceFile* trace, TraceGraph* graph, Arena* arena) {
    int64_t num_events = 0, num_ranks = (int64_t)trace->P * trace->R;
    *maker = (Maker){.trace = trace, .graph = graph, .origin_ns = INT64_MAX};
    for (int32_t r = 0; r < num_ranks; r++) {
        num_events += trace->ranks[r].num_events;
        for (int32_t i = 0; i < trace->ranks[r].num_events; i++) {
            maker->origin_ns = smaller(maker->origin_ns, event_start_ns(&trace->ranks[r].events[i].event));
        }
    }
    maker->num_rows = placement_num_rows(&trace->placement, trace->P);
    int64_t num_cells = (int64_t)trace->R * maker->num_rows * trace->M;
    if (num_events == 0 || num_cells > 64 * num_events + 4096) {  // limits the tables
        return FAIL(STATUS_BAD_FORMAT, "%lld events of %lld ranks: no step ---> give a whole trace",
                    (long long)num_events, (long long)num_ranks);
    }
    int64_t num_nodes = 1 + 3 * num_events + num_ranks;
    *graph = (TraceGraph){.num_ranks = (int32_t)num_ranks, .num_nodes = 1};
    graph->nodes = ARENA_NEW(arena, TraceNode, num_nodes);
    maker->measured_ns = ARENA_NEW(arena, int64_t, num_nodes);
    maker->event = ARENA_NEW(arena, const TraceEvent*, num_nodes);
    maker->node_at = ARENA_NEW(arena, int32_t, INSTR_COUNT * num_cells);
    maker->jobs = ARENA_NEW(arena, JobEnd*, num_ranks);
    maker->num_jobs = ARENA_NEW(arena, int32_t, num_ranks);
    maker->chain_end = ARENA_NEW(arena, int32_t, num_ranks);
    bool failed = graph->nodes == NULL || maker->measured_ns == NULL || maker->event == NULL ||
                  maker->node_at == NULL || maker->jobs == NULL || maker->num_jobs == NULL ||
                  maker->chain_end == NULL;
    return failed ? FAIL(STATUS_NO_MEMORY, "no memory for a trace of %lld events", (long long)num_events)
                  : STATUS_OK;
}

static Status make(TraceGraph* out, const TraceFile* trace, bool after_jobs, Arena* arena) {
    Maker maker;
    TRY(maker_init(&maker, trace, out, arena));
    maker.after_jobs = after_jobs;
    for (int32_t r = 0; r < out->num_ranks; r++) { TRY(add_rank(&maker, r)); }
    TRY(list_jobs(&maker, arena));
    add_messages(&maker);
    add_reductions(&maker);
    for (int32_t n = 1; n < out->num_nodes; n++) {
        if (maker.event[n] == NULL && out->nodes[n].event_kind != TRACE_REDUCE) { continue; }
        out->measured_ns = larger(out->measured_ns, maker.measured_ns[n]);
    }
    return trace_graph_sort(out, arena);
}

// Even a hundred times slower, sums stay far from the 64-bit limits.
static Status check_sums(const TraceGraph* graph) {
    const int64_t most_ns = INT64_C(1) << 52;
    int64_t sum_ns = 0, planned_ns = 0;
    for (int32_t n = 1; n < graph->num_nodes; n++) {
        const TraceNode* node = &graph->nodes[n];
        sum_ns += llabs(node->gap_ns) + node->ns + node->late_ns;
        planned_ns += larger(node->planned_ns, 0);
        if (sum_ns > most_ns || planned_ns > most_ns) {
            return FAIL(STATUS_BAD_FORMAT, "its events take more than weeks ---> give a whole trace");
        }
    }
    return STATUS_OK;
}

// If the clocks of two hosts differ, a message may appear after the job that reads it; such waits are
// dropped.
Status trace_graph_make(TraceGraph* out, const TraceFile* trace, Arena* arena) {
    Status status = make(out, trace, true, arena);
    if (status == STATUS_DEADLOCK) { status = make(out, trace, false, arena); }
    if (status == STATUS_DEADLOCK) {
        return FAIL(STATUS_BAD_FORMAT,
                    "jobs and messages wait for each other in a circle ---> give a whole trace");
    }
    TRY(status);
    TRY(check_sums(out));
    trace_graph_run(out);
    return STATUS_OK;
}

int64_t trace_graph_run(TraceGraph* graph) {
    graph->last = 0;
    for (int32_t i = 0; i < graph->num_nodes; i++) {
        TraceNode* node = &graph->nodes[graph->order[i]];
        int64_t begin_ns = 0;
        node->because = 0;
        for (int32_t k = 0; k < node->num_before; k++) {
            int64_t ready_ns = graph->nodes[node->before[k]].end_ns + (k == 0 ? node->gap_ns : 0);
            if (k > 0 && ready_ns <= begin_ns) { continue; }
            begin_ns = ready_ns;
            node->because = k;
        }
        node->end_ns = begin_ns + node->ns + node->late_ns;
        if (node->end_ns > graph->nodes[graph->last].end_ns) { graph->last = graph->order[i]; }
    }
    return graph->nodes[graph->last].end_ns;
}

Status trace_graph_path(TracePath* out, const TraceGraph* graph, Arena* arena) {
    TracePath path = {.makespan_ns = graph->nodes[graph->last].end_ns};
    for (int32_t n = graph->last; n != 0; n = graph->nodes[n].before[graph->nodes[n].because]) {
        path.num_nodes++;
    }
    path.rank_jobs_ns = ARENA_NEW(arena, int64_t, graph->num_ranks);
    path.nodes = ARENA_NEW(arena, int32_t, path.num_nodes);
    if (path.rank_jobs_ns == NULL || path.nodes == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a path");
    }
    int32_t at = path.num_nodes;
    for (int32_t n = graph->last; n != 0; n = graph->nodes[n].before[graph->nodes[n].because]) {
        const TraceNode* node = &graph->nodes[n];
        path.nodes[--at] = n;
        if (node->because == 0) { path.between_ns += node->gap_ns; }
        if (node->kind == NODE_JOB) {
            path.jobs_ns[node->job] += node->ns;
            path.rank_jobs_ns[node->rank] += node->ns;
            path.late_jobs_ns += node->planned_ns >= 0 ? node->ns - node->planned_ns : 0;
        } else if (node->kind == NODE_MESSAGE || node->kind == NODE_RELEASE) {
            path.wire_ns += node->ns;
            path.late_ns += node->late_ns;
        } else {
            *(node->kind == NODE_REDUCE ? &path.reduce_ns : &path.between_ns) += node->ns;
        }
    }
    *out = path;
    return STATUS_OK;
}

// --- a measured step with changes -------------------------------------------------------------------------

// --- other durations ---------------------------------------------------------------------------------------

static int64_t divided(int64_t ns, double by) {
    return (int64_t)((double)ns / by + 0.5);
}

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// Ratio of measured to planned over a rank's jobs of a kind; 1: no job has a plan.
static double median_ratio(const TraceGraph* graph, int32_t rank, int32_t kind, double* room) {
    int32_t count = 0;
    for (int32_t n = 1; n < graph->num_nodes; n++) {
        const TraceNode* node = &graph->nodes[n];
        bool is_one = node->kind == NODE_JOB && node->rank == rank && node->job == kind;
        if (is_one && node->planned_ns > 0) { room[count++] = (double)node->ns / (double)node->planned_ns; }
    }
    if (count == 0) { return 1; }
    qsort(room, (size_t)count, sizeof *room, compare_doubles);
    double median = (room[(count - 1) / 2] + room[count / 2]) / 2;
    return fmin(fmax(median, 0.1), 10);  // anything beyond is not a job of that plan
}

static Status find_ratios(double** out, const TraceGraph* graph, Arena* arena) {
    const int32_t kinds = TRACE_JOB_COUNT;
    double* ratios = ARENA_NEW(arena, double, (int64_t)graph->num_ranks* kinds);
    double* room = ARENA_NEW(arena, double, graph->num_nodes);
    if (ratios == NULL || room == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a trace"); }
    for (int32_t i = 0; i < graph->num_ranks * kinds; i++) {
        ratios[i] = median_ratio(graph, i / kinds, i % kinds, room);
    }
    *out = ratios;
    return STATUS_OK;
}

static void change_job(TraceNode* node, const TraceWhatIf* change, const double* ratios) {
    if (node->planned_ns > 0 && change->no_jitter) {
        double ratio = ratios[node->rank * TRACE_JOB_COUNT + node->job];
        node->ns = (int64_t)((double)node->planned_ns * ratio + 0.5);
    }
    if (node->planned_ns >= 0 && change->as_planned) { node->ns = node->planned_ns; }
    if (change->rank_speeds != NULL) { node->ns = divided(node->ns, change->rank_speeds[node->rank]); }
}

Status trace_graph_change(TraceGraph* out, const TraceGraph* graph, const TraceWhatIf* change, Arena* arena) {
    TraceGraph changed = *graph;
    double* ratios = NULL;
    changed.nodes = ARENA_NEW(arena, TraceNode, graph->num_nodes);
    if (changed.nodes == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a trace"); }
    memcpy(changed.nodes, graph->nodes, (size_t)graph->num_nodes * sizeof *graph->nodes);
    if (change->no_jitter) { TRY(find_ratios(&ratios, graph, arena)); }
    for (int32_t n = 1; n < changed.num_nodes; n++) {
        TraceNode* node = &changed.nodes[n];
        if (node->kind == NODE_JOB) { change_job(node, change, ratios); }
        if (node->kind != NODE_MESSAGE && node->kind != NODE_RELEASE) { continue; }
        if (change->link > 0) { node->ns = divided(node->ns, change->link); }
        if (change->no_late) {
            node->late_ns = 0;
            node->num_before = node->num_posts;
        }
    }
    trace_graph_run(&changed);
    *out = changed;
    return STATUS_OK;
}

// --- another order -----------------------------------------------------------------------------------------

static bool same_placement(const Placement* a, const Placement* b, int32_t P) {
    bool same = a->num_chunks == b->num_chunks && a->head == b->head;
    for (int32_t k = 0; same && k < a->num_chunks; k++) { same = a->stage_of[k] == b->stage_of[k]; }
    for (int32_t s = 0; same && s < P; s++) { same = placement_has_share(a, s) == placement_has_share(b, s); }
    return same;
}

static Status check_plan(const Plan* plan, const TraceFile* trace) {
    if (plan->P != trace->P || plan->R != trace->R || plan->M < trace->M) {
        return FAIL(
            STATUS_MISMATCH,
            "the plan has %d stages, %d replicas, %d micro-batches, the trace %d, %d, %d ---> a plan of the "
            "same batch on the same ranks",
            plan->P, plan->R, plan->M, trace->P, trace->R, trace->M);
    }
    if (!same_placement(&plan->placement, &trace->placement, plan->P)) {
        return FAIL(
            STATUS_MISMATCH,
            "the plan's chunks lie on other stages than the trace's ---> a plan of the same placement");
    }
    return STATUS_OK;
}

// The measured duration of each instruction of a rank's list: for jobs with the executor's work before
// them, for sends the message. node_at: [INSTR_COUNT * rows * M] of this replica, 0: none.
static Status durations_of(int64_t* ns, const TraceGraph* graph, const Plan* plan, int32_t rank,
                           const int32_t* node_at) {
    int32_t num_rows = placement_num_rows(&plan->placement, plan->P);
    for (int32_t i = 0; i < plan->ranks[rank].num_instrs; i++) {
        const PlanInstr* instr = &plan->ranks[rank].instrs[i];
        int32_t row = plan_instr_row(&plan->placement, plan->P, instr), kind = instr->kind;
        bool is_job = plan_instr_is_job((InstrKind)kind);
        if (row < 0 || instr->mb < 0 || instr->mb >= plan->M) {
            return FAIL(STATUS_MISMATCH, "rank %d: a chunk that is not there ---> check the plan", rank);
        }
        if (!is_job && !plan_instr_is_send(kind)) { continue; }
        if (kind == INSTR_SEND_ACT) { kind = INSTR_RECV_ACT; }
        if (kind == INSTR_SEND_GRAD) { kind = INSTR_RECV_GRAD; }
        if (kind == INSTR_SEND_FACT) { kind = INSTR_RECV_FACT; }
        int32_t n = node_at[((int64_t)kind * num_rows + row) * plan->M + instr->mb];
        if (n == 0 && is_job) {
            return FAIL(
                STATUS_MISMATCH,
                "rank %d: %s mb %d of the plan is not in the trace ---> a plan of the same batch with the "
                "same micro-batches (--debug dump-plan of that step, its lists in another order)",
                rank, trace_kind_text(instr->kind), instr->mb);
        }
        ns[i] = n == 0 ? 0 : graph->nodes[n].ns + (is_job ? larger(graph->nodes[n].gap_ns, 0) : 0);
    }
    return STATUS_OK;
}

// Replays the plan's lists (plan/replay.h), one replica after the other; gradients are reduced as in the
// graph.
Status trace_graph_ordered(int64_t* out_ns, const TraceFile* trace, const TraceGraph* graph, const Plan* plan,
                           Arena* arena) {
    TRY(check_plan(plan, trace));
    int64_t jobs_ns = 0, slowest_ns = 0, num_rows = placement_num_rows(&plan->placement, plan->P);
    int32_t* node_at;
    int64_t** ns;
    ARENA_TRY_NEW(ns, arena, int64_t*, plan->P);
    for (int32_t r = 0; r < plan->R; r++) {
        ARENA_TRY_NEW(node_at, arena, int32_t, INSTR_COUNT * num_rows * plan->M);
        for (int32_t n = 1; n < graph->num_nodes; n++) {
            const TraceNode* node = &graph->nodes[n];
            bool counts = node->kind == NODE_JOB || node->kind == NODE_MESSAGE;
            if (!counts || node->row < 0 || node->rank / plan->P != r) { continue; }
            node_at[(node->event_kind * num_rows + node->row) * plan->M + node->mb] = n;
            if (node->kind == NODE_JOB) { jobs_ns = larger(jobs_ns, node->end_ns); }
        }
        for (int32_t s = 0; s < plan->P; s++) {
            ARENA_TRY_NEW(ns[s], arena, int64_t, plan->ranks[r * plan->P + s].num_instrs + 1);
            TRY(durations_of(ns[s], graph, plan, r * plan->P + s, node_at));
        }
        int64_t replica_ns;
        TRY(plan_makespan(&replica_ns, plan, r, (const int64_t* const*)ns, arena));
        slowest_ns = larger(slowest_ns, replica_ns);
    }
    *out_ns = slowest_ns + graph->nodes[graph->last].end_ns - jobs_ns;
    return STATUS_OK;
}

// --- what if -----------------------------------------------------------------------------------------------

typedef struct {
    TraceWhatIf change;
    double* speeds;     // [num_ranks] change.rank_speeds, allocated when needed
    const char* order;  // path of a plan; NULL: the traced order
} Row;

// "2x": a factor of 0.01 to 100, multiplied with earlier ones in the row; the product has the same range.
static bool take_factor(double* product, const char* text) {
    char* end;
    double factor = strtod(text, &end);
    if (end == text || strcmp(end, "x") != 0 || !(factor >= 0.01 && factor <= 100)) { return false; }
    *product *= factor;
    return *product >= 0.01 && *product <= 100;
}

static bool parse_rank(Row* row, const char* text, int32_t num_ranks) {
    char* end;
    long rank = strtol(text, &end, 10);
    if (end == text || *end != ':' || rank < 0 || rank >= num_ranks) { return false; }
    row->change.rank_speeds = row->speeds;
    return take_factor(&row->speeds[rank], end + 1);
}

static bool parse_change(Row* row, const char* text, int32_t num_ranks) {
    TraceWhatIf* change = &row->change;
    if (strncmp(text, "link=", 5) == 0) {
        if (change->link == 0) { change->link = 1; }
        return take_factor(&change->link, text + 5);
    }
    if (strncmp(text, "rank=", 5) == 0) { return parse_rank(row, text + 5, num_ranks); }
    if (strncmp(text, "order=", 6) == 0) {
        bool is_first = row->order == NULL;
        row->order = text + 6;
        return is_first && text[6] != '\0';
    }
    bool jitter = strcmp(text, "jitter=0") == 0, planned = strcmp(text, "jobs=planned") == 0;
    bool late = strcmp(text, "late=0") == 0;
    change->no_jitter |= jitter;
    change->as_planned |= planned;
    change->no_late |= late;
    return jitter || planned || late;
}

// Parses changes joined by +, in place.
static Status parse_row(Row* row, char* text, int32_t num_ranks) {
    char* at = text;
    while (at != NULL) {
        char* plus = strchr(at, '+');
        if (plus != NULL) { *plus = '\0'; }
        if (!parse_change(row, at, num_ranks)) {
            return FAIL(
                STATUS_BAD_OPTION,
                "--what-if %.60s ---> link=2x, rank=RANK:1.5x (ranks 0 to %d), jitter=0, jobs=planned, "
                "late=0 or one order=FILE.plan; factors, and the product of several of a link or rank, 0.01x "
                "to 100x; + joins changes, a comma begins another row",
                at, num_ranks - 1);
        }
        at = plus != NULL ? plus + 1 : NULL;
    }
    return STATUS_OK;
}

// A speed common to all ranks is printed once.
static bool share_speed(const double* speeds, int32_t num_ranks) {
    for (int32_t r = 1; r < num_ranks; r++) {
        if (speeds[r] != speeds[0]) { return false; }
    }
    return num_ranks > 1;
}

static void describe(TraceRow* out_row, const Row* row, int32_t num_ranks) {
    const TraceWhatIf* change = &row->change;
    const double* speeds = change->rank_speeds;
    char* out = out_row->about;
    size_t room = sizeof out_row->about;
    bool shared = speeds != NULL && share_speed(speeds, num_ranks);
    snprintf(out, room, "%s", row->order != NULL ? "the plan's order, messages that move at once" : "");
#define ADD(...)                                                   \
    do {                                                           \
        size_t used = strlen(out);                                 \
        if (used > 0) { snprintf(out + used, room - used, "; "); } \
        used = strlen(out);                                        \
        snprintf(out + used, room - used, __VA_ARGS__);            \
    } while (0)
    if (change->link > 0) { ADD("links %.4g times as fast", change->link); }
    if (shared) { ADD("all ranks %.4g times as fast", speeds[0]); }
    for (int32_t r = 0; r < num_ranks && speeds != NULL && !shared; r++) {
        if (speeds[r] != 1) { ADD("rank %d %.4g times as fast", r, speeds[r]); }
    }
    if (change->no_jitter) { ADD("every job the median of its rank and kind"); }
    if (change->as_planned) { ADD("every job as planned"); }
    if (change->no_late) { ADD("no message begins late"); }
#undef ADD
}

static Status add_row(TraceReplay* replay, const char* text, Arena* arena) {
    if (replay->num_rows == TRACE_MAX_ROWS) {
        return FAIL(STATUS_BAD_OPTION, "--what-if: more than %d rows ---> ask in several calls",
                    TRACE_MAX_ROWS);
    }
    TraceRow* row = &replay->rows[replay->num_rows];
    int32_t num_ranks = replay->graph.num_ranks;
    Row parsed = {.speeds = ARENA_NEW(arena, double, num_ranks)};
    char* copy = arena_alloc(arena, strlen(text) + 1);
    if (copy == NULL || parsed.speeds == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for --what-if"); }
    memcpy(copy, text, strlen(text) + 1);
    for (int32_t r = 0; r < num_ranks; r++) { parsed.speeds[r] = 1; }
    TRY(parse_row(&parsed, copy, num_ranks));
    snprintf(row->name, sizeof row->name, "%s", text);
    describe(row, &parsed, num_ranks);
    TraceGraph changed;
    TRY(trace_graph_change(&changed, &replay->graph, &parsed.change, arena));
    row->ns = changed.nodes[changed.last].end_ns;
    if (parsed.order != NULL) {
        Plan plan;
        TRY(plan_file_load(&plan, parsed.order, arena));
        TRY(trace_graph_ordered(&row->ns, &replay->file, &changed, &plan, arena));
    }
    replay->num_rows++;
    return STATUS_OK;
}

static Status add_usual_rows(TraceReplay* replay, Arena* arena) {
    static const char* const usual[] = {"link=2x", "late=0", "jitter=0", "jobs=planned",
                                        "jobs=planned+late=0"};
    int32_t busiest = 0;
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) { TRY(add_row(replay, usual[i], arena)); }
    for (int32_t r = 1; r < replay->graph.num_ranks; r++) {
        if (replay->path.rank_jobs_ns[r] > replay->path.rank_jobs_ns[busiest]) { busiest = r; }
    }
    char text[32];
    snprintf(text, sizeof text, "rank=%d:1.2x", busiest);
    return add_row(replay, text, arena);
}

static Status add_rows(TraceReplay* replay, const char* what_if, Arena* arena) {
    char* copy = arena_alloc(arena, strlen(what_if) + 1);
    if (copy == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for --what-if"); }
    memcpy(copy, what_if, strlen(what_if) + 1);
    for (char* at = copy; at != NULL;) {
        char* comma = strchr(at, ',');
        if (comma != NULL) { *comma = '\0'; }
        TRY(add_row(replay, at, arena));
        at = comma != NULL ? comma + 1 : NULL;
    }
    return STATUS_OK;
}

Status trace_replay_make(TraceReplay* out, const char* path, const char* what_if, Arena* arena) {
    *out = (TraceReplay){0};
    TRY(trace_file_load(&out->file, path, arena));
    Status status = trace_graph_make(&out->graph, &out->file, arena);
    if (status != STATUS_OK) {
        char why[400];
        snprintf(why, sizeof why, "%s", status_message());
        return FAIL(status, "%s: %s", path, why);
    }
    out->replayed_ns = out->graph.nodes[out->graph.last].end_ns;
    TRY(trace_graph_path(&out->path, &out->graph, arena));
    return what_if == NULL ? add_usual_rows(out, arena) : add_rows(out, what_if, arena);
}

// --- text --------------------------------------------------------------------------------------------------

const char* trace_replay_part(const TraceReplay* replay, int32_t part, int64_t* ns) {
    const TracePath* path = &replay->path;
    const struct {
        const char* name;
        int64_t ns;
    } parts[TRACE_NUM_PARTS] = {
        {"forward", path->jobs_ns[INSTR_FWD]},
        {"backward", path->jobs_ns[INSTR_BWD]},
        {"weight gradients", path->jobs_ns[INSTR_WGT]},
        {"recomputation", path->jobs_ns[INSTR_REC]},
        {"shares of the head", path->jobs_ns[TRACE_JOB_HEAD]},
        {"their weight gradients", path->jobs_ns[TRACE_JOB_HEAD_WEIGHTS]},
        {"transfers", path->wire_ns},
        {"messages that move late", path->late_ns},
        {"between events of a rank", path->between_ns},
        {"gradient reduction", path->reduce_ns},
    };
    *ns = parts[part].ns;
    return parts[part].name;
}

static double percent(int64_t ns, int64_t of_ns) {
    return of_ns > 0 ? 100 * (double)ns / (double)of_ns : 0;
}

static void print_head(const TraceReplay* replay, FILE* out) {
    const TraceFile* file = &replay->file;
    const SessionErrors* errors = &file->errors;
    int64_t measured_ns = replay->graph.measured_ns;
    fprintf(out, "step %lld, plan %s (%s, %s), %d stages x %d replicas\n", (long long)file->step,
            file->plan_hash, file->policy, file->schedule, file->P, file->R);
    fprintf(out, "measured %s, replayed %s (%+.2f%%)\n", TIME_TEXT(measured_ns, 6),
            TIME_TEXT(replay->replayed_ns, 6), percent(replay->replayed_ns - measured_ns, measured_ns));
    if (file->has_errors) {
        int64_t predicted_ns = errors->predicted_ns;
        fprintf(out,
                "predicted %s, took %+.1f%%: jobs %+.1f%%, transfers %+.1f%%, waiting %+.1f%% "
                "(with planning)\n",
                TIME_TEXT(predicted_ns, 6), percent(errors->measured_ns - predicted_ns, predicted_ns),
                percent(errors->jobs_ns, predicted_ns), percent(errors->transfers_ns, predicted_ns),
                percent(errors->waiting_ns, predicted_ns));
    }
    if (file->worst_clock.error_ns > 0) {
        fprintf(out, "clocks of hosts agree within %s\n", TIME_TEXT(file->worst_clock.error_ns, 3));
    }
}

static void print_path(const TraceReplay* replay, FILE* out) {
    const TracePath* path = &replay->path;
    fprintf(out, "\n%-26s %11s %7s\n", "critical path", "ms", "share");
    for (int32_t part = 0; part < TRACE_NUM_PARTS; part++) {
        int64_t ns;
        const char* name = trace_replay_part(replay, part, &ns);
        if (ns == 0) { continue; }
        fprintf(out, "%-26s %11.3f %6.1f%%\n", name, (double)ns / 1e6, percent(ns, path->makespan_ns));
    }
    for (int32_t r = 0; r < replay->graph.num_ranks; r++) {
        if (path->rank_jobs_ns[r] == 0) { continue; }
        char name[32];
        snprintf(name, sizeof name, "  jobs of rank %d", r);
        fprintf(out, "%-26s %11.3f %6.1f%%\n", name, (double)path->rank_jobs_ns[r] / 1e6,
                percent(path->rank_jobs_ns[r], path->makespan_ns));
    }
    fprintf(out, "jobs on it took %s%s more than planned\n", path->late_jobs_ns > 0 ? "+" : "",
            TIME_TEXT(path->late_jobs_ns, 4));
}

void trace_replay_print(const TraceReplay* replay, FILE* out) {
    int chars = 9;
    print_head(replay, out);
    print_path(replay, out);
    for (int32_t i = 0; i < replay->num_rows; i++) {
        int length = (int)strlen(replay->rows[i].name);
        chars = length > chars ? length : chars;
    }
    fprintf(out, "\n%-*s %11s %7s\n", chars, "what if", "ms", "step");
    for (int32_t i = 0; i < replay->num_rows; i++) {
        const TraceRow* row = &replay->rows[i];
        fprintf(out, "%-*s %11.3f %+6.1f%%  %s\n", chars, row->name, (double)row->ns / 1e6,
                percent(row->ns - replay->replayed_ns, replay->replayed_ns), row->about);
    }
}

// --- values for the page ----------------------------------------------------------------------------------

// The chunk's number on its rank; "" if each rank has one.
static void piece_text(char* out, size_t out_bytes, const TraceFile* file, const TraceNode* node) {
    out[0] = '\0';
    if (node->job >= TRACE_JOB_HEAD) {
        snprintf(out, out_bytes, "head");
    } else if (file->placement.num_chunks > file->P || file->placement.head != HEAD_WHOLE) {
        snprintf(out, out_bytes, "chunk %d", node->row);
    }
}

// [rank, kind of job, begin, duration, planned (-1: unknown), micro-batch, piece, name]; times in ns.
static json_t* job_json(const TraceFile* file, const TraceNode* node) {
    char piece[32];
    piece_text(piece, sizeof piece, file, node);
    return json_pack("[i,i,I,I,I,i,s,s]", node->rank, node->job, (json_int_t)(node->end_ns - node->ns),
                     (json_int_t)node->ns, (json_int_t)node->planned_ns, node->mb, piece,
                     trace_kind_text(node->event_kind));
}

json_t* trace_replay_json(const TraceReplay* replay) {
    const TraceFile* file = &replay->file;
    const TraceGraph* graph = &replay->graph;
    json_t *jobs = json_array(), *path = json_array(), *parts = json_array(), *rows = json_array();
    for (int32_t n = 1; n < graph->num_nodes; n++) {
        if (graph->nodes[n].kind == NODE_JOB) {
            json_array_append_new(jobs, job_json(file, &graph->nodes[n]));
        }
    }
    for (int32_t k = 0; k < replay->path.num_nodes; k++) {
        const TraceNode* node = &graph->nodes[replay->path.nodes[k]];
        if (node->kind == NODE_JOB) { json_array_append_new(path, job_json(file, node)); }
    }
    for (int32_t part = 0; part < TRACE_NUM_PARTS; part++) {
        int64_t ns;
        const char* name = trace_replay_part(replay, part, &ns);
        if (ns != 0) { json_array_append_new(parts, json_pack("[s,I]", name, (json_int_t)ns)); }
    }
    for (int32_t r = 0; r < graph->num_ranks; r++) {
        char name[32];
        snprintf(name, sizeof name, "jobs of rank %d", r);
        int64_t ns = replay->path.rank_jobs_ns[r];
        if (ns != 0) { json_array_append_new(parts, json_pack("[s,I]", name, (json_int_t)ns)); }
    }
    for (int32_t i = 0; i < replay->num_rows; i++) {
        const TraceRow* row = &replay->rows[i];
        json_array_append_new(rows, json_pack("[s,I]", row->about, (json_int_t)row->ns));
    }
    json_t* out = json_pack("{s:I, s:i, s:I, s:I, s:o, s:o, s:o, s:o}", "step", (json_int_t)file->step,
                            "num_ranks", graph->num_ranks, "measured_ns", (json_int_t)graph->measured_ns,
                            "replayed_ns", (json_int_t)replay->replayed_ns, "jobs", jobs, "path", path,
                            "parts", parts, "what_if", rows);
    if (file->has_errors) {
        const SessionErrors* errors = &file->errors;
        json_object_set_new(out, "errors",
                            json_pack("{s:I, s:I, s:I, s:I, s:I}", "predicted_ns",
                                      (json_int_t)errors->predicted_ns, "measured_ns",
                                      (json_int_t)errors->measured_ns, "jobs_ns", (json_int_t)errors->jobs_ns,
                                      "transfers_ns", (json_int_t)errors->transfers_ns, "waiting_ns",
                                      (json_int_t)errors->waiting_ns));
    }
    return out;
}
