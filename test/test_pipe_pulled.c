// test_pipe_pulled.c -- receivers that fetch their messages: against a walk tick by tick, and its laws.
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

enum { MAX_P = 6, MAX_M = 14, MAX_JOBS = 4 * MAX_M * 4 * MAX_P, MAX_SENT = MAX_P + 1 };

// A machine of P cores that looks around at every tick. Job times are at least 1, so what begins in a tick
// makes no message in that tick.
typedef struct {
    int64_t busy_until[MAX_P], end_ns[MAX_P][MAX_JOBS], begin_ns[MAX_P][MAX_JOBS];
    int32_t pos[MAX_P];
    int64_t ready_at[MAX_P][MAX_JOBS];      // counts messages: of equals, who came first is taken first
    bool taken[MAX_P][MAX_JOBS][MAX_SENT];  // message k of that job
    int64_t num_made;
    int64_t makespan_ns;
    bool deadlock;
} Ticks;

// To whom a job's messages go, rows in the order of the link; the factors of a share are no activation.
static int32_t receivers(int32_t rows[MAX_SENT], const PipeProblem* problem, PipeJob job) {
    int32_t K = pipe_num_chunks(problem), k = job.chunk, num = 0;
    if (k >= K) {
        if (job.kind == JOB_F) { rows[num++] = K - 1; }
        return num;
    }
    if (job.kind == JOB_F && k < K - 1) { rows[num++] = k + 1; }
    if (job.kind == JOB_B && k > 0) { rows[num++] = k - 1; }
    if (k < K - 1 || !pipe_shares_head(problem)) { return num; }
    if (job.kind != JOB_F && (job.kind != JOB_B || problem->placement->head != HEAD_BY_VOCABULARY)) {
        return num;
    }
    for (int32_t s = 0; s < problem->P; s++) {
        if (placement_has_share(problem->placement, s)) { rows[num++] = K + s; }
    }
    return num;
}

static int64_t copy_ns(const PipeProblem* problem, PipeJob job, int32_t to_row) {
    int32_t K = pipe_num_chunks(problem), k = job.chunk;
    if (k >= K) { return pipe_cost(problem, k, job.mb)->part_ns; }
    if (to_row < K) { return pipe_cost(problem, k < to_row ? k : to_row, job.mb)->transfer_ns; }
    const PipeCost* share = pipe_cost(problem, to_row, job.mb);
    return job.kind == JOB_F ? share->transfer_ns : share->factor_ns;
}

typedef struct {
    int32_t from, job, k, row;
} Found;

// The message for stage s that is ready longest; of two, the one that was made first.
static bool find_message(Found* out, const Ticks* t, const PipeProblem* problem, const PipeSchedule* schedule,
                         int32_t s, int64_t now) {
    int64_t best_ns = INT64_MAX, best_made = 0;
    for (int32_t from = 0; from < problem->P; from++) {
        for (int32_t i = 0; from != s && i < t->pos[from]; i++) {
            int32_t rows[MAX_SENT], num = receivers(rows, problem, schedule->jobs[from][i]);
            for (int32_t k = 0; k < num; k++) {
                if (pipe_stage_of(problem, rows[k]) != s || t->taken[from][i][k]) { continue; }
                int64_t end_ns = t->end_ns[from][i], made = t->ready_at[from][i];
                if (end_ns > now || end_ns > best_ns || (end_ns == best_ns && made >= best_made)) {
                    continue;
                }
                best_ns = end_ns;
                best_made = made;
                *out = (Found){from, i, k, rows[k]};
            }
        }
    }
    return best_ns < INT64_MAX;
}

