// trace_change.c -- a measured step with something otherwise: other durations, or another order.
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../dynapipe_plugin/plan/lists/plan_words.h"
#include "trace_graph.h"

// --- other durations ---------------------------------------------------------------------------------------

static int64_t divided(int64_t ns, double by) {
    return (int64_t)((double)ns / by + 0.5);
}

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// Of measured to planned, over a rank's jobs of a kind; 1: none has a plan.
static double median_ratio(const TraceGraph* graph, int32_t rank, int32_t kind, double* room) {
    int32_t count = 0;
    for (int32_t n = 1; n < graph->num_nodes; n++) {
        const TraceNode* node = &graph->nodes[n];
        bool is_one = node->kind == NODE_JOB && node->rank == rank && node->event_kind == kind;
        if (is_one && node->planned_ns > 0) { room[count++] = (double)node->ns / (double)node->planned_ns; }
    }
    if (count == 0) { return 1; }
    qsort(room, (size_t)count, sizeof *room, compare_doubles);
    double median = (room[(count - 1) / 2] + room[count / 2]) / 2;
    return fmin(fmax(median, 0.1), 10);  // more is no job of that plan
}

static Status find_ratios(double** out, const TraceGraph* graph, Arena* arena) {
    const int32_t kinds = INSTR_REC + 1;
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
        double ratio = ratios[node->rank * (INSTR_REC + 1) + node->event_kind];
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

typedef struct {
    const TraceGraph* measured;
    const Plan* plan;
    TraceGraph* graph;
    int32_t *was, *is;  // [ranks * INSTR_COUNT * M] node of an event, measured and new; 0: none
    int32_t* message;   // [ranks * INSTR_COUNT * M] of a receive, measured
} Order;

static int64_t cell(const Order* order, int32_t rank, int32_t kind, int32_t mb) {
    return ((int64_t)rank * INSTR_COUNT + kind) * order->plan->M + mb;
}

static Status add_list(Order* order, int32_t rank, int32_t* last) {
    const PlanRank* list = &order->plan->ranks[rank];
    TraceGraph* graph = order->graph;
    int32_t before = 0;
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        int32_t was = order->was[cell(order, rank, instr->kind, instr->mb)];
        bool is_job = plan_instr_is_job((InstrKind)instr->kind);
        if (was == 0 && is_job) {
            return FAIL(
                STATUS_MISMATCH,
                "rank %d: %s mb %d of the plan is not in the trace ---> a plan of the same batch with the "
                "same micro-batches (--dump-plan of that step, its lists in another order)",
                rank, trace_kind_text(instr->kind), instr->mb);
        }
        int32_t n = graph->num_nodes++;
        TraceNode* node = &graph->nodes[n];
        *node = was != 0 ? order->measured->nodes[was]
                         : (TraceNode){.kind = instr->kind == INSTR_WAIT_ACT || instr->kind == INSTR_WAIT_GRAD
                                                   ? NODE_WAIT
                                                   : NODE_POST,
                                       .event_kind = instr->kind,
                                       .rank = rank,
                                       .mb = instr->mb};
        if (node->kind == NODE_WAIT) { node->ns = 0; }
        if (node->gap_ns < 0) { node->gap_ns = 0; }
        node->num_before = 1;
        node->before[0] = before;
        order->is[cell(order, rank, instr->kind, instr->mb)] = n;
        if (node->kind != NODE_POST) { before = n; }
    }
    *last = before;
    return STATUS_OK;
}

// The message of a send, to its reader, and to the wait for its buffer.
static void connect(Order* order, int32_t send) {
    TraceGraph* graph = order->graph;
    const TraceNode from = graph->nodes[send];
    bool is_grad = from.event_kind == INSTR_SEND_GRAD;
    int32_t P = order->plan->P, peer = from.rank + (is_grad ? -1 : 1), s = from.rank % P + (is_grad ? -1 : 1);
    if (s < 0 || s >= P) { return; }
    int32_t recv_kind = is_grad ? INSTR_RECV_GRAD : INSTR_RECV_ACT;
    int32_t recv = order->is[cell(order, peer, recv_kind, from.mb)];
    int32_t reader = order->is[cell(order, peer, is_grad ? INSTR_BWD : INSTR_FWD, from.mb)];
    int32_t wait = order->is[cell(order, from.rank, is_grad ? INSTR_WAIT_GRAD : INSTR_WAIT_ACT, from.mb)];
    int32_t message = order->message[cell(order, peer, recv_kind, from.mb)];
    if (recv == 0 || reader == 0) { return; }
    graph->nodes[graph->num_nodes] = (TraceNode){.kind = NODE_MESSAGE,
                                                 .event_kind = (uint8_t)recv_kind,
                                                 .rank = peer,
                                                 .mb = from.mb,
                                                 .num_before = 2,
                                                 .before = {send, recv},
                                                 .num_posts = 2,
                                                 .planned_ns = -1};
    if (message != 0) { graph->nodes[graph->num_nodes].ns = order->measured->nodes[message].ns; }
    for (int k = 0; k < 2; k++) {
        TraceNode* waits = k == 0 ? &graph->nodes[reader] : &graph->nodes[wait];
        bool waits_for_it = k == 0 || wait != 0;
        if (waits_for_it && waits->num_before < TRACE_MAX_BEFORE) {
            waits->before[waits->num_before++] = graph->num_nodes;
        }
    }
    graph->num_nodes++;
}

