// report_runs.c -- what ran, and its numbers: of one run lines and cards, of several a table, a column a run.
#include <math.h>
#include <string.h>

#include "report_parts.h"
#include "svg.h"

enum { MAX_SHOWN = 12 };  // of a list of steps

// --- what ran --------------------------------------------------------------------------------------------

static void print_cell(FILE* out, const char* text) {
    fprintf(out, "<td>");
    svg_print_escaped(out, text != NULL ? text : "–");
    fprintf(out, "</td>");
}

static const char* command_of(const MetricsRun* run) {
    return run->command;
}
static const char* model_of(const MetricsRun* run) {
    return run->model;
}
static const char* machine_of(const MetricsRun* run) {
    return run->machine;
}
static const char* commit_of(const MetricsRun* run) {
    return run->commit;
}

typedef const char* About(const MetricsRun* run);
static const struct {
    const char* name;
    About* about;
} abouts[] = {{"command", command_of}, {"model", model_of}, {"machine", machine_of}, {"commit", commit_of}};

// A row, where any run has something to say.
static void print_about(const Report* report, const char* name, About* about) {
    bool any = false;
    for (int32_t k = 0; k < report->num_runs; k++) { any |= about(&report->runs[k].metrics->run) != NULL; }
    if (!any) { return; }
    fprintf(report->out, "<tr><th>%s</th>", name);
    for (int32_t k = 0; k < report->num_runs; k++) {
        print_cell(report->out, about(&report->runs[k].metrics->run));
    }
    fprintf(report->out, "</tr>\n");
}

// The last ones where there are many.
static void print_steps(FILE* out, const double* steps, int32_t num) {
    char count[SVG_NUMBER_BYTES];
    int32_t first = num > MAX_SHOWN ? num - MAX_SHOWN : 0;
    for (int32_t i = first; i < num; i++) {
        fprintf(out, "%s%s", i > first ? ", " : first > 0 ? ".., " : "", svg_format_count(count, steps[i]));
    }
    if (num > 1) { fprintf(out, " (%d times)", num); }
}

static void print_resumes(const Report* report) {
    bool any = false;
    for (int32_t k = 0; k < report->num_runs; k++) { any |= report->runs[k].metrics->num_resumes > 0; }
    if (!any) { return; }
    fprintf(report->out, "<tr><th>went on at step</th>");
    for (int32_t k = 0; k < report->num_runs; k++) {
        const Metrics* metrics = report->runs[k].metrics;
        fprintf(report->out, "<td>");
        print_steps(report->out, metrics->resume_steps, metrics->num_resumes);
        fprintf(report->out, "%s</td>", metrics->num_resumes == 0 ? "–" : "");
    }
    fprintf(report->out, "</tr>\n");
}

// Steps, tokens, time. How long: "2 h 05 min", "83.1 s".
static void print_sizes(const Report* report) {
    char number[SVG_NUMBER_BYTES];
    fprintf(report->out, "<tr><th>ran</th>");
    for (int32_t k = 0; k < report->num_runs; k++) {
        const Metrics* metrics = report->runs[k].metrics;
        double tokens = report_total_tokens(metrics), s = report_total_s(metrics);
        int32_t n = metrics->num_steps;
        fprintf(report->out, "<td>%d step%s", n, n == 1 ? "" : "s");
        if (n > 1 || metrics->steps[0] != 1) {
            fprintf(report->out, " (%s", svg_format_count(number, metrics->steps[0]));
            fprintf(report->out, " to %s)", svg_format_count(number, metrics->steps[n - 1]));
        }
        if (isfinite(tokens)) { fprintf(report->out, ", %s tokens", svg_format_count(number, tokens)); }
        if (s >= 3600 && s < 1e9) {
            fprintf(report->out, ", %d h %02d min", (int)(s / 3600), (int)(fmod(s, 3600) / 60));
        } else if (isfinite(s)) {
            fprintf(report->out, ", %s", svg_format_time(number, s * 1e9));
        }
        fprintf(report->out, "</td>");
    }
    fprintf(report->out, "</tr>\n");
}

