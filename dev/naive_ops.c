// ops.h in plain loops, as a reference trainer for CPUs has them: `omp parallel for` on matrix products and
// attention, one thread elsewhere; eight rows share each weight read in the matrix products forward; nothing
// else is tuned. For dev/bench_single.sh, to have something to be compared with. T5's: naive_ops_t5.c.
#include <math.h>
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../llmc/ops.h"

struct OpsContext {
    int num_threads;
};

OpsContext* ops_create(int num_threads) {
    OpsContext* ops = calloc(1, sizeof *ops);
    if (ops == NULL) {
        fprintf(stderr, "ops: out of memory ---> free some memory\n");
        exit(1);
    }
    ops->num_threads = num_threads > 0 ? num_threads : omp_get_max_threads();
    omp_set_num_threads(ops->num_threads);
    return ops;
}

void ops_free(OpsContext* ops) {
    free(ops);
}

int ops_num_threads(const OpsContext* ops) {
    return ops->num_threads;
}

// --- embedding ---------------------------------------------------------------------------------------------
void embedding_forward(floatX* out, const int32_t* tokens, const int32_t* positions, const floatX* wte,
                       const floatX* wpe, int T, int C, OpsContext* ops) {
    (void)ops;
    for (int t = 0; t < T; t++) {
        const floatX *a = wte + (size_t)tokens[t] * C,
                     *b = wpe != NULL ? wpe + (size_t)positions[t] * C : NULL;
        for (int c = 0; c < C; c++) { out[(size_t)t * C + c] = b != NULL ? a[c] + b[c] : a[c]; }
    }
}

size_t embedding_backward_scratch_bytes(int T, int C, const OpsContext* ops) {
    (void)T, (void)C, (void)ops;
    return 0;
}

void embedding_backward(float* dwte, float* dwpe, void* scratch, const floatX* dout, const int32_t* tokens,
                        const int32_t* positions, int T, int C, OpsContext* ops) {
    (void)scratch, (void)ops;
    for (int t = 0; t < T; t++) {
        floatX *a = dwte + (size_t)tokens[t] * C, *b = dwpe != NULL ? dwpe + (size_t)positions[t] * C : NULL;
        for (int c = 0; c < C; c++) {
            a[c] += dout[(size_t)t * C + c];
            if (b != NULL) { b[c] += dout[(size_t)t * C + c]; }
        }
    }
}

// --- layernorm ---------------------------------------------------------------------------------------------
void layernorm_forward(floatX* out, float* mean, float* rstd, const floatX* inp, const floatX* weight,
                       const floatX* bias, int T, int C, OpsContext* ops) {
    (void)ops;
    for (int t = 0; t < T; t++) {
        const floatX* x = inp + (size_t)t * C;
        float m = 0.0f, v = 0.0f;
        for (int c = 0; c < C; c++) { m += x[c]; }
        m /= (float)C;
        for (int c = 0; c < C; c++) { v += (x[c] - m) * (x[c] - m); }
        float r = 1.0f / sqrtf(v / (float)C + 1e-5f);
        for (int c = 0; c < C; c++) { out[(size_t)t * C + c] = (x[c] - m) * r * weight[c] + bias[c]; }
        mean[t] = m;
        rstd[t] = r;
    }
}

void residual_forward(floatX* out, const floatX* a, const floatX* b, size_t num_values, OpsContext* ops) {
    (void)ops;
    for (size_t i = 0; i < num_values; i++) { out[i] = a[i] + b[i]; }
}

void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                                const floatX* b, const floatX* weight, const floatX* bias, int T, int C,
                                OpsContext* ops) {
    residual_forward(residual, a, b, (size_t)T * C, ops);
    layernorm_forward(out, mean, rstd, residual, weight, bias, T, C, ops);
}

