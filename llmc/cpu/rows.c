/*
rows.c -- pick and put back rows: the supervised ones for the head; new keys and values for a cache.
*/
#include "context.h"

#include <string.h>

void gather_rows(floatX* out, const floatX* inp, const int32_t* rows, int num_rows, int C, OpsContext* ops) {
    const size_t num_values = (size_t)num_rows * (size_t)C;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int i = 0; i < num_rows; i++) {
        memcpy(out + (size_t)i * (size_t)C, inp + (size_t)rows[i] * (size_t)C, (size_t)C * sizeof *out);
    }
}

void scatter_rows(floatX* out, const floatX* inp, const int32_t* rows, int num_rows, int T, int C,
                  OpsContext* ops) {
    const size_t num_values = (size_t)T * (size_t)C;
#pragma omp parallel num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    {
#pragma omp for
        for (int t = 0; t < T; t++) { memset(out + (size_t)t * (size_t)C, 0, (size_t)C * sizeof *out); }
#pragma omp for
        for (int i = 0; i < num_rows; i++) {
            memcpy(out + (size_t)rows[i] * (size_t)C, inp + (size_t)i * (size_t)C, (size_t)C * sizeof *out);
        }
    }
}

void place_rows(floatX* dst, int dst_stride, const floatX* src, int src_stride, const int32_t* rows,
                int num_rows, int width, OpsContext* ops) {
    const size_t num_values = (size_t)num_rows * (size_t)width;
#pragma omp parallel for num_threads(ops->num_threads) if (num_values > OPS_PARALLEL_VALUES)
    for (int i = 0; i < num_rows; i++) {
        memcpy(dst + (size_t)rows[i] * (size_t)dst_stride, src + (size_t)i * (size_t)src_stride,
               (size_t)width * sizeof *dst);
    }
}
