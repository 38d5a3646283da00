// streams.cu -- streams, events, copies and memory: what is guaranteed holds under every EMU_SEED.
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdlib.h>

#include "../../test.h"

__global__ static void add(int* values, int n, int what) {
    const int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < n) { values[i] = 3 * values[i] + what; }
}

static int* device_array(size_t num_values) {
    void* memory = nullptr;
    CHECK_EQ(cudaMalloc(&memory, num_values * sizeof(int)), cudaSuccess);
    return (int*)memory;
}
static int* pinned_array(size_t num_values) {
    void* memory = nullptr;
    CHECK_EQ(cudaMallocHost(&memory, num_values * sizeof(int)), cudaSuccess);
    return (int*)memory;
}
static cudaStream_t new_stream(unsigned flags) {
    cudaStream_t stream;
    CHECK_EQ(cudaStreamCreateWithFlags(&stream, flags), cudaSuccess);
    return stream;
}

enum { N = 1000 };

static void events_order_streams(void) {
    cudaStream_t a = new_stream(cudaStreamNonBlocking), b = new_stream(cudaStreamNonBlocking);
    cudaEvent_t there, back;
    CHECK_EQ(cudaEventCreateWithFlags(&there, cudaEventDisableTiming), cudaSuccess);
    CHECK_EQ(cudaEventCreateWithFlags(&back, cudaEventDisableTiming), cudaSuccess);
    int *values = device_array(N), *host = pinned_array(N), expected = 0;
    CHECK_EQ(cudaMemsetAsync(values, 0, N * sizeof(int), a), cudaSuccess);
    for (int i = 0; i < 10; i++) {
        add<<<N / 100, 100, 0, a>>>(values, N, 2 * i);
        CHECK_EQ(cudaEventRecord(there, a), cudaSuccess);
        CHECK_EQ(cudaStreamWaitEvent(b, there, 0), cudaSuccess);
        add<<<N / 100, 100, 0, b>>>(values, N, 2 * i + 1);
        CHECK_EQ(cudaEventRecord(back, b), cudaSuccess);
        CHECK_EQ(cudaStreamWaitEvent(a, back, 0), cudaSuccess);
        expected = 3 * (3 * expected + 2 * i) + 2 * i + 1;
    }
    CHECK_EQ(cudaMemcpyAsync(host, values, N * sizeof(int), cudaMemcpyDeviceToHost, a), cudaSuccess);
    CHECK_EQ(cudaStreamSynchronize(a), cudaSuccess);
    for (int i = 0; i < N; i++) { CHECK_EQ(host[i], expected); }
    CHECK_EQ(cudaEventQuery(back), cudaSuccess);
    CHECK_EQ(cudaEventDestroy(there), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(a), cudaSuccess);
    CHECK_EQ(cudaStreamDestroy(b), cudaSuccess);
}

