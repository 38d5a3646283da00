/*
context.c -- threads of the CPU implementation: OpenMP's and OpenBLAS's kept at the same number.
*/
#include "context.h"

#include <omp.h>
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>

OpsContext* ops_create(int num_threads) {
    int n = num_threads > 0 ? num_threads : omp_get_max_threads();
    OpsContext* ops = calloc(1, sizeof *ops);
    if (ops == NULL) {
        fprintf(stderr, "ops: out of memory ---> free some memory\n");
        exit(1);
    }
#ifdef __SANITIZE_THREAD__
    n = 1;  // libgomp is not instrumented: every one of its barriers would look like a race
#endif
    ops->num_threads = n;
    omp_set_num_threads(n);
    openblas_set_num_threads(n);
    return ops;
}

void ops_free(OpsContext* ops) {
    if (ops == NULL) { return; }
    free(ops->tiles);
    free(ops);
}

int ops_num_threads(const OpsContext* ops) {
    return ops->num_threads;
}
