// test_simulate.c -- schedules in time: laws of any order, of the adaptive one, of pulled messages, of a
// plan's lists; published bubbles.
#include "../dynapipe_plugin/plan/instructions.h"
#include "../dynapipe_plugin/plan/placement.h"
#include "../dynapipe_plugin/plan/plan_message.h"
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

// --- pipe ------------------------------------------------------------------------------------------------
// the laws of GPipe and 1F1B.

static const PipePolicy* const policies[] = {&pipe_policy_gpipe, &pipe_policy_1f1b, &pipe_policy_adaptive};

// M equal microbatches on equal stages: 1F1B and GPipe take (M + P - 1)(f + b); 1F1B holds min(P - s, M).
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

// --- pipe adaptive ---------------------------------------------------------------------------------------
// the adaptive order: memory, in-flight caps, recomputation, W as filler.

// What the largest microbatch needs on stage s, all of them alone.
static int64_t largest_alone_bytes(const PipeProblem* problem, int32_t s) {
    int64_t most = 0;
    for (int32_t m = 0; m < problem->M; m++) {
        int64_t bytes = pipe_alone_bytes(problem, s, m);
        most = bytes > most ? bytes : most;
    }
    return most;
}

// Any limit that fits one microbatch alone gives a schedule that runs to its end and never exceeds it, even
// where jobs and transfers turn out to take other times. A limit below is INFEASIBLE with stage and bytes.
static void memory_limit_holds_at_any_instant(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_infeasible = 0, num_tight = 0;
    for (int32_t round = 0; round < 3000; round++) {
        arena_reset(&arena);
        int32_t P = rng_between(&rng, 1, 6), M = rng_between(&rng, 1, 14);
        RandomPipe about = {.transfers = round % 2,
                            .zero_times = round % 5 == 0,
                            .drops_percent = round % 4 * 33,
                            .pieces = round % 3 == 0};
        PipeProblem problem = random_pipe(&rng, P, M, &about, &arena);
        bool fits = true;
        for (int32_t s = 0; s < P; s++) {
            int64_t least = largest_alone_bytes(&problem, s);
            problem.memory_limit_bytes[s] = least * rng_between(&rng, 10, 30) / 10;
            if (rng_below(&rng, 40) == 0 && least > 0) { problem.memory_limit_bytes[s] = least - 1; }
            fits &= problem.memory_limit_bytes[s] >= least;
        }
        PipeSchedule schedule;
        bool split = rng_below(&rng, 2);
        int32_t* order = random_pipe_order(&rng, &problem, &arena);
        Status status = pipe_policy_adaptive.build(&schedule, &problem, order, split, &arena);
        CHECK_EQ(status == STATUS_OK, fits);
        if (status != STATUS_OK) {
            CHECK_EQ(status, STATUS_INFEASIBLE);
            CHECK(strstr(status_message(), "over the memory limit ---> ") != NULL);
            num_infeasible++;
            continue;
        }
        PipeTimeline timeline;
        CHECK_OK(pipe_simulate(&timeline, &problem, &schedule, &arena));
        for (int32_t s = 0; s < P; s++) {
            CHECK(timeline.peak_bytes[s] <= problem.memory_limit_bytes[s]);
            num_tight += timeline.peak_bytes[s] > problem.memory_limit_bytes[s] * 9 / 10;
        }
        PipeCost* costs = (PipeCost*)(uintptr_t)problem.cost;
        for (int32_t i = 0; i < P * M; i++) {
            for (int32_t k = 0; k < JOB_COUNT; k++) { costs[i].job_ns[k] = rng_between(&rng, 0, 300); }
            costs[i].transfer_ns = rng_between(&rng, 0, 300);
        }
        CHECK_OK(pipe_simulate(&timeline, &problem, &schedule, &arena));
        for (int32_t s = 0; s < P; s++) { CHECK(timeline.peak_bytes[s] <= problem.memory_limit_bytes[s]); }
    }
    CHECK(num_infeasible > 20 && num_tight > 1000);
    arena_free(&arena);
}

