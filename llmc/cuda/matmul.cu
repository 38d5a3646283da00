/*
matmul.cu -- matrix products on cuBLASLt, with what can be fused into their ends.

What an epilogue saves is a pass over the (T, OC) output: bias a read and a write; GELU forward the read of
its input; GELU backward a read and a write. For GPT-2 124M, bf16, 64k tokens, the output of the first MLP
matrix is 403 MB: 0.09 ms per pass at 4.3 TB/s (an H200's measured copy) beside 0.4 to 0.5 ms of product at
600 to 800 TFLOP/s. What is not fused is dbias: cuBLASLt's BGRADB overwrites where += is wanted, so that
gradient is one more read of dout (0.09 ms here, a fifth of the product).

Where cuBLASLt has no algorithm with the epilogue (auxiliary rows must be multiples of 8 values), or a slow
one (MATMUL_NO_GELU), the product and separate kernels do the same; where it has none at all, plain tiles,
with a warning.

bf16 is multiplied on tensor cores and summed in float32; float32 stays float32 (TF32 has a mantissa of 10
bits; make CXXFLAGS=-DLLMC_TF32 to have it).

Row-major against column-major, once: ops.h stores rows one after the other. cuBLASLt's fused epilogues want
columns one after the other, and to it the same memory is the transpose: a row-major (T, C) is a column-major
(C, T) with leading dimension C. So each product is asked for transposed, D (m, n) = op(A) op(B), op(A)
(m, k), op(B) (k, n):

    y   = x W^T     y^T  (OC, T) = W x^T      A = weight, stored (C, OC), transposed;  B = x  (C, T)
    dx  = dy W      dx^T (C, T)  = W^T dy^T   A = weight, stored (C, OC);              B = dy (OC, T)
    dW += dy^T x    dW^T (C, OC) = x^T dy     A = x,      stored (C, T);   B = dy, stored (OC, T), transposed

T is never a leading dimension: whatever the number of tokens, rows are as aligned as C and OC make them. A
bias runs along m, which is what the epilogues add.
*/
#include "matmul.h"

#include <array>
#include <map>
#include <set>

#include "launch.cuh"

enum Kind {
    FORWARD,       // y = x W^T
    FORWARD_BIAS,  // ... + b
    FORWARD_GELU,  // aux = x W^T + b, y = gelu(aux)
    INPUT,         // dx = dy W
    INPUT_DGELU,   // dx = (dy W) * gelu'(aux)
    WEIGHT,        // dW += dy^T x; dW float32
};

typedef struct {
    Kind kind;
    int T, C, OC;
    const void *a, *b;
    void* d;
    const floatX* bias;  // (m)
    floatX* aux;         // of D's shape: GELU's input
} Product;

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
    const char* text;
    cublasOperation_t op_a, op_b;
    cublasLtEpilogue_t epilogue;
    cudaDataType_t d_type;
    float beta;  // D = op(A) op(B) + beta D
} kinds[] = {
    {"y = x W^T", CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, FLOATX_TYPE, 0.0f},
    {"y = x W^T + b", CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_BIAS, FLOATX_TYPE, 0.0f},
    {"y = gelu(x W^T + b)", CUBLAS_OP_T, CUBLAS_OP_N, CUBLASLT_EPILOGUE_GELU_AUX_BIAS, FLOATX_TYPE, 0.0f},
    {"dx = dy W", CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DEFAULT, FLOATX_TYPE, 0.0f},
    {"dx = dy W gelu'", CUBLAS_OP_N, CUBLAS_OP_N, CUBLASLT_EPILOGUE_DGELU, FLOATX_TYPE, 0.0f},
    {"dW += dy^T x", CUBLAS_OP_N, CUBLAS_OP_T, CUBLASLT_EPILOGUE_DEFAULT, CUDA_R_32F, 1.0f},
};

// --- cuBLASLt's descriptors --------------------------------------------------------------------------------
// On the stack: no allocation per call.
typedef struct {
    cublasLtMatmulDescOpaque_t desc;
    cublasLtMatrixLayoutOpaque_t a, b, d;
} Problem;

