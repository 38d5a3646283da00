/*
launch.cpp -- what nvcc's host code calls for its kernels: registration, launches and their limits.

EMU_SHARED_BYTES=232448: shared memory that a block may ask for (H100, B200: 227 KiB; A100: 166912; RTX 30, 40, 50: 101376).
EMU_REGISTERS=file of lines "kernel registers" (ptxas -v): a launch must find them. EMU_COUNTS=file: count.cpp.
*/
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <string>
#include <vector>

#include <cuda_runtime.h>

#include "test/cuda_emu/runtime.h"
#include "test/ptx/machine.h"
#include "test/ptx/ptx.h"

// CUDA C++ Programming Guide, "Compute Capabilities", 9.0.
static constexpr size_t PLAIN_SHARED = 48 << 10, RESERVED_SHARED = 1 << 10, SM_REGISTERS = 65536;
static constexpr unsigned SM_THREADS = 2048, SM_BLOCKS = 32, BLOCK_THREADS = 1024;

static std::map<std::string, PtxKernel*>& kernels() {  // of this program; used before statics are there
    static auto& all = *new std::map<std::string, PtxKernel*>;
    return all;
}
static void write_counts() {
    std::vector<const PtxKernel*> all;
    for (const auto& [name, k] : kernels()) { all.push_back(k); }
    ptx_write_counts(all);
}
PtxRegister::PtxRegister(PtxKernel* k) {
    if (kernels().empty() && getenv("EMU_COUNTS") != nullptr) { atexit(write_counts); }
    if (!kernels().emplace(k->name, k).second) { emu::fail("two kernels are named %s", k->name); }
}

struct Function {  // a kernel as the host knows it
    std::string name;
    PtxKernel* kernel;
    size_t max_dynamic;    // shared memory; 0: cudaFuncSetAttribute was not called
    size_t num_registers;  // 0: not known
};
static std::map<const void*, Function>& functions() {
    static auto& all = *new std::map<const void*, Function>;
    return all;
}
static size_t registers_of(const std::string& name) {
    const char* path = getenv("EMU_REGISTERS");
    std::ifstream in(path != nullptr ? path : "/dev/null");
    std::string kernel;
    size_t count, most = 0;
    while (in >> kernel >> count) { most = std::max(most, kernel == name ? count : 0); }
    return most;
}
static Function& function_of(const void* host) {
    auto found = functions().find(host);
    if (found == functions().end()) { emu::fail("a launch of what is no kernel"); }
    Function& f = found->second;
    if (f.kernel == nullptr) {
        auto kernel = kernels().find(f.name);
        if (kernel == kernels().end()) { emu::fail("%s: its PTX was not translated", f.name.c_str()); }
        f.kernel = kernel->second;
        f.num_registers = registers_of(f.name);
    }
    return f;
}

// --- limits --------------------------------------------------------------------------------------------------------
size_t emu::block_shared_bytes() {
    static const size_t bytes = getenv("EMU_SHARED_BYTES") != nullptr ? (size_t)atol(getenv("EMU_SHARED_BYTES")) : 227 << 10;
    return bytes;
}
static size_t static_shared(const PtxKernel* k) {
    size_t at = 0;
    for (int i = 0; i < k->num_shared; i++) {
        const size_t align = (size_t)k->shared[i].align;
        at = (at + align - 1) / align * align + (size_t)k->shared[i].num_bytes;
    }
    return at;
}
static size_t dynamic_limit(const Function& f) {
    return f.max_dynamic > 0 ? f.max_dynamic : PLAIN_SHARED - static_shared(f.kernel);
}
static cudaError_t check_launch(const Function& f, dim3 g, dim3 b, size_t shared_bytes, cudaStream_t stream) {
    const char* name = f.kernel->name;
    const uint64_t threads = (uint64_t)b.x * b.y * b.z;
    if (threads == 0 || threads > BLOCK_THREADS || b.z > 64) {
        return emu::error(cudaErrorInvalidConfiguration, "launch of %s: blocks of (%u,%u,%u) threads; 1 to 1024 can be", name, b.x, b.y, b.z);
    }
    const int bound = f.kernel->max_threads, exact = f.kernel->exact_threads;
    if ((bound != 0 && threads > (uint64_t)bound) || (exact != 0 && threads != (uint64_t)exact)) {
        return emu::error(cudaErrorInvalidConfiguration, "launch of %s: %lu threads a block, compiled for %d", name, (unsigned long)threads, bound + exact);
    }
    if (g.x == 0 || g.y == 0 || g.z == 0 || g.x > 0x7fffffff || g.y > 65535 || g.z > 65535) {
        return emu::error(cudaErrorInvalidConfiguration, "launch of %s: a grid of (%u,%u,%u) blocks; 1 to (2^31 - 1, 65535, 65535) can be", name, g.x, g.y, g.z);
    }
    if (shared_bytes > dynamic_limit(f)) {
        return emu::error(cudaErrorInvalidValue,
                          "launch of %s: %zu bytes of shared memory, %zu can be ---> cudaFuncSetAttribute(function, "
                          "cudaFuncAttributeMaxDynamicSharedMemorySize, bytes)",
                          name, shared_bytes, dynamic_limit(f));
    }
    // A warp takes registers in blocks of 256. (Compiled for so many threads, ptxas sees to it.)
    if ((f.num_registers + 7) / 8 * 8 * 32 * ((threads + 31) / 32) > SM_REGISTERS) {
        return emu::error(cudaErrorLaunchOutOfResources, "launch of %s: %lu threads of %zu registers", name, (unsigned long)threads, f.num_registers);
    }
    if (stream != nullptr && stream != cudaStreamLegacy && stream != cudaStreamPerThread && stream->device != emu::current_device()) {
        return emu::error(cudaErrorInvalidResourceHandle, "launch of %s: a stream of device %d, the current device is %d", name, stream->device,
                          emu::current_device());
    }
    return cudaSuccess;
}

