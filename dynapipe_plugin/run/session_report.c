// session_report.c -- what a user sees of a step: one line, and on demand its plan and timelines; at the end,
// what the run was like.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../../util/program.h"
#include "interface.h"
#include "session.h"
#include "trace.h"

enum { SUMMARY_SKIP_STEPS = 2 };  // the first steps grow buffers and warm caches
enum { TIMELINE_COLUMNS = 80 };   // so that with what stands beside them rows have 100

// Everybody learns what every rank measured.
static Status share_stats(Dynapipe* dp) {
    const TraceRank* trace = executor_trace(dp->executor);
    PlanAheadStats planning = plan_ahead_stats(dp->ahead);
    double* mine = dp->rank_stats + (size_t)dp->transport.rank * SESSION_STATS;
    mine[STAT_BUSY_NS] = (double)trace->busy_ns;
    mine[STAT_PIPELINE_NS] = (double)dp->pipeline_ns;
    mine[STAT_STEP_NS] = (double)(clock_now_ns() - dp->step_begin_ns);
    mine[STAT_PEAK_BYTES] = (double)(dp->now->plan.ranks[dp->transport.rank].arena_bytes +
                                     dp->now->plan.ranks[dp->transport.rank].state_bytes);
    mine[STAT_RSS_BYTES] = (double)session_device_used_bytes(dp);
    mine[STAT_PLAN_NS] = (double)dp->now->plan_cpu_ns;
    mine[STAT_PLAN_WAIT_NS] = (double)planning.wait_ns;
    mine[STAT_PLAN_IDLE] = trace_rank_idle_predicted(&dp->now->plan, dp->transport.rank);
    mine[STAT_STOP_SIGNAL] = session_stop_mine(dp);
    mine[STAT_SECONDS] = session_seconds_mine(dp);
    TRY(session_account(dp, mine));
    TRY(collective_share(&dp->world, dp->rank_stats, sizeof(double) * SESSION_STATS));
    session_stop_take(dp, dp->rank_stats + STAT_STOP_SIGNAL, SESSION_STATS);
    dp->seconds = dp->rank_stats[STAT_SECONDS];  // rank 0's
    return STATUS_OK;
}

double session_stat_max(const Dynapipe* dp, int32_t stat) {
    double best = 0;
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        best = fmax(best, dp->rank_stats[r * SESSION_STATS + stat]);
    }
    return best;
}

double session_rank_idle(const Dynapipe* dp, int32_t rank) {
    double span_ns = session_stat_max(dp, STAT_PIPELINE_NS);
    return span_ns > 0 ? 1 - dp->rank_stats[rank * SESSION_STATS + STAT_BUSY_NS] / span_ns : 0;
}

static double planned_idle(const Dynapipe* dp) {
    double sum = 0;
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) {
        sum += dp->rank_stats[r * SESSION_STATS + STAT_PLAN_IDLE];
    }
    return sum / dp->transport.num_ranks;
}

static double mean_idle(const Dynapipe* dp) {
    double sum = 0;
    for (int32_t r = 0; r < dp->transport.num_ranks; r++) { sum += session_rank_idle(dp, r); }
    return sum / dp->transport.num_ranks;
}

// --- the step line ---------------------------------------------------------------------------------------

// Nothing until there are enough steps to say how far one lies off.
static const char* z_text(char* out, size_t out_bytes, double z) {
    out[0] = '\0';
    if (!isnan(z)) { snprintf(out, out_bytes, " (%+.2fz)", z); }
    return out;
}

// What was measured of what was predicted, > 0: longer; of a step that took several times as long, how many.
static const char* off_text(char* out, size_t out_bytes, SessionErrors errors) {
    double off = session_errors_part(&errors, errors.measured_ns - errors.predicted_ns);
    snprintf(out, out_bytes,
             off < 1   ? "%+.1f%%"
             : off < 9 ? "%.1fx"
                       : "%.0fx",
             off < 1 ? 100 * off : 1 + off);
    return out;
}

static double padding_percent(double total_tokens, double computed_tokens) {
    return computed_tokens > 0 ? 100 * (1 - total_tokens / computed_tokens) : 0;
}

// At the pace of the steps so far; the first two, which grow buffers, only where there are no others.
static double seconds_left(const Dynapipe* dp, int32_t step) {
    const SessionSummary* run = &dp->summary;
    double ns = run->num_steps > 0 ? run->ns / run->num_steps : session_stat_max(dp, STAT_STEP_NS);
    return ns / 1e9 * (dp->num_steps - step);
}

