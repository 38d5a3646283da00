#include "replay.h"

#include <stdlib.h>
#include <string.h>
#include "plan_message.h"
#include "plan_text.h"
#include "schedule.h"

// By begin, then by end: what takes no time goes first.
static int32_t compare_times(const PlanInstr* a, const PlanInstr* b) {
    if (a->begin_ns != b->begin_ns) { return a->begin_ns < b->begin_ns ? -1 : 1; }
    return (a->end_ns > b->end_ns) - (a->end_ns < b->end_ns);
}

// Pointers into one list.
static int compare_messages(const void* a, const void* b) {
    const PlanInstr *x = *(const PlanInstr*const*)a, *y = *(const PlanInstr*const*)b;
    int32_t order = compare_times(x, y);
    return order != 0 ? order : (x > y) - (x < y);
}

// Receives by their times.
static Status list_messages(const PlanInstr*** out, int32_t* num, const PlanRank* rank, Arena* arena) {
    const PlanInstr** messages;
    ARENA_TRY_NEW(messages, arena, const PlanInstr*, rank->num_instrs);
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        bool takes =
            instr->kind == INSTR_RECV_ACT || instr->kind == INSTR_RECV_GRAD || instr->kind == INSTR_RECV_FACT;
        if (takes) { messages[(*num)++] = instr; }
    }
    qsort(messages, (size_t)*num, sizeof *messages, compare_messages);
    *out = messages;
    return STATUS_OK;
}

Status stage_order(StageOrder* out, const Plan* plan, const PlanRank* rank, Arena* arena) {
    const PlanInstr** messages = NULL;
    int32_t num_messages = 0, next = 0;
    if (plan->pulls) { TRY(list_messages(&messages, &num_messages, rank, arena)); }
    out->num = 0;
    ARENA_TRY_NEW(out->instrs, arena, int32_t, rank->num_instrs);
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* job = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)job->kind)) { continue; }
        while (next < num_messages && compare_times(messages[next], job) <= 0) {
            out->instrs[out->num++] = (int32_t)(messages[next++] - rank->instrs);
        }
        out->instrs[out->num++] = i;
    }
    while (next < num_messages) { out->instrs[out->num++] = (int32_t)(messages[next++] - rank->instrs); }
    return STATUS_OK;
}

// --- replay_graph --------------------
// replay_graph.c -- makes the graph once, then walks it for pairs of trials.

// All durations of a replica together: a hundred times as slow and 1.95 times as long they still fit in 63
// bits.
#define MOST_NS (INT64_MAX / 400)

// Fixed point of the noise: a factor of 1 is 2^20.
enum { FACTOR_BITS = 20, MOST_FACTOR = (1 << FACTOR_BITS) / 20 * 19 };

typedef struct {
    const ReplayLists* lists;
    ReplayGraph* graph;
    int32_t num_rows;
    int32_t* job_node[JOB_COUNT];               // [rows * M]; 0: not there yet
    int32_t* arrival_node[PLAN_MESSAGE_KINDS];  // [rows * M] the transfer of this message; 0: not there yet
    int32_t*
        item_node[PLAN_MAX_STAGES];  // [num_items] of a stage's sequence: jobs or, with `pulls`, messages
    int32_t pos[PLAN_MAX_STAGES], last_item[PLAN_MAX_STAGES];
    int32_t pos_send[PLAN_MAX_STAGES], last_send[PLAN_MAX_STAGES];
    int64_t sum_ns;
} Maker;

static int64_t cell_of(const Maker* maker, int32_t row, int32_t m) {
    return (int64_t)row * maker->lists->M + m;
}

// What it is called where durations are drawn: a job by its row, a message by the row that it comes from.
static uint64_t key_of(const Maker* maker, const ReplayItem* item) {
    bool from_before = item->kind == REPLAY_SEND_ACT && item->chunk < maker->lists->placement->num_chunks;
    int32_t row = from_before ? item->chunk - 1 : item->chunk;
    return ((uint64_t)row << 40 | (uint64_t)item->mb << 8 | item->kind) * 0x9e3779b97f4a7c15u;
}

// s: of a transfer, the sender.
static int32_t add_node(Maker* maker, int32_t s, const ReplayItem* item, int32_t before, int32_t input) {
    ReplayGraph* graph = maker->graph;
    bool is_job = item->kind < JOB_COUNT;
    graph->nodes[graph->num_nodes] = (ReplayNode){
        .before = {before, input},
        .lane = is_job ? s : graph->P + s,
        .ns = item->ns,
        .key = key_of(maker, item),
    };
    return graph->num_nodes++;
}

// The node behind these two, either of them 0: none.
static int32_t join(Maker* maker, int32_t s, int32_t a, int32_t b) {
    if (a == 0 || b == 0) { return a + b; }
    maker->graph->nodes[maker->graph->num_nodes] = (ReplayNode){.before = {a, b}, .lane = s};
    return maker->graph->num_nodes++;
}

// *input: the node behind all that the job reads from other stages; 0: nothing. False: some of it is not
// there yet.
static bool find_input(Maker* maker, int32_t s, const ReplayItem* item, int32_t* input) {
    const ReplayLists* lists = maker->lists;
    PlanMessage reads[PLAN_MAX_MESSAGES];
    int32_t arrivals[PLAN_MAX_MESSAGES], num_arrivals = 0;
    int32_t num = plan_job_reads(reads, lists->placement, lists->P, (JobKind)item->kind, item->chunk);
    for (int32_t i = 0; i < num; i++) {
        PlanJobAt made = plan_message_maker(lists->placement, reads[i]);
        bool is_here = made.stage == s;
        int32_t node = is_here ? maker->job_node[made.kind][cell_of(maker, made.chunk, item->mb)]
                               : maker->arrival_node[reads[i].kind][cell_of(maker, reads[i].row, item->mb)];
        if (node == 0) { return false; }
        if (!is_here) { arrivals[num_arrivals++] = node; }
    }
    *input = 0;
    for (int32_t i = 0; i < num_arrivals; i++) { *input = join(maker, s, *input, arrivals[i]); }
    return true;
}

