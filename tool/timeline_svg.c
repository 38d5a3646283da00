#include "timeline_svg.h"

#include <stdlib.h>

#include "timeline_svg_row.h"

// Pixels.
static const double LEFT = 104, WIDE_LEFT = 128, LEGEND_LINE = 22, RIGHT = 176, MARGIN = 28, HEADER = 168,
                    PANEL_TITLE = 26, BOUND_LABEL = 20, AXIS = 30, SUMMARY = 150;
static const double MIN_PLOT = 960, MAX_PLOT = 2600, PX_PER_JOB = 15;
enum { MAX_ROWS = 32, ROOMY_STAGES = 8, TICK_PX = 90 };

// Colours: Okabe and Ito (jfly.uni-koeln.de/color), blue darkened a little. CIE lightness of wgt 89, fwd 70,
// rec 54, bwd 41 (46 on dark): told apart without colour. Shares of the head are green (58, 80); a stage's
// other chunks are the same hues, lighter. Light first, then what is different on dark.
static const char STYLE[] =
    "text{font:12px 'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',sans-serif;fill:#1f2328}\n"
    ".page{fill:#fff}.title{font-size:20px;font-weight:600}.value{font-size:18px;font-weight:600}\n"
    ".b{font-weight:600}.q{fill:#656d76;font-size:11px}\n"
    ".fwd{fill:#56b4e9}.bwd{fill:#00659e}.wgt{fill:#f0e442}.rec{fill:#d55e00}.hfwd{fill:#009e73}.hwgt{fill:#"
    "8fd3bd}\n"
    ".fwd.k1{fill:#9bd2f2}.bwd.k1{fill:#3f8fc0}.wgt.k1{fill:#f8f2a4}.rec.k1{fill:#e8905a}\n"
    ".fwd.k2{fill:#cfe8f8}.bwd.k2{fill:#79b4d8}.wgt.k2{fill:#fbf8d0}.rec.k2{fill:#f2bd9c}\n"
    ".fwd,.bwd,.wgt,.rec,.hfwd,.hwgt{stroke:#fff;stroke-width:.6}.thin{stroke:none}\n"
    ".act{fill:#009e73}.fact{fill:#e69f00}.grad{fill:#cc79a7}.idle{fill:url(#hatch)}\n"
    ".n text{font-size:10px;text-anchor:middle;fill:#111;pointer-events:none}.small text{font-size:8px}\n"
    ".n-bwd text,.n-hfwd text{fill:#fff}\n"
    ".lane{fill:#f3f4f6}.mem{fill:#c3c9d1;stroke:#6b7480;stroke-width:.8}.peak{fill:#1f2328}\n"
    ".limit{stroke:#d55e00;stroke-width:1.5;stroke-dasharray:6 3;fill:none}\n"
    ".bound{stroke:#1f2328;stroke-width:1.5;stroke-dasharray:5 3;fill:none}\n"
    ".grid{stroke:#e3e6ea;fill:none}.axis{stroke:#8c959f;fill:none}.hatch{fill:#fafafa}.line{stroke:#b6bdc6}"
    "\n"
    ".bar{fill:#9ecbe8}.slowest{fill:#00659e}\n"
    "@media (prefers-color-scheme:dark){\n"
    "text{fill:#e6edf3}.page{fill:#14181d}.q{fill:#9aa4af}.bwd,.slowest{fill:#0072b2}\n"
    ".bwd.k1{fill:#3f8fc0}.bwd.k2{fill:#6aa9d0}.fwd,.bwd,.wgt,.rec,.hfwd,.hwgt{stroke:#14181d}.thin{stroke:"
    "none}.lane{fill:#1d232a}.mem{fill:#4b5663;stroke:#"
    "9aa4af}.peak{fill:#"
    "e6edf3}\n"
    ".bound{stroke:#e6edf3}.grid{stroke:#2a313a}.axis{stroke:#6e7681}.hatch{fill:#1a1f25}.line{stroke:#"
    "4b545e}\n"
    ".bar{fill:#3d6f8f}}\n";