static Problem problem_of(const Product* p) {
    const auto& kind = kinds[p->kind];
    const bool is_forward = p->kind <= FORWARD_GELU, is_weight = p->kind == WEIGHT;
    const int m = is_forward ? p->OC : p->C, n = is_weight ? p->OC : p->T,
              k = is_forward  ? p->C
                  : is_weight ? p->T
                              : p->OC;
    const bool transposed_a = kind.op_a == CUBLAS_OP_T, transposed_b = kind.op_b == CUBLAS_OP_T;
    const int a_rows = transposed_a ? k : m,
              b_rows = transposed_b ? n : k;  // stored; no gaps between columns
    const int64_t aux_rows = m;
    Problem problem;
    CUBLAS_CHECK(cublasLtMatmulDescInit(&problem.desc, COMPUTE_TYPE, CUDA_R_32F));
    const auto set = [&](cublasLtMatmulDescAttributes_t attribute, const auto& value) {
        CUBLAS_CHECK(cublasLtMatmulDescSetAttribute(&problem.desc, attribute, &value, sizeof value));
    };
    set(CUBLASLT_MATMUL_DESC_TRANSA, kind.op_a);
    set(CUBLASLT_MATMUL_DESC_TRANSB, kind.op_b);
    if (kind.epilogue != CUBLASLT_EPILOGUE_DEFAULT) { set(CUBLASLT_MATMUL_DESC_EPILOGUE, kind.epilogue); }
    if (p->kind == FORWARD_BIAS || p->kind == FORWARD_GELU) {
        set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, p->bias);
    }
    if (p->kind == FORWARD_GELU || p->kind == INPUT_DGELU) {
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, p->aux);
        set(CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, aux_rows);
    }
    CUBLAS_CHECK(cublasLtMatrixLayoutInit(&problem.a, FLOATX_TYPE, (uint64_t)a_rows,
                                          (uint64_t)(transposed_a ? m : k), a_rows));
    CUBLAS_CHECK(cublasLtMatrixLayoutInit(&problem.b, FLOATX_TYPE, (uint64_t)b_rows,
                                          (uint64_t)(transposed_b ? k : n), b_rows));
    CUBLAS_CHECK(cublasLtMatrixLayoutInit(&problem.d, kind.d_type, (uint64_t)m, (uint64_t)n, m));
    return problem;
}

// --- algorithms --------------------------------------------------------------------------------------------
// Token counts differ from microbatch to microbatch, and asking the heuristic about a new one takes the
// host 0.06 ms (ml-explore/mlx issue 3861): as long as a small product takes the card. So T is rounded up to
// one of eight steps per octave (at most 12.5 % more), and the heuristic is asked for that T; every T of the
// bucket uses the answer.
//
// Is the answer valid for all of them? An algorithm is a tile, a number of stages and of splits; what it
// demands (alignment of leading dimensions and pointers) does not depend on T here, and workspace should be
// largest for the largest T. Where that is wrong for some T, cublasLtMatmul() returns INVALID_VALUE or
// NOT_SUPPORTED (its manual), and the heuristic is asked for exactly that T, under a key of its own: so which
// algorithm a shape gets depends on the shape alone, not on what was asked before. Nothing is chosen by
// timing, and sums that split k go through the workspace in float32 (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE),
// not through the output; so the same shape should give the same bits in every run on the same kind of card
// with the same library, as cuBLAS' manual promises for one stream. NEEDSWORK: none of this was seen on a
// card yet.

typedef std::array<int, 6> Key;  // kind, T, C, OC, alignment of pointers in bytes, is it for this T alone

typedef struct {
    bool found;  // false: cuBLASLt does not serve this, or not with this epilogue
    cublasLtMatmulAlgo_t algo;
} Choice;

struct MatmulCache {
    std::map<Key, Choice> choices;
    std::set<Key> warned;
    int without;  // MATMUL_NO_...
    int64_t num_queries, num_plain;
};

MatmulCache* matmul_cache_create(int capability) {
    MatmulCache* cache = new MatmulCache();
    const bool has_fast_gelu = capability >= 90 && capability < 120;
    cache->without = MATMUL_NO_IN_PLACE | (has_fast_gelu ? 0 : MATMUL_NO_GELU);
    return cache;
}

