// pipe_cyclic.c -- the `cyclic` order of DynaPipe (EuroSys'24; spec section e.3), and the same with a limit.
//
// Time is global cycles; what jobs really take is not looked at. In every cycle every stage runs one
// backward, if there is one, then one forward; what that makes ready is ready in the next cycle. Without a
// limit stage s runs F(k) in cycle s + k and B(k) in cycle 2P - 1 - s + k, so it holds at most 2 (P - s) - 1
// micro-batches. With a limit a forward waits until it fits beside what the stage holds.
//
// The original also takes its order of transfers from here. A stage's transfers are made ready in the order
// of its jobs, at most one each way per cycle, and leave in the same cycle: that is the order of its jobs,
// which is what the simulator's sending links do anyway.
#include "pipe_schedule.h"

// Positions in `order`, and what the stage holds.
typedef struct {
    int32_t next_f, next_b;
    int32_t f_ready, b_ready;  // this cycle may run positions below
    int64_t held_bytes;        // F to B: stored (where F keeps it) and input
    int64_t dropped_bytes;     // the most that a dropped micro-batch in flight needs when it comes back
} CyclicStage;

static int64_t held_of(const PipeCost* cost) {
    return cost->input_bytes + (cost->drops ? 0 : cost->stored_bytes);
}

// What F needs only while it runs, and R until B has run.
static int64_t dropped_of(const PipeCost* cost) {
    int64_t most_bytes = cost->stored_bytes > cost->forward_bytes ? cost->stored_bytes : cost->forward_bytes;
    return cost->drops ? most_bytes : 0;
}

static bool admits(const CyclicStage* stage, const PipeCost* cost, int64_t limit_bytes) {
    int64_t dropped_bytes = dropped_of(cost);
    if (stage->dropped_bytes > dropped_bytes) { dropped_bytes = stage->dropped_bytes; }
    return stage->held_bytes + held_of(cost) + dropped_bytes <= limit_bytes;
}

static Status build_cyclic(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                           bool split_backward, bool limited, Arena* arena) {
    CyclicStage stages[PLAN_MAX_STAGES] = {{0}};
    int32_t P = problem->P, M = problem->M, num_run;
    if (limited) { TRY(pipe_problem_check_fits(problem)); }
    TRY(pipe_schedule_need_linear(problem, "cyclic"));
    TRY(pipe_schedule_init(out, problem, arena));
    do {
        num_run = 0;
        for (int32_t s = 0; s < P; s++) {
            stages[s].f_ready = s == 0 ? M : stages[s - 1].next_f;
            stages[s].b_ready = s == P - 1 ? stages[s].next_f : stages[s + 1].next_b;
        }
        for (int32_t s = 0; s < P; s++) {
            CyclicStage* stage = &stages[s];
            if (stage->next_b < stage->b_ready) {
                int32_t m = order[stage->next_b++];
                pipe_schedule_push_backward(out, problem, s, s, m, split_backward);
                stage->held_bytes -= held_of(pipe_cost(problem, s, m));
                if (stage->next_b == stage->next_f) { stage->dropped_bytes = 0; }
                num_run++;
            }
            if (stage->next_f == stage->f_ready) { continue; }
            const PipeCost* cost = pipe_cost(problem, s, order[stage->next_f]);
            if (limited && !admits(stage, cost, problem->memory_limit_bytes[s])) { continue; }
            pipe_schedule_push(out, s, JOB_F, s, order[stage->next_f++]);
            stage->held_bytes += held_of(cost);
            if (dropped_of(cost) > stage->dropped_bytes) { stage->dropped_bytes = dropped_of(cost); }
            num_run++;
        }
    } while (num_run > 0);
    return STATUS_OK;
}

static Status build(PipeSchedule* out, const PipeProblem* problem, const int32_t* order, bool split_backward,
                    Arena* arena) {
    return build_cyclic(out, problem, order, split_backward, false, arena);
}

static Status build_limited(PipeSchedule* out, const PipeProblem* problem, const int32_t* order,
                            bool split_backward, Arena* arena) {
    return build_cyclic(out, problem, order, split_backward, true, arena);
}

const PipePolicy pipe_policy_cyclic = {
    .name = "cyclic",
    .help = "one backward and one forward per cycle, as if all took equally long",
    .build = build,
};

const PipePolicy pipe_policy_cyclic_limited = {
    .name = "cyclic-limited",
    .help = "cyclic, where a forward waits until it fits in memory",
    .build = build_limited,
};
