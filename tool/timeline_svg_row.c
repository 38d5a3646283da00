#include "timeline_svg_row.h"

#include <inttypes.h>

#include "../util/program.h"
#include "../dynapipe_plugin/plan/lists/plan_message.h"
#include "../dynapipe_plugin/plan/lists/plan_words.h"

static const double NUMBER_PX = 10, SMALL_NUMBER_PX = 8, MIN_OUTLINED_PX = 3;

int64_t timeline_svg_busy_ns(const PlanRank* rank) {
    int64_t busy_ns = 0;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (plan_instr_is_job((InstrKind)instr->kind)) { busy_ns += instr->end_ns - instr->begin_ns; }
    }
    return busy_ns;
}

int64_t timeline_svg_limit_bytes(const TimelineSvg* svg, int32_t rank) {
    const int64_t* limits = svg->info->memory_limit_bytes;
    int64_t limit_bytes = limits != NULL ? limits[rank] : plan_limit_bytes(svg->plan, rank);
    int64_t left_bytes = limit_bytes - svg->plan->ranks[rank].state_bytes;
    return limit_bytes == 0 ? 0 : left_bytes > 0 ? left_bytes : 1;
}

double timeline_svg_row_height(const TimelineSvg* svg, int32_t rank) {
    double memory = svg->has_memory[rank] ? svg->mem_height + svg->lane_gap : 0;
    return svg->job_height + svg->send_height + memory + svg->lane_gap + svg->row_gap;
}

static double to_unit(const TimelineSvg* svg, int64_t ns) {
    return (double)ns / svg->unit_ns;
}

static void print_box(const TimelineSvg* svg, int64_t begin_ns, int64_t end_ns, double y, double height) {
    double x = svg_scale_px(&svg->time, (double)begin_ns);
    fprintf(svg->out, "<rect x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"", x, y,
            (double)(end_ns - begin_ns) * svg->time.px_per_value, height);
}

static void print_span(const TimelineSvg* svg, int64_t begin_ns, int64_t end_ns) {
    fprintf(svg->out, "%.*f to %.*f %s", svg->decimals, to_unit(svg, begin_ns), svg->decimals,
            to_unit(svg, end_ns), svg->unit);
}

// --- jobs ------------------------------------------------------------------------------------------------

// A group of boxes that share a class.
static void open_group(const TimelineSvg* svg, const char* css_class, int32_t rank) {
    fprintf(svg->out, "<g class=\"%s\" data-rank=\"%d\">\n", css_class, rank);
}

// Boxes of one look: kind of job, chunk of its stage or share of the head, thin or outlined.
typedef struct {
    InstrKind kind;
    int32_t shade;  // -1: a share
    bool thin;      // of less than MIN_OUTLINED_PX: an outline would leave nothing of it
} Look;

static int32_t shade_of(const TimelineSvg* svg, const PlanInstr* job) {
    const Placement* placement = &svg->plan->placement;
    int32_t before = 0;
    if (job->chunk >= placement->num_chunks) { return -1; }
    for (int32_t k = 0; k < job->chunk; k++) {
        before += placement->stage_of[k] == placement->stage_of[job->chunk];
    }
    return before % TIMELINE_SVG_SHADES;
}

static bool has_look(const TimelineSvg* svg, const PlanInstr* instr, const Look* look) {
    double width_px = (double)(instr->end_ns - instr->begin_ns) * svg->time.px_per_value;
    return instr->kind == look->kind && (width_px < MIN_OUTLINED_PX) == look->thin &&
           shade_of(svg, instr) == look->shade;
}

static void open_jobs(const TimelineSvg* svg, const Look* look, int32_t rank) {
    fprintf(svg->out, "<g class=\"%s%s", look->shade < 0 ? "h" : "", plan_instr_words[look->kind]);
    if (look->shade > 0) { fprintf(svg->out, " k%d", look->shade); }
    fprintf(svg->out, "%s\" data-rank=\"%d\">\n", look->thin ? " thin" : "", rank);
}

// "fwd mb 3", and which piece of its stage's.
static void print_words(const TimelineSvg* svg, const PlanInstr* instr) {
    fprintf(svg->out, "%s mb %d", plan_instr_words[instr->kind], instr->mb);
    if (instr->chunk >= svg->plan->placement.num_chunks) {
        fprintf(svg->out, " head");
    } else if (svg->shades || svg->shares) {
        fprintf(svg->out, " chunk %d", instr->chunk);
    }
}

