// test_refit.c -- factors of a cost model from measured jobs.
#include "../dynapipe_plugin/plan/cost_model.h"
#include "../dynapipe_plugin/plan/placement.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/refit.h"
#include "../dynapipe_plugin/plan/types.h"
#include "../dynapipe_plugin/run/trace.h"
#include "cost_one.h"
#include "random_problem.h"
#include "refit_case.h"
#include "test.h"

#include <math.h>

static uint64_t seed;

// --- refit solve -----------------------------------------------------------------------------------------
// factors of the cost model's terms and of ranks are found from the times of jobs.

enum { MOST_RANKS = 16, NUM_STEPS = 4 };

static MbShape random_shape(Rng* rng, bool decoder) {
    MbShape shape = {0};
    for (int n = rng_between(rng, 1, 12); n > 0; n--) {
        int32_t tokens = rng_between(rng, 1, rng_below(rng, 10) == 0 ? 4000 : 400);
        int32_t dec_tokens = decoder ? rng_between(rng, 1, 100) : 0;
        mb_shape_add(&shape, tokens, dec_tokens, rng_between(rng, 0, tokens));
    }
    return shape;
}

// --- terms -----------------------------------------------------------------------------------------------

static void terms_add_up_to_a_job(void) {
    static CostModel model, scaled;
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 400; trial++) {
        int32_t num_dec = rng_between(&rng, 0, 3);
        random_cost_model(&model, &rng, 5, num_dec);
        CostScale scale;
        for (int pass = 0; pass < PASS_COUNT; pass++) {
            for (int i = 0; i < PASS_TERMS; i++) { scale.factor[pass][i] = rng_between(&rng, 300, 3000); }
        }
        cost_scale_apply(&scaled, &model, &scale);
        CHECK_OK(cost_model_check(&scaled));
        const int32_t num_blocks = plan_chain_num_blocks(&model.chain);
        BlockRange blocks = {rng_between(&rng, 0, num_blocks - 1), num_blocks};
        CostStage stage = cost_stage_make(&model.chain, &blocks, rng_below(&rng, 2), rng_below(&rng, 2));
        MbShape shape = random_shape(&rng, num_dec > 0);
        JobKind kind = (JobKind)rng_below(&rng, JOB_COUNT);
        RecomputeMode mode = rng_below(&rng, 2) ? RECOMPUTE_FULL : RECOMPUTE_NONE;
        double term[PASS_TERMS], sum = 0, times = 0;
        cost_scale_terms(term, &model, &stage, kind, mode, &shape);
        for (int i = 0; i < PASS_TERMS; i++) {
            sum += term[i];
            times += term[i] * scale.factor[cost_pass(kind)][i] / SCALE_ONE;
        }
        CHECK_EQ(cost_round(sum), cost_job_ns(&model, &stage, kind, mode, &shape));
        // where a floor holds, it may be another that does after scaling: never less than the terms say
        double scaled_ns = (double)cost_job_ns(&scaled, &stage, kind, mode, &shape);
        CHECK(scaled_ns >= times * (1 - 1e-9) - 1);
    }
    CostScale one = cost_scale_one();
    cost_scale_apply(&scaled, &model, &one);
    CHECK(memcmp(&scaled, &model, sizeof model) == 0);
    CHECK(cost_scale_round(1.5) == 1536 && cost_scale_round(NAN) == SCALE_LEAST);
    CHECK(cost_scale_round(-3) == SCALE_LEAST && cost_scale_round(INFINITY) == SCALE_MOST);
}

// --- steps that were measured ----------------------------------------------------------------------------

typedef struct {
    CostModel truth, file;
    PlanRequest request;
    PlanSample samples[64];
    int32_t num_ranks;
} Case;

static Case about;

static void case_make(int32_t P, int32_t R, double head, double attention) {
    about = (Case){.num_ranks = P * R};
    refit_case_costs(&about.truth, (RefitCaseModel){256, 8192, 20000, 5});
    refit_case_wrong(&about.file, &about.truth, head, attention);
    about.request = (PlanRequest){.P = P, .R = R, .max_seq_tokens = 2048, .effort = 20};
    about.request.split_backward = R == 1 && P > 2 ? SPLIT_BACKWARD_AUTO : SPLIT_BACKWARD_OFF;
    equal_stages(&about.request, 8);
    placement_linear(&about.request.placement, about.request.placement.chunks, P);
}

