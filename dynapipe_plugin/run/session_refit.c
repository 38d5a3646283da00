// session_refit.c -- how many times as long ranks take as predicted: from steps that ran, in a checkpoint, in
// plans.
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "session.h"
#include "../../util/numbers.h"

// Of the sum of a few steps' jobs: smaller changes are no change, so that ranks that are alike stay alike.
static const double NOISE = 0.05;

static const RefitVersion* last_version(const SessionRefit* refit) {
    return refit->num_versions > 0 ? &refit->versions[refit->num_versions - 1] : NULL;
}

// --- in words and in metrics.jsonl -------------------------------------------------------------------------

static void print_version(const RefitVersion* version, const RefitVersion* before, int32_t num_ranks) {
    enum { MOST_LINES = 8 };
    int32_t num_lines = 0;
    for (int32_t r = 0; r < num_ranks; r++) {
        if (version->slow[r] == (before != NULL ? before->slow[r] : 1) || ++num_lines > MOST_LINES) {
            continue;
        }
        printf("refit after step %d: rank %d ", version->agreed, r);
        if (version->slow[r] == 1) {
            printf("is as fast as predicted again\n");
        } else {
            printf("takes %.2f times as long as predicted since about step %d\n", version->slow[r],
                   version->agreed - SESSION_REFIT_EVERY + 1);
        }
    }
    if (num_lines > MOST_LINES) {
        printf("refit after step %d: %d more ranks have changed their speed\n", version->agreed,
               num_lines - MOST_LINES);
    }
    fflush(stdout);
}

json_t* session_refit_json(const SessionRefit* refit) {
    const RefitVersion* version = last_version(refit);
    json_t* ranks = json_object();
    char name[16];
    for (int32_t r = 0; r < refit->num_ranks; r++) {
        snprintf(name, sizeof name, "%d", (int)r);
        if (version->slow[r] != 1) { json_object_set_new(ranks, name, json_real(version->slow[r])); }
    }
    return json_pack("{s:i,s:i,s:o}", "refit", version->agreed, "from", version->first_step + 1, "ranks",
                     ranks);
}

// --- in a checkpoint ---------------------------------------------------------------------------------------

// Numbers of ranks and versions; of each version, after how many steps, from which on, each rank's factor.
static const char REFIT_MAGIC[] = "dprefit6";

Status session_refit_write(const SessionRefit* refit, FILE* out) {
    Text text;
    if (!refit->is_on || refit->num_versions == 0) { return STATUS_OK; }
    TRY(text_open(&text));
    fprintf(text.out, "%d %d", refit->num_ranks, refit->num_versions);
    for (int32_t i = 0; i < refit->num_versions; i++) {
        const RefitVersion* version = &refit->versions[i];
        fprintf(text.out, "\n%d %d", version->agreed, version->first_step);
        for (int32_t r = 0; r < refit->num_ranks; r++) { fprintf(text.out, " %.17g", version->slow[r]); }
    }
    return section_write(out, REFIT_MAGIC, &text);
}

// The planning thread's and the steps' machines; session_refit_start() makes new ones.
static void drop_machines(SessionRefit* refit) {
    free(refit->planned.ranks);
    refit->planned = refit->now = (RefitMachine){0};
}

void session_refit_forget(SessionRefit* refit) {
    for (int32_t i = 0; i < refit->num_versions; i++) { free(refit->versions[i].slow); }
    refit->num_versions = refit->num_ranks = 0;
}

// From *at on, `num` numbers that are factors; false: they are not there.
static bool read_factors(double* out, int32_t num, const char** at) {
    for (int32_t i = 0; i < num; i++) {
        char* end;
        out[i] = strtod(*at, &end);
        if (end == *at || !(out[i] >= MACHINE_LEAST_SLOW && out[i] <= MACHINE_MOST_SLOW)) { return false; }
        *at = end;
    }
    return true;
}

