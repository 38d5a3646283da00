// test_session.c -- what the parts of a session share: tasks by name over both data sets, memory kept to its
// limit.
#include <math.h>

#include "../dynapipe_plugin/run/session.h"
#include "data_maker.h"
#include "test.h"
#include "toy_model.h"

// A session of one rank, as far as `open` takes it, with the options' defaults.
static Dynapipe* session_of_one(void) {
    char* argv[] = {"test", NULL};
    int argc = 1;
    Dynapipe* dp = calloc(1, sizeof *dp);
    CHECK(dp != NULL);
    CHECK_OK(transport_loopback_open(&dp->transport, 1));
    CHECK_OK(session_options_take(&dp->options, &argc, argv, NULL));
    dp->num_stages = dp->num_replicas = 1;
    return dp;
}

// Samples of tasks a and b in turn (data_maker.h names them).
static void write_two_tasks(const char* dir, const char* name, int32_t a, int32_t b) {
    MadeSample samples[8];
    for (int32_t i = 0; i < 8; i++) { samples[i] = (MadeSample){i % 2 == 0 ? a : b, 3, 2}; }
    MadeData data = {.vocab = 50, .num_samples = 8, .samples = samples};
    maker_write(&data, 0, 8, dir, name);
}

static void tasks_have_one_number_by_name(void) {
    char dir[64], train[128], val[128];
    maker_dir_create(dir);
    write_two_tasks(dir, "train.bin", 0, 1);  // add, sort
    write_two_tasks(dir, "val.bin", 1, 2);    // sort, copy
    snprintf(train, sizeof train, "%s/train.bin", dir);
    snprintf(val, sizeof val, "%s/val.bin", dir);
    Dynapipe* dp = session_of_one();
    DynapipeRun_v1 run = {.train_pattern = train,
                          .val_pattern = val,
                          .batch_tokens = 100,
                          .max_seq_tokens = 16,
                          .num_steps = 1};
    CHECK_OK((Status)dynapipe_open_data(dp, &run));
    CHECK_EQ(dp->num_tasks, 3);
    const char* const names[] = {"add", "sort", "copy"};
    for (int32_t t = 0; t < 3; t++) { CHECK(strcmp(dynapipe_task_name(dp, t), names[t]) == 0); }
    CHECK(strcmp(dynapipe_task_name(dp, 3), "?") == 0);
    CHECK_EQ(dp->val_task[0], 1);
    CHECK_EQ(dp->val_task[1], 2);
    dynapipe_close(dp);
    maker_dir_remove(dir);
}

// What was reserved is there, and stays where it is while it grows.
static void the_arena_grows_in_place_up_to_the_limit(void) {
    Dynapipe* dp = session_of_one();
    CHECK_OK(session_reserve(dp, 80 * PLAN_BUFFER_ALIGN));
    int64_t first_bytes = dp->memory_bytes;
    CHECK(first_bytes >= 80 * PLAN_BUFFER_ALIGN);
    CHECK_EQ((uintptr_t)dp->memory % PLAN_BUFFER_ALIGN, 0);
    char* first = dp->memory;
    memset(first, 7, (size_t)first_bytes);
    CHECK_OK(session_reserve(dp, first_bytes + 1));
    CHECK(dp->memory == first && dp->memory_bytes > first_bytes && first[first_bytes - 1] == 7);
    CHECK_EQ(first[dp->memory_bytes - 1], 0);
    int64_t second_bytes = dp->memory_bytes;
    CHECK_OK(session_reserve(dp, 100));
    CHECK_EQ(dp->memory_bytes, second_bytes);
    CHECK_OK(session_reserve(dp, 50 * second_bytes));  // more than was reserved: elsewhere
    CHECK_EQ(dp->memory_bytes, 50 * second_bytes);
    dp->options.memory_limit_bytes = 1 << 30;
    CHECK_FAILS(session_reserve(dp, INT64_C(1) << 31), STATUS_INFEASIBLE, "beyond --memory-limit");
    dynapipe_close(dp);
}

