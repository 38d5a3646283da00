// plan_check_rank.c -- the rules of one rank's list: every job and transfer once, in an order that can run,
// every buffer alive while it is used, and no two in one place at one time.
#include <string.h>

#include "../pipe/pipe_schedule.h"
#include "plan_check_parts.h"
#include "plan_words.h"

typedef struct {
    const Plan* plan;
    int32_t rank, s;
    const PlanRank* list;
    PlanReplicaPlaces* replica;
} Check;

static Status wrong_instr(const Check* check, int32_t i, const char* rule) {
    const PlanInstr* instr = &check->list->instrs[i];
    const char* word = instr->kind < INSTR_COUNT ? plan_instr_words[instr->kind] : "?";
    return FAIL(STATUS_INVALID_PLAN, "rank %d, instruction %d (%s mb %d): %s", check->rank, i, word,
                instr->mb, rule);
}

static Status wrong_buffer(const Check* check, int32_t i, const char* rule) {
    const PlanBuffer* buffer = &check->list->buffers[i];
    const char* word = buffer->kind < BUFFER_COUNT ? plan_buffer_words[buffer->kind] : "?";
    return FAIL(STATUS_INVALID_PLAN, "rank %d, buffer %d (%s mb %d): %s", check->rank, i, word, buffer->mb,
                rule);
}

static bool runs_here(const Check* check, int32_t m) {
    return m >= check->replica->mb_begin && m < check->replica->mb_end;
}

static PlanPlaces* places_of(const Check* check, int32_t m) {
    return plan_places(check->replica, check->s, m);
}

static Status check_instrs(const Check* check) {
    const Plan* plan = check->plan;
    int64_t free_ns = 0;  // when the last job has ended
    for (int32_t i = 0; i < check->list->num_instrs; i++) {
        const PlanInstr* instr = &check->list->instrs[i];
        if (instr->kind >= INSTR_COUNT) { return wrong_instr(check, i, "no such instruction"); }
        if (!runs_here(check, instr->mb)) {
            return wrong_instr(check, i, "not a micro-batch of this replica");
        }
        InstrKind kind = (InstrKind)instr->kind;
        bool to_next = kind == INSTR_SEND_ACT || kind == INSTR_WAIT_ACT || kind == INSTR_RECV_GRAD;
        bool is_job = plan_instr_is_job(kind);
        if (!is_job && check->s == (to_next ? plan->P - 1 : 0)) {
            return wrong_instr(check, i, "there is no such neighbour");
        }
        if (instr->peer != (is_job ? -1 : check->rank + (to_next ? 1 : -1))) {
            return wrong_instr(check, i, "wrong peer");
        }
        int32_t* at = &places_of(check, instr->mb)->at[kind];
        if (*at >= 0) { return wrong_instr(check, i, "a second time"); }
        *at = i;
        if (instr->begin_ns < 0 || instr->end_ns < instr->begin_ns || instr->end_ns > plan->makespan_ns) {
            return wrong_instr(check, i, "its predicted time is not within the step");
        }
        if (!is_job) { continue; }
        if (instr->begin_ns < free_ns) {
            return wrong_instr(check, i, "begins before the job ahead of it ends");
        }
        free_ns = instr->end_ns;
    }
    return STATUS_OK;
}

// What each instruction needs in front of it; it must be there if `needed` says so, too.
static Status check_order(const Check* check, int32_t m) {
    const int32_t* at = places_of(check, m)->at;
    bool first = check->s == 0, last = check->s == check->plan->P - 1;
    bool recomputes = check->plan->mbs[m].recompute[check->s] != RECOMPUTE_NONE;
    const struct {
        InstrKind before, after;
        bool needed;  // both
    } rules[] = {
        {INSTR_FWD, INSTR_BWD, true},
        {INSTR_FWD, INSTR_REC, false},
        {INSTR_REC, INSTR_BWD, false},
        {INSTR_BWD, INSTR_WGT, false},
        {INSTR_RECV_ACT, INSTR_FWD, !first},
        {INSTR_BWD, INSTR_SEND_GRAD, !first},
        {INSTR_SEND_GRAD, INSTR_WAIT_GRAD, !first},
        {INSTR_FWD, INSTR_SEND_ACT, !last},
        {INSTR_SEND_ACT, INSTR_WAIT_ACT, !last},
        {INSTR_RECV_GRAD, INSTR_BWD, !last},
    };
    for (size_t i = 0; i < sizeof rules / sizeof rules[0]; i++) {
        int32_t before = at[rules[i].before], after = at[rules[i].after];
        if (rules[i].needed && (before < 0 || after < 0)) {
            return FAIL(STATUS_INVALID_PLAN, "rank %d: %s of micro-batch %d is missing", check->rank,
                        plan_instr_words[before < 0 ? rules[i].before : rules[i].after], m);
        }
        if (after >= 0 && before > after) { return wrong_instr(check, after, "before what it needs"); }
    }
    if (at[INSTR_REC] >= 0 && !recomputes) {
        return wrong_instr(check, at[INSTR_REC], "this micro-batch is not recomputed here");
    }
    return STATUS_OK;
}

