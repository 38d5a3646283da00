/*
faults.cu -- programs with one mistake each, beside those that test/test_cuda_faults.sh plants in llmc/cuda:
`faults NAME right` is correct, exit status 0; `faults NAME faulty` must end with the words beside it in
test/test_cuda_emu.sh.

    shifted         elementwise: vectors of four at an address that is not a multiple of 16
    product         attention: mma.sync where a lane has gone
    shuffle         norms: the value of a lane that has gone
    shuffles        norms: half a warp in another kind of shuffle
    votes           attention: half a warp in another kind of vote
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
    } programs[] = {PROGRAM(shifted), PROGRAM(product), PROGRAM(shuffle), PROGRAM(shuffles),
                    PROGRAM(votes),   PROGRAM(traffic), PROGRAM(event),   PROGRAM(device)};
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
