#include "report.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "timeline_svg.h"
#include "trace_view.h"
#include "../util/files.h"
#include "../util/status.h"

enum { MAX_PATH_BYTES = 4096 };

static const char* const metric_keys[METRIC_COUNT] = {
#define X(name, key) [name] = key,
    METRIC_LIST(X)
#undef X
};

// --- growing ---------------------------------------------------------------------------------------------

static bool grow_doubles(double** values, int32_t max) {
    double* grown = realloc(*values, sizeof(double) * (size_t)max);
    if (grown == NULL) { return false; }
    *values = grown;
    return true;
}

static bool make_room(Metrics* metrics) {
    if (metrics->num_steps < metrics->max_steps) { return true; }
    if (metrics->max_steps > INT32_MAX / 4) { return false; }
    int32_t max = metrics->max_steps > 0 ? 2 * metrics->max_steps : 1024;
    bool grown = grow_doubles(&metrics->steps, max);
    for (int32_t k = 0; k < METRIC_COUNT; k++) { grown = grown && grow_doubles(&metrics->values[k], max); }
    for (int32_t t = 0; t < metrics->num_tasks; t++) {
        grown = grown && grow_doubles(&metrics->tasks[t].losses, max);
    }
    if (grown) { metrics->max_steps = max; }
    return grown;
}

// Of rising steps, those before `step` stay.
static void cut_marks(const double* steps, int32_t* count, double step) {
    while (*count > 0 && steps[*count - 1] >= step) { (*count)--; }
}

// One more at the end of a list of rising steps; those at `step` and behind it are forgotten.
static Status add_step_mark(double** steps, int32_t* count, int32_t* max_count, double step) {
    cut_marks(*steps, count, step);
    if (*count == *max_count) {
        int32_t max = *count > 0 ? 2 * *count : 64;
        if (!grow_doubles(steps, max)) { return FAIL(STATUS_NO_MEMORY, "no memory for %d steps", max); }
        *max_count = max;
    }
    (*steps)[(*count)++] = step;
    return STATUS_OK;
}

// Its losses so far are NAN. NULL with tasks_left counted where there are too many.
static Status find_task(MetricsTask** out, Metrics* metrics, const char* key) {
    const char* name = PRINTABLE(key);
    *out = NULL;
    for (int32_t t = 0; t < metrics->num_tasks; t++) {
        if (strcmp(metrics->tasks[t].name, name) == 0) {
            *out = &metrics->tasks[t];
            return STATUS_OK;
        }
    }
    if (metrics->num_tasks == METRICS_MAX_TASKS) {
        metrics->tasks_left++;
        return STATUS_OK;
    }
    MetricsTask* task = &metrics->tasks[metrics->num_tasks];
    *task =
        (MetricsTask){.name = strdup(name),
                      .losses = malloc(sizeof(double) * (size_t)metrics->max_steps),
                      .validation_losses = malloc(sizeof(double) * ((size_t)metrics->max_validations + 1)),
                      .exact_match = NAN,
                      .rouge_l = NAN};
    metrics->num_tasks++;
    if (task->name == NULL || task->losses == NULL || task->validation_losses == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for tasks");
    }
    for (int32_t i = 0; i < metrics->max_steps; i++) { task->losses[i] = NAN; }
    for (int32_t i = 0; i < metrics->max_validations; i++) { task->validation_losses[i] = NAN; }
    *out = task;
    return STATUS_OK;
}

// --- validations, answers, corrections -------------------------------------------------------------------

static double number_of(const json_t* value) {
    return json_is_number(value) ? json_number_value(value) : NAN;
}

// A list stands for its mean (idle) or its largest (bytes).
static double metric_of(Metric metric, const json_t* value) {
    if (!json_is_array(value)) { return number_of(value); }
    double sum = 0, largest = NAN;
    size_t num_values = json_array_size(value);
    for (size_t i = 0; i < num_values; i++) {
        double x = number_of(json_array_get(value, i));
        sum += x;
        largest = fmax(largest, x);
    }
    if (num_values == 0) { return NAN; }
    return metric == METRIC_IDLE ? sum / (double)num_values : largest;
}

// Sets a field of every task that has a value; returns the mean of the values.
static Status add_task_scores(double* mean, Metrics* metrics, const json_t* by_task, size_t field) {
    double sum = 0;
    int32_t n = 0;
    const char* name;
    json_t* value;
    json_object_foreach((json_t*)(uintptr_t)by_task, name, value) {
        MetricsTask* task;
        TRY(find_task(&task, metrics, name));
        if (task != NULL) { *(double*)(void*)((char*)task + field) = number_of(value); }
        sum += number_of(value);
        n++;
    }
    *mean = n > 0 ? sum / n : NAN;
    return STATUS_OK;
}

// What the model answered after so many steps.
static Status add_scores(Metrics* metrics, const json_t* record, double step) {
    const json_t *exact = json_object_get(record, "exact_match"), *rouge = json_object_get(record, "rouge_l");
    if (exact == NULL || rouge == NULL) { return STATUS_OK; }
    int32_t* count = &metrics->num_scores;
    cut_marks(metrics->score_steps, count, step);
    if (*count == metrics->max_scores) {
        int32_t max = *count > 0 ? 2 * *count : 64;
        if (!grow_doubles(&metrics->score_steps, max) || !grow_doubles(&metrics->exact_match, max) ||
            !grow_doubles(&metrics->rouge_l, max)) {
            return FAIL(STATUS_NO_MEMORY, "no memory for %d validations", max);
        }
        metrics->max_scores = max;
    }
    metrics->score_steps[*count] = step;
    TRY(add_task_scores(&metrics->exact_match[*count], metrics, exact, offsetof(MetricsTask, exact_match)));
    TRY(add_task_scores(&metrics->rouge_l[*count], metrics, rouge, offsetof(MetricsTask, rouge_l)));
    (*count)++;
    return STATUS_OK;
}

