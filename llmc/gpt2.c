// The slice's flat array has the tensors in checkpoint order, each with this slice's layers; for the whole
// model it is the body of a checkpoint.
#include "gpt2.h"

#include <assert.h>
#include <stdlib.h>

#include "llmc_error.h"

#define X(name, per_layer, rows, cols, decay) #name,
static const char* const tensor_names[GPT2_NUM_TENSORS] = {GPT2_TENSORS(X)};
#undef X

typedef struct {
    bool per_layer, decay;
    int64_t num_values;  // of one layer
} TensorShape;

static void fill_shapes(TensorShape shapes[GPT2_NUM_TENSORS], const Gpt2Config* config) {
    const int64_t C = config->channels, Vp = config->padded_vocab, maxT = config->max_seq_len;
#define X(name, is_per_layer, rows, cols, is_decayed) \
    shapes[GPT2_##name] =                             \
        (TensorShape){.per_layer = is_per_layer, .decay = is_decayed, .num_values = (rows) * (cols)};
    GPT2_TENSORS(X)
#undef X
}

static bool has_tensor(const Gpt2* model, Gpt2Tensor tensor) {
    switch (tensor) {
        case GPT2_wte: return model->is_first || model->is_last;
        case GPT2_wpe: return model->is_first;
        case GPT2_lnfw:
        case GPT2_lnfb: return model->is_last;
        default: return model->layer_begin < model->layer_end;
    }
}

static void make_slices(Gpt2* model) {
    TensorShape shapes[GPT2_NUM_TENSORS];
    fill_shapes(shapes, &model->config);
    int num_layers = model->layer_end - model->layer_begin;
    model->slices =
        llmc_alloc(sizeof *model->slices * (size_t)(GPT2_NUM_TENSORS * (num_layers + 1)), "tensor table");
    int64_t file_offset = 0;
    for (int t = 0; t < GPT2_NUM_TENSORS; t++) {
        const TensorShape* shape = &shapes[t];
        bool here = has_tensor(model, t);
        model->slice_idx[t] = here ? model->num_slices : -1;
        for (int l = 0; here && l < (shape->per_layer ? num_layers : 1); l++) {
            int layer = shape->per_layer ? model->layer_begin + l : -1;
            model->slices[model->num_slices++] = (Gpt2TensorSlice){
                .tensor = t,
                .layer = layer,
                .offset = model->num_params,
                .file_offset = file_offset + (layer > 0 ? layer : 0) * shape->num_values,
                .num_values = shape->num_values,
                .decay = shape->decay,
                .tied_copy = t == GPT2_wte && !model->is_first,
            };
            model->num_params += shape->num_values;
        }
        file_offset += (shape->per_layer ? model->config.num_layers : 1) * shape->num_values;
    }
}

void gpt2_init(Gpt2* model, Gpt2Config config, int layer_begin, int layer_end, bool is_last,
               OpsContext* ops) {
    assert(0 <= layer_begin && layer_begin <= layer_end && layer_end <= config.num_layers);
    assert(is_last ? layer_end == config.num_layers : layer_begin < layer_end);
    *model = (Gpt2){
        .config = config,
        .layer_begin = layer_begin,
        .layer_end = layer_end,
        .is_first = layer_begin == 0,
        .is_last = is_last,
        .ops = ops,
        .names = tensor_names,
    };
    make_slices(model);
    model->params = ops_alloc(ops, (size_t)model->num_params * sizeof(floatX), "parameters");
}

void gpt2_alloc_grads(Gpt2* model) {
    if (model->grads == NULL) {
        model->grads = ops_alloc(model->ops, (size_t)model->num_params * sizeof(float), "gradients");
    }
}

void gpt2_zero_grads(Gpt2* model) {
    ops_zero(model->ops, model->grads, (size_t)model->num_params * sizeof(float));
}

void gpt2_free(Gpt2* model) {
    if (model == NULL || model->ops == NULL) { return; }
    ops_release(model->ops, model->params);
    ops_release(model->ops, model->grads);
    free(model->slices);
    *model = (Gpt2){0};
}
