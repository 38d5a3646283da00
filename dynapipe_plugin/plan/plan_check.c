// plan_check.c -- every rule of a plan: shapes that the kernels take, samples, one rank, all ranks together.
#include "plan.h"

#include <stdlib.h>
#include <string.h>
#include "problem.h"
#include "schedule.h"
#include "plan_message.h"

// Instructions and buffers of a microbatch in a place (plan_place_of) of the rank that has it: -1 where
// there is none.
typedef struct {
    int32_t at[INSTR_COUNT];
    int32_t buffer[BUFFER_COUNT];  // into PlanRank.buffers
} PlanPlaces;

// The microbatches of one replica, which stand side by side in a plan that plan_check_batches has passed.
typedef struct {
    int32_t mb_begin, mb_end;
    PlanPlaces* places;  // [places * (mb_end - mb_begin)]
} PlanReplicaPlaces;

static inline PlanPlaces* plan_places(const PlanReplicaPlaces* replica, int32_t place, int32_t m) {
    return &replica->places[(int64_t)place * (replica->mb_end - replica->mb_begin) + m - replica->mb_begin];
}

static inline bool plan_shares_head(const Plan* plan) {
    return plan->placement.head != HEAD_WHOLE;
}

static inline bool plan_is_by_vocabulary(const Plan* plan) {
    return plan->placement.head == HEAD_BY_VOCABULARY;
}

// The stage whose rank has the place (plan_place_of); -1: a share that is not there.
static inline int32_t plan_stage_of_place(const Plan* plan, int32_t place) {
    const Placement* placement = &plan->placement;
    int32_t K = placement->num_chunks, is_end = place >= K + plan->P;
    if (!plan_has_row(placement, plan->P, is_end ? place - plan->P : place)) { return -1; }
    return placement_stage_of(placement, is_end ? K - 1 : place);
}

// Where a rank keeps the receive (or send) of a message.
static int32_t recv_place(const Plan* plan, PlanMessage message) {
    const Placement* placement = &plan->placement;
    return plan_place_of(placement, plan->P, plan_recv_kind(message.kind),
                         plan_message_reader(placement, message).chunk,
                         plan_message_maker(placement, message).stage);
}

static int32_t send_place(const Plan* plan, PlanMessage message) {
    const Placement* placement = &plan->placement;
    return plan_place_of(placement, plan->P, plan_send_kind(message.kind),
                         plan_message_maker(placement, message).chunk,
                         plan_message_reader(placement, message).stage);
}

static bool is_multiple(int64_t num_tokens, int32_t multiple) {
    return multiple <= 1 || num_tokens % multiple == 0;
}

// One window's side among those of its microbatch.
static bool side_is_padded(const ShapeRules* rules, int32_t num_tokens, int32_t first_tokens,
                           int64_t num_seqs) {
    return num_tokens == first_tokens && is_multiple(num_tokens, rules->seq_multiple) &&
           is_multiple(num_tokens * num_seqs, rules->tokens_multiple);
}

static Status check_microbatch(const Plan* plan, const ShapeRules* rules, int32_t m) {
    const PlanMicrobatch* mb = &plan->mbs[m];
    if (!shape_rules_allow(rules, &mb->shape)) {
        char words[SHAPE_WORDS];
        shape_rules_say(words, rules, &mb->shape);
        return FAIL(STATUS_INVALID_PLAN, "microbatch %d: %s", m, words);
    }
    const PlanSequence* first = &plan->sequences[mb->sequence_begin];
    for (int32_t i = mb->sequence_begin; i < mb->sequence_end && rules->padded; i++) {
        const PlanSequence* seq = &plan->sequences[i];
        bool is_whole = seq->segment_end - seq->segment_begin == 1;
        if (!is_whole || !side_is_padded(rules, seq->enc_tokens, first->enc_tokens, mb->shape.num_seqs) ||
            !side_is_padded(rules, seq->dec_tokens, first->dec_tokens, mb->shape.num_seqs)) {
            return FAIL(STATUS_INVALID_PLAN,
                        "microbatch %d, sequence %d: %d + %d tokens, one of %lld, are not what the kernels "
                        "take",
                        m, i, seq->enc_tokens, seq->dec_tokens, (long long)mb->shape.num_seqs);
        }
    }
    return STATUS_OK;
}

