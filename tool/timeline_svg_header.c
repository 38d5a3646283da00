#include "timeline_svg_header.h"

#include "../util/program.h"

// Pixels.
static const double LEGEND_LINE = 22, HEADER = 168, HEADER_OF_SEVERAL = 92;

static void print_figure(const TimelineSvg* svg, double* x, const char* value, const char* caption) {
    svg_print_text(svg->out, *x, 92, "start", "value", value);
    svg_print_text(svg->out, *x, 109, "start", "q", caption);
    *x += 150;
}

static void print_figures(const TimelineSvg* svg, const TimelineSvgFigures* figures) {
    const Plan* plan = svg->plan;
    char number[SVG_NUMBER_BYTES];
    double x = TIMELINE_SVG_MARGIN;
    print_figure(svg, &x, svg_format_time(number, (double)plan->makespan_ns), "predicted step");
    if (plan->bound_ns > 0) {
        print_figure(svg, &x, svg_format_time(number, (double)plan->bound_ns), "lower bound");
        snprintf(number, sizeof number, "%.3f", (double)plan->makespan_ns / (double)plan->bound_ns);
        print_figure(svg, &x, number, "step / bound");
    }
    snprintf(number, sizeof number, "%.1f %%", figures->idle_percent);
    print_figure(svg, &x, number, "idle");
    print_figure(svg, &x, bytes_text(number, (double)figures->peak_bytes),
                 figures->all_drawn ? "most activations of a rank" : "most activations drawn");
}

// A swatch of the given class and its word; returns where the next one goes.
static double print_key_at(const TimelineSvg* svg, double x, double y, const char* css_class, double height,
                           const char* word) {
    fprintf(svg->out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"18\" height=\"%.1f\"/>\n", css_class,
            x, y - height / 2, height);
    svg_print_text(svg->out, x + 24, y + 4, "start", NULL, word);
    return x + 24 + svg_text_px(word, 12) + 20;
}

static double print_key(const TimelineSvg* svg, double x, const char* css_class, double height,
                        const char* word) {
    return print_key_at(svg, x, svg->legend_y, css_class, height, word);
}

static double print_key_line(const TimelineSvg* svg, double x, const char* css_class, const char* word) {
    fprintf(svg->out, "<path class=\"%s\" d=\"M%.1f %.0fh18\"/>\n", css_class, x, svg->legend_y);
    svg_print_text(svg->out, x + 24, svg->legend_y + 4, "start", NULL, word);
    return x + 24 + svg_text_px(word, 12) + 20;
}

// A second line, where stages have more than one chunk each.
static void print_legend_of_pieces(const TimelineSvg* svg) {
    double x = TIMELINE_SVG_MARGIN, y = svg->legend_y + LEGEND_LINE;
    if (svg->shades) {
        print_key_at(svg, x, y, "fwd k1", 12, "");
        x = print_key_at(svg, x + 20, y, "bwd k1", 12, "lighter: another chunk of the stage");
    }
    if (!svg->shares) { return; }
    x = print_key_at(svg, x, y, "hfwd", 12, "head: forward and gradient of inputs");
    x = print_key_at(svg, x, y, "hwgt", 12, "its weight gradients");
    if (svg->plan->placement.head == HEAD_BY_VOCABULARY) {
        print_key_at(svg, x, y, "fact", 4, "sends factors");
    }
}

double timeline_svg_header_height(const TimelineSvg* svg, bool several) {
    return (several ? HEADER_OF_SEVERAL : HEADER) + (svg->shades || svg->shares ? LEGEND_LINE : 0);
}

static void print_legend(const TimelineSvg* svg) {
    fprintf(svg->out, "<g id=\"legend\">\n");
    double x = print_key(svg, TIMELINE_SVG_MARGIN, "fwd", 12, "forward");
    x = print_key(svg, x, "bwd", 12, "backward");
    if (svg->splits) { x = print_key(svg, x, "wgt", 12, "weight gradients"); }
    if (svg->recomputes) { x = print_key(svg, x, "rec", 12, "forward again"); }
    x = print_key(svg, x, "idle", 12, "idle");
    if (svg->plan->P > 1) {
        x = print_key(svg, x, "act", 4, "sends activation");
        x = print_key(svg, x, "grad", 4, "sends gradient");
    }
    x = print_key(svg, x, "mem", 8, svg->some_memory ? "memory, fullest ranks" : "memory");
    if (svg->limits) { x = print_key_line(svg, x, "limit", "limit"); }
    print_legend_of_pieces(svg);
    fprintf(svg->out, "</g>\n");
}

// "batching dynamic, schedule adaptive+w: 40 samples in 4 micro-batches on 3 stages x 1 replica".
static void describe(char* out, size_t room, const Plan* plan) {
    snprintf(out, room,
             "batching %s, schedule %s: %d sample%s in %d micro-batch%s on %d stage%s x %d replica%s%s",
             plan->policy, plan->schedule, plan->N, plan->N == 1 ? "" : "s", plan->M,
             plan->M == 1 ? "" : "es", plan->P, plan->P == 1 ? "" : "s", plan->R, plan->R == 1 ? "" : "s",
             plan->placement.head == HEAD_BY_ROWS         ? ", head shared by rows"
             : plan->placement.head == HEAD_BY_VOCABULARY ? ", head shared by vocabulary"
                                                          : "");
}

void timeline_svg_print_plan_title(const TimelineSvg* svg, const char* name, double idle_percent, double y) {
    char text[256], number[SVG_NUMBER_BYTES];
    describe(text, sizeof text, svg->plan);
    char title[160];
    snprintf(title, sizeof title, "%s%s%s, idle %.1f %%", name != NULL ? name : "", name != NULL ? ": " : "",
             svg_format_time(number, (double)svg->plan->makespan_ns), idle_percent);
    svg_print_text(svg->out, TIMELINE_SVG_MARGIN, y + 18, "start", "value", title);
    svg_print_text(svg->out, TIMELINE_SVG_MARGIN, y + 36, "start", "q", text);
}

void timeline_svg_print_header(const TimelineSvg* all, const TimelineSvgFigures* figures) {
    TimelineSvg one = *all;
    const TimelineSvg* svg = &one;
    const Plan* plan = svg->plan;
    char text[256];
    snprintf(text, sizeof text, "%s, %s", plan->policy, plan->schedule);
    const char* title = svg->info->title != NULL ? svg->info->title : text;
    svg_print_text(svg->out, TIMELINE_SVG_MARGIN, 40, "start", "title", title);
    one.legend_y = figures != NULL ? HEADER - 32 : HEADER_OF_SEVERAL - 26;
    if (figures != NULL) {
        describe(text, sizeof text, plan);
        svg_print_text(svg->out, TIMELINE_SVG_MARGIN, 60, "start", "q", text);
        print_figures(svg, figures);
    }
    print_legend(svg);
}
