/*
bench.h -- time of work on the GPU: events on the stream of the operations, the L2 cache emptied before each
run, the median of several runs; and the card's measured ceilings that such times are held against.

Runs are queued without waiting in between: while the card empties its cache the host queues the next run, so
that launches cost nothing here (in training, too, the queue is full).
*/
#pragma once

#include <stdbool.h>
#include "../../llmc/ops.h"

typedef struct Bench Bench;
typedef void BenchRun(void* ctx);  // queues the work

// tiny: shapes for the emulator, where times mean nothing.
Bench* bench_open(bool tiny, double seconds_a_point);
void bench_close(Bench* bench);
bool bench_tiny(const Bench* bench);
OpsContext* bench_ops(const Bench* bench);

// Median time of one run; cold: with the cache emptied before. 3 to 50 runs, fewer where they take long.
double bench_ns(Bench* bench, BenchRun* run, void* ctx, bool cold);

// Device memory, filled with values near N(0, deviation^2) (a block of 2^20 repeated): products of zeros
// would be faster than those of training, since a card's clock depends on how many bits change.
void bench_fill(Bench* bench, floatX* memory, size_t num_values, double deviation);
floatX* bench_random(Bench* bench, size_t num_values, double deviation);
float* bench_random_floats(Bench* bench, size_t num_values, double deviation);
int32_t* bench_ints(Bench* bench, const int32_t* values, size_t num_values);
void* bench_memory(Bench* bench, size_t num_bytes);  // zeros
void bench_free_memory(Bench* bench);                // all of it

// The ceilings (ceilings.c).
// Bytes per ns, read and written together, of a copy of num_bytes by cudaMemcpyAsync.
double bench_copy_bytes_per_ns(Bench* bench, size_t num_bytes);
double bench_large_copy_bytes_per_ns(Bench* bench);  // of 1 GiB
// FLOP per ns (1000 are a TFLOP/s) of a large square product in floatX, the best of cuBLASLt's algorithms.
double bench_matmul_flops_per_ns(Bench* bench);
