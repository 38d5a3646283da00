// test_optimum.c -- bound <= optimum <= every policy and plan, on instances small enough to try every order.
#include "optimum.h"

#include "../dynapipe_plugin/plan/bound/lower_bound.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/types/mb_shape.h"
#include "random_plan.h"
#include "random_problem.h"
#include "test.h"

enum { MAX_NODES = 400000, MOST_BUMPED = OPTIMUM_MAX_STAGES * OPTIMUM_MAX_MBS * JOB_R };

static uint64_t seed;
static RandomProblem problem;
static RandomMachine machine;

// --- the oracle itself -----------------------------------------------------------------------------------

// Every order of the jobs left on stage s, stage after stage, through the simulator.
static void try_all(int64_t* best_ns, const PipeProblem* pipe, PipeSchedule* schedule, int32_t s, bool split,
                    Arena* arena) {
    if (s == pipe->P) {
        PipeTimeline timeline;
        if (pipe_simulate(&timeline, pipe, schedule, arena) != STATUS_OK) { return; }
        for (int32_t k = 0; k < pipe->P; k++) {
            if (timeline.peak_bytes[k] > pipe->memory_limit_bytes[k]) { return; }
        }
        if (timeline.makespan_ns < *best_ns) { *best_ns = timeline.makespan_ns; }
        return;
    }
    int32_t jobs_per_mb = split ? 3 : 2;
    if (schedule->num_jobs[s] == pipe->M * jobs_per_mb) {
        try_all(best_ns, pipe, schedule, s + 1, split, arena);
        return;
    }
    for (int32_t m = 0; m < pipe->M; m++) {
        static const uint8_t kinds[] = {JOB_F, JOB_B, JOB_W};
        int32_t done = 0;
        for (int32_t i = 0; i < schedule->num_jobs[s]; i++) { done += schedule->jobs[s][i].mb == m; }
        if (done == jobs_per_mb) { continue; }
        schedule->jobs[s][schedule->num_jobs[s]++] =
            (PipeJob){.kind = kinds[done], .chunk = (int16_t)s, .mb = m};
        try_all(best_ns, pipe, schedule, s, split, arena);
        schedule->num_jobs[s]--;
    }
}

static void limit_memory(PipeProblem* pipe, Rng* rng) {
    for (int32_t s = 0; s < pipe->P; s++) {
        int64_t largest = 0;
        for (int32_t m = 0; m < pipe->M; m++) {
            PipeCost* cost = (PipeCost*)(uintptr_t)pipe_cost(pipe, s, m);
            cost->input_bytes = 0;
            largest = cost->stored_bytes > largest ? cost->stored_bytes : largest;
        }
        pipe->memory_limit_bytes[s] = largest * rng_between(rng, 10, 35) / 10;
    }
}

static void optimum_is_that_of_all_orders(void) {
    static const struct {
        int32_t P, M;
        bool split;
    } sizes[] = {{2, 2, false}, {2, 2, true}, {2, 3, false}, {3, 2, false}};
    Rng rng = rng_seed(seed);
    Arena arena = {0}, runs = {0};
    for (int round = 0; round < 320; round++) {
        int32_t P = sizes[round % 4].P, M = sizes[round % 4].M;
        bool split = sizes[round % 4].split;
        arena_reset(&arena);
        PipeProblem pipe = random_pipe(&rng, P, M, &(RandomPipe){.transfers = round % 3 > 0}, &arena);
        if (round / 4 % 2) { limit_memory(&pipe, &rng); }
        for (int32_t s = 0; s < P; s++) { pipe.tail_ns[s] = rng_between(&rng, 0, 50); }
        for (int32_t i = 0; i < (P - 1) * M && round % 3 == 2; i++) {  // links that are the bottleneck
            ((PipeCost*)(uintptr_t)pipe.cost)[i].transfer_ns = rng_between(&rng, 0, 200);
        }
        PipeSchedule schedule = {0};
        for (int32_t s = 0; s < P; s++) { schedule.jobs[s] = ARENA_NEW(&arena, PipeJob, M * JOB_COUNT); }
        int64_t best_ns = INT64_MAX;
        try_all(&best_ns, &pipe, &schedule, 0, split, &runs);
        arena_reset(&runs);
        CHECK_EQ(optimum_make(&pipe, split, INT64_MAX, MAX_NODES), best_ns);
    }
    arena_free(&runs);
    arena_free(&arena);
}