static void print_jobs(const TimelineSvg* svg, int32_t rank, const Look* look, double y) {
    const PlanRank* list = &svg->plan->ranks[rank];
    bool any = false;
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        if (!has_look(svg, instr, look)) { continue; }
        if (!any) { open_jobs(svg, look, rank); }
        any = true;
        const MbShape* shape = &svg->plan->mbs[instr->mb].shape;
        print_box(svg, instr->begin_ns, instr->end_ns, y, svg->job_height);
        fprintf(svg->out, "><title>");
        print_words(svg, instr);
        fprintf(svg->out, ": ");
        print_span(svg, instr->begin_ns, instr->end_ns);
        fprintf(svg->out, ", %" PRId64 " seqs, %" PRId64 " tokens</title></rect>\n", shape->num_seqs,
                shape->enc_tokens + shape->dec_tokens);
    }
    if (any) { fprintf(svg->out, "</g>\n"); }
}

// Where a number of this width stands: in the middle of its box, or of the larger part that the bound's line
// leaves.
static double number_middle(const TimelineSvg* svg, const PlanInstr* instr, double number_px) {
    double left = svg_scale_px(&svg->time, (double)instr->begin_ns);
    double right = svg_scale_px(&svg->time, (double)instr->end_ns), middle = (left + right) / 2;
    double line = svg_scale_px(&svg->time, (double)svg->bound_ns), from_line = line - middle;
    if (!svg->shows_bound || from_line > number_px / 2 + 1 || from_line < -number_px / 2 - 1) {
        return middle;
    }
    double begin = line - left > right - line ? left : line, end = begin > left ? right : line;
    return end - begin >= number_px + 2 ? (begin + end) / 2 : middle;
}

// Micro-batch numbers of this kind that fit into their boxes at this font size, but not at the next larger
// one.
static void print_numbers(const TimelineSvg* svg, const PlanRank* list, InstrKind kind, bool of_share,
                          double y, double font_px, double larger_px) {
    bool any = false;
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        if (instr->kind != kind || (shade_of(svg, instr) < 0) != of_share) { continue; }
        int32_t num_digits = snprintf(NULL, 0, "%d", instr->mb);
        double width_px = (double)(instr->end_ns - instr->begin_ns) * svg->time.px_per_value;
        if (width_px < svg_digits_px(num_digits, font_px) + 1) { continue; }
        if (larger_px > 0 && width_px >= svg_digits_px(num_digits, larger_px) + 1) { continue; }
        if (!any) {
            fprintf(svg->out, "<g class=\"n%s n-%s%s\">\n", larger_px > 0 ? " small" : "",
                    of_share ? "h" : "", plan_instr_words[kind]);
        }
        any = true;
        fprintf(svg->out, "<text x=\"%.1f\" y=\"%.1f\">%d</text>\n",
                number_middle(svg, instr, svg_digits_px(num_digits, font_px)),
                y + svg->job_height / 2 + 0.36 * font_px, instr->mb);
    }
    if (any) { fprintf(svg->out, "</g>\n"); }
}

static void print_idle(const TimelineSvg* svg, int32_t rank, double y) {
    const PlanRank* list = &svg->plan->ranks[rank];
    int64_t now_ns = 0;
    open_group(svg, "idle", rank);
    for (int32_t i = 0; i <= list->num_instrs; i++) {
        bool at_end = i == list->num_instrs;
        if (!at_end && !plan_instr_is_job((InstrKind)list->instrs[i].kind)) { continue; }
        int64_t until_ns = at_end ? svg->plan->makespan_ns : list->instrs[i].begin_ns;
        if (until_ns > now_ns) {
            print_box(svg, now_ns, until_ns, y, svg->job_height);
            fprintf(svg->out, "><title>%s: ", at_end && now_ns > 0 ? "nothing left to compute" : "waiting");
            print_span(svg, now_ns, until_ns);
            fprintf(svg->out, "</title></rect>\n");
        }
        if (!at_end && list->instrs[i].end_ns > now_ns) { now_ns = list->instrs[i].end_ns; }
    }
    fprintf(svg->out, "</g>\n");
}