// False: its input is not there yet.
static bool add_job(Maker* maker, int32_t s, const ReplayItem* item) {
    int32_t input;
    if (!find_input(maker, s, item, &input)) { return false; }
    int32_t node = add_node(maker, s, item, maker->last_item[s], input);
    maker->last_item[s] = maker->graph->last_job[s] = node;
    maker->job_node[item->kind][cell_of(maker, item->chunk, item->mb)] = node;
    return true;
}

static PlanMessage message_of(const ReplayItem* item) {
    return (PlanMessage){(uint8_t)(item->kind - JOB_COUNT), item->chunk};
}

static int32_t* arrival_of(Maker* maker, const ReplayItem* item) {
    return &maker->arrival_node[item->kind - JOB_COUNT][cell_of(maker, item->chunk, item->mb)];
}

// The job that makes what this item transfers; 0: it is not there yet.
static int32_t maker_node(const Maker* maker, const ReplayItem* item, int32_t* stage) {
    PlanJobAt made = plan_message_maker(maker->lists->placement, message_of(item));
    *stage = made.stage;
    return maker->job_node[made.kind][cell_of(maker, made.chunk, item->mb)];
}

// A message that stage s takes. False: the job that makes it is not there yet.
static bool add_message(Maker* maker, int32_t s, const ReplayItem* item) {
    int32_t sender, job = maker_node(maker, item, &sender);
    if (job == 0) { return false; }
    maker->last_item[s] = add_node(maker, sender, item, maker->last_item[s], job);
    *arrival_of(maker, item) = maker->last_item[s];
    return true;
}

static Status check_ns(const Maker* maker, int32_t s, const ReplayItem* item) {
    if (item->ns >= 0 && item->ns <= MOST_NS - maker->sum_ns) { return STATUS_OK; }
    return FAIL(STATUS_OUT_OF_RANGE, "stage %d, micro-batch %d: takes %lld ns ---> times of 0 ns up to days",
                s, item->mb, (long long)item->ns);
}

static Status add_item(Maker* maker, int32_t s, const ReplayItem* item, bool* added) {
    TRY(check_ns(maker, s, item));
    *added = item->kind < JOB_COUNT ? add_job(maker, s, item) : add_message(maker, s, item);
    if (!*added) { return STATUS_OK; }
    maker->item_node[s][maker->pos[s]] = maker->last_item[s];
    maker->sum_ns += item->ns;
    return STATUS_OK;
}

// A transfer whose job and whose receiver's post are there.
static Status add_send(Maker* maker, int32_t s, const ReplaySend* send, int32_t posted) {
    const ReplayItem* item = &send->item;
    int32_t sender, job = maker_node(maker, item, &sender);
    if (sender != s || job == 0 || send->sent == 0 || job > maker->item_node[s][send->sent - 1]) {
        return FAIL(STATUS_INVALID_PLAN,
                    "stage %d, micro-batch %d: sends what it has not computed ---> check the plan", s,
                    item->mb);
    }
    TRY(check_ns(maker, s, item));
    int32_t node = add_node(maker, s, item, join(maker, s, maker->last_send[s], posted), job);
    maker->last_send[s] = *arrival_of(maker, item) = node;
    maker->sum_ns += item->ns;
    return STATUS_OK;
}

// The link of stage s, which its jobs do not wait for.
static Status advance_link(Maker* maker, int32_t s, bool* moved) {
    const ReplayLists* lists = maker->lists;
    for (; maker->pos_send[s] < lists->num_sends[s]; maker->pos_send[s]++) {
        const ReplaySend* send = &lists->sends[s][maker->pos_send[s]];
        int32_t to = plan_message_reader(lists->placement, message_of(&send->item)).stage;
        if (maker->pos[s] < send->sent || maker->pos[to] < send->posted) { break; }
        TRY(add_send(maker, s, send, send->posted > 0 ? maker->item_node[to][send->posted - 1] : 0));
        *moved = true;
    }
    return STATUS_OK;
}

// The next item waits: of those at the same instant another may not. Jobs keep their order.
static Status add_of_instant(Maker* maker, int32_t s, bool* added) {
    ReplayItem* items = maker->lists->items[s] + maker->pos[s];
    int32_t num = maker->lists->num_items[s] - maker->pos[s];
    bool job_waits = items[0].kind < JOB_COUNT;
    for (int32_t i = 1; i < num && items[0].instant_ns >= 0 && items[i].instant_ns == items[0].instant_ns;
         i++) {
        ReplayItem item = items[i];
        if (item.kind < JOB_COUNT && job_waits) { continue; }
        TRY(add_item(maker, s, &item, added));
        if (*added) {
            memmove(items + 1, items, (size_t)i * sizeof *items);
            items[0] = item;
            return STATUS_OK;
        }
        job_waits |= item.kind < JOB_COUNT;
    }
    return STATUS_OK;
}

// As far as stage s comes. Says whether it came any further.
static Status advance(Maker* maker, int32_t s, bool* moved) {
    const ReplayLists* lists = maker->lists;
    for (; maker->pos[s] < lists->num_items[s]; maker->pos[s]++) {
        bool added = false;
        TRY(add_item(maker, s, &lists->items[s][maker->pos[s]], &added));
        if (!added) { TRY(add_of_instant(maker, s, &added)); }
        if (!added) { break; }
        *moved = true;
    }
    return advance_link(maker, s, moved);
}