static Status add_validation(Metrics* metrics, double step, double loss, const json_t* by_task) {
    int32_t* count = &metrics->num_validations;
    cut_marks(metrics->validation_steps, count, step);
    if (*count == metrics->max_validations) {
        int32_t max = *count > 0 ? 2 * *count : 256;
        bool grown =
            grow_doubles(&metrics->validation_steps, max) && grow_doubles(&metrics->validation_losses, max);
        for (int32_t t = 0; t < metrics->num_tasks; t++) {
            grown = grown && grow_doubles(&metrics->tasks[t].validation_losses, max);
        }
        if (!grown) { return FAIL(STATUS_NO_MEMORY, "no memory for %d validation losses", max); }
        metrics->max_validations = max;
    }
    int32_t i = *count;
    metrics->validation_steps[i] = step;
    metrics->validation_losses[i] = loss;
    for (int32_t t = 0; t < metrics->num_tasks; t++) { metrics->tasks[t].validation_losses[i] = NAN; }
    const char* name;
    json_t* value;
    json_object_foreach((json_t*)(uintptr_t)by_task, name, value) {
        MetricsTask* task;
        TRY(find_task(&task, metrics, name));
        if (task != NULL) { task->validation_losses[i] = number_of(value); }
    }
    (*count)++;
    return STATUS_OK;
}

static Status add_validation_record(Metrics* metrics, const json_t* record, double step) {
    const json_t *tasks = json_object_get(record, "tasks"), *loss = json_object_get(record, "loss");
    if (tasks == NULL) { tasks = json_object_get(record, "task_loss"); }
    if (isnan(step)) { return STATUS_OK; }
    if (!make_room(metrics)) { return FAIL(STATUS_NO_MEMORY, "no memory for tasks"); }
    if (loss != NULL || tasks != NULL) { TRY(add_validation(metrics, step, number_of(loss), tasks)); }
    return add_scores(metrics, record, step);
}

static Status add_refit(Metrics* metrics, const json_t* record) {
    double step = number_of(json_object_get(record, "refit"));
    if (isnan(step)) { return STATUS_OK; }
    return add_step_mark(&metrics->refit_steps, &metrics->num_refits, &metrics->max_refits, step);
}

// --- a start ---------------------------------------------------------------------------------------------

static void free_run(MetricsRun* run) {
    free(run->command);
    free(run->commit);
    free(run->model);
    free(run->machine);
    for (int32_t i = 0; i < run->num_options; i++) {
        free(run->option_names[i]);
        free(run->option_values[i]);
    }
    *run = (MetricsRun){0};
}

// As it would be typed: text plain, all else as JSON. NULL: it is not there (or no memory).
static char* text_of(const json_t* value) {
    if (value == NULL || json_is_null(value)) { return NULL; }
    if (json_is_string(value)) { return strdup(PRINTABLE(json_string_value(value))); }
    return json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(6));
}

// The first start is no resume, unless its steps begin behind 0.
static Status add_start(Metrics* metrics, const json_t* record) {
    MetricsRun* run = &metrics->run;
    double step = number_of(json_object_get(record, "step"));
    free_run(run);
    *run = (MetricsRun){.command = text_of(json_object_get(record, "command")),
                        .commit = text_of(json_object_get(record, "commit")),
                        .model = text_of(json_object_get(record, "model")),
                        .machine = text_of(json_object_get(record, "machine"))};
    const char* name;
    json_t* value;
    json_object_foreach(json_object_get(record, "options"), name, value) {
        if (run->num_options == METRICS_MAX_OPTIONS) { break; }
        run->option_names[run->num_options] = strdup(PRINTABLE(name));
        run->option_values[run->num_options++] = text_of(value);
    }
    if (!(step > 0)) { return STATUS_OK; }
    return add_step_mark(&metrics->resume_steps, &metrics->num_resumes, &metrics->max_resumes, step);
}

// --- one record ------------------------------------------------------------------------------------------

// What a run that went back to a checkpoint does again: this step, and all that came behind. Where no record
// of a start says so, it is known from that.
static Status forget_from(Metrics* metrics, double step) {
    int32_t before = metrics->num_steps;
    cut_marks(metrics->steps, &metrics->num_steps, step);
    cut_marks(metrics->refit_steps, &metrics->num_refits, step);
    cut_marks(metrics->validation_steps, &metrics->num_validations, step);
    cut_marks(metrics->score_steps, &metrics->num_scores, step);
    cut_marks(metrics->resume_steps, &metrics->num_resumes, step);
    bool is_marked = metrics->num_resumes > 0 && metrics->resume_steps[metrics->num_resumes - 1] >= step - 1;
    if (metrics->num_steps == before || is_marked || metrics->num_steps == 0) { return STATUS_OK; }
    return add_step_mark(&metrics->resume_steps, &metrics->num_resumes, &metrics->max_resumes,
                         metrics->steps[metrics->num_steps - 1]);
}

#define NOT_OF_A_RUN STATUS_MISMATCH

