// test_pipe_pulled.c -- receivers that fetch their messages: against a walk tick by tick, and its laws.
#include "../dynapipe_plugin/plan/pipe/pipe_adaptive.h"
#include "../dynapipe_plugin/plan/pipe/pipe_schedule.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

enum { MAX_P = 6, MAX_M = 14, MAX_JOBS = 4 * MAX_M };

// A machine of P cores that looks around at every tick. Job times are at least 1, so what begins in a tick
// makes no message in that tick.
typedef struct {
    int64_t busy_until[MAX_P], end_ns[MAX_P][MAX_JOBS], begin_ns[MAX_P][MAX_JOBS];
    int32_t pos[MAX_P];
    bool taken[MAX_P][MAX_JOBS];  // the message of that job
    int64_t makespan_ns;
    bool deadlock;
} Ticks;

static bool sends_to(PipeJob job, int32_t from, int32_t to) {
    return (job.kind == JOB_F && to == from + 1) || (job.kind == JOB_B && to == from - 1);
}

// The message for stage s that is ready longest; of two, that of the stage before.
static bool find_message(const Ticks* t, const PipeSchedule* schedule, int32_t P, int32_t s, int64_t now,
                         int32_t* peer, int32_t* idx) {
    int64_t best_ns = INT64_MAX;
    for (int32_t from = s - 1; from <= s + 1; from += 2) {
        for (int32_t i = 0; from >= 0 && from < P && i < t->pos[from]; i++) {
            if (!sends_to(schedule->jobs[from][i], from, s) || t->taken[from][i]) { continue; }
            if (t->end_ns[from][i] > now || t->end_ns[from][i] >= best_ns) { continue; }
            best_ns = t->end_ns[from][i];
            *peer = from;
            *idx = i;
        }
    }
    return best_ns < INT64_MAX;
}

static bool input_is_here(const Ticks* t, const PipeSchedule* schedule, int32_t P, int32_t s, PipeJob job) {
    int32_t from = job.kind == JOB_F ? s - 1 : job.kind == JOB_B ? s + 1 : -1;
    if (from < 0 || from >= P) { return true; }
    for (int32_t i = 0; i < t->pos[from]; i++) {
        PipeJob sent = schedule->jobs[from][i];
        if (sent.kind == job.kind && sent.mb == job.mb) { return t->taken[from][i]; }
    }
    return false;
}

static bool is_divided(const PipeSchedule* schedule, int32_t s, int32_t m) {
    for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
        if (schedule->jobs[s][i].kind == JOB_W && schedule->jobs[s][i].mb == m) { return true; }
    }
    return false;
}

// One thing that stage s does in this tick; false: nothing.
static bool act(Ticks* t, const PipeProblem* problem, const PipeSchedule* schedule, int32_t s, int64_t now) {
    int32_t peer = 0, idx = 0;
    if (t->busy_until[s] > now) { return false; }
    if (find_message(t, schedule, problem->P, s, now, &peer, &idx)) {
        int32_t m = schedule->jobs[peer][idx].mb;
        t->taken[peer][idx] = true;
        t->busy_until[s] = now + pipe_cost(problem, peer < s ? peer : s, m)->transfer_ns;
        return true;
    }
    int32_t i = t->pos[s];
    if (i == schedule->num_jobs[s]) { return false; }
    PipeJob job = schedule->jobs[s][i];
    if (!input_is_here(t, schedule, problem->P, s, job)) { return false; }
    const PipeCost* cost = pipe_cost(problem, s, job.mb);
    int64_t ns = cost->job_ns[job.kind];
    if (job.kind == JOB_B && !is_divided(schedule, s, job.mb)) { ns += cost->job_ns[JOB_W]; }
    t->begin_ns[s][i] = now;
    t->end_ns[s][i] = t->busy_until[s] = now + ns;
    t->pos[s]++;
    return true;
}

static void tick_through(Ticks* t, const PipeProblem* problem, const PipeSchedule* schedule) {
    *t = (Ticks){0};
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
    RandomPipe about = {.transfers = round % 3 > 0, .drops_percent = round % 4 * 25};
    PipeProblem problem = random_pipe(rng, P, M, &about, arena);
    PipeCost* costs = (PipeCost*)(uintptr_t)problem.cost;
    for (int32_t i = 0; i < P * M; i++) {
        for (int32_t k = 0; k < JOB_COUNT; k++) { costs[i].job_ns[k] = rng_between(rng, 1, 12); }
        if (!costs[i].drops) { costs[i].job_ns[JOB_R] = 0; }
        costs[i].transfer_ns = round % 3 > 0 ? rng_between(rng, 0, round % 3 * 4) : 0;
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
        CHECK_OK(policies[rng_below(&rng, 3)]->build(&schedule, &problem, order, rng_below(&rng, 2), &arena));
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
        for (int32_t i = 0; i < problem.P * problem.M && round % 2 == 0; i++) {  // zero times too
            for (int32_t k = 0; k < JOB_COUNT; k++) { costs[i].job_ns[k] = rng_between(&rng, 0, 3); }
        }
        for (int32_t s = 0; s < problem.P && round % 3 == 0; s++) {
            int64_t most = 0;
            for (int32_t m = 0; m < problem.M; m++) {
                int64_t bytes = pipe_alone_bytes(&problem, s, m);
                most = bytes > most ? bytes : most;
            }
            problem.memory_limit_bytes[s] = most * rng_between(&rng, 10, 30) / 10;
        }
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
        for (int32_t i = 0; i < problem.P * problem.M; i++) {
            costs[i].transfer_ns = rng_between(&rng, 0, 5);
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
