// test_plan_check.c -- every rule of plan.h: a plan that breaks it is refused, with words that name it.

#include "random_plan.h"
#include "test.h"

static uint64_t seed;

typedef struct {
    Plan* plan;
    PlanSample* samples;
    Rng* rng;
} Mutant;

static PlanRank* any_rank(Mutant* mutant) {
    return &mutant->plan->ranks[rng_below(mutant->rng, (uint32_t)(mutant->plan->P * mutant->plan->R))];
}

// A random instruction of this kind on this rank, -1 if there is none.
static int32_t any_instr(Mutant* mutant, const PlanRank* rank, InstrKind kind) {
    int32_t found = -1, num = 0;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        if (rank->instrs[i].kind != kind) { continue; }
        if (rng_below(mutant->rng, (uint32_t)++num) == 0) { found = i; }
    }
    return found;
}

// Of that microbatch and chunk; -1: there is none.
static int32_t find_instr(const PlanRank* rank, InstrKind kind, int32_t chunk, int32_t mb) {
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (instr->kind == kind && instr->chunk == chunk && instr->mb == mb) { return i; }
    }
    return -1;
}

static PlanBuffer* any_buffer(Mutant* mutant, const PlanRank* rank, int32_t not_kind) {
    if (rank->num_buffers == 0) { return NULL; }
    PlanBuffer* buffer = &rank->buffers[rng_below(mutant->rng, (uint32_t)rank->num_buffers)];
    return buffer->kind == not_kind ? NULL : buffer;
}

// Take instruction i out and put it in at place j; buffers keep the instructions they live over.
static void move_instr(PlanRank* rank, int32_t i, int32_t j) {
    PlanInstr moved = rank->instrs[i];
    int32_t step = i < j ? 1 : -1;
    for (int32_t k = i; k != j; k += step) { rank->instrs[k] = rank->instrs[k + step]; }
    rank->instrs[j] = moved;
}

static bool drop_receive(Mutant* mutant, int unused) {
    (void)unused;
    PlanRank* rank = any_rank(mutant);
    static const InstrKind kinds[] = {INSTR_RECV_ACT, INSTR_RECV_GRAD, INSTR_RECV_FACT};
    int32_t i = any_instr(mutant, rank, kinds[rng_below(mutant->rng, 3)]);
    if (i < 0) { return false; }
    move_instr(rank, i, --rank->num_instrs);
    for (int32_t k = 0; k < rank->num_buffers; k++) {
        PlanBuffer* buffer = &rank->buffers[k];
        buffer->instr_begin -= buffer->instr_begin > i;
        buffer->instr_end -= buffer->instr_end > i;
    }
    return true;
}

static bool swap_transfers_at_one_end(Mutant* mutant, int unused) {
    (void)unused;
    PlanRank* rank = any_rank(mutant);
    int32_t previous = -1;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        InstrKind kind = (InstrKind)rank->instrs[i].kind;
        if (kind < INSTR_RECV_ACT || kind >= INSTR_WAIT_ACT) { continue; }
        if (previous >= 0 && rank->instrs[previous].peer == rank->instrs[i].peer &&
            rng_below(mutant->rng, 3) == 0) {
            PlanInstr kept = rank->instrs[previous];
            rank->instrs[previous] = rank->instrs[i];
            rank->instrs[i] = kept;
            return true;
        }
        previous = i;
    }
    return false;
}

// Where a gradient is received: the chunk's, or a share's part.
static PlanBuffer* filled_by(const Mutant* mutant, const PlanRank* rank, const PlanInstr* instr) {
    const Placement* placement = &mutant->plan->placement;
    bool is_part = placement->head == HEAD_BY_VOCABULARY && instr->chunk == placement->num_chunks - 1;
    int32_t chunk = is_part ? placement->num_chunks + instr->peer % mutant->plan->P : instr->chunk;
    BufferKind kind = is_part ? BUFFER_PART : BUFFER_DOUT;
    for (int32_t b = 0; b < rank->num_buffers; b++) {
        PlanBuffer* buffer = &rank->buffers[b];
        if (buffer->kind == kind && buffer->mb == instr->mb && buffer->chunk == chunk) { return buffer; }
    }
    return NULL;
}

