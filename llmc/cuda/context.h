/*
context.h -- what OpsContext is on a GPU: streams, handles, and memory that operations work in.

Everything is made by ops_create(); no operation allocates. Kernels run on `stream`, in the order of the
calls; tokens travel on `copy_stream` while an earlier job computes. `partials` is scratch of one operation:
the next one on the stream may overwrite it.
*/
#pragma once

#include <cublasLt.h>
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#include "../ops.h"

enum { OPS_PARTIAL_FLOATS = 4 << 20 };  // 16 MiB: (2 blocks per SM, 2, C) of the widest model and more

typedef struct OpsStaging OpsStaging;    // staging.cu: pinned rings for tokens and losses
typedef struct MatmulCache MatmulCache;  // matmul_cache.cu: an algorithm per shape bucket

struct OpsContext {
    cudaStream_t stream, copy_stream;
    cublasLtHandle_t blas;
    void* blas_workspace;
    size_t blas_workspace_bytes;
    float* partials;  // OPS_PARTIAL_FLOATS
    double* sum;      // pinned, one value: where sum_of_squares ends
    int num_sms;
    char name[256];  // of the card
    OpsStaging* staging;
    MatmulCache* matmuls;
};

// Errors of a call into CUDA end the program: nothing that a trainer could do would mend them.
#define CUDA_CHECK(call) ops_cuda_check((call), #call, __FILE__, __LINE__)
#define CUBLAS_CHECK(call) ops_cublas_check((call), #call, __FILE__, __LINE__)

static inline void ops_cuda_check(cudaError_t error, const char* call, const char* file, int line) {
    if (error == cudaSuccess) { return; }
    fprintf(stderr, "%s:%d: %s: %s\n", file, line, call, cudaGetErrorString(error));
    exit(EXIT_FAILURE);
}

static inline void ops_cublas_check(cublasStatus_t status, const char* call, const char* file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) { return; }
    fprintf(stderr, "%s:%d: %s: cuBLAS error %d\n", file, line, call, (int)status);
    exit(EXIT_FAILURE);
}
