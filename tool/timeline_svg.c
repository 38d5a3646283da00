#include "timeline_svg.h"

#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "../dynapipe_plugin/plan/plan_message.h"
#include "../dynapipe_plugin/plan/plan_text.h"
#include "../util/files.h"
#include "../util/program.h"

// The widest digits of common sans-serif fonts (DejaVu Sans) are 0.636 em.
static const double DIGIT_EM = 0.64;

SvgScale svg_scale(double first, double last, double begin_px, double end_px) {
    double span = last > first ? last - first : 1;
    return (SvgScale){.origin_px = begin_px, .first = first, .px_per_value = (end_px - begin_px) / span};
}

double svg_scale_px(const SvgScale* scale, double value) {
    return scale->origin_px + (value - scale->first) * scale->px_per_value;
}

// Bytes of the UTF-8 character at `text`; 0 where there is none that XML allows.
static int32_t utf8_length(const unsigned char* text) {
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    if (text[0] < 0x80) { return text[0] >= 0x20 && text[0] != 0x7f ? 1 : 0; }
    int32_t length = text[0] >= 0xf5   ? 0
                     : text[0] >= 0xf0 ? 4
                     : text[0] >= 0xe0 ? 3
                     : text[0] >= 0xc2 ? 2
                                       : 0;
    uint32_t code = length > 0 ? text[0] & (0xffu >> (length + 1)) : 0;
    for (int32_t i = 1; i < length; i++) {
        if ((text[i] & 0xc0) != 0x80) { return 0; }
        code = code << 6 | (text[i] & 0x3f);
    }
    bool surrogate = code >= 0xd800 && code <= 0xdfff, control = code < 0xa0;
    bool odd = surrogate || control || code == 0xfffe || code == 0xffff || code > 0x10ffff;
    return length > 0 && code >= least[length] && !odd ? length : 0;
}

void svg_print_escaped(FILE* out, const char* text) {
    for (const unsigned char* at = (const unsigned char*)text; *at != '\0';) {
        int32_t length = utf8_length(at);
        switch (*at) {
            case '&': fputs("&amp;", out); break;
            case '<': fputs("&lt;", out); break;
            case '>': fputs("&gt;", out); break;
            case '"': fputs("&quot;", out); break;
            case '\'': fputs("&#39;", out); break;
            default:
                if (length > 0) {
                    fwrite(at, 1, (size_t)length, out);
                } else {
                    fputs("\xef\xbf\xbd", out);
                }
        }
        at += length > 0 ? length : 1;
    }
}

void svg_print_text(FILE* out, double x, double y, const char* anchor, const char* css_class,
                    const char* text) {
    fprintf(out, "<text x=\"%.2f\" y=\"%.2f\"", x, y);
    if (strcmp(anchor, "start") != 0) { fprintf(out, " text-anchor=\"%s\"", anchor); }
    if (css_class != NULL) { fprintf(out, " class=\"%s\"", css_class); }
    fputc('>', out);
    svg_print_escaped(out, text);
    fputs("</text>\n", out);
}

double svg_tick_step(double span, int32_t max_ticks) {
    if (!(span > 0) || isinf(span)) { return 1; }
    double least = span / (max_ticks > 0 ? max_ticks : 1);
    double power = pow(10, floor(log10(least)));
    if (!(power > 0)) { return span; }
    static const double factors[] = {1, 2, 5, 10};
    for (int32_t i = 0; i < 4; i++) {
        // the allowance is for a span that is a round number of steps but for its last bits
        if (factors[i] * power >= least * (1 - 1e-9)) { return factors[i] * power; }
    }
    return 10 * power;
}

int32_t svg_tick_decimals(double step) {
    int32_t decimals = (int32_t)ceil(-log10(step) - 1e-9);
    return decimals < 0 ? 0 : decimals > 12 ? 12 : decimals;
}

const char* svg_time_unit(int64_t span_ns, double* out_ns) {
    static const char* const names[] = {"ns", "us", "ms", "s"};
    int32_t unit = 0;
    for (*out_ns = 1; unit < 3 && (double)span_ns >= 2000 * *out_ns; unit++) { *out_ns *= 1000; }
    return names[unit];
}

static void format_scaled(char* out, double value, const char* unit) {
    double size = fabs(value);
    int decimals = size >= 100 || size == 0 ? 0 : size >= 10 ? 1 : 2;
    snprintf(out, SVG_NUMBER_BYTES, "%.*f %s", decimals, value, unit);
}

