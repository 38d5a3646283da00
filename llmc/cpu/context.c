/*
context.c -- threads of the CPU implementation: OpenMP and OpenBLAS use the same number.

OpenBLAS chooses its kernels: on the 2-core AVX-512 Xeon we measured on, 0.3.21 picks SkylakeX (240 to 310
GFLOP/s at 256 tokens); OPENBLAS_CORETYPE=Haswell gives 190 there, SAPPHIRERAPIDS falls back to Cooperlake,
which was not faster. On a CPU newer than the library it uses kernels of 2004 (core "Prescott", SSE3) at half
the speed or less. This prints one warning; dev/mpi_env.sh sets SkylakeX on AVX-512 by default.
*/
#include "context.h"

#include <omp.h>
#include <cblas.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool was_said = false;

void ops_keep_quiet(void) {
    was_said = true;
}

// Detects old kernels on a newer CPU: the library treats an unknown CPU as a Pentium 4.
static void warn_of_old_kernels(void) {
#if defined(__x86_64__) && defined(OPENBLAS_VERSION)
    const char* core = openblas_get_corename();
    bool is_old = strcmp(core, "Prescott") == 0 || strcmp(core, "Core2") == 0;
    if (was_said || !is_old || !__builtin_cpu_supports("avx2")) { return; }
    was_said = true;
    const char* better = __builtin_cpu_supports("avx512f") ? "SkylakeX" : "Haswell";
    fprintf(
        stderr,
        "OpenBLAS does not know this CPU and uses kernels for %s: slow ---> export OPENBLAS_CORETYPE=%s\n",
        core, better);
#endif
}

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
    ops->tiles = aligned_alloc(64, ops_tiles_floats(ops) * sizeof *ops->tiles);
    if (ops->tiles == NULL) {
        fprintf(stderr, "ops: no memory for the tiles of %d threads ---> ask for fewer threads\n", n);
        exit(1);
    }
    warn_of_old_kernels();
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

float* ops_tile(const OpsContext* ops, int i) {
    const size_t tile = (size_t)OPS_TILE_ROWS * OPS_TILE_COLUMNS;
    return ops->tiles + ((size_t)omp_get_thread_num() * OPS_NUM_TILES + (size_t)i) * tile;
}

void ops_print_version(FILE* out) {
    fprintf(out, "BLAS: %s\n", openblas_get_config());
}
