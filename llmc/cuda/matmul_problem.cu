// matmul_problem.cu -- cuBLASLt's descriptors of a product. bf16 is multiplied on tensor cores and summed in
// float32; float32 stays float32 (TF32 has a mantissa of 10 bits; make CXXFLAGS=-DLLMC_TF32 to have it).
#include "matmul_problem.h"

#ifdef LLMC_BF16
#define FLOATX_TYPE CUDA_R_16BF
#else
#define FLOATX_TYPE CUDA_R_32F
#endif
#if defined(LLMC_TF32) && !defined(LLMC_BF16)
#define COMPUTE_TYPE CUBLAS_COMPUTE_32F_FAST_TF32
#else
#define COMPUTE_TYPE CUBLAS_COMPUTE_32F
#endif

static const struct {
    cublasOperation_t op_a, op_b;
    cublasLtEpilogue_t epilogue;
    cudaDataType_t d_type;
    float beta;
} kinds[MATMUL_NUM_KINDS] = {
    /* FORWARD      */ {CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, FLOATX_TYPE, 0.0f},
    /* FORWARD_BIAS */ {CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_BIAS, FLOATX_TYPE, 0.0f},
    /* FORWARD_GELU */ {CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, FLOATX_TYPE, 0.0f},
    /* INPUT        */ {CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, FLOATX_TYPE, 0.0f},
    /* INPUT_DGELU  */ {CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DGELU, FLOATX_TYPE, 0.0f},
    /* WEIGHT       */ {CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F, 1.0f},
};

int matmul_kind_is_fused(MatmulKind kind) {
    return kinds[kind].epilogue != CUBLASLT_EPILOGUE_DEFAULT;
}

const char* matmul_kind_text(MatmulKind kind) {
    static const char* const texts[MATMUL_NUM_KINDS] = {"y = x W^T", "y = x W^T + b",   "y = gelu(x W^T + b)",
                                                        "dx = dy W", "dx = dy W gelu'", "dW += dy^T x"};
    return texts[kind];
}

static void set(MatmulProblem* problem, cublasLtMatmulDescAttributes_t attribute, const void* value,
                size_t num_bytes) {
    CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(&problem->desc, attribute, value, num_bytes));
}

void matmul_problem_init(MatmulProblem* problem, MatmulKind kind, const MatmulOperands* operands, int T,
                         int C, int OC) {
    const bool is_forward = kind <= MATMUL_FORWARD_GELU, is_weight = kind == MATMUL_WEIGHT;
    const int m = is_forward ? OC : C, n = is_weight ? OC : T, k = is_forward ? C : is_weight ? T : OC;
    const bool transposed_a = kinds[kind].op_a == CUBLAS_OP_T, transposed_b = kinds[kind].op_b == CUBLAS_OP_T;
    const int a_rows = transposed_a ? k : m,
              b_rows = transposed_b ? n : k;  // stored; no gaps between columns
    CUBLAS_CHECK(cublasLtMatmulDescInit(&problem->desc, COMPUTE_TYPE, CUDA_R_32F));
    set(problem, CUBLASLT_MATMUL_DESC_TRANSA, &kinds[kind].op_a, sizeof kinds[kind].op_a);
    set(problem, CUBLASLT_MATMUL_DESC_TRANSB, &kinds[kind].op_b, sizeof kinds[kind].op_b);
    if (matmul_kind_is_fused(kind)) {
        set(problem, CUBLASLT_MATMUL_DESC_EPILOGUE, &kinds[kind].epilogue, sizeof kinds[kind].epilogue);
    }
    if (kind == MATMUL_FORWARD_BIAS || kind == MATMUL_FORWARD_GELU) {
        set(problem, CUBLASLT_MATMUL_DESC_BIAS_POINTER, &operands->bias, sizeof operands->bias);
    }
    if (kind == MATMUL_FORWARD_GELU || kind == MATMUL_INPUT_DGELU) {
        const int64_t aux_rows = m;
        set(problem, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, &operands->aux, sizeof operands->aux);
        set(problem, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, &aux_rows, sizeof aux_rows);
    }
    const uint64_t a_columns = (uint64_t)(transposed_a ? m : k), b_columns = (uint64_t)(transposed_b ? k : n);
    CUBLAS_CHECK(cublasLtMatrixLayoutInit(&problem->a, FLOATX_TYPE, (uint64_t)a_rows, a_columns, a_rows));
    CUBLAS_CHECK(cublasLtMatrixLayoutInit(&problem->b, FLOATX_TYPE, (uint64_t)b_rows, b_columns, b_rows));
    CUBLAS_CHECK(cublasLtMatrixLayoutInit(&problem->d, kinds[kind].d_type, (uint64_t)m, (uint64_t)n, m));
    problem->beta = kinds[kind].beta;
}

cublasStatus_t matmul_problem_run(OpsContext* ops, MatmulProblem* problem, const MatmulOperands* operands,
                                  const cublasLtMatmulAlgo_t* algo, cudaStream_t stream) {
    const float alpha = 1.0f;
    return cublasLtMatmul(ops->blas, &problem->desc, &alpha, operands->a, &problem->a, operands->b,
                          &problem->b, &problem->beta, operands->d, &problem->d, operands->d, &problem->d,
                          algo, ops->blas_workspace, ops->blas_workspace_bytes, stream);
}