// Room for them: a transfer has one; what combines the parts of a shared head reads one of every share.
static int64_t count_joins(const ReplayLists* lists) {
    int64_t num = 0;
    for (int32_t s = 0; s < lists->P; s++) { num += lists->num_sends[s]; }
    for (int32_t s = 0; s < lists->P && lists->placement->head != HEAD_WHOLE; s++) {
        for (int32_t i = 0; i < lists->num_items[s]; i++) {
            const ReplayItem* item = &lists->items[s][i];
            num += item->kind == JOB_B && item->chunk == lists->placement->num_chunks - 1 ? lists->P : 0;
        }
    }
    return num;
}

static Status replay_graph_make(ReplayGraph* out, const ReplayLists* lists, Arena* arena) {
    ReplayGraph graph = {.P = lists->P, .num_nodes = 1};
    Maker maker = {.lists = lists, .graph = &graph};
    maker.num_rows = placement_num_rows(lists->placement, lists->P);
    int64_t num_nodes = 1 + count_joins(lists), num_cells = (int64_t)maker.num_rows * lists->M;
    for (int32_t s = 0; s < lists->P; s++) {
        num_nodes += lists->num_items[s] + lists->num_sends[s];
        graph.tail_ns[s] = lists->tail_ns[s];
    }
    if (num_nodes > INT32_MAX) {
        return FAIL(STATUS_OUT_OF_RANGE, "replay: too many jobs ---> a smaller plan");
    }
    ARENA_TRY_NEW(graph.nodes, arena, ReplayNode, num_nodes);
    for (int32_t i = 0; i < JOB_COUNT; i++) { ARENA_TRY_NEW(maker.job_node[i], arena, int32_t, num_cells); }
    for (int32_t i = 0; i < PLAN_MESSAGE_KINDS; i++) {
        ARENA_TRY_NEW(maker.arrival_node[i], arena, int32_t, num_cells);
    }
    for (int32_t s = 0; s < lists->P; s++) {
        ARENA_TRY_NEW(maker.item_node[s], arena, int32_t, lists->num_items[s]);
    }
    bool moved = true;
    while (moved) {  // down the pipeline and up again, as activations and gradients go
        moved = false;
        for (int32_t s = 0; s < lists->P; s++) { TRY(advance(&maker, s, &moved)); }
        for (int32_t s = lists->P - 1; s >= 0; s--) { TRY(advance(&maker, s, &moved)); }
    }
    for (int32_t s = 0; s < lists->P; s++) {
        bool runs = maker.pos[s] == lists->num_items[s];
        if (runs && maker.pos_send[s] == lists->num_sends[s]) { continue; }
        return FAIL(STATUS_DEADLOCK,
                    "stage %d waits for ever for the %s of micro-batch %d ---> check the plan", s,
                    runs ? "receiver" : "input",
                    runs ? lists->sends[s][maker.pos_send[s]].item.mb : lists->items[s][maker.pos[s]].mb);
    }
    *out = graph;
    return STATUS_OK;
}

// --- trials ----------------------------------------------------------------------------------------------

typedef struct {
    int64_t makespan_ns[2];
    int64_t wait_ns[2][PLAN_MAX_STAGES];
} Pair;

static inline int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// round(ns x factor / 2^FACTOR_BITS) without overflow.
static inline int64_t scaled_ns(int64_t ns, int64_t factor) {
    int64_t high = ns >> FACTOR_BITS, low = ns & ((1 << FACTOR_BITS) - 1);
    return high * factor + ((low * factor + (1 << (FACTOR_BITS - 1))) >> FACTOR_BITS);
}

// Four uniforms of 16 bits less their mean: deviation 65536 / sqrt(3).
static inline int64_t sum_of_uniforms(uint64_t bits) {
    return (int64_t)((bits & 0xffff) + (bits >> 16 & 0xffff) + (bits >> 32 & 0xffff) + (bits >> 48)) - 131070;
}

// Noise factor of one unit of that sum, in 2^-40.
static int64_t unit_factor(int32_t noise_permille) {
    const int64_t thousand_deviations = 37837228;  // 1000 x 65536 / sqrt(3)
    return ((int64_t)noise_permille * ((int64_t)1 << 40) + thousand_deviations / 2) / thousand_deviations;
}

// One trial with z, one with -z.
static void run_pair(Pair* out, const ReplayGraph* graph, int64_t unit, uint64_t pair_seed,
                     int64_t (*end_ns)[2]) {
    int64_t busy_ns[2 * PLAN_MAX_STAGES][2] = {{0}};
    for (int32_t i = 1; i < graph->num_nodes; i++) {
        const ReplayNode* node = &graph->nodes[i];
        const int64_t *a = end_ns[node->before[0]], *b = end_ns[node->before[1]];
        int64_t z = sum_of_uniforms(rng_mix(pair_seed + node->key));
        int64_t factor = ((z < 0 ? -z : z) * unit) >> 20;
        int64_t off_ns = scaled_ns(node->ns, factor < MOST_FACTOR ? factor : MOST_FACTOR);
        if (z < 0) { off_ns = -off_ns; }
        end_ns[i][0] = larger(a[0], b[0]) + node->ns + off_ns;
        end_ns[i][1] = larger(a[1], b[1]) + node->ns - off_ns;
        busy_ns[node->lane][0] += node->ns + off_ns;
        busy_ns[node->lane][1] += node->ns - off_ns;
    }
    for (int32_t k = 0; k < 2; k++) {
        out->makespan_ns[k] = 0;
        for (int32_t s = 0; s < graph->P; s++) {
            int64_t last_ns = end_ns[graph->last_job[s]][k];
            out->makespan_ns[k] = larger(out->makespan_ns[k], last_ns + graph->tail_ns[s]);
            out->wait_ns[k][s] = last_ns - busy_ns[s][k];
        }
    }
}

