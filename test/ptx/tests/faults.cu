/*
faults.cu -- kernels like those of llmc/cuda with one mistake each: `faults NAME right` is correct, exit
status 0; `faults NAME faulty` must end with the words beside it in test/test_cuda_emu.sh.

    shifted         elementwise: vectors of four at an address that is not a multiple of 16
    beyond          rows: a warp for a row that is not there
    tile            matmul: one row more than a tile in shared memory has
    unwritten       norms: a warp's part of a sum that nobody wrote
    copy            attention: a tile from cp.async, read before it was waited for
    barrier         classifier: a sum in shared memory made anew while others still read it
    warp            attention: probabilities of another lane without __syncwarp()
    blocks          embedding: two blocks add to the same row
    read_only       optimizer: a value that was read by ld.global.nc is written
    divergent       norms: half a warp at a barrier
    product         attention: mma.sync where a lane has gone
    shuffle         norms: the value of a lane that has gone
    shuffles        norms: half a warp in another kind of shuffle
    votes           attention: half a warp in another kind of vote
    shared_limit    attention: more shared memory than was asked for by cudaFuncSetAttribute
    registers       classifier: more threads than there are registers for
    traffic         (no mistake) accesses that count.cpp counts: scattered, and faulty: side by side
    event           streams: a consumer that does not wait for its producer
*/
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "../../../llmc/cuda/tensor_core.cuh"

constexpr int N = 256;
static bool faulty;

template <class T> static T* device_array(size_t num_values) {
    T* values;
    cudaMalloc((void**)&values, num_values * sizeof(T));
    return values;
}
__global__ static void fill(float* out, int n, float value) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) { out[i] = value + (float)i; }
}
static int wrong_values(const float* out, int n, float (*value)(int)) {
    int wrong = cudaDeviceSynchronize() != cudaSuccess;
    for (int i = 0; i < n; i++) { wrong += out[i] != value(i); }
    return wrong;
}
static float index_of(int i) {
    return (float)i;
}

__global__ static void vectors(float* out, int shift) {
    *(float4*)(out + 4 * threadIdx.x + shift) = make_float4(0.0f, 1.0f, 2.0f, 3.0f);
}
static int shifted(float*) {
    vectors<<<1, 32>>>(device_array<float>(N), faulty ? 2 : 4);
    return cudaDeviceSynchronize();
}

__global__ static void put_rows(float* out, int num_rows) {
    const int row = (int)(blockIdx.x * blockDim.x + threadIdx.x) / 32;
    if (row < num_rows) { out[row * 32 + (int)threadIdx.x % 32] = (float)row; }
}
static int beyond(float* out) {
    put_rows<<<3, N / 2>>>(out, faulty ? N / 32 + 1 : N / 32);
    return wrong_values(out, N, [](int i) { return (float)(i / 32); });
}

__global__ static void turn_tile(float* out, int num_rows) {
    constexpr int TILE = 16;
    __shared__ float tile[TILE][TILE + 1];
    for (int i = (int)threadIdx.x; i < TILE * num_rows; i += 32) { tile[i / TILE][i % TILE] = (float)i; }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < TILE * TILE; i += 32) { out[i] = tile[i % TILE][i / TILE]; }
}
static int tile(float* out) {
    turn_tile<<<1, 32>>>(out, faulty ? 17 : 16);
    return wrong_values(out, N, [](int i) { return (float)(i % 16 * 16 + i / 16); });
}

__global__ static void through_shared(float* out, int n) {
    extern __shared__ float row[];
    for (int i = (int)threadIdx.x; i < n; i += 32) { row[i] = (float)i; }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < N; i += 32) { out[i] = row[i]; }
}
__global__ static void warps_sum(float* out, int num_writers) {
    __shared__ float part[N / 32];
    if (threadIdx.x % 32 == 0 && (int)threadIdx.x / 32 < num_writers) { part[threadIdx.x / 32] = 1.0f; }
    __syncthreads();
    float sum = 0.0f;
    for (int i = 0; i < N / 32; i++) { sum += part[i]; }
    out[threadIdx.x] = sum;
}
static int unwritten(float* out) {
    warps_sum<<<1, N>>>(out, faulty ? N / 32 - 1 : N / 32);
    return wrong_values(out, N, [](int) { return N / 32.0f; });
}

