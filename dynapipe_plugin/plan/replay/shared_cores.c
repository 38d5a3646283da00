// shared_cores.c -- jobs as tasks that share a host's cores evenly: from one instant at which a job begins or
// ends to the next.
#include "shared_cores.h"

#include "../lists/plan_message.h"
#include "../lists/plan_words.h"
#include "../pipe/pipe_schedule.h"
#include "stage_order.h"

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

static int64_t cell_of(const Share* share, int32_t row, int32_t m) {
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
        share->posted[message.kind][cell_of(share, message.row, instr->mb)] = num_jobs;
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
        int64_t arrival_ns = share->arrival_ns[reads[i].kind][cell_of(share, reads[i].row, next->mb)] - 1;
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
        int64_t cell = cell_of(share, message.row, lane->list->instrs[i].mb);
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
        int64_t cell = cell_of(share, makes[i].row, job->mb);
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

static void advance(Share* share, const Rate* rates, int64_t to_ns) {
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
        advance(share, rates, to_ns);
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
