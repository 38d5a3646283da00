// test_problem.c -- shapes that kernels take.
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/problem.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;

// --- shape rules -----------------------------------------------------------------------------------------
// what a model's kernels ask of microbatches: no plan does otherwise, padding is the
// least that serves, and what cannot be served is said in words.

static RandomProblem problem;

static Status make(Plan* out, Arena* arena) {
    return plan_make(out, &problem.request, &problem.costs, problem.samples, problem.num_samples, arena);
}

// --- padding ---------------------------------------------------------------------------------------------

// The first length from num_tokens on that keeps both rules.
static int32_t least_length(const ShapeRules* rules, int32_t num_tokens, int32_t num_seqs) {
    int32_t seq = rules->seq_multiple > 0 ? rules->seq_multiple : 1;
    int32_t tokens = rules->tokens_multiple > 0 ? rules->tokens_multiple : 1;
    while (num_tokens % seq != 0 || num_tokens * num_seqs % tokens != 0) { num_tokens++; }
    return num_tokens;
}

static void padding_is_the_least_that_serves(void) {
    for (int32_t seq = 1; seq <= 12; seq++) {
        for (int32_t tokens = 0; tokens <= 48; tokens++) {
            ShapeRules rules = {.padded = true, .seq_multiple = seq, .tokens_multiple = tokens};
            for (int32_t num_seqs = 1; num_seqs <= 9; num_seqs++) {
                for (int32_t n = 0; n <= 60; n += 1 + n / 7) {
                    CHECK_EQ(shape_rules_pad(&rules, n, num_seqs, 10), least_length(&rules, n, num_seqs));
                    CHECK(shape_rules_pad(&rules, n, num_seqs, 0) >= shape_rules_pad(&rules, n, 0, 0));
                }
            }
        }
    }
    ShapeRules none = {.padded = true};
    CHECK_EQ(shape_rules_pad(&none, 17, 3, 0), 24);
    CHECK_EQ(shape_rules_pad(&none, 17, 3, 20), 20);
    CHECK_EQ(shape_rules_pad(&none, 17, 3, 10), 17);
}

// --- plans -----------------------------------------------------------------------------------------------

static ShapeRules draw_rules(Rng* rng, bool padded) {
    static const int32_t multiples[] = {0, 1, 2, 4, 8, 16, 24};
    ShapeRules rules = {.padded = padded, .head_has_layer = rng_below(rng, 2)};
    if (padded) {
        rules.seq_multiple = multiples[rng_below(rng, 7)];
        rules.tokens_multiple = multiples[rng_below(rng, 7)];
    }
    return rules;
}

// Limits that the longest sample keeps to alone.
static void draw_limits(Rng* rng, ShapeRules* rules) {
    int64_t longest = 1;
    for (int32_t i = 0; i < problem.num_samples; i++) {
        const PlanSample* s = &problem.samples[i];
        int32_t n = s->enc_tokens > s->dec_tokens ? s->enc_tokens : s->dec_tokens;
        n = shape_rules_pad(rules, n, 1, 0);
        longest = n > longest ? n : longest;
    }
    if (rng_below(rng, 2)) { rules->max_squares = longest * longest * rng_between(rng, 100, 400) / 100; }
    if (rng_below(rng, 3) == 0) { rules->max_tokens = longest * rng_between(rng, 100, 400) / 100; }
    if (rng_below(rng, 3) == 0) { rules->max_seqs = rng_between(rng, 1, 5); }
}

static void draw_problem(Rng* rng, int32_t round) {
    random_problem(&problem, rng, rng_between(rng, 1, round % 5 == 0 ? 120 : 25));
    PlanRequest* request = &problem.request;
    const bool padded = rng_below(rng, 2);
    request->batching = (Batching)(round % BATCHING_COUNT);
    request->schedule = (ScheduleChoice)rng_below(rng, SCHEDULE_COUNT);
    request->split_backward = (SplitBackward)rng_below(rng, 3);
    request->effort = 40;
    request->choose_stages = rng_below(rng, 2);
    request->max_seq_tokens = rng_below(rng, 2) ? 4096 : 0;
    request->max_target_tokens = 0;
    request->rules = draw_rules(rng, padded);
    for (int32_t i = 0; i < problem.num_samples; i++) {  // a giant would be padded for a long time
        if (problem.samples[i].enc_tokens > 4096) { problem.samples[i].enc_tokens = 4096; }
    }
    draw_limits(rng, &request->rules);
    if (4096 % shape_rules_multiple(&request->rules, 1) != 0) { request->max_seq_tokens = 0; }
    if (round % 3 == 0) { random_problem_limit_memory(&problem, rng_between(rng, 50, 300)); }
    if (request->rules.head_has_layer && !request->choose_stages) {
        equal_stages(request, plan_chain_num_blocks(&problem.costs.chain));
    }
}

