// test_model_profile.c -- the profiler on models that take a known time: every curve finds its own share. And
// on real ones, the curves that each kind has.
#include "../dynapipe_plugin/adapters/model_profile.h"
#include "../dynapipe_plugin/base/rng.h"
#include "../dynapipe_plugin/plan/planner.h"
#include "../llmc/gpt2.h"
#include "../llmc/models.h"
#include "../llmc/t5.h"
#include "test.h"

static OpsContext* ops;
static int64_t passed_ns;  // on the clock that the kind's jobs move
static CostModel costs;

// --- a kind that only takes time ---------------------------------------------------------------------------

static TensorInfo tensor(const ModelConfig* config, int t) {
    (void)config;
    return (TensorInfo){"w", t == 0 ? TENSOR_PER_LAYER : TENSOR_PER_DEC_LAYER, 1, 16, true};
}

static bool no(const Model* model, int t) {
    (void)model, (void)t;
    return false;
}

static bool not_tied(const ModelConfig* config, int t) {
    (void)config, (void)t;
    return false;
}

static int64_t few_bytes(const Model* model, const ModelBatch* batch, int flags) {
    (void)model, (void)batch, (void)flags;
    return 64;
}

static int64_t scratch_bytes(const Model* model, const ModelBatch* batch) {
    return few_bytes(model, batch, 0);
}

// ns of each feature in the parts, forward; backward of inputs takes twice that, of weights half of tokens
// and rows.
static const double truth[PART_COUNT][FEATURE_COUNT] = {
    [PART_EMBEDDING] = {[FEATURE_ENC_TOKENS] = 200, [FEATURE_DEC_TOKENS] = 300},
    [PART_ENC_LAYER] = {[FEATURE_ENC_TOKENS] = 1000, [FEATURE_ENC_SQUARES] = 0.8},
    [PART_DEC_LAYER] = {[FEATURE_ENC_TOKENS] = 400,
                        [FEATURE_DEC_TOKENS] = 1500,
                        [FEATURE_DEC_SQUARES] = 0.9,
                        [FEATURE_CROSS_PRODUCTS] = 0.7},
    [PART_HEAD] = {[FEATURE_DEC_TOKENS] = 100, [FEATURE_SUPERVISED] = 2000},
};

static double part_ns(int part, JobKind job, const MbShape* shape) {
    static const bool quadratic[FEATURE_COUNT] = {
        [FEATURE_ENC_SQUARES] = true, [FEATURE_DEC_SQUARES] = true, [FEATURE_CROSS_PRODUCTS] = true};
    double value[FEATURE_COUNT], ns = 0;
    cost_shape_features(value, shape);
    for (int f = 0; f < FEATURE_COUNT; f++) {
        double passes = job == JOB_F ? 1 : job == JOB_B ? 2 : quadratic[f] ? 0 : 0.5;
        ns += passes * truth[part][f] * value[f];
    }
    return ns;
}

static void take_time(const Model* model, const ModelBatch* batch, JobKind job) {
    MbShape shape = {0};
    for (int i = 0; i < batch->num_seqs; i++) {
        int32_t enc = batch->cu_seqlens[i + 1] - batch->cu_seqlens[i];
        mb_shape_add(&shape, enc, batch->dec_cu_seqlens[i + 1] - batch->dec_cu_seqlens[i], 0);
    }
    shape.supervised_tokens = batch->num_rows;
    MbShape enc_side = {.enc_tokens = shape.enc_tokens}, dec_side = {.dec_tokens = shape.dec_tokens};
    double ns = (model_enc_end(model) - model_enc_begin(model)) * part_ns(PART_ENC_LAYER, job, &shape) +
                (model_dec_end(model) - model_dec_begin(model)) * part_ns(PART_DEC_LAYER, job, &shape);
    if (model->is_first) { ns += part_ns(PART_EMBEDDING, job, &enc_side); }
    if (model->layer_begin == 3 && model->layer_end > 3) { ns += part_ns(PART_EMBEDDING, job, &dec_side); }
    if (model->is_last) { ns += part_ns(PART_HEAD, job, &shape); }
    passed_ns += (int64_t)ns;
}

static int64_t clock_ns(void) {
    return passed_ns;
}

static void forward(Model* model, const ModelBatch* batch, const void* in, void* out, void* acts,
                    void* scratch, float* losses, int flags) {
    (void)in, (void)out, (void)acts, (void)scratch, (void)losses, (void)flags;
    take_time(model, batch, JOB_F);
}

static void backward_inputs(Model* model, const ModelBatch* batch, const void* in, void* acts,
                            const void* dout, void* din, void* scratch) {
    (void)in, (void)acts, (void)dout, (void)din, (void)scratch;
    take_time(model, batch, JOB_B);
}

static void backward_weights(Model* model, const ModelBatch* batch, void* acts, const void* dout,
                             void* scratch) {
    (void)acts, (void)dout, (void)scratch;
    take_time(model, batch, JOB_W);
}