// Stage s never holds more than max_in_flight[s] between the begin of F and the begin of B.
static void in_flight_stays_within_the_rule(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t reached = 0;
    for (int32_t round = 0; round < 500; round++) {
        arena_reset(&arena);
        int32_t P = rng_between(&rng, 1, 6), M = rng_between(&rng, 1, 20);
        PipeProblem problem = random_pipe(&rng, P, M, &(RandomPipe){.transfers = true}, &arena);
        PipeAdaptiveRule rule = pipe_adaptive_rule(&problem, round % 2);
        for (int32_t s = 0; s < P; s++) { rule.max_in_flight[s] = rng_between(&rng, 1, 2 * (P - s)); }
        PipeSchedule schedule;
        CHECK_OK(pipe_adaptive_build(&schedule, &problem, random_order(&rng, M, &arena), &rule, &arena));
        for (int32_t s = 0; s < P; s++) {
            int32_t held = 0;
            for (int32_t i = 0; i < schedule.num_jobs[s]; i++) {
                held += schedule.jobs[s][i].kind == JOB_F ? 1 : schedule.jobs[s][i].kind == JOB_B ? -1 : 0;
                CHECK(held <= rule.max_in_flight[s]);
                reached += held == rule.max_in_flight[s];
            }
            CHECK_EQ(held, 0);
        }
    }
    CHECK(reached > 1000);
    arena_free(&arena);
}

static int64_t makespan_of(const PipePolicy* policy, const PipeProblem* problem, bool split, Arena* arena) {
    int32_t order[64];
    for (int32_t m = 0; m < problem->M; m++) { order[m] = m; }
    PipeSchedule schedule;
    PipeTimeline timeline = {0};
    CHECK_OK(policy->build(&schedule, problem, order, split, arena));
    CHECK_OK(pipe_simulate(&timeline, problem, &schedule, arena));
    return timeline.makespan_ns;
}

// R runs once, between F and B, and ahead of time where the stage would idle.
static void recomputation_uses_idle_time(void) {
    PipeCost costs[2] = {
        {.job_ns = {10, 10, 0, 10}, .stored_bytes = 5, .mode = RECOMPUTE_FULL, .drops = true},
        {.job_ns = {10, 10, 0, 0}, .stored_bytes = 5},
    };
    PipeProblem problem = {.P = 2, .M = 1, .cost = costs, .memory_limit_bytes = {INT64_MAX, INT64_MAX}};
    Arena arena = {0};
    // F0 ends at 10; F and B of stage 1 take until 30, R of stage 0 runs meanwhile: 40 instead of 50
    CHECK_EQ(makespan_of(&pipe_policy_adaptive, &problem, false, &arena), 40);
    CHECK_EQ(makespan_of(&pipe_policy_1f1b, &problem, false, &arena), 40);
    arena_free(&arena);
}

// --- pipe pulled -----------------------------------------------------------------------------------------
// receivers that fetch their messages: against a walk tick by tick, and its laws.

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

enum {
    PIPE_PULLED_MAX_P = 6,
    PIPE_PULLED_MAX_M = 14,
    MAX_JOBS = 4 * PIPE_PULLED_MAX_M * 4 * PIPE_PULLED_MAX_P,
    MAX_SENT = PIPE_PULLED_MAX_P + 1
};

// A machine of P cores that looks around at every tick: messages are pulled, or sent over links. Job times
// are at least 1, so what begins in a tick makes no message in that tick.
typedef struct {
    int64_t busy_until[PIPE_PULLED_MAX_P], end_ns[PIPE_PULLED_MAX_P][MAX_JOBS],
        begin_ns[PIPE_PULLED_MAX_P][MAX_JOBS];
    int32_t pos[PIPE_PULLED_MAX_P];
    int64_t ready_at[PIPE_PULLED_MAX_P]
                    [MAX_JOBS];  // counts messages: of equals, who came first is taken first
    int64_t arrives[PIPE_PULLED_MAX_P][MAX_JOBS][MAX_SENT];  // message k of that job; 0: not yet known
    int64_t link_ns[PIPE_PULLED_MAX_P], num_made;
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
                if (pipe_stage_of(problem, rows[k]) != s || t->arrives[from][i][k] > 0) { continue; }
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
                          PipeJob job, int64_t now) {
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
                int64_t at = from == s ? t->end_ns[from][i] : t->arrives[from][i][k];
                num_inputs -= at > 0 && at <= now;
            }
        }
    }
    return num_inputs == 0;
}

