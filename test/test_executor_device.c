// test_executor_device.c -- on a device that is late, any plan still gives the gradients of the plain loop:
// what a job reads was joined before it, what is reused was waited for, groups change nothing, and what hangs
// is told.
#include <stdbool.h>

#include "../util/program.h"
#include "../dynapipe_plugin/run/executor.h"
#include "../dynapipe_plugin/run/transfers.h"
#include "lazy_device.h"
#include "ranks.h"
#include "test.h"
#include "toy_plan.h"

static uint64_t seed;
static RankResult results[RANKS_MAX];

enum { MAX_MBS = 24, ARENA_BYTES = 4 << 20, NUM_STEPS = 2 };

typedef struct {
    ToyPlan* toy;
    uint64_t seed;
    bool forget_joins, forward_only, infer_only;
    int64_t timeout_ns;
    int num_groups[RANKS_MAX], most_marks[RANKS_MAX];
    char positions[RANKS_MAX][256];
    int largest_group[RANKS_MAX];
    ToyModel models[RANKS_MAX][TOY_MAX_ROWS_HERE];
    float losses[MAX_MBS][TOY_MAX_ROWS];
} Run;

static Status run_steps(const Run* run, Executor* executor, ToyModel* model, int32_t rank, void* arena,
                        const DynapipeBatch* const* batches, float* const* losses) {
    const Plan* plan = &run->toy->plan;
    ExecutorStep step = {.plan = plan,
                         .batches = batches,
                         .losses = losses,
                         .arena = arena,
                         .arena_bytes = plan->ranks[rank].arena_bytes};
    for (int32_t k = 0; k < NUM_STEPS; k++) {
        TRY(executor_start(executor, &step));
        TRY(executor_queue_begin(executor, TRACE_REDUCE));
        TRY(executor_queue_end(executor));
        TRY(executor_finish(executor));
        const TraceRank* trace = executor_trace(executor);
        int64_t last_ns = trace->begin_ns;
        for (int32_t i = 0; i < trace->num_events; i++) {
            const TraceEvent* e = &trace->events[i];
            bool is_job = e->kind <= INSTR_REC;
            model->num_violations += e->end_ns < e->begin_ns || e->end_ns > trace->end_ns;
            model->num_violations += is_job && e->begin_ns < last_ns;
            last_ns = is_job ? e->end_ns : last_ns;
        }
    }
    return STATUS_OK;
}

static Status run_forward(const Run* run, Executor* executor, void* arena, float* const* losses) {
    DynapipeBatch batches[MAX_MBS];
    const Plan* plan = &run->toy->plan;
    for (int32_t m = 0; m < plan->M; m++) { batches[m] = run->toy->batches[m].batch; }
    ExecutorForward forward = {.placement = &plan->placement,
                               .num_stages = plan->P,
                               .batches = batches,
                               .num_batches = plan->M,
                               .losses = losses,
                               .arena = arena,
                               .arena_bytes = ARENA_BYTES};
    for (int32_t k = 0; k < NUM_STEPS; k++) { TRY(executor_run_forward(executor, &forward)); }
    return STATUS_OK;
}

// One call after the other, as generation does it; the losses come as whole numbers, which they are.
static Status run_infer(const Run* run, Executor* executor, int32_t rank, void* arena, float* const* losses) {
    int32_t next[TOY_MAX_ROWS];
    const Plan* plan = &run->toy->plan;
    const Placement* placement = &plan->placement;
    bool is_last = placement->stage_of[placement->num_chunks - 1] == rank % plan->P;
    for (int32_t m = 0; m < plan->M; m++) {
        const DynapipeBatch* batch = &run->toy->batches[m].batch;
        const DynapipeCache cache = {0};
        ExecutorInfer infer = {.placement = placement,
                               .num_stages = plan->P,
                               .batch = batch,
                               .cache = &cache,
                               .next = next,
                               .arena = arena};
        TRY(executor_infer_bytes(&infer.arena_bytes, executor, &infer));
        TRY(executor_run_infer(executor, &infer));
        for (int32_t r = 0; is_last && r < batch->num_rows; r++) { losses[m][r] = (float)next[r]; }
    }
    return STATUS_OK;
}

