// session_refit_record.c -- what was agreed on, behind the loader's position in a checkpoint.
//
//     header, sums of earlier blocks, versions (each: header, its ranks), then what tells that it is there
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/numbers.h"
#include "session_refit.h"

static const char MAGIC[8] = {'D', 'P', 'R', 'E', 'F', 'I', 'T', '2'};

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

_Static_assert(sizeof(VersionHead) % 8 == 0, "no padding behind it");

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
    memcpy(tail.magic, MAGIC, sizeof MAGIC);
    put(at, &tail, sizeof tail);
}

// Asked for after every step, or never: what is measured stays as it is.
Status session_refit_position(SessionRefit* refit, const void** position, size_t* num_bytes) {
    if (!refit->is_on || refit->num_versions == 0) { return STATUS_OK; }
    size_t body_bytes = record_bytes(refit->num_ranks, refit->num_versions);
    size_t all_bytes = *num_bytes + body_bytes + sizeof(RecordTail);
    uint8_t* grown = realloc(refit->position, all_bytes);
    if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    memcpy(grown, *position, *num_bytes);
    write_record(grown + *num_bytes, refit, body_bytes);
    refit->position = grown;
    *position = grown;
    *num_bytes = all_bytes;
    return STATUS_OK;
}

static void free_model(RefitModel** model) {
    if (*model != NULL) { free((*model)->ranks); }
    free(*model);
    *model = NULL;
}

void session_refit_unplan(SessionRefit* refit) {
    free_model(&refit->planned);
    free_model(&refit->now);
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

static bool version_is_sane(const VersionHead* about, const RefitOfRank* ranks, int32_t num_ranks) {
    bool sane = about->agreed > 0 && about->first_step >= about->agreed;
    for (int pass = 0; pass < PASS_COUNT; pass++) {
        for (int i = 0; i < PASS_TERMS; i++) {
            int32_t factor = about->scale.factor[pass][i];
            sane = sane && factor >= SCALE_LEAST && factor <= SCALE_MOST;
        }
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        sane = sane && ranks[r].link > 0 && ranks[r].link <= SCALE_MOST / SCALE_ONE;
        sane = sane && ranks[r].link_seen >= 0 && ranks[r].link_seen <= SCALE_MOST / SCALE_ONE;
        for (int pass = 0; pass < PASS_COUNT; pass++) {
            double slow = ranks[r].jobs.slow[pass];
            sane = sane && slow > 0 && slow <= SCALE_MOST / SCALE_ONE;
        }
    }
    return sane;
}

static bool history_is_sane(const RefitSums history[SIDE_COUNT]) {
    const double* values = (const double*)history;
    bool sane = true;
    for (size_t i = 0; i < SIDE_COUNT * sizeof *history / sizeof *values; i++) {
        sane = sane && isfinite(values[i]);
    }
    return sane;
}

// Nothing is taken that is not whole.
static Status read_versions(SessionRefit* refit, const RecordHead* head, const uint8_t* at) {
    size_t ranks_bytes = (size_t)head->num_ranks * sizeof(RefitOfRank);
    bool sane = history_is_sane(head->history);
    free(refit->versions);
    refit->versions = calloc((size_t)head->num_versions + 1, sizeof *refit->versions);
    if (refit->versions == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a checkpoint's record"); }
    for (int32_t i = 0; i < head->num_versions && sane; i++) {
        VersionHead about;
        RefitOfRank* ranks = malloc(ranks_bytes);
        if (ranks == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a checkpoint's record"); }
        memcpy(&about, at, sizeof about);
        memcpy(ranks, at + sizeof about, ranks_bytes);
        at += sizeof about + ranks_bytes;
        refit->versions[refit->num_versions++] =
            (RefitVersion){about.agreed, about.first_step, about.scale, ranks};
        sane = version_is_sane(&about, ranks, head->num_ranks);
        if (i > 0) { sane = sane && about.agreed > refit->versions[i - 1].agreed; }
    }
    if (sane) {
        refit->base = head->base;
        refit->num_ranks = head->num_ranks;
        memcpy(refit->history, head->history, sizeof refit->history);
        return STATUS_OK;
    }
    session_refit_forget(refit);
    return FAIL(STATUS_BAD_FORMAT,
                "the checkpoint's record of what steps took is damaged ---> begin with its "
                "model (-e), or use another checkpoint");
}

Status session_refit_restore(SessionRefit* refit, const void* position, size_t* num_bytes) {
    RecordTail tail;
    RecordHead head;
    const uint8_t* data = position;
    session_refit_forget(refit);
    session_refit_unplan(refit);
    if (*num_bytes < sizeof tail + sizeof head) { return STATUS_OK; }
    memcpy(&tail, data + *num_bytes - sizeof tail, sizeof tail);
    if (memcmp(tail.magic, MAGIC, sizeof MAGIC) != 0) { return STATUS_OK; }
    size_t left_bytes = *num_bytes - sizeof tail;
    bool is_whole = tail.num_bytes >= sizeof head && tail.num_bytes <= left_bytes;
    const uint8_t* begin = data + left_bytes - (is_whole ? tail.num_bytes : 0);
    is_whole = is_whole && tail.hash == hash_finish(hash_bytes(HASH_SEED, begin, tail.num_bytes));
    if (is_whole) { memcpy(&head, begin, sizeof head); }
    is_whole = is_whole && head.num_ranks >= 1 && head.num_ranks <= MOST_RANKS && head.num_versions >= 1 &&
               head.num_versions <= MOST_VERSIONS &&
               record_bytes(head.num_ranks, head.num_versions) == tail.num_bytes;
    if (!is_whole) { return STATUS_OK; }  // then the loader finds that it is no position of its own
    *num_bytes = left_bytes - tail.num_bytes;
    return refit->is_on ? read_versions(refit, &head, begin + sizeof head) : STATUS_OK;
}
