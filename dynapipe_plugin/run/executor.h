/*
executor.h -- runs one rank's instruction list of any valid plan over a model; knows nothing of planning.

    Executor* executor;
    TRY(executor_create(&executor, &model_api, model, &transport, timeout_ns));
    ExecutorStep step = {.plan = &plan, .batches = ..., .losses = ..., .arena = memory, .arena_bytes = ...};
    TRY(executor_run(executor, &step));
    const TraceRank* trace = executor_trace(executor);

Order: strictly that of the list (plan.h). Sends and receives are posted without blocking; before a job the
executor waits for what the job reads; before reuse of a buffer the plan has a wait_*. Between jobs, and while
it waits, it polls every transfer in flight.

Memory: every buffer lies where the plan says, inside `arena`, which the caller owns and makes large enough
(plan->ranks[rank].arena_bytes); the executor never touches what lies in it, so it may be device memory. The
step loop allocates nothing once a plan of the largest length was seen.

On a device (executor_use_device) a job is queued, what it reads is joined to the queue (transport.h), and the
host runs ahead; executor_finish() waits. No transfer is polled in between.

Jobs:    fwd = forward; flags KEEP|HEAD, or 0 where this stage recomputes the micro-batch fully
         rec = forward again, KEEP|HEAD
         bwd = backward_inputs, and backward_weights at once unless the plan has a wgt for it on this rank
         wgt = backward_weights
Losses come from the job that ran the head, so from rec where the plan recomputes.

Failures: an instruction before one it builds on, twice, or with a wrong peer, a buffer smaller than the model
asks for (costs of another model) is STATUS_INVALID_PLAN with both numbers, before anything is sent; a job's
own error is passed on with the instruction's name; where no transfer moves for timeout_ns, STATUS_COMM names
rank, instruction and peer. After a failure transfers may still be pending: abort or close the transport
before freeing the arena.
*/
#pragma once

#include "../base/status.h"
#include "../dynapipe.h"
#include "../plan/lists/plan.h"
#include "device.h"
#include "step_agreement.h"
#include "trace.h"
#include "transport.h"

typedef struct Executor Executor;

typedef struct {
    const Plan* plan;                     // P * R == transport->num_ranks; rank = replica * P + stage
    const DynapipeBatch* const* batches;  // [plan->M]; NULL where another replica runs the micro-batch
    float* const* losses;                 // [plan->M], losses[mb][num_rows]; last stage only, else NULL
    void* arena;                          // aligned to PLAN_BUFFER_ALIGN
    int64_t arena_bytes;
} ExecutorStep;

// Forward only, over the stages of one replica, micro-batch after micro-batch (validation, generation).
typedef struct {
    const DynapipeBatch* batches;  // [num_batches], the same on every stage of the replica
    int32_t num_batches;
    float* const* losses;          // [num_batches], last stage only, else NULL
    int32_t prev_rank, next_rank;  // transport ranks of the neighbour stages, -1: none
    void* arena;
    int64_t arena_bytes;  // at least executor_forward_bytes()
} ExecutorForward;

// `api`, `model` and `transport` are borrowed. timeout_ns 0: wait for ever.
Status executor_create(Executor** out, const DynapipeModel_v1* api, void* model, Transport* transport,
                       int64_t timeout_ns);
void executor_free(Executor* executor);  // NULL is fine

// Where the model's values live, if not in this process; before the first step. `transport` has join() then.
void executor_use_device(Executor* executor, Device device);

// What this rank's list sends and receives, by the model's lengths: to_prev and to_next of *claim. Before the
// step, for step_agree().
Status executor_claim(const Executor* executor, const ExecutorStep* step, StepClaim* claim);

// executor_start() goes through the list, executor_finish() waits until everything is done and losses are in
// place. More may be queued on the device in between: it is waited for, too.
Status executor_start(Executor* executor, const ExecutorStep* step);
Status executor_finish(Executor* executor);
Status executor_run(Executor* executor, const ExecutorStep* step);  // both

// Around what else is queued on the device between start and finish (TRACE_REDUCE): into the record, with the
// device's times.
Status executor_queue_begin(Executor* executor, TraceKind kind);
Status executor_queue_end(Executor* executor);

// Where the rank stands in its list, as words: for the message that nothing moves any more.
void executor_position(const Executor* executor, char* out, size_t out_bytes);

// Bytes that executor_run_forward needs for the largest of these batches: two inputs and two outputs at the
// stage's boundaries, activations, scratch.
int64_t executor_forward_bytes(const Executor* executor, const DynapipeBatch* batches, int32_t num_batches);
Status executor_run_forward(Executor* executor, const ExecutorForward* forward);

// New tokens of some sequences over the stages of one replica (generation).
typedef struct {
    const DynapipeBatch* batch;    // the same on every stage of the replica
    const DynapipeCache* cache;    // this stage's memory, at least executor_cache_bytes()
    int32_t prev_rank, next_rank;  // transport ranks of the neighbour stages, -1: none
    int32_t* next;                 // (num_seqs) the likeliest next tokens; last stage only
    void* arena;                   // aligned to PLAN_BUFFER_ALIGN
    int64_t arena_bytes;           // at least executor_infer_bytes()
} ExecutorInfer;

int64_t executor_infer_bytes(const Executor* executor, const DynapipeBatch* batch);
int64_t executor_cache_bytes(const Executor* executor, const DynapipeCache* cache);
Status executor_run_infer(Executor* executor, const ExecutorInfer* infer);

// What the last executor_run (or executor_run_forward) did; valid until the next.
const TraceRank* executor_trace(const Executor* executor);

// Add what the rank did besides (reduce, update, share) to that record, a few per step; moves its end.
void executor_trace_add(Executor* executor, TraceKind kind, int64_t begin_ns, int64_t end_ns);
