/*
instructions.h -- instruction lists: the order of messages, every rank's list and buffers.

The order in which ranks exchange activations and gradients is taken from the simulated timeline.

Jobs and transfers are put into one sequence by their simulated begin, everything after what it needs (spec
section e.6): a transfer after the job that makes it, a job after its transfers, whatever stages they join and
however many transfers a job has. Both ends of a transfer take it from there, so every pair of ranks sees one
order, and nothing can wait in a circle even where a rank runs its transfers strictly one after the other
(NCCL on one stream) and a send is done only together with its receive: let x be the first of the sequence
that is not done. What stands before x in the lists of its ranks, and what it needs, stands before it in the
sequence, too, and is done; so x goes on.

A transfer's place in a rank's list is `pos`: right before job number pos of that rank. Moving a transfer
ahead past jobs, but never past another transfer, keeps the argument: it can only be ready earlier. So a send
stands right after its job, and a receive is posted before the job that runs while its data comes, or, where
messages are pulled, before the job in front of which it is taken. A wait for a send stands after it in the
sequence (`behind`).

A receive takes memory from there on. Where a stage has little, it posts receives later
(comm_order_make_late): a transfer enters the sequence only when its receiver is `jobs_ahead` jobs before the
one that needs it, and others overtake it. That is again a sequence, in which transfers wait for memory as
jobs wait for their inputs; its times differ from the simulated ones.
*/
#pragma once

#include "plan.h"
#include "schedule.h"
#include "simulate.h"

typedef struct {
    uint8_t kind;   // INSTR_SEND_*, INSTR_RECV_*
    int16_t chunk;  // as in PlanInstr
    int16_t peer;   // stage at the other end
    int32_t mb;
    int32_t pos;     // before this job of the stage; num_jobs: after the last
    int32_t behind;  // the stage's first job that stands after it in the sequence
    int64_t begin_ns, end_ns;
} CommOp;

typedef struct {
    int32_t num_ops[PLAN_MAX_STAGES];
    CommOp* ops[PLAN_MAX_STAGES];  // pos ascending
} CommOrder;

Status comm_order_make(CommOrder* out, const PipeProblem* problem, const PipeSchedule* schedule,
                       const PipeTimeline* timeline, Arena* arena);

// jobs_ahead: [P] at most how many jobs before the one that needs it a stage posts a receive; 0: right before
// it; INT32_MAX: as early as data comes. Where all would wait forever, one receive is posted anyway. *late:
// the timeline with those waits (peak_bytes and busy_ns are those of `timeline`); where messages are pulled
// it is an estimate.
Status comm_order_make_late(CommOrder* out, PipeTimeline* late, const PipeProblem* problem,
                            const PipeSchedule* schedule, const PipeTimeline* timeline,
                            const int32_t* jobs_ahead, Arena* arena);

// --- a rank's list -----------------------------------------------------------------------------------

/*
One rank's instruction list and memory: jobs, transfers, waits, buffers.

Time is counted in jobs of this rank: a buffer lives over jobs [begin, end). From that:
    1. lifetimes as the timeline predicts them: a sent buffer is free before the first job that begins after
       its transfer has ended. With slack, one that begins after the receiver's job that runs then, and by as
       much later (and a receive is posted as much earlier) as memory allows: whole steps, else less; the
       arena grows by a 16th at most
    2. memory_layout_place: an address for every buffer
    3. receives move ahead to where the memory they need becomes free, sends right after their job
    4. a wait_* stands where the memory of what was sent is first needed again, else at the end
So a rank blocks only for a missing input or for memory that is still in use.
*/

// Of one microbatch and one row of the problem: a chunk, or a share of the head.
typedef struct {
    int64_t acts_bytes, forward_bytes;
    int64_t in_bytes;   // IN, and DIN of a chunk; not used on the first chunk
    int64_t out_bytes;  // OUT and DOUT; of the last chunk the hidden states of all supervised rows, where the
                        // head is shared, else not used
    int64_t part_bytes;                   // of a share: its part of their gradient; by rows as in_bytes
    int64_t factor_bytes;                 // of a share by vocabulary
    int64_t kept_bytes, kept_grad_bytes;  // of a chunk, with the first piece of a sample (PipeCost)
} RankBytes;

// --- a replica's lists -------------------------------------------------------------------------------

/*
The instruction lists of one replica: order of messages (comm_order), then every rank's list and memory
(rank_list).

The schedule counts received inputs only from the job that reads them on. So where a rank's buffers exceed the
limit, its receives are posted later, finally right before the job, until they fit. The timeline then includes
the waits.
*/

typedef struct {
    const PipeProblem* problem;
    const PipeSchedule* schedule;
    const RankBytes* bytes;                 // [rows * M]
    const int64_t* scratch_bytes;           // [P]
    int64_t enough_bytes[PLAN_MAX_STAGES];  // for a rank's buffers; INT64_MAX: no limit
    int32_t first_mb;                       // of the replica, in Plan.mbs
    int32_t first_rank;                     // of the replica: rank of its stage 0
    bool with_slack;  // ranks that are late or ahead make others wait less; for the list that is run
} ReplicaListsInput;

// ranks: [P], with instrs, buffers and arena_bytes from `arena`; a rank that still does not fit has more
// arena_bytes than enough_bytes. *timeline: as simulated, or with the waits where receives are late.
Status replica_lists_make(PlanRank* ranks, PipeTimeline* timeline, const ReplicaListsInput* input,
                          Arena* arena);

// The makespan of the replica by these lists, at least the simulated one; the simulated one where their jobs
// differ from the simulated ones.
int64_t replica_lists_makespan(const PlanRank* ranks, const PipeProblem* problem,
                               const PipeSchedule* schedule, const PipeTimeline* simulated);
