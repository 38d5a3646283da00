/*
context.h -- OpsContext on a CPU: the number of threads, and tiles of working memory for each.

The tiles of all threads are one array that an operation may also use as a whole, so a context serves one call
at a time.
*/
#pragma once

#include "../ops.h"
#include "tile.h"

enum {
    OPS_TILE_ROWS = TILE,       // tokens
    OPS_TILE_COLUMNS = 256,     // channels of a head at most
    OPS_NUM_TILES = 16,         // of a thread: 1 MiB, touched only where used
    OPS_PARALLEL_VALUES = 8192  // below this a parallel region costs more than it saves (about 3 us)
};

struct OpsContext {
    int num_threads;
    float* tiles;  // (num_threads, OPS_NUM_TILES, OPS_TILE_ROWS, OPS_TILE_COLUMNS), 64-byte aligned
};

static inline size_t ops_tiles_floats(const OpsContext* ops) {
    return (size_t)ops->num_threads * OPS_NUM_TILES * OPS_TILE_ROWS * OPS_TILE_COLUMNS;
}

// ops_create() does not warn of slow kernels.
void ops_keep_quiet(void);

// The i-th tile of the calling OpenMP thread.
float* ops_tile(const OpsContext* ops, int i);
