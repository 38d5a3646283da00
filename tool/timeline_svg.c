#include "timeline_svg.h"

#include <math.h>
#include <stdlib.h>

#include "timeline_svg_header.h"

// Pixels.
static const double LEFT = 104, WIDE_LEFT = 128, RIGHT = 150, PANEL_TITLE = 26, BOUND_LABEL = 20, AXIS = 30,
                    SUMMARY = 150, PLAN_TITLE = 58;
static const double MIN_PLOT = 960, MAX_PLOT = 2600, PX_PER_JOB = 15, NEAR_LIMIT = 1.4;
enum { MAX_ROWS = 32, ROOMY_STAGES = 8, MANY_ROWS = 12, FULLEST_ROWS = 4, TICK_PX = 90 };

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

// Rows with a memory lane: all where there are few, else the fullest. peaks[P * R] is filled where rows are.
static Status choose_memory(TimelineSvg* svg, const Replicas* replicas, int64_t* peaks) {
    int32_t begin = replicas->begin * svg->plan->P, end = replicas->end * svg->plan->P;
    bool* has_memory;
    ARENA_TRY_NEW(has_memory, svg->arena, bool, svg->plan->P * svg->plan->R);
    for (int32_t r = begin; r < end; r++) {
        MemoryCurve curve;
        TRY(memory_curve_make(&curve, &svg->plan->ranks[r], svg->info->memory_rule, svg->arena));
        peaks[r] = curve.peak_bytes;
    }
    for (int32_t r = begin; r < end; r++) {
        int32_t num_fuller = 0;
        for (int32_t k = begin; k < end; k++) {
            num_fuller += peaks[k] > peaks[r] || (peaks[k] == peaks[r] && k < r);
        }
        has_memory[r] = end - begin <= MANY_ROWS || num_fuller < FULLEST_ROWS;
    }
    svg->has_memory = has_memory;
    svg->some_memory = end - begin > MANY_ROWS;
    return STATUS_OK;
}