// --- orders ----------------------------------------------------------------------------------------------

// Makespan of a policy, INT64_MAX where it takes more memory than there is.
static int64_t policy_ns(const PipePolicy* policy, const PipeProblem* pipe, bool split, Arena* arena) {
    int32_t order[OPTIMUM_MAX_MBS], best[OPTIMUM_MAX_MBS] = {0, 1, 2, 3};
    int64_t best_ns = INT64_MAX;
    int32_t num_orders = pipe->M == 4 ? 24 : pipe->M == 3 ? 6 : pipe->M;
    for (int32_t k = 0; k < num_orders; k++) {  // of the micro-batches: the k-th permutation
        int32_t rest[OPTIMUM_MAX_MBS], code = k;
        memcpy(rest, best, sizeof rest);
        for (int32_t i = 0; i < pipe->M; i++) {
            int32_t at = code % (pipe->M - i);
            code /= pipe->M - i;
            order[i] = rest[at];
            for (; at < pipe->M - i - 1; at++) { rest[at] = rest[at + 1]; }
        }
        PipeSchedule schedule;
        PipeTimeline timeline;
        if (policy->build(&schedule, pipe, order, split, arena) != STATUS_OK) { continue; }
        CHECK_OK(pipe_simulate(&timeline, pipe, &schedule, arena));
        bool fits = true;
        for (int32_t s = 0; s < pipe->P; s++) {
            fits &= timeline.peak_bytes[s] <= pipe->memory_limit_bytes[s];
        }
        if (fits && timeline.makespan_ns < best_ns) { best_ns = timeline.makespan_ns; }
    }
    return best_ns;
}

// No policy beats the optimum; how far they are, with the best order of the micro-batches.
static void policies_are_not_faster(void) {
    static const PipePolicy* const policies[] = {&pipe_policy_gpipe, &pipe_policy_1f1b,
                                                 &pipe_policy_adaptive};
    Rng rng = rng_seed(seed + 1);
    Arena arena = {0};
    double sum[2][2][3] = {{{0}}}, worst[2][2] = {{0}};
    int num[2][2][3] = {{{0}}}, reached[2][2] = {{0}}, given_up = 0;
    for (int round = 0; round < 400; round++) {
        arena_reset(&arena);
        bool split = round % 2, limited = round / 2 % 2;
        int32_t P = rng_between(&rng, 2, 3), M = rng_between(&rng, 2, P == 3 && split ? 3 : 4);
        PipeProblem pipe = random_pipe(&rng, P, M, &(RandomPipe){.transfers = round / 4 % 2}, &arena);
        if (limited) { limit_memory(&pipe, &rng); }
        int64_t ns[3], fastest = INT64_MAX;
        for (int p = 0; p < 3; p++) {
            ns[p] = policy_ns(policies[p], &pipe, split, &arena);
            fastest = ns[p] < fastest ? ns[p] : fastest;
        }
        int64_t optimum = optimum_make(&pipe, split, INT64_MAX, MAX_NODES);
        if (optimum < 0) {
            given_up++;
            continue;
        }
        CHECK(optimum <= fastest);
        for (int p = 0; p < 3; p++) {
            if (ns[p] == INT64_MAX) { continue; }
            sum[split][limited][p] += (double)ns[p] / (double)optimum;
            num[split][limited][p]++;
        }
        reached[split][limited] += ns[2] == optimum;
        double ratio = (double)ns[2] / (double)optimum;
        worst[split][limited] = ratio > worst[split][limited] ? ratio : worst[split][limited];
    }
    for (int i = 0; i < 4; i++) {
        int k = i / 2, l = i % 2, *n = num[k][l];
        printf("     %s, %s: gpipe %.3f (%d), 1f1b %.3f (%d), adaptive %.3f (%d), worst %.2f, reached %d "
               "times\n",
               k ? "split" : "joint", l ? "memory short" : "no limit", sum[k][l][0] / n[0], n[0],
               sum[k][l][1] / n[1], n[1], sum[k][l][2] / n[2], n[2], worst[k][l], reached[k][l]);
        CHECK(n[2] > 50 && sum[k][l][2] / n[2] < 1.15);
    }
    printf("     given up %d times\n", given_up);
    CHECK(given_up < 100);
    arena_free(&arena);
}

