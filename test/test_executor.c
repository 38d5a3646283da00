// test_executor.c -- any valid plan gives the gradients and losses of the plain loop, bit for bit (sums are
// exact), on the host and on a device that is late: what a job reads was joined before it, what is reused was
// waited for, groups change nothing. Invalid plans end with a message, never with a hang.
#include <stdbool.h>

#include "../util/program.h"
#include "../dynapipe_plugin/run/executor.h"
#include "../dynapipe_plugin/run/transfers.h"
#include "ranks.h"
#include "test.h"
#include "toy_model.h"

// --- a device that is late
// ----------------------------------------------------------------------------------- Its work runs only when
// somebody asks whether it is done, in any order that its queues allow. Two queues, as on a GPU with NCCL:
// jobs, which are the toy's calls, and transfers, which run one after the other, each once the jobs queued
// before its post are done; a job queued after join(request) waits for that transfer. Groups run as one. A
// transfer is a pair of messages of the transport underneath (host), begun when its turn comes, never
// earlier: rendezvous.

enum { MAX_WORK = 4096, MAX_PARTS = 8 };

typedef enum {
    WORK_FORWARD,
    WORK_BACKWARD_INPUTS,
    WORK_BACKWARD_WEIGHTS,
    WORK_COMBINE,
    WORK_MARK,
    WORK_JOIN
} WorkKind;

typedef struct {
    WorkKind kind;
    ToyModel* toy;
    const DynapipeBatch* batch;
    const void *in, *dout;
    void *out, *acts, *din, *scratch;
    float* losses;
    int flags, idx;  // of the mark, or the transfer that is joined
    int32_t num_parts;
    const void* parts[MAX_PARTS];
    void* factors[MAX_PARTS];
} Work;

typedef struct {
    int32_t peer, tag;
    void* data;
    size_t num_bytes;
    bool is_send, is_done;
    int after;      // work queued before it
    int group;      // transfers of one group have one number
    void* request;  // of the host's transport, once begun
} Move;

typedef struct LazyDevice {
    Transport* host;
    DynapipeModel_v1 api;  // of its models: the toy's, with these queues
    Rng rng;
    Work work[MAX_WORK];
    int num_work, num_worked;
    Move moves[MAX_WORK];
    int num_moves, num_moved, group;
    bool in_group, forgets, failed;
    int num_groups;
    int32_t num_marks, num_passed, most_marks;
    int64_t mark_ns[MAX_WORK];
    bool mark_done[MAX_WORK];
    float losses[TOY_MAX_ROWS];  // of infer()
} LazyDevice;

// --- the queues ------------------------------------------------------------------------------------------
static bool run_work(LazyDevice* lazy) {
    if (lazy->num_worked == lazy->num_work) { return false; }
    const Work* w = &lazy->work[lazy->num_worked];
    if (w->kind == WORK_JOIN && !lazy->moves[w->idx].is_done) { return false; }
    int rc = 0;
    if (w->kind == WORK_FORWARD) {
        rc = toy_api.forward(w->toy, w->batch, w->in, w->out, w->acts, w->scratch, w->losses, w->flags);
    } else if (w->kind == WORK_BACKWARD_INPUTS) {
        rc = toy_api.backward_inputs(w->toy, w->batch, w->in, w->acts, w->dout, w->din, w->scratch);
    } else if (w->kind == WORK_BACKWARD_WEIGHTS) {
        rc = toy_api.backward_weights(w->toy, w->batch, w->acts, w->dout, w->scratch);
    } else if (w->kind == WORK_COMBINE) {
        void* const* factors = w->din == NULL ? NULL : w->factors;
        rc = toy_api.combine(w->toy, w->batch, w->num_parts, w->parts, w->din, factors, w->losses);
    } else if (w->kind == WORK_MARK) {
        lazy->mark_done[w->idx] = true;
        lazy->num_passed++;
        lazy->mark_ns[w->idx] = clock_now_ns();
    }
    lazy->failed |= rc != 0;
    lazy->num_worked++;
    return true;
}

