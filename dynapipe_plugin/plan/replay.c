/*
replay.c -- the lists of one replica's ranks run again, with other durations.

Every stage has a lane, its list: a receive is posted, a send waits for its turn on the stage's link, a job
waits for its messages. Where messages are pulled, the lane is in the order of planned times, and a receive
takes the message between two jobs. Time goes from one instant at which something begins or ends to the next.
*/
#include "replay.h"

#include <stdlib.h>
#include <string.h>
#include "plan_message.h"

// All durations of a replica together: a hundred times as slow and 1.95 times as long they still fit in 63
// bits.
#define MOST_NS (INT64_MAX / 400)

// Fixed point of the noise: a factor of 1 is 2^20.
enum { FACTOR_BITS = 20, MOST_FACTOR = (1 << FACTOR_BITS) / 20 * 19 };

typedef struct {
    int32_t missing;  // messages of the job
    int64_t arrival_ns;
} Input;

typedef struct {
    const PlanRank* list;
    int32_t *items, num_items;  // instructions in their order
    int32_t* ids;               // [num_instrs] of the job or message
    const int64_t* ns;          // [num_instrs] how long each takes
    // The run.
    int32_t at, link_at;  // items that the lane, and its link, do next
    bool runs;            // the item before `at` is a job
    int64_t begin_ns, end_ns;
    int64_t free_ns, link_ns;  // when the lane, and its link, are free
    int64_t last_ns, busy_ns;  // end of its last job; of all jobs together
} Lane;

// Jobs and messages have an id by kind, row and microbatch.
typedef struct {
    const Plan* plan;
    int32_t replica, num_rows, mb_begin, num_mbs;
    int64_t num_cells;  // num_rows * num_mbs
    Lane lanes[PLAN_MAX_STAGES];
    Input *inputs, *first_inputs;  // [JOB_COUNT * num_cells] now; before the run
    bool* is_open;                 // [PLAN_MESSAGE_KINDS * num_cells] posted; where messages are pulled: made
    int32_t* send;                 // [PLAN_MESSAGE_KINDS * num_cells] the instruction
    int64_t now_ns;
} Replay;

static int32_t id_of(const Replay* it, int32_t kind, int32_t row, int32_t mb) {
    return (int32_t)(kind * it->num_cells + (int64_t)row * it->num_mbs + mb - it->mb_begin);
}

static bool is_job(const PlanInstr* instr) {
    return plan_instr_is_job((InstrKind)instr->kind);
}

// By begin, then by end (items without duration first), then as listed.
static int compare_instrs(const void* a, const void* b) {
    const PlanInstr *x = *(const PlanInstr*const*)a, *y = *(const PlanInstr*const*)b;
    if (x->begin_ns != y->begin_ns) { return x->begin_ns < y->begin_ns ? -1 : 1; }
    if (x->end_ns != y->end_ns) { return x->end_ns < y->end_ns ? -1 : 1; }
    return (x > y) - (x < y);
}

// A pulled message that takes no time is there when it is made.
static Status lane_make(Replay* it, int32_t s, Arena* arena) {
    const Plan* plan = it->plan;
    const Placement* placement = &plan->placement;
    Lane* lane = &it->lanes[s];
    const PlanRank* list = lane->list = &plan->ranks[it->replica * plan->P + s];
    const PlanInstr** items;
    PlanMessage message = {0}, reads[PLAN_MAX_MESSAGES];
    ARENA_TRY_NEW(items, arena, const PlanInstr*, list->num_instrs);
    ARENA_TRY_NEW(lane->items, arena, int32_t, list->num_instrs);
    ARENA_TRY_NEW(lane->ids, arena, int32_t, list->num_instrs);
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        bool is_sane = instr->mb >= it->mb_begin && instr->mb - it->mb_begin < it->num_mbs;
        if (is_job(instr)) {
            is_sane = is_sane && plan_has_row(placement, plan->P, instr->chunk) &&
                      placement_stage_of(placement, instr->chunk) == s;
        } else {
            is_sane = is_sane && plan_message_of(&message, placement, plan->P, instr) &&
                      (plan_instr_is_recv(instr->kind) ? plan_message_reader(placement, message)
                                                       : plan_message_maker(placement, message))
                              .stage == s;
        }
        if (!is_sane) {
            return FAIL(
                STATUS_INVALID_PLAN,
                "replica %d stage %d, instruction %d: its chunk or microbatch is not there ---> check "
                "the plan",
                it->replica, s, i);
        }
        if (is_job(instr)) {
            lane->ids[i] = id_of(it, instr->kind, instr->chunk, instr->mb);
            it->first_inputs[lane->ids[i]].missing = plan_job_reads(
                reads, placement, plan->P, plan_instr_job((InstrKind)instr->kind), instr->chunk);
        } else {
            lane->ids[i] = id_of(it, message.kind, message.row, instr->mb);
            if (plan_instr_is_send(instr->kind)) { it->send[lane->ids[i]] = i; }
        }
        bool pulled = plan_instr_is_recv(instr->kind) && instr->end_ns > instr->begin_ns;
        if (plan_instr_is_wait(instr->kind) || (plan->pulls && !is_job(instr) && !pulled)) { continue; }
        items[lane->num_items++] = instr;
    }
    if (plan->pulls) { qsort(items, (size_t)lane->num_items, sizeof *items, compare_instrs); }
    for (int32_t i = 0; i < lane->num_items; i++) { lane->items[i] = (int32_t)(items[i] - list->instrs); }
    return STATUS_OK;
}