// The largest peak of a plan's rows; whether each row with a memory lane has a limit not far above it.
static int64_t look_at_limits(TimelineSvg* svg, const Replicas* replicas, const int64_t* peaks,
                              int64_t* limit_bytes) {
    int64_t peak_bytes = 0;
    bool any = false, all = true;
    *limit_bytes = 0;
    for (int32_t r = replicas->begin * svg->plan->P; r < replicas->end * svg->plan->P; r++) {
        peak_bytes = peaks[r] > peak_bytes ? peaks[r] : peak_bytes;
    }
    for (int32_t r = replicas->begin * svg->plan->P; r < replicas->end * svg->plan->P; r++) {
        int64_t one_bytes = timeline_svg_limit_bytes(svg, r);
        if (!svg->has_memory[r]) { continue; }
        any = true;
        all &= one_bytes > 0 && (double)one_bytes <= NEAR_LIMIT * (double)peak_bytes;
        *limit_bytes = one_bytes > *limit_bytes ? one_bytes : *limit_bytes;
    }
    svg->limits = any && all;
    return peak_bytes;
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

// --- one replica -----------------------------------------------------------------------------------------

static double rows_height(const TimelineSvg* svg, int32_t replica) {
    double height = 0;
    for (int32_t s = 0; s < svg->plan->P; s++) {
        height += timeline_svg_row_height(svg, first_rank_of(svg->plan, replica) + s);
    }
    return height;
}

static double panel_height(const TimelineSvg* svg, int32_t replica) {
    return (svg->plan->R > 1 ? PANEL_TITLE : 0) + (svg->shows_bound ? BOUND_LABEL : 0) +
           rows_height(svg, replica) + AXIS;
}

static void print_grid(const TimelineSvg* svg, double top, double bottom) {
    double span = svg->axis_ns / svg->unit_ns;
    double right = svg_scale_px(&svg->time, svg->axis_ns), left = svg_scale_px(&svg->time, 0);
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
    double x = svg_scale_px(&svg->time, (double)svg->bound_ns);
    char number[SVG_NUMBER_BYTES], text[96];
    snprintf(text, sizeof text, "lower bound %s", svg_format_time(number, (double)svg->bound_ns));
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
        svg_print_text(svg->out, TIMELINE_SVG_MARGIN, y + 14, "start", "b", text);
        y += PANEL_TITLE;
    }
    if (svg->shows_bound) { y += BOUND_LABEL; }
    double bottom = y + rows_height(svg, replica), row_y = y;
    print_grid(svg, y, bottom);
    for (int32_t s = 0; s < plan->P; s++) {
        int32_t rank = first_rank_of(plan, replica) + s;
        TRY(timeline_svg_row_print(svg, rank, row_y));
        row_y += timeline_svg_row_height(svg, rank);
    }
    if (svg->shows_bound) { print_bound(svg, y, bottom); }
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
    svg_print_text(svg->out, TIMELINE_SVG_MARGIN, y + 14, "start", "b", text);
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

// What of each plan is drawn, and where time and memory lie: the same for all.
typedef struct {
    TimelineSvg svg;
    Replicas replicas;
    int64_t* peaks;  // [P * R], of drawn rows
    int64_t peak_bytes, limit_bytes;
} Drawn;

static Status prepare(Drawn* drawn, int32_t num_plans, const TimelineSvgInfo* info) {
    double plot = info->plot_px, left = LEFT;
    int64_t last_ns = drawn[0].svg.plan->bound_ns, longest_ns = 0, most_bytes = 0;
    int32_t most_stages = 0;
    bool limits = true;
    for (int32_t k = 0; k < num_plans; k++) {
        TimelineSvg* svg = &drawn[k].svg;
        const Plan* plan = svg->plan;
        find_kinds(svg, &drawn[k].replicas);
        ARENA_TRY_NEW(drawn[k].peaks, svg->arena, int64_t, plan->P * plan->R);
        TRY(choose_memory(svg, &drawn[k].replicas, drawn[k].peaks));
        drawn[k].peak_bytes = look_at_limits(svg, &drawn[k].replicas, drawn[k].peaks, &drawn[k].limit_bytes);
        double width = plot_width(plan, &drawn[k].replicas);
        if (info->plot_px <= 0 && width > plot) { plot = width; }
        if (svg->shades || svg->shares) { left = WIDE_LEFT; }
        longest_ns = plan->makespan_ns > longest_ns ? plan->makespan_ns : longest_ns;
        most_bytes = drawn[k].peak_bytes > most_bytes ? drawn[k].peak_bytes : most_bytes;
        most_stages = plan->P > most_stages ? plan->P : most_stages;
        limits &= svg->limits;
    }
    for (int32_t k = 0; k < num_plans && limits; k++) {
        most_bytes = drawn[k].limit_bytes > most_bytes ? drawn[k].limit_bytes : most_bytes;
    }
    last_ns = longest_ns > last_ns ? longest_ns : last_ns;
    bool roomy = most_stages <= ROOMY_STAGES;
    for (int32_t k = 0; k < num_plans; k++) {
        TimelineSvg* svg = &drawn[k].svg;
        svg->left = left;
        svg->job_height = roomy ? 24 : 18, svg->send_height = roomy ? 4 : 3,
        svg->mem_height = roomy ? 26 : 18;
        svg->lane_gap = 2, svg->row_gap = roomy ? 14 : 10;
        svg->time = svg_scale(0, (double)last_ns, left, left + plot);
        svg->unit = svg_time_unit(longest_ns, &svg->unit_ns);
        svg->decimals = svg->unit_ns > 1 ? 3 : 0;
        svg->axis_ns = (double)longest_ns;
        svg->bound_ns = drawn[0].svg.plan->bound_ns;
        svg->shows_bound = svg->bound_ns > 0;
        svg->limits = limits;
        svg->mem_top_bytes = (int64_t)((double)most_bytes * 1.06) + 1;
    }
    return STATUS_OK;
}

// Of what all plans have, for one legend.
static TimelineSvg merge_kinds(const Drawn* drawn, int32_t num_plans) {
    TimelineSvg all = drawn[0].svg;
    for (int32_t k = 1; k < num_plans; k++) {
        const TimelineSvg* svg = &drawn[k].svg;
        all.splits |= svg->splits, all.recomputes |= svg->recomputes, all.shades |= svg->shades;
        all.shares |= svg->shares, all.some_memory |= svg->some_memory;
        if (svg->plan->P > all.plan->P || svg->plan->placement.head > all.plan->placement.head) {
            all.plan = svg->plan;
        }
    }
    return all;
}

static double plan_height(const Drawn* drawn, bool several) {
    double height = several ? PLAN_TITLE : 0;
    for (int32_t r = drawn->replicas.begin; r < drawn->replicas.end; r++) {
        height += panel_height(&drawn->svg, r);
    }
    return height + (drawn->replicas.summary ? SUMMARY : 0);
}

static Status print_plan(const Drawn* drawn, const char* name, bool several, double y) {
    const TimelineSvg* svg = &drawn->svg;
    if (several) {
        timeline_svg_print_plan_title(svg, name, idle_percent(svg->plan, 0, svg->plan->P * svg->plan->R), y);
        y += PLAN_TITLE;
    }
    for (int32_t r = drawn->replicas.begin; r < drawn->replicas.end; r++) {
        TRY(print_panel(svg, r, y));
        y += panel_height(svg, r);
    }
    if (drawn->replicas.summary) { print_summary(svg, drawn->replicas.begin, y); }
    return STATUS_OK;
}

static Status print_page(FILE* out, Drawn* drawn, const TimelineSvgPlan* plans, int32_t num_plans,
                         const TimelineSvgInfo* info) {
    bool several = num_plans > 1;
    TRY(prepare(drawn, num_plans, info));
    TimelineSvg all = merge_kinds(drawn, num_plans);
    const TimelineSvg* first = &drawn[0].svg;
    double top = timeline_svg_header_height(&all, several), height = top + TIMELINE_SVG_MARGIN / 2.0;
    for (int32_t k = 0; k < num_plans; k++) { height += plan_height(&drawn[k], several); }
    double width = svg_scale_px(&first->time, fmax(first->axis_ns, (double)first->bound_ns)) + RIGHT;
    fprintf(out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f "
            "%.0f\">\n"
            "<style>\n%s</style>\n"
            "<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" patternUnits=\"userSpaceOnUse\" "
            "patternTransform=\"rotate(45)\"><rect class=\"hatch\" width=\"6\" height=\"6\"/>"
            "<path class=\"line\" d=\"M0 0V6\" stroke-width=\"1.6\"/></pattern></defs>\n"
            "<rect class=\"page\" width=\"%.0f\" height=\"%.0f\"/>\n",
            width, height, width, height, STYLE, width, height);
    const Replicas* replicas = &drawn[0].replicas;
    TimelineSvgFigures figures = {.idle_percent =
                                      idle_percent(first->plan, 0, first->plan->P * first->plan->R),
                                  .peak_bytes = drawn[0].peak_bytes,
                                  .all_drawn = replicas->end - replicas->begin == first->plan->R};
    timeline_svg_print_header(&all, several ? NULL : &figures);
    for (int32_t k = 0; k < num_plans; k++) {
        TRY(print_plan(&drawn[k], plans[k].name, several, top));
        top += plan_height(&drawn[k], several);
    }
    fprintf(out, "</svg>\n");
    return STATUS_OK;
}

static Status check_plan(const Plan* plan, const TimelineSvgInfo* info) {
    if (plan->P < 1 || plan->R < 1 || plan->ranks == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "a plan of %d stages and %d replicas cannot be drawn ---> make a plan first", plan->P,
                    plan->R);
    }
    if (info->one_replica && (info->replica < 0 || info->replica >= plan->R)) {
        return FAIL(STATUS_OUT_OF_RANGE, "there is no replica %d ---> 0 to %d", info->replica, plan->R - 1);
    }
    return STATUS_OK;
}