// A receive ahead of a send to the same rank that the other end wants first: every list is in order by
// itself, and yet.
static bool receive_before_send(Mutant* mutant, int unused) {
    (void)unused;
    PlanRank* rank = any_rank(mutant);
    for (int32_t i = 1; i < rank->num_instrs; i++) {
        if (rank->instrs[i].kind != INSTR_RECV_GRAD) { continue; }
        for (int32_t k = i - 1; k >= 0; k--) {
            if (rank->instrs[k].kind != INSTR_SEND_ACT || rank->instrs[k].peer != rank->instrs[i].peer) {
                continue;
            }
            PlanBuffer* dout = filled_by(mutant, rank, &rank->instrs[i]);
            dout->instr_begin = k < dout->instr_begin
                                    ? k
                                    : dout->instr_begin;  // and a place of its own at the end of the arena
            rank->own_limit_bytes = 0;
            dout->offset_bytes = rank->arena_bytes;
            rank->arena_bytes +=
                (dout->num_bytes + PLAN_BUFFER_ALIGN - 1) / PLAN_BUFFER_ALIGN * PLAN_BUFFER_ALIGN;
            for (int32_t b = 0; b < rank->num_buffers; b++) {
                PlanBuffer* other = &rank->buffers[b];
                if (other == dout) { continue; }
                other->instr_begin += other->instr_begin >= k && other->instr_begin < i;
                other->instr_end += other->instr_end > k && other->instr_end <= i;
            }
            move_instr(rank, i, k);
            return true;
        }
    }
    return false;
}

static bool swap_jobs(Mutant* mutant, int unused) {
    (void)unused;
    PlanRank* rank = any_rank(mutant);
    int32_t i = any_instr(mutant, rank, INSTR_FWD);
    if (i < 0) { return false; }
    bool is_share = rank->instrs[i].chunk >= mutant->plan->placement.num_chunks;
    InstrKind kind = is_share ? INSTR_WGT : INSTR_BWD;
    int32_t k = find_instr(rank, kind, rank->instrs[i].chunk, rank->instrs[i].mb);
    rank->instrs[i].kind = (uint8_t)kind;
    rank->instrs[k].kind = INSTR_FWD;
    return true;
}

// Jobs of two rows of one microbatch, of which one reads what the other hands over on this rank.
static bool swap_rows(Mutant* mutant, PlanRank* rank, InstrKind kind, int32_t chunk, InstrKind later_kind,
                      int32_t later_chunk) {
    int32_t m = (int32_t)rng_below(mutant->rng, (uint32_t)mutant->plan->M);
    int32_t i = find_instr(rank, kind, chunk, m), k = find_instr(rank, later_kind, later_chunk, m);
    if (i < 0 || k < 0) { return false; }
    PlanInstr first = rank->instrs[i], second = rank->instrs[k];
    rank->instrs[i].kind = second.kind;
    rank->instrs[i].chunk = second.chunk;
    rank->instrs[k].kind = first.kind;
    rank->instrs[k].chunk = first.chunk;
    return true;
}

static bool take_before_handed_over(Mutant* mutant, int unused) {
    (void)unused;
    int32_t k = (int32_t)rng_below(mutant->rng, (uint32_t)mutant->plan->placement.num_chunks);
    return rng_below(mutant->rng, 2) ? swap_rows(mutant, any_rank(mutant), INSTR_FWD, k, INSTR_FWD, k + 1)
                                     : swap_rows(mutant, any_rank(mutant), INSTR_BWD, k + 1, INSTR_BWD, k);
}

static bool share_out_of_turn(Mutant* mutant, int unused) {
    (void)unused;
    const Plan* plan = mutant->plan;
    PlanRank* rank = any_rank(mutant);
    int32_t K = plan->placement.num_chunks, share = K + (int32_t)(rank - plan->ranks) % plan->P;
    bool by_vocabulary = plan->placement.head == HEAD_BY_VOCABULARY;
    switch (rng_below(mutant->rng, by_vocabulary ? 3 : 2)) {
        case 0: return swap_rows(mutant, rank, INSTR_FWD, K - 1, INSTR_FWD, share);
        case 1: return swap_rows(mutant, rank, INSTR_FWD, share, INSTR_BWD, K - 1);
        default: return swap_rows(mutant, rank, INSTR_BWD, K - 1, INSTR_WGT, share);
    }
}