// Did every job that gives to this one run, and was its message taken?
static bool input_is_here(const Ticks* t, const PipeProblem* problem, const PipeSchedule* schedule, int32_t s,
                          PipeJob job) {
    int32_t K = pipe_num_chunks(problem);
    if (job.kind == JOB_R || (job.kind == JOB_W && job.chunk < K)) { return true; }
    int32_t num_inputs = job.kind == JOB_F ? job.chunk > 0 : job.kind == JOB_B ? job.chunk < K - 1 : 0;
    if (job.kind == JOB_W) { num_inputs = problem->placement->head == HEAD_BY_VOCABULARY; }
    for (int32_t x = 0; x < problem->P && job.kind == JOB_B && job.chunk == K - 1; x++) {
        num_inputs += pipe_shares_head(problem) && placement_has_share(problem->placement, x);
    }
    for (int32_t from = 0; from < problem->P; from++) {
        for (int32_t i = 0; i < t->pos[from]; i++) {
            PipeJob sent = schedule->jobs[from][i];
            int32_t rows[MAX_SENT], num = sent.mb == job.mb ? receivers(rows, problem, sent) : 0;
            for (int32_t k = 0; k < num; k++) {
                bool is_gradient = sent.kind == JOB_B || sent.chunk >= K;
                bool wants_gradient = job.kind != JOB_F;
                if (rows[k] != job.chunk || is_gradient != wants_gradient) { continue; }
                num_inputs -= from == s || t->taken[from][i][k];
            }
        }
    }
    return num_inputs == 0;
}

static bool is_divided(const PipeSchedule* schedule, int32_t s, PipeJob job) {
    for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
        PipeJob other = schedule->jobs[s][i];
        if (other.kind == JOB_W && other.chunk == job.chunk && other.mb == job.mb) { return true; }
    }
    return false;
}

// One thing that stage s does in this tick; false: nothing.
static bool act(Ticks* t, const PipeProblem* problem, const PipeSchedule* schedule, int32_t s, int64_t now) {
    Found found;
    if (t->busy_until[s] > now) { return false; }
    if (find_message(&found, t, problem, schedule, s, now)) {
        t->taken[found.from][found.job][found.k] = true;
        t->busy_until[s] = now + copy_ns(problem, schedule->jobs[found.from][found.job], found.row);
        return true;
    }
    int32_t i = t->pos[s];
    if (i == schedule->num_jobs[s]) { return false; }
    PipeJob job = schedule->jobs[s][i];
    if (!input_is_here(t, problem, schedule, s, job)) { return false; }
    const PipeCost* cost = pipe_cost(problem, job.chunk, job.mb);
    int64_t ns = cost->job_ns[job.kind];
    if (job.kind == JOB_B && !is_divided(schedule, s, job)) { ns += cost->job_ns[JOB_W]; }
    t->begin_ns[s][i] = now;
    t->end_ns[s][i] = t->busy_until[s] = now + ns;
    t->ready_at[s][i] = ++t->num_made;
    t->pos[s]++;
    return true;
}

static void tick_through(Ticks* t, const PipeProblem* problem, const PipeSchedule* schedule) {
    memset(t, 0, sizeof *t);
    for (int64_t now = 0, last = 0; now <= last + 1; now++) {
        for (int32_t s = 0; s < problem->P; s++) {
            while (act(t, problem, schedule, s, now)) {}
            last = t->busy_until[s] > last ? t->busy_until[s] : last;
        }
    }
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t end_ns = t->busy_until[s] + problem->tail_ns[s];
        t->makespan_ns = end_ns > t->makespan_ns ? end_ns : t->makespan_ns;
        t->deadlock |= t->pos[s] < schedule->num_jobs[s];
    }
}

static PipeProblem draw(Rng* rng, int32_t round, Arena* arena) {
    int32_t P = rng_between(rng, 1, MAX_P), M = rng_between(rng, 1, MAX_M);
    RandomPipe about = {.transfers = round % 3 > 0, .drops_percent = round % 4 * 25, .placed = round % 5 > 2};
    PipeProblem problem = random_pipe(rng, P, M, &about, arena);
    PipeCost* costs = (PipeCost*)(uintptr_t)problem.cost;
    int32_t K = pipe_num_chunks(&problem);
    for (int32_t i = 0; i < pipe_num_rows(&problem) * M; i++) {
        for (int32_t k = 0; k < JOB_COUNT; k++) { costs[i].job_ns[k] = rng_between(rng, 1, 12); }
        if (!costs[i].drops) { costs[i].job_ns[JOB_R] = 0; }
        costs[i].transfer_ns = round % 3 > 0 ? rng_between(rng, 0, round % 3 * 4) : 0;
        costs[i].factor_ns = costs[i].transfer_ns / 2;
        costs[i].part_ns = costs[i].transfer_ns * 2;
        int32_t row = i / M,
                to = row < K - 1 ? row + 1 : K - 1;  // the pipe's contract: no time within a stage
        if (pipe_stage_of(&problem, row) == pipe_stage_of(&problem, to)) {
            costs[i].transfer_ns = costs[i].part_ns = costs[i].factor_ns = 0;
        }
    }
    for (int32_t s = 0; s < P; s++) { problem.tail_ns[s] = rng_between(rng, 0, 9); }
    problem.pulls = true;
    return problem;
}

