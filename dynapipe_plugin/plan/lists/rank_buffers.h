/*
rank_buffers.h -- the buffers of one rank and the jobs and transfers that begin and end their lives (plan.h
says which there are): what rank_list.c lays out.

Lives are counted in jobs of the rank; where transfers stand (CommOp.pos, wait_pos) says rank_list.c
beforehand.
*/
#pragma once

#include "rank_list.h"

// Where things of one micro-batch are, in one place (plan_place_of); -1: nowhere. Jobs are job numbers,
// transfers indices into ops.
typedef struct {
    int32_t job[JOB_COUNT];
    int32_t op[INSTR_COUNT];
} RankPlaces;

typedef struct {
    const RankListInput* input;
    int32_t s, num_jobs, num_ops;
    int32_t K;
    bool shares_head, by_vocabulary;
    bool has_last;     // the last chunk is here
    int32_t* slot_of;  // [K + 2 * P] by place, where it is of this rank: into places
    int32_t num_slots;
    const PipeJob* jobs;
    const PipeSpan* spans;
    CommOp* ops;
    RankPlaces* places;  // [num_slots * M]
    PlanBuffer* buffers;
    int32_t num_buffers;
    int32_t* buffer_of_op;  // [num_ops] the buffer that a transfer fills or empties
    int64_t* receive_ns;    // [num_jobs + 1] when the first of the receives before this job begins; INT64_MAX
    int32_t* wait_pos;      // [num_ops] of sends: before this job; num_jobs + 1: at the end
} RankBuffers;

// What the rank has of the problem; room for all buffers. `arena` holds these, `scratch` the rest.
Status rank_buffers_init(RankBuffers* list, Arena* arena, Arena* scratch);

// All buffers of all micro-batches anew, but for scratch. num_buffers, buffer_of_op.
void rank_buffers_fill(RankBuffers* list);

// Lives over jobs [begin, end).
PlanBuffer* rank_buffers_add(RankBuffers* list, BufferKind kind, int32_t chunk, int32_t m, int64_t num_bytes,
                             int32_t begin, int32_t end);
