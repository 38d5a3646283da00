// What planning rests on: how samples are grouped, padded or cut does not matter; what a job leaves out, it
// leaves out entirely. Random samples, memory full of NaN.
#include "../llmc/t5.h"

#include <math.h>

#include "../llmc/t5.h"
#include "t5_chain.h"
#include "test.h"

static uint64_t seed;
static OpsContext* ops;

static const double LOSS_TOLERANCE = 1e-6, GRAD_TOLERANCE = 1e-5;

// Odd numbers everywhere: channels that no vector fits, I > C, F that is no multiple of anything.
static const ModelConfig plain_config = {
    .kind = &t5_kind,
    .max_seq_len = 256,
    .vocab = 131,
    .padded_vocab = 256,
    .num_layers = 2,
    .num_dec_layers = 2,
    .channels = 26,
    .num_heads = 3,
    .head_size = 10,
    .ffn_channels = 46,
    .num_buckets = 32,
    .max_distance = 128,
    .tied_head = true,
};

static ModelConfig config_of(int variant) {
    ModelConfig config = plain_config;
    config.gated = variant & 1;
    config.tied_head = !(variant & 2);
    config.bias_per_layer = variant & 1 && !(variant & 2);
    return config;
}

static uint32_t draw(uint32_t limit) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % limit;
}

static T5Sample sample_random(int id, int percent_supervised) {
    return (T5Sample){.seed = seed,
                      .id = id,
                      .num_enc = 1 + (int)draw(draw(3) == 0 ? 160 : 30),
                      .num_dec = 1 + (int)draw(draw(3) == 0 ? 50 : 8),
                      .vocab = plain_config.vocab,
                      .percent_supervised = percent_supervised};
}

// A batch of these samples; padded: to the longest, and then some.
static void batch_of(T5Samples* out, const T5Sample* samples, int num_samples, bool padded) {
    int enc = 0, dec = 0;
    for (int i = 0; i < num_samples && padded; i++) {
        enc = samples[i].num_enc >= enc ? samples[i].num_enc + 1 : enc;
        dec = samples[i].num_dec >= dec ? samples[i].num_dec + 2 : dec;
    }
    t5_samples_begin(out);
    for (int i = 0; i < num_samples; i++) { t5_samples_add(out, &samples[i], enc, dec); }
}

// One sample at a time, all together, and padded to the longest (and then some): the same losses and
// gradients.
static void grouping_and_padding_change_nothing(void) {
    static T5Samples together, alone, padded;
    const int whole[] = {0, 4, 0}, cut[] = {0, 1, 3, 4, 0}, head_alone[] = {0, 2, 4, 4, 0};
    for (int round = 0; round < 4; round++) {
        const ModelConfig config = config_of(round);
        const int num_samples = 2 + (int)draw(5), percent = 30 + (int)draw(70);
        const int64_t num_params = model_num_params(&config);
        T5Sample samples[6];
        for (int i = 0; i < num_samples; i++) { samples[i] = sample_random(i, percent); }
        batch_of(&together, samples, num_samples, false);
        batch_of(&padded, samples, num_samples, true);
        CHECK(padded.batch.seq_lens != NULL && together.batch.seq_lens == NULL);
        const int R = together.batch.num_rows;
        together.batch.loss_scale = padded.batch.loss_scale = 1.0f / (float)R;
        float *losses[3], *grads[3];
        for (int k = 0; k < 3; k++) {
            losses[k] = t5_chain_zeros(R);
            grads[k] = t5_chain_zeros(num_params);
        }
        t5_chain_run(&config, 0.0f, &together.batch, whole, 0, losses[0], grads[0], ops);
        t5_chain_run(&config, 0.0f, &padded.batch, round % 2 ? cut : head_alone, T5_CHAIN_RECOMPUTE,
                     losses[1], grads[1], ops);
        int row = 0;
        for (int i = 0; i < num_samples; i++) {
            batch_of(&alone, &samples[i], 1, false);
            alone.batch.loss_scale = together.batch.loss_scale;
            t5_chain_run(&config, 0.0f, &alone.batch, round % 2 ? head_alone : cut, 0, losses[2] + row,
                         grads[2], ops);
            row += alone.batch.num_rows;
        }
        CHECK_EQ(row, R);
        for (int k = 1; k < 3; k++) {
            CHECK(t5_chain_worst_loss(losses[k], losses[0], R) < LOSS_TOLERANCE);
            CHECK(t5_chain_worst_grad(&config, grads[k], grads[0], ops) < GRAD_TOLERANCE);
        }
        for (int k = 0; k < 3; k++) {
            free(losses[k]);
            free(grads[k]);
        }
    }
}

