// test_cuda_head.c -- a model on several ranks of a GPU (all in this process): any ranges on any rank, the
// head shared by rows or by vocabulary; losses and gradients are those of the whole model on the same GPU,
// and answers too. What the whole one does is compared with a CPU elsewhere (test_cuda_train.sh).
#include "../ops_test.h"

#include "../../util/status.h"
#include "../../llmc/gpt2.h"
#include "../../llmc/t5.h"
#include "../part_chain.h"

// Of losses (sums in another order, of the same logits), and of a tensor's gradient in units of its largest
// value. float32: sums in another order. bf16: the rows' gradient is rounded in parts, one a share (2^-9 of
// each), and goes through all layers, where it is rounded as often again; seen: 0.025.
#ifdef LLMC_BF16
static const double GRAD_TOLERANCE = 0.05;
#else
static const double GRAD_TOLERANCE = 2e-5;
#endif
static const double LOSS_TOLERANCE = 2e-6;

typedef struct {
    const ModelKind* kind;
    const char* descriptor;
} Kind;
static const Kind kinds[] = {
    {&gpt2_kind, "l4c48h3"},                // tied
    {&t5_kind, "t5:l2d3c48h3k16f40"},       // tied, scaled
    {&t5_kind, "flan-t5:l2d2c32h2k16f40"},  // a head of its own, gated
};
enum { NUM_KINDS = 3, VOCAB = 131, NUM_ROUNDS = 7 };

static ModelConfig config_of(int k) {
    ModelConfig config;
    if (!model_parse(&config, kinds[k].kind, kinds[k].descriptor, VOCAB, 64)) {
        printf("%s\n", status_message());
        exit(1);
    }
    return config;
}

static float* zeros(int64_t num_values) {
    float* values = calloc((size_t)num_values + 1, sizeof *values);
    if (values == NULL) { exit(1); }
    return values;
}

// As a checkpoint has them, larger than a fresh model's: losses far from log V. The caller frees them.
static float* params_of(const ModelConfig* config) {
    Model whole;
    model_init(&whole, config, 0, model_num_layers(config), true, ops);
    model_init_random(&whole, 7);
    float* params = zeros(whole.num_params);
    floatX* raw = malloc((size_t)whole.num_params * sizeof *raw);
    if (raw == NULL) { exit(1); }
    ops_download(ops, raw, whole.params, (size_t)whole.num_params * sizeof *raw);
    floatx_to_floats(params, raw, (size_t)whole.num_params);
    for (int64_t i = 0; i < whole.num_params; i++) {
        params[i] += 0.05f * (float)(rng_between(&test_rng, -100, 100)) / 100.0f;
    }
    free(raw);
    model_free(&whole);
    return params;
}

static PartLayout whole_layout(const ModelConfig* config) {
    PartLayout layout = {.num_ranks = 1};
    layout.parts[0] = model_part(0, model_num_layers(config), true);
    return layout;
}

static double worst_grad(const ModelConfig* config, const float* a, const float* b) {
    Model whole;
    const ModelPart part = model_part(0, model_num_layers(config), true);
    model_init_counts(&whole, config, &part, ops);
    double worst = 0.0, most = 0.0;
    for (int64_t i = 0; i < model_num_params(config); i++) { most = fmax(most, fabs((double)b[i])); }
    for (int i = 0; i < whole.num_slices; i++) {
        const int64_t begin = whole.slices[i].offset, end = begin + whole.slices[i].num_values;
        double largest = 0.05 * most;  // the small rest of larger terms has their rounding
        for (int64_t j = begin; j < end; j++) { largest = fmax(largest, fabs((double)b[j])); }
        for (int64_t j = begin; j < end; j++) {
            const double error = fabs((double)a[j] - (double)b[j]) / largest;
            worst = isfinite(a[j]) ? fmax(worst, error) : (double)INFINITY;
        }
    }
    model_free(&whole);
    return worst;
}

static double worst_loss(const float* a, const float* b, int num_rows) {
    double worst = 0.0;
    for (int i = 0; i < num_rows; i++) {
        const double error = fabs((double)a[i] - (double)b[i]) / (1.0 + fabs((double)b[i]));
        worst = isfinite(a[i]) ? fmax(worst, error) : (double)INFINITY;
    }
    return worst;
}

// Against the whole model; done again with recomputation bit for bit.
static void check_layout(const PartRun* run, const PartLayout* layout, const ModelBatch* batch) {
    static float whole[PART_BATCH_MAX_TOKENS], parts[PART_BATCH_MAX_TOKENS], tried[PART_BATCH_MAX_TOKENS];
    const PartLayout one = whole_layout(run->config);
    const int64_t num_params = model_num_params(run->config);
    float *whole_grads = zeros(num_params), *grads = zeros(num_params), *again = zeros(num_params);
    part_chain_train(run, &one, batch, 0, whole, whole_grads);
    part_chain_train(run, layout, batch, 0, parts, grads);
    const double loss = worst_loss(parts, whole, batch->num_rows),
                 grad = worst_grad(run->config, grads, whole_grads);
    if (getenv("OPS_TEST_VERBOSE") != NULL) {
        printf("     %s rows %3d sharing %d ranks %d: losses %.1e gradients %.1e\n", run->config->kind->name,
               batch->num_rows, (int)layout->parts[0].head.sharing, layout->num_ranks, loss, grad);
    }
    CHECK(loss <= LOSS_TOLERANCE);
    CHECK(grad <= GRAD_TOLERANCE);
    part_chain_train(run, layout, batch, PART_CHAIN_RECOMPUTE, tried, again);
    CHECK(memcmp(parts, tried, (size_t)batch->num_rows * sizeof *parts) == 0);
    CHECK(memcmp(grads, again, (size_t)num_params * sizeof *grads) == 0);
    free(whole_grads);
    free(grads);
    free(again);
}