static Status add_record(Metrics* metrics, json_t* record) {
    const char* kind = json_string_value(json_object_get(record, "kind"));
    if (kind != NULL && strcmp(kind, "run") == 0) { return add_start(metrics, record); }
    if (kind != NULL && strcmp(kind, "validation") == 0) {
        return add_validation_record(metrics, record, number_of(json_object_get(record, "step")));
    }
    const json_t* validation = json_object_get(record, "validation");
    if (validation != NULL) { return add_validation_record(metrics, record, number_of(validation)); }
    if (json_object_get(record, "refit") != NULL) { return add_refit(metrics, record); }
    double last = metrics->num_steps > 0 ? metrics->steps[metrics->num_steps - 1] : 0;
    double step = number_of(json_object_get(record, "step"));
    if (isnan(step) && json_object_get(record, "loss") == NULL) { return NOT_OF_A_RUN; }
    if (isnan(step)) { step = last + 1; }
    TRY(forget_from(metrics, step));
    if (!make_room(metrics)) { return FAIL(STATUS_NO_MEMORY, "no memory for %d steps", metrics->num_steps); }
    metrics->num_ranks = (int32_t)json_array_size(json_object_get(record, metric_keys[METRIC_IDLE]));
    int32_t i = metrics->num_steps;
    metrics->steps[i] = step;
    for (int32_t k = 0; k < METRIC_COUNT; k++) {
        metrics->values[k][i] = metric_of((Metric)k, json_object_get(record, metric_keys[k]));
    }
    for (int32_t t = 0; t < metrics->num_tasks; t++) { metrics->tasks[t].losses[i] = NAN; }
    const char* name;
    json_t* loss;
    json_object_foreach(json_object_get(record, "task_loss"), name, loss) {
        MetricsTask* task;
        TRY(find_task(&task, metrics, name));
        if (task != NULL) { task->losses[i] = number_of(loss); }
    }
    metrics->num_steps++;
    return STATUS_OK;
}

// JSON has no NaN and no Infinity, other programs write them all the same: an empty list, which is
// no number, in place, outside of strings.
static void blank_non_finite(char* line, size_t num_bytes) {
    static const char* const words[] = {"-Infinity", "Infinity", "NaN", "-nan", "-inf", "nan", "inf"};
    bool in_string = false;
    for (size_t i = 0; i < num_bytes; i++) {
        if (line[i] == '"') { in_string = !in_string; }
        if (in_string && line[i] == '\\') { i++; }
        if (in_string || memchr("-INni", line[i], 5) == NULL) { continue; }
        for (int32_t w = 0; w < 7; w++) {
            size_t length = strlen(words[w]);
            if (num_bytes - i < length || strncmp(line + i, words[w], length) != 0) { continue; }
            memset(line + i, ' ', length);
            memcpy(line + i, "[]", 2);
            i += length - 1;
            break;
        }
    }
}

static bool is_blank(const char* line, size_t num_bytes) {
    for (size_t i = 0; i < num_bytes; i++) {
        if (strchr(" \t\r", line[i]) == NULL || line[i] == '\0') { return false; }
    }
    return true;
}

static Status parse_lines(Metrics* metrics, char* text, size_t num_bytes, const char* path) {
    int32_t line_number = 0;
    for (size_t at = 0; at < num_bytes;) {
        char *line = text + at, *newline = memchr(line, '\n', num_bytes - at);
        size_t line_bytes = newline != NULL ? (size_t)(newline - line) : num_bytes - at;
        at += line_bytes + 1;
        line_number++;
        if (is_blank(line, line_bytes)) { continue; }
        blank_non_finite(line, line_bytes);
        json_error_t error;
        json_t* record = json_loadb(line, line_bytes, 0, &error);
        if (record == NULL && newline == NULL) {
            metrics->cut_line = line_number;
            return STATUS_OK;
        }
        if (!json_is_object(record)) {
            bool malformed = record == NULL;
            json_decref(record);
            return FAIL(STATUS_BAD_FORMAT,
                        "%s:%d: %s ---> one record a line, as the trainer writes with -o; delete that line",
                        path, line_number, malformed ? error.text : "not an object");
        }
        Status status = add_record(metrics, record);
        json_decref(record);
        if (status == NOT_OF_A_RUN) {
            return FAIL(
                STATUS_BAD_FORMAT,
                "%s:%d: neither step nor loss in it ---> metrics.jsonl, as the trainer writes it into its "
                "-o DIRECTORY",
                path, line_number);
        }
        TRY(status);
    }
    return STATUS_OK;
}

// --- the log beside it -----------------------------------------------------------------------------------

// main.log beside the metrics: lines "s:20 tel:3.34"; everything else in it is for others.
static Status load_validations(Metrics* metrics, const char* metrics_path) {
    char path[MAX_PATH_BYTES];
    const char* slash = strrchr(metrics_path, '/');
    int folder = slash != NULL ? (int)(slash - metrics_path) + 1 : 0;
    if (snprintf(path, sizeof path, "%.*smain.log", folder, metrics_path) >= MAX_PATH_BYTES) {
        return STATUS_OK;
    }
    if (access(path, R_OK) != 0) { return STATUS_OK; }
    char* text;
    size_t num_bytes;
    TRY(file_read_text(&text, &num_bytes, path));
    Status status = STATUS_OK;
    for (char* line = text; line != NULL && status == STATUS_OK;) {
        double step, loss;
        if (sscanf(line, "s:%lf tel:%lf", &step, &loss) == 2 && isfinite(step)) {
            status = add_validation(metrics, step, loss, NULL);
        }
        char* newline = strchr(line, '\n');
        line = newline != NULL ? newline + 1 : NULL;
    }
    free(text);
    return status;
}

Status metrics_load(Metrics* out, const char* path_or_folder) {
    char path[MAX_PATH_BYTES];
    struct stat about;
    bool is_folder = stat(path_or_folder, &about) == 0 && S_ISDIR(about.st_mode);
    *out = (Metrics){0};
    if (snprintf(path, sizeof path, "%s%s", path_or_folder, is_folder ? "/metrics.jsonl" : "") >=
        MAX_PATH_BYTES) {
        return FAIL(STATUS_IO, "%s: cannot read: too long a name", path_or_folder);
    }
    if (access(path, R_OK) != 0) {
        return FAIL(STATUS_IO, "%s: cannot read ---> the trainer writes it into its -o DIRECTORY", path);
    }
    char* text;
    size_t num_bytes;
    TRY(file_read_text(&text, &num_bytes, path));
    Status status = parse_lines(out, text, num_bytes, path);
    free(text);
    if (status == STATUS_OK && out->num_steps == 0) {
        status = FAIL(STATUS_BAD_FORMAT,
                      "%s:%d: no complete record ---> train with -o DIRECTORY, at least one step", path,
                      out->cut_line > 0 ? out->cut_line : 1);
    }
    if (status == STATUS_OK && out->num_validations == 0) { status = load_validations(out, path); }
    if (status != STATUS_OK) { metrics_free(out); }
    return status;
}

