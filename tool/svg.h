/*
svg.h -- small drawing helpers for the pictures: escaped text, numbers with units, ticks of an axis.

Everything is written to a FILE*, one element a line. No text of a user reaches a picture but through
svg_print_escaped.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
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

// About how wide ASCII text is in a sans-serif font, for things that stand in a line.
double svg_text_px(const char* text, double font_px);

// Write text[0, num_bytes) to `path` ("-": stdout), whole or not at all. The message names the path.
Status svg_write_file(const char* path, const char* text, size_t num_bytes);
