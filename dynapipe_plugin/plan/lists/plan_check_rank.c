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
    return FAIL(STATUS_INVALID_PLAN, "rank %d, instruction %d (%s chunk %d mb %d): %s", check->rank, i, word,
                instr->chunk, instr->mb, rule);
}

static Status wrong_buffer(const Check* check, int32_t i, const char* rule) {
    const PlanBuffer* buffer = &check->list->buffers[i];
    const char* word = buffer->kind < BUFFER_COUNT ? plan_buffer_words[buffer->kind] : "?";
    return FAIL(STATUS_INVALID_PLAN, "rank %d, buffer %d (%s chunk %d mb %d): %s", check->rank, i, word,
                buffer->chunk, buffer->mb, rule);
}

static bool runs_here(const Check* check, int32_t m) {
    return m >= check->replica->mb_begin && m < check->replica->mb_end;
}

static PlanPlaces* places_of(const Check* check, int32_t row, int32_t m) {
    return plan_places(check->replica, row, m);
}

// Chunks and shares are counted so.
static bool is_row(const Check* check, int32_t chunk) {
    int32_t num_shares = plan_shares_head(check->plan) ? check->plan->P : 0;
    return chunk >= 0 && chunk < check->plan->placement.num_chunks + num_shares;
}

static bool is_here(const Check* check, int32_t row) {
    return plan_stage_of_place(check->plan, row) == check->s;
}

static bool has_last(const Check* check) {
    return is_here(check, check->plan->placement.num_chunks - 1);
}

// --- instructions -----------------------------------------------------------------------------------------

// The stage at the other end of a transfer of this rank; -1: there is none.
static int32_t far_stage(const Check* check, const PlanInstr* instr) {
    const Placement* placement = &check->plan->placement;
    int32_t K = placement->num_chunks, k = instr->chunk, far = -1, peer = instr->peer % check->plan->P;
    switch ((InstrKind)instr->kind) {
        case INSTR_RECV_ACT:
        case INSTR_SEND_GRAD:
        case INSTR_WAIT_GRAD:
            if (!is_here(check, k) || k == 0) { return -1; }
            far = placement->stage_of[k < K ? k - 1 : K - 1];
            break;
        case INSTR_SEND_ACT:
        case INSTR_WAIT_ACT:
        case INSTR_RECV_GRAD:
            if (k >= K || !is_here(check, k)) { return -1; }
            if (k < K - 1) { far = placement->stage_of[k + 1]; }
            if (k == K - 1 && placement_has_share(placement, peer)) { far = peer; }
            break;
        case INSTR_RECV_FACT:
            if (k >= K && is_here(check, k)) { far = placement->stage_of[K - 1]; }
            break;
        default:
            if (k >= K && has_last(check) && placement_has_share(placement, k - K)) { far = k - K; }
    }
    bool is_fact = instr->kind >= INSTR_RECV_FACT;
    return far == check->s || (is_fact && !plan_is_by_vocabulary(check->plan)) ? -1 : far;
}

static Status check_names(const Check* check, int32_t i) {
    const PlanInstr* instr = &check->list->instrs[i];
    int32_t first_rank = check->rank - check->s;
    if (instr->kind >= INSTR_COUNT) { return wrong_instr(check, i, "no such instruction"); }
    if (!runs_here(check, instr->mb)) { return wrong_instr(check, i, "not a micro-batch of this replica"); }
    if (!is_row(check, instr->chunk)) { return wrong_instr(check, i, "no such chunk"); }
    if (plan_instr_is_job((InstrKind)instr->kind)) {
        if (instr->peer != -1) { return wrong_instr(check, i, "wrong peer"); }
        if (!is_here(check, instr->chunk)) { return wrong_instr(check, i, "not a chunk of this rank"); }
        bool is_share = instr->chunk >= check->plan->placement.num_chunks;
        if (is_share && (instr->kind == INSTR_BWD || instr->kind == INSTR_REC)) {
            return wrong_instr(check, i, "a share of the head has no such job");
        }
        return STATUS_OK;
    }
    if (instr->peer < first_rank || instr->peer >= first_rank + check->plan->P) {
        return wrong_instr(check, i, "wrong peer");
    }
    int32_t far = far_stage(check, instr);
    if (far < 0) { return wrong_instr(check, i, "nothing is sent there"); }
    return instr->peer == first_rank + far ? STATUS_OK : wrong_instr(check, i, "wrong peer");
}

