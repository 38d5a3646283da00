// matmul_cache.cu -- a hash table of fixed capacity (open addressing, linear probing) from shape bucket to
// algorithm.
#include "matmul_cache.h"

#include <string.h>

// A model has about 20 (kind, C, OC), and 128 to 64k tokens are 72 buckets.
enum { MAX_ENTRIES = 8192, MAX_FILLED = MAX_ENTRIES * 3 / 4, NUM_ANSWERS = 4, MAX_SAID = 32 };

struct MatmulCache {
    MatmulKey keys[MAX_ENTRIES];
    MatmulChoice choices[MAX_ENTRIES];
    int num_filled;
    MatmulChoice unsaved;  // the answer where the table is full
    int without;           // MATMUL_NO_...
    int64_t num_queries, num_plain;
    MatmulKey said[MAX_SAID];  // T, is_exact: 0
    int num_said;
};

MatmulCache* matmul_cache_create(int capability) {
    MatmulCache* cache = (MatmulCache*)calloc(1, sizeof *cache);
    if (cache == NULL) {
        fprintf(stderr, "no host memory for %zu bytes of matrix algorithms ---> free some\n", sizeof *cache);
        exit(EXIT_FAILURE);
    }
    const bool has_fast_gelu = capability >= 90 && capability < 120;
    cache->without = MATMUL_NO_IN_PLACE | (has_fast_gelu ? 0 : MATMUL_NO_GELU);
    return cache;
}

void matmul_cache_free(MatmulCache* cache) {
    if (cache == NULL) { return; }
    if (cache->num_plain > 0) {
        fprintf(stderr,
                "warning: %lld matrix products ran on plain tiles, which cuBLASLt refused ---> see the "
                "warnings above\n",
                (long long)cache->num_plain);
    }
    free(cache);
}

int matmul_bucket(int T) {
    int step = 1;
    while (T > 16 * step) { step *= 2; }  // 8 step < T <= 16 step, or T <= 16
    return (T + step - 1) / step * step;
}

uint32_t matmul_key_hash(const MatmulKey* key) {
    const int words[] = {key->kind, key->T, key->C, key->OC, key->align_bytes, key->is_exact};
    uint64_t h = 0;
    for (int word : words) {
        h = (h ^ (uint64_t)(uint32_t)word) * 0x9e3779b97f4a7c15u;
        h ^= h >> 29;
    }
    return (uint32_t)h;
}

static void ask(OpsContext* ops, const MatmulKey* key, MatmulChoice* choice) {
    // Only the alignment of these matters: the heuristic does not look behind pointers.
    void* aligned = (void*)(uintptr_t)key->align_bytes;
    const MatmulOperands operands = {aligned, aligned, aligned, (const floatX*)aligned, (floatX*)aligned};
    MatmulProblem problem;
    matmul_problem_init(&problem, (MatmulKind)key->kind, &operands, key->T, key->C, key->OC);
    cublasLtMatmulPreferenceOpaque_t preference;
    CUBLAS_CHECK(cublasLtMatmulPreferenceInit(&preference));
    const uint64_t workspace_bytes = ops->blas_workspace_bytes;
    const uint32_t schemes = CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE, align = (uint32_t)key->align_bytes;
    const struct {
        cublasLtMatmulPreferenceAttributes_t attribute;
        const void* value;
        size_t num_bytes;
    } wishes[] = {
        {CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_bytes, sizeof workspace_bytes},
        {CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, &schemes, sizeof schemes},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, &align, sizeof align},
        {CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES, &align, sizeof align},
    };
    for (const auto& wish : wishes) {
        CUBLAS_CHECK(
            cublasLtMatmulPreferenceSetAttribute(&preference, wish.attribute, wish.value, wish.num_bytes));
    }
    cublasLtMatmulHeuristicResult_t answers[NUM_ANSWERS];
    int num_answers = 0;
    ops->matmuls->num_queries++;
    const cublasStatus_t status =
        cublasLtMatmulAlgoGetHeuristic(ops->blas, &problem.desc, &problem.a, &problem.b, &problem.d,
                                       &problem.d, &preference, NUM_ANSWERS, answers, &num_answers);
    *choice = (MatmulChoice){};
    choice->was_asked = 1;
    choice->why = "has no algorithm";
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) { return; }  // no such combination
    CUBLAS_CHECK(status);
    for (int i = num_answers - 1; i >= 0; i--) {  // best first
        if (answers[i].state != CUBLAS_STATUS_SUCCESS) { continue; }
        *choice = (MatmulChoice){answers[i].algo, 1, 1, NULL, answers[i].workspaceSize};
    }
}

