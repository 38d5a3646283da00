// test_plan_text.c -- plans as text.
#include "../dynapipe_plugin/plan/plan_text.h"
#include "../dynapipe_plugin/plan/simulate.h"
#include "../util/files.h"
#include "random_plan.h"
#include "test.h"

static uint64_t seed;

static void pipe_timeline_print(const PipeProblem* problem, const PipeSchedule* schedule,
                                const PipeTimeline* timeline, int32_t width, FILE* out) {
    for (int32_t s = 0; s < problem->P; s++) {
        TimelineRow row;
        timeline_row_open(&row, s, timeline->makespan_ns, width, out);
        for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
            PipeJob job = schedule->jobs[s][i];
            PipeSpan span = timeline->job[s][i];
            timeline_row_add(&row, (JobKind)job.kind, job.mb, span.begin_ns, span.end_ns);
        }
        timeline_row_close(&row);
        if (pipe_num_rows(problem) == problem->P) { continue; }
        timeline_row_open_chunks(&row, s, timeline->makespan_ns, width, out);
        for (int32_t i = 0; i < schedule->num_jobs[s]; i++) {
            PipeJob job = schedule->jobs[s][i];
            PipeSpan span = timeline->job[s][i];
            timeline_row_add_chunk(&row, job.chunk, job.chunk >= pipe_num_chunks(problem), span.begin_ns,
                                   span.end_ns);
        }
        timeline_row_close_chunks(&row);
    }
}

// --- plan io ---------------------------------------------------------------------------------------------
// plan text: round trips, golden text, hostile text; timelines as in STYLE.

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

// parse(print(p)) == p, field by field through the hash, and the text again byte by byte.
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
        CHECK_EQ(parsed.mbs[parsed.M - 1].sequence_end, plan.mbs[plan.M - 1].sequence_end);
        CHECK_EQ(parsed.ranks[0].num_buffers, plan.ranks[0].num_buffers);
        free(text);
        free(again);
    }
    arena_free(&arena);
}

// No field escapes the hash: change any, and it differs.
static void hash_covers_every_field(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    Plan plan;
    do {
        arena_reset(&arena);
        make_plan(&plan, &rng, &arena);
    } while (plan.P < 2 || plan.ranks[0].num_instrs == 0 || plan.placement.head == HEAD_WHOLE);
    uint64_t before = plan_hash(&plan);
    PlanRank* rank = &plan.ranks[0];
    int32_t* const words[] = {&plan.N,
                              &plan.placement.chunks[1].layer_end,
                              &plan.mbs[0].replica,
                              &plan.sequences[0].enc_tokens,
                              &plan.sequences[0].dec_tokens,
                              &plan.segments[0].sample_idx,
                              &plan.segments[0].first_token,
                              &plan.segments[0].num_tokens,
                              &rank->instrs[0].mb,
                              &rank->instrs[0].peer,
                              &rank->buffers[0].mb,
                              &rank->buffers[0].instr_begin,
                              &rank->buffers[0].instr_end,
                              &plan.mbs[0].sequence_end,
                              &plan.sequences[0].segment_end};
    int64_t* const longs[] = {&plan.makespan_ns,
                              &plan.bound_ns,
                              &plan.memory_limit_bytes,
                              &rank->arena_bytes,
                              &rank->state_bytes,
                              &rank->instrs[0].begin_ns,
                              &rank->instrs[0].end_ns,
                              &rank->buffers[0].offset_bytes,
                              &rank->buffers[0].num_bytes,
                              &plan.mbs[0].shape.num_seqs,
                              &plan.mbs[0].shape.enc_tokens,
                              &plan.mbs[0].shape.enc_squares,
                              &plan.mbs[0].shape.dec_tokens,
                              &plan.mbs[0].shape.dec_squares,
                              &plan.mbs[0].shape.cross_products,
                              &plan.mbs[0].shape.supervised_tokens};
    uint8_t* const bytes[] = {&plan.mbs[0].layout, &plan.mbs[0].recompute[1], &rank->instrs[0].kind,
                              &rank->buffers[0].kind, &plan.placement.head};
    int16_t* const shorts[] = {&plan.placement.stage_of[1], &plan.placement.head_begin[1],
                               &rank->instrs[0].chunk, &rank->buffers[0].chunk};
#define EACH_CHANGES_THE_HASH(fields, bit)                            \
    for (size_t i = 0; i < sizeof(fields) / sizeof(fields)[0]; i++) { \
        *(fields)[i] ^= (bit);                                        \
        CHECK(plan_hash(&plan) != before);                            \
        *(fields)[i] ^= (bit);                                        \
    }
    EACH_CHANGES_THE_HASH(words, 1)
    EACH_CHANGES_THE_HASH(longs, 1)
    EACH_CHANGES_THE_HASH(bytes, 1)
    EACH_CHANGES_THE_HASH(shorts, 1)
    plan.policy[0]++;
    CHECK(plan_hash(&plan) != before);
    plan.policy[0]--;
    plan.pulls = !plan.pulls;
    CHECK(plan_hash(&plan) != before);
    plan.pulls = !plan.pulls;
    CHECK(plan_hash(&plan) == before);
    arena_free(&arena);
}

