// ops.h -- the larger operations of the made-up trainers, in plain loops; every backward adds to its outputs.
// In the CUDA tree (test/foreign_llmc_cuda) an OP is a kernel of one thread.
#pragma once
#include <math.h>
#include <stddef.h>
#include <string.h>

#if defined(__CUDACC__) || defined(CUDA_EMU)
#define OP __global__
#else
#define OP static inline
#endif

OP void encoder_forward(float* out, const int* tokens, const float* wte, const float* wpe, int B, int T,
                        int C) {
    for (int i = 0; i < B * T * C; i++) {
        out[i] = wte[(size_t)tokens[i / C] * C + i % C] + wpe[i / C % T * C + i % C];
    }
}

OP void encoder_backward(float* dwte, float* dwpe, const float* dout, const int* tokens, int B, int T,
                         int C) {
    for (int i = 0; i < B * T * C; i++) {
        dwte[(size_t)tokens[i / C] * C + i % C] += dout[i];
        dwpe[i / C % T * C + i % C] += dout[i];
    }
}

OP void layernorm_forward(float* out, float* mean, float* rstd, const float* inp, const float* weight,
                          const float* bias, int B, int T, int C) {
    for (int n = 0; n < B * T; n++) {
        float sum = 0, squares = 0;
        for (int c = 0; c < C; c++) { sum += inp[n * C + c]; }
        mean[n] = sum / C;
        for (int c = 0; c < C; c++) { squares += (inp[n * C + c] - mean[n]) * (inp[n * C + c] - mean[n]); }
        rstd[n] = 1 / sqrtf(squares / C + 1e-5f);
        for (int c = 0; c < C; c++) {
            out[n * C + c] = (inp[n * C + c] - mean[n]) * rstd[n] * weight[c] + bias[c];
        }
    }
}

OP void layernorm_backward(float* dinp, float* dweight, float* dbias, const float* dout, const float* inp,
                           const float* weight, const float* mean, const float* rstd, int B, int T, int C) {
    for (int n = 0; n < B * T; n++) {
        float along = 0, level = 0;  // of the gradient of the normed row: its part along the row, its mean
        for (int c = 0; c < C; c++) {
            float normed = (inp[n * C + c] - mean[n]) * rstd[n], dnormed = dout[n * C + c] * weight[c];
            dweight[c] += dout[n * C + c] * normed;
            dbias[c] += dout[n * C + c];
            along += dnormed * normed / C;
            level += dnormed / C;
        }
        for (int c = 0; c < C; c++) {
            float normed = (inp[n * C + c] - mean[n]) * rstd[n];
            dinp[n * C + c] += (dout[n * C + c] * weight[c] - level - normed * along) * rstd[n];
        }
    }
}

static inline void matmul_forward(float* out, const float* inp, const float* weight, const float* bias, int B,
                                  int T, int C, int OC) {
    for (int n = 0; n < B * T; n++) {
        for (int o = 0; o < OC; o++) {
            float sum = bias != NULL ? bias[o] : 0;
            for (int c = 0; c < C; c++) { sum += inp[n * C + c] * weight[o * C + c]; }
            out[n * OC + o] = sum;
        }
    }
}

static inline void matmul_backward(float* dinp, float* dweight, float* dbias, const float* dout,
                                   const float* inp, const float* weight, int B, int T, int C, int OC) {
    for (int n = 0; n < B * T; n++) {
        for (int o = 0; o < OC; o++) {
            float d = dout[n * OC + o];
            if (dbias != NULL) { dbias[o] += d; }
            for (int c = 0; c < C; c++) {
                dinp[n * C + c] += d * weight[o * C + c];
                dweight[o * C + c] += d * inp[n * C + c];
            }
        }
    }
}

// qkv (B, T, 3C), att (B, NH, T, T); preatt is not needed
static inline void attention_forward(float* out, float* preatt, float* att, float* qkv, int B, int T, int C,
                                     int NH) {
    int HS = C / NH;
    (void)preatt;
    memset(out, 0, sizeof(float) * (size_t)B * T * C);
    for (int i = 0; i < B * NH * T; i++) {
        int b = i / (NH * T), h = i / T % NH, t = i % T;
        float *q = qkv + (b * T + t) * 3 * C + h * HS, *shares = att + i * T, sum = 0;
        for (int u = 0; u < T; u++) {
            float *k = qkv + (b * T + u) * 3 * C + C + h * HS, score = 0;
            for (int c = 0; c < HS && u <= t; c++) { score += q[c] * k[c] / sqrtf((float)HS); }
            shares[u] = u <= t ? expf(score) : 0;
            sum += shares[u];
        }
        for (int u = 0; u <= t; u++) {
            float* v = qkv + (b * T + u) * 3 * C + 2 * C + h * HS;
            shares[u] /= sum;
            for (int c = 0; c < HS; c++) { out[(b * T + t) * C + h * HS + c] += shares[u] * v[c]; }
        }
    }
}

static inline void attention_backward(float* dqkv, float* dpreatt, float* datt, const float* dout,
                                      const float* qkv, const float* att, int B, int T, int C, int NH) {
    int HS = C / NH;
    (void)dpreatt;
    for (int i = 0; i < B * NH * T; i++) {
        int b = i / (NH * T), h = i / T % NH, t = i % T, at = (b * T + t) * 3 * C + h * HS;
        const float *dt = dout + (b * T + t) * C + h * HS, *shares = att + i * T;
        float *dshares = datt + i * T, dot = 0;
        for (int u = 0; u <= t; u++) {
            int other = (b * T + u) * 3 * C + 2 * C + h * HS;
            dshares[u] = 0;
            for (int c = 0; c < HS; c++) {
                dshares[u] += dt[c] * qkv[other + c];
                dqkv[other + c] += shares[u] * dt[c];
            }
            dot += dshares[u] * shares[u];
        }
        for (int u = 0; u <= t; u++) {
            int other = (b * T + u) * 3 * C + C + h * HS;
            float d = shares[u] * (dshares[u] - dot) / sqrtf((float)HS);
            for (int c = 0; c < HS; c++) {
                dqkv[at + c] += d * qkv[other + c];
                dqkv[other + c] += d * qkv[at + c];
            }
        }
    }
}