static Status check_buffer_places(const Check* check) {
    const PlanRank* list = check->list;
    int32_t num_scratch = 0;
    for (int32_t i = 0; i < list->num_buffers; i++) {
        const PlanBuffer* buffer = &list->buffers[i];
        if (buffer->kind >= BUFFER_COUNT) { return wrong_buffer(check, i, "no such buffer"); }
        if (buffer->offset_bytes < 0 || buffer->offset_bytes % PLAN_BUFFER_ALIGN != 0) {
            return wrong_buffer(check, i, "its offset is not aligned");
        }
        if (buffer->num_bytes < 0 || buffer->num_bytes > list->arena_bytes ||
            buffer->offset_bytes > list->arena_bytes - buffer->num_bytes) {
            return wrong_buffer(check, i, "not inside the arena");
        }
        if (buffer->instr_begin < 0 || buffer->instr_begin >= buffer->instr_end ||
            buffer->instr_end > list->num_instrs) {
            return wrong_buffer(check, i, "its life is not within the list");
        }
        if (buffer->kind == BUFFER_SCRATCH) {
            if (buffer->mb != -1 || num_scratch++ > 0) {
                return wrong_buffer(check, i, "only one, of no micro-batch");
            }
            if (buffer->instr_begin != 0 || buffer->instr_end != list->num_instrs) {
                return wrong_buffer(check, i, "must live during the whole step");
            }
            continue;
        }
        if (!runs_here(check, buffer->mb)) {
            return wrong_buffer(check, i, "not a micro-batch of this replica");
        }
        int32_t* slot = &places_of(check, buffer->mb)->buffer[buffer->kind];
        if (*slot >= 0) { return wrong_buffer(check, i, "a second time"); }
        *slot = i;
    }
    return num_scratch > 0 || list->num_instrs == 0
               ? STATUS_OK
               : FAIL(STATUS_INVALID_PLAN, "rank %d: there is no scratch buffer", check->rank);
}

// A buffer lives from its first to its last use.
static Status check_lives(const Check* check, int32_t m) {
    const PlanPlaces* places = places_of(check, m);
    const int32_t* at = places->at;
    bool first = check->s == 0, last = check->s == check->plan->P - 1, drops = at[INSTR_REC] >= 0;
    int32_t last_use = at[INSTR_WGT] >= 0 ? at[INSTR_WGT] : at[INSTR_BWD];
    const struct {
        bool needed;
        int32_t from, to;  // instructions, both included
    } lives[BUFFER_COUNT] = {
        [BUFFER_IN] = {!first, at[INSTR_RECV_ACT], at[INSTR_BWD]},
        [BUFFER_OUT] = {!last, at[INSTR_FWD], at[INSTR_WAIT_ACT]},
        [BUFFER_ACTS] = {true, drops ? at[INSTR_REC] : at[INSTR_FWD], last_use},
        [BUFFER_FORWARD] = {drops, at[INSTR_FWD], at[INSTR_FWD]},
        [BUFFER_DOUT] = {!last, at[INSTR_RECV_GRAD], last_use},
        [BUFFER_DIN] = {!first, at[INSTR_BWD], at[INSTR_WAIT_GRAD]},
    };
    for (int32_t k = 0; k < BUFFER_SCRATCH; k++) {
        int32_t i = places->buffer[k];
        if ((i >= 0) != lives[k].needed) {
            return FAIL(STATUS_INVALID_PLAN, "rank %d: buffer %s of micro-batch %d is %s", check->rank,
                        plan_buffer_words[k], m, i < 0 ? "missing" : "not used by anything");
        }
        if (i < 0) { continue; }
        const PlanBuffer* buffer = &check->list->buffers[i];
        if (buffer->instr_begin > lives[k].from || buffer->instr_end <= lives[k].to) {
            return wrong_buffer(check, i, "used before or after its life");
        }
    }
    return STATUS_OK;
}

static bool same_time(const PlanBuffer* a, const PlanBuffer* b) {
    return a->instr_begin < b->instr_end && b->instr_begin < a->instr_end;
}

static bool same_place(const PlanBuffer* a, const PlanBuffer* b) {
    return a->num_bytes > 0 && b->num_bytes > 0 && a->offset_bytes < b->offset_bytes + b->num_bytes &&
           b->offset_bytes < a->offset_bytes + a->num_bytes;
}

// The first two that overlap, for the message.
static Status report_overlap(const Check* check) {
    const PlanBuffer* buffers = check->list->buffers;
    for (int32_t i = 0; i < check->list->num_buffers; i++) {
        for (int32_t k = 0; k < i; k++) {
            const PlanBuffer *a = &buffers[i], *b = &buffers[k];
            if (!same_time(a, b) || !same_place(a, b)) { continue; }
            return FAIL(STATUS_INVALID_PLAN, "rank %d: buffers %d (%s mb %d) and %d (%s mb %d) overlap",
                        check->rank, k, plan_buffer_words[b->kind], b->mb, i, plan_buffer_words[a->kind],
                        a->mb);
        }
    }
    return STATUS_OK;
}

