/*
trace_rows.h -- how the events of a step become rows and arrows of a picture.

    rank 0             | fwd 0 | fwd 1 |       | bwd 0 |
    rank 0 sends       |       | act 0 | act 1 |            a row has one event at a time:
    rank 0 receives    |  grad 0 ...                  |     what overlaps gets a row of its own
    rank 0 receives 2  |           grad 1 ...         |

A viewer nests events of one row by time, and what half overlaps cannot nest. A rank's messages overlap as its
links allow, so every event gets the first lane of its side in which nothing is under way. Jobs, waits and
sums come one after the other, in one lane, but where a device's clock and its host's disagree.
*/
#pragma once

#include "../../util/arena.h"
#include "../plan/lists/plan.h"
#include "trace.h"

typedef enum { TRACE_JOBS_SIDE, TRACE_SENDS, TRACE_RECEIVES, TRACE_SIDES } TraceSide;

typedef struct {
    int32_t* lane;  // [num_events] of the rank; of its side, from 0
    int32_t num_lanes[TRACE_SIDES];
} TraceLanes;

TraceSide trace_side_of(int32_t kind);

// In any order of events; one that begins when another ends may follow it in its lane.
Status trace_lanes_make(TraceLanes* out, const TraceRank* rank, Arena* arena);

// One message: which event of which of `ranks` sent it, and which received it.
typedef struct {
    int32_t from, send;  // ranks[from].events[send]
    int32_t to, receive;
} TraceMessage;

// Messages of which both ends were seen, in the order of micro-batches. Events that no plan with this
// placement has, and ends that name other ranks, make none.
Status trace_messages_make(TraceMessage** out, int32_t* num_messages, const Plan* plan,
                           const TraceRank* ranks, int32_t num_ranks, Arena* arena);
