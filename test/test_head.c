// Laws of a model on several ranks with any ranges, and of the head shared among them by rows or by
// vocabulary: losses, gradients and answers are the whole model's, of every kind; with dropout, done again,
// without supervised tokens; and gradients are those of finite differences.
#include "../util/status.h"
#include "../llmc/gpt2.h"
#include "../llmc/t5.h"

#include <math.h>

#include "gpt2_golden.h"
#include "part_chain.h"
#include "t5_golden.h"
#include "test.h"

static OpsContext* ops;
static Rng rng;

static const double LOSS_TOLERANCE = 1e-6;

// float32 sums of up to some hundred terms in another order, through the layers; a few rows do not average
// out.
static double grad_tolerance(int num_rows) {
    return 1e-5 * (1.0 + 6.0 / (double)(num_rows + 1));
}

// --- models ------------------------------------------------------------------------------------------------

typedef struct {
    const ModelKind* kind;
    const char* descriptor;
} Kind;
static const Kind kinds[] = {
    {&gpt2_kind, "l4c36h3"},                // tied
    {&t5_kind, "t5:l2d3c48h3k16f40"},       // tied, scaled
    {&t5_kind, "flan-t5:l2d2c32h2k16f40"},  // a head of its own, gated
    {&t5_kind, "umt5:l1d2c32h2k16f40"},     // biases per layer
};
enum { NUM_KINDS = 4, VOCAB = 131 };

static ModelConfig config_of(int k) {
    ModelConfig config;
    if (!model_parse(&config, kinds[k].kind, kinds[k].descriptor, VOCAB, 64)) {
        printf("%s\n", status_message());
        exit(1);
    }
    return config;
}

static float* zeros(int64_t num_values) {
    return calloc((size_t)num_values + 1, sizeof(float));
}

// A whole model's values, as a checkpoint has them; free() them.
static float* params_of(const ModelConfig* config) {
    Model whole;
    model_init(&whole, config, 0, model_num_layers(config), true, ops);
    (config->kind == &gpt2_kind ? gpt2_golden_params : t5_golden_params)(&whole);
    float* params = zeros(whole.num_params);
    memcpy(params, whole.params, (size_t)whole.num_params * sizeof *params);
    model_free(&whole);
    return params;
}

static PartLayout whole_layout(const ModelConfig* config) {
    PartLayout layout = {.num_ranks = 1};
    layout.parts[0] = model_part(0, model_num_layers(config), true);
    return layout;
}

// --- comparing ---------------------------------------------------------------------------------------------

// Of any tensor, in units of its largest value, at least a twentieth of the largest of all: what is the small
// rest of larger terms (a bias table where there are few keys) has their rounding.
static double worst_grad(const ModelConfig* config, const float* a, const float* b) {
    Model whole;
    const ModelPart part = model_part(0, model_num_layers(config), true);
    model_init_counts(&whole, config, &part, ops);
    double worst = 0.0, most = 0.0;
    for (int64_t i = 0; i < model_num_params(config); i++) { most = fmax(most, fabs((double)b[i])); }
    for (int i = 0; i < whole.num_slices; i++) {
        double largest = most / 20.0, difference = 0.0;
        for (int64_t j = 0; j < whole.slices[i].num_values; j++) {
            const double x = (double)a[whole.slices[i].offset + j], y = (double)b[whole.slices[i].offset + j];
            largest = fmax(largest, fabs(y));
            difference = isfinite(x) ? fmax(difference, fabs(x - y)) : (double)INFINITY;
        }
        if (difference > 0.0) { worst = fmax(worst, difference / largest); }
    }
    model_free(&whole);
    return worst;
}

static double worst_loss(const float* a, const float* b, int num_rows) {
    double worst = 0.0;
    for (int i = 0; i < num_rows; i++) {
        const double error = fabs((double)a[i] - (double)b[i]) / (1.0 + fabs((double)b[i]));
        if (!(error <= worst)) { worst = isfinite(error) ? error : (double)INFINITY; }
    }
    return worst;
}

typedef struct {
    float losses[PART_BATCH_MAX_TOKENS], *grads;
} Result;

static Result train(const PartRun* run, const PartLayout* layout, const ModelBatch* batch, int options) {
    Result out = {.grads = zeros(model_num_params(run->config))};
    part_chain_train(run, layout, batch, options, out.losses, out.grads);
    return out;
}

