#include "line_chart.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "svg.h"

// Pixels.
static const double WIDTH = 560, HEIGHT = 220, LEFT = 58, RIGHT = 16, TOP = 12, BOTTOM = 28;

// What one bucket of steps became; all but the steps are NAN where it has no finite value.
typedef struct {
    double step, last_step;
    double mean, low, high;  // the 10th and 90th percentile
    double least, greatest;
} ChartPoint;

typedef struct {
    ChartPoint* points;
    int32_t num_points, num_finite;  // num_finite values went into them
} Thinned;

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// values[0, count), which are sorted.
static ChartPoint point_of(double step, double last_step, double* values, int32_t count) {
    ChartPoint point = {step, last_step, NAN, NAN, NAN, NAN, NAN};
    if (count == 0) { return point; }
    qsort(values, (size_t)count, sizeof(double), compare_doubles);
    double sum = 0;
    for (int32_t i = 0; i < count; i++) { sum += values[i] / count; }
    point.mean = sum;
    point.low = values[(count - 1) / 10];
    point.high = values[(count - 1) - (count - 1) / 10];
    point.least = values[0];
    point.greatest = values[count - 1];
    return point;
}

static Status thin_out(Thinned* out, const ChartSeries* series) {
    int32_t n = series->num_points, num_buckets = n < CHART_BUCKETS ? n : CHART_BUCKETS;
    *out = (Thinned){.points = malloc(sizeof(ChartPoint) * (size_t)(num_buckets + 1))};
    double* values = malloc(sizeof(double) * (size_t)(num_buckets > 0 ? n / num_buckets + 2 : 1));
    if (out->points == NULL || values == NULL) {
        free(values);
        return FAIL(STATUS_NO_MEMORY, "no memory for a chart ---> free memory");
    }
    for (int32_t b = 0; b < num_buckets; b++) {
        int32_t begin = (int32_t)((int64_t)n * b / num_buckets);
        int32_t end = (int32_t)((int64_t)n * (b + 1) / num_buckets), count = 0;
        for (int32_t i = begin; i < end; i++) {
            if (isfinite(series->values[i])) { values[count++] = series->values[i]; }
        }
        out->points[out->num_points++] =
            point_of(series->steps[begin], series->steps[end - 1], values, count);
        out->num_finite += count;
    }
    free(values);
    return STATUS_OK;
}

// --- axes ------------------------------------------------------------------------------------------------

typedef struct {
    SvgScale x, y;
    double low, high, tick;  // of the value axis
    int32_t num_cut;         // values above `high`
    double largest;          // value
} Axes;

