/*
replica_lists.h -- the instruction lists of one replica: order of messages (comm_order), then every rank's
list and memory (rank_list).

What received inputs take before the job that reads them the schedule does not count: it counts them from
there on. So where a rank's buffers come out larger than they may be, its receives are posted later, right
before the job in the end, until they fit: at the price of waiting, which the timeline then shows.
*/
#pragma once

#include "rank_list.h"

typedef struct {
    const PipeProblem* problem;
    const PipeSchedule* schedule;
    const RankBytes* bytes;                 // [rows * M]
    const int64_t* scratch_bytes;           // [P]
    int64_t enough_bytes[PLAN_MAX_STAGES];  // for a rank's buffers; INT64_MAX: no limit
    int32_t first_mb, first_rank;           // as in RankListInput
    bool with_slack;
} ReplicaListsInput;

// ranks: [P], of which rank_list_make fills its part, in `arena`; a rank that does not fit all the same has
// more arena_bytes than enough_bytes. *timeline: as simulated; with the waits where receives are late.
Status replica_lists_make(PlanRank* ranks, PipeTimeline* timeline, const ReplicaListsInput* input,
                          Arena* arena);

// What these lists say that the replica takes, its receives late or not. The simulator's makespan, where its
// jobs are other than theirs or do not end so soon.
int64_t replica_lists_makespan(const PlanRank* ranks, const PipeProblem* problem,
                               const PipeSchedule* schedule, const PipeTimeline* simulated);
