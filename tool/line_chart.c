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
    bool is_log;             // y is of logarithms
    double low, high, tick;  // of the value axis; no tick where is_log
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

// From the least value to the largest, which are above 0; a decade at least a tenth wide.
static void make_log(Axes* axes, double least, double largest) {
    double low = log10(least), high = log10(largest);
    if (high - low < 0.1) { low -= 0.05, high += 0.05; }
    double room = 0.02 * (high - low);
    axes->is_log = true;
    axes->num_cut = 0;
    axes->low = pow(10, low - room);
    axes->high = pow(10, high + room);
    axes->y = svg_scale(low - room, high + room, HEIGHT - BOTTOM, TOP);
}

// On the page: what lies above the axis is drawn at its end.
static double value_px(const Axes* axes, double value) {
    double inside = fmin(fmax(value, axes->low), axes->high);
    return svg_scale_px(&axes->y, axes->is_log ? log10(inside) : inside);
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

static void print_log_tick(FILE* out, const Axes* axes, double value) {
    char text[SVG_NUMBER_BYTES];
    double y = value_px(axes, value);
    fprintf(out, "<path class=\"grid\" d=\"M%.0f %.2fH%.0f\"/>\n", LEFT, y, WIDTH - RIGHT);
    svg_print_text(out, LEFT - 8, y + 4, "end", NULL, svg_format_count(text, value));
}

// At 1, 2, 5 of each decade; of many decades at 1; of a part of one as on a plain axis.
static void print_log_ticks(FILE* out, const Axes* axes) {
    static const double factors[] = {1, 2, 5};
    double decades = log10(axes->high / axes->low);
    fprintf(out, "<path class=\"axis\" d=\"M%.0f %.2fH%.0f\"/>\n", LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT);
    if (decades < 1) {
        double step = svg_tick_step(axes->high - axes->low, 6);
        for (double at = ceil(axes->low / step) * step; at <= axes->high; at += step) {
            print_log_tick(out, axes, at);
        }
        return;
    }
    int32_t pitch = (int32_t)ceil(decades / 8);
    for (int32_t k = (int32_t)floor(log10(axes->low)); k <= (int32_t)log10(axes->high) + 1; k++) {
        for (int32_t i = 0; i < (decades < 3 ? 3 : 1); i++) {
            double value = factors[i] * pow(10, k);
            bool shown = k % pitch == 0 && value >= axes->low && value <= axes->high;
            if (shown) { print_log_tick(out, axes, value); }
        }
    }
}

static void print_linear_ticks(FILE* out, const Axes* axes) {
    int32_t num_ticks = (int32_t)floor((axes->high - axes->low) / axes->tick + 0.5);
    for (int32_t i = 0; i <= num_ticks && i <= 20; i++) {
        double value = axes->low + i * axes->tick, y = svg_scale_px(&axes->y, value);
        if (fabs(value) < axes->tick * 1e-6) { value = 0; }
        fprintf(out, "<path class=\"%s\" d=\"M%.0f %.2fH%.0f\"/>\n", i == 0 ? "axis" : "grid", LEFT, y,
                WIDTH - RIGHT);
        print_tick(out, LEFT - 8, y + 4, "end", value, axes->tick);
    }
}

static void print_marks(FILE* out, const Axes* axes, const LineChart* chart) {
    char number[SVG_NUMBER_BYTES];
    for (int32_t i = 0; i < chart->num_marks; i++) {
        fprintf(out, "<path class=\"mark\" d=\"M%.1f %.0fV%.0f\"><title>went on at step %s</title></path>\n",
                svg_scale_px(&axes->x, chart->marks[i]), TOP, HEIGHT - BOTTOM,
                svg_format_count(number, chart->marks[i]));
    }
}

static void print_axes(FILE* out, const Axes* axes, const LineChart* chart) {
    if (axes->is_log) {
        print_log_ticks(out, axes);
    } else {
        print_linear_ticks(out, axes);
    }
    print_marks(out, axes, chart);
    svg_print_text(out, LEFT - 8, HEIGHT - 10, "end", NULL, "step");
    double span = chart->last_step - chart->first_step, step = fmax(1, svg_tick_step(span, 7));
    for (int32_t i = 0; i <= 20; i++) {
        double at = (ceil(chart->first_step / step) + i) * step;
        if (at > chart->last_step) { break; }
        print_tick(out, svg_scale_px(&axes->x, at), HEIGHT - 10, "middle", at, step);
    }
    if (chart->show_zero && !axes->is_log) {
        fprintf(out, "<path class=\"zero\" d=\"M%.0f %.2fH%.0f\"/>\n", LEFT, svg_scale_px(&axes->y, 0),
                WIDTH - RIGHT);
    }
}

// --- lines -----------------------------------------------------------------------------------------------

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

// The point of these that stands for the same steps; NULL: none.
static const ChartPoint* twin_of(const ChartPoint* at, const Thinned* thinned) {
    for (int32_t i = 0; i < thinned->num_points; i++) {
        const ChartPoint* point = &thinned->points[i];
        if (point->step == at->step && point->last_step == at->last_step) { return point; }
    }
    return NULL;
}

// What a pointer over a step is told, by the steps of the series that has most.
static void print_hover(FILE* out, const Axes* axes, const LineChart* chart, const Thinned* thinned) {
    const Thinned* most = &thinned[0];
    for (int32_t k = 1; k < chart->num_series; k++) {
        if (thinned[k].num_points > most->num_points) { most = &thinned[k]; }
    }
    int32_t num_points = most->num_points;
    double pitch = (WIDTH - LEFT - RIGHT) / (num_points > 0 ? num_points : 1);
    char number[SVG_NUMBER_BYTES];
    fprintf(out, "<g class=\"h\">\n");
    for (int32_t i = 0; i < num_points; i++) {
        const ChartPoint* at = &most->points[i];
        fprintf(out, "<rect x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"%.0f\"><title>step %s",
                point_px(axes, at) - pitch / 2, TOP, pitch, HEIGHT - TOP - BOTTOM,
                svg_format_count(number, at->step));
        if (at->last_step > at->step) { fprintf(out, " to %s", svg_format_count(number, at->last_step)); }
        for (int32_t k = 0; k < chart->num_series; k++) {
            const ChartPoint* point = twin_of(at, &thinned[k]);
            if (point == NULL || isnan(point->mean)) { continue; }
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
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"%s\" viewBox=\"0 0 %.0f %.0f\">\n",
            axes->is_log ? "log" : "lin", WIDTH, HEIGHT);
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

// Of all that is drawn; NAN, NAN where that is nothing.
static void find_ends(double* least, double* largest, const LineChart* chart, const Thinned* thinned) {
    *least = *largest = NAN;
    for (int32_t k = 0; k < chart->num_series; k++) {
        for (int32_t i = 0; i < thinned[k].num_points; i++) {
            const ChartPoint* point = &thinned[k].points[i];
            bool has_band = chart->series[k].num_points > CHART_BUCKETS;
            *least = fmin(*least, has_band ? point->low : point->mean);
            *largest = fmax(*largest, has_band ? point->high : point->mean);
        }
    }
}

bool line_chart_is_flat(const ChartSeries* series, double* value) {
    int32_t num_values = 0;
    *value = NAN;
    for (int32_t i = 0; i < series->num_points; i++) {
        if (!isfinite(series->values[i])) { continue; }
        if (num_values++ > 0 && series->values[i] != *value) { return false; }
        *value = series->values[i];
    }
    return num_values != 1;
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
        double least, largest;
        find_ends(&least, &largest, chart, thinned);
        bool has_log = chart->log_id != NULL && least > 0 && isfinite(largest);
        print_caption(out, chart, thinned);
        if (has_log) {
            fprintf(
                out,
                "<input type=\"checkbox\" class=\"tick\" id=\"log-%s\"/><label for=\"log-%s\">logarithmic "
                "axis</label>\n",
                chart->log_id, chart->log_id);
        }
        if (count > 0) {
            print_drawing(out, chart, &axes, thinned);
            if (has_log) {
                Axes log_axes = axes;
                make_log(&log_axes, least, largest);
                print_drawing(out, chart, &log_axes, thinned);
            }
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
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"spark\" viewBox=\"0 0 %.0f %.0f\">\n",
            width, height);
    fprintf(out, "<path class=\"axis\" d=\"M0 %.1fH%.0f\"/>\n", height - 1, width);
    Status status = STATUS_OK;
    for (int32_t k = 0; k < chart->num_series && status == STATUS_OK; k++) {
        Thinned thinned;
        status = thin_out(&thinned, &chart->series[k]);
        if (status == STATUS_OK) { print_line(out, &axes, &thinned, k, false); }
        free(thinned.points);
    }
    fprintf(out, "</svg>");
    return status;
}
