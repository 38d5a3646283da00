// test_plan_text.c -- plans as text.
#include "random_plan.h"
#include "test.h"

// --- plan text: golden text, timelines
// ------------------------------------------------------------------------

static void check_golden(const char* name, uint64_t hash, uint64_t draw, bool placed) {
    Rng rng = rng_seed(draw);
    Arena arena = {0};
    Plan plan;
    const RandomPlan about = {.P = 3,
                              .R = 2,
                              .num_layers = 6,
                              .num_samples = 9,
                              .max_tokens = 60,
                              .packed = true,
                              .recompute = true,
                              .placed = placed};
    random_plan(&plan, &rng, &about, &arena);
    CHECK(placed == (plan.placement.head == HEAD_BY_VOCABULARY && plan.placement.num_chunks > 3));
    CHECK(plan_text_is(&plan, name, hash));
    arena_free(&arena);
}

static void text_is_golden(void) {
    check_golden("plan_random", 0x7710147fbdb73462u, 12, false);
    check_golden("plan_placed", 0xd456f4d03da404a8u, 18, true);
}

// Two stages: forward, backward, weight gradients, recomputation; two chunks on the first, a share of the
// head.
static void timeline_is_the_known_picture(void) {
    static const char expected[] =
        "; letter = microbatch: a forward, A backward, + weight gradients, ~ forward again, . idle;\n"
        "below it the chunk, 0 to 9, a to z, * its share of the head\n"
        "stage 0 |aabb..~AA+| idle 20 %\n"
        "        |0022  0000|\n"
        "stage 1 |..aabbBB..| idle 40 %\n"
        "        |  11**11  |\n";
    PlanInstr first[] = {{INSTR_FWD, 0, 3, -1, 0, 2},
                         {INSTR_FWD, 2, 4, -1, 2, 4},
                         {INSTR_REC, 0, 3, -1, 6, 7},
                         {INSTR_BWD, 0, 3, -1, 7, 9},
                         {INSTR_WGT, 0, 3, -1, 9, 10}};
    PlanInstr second[] = {{INSTR_RECV_ACT, 1, 3, 0, 0, 2},
                          {INSTR_FWD, 1, 3, -1, 2, 4},
                          {INSTR_FWD, 4, 4, -1, 4, 6},
                          {INSTR_BWD, 1, 4, -1, 6, 8}};
    PlanMicrobatch mbs[5] = {{.replica = 0}};
    PlanRank ranks[4] = {{0}, {0}, {.num_instrs = 5, .instrs = first}, {.num_instrs = 4, .instrs = second}};
    Plan plan = {.P = 2,
                 .R = 2,
                 .M = 5,
                 .mbs = mbs,
                 .ranks = ranks,
                 .makespan_ns = 10,
                 .placement = {.num_chunks = 3, .stage_of = {0, 1, 0}, .head = HEAD_BY_ROWS}};
    mbs[3].replica = mbs[4].replica = 1;
    char* text = NULL;
    size_t num_bytes;
    FILE* file = open_memstream(&text, &num_bytes);
    plan_print_timeline(&plan, 10, file);
    fclose(file);
    const char *from = strchr(text, ';'), *second_replica = strstr(text, "replica 1\n");
    CHECK(strncmp(from, expected, strstr(expected, "stage 0") - expected) == 0);
    CHECK(second_replica != NULL && strcmp(second_replica + 10, strstr(expected, "stage 0")) == 0);
    free(text);
}

// Ranks compare plans by hash: whatever differs changes it.
static void every_field_counts(void) {
    Rng rng = rng_seed(12);
    Arena arena = {0};
    Plan plan;
    const RandomPlan about = {
        .P = 3, .R = 2, .num_layers = 6, .num_samples = 9, .max_tokens = 60, .packed = true, .placed = true};
    random_plan(&plan, &rng, &about, &arena);
    plan.mbs[0].continues = true;
    const uint64_t hash = plan_hash(&plan);
    PlanMicrobatch* mb = &plan.mbs[0];
    PlanRank* rank = plan.ranks;
    while (rank->num_instrs == 0 || rank->num_buffers == 0) { rank++; }
    rank->own_limit_bytes = 1;
#define COUNTS(field)                      \
    do {                                   \
        (field)++;                         \
        CHECK(plan_hash(&plan) != before); \
        (field)--;                         \
    } while (0)
    const uint64_t before = plan_hash(&plan);
    CHECK(before != hash);
    COUNTS(plan.makespan_ns);
    COUNTS(plan.bound_ns);
    COUNTS(plan.memory_limit_bytes);
    COUNTS(plan.policy[0]);
    COUNTS(plan.schedule[0]);
    COUNTS(plan.N);
    COUNTS(mb->replica);
    COUNTS(mb->layout);
    COUNTS(mb->recompute[1]);
    COUNTS(mb->shape.num_seqs);
    COUNTS(mb->shape.enc_tokens);
    COUNTS(mb->shape.enc_squares);
    COUNTS(mb->shape.dec_tokens);
    COUNTS(mb->shape.dec_squares);
    COUNTS(mb->shape.cross_products);
    COUNTS(mb->shape.supervised_tokens);
    COUNTS(mb->shape.prefix_tokens);
    COUNTS(mb->shape.prefix_products);
    COUNTS(mb->shape.prefix_enc_tokens);
    COUNTS(plan.sequences[0].enc_tokens);
    COUNTS(plan.sequences[0].dec_tokens);
    COUNTS(plan.segments[0].sample_idx);
    COUNTS(plan.segments[0].first_token);
    COUNTS(plan.segments[0].num_tokens);
    COUNTS(plan.placement.stage_of[1]);
    COUNTS(plan.placement.chunks[1].begin);
    COUNTS(plan.placement.chunks[1].end);
    COUNTS(plan.placement.head_begin[1]);
    COUNTS(plan.chain.num_enc_layers);
    COUNTS(plan.chain.enc_blocks);
    COUNTS(rank->arena_bytes);
    COUNTS(rank->state_bytes);
    COUNTS(rank->own_limit_bytes);
    COUNTS(rank->instrs[0].kind);
    COUNTS(rank->instrs[0].chunk);
    COUNTS(rank->instrs[0].mb);
    COUNTS(rank->instrs[0].begin_ns);
    COUNTS(rank->instrs[0].end_ns);
    COUNTS(rank->buffers[0].kind);
    COUNTS(rank->buffers[0].chunk);
    COUNTS(rank->buffers[0].mb);
    COUNTS(rank->buffers[0].offset_bytes);
    COUNTS(rank->buffers[0].num_bytes);
    COUNTS(rank->buffers[0].instr_begin);
    COUNTS(rank->buffers[0].instr_end);
#undef COUNTS
    arena_free(&arena);
}

int main(void) {
    RUN(text_is_golden);
    RUN(every_field_counts);
    RUN(timeline_is_the_known_picture);
    return test_end();
}
