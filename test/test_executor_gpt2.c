// test_executor_gpt2.c -- the real GPT-2 under any valid plan: gradients and losses are those of one slice
// that sees one window at a time without padding, and twice the same plan gives the same bits. Plans come
// from random times without a planner (random_plan.h) and from the planner over random cost models.
#include <math.h>
#include <omp.h>

#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/placement.h"
#include "../dynapipe_plugin/run/executor.h"
#include "../llmc/head.h"
#include "gpt2_golden.h"
#include "gpt2_work.h"
#include "random_plan.h"
#include "random_problem.h"
#include "ranks.h"
#include "test.h"

static uint64_t seed;
static RankResult results[RANKS_MAX];

// float32 sums of some hundred terms in another order
static const double SUM_TOLERANCE = 1e-5;

enum { LONGEST = GPT2_WORK_LONGEST, MOST_SAMPLES = 24, MOST_RANKS = 8, KEEP_HEAD = MODEL_KEEP | MODEL_HEAD };

static const ModelConfig* const config = &gpt2_work_config;

// --- the plan on its ranks -------------------------------------------------------------------------------

typedef struct {
    const Gpt2Work* work;
    OpsContext* ops[MOST_RANKS];
    Model models[MOST_RANKS];  // all that a rank has
} Run;

static Status body(Transport* t, void* arg) {
    Run* run = arg;
    const Plan* plan = run->work->plan;
    const DynapipeBatch** batches = calloc((size_t)plan->M + 1, sizeof *batches);
    omp_set_num_threads(1);  // of this thread: OpenBLAS asks for it
    for (int32_t m = 0; m < plan->M; m++) {
        batches[m] = plan->mbs[m].replica == t->rank / plan->P ? &run->work->batches[m] : NULL;
    }
    const Model* model = &run->models[t->rank];
    Model views[MODEL_MAX_RANGES];
    ExecutorRange ranges[MODEL_MAX_RANGES];
    int32_t num_ranges = model->part.num_ranges, num_views = num_ranges + model->part.has_share;
    for (int32_t i = 0; i < num_views; i++) {
        views[i] = i < num_ranges ? model_view(model, i) : model_share_view(model);
        ranges[i] = (ExecutorRange){&dynapipe_llmc_model, &views[i]};
    }
    ExecutorStep step = {.plan = plan,
                         .batches = batches,
                         .losses = run->work->losses,
                         .arena = gpt2_work_memory(plan->ranks[t->rank].arena_bytes),
                         .arena_bytes = plan->ranks[t->rank].arena_bytes};
    Executor* executor = NULL;
    Status status = executor_create(&executor, ranges, num_views, t, (int64_t)20 * 1000000000);
    if (status == STATUS_OK) { status = executor_prepare_step(executor, &step, NULL); }
    if (status == STATUS_OK) { status = executor_start(executor); }
    if (status == STATUS_OK) { status = executor_finish(executor); }
    if (status != STATUS_OK) {  // nobody may write into the arena after it is freed
        char why[1024];
        snprintf(why, sizeof why, "%s", status_message());
        t->api->abort(t->ctx, why);
        status = FAIL(status, "%s", why);
    }
    executor_free(executor);
    free(step.arena);
    free(batches);
    return status;
}

// What a stage has in a placement.
static ModelPart part_of(const Placement* placement, int32_t P, int32_t s) {
    ModelPart part = {.stage = s};
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        bool is_last = k == placement->num_chunks - 1;
        ModelEnd end = !is_last                        ? MODEL_GOES_ON
                       : placement->head == HEAD_WHOLE ? MODEL_HAS_HEAD
                                                       : MODEL_FEEDS_HEAD;
        if (placement->stage_of[k] != s) { continue; }
        part.ranges[part.num_ranges++] =
            (ModelRange){placement->chunks[k].layer_begin, placement->chunks[k].layer_end, end};
    }
    if (placement->head == HEAD_WHOLE) { return part; }
    int32_t begin[PLAN_MAX_STAGES + 1];
    for (int32_t i = 0; i <= P; i++) { begin[i] = placement->head_begin[i]; }
    part.head = head_of_places(
        config, placement->head == HEAD_BY_ROWS ? MODEL_HEAD_BY_ROWS : MODEL_HEAD_BY_VOCAB, P, begin);
    part.has_share = placement_has_share(placement, s);
    return part;
}

