/*
rank_list.h -- one rank's instruction list and memory: jobs, transfers, waits, buffers.

Time is counted in jobs of this rank: a buffer lives over jobs [begin, end). From that:
    1. lifetimes as the timeline predicts them: a sent buffer is free before the first job that begins after
       its transfer has ended. With slack, one that begins after the receiver's job that runs then, and by as
       much later (and a receive is posted as much earlier) as memory allows: whole steps, else less; the
arena grows by a 16th at most
    2. memory_layout_place: an address for every buffer
    3. receives move ahead to where the memory they need becomes free, sends right behind their job
    4. a wait_* stands where something else first needs the memory of what was sent, else at the end
So nothing blocks a rank but a missing input or memory that really is still in use.
*/
#pragma once

#include "comm_order.h"

// Of one micro-batch on one stage.
typedef struct {
    int64_t acts_bytes, forward_bytes;
    int64_t in_bytes;   // IN and DIN; not used on the first stage
    int64_t out_bytes;  // OUT and DOUT; not used on the last stage
} RankBytes;

typedef struct {
    const PipeProblem* problem;
    const PipeSchedule* schedule;
    const PipeTimeline* timeline;
    const CommOrder* order;
    const RankBytes* bytes;  // [P * M]
    int32_t first_mb;        // of the replica, in Plan.mbs
    int32_t first_rank;      // of the replica: rank of its stage 0
    bool with_slack;         // ranks that are late or ahead make others wait less; for the list that is run
} RankListInput;

// Fills instrs, buffers and arena_bytes; all memory from `arena`. A layout of enough_bytes is looked for
// harder than for the smallest one (INT64_MAX: take what comes).
Status rank_list_make(PlanRank* out, const RankListInput* input, int32_t s, int64_t scratch_bytes,
                      int64_t enough_bytes, Arena* arena);