// The transfer, or group, whose turn it is.
static Status run_moves(LazyDevice* lazy, bool* moved) {
    if (lazy->num_moved == lazy->num_moves ||
        (lazy->in_group && lazy->moves[lazy->num_moved].group == lazy->group)) {
        return STATUS_OK;
    }
    const DynapipeTransport_v1* api = lazy->host->api;
    int group = lazy->moves[lazy->num_moved].group;
    bool all_done = true;
    for (int i = lazy->num_moved; i < lazy->num_moves && lazy->moves[i].group == group; i++) {
        Move* m = &lazy->moves[i];
        if (m->is_done) { continue; }
        if (lazy->num_worked < m->after) { return STATUS_OK; }
        if (m->request == NULL) {
            TRY(m->is_send
                    ? api->isend(lazy->host->ctx, m->peer, m->tag, m->data, m->num_bytes, &m->request)
                    : api->irecv(lazy->host->ctx, m->peer, m->tag, m->data, m->num_bytes, &m->request));
        }
        int done;
        TRY(api->test(lazy->host->ctx, m->request, &done));
        m->is_done = done != 0;
        all_done &= m->is_done;
        *moved |= m->is_done;
    }
    while (all_done && lazy->num_moved < lazy->num_moves && lazy->moves[lazy->num_moved].group == group) {
        lazy->num_moved++;
    }
    return STATUS_OK;
}

// A few things, chosen by lot.
static Status run_some(LazyDevice* lazy) {
    bool moved = false;
    for (int tries = rng_between(&lazy->rng, 0, 3); tries > 0; tries--) {
        if (rng_between(&lazy->rng, 0, 1) == 0) {
            run_work(lazy);
        } else {
            TRY(run_moves(lazy, &moved));
        }
    }
    return lazy->failed ? FAIL(STATUS_DEVICE, "lazy: a job failed") : STATUS_OK;
}

static void add_work(LazyDevice* lazy, Work work) {
    if (lazy->num_work == MAX_WORK) { abort(); }
    lazy->work[lazy->num_work++] = work;
}

static int queue(void* model, Work work) {
    work.toy = model;
    add_work(work.toy->device, work);
    return 0;
}

static int lazy_forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                        void* scratch, float* losses, int flags) {
    return queue(model, (Work){WORK_FORWARD, .batch = batch, .in = in, .out = out, .acts = acts,
                               .scratch = scratch, .losses = losses, .flags = flags});
}

static int lazy_backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                                const void* dout, void* din, void* scratch) {
    return queue(model, (Work){WORK_BACKWARD_INPUTS, .batch = batch, .in = in, .acts = acts, .dout = dout,
                               .din = din, .scratch = scratch});
}

static int lazy_backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                                 void* scratch) {
    return queue(
        model, (Work){WORK_BACKWARD_WEIGHTS, .batch = batch, .acts = acts, .dout = dout, .scratch = scratch});
}

static int lazy_combine(void* model, const DynapipeBatch* batch, int32_t num_parts, const void* const* parts,
                        void* dout, void* const* factors, float* losses) {
    Work work = {WORK_COMBINE, .batch = batch, .din = dout, .losses = losses, .num_parts = num_parts};
    if (num_parts > MAX_PARTS) { abort(); }
    for (int32_t p = 0; p < num_parts; p++) {
        work.parts[p] = parts[p];
        if (factors != NULL) { work.factors[p] = factors[p]; }
    }
    return queue(model, work);
}

static int64_t no_cache_bytes(void* model, const DynapipeCache* cache) {
    (void)model, (void)cache;
    return 0;
}

static int64_t lazy_infer_bytes(void* model, const DynapipeBatch* batch) {
    return toy_api.acts_bytes(model, batch, DYNAPIPE_FORWARD_HEAD) + toy_api.scratch_bytes(model, batch);
}

// Forward; the last stage waits for its result in here, where transfers do not move. next (num_rows): losses.
static int lazy_infer(void* model, const DynapipeBatch* batch, const DynapipeCache* cache, const void* in,
                      void* out, void* scratch, int32_t* next) {
    LazyDevice* lazy = ((ToyModel*)model)->device;
    (void)cache;
    unsigned char* after_acts =
        (unsigned char*)scratch + toy_api.acts_bytes(model, batch, DYNAPIPE_FORWARD_HEAD);
    lazy_forward(model, batch, in, out, scratch, after_acts, lazy->losses, DYNAPIPE_FORWARD_HEAD);
    if (!((ToyModel*)model)->is_last) { return 0; }
    while (run_work(lazy)) {}
    for (int32_t r = 0; r < batch->num_rows; r++) { next[r] = (int32_t)lazy->losses[r]; }
    return lazy->num_worked == lazy->num_work ? 0 : 1;
}

