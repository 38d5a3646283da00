// session_report.c -- output about a step: one line, one record of metrics.jsonl, and on demand its plan and
// timelines; at the end a summary of the run. Failed writes to metrics.jsonl are counted and end no run.
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>
#include "session.h"
#include "trace.h"
#include "../../util/files.h"
#include "../../util/program.h"
#include "../../util/status.h"

enum { CLOCK_EVERY_STEPS = 64 };  // clocks of hosts drift by about 10 us a second at worst
enum { SUMMARY_SKIP_STEPS = 2 };  // the first steps grow buffers and warm caches

int64_t session_update_ns(const Dynapipe* dp) {
    int64_t most_ns = 0;
    CostRank has[PLAN_MAX_STAGES];
    cost_ranks_make(has, &dp->costs, &dp->request.placement, dp->num_stages);
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        double slow = machine_rank(dp->request.machine, r).slow[JOB_W];
        int64_t ns = cost_rank_update_ns(&dp->costs, &has[r % dp->num_stages], slow);
        most_ns = ns > most_ns ? ns : most_ns;
    }
    return most_ns;
}

// A GPU's jobs use no cores.
bool session_shares_cores(const Dynapipe* dp) {
    return dp->device.api == NULL && host_cores_short(&dp->cores) >= 0;
}

void session_account_warn(const Dynapipe* dp) {
    const HostCores* hosts = &dp->cores;
    int32_t h = host_cores_short(hosts);
    if (!session_shares_cores(dp)) { return; }
    int32_t t = hosts->threads[h];
    fprintf(
        stderr,
        "warning: %d ranks of %d thread%s share %d core%s: times are not meaningful, predictions are for\n"
        "  a core for each thread, costs are not refit ---> fewer ranks a host, or --threads\n",
        hosts->sharers[h], t, t == 1 ? "" : "s", hosts->cores[h], hosts->cores[h] == 1 ? "" : "s");
}

// --- a step's error ----------------------------------------------------------------------------------------
// Every stage sends the spans of its instructions to all of its replica, whose first one splits the error;
// the statistics of the step bring it to all.

// The span of every instruction of my list, in its order.
static Status my_spans(SessionSpan** out, const Dynapipe* dp, Arena* arena) {
    const TraceRank* trace = executor_trace(dp->executor);
    int32_t num_instrs = dp->now->plan.ranks[dp->transport.rank].num_instrs;
    ARENA_TRY_NEW(*out, arena, SessionSpan, num_instrs);
    for (int32_t i = 0; i < num_instrs; i++) {
        const TraceEvent* event = &trace->events[i];
        (*out)[i] = (SessionSpan){event->begin_ns - dp->clock_offset_ns, event->end_ns - dp->clock_offset_ns};
    }
    return STATUS_OK;
}

static Status split_error(Dynapipe* dp, double* mine, const unsigned char* all, Arena* arena) {
    const Plan* plan = &dp->now->plan;
    const SessionSpan** spans;
    ARENA_TRY_NEW(spans, arena, const SessionSpan*, dp->num_stages);
    for (int32_t s = 0; s < dp->num_stages; s++) {
        spans[s] = (const SessionSpan*)(const void*)all;
        all += (size_t)plan->ranks[dp->replica * dp->num_stages + s].num_instrs * sizeof(SessionSpan);
    }
    SessionErrors errors = {0};
    SessionSpans replica = {
        .plan = plan, .replica = dp->replica, .spans = spans, .moves_alone = dp->links->api->join != NULL};
    TRY(session_errors_split(&errors, &replica, arena));
    mine[STAT_PREDICTED_NS] = (double)(plan->makespan_ns + session_update_ns(dp));
    mine[STAT_JOBS_OFF_NS] = (double)errors.jobs_ns;
    mine[STAT_TRANSFERS_OFF_NS] = (double)errors.transfers_ns;
    return STATUS_OK;
}

