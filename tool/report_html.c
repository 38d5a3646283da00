#include "report_html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "line_chart.h"
#include "report_parts.h"
#include "svg.h"
#include "trace_html.h"

// A line's colour, its band, its dots and its key.
#define SERIES_STYLE(k)                                                                                     \
    ".s" #k "{fill:none;stroke-width:1.8;stroke-linejoin:round;stroke:var(--c" #k ")}.b" #k                 \
    "{opacity:.22;fill:var(--c" #k ")}.d" #k "{fill:var(--c" #k ")}.k" #k ":before{border-color:var(--c" #k \
    ")}\n"

static const char STYLE[] =
    ":root{--page:#fff;--ink:#1f2328;--quiet:#656d76;--grid:#e6e9ed;--axis:#8c959f;--card:#f6f8fa;"
    "--c0:#0072b2;--c1:#d55e00;--c2:#6b7480;--c3:#009e73;--c4:#aa4499;--c5:#b8860b;--c6:#332288;--c7:#882255}"
    "\n"
    "@media (prefers-color-scheme:dark){:root{--page:#14181d;--ink:#e6edf3;--quiet:#9aa4af;--grid:#2a313a;"
    "--axis:#6e7681;--card:#1d232a;--c0:#56b4e9;--c1:#e69f00;--c2:#9aa4af;--c3:#3fc79a;"
    "--c4:#cc79a7;--c5:#f0e442;--c6:#a9a3ff;--c7:#ff9fb8}}\n"
    "*{box-sizing:border-box}body{margin:0;background:var(--page);color:var(--ink);"
    "font:15px/1.4 'Helvetica Neue',Helvetica,Arial,'DejaVu Sans',sans-serif}\n"
    "main{max-width:1240px;margin:0 auto;padding:28px 24px 48px}h1{font-size:24px;margin:0}"
    "h2{font-size:18px;margin:36px 0 10px}p{margin:4px "
    "0}.q{color:var(--quiet);font-size:13px;overflow-wrap:anywhere}\n"
    ".cards{display:grid;grid-template-columns:repeat(auto-fill,minmax(140px,1fr));gap:12px;margin:20px 0 "
    "8px}"
    ".cards div{background:var(--card);border-radius:8px;padding:12px 14px}"
    ".cards b{display:block;font-size:21px;white-space:nowrap}.cards "
    "span{color:var(--quiet);font-size:13px}\n"
    ".charts{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,480px),1fr));gap:28px "
    "32px;margin-top:28px}"
    "figure{margin:0}figcaption{margin-bottom:4px}svg{display:block;width:100%;height:auto}"
    ".none{color:var(--quiet);padding:48px 0;text-align:center;background:var(--card);border-radius:8px}\n"
    "svg text{font-size:11px;fill:var(--quiet)}.grid{stroke:var(--grid)}.axis{stroke:var(--axis)}"
    ".zero{stroke:var(--ink)}.h rect{fill:transparent}.h rect:hover{fill:var(--ink);opacity:.1}\n"
    ".k{white-space:nowrap;font-size:13px;margin-left:12px}.k:before{content:'';display:inline-block;width:"
    "16px;"
    "height:0;border-top:3px solid;vertical-align:middle;margin-right:6px}\n";

// clang-format off
static const char STYLE_OF_SERIES[] =
    SERIES_STYLE(0) SERIES_STYLE(1) SERIES_STYLE(2) SERIES_STYLE(3)
    SERIES_STYLE(4) SERIES_STYLE(5) SERIES_STYLE(6) SERIES_STYLE(7)
    ".s2{stroke-dasharray:5 3}.k2:before{border-top-style:dashed}\n";
// clang-format on

// Steps of a trace, tables.
static const char STYLE_OF_TABLES[] =
    ".two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:"
    "12px "
    "32px;align-items:start;margin-top:12px}"
    ".steps rect{opacity:.3}.steps "
    ".on{opacity:1}.j0{fill:var(--c0)}.j1{fill:var(--c1)}.j2{fill:var(--c3)}"
    ".j3{fill:var(--c2)}.j4{fill:var(--c4)}.j5{fill:var(--c5)}.hop{stroke:var(--ink);stroke-width:"
    "1.2}\n"
    ".tick{margin:0 6px 0 "
    "0;vertical-align:middle}label{font-size:12px;color:var(--quiet)}.log{display:none}"
    ".tick:checked~.log{display:block}.tick:checked~.lin{display:none}.mark{stroke:var(--ink);"
    "stroke-dasharray:2 "
    "3;opacity:.7}\n"
    ".about{width:auto;max-width:100%;margin-top:16px;font-size:14px}.about "
    "th{text-align:left;white-space:nowrap;"
    "vertical-align:top;padding-left:0}.about "
    "td{vertical-align:top;text-align:left;overflow-wrap:anywhere}.about "
    ".run{white-space:"
    "normal;overflow-wrap:anywhere}.about .figure "
    "td{font-weight:600}.of{text-align:center;border-left:1px solid "
    "var(--grid)}summary{font-size:13px;color:var(--quiet);margin-top:8px}.wide{overflow-x:auto}\n"
    "table{border-collapse:collapse;width:100%}th,td{padding:5px "
    "10px;text-align:right;border-bottom:1px "
    "solid var(--grid)}"
    "th{font-size:13px;font-weight:400;color:var(--quiet)}td:first-child,th:first-child{text-"
    "align:left;"
    "overflow-wrap:anywhere;padding-left:0}td.line{width:46%;min-width:120px}th.line{text-align:"
    "left}td{font-"
    "variant-numeric:tabular-"
    "nums}\n";