// --- options ---------------------------------------------------------------------------------------------

static const char* option_of(const MetricsRun* run, const char* name) {
    for (int32_t i = 0; i < run->num_options; i++) {
        bool is_it = run->option_names[i] != NULL && strcmp(run->option_names[i], name) == 0;
        if (is_it) { return run->option_values[i] != NULL ? run->option_values[i] : ""; }
    }
    return NULL;
}

static bool same_text(const char* a, const char* b) {
    return a == b || (a != NULL && b != NULL && strcmp(a, b) == 0);
}

// Met first in run `k`, and not the same in all.
static bool differs(const Report* report, int32_t k, const char* name) {
    bool any = false;
    const char* here = option_of(&report->runs[k].metrics->run, name);
    for (int32_t other = 0; other < report->num_runs; other++) {
        const MetricsRun* run = &report->runs[other].metrics->run;
        if (run->num_options == 0) { continue; }
        const char* there = option_of(run, name);
        if (other < k && there != NULL) { return false; }
        any |= !same_text(here, there);
    }
    return any;
}

// Rows of those that are not the same in all runs.
static void print_differing_options(const Report* report) {
    for (int32_t k = 0; k < report->num_runs && report->num_runs > 1; k++) {
        const MetricsRun* run = &report->runs[k].metrics->run;
        for (int32_t i = 0; i < run->num_options; i++) {
            const char* name = run->option_names[i];
            if (name == NULL || !differs(report, k, name)) { continue; }
            fprintf(report->out, "<tr><th>");
            svg_print_escaped(report->out, name);
            fprintf(report->out, "</th>");
            for (int32_t other = 0; other < report->num_runs; other++) {
                print_cell(report->out, option_of(&report->runs[other].metrics->run, name));
            }
            fprintf(report->out, "</tr>\n");
        }
    }
}

static void print_all_options(const Report* report) {
    const MetricsRun* run = &report->runs[0].metrics->run;
    if (report->num_runs > 1 || run->num_options == 0) { return; }
    fprintf(report->out, "<details><summary>%d options</summary>\n<p class=\"q\">", run->num_options);
    for (int32_t i = 0; i < run->num_options; i++) {
        if (run->option_names[i] == NULL) { continue; }
        fprintf(report->out, "%s", i > 0 ? ", " : "");
        svg_print_escaped(report->out, run->option_names[i]);
        fprintf(report->out, " ");
        svg_print_escaped(report->out, run->option_values[i] != NULL ? run->option_values[i] : "");
    }
    fprintf(report->out, "</p></details>\n");
}

// --- numbers ---------------------------------------------------------------------------------------------

static double last_loss(const Metrics* metrics) {
    int32_t n = metrics->num_steps, span = report_span_steps(n);
    return report_mean_between(metrics->values[METRIC_LOSS], n - span, n);
}

static double last_validation(const Metrics* metrics) {
    int32_t v = metrics->num_validations;
    return v > 0 ? metrics->validation_losses[v - 1] : NAN;
}

static double last_match(const Metrics* metrics) {
    int32_t n = metrics->num_scores;
    return n > 0 ? 100 * metrics->exact_match[n - 1] : NAN;
}

// One number of a run: of the run, or the median of its steps.
typedef struct {
    const char *id, *unit, *caption;
    double (*of_run)(const Metrics* metrics);  // NULL: the median of `of_step`
    Derive* of_step;
    int32_t decimals;
    bool has_sign;
} Figure;

static const Figure figures[] = {
    {"loss", "", "training loss, last steps", last_loss, NULL, 3, false},
    {"val", "", "validation loss, last", last_validation, NULL, 3, false},
    {"match", " %", "exact match, last", last_match, NULL, 1, false},
    {"speed", "", "supervised tokens/s, median", NULL, report_supervised_per_s, 0, false},
    {"step", "", "step time, median", NULL, report_step_ms, -1, false},
    {"mfu", " %", "MFU, median", NULL, report_mfu_percent, 1, false},
    {"padding", " %", "padding, whole run", report_total_padding_percent, NULL, 1, false},
    {"idle", " %", "idle time, median", NULL, report_idle_percent, 1, false},
    {"off", " %", "step time beyond prediction, median", NULL, report_off_percent, 1, true},
};
enum { NUM_FIGURES = sizeof figures / sizeof figures[0] };

