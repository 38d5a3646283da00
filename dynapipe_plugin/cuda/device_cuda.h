/*
device_cuda.h -- one GPU through run/device.h: memory, and the stream on which the model computes.

Events are pooled and made by begin() alone, so a step makes none. Times: an event `origin` is recorded where
the queue is empty (settle, at the end of every step) and our clock read right after; any later event lies
cudaEventElapsedTime() after it. Elapsed times are float milliseconds: within a step of 1 s good to 60 ns.
*/
#pragma once

#include <cuda_runtime.h>

#include "../run/device.h"

typedef struct {
    cudaStream_t compute;  // borrowed: the trainer's
    cudaEvent_t* marks;
    int32_t num_marks, max_marks;
    cudaEvent_t origin;
    int64_t origin_ns;  // clock_now_ns() when `origin` was reached
} CudaDevice;

// The current device. *cuda lives as long as *out is open.
Status cuda_device_open(Device* out, CudaDevice** cuda, cudaStream_t compute);

// When a timed event was reached, in clock_now_ns() time.
Status cuda_device_event_ns(const CudaDevice* device, cudaEvent_t event, int64_t* out_ns);

// cudaEventQuery; errors of earlier work come out here.
Status cuda_event_is_done(cudaEvent_t event, int* done);

#define CUDA_TRY(call)                                                            \
    do {                                                                          \
        cudaError_t cuda_error_ = (call);                                         \
        if (cuda_error_ != cudaSuccess) { return cuda_fail(cuda_error_, #call); } \
    } while (0)
Status cuda_fail(cudaError_t error, const char* call);
