// kernels.cuh -- operations of the made-up CUDA trainer, under the family's names, in float32: the larger ones
// are the CPU tree's loops in one thread; products and attention run on the host, where they take no time.
#pragma once
#include <cuda_runtime.h>
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <algorithm>
#include <type_traits>

namespace loops {
#include "ops.h"
}

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

// --- the CPU tree's loops --------------------------------------------------------------------------------
#define RUN(loop, stream, ...)                    \
    loops::loop<<<1, 1, 0, stream>>>(__VA_ARGS__); \
    cudaCheck(cudaGetLastError())

void encoder_forward(floatX* out, const int* tokens, const floatX* wte, const floatX* wpe, int B, int T,
                     int C, cudaStream_t stream) {
    RUN(encoder_forward, stream, out, tokens, wte, wpe, B, T, C);
}

void encoder_backward(floatX* dwte, floatX* dwpe, floatX* scratch, int* indices, int4* buckets,
                      const floatX* dout, const int* tokens, const int* host_tokens, int B, int T, int C,
                      unsigned int seed, cudaStream_t stream) {
    assert(scratch != NULL && indices != NULL && buckets != NULL && tokens != NULL);
    (void)seed;
    for (int i = 0; i < B * T; i++) { indices[i] = host_tokens[i]; }
    // as theirs: prepared on the host, read in the order of the stream
    cudaCheck(cudaMemcpyAsync(scratch, indices, sizeof(int) * B * T, cudaMemcpyHostToDevice, stream));
    RUN(encoder_backward, stream, dwte, dwpe, dout, (const int*)scratch, B, T, C);
}

void layernorm_forward(floatX* out, float* mean, float* rstd, const floatX* inp, const floatX* weight,
                       const floatX* bias, int B, int T, int C, cudaStream_t stream) {
    RUN(layernorm_forward, stream, out, mean, rstd, inp, weight, bias, B, T, C);
}

void layernorm_backward(floatX* dinp, floatX* dweight, floatX* dbias, float* scratch, const floatX* dout,
                        const floatX* inp, const floatX* weight, const float* mean, const float* rstd, int B,
                        int T, int C, cudaStream_t stream) {
    cudaCheck(cudaMemsetAsync(scratch, 0, sizeof(float) * 1024, stream));  // as theirs: whatever B and T are
    RUN(layernorm_backward, stream, dinp, dweight, dbias, dout, inp, weight, mean, rstd, B, T, C);
}

template <class F> void on_host(cudaStream_t stream, F work) {
    auto run = [](void* of) {
        (*(F*)of)();
        delete (F*)of;
    };
    cudaCheck(cudaLaunchHostFunc(stream, run, new F(work)));
}

void matmul_forward_cublaslt(floatX* out, floatX* inp, floatX* weight, floatX* bias, int B, int T, int C,
                             int OC, cudaStream_t stream) {
    on_host(stream, [=] { loops::matmul_forward(out, inp, weight, bias, B, T, C, OC); });
}

void matmul_backward(floatX* dinp, floatX* dweight, floatX* dbias, floatX* dout, floatX* inp, floatX* weight,
                     float* scratch, int B, int T, int C, int OC, cudaStream_t stream) {
    (void)scratch;
    cudaCheck(cudaMemsetAsync(dinp, 0, sizeof(floatX) * B * T * C, stream));
    on_host(stream, [=] { loops::matmul_backward(dinp, dweight, dbias, dout, inp, weight, B, T, C, OC); });
}

void attention_forward(floatX* out, floatX* qkv, floatX* att, int B, int T, int C, int NH, cudaStream_t stream) {
    on_host(stream, [=] { loops::attention_forward(out, NULL, att, qkv, B, T, C, NH); });
}

void attention_backward(floatX* dqkv, floatX* datt, const floatX* dout, const floatX* qkv, const floatX* att,
                        int B, int T, int C, int NH, cudaStream_t stream) {
    cudaCheck(cudaMemsetAsync(dqkv, 0, sizeof(floatX) * 3 * B * T * C, stream));
    on_host(stream, [=] { loops::attention_backward(dqkv, NULL, datt, dout, qkv, att, B, T, C, NH); });
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
