#include "metrics.h"

#include <jansson.h>
#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

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