static Status order_init(Order* order, TraceGraph* out, const TraceFile* trace, const TraceGraph* measured,
                         const Plan* plan, Arena* arena) {
    if (plan->P != trace->P || plan->R != trace->R || plan->M < trace->M) {
        return FAIL(
            STATUS_MISMATCH,
            "the plan has %d stages, %d replicas, %d micro-batches, the trace %d, %d, %d ---> a plan of the "
            "same batch on the same ranks",
            plan->P, plan->R, plan->M, trace->P, trace->R, trace->M);
    }
    int64_t num_nodes = 1 + (int64_t)measured->num_ranks,
            num_cells = (int64_t)measured->num_ranks * INSTR_COUNT * plan->M;
    for (int32_t r = 0; r < measured->num_ranks; r++) { num_nodes += 2 * (int64_t)plan->ranks[r].num_instrs; }
    *out = (TraceGraph){.num_ranks = measured->num_ranks, .num_nodes = 1};
    out->nodes = ARENA_NEW(arena, TraceNode, num_nodes);
    *order = (Order){.measured = measured, .plan = plan, .graph = out};
    order->was = ARENA_NEW(arena, int32_t, num_cells);
    order->is = ARENA_NEW(arena, int32_t, num_cells);
    order->message = ARENA_NEW(arena, int32_t, num_cells);
    if (out->nodes == NULL || order->was == NULL || order->is == NULL || order->message == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a trace");
    }
    for (int32_t n = 1; n < measured->num_nodes; n++) {
        const TraceNode* node = &measured->nodes[n];
        if (node->event_kind >= INSTR_COUNT || node->mb < 0) { continue; }
        if (node->kind == NODE_RELEASE) { continue; }
        int32_t* table = node->kind == NODE_MESSAGE ? order->message : order->was;
        table[cell(order, node->rank, node->event_kind, node->mb)] = n;
    }
    return STATUS_OK;
}

// Behind everybody's last: what was measured there, sends that end and the reduction.
static void add_tail(TraceGraph* graph, const TraceGraph* measured, const int32_t* last) {
    int64_t jobs_ns = 0;
    for (int32_t n = 1; n < measured->num_nodes; n++) {
        const TraceNode* node = &measured->nodes[n];
        if (node->kind == NODE_JOB && node->end_ns > jobs_ns) { jobs_ns = node->end_ns; }
    }
    int32_t all = 0;
    for (int32_t r = 0; r < graph->num_ranks; r++) {
        graph->nodes[graph->num_nodes] = (TraceNode){.kind = NODE_REDUCE,
                                                     .rank = r,
                                                     .mb = -1,
                                                     .num_before = 2,
                                                     .before = {last[r], all},
                                                     .planned_ns = -1};
        all = graph->num_nodes++;
    }
    graph->nodes[all].ns = measured->nodes[measured->last].end_ns - jobs_ns;
}

Status trace_graph_make_ordered(TraceGraph* out, const TraceFile* trace, const TraceGraph* measured,
                                const Plan* plan, Arena* arena) {
    Order order = {0};
    TRY(order_init(&order, out, trace, measured, plan, arena));
    int32_t* last = ARENA_NEW(arena, int32_t, out->num_ranks);
    if (last == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a trace"); }
    for (int32_t r = 0; r < out->num_ranks; r++) { TRY(add_list(&order, r, &last[r])); }
    int32_t num_events = out->num_nodes;
    for (int32_t n = 1; n < num_events; n++) {
        int32_t kind = out->nodes[n].event_kind;
        if (out->nodes[n].kind == NODE_POST && (kind == INSTR_SEND_ACT || kind == INSTR_SEND_GRAD)) {
            connect(&order, n);
        }
    }
    add_tail(out, measured, last);
    TRY(trace_graph_sort(out, arena));
    trace_graph_run(out);
    return STATUS_OK;
}
