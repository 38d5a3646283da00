// test_session_refit.c -- ranks agree on what steps took; plans use it from the same step on; a run that is
// resumed plans as the whole one. Times of jobs are made up: true costs, noise, a slow rank.
#include "../dynapipe_plugin/run/session.h"

#include <math.h>
#include <stdlib.h>

#include "../dynapipe_plugin/plan/planner.h"
#include "random_problem.h"
#include "ranks.h"
#include "refit_case.h"
#include "test.h"

enum { P = 4, NUM_RANKS = 4, NUM_SAMPLES = 40, NUM_AHEAD = 2, NUM_STEPS = 40, MOST_RECORD = 1 << 16 };
enum { SLOW_RANK = 2, SLOW_STEP = 20 };  // 1.5 times as long from step 20 (counted from 1) on

static CostModel truth, file;
static const char loader[] = "where the loader stands";

typedef struct {
    double slow;  // of SLOW_RANK from SLOW_STEP on
    int32_t first_step, save_after;
    int32_t save_every;           // 0: only after save_after steps
    int32_t leave_out;            // the step, counted from 1, that is not measured
    uint8_t record[MOST_RECORD];  // of rank 0: read where first_step > 0, written after save_after steps
    size_t record_bytes;
    uint64_t hashes[NUM_RANKS][NUM_STEPS];
    RefitRank of_ranks[NUM_STEPS][NUM_RANKS];  // of the last version after a step, as rank 0 has it
    int32_t last_agreed[NUM_STEPS];
} Run;

static void costs_make(void) {
    refit_case_costs(&truth, (RefitCaseModel){128, 4096, 20000, 5});
    refit_case_wrong(&file, &truth, 2, 0.5);
}

static Status run_step(SessionRefit* refit, Run* run, Collective* world, int32_t step, Arena* arena) {
    double slow[NUM_RANKS] = {1, 1, 1, 1};
    int32_t rank = world->transport->rank;
    RefitTruth now = {.costs = &truth, .slow = slow, .noise = 0.03, .one_in = 30};
    PlanRequest request = {.P = P, .R = 1, .max_seq_tokens = 2048, .effort = 10};
    PlanSample samples[NUM_SAMPLES];
    const CostModel* costs;
    Rng rng = rng_seed((uint64_t)step + 1);
    Plan plan;
    TraceRank trace;
    slow[SLOW_RANK] = step + 1 >= SLOW_STEP ? run->slow : 1;
    equal_stages(&request, plan_chain_num_blocks(&truth.chain));
    random_samples(samples, NUM_SAMPLES, &rng, 0, false);
    session_refit_costs(refit, step, &costs, &request.machine);
    TRY(plan_make(&plan, &request, costs, samples, NUM_SAMPLES, arena));
    run->hashes[rank][step] = plan_hash(&plan);
    TRY(collective_all_equal_u64(world, run->hashes[rank][step], "hash of the plan"));
    rng = rng_seed((uint64_t)(step * NUM_RANKS + rank) + 1000);
    TRY(refit_case_trace(&trace, &plan, rank, &now, &rng, arena));
    if (step + 1 == run->leave_out) { refit->skips = true; }
    TRY(session_refit_note(refit, &plan, &trace));
    return session_refit_agree(refit, world, step + 1);
}