// Everything that is to be drawn, sorted. *count 0: nothing.
static Status sort_values(double** out, int32_t* count, const LineChart* chart, const Thinned* thinned) {
    *out = malloc(sizeof(double) * 3 * CHART_BUCKETS * CHART_MAX_SERIES);
    *count = 0;
    if (*out == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a chart ---> free memory"); }
    for (int32_t k = 0; k < chart->num_series; k++) {
        for (int32_t i = 0; i < thinned[k].num_points; i++) {
            const ChartPoint* point = &thinned[k].points[i];
            if (isnan(point->mean)) { continue; }
            (*out)[(*count)++] = point->mean;
            if (chart->series[k].num_points <= CHART_BUCKETS) { continue; }
            (*out)[(*count)++] = point->low;
            (*out)[(*count)++] = point->high;
        }
    }
    qsort(*out, (size_t)*count, sizeof(double), compare_doubles);
    return STATUS_OK;
}

// Up to a multiple of the tick. Where the largest lies at twice what 97 in 100 reach, that is enough.
static Status choose_axes(Axes* out, int32_t* count, const LineChart* chart, const Thinned* thinned) {
    double* values;
    TRY(sort_values(&values, count, chart, thinned));
    *out = (Axes){0};
    double low = 0, high = 1;
    if (*count > 0) {
        double most = values[(int32_t)((*count - 1) * 0.97)];
        low = values[0], high = out->largest = values[*count - 1];
        if (*count >= 10 && -low <= 2 * most && high > 2 * most && most > 0) { high = most * 1.25; }
    }
    if (chart->show_zero) { low = fmin(low, 0), high = fmax(high, 0); }
    if (chart->from_zero && low > 0) { low = 0; }
    if (!(high - low > fabs(high) * 1e-9)) { high = low + (low != 0 ? fabs(low) * 0.1 : 1); }
    out->tick = svg_tick_step(high - low, 5);
    out->low = floor(low / out->tick + 1e-9) * out->tick;
    out->high = ceil(high / out->tick - 1e-9) * out->tick;
    while (out->num_cut < *count && values[*count - 1 - out->num_cut] > out->high * (1 + 1e-9)) {
        out->num_cut++;
    }
    free(values);
    out->x = svg_scale(chart->first_step, chart->last_step, LEFT, WIDTH - RIGHT);
    out->y = svg_scale(out->low, out->high, HEIGHT - BOTTOM, TOP);
    return STATUS_OK;
}

// `step` tells how many decimals it takes. Pushed left where it would leave the drawing.
static void print_tick(FILE* out, double x, double y, const char* anchor, double value, double step) {
    char text[SVG_NUMBER_BYTES];
    if (value == 0 || fabs(value) >= 10000 || step < 1e-4) {
        svg_format_count(text, value);
    } else {
        snprintf(text, sizeof text, "%.*f", svg_tick_decimals(step), value);
    }
    bool leaves = x + svg_digits_px((int32_t)strlen(text), 11) / 2 > WIDTH;
    svg_print_text(out, leaves ? WIDTH - 1 : x, y, leaves ? "end" : anchor, NULL, text);
}

static void print_axes(FILE* out, const Axes* axes, const LineChart* chart) {
    int32_t num_ticks = (int32_t)floor((axes->high - axes->low) / axes->tick + 0.5);
    for (int32_t i = 0; i <= num_ticks && i <= 20; i++) {
        double value = axes->low + i * axes->tick, y = svg_scale_px(&axes->y, value);
        if (fabs(value) < axes->tick * 1e-6) { value = 0; }
        fprintf(out, "<path class=\"%s\" d=\"M%.0f %.2fH%.0f\"/>\n", i == 0 ? "axis" : "grid", LEFT, y,
                WIDTH - RIGHT);
        print_tick(out, LEFT - 8, y + 4, "end", value, axes->tick);
    }
    svg_print_text(out, LEFT - 8, HEIGHT - 10, "end", NULL, "step");
    double span = chart->last_step - chart->first_step, step = fmax(1, svg_tick_step(span, 7));
    for (int32_t i = 0; i <= 20; i++) {
        double at = (ceil(chart->first_step / step) + i) * step;
        if (at > chart->last_step) { break; }
        print_tick(out, svg_scale_px(&axes->x, at), HEIGHT - 10, "middle", at, step);
    }
    if (chart->show_zero) {
        fprintf(out, "<path class=\"zero\" d=\"M%.0f %.2fH%.0f\"/>\n", LEFT, svg_scale_px(&axes->y, 0),
                WIDTH - RIGHT);
    }
}

// --- lines -----------------------------------------------------------------------------------------------

// On the page: what lies above the axis is drawn at its end.
static double value_px(const Axes* axes, double value) {
    return svg_scale_px(&axes->y, fmin(fmax(value, axes->low), axes->high));
}

static double point_px(const Axes* axes, const ChartPoint* point) {
    return svg_scale_px(&axes->x, (point->step + point->last_step) / 2);
}

// Areas between the least and the greatest value, one for each run without gaps.
static void print_band(FILE* out, const Axes* axes, const Thinned* thinned, int32_t series) {
    fprintf(out, "<path class=\"b%d\" d=\"", series);
    for (int32_t i = 0; i < thinned->num_points;) {
        int32_t end = i;
        while (end < thinned->num_points && !isnan(thinned->points[end].mean)) { end++; }
        for (int32_t k = i; k < end; k++) {
            fprintf(out, "%c%.1f %.1f", k == i ? 'M' : 'L', point_px(axes, &thinned->points[k]),
                    value_px(axes, thinned->points[k].high));
        }
        for (int32_t k = end - 1; k >= i; k--) {
            fprintf(out, "L%.1f %.1f", point_px(axes, &thinned->points[k]),
                    value_px(axes, thinned->points[k].low));
        }
        if (end > i) { fputc('Z', out); }
        i = end + 1;
    }
    fprintf(out, "\"/>\n");
}

static bool is_gap(const Thinned* thinned, int32_t i) {
    return i < 0 || i >= thinned->num_points || isnan(thinned->points[i].mean);
}

static void print_line(FILE* out, const Axes* axes, const Thinned* thinned, int32_t series, bool dots) {
    fprintf(out, "<path class=\"s%d\" d=\"", series);
    for (int32_t i = 0; i < thinned->num_points; i++) {
        if (is_gap(thinned, i)) { continue; }
        fprintf(out, "%c%.1f %.1f", is_gap(thinned, i - 1) ? 'M' : 'L', point_px(axes, &thinned->points[i]),
                value_px(axes, thinned->points[i].mean));
    }
    fprintf(out, "\"/>\n");
    for (int32_t i = 0; i < thinned->num_points; i++) {
        bool alone = is_gap(thinned, i - 1) && is_gap(thinned, i + 1);
        if (is_gap(thinned, i) || (!dots && !alone)) { continue; }
        fprintf(out, "<circle class=\"d%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\"/>\n", series,
                point_px(axes, &thinned->points[i]), value_px(axes, thinned->points[i].mean));
    }
}

// What a pointer over a step is told.
static void print_hover(FILE* out, const Axes* axes, const LineChart* chart, const Thinned* thinned) {
    int32_t num_points = thinned[0].num_points;
    double pitch = (WIDTH - LEFT - RIGHT) / (num_points > 0 ? num_points : 1);
    char number[SVG_NUMBER_BYTES];
    fprintf(out, "<g class=\"h\">\n");
    for (int32_t i = 0; i < num_points; i++) {
        const ChartPoint* at = &thinned[0].points[i];
        fprintf(out, "<rect x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"%.0f\"><title>step %s",
                point_px(axes, at) - pitch / 2, TOP, pitch, HEIGHT - TOP - BOTTOM,
                svg_format_count(number, at->step));
        if (at->last_step > at->step) { fprintf(out, " to %s", svg_format_count(number, at->last_step)); }
        for (int32_t k = 0; k < chart->num_series; k++) {
            const ChartPoint* point = i < thinned[k].num_points ? &thinned[k].points[i] : NULL;
            if (chart->series[k].steps != chart->series[0].steps || point == NULL || isnan(point->mean)) {
                continue;
            }
            fprintf(out, ", ");
            svg_print_escaped(out, chart->series[k].name);
            fprintf(out, " %s", svg_format_count(number, point->mean));
            if (point->least == point->greatest) { continue; }
            fprintf(out, " (%s", svg_format_count(number, point->least));
            fprintf(out, " to %s)", svg_format_count(number, point->greatest));
        }
        fprintf(out, "</title></rect>\n");
    }
    fprintf(out, "</g>\n");
}

// --- the figure ------------------------------------------------------------------------------------------

static void print_caption(FILE* out, const LineChart* chart, const Thinned* thinned) {
    fprintf(out, "<figure><figcaption><b>");
    svg_print_escaped(out, chart->title);
    fprintf(out, "</b>");
    if (chart->unit[0] != '\0') {
        fprintf(out, " <span class=\"q\">");
        svg_print_escaped(out, chart->unit);
        fprintf(out, "</span>");
    }
    for (int32_t k = 0; k < chart->num_series && chart->num_series > 1; k++) {
        if (thinned[k].num_finite == 0) { continue; }
        fprintf(out, " <span class=\"k k%d\">", k);
        svg_print_escaped(out, chart->series[k].name);
        fprintf(out, "</span>");
    }
    fprintf(out, "</figcaption>\n");
}

static void print_notes(FILE* out, const LineChart* chart, const Axes* axes, const Thinned* thinned) {
    int32_t num_gaps = 0;
    char number[SVG_NUMBER_BYTES];
    for (int32_t k = 0; k < chart->num_series; k++) {
        if (thinned[k].num_finite > 0) { num_gaps += chart->series[k].num_points - thinned[k].num_finite; }
    }
    if (num_gaps == 0 && axes->num_cut == 0) { return; }
    fprintf(out, "<p class=\"q\">");
    if (axes->num_cut > 0) {
        fprintf(out, "%d value%s above the axis, up to %s. ", axes->num_cut, axes->num_cut == 1 ? "" : "s",
                svg_format_count(number, axes->largest));
    }
    if (num_gaps > 0) {
        fprintf(out, "%d value%s missing or not finite.", num_gaps, num_gaps == 1 ? " is" : "s are");
    }
    fprintf(out, "</p>\n");
}

static void print_drawing(FILE* out, const LineChart* chart, const Axes* axes, const Thinned* thinned) {
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 %.0f %.0f\">\n", WIDTH, HEIGHT);
    print_axes(out, axes, chart);
    for (int32_t k = 0; k < chart->num_series; k++) {
        if (chart->series[k].num_points > CHART_BUCKETS) { print_band(out, axes, &thinned[k], k); }
    }
    for (int32_t k = chart->num_series - 1; k >= 0; k--) {
        print_line(out, axes, &thinned[k], k, chart->series[k].dots);
    }
    print_hover(out, axes, chart, thinned);
    fprintf(out, "</svg>\n");
}

