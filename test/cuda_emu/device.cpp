/*
device.cpp -- the devices (like an H200 in what they allow, with few SMs), and errors.
*/
#include <cstdio>
#include <cstring>

#include "runtime.h"

namespace emu {

// CUDA C++ Programming Guide, "Compute Capabilities", 9.0.
static constexpr int SM_THREADS = 2048, SM_BLOCKS = 32, BLOCK_THREADS = 1024;
static constexpr size_t STATIC_SHARED = 48 << 10, RESERVED_SHARED = 1 << 10;

static int device;
static cudaError_t last_error;

int current_device() {
    return device;
}

void remember_error(cudaError_t code) {
    last_error = code;
}

}  // namespace emu

using namespace emu;

extern "C" {

// --- errors ----------------------------------------------------------------------------------
cudaError_t cudaGetLastError(void) {
    return std::exchange(last_error, cudaSuccess);
}
const char* cudaGetErrorString(cudaError_t code) {
    switch (code) {
        case cudaSuccess: return "no error";
        case cudaErrorInvalidValue: return "invalid argument";
        case cudaErrorMemoryAllocation: return "out of memory";
        case cudaErrorInvalidConfiguration: return "invalid configuration argument";
        case cudaErrorNoDevice: return "no CUDA-capable device is detected";
        case cudaErrorInsufficientDriver:
            return "CUDA driver version is insufficient for CUDA runtime version";
        case cudaErrorInvalidDevice: return "invalid device ordinal";
        case cudaErrorInvalidResourceHandle: return "invalid resource handle";
        case cudaErrorNotReady: return "device not ready";
        default: return "unrecognized error code";
    }
}

// --- devices ---------------------------------------------------------------------------------
cudaError_t cudaGetDeviceCount(int* num_devices) {
    *num_devices = settings().num_devices;
    return *num_devices > 0 ? cudaSuccess
                            : error((cudaError_t)settings().no_device, "cudaGetDeviceCount: none");
}
cudaError_t cudaSetDevice(int idx) {
    if (settings().num_devices == 0) { return error(cudaErrorNoDevice, "cudaSetDevice: none"); }
    if (idx < 0 || idx >= settings().num_devices) {
        return error(cudaErrorInvalidDevice, "cudaSetDevice(%d): there are %d", idx, settings().num_devices);
    }
    device = idx;
    return cudaSuccess;
}
cudaError_t cudaGetDevice(int* idx) {
    *idx = device;
    return settings().num_devices > 0 ? cudaSuccess : error(cudaErrorNoDevice, "cudaGetDevice: none");
}
cudaError_t cudaGetDeviceProperties(cudaDeviceProp* about, int idx) {
    if (idx < 0 || idx >= settings().num_devices) {
        return error(cudaErrorInvalidDevice, "cudaGetDeviceProperties(%d)", idx);
    }
    memset(about, 0, sizeof *about);
    snprintf(about->name, sizeof about->name, "CUDA emulated on a CPU");
    about->major = settings().capability / 10;
    about->minor = settings().capability % 10;
    about->multiProcessorCount = settings().num_sms;
    about->warpSize = 32;
    about->maxThreadsPerBlock = BLOCK_THREADS;
    about->maxThreadsPerMultiProcessor = SM_THREADS;
    about->maxBlocksPerMultiProcessor = SM_BLOCKS;
    about->maxThreadsDim[0] = about->maxThreadsDim[1] = BLOCK_THREADS;
    about->maxThreadsDim[2] = 64;
    about->maxGridSize[0] = 0x7fffffff;
    about->maxGridSize[1] = about->maxGridSize[2] = 65535;
    about->sharedMemPerBlock = STATIC_SHARED;
    about->sharedMemPerBlockOptin = block_shared_bytes();
    about->sharedMemPerMultiprocessor = block_shared_bytes() + RESERVED_SHARED;
    about->reservedSharedMemPerBlock = RESERVED_SHARED;
    about->regsPerBlock = about->regsPerMultiprocessor = 65536;
    about->totalGlobalMem = settings().device_bytes;
    about->l2CacheSize = 50 << 20;
    about->memoryBusWidth = 5120;
    about->asyncEngineCount = 3;
    about->concurrentKernels = about->unifiedAddressing = about->canMapHostMemory = 1;
    about->pciBusID = idx + 1;
    return cudaSuccess;
}
cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int idx) {
    cudaDeviceProp about;
    const cudaError_t code = cudaGetDeviceProperties(&about, idx);
    if (code != cudaSuccess) { return code; }
    switch (attribute) {
        case cudaDevAttrMultiProcessorCount: *value = about.multiProcessorCount; break;
        case cudaDevAttrComputeCapabilityMajor: *value = about.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = about.minor; break;
        case cudaDevAttrWarpSize: *value = about.warpSize; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = about.maxThreadsPerBlock; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = about.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrMaxBlocksPerMultiprocessor: *value = about.maxBlocksPerMultiProcessor; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)about.sharedMemPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)about.sharedMemPerBlockOptin; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor:
            *value = (int)about.sharedMemPerMultiprocessor;
            break;
        case cudaDevAttrReservedSharedMemoryPerBlock: *value = (int)about.reservedSharedMemPerBlock; break;
        case cudaDevAttrMaxRegistersPerBlock: *value = about.regsPerBlock; break;
        case cudaDevAttrL2CacheSize: *value = about.l2CacheSize; break;
        case cudaDevAttrGlobalMemoryBusWidth: *value = about.memoryBusWidth; break;
        case cudaDevAttrMemoryClockRate: *value = 3000000; break;  // kHz
        case cudaDevAttrClockRate: *value = 1980000; break;
        case cudaDevAttrPciBusId: *value = about.pciBusID; break;
        case cudaDevAttrUnifiedAddressing:
        case cudaDevAttrMemoryPoolsSupported: *value = 1; break;
        default: *value = 0; break;
    }
    return cudaSuccess;
}
cudaError_t cudaDriverGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}
cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

}  // extern "C"
