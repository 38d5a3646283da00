/*
replay_graph.h -- one replica's jobs and transfers as a graph whose nodes stand behind what they wait for.

    end(node) = max(end(before[0]), end(before[1])) + duration

A job waits for the job before it on its stage and for its inputs (where these are several, the parts of a
shared head, nodes of no length join them); a transfer for its job, the transfer before it on the link of its
sender, and the job behind which its receiver posts it. Where messages are pulled, the stage that takes one
does so between two of its jobs: the message waits for what is before it there and for the sender's job, and
what comes next waits for the message. Node 0 is the beginning of the step.
*/
#pragma once

#include "../lists/plan_message.h"
#include "replay.h"

// Behind the job kinds, in the order of PipeMessageKind.
enum { REPLAY_SEND_ACT = JOB_COUNT, REPLAY_SEND_GRAD, REPLAY_SEND_FACTORS, REPLAY_KIND_COUNT };

typedef struct {
    uint8_t kind;   // JobKind, REPLAY_SEND_*
    int16_t chunk;  // row of a job; of a transfer, of its PlanMessage
    int32_t mb;     // of this replica
    int64_t ns;
    int64_t instant_ns;  // pulls: as planned it takes no time, and is at this instant; -1: no such thing
} ReplayItem;

// A transfer on the link of its sender.
typedef struct {
    ReplayItem item;
    int32_t sent, posted;  // so many jobs stand before it in the lists of its sender and its receiver
} ReplaySend;

// Per stage: jobs in their order, and transfers that leave it in that of the link.
// `pulls`: no links, but among the jobs the transfers that it takes, one after the other; what takes no time
// and is at the same instant in any order that can run.
typedef struct {
    int32_t P, M;
    const Placement* placement;
    bool pulls;
    int32_t num_items[PLAN_MAX_STAGES];
    ReplayItem* items[PLAN_MAX_STAGES];
    int32_t num_sends[PLAN_MAX_STAGES];
    ReplaySend* sends[PLAN_MAX_STAGES];
    int64_t tail_ns[PLAN_MAX_STAGES];
} ReplayLists;

typedef struct {
    int32_t before[2];
    int32_t lane;  // stage of a job, P + stage of a transfer
    int64_t ns;
    uint64_t key;  // which random number it gets
} ReplayNode;

typedef struct {
    int32_t P, num_nodes;
    ReplayNode* nodes;
    int32_t last_job[PLAN_MAX_STAGES];  // node; 0: the stage has none
    int64_t tail_ns[PLAN_MAX_STAGES];
} ReplayGraph;

Status replay_graph_make(ReplayGraph* out, const ReplayLists* lists, Arena* arena);

// Sums over trials that plan_replay adds up to a ReplayResult.
typedef struct {
    int64_t* makespan_ns;                                                // [trials], raised
    int64_t planned_ns;                                                  // raised
    int64_t planned_wait_ns[PLAN_MAX_STAGES], wait_ns[PLAN_MAX_STAGES];  // added, means over the trials
} ReplaySums;

Status replay_graph_run(ReplaySums* sums, ReplayGraph* graph, const ReplayNoise* noise, uint64_t seed,
                        Arena* scratch);

// One longest path, durations as they are.
Status replay_graph_makespan(int64_t* out_ns, const ReplayGraph* graph, Arena* scratch);

Status replay_noise_check(const ReplayNoise* noise, int32_t num_stages);