// One thing that stage s does in this tick; false: nothing.
static bool act(Ticks* t, const PipeProblem* problem, const PipeSchedule* schedule, int32_t s, int64_t now) {
    Found found;
    if (t->busy_until[s] > now) { return false; }
    if (problem->pulls && find_message(&found, t, problem, schedule, s, now)) {
        t->busy_until[s] = now + copy_ns(problem, schedule->jobs[found.from][found.job], found.row);
        t->arrives[found.from][found.job][found.k] = t->busy_until[s];
        return true;
    }
    int32_t i = t->pos[s];
    if (i == schedule->num_jobs[s]) { return false; }
    PipeJob job = schedule->jobs[s][i];
    if (!input_is_here(t, problem, schedule, s, job, now)) { return false; }
    const PipeCost* cost = pipe_cost(problem, job.chunk, job.mb);
    int64_t ns = cost->job_ns[job.kind];
    if (job.kind == JOB_B && !has_weight_job(schedule, s, job.chunk, job.mb)) { ns += cost->job_ns[JOB_W]; }
    t->begin_ns[s][i] = now;
    t->end_ns[s][i] = t->busy_until[s] = now + ns;
    t->ready_at[s][i] = ++t->num_made;
    t->pos[s]++;
    int32_t rows[MAX_SENT], num = problem->pulls ? 0 : receivers(rows, problem, job);
    for (int32_t k = 0; k < num; k++) {  // one link for all that a stage sends
        if (pipe_stage_of(problem, rows[k]) == s) { continue; }
        int64_t begin_ns = t->link_ns[s] > now + ns ? t->link_ns[s] : now + ns;
        t->arrives[s][i][k] = t->link_ns[s] = begin_ns + copy_ns(problem, job, rows[k]);
    }
    return true;
}

static void tick_through(Ticks* t, const PipeProblem* problem, const PipeSchedule* schedule) {
    memset(t, 0, sizeof *t);
    for (int64_t now = 0, last = 0; now <= last + 1; now++) {
        for (int32_t s = 0; s < problem->P; s++) {
            while (act(t, problem, schedule, s, now)) {}
            last = t->busy_until[s] > last ? t->busy_until[s] : last;
            last = t->link_ns[s] > last ? t->link_ns[s] : last;
        }
    }
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t end_ns = t->busy_until[s] + problem->tail_ns[s];
        t->makespan_ns = end_ns > t->makespan_ns ? end_ns : t->makespan_ns;
        t->deadlock |= t->pos[s] < schedule->num_jobs[s];
    }
}

// What the stage's jobs hold at most, by their times.
static int64_t most_bytes(const Ticks* t, const PipeProblem* problem, const PipeSchedule* schedule,
                          int32_t s) {
    static Change changes[3 * MAX_JOBS];
    int32_t num = 0;
    for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
        PipeJob job = schedule->jobs[s][i];
        const PipeCost* cost = pipe_cost(problem, job.chunk, job.mb);
        bool has_w = has_weight_job(schedule, s, job.chunk, job.mb);
        int64_t begins = 0, ends = 0;
        if (job.kind == JOB_F) {
            begins = cost->input_bytes + (cost->drops ? cost->forward_bytes : cost->stored_bytes);
            ends = cost->drops ? cost->forward_bytes : 0;
        }
        if (job.kind == JOB_R) { begins = cost->stored_bytes; }
        if (job.kind == JOB_B) { ends = cost->input_bytes; }
        if (job.kind == JOB_W || (job.kind == JOB_B && !has_w)) {
            ends += cost->stored_bytes + cost->kept_bytes + cost->kept_grad_bytes;
        }
        int32_t first = job.mb;  // keys and values are with the first piece, gradients begin with the last
        while (pipe_piece_before(problem, first) >= 0) { first--; }
        bool is_last = job.mb + 1 == problem->M || pipe_piece_before(problem, job.mb + 1) != job.mb;
        if (job.kind == JOB_F) { begins += cost->kept_bytes; }
        if (job.kind == JOB_B && is_last) { begins += pipe_cost(problem, job.chunk, first)->kept_grad_bytes; }
        changes[num++] = (Change){t->begin_ns[s][i], 1, begins};
        changes[num++] = (Change){t->end_ns[s][i], 0, -ends};
    }
    return most_held(changes, num);
}