// Plans for the file's costs, each rank's jobs by the true ones.
static void measure(TraceJobs* jobs, int num_steps, const double* slow, double noise, int32_t one_in,
                    Rng* rng) {
    RefitTruth truth = {.costs = &about.truth, .slow = slow, .noise = noise, .one_in = one_in};
    Arena arena = {0};
    for (int step = 0; step < num_steps; step++) {
        Plan plan;
        random_samples(about.samples, 64, rng, 0, false);
        CHECK_OK(plan_make(&plan, &about.request, &about.file, about.samples, 64, &arena));
        for (int32_t r = 0; r < about.num_ranks; r++) {
            TraceRank trace;
            CHECK_OK(refit_case_trace(&trace, &plan, r, &truth, rng, &arena));
            CHECK_OK(trace_jobs_add(&jobs[r], &plan, &trace, &about.file, NULL));
        }
    }
    arena_free(&arena);
}

// What the jobs of a kind take of a microbatch in all that stage s has; of a share, F with the gradient of
// inputs.
static double stage_ns(const CostModel* costs, int32_t s, JobKind kind, const MbShape* shape) {
    const Placement* placement = &about.request.placement;
    double ns = 0;
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        CostStage chunk = cost_chunk_make(costs, placement, k);
        bool is_here = placement->stage_of[k] == s;
        ns += is_here ? (double)cost_job_ns(costs, &chunk, kind, RECOMPUTE_NONE, shape) : 0;
    }
    if (placement->head == HEAD_WHOLE) { return ns; }
    static CostTable table;
    CostParts parts;
    CostJobs jobs;
    cost_table_init(&table, costs);
    cost_parts(&parts, &table, RECOMPUTE_NONE, shape);
    cost_jobs_of_share(&jobs, costs, cost_share_of(placement, s), &parts);
    return ns + (double)jobs.job_ns[kind];
}

// The largest error of what plans would be told a microbatch takes on a rank, over ranks and shapes; in
// relation to its time, or an average one's where that is longer.
static double worst_error(const CostScale* scale, const RefitRank* ranks, const double* slow, Rng* rng) {
    enum { SHAPES = 50 };
    static CostModel fitted;
    double worst = 0;
    cost_scale_apply(&fitted, &about.file, scale);
    for (int32_t r = 0; r < about.num_ranks; r++) {
        int32_t s = r % about.request.P;
        double true_ns[SHAPES] = {0}, off_ns[SHAPES], mean_ns = 0;
        for (int i = 0; i < SHAPES; i++) {
            MbShape shape = random_shape(rng, false);
            double fitted_ns = 0;
            for (int kind = 0; kind < JOB_R; kind++) {
                double ns = stage_ns(&about.truth, s, (JobKind)kind, &shape);
                true_ns[i] += ns * (slow != NULL ? slow[r] : 1);
                ns = stage_ns(&fitted, s, (JobKind)kind, &shape);
                fitted_ns += ns * ranks[r].slow[cost_pass((JobKind)kind)];
            }
            off_ns[i] = fabs(fitted_ns - true_ns[i]);
            mean_ns += true_ns[i] / SHAPES;
        }
        for (int i = 0; i < SHAPES; i++) { worst = fmax(worst, off_ns[i] / fmax(true_ns[i], mean_ns)); }
    }
    return worst;
}

static double fit(CostScale* scale, RefitRank* ranks, const double* slow, double noise, int32_t one_in,
                  Rng* rng) {
    RefitSums history[SIDE_COUNT] = {0};
    TraceJobs jobs[MOST_RANKS] = {{{0}, {0}, NULL}};
    measure(jobs, NUM_STEPS, slow, noise, one_in, rng);
    refit_case_fit(scale, ranks, jobs, about.num_ranks, history);
    for (int32_t r = 0; r < about.num_ranks; r++) { trace_jobs_free(&jobs[r]); }
    return worst_error(scale, ranks, slow, rng);
}

static void right_costs_stay_as_they_are(void) {
    CostScale scale;
    RefitRank ranks[MOST_RANKS];
    Rng rng = rng_seed(seed);
    for (int noisy = 0; noisy < 2; noisy++) {
        case_make(4, 1, 1, 1);
        double error = fit(&scale, ranks, NULL, noisy ? 0.03 : 0, noisy ? 20 : 0, &rng);
        CHECK_NEAR(error, 0, noisy ? 0.03 : 1e-3);
        for (int32_t r = 0; r < 4; r++) {
            for (int pass = 0; pass < PASS_COUNT; pass++) {
                CHECK_NEAR(ranks[r].slow[pass], 1, noisy ? 0.05 : 1e-3);
            }
        }
        for (int i = 0; i < PASS_TERMS; i++) {
            CHECK_NEAR(scale.factor[PASS_FORWARD][i], SCALE_ONE, noisy ? 120 : 1);
        }
    }
}

