// test_rivals.c -- other methods: today's batching keeps its laws; the original's parts against their
// definitions, and what it reached on the shared cases; drafts are what they claim to be.
#include "../rivals/rivals.h"

#include <math.h>

#include "../dynapipe_plugin/plan/simulate.h"
#include "../dynapipe_plugin/plan/types.h"
#include "case_problem.h"
#include "random_problem.h"
#include "test.h"

static uint64_t seed;
static RandomProblem problem;
static CaseProblem a_case;

// --- lists -------------------------------------------------------------------------------------------------

static Status sequence_check(const MicrobatchList* list, const PlanProblem* about, int32_t q, bool* seen,
                             MbShape* shape) {
    const PlanSequence* sequence = &list->sequences[q];
    int64_t enc = 0, dec = 0, supervised = 0;
    if (sequence->segment_begin < 0 || sequence->segment_end <= sequence->segment_begin ||
        sequence->segment_end > list->num_segments) {
        return FAIL(STATUS_INVALID_PLAN, "sequence %d: segments out of range", q);
    }
    for (int32_t i = sequence->segment_begin; i < sequence->segment_end; i++) {
        int32_t id = list->segments[i].sample_idx;
        if (id < 0 || id >= about->num_samples || seen[id]) {
            return FAIL(STATUS_INVALID_PLAN, "sequence %d: sample %d is unknown or used twice", q, id);
        }
        const PlanSample* sample = &about->samples[id];
        seen[id] = true;
        enc += sample->enc_tokens;
        dec += sample->dec_tokens;
        supervised += sample->supervised_tokens;
        if (list->segments[i].first_token != 0 || list->segments[i].num_tokens != sample->enc_tokens) {
            return FAIL(STATUS_INVALID_PLAN, "sequence %d: sample %d is not whole", q, id);
        }
    }
    if (sequence->enc_tokens < enc || sequence->dec_tokens < dec) {
        return FAIL(STATUS_INVALID_PLAN, "sequence %d: shorter than its samples", q);
    }
    mb_shape_add(shape, sequence->enc_tokens, sequence->dec_tokens, 0);
    shape->supervised_tokens += supervised;
    return STATUS_OK;
}

static bool shape_equal(const MbShape* a, const MbShape* b) {
    return a->num_seqs == b->num_seqs && a->enc_tokens == b->enc_tokens && a->enc_squares == b->enc_squares &&
           a->dec_tokens == b->dec_tokens && a->dec_squares == b->dec_squares &&
           a->cross_products == b->cross_products && a->supervised_tokens == b->supervised_tokens;
}

// What every batching pass promises of its list: every sample in exactly one segment, ranges sane, shapes and
// work as the sequences say, all fit alone.
static Status list_check(const MicrobatchList* list, const PlanProblem* about, Arena* arena) {
    bool* seen = ARENA_NEW(arena, bool, about->num_samples);
    if (!seen) { return FAIL(STATUS_NO_MEMORY, "check of %d samples", about->num_samples); }
    int32_t next = 0;
    for (int32_t m = 0; m < list->num_mbs; m++) {
        const Microbatch* mb = &list->mbs[m];
        MbShape shape = {0};
        if (mb->sequence_begin != next || mb->sequence_end <= next ||
            mb->sequence_end > list->num_sequences) {
            return FAIL(STATUS_INVALID_PLAN, "microbatch %d: sequences out of range", m);
        }
        for (; next < mb->sequence_end; next++) { TRY(sequence_check(list, about, next, seen, &shape)); }
        MicrobatchCost cost = microbatch_cost(about, mb->mode, SHARE_ALONE, &shape);
        if (!shape_equal(&shape, &mb->shape) || cost.work_ns != mb->work_ns) {
            return FAIL(STATUS_INVALID_PLAN, "microbatch %d: shape, work or replica is not what it says", m);
        }
        if (!cost.fits_alone) {
            return FAIL(STATUS_INVALID_PLAN, "microbatch %d: does not fit in memory", m);
        }
    }
    for (int32_t i = 0; i < about->num_samples; i++) {
        if (!seen[i]) { return FAIL(STATUS_INVALID_PLAN, "sample %d is in no microbatch", i); }
    }
    return next == list->num_sequences
               ? STATUS_OK
               : FAIL(STATUS_INVALID_PLAN, "%d sequences in no microbatch", list->num_sequences - next);
}