// As given, else as planned. *ns: [num_instrs] of stage s.
static Status durations_make(Replay* it, int64_t** ns, const int64_t* const* instr_ns, Arena* arena) {
    int64_t sum_ns = 0;
    for (int32_t s = 0; s < it->plan->P; s++) {
        const PlanRank* list = it->lanes[s].list;
        ARENA_TRY_NEW(ns[s], arena, int64_t, list->num_instrs);
        for (int32_t i = 0; i < list->num_instrs; i++) {
            const PlanInstr* instr = &list->instrs[i];
            bool counts = is_job(instr) || plan_instr_is_send(instr->kind);
            bool is_sane = instr->begin_ns >= 0 && instr->end_ns >= instr->begin_ns;
            int64_t took_ns = counts && instr_ns != NULL ? instr_ns[s][i]
                              : is_sane                  ? instr->end_ns - instr->begin_ns
                                                         : -1;
            if (took_ns < 0 || took_ns > MOST_NS - sum_ns) {
                return FAIL(STATUS_OUT_OF_RANGE,
                            "stage %d, microbatch %d: takes %lld ns ---> times of 0 ns up to days", s,
                            instr->mb, (long long)took_ns);
            }
            ns[s][i] = took_ns;
            if (counts) { sum_ns += took_ns; }
        }
        it->lanes[s].ns = ns[s];
    }
    return STATUS_OK;
}

static Status replay_make(Replay* it, int64_t** ns, const Plan* plan, int32_t replica,
                          const int64_t* const* instr_ns, Arena* arena) {
    *it = (Replay){.plan = plan, .replica = replica};
    if (!plan_placement_is_sane(&plan->placement, plan->P)) {
        return FAIL(STATUS_INVALID_PLAN, "plan: chunks on stages that are not there ---> check the plan");
    }
    int32_t m = 0;
    while (m < plan->M && plan->mbs[m].replica != replica) { m++; }
    for (it->mb_begin = m; m < plan->M && plan->mbs[m].replica == replica;) { m++; }
    it->num_mbs = m - it->mb_begin;
    it->num_rows = placement_num_rows(&plan->placement, plan->P);
    it->num_cells = (int64_t)it->num_rows * it->num_mbs;
    if (it->num_cells > INT32_MAX / JOB_COUNT) {
        return FAIL(STATUS_OUT_OF_RANGE, "replay: too many jobs ---> a smaller plan");
    }
    ARENA_TRY_NEW(it->is_open, arena, bool, PLAN_MESSAGE_KINDS * it->num_cells);
    ARENA_TRY_NEW(it->send, arena, int32_t, PLAN_MESSAGE_KINDS * it->num_cells);
    ARENA_TRY_NEW(it->inputs, arena, Input, JOB_COUNT * it->num_cells);
    ARENA_TRY_NEW(it->first_inputs, arena, Input, JOB_COUNT * it->num_cells);
    for (int64_t i = 0; i < PLAN_MESSAGE_KINDS * it->num_cells; i++) { it->send[i] = -1; }
    for (int32_t s = 0; s < plan->P; s++) { TRY(lane_make(it, s, arena)); }
    return durations_make(it, ns, instr_ns, arena);
}

// --- running -----------------------------------------------------------------------------------------

static void deliver(Replay* it, PlanMessage message, int32_t mb, int64_t at_ns) {
    PlanJobAt reader = plan_message_reader(&it->plan->placement, message);
    Input* input = &it->inputs[id_of(it, reader.kind, reader.chunk, mb)];
    input->missing--;
    if (at_ns > input->arrival_ns) { input->arrival_ns = at_ns; }
}

