// test_executor.c -- any valid plan gives the gradients and losses of the plain loop, bit for bit (sums are
// exact); invalid ones end with a message, never with a hang.
#include <stdbool.h>

#include "../util/program.h"
#include "../dynapipe_plugin/run/executor.h"
#include "ranks.h"
#include "test.h"
#include "toy_plan.h"

static uint64_t seed;
static RankResult results[RANKS_MAX];

enum { MAX_MBS = 24, ARENA_BYTES = 4 << 20 };

typedef struct {
    ToyPlan* toy;
    int64_t timeout_ns;
    int64_t arena_bytes;  // 0: what the plan says
    int32_t num_steps, pause_ns, fail_rank, fail_at_job;
    bool forward_only;
    bool is_joint;  // the model has no backward_weights
    ToyModel models[RANKS_MAX][TOY_MAX_ROWS_HERE];
    float losses[MAX_MBS][TOY_MAX_ROWS];
} Run;

static void check_trace(ToyModel* model, const TraceRank* trace, int32_t num_instrs) {
    int64_t busy_ns = 0, last_end_ns = trace->begin_ns;
    model->num_violations += trace->num_events != num_instrs;
    for (int32_t i = 0; i < trace->num_events; i++) {
        const TraceEvent* e = &trace->events[i];
        model->num_violations += e->end_ns < e->begin_ns || e->wait_ns < 0 || e->end_ns > trace->end_ns;
        if (e->kind > INSTR_REC) { continue; }
        model->num_violations += e->begin_ns - e->wait_ns < last_end_ns;  // one job at a time
        last_end_ns = e->end_ns;
        busy_ns += e->end_ns - e->begin_ns;
    }
    model->num_violations += busy_ns != trace->busy_ns;
}

// This rank's rows of the plan.
static bool has_head(const Run* run, int32_t rank) {
    const Placement* placement = &run->toy->plan.placement;
    int32_t s = rank % run->toy->plan.P;
    return placement->stage_of[placement->num_chunks - 1] == s || placement_has_share(placement, s);
}

static Status run_steps(const Run* run, Executor* executor, ToyModel* model, Transport* t, void* arena,
                        const DynapipeBatch* const* batches, float* const* losses) {
    const Plan* plan = &run->toy->plan;
    const PlanRank* rank = &plan->ranks[t->rank];
    ExecutorStep step = {.plan = plan,
                         .batches = batches,
                         .losses = has_head(run, t->rank) ? losses : NULL,
                         .arena = arena,
                         .arena_bytes = run->arena_bytes > 0 ? run->arena_bytes : rank->arena_bytes};
    for (int32_t k = 0; k < run->num_steps; k++) {
        TRY(executor_run(executor, &step));
        check_trace(model, executor_trace(executor), rank->num_instrs);
    }
    return STATUS_OK;
}

static Status run_forward(const Run* run, Executor* executor, Transport* t, void* arena,
                          float* const* losses) {
    const ToyPlan* toy = run->toy;
    DynapipeBatch batches[MAX_MBS];
    for (int32_t m = 0; m < toy->plan.M; m++) { batches[m] = toy->batches[m].batch; }
    ExecutorForward forward = {.placement = &toy->plan.placement,
                               .num_stages = toy->plan.P,
                               .batches = batches,
                               .num_batches = toy->plan.M,
                               .losses = has_head(run, t->rank) ? losses : NULL,
                               .arena = arena};
    TRY(executor_forward_bytes(&forward.arena_bytes, executor, &forward));
    EXPECT(forward.arena_bytes <= ARENA_BYTES);
    for (int32_t k = 0; k < run->num_steps; k++) { TRY(executor_run_forward(executor, &forward)); }
    if (forward.arena_bytes-- == 0) { return STATUS_OK; }
    EXPECT(executor_run_forward(executor, &forward) == STATUS_OUT_OF_RANGE);
    return STATUS_OK;
}

