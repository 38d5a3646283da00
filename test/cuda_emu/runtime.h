/*
runtime.h -- what the parts of the emulator share: settings, errors, streams as queues of tasks, memory.

One process is one rank. All calls come from one host thread, and everything runs on it: a stream's tasks run
while the host waits for something (a stream, an event, a message), in a random order that the CUDA rules
allow.
*/
#pragma once

#include <cstdint>
#include <cuda_runtime.h>
#include <deque>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace emu {

// --- settings, from the environment ----------------------------------------------------------
struct Settings {
    uint32_t seed;    // EMU_SEED=1: order of streams, of blocks, and of threads between barriers
    bool eager;       // EMU_EAGER=1: everything runs when it is queued, threads in the order of their index
    double hang_s;    // EMU_HANG_S=60: report and end when nothing has moved for so long
    int num_devices;  // EMU_DEVICES=8; 0: none
    int no_device;    // EMU_NO_DEVICE=code: cudaGetDeviceCount fails with it (35: no driver)
    int capability;   // EMU_CAPABILITY=90
    int num_sms;      // EMU_SMS=4: few blocks where a program fills the device
    size_t device_bytes;   // EMU_DEVICE_BYTES=8 GiB, each
    size_t granule_bytes;  // EMU_GRANULE_BYTES=1: of an allocation's end; 512, a GPU's, hides what is just
                           // beyond
    bool any_reduction;    // EMU_CUBLASLT_ANY=1: also reduction schemes that differ from run to run
    bool nccl_serial;      // EMU_NCCL_SERIAL=1: NCCL operations of all communicators one after the other
    bool nccl_check;  // EMU_NCCL_CHECK=0: lengths that do not match behave as on a GPU (silence, or a hang)
    size_t nccl_connect_bytes;  // EMU_NCCL_CONNECT_BYTES=4 MiB: device memory that a connection takes
    int rank;                   // of mpirun; -1 without
};
const Settings& settings();

// 32 random bits of the run's seed.
uint32_t random_bits();

// --- errors ----------------------------------------------------------------------------------

// A program that CUDA leaves undefined: say why, and end.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
void report(const char* format, ...)
    __attribute__((format(printf, 1, 2)));  // a line on stderr, with the rank
// An error that CUDA reports: say why (CUDA does not), keep it for cudaGetLastError, return it.
cudaError_t error(cudaError_t code, const char* format, ...) __attribute__((format(printf, 2, 3)));
void remember_error(cudaError_t code);

// --- streams ---------------------------------------------------------------------------------
struct Task {
    uint64_t issue;  // counts up over all streams of the process
    std::string name;
    std::function<bool()> step;        // true: done. Called again and again until then
    std::function<std::string()> why;  // what it waits for, for a report; may be empty
};

// Queue a task. `stream` 0 is the current device's default stream.
void enqueue(cudaStream_t stream, const char* name, std::function<bool()> step,
             std::function<std::string()> why = nullptr);
// Run tasks until `done` says so; a hang is reported and ends the program.
void run_until(const std::function<bool()>& done, const char* what);
size_t num_queued_tasks();
bool run_one_step();  // one task that can go on; false: there is none
void synchronize_stream(cudaStream_t stream, const char* what);
void synchronize_device(int device, const char* what);
bool on_host_thread();  // of the CUDA calls (another thread must not run tasks)

// --- devices, memory -------------------------------------------------------------------------
int current_device();
struct Allocation {
    char* begin;
    size_t num_bytes;
    int device;    // -1: of the host (pinned, or managed)
    bool mapped;   // made by mmap
    bool managed;  // cudaMallocManaged: a copy may call it either side's
    mutable void* shadow = nullptr;
};
const Allocation* find_allocation(const void* pointer);  // nullptr: pageable, or nobody's
void* shadow_of(const Allocation* allocation);  // eight times its bytes, at first 0, for who watches accesses
bool is_device_pointer(const void* pointer);
bool is_pinned(const void* pointer);
// nullptr, or what is wrong with these bytes, in words.
const char* range_error(const void* pointer, size_t num_bytes);
void fill_bytes(void* pointer, int value, size_t num_bytes);  // memset; a large zero fill takes no memory

size_t block_shared_bytes();  // most shared memory that a block may ask for

}  // namespace emu

// CUDA's opaque handles.
struct CUstream_st {
    std::deque<emu::Task> tasks;
    bool blocking;  // waits for the default stream and the other way round
    int device, id;
    bool destroyed;  // goes when it is empty
};
struct CUevent_st {
    struct State {
        uint64_t recorded = 0, done = 0;  // how often
        double time_s = 0;
        int device = 0;
    };
    std::shared_ptr<State> state;
    bool timing;
};