__global__ static void copy_in(float* out, const float* in, bool wait) {
    __shared__ __align__(16) float tile[N];
    cp_async_16(&tile[4 * threadIdx.x], &in[4 * threadIdx.x], 16);
    if (wait) { cp_async_wait_all(); }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < N; i += N / 4) { out[i] = tile[i]; }
    cp_async_wait_all();
}
static int copy(float* out) {
    float* in = device_array<float>(N);
    fill<<<1, N>>>(in, N, 0.0f);
    copy_in<<<1, N / 4>>>(out, in, !faulty);
    return wrong_values(out, N, index_of);
}

__global__ static void two_sums(float* out, bool wait) {
    __shared__ float sum;
    float both = 0.0f;
    for (int k = 1; k <= 2; k++) {
        if (threadIdx.x == 0) { sum = (float)k; }
        __syncthreads();
        both += sum;
        if (wait) { __syncthreads(); }
    }
    out[threadIdx.x] = both;
}
static int barrier(float* out) {
    two_sums<<<1, N>>>(out, !faulty);
    return wrong_values(out, N, [](int) { return 3.0f; });
}

__global__ static void turn(float* out, bool wait) {
    __shared__ volatile float values[32];
    values[threadIdx.x] = 0.0f;
    __syncwarp();
    values[threadIdx.x] = (float)threadIdx.x;
    if (wait) { __syncwarp(); }
    out[(threadIdx.x + 31) % 32] = values[(threadIdx.x + 31) % 32];
}
static int warp(float* out) {
    turn<<<1, 32>>>(out, !faulty);
    return wrong_values(out, 32, index_of);
}

__global__ static void add_to_row(float* rows, int num_rows) {
    rows[(int)blockIdx.x % num_rows * 32 + (int)threadIdx.x] += 1.0f;
}
static int blocks(float*) {
    add_to_row<<<2, 32>>>(device_array<float>(64), faulty ? 1 : 2);
    return cudaDeviceSynchronize();
}

__global__ static void step(float* out, const float* in) {
    out[threadIdx.x] = 2.0f * __ldg(in + threadIdx.x);
}
static int read_only(float*) {
    float *in = device_array<float>(32), *out = device_array<float>(32);
    step<<<1, 32>>>(faulty ? in : out, in);
    return cudaDeviceSynchronize();
}

__global__ static void diverge(float* out, int num_waiting) {
    if ((int)threadIdx.x < num_waiting) { __syncthreads(); }
    out[threadIdx.x] = (float)__shfl_xor_sync(~0u, threadIdx.x, 0);
}
static int divergent(float* out) {
    diverge<<<1, 64>>>(out, faulty ? 16 : 64);
    return wrong_values(out, 64, index_of);
}

__global__ static void multiply(float* out, int num_lanes) {
    if ((int)threadIdx.x >= num_lanes) { return; }
    float sum[4] = {};
    const uint32_t a[4] = {};
    mma_bf16(sum, a, 0, 0);
    out[threadIdx.x] = sum[0] + (float)threadIdx.x;
}
static int product(float* out) {
    multiply<<<1, 32>>>(out, faulty ? 31 : 32);
    return wrong_values(out, 32, index_of);
}

__global__ static void exchange(float* out, int num_lanes, int num_across) {
    if ((int)threadIdx.x >= num_lanes) { return; }
    const float mine = (float)(threadIdx.x ^ 1);
    out[threadIdx.x] =
        (int)threadIdx.x < num_across ? __shfl_xor_sync(~0u, mine, 1) : __shfl_up_sync(~0u, mine, 1);
}
static int shuffle(float* out) {
    exchange<<<1, 32>>>(out, faulty ? 31 : 32, 32);
    return wrong_values(out, 32, index_of);
}
static int shuffles(float* out) {
    exchange<<<1, 32>>>(out, 32, faulty ? 16 : 32);
    return wrong_values(out, 32, index_of);
}