static Status body(Transport* t, void* arg) {
    Run* run = arg;
    const Plan* plan = &run->toy->plan;
    ToyModel* models = run->models[t->rank];
    ExecutorRange ranges[TOY_MAX_ROWS_HERE];
    int32_t rows[TOY_MAX_ROWS_HERE], num_here = toy_plan_rows(run->toy, t->rank, rows);
    for (int32_t i = 0; i < num_here; i++) {
        models[i] = toy_plan_model(run->toy, rows[i]);
        models[i].pause_ns = run->pause_ns;
        models[i].fail_at_job = t->rank == run->fail_rank ? run->fail_at_job : 0;
        ranges[i] = (ExecutorRange){run->is_joint ? &toy_api_joint : &toy_api, &models[i]};
    }
    const DynapipeBatch* batches[MAX_MBS];
    float* losses[MAX_MBS];
    for (int32_t m = 0; m < plan->M; m++) {
        bool is_mine = plan->mbs[m].replica == t->rank / plan->P;
        batches[m] = is_mine ? &run->toy->batches[m].batch : NULL;
        losses[m] = run->losses[m];
    }
    void* arena = aligned_alloc(PLAN_BUFFER_ALIGN, ARENA_BYTES);
    Executor* executor;
    TRY(executor_create(&executor, ranges, num_here, t, run->timeout_ns));
    memset(arena, 0xff, ARENA_BYTES);
    Status status = run->forward_only ? run_forward(run, executor, t, arena, losses)
                                      : run_steps(run, executor, models, t, arena, batches, losses);
    if (status != STATUS_OK) {  // nobody may write into the arena after it is freed
        char why[1024];
        snprintf(why, sizeof why, "%s", status_message());
        t->api->abort(t->ctx, why);
        status = FAIL(status, "%s", why);
    }
    executor_free(executor);
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
        differences += !(sum == (float)run->num_steps * direct[i]);
    }
    return differences;
}

