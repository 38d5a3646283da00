// timeline_svg.c -- see timeline_svg.h.
#include "timeline_svg.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "../dynapipe_plugin/plan/memory_layout.h"
#include "../dynapipe_plugin/plan/plan_message.h"
#include "../dynapipe_plugin/plan/plan_text.h"
#include "../util/program.h"

// Pixels, unless named otherwise.
static const double MARGIN = 28, LEFT = 132, RIGHT = 150, MIN_PLOT = 960, MAX_PLOT = 2600, PX_PER_JOB = 15;
static const double NUMBER_PX = 10, SMALL_NUMBER_PX = 8, DIGIT_EM = 0.64, MIN_OUTLINED = 3, NEAR_LIMIT = 1.4;
enum { ROOMY_STAGES = 8, MANY_ROWS = 12, TICK_PX = 90, SHADES = 3 };

// Okabe and Ito (jfly.uni-koeln.de/color), blue darkened a little. CIE lightness of wgt 89, fwd 70, rec 54,
// bwd 41 (46 on dark), so they differ without colour. Light theme first, then the changes for dark.
static const char STYLE[] =
    "text{font:12px 'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',sans-serif;fill:#1f2328}\n"
    ".page{fill:#fff}.title{font-size:20px;font-weight:600}.value{font-size:18px;font-weight:600}\n"
    ".b{font-weight:600}.q{fill:#656d76;font-size:11px}.e{text-anchor:end}.m{text-anchor:middle}\n"
    ".fwd{fill:#56b4e9}.bwd{fill:#00659e}.wgt{fill:#f0e442}.rec{fill:#d55e00}"
    ".hfwd{fill:#009e73}.hwgt{fill:#8fd3bd}\n"
    ".fwd.k1{fill:#9bd2f2}.bwd.k1{fill:#3f8fc0}.wgt.k1{fill:#f8f2a4}.rec.k1{fill:#e8905a}\n"
    ".fwd.k2{fill:#cfe8f8}.bwd.k2{fill:#79b4d8}.wgt.k2{fill:#fbf8d0}.rec.k2{fill:#f2bd9c}\n"
    ".job{stroke:#fff;stroke-width:.6}.thin{stroke:none}\n"
    ".act{fill:#009e73}.fact{fill:#e69f00}.grad{fill:#cc79a7}.idle{fill:url(#hatch)}\n"
    ".n{font-size:10px;text-anchor:middle;fill:#111;pointer-events:none}.small{font-size:8px}.on-dark{fill:#"
    "fff}\n"
    ".lane{fill:#f3f4f6}.mem{fill:#c3c9d1;stroke:#6b7480;stroke-width:.8}\n"
    ".limit{stroke:#d55e00;stroke-width:1.5;stroke-dasharray:6 3;fill:none}\n"
    ".bound{stroke:#1f2328;stroke-width:1.5;stroke-dasharray:5 3;fill:none}\n"
    ".grid{stroke:#e3e6ea;fill:none}.axis{stroke:#8c959f;fill:none}.hatch{fill:#fafafa}.line{stroke:#b6bdc6}"
    "\n"
    "@media (prefers-color-scheme:dark){\n"
    "text{fill:#e6edf3}.n{fill:#111}.n.on-dark{fill:#fff}.page{fill:#14181d}.q{fill:#9aa4af}.bwd{fill:#"
    "0072b2}\n"
    ".bwd.k1{fill:#3f8fc0}.bwd.k2{fill:#6aa9d0}.job{stroke:#14181d}.thin{stroke:none}\n"
    ".lane{fill:#1d232a}.mem{fill:#4b5663;stroke:#9aa4af}.bound{stroke:#e6edf3}\n"
    ".grid{stroke:#2a313a}.axis{stroke:#6e7681}.hatch{fill:#1a1f25}.line{stroke:#4b545e}}\n";

