// kernels.cuh -- operations of the made-up CUDA trainer, under the family's names: written here, one thread
// for each value or row, in float32.
#pragma once
#include <cuda_runtime.h>
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <type_traits>

typedef float floatX;
enum { PRECISION_FP32, PRECISION_FP16, PRECISION_BF16 };
#define PRECISION_MODE PRECISION_FP32
struct x128 {
    static constexpr size_t size = 4;
};
constexpr std::bool_constant<true> True;
constexpr std::bool_constant<false> False;
#define CEIL_DIV(a, b) (((a) + (b)-1) / (b))

inline void check_code(cudaError_t code, const char* file, int line) {
    if (code == cudaSuccess) { return; }
    printf("%s:%d: %s\n", file, line, cudaGetErrorString(code));
    exit(1);
}
#define cudaCheck(code) check_code(code, __FILE__, __LINE__)

inline void* check_memory(void* memory) {
    if (memory == NULL) { exit(1); }
    return memory;
}
#define mallocCheck(num_bytes) check_memory(malloc(num_bytes))

inline FILE* fopenCheck(const char* path, const char* mode) {
    FILE* file = fopen(path, mode);
    if (file == NULL) {
        printf("no %s\n", path);
        exit(1);
    }
    return file;
}
#define fcloseCheck(file) fclose(file)

// A kernel with a thread for each i of n.
#define FOR_EACH(kernel, n, stream, ...)                                                           \
    kernel<<<(unsigned)CEIL_DIV((size_t)(n), (size_t)64), 64, 0, stream>>>((int)(n), __VA_ARGS__); \
    cudaCheck(cudaGetLastError())
#define INDEX_OR_RETURN                                   \
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); \
    if (i >= n) { return; }

// --- embedding -------------------------------------------------------------------------------------------
__global__ void encode(int n, float* out, const int* tokens, const float* wte, const float* wpe, int T,
                       int C) {
    INDEX_OR_RETURN
    out[i] = wte[(size_t)tokens[i / C] * C + i % C] + wpe[i / C % T * C + i % C];
}

__global__ void encode_back(int n, float* dwte, float* dwpe, const float* dout, const int* tokens, int N,
                            int T) {
    INDEX_OR_RETURN
    for (int k = 0; k < N; k++) {
        dwte[(size_t)tokens[k] * n + i] += dout[k * n + i];
        dwpe[k % T * n + i] += dout[k * n + i];
    }
}

void encoder_forward(floatX* out, const int* tokens, const floatX* wte, const floatX* wpe, int B, int T,
                     int C, cudaStream_t stream) {
    FOR_EACH(encode, B * T * C, stream, out, tokens, wte, wpe, T, C);
}

void encoder_backward(floatX* dwte, floatX* dwpe, floatX* scratch, int* indices, int4* buckets,
                      const floatX* dout, const int* tokens, const int* host_tokens, int B, int T, int C,
                      unsigned int seed, cudaStream_t stream) {
    assert(scratch != NULL && indices != NULL && buckets != NULL && tokens != NULL);
    (void)seed;
    for (int i = 0; i < B * T; i++) { indices[i] = host_tokens[i]; }
    // as theirs: prepared on the host, read in the order of the stream
    cudaCheck(cudaMemcpyAsync(scratch, indices, sizeof(int) * B * T, cudaMemcpyHostToDevice, stream));
    FOR_EACH(encode_back, C, stream, dwte, dwpe, dout, (int*)scratch, B * T, T);
}

// --- norms -----------------------------------------------------------------------------------------------
__global__ void norm(int n, float* out, float* mean, float* rstd, const float* inp, const float* weight,
                     const float* bias, int C) {
    INDEX_OR_RETURN
    float sum = 0, squares = 0;
    for (int c = 0; c < C; c++) { sum += inp[i * C + c]; }
    mean[i] = sum / C;
    for (int c = 0; c < C; c++) { squares += (inp[i * C + c] - mean[i]) * (inp[i * C + c] - mean[i]); }
    rstd[i] = 1 / sqrtf(squares / C + 1e-5f);
    for (int c = 0; c < C; c++) {
        out[i * C + c] = (inp[i * C + c] - mean[i]) * rstd[i] * weight[c] + bias[c];
    }
}

__global__ void norm_back(int n, float* dinp, const float* dout, const float* inp, const float* weight,
                          const float* mean, const float* rstd, int C) {
    INDEX_OR_RETURN
    float along = 0, level = 0;
    for (int c = 0; c < C; c++) {
        float normed = (inp[i * C + c] - mean[i]) * rstd[i], dnormed = dout[i * C + c] * weight[c];
        along += dnormed * normed / C;
        level += dnormed / C;
    }
    for (int c = 0; c < C; c++) {
        float normed = (inp[i * C + c] - mean[i]) * rstd[i];
        dinp[i * C + c] += (dout[i * C + c] * weight[c] - level - normed * along) * rstd[i];
    }
}