static bool share_taken_over(Mutant* mutant, int unused) {
    (void)unused;
    Placement* placement = &mutant->plan->placement;
    if (placement->head == HEAD_WHOLE || mutant->plan->P < 2) { return false; }
    bool had = placement_has_share(placement, 0);
    placement->head_begin[1] = had ? 0 : 1;
    for (int32_t s = 1; s < mutant->plan->P; s++) {
        if (placement->head_begin[s + 1] < placement->head_begin[s]) { return false; }
    }
    return true;
}

static bool receive_after_use(Mutant* mutant, int unused) {
    (void)unused;
    PlanRank* rank = any_rank(mutant);
    int32_t i = any_instr(mutant, rank, INSTR_RECV_ACT);
    if (i < 0) { return false; }
    move_instr(rank, i, find_instr(rank, INSTR_FWD, rank->instrs[i].chunk, rank->instrs[i].mb));
    return true;
}

static bool wait_before_send(Mutant* mutant, int unused) {
    (void)unused;
    PlanRank* rank = any_rank(mutant);
    int32_t i = any_instr(mutant, rank, INSTR_WAIT_GRAD);
    if (i < 0) { return false; }
    move_instr(rank, i, find_instr(rank, INSTR_SEND_GRAD, rank->instrs[i].chunk, rank->instrs[i].mb));
    return true;
}

static bool overlap_buffers(Mutant* mutant, int unused) {
    (void)unused;
    PlanRank* rank = any_rank(mutant);
    PlanBuffer *a = any_buffer(mutant, rank, -1), *b = any_buffer(mutant, rank, -1);
    if (a == NULL || a == b || a->num_bytes == 0 || b->num_bytes == 0) { return false; }
    if (a->instr_begin >= b->instr_end || b->instr_begin >= a->instr_end) { return false; }
    if (a->num_bytes > b->num_bytes) { return false; }  // stays inside the arena
    a->offset_bytes = b->offset_bytes;
    return true;
}

static bool shorter_message(Mutant* mutant, int unused) {
    (void)unused;
    PlanRank* rank = any_rank(mutant);
    PlanBuffer* buffer = any_buffer(mutant, rank, -1);
    if (buffer == NULL || buffer->kind == BUFFER_ACTS || buffer->kind == BUFFER_FORWARD) { return false; }
    int32_t share = buffer->chunk - mutant->plan->placement.num_chunks;
    bool at_last = buffer->kind == BUFFER_PART || buffer->kind == BUFFER_FACT;
    if (at_last && share == (rank - mutant->plan->ranks) % mutant->plan->P) { return false; }  // never sent
    bool is_kept = buffer->kind == BUFFER_KEPT || buffer->kind == BUFFER_DKEPT;
    if (buffer->kind == BUFFER_SCRATCH || is_kept || buffer->num_bytes == 0) { return false; }
    buffer->num_bytes--;
    return true;
}

// What shares send and get, at the last chunk's rank.
static bool shorter_part(Mutant* mutant, int unused) {
    (void)unused;
    PlanRank* rank = any_rank(mutant);
    BufferKind kind = rng_below(mutant->rng, 2) ? BUFFER_PART : BUFFER_FACT;
    int32_t own =
        mutant->plan->placement.num_chunks + (int32_t)(rank - mutant->plan->ranks) % mutant->plan->P;
    for (int32_t i = 0; i < rank->num_buffers; i++) {
        PlanBuffer* buffer = &rank->buffers[i];
        if (buffer->kind != kind || buffer->chunk == own || buffer->num_bytes == 0) { continue; }
        buffer->num_bytes--;
        return true;
    }
    return false;
}

// One number of the plan is another.
typedef enum {
    CUT_SAMPLE,
    DUPLICATE_SAMPLE,
    OTHER_BATCH,
    WRONG_SHAPE,
    WRONG_PADDING,
    OTHER_REPLICA,
    LAYERS_APART,
    CHUNK_ELSEWHERE,
    CHUNK_NOWHERE,
    HEAD_NOT_WHOLE,
    OTHER_SPLIT,
    BOUND_BEYOND,
    LACKS_SAMPLE
} PlanEdit;