Status timeline_svg_print_plans(FILE* out, const TimelineSvgPlan* plans, int32_t num_plans,
                                const TimelineSvgInfo* info) {
    if (num_plans < 1 || num_plans > TIMELINE_SVG_MAX_PLANS) {
        return FAIL(STATUS_OUT_OF_RANGE, "a picture of %d plans ---> 1 to %d", num_plans,
                    TIMELINE_SVG_MAX_PLANS);
    }
    Arena arena = {0};
    Drawn drawn[TIMELINE_SVG_MAX_PLANS];
    TimelineSvgInfo infos[TIMELINE_SVG_MAX_PLANS];
    for (int32_t k = 0; k < num_plans; k++) {
        infos[k] = *info;
        infos[k].memory_limit_bytes = plans[k].memory_limit_bytes;
        TRY(check_plan(plans[k].plan, info));
        drawn[k] = (Drawn){.svg = {.out = out, .plan = plans[k].plan, .info = &infos[k], .arena = &arena},
                           .replicas = choose_replicas(plans[k].plan, info)};
    }
    Status status = print_page(out, drawn, plans, num_plans, info);
    arena_free(&arena);
    return status;
}

Status timeline_svg_print(FILE* out, const Plan* plan, const TimelineSvgInfo* info) {
    TimelineSvgInfo none = {0};
    if (info == NULL) { info = &none; }
    TimelineSvgPlan one = {.plan = plan, .memory_limit_bytes = info->memory_limit_bytes};
    return timeline_svg_print_plans(out, &one, 1, info);
}

Status timeline_svg_write_plans(const char* path, const TimelineSvgPlan* plans, int32_t num_plans,
                                const TimelineSvgInfo* info) {
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* out = open_memstream(&text, &num_bytes);
    if (out == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory to draw in ---> free memory", path); }
    Status status = timeline_svg_print_plans(out, plans, num_plans, info);
    bool complete = fclose(out) == 0;
    if (status == STATUS_OK && !complete) {
        status = FAIL(STATUS_NO_MEMORY, "%s: no memory to draw in ---> free memory", path);
    }
    if (status == STATUS_OK) { status = svg_write_file(path, text, num_bytes); }
    free(text);
    return status;
}

Status timeline_svg_write(const char* path, const Plan* plan, const TimelineSvgInfo* info) {
    TimelineSvgInfo none = {0};
    if (info == NULL) { info = &none; }
    TimelineSvgPlan one = {.plan = plan, .memory_limit_bytes = info->memory_limit_bytes};
    return timeline_svg_write_plans(path, &one, 1, info);
}