// A vee of 4 layers over two stages, the head's matrix shared 1 to 3: the arena has what all of a rank's
// chunks and its share leave.
static void the_arena_is_what_all_of_a_rank_leaves(void) {
    enum { LAYER = 1000, EMBEDDING = 70000, MATRIX = 64000 };
    static Dynapipe dp;
    dp = (Dynapipe){.num_stages = 2, .options.memory_limit_bytes = 1 << 20};
    dp.costs.num_enc_layers = 4;
    dp.costs.part_state_bytes[PART_ENC_LAYER] = LAYER;
    dp.costs.part_state_bytes[PART_EMBEDDING] = EMBEDDING;
    dp.costs.head_state_bytes = MATRIX;
    Placement* placement = &dp.request.placement;
    *placement = (Placement){.num_chunks = 3,
                             .stage_of = {0, 1, 0},
                             .chunks = {{0, 1}, {1, 2}, {2, 4}},
                             .head = HEAD_BY_VOCABULARY};
    placement->head_begin[1] = 256;
    placement->head_begin[2] = 1024;
    CHECK_EQ(session_arena_limit(&dp), (1 << 20) - 3 * LAYER - EMBEDDING - MATRIX / 4);
    dp.stage = dp.transport.rank = 1;
    CHECK_EQ(session_arena_limit(&dp), (1 << 20) - LAYER - MATRIX / 4 * 3);
    dp.options.memory_limit_bytes = 0;
    CHECK_EQ(session_arena_limit(&dp), INT64_MAX);
}

// 5 s on one core: 22 ms of planning; more for more cores and replicas, never beyond its limits.
static void planning_takes_its_share_of_a_step(void) {
    const int64_t second_ns = INT64_C(1000000000);
    CHECK(llabs(session_planning_ns(5 * second_ns, 1, 1) - 22360000) < 10000);
    CHECK(llabs(session_planning_ns(5 * second_ns, 4, 1) - 44720000) < 10000);
    CHECK(llabs(session_planning_ns(5 * second_ns, 1, 4) - 44720000) < 10000);
    CHECK_EQ(session_planning_ns(1, 1, 1), 1000000);
    CHECK_EQ(session_planning_ns(INT64_MAX, 1024, 512), 400000000);
    for (int64_t step_ns = second_ns / 25; step_ns < 1000 * second_ns; step_ns *= 2) {
        CHECK(session_planning_ns(step_ns, 1, 1) <= step_ns / 20);
    }
}

// All ranks begin the update together, so a step ends with the rank that takes longest: the most parameters,
// or the slowest.
static void the_slowest_update_ends_a_step(void) {
    static Dynapipe dp;
    MachineRank ranks[2] = {machine_rank(NULL, 0), machine_rank(NULL, 1)};
    Machine machine = {.num_ranks = 2, .ranks = ranks};
    dp = (Dynapipe){.transport.num_ranks = 2, .num_stages = 2, .num_replicas = 1};
    dp.costs.num_enc_layers = 3;
    dp.costs.update_ns_per_byte = 2;
    dp.costs.part_param_bytes[PART_ENC_LAYER] = 1000;
    dp.request.placement.chunks[0] = (LayerRange){0, 2};
    dp.request.placement.chunks[1] = (LayerRange){2, 3};
    placement_linear(&dp.request.placement, dp.request.placement.chunks, 2);
    dp.request.machine = &machine;
    CHECK_EQ(session_update_ns(&dp), 2 * 2000);
    ranks[1].slow[JOB_W] = 3;
    CHECK_EQ(session_update_ns(&dp), 3 * 2 * 1000);
}