Status plan_check_shapes(const Plan* plan, const ShapeRules* rules) {
    int32_t last = plan->placement.num_chunks - 1;
    if (!stage_may_have(&plan->placement.chunks[last], last, last + 1, rules->head_has_layer)) {
        return FAIL(STATUS_INVALID_PLAN, "plan: the last chunk is the head alone, which needs a layer");
    }
    for (int32_t m = 0; m < plan->M; m++) { TRY(check_microbatch(plan, rules, m)); }
    return STATUS_OK;
}

// --- all ranks together ------------------------------------------------------------------------------

// Messages agree at both ends, and the lists run to their end under the hardest rules a
// transport may have: a send is done only together with its receive (no buffers in between), and each rank's
// transfers happen one after the other in list order (NCCL on one stream).

typedef struct {
    int32_t next;      // instruction that the rank has reached
    int32_t posted;    // transfers that it has started: ops[0 .. posted)
    int32_t done;      // of these, completed
    int32_t* ops;      // instruction indices of started transfers
    uint8_t* through;  // [num_instrs] is this transfer completed?
} RankState;

// --- messages have one size at both ends ------------------------------------------------------------------

// Buffers of one microbatch in two places, where both are there: as large, or (by rows) the second as most.
static Status check_pair(const Plan* plan, const PlanReplicaPlaces* replica, int32_t m, int32_t place,
                         BufferKind kind, int32_t other_place, BufferKind other_kind, bool by_rows) {
    int32_t first_rank = plan->mbs[m].replica * plan->P;
    int32_t rank = first_rank + plan_stage_of_place(plan, place);
    int32_t other_rank = first_rank + plan_stage_of_place(plan, other_place);
    int32_t i = plan_places(replica, place, m)->buffer[kind];
    int32_t k = plan_places(replica, other_place, m)->buffer[other_kind];
    if (i < 0 || k < 0) { return STATUS_OK; }
    const PlanBuffer *one = &plan->ranks[rank].buffers[i], *other = &plan->ranks[other_rank].buffers[k];
    if (one->num_bytes == other->num_bytes || (by_rows && other->num_bytes < one->num_bytes)) {
        return STATUS_OK;
    }
    return FAIL(STATUS_INVALID_PLAN,
                "ranks %d and %d, microbatch %d: %s of chunk %d has %lld bytes, %s of chunk %d %lld", rank,
                other_rank, m, plan_buffer_words[kind], one->chunk, (long long)one->num_bytes,
                plan_buffer_words[other_kind], other->chunk, (long long)other->num_bytes);
}

static Status check_bytes(const Plan* plan, const PlanReplicaPlaces* replica, int32_t m) {
    const int32_t K = plan->placement.num_chunks, last = K - 1;
    bool by_rows = !plan_is_by_vocabulary(plan);
    for (int32_t k = 0; k < last; k++) {
        TRY(check_pair(plan, replica, m, k, BUFFER_OUT, k + 1, BUFFER_IN, false));
        TRY(check_pair(plan, replica, m, k, BUFFER_DOUT, k + 1, BUFFER_IN, false));
        TRY(check_pair(plan, replica, m, k, BUFFER_DOUT, k + 1, BUFFER_DIN, false));
    }
    if (!plan_shares_head(plan)) { return STATUS_OK; }
    TRY(check_pair(plan, replica, m, last, BUFFER_OUT, last, BUFFER_DOUT, false));
    for (int32_t row = K; row < K + plan->P; row++) {
        if (plan_stage_of_place(plan, row) < 0) { continue; }
        TRY(check_pair(plan, replica, m, last, BUFFER_OUT, row, BUFFER_IN, by_rows));
        if (by_rows) {
            TRY(check_pair(plan, replica, m, row, BUFFER_IN, row, BUFFER_DIN, false));
            continue;
        }
        TRY(check_pair(plan, replica, m, row + plan->P, BUFFER_PART, row, BUFFER_DIN, false));
        TRY(check_pair(plan, replica, m, row + plan->P, BUFFER_FACT, row, BUFFER_FACT, false));
    }
    return STATUS_OK;
}

// --- the lists run ----------------------------------------------------------------------------------------

static bool is_through(const RankState* state, int32_t instr) {
    return instr < 0 || state->through[instr];
}

static bool job_can_run(const Plan* plan, const PlanReplicaPlaces* replica, const RankState* state,
                        const PlanInstr* instr) {
    JobKind kind = instr->kind == INSTR_REC ? JOB_F : plan_instr_job((InstrKind)instr->kind);
    PlanMessage reads[PLAN_MAX_MESSAGES];
    int32_t num = plan_job_reads(reads, &plan->placement, plan->P, kind, instr->chunk);
    for (int32_t i = 0; i < num; i++) {
        if (!plan_message_is_sent(&plan->placement, reads[i])) { continue; }
        const int32_t* at = plan_places(replica, recv_place(plan, reads[i]), instr->mb)->at;
        if (!is_through(state, at[plan_recv_kind(reads[i].kind)])) { return false; }
    }
    return true;
}