static Status figure_value(double* out, const Figure* figure, const Report* report, int32_t k) {
    const Metrics* metrics = report->runs[k].metrics;
    if (figure->of_step != NULL) { return report_median(out, metrics, figure->of_step, report->arena); }
    *out = figure->of_run(metrics);
    return STATUS_OK;
}

static void print_value(FILE* out, const Figure* figure, double value) {
    char number[SVG_NUMBER_BYTES];
    svg_format_count(number, value);
    if (figure->decimals < 0) {
        svg_format_time(number, value * 1e6);
    } else if (figure->has_sign || fabs(value) < 10000) {
        snprintf(number, sizeof number, figure->has_sign ? "%+.*f" : "%.*f", figure->decimals, value);
    }
    fprintf(out, "%s%s", number, figure->unit);
}

static Status print_cards(const Report* report) {
    fprintf(report->out, "<div class=\"cards\">\n");
    for (int32_t i = 0; i < NUM_FIGURES; i++) {
        double value;
        TRY(figure_value(&value, &figures[i], report, 0));
        if (!isfinite(value)) { continue; }
        fprintf(report->out, "<div><b id=\"%s\">", figures[i].id);
        print_value(report->out, &figures[i], value);
        fprintf(report->out, "</b><span>%s</span></div>\n", figures[i].caption);
    }
    fprintf(report->out, "</div>\n");
    return STATUS_OK;
}

// Rows; those that no run knows are left out.
static Status print_figures(const Report* report) {
    for (int32_t i = 0; i < NUM_FIGURES; i++) {
        double values[REPORT_MAX_RUNS];
        bool any = false;
        for (int32_t k = 0; k < report->num_runs; k++) {
            TRY(figure_value(&values[k], &figures[i], report, k));
            any |= isfinite(values[k]);
        }
        if (!any) { continue; }
        fprintf(report->out, "<tr class=\"figure\"><th>%s</th>", figures[i].caption);
        for (int32_t k = 0; k < report->num_runs; k++) {
            fprintf(report->out, "<td>");
            if (isfinite(values[k])) {
                print_value(report->out, &figures[i], values[k]);
            } else {
                fprintf(report->out, "–");
            }
            fprintf(report->out, "</td>");
        }
        fprintf(report->out, "</tr>\n");
    }
    return STATUS_OK;
}

Status report_runs_print(const Report* report) {
    bool one = report->num_runs == 1;
    fprintf(report->out, "<table class=\"about\">\n");
    if (!one) {
        fprintf(report->out, "<tr><th></th>");
        for (int32_t k = 0; k < report->num_runs; k++) {
            fprintf(report->out, "<th class=\"run\"><span class=\"k k%d\">", k);
            svg_print_escaped(report->out, report->runs[k].name);
            fprintf(report->out, "</span></th>");
        }
        fprintf(report->out, "</tr>\n");
        TRY(print_figures(report));
    }
    print_sizes(report);
    print_resumes(report);
    for (int32_t i = 0; i < 4; i++) { print_about(report, abouts[i].name, abouts[i].about); }
    print_differing_options(report);
    fprintf(report->out, "</table>\n");
    print_all_options(report);
    for (int32_t k = 0; k < report->num_runs; k++) {
        const Metrics* metrics = report->runs[k].metrics;
        if (metrics->num_refits == 0) { continue; }
        fprintf(report->out, "<p class=\"q\">");
        if (!one) { svg_print_escaped(report->out, report->runs[k].name); }
        fprintf(report->out, "%sosts were corrected by measured steps behind step%s ", one ? "C" : ": c",
                metrics->num_refits > 1 ? "s" : "");
        print_steps(report->out, metrics->refit_steps, metrics->num_refits);
        fprintf(report->out, "</p>\n");
    }
    return one ? print_cards(report) : STATUS_OK;
}
