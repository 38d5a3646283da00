/*
timeline_svg.h -- a plan as a picture: who computes what when, what it holds in memory, how far the bound is.

    stage 0  [0][1][2][0 ][3][1 ][2 ][///][3 ]    one box a job: colour = kind, number = micro-batch
              - -  -  -                            transfers it sends
             __/--\____/-----\____                 memory held by activations, limit as a dashed line

Several plans of one batch may stand one above the other on one axis of time. Memory is drawn of every rank
where there are few, else of the fullest; its limits as lines on all of these or on none (far above).

Colours are from Okabe and Ito's set for colour-blind readers, their lightness differs too (grey prints). One
SVG without scripts, fonts or links; dark where the viewer is. All replicas of a small plan; of a large one
the slowest replica, and when each of the others ends.
*/
#pragma once

#include <stdio.h>
#include "../dynapipe_plugin/plan/lists/plan.h"
#include "../dynapipe_plugin/plan/types/plan_request.h"

// All zero (or a NULL pointer) is fine.
typedef struct {
    const char* title;                  // NULL: batching and schedule
    bool one_replica;                   // draw only `replica`
    int32_t replica;                    // 0 .. R - 1
    const int64_t* memory_limit_bytes;  // [P * R] with model state; NULL: the plan's; an entry of 0: no limit
    MemoryRule memory_rule;             // which buffers the memory curves count
    double plot_px;                     // how wide time is; 0: by the number of jobs
} TimelineSvgInfo;

enum { TIMELINE_SVG_MAX_PLANS = 4 };
// One plan of a picture. `name` stands above it; NULL: what it is.
typedef struct {
    const Plan* plan;
    const char* name;
    const int64_t* memory_limit_bytes;  // as in TimelineSvgInfo
} TimelineSvgPlan;

// The plan must have passed plan_check. STATUS_OUT_OF_RANGE where there is no such replica.
Status timeline_svg_print(FILE* out, const Plan* plan, const TimelineSvgInfo* info);
// Plans of one batch, the first one's bound, one axis. Of `info` title, memory_rule and plot_px count.
Status timeline_svg_print_plans(FILE* out, const TimelineSvgPlan* plans, int32_t num_plans,
                                const TimelineSvgInfo* info);
// The same to a file, whole or not at all.
Status timeline_svg_write(const char* path, const Plan* plan, const TimelineSvgInfo* info);
Status timeline_svg_write_plans(const char* path, const TimelineSvgPlan* plans, int32_t num_plans,
                                const TimelineSvgInfo* info);
