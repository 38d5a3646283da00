/*
timeline_svg.h -- plans of one batch as a picture: jobs, transfers and memory of each rank, and the bound.

    stage 0  [0][1][2][0 ][3][1 ][2 ][///][3 ]    one box a job: colour = kind, number = microbatch
              - -  -  -                            transfers it sends
             __/--\____/-----\____                 memory held by activations, limit as a dashed line

Several plans are drawn one above the other on one time axis, with the bound of the first. Of more than
TIMELINE_MAX_ROWS ranks only the slowest replica is drawn. Colours are from Okabe and Ito's set for
colour-blind readers (jfly.uni-koeln.de/color) and also differ in lightness; a lighter shade marks a stage's
other chunks. One SVG without scripts, fonts or links.

Classes (read by test_timeline_svg): fwd bwd wgt rec; of head shares hfwd hwgt; k1 another chunk of the stage;
idle; act grad fact (sent transfers); mem limit bound.
*/
#pragma once

#include <stdio.h>

#include "../dynapipe_plugin/plan/plan.h"
#include "../dynapipe_plugin/plan/types.h"
#include "../util/status.h"

enum { TIMELINE_MAX_ROWS = 32 };

typedef struct {
    const Plan* plan;
    const char* name;
} TimelinePlan;

typedef struct {
    const char* title;
    MemoryRule memory_rule;             // which buffers the memory curves count
    const int64_t* memory_limit_bytes;  // [P * R] with model state, 0: no limit; NULL: the plans' own
    double plot_px;                     // width of the time axis; 0: by the number of jobs
} TimelineInfo;

Status timeline_svg_print(FILE* out, const TimelinePlan* plans, int32_t num_plans, const TimelineInfo* info);