void metrics_free(Metrics* metrics) {
    free(metrics->steps);
    for (int32_t k = 0; k < METRIC_COUNT; k++) { free(metrics->values[k]); }
    for (int32_t t = 0; t < metrics->num_tasks; t++) {
        free(metrics->tasks[t].name);
        free(metrics->tasks[t].losses);
        free(metrics->tasks[t].validation_losses);
    }
    free(metrics->validation_steps);
    free(metrics->validation_losses);
    free(metrics->score_steps);
    free(metrics->exact_match);
    free(metrics->rouge_l);
    free(metrics->refit_steps);
    free(metrics->resume_steps);
    free_run(&metrics->run);
    *metrics = (Metrics){0};
}

// --- line_chart --------------------

// Pixels.
static const double WIDTH = 560, HEIGHT = 220, LEFT = 58, RIGHT = 16, TOP = 12, BOTTOM = 28;

// What one bucket of steps became; all but the steps are NAN where it has no finite value.
typedef struct {
    double step, last_step;
    double mean, low, high;  // the 10th and 90th percentile
    double least, greatest;
} ChartPoint;

typedef struct {
    ChartPoint* points;
    int32_t num_points, num_finite;  // num_finite values went into them
} Thinned;

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

// values[0, count), which are sorted.
static ChartPoint point_of(double step, double last_step, double* values, int32_t count) {
    ChartPoint point = {step, last_step, NAN, NAN, NAN, NAN, NAN};
    if (count == 0) { return point; }
    qsort(values, (size_t)count, sizeof(double), compare_doubles);
    double sum = 0;
    for (int32_t i = 0; i < count; i++) { sum += values[i] / count; }
    point.mean = sum;
    point.low = values[(count - 1) / 10];
    point.high = values[(count - 1) - (count - 1) / 10];
    point.least = values[0];
    point.greatest = values[count - 1];
    return point;
}

static Status thin_out(Thinned* out, const ChartSeries* series) {
    int32_t n = series->num_points, num_buckets = n < CHART_BUCKETS ? n : CHART_BUCKETS;
    *out = (Thinned){.points = malloc(sizeof(ChartPoint) * (size_t)(num_buckets + 1))};
    double* values = malloc(sizeof(double) * (size_t)(num_buckets > 0 ? n / num_buckets + 2 : 1));
    if (out->points == NULL || values == NULL) {
        free(values);
        return FAIL(STATUS_NO_MEMORY, "no memory for a chart ---> free memory");
    }
    for (int32_t b = 0; b < num_buckets; b++) {
        int32_t begin = (int32_t)((int64_t)n * b / num_buckets);
        int32_t end = (int32_t)((int64_t)n * (b + 1) / num_buckets), count = 0;
        for (int32_t i = begin; i < end; i++) {
            if (isfinite(series->values[i])) { values[count++] = series->values[i]; }
        }
        out->points[out->num_points++] =
            point_of(series->steps[begin], series->steps[end - 1], values, count);
        out->num_finite += count;
    }
    free(values);
    return STATUS_OK;
}

// --- axes ------------------------------------------------------------------------------------------------

typedef struct {
    SvgScale x, y;
    bool is_log;             // y is of logarithms
    double low, high, tick;  // of the value axis; no tick where is_log
    int32_t num_cut;         // values above `high`
    double largest;          // value
} Axes;