static int32_t first_rank_of(const Plan* plan, int32_t replica) {
    return replica * plan->P;
}

// When the last job of a replica ends.
static int64_t replica_end_ns(const Plan* plan, int32_t replica) {
    int64_t end_ns = 0;
    for (int32_t s = 0; s < plan->P; s++) {
        const PlanRank* rank = &plan->ranks[first_rank_of(plan, replica) + s];
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            if (rank->instrs[i].end_ns > end_ns) { end_ns = rank->instrs[i].end_ns; }
        }
    }
    return end_ns;
}

static int32_t slowest_replica(const Plan* plan) {
    int32_t slowest = 0;
    for (int32_t r = 1; r < plan->R; r++) {
        if (replica_end_ns(plan, r) > replica_end_ns(plan, slowest)) { slowest = r; }
    }
    return slowest;
}

// Part of [0, makespan) in which `num_ranks` ranks compute nothing, in percent.
static double idle_percent(const Plan* plan, int32_t first_rank, int32_t num_ranks) {
    double busy_ns = 0, all_ns = (double)plan->makespan_ns * num_ranks;
    for (int32_t r = 0; r < num_ranks; r++) {
        busy_ns += (double)timeline_svg_busy_ns(&plan->ranks[first_rank + r]);
    }
    return all_ns > 0 ? 100 * (1 - busy_ns / all_ns) : 0;
}

// --- what the picture will be like -----------------------------------------------------------------------

// Which replicas are drawn: [begin, end).
typedef struct {
    int32_t begin, end;
    bool summary;  // of those that are not
} Replicas;

static Replicas choose_replicas(const Plan* plan, const TimelineSvgInfo* info) {
    if (info->one_replica) { return (Replicas){info->replica, info->replica + 1, false}; }
    if (plan->P * plan->R <= MAX_ROWS || plan->R == 1) { return (Replicas){0, plan->R, false}; }
    int32_t slowest = slowest_replica(plan);
    return (Replicas){slowest, slowest + 1, true};
}

static double plot_width(const Plan* plan, const Replicas* replicas) {
    int32_t most = 0;
    for (int32_t r = replicas->begin * plan->P; r < replicas->end * plan->P; r++) {
        int32_t num_jobs = 0;
        for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
            num_jobs += plan->ranks[r].instrs[i].kind <= INSTR_REC;
        }
        most = num_jobs > most ? num_jobs : most;
    }
    double wanted = most * PX_PER_JOB;
    return wanted < MIN_PLOT ? MIN_PLOT : wanted > MAX_PLOT ? MAX_PLOT : wanted;
}

// One scale for the memory of all rows: the largest peak, and limits not far above it.
static Status set_memory_scale(TimelineSvg* svg, const Replicas* replicas, int64_t* peak_bytes) {
    *peak_bytes = 0;
    for (int32_t r = replicas->begin * svg->plan->P; r < replicas->end * svg->plan->P; r++) {
        MemoryCurve curve;
        TRY(memory_curve_make(&curve, &svg->plan->ranks[r], svg->info->memory_rule, svg->arena));
        if (curve.peak_bytes > *peak_bytes) { *peak_bytes = curve.peak_bytes; }
    }
    double top_bytes = (double)*peak_bytes;
    for (int32_t r = replicas->begin * svg->plan->P; r < replicas->end * svg->plan->P; r++) {
        int64_t limit_bytes = timeline_svg_limit_bytes(svg, r);
        bool near = limit_bytes > 0 && (double)limit_bytes <= 1.4 * (double)*peak_bytes;
        if (near && (double)limit_bytes > top_bytes) { top_bytes = (double)limit_bytes; }
        svg->limits |= near;
    }
    svg->mem_top_bytes = (int64_t)(top_bytes * 1.06) + 1;
    return STATUS_OK;
}

