#include "trace_view.h"
#include "../dynapipe_plugin/plan/simulate.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../dynapipe_plugin/plan/plan_text.h"
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
    if (kind < INSTR_COUNT && mb < 0) { return fail_event(path, idx, "no such microbatch"); }
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
    const TraceFile* trace;
    TraceGraph* graph;
    bool after_jobs;  // messages may wait for jobs
    int64_t origin_ns;
    int32_t num_rows;
    int32_t* node_at;           // [R * INSTR_COUNT * rows * M] of an event; 0: none
    int32_t *jobs, *first_job;  // nodes, rank by rank, in the order they ran; [num_ranks + 1] of a rank
    int32_t* chain_end;         // [num_ranks] the last node of each
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

static TraceNodeKind node_kind(int32_t kind) {
    return kind <= INSTR_REC          ? NODE_JOB
           : plan_instr_is_wait(kind) ? NODE_WAIT
           : kind == TRACE_REDUCE     ? NODE_REDUCE
                                      : NODE_POST;
}

// When the rank reached the event.
static int64_t event_start_ns(const TraceEvent* event) {
    bool waited = event->kind <= INSTR_REC && event->wait_ns >= LEAST_WAIT_NS;
    return event->begin_ns - (waited ? event->wait_ns : 0);
}

static int32_t add_node(Maker* maker, TraceNodeKind kind, int32_t rank, int32_t mb, int32_t previous) {
    maker->graph->nodes[maker->graph->num_nodes] = (TraceNode){
        .kind = (uint8_t)kind, .rank = rank, .mb = mb, .row = -1, .previous = previous, .planned_ns = -1};
    return maker->graph->num_nodes++;
}

static void wait_for(Maker* maker, int32_t n, int32_t before, bool is_late) {
    TraceNode* node = &maker->graph->nodes[n];
    maker->graph->edges[maker->graph->num_edges] = (TraceEdge){before, node->edges, is_late};
    node->edges = maker->graph->num_edges++;
}

// The events of a rank one after the other; posts hang on that chain and do not delay it.
static Status add_rank(Maker* maker, int32_t rank) {
    const TraceFile* trace = maker->trace;
    int32_t before = 0, num_jobs = maker->first_job[rank];
    for (int32_t i = 0; i < trace->ranks[rank].num_events; i++) {
        const TraceFileEvent* of = &trace->ranks[rank].events[i];
        const TraceEvent* event = &of->event;
        if (event->kind >= TRACE_REDUCE) { continue; }
        int32_t* at = node_at(maker, rank / trace->P, event->kind, of->row, event->mb);
        if (*at != 0) {
            return FAIL(STATUS_BAD_FORMAT, "rank %d: %s of microbatch %d is there twice ---> %s", rank,
                        trace_kind_text(event->kind), event->mb, REMEDY);
        }
        int32_t n = *at = add_node(maker, node_kind(event->kind), rank, event->mb, before);
        TraceNode* node = &maker->graph->nodes[n];
        bool is_post = node->kind == NODE_POST;
        node->event = event;
        node->event_kind = node->job = (uint8_t)event->kind;
        node->row = of->row;
        node->planned_ns = of->planned_ns;
        node->measured_ns = (is_post ? event->begin_ns : event->end_ns) - maker->origin_ns;
        node->gap_ns = event_start_ns(event) - maker->origin_ns - maker->graph->nodes[before].measured_ns;
        if (is_post) { continue; }
        node->gap_ns = larger(node->gap_ns, 0);
        node->ns = event->end_ns - event->begin_ns;
        before = n;
        if (node->kind != NODE_JOB) { continue; }
        if (of->row >= trace->placement.num_chunks) {
            node->job = event->kind == INSTR_FWD ? TRACE_JOB_HEAD : TRACE_JOB_HEAD_WEIGHTS;
        }
        maker->jobs[num_jobs++] = n;
    }
    maker->chain_end[rank] = before;
    maker->first_job[rank + 1] = num_jobs;
    return STATUS_OK;
}

