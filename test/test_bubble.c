// test_bubble.c -- equal micro-batches reproduce the published bubbles exactly.
//
// M equal micro-batches on P equal stages, free transfers, f = F, b = B + W:
//   1F1B      (M + P - 1)(f + b): bubble (P - 1) / (M + P - 1) of the makespan (Narayanan et al., SC'21)
//   ZB-H1     makespan M (F + B + W) + (P - 1)(F + B - W) with the activations of P micro-batches
//   ZB-H2     idle time of a stage between its first and last job (P - 1)(F + B - 2 W), with those of 2 P - 1
//             (Qi et al., ICLR'24, table 1; both for W <= F <= B, and the second from M = 2 P - 1 on)
//   V-ZB      makespan 2 M (F + B + W) + (P - 1) F, with the activations of P micro-batches: no idle time
//             but the last stage's until its first input
//   V-Min     idle time of 2 P / (3 M) of the work, with those of (P + 4) / 3, both at most
//   V-Half    idle time of P / (2 M) of the work, with those of (P + 2) / 2
//             (Qi et al., NeurIPS'24; F = B = W, two chunks a stage, down and up again)
#include "../dynapipe_plugin/plan/schedule.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

static PipeProblem equal_pipe(int32_t P, int32_t M, int64_t F, int64_t B, int64_t W, Arena* arena) {
    PipeCost* cells = ARENA_NEW(arena, PipeCost, (int64_t)P * M);
    PipeProblem pipe = {.P = P, .M = M, .cost = cells};
    for (int32_t i = 0; i < P * M; i++) {
        cells[i] = (PipeCost){.job_ns = {[JOB_F] = F, [JOB_B] = B, [JOB_W] = W}, .stored_bytes = 100};
    }
    for (int32_t s = 0; s < P; s++) { pipe.memory_limit_bytes[s] = INT64_MAX; }
    return pipe;
}

typedef struct {
    int64_t makespan_ns;
    int64_t idle_ns;  // of the worst stage, between its first and last job
    int64_t peak;     // micro-batches held by the worst stage
} Measured;

static Measured measure(const PipeProblem* pipe, const PipeSchedule* schedule, Arena* arena) {
    PipeTimeline timeline;
    Measured out = {0};
    CHECK_OK(pipe_simulate(&timeline, pipe, schedule, arena));
    out.makespan_ns = timeline.makespan_ns;
    for (int32_t s = 0; s < pipe->P; s++) {
        int32_t last = schedule->num_jobs[s] - 1;
        int64_t idle = timeline.job[s][last].end_ns - timeline.job[s][0].begin_ns - timeline.busy_ns[s];
        out.idle_ns = idle > out.idle_ns ? idle : out.idle_ns;
        out.peak = timeline.peak_bytes[s] / 100 > out.peak ? timeline.peak_bytes[s] / 100 : out.peak;
    }
    return out;
}

// A split order where every stage has room for `held` micro-batches, from forward to weights.
static Measured split_order(const PipePolicy* policy, int32_t P, int32_t M, int32_t held, const int64_t ns[3],
                            Arena* arena) {
    PipeProblem pipe = equal_pipe(P, M, ns[0], ns[1], ns[2], arena);
    int32_t* order = ARENA_NEW(arena, int32_t, M);
    for (int32_t m = 0; m < M; m++) { order[m] = m; }
    for (int32_t s = 0; s < P; s++) { pipe.memory_limit_bytes[s] = held * 100; }
    PipeSchedule schedule;
    CHECK_OK(policy->build(&schedule, &pipe, order, true, arena));
    Measured got = measure(&pipe, &schedule, arena);
    CHECK(got.peak <= held);
    return got;
}

static void one_f_one_b(void) {
    Arena arena = {0};
    for (int32_t P = 1; P <= 8; P++) {
        for (int32_t M = 1; M <= 24; M++) {
            arena_reset(&arena);
            PipeProblem pipe = equal_pipe(P, M, 30, 20, 20, &arena);
            int32_t* order = ARENA_NEW(&arena, int32_t, M);
            for (int32_t m = 0; m < M; m++) { order[m] = m; }
            PipeSchedule schedule;
            CHECK_OK(pipe_policy_1f1b.build(&schedule, &pipe, order, false, &arena));
            Measured got = measure(&pipe, &schedule, &arena);
            CHECK_EQ(got.makespan_ns, (M + P - 1) * 70);
            CHECK_EQ((got.makespan_ns - M * 70) * (M + P - 1), (P - 1) * got.makespan_ns);
        }
    }
    arena_free(&arena);
}