static void find_kinds(TimelineSvg* svg, const Replicas* replicas) {
    for (int32_t r = replicas->begin * svg->plan->P; r < replicas->end * svg->plan->P; r++) {
        for (int32_t i = 0; i < svg->plan->ranks[r].num_instrs; i++) {
            const PlanInstr* instr = &svg->plan->ranks[r].instrs[i];
            svg->splits |= instr->kind == INSTR_WGT && instr->chunk < svg->plan->placement.num_chunks;
            svg->recomputes |= svg->plan->ranks[r].instrs[i].kind == INSTR_REC;
        }
    }
    const Placement* placement = &svg->plan->placement;
    svg->shares = placement->head != HEAD_WHOLE;
    bool has_chunk[PLAN_MAX_STAGES] = {false};
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        svg->shades |= has_chunk[placement->stage_of[k]];
        has_chunk[placement->stage_of[k]] = true;
    }
}

// --- header ----------------------------------------------------------------------------------------------

static void print_figure(const TimelineSvg* svg, double* x, const char* value, const char* caption) {
    svg_print_text(svg->out, *x, 92, "start", "value", value);
    svg_print_text(svg->out, *x, 109, "start", "q", caption);
    *x += 150;
}

static void print_figures(const TimelineSvg* svg, const Replicas* replicas, int64_t peak_bytes) {
    const Plan* plan = svg->plan;
    char number[SVG_NUMBER_BYTES];
    double x = MARGIN;
    print_figure(svg, &x, svg_format_time(number, (double)plan->makespan_ns), "predicted step");
    if (plan->bound_ns > 0) {
        print_figure(svg, &x, svg_format_time(number, (double)plan->bound_ns), "lower bound");
        snprintf(number, sizeof number, "%.3f", (double)plan->makespan_ns / (double)plan->bound_ns);
        print_figure(svg, &x, number, "step / bound");
    }
    snprintf(number, sizeof number, "%.1f %%", idle_percent(plan, 0, plan->P * plan->R));
    print_figure(svg, &x, number, "idle");
    bool all = replicas->end - replicas->begin == plan->R;
    print_figure(svg, &x, svg_format_bytes(number, (double)peak_bytes),
                 all ? "most activations of a rank" : "most activations drawn");
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
    return print_key_at(svg, x, 136, css_class, height, word);
}

static double print_key_line(const TimelineSvg* svg, double x, const char* css_class, const char* word) {
    fprintf(svg->out, "<path class=\"%s\" d=\"M%.1f 136h18\"/>\n", css_class, x);
    svg_print_text(svg->out, x + 24, 140, "start", NULL, word);
    return x + 24 + svg_text_px(word, 12) + 20;
}