// Shares of any length, some of them without rows, ids or targets; few rows, and none.
static void any_layout_is_the_whole_model(void) {
    static PartBatch own;
    for (int k = 0; k < NUM_KINDS; k++) {
        const ModelConfig config = config_of(k);
        float* params = params_of(&config);
        for (int round = 0; round < NUM_ROUNDS; round++) {
            const int most_rows = round < 5 ? PART_BATCH_MAX_TOKENS : rng_between(&test_rng, 0, 2);
            const PartRun run = {&config, round % 2 ? 0.2f : 0.0f, ops, params};
            const PartLayout layout = part_layout_random(&test_rng, &config, (ModelSharing)(round % 3));
            part_batch_random(&own, &test_rng, &config, rng_between(&test_rng, 1, 2), most_rows);
            check_layout(&run, &layout, &own.batch);
        }
        free(params);
    }
}

static void losses_alone_are_the_whole_models(void) {
    static PartBatch own;
    static float whole[PART_BATCH_MAX_TOKENS], parts[PART_BATCH_MAX_TOKENS];
    for (int k = 0; k < NUM_KINDS; k++) {
        const ModelConfig config = config_of(k);
        const PartLayout one = whole_layout(&config);
        float* params = params_of(&config);
        const PartRun run = {&config, 0.0f, ops, params};
        for (int sharing = 1; sharing < 3; sharing++) {
            const PartLayout layout = part_layout_random(&test_rng, &config, (ModelSharing)sharing);
            part_batch_random(&own, &test_rng, &config, 4, PART_BATCH_MAX_TOKENS);
            own.batch.token_keys = own.batch.dec_token_keys = NULL;
            part_chain_validate(&run, &one, &own.batch, whole);
            part_chain_validate(&run, &layout, &own.batch, parts);
            CHECK(worst_loss(parts, whole, own.batch.num_rows) <= LOSS_TOLERANCE);
        }
        free(params);
    }
}

// The likeliest token behind each prompt.
static void say(const PartRun* run, const PartLayout* layout, const ModelBatch* prompt, int32_t* next) {
    static const int32_t none[PART_BATCH_MAX_SEQS];
    const bool has_decoder = run->config->kind->has_decoder;
    int32_t slots[PART_BATCH_MAX_SEQS], num_enc[PART_BATCH_MAX_SEQS];
    for (int i = 0; i < prompt->num_seqs; i++) {
        slots[i] = i;
        num_enc[i] = prompt->cu_seqlens[i + 1] - prompt->cu_seqlens[i];
    }
    const ModelCache cache = {.num_slots = prompt->num_seqs,
                              .max_tokens = 64,
                              .max_enc_tokens = has_decoder ? 64 : 0,
                              .slots = slots,
                              .num_before = none,
                              .num_enc = num_enc};
    PartGeneration* g = part_generation_open(run, layout, &cache);
    part_generation_call(g, prompt, &cache, next);
    part_generation_close(g);
}

// Not in bf16, where logits that are equal by chance are not where products are cut otherwise.
static void answers_are_the_whole_models(void) {
    static PartBatch own;
    for (int k = 0; k < NUM_KINDS && sizeof(floatX) == sizeof(float); k++) {
        const ModelConfig config = config_of(k);
        const PartLayout one = whole_layout(&config);
        float* params = params_of(&config);
        const PartRun run = {&config, 0.0f, ops, params};
        for (int sharing = 1; sharing < 3; sharing++) {
            int32_t whole[PART_BATCH_MAX_SEQS], parts[PART_BATCH_MAX_SEQS];
            const PartLayout layout = part_layout_random(&test_rng, &config, (ModelSharing)sharing);
            part_batch_random(&own, &test_rng, &config, 4, 0);
            own.batch.token_keys = own.batch.dec_token_keys = NULL;
            say(&run, &one, &own.batch, whole);
            say(&run, &layout, &own.batch, parts);
            for (int i = 0; i < own.batch.num_seqs; i++) { CHECK_EQ(parts[i], whole[i]); }
        }
        free(params);
    }
}

int main(int argc, char** argv) {
    ops_test_begin(argc, argv);
    RUN(any_layout_is_the_whole_model);
    RUN(losses_alone_are_the_whole_models);
    RUN(answers_are_the_whole_models);
    return ops_test_end();
}