// Against the whole model, and done again bit for bit.
static void check_layout(const PartRun* run, const PartLayout* layout, const ModelBatch* batch) {
    const PartLayout one = whole_layout(run->config);
    const int64_t num_params = model_num_params(run->config);
    Result whole = train(run, &one, batch, 0), parts = train(run, layout, batch, 0),
           again = train(run, layout, batch, PART_CHAIN_RECOMPUTE);
    const double loss = worst_loss(parts.losses, whole.losses, batch->num_rows);
    const double grad = worst_grad(run->config, parts.grads, whole.grads);
    if (getenv("HEAD_TEST_VERBOSE") != NULL) {
        printf("     %s rows %3d dropout %.1f sharing %d ranks %d: losses %.1e gradients %.1e\n",
               run->config->kind->name, batch->num_rows, (double)run->dropout,
               (int)layout->parts[0].head.sharing, layout->num_ranks, loss, grad);
    }
    CHECK(loss < LOSS_TOLERANCE);
    CHECK(grad < grad_tolerance(batch->num_rows));
    CHECK(memcmp(parts.losses, again.losses, (size_t)batch->num_rows * sizeof(float)) == 0);
    CHECK(memcmp(parts.grads, again.grads, (size_t)num_params * sizeof(float)) == 0);
    free(whole.grads);
    free(parts.grads);
    free(again.grads);
}

// --- laws --------------------------------------------------------------------------------------------------

// Any chunks on any ranks; shares of any length, some without rows, ids or targets.
static void any_layout_is_the_whole(void) {
    static PartBatch own;
    for (int k = 0; k < NUM_KINDS; k++) {
        const ModelConfig config = config_of(k);
        float* params = params_of(&config);
        for (int round = 0; round < 18; round++) {
            const ModelSharing sharing = (ModelSharing)(round % 3);
            const int most_rows = round < 12 ? PART_BATCH_MAX_TOKENS : rng_between(&rng, 0, 3);
            const PartRun run = {&config, round % 2 ? 0.2f : 0.0f, ops, params};
            const PartLayout layout = part_layout_random(&rng, &config, sharing);
            part_batch_random(&own, &rng, &config, rng_between(&rng, 1, PART_BATCH_MAX_SEQS), most_rows);
            check_layout(&run, &layout, &own.batch);
        }
        free(params);
    }
}

// Down the ranks and up again, embedding and head on one; T5's two stacks over the same ranks.
static PartLayout folded(const ModelConfig* config, ModelSharing sharing, const int32_t* places) {
    const int L = model_num_layers(config);
    PartLayout out = {.num_ranks = 2};
    const ModelEnd end = sharing == MODEL_HEAD_WHOLE ? MODEL_HAS_HEAD : MODEL_FEEDS_HEAD;
    out.parts[0] = (ModelPart){.num_ranges = 2, .ranges = {{0, 1}, {L - 1, L, end}}};
    out.parts[1] = (ModelPart){.num_ranges = 1, .ranges = {{1, L - 1}}};
    if (sharing != MODEL_HEAD_WHOLE) { part_layout_share(&out, config, sharing, places); }
    return out;
}

static void known_placements_are_the_whole(void) {
    static PartBatch own;
    const int32_t places[][3] = {{0, 512, 1024}, {0, 0, 1024}, {0, 1024, 1024}, {0, 100, 1024}};
    for (int k = 0; k < NUM_KINDS; k++) {
        const ModelConfig config = config_of(k);
        float* params = params_of(&config);
        const PartRun run = {&config, 0.1f, ops, params};
        part_batch_random(&own, &rng, &config, 4, PART_BATCH_MAX_TOKENS);
        PartLayout layout = folded(&config, MODEL_HEAD_WHOLE, NULL);
        check_layout(&run, &layout, &own.batch);
        for (int i = 0; i < 8; i++) {
            layout = folded(&config, i % 2 ? MODEL_HEAD_BY_ROWS : MODEL_HEAD_BY_VOCAB, places[i / 2]);
            check_layout(&run, &layout, &own.batch);
        }
        free(params);
    }
}

// All targets in one share's ids, first of the one and then of the other.
static void targets_may_all_be_one_shares(void) {
    static PartBatch own;
    const ModelConfig config = config_of(0);
    float* params = params_of(&config);
    const PartRun run = {&config, 0.0f, ops, params};
    const int32_t places[3] = {0, 256, 1024};
    const PartLayout layout = folded(&config, MODEL_HEAD_BY_VOCAB, places);
    const int edge = layout.parts[0].head.begin[1];
    CHECK(edge > 0 && edge < VOCAB);
    for (int s = 0; s < 2; s++) {
        part_batch_random(&own, &rng, &config, 3, PART_BATCH_MAX_TOKENS);
        for (int i = 0; i < own.batch.num_rows; i++) {
            own.targets[i] = s == 0 ? own.targets[i] % edge : edge + own.targets[i] % (VOCAB - edge);
        }
        check_layout(&run, &layout, &own.batch);
    }
    free(params);
}