// The adaptive order: ZB-H2's values with room for 2 P - 1. With room for P it stays above ZB-H1's where M >
// P: it prefers F to W, so a stage's memory is full of forwards when W would have let the next one in.
static void adaptive_has_no_idle_time_either(void) {
    static const int64_t ns[3] = {10, 10, 10};
    Arena arena = {0};
    for (int32_t P = 1; P <= 8; P++) {
        int64_t most_over = 0;
        for (int32_t M = P; M <= 3 * P + 2; M++) {
            arena_reset(&arena);
            Measured h1 = split_order(&pipe_policy_adaptive, P, M, P, ns, &arena);
            Measured h2 = split_order(&pipe_policy_adaptive, P, M, 2 * P - 1, ns, &arena);
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

// F = B = W = 1 for each of two chunks, down the stages and up again.
static PipeProblem vee_pipe(int32_t P, int32_t M, Arena* arena) {
    int32_t K = 2 * P;
    Placement* placement = ARENA_NEW(arena, Placement, 1);
    PipeCost* cells = ARENA_NEW(arena, PipeCost, (int64_t)K * M);
    placement->num_chunks = K;
    for (int32_t k = 0; k < K; k++) {
        placement->chunks[k] = (LayerRange){k, k + 1};
        placement->stage_of[k] = (int16_t)(k < P ? k : K - 1 - k);
    }
    for (int32_t i = 0; i < K * M; i++) {
        cells[i] = (PipeCost){.job_ns = {[JOB_F] = 1, [JOB_B] = 1, [JOB_W] = 1}, .stored_bytes = 100};
    }
    PipeProblem pipe = {.P = P, .M = M, .placement = placement, .cost = cells};
    for (int32_t s = 0; s < P; s++) { pipe.memory_limit_bytes[s] = INT64_MAX; }
    return pipe;
}

// The adaptive order with room for `held` micro-batches, and as many of each chunk in flight.
static Measured vee(int32_t P, int32_t M, int32_t held, int32_t in_flight, Arena* arena) {
    PipeProblem pipe = vee_pipe(P, M, arena);
    int32_t K = 2 * P, *order = ARENA_NEW(arena, int32_t, M);
    for (int32_t m = 0; m < M; m++) { order[m] = m; }
    for (int32_t s = 0; s < P; s++) { pipe.memory_limit_bytes[s] = 2 * held * 100; }
    PipeAdaptiveRule rule = pipe_adaptive_rule(&pipe, true);
    for (int32_t k = 0; k < K; k++) { rule.max_in_flight[k] = in_flight; }
    PipeSchedule schedule;
    CHECK_OK(pipe_adaptive_build(&schedule, &pipe, order, &rule, arena));
    Measured got = measure(&pipe, &schedule, arena);
    CHECK(got.peak <= 2 * held);  // of half micro-batches
    return got;
}

// The makespan of V-ZB exactly; that of V-Half as published or better, for some number in flight.
static void controllable_memory(void) {
    Arena arena = {0};
    for (int32_t P = 4; P <= 16; P += 2) {
        for (int32_t M = 3 * P; M <= 5 * P; M += P) {
            arena_reset(&arena);
            Measured zero = vee(P, M, P, P, &arena);
            CHECK_EQ(zero.makespan_ns, 6 * M + P - 1);
            int64_t least_ns = INT64_MAX;
            for (int32_t in_flight = P / 2; in_flight <= P + 1; in_flight++) {
                Measured half = vee(P, M, (P + 2) / 2, in_flight, &arena);
                if (half.makespan_ns < least_ns) { least_ns = half.makespan_ns; }
            }
            CHECK(least_ns - 6 * M <= 6 * P / 2);
        }
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(one_f_one_b);
    RUN(adaptive_has_no_idle_time_either);
    RUN(controllable_memory);
    return test_end();
}