static void end_job(Replay* it, Lane* lane) {
    const Plan* plan = it->plan;
    const PlanInstr* instr = &lane->list->instrs[lane->items[lane->at - 1]];
    PlanMessage made[PLAN_MAX_MESSAGES];
    int64_t ns = it->now_ns - lane->begin_ns;
    lane->runs = false;
    lane->busy_ns += ns;
    lane->last_ns = lane->free_ns = it->now_ns;
    int32_t num =
        plan_job_makes(made, &plan->placement, plan->P, plan_instr_job((InstrKind)instr->kind), instr->chunk);
    for (int32_t i = 0; i < num; i++) {
        int32_t id = id_of(it, made[i].kind, made[i].row, instr->mb);
        bool is_there = !plan_message_is_sent(&plan->placement, made[i]);
        if (plan->pulls && !is_there && it->send[id] >= 0) {
            const PlanInstr* send = &lane->list->instrs[it->send[id]];
            is_there = send->end_ns == send->begin_ns;
            it->is_open[id] = true;
        }
        if (is_there) { deliver(it, made[i], instr->mb, it->now_ns); }
    }
}

// The lane does its next item, if that may begin now; lowers *next_ns to when it may, if that is known.
static bool step(Replay* it, Lane* lane, int64_t* next_ns) {
    const Plan* plan = it->plan;
    if (lane->runs || lane->at == lane->num_items) { return false; }
    int32_t i = lane->items[lane->at], id = lane->ids[i];
    const PlanInstr* instr = &lane->list->instrs[i];
    int64_t ready_ns = lane->free_ns;
    if (is_job(instr)) {
        const Input* input = &it->inputs[id];
        if (input->missing > 0) { return false; }
        if (input->arrival_ns > ready_ns) { ready_ns = input->arrival_ns; }
    } else if (!plan->pulls) {
        if (plan_instr_is_recv(instr->kind)) { it->is_open[id] = true; }
        lane->at++;
        return true;
    } else if (!it->is_open[id]) {
        return false;
    }
    if (ready_ns > it->now_ns) {
        *next_ns = ready_ns < *next_ns ? ready_ns : *next_ns;
        return false;
    }
    lane->at++;
    if (is_job(instr)) {
        lane->runs = true;
        lane->begin_ns = it->now_ns;
        lane->end_ns = it->now_ns + lane->ns[i];
        if (lane->ns[i] == 0) { end_job(it, lane); }
    } else {
        PlanMessage message;
        (void)plan_message_of(&message, &plan->placement, plan->P, instr);
        const Lane* from = &it->lanes[plan_message_maker(&plan->placement, message).stage];
        lane->free_ns = it->now_ns + from->ns[it->send[id]];
        deliver(it, message, instr->mb, lane->free_ns);
    }
    return true;
}

// Sends that the lane has reached leave once they are posted, one after the other.
static bool move_link(Replay* it, Lane* lane) {
    int32_t before = lane->link_at;
    for (; lane->link_at < lane->at; lane->link_at++) {
        int32_t i = lane->items[lane->link_at];
        const PlanInstr* instr = &lane->list->instrs[i];
        PlanMessage message;
        if (!plan_instr_is_send(instr->kind)) { continue; }
        if (!it->is_open[lane->ids[i]]) { break; }
        (void)plan_message_of(&message, &it->plan->placement, it->plan->P, instr);
        lane->link_ns = (it->now_ns > lane->link_ns ? it->now_ns : lane->link_ns) + lane->ns[i];
        deliver(it, message, instr->mb, lane->link_ns);
    }
    return lane->link_at > before;
}

