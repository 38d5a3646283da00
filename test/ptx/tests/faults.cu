/*
faults.cu -- small programs with one mistake each: `faults NAME right` is correct, `faults NAME faulty` is
not. Exit status 0: all values are right. What must happen with each: test/test_cuda_emu.sh.
*/
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N = 256 };
static bool faulty;

__global__ static void fill(float* out, int n, float value) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) { out[i] = value + (float)i; }
}

// --- a consumer on another stream, without the event ----------------------------------------------
__global__ static void twice(float* out, const float* in, int n) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) { out[i] = 2.0f * in[i]; }
}

static int missing_event(float* out) {
    cudaStream_t producer, consumer;
    cudaEvent_t ready;
    float* values;
    cudaStreamCreateWithFlags(&producer, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&consumer, cudaStreamNonBlocking);
    cudaEventCreateWithFlags(&ready, cudaEventDisableTiming);
    cudaMalloc((void**)&values, N * sizeof(float));
    fill<<<1, N, 0, producer>>>(values, N, 0.0f);
    cudaEventRecord(ready, producer);
    if (!faulty) { cudaStreamWaitEvent(consumer, ready, 0); }
    twice<<<1, N, 0, consumer>>>(out, values, N);
    cudaDeviceSynchronize();
    int wrong = 0;
    for (int i = 0; i < N; i++) { wrong += out[i] != 2.0f * (float)i; }
    return wrong;
}

// --- a value is changed before its neighbour has read it --------------------------------------------------
__global__ static void shift(float* out, bool skip) {
    __shared__ float values[N];
    values[threadIdx.x] = (float)threadIdx.x;
    __syncthreads();
    const float next = values[min(threadIdx.x + 1, N - 1)];
    if (!skip) { __syncthreads(); }
    values[threadIdx.x] = -1.0f;
    out[threadIdx.x] = next;
}

static int missing_barrier(float* out) {
    shift<<<1, N>>>(out, faulty);
    cudaDeviceSynchronize();
    int wrong = 0;
    for (int i = 0; i < N; i++) { wrong += out[i] != (float)(i < N - 1 ? i + 1 : i); }
    return wrong;
}

// --- cp.async without a wait --------------------------------------------------------------------------
__global__ static void copy_in(float* out, const float* in, bool skip) {
    __shared__ __align__(16) float tile[N];
    if (threadIdx.x < N / 4) {
        emu::cp_async_16(&tile[4 * threadIdx.x], &in[4 * threadIdx.x], 16);
        emu::cp_async_commit();
    }
    if (!skip) { emu::cp_async_wait(0); }
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}

static int missing_wait(float* out) {
    float* in;
    cudaMalloc((void**)&in, N * sizeof(float));
    fill<<<1, N>>>(in, N, 0.0f);
    copy_in<<<1, N>>>(out, in, faulty);
    cudaDeviceSynchronize();
    int wrong = 0;
    for (int i = 0; i < N; i++) { wrong += out[i] != (float)i; }
    return wrong;
}

// --- one store too many -----------------------------------------------------------------------------------
__global__ static void store(float* out, int n) {
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) {
        out[i] = (float)i;  // FAULT
    }
}

static int off_by_one(float*) {
    float* values;
    cudaMalloc((void**)&values, N * sizeof(float));
    store<<<1, 32>>>(values, faulty ? N + 1 : N);
    cudaDeviceSynchronize();
    return 0;
}

// The same with a guard behind the array, as every array of the CUDA tests has one.
static int off_by_one_with_guard(float*) {
    float *values, guard[64], after[64];
    cudaMalloc((void**)&values, N * sizeof(float) + sizeof guard);
    memset(guard, 0x5a, sizeof guard);
    cudaMemcpy(values + N, guard, sizeof guard, cudaMemcpyHostToDevice);
    store<<<1, 32>>>(values, faulty ? N + 1 : N);
    cudaMemcpy(after, values + N, sizeof after, cudaMemcpyDeviceToHost);
    return memcmp(guard, after, sizeof guard) != 0;
}

__global__ static void store_shared(float* out, int n) {
    extern __shared__ float tile[];
    for (int i = (int)threadIdx.x; i < n; i += 32) { tile[i] = 1.0f; }
    __syncthreads();
    out[threadIdx.x] = tile[threadIdx.x];
}

static int off_by_one_in_shared_memory(float* out) {
    store_shared<<<1, 32, N * sizeof(float)>>>(out, faulty ? N + 1 : N);
    cudaDeviceSynchronize();
    return 0;
}

// --- half a warp waits for the other half, which has gone by ----------------------------------------------
__global__ static void diverge(float* out, int num_waiting) {
    if ((int)threadIdx.x < num_waiting) { __syncthreads(); }
    __shfl_sync(~0u, 0, 0);
    out[threadIdx.x] = 0.0f;
}

static int divergent_barrier(float* out) {
    diverge<<<1, 64>>>(out, faulty ? 16 : 64);
    cudaDeviceSynchronize();
    return 0;
}

static int no_device(float*) {
    int num_devices = 0;
    const cudaError_t error = cudaGetDeviceCount(&num_devices);
    printf("%d devices: %s\n", num_devices, cudaGetErrorString(error));
    return error != cudaSuccess;
}

int main(int argc, char** argv) {
    static const struct {
        const char* name;
        int (*run)(float* out);
    } programs[] = {{"event", missing_event},         {"barrier", missing_barrier},
                    {"cp_async", missing_wait},       {"store", off_by_one},
                    {"guard", off_by_one_with_guard}, {"shared", off_by_one_in_shared_memory},
                    {"divergent", divergent_barrier}, {"device", no_device}};
    if (argc != 3) { return 2; }
    faulty = strcmp(argv[2], "faulty") == 0;
    float* out;
    cudaMallocHost((void**)&out, N * sizeof(float));
    for (const auto& program : programs) {
        if (strcmp(program.name, argv[1]) != 0) { continue; }
        const int wrong = program.run(out);
        printf("%s: %d wrong values\n", argv[1], wrong);
        return wrong != 0;
    }
    return 2;
}