// Runs the plan; returns the number of ranks that failed. run_close afterwards.
static int run_open(Run* run, const Gpt2Work* work, int print) {
    const Plan* plan = work->plan;
    *run = (Run){.work = work};
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        const ModelPart part = part_of(&plan->placement, plan->P, r % plan->P);
        run->ops[r] = ops_create(1);
        model_init_part(&run->models[r], config, &part, run->ops[r]);
        model_alloc_grads(&run->models[r]);
        gpt2_golden_params(&run->models[r]);
    }
    for (int32_t m = 0; m < plan->M; m++) {
        memset(work->losses[m], 0xff, sizeof(float) * (size_t)work->batches[m].num_rows);
    }
    return ranks_run(plan->P * plan->R, body, run, results, print);
}

static void run_close(Run* run) {
    for (int32_t r = 0; r < run->work->plan->P * run->work->plan->R; r++) {
        model_free(&run->models[r]);
        ops_free(run->ops[r]);
    }
}

// --- the law ---------------------------------------------------------------------------------------------

// Adds a slice's gradients to those of the whole model; both ends of a tied tensor add to the same place.
static void add_grads(float* whole, const Model* model) {
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        for (int64_t j = 0; j < slice->num_values; j++) {
            whole[slice->file_offset + j] += model->grads[slice->offset + j];
        }
    }
}

static bool losses_agree(const Gpt2Work* work, float* const* losses) {
    for (int32_t m = 0; m < work->plan->M; m++) {
        for (int32_t i = 0; i < work->batches[m].num_rows; i++) {
            double a = work->losses[m][i], b = losses[m][i];
            if (!(fabs(a - b) <= 1e-6 * (1 + fabs(b)))) { return false; }
        }
    }
    return true;
}

// The worst relative error of a tensor's gradients against the plain loop; infinite where a loss differs.
static double error_of(const Run* run, Arena* arena) {
    const Gpt2Work* work = run->work;
    Model whole;
    OpsContext* ops = ops_create(1);
    model_init(&whole, config, 0, config->num_layers, true, ops);
    model_alloc_grads(&whole);
    gpt2_golden_params(&whole);
    float** losses = ARENA_NEW(arena, float*, work->plan->M);
    gpt2_work_run_plainly(&whole, work, losses, arena);
    float* summed = calloc((size_t)model_num_params(config), sizeof(float));
    for (int32_t r = 0; r < work->plan->P * work->plan->R; r++) { add_grads(summed, &run->models[r]); }
    double error =
        losses_agree(work, losses) ? gpt2_golden_worst_error(&whole, whole.grads, summed) : INFINITY;
    free(summed);
    model_free(&whole);
    ops_free(ops);
    return error;
}

static bool same_bits(const Run* a, const Run* b) {
    for (int32_t r = 0; r < a->work->plan->P * a->work->plan->R; r++) {
        size_t num_bytes = (size_t)a->models[r].num_params * sizeof(floatX);
        if (memcmp(a->models[r].grads, b->models[r].grads, num_bytes) != 0) { return false; }
    }
    return true;
}

// What the plans of a test held, so that none of it goes missing unnoticed.
typedef struct {
    int num_plans, num_head_alone, layouts[LAYOUT_COUNT], instrs[INSTR_COUNT], ranks[MOST_RANKS + 1];
    int heads[HEAD_COUNT];
} Seen;

static void seen_add(Seen* seen, const Plan* plan) {
    seen->num_plans++;
    seen->num_head_alone +=
        plan->placement.chunks[plan->placement.num_chunks - 1].layer_begin == config->num_layers;
    seen->heads[plan->placement.head]++;
    seen->ranks[plan->P * plan->R]++;
    for (int32_t m = 0; m < plan->M; m++) { seen->layouts[plan->mbs[m].layout]++; }
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        const PlanRank* list = &plan->ranks[r];
        for (int32_t i = 0; i < list->num_instrs; i++) { seen->instrs[list->instrs[i].kind]++; }
    }
}