static Status check_instrs(const Check* check) {
    const Plan* plan = check->plan;
    int64_t free_ns = 0;  // when the last job has ended
    for (int32_t i = 0; i < check->list->num_instrs; i++) {
        const PlanInstr* instr = &check->list->instrs[i];
        TRY(check_names(check, i));
        InstrKind kind = (InstrKind)instr->kind;
        int32_t row = plan_place_of(&plan->placement, plan->P, kind, instr->chunk, instr->peer % plan->P);
        int32_t* at = &places_of(check, row, instr->mb)->at[kind];
        if (*at >= 0) { return wrong_instr(check, i, "a second time"); }
        *at = i;
        if (instr->begin_ns < 0 || instr->end_ns < instr->begin_ns || instr->end_ns > plan->makespan_ns) {
            return wrong_instr(check, i, "its predicted time is not within the step");
        }
        if (!plan_instr_is_job(kind)) { continue; }
        if (instr->begin_ns < free_ns) {
            return wrong_instr(check, i, "begins before the job ahead of it ends");
        }
        free_ns = instr->end_ns;
    }
    return STATUS_OK;
}

// --- what stands before what ------------------------------------------------------------------------------

// Of one micro-batch. It must be there if `needed` says so, too; else at[before] may be missing.
typedef struct {
    int32_t row_before, row_after;
    InstrKind before, after;
    bool needed;  // both
} Rule;

static Status check_rules(const Check* check, int32_t m, const Rule* rules, size_t num_rules) {
    for (size_t i = 0; i < num_rules; i++) {
        const Rule* rule = &rules[i];
        bool none = !rule->needed && rule->row_before != rule->row_after;
        if (none) { continue; }
        int32_t before = places_of(check, rule->row_before, m)->at[rule->before];
        int32_t after = places_of(check, rule->row_after, m)->at[rule->after];
        if (rule->needed && (before < 0 || after < 0)) {
            return FAIL(STATUS_INVALID_PLAN, "rank %d: %s of chunk %d, micro-batch %d is missing",
                        check->rank, plan_instr_words[before < 0 ? rule->before : rule->after],
                        before < 0 ? rule->row_before : rule->row_after, m);
        }
        if (after >= 0 && before > after) { return wrong_instr(check, after, "before what it needs"); }
    }
    return STATUS_OK;
}

static Status check_chunk_order(const Check* check, int32_t k, int32_t m) {
    const int32_t* at = places_of(check, k, m)->at;
    int32_t K = check->plan->placement.num_chunks, before = k > 0 ? k - 1 : k, behind = k < K - 1 ? k + 1 : k;
    bool comes = k > 0 && !is_here(check, before), goes = k < K - 1 && !is_here(check, behind);
    bool is_given = k > 0 && !comes, gives = k < K - 1 && !goes;  // on this rank
    const Rule rules[] = {
        {k, k, INSTR_FWD, INSTR_BWD, true},
        {k, k, INSTR_FWD, INSTR_REC, false},
        {k, k, INSTR_REC, INSTR_BWD, false},
        {k, k, INSTR_BWD, INSTR_WGT, false},
        {k, k, INSTR_RECV_ACT, INSTR_FWD, comes},
        {k, k, INSTR_BWD, INSTR_SEND_GRAD, comes},
        {k, k, INSTR_SEND_GRAD, INSTR_WAIT_GRAD, comes},
        {k, k, INSTR_FWD, INSTR_SEND_ACT, goes},
        {k, k, INSTR_SEND_ACT, INSTR_WAIT_ACT, goes},
        {k, k, INSTR_RECV_GRAD, INSTR_BWD, goes},
        {before, k, INSTR_FWD, INSTR_FWD, is_given},
        {behind, k, INSTR_BWD, INSTR_BWD, gives},
    };
    TRY(check_rules(check, m, rules, sizeof rules / sizeof rules[0]));
    if (at[INSTR_REC] >= 0 && check->plan->mbs[m].recompute[k] == RECOMPUTE_NONE) {
        return wrong_instr(check, at[INSTR_REC], "this micro-batch is not recomputed here");
    }
    return STATUS_OK;
}

