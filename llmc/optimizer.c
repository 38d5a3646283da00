#include "optimizer.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>
#include "llmc_error.h"
#include "model.h"

static const char* const kind_names[LR_NUM_KINDS] = {"cosine", "linear", "constant", "wsd"};
static const double PI = 3.14159265358979323846;

bool lr_schedule_parse(LrKind* out, const char* name) {
    for (int kind = 0; kind < LR_NUM_KINDS; kind++) {
        if (strcmp(name, kind_names[kind]) == 0) {
            *out = (LrKind)kind;
            return true;
        }
    }
    return llmc_fail(
        "learning-rate schedule \"%.40s\" ---> use cosine, linear, constant or wsd; constant after "
        "a warm-up is -k linear -u STEPS -q 1",
        name);
}

// The progress of step from begin to end, 0 to 1.
static float progress(int step, int begin, int end) {
    if (step >= end) { return 1.0f; }
    return step <= begin ? 0.0f : (float)(step - begin) / (float)(end - begin);
}

float lr_schedule_at(const LrSchedule* schedule, int step) {
    const float peak = schedule->peak, last = peak * schedule->final_fraction;
    if (schedule->kind == LR_CONSTANT) { return peak; }
    if (step < schedule->warmup_steps) { return peak * (float)(step + 1) / (float)schedule->warmup_steps; }
    float x = progress(step, schedule->warmup_steps, schedule->num_steps);
    switch (schedule->kind) {
        case LR_COSINE: return last + 0.5f * (1.0f + cosf((float)(PI * (double)x))) * (peak - last);
        case LR_LINEAR: return peak - x * (peak - last);
        default: break;
    }
    int decay_begin = (int)(0.8f * (float)schedule->num_steps);
    if (step < decay_begin) { return peak; }
    return last + (1.0f - sqrtf(progress(step, decay_begin, schedule->num_steps))) * (peak - last);
}

// --- optimizer ---------------------------------------------------------------------------------------------

static const bool HAS_MASTER = sizeof(floatX) < sizeof(float);

bool optimizer_parse(OptimizerKind* out, const char* name) {
    static const char* const names[] = {"adamw", "adamw-scaled"};
    for (int i = 0; i < 2; i++) {
        if (strcmp(name, names[i]) == 0) {
            *out = (OptimizerKind)i;
            return true;
        }
    }
    return llmc_fail(
        "'%.40s' is no optimizer ---> adamw (transformers' adamw_torch), or adamw-scaled (for T5 from "
        "scratch, in place of Adafactor)",
        name);
}

void optimizer_init(Optimizer* optimizer, OptimizerKind kind, int64_t begin, int64_t end, float weight_decay,
                    uint32_t seed, OpsContext* ops) {
    bool scaled = kind == OPTIMIZER_ADAMW_SCALED;
    size_t num_bytes = (size_t)(end - begin) * sizeof(float);
    *optimizer = (Optimizer){
        .ops = ops,
        .begin = begin,
        .end = end,
        .m = ops_alloc(ops, num_bytes, "optimizer state"),
        .v = ops_alloc(ops, num_bytes, "optimizer state"),
        .master = HAS_MASTER ? ops_alloc(ops, num_bytes, "float32 parameters") : NULL,
        .kind = kind,
        .beta1 = 0.9f,
        .beta2 = scaled ? 0.999f : 0.95f,
        .eps = scaled ? 1e-6f : 1e-8f,
        .weight_decay = weight_decay,
        .seed = seed,
    };
}

void optimizer_init_raw(Optimizer* optimizer, const Optimizer* like, int64_t begin, int64_t end) {
    size_t num_bytes = (size_t)(end - begin) * sizeof(float);
    *optimizer = *like;
    optimizer->begin = begin;
    optimizer->end = end;
    optimizer->scales = NULL;  // set before each update
    optimizer->m = ops_alloc_raw(like->ops, num_bytes, "optimizer state");
    optimizer->v = ops_alloc_raw(like->ops, num_bytes, "optimizer state");
    if (HAS_MASTER) { optimizer->master = ops_alloc_raw(like->ops, num_bytes, "float32 parameters"); }
}

void optimizer_free(Optimizer* optimizer) {
    if (optimizer == NULL || optimizer->ops == NULL) { return; }
    ops_release(optimizer->ops, optimizer->m);
    ops_release(optimizer->ops, optimizer->v);
    ops_release(optimizer->ops, optimizer->master);
    free(optimizer->scales);
    *optimizer = (Optimizer){0};
}

void optimizer_set_master(Optimizer* optimizer, const Model* model) {
    if (optimizer->master == NULL || optimizer->master_is_set) { return; }
    values_to_floats(optimizer->master, model->params + optimizer->begin,
                     (size_t)(optimizer->end - optimizer->begin), optimizer->ops);
    optimizer->master_is_set = true;
}

