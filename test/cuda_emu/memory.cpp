/*
memory.cpp -- device, pinned and managed memory, copies.

Device memory is host memory that is remembered: fresh it holds NaN bytes (0xff), copies are checked against
its bounds. From pageable memory a copy takes a snapshot when it is issued, to pageable memory it waits, as
CUDA does; with pinned memory it happens when its turn comes, so a buffer reused too early gives wrong
numbers.
*/
#include <cstdlib>
#include <cstring>
#include <map>
#include <sys/mman.h>
#include <unistd.h>

#include "runtime.h"

namespace emu {

// Never freed: what a program leaves at its end is reachable, and no leak of its host memory.
static auto& allocations = *new std::map<char*, Allocation>;
static std::map<int, size_t> used_bytes;  // of each device

const Allocation* find_allocation(const void* pointer) {
    auto after = allocations.upper_bound((char*)const_cast<void*>(pointer));
    if (after == allocations.begin()) { return nullptr; }
    const Allocation& before = std::prev(after)->second;
    return (const char*)pointer < before.begin + before.num_bytes ? &before : nullptr;
}

static constexpr size_t SHADOW_FACTOR = 8;
void* shadow_of(const Allocation* a) {
    if (a->shadow == nullptr) {
        a->shadow = mmap(nullptr, a->num_bytes * SHADOW_FACTOR + SHADOW_FACTOR, PROT_READ | PROT_WRITE,
                         MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        if (a->shadow == MAP_FAILED) { fail("no memory to watch %zu bytes", a->num_bytes); }
    }
    return a->shadow;
}

bool is_device_pointer(const void* pointer) {
    const Allocation* found = find_allocation(pointer);
    return found != nullptr && found->device >= 0;
}

bool is_pinned(const void* pointer) {
    const Allocation* found = find_allocation(pointer);
    return found != nullptr && found->device < 0;
}

const char* range_error(const void* pointer, size_t num_bytes) {
    if (num_bytes == 0) { return nullptr; }
    if (pointer == nullptr) { return "is NULL"; }
    const Allocation* found = find_allocation(pointer);
    if (found == nullptr) { return nullptr; }
    return (const char*)pointer + num_bytes > found->begin + found->num_bytes ? "ends behind its allocation"
                                                                              : nullptr;
}

// --- large allocations cost nothing until they are written -----------------------------------

// They show the same few pages of 0xff again and again, copied when they are written.
static constexpr size_t PATTERN_BYTES = 16 << 20, MAPPED_FROM_BYTES = 32 << 20;

static int pattern_file() {
    static int file = -1;
    if (file >= 0) { return file; }
    file = memfd_create("emu", 0);
    std::vector<char> pattern(1 << 20, (char)0xff);
    for (size_t written = 0; file >= 0 && written < PATTERN_BYTES; written += pattern.size()) {
        if (write(file, pattern.data(), pattern.size()) != (ssize_t)pattern.size()) {
            fail("no memory for a pattern");
        }
    }
    return file;
}

static char* map_device_memory(size_t num_bytes) {
    void* memory =
        mmap(nullptr, num_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) { return nullptr; }
    for (size_t begin = 0; begin < num_bytes; begin += PATTERN_BYTES) {
        const size_t part = num_bytes - begin < PATTERN_BYTES ? num_bytes - begin : PATTERN_BYTES;
        if (mmap((char*)memory + begin, part, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_FIXED | MAP_NORESERVE,
                 pattern_file(), 0) == MAP_FAILED) {
            fail("mmap of device memory");
        }
    }
    return (char*)memory;
}

void fill_bytes(void* pointer, int value, size_t num_bytes) {
    const Allocation* found = find_allocation(pointer);
    if (value != 0 || num_bytes < MAPPED_FROM_BYTES || found == nullptr || !found->mapped) {
        memset(pointer, value, num_bytes);
        return;
    }
    const uintptr_t begin = ((uintptr_t)pointer + 4095) & ~(uintptr_t)4095;
    const uintptr_t end = ((uintptr_t)pointer + num_bytes) & ~(uintptr_t)4095;
    memset(pointer, 0, begin - (uintptr_t)pointer);
    mmap((void*)begin, end - begin, PROT_READ | PROT_WRITE,
         MAP_PRIVATE | MAP_FIXED | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    memset((void*)end, 0, (uintptr_t)pointer + num_bytes - end);
}

// --- allocation ------------------------------------------------------------------------------
static bool allocate(void** pointer, size_t num_bytes, int device) {
    const size_t granule = settings().granule_bytes;
    num_bytes = (num_bytes + granule - 1) / granule * granule;
    const bool mapped = device >= 0 && num_bytes >= MAPPED_FROM_BYTES;
    if (mapped) {
        *pointer = map_device_memory(num_bytes);
    } else if (posix_memalign(pointer, 256, num_bytes) != 0) {
        *pointer = nullptr;
    }
    if (*pointer == nullptr) { return false; }
    if (!mapped) { memset(*pointer, 0xff, num_bytes); }
    allocations[(char*)*pointer] = {(char*)*pointer, num_bytes, device, mapped, false, nullptr};
    used_bytes[device] += num_bytes;
    return true;
}

static bool release(void* pointer) {
    auto found = allocations.find((char*)pointer);
    if (found == allocations.end()) { return false; }
    const Allocation gone = found->second;
    used_bytes[gone.device] -= gone.num_bytes;
    allocations.erase(found);
    if (gone.shadow != nullptr) { munmap(gone.shadow, gone.num_bytes * SHADOW_FACTOR + SHADOW_FACTOR); }
    if (gone.mapped) {
        munmap(gone.begin, gone.num_bytes);
    } else {
        free(gone.begin);
    }
    return true;
}

// --- copies ----------------------------------------------------------------------------------
static bool is_managed(const void* pointer) {
    const Allocation* found = find_allocation(pointer);
    return found != nullptr && found->managed;
}

static const char* kind_error(cudaMemcpyKind kind, const void* target, const void* source) {
    if (is_managed(target) || is_managed(source)) { return nullptr; }
    const bool to_device = is_device_pointer(target), from_device = is_device_pointer(source);
    switch (kind) {
        case cudaMemcpyHostToHost:
            return to_device || from_device ? "HostToHost with device memory" : nullptr;
        case cudaMemcpyHostToDevice:
            return !to_device || from_device ? "HostToDevice, but the memory is not so" : nullptr;
        case cudaMemcpyDeviceToHost:
            return to_device || !from_device ? "DeviceToHost, but the memory is not so" : nullptr;
        case cudaMemcpyDeviceToDevice:
            return !to_device || !from_device ? "DeviceToDevice with host memory" : nullptr;
        default: return nullptr;
    }
}

}  // namespace emu

using namespace emu;

extern "C" {

cudaError_t cudaMalloc(void** pointer, size_t num_bytes) {
    *pointer = nullptr;
    const int device = current_device();
    if (num_bytes == 0) { return cudaSuccess; }
    if (settings().num_devices == 0) { return error(cudaErrorNoDevice, "cudaMalloc: no device"); }
    if (num_bytes > settings().device_bytes - used_bytes[device] || !allocate(pointer, num_bytes, device)) {
        return error(cudaErrorMemoryAllocation, "cudaMalloc of %zu bytes: %zu of %zu are in use", num_bytes,
                     used_bytes[device], settings().device_bytes);
    }
    return cudaSuccess;
}
cudaError_t cudaFree(void* pointer) {
    if (pointer == nullptr) { return cudaSuccess; }
    if (!is_device_pointer(pointer) && !is_managed(pointer)) {
        return error(cudaErrorInvalidValue, "cudaFree: not from cudaMalloc");
    }
    synchronize_device(is_managed(pointer) ? current_device() : find_allocation(pointer)->device, "cudaFree");
    return release(pointer) ? cudaSuccess
                            : error(cudaErrorInvalidValue, "cudaFree: not the beginning of an allocation");
}
cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total_bytes) {
    *total_bytes = settings().device_bytes;
    *free_bytes = *total_bytes - used_bytes[current_device()];
    return cudaSuccess;
}

// In the memory of the host, and not counted as the device's, which it may exceed.
cudaError_t cudaMallocManaged(void** pointer, size_t num_bytes, unsigned) {
    *pointer = nullptr;
    if (num_bytes == 0) { return error(cudaErrorInvalidValue, "cudaMallocManaged of 0 bytes"); }
    if (settings().num_devices == 0) { return error(cudaErrorNoDevice, "cudaMallocManaged: no device"); }
    if (!allocate(pointer, num_bytes, -1)) {
        return error(cudaErrorMemoryAllocation, "cudaMallocManaged of %zu bytes", num_bytes);
    }
    allocations[(char*)*pointer].managed = true;
    return cudaSuccess;
}
static cudaError_t check_advice(const void* pointer, size_t num_bytes, const char* what) {
    const char* wrong = is_managed(pointer) ? range_error(pointer, num_bytes) : "is not managed";
    return wrong == nullptr ? cudaSuccess : error(cudaErrorInvalidValue, "%s: the memory %s", what, wrong);
}
#if CUDART_VERSION >= 13000
#define MEMORY_PLACE cudaMemLocation
#define PREFETCH_FLAGS , unsigned
#else  // a device's number
#define MEMORY_PLACE int
#define PREFETCH_FLAGS
#endif
cudaError_t cudaMemAdvise(const void* pointer, size_t num_bytes, cudaMemoryAdvise, MEMORY_PLACE) {
    return check_advice(pointer, num_bytes, "cudaMemAdvise");
}
cudaError_t cudaMemPrefetchAsync(const void* pointer, size_t num_bytes, MEMORY_PLACE PREFETCH_FLAGS,
                                 cudaStream_t) {
    return check_advice(pointer, num_bytes, "cudaMemPrefetchAsync");
}

cudaError_t cudaMallocHost(void** pointer, size_t num_bytes) {
    *pointer = nullptr;
    if (num_bytes == 0) { return cudaSuccess; }
    return allocate(pointer, num_bytes, -1)
               ? cudaSuccess
               : error(cudaErrorMemoryAllocation, "cudaMallocHost of %zu bytes", num_bytes);
}
cudaError_t cudaFreeHost(void* pointer) {
    if (pointer == nullptr) { return cudaSuccess; }
    if (!is_pinned(pointer)) { return error(cudaErrorInvalidValue, "cudaFreeHost: not from cudaMallocHost"); }
    synchronize_device(current_device(), "cudaFreeHost");
    return release(pointer) ? cudaSuccess : error(cudaErrorInvalidValue, "cudaFreeHost: not the beginning");
}
cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* about, const void* pointer) {
    const Allocation* found = find_allocation(pointer);
    memset(about, 0, sizeof *about);
    about->type = found == nullptr     ? cudaMemoryTypeUnregistered
                  : found->managed     ? cudaMemoryTypeManaged
                  : found->device >= 0 ? cudaMemoryTypeDevice
                                       : cudaMemoryTypeHost;
    about->device = found != nullptr && found->device >= 0 ? found->device
                    : found != nullptr                     ? current_device()
                                                           : -1;
    about->devicePointer = found != nullptr ? const_cast<void*>(pointer) : nullptr;
    about->hostPointer = about->type == cudaMemoryTypeDevice ? nullptr : const_cast<void*>(pointer);
    return cudaSuccess;
}

cudaError_t cudaMemcpyAsync(void* target, const void* source, size_t num_bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
    if (num_bytes == 0) { return cudaSuccess; }
    if (const char* wrong = range_error(target, num_bytes)) {
        return error(cudaErrorInvalidValue, "copy of %zu bytes: the target %s", num_bytes, wrong);
    }
    if (const char* wrong = range_error(source, num_bytes)) {
        return error(cudaErrorInvalidValue, "copy of %zu bytes: the source %s", num_bytes, wrong);
    }
    if (const char* wrong = kind_error(kind, target, source)) {
        return error(cudaErrorInvalidValue, "copy of %zu bytes: %s", num_bytes, wrong);
    }
    std::shared_ptr<std::vector<char>> snapshot;
    if (find_allocation(source) == nullptr) {
        snapshot = std::make_shared<std::vector<char>>((const char*)source, (const char*)source + num_bytes);
    }
    enqueue(stream, "copy", [=] {
        memmove(target, snapshot != nullptr ? snapshot->data() : source, num_bytes);
        return true;
    });
    if (find_allocation(target) == nullptr) { synchronize_stream(stream, "a copy to pageable memory"); }
    return cudaSuccess;
}
// Waits, but for copies within the device.
cudaError_t cudaMemcpy(void* target, const void* source, size_t num_bytes, cudaMemcpyKind kind) {
    const cudaError_t code = cudaMemcpyAsync(target, source, num_bytes, kind, nullptr);
    if (!is_device_pointer(target) || !is_device_pointer(source)) {
        synchronize_stream(nullptr, "cudaMemcpy");
    }
    return code;
}

cudaError_t cudaMemsetAsync(void* target, int value, size_t num_bytes, cudaStream_t stream) {
    if (const char* wrong = range_error(target, num_bytes)) {
        return error(cudaErrorInvalidValue, "memset of %zu bytes: the memory %s", num_bytes, wrong);
    }
    if (find_allocation(target) == nullptr && num_bytes > 0) {
        return error(cudaErrorInvalidValue, "memset of pageable memory");
    }
    enqueue(stream, "memset", [=] {
        fill_bytes(target, value, num_bytes);
        return true;
    });
    return cudaSuccess;
}
cudaError_t cudaMemset(void* target, int value, size_t num_bytes) {
    return cudaMemsetAsync(target, value, num_bytes, nullptr);
}

}  // extern "C"