// By now the executor has waited for everything.
static int lazy_finish(void* model) {
    const LazyDevice* lazy = ((const ToyModel*)model)->device;
    return lazy->num_worked == lazy->num_work && lazy->num_moved == lazy->num_moves ? 0 : 1;
}

// --- the device ------------------------------------------------------------------------------------------
static Status device_begin(void* ctx, int32_t num_marks) {
    LazyDevice* lazy = ctx;
    if (num_marks > MAX_WORK || lazy->num_worked < lazy->num_work) {
        return FAIL(STATUS_DEVICE, "lazy: not idle");
    }
    lazy->num_work = lazy->num_worked = lazy->num_moves = lazy->num_moved = 0;
    lazy->num_marks = lazy->num_passed = 0;
    lazy->group++;
    memset(lazy->mark_done, 0, sizeof lazy->mark_done);
    return STATUS_OK;
}

static Status device_mark(void* ctx, int32_t* out) {
    LazyDevice* lazy = ctx;
    *out = lazy->num_marks++;
    if (lazy->num_marks - lazy->num_passed > lazy->most_marks) {
        lazy->most_marks = lazy->num_marks - lazy->num_passed;
    }
    add_work(lazy, (Work){.kind = WORK_MARK, .idx = *out});
    return STATUS_OK;
}

static Status device_is_done(void* ctx, int32_t mark, int* done) {
    LazyDevice* lazy = ctx;
    TRY(run_some(lazy));
    *done = lazy->mark_done[mark];
    return STATUS_OK;
}

static Status device_mark_ns(void* ctx, int32_t mark, int64_t* out_ns) {
    *out_ns = ((LazyDevice*)ctx)->mark_ns[mark];
    return STATUS_OK;
}

static Status device_settle(void* ctx) {
    const LazyDevice* lazy = ctx;
    return lazy->num_worked == lazy->num_work ? STATUS_OK : FAIL(STATUS_DEVICE, "lazy: not idle");
}

static const DynapipeDevice_v1 device_api = {.begin = device_begin,
                                             .mark = device_mark,
                                             .is_done = device_is_done,
                                             .mark_ns = device_mark_ns,
                                             .settle = device_settle};

// --- the transport ---------------------------------------------------------------------------------------
static Status post(LazyDevice* lazy, Move move, void** request) {
    if (!lazy->in_group) { lazy->group++; }
    move.after = lazy->num_work;
    move.group = lazy->group;
    lazy->moves[lazy->num_moves] = move;
    *request = &lazy->moves[lazy->num_moves++];
    return STATUS_OK;
}

static Status lazy_isend(void* ctx, int32_t peer, int32_t tag, const void* data, size_t num_bytes,
                         void** request) {
    Move move = {
        .peer = peer, .tag = tag, .data = (void*)(uintptr_t)data, .num_bytes = num_bytes, .is_send = true};
    return post(ctx, move, request);
}

static Status lazy_irecv(void* ctx, int32_t peer, int32_t tag, void* data, size_t num_bytes, void** request) {
    return post(ctx, (Move){.peer = peer, .tag = tag, .data = data, .num_bytes = num_bytes}, request);
}

static Status lazy_test(void* ctx, void* request, int* done) {
    TRY(run_some(ctx));
    *done = ((const Move*)request)->is_done;
    return STATUS_OK;
}

static Status lazy_join(void* ctx, void* request, int* joined) {
    LazyDevice* lazy = ctx;
    const Move* move = request;
    // Now and then as with staging: not before the data is there.
    *joined = move->is_done || rng_between(&lazy->rng, 0, 3) > 0;
    if (*joined && !lazy->forgets) {
        add_work(lazy, (Work){.kind = WORK_JOIN, .idx = (int)(move - lazy->moves)});
    }
    return STATUS_OK;
}

static Status lazy_group_begin(void* ctx) {
    LazyDevice* lazy = ctx;
    lazy->in_group = true;
    lazy->group++;
    return STATUS_OK;
}