void layernorm_backward(floatX* dinp, floatX* dweight, floatX* dbias, const floatX* dresidual,
                        const floatX* dout, const floatX* inp, const floatX* weight, const float* mean,
                        const float* rstd, int T, int C, OpsContext* ops) {
    (void)ops;
    for (int t = 0; t < T; t++) {
        const floatX *d = dout + (size_t)t * C, *x = inp + (size_t)t * C;
        const floatX* rest = dresidual != NULL ? dresidual + (size_t)t * C : NULL;
        float mean_g = 0.0f, mean_gx = 0.0f;
        for (int c = 0; c < C; c++) {
            float g = d[c] * weight[c];
            mean_g += g / (float)C;
            mean_gx += g * (x[c] - mean[t]) * rstd[t] / (float)C;
        }
        for (int c = 0; c < C; c++) {
            float xhat = (x[c] - mean[t]) * rstd[t], g = d[c] * weight[c];
            dweight[c] += d[c] * xhat;
            dbias[c] += d[c];
            float dx = (g - mean_g - xhat * mean_gx) * rstd[t];
            dinp[(size_t)t * C + c] = rest != NULL ? rest[c] + dx : dx;
        }
    }
}

// --- matrix products ---------------------------------------------------------------------------------------
enum { ROW_TILE = 8 };

void matmul_forward(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int T, int C,
                    int OC, OpsContext* ops) {
    (void)ops;
#pragma omp parallel for
    for (int t0 = 0; t0 < T; t0 += ROW_TILE) {
        if (t0 + ROW_TILE <= T) {
            for (int o = 0; o < OC; o++) {
                const floatX *x = inp + (size_t)t0 * C, *w = weight + (size_t)o * C;
                float sums[ROW_TILE];
                for (int t = 0; t < ROW_TILE; t++) { sums[t] = bias != NULL ? bias[o] : 0.0f; }
                for (int c = 0; c < C; c++) {
                    for (int t = 0; t < ROW_TILE; t++) { sums[t] += x[(size_t)t * C + c] * w[c]; }
                }
                for (int t = 0; t < ROW_TILE; t++) { out[(size_t)(t0 + t) * OC + o] = sums[t]; }
            }
            continue;
        }
        for (int t = t0; t < T; t++) {
            for (int o = 0; o < OC; o++) {
                float sum = bias != NULL ? bias[o] : 0.0f;
                for (int c = 0; c < C; c++) { sum += inp[(size_t)t * C + c] * weight[(size_t)o * C + c]; }
                out[(size_t)t * OC + o] = sum;
            }
        }
    }
}

void matmul_backward_input(floatX* dinp, const floatX* dout, const floatX* weight, int T, int C, int OC,
                           OpsContext* ops) {
    (void)ops;
#pragma omp parallel for
    for (int t = 0; t < T; t++) {
        floatX* dx = dinp + (size_t)t * C;
        memset(dx, 0, (size_t)C * sizeof *dx);
        for (int o = 0; o < OC; o++) {
            const floatX* w = weight + (size_t)o * C;
            const float d = dout[(size_t)t * OC + o];
            for (int c = 0; c < C; c++) { dx[c] += w[c] * d; }
        }
    }
}

void matmul_backward_weight(floatX* dweight, floatX* dbias, const floatX* dout, const floatX* inp, int T,
                            int C, int OC, OpsContext* ops) {
    (void)ops;
#pragma omp parallel for
    for (int o = 0; o < OC; o++) {
        floatX* dw = dweight + (size_t)o * C;
        for (int t = 0; t < T; t++) {
            const floatX* x = inp + (size_t)t * C;
            const float d = dout[(size_t)t * OC + o];
            if (dbias != NULL) { dbias[o] += d; }
            for (int c = 0; c < C; c++) { dw[c] += x[c] * d; }
        }
    }
}

// --- GELU --------------------------------------------------------------------------------------------------
static const float gelu_scale = 0.79788456f;  // sqrt(2 / pi)

void gelu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
    (void)ops;
    for (size_t i = 0; i < num_values; i++) {
        float x = inp[i];
        out[i] = 0.5f * x * (1.0f + tanhf(gelu_scale * (x + 0.044715f * x * x * x)));
    }
}

void gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values, OpsContext* ops) {
    (void)ops;
    for (size_t i = 0; i < num_values; i++) {
        float x = inp[i], h = tanhf(gelu_scale * (x + 0.044715f * x * x * x));
        float slope = gelu_scale * (1.0f + 3.0f * 0.044715f * x * x);
        dinp[i] = dout[i] * (0.5f * (1.0f + h) + 0.5f * x * (1.0f - h * h) * slope);
    }
}

