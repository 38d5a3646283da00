// report.c -- see report.h.
#include "report.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "../util/files.h"

// Path of the page from the root of the repository, where the compiler runs.
__asm__(".section .rodata\n"
        "report_page_begin: .incbin \"tool/report.html\"\n"
        ".byte 0\n"
        ".previous\n");
extern const char report_page_begin[];

static const char DATA_MARK[] = "@DATA@";

// Step values that the page draws. A list of ranks is replaced by its mean (idle) or maximum (bytes).
// clang-format off
static const char* const columns[] = {
    "loss", "norm", "lr", "supervised_tokens", "total_tokens", "computed_tokens", "step_ms", "plan_ms",
    "plan_wait_ms", "predicted_ms", "jobs_off_ms", "transfers_off_ms", "waiting_off_ms", "bound_ms", "idle",
    "peak_bytes", "rss_bytes", "mfu", "wall_s", "tokens_total"};
// clang-format on
enum { NUM_COLUMNS = sizeof columns / sizeof columns[0], MOST_TASKS = 256 };

// --- records -----------------------------------------------------------------------------------------------

static json_t* get(const json_t* object, const char* key) {
    return json_object_get(object, key);
}

static double number_of(const json_t* value) {
    return json_is_number(value) ? json_number_value(value) : NAN;
}

static json_t* json_of(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static double column_value(const char* key, const json_t* value) {
    size_t num = json_array_size(value);
    double sum = 0, largest = NAN;
    if (!json_is_array(value)) { return number_of(value); }
    for (size_t i = 0; i < num; i++) {
        double x = number_of(json_array_get(value, i));
        sum += x;
        largest = fmax(largest, x);
    }
    return num == 0 ? NAN : strcmp(key, "idle") == 0 ? sum / (double)num : largest;
}

// {task: number}; run.tasks collects the names in order of appearance, at most MOST_TASKS.
static json_t* tasks_of(json_t* run, const json_t* by_task) {
    json_t *tasks = json_object(), *known = get(run, "tasks");
    const char* name;
    json_t* value;
    json_object_foreach((json_t*)(uintptr_t)by_task, name, value) {
        bool is_new = get(known, name) == NULL;
        if (is_new && json_object_size(known) == MOST_TASKS) { continue; }
        if (is_new) { json_object_set_new(known, name, json_true()); }
        if (json_is_number(value)) { json_object_set(tasks, name, value); }
    }
    return tasks;
}

static double step_of(const json_t* row) {
    return number_of(json_is_array(row) ? json_array_get(row, 0) : row);
}

static json_t* last_of(const json_t* list) {
    size_t num = json_array_size(list);
    return num > 0 ? json_array_get(list, num - 1) : NULL;
}

// Removes the rows of this step and later ones.
static void cut(json_t* list, double step) {
    while (json_array_size(list) > 0 && step_of(last_of(list)) >= step) {
        json_array_remove(list, json_array_size(list) - 1);
    }
}

static void add_mark(json_t* marks, double step) {
    cut(marks, step);
    json_array_append_new(marks, json_real(step));
}

static void add_validation(json_t* run, double step, double loss, const json_t* record) {
    json_t *list = get(run, "validations"), *row = json_array();
    cut(list, step);
    json_array_append_new(row, json_real(step));
    json_array_append_new(row, json_of(loss));
    json_array_append_new(row, tasks_of(run, get(record, "task_loss")));
    json_array_append_new(row, tasks_of(run, get(record, "exact_match")));
    json_array_append_new(row, tasks_of(run, get(record, "rouge_l")));
    json_array_append_new(row, json_of(number_of(get(record, "samples"))));
    json_array_append_new(row, json_of(number_of(get(record, "of"))));
    const char* hash = json_string_value(get(record, "sample_hash"));
    json_array_append_new(row, hash != NULL ? json_string(hash) : json_null());
    json_array_append_new(list, row);
}

static void add_start(json_t* run, const json_t* record) {
    static const char* const keys[] = {"command", "commit", "model", "machine", "options"};
    json_t* about = json_object();
    for (int i = 0; i < 5; i++) {
        json_t* value = get(record, keys[i]);
        if (value != NULL) { json_object_set(about, keys[i], value); }
    }
    json_object_set_new(run, "about", about);
    double step = number_of(get(record, "step"));
    if (step > 0) { add_mark(get(run, "resumes"), step); }
}

// Drops the steps that a resumed run repeats; marks the resume if no record of that start exists.
static void forget_from(json_t* run, double step) {
    static const char* const lists[] = {"steps", "validations", "refits", "resumes"};
    size_t before = json_array_size(get(run, "steps"));
    for (int i = 0; i < 4; i++) { cut(get(run, lists[i]), step); }
    size_t left = json_array_size(get(run, "steps"));
    const json_t* mark = last_of(get(run, "resumes"));
    if (left == before || left == 0 || (mark != NULL && step_of(mark) >= step - 1)) { return; }
    add_mark(get(run, "resumes"), step_of(last_of(get(run, "steps"))));
}

// False: not a record of a run.
static bool add_step(json_t* run, const json_t* record) {
    json_t* steps = get(run, "steps");
    double step = number_of(get(record, "step"));
    if (isnan(step) && get(record, "loss") == NULL) { return false; }
    if (isnan(step)) { step = json_array_size(steps) > 0 ? step_of(last_of(steps)) + 1 : 1; }
    forget_from(run, step);
    json_t* row = json_array();
    json_array_append_new(row, json_real(step));
    for (int i = 0; i < NUM_COLUMNS; i++) {
        json_array_append_new(row, json_of(column_value(columns[i], get(record, columns[i]))));
    }
    json_array_append_new(row, tasks_of(run, get(record, "task_loss")));
    json_array_append_new(steps, row);
    return true;
}

static bool add_record(json_t* run, const json_t* record) {
    const char* kind = json_string_value(get(record, "kind"));
    if (kind != NULL && strcmp(kind, "run") == 0) {
        add_start(run, record);
    } else if (get(record, "validation") != NULL) {
        double step = number_of(get(record, "validation"));
        if (!isnan(step)) { add_validation(run, step, number_of(get(record, "loss")), record); }
    } else if (get(record, "refit") != NULL) {
        double step = number_of(get(record, "refit"));
        if (!isnan(step)) { add_mark(get(run, "refits"), step); }
    } else {
        return add_step(run, record);
    }
    return true;
}

// --- files -------------------------------------------------------------------------------------------------

static Status parse_lines(json_t* run, char* text, size_t num_bytes, const char* path) {
    int line_number = 0;
    for (size_t at = 0; at < num_bytes;) {
        char *line = text + at, *newline = memchr(line, '\n', num_bytes - at);
        size_t line_bytes = newline != NULL ? (size_t)(newline - line) : num_bytes - at, blanks = 0;
        at += line_bytes + 1;
        line_number++;
        while (blanks < line_bytes && memchr(" \t\r", line[blanks], 3) != NULL) { blanks++; }
        if (blanks == line_bytes) { continue; }
        json_error_t error;
        json_t* record = json_loadb(line, line_bytes, 0, &error);
        if (record == NULL && newline == NULL) {
            json_object_set_new(run, "cut_line", json_integer(line_number));
            return STATUS_OK;
        }
        bool is_object = json_is_object(record), malformed = record == NULL;
        bool is_known = is_object && add_record(run, record);
        json_decref(record);
        if (!is_object) {
            return FAIL(
                STATUS_BAD_FORMAT,
                "%s:%d: %s ---> one record a line, as the trainer writes metrics.jsonl into its -o DIRECTORY",
                path, line_number, malformed ? error.text : "not an object");
        }
        if (!is_known) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s:%d: neither step nor loss in it ---> metrics.jsonl, as the trainer writes it "
                        "into its -o DIRECTORY",
                        path, line_number);
        }
    }
    return STATUS_OK;
}