// --- whole batches ---------------------------------------------------------------------------------------

typedef struct {
    const MicrobatchProblem* mp;
    int32_t set_of[4];  // sample -> micro-batch
    int32_t num_sets;
    int32_t replica_of[4];
    int64_t best_ns;
    bool gave_up;
    int64_t num_bumped;  // jobs of no time that the optimum knows as one nanosecond, at most MOST_BUMPED
    Arena* arena;
} Batch;

// The optimum of one replica's micro-batches, INT64_MAX where one does not fit alone.
static int64_t replica_ns(Batch* batch, int32_t r) {
    const MicrobatchProblem* mp = batch->mp;
    PipeCost cells[OPTIMUM_MAX_STAGES * OPTIMUM_MAX_MBS] = {{.stored_bytes = 0}};
    MbShape shapes[4] = {{0}};
    int32_t M = 0;
    for (int32_t set = 0; set < batch->num_sets; set++) {
        if (batch->replica_of[set] != r) { continue; }
        for (int32_t i = 0; i < mp->num_samples; i++) {
            const PlanSample* s = &mp->samples[i];
            if (batch->set_of[i] == set) {
                mb_shape_add(&shapes[M], s->enc_tokens, s->dec_tokens, s->supervised_tokens);
            }
        }
        M++;
    }
    if (M == 0) { return 0; }
    PipeProblem pipe = {.P = mp->P, .M = M, .cost = cells};
    for (int32_t s = 0; s < mp->P; s++) {
        const MachineRank* rank = machine_stage(machine_replica(mp->request->machine, r * mp->P), s);
        int64_t limit_bytes = rank != NULL && rank->memory_limit_bytes > 0 ? rank->memory_limit_bytes
                                                                           : mp->request->memory_limit_bytes;
        pipe.tail_ns[s] = cost_reduce_ns(mp->costs, &mp->stages[s], mp->R);
        pipe.memory_limit_bytes[s] =
            limit_bytes > 0 ? limit_bytes - cost_state_bytes(mp->costs, &mp->stages[s]) : INT64_MAX;
    }
    for (int32_t m = 0; m < M; m++) {
        CostJobs jobs[PLAN_MAX_STAGES];
        cost_stages(jobs, mp->costs, mp->stages, mp->P, RECOMPUTE_NONE, &shapes[m]);
        for (int32_t s = 0; s < mp->P; s++) {
            PipeCost* cell = &cells[s * M + m];
            const MachineRank* rank = machine_stage(machine_replica(mp->request->machine, r * mp->P), s);
            for (int k = 0; k < JOB_COUNT; k++) {
                double slow = rank != NULL ? rank->slow[k] : 1;
                cell->job_ns[k] = (int64_t)((double)jobs[s].job_ns[k] * slow + 0.5);
            }
            cell->job_ns[JOB_R] = 0;
            for (int k = 0; k < JOB_R; k++) {
                batch->num_bumped += cell->job_ns[k] == 0;
                cell->job_ns[k] += cell->job_ns[k] == 0;
            }
            cell->stored_bytes = jobs[s].stored_bytes;
            cell->transfer_ns = s < mp->P - 1 ? cost_transfer_ns(mp->costs, jobs[s].boundary_bytes) : 0;
            if (s < mp->P - 1 && rank != NULL && rank->link_bytes_per_ns > 0) {
                double ns = rank->link_latency_ns + (double)jobs[s].boundary_bytes / rank->link_bytes_per_ns;
                cell->transfer_ns = (int64_t)(ns + 0.5);
            }
            if (cell->stored_bytes > pipe.memory_limit_bytes[s]) { return INT64_MAX; }
        }
    }
    int64_t optimum = optimum_make(&pipe, true, batch->best_ns, MAX_NODES);
    batch->gave_up |= optimum < 0;
    return optimum;
}

