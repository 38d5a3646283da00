// test_pipe.c -- the simulator against an independent replay, and the laws of GPipe and 1F1B.
#include "../dynapipe_plugin/base/clock.h"
#include "../dynapipe_plugin/plan/pipe/pipe_schedule.h"
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

static bool has_weight_job(const PipeSchedule* schedule, int32_t s, int32_t mb) {
    for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
        if (schedule->jobs[s][i].kind == JOB_W && schedule->jobs[s][i].mb == mb) { return true; }
    }
    return false;
}

static Replayed replay(const PipeProblem* problem, const PipeSchedule* schedule) {
    enum { MAX_P = 8, MAX_M = 40 };
    static int64_t done[JOB_COUNT][MAX_P][MAX_M], sent[JOB_COUNT][MAX_P][MAX_M];
    static Change changes[MAX_P][8 * MAX_M];
    int32_t num_changes[MAX_P] = {0}, pos[MAX_P] = {0}, P = problem->P;
    int64_t clock[MAX_P] = {0}, link[MAX_P] = {0};
    Replayed out = {0};
    memset(done, -1, sizeof done);
    memset(sent, -1, sizeof sent);
    for (;;) {
        int32_t best = -1;
        int64_t best_ns = 0;
        for (int32_t s = 0; s < P; s++) {
            if (pos[s] == schedule->num_jobs[s]) { continue; }
            PipeJob job = schedule->jobs[s][pos[s]];
            int64_t at = 0;
            if (job.kind == JOB_F && s > 0) { at = sent[JOB_F][s - 1][job.mb]; }
            if (job.kind == JOB_B) { at = s == P - 1 ? done[JOB_F][s][job.mb] : sent[JOB_B][s + 1][job.mb]; }
            if (at < 0) { continue; }
            if (at < clock[s]) { at = clock[s]; }
            if (best < 0 || at < best_ns) {
                best = s;
                best_ns = at;
            }
        }
        if (best < 0) { break; }
        int32_t s = best;
        PipeJob job = schedule->jobs[s][pos[s]++];
        const PipeCost* cost = pipe_cost(problem, s, job.mb);
        bool has_w = has_weight_job(schedule, s, job.mb);
        int64_t end_ns = best_ns + cost->job_ns[job.kind];
        if (job.kind == JOB_B && !has_w) { end_ns += cost->job_ns[JOB_W]; }
        done[job.kind][s][job.mb] = clock[s] = end_ns;
        if (end_ns + problem->tail_ns[s] > out.makespan_ns) {
            out.makespan_ns = end_ns + problem->tail_ns[s];
        }
#define CHANGE(stage, when, acquire, amount)            \
    changes[stage][num_changes[stage]++] = (Change) {   \
        when, acquire, (acquire) ? (amount) : -(amount) \
    }
        if (job.kind == JOB_F && !cost->drops) { CHANGE(s, best_ns, 1, cost->stored_bytes); }
        if (job.kind == JOB_F && cost->drops) {
            CHANGE(s, best_ns, 1, cost->forward_bytes);
            CHANGE(s, end_ns, 0, cost->forward_bytes);
        }
        if (job.kind == JOB_R) { CHANGE(s, best_ns, 1, cost->stored_bytes); }
        if (job.kind == JOB_B) { CHANGE(s, end_ns, 0, cost->input_bytes); }
        if (job.kind == JOB_W || (job.kind == JOB_B && !has_w)) { CHANGE(s, end_ns, 0, cost->stored_bytes); }
        int32_t peer = job.kind == JOB_F && s < P - 1 ? s + 1 : job.kind == JOB_B && s > 0 ? s - 1 : -1;
        if (peer < 0) { continue; }
        int64_t from_ns = end_ns > link[s] ? end_ns : link[s];
        link[s] = from_ns + pipe_cost(problem, s < peer ? s : peer, job.mb)->transfer_ns;
        sent[job.kind][s][job.mb] = link[s];
        if (job.kind == JOB_F) { CHANGE(peer, link[s], 1, pipe_cost(problem, peer, job.mb)->input_bytes); }
    }
    for (int32_t s = 0; s < P; s++) {
        out.deadlock |= pos[s] < schedule->num_jobs[s];
        out.makespan_ns = out.makespan_ns > problem->tail_ns[s] ? out.makespan_ns : problem->tail_ns[s];
        out.peak_bytes[s] = most_held(changes[s], num_changes[s]);
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
        RandomPipe about = {.transfers = round % 2, .drops_percent = round % 3 * 30};
        PipeProblem problem = random_pipe(&rng, P, M, &about, &arena);
        for (int32_t s = 0; s < P; s++) { problem.tail_ns[s] = rng_between(&rng, 0, 100); }
        PipeSchedule schedule;
        bool split = rng_below(&rng, 2);
        int32_t* order = random_order(&rng, M, &arena);
        CHECK_OK(policies[round % NUM_POLICIES]->build(&schedule, &problem, order, split, &arena));
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
                "stage 1: B1 is missing");
    schedule.num_jobs[1]++;
    schedule.jobs[1][3].mb = 0;
    CHECK_FAILS(pipe_simulate(&timeline, &problem, &schedule, &arena), STATUS_INVALID_PLAN,
                "B0 a second time");
    schedule.jobs[1][3].mb = 7;
    CHECK_FAILS(pipe_simulate(&timeline, &problem, &schedule, &arena), STATUS_INVALID_PLAN, "no such job");
    schedule.jobs[1][3] = (PipeJob){.kind = JOB_R, .chunk = 1, .mb = 1};
    CHECK_FAILS(pipe_simulate(&timeline, &problem, &schedule, &arena), STATUS_INVALID_PLAN, "R1 before");
    CHECK_OK(pipe_policy_1f1b.build(&schedule, &problem, order, false, &arena));
    // stage 0: F0 F1 B0 B1; stage 1 wants to finish 1 before 0 is through: F1 B1 F0 B0, stage 0 waits with B0
    schedule.jobs[0][1] = (PipeJob){.kind = JOB_B, .chunk = 0, .mb = 0};
    schedule.jobs[0][2] = (PipeJob){.kind = JOB_F, .chunk = 0, .mb = 1};
    const PipeJob crossed[] = {{JOB_F, 1}, {JOB_B, 1}, {JOB_F, 0}, {JOB_B, 0}};
    memcpy(schedule.jobs[1], crossed, sizeof crossed);
    CHECK_FAILS(pipe_simulate(&timeline, &problem, &schedule, &arena), STATUS_DEADLOCK,
                "stage 0 waits with B0 for stage 1, stage 1 waits with F1 for stage 0");
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