static Status account_step(Dynapipe* dp, double* mine) {
    Arena* arena = &dp->account_arena;
    SessionSpan* spans;
    unsigned char* all;
    arena_reset(arena);
    if (dp->cores.num_hosts > 1 && dp->steps_reported % CLOCK_EVERY_STEPS == 0) {
        TRY(collective_clock_offset(&dp->pipeline, &dp->clock_offset_ns));
    }
    TRY(my_spans(&spans, dp, arena));
    size_t num_bytes = (size_t)dp->now->plan.ranks[dp->transport.rank].num_instrs * sizeof *spans;
    TRY(collective_share_bytes(&dp->pipeline, spans, num_bytes, &all, arena));
    return dp->stage == 0 ? split_error(dp, mine, all, arena) : STATUS_OK;
}

// --- statistics of all ranks -------------------------------------------------------------------------------

static Status share_stats(Dynapipe* dp) {
    const TraceRank* trace = executor_trace(dp->executor);
    const PlanRank* planned = &dp->now->plan.ranks[dp->transport.rank];
    double* mine = dp->rank_stats + (size_t)dp->transport.rank * SESSION_STATS;
    mine[STAT_BUSY_NS] = (double)trace->busy_ns;
    mine[STAT_PIPELINE_NS] = (double)dp->pipeline_ns;
    mine[STAT_STEP_NS] = (double)(clock_now_ns() - dp->step_begin_ns);
    mine[STAT_PEAK_BYTES] = (double)(planned->arena_bytes + planned->state_bytes);
    mine[STAT_RSS_BYTES] = (double)session_device_used_bytes(dp);
    mine[STAT_PLAN_NS] = (double)dp->now->plan_cpu_ns;
    mine[STAT_PLAN_WAIT_NS] = (double)plan_ahead_wait_ns(dp->ahead);
    mine[STAT_PLAN_IDLE] = trace_rank_idle_predicted(&dp->now->plan, dp->transport.rank);
    mine[STAT_STOP_SIGNAL] = session_stop_mine(dp);
    mine[STAT_SECONDS] = (double)(clock_now_ns() - dp->open_ns) / 1e9;
    TRY(account_step(dp, mine));
    TRY(collective_share(&dp->world, dp->rank_stats, sizeof(double) * SESSION_STATS));
    session_stop_take(dp, dp->rank_stats + STAT_STOP_SIGNAL, SESSION_STATS);
    dp->seconds = dp->rank_stats[STAT_SECONDS];  // rank 0's
    return STATUS_OK;
}

static double stat_of(const Dynapipe* dp, int32_t rank, int32_t stat) {
    return dp->rank_stats[rank * SESSION_STATS + stat];
}

static double stat_max(const Dynapipe* dp, int32_t stat) {
    double most = 0;
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) { most = fmax(most, stat_of(dp, r, stat)); }
    return most;
}

static double stat_mean(const Dynapipe* dp, int32_t stat) {
    double sum = 0;
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) { sum += stat_of(dp, r, stat); }
    return sum / dp->transport.num_ranks;
}

// Share of the step's pipeline.
static double idle_of(const Dynapipe* dp, double busy_ns) {
    double span_ns = stat_max(dp, STAT_PIPELINE_NS);
    return span_ns > 0 ? 1 - busy_ns / span_ns : 0;
}

// Of the replica that ended last.
static SessionErrors step_errors(const Dynapipe* dp) {
    int32_t last = 0;
    for (int32_t r = 1; r < dp->transport.num_ranks; r++) {
        if (stat_of(dp, r, STAT_STEP_NS) > stat_of(dp, last, STAT_STEP_NS)) { last = r; }
    }
    int32_t first_stage = last / dp->num_stages * dp->num_stages;
    SessionErrors errors = {.predicted_ns = (int64_t)stat_of(dp, first_stage, STAT_PREDICTED_NS),
                            .measured_ns = (int64_t)stat_of(dp, last, STAT_STEP_NS),
                            .jobs_ns = (int64_t)stat_of(dp, first_stage, STAT_JOBS_OFF_NS),
                            .transfers_ns = (int64_t)stat_of(dp, first_stage, STAT_TRANSFERS_OFF_NS)};
    errors.waiting_ns = errors.measured_ns - errors.predicted_ns - errors.jobs_ns - errors.transfers_ns;
    return errors;
}

