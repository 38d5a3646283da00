// Dropout falls at T5's places, by bits that Hugging Face's model was given too (dev/golden_t5.py); grouping,
// slices and recomputation do not change which; the gradient is that of the loss with these bits.
#include "../llmc/t5.h"

#include <math.h>

#include "../llmc/t5.h"
#include "t5_chain.h"
#include "test.h"

static uint64_t seed;
static OpsContext* ops;

static const double LOSS_TOLERANCE = 1e-6, GRAD_TOLERANCE = 1e-5;

static uint32_t draw(uint32_t limit) {
    seed = seed * 6364136223846793005u + 1442695040888963407u;
    return (uint32_t)(seed >> 33) % limit;
}

static void hugging_face_agrees(void) {
    for (int i = 0; i < T5_NUM_GOLDENS; i++) {
        T5Golden golden;
        t5_golden_load(&golden, t5_golden_names[i]);
        const int whole[] = {0, model_num_layers(&golden.config), 0};
        const int R = golden.batch.num_rows;
        float *losses = t5_chain_zeros(R), *grads = t5_chain_zeros(golden.num_params);
        t5_chain_run(&golden.config, T5_GOLDEN_DROPOUT, &golden.batch, whole, 0, losses, grads, ops);
        double error = t5_chain_worst_loss(losses, golden.dropped_losses, R);
        printf("%s: losses %.1e\n", t5_golden_names[i], error);
        CHECK(error < LOSS_TOLERANCE);
        CHECK(t5_chain_worst_loss(losses, golden.losses, R) > 0.01);
        free(losses);
        free(grads);
        t5_golden_free(&golden);
    }
}

// Losses bit for bit, gradients up to the order of sums, of every cut in two and of single layers; recomputed
// and not.
static void slices_and_recomputation_keep_the_bits(void) {
    for (int i = 0; i < T5_NUM_GOLDENS; i++) {
        T5Golden golden;
        t5_golden_load(&golden, t5_golden_names[i]);
        const int L = model_num_layers(&golden.config), R = golden.batch.num_rows;
        const int whole[] = {0, L, 0};
        float *losses = t5_chain_zeros(R), *grads = t5_chain_zeros(golden.num_params);
        t5_chain_run(&golden.config, 0.1f, &golden.batch, whole, 0, losses, grads, ops);
        for (int cut = 1; cut <= L + 1; cut++) {
            int cuts[T5_CHAIN_MAX_SLICES + 2] = {0, cut, L};
            for (int l = 0; cut > L && l <= L + 1; l++) { cuts[l] = l < L ? l : L; }
            float *losses_cut = t5_chain_zeros(R), *grads_cut = t5_chain_zeros(golden.num_params);
            t5_chain_run(&golden.config, 0.1f, &golden.batch, cuts,
                         cut % 2 ? T5_CHAIN_RECOMPUTE : T5_CHAIN_W_AT_ONCE, losses_cut, grads_cut, ops);
            CHECK(memcmp(losses, losses_cut, sizeof *losses * (size_t)R) == 0);
            CHECK(t5_chain_worst_grad(&golden.config, grads_cut, grads, ops) < GRAD_TOLERANCE);
            free(losses_cut);
            free(grads_cut);
        }
        free(losses);
        free(grads);
        t5_golden_free(&golden);
    }
}

static const ModelConfig small_config = {
    .kind = &t5_kind,
    .max_seq_len = 64,
    .vocab = 61,
    .padded_vocab = 128,
    .num_layers = 1,
    .num_dec_layers = 2,
    .channels = 18,
    .num_heads = 2,
    .head_size = 8,
    .ffn_channels = 30,
    .num_buckets = 32,
    .max_distance = 128,
    .tied_head = true,
};

static ModelConfig config_of(int variant) {
    ModelConfig config = small_config;
    config.gated = variant & 1;
    config.tied_head = !(variant & 1);
    config.bias_per_layer = variant & 1;
    return config;
}