// cuBLASLt.h on EPILOGUE_AUX_LD, EPILOGUE_AUX_POINTER.
static bool aux_fits(MatmulKind kind, int C, int OC, int align_bytes) {
    return (kind == MATMUL_FORWARD_GELU ? OC : C) % 8 == 0 && align_bytes == 16;
}

MatmulKey matmul_key(MatmulKind kind, int T, int C, int OC, int align_bytes, int is_exact) {
    return {kind, is_exact ? T : matmul_bucket(T), C, OC, align_bytes, is_exact};
}

// NULL: cuBLASLt is to be asked.
static const MatmulChoice* not_to_be_asked(int without, MatmulKind kind, int C, int OC, int align_bytes) {
    static const MatmulChoice no_library = {{}, 0, 0, "is not asked: switched off", 0},
                              no_epilogues = {{}, 0, 0, "is not asked: epilogues are switched off", 0},
                              no_gelu = {{}, 0, 0, "is not asked: GELU epilogues are slow on this card", 0},
                              no_aux = {{}, 0, 0, "is not asked: rows not of 8 n values from 16 n bytes", 0};
    if (without & MATMUL_NO_LIBRARY) { return &no_library; }
    if ((without & MATMUL_NO_EPILOGUES) && matmul_kind_is_fused(kind)) { return &no_epilogues; }
    if (kind != MATMUL_FORWARD_GELU && kind != MATMUL_INPUT_DGELU) { return NULL; }
    if (without & MATMUL_NO_GELU) { return &no_gelu; }
    return aux_fits(kind, C, OC, align_bytes) ? NULL : &no_aux;
}

const MatmulChoice* matmul_cache_choose(OpsContext* ops, MatmulKind kind, int T, int C, int OC,
                                        int align_bytes, int is_exact) {
    MatmulCache* cache = ops->matmuls;
    const MatmulChoice* none = not_to_be_asked(cache->without, kind, C, OC, align_bytes);
    if (none != NULL) { return none; }
    const MatmulKey key = matmul_key(kind, T, C, OC, align_bytes, is_exact);
    uint32_t i = matmul_key_hash(&key) % MAX_ENTRIES;
    for (; cache->keys[i].T != 0; i = (i + 1) % MAX_ENTRIES) {
        if (memcmp(&cache->keys[i], &key, sizeof key) == 0) { return &cache->choices[i]; }
    }
    if (cache->num_filled == MAX_FILLED) {  // right, though asked for again each time
        ask(ops, &key, &cache->unsaved);
        return &cache->unsaved;
    }
    ask(ops, &key, &cache->choices[i]);
    cache->keys[i] = key;
    cache->num_filled++;
    return &cache->choices[i];
}

void matmul_cache_restrict(OpsContext* ops, int without) {
    ops->matmuls->without = without;
}

int matmul_cache_restrictions(const OpsContext* ops) {
    return ops->matmuls->without;
}

int64_t matmul_cache_num_queries(const OpsContext* ops) {
    return ops->matmuls->num_queries;
}

void matmul_cache_count_plain(OpsContext* ops, MatmulKind kind, int T, int C, int OC, int align_bytes,
                              const char* why) {
    MatmulCache* cache = ops->matmuls;
    const MatmulKey key = {kind, 0, C, OC, align_bytes, 0};
    cache->num_plain++;
    for (int i = 0; i < cache->num_said; i++) {
        if (memcmp(&cache->said[i], &key, sizeof key) == 0) { return; }
    }
    if (cache->num_said == MAX_SAID) { return; }
    cache->said[cache->num_said++] = key;
    fprintf(
        stderr,
        "warning: cuBLASLt %s for %s, T %d, C %d, OC %d, %s, pointers aligned to %d bytes ---> plain tiles "
        "stand in, some 100 times slower; multiples of 8 channels are served everywhere\n",
        why, matmul_kind_text(kind), T, C, OC, sizeof(floatX) == 2 ? "bf16" : "float32", align_bytes);
}

int64_t matmul_cache_num_plain(const OpsContext* ops) {
    return ops->matmuls->num_plain;
}
