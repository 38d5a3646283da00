// test_session_refit.c -- ranks agree on what steps took; plans use it from the same step on; a run that is
// resumed plans as the whole one. Times of jobs are made up: what was planned, noise, a slow rank.
#include "../dynapipe_plugin/run/session.h"

#include <math.h>
#include <stdlib.h>

#include "../dynapipe_plugin/plan/planner.h"
#include "random_problem.h"
#include "ranks.h"
#include "test.h"

enum { P = 4, NUM_RANKS = 4, NUM_SAMPLES = 40, NUM_AHEAD = 2, NUM_STEPS = 40, MOST_RECORD = 1 << 16 };
enum { SLOW_RANK = 2, SLOW_STEP = 20 };  // slower from step 20 (counted from 1) on
enum { INTERRUPTED = 30 };               // one job in so many takes 3 to 10 times as long

static CostModel costs;
static const char loader[] = "where the loader stands";

typedef struct {
    double slow;       // of SLOW_RANK from SLOW_STEP on
    int32_t num_slow;  // for so many steps; 0: to the end
    double common;     // of all ranks
    int32_t first_step, save_after;
    int32_t save_every;  // 0: only after save_after steps
    bool is_off;
    uint8_t record[MOST_RECORD];  // of rank 0: read where first_step > 0, written after save_after steps
    size_t record_bytes;
    uint64_t hashes[NUM_RANKS][NUM_STEPS];
    double of_ranks[NUM_STEPS][NUM_RANKS];  // by the last version after a step, as rank 0 has it
} Run;

static void costs_make(void) {
    CostAnalytic about = {.num_layers = 8,
                          .channels = 128,
                          .ffn_channels = 512,
                          .tied_head = true,
                          .num_heads = 4,
                          .padded_vocab = 4096,
                          .max_tokens = 2048,
                          .bytes_per_value = 4,
                          .flops_per_ns = 40,
                          .attention_flops_per_ns = 15,
                          .bytes_per_ns = 10,
                          .launch_ns = 20000,
                          .comm_latency_ns = 20000,
                          .comm_bytes_per_ns = 5};
    cost_model_analytic_gpt(&costs, &about);
}

// Jobs of a plan that takes the rank for `known` times as slow, where it is `slow` times; 3 % of noise.
static void measure(TraceRank* out, const Plan* plan, int32_t rank, double slow, double known, Rng* rng,
                    Arena* arena) {
    const PlanRank* list = &plan->ranks[rank];
    *out = (TraceRank){.rank = rank, .events = ARENA_NEW(arena, TraceEvent, list->num_instrs)};
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        double ns = (double)(instr->end_ns - instr->begin_ns) * slow / known;
        ns *= 1 + 0.03 * rng_between(rng, -1732, 1732) / 1000;
        if (rng_below(rng, INTERRUPTED) == 0) { ns *= 3 + (double)rng_below(rng, 8); }
        out->events[out->num_events++] = (TraceEvent){.kind = instr->kind, .end_ns = (int64_t)ns};
    }
}

static Status run_step(SessionRefit* refit, Run* run, Collective* world, int32_t step, Arena* arena) {
    int32_t rank = world->transport->rank;
    PlanRequest request = {.P = P, .R = 1, .max_seq_tokens = 2048, .effort = 10};
    PlanSample samples[NUM_SAMPLES];
    Rng rng = rng_seed((uint64_t)step + 1);
    Plan plan;
    TraceRank trace;
    bool is_slow = step + 1 >= SLOW_STEP && (run->num_slow == 0 || step + 1 < SLOW_STEP + run->num_slow);
    double known, slow = rank == SLOW_RANK && is_slow ? run->slow : 1;
    equal_stages(&request, plan_chain_num_blocks(&costs.chain));
    random_samples(samples, NUM_SAMPLES, &rng, 0, false);
    session_refit_machine(refit, step, &request.machine, &known);
    TRY(plan_make(&plan, &request, &costs, samples, NUM_SAMPLES, arena));
    run->hashes[rank][step] = plan_hash(&plan);
    TRY(collective_all_equal_u64(world, run->hashes[rank][step], "hash of the plan"));
    rng = rng_seed((uint64_t)(step * NUM_RANKS + rank) + 1000);
    measure(&trace, &plan, rank, slow * run->common, known, &rng, arena);
    session_refit_note(refit, &plan, &trace, known);
    return session_refit_agree(refit, world, step + 1);
}

