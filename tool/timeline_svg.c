// timeline_svg.c -- see timeline_svg.h.
#include "timeline_svg.h"

#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <string.h>

#include "../dynapipe_plugin/plan/memory_layout.h"
#include "../dynapipe_plugin/plan/placement.h"
#include "../dynapipe_plugin/plan/plan_message.h"
#include "../util/program.h"

// Pixels, unless named otherwise.
static const double MARGIN = 28, LEFT = 132, RIGHT = 150, MIN_PLOT = 960, MAX_PLOT = 2600, PX_PER_JOB = 15;
static const double JOB = 24, SEND = 4, MEMORY = 26, GAP = 16, LEAST_OUTLINED = 3, NEAR_LIMIT = 1.4;
enum { HEADER = 56, PLAN_TITLE = 58, PANEL_TITLE = 26, BOUND_LABEL = 20, AXIS = 30, LEGEND = 22 };
enum { MANY_ROWS = 12, TICK_PX = 90 };

static const char STYLE[] =
    "text{font:12px 'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',sans-serif;fill:#1f2328}\n"
    ".page{fill:#fff}.title{font-size:20px;font-weight:600}.value{font-size:18px;font-weight:600}\n"
    ".b{font-weight:600}.q{fill:#656d76;font-size:11px}.e{text-anchor:end}.m{text-anchor:middle}\n"
    ".fwd{fill:#56b4e9}.bwd{fill:#00659e}.wgt{fill:#f0e442}.rec{fill:#d55e00}\n"
    ".fwd.k1{fill:#9bd2f2}.bwd.k1{fill:#3f8fc0}.wgt.k1{fill:#f8f2a4}.rec.k1{fill:#e8905a}\n"
    ".hfwd{fill:#009e73}.hwgt{fill:#8fd3bd}.job{stroke:#fff;stroke-width:.6}.thin{stroke:none}\n"
    ".act{fill:#009e73}.fact{fill:#e69f00}.grad{fill:#cc79a7}.idle{fill:url(#hatch)}\n"
    ".n{font-size:10px;text-anchor:middle;fill:#111;pointer-events:none}.on-dark{fill:#fff}\n"
    ".lane{fill:#f3f4f6}.mem{fill:#c3c9d1;stroke:#6b7480;stroke-width:.8}\n"
    ".limit{stroke:#d55e00;stroke-width:1.5;stroke-dasharray:6 3;fill:none}\n"
    ".bound{stroke:#1f2328;stroke-width:1.5;stroke-dasharray:5 3;fill:none}\n"
    ".grid{stroke:#e3e6ea;fill:none}.axis{stroke:#8c959f;fill:none}.hatch{fill:#fafafa}.line{stroke:#b6bdc6}"
    "\n";

// What the legend explains: all that was drawn.
typedef enum {
    KEY_FWD,
    KEY_BWD,
    KEY_WGT,
    KEY_REC,
    KEY_HEAD_FWD,
    KEY_HEAD_WGT,
    KEY_OTHER_CHUNK,
    KEY_IDLE,
    KEY_ACT,
    KEY_GRAD,
    KEY_FACT,
    KEY_MEMORY,
    KEY_LIMIT,
    NUM_KEYS
} Key;

static const struct {
    const char *css_class, *word;
    double height, px;
} keys[NUM_KEYS] = {{"fwd", "forward", 12, 45},
                    {"bwd", "backward", 12, 55},
                    {"wgt", "weight gradients", 12, 92},
                    {"rec", "recomputation", 12, 84},
                    {"hfwd", "head", 12, 30},
                    {"hwgt", "its weight gradients", 12, 108},
                    {"fwd k1", "lighter: another chunk", 12, 122},
                    {"idle", "idle", 12, 22},
                    {"act", "sends activations", 4, 95},
                    {"grad", "gradients", 4, 52},
                    {"fact", "factors", 4, 40},
                    {"mem", "memory held", 8, 70},
                    {"limit", "its limit", 1.5, 45}};

typedef struct {
    FILE* out;
    const TimelineInfo* info;
    const Plan* plan;  // the plan being drawn
    double ns_px, plot, byte_px;
    int64_t longest_ns, bound_ns;
    bool shows_limits, is_drawn[NUM_KEYS];
    Arena* arena;
} Picture;

// --- elements ---------------------------------------------------------------------------------------------

// No control characters, valid UTF-8.
static void put_text(const Picture* p, double x, double y, const char* css_class, const char* format, ...)
    __attribute__((format(printf, 5, 6)));