static void simulation_is_what_ticks_make_of_it(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    static const PipePolicy* const policies[] = {&pipe_policy_gpipe, &pipe_policy_1f1b,
                                                 &pipe_policy_adaptive};
    int32_t num_deadlocks = 0, num_run = 0;
    for (int32_t round = 0; round < 1500; round++) {
        static Ticks ticks;
        arena_reset(&arena);
        PipeProblem problem = draw(&rng, round, &arena);
        PipeSchedule schedule;
        PipeTimeline timeline;
        int32_t* order = random_order(&rng, problem.M, &arena);
        const PipePolicy* policy =
            problem.placement != NULL ? &pipe_policy_adaptive : policies[rng_below(&rng, 3)];
        CHECK_OK(policy->build(&schedule, &problem, order, rng_below(&rng, 2), &arena));
        for (int32_t i = round % 2 * rng_between(&rng, 0, 3); i > 0; i--) {
            int32_t s = rng_between(&rng, 0, problem.P - 1), n = schedule.num_jobs[s];
            PipeJob *a = &schedule.jobs[s][rng_below(&rng, (uint32_t)n)], was = *a;
            PipeJob* b = &schedule.jobs[s][rng_below(&rng, (uint32_t)n)];
            *a = *b;
            *b = was;
        }
        Status status = pipe_simulate(&timeline, &problem, &schedule, &arena);
        if (status == STATUS_INVALID_PLAN) { continue; }
        tick_through(&ticks, &problem, &schedule);
        CHECK_EQ(status == STATUS_DEADLOCK, ticks.deadlock);
        num_deadlocks += status == STATUS_DEADLOCK;
        if (status != STATUS_OK) { continue; }
        num_run++;
        CHECK_EQ(timeline.makespan_ns, ticks.makespan_ns);
        for (int32_t s = 0; s < problem.P; s++) {
            for (int32_t i = 0; i < schedule.num_jobs[s]; i++) {
                CHECK_EQ(timeline.job[s][i].begin_ns, ticks.begin_ns[s][i]);
                CHECK_EQ(timeline.job[s][i].end_ns, ticks.end_ns[s][i]);
            }
        }
    }
    CHECK(num_deadlocks > 20 && num_run > 800);
    arena_free(&arena);
}

// What the search sees is what the simulator makes of the order; without limits and with, whatever the times.
static void search_and_simulator_agree(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    for (int32_t round = 0; round < 2000; round++) {
        arena_reset(&arena);
        PipeProblem problem = draw(&rng, round, &arena);
        PipeCost* costs = (PipeCost*)(uintptr_t)problem.cost;
        for (int32_t i = 0; i < pipe_num_rows(&problem) * problem.M && round % 2 == 0;
             i++) {  // zero times too
            for (int32_t k = 0; k < JOB_COUNT; k++) { costs[i].job_ns[k] = rng_between(&rng, 0, 3); }
        }
        if (round % 3 == 0) { random_pipe_limit(&problem, &rng, 10, 30); }
        PipeAdaptiveRule rule = pipe_adaptive_rule(&problem, round % 2);
        PipeSchedule schedule;
        PipeTimeline timeline;
        int64_t makespan_ns, budget = 0;
        int32_t* order = random_order(&rng, problem.M, &arena);
        CHECK_OK(pipe_adaptive_build(&schedule, &problem, order, &rule, &arena));
        CHECK_OK(pipe_simulate(&timeline, &problem, &schedule, &arena));
        CHECK_OK(pipe_adaptive_makespan(&makespan_ns, &problem, order, &rule, INT64_MAX, &budget, &arena));
        CHECK(makespan_ns == timeline.makespan_ns || makespan_ns == INT64_MAX);
        CHECK(makespan_ns != INT64_MAX || round % 3 == 0);
        for (int32_t s = 0; s < problem.P; s++) {
            CHECK(timeline.peak_bytes[s] <= problem.memory_limit_bytes[s]);
        }
    }
    arena_free(&arena);
}