// Cut anywhere, or with any byte changed: an error that names the text and a line, or the very same plan
// (blanks between words do not matter). Never a crash (run under the sanitizers).
static void hostile_text_is_refused(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0}, parsing = {0};
    for (int32_t round = 0; round < 12; round++) {
        arena_reset(&arena);
        Plan plan, parsed;
        size_t num_bytes;
        make_plan(&plan, &rng, &arena);
        char* text = print_plan(&plan, &num_bytes);
        for (int32_t i = 0; i < 700; i++) {
            arena_reset(&parsing);
            size_t at = rng_u64(&rng) % num_bytes;
            char kept = text[at];
            static const char nasty[] = "0123456789-+. \n\tamz\x80\xff";
            text[at] = i % 3 == 0 ? '\0' : nasty[rng_below(&rng, sizeof nasty - 1)];
            Status status = plan_parse(&parsed, text, "bad.plan", &parsing);
            if (status == STATUS_OK) {
                CHECK(plan_hash(&parsed) == plan_hash(&plan));
                CHECK(text[at] == kept || text[at] == ' ' || kept == ' ' || kept == '\0');
            } else {
                CHECK_EQ(status, STATUS_BAD_FORMAT);
                CHECK(strncmp(status_message(), "bad.plan:", 9) == 0);
            }
            text[at] = kept;
        }
        free(text);
    }
    arena_free(&arena);
    arena_free(&parsing);
}

#define HEAD_OF_2_CHUNKS                                                                              \
    "dynapipe-plan 2\nstages 2 replicas 1 chunks 2 microbatches 0 samples 0 sequences 0 segments 0\n" \
    "policy a schedule b\nmemory_limit_bytes 0 makespan_ns 0 bound_ns 0\nhash 0123456789abcdef\n"
#define TWO_CHUNKS "chunk 0 stage 0 layers 0 1\nchunk 1 stage 1 layers 1 2\n"

static void bad_heads_name_the_line(void) {
    static const struct {
        const char *text, *words;
    } cases[] = {
        {"", "t:1: expected dynapipe-plan"},
        {"dynapipe-plan 1\n", "t:1: version '1' of dynapipe-plan is not known"},
        {"dynapipe-plan 2\nstages 129 replicas", "t:2: stages: '129' is not a number in 1 ... 128"},
        {"dynapipe-plan 2\nstages 4 replicas 2 chunks 4 microbatches 999999999 samples 1",
         "t:2: microbatches: '999999999'"},
        {"dynapipe-plan 2\nstages 04 replicas 2", "t:2: stages: '04'"},
        {"dynapipe-plan 2\nstages -0 replicas 2", "t:2: stages: '-0'"},
        {"dynapipe-plan 2\nstages 99999999999999999999999 replicas 2", "t:2: stages"},
        {"dynapipe-plan 2\nstages 1 replicas 1 chunks 1 microbatches 0 samples 0 sequences 0 segments "
         "0\npolicy A "
         "schedule b\n",
         "t:3: expected a name"},
        {HEAD_OF_2_CHUNKS "chunk 0 stage 2 layers 0 1\n", "t:6: stage: '2' is not a number in 0 ... 1"},
        {HEAD_OF_2_CHUNKS "chunk 1 stage 0 layers 0 1\n", "t:6: chunk: '1'"},
        {HEAD_OF_2_CHUNKS TWO_CHUNKS "head half\n", "t:8: expected whole, rows or vocabulary, found 'half'"},
        {HEAD_OF_2_CHUNKS TWO_CHUNKS "head rows 1025 -1\n", "t:8: next: '1025'"},
        {HEAD_OF_2_CHUNKS TWO_CHUNKS "head vocabulary 512 511\n",
         "t:8: next: '511' is not a number in 512 ... 512"},
        {HEAD_OF_2_CHUNKS TWO_CHUNKS "head rows 1024\n", "t:8: next: ''"},
        {HEAD_OF_2_CHUNKS TWO_CHUNKS "head whole 1024\n", "t:8: expected"},
    };
    Arena arena = {0};
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        Plan plan;
        CHECK_FAILS(plan_parse(&plan, cases[i].text, "t", &arena), STATUS_BAD_FORMAT, cases[i].words);
    }
    arena_free(&arena);
}

