#include "report_html.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../dynapipe_plugin/base/arena.h"
#include "line_chart.h"
#include "svg.h"
#include "trace_html.h"

enum { LAST_STEPS = 5 };  // "now" is the mean of these, as in dev/task_losses.sh

static const char STYLE[] =
    ":root{--page:#fff;--ink:#1f2328;--quiet:#656d76;--grid:#e6e9ed;--axis:#8c959f;--card:#f6f8fa;"
    "--c0:#0072b2;--c1:#d55e00;--c2:#6b7480;--c3:#009e73;--c4:#aa4499;--c5:#b8860b}\n"
    "@media (prefers-color-scheme:dark){:root{--page:#14181d;--ink:#e6edf3;--quiet:#9aa4af;--grid:#2a313a;"
    "--axis:#6e7681;--card:#1d232a;--c0:#56b4e9;--c1:#e69f00;--c2:#9aa4af;--c3:#3fc79a;"
    "--c4:#cc79a7;--c5:#f0e442}}\n"
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
    ".zero{stroke:var(--ink)}\n"
    ".s0,.s1,.s2,.s3{fill:none;stroke-width:1.8;stroke-linejoin:round}.s0{stroke:var(--c0)}.s1{stroke:var(--"
    "c1)}"
    ".s2{stroke:var(--c2);stroke-dasharray:5 "
    "3}.s3{stroke:var(--c3)}.b0,.b1,.b2,.b3{opacity:.22}.b3{fill:var(--c3)}.b0{fill:var(--c0)}.b1{fill:var(--"
    "c1)}"
    ".b2{fill:var(--c2)}.d0{fill:var(--c0)}.d1{fill:var(--c1)}.d2{fill:var(--c2)}.d3{fill:var(--c3)}\n"
    ".h rect{fill:transparent}.h rect:hover{fill:var(--ink);opacity:.1}\n"
    ".k{white-space:nowrap;font-size:13px;margin-left:12px}.k:before{content:'';display:inline-block;width:"
    "16px;height:0;"
    "border-top:3px solid;vertical-align:middle;margin-right:6px}.k0:before{border-color:var(--c0)}"
    ".k1:before{border-color:var(--c1)}.k2:before{border-color:var(--c2);border-top-style:dashed}.k3:before{"
    "border-color:var(--c3)}.k4:before{border-color:var(--c4)}.k5:before{border-color:var(--c5)}\n"
    ".two{display:grid;grid-template-columns:repeat(auto-fit,minmax(min(100%,420px),1fr));gap:12px "
    "32px;align-items:start;margin-top:12px}"
    ".steps rect{opacity:.3}.steps .on{opacity:1}.j0{fill:var(--c0)}.j1{fill:var(--c1)}.j2{fill:var(--c3)}"
    ".j3{fill:var(--c2)}.j4{fill:var(--c4)}.j5{fill:var(--c5)}.hop{stroke:var(--ink);stroke-width:1.2}\n"
    "table{border-collapse:collapse;width:100%}th,td{padding:5px 10px;text-align:right;border-bottom:1px "
    "solid var(--grid)}"
    "th{font-size:13px;font-weight:400;color:var(--quiet)}td:first-child,th:first-child{text-align:left;"
    "overflow-wrap:anywhere;padding-left:0}td.line{width:46%;min-width:120px}th.line{text-align:left}td{font-"
    "variant-numeric:tabular-"
    "nums}\n";

typedef struct {
    FILE* out;
    const Metrics* metrics;
    const TraceReplay* trace;  // NULL: none
    double first_step, last_step;
    Arena* arena;
} Report;

