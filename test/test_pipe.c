// test_pipe.c -- the simulator against an independent replay, and the laws of GPipe and 1F1B.
#include "../util/program.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "../dynapipe_plugin/plan/schedule.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

static const PipePolicy* const policies[] = {&pipe_policy_gpipe, &pipe_policy_1f1b, &pipe_policy_adaptive};
enum { NUM_POLICIES = 3 };

// --- an independent replay: the rules of the planning cases' judge ---------------------------------------

// By brute force: always the ready job of smallest (begin, stage); arrivals and links looked up anew each
// time.
typedef struct {
    int64_t makespan_ns;
    int64_t peak_bytes[PLAN_MAX_STAGES];
    bool deadlock;
} Replayed;

typedef struct {
    int64_t at_ns;
    int32_t acquires;  // releases (0) before acquisitions (1) of one instant
    int64_t bytes;
} Change;

static int compare_changes(const void* a, const void* b) {
    const Change *x = a, *y = b;
    if (x->at_ns != y->at_ns) { return x->at_ns < y->at_ns ? -1 : 1; }
    return x->acquires - y->acquires;
}

static int64_t most_held(Change* changes, int32_t num) {
    int64_t held = 0, most = 0;
    qsort(changes, (size_t)num, sizeof(Change), compare_changes);
    for (int32_t i = 0; i < num; i++) {
        held += changes[i].bytes;
        if (held > most) { most = held; }
    }
    return most;
}

static bool has_weight_job(const PipeSchedule* schedule, int32_t s, int32_t row, int32_t mb) {
    for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
        const PipeJob* job = &schedule->jobs[s][i];
        if (job->kind == JOB_W && job->chunk == row && job->mb == mb) { return true; }
    }
    return false;
}

enum { MAX_P = 8, MAX_ROWS = 4 * MAX_P, MAX_M = 40 };

typedef struct {
    const PipeProblem* problem;
    int32_t K;
    int64_t done[JOB_COUNT][MAX_ROWS][MAX_M];              // -1: not yet
    int64_t act[MAX_ROWS][MAX_M], fact[MAX_ROWS][MAX_M];   // arrivals
    int64_t grad[MAX_ROWS][MAX_M], part[MAX_ROWS][MAX_M];  // the gradient of an output; a share's part
    int64_t clock[MAX_P], link[MAX_P];
    Change changes[MAX_P][8 * MAX_M * 4];
    int32_t num_changes[MAX_P], pos[MAX_P];
} Replay;

static int64_t input_at(const Replay* r, PipeJob job) {
    const Placement* placement = r->problem->placement;
    int32_t k = job.chunk, m = job.mb;
    if (job.kind == JOB_F) { return k == 0 ? 0 : r->act[k][m]; }
    if (job.kind == JOB_W && k >= r->K && placement->head == HEAD_BY_VOCABULARY) { return r->fact[k][m]; }
    if (job.kind != JOB_B) { return 0; }
    if (k < r->K - 1) { return r->grad[k][m]; }
    if (!pipe_shares_head(r->problem)) { return r->done[JOB_F][k][m]; }
    int64_t last = 0;
    for (int32_t s = 0; s < r->problem->P; s++) {
        if (!placement_has_share(placement, s)) { continue; }
        int64_t at = r->part[r->K + s][m];
        if (at < 0) { return -1; }
        last = at > last ? at : last;
    }
    return last;
}

static int64_t carry(Replay* r, int32_t from, int32_t to, int64_t ns) {
    if (from == to) { return r->clock[from]; }
    r->link[from] = (r->link[from] > r->clock[from] ? r->link[from] : r->clock[from]) + ns;
    return r->link[from];
}