// Messages that take no time are there at once however they travel; those that do cost no less when pulled
// than nothing.
static void without_transfer_times_pulling_changes_nothing(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    int32_t num_longer = 0;
    for (int32_t round = 0; round < 600; round++) {
        arena_reset(&arena);
        PipeProblem problem = draw(&rng, 3 * round, &arena);  // no transfer times
        PipeSchedule schedule;
        PipeTimeline pulled, sent, slow;
        int32_t* order = random_order(&rng, problem.M, &arena);
        CHECK_OK(pipe_policy_adaptive.build(&schedule, &problem, order, round % 2, &arena));
        CHECK_OK(pipe_simulate(&pulled, &problem, &schedule, &arena));
        problem.pulls = false;
        CHECK_OK(pipe_simulate(&sent, &problem, &schedule, &arena));
        CHECK_EQ(pulled.makespan_ns, sent.makespan_ns);
        for (int32_t s = 0; s < problem.P; s++) {
            for (int32_t i = 0; i < schedule.num_jobs[s]; i++) {
                CHECK_EQ(pulled.job[s][i].begin_ns, sent.job[s][i].begin_ns);
            }
        }
        PipeCost* costs = (PipeCost*)(uintptr_t)problem.cost;
        int32_t K = pipe_num_chunks(&problem);
        for (int32_t i = 0; i < pipe_num_rows(&problem) * problem.M; i++) {
            int32_t row = i / problem.M, to = row < K - 1 ? row + 1 : K - 1;
            bool is_sent = pipe_stage_of(&problem, row) != pipe_stage_of(&problem, to);
            costs[i].transfer_ns = costs[i].part_ns = is_sent ? rng_between(&rng, 0, 5) : 0;
        }
        problem.pulls = true;
        CHECK_OK(pipe_simulate(&slow, &problem, &schedule, &arena));
        CHECK(slow.makespan_ns >= pulled.makespan_ns);
        num_longer += slow.makespan_ns > pulled.makespan_ns;
    }
    CHECK(num_longer > 300);
    arena_free(&arena);
}

// One message, by hand: ready at 10, its receiver computes until 14, copies until 17.
static void a_message_waits_for_its_receiver(void) {
    Arena arena = {0};
    PipeCost costs[4] = {{.job_ns = {10, 1, 0, 0}, .transfer_ns = 3},
                         {.job_ns = {4, 1, 0, 0}, .transfer_ns = 3},
                         {.job_ns = {4, 8, 0, 0}},
                         {.job_ns = {2, 1, 0, 0}}};
    PipeProblem problem = {
        .P = 2, .M = 2, .cost = costs, .memory_limit_bytes = {INT64_MAX, INT64_MAX}, .pulls = true};
    PipeJob jobs0[] = {{JOB_F, 0, 1}, {JOB_F, 0, 0}, {JOB_B, 0, 1}, {JOB_B, 0, 0}};
    PipeJob jobs1[] = {{JOB_F, 1, 1}, {JOB_B, 1, 1}, {JOB_F, 1, 0}, {JOB_B, 1, 0}};
    PipeSchedule schedule = {.num_jobs = {4, 4}, .jobs = {jobs0, jobs1}};
    PipeTimeline t;
    CHECK_OK(pipe_simulate(&t, &problem, &schedule, &arena));
    CHECK_EQ(t.send[0][0].begin_ns, 4);   // stage 1 waits: at once
    CHECK_EQ(t.job[1][0].begin_ns, 7);    // F1 until 9, B1 until 10
    CHECK_EQ(t.send[1][1].begin_ns, 14);  // stage 0 computes F0 from 4 to 14
    CHECK_EQ(t.job[0][2].begin_ns, 17);
    CHECK_EQ(t.send[0][1].begin_ns, 14);
    CHECK_EQ(t.job[1][2].begin_ns, 17);  // F0 until 21, B0 until 29
    CHECK_EQ(t.job[0][3].begin_ns, 32);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(simulation_is_what_ticks_make_of_it);
    RUN(search_and_simulator_agree);
    RUN(without_transfer_times_pulling_changes_nothing);
    RUN(a_message_waits_for_its_receiver);
    return test_end();
}