static void slow_down(ReplayGraph* graph, const ReplayNoise* noise) {
    if (noise->slow_permille == 0) { return; }
    for (int32_t i = 1; i < graph->num_nodes; i++) {
        ReplayNode* node = &graph->nodes[i];
        if (node->lane != noise->slow_stage) { continue; }
        node->ns = node->ns / 1000 * noise->slow_permille + node->ns % 1000 * noise->slow_permille / 1000;
    }
}

static Status replay_graph_run(ReplaySums* sums, ReplayGraph* graph, const ReplayNoise* noise, uint64_t seed,
                               Arena* scratch) {
    int64_t(*end_ns)[2] = arena_alloc_array(scratch, (size_t)graph->num_nodes, sizeof *end_ns);
    int64_t* waits_ns = ARENA_NEW(scratch, int64_t, 2 * (int64_t)graph->P);  // over trials, and remainders
    if (end_ns == NULL || waits_ns == NULL) { return FAIL(STATUS_NO_MEMORY, "replay: no host memory left"); }
    Pair pair;
    run_pair(&pair, graph, 0, 0, end_ns);
    sums->planned_ns = larger(sums->planned_ns, pair.makespan_ns[0]);
    for (int32_t s = 0; s < graph->P; s++) { sums->planned_wait_ns[s] += pair.wait_ns[0][s]; }
    slow_down(graph, noise);
    const int64_t unit = unit_factor(noise->noise_permille);
    Rng rng = rng_seed(seed);
    for (int32_t trial = 0; trial < noise->trials; trial += 2) {
        run_pair(&pair, graph, unit, rng_u64(&rng), end_ns);
        for (int32_t k = 0; k < 2 && trial + k < noise->trials; k++) {
            sums->makespan_ns[trial + k] = larger(sums->makespan_ns[trial + k], pair.makespan_ns[k]);
            for (int32_t s = 0; s < graph->P; s++) {
                waits_ns[s] += pair.wait_ns[k][s] / noise->trials;
                waits_ns[graph->P + s] += pair.wait_ns[k][s] % noise->trials;
            }
        }
    }
    for (int32_t s = 0; s < graph->P; s++) {
        sums->wait_ns[s] += waits_ns[s] + waits_ns[graph->P + s] / noise->trials;
    }
    return STATUS_OK;
}

// One longest path, durations as they are.
static Status replay_graph_makespan(int64_t* out_ns, const ReplayGraph* graph, Arena* scratch) {
    int64_t* end_ns;
    ARENA_TRY_NEW(end_ns, scratch, int64_t, graph->num_nodes);
    for (int32_t i = 1; i < graph->num_nodes; i++) {
        const ReplayNode* node = &graph->nodes[i];
        end_ns[i] = larger(end_ns[node->before[0]], end_ns[node->before[1]]) + node->ns;
    }
    *out_ns = 0;
    for (int32_t s = 0; s < graph->P; s++) {
        *out_ns = larger(*out_ns, end_ns[graph->last_job[s]] + graph->tail_ns[s]);
    }
    return STATUS_OK;
}

static Status replay_noise_check(const ReplayNoise* noise, int32_t num_stages) {
    if (noise->noise_permille < 0 || noise->noise_permille > REPLAY_MAX_NOISE_PERMILLE) {
        return FAIL(STATUS_OUT_OF_RANGE, "replay: noise of %d permille ---> 0 to %d", noise->noise_permille,
                    REPLAY_MAX_NOISE_PERMILLE);
    }
    if (noise->trials < 1 || noise->trials > REPLAY_MAX_TRIALS) {
        return FAIL(STATUS_OUT_OF_RANGE, "replay: %d trials ---> 1 to %d", noise->trials, REPLAY_MAX_TRIALS);
    }
    if (noise->slow_permille < 0 || noise->slow_permille > REPLAY_MAX_SLOW_PERMILLE) {
        return FAIL(STATUS_OUT_OF_RANGE, "replay: a stage at %d permille of its time ---> up to %d",
                    noise->slow_permille, REPLAY_MAX_SLOW_PERMILLE);
    }
    if (noise->slow_permille > 0 && (noise->slow_stage < 0 || noise->slow_stage >= num_stages)) {
        return FAIL(STATUS_OUT_OF_RANGE, "replay: no stage %d ---> stages are 0 to %d", noise->slow_stage,
                    num_stages - 1);
    }
    return STATUS_OK;
}

// --- replay_plan --------------------
// replay_plan.c -- a plan replayed: durations, orders and transfers from its instruction lists.

// Micro-batches [begin, end) of the plan are this replica's. instr_ns: as in plan_makespan().
typedef struct {
    const Plan* plan;
    const int64_t* const* instr_ns;
    int32_t replica, begin, end;
} Part;

static Part part_of(const Plan* plan, int32_t replica, const int64_t* const* instr_ns) {
    Part part = {.plan = plan, .instr_ns = instr_ns, .replica = replica};
    while (part.begin < plan->M && plan->mbs[part.begin].replica != replica) { part.begin++; }
    part.end = part.begin;
    while (part.end < plan->M && plan->mbs[part.end].replica == replica) { part.end++; }
    return part;
}

static int64_t instr_ns(const Part* part, int32_t s, int32_t i) {
    const PlanInstr* instr = &part->plan->ranks[part->replica * part->plan->P + s].instrs[i];
    return part->instr_ns != NULL ? part->instr_ns[s][i] : instr->end_ns - instr->begin_ns;
}