void matmul_cache_free(MatmulCache* cache) {
    if (cache->num_plain > 0) {
        fprintf(stderr,
                "warning: %lld matrix products ran on plain tiles, which cuBLASLt refused ---> see the "
                "warnings above\n",
                (long long)cache->num_plain);
    }
    delete cache;
}

void matmul_restrict(OpsContext* ops, int without) {
    ops->matmuls->without = without;
}

int matmul_restrictions(const OpsContext* ops) {
    return ops->matmuls->without;
}

int64_t matmul_num_queries(const OpsContext* ops) {
    return ops->matmuls->num_queries;
}

int64_t matmul_num_plain(const OpsContext* ops) {
    return ops->matmuls->num_plain;
}

int matmul_bucket(int T) {
    int step = 1;
    while (T > 16 * step) { step *= 2; }  // 8 step < T <= 16 step, or T <= 16
    return (T + step - 1) / step * step;
}

// Of all pointers; 16 is what 128-bit loads and TMA want. NEEDSWORK: does a promise of 256 find faster
// kernels?
static int alignment(const Product* p) {
    const uintptr_t bits =
        (uintptr_t)p->a | (uintptr_t)p->b | (uintptr_t)p->d | (uintptr_t)p->bias | (uintptr_t)p->aux;
    int align_bytes = 16;
    while (bits % (uintptr_t)align_bytes != 0) { align_bytes /= 2; }
    return align_bytes;
}

static Choice ask(OpsContext* ops, const Product* p, int T, int align_bytes) {
    Product wanted = *p;
    wanted.T = T;
    Problem problem = problem_of(&wanted);
    cublasLtMatmulPreferenceOpaque_t preference;
    CUBLAS_CHECK(cublasLtMatmulPreferenceInit(&preference));
    const auto set = [&](cublasLtMatmulPreferenceAttributes_t attribute, const auto& value) {
        CUBLAS_CHECK(cublasLtMatmulPreferenceSetAttribute(&preference, attribute, &value, sizeof value));
    };
    const uint32_t scheme = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, align = (uint32_t)align_bytes;
    set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, (uint64_t)ops->blas_workspace_bytes);
    set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, scheme);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, align);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, align);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, align);
    set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, align);
    cublasLtMatmulHeuristicResult_t answers[4];
    int num_answers = 0;
    ops->matmuls->num_queries++;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(ops->blas, &problem.desc, &problem.a, &problem.b, &problem.d,
                                       &problem.d, &preference, 4, answers, &num_answers);
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) { return {}; }  // no such combination
    CUBLAS_CHECK(status);
    for (int i = 0; i < num_answers; i++) {  // best first
        if (answers[i].state == CUBLAS_STATUS_SUCCESS) { return {true, answers[i].algo}; }
    }
    return {};
}

// False: nothing was queued, `why` says what cuBLASLt did.
static bool multiply(const Product* p, const char** why, OpsContext* ops) {
    MatmulCache* cache = ops->matmuls;
    const int align_bytes = alignment(p);
    const float alpha = 1.0f;
    Problem problem = problem_of(p);
    cublasStatus_t status = CUBLAS_STATUS_NOT_SUPPORTED;
    *why = "does not take its own algorithm";
    for (int is_exact = 0; is_exact <= 1; is_exact++) {
        const int T = is_exact ? p->T : matmul_bucket(p->T);
        const Key key = {p->kind, T, p->C, p->OC, align_bytes, is_exact};
        auto known = cache->choices.find(key);
        if (known == cache->choices.end()) {
            known = cache->choices.emplace(key, ask(ops, p, T, align_bytes)).first;
        }
        if (!known->second.found) {
            *why = "has no algorithm";
            return false;
        }
        status = cublasLtMatmul(ops->blas, &problem.desc, &alpha, p->a, &problem.a, p->b, &problem.b,
                                &kinds[p->kind].beta, p->d, &problem.d, p->d, &problem.d, &known->second.algo,
                                ops->blas_workspace, ops->blas_workspace_bytes, ops->stream);
        if (status == CUBLAS_STATUS_SUCCESS) { return true; }
        // the algorithm of the bucket does not suit this T
        if (status != CUBLAS_STATUS_NOT_SUPPORTED && status != CUBLAS_STATUS_INVALID_VALUE) { break; }
    }
    if (status != CUBLAS_STATUS_NOT_SUPPORTED) { CUBLAS_CHECK(status); }
    return false;
}