static Status replay_run(Replay* it, int64_t* last_ns) {
    const int32_t P = it->plan->P;
    memcpy(it->inputs, it->first_inputs, sizeof *it->inputs * (size_t)(JOB_COUNT * it->num_cells));
    memset(it->is_open, 0, sizeof *it->is_open * (size_t)(PLAN_MESSAGE_KINDS * it->num_cells));
    for (int32_t s = 0; s < P; s++) {
        Lane* lane = &it->lanes[s];
        lane->at = lane->link_at = 0;
        lane->runs = false;
        lane->free_ns = lane->link_ns = lane->last_ns = lane->busy_ns = 0;
    }
    it->now_ns = 0;
    for (int64_t next_ns = 0; next_ns < INT64_MAX;) {
        it->now_ns = next_ns;
        for (int32_t s = 0; s < P; s++) {
            Lane* lane = &it->lanes[s];
            if (lane->runs && lane->end_ns <= next_ns) { end_job(it, lane); }
        }
        for (bool moved = true; moved;) {
            moved = false;
            next_ns = INT64_MAX;
            for (int32_t s = 0; s < P; s++) {
                while (step(it, &it->lanes[s], &next_ns)) { moved = true; }
                moved |= !it->plan->pulls && move_link(it, &it->lanes[s]);
            }
        }
        for (int32_t s = 0; s < P; s++) {
            const Lane* lane = &it->lanes[s];
            if (lane->runs && lane->end_ns < next_ns) { next_ns = lane->end_ns; }
        }
    }
    *last_ns = 0;
    for (int32_t s = 0; s < P; s++) {
        const Lane* lane = &it->lanes[s];
        *last_ns = lane->last_ns > *last_ns ? lane->last_ns : *last_ns;
        int32_t at = it->plan->pulls ? lane->at : lane->link_at;
        if (at == lane->num_items) { continue; }
        return FAIL(STATUS_DEADLOCK, "stage %d waits for ever with microbatch %d ---> check the plan", s,
                    lane->list->instrs[lane->items[at]].mb);
    }
    return STATUS_OK;
}

Status plan_makespan(int64_t* out_ns, const Plan* plan, int32_t replica, const int64_t* const* instr_ns,
                     Arena* scratch) {
    Replay it;
    int64_t* ns[PLAN_MAX_STAGES];
    TRY(replay_make(&it, ns, plan, replica, instr_ns, scratch));
    return replay_run(&it, out_ns);
}

// --- trials ------------------------------------------------------------------------------------------

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

// The key under which an instruction's duration is drawn: a job by its row, a message by the row that it
// comes from.
static uint64_t key_of(const Replay* it, const PlanInstr* instr) {
    const Placement* placement = &it->plan->placement;
    PlanMessage message = {0};
    bool of_job = is_job(instr);
    if (!of_job) { plan_message_of(&message, placement, it->plan->P, instr); }
    bool from_before = message.kind == MESSAGE_ACT && message.row < placement->num_chunks;
    int32_t row = of_job ? instr->chunk : from_before ? message.row - 1 : message.row;
    int32_t kind = of_job ? instr->kind : JOB_COUNT + message.kind;
    return ((uint64_t)row << 40 | (uint64_t)(instr->mb - it->mb_begin) << 8 | (uint64_t)kind) *
           0x9e3779b97f4a7c15u;
}

// planned_ns with the noise of this pair of trials, negated for its second one.
static void draw(const Replay* it, int64_t* const* ns, int64_t* const* planned_ns, int64_t unit,
                 uint64_t pair_seed, bool second) {
    for (int32_t s = 0; s < it->plan->P; s++) {
        const PlanRank* list = it->lanes[s].list;
        for (int32_t i = 0; i < list->num_instrs; i++) {
            const PlanInstr* instr = &list->instrs[i];
            if (!is_job(instr) && !plan_instr_is_send(instr->kind)) { continue; }
            int64_t z = sum_of_uniforms(rng_mix(pair_seed + key_of(it, instr)));
            int64_t factor = ((z < 0 ? -z : z) * unit) >> 20;
            int64_t off_ns = scaled_ns(planned_ns[s][i], factor < MOST_FACTOR ? factor : MOST_FACTOR);
            ns[s][i] = planned_ns[s][i] + ((z < 0) != second ? -off_ns : off_ns);
        }
    }
}

static void slow_down(const Replay* it, int64_t* ns, const ReplayNoise* noise) {
    const PlanRank* list = it->lanes[noise->slow_stage].list;
    for (int32_t i = 0; i < list->num_instrs; i++) {
        if (!is_job(&list->instrs[i])) { continue; }
        ns[i] = ns[i] / 1000 * noise->slow_permille + ns[i] % 1000 * noise->slow_permille / 1000;
    }
}