static void check_seen_everything(const Seen* seen) {
    CHECK(seen->num_plans >= 24 && seen->num_head_alone >= 1);
    for (int i = 0; i < HEAD_COUNT; i++) { CHECK(seen->heads[i] > 0); }
    CHECK(seen->ranks[1] > 0 && seen->ranks[MOST_RANKS] > 0);
    for (int i = 0; i < LAYOUT_COUNT; i++) { CHECK(seen->layouts[i] > 0); }
    for (int i = 0; i < INSTR_COUNT; i++) { CHECK(seen->instrs[i] > 0); }
}

// The law itself: the plan runs twice.
static void check_plan(const Plan* plan, const PlanSample* samples, const char* what, int trial,
                       Arena* arena) {
    Gpt2Work work = gpt2_work_make(plan, samples, seed, arena);
    Run first, again;
    CHECK_EQ(run_open(&first, &work, 1), 0);
    double error = error_of(&first, arena);
    CHECK_EQ(run_open(&again, &work, 1), 0);
    CHECK(error < SUM_TOLERANCE);
    CHECK(same_bits(&first, &again));
    CHECK(losses_agree(&work, work.losses));  // no NaN left
    if (test_failures > 0) {
        printf("%s, trial %d: P %d R %d M %d K %d head %d, error %g\n", what, trial, plan->P, plan->R,
               plan->M, plan->placement.num_chunks, plan->placement.head, error);
    }
    run_close(&first);
    run_close(&again);
}

// --- plans from random times -----------------------------------------------------------------------------

// Exactly what the model asks for.
static void exact_bytes(RankBytes* out, int64_t* scratch_bytes, const Plan* plan, int32_t m, int32_t row,
                        void* context) {
    (void)context;
    const Placement* placement = &plan->placement;
    const PlanMicrobatch* mb = &plan->mbs[m];
    const DynapipeModel_v1* api = &dynapipe_llmc_model;
    DynapipeBatch b = {.num_seqs = (int32_t)mb->shape.num_seqs,
                       .num_tokens = (int32_t)mb->shape.enc_tokens,
                       .num_rows = (int32_t)mb->shape.supervised_tokens,
                       .num_squares = mb->shape.enc_squares};
    for (int32_t w = mb->sequence_begin; w < mb->sequence_end; w++) {
        int32_t tokens = plan->sequences[w].enc_tokens;
        b.max_seq_tokens = tokens > b.max_seq_tokens ? tokens : b.max_seq_tokens;
    }
    int32_t K = placement->num_chunks, s = placement_stage_of(placement, row), begin, end, before = 0;
    for (int32_t k = 0; k < row && k < K; k++) { before += placement->stage_of[k] == s; }
    const ModelPart part = part_of(placement, plan->P, s);
    Model all, model;
    OpsContext* ops = ops_create(1);
    model_init_counts(&all, config, &part, ops);
    model = row < K ? model_view(&all, before) : model_share_view(&all);
    if (row >= K && placement->head == HEAD_BY_ROWS) {
        executor_loss_rows(placement, s, b.num_rows, &begin, &end);
        b.num_rows = end - begin;
    }
    *out = (RankBytes){.acts_bytes = api->acts_bytes(&model, &b, KEEP_HEAD),
                       .forward_bytes = api->acts_bytes(&model, &b, 0),
                       .in_bytes = row > 0 ? api->boundary_bytes(&model, &b, 0) : 0};
    if (row < K && !(row == K - 1 && placement->head == HEAD_WHOLE)) {
        out->out_bytes = api->boundary_bytes(&model, &b, 1);
    }
    if (row >= K) {
        bool by_rows = placement->head == HEAD_BY_ROWS;
        out->part_bytes = by_rows ? out->in_bytes : api->part_bytes(&model, &b, KEEP_HEAD);
        out->factor_bytes = by_rows ? 0 : api->factor_bytes(&model, &b);
    }
    *scratch_bytes = api->scratch_bytes(&model, &b);
    model_free(&all);
    ops_free(ops);
}

