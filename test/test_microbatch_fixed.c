// test_microbatch_fixed.c -- the baselines: every sample once, budgets and memory kept, the documented
// grouping.
#include "../dynapipe_plugin/plan/problem.h"

#include "../rivals/rivals.h"
#include "list_check.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem problem;

static int64_t largest(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static const PlanSample* sample_of(const MicrobatchList* list, int32_t segment) {
    return &problem.samples[list->segments[segment].sample_idx];
}

static int64_t longest_of(bool is_dec) {
    int64_t longest = 0;
    for (int32_t i = 0; i < problem.num_samples; i++) {
        const PlanSample* sample = &problem.samples[i];
        longest = largest(longest, is_dec ? sample->dec_tokens : sample->enc_tokens);
    }
    return longest;
}

// Of one side; without a limit of its own the decoder's is as long as the encoder's.
static int64_t window_of(bool is_dec) {
    int64_t limit = problem.request.max_target_tokens, longest = longest_of(is_dec);
    if (limit == 0) { return largest(largest(longest, longest_of(!is_dec)), problem.request.max_seq_tokens); }
    return largest(longest, is_dec ? limit : problem.request.max_seq_tokens);
}

// What a window may hold: the default budget.
static int64_t room_of_window(void) {
    return window_of(false) + (problem.request.max_target_tokens > 0 ? window_of(true) : 0);
}

static int64_t budget_of(void) {
    return problem.request.mb_tokens > 0 ? problem.request.mb_tokens : room_of_window();
}

// Tokens of the samples, without padding.
static int64_t real_tokens(const MicrobatchList* list, const Microbatch* mb) {
    int64_t tokens = 0;
    int32_t begin = list->sequences[mb->sequence_begin].segment_begin;
    int32_t end = list->sequences[mb->sequence_end - 1].segment_end;
    for (int32_t i = begin; i < end; i++) {
        tokens += sample_of(list, i)->enc_tokens + sample_of(list, i)->dec_tokens;
    }
    return tokens;
}

static void packed_law(const MicrobatchList* list) {
    int64_t window = window_of(false), dec_window = window_of(true);
    int64_t num_windows = largest(1, budget_of() / room_of_window());
    int32_t next = 0;
    for (int32_t m = 0; m < list->num_mbs; m++) {
        const Microbatch* mb = &list->mbs[m];
        CHECK_EQ(mb->layout, LAYOUT_PACKED);
        CHECK(mb->shape.num_seqs <= num_windows);
        CHECK(m == list->num_mbs - 1 || mb->shape.num_seqs == num_windows);
        CHECK_EQ(mb->shape.enc_squares, mb->shape.num_seqs * window * window);
        for (int32_t q = mb->sequence_begin; q < mb->sequence_end; q++) {
            const PlanSequence* sequence = &list->sequences[q];
            int64_t enc = 0, dec = 0;
            for (int32_t i = sequence->segment_begin; i < sequence->segment_end; i++) {
                CHECK_EQ(list->segments[i].sample_idx, next++);  // in the order they came
                enc += sample_of(list, i)->enc_tokens;
                dec += sample_of(list, i)->dec_tokens;
            }
            CHECK(enc <= window && dec <= dec_window && sequence->dec_tokens <= dec_window);
            if (q + 1 < list->num_sequences) {  // next-fit: the following sample had no room
                const PlanSample* following = &problem.samples[next];
                CHECK(enc + following->enc_tokens > window || dec + following->dec_tokens > dec_window);
            }
        }
    }
}

static void packed_ragged_law(const MicrobatchList* list) {
    int32_t half_empty = 0;
    for (int32_t m = 0; m < list->num_mbs; m++) {
        const Microbatch* mb = &list->mbs[m];
        int64_t tokens = real_tokens(list, mb);
        CHECK_EQ(mb->layout, LAYOUT_RAGGED);
        CHECK_EQ(mb->shape.enc_tokens + mb->shape.dec_tokens, tokens);
        CHECK(tokens <= budget_of() || mb->shape.num_seqs == 1);
        half_empty += 2 * tokens <= budget_of();
    }
    CHECK(half_empty <= 1);  // two such packs would have been one
}

static void padded_law(const MicrobatchList* list, const PlanProblem* mp) {
    int32_t next = 0;
    for (int32_t m = 0; m < list->num_mbs; m++) {
        const Microbatch* mb = &list->mbs[m];
        int64_t enc = 0, dec = 0;
        CHECK_EQ(mb->layout, LAYOUT_PADDED);
        CHECK(m == list->num_mbs - 1 || mb->shape.num_seqs == list->mbs[0].shape.num_seqs);
        if (problem.request.mb_samples > 0) { CHECK(mb->shape.num_seqs <= problem.request.mb_samples); }
        for (int32_t q = mb->sequence_begin; q < mb->sequence_end; q++) {
            CHECK_EQ(list->segments[list->sequences[q].segment_begin].sample_idx, next);
            dec = largest(dec, problem.samples[next].dec_tokens);
            enc = largest(enc, problem.samples[next++].enc_tokens);
        }
        CHECK_EQ(mb->shape.enc_tokens,
                 mb->shape.num_seqs * microbatch_pad_tokens(mp, (int32_t)enc, mb->shape.num_seqs));
        int64_t rounded = (dec + 7) / 8 * 8, limit = problem.request.max_target_tokens;
        if (limit == 0) { limit = problem.request.max_seq_tokens; }
        limit = limit == 0 ? rounded : largest(limit, dec);
        CHECK_EQ(mb->shape.dec_tokens, mb->shape.num_seqs * (rounded < limit ? rounded : limit));
    }
}

static void tokens_law(const MicrobatchList* list) {
    for (int32_t m = 0; m < list->num_mbs; m++) {
        const Microbatch* mb = &list->mbs[m];
        CHECK_EQ(mb->layout, problem.request.layout);
        CHECK(mb->shape.enc_tokens + mb->shape.dec_tokens <= budget_of() || mb->shape.num_seqs == 1);
    }
}

static void every_policy_keeps_its_law(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int built = 0;
    for (int round = 0; round < 150; round++) {
        PlanProblem mp;
        random_problem(&problem, &rng, rng_between(&rng, 1, round % 5 == 0 ? 1 : 150));
        for (int32_t i = 0; i < problem.num_samples && round % 2 && problem.costs.num_dec_layers > 0; i++) {
            int32_t enc = problem.samples[i].enc_tokens;  // long decoders
            problem.samples[i].enc_tokens = 1 + problem.samples[i].dec_tokens;
            problem.samples[i].dec_tokens = enc;
        }
        if (round % 3 == 0) { random_problem_limit_memory(&problem, (int32_t)rng_below(&rng, 3000)); }
        CHECK_OK(
            plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, problem.num_samples));
        for (int b = BATCHING_PACKED; b < BATCHING_COUNT; b++) {
            MicrobatchList list;
            Status status = batching_policy((Batching)b)->build(&list, &mp, &arena);
            if (status != STATUS_OK) {
                CHECK(problem.request.memory_limit_bytes > 0);
                CHECK_FAILS(status, STATUS_INFEASIBLE, "bytes over ---> raise --memory-limit");
                CHECK(strstr(status_message(), batching_policy((Batching)b)->name) != NULL);
                continue;
            }
            built++;
            CHECK_OK(list_check(&list, &mp, &arena));
            if (b == BATCHING_PACKED) { packed_law(&list); }
            if (b == BATCHING_PACKED_RAGGED) { packed_ragged_law(&list); }
            if (b == BATCHING_PADDED) { padded_law(&list, &mp); }
            if (b == BATCHING_TOKENS) { tokens_law(&list); }
        }
        arena_reset(&arena);
    }
    CHECK(built > 300);
    arena_free(&arena);
}

