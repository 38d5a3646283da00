/*
replay.c -- the lists of one replica's ranks run again, with other durations or fewer cores.

Every stage has a lane: its jobs in their order, and where messages are pulled those that it takes between
them. Time goes from one instant at which something begins or ends to the next. A job ends when as much of it
is done as it takes; where ranks share cores (SharedCores) it advances by their part of the time that passes.
*/
#include "replay.h"

#include <stdlib.h>
#include <string.h>
#include "plan_message.h"
#include "plan_text.h"
#include "schedule.h"

// All durations of a replica together: a hundred times as slow and 1.95 times as long they still fit in 63
// bits.
#define MOST_NS (INT64_MAX / 400)

// Fixed point of the noise: a factor of 1 is 2^20.
enum { FACTOR_BITS = 20, MOST_FACTOR = (1 << FACTOR_BITS) / 20 * 19 };

// --- the items of a stage, in order -----------------------------------------------------------------------

// By begin, then by end: items without duration first.
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
        if (plan_instr_is_recv(instr->kind)) { messages[(*num)++] = instr; }
    }
    qsort(messages, (size_t)*num, sizeof *messages, compare_messages);
    *out = messages;
    return STATUS_OK;
}

// A job, or a message that the stage takes.
typedef struct {
    int32_t instr;
    bool is_job;
    int32_t id;                    // of the job (Input) or of the message
    int64_t instant_ns;            // pulls: as planned it takes no time, and is at this instant; -1: not so
    int32_t first_made, num_made;  // messages that the job makes, in Replay.made
} ReplayItem;

// A message, by kind, row and microbatch.
typedef struct {
    int32_t input;     // of the job that reads it
    int16_t from, to;  // stages
    int32_t posted;    // number of jobs before its receive; -1: nobody receives it
    int32_t send;      // instruction that sends it; -1: nobody does
    bool is_listed;    // the job that makes it is in the list
} ReplayMessage;

// The inputs of a job, by kind, row and microbatch.
typedef struct {
    int32_t missing;  // messages
    int64_t arrival_ns;
} ReplayInput;

typedef struct {
    const PlanRank* list;
    ReplayItem* items;
    int32_t num_items;
    int32_t* sends;  // messages in the order of the stage's link; none where messages are pulled
    int32_t num_sends;
    const int64_t* ns;  // [num_instrs] how long each takes
    int64_t* took_ns;   // [num_instrs] the same of a job as it came out; NULL: not wanted
    // The run.
    int32_t at, next_send, num_ended;
    bool runs;                  // items[at] is a job that has begun; left_ns of it are to be done
    int64_t left_ns, begin_ns;  // of that job
    int64_t free_ns, link_ns;   // when its input is there; when its link is free
    int64_t last_ns, busy_ns;   // end of its last job; of all jobs together
} ReplayLane;

typedef struct {
    int64_t cores, wanted;  // a job advances by cores / wanted of the time that passes
} ReplayRate;

// Micro-batches [begin, end) of the plan are this replica's.
typedef struct {
    const Plan* plan;
    const SharedCores* shared;  // NULL: a core for everybody
    ReplayRate* rates;          // [num_hosts] at present
    int32_t replica, begin, end;
    int64_t num_cells;  // rows * micro-batches
    ReplayLane lanes[PLAN_MAX_STAGES];
    ReplayMessage* messages;             // [PLAN_MESSAGE_KINDS * num_cells]
    ReplayInput *inputs, *first_inputs;  // [JOB_COUNT * num_cells] now; before the run
    bool* is_made;                       // [PLAN_MESSAGE_KINDS * num_cells]
    int32_t* made;
    int32_t num_made;
    int64_t now_ns;
} Replay;

static int32_t id_of(const Replay* it, int32_t kind, int32_t row, int32_t mb) {
    return (int32_t)(kind * it->num_cells + (int64_t)row * (it->end - it->begin) + mb - it->begin);
}