static void nothing_supervised_gives_zero_gradients(void) {
    static PartBatch own;
    for (int k = 0; k < NUM_KINDS; k++) {
        const ModelConfig config = config_of(k);
        float* params = params_of(&config);
        const PartRun run = {&config, 0.1f, ops, params};
        for (int sharing = 1; sharing < 3; sharing++) {
            const PartLayout layout = part_layout_random(&rng, &config, (ModelSharing)sharing);
            part_batch_random(&own, &rng, &config, 3, 0);
            Result result = train(&run, &layout, &own.batch, 0);
            for (int64_t i = 0; i < model_num_params(&config); i++) { CHECK(result.grads[i] == 0.0f); }
            free(result.grads);
        }
        free(params);
    }
}

static void losses_alone_are_the_whole_models(void) {
    static PartBatch own;
    float whole[PART_BATCH_MAX_TOKENS], parts[PART_BATCH_MAX_TOKENS];
    for (int k = 0; k < NUM_KINDS; k++) {
        const ModelConfig config = config_of(k);
        const PartLayout one = whole_layout(&config);
        float* params = params_of(&config);
        const PartRun run = {&config, 0.0f, ops, params};
        for (int round = 0; round < 9; round++) {
            const PartLayout layout = part_layout_random(&rng, &config, (ModelSharing)(round % 3));
            do {  // more rows than logits are made of at a time
                part_batch_random(&own, &rng, &config, PART_BATCH_MAX_SEQS, PART_BATCH_MAX_TOKENS);
            } while (own.batch.num_rows <= 64);
            own.batch.token_keys = own.batch.dec_token_keys = NULL;
            part_chain_validate(&run, &one, &own.batch, whole);
            part_chain_validate(&run, &layout, &own.batch, parts);
            CHECK(worst_loss(parts, whole, own.batch.num_rows) < LOSS_TOLERANCE);
        }
        free(params);
    }
}

// Targets that are all but certain: what is left of the loss, and its gradient, to six digits.
static void small_losses_keep_their_digits(void) {
    enum { CERTAIN = 77 };
    static PartBatch own;
    const ModelConfig config = config_of(0);
    const int C = config.channels;
    float* params = params_of(&config);
    Model whole;
    model_init(&whole, &config, 0, model_num_layers(&config), true, ops);
    for (int c = 0; c < C; c++) {  // every normed row is of ones, so a logit is the sum of the matrix' row
        params[model_find(&whole, GPT2_lnfw, -1)->offset + c] = 0.0f;
        params[model_find(&whole, GPT2_lnfb, -1)->offset + c] = 1.0f;
        params[model_find(&whole, GPT2_wte, -1)->offset + CERTAIN * C + c] = 25.0f / (float)C;
    }
    model_free(&whole);
    const PartRun run = {&config, 0.0f, ops, params};
    const PartLayout one = whole_layout(&config);
    for (int sharing = 1; sharing < 3; sharing++) {
        part_batch_random(&own, &rng, &config, 2, PART_BATCH_MAX_TOKENS);
        for (int i = 0; i < own.batch.num_rows; i++) { own.targets[i] = CERTAIN; }
        const PartLayout layout = part_layout_random(&rng, &config, (ModelSharing)sharing);
        Result a = train(&run, &layout, &own.batch, 0), b = train(&run, &one, &own.batch, 0);
        for (int i = 0; i < own.batch.num_rows; i++) {
            CHECK(b.losses[i] > 0.0f && b.losses[i] < 1e-8f);
            CHECK_NEAR((double)(a.losses[i] / b.losses[i]), 1.0, 1e-5);
        }
        CHECK(worst_grad(&config, a.grads, b.grads) < 1e-5);
        free(a.grads);
        free(b.grads);
    }
    free(params);
}

// The loss falls along its gradient as fast as the gradient is long. (Not of ReLUs, which have kinks.)
static void gradients_are_those_of_finite_differences(void) {
    static PartBatch own;
    for (int k = 0; k < NUM_KINDS; k++) {
        const ModelConfig config = config_of(k);
        if (config.kind->has_decoder && !config.gated) { continue; }
        const int64_t num_params = model_num_params(&config);
        float *params = params_of(&config), *moved = params_of(&config), losses[PART_BATCH_MAX_TOKENS];
        const PartRun run = {&config, 0.0f, ops, params}, there = {&config, 0.0f, ops, moved};
        for (int sharing = 1; sharing < 3; sharing++) {
            const PartLayout layout = part_layout_random(&rng, &config, (ModelSharing)sharing);
            part_batch_random(&own, &rng, &config, 2, 20);
            Result result = train(&run, &layout, &own.batch, 0);
            double squares = 0.0, sums[2] = {0.0};
            for (int64_t i = 0; i < num_params; i++) {
                squares += (double)result.grads[i] * (double)result.grads[i];
            }
            const double length = sqrt(squares), step = 3e-4;
            for (int side = 0; side < 2; side++) {
                for (int64_t i = 0; i < num_params; i++) {
                    const double by = (double)result.grads[i] / length * (side == 0 ? step : -step);
                    moved[i] = (float)((double)params[i] + by);
                }
                part_chain_validate(&there, &layout, &own.batch, losses);
                for (int i = 0; i < own.batch.num_rows; i++) {
                    sums[side] += (double)losses[i] * (double)own.batch.loss_scale;
                }
            }
            CHECK_NEAR((sums[0] - sums[1]) / (2.0 * step) / length, 1.0, 1e-3);
            free(result.grads);
        }
        free(params);
        free(moved);
    }
}

