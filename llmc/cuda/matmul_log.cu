// matmul_log.cu -- which algorithm and which kernels serve a product, once for each.
#include "matmul_log.h"

#include <string.h>

#include "kernel_names.h"

enum { MAX_LOGGED = 8192 };  // beyond: a line for every call

typedef struct {
    MatmulKey key;
    const char* why;  // NULL: served
} Logged;

struct MatmulLog {
    FILE* file;
    Logged logged[MAX_LOGGED];  // open addressing
    int num_logged;
};

void ops_log_kernels(OpsContext* ops, const char* path) {
    MatmulLog* log = (MatmulLog*)calloc(1, sizeof *log);
    if (log != NULL) { log->file = strcmp(path, "1") == 0 ? stdout : fopen(path, "a"); }
    if (log == NULL || log->file == NULL) {
        fprintf(stderr, "--log-kernels %s: cannot be written ---> another name\n", path);
        exit(EXIT_FAILURE);
    }
    ops->matmul_log = log;
}

void matmul_log_free(MatmulLog* log) {
    if (log == NULL) { return; }
    if (log->file != stdout) { fclose(log->file); }
    free(log);
}

static bool is_new(MatmulLog* log, const MatmulKey* key, const char* why) {
    if (log == NULL) { return false; }
    uint32_t i = matmul_key_hash(key) % MAX_LOGGED;
    for (; log->logged[i].key.T != 0; i = (i + 1) % MAX_LOGGED) {
        if (memcmp(&log->logged[i].key, key, sizeof *key) == 0 && log->logged[i].why == why) { return false; }
    }
    if (log->num_logged == MAX_LOGGED * 3 / 4) { return true; }
    log->logged[i] = {*key, why};
    log->num_logged++;
    return true;
}

// One write a line: several ranks may have the file.
static void write_line(MatmulLog* log, const MatmulKey* key, const char* what) {
    char line[4096];
    snprintf(line, sizeof line, "%s, T %s%d, C %d, OC %d, %s, aligned to %d bytes: %s\n",
             matmul_kind_text((MatmulKind)key->kind), key->is_exact ? "" : "up to ", key->T, key->C, key->OC,
             sizeof(floatX) == 2 ? "bf16" : "float32", key->align_bytes, what);
    fputs(line, log->file);
    fflush(log->file);
}

static uint32_t algo_value(const cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t attribute,
                           size_t num_bytes) {
    uint32_t value = 0;
    size_t written;
    CUBLAS_CHECK(cublasLtMatmulAlgoConfigGetAttribute(algo, attribute, &value, num_bytes, &written));
    return value;
}

void matmul_log_served(OpsContext* ops, const MatmulKey* key, const MatmulChoice* choice,
                       MatmulProblem* problem, const MatmulOperands* operands) {
    if (!is_new(ops->matmul_log, key, NULL)) { return; }
    const cublasLtMatmulAlgo_t* algo = &choice->algo;
    char names[2048], what[3072];
    KernelNames recorded;
    kernel_names_begin(&recorded);
    const bool is_good =
        recorded.stream != NULL &&
        matmul_problem_run(ops, problem, operands, algo, recorded.stream) == CUBLAS_STATUS_SUCCESS;
    kernel_names_end(&recorded, is_good, names, sizeof names);
    snprintf(what, sizeof what,
             "cublasLt algorithm %u, tile %u, stages %u, split-k %u, reduction %u, cluster %u, workspace %zu "
             "bytes, %s",
             algo_value(algo, CUBLASLT_ALGO_CONFIG_ID, 4), algo_value(algo, CUBLASLT_ALGO_CONFIG_TILE_ID, 4),
             algo_value(algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, 4),
             algo_value(algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, 4),
             algo_value(algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, 4),
             algo_value(algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, 2), choice->workspace_bytes, names);
    write_line(ops->matmul_log, key, what);
}

void matmul_log_refused(OpsContext* ops, const MatmulKey* key, const char* why) {
    if (!is_new(ops->matmul_log, key, why)) { return; }
    char what[512];
    snprintf(what, sizeof what, "%s (cuBLASLt %s)",
             matmul_kind_is_fused((MatmulKind)key->kind) ? "not in one; product, then bias or gelu kernels"
                                                         : "plain_kernel of matmul_plain.cu",
             why);
    write_line(ops->matmul_log, key, what);
}
