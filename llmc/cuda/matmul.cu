/*
matmul.cu -- matrix products on cuBLASLt, with what can be fused into their ends.

What an epilogue saves is a pass over the (T, OC) output: bias a read and a write; GELU forward the read of
its input; GELU backward a read and a write. For GPT-2 124M, bf16, 64k tokens, the output of the first MLP
matrix is 403 MB: 0.09 ms per pass at 4.3 TB/s (an H200's measured copy) beside 0.4 to 0.5 ms of product at
600 to 800 TFLOP/s. What is not fused is dbias: cuBLASLt's BGRADB overwrites where += is wanted, so that
gradient is one more read of dout (0.09 ms here, a fifth of the product).

Where cuBLASLt has no algorithm with the epilogue (auxiliary rows must be multiples of 8 values), or a slow
one (MATMUL_NO_GELU), the product and separate kernels do the same; where it has none at all, matmul_plain,
which is counted and said. Which, is part of the bucket's answer in matmul_cache.
*/
#include "matmul_cache.h"
#include "matmul_log.h"
#include "matmul_plain.h"

static int alignment(const MatmulOperands* operands) {
    const uintptr_t bits = (uintptr_t)operands->a | (uintptr_t)operands->b | (uintptr_t)operands->d |
                           (uintptr_t)operands->bias | (uintptr_t)operands->aux;
    int align_bytes =
        16;  // what 128-bit loads and TMA want. NEEDSWORK: does a promise of 256 find faster kernels?
    while (bits % (uintptr_t)align_bytes != 0) { align_bytes /= 2; }
    return align_bytes;
}

// NULL: done. Else nothing was queued, and why: in words where cuBLASLt was asked, "" where it was not to be.
static const char* refused(MatmulKind kind, const MatmulOperands* operands, int T, int C, int OC,
                           OpsContext* ops) {
    const int align_bytes = alignment(operands);
    MatmulProblem problem;
    MatmulKey key = {};
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    for (int is_exact = 0; is_exact <= 1; is_exact++) {
        const MatmulChoice* choice = matmul_cache_choose(ops, kind, T, C, OC, align_bytes, is_exact);
        key = matmul_key(kind, T, C, OC, align_bytes, is_exact);
        if (!choice->found) {
            matmul_log_refused(ops, &key, choice->why);
            return choice->was_asked ? choice->why : "";
        }
        if (!is_exact) { matmul_problem_init(&problem, kind, operands, T, C, OC); }
        status = matmul_problem_run(ops, &problem, operands, &choice->algo, ops->stream);
        if (status == CUBLAS_STATUS_SUCCESS) {
            matmul_log_served(ops, &key, choice, &problem, operands);
            return NULL;
        }
        // The algorithm of the bucket does not suit this T.
        if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) { break; }
    }
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) { CUBLAS_CHECK(status); }
    const char* why = "does not take its own algorithm";
    matmul_log_refused(ops, &key, why);
    return why;
}

static bool multiply(MatmulKind kind, const MatmulOperands* operands, int T, int C, int OC, OpsContext* ops) {
    return refused(kind, operands, T, C, OC, ops) == NULL;
}

static void multiply_or_plain(MatmulKind kind, const MatmulOperands* operands, int T, int C, int OC,
                              OpsContext* ops) {
    const char* why = refused(kind, operands, T, C, OC, ops);
    if (why == NULL) { return; }
    if (why[0] != '\0') { matmul_cache_count_plain(ops, kind, T, C, OC, alignment(operands), why); }
    matmul_plain(kind, operands, T, C, OC, ops);
}

void matmul_forward(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int T, int C,
                    int OC, OpsContext* ops) {
    if (T == 0) { return; }
    const MatmulOperands operands = {weight, inp, out, bias, NULL};
    if (bias != NULL && multiply(MATMUL_FORWARD_BIAS, &operands, T, C, OC, ops)) { return; }
    multiply_or_plain(MATMUL_FORWARD, &operands, T, C, OC, ops);
    if (bias != NULL) { matmul_add_bias(out, bias, T, OC, ops); }
}

void matmul_gelu_forward(floatX* out, floatX* pre_gelu, const floatX* inp, const floatX* weight,
                         const floatX* bias, int T, int C, int OC, OpsContext* ops) {
    if (T == 0) { return; }
    const MatmulOperands operands = {weight, inp, out, bias, pre_gelu};
    if (bias != NULL && multiply(MATMUL_FORWARD_GELU, &operands, T, C, OC, ops)) { return; }
    matmul_forward(pre_gelu, inp, weight, bias, T, C, OC, ops);
    gelu_forward(out, pre_gelu, (size_t)T * (size_t)OC, ops);
}

void matmul_backward_input(floatX* dinp, const floatX* dout, const floatX* weight, int T, int C, int OC,
                           OpsContext* ops) {
    if (T == 0) { return; }
    const MatmulOperands operands = {weight, dout, dinp, NULL, NULL};
    multiply_or_plain(MATMUL_INPUT, &operands, T, C, OC, ops);
}

void matmul_gelu_backward_input(floatX* dinp, const floatX* pre_gelu, void* scratch, const floatX* dout,
                                const floatX* weight, int T, int C, int OC, OpsContext* ops) {
    if (T == 0) { return; }
    const MatmulOperands operands = {weight, dout, dinp, NULL, (floatX*)pre_gelu};
    const bool may_fuse = pre_gelu != dinp || !(matmul_cache_restrictions(ops) & MATMUL_NO_IN_PLACE);
    if (may_fuse && multiply(MATMUL_INPUT_DGELU, &operands, T, C, OC, ops)) { return; }
    if (!may_fuse) {
        const MatmulKey key = matmul_key(MATMUL_INPUT_DGELU, T, C, OC, alignment(&operands), 0);
        matmul_log_refused(ops, &key, "is not asked: it would overwrite what it reads");
    }
    matmul_backward_input((floatX*)scratch, dout, weight, T, C, OC, ops);
    gelu_backward(dinp, (const floatX*)scratch, pre_gelu, (size_t)T * (size_t)C, ops);
}

void matmul_backward_weight(float* dweight, float* dbias, const floatX* dout, const floatX* inp, int T, int C,
                            int OC, OpsContext* ops) {
    if (T == 0) { return; }
    const MatmulOperands operands = {inp, dout, dweight, NULL, NULL};
    multiply_or_plain(MATMUL_WEIGHT, &operands, T, C, OC, ops);
    if (dbias != NULL) { matmul_bias_backward(dbias, dout, T, OC, ops); }
}
