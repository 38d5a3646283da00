/*
embedding.c -- sum of token and position embedding, where there are positions; backward adds rows where tokens
repeat.

Backward gives each thread a range of channels and lets it walk all tokens in order: no two threads write the
same value, and the order of additions does not depend on the number of threads.
*/
#include "context.h"

#include <string.h>

void embedding_forward(floatX* out, const int32_t* tokens, const int32_t* positions, const floatX* wte,
                       const floatX* wpe, int T, int C, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)C;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int t = 0; t < T; t++) {
        floatX* o = out + (size_t)t * (size_t)C;
        const floatX* a = wte + (size_t)tokens[t] * (size_t)C;
        if (wpe == NULL) {
            memcpy(o, a, (size_t)C * sizeof *o);
            continue;
        }
        const floatX* b = wpe + (size_t)positions[t] * (size_t)C;
#pragma omp simd
        for (int c = 0; c < C; c++) { o[c] = a[c] + b[c]; }
    }
}

static void embedding_add_channels(float* dwte, float* dwpe, const floatX* dout, const int32_t* tokens,
                                   const int32_t* positions, int T, int C, int begin, int end) {
    for (int t = 0; t < T; t++) {
        const floatX* d = dout + (size_t)t * (size_t)C;
        float* a = dwte + (size_t)tokens[t] * (size_t)C;
#pragma omp simd
        for (int c = begin; c < end; c++) { a[c] += d[c]; }
        if (dwpe == NULL) { continue; }
        float* b = dwpe + (size_t)positions[t] * (size_t)C;
#pragma omp simd
        for (int c = begin; c < end; c++) { b[c] += d[c]; }
    }
}

size_t embedding_backward_scratch_bytes(int T, int C, const OpsContext* ops) {
    (void)T, (void)C, (void)ops;
    return 0;
}

void embedding_backward(float* dwte, float* dwpe, void* scratch, const floatX* dout, const int32_t* tokens,
                        const int32_t* positions, int T, int C, OpsContext* ops) {
    (void)scratch;
    // whole cache lines per thread
    const int num_lines = (C + 15) / 16, n = ops->num_threads;
    const size_t num_values = (size_t)T * (size_t)C;
#pragma omp parallel for num_threads(n) if (num_values > OPS_PARALLEL_VALUES)
    for (int i = 0; i < n; i++) {
        int begin = num_lines * i / n * 16, end = num_lines * (i + 1) / n * 16;
        embedding_add_channels(dwte, dwpe, dout, tokens, positions, T, C, begin, end < C ? end : C);
    }
}