static void note_versions(const SessionRefit* refit, Run* run, int32_t step) {
    for (int32_t r = 0; r < NUM_RANKS && refit->rank == 0; r++) {
        int32_t n = refit->num_versions;
        run->of_ranks[step][r] = n > 0 ? refit->versions[n - 1].slow[r] : 1;
    }
}

static Status save(SessionRefit* refit, Run* run) {
    Text text;
    TRY(text_open(&text));
    TRY(session_refit_write(refit, text.out));
    fwrite(loader, 1, sizeof loader, text.out);
    TRY(text_close(&text));
    EXPECT(text.num_chars <= MOST_RECORD);
    if (refit->rank == 0) { memcpy(run->record, text.text, text.num_chars); }
    if (refit->rank == 0) { run->record_bytes = text.num_chars; }
    free(text.text);
    return STATUS_OK;
}

static Status train(SessionRefit* refit, Run* run, Collective* world) {
    Arena arena = {0};
    Status status = STATUS_OK;
    for (int32_t step = run->first_step; step < NUM_STEPS && status == STATUS_OK; step++) {
        int32_t ahead = step + NUM_AHEAD < NUM_STEPS ? step + NUM_AHEAD : step;
        const Machine* machine;
        double slow;
        arena_reset(&arena);
        int32_t early = session_refit_machine(refit, ahead, &machine, &slow);  // as it may be planned now
        status = run_step(refit, run, world, step, &arena);
        if (status == STATUS_OK && session_refit_machine(refit, ahead, &machine, &slow) != early) {
            status = FAIL(STATUS_COUNT, "the plan of step %d, made ahead, is not that of now", ahead + 1);
        }
        note_versions(refit, run, step);
        bool saves =
            step + 1 == run->save_after || (run->save_every > 0 && (step + 1) % run->save_every == 0);
        if (status == STATUS_OK && saves) { status = save(refit, run); }
    }
    arena_free(&arena);
    return status;
}

static Status body(Transport* transport, void* arg) {
    Run* run = arg;
    SessionRefit refit;
    Collective world;
    const void* position = run->record;
    size_t num_bytes = run->record_bytes;
    session_refit_init(&refit, !run->is_off);
    TRY(ranks_world(&world, transport));
    Status status = run->first_step > 0 ? session_refit_restore(&refit, &position, &num_bytes) : STATUS_OK;
    if (status == STATUS_OK && run->first_step > 0 && num_bytes != sizeof loader) {
        status = FAIL(STATUS_COUNT, "%zu bytes are left to the loader", num_bytes);
    }
    if (status == STATUS_OK) {
        status = session_refit_start(&refit, NULL, transport->rank, NUM_RANKS, NUM_AHEAD);
    }
    if (status == STATUS_OK) { status = train(&refit, run, &world); }
    session_refit_free(&refit);
    collective_free(&world);
    return status;
}

static void run_all(Run* run) {
    RankResult results[NUM_RANKS];
    CHECK_EQ(ranks_run(NUM_RANKS, body, run, results, 1), 0);
}

// --- laws ------------------------------------------------------------------------------------------------

static Run whole, resumed;

static void a_rank_that_becomes_slow_is_found_within_ten_steps(void) {
    whole = (Run){.slow = 1.5, .common = 1.3, .save_after = 26};
    run_all(&whole);
    for (int32_t step = 0; step < NUM_STEPS; step++) {
        for (int32_t r = 0; r < NUM_RANKS; r++) {
            double found = whole.of_ranks[step][r];
            if (r != SLOW_RANK || step + 1 < SLOW_STEP) { CHECK_EQ(found, 1); }
            if (r == SLOW_RANK && step + 1 >= SLOW_STEP + 10) { CHECK_NEAR(found, 1.5, 0.08); }
        }
    }
}