static Status broken(const Replay* it, int32_t s, int32_t i, const char* rule) {
    return FAIL(STATUS_INVALID_PLAN, "replica %d stage %d, instruction %d: %s ---> check the plan",
                it->replica, s, i, rule);
}

// A job: what it reads and makes.
static void add_job(Replay* it, ReplayItem* item, const PlanInstr* instr) {
    const Placement* placement = &it->plan->placement;
    PlanMessage all[PLAN_MAX_MESSAGES];
    int32_t P = it->plan->P, kind = plan_instr_job((InstrKind)instr->kind);
    item->is_job = true;
    item->id = id_of(it, kind, instr->chunk, instr->mb);
    it->first_inputs[item->id].missing = plan_job_reads(all, placement, P, (JobKind)kind, instr->chunk);
    item->first_made = it->num_made;
    item->num_made = plan_job_makes(all, placement, P, (JobKind)kind, instr->chunk);
    for (int32_t i = 0; i < item->num_made; i++) {
        int32_t id = it->made[it->num_made++] = id_of(it, all[i].kind, all[i].row, instr->mb);
        it->messages[id].is_listed = true;
    }
}

// Instruction i of stage s: its id; *id only of transfers.
static Status check_instr(const Replay* it, int32_t s, int32_t i, int32_t* id) {
    const Plan* plan = it->plan;
    const PlanInstr* instr = &it->lanes[s].list->instrs[i];
    PlanMessage message = {0};
    if (instr->mb < it->begin || instr->mb >= it->end) {
        return broken(it, s, i, "the microbatch is another's");
    }
    bool is_job = plan_instr_is_job((InstrKind)instr->kind);
    if (is_job ? !plan_has_row(&plan->placement, plan->P, instr->chunk)
               : !plan_message_of(&message, &plan->placement, plan->P, instr)) {
        return broken(it, s, i, "there is no such chunk");
    }
    *id = is_job ? -1 : id_of(it, message.kind, message.row, instr->mb);
    return STATUS_OK;
}

// Jobs, and at which of them stage s sends and posts its messages.
static Status list_stage(Replay* it, int32_t s, Arena* arena) {
    ReplayLane* lane = &it->lanes[s];
    const PlanRank* list = lane->list;
    ARENA_TRY_NEW(lane->items, arena, ReplayItem, list->num_instrs);
    ARENA_TRY_NEW(lane->sends, arena, int32_t, list->num_instrs);
    for (int32_t i = 0; i < list->num_instrs; i++) {
        int32_t id;
        uint8_t kind = list->instrs[i].kind;
        if (plan_instr_is_wait(kind)) { continue; }
        TRY(check_instr(it, s, i, &id));
        if (id < 0) {
            ReplayItem* item = &lane->items[lane->num_items++];
            *item = (ReplayItem){.instr = i, .instant_ns = -1};
            add_job(it, item, &list->instrs[i]);
        } else if (plan_instr_is_recv(kind)) {
            it->messages[id].posted = lane->num_items;
        } else {
            ReplayMessage* message = &it->messages[id];
            if (message->from != s || !message->is_listed) {
                return broken(it, s, i, "sends what it has not computed");
            }
            message->send = i;
            lane->sends[lane->num_sends++] = id;
        }
    }
    return STATUS_OK;
}

// Receives by their times go between the jobs.
static Status list_pulls(Replay* it, int32_t s, Arena* arena) {
    ReplayLane* lane = &it->lanes[s];
    const PlanInstr** messages = NULL;
    ReplayItem *jobs = lane->items, *items;
    int32_t num_messages = 0, num_jobs = lane->num_items, job = 0, num = 0;
    TRY(list_messages(&messages, &num_messages, lane->list, arena));
    ARENA_TRY_NEW(items, arena, ReplayItem, lane->list->num_instrs);
    for (int32_t next = 0; next < num_messages || job < num_jobs;) {
        const PlanInstr* instr = job < num_jobs ? &lane->list->instrs[jobs[job].instr] : NULL;
        bool is_message = next < num_messages && (instr == NULL || compare_times(messages[next], instr) <= 0);
        ReplayItem* item = &items[num++];
        if (is_message) {
            *item = (ReplayItem){.instr = (int32_t)(messages[next++] - lane->list->instrs)};
            TRY(check_instr(it, s, item->instr, &item->id));
            if (it->messages[item->id].send < 0) { return broken(it, s, item->instr, "nobody sends that"); }
            instr = &lane->list->instrs[item->instr];
        } else {
            *item = jobs[job++];
        }
        item->instant_ns = instr->end_ns == instr->begin_ns ? instr->begin_ns : -1;
    }
    lane->items = items;
    lane->num_items = num;
    lane->num_sends = 0;
    return STATUS_OK;
}

