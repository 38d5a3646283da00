// session_metrics.c -- metrics.jsonl: one record a start, one a step, one a validation, one where steps
// corrected the costs. What cannot be written is said and counted, and ends no run.
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "../../util/files.h"
#include "../../util/status.h"
#include "interface.h"
#include "session.h"

// JSON has no NaN and no infinity: a run that diverges writes null.
static json_t* json_number_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t* json_per_rank(const Dynapipe* dp, int32_t stat) {
    json_t* list = json_array();
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        double value = dp->rank_stats[r * SESSION_STATS + stat];
        json_array_append_new(list, stat == STAT_BUSY_NS ? json_real(session_rank_idle(dp, r))
                                                         : json_integer((json_int_t)value));
    }
    return list;
}

// JSON is UTF-8, names are bytes: those that are none are written as on a terminal.
static json_t* json_task_losses(const Dynapipe* dp, const double* task_loss) {
    json_t* object = json_object();
    for (int32_t t = 0; t < dp->num_tasks; t++) {
        if (!isnan(task_loss[t])) {
            json_object_set_new(object, PRINTABLE(dynapipe_task_name(dp, t)),
                                json_number_or_null(task_loss[t]));
        }
    }
    return object;
}

char* session_metrics_json(const Dynapipe* dp, const DynapipeReport_v1* report) {
    const DynapipeStep_v1* last = &dp->last;
    SessionErrors errors = session_step_errors(dp);
    json_t* record = json_pack(
        "{s:i,s:o,s:o,s:o,s:f,s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:i,s:o,s:o,s:o}",  //
        "step", report->step, "loss", json_number_or_null(last->loss),                                    //
        "task_loss", json_task_losses(dp, last->task_loss),                                               //
        "norm", json_number_or_null(report->norm), "lr", report->lr,                                      //
        "supervised_tokens", (json_int_t)last->supervised_tokens,                                         //
        "total_tokens", (json_int_t)last->total_tokens,                                                   //
        "computed_tokens", (json_int_t)last->computed_tokens,                                             //
        "tokens_total", (json_int_t)dp->tokens_total, "wall_s", dp->seconds,                              //
        "step_ms", session_stat_max(dp, STAT_STEP_NS) / 1e6,                                              //
        "pipeline_ms", session_stat_max(dp, STAT_PIPELINE_NS) / 1e6,                                      //
        "plan_ms", session_stat_max(dp, STAT_PLAN_NS) / 1e6,                                              //
        "plan_wait_ms", session_stat_max(dp, STAT_PLAN_WAIT_NS) / 1e6,                                    //
        "predicted_ms", (double)errors.predicted_ns / 1e6,                                                //
        "jobs_off_ms", (double)errors.jobs_ns / 1e6,                                                      //
        "transfers_off_ms", (double)errors.transfers_ns / 1e6,                                            //
        "waiting_off_ms", (double)errors.waiting_ns / 1e6,                                                //
        "bound_ms", (double)dp->now->plan.bound_ns / 1e6,                                                 //
        "refit_step", dp->now->refit_step,                                                                //
        "idle", json_per_rank(dp, STAT_BUSY_NS),                                                          //
        "peak_bytes", json_per_rank(dp, STAT_PEAK_BYTES),                                                 //
        "rss_bytes", json_per_rank(dp, STAT_RSS_BYTES));
    if (record == NULL) { return NULL; }
    if (report->peak_flops > 0) {
        json_object_set_new(record, "mfu", json_number_or_null(session_mfu(dp, report)));
    }
    char* text = json_dumps(record, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
    json_decref(record);
    return text;
}

// --- the file --------------------------------------------------------------------------------------------

// {"step":12 and {"validation":12 say what a record is about.
static size_t record_key(int64_t* step, const char* line, size_t num_bytes) {
    long long number;
    int num_chars = 0;
    if (sscanf(line, "{\"%*[a-z]\":%lld,%n", &number, &num_chars) != 1 || num_chars == 0) { return 0; }
    bool is_ours = strncmp(line, "{\"step\":", 8) == 0 || strncmp(line, "{\"refit\":", 9) == 0 ||
                   strncmp(line, "{\"run\":", 7) == 0 || strncmp(line, "{\"validation\":", 14) == 0;
    *step = number;
    return is_ours && (size_t)num_chars <= num_bytes ? (size_t)num_chars : 0;
}

// A fresh run of a program that does not ask whose folder it is: the earlier run's records stay beside its
// own.
static void keep_earlier(const char* path) {
    char old[LINE_LOG_PATH_CHARS + 32];
    struct stat about;
    if (stat(path, &about) != 0 || about.st_size == 0) { return; }
    snprintf(old, sizeof old, "%s.old", path);
    if (rename(path, old) == 0) {
        fprintf(stderr, "warning: %s is an earlier run's: kept as metrics.jsonl.old\n", path);
    }
}

// Of all steps that the file still has records of; 0 where it has none.
static int64_t tokens_before(const char* path) {
    static const char key[] = "\"tokens_total\":";
    char* text;
    size_t num_bytes;
    long long total = 0;
    if (file_read_text(&text, &num_bytes, path) != STATUS_OK) { return 0; }
    for (const char* at = text; (at = strstr(at, key)) != NULL;) {
        at += sizeof key - 1;
        total = strtoll(at, NULL, 10);
    }
    free(text);
    return total;
}

// Of a run that goes on, records behind its checkpoint's step go: it writes them again.
static Status open_metrics(Dynapipe* dp, const char* log_dir) {
    char path[LINE_LOG_PATH_CHARS + 16];
    snprintf(path, sizeof path, "%.*s/metrics.jsonl", LINE_LOG_PATH_CHARS, log_dir);
    if (dp->first_step == 0) { keep_earlier(path); }
    TRY(line_log_open(&dp->metrics, path, record_key, false));
    Status status = line_log_cut(&dp->metrics, dp->first_step > 0 ? dp->first_step : -1);
    if (status != STATUS_OK) {
        line_log_close(&dp->metrics);
        return status;
    }
    if (dp->first_step > 0) { dp->tokens_total += tokens_before(path); }
    return STATUS_OK;
}

static void count_lost(Dynapipe* dp, const char* why) {
    if (dp->num_unopened++ == 0) { fprintf(stderr, "warning: %s\n", why); }
}

// Tried again for each record.
static bool is_open(Dynapipe* dp, const char* log_dir) {
    if (dp->metrics.is_open || open_metrics(dp, log_dir) == STATUS_OK) { return true; }
    count_lost(dp, dynapipe_error());
    return false;
}

static void write_line(Dynapipe* dp, const char* log_dir, const char* text) {
    if (!is_open(dp, log_dir)) { return; }
    if (text != NULL) {
        line_log_write(&dp->metrics, text);
    } else {
        count_lost(dp, "metrics.jsonl: no memory for a record");
    }
}

static void write_run(Dynapipe* dp, const char* log_dir) {
    if (dp->has_run_record) { return; }
    char* text = session_run_json(dp);
    write_line(dp, log_dir, text);
    free(text);
    dp->has_run_record = true;
}

void session_metrics_write(Dynapipe* dp, const DynapipeReport_v1* report) {
    dp->tokens_total += dp->last.total_tokens;
    if (report->log_dir == NULL || !is_open(dp, report->log_dir)) { return; }
    write_run(dp, report->log_dir);
    char* text = session_metrics_json(dp, report);
    write_line(dp, report->log_dir, text);
    free(text);
    const SessionRefit* refit = &dp->refit;
    int32_t num = refit->num_versions;
    if (num == 0 || refit->versions[num - 1].agreed != report->step) { return; }
    text = session_refit_json(refit);
    write_line(dp, report->log_dir, text);
    free(text);
}

int dynapipe_report_validation(Dynapipe* dp, const DynapipeValidation_v1* v) {
    if (interface_check_validation(v) != STATUS_OK) { return STATUS_OUT_OF_RANGE; }
    if (v->log_dir == NULL || dp->transport.rank != 0 || !is_open(dp, v->log_dir)) { return STATUS_OK; }
    // (a run that goes on validates again what it stopped at: that takes the place of the last record)
    if (v->step > dp->first_step || dp->first_step == 0) { write_run(dp, v->log_dir); }
    json_t* record = json_pack("{s:i,s:o}", "validation", v->step, "loss", json_number_or_null(v->loss));
    const char* const keys[3] = {"task_loss", "exact_match", "rouge_l"};
    const double* const lists[3] = {v->task_loss, v->exact_match, v->rouge_l};
    for (int i = 0; i < 3; i++) {
        if (lists[i] != NULL) { json_object_set_new(record, keys[i], json_task_losses(dp, lists[i])); }
    }
    char* text = record != NULL
                     ? json_dumps(record, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17))
                     : NULL;
    json_decref(record);
    write_line(dp, v->log_dir, text);
    free(text);
    return STATUS_OK;
}

int64_t dynapipe_lost_lines(const Dynapipe* dp) {
    return dp->metrics.num_lost + dp->num_unopened;
}