// --- today's batching -------------------------------------------------------------------------------------

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
        for (int32_t i = 0; i < problem.num_samples && round % 2 && problem.costs.chain.num_dec_layers > 0;
             i++) {
            int32_t enc = problem.samples[i].enc_tokens;  // long decoders
            problem.samples[i].enc_tokens = 1 + problem.samples[i].dec_tokens;
            problem.samples[i].dec_tokens = enc;
        }
        if (round % 3 == 0) { random_problem_limit_memory(&problem, (int32_t)rng_below(&rng, 3000)); }
        CHECK_OK(
            plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, problem.num_samples));
        for (int b = BATCHING_PACKED; b < BATCHING_COUNT; b++) {
            MicrobatchList list;
            problem.request.batching = (Batching)b;
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

// A limit that holds any sample but no whole window: packed says so, packed-ragged goes on.
static void packed_needs_memory_for_a_window(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    PlanProblem mp;
    MicrobatchList list;
    linear_cost_model(&problem.costs, &rng, 4, 0);
    problem.request = (PlanRequest){
        .P = 2, .R = 2, .batching = BATCHING_PACKED, .recompute = RECOMPUTE_CHOICE_NONE, .mb_tokens = 300};
    equal_stages(&problem.request, 4);
    problem.num_samples = 40;
    for (int i = 0; i < 40; i++) { problem.samples[i] = plan_sample(300, 0, 100); }
    random_problem_limit_memory(&problem, 300);
    problem.request.max_seq_tokens = 100000;
    CHECK_OK(plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, 40));
    CHECK_FAILS(microbatch_packed_build(&list, &mp, &arena), STATUS_INFEASIBLE,
                "--batching packed: microbatch 0, of 40 samples");
    CHECK(strstr(status_message(), "--recompute") == NULL);  // recomputed, the window would not fit either
    CHECK_OK(microbatch_packed_ragged_build(&list, &mp, &arena));
    arena_free(&arena);
}

// --- the cyclic order ------------------------------------------------------------------------------------

enum { MAX_P = 8, MAX_M = 20 };

static PipeProblem random_pipe(PipeCost* costs, int32_t P, int32_t M, Rng* rng) {
    for (int32_t i = 0; i < P * M; i++) {
        costs[i] = (PipeCost){.job_ns = {rng_between(rng, 1, 9), rng_between(rng, 1, 9)},
                              .stored_bytes = rng_between(rng, 1, 100),
                              .transfer_ns = rng_between(rng, 0, 5)};
    }
    PipeProblem pipe = {.P = P, .M = M, .cost = costs};
    for (int32_t s = 0; s < P; s++) { pipe.memory_limit_bytes[s] = INT64_MAX; }
    return pipe;
}

// Stage s runs F(k) in cycle s + k and B(k) in cycle 2P - 1 - s + k, backward first: its list is exactly
// that, whatever the jobs take; and it holds 2 (P - s) - 1 microbatches at most.
static void cyclic_runs_each_job_in_its_cycle(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    static PipeCost costs[MAX_P * MAX_M];
    for (int32_t P = 1; P <= MAX_P; P++) {
        for (int32_t M = 1; M <= MAX_M; M++) {
            PipeProblem pipe = random_pipe(costs, P, M, &rng);
            PipeSchedule schedule;
            PipeTimeline timeline;
            int32_t order[MAX_M];
            for (int32_t i = 0; i < M; i++) { order[i] = (i * 7 + 3) % M; }
            for (int32_t i = 0; i < M && M % 7 == 0; i++) { order[i] = M - 1 - i; }
            CHECK_OK(pipe_policy_cyclic.build(&schedule, &pipe, order, false, &arena));
            CHECK_OK(pipe_simulate(&timeline, &pipe, &schedule, &arena));
            for (int32_t s = 0; s < P; s++) {
                int32_t i = 0, held = 0, most = 0;
                for (int32_t cycle = 0; cycle < 2 * P + M; cycle++) {
                    int32_t b = cycle - (2 * P - 1 - s), f = cycle - s;
                    if (b >= 0 && b < M) {
                        CHECK(schedule.jobs[s][i].kind == JOB_B && schedule.jobs[s][i].mb == order[b]);
                        i++, held--;
                    }
                    if (f >= 0 && f < M) {
                        CHECK(schedule.jobs[s][i].kind == JOB_F && schedule.jobs[s][i].mb == order[f]);
                        i++, held++;
                    }
                    most = held > most ? held : most;
                }
                CHECK_EQ(schedule.num_jobs[s], i);
                CHECK_EQ(most, M < 2 * (P - s) - 1 ? M : 2 * (P - s) - 1);
            }
            arena_reset(&arena);
        }
    }
    arena_free(&arena);
}