// The same for all rows of a picture.
typedef struct {
    FILE* out;
    const TimelineInfo* info;
    const Plan* plan;  // the plan being drawn
    double ns_px, plot;
    int64_t longest_ns, bound_ns, mem_top_bytes;
    double job_height, send_height, mem_height, row_gap;
    bool shows_limits;
    Arena* arena;
} Picture;

// --- elements ---------------------------------------------------------------------------------------------

// PRINTABLE: no control characters, valid UTF-8.
static void print_text(const Picture* p, double x, double y, const char* css_class, const char* text) {
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

// Opens a box; the caller writes the title and calls print_title_end().
static void print_box(const Picture* p, const char* css_class, int32_t rank, int64_t begin_ns, int64_t end_ns,
                      double y, double height) {
    fprintf(
        p->out,
        "<rect class=\"%s\" data-rank=\"%d\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"><title>",
        css_class, rank, time_px(p, begin_ns), y, (double)(end_ns - begin_ns) * p->ns_px, height);
}

static void print_title_end(const Picture* p, int64_t begin_ns, int64_t end_ns) {
    fprintf(p->out, ": %.6g to %.6g ms</title></rect>\n", (double)begin_ns / 1e6, (double)end_ns / 1e6);
}

static double tick_step(double span, int32_t max_ticks) {
    double least = span / (max_ticks > 0 ? max_ticks : 1), power = pow(10, floor(log10(least)));
    return power >= least       ? power
           : 2 * power >= least ? 2 * power
           : 5 * power >= least ? 5 * power
                                : 10 * power;
}

// --- plans ------------------------------------------------------------------------------------------------

static int64_t busy_ns(const PlanRank* rank) {
    int64_t sum_ns = 0;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (plan_instr_is_job((InstrKind)instr->kind)) { sum_ns += instr->end_ns - instr->begin_ns; }
    }
    return sum_ns;
}

static double idle_percent(const Plan* plan, int32_t first_rank, int32_t num_ranks) {
    double busy = 0, all_ns = (double)plan->makespan_ns * num_ranks;
    for (int32_t r = first_rank; r < first_rank + num_ranks; r++) {
        busy += (double)busy_ns(&plan->ranks[r]);
    }
    return all_ns > 0 ? 100 * (1 - busy / all_ns) : 0;
}

static int64_t replica_end_ns(const Plan* plan, int32_t replica) {
    int64_t end_ns = 0;
    for (int32_t r = replica * plan->P; r < (replica + 1) * plan->P; r++) {
        const PlanRank* rank = &plan->ranks[r];
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            if (rank->instrs[i].end_ns > end_ns) { end_ns = rank->instrs[i].end_ns; }
        }
    }
    return end_ns;
}

// The replicas to draw: all, or only the slowest.
static void drawn_replicas(const Plan* plan, int32_t* begin, int32_t* end) {
    *begin = 0, *end = plan->R;
    if (plan->P * plan->R <= TIMELINE_MAX_ROWS || plan->R == 1) { return; }
    for (int32_t r = 1; r < plan->R; r++) {
        if (replica_end_ns(plan, r) > replica_end_ns(plan, *begin)) { *begin = r; }
    }
    *end = *begin + 1;
}

static int32_t num_rows(const Plan* plan) {
    int32_t begin, end;
    drawn_replicas(plan, &begin, &end);
    return (end - begin) * plan->P;
}

static bool has_memory(const Plan* plan) {
    return num_rows(plan) <= MANY_ROWS;
}

// Bytes available for activations; 0: no limit.
static int64_t limit_bytes_of(const Picture* p, int32_t rank) {
    const int64_t* limits = p->info->memory_limit_bytes;
    int64_t limit_bytes = limits != NULL ? limits[rank] : plan_limit_bytes(p->plan, rank);
    int64_t left_bytes = limit_bytes - p->plan->ranks[rank].state_bytes;
    return limit_bytes == 0 ? 0 : left_bytes > 0 ? left_bytes : 1;
}

// --- a row ------------------------------------------------------------------------------------------------