static void put_text(const Picture* p, double x, double y, const char* css_class, const char* format, ...) {
    char text[400];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fprintf(p->out, "<text x=\"%.1f\" y=\"%.1f\" class=\"%s\">", x, y, css_class);
    for (const char* at = PRINTABLE(text); *at != '\0'; at++) {
        switch (*at) {
            case '&': fputs("&amp;", p->out); break;
            case '<': fputs("&lt;", p->out); break;
            case '>': fputs("&gt;", p->out); break;
            default: fputc(*at, p->out);
        }
    }
    fputs("</text>\n", p->out);
}

static double time_px(const Picture* p, int64_t ns) {
    return LEFT + (double)ns * p->ns_px;
}

// A span of time, with a title for the mouse.
static void put_box(const Picture* p, const char* css_class, int32_t rank, int64_t begin_ns, int64_t end_ns,
                    double y, double height, const char* title) {
    fprintf(
        p->out,
        "<rect class=\"%s\" data-rank=\"%d\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"><title>%s"
        ": %.6g to %.6g ms</title></rect>\n",
        css_class, rank, time_px(p, begin_ns), y, (double)(end_ns - begin_ns) * p->ns_px, height, title,
        (double)begin_ns / 1e6, (double)end_ns / 1e6);
}

// --- plans ------------------------------------------------------------------------------------------------

static double idle_percent(const Plan* plan, int32_t first_rank, int32_t num_ranks) {
    double busy_ns = 0, all_ns = (double)plan->makespan_ns * num_ranks;
    for (int32_t r = first_rank; r < first_rank + num_ranks; r++) {
        for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
            const PlanInstr* instr = &plan->ranks[r].instrs[i];
            bool is_job = plan_instr_is_job((InstrKind)instr->kind);
            busy_ns += is_job ? (double)(instr->end_ns - instr->begin_ns) : 0;
        }
    }
    return all_ns > 0 ? 100 * (1 - busy_ns / all_ns) : 0;
}

static int64_t replica_end_ns(const Plan* plan, int32_t replica) {
    int64_t end_ns = 0;
    for (int32_t r = replica * plan->P; r < (replica + 1) * plan->P; r++) {
        for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
            if (plan->ranks[r].instrs[i].end_ns > end_ns) { end_ns = plan->ranks[r].instrs[i].end_ns; }
        }
    }
    return end_ns;
}

// How many replicas are drawn, from *first: all, or only the slowest.
static int32_t drawn_replicas(const Plan* plan, int32_t* first) {
    *first = 0;
    if (plan->P * plan->R <= TIMELINE_MAX_ROWS) { return plan->R; }
    for (int32_t r = 1; r < plan->R; r++) {
        if (replica_end_ns(plan, r) > replica_end_ns(plan, *first)) { *first = r; }
    }
    return 1;
}

static bool has_memory(const Plan* plan) {
    int32_t first;
    return drawn_replicas(plan, &first) * plan->P <= MANY_ROWS;
}

static double row_height(const Plan* plan) {
    return JOB + SEND + GAP + (has_memory(plan) ? MEMORY + 2 : 0);
}

static double plan_height(const Plan* plan) {
    int32_t first, panels = drawn_replicas(plan, &first);
    return PLAN_TITLE +
           panels * ((plan->R > 1 ? PANEL_TITLE : 0) + BOUND_LABEL + AXIS + plan->P * row_height(plan));
}

// Bytes available for activations; 0: no limit.
static int64_t limit_bytes_of(const Picture* p, int32_t rank) {
    const int64_t* limits = p->info->memory_limit_bytes;
    int64_t limit_bytes = limits != NULL ? limits[rank] : plan_limit_bytes(p->plan, rank);
    int64_t left_bytes = limit_bytes - p->plan->ranks[rank].state_bytes;
    return limit_bytes == 0 ? 0 : left_bytes > 0 ? left_bytes : 1;
}

// --- a row ------------------------------------------------------------------------------------------------