// JSON has neither: the record of a run that diverges is one all the same.
static void not_a_number_is_null(void) {
    Dynapipe* dp = session_of_one();
    const char* names[] = {"add", "sort", "copy"};
    double losses[] = {1.5, INFINITY, NAN}, stats[SESSION_STATS] = {0};
    stats[STAT_PREDICTED_NS] = 2e6;
    stats[STAT_STEP_NS] = 3.5e6;
    stats[STAT_JOBS_OFF_NS] = 1e6;
    stats[STAT_TRANSFERS_OFF_NS] = -0.25e6;
    SessionStep step = {0};
    DynapipeReport_v1 report = {.step = 7, .norm = INFINITY, .lr = 0.1F};
    dp->num_tasks = 3;
    dp->task_names = names;
    dp->rank_stats = stats;
    dp->now = &step;
    dp->last.loss = NAN;
    dp->last.task_loss = losses;
    char* text = session_metrics_json(dp, &report);
    CHECK(text != NULL);
    CHECK(
        strstr(
            text,
            "\"step\":7,\"loss\":null,\"task_loss\":{\"add\":1.5,\"sort\":null},\"norm\":null,\"lr\":0.1") !=
        NULL);
    CHECK(strstr(text, "\"predicted_ms\":2.0,\"jobs_off_ms\":1.0,"
                       "\"transfers_off_ms\":-0.25,\"waiting_off_ms\":0.75,") != NULL);
    free(text);
    dp->task_names = NULL;
    dp->rank_stats = NULL;
    dp->now = NULL;
    dynapipe_close(dp);
}

// JSON is UTF-8, names are bytes: none is left out for that.
static void every_task_is_in_the_record(void) {
    Dynapipe* dp = session_of_one();
    const char* names[] = {"h\xc3\xb6her=1,2", "\xff\x1b[31m", "a\"b\\"};
    double losses[] = {1, 2, 3}, stats[SESSION_STATS] = {0};
    SessionStep step = {0};
    DynapipeReport_v1 report = {.step = 1};
    dp->num_tasks = 3;
    dp->task_names = names;
    dp->rank_stats = stats;
    dp->now = &step;
    dp->last.task_loss = losses;
    char* text = session_metrics_json(dp, &report);
    CHECK(text != NULL && strstr(text, "\"task_loss\":{\"h\xc3\xb6her=1,2\":1.0,\"\\\\xff\\\\x1b[31m\":2.0,"
                                       "\"a\\\"b\\\\\":3.0}") != NULL);
    free(text);
    dp->task_names = NULL;
    dp->rank_stats = NULL;
    dp->now = NULL;
    dynapipe_close(dp);
}

// What a run is asked to show it must have: all steps are counted from 1.
static void a_step_to_show_is_one_of_the_run(void) {
    Dynapipe* dp = session_of_one();
    dp->num_steps = 3;
    dp->options.show_step = 4;
    CHECK_OK(session_report_check(dp));  // nothing is shown
    dp->options.print_plan = true;
    CHECK_FAILS(session_report_check(dp), STATUS_BAD_OPTION,
                "--debug print-plan: shows step 4 (--show-step), the run has 3 --->");
    dp->options.trace = "x";
    CHECK_FAILS(session_report_check(dp), STATUS_BAD_OPTION, "--trace: shows step 4");
    dp->options.show_step = 3;
    CHECK_OK(session_report_check(dp));
    dynapipe_close(dp);
}

// Costs of a model of that many layers, as dynapipe_measure() makes them.
static DynapipeCosts* costs_of(int32_t num_layers, DynapipeShapes_v1 shapes, bool has_weights_job) {
    CostAnalytic about = {.num_layers = num_layers,
                          .channels = 64,
                          .num_heads = 2,
                          .padded_vocab = 128,
                          .max_tokens = 64,
                          .bytes_per_value = 4,
                          .flops_per_ns = 60,
                          .attention_flops_per_ns = 15,
                          .bytes_per_ns = 8,
                          .launch_ns = 20e3,
                          .comm_bytes_per_ns = 3,
                          .num_replicas = 1};
    DynapipeCosts* costs = calloc(1, sizeof *costs);
    CHECK(costs != NULL);
    cost_model_analytic_gpt(&costs->model, &about);
    costs->shapes = shapes;
    costs->has_weights_job = has_weights_job;
    return costs;
}

