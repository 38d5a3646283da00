/*
matmul_problem.h -- a matrix product of ops.h in cuBLASLt's words. Row-major against column-major, once:

ops.h stores rows one after the other. cuBLASLt's fused epilogues want columns one after the other, and to it
the same memory is the transpose: a row-major (T, C) is a column-major (C, T) with leading dimension C. So
each product is asked for transposed, D (m, n) = op(A) op(B), op(A) (m, k), op(B) (k, n):

    y   = x W^T     y^T  (OC, T) = W x^T      A = weight, stored (C, OC), transposed;  B = x  (C, T)
    dx  = dy W      dx^T (C, T)  = W^T dy^T   A = weight, stored (C, OC);              B = dy (OC, T)
    dW += dy^T x    dW^T (C, OC) = x^T dy     A = x,      stored (C, T);   B = dy, stored (OC, T), transposed

T is never a leading dimension: whatever the number of tokens, rows are as aligned as C and OC make them. A
bias runs along m, which is what the epilogues add.
*/
#pragma once

#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    MATMUL_FORWARD,       // y = x W^T
    MATMUL_FORWARD_BIAS,  // ... + b
    MATMUL_FORWARD_GELU,  // aux = x W^T + b, y = gelu(aux)
    MATMUL_INPUT,         // dx = dy W
    MATMUL_INPUT_DGELU,   // dx = (dy W) * gelu'(aux)
    MATMUL_WEIGHT,        // dW += dy^T x; dW float32
    MATMUL_NUM_KINDS,
} MatmulKind;

// Device pointers of one call. A call that only asks gives 1 << n for what is aligned to so many bytes.
typedef struct {
    const void *a, *b;
    void* d;
    const floatX* bias;  // (m)
    floatX* aux;         // of D's shape: GELU's input
} MatmulOperands;

// Lives on the stack: no allocation per call.
typedef struct {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, d;
    float beta;  // D = op(A) op(B) + beta D
} MatmulProblem;

void matmul_problem_init(MatmulProblem* problem, MatmulKind kind, const MatmulOperands* operands, int T,
                         int C, int OC);
cublasStatus_t matmul_problem_run(OpsContext* ops, MatmulProblem* problem, const MatmulOperands* operands,
                                  const cublasLtMatmulAlgo_t* algo, cudaStream_t stream);
int matmul_kind_is_fused(MatmulKind kind);  // it has an epilogue
const char* matmul_kind_text(MatmulKind kind);

#ifdef __cplusplus
}
#endif
