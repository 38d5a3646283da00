// session_resplit_record.c -- splits as text and as bytes: what --resplit tells, what a checkpoint keeps,
// with the other thing that a run decides by its clock: whether messages are pulled.
#include <ctype.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/numbers.h"
#include "../plan/problem/placement_make.h"
#include "../plan/problem/stage_split.h"
#include "session.h"

// --- what is told ------------------------------------------------------------------------------------------

enum { MOST_CHARS = PLACEMENT_CHARS };

// One "STEP:PLACEMENT", up to a '/' or the end; *next is what comes behind it, NULL: nothing.
typedef struct {
    int32_t step;
    char placement[MOST_CHARS];
} Told;

static bool next_told(Told* out, const char** next) {
    char* end = NULL;
    long step = isdigit((unsigned char)**next) ? strtol(*next, &end, 10) : -1;
    if (step < 0 || step > INT32_MAX || *end != ':') { return false; }
    const char* text = end + 1;
    size_t num_chars = strcspn(text, "/");
    if (num_chars == 0 || num_chars >= sizeof out->placement) { return false; }
    out->step = (int32_t)step;
    memcpy(out->placement, text, num_chars);
    out->placement[num_chars] = '\0';
    *next = text[num_chars] == '/' ? text + num_chars + 1 : NULL;
    return true;
}