static void send_on(Replay* r, int32_t s, PipeJob job) {
    const PipeProblem* problem = r->problem;
    int32_t k = job.chunk, m = job.mb, K = r->K;
    if (k >= K) {
        if (job.kind == JOB_F) {
            r->part[k][m] = carry(r, s, pipe_stage_of(problem, K - 1), pipe_cost(problem, k, m)->part_ns);
        }
        return;
    }
    if (job.kind == JOB_F && k < K - 1) {
        r->act[k + 1][m] = carry(r, s, pipe_stage_of(problem, k + 1), pipe_cost(problem, k, m)->transfer_ns);
    }
    if (job.kind == JOB_B && k > 0) {
        int64_t ns = pipe_cost(problem, k - 1, m)->transfer_ns;
        r->grad[k - 1][m] = carry(r, s, pipe_stage_of(problem, k - 1), ns);
    }
    for (int32_t x = 0; x < problem->P && k == K - 1 && pipe_shares_head(problem); x++) {
        if (!placement_has_share(problem->placement, x)) { continue; }
        const PipeCost* share = pipe_cost(problem, K + x, m);
        if (job.kind == JOB_F) { r->act[K + x][m] = carry(r, s, x, share->transfer_ns); }
        bool has_factors = problem->placement->head == HEAD_BY_VOCABULARY;
        if (job.kind == JOB_B && has_factors) { r->fact[K + x][m] = carry(r, s, x, share->factor_ns); }
    }
}

static void change(Replay* r, int32_t s, int64_t at_ns, int32_t acquires, int64_t bytes) {
    r->changes[s][r->num_changes[s]++] = (Change){at_ns, acquires, acquires ? bytes : -bytes};
}

static void count_memory(Replay* r, int32_t s, PipeJob job, int64_t begin_ns, bool has_w) {
    const PipeCost* cost = pipe_cost(r->problem, job.chunk, job.mb);
    int64_t end_ns = r->clock[s];
    if (job.kind == JOB_F) {
        change(r, s, begin_ns, 1, cost->input_bytes);
        change(r, s, begin_ns, 1, cost->drops ? cost->forward_bytes : cost->stored_bytes);
        if (cost->drops) { change(r, s, end_ns, 0, cost->forward_bytes); }
    }
    if (job.kind == JOB_R) { change(r, s, begin_ns, 1, cost->stored_bytes); }
    if (job.kind == JOB_B) { change(r, s, end_ns, 0, cost->input_bytes); }
    if (job.kind == JOB_W || (job.kind == JOB_B && !has_w)) { change(r, s, end_ns, 0, cost->stored_bytes); }
}

static Replayed replay(const PipeProblem* problem, const PipeSchedule* schedule) {
    static Replay r;
    memset(&r, 0, sizeof r);
    memset(r.done, -1, sizeof r.done);
    memset(r.act, -1, sizeof r.act);
    memset(r.grad, -1, sizeof r.grad);
    memset(r.part, -1, sizeof r.part);
    memset(r.fact, -1, sizeof r.fact);
    r.problem = problem;
    r.K = pipe_num_chunks(problem);
    Replayed out = {0};
    for (;;) {
        int32_t s = -1;
        int64_t begin_ns = 0;
        for (int32_t x = 0; x < problem->P; x++) {
            if (r.pos[x] == schedule->num_jobs[x]) { continue; }
            int64_t at = input_at(&r, schedule->jobs[x][r.pos[x]]);
            if (at < 0) { continue; }
            if (at < r.clock[x]) { at = r.clock[x]; }
            if (s >= 0 && at >= begin_ns) { continue; }
            s = x;
            begin_ns = at;
        }
        if (s < 0) { break; }
        PipeJob job = schedule->jobs[s][r.pos[s]++];
        const PipeCost* cost = pipe_cost(problem, job.chunk, job.mb);
        bool has_w = has_weight_job(schedule, s, job.chunk, job.mb);
        r.clock[s] = begin_ns + cost->job_ns[job.kind];
        if (job.kind == JOB_B && !has_w) { r.clock[s] += cost->job_ns[JOB_W]; }
        r.done[job.kind][job.chunk][job.mb] = r.clock[s];
        count_memory(&r, s, job, begin_ns, has_w);
        send_on(&r, s, job);
    }
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t end_ns = r.clock[s] + problem->tail_ns[s];
        out.deadlock |= r.pos[s] < schedule->num_jobs[s];
        out.makespan_ns = out.makespan_ns > end_ns ? out.makespan_ns : end_ns;
        out.peak_bytes[s] = most_held(r.changes[s], r.num_changes[s]);
    }
    return out;
}

