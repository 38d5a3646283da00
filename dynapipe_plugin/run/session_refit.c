// session_refit.c -- corrections of the cost model from steps that ran: in words, in a checkpoint, in plans.
#define _GNU_SOURCE  // open_memstream

#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "session.h"
#include "../../util/numbers.h"
// --- in words and in metrics.jsonl ---------------------------------------------------------------------

// Of what takes that part of all time; of all time.
static const double WORTH_SAYING = 0.05, LEAST_SHARE = 0.01, WORTH_OF_ALL = 0.01;
enum { MOST_LINES = 8 };

typedef enum { WORD_EMBEDDING, WORD_LAYERS, WORD_ATTENTION, WORD_HEAD } Word;
static const char* const words[REFIT_WORDS] = {"the embedding takes", "the layers take beside attention",
                                               "attention takes", "the head takes"};

static Word word_of(int32_t term) {
    int32_t part = term / TERM_GROUPS;
    if (part == PART_EMBEDDING || part == PART_HEAD) {
        return part == PART_HEAD ? WORD_HEAD : WORD_EMBEDDING;
    }
    return term % TERM_GROUPS == TERM_SQUARES ? WORD_ATTENTION : WORD_LAYERS;
}

// factor[word]: of all its terms together, 0 where they take almost no time; share[word]: of all time.
static void sum_words(double factor[REFIT_WORDS], double share[REFIT_WORDS], const CostScale* scale,
                      const RefitSums sums[SIDE_COUNT]) {
    double file_ns[REFIT_WORDS] = {0}, found_ns[REFIT_WORDS] = {0}, all_ns = 0;
    for (int side = 0; side < SIDE_COUNT; side++) {
        for (int32_t c = 0; c < refit_side_columns((RefitSide)side); c++) {
            Word word = word_of(c % PASS_TERMS);
            CostPass pass = refit_column_pass((RefitSide)side, c);
            double ns = sums[side].term_ns[c] * scale->factor[pass][c % PASS_TERMS] / SCALE_ONE;
            file_ns[word] += sums[side].term_ns[c];
            found_ns[word] += ns;
            all_ns += ns;
        }
    }
    for (int i = 0; i < REFIT_WORDS; i++) {
        bool counts = file_ns[i] > 0 && found_ns[i] > LEAST_SHARE * all_ns;
        share[i] = counts ? found_ns[i] / all_ns : 0;
        factor[i] = counts ? found_ns[i] / file_ns[i] : 0;
    }
}

static bool is_news(double factor, double share, double* printed) {
    double change = factor == 0 ? 0 : fabs(factor / *printed - 1);
    if (change <= WORTH_SAYING || change * share <= WORTH_OF_ALL) { return false; }
    *printed = factor;
    return true;
}

// Of forward and backward together, as a micro-batch has them.
static double slow_of(const RefitRank* rank, const RefitSums sums[SIDE_COUNT]) {
    double forward_ns = sums[SIDE_FORWARD].predicted_ns, backward_ns = sums[SIDE_BACKWARD].predicted_ns;
    double all_ns = forward_ns + backward_ns;
    double backward = (rank->slow[PASS_INPUTS] + rank->slow[PASS_WEIGHTS]) / 2;
    return all_ns > 0 ? (rank->slow[PASS_FORWARD] * forward_ns + backward * backward_ns) / all_ns : 1;
}

static void print_version(SessionRefit* refit, const RefitVersion* version, const RefitSums sums[SIDE_COUNT],
                          FILE* out) {
    double factor[REFIT_WORDS], share[REFIT_WORDS];
    int32_t num_lines = 0;
    sum_words(factor, share, &version->scale, sums);
    for (int i = 0; i < REFIT_WORDS; i++) {
        if (!is_news(factor[i], share[i], &refit->said_words[i])) { continue; }
        fprintf(out, "refit after step %d: %s %.2f times as long as in the cost file\n", version->agreed,
                words[i], factor[i]);
    }
    int32_t since = version->agreed - SESSION_REFIT_EVERY + 1;
    for (int32_t r = 0; r < refit->num_ranks; r++) {
        if (!is_news(slow_of(&version->ranks[r].jobs, sums), 1, &refit->said_ranks[r])) { continue; }
        if (++num_lines > MOST_LINES) { continue; }
        fprintf(out,
                "refit after step %d: rank %d takes %.2f times as long as predicted since about step %d\n",
                version->agreed, r, refit->said_ranks[r], since);
    }
    if (num_lines > MOST_LINES) {
        fprintf(out, "refit after step %d: %d more ranks have changed their speed\n", version->agreed,
                num_lines - MOST_LINES);
    }
    fflush(out);
}