// Who makes and reads every message that the placement has.
static void messages_init(Replay* it) {
    const Placement* placement = &it->plan->placement;
    int32_t P = it->plan->P, M = it->end - it->begin, num_rows = placement_num_rows(placement, P);
    for (int32_t i = 0; i < PLAN_MESSAGE_KINDS * num_rows * M; i++) {
        int32_t kind = i / (num_rows * M), row = i / M % num_rows;
        bool is_there = plan_has_row(placement, P, row) &&
                        (kind == MESSAGE_FACTORS ? row >= placement->num_chunks : row > 0);
        it->messages[i] = (ReplayMessage){.from = -1, .posted = -1, .send = -1};
        if (!is_there) { continue; }
        PlanMessage message = {(uint8_t)kind, (int16_t)row};
        PlanJobAt reader = plan_message_reader(placement, message);
        it->messages[i].from = plan_message_maker(placement, message).stage;
        it->messages[i].to = reader.stage;
        it->messages[i].input = id_of(it, reader.kind, reader.chunk, it->begin + i % M);
    }
}

// The lists of a replica; durations are set by durations_set().
static Status replay_init(Replay* it, const Plan* plan, int32_t replica, Arena* arena) {
    *it = (Replay){.plan = plan, .replica = replica};
    if (!plan_placement_is_sane(&plan->placement, plan->P)) {
        return FAIL(STATUS_INVALID_PLAN, "plan: chunks on stages that are not there ---> check the plan");
    }
    while (it->begin < plan->M && plan->mbs[it->begin].replica != replica) { it->begin++; }
    for (it->end = it->begin; it->end < plan->M && plan->mbs[it->end].replica == replica;) { it->end++; }
    it->num_cells = (int64_t)placement_num_rows(&plan->placement, plan->P) * (it->end - it->begin);
    int64_t num_jobs = 0;
    for (int32_t s = 0; s < plan->P; s++) {
        it->lanes[s].list = &plan->ranks[replica * plan->P + s];
        num_jobs += it->lanes[s].list->num_instrs;
    }
    if (it->num_cells > INT32_MAX / JOB_COUNT || num_jobs > INT32_MAX / PLAN_MAX_MESSAGES) {
        return FAIL(STATUS_OUT_OF_RANGE, "replay: too many jobs ---> a smaller plan");
    }
    int64_t most_made = 2 * num_jobs;  // only the last chunk's F and B make more than one message
    bool shared = plan->placement.head != HEAD_WHOLE;
    if (shared) { most_made += num_jobs * plan->P; }
    ARENA_TRY_NEW(it->made, arena, int32_t, most_made);
    ARENA_TRY_NEW(it->messages, arena, ReplayMessage, PLAN_MESSAGE_KINDS * it->num_cells);
    ARENA_TRY_NEW(it->is_made, arena, bool, PLAN_MESSAGE_KINDS * it->num_cells);
    ARENA_TRY_NEW(it->inputs, arena, ReplayInput, JOB_COUNT * it->num_cells);
    ARENA_TRY_NEW(it->first_inputs, arena, ReplayInput, JOB_COUNT * it->num_cells);
    messages_init(it);
    for (int32_t s = 0; s < plan->P; s++) { TRY(list_stage(it, s, arena)); }
    for (int32_t s = 0; s < plan->P; s++) {
        if (plan->pulls) { TRY(list_pulls(it, s, arena)); }
        for (int32_t i = 0; i < it->lanes[s].num_sends; i++) {
            const ReplayMessage* message = &it->messages[it->lanes[s].sends[i]];
            if (message->posted < 0) { return broken(it, s, message->send, "nobody receives that"); }
        }
    }
    return STATUS_OK;
}