static bool is_ragged(Batching batching) {
    return batching == BATCHING_PACKED || batching == BATCHING_PACKED_RAGGED || batching == BATCHING_KK;
}

// Limits are checked by plan_check_shapes; padding is the least.
static void check_padding(const Plan* plan, int32_t m) {
    const ShapeRules* rules = &problem.request.rules;
    const PlanMicrobatch* mb = &plan->mbs[m];
    const PlanSequence* first = &plan->sequences[mb->sequence_begin];
    int32_t longest_enc = 0, longest_dec = 0, num = mb->sequence_end - mb->sequence_begin;
    if (!rules->padded || (rules->seq_multiple == 0 && rules->tokens_multiple == 0)) { return; }
    for (int32_t i = mb->sequence_begin; i < mb->sequence_end; i++) {
        const PlanSample* sample =
            &problem.samples[plan->segments[plan->sequences[i].segment_begin].sample_idx];
        longest_enc = sample->enc_tokens > longest_enc ? sample->enc_tokens : longest_enc;
        longest_dec = sample->dec_tokens > longest_dec ? sample->dec_tokens : longest_dec;
    }
    CHECK_EQ(first->enc_tokens, least_length(rules, longest_enc, num));
    CHECK_EQ(first->dec_tokens, least_length(rules, longest_dec, num));
}

// Hundreds of random problems and rules, every batching.
static void plans_keep_the_rules(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_plans = 0, num_padded = 0;
    int32_t num_squares = 0, num_tokens = 0, num_seqs = 0;
    for (int32_t round = 0; round < 600 && test_failures == 0; round++) {
        Plan plan;
        arena_reset(&arena);
        draw_problem(&rng, round);
        const ShapeRules* rules = &problem.request.rules;
        Status status = make(&plan, &arena);
        if (rules->padded && is_ragged(problem.request.batching)) {
            CHECK_EQ(status, STATUS_BAD_OPTION);
            CHECK(strstr(status_message(), "padded windows only") != NULL);
            continue;
        }
        if (status == STATUS_INFEASIBLE) {
            bool limited = rules->max_squares > 0 || rules->max_tokens > 0;
            bool packed = problem.request.batching == BATCHING_PACKED && limited;
            CHECK(packed || problem.request.memory_limit_bytes > 0);
            continue;
        }
        CHECK_OK(status);
        if (status != STATUS_OK) { break; }
        for (int32_t m = 0; m < plan.M && test_failures == 0; m++) { check_padding(&plan, m); }
        CHECK_OK(plan_check_shapes(&plan, rules));
        const BlockRange* last = &plan.placement.chunks[plan.P - 1];
        CHECK(!rules->head_has_layer || last->end > last->begin);
        num_plans++;
        num_padded += rules->padded;
        num_squares += rules->max_squares > 0;
        num_tokens += rules->max_tokens > 0;
        num_seqs += rules->max_seqs > 0;
        if (test_failures > 0) { printf("round %d, batching %d\n", round, problem.request.batching); }
    }
    printf("     %d plans, %d padded, limits: %d on squares, %d on tokens, %d on sequences\n", num_plans,
           num_padded, num_squares, num_tokens, num_seqs);
    CHECK(num_plans > 300 && num_padded > 80 && num_squares > 120 && num_tokens > 80 && num_seqs > 80);
    arena_free(&arena);
}

// --- the check -------------------------------------------------------------------------------------------