static void put_job(Picture* p, int32_t rank, const PlanInstr* job, double y) {
    const Placement* placement = &p->plan->placement;
    const MbShape* shape = &p->plan->mbs[job->mb].shape;
    const bool is_head = job->chunk >= placement->num_chunks;
    const double width = (double)(job->end_ns - job->begin_ns) * p->ns_px;
    char css_class[48], title[160], piece[24] = "", name[PLAN_MB_NAME];
    plan_mb_name(name, p->plan, job->mb);
    bool is_other = false;
    for (int32_t k = 0; k < job->chunk && !is_head; k++) {
        is_other |= placement->stage_of[k] == placement->stage_of[job->chunk];
    }
    if (is_head || placement->num_chunks > p->plan->P) {
        snprintf(piece, sizeof piece, is_head ? " head" : " chunk %d", job->chunk);
    }
    Key key = is_head                  ? (job->kind == INSTR_FWD ? KEY_HEAD_FWD : KEY_HEAD_WGT)
              : job->kind == INSTR_FWD ? KEY_FWD
              : job->kind == INSTR_BWD ? KEY_BWD
              : job->kind == INSTR_WGT ? KEY_WGT
                                       : KEY_REC;
    p->is_drawn[key] = true;
    p->is_drawn[KEY_OTHER_CHUNK] |= is_other;
    snprintf(css_class, sizeof css_class, "job %s%s%s", keys[key].css_class, is_other ? " k1" : "",
             width < LEAST_OUTLINED ? " thin" : "");
    snprintf(title, sizeof title, "%s mb %s%s, %" PRId64 " seqs, %" PRId64 " tokens",
             plan_instr_words[job->kind], name, piece, shape->num_seqs,
             shape->enc_tokens + shape->dec_tokens);
    put_box(p, css_class, rank, job->begin_ns, job->end_ns, y, JOB, title);
    if (width < 6.4 * (double)strlen(name) + 1) { return; }
    put_text(p, time_px(p, job->begin_ns) + width / 2, y + JOB / 2 + 3.6,
             key == KEY_BWD || key == KEY_HEAD_FWD ? "n on-dark" : "n", "%s", name);
}

static void put_idle(Picture* p, int32_t rank, int64_t begin_ns, int64_t end_ns, double y) {
    if (end_ns <= begin_ns) { return; }
    p->is_drawn[KEY_IDLE] = true;
    put_box(p, "idle", rank, begin_ns, end_ns, y, JOB, "idle");
}

static void put_events(Picture* p, int32_t rank, double y) {
    const PlanRank* list = &p->plan->ranks[rank];
    int64_t now_ns = 0;
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        if (plan_instr_is_job((InstrKind)instr->kind)) {
            put_idle(p, rank, now_ns, instr->begin_ns, y);
            put_job(p, rank, instr, y);
            if (instr->end_ns > now_ns) { now_ns = instr->end_ns; }
        } else if (plan_instr_is_send(instr->kind)) {
            Key key = (Key)(KEY_ACT + plan_instr_message(instr->kind));
            char title[64];
            p->is_drawn[key] = true;
            snprintf(title, sizeof title, "%s mb %d to stage %d", plan_instr_words[instr->kind], instr->mb,
                     instr->peer % p->plan->P);
            put_box(p, keys[key].css_class, rank, instr->begin_ns, instr->end_ns, y + JOB + 2, SEND, title);
        }
    }
    put_idle(p, rank, now_ns, p->plan->makespan_ns, y);
}

static void put_memory(Picture* p, int32_t rank, const MemoryCurve* curve, double top) {
    double bottom = top + MEMORY, right = time_px(p, p->plan->makespan_ns);
    int64_t limit_bytes = limit_bytes_of(p, rank);
    p->is_drawn[KEY_MEMORY] = true;
    fprintf(p->out, "<rect class=\"lane\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>\n", LEFT,
            top, right - LEFT, MEMORY);
    fprintf(p->out, "<path class=\"mem\" data-rank=\"%d\" d=\"M%.2f %.2f", rank, LEFT, bottom);
    for (int32_t i = 0; i < curve->num_steps; i++) {
        fprintf(p->out, "H%.2fV%.2f", time_px(p, curve->steps[i].begin_ns),
                bottom - (double)curve->steps[i].num_bytes * p->byte_px);
    }
    fprintf(p->out, "H%.2fV%.2fZ\"/>\n", right, bottom);
    if (!p->shows_limits || limit_bytes == 0) { return; }
    p->is_drawn[KEY_LIMIT] = true;
    fprintf(p->out, "<path class=\"limit\" data-rank=\"%d\" d=\"M%.2f %.2fH%.2f\"/>\n", rank, LEFT,
            bottom - (double)limit_bytes * p->byte_px, right);
}

