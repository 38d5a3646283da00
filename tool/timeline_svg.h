/*
timeline_svg.h -- plans of one batch as a picture: who computes what when, memory held, how far the bound is.

    stage 0  [0][1][2][0 ][3][1 ][2 ][///][3 ]    one box a job: colour = kind, number = micro-batch
              - -  -  -                            transfers it sends
             __/--\____/-----\____                 memory held by activations, limit as a dashed line

Several plans stand one above the other on one axis of time, with the bound of the first. Of a plan of more
than TIMELINE_MAX_ROWS ranks the slowest replica is drawn. Colours are from Okabe and Ito's set for
colour-blind readers, their lightness differs too (grey prints); lighter ones are a stage's other chunks. One
SVG without scripts, fonts or links; dark where the viewer is.

Classes (read by test_timeline_svg): fwd bwd wgt rec, of shares of the head hfwd hwgt; k1 k2 besides, of a
stage's second and third chunk (a fourth is as the first again); idle; act grad fact (transfers sent); mem
limit bound.
*/
#pragma once

#include <stdio.h>

#include "../dynapipe_plugin/plan/plan.h"
#include "../dynapipe_plugin/plan/types.h"
#include "../util/status.h"

enum { TIMELINE_MAX_ROWS = 32, TIMELINE_MAX_PLANS = 4 };

typedef struct {
    const Plan* plan;
    const char* name;
} TimelinePlan;

typedef struct {
    const char* title;
    MemoryRule memory_rule;             // which buffers the memory curves count
    const int64_t* memory_limit_bytes;  // [P * R] with model state, 0: no limit; NULL: the plans' own
    double plot_px;                     // how wide time is; 0: by the number of jobs
} TimelineInfo;

// Plans must have passed plan_check. STATUS_NO_MEMORY, or STATUS_OK.
Status timeline_svg_print(FILE* out, const TimelinePlan* plans, int32_t num_plans, const TimelineInfo* info);