static Status check_share_order(const Check* check, int32_t row, int32_t m) {
    bool is_far = !has_last(check), waits = is_far && plan_is_by_vocabulary(check->plan);
    const Rule rules[] = {
        {row, row, INSTR_FWD, INSTR_WGT, true},         {row, row, INSTR_RECV_ACT, INSTR_FWD, is_far},
        {row, row, INSTR_FWD, INSTR_SEND_GRAD, is_far}, {row, row, INSTR_SEND_GRAD, INSTR_WAIT_GRAD, is_far},
        {row, row, INSTR_RECV_FACT, INSTR_WGT, waits},
    };
    return check_rules(check, m, rules, sizeof rules / sizeof rules[0]);
}

// What the last chunk has to do with a share; `end` is that row.
static Status check_end_order(const Check* check, int32_t end, int32_t m) {
    int32_t last = check->plan->placement.num_chunks - 1, share = end - check->plan->P;
    bool is_own = is_here(check, share), by_vocabulary = plan_is_by_vocabulary(check->plan);
    bool facts = by_vocabulary && !is_own;
    const Rule rules[] = {
        {last, end, INSTR_FWD, INSTR_SEND_ACT, !is_own},
        {end, end, INSTR_SEND_ACT, INSTR_WAIT_ACT, !is_own},
        {end, last, INSTR_RECV_GRAD, INSTR_BWD, !is_own},
        {last, end, INSTR_BWD, INSTR_SEND_FACT, facts},
        {end, end, INSTR_SEND_FACT, INSTR_WAIT_FACT, facts},
        {last, share, INSTR_FWD, INSTR_FWD, is_own},
        {share, last, INSTR_FWD, INSTR_BWD, is_own},
        {last, share, INSTR_BWD, INSTR_WGT, is_own && by_vocabulary},
    };
    return check_rules(check, m, rules, sizeof rules / sizeof rules[0]);
}

static Status check_order(const Check* check, int32_t row, int32_t m) {
    int32_t K = check->plan->placement.num_chunks;
    return row < K                    ? check_chunk_order(check, row, m)
           : row < K + check->plan->P ? check_share_order(check, row, m)
                                      : check_end_order(check, row, m);
}

// --- buffers ----------------------------------------------------------------------------------------------

// The row of a buffer of this rank, -1: it has none such.
static int32_t buffer_row(const Check* check, const PlanBuffer* buffer) {
    int32_t K = check->plan->placement.num_chunks, k = buffer->chunk;
    if (!is_row(check, k)) { return -1; }
    bool at_last = buffer->kind == BUFFER_PART || buffer->kind == BUFFER_FACT;
    if (at_last && k >= K && is_here(check, k + check->plan->P)) { return k + check->plan->P; }
    return is_here(check, k) ? k : -1;
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
            if (buffer->mb != -1 || buffer->chunk != -1 || num_scratch++ > 0) {
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
        int32_t row = buffer_row(check, buffer);
        if (row < 0) { return wrong_buffer(check, i, "not a chunk of this rank"); }
        int32_t* slot = &places_of(check, row, buffer->mb)->buffer[buffer->kind];
        if (*slot >= 0) { return wrong_buffer(check, i, "a second time"); }
        *slot = i;
    }
    return num_scratch > 0 || list->num_instrs == 0
               ? STATUS_OK
               : FAIL(STATUS_INVALID_PLAN, "rank %d: there is no scratch buffer", check->rank);
}

// A buffer lives from its first to its last use.
typedef struct {
    bool needed;
    int32_t from, to;  // instructions, both included
} Life;