// --- generation --------------------------------------------------------------------------------------------

enum { SLOTS = 4, ROUNDS = 4, MOST_TOKENS = 50 };

// The same sequences by one layout: what it says, ROUNDS tokens of each slot.
static void generate(const PartRun* run, const PartLayout* layout, const ModelBatch* prompt,
                     int32_t said[ROUNDS][SLOTS]) {
    const bool has_decoder = run->config->kind->has_decoder;
    int32_t slots[SLOTS], num_before[SLOTS] = {0}, num_enc[SLOTS], ones[SLOTS + 1], none[SLOTS + 1] = {0};
    int32_t positions[SLOTS];
    ModelCache cache = {.num_slots = SLOTS,
                        .max_tokens = MOST_TOKENS,
                        .max_enc_tokens = has_decoder ? MOST_TOKENS : 0,
                        .slots = slots,
                        .num_before = num_before,
                        .num_enc = num_enc};
    for (int s = 0; s <= SLOTS; s++) { ones[s] = s; }
    for (int s = 0; s < SLOTS; s++) {
        slots[s] = SLOTS - 1 - s;
        num_enc[s] = prompt->cu_seqlens[s + 1] - prompt->cu_seqlens[s];
    }
    PartGeneration* g = part_generation_open(run, layout, &cache);
    ModelBatch batch = *prompt;
    for (int round = 0; round < ROUNDS; round++) {
        part_generation_call(g, &batch, &cache, said[round]);
        const int32_t* cu = has_decoder ? batch.dec_cu_seqlens : batch.cu_seqlens;
        for (int s = 0; s < SLOTS; s++) {
            num_before[s] += cu[s + 1] - cu[s];
            positions[s] = num_before[s];
        }
        if (has_decoder) {
            batch.num_tokens = 0;
            batch.cu_seqlens = none;
            batch.num_dec_tokens = SLOTS;
            batch.dec_cu_seqlens = ones;
            batch.dec_tokens = said[round];
        } else {
            batch.num_tokens = SLOTS;
            batch.cu_seqlens = ones;
            batch.tokens = said[round];
            batch.positions = positions;
        }
    }
    part_generation_close(g);
}

static void answers_are_the_whole_models(void) {
    static PartBatch own;
    int num_different = 0;
    for (int k = 0; k < NUM_KINDS; k++) {
        const ModelConfig config = config_of(k);
        const PartLayout one = whole_layout(&config);
        float* params = params_of(&config);
        const PartRun run = {&config, 0.0f, ops, params};
        for (int round = 0; round < 6; round++) {
            int32_t whole[ROUNDS][SLOTS], parts[ROUNDS][SLOTS];
            part_batch_random(&own, &rng, &config, SLOTS, 0);
            own.batch.token_keys = own.batch.dec_token_keys = NULL;
            const PartLayout layout = part_layout_random(&rng, &config, (ModelSharing)(round % 3));
            generate(&run, &one, &own.batch, whole);
            generate(&run, &layout, &own.batch, parts);
            for (int i = 0; i < ROUNDS; i++) {
                for (int s = 0; s < SLOTS; s++) {
                    CHECK_EQ(parts[i][s], whole[i][s]);
                    num_different += whole[i][s] != whole[0][0];
                }
            }
        }
        free(params);
    }
    CHECK(num_different > 100);  // not one answer to everything
}

int main(int argc, char** argv) {
    rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(0);
    RUN(any_layout_is_the_whole);
    RUN(known_placements_are_the_whole);
    RUN(targets_may_all_be_one_shares);
    RUN(nothing_supervised_gives_zero_gradients);
    RUN(losses_alone_are_the_whole_models);
    RUN(small_losses_keep_their_digits);
    RUN(gradients_are_those_of_finite_differences);
    RUN(answers_are_the_whole_models);
    ops_free(ops);
    return test_end();
}