// 0: not known.
static double step_mfu(const Dynapipe* dp, const DynapipeReport_v1* report) {
    double seconds = stat_max(dp, STAT_STEP_NS) / 1e9;
    return report->peak_flops > 0 && seconds > 0 ? report->flops / report->peak_flops / seconds : 0;
}

// --- metrics.jsonl: a record a start, a step, a validation, a correction of costs --------------------------

// JSON has no NaN and no infinity: a run that diverges writes null.
static json_t* json_number_or_null(double value) {
    return isfinite(value) ? json_real(value) : json_null();
}

static json_t* json_per_rank(const Dynapipe* dp, int32_t stat) {
    json_t* list = json_array();
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        double value = stat_of(dp, r, stat);
        json_array_append_new(list, stat == STAT_BUSY_NS ? json_real(idle_of(dp, value))
                                                         : json_integer((json_int_t)value));
    }
    return list;
}

// JSON is UTF-8, names are bytes: names that are not UTF-8 are escaped as on a terminal.
static json_t* json_by_task(const Dynapipe* dp, const double* values) {
    json_t* object = json_object();
    for (int32_t t = 0; t < dp->num_tasks; t++) {
        if (isnan(values[t])) { continue; }
        json_object_set_new(object, PRINTABLE(dynapipe_task_name(dp, t)), json_number_or_null(values[t]));
    }
    return object;
}

json_t* session_metrics_json(const Dynapipe* dp, const DynapipeReport_v1* report) {
    const DynapipeStep_v1* last = &dp->last;
    SessionErrors errors = step_errors(dp);
    json_t* record = json_pack(
        "{s:i,s:o,s:o,s:o,s:f,s:I,s:I,s:I,s:I,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:f,s:i,s:o,s:o,s:o}",  //
        "step", report->step, "loss", json_number_or_null(last->loss),                                    //
        "task_loss", json_by_task(dp, last->task_loss),                                                   //
        "norm", json_number_or_null(report->norm), "lr", report->lr,                                      //
        "supervised_tokens", (json_int_t)last->supervised_tokens,                                         //
        "total_tokens", (json_int_t)last->total_tokens,                                                   //
        "computed_tokens", (json_int_t)last->computed_tokens,                                             //
        "tokens_total", (json_int_t)dp->tokens_total, "wall_s", dp->seconds,                              //
        "step_ms", stat_max(dp, STAT_STEP_NS) / 1e6,                                                      //
        "pipeline_ms", stat_max(dp, STAT_PIPELINE_NS) / 1e6,                                              //
        "plan_ms", stat_max(dp, STAT_PLAN_NS) / 1e6,                                                      //
        "plan_wait_ms", stat_max(dp, STAT_PLAN_WAIT_NS) / 1e6,                                            //
        "predicted_ms", (double)errors.predicted_ns / 1e6,                                                //
        "jobs_off_ms", (double)errors.jobs_ns / 1e6,                                                      //
        "transfers_off_ms", (double)errors.transfers_ns / 1e6,                                            //
        "waiting_off_ms", (double)errors.waiting_ns / 1e6,                                                //
        "bound_ms", (double)dp->now->plan.bound_ns / 1e6,                                                 //
        "refit_step", dp->now->refit_step,                                                                //
        "idle", json_per_rank(dp, STAT_BUSY_NS),                                                          //
        "peak_bytes", json_per_rank(dp, STAT_PEAK_BYTES),                                                 //
        "rss_bytes", json_per_rank(dp, STAT_RSS_BYTES));
    if (record != NULL && report->peak_flops > 0) {
        json_object_set_new(record, "mfu", json_number_or_null(step_mfu(dp, report)));
    }
    return record;
}