static void policies_are_registered_by_name(void) {
    static const char* const names[] = {"dynamic", "dynapipe", "packed", "packed-ragged",
                                        "padded",  "tokens",   "kk"};
    for (int b = 0; b < BATCHING_COUNT; b++) {
        CHECK_EQ(strcmp(batching_policy((Batching)b)->name, names[b]), 0);
        CHECK(b == BATCHING_DYNAMIC || batching_policy((Batching)b)->build != NULL);
        CHECK(strlen(batching_policy((Batching)b)->help) > 0);
    }
}

// Sequences 5 3 3 2 2 1 into packs of 8: best fit decreasing fills two to the brim.
static void best_fit_fills_the_packs(void) {
    static const int32_t lengths[] = {2, 5, 3, 2, 3, 1};
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    PlanProblem mp;
    MicrobatchList list;
    linear_cost_model(&problem.costs, &rng, 2, 0);
    problem.request = (PlanRequest){.P = 1, .R = 1, .mb_tokens = 8, .max_seq_tokens = 8};
    equal_stages(&problem.request, 2);
    problem.num_samples = 6;
    for (int i = 0; i < 6; i++) { problem.samples[i] = (PlanSample){lengths[i], 0, 0}; }
    CHECK_OK(plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, 6));
    CHECK_OK(microbatch_packed_ragged_build(&list, &mp, &arena));
    CHECK_EQ(list.num_mbs, 2);
    CHECK_EQ(list.mbs[0].shape.enc_tokens, 8);
    CHECK_EQ(list.mbs[0].shape.enc_squares, 25 + 9);
    arena_free(&arena);
}

// A limit that holds any sample but no whole window: packed says so, packed-ragged goes on.
static void packed_needs_memory_for_a_window(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    PlanProblem mp;
    MicrobatchList list;
    linear_cost_model(&problem.costs, &rng, 4, 0);
    problem.request = (PlanRequest){.P = 2, .R = 2, .recompute = RECOMPUTE_CHOICE_NONE, .mb_tokens = 300};
    equal_stages(&problem.request, 4);
    problem.num_samples = 40;
    for (int i = 0; i < 40; i++) { problem.samples[i] = (PlanSample){300, 0, 100}; }
    random_problem_limit_memory(&problem, 300);
    problem.request.max_seq_tokens = 100000;
    CHECK_OK(plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, 40));
    CHECK_FAILS(microbatch_packed_build(&list, &mp, &arena), STATUS_INFEASIBLE,
                "--batching packed: micro-batch 0, of 40 samples");
    CHECK(strstr(status_message(), "--recompute") == NULL);  // recomputed, the window would not fit either
    CHECK_OK(microbatch_packed_ragged_build(&list, &mp, &arena));
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_policy_keeps_its_law);
    RUN(policies_are_registered_by_name);
    RUN(best_fit_fills_the_packs);
    RUN(packed_needs_memory_for_a_window);
    return test_end();
}
