/*
context.h -- what OpsContext is on a GPU: streams, handles, and memory that operations work in.

Everything is made by ops_create(); no operation allocates. Kernels run on `stream`, in the order of the
calls; tokens travel on `copy_stream` while an earlier job computes. `partials` is scratch of one operation:
the next one on the stream may overwrite it.
*/
#pragma once

#ifndef __cplusplus
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wstrict-prototypes"
#endif
#include <cublasLt.h>
#ifndef __cplusplus
#pragma GCC diagnostic pop
#endif
#include <cuda_runtime.h>
#include <stdio.h>
#include <stdlib.h>

#include "../ops.h"

enum { OPS_PARTIAL_FLOATS = 4 << 20 };  // 16 MiB: (2 blocks per SM, 2, C) of the widest model and more
enum { OPS_BOUNCE_BYTES = 8 << 20 };    // of each of two pinned buffers that large transfers pass through

typedef struct OpsStaging OpsStaging;    // staging.cu: pinned rings for tokens and losses
typedef struct MatmulCache MatmulCache;  // matmul.cu: an algorithm per shape bucket

struct OpsContext {
    cudaStream_t stream, copy_stream;
    cublasLtHandle_t blas;
    void* blas_workspace;
    size_t blas_workspace_bytes;
    float* partials;  // OPS_PARTIAL_FLOATS
    double* sum;      // pinned, one value: where sum_of_squares ends
    int num_sms;
    int capability;          // 10 major + minor: 90 for an H200
    char name[256];          // of the card
    char* bounce[2];         // memory.cu: pinned, OPS_BOUNCE_BYTES each
    cudaEvent_t bounced[2];  // after the last transfer of each
    OpsStaging* staging;
    MatmulCache* matmuls;
};

// Errors of a call into CUDA end the program: nothing that a trainer could do would mend them.
#define CUDA_CHECK(call) ops_cuda_check((call), #call, __FILE__, __LINE__)
#define CHECK_LAUNCH() CUDA_CHECK(cudaGetLastError())  // after every launch; costs nothing beside it
#define CUBLAS_CHECK(call) ops_cublas_check((call), #call, __FILE__, __LINE__)

static inline void ops_cuda_check(cudaError_t error, const char* call, const char* file, int line) {
    if (error == cudaSuccess) { return; }
    fprintf(stderr,
            "%s:%d: %s: %s ---> where an earlier kernel is the cause, CUDA_LAUNCH_BLOCKING=1 or "
            "compute-sanitizer names it\n",
            file, line, call, cudaGetErrorString(error));
    exit(EXIT_FAILURE);
}

static inline void ops_cublas_check(cublasStatus_t status, const char* call, const char* file, int line) {
    if (status == CUBLAS_STATUS_SUCCESS) { return; }
    fprintf(stderr, "%s:%d: %s: %s (%d) ---> CUBLASLT_LOG_LEVEL=5 prints the reason\n", file, line, call,
            cublasLtGetStatusString(status), (int)status);
    exit(EXIT_FAILURE);
}
