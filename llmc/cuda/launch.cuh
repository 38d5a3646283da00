/*
launch.cuh -- the host's side of a launch: grids, which width of access fits, errors.
*/
#pragma once

#include "context.h"
#include "vector.cuh"

// Blocks for `num` items, `per_block` each; num > 0, since CUDA refuses an empty grid.
static inline unsigned blocks_for(size_t num, size_t per_block) {
    return (unsigned)((num + per_block - 1) / per_block);
}

static inline int min_int(int a, int b) {
    return a < b ? a : b;
}

// Whether every array begins at a multiple of 16 bytes (NULL does).
template <class... Pointers> static inline bool aligned_to_vectors(Pointers... pointers) {
    return ((((uintptr_t)pointers) | ...) & 15u) == 0;
}

// Whether rows of C values of floatX (and of float32) can be read FLOATX_PER_LOAD at a time.
template <class... Pointers> static inline bool vectors_fit(int C, Pointers... pointers) {
    return C % FLOATX_PER_LOAD == 0 && aligned_to_vectors(pointers...);
}

// How many of num_values elements can go in whole vectors, from the beginning of all these arrays.
template <class... Pointers> static inline size_t whole_vectors(size_t num_values, Pointers... pointers) {
    return aligned_to_vectors(pointers...) ? num_values - num_values % FLOATX_PER_LOAD : 0;
}

// Bytes of shared memory that a block may have beside what the kernel declares itself.
static inline size_t shared_bytes_of_a_block(void) {
    int device = 0, num_bytes = 0;
    CUDA_CHECK(cudaGetDevice(&device));
    CUDA_CHECK(cudaDeviceGetAttribute(&num_bytes, cudaDevAttrMaxSharedMemoryPerBlockOptin, device));
    return (size_t)(num_bytes > 1024 ? num_bytes - 1024 : 0);
}