__global__ void norm_back_params(int n, float* dweight, float* dbias, const float* dout, const float* inp,
                                 const float* mean, const float* rstd, int N) {
    INDEX_OR_RETURN
    for (int k = 0; k < N; k++) {
        dweight[i] += dout[k * n + i] * (inp[k * n + i] - mean[k]) * rstd[k];
        dbias[i] += dout[k * n + i];
    }
}

void layernorm_forward(floatX* out, float* mean, float* rstd, const floatX* inp, const floatX* weight,
                       const floatX* bias, int B, int T, int C, cudaStream_t stream) {
    FOR_EACH(norm, B * T, stream, out, mean, rstd, inp, weight, bias, C);
}

void layernorm_backward(floatX* dinp, floatX* dweight, floatX* dbias, float* scratch, const floatX* dout,
                        const floatX* inp, const floatX* weight, const float* mean, const float* rstd, int B,
                        int T, int C, cudaStream_t stream) {
    cudaCheck(cudaMemsetAsync(scratch, 0, sizeof(float) * 1024, stream));  // as theirs: whatever B and T are
    FOR_EACH(norm_back, B * T, stream, dinp, dout, inp, weight, mean, rstd, C);
    FOR_EACH(norm_back_params, C, stream, dweight, dbias, dout, inp, mean, rstd, B * T);
}

// --- products --------------------------------------------------------------------------------------------
__global__ void product(int n, float* out, const float* inp, const float* weight, const float* bias, int C,
                        int OC) {
    INDEX_OR_RETURN
    float sum = bias != NULL ? bias[i % OC] : 0;
    for (int c = 0; c < C; c++) { sum += inp[i / OC * C + c] * weight[i % OC * C + c]; }
    out[i] = sum;
}

__global__ void product_dinp(int n, float* dinp, const float* dout, const float* weight, int C, int OC) {
    INDEX_OR_RETURN
    float sum = 0;
    for (int o = 0; o < OC; o++) { sum += dout[i / C * OC + o] * weight[o * C + i % C]; }
    dinp[i] = sum;
}

__global__ void product_dweight(int n, float* dweight, float* dbias, const float* dout, const float* inp,
                                int C, int OC, int N) {
    INDEX_OR_RETURN
    float sum = 0, bias = 0;
    for (int k = 0; k < N; k++) {
        sum += dout[k * OC + i / C] * inp[k * C + i % C];
        bias += dout[k * OC + i / C];
    }
    dweight[i] += sum;
    if (dbias != NULL && i % C == 0) { dbias[i / C] += bias; }
}

void matmul_forward_cublaslt(floatX* out, floatX* inp, floatX* weight, floatX* bias, int B, int T, int C,
                             int OC, cudaStream_t stream) {
    FOR_EACH(product, B * T * OC, stream, out, inp, weight, bias, C, OC);
}

void matmul_backward(floatX* dinp, floatX* dweight, floatX* dbias, floatX* dout, floatX* inp, floatX* weight,
                     float* scratch, int B, int T, int C, int OC, cudaStream_t stream) {
    (void)scratch;
    FOR_EACH(product_dinp, B * T * C, stream, dinp, dout, weight, C, OC);
    FOR_EACH(product_dweight, OC * C, stream, dweight, dbias, dout, inp, C, OC, B * T);
}

// --- attention: qkv (B, T, 3C), att (B, NH, T, T), 0 above the diagonal
// -------------------------------------
__global__ void attend(int n, float* out, float* att, const float* qkv, int T, int C, int NH) {
    INDEX_OR_RETURN
    int HS = C / NH, b = i / (NH * T), h = i / T % NH, t = i % T;
    const float* mine = qkv + (size_t)(b * T + t) * 3 * C + h * HS;
    float *shares = att + (size_t)i * T, sum = 0;
    for (int u = 0; u <= t; u++) {
        const float* k = qkv + (size_t)(b * T + u) * 3 * C + C + h * HS;
        float score = 0;
        for (int c = 0; c < HS; c++) { score += mine[c] * k[c] / sqrtf((float)HS); }
        sum += shares[u] = expf(score);
    }
    for (int u = 0; u <= t; u++) { shares[u] /= sum; }
    for (int c = 0; c < HS; c++) {
        float value = 0;
        for (int u = 0; u < T; u++) {
            value += shares[u] * qkv[(size_t)(b * T + u) * 3 * C + 2 * C + h * HS + c];
        }
        out[(size_t)(b * T + t) * C + h * HS + c] = value;
    }
}

