// matmul_plain.h -- kernels beside cuBLASLt: the bias gradient, and what stands in where it serves a product
// not at all or without its epilogue.
#pragma once

#include "context.h"
#include "matmul_problem.h"

#ifdef __cplusplus
extern "C" {
#endif

// dbias (OC) += column sums of dout (T, OC). Deterministic.
void matmul_bias_backward(float* dbias, const floatX* dout, int T, int OC, OpsContext* ops);
// out (T, OC) += bias (OC), in place
void matmul_add_bias(floatX* out, const floatX* bias, int T, int OC, OpsContext* ops);
// The product of a kind without epilogue (FORWARD, INPUT, WEIGHT), for any shape and alignment; slow.
void matmul_plain(MatmulKind kind, const MatmulOperands* operands, int T, int C, int OC, OpsContext* ops);

#ifdef __cplusplus
}
#endif
