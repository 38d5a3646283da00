// matmul_cache.cu -- a hash table of fixed capacity (open addressing, linear probing) from shape bucket to
// algorithm.
#include "matmul_cache.h"

#include <string.h>

// A model has about 20 (kind, C, OC), and 128 to 64k tokens are 72 buckets.
enum { MAX_ENTRIES = 8192, MAX_FILLED = MAX_ENTRIES * 3 / 4, NUM_ANSWERS = 4, MAX_SAID = 32 };

typedef struct {
    int kind, T, C, OC, align_bytes, is_exact;  // T 0: empty
} MatmulKey;

struct MatmulCache {
    MatmulKey keys[MAX_ENTRIES];
    MatmulChoice choices[MAX_ENTRIES];
    int num_filled;
    MatmulChoice unsaved;  // the answer where the table is full
    MatmulChoice none;     // found: 0
    int without;           // MATMUL_NO_...
    int64_t num_queries, num_plain;
    MatmulKey said[MAX_SAID];  // T, is_exact: 0
    int num_said;
    FILE* log;  // NULL: none
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
    if (cache->log != NULL && cache->log != stdout) { fclose(cache->log); }
    free(cache);
}

int matmul_bucket(int T) {
    int step = 1;
    while (T > 16 * step) { step *= 2; }  // 8 step < T <= 16 step, or T <= 16
    return (T + step - 1) / step * step;
}

static uint32_t hash(const MatmulKey* key) {
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
    choice->why = "has no algorithm";
    if (status == CUBLAS_STATUS_NOT_SUPPORTED) { return; }  // no such combination
    CUBLAS_CHECK(status);
    for (int i = num_answers - 1; i >= 0; i--) {  // best first
        if (answers[i].state != CUBLAS_STATUS_SUCCESS) { continue; }
        *choice = (MatmulChoice){answers[i].algo, 1, NULL, answers[i].workspaceSize};
    }
}

static uint32_t algo_value(const cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t attribute,
                           size_t num_bytes) {
    uint32_t value = 0;
    size_t written;
    CUBLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(algo, attribute, &value, num_bytes, &written));
    return value;
}

// One write a line: several ranks may have the file.
static void log_answer(FILE* log, const MatmulKey* key, const MatmulChoice* choice) {
    char line[512];
    int n = snprintf(line, sizeof line, "%s, T %s%d, C %d, OC %d, %s, aligned to %d bytes: ",
                     matmul_kind_text((MatmulKind)key->kind), key->is_exact ? "" : "up to ", key->T, key->C,
                     key->OC, sizeof(floatX) == 2 ? "bf16" : "float32", key->align_bytes);
    if (!choice->found) {
        snprintf(line + n, sizeof line - (size_t)n, "%s\n",
                 matmul_kind_is_fused((MatmulKind)key->kind)
                     ? "not in one; product, then bias or gelu kernels"
                     : "plain_kernel of matmul_plain.cu");
    } else {
        const cublasLtMatmulAlgo_t* algo = &choice->algo;
        snprintf(
            line + n, sizeof line - (size_t)n,
            "cublasLt algorithm %u, tile %u, stages %u, split-k %u, reduction %u, cluster %u, workspace %zu "
            "bytes\n",
            algo_value(algo, CUBLASLT_ALGO_CONFIG_ID, 4), algo_value(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, 4),
            algo_value(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, 4),
            algo_value(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4),
            algo_value(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4),
            algo_value(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2), choice->workspace_bytes);
    }
    fputs(line, log);
    fflush(log);
}

void ops_log_kernels(OpsContext* ops, const char* path) {
    FILE* log = strcmp(path, "1") == 0 ? stdout : fopen(path, "a");
    if (log == NULL) {
        fprintf(stderr, "--log-kernels %s: cannot be written ---> another name\n", path);
        exit(EXIT_FAILURE);
    }
    ops->matmuls->log = log;
}

// cuBLASLt.h on EPILOGUE_AUX_LD, EPILOGUE_AUX_POINTER.
static bool aux_fits(MatmulKind kind, int C, int OC, int align_bytes) {
    return (kind == MATMUL_FORWARD_GELU ? OC : C) % 8 == 0 && align_bytes == 16;
}

const MatmulChoice* matmul_cache_choose(OpsContext* ops, MatmulKind kind, int T, int C, int OC,
                                        int align_bytes, int is_exact) {
    MatmulCache* cache = ops->matmuls;
    if (cache->without & MATMUL_NO_LIBRARY) { return &cache->none; }
    if ((cache->without & MATMUL_NO_EPILOGUES) && matmul_kind_is_fused(kind)) { return &cache->none; }
    const bool is_gelu = kind == MATMUL_FORWARD_GELU || kind == MATMUL_INPUT_DGELU;
    if (is_gelu && ((cache->without & MATMUL_NO_GELU) || !aux_fits(kind, C, OC, align_bytes))) {
        return &cache->none;
    }
    const MatmulKey key = {kind, is_exact ? T : matmul_bucket(T), C, OC, align_bytes, is_exact};
    uint32_t i = hash(&key) % MAX_ENTRIES;
    for (; cache->keys[i].T != 0; i = (i + 1) % MAX_ENTRIES) {
        if (memcmp(&cache->keys[i], &key, sizeof key) == 0) { return &cache->choices[i]; }
    }
    if (cache->num_filled == MAX_FILLED) {  // right, though asked for again each time
        ask(ops, &key, &cache->unsaved);
        return &cache->unsaved;
    }
    ask(ops, &key, &cache->choices[i]);
    if (cache->log != NULL) { log_answer(cache->log, &key, &cache->choices[i]); }
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