static Status lazy_group_end(void* ctx) {
    LazyDevice* lazy = ctx;
    lazy->in_group = false;
    lazy->num_groups++;
    return STATUS_OK;
}

static const DynapipeTransport_v1 transport_api = {.isend = lazy_isend,
                                                   .irecv = lazy_irecv,
                                                   .test = lazy_test,
                                                   .join = lazy_join,
                                                   .group_begin = lazy_group_begin,
                                                   .group_end = lazy_group_end};

static LazyDevice* lazy_create(Transport* host, uint64_t device_seed, bool forgets) {
    LazyDevice* lazy = calloc(1, sizeof *lazy);
    if (lazy == NULL) { abort(); }
    lazy->host = host;
    lazy->rng = rng_seed(device_seed);
    lazy->forgets = forgets;
    lazy->api = toy_api;
    lazy->api.forward = lazy_forward;
    lazy->api.backward_inputs = lazy_backward_inputs;
    lazy->api.backward_weights = lazy_backward_weights;
    lazy->api.finish = lazy_finish;
    lazy->api.cache_bytes = no_cache_bytes;
    lazy->api.infer_bytes = lazy_infer_bytes;
    lazy->api.infer = lazy_infer;
    lazy->api.combine = lazy_combine;
    return lazy;
}

// --- runs ------------------------------------------------------------------------------------------------
static uint64_t seed;
static RankResult results[RANKS_MAX];

#define TIMEOUT_NS ((int64_t)20 * 1000000000)
enum { MAX_MBS = 24, ARENA_BYTES = 4 << 20, NUM_STEPS = 2 };
typedef enum { TRAIN, FORWARD, INFER } Mode;

typedef struct {
    ToyPlan* toy;
    Mode mode;
    int64_t timeout_ns;
    int64_t arena_bytes;  // 0: what the plan says
    int32_t pause_ns, fail_rank, fail_at_job;
    bool is_joint;               // the model has no backward_weights
    bool is_lazy, forget_joins;  // on a device that is late
    uint64_t seed;               // of it
    int num_groups, most_marks;  // groups: of all ranks
    char positions[RANKS_MAX][256];
    ToyModel models[RANKS_MAX][TOY_MAX_ROWS_HERE];
    float losses[MAX_MBS][TOY_MAX_ROWS];
} Run;

// A record of each instruction, one job at a time; on the host, there are no others, and they add up.
static void check_trace(const Run* run, ToyModel* model, const TraceRank* trace, const PlanRank* list) {
    int64_t busy_ns = 0, last_end_ns = trace->begin_ns;
    for (int32_t i = 0; i < trace->num_events; i++) {
        const TraceEvent* e = &trace->events[i];
        const PlanInstr* instr = &list->instrs[i];
        model->num_violations += i < list->num_instrs && (e->kind != instr->kind || e->mb != instr->mb ||
                                                          e->chunk != instr->chunk || e->peer != instr->peer);
        model->num_violations += e->end_ns < e->begin_ns || e->end_ns > trace->end_ns;
        if (e->kind > INSTR_REC) { continue; }
        model->num_violations +=
            e->wait_ns < 0 || e->begin_ns - (run->is_lazy ? 0 : e->wait_ns) < last_end_ns;
        last_end_ns = e->end_ns;
        busy_ns += e->end_ns - e->begin_ns;
    }
    model->num_violations += trace->num_events != list->num_instrs + run->is_lazy;
    model->num_violations += busy_ns != trace->busy_ns;
}

static bool has_head(const Run* run, int32_t rank) {
    const Placement* placement = &run->toy->plan.placement;
    int32_t s = rank % run->toy->plan.P;
    return placement->stage_of[placement->num_chunks - 1] == s || placement_has_share(placement, s);
}

