/*
context.h -- what OpsContext is on a CPU: a number of threads, and a tile arena for each of them.
*/
#pragma once

#include "../ops.h"

struct OpsContext {
    int num_threads;
    char* tiles;        // num_threads * tile_bytes, 64-byte aligned
    size_t tile_bytes;  // of one thread: the tiles of one attention task
};

// Below this many values a parallel region costs more than it saves (a fork and join is about 3 us).
enum { OPS_PARALLEL_VALUES = 8192 };
