// test_measure_times.c -- measuring models that take a known time: every curve finds its own share, whatever
// the chain's length and layout; a model whose backward is one job; all ranks end with the same numbers, the
// mean of theirs. And on real ones, the curves that each kind has.
#include "../util/numbers.h"
#include "../dynapipe_plugin/measure/measure.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "../dynapipe_plugin/plan/types.h"
#include "../llmc/gpt2.h"
#include "../llmc/models.h"
#include "../llmc/t5.h"
#include "../trainer/llmc_model.h"
#include "clock_model.h"
#include "ranks.h"
#include "test.h"

static OpsContext* ops;
static CostModel costs;

// --- a session as far as measuring looks at it
// ---------------------------------------------------------------

static Status device_alloc(void* ctx, void** out, int64_t num_bytes) {
    (void)ctx;
    *out = malloc((size_t)num_bytes);
    return *out != NULL ? STATUS_OK : STATUS_NO_MEMORY;
}

static void device_release(void* ctx, void* memory) {
    (void)ctx;
    free(memory);
}

// As far as measuring asks a GPU.
static const DynapipeDevice_v1 device = {.name = "test", .alloc = device_alloc, .release = device_release};

static Status session_on(Dynapipe* dp, Transport* transport) {
    int32_t ranks[RANKS_MAX];
    *dp = (Dynapipe){.transport = *transport, .num_stages = transport->num_ranks, .num_replicas = 1};
    for (int32_t r = 0; r < transport->num_ranks; r++) { ranks[r] = r; }
    return collective_init(&dp->world, &dp->transport, ranks, transport->num_ranks, INT64_C(20000000000));
}

static Status measure_on(CostModel* out, Transport* transport, const DynapipeBlocks_v1* blocks,
                         const Measure* about) {
    Dynapipe dp;
    Measure m = *about;
    TRY(session_on(&dp, transport));
    m.dp = &dp;
    if (m.clock_ns == NULL && transport->num_ranks > 1) { dp.device.api = &device; }
    m.blocks = blocks;
    if (m.budget_ns == 0) { m.budget_ns = INT64_C(60000000000); }
    Status status = measure_times(out, &m);
    measure_times_set_recompute(out);
    collective_free(&dp.world);
    return status;
}

static void measure(const DynapipeBlocks_v1* blocks, int32_t max_tokens, int32_t max_target_tokens,
                    int64_t (*clock_ns)(void)) {
    Transport transport;
    Measure about = {
        .max_tokens = max_tokens, .lengths = {max_tokens, max_target_tokens}, .clock_ns = clock_ns};
    memset(&costs, 0, sizeof costs);
    CHECK_OK(transport_loopback_open(&transport, 1));
    CHECK_OK(measure_on(&costs, &transport, blocks, &about));
    transport_close(&transport);
}

static double measured_ns(const CostModel* model, int part, JobKind job, const MbShape* shape) {
    return cost_formula_value(&model->parts[RECOMPUTE_NONE][part].time_ns[job], shape);
}

// --- known times -------------------------------------------------------------------------------------------

// What is added up over the parts of a stage of the whole model: where a chain is too short to tell them
// apart, they are right together.
static double whole_ns(const ClockModel* model, const CostModel* by, JobKind job, const MbShape* shape) {
    const DynapipeBlocks_v1* blocks = &model->blocks;
    const int32_t count[PART_COUNT] = {1, blocks->num_layers, blocks->num_dec_layers, 1};
    double ns = 0;
    for (int part = 0; part < PART_COUNT; part++) {
        ns += count[part] *
              (by != NULL ? measured_ns(by, part, job, shape) : clock_model_part_ns(model, part, job, shape));
    }
    return ns;
}

// Several windows of any lengths, a decoder's half as long.
static MbShape draw_shape(Rng* rng, bool has_dec) {
    MbShape shape = {0};
    for (int i = rng_between(rng, 1, 3); i > 0; i--) {
        mb_shape_add(&shape, rng_between(rng, 16, 160), has_dec ? rng_between(rng, 8, 80) : 0, 30);
    }
    return shape;
}

