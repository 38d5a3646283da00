#include "bench.h"

#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/numbers.h"
#include "../../llmc/cuda/context.h"
#include "../../llmc/floatx.h"

enum { MAX_RUNS = 50, MIN_RUNS = 3, MAX_BLOCKS = 256, RANDOM_BLOCK = 1 << 20 };

struct Bench {
    OpsContext* ops;
    bool tiny;
    double seconds;  // a point
    cudaEvent_t begin[MAX_RUNS], end[MAX_RUNS];
    void* flush;
    size_t flush_bytes;
    void* blocks[MAX_BLOCKS];
    int num_blocks;
    float* noise;  // RANDOM_BLOCK values near N(0, 1)
};

Bench* bench_open(bool tiny, double seconds_a_point) {
    Bench* bench = calloc(1, sizeof *bench);
    if (bench == NULL) { exit(EXIT_FAILURE); }
    bench->tiny = tiny;
    bench->seconds = seconds_a_point;
    bench->ops = ops_create(0);
    struct cudaDeviceProp about;
    CUDA_CHECK(cudaGetDeviceProperties(&about, 0));
    bench->flush_bytes = tiny ? 4096 : 4 * (size_t)about.l2CacheSize + (64u << 20);
    bench->flush = ops_alloc(bench->ops, bench->flush_bytes, "emptying the cache");
    for (int i = 0; i < MAX_RUNS; i++) {
        CUDA_CHECK(cudaEventCreate(&bench->begin[i]));
        CUDA_CHECK(cudaEventCreate(&bench->end[i]));
    }
    size_t block = tiny ? 4096 : RANDOM_BLOCK;
    bench->noise = malloc(block * sizeof(float));
    if (bench->noise == NULL) { exit(EXIT_FAILURE); }
    Rng rng = rng_seed(1);
    for (size_t i = 0; i < block; i++) {  // sum of four uniform values: near enough to a normal one
        double sum = 0;
        for (int k = 0; k < 4; k++) { sum += (double)rng_below(&rng, 1 << 20) / (1 << 20) - 0.5; }
        bench->noise[i] = (float)(sum * sqrt(3));
    }
    return bench;
}

void bench_free_memory(Bench* bench) {
    for (int i = 0; i < bench->num_blocks; i++) { ops_release(bench->ops, bench->blocks[i]); }
    bench->num_blocks = 0;
}

void bench_close(Bench* bench) {
    bench_free_memory(bench);
    ops_release(bench->ops, bench->flush);
    for (int i = 0; i < MAX_RUNS; i++) {
        CUDA_CHECK(cudaEventDestroy(bench->begin[i]));
        CUDA_CHECK(cudaEventDestroy(bench->end[i]));
    }
    ops_free(bench->ops);
    free(bench->noise);
    free(bench);
}

bool bench_tiny(const Bench* bench) {
    return bench->tiny;
}

OpsContext* bench_ops(const Bench* bench) {
    return bench->ops;
}

// --- memory ----------------------------------------------------------------------------------------------

void* bench_memory(Bench* bench, size_t num_bytes) {
    if (bench->num_blocks == MAX_BLOCKS) {
        fprintf(stderr, "bench: more than %d arrays ---> raise MAX_BLOCKS\n", MAX_BLOCKS);
        exit(EXIT_FAILURE);
    }
    return bench->blocks[bench->num_blocks++] = ops_alloc(bench->ops, num_bytes, "a benchmark");
}

// `block`: num_block values of `value_bytes`, uploaded again and again.
static void fill(Bench* bench, char* memory, size_t num_values, const void* block, size_t num_block,
                 size_t value_bytes) {
    for (size_t at = 0; at < num_values; at += num_block) {
        size_t count = num_values - at < num_block ? num_values - at : num_block;
        ops_upload(bench->ops, memory + at * value_bytes, block, count * value_bytes);
    }
}

static float* scaled_noise(const Bench* bench, double deviation, size_t* num_block) {
    *num_block = bench->tiny ? 4096 : RANDOM_BLOCK;
    float* block = malloc(*num_block * sizeof(float));
    if (block == NULL) { exit(EXIT_FAILURE); }
    for (size_t i = 0; i < *num_block; i++) { block[i] = (float)deviation * bench->noise[i]; }
    return block;
}

void bench_fill(Bench* bench, floatX* memory, size_t num_values, double deviation) {
    size_t num_block;
    float* block = scaled_noise(bench, deviation, &num_block);
    floatX* rounded = malloc(num_block * sizeof *rounded);
    if (rounded == NULL) { exit(EXIT_FAILURE); }
    floatx_from_floats(rounded, block, num_block);
    fill(bench, (char*)memory, num_values, rounded, num_block, sizeof *rounded);
    free(rounded);
    free(block);
}

floatX* bench_random(Bench* bench, size_t num_values, double deviation) {
    floatX* memory = bench_memory(bench, num_values * sizeof *memory);
    bench_fill(bench, memory, num_values, deviation);
    return memory;
}

float* bench_random_floats(Bench* bench, size_t num_values, double deviation) {
    size_t num_block;
    float* block = scaled_noise(bench, deviation, &num_block);
    float* memory = bench_memory(bench, num_values * sizeof *memory);
    fill(bench, (char*)memory, num_values, block, num_block, sizeof *block);
    free(block);
    return memory;
}

int32_t* bench_ints(Bench* bench, const int32_t* values, size_t num_values) {
    int32_t* memory = bench_memory(bench, num_values * sizeof *memory);
    ops_upload(bench->ops, memory, values, num_values * sizeof *values);
    return memory;
}

// --- time ------------------------------------------------------------------------------------------------

static int compare(const void* a, const void* b) {
    float x = *(const float*)a, y = *(const float*)b;
    return (x > y) - (x < y);
}

static void queue(Bench* bench, BenchRun* run, void* ctx, bool cold, int i) {
    cudaStream_t stream = bench->ops->stream;
    if (cold) { CUDA_CHECK(cudaMemsetAsync(bench->flush, i & 0xff, bench->flush_bytes, stream)); }
    CUDA_CHECK(cudaEventRecord(bench->begin[i], stream));
    run(ctx);
    CUDA_CHECK(cudaEventRecord(bench->end[i], stream));
}

double bench_ns(Bench* bench, BenchRun* run, void* ctx, bool cold) {
    float ms[MAX_RUNS];
    run(ctx);  // algorithms chosen, code loaded
    queue(bench, run, ctx, cold, 0);
    ops_sync(bench->ops);
    CUDA_CHECK(cudaEventElapsedTime(&ms[0], bench->begin[0], bench->end[0]));
    double fit = 1e3 * bench->seconds / ((double)ms[0] + 0.1);
    int num_runs = bench->tiny ? 1 : fit < MIN_RUNS ? MIN_RUNS : fit > MAX_RUNS ? MAX_RUNS : (int)fit;
    for (int i = 0; i < num_runs; i++) { queue(bench, run, ctx, cold, i); }
    ops_sync(bench->ops);
    for (int i = 0; i < num_runs; i++) {
        CUDA_CHECK(cudaEventElapsedTime(&ms[i], bench->begin[i], bench->end[i]));
    }
    qsort(ms, (size_t)num_runs, sizeof ms[0], compare);
    float median = num_runs % 2 ? ms[num_runs / 2] : (ms[num_runs / 2 - 1] + ms[num_runs / 2]) / 2;
    return fmax(1e6 * (double)median, 1);
}
