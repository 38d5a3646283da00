#include "trace_replay.h"

#include <stdlib.h>
#include <string.h>

#include "../util/program.h"
#include "plan_file.h"

// --- what if -----------------------------------------------------------------------------------------------

typedef struct {
    TraceWhatIf change;
    double* speeds;     // [num_ranks] change.rank_speeds, once there is one
    const char* order;  // a plan's path; NULL: as it was
} Row;

// "2x": a factor of 0.01 to 100, on top of those before it in the row; so is what comes out.
static bool take_factor(double* product, const char* text) {
    char* end;
    double factor = strtod(text, &end);
    if (end == text || strcmp(end, "x") != 0 || !(factor >= 0.01 && factor <= 100)) { return false; }
    *product *= factor;
    return *product >= 0.01 && *product <= 100;
}

static bool parse_rank(Row* row, const char* text, int32_t num_ranks) {
    char* end;
    long rank = strtol(text, &end, 10);
    if (end == text || *end != ':' || rank < 0 || rank >= num_ranks) { return false; }
    row->change.rank_speeds = row->speeds;
    return take_factor(&row->speeds[rank], end + 1);
}

static bool parse_change(Row* row, const char* text, int32_t num_ranks) {
    TraceWhatIf* change = &row->change;
    if (strncmp(text, "link=", 5) == 0) {
        if (change->link == 0) { change->link = 1; }
        return take_factor(&change->link, text + 5);
    }
    if (strncmp(text, "rank=", 5) == 0) { return parse_rank(row, text + 5, num_ranks); }
    if (strncmp(text, "order=", 6) == 0) {
        bool is_first = row->order == NULL;
        row->order = text + 6;
        return is_first && text[6] != '\0';
    }
    bool jitter = strcmp(text, "jitter=0") == 0, planned = strcmp(text, "jobs=planned") == 0;
    bool late = strcmp(text, "late=0") == 0;
    change->no_jitter |= jitter;
    change->as_planned |= planned;
    change->no_late |= late;
    return jitter || planned || late;
}

// Changes joined by +, in place.
static Status parse_row(Row* row, char* text, int32_t num_ranks) {
    char* at = text;
    while (at != NULL) {
        char* plus = strchr(at, '+');
        if (plus != NULL) { *plus = '\0'; }
        if (!parse_change(row, at, num_ranks)) {
            return FAIL(
                STATUS_BAD_OPTION,
                "--what-if %.60s ---> link=2x, rank=RANK:1.5x (ranks 0 to %d), jitter=0, jobs=planned, "
                "late=0 or one order=FILE.plan; factors, and the product of several of a link or rank, 0.01x "
                "to 100x; + joins changes, a comma begins another row",
                at, num_ranks - 1);
        }
        at = plus != NULL ? plus + 1 : NULL;
    }
    return STATUS_OK;
}

// A speed that all ranks share is said once.
static bool share_speed(const double* speeds, int32_t num_ranks) {
    for (int32_t r = 1; r < num_ranks; r++) {
        if (speeds[r] != speeds[0]) { return false; }
    }
    return num_ranks > 1;
}

static void describe(TraceRow* out_row, const Row* row, int32_t num_ranks) {
    const TraceWhatIf* change = &row->change;
    const double* speeds = change->rank_speeds;
    char* out = out_row->about;
    size_t room = sizeof out_row->about;
    bool shared = speeds != NULL && share_speed(speeds, num_ranks);
    snprintf(out, room, "%s", row->order != NULL ? "the plan's order, messages that move at once" : "");
#define ADD(...)                                                   \
    do {                                                           \
        size_t used = strlen(out);                                 \
        if (used > 0) { snprintf(out + used, room - used, "; "); } \
        used = strlen(out);                                        \
        snprintf(out + used, room - used, __VA_ARGS__);            \
    } while (0)
    if (change->link > 0) { ADD("links %.4g times as fast", change->link); }
    if (shared) { ADD("all ranks %.4g times as fast", speeds[0]); }
    for (int32_t r = 0; r < num_ranks && speeds != NULL && !shared; r++) {
        if (speeds[r] != 1) { ADD("rank %d %.4g times as fast", r, speeds[r]); }
    }
    if (change->no_jitter) { ADD("every job the median of its rank and kind"); }
    if (change->as_planned) { ADD("every job as planned"); }
    if (change->no_late) { ADD("no message begins late"); }
#undef ADD
}