// --- metrics.jsonl ---------------------------------------------------------------------------------------

// F, B, W; only terms that take time and differ from the cost file.
static json_t* json_terms(const CostScale* scale, const RefitSums sums[SIDE_COUNT]) {
    static const char* const groups[TERM_GROUPS] = {"fixed", "lengths", "squares"};
    json_t* object = json_object();
    for (int32_t i = 0; i < PASS_TERMS; i++) {
        bool takes_time = sums[SIDE_FORWARD].term_ns[i] + sums[SIDE_BACKWARD].term_ns[i] > 0,
             is_other = false;
        json_t* passes = json_array();
        for (int pass = 0; pass < PASS_COUNT; pass++) {
            is_other = is_other || scale->factor[pass][i] != SCALE_ONE;
            json_array_append_new(passes, json_real((double)scale->factor[pass][i] / SCALE_ONE));
        }
        char name[64];
        snprintf(name, sizeof name, "%s %s", cost_part_names[i / TERM_GROUPS], groups[i % TERM_GROUPS]);
        if (takes_time && is_other) {
            json_object_set_new(object, name, passes);
        } else {
            json_decref(passes);
        }
    }
    return object;
}

// F, B, W and the link to the next rank; only ranks that are not as predicted.
static json_t* json_ranks(const RefitVersion* version, int32_t num_ranks) {
    json_t* object = json_object();
    for (int32_t r = 0; r < num_ranks; r++) {
        const RefitOfRank* rank = &version->ranks[r];
        const double values[4] = {rank->jobs.slow[PASS_FORWARD], rank->jobs.slow[PASS_INPUTS],
                                  rank->jobs.slow[PASS_WEIGHTS], rank->link};
        bool is_one = true;
        for (int i = 0; i < 4; i++) { is_one = is_one && values[i] == 1; }
        if (is_one) { continue; }
        json_t* list = json_array();
        char name[16];
        for (int i = 0; i < 4; i++) { json_array_append_new(list, json_real(values[i])); }
        snprintf(name, sizeof name, "%d", (int)r);
        json_object_set_new(object, name, list);
    }
    return object;
}

char* session_refit_json(const SessionRefit* refit) {
    const RefitVersion* version = &refit->versions[refit->num_versions - 1];
    json_t* record = json_pack("{s:i,s:i,s:o,s:o}", "refit", version->agreed,         //
                               "from", version->first_step + 1,                       //
                               "terms", json_terms(&version->scale, refit->history),  //
                               "ranks", json_ranks(version, refit->num_ranks));
    if (record == NULL) { return NULL; }
    char* text = json_dumps(record, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(6));
    json_decref(record);
    return text;
}

// --- in a checkpoint -----------------------------------------------------------------------------------

// The state agreed on, after the loader's position in a checkpoint.
//
//     header, sums of earlier blocks, versions (each: header, its ranks), then a footer that marks the record

static const char REFIT_MAGIC[8] = {'D', 'P', 'R', 'E', 'F', 'I', 'T', '2'};

enum { MOST_RANKS = PLAN_MAX_STAGES * PLAN_MAX_REPLICAS, MOST_VERSIONS = 1024 };

typedef struct {
    uint64_t base;
    int32_t num_ranks, num_versions;
    RefitSums history[SIDE_COUNT];
} RecordHead;

typedef struct {
    int32_t agreed, first_step;
    CostScale scale;
} VersionHead;

typedef struct {
    uint64_t num_bytes;  // of all before this
    uint64_t hash;
    char magic[8];
} RecordTail;

_Static_assert(sizeof(VersionHead) % 8 == 0, "no padding after it");

static size_t record_bytes(int32_t num_ranks, int32_t num_versions) {
    return sizeof(RecordHead) +
           (size_t)num_versions * (sizeof(VersionHead) + (size_t)num_ranks * sizeof(RefitOfRank));
}

// --- written ---------------------------------------------------------------------------------------------

static uint8_t* put(uint8_t* at, const void* data, size_t num_bytes) {
    memcpy(at, data, num_bytes);
    return at + num_bytes;
}

