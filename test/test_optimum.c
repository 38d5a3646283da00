// test_optimum.c -- the optimum that other tests compare with, against every order of the jobs.
#include "optimum.h"
#include "../dynapipe_plugin/plan/simulate.h"

#include "random_plan.h"
#include "test.h"

enum { MAX_NODES = 400000 };

static uint64_t seed;

// The next job of m in this row, after `done` of them; false: none.
static bool next_kind(uint8_t* kind, const PipeProblem* pipe, int32_t row, int32_t done, bool split) {
    static const uint8_t of_chunk[] = {JOB_F, JOB_B, JOB_W}, of_share[] = {JOB_F, JOB_W};
    bool is_share = row >= pipe_num_chunks(pipe);
    if (done == (is_share || !split ? 2 : 3)) { return false; }
    *kind = (is_share ? of_share : of_chunk)[done];
    return true;
}

// Every order of the jobs left on stage s, stage after stage, through the simulator.
static void try_all(int64_t* best_ns, const PipeProblem* pipe, PipeSchedule* schedule, int32_t s, bool split,
                    Arena* arena) {
    if (s == pipe->P) {
        PipeTimeline timeline;
        arena_reset(arena);
        if (pipe_simulate(&timeline, pipe, schedule, arena) != STATUS_OK) { return; }
        for (int32_t k = 0; k < pipe->P; k++) {
            if (timeline.peak_bytes[k] > pipe->memory_limit_bytes[k]) { return; }
        }
        if (timeline.makespan_ns < *best_ns) { *best_ns = timeline.makespan_ns; }
        return;
    }
    bool is_full = true;
    for (int32_t row = 0; row < pipe_num_rows(pipe); row++) {
        if (!pipe_has_row(pipe, row) || pipe_stage_of(pipe, row) != s) { continue; }
        for (int32_t m = 0; m < pipe->M; m++) {
            PipeJob job = {.chunk = (int16_t)row, .mb = m};
            int32_t done = 0;
            for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
                const PipeJob* other = &schedule->jobs[s][i];
                done += other->mb == m && other->chunk == row;
            }
            if (!next_kind(&job.kind, pipe, row, done, split)) { continue; }
            is_full = false;
            schedule->jobs[s][schedule->num_jobs[s]++] = job;
            try_all(best_ns, pipe, schedule, s, split, arena);
            schedule->num_jobs[s]--;
        }
    }
    if (is_full) { try_all(best_ns, pipe, schedule, s + 1, split, arena); }
}

static void limit_memory(PipeProblem* pipe, Rng* rng) {
    for (int32_t s = 0; s < pipe->P; s++) {
        int64_t largest = 0;
        for (int32_t m = 0; m < pipe->M; m++) {
            int64_t sum = 0;  // of one microbatch, all that the stage has of it
            for (int32_t row = 0; row < pipe_num_rows(pipe); row++) {
                if (!pipe_has_row(pipe, row) || pipe_stage_of(pipe, row) != s) { continue; }
                PipeCost* cost = (PipeCost*)(uintptr_t)pipe_cost(pipe, row, m);
                cost->input_bytes = 0;
                sum += cost->stored_bytes;
            }
            largest = sum > largest ? sum : largest;
        }
        pipe->memory_limit_bytes[s] = largest * rng_between(rng, 10, 35) / 10;
    }
}

// Where the chunks of two stages lie in any order, and the head is whole or shared.
static void optimum_of_placements_is_that_of_all_orders(void) {
    Rng rng = rng_seed(seed + 5);
    Arena arena = {0}, runs = {0};
    int num = 0, num_shared = 0;
    while (num < 120) {
        arena_reset(&arena);
        RandomPipe about = {.transfers = num % 3 > 0, .placed = true};
        bool split = rng_below(&rng, 2);
        PipeProblem pipe = random_pipe(&rng, 2, rng_between(&rng, 1, 2), &about, &arena);
        int32_t num_jobs[2] = {0};
        for (int32_t row = 0; row < pipe_num_rows(&pipe); row++) {
            if (!pipe_has_row(&pipe, row)) { continue; }
            num_jobs[pipe_stage_of(&pipe, row)] += pipe.M * (split && row < pipe_num_chunks(&pipe) ? 3 : 2);
        }
        if (num_jobs[0] > 6 || num_jobs[1] > 6) { continue; }
        num_shared += pipe_shares_head(&pipe);
        if (num % 4 == 3) { limit_memory(&pipe, &rng); }
        PipeSchedule schedule = {0};
        for (int32_t s = 0; s < 2; s++) {
            pipe.tail_ns[s] = rng_between(&rng, 0, 50);
            schedule.jobs[s] = ARENA_NEW(&arena, PipeJob, 6);
        }
        int64_t best_ns = INT64_MAX;
        try_all(&best_ns, &pipe, &schedule, 0, split, &runs);
        CHECK_EQ(optimum_make(&pipe, split, INT64_MAX, MAX_NODES), best_ns);
        num++;
    }
    printf("     %d pipelines, %d with a shared head\n", num, num_shared);
    CHECK(num_shared > 10);
    arena_free(&runs);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(optimum_of_placements_is_that_of_all_orders);
    return test_end();
}