// Everything that is to be drawn, sorted. *count 0: nothing.
static Status sort_values(double** out, int32_t* count, const LineChart* chart, const Thinned* thinned) {
    *out = malloc(sizeof(double) * 3 * CHART_BUCKETS * CHART_MAX_SERIES);
    *count = 0;
    if (*out == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a chart ---> free memory"); }
    for (int32_t k = 0; k < chart->num_series; k++) {
        for (int32_t i = 0; i < thinned[k].num_points; i++) {
            const ChartPoint* point = &thinned[k].points[i];
            if (isnan(point->mean)) { continue; }
            (*out)[(*count)++] = point->mean;
            if (chart->series[k].num_points <= CHART_BUCKETS) { continue; }
            (*out)[(*count)++] = point->low;
            (*out)[(*count)++] = point->high;
        }
    }
    qsort(*out, (size_t)*count, sizeof(double), compare_doubles);
    return STATUS_OK;
}

// Up to a multiple of the tick. Where the largest lies at twice what 97 in 100 reach, that is enough.
static Status choose_axes(Axes* out, int32_t* count, const LineChart* chart, const Thinned* thinned) {
    double* values;
    TRY(sort_values(&values, count, chart, thinned));
    *out = (Axes){0};
    double low = 0, high = 1;
    if (*count > 0) {
        double most = values[(int32_t)((*count - 1) * 0.97)];
        low = values[0], high = out->largest = values[*count - 1];
        if (*count >= 10 && -low <= 2 * most && high > 2 * most && most > 0) { high = most * 1.25; }
    }
    if (chart->show_zero) { low = fmin(low, 0), high = fmax(high, 0); }
    if (chart->from_zero && low > 0) { low = 0; }
    if (!(high - low > fabs(high) * 1e-9)) { high = low + (low != 0 ? fabs(low) * 0.1 : 1); }
    out->tick = svg_tick_step(high - low, 5);
    out->low = floor(low / out->tick + 1e-9) * out->tick;
    out->high = ceil(high / out->tick - 1e-9) * out->tick;
    while (out->num_cut < *count && values[*count - 1 - out->num_cut] > out->high * (1 + 1e-9)) {
        out->num_cut++;
    }
    free(values);
    out->x = svg_scale(chart->first_step, chart->last_step, LEFT, WIDTH - RIGHT);
    out->y = svg_scale(out->low, out->high, HEIGHT - BOTTOM, TOP);
    return STATUS_OK;
}

// From the least value to the largest, which are above 0; a decade at least a tenth wide.
static void make_log(Axes* axes, double least, double largest) {
    double low = log10(least), high = log10(largest);
    if (high - low < 0.1) { low -= 0.05, high += 0.05; }
    double room = 0.02 * (high - low);
    axes->is_log = true;
    axes->num_cut = 0;
    axes->low = pow(10, low - room);
    axes->high = pow(10, high + room);
    axes->y = svg_scale(low - room, high + room, HEIGHT - BOTTOM, TOP);
}

// On the page: what lies above the axis is drawn at its end.
static double value_px(const Axes* axes, double value) {
    double inside = fmin(fmax(value, axes->low), axes->high);
    return svg_scale_px(&axes->y, axes->is_log ? log10(inside) : inside);
}

// `step` tells how many decimals it takes. Pushed left where it would leave the drawing.
static void print_tick(FILE* out, double x, double y, const char* anchor, double value, double step) {
    char text[SVG_NUMBER_BYTES];
    if (value == 0 || fabs(value) >= 10000 || step < 1e-4) {
        svg_format_count(text, value);
    } else {
        snprintf(text, sizeof text, "%.*f", svg_tick_decimals(step), value);
    }
    bool leaves = x + svg_digits_px((int32_t)strlen(text), 11) / 2 > WIDTH;
    svg_print_text(out, leaves ? WIDTH - 1 : x, y, leaves ? "end" : anchor, NULL, text);
}

static void print_log_tick(FILE* out, const Axes* axes, double value) {
    char text[SVG_NUMBER_BYTES];
    double y = value_px(axes, value);
    fprintf(out, "<path class=\"grid\" d=\"M%.0f %.2fH%.0f\"/>\n", LEFT, y, WIDTH - RIGHT);
    svg_print_text(out, LEFT - 8, y + 4, "end", NULL, svg_format_count(text, value));
}

// At 1, 2, 5 of each decade; of many decades at 1; of a part of one as on a plain axis.
static void print_log_ticks(FILE* out, const Axes* axes) {
    static const double factors[] = {1, 2, 5};
    double decades = log10(axes->high / axes->low);
    fprintf(out, "<path class=\"axis\" d=\"M%.0f %.2fH%.0f\"/>\n", LEFT, HEIGHT - BOTTOM, WIDTH - RIGHT);
    if (decades < 1) {
        double step = svg_tick_step(axes->high - axes->low, 6);
        for (double at = ceil(axes->low / step) * step; at <= axes->high; at += step) {
            print_log_tick(out, axes, at);
        }
        return;
    }
    int32_t pitch = (int32_t)ceil(decades / 8);
    for (int32_t k = (int32_t)floor(log10(axes->low)); k <= (int32_t)log10(axes->high) + 1; k++) {
        for (int32_t i = 0; i < (decades < 3 ? 3 : 1); i++) {
            double value = factors[i] * pow(10, k);
            bool shown = k % pitch == 0 && value >= axes->low && value <= axes->high;
            if (shown) { print_log_tick(out, axes, value); }
        }
    }
}

static void print_linear_ticks(FILE* out, const Axes* axes) {
    int32_t num_ticks = (int32_t)floor((axes->high - axes->low) / axes->tick + 0.5);
    for (int32_t i = 0; i <= num_ticks && i <= 20; i++) {
        double value = axes->low + i * axes->tick, y = svg_scale_px(&axes->y, value);
        if (fabs(value) < axes->tick * 1e-6) { value = 0; }
        fprintf(out, "<path class=\"%s\" d=\"M%.0f %.2fH%.0f\"/>\n", i == 0 ? "axis" : "grid", LEFT, y,
                WIDTH - RIGHT);
        print_tick(out, LEFT - 8, y + 4, "end", value, axes->tick);
    }
}

static void print_marks(FILE* out, const Axes* axes, const LineChart* chart) {
    char number[SVG_NUMBER_BYTES];
    for (int32_t i = 0; i < chart->num_marks; i++) {
        fprintf(out, "<path class=\"mark\" d=\"M%.1f %.0fV%.0f\"><title>went on at step %s</title></path>\n",
                svg_scale_px(&axes->x, chart->marks[i]), TOP, HEIGHT - BOTTOM,
                svg_format_count(number, chart->marks[i]));
    }
}

static void print_axes(FILE* out, const Axes* axes, const LineChart* chart) {
    if (axes->is_log) {
        print_log_ticks(out, axes);
    } else {
        print_linear_ticks(out, axes);
    }
    print_marks(out, axes, chart);
    svg_print_text(out, LEFT - 8, HEIGHT - 10, "end", NULL, "step");
    double span = chart->last_step - chart->first_step, step = fmax(1, svg_tick_step(span, 7));
    for (int32_t i = 0; i <= 20; i++) {
        double at = (ceil(chart->first_step / step) + i) * step;
        if (at > chart->last_step) { break; }
        print_tick(out, svg_scale_px(&axes->x, at), HEIGHT - 10, "middle", at, step);
    }
    if (chart->show_zero && !axes->is_log) {
        fprintf(out, "<path class=\"zero\" d=\"M%.0f %.2fH%.0f\"/>\n", LEFT, svg_scale_px(&axes->y, 0),
                WIDTH - RIGHT);
    }
}

// --- lines -----------------------------------------------------------------------------------------------

static double point_px(const Axes* axes, const ChartPoint* point) {
    return svg_scale_px(&axes->x, (point->step + point->last_step) / 2);
}

// Areas between the least and the greatest value, one for each run without gaps.
static void print_band(FILE* out, const Axes* axes, const Thinned* thinned, int32_t series) {
    fprintf(out, "<path class=\"b%d\" d=\"", series);
    for (int32_t i = 0; i < thinned->num_points;) {
        int32_t end = i;
        while (end < thinned->num_points && !isnan(thinned->points[end].mean)) { end++; }
        for (int32_t k = i; k < end; k++) {
            fprintf(out, "%c%.1f %.1f", k == i ? 'M' : 'L', point_px(axes, &thinned->points[k]),
                    value_px(axes, thinned->points[k].high));
        }
        for (int32_t k = end - 1; k >= i; k--) {
            fprintf(out, "L%.1f %.1f", point_px(axes, &thinned->points[k]),
                    value_px(axes, thinned->points[k].low));
        }
        if (end > i) { fputc('Z', out); }
        i = end + 1;
    }
    fprintf(out, "\"/>\n");
}

static bool is_gap(const Thinned* thinned, int32_t i) {
    return i < 0 || i >= thinned->num_points || isnan(thinned->points[i].mean);
}

static void print_line(FILE* out, const Axes* axes, const Thinned* thinned, int32_t series, bool dots) {
    fprintf(out, "<path class=\"s%d\" d=\"", series);
    for (int32_t i = 0; i < thinned->num_points; i++) {
        if (is_gap(thinned, i)) { continue; }
        fprintf(out, "%c%.1f %.1f", is_gap(thinned, i - 1) ? 'M' : 'L', point_px(axes, &thinned->points[i]),
                value_px(axes, thinned->points[i].mean));
    }
    fprintf(out, "\"/>\n");
    for (int32_t i = 0; i < thinned->num_points; i++) {
        bool alone = is_gap(thinned, i - 1) && is_gap(thinned, i + 1);
        if (is_gap(thinned, i) || (!dots && !alone)) { continue; }
        fprintf(out, "<circle class=\"d%d\" cx=\"%.1f\" cy=\"%.1f\" r=\"2.6\"/>\n", series,
                point_px(axes, &thinned->points[i]), value_px(axes, thinned->points[i].mean));
    }
}

// The point of these that stands for the same steps; NULL: none.
static const ChartPoint* twin_of(const ChartPoint* at, const Thinned* thinned) {
    for (int32_t i = 0; i < thinned->num_points; i++) {
        const ChartPoint* point = &thinned->points[i];
        if (point->step == at->step && point->last_step == at->last_step) { return point; }
    }
    return NULL;
}

// What a pointer over a step is told, by the steps of the series that has most.
static void print_hover(FILE* out, const Axes* axes, const LineChart* chart, const Thinned* thinned) {
    const Thinned* most = &thinned[0];
    for (int32_t k = 1; k < chart->num_series; k++) {
        if (thinned[k].num_points > most->num_points) { most = &thinned[k]; }
    }
    int32_t num_points = most->num_points;
    double pitch = (WIDTH - LEFT - RIGHT) / (num_points > 0 ? num_points : 1);
    char number[SVG_NUMBER_BYTES];
    fprintf(out, "<g class=\"h\">\n");
    for (int32_t i = 0; i < num_points; i++) {
        const ChartPoint* at = &most->points[i];
        fprintf(out, "<rect x=\"%.1f\" y=\"%.0f\" width=\"%.1f\" height=\"%.0f\"><title>step %s",
                point_px(axes, at) - pitch / 2, TOP, pitch, HEIGHT - TOP - BOTTOM,
                svg_format_count(number, at->step));
        if (at->last_step > at->step) { fprintf(out, " to %s", svg_format_count(number, at->last_step)); }
        for (int32_t k = 0; k < chart->num_series; k++) {
            const ChartPoint* point = twin_of(at, &thinned[k]);
            if (point == NULL || isnan(point->mean)) { continue; }
            fprintf(out, ", ");
            svg_print_escaped(out, chart->series[k].name);
            fprintf(out, " %s", svg_format_count(number, point->mean));
            if (point->least == point->greatest) { continue; }
            fprintf(out, " (%s", svg_format_count(number, point->least));
            fprintf(out, " to %s)", svg_format_count(number, point->greatest));
        }
        fprintf(out, "</title></rect>\n");
    }
    fprintf(out, "</g>\n");
}

// --- the figure ------------------------------------------------------------------------------------------

static void print_caption(FILE* out, const LineChart* chart, const Thinned* thinned) {
    fprintf(out, "<figure><figcaption><b>");
    svg_print_escaped(out, chart->title);
    fprintf(out, "</b>");
    if (chart->unit[0] != '\0') {
        fprintf(out, " <span class=\"q\">");
        svg_print_escaped(out, chart->unit);
        fprintf(out, "</span>");
    }
    for (int32_t k = 0; k < chart->num_series && chart->num_series > 1; k++) {
        if (thinned[k].num_finite == 0) { continue; }
        fprintf(out, " <span class=\"k k%d\">", k);
        svg_print_escaped(out, chart->series[k].name);
        fprintf(out, "</span>");
    }
    fprintf(out, "</figcaption>\n");
}

static void print_notes(FILE* out, const LineChart* chart, const Axes* axes, const Thinned* thinned) {
    int32_t num_gaps = 0;
    char number[SVG_NUMBER_BYTES];
    for (int32_t k = 0; k < chart->num_series; k++) {
        if (thinned[k].num_finite > 0) { num_gaps += chart->series[k].num_points - thinned[k].num_finite; }
    }
    if (num_gaps == 0 && axes->num_cut == 0) { return; }
    fprintf(out, "<p class=\"q\">");
    if (axes->num_cut > 0) {
        fprintf(out, "%d value%s above the axis, up to %s. ", axes->num_cut, axes->num_cut == 1 ? "" : "s",
                svg_format_count(number, axes->largest));
    }
    if (num_gaps > 0) {
        fprintf(out, "%d value%s missing or not finite.", num_gaps, num_gaps == 1 ? " is" : "s are");
    }
    fprintf(out, "</p>\n");
}

static void print_drawing(FILE* out, const LineChart* chart, const Axes* axes, const Thinned* thinned) {
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"%s\" viewBox=\"0 0 %.0f %.0f\">\n",
            axes->is_log ? "log" : "lin", WIDTH, HEIGHT);
    print_axes(out, axes, chart);
    for (int32_t k = 0; k < chart->num_series; k++) {
        if (chart->series[k].num_points > CHART_BUCKETS) { print_band(out, axes, &thinned[k], k); }
    }
    for (int32_t k = chart->num_series - 1; k >= 0; k--) {
        print_line(out, axes, &thinned[k], k, chart->series[k].dots);
    }
    print_hover(out, axes, chart, thinned);
    fprintf(out, "</svg>\n");
}