// A second line, where stages have more than one chunk each.
static void print_legend_of_pieces(const TimelineSvg* svg) {
    double x = MARGIN, y = 136 + LEGEND_LINE;
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

static double header_height(const TimelineSvg* svg) {
    return HEADER + (svg->shades || svg->shares ? LEGEND_LINE : 0);
}

static void print_legend(const TimelineSvg* svg) {
    fprintf(svg->out, "<g id=\"legend\">\n");
    double x = print_key(svg, MARGIN, "fwd", 12, "forward");
    x = print_key(svg, x, "bwd", 12, "backward");
    if (svg->splits) { x = print_key(svg, x, "wgt", 12, "weight gradients"); }
    if (svg->recomputes) { x = print_key(svg, x, "rec", 12, "forward again"); }
    x = print_key(svg, x, "idle", 12, "idle");
    if (svg->plan->P > 1) {
        x = print_key(svg, x, "act", 4, "sends activation");
        x = print_key(svg, x, "grad", 4, "sends gradient");
    }
    x = print_key(svg, x, "mem", 8, "memory");
    if (svg->limits) { x = print_key_line(svg, x, "limit", "limit"); }
    print_legend_of_pieces(svg);
    fprintf(svg->out, "</g>\n");
}

static void print_header(const TimelineSvg* svg, const Replicas* replicas, int64_t peak_bytes) {
    const Plan* plan = svg->plan;
    char text[256];
    snprintf(text, sizeof text, "%s, %s", plan->policy, plan->schedule);
    const char* title = svg->info->title != NULL ? svg->info->title : text;
    svg_print_text(svg->out, MARGIN, 40, "start", "title", title);
    snprintf(text, sizeof text,
             "batching %s, schedule %s: %d sample%s in %d micro-batch%s on %d stage%s x %d replica%s%s",
             plan->policy, plan->schedule, plan->N, plan->N == 1 ? "" : "s", plan->M,
             plan->M == 1 ? "" : "es", plan->P, plan->P == 1 ? "" : "s", plan->R, plan->R == 1 ? "" : "s",
             plan->placement.head == HEAD_BY_ROWS         ? ", head shared by rows"
             : plan->placement.head == HEAD_BY_VOCABULARY ? ", head shared by vocabulary"
                                                          : "");
    svg_print_text(svg->out, MARGIN, 60, "start", "q", text);
    print_figures(svg, replicas, peak_bytes);
    print_legend(svg);
}

// --- one replica -----------------------------------------------------------------------------------------

static double panel_height(const TimelineSvg* svg) {
    return (svg->plan->R > 1 ? PANEL_TITLE : 0) + (svg->plan->bound_ns > 0 ? BOUND_LABEL : 0) +
           svg->plan->P * timeline_svg_row_height(svg) + AXIS;
}

static void print_grid(const TimelineSvg* svg, double top, double bottom) {
    double span = (double)svg->plan->makespan_ns / svg->unit_ns;
    double right = svg_scale_px(&svg->time, (double)svg->plan->makespan_ns),
           left = svg_scale_px(&svg->time, 0);
    double step = svg_tick_step(span, (int32_t)((right - left) / TICK_PX));
    char text[64];
    fprintf(svg->out, "<path class=\"grid\" d=\"");
    for (int32_t i = 0; i * step <= span; i++) {
        fprintf(svg->out, "M%.2f %.1fV%.1f", svg_scale_px(&svg->time, i * step * svg->unit_ns), top, bottom);
    }
    fprintf(svg->out, "\"/>\n<path class=\"axis\" d=\"M%.2f %.1fH%.2f", left, bottom, right);
    for (int32_t i = 0; i * step <= span; i++) {
        fprintf(svg->out, "M%.2f %.1fv5", svg_scale_px(&svg->time, i * step * svg->unit_ns), bottom);
    }
    fprintf(svg->out, "\"/>\n");
    for (int32_t i = 0; i * step <= span; i++) {
        snprintf(text, sizeof text, "%.*f", svg_tick_decimals(step), i * step);
        svg_print_text(svg->out, svg_scale_px(&svg->time, i * step * svg->unit_ns), bottom + 18, "middle",
                       "q", text);
    }
    snprintf(text, sizeof text, "time in %s", svg->unit);
    svg_print_text(svg->out, left - 12, bottom + 18, "end", "q", text);
}

static void print_bound(const TimelineSvg* svg, double top, double bottom) {
    double x = svg_scale_px(&svg->time, (double)svg->plan->bound_ns);
    char number[SVG_NUMBER_BYTES], text[96];
    snprintf(text, sizeof text, "lower bound %s", svg_format_time(number, (double)svg->plan->bound_ns));
    fprintf(svg->out, "<path class=\"bound\" d=\"M%.2f %.1fV%.1f\"/>\n", x, top - 3, bottom);
    svg_print_text(svg->out, x, top - 9, "middle", "b", text);
}

static Status print_panel(const TimelineSvg* svg, int32_t replica, double y) {
    const Plan* plan = svg->plan;
    if (plan->R > 1) {
        char text[160], number[SVG_NUMBER_BYTES];
        int32_t num_mbs = 0;
        for (int32_t m = 0; m < plan->M; m++) { num_mbs += plan->mbs[m].replica == replica; }
        snprintf(text, sizeof text, "replica %d: %d micro-batches, ends at %s, idle %.1f %%", replica,
                 num_mbs, svg_format_time(number, (double)replica_end_ns(plan, replica)),
                 idle_percent(plan, first_rank_of(plan, replica), plan->P));
        svg_print_text(svg->out, MARGIN, y + 14, "start", "b", text);
        y += PANEL_TITLE;
    }
    if (plan->bound_ns > 0) { y += BOUND_LABEL; }
    double bottom = y + plan->P * timeline_svg_row_height(svg);
    print_grid(svg, y, bottom);
    for (int32_t s = 0; s < plan->P; s++) {
        TRY(timeline_svg_row_print(svg, first_rank_of(plan, replica) + s,
                                   y + s * timeline_svg_row_height(svg)));
    }
    if (plan->bound_ns > 0) { print_bound(svg, y, bottom); }
    return STATUS_OK;
}

// When every replica ends, as columns.
static void print_summary(const TimelineSvg* svg, int32_t slowest, double y) {
    const Plan* plan = svg->plan;
    double left = svg_scale_px(&svg->time, 0), right = svg_scale_px(&svg->time, (double)plan->makespan_ns);
    double top = y + PANEL_TITLE, height = SUMMARY - PANEL_TITLE - AXIS, pitch = (right - left) / plan->R;
    double last_ns = (double)(plan->makespan_ns > plan->bound_ns ? plan->makespan_ns : plan->bound_ns);
    SvgScale up = svg_scale(0, last_ns, top + height, top);
    int64_t fastest_ns = INT64_MAX, slowest_ns = replica_end_ns(plan, slowest);
    fprintf(
        svg->out,
        "<rect class=\"lane\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>\n<g id=\"replicas\">\n",
        left, top, right - left, height);
    for (int32_t r = 0; r < plan->R; r++) {
        int64_t end_ns = replica_end_ns(plan, r);
        fastest_ns = end_ns < fastest_ns ? end_ns : fastest_ns;
        double at = svg_scale_px(&up, (double)end_ns);
        char number[SVG_NUMBER_BYTES];
        fprintf(svg->out,
                "<rect class=\"%s\" x=\"%.2f\" y=\"%.2f\" width=\"%.2f\" height=\"%.2f\"><title>replica %d "
                "ends at "
                "%s, idle %.1f %%</title></rect>\n",
                r == slowest ? "slowest" : "bar", left + r * pitch, at, pitch * 0.8, top + height - at, r,
                svg_format_time(number, (double)end_ns), idle_percent(plan, first_rank_of(plan, r), plan->P));
    }
    fprintf(svg->out, "</g>\n");
    char text[160], a[SVG_NUMBER_BYTES], b[SVG_NUMBER_BYTES];
    snprintf(text, sizeof text, "all %d replicas end between %s and %s; drawn above: replica %d, the slowest",
             plan->R, svg_format_time(a, (double)fastest_ns), svg_format_time(b, (double)slowest_ns),
             slowest);
    svg_print_text(svg->out, MARGIN, y + 14, "start", "b", text);
    if (plan->bound_ns > 0) {
        double at = svg_scale_px(&up, (double)plan->bound_ns);
        fprintf(svg->out, "<path class=\"bound\" d=\"M%.2f %.2fH%.2f\"/>\n", left, at, right);
        svg_print_text(svg->out, right + 12, at + 4, "start", NULL, "lower bound");
    }
    snprintf(text, sizeof text, "replica 0 to %d", plan->R - 1);
    svg_print_text(svg->out, left, top + height + 18, "start", "q", text);
    svg_print_text(svg->out, left - 12, top + height / 2 + 4, "end", "b", "ends");
}

// --- the page --------------------------------------------------------------------------------------------

static Status print_page(TimelineSvg* svg, const Replicas* replicas) {
    const Plan* plan = svg->plan;
    find_kinds(svg, replicas);
    svg->left = svg->shades || svg->shares ? WIDE_LEFT : LEFT;
    double plot = plot_width(plan, replicas), width = svg->left + plot + RIGHT;
    bool roomy = plan->P <= ROOMY_STAGES;
    svg->job_height = roomy ? 24 : 18, svg->send_height = roomy ? 4 : 3, svg->mem_height = roomy ? 26 : 18;
    svg->lane_gap = 2, svg->row_gap = roomy ? 14 : 10;
    double last_ns = (double)(plan->bound_ns > plan->makespan_ns ? plan->bound_ns : plan->makespan_ns);
    svg->time = svg_scale(0, last_ns, svg->left, svg->left + plot);
    svg->unit = svg_time_unit(plan->makespan_ns, &svg->unit_ns);
    svg->decimals = svg->unit_ns > 1 ? 3 : 0;
    int64_t peak_bytes;
    TRY(set_memory_scale(svg, replicas, &peak_bytes));
    double height = header_height(svg) + (replicas->end - replicas->begin) * panel_height(svg) +
                    (replicas->summary ? SUMMARY : 0) + MARGIN / 2;
    fprintf(svg->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f "
            "%.0f\">\n"
            "<style>\n%s</style>\n"
            "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
            "patternTransform=\"rotate(45)\"><rect class=\"hatch\" width=\"6\" height=\"6\"/>"
            "<path class=\"line\" d=\"M0 0V6\" stroke-width=\"1.6\"/></pattern></defs>\n"
            "<rect class=\"page\" width=\"%.0f\" height=\"%.0f\"/>\n",
            width, height, width, height, STYLE, width, height);
    print_header(svg, replicas, peak_bytes);
    double y = header_height(svg);
    for (int32_t r = replicas->begin; r < replicas->end; r++, y += panel_height(svg)) {
        TRY(print_panel(svg, r, y));
    }
    if (replicas->summary) { print_summary(svg, replicas->begin, y); }
    fprintf(svg->out, "</svg>\n");
    return STATUS_OK;
}

Status timeline_svg_print(FILE* out, const Plan* plan, const TimelineSvgInfo* info) {
    TimelineSvgInfo none = {0};
    if (info == NULL) { info = &none; }
    if (plan->P < 1 || plan->R < 1 || plan->ranks == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "a plan of %d stages and %d replicas cannot be drawn ---> make a plan first", plan->P,
                    plan->R);
    }
    if (info->one_replica && (info->replica < 0 || info->replica >= plan->R)) {
        return FAIL(STATUS_OUT_OF_RANGE, "there is no replica %d ---> 0 to %d", info->replica, plan->R - 1);
    }
    Arena arena = {0};
    TimelineSvg svg = {.out = out, .plan = plan, .info = info, .arena = &arena};
    Replicas replicas = choose_replicas(plan, info);
    Status status = print_page(&svg, &replicas);
    arena_free(&arena);
    return status;
}

Status timeline_svg_write(const char* path, const Plan* plan, const TimelineSvgInfo* info) {
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* out = open_memstream(&text, &num_bytes);
    if (out == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory to draw in ---> free memory", path); }
    Status status = timeline_svg_print(out, plan, info);
    bool complete = fclose(out) == 0;
    if (status == STATUS_OK && !complete) {
        status = FAIL(STATUS_NO_MEMORY, "%s: no memory to draw in ---> free memory", path);
    }
    if (status == STATUS_OK) { status = svg_write_file(path, text, num_bytes); }
    free(text);
    return status;
}