// The item of instruction i of stage s: a job, or the transfer that it is about.
static Status item_of(ReplayItem* out, const Part* part, int32_t s, int32_t i) {
    const Plan* plan = part->plan;
    const PlanInstr* instr = &plan->ranks[part->replica * plan->P + s].instrs[i];
    PlanMessage message = {.row = instr->chunk};
    if (instr->mb < part->begin || instr->mb >= part->end) {
        return FAIL(STATUS_INVALID_PLAN,
                    "replica %d stage %d, instruction %d: micro-batch %d is another's ---> check the plan",
                    part->replica, s, i, instr->mb);
    }
    bool is_job = plan_instr_is_job((InstrKind)instr->kind);
    bool is_there = is_job ? plan_has_row(&plan->placement, plan->P, instr->chunk)
                           : plan_message_of(&message, &plan->placement, plan->P, instr);
    if (!is_there) {
        return FAIL(STATUS_INVALID_PLAN,
                    "replica %d stage %d, instruction %d: there is no such chunk ---> check the plan",
                    part->replica, s, i);
    }
    JobKind job = plan_instr_job((InstrKind)instr->kind);
    *out = (ReplayItem){.kind = (uint8_t)(is_job ? (int)job : JOB_COUNT + message.kind),
                        .chunk = message.row,
                        .mb = instr->mb - part->begin,
                        .ns = instr_ns(part, s, i),
                        .instant_ns = -1};
    return STATUS_OK;
}

// --- links of their own: jobs and what leaves the stage ----------------------------------------------------

// [rows * M] of every message of a kind, -1.
static Status message_table(int64_t* table[PLAN_MESSAGE_KINDS], const Part* part, Arena* arena) {
    int64_t num_rows = placement_num_rows(&part->plan->placement, part->plan->P);
    int64_t num_cells = num_rows * (part->end - part->begin);
    for (int k = 0; k < PLAN_MESSAGE_KINDS; k++) {
        ARENA_TRY_NEW(table[k], arena, int64_t, num_cells);
        for (int64_t i = 0; i < num_cells; i++) { table[k][i] = -1; }
    }
    return STATUS_OK;
}

static int64_t* replay_plan_cell_of(int64_t* const table[PLAN_MESSAGE_KINDS], const Part* part,
                                    const ReplayItem* item) {
    return &table[item->kind - JOB_COUNT][(int64_t)item->chunk * (part->end - part->begin) + item->mb];
}

// posted[kind]: how many jobs of its receiver stand before a receive; -1: nobody posts it.
static Status list_posts(int64_t* posted[PLAN_MESSAGE_KINDS], const Part* part, Arena* arena) {
    int32_t P = part->plan->P;
    TRY(message_table(posted, part, arena));
    for (int32_t s = 0; s < P; s++) {
        const PlanRank* rank = &part->plan->ranks[part->replica * P + s];
        int32_t num_jobs = 0;
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            ReplayItem item;
            num_jobs += plan_instr_is_job((InstrKind)rank->instrs[i].kind);
            if (!plan_instr_is_recv(rank->instrs[i].kind)) { continue; }
            TRY(item_of(&item, part, s, i));
            *replay_plan_cell_of(posted, part, &item) = num_jobs;
        }
    }
    return STATUS_OK;
}

static Status list_links(ReplayLists* lists, const Part* part, int32_t s,
                         int64_t* const posted[PLAN_MESSAGE_KINDS], Arena* arena) {
    const PlanRank* rank = &part->plan->ranks[part->replica * part->plan->P + s];
    ARENA_TRY_NEW(lists->sends[s], arena, ReplaySend, rank->num_instrs);
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (plan_instr_is_job((InstrKind)instr->kind)) {
            TRY(item_of(&lists->items[s][lists->num_items[s]++], part, s, i));
        } else if (plan_instr_is_send(instr->kind)) {
            ReplaySend* send = &lists->sends[s][lists->num_sends[s]++];
            TRY(item_of(&send->item, part, s, i));
            send->sent = lists->num_items[s];
            send->posted = (int32_t)*replay_plan_cell_of(posted, part, &send->item);
            if (send->posted >= 0) { continue; }
            return FAIL(STATUS_INVALID_PLAN,
                        "replica %d stage %d, instruction %d: nobody receives that ---> check the plan",
                        part->replica, s, i);
        }
    }
    return STATUS_OK;
}

// --- messages that are pulled: jobs and what the stage takes -----------------------------------------------

// send_ns[kind]: [rows * M] of every message, -1: nobody sends it.
static Status list_sends(int64_t* send_ns[PLAN_MESSAGE_KINDS], const Part* part, Arena* arena) {
    int32_t P = part->plan->P;
    TRY(message_table(send_ns, part, arena));
    for (int32_t s = 0; s < P; s++) {
        const PlanRank* rank = &part->plan->ranks[part->replica * P + s];
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            ReplayItem item;
            if (!plan_instr_is_send(rank->instrs[i].kind)) { continue; }
            TRY(item_of(&item, part, s, i));
            *replay_plan_cell_of(send_ns, part, &item) = item.ns;
        }
    }
    return STATUS_OK;
}

static Status list_pulls(ReplayLists* lists, const Part* part, int32_t s,
                         int64_t* const send_ns[PLAN_MESSAGE_KINDS], Arena* arena) {
    const PlanRank* rank = &part->plan->ranks[part->replica * part->plan->P + s];
    StageOrder order;
    TRY(stage_order(&order, part->plan, rank, arena));
    for (int32_t k = 0; k < order.num; k++) {
        int32_t i = order.instrs[k];
        const PlanInstr* instr = &rank->instrs[i];
        ReplayItem item;
        TRY(item_of(&item, part, s, i));
        item.instant_ns = instr->end_ns == instr->begin_ns ? instr->begin_ns : -1;
        if (item.kind >= JOB_COUNT) {
            item.ns = *replay_plan_cell_of(send_ns, part, &item);
            if (item.ns < 0) {
                return FAIL(STATUS_INVALID_PLAN,
                            "replica %d stage %d, instruction %d: nobody sends that ---> check the plan",
                            part->replica, s, i);
            }
        }
        lists->items[s][lists->num_items[s]++] = item;
    }
    return STATUS_OK;
}

