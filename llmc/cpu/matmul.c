/*
matmul.c -- y = x W^T + b and its two backward products.

forward: y^T = W x^T in tiles, tokens across the vector lanes. The large operand W is read in place; only x
and y are transposed, and the bias is added on the way. dx = dy W has the rows of W across the lanes; a panel
of W is copied if it serves enough tokens. dW += dy^T x uses OpenBLAS. GFLOP/s on 2 AVX-512 cores, 768 ->
2304, tiles : OpenBLAS 0.3.21 -- T 16: 202 : 89, T 64: 290 : 217, T 256: about equal. So tiles are used up to
256 tokens (64 without AVX-512), then OpenBLAS.

dbias is a column sum: each thread owns whole cache lines of columns and adds the rows in order, in double
between blocks of rows. So the result does not depend on the number of threads, nor its error on T.
*/
#include "context.h"
#include "tile.h"

#include <cblas.h>
#include <string.h>

enum {
    FORWARD_OC = 48,    // rows of weights of a task
    BACKWARD_OC = 256,  // depth of a pass of the input gradient
    PACK_MIN_T = 24,    // tokens from which copying a panel of W pays
#ifdef __AVX512F__
    TILES_MAX_T = 256,  // from here on OpenBLAS is as fast
#else
    TILES_MAX_T = TILE,
#endif
};

static int min_int(int a, int b) {
    return a < b ? a : b;
}

// c (m, n) = a b + beta c. Sets OpenBLAS's process-wide number of threads to the context's.
static void sgemm(CBLAS_TRANSPOSE trans_a, CBLAS_TRANSPOSE trans_b, int m, int n, int k, const floatX* a,
                  int lda, const floatX* b, int ldb, float beta, floatX* c, int ldc, const OpsContext* ops) {
    if (openblas_get_num_threads() != ops->num_threads) { openblas_set_num_threads(ops->num_threads); }
    cblas_sgemm(CblasRowMajor, trans_a, trans_b, m, n, k, 1.0f, a, lda, b, ldb, beta, c, ldc);
}

// tokens [t0, t1) of y; xT has room for them: (panels, C, TILE)
static void forward_chunk(floatX* out, float* xT, const floatX* inp, const floatX* weight, const floatX* bias,
                          int t0, int t1, int C, int OC, const OpsContext* ops) {
    const size_t panel = (size_t)C * TILE;
#pragma omp parallel num_threads(ops->num_threads) if ((size_t)C * (size_t)OC > OPS_PARALLEL_VALUES)
    {
#pragma omp for collapse(2)
        for (int t = t0; t < t1; t += TILE) {
            for (int c = 0; c < C; c += TILE) {
                tile_transpose(xT + (size_t)((t - t0) / TILE) * panel + (size_t)c * TILE, TILE,
                               inp + (size_t)t * (size_t)C + c, (size_t)C, min_int(TILE, t1 - t),
                               min_int(TILE, C - c), 1.0f);
            }
        }
#pragma omp for schedule(dynamic, 1)
        for (int o = 0; o < OC; o += FORWARD_OC) {
            float yT[FORWARD_OC * TILE];
            const int num = min_int(FORWARD_OC, OC - o);
            for (int t = t0; t < t1; t += TILE) {
                const int num_tokens = min_int(TILE, t1 - t);
                tile_product(yT, TILE, weight + (size_t)o * (size_t)C, (size_t)C, 1,
                             xT + (size_t)((t - t0) / TILE) * panel, TILE, num, num_tokens, C, false,
                             TILE_DENSE);
                tile_transpose_back(out + (size_t)t * (size_t)OC + o, (size_t)OC, yT, TILE, num, num_tokens,
                                    bias != NULL ? bias + o : NULL);
            }
        }
    }
}

static void forward_blas(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int T,
                         int C, int OC, const OpsContext* ops) {
    if (bias != NULL) {
        const size_t num_values = (size_t)T * (size_t)OC;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
        for (int t = 0; t < T; t++) { memcpy(out + (size_t)t * (size_t)OC, bias, (size_t)OC * sizeof *out); }
    }
    sgemm(CblasNoTrans, CblasTrans, T, OC, C, inp, C, weight, C, bias != NULL ? 1.0f : 0.0f, out, OC, ops);
}