// With the epilogue of its kind, where that is allowed and cuBLASLt has it. Rows and pointers of GELU's
// auxiliary values: cuBLASLt.h on EPILOGUE_AUX_LD, EPILOGUE_AUX_POINTER.
static bool multiply_fused(const Product* p, OpsContext* ops) {
    const int without = ops->matmuls->without;
    const bool has_aux = p->kind != FORWARD_BIAS;
    const char* why;
    if (without & (MATMUL_NO_LIBRARY | MATMUL_NO_EPILOGUES) || (has_aux && without & MATMUL_NO_GELU)) {
        return false;
    }
    if (has_aux && ((p->kind == FORWARD_GELU ? p->OC : p->C) % 8 != 0 || alignment(p) < 16)) { return false; }
    return multiply(p, &why, ops);
}

// --- bias gradient -----------------------------------------------------------------------------------------
// A warp reads 512 bytes of a row, 16 per thread, and walks down every 8th row of the block's chunk; the
// warps of a block are added in shared memory, the blocks of a column by a second, tiny kernel: fixed order.
// One read of dout: floor T * OC * sizeof(floatX) / bandwidth. 8 blocks of 256 threads fit on an SM: all run
// at once.
enum { SUM_WARPS = 8, SUM_THREADS = 32 * SUM_WARPS, MIN_CHUNK_ROWS = 4 * SUM_WARPS, SUM_BLOCKS_PER_SM = 8 };

// N columns per thread. partials (gridDim.y, OC); where gridDim.y is 1, dbias += instead.
template <int N>
__global__ static void __launch_bounds__(SUM_THREADS)
    column_sums_kernel(float* dbias, float* partials, const floatX* dout, int T, int OC, int chunk_rows) {
    // Value i of a lane at i * STRIDE: no two lanes meet in a bank, neither here nor when columns are read in
    // order.
    constexpr int STRIDE = WARP_THREADS + WARP_THREADS / N;
    __shared__ float sums[SUM_WARPS][STRIDE * N];
    const int lane = warp_lane(), warp = warp_idx();
    const int column = ((int)blockIdx.x * WARP_THREADS + lane) * N;
    const int begin = (int)blockIdx.y * chunk_rows, end = min(T, begin + chunk_rows);
    Floats<N> sum = floats_of<N>(0.0f);
    if (column < OC) {
#pragma unroll 4
        for (int t = begin + warp; t < end; t += SUM_WARPS) {
            const Floats<N> row = load_floats<N>(dout + (size_t)t * OC + column);
#pragma unroll
            for (int i = 0; i < N; i++) { sum[i] += row[i]; }
        }
    }
#pragma unroll
    for (int i = 0; i < N; i++) { sums[warp][i * STRIDE + lane] = sum[i]; }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < WARP_THREADS * N; i += SUM_THREADS) {
        const int c = (int)blockIdx.x * WARP_THREADS * N + i;
        if (c >= OC) { return; }
        float total = 0.0f;
        for (int w = 0; w < SUM_WARPS; w++) { total += sums[w][i % N * STRIDE + i / N]; }
        if (gridDim.y == 1) {
            dbias[c] += total;
        } else {
            partials[(size_t)blockIdx.y * OC + c] = total;
        }
    }
}

__global__ static void add_partials_kernel(float* dbias, const float* partials, int num_partials, int OC) {
    const int column = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (column >= OC) { return; }
    float total = 0.0f;
#pragma unroll 4
    for (int i = 0; i < num_partials; i++) { total += partials[(size_t)i * OC + column]; }
    dbias[column] += total;
}

