// machine.h -- a kernel's launch on the machine (machine.cpp), for the runtime (launch.cpp); counts.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

struct PtxKernel;
// Runs all blocks. `param_values`: as cudaLaunchKernel's arguments lie in the PTX function's parameters.
void ptx_run(PtxKernel* kernel, const uint32_t grid[3], const uint32_t block[3], size_t dynamic_bytes,
             const char* param_values, int num_param_bytes);

// count.cpp: after each block and launch; and when the program ends.
void ptx_count_block(const PtxKernel* kernel);
void ptx_count_launch(const PtxKernel* kernel);
void ptx_write_counts(const std::vector<const PtxKernel*>& kernels);
