// session_refit.c -- corrections of the cost model from steps that ran: in words, in a checkpoint, in plans.
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "session.h"
#include "../../util/numbers.h"

static const RefitVersion* last_version(const SessionRefit* refit) {
    return refit->num_versions > 0 ? &refit->versions[refit->num_versions - 1] : NULL;
}

// --- in words and in metrics.jsonl -------------------------------------------------------------------------

static const double WORTH_PRINTING = 0.05;  // a change of a rank's times
enum { MOST_LINES = 8 };

// Of forward and backward together, as a microbatch has them.
static double slow_of(const RefitRank* rank, const RefitSums sums[SIDE_COUNT]) {
    double forward_ns = sums[SIDE_FORWARD].predicted_ns, backward_ns = sums[SIDE_BACKWARD].predicted_ns;
    double all_ns = forward_ns + backward_ns;
    double backward = (rank->slow[PASS_INPUTS] + rank->slow[PASS_WEIGHTS]) / 2;
    return all_ns > 0 ? (rank->slow[PASS_FORWARD] * forward_ns + backward * backward_ns) / all_ns : 1;
}

static void print_version(SessionRefit* refit, const RefitVersion* version) {
    int32_t num_lines = 0, since = version->agreed - SESSION_REFIT_EVERY + 1;
    for (int32_t r = 0; r < refit->num_ranks; r++) {
        double slow = slow_of(&version->ranks[r], refit->history);
        if (fabs(slow / refit->printed[r] - 1) <= WORTH_PRINTING) { continue; }
        refit->printed[r] = slow;
        if (++num_lines > MOST_LINES) { continue; }
        printf("refit after step %d: rank %d takes %.2f times as long as predicted since about step %d\n",
               version->agreed, r, slow, since);
    }
    if (num_lines > MOST_LINES) {
        printf("refit after step %d: %d more ranks have changed their speed\n", version->agreed,
               num_lines - MOST_LINES);
    }
    fflush(stdout);
}

// Adds a list, unless all values are 1.
static void add_if_other(json_t* object, const char* name, const double* values, int num) {
    bool is_other = false;
    json_t* list = json_array();
    for (int i = 0; i < num; i++) {
        is_other |= values[i] != 1;
        json_array_append_new(list, json_real(values[i]));
    }
    if (is_other) {
        json_object_set_new(object, name, list);
    } else {
        json_decref(list);
    }
}

json_t* session_refit_json(const SessionRefit* refit) {
    static const char* const groups[TERM_GROUPS] = {"fixed", "lengths", "squares"};
    const RefitVersion* version = last_version(refit);
    json_t *terms = json_object(), *ranks = json_object();
    char name[64];
    for (int32_t i = 0; i < PASS_TERMS; i++) {  // F, B, W
        double factors[PASS_COUNT];
        if (refit->history[SIDE_FORWARD].term_ns[i] + refit->history[SIDE_BACKWARD].term_ns[i] <= 0) {
            continue;
        }
        for (int pass = 0; pass < PASS_COUNT; pass++) {
            factors[pass] = (double)version->scale.factor[pass][i] / SCALE_ONE;
        }
        snprintf(name, sizeof name, "%s %s", cost_part_names[i / TERM_GROUPS], groups[i % TERM_GROUPS]);
        add_if_other(terms, name, factors, PASS_COUNT);
    }
    for (int32_t r = 0; r < refit->num_ranks; r++) {
        snprintf(name, sizeof name, "%d", (int)r);
        add_if_other(ranks, name, version->ranks[r].slow, PASS_COUNT);
    }
    return json_pack("{s:i,s:i,s:o,s:o}", "refit", version->agreed, "from", version->first_step + 1, "terms",
                     terms, "ranks", ranks);
}

// --- in a checkpoint ---------------------------------------------------------------------------------------

// The state agreed on: a header, versions (each: header, its ranks).
static const char REFIT_MAGIC[] = "dprefit5";

typedef struct {
    uint64_t base;
    int32_t num_ranks, num_versions;
    RefitSums history[SIDE_COUNT];
} RecordHead;

typedef struct {
    int32_t agreed, first_step;
    CostScale scale;
} VersionHead;

Status session_refit_write(const SessionRefit* refit, FILE* out) {
    Text text;
    if (!refit->is_on || refit->num_versions == 0) { return STATUS_OK; }
    RecordHead head = {
        .base = refit->base, .num_ranks = refit->num_ranks, .num_versions = refit->num_versions};
    memcpy(head.history, refit->history, sizeof head.history);
    TRY(text_open(&text));
    fwrite(&head, 1, sizeof head, text.out);
    for (int32_t i = 0; i < refit->num_versions; i++) {
        const RefitVersion* version = &refit->versions[i];
        VersionHead about = {version->agreed, version->first_step, version->scale};
        fwrite(&about, 1, sizeof about, text.out);
        fwrite(version->ranks, sizeof *version->ranks, (size_t)refit->num_ranks, text.out);
    }
    return section_write(out, REFIT_MAGIC, &text);
}