static Status bad_option(const char* text) {
    return FAIL(STATUS_BAD_OPTION,
                "--resplit %.60s ---> auto, off, or STEP:L,L,.. (layers of each chunk behind that step), "
                "STEP:STAGE:L,STAGE:L,..[+HEAD], more of these behind /",
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

static int32_t num_numbers(const char* text) {
    int32_t num = 1;
    for (; *text != '\0'; text++) { num += *text == ','; }
    return num;
}

static Status wrong_number(const Dynapipe* dp, const Placement* placement, int32_t step, const char* text) {
    char present[PLACEMENT_CHARS];
    placement_print(present, placement, dp->num_stages);
    return FAIL(
        STATUS_BAD_OPTION,
        "--resplit %d:%.60s: layers of %d chunks, there are %d then (%.160s) ---> a number for each of "
        "these, or stage:layers, such as %d:0:L,1:L,.. for one on each stage",
        step, text, num_numbers(text), placement->num_chunks, present, step);
}

// "L,L,..": layers of each chunk of *out, these where they are; else any placement. Behind '+' the head.
static Status parse_placement(const Dynapipe* dp, Placement* out, Told* told) {
    const CostModel* costs = &dp->costs;
    int32_t num_layers = costs->num_enc_layers + costs->num_dec_layers;
    bool head_has_layer = dp->request.rules.head_has_layer;
    char *text = told->placement, *head = strchr(text, '+');
    if (head != NULL) { *head++ = '\0'; }
    bool is_layers = isdigit((unsigned char)text[0]) && strchr(text, ':') == NULL;
    if (is_layers && num_numbers(text) != out->num_chunks) { return wrong_number(dp, out, told->step, text); }
    Status status = is_layers
                        ? stage_split_parse(out->chunks, out->num_chunks, num_layers, head_has_layer, text)
                        : placement_parse(out, dp->num_stages, costs->num_enc_layers, costs->num_dec_layers,
                                          head_has_layer, text);
    if (status == STATUS_OK && head != NULL) { status = placement_parse_head(out, dp->num_stages, head); }
    if (status == STATUS_OK || status == STATUS_NO_MEMORY) { return status; }
    return FAIL(STATUS_BAD_OPTION,
                "--resplit ..:%.60s%s%.60s: no split of %d layers onto %d %s ---> as --stage-split, or as "
                "--placement "
                "and, behind +, --head",
                text, head != NULL ? "+" : "", head != NULL ? head : "", num_layers,
                is_layers ? out->num_chunks : dp->num_stages, is_layers ? "chunks" : "stages");
}

Status session_resplit_told(const Dynapipe* dp, Placement* out, bool* found) {
    Told told;
    *found = false;
    Placement placement = dp->resplit.has_restored ? dp->resplit.restored : dp->request.placement;
    const char* next = dp->resplit.kind == RESPLIT_TOLD ? dp->resplit.told : NULL;
    while (next != NULL && next_told(&told, &next)) {
        if (told.step < dp->next_step) { continue; }  // that is done
        TRY(parse_placement(dp, &placement, &told));  // those of later steps, too: each from the one before
        if (told.step != dp->next_step) { continue; }
        *out = placement;
        *found = true;
    }
    return STATUS_OK;
}

// --- what is kept ------------------------------------------------------------------------------------------

static const char MAGIC[8] = {'D', 'P', 'S', 'P', 'L', 'I', 'T', '3'};

enum { MOST_RANKS = PLAN_MAX_STAGES * PLAN_MAX_REPLICAS, MOST_EFFORT = 1000000000 };  // as --effort has it

// Read from its end: num_values int32 (the placement now, then the one before the last move), times_then of
// all ranks, then this.
typedef struct {
    int32_t moved_step, effort, num_stages, num_layers, num_ranks, num_values;
    uint8_t has_moved, has_searched, is_due, pulls;
    int32_t unused;
    uint64_t hash;  // of all before it
    char magic[8];
} Record;

_Static_assert(sizeof(Record) == 48, "no padding in it");

enum { MOST_VALUES = 2 * (2 + 2 * PLAN_MAX_CHUNKS + PLAN_MAX_STAGES + 1) };

static size_t values_bytes(const Record* record) {
    return (size_t)record->num_values * sizeof(int32_t);
}

static size_t times_bytes(const Record* record) {
    return (size_t)record->num_ranks * sizeof(double);
}

static uint64_t record_hash(const void* data, size_t data_bytes, const Record* record) {
    uint64_t hash = hash_bytes(HASH_SEED, data, data_bytes);
    return hash_finish(hash_bytes(hash, record, offsetof(Record, hash)));
}

// Chunks and head, where each chunk ends and lies, where each share begins. Returns how many values that are.
static int32_t put_placement(int32_t* out, const Placement* placement, int32_t P) {
    int32_t num = 0;
    out[num++] = placement->num_chunks;
    out[num++] = placement->head;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        out[num++] = placement->chunks[k].layer_end;
        out[num++] = placement->stage_of[k];
    }
    for (int32_t s = 0; s <= P; s++) {
        out[num++] = placement->head != HEAD_WHOLE ? placement->head_begin[s] : 0;
    }
    return num;
}

// Values [*at, num) of a record; false: they are none of such a model.
static bool take_placement(Placement* out, const int32_t* values, int32_t num, int32_t* at, int32_t P,
                           int32_t num_layers) {
    *out = (Placement){0};
    if (num - *at < 2) { return false; }
    int32_t K = values[*at], head = values[*at + 1];
    bool fits =
        K >= 1 && K <= PLAN_MAX_CHUNKS && head >= 0 && head < HEAD_COUNT && num - *at >= 2 + 2 * K + P + 1;
    if (!fits) { return false; }
    const int32_t *chunk = values + *at + 2, *begin = chunk + 2 * (int64_t)K;
    bool good = true;
    for (int32_t k = 0; k < K; k++) {
        out->chunks[k] = (LayerRange){k > 0 ? chunk[2 * k - 2] : 0, chunk[2 * k]};
        good = good && chunk[2 * k + 1] >= 0 && chunk[2 * k + 1] < P;
        out->stage_of[k] = (int16_t)chunk[2 * k + 1];
    }
    for (int32_t s = 0; s <= P; s++) {
        good = good && begin[s] >= 0 && begin[s] <= HEAD_UNITS;
        out->head_begin[s] = (int16_t)begin[s];
    }
    out->num_chunks = K;
    out->head = (uint8_t)head;
    *at += 2 + 2 * K + P + 1;
    return good && placement_check(out, P, num_layers, false) == STATUS_OK;
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
                     .num_layers = dp->costs.num_enc_layers + dp->costs.num_dec_layers,
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
    int32_t values[MOST_VALUES];
    Record record = record_of(dp);
    record.num_values = put_placement(values, &dp->request.placement, dp->num_stages);
    record.num_values +=
        put_placement(values + record.num_values,
                      resplit->has_moved ? &resplit->before : &dp->request.placement, dp->num_stages);
    size_t body_bytes = values_bytes(&record) + times_bytes(&record);
    size_t all_bytes = *num_bytes + body_bytes + sizeof record;
    char* all = malloc(all_bytes);
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    char* body = all + *num_bytes;
    memcpy(all, *position, *num_bytes);
    memcpy(body, values, values_bytes(&record));
    if (record.num_ranks > 0) {
        memcpy(body + values_bytes(&record), resplit->times_then, times_bytes(&record));
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
                   out->num_stages <= PLAN_MAX_STAGES && out->num_ranks >= 0 &&
                   out->num_ranks <= MOST_RANKS && out->num_values >= 0 && out->num_values <= MOST_VALUES;
    size_t body_bytes = is_sane ? values_bytes(out) + times_bytes(out) : 0;
    if (!is_sane || left_bytes < body_bytes) { return false; }
    *body = bytes + left_bytes - body_bytes;
    return out->hash == record_hash(*body, body_bytes, out);
}

static bool is_of_model(const Dynapipe* dp, const Record* record) {
    int32_t num_layers = dp->costs.num_enc_layers + dp->costs.num_dec_layers;
    return record->num_stages == dp->num_stages && record->num_layers == num_layers &&
           record->moved_step >= 0 && record->effort >= 0 && record->effort <= MOST_EFFORT;
}

// By the step that the run goes on from, --resplit had moved layers.
static bool has_told(const Dynapipe* dp) {
    Told told;
    const char* next = dp->resplit.kind == RESPLIT_TOLD ? dp->resplit.told : NULL;
    return next != NULL && next_told(&told, &next) && told.step <= dp->first_step;
}

// Not where the options ask for something else.
static bool is_taken(const Dynapipe* dp, const Placement* now) {
    if (dp->resplit.kind == RESPLIT_OFF) { return false; }
    return has_told(dp) || session_placed_fits(dp, now);
}

static void say_left(const Dynapipe* dp, const Placement* saved) {
    char now[PLACEMENT_CHARS], before[PLACEMENT_CHARS];
    const Placement* placement = &dp->request.placement;
    if (dp->transport.rank != 0 || placement_equal(saved, placement, dp->num_stages)) { return; }
    placement_print(now, placement, dp->num_stages);
    placement_print(before, saved, dp->num_stages);
    printf("layers are where this run's options have them: %s\n"
           "        (the checkpoint was saved with %s)\n",
           now, before);
    fflush(stdout);
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

// Of another number of stages or model, or not what is told: taken off, and left.
void session_resplit_restore(Dynapipe* dp, const void* position, size_t* num_bytes) {
    SessionResplit* resplit = &dp->resplit;
    Record record;
    const char* body;
    Placement now, before;
    int32_t values[MOST_VALUES], at = 0, P = dp->num_stages;
    forget(resplit);
    if (!find_record(&record, &body, position, *num_bytes)) { return; }
    *num_bytes = (size_t)(body - (const char*)position);
    memcpy(values, body, values_bytes(&record));
    bool is_other = take_pulls(dp, &record);  // then so may be the split that was chosen here, and its effort
    if (!is_of_model(dp, &record) ||
        !take_placement(&now, values, record.num_values, &at, P, record.num_layers)) {
        return;
    }
    if (!is_taken(dp, &now)) {
        say_left(dp, &now);
        return;
    }
    bool has_moved = record.has_moved != 0 &&
                     take_placement(&before, values, record.num_values, &at, P, record.num_layers);
    if (!has_moved && !is_other && !placement_equal(&now, &dp->request.placement, P)) { return; }
    take_times(resplit, &record, body + values_bytes(&record), P * dp->num_replicas);
    if (!has_moved && !is_other) { return; }
    resplit->restored = now;
    resplit->before = has_moved ? before : now;
    resplit->has_restored = true;
    resplit->has_moved = has_moved;
    resplit->moved_step = record.moved_step;
    if (dp->options.effort == 0) { dp->request.effort = record.effort; }
}
