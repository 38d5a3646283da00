/*
replay.h -- the robustness of a schedule: its makespan under random durations.

The order of jobs on every stage and of transfers on every link (where messages are pulled: of jobs and
messages on every stage) stays as planned; each job and transfer takes
its planned time x (1 + noise x z), z about normal (sum of four uniforms, mean 0, deviation 1, |z| < 3.47),
and everything begins as soon as it can, as in pipe_simulate; but a transfer no sooner than its receiver's
list posts it, which where memory is short is late. Never less than 5 % of the planned time, nor
more than 195 %. Gradient reduction (the tail) takes what was planned.

Trials come in pairs, z and -z (antithetic variates: Hammersley, Morton 1956). The makespan is a convex
function of the durations, so over whole pairs the mean is never below the plan's, up to the rounding of
durations. z depends on seed, pair, chunk, microbatch and job kind, not on the order of jobs: two orders of
the same microbatches meet the same noise.

Seeded: the same numbers on every rank and compiler.
*/
#pragma once

#include "plan.h"
#include "plan_message.h"
#include "schedule.h"
#include "../../util/numbers.h"

enum { REPLAY_MAX_NOISE_PERMILLE = 1000, REPLAY_MAX_SLOW_PERMILLE = 100000, REPLAY_MAX_TRIALS = 1000000 };

typedef struct {
    int32_t noise_permille;  // standard deviation of a duration, 0 ... 1000
    int32_t trials;          // 1 ... 1000000; an even number makes whole pairs
    uint64_t seed;
    int32_t slow_stage;     // its jobs take slow_permille / 1000 of their time, in every replica
    int32_t slow_permille;  // 0: none is slow
} ReplayNoise;

typedef struct {
    int64_t planned_ns;  // without noise or slow stage
    int64_t p50_ns, p90_ns, mean_ns, worst_ns;
    // Time that a stage stands still before its last job; mean over trials (and replicas).
    int64_t planned_wait_ns[PLAN_MAX_STAGES], mean_wait_ns[PLAN_MAX_STAGES];
} ReplayResult;

// A whole plan, from the times and orders in its instruction lists. A plan has no times for the reduction of
// single stages, only its makespan: every rank gets the same tail, the makespan less the last end of any job.
// So without noise the makespan is reproduced exactly. Unchecked plans are safe: STATUS_INVALID_PLAN or
// STATUS_DEADLOCK where something that is waited for is missing; STATUS_OUT_OF_RANGE (noise, trials, times
// beyond 266 days). Temporaries stay in `scratch` until the caller resets it.
Status plan_replay(ReplayResult* out, const Plan* plan, const ReplayNoise* noise, Arena* scratch);

// When the last job of a replica ends if instruction i of its stage s takes instr_ns[s][i] (jobs and sends,
// these wherever messages are taken; of others it is not read), all orders as planned. instr_ns NULL: what
// was planned; that is the plan's makespan less its tail where the replica is the slowest.
Status plan_makespan(int64_t* out_ns, const Plan* plan, int32_t replica, const int64_t* const* instr_ns,
                     Arena* scratch);

int64_t plan_tail_ns(const Plan* plan);  // what the makespan has after the last end of any job: reduction

static inline uint64_t replay_replica_seed(uint64_t seed, int32_t replica) {
    return seed + (uint64_t)replica * 0xd1342543de82ef95u;
}