// The chunk's number on its stage; -1: a head share.
static int32_t shade_of(const Placement* placement, const PlanInstr* job) {
    int32_t before = 0;
    if (job->chunk >= placement->num_chunks) { return -1; }
    for (int32_t k = 0; k < job->chunk; k++) {
        before += placement->stage_of[k] == placement->stage_of[job->chunk];
    }
    return before % SHADES;
}

static void print_job(const Picture* p, int32_t rank, const PlanInstr* job, double y) {
    const MbShape* shape = &p->plan->mbs[job->mb].shape;
    int32_t shade = shade_of(&p->plan->placement, job), num_digits = snprintf(NULL, 0, "%d", job->mb);
    double width = (double)(job->end_ns - job->begin_ns) * p->ns_px;
    char css_class[48], number[16];
    snprintf(css_class, sizeof css_class, "job %s%s%s%s", shade < 0 ? "h" : "", plan_instr_words[job->kind],
             shade == 1   ? " k1"
             : shade == 2 ? " k2"
                          : "",
             width < MIN_OUTLINED ? " thin" : "");
    print_box(p, css_class, rank, job->begin_ns, job->end_ns, y, p->job_height);
    fprintf(p->out, "%s mb %d", plan_instr_words[job->kind], job->mb);
    if (shade < 0) {
        fprintf(p->out, " head");
    } else if (p->plan->placement.num_chunks > p->plan->P) {
        fprintf(p->out, " chunk %d", job->chunk);
    }
    fprintf(p->out, ", %" PRId64 " seqs, %" PRId64 " tokens", shape->num_seqs,
            shape->enc_tokens + shape->dec_tokens);
    print_title_end(p, job->begin_ns, job->end_ns);
    double font = width >= num_digits * DIGIT_EM * NUMBER_PX + 1 ? NUMBER_PX : SMALL_NUMBER_PX;
    if (width < num_digits * DIGIT_EM * font + 1) { return; }
    bool dark = (job->kind == INSTR_BWD && shade < 2) || (shade < 0 && job->kind == INSTR_FWD);
    snprintf(number, sizeof number, "%d", job->mb);
    snprintf(css_class, sizeof css_class, "n%s%s", font < NUMBER_PX ? " small" : "", dark ? " on-dark" : "");
    print_text(p, time_px(p, job->begin_ns) + width / 2, y + p->job_height / 2 + 0.36 * font, css_class,
               number);
}

static void print_idle(const Picture* p, int32_t rank, int64_t begin_ns, int64_t end_ns, double y) {
    if (end_ns <= begin_ns) { return; }
    print_box(p, "idle", rank, begin_ns, end_ns, y, p->job_height);
    fprintf(p->out, "idle");
    print_title_end(p, begin_ns, end_ns);
}

static void print_events(const Picture* p, int32_t rank, double y) {
    const PlanRank* list = &p->plan->ranks[rank];
    int64_t now_ns = 0;
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        if (plan_instr_is_job((InstrKind)instr->kind)) {
            print_idle(p, rank, now_ns, instr->begin_ns, y);
            print_job(p, rank, instr, y);
            if (instr->end_ns > now_ns) { now_ns = instr->end_ns; }
        } else if (plan_instr_is_send(instr->kind)) {
            const char* css_class = instr->kind == INSTR_SEND_ACT    ? "act"
                                    : instr->kind == INSTR_SEND_GRAD ? "grad"
                                                                     : "fact";
            print_box(p, css_class, rank, instr->begin_ns, instr->end_ns, y + p->job_height + 2,
                      p->send_height);
            fprintf(p->out, "%s mb %d to stage %d", plan_instr_words[instr->kind], instr->mb,
                    instr->peer % p->plan->P);
            print_title_end(p, instr->begin_ns, instr->end_ns);
        }
    }
    print_idle(p, rank, now_ns, p->plan->makespan_ns, y);
}