Status report_run_load(json_t** out, const char* path_or_folder) {
    char path[4096], *text;
    struct stat about;
    size_t num_bytes;
    bool is_folder = stat(path_or_folder, &about) == 0 && S_ISDIR(about.st_mode);
    if (snprintf(path, sizeof path, "%s%s", path_or_folder, is_folder ? "/metrics.jsonl" : "") >=
        (int)sizeof path) {
        return FAIL(STATUS_IO, "%s: cannot read: too long a name", path_or_folder);
    }
    if (access(path, R_OK) != 0) {
        return FAIL(STATUS_IO, "%s: cannot read ---> the trainer writes it into its -o DIRECTORY", path);
    }
    TRY(file_read_text(&text, &num_bytes, path));
    json_t* run =
        json_pack("{s:s, s:i, s:{}, s:{}, s:[], s:[], s:[], s:[], s:[]}", "name", PRINTABLE(path_or_folder),
                  "cut_line", 0, "about", "tasks", "resumes", "refits", "steps", "validations", "columns");
    for (int i = 0; i < NUM_COLUMNS; i++) {
        json_array_append_new(get(run, "columns"), json_string(columns[i]));
    }
    Status status = parse_lines(run, text, num_bytes, path);
    free(text);
    if (status == STATUS_OK && json_array_size(get(run, "steps")) == 0) {
        int cut_line = (int)json_integer_value(get(run, "cut_line"));
        status = FAIL(STATUS_BAD_FORMAT,
                      "%s:%d: no complete record ---> train with -o DIRECTORY, at least one step", path,
                      cut_line > 0 ? cut_line : 1);
    }
    if (status != STATUS_OK) {
        json_decref(run);
        return status;
    }
    *out = run;
    return STATUS_OK;
}

// --- the page ----------------------------------------------------------------------------------------------

// "<" occurs only in strings and is escaped, so no user text can end the script.
static int print_json(const char* text, size_t num_bytes, void* out) {
    for (size_t i = 0; i < num_bytes; i++) {
        if (text[i] == '<') {
            fputs("\\u003c", out);
        } else {
            fputc(text[i], out);
        }
    }
    return 0;
}

void report_print(FILE* out, const json_t* runs) {
    const char* mark = strstr(report_page_begin, DATA_MARK);
    fwrite(report_page_begin, 1, (size_t)(mark - report_page_begin), out);
    json_dump_callback(runs, print_json, out, JSON_COMPACT | JSON_REAL_PRECISION(9) | JSON_ENSURE_ASCII);
    fputs(mark + strlen(DATA_MARK), out);
}