static void a_plan_that_breaks_a_rule_is_found(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    Plan plan;
    random_problem(&problem, &rng, 30);
    problem.request.batching = BATCHING_DYNAMIC;
    problem.request.schedule = SCHEDULE_AUTO;
    problem.request.max_seq_tokens = problem.request.max_target_tokens = 0;
    problem.request.rules = (ShapeRules){.padded = true, .seq_multiple = 4, .tokens_multiple = 16};
    equal_stages(&problem.request, plan_chain_num_blocks(&problem.costs.chain));
    CHECK_OK(make(&plan, &arena));
    ShapeRules rules = problem.request.rules;
    PlanSequence* seq = &plan.sequences[plan.num_sequences - 1];
    seq->enc_tokens += 16;
    bool is_alone = plan.mbs[plan.M - 1].sequence_end - plan.mbs[plan.M - 1].sequence_begin == 1;
    Status status = plan_check_shapes(&plan, &rules);
    CHECK_EQ(status, is_alone ? STATUS_OK : STATUS_INVALID_PLAN);
    seq->enc_tokens -= 15;
    CHECK_FAILS(plan_check_shapes(&plan, &rules), STATUS_INVALID_PLAN, "are not what the kernels take");
    seq->enc_tokens -= 1;
    CHECK_OK(plan_check_shapes(&plan, &rules));
    rules.tokens_multiple = 1 << 14;
    CHECK_FAILS(plan_check_shapes(&plan, &rules), STATUS_INVALID_PLAN, "are not what the kernels take");
    rules = (ShapeRules){.max_squares = 1};
    CHECK_FAILS(plan_check_shapes(&plan, &rules), STATUS_INVALID_PLAN, "microbatch 0: squared lengths of");
    rules = (ShapeRules){.max_tokens = 1};
    CHECK_FAILS(plan_check_shapes(&plan, &rules), STATUS_INVALID_PLAN,
                "tokens, the model's kernels take 1 of each (max_tokens)");
    rules = (ShapeRules){.max_seqs = 1};
    bool has_more = false;
    for (int32_t m = 0; m < plan.M; m++) { has_more |= plan.mbs[m].shape.num_seqs > 1; }
    CHECK(has_more);
    CHECK_FAILS(plan_check_shapes(&plan, &rules), STATUS_INVALID_PLAN,
                "sequences, the model's kernels take 1 (max_seqs)");
    int32_t last = plan.P - 1;
    plan.placement.chunks[last].begin = plan.placement.chunks[last].end;
    rules = (ShapeRules){.head_has_layer = true};
    CHECK_FAILS(plan_check_shapes(&plan, &rules), STATUS_INVALID_PLAN, "the head alone");
    arena_free(&arena);
}

// --- words -----------------------------------------------------------------------------------------------

static void what_cannot_be_is_said(void) {
    Arena arena = {0};
    Plan plan;
    Rng rng = rng_seed(seed + 3);
    random_problem(&problem, &rng, 5);
    PlanRequest* request = &problem.request;
    request->batching = BATCHING_DYNAMIC;
    request->rules = (ShapeRules){.padded = true, .seq_multiple = 4, .tokens_multiple = 16};
    request->max_seq_tokens = 100;
    CHECK_FAILS(make(&plan, &arena), STATUS_BAD_OPTION,
                "-t 100: the model's kernels take windows of a multiple of 16 tokens (seq_multiple 4, "
                "tokens_multiple 16) ---> -t 96 or -t 112");
    request->max_seq_tokens = 12;
    CHECK_FAILS(make(&plan, &arena), STATUS_BAD_OPTION, "---> -t 16");
    request->max_seq_tokens = 4096;
    request->max_target_tokens = 30;
    CHECK_FAILS(make(&plan, &arena), STATUS_BAD_OPTION,
                "--target-tokens 30: the model's kernels take windows of a multiple of 16 tokens");
    request->max_target_tokens = 0;
    request->batching = BATCHING_PACKED;
    CHECK_FAILS(make(&plan, &arena), STATUS_BAD_OPTION,
                "--batching packed: the model's kernels take padded windows only");
    request->batching = BATCHING_DYNAMIC;
    request->rules.padded = false;
    CHECK_FAILS(make(&plan, &arena), STATUS_OUT_OF_RANGE, "of padded windows only");
    request->rules = (ShapeRules){.padded = true, .seq_multiple = -1};
    CHECK_FAILS(make(&plan, &arena), STATUS_OUT_OF_RANGE, "seq_multiple -1");
    request->rules = (ShapeRules){.padded = true, .tokens_multiple = 1 << 20};
    CHECK_FAILS(make(&plan, &arena), STATUS_OUT_OF_RANGE, "tokens_multiple 1048576");
    request->rules = (ShapeRules){.padded = true, .seq_multiple = 65536, .tokens_multiple = 65535};
    CHECK_FAILS(make(&plan, &arena), STATUS_OUT_OF_RANGE,
                "a window alone for a multiple of 4294901760 tokens");
    request->rules = (ShapeRules){.max_seqs = -1};
    CHECK_FAILS(make(&plan, &arena), STATUS_OUT_OF_RANGE, "max_tokens 0, max_seqs -1 ---> 0 or more");
    request->rules = (ShapeRules){.max_tokens = -2};
    CHECK_FAILS(make(&plan, &arena), STATUS_OUT_OF_RANGE, "max_tokens -2");
    arena_free(&arena);
}