static const PlanSample* draw_plan(Plan* out, Rng* rng, int32_t P, int32_t R, Arena* arena) {
    RandomPlan about = {.P = P,
                        .R = R,
                        .num_layers = config->num_layers,
                        .num_samples = rng_between(rng, R, MOST_SAMPLES),
                        .max_tokens = rng_between(rng, 2, LONGEST),
                        .packed = rng_below(rng, 2),
                        .recompute = rng_below(rng, 3) > 0,
                        .bytes = exact_bytes,
                        .placed = true};
    return random_plan(out, rng, &about, arena);
}

static void plans_from_random_times_give_the_gradients_of_one_slice(void) {
    Arena arena = {0};
    Seen seen = {0};
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 40 && test_failures == 0; trial++) {
        Plan plan;
        const PlanSample* samples = draw_plan(&plan, &rng, trial % 4 + 1, trial / 4 % 2 + 1, &arena);
        check_plan(&plan, samples, "random plan", trial, &arena);
        seen_add(&seen, &plan);
        arena_reset(&arena);
    }
    check_seen_everything(&seen);
    arena_free(&arena);
}

// --- plans from random cost models, by the planner -------------------------------------------------------

// At least what the model asks for: lines through its bytes, which grow in steps of 16 tokens.
static CostFormula roomy(int64_t at_one_step, CostFeature feature) {
    CostFormula formula = {.constant = (double)at_one_step};
    cost_formula_add_line(&formula, feature, (double)at_one_step / 16);
    return formula;
}

static void set_bytes(CostModel* costs, Model* whole) {
    enum { STEP = 16, LONG = 64 * LONGEST };
    DynapipeBatch one = {.num_seqs = 1,
                         .num_tokens = STEP,
                         .num_rows = STEP,
                         .max_seq_tokens = 4 * LONGEST,
                         .num_squares = STEP * 4 * LONGEST};
    const DynapipeModel_v1* api = &dynapipe_llmc_model;
    const ModelBatch tokens_only = {.num_tokens = STEP}, rows_only = {.num_rows = STEP};
    int64_t tokens = model_acts_bytes(whole, &tokens_only, KEEP_HEAD),
            rows = model_acts_bytes(whole, &rows_only, KEEP_HEAD);
    for (int part = 0; part < PART_COUNT; part++) {
        for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
            costs->parts[mode][part].stored_bytes = (CostFormula){.constant = 0};
            costs->parts[mode][part].forward_bytes = (CostFormula){.constant = 0};
        }
    }
    costs->stage_stored_bytes = roomy(tokens, FEATURE_ENC_TOKENS);
    costs->stage_stored_bytes.constant += (double)rows;
    cost_formula_add_line(&costs->stage_stored_bytes, FEATURE_SUPERVISED, (double)rows / STEP);
    costs->stage_forward_bytes = roomy(api->acts_bytes(whole, &one, 0), FEATURE_ENC_TOKENS);
    costs->stage_forward_bytes.constant += (double)rows;  // the final norm, where the head is shared
    cost_formula_add_line(&costs->stage_forward_bytes, FEATURE_SUPERVISED, (double)rows / STEP);
    costs->boundary_bytes = roomy(api->boundary_bytes(whole, &one, 1), FEATURE_ENC_TOKENS);
    costs->scratch_bytes = roomy(api->scratch_bytes(whole, &one), FEATURE_ENC_TOKENS);
    // Of a shared head: of shares beside what is theirs of the head, which here is all in what a chunk has.
    int64_t row_bytes = api->boundary_bytes(whole, &one, 1);
    costs->head_in_bytes = roomy(row_bytes, FEATURE_SUPERVISED);
    costs->head_part_bytes = roomy(api->part_bytes(whole, &one, KEEP_HEAD), FEATURE_SUPERVISED);
    costs->head_factor_bytes = roomy(api->factor_bytes(whole, &one), FEATURE_SUPERVISED);
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        costs->parts[mode][PART_HEAD].stored_bytes = roomy(rows, FEATURE_SUPERVISED);
    }
    costs->head_vocab = config->padded_vocab;
}

