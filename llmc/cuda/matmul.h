/*
matmul.h -- what tests and benchmarks set and read of the matrix products (matmul.cu).
*/
#pragma once

#include "context.h"

#ifdef __cplusplus
extern "C" {
#endif

MatmulCache* matmul_cache_create(int capability);  // 10 major + minor of the card
void matmul_cache_free(MatmulCache* cache);

// What is not to be used, a sum. The first two for tests and benchmarks: that the ways around the library are
// right, and what they cost.
enum {
    MATMUL_NO_EPILOGUES = 1,
    MATMUL_NO_LIBRARY = 2,
    // GELU's gradient is not fused where it would overwrite its own auxiliary input (pre_gelu is dinp):
    // cuBLASLt's manual promises in-place for C and D only. NEEDSWORK: does it work? test_cuda_matmul tells
    // on a card; fused, it saves three passes over (T, C).
    MATMUL_NO_IN_PLACE = 4,
    // No GELU epilogues: for bf16 they are slower than product and kernel on cards 8.x (karpathy/llm.c PR
    // 338, 591: a kernel of their own after the product, two writes per value) and 12.x (sgl-project/sglang
    // PR 34350), faster on 9.0 (PR 591) and 10.0 (sglang PR 28168: 1.2 times).
    MATMUL_NO_GELU = 8,
};
void matmul_restrict(OpsContext* ops, int without);
int matmul_restrictions(const OpsContext* ops);     // a new context's: what suits the card
int matmul_bucket(int T);                           // the largest T of T's bucket
int64_t matmul_num_queries(const OpsContext* ops);  // of the heuristic so far
int64_t matmul_num_plain(const OpsContext* ops);    // products that the library refused

#ifdef __cplusplus
}
#endif