static PipeProblem draw(Rng* rng, int32_t round, Arena* arena) {
    int32_t P = rng_between(rng, 1, PIPE_PULLED_MAX_P), M = rng_between(rng, 1, PIPE_PULLED_MAX_M);
    RandomPipe about = {.transfers = round % 3 > 0,
                        .drops_percent = round % 4 * 25,
                        .placed = round % 5 > 2,
                        .pieces = round % 7 < 3};
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
    int32_t num_deadlocks = 0, num_run = 0;
    for (int32_t round = 0; round < 1500; round++) {
        static Ticks ticks;
        arena_reset(&arena);
        PipeProblem problem = draw(&rng, round, &arena);
        problem.pulls = round % 4 < 2;
        if (problem.placement != NULL && round % 8 == 0) { random_pipe_limit(&problem, &rng, 10, 40); }
        PipeSchedule schedule;
        PipeTimeline timeline;
        int32_t* order = random_pipe_order(&rng, &problem, &arena);
        const PipePolicy* policy = problem.placement != NULL || problem.piece_before != NULL
                                       ? &pipe_policy_adaptive
                                       : policies[rng_below(&rng, 3)];
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
            CHECK_EQ(timeline.peak_bytes[s], most_bytes(&ticks, &problem, &schedule, s));
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
        int32_t* order = random_pipe_order(&rng, &problem, &arena);
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

// --- bubble ----------------------------------------------------------------------------------------------
// equal microbatches reproduce the published bubbles exactly.
//
// M equal microbatches on P equal stages, free transfers, f = F, b = B + W:
//   1F1B      (M + P - 1)(f + b): bubble (P - 1) / (M + P - 1) of the makespan (Narayanan et al., SC'21)
//   ZB-H1     makespan M (F + B + W) + (P - 1)(F + B - W) with the activations of P microbatches
//   ZB-H2     idle time of a stage between its first and last job (P - 1)(F + B - 2 W), with those of 2 P - 1
//             (Qi et al., ICLR'24, table 1; both for W <= F <= B, and the second from M = 2 P - 1 on)
//   V-ZB      makespan 2 M (F + B + W) + (P - 1) F, with the activations of P microbatches: no idle time
//             but the last stage's until its first input
//   V-Min     idle time of 2 P / (3 M) of the work, with those of (P + 4) / 3, both at most
//   V-Half    idle time of P / (2 M) of the work, with those of (P + 2) / 2
//             (Qi et al., NeurIPS'24; F = B = W, two chunks a stage, down and up again)

// One chunk a stage, or two, down the stages and up again; room for `held` chunks' activations on each.
static PipeProblem equal_pipe(int32_t P, int32_t M, int32_t passes, int64_t job_ns, int32_t held,
                              Arena* arena) {
    int32_t K = passes * P;
    Placement* placement = ARENA_NEW(arena, Placement, 1);
    PipeCost* cells = ARENA_NEW(arena, PipeCost, (int64_t)K * M);
    const PlanChain chain = plan_chain_whole(K, 0);
    CHECK(placement_deal(placement, passes, true, false, P, &chain));
    for (int32_t i = 0; i < K * M; i++) {
        cells[i] = (PipeCost){.job_ns = {job_ns, job_ns, job_ns}, .stored_bytes = 100};
    }
    PipeProblem pipe = {.P = P, .M = M, .placement = placement, .cost = cells};
    for (int32_t s = 0; s < P; s++) { pipe.memory_limit_bytes[s] = held * 100; }
    return pipe;
}

typedef struct {
    int64_t makespan_ns;
    int64_t idle_ns;  // of the worst stage, between its first and last job
} Measured;

// The adaptive order, split, at most in_flight microbatches of each chunk (0: as usual).
static Measured measure(int32_t P, int32_t M, int32_t passes, int64_t job_ns, int32_t held, int32_t in_flight,
                        Arena* arena) {
    PipeProblem pipe = equal_pipe(P, M, passes, job_ns, held, arena);
    PipeAdaptiveRule rule = pipe_adaptive_rule(&pipe, true);
    int32_t* order = ARENA_NEW(arena, int32_t, M);
    PipeSchedule schedule;
    PipeTimeline timeline;
    for (int32_t m = 0; m < M; m++) { order[m] = m; }
    for (int32_t k = 0; k < passes * P && in_flight > 0; k++) { rule.max_in_flight[k] = in_flight; }
    CHECK_OK(pipe_adaptive_build(&schedule, &pipe, order, &rule, arena));
    CHECK_OK(pipe_simulate(&timeline, &pipe, &schedule, arena));
    Measured out = {.makespan_ns = timeline.makespan_ns};
    for (int32_t s = 0; s < P; s++) {
        int32_t last = schedule.num_jobs[s] - 1;
        int64_t idle = timeline.job[s][last].end_ns - timeline.job[s][0].begin_ns - timeline.busy_ns[s];
        out.idle_ns = idle > out.idle_ns ? idle : out.idle_ns;
        CHECK(timeline.peak_bytes[s] <= held * 100);
    }
    return out;
}

// The adaptive order: ZB-H2's values with room for 2 P - 1. With room for P it stays above ZB-H1's where M >
// P: it prefers F to W, so a stage's memory is full of forwards when W would have let the next one in.
static void adaptive_has_no_idle_time_either(void) {
    Arena arena = {0};
    for (int32_t P = 1; P <= 8; P++) {
        int64_t most_over = 0;
        for (int32_t M = P; M <= 3 * P + 2; M++) {
            arena_reset(&arena);
            Measured h1 = measure(P, M, 1, 10, P, 0, &arena);
            Measured h2 = measure(P, M, 1, 10, 2 * P - 1, 0, &arena);
            if (M >= 2 * P - 1) {
                CHECK_EQ(h2.makespan_ns, M * 30 + (P - 1) * 10);
                CHECK_EQ(h2.idle_ns, 0);
            }
            CHECK(h1.makespan_ns >= M * 30 + (P - 1) * 10);
            int64_t over = h1.makespan_ns - M * 30 - (P - 1) * 10;
            most_over = over > most_over ? over : most_over;
        }
        printf("     %d stages, room for %d: up to %.1f F above ZB-H1\n", P, P, (double)most_over / 10);
    }
    arena_free(&arena);
}

// The makespan of V-ZB exactly; that of V-Half as published or better, for some number in flight.
static void controllable_memory(void) {
    Arena arena = {0};
    for (int32_t P = 4; P <= 16; P += 2) {
        for (int32_t M = 3 * P; M <= 5 * P; M += P) {
            arena_reset(&arena);
            Measured zero = measure(P, M, 2, 1, 2 * P, P, &arena);
            CHECK_EQ(zero.makespan_ns, 6 * M + P - 1);
            int64_t least_ns = INT64_MAX;
            for (int32_t in_flight = P / 2; in_flight <= P + 1; in_flight++) {
                Measured half = measure(P, M, 2, 1, P + 2, in_flight, &arena);
                if (half.makespan_ns < least_ns) { least_ns = half.makespan_ns; }
            }
            CHECK(least_ns - 6 * M <= 6 * P / 2);
        }
    }
    arena_free(&arena);
}

// --- a plan's lists --------------------------------------------------------------------------------------
// They end when the simulator, which knows nothing of lists, says.

typedef struct {
    Placement placement;
    PipeProblem pipe;
    PipeSchedule schedule;
    Plan plan;
} Placed;

static void random_times(Placed* placed, Rng* rng) {
    for (int32_t i = 0; i < pipe_num_rows(&placed->pipe) * placed->pipe.M; i++) {
        PipeCost* cost = (PipeCost*)(uintptr_t)&placed->pipe.cost[i];
        for (int32_t k = 0; k < JOB_COUNT; k++) { cost->job_ns[k] = rng_between(rng, 0, 5000); }
        cost->transfer_ns = rng_between(rng, 0, 2000);
        cost->part_ns = rng_between(rng, 0, 1000);
        cost->factor_ns = rng_between(rng, 0, 500);
        if (!cost->drops) { cost->job_ns[JOB_R] = 0; }
    }
}

static void add_op(PlanRank* list, const CommOp* op) {
    list->instrs[list->num_instrs++] =
        (PlanInstr){op->kind, op->chunk, op->mb, op->peer, op->begin_ns, op->end_ns};
}

// The plan of one replica: all receives, then jobs and sends.
static void placed_simulate(Placed* placed, Arena* arena) {
    const PipeSchedule* schedule = &placed->schedule;
    PipeTimeline timeline;
    CommOrder order;
    CHECK_OK(pipe_simulate(&timeline, &placed->pipe, schedule, arena));
    CHECK_OK(comm_order_make(&order, &placed->pipe, schedule, &timeline, arena));
    placed->plan = (Plan){.P = placed->pipe.P, .R = 1, .M = placed->pipe.M, .pulls = placed->pipe.pulls};
    Plan* plan = &placed->plan;
    plan->placement = placed->placement;
    plan->makespan_ns = timeline.makespan_ns;
    plan->mbs = ARENA_NEW(arena, PlanMicrobatch, plan->M);
    plan->ranks = ARENA_NEW(arena, PlanRank, plan->P);
    for (int32_t s = 0; s < plan->P; s++) {
        PlanRank* list = &plan->ranks[s];
        list->instrs = ARENA_NEW(arena, PlanInstr, schedule->num_jobs[s] + order.num_ops[s]);
        for (int32_t k = 0; k < order.num_ops[s]; k++) {
            if (plan_instr_is_recv(order.ops[s][k].kind)) { add_op(list, &order.ops[s][k]); }
        }
        for (int32_t i = 0, k = 0; i <= schedule->num_jobs[s]; i++) {
            for (; k < order.num_ops[s] && order.ops[s][k].pos <= i; k++) {
                if (plan_instr_is_send(order.ops[s][k].kind)) { add_op(list, &order.ops[s][k]); }
            }
            if (i == schedule->num_jobs[s]) { break; }
            PipeJob job = schedule->jobs[s][i];
            PipeSpan span = timeline.job[s][i];
            list->instrs[list->num_instrs++] = (PlanInstr){
                (uint8_t)plan_job_instr(job.kind), job.chunk, job.mb, -1, span.begin_ns, span.end_ns};
        }
    }
}

// Lists of the same transfers, each in its place; with other times the order of messages may be another.
static bool same_lists(const Plan* a, const Plan* b) {
    bool same = true;
    for (int32_t s = 0; s < a->P; s++) {
        for (int32_t i = 0; same && i < a->ranks[s].num_instrs; i++) {
            const PlanInstr *x = &a->ranks[s].instrs[i], *y = &b->ranks[s].instrs[i];
            same = x->kind == y->kind && x->chunk == y->chunk && x->mb == y->mb && x->peer == y->peer;
        }
    }
    return same;
}

// As planned, and given the times of the same jobs with other costs.
static void lists_end_when_the_simulator_says(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    RandomPipe about = {.transfers = true, .drops_percent = 30};
    int32_t num_shared = 0, num_changed = 0;
    for (int32_t round = 0; round < 500; round++) {
        arena_reset(&arena);
        Placed placed = {.pipe = {.P = rng_between(&rng, 1, 6)}};
        int64_t makespan_ns, *instr_ns[PLAN_MAX_STAGES];
        random_placement(&placed.placement, &rng, placed.pipe.P, 12);
        placed.pipe = random_placed_pipe(&rng, placed.pipe.P, rng_between(&rng, 1, 12), &placed.placement,
                                         &about, &arena);
        placed.pipe.pulls = round % 2;
        random_times(&placed, &rng);
        placed.schedule = random_jobs(&rng, &placed.pipe, &arena);
        placed_simulate(&placed, &arena);
        num_shared += placed.placement.head != HEAD_WHOLE;
        CHECK_OK(plan_makespan(&makespan_ns, &placed.plan, 0, NULL, &arena));
        CHECK_EQ(makespan_ns, placed.plan.makespan_ns);
        const Plan planned = placed.plan;
        random_times(&placed, &rng);
        placed_simulate(&placed, &arena);
        if (planned.pulls || !same_lists(&planned, &placed.plan)) { continue; }
        for (int32_t s = 0; s < planned.P; s++) {
            const PlanRank* list = &placed.plan.ranks[s];
            instr_ns[s] = ARENA_NEW(&arena, int64_t, list->num_instrs);
            for (int32_t i = 0; i < list->num_instrs; i++) {
                instr_ns[s][i] = list->instrs[i].end_ns - list->instrs[i].begin_ns;
            }
        }
        CHECK_OK(plan_makespan(&makespan_ns, &planned, 0, (const int64_t* const*)instr_ns, &arena));
        CHECK_EQ(makespan_ns, placed.plan.makespan_ns);
        num_changed++;
    }
    CHECK(num_shared > 200 && num_changed > 20);
    arena_free(&arena);
}

// Receives stand before everything else.
static void post_at_once(Plan* plan) {
    for (int32_t s = 0; s < plan->P; s++) {
        PlanInstr* instrs = plan->ranks[s].instrs;
        for (int32_t i = 0, num = 0; i < plan->ranks[s].num_instrs; i++) {
            PlanInstr receive = instrs[i];
            if (!plan_instr_is_recv(receive.kind)) { continue; }
            memmove(&instrs[num + 1], &instrs[num], (size_t)(i - num) * sizeof *instrs);
            instrs[num++] = receive;
        }
    }
}

// Plans whose receives are late where memory is short, as a list says and the simulator does not know: they
// end when they say.
static void late_receives_hold_transfers_up(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    int32_t num_late = 0;
    for (int32_t round = 0; round < 200; round++) {
        arena_reset(&arena);
        Plan plan;
        int32_t P = rng_between(&rng, 2, 5);
        RandomPlan about = {.P = P,
                            .R = 1,
                            .num_layers = P + 2,
                            .num_samples = rng_between(&rng, 10, 40),
                            .max_tokens = 200,
                            .packed = true,
                            .recompute = true,
                            .placed = round % 2,
                            .tight = true};
        int64_t makespan_ns;
        random_plan(&plan, &rng, &about, &arena);
        CHECK_OK(plan_makespan(&makespan_ns, &plan, 0, NULL, &arena));
        CHECK(makespan_ns == plan.makespan_ns ||
              (plan.pulls && makespan_ns < plan.makespan_ns));  // pulled in no time
        post_at_once(&plan);
        CHECK_OK(plan_makespan(&makespan_ns, &plan, 0, NULL, &arena));
        CHECK(makespan_ns <= plan.makespan_ns);
        num_late += makespan_ns < plan.makespan_ns;
    }
    printf("     %d of 200 plans end later by that\n", num_late);
    CHECK(num_late > 0);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(equal_microbatches_meet_the_closed_form);
    RUN(wrong_schedules_are_refused);
    RUN(memory_limit_holds_at_any_instant);
    RUN(in_flight_stays_within_the_rule);
    RUN(recomputation_uses_idle_time);
    RUN(simulation_is_what_ticks_make_of_it);
    RUN(search_and_simulator_agree);
    RUN(adaptive_has_no_idle_time_either);
    RUN(controllable_memory);
    RUN(lists_end_when_the_simulator_says);
    RUN(late_receives_hold_transfers_up);
    return test_end();
}
