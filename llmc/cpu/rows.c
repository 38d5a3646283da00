/*
rows.c -- pick and put back the supervised rows, so that the head works on those only.
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