static Status put_row(Picture* p, int32_t rank, double y) {
    const Plan* plan = p->plan;
    const Placement* placement = &plan->placement;
    const int32_t s = rank % plan->P;
    MemoryCurve curve;
    double right = time_px(p, plan->makespan_ns) + 12, memory = y + JOB + SEND + 4;
    int64_t limit_bytes = limit_bytes_of(p, rank);
    put_events(p, rank, y);
    put_text(p, LEFT - 12, y + JOB / 2 + 4, "b e", "stage %d", s);
    put_text(p, right, y + JOB / 2 + 4, "", "idle %.1f %%", idle_percent(plan, rank, 1));
    if (!has_memory(plan)) { return STATUS_OK; }
    TRY(memory_curve_make(&curve, &plan->ranks[rank], p->info->memory_rule, p->arena));
    put_memory(p, rank, &curve, memory);
    char layers[LAYERS_CHARS];
    double num_layers = placement_layers(placement, &plan->chain, s);
    put_text(p, LEFT - 12, memory + MEMORY / 2, "q e", "%s layer%s", layers_text(layers, num_layers),
             num_layers == 1 ? "" : "s");
    if (placement->head != HEAD_WHOLE) {
        int32_t units = placement->head_begin[s + 1] - placement->head_begin[s];
        put_text(p, LEFT - 12, memory + MEMORY / 2 + 13, "q e", "%.0f %% of the head",
                 100.0 * units / HEAD_UNITS);
    }
    put_text(p, right, memory + MEMORY / 2 + 4, "q", "%s%s%s", BYTES_TEXT(curve.peak_bytes),
             limit_bytes > 0 ? " of " : "", limit_bytes > 0 ? BYTES_TEXT(limit_bytes) : "");
    return STATUS_OK;
}

// --- a plan -----------------------------------------------------------------------------------------------

static void put_axis(const Picture* p, double top, double bottom) {
    double unit_ns = p->longest_ns >= 2000000000 ? 1e9 : p->longest_ns >= 2000000 ? 1e6 : 1e3;
    double least = (double)p->longest_ns / unit_ns * TICK_PX / p->plot, step = pow(10, floor(log10(least)));
    step *= step >= least ? 1 : 2 * step >= least ? 2 : 5 * step >= least ? 5 : 10;
    for (int32_t i = 0; p->longest_ns > 0 && i * step * unit_ns <= (double)p->longest_ns; i++) {
        double x = LEFT + i * step * unit_ns * p->ns_px;
        fprintf(p->out, "<path class=\"grid\" d=\"M%.2f %.1fV%.1f\"/>\n", x, top, bottom);
        put_text(p, x, bottom + 18, "q m", "%.10g", i * step);
    }
    fprintf(p->out, "<path class=\"axis\" d=\"M%.2f %.1fh%.2f\"/>\n", LEFT, bottom, p->plot);
    put_text(p, LEFT - 12, bottom + 18, "q e", "time in %s",
             unit_ns == 1e9   ? "s"
             : unit_ns == 1e6 ? "ms"
                              : "us");
}

static Status put_plan(Picture* p, const char* name, double y) {
    const Plan* plan = p->plan;
    const int32_t P = plan->P, R = plan->R;
    int32_t first, num_drawn = drawn_replicas(plan, &first);
    char drawn[48] = "";
    put_text(p, MARGIN, y + 18, "value", "%.100s: %s, idle %.1f %%", name, TIME_TEXT(plan->makespan_ns, 4),
             idle_percent(plan, 0, P * R));
    if (num_drawn < R) { snprintf(drawn, sizeof drawn, "; drawn: replica %d, the slowest", first); }
    put_text(p, MARGIN, y + 36, "q",
             "batching %s, schedule %s: %d samples in %d microbatches on %d stages x %d replicas%s%s",
             plan->policy, plan->schedule, plan->N, plan->M, P, R,
             plan->placement.head == HEAD_BY_ROWS         ? ", head shared by rows"
             : plan->placement.head == HEAD_BY_VOCABULARY ? ", head shared by vocabulary"
                                                          : "",
             drawn);
    y += PLAN_TITLE;
    for (int32_t r = first; r < first + num_drawn; r++) {
        if (R > 1) {
            put_text(p, MARGIN, y + 14, "b", "replica %d: ends at %s, idle %.1f %%", r,
                     TIME_TEXT(replica_end_ns(plan, r), 4), idle_percent(plan, r * P, P));
            y += PANEL_TITLE;
        }
        y += BOUND_LABEL;
        double bottom = y + P * row_height(plan);
        put_axis(p, y, bottom);
        for (int32_t s = 0; s < P; s++) { TRY(put_row(p, r * P + s, y + s * row_height(plan))); }
        if (p->bound_ns > 0) {
            double x = time_px(p, p->bound_ns);
            fprintf(p->out, "<path class=\"bound\" d=\"M%.2f %.1fV%.1f\"/>\n", x, y - 3, bottom);
            put_text(p, x, y - 9, "b m", "lower bound %s", TIME_TEXT(p->bound_ns, 4));
        }
        y = bottom + AXIS;
    }
    return STATUS_OK;
}

