// test_session.c -- a session's parts: data, costs and memory, models, ranks that agree, validation and
// answers, verified data, plans made ahead, hosts.
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "../dynapipe_plugin/run/hosts.h"
#include "../dynapipe_plugin/run/session.h"
#include "../util/numbers.h"
#include "../util/program.h"
#include "data_maker.h"
#include "random_problem.h"
#include "ranks.h"
#include "slow_disk.h"
#include "tied_case.h"
#include "toy_model.h"
#include "test.h"

enum { NUM_RANKS = 3 };  // of most tests with several
static RankResult results[RANKS_MAX];
static uint64_t seed;

// A session on this end, which it takes over, with the options' defaults.
static Status open_on(Dynapipe** out, Transport* transport, int32_t num_stages) {
    char stages[16], *words[] = {"test", "--stages", stages, NULL}, **argv = words;
    int argc = 3;
    snprintf(stages, sizeof stages, "%d", num_stages);
    return session_open_on(out, transport, &argc, &argv);
}

static Dynapipe* session_of_one(void) {
    Transport end;
    Dynapipe* dp;
    CHECK_OK(transport_loopback_open(&end, 1));
    CHECK_OK(open_on(&dp, &end, 1));
    return dp;
}

static char data_dir[64], data_path[128];  // of the test that runs

// Samples of tasks a and b in turn (data_maker.h names them).
static void write_two_tasks(const char* name, int32_t a, int32_t b) {
    MadeSample samples[8];
    for (int32_t i = 0; i < 8; i++) { samples[i] = (MadeSample){i % 2 == 0 ? a : b, 3, 2}; }
    MadeData data = {.vocab = 50, .num_samples = 8, .samples = samples};
    maker_write(&data, 0, 8, data_dir, name);
}

static void data_begin(void) {
    maker_dir_create(data_dir);
    snprintf(data_path, sizeof data_path, "%s/data.bin", data_dir);
    write_two_tasks("data.bin", 0, 1);  // add, sort
}

static void data_end(void) {
    maker_dir_remove(data_dir);
}

static Dynapipe* session_with_data(int32_t num_stages, const char* val) {
    Dynapipe* dp = session_of_one();
    DynapipeRun_v1 run = {.train_pattern = data_path,
                          .val_pattern = val,
                          .batch_tokens = 100,
                          .max_seq_tokens = 18,
                          .num_steps = 1};
    CHECK_OK((Status)dynapipe_open_data(dp, &run));
    dp->num_stages = dp->options.num_stages = num_stages;
    dp->transport.num_ranks = 8;  // as far as messages go
    return dp;
}

// === data and reports ====================================================================================

static void tasks_have_one_number_by_name(void) {
    static const char* const names[] = {"add", "sort", "copy", "?"};
    char val[128];
    data_begin();
    write_two_tasks("val.bin", 1, 2);  // sort, copy
    snprintf(val, sizeof val, "%s/val.bin", data_dir);
    Dynapipe* dp = session_with_data(1, val);
    CHECK_EQ(dp->num_tasks, 3);
    for (int32_t t = 0; t < 4; t++) { CHECK(strcmp(dynapipe_task_name(dp, t), names[t]) == 0); }
    CHECK(dp->val_task[0] == 1 && dp->val_task[1] == 2);
    dynapipe_close(dp);
    data_end();
}

// JSON has no NaN and no infinity; it is UTF-8, names are bytes: a record is JSON all the same.
static void a_record_is_json_whatever_is_in_it(void) {
    Dynapipe* dp = session_of_one();
    const char* names[] = {"h\xc3\xb6her=1,2", "\xff\x1b[31m", "a\"b\\"};
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
    for (int i = 0; i < 2; i++) {
        json_t* record = session_metrics_json(dp, &report);
        char* text = json_dumps(record, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(17));
        json_decref(record);
        CHECK(text != NULL &&
              strstr(text, i == 0 ? "\"step\":7,\"loss\":null,\"task_loss\":{\"h\xc3\xb6her=1,2\":1.5,"
                                    "\"\\\\xff\\\\x1b[31m\":null},\"norm\":null,\"lr\":0.1"
                                  : "\"a\\\"b\\\\\":3.0}") != NULL);
        CHECK(strstr(text, "\"predicted_ms\":2.0,\"jobs_off_ms\":1.0,"
                           "\"transfers_off_ms\":-0.25,\"waiting_off_ms\":0.75,") != NULL);
        free(text);
        losses[2] = 3;
    }
    dp->task_names = NULL;
    dp->rank_stats = NULL;
    dp->now = NULL;
    dynapipe_close(dp);
}

// What a program leaves in members that are kept for later came from another header, or from nowhere.
static void members_kept_for_later_are_zero(void) {
    Dynapipe* dp = session_of_one();
    DynapipeRun_v1 run = {.batch_tokens = 1, .reserved = {0, 1}};
    DynapipeReport_v1 report = {.step = 1, .reserved = {-1}};
    DynapipeValidation_v1 validation = {.step = 1, .reserved = {0, 0, 0, 5}};
    CHECK_FAILS((Status)dynapipe_open_data(dp, &run), STATUS_OUT_OF_RANGE, "DynapipeRun_v1.reserved[1] is");
    CHECK_FAILS((Status)dynapipe_report(dp, &report), STATUS_OUT_OF_RANGE,
                "DynapipeReport_v1.reserved[0] is");
    CHECK_FAILS((Status)dynapipe_report_validation(dp, &validation), STATUS_OUT_OF_RANGE,
                "DynapipeValidation_v1.reserved[3] is");
    dynapipe_close(dp);
}

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
    Text text;
    TRY(text_open(&text));
    TRY(session_settings_write(dp, text.out));
    fwrite(batch->position, 1, batch->position_bytes, text.out);
    TRY(text_close(&text));
    Status status = (Status)dynapipe_restore(dp, text.text, text.num_chars, step);
    free(text.text);
    return status;
}

// Costs of a model of that many layers, as dynapipe_measure() makes them.
static DynapipeCosts* costs_of(int32_t num_layers, DynapipeShapes_v1 shapes, bool has_weights_job) {
    CostAnalytic about = {.num_layers = num_layers,
                          .channels = 64,
                          .ffn_channels = 256,
                          .tied_head = true,
                          .num_heads = 2,
                          .padded_vocab = 128,
                          .max_tokens = 64,
                          .bytes_per_value = 4,
                          .flops_per_ns = 60,
                          .attention_flops_per_ns = 15,
                          .bytes_per_ns = 8,
                          .launch_ns = 20e3,
                          .comm_bytes_per_ns = 3};
    DynapipeCosts* costs = calloc(1, sizeof *costs);
    CHECK(costs != NULL);
    cost_model_analytic_gpt(&costs->model, &about);
    costs->shapes = shapes;
    costs->has_weights_job = has_weights_job;
    return costs;
}

static Status choose(Dynapipe* dp, DynapipeRange* range, int32_t num_layers, DynapipeShapes_v1 shapes,
                     bool has_weights_job) {
    int32_t num_ranges;
    return (Status)dynapipe_choose_stages(dp, costs_of(num_layers, shapes, has_weights_job), range, 1,
                                          &num_ranges);
}

// The mixture is that of the run's first batches, wherever the loader stands. A program that goes on restores
// its position before its stages are chosen, or after.
static void the_position_outlives_the_choice_of_stages(void) {
    StageBatch first[SESSION_MIXTURE], later[SESSION_MIXTURE];
    int32_t num_first, num_later;
    DynapipeRange range;
    Arena arena = {0};
    LoaderBatch batch;
    Rng rng = rng_seed(7);
    MadeData data = maker_random(&rng, 60, 2, 16, 50);
    data_begin();
    maker_write(&data, 0, 60, data_dir, "data.bin");
    Dynapipe* dp = session_with_data(1, NULL);
    CHECK_OK(session_mixture(first, &num_first, dp, &arena));
    for (int i = 0; i < 3; i++) { CHECK_OK(loader_next(dp->train, &batch, &arena)); }
    CHECK_OK(session_mixture(later, &num_later, dp, &arena));
    CHECK(stands_at(dp, &batch) && num_first == SESSION_MIXTURE && num_later == num_first);
    for (int32_t b = 0; b < num_first; b++) {
        CHECK_EQ(first[b].num_samples, later[b].num_samples);
        size_t num_bytes = (size_t)first[b].num_samples * sizeof *first[b].samples;
        CHECK(memcmp(first[b].samples, later[b].samples, num_bytes) == 0);
    }
    dynapipe_close(dp);
    for (int restored_first = 0; restored_first < 2; restored_first++) {
        dp = session_with_data(1, NULL);
        CHECK(!stands_at(dp, &batch));
        if (restored_first) { CHECK_OK(restore(dp, &batch, 3)); }
        CHECK_OK(choose(dp, &range, 2, (DynapipeShapes_v1){0}, true));
        if (!restored_first) { CHECK_OK(restore(dp, &batch, 3)); }
        CHECK(stands_at(dp, &batch) && dp->next_step == 3);
        CHECK_FAILS((Status)dynapipe_restore(dp, batch.position, batch.position_bytes, 3), STATUS_BAD_FORMAT,
                    "position in the data is not one that this program saved --->");
        dynapipe_close(dp);
    }
    maker_free(&data);
    arena_free(&arena);
    data_end();
}

