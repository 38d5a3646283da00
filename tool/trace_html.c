#include "trace_html.h"

#include "svg.h"

// Pixels.
static const double WIDTH = 1180, LEFT = 64, RIGHT = 8, ROW = 26, BOX = 18, AXIS = 24;

typedef struct {
    FILE* out;
    const TraceReplay* replay;
    SvgScale x;
} Picture;

static double percent(int64_t ns, int64_t of_ns) {
    return of_ns > 0 ? 100 * (double)ns / (double)of_ns : 0;
}

static double row_px(int32_t rank) {
    return 4 + rank * ROW;
}

// --- the timeline ------------------------------------------------------------------------------------------

// Which of its rank's chunks; nothing where each has one.
static void print_piece(const Picture* picture, const TraceNode* node) {
    const Placement* placement = &picture->replay->file.placement;
    if (node->job >= TRACE_JOB_HEAD) {
        fprintf(picture->out, " head");
    } else if (placement->num_chunks > picture->replay->file.P || placement->head != HEAD_WHOLE) {
        fprintf(picture->out, " chunk %d", node->row);
    }
}

static void print_job(const Picture* picture, int32_t n, bool on_path) {
    const TraceNode* node = &picture->replay->graph.nodes[n];
    char took[SVG_NUMBER_BYTES], planned[SVG_NUMBER_BYTES];
    double begin = svg_scale_px(&picture->x, (double)(node->end_ns - node->ns));
    double width = svg_scale_px(&picture->x, (double)node->end_ns) - begin;
    fprintf(picture->out,
            "<rect class=\"j%d%s\" x=\"%.2f\" y=\"%.1f\" width=\"%.2f\" height=\"%.0f\"><title>", node->job,
            on_path ? " on" : "", begin, row_px(node->rank), width > 0.4 ? width : 0.4, BOX);
    fprintf(picture->out, "%s mb %d", trace_kind_text(node->event_kind), node->mb);
    print_piece(picture, node);
    fprintf(picture->out, ": %s", svg_format_time(took, (double)node->ns));
    if (node->planned_ns >= 0) {
        fprintf(picture->out, ", planned %s", svg_format_time(planned, (double)node->planned_ns));
    }
    fprintf(picture->out, "%s</title></rect>\n", on_path ? ", on the critical path" : "");
}

// Jobs off the path first, so that those on it stand out where boxes are thin.
static void print_jobs(const Picture* picture) {
    const TraceReplay* replay = picture->replay;
    for (int32_t n = 1; n < replay->graph.num_nodes; n++) {
        const TraceNode* node = &replay->graph.nodes[n];
        if (node->kind == NODE_JOB) { print_job(picture, n, false); }
    }
    for (int32_t k = 0; k < replay->path.num_nodes; k++) {
        if (replay->graph.nodes[replay->path.nodes[k]].kind == NODE_JOB) {
            print_job(picture, replay->path.nodes[k], true);
        }
    }
}

// Where the path goes from one rank to another.
static void print_hops(const Picture* picture) {
    const TraceGraph* graph = &picture->replay->graph;
    const TracePath* path = &picture->replay->path;
    const TraceNode* last = NULL;
    for (int32_t k = 0; k < path->num_nodes; k++) {
        const TraceNode* node = &graph->nodes[path->nodes[k]];
        if (node->kind != NODE_JOB) { continue; }
        if (last != NULL && last->rank != node->rank) {
            fprintf(picture->out, "<path class=\"hop\" d=\"M%.2f %.1fL%.2f %.1f\"/>\n",
                    svg_scale_px(&picture->x, (double)last->end_ns), row_px(last->rank) + BOX / 2,
                    svg_scale_px(&picture->x, (double)(node->end_ns - node->ns)),
                    row_px(node->rank) + BOX / 2);
        }
        last = node;
    }
}

static void print_axis(const Picture* picture, double height) {
    double unit_ns, span_ns = (double)picture->replay->path.makespan_ns;
    const char* unit = svg_time_unit((int64_t)span_ns, &unit_ns);
    double tick = svg_tick_step(span_ns / unit_ns, 10);
    for (int32_t i = 0; i <= 20 && i * tick * unit_ns <= span_ns; i++) {
        char text[SVG_NUMBER_BYTES];
        double x = svg_scale_px(&picture->x, i * tick * unit_ns);
        fprintf(picture->out, "<path class=\"grid\" d=\"M%.1f 0V%.0f\"/>\n", x, height - AXIS);
        snprintf(text, sizeof text, "%.*f%s%s", svg_tick_decimals(tick), i * tick, i == 0 ? " " : "",
                 i == 0 ? unit : "");
        svg_print_text(picture->out, x, height - 8, i == 0 ? "start" : "middle", NULL, text);
    }
}

