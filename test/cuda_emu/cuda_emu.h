/*
cuda_emu.h -- CUDA C++ for g++: included before the first line of every .cu file (what rewrite.c made of it).

The CUDA headers are the real ones, in host mode: types, prototypes, bf16 arithmetic. Here is the rest of the
kernel language; the runtime behind cudaXxx() is in the .cpp files beside this.

    thread.h          launch, barriers, shuffles, votes      device_functions.h   atomics, loads and stores,
intrinsics tensor_core.h     mma, ldmatrix, cp.async                (rewrite.c: kernel<<<>>>(), shared memory)

What is not here: textures, clusters, TMA, wgmma, cooperative groups, inline PTX, graphs. One grid runs at a
time, one block of it at a time, one thread of that at a time: atomics are trivially so, and data races show
only through the order of threads, which EMU_SEED changes. __device__ variables exist once for all devices of
a process. Shared memory in an included file (not .cu) works, but starts with what the last block left.
*/
#pragma once

// C++20 puts std::lerp into the global namespace, where programs of C++17 have one of their own.
#define lerp emu_std_lerp
#include <cmath>
#include <math.h>
#undef lerp

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_runtime.h>

#include <cstdint>
#include <cstdio>
#include <cstring>

#ifndef CUDA_EMU
#define CUDA_EMU 1
#endif

#undef __global__
#undef __device__
#undef __host__
#undef __shared__
#undef __constant__
#undef __managed__
#undef __launch_bounds__
#undef __forceinline__
#undef __noinline__
#undef __maxnreg__
#undef __grid_constant__
#define __global__
#define __device__
#define __host__
#define __shared__ static  // one block at a time
#define __constant__
#define __managed__
#define __launch_bounds__(...)
#define __maxnreg__(...)
#define __grid_constant__
#define __forceinline__ inline __attribute__((always_inline))
#define __noinline__  // (as an attribute it would stand inside those of libstdc++)
#define __builtin_assume(condition)

extern uint3 threadIdx, blockIdx;
extern dim3 blockDim, gridDim;
static constexpr int warpSize = 32;

#include "thread.h"

#include "device_functions.h"
#include "tensor_core.h"
