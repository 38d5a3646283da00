// Against Hugging Face (dev/golden_t5.py): logits, losses, every gradient, of each variant; and of every cut
// into slices, with and without recomputation, in any order of weights' gradients.
#include "../llmc/t5.h"

#include <math.h>

#include "../llmc/t5.h"
#include "t5_chain.h"
#include "test.h"

static OpsContext* ops;

// float32 sums of some hundred terms in another order. Reached: losses 4e-7, gradients 2e-6.
static const double LOSS_TOLERANCE = 1e-6, GRAD_TOLERANCE = 1e-5;

static void check_whole(const T5Golden* golden) {
    const ModelBatch* batch = &golden->batch;
    const int whole[] = {0, model_num_layers(&golden->config), 0};
    float *losses = t5_chain_zeros(batch->num_rows), *grads = t5_chain_zeros(golden->num_params);
    t5_chain_run(&golden->config, 0.0f, batch, whole, 0, losses, grads, ops);
    double loss_error = t5_chain_worst_loss(losses, golden->losses, batch->num_rows);
    double grad_error = t5_chain_worst_grad(&golden->config, grads, golden->grads, ops);
    printf("losses %.1e, gradients %.1e\n", loss_error, grad_error);
    CHECK(loss_error < LOSS_TOLERANCE);
    CHECK(grad_error < GRAD_TOLERANCE);
    // the tolerance is tight: a change of one gradient by 1 % of its tensor's largest is seen
    float largest = 0.0f;
    int64_t num_shared = (int64_t)golden->config.padded_vocab * golden->config.channels;
    for (int64_t i = 0; i < num_shared; i++) { largest = fmaxf(largest, fabsf(grads[i])); }
    grads[0] += 0.01f * largest;
    CHECK(t5_chain_worst_grad(&golden->config, grads, golden->grads, ops) > GRAD_TOLERANCE);
    free(losses);
    free(grads);
}

static void check_logits(const T5Golden* golden) {
    const ModelBatch* batch = &golden->batch;
    T5Stage stage;
    t5_stage_open(&stage, &golden->config, 0, model_num_layers(&golden->config), true, 0.0f, batch, ops);
    float* losses = t5_chain_zeros(batch->num_rows);
    free(stage.acts);
    stage.acts = t5_chain_poisoned(model_acts_bytes(&stage.model, batch, MODEL_HEAD));
    model_forward(&stage.model, batch, NULL, NULL, stage.acts, stage.scratch, losses, MODEL_HEAD);
    CHECK(t5_chain_worst_loss(losses, golden->losses, batch->num_rows) < LOSS_TOLERANCE);
    const int V = golden->config.vocab, Vp = golden->config.padded_vocab;
    double difference = 0.0, largest = 0.0;
    for (int i = 0; i < batch->num_rows; i++) {
        for (int v = 0; v < V; v++) {
            double theirs = golden->logits[i * V + v], ours = stage.model.last_logits[i * Vp + v];
            difference = isfinite(ours) ? fmax(difference, fabs(ours - theirs)) : INFINITY;
            largest = fmax(largest, fabs(theirs));
        }
    }
    CHECK(batch->num_rows <= 64);
    printf("logits up to %.2f, %.1e apart\n", largest, difference);
    CHECK(difference < 3e-6);
    t5_stage_close(&stage);
    free(losses);
}

static void hugging_face_agrees(void) {
    for (int i = 0; i < T5_NUM_GOLDENS; i++) {
        T5Golden golden;
        t5_golden_load(&golden, t5_golden_names[i]);
        printf("%s: ", t5_golden_names[i]);
        check_whole(&golden);
        check_logits(&golden);
        t5_golden_free(&golden);
    }
}

// Losses are the whole's bit for bit; gradients are Hugging Face's; recomputing gives the same bits of both.
static void check_cuts(const T5Golden* golden, const int* cuts, const float* whole_losses) {
    const ModelBatch* batch = &golden->batch;
    const int options[] = {0, T5_CHAIN_RECOMPUTE, T5_CHAIN_RECOMPUTE | T5_CHAIN_W_AT_ONCE};
    float *losses[3], *grads[3];
    for (int k = 0; k < 3; k++) {
        losses[k] = t5_chain_zeros(batch->num_rows);
        grads[k] = t5_chain_zeros(golden->num_params);
        t5_chain_run(&golden->config, 0.0f, batch, cuts, options[k], losses[k], grads[k], ops);
        CHECK(memcmp(losses[k], whole_losses, sizeof(float) * (size_t)batch->num_rows) == 0);
        CHECK(memcmp(grads[k], grads[0], sizeof(float) * (size_t)golden->num_params) == 0);
    }
    CHECK(t5_chain_worst_grad(&golden->config, grads[0], golden->grads, ops) < GRAD_TOLERANCE);
    for (int k = 0; k < 3; k++) {
        free(losses[k]);
        free(grads[k]);
    }
}

// Every cut in two (the last one: the head alone), each layer its own slice, and some between.
static void slices_make_the_whole(void) {
    for (int i = 0; i < T5_NUM_GOLDENS; i++) {
        T5Golden golden;
        t5_golden_load(&golden, t5_golden_names[i]);
        const int L = model_num_layers(&golden.config), Le = golden.config.num_layers;
        const int whole[] = {0, L, 0};
        float *losses = t5_chain_zeros(golden.batch.num_rows), *grads = t5_chain_zeros(golden.num_params);
        t5_chain_run(&golden.config, 0.0f, &golden.batch, whole, 0, losses, grads, ops);
        for (int cut = 1; cut <= L; cut++) {
            const int cuts[] = {0, cut, L, 0};
            check_cuts(&golden, cuts, losses);
        }
        int singles[T5_CHAIN_MAX_SLICES + 2] = {0};
        for (int l = 0; l <= L; l++) { singles[l] = l; }
        singles[L + 1] = L;
        check_cuts(&golden, singles, losses);
        const int both[] = {0, Le - 1, Le + 1, L, 0}, ends[] = {0, 1, Le, Le + 1, L, L, 0};
        check_cuts(&golden, both, losses);
        check_cuts(&golden, ends, losses);
        free(losses);
        free(grads);
        t5_golden_free(&golden);
    }
}

int main(void) {
    ops = ops_create(0);
    RUN(hugging_face_agrees);
    RUN(slices_make_the_whole);
    ops_free(ops);
    return test_end();
}