// Before the choice of stages or after: the run goes on with the costs of this start.
static void costs_of_an_earlier_version_are_none(void) {
    DynapipeRange range;
    Arena arena = {0};
    LoaderBatch batch;
    data_begin();
    for (int restored_first = 0; restored_first < 2; restored_first++) {
        Text text, options, costs;
        Dynapipe* dp = session_with_data(1, NULL);
        CHECK_OK(loader_next(dp->train, &batch, &arena));
        CHECK_OK(choose(dp, &range, 2, (DynapipeShapes_v1){0}, true));
        CHECK(text_open(&text) == STATUS_OK && text_open(&options) == STATUS_OK);
        CHECK_OK(text_open(&costs));
        fputs("dynapipe-costs 6\n", costs.out);
        CHECK_OK(section_write(text.out, "dpipopt2", &options));
        CHECK_OK(section_write(text.out, "dpipcos2", &costs));
        fwrite(batch.position, 1, batch.position_bytes, text.out);
        CHECK_OK(text_close(&text));
        if (restored_first) {
            dynapipe_close(dp);
            dp = session_with_data(1, NULL);
        }
        CHECK_OK((Status)dynapipe_restore(dp, text.text, text.num_chars, 1));
        if (restored_first) { CHECK_OK(choose(dp, &range, 2, (DynapipeShapes_v1){0}, true)); }
        CHECK(stands_at(dp, &batch) && dp->next_step == 1 && !dp->resplit.has_saved_costs);
        free(text.text);
        dynapipe_close(dp);
    }
    arena_free(&arena);
    data_end();
}

// === costs and memory ====================================================================================

// What kernels ask for reaches the planner, or is refused before anything is planned.
static void what_the_model_asks_for_is_obeyed_or_refused(void) {
    const DynapipeShapes_v1 shapes = {.padded = 1,
                                      .seq_multiple = 2,
                                      .tokens_multiple = 6,
                                      .max_squares = 4000,
                                      .head_has_layer = 1,
                                      .max_tokens = 900,
                                      .max_seqs = 50};
    DynapipeShapes_v1 coarse = shapes, plain = {.head_has_layer = 1};
    DynapipeRange range;
    coarse.seq_multiple = 4;
    data_begin();
    Dynapipe* dp = session_with_data(1, NULL);
    CHECK_OK(choose(dp, &range, 2, shapes, false));
    CHECK(dp->request.split_backward == SPLIT_BACKWARD_OFF && range.begin == 0 && range.end == 4);
    const ShapeRules* rules = &dp->request.rules;
    CHECK(rules->padded && rules->head_has_layer && rules->max_squares == 4000 && rules->max_tokens == 900);
    CHECK(rules->max_seqs == 50 && rules->seq_multiple == 2 && rules->tokens_multiple == 6);
    CHECK_FAILS(choose(dp, &range, 2, coarse, true), STATUS_BAD_OPTION,
                "-t 18: the model's kernels take windows of a multiple of 12 tokens");
    dp->options.split_backward = SPLIT_BACKWARD_ON;
    CHECK_FAILS(choose(dp, &range, 2, plain, false), STATUS_BAD_OPTION,
                "--split-backward on: the model's backward cannot be divided");
    dp->options.split_backward = SPLIT_BACKWARD_AUTO;
    dp->options.slices = "3";
    DynapipeCosts* whole = costs_of(2, plain, true);
    memset(whole->model.kept, 0, sizeof whole->model.kept);
    int32_t num_ranges;
    CHECK_FAILS((Status)dynapipe_choose_stages(dp, whole, &range, 1, &num_ranges), STATUS_BAD_OPTION,
                "--slices 3: the model takes no pieces of a sample");
    dp->options.slices = "auto";
    dp->options.memory_limit_bytes = 100000;
    CHECK_FAILS(choose(dp, &range, 2, plain, true), STATUS_INFEASIBLE, "state alone take 1.");
    CHECK(strstr(status_message(), " on rank 0, the limit is ") != NULL);
    dynapipe_close(dp);
    dp = session_with_data(8, NULL);
    CHECK_FAILS(
        choose(dp, &range, 2, shapes, true), STATUS_BAD_OPTION,
        "--stages 8: the model has 2 layers, 2 blocks together, and every stage needs one ---> at most "
        "--stages 2, or --stages auto");
    dp->num_stages = dp->options.num_stages = 2;
    dp->options.placement = "2,0";
    CHECK_FAILS(choose(dp, &range, 3, plain, true), STATUS_BAD_OPTION,
                "this model's head needs a layer, too");
    dynapipe_close(dp);
    data_end();
}

enum { SHAPE_RANKS = 4 };
typedef struct {
    const char *stages, *limit;
    int32_t num_layers, zero_stage;
    double comm_bytes_per_ns;
    int32_t num_stages;  // found
    int64_t step_ns;
} ShapeCase;

static Status shape_body(Transport* t, void* arg) {
    ShapeCase* c = arg;
    char* words[] = {"test",
                     "--stages",
                     (char*)(uintptr_t)c->stages,
                     "--memory-limit",
                     (char*)(uintptr_t)c->limit,
                     "--debug",
                     "effort=40",
                     NULL};
    char** argv = words;
    int argc = 7;
    Dynapipe* dp;
    DynapipeRange ranges[DYNAPIPE_MAX_RANGES];
    int32_t num_ranges;
    TRY(session_open_on(&dp, t, &argc, &argv));
    DynapipeRun_v1 run = {.train_pattern = data_path,
                          .batch_tokens = 400,
                          .max_seq_tokens = 64,
                          .num_steps = 1,
                          .zero_stage = c->zero_stage};
    TRY((Status)dynapipe_open_data(dp, &run));
    DynapipeCosts* costs = costs_of(c->num_layers, (DynapipeShapes_v1){0}, true);
    costs->model.comm_bytes_per_ns = costs->model.reduce_bytes_per_ns = c->comm_bytes_per_ns;
    Status status = (Status)dynapipe_choose_stages(dp, costs, ranges, DYNAPIPE_MAX_RANGES, &num_ranges);
    if (status == STATUS_OK) {
        StageChoice choice;
        TRY(stage_search(&choice, &dp->request, &dp->costs, dp->resplit.batches, dp->resplit.num_batches, 1));
        EXPECT(dp->num_stages * dp->num_replicas == SHAPE_RANKS && dp->request.P == dp->num_stages);
        EXPECT(dp->replicas.num_ranks == dp->num_replicas && dp->pipeline.num_ranks == dp->num_stages);
        EXPECT(dynapipe_stage(dp) == dynapipe_rank(dp) % dp->num_stages);
        if (dynapipe_rank(dp) == 0) {
            c->num_stages = dp->num_stages;
            c->step_ns = choice.makespan_ns + session_update_ns(dp);
        }
    }
    dynapipe_close(dp);
    return status;
}

// --stages auto is within its margin of the best that --stages P finds, of those that fit in memory.
static void the_fastest_shape_is_chosen(void) {
    // fast links; slow ones; too little memory for a whole model
    static const ShapeCase cases[] = {
        {.limit = "0", .num_layers = 5, .comm_bytes_per_ns = 100},
        {.limit = "0", .num_layers = 4, .comm_bytes_per_ns = 0.05},
        {.limit = "5M", .num_layers = 6, .zero_stage = 1, .comm_bytes_per_ns = 100}};
    Rng rng = rng_seed(seed);
    MadeData data = maker_random(&rng, 200, 2, 60, 50);
    int32_t chosen[SHAPE_RANKS + 1] = {0};
    data_begin();
    maker_write(&data, 0, 200, data_dir, "data.bin");
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        ShapeCase about = cases[i];
        int64_t best_ns = INT64_MAX;
        for (int P = 1; P <= SHAPE_RANKS; P *= 2) {
            char text[12];
            ShapeCase given = about;
            snprintf(text, sizeof text, "%d", P);
            given.stages = text;
            if (ranks_run(SHAPE_RANKS, shape_body, &given, results, 0) != 0) { continue; }
            CHECK_EQ(given.num_stages, P);
            if (given.step_ns < best_ns) { best_ns = given.step_ns; }
        }
        about.stages = "auto";
        CHECK_EQ(ranks_run(SHAPE_RANKS, shape_body, &about, results, 1), 0);
        CHECK((double)about.step_ns <= 1.025 * (double)best_ns);
        chosen[about.num_stages]++;
    }
    printf("     1, 2, 4 stages: %d, %d, %d times\n", chosen[1], chosen[2], chosen[4]);
    CHECK(chosen[1] > 0 && chosen[1] < 3);
    ShapeCase tight = {.stages = "auto", .limit = "10K", .num_layers = 4, .comm_bytes_per_ns = 1};
    CHECK(ranks_run(SHAPE_RANKS, shape_body, &tight, results, 0) != 0);
    maker_free(&data);
    data_end();
}