// Of all that is drawn; NAN, NAN where that is nothing.
static void find_ends(double* least, double* largest, const LineChart* chart, const Thinned* thinned) {
    *least = *largest = NAN;
    for (int32_t k = 0; k < chart->num_series; k++) {
        for (int32_t i = 0; i < thinned[k].num_points; i++) {
            const ChartPoint* point = &thinned[k].points[i];
            bool has_band = chart->series[k].num_points > CHART_BUCKETS;
            *least = fmin(*least, has_band ? point->low : point->mean);
            *largest = fmax(*largest, has_band ? point->high : point->mean);
        }
    }
}

// No two finite values that differ, and not one alone: a line that shows nothing. *value is theirs; NAN:
// none.
static bool line_chart_is_flat(const ChartSeries* series, double* value) {
    int32_t num_values = 0;
    *value = NAN;
    for (int32_t i = 0; i < series->num_points; i++) {
        if (!isfinite(series->values[i])) { continue; }
        if (num_values++ > 0 && series->values[i] != *value) { return false; }
        *value = series->values[i];
    }
    return num_values != 1;
}

// A <figure> with title, key and drawing.
static Status line_chart_print(FILE* out, const LineChart* chart) {
    Thinned thinned[CHART_MAX_SERIES] = {{NULL, 0, 0}};
    Axes axes;
    int32_t count = 0;
    Status status = STATUS_OK;
    for (int32_t k = 0; k < chart->num_series && status == STATUS_OK; k++) {
        status = thin_out(&thinned[k], &chart->series[k]);
    }
    if (status == STATUS_OK) { status = choose_axes(&axes, &count, chart, thinned); }
    if (status == STATUS_OK) {
        double least, largest;
        find_ends(&least, &largest, chart, thinned);
        bool has_log = chart->log_id != NULL && least > 0 && isfinite(largest);
        print_caption(out, chart, thinned);
        if (has_log) {
            fprintf(
                out,
                "<input type=\"checkbox\" class=\"tick\" id=\"log-%s\"/><label for=\"log-%s\">logarithmic "
                "axis</label>\n",
                chart->log_id, chart->log_id);
        }
        if (count > 0) {
            print_drawing(out, chart, &axes, thinned);
            if (has_log) {
                Axes log_axes = axes;
                make_log(&log_axes, least, largest);
                print_drawing(out, chart, &log_axes, thinned);
            }
            print_notes(out, chart, &axes, thinned);
        } else {
            fprintf(out, "<p class=\"none\">not recorded</p>\n");
        }
        fprintf(out, "</figure>\n");
    }
    for (int32_t k = 0; k < CHART_MAX_SERIES; k++) { free(thinned[k].points); }
    return status;
}

