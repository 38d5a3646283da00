/*
norms.c -- layer normalisation (Ba, Kiros, Hinton 2016) and RMS norm over rows, with a fused residual
addition.

    y = (x - mean) rstd w + b,   rstd = 1 / sqrt(var + eps)
    dx = rstd (g - mean(g) - xhat mean(g xhat)),   g = dy w,   xhat = (x - mean) rstd

A row (C floats) stays in the first-level cache for three passes. Gradients of w and b are column sums: every
thread owns whole cache lines of columns and adds rows in order, so the result does not depend on the number
of threads.
*/
#include <math.h>
#include <string.h>
#include "context.h"

static void layernorm_row(floatX* restrict out, float* mean, float* rstd, const floatX* restrict x,
                          const floatX* restrict weight, const floatX* restrict bias, float eps, int C) {
    float sum = 0.0f, squares = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int c = 0; c < C; c++) { sum += x[c]; }
    const float m = sum / (float)C;
#pragma omp simd reduction(+ : squares)
    for (int c = 0; c < C; c++) { squares += (x[c] - m) * (x[c] - m); }
    const float r = 1.0f / sqrtf(squares / (float)C + eps);
#pragma omp simd
    for (int c = 0; c < C; c++) { out[c] = (x[c] - m) * r * weight[c] + bias[c]; }
    *mean = m;
    *rstd = r;
}

void layernorm_forward(floatX* out, float* mean, float* rstd, const floatX* inp, const floatX* weight,
                       const floatX* bias, float eps, int T, int C, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)C;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int t = 0; t < T; t++) {
        const size_t row = (size_t)t * (size_t)C;
        layernorm_row(out + row, mean + t, rstd + t, inp + row, weight, bias, eps, C);
    }
}

void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                                const floatX* b, const floatX* weight, const floatX* bias, float eps, int T,
                                int C, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)C;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int t = 0; t < T; t++) {
        const size_t row = (size_t)t * (size_t)C;
        floatX* r = residual + row;  // may be a or b
#pragma omp simd
        for (int c = 0; c < C; c++) { r[c] = a[row + (size_t)c] + b[row + (size_t)c]; }
        layernorm_row(out + row, mean + t, rstd + t, r, weight, bias, eps, C);
    }
}

void residual_forward(floatX* out, const floatX* a, const floatX* b, size_t num_values, OpsContext* ops) {
#pragma omp parallel for simd num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (size_t i = 0; i < num_values; i++) { out[i] = a[i] + b[i]; }
}

enum { LAYERNORM_COLUMNS = 32, LAYERNORM_ROWS = 64 };

// dweight and dbias of up to LAYERNORM_COLUMNS columns from `begin`; float over LAYERNORM_ROWS rows, double
// over blocks of rows, so the error does not grow with T.
static void layernorm_backward_columns(floatX* dweight, floatX* dbias, const floatX* dout, const floatX* inp,
                                       const float* mean, const float* rstd, int T, int C, int begin,
                                       int num) {
    double dw_total[LAYERNORM_COLUMNS] = {0}, db_total[LAYERNORM_COLUMNS] = {0};
    for (int t0 = 0; t0 < T; t0 += LAYERNORM_ROWS) {
        const int t1 = t0 + LAYERNORM_ROWS < T ? t0 + LAYERNORM_ROWS : T;
        float dw[LAYERNORM_COLUMNS] = {0}, db[LAYERNORM_COLUMNS] = {0};
        for (int t = t0; t < t1; t++) {
            const floatX* d = dout + (size_t)t * (size_t)C + begin;
            const floatX* x = inp + (size_t)t * (size_t)C + begin;
            const float m = mean[t], r = rstd[t];
            if (num == LAYERNORM_COLUMNS) {
#pragma omp simd
                for (int c = 0; c < LAYERNORM_COLUMNS; c++) {
                    dw[c] += d[c] * ((x[c] - m) * r);
                    db[c] += d[c];
                }
            } else {
                for (int c = 0; c < num; c++) {
                    dw[c] += d[c] * ((x[c] - m) * r);
                    db[c] += d[c];
                }
            }
        }
        for (int c = 0; c < num; c++) {
            dw_total[c] += (double)dw[c];
            db_total[c] += (double)db[c];
        }
    }
    for (int c = 0; c < num; c++) {
        dweight[begin + c] += (float)dw_total[c];
        dbias[begin + c] += (float)db_total[c];
    }
}

static void layernorm_backward_row(floatX* dinp, const floatX* dresidual, const floatX* dout, const floatX* x,
                                   const floatX* weight, float m, float r, int C) {
    float sum_g = 0.0f, sum_gx = 0.0f;
#pragma omp simd reduction(+ : sum_g, sum_gx)
    for (int c = 0; c < C; c++) {
        const float g = dout[c] * weight[c];
        sum_g += g;
        sum_gx += g * ((x[c] - m) * r);
    }
    const float mean_g = sum_g / (float)C, mean_gx = sum_gx / (float)C;
    if (dresidual != NULL) {
#pragma omp simd
        for (int c = 0; c < C; c++) {
            dinp[c] = dresidual[c] + r * (dout[c] * weight[c] - mean_g - (x[c] - m) * r * mean_gx);
        }
    } else {
#pragma omp simd
        for (int c = 0; c < C; c++) {
            dinp[c] = r * (dout[c] * weight[c] - mean_g - (x[c] - m) * r * mean_gx);
        }
    }
}

void layernorm_backward(floatX* dinp, float* dweight, float* dbias, const floatX* dresidual,
                        const floatX* dout, const floatX* inp, const floatX* weight, const float* mean,
                        const float* rstd, int T, int C, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)C;
#pragma omp parallel num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    {
        // columns first, because dinp may be dout