static void note_versions(const SessionRefit* refit, Run* run, int32_t step) {
    if (refit->rank != 0 || refit->num_versions == 0) { return; }
    const RefitVersion* last = &refit->versions[refit->num_versions - 1];
    run->last_agreed[step] = last->agreed;
    memcpy(run->of_ranks[step], last->ranks, sizeof run->of_ranks[step]);
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
        const CostModel* costs;
        const Machine* machine;
        arena_reset(&arena);
        int32_t early = session_refit_costs(refit, ahead, &costs, &machine);  // as it may be planned now
        status = run_step(refit, run, world, step, &arena);
        if (status == STATUS_OK && session_refit_costs(refit, ahead, &costs, &machine) != early) {
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
    session_refit_init(&refit, true);
    TRY(ranks_world(&world, transport));
    Status status = run->first_step > 0 ? session_refit_restore(&refit, &position, &num_bytes) : STATUS_OK;
    if (status == STATUS_OK && run->first_step > 0 && num_bytes != sizeof loader) {
        status = FAIL(STATUS_COUNT, "%zu bytes are left to the loader", num_bytes);
    }
    if (status == STATUS_OK) {
        status = session_refit_start(&refit, &file, NULL, transport->rank, NUM_RANKS, NUM_AHEAD);
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
    whole = (Run){.slow = 1.5, .save_after = 26};
    run_all(&whole);
    CHECK_EQ(whole.last_agreed[2], 0);
    for (int32_t step = 3; step < NUM_STEPS; step++) {
        CHECK_EQ(whole.last_agreed[step], (step + 1) / SESSION_REFIT_EVERY * SESSION_REFIT_EVERY);
        for (int32_t r = 0; r < NUM_RANKS; r++) {
            if (step + 1 >= SLOW_STEP && step + 1 < SLOW_STEP + 10) { continue; }
            double slow = r == SLOW_RANK && step + 1 > SLOW_STEP ? 1.5 : 1;
            CHECK_NEAR(whole.of_ranks[step][r].slow[PASS_FORWARD], slow, 0.05);
            CHECK_NEAR(whole.of_ranks[step][r].slow[PASS_INPUTS], slow, 0.05);
        }
    }
}

static void go_on_from(const Run* run, int32_t equal_until) {
    resumed = *run;
    resumed.first_step = run->save_after;
    memset(resumed.hashes, 0, sizeof resumed.hashes);
    run_all(&resumed);
    for (int32_t step = run->save_after; step < equal_until; step++) {
        CHECK(resumed.hashes[0][step] == run->hashes[0][step]);
    }
}

static void a_resumed_run_plans_as_the_whole_one(void) {
    // Until what was agreed on after the save is used; the whole run had measured two more steps of that
    // block.
    go_on_from(&whole, 28 + NUM_AHEAD);
    CHECK(resumed.hashes[0][28 + NUM_AHEAD] != whole.hashes[0][28 + NUM_AHEAD]);
    // Saved with nothing noted since: to the end, but for the first step of a new process.
    static Run even;
    even = (Run){.slow = 1.5, .save_after = 28, .leave_out = 29};
    run_all(&even);
    go_on_from(&even, NUM_STEPS);
}

// However often: a checkpoint after every step turned refit off.
static void saving_changes_nothing(void) {
    for (int32_t every = 1; every <= 4; every++) {
        resumed = (Run){.slow = 1.5, .save_every = every};
        run_all(&resumed);
        CHECK(memcmp(resumed.hashes, whole.hashes, sizeof whole.hashes) == 0);
        CHECK_EQ(resumed.last_agreed[NUM_STEPS - 1], NUM_STEPS);
    }
}

static Status restore(SessionRefit* refit, const void* record, size_t* num_bytes) {
    session_refit_free(refit);
    session_refit_init(refit, true);
    *num_bytes = whole.record_bytes;
    return session_refit_restore(refit, &record, num_bytes);
}

static void records_of_others_say_what_still_holds(void) {
    SessionRefit refit;
    size_t num_bytes;
    const CostModel* costs;
    const Machine* machine;
    session_refit_init(&refit, true);
    CHECK_OK(restore(&refit, whole.record, &num_bytes));
    CHECK_EQ(num_bytes, sizeof loader);
    CHECK_OK(session_refit_start(&refit, &file, NULL, 0, NUM_RANKS, NUM_AHEAD));
    CHECK(session_refit_costs(&refit, NUM_STEPS, &costs, &machine) == 24 && costs != &file);
    CHECK_OK(restore(&refit, whole.record, &num_bytes));  // on other ranks: the terms
    CHECK_OK(session_refit_start(&refit, &file, NULL, 0, 8, NUM_AHEAD));
    CHECK(session_refit_costs(&refit, NUM_STEPS, &costs, &machine) == 24 && !machine_differs(machine));
    CHECK_OK(restore(&refit, whole.record, &num_bytes));  // with other costs: nothing
    CHECK_OK(session_refit_start(&refit, &truth, NULL, 0, NUM_RANKS, NUM_AHEAD));
    CHECK(session_refit_costs(&refit, NUM_STEPS, &costs, &machine) == 0 && costs == &truth);
    CHECK_EQ(refit.num_versions, 0);
    session_refit_free(&refit);
    session_refit_init(&refit, false);  // --refit off: the record is read over
    const void* position = whole.record;
    num_bytes = whole.record_bytes;
    CHECK_OK(session_refit_restore(&refit, &position, &num_bytes));
    CHECK_EQ(num_bytes, sizeof loader);
    CHECK_OK(session_refit_start(&refit, &file, NULL, 0, NUM_RANKS, NUM_AHEAD));
    CHECK(session_refit_costs(&refit, NUM_STEPS, &costs, &machine) == 0 && costs == &file);
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
    const CostModel* costs;
    const Machine* machine;
    Machine base = {.num_ranks = NUM_RANKS, .ranks = known, .pulls = true};
    session_refit_init(&refit, true);
    for (int32_t i = 0; i < 3; i++) {
        base.pulls = i == 0;
        base.num_ranks = i < 2 ? NUM_RANKS : 0;  // 0: nothing is known of them
        session_refit_forget(&refit);
        CHECK_OK(session_refit_start(&refit, &file, &base, 0, NUM_RANKS, NUM_AHEAD));
        CHECK_EQ(session_refit_costs(&refit, 9, &costs, &machine), 0);
        CHECK(machine == &base && costs == &file);
        RefitRank* found = malloc(NUM_RANKS * sizeof *found);
        for (int32_t r = 0; r < NUM_RANKS; r++) { found[r] = (RefitRank){{1.25, 1.25, 1.25}}; }
        refit.versions[0] = (RefitVersion){4, 6, cost_scale_one(), found};
        refit.num_versions = 1;
        CHECK_EQ(session_refit_costs(&refit, 5, &costs, &machine), 0);
        CHECK(machine == &base);
        CHECK_EQ(session_refit_costs(&refit, 6, &costs, &machine), 4);
        CHECK(machine != NULL && machine->pulls == (i == 0) && machine->num_ranks == NUM_RANKS);
        CHECK_OK(machine_check(machine, NUM_RANKS));
        for (int32_t r = 0; r < NUM_RANKS; r++) {
            MachineRank before = machine_rank(&base, r), now = machine_rank(machine, r);
            check_rank(&now, &before, 1.25);
        }
        session_refit_hasten(&refit, 5);  // planned anew
        CHECK_EQ(session_refit_costs(&refit, 4, &costs, &machine), 0);
        CHECK_EQ(session_refit_costs(&refit, 5, &costs, &machine), 4);
        session_refit_free(&refit);
        session_refit_init(&refit, true);
    }
    session_refit_free(&refit);
}

// Memory that is free today, and whether messages are pulled today, say nothing of what jobs take.
static void a_record_holds_for_the_same_speeds(void) {
    static MachineRank ranks[NUM_RANKS];
    SessionRefit refit;
    size_t num_bytes;
    const CostModel* costs;
    const Machine* machine;
    uint64_t base = 0;
    for (int32_t i = 0; i < 4; i++) {
        memcpy(ranks, known, sizeof ranks);
        if (i == 1) { ranks[0].memory_limit_bytes = 0; }
        if (i == 2) { ranks[0].slow[JOB_W] = 1.5; }
        if (i == 3) { ranks[2].link_bytes_per_ns = 5; }
        const Machine other = {.num_ranks = NUM_RANKS, .ranks = ranks, .pulls = i == 1};
        session_refit_init(&refit, true);
        CHECK_OK(session_refit_start(&refit, &file, &other, 0, NUM_RANKS, NUM_AHEAD));
        if (i == 0) { base = refit.base; }
        CHECK_EQ(refit.base == base, i < 2);
        session_refit_free(&refit);
    }
    const Machine none = {.pulls = true};
    session_refit_init(&refit, true);
    CHECK_OK(restore(&refit, whole.record, &num_bytes));
    CHECK_OK(session_refit_start(&refit, &file, &none, 0, NUM_RANKS, NUM_AHEAD));
    CHECK_EQ(session_refit_costs(&refit, NUM_STEPS, &costs, &machine), 24);
    CHECK(machine->pulls);
    session_refit_free(&refit);
}

// dynapipe_resplit() may ask behind a restore, where a version of before may be of the same number.
static void nothing_is_known_before_a_plan(void) {
    static Dynapipe dp;
    const CostModel* costs;
    const Machine* machine;
    session_refit_init(&dp.refit, true);
    CHECK(!session_refit_now(&dp, &costs, &machine));
    CHECK(costs == &dp.costs && machine == dp.request.machine);
    for (int i = 0; i < 2; i++) {
        const void* position = whole.record;
        size_t num_bytes = whole.record_bytes;
        CHECK_OK(session_refit_restore(&dp.refit, &position, &num_bytes));
        dp.next_step = 24;
        CHECK(!session_refit_now(&dp, &costs, &machine));
        CHECK(costs == &dp.costs);
        CHECK_OK(session_refit_start(&dp.refit, &file, NULL, 0, NUM_RANKS, NUM_AHEAD));
        CHECK(session_refit_now(&dp, &costs, &machine) && costs != &file);
    }
    session_refit_free(&dp.refit);
}

int main(void) {
    costs_make();
    RUN(a_rank_that_becomes_slow_is_found_within_ten_steps);
    RUN(a_resumed_run_plans_as_the_whole_one);
    RUN(saving_changes_nothing);
    RUN(records_of_others_say_what_still_holds);
    RUN(a_damaged_record_is_not_taken);
    RUN(plans_know_the_machine_and_what_was_found);
    RUN(a_record_holds_for_the_same_speeds);
    RUN(nothing_is_known_before_a_plan);
    return test_end();
}