// What was reserved is there and keeps its contents while it grows.
static void the_arena_grows_up_to_the_limit(void) {
    Dynapipe* dp = session_of_one();
    int64_t before_bytes = 0;
    for (int64_t wanted = 80 * PLAN_BUFFER_ALIGN; wanted < 1 << 26; wanted *= 7) {
        CHECK_OK(session_reserve(dp, wanted));
        unsigned char* memory = dp->memory;
        CHECK(dp->memory_bytes >= wanted && (uintptr_t)memory % PLAN_BUFFER_ALIGN == 0);
        if (before_bytes > 0) { CHECK(memory[0] == 7 && memory[before_bytes - 1] == 7); }
        CHECK_EQ(memory[dp->memory_bytes - 1], 0);
        before_bytes = dp->memory_bytes;
        memset(memory, 7, (size_t)before_bytes);
        CHECK_OK(session_reserve(dp, 100));
        CHECK_EQ(dp->memory_bytes, before_bytes);
    }
    dp->options.memory_limit_bytes = 1 << 30;
    CHECK_FAILS(session_reserve(dp, INT64_C(1) << 31), STATUS_INFEASIBLE, "beyond --memory-limit");
    dynapipe_close(dp);
}

#define MIB (INT64_C(1) << 20)

typedef struct {
    int64_t mine[NUM_RANKS], given, taken[NUM_RANKS];  // MiB
    bool with_speeds;
    int64_t common, own[NUM_RANKS];  // expected
} MemoryCase;

static Status memory_body(Transport* t, void* arg) {
    static const MachineRank speeds[NUM_RANKS] = {
        {.slow = {1, 1, 1, 1}}, {.slow = {2, 2, 2, 2}}, {.slow = {3, 1, 1, 3}}};
    const MemoryCase* c = arg;
    const int32_t r = t->rank;
    Dynapipe* dp;
    TRY(open_on(&dp, t, NUM_RANKS));
    dp->options.memory_limit_bytes = c->given * MIB;
    dp->machine.pulls = true;
    const Machine measured = {.num_ranks = c->with_speeds ? NUM_RANKS : 0, .ranks = speeds};
    TRY(session_machine_take(dp, &measured));
    EXPECT(dp->request.machine == &dp->machine && dp->machine.pulls);
    TRY(session_machine_limit(dp, c->mine[r] * MIB));
    if (c->taken[0] > 0) { TRY(session_machine_take_bytes(dp, c->taken[r] * MIB)); }
    EXPECT(dp->options.memory_limit_bytes == c->common * MIB);
    EXPECT(dp->request.memory_limit_bytes == c->common * MIB);
    bool differ = c->with_speeds;
    for (int32_t i = 0; i < NUM_RANKS; i++) {
        MachineRank rank = machine_rank(&dp->machine, i);
        EXPECT(rank.memory_limit_bytes == c->own[i] * MIB);
        EXPECT(rank.slow[JOB_F] == (c->with_speeds ? speeds[i].slow[JOB_F] : 1));
        differ |= c->own[i] > 0;
    }
    EXPECT(dp->machine.num_ranks == (differ ? NUM_RANKS : 0));
    EXPECT(session_machine_limit_bytes(dp) == (c->own[r] > 0 ? c->own[r] : c->common) * MIB);
    TRY(machine_check(&dp->machine, NUM_RANKS));
    dynapipe_close(dp);
    return STATUS_OK;
}

static void memory_is_one_number_where_that_serves(void) {
    MemoryCase cases[] = {
        {.mine = {6400, 6401, 6464}, .common = 6400},                          // alike: the least
        {.mine = {6400, 3200, 6464}, .common = 6464, .own = {6400, 3200, 0}},  // a rank that has less
        {.mine = {6400, 3200, 6464}, .given = 5, .common = 5},  // a limit holds for those that have it
        {.mine = {6400, 3200, -1}, .given = 5000, .with_speeds = true, .common = 5000, .own = {0, 3200, 64}},
        {.mine = {6400, 3200, 6464},  // what is lost later is taken from all
         .taken = {1, 65, -1},
         .common = 6336,
         .own = {6272, 3072, 0}},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_EQ(ranks_run(NUM_RANKS, memory_body, &cases[i], results, 1), 0);
    }
}

// === models ==============================================================================================
// What does not fit together is named on every rank before anything travels, nothing runs without a model.

// Layers 0 and 1, 2 and 3, 4 and 5: boundaries of 8 and of 3 channels.
typedef struct {
    Dynapipe* dp;
    ToyModel toy;
    DynapipeTied tied;
    DynapipeParams_v1 params;
} Attached;

// A session as far as dynapipe_choose_stages() takes it, and a model for it.
static Status attached_open(Attached* a, Transport* transport) {
    TRY(open_on(&a->dp, transport, NUM_RANKS));
    int32_t stage = a->dp->stage;
    a->dp->request.placement.num_chunks = NUM_RANKS;
    for (int32_t s = 0; s < NUM_RANKS; s++) { a->dp->request.placement.stage_of[s] = (int16_t)s; }
    a->toy = (ToyModel){.layer_begin = 2 * stage,
                        .layer_end = 2 * stage + 2,
                        .is_first = stage == 0,
                        .is_last = stage == NUM_RANKS - 1};
    a->tied = (DynapipeTied){4, 2 * stage, 6};
    a->params = (DynapipeParams_v1){.params = a->toy.da,
                                    .grads = a->toy.da,
                                    .num_params = sizeof a->toy.da / sizeof(float),
                                    .num_tied = 1,
                                    .tied = &a->tied};
    return session_device_open(a->dp, NULL);
}

static Status refuses(Attached* a, int32_t idx, const DynapipeModel_v1* api, const DynapipeParams_v1* params,
                      const char* words) {
    EXPECT(dynapipe_attach(a->dp, idx, api, &a->toy, params) == STATUS_OUT_OF_RANGE);
    if (strstr(status_message(), words) != NULL) { return STATUS_OK; }
    return FAIL(STATUS_COUNT, "not \"%s\" but: %s", words, status_message());
}

static Status attach_body(Transport* t, void* arg) {
    (void)arg;
    Attached a;
    DynapipeStep_v1 step;
    DynapipeSpan span;
    int64_t begin, end;
    int32_t num_spans;
    double loss;
    TRY(attached_open(&a, t));
    EXPECT(dynapipe_step(a.dp, &step) == STATUS_BAD_OPTION);
    EXPECT(strstr(status_message(), "no model for range 0 of 1 ---> dynapipe_attach()") != NULL);
    EXPECT(dynapipe_share_params(a.dp) == STATUS_BAD_OPTION);
    EXPECT(dynapipe_counted(a.dp, &span, 1, &num_spans) == STATUS_BAD_OPTION);
    EXPECT(dynapipe_validate(a.dp, 1, &loss, NULL) == STATUS_BAD_OPTION);
    TRY(refuses(&a, 1, &toy_api, &a.params, "a model for range 1: this rank has 1"));
    TRY(refuses(&a, -1, &toy_api, &a.params, "a model for range -1"));
    TRY((Status)dynapipe_attach(a.dp, 0, &toy_api, &a.toy, &a.params));
    TRY(refuses(&a, 0, &toy_api, &a.params, "range 0 has a model already"));
    EXPECT(a.dp->tied.num_groups == 1 && a.dp->tied.groups[0].begin == 2 * a.dp->stage);
    EXPECT(a.dp->params.num_tied == 0);
    a.dp->run.zero_stage = 1;
    dynapipe_shard(a.dp, &begin, &end);
    EXPECT(begin == collective_slice(a.params.num_params, 2, a.dp->replica));
    EXPECT(end == collective_slice(a.params.num_params, 2, a.dp->replica + 1));
    dynapipe_close(a.dp);
    return STATUS_OK;
}

static void each_range_gets_one_model(void) {
    CHECK_EQ(ranks_run(2 * NUM_RANKS, attach_body, NULL, results, 1), 0);
}