// Gradients are reduced when all participants have arrived. The trace does not name them: a reduction that
// ended after everybody's last job may have waited for all.
static void add_reductions(Maker* maker) {
    TraceGraph* graph = maker->graph;
    int32_t all = add_node(maker, NODE_REDUCE, 0, -1, 0);
    int64_t all_ns = 0;
    for (int32_t r = 0; r < graph->num_ranks; r++) {
        wait_for(maker, all, maker->chain_end[r], false);
        all_ns = larger(all_ns, graph->nodes[maker->chain_end[r]].measured_ns);
    }
    graph->nodes[all].measured_ns = all_ns;
    for (int32_t r = 0; r < graph->num_ranks; r++) {
        for (int32_t i = 0; i < maker->trace->ranks[r].num_events; i++) {
            const TraceEvent* event = &maker->trace->ranks[r].events[i].event;
            if (event->kind != TRACE_REDUCE) { continue; }
            int64_t before_ns = graph->nodes[maker->chain_end[r]].measured_ns;
            int64_t begin_ns = larger(event->begin_ns - maker->origin_ns, before_ns);
            int64_t end_ns = larger(event->end_ns - maker->origin_ns, begin_ns);
            int32_t n = add_node(maker, NODE_REDUCE, r, -1, maker->chain_end[r]);
            TraceNode* node = &graph->nodes[n];
            node->event = event;
            node->event_kind = TRACE_REDUCE;
            node->measured_ns = end_ns;
            node->gap_ns = begin_ns - before_ns;
            node->ns = end_ns - (end_ns >= all_ns ? larger(begin_ns, all_ns) : begin_ns);
            if (end_ns >= all_ns) { wait_for(maker, n, all, false); }
            maker->chain_end[r] = n;
        }
    }
}

// --- messages ----------------------------------------------------------------------------------------------

// The last job of a rank that ended in (begin, end]; 0: none.
static int32_t job_ending_in(const Maker* maker, int32_t rank, int64_t begin_ns, int64_t end_ns) {
    const TraceNode* nodes = maker->graph->nodes;
    int32_t least = maker->first_job[rank], low = least, high = maker->first_job[rank + 1];
    while (low < high) {
        int32_t middle = low + (high - low) / 2;
        if (nodes[maker->jobs[middle]].measured_ns <= end_ns) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    return low == least || nodes[maker->jobs[low - 1]].measured_ns <= begin_ns ? 0 : maker->jobs[low - 1];
}

// A message posted by both ends at `posted` and received at `until`: was it detected right after a job of
// this rank?
static void wait_for_job(Maker* maker, int32_t n, int32_t rank, int64_t posted_ns, int64_t until_ns) {
    int64_t look_ns = larger(2 * maker->graph->nodes[n].planned_ns, LOOK_NS);
    if (!maker->after_jobs || until_ns - posted_ns <= look_ns) { return; }
    int32_t job = job_ending_in(maker, rank, posted_ns, until_ns);
    if (job != 0 && until_ns - maker->graph->nodes[job].measured_ns <= look_ns) {
        wait_for(maker, n, job, true);
    }
}

// The duration from its dependencies to `until` if a rank waited for it; otherwise at most the planned one.
static void set_duration(Maker* maker, int32_t n, int64_t until_ns, bool waited) {
    TraceNode *nodes = maker->graph->nodes, *node = &nodes[n];
    int64_t from_ns = nodes[node->previous].measured_ns;
    for (int32_t e = node->edges; e != 0; e = maker->graph->edges[e].next) {
        from_ns = larger(from_ns, nodes[maker->graph->edges[e].before].measured_ns);
    }
    int64_t took_ns = larger(until_ns - from_ns, 0);
    node->ns = node->planned_ns >= 0 ? smaller(took_ns, node->planned_ns) : took_ns;
    node->late_ns = waited ? took_ns - node->ns : 0;
    node->measured_ns = until_ns;
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
        int64_t later_ns = maker->graph->nodes[other].event->end_ns - mine->event->end_ns;
        if (later_ns > 0 || (later_ns == 0 && other > recv)) { return false; }
    }
    return true;
}

static void add_message(Maker* maker, int32_t send, int32_t recv, int32_t reader, bool is_last) {
    TraceNode* nodes = maker->graph->nodes;
    const TraceEvent *got = nodes[recv].event, *read = nodes[reader].event;
    int64_t ready_ns = is_last ? read->begin_ns : smaller(got->end_ns, read->begin_ns);
    bool waited = read->wait_ns >= LEAST_WAIT_NS && ready_ns > event_start_ns(read);
    int64_t came_ns = smaller(got->end_ns, event_start_ns(read));
    int64_t until_ns = (waited ? ready_ns : came_ns) - maker->origin_ns;
    int64_t posted_ns = larger(nodes[send].measured_ns, nodes[recv].measured_ns);
    int32_t n = add_node(maker, NODE_MESSAGE, nodes[reader].rank, nodes[reader].mb, send);
    nodes[n].row = nodes[send].row;
    nodes[n].planned_ns = nodes[send].planned_ns;
    wait_for(maker, n, recv, false);
    wait_for_job(maker, n, nodes[send].rank, posted_ns, until_ns);
    wait_for_job(maker, n, nodes[reader].rank, posted_ns, until_ns);
    set_duration(maker, n, until_ns, waited);
    wait_for(maker, reader, n, false);
}