static void print_sends(const TimelineSvg* svg, int32_t rank, InstrKind kind, const char* css_class,
                        double y) {
    const PlanRank* list = &svg->plan->ranks[rank];
    bool any = false;
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        if (instr->kind != kind) { continue; }
        if (!any) { open_group(svg, css_class, rank); }
        any = true;
        print_box(svg, instr->begin_ns, instr->end_ns, y, svg->send_height);
        fprintf(svg->out, "><title>");
        print_words(svg, instr);
        fprintf(svg->out, " to stage %d: ", instr->peer % svg->plan->P);
        print_span(svg, instr->begin_ns, instr->end_ns);
        fprintf(svg->out, "</title></rect>\n");
    }
    if (any) { fprintf(svg->out, "</g>\n"); }
}

// --- memory ----------------------------------------------------------------------------------------------

static double mem_y(const TimelineSvg* svg, int64_t num_bytes, double bottom) {
    return bottom - svg->mem_height * (double)num_bytes / (double)svg->mem_top_bytes;
}

static void print_memory_title(const TimelineSvg* svg, int32_t rank, const MemoryCurve* curve) {
    const PlanRank* list = &svg->plan->ranks[rank];
    int64_t limit_bytes = timeline_svg_limit_bytes(svg, rank);
    char peak[SVG_NUMBER_BYTES], arena[SVG_NUMBER_BYTES], state[SVG_NUMBER_BYTES], limit[SVG_NUMBER_BYTES];
    fprintf(svg->out, "<title>stage %d: at most %s alive, arena of %s; besides %s of model state",
            rank % svg->plan->P, bytes_text(peak, (double)curve->peak_bytes),
            bytes_text(arena, (double)list->arena_bytes), bytes_text(state, (double)list->state_bytes));
    if (limit_bytes > 0) { fprintf(svg->out, "; %s may be used", bytes_text(limit, (double)limit_bytes)); }
    fprintf(svg->out, "</title>");
}

static void print_memory(const TimelineSvg* svg, int32_t rank, const MemoryCurve* curve, double top) {
    double bottom = top + svg->mem_height, left = svg_scale_px(&svg->time, 0);
    double right = svg_scale_px(&svg->time, (double)svg->plan->makespan_ns);
    fprintf(svg->out, "<rect class=\"lane\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.1f\"/>\n", left,
            top, right - left, svg->mem_height);
    fprintf(svg->out, "<path class=\"mem\" data-rank=\"%d\" d=\"M%.2f %.2f", rank, left, bottom);
    for (int32_t i = 0; i < curve->num_steps; i++) {
        fprintf(svg->out, "H%.2fV%.2f", svg_scale_px(&svg->time, (double)curve->steps[i].begin_ns),
                mem_y(svg, curve->steps[i].num_bytes, bottom));
    }
    fprintf(svg->out, "H%.2fV%.2fZ\">", right, bottom);
    print_memory_title(svg, rank, curve);
    fprintf(svg->out, "</path>\n");
    int64_t limit_bytes = timeline_svg_limit_bytes(svg, rank);
    if (svg->limits && limit_bytes > 0) {
        double y = mem_y(svg, limit_bytes, bottom);
        fprintf(svg->out, "<path class=\"limit\" data-rank=\"%d\" d=\"M%.2f %.2fH%.2f\"/>\n", rank, left, y,
                right);
    }
    fprintf(svg->out, "<circle class=\"peak\" cx=\"%.2f\" cy=\"%.2f\" r=\"2\"/>\n",
            svg_scale_px(&svg->time, (double)curve->peak_ns), mem_y(svg, curve->peak_bytes, bottom));
}

// --- the row ---------------------------------------------------------------------------------------------

static int32_t append_layers(char* out, size_t room, const LayerRange* layers, const char* before) {
    int32_t begin = layers->layer_begin, last = layers->layer_end - 1;
    if (last < begin) { return snprintf(out, room, "%shead", before); }
    if (last == begin) { return snprintf(out, room, "%s%d", before, begin); }
    return snprintf(out, room, "%s%d\xe2\x80\x93%d", before, begin, last);
}

// "layers 0-3, 12-15"; of many chunks how many.
static void name_layers(char* out, size_t room, const Plan* plan, int32_t s) {
    enum { MOST_NAMED = 2 };
    const Placement* placement = &plan->placement;
    char names[64] = "";
    int32_t num_chunks = 0, num_layers = 0, used = 0;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        const LayerRange* layers = &placement->chunks[k];
        if (placement->stage_of[k] != s) { continue; }
        num_chunks++;
        num_layers += layers->layer_end - layers->layer_begin;
        if (num_chunks > MOST_NAMED) { continue; }
        const char* before = num_chunks > 1 ? ", " : "";
        used += append_layers(names + used, sizeof names - (size_t)used, layers, before);
    }
    if (num_chunks > MOST_NAMED) {
        snprintf(out, room, "%d layers, %d chunks", num_layers, num_chunks);
    } else if (num_layers > 0) {
        snprintf(out, room, "layer%s %s", num_layers == 1 ? "" : "s", names);
    } else {
        snprintf(out, room, "%s", num_chunks > 0 ? names : "no layers");
    }
}