// All of a record or nothing.
static Status read_versions(SessionRefit* refit, const char* at) {
    int num_ranks = 0, num_versions = 0, used = 0;
    if (sscanf(at, "%d %d%n", &num_ranks, &num_versions, &used) != 2 || num_ranks < 1 ||
        (size_t)num_ranks > strlen(at) || num_versions > REFIT_VERSIONS) {
        return STATUS_OK;
    }
    refit->num_ranks = num_ranks;
    for (int32_t i = 0; i < num_versions; i++) {
        RefitVersion version;
        at += used;
        if (sscanf(at, "%d %d%n", &version.agreed, &version.first_step, &used) != 2) { break; }
        at += used, used = 0;
        version.slow = (double*)malloc((size_t)num_ranks * sizeof(double));
        if (version.slow == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a checkpoint's record"); }
        refit->versions[refit->num_versions++] = version;
        if (!read_factors(version.slow, num_ranks, &at)) { break; }
        if (i == num_versions - 1) { return STATUS_OK; }
    }
    session_refit_forget(refit);
    return STATUS_OK;
}

Status session_refit_restore(SessionRefit* refit, const void** position, size_t* num_bytes) {
    session_refit_forget(refit);
    drop_machines(refit);
    char* record = section_take(REFIT_MAGIC, position, num_bytes, NULL);
    Status status = refit->is_on && record != NULL ? read_versions(refit, record) : STATUS_OK;
    free(record);
    return status;
}

// --- start -------------------------------------------------------------------------------------------------

void session_refit_init(SessionRefit* refit, bool is_on) {
    *refit = (SessionRefit){.is_on = is_on};
    pthread_mutex_init(&refit->lock, NULL);
}

void session_refit_free(SessionRefit* refit) {
    session_refit_forget(refit);
    drop_machines(refit);
    free(refit->jobs);
    pthread_mutex_destroy(&refit->lock);
    *refit = (SessionRefit){0};
}

Status session_refit_start(SessionRefit* refit, const Machine* machine, int32_t rank, int32_t num_ranks,
                           int32_t num_ahead) {
    refit->machine = machine;
    refit->rank = rank;
    refit->num_ahead = num_ahead;
    refit->skips = true;
    refit->num_steps = 0;
    if (!refit->is_on) { return STATUS_OK; }
    if (refit->num_ranks != num_ranks) { session_refit_forget(refit); }
    refit->num_ranks = num_ranks;
    drop_machines(refit);
    refit->planned.ranks = (MachineRank*)calloc(2 * (size_t)num_ranks, sizeof(MachineRank));
    if (refit->jobs == NULL) { refit->jobs = (double(*)[2])malloc(REFIT_JOBS * sizeof *refit->jobs); }
    if (refit->planned.ranks == NULL || refit->jobs == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory to measure jobs");
    }
    refit->now.ranks = refit->planned.ranks + num_ranks;
    return STATUS_OK;
}

// --- a step ----------------------------------------------------------------------------------------------

// A forward of the last chunk that runs again need not compute the head.
static bool is_partial(const Plan* plan, const PlanInstr* instr) {
    return instr->kind == INSTR_FWD && instr->chunk == plan->placement.num_chunks - 1 &&
           plan->mbs[instr->mb].recompute[instr->chunk] != RECOMPUTE_NONE;
}

void session_refit_note(SessionRefit* refit, const Plan* plan, const TraceRank* trace, double slow) {
    const PlanRank* list = &plan->ranks[trace->rank];
    bool skips = refit->skips;
    int32_t num_jobs = 0;
    refit->skips = false;
    if (!refit->is_on || skips) { return; }
    for (int32_t i = 0; i < list->num_instrs && num_jobs < REFIT_JOBS; i++) {
        const PlanInstr* instr = &list->instrs[i];
        const TraceEvent* event = &trace->events[i];
        double measured_ns = (double)(event->end_ns - event->begin_ns),
               predicted_ns = (double)(instr->end_ns - instr->begin_ns) / slow;
        if (!plan_instr_is_job((InstrKind)instr->kind) || is_partial(plan, instr)) { continue; }
        if (measured_ns <= 0 || predicted_ns <= 0) { continue; }
        refit->jobs[num_jobs][0] = measured_ns;
        refit->jobs[num_jobs++][1] = predicted_ns;
    }
    if (refit->num_steps < SESSION_REFIT_EVERY) {
        refit->steps[refit->num_steps++] = session_refit_ratio(refit->jobs, num_jobs);
    }
}

// By measured / predicted.
static int compare_ratios(const void* a, const void* b) {
    const double *x = (const double*)a, *y = (const double*)b;
    double left = x[0] * y[1], right = y[0] * x[1];
    return (left > right) - (left < right);
}

double session_refit_ratio(double (*times)[2], int32_t num) {
    const int32_t out = num / 8;
    double sums[2] = {0};
    qsort(times, (size_t)num, sizeof *times, compare_ratios);
    for (int32_t i = out; i < num - out; i++) {
        sums[0] += times[i][0];
        sums[1] += times[i][1];
    }
    return sums[1] > 0 ? sums[0] / sums[1] : 0;
}

// The lower median.
static double middle_of(const double* values, int32_t num) {
    for (int32_t i = 0; i < num; i++) {
        int32_t below = 0, equal = 0;
        for (int32_t k = 0; k < num; k++) {
            below += values[k] < values[i];
            equal += values[k] == values[i];
        }
        if (below <= (num - 1) / 2 && (num - 1) / 2 < below + equal) { return values[i]; }
    }
    return 1;
}

// What a rank's factor becomes: of `num` steps' factors that nearest to the one known before, if all lie on
// the same side of it. So what comes and goes changes no plan.
static double settle_rank(const double* factors, int32_t num, double before) {
    double least = MACHINE_MOST_SLOW, most = MACHINE_LEAST_SLOW;
    for (int32_t i = 0; i < num; i++) {
        least = fmin(least, factors[i]);
        most = fmax(most, factors[i]);
    }
    double now = fmin(fmax(before, least), most);
    if (fabs(now - 1) <= NOISE) { now = 1; }
    return fabs(now / before - 1) > NOISE ? now : before;
}

// slow[r] of each rank from ratios[r][step], its jobs measured over predicted: its factor beside the rank in
// the middle, since what all have in common changes no plan. Returns whether any differs from what was known.
static bool settle(double* slow, const double (*ratios)[SESSION_REFIT_EVERY], const SessionRefit* refit) {
    const RefitVersion* last = last_version(refit);
    double middles[SESSION_REFIT_EVERY];
    int32_t used[SESSION_REFIT_EVERY], num = 0;
    bool differs = false;
    for (int32_t i = 0; i < refit->num_steps; i++) {
        double least = 1;
        for (int32_t r = 0; r < refit->num_ranks; r++) {
            slow[r] = ratios[r][i];
            least = fmin(least, slow[r]);
        }
        if (least <= 0) { continue; }  // a rank measured nothing
        middles[num] = middle_of(slow, refit->num_ranks);
        used[num++] = i;
    }
    if (num < 2) { return false; }
    for (int32_t r = 0; r < refit->num_ranks; r++) {
        double factors[SESSION_REFIT_EVERY], before = last != NULL ? last->slow[r] : 1;
        for (int32_t i = 0; i < num; i++) {
            double factor = ratios[r][used[i]] / middles[i];
            factors[i] = fmin(fmax(factor, MACHINE_LEAST_SLOW), MACHINE_MOST_SLOW);
        }
        slow[r] = settle_rank(factors, num, before);
        differs |= slow[r] != before;
    }
    return differs;
}

// Drops versions that no plan uses any more.
static void add_version(SessionRefit* refit, RefitVersion version) {
    pthread_mutex_lock(&refit->lock);
    while (refit->num_versions == REFIT_VERSIONS ||
           (refit->num_versions > 1 && refit->versions[1].first_step <= version.agreed)) {
        free(refit->versions[0].slow);
        refit->num_versions--;
        memmove(refit->versions, refit->versions + 1, (size_t)refit->num_versions * sizeof version);
    }
    refit->versions[refit->num_versions++] = version;
    pthread_mutex_unlock(&refit->lock);
}

Status session_refit_agree(SessionRefit* refit, Collective* world, int32_t steps_done) {
    const void* shared;
    if (!refit->is_on || steps_done % SESSION_REFIT_EVERY != 0) { return STATUS_OK; }
    TRY(collective_each(world, refit->steps, sizeof refit->steps, &shared));
    double* slow = (double*)malloc((size_t)refit->num_ranks * sizeof *slow);
    if (slow == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for what %d ranks take", refit->num_ranks); }
    bool differs = settle(slow, (const double(*)[SESSION_REFIT_EVERY])shared, refit);
    refit->num_steps = 0;
    if (!differs) {
        free(slow);
        return STATUS_OK;
    }
    RefitVersion version = {.agreed = steps_done, .first_step = steps_done + refit->num_ahead, .slow = slow};
    if (refit->rank == 0) { print_version(&version, last_version(refit), refit->num_ranks); }
    add_version(refit, version);
    return STATUS_OK;
}

void session_refit_hasten(SessionRefit* refit, int32_t step_idx) {
    pthread_mutex_lock(&refit->lock);
    for (int32_t i = 0; i < refit->num_versions; i++) {
        int32_t* first_step = &refit->versions[i].first_step;
        if (*first_step > step_idx) { *first_step = step_idx; }
    }
    pthread_mutex_unlock(&refit->lock);
}

// --- the machine for plans ---------------------------------------------------------------------------------

static void make_machine(RefitMachine* out, const SessionRefit* refit, const RefitVersion* version) {
    for (int32_t r = 0; r < refit->num_ranks; r++) {
        MachineRank* rank = &out->ranks[r];
        *rank = machine_rank(refit->machine, r);
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            double slow = rank->slow[kind] * version->slow[r];
            rank->slow[kind] = fmin(fmax(slow, MACHINE_LEAST_SLOW), MACHINE_MOST_SLOW);
        }
    }
    out->machine =
        (Machine){.num_ranks = refit->num_ranks, .ranks = out->ranks, .pulls = machine_pulls(refit->machine)};
    if (!machine_differs(&out->machine)) { out->machine.num_ranks = 0; }
    out->agreed = version->agreed;
    out->slow = version->slow[refit->rank];
}

// By the last version for a plan of that step, in `room`.
static int32_t machine_of(RefitMachine* room, SessionRefit* refit, int64_t step_idx, const Machine** machine,
                          double* slow) {
    int32_t agreed = 0;
    pthread_mutex_lock(&refit->lock);
    for (int32_t i = refit->num_versions - 1; i >= 0 && refit->is_on && agreed == 0; i--) {
        if (refit->versions[i].first_step > step_idx) { continue; }
        agreed = refit->versions[i].agreed;
        if (room->agreed != agreed) { make_machine(room, refit, &refit->versions[i]); }
    }
    pthread_mutex_unlock(&refit->lock);
    *machine = agreed > 0 ? &room->machine : refit->machine;
    *slow = agreed > 0 ? room->slow : 1;
    return agreed;
}

int32_t session_refit_machine(SessionRefit* refit, int64_t step_idx, const Machine** machine, double* slow) {
    return machine_of(&refit->planned, refit, step_idx, machine, slow);
}

bool session_refit_now(Dynapipe* dp, const Machine** machine) {
    double slow;
    *machine = dp->request.machine;
    if (dp->refit.now.ranks == NULL) { return false; }  // nothing was planned since the start or a restore
    int32_t agreed = machine_of(&dp->refit.now, &dp->refit, INT64_MAX, machine, &slow);
    return agreed > 0 && agreed == dp->next_step;
}