static Status incomplete_body(Transport* t, void* arg) {
    (void)arg;
    Attached a;
    TRY(attached_open(&a, t));
    a.params.num_tied = 0;
    a.params.tied = NULL;
    const DynapipeParams_v1 right = a.params;
    TRY(refuses(&a, 0, NULL, &right, "no table of functions (api)"));
    TRY(refuses(&a, 0, &toy_api, NULL, "0 parameters, but no array of them"));
#define REFUSES_API(member, value, words)         \
    do {                                          \
        DynapipeModel_v1 api = toy_api;           \
        api.member = value;                       \
        TRY(refuses(&a, 0, &api, &right, words)); \
    } while (0)
#define REFUSES_PARAMS(member, value, words)           \
    do {                                               \
        DynapipeParams_v1 params = right;              \
        params.member = value;                         \
        TRY(refuses(&a, 0, &toy_api, &params, words)); \
    } while (0)
    REFUSES_API(acts_bytes, NULL, " has no acts_bytes ---> of Dynapipe");
    REFUSES_API(scratch_bytes, NULL, " has no scratch_bytes ---> of Dynapipe");
    REFUSES_API(boundary_bytes, NULL, " has no boundary_bytes ---> of Dynapipe");
    REFUSES_API(forward, NULL, " has no forward ---> of Dynapipe");
    REFUSES_API(backward_inputs, NULL, " has no backward_inputs ---> of Dynapipe");
    REFUSES_API(zero_gradients, NULL, " has no zero_gradients ---> of Dynapipe");
    REFUSES_API(name, NULL, " has no name ---> of Dynapipe");
    REFUSES_API(reserved[0], (void (*)(void))(uintptr_t)1, "DynapipeModel_v1.reserved[0] is set");
    REFUSES_PARAMS(grads, NULL, "parameters, but no array of them or of their gradients");
    REFUSES_PARAMS(params, NULL, "parameters, but no array of them");
    REFUSES_PARAMS(num_params, -1, "-1 parameters, but no array");
    REFUSES_PARAMS(num_tied, 1, "1 tied groups, but no list of them");
    REFUSES_PARAMS(reserved[3], 1, "DynapipeParams_v1.reserved[3] is set");
    REFUSES_PARAMS(grad_type, 3, "gradients of type 3 ---> DYNAPIPE_FLOAT32 (0)");
    REFUSES_PARAMS(param_type, -1, "parameters of type -1, gradients of type 0");
    a.params.grad_type = a.dp->transport.rank == 1 ? DYNAPIPE_BFLOAT16 : DYNAPIPE_FLOAT32;
    EXPECT(dynapipe_attach(a.dp, 0, &toy_api, &a.toy, &a.params) == STATUS_MISMATCH);
    EXPECT(strstr(status_message(), "ranks 0 and 1: parameters of type 0 and 0, gradients of type 0 and 1") !=
           NULL);
    DynapipeModel_v1 joint = toy_api;
    joint.backward_weights = NULL;  // it may be
    TRY((Status)dynapipe_attach(a.dp, 0, &joint, &a.toy, &right));
    dynapipe_close(a.dp);
    return STATUS_OK;
}

static void what_a_model_lacks_is_named(void) {
    CHECK_EQ(ranks_run(NUM_RANKS, incomplete_body, NULL, results, 1), 0);
}

// --- counting --------------------------------------------------------------------------------------------

enum { MOST_VALUES = 4096 };

// How often a value was counted, over all ranks.
typedef struct {
    TiedCase layout;
    int32_t zero_stage;
    int32_t groups[TIED_CASE_GROUPS][MOST_VALUES];  // of a group's values
    int32_t others[RANKS_MAX][MOST_VALUES];         // [stage] of those that no group has
    pthread_mutex_t lock;
} Counting;

// To which counter value k of a stage belongs.
static int32_t* counter_of(Counting* c, int32_t stage, int64_t k) {
    for (int32_t g = 0; g < c->layout.num_groups; g++) {
        int64_t at = k - c->layout.begins[g][stage];
        if (c->layout.has[g][stage] && at >= 0 && at < c->layout.counts[g]) { return &c->groups[g][at]; }
    }
    return &c->others[stage][k];
}

static Status count_spans(Counting* c, Dynapipe* dp) {
    DynapipeSpan spans[TIED_CASE_GROUPS + 1];
    int32_t num_spans;
    int64_t begin, end, last = -1;
    dynapipe_shard(dp, &begin, &end);
    TRY((Status)dynapipe_counted(dp, spans, TIED_CASE_GROUPS + 1, &num_spans));
    pthread_mutex_lock(&c->lock);
    bool is_sound = true;
    for (int32_t i = 0; i < num_spans; i++) {
        is_sound &= spans[i].begin > last && spans[i].end > spans[i].begin;
        is_sound &= spans[i].begin >= begin && spans[i].end <= end;
        last = spans[i].end;
        for (int64_t k = spans[i].begin; k < spans[i].end; k++) { ++*counter_of(c, dp->stage, k); }
    }
    pthread_mutex_unlock(&c->lock);
    EXPECT(is_sound);
    if (num_spans > 0) {
        EXPECT(dynapipe_counted(dp, spans, num_spans - 1, &num_spans) == STATUS_OUT_OF_RANGE);
    }
    return STATUS_OK;
}

static Status count_body(Transport* t, void* arg) {
    Counting* c = arg;
    Dynapipe* dp;
    DynapipeTied list[TIED_CASE_GROUPS];
    const ExecutorRange range = {&toy_api, NULL};
    TRY(open_on(&dp, t, c->layout.num_stages));
    dp->run.zero_stage = c->zero_stage;
    dp->params = (DynapipeParams_v1){.num_params = c->layout.num_params[dp->stage], .tied = list};
    dp->params.num_tied = tied_case_list(&c->layout, dp->stage, list);
    TRY(executor_create(&dp->executor, &range, 1, &dp->transport, 0));
    TRY(tied_groups_open(&dp->tied, &dp->world, dp->num_stages, &dp->params));
    TRY(count_spans(c, dp));
    dynapipe_close(dp);
    return STATUS_OK;
}

// A group that some stage has: once; a stage's own values: once.
static void check_counts(Counting* c) {
    for (int32_t s = 0; s < c->layout.num_stages; s++) {
        for (int64_t k = 0; k < c->layout.num_params[s]; k++) { CHECK_EQ(*counter_of(c, s, k), 1); }
    }
}

static void every_parameter_is_counted_once(void) {
    static Counting c;
    Rng rng = rng_seed(1);
    for (int trial = 0; trial < 150 && test_failures == 0; trial++) {
        int32_t P = rng_between(&rng, 1, 6), R = rng_between(&rng, 1, P < 3 ? 4 : 2);
        memset(&c, 0, sizeof c);
        pthread_mutex_init(&c.lock, NULL);
        tied_case_draw(&c.layout, &rng, P, R, rng_between(&rng, 1, 300));
        c.zero_stage = trial % 2;
        CHECK_EQ(ranks_run(P * R, count_body, &c, results, 1), 0);
        check_counts(&c);
        pthread_mutex_destroy(&c.lock);
    }
}

// === the same on all ranks ===============================================================================
// Ranks that were started with other options, or have another model or run, name the difference.

enum { MAX_WORDS = 8 };

// What rank 2 has, and the others.
typedef struct {
    const char* lines[2];
    char* words[2][MAX_WORDS];
    DynapipeRun_v1 run[2];
    const char* expected;  // NULL: all is well
} SameCase;

static Status compare(Dynapipe* dp, const SameCase* it, int who) {
    if (it->lines[0] != NULL) { return session_same(dp, "test", it->lines[who]); }
    if (it->words[0][0] == NULL) {
        dp->run = it->run[who];
        return session_same_run(dp);
    }
    char* words[MAX_WORDS + 1] = {NULL};
    int argc = 0;
    memcpy(words, it->words[who], sizeof it->words[who]);
    while (words[argc] != NULL) { argc++; }
    TRY(session_options_take(&dp->options, &argc, words, NULL));
    return session_same_options(dp, argc, words);
}

static Status same_body(Transport* t, void* arg) {
    const SameCase* it = arg;
    Dynapipe* dp = calloc(1, sizeof *dp);
    EXPECT(dp != NULL);
    dp->transport = *t;
    TRY(ranks_world(&dp->world, &dp->transport));
    Status status = compare(dp, it, t->rank == 2);
    bool is_named = status == STATUS_OK || strstr(status_message(), it->expected) != NULL;
    if (!is_named) { printf("rank %d: \"%s\", not \"%s\"\n", t->rank, status_message(), it->expected); }
    collective_free(&dp->world);
    free(dp);
    EXPECT(status == (it->expected == NULL ? STATUS_OK : STATUS_MISMATCH) && is_named);
    return STATUS_OK;
}