static void write_record(uint8_t* at, const SessionRefit* refit, size_t num_bytes) {
    const uint8_t* begin = at;
    RecordHead head = {
        .base = refit->base, .num_ranks = refit->num_ranks, .num_versions = refit->num_versions};
    RecordTail tail = {.num_bytes = num_bytes};
    memcpy(head.history, refit->history, sizeof head.history);
    at = put(at, &head, sizeof head);
    for (int32_t i = 0; i < refit->num_versions; i++) {
        const RefitVersion* version = &refit->versions[i];
        VersionHead about = {version->agreed, version->first_step, version->scale};
        at = put(at, &about, sizeof about);
        at = put(at, version->ranks, (size_t)refit->num_ranks * sizeof *version->ranks);
    }
    tail.hash = hash_finish(hash_bytes(HASH_SEED, begin, num_bytes));
    memcpy(tail.magic, REFIT_MAGIC, sizeof REFIT_MAGIC);
    put(at, &tail, sizeof tail);
}

Status session_refit_position(SessionRefit* refit, const void** position, size_t* num_bytes) {
    if (!refit->is_on || refit->num_versions == 0) { return STATUS_OK; }
    size_t body_bytes = record_bytes(refit->num_ranks, refit->num_versions);
    uint8_t* record = (uint8_t*)malloc(body_bytes + sizeof(RecordTail));
    if (record == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    write_record(record, refit, body_bytes);
    Status status = session_position_append(&refit->position, position, num_bytes, record,
                                            body_bytes + sizeof(RecordTail));
    free(record);
    return status;
}

// Models of versions are dropped; session_refit_start() makes new ones.
static void session_refit_unplan(SessionRefit* refit) {
    free(refit->planned.ranks);
    refit->planned = refit->now = (RefitModel){0};
}

void session_refit_forget(SessionRefit* refit) {
    for (int32_t i = 0; i < refit->num_versions; i++) { free(refit->versions[i].ranks); }
    free(refit->said_ranks);
    refit->said_ranks = NULL;
    refit->num_versions = 0;
    memset(refit->history, 0, sizeof refit->history);
    refit->base = 0;
    refit->num_ranks = 0;
}

// --- read ------------------------------------------------------------------------------------------------

static Status read_versions(SessionRefit* refit, const RecordHead* head, const uint8_t* at) {
    size_t ranks_bytes = (size_t)head->num_ranks * sizeof(RefitOfRank);
    free(refit->versions);
    refit->versions = (RefitVersion*)calloc((size_t)head->num_versions, sizeof *refit->versions);
    for (int32_t i = 0; i < head->num_versions && refit->versions != NULL; i++) {
        VersionHead about;
        RefitOfRank* ranks = (RefitOfRank*)malloc(ranks_bytes);
        if (ranks == NULL) { break; }
        memcpy(&about, at, sizeof about);
        memcpy(ranks, at + sizeof about, ranks_bytes);
        at += sizeof about + ranks_bytes;
        refit->versions[refit->num_versions++] =
            (RefitVersion){about.agreed, about.first_step, about.scale, ranks};
    }
    if (refit->num_versions < head->num_versions) {
        return FAIL(STATUS_NO_MEMORY, "no memory for a checkpoint's record");
    }
    refit->base = head->base;
    refit->num_ranks = head->num_ranks;
    memcpy(refit->history, head->history, sizeof refit->history);
    return STATUS_OK;
}

Status session_refit_restore(SessionRefit* refit, const void* position, size_t* num_bytes) {
    RecordTail tail;
    RecordHead head;
    const uint8_t* data = (const uint8_t*)position;
    session_refit_forget(refit);
    session_refit_unplan(refit);
    if (*num_bytes < sizeof tail + sizeof head) { return STATUS_OK; }
    memcpy(&tail, data + *num_bytes - sizeof tail, sizeof tail);
    if (memcmp(tail.magic, REFIT_MAGIC, sizeof REFIT_MAGIC) != 0) { return STATUS_OK; }
    size_t left_bytes = *num_bytes - sizeof tail;
    bool is_whole = tail.num_bytes >= sizeof head && tail.num_bytes <= left_bytes;
    const uint8_t* begin = data + left_bytes - (is_whole ? tail.num_bytes : 0);
    is_whole = is_whole && tail.hash == hash_finish(hash_bytes(HASH_SEED, begin, tail.num_bytes));
    if (is_whole) { memcpy(&head, begin, sizeof head); }
    is_whole = is_whole && head.num_ranks >= 1 && head.num_ranks <= MOST_RANKS && head.num_versions >= 1 &&
               head.num_versions <= MOST_VERSIONS &&
               record_bytes(head.num_ranks, head.num_versions) == tail.num_bytes;
    if (!is_whole) { return STATUS_OK; }  // then the loader rejects it as a position
    *num_bytes = left_bytes - tail.num_bytes;
    return refit->is_on ? read_versions(refit, &head, begin + sizeof head) : STATUS_OK;
}

// --- versions ------------------------------------------------------------------------------------------

void session_refit_init(SessionRefit* refit, bool is_on) {
    *refit = (SessionRefit){.is_on = is_on};
    pthread_mutex_init(&refit->lock, NULL);
}

static void forget_versions(SessionRefit* refit, int32_t from, int32_t num) {
    for (int32_t i = from; i < from + num; i++) { free(refit->versions[i].ranks); }
    refit->num_versions -= num;
    if (num > 0) {
        memmove(&refit->versions[from], &refit->versions[from + num],
                (size_t)(refit->num_versions - from) * sizeof *refit->versions);
    }
}

void session_refit_free(SessionRefit* refit) {
    session_refit_forget(refit);
    session_refit_unplan(refit);
    trace_jobs_free(&refit->jobs);
    free(refit->versions);
    free(refit->position);
    pthread_mutex_destroy(&refit->lock);
    *refit = (SessionRefit){0};
}

// --- start -----------------------------------------------------------------------------------------------

// Hash of the factors' base: without memory limits, which vary from day to day, and without whether messages
// are pulled.
static Status hash_base(uint64_t* out, const CostModel* costs, const Machine* machine) {
    char* text = NULL;
    size_t num_chars = 0;
    FILE* memory = open_memstream(&text, &num_chars);
    if (memory == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a cost model's text"); }
    cost_model_print(costs, "", memory);
    if (fclose(memory) != 0) { return FAIL(STATUS_NO_MEMORY, "no memory for a cost model's text"); }
    uint64_t hash = hash_bytes(HASH_SEED, text, num_chars);
    for (int32_t r = 0; machine != NULL && r < machine->num_ranks; r++) {
        MachineRank rank = machine->ranks[r];
        hash = hash_bytes(hash, rank.slow, sizeof rank.slow);
        hash = hash_bytes(hash, &rank.link_latency_ns, sizeof rank.link_latency_ns);
        hash = hash_bytes(hash, &rank.link_bytes_per_ns, sizeof rank.link_bytes_per_ns);
    }
    *out = hash_finish(hash);
    free(text);
    return STATUS_OK;
}

static const RefitOfRank as_predicted = {.jobs = {{1, 1, 1}}, .link = 1, .link_seen = 0};

static RefitOfRank* new_ranks(int32_t num_ranks) {
    RefitOfRank* ranks = (RefitOfRank*)malloc((size_t)num_ranks * sizeof *ranks);
    for (int32_t r = 0; r < num_ranks && ranks != NULL; r++) { ranks[r] = as_predicted; }
    return ranks;
}

// Versions of a run on other ranks do not apply to these: they keep the factors of terms.
static Status renew_ranks(SessionRefit* refit, int32_t num_ranks) {
    if (refit->num_ranks == num_ranks) { return STATUS_OK; }
    free(refit->said_ranks);
    refit->said_ranks = NULL;
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
    trace_links_forget(&refit->links);
    if (!refit->is_on) { return STATUS_OK; }
    TRY(hash_base(&base, costs, machine));
    if (refit->base != 0 && refit->base != base) {
        if (rank == 0 && refit->num_versions > 0) {  // otherwise a resumed run would silently plan
                                                     // differently
            printf("refit: what earlier steps took is not used: it was measured by another cost file, or on "
                   "ranks of other speeds\n");
            fflush(stdout);
        }
        session_refit_forget(refit);
    }
    refit->base = base;
    TRY(renew_ranks(refit, num_ranks));
    session_refit_unplan(refit);
    refit->planned.ranks = (MachineRank*)calloc(2 * (size_t)num_ranks, sizeof(MachineRank));
    if (refit->planned.ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    refit->now.ranks = refit->planned.ranks + num_ranks;
    if (refit->said_ranks != NULL) { return STATUS_OK; }  // printed before layers moved
    refit->said_ranks = (double*)malloc((size_t)num_ranks * sizeof(double));
    if (refit->said_ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", num_ranks); }
    for (int32_t r = 0; r < num_ranks; r++) { refit->said_ranks[r] = 1; }
    for (int w = 0; w < REFIT_WORDS; w++) { refit->said_words[w] = 1; }
    return STATUS_OK;
}

// --- a step ----------------------------------------------------------------------------------------------

Status session_refit_note(SessionRefit* refit, const Plan* plan, const TraceRank* trace, bool knows_when) {
    bool skips = refit->skips;
    refit->skips = false;
    if (!refit->is_on || skips) { return STATUS_OK; }
    bool pulls = refit->machine != NULL && refit->machine->pulls;  // then no link is measured alone
    if (!pulls) { trace_links_add(&refit->links, plan, trace, refit->costs, refit->machine, knows_when); }
    return trace_jobs_add(&refit->jobs, plan, trace, refit->costs, refit->machine);
}

static Status add_up(Collective* world, RefitSums sums[SIDE_COUNT]) {
    return collective_all_reduce_sum(world, (double*)sums, SIDE_COUNT * (int32_t)(sizeof *sums / 8));
}

static const RefitVersion* last_version(const SessionRefit* refit) {
    return refit->num_versions > 0 ? &refit->versions[refit->num_versions - 1] : NULL;
}

static bool is_measured(const RefitSums block[SIDE_COUNT], CostPass pass) {
    return block[pass == PASS_FORWARD ? SIDE_FORWARD : SIDE_BACKWARD].num_jobs > 0;
}

// A rank that could not measure keeps its values.
static RefitRank rank_begin(const SessionRefit* refit, const RefitSums block[SIDE_COUNT]) {
    const RefitVersion* last = last_version(refit);
    RefitRank rank = refit_rank_one();
    for (int pass = 0; pass < PASS_COUNT && last != NULL; pass++) {
        if (!is_measured(block, (CostPass)pass)) {
            rank.slow[pass] = last->ranks[refit->rank].jobs.slow[pass];
        }
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

enum { VALUE_LINKS = PASS_COUNT, NUM_VALUES = VALUE_LINKS + 2 * LINK_SIDES };  // of a rank

static void add_link(double* values, const SessionRefit* refit, LinkSide side, int32_t owner) {
    LinkSeen seen = trace_links_take(&refit->links, side);
    if (seen.ratio <= 0 || owner < 0) { return; }
    double* out = &values[owner * NUM_VALUES + VALUE_LINKS + 2 * side];
    out[0] = seen.ratio;
    out[1] = seen.share;
}

// Of all ranks: each rank's own factors, and both ends of its link.
static Status gather(double* values, const RefitRank* rank, SessionRefit* refit, Collective* world) {
    memset(values, 0, (size_t)refit->num_ranks * NUM_VALUES * sizeof *values);
    memcpy(&values[refit->rank * NUM_VALUES], rank->slow, sizeof rank->slow);
    add_link(values, refit, LINK_BEHIND, refit->rank);
    add_link(values, refit, LINK_BEFORE, refit->rank - 1);
    trace_links_forget(&refit->links);
    return collective_all_reduce_sum(world, values, refit->num_ranks * NUM_VALUES);
}

// A link with too few measurements keeps its value.
static void set_link(RefitOfRank* out, const double* values, const RefitOfRank* before) {
    const double* link = &values[VALUE_LINKS];
    double seen = trace_links_both((LinkSeen){link[2 * LINK_BEHIND], link[2 * LINK_BEHIND + 1]},
                                   (LinkSeen){link[2 * LINK_BEFORE], link[2 * LINK_BEFORE + 1]});
    out->link_seen = seen > 0 ? (double)cost_scale_round(seen) / SCALE_ONE : before->link_seen;
    out->link = seen > 0 ? trace_links_settle(before->link_seen, out->link_seen) : before->link;
}

static Status make_version(RefitVersion* out, const SessionRefit* refit, const RefitShared* shared,
                           const double* values) {
    int32_t num_ranks = refit->num_ranks;
    const RefitVersion* last = last_version(refit);
    RefitRank* ranks = (RefitRank*)malloc((size_t)num_ranks * sizeof *ranks);
    double* room = (double*)malloc((size_t)num_ranks * sizeof *room);
    out->ranks = new_ranks(num_ranks);
    bool failed = ranks == NULL || room == NULL || out->ranks == NULL;
    for (int32_t r = 0; r < num_ranks && !failed; r++) {
        memcpy(ranks[r].slow, &values[r * NUM_VALUES], sizeof ranks[r].slow);
    }
    if (!failed) { refit_publish(&out->scale, ranks, num_ranks, shared, room); }
    for (int32_t r = 0; r < num_ranks && !failed; r++) {
        RefitOfRank before = last != NULL ? last->ranks[r] : as_predicted;
        RefitRank now = last != NULL ? refit_smooth(&before.jobs, &ranks[r]) : ranks[r];
        for (int pass = 0; pass < PASS_COUNT; pass++) {
            out->ranks[r].jobs.slow[pass] = refit_round_slow(now.slow[pass]);
        }
        set_link(&out->ranks[r], &values[r * NUM_VALUES], &before);
    }
    free(ranks);
    free(room);
    if (failed) { free(out->ranks); }
    return failed ? FAIL(STATUS_NO_MEMORY, "no memory for what %d ranks take", num_ranks) : STATUS_OK;
}

// Drops versions that no plan uses any more. version->ranks then belongs to the refit, or is freed.
static Status add_version(SessionRefit* refit, const RefitVersion* version, int32_t steps_done) {
    pthread_mutex_lock(&refit->lock);
    while (refit->num_versions > 1 && refit->versions[1].first_step <= steps_done) {
        forget_versions(refit, 0, 1);
    }
    RefitVersion* grown =
        (RefitVersion*)realloc(refit->versions, (size_t)(refit->num_versions + 1) * sizeof *refit->versions);
    if (grown != NULL) {
        refit->versions = grown;
        grown[refit->num_versions++] = *version;
    }
    pthread_mutex_unlock(&refit->lock);
    if (grown != NULL) { return STATUS_OK; }
    free(version->ranks);
    return FAIL(STATUS_NO_MEMORY, "no memory for what was measured");
}

Status session_refit_agree(SessionRefit* refit, Collective* world, int32_t steps_done) {
    if (!refit->is_on || steps_done % SESSION_REFIT_EVERY != 0) { return STATUS_OK; }
    RefitShared shared;
    RefitRank rank;
    RefitSums all[SIDE_COUNT];
    TRY(solve(&shared, &rank, all, refit, world));
    double* values = (double*)malloc((size_t)refit->num_ranks * NUM_VALUES * sizeof *values);
    if (values == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for %d ranks", refit->num_ranks); }
    Status status = gather(values, &rank, refit, world);
    bool is_any = all[SIDE_FORWARD].num_jobs > 0 || all[SIDE_BACKWARD].num_jobs > 0;
    RefitVersion version = {.agreed = steps_done, .first_step = steps_done + refit->num_ahead};
    if (status == STATUS_OK && is_any) { status = make_version(&version, refit, &shared, values); }
    if (status == STATUS_OK && is_any) { status = add_version(refit, &version, steps_done); }
    free(values);
    if (status != STATUS_OK || !is_any) { return status; }
    for (int side = 0; side < SIDE_COUNT; side++) {
        refit_sums_merge(&refit->history[side], REFIT_REMEMBERED, &all[side]);
    }
    if (refit->rank == 0) { print_version(refit, last_version(refit), refit->history, stdout); }
    return STATUS_OK;
}

void session_refit_hasten(SessionRefit* refit, int32_t step_idx) {
    pthread_mutex_lock(&refit->lock);
    for (int32_t i = 0; i < refit->num_versions; i++) {
        RefitVersion* version = &refit->versions[i];
        if (version->first_step > step_idx) { version->first_step = step_idx; }
    }
    pthread_mutex_unlock(&refit->lock);
}

// --- costs for plans ---------------------------------------------------------------------------------------

static MachineRank rank_of(const SessionRefit* refit, const RefitOfRank* found, int32_t r) {
    MachineRank rank = machine_rank(refit->machine, r);
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        double slow = rank.slow[kind] * found->jobs.slow[cost_pass((JobKind)kind)];
        slow = slow < MACHINE_LEAST_SLOW ? MACHINE_LEAST_SLOW : slow;
        rank.slow[kind] = slow > MACHINE_MOST_SLOW ? MACHINE_MOST_SLOW : slow;
    }
    double latency_ns, bytes_per_ns;
    if (found->link != 1 &&
        trace_links_expected(&latency_ns, &bytes_per_ns, refit->costs, refit->machine, r)) {
        rank.link_latency_ns = latency_ns * found->link;
        rank.link_bytes_per_ns = bytes_per_ns / found->link;
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