// --- running -----------------------------------------------------------------------------------------

static void deliver(Replay* it, const ReplayMessage* message, int64_t at_ns) {
    ReplayInput* input = &it->inputs[message->input];
    input->missing--;
    if (at_ns > input->arrival_ns) { input->arrival_ns = at_ns; }
}

// When an item may begin; -1: not known yet.
static int64_t ready_ns(const Replay* it, const ReplayLane* lane, const ReplayItem* item) {
    if (!item->is_job) { return it->is_made[item->id] ? lane->free_ns : -1; }
    const ReplayInput* input = &it->inputs[item->id];
    if (input->missing != 0) { return -1; }
    return input->arrival_ns > lane->free_ns ? input->arrival_ns : lane->free_ns;
}

// Messages that are made and posted leave, after those that the link sends already.
static void move_link(Replay* it, ReplayLane* lane) {
    for (; lane->next_send < lane->num_sends; lane->next_send++) {
        int32_t id = lane->sends[lane->next_send];
        const ReplayMessage* message = &it->messages[id];
        if (!it->is_made[id] || it->lanes[message->to].num_ended < message->posted) { break; }
        int64_t begin_ns = it->now_ns > lane->link_ns ? it->now_ns : lane->link_ns;
        lane->link_ns = begin_ns + lane->ns[message->send];
        deliver(it, message, lane->link_ns);
    }
}

static void end_job(Replay* it, ReplayLane* lane) {
    const ReplayItem* item = &lane->items[lane->at++];
    int64_t ns = it->now_ns - lane->begin_ns;
    if (lane->took_ns != NULL) { lane->took_ns[item->instr] = ns; }
    lane->runs = false;
    lane->num_ended++;
    lane->busy_ns += ns;
    lane->last_ns = lane->free_ns = it->now_ns;
    for (int32_t i = 0; i < item->num_made; i++) {
        int32_t id = it->made[item->first_made + i];
        const ReplayMessage* message = &it->messages[id];
        it->is_made[id] = true;
        if (message->from == message->to) { deliver(it, message, it->now_ns); }
    }
    for (int32_t s = 0; s < it->plan->P && !it->plan->pulls; s++) { move_link(it, &it->lanes[s]); }
}

static void begin_next(Replay* it, ReplayLane* lane) {
    const ReplayItem* item = &lane->items[lane->at];
    if (!item->is_job) {
        const ReplayMessage* message = &it->messages[item->id];
        lane->free_ns = it->now_ns + it->lanes[message->from].ns[message->send];
        lane->at++;
        deliver(it, message, lane->free_ns);
        return;
    }
    lane->runs = true;
    lane->begin_ns = it->now_ns;
    lane->left_ns = lane->ns[item->instr];
    if (lane->left_ns == 0) { end_job(it, lane); }
}

// The next item waits: of those that take no time at the same instant another may not. Jobs keep their order.
static void swap_instant(Replay* it, ReplayLane* lane) {
    ReplayItem* items = lane->items + lane->at;
    int32_t num = lane->num_items - lane->at;
    bool job_waits = items[0].is_job;
    for (int32_t i = 1; i < num && items[0].instant_ns >= 0 && items[i].instant_ns == items[0].instant_ns;
         i++) {
        ReplayItem item = items[i];
        if (item.is_job && job_waits) { continue; }
        if (ready_ns(it, lane, &item) >= 0) {
            memmove(items + 1, items, (size_t)i * sizeof *items);
            items[0] = item;
            return;
        }
        job_waits |= item.is_job;
    }
}

