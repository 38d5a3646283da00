/*
svg.h -- small drawing helpers for the pictures: escaped text, numbers with units, ticks of an axis.

Everything is written to a FILE*, one element a line. No text of a user reaches a picture but through
svg_print_escaped.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include "../dynapipe_plugin/plan/memory_layout.h"
#include "../dynapipe_plugin/plan/plan.h"
#include "../dynapipe_plugin/plan/types.h"
#include "../util/status.h"

// Where a chart's values lie on the page: px = origin_px + (value - first) * px_per_value.
typedef struct {
    double origin_px, first, px_per_value;
} SvgScale;

// [first, last] onto [begin_px, end_px]; an empty range becomes one of width 1.
SvgScale svg_scale(double first, double last, double begin_px, double end_px);
double svg_scale_px(const SvgScale* scale, double value);

// & < > " ' as entities; control characters and bytes that are no UTF-8 as U+FFFD: valid in XML and in HTML.
void svg_print_escaped(FILE* out, const char* text);

// One escaped <text>; `anchor` start, middle or end; `css_class` may be NULL. Pixels of the baseline.
void svg_print_text(FILE* out, double x, double y, const char* anchor, const char* css_class,
                    const char* text);

// A step of 1, 2 or 5 times a power of ten, so that `span` has at most max_ticks steps. > 0.
double svg_tick_step(double span, int32_t max_ticks);
// Digits after the point that tell multiples of `step` apart.
int32_t svg_tick_decimals(double step);

// The unit that suits a span of time: "ns", "us", "ms" or "s"; *out_ns is its length.
const char* svg_time_unit(int64_t span_ns, double* out_ns);

enum { SVG_NUMBER_BYTES = 48 };
// "12.3 ms" with three or four digits; "12 345"; bytes: util/program.h. Into out[SVG_NUMBER_BYTES], which
// is returned.
const char* svg_format_time(char* out, double ns);
const char* svg_format_count(char* out, double value);

// About how wide `num_chars` digits are at this font size, on the safe side.
double svg_digits_px(int32_t num_chars, double font_px);

// Write text[0, num_bytes) to `path` ("-": stdout), whole or not at all. The message names the path.
Status svg_write_file(const char* path, const char* text, size_t num_bytes);

// All zero (or a NULL pointer) is fine.
typedef struct {
    const char* title;                  // NULL: batching and schedule
    bool one_replica;                   // draw only `replica`
    int32_t replica;                    // 0 .. R - 1
    const int64_t* memory_limit_bytes;  // [P * R] with model state; NULL: the plan's; an entry of 0: no limit
    MemoryRule memory_rule;             // which buffers the memory curves count
    double plot_px;                     // how wide time is; 0: by the number of jobs
} TimelineSvgInfo;

// --- timeline_svg_row --------------------
/*
timeline_svg_row.h -- one stage of one replica in timeline_svg's picture: boxes, idle time, transfers, memory.

Class names that the boxes have (and test_timeline_svg reads): fwd bwd wgt rec, and of shares of the head hfwd
hwgt; k1 k2 besides, lighter, of a stage's second and third chunk (a fourth is as the first again); idle, act
grad fact (transfers sent), mem, limit, peak.
*/

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

// --- timeline_svg_header --------------------
/*
timeline_svg_header.h -- what stands above a picture's rows: title, figures, legend; and above each of several
plans.
*/

enum { TIMELINE_SVG_MARGIN = 28 };  // pixels

// Numbers of one plan that its rows give.
typedef struct {
    double idle_percent;
    int64_t peak_bytes;  // of activations, of the fullest row
    bool all_drawn;      // of all replicas
} TimelineSvgFigures;

// --- timeline_svg --------------------
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