// The simulator agrees with the replay in time, memory and deadlocks, for policies and for shuffled orders.
static void simulator_agrees_with_replay(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_deadlocks = 0, num_invalid = 0;
    for (int32_t round = 0; round < 1500; round++) {
        arena_reset(&arena);
        int32_t P = rng_between(&rng, 1, 6), M = rng_between(&rng, 1, 12);
        bool placed = round % 5 > 1;
        RandomPipe about = {.transfers = round % 2, .drops_percent = round % 3 * 30, .placed = placed};
        PipeProblem problem = random_pipe(&rng, P, M, &about, &arena);
        for (int32_t s = 0; s < P; s++) { problem.tail_ns[s] = rng_between(&rng, 0, 100); }
        PipeSchedule schedule;
        bool split = rng_below(&rng, 2);
        int32_t* order = random_order(&rng, M, &arena);
        const PipePolicy* policy = placed ? &pipe_policy_adaptive : policies[round % NUM_POLICIES];
        if (placed && round % 4 == 0) { random_pipe_limit(&problem, &rng, 10, 40); }
        CHECK_OK(policy->build(&schedule, &problem, order, split, &arena));
        int32_t num_swaps = rng_between(&rng, 0, round % 2 * 4);
        for (int32_t i = 0; i < num_swaps; i++) {
            int32_t s = rng_between(&rng, 0, P - 1), n = schedule.num_jobs[s];
            int32_t a = rng_between(&rng, 0, n - 1), b = rng_between(&rng, 0, n - 1);
            PipeJob job = schedule.jobs[s][a];
            schedule.jobs[s][a] = schedule.jobs[s][b];
            schedule.jobs[s][b] = job;
        }
        PipeTimeline timeline;
        Status status = pipe_simulate(&timeline, &problem, &schedule, &arena);
        num_invalid += status == STATUS_INVALID_PLAN;
        num_deadlocks += status == STATUS_DEADLOCK;
        if (status == STATUS_INVALID_PLAN) { continue; }
        Replayed expected = replay(&problem, &schedule);
        CHECK_EQ(status == STATUS_DEADLOCK, expected.deadlock);
        if (status != STATUS_OK) { continue; }
        CHECK_EQ(timeline.makespan_ns, expected.makespan_ns);
        for (int32_t s = 0; s < P; s++) { CHECK_EQ(timeline.peak_bytes[s], expected.peak_bytes[s]); }
    }
    CHECK(num_deadlocks > 0 && num_invalid > 0);
    arena_free(&arena);
}

// M equal micro-batches on equal stages: 1F1B and GPipe take (M + P - 1)(f + b); 1F1B holds min(P - s, M).
static void equal_microbatches_meet_the_closed_form(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int32_t P = 1; P <= 8; P++) {
        for (int32_t M = 1; M <= 20; M++) {
            arena_reset(&arena);
            PipeProblem problem = random_pipe(&rng, P, M, &(RandomPipe){.equal = true}, &arena);
            const int64_t* ns = problem.cost[0].job_ns;
            int64_t expected_ns = (M + P - 1) * (ns[JOB_F] + ns[JOB_B] + ns[JOB_W]);
            for (int32_t p = 0; p < 2; p++) {
                PipeSchedule schedule;
                PipeTimeline timeline;
                CHECK_OK(
                    policies[p]->build(&schedule, &problem, random_order(&rng, M, &arena), false, &arena));
                CHECK_OK(pipe_simulate(&timeline, &problem, &schedule, &arena));
                CHECK_EQ(timeline.makespan_ns, expected_ns);
                for (int32_t s = 0; s < P; s++) {
                    int32_t held = p == 0 || P - s > M ? M : P - s;
                    CHECK_EQ(timeline.peak_bytes[s], held * problem.cost[0].stored_bytes);
                    CHECK_EQ(timeline.busy_ns[s], M * (ns[JOB_F] + ns[JOB_B] + ns[JOB_W]));
                }
            }
        }
    }
    arena_free(&arena);
}