static Dynapipe* session_with_data(const char* train, int32_t num_stages) {
    Dynapipe* dp = session_of_one();
    DynapipeRun_v1 run = {.train_pattern = train, .batch_tokens = 100, .max_seq_tokens = 18, .num_steps = 1};
    CHECK_OK((Status)dynapipe_open_data(dp, &run));
    dp->num_stages = num_stages;
    dp->transport.num_ranks = 8;  // as far as messages go
    return dp;
}

// What kernels ask for reaches the planner, or is refused before anything is planned.
static void what_the_model_asks_for_is_obeyed_or_refused(void) {
    char dir[64], train[128];
    DynapipeRange range;
    int32_t num_ranges;
    maker_dir_create(dir);
    write_two_tasks(dir, "train.bin", 0, 1);
    snprintf(train, sizeof train, "%s/train.bin", dir);
    Dynapipe* dp = session_with_data(train, 1);
    DynapipeShapes_v1 shapes = {.padded = 1,
                                .seq_multiple = 2,
                                .tokens_multiple = 6,
                                .max_squares = 4000,
                                .head_has_layer = 1,
                                .max_tokens = 900,
                                .max_seqs = 50};
    CHECK_OK((Status)dynapipe_choose_stages(dp, costs_of(2, shapes, false), &range, 1, &num_ranges));
    CHECK_EQ(dp->request.split_backward, SPLIT_BACKWARD_OFF);
    const ShapeRules* rules = &dp->request.rules;
    CHECK(rules->padded && rules->head_has_layer && rules->max_squares == 4000);
    CHECK(rules->max_tokens == 900 && rules->max_seqs == 50);
    CHECK(rules->seq_multiple == 2 && rules->tokens_multiple == 6);
    CHECK(range.begin == 0 && range.end == 4);
    shapes.seq_multiple = 4;
    CHECK_FAILS((Status)dynapipe_choose_stages(dp, costs_of(2, shapes, true), &range, 1, &num_ranges),
                STATUS_BAD_OPTION, "-t 18: the model's kernels take windows of a multiple of 12 tokens");
    dp->options.split_backward = SPLIT_BACKWARD_ON;
    CHECK_FAILS((Status)dynapipe_choose_stages(dp, costs_of(2, (DynapipeShapes_v1){0}, false), &range, 1,
                                               &num_ranges),
                STATUS_BAD_OPTION, "--split-backward on: the model's backward cannot be divided");
    dynapipe_close(dp);
    dp = session_with_data(train, 8);
    CHECK_FAILS((Status)dynapipe_choose_stages(dp, costs_of(2, shapes, true), &range, 1, &num_ranges),
                STATUS_BAD_OPTION,
                "--stages 8: the model has 2 layers, and every stage needs one ---> at most --stages 2, on 8 "
                "ranks --stages 2 --replicas 4");
    CHECK_FAILS((Status)dynapipe_choose_stages(dp, costs_of(7, shapes, true), &range, 1, &num_ranges),
                STATUS_BAD_OPTION, "at most --stages 7, on 8 ranks --stages 4 --replicas 2");
    dp->num_stages = 2;
    dp->options.stage_split = "3,0";
    shapes = (DynapipeShapes_v1){.head_has_layer = 1};
    CHECK_FAILS((Status)dynapipe_choose_stages(dp, costs_of(3, shapes, true), &range, 1, &num_ranges),
                STATUS_BAD_OPTION, "each at least 1 (this model's head needs one, too)");
    dynapipe_close(dp);
    maker_dir_remove(dir);
}

// What a program leaves in members that are kept for later came from another header, or from nowhere.
static void members_kept_for_later_are_zero(void) {
    Dynapipe* dp = session_of_one();
    DynapipeRun_v1 run = {.batch_tokens = 1, .reserved = {0, 0, 1}};
    CHECK_FAILS((Status)dynapipe_open_data(dp, &run), STATUS_OUT_OF_RANGE,
                "DynapipeRun_v1.reserved[2] is set");
    DynapipeReport_v1 report = {.step = 1, .reserved = {-1}};
    CHECK_FAILS((Status)dynapipe_report(dp, &report), STATUS_OUT_OF_RANGE,
                "DynapipeReport_v1.reserved[0] is set");
    DynapipeValidation_v1 validation = {.step = 1, .reserved = {0, 0, 0, 5}};
    CHECK_FAILS((Status)dynapipe_report_validation(dp, &validation), STATUS_OUT_OF_RANGE,
                "DynapipeValidation_v1.reserved[3] is set");
    dynapipe_close(dp);
}

