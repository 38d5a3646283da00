/*
matmul.c -- y = x W^T + b and its two backward products, by OpenBLAS.

dbias is a column sum: each thread owns whole cache lines of columns and adds the rows in order, in double
between blocks of rows, so the result does not depend on the number of threads and its error not on T.
*/
#include "context.h"

#include <cblas.h>
#include <string.h>

void matmul_forward(floatX* out, const floatX* inp, const floatX* weight, const floatX* bias, int T, int C,
                    int OC, OpsContext* ops) {
    if (T == 0) { return; }
    if (bias != NULL) {
        const size_t num_values = (size_t)T * (size_t)OC;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
        for (int t = 0; t < T; t++) { memcpy(out + (size_t)t * (size_t)OC, bias, (size_t)OC * sizeof *out); }
    }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasTrans, T, OC, C, 1.0f, inp, C, weight, C,
                bias != NULL ? 1.0f : 0.0f, out, OC);
}

void matmul_backward_input(floatX* dinp, const floatX* dout, const floatX* weight, int T, int C, int OC,
                           OpsContext* ops) {
    (void)ops;
    if (T == 0) { return; }
    cblas_sgemm(CblasRowMajor, CblasNoTrans, CblasNoTrans, T, C, OC, 1.0f, dout, OC, weight, C, 0.0f, dinp,
                C);
}

enum { BIAS_COLUMNS = 64, BIAS_ROWS = 64 };

static void matmul_add_column_sums(floatX* dbias, const floatX* dout, int T, int OC, int begin, int num) {
    double total[BIAS_COLUMNS] = {0};
    for (int t0 = 0; t0 < T; t0 += BIAS_ROWS) {
        const int t1 = t0 + BIAS_ROWS < T ? t0 + BIAS_ROWS : T;
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
    cblas_sgemm(CblasRowMajor, CblasTrans, CblasNoTrans, OC, C, T, 1.0f, dout, OC, inp, C, 1.0f, dweight, C);
    if (dbias == NULL) { return; }
    const size_t num_values = (size_t)T * (size_t)OC;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int c = 0; c < OC; c += BIAS_COLUMNS) {
        matmul_add_column_sums(dbias, dout, T, OC, c, OC - c < BIAS_COLUMNS ? OC - c : BIAS_COLUMNS);
    }
}