// Sample i into each micro-batch that there is, or a new one on any replica.
static void compose(Batch* batch, int32_t i) {
    const MicrobatchProblem* mp = batch->mp;
    if (i == mp->num_samples) {
        int64_t slowest = 0;
        for (int32_t r = 0; r < mp->R && slowest < batch->best_ns && !batch->gave_up; r++) {
            int64_t ns = replica_ns(batch, r);
            slowest = ns > slowest ? ns : slowest;
        }
        if (slowest < batch->best_ns) { batch->best_ns = slowest; }
        return;
    }
    for (int32_t set = 0; set <= batch->num_sets && set < 4; set++) {
        batch->set_of[i] = set;
        if (set < batch->num_sets) {
            compose(batch, i + 1);
            continue;
        }
        batch->num_sets++;
        for (int32_t r = 0; r < mp->R; r++) {
            batch->replica_of[set] = r;
            compose(batch, i + 1);
        }
        batch->num_sets--;
    }
}

// All compositions, replicas and orders: bound <= optimum <= plan. Ragged, nothing recomputed.
static void bound_and_plan_enclose_the_optimum(void) {
    Rng rng = rng_seed(seed + 2);
    Arena arena = {0};
    int num = 0, given_up = 0, reached = 0, by_memory = 0;
    double sum_plan = 0, sum_bound = 0;
    for (int round = 0; round < 160; round++) {
        arena_reset(&arena);
        random_problem(&problem, &rng, rng_between(&rng, 1, 4));
        PlanRequest* request = &problem.request;
        int32_t L = rng_between(&rng, 3, 6), P = rng_between(&rng, 1, 3);
        (round % 2 ? linear_cost_model : random_cost_model)(&problem.costs, &rng, L, 0);
        *request = (PlanRequest){.P = P,
                                 .R = rng_between(&rng, 1, 2),
                                 .layout = LAYOUT_RAGGED,
                                 .recompute = RECOMPUTE_CHOICE_NONE,
                                 .memory_rule = MEMORY_ACTIVATIONS};
        equal_stages(request, L);
        random_samples(problem.samples, problem.num_samples, &rng, 0, false);
        if (round % 4 >= 2) { random_problem_limit_memory(&problem, rng_between(&rng, 0, 60)); }
        if (round % 8 >= 4) {
            random_machine(&machine, &problem, &rng);
            request->machine = &machine.machine;
        }
        Plan plan;
        MicrobatchProblem mp;
        LowerBound bound;
        Status status =
            plan_make(&plan, request, &problem.costs, problem.samples, problem.num_samples, &arena);
        if (status == STATUS_INFEASIBLE) { continue; }
        CHECK_OK(status);
        CHECK_EQ(plan.bound_over_ns, 0);
        CHECK_OK(microbatch_problem_init(&mp, request, &problem.costs, problem.samples, problem.num_samples));
        CHECK_OK(lower_bound_make(&bound, &mp, false));
        Batch batch = {.mp = &mp, .best_ns = plan.makespan_ns + MOST_BUMPED + 1, .arena = &arena};
        compose(&batch, 0);
        if (batch.gave_up) {
            given_up++;
            continue;
        }
        CHECK(batch.best_ns <=
              plan.makespan_ns + (batch.num_bumped < MOST_BUMPED ? batch.num_bumped : MOST_BUMPED));
        CHECK(bound.bound_ns <= batch.best_ns);
        num++;
        reached += batch.best_ns == plan.makespan_ns;
        by_memory += bound.bound_ns == bound.memory_ns;
        sum_plan += (double)plan.makespan_ns / (double)batch.best_ns;
        sum_bound += (double)batch.best_ns / (double)bound.bound_ns;
    }
    printf("     %d batches: plan %.4f of the optimum (reached %d times), optimum %.4f of the bound "
           "(memory's %d "
           "times), given up %d times\n",
           num, sum_plan / num, reached, sum_bound / num, by_memory, given_up);
    CHECK(num > 80 && sum_plan / num < 1.2);
    arena_free(&arena);
}

// The next split of L layers onto P stages after this one, the head alone on the last allowed; false: none.
static bool next_split(LayerRange* stages, int32_t P, int32_t L) {
    for (int32_t s = P - 2; s >= 0; s--) {  // cut behind stage s one layer later, those behind it at once
        int32_t cut = stages[s].layer_end + 1;
        if (cut + (P - 2 - s) > L) { continue; }
        for (int32_t k = s; k < P - 1; k++) { stages[k].layer_end = stages[k + 1].layer_begin = cut + k - s; }
        return true;
    }
    return false;
}