// Run one rank until it must wait. True if it advanced.
static bool advance(const Plan* plan, const PlanReplicaPlaces* replica, RankState* state, int32_t rank) {
    const PlanRank* list = &plan->ranks[rank];
    int32_t before = state->next;
    for (; state->next < list->num_instrs; state->next++) {
        const PlanInstr* instr = &list->instrs[state->next];
        InstrKind kind = (InstrKind)instr->kind;
        int32_t row = plan_place_of(&plan->placement, plan->P, kind, instr->chunk, instr->peer % plan->P);
        const int32_t* at = plan_places(replica, row, instr->mb)->at;
        bool can_run = true;
        if (plan_instr_is_job(kind)) {
            can_run = job_can_run(plan, replica, state, instr);
        } else if (plan_instr_is_wait(kind)) {
            can_run = is_through(state, at[plan_send_kind(plan_instr_message(kind))]);
        } else {
            state->ops[state->posted++] = state->next;
        }
        if (!can_run) { break; }
    }
    return state->next > before;
}

// The first incomplete transfer of a rank: is it also the first of the rank at its other end?
static bool meet(const Plan* plan, RankState* states, int32_t rank) {
    RankState* a = &states[rank];
    if (a->done == a->posted) { return false; }
    const PlanInstr* mine = &plan->ranks[rank].instrs[a->ops[a->done]];
    RankState* b = &states[mine->peer];
    if (b->done == b->posted) { return false; }
    const PlanInstr* theirs = &plan->ranks[mine->peer].instrs[b->ops[b->done]];
    PlanMessage my_message, their_message;
    bool meets = theirs->peer == rank && theirs->mb == mine->mb &&
                 plan_instr_is_send(theirs->kind) != plan_instr_is_send(mine->kind) &&
                 plan_message_of(&my_message, &plan->placement, plan->P, mine) &&
                 plan_message_of(&their_message, &plan->placement, plan->P, theirs) &&
                 my_message.kind == their_message.kind && my_message.row == their_message.row;
    if (!meets) { return false; }
    a->through[a->ops[a->done++]] = 1;
    b->through[b->ops[b->done++]] = 1;
    return true;
}

static Status report(const Plan* plan, const RankState* states, int32_t first_rank) {
    char text[700] = "";
    int32_t used = 0;
    for (int32_t r = first_rank; r < first_rank + plan->P; r++) {
        const RankState* state = &states[r];
        const PlanRank* list = &plan->ranks[r];
        int32_t i = state->done < state->posted ? state->ops[state->done] : state->next;
        if (i >= list->num_instrs || used >= (int32_t)sizeof text) { continue; }
        used += snprintf(text + used, sizeof text - (size_t)used, "%srank %d at %s chunk %d mb %d",
                         used > 0 ? ", " : "", r, plan_instr_words[list->instrs[i].kind],
                         list->instrs[i].chunk, list->instrs[i].mb);
    }
    return FAIL(STATUS_DEADLOCK, "plan: transfers wait for each other: %s", text);
}

static Status run_replica(const Plan* plan, const PlanReplicaPlaces* replica, RankState* states,
                          int32_t first_rank) {
    for (bool moved = true; moved;) {
        moved = false;
        for (int32_t r = first_rank; r < first_rank + plan->P; r++) {
            moved |= advance(plan, replica, &states[r], r);
            while (meet(plan, states, r)) { moved = true; }
        }
    }
    for (int32_t r = first_rank; r < first_rank + plan->P; r++) {
        if (states[r].next < plan->ranks[r].num_instrs || states[r].done < states[r].posted) {
            return report(plan, states, first_rank);
        }
    }
    return STATUS_OK;
}