// Noise, interrupted jobs, what takes longer on all ranks, what goes before every step of a window shows it.
static void ranks_that_are_alike_have_the_plans_of_refit_off(void) {
    static Run off;
    off = (Run){.slow = 1, .common = 1, .is_off = true};
    run_all(&off);
    CHECK(memcmp(off.hashes, whole.hashes, sizeof off.hashes) != 0);
    resumed = (Run){.slow = 1.02, .common = 0.7};
    run_all(&resumed);
    CHECK(memcmp(resumed.hashes, off.hashes, sizeof off.hashes) == 0);
    resumed = (Run){.slow = 1.5, .common = 1, .num_slow = SESSION_REFIT_EVERY};  // of two windows
    run_all(&resumed);
    CHECK(memcmp(resumed.hashes, off.hashes, sizeof off.hashes) == 0);
}

static void a_resumed_run_plans_as_the_whole_one(void) {
    resumed = whole;
    resumed.first_step = whole.save_after;
    memset(resumed.hashes, 0, sizeof resumed.hashes);
    run_all(&resumed);
    for (int32_t step = whole.save_after; step < NUM_STEPS; step++) {
        CHECK(resumed.hashes[0][step] == whole.hashes[0][step]);
    }
}

static void saving_changes_nothing(void) {
    for (int32_t every = 1; every <= 4; every++) {
        resumed = (Run){.slow = 1.5, .common = 1.3, .save_every = every};
        run_all(&resumed);
        CHECK(memcmp(resumed.hashes, whole.hashes, sizeof whole.hashes) == 0);
    }
}

static Status restore(SessionRefit* refit, const void* record, size_t* num_bytes) {
    session_refit_free(refit);
    session_refit_init(refit, true);
    *num_bytes = whole.record_bytes;
    return session_refit_restore(refit, &record, num_bytes);
}

static void records_of_others_are_removed(void) {
    SessionRefit refit;
    size_t num_bytes;
    const Machine* machine;
    double slow;
    session_refit_init(&refit, true);
    CHECK_OK(restore(&refit, whole.record, &num_bytes));
    CHECK_EQ(num_bytes, sizeof loader);
    CHECK_OK(session_refit_start(&refit, NULL, SLOW_RANK, NUM_RANKS, NUM_AHEAD));
    CHECK_EQ(session_refit_machine(&refit, NUM_STEPS, &machine, &slow), 24);
    CHECK(slow == whole.of_ranks[25][SLOW_RANK] && machine->ranks[SLOW_RANK].slow[JOB_B] == slow);
    CHECK_OK(restore(&refit, whole.record, &num_bytes));  // on other ranks
    CHECK_OK(session_refit_start(&refit, NULL, 0, 8, NUM_AHEAD));
    CHECK(session_refit_machine(&refit, NUM_STEPS, &machine, &slow) == 0 && machine == NULL && slow == 1);
    session_refit_free(&refit);
    session_refit_init(&refit, false);  // --refit off
    const void* position = whole.record;
    num_bytes = whole.record_bytes;
    CHECK_OK(session_refit_restore(&refit, &position, &num_bytes));
    CHECK_EQ(num_bytes, sizeof loader);
    CHECK_OK(session_refit_start(&refit, NULL, 0, NUM_RANKS, NUM_AHEAD));
    CHECK(session_refit_machine(&refit, NUM_STEPS, &machine, &slow) == 0 && machine == NULL);
    session_refit_free(&refit);
}

// Whatever byte is wrong: nothing is taken, and the loader will not know what is left.
static void a_damaged_record_is_not_taken(void) {
    static uint8_t record[MOST_RECORD];
    SessionRefit refit;
    size_t num_bytes;
    session_refit_init(&refit, true);
    for (size_t at = 0; at < whole.record_bytes - sizeof loader; at += 7) {
        memcpy(record, whole.record, whole.record_bytes);
        record[at] ^= 0x10;
        Status status = restore(&refit, record, &num_bytes);
        CHECK(status != STATUS_OK || num_bytes == whole.record_bytes);
        CHECK_EQ(refit.num_versions, 0);
    }
    session_refit_free(&refit);
}

static const MachineRank known[NUM_RANKS] = {
    {.slow = {1, 1, 1, 1}, .memory_limit_bytes = 1 << 30},
    {.slow = {2, 2, 2, 2}, .memory_limit_bytes = 1 << 20},
    {.slow = {1, 1, 1, 1}, .link_latency_ns = 3000, .link_bytes_per_ns = 4},
    {.slow = {90, 0.5, 1, 1}},
};