// Small lines without axes, width x height pixels, over [first_step, last_step] x [0, top].
static Status line_chart_print_spark(FILE* out, const LineChart* chart, double top, double width,
                                     double height) {
    Axes axes = {.x = svg_scale(chart->first_step, chart->last_step, 3, width - 3),
                 .y = svg_scale(0, top, height - 2, 2),
                 .high = top};
    fprintf(out, "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"spark\" viewBox=\"0 0 %.0f %.0f\">\n",
            width, height);
    fprintf(out, "<path class=\"axis\" d=\"M0 %.1fH%.0f\"/>\n", height - 1, width);
    Status status = STATUS_OK;
    for (int32_t k = 0; k < chart->num_series && status == STATUS_OK; k++) {
        Thinned thinned;
        status = thin_out(&thinned, &chart->series[k]);
        if (status == STATUS_OK) { print_line(out, &axes, &thinned, k, false); }
        free(thinned.points);
    }
    fprintf(out, "</svg>");
    return status;
}

// --- report_numbers --------------------
// report_numbers.c -- what follows from a run's records: rates, percentages, medians, totals.

enum { LAST_STEPS = 5 };  // "now" is the mean of these, as in dev/task_losses.sh

#define OF_RECORD(name, metric)                      \
    double name(const Metrics* metrics, int32_t i) { \
        return metrics->values[metric][i];           \
    }
OF_RECORD(report_loss, METRIC_LOSS)
OF_RECORD(report_step_ms, METRIC_STEP_MS)
OF_RECORD(report_predicted_ms, METRIC_PREDICTED_MS)
OF_RECORD(report_bound_ms, METRIC_BOUND_MS)
OF_RECORD(report_plan_ms, METRIC_PLAN_MS)
OF_RECORD(report_plan_wait_ms, METRIC_PLAN_WAIT_MS)
OF_RECORD(report_norm, METRIC_NORM)
OF_RECORD(report_lr, METRIC_LR)
OF_RECORD(report_peak_bytes, METRIC_PEAK_BYTES)
OF_RECORD(report_rss_bytes, METRIC_RSS_BYTES)
#undef OF_RECORD

double report_supervised_per_s(const Metrics* metrics, int32_t i) {
    return metrics->values[METRIC_SUPERVISED_TOKENS][i] * 1000 / metrics->values[METRIC_STEP_MS][i];
}