static bool edit_plan(Mutant* mutant, int edit) {
    Plan* plan = mutant->plan;
    Placement* placement = &plan->placement;
    PlanMicrobatch* last = &plan->mbs[plan->M - 1];
    int16_t* stage = &placement->stage_of[rng_below(mutant->rng, (uint32_t)placement->num_chunks)];
    switch ((PlanEdit)edit) {
        case CUT_SAMPLE: plan->segments[0].num_tokens--; return true;
        case DUPLICATE_SAMPLE:
            if (plan->num_segments > 1) { plan->segments[1] = plan->segments[0]; }
            return plan->num_segments > 1;
        case OTHER_BATCH: mutant->samples[plan->segments[0].sample_idx].enc_tokens++; return true;
        case WRONG_SHAPE: last->shape.supervised_tokens++; return true;
        case WRONG_PADDING: plan->sequences[0].enc_tokens--; return true;
        case OTHER_REPLICA: last->replica = plan->R - 1 - last->replica; return plan->R > 1;
        case LAYERS_APART: placement->chunks[placement->num_chunks - 1].begin++; return true;
        case CHUNK_ELSEWHERE: *stage = (int16_t)((*stage + 1) % plan->P); return plan->P > 1;
        case CHUNK_NOWHERE: *stage = (int16_t)(rng_below(mutant->rng, 2) ? plan->P : -1); return true;
        case HEAD_NOT_WHOLE: placement->head_begin[plan->P]--; return placement->head != HEAD_WHOLE;
        case OTHER_SPLIT:
            if (placement->head == HEAD_WHOLE) { return false; }
            placement->head = placement->head == HEAD_BY_ROWS ? HEAD_BY_VOCABULARY : HEAD_BY_ROWS;
            return true;
        case BOUND_BEYOND: plan->bound_ns = plan->makespan_ns + 1; return true;
        default: plan->N++; return true;  // the batch has one sample more
    }
}

// Of an instruction.
typedef enum {
    WRONG_PEER,
    FOREIGN_MB,
    AFTER_STEP,
    REPEATED,
    OF_NO_SHARE,
    NOT_DROPPED,
    OTHER_CHUNK
} InstrEdit;

static bool edit_instr(Mutant* mutant, int edit) {
    static const InstrKind kinds[] = {INSTR_SEND_ACT, INSTR_FWD, INSTR_BWD, INSTR_WGT, INSTR_WGT, INSTR_REC};
    PlanRank* rank = any_rank(mutant);
    int32_t K = mutant->plan->placement.num_chunks, i = -1;
    if (edit != OTHER_CHUNK) { i = any_instr(mutant, rank, kinds[edit]); }
    if (edit == OTHER_CHUNK && rank->num_instrs > 0) {
        i = (int32_t)rng_below(mutant->rng, (uint32_t)rank->num_instrs);
    }
    if (i < 0) { return false; }
    PlanInstr* instr = &rank->instrs[i];
    bool is_share = instr->chunk >= K;
    switch ((InstrEdit)edit) {
        case WRONG_PEER: instr->peer--; return true;
        case FOREIGN_MB: instr->mb = mutant->plan->M; return true;
        case AFTER_STEP: instr->end_ns = mutant->plan->makespan_ns + 1; return true;
        case REPEATED: instr->kind = INSTR_BWD; return !is_share;
        case OF_NO_SHARE: instr->kind = rng_below(mutant->rng, 2) ? INSTR_BWD : INSTR_REC; return is_share;
        case NOT_DROPPED: mutant->plan->mbs[instr->mb].recompute[instr->chunk] = RECOMPUTE_NONE; return true;
        default: instr->chunk = (int16_t)(instr->chunk + (rng_below(mutant->rng, 2) ? 1 : -1)); return true;
    }
}

// Of a buffer, or of all.
typedef enum { ENDS_EARLY, BEGINS_LATE, UNALIGNED, OUTSIDE, DROPPED, OF_OTHER_CHUNK, OVER_LIMIT } BufferEdit;

