#include "optimizer.h"

#include <stdlib.h>

#include "llmc_error.h"

void optimizer_init(Optimizer* optimizer, int64_t begin, int64_t end, float weight_decay) {
    size_t num_bytes = (size_t)(end - begin) * sizeof(float);
    *optimizer = (Optimizer){
        .begin = begin,
        .end = end,
        .m = llmc_alloc(num_bytes, "optimizer state"),
        .v = llmc_alloc(num_bytes, "optimizer state"),
        .beta1 = 0.9f,
        .beta2 = 0.95f,
        .eps = 1e-8f,
        .weight_decay = weight_decay,
    };
}

void optimizer_free(Optimizer* optimizer) {
    if (optimizer == NULL) { return; }
    free(optimizer->m);
    free(optimizer->v);
    *optimizer = (Optimizer){0};
}

// The part of a tensor that lies in the optimizer's range; false: none.
static bool intersect(const Optimizer* optimizer, const Gpt2TensorSlice* slice, int64_t* from, int64_t* to) {
    int64_t slice_end = slice->offset + slice->num_values;
    *from = slice->offset > optimizer->begin ? slice->offset : optimizer->begin;
    *to = slice_end < optimizer->end ? slice_end : optimizer->end;
    return *from < *to;
}

double optimizer_sum_of_squares(const Optimizer* optimizer, const Gpt2* model) {
    double sum = 0.0;
    for (int i = 0; i < model->num_slices; i++) {
        int64_t from, to;
        if (model->slices[i].tied_copy || !intersect(optimizer, &model->slices[i], &from, &to)) { continue; }
        sum += sum_of_squares(model->grads + from, (size_t)(to - from), model->ops);
    }
    return sum;
}

float optimizer_clip_scale(double norm, float max_norm) {
    return norm > (double)max_norm ? (float)((double)max_norm / norm) : 1.0f;
}

static void update_range(Optimizer* optimizer, Gpt2* model, int64_t from, int64_t to, bool decay, float lr,
                         int t, float grad_scale) {
    int64_t at = from - optimizer->begin;
    AdamwUpdate about = {.lr = lr,
                         .beta1 = optimizer->beta1,
                         .beta2 = optimizer->beta2,
                         .eps = optimizer->eps,
                         .weight_decay = decay ? optimizer->weight_decay : 0.0f,
                         .grad_scale = grad_scale,
                         .t = t};
    adamw_update(model->params + from, NULL, optimizer->m + at, optimizer->v + at, model->grads + from,
                 (size_t)(to - from), from, &about, model->ops);
}

// Neighbouring tensors that are treated alike are one call.
void optimizer_update(Optimizer* optimizer, Gpt2* model, float lr, int t, float grad_scale) {
    int64_t run_begin = optimizer->begin, run_end = optimizer->begin;
    bool run_decay = false;
    for (int i = 0; i < model->num_slices; i++) {
        int64_t from, to;
        if (!intersect(optimizer, &model->slices[i], &from, &to)) { continue; }
        if (model->slices[i].decay != run_decay && run_begin < run_end) {
            update_range(optimizer, model, run_begin, run_end, run_decay, lr, t, grad_scale);
            run_begin = from;
        }
        run_decay = model->slices[i].decay;
        run_end = to;
    }
    if (run_begin < run_end) {
        update_range(optimizer, model, run_begin, run_end, run_decay, lr, t, grad_scale);
    }
}
