// report_charts.c -- the charts of a report: of one run all that belongs together in one, of several a line a
// run.
#include <math.h>

#include "line_chart.h"
#include "report_parts.h"
#include "svg.h"

enum { MAX_VALUES = 4, FEW_POINTS = 60 };

// One chart over steps. Of several runs the first value only.
typedef struct {
    const char *title, *unit;
    struct {
        const char* name;  // of its line where there are others
        Derive* f;
    } values[MAX_VALUES];
    double factor;
    bool show_zero;
} ChartSpec;

static LineChart chart_of(const Report* report, const char* title, const char* unit) {
    return (LineChart){.title = title,
                       .unit = unit,
                       .from_zero = true,
                       .first_step = report->first_step,
                       .last_step = report->last_step,
                       .marks = report->marks,
                       .num_marks = report->num_marks};
}

static void say_left_out(FILE* out, const LineChart* chart) {
    char number[SVG_NUMBER_BYTES];
    int32_t num_known = 0;
    fprintf(out, "; ");
    svg_print_escaped(out, chart->title);
    for (int32_t k = 0; k < chart->num_series; k++) {
        double value;
        if (line_chart_is_flat(&chart->series[k], &value) && isnan(value)) { continue; }
        fprintf(out, "%s ", num_known++ > 0 ? "," : "");
        if (chart->num_series > 1) {
            svg_print_escaped(out, chart->series[k].name);
            fprintf(out, " ");
        }
        fprintf(out, "%s", svg_format_count(number, value));
    }
    if (num_known > 0) {
        fprintf(out, "%s%s throughout", chart->unit[0] != '\0' ? " " : "", chart->unit);
    } else {
        fprintf(out, " not recorded");
    }
}

// Draws it, or says why not: each of its lines would be level, or there is none.
static Status print_chart(const Report* report, const LineChart* chart) {
    double value;
    for (int32_t k = 0; k < chart->num_series; k++) {
        if (!line_chart_is_flat(&chart->series[k], &value)) { return line_chart_print(report->out, chart); }
    }
    say_left_out(report->left_out, chart);
    return STATUS_OK;
}

static Status print_values(const Report* report, const ChartSpec* spec) {
    LineChart chart = chart_of(report, spec->title, spec->unit);
    chart.show_zero = spec->show_zero;
    bool one = report->num_runs == 1;
    int32_t num = one ? MAX_VALUES : report->num_runs;
    for (int32_t k = 0; k < num; k++) {
        Derive* f = spec->values[one ? k : 0].f;
        const ReportRun* run = &report->runs[one ? 0 : k];
        if (f == NULL) { break; }
        double* values;
        TRY(report_derive(&values, run->metrics, f, spec->factor, report->arena));
        chart.series[chart.num_series++] = (ChartSeries){.name = one ? spec->values[k].name : run->name,
                                                         .steps = run->metrics->steps,
                                                         .values = values,
                                                         .num_points = run->metrics->num_steps};
    }
    return print_chart(report, &chart);
}

// --- losses and answers ----------------------------------------------------------------------------------

static ChartSeries few_points(const char* name, const double* steps, const double* values, int32_t count) {
    return (ChartSeries){
        .name = name, .steps = steps, .values = values, .num_points = count, .dots = count <= FEW_POINTS};
}

static ChartSeries validations_of(const Metrics* metrics, const char* name) {
    return few_points(name, metrics->validation_steps, metrics->validation_losses, metrics->num_validations);
}

// Always there, whatever it shows.
static Status print_loss(const Report* report) {
    LineChart chart = chart_of(report, "Loss", "");
    chart.log_id = "loss";
    for (int32_t k = 0; k < report->num_runs; k++) {
        const Metrics* metrics = report->runs[k].metrics;
        chart.series[chart.num_series++] = (ChartSeries){.name = report->runs[k].name,
                                                         .steps = metrics->steps,
                                                         .values = metrics->values[METRIC_LOSS],
                                                         .num_points = metrics->num_steps};
    }
    if (report->num_runs > 1) {
        chart.title = "Training loss";
    } else {
        chart.series[0].name = "training";
        if (report->runs[0].metrics->num_validations > 0) {
            chart.series[chart.num_series++] = validations_of(report->runs[0].metrics, "validation");
        }
    }
    return line_chart_print(report->out, &chart);
}

static Status print_validation(const Report* report) {
    LineChart chart = chart_of(report, "Validation loss", "");
    chart.log_id = "validation";
    for (int32_t k = 0; k < report->num_runs; k++) {
        chart.series[chart.num_series++] = validations_of(report->runs[k].metrics, report->runs[k].name);
    }
    return print_chart(report, &chart);
}

