/*
line_chart.h -- values over training steps as one inline SVG: lines, a band where many steps share a pixel.

Up to CHART_BUCKETS points are drawn as they are; of more, each bucket's mean as a line and 80 in 100 of its
values as a band; a pointer is told the whole range. What is not finite leaves a gap. Values far above nearly
all others (a first step that warms up) are cut off at the top and counted in a note, so that the rest can be
read. Where all values are above 0, a box to tick shows them on a logarithmic axis: a second drawing that the
style sheet hides or shows, without scripts. Colours and fonts come from the page's style sheet (classes s0
... s7, b0 ..., d0 ..., k0 ...; log and lin of the two drawings, mark of lines at steps).
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include "../util/status.h"

enum { CHART_BUCKETS = 240, CHART_MAX_SERIES = 8 };

typedef struct {
    const char* name;
    const double *steps, *values;  // borrowed; [num_points], steps rising
    int32_t num_points;
    bool dots;  // mark every point: for series with few
} ChartSeries;

typedef struct {
    const char* title;  // any text
    const char* unit;   // "ms", "%"; "" for a bare number
    ChartSeries series[CHART_MAX_SERIES];
    int32_t num_series;
    bool from_zero;    // the axis begins at 0 where no value is negative
    bool show_zero;    // a line at 0: for what has a sign
    double last_step;  // the axis of all charts: first_step .. last_step
    double first_step;
    const char* log_id;   // NULL: no logarithmic axis; else a word that the page has once
    const double* marks;  // [num_marks] steps at which a line stands; borrowed
    int32_t num_marks;
} LineChart;

// No two finite values that differ, and not one alone: a line that shows nothing. *value is theirs; NAN:
// none.
bool line_chart_is_flat(const ChartSeries* series, double* value);

// A <figure> with title, key and drawing.
Status line_chart_print(FILE* out, const LineChart* chart);

// Small lines without axes, width x height pixels, over [first_step, last_step] x [0, top].
Status line_chart_print_spark(FILE* out, const LineChart* chart, double top, double width, double height);