static void print_memory(const Picture* p, int32_t rank, const MemoryCurve* curve, double top) {
    double bottom = top + p->mem_height, right = time_px(p, p->plan->makespan_ns);
    double byte_px = p->mem_height / (double)p->mem_top_bytes;
    int64_t limit_bytes = limit_bytes_of(p, rank);
    fprintf(p->out, "<rect class=\"lane\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>\n", LEFT,
            top, right - LEFT, p->mem_height);
    fprintf(p->out, "<path class=\"mem\" data-rank=\"%d\" d=\"M%.2f %.2f", rank, LEFT, bottom);
    for (int32_t i = 0; i < curve->num_steps; i++) {
        fprintf(p->out, "H%.2fV%.2f", time_px(p, curve->steps[i].begin_ns),
                bottom - (double)curve->steps[i].num_bytes * byte_px);
    }
    fprintf(p->out, "H%.2fV%.2fZ\"/>\n", right, bottom);
    if (p->shows_limits && limit_bytes > 0) {
        fprintf(p->out, "<path class=\"limit\" data-rank=\"%d\" d=\"M%.2f %.2fH%.2f\"/>\n", rank, LEFT,
                bottom - (double)limit_bytes * byte_px, right);
    }
}

// "layers 0-3, 12-15"; a count if there are many chunks; the share of the head.
static void name_pieces(char* out, size_t room, const Plan* plan, int32_t s) {
    const Placement* placement = &plan->placement;
    int32_t num_chunks = 0, num_layers = 0, used = 0;
    char names[96] = "";
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        int32_t begin = placement->chunks[k].layer_begin, end = placement->chunks[k].layer_end;
        if (placement->stage_of[k] != s) { continue; }
        num_layers += end - begin;
        if (++num_chunks > 2) { continue; }
        used += snprintf(names + used, sizeof names - (size_t)used, "%s", num_chunks > 1 ? ", " : "");
        used += end == begin ? snprintf(names + used, sizeof names - (size_t)used, "head")
                : end == begin + 1
                    ? snprintf(names + used, sizeof names - (size_t)used, "%d", begin)
                    : snprintf(names + used, sizeof names - (size_t)used, "%d-%d", begin, end - 1);
    }
    if (num_chunks > 2) {
        snprintf(out, room, "%d layers, %d chunks", num_layers, num_chunks);
    } else {
        snprintf(out, room, "%s%s", num_layers > 0 ? "layers " : "", names);
    }
}

static Status print_row(const Picture* p, int32_t rank, double y) {
    const Plan* plan = p->plan;
    MemoryCurve curve;
    char text[160];
    double right = time_px(p, plan->makespan_ns) + 12, mem_top = y + p->job_height + p->send_height + 4;
    int64_t limit_bytes = limit_bytes_of(p, rank);
    print_events(p, rank, y);
    snprintf(text, sizeof text, "stage %d", rank % plan->P);
    print_text(p, LEFT - 12, y + p->job_height / 2 + 4, "b e", text);
    snprintf(text, sizeof text, "idle %.1f %%", idle_percent(plan, rank, 1));
    print_text(p, right, y + p->job_height / 2 + 4, "", text);
    if (!has_memory(plan)) { return STATUS_OK; }
    TRY(memory_curve_make(&curve, &plan->ranks[rank], p->info->memory_rule, p->arena));
    print_memory(p, rank, &curve, mem_top);
    name_pieces(text, sizeof text, plan, rank % plan->P);
    print_text(p, LEFT - 12, mem_top + p->mem_height / 2, "q e", text);
    if (plan->placement.head != HEAD_WHOLE) {
        const int16_t* begin = &plan->placement.head_begin[rank % plan->P];
        snprintf(text, sizeof text, "%.0f %% of the head", 100.0 * (begin[1] - begin[0]) / HEAD_UNITS);
        print_text(p, LEFT - 12, mem_top + p->mem_height / 2 + 13, "q e", text);
    }
    snprintf(text, sizeof text, "%s%s%s", BYTES_TEXT(curve.peak_bytes), limit_bytes > 0 ? " of " : "",
             limit_bytes > 0 ? BYTES_TEXT(limit_bytes) : "");
    print_text(p, right, mem_top + p->mem_height / 2 + 4, "q", text);
    return STATUS_OK;
}