static bool edit_buffer(Mutant* mutant, int edit) {
    PlanRank* rank = any_rank(mutant);
    PlanBuffer* buffer = any_buffer(mutant, rank, edit <= BEGINS_LATE ? (int32_t)BUFFER_FORWARD : -1);
    if (buffer == NULL) { return false; }
    bool lives_long = buffer->instr_end - buffer->instr_begin > 1;
    switch ((BufferEdit)edit) {
        case ENDS_EARLY: buffer->instr_end--; return lives_long;
        case BEGINS_LATE: buffer->instr_begin++; return lives_long;
        case UNALIGNED: buffer->offset_bytes += 8; return true;
        case OUTSIDE: buffer->offset_bytes = rank->arena_bytes; return buffer->num_bytes > 0;
        case DROPPED: *buffer = rank->buffers[--rank->num_buffers]; return true;
        case OF_OTHER_CHUNK:
            buffer->chunk = (int16_t)(buffer->chunk + (rng_below(mutant->rng, 2) ? 1 : -1));
            return true;
        default:
            rank->own_limit_bytes = 0;
            mutant->plan->memory_limit_bytes = rank->arena_bytes + rank->state_bytes - 1;
            return mutant->plan->memory_limit_bytes > 0;
    }
}

enum { NOT_NEXT, NOT_CONTINUED, OUT_OF_ORDER };

// Of a microbatch with a later piece of a sample.
static bool edit_piece(Mutant* mutant, int edit) {
    Plan* plan = mutant->plan;
    int32_t m = (int32_t)rng_below(mutant->rng, (uint32_t)plan->M);
    PlanSegment* piece = &plan->segments[plan->sequences[plan->mbs[m].sequence_begin].segment_begin];
    if (!plan->mbs[m].continues) { return false; }
    if (edit == NOT_NEXT) { piece->first_token++; }
    if (edit == NOT_CONTINUED) { plan->mbs[m].continues = false; }
    if (edit != OUT_OF_ORDER) { return true; }
    for (int32_t r = 0; r < plan->P * plan->R; r++) {  // it and the piece before it change places on a chunk
        PlanRank* rank = &plan->ranks[r];
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            PlanInstr* instr = &rank->instrs[i];
            int32_t chunk = instr->chunk, before = find_instr(rank, INSTR_FWD, chunk, m - 1);
            if (instr->kind != INSTR_FWD || instr->mb != m || before < 0 || chunk > 0) { continue; }
            instr->mb = m - 1;
            rank->instrs[before].mb = m;
            return true;
        }
    }
    return false;
}

static const struct {
    bool (*mutate)(Mutant* mutant, int edit);
    int edit;
    const char* words;  // "": one of several rules may see it first
} mutations[] = {
    {drop_receive, 0, "is missing"},
    {swap_transfers_at_one_end, 0, ""},
    {receive_before_send, 0, "wait for each other"},
    {swap_jobs, 0, ""},
    {receive_after_use, 0, "before what it needs"},
    {wait_before_send, 0, "before what it needs"},
    {overlap_buffers, 0, "overlap"},
    {shorter_message, 0, "bytes"},
    {shorter_part, 0, "bytes"},
    {take_before_handed_over, 0, "before what it needs"},
    {share_out_of_turn, 0, "before what it needs"},
    {share_taken_over, 0, ""},
    {edit_instr, REPEATED, "a second time"},
    {edit_instr, WRONG_PEER, ""},
    {edit_instr, FOREIGN_MB, "not a microbatch of this replica"},
    {edit_instr, AFTER_STEP, "not within the step"},
    {edit_instr, OF_NO_SHARE, "a share of the head has no such job"},
    {edit_instr, NOT_DROPPED, "not recomputed here"},
    {edit_instr, OTHER_CHUNK, ""},
    {edit_buffer, ENDS_EARLY, ""},
    {edit_buffer, BEGINS_LATE, ""},
    {edit_buffer, UNALIGNED, "not aligned"},
    {edit_buffer, OUTSIDE, "not inside the arena"},
    {edit_buffer, DROPPED, ""},
    {edit_buffer, OF_OTHER_CHUNK, ""},
    {edit_buffer, OVER_LIMIT, "beyond the memory limit"},
    {edit_plan, DUPLICATE_SAMPLE, ""},
    {edit_plan, CUT_SAMPLE, ""},
    {edit_plan, OTHER_BATCH, ""},
    {edit_plan, WRONG_SHAPE, "shape is not that of"},
    {edit_plan, WRONG_PADDING, ""},
    {edit_plan, LAYERS_APART, "not next to those before"},
    {edit_plan, BOUND_BEYOND, "below the bound"},
    {edit_plan, LACKS_SAMPLE, "is in no microbatch"},
    {edit_plan, OTHER_REPLICA, ""},
    {edit_plan, CHUNK_ELSEWHERE, ""},
    {edit_plan, CHUNK_NOWHERE, "lies on stage"},
    {edit_plan, HEAD_NOT_WHOLE, "shares of the head"},
    {edit_plan, OTHER_SPLIT, ""},
    {edit_piece, NOT_NEXT, "is not the next one, or not alone"},
    {edit_piece, NOT_CONTINUED, ""},
    {edit_piece, OUT_OF_ORDER, ""},
};
enum { NUM_MUTATIONS = sizeof mutations / sizeof mutations[0] };