static void draw_problem(RandomProblem* out, Rng* rng, int trial, Model* whole) {
    random_cost_model(&out->costs, rng, config->num_layers, 0);
    set_bytes(&out->costs, whole);
    out->request = (PlanRequest){.batching = (Batching)(trial % BATCHING_COUNT),
                                 .layout = rng_below(rng, 2) ? LAYOUT_RAGGED : LAYOUT_PADDED,
                                 .schedule = (ScheduleChoice)rng_below(rng, SCHEDULE_COUNT),
                                 .recompute = (RecomputeChoice)rng_below(rng, 3),
                                 .split_backward = (SplitBackward)rng_below(rng, 3),
                                 .P = trial % 4 + 1,
                                 .R = trial / 4 % 2 + 1,
                                 .max_seq_tokens = 4 * LONGEST,
                                 .mb_tokens = rng_between(rng, LONGEST, 4 * LONGEST),
                                 .effort = 20};
    equal_stages(&out->request, config->num_layers);
    if (out->request.P > 1 && rng_below(rng, 3) == 0) {
        head_alone_stages(&out->request, config->num_layers);
    } else if (out->request.batching != BATCHING_DYNAPIPE && out->request.schedule != SCHEDULE_GPIPE &&
               out->request.schedule != SCHEDULE_1F1B) {
        random_placement(&out->request.placement, rng, out->request.P, config->num_layers);
    }
    out->num_samples = rng_between(rng, 1, MOST_SAMPLES);
    for (int32_t i = 0; i < out->num_samples; i++) {
        int32_t tokens = rng_between(rng, 1, LONGEST);
        out->samples[i] = (PlanSample){tokens, 0, rng_between(rng, 0, tokens)};
    }
    random_problem_limit_memory(out, rng_between(rng, 0, 300));
    if (rng_below(rng, 2) > 0) { out->request.memory_limit_bytes = 0; }
    if (out->request.batching == BATCHING_DYNAMIC &&
        out->request.P > 1) {  // whatever is drawn: the rarest lists
        out->request.schedule = SCHEDULE_ADAPTIVE;
        out->request.memory_limit_bytes = 0;
        HeadSplit head = out->request.P == 3 ? HEAD_BY_ROWS : HEAD_BY_VOCABULARY;
        placement_share_head(&out->request.placement, head, out->request.P);
    }
}

static void plans_from_random_cost_models_give_the_gradients_of_one_slice(void) {
    static RandomProblem problem;
    Arena arena = {0};
    Rng rng = rng_seed(seed + 1);
    Model whole;
    OpsContext* ops = ops_create(1);
    const ModelPart part = model_part(0, config->num_layers, true);
    model_init_counts(&whole, config, &part, ops);
    Seen seen = {0};
    for (int trial = 0; trial < 40 && test_failures == 0; trial++) {
        Plan plan;
        draw_problem(&problem, &rng, trial, &whole);
        Status status =
            plan_make(&plan, &problem.request, &problem.costs, problem.samples, problem.num_samples, &arena);
        if (status != STATUS_OK && status != STATUS_INFEASIBLE) { printf("%s\n", status_message()); }
        CHECK(status == STATUS_OK || status == STATUS_INFEASIBLE);
        if (status == STATUS_OK) {
            check_plan(&plan, problem.samples, "planner", trial, &arena);
            seen_add(&seen, &plan);
        }
        arena_reset(&arena);
    }
    check_seen_everything(&seen);
    model_free(&whole);
    ops_free(ops);
    arena_free(&arena);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(plans_from_random_times_give_the_gradients_of_one_slice);
    RUN(plans_from_random_cost_models_give_the_gradients_of_one_slice);
    return test_end();
}
