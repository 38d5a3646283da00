#include "kernels.h"

#include <math.h>

void embedding_forward(float* out, const int* tokens, const float* wte, int N, int C) {
    for (int i = 0; i < N * C; i++) { out[i] = wte[tokens[i / C] * C + i % C]; }
}

void embedding_backward(float* dwte, const int* tokens, const float* dout, int N, int C) {
    for (int i = 0; i < N * C; i++) { dwte[tokens[i / C] * C + i % C] += dout[i]; }
}

// --- norm ------------------------------------------------------------------------------------------------

void rmsnorm_forward(float* out, float* rstd, const float* inp, const float* weight, int N, int C) {
    for (int n = 0; n < N; n++, inp += C, out += C) {
        float squares = 0;
        for (int c = 0; c < C; c++) { squares += inp[c] * inp[c]; }
        rstd[n] = 1.0f / sqrtf(squares / (float)C + 1e-5f);
        for (int c = 0; c < C; c++) { out[c] = inp[c] * rstd[n] * weight[c]; }
    }
}

void rmsnorm_backward(float* dinp, float* dweight, const float* dout, const float* inp, const float* weight,
                      const float* rstd, int N, int C) {
    for (int n = 0; n < N; n++, inp += C, dout += C, dinp += C) {
        float dot = 0, s = rstd[n];
        for (int c = 0; c < C; c++) {
            dweight[c] += dout[c] * inp[c] * s;
            dot += dout[c] * weight[c] * inp[c];
        }
        for (int c = 0; c < C; c++) {
            dinp[c] += s * (dout[c] * weight[c] - inp[c] * s * s * dot / (float)C);
        }
    }
}

// --- product ---------------------------------------------------------------------------------------------

void matmul_forward(float* out, const float* inp, const float* weight, int N, int C, int OC) {
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        for (int o = 0; o < OC; o++) {
            float sum = 0;
            for (int c = 0; c < C; c++) { sum += inp[n * C + c] * weight[o * C + c]; }
            out[n * OC + o] = sum;
        }
    }
}

static void matmul_backward_inp(float* dinp, const float* dout, const float* weight, int N, int C, int OC) {
#pragma omp parallel for
    for (int n = 0; n < N; n++) {
        for (int o = 0; o < OC; o++) {
            float d = dout[n * OC + o];
            for (int c = 0; c < C; c++) { dinp[n * C + c] += d * weight[o * C + c]; }
        }
    }
}

void matmul_backward(float* dinp, float* dweight, const float* dout, const float* inp, const float* weight,
                     int N, int C, int OC) {
    if (dinp) { matmul_backward_inp(dinp, dout, weight, N, C, OC); }
    if (!dweight) { return; }
#pragma omp parallel for
    for (int o = 0; o < OC; o++) {
        for (int n = 0; n < N; n++) {
            float d = dout[n * OC + o];
            for (int c = 0; c < C; c++) { dweight[o * C + c] += d * inp[n * C + c]; }
        }
    }
}

// --- attention -------------------------------------------------------------------------------------------

void rope(float* x, int T, int NH, int HS, int direction) {
    for (int t = 0; t < T; t++) {
        for (int i = 0; i < NH * HS; i += 2) {
            float angle = (float)t * powf(10000.0f, -(float)(i % HS) / (float)HS);
            float c = cosf(angle), s = (float)direction * sinf(angle);
            float* pair = x + t * NH * HS + i;
            float a = pair[0], b = pair[1];
            pair[0] = a * c - b * s;
            pair[1] = a * s + b * c;
        }
    }
}

void attention_forward(float* out, float* att, const float* q, const float* k, const float* v, int T, int NH,
                       int NKV, int HS) {
    float scale = 1.0f / sqrtf((float)HS);
#pragma omp parallel for collapse(2)
    for (int h = 0; h < NH; h++) {
        for (int t = 0; t < T; t++) {
            int g = h / (NH / NKV);
            float *p = att + (h * T + t) * T, *o = out + (t * NH + h) * HS, largest = -1e30f, sum = 0;
            for (int s = 0; s <= t; s++) {
                p[s] = 0;
                for (int i = 0; i < HS; i++) { p[s] += q[(t * NH + h) * HS + i] * k[(s * NKV + g) * HS + i]; }
                p[s] *= scale;
                largest = p[s] > largest ? p[s] : largest;
            }
            for (int s = 0; s <= t; s++) { sum += p[s] = expf(p[s] - largest); }
            for (int s = 0; s < T; s++) { p[s] = s <= t ? p[s] / sum : 0; }
            for (int i = 0; i < HS; i++) {
                o[i] = 0;
                for (int s = 0; s <= t; s++) { o[i] += p[s] * v[(s * NKV + g) * HS + i]; }
            }
        }
    }
}

void attention_backward(float* dq, float* dk, float* dv, float* datt, const float* dout, const float* q,
                        const float* k, const float* v, const float* att, int T, int NH, int NKV, int HS) {
    float scale = 1.0f / sqrtf((float)HS);
    for (int h = 0; h < NH; h++) {
        for (int t = 0; t < T; t++) {
            int g = h / (NH / NKV), at = (t * NH + h) * HS;
            const float *p = att + (h * T + t) * T, *d = dout + at;
            float dot = 0;
            for (int s = 0; s <= t; s++) {
                int from = (s * NKV + g) * HS;
                datt[s] = 0;
                for (int i = 0; i < HS; i++) {
                    datt[s] += d[i] * v[from + i];
                    dv[from + i] += p[s] * d[i];
                }
                dot += p[s] * datt[s];
            }
            for (int s = 0; s <= t; s++) {
                int from = (s * NKV + g) * HS;
                float slope = p[s] * (datt[s] - dot) * scale;
                for (int i = 0; i < HS; i++) {
                    dq[at + i] += slope * k[from + i];
                    dk[from + i] += slope * q[at + i];
                }
            }
        }
    }
}

// --- the rest --------------------------------------------------------------------------------------------

void swiglu_forward(float* out, const float* gate, const float* up, int n) {
    for (int i = 0; i < n; i++) { out[i] = gate[i] / (1.0f + expf(-gate[i])) * up[i]; }
}

void swiglu_backward(float* gate, float* up, const float* dout, int n) {
    for (int i = 0; i < n; i++) {
        float g = gate[i], sigmoid = 1.0f / (1.0f + expf(-g));
        gate[i] = dout[i] * up[i] * sigmoid * (1.0f + g * (1.0f - sigmoid));
        up[i] = dout[i] * g * sigmoid;
    }
}

void crossentropy_forward_backward(float* losses, float* logits, const int* targets, float scale, int N,
                                   int V) {
    for (int n = 0; n < N; n++, logits += V) {
        float largest = -1e30f, sum = 0;
        for (int v = 0; v < V; v++) { largest = logits[v] > largest ? logits[v] : largest; }
        for (int v = 0; v < V; v++) { sum += expf(logits[v] - largest); }
        losses[n] = largest + logf(sum) - logits[targets[n]];
        for (int v = 0; v < V; v++) {
            float p = expf(logits[v] - largest) / sum;
            logits[v] = scale * (p - (v == targets[n] ? 1.0f : 0.0f));
        }
    }
}