// What the last chunk's output and its gradient are for, where the head is shared.
static void set_head_lives(Life lives[BUFFER_COUNT], const Check* check, int32_t m, int32_t last_use) {
    int32_t K = check->plan->placement.num_chunks, P = check->plan->P;
    const int32_t* at = places_of(check, K - 1, m)->at;
    Life out = {true, at[INSTR_FWD], at[INSTR_FWD]}, dout = {true, at[INSTR_BWD], last_use};
    for (int32_t s = 0; s < P; s++) {
        if (!placement_has_share(&check->plan->placement, s)) { continue; }
        bool is_own = s == check->s;
        const int32_t* there = places_of(check, is_own ? K + s : K + P + s, m)->at;
        int32_t used = there[is_own ? INSTR_WGT : INSTR_WAIT_ACT];
        int32_t filled = there[is_own ? INSTR_FWD : INSTR_RECV_GRAD];
        if (used > out.to) { out.to = used; }
        if (!plan_is_by_vocabulary(check->plan) && filled < dout.from) { dout.from = filled; }
    }
    lives[BUFFER_OUT] = out;
    lives[BUFFER_DOUT] = dout;
}

static void set_chunk_lives(Life lives[BUFFER_COUNT], const Check* check, int32_t k, int32_t m) {
    const int32_t* at = places_of(check, k, m)->at;
    int32_t K = check->plan->placement.num_chunks;
    bool first = k == 0, last = k == K - 1, drops = at[INSTR_REC] >= 0;
    bool is_given = !first && is_here(check, k - 1), gives = !last && is_here(check, k + 1);
    int32_t last_use = at[INSTR_WGT] >= 0 ? at[INSTR_WGT] : at[INSTR_BWD];
    int32_t in_from = is_given ? places_of(check, k - 1, m)->at[INSTR_FWD] : at[INSTR_RECV_ACT];
    int32_t dout_from = gives ? places_of(check, k + 1, m)->at[INSTR_BWD] : at[INSTR_RECV_GRAD];
    lives[BUFFER_IN] = (Life){!first, in_from, at[INSTR_BWD]};
    lives[BUFFER_OUT] = (Life){!last && !gives, at[INSTR_FWD], at[INSTR_WAIT_ACT]};
    lives[BUFFER_ACTS] = (Life){true, drops ? at[INSTR_REC] : at[INSTR_FWD], last_use};
    lives[BUFFER_FORWARD] = (Life){drops, at[INSTR_FWD], at[INSTR_FWD]};
    lives[BUFFER_DOUT] = (Life){!last, dout_from, last_use};
    lives[BUFFER_DIN] = (Life){!first && !is_given, at[INSTR_BWD], at[INSTR_WAIT_GRAD]};
    if (last && plan_shares_head(check->plan)) { set_head_lives(lives, check, m, last_use); }
}

static void set_share_lives(Life lives[BUFFER_COUNT], const Check* check, int32_t row, int32_t m) {
    const int32_t* at = places_of(check, row, m)->at;
    bool is_far = !has_last(check);
    lives[BUFFER_IN] = (Life){is_far, at[INSTR_RECV_ACT], at[INSTR_WGT]};
    lives[BUFFER_ACTS] = (Life){true, at[INSTR_FWD], at[INSTR_WGT]};
    lives[BUFFER_DIN] = (Life){is_far, at[INSTR_FWD], at[INSTR_WAIT_GRAD]};
    lives[BUFFER_FACT] =
        (Life){is_far && plan_is_by_vocabulary(check->plan), at[INSTR_RECV_FACT], at[INSTR_WGT]};
}