// A thread for each head of each sequence, dqkv of all its tokens.
__global__ void attend_back(int n, float* dqkv, float* datt, const float* dout, const float* qkv,
                            const float* att, int T, int C, int NH) {
    INDEX_OR_RETURN
    int HS = C / NH, b = i / NH, h = i % NH;
    const float *shares = att + (size_t)i * T * T, scale = 1 / sqrtf((float)HS);
    float* row = datt + (size_t)i * T * T;
    for (int t = 0; t < T; t++, shares += T, row += T) {
        size_t at = (size_t)(b * T + t) * 3 * C + h * HS;
        const float* dt = dout + (size_t)(b * T + t) * C + h * HS;
        float dot = 0;
        for (int c = 0; c < 3 * HS; c++) {  // q of this token; k and v come from this and later ones
            dqkv[at + c / HS * C + c % HS] = 0;
        }
        for (int u = 0; u <= t; u++) {
            size_t v = (size_t)(b * T + u) * 3 * C + 2 * C + h * HS;
            row[u] = 0;
            for (int c = 0; c < HS; c++) {
                row[u] += dt[c] * qkv[v + c];
                dqkv[v + c] += shares[u] * dt[c];
            }
            dot += row[u] * shares[u];
        }
        for (int u = 0; u <= t; u++) {
            size_t k = (size_t)(b * T + u) * 3 * C + C + h * HS;
            float d = shares[u] * (row[u] - dot) * scale;
            for (int c = 0; c < HS; c++) {
                dqkv[at + c] += d * qkv[k + c];
                dqkv[k + c] += d * qkv[at + c];
            }
        }
    }
}

void attention_forward(floatX* out, floatX* qkv, floatX* att, int B, int T, int C, int NH,
                       cudaStream_t stream) {
    FOR_EACH(attend, B * NH * T, stream, out, att, qkv, T, C, NH);
}

void attention_backward(floatX* dqkv, floatX* datt, const floatX* dout, const floatX* qkv, const floatX* att,
                        int B, int T, int C, int NH, cudaStream_t stream) {
    FOR_EACH(attend_back, B * NH, stream, dqkv, datt, dout, qkv, att, T, C, NH);
}

// --- value by value --------------------------------------------------------------------------------------
#define GELU_SLOPE 0.79788456f  // sqrt(2 / pi)
__global__ void gelu(int n, float* out, const float* inp) {
    INDEX_OR_RETURN
    float x = inp[i];
    out[i] = 0.5f * x * (1 + tanhf(GELU_SLOPE * (x + 0.044715f * x * x * x)));
}

__global__ void gelu_back(int n, float* d, const float* inp) {
    INDEX_OR_RETURN
    float x = inp[i], s = tanhf(GELU_SLOPE * (x + 0.044715f * x * x * x));
    d[i] *= 0.5f * (1 + s + x * (1 - s * s) * GELU_SLOPE * (1 + 3 * 0.044715f * x * x));
}

__global__ void gate(int n, float* out, const float* inp, const float* weight, int C) {
    INDEX_OR_RETURN
    out[i] = inp[i] * weight[i % C];
}

__global__ void gate_back(int n, float* dinp, float* dweight, const float* dout, const float* inp,
                          const float* weight, int N) {
    INDEX_OR_RETURN
    for (int k = 0; k < N; k++) {
        dweight[i] += dout[k * n + i] * inp[k * n + i];
        dinp[k * n + i] = dout[k * n + i] * weight[i];
    }
}

__global__ void add(int n, float* out, const float* a, const float* b) {
    INDEX_OR_RETURN
    out[i] = a[i] + b[i];
}

// --- classifier, optimizer ---------------------------------------------------------------------------------
__global__ void classify(int n, float* logits, float* losses, float dloss, const int* targets, int V, int Vp,
                         bool is_backward) {
    INDEX_OR_RETURN
    float *row = logits + (size_t)i * Vp, sum = 0, here = row[targets[i]];
    for (int v = 0; v < V; v++) { sum += expf(row[v]); }
    losses[i] += logf(sum) - here;
    for (int v = 0; v < V && is_backward; v++) { row[v] = (expf(row[v]) / sum - (v == targets[i])) * dloss; }
}

template <bool Backward>
void fused_classifier(floatX* logits, float* losses, float dloss, const int* targets, int B, int T, int V,
                      int Vp, std::bool_constant<Backward>, cudaStream_t stream) {
    FOR_EACH(classify, B * T, stream, logits, losses, dloss, targets, V, Vp, Backward);
}

__global__ void adamw(int n, float* params, float* master, const float* grads, float* m, float* v, float rate,
                      float beta1, float beta2, int t, float eps, float decay, float scale) {
    INDEX_OR_RETURN
    float g = grads[i] * scale, before = master != NULL ? master[i] : params[i];
    m[i] += (1 - beta1) * (g - m[i]);
    v[i] += (1 - beta2) * (g * g - v[i]);
    float step = m[i] / (1 - powf(beta1, t)) / (sqrtf(v[i] / (1 - powf(beta2, t))) + eps);
    params[i] = before - rate * (step + decay * before);
    if (master != NULL) { master[i] = params[i]; }
}

void adamw_update(floatX* params, float* master, floatX* grads, float* m, float* v, size_t num_values,
                  float rate, float beta1, float beta2, int t, float eps, float decay, float scale,
                  unsigned int seed, cudaStream_t stream) {
    (void)seed;
    FOR_EACH(adamw, num_values, stream, params, master, grads, m, v, rate, beta1, beta2, t, eps, decay,
             scale);
}