// When the lane continues; -1: unknown, or it is done.
static int64_t lane_ready_ns(Replay* it, ReplayLane* lane) {
    if (lane->at == lane->num_items) { return -1; }
    int64_t at_ns = ready_ns(it, lane, &lane->items[lane->at]);
    if (at_ns >= 0 || lane->items[lane->at].instant_ns < 0) { return at_ns; }
    swap_instant(it, lane);
    return ready_ns(it, lane, &lane->items[lane->at]);
}

static ReplayRate rate_of(const Replay* it, int32_t s) {
    return it->shared == NULL ? (ReplayRate){1, 1} : it->rates[it->shared->host[s]];
}

static void rates_set(Replay* it) {
    const SharedCores* shared = it->shared;
    for (int32_t h = 0; shared != NULL && h < shared->num_hosts; h++) {
        int64_t running = 0;
        for (int32_t s = 0; s < it->plan->P; s++) { running += it->lanes[s].runs && shared->host[s] == h; }
        int64_t cores = (int64_t)shared->cores[h] * shared->mine[h];
        int64_t wanted = running * shared->threads[h] * shared->sharers[h];
        it->rates[h] = wanted > cores ? (ReplayRate){cores, wanted} : (ReplayRate){1, 1};
    }
}

// a * times / by without overflow.
static int64_t part_of(int64_t a, int64_t times, int64_t by, bool up) {
    return a / by * times + (a % by * times + (up ? by - 1 : 0)) / by;
}

// The next instant at which something changes; INT64_MAX: never.
static int64_t next_ns(Replay* it) {
    int64_t next = INT64_MAX;
    for (int32_t s = 0; s < it->plan->P; s++) {
        ReplayLane* lane = &it->lanes[s];
        ReplayRate rate = rate_of(it, s);
        int64_t at_ns = lane->runs ? it->now_ns + part_of(lane->left_ns, rate.wanted, rate.cores, true)
                                   : lane_ready_ns(it, lane);
        if (at_ns >= 0 && at_ns < next) { next = at_ns; }
    }
    return next;
}

static void advance(Replay* it, int64_t to_ns) {
    int64_t passed_ns = to_ns - it->now_ns;
    it->now_ns = to_ns;
    for (int32_t s = 0; s < it->plan->P; s++) {
        ReplayLane* lane = &it->lanes[s];
        if (!lane->runs) { continue; }
        ReplayRate rate = rate_of(it, s);
        int64_t done_ns = part_of(passed_ns, rate.cores, rate.wanted, false);
        lane->left_ns -= done_ns < lane->left_ns ? done_ns : lane->left_ns;
        if (lane->left_ns == 0) { end_job(it, lane); }
    }
}

static Status replay_run(Replay* it) {
    memcpy(it->inputs, it->first_inputs, sizeof *it->inputs * (size_t)(JOB_COUNT * it->num_cells));
    memset(it->is_made, 0, sizeof *it->is_made * (size_t)(PLAN_MESSAGE_KINDS * it->num_cells));
    it->now_ns = 0;
    for (int32_t s = 0; s < it->plan->P; s++) {
        ReplayLane* lane = &it->lanes[s];
        lane->at = lane->next_send = lane->num_ended = 0;
        lane->runs = false;
        lane->free_ns = lane->link_ns = lane->last_ns = lane->busy_ns = 0;
    }
    for (int64_t to_ns = 0; to_ns != INT64_MAX; to_ns = next_ns(it)) {
        advance(it, to_ns);
        for (bool moved = true; moved;) {
            moved = false;
            for (int32_t s = 0; s < it->plan->P; s++) {
                ReplayLane* lane = &it->lanes[s];
                int64_t begin_ns = lane->runs ? -1 : lane_ready_ns(it, lane);
                if (begin_ns < 0 || begin_ns > it->now_ns) { continue; }
                begin_next(it, lane);
                moved = true;
            }
        }
        rates_set(it);
    }
    for (int32_t s = 0; s < it->plan->P; s++) {
        const ReplayLane* lane = &it->lanes[s];
        bool runs = lane->at == lane->num_items;
        if (runs && lane->next_send == lane->num_sends) { continue; }
        int32_t instr = runs ? it->messages[lane->sends[lane->next_send]].send : lane->items[lane->at].instr;
        return FAIL(STATUS_DEADLOCK,
                    "stage %d waits for ever for the %s of microbatch %d ---> check the plan", s,
                    runs ? "receiver" : "input", lane->list->instrs[instr].mb);
    }
    return STATUS_OK;
}