// --- numbers ---------------------------------------------------------------------------------------------

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// Of the finite values; NAN where there are none.
static Status median(double* out, const double* values, int32_t count, Arena* arena) {
    double* sorted = ARENA_NEW(arena, double, count);
    if (sorted == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d steps ---> free memory", count); }
    int32_t n = 0;
    for (int32_t i = 0; i < count; i++) {
        if (isfinite(values[i])) { sorted[n++] = values[i]; }
    }
    qsort(sorted, (size_t)n, sizeof(double), compare_doubles);
    *out = n == 0 ? NAN : n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    return STATUS_OK;
}

static double mean_between(const double* values, int32_t begin, int32_t end) {
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = begin; i < end; i++) {
        if (!isfinite(values[i])) { continue; }
        sum += values[i];
        n++;
    }
    return n > 0 ? sum / n : NAN;
}

static double largest_of(const double* values, int32_t count) {
    double largest = NAN;
    for (int32_t i = 0; i < count; i++) {
        if (isfinite(values[i])) { largest = fmax(largest, values[i]); }
    }
    return largest;
}

// Steps of "now" and "in the beginning": LAST_STEPS, of a short run half.
static int32_t span_steps(int32_t num_steps) {
    return num_steps < 2 * LAST_STEPS ? (num_steps + 1) / 2 : LAST_STEPS;
}

typedef double Derive(const Metrics* metrics, int32_t i);

static double supervised_per_s(const Metrics* metrics, int32_t i) {
    return metrics->values[METRIC_SUPERVISED_TOKENS][i] * 1000 / metrics->values[METRIC_STEP_MS][i];
}

static double padding_percent(const Metrics* metrics, int32_t i) {
    return 100 * (1 - metrics->values[METRIC_TOTAL_TOKENS][i] / metrics->values[METRIC_COMPUTED_TOKENS][i]);
}

static double idle_percent(const Metrics* metrics, int32_t i) {
    return 100 * metrics->values[METRIC_IDLE][i];
}

// Percent of what was predicted; > 0: longer.
static double off_percent(const Metrics* metrics, int32_t i) {
    double predicted_ms = metrics->values[METRIC_PREDICTED_MS][i];
    return 100 * (metrics->values[METRIC_STEP_MS][i] - predicted_ms) / predicted_ms;
}

static double part_percent(const Metrics* metrics, Metric part, int32_t i) {
    return 100 * metrics->values[part][i] / metrics->values[METRIC_PREDICTED_MS][i];
}

static double jobs_off_percent(const Metrics* metrics, int32_t i) {
    return part_percent(metrics, METRIC_JOBS_OFF_MS, i);
}

static double transfers_off_percent(const Metrics* metrics, int32_t i) {
    return part_percent(metrics, METRIC_TRANSFERS_OFF_MS, i);
}

static double waiting_off_percent(const Metrics* metrics, int32_t i) {
    return part_percent(metrics, METRIC_WAITING_OFF_MS, i);
}

// NULL where there is no memory.
static double* derive(const Report* report, Derive* f) {
    double* values = ARENA_NEW(report->arena, double, report->metrics->num_steps);
    for (int32_t i = 0; i < report->metrics->num_steps && values != NULL; i++) {
        values[i] = f(report->metrics, i);
    }
    return values;
}

static double* scaled(const Report* report, Metric metric, double factor) {
    double* values = ARENA_NEW(report->arena, double, report->metrics->num_steps);
    for (int32_t i = 0; i < report->metrics->num_steps && values != NULL; i++) {
        values[i] = report->metrics->values[metric][i] * factor;
    }
    return values;
}

// --- charts ----------------------------------------------------------------------------------------------

static LineChart chart_of(const Report* report, const char* title, const char* unit) {
    return (LineChart){.title = title,
                       .unit = unit,
                       .from_zero = true,
                       .first_step = report->first_step,
                       .last_step = report->last_step};
}