// --- the page --------------------------------------------------------------------------------------------

static void print_title(const Report* report) {
    fprintf(report->out,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>Training "
            "report</title>\n"
            "<style>\n%s%s%s</style></head>\n<body><main>\n<h1>Training report</h1>\n<p class=\"q\">",
            STYLE, STYLE_OF_SERIES, STYLE_OF_TABLES);
    bool thinned = false;
    for (int32_t k = 0; k < report->num_runs; k++) {
        const Metrics* metrics = report->runs[k].metrics;
        fprintf(report->out, "%s", k > 0 ? ", " : "");
        svg_print_escaped(report->out, report->runs[k].name);
        if (metrics->cut_line > 0) {
            fprintf(report->out, " (line %d is cut off and left out)", metrics->cut_line);
        }
        thinned |= metrics->num_steps > CHART_BUCKETS;
    }
    if (thinned) { fprintf(report->out, "; lines: means of neighbouring steps, bands: 80 in 100 of them"); }
    if (report->num_marks > 0) {
        fprintf(report->out, "; dotted upright lines: a run went on from a checkpoint");
    }
    fprintf(report->out, "</p>\n");
}

static Status print_page(Report* report, const TraceReplay* trace) {
    char* left_out = NULL;
    size_t num_bytes = 0;
    report->left_out = open_memstream(&left_out, &num_bytes);
    if (report->left_out == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a report ---> free memory");
    }
    print_title(report);
    Status status = report_runs_print(report);
    if (status == STATUS_OK) { status = report_charts_print(report); }
    bool complete = fclose(report->left_out) == 0;
    if (status == STATUS_OK && complete && num_bytes > 0) {
        fprintf(report->out, "<p class=\"q\" id=\"left-out\">Without a chart: %s</p>\n",
                left_out + strlen("; "));
    }
    free(left_out);
    TRY(status);
    if (trace != NULL) { trace_html_print(report->out, trace); }
    fprintf(report->out, "<div class=\"wide\">\n");
    TRY(report_tasks_print(report));
    fprintf(report->out, "</div>\n</main></body></html>\n");
    return STATUS_OK;
}

// From the first step or validation of any run to the last; the first validation comes before the first step.
static void find_steps(Report* report) {
    report->first_step = INFINITY;
    report->last_step = -INFINITY;
    for (int32_t k = 0; k < report->num_runs; k++) {
        const Metrics* metrics = report->runs[k].metrics;
        const double* lists[] = {metrics->steps, metrics->validation_steps, metrics->score_steps};
        int32_t counts[] = {metrics->num_steps, metrics->num_validations, metrics->num_scores};
        for (int i = 0; i < 3; i++) {
            if (counts[i] == 0) { continue; }
            report->first_step = fmin(report->first_step, lists[i][0]);
            report->last_step = fmax(report->last_step, lists[i][counts[i] - 1]);
        }
    }
    if (report->first_step == report->last_step) {
        report->first_step -= 0.5;
        report->last_step += 0.5;
    }
}

// All runs' marks in one list; steps in range only.
static Status find_marks(Report* report) {
    int32_t num = 0;
    double* marks;
    for (int32_t k = 0; k < report->num_runs; k++) { num += report->runs[k].metrics->num_resumes; }
    ARENA_TRY_NEW(marks, report->arena, double, num);
    for (int32_t k = 0; k < report->num_runs; k++) {
        const Metrics* metrics = report->runs[k].metrics;
        for (int32_t i = 0; i < metrics->num_resumes; i++) {
            double step = metrics->resume_steps[i];
            if (step < report->first_step || step > report->last_step) { continue; }
            marks[report->num_marks++] = step;
        }
    }
    report->marks = marks;
    return STATUS_OK;
}

Status report_html_print(FILE* out, const ReportRun* runs, int32_t num_runs, const TraceReplay* trace) {
    if (num_runs < 1 || num_runs > REPORT_MAX_RUNS) {
        return FAIL(STATUS_OUT_OF_RANGE, "a report of %d runs ---> 1 to %d", num_runs, REPORT_MAX_RUNS);
    }
    Arena arena = {0};
    Report report = {.out = out, .runs = runs, .num_runs = num_runs, .arena = &arena};
    find_steps(&report);
    Status status = find_marks(&report);
    if (status == STATUS_OK) { status = print_page(&report, trace); }
    arena_free(&arena);
    return status;
}

Status report_html_write(const char* path, const ReportRun* runs, int32_t num_runs,
                         const TraceReplay* trace) {
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* out = open_memstream(&text, &num_bytes);
    if (out == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory to write in ---> free memory", path); }
    Status status = report_html_print(out, runs, num_runs, trace);
    bool complete = fclose(out) == 0;
    if (status == STATUS_OK && !complete) {
        status = FAIL(STATUS_NO_MEMORY, "%s: no memory to write in ---> free memory", path);
    }
    if (status == STATUS_OK) { status = svg_write_file(path, text, num_bytes); }
    free(text);
    return status;
}
