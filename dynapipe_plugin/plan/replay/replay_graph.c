// replay_graph.c -- makes the graph once, then walks it for pairs of trials.
#include "replay_graph.h"

#include <string.h>

#include "../pipe/pipe_schedule.h"

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

Status replay_graph_make(ReplayGraph* out, const ReplayLists* lists, Arena* arena) {
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

Status replay_graph_run(ReplaySums* sums, ReplayGraph* graph, const ReplayNoise* noise, uint64_t seed,
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

Status replay_graph_makespan(int64_t* out_ns, const ReplayGraph* graph, Arena* scratch) {
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

Status replay_noise_check(const ReplayNoise* noise, int32_t num_stages) {
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
