// report_tasks.c -- a table of tasks: training and validation losses, answers; of several runs side by side.
#include <math.h>
#include <string.h>

#include "line_chart.h"
#include "report_parts.h"
#include "svg.h"

// NULL: the run has no such task.
static const MetricsTask* task_of(const Metrics* metrics, const char* name) {
    for (int32_t t = 0; t < metrics->num_tasks; t++) {
        if (strcmp(metrics->tasks[t].name, name) == 0) { return &metrics->tasks[t]; }
    }
    return NULL;
}

// `decimals` 3: a loss; 0: a percentage. Not known: a dash.
static void print_number(FILE* out, double value, int32_t decimals) {
    if (isfinite(value)) {
        fprintf(out, "<td>%.*f%s</td>", decimals, value, decimals == 0 ? " %" : "");
    } else {
        fprintf(out, "<td>–</td>");
    }
}

static double last_of(const double* values, int32_t count) {
    while (count > 0 && !isfinite(values[count - 1])) { count--; }
    return count > 0 ? values[count - 1] : NAN;
}

static double loss_now(const Metrics* metrics, const MetricsTask* task) {
    int32_t n = metrics->num_steps, span = report_span_steps(n);
    return report_mean_between(task->losses, n - span, n);
}

static bool has_validation(const Metrics* metrics) {
    for (int32_t t = 0; t < metrics->num_tasks; t++) {
        if (isfinite(last_of(metrics->tasks[t].validation_losses, metrics->num_validations))) { return true; }
    }
    return false;
}

// --- one run ---------------------------------------------------------------------------------------------

static Status print_task(const Report* report, const MetricsTask* task, double top, bool validated) {
    const Metrics* metrics = report->runs[0].metrics;
    int32_t n = metrics->num_steps, span = report_span_steps(n);
    double before = report_mean_between(task->losses, 0, span), now = loss_now(metrics, task);
    LineChart chart = {
        .title = "", .unit = "", .first_step = report->first_step, .last_step = report->last_step};
    chart.series[chart.num_series++] =
        (ChartSeries){.name = task->name, .steps = metrics->steps, .values = task->losses, .num_points = n};
    if (validated) {
        chart.series[chart.num_series++] = (ChartSeries){.name = "validation",
                                                         .steps = metrics->validation_steps,
                                                         .values = task->validation_losses,
                                                         .num_points = metrics->num_validations};
    }
    fprintf(report->out, "<tr><td>");
    svg_print_escaped(report->out, task->name);
    fprintf(report->out, "</td><td class=\"line\">");
    TRY(line_chart_print_spark(report->out, &chart, top, 480, 36));
    fprintf(report->out, "</td>");
    print_number(report->out, before, 3);
    print_number(report->out, now, 3);
    print_number(report->out, 100 * now / before, 0);
    if (validated) {
        print_number(report->out, last_of(task->validation_losses, metrics->num_validations), 3);
    }
    if (metrics->num_scores > 0) {
        print_number(report->out, 100 * task->exact_match, 0);
        print_number(report->out, 100 * task->rouge_l, 0);
    }
    fprintf(report->out, "</tr>\n");
    return STATUS_OK;
}

static Status print_one(const Report* report) {
    const Metrics* metrics = report->runs[0].metrics;
    bool validated = has_validation(metrics);
    double top = NAN;
    for (int32_t t = 0; t < metrics->num_tasks; t++) {
        top = fmax(top, report_largest(metrics->tasks[t].losses, metrics->num_steps));
        if (!validated) { continue; }
        top = fmax(top, report_largest(metrics->tasks[t].validation_losses, metrics->num_validations));
    }
    if (!(top > 0)) { top = 1; }
    int32_t span = report_span_steps(metrics->num_steps);
    fprintf(report->out,
            "<table><tr><th>task</th><th class=\"line\">all lines from 0 to %.3g%s</th>"
            "<th>first %d step%s</th><th>last %d</th><th>last / first</th>%s%s</tr>\n",
            top,
            validated ? ": <span class=\"k k0\">training</span><span class=\"k k1\">validation</span>" : "",
            span, span == 1 ? "" : "s", span, validated ? "<th>validation, last</th>" : "",
            metrics->num_scores > 0 ? "<th>exact match</th><th>ROUGE-L</th>" : "");
    for (int32_t t = 0; t < metrics->num_tasks; t++) {
        TRY(print_task(report, &metrics->tasks[t], top, validated));
    }
    fprintf(report->out, "</table>\n");
    return STATUS_OK;
}

