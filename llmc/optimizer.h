/*
optimizer.h -- AdamW, learning rate schedules, and outlier detection: how many standard deviations a value is
above
the mean of the last 128 (llm.c's -sl and -sg).
*/
#pragma once

#include <math.h>
#include <stdbool.h>
#include "model.h"

enum { OUTLIER_WINDOW = 128 };

typedef struct {
    double values[OUTLIER_WINDOW];
    int num_values, next;
    double sum, sum_of_squares;
} Outlier;

// Adds a value; NaN until the window is full. A non-finite value is not added and gives NaN.
static inline double outlier_update(Outlier* detector, double value) {
    if (!isfinite(value)) { return NAN; }
    if (detector->num_values < OUTLIER_WINDOW) {
        detector->num_values++;
    } else {
        double oldest = detector->values[detector->next];
        detector->sum -= oldest;
        detector->sum_of_squares -= oldest * oldest;
    }
    detector->values[detector->next] = value;
    detector->next = (detector->next + 1) % OUTLIER_WINDOW;
    detector->sum += value;
    detector->sum_of_squares += value * value;
    if (detector->num_values < OUTLIER_WINDOW) { return NAN; }
    double mean = detector->sum / (double)OUTLIER_WINDOW;
    double variance = detector->sum_of_squares / (double)OUTLIER_WINDOW - mean * mean;
    double deviation = variance > 0 ? sqrt(variance) : 0;
    return deviation == 0 ? 0 : (value - mean) / deviation;
}

// --- learning rates ----------------------------------------------------------------------------------------
/*
Llm.c's learning rates over the steps of a run.

    warm-up, s < u:   peak (s + 1) / u                              (not for constant)
    cosine            q peak + (1 + cos(pi x)) / 2 (1 - q) peak     x = (s - u) / (steps - u)
    linear            peak - x (1 - q) peak
    constant          peak
    wsd               peak up to 80 % of the steps, then q peak + (1 - sqrt(x)) (1 - q) peak   x: from there
to the end
*/

#ifdef __cplusplus
extern "C" {
#endif

typedef enum { LR_COSINE, LR_LINEAR, LR_CONSTANT, LR_WSD, LR_NUM_KINDS } LrKind;

typedef struct {
    LrKind kind;
    float peak;            // -l
    int warmup_steps;      // -u
    int num_steps;         // -x
    float final_fraction;  // -q: the last rate over the peak
} LrSchedule;

// "cosine" | "linear" | "constant" | "wsd"; false: `error` (256 characters) lists them.
bool lr_schedule_parse(LrKind* out, const char* name);

// The rate of step s = 0, 1, ...; steps after the last have the last's.
float lr_schedule_at(const LrSchedule* schedule, int step);

// --- optimizer ---------------------------------------------------------------------------------------------
/*
AdamW (Loshchilov, Hutter 2019; llm.c's form) over a range of a slice's flat parameters.

Scaled: a tensor's step is multiplied by the root mean square of its values, at least 1e-3, as in Adafactor
(Shazeer, Stern 2018, section 8: relative step sizes) but with Adam's moments (nanoT5: Nawrot 2023). T5 needs
it for training from scratch, because its embedding begins with a deviation of 1 and its matrices with far
less. Decay is not scaled. (Adafactor's moments are sums over rows and columns of whole matrices, which a
replica's range cuts.)

Moments are float32. With bf16 parameters, AdamW updates a float32 master of each, and the parameter is its
stochastic rounding (ops.h). The random bits depend on seed, update and the parameter's place in the whole
model, not on the rank.

With ZeRO 1 (Rajbhandari et al. 2020) each of R replicas has m and v only of its range [begin, end) and
updates those parameters; the caller gathers them. Weight decay applies only to matrices (TensorSlice.decay).
*/

typedef enum { OPTIMIZER_ADAMW, OPTIMIZER_ADAMW_SCALED } OptimizerKind;

// "adamw", "adamw-scaled". false: `error` lists them.
bool optimizer_parse(OptimizerKind* out, const char* name);

typedef struct {
    OpsContext* ops;     // borrowed
    int64_t begin, end;  // of the slice's flat array
    float *m, *v;        // (end - begin) first and second moment, of the device
    float* master;       // (end - begin) parameters; NULL if they are float32
    bool master_is_set;  // false: the first update copies the parameters
    OptimizerKind kind;
    float* scales;  // [model->num_slices] of the step of each, or NULL; host memory
    float beta1, beta2, eps, weight_decay;
    uint32_t seed;  // of stochastic rounding
} Optimizer;

// llm.c's betas 0.9, 0.95 and eps 1e-8; scaled: nanoT5's 0.9, 0.999 and 1e-6. 0 <= begin <= end <= num_params
// of the slice. m and v are zero.
void optimizer_init(Optimizer* optimizer, OptimizerKind kind, int64_t begin, int64_t end, float weight_decay,
                    uint32_t seed, OpsContext* ops);
// Like another one, for another range, with uninitialised values.
void optimizer_init_raw(Optimizer* optimizer, const Optimizer* like, int64_t begin, int64_t end);
void optimizer_free(Optimizer* optimizer);  // before its ops
// Copies the parameters to the master (if there is one) unless that has been done.
void optimizer_set_master(Optimizer* optimizer, const Model* model);

// Sum of squares of the gradients in the range, without tied copies: the sum over all ranks' ranges is the
// square of the whole model's norm, after the gradients of tied tensors have been summed.
double optimizer_sum_of_squares(const Optimizer* optimizer, const Model* model);

// min(1, max_norm / norm), 1 with max_norm 0; llm.c clips at 1.
float optimizer_clip_scale(double norm, float max_norm);

// t: this update's number, from 1. Gradients are multiplied by grad_scale first.
void optimizer_update(Optimizer* optimizer, Model* model, float lr, int t, float grad_scale);

// Scaled: before each update, squares[model_num_tensors()] of the range's parameters by tensor of the whole
// model, without tied copies. The caller sums them over all ranges and calls optimizer_set_scales().
void optimizer_param_squares(Optimizer* optimizer, const Model* model, double* squares);
void optimizer_set_scales(Optimizer* optimizer, const Model* model, const double* squares);

#ifdef __cplusplus
}
#endif
