// trace_graph.c -- the graph of a measured step: events in a chain per rank, messages between the chains.
#include "trace_graph.h"

#include <stdlib.h>
#include <string.h>

#include "../dynapipe_plugin/plan/lists/plan_words.h"

// A wait shorter than that is the look itself; a message that was seen so soon behind a job was seen by it.
enum { LEAST_WAIT_NS = 2000, LOOK_NS = 50000 };

typedef struct {
    int64_t end_ns;
    int32_t node;
} JobEnd;

typedef struct {
    const TraceFile* trace;
    TraceGraph* graph;
    bool behind_jobs;  // messages may have to wait for jobs
    int64_t origin_ns;
    int64_t* measured_ns;           // [num_nodes] end of a node as measured, from the origin
    int32_t* node_at;               // [ranks * INSTR_COUNT * M] of an event; 0: none
    const TraceEvent** event;       // [num_nodes] of a node; NULL: a message
    JobEnd** jobs;                  // [ranks][num_jobs] by their end
    int32_t *num_jobs, *chain_end;  // [ranks]; chain_end: the last node but reductions
} Maker;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static int32_t* node_at(const Maker* maker, int32_t rank, int32_t kind, int32_t mb) {
    return &maker->node_at[((int64_t)rank * INSTR_COUNT + kind) * maker->trace->M + mb];
}

static bool is_counted(const TraceEvent* event) {
    return event->kind <= TRACE_REDUCE;
}

static TraceNodeKind node_kind(int32_t kind) {
    return kind <= INSTR_REC                                   ? NODE_JOB
           : kind == INSTR_WAIT_ACT || kind == INSTR_WAIT_GRAD ? NODE_WAIT
           : kind == TRACE_REDUCE                              ? NODE_REDUCE
                                                               : NODE_POST;
}

// When the rank came to it, and when it went on.
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
    maker->graph->nodes[n] = (TraceNode){.kind = (uint8_t)kind, .rank = rank, .mb = mb, .planned_ns = -1};
    return &maker->graph->nodes[n];
}

static int32_t index_of(const Maker* maker, const TraceNode* node) {
    return (int32_t)(node - maker->graph->nodes);
}

static void wait_for(TraceNode* node, int32_t before) {
    if (node->num_before < TRACE_MAX_BEFORE) { node->before[node->num_before++] = before; }
}

// --- chains ------------------------------------------------------------------------------------------------

static Status add_rank(Maker* maker, int32_t rank) {
    const TraceFileRank* list = &maker->trace->ranks[rank];
    int32_t before = 0;  // posts hang on the chain, and do not hold it up
    for (int32_t i = 0; i < list->num_events; i++) {
        const TraceEvent* event = &list->events[i].event;
        if (!is_counted(event) || event->kind == TRACE_REDUCE) { continue; }
        TraceNodeKind kind = node_kind(event->kind);
        if (*node_at(maker, rank, event->kind, event->mb) != 0) {
            return FAIL(STATUS_BAD_FORMAT,
                        "rank %d: %s of micro-batch %d is there twice ---> give a file that the trainer's "
                        "--trace wrote",
                        rank, trace_kind_text(event->kind), event->mb);
        }
        TraceNode* node = add_node(maker, kind, rank, event->mb, event_end_ns(event) - maker->origin_ns);
        node->event_kind = (uint8_t)event->kind;
        node->planned_ns = list->events[i].planned_ns;
        node->gap_ns = event_start_ns(event) - maker->origin_ns - maker->measured_ns[before];
        if (kind != NODE_POST) { node->gap_ns = larger(node->gap_ns, 0); }
        if (kind == NODE_JOB) { node->ns = event->end_ns - event->begin_ns; }
        if (kind == NODE_WAIT) { node->ns = event->end_ns - event->begin_ns; }
        wait_for(node, before);
        int32_t n = index_of(maker, node);
        maker->event[n] = event;
        *node_at(maker, rank, event->kind, event->mb) = n;
        if (kind != NODE_POST) { before = n; }
    }
    maker->chain_end[rank] = before;
    return STATUS_OK;
}