// With a limit under which each fits alone: everything runs, nothing is ever over; without pressure it is the
// order without a limit; and one that does not fit alone is reported.
static void limited_cyclic_keeps_the_limit(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    static PipeCost costs[MAX_P * MAX_M];
    int waited = 0;
    for (int round = 0; round < 300; round++) {
        int32_t P = rng_between(&rng, 1, MAX_P), M = rng_between(&rng, 1, MAX_M), order[MAX_M];
        PipeProblem pipe = random_pipe(costs, P, M, &rng);
        PipeSchedule free_schedule, schedule;
        PipeTimeline timeline;
        int64_t limit = rng_between(&rng, 100, 800);
        for (int32_t i = 0; i < M; i++) { order[i] = i; }
        CHECK_OK(pipe_policy_cyclic.build(&free_schedule, &pipe, order, false, &arena));
        CHECK_OK(pipe_policy_cyclic_limited.build(&schedule, &pipe, order, false, &arena));
        for (int32_t s = 0; s < P; s++) {
            CHECK_EQ(memcmp(schedule.jobs[s], free_schedule.jobs[s], (size_t)M * 2 * sizeof(PipeJob)), 0);
            pipe.memory_limit_bytes[s] = limit;
        }
        CHECK_OK(pipe_policy_cyclic_limited.build(&schedule, &pipe, order, false, &arena));
        CHECK_OK(pipe_simulate(&timeline, &pipe, &schedule, &arena));
        bool same = true;
        for (int32_t s = 0; s < P; s++) {
            CHECK(timeline.peak_bytes[s] <= limit);
            same &= memcmp(schedule.jobs[s], free_schedule.jobs[s], (size_t)M * 2 * sizeof(PipeJob)) == 0;
        }
        waited += !same;
        costs[rng_below(&rng, (uint32_t)(P * M))].stored_bytes = limit + 1;
        CHECK_FAILS(pipe_policy_cyclic_limited.build(&schedule, &pipe, order, false, &arena),
                    STATUS_INFEASIBLE, "1 bytes over");
        arena_reset(&arena);
    }
    CHECK(waited > 50);
    arena_free(&arena);
}

// --- replicas --------------------------------------------------------------------------------------------

enum { KK_MAX = 24 };
typedef struct {
    int64_t sum[KK_MAX];
    int32_t owner[KK_MAX];  // of each job: bin, or -1
    int64_t age;
} NaiveTuple;

static void naive_sort(NaiveTuple* t, int32_t M, int32_t R) {
    for (int32_t pass = 0; pass < R; pass++) {
        for (int32_t k = 0; k + 1 < R; k++) {
            if (t->sum[k] <= t->sum[k + 1]) { continue; }
            int64_t sum = t->sum[k];
            t->sum[k] = t->sum[k + 1], t->sum[k + 1] = sum;
            for (int32_t i = 0; i < M; i++) {
                t->owner[i] = t->owner[i] == k ? k + 1 : t->owner[i] == k + 1 ? k : t->owner[i];
            }
        }
    }
}

static int32_t naive_take(NaiveTuple* tuples, int32_t* num, int32_t R, NaiveTuple* out) {
    int32_t best = 0;
    for (int32_t i = 1; i < *num; i++) {
        int64_t a = tuples[i].sum[R - 1] - tuples[i].sum[0],
                b = tuples[best].sum[R - 1] - tuples[best].sum[0];
        if (a > b || (a == b && tuples[i].age < tuples[best].age)) { best = i; }
    }
    *out = tuples[best];
    tuples[best] = tuples[--*num];
    return best;
}