__global__ static void vote(float* out, int num_any) {
    const bool mine = threadIdx.x == 31;
    const bool some = (int)threadIdx.x < num_any ? __any_sync(~0u, mine) : __all_sync(~0u, !mine);
    out[threadIdx.x] = some ? (float)threadIdx.x : 0.0f;
}
static int votes(float* out) {
    vote<<<1, 32>>>(out, faulty ? 16 : 32);
    return wrong_values(out, 32, index_of);
}

static int shared_limit(float* out) {
    const int most = 100 << 10;
    if (!faulty) { cudaFuncSetAttribute(through_shared, cudaFuncAttributeMaxDynamicSharedMemorySize, most); }
    through_shared<<<1, 32, most>>>(out, N);
    return cudaGetLastError() != cudaSuccess || wrong_values(out, N, index_of);
}

__global__ static void many_registers(float* out, const float* in, int n) {
    float values[100];
#pragma unroll
    for (int i = 0; i < 100; i++) { values[i] = in[i * n]; }
    for (int k = 0; k < n; k++) {
#pragma unroll
        for (int i = 0; i < 100; i++) { values[i] = values[i] * values[(i + 1) % 100] + (float)k; }
    }
#pragma unroll
    for (int i = 0; i < 100; i++) { out[threadIdx.x * 100 + i] = values[i]; }
}
static int registers(float*) {
    float* in = device_array<float>(100);
    fill<<<1, 128>>>(in, 100, 0.0f);
    many_registers<<<1, faulty ? 1024 : 128>>>(device_array<float>(102400), in, 1);
    return cudaGetLastError() != cudaSuccess || cudaDeviceSynchronize() != cudaSuccess;
}

// 32 lanes: rows of 8 floats apart in global memory, 4 floats apart in shared memory; faulty: side by side.
__global__ static void scatter(float* out, int global_step, int shared_step) {
    __shared__ float tile[32 * 4];
    tile[threadIdx.x * shared_step] = (float)threadIdx.x;
    __syncwarp();
    out[threadIdx.x * global_step] = tile[threadIdx.x * shared_step];
}
static int traffic(float*) {
    scatter<<<1, 32>>>(device_array<float>(N), faulty ? 1 : 8, faulty ? 1 : 4);
    return cudaDeviceSynchronize() != cudaSuccess;
}

static int event(float* out) {
    cudaStream_t producer, consumer;
    cudaEvent_t ready;
    float* values = device_array<float>(N);
    cudaStreamCreateWithFlags(&producer, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&consumer, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
    fill<<<1, N, 0, producer>>>(values, N, 0.0f);
    cudaEventRecord(ready, producer);
    if (!faulty) { cudaStreamWaitEvent(consumer, ready, 0); }
    cudaMemcpyAsync(out, values, N * sizeof(float), cudaMemcpyDeviceToHost, consumer);
    return wrong_values(out, N, index_of);
}

static int device(float*) {
    int num_devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&num_devices);
    printf("%d devices: %s\n", num_devices, cudaGetErrorString(error));
    return error != cudaSuccess;
}

int main(int argc, char** argv) {
#define PROGRAM(name) \
    { #name, name }
    static const struct {
        const char* name;
        int (*run)(float* out);
    } programs[] = {PROGRAM(shifted),   PROGRAM(beyond),    PROGRAM(tile),         PROGRAM(unwritten),
                    PROGRAM(copy),      PROGRAM(barrier),   PROGRAM(warp),         PROGRAM(blocks),
                    PROGRAM(read_only), PROGRAM(divergent), PROGRAM(product),      PROGRAM(shuffle),
                    PROGRAM(shuffles),  PROGRAM(votes),     PROGRAM(shared_limit), PROGRAM(registers),
                    PROGRAM(traffic),   PROGRAM(event),     PROGRAM(device)};
    if (argc != 3) { return 2; }
    faulty = strcmp(argv[2], "faulty") == 0;
    float* out;
    cudaMallocHost((void**)&out, N * sizeof(float));
    for (const auto& program : programs) {
        if (strcmp(program.name, argv[1]) != 0) { continue; }
        const int wrong = program.run(out);
        printf("%s: %s\n", argv[1], wrong != 0 ? "wrong" : "right");
        return wrong != 0;
    }
    return 2;
}