static Status percent_of(double** out, const double* shares, int32_t count, Arena* arena) {
    ARENA_TRY_NEW(*out, arena, double, count);
    for (int32_t k = 0; k < count; k++) { (*out)[k] = 100 * shares[k]; }
    return STATUS_OK;
}

static Status add_scores(LineChart* chart, const Report* report, const Metrics* metrics, const double* shares,
                         const char* name) {
    double* percent;
    TRY(percent_of(&percent, shares, metrics->num_scores, report->arena));
    chart->series[chart->num_series++] = few_points(name, metrics->score_steps, percent, metrics->num_scores);
    return STATUS_OK;
}

// Means over the tasks.
static Status print_scores(const Report* report) {
    bool one = report->num_runs == 1;
    const char* title =
        one ? "Answers to validation samples, mean of the tasks" : "Exact match, mean of the tasks";
    LineChart chart = chart_of(report, title, "%");
    for (int32_t k = 0; k < report->num_runs; k++) {
        const Metrics* metrics = report->runs[k].metrics;
        const char* name = one ? "exact match" : report->runs[k].name;
        TRY(add_scores(&chart, report, metrics, metrics->exact_match, name));
        if (one) { TRY(add_scores(&chart, report, metrics, metrics->rouge_l, "ROUGE-L")); }
    }
    return print_chart(report, &chart);
}

// --- times and memory ------------------------------------------------------------------------------------

// In the unit that suits the first run's median of the first value, which is in ms.
static Status print_times(const Report* report, const ChartSpec* of) {
    ChartSpec spec = *of;
    double typical_ms, unit_ns;
    TRY(report_median(&typical_ms, report->runs[0].metrics, spec.values[0].f, report->arena));
    bool usable = typical_ms > 0 && typical_ms < 1e12;
    spec.unit = svg_time_unit(usable ? (int64_t)(typical_ms * 1e6) : 2000000, &unit_ns);
    spec.factor = 1e6 / unit_ns;
    return print_values(report, &spec);
}

static Status print_memory(const Report* report, const ChartSpec* of) {
    ChartSpec spec = *of;
    double largest = 0;
    for (int32_t k = 0; k < report->num_runs; k++) {
        const Metrics* metrics = report->runs[k].metrics;
        largest = fmax(largest, report_largest(metrics->values[METRIC_PEAK_BYTES], metrics->num_steps));
        largest = fmax(largest, report_largest(metrics->values[METRIC_RSS_BYTES], metrics->num_steps));
    }
    bool large = largest > 10 * 1073741824.0;
    spec.unit = large ? "GiB" : "MiB";
    spec.factor = large ? 1 / 1073741824.0 : 1 / 1048576.0;
    return print_values(report, &spec);
}

// clang-format off
static const ChartSpec throughput  = {"Throughput", "supervised tokens/s", {{"", report_supervised_per_s}}, 1, false},
                       utilisation = {"MFU", "% of the peak", {{"", report_mfu_percent}}, 1, false},
                       step_time   = {"Step time", "", {{"measured", report_step_ms}, {"predicted", report_predicted_ms}, {"lower bound", report_bound_ms}}, 1, false},
                       errors      = {"Step time beyond prediction", "% of it",
                                      {{"all", report_off_percent}, {"jobs", report_jobs_off_percent}, {"waiting", report_waiting_off_percent}, {"transfers", report_transfers_off_percent}}, 1, true},
                       padding     = {"Padding", "% of computed tokens", {{"", report_padding_percent}}, 1, false},
                       idle        = {"Idle time", "% of the pipeline, mean of ranks", {{"", report_idle_percent}}, 1, false},
                       memory      = {"Memory of the largest rank", "", {{"used by the process", report_rss_bytes}, {"planned", report_peak_bytes}}, 1, false},
                       planning    = {"Planning", "", {{"planning, in the background", report_plan_ms}, {"steps waited for it", report_plan_wait_ms}}, 1, false},
                       norm        = {"Gradient norm", "", {{"", report_norm}}, 1, false},
                       lr          = {"Learning rate", "", {{"", report_lr}}, 1, false};
// clang-format on

Status report_charts_print(const Report* report) {
    fprintf(report->out, "<div class=\"charts\">\n");
    TRY(print_loss(report));
    if (report->num_runs > 1) { TRY(print_validation(report)); }
    TRY(print_scores(report));
    TRY(print_values(report, &throughput));
    TRY(print_times(report, &step_time));
    TRY(print_values(report, &errors));
    TRY(print_values(report, &utilisation));
    TRY(print_values(report, &padding));
    TRY(print_values(report, &idle));
    TRY(print_memory(report, &memory));
    TRY(print_times(report, &planning));
    TRY(print_values(report, &norm));
    TRY(print_values(report, &lr));
    fprintf(report->out, "</div>\n");
    return STATUS_OK;
}