static Status body(Transport* t, void* arg) {
    Run* run = arg;
    const Plan* plan = &run->toy->plan;
    ToyModel* models = run->models[t->rank];
    ExecutorRange ranges[TOY_MAX_ROWS_HERE];
    int32_t rows[TOY_MAX_ROWS_HERE], num_here = toy_plan_rows(run->toy, t->rank, rows);
    LazyDevice* lazy = lazy_device_create(t, run->seed + (uint64_t)t->rank);
    for (int32_t i = 0; i < num_here; i++) {
        models[i] = toy_plan_model(run->toy, rows[i]);
        ranges[i] = (ExecutorRange){&lazy_model_api, lazy_device_add(lazy, &models[i])};
    }
    if (run->forget_joins) { lazy_device_forget_joins(lazy); }
    const DynapipeBatch* batches[MAX_MBS];
    float* losses[MAX_MBS];
    for (int32_t m = 0; m < plan->M; m++) {
        bool is_mine = plan->mbs[m].replica == t->rank / plan->P;
        batches[m] = is_mine ? &run->toy->batches[m].batch : NULL;
        losses[m] = run->losses[m];
    }
    void* arena = aligned_alloc(PLAN_BUFFER_ALIGN, ARENA_BYTES);
    memset(arena, 0xff, ARENA_BYTES);
    Transport links = lazy_transport(lazy);
    Executor* executor;
    TRY(executor_create(&executor, ranges, num_here, &links, run->timeout_ns));
    executor_use_device(executor, lazy_device(lazy));
    Status status = run->infer_only     ? run_infer(run, executor, t->rank, arena, losses)
                    : run->forward_only ? run_forward(run, executor, arena, losses)
                                        : run_steps(run, executor, models, t->rank, arena, batches, losses);
    executor_position(executor, run->positions[t->rank], sizeof run->positions[0]);
    run->num_groups[t->rank] = lazy_device_num_groups(lazy);
    run->largest_group[t->rank] = lazy_device_largest_group(lazy);
    run->most_marks[t->rank] = lazy_device_most_marks(lazy);
    if (status != STATUS_OK) {
        char why[1024];
        snprintf(why, sizeof why, "%s", status_message());
        t->api->abort(t->ctx, why);
        status = FAIL(status, "%s", why);
    }
    executor_free(executor);
    lazy_device_free(lazy);
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

static int32_t count_differences(const Run* run) {
    static float losses[MAX_MBS][TOY_MAX_ROWS];
    ToyModel direct;
    const ToyPlan* toy = run->toy;
    toy_plan_run_directly(toy, &direct, losses);
    int32_t differences = 0, num_ranks = toy->plan.P * toy->plan.R;
    for (int32_t r = 0; r < num_ranks; r++) {
        for (int32_t k = 0; k < TOY_MAX_ROWS_HERE; k++) { differences += run->models[r][k].num_violations; }
    }
    if (!run->forward_only && !run->infer_only) {
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
        toy_plan_make(&toy, rng, P, R, rng_between(rng, 0, 12), &arena);
    } while (run->infer_only && toy.plan.placement.head != HEAD_WHOLE);
    run->toy = &toy;
    run->seed = rng_u64(rng);
    int failed = ranks_run(P * R, RANKS_PLAIN, body, run, results, print);
    int32_t differences = failed > 0 ? failed : count_differences(run);
    arena_free(&arena);
    return differences;
}

static void a_late_device_gives_the_gradients_of_the_plain_loop(void) {
    Rng rng = rng_seed(seed);
    int num_groups = 0, most_marks = 0;
    for (int trial = 0; trial < 100; trial++) {
        Run run = {.timeout_ns = (int64_t)20 * 1000000000};
        int32_t P = rng_between(&rng, 1, 5), R = rng_between(&rng, 1, P < 3 ? 3 : 1);
        int32_t differences = run_random(&rng, &run, P, R, 1);
        CHECK_EQ(differences, 0);
        if (differences > 0) { printf("trial %d: P %d R %d\n", trial, P, R); }
        for (int32_t r = 0; r < P * R; r++) {
            num_groups += run.num_groups[r];
            if (run.most_marks[r] > most_marks) { most_marks = run.most_marks[r]; }
            CHECK(run.largest_group[r] <= 2);  // less where a transfer is empty
        }
    }
    printf("%d groups, %d marks ahead\n", num_groups, most_marks);
    CHECK(num_groups > 100);
    // Those a device has left, the one being queued, and the sums behind the last.
    CHECK_EQ(most_marks, 2 * (TRANSFERS_JOBS_AHEAD + 2));
}

static void forward_only_gives_the_same_losses(void) {
    Rng rng = rng_seed(seed + 1);
    for (int trial = 0; trial < 20; trial++) {
        Run run = {.timeout_ns = (int64_t)20 * 1000000000, .forward_only = true};
        CHECK_EQ(run_random(&rng, &run, rng_between(&rng, 1, 4), 1, 1), 0);
    }
}

// What a model waits for inside infer() has arrived before: nobody looks at the clock in there.
static void generation_waits_for_messages_before_the_model_does(void) {
    Rng rng = rng_seed(seed + 5);
    for (int trial = 0; trial < 20; trial++) {
        Run run = {.timeout_ns = (int64_t)20 * 1000000000, .infer_only = true};
        CHECK_EQ(run_random(&rng, &run, rng_between(&rng, 1, 4), 1, 1), 0);
    }
}

// Without join() jobs read what has not arrived: the device is late enough to show it.
static void a_forgotten_join_shows(void) {
    Rng rng = rng_seed(seed + 2);
    int shown = 0;
    for (int trial = 0; trial < 10; trial++) {
        Run run = {.timeout_ns = (int64_t)20 * 1000000000, .forget_joins = true};
        shown += run_random(&rng, &run, 3, 1, 0) > 0;
    }
    CHECK(shown >= 8);
}

// Both ends must call the same transfers a pair, or one of them would wait for ever.
static void both_ends_of_a_link_form_the_same_groups(void) {
    Rng rng = rng_seed(seed + 3);
    Arena arena = {0};
    int num_groups = 0;
    for (int trial = 0; trial < 200; trial++) {
        ToyPlan toy;
        toy_plan_make_linear(&toy, &rng, rng_between(&rng, 2, 5), 1, rng_between(&rng, 1, 12), &arena);
        const Plan* plan = &toy.plan;
        uint8_t grouped[2][512];
        int32_t room[512];
        for (int32_t r = 0; r + 1 < plan->P; r++) {
            const PlanRank *a = &plan->ranks[r], *b = &plan->ranks[r + 1];
            CHECK(a->num_instrs <= 512 && b->num_instrs <= 512);
            transfer_groups_find(grouped[0], plan, r, room);
            transfer_groups_find(grouped[1], plan, r + 1, room);
            for (int32_t i = 0; i < a->num_instrs; i++) {
                if (!grouped[0][i] || a->instrs[i].peer != r + 1) { continue; }
                num_groups++;
                int32_t k = 0;  // the same transfer there
                for (; k < b->num_instrs; k++) {
                    bool same_mb = b->instrs[k].mb == a->instrs[i].mb && b->instrs[k].peer == r;
                    bool is_act = a->instrs[i].kind == INSTR_SEND_ACT;
                    if (same_mb && b->instrs[k].kind == (is_act ? INSTR_RECV_ACT : INSTR_SEND_GRAD)) {
                        break;
                    }
                }
                CHECK(k < b->num_instrs && grouped[1][k]);
            }
        }
        arena_reset(&arena);
    }
    CHECK(num_groups > 100);
    arena_free(&arena);
}

// A send is missing: somebody waits for ever, and every rank can say where it stands.
static void a_hang_is_told_with_positions(void) {
    Rng rng = rng_seed(seed + 4);
    Arena arena = {0};
    ToyPlan toy;
    toy_plan_make_linear(&toy, &rng, 2, 1, 8, &arena);
    // Rank 0 never sends the last activation of its list that has bytes.
    int32_t last = -1;
    for (int32_t i = 0; i < toy.plan.ranks[0].num_instrs; i++) {
        const PlanInstr* instr = &toy.plan.ranks[0].instrs[i];
        if (instr->kind == INSTR_SEND_ACT && toy.batches[instr->mb].batch.num_tokens > 0) { last = i; }
    }
    int32_t mb = toy.plan.ranks[0].instrs[last].mb;
    toy_plan_remove(&toy, 0, last);
    int32_t wait = toy_plan_find(&toy, 0, INSTR_WAIT_ACT, mb);
    if (wait >= 0) { toy_plan_remove(&toy, 0, wait); }
    Run run = {.toy = &toy, .seed = seed, .timeout_ns = 300 * 1000000};
    int64_t begin_ns = clock_now_ns();
    CHECK_EQ(ranks_run(2, RANKS_PLAIN, body, &run, results, 0), 2);
    CHECK(clock_now_ns() - begin_ns < (int64_t)5 * 1000000000);
    CHECK_EQ(results[0].status, STATUS_COMM);
    for (int32_t r = 0; r < 2; r++) {
        CHECK(strstr(run.positions[r], "queued jobs done") != NULL);
        CHECK(strstr(run.positions[r], "not through: ") != NULL);
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(a_late_device_gives_the_gradients_of_the_plain_loop);
    RUN(forward_only_gives_the_same_losses);
    RUN(generation_waits_for_messages_before_the_model_does);
    RUN(a_forgotten_join_shows);
    RUN(both_ends_of_a_link_form_the_same_groups);
    RUN(a_hang_is_told_with_positions);
    return test_end();
}