// --- where the data stands -------------------------------------------------------------------------------

static bool stands_at(const Dynapipe* dp, const LoaderBatch* batch) {
    const uint8_t* now;
    size_t num_bytes;
    Arena arena = {0};
    CHECK_OK(loader_position(dp->train, &now, &num_bytes, &arena));
    bool is_same = num_bytes == batch->position_bytes && memcmp(now, batch->position, num_bytes) == 0;
    arena_free(&arena);
    return is_same;
}

// As dynapipe_position() gives it out after a step.
static Status restore(Dynapipe* dp, const LoaderBatch* batch, int32_t step) {
    const void* position = batch->position;
    size_t num_bytes = batch->position_bytes;
    TRY(session_settings_add(dp, &position, &num_bytes));
    return (Status)dynapipe_restore(dp, position, num_bytes, step);
}

// A program that goes on restores before its stages are chosen, or after; the stages are those of the start.
static void a_position_outlives_the_choice_of_stages(void) {
    char dir[64], train[128];
    DynapipeRange range;
    int32_t num_ranges;
    Arena arena = {0};
    LoaderBatch batch;
    maker_dir_create(dir);
    write_two_tasks(dir, "train.bin", 0, 1);
    snprintf(train, sizeof train, "%s/train.bin", dir);
    Dynapipe* dp = session_with_data(train, 1);
    for (int i = 0; i < 3; i++) { CHECK_OK(loader_next(dp->train, &batch, &arena)); }
    dynapipe_close(dp);
    for (int restored_first = 0; restored_first < 2; restored_first++) {
        dp = session_with_data(train, 1);
        CHECK(!stands_at(dp, &batch));
        if (restored_first) { CHECK_OK(restore(dp, &batch, 3)); }
        CHECK_OK((Status)dynapipe_choose_stages(dp, costs_of(2, (DynapipeShapes_v1){0}, true), &range, 1,
                                                &num_ranges));
        if (!restored_first) { CHECK_OK(restore(dp, &batch, 3)); }
        CHECK(stands_at(dp, &batch));
        CHECK_EQ(dp->next_step, 3);
        CHECK_FAILS((Status)dynapipe_restore(dp, batch.position, batch.position_bytes, 3), STATUS_BAD_FORMAT,
                    "position in the data is not one that this program saved --->");
        dynapipe_close(dp);
    }
    arena_free(&arena);
    maker_dir_remove(dir);
}

// The mixture is that of the run's first batches, wherever the loader stands.
static void the_mixture_is_that_of_the_start(void) {
    char dir[64], train[128];
    StageBatch first[SESSION_MIXTURE], later[SESSION_MIXTURE];
    int32_t num_first, num_later;
    Arena arena = {0};
    LoaderBatch batch;
    maker_dir_create(dir);
    Rng rng = rng_seed(7);
    MadeData data = maker_random(&rng, 60, 2, 16, 50);
    maker_write(&data, 0, 60, dir, "train.bin");
    snprintf(train, sizeof train, "%s/train.bin", dir);
    Dynapipe* dp = session_with_data(train, 1);
    CHECK_OK(session_mixture(first, &num_first, dp, &arena));
    for (int i = 0; i < 3; i++) { CHECK_OK(loader_next(dp->train, &batch, &arena)); }
    CHECK_OK(session_mixture(later, &num_later, dp, &arena));
    CHECK(stands_at(dp, &batch));
    CHECK(num_first == SESSION_MIXTURE && num_later == num_first);
    for (int32_t b = 0; b < num_first; b++) {
        CHECK_EQ(first[b].num_samples, later[b].num_samples);
        size_t num_bytes = (size_t)first[b].num_samples * sizeof *first[b].samples;
        CHECK(memcmp(first[b].samples, later[b].samples, num_bytes) == 0);
    }
    dynapipe_close(dp);
    maker_free(&data);
    arena_free(&arena);
    maker_dir_remove(dir);
}

