/*
refit_bench.c -- what a wrong cost file costs on the shared planning cases, before and after refit.

For every case: planned with true costs; with a wrong file (head x 2 and attention / 2, and the reverse);
then, three times, four such steps are measured (true times, 3 % noise, one job in 50 interrupted), refit,
and planned again. Medians of 15 plans, which differ by the noise (true costs: by a thousandth). All plans
are judged by true costs: their orders with true times. The split is the case's (equal), or moves with the
costs that are believed, as it does with --resplit.

usage: refit_bench        a table in Markdown; exit status 1 where refit leaves more than 2 %
*/
#include <stdio.h>
#include <stdlib.h>

#include "../../dynapipe_plugin/plan/planner.h"
#include "../case_problem.h"
#include "../refit_case.h"

enum {
    MOST_RANKS = 64,
    NUM_STEPS = 4,
    NUM_REFITS = 3,
    EFFORT = 3000,
    NUM_TRIALS = 15,
    INTERRUPTED_ONE_IN = 50
};
static const double NOISE = 0.03, MOST_LOSS = 0.02;

static CaseProblem problem;
static CostModel wrong, fitted;

static Status judged(int64_t* makespan_ns, Plan* plan, const CostModel* costs, const Machine* machine,
                     const RefitTruth* truth, Arena* arena) {
    PlanRequest request = problem.request;
    request.machine = machine;
    TRY(plan_make(plan, &request, costs, problem.samples, problem.num_samples, arena));
    Plan copy = *plan;
    return refit_case_judge(makespan_ns, &copy, truth, arena);
}

static MachineRank fitted_ranks[MOST_RANKS];
static Machine fitted_machine;

static Status refit(const Plan* plan, RefitSums history[SIDE_COUNT], const RefitTruth* truth, Rng* rng,
                    Arena* arena) {
    TraceJobs jobs[MOST_RANKS] = {{{0}, {0}, NULL}};
    RefitRank ranks[MOST_RANKS];
    CostScale scale;
    int32_t num_ranks = plan->P * plan->R;
    for (int step = 0; step < NUM_STEPS; step++) {
        for (int32_t r = 0; r < num_ranks; r++) {
            TraceRank trace;
            TRY(refit_case_trace(&trace, plan, r, truth, rng, arena));
            TRY(trace_jobs_add(&jobs[r], plan, &trace, &wrong, NULL));
        }
    }
    refit_case_fit(&scale, ranks, jobs, num_ranks, history);
    for (int32_t r = 0; r < num_ranks; r++) { trace_jobs_free(&jobs[r]); }
    cost_scale_apply(&fitted, &wrong, &scale);
    fitted_machine = (Machine){.num_ranks = num_ranks, .ranks = fitted_ranks};
    for (int32_t r = 0; r < num_ranks; r++) {
        fitted_ranks[r] = machine_rank(NULL, r);
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            fitted_ranks[r].slow[kind] = refit_round_slow(ranks[r].slow[cost_pass((JobKind)kind)]);
        }
    }
    return STATUS_OK;
}

// The search ends in one of many good plans: true costs, off by a thousandth, which moves it to another.
static Status plan_truly(int64_t* makespan_ns, const RefitTruth* exact, Rng* rng, Arena* arena) {
    CostScale scale = cost_scale_one();
    Plan plan;
    for (int pass = 0; pass < PASS_COUNT; pass++) {
        for (int i = 0; i < PASS_TERMS; i++) { scale.factor[pass][i] += rng_between(rng, -1, 1); }
    }
    cost_scale_apply(&fitted, exact->costs, &scale);
    return judged(makespan_ns, &plan, &fitted, NULL, exact, arena);
}

static Status plan_after_refits(int64_t* makespan_ns, double* predicted, const RefitTruth* exact, Rng* rng,
                                Arena* arena) {
    RefitSums history[SIDE_COUNT] = {0};
    RefitTruth noisy = {.costs = exact->costs, .noise = NOISE, .one_in = INTERRUPTED_ONE_IN};
    Plan plan;
    TRY(judged(makespan_ns, &plan, &wrong, NULL, exact, arena));
    for (int i = 0; i < NUM_REFITS; i++) {
        TRY(refit(&plan, history, &noisy, rng, arena));
        TRY(judged(makespan_ns, &plan, &fitted, &fitted_machine, exact, arena));
    }
    *predicted = (double)plan.makespan_ns / (double)*makespan_ns - 1;
    return STATUS_OK;
}

static int compare(const void* a, const void* b) {
    int64_t x = *(const int64_t*)a, y = *(const int64_t*)b;
    return (x > y) - (x < y);
}

static Status run_case(const char* name, double head, double attention, double* worst, Arena* arena) {
    RefitTruth exact = {.costs = &problem.costs};
    int64_t true_ns[NUM_TRIALS], after_ns[NUM_TRIALS], before_ns;
    double predicted_after = 0;
    Rng rng = rng_seed(1);
    Plan plan;
    refit_case_wrong(&wrong, &problem.costs, head, attention);
    for (int i = 0; i < NUM_TRIALS; i++) {
        TRY(plan_truly(&true_ns[i], &exact, &rng, arena));
        TRY(plan_after_refits(&after_ns[i], &predicted_after, &exact, &rng, arena));
    }
    TRY(judged(&before_ns, &plan, &wrong, NULL, &exact, arena));
    qsort(true_ns, NUM_TRIALS, sizeof *true_ns, compare);
    qsort(after_ns, NUM_TRIALS, sizeof *after_ns, compare);
    double best = (double)true_ns[NUM_TRIALS / 2], after = (double)after_ns[NUM_TRIALS / 2] / best - 1;
    printf("| %s | %s | %g | %g | %.2f | %+.2f %% | %+.1f %% | %+.2f %% | %+.1f %% |\n", name,
           problem.request.choose_stages ? "moves" : "equal", head, attention, best / 1e6,
           100 * ((double)before_ns / best - 1), 100 * ((double)plan.makespan_ns / (double)before_ns - 1),
           100 * after, 100 * predicted_after);
    if (after > *worst) { *worst = after; }
    return STATUS_OK;
}

int main(void) {
    static const double factors[][2] = {{2, 0.5}, {0.5, 2}};
    double worst = 0;
    if (!case_available()) {
        printf("no ../shared/cases here\n");
        return 77;
    }
    printf("| case | split | head x | attention x | true costs, ms | wrong file | predicted | after refit | "
           "predicted |\n"
           "|---|---|---|---|---|---|---|---|---|\n");
    for (int i = 0; case_names[i] != NULL; i++) {
        for (int k = 0; k < 4; k++) {
            Arena arena = {0};
            if (!case_problem_load(&problem, case_names[i])) { return 1; }
            problem.request.batching = BATCHING_DYNAMIC;
            problem.request.layout = LAYOUT_RAGGED;
            problem.request.choose_stages = k >= 2;
            problem.request.effort = EFFORT;
            Status status = run_case(case_names[i], factors[k % 2][0], factors[k % 2][1], &worst, &arena);
            if (status != STATUS_OK) { printf("%s: %s\n", case_names[i], status_message()); }
            if (status != STATUS_OK) { return 1; }
            arena_free(&arena);
        }
    }
    return worst > MOST_LOSS;
}