static void set_end_lives(Life lives[BUFFER_COUNT], const Check* check, int32_t end, int32_t m) {
    int32_t share = end - check->plan->P;
    bool is_own = is_here(check, share), by_vocabulary = plan_is_by_vocabulary(check->plan);
    const int32_t* at = places_of(check, end, m)->at;
    const int32_t* own = is_own ? places_of(check, share, m)->at : at;
    int32_t bwd = places_of(check, check->plan->placement.num_chunks - 1, m)->at[INSTR_BWD];
    lives[BUFFER_PART] = (Life){by_vocabulary, own[is_own ? INSTR_FWD : INSTR_RECV_GRAD], bwd};
    lives[BUFFER_FACT] = (Life){by_vocabulary, bwd, own[is_own ? INSTR_WGT : INSTR_WAIT_FACT]};
}

static Status check_lives(const Check* check, int32_t row, int32_t m) {
    const PlanPlaces* places = places_of(check, row, m);
    int32_t K = check->plan->placement.num_chunks;
    Life lives[BUFFER_COUNT] = {{false, -1, -1}};
    if (row < K) {
        set_chunk_lives(lives, check, row, m);
    } else if (row < K + check->plan->P) {
        set_share_lives(lives, check, row, m);
    } else {
        set_end_lives(lives, check, row, m);
    }
    for (int32_t k = 0; k < BUFFER_SCRATCH; k++) {
        int32_t i = places->buffer[k];
        if ((i >= 0) != lives[k].needed) {
            return FAIL(STATUS_INVALID_PLAN, "rank %d: buffer %s of chunk %d, micro-batch %d is %s",
                        check->rank, plan_buffer_words[k],
                        row < K + check->plan->P ? row : row - check->plan->P, m,
                        i < 0 ? "missing" : "not used by anything");
        }
        if (i < 0) { continue; }
        const PlanBuffer* buffer = &check->list->buffers[i];
        if (buffer->instr_begin > lives[k].from || buffer->instr_end <= lives[k].to) {
            return wrong_buffer(check, i, "used before or after its life");
        }
    }
    return STATUS_OK;
}

// --- places -----------------------------------------------------------------------------------------------

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
            return FAIL(STATUS_INVALID_PLAN,
                        "rank %d: buffers %d (%s chunk %d mb %d) and %d (%s chunk %d mb %d) overlap",
                        check->rank, k, plan_buffer_words[b->kind], b->chunk, b->mb, i,
                        plan_buffer_words[a->kind], a->chunk, a->mb);
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
    ARENA_TRY_NEW(first_begin, arena, int32_t, list->num_instrs + 1);
    ARENA_TRY_NEW(first_end, arena, int32_t, list->num_instrs + 1);
    ARENA_TRY_NEW(next_begin, arena, int32_t, list->num_buffers);
    ARENA_TRY_NEW(next_end, arena, int32_t, list->num_buffers);
    ARENA_TRY_NEW(alive.buffers, arena, const PlanBuffer*, list->num_buffers);
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

static void forget_places(const Check* check, int32_t row) {
    for (int32_t m = check->replica->mb_begin; m < check->replica->mb_end; m++) {
        PlanPlaces* places = places_of(check, row, m);
        for (int32_t k = 0; k < INSTR_COUNT; k++) { places->at[k] = -1; }
        for (int32_t k = 0; k < BUFFER_COUNT; k++) { places->buffer[k] = -1; }
    }
}

Status plan_check_rank(const Plan* plan, int32_t rank, PlanReplicaPlaces* replica, Arena* arena) {
    Check check = {
        .plan = plan, .rank = rank, .s = rank % plan->P, .list = &plan->ranks[rank], .replica = replica};
    const PlanRank* list = check.list;
    int64_t limit_bytes = plan_limit_bytes(plan, rank);
    int32_t num_rows = plan_num_places(&plan->placement, plan->P);
    for (int32_t row = 0; row < num_rows; row++) {
        if (is_here(&check, row)) { forget_places(&check, row); }
    }
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
    for (int32_t i = 0; i < 2 * num_rows; i++) {
        int32_t row = i % num_rows;
        if (!is_here(&check, row)) { continue; }
        for (int32_t m = replica->mb_begin; m < replica->mb_end; m++) {
            TRY(i < num_rows ? check_order(&check, row, m) : check_lives(&check, row, m));
        }
    }
    return check_overlaps(&check, arena);
}
