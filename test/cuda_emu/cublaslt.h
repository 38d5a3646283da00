/*
cublaslt.h -- cuBLASLt's opaque descriptors as they are here, and the product itself (cublaslt_run.cpp).

All matrices are column-major, as the library's default is: element (row, column) at column * ld + row.
*/
#pragma once

#include <cublasLt.h>

namespace emu {

struct MatmulDesc {  // cublasLtMatmulDesc_t
    cublasComputeType_t compute;
    cudaDataType_t scale;
    cublasOperation_t transa, transb;
    cublasLtEpilogue_t epilogue;
    void* bias;
    void* aux;
    int64_t aux_ld;               // elements
    int32_t bias_type, aux_type;  // -1: that of D
    int32_t pointer_mode;
};
struct MatrixLayout {  // cublasLtMatrixLayout_t
    cudaDataType_t type;
    int32_t num_batches;
    uint64_t rows, columns;
    int64_t ld, batch_stride;  // elements
    int32_t order;
};
struct MatmulPreference {  // cublasLtMatmulPreference_t
    uint64_t max_workspace_bytes;
    uint32_t min_alignment[4];  // bytes, of A, B, C, D
    uint32_t reduction_schemes;
};
struct MatmulAlgo {    // cublasLtMatmulAlgo_t
    uint64_t m, n, k;  // it was asked for
    uint64_t workspace_bytes;
    uint32_t signature;  // types, transposes, epilogue
    uint8_t alignment[4];
};
static_assert(sizeof(MatmulDesc) <= sizeof(cublasLtMatmulDescOpaque_t));
static_assert(sizeof(MatrixLayout) <= sizeof(cublasLtMatrixLayoutOpaque_t));
static_assert(sizeof(MatmulPreference) <= sizeof(cublasLtMatmulPreferenceOpaque_t));
static_assert(sizeof(MatmulAlgo) <= sizeof(cublasLtMatmulAlgo_t));

struct Matmul {  // a call: D = epilogue(alpha op(A) op(B) + beta C)
    MatmulDesc about;
    MatrixLayout a, b, c, d;
    const void *a_data, *b_data, *c_data;
    void* d_data;
    float alpha, beta;
    void* workspace;
    size_t workspace_bytes;
    uint64_t m() const {
        return d.rows;
    }
    uint64_t n() const {
        return d.columns;
    }
    uint64_t k() const {
        return about.transa == CUBLAS_OP_N ? a.columns : a.rows;
    }
};

// What an epilogue is made of.
struct Epilogue {
    bool bias, gelu, aux_out, dgelu, bgrad_a, bgrad_b, bgrad_d;
    bool known;
};
Epilogue epilogue_parts(cublasLtEpilogue_t epilogue);

void matmul_run(const Matmul& call);
size_t type_bytes(int type);  // 0: not emulated

}  // namespace emu