// --- the picture ------------------------------------------------------------------------------------------

// One time axis and one scale of memory for all plans.
static Status set_scales(Picture* p, const TimelinePlan* plans, int32_t num_plans) {
    int64_t peak_bytes = 0, limit_bytes = 0;
    p->plot = MIN_PLOT;
    p->longest_ns = p->bound_ns = plans[0].plan->bound_ns;
    for (int32_t k = 0; k < num_plans; k++) {
        const Plan* plan = p->plan = plans[k].plan;
        if (plan->makespan_ns > p->longest_ns) { p->longest_ns = plan->makespan_ns; }
        for (int32_t r = 0; r < plan->P * plan->R; r++) {
            MemoryCurve curve;
            double jobs_px = 0;
            for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
                jobs_px += plan_instr_is_job((InstrKind)plan->ranks[r].instrs[i].kind) ? PX_PER_JOB : 0;
            }
            p->plot = fmax(p->plot, fmin(jobs_px, MAX_PLOT));
            TRY(memory_curve_make(&curve, &plan->ranks[r], p->info->memory_rule, p->arena));
            if (curve.peak_bytes > peak_bytes) { peak_bytes = curve.peak_bytes; }
            if (limit_bytes_of(p, r) > limit_bytes) { limit_bytes = limit_bytes_of(p, r); }
        }
    }
    if (p->info->plot_px > 0) { p->plot = p->info->plot_px; }
    p->ns_px = p->plot / (double)(p->longest_ns > 0 ? p->longest_ns : 1);
    p->shows_limits = limit_bytes > 0 && (double)limit_bytes <= NEAR_LIMIT * (double)peak_bytes;
    p->byte_px =
        MEMORY /
        (1.06 * (double)(p->shows_limits && limit_bytes > peak_bytes ? limit_bytes : peak_bytes) + 1);
    return STATUS_OK;
}

static void put_legend(const Picture* p, double y, double width) {
    double x = MARGIN;
    fprintf(p->out, "<g id=\"legend\">\n");
    for (int32_t c = 0; c < NUM_KEYS; c++) {
        if (!p->is_drawn[c]) { continue; }
        if (x + 24 + keys[c].px > width) { x = MARGIN, y += LEGEND; }
        fprintf(p->out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"18\" height=\"%.1f\"/>\n",
                keys[c].css_class, x, y - keys[c].height / 2, keys[c].height);
        put_text(p, x + 24, y + 4, "", "%s", keys[c].word);
        x += 24 + keys[c].px + 18;
    }
    fprintf(p->out, "</g>\n");
}

static Status put_all(Picture* p, const TimelinePlan* plans, int32_t num_plans) {
    TRY(set_scales(p, plans, num_plans));
    double y = HEADER, width = LEFT + p->plot + RIGHT, height = HEADER + MARGIN + 2 * LEGEND;
    for (int32_t k = 0; k < num_plans; k++) { height += plan_height(plans[k].plan); }
    fprintf(p->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f "
            "%.0f\">\n"
            "<style>\n%s</style>\n<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" "
            "patternUnits=\"userSpaceOnUse\" "
            "patternTransform=\"rotate(45)\"><rect class=\"hatch\" width=\"6\" height=\"6\"/>"
            "<path class=\"line\" d=\"M0 0V6\" stroke-width=\"1.6\"/></pattern></defs>\n"
            "<rect class=\"page\" width=\"%.0f\" height=\"%.0f\"/>\n",
            width, height, width, height, STYLE, width, height);
    put_text(p, MARGIN, 40, "title", "%s", p->info->title);
    for (int32_t k = 0; k < num_plans; k++) {
        p->plan = plans[k].plan;
        TRY(put_plan(p, plans[k].name, y));
        y += plan_height(p->plan);
    }
    put_legend(p, y + LEGEND, width);
    fprintf(p->out, "</svg>\n");
    return STATUS_OK;
}

Status timeline_svg_print(FILE* out, const TimelinePlan* plans, int32_t num_plans, const TimelineInfo* info) {
    Arena arena = {0};
    Picture picture = {.out = out, .info = info, .arena = &arena};
    Status status = put_all(&picture, plans, num_plans);
    arena_free(&arena);
    return status;
}