// What lies in padding is seen by nobody: other tokens there give the same bits.
static void padding_may_hold_anything(void) {
    static T5Samples own;
    const ModelConfig config = config_of(2);
    const int cuts[] = {0, 1, 3, 4, 0};
    const int64_t num_params = model_num_params(&config);
    T5Sample samples[3];
    for (int i = 0; i < 3; i++) { samples[i] = sample_random(i, 100); }
    samples[0].num_enc = 31, samples[0].num_dec = 17;
    batch_of(&own, samples, 3, true);
    float *losses[2], *grads[2];
    for (int k = 0; k < 2; k++) {
        losses[k] = t5_chain_zeros(own.batch.num_rows);
        grads[k] = t5_chain_zeros(num_params);
        t5_chain_run(&config, 0.0f, &own.batch, cuts, 0, losses[k], grads[k], ops);
        for (int i = 0; i < 3; i++) {
            for (int t = own.cu_seqlens[i] + own.seq_lens[i]; t < own.cu_seqlens[i + 1]; t++) {
                own.tokens[t] = 7;
            }
            for (int t = own.dec_cu_seqlens[i] + own.dec_seq_lens[i]; t < own.dec_cu_seqlens[i + 1]; t++) {
                own.dec_tokens[t] = 9;
            }
        }
    }
    CHECK(memcmp(losses[0], losses[1], sizeof(float) * (size_t)own.batch.num_rows) == 0);
    CHECK(memcmp(grads[0], grads[1], sizeof(float) * (size_t)num_params) == 0);
    for (int k = 0; k < 2; k++) {
        free(losses[k]);
        free(grads[k]);
    }
}

// More rows than one chunk of logits holds: every loss is right, and row 0's logits are the ones left.
static void evaluation_in_chunks(void) {
    static T5Samples own;
    const ModelConfig config = config_of(0);
    t5_samples_begin(&own);
    for (int i = 0; i < 8; i++) {
        T5Sample sample = sample_random(i, 95);
        sample.num_dec += 20;
        t5_samples_add(&own, &sample, 0, 0);
    }
    const ModelBatch* batch = &own.batch;
    CHECK(batch->num_rows > 2 * 64);
    float *losses = t5_chain_zeros(batch->num_rows), *kept_losses = t5_chain_zeros(batch->num_rows);
    T5Stage stage;
    t5_stage_open(&stage, &config, 0, 4, true, 0.0f, batch, ops);
    model_forward(&stage.model, batch, NULL, NULL, stage.acts, stage.scratch, kept_losses,
                  MODEL_KEEP | MODEL_HEAD);
    CHECK(stage.model.last_logits == NULL);
    int64_t num_bytes = model_acts_bytes(&stage.model, batch, MODEL_HEAD);
    CHECK(num_bytes < model_acts_bytes(&stage.model, batch, MODEL_KEEP | MODEL_HEAD) / 2);
    free(stage.acts);
    stage.acts = t5_chain_poisoned(num_bytes);
    model_forward(&stage.model, batch, NULL, NULL, stage.acts, stage.scratch, losses, MODEL_HEAD);
    CHECK(t5_chain_worst_loss(losses, kept_losses, batch->num_rows) < LOSS_TOLERANCE);
    double sum = 0.0;
    for (int v = 0; v < config.vocab; v++) { sum += exp((double)stage.model.last_logits[v]); }
    CHECK_NEAR(log(sum) - (double)stage.model.last_logits[batch->targets[0]], losses[0], 1e-5);
    t5_stage_close(&stage);
    free(losses);
    free(kept_losses);
}

static void nothing_supervised_gives_zero_gradients(void) {
    static T5Samples own;
    const ModelConfig config = config_of(2);
    T5Sample samples[3];
    for (int i = 0; i < 3; i++) { samples[i] = sample_random(i, 0); }
    batch_of(&own, samples, 3, false);
    CHECK_EQ(own.batch.num_rows, 0);
    const int cuts[3][5] = {{0, 3, 4}, {0, 2, 4, 4}, {0, 4}};
    const int64_t num_params = model_num_params(&config);
    float *grads = t5_chain_zeros(num_params), loss = 5.0f;
    for (int i = 0; i < 3; i++) { t5_chain_run(&config, 0.0f, &own.batch, cuts[i], 0, &loss, grads, ops); }
    for (int64_t i = 0; i < num_params; i++) { CHECK(grads[i] == 0.0f); }
    CHECK(loss == 5.0f);
    free(grads);
}

// A step adds up micro-batches: gradients are added to what is there.
static void gradients_add_up(void) {
    static T5Samples own;
    const ModelConfig config = config_of(3);
    T5Sample sample = sample_random(1, 100);
    batch_of(&own, &sample, 1, false);
    T5Stage stage;
    t5_stage_open(&stage, &config, 0, 4, true, 0.0f, &own.batch, ops);
    float *losses = t5_chain_zeros(own.batch.num_rows), *once = t5_chain_zeros(stage.model.num_params);
    for (int k = 0; k < 2; k++) {
        model_forward(&stage.model, &own.batch, NULL, NULL, stage.acts, stage.scratch, losses,
                      MODEL_KEEP | MODEL_HEAD);
        model_backward_inputs(&stage.model, &own.batch, NULL, stage.acts, NULL, NULL, stage.scratch);
        model_backward_weights(&stage.model, &own.batch, stage.acts, NULL, stage.scratch);
        if (k == 0) { memcpy(once, stage.model.grads, sizeof *once * (size_t)stage.model.num_params); }
    }
    for (int64_t i = 0; i < stage.model.num_params; i++) { once[i] *= 2.0f; }
    CHECK(t5_chain_worst_grad(&config, stage.model.grads, once, ops) < GRAD_TOLERANCE);
    t5_stage_close(&stage);
    free(losses);
    free(once);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    ops = ops_create(0);
    RUN(grouping_and_padding_change_nothing);
    RUN(padding_may_hold_anything);
    RUN(evaluation_in_chunks);
    RUN(nothing_supervised_gives_zero_gradients);
    RUN(gradients_add_up);
    ops_free(ops);
    return test_end();
}