// One sample is more than the kernels take: every batching names it, or the microbatch that it is in.
static void a_sample_that_is_too_much_is_named(void) {
    Arena arena = {0};
    Rng rng = rng_seed(seed + 4);
    random_problem(&problem, &rng, 20);
    PlanRequest* request = &problem.request;
    request->schedule = SCHEDULE_AUTO;
    request->recompute = RECOMPUTE_CHOICE_AUTO;
    request->max_seq_tokens = 0;
    request->mb_tokens = 0;
    for (int32_t i = 0; i < 20; i++) { problem.samples[i] = plan_sample(40, 0, 5); }
    problem.samples[7].enc_tokens = 2000;
    for (int i = 0; i < 2 * BATCHING_COUNT; i++) {
        Plan plan;
        const int batching = i / 2;
        request->rules =
            i % 2 ? (ShapeRules){.max_tokens = 1999} : (ShapeRules){.max_squares = 2000 * 2000 - 1};
        request->batching = (Batching)batching;
        const char* name = batching == BATCHING_PACKED ? "from sample" : "sample 7";
        CHECK_FAILS(make(&plan, &arena), STATUS_INFEASIBLE, name);
        const char* words = i % 2 ? "(max_tokens) ---> a smaller -t" : "(max_squares) ---> a smaller -t";
        CHECK(strstr(status_message(), words) != NULL);
    }
    arena_free(&arena);
}

// An encoder-decoder's samples: bands of like encoder lengths, longest first, each by decoder length, which
// falls in one and rises in the next. Every sample once.
static void samples_lie_on_a_snake(void) {
    enum { MOST = 200 };
    Rng rng = rng_seed(seed + 5);
    Arena arena = {0};
    for (int32_t round = 0; round < 100; round++) {
        PlanSample samples[MOST];
        int32_t order[MOST], num = rng_between(&rng, 1, MOST);
        bool is_in[MOST] = {false};
        for (int32_t i = 0; i < num; i++) {
            samples[i] =
                plan_sample(rng_between(&rng, 1, round % 2 ? 1000 : 40), rng_between(&rng, 1, 30), 0);
        }
        CHECK_OK(sample_order_make(order, samples, num, &arena));
        bool rises = false;
        for (int32_t begin = 0, end; begin < num; begin = end, rises = !rises) {
            int32_t longest = 0;
            for (int32_t i = begin; i < num; i++) {
                int32_t enc = samples[order[i]].enc_tokens;
                longest = enc > longest ? enc : longest;
            }
            int32_t width = longest / 8 > 16 ? longest / 8 : 16;
            for (end = begin; end < num && longest - samples[order[end]].enc_tokens < width; end++) {
                int32_t id = order[end], before = end > begin ? samples[order[end - 1]].dec_tokens : 0;
                CHECK(!is_in[id] && (end == begin || (rises ? before <= samples[id].dec_tokens
                                                            : before >= samples[id].dec_tokens)));
                is_in[id] = true;
            }
            for (int32_t i = end; i < num; i++) { CHECK(longest - samples[order[i]].enc_tokens >= width); }
        }
        arena_reset(&arena);
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(padding_is_the_least_that_serves);
    RUN(plans_keep_the_rules);
    RUN(a_plan_that_breaks_a_rule_is_found);
    RUN(what_cannot_be_is_said);
    RUN(a_sample_that_is_too_much_is_named);
    RUN(samples_lie_on_a_snake);
    return test_end();
}
