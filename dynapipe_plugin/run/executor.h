/*
executor.h -- runs one rank's instruction list of any valid plan over a model; independent of planning.

    Executor* executor;
    ExecutorRange ranges[] = {{&model_api, model}};         // of the placement's chunks those of this rank
    TRY(executor_create(&executor, ranges, 1, &transport, timeout_ns));
    ExecutorStep step = {.plan = &plan, .batches = ..., .losses = ..., .arena = memory, .arena_bytes = ...};
    TRY(executor_prepare_step(executor, &step, NULL));
    TRY(executor_start(executor));
    TRY(executor_finish(executor));
    const TraceRank* trace = executor_trace(executor);

Order: strictly that of the list (plan.h). Sends and receives are posted without blocking; before a job the
executor waits for what the job reads; before reuse of a buffer the plan has a wait_*. Between jobs, and while
it waits, it polls every transfer in flight.

Memory: every buffer has the place that the plan gives it, inside `arena`, which the caller owns and makes
large enough (plan->ranks[rank].arena_bytes); the executor never reads or writes its contents, so it may be
device memory. The step loop allocates nothing after a plan of the largest length.

On a device (executor_use_device) a job is queued, its inputs are joined to the queue (transport.h), and the
host runs ahead; executor_finish() waits. No transfer is polled in between.

Jobs:    fwd = forward; flags KEEP|HEAD, or 0 where this stage recomputes the microbatch fully
         rec = forward again, KEEP|HEAD
         bwd = backward_inputs, and backward_weights at once unless the plan has a wgt for it on this rank
         wgt = backward_weights
of a share of the head (plan.h):
         fwd = forward and backward_inputs
         bwd of the last chunk = combine, by vocabulary, and then as always
Losses come from the job that ran the head, so from rec where the plan recomputes; of a shared head see
executor_loss_rows().

Failures: a buffer smaller than the model asks for (costs of another model) is STATUS_INVALID_PLAN with both
numbers, before anything is sent (all else about a list is plan_check's); a job's own error is passed on with
the instruction's name; where no transfer moves for timeout_ns, STATUS_COMM names rank, instruction and peer.
After a failure transfers may still be pending: abort or close the transport before freeing the arena.
*/
#pragma once

#include <stdbool.h>
#include "../dynapipe.h"
#include "../plan/plan.h"
#include "collective.h"
#include "device.h"
#include "trace.h"
#include "transfers.h"
#include "transport.h"
#include "../../util/status.h"

typedef struct Executor Executor;

// A range of blocks of this rank (dynapipe_choose_stages()).
typedef struct {
    const DynapipeModel_v1* api;
    void* model;
} ExecutorRange;

typedef struct {
    const Plan* plan;                     // P * R == transport->num_ranks; rank = replica * P + stage
    const DynapipeBatch* const* batches;  // [plan->M]; NULL where another replica runs the microbatch
    float* const* losses;                 // [plan->M], losses[mb][num_rows]; NULL where this rank has none
    void* arena;                          // aligned to PLAN_BUFFER_ALIGN
    int64_t arena_bytes;
} ExecutorStep;

// ranges: the chunks of this rank in the chain's order, then its share of the head; copied; their models and
// `transport` are borrowed. timeout_ns 0: wait forever.
Status executor_create(Executor** out, const ExecutorRange* ranges, int32_t num_ranges, Transport* transport,
                       int64_t timeout_ns);
void executor_free(Executor* executor);  // NULL is allowed

// Where the model's values are, if not in this process; before the first step. `transport` must have join().
void executor_use_device(Executor* executor, Device device);

// How many of a microbatch's num_rows supervised rows have their losses on the rank of `stage`: all where
// the last chunk is; where the head is shared by rows, its own; else none.
void executor_loss_rows(const Placement* placement, int32_t stage, int32_t num_rows, int32_t* begin,
                        int32_t* end);

// The other stages of a replica that `stage` exchanges messages with, ascending; returns their number. The
// relation is symmetric. num_chunks 0: the plain pipeline.
int32_t executor_peers(int32_t out[PLAN_MAX_STAGES], const Placement* placement, int32_t num_stages,
                       int32_t stage);

// The model has the functions that such a shared head needs.
bool executor_can_share(const DynapipeModel_v1* api, HeadSplit head);

// Before a step: checks the list against the models, and fills claim->with (NULL: not wanted), which says
// what it sends and receives, for step_agree(). `step` and what it points to stay until the step is finished.
Status executor_prepare_step(Executor* executor, const ExecutorStep* step, StepClaim* claim);
// executor_start() runs the list, executor_finish() waits until everything is done and losses are in place.
// More may be queued on the device in between; it is waited for too.
Status executor_start(Executor* executor);
Status executor_finish(Executor* executor);

// Before and after other work that is queued on the device between start and finish (TRACE_REDUCE): recorded
// with the device's times.
Status executor_queue_begin(Executor* executor, TraceKind kind);
Status executor_queue_end(Executor* executor);

// The rank's position in its list, as words, for the message that nothing moves any more.
void executor_position(const Executor* executor, char* out, size_t out_bytes);

// Forward only over the stages of one replica (rank = replica * num_stages + stage), microbatch after
// microbatch: validation, or, with a cache, the next tokens of some sequences (one batch).
typedef struct {
    const Placement* placement;
    int32_t num_stages;
    const DynapipeBatch* batches;  // [num_batches], the same on every stage of the replica
    int32_t num_batches;
    float* const* losses;        // [num_batches], as in ExecutorStep; without a cache
    const DynapipeCache* cache;  // this rank's memory
    int32_t* next;               // (num_seqs) the likeliest next tokens; where the last chunk is
    void* arena;                 // aligned to PLAN_BUFFER_ALIGN
    int64_t arena_bytes;
} ExecutorPass;

// Bytes of the arena for the largest of these batches, and of this rank's cache (NULL without one).
void executor_pass_bytes(int64_t* num_bytes, int64_t* cache_bytes, Executor* executor,
                         const ExecutorPass* pass);
Status executor_run_pass(Executor* executor, const ExecutorPass* pass);

// The record of the last step or pass; valid until the next.
const TraceRank* executor_trace(const Executor* executor);

// Add the rank's other work (reduce, update, share) to that record, a few per step; moves its end.
void executor_trace_add(Executor* executor, TraceKind kind, int64_t begin_ns, int64_t end_ns);
