#include "device_cuda.h"

#include <stdlib.h>

#ifdef DYNAPIPE_NVTX
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wpedantic"
#include <nvtx3/nvToolsExt.h>
#pragma GCC diagnostic pop
#endif

#include "../../util/program.h"

Status cuda_fail(cudaError_t error, const char* call) {
    return FAIL(STATUS_DEVICE, "%s: %s ---> see nvidia-smi; compute-sanitizer finds the operation", call,
                cudaGetErrorString(error));
}

Status cuda_event_is_done(cudaEvent_t event, int* done) {
    cudaError_t error = cudaEventQuery(event);
    *done = error == cudaSuccess;
    return error == cudaSuccess || error == cudaErrorNotReady ? STATUS_OK
                                                              : cuda_fail(error, "cudaEventQuery");
}

Status cuda_device_event_ns(const CudaDevice* device, cudaEvent_t event, int64_t* out_ns) {
    float ms;
    CUDA_TRY(cudaEventElapsedTime(&ms, device->origin, event));
    *out_ns = device->origin_ns + (int64_t)((double)ms * 1e6);
    return STATUS_OK;
}

// --- run/device.h ----------------------------------------------------------------------------------------
static Status device_alloc(void* ctx, void** out, int64_t num_bytes) {
    (void)ctx;
    void* memory = NULL;
    if (cudaMalloc(&memory, (size_t)num_bytes) != cudaSuccess) {
        size_t free_bytes = 0, total_bytes = 0;
        (void)cudaGetLastError();  // it is dealt with here
        CUDA_TRY(cudaMemGetInfo(&free_bytes, &total_bytes));
        return FAIL(STATUS_NO_MEMORY,
                    "no memory for %lld bytes, the GPU has %zu of %zu left ---> a smaller --memory-limit",
                    (long long)num_bytes, free_bytes, total_bytes);
    }
    *out = memory;
    return STATUS_OK;
}

static void device_release(void* ctx, void* memory) {
    (void)ctx;
    if (memory != NULL) { (void)cudaFree(memory); }
}

static Status device_memory_bytes(void* ctx, int64_t* free_bytes, int64_t* total_bytes) {
    (void)ctx;
    size_t left, total;
    CUDA_TRY(cudaMemGetInfo(&left, &total));
    *free_bytes = (int64_t)left;
    *total_bytes = (int64_t)total;
    return STATUS_OK;
}

static Status device_copy(void* ctx, void* to, const void* from, int64_t num_bytes) {
    const CudaDevice* device = ctx;
    CUDA_TRY(cudaStreamSynchronize(device->compute));
    CUDA_TRY(cudaMemcpy(to, from, (size_t)num_bytes, cudaMemcpyDefault));
    return STATUS_OK;
}

static Status device_begin(void* ctx, int32_t num_marks) {
    CudaDevice* device = ctx;
    device->num_marks = 0;
    if (num_marks <= device->max_marks) { return STATUS_OK; }
    cudaEvent_t* grown = realloc(device->marks, (size_t)num_marks * sizeof(cudaEvent_t));
    if (grown == NULL) { return FAIL(STATUS_NO_MEMORY, "cuda: room for %d marks", (int)num_marks); }
    device->marks = grown;
    for (; device->max_marks < num_marks; device->max_marks++) {
        CUDA_TRY(cudaEventCreate(&device->marks[device->max_marks]));
    }
    return STATUS_OK;
}

static Status device_mark(void* ctx, int32_t* out) {
    CudaDevice* device = ctx;
    if (device->num_marks == device->max_marks) {
        return FAIL(STATUS_OUT_OF_RANGE, "cuda: more than %d marks", (int)device->max_marks);
    }
    *out = device->num_marks++;
    CUDA_TRY(cudaEventRecord(device->marks[*out], device->compute));
    return STATUS_OK;
}

static Status device_is_done(void* ctx, int32_t mark, int* done) {
    CudaDevice* device = ctx;
    return cuda_event_is_done(device->marks[mark], done);
}

static Status device_mark_ns(void* ctx, int32_t mark, int64_t* out_ns) {
    CudaDevice* device = ctx;
    return cuda_device_event_ns(device, device->marks[mark], out_ns);
}

static Status device_settle(void* ctx) {
    CudaDevice* device = ctx;
    CUDA_TRY(cudaEventRecord(device->origin, device->compute));
    CUDA_TRY(cudaEventSynchronize(device->origin));
    device->origin_ns = clock_now_ns();
    return STATUS_OK;
}

#ifdef DYNAPIPE_NVTX
static void device_range_begin(void* ctx, const char* text) {
    (void)ctx;
    nvtxRangePushA(text);
}

static void device_range_end(void* ctx) {
    (void)ctx;
    nvtxRangePop();
}
#endif

static void device_close_cuda(void* ctx) {
    CudaDevice* device = ctx;
    for (int32_t i = 0; i < device->max_marks; i++) { (void)cudaEventDestroy(device->marks[i]); }
    (void)cudaEventDestroy(device->origin);
    free(device->marks);
    free(device);
}

static const DynapipeDevice_v1 cuda_device = {
    .alloc = device_alloc,
    .release = device_release,
    .memory_bytes = device_memory_bytes,
    .copy = device_copy,
    .begin = device_begin,
    .mark = device_mark,
    .is_done = device_is_done,
    .mark_ns = device_mark_ns,
    .settle = device_settle,
#ifdef DYNAPIPE_NVTX
    .range_begin = device_range_begin,
    .range_end = device_range_end,
#endif
    .close = device_close_cuda,
};

Status cuda_device_open(Device* out, CudaDevice** cuda, cudaStream_t compute) {
    CudaDevice* device = calloc(1, sizeof *device);
    if (device == NULL) { return FAIL(STATUS_NO_MEMORY, "cuda: no memory for a device"); }
    device->compute = compute;
    cudaError_t error = cudaEventCreate(&device->origin);
    if (error != cudaSuccess) {
        free(device);
        return cuda_fail(error, "cudaEventCreate");
    }
    *out = (Device){&cuda_device, device};
    *cuda = device;
    return device_settle(device);
}
