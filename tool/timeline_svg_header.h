/*
timeline_svg_header.h -- what stands above a picture's rows: title, figures, legend; and above each of several
plans.
*/
#pragma once

#include "timeline_svg_row.h"

enum { TIMELINE_SVG_MARGIN = 28 };  // pixels

// Numbers of one plan that its rows give.
typedef struct {
    double idle_percent;
    int64_t peak_bytes;  // of activations, of the fullest row
    bool all_drawn;      // of all replicas
} TimelineSvgFigures;

double timeline_svg_header_height(const TimelineSvg* svg, bool several);
// `all`: with whatever occurs in any plan, for the legend. figures NULL: of several plans, which have titles.
void timeline_svg_print_header(const TimelineSvg* all, const TimelineSvgFigures* figures);
// A plan's name, time and what it is, from y on.
void timeline_svg_print_plan_title(const TimelineSvg* svg, const char* name, double idle_percent, double y);