static void print_pieces(const TimelineSvg* svg, int32_t s, double left, double y) {
    const Placement* placement = &svg->plan->placement;
    char text[128];
    name_layers(text, sizeof text, svg->plan, s);
    svg_print_text(svg->out, left, svg->shares ? y - 6 : y, "end", "q", text);
    if (!svg->shares) { return; }
    int32_t units = placement->head_begin[s + 1] - placement->head_begin[s];
    snprintf(text, sizeof text, "%.0f %% of the head", 100.0 * units / HEAD_UNITS);
    svg_print_text(svg->out, left, y + 7, "end", "q", text);
}

// Left: which stage, what it has. Right: how idle, how much memory.
static void print_labels(const TimelineSvg* svg, int32_t rank, const MemoryCurve* curve, double y) {
    const Plan* plan = svg->plan;
    double left = svg_scale_px(&svg->time, 0) - 12;
    double right = svg_scale_px(&svg->time, (double)svg->plan->makespan_ns) + 12;
    double mem_top = y + svg->job_height + svg->send_height + 2 * svg->lane_gap;
    double job_y = y + svg->job_height / 2 + 4, mem_mid_y = mem_top + svg->mem_height / 2 + 4;
    bool has_room = svg->has_memory[rank];  // for a second line
    char text[128], number[SVG_NUMBER_BYTES];
    snprintf(text, sizeof text, "stage %d", rank % plan->P);
    svg_print_text(svg->out, left, job_y, "end", "b", text);
    if (has_room) { print_pieces(svg, rank % plan->P, left, mem_mid_y); }
    int64_t idle_ns = plan->makespan_ns - timeline_svg_busy_ns(&plan->ranks[rank]);
    double percent = plan->makespan_ns > 0 ? 100.0 * (double)idle_ns / (double)plan->makespan_ns : 0;
    snprintf(text, sizeof text, "idle %.1f %%", percent);
    svg_print_text(svg->out, right, job_y, "start", NULL, text);
    if (!has_room) { return; }
    int32_t used = snprintf(text, sizeof text, "%s", bytes_text(number, (double)curve->peak_bytes));
    int64_t limit_bytes = timeline_svg_limit_bytes(svg, rank);
    if (limit_bytes > 0) {
        snprintf(text + used, sizeof text - (size_t)used, " of %s", bytes_text(number, (double)limit_bytes));
    }
    svg_print_text(svg->out, right, mem_mid_y, "start", "q", text);
}

Status timeline_svg_row_print(const TimelineSvg* svg, int32_t rank, double y) {
    const PlanRank* list = &svg->plan->ranks[rank];
    static const InstrKind kinds[] = {INSTR_FWD, INSTR_BWD, INSTR_WGT, INSTR_REC};
    MemoryCurve curve;
    TRY(memory_curve_make(&curve, list, svg->info->memory_rule, svg->arena));
    double send_y = y + svg->job_height + svg->lane_gap;
    print_idle(svg, rank, y);
    for (int32_t i = 0; i < 4 * (TIMELINE_SVG_SHADES + 1); i++) {
        Look look = {.kind = kinds[i % 4], .shade = i / 4 - 1};
        print_jobs(svg, rank, &look, y);
        look.thin = true;
        print_jobs(svg, rank, &look, y);
    }
    for (int32_t i = 0; i < 8; i++) {
        print_numbers(svg, list, kinds[i / 2], i % 2, y, NUMBER_PX, 0);
        print_numbers(svg, list, kinds[i / 2], i % 2, y, SMALL_NUMBER_PX, NUMBER_PX);
    }
    print_sends(svg, rank, INSTR_SEND_ACT, "act", send_y);
    print_sends(svg, rank, INSTR_SEND_GRAD, "grad", send_y);
    print_sends(svg, rank, INSTR_SEND_FACT, "fact", send_y);
    if (svg->has_memory[rank]) { print_memory(svg, rank, &curve, send_y + svg->send_height + svg->lane_gap); }
    print_labels(svg, rank, &curve, y);
    return STATUS_OK;
}