static Status run_order(TraceGraph* out, const TraceReplay* replay, const char* path, Arena* arena) {
    Plan plan;
    TRY(plan_file_load(&plan, path, arena));
    return trace_graph_make_ordered(out, &replay->file, &replay->graph, &plan, arena);
}

static Status add_row(TraceReplay* replay, const char* text, Arena* arena) {
    if (replay->num_rows == TRACE_MAX_ROWS) {
        return FAIL(STATUS_BAD_OPTION, "--what-if: more than %d rows ---> ask in several calls",
                    TRACE_MAX_ROWS);
    }
    TraceRow* row = &replay->rows[replay->num_rows];
    int32_t num_ranks = replay->graph.num_ranks;
    Row parsed = {.speeds = ARENA_NEW(arena, double, num_ranks)};
    char* copy = arena_alloc(arena, strlen(text) + 1);
    if (copy == NULL || parsed.speeds == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for --what-if"); }
    memcpy(copy, text, strlen(text) + 1);
    for (int32_t r = 0; r < num_ranks; r++) { parsed.speeds[r] = 1; }
    TRY(parse_row(&parsed, copy, num_ranks));
    snprintf(row->name, sizeof row->name, "%s", text);
    describe(row, &parsed, num_ranks);
    TraceGraph graph = replay->graph, changed;
    if (parsed.order != NULL) { TRY(run_order(&graph, replay, parsed.order, arena)); }
    TRY(trace_graph_change(&changed, &graph, &parsed.change, arena));
    row->ns = changed.nodes[changed.last].end_ns;
    replay->num_rows++;
    return STATUS_OK;
}

static Status add_usual_rows(TraceReplay* replay, Arena* arena) {
    static const char* const usual[] = {"link=2x", "late=0", "jitter=0", "jobs=planned",
                                        "jobs=planned+late=0"};
    int32_t busiest = 0;
    for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++) { TRY(add_row(replay, usual[i], arena)); }
    for (int32_t r = 1; r < replay->graph.num_ranks; r++) {
        if (replay->path.rank_jobs_ns[r] > replay->path.rank_jobs_ns[busiest]) { busiest = r; }
    }
    char text[32];
    snprintf(text, sizeof text, "rank=%d:1.2x", busiest);
    return add_row(replay, text, arena);
}