static Status train(const Run* run, Executor* executor, ToyModel* model, int32_t r, void* arena,
                    float* const* losses) {
    const Plan* plan = &run->toy->plan;
    const DynapipeBatch* batches[MAX_MBS];
    for (int32_t m = 0; m < plan->M; m++) {
        batches[m] = plan->mbs[m].replica == r / plan->P ? &run->toy->batches[m].batch : NULL;
    }
    ExecutorStep step = {.plan = plan,
                         .batches = batches,
                         .losses = has_head(run, r) ? losses : NULL,
                         .arena = arena,
                         .arena_bytes = run->arena_bytes > 0 ? run->arena_bytes : plan->ranks[r].arena_bytes};
    for (int32_t k = 0; k < NUM_STEPS; k++) {
        TRY(executor_prepare_step(executor, &step, NULL));
        TRY(executor_start(executor));
        if (run->is_lazy) {
            TRY(executor_queue_begin(executor, TRACE_REDUCE));
            TRY(executor_queue_end(executor));
        }
        TRY(executor_finish(executor));
        check_trace(run, model, executor_trace(executor), &plan->ranks[r]);
    }
    return STATUS_OK;
}

static Status forward(const Run* run, Executor* executor, void* arena, float* const* losses) {
    const Plan* plan = &run->toy->plan;
    DynapipeBatch batches[MAX_MBS];
    for (int32_t m = 0; m < plan->M; m++) { batches[m] = run->toy->batches[m].batch; }
    ExecutorPass of = {.placement = &plan->placement,
                       .num_stages = plan->P,
                       .batches = batches,
                       .num_batches = plan->M,
                       .losses = losses,
                       .arena = arena};
    executor_pass_bytes(&of.arena_bytes, NULL, executor, &of);
    EXPECT(of.arena_bytes <= ARENA_BYTES);
    for (int32_t k = 0; k < NUM_STEPS; k++) { TRY(executor_run_pass(executor, &of)); }
    if (of.arena_bytes-- == 0) { return STATUS_OK; }
    EXPECT(executor_run_pass(executor, &of) == STATUS_OUT_OF_RANGE);
    return STATUS_OK;
}

// One call after the other, as generation does it; the losses come as whole numbers, which they are.
static Status infer_all(const Run* run, Executor* executor, int32_t rank, void* arena, float* const* losses) {
    int32_t next[TOY_MAX_ROWS];
    const Plan* plan = &run->toy->plan;
    const Placement* placement = &plan->placement;
    bool is_last = placement->stage_of[placement->num_chunks - 1] == rank % plan->P;
    for (int32_t m = 0; m < plan->M; m++) {
        const DynapipeBatch* batch = &run->toy->batches[m].batch;
        const DynapipeCache cache = {0};
        int64_t cache_bytes = 0;
        ExecutorPass infer = {.placement = placement,
                              .num_stages = plan->P,
                              .batches = batch,
                              .num_batches = 1,
                              .cache = &cache,
                              .next = next,
                              .arena = arena};
        executor_pass_bytes(&infer.arena_bytes, &cache_bytes, executor, &infer);
        TRY(executor_run_pass(executor, &infer));
        for (int32_t r = 0; is_last && r < batch->num_rows; r++) { losses[m][r] = (float)next[r]; }
    }
    return STATUS_OK;
}

static Status run_mode(const Run* run, Executor* executor, int32_t rank, ToyModel* model, void* arena) {
    float* losses[MAX_MBS];
    for (int32_t m = 0; m < run->toy->plan.M; m++) { losses[m] = (float*)(uintptr_t)run->losses[m]; }
    return run->mode == TRAIN     ? train(run, executor, model, rank, arena, losses)
           : run->mode == FORWARD ? forward(run, executor, arena, losses)
                                  : infer_all(run, executor, rank, arena, losses);
}

// A model that cannot divide its backward: all of it here.
static int backward_joint(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                          const void* dout, void* din, void* scratch) {
    int rc = toy_api.backward_inputs(model, batch, in, acts, dout, din, scratch);
    return rc != 0 ? rc : toy_api.backward_weights(model, batch, acts, dout, scratch);
}