static void* copied(const void* from, size_t num_bytes, Arena* arena) {
    void* to = arena_alloc(arena, num_bytes);
    CHECK(to != NULL);
    return memcpy(to, from, num_bytes);
}

static void copy_plan(Plan* out, const Plan* plan, Arena* arena) {
    *out = *plan;
    out->mbs = copied(plan->mbs, sizeof *plan->mbs * (size_t)plan->M, arena);
    out->sequences = copied(plan->sequences, sizeof *plan->sequences * (size_t)plan->num_sequences, arena);
    out->segments = copied(plan->segments, sizeof *plan->segments * (size_t)plan->num_segments, arena);
    out->ranks = copied(plan->ranks, sizeof *plan->ranks * (size_t)(plan->P * plan->R), arena);
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        PlanRank* rank = &out->ranks[r];
        rank->instrs = copied(rank->instrs, sizeof *rank->instrs * (size_t)rank->num_instrs, arena);
        rank->buffers = copied(rank->buffers, sizeof *rank->buffers * (size_t)rank->num_buffers, arena);
    }
}

// Plans whose receives are all posted as late as can be are the hardest to break; random ones do. A mutation
// of a buffer's life or place may happen to leave a valid plan only where the rule in question does not
// reach.
static void every_mutation_is_caught(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_applied[NUM_MUTATIONS] = {0};
    for (int32_t round = 0; round < test_rounds(240); round++) {
        arena_reset(&arena);
        int32_t P = rng_between(&rng, 1, 4);
        RandomPlan about = {.P = P,
                            .R = rng_between(&rng, 1, 2),
                            .num_layers = 2 * P + 1,
                            .num_samples = 14,
                            .max_tokens = 50,
                            .packed = round % 2,
                            .recompute = round % 3,
                            .placed = round % 4 > 0,
                            .tight = round % 2,
                            .pieces = round % 5 < 2};
        Plan plan;
        PlanSample* samples = random_plan(&plan, &rng, &about, &arena);
        for (int32_t i = 0; i < NUM_MUTATIONS; i++) {
            Plan copy;
            PlanSample own_samples[15] = {{0}};
            memcpy(own_samples, samples, 14 * sizeof *samples);
            copy_plan(&copy, &plan, &arena);
            CHECK_OK(plan_check(&copy, own_samples, 14));
            Mutant mutant = {&copy, own_samples, &rng};
            if (!mutations[i].mutate(&mutant, mutations[i].edit)) { continue; }
            num_applied[i]++;
            Status status = plan_check(&copy, own_samples, copy.N);
            bool caught = status == STATUS_INVALID_PLAN || status == STATUS_DEADLOCK;
            if (caught && strstr(status_message(), mutations[i].words) != NULL) { continue; }
            printf("seed %llu, round %d, mutation %d (\"%s\"): status %d \"%s\"\n", (unsigned long long)seed,
                   round, i, mutations[i].words, status, status_message());
            test_failures++;
        }
    }
    for (int32_t i = 0; i < NUM_MUTATIONS; i++) {
        if (num_applied[i] < test_rounds(5)) {
            printf("mutation %d was applied %d times only\n", i, num_applied[i]);
        }
        CHECK(num_applied[i] >= test_rounds(5));
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_mutation_is_caught);
    return test_end();
}