static void print_timeline(FILE* out, const TraceReplay* replay) {
    double height = 8 + replay->graph.num_ranks * ROW + AXIS;
    Picture picture = {out, replay, svg_scale(0, (double)replay->path.makespan_ns, LEFT, WIDTH - RIGHT)};
    fprintf(out,
            "<figure><figcaption><b>Measured</b> <span class=\"q\">the critical path in full colour</span>"
            " <span class=\"k k0\">forward</span> <span class=\"k k1\">backward</span>"
            " <span class=\"k k3\">weight gradients</span>%s</figcaption>\n"
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"steps\" viewBox=\"0 0 %.0f %.0f\">\n",
            replay->file.placement.head == HEAD_WHOLE
                ? ""
                : " <span class=\"k k4\">head</span> <span class=\"k k5\">its weight gradients</span>",
            WIDTH, height);
    print_axis(&picture, height);
    for (int32_t r = 0; r < replay->graph.num_ranks; r++) {
        char name[32];
        snprintf(name, sizeof name, "rank %d", r);
        svg_print_text(out, LEFT - 8, row_px(r) + BOX - 5, "end", NULL, name);
    }
    print_jobs(&picture);
    print_hops(&picture);
    fprintf(out, "</svg></figure>\n");
}

// --- tables ------------------------------------------------------------------------------------------------

static void print_path(FILE* out, const TraceReplay* replay) {
    char time[SVG_NUMBER_BYTES];
    fprintf(out, "<table><tr><th>critical path</th><th>time</th><th>share</th></tr>\n");
    for (int32_t part = 0; part < TRACE_NUM_PARTS; part++) {
        int64_t ns;
        const char* name = trace_replay_part(replay, part, &ns);
        if (ns == 0) { continue; }
        fprintf(out, "<tr><td>%s</td><td>%s</td><td>%.1f %%</td></tr>\n", name,
                svg_format_time(time, (double)ns), percent(ns, replay->path.makespan_ns));
    }
    for (int32_t r = 0; r < replay->graph.num_ranks; r++) {
        int64_t ns = replay->path.rank_jobs_ns[r];
        if (ns == 0) { continue; }
        fprintf(out, "<tr><td>jobs of rank %d</td><td>%s</td><td>%.1f %%</td></tr>\n", r,
                svg_format_time(time, (double)ns), percent(ns, replay->path.makespan_ns));
    }
    fprintf(out, "</table>\n");
}

static void print_rows(FILE* out, const TraceReplay* replay) {
    char time[SVG_NUMBER_BYTES];
    fprintf(out, "<table><tr><th>what if</th><th>step</th><th>change</th></tr>\n");
    for (int32_t i = 0; i < replay->num_rows; i++) {
        const TraceRow* row = &replay->rows[i];
        fprintf(out, "<tr><td>");
        svg_print_escaped(out, row->about);
        fprintf(out, "</td><td>%s</td><td>%+.1f %%</td></tr>\n", svg_format_time(time, (double)row->ns),
                percent(row->ns - replay->replayed_ns, replay->replayed_ns));
    }
    fprintf(out, "</table>\n");
}

void trace_html_print(FILE* out, const TraceReplay* replay) {
    const SessionErrors* errors = &replay->file.errors;
    char measured[SVG_NUMBER_BYTES], predicted[SVG_NUMBER_BYTES];
    fprintf(out, "<h2>Step %lld: where its time went</h2>\n<p class=\"q\">Measured %s, replayed %+.2f %%",
            (long long)replay->file.step, svg_format_time(measured, (double)replay->graph.measured_ns),
            percent(replay->replayed_ns - replay->graph.measured_ns, replay->graph.measured_ns));
    if (replay->file.has_errors) {
        fprintf(out, "; predicted %s, took %+.1f %%: jobs %+.1f %%, transfers %+.1f %%, waiting %+.1f %%",
                svg_format_time(predicted, (double)errors->predicted_ns),
                percent(errors->measured_ns - errors->predicted_ns, errors->predicted_ns),
                percent(errors->jobs_ns, errors->predicted_ns),
                percent(errors->transfers_ns, errors->predicted_ns),
                percent(errors->waiting_ns, errors->predicted_ns));
    }
    fprintf(out, "</p>\n");
    print_timeline(out, replay);
    fprintf(out, "<div class=\"two\">\n");
    print_path(out, replay);
    print_rows(out, replay);
    fprintf(out, "</div>\n");
}
