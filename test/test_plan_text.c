// test_plan_text.c -- plans as text.
#include "../dynapipe_plugin/plan/plan_text.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

// --- plan io ---------------------------------------------------------------------------------------------
// plan text: round trips, golden text, timelines; hostile text is the fuzzer's.

static char* print_plan(const Plan* plan, size_t* num_bytes) {
    char* text = NULL;
    FILE* file = open_memstream(&text, num_bytes);
    plan_print(plan, file);
    fclose(file);
    return text;
}

static void make_plan(Plan* out, Rng* rng, Arena* arena) {
    int32_t P = rng_between(rng, 1, 4);
    RandomPlan about = {.P = P,
                        .R = rng_between(rng, 1, 3),
                        .num_layers = P + 2,
                        .num_samples = rng_between(rng, 1, 20),
                        .max_tokens = 400,
                        .packed = rng_below(rng, 2),
                        .recompute = rng_below(rng, 2),
                        .placed = rng_below(rng, 4) > 0,
                        .tight = rng_below(rng, 2)};
    random_plan(out, rng, &about, arena);
    out->bound_ns = rng_between(rng, 0, 9);
    out->memory_limit_bytes = (int64_t)rng_below(rng, 3) << 40;
}

// parse(print(p)) == p, and the text again byte by byte.
static void parse_of_print_is_the_plan(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    for (int32_t round = 0; round < 200; round++) {
        arena_reset(&arena);
        Plan plan, parsed;
        size_t num_bytes, again_bytes;
        make_plan(&plan, &rng, &arena);
        char* text = print_plan(&plan, &num_bytes);
        CHECK_OK(plan_parse(&parsed, text, "text", &arena));
        CHECK(plan_hash(&plan) == plan_hash(&parsed));
        char* again = print_plan(&parsed, &again_bytes);
        CHECK(num_bytes == again_bytes && memcmp(text, again, num_bytes) == 0);
        CHECK(plan_hash_decisions(&plan) == plan_hash_decisions(&parsed));
        free(text);
        free(again);
    }
    arena_free(&arena);
}

#define HEAD_OF_2_CHUNKS                                                                              \
    "dynapipe-plan 3\nstages 2 replicas 1 chunks 2 microbatches 0 samples 0 sequences 0 segments 0\n" \
    "policy a schedule b\nmemory_limit_bytes 0 makespan_ns 0 bound_ns 0\nhash 0123456789abcdef\n"     \
    "layers 1 0 blocks 2 1\n"
#define TWO_CHUNKS "chunk 0 stage 0 blocks 0 1\nchunk 1 stage 1 blocks 1 2\n"

static void bad_heads_name_the_line(void) {
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "t:1: expected dynapipe-plan"},
        {"dynapipe-plan 1\n", "t:1: expected 3, found '1'"},
        {"dynapipe-plan 3\nstages 129 replicas", "t:2: stages: '129' is not a number in 1 ... 128"},
        {"dynapipe-plan 3\nstages 4 replicas 2 chunks 4 microbatches 999999999 samples 1",
         "t:2: microbatches: '999999999'"},
        {"dynapipe-plan 3\nstages 04 replicas 2", "t:2: stages: '04'"},
        {"dynapipe-plan 3\nstages -0 replicas 2", "t:2: stages: '-0'"},
        {"dynapipe-plan 3\nstages 99999999999999999999999 replicas 2", "t:2: stages"},
        {"dynapipe-plan 3\nstages 1 replicas 1 chunks 1 microbatches 0 samples 0 sequences 0 segments "
         "0\npolicy A "
         "schedule b\n",
         "t:3: expected a name"},
        {HEAD_OF_2_CHUNKS "chunk 0 stage 2 blocks 0 1\n", "t:7: stage: '2' is not a number in 0 ... 1"},
        {HEAD_OF_2_CHUNKS "chunk 1 stage 0 blocks 0 1\n", "t:7: chunk: '1'"},
        {HEAD_OF_2_CHUNKS TWO_CHUNKS "head half\n", "t:9: expected whole, rows or vocabulary, found 'half'"},
        {HEAD_OF_2_CHUNKS TWO_CHUNKS "head rows 1025 -1\n", "t:9: next: '1025'"},
        {HEAD_OF_2_CHUNKS TWO_CHUNKS "head vocabulary 512 511\n",
         "t:9: next: '511' is not a number in 512 ... 512"},
        {HEAD_OF_2_CHUNKS TWO_CHUNKS "head rows 1024\n", "t:9: next: ''"},
        {HEAD_OF_2_CHUNKS TWO_CHUNKS "head whole 1024\n", "t:9: expected"},
    };
    Arena arena = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Plan plan;
        CHECK_FAILS(plan_parse(&plan, cases[i].text, "t", &arena), STATUS_BAD_FORMAT, cases[i].words);
    }
    arena_free(&arena);
}

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

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(parse_of_print_is_the_plan);
    RUN(bad_heads_name_the_line);
    RUN(text_is_golden);
    RUN(timeline_is_the_known_picture);
    return test_end();
}