static void the_first_difference_is_named(void) {
    const DynapipeRun_v1 usual = {.batch_tokens = 100, .max_seq_tokens = 16, .num_steps = 7};
    DynapipeRun_v1 longer = usual;
    longer.num_steps = 9;
    SameCase cases[] = {
        {.lines = {"a=1\nb=2\n", "a=1\nb=2\n"}},
        {.lines = {"", ""}},
        {.lines = {"a=1\nb=2\nc=3\n", "a=1\nb=7\nc=4\n"},
         .expected = "test: b=7 on rank 2, b=2 on rank 0 --->"},
        {.lines = {"a=1\nb=2\n", "a=1\n"}, .expected = "nothing on rank 2, b=2 on rank 0"},
        {.lines = {"a=1\n", "a=1\nb=2\n"}, .expected = "b=2 on rank 2, nothing on rank 0"},
        {.lines = {"a=1\n", "a=\n"}, .expected = "a= on rank 2, a=1 on rank 0"},
        {.lines = {"a=1\na=2\n", "a=1\na=2\n"}},
        {.words = {{"p", "-x", "5", "--stages", "3"}, {"q", "--stages=3", "-x", "5"}}},
        {.words = {{"p", "--stages", "3"}, {"p", "--stages", "1"}},
         .expected = "options: --stages=1 on rank 2, --stages=3 on rank 0"},
        {.words = {{"p", "-x", "-1", "-l", "3"}, {"p", "-x", "-1", "-l", "4"}},
         .expected = "options: -l=4 on rank 2, -l=3 on rank 0"},
        {.words = {{"p", "-q", "-r", "a"}, {"p", "-r", "a"}},
         .expected = "options: -r=a on rank 2, -q=given on rank 0"},
        {.words = {{"p", "train.bin"}, {"p", "other.bin"}},
         .expected = "word 1 of the command=other.bin on rank 2, word 1 of the command=train.bin on"},
        {.run = {usual, usual}},
        {.run = {usual, longer},
         .expected = "the run: the number of steps (-x)=9 on rank 2, the number of steps (-x)=7 on"},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        CHECK_EQ(ranks_run(NUM_RANKS, same_body, &cases[i], results, 1), 0);
    }
}

// === validation and answers ==============================================================================
// Validation cuts its data so that every row is counted once and both sides of a microbatch keep to what
// memory allows.

enum { LONGEST_INPUT = 40, LONGEST_TARGET = 14, ENC_BYTES = 640, DEC_BYTES = 1280 };

// A model that only counts.
typedef struct {
    int32_t num_calls, num_rows, most_tokens, most_dec_tokens;
    int64_t most_bytes;
    ShapeRules rules;  // that every batch must keep
    int32_t num_padded;
    bool answers;      // has infer()
    int32_t raise_at;  // a signal comes in this call; 0: none
} Counter;

static int64_t acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    (void)model, (void)flags;
    return (int64_t)batch->num_tokens * ENC_BYTES + (int64_t)batch->num_dec_tokens * DEC_BYTES;
}

static int64_t no_bytes(void* model, const DynapipeBatch* batch) {
    (void)model, (void)batch;
    return 0;
}

static int64_t boundary_bytes(void* model, const DynapipeBatch* batch, int is_behind) {
    (void)is_behind;
    return no_bytes(model, batch);
}

// Windows of one side as the rules have them.
static void check_side(const ShapeRules* rules, const int32_t* cu_seqlens, int32_t num_seqs, int32_t longest,
                       int64_t num_squares) {
    int64_t squares = 0;
    for (int32_t i = 0; i < num_seqs; i++) {
        int32_t n = cu_seqlens[i + 1] - cu_seqlens[i];
        squares += (int64_t)n * n;
        if (!rules->padded) { continue; }
        CHECK_EQ(n, longest);
        CHECK_EQ(n % rules->seq_multiple, 0);
        CHECK_EQ(n * num_seqs % rules->tokens_multiple, 0);
    }
    CHECK_EQ(squares, num_squares);
    if (rules->max_squares > 0) { CHECK(squares <= rules->max_squares); }
    if (rules->max_seqs > 0) { CHECK(num_seqs <= rules->max_seqs); }
}

static int forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                   void* scratch, float* losses, int flags) {
    (void)in, (void)out, (void)acts, (void)scratch, (void)flags;
    Counter* counter = model;
    int64_t num_bytes = acts_bytes(model, batch, 0);
    check_side(&counter->rules, batch->cu_seqlens, batch->num_seqs, batch->max_seq_tokens,
               batch->num_squares);
    if (batch->num_dec_tokens > 0) {
        check_side(&counter->rules, batch->dec_cu_seqlens, batch->num_seqs, batch->max_dec_seq_tokens,
                   batch->num_dec_squares);
    }
    counter->num_padded += batch->seq_lens != NULL;
    if (++counter->num_calls == counter->raise_at) { raise(SIGUSR1); }
    counter->num_rows += batch->num_rows;
    if (batch->num_tokens > counter->most_tokens) { counter->most_tokens = batch->num_tokens; }
    if (batch->num_dec_tokens > counter->most_dec_tokens) {
        counter->most_dec_tokens = batch->num_dec_tokens;
    }
    if (num_bytes > counter->most_bytes) { counter->most_bytes = num_bytes; }
    for (int32_t i = 0; i < batch->num_rows; i++) { losses[i] = (float)batch->row_tasks[i] + 1; }
    return batch->token_keys != NULL || batch->dec_token_keys != NULL;  // nothing is dropped here
}

static int64_t cache_bytes(void* model, const DynapipeCache* cache) {
    (void)model;
    return cache->num_slots;
}

static int infer(void* model, const DynapipeBatch* batch, const DynapipeCache* cache, const void* in,
                 void* out, void* scratch, int32_t* next) {
    Counter* counter = model;
    int64_t squares = 0, dec_squares = 0, cross = 0;
    (void)cache, (void)in, (void)out, (void)scratch;
    for (int32_t i = 0; i < batch->num_seqs; i++) {
        int64_t enc = batch->cu_seqlens[i + 1] - batch->cu_seqlens[i];
        int64_t dec = batch->num_dec_tokens > 0 ? batch->dec_cu_seqlens[i + 1] - batch->dec_cu_seqlens[i] : 0;
        squares += enc * enc;
        dec_squares += dec * dec;
        cross += enc * dec;
        next[i] = 3;
    }
    CHECK_EQ(batch->num_squares, squares);
    CHECK_EQ(batch->num_dec_squares, dec_squares);
    CHECK_EQ(batch->num_cross, cross);
    counter->num_calls++;
    return 0;
}

static int backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                           const void* dout, void* din, void* scratch) {
    (void)model, (void)batch, (void)in, (void)acts, (void)dout, (void)din, (void)scratch;
    return 1;
}

static void zero_gradients(void* model) {
    (void)model;
}

static const DynapipeModel_v1 counter_api = {.name = "counter",
                                             .acts_bytes = acts_bytes,
                                             .scratch_bytes = no_bytes,
                                             .boundary_bytes = boundary_bytes,
                                             .forward = forward,
                                             .backward_inputs = backward_inputs,
                                             .zero_gradients = zero_gradients};

// Samples of two tasks; the one of task 0 that is longest on both sides comes first.
static MadeData make_data(Rng* rng, int32_t num_samples) {
    MadeData data = {.vocab = 60, .pairs = true, .num_samples = num_samples};
    data.samples = calloc((size_t)num_samples, sizeof *data.samples);
    for (int32_t i = 0; i < num_samples; i++) {
        data.samples[i] = (MadeSample){i % 2, rng_between(rng, 1, LONGEST_INPUT / 2),
                                       rng_between(rng, 1, LONGEST_TARGET / 2)};
    }
    data.samples[0] = (MadeSample){0, LONGEST_INPUT, LONGEST_TARGET};
    return data;
}

static MadeData eval_begin(int32_t num_samples) {
    Rng rng = rng_seed((uint64_t)num_samples);
    data_begin();
    MadeData data = make_data(&rng, num_samples);
    maker_write(&data, 0, num_samples, data_dir, "data.bin");
    return data;
}

static void eval_end(MadeData* data) {
    maker_free(data);
    data_end();
}

