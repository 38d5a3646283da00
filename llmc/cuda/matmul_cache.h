/*
matmul_cache.h -- which of cuBLASLt's algorithms serves a product, asked once per bucket of token counts.

Token counts differ from micro-batch to micro-batch, and asking the heuristic about a new one takes the host
0.06 ms (ml-explore/mlx issue 3861): as long as a small product takes the card. So T is rounded up to one of
eight steps per octave (at most 12.5 % more), and the heuristic is asked for that T; every T of the bucket
uses the answer.

Is the answer valid for all of them? An algorithm is a tile, a number of stages and of splits; what it demands
(alignment of leading dimensions and pointers) does not depend on T here, see matmul_problem.h, and workspace
should be largest for the largest T. Where that is wrong for some T, cublasLtMatmul() returns INVALID_VALUE or
NOT_SUPPORTED (its manual), and the heuristic is asked for exactly that T, under a key of its own: so which
algorithm a shape gets depends on the shape alone, not on what was asked before. Nothing is chosen by timing,
and sums that split k go through the workspace in float32 (CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE), not
through the output; so the same shape should give the same bits in every run on the same kind of card with the
same library, as cuBLAS' manual promises for one stream. NEEDSWORK: none of this was seen on a card yet.
*/
#pragma once

#include "matmul_problem.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct MatmulCache MatmulCache;

typedef struct {
    int kind, T, C, OC, align_bytes, is_exact;  // T 0: empty
} MatmulKey;

typedef struct {
    cublasLtMatmulAlgo_t algo;
    int found;        // 0: cuBLASLt serves this not at all, or not with this epilogue
    int was_asked;    // 0: it was not to be
    const char* why;  // not found; else NULL
    size_t workspace_bytes;
} MatmulChoice;

MatmulCache* matmul_cache_create(int capability);  // 10 major + minor of the card
void matmul_cache_free(MatmulCache* cache);

int matmul_bucket(int T);  // the largest T of T's bucket
// align_bytes: a power of two, 2 to 16, that all pointers of the call are multiples of. is_exact: for this T
// instead of its bucket.
MatmulKey matmul_key(MatmulKind kind, int T, int C, int OC, int align_bytes, int is_exact);
uint32_t matmul_key_hash(const MatmulKey* key);
const MatmulChoice* matmul_cache_choose(OpsContext* ops, MatmulKind kind, int T, int C, int OC,
                                        int align_bytes, int is_exact);

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
void matmul_cache_restrict(OpsContext* ops, int without);
int matmul_cache_restrictions(const OpsContext* ops);     // a new context's: what suits the card
int64_t matmul_cache_num_queries(const OpsContext* ops);  // of the heuristic so far

// matmul_plain() stands in for a product that the library refuses, some hundred times slower: counted, and
// said on stderr once for a kind, C, OC and alignment. matmul_cache_free() says how many there were.
void matmul_cache_count_plain(OpsContext* ops, MatmulKind kind, int T, int C, int OC, int align_bytes,
                              const char* why);
int64_t matmul_cache_num_plain(const OpsContext* ops);

#ifdef __cplusplus
}
#endif