static Status body(Transport* t, void* arg) {
    Run* run = arg;
    DynapipeModel_v1 joint = toy_api;
    joint.backward_inputs = backward_joint;
    joint.backward_weights = NULL;
    ToyModel* models = run->models[t->rank];
    ExecutorRange ranges[TOY_MAX_ROWS_HERE];
    int32_t rows[TOY_MAX_ROWS_HERE], num_here = toy_plan_rows(run->toy, t->rank, rows);
    LazyDevice* lazy = run->is_lazy ? lazy_create(t, run->seed + (uint64_t)t->rank, run->forget_joins) : NULL;
    for (int32_t i = 0; i < num_here; i++) {
        models[i] = toy_plan_model(run->toy, rows[i]);
        models[i].pause_ns = run->pause_ns;
        models[i].fail_at_job = t->rank == run->fail_rank ? run->fail_at_job : 0;
        models[i].device = lazy;
        ranges[i].api = lazy != NULL ? &lazy->api : run->is_joint ? &joint : &toy_api;
        ranges[i].model = &models[i];
    }
    void* arena = aligned_alloc(PLAN_BUFFER_ALIGN, ARENA_BYTES);
    memset(arena, 0xff, ARENA_BYTES);
    Transport links = *t;
    if (lazy != NULL) { links.api = &transport_api, links.ctx = lazy; }
    Executor* executor;
    TRY(executor_create(&executor, ranges, num_here, &links, run->timeout_ns));
    if (lazy != NULL) { executor_use_device(executor, (Device){&device_api, lazy}); }
    Status status = run_mode(run, executor, t->rank, models, arena);
    executor_position(executor, run->positions[t->rank], sizeof run->positions[0]);
    if (status != STATUS_OK) {  // nobody may write into the arena after it is freed
        char why[1024];
        snprintf(why, sizeof why, "%s", status_message());
        t->api->abort(t->ctx, why);
        status = FAIL(status, "%s", why);
    }
    executor_free(executor);
    if (lazy != NULL) {
        __atomic_add_fetch(&run->num_groups, lazy->num_groups, __ATOMIC_SEQ_CST);
        if (t->rank == 0) { run->most_marks = lazy->most_marks; }
    }
    free(lazy);
    free(arena);
    return status;
}

// Differences of what all ranks have from what one loop has, each num_values long, the ranks' summed.
static int32_t differ(const Run* run, size_t offset, const float* direct, int32_t num_values) {
    int32_t differences = 0;
    for (int32_t i = 0; i < num_values; i++) {
        float sum = 0;
        for (int32_t r = 0; r < run->toy->plan.P * run->toy->plan.R; r++) {
            for (int32_t k = 0; k < TOY_MAX_ROWS_HERE; k++) {
                sum += ((const float*)(const void*)((const char*)&run->models[r][k] + offset))[i];
            }
        }
        differences += !(sum == NUM_STEPS * direct[i]);
    }
    return differences;
}

// Differences in gradients (of NUM_STEPS equal steps) and losses.
static int32_t count_differences(const Run* run) {
    static float losses[MAX_MBS][TOY_MAX_ROWS];
    ToyModel direct;
    const ToyPlan* toy = run->toy;
    toy_plan_run_directly(toy, &direct, losses);
    int32_t differences = 0, num_ranks = toy->plan.P * toy->plan.R;
    for (int32_t r = 0; r < num_ranks; r++) {
        for (int32_t k = 0; k < TOY_MAX_ROWS_HERE; k++) { differences += run->models[r][k].num_violations; }
    }
    if (run->mode == TRAIN) {
        enum { NUM_LAYER_VALUES = TOY_MAX_LAYERS * TOY_CHANNELS };
        differences += differ(run, offsetof(ToyModel, da), direct.da[0], NUM_LAYER_VALUES);
        differences += differ(run, offsetof(ToyModel, db), direct.db[0], NUM_LAYER_VALUES);
        differences += differ(run, offsetof(ToyModel, dh), direct.dh, TOY_VOCAB);
    }
    for (int32_t m = 0; m < toy->plan.M; m++) {
        for (int32_t i = 0; i < toy->batches[m].batch.num_rows; i++) {
            differences += !(run->losses[m][i] == losses[m][i]);
        }
    }
    return differences;
}