Status line_chart_print(FILE* out, const LineChart* chart) {
    Thinned thinned[CHART_MAX_SERIES] = {{NULL, 0, 0}};
    Axes axes;
    int32_t count = 0;
    Status status = STATUS_OK;
    for (int32_t k = 0; k < chart->num_series && status == STATUS_OK; k++) {
        status = thin_out(&thinned[k], &chart->series[k]);
    }
    if (status == STATUS_OK) { status = choose_axes(&axes, &count, chart, thinned); }
    if (status == STATUS_OK) {
        print_caption(out, chart, thinned);
        if (count > 0) {
            print_drawing(out, chart, &axes, thinned);
            print_notes(out, chart, &axes, thinned);
        } else {
            fprintf(out, "<p class=\"none\">not recorded</p>\n");
        }
        fprintf(out, "</figure>\n");
    }
    for (int32_t k = 0; k < CHART_MAX_SERIES; k++) { free(thinned[k].points); }
    return status;
}

Status line_chart_print_spark(FILE* out, const LineChart* chart, double top, double width, double height) {
    Axes axes = {.x = svg_scale(chart->first_step, chart->last_step, 3, width - 3),
                 .y = svg_scale(0, top, height - 2, 2),
                 .high = top};
    Thinned thinned;
    Status status = thin_out(&thinned, &chart->series[0]);
    if (status != STATUS_OK) {
        free(thinned.points);
        return status;
    }
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"spark\" viewBox=\"0 0 %.0f %.0f\">\n",
            width, height);
    fprintf(out, "<path class=\"axis\" d=\"M0 %.1fH%.0f\"/>\n", height - 1, width);
    print_line(out, &axes, &thinned, 0, false);
    fprintf(out, "</svg>");
    free(thinned.points);
    return STATUS_OK;
}