static Status plan_check_comm(const Plan* plan, const PlanReplicaPlaces* replicas, Arena* arena) {
    int32_t num_ranks = plan->P * plan->R;
    RankState* states;
    ARENA_TRY_NEW(states, arena, RankState, num_ranks);
    for (int32_t r = 0; r < num_ranks; r++) {
        ARENA_TRY_NEW(states[r].ops, arena, int32_t, plan->ranks[r].num_instrs);
        ARENA_TRY_NEW(states[r].through, arena, uint8_t, plan->ranks[r].num_instrs);
    }
    for (int32_t m = 0; m < plan->M; m++) {
        int32_t r = plan->mbs[m].replica;
        if (!plan_has_replica(plan, r)) { continue; }
        TRY(check_bytes(plan, &replicas[r], m));
    }
    for (int32_t r = 0; r < plan->R; r++) {
        if (plan_has_replica(plan, r)) { TRY(run_replica(plan, &replicas[r], states, r * plan->P)); }
    }
    return STATUS_OK;
}

// --- one rank ----------------------------------------------------------------------------------------

// The rules of one rank's list: every job and transfer once, in an order that can run,
// every buffer alive while it is used, and no two overlapping at one time.

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

// --- instructions ------------------------------------------------------------------------------------

// The stage at the other end of a transfer of this rank; -1: there is none.
static int32_t far_stage(const Check* check, const PlanInstr* instr) {
    const Placement* placement = &check->plan->placement;
    PlanMessage message;
    if (!plan_message_of(&message, placement, check->plan->P, instr)) { return -1; }
    int32_t from = plan_message_maker(placement, message).stage;
    int32_t to = plan_message_reader(placement, message).stage;
    bool receives = plan_instr_is_recv(instr->kind);
    if (from == to || check->s != (receives ? to : from)) { return -1; }
    return receives ? from : to;
}