static void default_stream_waits_for_blocking_streams(void) {
    cudaStream_t blocking = new_stream(cudaStreamDefault);
    int *values = device_array(N), host[N];
    add<<<N / 100, 100, 0, blocking>>>(values, N, 0);
    CHECK_EQ(cudaMemset(values, 0, N * sizeof(int)), cudaSuccess);
    add<<<N / 100, 100, 0, blocking>>>(values, N, 5);
    add<<<N / 100, 100>>>(values, N, 7);
    CHECK_EQ(cudaMemcpy(host, values, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < N; i++) { CHECK_EQ(host[i], 22); }
}

// Pageable memory may be overwritten at once; from pinned memory the copy takes what it finds when it runs.
static void copies_from_pageable_memory_take_a_snapshot(void) {
    cudaStream_t stream = new_stream(cudaStreamNonBlocking);
    int *values = device_array(2), *pinned = pinned_array(1), pageable = 1, host[2];
    *pinned = 1;
    CHECK_EQ(cudaMemcpyAsync(&values[0], &pageable, sizeof(int), cudaMemcpyHostToDevice, stream),
             cudaSuccess);
    CHECK_EQ(cudaMemcpyAsync(&values[1], pinned, sizeof(int), cudaMemcpyHostToDevice, stream), cudaSuccess);
    pageable = *pinned = 2;
    CHECK_EQ(cudaMemcpyAsync(host, values, sizeof host, cudaMemcpyDeviceToHost, stream),
             cudaSuccess);  // waits
    CHECK_EQ(host[0], 1);
    CHECK_EQ(host[1], 2);  // too early: here always, on a GPU sometimes
}

static void memory_is_checked(void) {
    int *values = device_array(N), host[N];
    CHECK_EQ(cudaMemcpy(host, values, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
    for (int i = 0; i < N; i++) { CHECK_EQ(host[i], -1); }  // NaN bytes
    CHECK_EQ(cudaMemcpy(values + 100, host, sizeof host, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemcpy(values, host, sizeof host, cudaMemcpyDeviceToHost), cudaErrorInvalidValue);
    CHECK_EQ(cudaMemset(values + N - 1, 0, 800), cudaErrorInvalidValue);
    size_t free_bytes, total_bytes, before;
    CHECK_EQ(cudaMemGetInfo(&before, &total_bytes), cudaSuccess);
    void* large = nullptr;
    CHECK_EQ(cudaMalloc(&large, total_bytes), cudaErrorMemoryAllocation);
    CHECK_EQ(cudaMalloc(&large, (size_t)1 << 30), cudaSuccess);  // costs nothing until it is written
    CHECK_EQ(cudaMemGetInfo(&free_bytes, &total_bytes), cudaSuccess);
    CHECK_EQ(before - free_bytes, (size_t)1 << 30);
    CHECK_EQ(cudaMemset(large, 0, (size_t)1 << 30), cudaSuccess);
    CHECK_EQ(cudaMemcpy(host, (char*)large + (1 << 29) + 1, sizeof host, cudaMemcpyDefault), cudaSuccess);
    for (int i = 0; i < N; i++) { CHECK_EQ(host[i], 0); }
    CHECK_EQ(cudaFree(large), cudaSuccess);
    CHECK_EQ(cudaFree(values + 1), cudaErrorInvalidValue);
    CHECK_EQ(cudaFree(values), cudaSuccess);
    cudaGetLastError();
}

// Either side may touch it, and a copy may call it either's.
static void managed_memory_is_of_both_sides(void) {
    void* memory = nullptr;
    CHECK_EQ(cudaMallocManaged(&memory, N * sizeof(int), cudaMemAttachGlobal), cudaSuccess);
    int *values = (int*)memory, host[N];
    for (int i = 0; i < N; i++) { values[i] = i; }
    add<<<N / 100, 100>>>(values, N, 1);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < N; i++) { CHECK_EQ(values[i], 3 * i + 1); }
    CHECK_EQ(cudaMemset(values, 0, sizeof(int)), cudaSuccess);
    CHECK_EQ(cudaMemcpy(host, values, sizeof host, cudaMemcpyDeviceToHost), cudaSuccess);
    CHECK_EQ(host[0] + host[1], 4);
    CHECK_EQ(cudaMemcpy(values, host, sizeof host, cudaMemcpyHostToDevice), cudaSuccess);
    const cudaMemLocation at_host = {cudaMemLocationTypeHost, 0};
    CHECK_EQ(cudaMemAdvise(values, sizeof host, cudaMemAdviseSetPreferredLocation, at_host), cudaSuccess);
    CHECK_EQ(cudaMemAdvise(host, sizeof host, cudaMemAdviseSetPreferredLocation, at_host),
             cudaErrorInvalidValue);
    CHECK_EQ(cudaMemPrefetchAsync(values + 100, sizeof host, at_host, 0, 0), cudaErrorInvalidValue);
    cudaPointerAttributes about;
    CHECK_EQ(cudaPointerGetAttributes(&about, values), cudaSuccess);
    CHECK_EQ(about.type, cudaMemoryTypeManaged);
    CHECK_EQ(cudaFree(values), cudaSuccess);
    cudaGetLastError();
}

// A write just behind an allocation is seen, unless allocations end where a GPU's do.
static void allocations_end_where_the_run_says(void) {
    const char* granule = getenv("EMU_GRANULE_BYTES");
    int* value = device_array(1);
    CHECK_EQ(cudaMemset(value, 0, 16), granule != nullptr ? cudaSuccess : cudaErrorInvalidValue);
    CHECK_EQ(cudaMemset(value, 0, 513), cudaErrorInvalidValue);
    CHECK_EQ(cudaFree(value), cudaSuccess);
    cudaGetLastError();
}

static void devices_are_apart(void) {
    int num_devices = 0, device = -1;
    size_t free_bytes[2], total_bytes;
    CHECK_EQ(cudaGetDeviceCount(&num_devices), cudaSuccess);
    CHECK_EQ(num_devices, 8);
    CHECK_EQ(cudaMemGetInfo(&free_bytes[0], &total_bytes), cudaSuccess);
    CHECK_EQ(cudaSetDevice(1), cudaSuccess);
    int* values = device_array(N);
    CHECK_EQ(cudaMemGetInfo(&free_bytes[1], &total_bytes), cudaSuccess);
    CHECK_EQ((total_bytes - free_bytes[1]) / sizeof(int) / N, 1);
    cudaPointerAttributes about;
    CHECK_EQ(cudaPointerGetAttributes(&about, values + 3), cudaSuccess);
    CHECK_EQ(about.type, cudaMemoryTypeDevice);
    CHECK_EQ(about.device, 1);
    CHECK_EQ(cudaSetDevice(0), cudaSuccess);
    CHECK_EQ(cudaSetDevice(8), cudaErrorInvalidDevice);
    CHECK_EQ(cudaGetDevice(&device), cudaSuccess);
    CHECK_EQ(device, 0);
    cudaGetLastError();
}

static void note(void* log) {
    int* values = (int*)log;
    values[0]++;
}

static void host_functions_and_times_follow_the_stream(void) {
    cudaStream_t stream = new_stream(cudaStreamNonBlocking);
    cudaEvent_t begin, end;
    CHECK_EQ(cudaEventCreate(&begin), cudaSuccess);
    CHECK_EQ(cudaEventCreate(&end), cudaSuccess);
    int* log = pinned_array(8);
    log[0] = 0;
    float ms = -1.0f;
    CHECK_EQ(cudaEventRecord(begin, stream), cudaSuccess);
    for (int i = 0; i < 3; i++) { CHECK_EQ(cudaLaunchHostFunc(stream, note, log), cudaSuccess); }
    CHECK_EQ(cudaEventRecord(end, stream), cudaSuccess);
    CHECK_EQ(cudaEventElapsedTime(&ms, begin, end), cudaErrorNotReady);
    while (cudaEventQuery(end) == cudaErrorNotReady) {}
    CHECK_EQ(log[0], 3);
    CHECK_EQ(cudaEventElapsedTime(&ms, begin, end), cudaSuccess);
    CHECK(ms >= 0.0f);
}

int main(void) {
    RUN(events_order_streams);
    RUN(default_stream_waits_for_blocking_streams);
    RUN(copies_from_pageable_memory_take_a_snapshot);
    RUN(memory_is_checked);
    RUN(managed_memory_is_of_both_sides);
    RUN(allocations_end_where_the_run_says);
    RUN(devices_are_apart);
    RUN(host_functions_and_times_follow_the_stream);
    return test_end();
}