// --- attention ---------------------------------------------------------------------------------------------
static float dot(const floatX* a, const floatX* b, int num) {
    float sum = 0.0f;
    for (int i = 0; i < num; i++) { sum += a[i] * b[i]; }
    return sum;
}

// The output doubles as the accumulator: exp(score - running maximum) weighs the values.
static void attention_row(floatX* out, float* lse, const floatX* q, const floatX* k, const floatX* v,
                          size_t stride, int num_keys, int HS) {
    const float scale = 1.0f / sqrtf((float)HS);
    float max = -INFINITY, sum = 0.0f;
    for (int j = 0; j < num_keys; j++) { max = fmaxf(max, scale * dot(q, k + (size_t)j * stride, HS)); }
    memset(out, 0, (size_t)HS * sizeof *out);
    for (int j = 0; j < num_keys; j++) {
        float p = expf(scale * dot(q, k + (size_t)j * stride, HS) - max);
        sum += p;
        for (int i = 0; i < HS; i++) { out[i] += p * v[(size_t)j * stride + i]; }
    }
    for (int i = 0; i < HS; i++) { out[i] /= sum; }
    *lse = max + logf(sum);
}

void attention_forward(floatX* out, float* lse, const floatX* qkv, const int32_t* cu_seqlens, int num_seqs,
                       int T, int C, int NH, OpsContext* ops) {
    (void)ops;
    const int HS = C / NH;
    const size_t stride = 3 * (size_t)C;
#pragma omp parallel for collapse(2)
    for (int s = 0; s < num_seqs; s++) {
        for (int h = 0; h < NH; h++) {
            const floatX* first = qkv + (size_t)cu_seqlens[s] * stride + h * HS;
            for (int t = cu_seqlens[s]; t < cu_seqlens[s + 1]; t++) {
                attention_row(out + (size_t)t * C + h * HS, lse + (size_t)h * T + t,
                              qkv + (size_t)t * stride + h * HS, first + C, first + 2 * C, stride,
                              t - cu_seqlens[s] + 1, HS);
            }
        }
    }
}

size_t attention_backward_scratch_bytes(int T, int C, int NH, int max_seq_tokens, const OpsContext* ops) {
    (void)T, (void)C, (void)NH, (void)max_seq_tokens, (void)ops;
    return 0;
}

static void attention_row_backward(floatX* dq, floatX* dk, floatX* dv, const floatX* dout, const floatX* out,
                                   float lse, const floatX* q, const floatX* k, const floatX* v,
                                   size_t stride, int num_keys, int HS) {
    const float scale = 1.0f / sqrtf((float)HS), delta = dot(dout, out, HS);
    for (int j = 0; j < num_keys; j++) {
        const size_t at = (size_t)j * stride;
        float p = expf(scale * dot(q, k + at, HS) - lse);
        float ds = p * (dot(dout, v + at, HS) - delta) * scale;
        for (int i = 0; i < HS; i++) {
            dq[i] += ds * k[at + i];
            dk[at + i] += ds * q[i];
            dv[at + i] += p * dout[i];
        }
    }
}

void attention_backward(floatX* dqkv, void* scratch, const floatX* dout, const floatX* qkv, const floatX* out,
                        const float* lse, const int32_t* cu_seqlens, int num_seqs, int T, int C, int NH,
                        OpsContext* ops) {
    (void)scratch, (void)ops;
    const int HS = C / NH;
    const size_t stride = 3 * (size_t)C;
    memset(dqkv, 0, (size_t)T * stride * sizeof *dqkv);
    for (int s = 0; s < num_seqs; s++) {
        for (int h = 0; h < NH; h++) {
            const size_t first = (size_t)cu_seqlens[s] * stride + h * HS;
            for (int t = cu_seqlens[s]; t < cu_seqlens[s + 1]; t++) {
                const size_t row = (size_t)t * C + h * HS, q = (size_t)t * stride + h * HS;
                attention_row_backward(dqkv + q, dqkv + first + C, dqkv + first + 2 * C, dout + row,
                                       out + row, lse[(size_t)h * T + t], qkv + q, qkv + first + C,
                                       qkv + first + 2 * C, stride, t - cu_seqlens[s] + 1, HS);
            }
        }
    }
}