// Every feature by itself, then micro-batches of several sequences of any lengths. (The jobs move a clock of
// their own, so what else the machine does is in nobody's time.)
static void check_parts(const ClockModel* model, double tolerance) {
    const bool has_dec = model->blocks.num_dec_layers > 0;
    Rng rng = rng_seed(3);
    for (int round = 0; round < 50; round++) {
        MbShape shape = draw_shape(&rng, has_dec);
        for (int part = 0; part < PART_COUNT; part++) {
            if (part == PART_DEC_LAYER && !has_dec) { continue; }
            for (JobKind job = JOB_F; job <= JOB_W; job++) {
                double ns = clock_model_part_ns(model, part, job, &shape);
                CHECK_NEAR(measured_ns(&costs, part, job, &shape), ns, tolerance * ns + 10);
            }
        }
    }
}

static void every_feature_finds_its_time(void) {
    static ClockModel model;
    for (int has_dec = 0; has_dec < 2; has_dec++) {
        clock_model_init(&model, 6, has_dec ? 6 : 0, false, false);
        measure(&model.blocks, 512, has_dec ? 256 : 0, clock_model_ns);
        check_parts(&model, 0.02);
        CHECK_EQ(model.num_wrong, 0);
        const CostPartMode* full = &costs.parts[RECOMPUTE_FULL][PART_ENC_LAYER];
        CHECK(full->time_ns[JOB_R].curves[FEATURE_ENC_TOKENS].num_knots > 0);
        // 10 ns for each of the first range's values, and 1000 at once; four bytes each
        CHECK_NEAR(costs.update_ns_per_byte, 10 / 4.0, 0.5);
    }
}

// Windows of a length that is a multiple of 4, tokens of 16, squares not above 2^17; or few windows and
// tokens.
static void padded_layouts_are_kept_to(void) {
    static ClockModel model;
    for (int has_dec = 0; has_dec < 2; has_dec++) {
        clock_model_init(&model, 4, has_dec ? 4 : 0, true, has_dec);
        model.blocks.shapes.max_squares = 1 << 17;
        model.blocks.max_seq_tokens = 300;
        measure(&model.blocks, 500, has_dec ? 200 : 0, clock_model_ns);
        check_parts(&model, 0.05);
        CHECK_EQ(model.num_wrong, 0);
    }
    for (int padded = 0; padded < 2; padded++) {
        clock_model_init(&model, 4, 0, padded, false);
        model.blocks.shapes.max_seqs = 3;
        model.blocks.shapes.max_tokens = 400;
        measure(&model.blocks, 300, 0, clock_model_ns);
        CHECK_EQ(model.num_wrong, 0);
    }
}

static void short_chains_are_right_in_sum(void) {
    static const int32_t chains[][2] = {{1, 0}, {2, 0}, {1, 1}, {2, 1}, {1, 2}, {2, 2}};
    static ClockModel model;
    Rng rng = rng_seed(4);
    for (int i = 0; i < 12; i++) {
        const int32_t* chain = chains[i / 2];
        clock_model_init(&model, chain[0], chain[1], false, i % 2);
        measure(&model.blocks, 256, chain[1] > 0 ? 128 : 0, clock_model_ns);
        CHECK_EQ(model.num_wrong, 0);
        for (int k = 0; k < 20; k++) {
            MbShape shape = draw_shape(&rng, chain[1] > 0);
            double ns = whole_ns(&model, NULL, JOB_B, &shape);
            CHECK_NEAR(whole_ns(&model, &costs, JOB_B, &shape), ns, 0.1 * ns);
        }
    }
}

static void a_backward_that_is_one_job_is_measured_whole(void) {
    static ClockModel model;
    clock_model_init(&model, 3, 0, false, false);
    model.api.backward_weights = NULL;
    measure(&model.blocks, 256, 0, clock_model_ns);
    check_parts(&model, 0.02);
    MbShape shape = {.num_seqs = 1, .enc_tokens = 100, .enc_squares = 10000, .supervised_tokens = 50};
    for (int part = 0; part < PART_COUNT; part++) { CHECK_EQ(measured_ns(&costs, part, JOB_W, &shape), 0); }
}