int64_t plan_tail_ns(const Plan* plan) {
    int64_t last_ns = plan->last_end_ns;
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
            const PlanInstr* instr = &plan->ranks[r].instrs[i];
            bool is_job = plan_instr_is_job((InstrKind)instr->kind);
            if (is_job && instr->end_ns > last_ns) { last_ns = instr->end_ns; }
        }
    }
    return plan->makespan_ns > last_ns ? plan->makespan_ns - last_ns : 0;
}

static Status graph_of(ReplayGraph* out, const Part* part, int64_t tail_ns, Arena* scratch) {
    const Plan* plan = part->plan;
    ReplayLists lists = {
        .P = plan->P, .M = part->end - part->begin, .placement = &plan->placement, .pulls = plan->pulls};
    int64_t* messages[PLAN_MESSAGE_KINDS];
    if (!plan_placement_is_sane(&plan->placement, plan->P)) {
        return FAIL(STATUS_INVALID_PLAN, "plan: chunks on stages that are not there ---> check the plan");
    }
    TRY(plan->pulls ? list_sends(messages, part, scratch) : list_posts(messages, part, scratch));
    for (int32_t s = 0; s < plan->P; s++) {
        ARENA_TRY_NEW(lists.items[s], scratch, ReplayItem,
                      plan->ranks[part->replica * plan->P + s].num_instrs);
        TRY(plan->pulls ? list_pulls(&lists, part, s, messages, scratch)
                        : list_links(&lists, part, s, messages, scratch));
        lists.tail_ns[s] = tail_ns;
    }
    return replay_graph_make(out, &lists, scratch);
}

static Status replay_replica(ReplaySums* sums, const Plan* plan, int32_t r, int64_t tail_ns,
                             const ReplayNoise* noise, Arena* scratch) {
    Part part = part_of(plan, r, NULL);
    ReplayGraph graph;
    TRY(graph_of(&graph, &part, tail_ns, scratch));
    return replay_graph_run(sums, &graph, noise, replay_replica_seed(noise->seed, r), scratch);
}

Status plan_makespan(int64_t* out_ns, const Plan* plan, int32_t replica, const int64_t* const* instr_ns,
                     Arena* scratch) {
    Part part = part_of(plan, replica, instr_ns);
    ReplayGraph graph;
    TRY(graph_of(&graph, &part, 0, scratch));
    return replay_graph_makespan(out_ns, &graph, scratch);
}

static int compare_ns(const void* a, const void* b) {
    int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
    return (x > y) - (x < y);
}

// p50, p90 (the smallest makespan that at least 50 %, 90 % of the trials do not exceed), mean, worst. Sorts.
static void set_quantiles(ReplayResult* out, int64_t* makespan_ns, int32_t trials) {
    qsort(makespan_ns, (size_t)trials, sizeof *makespan_ns, compare_ns);
    int64_t whole = 0, rest = 0;  // of makespan / trials: the plain sum could overflow
    for (int32_t i = 0; i < trials; i++) {
        whole += makespan_ns[i] / trials;
        rest += makespan_ns[i] % trials;
    }
    out->mean_ns = whole + rest / trials;
    out->p50_ns = makespan_ns[((int64_t)trials * 5 + 9) / 10 - 1];
    out->p90_ns = makespan_ns[((int64_t)trials * 9 + 9) / 10 - 1];
    out->worst_ns = makespan_ns[trials - 1];
}

Status plan_replay(ReplayResult* out, const Plan* plan, const ReplayNoise* noise, Arena* scratch) {
    ReplaySums sums = {0};
    ReplayResult result = {0};
    TRY(replay_noise_check(noise, plan->P));
    if (plan->makespan_ns < 0 || plan->makespan_ns > INT64_MAX / 4) {
        return FAIL(STATUS_OUT_OF_RANGE, "plan: makespan of %lld ns ---> times of 0 ns up to days",
                    (long long)plan->makespan_ns);
    }
    ARENA_TRY_NEW(sums.makespan_ns, scratch, int64_t, noise->trials);
    int64_t tail_ns = plan_tail_ns(plan);
    for (int32_t r = 0; r < plan->R; r++) { TRY(replay_replica(&sums, plan, r, tail_ns, noise, scratch)); }
    set_quantiles(&result, sums.makespan_ns, noise->trials);
    result.planned_ns = sums.planned_ns;
    for (int32_t s = 0; s < plan->P; s++) {
        result.planned_wait_ns[s] = sums.planned_wait_ns[s] / plan->R;
        result.mean_wait_ns[s] = sums.wait_ns[s] / plan->R;
    }
    *out = result;
    return STATUS_OK;
}

// --- shared_cores --------------------
// shared_cores.c -- jobs as tasks that share a host's cores evenly: from one instant at which a job begins or
// ends to the next.

typedef struct {
    const PlanRank* list;
    int64_t* ns;  // [num_instrs] the answer
    StageOrder order;
    int32_t at;                          // of the order; == order.num: done
    bool runs;                           // `at` is a job that has begun, left_ns of it are to do
    int64_t taking_ns;                   // until then it takes a message
    int64_t left_ns, begin_ns, link_ns;  // link_ns: when what it sends has left
    int32_t num_ended;                   // jobs
    int32_t num_sends, next_send;
    int32_t* sends;  // [num_sends] instructions, in the order of its link
} Lane;

