// AdamW against the textbook in double; shards of replicas against the whole.
#include "../llmc/optimizer.h"

#include <math.h>

#include "model_golden.h"
#include "test.h"

static OpsContext* ops;
static const ModelConfig config = {.kind = &gpt2_kind,
                                   .max_seq_len = 20,
                                   .vocab = 50,
                                   .num_layers = 2,
                                   .num_heads = 2,
                                   .channels = 12,
                                   .padded_vocab = 64,
                                   .ffn_channels = 48,
                                   .norm_eps = 10000,
                                   .tied_head = 1};

static void open_model(Model* model) {
    model_init(model, &config, 0, model_num_blocks(&config), true, ops);
    model_alloc_grads(model);
    model_golden_params(model);
}

static void fill_grads(Model* model, int t) {
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        for (int64_t j = 0; j < slice->num_values; j++) {
            model->grads[slice->offset + j] =
                (float)sin((double)((slice->file_offset + j) * (t + 3))) * 0.01f;
        }
    }
}

// Biases and norms are not decayed, matrices and embeddings are.
static bool is_matrix(Gpt2Tensor tensor) {
    const Gpt2Tensor matrices[] = {GPT2_wte, GPT2_wpe, GPT2_qkvw, GPT2_attprojw, GPT2_fcw, GPT2_fcprojw};
    for (int i = 0; i < 6; i++) {
        if (tensor == matrices[i]) { return true; }
    }
    return false;
}

// Scaled: a step times the root mean square of the tensor's values (nanoT5's AdamWScale), at least 1e-3.
static double textbook_scale(OptimizerKind kind, const double* params, const TensorSlice* slice) {
    if (kind == OPTIMIZER_ADAMW) { return 1.0; }
    double sum = 0.0;
    for (int64_t j = slice->offset; j < slice->offset + slice->num_values; j++) {
        sum += params[j] * params[j];
    }
    return fmax(1e-3, sqrt(sum / (double)slice->num_values));
}

static void scale_steps(Optimizer* shards, int num_shards, const Model* model) {
    if (shards[0].kind == OPTIMIZER_ADAMW) { return; }
    int num_tensors = model_num_tensors(&model->config);
    double *sums = calloc((size_t)num_tensors, sizeof *sums),
           *of_shard = calloc((size_t)num_tensors, sizeof *sums);
    for (int r = 0; r < num_shards; r++) {
        optimizer_param_squares(&shards[r], model, of_shard);
        for (int i = 0; i < num_tensors; i++) { sums[i] += of_shard[i]; }
    }
    for (int r = 0; r < num_shards; r++) { optimizer_set_scales(&shards[r], model, sums); }
    free(sums);
    free(of_shard);
}

static void adamw_is_the_textbooks_of(OptimizerKind kind) {
    const bool scaled = kind == OPTIMIZER_ADAMW_SCALED;
    const double lr = 1e-2, decay = 0.1, beta1 = 0.9, beta2 = scaled ? 0.999 : 0.95,
                 eps = scaled ? 1e-6 : 1e-8;
    const double clip = 0.5;
    Model model;
    open_model(&model);
    size_t n = (size_t)model.num_params;
    double *params = calloc(n, sizeof *params), *m = calloc(n, sizeof *m), *v = calloc(n, sizeof *v);
    for (size_t i = 0; i < n; i++) { params[i] = (double)model.params[i]; }
    Optimizer optimizer;
    optimizer_init(&optimizer, kind, 0, model.num_params, (float)decay, 42, ops);
    for (int t = 1; t <= 5; t++) {
        fill_grads(&model, t);
        scale_steps(&optimizer, 1, &model);
        optimizer_update(&optimizer, &model, (float)lr, t, (float)clip);
        for (int i = 0; i < model.num_slices; i++) {
            const TensorSlice* slice = &model.slices[i];
            double scale = textbook_scale(kind, params, slice);
            for (int64_t j = slice->offset; j < slice->offset + slice->num_values; j++) {
                double g = (double)model.grads[j] * clip;
                m[j] = beta1 * m[j] + (1.0 - beta1) * g;
                v[j] = beta2 * v[j] + (1.0 - beta2) * g * g;
                double step = m[j] / (1.0 - pow(beta1, t)) / (sqrt(v[j] / (1.0 - pow(beta2, t))) + eps);
                params[j] -= lr * (scale * step + (is_matrix(slice->tensor) ? decay : 0.0) * params[j]);
            }
        }
        // 5 steps of at most lr each, in float32
        for (size_t i = 0; i < n; i++) { CHECK_NEAR(model.params[i], params[i], 1e-6); }
    }
    optimizer_free(&optimizer);
    model_free(&model);
    free(params);
    free(m);
    free(v);
}

static void adamw_is_the_textbooks(void) {
    adamw_is_the_textbooks_of(OPTIMIZER_ADAMW);
    adamw_is_the_textbooks_of(OPTIMIZER_ADAMW_SCALED);
}

// Replicas that each update a third end with the same bits as one that updates all. (Scaled: sums of squares
// are of shards, so but for the rounding of their scales.)
static void shards_make_the_whole_of(OptimizerKind kind) {
    Model whole, sharded;
    open_model(&whole);
    open_model(&sharded);
    Optimizer all, shards[3];
    optimizer_init(&all, kind, 0, whole.num_params, 0.1f, 42, ops);
    for (int r = 0; r < 3; r++) {
        optimizer_init(&shards[r], kind, whole.num_params * r / 3, whole.num_params * (r + 1) / 3, 0.1f, 42,
                       ops);
    }
    for (int t = 1; t <= 3; t++) {
        fill_grads(&whole, t);
        fill_grads(&sharded, t);
        scale_steps(&all, 1, &whole);
        scale_steps(shards, 3, &sharded);
        optimizer_update(&all, &whole, 1e-3f, t, 1.0f);
        double sum = 0.0;
        for (int r = 0; r < 3; r++) {
            sum += optimizer_sum_of_squares(&shards[r], &sharded);
            optimizer_update(&shards[r], &sharded, 1e-3f, t, 1.0f);
        }
        CHECK_NEAR(sum / optimizer_sum_of_squares(&all, &whole), 1.0, 1e-12);
    }
    float bound = kind == OPTIMIZER_ADAMW ? 0.0f : 1e-7f;
    for (int64_t i = 0; i < whole.num_params; i++) {
        CHECK(fabsf(sharded.params[i] - whole.params[i]) <= bound * fabsf(whole.params[i]));
    }
    optimizer_free(&all);
    for (int r = 0; r < 3; r++) { optimizer_free(&shards[r]); }
    model_free(&whole);
    model_free(&sharded);
}

static void shards_make_the_whole(void) {
    shards_make_the_whole_of(OPTIMIZER_ADAMW);
    shards_make_the_whole_of(OPTIMIZER_ADAMW_SCALED);
}

static void clipping(void) {
    CHECK(optimizer_clip_scale(0.5, 1.0f) == 1.0f);
    CHECK(optimizer_clip_scale(0.0, 1.0f) == 1.0f);
    CHECK(optimizer_clip_scale(4.0, 1.0f) == 0.25f);
}

int main(void) {
    ops = ops_create(0);
    RUN(adamw_is_the_textbooks);
    RUN(shards_make_the_whole);
    RUN(clipping);
    ops_free(ops);
    return test_end();
}