// Gradients are summed when all that take part have come. Who does is not in the trace: a reduction that
// ended behind everybody's last job may have waited for them all.
static void add_reductions(Maker* maker) {
    int32_t all = 0;
    int64_t all_ns = 0;
    for (int32_t r = 0; r < maker->graph->num_ranks; r++) {
        TraceNode* node = add_node(maker, NODE_REDUCE, r, -1, 0);
        wait_for(node, maker->chain_end[r]);
        wait_for(node, all);
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
            wait_for(node, before);
            if (end_ns >= all_ns) {
                wait_for(node, all);
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

// Takes from what it waits for until `until`, where somebody waited for it; else as planned, and no longer.
static void set_duration(Maker* maker, TraceNode* node, int64_t until_ns, bool waited) {
    int64_t from_ns = 0;
    for (int32_t k = 0; k < node->num_before; k++) {
        from_ns = larger(from_ns, maker->measured_ns[node->before[k]]);
    }
    int64_t took_ns = larger(until_ns - from_ns, 0);
    node->ns = node->planned_ns >= 0 ? smaller(took_ns, node->planned_ns) : took_ns;
    node->late_ns = waited ? took_ns - node->ns : 0;
}

// Posted by both at `posted`, there at `until`: right behind a job of this rank, which then looked?
static void wait_for_job(Maker* maker, TraceNode* node, int32_t rank, int64_t posted_ns, int64_t until_ns) {
    int64_t look_ns = larger(2 * node->planned_ns, LOOK_NS);
    if (!maker->behind_jobs || until_ns - posted_ns <= look_ns) { return; }
    int32_t job = job_ending_in(maker, rank, posted_ns, until_ns);
    if (job != 0 && until_ns - maker->measured_ns[job] <= look_ns) { wait_for(node, job); }
}

static void add_message(Maker* maker, int32_t send, int32_t recv, int32_t reader) {
    const TraceNode *from = &maker->graph->nodes[send], *to = &maker->graph->nodes[reader];
    const TraceEvent *got = maker->event[recv], *read = maker->event[reader];
    bool waited = read->wait_ns >= LEAST_WAIT_NS;
    int64_t came_ns = smaller(got->end_ns, event_start_ns(read)) - maker->origin_ns;
    int64_t until_ns = waited ? read->begin_ns - maker->origin_ns : came_ns;
    int64_t posted_ns = larger(maker->measured_ns[send], maker->measured_ns[recv]);
    TraceNode* node = add_node(maker, NODE_MESSAGE, to->rank, to->mb, 0);
    node->event_kind = maker->graph->nodes[recv].event_kind;
    node->planned_ns = from->planned_ns;
    node->num_posts = 2;
    wait_for(node, send);
    wait_for(node, recv);
    wait_for_job(maker, node, from->rank, posted_ns, until_ns);
    wait_for_job(maker, node, to->rank, posted_ns, until_ns);
    set_duration(maker, node, until_ns, waited);
    maker->measured_ns[index_of(maker, node)] = until_ns;
    wait_for(&maker->graph->nodes[reader], index_of(maker, node));
}

// A send that was through before the receive was posted did not wait for it.
static void add_release(Maker* maker, int32_t send, int32_t recv, int32_t wait) {
    const TraceEvent *sent = maker->event[send], *waits = maker->event[wait];
    bool waited = waits->end_ns - waits->begin_ns >= LEAST_WAIT_NS;
    int64_t until_ns = (waited ? waits->end_ns : smaller(sent->end_ns, waits->begin_ns)) - maker->origin_ns;
    int64_t posted_ns = maker->measured_ns[send];
    TraceNode* node =
        add_node(maker, NODE_RELEASE, maker->graph->nodes[send].rank, maker->graph->nodes[send].mb, until_ns);
    node->event_kind = maker->graph->nodes[send].event_kind;
    node->planned_ns = maker->graph->nodes[send].planned_ns;
    wait_for(node, send);
    if (maker->measured_ns[recv] <= until_ns) {
        wait_for(node, recv);
        posted_ns = larger(posted_ns, maker->measured_ns[recv]);
    }
    node->num_posts = node->num_before;
    wait_for_job(maker, node, maker->graph->nodes[recv].rank, posted_ns, until_ns);
    set_duration(maker, node, until_ns, waited);
    if (waited) { maker->graph->nodes[wait].ns = 0; }
    wait_for(&maker->graph->nodes[wait], index_of(maker, node));
}

static void add_messages(Maker* maker) {
    int32_t P = maker->trace->P, num_events = maker->graph->num_nodes;
    for (int32_t n = 1; n < num_events; n++) {
        const TraceNode* send = &maker->graph->nodes[n];
        bool is_grad = send->event_kind == INSTR_SEND_GRAD;
        if (send->kind != NODE_POST || (!is_grad && send->event_kind != INSTR_SEND_ACT)) { continue; }
        int32_t s = send->rank % P + (is_grad ? -1 : 1), peer = send->rank + (is_grad ? -1 : 1),
                mb = send->mb;
        if (s < 0 || s >= P || *node_at(maker, send->rank, send->event_kind, mb) != n) { continue; }
        int32_t recv = *node_at(maker, peer, is_grad ? INSTR_RECV_GRAD : INSTR_RECV_ACT, mb);
        int32_t reader = *node_at(maker, peer, is_grad ? INSTR_BWD : INSTR_FWD, mb);
        int32_t wait = *node_at(maker, send->rank, is_grad ? INSTR_WAIT_GRAD : INSTR_WAIT_ACT, mb);
        if (recv == 0 || reader == 0) { continue; }
        add_message(maker, n, recv, reader);
        if (wait != 0) { add_release(maker, n, recv, wait); }
    }
}

// --- the whole graph ---------------------------------------------------------------------------------------

Status trace_graph_sort(TraceGraph* graph, Arena* arena) {
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
    if (num_events == 0 || num_ranks * trace->M > 64 * num_events + 4096) {  // tables stay small
        return FAIL(STATUS_BAD_FORMAT, "%lld events of %lld ranks: no step ---> give a whole trace",
                    (long long)num_events, (long long)num_ranks);
    }
    int64_t num_nodes = 1 + 3 * num_events + num_ranks;
    *graph = (TraceGraph){.num_ranks = (int32_t)num_ranks, .num_nodes = 1};
    graph->nodes = ARENA_NEW(arena, TraceNode, num_nodes);
    maker->measured_ns = ARENA_NEW(arena, int64_t, num_nodes);
    maker->event = ARENA_NEW(arena, const TraceEvent*, num_nodes);
    maker->node_at = ARENA_NEW(arena, int32_t, num_ranks * INSTR_COUNT * trace->M);
    maker->jobs = ARENA_NEW(arena, JobEnd*, num_ranks);
    maker->num_jobs = ARENA_NEW(arena, int32_t, num_ranks);
    maker->chain_end = ARENA_NEW(arena, int32_t, num_ranks);
    bool failed = graph->nodes == NULL || maker->measured_ns == NULL || maker->event == NULL ||
                  maker->node_at == NULL || maker->jobs == NULL || maker->num_jobs == NULL ||
                  maker->chain_end == NULL;
    return failed ? FAIL(STATUS_NO_MEMORY, "no memory for a trace of %lld events", (long long)num_events)
                  : STATUS_OK;
}

static Status make(TraceGraph* out, const TraceFile* trace, bool behind_jobs, Arena* arena) {
    Maker maker;
    TRY(maker_init(&maker, trace, out, arena));
    maker.behind_jobs = behind_jobs;
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

// What is added up, a hundred times as slow, stays far from the ends of 64 bits.
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

// Clocks of two hosts that are off may put a message behind the job that it is for: then without such waits.
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
            path.jobs_ns[node->event_kind] += node->ns;
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
