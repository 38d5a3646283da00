#include "trace_view.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../dynapipe_plugin/plan/plan_text.h"
#include "../util/files.h"
#include "../util/program.h"

static const char REMEDY[] = "give a file that the trainer's --trace wrote";

#define MOST_NS (INT64_C(1) << 50)  // days: sums stay far from the 64-bit limits

// A job, or the reduction of a rank's gradients.
struct TraceNode {
    TraceEvent event;
    int32_t rank, part;             // TRACE_PART_REDUCE or the kind of job
    int32_t previous;               // on its rank; -1: none
    int32_t first_edge, num_edges;  // messages that it waits for
    bool waits_for_all;             // a reduction, for the jobs of all ranks
    int64_t gap_ns;                 // after `previous`
    int64_t ns, planned_ns;         // duration; -1: not known
    int64_t begin_ns, end_ns;       // after a run
    int32_t because;                // the node that it waited for last; -1: it is the first of its rank
    int32_t because_edge;           // -1: not a message
};

struct TraceEdge {
    int32_t before;
    int64_t wire_ns, late_ns;  // late: may be negative where the clocks of hosts differ
};

// --- the file ----------------------------------------------------------------------------------------------

typedef struct {
    TraceReplay* out;
    const char* path;
    int64_t num_cells;  // rows * microbatches
    int32_t* job_at;    // [R * JOB_COUNT * num_cells] node + 1 of a job; 0: none
    int64_t* wire_ns;   // [R * PLAN_MESSAGE_KINDS * num_cells] planned time of a message + 1; 0: not known
} Reader;