void matmul_forward(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int T, int C,
                    int OC, OpsContext* ops) {
    if (T == 0) { return; }
    const size_t panels = ops_tiles_floats(ops) / ((size_t)C * TILE);
    if (T > TILES_MAX_T || panels == 0) {
        forward_blas(out, inp, weight, bias, T, C, OC, ops);
        return;
    }
    const int chunk = panels < 64 ? (int)panels * TILE : 64 * TILE;
    for (int t = 0; t < T; t += chunk) {
        forward_chunk(out, (float*)ops->tiles, inp, weight, bias, t, min_int(t + chunk, T), C, OC, ops);
    }
}

// columns [begin, end) of dx
static void backward_input_columns(floatX* dinp, float* packed, const floatX* dout, const floatX* weight,
                                   int T, int C, int OC, int begin, int end) {
    for (int o = 0; o < OC; o += BACKWARD_OC) {
        const int depth = min_int(BACKWARD_OC, OC - o);
        for (int c = begin; c < end; c += TILE) {
            const floatX* w = weight + (size_t)o * (size_t)C + c;
            const int num = min_int(TILE, end - c);
            size_t stride = (size_t)C;
            if (T >= PACK_MIN_T) {
                tile_pack(packed, w, stride, depth, num, 1.0f);
                w = packed, stride = (size_t)tile_round_up(num);
            }
            tile_product(dinp + c, (size_t)C, dout + o, (size_t)OC, 1, w, stride, T, num, depth, o > 0,
                         TILE_DENSE);
        }
    }
}

void matmul_backward_input(floatX* dinp, const floatX* dout, const floatX* weight, int T, int C, int OC,
                           OpsContext* ops) {
    if (T == 0) { return; }
    if (T > TILES_MAX_T || C % TILE_LANES != 0) {
        sgemm(CblasNoTrans, CblasNoTrans, T, C, OC, dout, OC, weight, C, 0.0f, dinp, C, ops);
        return;
    }
    const int n = ops->num_threads, num_lines = C / TILE_LANES;
#pragma omp parallel for num_threads(n) if ((size_t)C * (size_t)OC > OPS_PARALLEL_VALUES)
    for (int i = 0; i < n; i++) {
        backward_input_columns(dinp, ops_tile(ops, 0), dout, weight, T, C, OC, num_lines * i / n * TILE_LANES,
                               num_lines * (i + 1) / n * TILE_LANES);
    }
}

enum { BIAS_COLUMNS = 64, BIAS_ROWS = 64 };

static void matmul_add_column_sums(floatX* dbias, const floatX* dout, int T, int OC, int begin, int num) {
    double total[BIAS_COLUMNS] = {0};
    for (int t0 = 0; t0 < T; t0 += BIAS_ROWS) {
        const int t1 = min_int(t0 + BIAS_ROWS, T);
        float sum[BIAS_COLUMNS] = {0};
        for (int t = t0; t < t1; t++) {
            const floatX* d = dout + (size_t)t * (size_t)OC + begin;
            if (num == BIAS_COLUMNS) {
#pragma omp simd
                for (int c = 0; c < BIAS_COLUMNS; c++) { sum[c] += d[c]; }
            } else {
                for (int c = 0; c < num; c++) { sum[c] += d[c]; }
            }
        }
        for (int c = 0; c < num; c++) { total[c] += (double)sum[c]; }
    }
    for (int c = 0; c < num; c++) { dbias[begin + c] += (float)total[c]; }
}

void matmul_backward_weight(floatX* dweight, floatX* dbias, const floatX* dout, const floatX* inp, int T,
                            int C, int OC, OpsContext* ops) {
    if (T == 0) { return; }
    sgemm(CblasTrans, CblasNoTrans, OC, C, T, dout, OC, inp, C, 1.0f, dweight, C, ops);
    if (dbias == NULL) { return; }
    const size_t num_values = (size_t)T * (size_t)OC;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int c = 0; c < OC; c += BIAS_COLUMNS) {
        matmul_add_column_sums(dbias, dout, T, OC, c, min_int(BIAS_COLUMNS, OC - c));
    }
}
