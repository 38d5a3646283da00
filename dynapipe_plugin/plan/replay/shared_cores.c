// shared_cores.c -- jobs as tasks that share a host's cores evenly: from one instant at which a job begins or
// ends to the next.
#include "shared_cores.h"

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
    int64_t* arrival_ns[2];              // [M] + 1 of activation, of gradient; 0: not known yet
    int64_t* send_ns[2];                 // [M] that the transfer takes; -1: none
} Lane;

typedef struct {
    const Plan* plan;
    const SharedCores* shared;
    Lane* lanes;  // [P]
    int64_t now_ns;
} Share;

static int64_t instr_ns_of(const PlanInstr* instr) {
    return instr->end_ns > instr->begin_ns ? instr->end_ns - instr->begin_ns : 0;
}

static const PlanInstr* next_of(const Lane* lane) {
    return lane->at < lane->order.num ? &lane->list->instrs[lane->order.instrs[lane->at]] : NULL;
}

static Status lane_init(Lane* lane, const Plan* plan, const PlanRank* list, Arena* arena) {
    *lane = (Lane){.list = list};
    TRY(stage_order(&lane->order, plan, list, arena));
    PIPE_NEW(lane->ns, arena, int64_t, list->num_instrs);
    for (int i = 0; i < 2; i++) {
        PIPE_NEW(lane->arrival_ns[i], arena, int64_t, plan->M);
        PIPE_NEW(lane->send_ns[i], arena, int64_t, plan->M);
        for (int32_t m = 0; m < plan->M; m++) { lane->send_ns[i][m] = -1; }
    }
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        if (instr->mb < 0 || instr->mb >= plan->M || instr_ns_of(instr) > INT64_MAX / (INT64_C(1) << 24)) {
            return FAIL(STATUS_INVALID_PLAN,
                        "instruction %d: no such micro-batch or time ---> check the plan", i);
        }
        lane->ns[i] = instr_ns_of(instr);
        if (instr->kind == INSTR_SEND_ACT) { lane->send_ns[0][instr->mb] = lane->ns[i]; }
        if (instr->kind == INSTR_SEND_GRAD) { lane->send_ns[1][instr->mb] = lane->ns[i]; }
    }
    return STATUS_OK;
}

// When a stage's next job may begin, or it may take its next message; -1: not known yet.
static int64_t ready_ns(const Share* share, int32_t s) {
    const Lane* lane = &share->lanes[s];
    const PlanInstr* next = next_of(lane);
    bool act = (next->kind == INSTR_FWD && s > 0) || next->kind == INSTR_RECV_ACT;
    bool grad = (next->kind == INSTR_BWD && s < share->plan->P - 1) || next->kind == INSTR_RECV_GRAD;
    int64_t arrival_ns = act || grad ? lane->arrival_ns[grad][next->mb] - 1 : 0;
    return arrival_ns < 0 || arrival_ns > lane->taking_ns ? arrival_ns : lane->taking_ns;
}

// Its job has ended: what it causes to be sent is on its way, or ready for who takes it.
static void end_job(Share* share, int32_t s) {
    Lane* lane = &share->lanes[s];
    const PlanInstr* job = next_of(lane);
    lane->ns[lane->order.instrs[lane->at++]] = share->now_ns - lane->begin_ns;
    lane->runs = false;
    bool is_grad = job->kind == INSTR_BWD;
    int32_t peer = is_grad ? s - 1 : s + 1;
    if ((!is_grad && job->kind != INSTR_FWD) || peer < 0 || peer >= share->plan->P ||
        lane->send_ns[is_grad][job->mb] < 0) {
        return;
    }
    if (share->plan->pulls) {
        share->lanes[peer].arrival_ns[is_grad][job->mb] = share->now_ns + 1;
        return;
    }
    int64_t begin_ns = share->now_ns > lane->link_ns ? share->now_ns : lane->link_ns;
    lane->link_ns = begin_ns + lane->send_ns[is_grad][job->mb];
    share->lanes[peer].arrival_ns[is_grad][job->mb] = lane->link_ns + 1;
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
    PIPE_NEW(share.lanes, arena, Lane, plan->P);
    PIPE_NEW(rates, arena, Rate, shared->num_hosts);
    PIPE_NEW(answer, arena, int64_t*, plan->P);
    for (int32_t s = 0; s < plan->P; s++) {
        TRY(lane_init(&share.lanes[s], plan, &plan->ranks[replica * plan->P + s], arena));
        answer[s] = share.lanes[s].ns;
    }
    TRY(run(&share, rates));
    *instr_ns = answer;
    *out_ns = share.now_ns;
    return STATUS_OK;
}
