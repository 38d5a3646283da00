// session_resplit_record.c -- splits as text and as bytes: what --resplit tells, what a checkpoint keeps,
// with the other thing that a run decides by its clock: whether messages are pulled.
#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "../base/hash.h"
#include "../plan/problem/stage_split.h"
#include "session.h"

// --- what is told ------------------------------------------------------------------------------------------

enum { MOST_CHARS = 4 * PLAN_MAX_STAGES };

// One "STEP:L,L,..", up to a '/' or the end; *next is what comes behind it, NULL: nothing.
typedef struct {
    int32_t step;
    char layers[MOST_CHARS];
} Told;

static bool next_told(Told* out, const char** next) {
    char* end = NULL;
    long step = isdigit((unsigned char)**next) ? strtol(*next, &end, 10) : -1;
    if (step < 0 || step > INT32_MAX || *end != ':') { return false; }
    const char* layers = end + 1;
    size_t num_chars = strcspn(layers, "/");
    if (num_chars == 0 || num_chars >= sizeof out->layers) { return false; }
    out->step = (int32_t)step;
    memcpy(out->layers, layers, num_chars);
    out->layers[num_chars] = '\0';
    *next = layers[num_chars] == '/' ? layers + num_chars + 1 : NULL;
    return true;
}

static Status bad_option(const char* text) {
    return FAIL(
        STATUS_BAD_OPTION,
        "--resplit %.60s ---> auto, off, or STEP:L,L,.. (layers of each stage behind that step), more "
        "of these behind /",
        text);
}

Status session_resplit_parse(SessionResplit* out, const char* text) {
    *out = (SessionResplit){.kind = RESPLIT_TOLD, .told = text};
    if (strcmp(text, "auto") == 0 || strcmp(text, "off") == 0) {
        out->kind = strcmp(text, "off") == 0 ? RESPLIT_OFF : RESPLIT_AUTO;
        return STATUS_OK;
    }
    Told told;
    int32_t last_step = -1;
    for (const char* next = text; next != NULL; last_step = told.step) {
        if (!next_told(&told, &next) || told.step <= last_step) { return bad_option(text); }
    }
    return STATUS_OK;
}

static Status parse_layers(const Dynapipe* dp, LayerRange* out, const char* layers) {
    int32_t num_layers = dp->costs.num_enc_layers + dp->costs.num_dec_layers;
    Status status =
        stage_split_parse(out, dp->num_stages, num_layers, dp->request.rules.head_has_layer, layers);
    if (status != STATUS_BAD_OPTION) { return status; }
    return FAIL(status, "--resplit ..:%.60s: no split of %d layers onto %d stages ---> as --stage-split",
                layers, num_layers, dp->num_stages);
}

Status session_resplit_told(const Dynapipe* dp, LayerRange* out, bool* found) {
    Told told;
    *found = false;
    const char* next = dp->resplit.kind == RESPLIT_TOLD ? dp->resplit.told : NULL;
    while (next != NULL && next_told(&told, &next)) {
        LayerRange stages[PLAN_MAX_STAGES] = {{0}};
        TRY(parse_layers(dp, stages, told.layers));
        if (told.step != dp->next_step) { continue; }
        memcpy(out, stages, sizeof stages);
        *found = true;
    }
    return STATUS_OK;
}

// --- what is kept ------------------------------------------------------------------------------------------

static const char MAGIC[8] = {'D', 'P', 'S', 'P', 'L', 'I', 'T', '2'};

enum { MOST_RANKS = PLAN_MAX_STAGES * PLAN_MAX_REPLICAS, MOST_EFFORT = 1000000000 };  // as --effort has it

// Read from its end: 2 * stages int32 (where the layers of each stage end, now and before the last move),
// times_then of all ranks, then this.
typedef struct {
    int32_t moved_step, effort, num_stages, num_layers, num_ranks;
    uint8_t has_moved, has_searched, is_due, pulls;
    uint64_t hash;  // of all before it
    char magic[8];
} Record;

_Static_assert(sizeof(Record) == 40, "no padding in it");