template <int N> static void column_sums(float* dbias, const floatX* dout, int T, int OC, OpsContext* ops) {
    const int num_columns = (int)blocks_for((size_t)OC, WARP_THREADS * N);
    int num_chunks = (int)blocks_for((size_t)(SUM_BLOCKS_PER_SM * ops->num_sms), (size_t)num_columns);
    num_chunks = min_int(num_chunks, min_int(OPS_PARTIAL_FLOATS / OC, T / MIN_CHUNK_ROWS));
    const int chunk_rows = num_chunks > 1 ? (int)blocks_for((size_t)T, (size_t)num_chunks) : T;
    num_chunks = (int)blocks_for((size_t)T, (size_t)chunk_rows);
    const dim3 grid((unsigned)num_columns, (unsigned)num_chunks);
    column_sums_kernel<N>
        <<<grid, SUM_THREADS, 0, ops->stream>>>(dbias, ops->partials, dout, T, OC, chunk_rows);
    CHECK_LAUNCH();
    if (num_chunks == 1) { return; }
    add_partials_kernel<<<blocks_for((size_t)OC, 128), 128, 0, ops->stream>>>(dbias, ops->partials,
                                                                              num_chunks, OC);
    CHECK_LAUNCH();
}

// dbias (OC) += column sums of dout (T, OC). Deterministic.
static void add_column_sums(float* dbias, const floatX* dout, int T, int OC, OpsContext* ops) {
    if (vectors_fit(OC, dout)) {
        column_sums<FLOATX_PER_LOAD>(dbias, dout, T, OC, ops);
    } else {
        column_sums<1>(dbias, dout, T, OC, ops);
    }
}

// --- what cuBLASLt refuses ---------------------------------------------------------------------------------
__global__ static void add_bias_kernel(floatX* out, const floatX* bias, size_t num_values, int OC) {
    const size_t stride = (size_t)gridDim.x * blockDim.x;
    for (size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x; i < num_values; i += stride) {
        out[i] = (floatX)((float)out[i] + (float)bias[i % OC]);
    }
}

static void add_bias(floatX* out, const floatX* bias, int T, int OC, OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)OC;
    const unsigned num_blocks = (unsigned)min_int((int)blocks_for(num_values, 256), 16 * ops->num_sms);
    add_bias_kernel<<<num_blocks, 256, 0, ops->stream>>>(out, bias, num_values, OC);
    CHECK_LAUNCH();
}

enum { TILE = 16 };

// d (M, N) row-major = a b + beta d in float32; a(i, k) at a[i * a_i + k * a_k], b(k, j) at b[k * b_k + j].
// Tiles of 16 x 16 through shared memory.
template <typename Out>
__global__ static void __launch_bounds__(TILE* TILE)
    plain_kernel(Out* d, const floatX* a, size_t a_i, size_t a_k, const floatX* b, size_t b_k, size_t b_j,
                 int M, int N, int K, float beta) {
    __shared__ float tile_a[TILE][TILE + 1], tile_b[TILE][TILE + 1];
    const int x = threadIdx.x, y = threadIdx.y;
    const int i0 = blockIdx.x * TILE, j0 = blockIdx.y * TILE;
    float sum = 0.0f;
    for (int k0 = 0; k0 < K; k0 += TILE) {
        tile_a[y][x] = i0 + y < M && k0 + x < K ? (float)a[(i0 + y) * a_i + (k0 + x) * a_k] : 0.0f;
        tile_b[y][x] = k0 + y < K && j0 + x < N ? (float)b[(k0 + y) * b_k + (j0 + x) * b_j] : 0.0f;
        __syncthreads();
        for (int k = 0; k < TILE; k++) { sum += tile_a[y][k] * tile_b[k][x]; }
        __syncthreads();
    }
    if (i0 + y >= M || j0 + x >= N) { return; }
    Out* out = d + (size_t)(i0 + y) * N + j0 + x;
    *out = (Out)(beta == 0.0f ? sum : sum + beta * (float)*out);
}

static void multiply_plain(const Product* p, OpsContext* ops) {
    const floatX *a = (const floatX*)p->a, *b = (const floatX*)p->b;
    const size_t c = (size_t)p->C, oc = (size_t)p->OC;
    const int M = p->kind == WEIGHT ? p->OC : p->T, N = p->kind == FORWARD ? p->OC : p->C;
    const dim3 grid((unsigned)((M + TILE - 1) / TILE), (unsigned)((N + TILE - 1) / TILE)), block(TILE, TILE);
    if (p->kind == WEIGHT) {  // dW (OC, C) = dy^T x: a is x, b is dy
        plain_kernel<float>
            <<<grid, block, 0, ops->stream>>>((float*)p->d, b, 1, oc, a, c, 1, M, N, p->T, 1.0f);
    } else if (p->kind == FORWARD) {  // y (T, OC) = x W^T
        plain_kernel<floatX>
            <<<grid, block, 0, ops->stream>>>((floatX*)p->d, b, c, 1, a, 1, c, M, N, p->C, 0.0f);
    } else {  // dx (T, C) = dy W
        plain_kernel<floatX>
            <<<grid, block, 0, ops->stream>>>((floatX*)p->d, b, oc, 1, a, c, 1, M, N, p->OC, 0.0f);
    }
    CHECK_LAUNCH();
}