typedef struct {
    const Plan* plan;
    const SharedCores* shared;
    Lane* lanes;                              // [P]
    int64_t* arrival_ns[PLAN_MESSAGE_KINDS];  // [rows * M] + 1 of a message; 0: not known yet
    bool* is_made[PLAN_MESSAGE_KINDS];        // [rows * M] its job has ended
    int32_t* posted[PLAN_MESSAGE_KINDS];      // [rows * M] so many jobs stand before its receive; -1: none
    int64_t now_ns;
} Share;

static int64_t instr_ns_of(const PlanInstr* instr) {
    return instr->end_ns > instr->begin_ns ? instr->end_ns - instr->begin_ns : 0;
}

static const PlanInstr* next_of(const Lane* lane) {
    return lane->at < lane->order.num ? &lane->list->instrs[lane->order.instrs[lane->at]] : NULL;
}

static int64_t shared_cores_cell_of(const Share* share, int32_t row, int32_t m) {
    return (int64_t)row * share->plan->M + m;
}

static Status messages_init(Share* share, Arena* arena) {
    int64_t num_cells = (int64_t)placement_num_rows(&share->plan->placement, share->plan->P) * share->plan->M;
    for (int i = 0; i < PLAN_MESSAGE_KINDS; i++) {
        ARENA_TRY_NEW(share->arrival_ns[i], arena, int64_t, num_cells);
        ARENA_TRY_NEW(share->is_made[i], arena, bool, num_cells);
        ARENA_TRY_NEW(share->posted[i], arena, int32_t, num_cells);
        for (int64_t k = 0; k < num_cells; k++) { share->posted[i][k] = -1; }
    }
    return STATUS_OK;
}

static Status lane_init(Share* share, Lane* lane, const PlanRank* list, Arena* arena) {
    const Plan* plan = share->plan;
    *lane = (Lane){.list = list};
    TRY(stage_order(&lane->order, plan, list, arena));
    ARENA_TRY_NEW(lane->ns, arena, int64_t, list->num_instrs);
    ARENA_TRY_NEW(lane->sends, arena, int32_t, list->num_instrs);
    for (int32_t i = 0, num_jobs = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        PlanMessage message;
        bool is_there = plan_instr_is_job((InstrKind)instr->kind)
                            ? plan_has_row(&plan->placement, plan->P, instr->chunk)
                            : plan_message_of(&message, &plan->placement, plan->P, instr);
        if (!is_there || instr->mb < 0 || instr->mb >= plan->M ||
            instr_ns_of(instr) > INT64_MAX / (INT64_C(1) << 24)) {
            return FAIL(STATUS_INVALID_PLAN,
                        "instruction %d: no such micro-batch, chunk or time ---> check the plan", i);
        }
        lane->ns[i] = instr_ns_of(instr);
        num_jobs += plan_instr_is_job((InstrKind)instr->kind);
        if (plan_instr_is_send(instr->kind)) { lane->sends[lane->num_sends++] = i; }
        if (!plan_instr_is_recv(instr->kind)) { continue; }
        share->posted[message.kind][shared_cores_cell_of(share, message.row, instr->mb)] = num_jobs;
    }
    return STATUS_OK;
}

// When a stage's next job may begin, or it may take its next message; -1: not known yet.
static int64_t ready_ns(const Share* share, int32_t s) {
    const Lane* lane = &share->lanes[s];
    const PlanInstr* next = next_of(lane);
    PlanMessage reads[PLAN_MAX_MESSAGES];
    int32_t num = 1;
    if (plan_instr_is_job((InstrKind)next->kind)) {
        num = plan_job_reads(reads, &share->plan->placement, share->plan->P,
                             plan_instr_job((InstrKind)next->kind), next->chunk);
    } else {
        plan_message_of(&reads[0], &share->plan->placement, share->plan->P, next);
    }
    int64_t ready_ns = lane->taking_ns;
    for (int32_t i = 0; i < num; i++) {
        int64_t arrival_ns =
            share->arrival_ns[reads[i].kind][shared_cores_cell_of(share, reads[i].row, next->mb)] - 1;
        if (arrival_ns < 0) { return -1; }
        ready_ns = arrival_ns > ready_ns ? arrival_ns : ready_ns;
    }
    return ready_ns;
}

// What has been made and posted goes: at once, or behind what its link sends.
static void move_link(Share* share, Lane* lane) {
    const Placement* placement = &share->plan->placement;
    for (; lane->next_send < lane->num_sends; lane->next_send++) {
        int32_t i = lane->sends[lane->next_send];
        PlanMessage message;
        plan_message_of(&message, placement, share->plan->P, &lane->list->instrs[i]);
        int64_t cell = shared_cores_cell_of(share, message.row, lane->list->instrs[i].mb);
        int32_t posted = share->posted[message.kind][cell];
        const Lane* to = &share->lanes[plan_message_reader(placement, message).stage];
        if (!share->is_made[message.kind][cell] || posted < 0 || to->num_ended < posted) { break; }
        int64_t begin_ns = share->now_ns > lane->link_ns ? share->now_ns : lane->link_ns;
        lane->link_ns = begin_ns + lane->ns[i];
        share->arrival_ns[message.kind][cell] = lane->link_ns + 1;
    }
}