static Status add_series(LineChart* chart, const Report* report, const char* name, const double* values) {
    if (values == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a chart ---> free memory"); }
    chart->series[chart->num_series++] = (ChartSeries){.name = name,
                                                       .steps = report->metrics->steps,
                                                       .values = values,
                                                       .num_points = report->metrics->num_steps};
    return STATUS_OK;
}

static Status print_one(const Report* report, const char* title, const char* unit, const double* values) {
    LineChart chart = chart_of(report, title, unit);
    TRY(add_series(&chart, report, title, values));
    return line_chart_print(report->out, &chart);
}

static Status print_loss(const Report* report) {
    LineChart chart = chart_of(report, "Loss", "");
    TRY(add_series(&chart, report, "training", report->metrics->values[METRIC_LOSS]));
    if (report->metrics->num_validations > 0) {
        chart.series[chart.num_series++] = (ChartSeries){.name = "validation",
                                                         .steps = report->metrics->validation_steps,
                                                         .values = report->metrics->validation_losses,
                                                         .num_points = report->metrics->num_validations,
                                                         .dots = report->metrics->num_validations <= 60};
    }
    return line_chart_print(report->out, &chart);
}

// Means over the tasks, in percent.
static Status print_scores(const Report* report) {
    const Metrics* metrics = report->metrics;
    if (metrics->num_scores == 0) { return STATUS_OK; }
    LineChart chart = chart_of(report, "Answers to validation samples, mean of the tasks", "%");
    const double* const lists[2] = {metrics->exact_match, metrics->rouge_l};
    static const char* const names[2] = {"exact match", "ROUGE-L"};
    for (int i = 0; i < 2; i++) {
        double* percent = ARENA_NEW(report->arena, double, metrics->num_scores);
        if (percent == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a chart ---> free memory"); }
        for (int32_t k = 0; k < metrics->num_scores; k++) { percent[k] = 100 * lists[i][k]; }
        chart.series[chart.num_series++] = (ChartSeries){.name = names[i],
                                                         .steps = metrics->score_steps,
                                                         .values = percent,
                                                         .num_points = metrics->num_scores,
                                                         .dots = metrics->num_scores <= 60};
    }
    return line_chart_print(report->out, &chart);
}

// In the unit that suits the median of `first`.
static Status print_times(const Report* report, const char* title, const Metric* metrics,
                          const char* const* names, int32_t num_series) {
    double typical_ms, unit_ns;
    TRY(median(&typical_ms, report->metrics->values[metrics[0]], report->metrics->num_steps, report->arena));
    bool usable = typical_ms > 0 && typical_ms < 1e12;
    const char* unit = svg_time_unit(usable ? (int64_t)(typical_ms * 1e6) : 2000000, &unit_ns);
    LineChart chart = chart_of(report, title, unit);
    for (int32_t k = 0; k < num_series; k++) {
        TRY(add_series(&chart, report, names[k], scaled(report, metrics[k], 1e6 / unit_ns)));
    }
    return line_chart_print(report->out, &chart);
}

static Status print_memory(const Report* report) {
    const Metrics* metrics = report->metrics;
    double largest = fmax(largest_of(metrics->values[METRIC_PEAK_BYTES], metrics->num_steps),
                          largest_of(metrics->values[METRIC_RSS_BYTES], metrics->num_steps));
    bool large = largest > 10 * 1073741824.0;
    double unit_bytes = large ? 1073741824.0 : 1048576.0;
    LineChart chart = chart_of(report, "Memory of the largest rank", large ? "GiB" : "MiB");
    TRY(add_series(&chart, report, "planned", scaled(report, METRIC_PEAK_BYTES, 1 / unit_bytes)));
    TRY(add_series(&chart, report, "used by the process", scaled(report, METRIC_RSS_BYTES, 1 / unit_bytes)));
    return line_chart_print(report->out, &chart);
}

static Status print_errors(const Report* report) {
    LineChart chart = chart_of(report, "Step time beyond prediction", "% of it");
    chart.show_zero = true;
    TRY(add_series(&chart, report, "all", derive(report, off_percent)));
    TRY(add_series(&chart, report, "jobs", derive(report, jobs_off_percent)));
    TRY(add_series(&chart, report, "waiting", derive(report, waiting_off_percent)));
    TRY(add_series(&chart, report, "transfers", derive(report, transfers_off_percent)));
    return line_chart_print(report->out, &chart);
}

static Status print_charts(const Report* report) {
    static const Metric step_times[] = {METRIC_STEP_MS, METRIC_PREDICTED_MS, METRIC_BOUND_MS};
    static const char* const step_names[] = {"measured", "predicted", "lower bound"};
    static const Metric plan_times[] = {METRIC_PLAN_MS, METRIC_PLAN_WAIT_MS};
    static const char* const plan_names[] = {"planning, in the background", "steps waited for it"};
    fprintf(report->out, "<div class=\"charts\">\n");
    TRY(print_loss(report));
    TRY(print_scores(report));
    TRY(print_one(report, "Throughput", "supervised tokens/s", derive(report, supervised_per_s)));
    TRY(print_times(report, "Step time", step_times, step_names, 3));
    TRY(print_errors(report));
    TRY(print_one(report, "Padding", "% of computed tokens", derive(report, padding_percent)));
    TRY(print_one(report, "Idle time", "% of the pipeline, mean of ranks", derive(report, idle_percent)));
    TRY(print_memory(report));
    TRY(print_times(report, "Planning", plan_times, plan_names, 2));
    TRY(print_one(report, "Gradient norm", "", report->metrics->values[METRIC_NORM]));
    TRY(print_one(report, "Learning rate", "", report->metrics->values[METRIC_LR]));
    fprintf(report->out, "</div>\n");
    return STATUS_OK;
}

// --- cards and tasks -------------------------------------------------------------------------------------

// `decimals` -1: as a count. Nothing where the value is not known.
static void print_card(const Report* report, const char* id, double value, int32_t decimals, const char* unit,
                       const char* caption) {
    char number[SVG_NUMBER_BYTES];
    if (!isfinite(value)) { return; }
    svg_format_count(number, value);
    if (decimals >= 0 && fabs(value) < 10000) { snprintf(number, sizeof number, "%.*f", decimals, value); }
    fprintf(report->out, "<div><b id=\"%s\">%s%s</b><span>%s</span></div>\n", id, number, unit, caption);
}

static Status print_median_card(const Report* report, const char* id, Derive* f, int32_t decimals,
                                const char* unit, const char* caption) {
    double* values = derive(report, f);
    double typical;
    if (values == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a report ---> free memory"); }
    TRY(median(&typical, values, report->metrics->num_steps, report->arena));
    print_card(report, id, typical, decimals, unit, caption);
    return STATUS_OK;
}

// With its sign.
static Status print_off_card(const Report* report) {
    double *values = derive(report, off_percent), typical;
    if (values == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a report ---> free memory"); }
    TRY(median(&typical, values, report->metrics->num_steps, report->arena));
    if (!isfinite(typical)) { return STATUS_OK; }
    fprintf(report->out,
            "<div><b id=\"off\">%+.1f %%</b><span>step time beyond prediction, median</span></div>\n",
            typical);
    return STATUS_OK;
}

static Status print_cards(const Report* report) {
    const Metrics* metrics = report->metrics;
    int32_t n = metrics->num_steps, span = span_steps(n), v = metrics->num_validations;
    char time[SVG_NUMBER_BYTES];
    double step_ms, total = 0, computed = 0;
    for (int32_t i = 0; i < n; i++) {
        bool known = isfinite(metrics->values[METRIC_TOTAL_TOKENS][i]) &&
                     isfinite(metrics->values[METRIC_COMPUTED_TOKENS][i]);
        total += known ? metrics->values[METRIC_TOTAL_TOKENS][i] : 0;
        computed += known ? metrics->values[METRIC_COMPUTED_TOKENS][i] : 0;
    }
    fprintf(report->out, "<div class=\"cards\">\n");
    print_card(report, "loss", mean_between(metrics->values[METRIC_LOSS], n - span, n), 3, "",
               "training loss, last steps");
    print_card(report, "val", v > 0 ? metrics->validation_losses[v - 1] : NAN, 3, "",
               "validation loss, last");
    TRY(print_median_card(report, "speed", supervised_per_s, 0, "", "supervised tokens/s, median"));
    TRY(median(&step_ms, metrics->values[METRIC_STEP_MS], n, report->arena));
    if (isfinite(step_ms)) {
        fprintf(report->out, "<div><b id=\"step\">%s</b><span>step time, median</span></div>\n",
                svg_format_time(time, step_ms * 1e6));
    }
    print_card(report, "padding", computed > 0 ? 100 * (1 - total / computed) : NAN, 1, " %",
               "padding, whole run");
    TRY(print_median_card(report, "idle", idle_percent, 1, " %", "idle time, median"));
    TRY(print_off_card(report));
    fprintf(report->out, "</div>\n");
    return STATUS_OK;
}

static void print_loss_cell(const Report* report, double loss) {
    if (isfinite(loss)) {
        fprintf(report->out, "<td>%.3f</td>", loss);
    } else {
        fprintf(report->out, "<td>–</td>");
    }
}

static Status print_task(const Report* report, const MetricsTask* task, double top) {
    int32_t n = report->metrics->num_steps, span = span_steps(n);
    double before = mean_between(task->losses, 0, span), now = mean_between(task->losses, n - span, n);
    LineChart chart = chart_of(report, "", "");
    TRY(add_series(&chart, report, task->name, task->losses));
    fprintf(report->out, "<tr><td>");
    svg_print_escaped(report->out, task->name);
    fprintf(report->out, "</td><td class=\"line\">");
    TRY(line_chart_print_spark(report->out, &chart, top, 480, 36));
    fprintf(report->out, "</td>");
    print_loss_cell(report, before);
    print_loss_cell(report, now);
    fprintf(report->out, isfinite(now / before) ? "<td>%.0f %%</td>" : "<td></td>", 100 * now / before);
    if (report->metrics->num_scores > 0) {
        const double scores[2] = {task->exact_match, task->rouge_l};
        for (int i = 0; i < 2; i++) {
            fprintf(report->out, isfinite(scores[i]) ? "<td>%.0f %%</td>" : "<td></td>", 100 * scores[i]);
        }
    }
    fprintf(report->out, "</tr>\n");
    return STATUS_OK;
}

static Status print_tasks(const Report* report) {
    const Metrics* metrics = report->metrics;
    double top = NAN;
    if (metrics->num_tasks == 0) { return STATUS_OK; }
    for (int32_t t = 0; t < metrics->num_tasks; t++) {
        top = fmax(top, largest_of(metrics->tasks[t].losses, metrics->num_steps));
    }
    int32_t span = span_steps(metrics->num_steps);
    fprintf(
        report->out,
        "<h2>Loss per task</h2>\n<table><tr><th>task</th><th class=\"line\">all lines from 0 to %.3g</th>",
        isfinite(top) ? top : 1);
    fprintf(report->out, "<th>first %d step%s</th><th>last %d</th><th>last / first</th>%s</tr>\n", span,
            span == 1 ? "" : "s", span,
            metrics->num_scores > 0 ? "<th>exact match</th><th>ROUGE-L</th>" : "");
    for (int32_t t = 0; t < metrics->num_tasks; t++) {
        TRY(print_task(report, &metrics->tasks[t], isfinite(top) && top > 0 ? top : 1));
    }
    fprintf(report->out, "</table>\n");
    if (metrics->tasks_left > 0) {
        fprintf(report->out, "<p class=\"q\">Only the first %d tasks are shown.</p>\n", METRICS_MAX_TASKS);
    }
    return STATUS_OK;
}

// --- the page --------------------------------------------------------------------------------------------

// The last ones where there are many.
static void print_refits(const Report* report) {
    enum { MAX_SHOWN = 12 };
    const Metrics* metrics = report->metrics;
    char count[SVG_NUMBER_BYTES];
    int32_t num = metrics->num_refits, first = num > MAX_SHOWN ? num - MAX_SHOWN : 0;
    if (num == 0) { return; }
    fprintf(report->out, "<p class=\"q\">Costs were corrected by measured steps behind step%s",
            num > 1 ? "s" : "");
    for (int32_t i = first; i < num; i++) {
        fprintf(report->out, "%s %s", i == first ? (first > 0 ? " ..," : "") : ",",
                svg_format_count(count, metrics->refit_steps[i]));
    }
    fprintf(report->out, num > 1 ? " (%d times)</p>\n" : "</p>\n", num);
}

static Status print_page(const Report* report, const char* name) {
    const Metrics* metrics = report->metrics;
    char first[SVG_NUMBER_BYTES], last[SVG_NUMBER_BYTES];
    fprintf(report->out,
            "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"/>\n"
            "<meta name=\"viewport\" content=\"width=device-width, initial-scale=1\"/><title>Training "
            "report</title>\n"
            "<style>\n%s</style></head>\n<body><main>\n<h1>Training report</h1>\n<p class=\"q\">",
            STYLE);
    svg_print_escaped(report->out, name);
    fprintf(report->out, ": step %s to %s", svg_format_count(first, metrics->steps[0]),
            svg_format_count(last, metrics->steps[metrics->num_steps - 1]));
    if (metrics->cut_line > 0) {
        fprintf(report->out, "; line %d is cut off and left out", metrics->cut_line);
    }
    if (metrics->num_steps > CHART_BUCKETS) {
        fprintf(report->out, "; lines: means of neighbouring steps, bands: 80 in 100 of them");
    }
    fprintf(report->out, "</p>\n");
    print_refits(report);
    TRY(print_cards(report));
    TRY(print_charts(report));
    if (report->trace != NULL) { trace_html_print(report->out, report->trace); }
    TRY(print_tasks(report));
    fprintf(report->out, "</main></body></html>\n");
    return STATUS_OK;
}

Status report_html_print(FILE* out, const Metrics* metrics, const TraceReplay* trace, const char* name) {
    Arena arena = {0};
    Report report = {.out = out,
                     .metrics = metrics,
                     .trace = trace,
                     .first_step = metrics->steps[0],
                     .last_step = metrics->steps[metrics->num_steps - 1],
                     .arena = &arena};
    int32_t v = metrics->num_validations;  // the first one comes before the first step
    if (v > 0) {
        report.first_step = fmin(report.first_step, metrics->validation_steps[0]);
        report.last_step = fmax(report.last_step, metrics->validation_steps[v - 1]);
    }
    if (metrics->num_scores > 0) {
        report.first_step = fmin(report.first_step, metrics->score_steps[0]);
        report.last_step = fmax(report.last_step, metrics->score_steps[metrics->num_scores - 1]);
    }
    if (report.first_step == report.last_step) {
        report.first_step -= 0.5;
        report.last_step += 0.5;
    }
    Status status = print_page(&report, name);
    arena_free(&arena);
    return status;
}

Status report_html_write(const char* path, const Metrics* metrics, const TraceReplay* trace,
                         const char* name) {
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* out = open_memstream(&text, &num_bytes);
    if (out == NULL) { return FAIL(STATUS_NO_MEMORY, "%s: no memory to write in ---> free memory", path); }
    Status status = report_html_print(out, metrics, trace, name);
    bool complete = fclose(out) == 0;
    if (status == STATUS_OK && !complete) {
        status = FAIL(STATUS_NO_MEMORY, "%s: no memory to write in ---> free memory", path);
    }
    if (status == STATUS_OK) { status = svg_write_file(path, text, num_bytes); }
    free(text);
    return status;
}