// A session of one rank with these validation data and the counter in it.
static Dynapipe* open_session(const char* path, Counter* counter, int32_t max_target_tokens) {
    static DynapipeModel_v1 api;
    api = counter_api;
    if (counter->answers) {
        api.infer = infer;
        api.infer_bytes = no_bytes;
        api.cache_bytes = cache_bytes;
    }
    Dynapipe* dp = session_of_one();
    dp->request.P = 1;
    dp->request.placement.num_chunks = 1;
    dp->request.rules = counter->rules;
    DynapipeRun_v1 run = {.train_pattern = path,
                          .val_pattern = path,
                          .batch_tokens = 200,
                          .max_seq_tokens =
                              max_target_tokens > 0 ? LONGEST_INPUT : LONGEST_INPUT + LONGEST_TARGET,
                          .max_target_tokens = max_target_tokens,
                          .num_steps = 1};
    CHECK_OK((Status)dynapipe_open_data(dp, &run));
    CHECK_OK(session_device_open(dp, NULL));
    DynapipeParams_v1 params = {0};
    CHECK_OK((Status)dynapipe_attach(dp, 0, &api, counter, &params));
    return dp;
}

static void check_validation(const char* path, const MadeData* data, int32_t max_target_tokens,
                             ShapeRules rules) {
    Counter counter = {.rules = rules};
    Dynapipe* dp = open_session(path, &counter, max_target_tokens);
    int32_t num_targets[2] = {0};
    for (int32_t i = 0; i < data->num_samples; i++) {
        num_targets[data->samples[i].task] += data->samples[i].n_target;
    }
    double loss, task_loss[2];
    dp->val_task[0] = 1;  // as if the training data had them the other way round
    dp->val_task[1] = 0;
    CHECK_OK((Status)dynapipe_validate(dp, -1, &loss, task_loss));
    CHECK_EQ(counter.num_rows, num_targets[0] + num_targets[1]);
    CHECK_EQ(task_loss[1], 1.0);
    CHECK_EQ(task_loss[0], 2.0);
    CHECK(fabs(loss * counter.num_rows - num_targets[0] - 2.0 * num_targets[1]) < 1e-9);
    CHECK(counter.most_tokens <= dp->run.max_seq_tokens && counter.most_dec_tokens <= max_target_tokens);
    CHECK(counter.num_calls < data->num_samples);  // several a time
    CHECK_EQ(counter.num_padded > 0, rules.padded);
    dynapipe_close(dp);
}

static void every_row_is_counted_once(void) {
    MadeData data = eval_begin(60);
    check_validation(data_path, &data, LONGEST_TARGET, (ShapeRules){0});
    check_validation(data_path, &data, 0, (ShapeRules){0});
    // 40 + 14, and together 54, are multiples of 2; half of the squares that the tokens alone would let
    check_validation(data_path, &data, LONGEST_TARGET,
                     (ShapeRules){.padded = true, .seq_multiple = 2, .tokens_multiple = 2});
    check_validation(data_path, &data, 0,
                     (ShapeRules){.padded = true, .seq_multiple = 1, .tokens_multiple = 6});
    check_validation(data_path, &data, 0, (ShapeRules){.max_squares = 54 * 54});
    check_validation(data_path, &data, 0, (ShapeRules){.max_seqs = 2});
    eval_end(&data);
}

// Of files in the order of tasks, too; a mean over them is that of all samples.
static void every_task_is_validated_by_its_share(void) {
    enum { NUM = 60, OF_FIRST = 48, TARGET = 7 };
    MadeData data = eval_begin(NUM);
    for (int32_t i = 0; i < NUM; i++) { data.samples[i] = (MadeSample){i >= OF_FIRST, 5, TARGET}; }
    maker_write(&data, 0, NUM, data_dir, "data.bin");
    for (int32_t most = 1; most <= NUM + 1; most += 5) {
        Counter counter = {0};
        DynapipeDataInfo_v1 info;
        Dynapipe* dp = open_session(data_path, &counter, LONGEST_TARGET);
        double loss, task_loss[2];
        CHECK_OK((Status)dynapipe_validate(dp, most, &loss, task_loss));
        CHECK_OK((Status)dynapipe_data_info(dp, &info));
        CHECK(task_loss[0] == 1 && task_loss[1] == 2);
        CHECK_NEAR(loss, (OF_FIRST + 2.0 * (NUM - OF_FIRST)) / NUM, 1e-12);
        CHECK_EQ(counter.num_rows, info.num_validated * TARGET);
        CHECK(info.num_validated <= (most > 2 ? most : 2) && info.num_validated > most - 2);
        dynapipe_close(dp);
    }
    eval_end(&data);
}

// The longest sample alone is more than the kernels count.
static void a_sample_beyond_the_kernels_is_named(void) {
    MadeData data = eval_begin(10);
    Counter counter = {.rules = {.max_squares = LONGEST_INPUT * LONGEST_INPUT - 1}};
    Dynapipe* dp = open_session(data_path, &counter, LONGEST_TARGET);
    double loss;
    CHECK_FAILS((Status)dynapipe_validate(dp, -1, &loss, NULL), STATUS_INFEASIBLE,
                "a sample of 40 + 14 tokens: squared lengths of 1600 and 196, products of 560; the model's "
                "kernels count up to 1599 of each (max_squares) --->");
    dynapipe_close(dp);
    eval_end(&data);
}

static void generation_counts_its_windows(void) {
    MadeData data = eval_begin(30);
    for (int sides = 1; sides <= 2; sides++) {
        Counter counter = {.answers = true};
        Dynapipe* dp = open_session(data_path, &counter, sides == 2 ? LONGEST_TARGET : 0);
        const DynapipeAnswer_v1* answers;
        int64_t samples[] = {3, 0, 7, 20};
        CHECK_OK((Status)dynapipe_generate(dp, samples, 4, 5, &answers));
        CHECK_EQ(answers[0].num_answer, 5);
        CHECK_EQ(counter.num_calls, 5);
        dynapipe_close(dp);
    }
    Counter counter = {0};
    Dynapipe* dp = open_session(data_path, &counter, LONGEST_TARGET);
    const DynapipeAnswer_v1* answers;
    int64_t sample = 0;
    CHECK_FAILS((Status)dynapipe_generate(dp, &sample, 1, 5, &answers), STATUS_BAD_OPTION,
                "the model counter cannot answer: it has no infer()");
    dynapipe_close(dp);
    eval_end(&data);
}

// As much as the longest pair takes: nothing changes. A byte less: a sample that does not fit is named, with
// both sides of what would.
static void a_memory_limit_counts_both_sides(void) {
    MadeData data = eval_begin(40);
    int64_t longest_bytes = LONGEST_INPUT * ENC_BYTES + LONGEST_TARGET * DEC_BYTES;
    Counter counter = {0};
    Dynapipe* dp = open_session(data_path, &counter, LONGEST_TARGET);
    double loss;
    dp->options.memory_limit_bytes = longest_bytes;
    CHECK_OK((Status)dynapipe_validate(dp, -1, &loss, NULL));
    CHECK_EQ(dp->eval_tokens, LONGEST_INPUT);
    CHECK_EQ(dp->eval_target_tokens, LONGEST_TARGET);
    CHECK(counter.most_bytes <= longest_bytes);
    dynapipe_close(dp);
    dp = open_session(data_path, &counter, LONGEST_TARGET);
    dp->options.memory_limit_bytes = longest_bytes - 1;
    CHECK_FAILS((Status)dynapipe_validate(dp, -1, &loss, NULL), STATUS_INFEASIBLE,
                "a sample of 40 + 14 tokens, but --memory-limit");
    CHECK(strstr(status_message(), "leaves room for 39 + 14 --->") != NULL);
    dynapipe_close(dp);
    // Without that sample, half of the memory.
    maker_write(&data, 1, 40, data_dir, "data.bin");
    counter = (Counter){0};
    dp = open_session(data_path, &counter, LONGEST_TARGET);
    dp->options.memory_limit_bytes = longest_bytes / 2 + DEC_BYTES;
    CHECK_OK((Status)dynapipe_validate(dp, -1, &loss, NULL));
    CHECK(counter.most_bytes <= dp->options.memory_limit_bytes && counter.num_calls > 1);
    CHECK(counter.most_tokens <= dp->eval_tokens && counter.most_dec_tokens <= dp->eval_target_tokens);
    dynapipe_close(dp);
    eval_end(&data);
}

// It is seen between batches, and what was asked for is not there: no loss of half the data. Last of all, as
// the process has seen a signal from then on.
static void a_signal_breaks_off(void) {
    MadeData data = eval_begin(120);
    Counter whole = {0}, counter = {.answers = true};
    Dynapipe* dp = open_session(data_path, &whole, LONGEST_TARGET);
    double loss;
    dynapipe_watch_signals(dp);
    CHECK_OK((Status)dynapipe_validate(dp, -1, &loss, NULL));
    CHECK(isfinite(loss));
    CHECK_EQ(dynapipe_stop_signal(dp), 0);
    dynapipe_close(dp);
    dp = open_session(data_path, &counter, LONGEST_TARGET);
    dynapipe_watch_signals(dp);
    counter.raise_at = 2;
    CHECK_OK((Status)dynapipe_validate(dp, -1, &loss, NULL));
    CHECK(isnan(loss));
    CHECK_EQ(dynapipe_stop_signal(dp), SIGUSR1);
    CHECK(counter.num_calls >= 2 && counter.num_calls < whole.num_calls / 2);
    const DynapipeAnswer_v1* answers;
    int64_t samples[] = {3, 0};
    counter.num_calls = 0;
    CHECK_OK((Status)dynapipe_generate(dp, samples, 2, 5, &answers));
    CHECK_EQ(counter.num_calls, 0);
    dynapipe_close(dp);
    eval_end(&data);
}