// --- rows, classifier --------------------------------------------------------------------------------------
void gather_rows(floatX* out, const floatX* inp, const int32_t* rows, int num_rows, int C, OpsContext* ops) {
    (void)ops;
    for (int i = 0; i < num_rows; i++) {
        memcpy(out + (size_t)i * C, inp + (size_t)rows[i] * C, (size_t)C * sizeof *out);
    }
}

void scatter_rows(floatX* out, const floatX* inp, const int32_t* rows, int num_rows, int T, int C,
                  OpsContext* ops) {
    (void)ops;
    memset(out, 0, (size_t)T * C * sizeof *out);
    for (int i = 0; i < num_rows; i++) {
        memcpy(out + (size_t)rows[i] * C, inp + (size_t)i * C, (size_t)C * sizeof *out);
    }
}

void fused_classifier(float* losses, floatX* logits, const int32_t* targets, float dlogits_scale,
                      int num_rows, int V, int Vp, OpsContext* ops) {
    (void)ops;
#pragma omp parallel for
    for (int t = 0; t < num_rows; t++) {
        floatX* x = logits + (size_t)t * Vp;
        float max = -INFINITY;
        double sum = 0.0;
        for (int v = 0; v < V; v++) { max = fmaxf(max, x[v]); }
        for (int v = 0; v < V; v++) { sum += (double)expf(x[v] - max); }
        losses[t] = (float)(log(sum) - (double)(x[targets[t]] - max));
        if (dlogits_scale == 0.0f) { continue; }
        for (int v = 0; v < V; v++) { x[v] = expf(x[v] - max) / (float)sum * dlogits_scale; }
        x[targets[t]] -= dlogits_scale;
        for (int v = V; v < Vp; v++) { x[v] = 0.0f; }
    }
}

void argmax_rows(int32_t* out, const floatX* logits, int num_rows, int V, int Vp, OpsContext* ops) {
    (void)ops;
    for (int i = 0; i < num_rows; i++) {
        const floatX* row = logits + (size_t)i * Vp;
        int32_t best = 0;
        for (int32_t v = 1; v < V; v++) { best = row[v] > row[best] ? v : best; }
        out[i] = best;
    }
}

void place_rows(floatX* dst, int dst_stride, const floatX* src, int src_stride, const int32_t* rows,
                int num_rows, int width, OpsContext* ops) {
    (void)ops;
    for (int i = 0; i < num_rows; i++) {
        memcpy(dst + (size_t)rows[i] * dst_stride, src + (size_t)i * src_stride, (size_t)width * sizeof *dst);
    }
}

// --- optimizer ---------------------------------------------------------------------------------------------
void adamw_update(floatX* params, float* master, float* m, float* v, const float* grads, size_t num_params,
                  int64_t first_idx, const AdamwUpdate* about, OpsContext* ops) {
    (void)master, (void)first_idx, (void)ops;
    const float lr = about->lr, beta1 = about->beta1, beta2 = about->beta2, eps = about->eps;
    const float grad_scale = about->grad_scale, weight_decay = about->weight_decay;
    const float correction1 = 1.0f - powf(beta1, (float)about->t);
    const float correction2 = 1.0f - powf(beta2, (float)about->t);
    for (size_t i = 0; i < num_params; i++) {
        float g = grads[i] * grad_scale;
        m[i] = beta1 * m[i] + (1.0f - beta1) * g;
        v[i] = beta2 * v[i] + (1.0f - beta2) * g * g;
        params[i] -= lr * (m[i] / correction1 / (sqrtf(v[i] / correction2) + eps) + weight_decay * params[i]);
    }
}

double sum_of_squares(const floatX* values, size_t num_values, OpsContext* ops) {
    (void)ops;
    double sum = 0.0;
    for (size_t i = 0; i < num_values; i++) { sum += (double)values[i] * (double)values[i]; }
    return sum;
}
