/*
batching.h -- the methods of rivals/, for comparisons. A program that does not link rivals/ plans with our
method only.
*/
#pragma once

#include "draft.h"

enum { RIVAL_MAX_DRAFTS = 2 };

typedef struct {
    const char *name, *help;
    MicrobatchBuild* build;  // NULL: ours
    // out[0 .. *num), fastest first. `batching`: the problem that its microbatches are made for, possibly
    // with less memory. STATUS_INFEASIBLE: not even one microbatch at a time fits.
    Status (*drafts)(Draft out[RIVAL_MAX_DRAFTS], int32_t* num, const PlanProblem* problem,
                     const PlanProblem* batching, Arena* arena);
} BatchingPolicy;

// By Batching, without BATCHING_DYNAMIC. NULL where rivals/ is not linked.
extern const BatchingPolicy dynapipe_rivals[BATCHING_COUNT] __attribute__((weak));

// NULL: unknown to this program.
const BatchingPolicy* batching_policy(Batching batching);

// DynaPipe's own method, unless the request fixes the schedule or a split backward.
static inline bool batching_is_original(const PlanRequest* request) {
    return request->batching == BATCHING_DYNAPIPE && request->schedule == SCHEDULE_AUTO &&
           request->split_backward != SPLIT_BACKWARD_ON;
}
