/*
context.h -- what OpsContext is on a CPU: a number of threads, and for each of them some tiles to work in.

The tiles of all threads are one array, so an operation may also use them together: a context
serves one call at a time.
*/
#pragma once

#include "../ops.h"
#include "tile.h"

enum {
    OPS_TILE_ROWS = TILE,       // tokens
    OPS_TILE_COLUMNS = 256,     // channels of a head at most
    OPS_NUM_TILES = 16,         // of a thread: 1 MiB, touched only where used
    OPS_PARALLEL_VALUES = 8192  // below so many values a parallel region costs more than it saves (some 3 us)
};

struct OpsContext {
    int num_threads;
    float* tiles;  // (num_threads, OPS_NUM_TILES, OPS_TILE_ROWS, OPS_TILE_COLUMNS), 64-byte aligned
};

static inline size_t ops_tiles_floats(const OpsContext* ops) {
    return (size_t)ops->num_threads * OPS_NUM_TILES * OPS_TILE_ROWS * OPS_TILE_COLUMNS;
}

// ops_create() says nothing of kernels that are slow on this CPU.
void ops_keep_quiet(void);

// The i-th tile of the calling OpenMP thread.
float* ops_tile(const OpsContext* ops, int i);