// The part of a tensor in the optimizer's range; false: none.
static bool intersect(const Optimizer* optimizer, const TensorSlice* slice, int64_t* from, int64_t* to) {
    int64_t slice_end = slice->offset + slice->num_values;
    *from = slice->offset > optimizer->begin ? slice->offset : optimizer->begin;
    *to = slice_end < optimizer->end ? slice_end : optimizer->end;
    return *from < *to;
}

// One tensor at a time on a CPU; on a GPU, where each call waits for its result, adjacent ones together.
#ifdef LLMC_CUDA
static const bool JOIN_NORMS = true;
#else
static const bool JOIN_NORMS = false;
#endif

double optimizer_sum_of_squares(const Optimizer* optimizer, const Model* model) {
    double sum = 0.0;
    int64_t begin = 0, end = 0;
    for (int i = 0; i < model->num_slices; i++) {
        int64_t from, to;
        if (model->slices[i].tied_copy || !intersect(optimizer, &model->slices[i], &from, &to)) { continue; }
        if (!JOIN_NORMS || from != end) {
            if (begin < end) {
                sum += sum_of_squares(model->grads + begin, (size_t)(end - begin), model->ops);
            }
            begin = from;
        }
        end = to;
    }
    if (begin < end) { sum += sum_of_squares(model->grads + begin, (size_t)(end - begin), model->ops); }
    return sum;
}

float optimizer_clip_scale(double norm, float max_norm) {
    return max_norm > 0 && norm > (double)max_norm ? (float)((double)max_norm / norm) : 1.0f;
}

// Adjacent in the slice and in the file, with equal parameters: one call.
typedef struct {
    int64_t begin, end;   // in the flat array
    int64_t file_offset;  // of begin
    bool decay;
    float scale;  // of the step
} Run;

static void update_run(Optimizer* optimizer, Model* model, const Run* run, float lr, int t,
                       float grad_scale) {
    if (run->begin == run->end) { return; }
    int64_t at = run->begin - optimizer->begin;
    float weight_decay = run->decay ? optimizer->weight_decay : 0.0f;
    AdamwUpdate about = {.lr = lr * run->scale,
                         .beta1 = optimizer->beta1,
                         .beta2 = optimizer->beta2,
                         .eps = optimizer->eps,
                         .weight_decay = weight_decay / run->scale,  // cancels the scale: decay is not scaled
                         .grad_scale = grad_scale,
                         .t = t,
                         .seed = optimizer->seed +
                                 (uint32_t)t * 0x9e3779b9u};  // other random bits in every update
    float* master = optimizer->master != NULL ? optimizer->master + at : NULL;
    adamw_update(model->params + run->begin, master, optimizer->m + at, optimizer->v + at,
                 model->grads + run->begin, (size_t)(run->end - run->begin), run->file_offset, &about,
                 model->ops);
}

void optimizer_update(Optimizer* optimizer, Model* model, float lr, int t, float grad_scale) {
    Run run = {.begin = optimizer->begin, .end = optimizer->begin, .scale = 1};
    optimizer_set_master(optimizer, model);
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        int64_t from, to;
        if (!intersect(optimizer, slice, &from, &to)) { continue; }
        int64_t file_offset = slice->file_offset + from - slice->offset;
        float scale = optimizer->scales != NULL ? optimizer->scales[i] : 1.0f;
        bool joins = slice->decay == run.decay && scale == run.scale &&
                     file_offset == run.file_offset + run.end - run.begin;
        if (!joins) {
            update_run(optimizer, model, &run, lr, t, grad_scale);
            run = (Run){.begin = from, .file_offset = file_offset, .decay = slice->decay, .scale = scale};
        }
        run.end = to;
    }
    update_run(optimizer, model, &run, lr, t, grad_scale);
}

void optimizer_param_squares(Optimizer* optimizer, const Model* model, double* squares) {
    memset(squares, 0, sizeof *squares * (size_t)model_num_tensors(&model->config));
    optimizer_set_master(optimizer, model);
    // float32 parameters are their own master
    const float* master = optimizer->master != NULL ? optimizer->master - optimizer->begin
                                                    : (const float*)(const void*)model->params;
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        int64_t from, to;
        if (slice->tied_copy || !intersect(optimizer, slice, &from, &to)) { continue; }
        squares[model_tensor_number(&model->config, slice)] +=
            sum_of_squares(master + from, (size_t)(to - from), model->ops);
    }
}

void optimizer_set_scales(Optimizer* optimizer, const Model* model, const double* squares) {
    static const float LEAST_RMS = 1e-3f;
    if (optimizer->scales == NULL) {
        optimizer->scales = (float*)llmc_alloc(sizeof(float) * (size_t)model->num_slices, "scales");
    }
    for (int i = 0; i < model->num_slices; i++) {
        const TensorSlice* slice = &model->slices[i];
        double num_values = (double)model_tensor_values(&model->config, slice->tensor);
        double rms = sqrt(squares[model_tensor_number(&model->config, slice)] / num_values);
        optimizer->scales[i] = rms > (double)LEAST_RMS ? (float)rms : LEAST_RMS;
    }
}