// Differences in gradients (of num_steps equal steps) and losses.
static int32_t count_differences(const Run* run) {
    static float losses[MAX_MBS][TOY_MAX_ROWS];
    ToyModel direct;
    const ToyPlan* toy = run->toy;
    toy_plan_run_directly(toy, &direct, losses);
    int32_t differences = 0, num_ranks = toy->plan.P * toy->plan.R;
    for (int32_t r = 0; r < num_ranks; r++) {
        for (int32_t k = 0; k < TOY_MAX_ROWS_HERE; k++) { differences += run->models[r][k].num_violations; }
    }
    if (!run->forward_only) {
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

static void any_plan_gives_the_gradients_of_the_plain_loop(void) {
    Arena arena = {0};
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 120; trial++) {
        int32_t P = rng_between(&rng, 1, 5), R = rng_between(&rng, 1, P < 3 ? 4 : 2);
        int32_t M = rng_between(&rng, 0, 12);
        ToyPlan toy;
        toy_plan_make(&toy, &rng, P, R, M, &arena);
        Run run = {.toy = &toy, .timeout_ns = (int64_t)20 * 1000000000, .num_steps = 2};
        run.pause_ns = trial % 3 == 0 ? 3000 : 0;
        run.is_joint = trial % 4 == 3 && toy.plan.placement.head != HEAD_BY_VOCABULARY;
        RanksKind kind = trial % 2 == 0 ? RANKS_CHECKED : RANKS_PLAIN;
        int failed = ranks_run(P * R, kind, body, &run, results, 1);
        CHECK_EQ(failed, 0);
        int32_t differences = count_differences(&run);
        CHECK_EQ(differences, 0);
        if (failed > 0 || differences > 0) {
            printf("trial %d: P %d R %d M %d K %d head %d\n", trial, P, R, M, toy.plan.placement.num_chunks,
                   toy.plan.placement.head);
        }
        arena_reset(&arena);
    }
    arena_free(&arena);
}

static void forward_only_gives_the_same_losses(void) {
    Arena arena = {0};
    Rng rng = rng_seed(seed + 1);
    for (int trial = 0; trial < 30; trial++) {
        int32_t P = rng_between(&rng, 1, 4);
        ToyPlan toy;
        toy_plan_make(&toy, &rng, P, 1, rng_between(&rng, 0, 9), &arena);
        Run run = {.toy = &toy, .timeout_ns = (int64_t)20 * 1000000000, .num_steps = 2, .forward_only = true};
        CHECK_EQ(ranks_run(P, RANKS_CHECKED, body, &run, results, 1), 0);
        CHECK_EQ(count_differences(&run), 0);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// --- plans and models that are wrong ---------------------------------------------------------------------
typedef struct {
    Arena arena;
    ToyPlan toy;
    Run run;
} Wrong;

static bool has_empty_batch(const ToyPlan* toy) {
    bool is_empty = false;
    for (int32_t m = 0; m < toy->plan.M; m++) { is_empty |= toy->batches[m].batch.num_tokens == 0; }
    return is_empty;
}

static void wrong_open(Wrong* w, int32_t P) {
    Rng rng = rng_seed(seed + 2);
    *w = (Wrong){0};
    do {  // the tests below break what has bytes
        toy_plan_make_linear(&w->toy, &rng, P, 1, 6, &w->arena);
    } while (has_empty_batch(&w->toy));
    w->run = (Run){.toy = &w->toy, .timeout_ns = 200 * 1000000, .num_steps = 1, .fail_rank = -1};
}

// Runs the broken plan on P ranks: `rank` must report `status` with `words`, within a second, and nobody
// hangs.
static void wrong_close(Wrong* w, int32_t rank, Status status, const char* words) {
    int64_t begin_ns = clock_now_ns();
    int failed = ranks_run(w->toy.plan.P, RANKS_PLAIN, body, &w->run, results, 0);
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
    buffer_of(&w, 0, BUFFER_ACTS, 3)->offset_bytes += PLAN_BUFFER_ALIGN * 100000;
    wrong_close(&w, 0, STATUS_INVALID_PLAN, "mb 3) lies outside the arena");
    wrong_open(&w, 2);
    w.run.arena_bytes = 1000;
    wrong_close(&w, 0, STATUS_INVALID_PLAN, "the arena has 1000");
}

static void instructions_that_break_the_rules_are_refused(void) {
    Wrong w;
    wrong_open(&w, 3);
    toy_plan_remove(&w.toy, 1, toy_plan_find(&w.toy, 1, INSTR_RECV_ACT, 4));
    wrong_close(&w, 1, STATUS_INVALID_PLAN, "fwd mb 4: comes before recv_act");
    wrong_open(&w, 3);
    toy_plan_remove(&w.toy, 0, toy_plan_find(&w.toy, 0, INSTR_RECV_GRAD, 4));
    wrong_close(&w, 0, STATUS_INVALID_PLAN, "bwd mb 4: comes before recv_grad");
    wrong_open(&w, 3);
    w.toy.plan.ranks[1].instrs[toy_plan_find(&w.toy, 1, INSTR_SEND_ACT, -1)].peer = 0;
    wrong_close(&w, 1, STATUS_INVALID_PLAN, "its peer is not the rank of the chunk at the other end");
    wrong_open(&w, 3);
    toy_plan_remove(&w.toy, 1, toy_plan_find(&w.toy, 1, INSTR_FWD, 2));
    wrong_close(&w, 1, STATUS_INVALID_PLAN, "mb 2: comes before fwd");
    wrong_open(&w, 3);
    PlanInstr* wait = &w.toy.plan.ranks[0].instrs[toy_plan_find(&w.toy, 0, INSTR_WAIT_ACT, -1)];
    wait->kind = INSTR_FWD;
    wrong_close(&w, 0, STATUS_INVALID_PLAN, "twice in the list");
    wrong_open(&w, 3);
    w.toy.plan.ranks[0].instrs[3].mb = 6;
    wrong_close(&w, 0, STATUS_INVALID_PLAN, "instruction 3 has kind");
    wrong_open(&w, 3);
    w.toy.plan.ranks[0].instrs[toy_plan_find(&w.toy, 0, INSTR_SEND_ACT, -1)].kind = INSTR_SEND_GRAD;
    wrong_close(&w, 0, STATUS_INVALID_PLAN, "no chunk comes before the first");
    wrong_open(&w, 2);
    w.toy.plan.R = 2;
    wrong_close(&w, 0, STATUS_INVALID_PLAN, "2 stages x 2 replicas, 2 ranks");
    wrong_open(&w, 2);
    w.toy.plan.mbs[1].shape.enc_squares++;
    wrong_close(&w, 0, STATUS_INVALID_PLAN, "rank 0: mb 1: a batch of 1 sequences, ");
}

static void a_missing_message_is_a_message_not_a_hang(void) {
    Wrong w;
    wrong_open(&w, 2);
    int32_t mb = w.toy.plan.ranks[0].instrs[toy_plan_find(&w.toy, 0, INSTR_SEND_ACT, -1)].mb;
    toy_plan_remove(&w.toy, 0, toy_plan_find(&w.toy, 0, INSTR_SEND_ACT, mb));
    int32_t wait = toy_plan_find(&w.toy, 0, INSTR_WAIT_ACT, mb);
    if (wait >= 0) { toy_plan_remove(&w.toy, 0, wait); }
    char words[96];
    snprintf(words, sizeof words, "rank 1: fwd mb %d waits for recv_act mb %d with rank 0", mb, mb);
    // Rank 0 may give up first, over what rank 1 does not come to; both name what they wait for.
    w.run.timeout_ns = 300 * 1000000;
    int failed = ranks_run(2, RANKS_PLAIN, body, &w.run, results, 0);
    CHECK_EQ(failed, 2);
    bool named = strstr(results[1].message, words) != NULL;
    const char* other = results[0].message;
    CHECK(named ||
          (strncmp(other, "rank 0: ", 8) == 0 && strstr(other, " with rank 1, nothing moved") != NULL));
    CHECK_EQ(results[0].status, STATUS_COMM);
    CHECK_EQ(results[1].status, STATUS_COMM);
    CHECK(strstr(results[1].message, "---> see what rank") != NULL);
    arena_free(&w.arena);
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

// The toy notices memory that is used twice, so agreement elsewhere means that nothing was.
static void overlapping_buffers_do_show(void) {
    int shown = 0;
    for (int i = 0; i < 4; i++) {
        Wrong w;
        wrong_open(&w, 1 + i % 2);
        PlanRank* list = &w.toy.plan.ranks[0];
        PlanBuffer *first = NULL, *second = NULL;
        for (int32_t a = 0; a < list->num_buffers; a++) {
            for (int32_t b = 0; b < a; b++) {
                PlanBuffer *x = &list->buffers[a], *y = &list->buffers[b];
                if (x->kind != BUFFER_ACTS || y->kind != BUFFER_ACTS) { continue; }
                if (x->instr_begin < y->instr_end && y->instr_begin < x->instr_end) { first = x, second = y; }
            }
        }
        if (first != NULL) {
            first->offset_bytes = second->offset_bytes;
            if (first->offset_bytes + first->num_bytes > list->arena_bytes) {
                list->arena_bytes = first->offset_bytes + first->num_bytes;
            }
            shown += ranks_run(1 + i % 2, RANKS_PLAIN, body, &w.run, results, 0) > 0 ||
                     count_differences(&w.run) > 0;
        }
        arena_free(&w.arena);
    }
    CHECK_EQ(shown, 4);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(any_plan_gives_the_gradients_of_the_plain_loop);
    RUN(forward_only_gives_the_same_losses);
    RUN(buffers_too_small_for_the_model_are_refused);
    RUN(instructions_that_break_the_rules_are_refused);
    RUN(a_missing_message_is_a_message_not_a_hang);
    RUN(an_error_of_the_model_names_the_instruction);
    RUN(overlapping_buffers_do_show);
    return test_end();
}