// --- a step ----------------------------------------------------------------------------------------------

static const DynapipeShapes_v1 step_shapes = {
    .padded = 1, .seq_multiple = 2, .tokens_multiple = 6, .max_squares = 1200, .head_has_layer = 1};
static int32_t num_forwards;

// The toy, if its batch is what it asked for.
static int checked_forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                           void* scratch, float* losses, int flags) {
    int32_t T = batch->max_seq_tokens;
    bool padded = true;
    for (int32_t i = 0; i < batch->num_seqs; i++) {
        padded &= batch->cu_seqlens[i + 1] - batch->cu_seqlens[i] == T;
    }
    num_forwards++;
    if (!padded || T % 2 != 0 || batch->num_tokens % 6 != 0 || batch->num_squares > 1200) { return 1; }
    if (batch->num_squares != (int64_t)batch->num_seqs * T * T) { return 2; }
    return toy_api_joint.forward(model, batch, in, out, acts, scratch, losses, flags);
}

// Data, planning, collation, a model whose backward is one job: what the kernels ask for arrives there.
static void a_step_keeps_what_the_model_asks_for(void) {
    char dir[64], train[128];
    DynapipeRange range;
    DynapipeStep_v1 step;
    int32_t num_ranges, rank = 0;
    static ToyModel toy = {.layer_end = 2, .is_first = true, .is_last = true};
    DynapipeModel_v1 api = toy_api_joint;
    api.forward = checked_forward;
    DynapipeParams_v1 params = {
        .params = toy.da, .grads = toy.da, .num_params = sizeof toy.da / sizeof(float)};
    maker_dir_create(dir);
    write_two_tasks(dir, "train.bin", 0, 1);
    snprintf(train, sizeof train, "%s/train.bin", dir);
    Dynapipe* dp = session_with_data(train, 1);
    dp->transport.num_ranks = dp->plan_threads = 1;
    CHECK_OK(collective_init(&dp->world, &dp->transport, &rank, 1, 0));
    CHECK_OK(collective_init(&dp->replicas, &dp->transport, &rank, 1, 0));
    CHECK_OK((Status)dynapipe_choose_stages(dp, costs_of(2, step_shapes, false), &range, 1, &num_ranges));
    CHECK_OK((Status)dynapipe_attach(dp, 0, &api, &toy, &params));
    CHECK_OK((Status)dynapipe_step(dp, &step));
    CHECK(num_forwards > 0 && toy.num_violations == 0);
    CHECK(step.computed_tokens > step.total_tokens && step.computed_tokens % 6 == 0);
    for (int32_t r = 0; r < dp->now->plan.ranks[0].num_instrs; r++) {
        CHECK(dp->now->plan.ranks[0].instrs[r].kind != INSTR_WGT);
    }
    CHECK_OK((Status)dynapipe_share_params(dp));
    dynapipe_close(dp);
    maker_dir_remove(dir);
}

int main(void) {
    RUN(tasks_have_one_number_by_name);
    RUN(the_arena_grows_in_place_up_to_the_limit);
    RUN(the_arena_is_what_all_of_a_rank_leaves);
    RUN(the_slowest_update_ends_a_step);
    RUN(not_a_number_is_null);
    RUN(every_task_is_in_the_record);
    RUN(a_step_to_show_is_one_of_the_run);
    RUN(planning_takes_its_share_of_a_step);
    RUN(what_the_model_asks_for_is_obeyed_or_refused);
    RUN(members_kept_for_later_are_zero);
    RUN(a_position_outlives_the_choice_of_stages);
    RUN(the_mixture_is_that_of_the_start);
    RUN(a_step_keeps_what_the_model_asks_for);
    return test_end();
}