// {"step":12 and {"validation":12 identify a record.
static size_t record_key(int64_t* step, const char* line, size_t num_bytes) {
    long long number;
    int num_chars = 0;
    if (sscanf(line, "{\"%*[a-z]\":%lld,%n", &number, &num_chars) != 1 || num_chars == 0) { return 0; }
    bool is_ours = strncmp(line, "{\"step\":", 8) == 0 || strncmp(line, "{\"refit\":", 9) == 0 ||
                   strncmp(line, "{\"run\":", 7) == 0 || strncmp(line, "{\"validation\":", 14) == 0;
    *step = number;
    return is_ours && (size_t)num_chars <= num_bytes ? (size_t)num_chars : 0;
}

// Before a fresh run in the folder of an earlier one: the earlier records are kept.
static void keep_earlier(const char* path) {
    char old[LINE_LOG_PATH_CHARS + 32];
    struct stat about;
    if (stat(path, &about) != 0 || about.st_size == 0) { return; }
    snprintf(old, sizeof old, "%s.old", path);
    if (rename(path, old) == 0) {
        fprintf(stderr, "warning: %s is an earlier run's: kept as metrics.jsonl.old\n", path);
    }
}

// Of all steps with records in the file; 0 where it has none.
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

// Of a run that resumes, records after its checkpoint's step are removed: it writes them again.
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

// Retried for each record.
static bool is_open(Dynapipe* dp, const char* log_dir) {
    if (log_dir == NULL) { return false; }
    if (dp->metrics.is_open || open_metrics(dp, log_dir) == STATUS_OK) { return true; }
    count_lost(dp, dynapipe_error());
    return false;
}

// Takes over `record`; NULL: no memory.
static void write_record(Dynapipe* dp, json_t* record) {
    char* text = record != NULL
                     ? json_dumps(record, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17))
                     : NULL;
    json_decref(record);
    if (text != NULL) {
        line_log_write(&dp->metrics, text);
    } else {
        count_lost(dp, "metrics.jsonl: no memory for a record");
    }
    free(text);
}

static void write_run(Dynapipe* dp) {
    if (!dp->has_run_record) { write_record(dp, session_run_json(dp)); }
    dp->has_run_record = true;
}

static void write_metrics(Dynapipe* dp, const DynapipeReport_v1* report) {
    const SessionRefit* refit = &dp->refit;
    int32_t num = refit->num_versions;
    dp->tokens_total += dp->last.total_tokens;
    if (!is_open(dp, report->log_dir)) { return; }
    write_run(dp);
    write_record(dp, session_metrics_json(dp, report));
    bool is_refit = num > 0 && refit->versions[num - 1].agreed == report->step;
    if (is_refit) { write_record(dp, session_refit_json(refit)); }
}

int dynapipe_report_validation(Dynapipe* dp, const DynapipeValidation_v1* v) {
    if (CHECK_RESERVED(DynapipeValidation_v1, reserved, v) != STATUS_OK) { return STATUS_OUT_OF_RANGE; }
    if (dp->transport.rank != 0 || !is_open(dp, v->log_dir)) { return STATUS_OK; }
    // (a resumed run repeats its last validation: that replaces the last record)
    if (v->step > dp->first_step || dp->first_step == 0) { write_run(dp); }
    json_t* record = json_pack("{s:i,s:o}", "validation", v->step, "loss", json_number_or_null(v->loss));
    if (dp->num_validated > 0) {  // which samples: losses of other ones are not comparable
        char hash[24];
        const LoaderInfo* info = loader_info(dp->val);
        snprintf(hash, sizeof hash, "%016llx", (unsigned long long)info->pick_hash);
        json_object_set_new(record, "samples", json_integer(dp->num_validated));
        json_object_set_new(record, "of", json_integer(info->num_samples));
        json_object_set_new(record, "sample_hash", json_string(hash));
    }
    const char* const keys[3] = {"task_loss", "exact_match", "rouge_l"};
    const double* const lists[3] = {v->task_loss, v->exact_match, v->rouge_l};
    for (int i = 0; i < 3; i++) {
        if (lists[i] != NULL) { json_object_set_new(record, keys[i], json_by_task(dp, lists[i])); }
    }
    write_record(dp, record);
    return STATUS_OK;
}