// A wrong job list is refused with stage and job; crossing orders are a deadlock that says who waits.
static void wrong_schedules_are_refused(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    PipeProblem problem = random_pipe(&rng, 2, 2, &(RandomPipe){.equal = true}, &arena);
    const int32_t order[] = {0, 1};
    PipeSchedule schedule;
    PipeTimeline timeline;
    CHECK_OK(pipe_policy_1f1b.build(&schedule, &problem, order, false, &arena));
    schedule.num_jobs[1]--;
    CHECK_FAILS(pipe_simulate(&timeline, &problem, &schedule, &arena), STATUS_INVALID_PLAN,
                "stage 1: B1 of chunk 1 is missing");
    schedule.num_jobs[1]++;
    schedule.jobs[1][3].mb = 0;
    CHECK_FAILS(pipe_simulate(&timeline, &problem, &schedule, &arena), STATUS_INVALID_PLAN,
                "B0 of chunk 1 a second time");
    schedule.jobs[1][3].mb = 7;
    CHECK_FAILS(pipe_simulate(&timeline, &problem, &schedule, &arena), STATUS_INVALID_PLAN, "no such job");
    schedule.jobs[1][3] = (PipeJob){.kind = JOB_R, .chunk = 1, .mb = 1};
    CHECK_FAILS(pipe_simulate(&timeline, &problem, &schedule, &arena), STATUS_INVALID_PLAN,
                "R1 of chunk 1 before");
    CHECK_OK(pipe_policy_1f1b.build(&schedule, &problem, order, false, &arena));
    // stage 0: F0 F1 B0 B1; stage 1 wants to finish 1 before 0 is through: F1 B1 F0 B0, stage 0 waits with B0
    schedule.jobs[0][1] = (PipeJob){.kind = JOB_B, .chunk = 0, .mb = 0};
    schedule.jobs[0][2] = (PipeJob){.kind = JOB_F, .chunk = 0, .mb = 1};
    const PipeJob crossed[] = {{JOB_F, 1, 1}, {JOB_B, 1, 1}, {JOB_F, 1, 0}, {JOB_B, 1, 0}};
    memcpy(schedule.jobs[1], crossed, sizeof crossed);
    CHECK_FAILS(pipe_simulate(&timeline, &problem, &schedule, &arena), STATUS_DEADLOCK,
                "stage 0 waits with B0 of chunk 0, stage 1 waits with F1 of chunk 1");
    arena_free(&arena);
}

// The search runs hundreds of these a step. Reported, and bounded loosely: machines differ.
static void simulation_is_fast(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0}, temporary = {0};
    PipeProblem problem = random_pipe(&rng, 4, 32, &(RandomPipe){.transfers = true}, &arena);
    int32_t* order = random_order(&rng, 32, &arena);
    PipeSchedule schedule;
    PipeTimeline timeline;
    int64_t build_ns = 0, simulate_ns = 0;
    enum { ROUNDS = 2000 };
    for (int32_t round = 0; round < ROUNDS; round++) {
        arena_reset(&temporary);
        int64_t begin_ns = clock_cpu_ns();
        CHECK_OK(pipe_policy_adaptive.build(&schedule, &problem, order, true, &temporary));
        int64_t middle_ns = clock_cpu_ns();
        CHECK_OK(pipe_simulate(&timeline, &problem, &schedule, &temporary));
        build_ns += middle_ns - begin_ns;
        simulate_ns += clock_cpu_ns() - middle_ns;
    }
    printf("     4 stages x 32 micro-batches, split backward: adaptive %.1f us, simulate %.1f us\n",
           (double)build_ns / ROUNDS / 1e3, (double)simulate_ns / ROUNDS / 1e3);
    CHECK(simulate_ns / ROUNDS < 1000000);
    arena_free(&arena);
    arena_free(&temporary);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(simulator_agrees_with_replay);
    RUN(equal_microbatches_meet_the_closed_form);
    RUN(wrong_schedules_are_refused);
    RUN(simulation_is_fast);
    return test_end();
}