// A send that completed before the receive was posted did not wait for it.
static void add_release(Maker* maker, int32_t send, int32_t recv, int32_t wait) {
    TraceNode* nodes = maker->graph->nodes;
    const TraceEvent* waits = nodes[wait].event;
    bool waited = waits->end_ns - waits->begin_ns >= LEAST_WAIT_NS;
    int64_t until_ns =
        (waited ? waits->end_ns : smaller(nodes[send].event->end_ns, waits->begin_ns)) - maker->origin_ns;
    int64_t posted_ns = nodes[send].measured_ns;
    int32_t n = add_node(maker, NODE_RELEASE, nodes[send].rank, nodes[send].mb, send);
    nodes[n].planned_ns = nodes[send].planned_ns;
    if (nodes[recv].measured_ns <= until_ns) {
        wait_for(maker, n, recv, false);
        posted_ns = larger(posted_ns, nodes[recv].measured_ns);
    }
    wait_for_job(maker, n, nodes[recv].rank, posted_ns, until_ns);
    set_duration(maker, n, until_ns, waited);
    if (waited) { nodes[wait].ns = 0; }
    wait_for(maker, wait, n, false);
}

static void add_messages(Maker* maker) {
    const TraceFile* trace = maker->trace;
    int32_t num_events = maker->graph->num_nodes;
    for (int32_t n = 1; n < num_events; n++) {
        const TraceNode* send = &maker->graph->nodes[n];
        int32_t replica = send->rank / trace->P, mb = send->mb, row = send->row;
        if (send->kind != NODE_POST || !plan_instr_is_send(send->event_kind)) { continue; }
        PlanMessage message = {.kind = send->event_kind == INSTR_SEND_ACT    ? MESSAGE_ACT
                                       : send->event_kind == INSTR_SEND_GRAD ? MESSAGE_GRAD
                                                                             : MESSAGE_FACTORS,
                               .row = (int16_t)row};
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

// Kahn's order: out-edges of a node in one list, of previous nodes and of edges.
static Status sort_graph(TraceGraph* graph, Arena* arena) {
    int32_t n = graph->num_nodes, num_all = n + graph->num_edges, placed = 1;
    int32_t *missing, *first, *next, *after;
    ARENA_TRY_NEW(missing, arena, int32_t, n);
    ARENA_TRY_NEW(first, arena, int32_t, n);       // of the list; 0: none
    ARENA_TRY_NEW(next, arena, int32_t, num_all);  // entry i < n: node i after its previous; else an edge
    ARENA_TRY_NEW(after, arena, int32_t, num_all);
    ARENA_TRY_NEW(graph->order, arena, int32_t, n);
    for (int32_t i = 1; i < n; i++) {
        int32_t entry = i, before = graph->nodes[i].previous, e = graph->nodes[i].edges;
        for (;; e = graph->edges[e].next) {
            missing[i]++;
            after[entry] = i;
            next[entry] = first[before];
            first[before] = entry;
            if (e == 0) { break; }
            entry = n + e;
            before = graph->edges[e].before;
        }
    }
    for (int32_t done = 0; done < placed; done++) {
        for (int32_t k = first[graph->order[done]]; k != 0; k = next[k]) {
            if (--missing[after[k]] == 0) { graph->order[placed++] = after[k]; }
        }
    }
    return placed == n ? STATUS_OK
                       : FAIL(STATUS_DEADLOCK, "jobs and messages wait for each other in a circle");
}

// Fills end_ns and because; returns the makespan. no_late: messages do not wait for jobs.
static int64_t run_graph(TraceGraph* graph, bool no_late) {
    TraceNode* nodes = graph->nodes;
    graph->last = 0;
    for (int32_t i = 1; i < graph->num_nodes; i++) {
        TraceNode* node = &nodes[graph->order[i]];
        int64_t begin_ns = nodes[node->previous].end_ns + node->gap_ns;
        node->because = node->previous;
        for (int32_t e = node->edges; e != 0; e = graph->edges[e].next) {
            const TraceEdge* edge = &graph->edges[e];
            if ((edge->is_late && no_late) || nodes[edge->before].end_ns <= begin_ns) { continue; }
            begin_ns = nodes[edge->before].end_ns;
            node->because = edge->before;
        }
        node->end_ns = begin_ns + node->ns + node->late_ns;
        if (node->end_ns > nodes[graph->last].end_ns) { graph->last = graph->order[i]; }
    }
    return nodes[graph->last].end_ns;
}

static Status make(TraceGraph* out, const TraceFile* trace, bool after_jobs, Arena* arena) {
    int32_t num_ranks = trace->P * trace->R;
    int64_t num_events = 0;
    Maker maker = {.trace = trace, .graph = out, .after_jobs = after_jobs, .origin_ns = INT64_MAX};
    for (int32_t r = 0; r < num_ranks; r++) {
        num_events += trace->ranks[r].num_events;
        for (int32_t i = 0; i < trace->ranks[r].num_events; i++) {
            maker.origin_ns = smaller(maker.origin_ns, event_start_ns(&trace->ranks[r].events[i].event));
        }
    }
    maker.num_rows = placement_num_rows(&trace->placement, trace->P);
    int64_t num_cells = (int64_t)trace->R * maker.num_rows * trace->M;
    if (num_events == 0 || num_cells > 64 * num_events + 4096) {  // limits the tables
        return FAIL(STATUS_BAD_FORMAT, "%lld events of %d ranks: no step ---> give a whole trace",
                    (long long)num_events, num_ranks);
    }
    // A send makes a message and a release, these four and two edges.
    *out = (TraceGraph){.num_ranks = num_ranks, .num_nodes = 1, .num_edges = 1};
    ARENA_TRY_NEW(out->nodes, arena, TraceNode, 2 + 3 * num_events);
    ARENA_TRY_NEW(out->edges, arena, TraceEdge, 1 + num_ranks + 7 * num_events);
    ARENA_TRY_NEW(maker.node_at, arena, int32_t, INSTR_COUNT * num_cells);
    ARENA_TRY_NEW(maker.jobs, arena, int32_t, num_events);
    ARENA_TRY_NEW(maker.first_job, arena, int32_t, num_ranks + 1);
    ARENA_TRY_NEW(maker.chain_end, arena, int32_t, num_ranks);
    for (int32_t r = 0; r < num_ranks; r++) { TRY(add_rank(&maker, r)); }
    add_messages(&maker);
    add_reductions(&maker);
    for (int32_t n = 1; n < out->num_nodes; n++) {
        if (out->nodes[n].event != NULL) {
            out->measured_ns = larger(out->measured_ns, out->nodes[n].measured_ns);
        }
    }
    return sort_graph(out, arena);
}

// If the clocks of two hosts differ, a message may appear after the job that reads it; such waits are
// dropped.
Status trace_graph_make(TraceGraph* out, const TraceFile* trace, Arena* arena) {
    const int64_t most_ns = INT64_C(1) << 52;  // even a hundred times slower, sums stay far from 64 bits
    int64_t sum_ns = 0;
    Status status = make(out, trace, true, arena);
    if (status == STATUS_DEADLOCK) { status = make(out, trace, false, arena); }
    if (status == STATUS_DEADLOCK) {
        return FAIL(STATUS_BAD_FORMAT,
                    "jobs and messages wait for each other in a circle ---> give a whole trace");
    }
    TRY(status);
    for (int32_t n = 1; n < out->num_nodes; n++) {
        const TraceNode* node = &out->nodes[n];
        sum_ns += llabs(node->gap_ns) + node->ns + node->late_ns + larger(node->planned_ns, 0);
        if (sum_ns > most_ns) {
            return FAIL(STATUS_BAD_FORMAT, "its events take more than weeks ---> give a whole trace");
        }
    }
    run_graph(out, false);
    return STATUS_OK;
}

// --- a measured step with changes -------------------------------------------------------------------------

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

Status trace_graph_change(int64_t* out_ns, const TraceGraph* graph, const TraceWhatIf* change, Arena* arena) {
    TraceGraph changed = *graph;
    double *ratios, *room;
    ARENA_TRY_NEW(changed.nodes, arena, TraceNode, graph->num_nodes);
    ARENA_TRY_NEW(ratios, arena, double, graph->num_ranks* TRACE_JOB_COUNT);
    ARENA_TRY_NEW(room, arena, double, graph->num_nodes);
    memcpy(changed.nodes, graph->nodes, (size_t)graph->num_nodes * sizeof *graph->nodes);
    for (int32_t i = 0; i < graph->num_ranks * TRACE_JOB_COUNT && change->no_jitter; i++) {
        ratios[i] = median_ratio(graph, i / TRACE_JOB_COUNT, i % TRACE_JOB_COUNT, room);
    }
    for (int32_t n = 1; n < changed.num_nodes; n++) {
        TraceNode* node = &changed.nodes[n];
        if (node->kind == NODE_JOB) {
            double ratio = ratios[node->rank * TRACE_JOB_COUNT + node->job];
            if (node->planned_ns > 0 && change->no_jitter) {
                node->ns = (int64_t)((double)node->planned_ns * ratio + 0.5);
            }
            if (node->planned_ns >= 0 && change->as_planned) { node->ns = node->planned_ns; }
            if (change->rank_speeds != NULL) {
                node->ns = divided(node->ns, change->rank_speeds[node->rank]);
            }
        } else if (node->kind == NODE_MESSAGE || node->kind == NODE_RELEASE) {
            if (change->link > 0) { node->ns = divided(node->ns, change->link); }
            if (change->no_late) { node->late_ns = 0; }
        }
    }
    *out_ns = run_graph(&changed, change->no_late);
    return STATUS_OK;
}

// --- what if -----------------------------------------------------------------------------------------------

// "2x": a factor of 0.01 to 100, multiplied with earlier ones in the row; the product has the same range.
static bool take_factor(double* product, const char* text) {
    char* end;
    double factor = strtod(text, &end);
    if (end == text || strcmp(end, "x") != 0 || !(factor >= 0.01 && factor <= 100)) { return false; }
    *product *= factor;
    return *product >= 0.01 && *product <= 100;
}

static bool parse_change(TraceWhatIf* change, double* speeds, const char* text, int32_t num_ranks) {
    if (strncmp(text, "link=", 5) == 0) {
        if (change->link == 0) { change->link = 1; }
        return take_factor(&change->link, text + 5);
    }
    if (strncmp(text, "rank=", 5) == 0) {
        char* end;
        long rank = strtol(text + 5, &end, 10);
        if (end == text + 5 || *end != ':' || rank < 0 || rank >= num_ranks) { return false; }
        change->rank_speeds = speeds;
        return take_factor(&speeds[rank], end + 1);
    }
    bool jitter = strcmp(text, "jitter=0") == 0, planned = strcmp(text, "jobs=planned") == 0;
    bool late = strcmp(text, "late=0") == 0;
    change->no_jitter |= jitter;
    change->as_planned |= planned;
    change->no_late |= late;
    return jitter || planned || late;
}

// The next part of a text up to `separator`, in place; NULL: there is none.
static char* take_part(char** at, char separator) {
    char *part = *at, *end = part != NULL ? strchr(part, separator) : NULL;
    *at = end != NULL ? end + 1 : NULL;
    if (end != NULL) { *end = '\0'; }
    return part;
}

static Status add_row(TraceReplay* replay, char* text, Arena* arena) {
    int32_t num_ranks = replay->graph.num_ranks;
    TraceWhatIf change = {0};
    double* speeds;
    if (replay->num_rows == TRACE_MAX_ROWS) {
        return FAIL(STATUS_BAD_OPTION, "--what-if: more than %d rows ---> ask in several calls",
                    TRACE_MAX_ROWS);
    }
    TraceRow* row = &replay->rows[replay->num_rows++];
    snprintf(row->name, sizeof row->name, "%s", text);
    ARENA_TRY_NEW(speeds, arena, double, num_ranks);
    for (int32_t r = 0; r < num_ranks; r++) { speeds[r] = 1; }
    for (char* part; (part = take_part(&text, '+')) != NULL;) {
        if (parse_change(&change, speeds, part, num_ranks)) { continue; }
        return FAIL(STATUS_BAD_OPTION,
                    "--what-if %.60s ---> link=2x, rank=RANK:1.5x (ranks 0 to %d), jitter=0, jobs=planned or "
                    "late=0; factors, and the product of several of a link or rank, 0.01x to 100x; + joins "
                    "changes, a comma begins another row",
                    part, num_ranks - 1);
    }
    return trace_graph_change(&row->ns, &replay->graph, &change, arena);
}

// The critical path, by parts.
static Status find_path(TraceReplay* replay, Arena* arena) {
    const TraceGraph* graph = &replay->graph;
    int32_t num = 0;
    for (int32_t n = graph->last; n != 0; n = graph->nodes[n].because) { num++; }
    ARENA_TRY_NEW(replay->path, arena, int32_t, num);
    ARENA_TRY_NEW(replay->rank_jobs_ns, arena, int64_t, graph->num_ranks);
    replay->path_nodes = num;
    for (int32_t n = graph->last; n != 0; n = graph->nodes[n].because) {
        const TraceNode* node = &graph->nodes[n];
        bool is_message = node->kind == NODE_MESSAGE || node->kind == NODE_RELEASE;
        int part = node->kind == NODE_JOB      ? node->job
                   : is_message                ? TRACE_PART_WIRE
                   : node->kind == NODE_REDUCE ? TRACE_PART_REDUCE
                                               : TRACE_PART_BETWEEN;
        replay->path[--num] = n;
        replay->part_ns[part] += node->ns;
        replay->part_ns[TRACE_PART_LATE] += node->late_ns;
        if (node->because == node->previous) { replay->part_ns[TRACE_PART_BETWEEN] += node->gap_ns; }
        if (node->kind != NODE_JOB) { continue; }
        replay->rank_jobs_ns[node->rank] += node->ns;
        replay->late_jobs_ns += node->planned_ns >= 0 ? node->ns - node->planned_ns : 0;
    }
    return STATUS_OK;
}

Status trace_replay_make(TraceReplay* out, const char* path, const char* what_if, Arena* arena) {
    char usual[96];
    *out = (TraceReplay){0};
    TRY(trace_file_load(&out->file, path, arena));
    Status status = trace_graph_make(&out->graph, &out->file, arena);
    if (status != STATUS_OK) {
        char why[400];
        snprintf(why, sizeof why, "%s", status_message());
        return FAIL(status, "%s: %s", path, why);
    }
    out->replayed_ns = out->graph.nodes[out->graph.last].end_ns;
    TRY(find_path(out, arena));
    if (what_if == NULL) {
        int32_t busiest = 0;
        for (int32_t r = 1; r < out->graph.num_ranks; r++) {
            if (out->rank_jobs_ns[r] > out->rank_jobs_ns[busiest]) { busiest = r; }
        }
        snprintf(usual, sizeof usual, "link=2x,late=0,jitter=0,jobs=planned,jobs=planned+late=0,rank=%d:1.2x",
                 busiest);
        what_if = usual;
    }
    char* rows;
    ARENA_TRY_NEW(rows, arena, char, strlen(what_if) + 1);
    memcpy(rows, what_if, strlen(what_if) + 1);
    for (char* row; (row = take_part(&rows, ',')) != NULL;) { TRY(add_row(out, row, arena)); }
    return STATUS_OK;
}

// --- text --------------------------------------------------------------------------------------------------

static const char* const part_names[TRACE_PARTS] = {[INSTR_FWD] = "forward",
                                                    [INSTR_BWD] = "backward",
                                                    [INSTR_WGT] = "weight gradients",
                                                    [INSTR_REC] = "recomputation",
                                                    [TRACE_JOB_HEAD] = "shares of the head",
                                                    [TRACE_JOB_HEAD_WEIGHTS] = "their weight gradients",
                                                    [TRACE_PART_WIRE] = "transfers",
                                                    [TRACE_PART_LATE] = "messages that move late",
                                                    [TRACE_PART_BETWEEN] = "between events of a rank",
                                                    [TRACE_PART_REDUCE] = "gradient reduction"};

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

// Of the critical path: part i, then the jobs of rank i - TRACE_PARTS.
static int64_t path_part(char name[32], const TraceReplay* replay, int32_t i) {
    int32_t rank = i - TRACE_PARTS;
    if (rank < 0) {
        snprintf(name, 32, "%s", part_names[i]);
        return replay->part_ns[i];
    }
    snprintf(name, 32, "  jobs of rank %d", rank);
    return replay->rank_jobs_ns[rank];
}

void trace_replay_print(const TraceReplay* replay, FILE* out) {
    print_head(replay, out);
    fprintf(out, "\n%-26s %11s %7s\n", "critical path", "ms", "share");
    for (int32_t i = 0; i < TRACE_PARTS + replay->graph.num_ranks; i++) {
        char name[32];
        int64_t ns = path_part(name, replay, i);
        if (ns == 0) { continue; }
        fprintf(out, "%-26s %11.3f %6.1f%%\n", name, (double)ns / 1e6, percent(ns, replay->replayed_ns));
    }
    fprintf(out, "jobs on it took %s%s more than planned\n", replay->late_jobs_ns > 0 ? "+" : "",
            TIME_TEXT(replay->late_jobs_ns, 4));
    fprintf(out, "\n%-26s %11s %7s\n", "what if", "ms", "step");
    for (int32_t i = 0; i < replay->num_rows; i++) {
        const TraceRow* row = &replay->rows[i];
        fprintf(out, "%-26s %11.3f %+6.1f%%\n", row->name, (double)row->ns / 1e6,
                percent(row->ns - replay->replayed_ns, replay->replayed_ns));
    }
    fprintf(out, "link: messages so many times as fast; rank: that rank; late=0: no message begins late;\n"
                 "jitter=0: every job the median of its rank and kind; jobs=planned: as planned\n");
}

// --- values for the page ----------------------------------------------------------------------------------

// [rank, kind of job, begin, duration, planned (-1: unknown), microbatch, piece, name]; times in ns. The
// piece is "" where each rank has one chunk.
static json_t* job_json(const TraceFile* file, const TraceNode* node) {
    char piece[32] = "";
    if (node->job >= TRACE_JOB_HEAD) {
        snprintf(piece, sizeof piece, "head");
    } else if (file->placement.num_chunks > file->P || file->placement.head != HEAD_WHOLE) {
        snprintf(piece, sizeof piece, "chunk %d", node->row);
    }
    return json_pack("[i,i,I,I,I,i,s,s]", node->rank, node->job, (json_int_t)(node->end_ns - node->ns),
                     (json_int_t)node->ns, (json_int_t)node->planned_ns, node->mb, piece,
                     trace_kind_text(node->event_kind));
}

json_t* trace_replay_json(const TraceReplay* replay) {
    const TraceFile* file = &replay->file;
    const TraceGraph* graph = &replay->graph;
    const SessionErrors* errors = &file->errors;
    json_t *jobs = json_array(), *path = json_array(), *parts = json_array(), *rows = json_array();
    for (int32_t n = 1; n < graph->num_nodes; n++) {
        const TraceNode* node = &graph->nodes[n];
        if (node->kind == NODE_JOB) { json_array_append_new(jobs, job_json(file, node)); }
    }
    for (int32_t k = 0; k < replay->path_nodes; k++) {
        const TraceNode* node = &graph->nodes[replay->path[k]];
        if (node->kind == NODE_JOB) { json_array_append_new(path, job_json(file, node)); }
    }
    for (int32_t i = 0; i < TRACE_PARTS + graph->num_ranks; i++) {
        char name[32];
        int64_t ns = path_part(name, replay, i);
        if (ns != 0) { json_array_append_new(parts, json_pack("[s,I]", name, (json_int_t)ns)); }
    }
    for (int32_t i = 0; i < replay->num_rows; i++) {
        const TraceRow* row = &replay->rows[i];
        json_array_append_new(rows, json_pack("[s,I]", row->name, (json_int_t)row->ns));
    }
    json_t* out = json_pack("{s:I, s:i, s:I, s:I, s:o, s:o, s:o, s:o}", "step", (json_int_t)file->step,
                            "num_ranks", graph->num_ranks, "measured_ns", (json_int_t)graph->measured_ns,
                            "replayed_ns", (json_int_t)replay->replayed_ns, "jobs", jobs, "path", path,
                            "parts", parts, "what_if", rows);
    if (!file->has_errors) { return out; }
    json_object_set_new(out, "errors",
                        json_pack("{s:I, s:I, s:I, s:I, s:I}", "predicted_ns",
                                  (json_int_t)errors->predicted_ns, "measured_ns",
                                  (json_int_t)errors->measured_ns, "jobs_ns", (json_int_t)errors->jobs_ns,
                                  "transfers_ns", (json_int_t)errors->transfers_ns, "waiting_ns",
                                  (json_int_t)errors->waiting_ns));
    return out;
}