// The definition word for word, with lists that are searched from end to end.
static void differencing_is_karmarkar_karp(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    static NaiveTuple tuples[KK_MAX];
    for (int round = 0; round < 500; round++) {
        int32_t M = rng_between(&rng, 1, KK_MAX), R = rng_between(&rng, 1, 6), num = 0, replica_of[KK_MAX];
        int64_t work[KK_MAX];
        int32_t most = rng_below(&rng, 2) ? 20 : 1000000;  // many ties, or none
        bool used[KK_MAX] = {false};
        for (int32_t i = 0; i < M; i++) { work[i] = rng_between(&rng, 1, most); }
        for (int32_t k = 0; k < M; k++) {
            int32_t best = -1;
            for (int32_t i = 0; i < M; i++) {
                if (!used[i] && (best < 0 || work[i] > work[best])) { best = i; }
            }
            used[best] = true;
            NaiveTuple t = {.age = k};
            for (int32_t i = 0; i < M; i++) { t.owner[i] = i == best ? R - 1 : -1; }
            t.sum[R - 1] = work[best];
            tuples[num++] = t;
        }
        for (int64_t age = M; num > 1; age++) {
            NaiveTuple a, b;
            naive_take(tuples, &num, R, &a);
            naive_take(tuples, &num, R, &b);
            for (int32_t k = 0; k < R; k++) { a.sum[k] += b.sum[R - 1 - k]; }
            for (int32_t i = 0; i < M; i++) {
                if (b.owner[i] >= 0) { a.owner[i] = R - 1 - b.owner[i]; }
            }
            naive_sort(&a, M, R);
            a.age = age;
            tuples[num++] = a;
        }
        CHECK_OK(balance_difference(replica_of, work, M, R, &arena));
        for (int32_t i = 0; i < M; i++) { CHECK_EQ(replica_of[i], tuples[0].owner[i]); }
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// Every microbatch once, in list order; each replica has one where there are enough.
static void lists_partition_the_micro_batches(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    for (int round = 0; round < 60; round++) {
        Microbatch mbs[50] = {{.work_ns = 0}};
        MicrobatchList list = {.num_mbs = rng_between(&rng, 1, 50), .mbs = mbs};
        ReplicaMbs lists;
        double slow[40];
        int32_t R = rng_between(&rng, 1, 40), seen = 0, used = 0;
        bool differs = round % 2;
        for (int32_t r = 0; r < R; r++) { slow[r] = rng_between(&rng, 1, 3); }
        for (int32_t m = 0; m < list.num_mbs; m++) { mbs[m].work_ns = rng_between(&rng, 0, 1000); }
        CHECK_OK(balance_replicas(&lists, &list, R, differs ? slow : NULL, &arena));
        for (int32_t r = 0; r < R; r++) {
            used += lists.begin[r + 1] > lists.begin[r];
            for (int32_t k = lists.begin[r]; k < lists.begin[r + 1]; k++, seen++) {
                CHECK(k == lists.begin[r] || lists.mbs[k] > lists.mbs[k - 1]);
            }
        }
        CHECK_EQ(seen, list.num_mbs);
        CHECK(differs || used == (list.num_mbs < R ? list.num_mbs : R));
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// --- the original's order of samples ----------------------------------------------------------------------

static PlanSample samples[RANDOM_MAX_SAMPLES];
static int32_t cluster_of[RANDOM_MAX_SAMPLES], placed[RANDOM_MAX_SAMPLES];

static int64_t distance2(int32_t i, int32_t j) {
    int64_t x = samples[i].enc_tokens - samples[j].enc_tokens,
            y = samples[i].dec_tokens - samples[j].dec_tokens;
    return x * x + y * y;
}

static void random_lengths(int32_t num, Rng* rng, int32_t most_enc, int32_t most_dec) {
    for (int32_t i = 0; i < num; i++) {
        samples[i] = plan_sample(rng_between(rng, 1, most_enc), rng_between(rng, 2, most_dec), 1);
    }
}

// Farthest pair between two clusters (or within one).
static int64_t farthest2(const int32_t* of, int32_t num, int32_t a, int32_t b) {
    int64_t most = 0;
    for (int32_t i = 0; i < num; i++) {
        for (int32_t j = 0; j < num; j++) {
            if (of[i] == a && of[j] == b && distance2(i, j) > most) { most = distance2(i, j); }
        }
    }
    return most;
}

// The definition: merge the closest two until none are closer than 16. False where a tie leaves a choice.
static bool link_naively(int32_t* of, int32_t num) {
    for (int32_t i = 0; i < num; i++) { of[i] = i; }
    for (;;) {
        int64_t least = 256;
        int32_t a = -1, b = -1, num_least = 0;
        for (int32_t i = 0; i < num; i++) {
            for (int32_t j = 0; j < i; j++) {
                if (of[i] != i || of[j] != j) { continue; }
                int64_t d = farthest2(of, num, i, j);
                if (d < least) { least = d, a = j, b = i, num_least = 0; }
                num_least += d == least && least < 256;
            }
        }
        if (a < 0) { return true; }
        if (num_least > 1 && least > 0) { return false; }
        for (int32_t i = 0; i < num; i++) { of[i] = of[i] == b ? a : of[i]; }
    }
}

static void clusters_are_complete_linkage(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int exact = 0;
    for (int round = 0; round < 400; round++) {
        int32_t num = rng_between(&rng, 1, 24), num_clusters, naive[24];
        random_lengths(num, &rng, rng_between(&rng, 20, 200), rng_between(&rng, 4, 60));
        CHECK_OK(original_clusters_make(cluster_of, &num_clusters, samples, num, &arena));
        for (int32_t a = 0; a < num_clusters; a++) {
            for (int32_t b = 0; b <= a; b++) {
                int64_t d = farthest2(cluster_of, num, a, b);
                CHECK(a == b ? d < 256 : d >= 256);
            }
        }
        if (link_naively(naive, num)) {
            exact++;
            for (int32_t i = 0; i < num; i++) {
                for (int32_t j = 0; j < i; j++) {
                    CHECK_EQ(cluster_of[i] == cluster_of[j], naive[i] == naive[j]);
                }
            }
        }
        arena_reset(&arena);
    }
    CHECK(exact > 30);
    arena_free(&arena);
}

static void many_lengths_are_clustered_as_tightly(void) {
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    int32_t num = RANDOM_MAX_SAMPLES, num_clusters;
    random_lengths(num, &rng, 2000, 500);
    CHECK_OK(original_clusters_make(cluster_of, &num_clusters, samples, num, &arena));
    for (int32_t i = 0; i < num; i++) {
        for (int32_t j = 0; j < i; j++) { CHECK(cluster_of[i] != cluster_of[j] || distance2(i, j) < 256); }
    }
    CHECK(num_clusters < num * 9 / 10);
    arena_free(&arena);
}

// Clusters stand together, each in the samples' own order; decoder-only samples are sorted.
static void order_keeps_clusters_together(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    for (int round = 0; round < 100; round++) {
        int32_t num = rng_between(&rng, 1, 300), num_clusters, changes = 0, sorted[300];
        random_lengths(num, &rng, 400, 100);
        CHECK_OK(original_clusters_make(cluster_of, &num_clusters, samples, num, &arena));
        CHECK_OK(original_order_make(placed, samples, num, &arena));
        bool seen[300] = {false};
        for (int32_t k = 0; k < num; k++) {
            CHECK(placed[k] >= 0 && placed[k] < num && !seen[placed[k]]);
            seen[placed[k]] = true;
            bool same = k > 0 && cluster_of[placed[k]] == cluster_of[placed[k - 1]];
            changes += k > 0 && !same;
            CHECK(!same || placed[k] > placed[k - 1]);
        }
        CHECK_EQ(changes, num_clusters - 1);
        for (int32_t i = 0; i < num; i++) { samples[i].dec_tokens = 0; }
        CHECK_OK(original_order_make(placed, samples, num, &arena));
        CHECK_OK(sample_order_sorted(sorted, samples, num, &arena));
        CHECK_EQ(memcmp(placed, sorted, (size_t)num * sizeof *placed), 0);
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// --- the path --------------------------------------------------------------------------------------------

// Between two places of the path; beyond its ends there is nothing.
static int64_t gap(const PathPoint* points, const int32_t* path, int32_t i, int32_t j, int32_t num) {
    if (i < 0 || j >= num) { return 0; }
    return llabs((long long)points[path[i]].x - points[path[j]].x) +
           llabs((long long)points[path[i]].y - points[path[j]].y);
}

// Every point once, and no stretch of the path gains by being reversed; near 0.93 sqrt(num * area), the
// length of the best tours by L1 distance, in a square of random points.
static void no_reversal_shortens_the_path(void) {
    enum { MOST = 200, SIDE = 10000 };
    Rng rng = rng_seed(seed + 3);
    Arena arena = {0};
    for (int round = 0; round < 40; round++) {
        PathPoint points[MOST];
        int32_t num = round < 5 ? MOST : rng_between(&rng, 1, 40), path[MOST];
        bool seen[MOST] = {false};
        for (int32_t i = 0; i < num; i++) {
            points[i] = (PathPoint){rng_between(&rng, 0, SIDE), rng_between(&rng, 0, SIDE)};
        }
        CHECK_OK(short_path_make(path, points, num, &arena));
        int64_t length = 0;
        for (int32_t i = 0; i < num; i++) {
            CHECK(path[i] >= 0 && path[i] < num && !seen[path[i]]);
            seen[path[i]] = true;
            length += i > 0 ? gap(points, path, i - 1, i, num) : 0;
            for (int32_t j = i; j < num; j++) {
                CHECK(gap(points, path, i - 1, i, num) + gap(points, path, j, j + 1, num) <=
                      gap(points, path, i - 1, j, num) + gap(points, path, i, j + 1, num));
            }
        }
        CHECK(num < MOST || (double)length < 1.15 * SIDE * sqrt(MOST));
    }
    arena_free(&arena);
}

// --- the original's microbatches -------------------------------------------------------------------------

// Time of order[begin..end), or -1 where the options do not allow it.
static int64_t interval_ns(const PlanProblem* mp, const int32_t* order, int32_t begin, int32_t end,
                           const OriginalCutOptions* o) {
    MbShape shape = {0};
    int32_t enc = 0, dec = 0;
    for (int32_t k = begin; k < end; k++) {
        const PlanSample* s = &mp->samples[order[k]];
        enc = s->enc_tokens > enc ? s->enc_tokens : enc;
        dec = s->dec_tokens > dec ? s->dec_tokens : dec;
    }
    for (int32_t k = begin; k < end; k++) {
        const PlanSample* s = &mp->samples[order[k]];
        bool padded = o->layout == LAYOUT_PADDED;
        mb_shape_add(&shape, padded ? microbatch_pad_tokens(mp, enc, end - begin) : s->enc_tokens,
                     padded ? microbatch_pad_targets(mp, dec, end - begin) : s->dec_tokens,
                     s->supervised_tokens);
    }
    MicrobatchCost cost = microbatch_cost(mp, o->mode, o->share, &shape);
    return cost.fits_held ? cost.work_ns : -1;
}

// The definition: every interval's time, sorted and thinned, is a cap; the recurrence for each. -1: none is
// feasible.
static int64_t best_objective(const PlanProblem* mp, const int32_t* ids, const OriginalCutOptions* o) {
    int64_t caps[64], num = 0, best = -1, last = -1;
    int32_t N = mp->num_samples;
    for (int32_t i = 0; i < N; i++) {
        for (int32_t n = i + 1; n <= N; n++) {
            int64_t t = interval_ns(mp, ids, i, n, o), at = num;
            if (t < 0) { break; }
            for (num++; at > 0 && caps[at - 1] > t; at--) { caps[at] = caps[at - 1]; }
            caps[at] = t;
        }
    }
    for (int64_t k = 0; k < num; k++) {
        int64_t f[11] = {0};
        if (last >= 0 && caps[k] - last <= o->thinning_ns) { continue; }
        last = caps[k];
        for (int32_t n = 1; n <= N; n++) {
            f[n] = -1;
            for (int32_t i = 0; i < n; i++) {
                int64_t t = interval_ns(mp, ids, i, n, o);
                if (f[i] >= 0 && t >= 0 && t <= last && (f[n] < 0 || f[i] + t < f[n])) { f[n] = f[i] + t; }
            }
        }
        int64_t value = (mp->P - 1) * mp->R * last + f[N];
        if (f[N] >= 0 && (best < 0 || value < best)) { best = value; }
    }
    return best;
}

static void cuts_are_the_best(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int infeasible = 0, several = 0;
    for (int round = 0; round < 300; round++) {
        PlanProblem mp;
        OriginalCuts cuts;
        int32_t ids[10], N = rng_between(&rng, 1, 10);
        random_problem(&problem, &rng, N);
        if (rng_below(&rng, 2)) { random_problem_limit_memory(&problem, (int32_t)rng_below(&rng, 300) - 40); }
        if (rng_below(&rng, 3) == 0) { problem.request.P = 1; }
        equal_stages(&problem.request, plan_chain_num_blocks(&problem.costs.chain));
        if (round % 2) {
            problem.request.rules.seq_multiple = rng_between(&rng, 0, 40);
            problem.request.rules.max_seqs = rng_below(&rng, 4) ? 0 : rng_between(&rng, 1, 6);
        }
        if (plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, N)) { continue; }
        CHECK_OK(sample_order_sorted(ids, problem.samples, N, &arena));
        OriginalCutOptions o = {.thinning_ns = rng_below(&rng, 2) ? rng_between(&rng, 1, 5000000) : 0,
                                .share = (MicrobatchShare)rng_below(&rng, 3),
                                .mode = rng_below(&rng, 2) ? RECOMPUTE_NONE : RECOMPUTE_FULL,
                                .layout = rng_below(&rng, 2) ? LAYOUT_RAGGED : LAYOUT_PADDED};
        int64_t best = best_objective(&mp, ids, &o), sum = 0, longest = 0;
        Status status = original_cut(&cuts, &mp, ids, &o, &arena);
        CHECK_EQ(status, best < 0 ? STATUS_INFEASIBLE : STATUS_OK);
        infeasible += best < 0;
        if (best < 0 || status != STATUS_OK) { continue; }
        CHECK_EQ(cuts.objective_ns, best / mp.R);
        CHECK_EQ(cuts.cut[0], 0);
        CHECK_EQ(cuts.cut[cuts.num_mbs], N);
        for (int32_t k = 0; k < cuts.num_mbs; k++) {
            int64_t t = interval_ns(&mp, ids, cuts.cut[k], cuts.cut[k + 1], &o);
            CHECK(t >= 0);
            sum += t;
            longest = t > longest ? t : longest;
        }
        CHECK(longest * (mp.P - 1) * mp.R + sum <= best);
        several += cuts.num_mbs > 1;
        arena_reset(&arena);
    }
    CHECK(infeasible > 5 && several > 20);
    arena_free(&arena);
}

static void too_little_memory_names_the_sample(void) {
    Arena arena = {0};
    Rng rng = rng_seed(seed + 3);
    PlanProblem mp;
    MicrobatchList list;
    linear_cost_model(&problem.costs, &rng, 4, 0);
    problem.request =
        (PlanRequest){.P = 2, .R = 1, .layout = LAYOUT_PADDED, .recompute = RECOMPUTE_CHOICE_AUTO};
    equal_stages(&problem.request, 4);
    random_samples(problem.samples, 3, &rng, 0, false);
    problem.samples[1].enc_tokens = 2000;
    problem.num_samples = 3;
    random_problem_limit_memory(&problem, 10);
    problem.samples[1].enc_tokens = 4000;
    CHECK_OK(plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, 3));
    CHECK_FAILS(microbatch_build_original(&list, &mp, &arena), STATUS_INFEASIBLE, "bytes over ---> ");
    problem.request.memory_limit_bytes = 1;
    CHECK_FAILS(plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, 3),
                STATUS_INFEASIBLE, "--memory-limit");
    arena_free(&arena);
}

// --- the original's orders of microbatches
// ----------------------------------------------------------------------------------------------

static bool is_permutation(const int32_t* order, int32_t M) {
    bool seen[64] = {false};
    for (int32_t i = 0; i < M; i++) {
        if (order[i] < 0 || order[i] >= M || seen[order[i]]) { return false; }
        seen[order[i]] = true;
    }
    return true;
}

static void orders_are_those_of_the_original(void) {
    Rng rng = rng_seed(seed + 3);
    Arena arena = {0};
    for (int round = 0; round < 200; round++) {
        int32_t M = rng_between(&rng, 1, 40), num, k = M > 20 ? 3 : 4, *tried[ORIGINAL_MAX_ORDERS];
        OriginalPoint points[64];
        int32_t num_groups = rng_between(&rng, 1, k), group[64];
        for (int32_t m = 0; m < M; m++) {  // groups far apart: k-means must find them where there are k
            group[m] = m < num_groups ? m : (int32_t)rng_below(&rng, (uint32_t)num_groups);
            for (int i = 0; i < ORIGINAL_FEATURES; i++) {
                points[m].us[i] = 1000000 * group[m] * (i + 1) + rng_between(&rng, 0, 3);
            }
        }
        CHECK_OK(original_orders_make(tried, &num, points, M, &rng, &arena));
        for (int32_t t = 0; t < num; t++) {
            CHECK(is_permutation(tried[t], M));
            int32_t changes = 0;
            for (int32_t i = 1; i < M; i++) { changes += group[tried[t][i]] != group[tried[t][i - 1]]; }
            bool identity_or_small = M <= k || t == (k == 3 ? 6 : 24);
            if (!identity_or_small && num_groups == k) { CHECK_EQ(changes, k - 1); }
        }
        static const int32_t factorial[] = {1, 1, 2, 6, 24};
        if (M <= k) {
            CHECK_EQ(num, factorial[M]);
        } else {
            CHECK(num <= factorial[k] + 1 && (num_groups < k || num == factorial[k] + 1));
            for (int32_t m = 0; m < M; m++) { CHECK_EQ(tried[num - 1][m], m); }
        }
        for (int32_t a = 0; a < num && M <= k; a++) {
            for (int32_t b = 0; b < a; b++) { CHECK(memcmp(tried[a], tried[b], (size_t)M * 4) != 0); }
        }
        arena_reset(&arena);
    }
    arena_free(&arena);
}

// --- drafts -----------------------------------------------------------------------------------------------

// As the draft says, built and simulated anew; INT64_MAX where that does not fit.
static int64_t replica_ns(const Draft* draft, const PlanProblem* mp, int32_t r, Arena* arena) {
    const DraftReplica* replica = &draft->replica[r];
    int32_t M = replica->M, *ids = ARENA_NEW(arena, int32_t, M);
    ReplicaProblem made;
    PipeSchedule schedule;
    PipeTimeline timeline = {0};
    CHECK_OK(replica_problem_make(&made, mp, &draft->list, r, replica->mbs, M, replica->modes, arena));
    for (int32_t m = 0; m < M; m++) { ids[m] = m; }
    Status status = pipe_variant_build(&schedule, &made.pipe, ids, &replica->variant, arena);
    if (status == STATUS_INFEASIBLE) { return INT64_MAX; }
    CHECK_OK(status);
    CHECK_OK(pipe_simulate(&timeline, &made.pipe, &schedule, arena));
    for (int32_t s = 0; s < mp->P; s++) {
        if (timeline.peak_bytes[s] > made.pipe.memory_limit_bytes[s]) { return INT64_MAX; }
    }
    return timeline.makespan_ns;
}

static void draft_check(const Draft* draft, const PlanProblem* mp, Arena* arena) {
    int64_t slowest_ns = 0;
    int32_t num = 0;
    bool* seen = ARENA_NEW(arena, bool, draft->list.num_mbs);
    CHECK_OK(list_check(&draft->list, mp, arena));
    for (int32_t r = 0; r < mp->R; r++) {
        int64_t ns = replica_ns(draft, mp, r, arena);
        CHECK_EQ(draft->replica[r].makespan_ns, ns);
        slowest_ns = ns > slowest_ns ? ns : slowest_ns;
        for (int32_t i = 0; i < draft->replica[r].M; i++, num++) {
            CHECK(!seen[draft->replica[r].mbs[i]]);
            seen[draft->replica[r].mbs[i]] = true;
        }
    }
    CHECK_EQ(num, draft->list.num_mbs);
    CHECK_EQ(draft->makespan_ns, slowest_ns);
}

static void drafts_are_what_they_say(void) {
    Rng rng = rng_seed(seed);
    Arena arena = {0};
    int32_t num_drafts = 0, num_recomputed = 0, num_unfit = 0;
    for (int32_t round = 0; round < 300 && test_failures == 0; round++) {
        Draft drafts[RIVAL_MAX_DRAFTS];
        PlanProblem mp;
        int32_t num = 0;
        arena_reset(&arena);
        random_problem(&problem, &rng, rng_between(&rng, 1, 40));
        problem.request.batching = (Batching)(1 + round % (BATCHING_COUNT - 1));
        problem.request.schedule = (ScheduleChoice)rng_below(&rng, SCHEDULE_COUNT);
        problem.request.split_backward = (SplitBackward)rng_below(&rng, 3);
        problem.request.memory_rule = rng_below(&rng, 2) ? MEMORY_BUFFERS : MEMORY_ACTIVATIONS;
        problem.request.max_seq_tokens = 40000;
        if (round % 2) { random_problem_limit_memory(&problem, rng_between(&rng, 0, 200)); }
        CHECK_OK(
            plan_problem_init(&mp, &problem.request, &problem.costs, problem.samples, problem.num_samples));
        Status status = rival_drafts(drafts, &num, &mp, &mp, &arena);
        if (status == STATUS_INFEASIBLE) { continue; }
        CHECK_OK(status);
        CHECK(num >= 1 && num <= RIVAL_MAX_DRAFTS);
        for (int32_t i = 0; i < num; i++) {
            draft_check(&drafts[i], &mp, &arena);
            CHECK(i == 0 || drafts[i].makespan_ns >= drafts[i - 1].makespan_ns);
            num_recomputed += drafts[i].replica[0].modes != NULL;
            num_unfit += drafts[i].makespan_ns == INT64_MAX;
            num_drafts++;
        }
    }
    printf("     %d drafts, %d that do not fit as they are, %d recomputed\n", num_drafts, num_unfit,
           num_recomputed);
    CHECK(num_drafts > 250 && num_unfit > 0 && num_recomputed > 0);
    arena_free(&arena);
}

// The original's objective (with its path from another solver within 1 %), and its makespan within 5 %: its
// random orders have no seed.
static void cases_come_out_as_the_original(void) {
    Arena arena = {0};
    for (int i = 0; case_names[i]; i++) {
        CaseReference reference;
        PlanProblem mp;
        Draft draft;
        if (!case_problem_load(&a_case, case_names[i]) || !case_reference_load(&reference, case_names[i])) {
            test_failures++;
            continue;
        }
        CHECK_OK(cost_model_check(&a_case.costs));
        CHECK_OK(case_problem_init(&mp, &a_case));
        CHECK_OK(original_draft(&draft, &mp, &arena));
        draft_check(&draft, &mp, &arena);
        double makespan_ms = (double)draft.makespan_ns / 1e6,
               objective_ms = (double)draft.list.objective_ns / 1e6;
        printf("%-24s %9.2f ms, reference %9.2f ms; objective %.1f ms, %d microbatches, reference %.1f ms, "
               "%d\n",
               case_names[i], makespan_ms, reference.makespan_ms, objective_ms, draft.list.num_mbs,
               reference.objective_ms, reference.num_mbs);
        CHECK_NEAR(makespan_ms / reference.makespan_ms, 1, 0.05);
        if (a_case.encoder_decoder) {
            CHECK_NEAR(objective_ms / reference.objective_ms, 1, 0.01);
            CHECK_NEAR((double)draft.list.num_mbs / reference.num_mbs, 1, 0.15);
        } else {
            CHECK_NEAR(objective_ms, reference.objective_ms, 0.06);
            CHECK_EQ(draft.list.num_mbs, reference.num_mbs);
        }
        arena_reset(&arena);
    }
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(every_policy_keeps_its_law);
    RUN(packed_needs_memory_for_a_window);
    RUN(cyclic_runs_each_job_in_its_cycle);
    RUN(limited_cyclic_keeps_the_limit);
    RUN(differencing_is_karmarkar_karp);
    RUN(lists_partition_the_micro_batches);
    RUN(clusters_are_complete_linkage);
    RUN(many_lengths_are_clustered_as_tightly);
    RUN(order_keeps_clusters_together);
    RUN(no_reversal_shortens_the_path);
    RUN(cuts_are_the_best);
    RUN(too_little_memory_names_the_sample);
    RUN(orders_are_those_of_the_original);
    RUN(drafts_are_what_they_say);
    if (case_available()) {
        RUN(cases_come_out_as_the_original);
    } else {
        SKIP(cases_come_out_as_the_original, "../shared/cases is not there");
    }
    return test_end();
}
