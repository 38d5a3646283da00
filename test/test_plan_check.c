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

// Of that micro-batch and chunk; -1: there is none.
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

static bool drop_receive(Mutant* mutant) {
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

static bool swap_transfers_at_one_end(Mutant* mutant) {
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
static bool receive_before_send(Mutant* mutant) {
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

static bool swap_jobs(Mutant* mutant) {
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

// Jobs of two rows of one micro-batch, of which one reads what the other hands over on this rank.
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

static bool take_before_handed_over(Mutant* mutant) {
    int32_t k = (int32_t)rng_below(mutant->rng, (uint32_t)mutant->plan->placement.num_chunks);
    return rng_below(mutant->rng, 2) ? swap_rows(mutant, any_rank(mutant), INSTR_FWD, k, INSTR_FWD, k + 1)
                                     : swap_rows(mutant, any_rank(mutant), INSTR_BWD, k + 1, INSTR_BWD, k);
}

static bool share_out_of_turn(Mutant* mutant) {
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

static bool share_goes_back(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    int32_t i = any_instr(mutant, rank, INSTR_WGT);
    if (i < 0 || rank->instrs[i].chunk < mutant->plan->placement.num_chunks) { return false; }
    rank->instrs[i].kind = rng_below(mutant->rng, 2) ? INSTR_BWD : INSTR_REC;
    return true;
}

static bool other_chunk(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    if (rank->num_instrs == 0) { return false; }
    PlanInstr* instr = &rank->instrs[rng_below(mutant->rng, (uint32_t)rank->num_instrs)];
    instr->chunk = (int16_t)(instr->chunk + (rng_below(mutant->rng, 2) ? 1 : -1));
    return true;
}

static bool buffer_of_other_chunk(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    if (rank->num_buffers == 0) { return false; }
    PlanBuffer* buffer = &rank->buffers[rng_below(mutant->rng, (uint32_t)rank->num_buffers)];
    buffer->chunk = (int16_t)(buffer->chunk + (rng_below(mutant->rng, 2) ? 1 : -1));
    return true;
}

static bool chunk_elsewhere(Mutant* mutant) {
    const Plan* plan = mutant->plan;
    int32_t k = (int32_t)rng_below(mutant->rng, (uint32_t)plan->placement.num_chunks);
    int16_t* stage = &mutant->plan->placement.stage_of[k];
    *stage = (int16_t)((*stage + 1) % plan->P);
    return plan->P > 1;
}

static bool chunk_nowhere(Mutant* mutant) {
    mutant->plan->placement.stage_of[0] = (int16_t)(rng_below(mutant->rng, 2) ? mutant->plan->P : -1);
    return true;
}

static bool head_not_whole(Mutant* mutant) {
    mutant->plan->placement.head_begin[mutant->plan->P]--;
    return mutant->plan->placement.head != HEAD_WHOLE;
}

static bool share_taken_over(Mutant* mutant) {
    Placement* placement = &mutant->plan->placement;
    if (placement->head == HEAD_WHOLE || mutant->plan->P < 2) { return false; }
    bool had = placement_has_share(placement, 0);
    placement->head_begin[1] = had ? 0 : 1;
    for (int32_t s = 1; s < mutant->plan->P; s++) {
        if (placement->head_begin[s + 1] < placement->head_begin[s]) { return false; }
    }
    return true;
}

static bool other_split_of_head(Mutant* mutant) {
    Placement* placement = &mutant->plan->placement;
    if (placement->head == HEAD_WHOLE) { return false; }
    placement->head = placement->head == HEAD_BY_ROWS ? HEAD_BY_VOCABULARY : HEAD_BY_ROWS;
    return true;
}

static bool receive_after_use(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    int32_t i = any_instr(mutant, rank, INSTR_RECV_ACT);
    if (i < 0) { return false; }
    move_instr(rank, i, find_instr(rank, INSTR_FWD, rank->instrs[i].chunk, rank->instrs[i].mb));
    return true;
}

static bool wait_before_send(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    int32_t i = any_instr(mutant, rank, INSTR_WAIT_GRAD);
    if (i < 0) { return false; }
    move_instr(rank, i, find_instr(rank, INSTR_SEND_GRAD, rank->instrs[i].chunk, rank->instrs[i].mb));
    return true;
}

static bool repeat_job(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    int32_t i = any_instr(mutant, rank, INSTR_WGT);
    if (i < 0 || rank->instrs[i].chunk >= mutant->plan->placement.num_chunks) { return false; }
    rank->instrs[i].kind = INSTR_BWD;
    return true;
}

static bool wrong_peer(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    int32_t i = any_instr(mutant, rank, INSTR_SEND_ACT);
    if (i < 0) { return false; }
    rank->instrs[i].peer--;
    return true;
}

static bool foreign_microbatch(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    int32_t i = any_instr(mutant, rank, INSTR_FWD);
    if (i < 0) { return false; }
    rank->instrs[i].mb = mutant->plan->M;
    return true;
}

static bool job_after_step(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    int32_t i = any_instr(mutant, rank, INSTR_BWD);
    if (i < 0) { return false; }
    rank->instrs[i].end_ns = mutant->plan->makespan_ns + 1;
    return true;
}

static bool overlap_buffers(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    PlanBuffer *a = any_buffer(mutant, rank, -1), *b = any_buffer(mutant, rank, -1);
    if (a == NULL || a == b || a->num_bytes == 0 || b->num_bytes == 0) { return false; }
    if (a->instr_begin >= b->instr_end || b->instr_begin >= a->instr_end) { return false; }
    if (a->num_bytes > b->num_bytes) { return false; }  // stays inside the arena
    a->offset_bytes = b->offset_bytes;
    return true;
}

static bool end_life_early(Mutant* mutant) {
    PlanBuffer* buffer = any_buffer(mutant, any_rank(mutant), BUFFER_FORWARD);
    if (buffer == NULL || buffer->instr_end - buffer->instr_begin < 2) { return false; }
    buffer->instr_end--;
    return true;
}

static bool begin_life_late(Mutant* mutant) {
    PlanBuffer* buffer = any_buffer(mutant, any_rank(mutant), BUFFER_FORWARD);
    if (buffer == NULL || buffer->instr_end - buffer->instr_begin < 2) { return false; }
    buffer->instr_begin++;
    return true;
}

static bool unaligned_buffer(Mutant* mutant) {
    PlanBuffer* buffer = any_buffer(mutant, any_rank(mutant), -1);
    if (buffer == NULL) { return false; }
    buffer->offset_bytes += 8;
    return true;
}

static bool buffer_outside(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    PlanBuffer* buffer = any_buffer(mutant, rank, -1);
    if (buffer == NULL || buffer->num_bytes == 0) { return false; }
    buffer->offset_bytes = rank->arena_bytes;
    return true;
}

static bool drop_buffer(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    PlanBuffer* buffer = any_buffer(mutant, rank, -1);
    if (buffer == NULL) { return false; }
    *buffer = rank->buffers[--rank->num_buffers];
    return true;
}

static bool shorter_message(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    PlanBuffer* buffer = any_buffer(mutant, rank, -1);
    if (buffer == NULL || buffer->kind == BUFFER_ACTS || buffer->kind == BUFFER_FORWARD) { return false; }
    int32_t share = buffer->chunk - mutant->plan->placement.num_chunks;
    bool at_last = buffer->kind == BUFFER_PART || buffer->kind == BUFFER_FACT;
    if (at_last && share == (rank - mutant->plan->ranks) % mutant->plan->P) { return false; }  // never sent
    if (buffer->kind == BUFFER_SCRATCH || buffer->num_bytes == 0) { return false; }
    buffer->num_bytes--;
    return true;
}

// What shares send and get, at the last chunk's rank.
static bool shorter_part(Mutant* mutant) {
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

static bool exceed_limit(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    rank->own_limit_bytes = 0;
    mutant->plan->memory_limit_bytes = rank->arena_bytes + rank->state_bytes - 1;
    return mutant->plan->memory_limit_bytes > 0;
}

static bool duplicate_sample(Mutant* mutant) {
    Plan* plan = mutant->plan;
    if (plan->num_segments < 2) { return false; }
    plan->segments[1].sample_idx = plan->segments[0].sample_idx;
    plan->segments[1].num_tokens = plan->segments[0].num_tokens;
    return true;
}

static bool cut_sample(Mutant* mutant) {
    mutant->plan->segments[0].num_tokens--;
    return true;
}

static bool other_batch(Mutant* mutant) {
    mutant->samples[mutant->plan->segments[0].sample_idx].enc_tokens++;
    return true;
}

static bool wrong_shape(Mutant* mutant) {
    mutant->plan->mbs[mutant->plan->M - 1].shape.supervised_tokens++;
    return true;
}

static bool wrong_padding(Mutant* mutant) {
    mutant->plan->sequences[0].enc_tokens--;
    return true;
}

static bool layers_apart(Mutant* mutant) {
    mutant->plan->placement.chunks[mutant->plan->placement.num_chunks - 1].layer_begin++;
    return true;
}

static bool bound_beyond_makespan(Mutant* mutant) {
    mutant->plan->bound_ns = mutant->plan->makespan_ns + 1;
    return true;
}

static bool recompute_of_what_is_kept(Mutant* mutant) {
    PlanRank* rank = any_rank(mutant);
    int32_t i = any_instr(mutant, rank, INSTR_REC);
    if (i < 0) { return false; }
    mutant->plan->mbs[rank->instrs[i].mb].recompute[rank->instrs[i].chunk] = RECOMPUTE_NONE;
    return true;
}

static bool other_replica(Mutant* mutant) {
    Plan* plan = mutant->plan;
    plan->mbs[plan->M - 1].replica = plan->R - 1 - plan->mbs[plan->M - 1].replica;
    return plan->R > 1;
}

static const struct {
    bool (*mutate)(Mutant* mutant);
    const char* words;  // "": one of several rules may see it first
} mutations[] = {
    {drop_receive, "is missing"},
    {swap_transfers_at_one_end, ""},
    {receive_before_send, "wait for each other"},
    {swap_jobs, ""},
    {receive_after_use, "before what it needs"},
    {wait_before_send, "before what it needs"},
    {repeat_job, "a second time"},
    {wrong_peer, ""},
    {foreign_microbatch, "not a micro-batch of this replica"},
    {job_after_step, "not within the step"},
    {overlap_buffers, "overlap"},
    {end_life_early, ""},
    {begin_life_late, ""},
    {unaligned_buffer, "not aligned"},
    {buffer_outside, "not inside the arena"},
    {drop_buffer, ""},
    {shorter_message, "bytes"},
    {shorter_part, "bytes"},
    {exceed_limit, "beyond the memory limit"},
    {duplicate_sample, ""},
    {cut_sample, "not whole"},
    {other_batch, "not whole"},
    {wrong_shape, "shape is not that of"},
    {wrong_padding, ""},
    {layers_apart, "not next to those before"},
    {bound_beyond_makespan, "below the bound"},
    {recompute_of_what_is_kept, "not recomputed here"},
    {other_replica, ""},
    {take_before_handed_over, "before what it needs"},
    {share_out_of_turn, "before what it needs"},
    {share_goes_back, "a share of the head has no such job"},
    {other_chunk, ""},
    {buffer_of_other_chunk, ""},
    {chunk_elsewhere, ""},
    {chunk_nowhere, "lies on stage"},
    {head_not_whole, "shares of the head"},
    {share_taken_over, ""},
    {other_split_of_head, ""},
};
enum { NUM_MUTATIONS = sizeof mutations / sizeof mutations[0] };

// A deep copy by way of the text form.
static void copy_plan(Plan* out, const Plan* plan, Arena* arena) {
    char* text = NULL;
    size_t num_bytes = 0;
    FILE* file = open_memstream(&text, &num_bytes);
    plan_print(plan, file);
    fclose(file);
    CHECK_OK(plan_parse(out, text, "copy", arena));
    free(text);
}

// Plans whose receives are all posted as late as can be are the hardest to break; random ones do. A mutation
// of a buffer's life or place may happen to leave a valid plan only where the rule in question does not
// reach.
static void every_mutation_is_caught(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_applied[NUM_MUTATIONS] = {0};
    for (int32_t round = 0; round < 240; round++) {
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
                            .tight = round % 2};
        Plan plan;
        PlanSample* samples = random_plan(&plan, &rng, &about, &arena);
        for (int32_t i = 0; i < NUM_MUTATIONS; i++) {
            Plan copy;
            PlanSample own_samples[14];
            memcpy(own_samples, samples, sizeof own_samples);
            copy_plan(&copy, &plan, &arena);
            CHECK_OK(plan_check(&copy, own_samples, 14));
            Mutant mutant = {&copy, own_samples, &rng};
            if (!mutations[i].mutate(&mutant)) { continue; }
            num_applied[i]++;
            Status status = plan_check(&copy, own_samples, 14);
            bool caught = status == STATUS_INVALID_PLAN || status == STATUS_DEADLOCK;
            if (caught && strstr(status_message(), mutations[i].words) != NULL) { continue; }
            printf("seed %llu, round %d, mutation %d (\"%s\"): status %d \"%s\"\n", (unsigned long long)seed,
                   round, i, mutations[i].words, status, status_message());
            test_failures++;
        }
    }
    for (int32_t i = 0; i < NUM_MUTATIONS; i++) {
        if (num_applied[i] < 5) { printf("mutation %d was applied %d times only\n", i, num_applied[i]); }
        CHECK(num_applied[i] >= 5);
    }
    arena_free(&arena);
}

// The batch has one sample more than the plan's micro-batches.
static void a_missing_sample_is_found(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    RandomPlan about = {.P = 2, .R = 1, .num_layers = 4, .num_samples = 14, .max_tokens = 50};
    Plan plan;
    PlanSample samples[15];
    memcpy(samples, random_plan(&plan, &rng, &about, &arena), 14 * sizeof *samples);
    samples[14] = samples[13];
    CHECK_OK(plan_check(&plan, samples, 14));
    plan.N = 15;
    CHECK_FAILS(plan_check(&plan, samples, 15), STATUS_INVALID_PLAN, "sample 14 is in no micro-batch");
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_mutation_is_caught);
    RUN(a_missing_sample_is_found);
    return test_end();
}