// A sample's tokens fall alike whatever is in the micro-batch with it, padding too.
static void grouping_changes_nothing(void) {
    static T5Samples together, alone, padded;
    const int whole[] = {0, 3, 0}, cut[] = {0, 1, 2, 3, 0};
    for (int round = 0; round < 2; round++) {
        const ModelConfig config = config_of(round);
        const int64_t num_params = model_num_params(&config);
        T5Sample samples[4];
        t5_samples_begin(&together);
        t5_samples_begin(&padded);
        for (int i = 0; i < 4; i++) {
            samples[i] = (T5Sample){seed, i, 1 + (int)draw(40), 1 + (int)draw(12), config.vocab, 80};
            t5_samples_add(&together, &samples[i], 0, 0);
            t5_samples_add(&padded, &samples[i], 40, 12);
        }
        const int R = together.batch.num_rows;
        float *losses[3], *grads[3];
        for (int k = 0; k < 3; k++) {
            losses[k] = t5_chain_zeros(R);
            grads[k] = t5_chain_zeros(num_params);
        }
        t5_chain_run(&config, 0.2f, &together.batch, whole, 0, losses[0], grads[0], ops);
        t5_chain_run(&config, 0.2f, &padded.batch, cut, T5_CHAIN_RECOMPUTE, losses[1], grads[1], ops);
        for (int i = 0, row = 0; i < 4; i++) {
            t5_samples_begin(&alone);
            t5_samples_add(&alone, &samples[i], 0, 0);
            t5_chain_run(&config, 0.2f, &alone.batch, cut, 0, losses[2] + row, grads[2], ops);
            row += alone.batch.num_rows;
        }
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

static double loss_of(T5Stage* stage, const ModelBatch* batch) {
    float* losses = t5_chain_zeros(batch->num_rows);
    model_forward(&stage->model, batch, NULL, NULL, stage->acts, stage->scratch, losses,
                  MODEL_KEEP | MODEL_HEAD);
    double sum = 0.0;
    for (int i = 0; i < batch->num_rows; i++) { sum += (double)losses[i]; }
    free(losses);
    return sum / batch->num_rows;
}

// Tensor by tensor (of each layer): the loss's slope along the gradient is the gradient's length.
// (Small steps: each ReLU that turns on the way counts as an error.)
static void gradients_are_slopes(void) {
    static T5Samples own;
    for (int variant = 0; variant < 2; variant++) {
        const ModelConfig config = config_of(variant);
        t5_samples_begin(&own);
        for (int i = 0; i < 6; i++) {
            const T5Sample sample = {seed, i, 3 + (int)draw(30), 4 + (int)draw(12), config.vocab, 100};
            t5_samples_add(&own, &sample, 0, 0);
        }
        own.batch.loss_scale = 1.0f / (float)own.batch.num_rows;
        T5Stage stage;
        t5_stage_open(&stage, &config, 0, 3, true, 0.2f, &own.batch, ops);
        Model* model = &stage.model;
        loss_of(&stage, &own.batch);
        model_backward_inputs(model, &own.batch, NULL, stage.acts, NULL, NULL, stage.scratch);
        model_backward_weights(model, &own.batch, stage.acts, NULL, stage.scratch);
        for (int i = 0; i < model->num_slices; i++) {
            const TensorSlice* slice = &model->slices[i];
            float *p = model->params + slice->offset, *g = model->grads + slice->offset;
            double squares = 0.0;
            for (int64_t j = 0; j < slice->num_values; j++) { squares += (double)g[j] * (double)g[j]; }
            const double length = sqrt(squares), step = 6e-5 / fmax(length, 0.01);
            double loss[2];
            float* saved = t5_chain_zeros(slice->num_values);
            memcpy(saved, p, sizeof *p * (size_t)slice->num_values);
            for (int side = 0; side < 2; side++) {
                for (int64_t j = 0; j < slice->num_values; j++) {
                    p[j] = saved[j] + (float)((side ? step : -step) * (double)g[j] / length);
                }
                loss[side] = loss_of(&stage, &own.batch);
            }
            memcpy(p, saved, sizeof *p * (size_t)slice->num_values);
            free(saved);
            const double slope = (loss[1] - loss[0]) / (2.0 * step);
            if (!(fabs(slope - length) < 0.03 * length + 3e-5)) {
                printf("%s %d: slope %.5f, gradient %.5f\n", t5_kind.tensor(&config, slice->tensor).name,
                       slice->layer, slope, length);
                CHECK(false);
            }
        }
        t5_stage_close(&stage);
    }
}

// No two dropouts of a model share a place.
static void places_are_unique(void) {
    bool is_taken[100] = {false};
    for (int layer = 0; layer < small_config.num_layers + small_config.num_dec_layers; layer++) {
        const bool is_dec = layer >= small_config.num_layers;
        for (int drop = 0; drop < (int)MODEL_DROPS_PER_LAYER; drop++) {
            uint32_t place =
                model_drop_place(&small_config, is_dec, layer - is_dec * small_config.num_layers, drop);
            CHECK(place < 100 && !is_taken[place]);
            is_taken[place] = true;
        }
    }
    for (int k = 0; k < 4; k++) {
        uint32_t place =
            model_drop_place_outside(&small_config, k & 1, k & 2 ? MODEL_DROP_END : MODEL_DROP_EMBEDDING);
        CHECK(place < 100 && !is_taken[place]);
        is_taken[place] = true;
    }
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    ops = ops_create(0);
    RUN(hugging_face_agrees);
    RUN(slices_and_recomputation_keep_the_bits);
    RUN(grouping_changes_nothing);
    RUN(gradients_are_slopes);
    RUN(places_are_unique);
    ops_free(ops);
    return test_end();
}