// Models of versions are dropped; session_refit_start() makes new ones.
static void drop_models(SessionRefit* refit) {
    free(refit->planned.ranks);
    refit->planned = refit->now = (RefitModel){0};
}

void session_refit_forget(SessionRefit* refit) {
    for (int32_t i = 0; i < refit->num_versions; i++) { free(refit->versions[i].ranks); }
    free(refit->printed);
    refit->printed = NULL;
    refit->num_versions = 0;
    memset(refit->history, 0, sizeof refit->history);
    refit->base = 0;
    refit->num_ranks = 0;
}

static Status read_versions(SessionRefit* refit, const RecordHead* head, const char* at) {
    size_t ranks_bytes = (size_t)head->num_ranks * sizeof(RefitRank);
    for (int32_t i = 0; i < head->num_versions; i++) {
        VersionHead about;
        RefitRank* ranks = (RefitRank*)malloc(ranks_bytes);
        if (ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a checkpoint's record"); }
        memcpy(&about, at, sizeof about);
        memcpy(ranks, at + sizeof about, ranks_bytes);
        at += sizeof about + ranks_bytes;
        refit->versions[refit->num_versions++] =
            (RefitVersion){about.agreed, about.first_step, about.scale, ranks};
    }
    refit->base = head->base;
    refit->num_ranks = head->num_ranks;
    memcpy(refit->history, head->history, sizeof refit->history);
    return STATUS_OK;
}

Status session_refit_restore(SessionRefit* refit, const void** position, size_t* num_bytes) {
    RecordHead head = {0};
    size_t record_bytes = 0;
    Status status = STATUS_OK;
    session_refit_forget(refit);
    drop_models(refit);
    char* record = section_take(REFIT_MAGIC, position, num_bytes, &record_bytes);
    if (record_bytes >= sizeof head) { memcpy(&head, record, sizeof head); }
    size_t version_bytes = sizeof(VersionHead) + (size_t)head.num_ranks * sizeof(RefitRank);
    bool is_whole = head.num_ranks >= 1 && head.num_versions >= 1 && head.num_versions <= REFIT_VERSIONS &&
                    record_bytes == sizeof head + (size_t)head.num_versions * version_bytes;
    if (refit->is_on && is_whole) { status = read_versions(refit, &head, record + sizeof head); }
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
    drop_models(refit);
    trace_jobs_free(&refit->jobs);
    pthread_mutex_destroy(&refit->lock);
    *refit = (SessionRefit){0};
}

// Hash of the factors' base: without memory limits, which vary from day to day.
static Status hash_base(uint64_t* out, const CostModel* costs, const Machine* machine) {
    Text text;
    TRY(text_open(&text));
    cost_file_print(costs, NULL, "", text.out);
    TRY(text_close(&text));
    uint64_t hash = hash_bytes(HASH_SEED, text.text, text.num_chars);
    for (int32_t r = 0; machine != NULL && r < machine->num_ranks; r++) {
        MachineRank rank = machine->ranks[r];
        hash = hash_bytes(hash, rank.slow, sizeof rank.slow);
        hash = hash_bytes(hash, &rank.link_latency_ns, sizeof rank.link_latency_ns);
        hash = hash_bytes(hash, &rank.link_bytes_per_ns, sizeof rank.link_bytes_per_ns);
    }
    *out = hash_finish(hash);
    free(text.text);
    return STATUS_OK;
}

static RefitRank* new_ranks(int32_t num_ranks) {
    RefitRank* ranks = (RefitRank*)malloc((size_t)num_ranks * sizeof *ranks);
    for (int32_t r = 0; r < num_ranks && ranks != NULL; r++) { ranks[r] = refit_rank_one(); }
    return ranks;
}

// Versions of a run on other ranks do not apply to these: they keep the factors of terms.
static Status renew_ranks(SessionRefit* refit, int32_t num_ranks) {
    if (refit->num_ranks == num_ranks) { return STATUS_OK; }
    free(refit->printed);
    refit->printed = NULL;
    for (int32_t i = 0; i < refit->num_versions; i++) {
        free(refit->versions[i].ranks);
        refit->versions[i].ranks = new_ranks(num_ranks);
        if (refit->versions[i].ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for ranks"); }
    }
    refit->num_ranks = num_ranks;
    return STATUS_OK;
}

Status session_refit_start(SessionRefit* refit, const CostModel* costs, const Machine* machine, int32_t rank,
                           int32_t num_ranks, int32_t num_ahead) {
    uint64_t base = 0;
    refit->costs = costs;
    refit->machine = machine;
    refit->rank = rank;
    refit->num_ahead = num_ahead;
    refit->skips = true;
    trace_jobs_forget(&refit->jobs);
    if (!refit->is_on) { return STATUS_OK; }
    TRY(hash_base(&base, costs, machine));
    if (refit->base != 0 && refit->base != base) {
        if (rank == 0 && refit->num_versions > 0) {
            printf("refit: begins anew, the ranks or their measured costs are not those before\n");
            fflush(stdout);
        }
        session_refit_forget(refit);
    }
    refit->base = base;
    TRY(renew_ranks(refit, num_ranks));
    drop_models(refit);
    refit->planned.ranks = (MachineRank*)calloc(2 * (size_t)num_ranks, sizeof(MachineRank));
    if (refit->printed == NULL) {
        refit->printed = (double*)malloc((size_t)num_ranks * sizeof(double));
        for (int32_t r = 0; r < num_ranks && refit->printed != NULL; r++) { refit->printed[r] = 1; }
    }
    if (refit->planned.ranks == NULL || refit->printed == NULL) {
        return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks);
    }
    refit->now.ranks = refit->planned.ranks + num_ranks;
    return STATUS_OK;
}

// --- a step ----------------------------------------------------------------------------------------------

Status session_refit_note(SessionRefit* refit, const Plan* plan, const TraceRank* trace) {
    bool skips = refit->skips;
    refit->skips = false;
    if (!refit->is_on || skips) { return STATUS_OK; }
    return trace_jobs_add(&refit->jobs, plan, trace, refit->costs, refit->machine);
}

static Status add_up(Collective* world, RefitSums sums[SIDE_COUNT]) {
    return collective_all_reduce_sum(world, (double*)sums, SIDE_COUNT * (int32_t)(sizeof *sums / 8));
}

static bool is_measured(const RefitSums block[SIDE_COUNT], CostPass pass) {
    return block[pass == PASS_FORWARD ? SIDE_FORWARD : SIDE_BACKWARD].num_jobs > 0;
}

// A rank that could not measure keeps its values.
static RefitRank rank_begin(const SessionRefit* refit, const RefitSums block[SIDE_COUNT]) {
    const RefitVersion* last = last_version(refit);
    RefitRank rank = refit_rank_one();
    for (int pass = 0; pass < PASS_COUNT && last != NULL; pass++) {
        if (!is_measured(block, (CostPass)pass)) { rank.slow[pass] = last->ranks[refit->rank].slow[pass]; }
    }
    return rank;
}

// The terms' factors and this rank's; `all` becomes the sums of all ranks, each as if it had the predicted
// speed.
static Status solve(RefitShared* shared, RefitRank* rank, RefitSums all[SIDE_COUNT], SessionRefit* refit,
                    Collective* world) {
    RefitSums block[SIDE_COUNT];
    *shared = refit_shared_one();
    trace_jobs_sum(block, &refit->jobs, NULL, NULL);
    *rank = rank_begin(refit, block);
    for (int round = 0; round < REFIT_WEIGHINGS * REFIT_ROUNDS; round++) {
        if (round > 0 && round % REFIT_ROUNDS == 0) { trace_jobs_sum(block, &refit->jobs, shared, rank); }
        refit_share(all, block, shared, rank);
        TRY(add_up(world, all));
        refit_solve(shared, all, refit->history);
        refit_rank_solve(rank, block, shared);
    }
    trace_jobs_forget(&refit->jobs);
    refit_alike(all, block, rank);
    return add_up(world, all);
}

// Of each rank's own factors, in out->ranks, those for plans.
static void publish(RefitVersion* out, const SessionRefit* refit, const RefitShared* shared, double* room) {
    const RefitVersion* last = last_version(refit);
    refit_publish(&out->scale, out->ranks, refit->num_ranks, shared, room);
    for (int32_t r = 0; r < refit->num_ranks; r++) {
        RefitRank* rank = &out->ranks[r];
        if (last != NULL) { *rank = refit_smooth(&last->ranks[r], rank); }
        for (int pass = 0; pass < PASS_COUNT; pass++) {
            rank->slow[pass] = refit_round_slow(rank->slow[pass]);
        }
    }
}

// Drops versions that no plan uses any more.
static void add_version(SessionRefit* refit, const RefitVersion* version, int32_t steps_done) {
    pthread_mutex_lock(&refit->lock);
    while (refit->num_versions == REFIT_VERSIONS ||
           (refit->num_versions > 1 && refit->versions[1].first_step <= steps_done)) {
        free(refit->versions[0].ranks);
        refit->num_versions--;
        memmove(refit->versions, refit->versions + 1, (size_t)refit->num_versions * sizeof *version);
    }
    refit->versions[refit->num_versions++] = *version;
    pthread_mutex_unlock(&refit->lock);
}

Status session_refit_agree(SessionRefit* refit, Collective* world, int32_t steps_done) {
    if (!refit->is_on || steps_done % SESSION_REFIT_EVERY != 0) { return STATUS_OK; }
    RefitShared shared;
    RefitRank rank;
    RefitSums all[SIDE_COUNT];
    TRY(solve(&shared, &rank, all, refit, world));
    if (all[SIDE_FORWARD].num_jobs + all[SIDE_BACKWARD].num_jobs == 0) { return STATUS_OK; }
    RefitVersion version = {.agreed = steps_done,
                            .first_step = steps_done + refit->num_ahead,
                            .ranks = new_ranks(refit->num_ranks)};
    double* room = (double*)malloc((size_t)refit->num_ranks * sizeof *room);
    Status status = STATUS_OK;
    if (version.ranks == NULL || room == NULL) {
        status = FAIL(STATUS_NO_MEMORY, "no memory for what %d ranks take", refit->num_ranks);
    } else {
        version.ranks[refit->rank] = rank;
        status = collective_share(world, version.ranks, sizeof rank);
        if (status == STATUS_OK) { publish(&version, refit, &shared, room); }
    }
    free(room);
    if (status != STATUS_OK) {
        free(version.ranks);
        return status;
    }
    add_version(refit, &version, steps_done);
    for (int side = 0; side < SIDE_COUNT; side++) {
        refit_sums_merge(&refit->history[side], REFIT_REMEMBERED, &all[side]);
    }
    if (refit->rank == 0) { print_version(refit, &version); }
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

// --- costs for plans ---------------------------------------------------------------------------------------

static MachineRank rank_of(const SessionRefit* refit, const RefitRank* found, int32_t r) {
    MachineRank rank = machine_rank(refit->machine, r);
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        double slow = rank.slow[kind] * found->slow[cost_pass((JobKind)kind)];
        slow = slow < MACHINE_LEAST_SLOW ? MACHINE_LEAST_SLOW : slow;
        rank.slow[kind] = slow > MACHINE_MOST_SLOW ? MACHINE_MOST_SLOW : slow;
    }
    return rank;
}

static void make_model(RefitModel* out, const SessionRefit* refit, const RefitVersion* version) {
    cost_scale_apply(&out->costs, refit->costs, &version->scale);
    for (int32_t r = 0; r < refit->num_ranks; r++) { out->ranks[r] = rank_of(refit, &version->ranks[r], r); }
    out->machine = (Machine){.num_ranks = refit->num_ranks,
                             .ranks = out->ranks,
                             .pulls = refit->machine != NULL && refit->machine->pulls};
    if (!machine_differs(&out->machine)) { out->machine.num_ranks = 0; }
    out->agreed = version->agreed;
}

// The last version for a plan of that step, into `model`; 0: there is none.
static int32_t take_version(RefitModel* model, SessionRefit* refit, int64_t step_idx) {
    int32_t agreed = 0;
    pthread_mutex_lock(&refit->lock);
    for (int32_t i = refit->num_versions - 1; i >= 0 && agreed == 0; i--) {
        if (refit->versions[i].first_step > step_idx) { continue; }
        agreed = refit->versions[i].agreed;
        if (model->agreed != agreed) { make_model(model, refit, &refit->versions[i]); }
    }
    pthread_mutex_unlock(&refit->lock);
    return agreed;
}

static int32_t costs_of(RefitModel* model, SessionRefit* refit, int64_t step_idx, const CostModel** costs,
                        const Machine** machine) {
    int32_t agreed = refit->is_on ? take_version(model, refit, step_idx) : 0;
    *costs = agreed > 0 ? &model->costs : refit->costs;
    *machine = agreed > 0 ? &model->machine : refit->machine;
    return agreed;
}

int32_t session_refit_costs(SessionRefit* refit, int64_t step_idx, const CostModel** costs,
                            const Machine** machine) {
    return costs_of(&refit->planned, refit, step_idx, costs, machine);
}

bool session_refit_now(Dynapipe* dp, const CostModel** costs, const Machine** machine) {
    if (dp->refit.now.ranks == NULL) {  // nothing was planned since the start or a restore
        *costs = &dp->costs;
        *machine = dp->request.machine;
        return false;
    }
    int32_t agreed = costs_of(&dp->refit.now, &dp->refit, INT64_MAX, costs, machine);
    return agreed > 0 && agreed == dp->next_step;
}
