/*
kernel_names.h -- the names of the kernels that a library would launch: its call is recorded into a CUDA
graph, which never runs, and the driver is asked for the names of the graph's nodes. Needs CUDA 12.5 to
compile with and a driver of 12.3; without, the text says so. Nothing here ends the program.

    KernelNames recorded;
    kernel_names_begin(&recorded);
    good = recorded.stream != NULL && call(recorded.stream);
    kernel_names_end(&recorded, good, text, sizeof text);    // "kernel ...", several: "kernel ... + ..."
*/
#pragma once

#include <stdbool.h>
#include <cuda_runtime.h>

typedef struct {
    cudaStream_t stream;  // NULL: cannot be recorded
} KernelNames;

void kernel_names_begin(KernelNames* recorded);
void kernel_names_end(KernelNames* recorded, bool is_good, char* text, size_t max_bytes);