static size_t ends_bytes(const Record* record) {
    return 2 * (size_t)record->num_stages * sizeof(int32_t);
}

static size_t times_bytes(const Record* record) {
    return (size_t)record->num_ranks * sizeof(double);
}

static uint64_t record_hash(const void* data, size_t data_bytes, const Record* record) {
    uint64_t hash = hash_bytes(HASH_SEED, data, data_bytes);
    return hash_finish(hash_bytes(hash, record, offsetof(Record, hash)));
}

static void put_ends(int32_t* out, const LayerRange* stages, int32_t num_stages) {
    for (int32_t s = 0; s < num_stages; s++) { out[s] = stages[s].layer_end; }
}

static bool take_ends(LayerRange* out, const int32_t* ends, int32_t num_stages, int32_t num_layers) {
    bool good = ends[num_stages - 1] == num_layers;
    for (int32_t s = 0; s < num_stages; s++) {
        out[s] = (LayerRange){s > 0 ? ends[s - 1] : 0, ends[s]};
        good = good && stage_may_have(&out[s], s, num_stages, false);
    }
    return good;
}

// Whether messages are pulled was measured here.
static bool has_choice(const Dynapipe* dp) {
    return dp->num_stages > 1 && dp->progress.reason != NULL;
}

static Record record_of(const Dynapipe* dp) {
    const SessionResplit* resplit = &dp->resplit;
    Record record = {.moved_step = resplit->moved_step,
                     .effort = dp->request.effort,
                     .num_stages = dp->num_stages,
                     .num_layers = dp->request.placement.chunks[dp->num_stages - 1].layer_end,
                     .num_ranks = resplit->times_then != NULL ? dp->num_stages * dp->num_replicas : 0,
                     .has_moved = resplit->has_moved,
                     .has_searched = resplit->has_searched,
                     .is_due = resplit->is_due,
                     .pulls = dp->machine.pulls};
    memcpy(record.magic, MAGIC, sizeof MAGIC);
    return record;
}

Status session_resplit_position(Dynapipe* dp, const void** position, size_t* num_bytes) {
    SessionResplit* resplit = &dp->resplit;
    bool may_move = resplit->kind == RESPLIT_AUTO && (resplit->has_searched || resplit->is_due);
    if (!resplit->has_moved && !may_move && !has_choice(dp)) { return STATUS_OK; }
    int32_t ends[2 * PLAN_MAX_STAGES];
    Record record = record_of(dp);
    put_ends(ends, dp->request.placement.chunks, dp->num_stages);
    put_ends(ends + dp->num_stages, resplit->has_moved ? resplit->before : dp->request.placement.chunks,
             dp->num_stages);
    size_t body_bytes = ends_bytes(&record) + times_bytes(&record);
    size_t all_bytes = *num_bytes + body_bytes + sizeof record;
    char* all = malloc(all_bytes);
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    char* body = all + *num_bytes;
    memcpy(all, *position, *num_bytes);
    memcpy(body, ends, ends_bytes(&record));
    if (record.num_ranks > 0) {
        memcpy(body + ends_bytes(&record), resplit->times_then, times_bytes(&record));
    }
    record.hash = record_hash(body, body_bytes, &record);
    memcpy(body + body_bytes, &record, sizeof record);
    free(resplit->record);
    *position = resplit->record = all;
    *num_bytes = all_bytes;
    return STATUS_OK;
}

// The record at the end, if there is a whole one; *body is what comes before it.
static bool find_record(Record* out, const char** body, const char* bytes, size_t num_bytes) {
    if (num_bytes < sizeof *out) { return false; }
    size_t left_bytes = num_bytes - sizeof *out;
    memcpy(out, bytes + left_bytes, sizeof *out);
    bool is_sane = memcmp(out->magic, MAGIC, sizeof MAGIC) == 0 && out->num_stages >= 1 &&
                   out->num_stages <= PLAN_MAX_STAGES && out->num_ranks >= 0 && out->num_ranks <= MOST_RANKS;
    size_t body_bytes = is_sane ? ends_bytes(out) + times_bytes(out) : 0;
    if (!is_sane || left_bytes < body_bytes) { return false; }
    *body = bytes + left_bytes - body_bytes;
    return out->hash == record_hash(*body, body_bytes, out);
}

