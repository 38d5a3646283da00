// machine.h -- a kernel's launch on the machine (machine.cpp), for the runtime (launch.cpp).
#pragma once

#include <cstddef>
#include <cstdint>

struct PtxKernel;
// Runs all blocks. `param_values`: as cudaLaunchKernel's arguments lie in the PTX function's parameters.
void ptx_run(PtxKernel* kernel, const uint32_t grid[3], const uint32_t block[3], size_t dynamic_bytes, const char* param_values, int num_param_bytes);