int64_t dynapipe_lost_lines(const Dynapipe* dp) {
    return dp->metrics.num_lost + dp->num_unopened;
}

// --- the step line -----------------------------------------------------------------------------------------

static double padding_percent(double total_tokens, double computed_tokens) {
    return computed_tokens > 0 ? 100 * (1 - total_tokens / computed_tokens) : 0;
}

// --verbose: the step against its plan, below the step's line. Measured relative to predicted, > 0: longer;
// as a factor where a step took several times as long.
static void print_details(const Dynapipe* dp, const DynapipeReport_v1* report) {
    const DynapipeStep_v1* last = &dp->last;
    SessionErrors errors = step_errors(dp);
    double off = session_errors_part(&errors, errors.measured_ns - errors.predicted_ns);
    printf(off < 1   ? "          %+.1f%%"
           : off < 9 ? "          %.1fx"
                     : "          %.0fx",
           off < 1 ? 100 * off : 1 + off);
    printf(" of prediction, idle %4.1f%% (plan %4.1f%%), pad %2.0f%%, %.0f supervised/s, planning %.0f ms",
           100 * idle_of(dp, stat_mean(dp, STAT_BUSY_NS)), 100 * stat_mean(dp, STAT_PLAN_IDLE),
           padding_percent((double)last->total_tokens, (double)last->computed_tokens),
           (double)last->supervised_tokens * 1e9 / stat_max(dp, STAT_STEP_NS),
           stat_max(dp, STAT_PLAN_NS) / 1e6);
    if (!isnan(report->loss_z)) {  // otherwise there are too few steps
        printf("\n          loss (%+.2fz), norm", report->loss_z);
        if (!isnan(report->norm_z)) { printf(" (%+.2fz)", report->norm_z); }
        printf(" from the mean");
    }
    printf("\n");
}

// The time left: at the mean pace of the steps so far; the first two, which grow buffers, count only where
// there are no others.
static void print_line(const Dynapipe* dp, const DynapipeReport_v1* report) {
    const SessionSummary* run = &dp->summary;
    double step_ns = stat_max(dp, STAT_STEP_NS),
           pace_ns = run->num_steps > 0 ? run->ns / run->num_steps : step_ns;
    StepLine line = {.step = report->step,
                     .num_steps = dp->num_steps,
                     .loss = dp->last.loss,
                     .norm = report->norm,
                     .lr = report->lr,
                     .ms = step_ns / 1e6,
                     .tokens_per_s = (double)dp->last.total_tokens * 1e9 / step_ns,
                     .mfu = step_mfu(dp, report),
                     .bytes = stat_max(dp, STAT_RSS_BYTES),
                     .seconds_left = pace_ns / 1e9 * (dp->num_steps - report->step)};
    char text[STEP_LINE_CHARS];
    if (dp->options.quiet) { return; }
    printf("%s\n", step_line_print(text, &line));
    if (dp->options.verbose) { print_details(dp, report); }
    fflush(stdout);
}

// --- one step in detail ------------------------------------------------------------------------------------

// 0, or errno. Opened for append: an existing file is unchanged until its step, and none is left behind.
static int write_error(const char* path) {
    if (path == NULL) { return 0; }
    bool was_there = access(path, F_OK) == 0;
    FILE* file = fopen(path, "a");
    int error = file == NULL ? errno : 0;
    if (file != NULL) { fclose(file); }
    if (file != NULL && !was_there) { (void)unlink(path); }
    return error;
}

Status session_report_open(Dynapipe* dp) {
    const char* const names[2] = {"--trace", "--debug dump-plan"};
    const char* const paths[2] = {dp->options.trace, dp->options.dump_plan};
    for (int i = 0; i < 2; i++) {
        double error = dp->transport.rank == 0 ? write_error(paths[i]) : 0;
        if (paths[i] != NULL) { TRY(collective_all_reduce_sum(&dp->world, &error, 1)); }
        if (error == 0) { continue; }
        return FAIL(STATUS_IO, "%s %s: cannot be written: %s ---> name a file in a directory that you own",
                    names[i], paths[i], strerror((int)error));
    }
    return STATUS_OK;
}