// Buffers alive at the present instruction, by address.
typedef struct {
    int32_t num;
    const PlanBuffer** buffers;
} Alive;

// The first one that begins at this address or behind it.
static int32_t alive_find(const Alive* alive, int64_t offset_bytes) {
    int32_t low = 0, high = alive->num;
    while (low < high) {
        int32_t middle = (low + high) / 2;
        if (alive->buffers[middle]->offset_bytes >= offset_bytes) {
            high = middle;
        } else {
            low = middle + 1;
        }
    }
    return low;
}

// False where it overlaps with one of its neighbours, and so with any.
static bool alive_insert(Alive* alive, const PlanBuffer* buffer) {
    int32_t at = alive_find(alive, buffer->offset_bytes);
    if (at > 0 && same_place(alive->buffers[at - 1], buffer)) { return false; }
    if (at < alive->num && same_place(alive->buffers[at], buffer)) { return false; }
    memmove(alive->buffers + at + 1, alive->buffers + at, (size_t)(alive->num - at) * sizeof *alive->buffers);
    alive->buffers[at] = buffer;
    alive->num++;
    return true;
}

static void alive_remove(Alive* alive, const PlanBuffer* buffer) {
    int32_t at = alive_find(alive, buffer->offset_bytes);
    alive->num--;
    memmove(alive->buffers + at, alive->buffers + at + 1, (size_t)(alive->num - at) * sizeof *alive->buffers);
}

// Along the list: at each instruction those that end go first, then those that begin come.
static Status check_overlaps(const Check* check, Arena* arena) {
    const PlanRank* list = check->list;
    int32_t *first_begin, *first_end, *next_begin, *next_end;  // chains by instruction; buffer + 1, 0: none
    Alive alive = {0};
    PIPE_NEW(first_begin, arena, int32_t, list->num_instrs + 1);
    PIPE_NEW(first_end, arena, int32_t, list->num_instrs + 1);
    PIPE_NEW(next_begin, arena, int32_t, list->num_buffers);
    PIPE_NEW(next_end, arena, int32_t, list->num_buffers);
    PIPE_NEW(alive.buffers, arena, const PlanBuffer*, list->num_buffers);
    for (int32_t i = 0; i < list->num_buffers; i++) {
        const PlanBuffer* buffer = &list->buffers[i];
        if (buffer->num_bytes == 0) { continue; }
        next_begin[i] = first_begin[buffer->instr_begin];
        first_begin[buffer->instr_begin] = i + 1;
        next_end[i] = first_end[buffer->instr_end];
        first_end[buffer->instr_end] = i + 1;
    }
    for (int32_t t = 0; t <= list->num_instrs; t++) {
        for (int32_t i = first_end[t]; i > 0; i = next_end[i - 1]) {
            alive_remove(&alive, &list->buffers[i - 1]);
        }
        for (int32_t i = first_begin[t]; i > 0; i = next_begin[i - 1]) {
            if (!alive_insert(&alive, &list->buffers[i - 1])) { return report_overlap(check); }
        }
    }
    return STATUS_OK;
}

Status plan_check_rank(const Plan* plan, int32_t rank, PlanReplicaPlaces* replica, Arena* arena) {
    Check check = {
        .plan = plan, .rank = rank, .s = rank % plan->P, .list = &plan->ranks[rank], .replica = replica};
    for (int32_t m = replica->mb_begin; m < replica->mb_end; m++) {
        PlanPlaces* places = places_of(&check, m);
        for (int32_t k = 0; k < INSTR_COUNT; k++) { places->at[k] = -1; }
        for (int32_t k = 0; k < BUFFER_COUNT; k++) { places->buffer[k] = -1; }
    }
    const PlanRank* list = check.list;
    int64_t limit_bytes = plan_limit_bytes(plan, rank);
    if (list->own_limit_bytes < 0 || list->num_instrs < 0 || list->num_buffers < 0 || list->arena_bytes < 0 ||
        list->state_bytes < 0) {
        return FAIL(STATUS_INVALID_PLAN, "rank %d: a count or number of bytes is negative", rank);
    }
    if (limit_bytes > 0 && list->arena_bytes > limit_bytes - list->state_bytes) {
        return FAIL(STATUS_INVALID_PLAN, "rank %d: %lld + %lld bytes are beyond the memory limit of %lld",
                    rank, (long long)list->arena_bytes, (long long)list->state_bytes, (long long)limit_bytes);
    }
    TRY(check_instrs(&check));
    TRY(check_buffer_places(&check));
    for (int32_t m = replica->mb_begin; m < replica->mb_end; m++) { TRY(check_order(&check, m)); }
    for (int32_t m = replica->mb_begin; m < replica->mb_end; m++) { TRY(check_lives(&check, m)); }
    return check_overlaps(&check, arena);
}