// --- a plan -----------------------------------------------------------------------------------------------

enum { HEADER = 92, LEGEND_LINE = 22, PLAN_TITLE = 58, PANEL_TITLE = 26, BOUND_LABEL = 20, AXIS = 30 };

static double row_height(const Picture* p, const Plan* plan) {
    return p->job_height + p->send_height + p->row_gap + 2 + (has_memory(plan) ? p->mem_height + 2 : 0);
}

static double plan_height(const Picture* p, const Plan* plan) {
    int32_t panels = num_rows(plan) / plan->P;
    return PLAN_TITLE + panels * ((plan->R > 1 ? PANEL_TITLE : 0) + BOUND_LABEL + AXIS) +
           num_rows(plan) * row_height(p, plan);
}

static void print_axes(const Picture* p, double top, double bottom) {
    double unit_ns = p->longest_ns >= 2000000000 ? 1e9 : p->longest_ns >= 2000000 ? 1e6 : 1e3;
    double step = tick_step((double)p->longest_ns / unit_ns, (int32_t)(p->plot / TICK_PX));
    char text[64];
    for (int32_t i = 0; i * step * unit_ns <= (double)p->longest_ns; i++) {
        double x = LEFT + i * step * unit_ns * p->ns_px;
        fprintf(p->out, "<path class=\"grid\" d=\"M%.2f %.1fV%.1f\"/>\n", x, top, bottom);
        snprintf(text, sizeof text, "%.10g", i * step);
        print_text(p, x, bottom + 18, "q m", text);
    }
    fprintf(p->out, "<path class=\"axis\" d=\"M%.2f %.1fh%.2f\"/>\n", LEFT, bottom, p->plot);
    snprintf(text, sizeof text, "time in %s", unit_ns == 1e9 ? "s" : unit_ns == 1e6 ? "ms" : "us");
    print_text(p, LEFT - 12, bottom + 18, "q e", text);
}

static Status print_panel(const Picture* p, int32_t replica, double y) {
    const Plan* plan = p->plan;
    double bottom = y + plan->P * row_height(p, plan);
    char text[96];
    print_axes(p, y, bottom);
    for (int32_t s = 0; s < plan->P; s++) {
        TRY(print_row(p, replica * plan->P + s, y + s * row_height(p, plan)));
    }
    if (p->bound_ns == 0) { return STATUS_OK; }
    snprintf(text, sizeof text, "lower bound %s", TIME_TEXT(p->bound_ns, 4));
    fprintf(p->out, "<path class=\"bound\" d=\"M%.2f %.1fV%.1f\"/>\n", time_px(p, p->bound_ns), y - 3,
            bottom);
    print_text(p, time_px(p, p->bound_ns), y - 9, "b m", text);
    return STATUS_OK;
}

static Status print_plan(const Picture* p, const char* name, double y) {
    const Plan* plan = p->plan;
    int32_t begin, end, R = plan->R;
    char text[320];
    drawn_replicas(plan, &begin, &end);
    snprintf(text, sizeof text, "%.100s: %s, idle %.1f %%", name, TIME_TEXT(plan->makespan_ns, 4),
             idle_percent(plan, 0, plan->P * R));
    print_text(p, MARGIN, y + 18, "value", text);
    snprintf(text, sizeof text,
             "batching %s, schedule %s: %d samples in %d microbatches on %d stages x %d replicas%s",
             plan->policy, plan->schedule, plan->N, plan->M, plan->P, R,
             plan->placement.head == HEAD_BY_ROWS         ? ", head shared by rows"
             : plan->placement.head == HEAD_BY_VOCABULARY ? ", head shared by vocabulary"
                                                          : "");
    if (end - begin < R) {
        size_t used = strlen(text);
        snprintf(text + used, sizeof text - used, "; drawn: replica %d, the slowest", begin);
    }
    print_text(p, MARGIN, y + 36, "q", text);
    y += PLAN_TITLE;
    for (int32_t r = begin; r < end; r++) {
        if (R > 1) {
            snprintf(text, sizeof text, "replica %d: ends at %s, idle %.1f %%", r,
                     TIME_TEXT(replica_end_ns(plan, r), 4), idle_percent(plan, r * plan->P, plan->P));
            print_text(p, MARGIN, y + 14, "b", text);
            y += PANEL_TITLE;
        }
        TRY(print_panel(p, r, y + BOUND_LABEL));
        y += BOUND_LABEL + plan->P * row_height(p, plan) + AXIS;
    }
    return STATUS_OK;
}