static Status check_names(const Check* check, int32_t i) {
    const PlanInstr* instr = &check->list->instrs[i];
    int32_t first_rank = check->rank - check->s;
    if (instr->kind >= INSTR_COUNT) { return wrong_instr(check, i, "no such instruction"); }
    if (!runs_here(check, instr->mb)) { return wrong_instr(check, i, "not a microbatch of this replica"); }
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

// --- order of instructions --------------------------------------------------------------------------------

// An instruction of a place, and of one microbatch.
typedef struct {
    int32_t place;
    InstrKind kind;
} Instr;

// `before` must be there, and come before `after` if that is there.
static Status check_before(const Check* check, int32_t m, Instr before, Instr after) {
    int32_t i = places_of(check, before.place, m)->at[before.kind];
    int32_t k = places_of(check, after.place, m)->at[after.kind];
    if (i < 0) {
        return FAIL(STATUS_INVALID_PLAN, "rank %d: %s of chunk %d, microbatch %d is missing", check->rank,
                    plan_instr_words[before.kind], before.place, m);
    }
    return k < 0 || i <= k ? STATUS_OK : wrong_instr(check, k, "before what it needs");
}

// The messages that the job waits for come before it, those it makes after it.
static Status check_job_order(const Check* check, int32_t row, int32_t m, JobKind kind) {
    const Plan* plan = check->plan;
    const Instr job = {row, plan_job_instr((uint8_t)kind)};
    PlanMessage messages[PLAN_MAX_MESSAGES];
    int32_t num = plan_job_reads(messages, &plan->placement, plan->P, kind, row);
    for (int32_t i = 0; i < num; i++) {
        PlanJobAt maker = plan_message_maker(&plan->placement, messages[i]);
        Instr made = {maker.chunk, plan_job_instr(maker.kind)};
        Instr received = {recv_place(plan, messages[i]), plan_recv_kind(messages[i].kind)};
        TRY(check_before(check, m, maker.stage == check->s ? made : received, job));
    }
    num = plan_job_makes(messages, &plan->placement, plan->P, kind, row);
    for (int32_t i = 0; i < num; i++) {
        if (!plan_message_is_sent(&plan->placement, messages[i])) { continue; }
        int32_t place = send_place(plan, messages[i]);
        Instr sent = {place, plan_send_kind(messages[i].kind)};
        Instr waited = {place, plan_wait_kind(messages[i].kind)};
        TRY(check_before(check, m, job, sent));
        TRY(check_before(check, m, sent, waited));
        TRY(check_before(check, m, waited, waited));
    }
    return STATUS_OK;
}

// A chunk or share.
static Status check_order(const Check* check, int32_t row, int32_t m) {
    bool is_share = row >= check->plan->placement.num_chunks;
    const int32_t* at = places_of(check, row, m)->at;
    const Instr fwd = {row, INSTR_FWD}, rec = {row, INSTR_REC}, bwd = {row, INSTR_BWD},
                wgt = {row, INSTR_WGT};
    const Instr last = is_share ? wgt : bwd;
    TRY(check_before(check, m, fwd, last));
    TRY(check_before(check, m, last, is_share ? last : wgt));
    if (at[INSTR_REC] >= 0) {
        TRY(check_before(check, m, fwd, rec));
        TRY(check_before(check, m, rec, bwd));
        if (check->plan->mbs[m].recompute[row] == RECOMPUTE_NONE) {
            return wrong_instr(check, at[INSTR_REC], "this microbatch is not recomputed here");
        }
    }
    if (!is_share && check->plan->mbs[m].continues) {
        const int32_t* before = places_of(check, row, m - 1)->at;
        if (before[INSTR_FWD] > at[INSTR_FWD] || before[INSTR_BWD] < at[INSTR_BWD]) {
            return wrong_instr(check, at[INSTR_FWD],
                               "before what it needs: of pieces fwd ascends, bwd descends");
        }
    }
    TRY(check_job_order(check, row, m, JOB_F));
    if (!is_share) { return check_job_order(check, row, m, JOB_B); }
    return check_job_order(check, row, m, JOB_W);
}

// --- buffers -----------------------------------------------------------------------------------------

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
                return wrong_buffer(check, i, "only one, of no microbatch");
            }
            if (buffer->instr_begin != 0 || buffer->instr_end != list->num_instrs) {
                return wrong_buffer(check, i, "must live during the whole step");
            }
            continue;
        }
        if (!runs_here(check, buffer->mb)) {
            return wrong_buffer(check, i, "not a microbatch of this replica");
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

// The use of the last chunk's output and its gradient where the head is shared.
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
    if (!check->plan->mbs[m].continues && plan_goes_on(check->plan, m)) {
        int32_t end = m;
        while (plan_goes_on(check->plan, end)) { end++; }
        lives[BUFFER_KEPT] = (Life){true, at[INSTR_FWD], at[INSTR_BWD]};
        lives[BUFFER_DKEPT] = (Life){true, places_of(check, k, end)->at[INSTR_BWD], at[INSTR_BWD]};
    }
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
            return FAIL(STATUS_INVALID_PLAN, "rank %d: buffer %s of chunk %d, microbatch %d is %s",
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

// --- places ------------------------------------------------------------------------------------------

static int compare_begins(const void* a, const void* b) {
    const PlanBuffer *x = *(const PlanBuffer*const*)a, *y = *(const PlanBuffer*const*)b;
    return (x->instr_begin > y->instr_begin) - (x->instr_begin < y->instr_begin);
}

// Along the list: each buffer is compared with those alive when it begins.
static Status check_overlaps(const Check* check, Arena* arena) {
    const PlanRank* list = check->list;
    const PlanBuffer **buffers, **alive;
    int32_t num = 0, num_alive = 0;
    ARENA_TRY_NEW(buffers, arena, const PlanBuffer*, list->num_buffers);
    ARENA_TRY_NEW(alive, arena, const PlanBuffer*, list->num_buffers);
    for (int32_t i = 0; i < list->num_buffers; i++) {
        if (list->buffers[i].num_bytes > 0) { buffers[num++] = &list->buffers[i]; }
    }
    qsort(buffers, (size_t)num, sizeof *buffers, compare_begins);
    for (int32_t i = 0; i < num; i++) {
        const PlanBuffer* a = buffers[i];
        int32_t num_kept = 0;
        for (int32_t k = 0; k < num_alive; k++) {
            const PlanBuffer* b = alive[k];
            if (b->instr_end <= a->instr_begin) { continue; }
            alive[num_kept++] = b;
            if (a->offset_bytes >= b->offset_bytes + b->num_bytes ||
                b->offset_bytes >= a->offset_bytes + a->num_bytes) {
                continue;
            }
            return FAIL(STATUS_INVALID_PLAN,
                        "rank %d: buffers %d (%s chunk %d mb %d) and %d (%s chunk %d mb %d) overlap",
                        check->rank, (int)(b - list->buffers), plan_buffer_words[b->kind], b->chunk, b->mb,
                        (int)(a - list->buffers), plan_buffer_words[a->kind], a->chunk, a->mb);
        }
        alive[num_kept] = a;
        num_alive = num_kept + 1;
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

static Status plan_check_rank(const Plan* plan, int32_t rank, PlanReplicaPlaces* replica, Arena* arena) {
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
    for (int32_t row = 0; row < num_rows; row++) {
        if (!is_row(&check, row) || !is_here(&check, row)) { continue; }
        for (int32_t m = replica->mb_begin; m < replica->mb_end; m++) { TRY(check_order(&check, row, m)); }
    }
    for (int32_t row = 0; row < num_rows; row++) {
        if (!is_here(&check, row)) { continue; }
        for (int32_t m = replica->mb_begin; m < replica->mb_end; m++) { TRY(check_lives(&check, row, m)); }
    }
    return check_overlaps(&check, arena);
}

// --- samples and microbatches -----------------------------------------------------------------------

static Status check_shares(const Plan* plan) {
    const Placement* placement = &plan->placement;
    if (placement->head >= HEAD_COUNT) {
        return FAIL(STATUS_INVALID_PLAN, "plan: no such split of the head");
    }
    if (placement->head == HEAD_WHOLE) { return STATUS_OK; }
    bool is_all = placement->head_begin[0] == 0 && placement->head_begin[plan->P] == HEAD_UNITS;
    for (int32_t s = 0; s < plan->P && is_all; s++) {
        is_all = placement->head_begin[s] <= placement->head_begin[s + 1];
    }
    return is_all ? STATUS_OK
                  : FAIL(STATUS_INVALID_PLAN, "plan: shares of the head are not %d units, stage by stage",
                         (int)HEAD_UNITS);
}

static Status check_placement(const Plan* plan) {
    const Placement* placement = &plan->placement;
    int32_t K = placement->num_chunks;
    bool is_used[PLAN_MAX_STAGES] = {false};
    if (K < 1 || K > PLAN_MAX_CHUNKS) {
        return FAIL(STATUS_INVALID_PLAN, "plan: %d chunks are out of range", K);
    }
    for (int32_t k = 0; k < K; k++) {
        const BlockRange* blocks = &placement->chunks[k];
        if (blocks->begin != (k > 0 ? placement->chunks[k - 1].end : 0) ||
            !stage_may_have(blocks, k, K, false)) {
            return FAIL(STATUS_INVALID_PLAN,
                        "plan: chunk %d has blocks %d ... %d, not next to those before it", k, blocks->begin,
                        blocks->end);
        }
        if (placement->stage_of[k] < 0 || placement->stage_of[k] >= plan->P) {
            return FAIL(STATUS_INVALID_PLAN, "plan: chunk %d lies on stage %d, there are %d", k,
                        placement->stage_of[k], plan->P);
        }
        is_used[placement->stage_of[k]] = true;
    }
    if (placement->chunks[K - 1].end != plan_chain_num_blocks(&plan->chain)) {
        return FAIL(STATUS_INVALID_PLAN, "plan: chunks have %d blocks, the model %d",
                    placement->chunks[K - 1].end, plan_chain_num_blocks(&plan->chain));
    }
    TRY(check_shares(plan));
    for (int32_t s = 0; s < plan->P; s++) {
        if (is_used[s] || placement_has_share(placement, s)) { continue; }
        return FAIL(STATUS_INVALID_PLAN, "plan: stage %d has no chunk and no share of the head", s);
    }
    return STATUS_OK;
}

static Status check_head(const Plan* plan, int32_t num_samples) {
    if (plan->P < 1 || plan->P > PLAN_MAX_STAGES || plan->R < 1 || plan->R > PLAN_MAX_REPLICAS) {
        return FAIL(STATUS_INVALID_PLAN, "plan: %d stages x %d replicas is out of range", plan->P, plan->R);
    }
    if (plan->M < 0 || plan->num_sequences < 0 || plan->num_segments < 0 || plan->N != num_samples) {
        return FAIL(STATUS_INVALID_PLAN, "plan: made for %d samples, the batch has %d", plan->N, num_samples);
    }
    TRY(check_placement(plan));
    if (plan->bound_ns < 0 || plan->makespan_ns < plan->bound_ns) {
        return FAIL(STATUS_INVALID_PLAN, "plan: makespan %lld ns is below the bound of %lld ns",
                    (long long)plan->makespan_ns, (long long)plan->bound_ns);
    }
    return STATUS_OK;
}

// The first sequence of a microbatch with a piece: it continues that of the microbatch before, and only the
// last one has other samples beside it.
static Status check_piece(const Plan* plan, int32_t m, const PlanSample* samples, bool* seen,
                          MbShape* shape) {
    const PlanMicrobatch* mb = &plan->mbs[m];
    const PlanSequence* seq = &plan->sequences[mb->sequence_begin];
    const PlanSegment piece = plan->segments[seq->segment_begin];
    bool is_known = piece.sample_idx >= 0 && piece.sample_idx < plan->N && piece.first_token >= 0 &&
                    piece.num_tokens > 0 && seq->segment_end == seq->segment_begin + 1;
    const PlanSample* sample = is_known ? &samples[piece.sample_idx] : NULL;
    const MbShape before = *shape;
    int32_t begin = 0;
    if (is_known && mb->continues) {
        const PlanSequence* last = &plan->sequences[mb[-1].sequence_begin];
        const PlanSegment other = plan->segments[last->segment_begin];
        begin = other.sample_idx == piece.sample_idx ? other.first_token + other.num_tokens : -1;
    }
    bool is_next = is_known && piece.first_token == begin && mb->layout == LAYOUT_RAGGED &&
                   piece.num_tokens <= plan_sample_tokens(sample) - begin &&
                   (!mb->continues || mb->replica == mb[-1].replica) &&
                   seen[piece.sample_idx] == mb->continues;
    bool is_end = is_next && begin + piece.num_tokens == plan_sample_tokens(sample);
    if (is_next) { mb_shape_add_piece(shape, sample, begin, begin + piece.num_tokens); }
    if (!is_next || is_end == plan_goes_on(plan, m) ||
        (!is_end && mb->sequence_end - mb->sequence_begin > 1) ||
        shape->enc_tokens - before.enc_tokens != seq->enc_tokens ||
        shape->dec_tokens - before.dec_tokens != seq->dec_tokens) {
        return FAIL(STATUS_INVALID_PLAN,
                    "microbatch %d: a piece of sample %d, tokens %d and %d more, is not the next one, or not "
                    "alone",
                    m, piece.sample_idx, piece.first_token, piece.num_tokens);
    }
    seen[piece.sample_idx] = true;
    return STATUS_OK;
}

// Padding of one sequence, as the layout of its microbatch allows.
static Status check_sequence(const Plan* plan, int32_t m, int32_t i, const PlanSample* samples, bool* seen,
                             MbShape* shape) {
    const PlanSequence* seq = &plan->sequences[i];
    const PlanMicrobatch* mb = &plan->mbs[m];
    int64_t enc_tokens = 0, dec_tokens = 0;
    for (int32_t k = seq->segment_begin; k < seq->segment_end; k++) {
        PlanSegment segment = plan->segments[k];
        if (segment.sample_idx < 0 || segment.sample_idx >= plan->N) {
            return FAIL(STATUS_INVALID_PLAN, "microbatch %d, sequence %d: there is no sample %d", m, i,
                        segment.sample_idx);
        }
        if (seen[segment.sample_idx]) {
            return FAIL(STATUS_INVALID_PLAN, "microbatch %d, sequence %d: sample %d is there twice", m, i,
                        segment.sample_idx);
        }
        seen[segment.sample_idx] = true;
        const PlanSample* sample = &samples[segment.sample_idx];
        if (segment.first_token != 0 || segment.num_tokens != sample->enc_tokens) {
            return FAIL(STATUS_INVALID_PLAN, "microbatch %d, sequence %d: sample %d is not whole", m, i,
                        segment.sample_idx);
        }
        enc_tokens += sample->enc_tokens;
        dec_tokens += sample->dec_tokens;
        shape->supervised_tokens += sample->supervised_tokens;
    }
    int32_t num_segments = seq->segment_end - seq->segment_begin;
    bool padded = mb->layout == LAYOUT_PADDED, packed = mb->layout == LAYOUT_PACKED;
    const PlanSequence* first = &plan->sequences[mb->sequence_begin];
    bool is_exact = seq->enc_tokens == enc_tokens && seq->dec_tokens == dec_tokens;
    bool is_longer = seq->enc_tokens >= enc_tokens && seq->dec_tokens >= dec_tokens;
    bool as_first = seq->enc_tokens == first->enc_tokens && seq->dec_tokens == first->dec_tokens;
    bool lengths_ok = packed ? is_longer : padded ? is_longer && as_first : is_exact;
    if (num_segments < 1 || (num_segments > 1 && !packed) || !lengths_ok) {
        return FAIL(STATUS_INVALID_PLAN,
                    "microbatch %d, sequence %d: %d + %d tokens for %d samples of %lld + %lld is not %s", m,
                    i, seq->enc_tokens, seq->dec_tokens, num_segments, (long long)enc_tokens,
                    (long long)dec_tokens, plan_layout_words[mb->layout]);
    }
    mb_shape_add(shape, seq->enc_tokens, seq->dec_tokens, 0);
    return STATUS_OK;
}

static Status plan_check_batches(const Plan* plan, const PlanSample* samples, int32_t num_samples,
                                 Arena* arena) {
    TRY(check_head(plan, num_samples));
    bool* seen;
    ARENA_TRY_NEW(seen, arena, bool, num_samples);
    int32_t next_seq = 0, next_segment = 0, replica = 0;
    for (int32_t m = 0; m < plan->M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[m];
        if (mb->replica < replica || mb->replica >= plan->R || mb->layout >= LAYOUT_COUNT) {
            return FAIL(STATUS_INVALID_PLAN, "microbatch %d: replica %d, layout %d: out of order or range", m,
                        mb->replica, mb->layout);
        }
        replica = mb->replica;
        for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
            if (mb->recompute[k] >= RECOMPUTE_COUNT) {
                return FAIL(STATUS_INVALID_PLAN, "microbatch %d, chunk %d: no such recompute mode", m, k);
            }
        }
        if (mb->sequence_begin != next_seq || mb->sequence_end <= next_seq ||
            mb->sequence_end > plan->num_sequences) {
            return FAIL(STATUS_INVALID_PLAN, "microbatch %d: sequences %d ... %d are not the next ones", m,
                        mb->sequence_begin, mb->sequence_end);
        }
        MbShape shape = {0};
        for (; next_seq < mb->sequence_end; next_seq++) {
            const PlanSequence* seq = &plan->sequences[next_seq];
            if (seq->segment_begin != next_segment || seq->segment_end < next_segment ||
                seq->segment_end > plan->num_segments) {
                return FAIL(STATUS_INVALID_PLAN, "microbatch %d, sequence %d: segments are not the next ones",
                            m, next_seq);
            }
            next_segment = seq->segment_end;
            TRY(next_seq == mb->sequence_begin && plan_has_piece(plan, m)
                    ? check_piece(plan, m, samples, seen, &shape)
                    : check_sequence(plan, m, next_seq, samples, seen, &shape));
        }
        if (memcmp(&shape, &mb->shape, sizeof shape) != 0) {  // int64_t only, no padding
            return FAIL(STATUS_INVALID_PLAN, "microbatch %d: its shape is not that of its sequences", m);
        }
    }
    if (next_seq != plan->num_sequences || next_segment != plan->num_segments) {
        return FAIL(STATUS_INVALID_PLAN, "plan: sequences or segments belong to no microbatch");
    }
    for (int32_t i = 0; i < num_samples; i++) {
        if (!seen[i]) { return FAIL(STATUS_INVALID_PLAN, "plan: sample %d is in no microbatch", i); }
    }
    return STATUS_OK;
}

// Which microbatches each replica has, and room for where their instructions are.
static Status replicas_init(PlanReplicaPlaces** out, const Plan* plan, Arena* arena) {
    PlanReplicaPlaces* replicas;
    ARENA_TRY_NEW(replicas, arena, PlanReplicaPlaces, plan->R);
    for (int32_t r = 0, m = 0; r < plan->R; r++) {
        replicas[r].mb_begin = m;
        while (m < plan->M && plan->mbs[m].replica == r) { m++; }
        replicas[r].mb_end = m;
        int64_t num_mbs = plan_has_replica(plan, r) ? m - replicas[r].mb_begin : 0;
        ARENA_TRY_NEW(replicas[r].places, arena, PlanPlaces,
                      plan_num_places(&plan->placement, plan->P) * num_mbs);
    }
    *out = replicas;
    return STATUS_OK;
}

static Status check_all(const Plan* plan, const PlanSample* samples, int32_t num_samples, Arena* arena,
                        Arena* scratch) {
    PlanReplicaPlaces* replicas = NULL;
    TRY(plan_check_batches(plan, samples, num_samples, arena));
    TRY(replicas_init(&replicas, plan, arena));
    for (int32_t rank = 0; rank < plan->P * plan->R; rank++) {
        if (!plan_has_replica(plan, rank / plan->P)) { continue; }
        arena_reset(scratch);
        TRY(plan_check_rank(plan, rank, &replicas[rank / plan->P], scratch));
    }
    return plan_check_comm(plan, replicas, arena);
}

Status plan_check(const Plan* plan, const PlanSample* samples, int32_t num_samples) {
    Arena arena = {0}, scratch = {0};
    Status status = check_all(plan, samples, num_samples, &arena, &scratch);
    arena_free(&arena);
    arena_free(&scratch);
    return status;
}