// Jobs of several chunks of a rank, and of its share of the head, tell the same terms.
static void a_wrong_file_is_found_out_in_any_placement(void) {
    static const struct {
        PlacementChoice placement;
        HeadSplit head;
    } kinds[] = {{PLACEMENT_VEE, HEAD_WHOLE},
                 {PLACEMENT_LINEAR, HEAD_BY_ROWS},
                 {PLACEMENT_INTERLEAVED, HEAD_BY_VOCABULARY},
                 {PLACEMENT_VEE, HEAD_BY_VOCABULARY}};
    CostScale scale;
    RefitRank ranks[MOST_RANKS];
    Rng rng = rng_seed(seed + 7);
    for (int i = 0; i < 4; i++) {
        Placement* placement = &about.request.placement;
        case_make(4, 1, i % 2 ? 2 : 0.5, i < 2 ? 0.5 : 2);
        CHECK_OK(placement_make(placement, kinds[i].placement, false, 4, &about.truth.chain));
        placement_share_head(placement, kinds[i].head, 4);
        double before =
            worst_error(&(CostScale[]){cost_scale_one()}[0],
                        (RefitRank[]){refit_rank_one(), refit_rank_one(), refit_rank_one(), refit_rank_one()},
                        NULL, &rng);
        double exact = fit(&scale, ranks, NULL, 0, 0, &rng), noisy = fit(&scale, ranks, NULL, 0.03, 20, &rng);
        printf("   placement %d, head %d: off by %.1f %%, then %.2f %%, with noise %.2f %%\n", i,
               (int)kinds[i].head, 100 * before, 100 * exact, 100 * noisy);
        CHECK(before > 0.1 && exact < 0.01 && noisy < 0.05);
    }
}

static void slow_ranks_are_found(void) {
    static const double slow[8] = {1, 1, 1.5, 1, 1, 0.8, 1, 1};
    static const int32_t layouts[][2] = {{4, 1}, {4, 2}, {8, 1}};
    CostScale scale;
    RefitRank ranks[MOST_RANKS];
    Rng rng = rng_seed(seed);
    for (int i = 0; i < 6; i++) {
        case_make(layouts[i / 2][0], layouts[i / 2][1], i % 2 ? 2 : 1, i % 2 ? 0.5 : 1);
        double exact = fit(&scale, ranks, slow, 0, 0, &rng);
        for (int32_t r = 0; r < about.num_ranks; r++) {
            CHECK_NEAR(ranks[r].slow[PASS_FORWARD], slow[r], 0.02);
            CHECK_NEAR(ranks[r].slow[PASS_INPUTS], slow[r], 0.02);
        }
        double noisy = fit(&scale, ranks, slow, 0.03, 20, &rng);
        printf("   %d x %d: off by %.2f %%, with noise %.2f %%; rank 2 %.3f times as long\n", about.request.P,
               about.request.R, 100 * exact, 100 * noisy, ranks[2].slow[PASS_INPUTS]);
        CHECK_NEAR(exact, 0, 0.01);
        CHECK_NEAR(noisy, 0, 0.04);
        CHECK_NEAR(ranks[2].slow[PASS_INPUTS], 1.5, 0.06);
    }
}

// Two ranks, both slower than the file says: which of the terms is wrong and which rank is slow, nobody can
// say of them alone; what plans are told of a job is right, and the quicker rank is the measure.
static void the_rank_in_the_middle_is_the_measure(void) {
    static const double slow[2] = {1.3, 1.95};
    CostScale scale;
    RefitRank ranks[MOST_RANKS];
    Rng rng = rng_seed(seed);
    case_make(2, 1, 1, 1);
    CHECK_NEAR(fit(&scale, ranks, slow, 0, 0, &rng), 0, 0.01);
    for (int pass = 0; pass < PASS_COUNT; pass++) {
        CHECK(ranks[0].slow[pass] == 1);
        CHECK_NEAR(ranks[1].slow[pass], 1.5, 0.02);
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(terms_add_up_to_a_job);
    RUN(right_costs_stay_as_they_are);
    RUN(a_wrong_file_is_found_out_in_any_placement);
    RUN(slow_ranks_are_found);
    RUN(the_rank_in_the_middle_is_the_measure);
    return test_end();
}