// Plain tiles where the library refuses, some hundred times slower: a warning for each kind, C, OC,
// alignment.
static void multiply_or_plain(const Product* p, OpsContext* ops) {
    MatmulCache* cache = ops->matmuls;
    const char* why = NULL;
    if (!(cache->without & MATMUL_NO_LIBRARY)) {
        if (multiply(p, &why, ops)) { return; }
        const int align_bytes = alignment(p);
        cache->num_plain++;
        if (cache->warned.insert(Key{p->kind, 0, p->C, p->OC, align_bytes, 0}).second) {
            fprintf(stderr,
                    "warning: cuBLASLt %s for %s, T %d, C %d, OC %d, %s, pointers aligned to %d bytes ---> "
                    "plain tiles stand in, some 100 times slower; multiples of 8 channels are served "
                    "everywhere\n",
                    why, kinds[p->kind].text, p->T, p->C, p->OC, sizeof(floatX) == 2 ? "bf16" : "float32",
                    align_bytes);
        }
    }
    multiply_plain(p, ops);
}

// --- the operations ----------------------------------------------------------------------------------------
void matmul_forward(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int T, int C,
                    int OC, OpsContext* ops) {
    if (T == 0) { return; }
    Product p = {FORWARD_BIAS, T, C, OC, weight, inp, out, bias, NULL};
    if (bias != NULL && multiply_fused(&p, ops)) { return; }
    p.kind = FORWARD;
    multiply_or_plain(&p, ops);
    if (bias != NULL) { add_bias(out, bias, T, OC, ops); }
}

void matmul_gelu_forward(floatX* out, floatX* pre_gelu, const floatX* inp, const floatX* weight,
                         const floatX* bias, int T, int C, int OC, OpsContext* ops) {
    if (T == 0) { return; }
    const Product p = {FORWARD_GELU, T, C, OC, weight, inp, out, bias, pre_gelu};
    if (bias != NULL && multiply_fused(&p, ops)) { return; }
    matmul_forward(pre_gelu, inp, weight, bias, T, C, OC, ops);
    gelu_forward(out, pre_gelu, (size_t)T * (size_t)OC, ops);
}

void matmul_backward_input(floatX* dinp, const floatX* dout, const floatX* weight, int T, int C, int OC,
                           OpsContext* ops) {
    if (T == 0) { return; }
    const Product p = {INPUT, T, C, OC, weight, dout, dinp, NULL, NULL};
    multiply_or_plain(&p, ops);
}

void matmul_gelu_backward_input(floatX* dinp, const floatX* pre_gelu, void* scratch, const floatX* dout,
                                const floatX* weight, int T, int C, int OC, OpsContext* ops) {
    if (T == 0) { return; }
    const Product p = {INPUT_DGELU, T, C, OC, weight, dout, dinp, NULL, (floatX*)pre_gelu};
    const bool may_fuse = pre_gelu != dinp || !(ops->matmuls->without & MATMUL_NO_IN_PLACE);
    if (may_fuse && multiply_fused(&p, ops)) { return; }
    matmul_backward_input((floatX*)scratch, dout, weight, T, C, OC, ops);
    gelu_backward(dinp, (const floatX*)scratch, pre_gelu, (size_t)T * (size_t)C, ops);
}

void matmul_backward_weight(float* dweight, float* dbias, const floatX* dout, const floatX* inp, int T, int C,
                            int OC, OpsContext* ops) {
    if (T == 0) { return; }
    const Product p = {WEIGHT, T, C, OC, inp, dout, dweight, NULL, NULL};
    multiply_or_plain(&p, ops);
    if (dbias != NULL) { add_column_sums(dbias, dout, T, OC, ops); }
}