// No time at all: every curve is known for shapes that are not small any more, and goes on from there.
static void little_time_leaves_no_part_out(void) {
    static ClockModel model;
    Transport transport;
    Measure about = {.max_tokens = 1024, .lengths = {1024, 256}, .clock_ns = clock_model_ns, .budget_ns = 1};
    clock_model_init(&model, 6, 6, false, false);
    memset(&costs, 0, sizeof costs);
    CHECK_OK(transport_loopback_open(&transport, 1));
    CHECK_OK(measure_on(&costs, &transport, &model.blocks, &about));
    transport_close(&transport);
    check_parts(&model, 0.05);
    const CostFormula* head = &costs.parts[RECOMPUTE_NONE][PART_HEAD].time_ns[JOB_F];
    const CostFormula* layer = &costs.parts[RECOMPUTE_NONE][PART_DEC_LAYER].time_ns[JOB_F];
    const CostCurve* curves[] = {&head->curves[FEATURE_SUPERVISED], &layer->curves[FEATURE_DEC_TOKENS]};
    for (int i = 0; i < 2; i++) {
        double last = curves[i]->x[curves[i]->num_knots - 1];
        CHECK(last >= 100 && last <= 256);
    }
}

static void what_fails_is_named(void) {
    static ClockModel model;
    Transport transport;
    Measure about = {.max_tokens = 64, .lengths = {64, 0}, .clock_ns = clock_model_ns};
    clock_model_init(&model, 3, 0, false, false);
    model.fails_at = 20;
    CHECK_OK(transport_loopback_open(&transport, 1));
    CHECK_FAILS(measure_on(&costs, &transport, &model.blocks, &about), STATUS_DEVICE,
                "backward_inputs: the clock stands still");
    transport_close(&transport);
}

// --- ranks -------------------------------------------------------------------------------------------------

enum { NUM_RANKS = 4 };
static CostModel of_rank[NUM_RANKS];

// Rank 3 has a slow machine; arg: where jobs of rank 1 fail, with `on_device` while a GPU becomes warm.
typedef struct {
    bool on_device;
} Failure;

static Status ranks_body(Transport* t, void* arg) {
    const Failure* failure = arg;
    ClockModel model;
    clock_model_init(&model, 4, 0, false, false);
    model.slower = t->rank == NUM_RANKS - 1 ? 5 : 1;
    model.fails_at = failure != NULL && t->rank == 1 ? 9 : 0;
    Measure about = {.max_tokens = 128, .lengths = {128, 0}, .clock_ns = clock_model_ns};
    if (failure != NULL && failure->on_device) { about.clock_ns = NULL; }
    Status status = measure_on(&of_rank[t->rank], t, &model.blocks, &about);
    if (failure == NULL) { return status; }
    EXPECT(status == STATUS_DEVICE);
    const char* words = t->rank == 1 ? "the clock stands still" : "1 other ranks could not be measured";
    EXPECT(strstr(status_message(), words) != NULL);
    return STATUS_OK;
}

static void all_ranks_know_the_mean(void) {
    static RankResult results[RANKS_MAX];
    ClockModel model;
    CHECK_EQ(ranks_run(NUM_RANKS, RANKS_CHECKED, ranks_body, NULL, results, 1), 0);
    for (int r = 1; r < NUM_RANKS; r++) { CHECK_EQ(memcmp(&of_rank[r], &of_rank[0], sizeof of_rank[0]), 0); }
    clock_model_init(&model, 4, 0, false, false);
    MbShape shape = {.num_seqs = 1, .enc_tokens = 100, .enc_squares = 10000};
    double ns = clock_model_part_ns(&model, PART_ENC_LAYER, JOB_F, &shape);
    CHECK_NEAR(measured_ns(&of_rank[0], PART_ENC_LAYER, JOB_F, &shape), 2 * ns, 0.05 * ns);
}

static void one_rank_that_fails_ends_all(void) {
    static RankResult results[RANKS_MAX];
    for (int on_device = 0; on_device < 2; on_device++) {
        Failure failure = {on_device};
        CHECK_EQ(ranks_run(NUM_RANKS, RANKS_CHECKED, ranks_body, &failure, results, 1), 0);
    }
}

// --- real models -------------------------------------------------------------------------------------------