double session_mfu(const Dynapipe* dp, const DynapipeReport_v1* report) {
    double seconds = session_stat_max(dp, STAT_STEP_NS) / 1e9;
    return report->peak_flops > 0 && seconds > 0 ? report->flops / report->peak_flops / seconds : 0;
}

// --verbose: how it went against the plan, below the step's line.
static void print_details(const Dynapipe* dp, const DynapipeReport_v1* report) {
    const DynapipeStep_v1* last = &dp->last;
    char off[24], loss_z[24], norm_z[24];
    printf("          %s of prediction, idle %4.1f%% (plan %4.1f%%), pad %2.0f%%, %.0f supervised/s, "
           "planning %.0f ms",
           off_text(off, sizeof off, session_step_errors(dp)), 100 * mean_idle(dp), 100 * planned_idle(dp),
           padding_percent((double)last->total_tokens, (double)last->computed_tokens),
           (double)last->supervised_tokens * 1e9 / session_stat_max(dp, STAT_STEP_NS),
           session_stat_max(dp, STAT_PLAN_NS) / 1e6);
    if (!isnan(report->loss_z)) {
        printf("\n          loss%s, norm%s from the mean", z_text(loss_z, sizeof loss_z, report->loss_z),
               z_text(norm_z, sizeof norm_z, report->norm_z));
    }
    printf("\n");
}

static void print_line(const Dynapipe* dp, const DynapipeReport_v1* report) {
    double step_ns = session_stat_max(dp, STAT_STEP_NS);
    StepLine line = {.step = report->step,
                     .num_steps = dp->num_steps,
                     .loss = dp->last.loss,
                     .norm = report->norm,
                     .lr = report->lr,
                     .ms = step_ns / 1e6,
                     .tokens_per_s = (double)dp->last.total_tokens * 1e9 / step_ns,
                     .mfu = session_mfu(dp, report),
                     .bytes = session_stat_max(dp, STAT_RSS_BYTES),
                     .seconds_left = seconds_left(dp, report->step)};
    char text[STEP_LINE_CHARS];
    if (dp->options.quiet) { return; }
    printf("%s\n", step_line_print(text, &line));
    if (dp->options.verbose) { print_details(dp, report); }
    fflush(stdout);
}

// --- one step in detail ----------------------------------------------------------------------------------

// Appends nothing: a file that is there stays as it is until its step.
static bool can_write(const char* path) {
    FILE* file = path != NULL ? fopen(path, "a") : NULL;
    return path == NULL || (file != NULL && fclose(file) == 0);
}

Status session_report_open(Dynapipe* dp) {
    const SessionOptions* options = &dp->options;
    if (options->trace == NULL && options->dump_plan == NULL) { return STATUS_OK; }
    double failures[2] = {0};
    int error[2] = {0};
    const char* const names[2] = {"--trace", "--dump-plan"};
    const char* const paths[2] = {options->trace, options->dump_plan};
    for (int i = 0; i < 2 && dp->transport.rank == 0; i++) {
        failures[i] = !can_write(paths[i]);
        error[i] = errno;
    }
    TRY(collective_all_reduce_sum(&dp->world, failures, 2));
    for (int i = 0; i < 2; i++) {
        if (failures[i] == 0) { continue; }
        return FAIL(STATUS_IO, "%s %s: cannot be written: %s ---> name a file in a directory that you own",
                    names[i], paths[i], strerror(error[i]));
    }
    return STATUS_OK;
}