extern "C" {

// --- registration: nvcc's host code calls these before main() ------------------------------------------------------
void** __cudaRegisterFatBinary(void*) {
    static void* handle;
    return &handle;
}
void __cudaRegisterFatBinaryEnd(void**) {
}
void __cudaUnregisterFatBinary(void**) {
}
void __cudaRegisterFunction(void**, const char* host, char*, const char* name, int, uint3*, uint3*, dim3*, dim3*, int*) {
    functions()[host] = {name, nullptr, 0, 0};
}
void __cudaRegisterVar(void**, char*, char*, const char* name, int, size_t, int, int) {
    emu::fail("__device__ variable %s ---> pass a pointer to the kernel; variables are not emulated", name);
}

// --- launches ------------------------------------------------------------------------------------------------------
static struct {
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
} pushed;  // what stands between <<< and >>>
unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes, CUstream_st* stream) {
    pushed = {grid, block, shared_bytes, stream};
    return 0;
}
cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes, void* stream) {
    *grid = pushed.grid, *block = pushed.block, *shared_bytes = pushed.shared_bytes;
    *(cudaStream_t*)stream = pushed.stream;
    return cudaSuccess;
}
cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* host) {
    *kernel = (cudaKernel_t)host;
    return cudaSuccess;
}
// Arguments are copied now, as CUDA does; the kernel runs later.
cudaError_t cudaLaunchKernel(const void* host, dim3 grid, dim3 block, void** args, size_t shared_bytes, cudaStream_t stream) {
    const Function& f = function_of(host);
    PtxKernel* k = f.kernel;
    const cudaError_t code = check_launch(f, grid, block, shared_bytes, stream);
    if (code != cudaSuccess) { return code; }
    std::vector<char> params(k->num_params > 0 ? (size_t)(k->params[k->num_params - 1].offset + k->params[k->num_params - 1].num_bytes) : 0, (char)0xff);
    for (int i = 0; i < k->num_params; i++) { memcpy(params.data() + k->params[i].offset, args[i], (size_t)k->params[i].num_bytes); }
    emu::enqueue(stream, k->name, [=] {
        const uint32_t blocks[3] = {grid.x, grid.y, grid.z}, threads[3] = {block.x, block.y, block.z};
        ptx_run(k, blocks, threads, shared_bytes, params.data(), (int)params.size());
        return true;
    });
    return cudaSuccess;
}
cudaError_t __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block, void** args, size_t shared_bytes, cudaStream_t stream) {
    return cudaLaunchKernel((const void*)kernel, grid, block, args, shared_bytes, stream);
}

// --- attributes ----------------------------------------------------------------------------------------------------
cudaError_t cudaFuncSetAttribute(const void* host, cudaFuncAttribute attribute, int value) {
    if (attribute != cudaFuncAttributeMaxDynamicSharedMemorySize) { return cudaSuccess; }  // hints
    Function& f = function_of(host);
    if (value < 0 || static_shared(f.kernel) + (size_t)value > emu::block_shared_bytes()) {
        return emu::error(cudaErrorInvalidValue, "cudaFuncSetAttribute(%s): %d + %zu bytes of shared memory; a block can have %zu", f.kernel->name, value,
                          static_shared(f.kernel), emu::block_shared_bytes());
    }
    f.max_dynamic = (size_t)value;
    return cudaSuccess;
}
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* num_blocks, const void* host, int threads, size_t shared_bytes) {
    const Function& f = function_of(host);
    const size_t warps = ((size_t)threads + 31) / 32, registers = (f.num_registers + 7) / 8 * 8 * 32 * warps;
    const bool possible = threads > 0 && threads <= (int)BLOCK_THREADS && shared_bytes <= dynamic_limit(f);
    *num_blocks = !possible ? 0
                            : (int)std::min({SM_THREADS / (warps * 32), (emu::block_shared_bytes() + RESERVED_SHARED) / (static_shared(f.kernel) + shared_bytes + RESERVED_SHARED),
                                             (size_t)SM_BLOCKS, registers > 0 ? SM_REGISTERS / registers : SM_BLOCKS});
    return cudaSuccess;
}
// The template for any kernel and the "with flags" call lead here too.
cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* num_blocks, const void* host, int threads, size_t shared_bytes, unsigned) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessor(num_blocks, host, threads, shared_bytes);
}

}  // extern "C"