// The first option that shows a step; NULL: none does.
static const char* shows_step(const SessionOptions* options) {
    return options->trace != NULL       ? "--trace"
           : options->dump_plan != NULL ? "--debug dump-plan"
           : options->print_plan        ? "--debug print-plan"
                                        : NULL;
}

bool session_report_shows(const Dynapipe* dp, int64_t step) {
    return dp->transport.rank == 0 && step == dp->options.show_step && shows_step(&dp->options) != NULL;
}

void session_report_goes_on(const Dynapipe* dp) {
    const char* name = shows_step(&dp->options);
    if (name == NULL || dp->options.show_step > dp->first_step || dp->transport.rank != 0) { return; }
    fprintf(stderr,
            "warning: %s: step %d (--show-step) is done, the run goes on with step %d: nothing is shown\n",
            name, dp->options.show_step, dp->first_step + 1);
}

Status session_report_check(const Dynapipe* dp) {
    const SessionOptions* options = &dp->options;
    const char* name = shows_step(options);
    if (name == NULL || options->show_step <= dp->num_steps) { return STATUS_OK; }
    return FAIL(STATUS_BAD_OPTION,
                "%s: shows step %d (--show-step), the run has %d ---> a --show-step of at most that, or more "
                "steps",
                name, options->show_step, dp->num_steps);
}

// A rank sends its TraceRank, and then its events, by rank 0's clock.
static Status pack_trace(unsigned char** out, size_t* num_bytes, Dynapipe* dp, Arena* arena) {
    TraceRank head = *executor_trace(dp->executor);
    int64_t offset_ns;
    TRY(collective_clock_offset(&dp->world, &offset_ns));
    if (dp->cores.num_hosts == 1) { offset_ns = 0; }  // the same clock
    const TraceEvent* events = head.events;
    *num_bytes = sizeof head + (size_t)head.num_events * sizeof *events;
    ARENA_TRY_NEW(*out, arena, unsigned char, *num_bytes);
    head.begin_ns -= offset_ns;
    head.end_ns -= offset_ns;
    memcpy(*out, &head, sizeof head);
    TraceEvent* to = (TraceEvent*)(void*)(*out + sizeof head);
    for (int32_t i = 0; i < head.num_events; i++) {
        to[i] = events[i];
        to[i].begin_ns -= offset_ns;
        to[i].end_ns -= offset_ns;
    }
    return STATUS_OK;
}

static Status write_trace_file(const Dynapipe* dp, int32_t step, unsigned char* all, Arena* arena) {
    int32_t num_ranks = dp->transport.num_ranks;
    TraceRank* ranks;
    ARENA_TRY_NEW(ranks, arena, TraceRank, num_ranks);
    for (int32_t r = 0; r < num_ranks; r++) {
        memcpy(&ranks[r], all, sizeof *ranks);
        ranks[r].events = (TraceEvent*)(void*)(all + sizeof *ranks);
        all += sizeof *ranks + (size_t)ranks[r].num_events * sizeof(TraceEvent);
    }
    return trace_write(dp->options.trace, step, &dp->now->plan, ranks);
}

static Status write_trace(Dynapipe* dp, int32_t step) {
    Arena* arena = &dp->account_arena;
    unsigned char *packed, *all;
    size_t num_bytes;
    arena_reset(arena);
    TRY(pack_trace(&packed, &num_bytes, dp, arena));
    TRY(collective_share_bytes(&dp->world, packed, num_bytes, &all, arena));
    return dp->transport.rank == 0 ? write_trace_file(dp, step, all, arena) : STATUS_OK;
}