static Status add_rows(TraceReplay* replay, const char* what_if, Arena* arena) {
    char* copy = arena_alloc(arena, strlen(what_if) + 1);
    if (copy == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for --what-if"); }
    memcpy(copy, what_if, strlen(what_if) + 1);
    for (char* at = copy; at != NULL;) {
        char* comma = strchr(at, ',');
        if (comma != NULL) { *comma = '\0'; }
        TRY(add_row(replay, at, arena));
        at = comma != NULL ? comma + 1 : NULL;
    }
    return STATUS_OK;
}

Status trace_replay_make(TraceReplay* out, const char* path, const char* what_if, Arena* arena) {
    *out = (TraceReplay){0};
    TRY(trace_file_load(&out->file, path, arena));
    Status status = trace_graph_make(&out->graph, &out->file, arena);
    if (status != STATUS_OK) {
        char why[400];
        snprintf(why, sizeof why, "%s", status_message());
        return FAIL(status, "%s: %s", path, why);
    }
    out->replayed_ns = out->graph.nodes[out->graph.last].end_ns;
    TRY(trace_graph_path(&out->path, &out->graph, arena));
    return what_if == NULL ? add_usual_rows(out, arena) : add_rows(out, what_if, arena);
}

// --- text --------------------------------------------------------------------------------------------------

const char* trace_replay_part(const TraceReplay* replay, int32_t part, int64_t* ns) {
    const TracePath* path = &replay->path;
    const struct {
        const char* name;
        int64_t ns;
    } parts[TRACE_NUM_PARTS] = {
        {"forward", path->jobs_ns[INSTR_FWD]},
        {"backward", path->jobs_ns[INSTR_BWD]},
        {"weight gradients", path->jobs_ns[INSTR_WGT]},
        {"recomputation", path->jobs_ns[INSTR_REC]},
        {"shares of the head", path->jobs_ns[TRACE_JOB_HEAD]},
        {"their weight gradients", path->jobs_ns[TRACE_JOB_HEAD_WEIGHTS]},
        {"transfers", path->wire_ns},
        {"messages that move late", path->late_ns},
        {"between events of a rank", path->between_ns},
        {"gradient reduction", path->reduce_ns},
    };
    *ns = parts[part].ns;
    return parts[part].name;
}

static double percent(int64_t ns, int64_t of_ns) {
    return of_ns > 0 ? 100 * (double)ns / (double)of_ns : 0;
}

static void print_head(const TraceReplay* replay, FILE* out) {
    const TraceFile* file = &replay->file;
    const SessionErrors* errors = &file->errors;
    int64_t measured_ns = replay->graph.measured_ns;
    fprintf(out, "step %lld, plan %s (%s, %s), %d stages x %d replicas\n", (long long)file->step,
            file->plan_hash, file->policy, file->schedule, file->P, file->R);
    fprintf(out, "measured %s, replayed %s (%+.2f%%)\n", TIME_TEXT(measured_ns, 6),
            TIME_TEXT(replay->replayed_ns, 6), percent(replay->replayed_ns - measured_ns, measured_ns));
    if (file->has_errors) {
        int64_t predicted_ns = errors->predicted_ns;
        fprintf(out,
                "predicted %s, took %+.1f%%: jobs %+.1f%%, transfers %+.1f%%, waiting %+.1f%% "
                "(with planning)\n",
                TIME_TEXT(predicted_ns, 6), percent(errors->measured_ns - predicted_ns, predicted_ns),
                percent(errors->jobs_ns, predicted_ns), percent(errors->transfers_ns, predicted_ns),
                percent(errors->waiting_ns, predicted_ns));
    }
    if (file->worst_clock.error_ns > 0) {
        fprintf(out, "clocks of hosts agree within %s\n", TIME_TEXT(file->worst_clock.error_ns, 3));
    }
}

static void print_path(const TraceReplay* replay, FILE* out) {
    const TracePath* path = &replay->path;
    fprintf(out, "\n%-26s %11s %7s\n", "critical path", "ms", "share");
    for (int32_t part = 0; part < TRACE_NUM_PARTS; part++) {
        int64_t ns;
        const char* name = trace_replay_part(replay, part, &ns);
        if (ns == 0) { continue; }
        fprintf(out, "%-26s %11.3f %6.1f%%\n", name, (double)ns / 1e6, percent(ns, path->makespan_ns));
    }
    for (int32_t r = 0; r < replay->graph.num_ranks; r++) {
        if (path->rank_jobs_ns[r] == 0) { continue; }
        char name[32];
        snprintf(name, sizeof name, "  jobs of rank %d", r);
        fprintf(out, "%-26s %11.3f %6.1f%%\n", name, (double)path->rank_jobs_ns[r] / 1e6,
                percent(path->rank_jobs_ns[r], path->makespan_ns));
    }
    fprintf(out, "jobs on it took %s%s more than planned\n", path->late_jobs_ns > 0 ? "+" : "",
            TIME_TEXT(path->late_jobs_ns, 4));
}

void trace_replay_print(const TraceReplay* replay, FILE* out) {
    int chars = 9;
    print_head(replay, out);
    print_path(replay, out);
    for (int32_t i = 0; i < replay->num_rows; i++) {
        int length = (int)strlen(replay->rows[i].name);
        chars = length > chars ? length : chars;
    }
    fprintf(out, "\n%-*s %11s %7s\n", chars, "what if", "ms", "step");
    for (int32_t i = 0; i < replay->num_rows; i++) {
        const TraceRow* row = &replay->rows[i];
        fprintf(out, "%-*s %11.3f %+6.1f%%  %s\n", chars, row->name, (double)row->ns / 1e6,
                percent(row->ns - replay->replayed_ns, replay->replayed_ns), row->about);
    }
}