// Runs a random plan; the number of differences, or of ranks that failed.
static int32_t run_random(Rng* rng, Run* run, int32_t P, int32_t R, int print) {
    Arena arena = {0};
    ToyPlan toy;
    do {  // the toy's answers are of a whole head
        toy_plan_make(&toy, rng, P, R, rng_between(rng, 1, MAX_MBS), &arena);
    } while (run->mode == INFER && toy.plan.placement.head != HEAD_WHOLE);
    run->toy = &toy;
    run->timeout_ns = TIMEOUT_NS;
    run->fail_rank = -1;
    run->seed = rng_u64(rng);
    run->is_joint &= toy.plan.placement.head != HEAD_BY_VOCABULARY;
    int failed = ranks_run(P * R, body, run, results, print);
    int32_t differences = failed > 0 ? failed : count_differences(run);
    if (print && differences > 0) {
        printf("P %d R %d M %d K %d head %d\n", P, R, toy.plan.M, toy.plan.placement.num_chunks,
               toy.plan.placement.head);
    }
    arena_free(&arena);
    return differences;
}

static void any_plan_gives_the_gradients_of_the_plain_loop(void) {
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 120; trial++) {
        int32_t P = rng_between(&rng, 1, 5), R = rng_between(&rng, 1, P < 3 ? 4 : 2);
        Run run = {.pause_ns = trial % 3 == 0 ? 3000 : 0, .is_joint = trial % 4 == 3};
        CHECK_EQ(run_random(&rng, &run, P, R, 1), 0);
    }
}

static void a_late_device_gives_the_same(void) {
    Rng rng = rng_seed(seed);
    int most_marks = 0;
    for (int trial = 0; trial < 100; trial++) {
        Run run = {.is_lazy = true};
        int32_t P = rng_between(&rng, 1, 5), R = rng_between(&rng, 1, P < 3 ? 3 : 1);
        CHECK_EQ(run_random(&rng, &run, P, R, 1), 0);
        CHECK_EQ(run.num_groups, 0);  // of steps: transfers go one by one
        if (run.most_marks > most_marks) { most_marks = run.most_marks; }
    }
    // Those a device has left, the one being queued, and the sums after the last.
    CHECK_EQ(most_marks, 2 * (TRANSFERS_JOBS_AHEAD + 2));
}

// What a model waits for inside infer() has arrived before: nobody looks at the clock in there.
static void forward_only_gives_the_same_losses(void) {
    Rng rng = rng_seed(seed + 1);
    int num_groups = 0;
    for (int trial = 0; trial < 60; trial++) {
        Run run = {.mode = trial % 3 == 0 ? INFER : FORWARD, .is_lazy = trial % 3 < 2};
        CHECK_EQ(run_random(&rng, &run, rng_between(&rng, 1, 4), 1, 1), 0);
        num_groups += run.num_groups;
    }
    CHECK(num_groups > 100);  // the messages of a wave are one
}

// Without join() jobs read what has not arrived: the device is late enough to show it.
static void a_forgotten_join_shows(void) {
    Rng rng = rng_seed(seed + 2);
    int shown = 0;
    for (int trial = 0; trial < 10; trial++) {
        Run run = {.is_lazy = true, .forget_joins = true};
        shown += run_random(&rng, &run, 3, 1, 0) > 0;
    }
    CHECK(shown >= 8);
}

// --- plans and models that are wrong ---------------------------------------------------------------------
typedef struct {
    Arena arena;
    ToyPlan toy;
    Run run;
} Wrong;

static void wrong_open(Wrong* w, int32_t P) {
    Rng rng = rng_seed(seed + 2);
    *w = (Wrong){0};
    toy_plan_make_linear(&w->toy, &rng, P, 1, 6, &w->arena);
    w->run = (Run){.toy = &w->toy, .timeout_ns = 200 * 1000000, .fail_rank = -1};
}

// Runs the broken plan on P ranks: `rank` must report `status` with `words`, within a second, and nobody
// hangs.
static void wrong_close(Wrong* w, int32_t rank, Status status, const char* words) {
    int64_t begin_ns = clock_now_ns();
    int failed = ranks_run(w->toy.plan.P, body, &w->run, results, 0);
    CHECK(clock_now_ns() - begin_ns < (int64_t)5 * 1000000000);
    CHECK(failed > 0);
    CHECK_EQ(results[rank].status, status);
    if (strstr(results[rank].message, words) == NULL) {
        printf("message \"%s\", expected \"%s\"\n", results[rank].message, words);
        test_failures++;
    }
    arena_free(&w->arena);
}