// --- the picture ------------------------------------------------------------------------------------------

// The legend explains everything that occurs in any plan.
static void print_legend(const Picture* p, const TimelinePlan* plans, int32_t num_plans, double y) {
    static const struct {
        const char *css_class, *word;
        double height, px;
    } keys[] = {{"fwd", "forward", 12, 45},
                {"bwd", "backward", 12, 55},
                {"wgt", "weight gradients", 12, 92},
                {"rec", "forward again", 12, 75},
                {"hfwd", "head", 12, 30},
                {"hwgt", "its weight gradients", 12, 108},
                {"fwd k1", "lighter: another chunk", 12, 122},
                {"idle", "idle", 12, 22},
                {"act", "sends activations", 4, 95},
                {"grad", "gradients", 4, 52},
                {"fact", "factors", 4, 40},
                {"mem", "memory held", 8, 70},
                {"limit", "its limit", 1, 45}};
    enum { NUM_KEYS = sizeof keys / sizeof keys[0] };
    bool occurs[NUM_KEYS] = {[7] = true, [12] = p->shows_limits};
    for (int32_t k = 0; k < num_plans; k++) {
        const Plan* plan = plans[k].plan;
        occurs[11] |= has_memory(plan);
        for (int32_t r = 0; r < plan->P * plan->R; r++) {
            for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
                const PlanInstr* instr = &plan->ranks[r].instrs[i];
                bool is_job = plan_instr_is_job((InstrKind)instr->kind);
                int32_t shade = is_job ? shade_of(&plan->placement, instr) : 0;
                if (is_job && shade < 0) { occurs[instr->kind == INSTR_FWD ? 4 : 5] = true; }
                for (int32_t c = 0; is_job && shade >= 0 && c < 4; c++) {
                    occurs[c] |= strcmp(keys[c].css_class, plan_instr_words[instr->kind]) == 0;
                }
                occurs[6] |= shade > 0;
                occurs[8] |= instr->kind == INSTR_SEND_ACT;
                occurs[9] |= instr->kind == INSTR_SEND_GRAD;
                occurs[10] |= instr->kind == INSTR_SEND_FACT;
            }
        }
    }
    double x = MARGIN;
    fprintf(p->out, "<g id=\"legend\">\n");
    for (int32_t c = 0; c < NUM_KEYS; c++) {
        if (!occurs[c]) { continue; }
        if (x + 24 + keys[c].px > LEFT + p->plot + RIGHT) { x = MARGIN, y += LEGEND_LINE; }
        if (c < 12) {
            fprintf(p->out, "<rect class=\"%s\" x=\"%.1f\" y=\"%.1f\" width=\"18\" height=\"%.0f\"/>\n",
                    keys[c].css_class, x, y - keys[c].height / 2, keys[c].height);
        } else {
            fprintf(p->out, "<path class=\"limit\" d=\"M%.1f %.1fh18\"/>\n", x, y);
        }
        print_text(p, x + 24, y + 4, "", keys[c].word);
        x += 24 + keys[c].px + 18;
    }
    fprintf(p->out, "</g>\n");
}