static void check_golden(const char* path, uint64_t draw, bool placed) {
    Rng rng = rng_seed(draw);
    Arena arena = {0};
    Plan plan;
    size_t num_bytes;
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
    char* text = print_plan(&plan, &num_bytes);
    if (getenv("GOLDEN") != NULL) {
        FileWriter writer;
        CHECK_OK(file_writer_open(&writer, path));
        file_writer_write(&writer, text, num_bytes);
        CHECK_OK(file_writer_commit(&writer));
    }
    char* golden = NULL;
    CHECK_OK(file_read_text(&golden, NULL, path));
    CHECK(golden != NULL && strcmp(golden, text) == 0);
    free(golden);
    free(text);
    arena_free(&arena);
}

// The text itself: any change of the form, of a policy or of the layout shows. GOLDEN=1 writes it anew.
static void text_is_golden(void) {
    check_golden("test/golden/plan_random.txt", 12, false);
    check_golden("test/golden/plan_placed.txt", 18, true);
}

// The picture of STYLE 4.5, and weight gradients and recomputation beside it; two chunks a stage with the
// head on both.
static void timeline_is_the_known_picture(void) {
    static const char expected[] =
        "stage 0 |aabbccdd............AAAAeeBBBBffCCCC..DDDD..EEEE..FFFF| idle 33 %\n"
        "stage 1 |..aabbcc........AAAAddBBBBeeCCCCffDDDD..EEEE..FFFF....| idle 33 %\n"
        "stage 2 |....aabb....AAAAccBBBBddCCCCeeDDDDffEEEE..FFFF........| idle 33 %\n"
        "stage 3 |......aaAAAAbbBBBBccCCCCddDDDDeeEEEEffFFFF............| idle 33 %\n"
        "stage 0 |aa~~..AA++| idle 20 %\n"
        "stage 1 |..aaAA++..| idle 40 %\n"
        "stage 0 |aabb....aaaaAAbbbbBBAA++BB++++| idle 13 %\n"
        "        |0000    33**3333**3300*3000*30|\n"
        "stage 1 |..aabbaabbaa..AAbbAABBBB++++++| idle 13 %\n"
        "        |  11112222**  22**112211*21*21|\n";
    PipeCost costs[24], two[2], few[12];
    for (int32_t i = 0; i < 24; i++) { costs[i] = (PipeCost){.job_ns = {2, 4, 0, 0}}; }
    for (int32_t i = 0; i < 12; i++) { few[i] = (PipeCost){.job_ns = {2, i < 8 ? 2 : 0, 1, 0}}; }
    two[0] = (PipeCost){.job_ns = {2, 2, 2, 2}, .mode = RECOMPUTE_FULL, .drops = true};
    two[1] = (PipeCost){.job_ns = {2, 2, 2, 0}};
    PipeProblem problems[2] = {{.P = 4, .M = 6, .cost = costs}, {.P = 2, .M = 1, .cost = two}};
    const int32_t order[] = {0, 1, 2, 3, 4, 5};
    Arena arena = {0};
    char* text = NULL;
    size_t num_bytes;
    FILE* file = open_memstream(&text, &num_bytes);
    for (int32_t i = 0; i < 2; i++) {
        PipeSchedule schedule;
        PipeTimeline timeline;
        CHECK_OK(pipe_policy_1f1b.build(&schedule, &problems[i], order, i == 1, &arena));
        CHECK_OK(pipe_simulate(&timeline, &problems[i], &schedule, &arena));
        pipe_timeline_print(&problems[i], &schedule, &timeline, (int32_t)timeline.makespan_ns, file);
    }
    Placement vee = {
        .num_chunks = 4, .stage_of = {0, 1, 1, 0}, .head = HEAD_BY_VOCABULARY, .head_begin = {0, 512, 1024}};
    PipeProblem placed = {.P = 2, .M = 2, .placement = &vee, .cost = few};
    PipeSchedule schedule;
    PipeTimeline timeline;
    CHECK_OK(pipe_policy_adaptive.build(&schedule, &placed, order, true, &arena));
    CHECK_OK(pipe_simulate(&timeline, &placed, &schedule, &arena));
    pipe_timeline_print(&placed, &schedule, &timeline, (int32_t)timeline.makespan_ns, file);
    fclose(file);
    if (strcmp(text, expected) != 0) { printf("%s", text); }
    CHECK(strcmp(text, expected) == 0);
    free(text);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(parse_of_print_is_the_plan);
    RUN(hash_covers_every_field);
    RUN(hostile_text_is_refused);
    RUN(bad_heads_name_the_line);
    RUN(text_is_golden);
    RUN(timeline_is_the_known_picture);
    return test_end();
}