static Status fail_event(const Reader* r, size_t idx, const char* why) {
    return FAIL(STATUS_BAD_FORMAT, "%s: event %zu: %s ---> %s", r->path, idx, why, REMEDY);
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

static bool read_placement(Placement* out, const json_t* other, int32_t P) {
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
    if (!good) { return false; }
    out->num_chunks = (int32_t)num_chunks;
    out->head = (uint8_t)head;
    return true;
}

static Status read_head(Reader* r, const json_t* root, Arena* arena) {
    TraceReplay* out = r->out;
    const json_t *other = json_object_get(root, "otherData"), *clocks = json_object_get(other, "clocks");
    const char* format = json_string_value(json_object_get(other, "format"));
    size_t num_events = json_array_size(json_object_get(root, "traceEvents"));
    int64_t P, R, M;
    if (format == NULL || strcmp(format, TRACE_FORMAT) != 0) {
        return FAIL(STATUS_BAD_FORMAT, "%s: otherData has no format \"%s\" ---> %s", r->path, TRACE_FORMAT,
                    REMEDY);
    }
    if (!read_int(&P, other, "stages", 1, PLAN_MAX_STAGES) ||
        !read_int(&R, other, "replicas", 1, PLAN_MAX_REPLICAS) ||
        !read_int(&M, other, "microbatches", 0, TRACE_MAX_MBS) ||
        !read_placement(&out->placement, other, (int32_t)P)) {
        return FAIL(STATUS_BAD_FORMAT,
                    "%s: otherData: no such stages, replicas, microbatches or chunks ---> %s", r->path,
                    REMEDY);
    }
    out->P = (int32_t)P;
    out->R = (int32_t)R;
    out->M = (int32_t)M;
    for (size_t i = 0; i < json_array_size(clocks); i++) {
        int64_t error_ns = int_or(json_array_get(clocks, i), "error_ns", 0, MOST_NS, 0);
        if (error_ns > out->clock_error_ns) { out->clock_error_ns = error_ns; }
    }
    r->num_cells = placement_num_rows(&out->placement, out->P) * M;
    if (R * r->num_cells > 64 * (int64_t)num_events + 4096) {  // limits the tables
        return FAIL(STATUS_BAD_FORMAT, "%s: %zu events of %lld microbatches: not a whole step ---> %s",
                    r->path, num_events, (long long)M, REMEDY);
    }
    ARENA_TRY_NEW(r->job_at, arena, int32_t, R * JOB_COUNT * r->num_cells);
    ARENA_TRY_NEW(r->wire_ns, arena, int64_t, R * PLAN_MESSAGE_KINDS * r->num_cells);
    ARENA_TRY_NEW(out->nodes, arena, TraceNode, num_events + 1);
    ARENA_TRY_NEW(out->rank_jobs_ns, arena, int64_t, P * R);
    return STATUS_OK;
}

static int64_t cell(const Reader* r, int32_t num_kinds, int32_t rank, int32_t kind, int32_t row, int32_t mb) {
    return (rank / r->out->P * num_kinds + kind) * r->num_cells + (int64_t)row * r->out->M + mb;
}

static int32_t kind_of(const json_t* args) {
    const char* text = json_string_value(json_object_get(args, "kind"));
    for (int32_t kind = 0; kind < TRACE_KIND_COUNT && text != NULL; kind++) {
        if (strcmp(text, trace_kind_text(kind)) == 0) { return kind; }
    }
    return -1;
}

static void read_step(TraceReplay* out, const json_t* args) {
    SessionErrors* errors = &out->errors;
    read_name(out->plan_hash, sizeof out->plan_hash, args, "plan_hash");
    read_name(out->policy, sizeof out->policy, args, "policy");
    read_name(out->schedule, sizeof out->schedule, args, "schedule");
    out->has_errors = read_int(&errors->predicted_ns, args, "predicted_ns", 1, MOST_NS) &&
                      read_int(&errors->measured_ns, args, "measured_ns", 1, MOST_NS) &&
                      read_int(&errors->jobs_ns, args, "jobs_off_ns", -MOST_NS, MOST_NS) &&
                      read_int(&errors->transfers_ns, args, "transfers_off_ns", -MOST_NS, MOST_NS);
    errors->waiting_ns = errors->measured_ns - errors->predicted_ns - errors->jobs_ns - errors->transfers_ns;
}

// Of jobs and reductions a node, of sends the planned time.
static Status read_event(Reader* r, const json_t* args, size_t idx) {
    TraceReplay* out = r->out;
    int64_t rank, begin_ns, end_ns;
    int32_t kind = kind_of(args);
    int64_t mb = int_or(args, "mb", 0, out->M - 1, -1),
            planned_ns = int_or(args, "planned_ns", 0, MOST_NS, -1);
    if (!read_int(&rank, args, "rank", 0, out->P * out->R - 1)) { return fail_event(r, idx, "no such rank"); }
    if (kind < 0 || (kind < INSTR_COUNT && mb < 0)) {
        return fail_event(r, idx, "no such kind of event or microbatch");
    }
    if (!read_int(&begin_ns, args, "begin_ns", 0, MOST_NS) ||
        !read_int(&end_ns, args, "end_ns", begin_ns, MOST_NS)) {
        return fail_event(r, idx, "times that cannot be");
    }
    PlanInstr instr = {.kind = (uint8_t)kind,
                       .chunk = (int16_t)int_or(args, "chunk", 0, INT16_MAX, -1),
                       .peer = (int32_t)int_or(args, "peer", 0, out->P * out->R - 1, -1)};
    PlanMessage message;
    bool is_job = plan_instr_is_job((InstrKind)kind);
    if (is_job && (!plan_has_row(&out->placement, out->P, instr.chunk) ||
                   placement_stage_of(&out->placement, instr.chunk) != rank % out->P)) {
        return fail_event(r, idx, "no such chunk on this rank");
    }
    if (kind < INSTR_COUNT && plan_instr_is_send(kind)) {
        if (!plan_message_of(&message, &out->placement, out->P, &instr)) {
            return fail_event(r, idx, "no such message");
        }
        r->wire_ns[cell(r, PLAN_MESSAGE_KINDS, (int32_t)rank, message.kind, message.row, (int32_t)mb)] =
            planned_ns + 1;
    }
    if (!is_job && kind != TRACE_REDUCE) { return STATUS_OK; }
    bool is_share = is_job && instr.chunk >= out->placement.num_chunks;
    out->nodes[out->num_nodes++] =
        (TraceNode){.event = {kind, instr.chunk, (int32_t)mb, -1, begin_ns, end_ns,
                              int_or(args, "wait_ns", 0, begin_ns, 0)},
                    .rank = (int32_t)rank,
                    .part = !is_job     ? TRACE_PART_REDUCE
                            : !is_share ? kind
                                        : (kind == INSTR_FWD ? TRACE_JOB_HEAD : TRACE_JOB_HEAD_WEIGHTS),
                    .ns = end_ns - begin_ns,
                    .planned_ns = planned_ns};
    return STATUS_OK;
}

// Process 2 holds the measured events; the others are names, arrows and memory.
static Status read_events(Reader* r, const json_t* events) {
    TraceReplay* out = r->out;
    bool any = false;
    for (size_t i = 0; i < json_array_size(events); i++) {
        const json_t *event = json_array_get(events, i), *args = json_object_get(event, "args");
        const char *phase = json_string_value(json_object_get(event, "ph")),
                   *category = json_string_value(json_object_get(event, "cat"));
        int64_t step;
        if (phase == NULL || strcmp(phase, "X") != 0 || int_or(event, "pid", 0, 9, 0) != 2) { continue; }
        if (!read_int(&step, args, "step", 0, INT32_MAX)) { return fail_event(r, i, "no step"); }
        if (any && step != out->step) { continue; }
        any = true;
        out->step = step;
        if (category != NULL && strcmp(category, "step") == 0) {
            read_step(out, args);
        } else {
            TRY(read_event(r, args, i));
        }
    }
    if (out->num_nodes > 0) { return STATUS_OK; }
    return FAIL(STATUS_BAD_FORMAT, "%s: no step was measured ---> %s", r->path, REMEDY);
}

// --- the graph ---------------------------------------------------------------------------------------------

enum { LEAST_WAIT_NS = 2000 };  // shorter waits are polling only

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

// By their begin, the reductions at the end: no job waits for one.
static int compare_nodes(const void* a, const void* b) {
    const TraceNode *x = a, *y = b;
    bool x_reduces = x->part == TRACE_PART_REDUCE, y_reduces = y->part == TRACE_PART_REDUCE;
    if (x_reduces != y_reduces) { return x_reduces ? 1 : -1; }
    if (x->event.begin_ns != y->event.begin_ns) { return x->event.begin_ns < y->event.begin_ns ? -1 : 1; }
    if (x->event.end_ns != y->event.end_ns) { return x->event.end_ns < y->event.end_ns ? -1 : 1; }
    return (x->rank > y->rank) - (x->rank < y->rank);
}

// The messages of a job, and when the rank turned to it. A message that is made later, by clocks of hosts
// that differ, is left out.
static void add_messages(Reader* r, int32_t n, int64_t* reached_ns) {
    TraceReplay* out = r->out;
    TraceNode* node = &out->nodes[n];
    PlanMessage reads[PLAN_MAX_MESSAGES];
    int32_t num = plan_job_reads(reads, &out->placement, out->P, plan_instr_job((InstrKind)node->event.kind),
                                 node->event.chunk);
    int64_t last_ns = INT64_MIN;
    bool waited = node->event.wait_ns >= LEAST_WAIT_NS;
    node->first_edge = out->num_edges;
    for (int32_t i = 0; i < num; i++) {
        PlanJobAt maker = plan_message_maker(&out->placement, reads[i]);
        int32_t before =
            r->job_at[cell(r, JOB_COUNT, node->rank, maker.kind, maker.chunk, node->event.mb)] - 1;
        if (before < 0 || maker.stage == node->rank % out->P) { continue; }
        out->edges[out->num_edges++] = (TraceEdge){
            before,
            r->wire_ns[cell(r, PLAN_MESSAGE_KINDS, node->rank, reads[i].kind, reads[i].row, node->event.mb)] -
                1,
            0};
        last_ns = larger(last_ns, out->nodes[before].event.end_ns);
        node->num_edges++;
    }
    if (waited && node->num_edges > 0) { *reached_ns -= node->event.wait_ns; }
    for (int32_t e = node->first_edge; e < out->num_edges; e++) {
        TraceEdge* edge = &out->edges[e];
        int64_t made_ns = out->nodes[edge->before].event.end_ns, planned_ns = edge->wire_ns;
        bool is_last = waited && made_ns == last_ns;
        int64_t delay_ns = (is_last ? node->event.begin_ns : *reached_ns) - made_ns;
        edge->wire_ns = planned_ns >= 0 ? smaller(larger(delay_ns, 0), planned_ns) : larger(delay_ns, 0);
        edge->late_ns = is_last || delay_ns < 0 ? delay_ns - edge->wire_ns : 0;
    }
}

// Gradients are reduced when all participants have arrived. The trace does not name them: a reduction that
// ended after everybody's last job may have waited for all.
static Status make_graph(Reader* r, Arena* arena) {
    TraceReplay* out = r->out;
    int64_t origin_ns = INT64_MAX, jobs_end_ns = 0, sum_ns = 0;
    int32_t* last;
    qsort(out->nodes, (size_t)out->num_nodes, sizeof *out->nodes, compare_nodes);
    ARENA_TRY_NEW(last, arena, int32_t, out->P * out->R);
    // One job of a microbatch reads the parts of all shares, others up to two messages.
    ARENA_TRY_NEW(out->edges, arena, TraceEdge,
                  (int64_t)out->num_nodes * 2 + out->R * (int64_t)out->M * out->P);
    for (int32_t i = 0; i < out->P * out->R; i++) { last[i] = -1; }
    for (int32_t n = 0; n < out->num_nodes; n++) {
        TraceNode* node = &out->nodes[n];
        TraceEvent* event = &node->event;
        origin_ns = smaller(origin_ns, event->begin_ns - event->wait_ns);
        if (node->part == TRACE_PART_REDUCE) { continue; }
        jobs_end_ns = larger(jobs_end_ns, event->end_ns);
        int32_t* at = &r->job_at[cell(r, JOB_COUNT, node->rank, plan_instr_job((InstrKind)event->kind),
                                      event->chunk, event->mb)];
        if (*at != 0) {
            return FAIL(STATUS_BAD_FORMAT, "%s: rank %d: %s of microbatch %d is there twice ---> %s", r->path,
                        node->rank, trace_kind_text(event->kind), event->mb, REMEDY);
        }
        *at = n + 1;
        node->gap_ns = event->begin_ns;
        add_messages(r, n, &node->gap_ns);
    }
    for (int32_t n = 0; n < out->num_nodes; n++) {
        TraceNode* node = &out->nodes[n];
        node->previous = last[node->rank];
        last[node->rank] = n;
        int64_t before_ns = node->previous < 0 ? origin_ns : out->nodes[node->previous].event.end_ns;
        if (node->part == TRACE_PART_REDUCE) {
            node->gap_ns = larger(node->event.begin_ns, before_ns);
            node->event.end_ns = larger(node->event.end_ns, node->gap_ns);
            node->waits_for_all = node->event.end_ns >= jobs_end_ns;
            node->ns =
                node->event.end_ns - (node->waits_for_all ? larger(node->gap_ns, jobs_end_ns) : node->gap_ns);
        }
        node->gap_ns -= before_ns;
        out->measured_ns = larger(out->measured_ns, node->event.end_ns - origin_ns);
        sum_ns += llabs(node->gap_ns) + node->ns + larger(node->planned_ns, 0);
        for (int32_t e = node->first_edge; e < node->first_edge + node->num_edges; e++) {
            sum_ns += out->edges[e].wire_ns + llabs(out->edges[e].late_ns);
        }
        if (sum_ns > 4 * MOST_NS) {  // even a hundred times slower, sums stay far from 64 bits
            return FAIL(STATUS_BAD_FORMAT, "%s: its events take more than weeks ---> %s", r->path, REMEDY);
        }
    }
    return STATUS_OK;
}

// --- a run with changes
// --------------------------------------------------------------------------------------

// All zero: none.
typedef struct {
    double link;                // factor on the speed of messages; 0: unchanged
    const double* rank_speeds;  // [num_ranks] factors on the speed of jobs; NULL: unchanged
    const double* ratios;       // [num_ranks * kinds of jobs] jobs take these times what was planned
    bool as_planned;            // every job takes its planned time
    bool no_late;               // messages begin to move at once
} Change;

static int64_t divided(int64_t ns, double by) {
    return by > 0 ? (int64_t)((double)ns / by + 0.5) : ns;
}

static int64_t changed_ns(const TraceNode* node, const Change* change) {
    int64_t ns = node->ns;
    if (node->part == TRACE_PART_REDUCE) { return ns; }
    if (node->planned_ns > 0 && change->ratios != NULL) {
        ns =
            (int64_t)((double)node->planned_ns * change->ratios[node->rank * TRACE_PARTS + node->part] + 0.5);
    }
    if (node->planned_ns >= 0 && change->as_planned) { ns = node->planned_ns; }
    return divided(ns, change->rank_speeds != NULL ? change->rank_speeds[node->rank] : 0);
}

// Fills begin_ns, end_ns and because of the nodes; returns the node that ends last.
static int32_t run_graph(TraceReplay* replay, const Change* change) {
    TraceNode* nodes = replay->nodes;
    int32_t last = 0, last_job = -1;
    for (int32_t n = 0; n < replay->num_nodes; n++) {
        TraceNode* node = &nodes[n];
        node->begin_ns = (node->previous < 0 ? 0 : nodes[node->previous].end_ns) + node->gap_ns;
        node->because = node->previous;
        node->because_edge = -1;
        for (int32_t e = node->first_edge; e < node->first_edge + node->num_edges; e++) {
            const TraceEdge* edge = &replay->edges[e];
            int64_t late_ns = change->no_late ? smaller(edge->late_ns, 0) : edge->late_ns;
            int64_t came_ns = nodes[edge->before].end_ns + divided(edge->wire_ns, change->link) + late_ns;
            if (came_ns <= node->begin_ns) { continue; }
            node->begin_ns = came_ns;
            node->because = edge->before;
            node->because_edge = e;
        }
        if (node->waits_for_all && last_job >= 0 && nodes[last_job].end_ns > node->begin_ns) {
            node->begin_ns = nodes[last_job].end_ns;
            node->because = last_job;
        }
        node->end_ns = node->begin_ns + changed_ns(node, change);
        bool is_later = last_job < 0 || node->end_ns > nodes[last_job].end_ns;
        if (node->part != TRACE_PART_REDUCE && is_later) { last_job = n; }
        if (node->end_ns > nodes[last].end_ns) { last = n; }
    }
    return last;
}

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// Of measured to planned time, over a rank's jobs of a kind; 1: no job has a plan.
static double median_ratio(const TraceReplay* replay, int32_t rank, int32_t kind, double* room) {
    int32_t count = 0;
    for (int32_t n = 0; n < replay->num_nodes; n++) {
        const TraceNode* node = &replay->nodes[n];
        if (node->rank != rank || node->part != kind || node->planned_ns <= 0) { continue; }
        room[count++] = (double)node->ns / (double)node->planned_ns;
    }
    if (count == 0) { return 1; }
    qsort(room, (size_t)count, sizeof *room, compare_doubles);
    return fmin(fmax((room[(count - 1) / 2] + room[count / 2]) / 2, 0.1), 10);  // beyond: not that plan's
}

// "2x": a factor of 0.01 to 100, multiplied with earlier ones in the row; the product has the same range.
static bool take_factor(double* product, const char* text) {
    char* end;
    double factor = strtod(text, &end);
    if (end == text || strcmp(end, "x") != 0 || !(factor >= 0.01 && factor <= 100)) { return false; }
    *product *= factor;
    return *product >= 0.01 && *product <= 100;
}

static bool parse_change(Change* change, double* speeds, const double* ratios, const char* text,
                         int32_t num_ranks) {
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
    bool jitter = strcmp(text, "jitter=0") == 0, planned = strcmp(text, "jobs=planned") == 0,
         late = strcmp(text, "late=0") == 0;
    if (jitter) { change->ratios = ratios; }
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

static Status add_rows(TraceReplay* replay, const char* what_if, Arena* arena) {
    int32_t num_ranks = replay->P * replay->R;
    double *speeds, *ratios, *room;
    char* rows;
    ARENA_TRY_NEW(speeds, arena, double, num_ranks);
    ARENA_TRY_NEW(ratios, arena, double, num_ranks* TRACE_PARTS);
    ARENA_TRY_NEW(room, arena, double, replay->num_nodes);
    ARENA_TRY_NEW(rows, arena, char, strlen(what_if) + 1);
    memcpy(rows, what_if, strlen(what_if) + 1);
    for (int32_t i = 0; i < num_ranks * TRACE_PARTS && strstr(what_if, "jitter") != NULL; i++) {
        ratios[i] = median_ratio(replay, i / TRACE_PARTS, i % TRACE_PARTS, room);
    }
    for (char* row; (row = take_part(&rows, ',')) != NULL;) {
        Change change = {0};
        if (replay->num_rows == TRACE_MAX_ROWS) {
            return FAIL(STATUS_BAD_OPTION, "--what-if: more than %d rows ---> ask in several calls",
                        TRACE_MAX_ROWS);
        }
        snprintf(replay->rows[replay->num_rows].name, sizeof replay->rows->name, "%s", row);
        for (int32_t r = 0; r < num_ranks; r++) { speeds[r] = 1; }
        for (char* part; (part = take_part(&row, '+')) != NULL;) {
            if (parse_change(&change, speeds, ratios, part, num_ranks)) { continue; }
            return FAIL(
                STATUS_BAD_OPTION,
                "--what-if %.60s ---> link=2x, rank=RANK:1.5x (ranks 0 to %d), jitter=0, jobs=planned "
                "or late=0; factors, and the product of several of a link or rank, 0.01x to 100x; + "
                "joins changes, a comma begins another row",
                part, num_ranks - 1);
        }
        int32_t last = run_graph(replay, &change);
        replay->rows[replay->num_rows++].ns = replay->nodes[last].end_ns;
    }
    (void)run_graph(replay, &(Change){0});  // for the drawing
    return STATUS_OK;
}

// --- the whole ---------------------------------------------------------------------------------------------

static bool is_job(const TraceNode* node) {
    return node->part < TRACE_PART_WIRE;
}

static Status find_path(TraceReplay* replay, Arena* arena) {
    int32_t last = run_graph(replay, &(Change){0}), num = 0;
    replay->replayed_ns = replay->nodes[last].end_ns;
    for (int32_t n = last; n >= 0; n = replay->nodes[n].because) { num++; }
    ARENA_TRY_NEW(replay->path, arena, int32_t, num);
    replay->path_nodes = num;
    for (int32_t n = last; n >= 0; n = replay->nodes[n].because) {
        const TraceNode* node = &replay->nodes[n];
        replay->path[--num] = n;
        replay->part_ns[node->part] += node->ns;
        if (node->because_edge >= 0) {
            replay->part_ns[TRACE_PART_WIRE] += replay->edges[node->because_edge].wire_ns;
            replay->part_ns[TRACE_PART_LATE] += replay->edges[node->because_edge].late_ns;
        } else if (node->because == node->previous) {
            replay->part_ns[TRACE_PART_BETWEEN] += node->gap_ns;
        }
        if (!is_job(node)) { continue; }
        replay->rank_jobs_ns[node->rank] += node->ns;
        replay->late_jobs_ns += node->planned_ns >= 0 ? node->ns - node->planned_ns : 0;
    }
    return STATUS_OK;
}

static Status make(TraceReplay* out, const json_t* root, const char* path, const char* what_if,
                   Arena* arena) {
    Reader reader = {.out = out, .path = path};
    char usual[96];
    TRY(read_head(&reader, root, arena));
    TRY(read_events(&reader, json_object_get(root, "traceEvents")));
    TRY(make_graph(&reader, arena));
    TRY(find_path(out, arena));
    if (what_if == NULL) {
        int32_t busiest = 0;
        for (int32_t r = 1; r < out->P * out->R; r++) {
            if (out->rank_jobs_ns[r] > out->rank_jobs_ns[busiest]) { busiest = r; }
        }
        snprintf(usual, sizeof usual, "link=2x,late=0,jitter=0,jobs=planned,jobs=planned+late=0,rank=%d:1.2x",
                 busiest);
        what_if = usual;
    }
    return add_rows(out, what_if, arena);
}

Status trace_replay_make(TraceReplay* out, const char* path, const char* what_if, Arena* arena) {
    char* text;
    size_t num_bytes;
    json_error_t error;
    *out = (TraceReplay){0};
    TRY(file_read_text(&text, &num_bytes, path));
    json_t* root = json_loadb(text, num_bytes, 0, &error);
    free(text);
    if (root == NULL) {
        return FAIL(STATUS_BAD_FORMAT, "%s:%d: %s ---> %s", path, error.line, error.text, REMEDY);
    }
    Status status = make(out, root, path, what_if, arena);
    json_decref(root);
    return status;
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
                                                    [TRACE_PART_BETWEEN] = "between jobs of a rank",
                                                    [TRACE_PART_REDUCE] = "gradient reduction"};

static double percent(int64_t ns, int64_t of_ns) {
    return of_ns > 0 ? 100 * (double)ns / (double)of_ns : 0;
}

static void print_head(const TraceReplay* replay, FILE* out) {
    const SessionErrors* errors = &replay->errors;
    int64_t measured_ns = replay->measured_ns, predicted_ns = errors->predicted_ns;
    fprintf(out, "step %lld, plan %s (%s, %s), %d stages x %d replicas\n", (long long)replay->step,
            replay->plan_hash, replay->policy, replay->schedule, replay->P, replay->R);
    fprintf(out, "measured %s, replayed %s (%+.2f%%)\n", TIME_TEXT(measured_ns, 6),
            TIME_TEXT(replay->replayed_ns, 6), percent(replay->replayed_ns - measured_ns, measured_ns));
    if (replay->has_errors) {
        fprintf(out,
                "predicted %s, took %+.1f%%: jobs %+.1f%%, transfers %+.1f%%, waiting %+.1f%% "
                "(with planning)\n",
                TIME_TEXT(predicted_ns, 6), percent(errors->measured_ns - predicted_ns, predicted_ns),
                percent(errors->jobs_ns, predicted_ns), percent(errors->transfers_ns, predicted_ns),
                percent(errors->waiting_ns, predicted_ns));
    }
    if (replay->clock_error_ns > 0) {
        fprintf(out, "clocks of hosts agree within %s\n", TIME_TEXT(replay->clock_error_ns, 3));
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
    for (int32_t i = 0; i < TRACE_PARTS + replay->P * replay->R; i++) {
        char name[32];
        int64_t ns = path_part(name, replay, i);
        if (ns == 0) { continue; }
        fprintf(out, "%-26s %11.3f %6.1f%%\n", name, (double)ns / 1e6, percent(ns, replay->replayed_ns));
    }
    fprintf(out, "jobs on it took %s%s more than planned\n", replay->late_jobs_ns > 0 ? "+" : "",
            TIME_TEXT(replay->late_jobs_ns, 4));
    fprintf(out, "\n%-26s %11s %7s\n", "what if", "ms", "step");
    for (int32_t i = 0; i < replay->num_rows; i++) {
        int64_t ns = replay->rows[i].ns;
        fprintf(out, "%-26s %11.3f %+6.1f%%\n", replay->rows[i].name, (double)ns / 1e6,
                percent(ns - replay->replayed_ns, replay->replayed_ns));
    }
    fprintf(out, "link: messages so many times as fast; rank: that rank; late=0: no message begins late;\n"
                 "jitter=0: every job the median of its rank and kind; jobs=planned: as planned\n");
}

// --- values for the page ----------------------------------------------------------------------------------

// Times in ns; planned -1: unknown. The piece is "" where each rank has one chunk.
static json_t* job_json(const TraceReplay* replay, const TraceNode* node) {
    char piece[32] = "";
    if (node->part >= TRACE_JOB_HEAD) {
        snprintf(piece, sizeof piece, "head");
    } else if (replay->placement.num_chunks > replay->P || replay->placement.head != HEAD_WHOLE) {
        snprintf(piece, sizeof piece, "chunk %d", node->event.chunk);
    }
    return json_pack("[i,i,I,I,I,i,s,s]", node->rank, node->part, (json_int_t)node->begin_ns,
                     (json_int_t)node->ns, (json_int_t)node->planned_ns, node->event.mb, piece,
                     trace_kind_text(node->event.kind));
}

json_t* trace_replay_json(const TraceReplay* replay) {
    const SessionErrors* errors = &replay->errors;
    json_t *jobs = json_array(), *path = json_array(), *parts = json_array(), *rows = json_array();
    for (int32_t n = 0; n < replay->num_nodes; n++) {
        if (is_job(&replay->nodes[n])) { json_array_append_new(jobs, job_json(replay, &replay->nodes[n])); }
    }
    for (int32_t k = 0; k < replay->path_nodes; k++) {
        const TraceNode* node = &replay->nodes[replay->path[k]];
        if (is_job(node)) { json_array_append_new(path, job_json(replay, node)); }
    }
    for (int32_t i = 0; i < TRACE_PARTS + replay->P * replay->R; i++) {
        char name[32];
        int64_t ns = path_part(name, replay, i);
        if (ns != 0) { json_array_append_new(parts, json_pack("[s,I]", name, (json_int_t)ns)); }
    }
    for (int32_t i = 0; i < replay->num_rows; i++) {
        json_array_append_new(rows, json_pack("[s,I]", replay->rows[i].name, (json_int_t)replay->rows[i].ns));
    }
    json_t* out = json_pack("{s:I, s:i, s:I, s:I, s:o, s:o, s:o, s:o}", "step", (json_int_t)replay->step,
                            "num_ranks", replay->P * replay->R, "measured_ns",
                            (json_int_t)replay->measured_ns, "replayed_ns", (json_int_t)replay->replayed_ns,
                            "jobs", jobs, "path", path, "parts", parts, "what_if", rows);
    if (!replay->has_errors) { return out; }
    json_object_set_new(out, "errors",
                        json_pack("{s:I, s:I, s:I, s:I, s:I}", "predicted_ns",
                                  (json_int_t)errors->predicted_ns, "measured_ns",
                                  (json_int_t)errors->measured_ns, "jobs_ns", (json_int_t)errors->jobs_ns,
                                  "transfers_ns", (json_int_t)errors->transfers_ns, "waiting_ns",
                                  (json_int_t)errors->waiting_ns));
    return out;
}
