// replay.c -- one replica's problem and schedule replayed, and what trials come to.
#include "replay.h"

#include <stdlib.h>

#include "pipe_schedule.h"
#include "replay_graph.h"

static void mark_split(bool* is_split, const PipeProblem* problem, const PipeSchedule* schedule, int32_t s) {
    for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
        PipeJob job = schedule->jobs[s][i];
        if (job.kind == JOB_W) { is_split[(int64_t)s * problem->M + job.mb] = true; }
    }
}

// Jobs of one stage, each with the transfer that it causes.
static Status list_stage(ReplayLists* lists, const PipeProblem* problem, const PipeSchedule* schedule,
                         int32_t s, const bool* is_split, Arena* arena) {
    ReplayItem* items;
    PIPE_NEW(items, arena, ReplayItem, 2 * (int64_t)schedule->num_jobs[s]);
    int32_t num_items = 0;
    for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
        PipeJob job = schedule->jobs[s][i];
        if (job.kind >= JOB_COUNT || job.mb < 0 || job.mb >= problem->M) {
            return FAIL(STATUS_INVALID_PLAN, "stage %d, job %d: no such job or micro-batch", s, i);
        }
        const PipeCost* cost = pipe_cost(problem, s, job.mb);
        bool joint = job.kind == JOB_B && !is_split[(int64_t)s * problem->M + job.mb];
        int64_t ns = cost->job_ns[job.kind] + (joint ? cost->job_ns[JOB_W] : 0);
        items[num_items++] = (ReplayItem){.kind = job.kind, .mb = job.mb, .ns = ns};
        if (job.kind == JOB_F && s < problem->P - 1) {
            items[num_items++] = (ReplayItem){REPLAY_SEND_ACT, job.mb, cost->transfer_ns};
        } else if (job.kind == JOB_B && s > 0) {
            items[num_items++] =
                (ReplayItem){REPLAY_SEND_GRAD, job.mb, pipe_cost(problem, s - 1, job.mb)->transfer_ns};
        }
    }
    lists->items[s] = items;
    lists->num_items[s] = num_items;
    lists->tail_ns[s] = problem->tail_ns[s];
    return STATUS_OK;
}

static Status graph_of(ReplayGraph* out, const PipeProblem* problem, const PipeSchedule* schedule,
                       Arena* scratch) {
    ReplayLists lists = {.P = problem->P, .M = problem->M};
    bool* is_split;
    PIPE_NEW(is_split, scratch, bool, (int64_t)problem->P * problem->M);
    for (int32_t s = 0; s < problem->P; s++) {
        mark_split(is_split, problem, schedule, s);
        TRY(list_stage(&lists, problem, schedule, s, is_split, scratch));
    }
    return replay_graph_make(out, &lists, scratch);
}

Status pipe_replay_trials(int64_t* makespan_ns, const PipeProblem* problem, const PipeSchedule* schedule,
                          const ReplayNoise* noise, Arena* scratch) {
    ReplayGraph graph;
    ReplaySums sums = {.makespan_ns = makespan_ns};
    TRY(replay_noise_check(noise, problem->P));
    TRY(graph_of(&graph, problem, schedule, scratch));
    return replay_graph_run(&sums, &graph, noise, noise->seed, scratch);
}

Status pipe_replay(ReplayResult* out, const PipeProblem* problem, const PipeSchedule* schedule,
                   int32_t noise_permille, int32_t trials, uint64_t seed, Arena* scratch) {
    ReplayNoise noise = {.noise_permille = noise_permille, .trials = trials, .seed = seed};
    ReplayGraph graph;
    ReplaySums sums = {0};
    ReplayResult result = {0};
    TRY(replay_noise_check(&noise, problem->P));
    PIPE_NEW(sums.makespan_ns, scratch, int64_t, trials);
    TRY(graph_of(&graph, problem, schedule, scratch));
    TRY(replay_graph_run(&sums, &graph, &noise, seed, scratch));
    replay_quantiles(&result, sums.makespan_ns, trials);
    result.planned_ns = sums.planned_ns;
    for (int32_t s = 0; s < problem->P; s++) {
        result.planned_wait_ns[s] = sums.planned_wait_ns[s];
        result.mean_wait_ns[s] = sums.wait_ns[s];
    }
    *out = result;
    return STATUS_OK;
}

static int compare_ns(const void* a, const void* b) {
    int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
    return (x > y) - (x < y);
}

void replay_quantiles(ReplayResult* out, int64_t* makespan_ns, int32_t trials) {
    qsort(makespan_ns, (size_t)trials, sizeof *makespan_ns, compare_ns);
    int64_t whole = 0, rest = 0;  // of makespan / trials: the plain sum could overflow
    for (int32_t i = 0; i < trials; i++) {
        whole += makespan_ns[i] / trials;
        rest += makespan_ns[i] % trials;
    }
    out->mean_ns = whole + rest / trials;
    out->p50_ns = makespan_ns[((int64_t)trials * 5 + 9) / 10 - 1];
    out->p90_ns = makespan_ns[((int64_t)trials * 9 + 9) / 10 - 1];
    out->worst_ns = makespan_ns[trials - 1];
}