const char* svg_format_time(char* out, double ns) {
    double unit_ns;
    const char* unit = svg_time_unit(fabs(ns) < 9e18 ? (int64_t)fabs(ns) : INT64_MAX, &unit_ns);
    format_scaled(out, ns / unit_ns, unit);
    return out;
}

const char* svg_format_count(char* out, double value) {
    double size = fabs(value);
    if (size >= 1e9 || (size < 1e-3 && size > 0)) {
        snprintf(out, SVG_NUMBER_BYTES, "%.3g", value);
    } else if (size >= 10000) {  // groups of three
        char digits[SVG_NUMBER_BYTES];
        int length = snprintf(digits, sizeof digits, "%.0f", size), used = 0;
        if (value < 0) { out[used++] = '-'; }
        for (int i = 0; i < length; i++) {
            out[used++] = digits[i];
            if ((length - i) % 3 == 1 && i + 1 < length) { out[used++] = ' '; }
        }
        out[used] = '\0';
    } else {
        snprintf(out, SVG_NUMBER_BYTES, "%.4g", value);
    }
    return out;
}

double svg_digits_px(int32_t num_chars, double font_px) {
    return num_chars * font_px * DIGIT_EM;
}

// About how wide ASCII text is in a sans-serif font, for things that stand in a line.
static double svg_text_px(const char* text, double font_px) {
    double em = 0;
    for (; *text != '\0'; text++) {
        em += strchr("ijl.,:|'", *text) != NULL    ? 0.3
              : strchr("frtI ()-/", *text) != NULL ? 0.4
              : strchr("mwMW%", *text) != NULL     ? 0.92
                                                   : 0.62;
    }
    return em * font_px;
}

Status svg_write_file(const char* path, const char* text, size_t num_bytes) {
    if (strcmp(path, "-") == 0) {
        fwrite(text, 1, num_bytes, stdout);  // whether it arrives, main() finds out
        return STATUS_OK;
    }
    FileWriter writer;
    TRY(file_writer_open(&writer, path));
    file_writer_write(&writer, text, num_bytes);
    return file_writer_commit(&writer);
}

// --- timeline_svg_row --------------------

static const double NUMBER_PX = 10, SMALL_NUMBER_PX = 8, MIN_OUTLINED_PX = 3;

// Time in which a rank computes.
static int64_t timeline_svg_busy_ns(const PlanRank* rank) {
    int64_t busy_ns = 0;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (plan_instr_is_job((InstrKind)instr->kind)) { busy_ns += instr->end_ns - instr->begin_ns; }
    }
    return busy_ns;
}

// Bytes that are left for activations on stage s; 0: no limit.
static int64_t timeline_svg_limit_bytes(const TimelineSvg* svg, int32_t rank) {
    const int64_t* limits = svg->info->memory_limit_bytes;
    int64_t limit_bytes = limits != NULL ? limits[rank] : plan_limit_bytes(svg->plan, rank);
    int64_t left_bytes = limit_bytes - svg->plan->ranks[rank].state_bytes;
    return limit_bytes == 0 ? 0 : left_bytes > 0 ? left_bytes : 1;
}

static double timeline_svg_row_height(const TimelineSvg* svg, int32_t rank) {
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

// `first_mb` is the replica's first in Plan.mbs; boxes are numbered as in Plan.mbs. y: top of the row.
static Status timeline_svg_row_print(const TimelineSvg* svg, int32_t rank, double y) {
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

// --- timeline_svg_header --------------------

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

static double timeline_svg_header_height(const TimelineSvg* svg, bool several) {
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

// A plan's name, time and what it is, from y on.
static void timeline_svg_print_plan_title(const TimelineSvg* svg, const char* name, double idle_percent,
                                          double y) {
    char text[256], number[SVG_NUMBER_BYTES];
    describe(text, sizeof text, svg->plan);
    char title[160];
    snprintf(title, sizeof title, "%s%s%s, idle %.1f %%", name != NULL ? name : "", name != NULL ? ": " : "",
             svg_format_time(number, (double)svg->plan->makespan_ns), idle_percent);
    svg_print_text(svg->out, TIMELINE_SVG_MARGIN, y + 18, "start", "value", title);
    svg_print_text(svg->out, TIMELINE_SVG_MARGIN, y + 36, "start", "q", text);
}

// `all`: with whatever occurs in any plan, for the legend. figures NULL: of several plans, which have titles.
static void timeline_svg_print_header(const TimelineSvg* all, const TimelineSvgFigures* figures) {
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

// --- timeline_svg --------------------

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