static const ModelKind clock_kind = {
    .name = "clock",
    .has_decoder = true,
    .num_tensors = 2,
    .tensor = tensor,
    .has_tensor = no,
    .is_copy = no,
    .is_tied = not_tied,
    .acts_bytes = few_bytes,
    .scratch_bytes = scratch_bytes,
    .boundary_bytes = few_bytes,
    .forward = forward,
    .backward_inputs = backward_inputs,
    .backward_weights = backward_weights,
};

static void profile(const ModelConfig* config, int32_t max_tokens, int32_t max_target_tokens) {
    ModelProfile about = {.config = *config,
                          .max_tokens = max_tokens,
                          .max_seq_tokens = max_tokens,
                          .max_target_tokens = max_target_tokens};
    memset(&costs, 0, sizeof costs);
    if (config->kind == &clock_kind) { about.clock_ns = clock_ns; }
    model_profile_measure(&costs, &about, ops, NULL, NULL);
    model_profile_set_recompute(&costs);
}

// --- tests -------------------------------------------------------------------------------------------------

// Every feature by itself, then micro-batches of several sequences of any lengths. (The jobs move a clock of
// their own, so what else the machine does is in nobody's time.)
static void every_feature_finds_its_time(void) {
    ModelConfig config = {
        .kind = &clock_kind, .num_layers = 6, .num_dec_layers = 6, .vocab = 100, .channels = 16};
    profile(&config, 512, 256);
    for (int part = 0; part < PART_COUNT; part++) {
        for (JobKind job = JOB_F; job <= JOB_W; job++) {
            MbShape shape = {.enc_tokens = 300, .dec_tokens = 200, .supervised_tokens = 150};
            double ns = cost_formula_value(&costs.parts[RECOMPUTE_NONE][part].time_ns[job], &shape);
            CHECK_NEAR(ns, part_ns(part, job, &shape), 0.05 * part_ns(part, job, &shape) + 10);
        }
    }
    Rng rng = rng_seed(3);
    for (int round = 0; round < 50; round++) {
        MbShape shape = {0};
        for (int i = rng_between(&rng, 1, 3); i > 0; i--) {
            mb_shape_add(&shape, rng_between(&rng, 16, 160), rng_between(&rng, 8, 80), 30);
        }
        for (int part = 0; part < PART_COUNT; part++) {
            for (JobKind job = JOB_F; job <= JOB_W; job++) {
                double ns = cost_formula_value(&costs.parts[RECOMPUTE_NONE][part].time_ns[job], &shape);
                CHECK_NEAR(ns, part_ns(part, job, &shape), 0.1 * part_ns(part, job, &shape) + 10);
            }
        }
    }
    CHECK(costs.parts[RECOMPUTE_FULL][PART_DEC_LAYER].time_ns[JOB_R].curves[FEATURE_ENC_TOKENS].num_knots >
          0);
}

static void real_kinds_have_their_curves(void) {
    const unsigned enc = 1 << FEATURE_ENC_TOKENS, enc_squares = 1 << FEATURE_ENC_SQUARES;
    const unsigned dec = 1 << FEATURE_DEC_TOKENS, dec_squares = 1 << FEATURE_DEC_SQUARES;
    const unsigned cross = 1 << FEATURE_CROSS_PRODUCTS, rows = 1 << FEATURE_SUPERVISED;
    static const char* const descriptors[] = {"l2c32h1", "t5:l1d2c32h1", "byt5:l2c64h2k16f40"};
    for (int i = 0; i < 3; i++) {
        const bool t5 = i > 0;
        const unsigned expected[PART_COUNT] = {
            [PART_EMBEDDING] = enc | (t5 ? dec : 0),
            [PART_ENC_LAYER] = enc | enc_squares,
            [PART_DEC_LAYER] = t5 ? enc | dec | dec_squares | cross : 0,
            [PART_HEAD] = (t5 ? dec : enc) | rows,
        };
        char error[256];
        ModelConfig config;
        CHECK(models_kind_of(descriptors[i]) == (t5 ? &t5_kind : &gpt2_kind));
        CHECK(model_parse(&config, models_kind_of(descriptors[i]), descriptors[i], 300, 256, error));
        profile(&config, 256, t5 ? 128 : 0);
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
    char error[256];
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
        CHECK(models_read_config(&config, files[i].path, 0, 0, error));
        CHECK(config.kind == files[i].kind);
        CHECK(config.channels > 0 && (files[i].channels == 0 || config.channels == files[i].channels));
    }
    CHECK(!models_read_config(&config, "test/golden/t5_v10.bin", 0, 0, error));  // no checkpoint
    CHECK(strstr(error, "t5_v10.bin") != NULL && strstr(error, "--->") != NULL);
    CHECK(!models_read_config(&config, "test/golden/none.bin", 0, 0, error));
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
    RUN(real_kinds_have_their_curves);
    RUN(descriptors_name_their_kind);
    RUN(files_name_their_kind);
    ops_free(ops);
    return test_end();
}
