// ceilings.c -- the measured peak of this card: copying, and a large matrix product.
#include <cublasLt.h>
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "../../llmc/cuda/context.h"
#include "bench.h"

enum { MAX_ALGORITHMS = 8, WORKSPACE_BYTES = 32 << 20 };

typedef struct {
    void *to, *from;
    size_t num_bytes;
    cudaStream_t stream;
} Copy;

static void run_copy(void* ctx) {
    const Copy* copy = ctx;
    CUDA_CHECK(
        cudaMemcpyAsync(copy->to, copy->from, copy->num_bytes, cudaMemcpyDeviceToDevice, copy->stream));
}

double bench_copy_bytes_per_ns(Bench* bench, size_t num_bytes) {
    OpsContext* ops = bench_ops(bench);
    Copy copy = {.num_bytes = num_bytes, .stream = ops->stream};
    copy.to = ops_alloc(ops, num_bytes, "a copy");
    copy.from = ops_alloc(ops, num_bytes, "a copy");
    double ns = bench_ns(bench, run_copy, &copy, true);
    ops_release(ops, copy.to);
    ops_release(ops, copy.from);
    return 2 * (double)num_bytes / ns;
}

double bench_large_copy_bytes_per_ns(Bench* bench) {
    return bench_copy_bytes_per_ns(bench, bench_tiny(bench) ? 1 << 16 : (size_t)1 << 30);
}

// --- c (n, n) = a^T b, column-major: the layout that weights have in this code -----------------------------

typedef struct {
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t about;
    cublasLtMatrixLayout_t layout;
    cublasLtMatmulAlgo_t* algorithm;
    const floatX *a, *b;
    floatX* c;
    void* workspace;
    cudaStream_t stream;
} Product;

static void run_product(void* ctx) {
    const Product* p = ctx;
    const float one = 1, zero = 0;
    CUBLAS_CHECK(cublasLtMatmul(p->handle, p->about, &one, p->a, p->layout, p->b, p->layout, &zero, p->c,
                                p->layout, p->c, p->layout, p->algorithm, p->workspace, WORKSPACE_BYTES,
                                p->stream));
}

double bench_matmul_flops_per_ns(Bench* bench) {
    const uint64_t n = bench_tiny(bench) ? 64 : 8192;
    const cudaDataType_t type = sizeof(floatX) == 2 ? CUDA_R_16BF : CUDA_R_32F;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    size_t workspace_bytes = WORKSPACE_BYTES;
    Product p = {.stream = bench_ops(bench)->stream};
    p.a = bench_random(bench, n * n, 1);
    p.b = bench_random(bench, n * n, 1);
    p.c = bench_memory(bench, n * n * sizeof *p.c);
    p.workspace = bench_memory(bench, WORKSPACE_BYTES);
    CUBLAS_CHECK(cublasLtCreate(&p.handle));
    CUBLAS_CHECK(cublasLtMatmulDescCreate(&p.about, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    CUBLAS_CHECK(
        cublasLtMatmulDescSetAttribute(p.about, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof transposed));
    CUBLAS_CHECK(cublasLtMatrixLayoutCreate(&p.layout, type, n, n, (int64_t)n));
    cublasLtMatmulPreference_t preference;
    CUBLAS_CHECK(cublasLtMatmulPreferenceCreate(&preference));
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                      &workspace_bytes, sizeof workspace_bytes));
    // As in training (llmc/cuda/matmul.cu): the same bits every time.
    const uint32_t reductions = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE;
    CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK,
                                                      &reductions, sizeof reductions));
    cublasLtMatmulHeuristicResult_t found[MAX_ALGORITHMS];
    int num_found = 0;
    CUBLAS_CHECK(cublasLtMatmulAlgoGetHeuristic(p.handle, p.about, p.layout, p.layout, p.layout, p.layout,
                                                preference, MAX_ALGORITHMS, found, &num_found));
    double best_ns = INFINITY;
    for (int i = 0; i < num_found; i++) {
        p.algorithm = &found[i].algo;
        best_ns = fmin(best_ns, bench_ns(bench, run_product, &p, true));
    }
    CUBLAS_CHECK(cublasLtMatmulPreferenceDestroy(preference));
    CUBLAS_CHECK(cublasLtMatrixLayoutDestroy(p.layout));
    CUBLAS_CHECK(cublasLtMatmulDescDestroy(p.about));
    CUBLAS_CHECK(cublasLtDestroy(p.handle));
    bench_free_memory(bench);
    return 2 * (double)n * (double)n * (double)n / best_ns;
}