static void real_kinds_have_their_curves(void) {
    const unsigned enc = 1 << FEATURE_ENC_TOKENS, enc_squares = 1 << FEATURE_ENC_SQUARES;
    const unsigned dec = 1 << FEATURE_DEC_TOKENS, dec_squares = 1 << FEATURE_DEC_SQUARES;
    const unsigned cross = 1 << FEATURE_CROSS_PRODUCTS, rows = 1 << FEATURE_SUPERVISED;
    static const char* const descriptors[] = {"l2c32h1", "t5:l2d2c32h1", "byt5:l2c64h2k16f40"};
    for (int i = 0; i < 3; i++) {
        const bool t5 = i > 0;
        const unsigned expected[PART_COUNT] = {
            [PART_EMBEDDING] = enc | (t5 ? dec : 0),
            [PART_ENC_LAYER] = enc | enc_squares,
            [PART_DEC_LAYER] = t5 ? enc | dec | dec_squares | cross : 0,
            [PART_HEAD] = (t5 ? dec : enc) | rows,
        };
        ModelConfig config;
        LlmcBlocks about;
        CHECK(model_parse(&config, models_kind_of(descriptors[i]), descriptors[i], 300, 256));
        DynapipeBlocks_v1 blocks = dynapipe_llmc_blocks(&about, &config, ops);
        measure(&blocks, 256, t5 ? 128 : 0, NULL);
        for (int part = 0; part < PART_COUNT; part++) {
            for (int f = 0; f < FEATURE_COUNT; f++) {
                CHECK_EQ(costs.parts[RECOMPUTE_NONE][part].time_ns[JOB_F].curves[f].num_knots > 0,
                         (expected[part] >> f) & 1);
            }
            costs.parts[RECOMPUTE_NONE][part].offered = true;
        }
        costs.num_enc_layers = 1;
        CHECK_OK(cost_model_check(&costs));
        CHECK(costs.update_ns_per_byte > 0);
    }
}

static void files_name_their_kind(void) {
    ModelConfig config;
    const struct {
        const char* path;
        const ModelKind* kind;
        int channels;
    } files[] = {{"test/golden/hf_t5", &t5_kind, 0},
                 {"test/golden/hf_gpt2/model.safetensors", &gpt2_kind, 0},
                 {"byt5:l2c64h4", &t5_kind, 64},
                 {"l2c32h4", &gpt2_kind, 32}};
    for (int i = 0; i < 4; i++) {
        CHECK(models_read_config(&config, files[i].path, 0, 0));
        CHECK(config.kind == files[i].kind);
        CHECK(config.channels > 0 && (files[i].channels == 0 || config.channels == files[i].channels));
    }
    CHECK(!models_read_config(&config, "test/golden/t5_v10.bin", 0, 0));  // no checkpoint
    CHECK(strstr(status_message(), "t5_v10.bin") != NULL && strstr(status_message(), "--->") != NULL);
    CHECK(!models_read_config(&config, "test/golden/none.bin", 0, 0));
}

static void descriptors_name_their_kind(void) {
    static const char* const t5[] = {"t5:small",     "t5v1.1:xl", "flan-t5:base",
                                     "byt5:l2c64h4", "mt5:x",     "umt5:"};
    static const char* const gpt2[] = {"d12", "gpt3:c768", "l4c128h4", "", "gpt3:t5", "gpt2:t5:x"};
    for (int i = 0; i < 6; i++) {
        CHECK(models_kind_of(t5[i]) == &t5_kind);
        CHECK(models_kind_of(gpt2[i]) == &gpt2_kind);
    }
}

int main(void) {
    ops = ops_create(1);
    RUN(every_feature_finds_its_time);
    RUN(padded_layouts_are_kept_to);
    RUN(short_chains_are_right_in_sum);
    RUN(a_backward_that_is_one_job_is_measured_whole);
    RUN(little_time_leaves_no_part_out);
    RUN(what_fails_is_named);
    RUN(all_ranks_know_the_mean);
    RUN(one_rank_that_fails_ends_all);
    RUN(real_kinds_have_their_curves);
    RUN(descriptors_name_their_kind);
    RUN(files_name_their_kind);
    ops_free(ops);
    return test_end();
}