#pragma omp for
        for (int c = 0; c < C; c += LAYERNORM_COLUMNS) {
            const int num = C - c < LAYERNORM_COLUMNS ? C - c : LAYERNORM_COLUMNS;
            layernorm_backward_columns(dweight, dbias, dout, inp, mean, rstd, T, C, c, num);
        }
#pragma omp for
        for (int t = 0; t < T; t++) {
            const size_t row = (size_t)t * (size_t)C;
            layernorm_backward_row(dinp + row, dresidual ? dresidual + row : NULL, dout + row, inp + row,
                                   weight, mean[t], rstd[t], C);
        }
    }
}

// --- RMS norm ----------------------------------------------------------------------------------------------
/*
RMS normalisation (Zhang, Sennrich 2019) over rows, with the residual addition fused in.

    y = x r w s,   r = 1 / sqrt(mean(x^2) + eps),   s = scale
    dx = r (g - xhat mean(g xhat)),   dw = s sum over rows of dy xhat,   g = dy w s,   xhat = x r

Caching and column sums as for layer normalisation.
*/

static void rmsnorm_row(floatX* restrict out, float* rstd, const floatX* restrict x,
                        const floatX* restrict weight, float scale, float eps, int C) {
    float squares = 0.0f;
#pragma omp simd reduction(+ : squares)
    for (int c = 0; c < C; c++) { squares += x[c] * x[c]; }
    const float r = 1.0f / sqrtf(squares / (float)C + eps), factor = r * scale;
#pragma omp simd
    for (int c = 0; c < C; c++) { out[c] = x[c] * factor * weight[c]; }
    *rstd = r;
}

void rmsnorm_forward(floatX* out, float* rstd, const floatX* inp, const floatX* weight, float scale,
                     float eps, int T, int C, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)C;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int t = 0; t < T; t++) {
        const size_t row = (size_t)t * (size_t)C;
        rmsnorm_row(out + row, rstd + t, inp + row, weight, scale, eps, C);
    }
}

void residual_rmsnorm_forward(floatX* residual, floatX* out, float* rstd, const floatX* a, const floatX* b,
                              const floatX* weight, float scale, float eps, int T, int C, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)C;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int t = 0; t < T; t++) {
        const size_t row = (size_t)t * (size_t)C;
        floatX* r = residual + row;  // may be a or b
#pragma omp simd
        for (int c = 0; c < C; c++) { r[c] = a[row + (size_t)c] + b[row + (size_t)c]; }
        rmsnorm_row(out + row, rstd + t, r, weight, scale, eps, C);
    }
}

enum { RMSNORM_COLUMNS = 32, RMSNORM_ROWS = 64 };

// dweight of up to RMSNORM_COLUMNS columns from `begin`; float over RMSNORM_ROWS rows, double over blocks of
// rows, so the error does not grow with T.
static void rmsnorm_backward_columns(float* dweight, const floatX* dout, const floatX* inp, const float* rstd,
                                     float scale, int T, int C, int begin, int num) {
    double total[RMSNORM_COLUMNS] = {0};
    for (int t0 = 0; t0 < T; t0 += RMSNORM_ROWS) {
        const int t1 = t0 + RMSNORM_ROWS < T ? t0 + RMSNORM_ROWS : T;
        float sum[RMSNORM_COLUMNS] = {0};
        for (int t = t0; t < t1; t++) {
            const floatX* d = dout + (size_t)t * (size_t)C + begin;
            const floatX* x = inp + (size_t)t * (size_t)C + begin;
            const float r = rstd[t];
            if (num == RMSNORM_COLUMNS) {
#pragma omp simd
                for (int c = 0; c < RMSNORM_COLUMNS; c++) { sum[c] += d[c] * (x[c] * r); }
            } else {
                for (int c = 0; c < num; c++) { sum[c] += d[c] * (x[c] * r); }
            }
        }
        for (int c = 0; c < num; c++) { total[c] += (double)sum[c]; }
    }
    for (int c = 0; c < num; c++) { dweight[begin + c] += (float)(total[c] * (double)scale); }
}

static void rmsnorm_backward_row(floatX* dinp, const floatX* dresidual, const floatX* dout, const floatX* x,
                                 const floatX* weight, float r, float scale, int C) {
    float sum = 0.0f;
#pragma omp simd reduction(+ : sum)
    for (int c = 0; c < C; c++) { sum += dout[c] * weight[c] * x[c]; }
    const float factor = r * scale, mean = sum / (float)C * r * r;  // g r - x r^2 mean(g xhat)
    if (dresidual != NULL) {
#pragma omp simd
        for (int c = 0; c < C; c++) { dinp[c] = dresidual[c] + factor * (dout[c] * weight[c] - x[c] * mean); }
    } else {
#pragma omp simd
        for (int c = 0; c < C; c++) { dinp[c] = factor * (dout[c] * weight[c] - x[c] * mean); }
    }
}

void rmsnorm_backward(floatX* dinp, float* dweight, const floatX* dresidual, const floatX* dout,
                      const floatX* inp, const floatX* weight, const float* rstd, float scale, int T, int C,
                      OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)C;
#pragma omp parallel num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    {
        // columns first, because dinp may be dout
#pragma omp for
        for (int c = 0; c < C; c += RMSNORM_COLUMNS) {
            const int num = C - c < RMSNORM_COLUMNS ? C - c : RMSNORM_COLUMNS;
            rmsnorm_backward_columns(dweight, dout, inp, rstd, scale, T, C, c, num);
        }
#pragma omp for
        for (int t = 0; t < T; t++) {
            const size_t row = (size_t)t * (size_t)C;
            rmsnorm_backward_row(dinp + row, dresidual ? dresidual + row : NULL, dout + row, inp + row,
                                 weight, rstd[t], scale, C);
        }
    }
}