// === verified data =======================================================================================
// Ranks train on the same text, undamaged, or not at all. Rank 1 has files of its own, as on another machine.

typedef struct {
    const char *train, *val;  // names; val NULL: none
    bool skip_verify, tells_rank_2;
    int64_t timeout_ns;  // of messages; 0: 20 s
    // what each rank found
    Status open[NUM_RANKS], wait[NUM_RANKS], damage[NUM_RANKS];
    bool verifies[NUM_RANKS];
    int64_t left_bytes[NUM_RANKS], took_ns[NUM_RANKS];
    int32_t stop_signal[NUM_RANKS];
    char message[NUM_RANKS][STATUS_MESSAGE_BYTES];
} Start;

static char here[64], there[64];

static Status start_body(Transport* t, void* arg) {
    Start* start = arg;
    const int32_t r = t->rank;
    Dynapipe* dp;
    char train[128], val[128];
    snprintf(train, sizeof train, "%s/%s", r == 1 ? there : here, start->train);
    snprintf(val, sizeof val, "%s/%s", r == 1 ? there : here, start->val != NULL ? start->val : "");
    TRY(open_on(&dp, t, NUM_RANKS));
    dp->watches_signals = start->tells_rank_2 && r == 2;
    dp->world.timeout_ns = start->timeout_ns > 0 ? start->timeout_ns : INT64_C(20000000000);
    DynapipeRun_v1 run = {.train_pattern = train,
                          .val_pattern = start->val != NULL ? val : NULL,
                          .batch_tokens = 4096,
                          .max_seq_tokens = 1024,
                          .num_steps = 1,
                          .skip_verify = start->skip_verify};
    start->open[r] = (Status)dynapipe_open_data(dp, &run);
    start->verifies[r] = dp->verify != NULL;
    if (start->open[r] == STATUS_OK) {
        // As before a checkpoint, after a step: it waits until all of the part is verified.
        uint8_t record[8] = {0};
        SessionStep step = {.batch = {.position = record, .position_bytes = sizeof record}};
        const void* position;
        size_t num_bytes;
        dp->now = &step;
        int64_t begin_ns = clock_now_ns();
        start->wait[r] = (Status)dynapipe_position(dp, &position, &num_bytes);
        start->took_ns[r] = clock_now_ns() - begin_ns;
        start->stop_signal[r] = dynapipe_stop_signal(dp);
        start->left_bytes[r] = sample_verify_left_bytes(dp->verify);
        if (start->wait[r] == STATUS_OK && r == 0) {  // once all have asked, one may ask alone
            EXPECT(dynapipe_position(dp, &position, &num_bytes) == STATUS_OK);
        }
        start->damage[r] = sample_verify_damage(dp->verify);
    }
    if (start->open[r] != STATUS_OK || start->wait[r] != STATUS_OK) {
        snprintf(start->message[r], sizeof start->message[r], "%s", status_message());
    }
    dynapipe_close(dp);
    return STATUS_OK;
}

// On all ranks, with these words where one of both fails.
static const Start* starts(Start about, Status opened, Status waited, const char* words) {
    static Start start;
    start = about;
    CHECK_EQ(ranks_run(NUM_RANKS, start_body, &start, results, 1), 0);
    for (int r = 0; r < NUM_RANKS; r++) {
        CHECK_EQ(start.open[r], opened);
        CHECK_EQ(start.wait[r], waited);
        CHECK(strstr(start.message[r], words) != NULL);
        if (test_failures > 0) { printf("rank %d: \"%s\", expected \"%s\"\n", r, start.message[r], words); }
    }
    return &start;
}

// Five samples of the same lengths, whose tokens depend on `text`.
static void write_text(const char* dir, const char* name, int32_t text) {
    MadeSample samples[20];
    for (int32_t i = 0; i < 20; i++) { samples[i] = (MadeSample){i % 2, 40 + i % 5, 8}; }
    MadeData data = {.vocab = 50, .num_samples = 20, .samples = samples};
    maker_write(&data, 5 * text, 5 * text + 5, dir, name);
}

static void write_both(const char* name, int32_t text, int32_t text_there) {
    write_text(here, name, text);
    write_text(there, name, text_there);
}

static void begin(void) {
    maker_dir_create(here);
    maker_dir_create(there);
    write_both("train_0.bin", 0, 0);
    write_both("train_1.bin", 1, 1);
    write_both("val.bin", 2, 2);
}

static void end(void) {
    maker_dir_remove(here);
    maker_dir_remove(there);
}

static void the_text_is_the_same_everywhere(void) {
    const Start all = {.train = "train_*.bin", .val = "val.bin"},
                quick = {.train = "train_*.bin", .val = "val.bin", .skip_verify = true};
    begin();
    const Start* start = starts(all, STATUS_OK, STATUS_OK, "");
    for (int r = 0; r < NUM_RANKS; r++) { CHECK(start->verifies[r] && start->left_bytes[r] == 0); }
    start = starts(quick, STATUS_OK, STATUS_OK, "");
    for (int r = 0; r < NUM_RANKS; r++) { CHECK(!start->verifies[r]); }
    write_both("train_1.bin", 1, 3);
    starts(all, STATUS_MISMATCH, STATUS_OK, "/train_1.bin: contents (-i): rank 1 has");
    starts(quick, STATUS_MISMATCH, STATUS_OK, "/train_1.bin: contents (-i): rank 1 has");
    write_both("train_1.bin", 1, 1);
    write_both("val.bin", 2, 0);
    starts(all, STATUS_MISMATCH, STATUS_OK, "/val.bin: contents (-j): rank 1 has");
    write_text(there, "train_2.bin", 3);
    starts((Start){.train = "train_*.bin"}, STATUS_MISMATCH, STATUS_OK, "number of files of -i");
    end();
}

// A bit of a token near the file's end; again: as it was.
static void flip(const char* folder, const char* name) {
    char path[128];
    unsigned char byte = 0;
    snprintf(path, sizeof path, "%s/%s", folder, name);
    int fd = open(path, O_RDWR);
    off_t at = lseek(fd, -3, SEEK_END);
    CHECK(at > 0 && pread(fd, &byte, 1, at) == 1);
    byte ^= 4;
    CHECK(pwrite(fd, &byte, 1, at) == 1);
    close(fd);
}

// A damaged chunk is found by the rank whose part it is: rank 1's files are nobody else's. All end together,
// with the message of the rank that found it.
static void whoever_has_a_damaged_file_finds_it(void) {
    static const struct {
        const char *folder, *name;
        int32_t finder;
    } cases[] = {{there, "train_0.bin", 1}, {there, "val.bin", 1}, {here, "val.bin", 2}};
    begin();
    for (int i = 0; i < 3; i++) {
        flip(cases[i].folder, cases[i].name);
        const Start* start = starts((Start){.train = "train_*.bin", .val = "val.bin"}, STATUS_OK,
                                    STATUS_BAD_FORMAT, cases[i].name);
        for (int r = 0; r < NUM_RANKS; r++) {
            CHECK_EQ(start->damage[r], r == cases[i].finder ? STATUS_BAD_FORMAT : STATUS_OK);
        }
        flip(cases[i].folder, cases[i].name);
    }
    end();
}

// One rank's part takes four times as long as messages may: all of it is whole in the end, and nobody gave
// up.
static void a_slow_part_is_waited_for(void) {
    begin();
    slow_disk_set(1600, 1);
    const Start* start = starts((Start){.train = "train_*.bin", .val = NULL, .timeout_ns = 400000000},
                                STATUS_OK, STATUS_OK, "");
    for (int r = 0; r < NUM_RANKS; r++) {
        CHECK(start->left_bytes[r] == 0 && start->stop_signal[r] == 0 && start->took_ns[r] > 1000000000);
    }
    end();
}