static bool is_taken(const Dynapipe* dp, const Record* record) {
    const SessionResplit* resplit = &dp->resplit;
    bool is_told = resplit->kind == RESPLIT_AUTO && dp->options.stage_split != NULL;
    int32_t num_layers = dp->costs.num_enc_layers + dp->costs.num_dec_layers;
    return resplit->kind != RESPLIT_OFF && !is_told && record->num_stages == dp->num_stages &&
           record->num_layers == num_layers && record->moved_step >= 0 && record->effort >= 0 &&
           record->effort <= MOST_EFFORT;
}

// On as many ranks; else what they take is what the cost file says.
static void take_times(SessionResplit* resplit, const Record* record, const char* times, int32_t num_ranks) {
    if (record->num_ranks != num_ranks) { return; }
    if (resplit->times_then == NULL) { resplit->times_then = malloc(times_bytes(record)); }
    if (resplit->times_then == NULL) { return; }
    memcpy(resplit->times_then, times, times_bytes(record));
    resplit->has_restored_times = true;
    resplit->has_searched = record->has_searched != 0;
    resplit->is_due = record->is_due != 0;
}

static void forget(SessionResplit* resplit) {
    resplit->has_restored = resplit->has_restored_times = resplit->has_moved = false;
    resplit->has_searched = resplit->is_due = false;
    free(resplit->position);  // of the run as it was
    resplit->position = NULL;
    resplit->position_bytes = 0;
}

// By the clock, a run may find the other answer: it goes on with that of the checkpoint, unless it is told
// one.
static bool take_pulls(Dynapipe* dp, const Record* record) {
    bool pulls = record->pulls != 0;
    bool is_other = has_choice(dp) && record->num_stages == dp->num_stages &&
                    dp->options.progress == PROGRESS_AUTO && pulls != dp->machine.pulls;
    if (!is_other) { return false; }
    dp->machine.pulls = pulls;
    if (dp->transport.rank == 0) {
        printf("messages: planned as the checkpoint has it, as if they %s (--progress on|off: as told)\n",
               progress_words(pulls));
        fflush(stdout);
    }
    return true;
}

// Of another number of stages, or where the split is told: taken off, and not looked at.
void session_resplit_restore(Dynapipe* dp, const void* position, size_t* num_bytes) {
    SessionResplit* resplit = &dp->resplit;
    Record record;
    const char* body;
    LayerRange now[PLAN_MAX_STAGES], before[PLAN_MAX_STAGES];
    int32_t ends[2 * PLAN_MAX_STAGES], P = dp->num_stages;
    forget(resplit);
    if (!find_record(&record, &body, position, *num_bytes)) { return; }
    *num_bytes = (size_t)(body - (const char*)position);
    memcpy(ends, body, ends_bytes(&record));
    bool is_other = take_pulls(dp, &record);  // then so may be the split that was chosen here, and its effort
    if (!is_taken(dp, &record) || !take_ends(now, ends, P, record.num_layers)) { return; }
    bool has_moved = record.has_moved != 0 && take_ends(before, ends + P, P, record.num_layers);
    if (!has_moved && !is_other && memcmp(now, dp->request.placement.chunks, (size_t)P * sizeof *now) != 0) {
        return;
    }
    take_times(resplit, &record, body + ends_bytes(&record), P * dp->num_replicas);
    if (!has_moved && !is_other) { return; }
    memcpy(resplit->restored, now, (size_t)P * sizeof *now);
    memcpy(resplit->before, has_moved ? before : now, (size_t)P * sizeof *before);
    resplit->has_restored = true;
    resplit->has_moved = has_moved;
    resplit->moved_step = record.moved_step;
    if (dp->options.effort == 0) { dp->request.effort = record.effort; }
}