static PlanBuffer* buffer_of(Wrong* w, int32_t rank, BufferKind kind, int32_t mb) {
    PlanRank* list = &w->toy.plan.ranks[rank];
    for (int32_t i = 0; i < list->num_buffers; i++) {
        if (list->buffers[i].kind == kind && list->buffers[i].mb == mb) { return &list->buffers[i]; }
    }
    return NULL;
}

static void buffers_too_small_for_the_model_are_refused(void) {
    static const BufferKind kinds[] = {BUFFER_IN, BUFFER_OUT, BUFFER_ACTS, BUFFER_DOUT, BUFFER_DIN};
    Wrong w;
    for (int i = 0; i < 5; i++) {
        wrong_open(&w, 3);
        PlanBuffer* buffer = buffer_of(&w, 1, kinds[i], 2);
        long long needed = buffer->num_bytes;
        buffer->num_bytes -= 4;
        char words[64];
        snprintf(words, sizeof words, "needs %lld bytes", needed);
        wrong_close(&w, 1, STATUS_INVALID_PLAN, words);
        CHECK(strstr(results[1].message, "---> its bytes must come from counts") != NULL);
    }
    wrong_open(&w, 2);
    buffer_of(&w, 0, BUFFER_SCRATCH, -1)->num_bytes = 8;
    wrong_close(&w, 0, STATUS_INVALID_PLAN, "of scratch, the plan gives 8");
    wrong_open(&w, 2);
    w.run.arena_bytes = 1000;
    wrong_close(&w, 0, STATUS_INVALID_PLAN, "the arena has 1000");
}

// Somebody waits for ever, says for what, and every rank can tell where it stands.
static void a_missing_message_is_a_message_not_a_hang(void) {
    for (int is_lazy = 0; is_lazy < 2; is_lazy++) {
        Wrong w;
        wrong_open(&w, 2);
        int32_t mb = w.toy.plan.ranks[0].instrs[toy_plan_find(&w.toy, 0, INSTR_SEND_ACT, -1)].mb;
        toy_plan_remove(&w.toy, 0, toy_plan_find(&w.toy, 0, INSTR_SEND_ACT, mb));
        int32_t wait = toy_plan_find(&w.toy, 0, INSTR_WAIT_ACT, mb);
        if (wait >= 0) { toy_plan_remove(&w.toy, 0, wait); }
        w.run.timeout_ns = 300 * 1000000;
        w.run.is_lazy = is_lazy;
        w.run.seed = seed;
        int64_t begin_ns = clock_now_ns();
        CHECK_EQ(ranks_run(2, body, &w.run, results, 0), 2);
        CHECK(clock_now_ns() - begin_ns < (int64_t)5 * 1000000000);
        CHECK_EQ(results[0].status, STATUS_COMM);
        CHECK(strstr(results[1].message, "---> see what ") != NULL);
        for (int32_t r = 0; r < 2 && is_lazy; r++) {
            CHECK(strstr(w.run.positions[r], "queued jobs done") != NULL);
            CHECK(strstr(w.run.positions[r], "not through: ") != NULL);
        }
        // Rank 0 may give up first, over what rank 1 does not come to; both name what they wait for.
        char words[96];
        snprintf(words, sizeof words, "mb %d waits for recv_act mb %d with rank 0", mb, mb);
        bool named = strstr(results[1].message, words) != NULL;
        CHECK(is_lazy || named || strstr(results[0].message, " with rank 1, nothing moved") != NULL);
        arena_free(&w.arena);
    }
}

static void an_error_of_the_model_names_the_instruction(void) {
    Wrong w;
    wrong_open(&w, 3);
    w.run.fail_rank = 2;
    w.run.fail_at_job = 5;
    wrong_close(&w, 2, STATUS_OUT_OF_RANGE, "the model toy returned error 77");
    CHECK(strncmp(results[2].message, "rank 2: ", 8) == 0);
    CHECK_EQ(results[0].status, STATUS_COMM);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(any_plan_gives_the_gradients_of_the_plain_loop);
    RUN(a_late_device_gives_the_same);
    RUN(forward_only_gives_the_same_losses);
    if (!TEST_SEES_RACES) { RUN(a_forgotten_join_shows); }
    RUN(buffers_too_small_for_the_model_are_refused);
    RUN(a_missing_message_is_a_message_not_a_hang);
    RUN(an_error_of_the_model_names_the_instruction);
    return test_end();
}