static void check_rank(const MachineRank* now, const MachineRank* before, double slow) {
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        double expected = before->slow[kind] * slow;
        expected = expected > MACHINE_MOST_SLOW ? MACHINE_MOST_SLOW : expected;
        CHECK_NEAR(now->slow[kind], expected, 1e-9);
    }
    CHECK_EQ(now->memory_limit_bytes, before->memory_limit_bytes);
    CHECK(now->link_latency_ns == before->link_latency_ns);
    CHECK(now->link_bytes_per_ns == before->link_bytes_per_ns);
}

// What was measured of the ranks stays, corrected; how messages travel stays.
static void plans_know_the_machine_and_what_was_found(void) {
    SessionRefit refit;
    const Machine* machine;
    double slow;
    Machine base = {.num_ranks = NUM_RANKS, .ranks = known, .pulls = true};
    session_refit_init(&refit, true);
    for (int32_t i = 0; i < 3; i++) {
        base.pulls = i == 0;
        base.num_ranks = i < 2 ? NUM_RANKS : 0;  // 0: nothing is known of them
        session_refit_forget(&refit);
        CHECK_OK(session_refit_start(&refit, &base, 0, NUM_RANKS, NUM_AHEAD));
        CHECK_EQ(session_refit_machine(&refit, 9, &machine, &slow), 0);
        CHECK(machine == &base);
        double* found = malloc(NUM_RANKS * sizeof *found);
        for (int32_t r = 0; r < NUM_RANKS; r++) { found[r] = 1.25; }
        refit.versions[0] = (RefitVersion){4, 6, found};
        refit.num_versions = 1;
        CHECK_EQ(session_refit_machine(&refit, 5, &machine, &slow), 0);
        CHECK(machine == &base);
        CHECK_EQ(session_refit_machine(&refit, 6, &machine, &slow), 4);
        CHECK(machine != NULL && machine->pulls == (i == 0) && machine->num_ranks == NUM_RANKS);
        CHECK_OK(machine_check(machine, NUM_RANKS));
        for (int32_t r = 0; r < NUM_RANKS; r++) {
            MachineRank before = machine_rank(&base, r), now = machine_rank(machine, r);
            check_rank(&now, &before, 1.25);
        }
        session_refit_hasten(&refit, 5);  // planned anew
        CHECK_EQ(session_refit_machine(&refit, 4, &machine, &slow), 0);
        CHECK_EQ(session_refit_machine(&refit, 5, &machine, &slow), 4);
        session_refit_free(&refit);
        session_refit_init(&refit, true);
    }
    session_refit_free(&refit);
}

// dynapipe_resplit() may ask behind a restore, where a version of before may be of the same number.
static void nothing_is_known_before_a_plan(void) {
    static Dynapipe dp;
    const Machine* machine;
    session_refit_init(&dp.refit, true);
    CHECK(!session_refit_now(&dp, &machine));
    CHECK(machine == dp.request.machine);
    for (int i = 0; i < 2; i++) {
        const void* position = whole.record;
        size_t num_bytes = whole.record_bytes;
        CHECK_OK(session_refit_restore(&dp.refit, &position, &num_bytes));
        dp.next_step = 24;
        CHECK(!session_refit_now(&dp, &machine));
        CHECK(machine == dp.request.machine);
        CHECK_OK(session_refit_start(&dp.refit, NULL, 0, NUM_RANKS, NUM_AHEAD));
        CHECK(session_refit_now(&dp, &machine) && machine_differs(machine));
    }
    session_refit_free(&dp.refit);
}

int main(void) {
    costs_make();
    RUN(a_rank_that_becomes_slow_is_found_within_ten_steps);
    RUN(ranks_that_are_alike_have_the_plans_of_refit_off);
    RUN(a_resumed_run_plans_as_the_whole_one);
    RUN(saving_changes_nothing);
    RUN(records_of_others_are_removed);
    RUN(a_damaged_record_is_not_taken);
    RUN(plans_know_the_machine_and_what_was_found);
    RUN(nothing_is_known_before_a_plan);
    return test_end();
}