// --- durations ---------------------------------------------------------------------------------------

// As given, else as planned. *ns: [num_instrs] of stage s.
static Status durations_set(Replay* it, int64_t** ns, const int64_t* const* instr_ns, Arena* arena) {
    int64_t sum_ns = 0;
    for (int32_t s = 0; s < it->plan->P; s++) {
        const PlanRank* list = it->lanes[s].list;
        ARENA_TRY_NEW(ns[s], arena, int64_t, list->num_instrs);
        for (int32_t i = 0; i < list->num_instrs; i++) {
            const PlanInstr* instr = &list->instrs[i];
            bool counts = plan_instr_is_job((InstrKind)instr->kind) || plan_instr_is_send(instr->kind);
            ns[s][i] = counts && instr_ns != NULL ? instr_ns[s][i] : instr->end_ns - instr->begin_ns;
            if (!counts) { continue; }
            if (ns[s][i] < 0 || ns[s][i] > MOST_NS - sum_ns) {
                return FAIL(STATUS_OUT_OF_RANGE,
                            "stage %d, microbatch %d: takes %lld ns ---> times of 0 ns up to days", s,
                            instr->mb, (long long)ns[s][i]);
            }
            sum_ns += ns[s][i];
        }
        it->lanes[s].ns = ns[s];
    }
    return STATUS_OK;
}

static int64_t last_end_ns(const Replay* it) {
    int64_t last_ns = 0;
    for (int32_t s = 0; s < it->plan->P; s++) {
        last_ns = it->lanes[s].last_ns > last_ns ? it->lanes[s].last_ns : last_ns;
    }
    return last_ns;
}

Status plan_makespan(int64_t* out_ns, const Plan* plan, int32_t replica, const int64_t* const* instr_ns,
                     Arena* scratch) {
    Replay it;
    int64_t* ns[PLAN_MAX_STAGES];
    TRY(replay_init(&it, plan, replica, scratch));
    TRY(durations_set(&it, ns, instr_ns, scratch));
    TRY(replay_run(&it));
    *out_ns = last_end_ns(&it);
    return STATUS_OK;
}