// Widths and heights common to all plans.
static Status picture_make(Picture* p, const TimelinePlan* plans, int32_t num_plans) {
    double plot = MIN_PLOT;
    int64_t peak_bytes = 0, largest_limit = 0, largest_near = 0;
    bool roomy = true;
    p->bound_ns = plans[0].plan->bound_ns;
    for (int32_t k = 0; k < num_plans; k++) {
        const Plan* plan = p->plan = plans[k].plan;
        roomy &= plan->P <= ROOMY_STAGES;
        if (plan->makespan_ns > p->longest_ns) { p->longest_ns = plan->makespan_ns; }
        for (int32_t r = 0; r < plan->P * plan->R; r++) {
            MemoryCurve curve;
            double jobs_px = 0;
            for (int32_t i = 0; i < plan->ranks[r].num_instrs; i++) {
                jobs_px += plan_instr_is_job((InstrKind)plan->ranks[r].instrs[i].kind) ? PX_PER_JOB : 0;
            }
            plot = fmax(plot, fmin(jobs_px, MAX_PLOT));
            TRY(memory_curve_make(&curve, &plan->ranks[r], p->info->memory_rule, p->arena));
            if (curve.peak_bytes > peak_bytes) { peak_bytes = curve.peak_bytes; }
            if (limit_bytes_of(p, r) > largest_limit) { largest_limit = limit_bytes_of(p, r); }
        }
    }
    p->plot = p->info->plot_px > 0 ? p->info->plot_px : plot;
    p->ns_px = p->plot / (double)(p->longest_ns > p->bound_ns ? p->longest_ns
                                  : p->bound_ns > 0           ? p->bound_ns
                                                              : 1);
    p->job_height = roomy ? 24 : 18, p->send_height = roomy ? 4 : 3, p->mem_height = roomy ? 26 : 18;
    p->row_gap = roomy ? 14 : 10;
    p->shows_limits = largest_limit > 0 && (double)largest_limit <= NEAR_LIMIT * (double)peak_bytes;
    largest_near = p->shows_limits && largest_limit > peak_bytes ? largest_limit : peak_bytes;
    p->mem_top_bytes = (int64_t)((double)largest_near * 1.06) + 1;
    return STATUS_OK;
}

static Status print_all(Picture* p, const TimelinePlan* plans, int32_t num_plans) {
    TRY(picture_make(p, plans, num_plans));
    double header = p->plot < MIN_PLOT ? HEADER + LEGEND_LINE : HEADER;
    double y = header, height = header + MARGIN / 2, width = LEFT + p->plot + RIGHT;
    for (int32_t k = 0; k < num_plans; k++) { height += plan_height(p, plans[k].plan); }
    fprintf(p->out,
            "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"%.0f\" height=\"%.0f\" viewBox=\"0 0 %.0f "
            "%.0f\">\n"
            "<style>\n%s</style>\n<defs><pattern id=\"hatch\" width=\"6\" height=\"6\" "
            "patternUnits=\"userSpaceOnUse\" "
            "patternTransform=\"rotate(45)\"><rect class=\"hatch\" width=\"6\" height=\"6\"/>"
            "<path class=\"line\" d=\"M0 0V6\" stroke-width=\"1.6\"/></pattern></defs>\n"
            "<rect class=\"page\" width=\"%.0f\" height=\"%.0f\"/>\n",
            width, height, width, height, STYLE, width, height);
    print_text(p, MARGIN, 40, "title", p->info->title);
    print_legend(p, plans, num_plans, 66);
    for (int32_t k = 0; k < num_plans; k++) {
        p->plan = plans[k].plan;
        TRY(print_plan(p, plans[k].name, y));
        y += plan_height(p, p->plan);
    }
    fprintf(p->out, "</svg>\n");
    return STATUS_OK;
}

Status timeline_svg_print(FILE* out, const TimelinePlan* plans, int32_t num_plans, const TimelineInfo* info) {
    Arena arena = {0};
    Picture picture = {.out = out, .info = info, .arena = &arena};
    Status status = print_all(&picture, plans, num_plans);
    arena_free(&arena);
    return status;
}