// The first option that shows a step; NULL: none does.
static const char* shows_step(const SessionOptions* options) {
    return options->trace != NULL       ? "--trace"
           : options->dump_plan != NULL ? "--dump-plan"
           : options->print_plan        ? "--print-plan"
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

// A rank's record, its times by rank 0's clock, in front of it how good that is.
static Status pack_trace(unsigned char** out, size_t* num_bytes, Dynapipe* dp, Arena* arena) {
    TraceRank mine = *executor_trace(dp->executor);
    TraceClock rank_clock = {0};
    TRY(collective_clock_offset(&dp->world, &rank_clock.offset_ns, &rank_clock.error_ns));
    if (dp->cores.num_hosts == 1) { rank_clock = (TraceClock){0}; }  // it is the same clock
    const TraceEvent* events = mine.events;
    *num_bytes = sizeof rank_clock + trace_rank_packed_bytes(&mine);
    *out = arena_alloc(arena, *num_bytes);
    mine.events = ARENA_NEW(arena, TraceEvent, mine.num_events);
    if (*out == NULL || mine.events == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a trace"); }
    mine.begin_ns -= rank_clock.offset_ns;
    mine.end_ns -= rank_clock.offset_ns;
    for (int32_t i = 0; i < mine.num_events; i++) {
        mine.events[i] = events[i];
        mine.events[i].begin_ns -= rank_clock.offset_ns;
        mine.events[i].end_ns -= rank_clock.offset_ns;
    }
    memcpy(*out, &rank_clock, sizeof rank_clock);
    trace_rank_pack(&mine, *out + sizeof rank_clock);
    return STATUS_OK;
}

static Status write_trace_file(const Dynapipe* dp, int32_t step, const CollectiveBytes* all, Arena* arena) {
    int32_t num_ranks = dp->transport.num_ranks;
    TraceRank* ranks = ARENA_NEW(arena, TraceRank, num_ranks);
    TraceClock* clocks = ARENA_NEW(arena, TraceClock, num_ranks);
    if (ranks == NULL || clocks == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a trace"); }
    for (int32_t r = 0; r < num_ranks; r++) {
        if (all[r].num_bytes < sizeof *clocks) { return FAIL(STATUS_BAD_FORMAT, "trace: rank %d is cut", r); }
        memcpy(&clocks[r], all[r].data, sizeof *clocks);
        TRY(trace_rank_unpack(&ranks[r], all[r].data + sizeof *clocks, all[r].num_bytes - sizeof *clocks,
                              arena));
    }
    SessionErrors errors = session_step_errors(dp);
    TraceStep about = {.step = step,
                       .plan = &dp->now->plan,
                       .plan_hash = plan_hash(&dp->now->plan),
                       .errors = &errors,
                       .clocks = clocks,
                       .ranks = ranks,
                       .num_ranks = num_ranks};
    TraceWriter writer;
    TRY(trace_writer_open(&writer, dp->options.trace));
    Status status = trace_writer_add_step(&writer, &about);
    Status closed = trace_writer_close(&writer);
    return status == STATUS_OK ? closed : status;
}

static Status write_trace(Dynapipe* dp, int32_t step) {
    Arena arena = {0};
    CollectiveBytes* all = ARENA_NEW(&arena, CollectiveBytes, dp->transport.num_ranks);
    unsigned char* packed = NULL;
    size_t num_bytes = 0;
    Status status = all != NULL ? pack_trace(&packed, &num_bytes, dp, &arena)
                                : FAIL(STATUS_NO_MEMORY, "no memory for a trace");
    if (status == STATUS_OK) { status = collective_gather_bytes(&dp->world, packed, num_bytes, all, &arena); }
    if (status == STATUS_OK && dp->transport.rank == 0) { status = write_trace_file(dp, step, all, &arena); }
    arena_free(&arena);
    return status;
}

static Status show_step(Dynapipe* dp, int32_t step) {
    const Plan* plan = &dp->now->plan;
    if (dp->transport.rank == 0 && dp->options.print_plan) {
        printf("\nthe plan of step %d%s\n", step,
               session_shares_cores(dp) ? ", in times of ranks that have cores of their own; here they share"
                                        : "");
        plan_print_table(plan, stdout);
        plan_print_timeline(plan, TIMELINE_COLUMNS, stdout);
        printf("\n");
        fflush(stdout);
    }
    if (dp->transport.rank == 0 && dp->options.dump_plan != NULL) {
        FILE* file = fopen(dp->options.dump_plan, "w");
        if (file == NULL) { return FAIL(STATUS_IO, "--dump-plan %s: cannot write", dp->options.dump_plan); }
        plan_print(plan, file);
        if (fclose(file) != 0) {
            return FAIL(STATUS_IO, "--dump-plan %s: cannot write", dp->options.dump_plan);
        }
    }
    return dp->options.trace != NULL ? write_trace(dp, step) : STATUS_OK;
}

// --- the whole run ---------------------------------------------------------------------------------------

// Room for another step; false where there is none.
static bool grow_summary(SessionSummary* summary) {
    if (summary->num_steps < summary->max_steps) { return true; }
    int32_t old = summary->max_steps, max_steps = old > 0 ? 2 * old : 256;
    double* errors = realloc(summary->errors, sizeof(double) * (size_t)max_steps * SUMMARY_LISTS);
    if (errors == NULL) { return false; }
    for (int32_t k = SUMMARY_LISTS - 1; k > 0; k--) {
        memmove(errors + k * max_steps, errors + k * old, sizeof(double) * (size_t)old);
    }
    summary->errors = errors;
    summary->max_steps = max_steps;
    return true;
}

static void add_to_summary(Dynapipe* dp) {
    SessionSummary* summary = &dp->summary;
    if (dp->steps_reported++ < SUMMARY_SKIP_STEPS || !grow_summary(summary)) { return; }
    SessionErrors errors = session_step_errors(dp);
    const int64_t parts_ns[SUMMARY_LISTS] = {[SUMMARY_OFF] = errors.measured_ns - errors.predicted_ns,
                                             [SUMMARY_JOBS] = errors.jobs_ns,
                                             [SUMMARY_TRANSFERS] = errors.transfers_ns,
                                             [SUMMARY_WAITING] = errors.waiting_ns};
    for (int32_t k = 0; k < SUMMARY_LISTS; k++) {
        summary->errors[k * summary->max_steps + summary->num_steps] =
            session_errors_part(&errors, parts_ns[k]);
    }
    summary->num_steps++;
    summary->ns += session_stat_max(dp, STAT_STEP_NS);
    summary->supervised += (double)dp->last.supervised_tokens;
    summary->total += (double)dp->last.total_tokens;
    summary->computed += (double)dp->last.computed_tokens;
    summary->idle += mean_idle(dp);
    summary->plan_wait_ns += session_stat_max(dp, STAT_PLAN_WAIT_NS);
    summary->peak_bytes = fmax(summary->peak_bytes, session_stat_max(dp, STAT_PEAK_BYTES));
    summary->rss_bytes = fmax(summary->rss_bytes, session_stat_max(dp, STAT_RSS_BYTES));
}

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double median_percent(double* values, int32_t count) {
    qsort(values, (size_t)count, sizeof(double), compare_doubles);
    return 50 * (values[(count - 1) / 2] + values[count / 2]);
}

// Percent of what was predicted: medians of the parts, of the whole, and of the whole without sign, which
// comes last since it drops the signs.
static void print_errors(const SessionSummary* run) {
    double median[SUMMARY_LISTS], *off = run->errors + SUMMARY_OFF * run->max_steps;
    for (int32_t k = 0; k < SUMMARY_LISTS; k++) {
        median[k] = median_percent(run->errors + k * run->max_steps, run->num_steps);
    }
    for (int32_t i = 0; i < run->num_steps; i++) { off[i] = fabs(off[i]); }
    printf(
        "against the prediction (medians): steps %+.1f%% (jobs %+.1f%%, transfers %+.1f%%, waiting %+.1f%%)\n"
        "steps without sign %.1f%%",
        median[SUMMARY_OFF], median[SUMMARY_JOBS], median[SUMMARY_TRANSFERS], median[SUMMARY_WAITING],
        median_percent(off, run->num_steps));
}

static void print_summary(const Dynapipe* dp) {
    const SessionSummary* run = &dp->summary;
    printf("steps %d to %d: %.4g ms each | %.0f tok/s, %.0f supervised | pad %.1f%% | idle %.1f%%\n"
           "waited for plans %.1f%% of the time; the largest rank: %s planned, %s used\n",
           dp->next_step - run->num_steps + 1, dp->next_step, run->ns / run->num_steps / 1e6,
           run->total * 1e9 / run->ns, run->supervised * 1e9 / run->ns,
           padding_percent(run->total, run->computed), 100 * run->idle / run->num_steps,
           100 * run->plan_wait_ns / run->ns, BYTES_TEXT(run->peak_bytes), BYTES_TEXT(run->rss_bytes));
    print_errors(run);
    printf("\n");
}

void session_report_close(Dynapipe* dp) {
    if (dp->transport.rank == 0 && dp->summary.num_steps > 0) { print_summary(dp); }
    free(dp->summary.errors);
    line_log_close(&dp->metrics);
}

static Status make_report(Dynapipe* dp, const DynapipeReport_v1* report) {
    TRY(interface_check_report(report));
    if (dp->now == NULL) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "dynapipe_report(): there is no step to report, none has run since the "
                    "start, a restore or a move of layers ---> report before "
                    "dynapipe_resplit()");
    }
    TRY(share_stats(dp));
    add_to_summary(dp);
    if (report->step == dp->options.show_step) { TRY(show_step(dp, report->step)); }
    if (dp->transport.rank != 0) { return STATUS_OK; }
    print_line(dp, report);
    session_metrics_write(dp, report);
    return STATUS_OK;
}

int dynapipe_report(Dynapipe* dp, const DynapipeReport_v1* report) {
    return (int)make_report(dp, report);
}