// Adds waiting times, divided by `replicas`, and raises makespans.
static Status replay_replica(ReplayResult* out, int64_t* makespan_ns, const Plan* plan, int32_t r,
                             int64_t tail_ns, const ReplayNoise* noise, Arena* scratch) {
    Replay it;
    int64_t *planned_ns[PLAN_MAX_STAGES], *ns[PLAN_MAX_STAGES], last_ns;
    double wait_ns[PLAN_MAX_STAGES] = {0};
    TRY(replay_make(&it, planned_ns, plan, r, NULL, scratch));
    TRY(replay_run(&it, &last_ns));
    if (last_ns + tail_ns > out->planned_ns) { out->planned_ns = last_ns + tail_ns; }
    for (int32_t s = 0; s < plan->P; s++) {
        Lane* lane = &it.lanes[s];
        out->planned_wait_ns[s] += (lane->last_ns - lane->busy_ns) / plan->R;
        ARENA_TRY_NEW(ns[s], scratch, int64_t, lane->list->num_instrs);
        lane->ns = ns[s];
    }
    if (noise->slow_permille > 0) { slow_down(&it, planned_ns[noise->slow_stage], noise); }
    int64_t unit = unit_factor(noise->noise_permille);
    uint64_t pair_seed = 0;
    Rng rng = rng_seed(replay_replica_seed(noise->seed, r));
    for (int32_t trial = 0; trial < noise->trials; trial++) {
        if (trial % 2 == 0) { pair_seed = rng_u64(&rng); }
        draw(&it, ns, planned_ns, unit, pair_seed, trial % 2 == 1);
        TRY(replay_run(&it, &last_ns));
        if (last_ns + tail_ns > makespan_ns[trial]) { makespan_ns[trial] = last_ns + tail_ns; }
        for (int32_t s = 0; s < plan->P; s++) {
            wait_ns[s] += (double)(it.lanes[s].last_ns - it.lanes[s].busy_ns);
        }
    }
    for (int32_t s = 0; s < plan->P; s++) {
        out->mean_wait_ns[s] += (int64_t)(wait_ns[s] / noise->trials / plan->R + 0.5);
    }
    return STATUS_OK;
}

int64_t plan_tail_ns(const Plan* plan) {
    int64_t last_ns = plan->last_end_ns;
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
            const PlanInstr* instr = &plan->ranks[r].instrs[i];
            if (is_job(instr) && instr->end_ns > last_ns) { last_ns = instr->end_ns; }
        }
    }
    return plan->makespan_ns > last_ns ? plan->makespan_ns - last_ns : 0;
}

static int compare_ns(const void* a, const void* b) {
    int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
    return (x > y) - (x < y);
}

Status plan_replay(ReplayResult* out, const Plan* plan, const ReplayNoise* noise, Arena* scratch) {
    ReplayResult result = {0};
    int64_t *makespan_ns, trials = noise->trials;
    double sum_ns = 0;
    bool has_stage = noise->slow_permille == 0 || (noise->slow_stage >= 0 && noise->slow_stage < plan->P);
    if (!has_stage || noise->noise_permille < 0 || noise->noise_permille > REPLAY_MAX_NOISE_PERMILLE ||
        trials < 1 || trials > REPLAY_MAX_TRIALS || noise->slow_permille < 0 ||
        noise->slow_permille > REPLAY_MAX_SLOW_PERMILLE) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "replay: %d trials, noise of %d permille, stage %d at %d ---> 1 to %d trials, 0 to %d, a "
                    "stage from 0 to %d at up to %d",
                    noise->trials, noise->noise_permille, noise->slow_stage, noise->slow_permille,
                    REPLAY_MAX_TRIALS, REPLAY_MAX_NOISE_PERMILLE, plan->P - 1, REPLAY_MAX_SLOW_PERMILLE);
    }
    if (plan->makespan_ns < 0 || plan->makespan_ns > INT64_MAX / 4) {
        return FAIL(STATUS_OUT_OF_RANGE, "plan: makespan of %lld ns ---> times of 0 ns up to days",
                    (long long)plan->makespan_ns);
    }
    ARENA_TRY_NEW(makespan_ns, scratch, int64_t, trials);
    for (int32_t r = 0; r < plan->R; r++) {
        TRY(replay_replica(&result, makespan_ns, plan, r, plan_tail_ns(plan), noise, scratch));
    }
    qsort(makespan_ns, (size_t)trials, sizeof *makespan_ns, compare_ns);
    for (int64_t i = 0; i < trials; i++) { sum_ns += (double)makespan_ns[i]; }
    result.mean_ns = (int64_t)(sum_ns / (double)trials + 0.5);
    result.p50_ns = makespan_ns[(trials * 5 + 9) / 10 - 1];  // the smallest that 50 % of trials do not exceed
    result.p90_ns = makespan_ns[(trials * 9 + 9) / 10 - 1];
    result.worst_ns = makespan_ns[trials - 1];
    *out = result;
    return STATUS_OK;
}
