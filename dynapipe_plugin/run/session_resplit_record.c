// session_resplit_record.c -- splits as text and as bytes: what --resplit tells, what a checkpoint keeps,
// with the other thing that a run decides by its clock: whether messages are pulled.
#include <ctype.h>
#include <stdlib.h>
#include <string.h>

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

static Status parse_layers(const Dynapipe* dp, StageLayers* out, const char* layers) {
    int32_t num_layers = dp->costs.num_enc_layers + dp->costs.num_dec_layers;
    Status status =
        stage_split_parse(out, dp->num_stages, num_layers, dp->request.rules.head_has_layer, layers);
    if (status != STATUS_BAD_OPTION) { return status; }
    return FAIL(status, "--resplit ..:%.60s: no split of %d layers onto %d stages ---> as --stage-split",
                layers, num_layers, dp->num_stages);
}

Status session_resplit_told(const Dynapipe* dp, StageLayers* out, bool* found) {
    Told told;
    *found = false;
    const char* next = dp->resplit.kind == RESPLIT_TOLD ? dp->resplit.told : NULL;
    while (next != NULL && next_told(&told, &next)) {
        StageLayers stages[PLAN_MAX_STAGES] = {{0}};
        TRY(parse_layers(dp, stages, told.layers));
        if (told.step != dp->next_step) { continue; }
        memcpy(out, stages, sizeof stages);
        *found = true;
    }
    return STATUS_OK;
}

// --- what is kept ------------------------------------------------------------------------------------------

static const char MAGIC[8] = {'D', 'P', 'S', 'P', 'L', 'I', 'T', '2'};

// Read from its end: 2 * stages int32 (where the layers of each stage end, now and before the last move),
// then this.
typedef struct {
    int32_t moved_step, effort, num_stages, num_layers;
    int32_t has_moved, pulls;
    char magic[8];
} Record;

static void put_ends(int32_t* out, const StageLayers* stages, int32_t num_stages) {
    for (int32_t s = 0; s < num_stages; s++) { out[s] = stages[s].layer_end; }
}

static bool take_ends(StageLayers* out, const int32_t* ends, int32_t num_stages, int32_t num_layers) {
    bool good = ends[num_stages - 1] == num_layers;
    for (int32_t s = 0; s < num_stages; s++) {
        out[s] = (StageLayers){s > 0 ? ends[s - 1] : 0, ends[s]};
        good = good && stage_may_have(&out[s], s, num_stages, false);
    }
    return good;
}

// Whether messages are pulled was measured here.
static bool has_choice(const Dynapipe* dp) {
    return dp->num_stages > 1 && dp->progress.reason != NULL;
}

Status session_resplit_position(Dynapipe* dp, const void** position, size_t* num_bytes) {
    SessionResplit* resplit = &dp->resplit;
    if (!resplit->has_moved && !has_choice(dp)) { return STATUS_OK; }
    int32_t P = dp->num_stages, ends[2 * PLAN_MAX_STAGES];
    Record record = {.moved_step = resplit->moved_step,
                     .effort = dp->request.effort,
                     .num_stages = P,
                     .num_layers = dp->request.stages[P - 1].layer_end,
                     .has_moved = resplit->has_moved,
                     .pulls = dp->machine.pulls};
    memcpy(record.magic, MAGIC, sizeof MAGIC);
    put_ends(ends, dp->request.stages, P);
    put_ends(ends + P, resplit->has_moved ? resplit->before : dp->request.stages, P);
    size_t ends_bytes = 2 * (size_t)P * sizeof *ends, all_bytes = *num_bytes + ends_bytes + sizeof record;
    char* all = malloc(all_bytes);
    if (all == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for the position in the data"); }
    memcpy(all, *position, *num_bytes);
    memcpy(all + *num_bytes, ends, ends_bytes);
    memcpy(all + *num_bytes + ends_bytes, &record, sizeof record);
    free(resplit->record);
    *position = resplit->record = all;
    *num_bytes = all_bytes;
    return STATUS_OK;
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
    const char* bytes = position;
    Record record;
    int32_t ends[2 * PLAN_MAX_STAGES], P = dp->num_stages;
    resplit->has_restored = false;
    if (*num_bytes < sizeof record) { return; }
    memcpy(&record, bytes + *num_bytes - sizeof record, sizeof record);
    bool is_record = memcmp(record.magic, MAGIC, sizeof MAGIC) == 0 && record.num_stages >= 1 &&
                     record.num_stages <= PLAN_MAX_STAGES;
    size_t ends_bytes = is_record ? 2 * (size_t)record.num_stages * sizeof *ends : 0;
    if (!is_record || *num_bytes - sizeof record < ends_bytes) { return; }
    *num_bytes -= sizeof record + ends_bytes;
    memcpy(ends, bytes + *num_bytes, ends_bytes);
    bool is_other = take_pulls(dp, &record);  // then so may be the split that was chosen here, and its effort
    if (!record.has_moved && !is_other) { return; }
    bool is_told = resplit->kind == RESPLIT_AUTO && dp->options.stage_split != NULL;
    int32_t num_layers = dp->costs.num_enc_layers + dp->costs.num_dec_layers;
    if (resplit->kind == RESPLIT_OFF || is_told || record.num_stages != P ||
        record.num_layers != num_layers || record.moved_step < 0 || record.effort < 0 ||
        !take_ends(resplit->restored, ends, P, num_layers) ||
        !take_ends(resplit->before, ends + P, P, num_layers)) {
        return;
    }
    resplit->has_restored = true;
    resplit->has_moved = record.has_moved != 0;
    resplit->moved_step = record.moved_step;
    dp->request.effort = record.effort;
}
