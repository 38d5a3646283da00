/*
timeline_svg_row.h -- one stage of one replica in timeline_svg's picture: boxes, idle time, transfers, memory.

Class names that the boxes have (and test_timeline_svg reads): fwd bwd wgt rec, and of shares of the head hfwd
hwgt; k1 k2 besides, lighter, of a stage's second and third chunk (a fourth is as the first again); idle, act
grad fact (transfers sent), mem, limit, peak.
*/
#pragma once

#include "../dynapipe_plugin/plan/lists/memory_curve.h"
#include "svg.h"
#include "timeline_svg.h"

// What all rows of a picture share. Pixels unless named otherwise.
typedef struct {
    FILE* out;
    const Plan* plan;
    const TimelineSvgInfo* info;
    SvgScale time;                                    // ns -> x
    double unit_ns;                                   // of the axis
    const char* unit;                                 // its name
    double axis_ns;                                   // where the axis of time ends
    int64_t bound_ns;                                 // of the batch
    int32_t decimals;                                 // that show a thousandth of the step
    double job_height, send_height, mem_height;       // lanes of a row, from top to bottom
    double legend_y;                                  // of its first line's middle
    double lane_gap, row_gap, left;                   // left: where time begins
    int64_t mem_top_bytes;                            // what the full height of a memory lane stands for
    const bool* has_memory;                           // [P * R] rows with a memory lane
    bool some_memory;                                 // not all rows have one
    bool shows_bound;                                 // as a line that numbers make way for
    bool splits, recomputes, limits, shades, shares;  // what occurs, so that the legend shows no more
    Arena* arena;
} TimelineSvg;

enum { TIMELINE_SVG_SHADES = 3 };

// Time in which a rank computes.
int64_t timeline_svg_busy_ns(const PlanRank* rank);
// Bytes that are left for activations on stage s; 0: no limit.
int64_t timeline_svg_limit_bytes(const TimelineSvg* svg, int32_t rank);
double timeline_svg_row_height(const TimelineSvg* svg, int32_t rank);  // with the gap below
// `first_mb` is the replica's first in Plan.mbs; boxes are numbered as in Plan.mbs. y: top of the row.
Status timeline_svg_row_print(const TimelineSvg* svg, int32_t rank, double y);