static Status show_step(Dynapipe* dp, int32_t step) {
    const Plan* plan = &dp->now->plan;
    const bool is_main = dp->transport.rank == 0;
    if (is_main && dp->options.print_plan) {
        printf("\nthe plan of step %d\n", step);
        plan_print_table(plan, stdout);
        plan_print_timeline(plan, PLAN_TIMELINE_COLUMNS, stdout);
        printf("\n");
        fflush(stdout);
    }
    if (is_main && dp->options.dump_plan != NULL) {
        FILE* file = fopen(dp->options.dump_plan, "w");
        if (file != NULL) { plan_print(plan, file); }
        if (file == NULL || fclose(file) != 0) {
            return FAIL(STATUS_IO, "--debug dump-plan=%s: cannot write", dp->options.dump_plan);
        }
    }
    return dp->options.trace != NULL ? write_trace(dp, step) : STATUS_OK;
}

// --- the whole run -----------------------------------------------------------------------------------------

static void add_to_summary(Dynapipe* dp) {
    SessionSummary* run = &dp->summary;
    if (dp->steps_reported++ < SUMMARY_SKIP_STEPS) { return; }
    SessionErrors errors = step_errors(dp);
    run->num_steps++;
    run->errors.predicted_ns += errors.predicted_ns;
    run->errors.jobs_ns += errors.jobs_ns;
    run->errors.transfers_ns += errors.transfers_ns;
    run->errors.waiting_ns += errors.waiting_ns;
    run->off_ns += llabs((long long)(errors.measured_ns - errors.predicted_ns));
    run->ns += stat_max(dp, STAT_STEP_NS);
    run->supervised += (double)dp->last.supervised_tokens;
    run->total += (double)dp->last.total_tokens;
    run->computed += (double)dp->last.computed_tokens;
    run->idle += idle_of(dp, stat_mean(dp, STAT_BUSY_NS));
    run->plan_wait_ns += stat_max(dp, STAT_PLAN_WAIT_NS);
    run->peak_bytes = fmax(run->peak_bytes, stat_max(dp, STAT_PEAK_BYTES));
    run->rss_bytes = fmax(run->rss_bytes, stat_max(dp, STAT_RSS_BYTES));
}

static void print_summary(const Dynapipe* dp) {
    const SessionSummary* run = &dp->summary;
    const SessionErrors* errors = &run->errors;
    double jobs = 100 * session_errors_part(errors, errors->jobs_ns),
           transfers = 100 * session_errors_part(errors, errors->transfers_ns),
           waiting = 100 * session_errors_part(errors, errors->waiting_ns);
    printf("steps %d to %d: %.4g ms each | %.0f tok/s, %.0f supervised | pad %.1f%% | idle %.1f%%\n"
           "waited for plans %.1f%% of the time; fullest rank: %s planned, %s its whole process\n",
           dp->next_step - run->num_steps + 1, dp->next_step, run->ns / run->num_steps / 1e6,
           run->total * 1e9 / run->ns, run->supervised * 1e9 / run->ns,
           padding_percent(run->total, run->computed), 100 * run->idle / run->num_steps,
           100 * run->plan_wait_ns / run->ns, BYTES_TEXT(run->peak_bytes), BYTES_TEXT(run->rss_bytes));
    printf("against the prediction: steps %+.1f%% (jobs %+.1f%%, transfers %+.1f%%, waiting %+.1f%%)\n"
           "        a single one %.1f%% off on average\n",
           jobs + transfers + waiting, jobs, transfers, waiting,
           100 * session_errors_part(errors, run->off_ns));
}

void session_report_close(Dynapipe* dp) {
    if (dp->transport.rank == 0 && dp->summary.num_steps > 0) { print_summary(dp); }
    line_log_close(&dp->metrics);
}

int dynapipe_report(Dynapipe* dp, const DynapipeReport_v1* report) {
    TRY(CHECK_RESERVED(DynapipeReport_v1, reserved, report));
    if (dp->now == NULL) {
        return FAIL(
            STATUS_OUT_OF_RANGE,
            "dynapipe_report(): there is no step to report, none has run since the start, a restore or "
            "a move of layers ---> report before dynapipe_resplit()");
    }
    TRY(share_stats(dp));
    add_to_summary(dp);
    if (report->step == dp->options.show_step) { TRY(show_step(dp, report->step)); }
    if (dp->transport.rank != 0) { return STATUS_OK; }
    print_line(dp, report);
    write_metrics(dp, report);
    return STATUS_OK;
}
