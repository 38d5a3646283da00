/*
matmul_log.h -- --log-kernels: a line for each distinct product, saying what serves it.

A line has the product's kind, shape (a bucket of token counts), type and alignment; then cuBLASLt's algorithm
and the names of its kernels, or why cuBLASLt has none of it and what stands in. Where several ranks write to
one file, lines stay whole. All of it does nothing while OpsContext has no log.
*/
#pragma once

#include "matmul_cache.h"

#ifdef __cplusplus
extern "C" {
#endif

void matmul_log_free(MatmulLog* log);  // NULL is fine
// After the product was queued: it is asked for once more on a stream that is recorded and never runs.
void matmul_log_served(OpsContext* ops, const MatmulKey* key, const MatmulChoice* choice,
                       MatmulProblem* problem, const MatmulOperands* operands);
void matmul_log_refused(OpsContext* ops, const MatmulKey* key, const char* why);  // "cuBLASLt ..."

#ifdef __cplusplus
}
#endif