// The optimum over all splits too: no bound for any split is above it. Model state makes some impossible.
static void bound_of_all_splits_is_below_the_optimum(void) {
    Rng rng = rng_seed(seed + 3);
    Arena arena = {0};
    int num = 0, given_up = 0, by_memory = 0, num_splits = 0;
    double sum = 0;
    for (int round = 0; round < 240; round++) {
        random_problem(&problem, &rng, rng_between(&rng, 1, 3));
        PlanRequest* request = &problem.request;
        CostModel* costs = &problem.costs;
        int32_t L = rng_between(&rng, 3, 5), P = rng_between(&rng, 2, 3), dec = rng_between(&rng, 0, 2);
        (round % 2 ? linear_cost_model : random_cost_model)(costs, &rng, L - dec, dec);
        for (int part = 0; part < PART_COUNT; part++) {
            costs->part_state_bytes[part] = (int64_t)rng_between(&rng, 0, 20) * 1000000;
        }
        costs->tied_head_state_bytes = 0;
        *request = (PlanRequest){.P = P,
                                 .R = rng_between(&rng, 1, 2),
                                 .layout = LAYOUT_RAGGED,
                                 .recompute = RECOMPUTE_CHOICE_NONE,
                                 .memory_rule = MEMORY_ACTIVATIONS};
        equal_stages(request, L);
        random_samples(problem.samples, problem.num_samples, &rng, 0, dec > 0);
        if (round % 4 > 0) {
            random_problem_limit_memory(&problem, 0);
            request->memory_limit_bytes = request->memory_limit_bytes / 100 * rng_between(&rng, 80, 160) + 1;
        }
        if (round % 8 >= 4) {
            random_machine(&machine, &problem, &rng);
            request->machine = &machine.machine;
        }
        Batch batch = {.best_ns = INT64_MAX, .arena = &arena};
        for (int32_t s = 0; s < P; s++) {
            request->placement.chunks[s] = (LayerRange){s, s < P - 1 ? s + 1 : L};
        }
        MicrobatchProblem mp;
        do {
            if (microbatch_problem_init(&mp, request, costs, problem.samples, problem.num_samples)) {
                continue;
            }
            batch.mp = &mp;
            num_splits++;
            compose(&batch, 0);
        } while (next_split(request->placement.chunks, P, L));
        int64_t limit_bytes = request->memory_limit_bytes;
        request->choose_stages = true;
        request->memory_limit_bytes = 0;  // the last split need not fit
        int64_t own_limit_bytes[64];
        for (int32_t i = 0; i < P * request->R && request->machine != NULL; i++) {
            own_limit_bytes[i] = machine.ranks[i].memory_limit_bytes;
            machine.ranks[i].memory_limit_bytes = 0;
        }
        CHECK_OK(microbatch_problem_init(&mp, request, costs, problem.samples, problem.num_samples));
        request->memory_limit_bytes = limit_bytes;
        for (int32_t i = 0; i < P * request->R && request->machine != NULL; i++) {
            machine.ranks[i].memory_limit_bytes = own_limit_bytes[i];
        }
        microbatch_problem_limit(&mp);
        given_up += batch.gave_up;
        if (batch.gave_up || batch.best_ns == INT64_MAX) { continue; }
        LowerBound bound;
        CHECK_OK(lower_bound_make(&bound, &mp, false));
        CHECK(bound.bound_ns <= batch.best_ns);
        num++;
        by_memory += bound.bound_ns == bound.memory_ns;
        sum += (double)batch.best_ns / (double)bound.bound_ns;
    }
    printf("     %d batches, %d splits: optimum %.4f of the bound of all splits (memory's %d times), given "
           "up %d "
           "times\n",
           num, num_splits, sum / num, by_memory, given_up);
    CHECK(num > 100 && by_memory > 3);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(optimum_is_that_of_all_orders);
    RUN(policies_are_not_faster);
    RUN(bound_and_plan_enclose_the_optimum);
    RUN(bound_of_all_splits_is_below_the_optimum);
    return test_end();
}