double report_padding_percent(const Metrics* metrics, int32_t i) {
    return 100 * (1 - metrics->values[METRIC_TOTAL_TOKENS][i] / metrics->values[METRIC_COMPUTED_TOKENS][i]);
}

double report_idle_percent(const Metrics* metrics, int32_t i) {
    return 100 * metrics->values[METRIC_IDLE][i];
}

double report_mfu_percent(const Metrics* metrics, int32_t i) {
    return 100 * metrics->values[METRIC_MFU][i];
}

// Percent of what was predicted; > 0: longer.
double report_off_percent(const Metrics* metrics, int32_t i) {
    double predicted_ms = metrics->values[METRIC_PREDICTED_MS][i];
    return 100 * (metrics->values[METRIC_STEP_MS][i] - predicted_ms) / predicted_ms;
}

static double part_percent(const Metrics* metrics, Metric part, int32_t i) {
    return 100 * metrics->values[part][i] / metrics->values[METRIC_PREDICTED_MS][i];
}

double report_jobs_off_percent(const Metrics* metrics, int32_t i) {
    return part_percent(metrics, METRIC_JOBS_OFF_MS, i);
}

double report_transfers_off_percent(const Metrics* metrics, int32_t i) {
    return part_percent(metrics, METRIC_TRANSFERS_OFF_MS, i);
}

double report_waiting_off_percent(const Metrics* metrics, int32_t i) {
    return part_percent(metrics, METRIC_WAITING_OFF_MS, i);
}

// [num_steps], times `factor`.
static Status report_derive(double** out, const Metrics* metrics, Derive* f, double factor, Arena* arena) {
    *out = ARENA_NEW(arena, double, metrics->num_steps);
    if (*out == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for %d steps ---> free memory", metrics->num_steps);
    }
    for (int32_t i = 0; i < metrics->num_steps; i++) { (*out)[i] = factor * f(metrics, i); }
    return STATUS_OK;
}

// Of the finite values; NAN where there are none.
static Status report_median(double* out, const Metrics* metrics, Derive* f, Arena* arena) {
    double* sorted;
    TRY(report_derive(&sorted, metrics, f, 1, arena));
    int32_t n = 0;
    for (int32_t i = 0; i < metrics->num_steps; i++) {
        if (isfinite(sorted[i])) { sorted[n++] = sorted[i]; }
    }
    qsort(sorted, (size_t)n, sizeof(double), compare_doubles);
    *out = n == 0 ? NAN : n % 2 == 1 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
    return STATUS_OK;
}

static double report_mean_between(const double* values, int32_t begin, int32_t end) {
    double sum = 0;
    int32_t n = 0;
    for (int32_t i = begin; i < end; i++) {
        if (!isfinite(values[i])) { continue; }
        sum += values[i];
        n++;
    }
    return n > 0 ? sum / n : NAN;
}

static double report_largest(const double* values, int32_t count) {
    double largest = NAN;
    for (int32_t i = 0; i < count; i++) {
        if (isfinite(values[i])) { largest = fmax(largest, values[i]); }
    }
    return largest;
}

// Steps of "now" and "in the beginning".
static int32_t report_span_steps(int32_t num_steps) {
    return num_steps < 2 * LAST_STEPS ? (num_steps + 1) / 2 : LAST_STEPS;
}

// --- totals ----------------------------------------------------------------------------------------------

static double report_total_padding_percent(const Metrics* metrics) {
    const double *total = metrics->values[METRIC_TOTAL_TOKENS],
                 *computed = metrics->values[METRIC_COMPUTED_TOKENS];
    double all = 0, all_computed = 0;
    for (int32_t i = 0; i < metrics->num_steps; i++) {
        bool known = isfinite(total[i]) && isfinite(computed[i]);
        all += known ? total[i] : 0;
        all_computed += known ? computed[i] : 0;
    }
    return all_computed > 0 ? 100 * (1 - all / all_computed) : NAN;
}

// What a counter has counted that may begin again with every start of a run: it falls there.
static double counted(const double* values, int32_t count) {
    double before = 0, last = NAN;
    for (int32_t i = 0; i < count; i++) {
        if (!isfinite(values[i])) { continue; }
        if (values[i] < last) { before += last; }
        last = values[i];
    }
    return before + last;
}

static double sum_of(const double* values, int32_t count) {
    return report_mean_between(values, 0, count) * count;
}

static double report_total_tokens(const Metrics* metrics) {
    double tokens = counted(metrics->values[METRIC_TOKENS_TOTAL], metrics->num_steps);
    return isfinite(tokens) ? tokens : sum_of(metrics->values[METRIC_TOTAL_TOKENS], metrics->num_steps);
}

static double report_total_s(const Metrics* metrics) {
    double wall_s = counted(metrics->values[METRIC_WALL_S], metrics->num_steps);
    return isfinite(wall_s) ? wall_s : sum_of(metrics->values[METRIC_STEP_MS], metrics->num_steps) / 1e3;
}

// --- report_tasks --------------------
// report_tasks.c -- a table of tasks: training and validation losses, answers; of several runs side by side.

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

static Status report_tasks_print(const Report* report) {
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

// --- report_charts --------------------
// report_charts.c -- the charts of a report: of one run all that belongs together in one, of several a line a
// run.

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

static Status report_charts_add_scores(LineChart* chart, const Report* report, const Metrics* metrics,
                                       const double* shares, const char* name) {
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
        TRY(report_charts_add_scores(&chart, report, metrics, metrics->exact_match, name));
        if (one) { TRY(report_charts_add_scores(&chart, report, metrics, metrics->rouge_l, "ROUGE-L")); }
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

static Status report_charts_print(const Report* report) {
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

// --- report_runs --------------------
// report_runs.c -- what ran, and its numbers: of one run lines and cards, of several a table, a column a run.

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

// What ran, and its numbers: cards of one run, a table of several.
static Status report_runs_print(const Report* report) {
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

// --- report_html --------------------

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