Status shared_cores_stretch(int64_t*** instr_ns, int64_t* out_ns, const Plan* plan, int32_t replica,
                            const SharedCores* shared, Arena* arena) {
    Replay it;
    int64_t *ns[PLAN_MAX_STAGES], **answer;
    TRY(replay_init(&it, plan, replica, arena));
    TRY(durations_set(&it, ns, NULL, arena));
    it.shared = shared;
    ARENA_TRY_NEW(it.rates, arena, ReplayRate, shared->num_hosts);
    ARENA_TRY_NEW(answer, arena, int64_t*, plan->P);
    for (int32_t s = 0; s < plan->P; s++) {
        ARENA_TRY_NEW(answer[s], arena, int64_t, it.lanes[s].list->num_instrs);
        memcpy(answer[s], ns[s], sizeof **ns * (size_t)it.lanes[s].list->num_instrs);
        it.lanes[s].took_ns = answer[s];
    }
    TRY(replay_run(&it));
    *instr_ns = answer;
    *out_ns = last_end_ns(&it);
    return STATUS_OK;
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

// Sums over trials and replicas.
typedef struct {
    int64_t* makespan_ns;  // [trials] of the slowest replica
    int64_t planned_ns;
    int64_t planned_wait_ns[PLAN_MAX_STAGES], wait_ns[PLAN_MAX_STAGES];
} ReplaySums;

// The key under which an instruction's duration is drawn: a job by its row, a message by the row that it
// comes from.
static uint64_t key_of(const Replay* it, const PlanInstr* instr) {
    const Placement* placement = &it->plan->placement;
    PlanMessage message = {0};
    bool is_job = plan_instr_is_job((InstrKind)instr->kind);
    if (!is_job) { plan_message_of(&message, placement, it->plan->P, instr); }
    bool from_before = message.kind == MESSAGE_ACT && message.row < placement->num_chunks;
    int32_t row = is_job ? instr->chunk : from_before ? message.row - 1 : message.row;
    int32_t kind = is_job ? (int32_t)plan_instr_job((InstrKind)instr->kind) : JOB_COUNT + message.kind;
    return ((uint64_t)row << 40 | (uint64_t)(instr->mb - it->begin) << 8 | (uint64_t)kind) *
           0x9e3779b97f4a7c15u;
}

// planned_ns with the noise of this pair of trials, negated for its second one.
static void draw(const Replay* it, int64_t* const* ns, int64_t* const* planned_ns, int64_t unit,
                 uint64_t pair_seed, bool second) {
    for (int32_t s = 0; s < it->plan->P; s++) {
        const PlanRank* list = it->lanes[s].list;
        for (int32_t i = 0; i < list->num_instrs; i++) {
            const PlanInstr* instr = &list->instrs[i];
            if (!plan_instr_is_job((InstrKind)instr->kind) && !plan_instr_is_send(instr->kind)) { continue; }
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
        if (!plan_instr_is_job((InstrKind)list->instrs[i].kind)) { continue; }
        ns[i] = ns[i] / 1000 * noise->slow_permille + ns[i] % 1000 * noise->slow_permille / 1000;
    }
}

static Status replay_replica(ReplaySums* sums, const Plan* plan, int32_t r, int64_t tail_ns,
                             const ReplayNoise* noise, Arena* scratch) {
    Replay it;
    int64_t *planned_ns[PLAN_MAX_STAGES], *ns[PLAN_MAX_STAGES];
    int64_t whole_ns[PLAN_MAX_STAGES] = {0}, rest_ns[PLAN_MAX_STAGES] = {0};
    TRY(replay_init(&it, plan, r, scratch));
    TRY(durations_set(&it, planned_ns, NULL, scratch));
    TRY(replay_run(&it));
    int64_t makespan_ns = last_end_ns(&it) + tail_ns;
    if (makespan_ns > sums->planned_ns) { sums->planned_ns = makespan_ns; }
    for (int32_t s = 0; s < plan->P; s++) {
        sums->planned_wait_ns[s] += it.lanes[s].last_ns - it.lanes[s].busy_ns;
        ARENA_TRY_NEW(ns[s], scratch, int64_t, it.lanes[s].list->num_instrs);
        it.lanes[s].ns = ns[s];
    }
    if (noise->slow_permille > 0) { slow_down(&it, planned_ns[noise->slow_stage], noise); }
    int64_t unit = unit_factor(noise->noise_permille);
    uint64_t pair_seed = 0;
    Rng rng = rng_seed(replay_replica_seed(noise->seed, r));
    for (int32_t trial = 0; trial < noise->trials; trial++) {
        if (trial % 2 == 0) { pair_seed = rng_u64(&rng); }
        draw(&it, ns, planned_ns, unit, pair_seed, trial % 2 == 1);
        TRY(replay_run(&it));
        makespan_ns = last_end_ns(&it) + tail_ns;
        if (makespan_ns > sums->makespan_ns[trial]) { sums->makespan_ns[trial] = makespan_ns; }
        for (int32_t s = 0; s < plan->P; s++) {
            int64_t wait_ns = it.lanes[s].last_ns - it.lanes[s].busy_ns;
            whole_ns[s] += wait_ns / noise->trials;
            rest_ns[s] += wait_ns % noise->trials;
        }
    }
    for (int32_t s = 0; s < plan->P; s++) { sums->wait_ns[s] += whole_ns[s] + rest_ns[s] / noise->trials; }
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