// Its job has ended: what it causes to be sent is on its way, or ready for who takes it.
static void end_job(Share* share, int32_t s) {
    Lane* lane = &share->lanes[s];
    const PlanInstr* job = next_of(lane);
    const Placement* placement = &share->plan->placement;
    PlanMessage makes[PLAN_MAX_MESSAGES];
    int32_t num =
        plan_job_makes(makes, placement, share->plan->P, plan_instr_job((InstrKind)job->kind), job->chunk);
    lane->ns[lane->order.instrs[lane->at++]] = share->now_ns - lane->begin_ns;
    lane->runs = false;
    lane->num_ended++;
    for (int32_t i = 0; i < num; i++) {
        int64_t cell = shared_cores_cell_of(share, makes[i].row, job->mb);
        bool is_here = share->plan->pulls || !plan_message_is_sent(placement, makes[i]);
        share->is_made[makes[i].kind][cell] = true;
        if (is_here) { share->arrival_ns[makes[i].kind][cell] = share->now_ns + 1; }
    }
    for (int32_t other = 0; other < share->plan->P && !share->plan->pulls; other++) {
        move_link(share, &share->lanes[other]);
    }
}

static void begin_next(Share* share, int32_t s) {
    Lane* lane = &share->lanes[s];
    int64_t ns = lane->ns[lane->order.instrs[lane->at]];
    if (!plan_instr_is_job((InstrKind)next_of(lane)->kind)) {
        lane->taking_ns = share->now_ns + ns;
        lane->at++;
        return;
    }
    lane->runs = true;
    lane->begin_ns = share->now_ns;
    lane->left_ns = ns;
    if (ns == 0) { end_job(share, s); }
}

// Jobs that can begin now have begun, those of no length have ended; messages likewise.
static void begin_jobs(Share* share) {
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t s = 0; s < share->plan->P; s++) {
            Lane* lane = &share->lanes[s];
            if (lane->runs || next_of(lane) == NULL) { continue; }
            int64_t begin_ns = ready_ns(share, s);
            if (begin_ns < 0 || begin_ns > share->now_ns) { continue; }
            begin_next(share, s);
            moved = true;
        }
    }
}

typedef struct {
    int64_t cores, wanted;  // a job advances by cores / wanted of the time that passes; at most all of it
} Rate;

static Rate rate_of(const Share* share, int32_t host) {
    const SharedCores* shared = share->shared;
    int64_t running = 0;
    for (int32_t s = 0; s < share->plan->P; s++) {
        running += share->lanes[s].runs && shared->host[s] == host;
    }
    int64_t cores = (int64_t)shared->cores[host] * shared->mine[host];
    int64_t wanted = running * shared->threads[host] * shared->sharers[host];
    return wanted > cores ? (Rate){cores, wanted} : (Rate){1, 1};
}

static int64_t divide_up(int64_t a, int64_t times, int64_t by) {
    return a / by * times + (a % by * times + by - 1) / by;
}

// The next instant at which something changes; -1: nothing ever will.
static int64_t next_ns(const Share* share, const Rate* rates) {
    int64_t next = INT64_MAX;
    for (int32_t s = 0; s < share->plan->P; s++) {
        const Lane* lane = &share->lanes[s];
        int64_t at_ns = -1;
        if (lane->runs) {
            const Rate* rate = &rates[share->shared->host[s]];
            at_ns = share->now_ns + divide_up(lane->left_ns, rate->wanted, rate->cores);
        } else if (next_of(lane) != NULL) {
            at_ns = ready_ns(share, s);
        }
        if (at_ns >= 0 && at_ns < next) { next = at_ns; }
    }
    return next == INT64_MAX ? -1 : next;
}

static void shared_cores_advance(Share* share, const Rate* rates, int64_t to_ns) {
    int64_t passed_ns = to_ns - share->now_ns;
    share->now_ns = to_ns;
    for (int32_t s = 0; s < share->plan->P; s++) {
        Lane* lane = &share->lanes[s];
        if (!lane->runs) { continue; }
        const Rate* rate = &rates[share->shared->host[s]];
        int64_t done_ns =
            passed_ns / rate->wanted * rate->cores + passed_ns % rate->wanted * rate->cores / rate->wanted;
        lane->left_ns -= done_ns < lane->left_ns ? done_ns : lane->left_ns;
        if (lane->left_ns == 0) { end_job(share, s); }
    }
}

static Status run(Share* share, Rate* rates) {
    for (;;) {
        begin_jobs(share);
        for (int32_t h = 0; h < share->shared->num_hosts; h++) { rates[h] = rate_of(share, h); }
        int64_t to_ns = next_ns(share, rates);
        if (to_ns < 0) { break; }
        shared_cores_advance(share, rates, to_ns);
    }
    for (int32_t s = 0; s < share->plan->P; s++) {
        const Lane* lane = &share->lanes[s];
        if (next_of(lane) != NULL) {
            return FAIL(STATUS_DEADLOCK, "stage %d waits for ever for micro-batch %d ---> check the plan", s,
                        next_of(lane)->mb);
        }
    }
    return STATUS_OK;
}

Status shared_cores_stretch(int64_t*** instr_ns, int64_t* out_ns, const Plan* plan, int32_t replica,
                            const SharedCores* shared, Arena* arena) {
    Share share = {.plan = plan, .shared = shared};
    Rate* rates;
    int64_t** answer;
    ARENA_TRY_NEW(share.lanes, arena, Lane, plan->P);
    ARENA_TRY_NEW(rates, arena, Rate, shared->num_hosts);
    ARENA_TRY_NEW(answer, arena, int64_t*, plan->P);
    if (!plan_placement_is_sane(&plan->placement, plan->P)) {
        return FAIL(STATUS_INVALID_PLAN, "plan: chunks on stages that are not there ---> check the plan");
    }
    TRY(messages_init(&share, arena));
    for (int32_t s = 0; s < plan->P; s++) {
        TRY(lane_init(&share, &share.lanes[s], &plan->ranks[replica * plan->P + s], arena));
        answer[s] = share.lanes[s].ns;
    }
    TRY(run(&share, rates));
    *instr_ns = answer;
    *out_ns = share.now_ns;
    return STATUS_OK;
}