// Signals that ranks have seen, and which of them all end by: SIGINT, as it gives the exit status.
static void of_different_signals_all_take_one(void) {
    const double seen[][NUM_RANKS] = {{0, 0, 0}, {SIGTERM, SIGINT, SIGUSR1}, {SIGTERM, 0, SIGUSR1}};
    const int expected[] = {0, SIGINT, SIGUSR1};
    for (size_t i = 0; i < 3; i++) {
        Dynapipe dp = {.transport = {.num_ranks = NUM_RANKS}};
        double of_ranks[2 * NUM_RANKS];
        for (int r = 0; r < 2 * NUM_RANKS; r++) { of_ranks[r] = r % 2 == 0 ? seen[i][r / 2] : 99; }
        session_stop_take(&dp, of_ranks, 2);
        CHECK_EQ(dp.stop_signal, expected[i]);
    }
    Dynapipe later = {.transport = {.num_ranks = NUM_RANKS}, .stop_signal = SIGTERM};
    session_stop_take(&later, seen[0], 1);
    CHECK_EQ(later.stop_signal, SIGTERM);
    session_stop_take(&later, seen[1], 1);
    CHECK_EQ(later.stop_signal, SIGINT);
}

// Rank 2 is told to end: no rank waits for a chunk of anybody's, and all know why. (Signals stay noted: the
// last test.)
static void who_is_told_to_end_does_not_wait(void) {
    begin();
    slow_disk_set(2000, 1000);  // all of them
    stop_signal_watch();
    raise(SIGUSR1);
    const Start* start =
        starts((Start){.train = "train_*.bin", .tells_rank_2 = true}, STATUS_OK, STATUS_OK, "");
    for (int r = 0; r < NUM_RANKS; r++) {
        CHECK(start->stop_signal[r] == SIGUSR1 && start->left_bytes[r] > 0);
    }
    end();
}

// === plans made ahead ====================================================================================
// Every step once, in order, never in a slot that is in use; errors cross threads; no
// hang.

enum { MAX_SLOTS = 8 };

typedef struct {
    int64_t slot_step[MAX_SLOTS];  // plain memory: the thread sanitizer sees any sharing that is not ordered
    int64_t next_step, fail_at;
    atomic_int num_made;
    int32_t make_us;
    bool disorder;
} Maker;

static void pause_us(int32_t us) {
    struct timespec nap = {0, us * 1000};
    nanosleep(&nap, NULL);
}

static Status make(void* ctx, int64_t step, int32_t slot) {
    Maker* maker = ctx;
    maker->disorder |= step != maker->next_step;
    maker->next_step = step + 1;
    if (maker->make_us > 0) { pause_us(maker->make_us); }
    if (step == maker->fail_at) { return FAIL(STATUS_INFEASIBLE, "step %lld does not fit", (long long)step); }
    maker->slot_step[slot] = step;
    atomic_fetch_add(&maker->num_made, 1);
    return STATUS_OK;
}

static void every_step_comes_once_and_stays_until_the_next(void) {
    Rng rng = rng_seed(seed);
    for (int trial = 0; trial < 60; trial++) {
        int32_t num_ahead = rng_between(&rng, 0, MAX_SLOTS - 1);
        int64_t first = rng_between(&rng, 0, 1000), num_steps = rng_between(&rng, 0, 40);
        Maker maker = {.next_step = first, .fail_at = -1, .make_us = rng_between(&rng, 0, 60)};
        PlanAhead* ahead;
        CHECK_OK(plan_ahead_start(&ahead, make, &maker, first, first + num_steps, num_ahead));
        for (int64_t step = first; step < first + num_steps; step++) {
            int32_t slot = -1;
            CHECK_OK(plan_ahead_get(ahead, &slot));
            CHECK(slot >= 0 && slot <= num_ahead);
            if (slot < 0) { break; }
            for (int look = 0; look < 3; look++) {
                CHECK_EQ(maker.slot_step[slot], step);
                pause_us(rng_between(&rng, 0, 30));
            }
            CHECK(plan_ahead_wait_ns(ahead) >= 0);
        }
        plan_ahead_stop(ahead);
        CHECK_EQ(atomic_load(&maker.num_made), num_steps);
        CHECK(!maker.disorder);
    }
}

// Planning runs as far ahead as the slots let it; a failure arrives with its message at its step.
static void the_planner_runs_ahead_until_it_fails(void) {
    for (int32_t num_ahead = 1; num_ahead < 5; num_ahead++) {
        Maker maker = {.fail_at = 7};
        PlanAhead* ahead;
        int32_t slot;
        CHECK_OK(plan_ahead_start(&ahead, make, &maker, 0, 10, num_ahead));
        for (int64_t step = 0; step < 7; step++) {
            int64_t most = (step > 0 ? step - 1 : 0) + num_ahead + 1, made = most < 7 ? most : 7;
            while (atomic_load(&maker.num_made) < made) { pause_us(10); }
            pause_us(500);
            CHECK_EQ(atomic_load(&maker.num_made), made);  // the step in use keeps its slot
            CHECK_OK(plan_ahead_get(ahead, &slot));
            CHECK_EQ(slot, step % (num_ahead + 1));
        }
        for (int i = 0; i < 2; i++) {
            CHECK_FAILS(plan_ahead_get(ahead, &slot), STATUS_INFEASIBLE, "step 7 does not fit");
        }
        plan_ahead_stop(ahead);
        CHECK_EQ(maker.next_step, 8);  // nothing was tried after it
    }
}

// === hosts ===============================================================================================
// Ranks of one process share one host; what it has is what they may run on.

static void quotas_are_whole_cores(void) {
    CHECK_EQ(host_cores_quota("max 100000\n"), 0);
    CHECK_EQ(host_cores_quota("200000 100000\n"), 2);
    CHECK_EQ(host_cores_quota("250000 100000"), 2);
    CHECK_EQ(host_cores_quota("10000 100000"), 1);
    const char* const none[] = {"", "100000", "-1 100000", "5 0", "nan nan", "1e300 1e-300"};
    for (size_t i = 0; i < sizeof none / sizeof none[0]; i++) { CHECK_EQ(host_cores_quota(none[i]), 0); }
}

static Status find_body(Transport* t, void* arg) {
    Collective world = {0};
    HostCores hosts = {0};
    TRY(ranks_world(&world, t));
    TRY(host_cores_find(&hosts, &world, *(int32_t*)arg + t->rank));  // the last has the most threads
    EXPECT(hosts.num_ranks == t->num_ranks && hosts.num_hosts == 1);
    EXPECT(hosts.sharers[0] == t->num_ranks && hosts.threads[0] == *(int32_t*)arg + t->num_ranks - 1);
    EXPECT(hosts.cores[0] >= 1 && hosts.cores[0] <= sysconf(_SC_NPROCESSORS_CONF));
    for (int32_t r = 0; r < t->num_ranks; r++) { EXPECT(hosts.host[r] == 0); }
    bool lacks = (int64_t)hosts.threads[0] * hosts.sharers[0] > hosts.cores[0];
    EXPECT(host_cores_short(&hosts) == (lacks ? 0 : -1));
    host_cores_free(&hosts);
    collective_free(&world);
    return STATUS_OK;
}

static void ranks_of_a_process_share_its_cores(void) {
    unsetenv("OMPI_COMM_WORLD_LOCAL_SIZE");
    unsetenv("MPI_LOCALNRANKS");
    int32_t counts[] = {1, 100000};
    for (int i = 0; i < 2; i++) {
        for (int32_t num_ranks = 2; num_ranks <= 5; num_ranks++) {
            CHECK_EQ(ranks_run(num_ranks, find_body, &counts[i], results, 1), 0);
        }
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(tasks_have_one_number_by_name);
    RUN(a_record_is_json_whatever_is_in_it);
    RUN(members_kept_for_later_are_zero);
    RUN(the_position_outlives_the_choice_of_stages);
    RUN(costs_of_an_earlier_version_are_none);
    RUN(what_the_model_asks_for_is_obeyed_or_refused);
    RUN(the_fastest_shape_is_chosen);
    RUN(the_arena_grows_up_to_the_limit);
    RUN(memory_is_one_number_where_that_serves);
    RUN(each_range_gets_one_model);
    RUN(what_a_model_lacks_is_named);
    RUN(every_parameter_is_counted_once);
    RUN(the_first_difference_is_named);
    RUN(every_row_is_counted_once);
    RUN(a_memory_limit_counts_both_sides);
    RUN(every_task_is_validated_by_its_share);
    RUN(a_sample_beyond_the_kernels_is_named);
    RUN(generation_counts_its_windows);
    RUN(a_signal_breaks_off);
    RUN(the_text_is_the_same_everywhere);
    RUN(whoever_has_a_damaged_file_finds_it);
    RUN(a_slow_part_is_waited_for);
    RUN(of_different_signals_all_take_one);
    RUN(who_is_told_to_end_does_not_wait);
    RUN(every_step_comes_once_and_stays_until_the_next);
    RUN(the_planner_runs_ahead_until_it_fails);
    RUN(quotas_are_whole_cores);
    RUN(ranks_of_a_process_share_its_cores);
    return test_end();
}
