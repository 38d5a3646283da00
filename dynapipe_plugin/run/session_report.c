// session_report.c -- what a user sees of a step: one line, and on demand its plan and timelines; at the end,
// what the run was like.
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "../base/clock.h"
#include "interface.h"
#include "session.h"

enum { SUMMARY_SKIP_STEPS = 2 };  // the first steps grow buffers and warm caches

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

static double padding_percent(double total_tokens, double computed_tokens) {
    return computed_tokens > 0 ? 100 * (1 - total_tokens / computed_tokens) : 0;
}

static void print_line(const Dynapipe* dp, const DynapipeReport_v1* report) {
    const DynapipeStep_v1* last = &dp->last;
    double step_ns = session_stat_max(dp, STAT_STEP_NS), step_ms = step_ns / 1e6;
    int decimals = step_ms >= 1000 ? 0 : step_ms >= 100 ? 1 : 2;
    char loss_z[24], norm_z[24];
    printf("step %4d/%d | loss %7.6f%s | norm %6.4f%s | lr %.2e | %6.*f ms | %5.0f tok/s, %5.0f supervised | "
           "pad %4.1f%% | idle %4.1f%% (plan %4.1f%%) | planning %.1f ms\n",
           report->step, dp->num_steps, last->loss, z_text(loss_z, sizeof loss_z, report->loss_z),
           report->norm, z_text(norm_z, sizeof norm_z, report->norm_z), report->lr, decimals, step_ms,
           (double)last->total_tokens * 1e9 / step_ns, (double)last->supervised_tokens * 1e9 / step_ns,
           padding_percent((double)last->total_tokens, (double)last->computed_tokens), 100 * mean_idle(dp),
           100 * planned_idle(dp), session_stat_max(dp, STAT_PLAN_NS) / 1e6);
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

static Status write_trace(Dynapipe* dp, int32_t step) {
    const TraceRank* mine = executor_trace(dp->executor);
    Arena arena = {0};
    int32_t num_ranks = dp->transport.num_ranks;
    size_t num_bytes = trace_rank_packed_bytes(mine);
    void* packed = arena_alloc(&arena, num_bytes);
    CollectiveBytes* all = ARENA_NEW(&arena, CollectiveBytes, num_ranks);
    TraceRank* ranks = ARENA_NEW(&arena, TraceRank, num_ranks);
    Status status = packed == NULL || all == NULL || ranks == NULL
                        ? FAIL(STATUS_NO_MEMORY, "no memory for a trace")
                        : STATUS_OK;
    if (status == STATUS_OK) {
        trace_rank_pack(mine, packed);
        status = collective_gather_bytes(&dp->world, packed, num_bytes, all, &arena);
    }
    if (dp->transport.rank == 0) {
        for (int32_t r = 0; r < num_ranks && status == STATUS_OK; r++) {
            status = trace_rank_unpack(&ranks[r], all[r].data, all[r].num_bytes, &arena);
        }
        TraceWriter writer = {0};
        if (status == STATUS_OK) { status = trace_writer_open(&writer, dp->options.trace); }
        if (status == STATUS_OK) {
            status = trace_writer_add_step(&writer, step, &dp->now->plan, ranks, num_ranks);
        }
        Status closed = trace_writer_close(&writer);
        if (status == STATUS_OK) { status = closed; }
    }
    arena_free(&arena);
    return status;
}

static Status show_step(Dynapipe* dp, int32_t step) {
    const Plan* plan = &dp->now->plan;
    if (dp->transport.rank == 0 && dp->options.print_plan) {
        printf("\nthe plan of step %d\n", step);
        plan_print_table(plan, stdout);
        plan_print_timeline(plan, 100, stdout);
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

static void add_to_summary(Dynapipe* dp) {
    SessionSummary* summary = &dp->summary;
    if (dp->steps_reported++ < SUMMARY_SKIP_STEPS) { return; }
    if (summary->num_steps == summary->max_steps) {
        int32_t max_steps = summary->max_steps > 0 ? 2 * summary->max_steps : 256;
        double* errors = realloc(summary->errors, sizeof(double) * (size_t)max_steps);
        if (errors == NULL) { return; }
        summary->errors = errors;
        summary->max_steps = max_steps;
    }
    double measured_ns = session_stat_max(dp, STAT_STEP_NS);
    summary->errors[summary->num_steps++] = fabs((double)dp->now->plan.makespan_ns / measured_ns - 1);
    summary->ns += measured_ns;
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

// Why a prediction may be far off.
static const char* prediction_excuse(const Dynapipe* dp) {
    bool shares =
        (int64_t)local_ranks_count(dp->transport.num_ranks) * dp->num_threads > sysconf(_SC_NPROCESSORS_ONLN);
    return shares ? ", the ranks share cores" : "";
}

static void print_summary(const Dynapipe* dp) {
    const SessionSummary* run = &dp->summary;
    qsort(run->errors, (size_t)run->num_steps, sizeof(double), compare_doubles);
    printf(
        "steps %d to %d: %.4g ms each | %.0f tok/s, %.0f supervised | pad %.1f%% | idle %.1f%% | waited for "
        "plans %.1f%% of the time\n",
        dp->next_step - run->num_steps + 1, dp->next_step, run->ns / run->num_steps / 1e6,
        run->total * 1e9 / run->ns, run->supervised * 1e9 / run->ns,
        padding_percent(run->total, run->computed), 100 * run->idle / run->num_steps,
        100 * run->plan_wait_ns / run->ns);
    printf(
        "predicted step time off by %.1f%% (median)%s | the largest rank: %.0f MiB planned, %.0f MiB used\n",
        100 * run->errors[run->num_steps / 2], prediction_excuse(dp), run->peak_bytes / 1048576,
        run->rss_bytes / 1048576);
}

void session_report_close(Dynapipe* dp) {
    if (dp->transport.rank == 0 && dp->summary.num_steps > 0) { print_summary(dp); }
    free(dp->summary.errors);
    line_log_close(&dp->metrics);
}

static Status make_report(Dynapipe* dp, const DynapipeReport_v1* report) {
    TRY(interface_check_report(report));
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