// --- several ---------------------------------------------------------------------------------------------

typedef double TaskNumber(const Metrics* metrics, const MetricsTask* task);

static double validation_now(const Metrics* metrics, const MetricsTask* task) {
    return last_of(task->validation_losses, metrics->num_validations);
}

static double match_now(const Metrics* metrics, const MetricsTask* task) {
    (void)metrics;
    return 100 * task->exact_match;
}

static const struct {
    const char* name;
    TaskNumber* number;
    int32_t decimals;
} columns[] = {{"training, last steps", loss_now, 3},
               {"validation, last", validation_now, 3},
               {"exact match", match_now, 0}};
enum { NUM_COLUMNS = 3 };

static bool is_known(const Report* report, TaskNumber* number) {
    for (int32_t k = 0; k < report->num_runs; k++) {
        const Metrics* metrics = report->runs[k].metrics;
        for (int32_t t = 0; t < metrics->num_tasks; t++) {
            if (isfinite(number(metrics, &metrics->tasks[t]))) { return true; }
        }
    }
    return false;
}

static void print_row(const Report* report, const char* name) {
    fprintf(report->out, "<tr><td>");
    svg_print_escaped(report->out, name);
    fprintf(report->out, "</td>");
    for (int32_t c = 0; c < NUM_COLUMNS; c++) {
        if (!is_known(report, columns[c].number)) { continue; }
        for (int32_t k = 0; k < report->num_runs; k++) {
            const Metrics* metrics = report->runs[k].metrics;
            const MetricsTask* task = task_of(metrics, name);
            print_number(report->out, task != NULL ? columns[c].number(metrics, task) : NAN,
                         columns[c].decimals);
        }
    }
    fprintf(report->out, "</tr>\n");
}

static void print_several(const Report* report) {
    fprintf(report->out, "<table><tr><th></th>");
    for (int32_t c = 0; c < NUM_COLUMNS; c++) {
        if (!is_known(report, columns[c].number)) { continue; }
        fprintf(report->out, "<th colspan=\"%d\" class=\"of\">%s</th>", report->num_runs, columns[c].name);
    }
    fprintf(report->out, "</tr>\n<tr><th>task</th>");
    for (int32_t c = 0; c < NUM_COLUMNS; c++) {
        if (!is_known(report, columns[c].number)) { continue; }
        for (int32_t k = 0; k < report->num_runs; k++) {
            fprintf(report->out, "<th><span class=\"k k%d\">", k);
            svg_print_escaped(report->out, report->runs[k].name);
            fprintf(report->out, "</span></th>");
        }
    }
    fprintf(report->out, "</tr>\n");
    for (int32_t k = 0; k < report->num_runs; k++) {
        const Metrics* metrics = report->runs[k].metrics;
        for (int32_t t = 0; t < metrics->num_tasks; t++) {
            bool met = false;
            for (int32_t other = 0; other < k; other++) {
                met |= task_of(report->runs[other].metrics, metrics->tasks[t].name) != NULL;
            }
            if (!met) { print_row(report, metrics->tasks[t].name); }
        }
    }
    fprintf(report->out, "</table>\n");
}

Status report_tasks_print(const Report* report) {
    bool any = false, left = false;
    for (int32_t k = 0; k < report->num_runs; k++) {
        any |= report->runs[k].metrics->num_tasks > 0;
        left |= report->runs[k].metrics->tasks_left > 0;
    }
    if (!any) { return STATUS_OK; }
    fprintf(report->out, "<h2>Tasks</h2>\n");
    if (report->num_runs == 1) {
        TRY(print_one(report));
    } else {
        print_several(report);
    }
    if (left) {
        fprintf(report->out, "<p class=\"q\">Only the first %d tasks are shown.</p>\n", METRICS_MAX_TASKS);
    }
    return STATUS_OK;
}
