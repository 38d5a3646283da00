/*
stream.cpp -- streams as queues of tasks that run as late as CUDA allows, in a random order.

A task may go on when it is the first of its stream and, between the default stream and blocking streams of a
device, when nothing issued earlier on the other side is left. Which of several goes first is drawn
(EMU_SEED), with a favourite for a while, so that one stream may run far ahead of another: a forgotten event
gives wrong numbers.
*/
#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <pthread.h>
#include <time.h>
#include <unistd.h>

#include "runtime.h"

namespace emu {

// --- settings, errors ------------------------------------------------------------------------
static double number(const char* name, double otherwise) {
    const char* text = getenv(name);
    return text != nullptr && *text != '\0' ? atof(text) : otherwise;
}

const Settings& settings() {
    static const Settings all = {
        .seed = (uint32_t)number("EMU_SEED", 1),
        .eager = number("EMU_EAGER", 0) != 0,
        .hang_s = number("EMU_HANG_S", 60),
        .num_devices = number("EMU_NO_DEVICE", 0) != 0 ? 0 : (int)number("EMU_DEVICES", 8),
        .no_device = (int)number("EMU_NO_DEVICE", cudaErrorNoDevice),
        .capability = (int)number("EMU_CAPABILITY", 90),
        .num_sms = (int)number("EMU_SMS", 4),
        .device_bytes = (size_t)number("EMU_DEVICE_BYTES", 8.0 * (1 << 30)),
        .granule_bytes = (size_t)number("EMU_GRANULE_BYTES", 1),
        .any_reduction = number("EMU_CUBLASLT_ANY", 0) != 0,
        .nccl_serial = number("EMU_NCCL_SERIAL", 0) != 0,
        .nccl_check = number("EMU_NCCL_CHECK", 1) != 0,
        .nccl_connect_bytes = (size_t)number("EMU_NCCL_CONNECT_BYTES", 4 << 20),
        .rank = (int)number("OMPI_COMM_WORLD_RANK", number("PMI_RANK", -1)),
    };
    return all;
}

// xorshift (Marsaglia 2003); ranks of one run differ.
uint32_t random_bits() {
    static uint64_t state = (settings().seed + 1) * 0x9e3779b97f4a7c15u ^ (uint64_t)(settings().rank + 2)
                                                                              << 40;
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return (uint32_t)(state >> 32);
}

static void report_args(const char* format, va_list args) {
    char text[2048];  // one write, so that the lines of several ranks stay whole
    const int rank = settings().rank;
    const int prefix = rank >= 0 ? snprintf(text, sizeof text, "[emu rank %d] ", rank)
                                 : snprintf(text, sizeof text, "[emu] ");
    vsnprintf(text + prefix, sizeof text - (size_t)prefix - 1, format, args);
    strcat(text, "\n");
    fflush(stdout);
    fputs(text, stderr);
}

void report(const char* format, ...) {
    va_list args;
    va_start(args, format);
    report_args(format, args);
    va_end(args);
}

void fail(const char* format, ...) {
    va_list args;
    va_start(args, format);
    report_args(format, args);
    va_end(args);
    report("(EMU_SEED=%u gives the same order again)", settings().seed);
    fflush(nullptr);
    _exit(70);
}

cudaError_t error(cudaError_t code, const char* format, ...) {
    va_list args;
    va_start(args, format);
    remember_error(code);
    const bool expected =
        code == cudaErrorMemoryAllocation || settings().num_devices == 0;  // programs look for these
    if (!expected) { report_args(format, args); }
    va_end(args);
    return code;
}

static double now_s() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

// --- the queues ------------------------------------------------------------------------------
static auto& streams = *new std::vector<CUstream_st*>;  // default streams of the devices first; never freed
static uint64_t num_issued;
static size_t num_queued;
static bool in_task;  // host functions must not call CUDA
static pthread_t host_thread;
static constexpr size_t MAX_QUEUED = 1024;  // as on a GPU, about: then the host waits

static void prepare() {
    if (!streams.empty()) { return; }
    host_thread = pthread_self();
    const int num_devices = settings().num_devices > 0 ? settings().num_devices : 1;
    for (int i = 0; i < num_devices; i++) { streams.push_back(new CUstream_st{{}, true, i, -i, false}); }
}

bool on_host_thread() {
    return !streams.empty() && !in_task && pthread_equal(host_thread, pthread_self()) != 0;
}

static CUstream_st* default_stream(int device) {
    prepare();
    return streams[(size_t)device];
}

static CUstream_st* stream_of(cudaStream_t stream) {
    if (stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread) {
        return default_stream(current_device());
    }
    return stream;
}

static bool is_default(const CUstream_st* stream) {
    return stream->id <= 0;
}

static bool first_before(const CUstream_st* other, uint64_t issue) {
    return !other->tasks.empty() && other->tasks.front().issue < issue;
}

static bool may_run(const CUstream_st* stream) {
    if (stream->tasks.empty()) { return false; }
    const uint64_t issue = stream->tasks.front().issue;
    if (!is_default(stream)) {
        return !stream->blocking || !first_before(streams[(size_t)stream->device], issue);
    }
    for (const CUstream_st* other : streams) {
        if (other != stream && other->device == stream->device && other->blocking &&
            first_before(other, issue)) {
            return false;
        }
    }
    return true;
}

// --- running ---------------------------------------------------------------------------------
static bool step_stream(size_t idx) {
    CUstream_st* stream = streams[idx];
    if (!may_run(stream)) { return false; }
    Task& task = stream->tasks.front();
    in_task = true;
    const bool done = task.step();
    in_task = false;
    if (!done) { return false; }
    stream->tasks.pop_front();
    num_queued--;
    if (stream->destroyed && stream->tasks.empty()) {
        delete stream;
        streams.erase(streams.begin() + (long)idx);
    }
    return true;
}

size_t num_queued_tasks() {
    return num_queued;
}

bool run_one_step() {
    static int favourite = -1;  // id of a stream that goes first for a while; -1: none
    if (num_queued == 0) { return false; }
    static std::vector<size_t> waiting;  // streams with tasks
    waiting.clear();
    for (size_t i = 0; i < streams.size(); i++) {
        if (!streams[i]->tasks.empty()) { waiting.push_back(i); }
    }
    const uint32_t bits = random_bits();
    size_t begin = (bits >> 8) % waiting.size();
    if ((bits & 7) == 0) { favourite = (bits & 8) != 0 ? streams[waiting[begin]]->id : -1; }
    for (size_t i = 0; i < waiting.size() && (bits & 0xf0) != 0; i++) {
        if (streams[waiting[i]]->id == favourite) { begin = i; }
    }
    for (size_t i = 0; i < waiting.size(); i++) {
        if (step_stream(waiting[(begin + i) % waiting.size()])) { return true; }
    }
    return false;
}

static void print_stream_heads(const char* what) {
    report("nothing has moved for %g s, waiting for %s; first of each stream:", settings().hang_s, what);
    for (const CUstream_st* stream : streams) {
        if (stream->tasks.empty()) { continue; }
        const Task& task = stream->tasks.front();
        const std::string why = task.why          ? task.why()
                                : may_run(stream) ? ""
                                                  : "behind the default stream's rules";
        report("  stream %d: #%lu %s %s (%zu queued)", stream->id, (unsigned long)task.issue,
               task.name.c_str(), why.c_str(), stream->tasks.size());
    }
}

void run_until(const std::function<bool()>& done, const char* what) {
    double idle_since_s = 0, reported_s = 0;
    int idle_steps = 0;
    while (!done()) {
        if (run_one_step()) {
            idle_steps = 0;
            idle_since_s = reported_s = 0;
            continue;
        }
        if (++idle_steps < 64) { continue; }
        usleep(50);  // for the messages of other ranks
        const double now = now_s();
        if (idle_since_s == 0) { idle_since_s = now; }
        if (now - idle_since_s < settings().hang_s) { continue; }
        if (reported_s == 0) {
            print_stream_heads(what);
            reported_s = now;
        }
        if (now - reported_s > 1.0) {  // time for the other ranks' reports
            fail("hang ---> see which transfer has no partner, or which event is never recorded");
        }
    }
}

void enqueue(cudaStream_t handle, const char* name, std::function<bool()> step,
             std::function<std::string()> why) {
    if (in_task) { fail("%s called by a function of cudaLaunchHostFunc ---> CUDA does not allow it", name); }
    CUstream_st* stream = stream_of(handle);
    const uint64_t issue = ++num_issued;
    stream->tasks.push_back({issue, name, std::move(step), std::move(why)});
    num_queued++;
    if (settings().eager) {
        run_until([=] { return stream->tasks.empty() || stream->tasks.front().issue > issue; }, name);
    } else if (num_queued > MAX_QUEUED) {
        run_one_step();
    }
}

void synchronize_stream(cudaStream_t handle, const char* what) {
    CUstream_st* stream = stream_of(handle);
    const uint64_t issue = num_issued;
    run_until([=] { return !first_before(stream, issue + 1); }, what);
}

void synchronize_device(int device, const char* what) {
    prepare();
    run_until(
        [=] {
            for (const CUstream_st* stream : streams) {
                if (stream->device == device && !stream->tasks.empty()) { return false; }
            }
            return true;
        },
        what);
}

}  // namespace emu

using namespace emu;

// --- cudaStream*, cudaEvent* -----------------------------------------------------------------
extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    static int num_created;
    prepare();
    *stream =
        new CUstream_st{{}, (flags & cudaStreamNonBlocking) == 0, current_device(), ++num_created, false};
    streams.push_back(*stream);
    return cudaSuccess;
}
cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return cudaStreamCreateWithFlags(stream, cudaStreamDefault);
}
cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned flags, int) {
    return cudaStreamCreateWithFlags(stream, flags);
}
// Returns at once; what is queued still runs.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    for (size_t i = 0; i < streams.size(); i++) {
        if (streams[i] != stream || stream->destroyed || is_default(stream)) { continue; }
        stream->destroyed = true;
        if (stream->tasks.empty()) {
            delete stream;
            streams.erase(streams.begin() + (long)i);
        }
        return cudaSuccess;
    }
    return error(cudaErrorInvalidResourceHandle, "cudaStreamDestroy: no such stream");
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    synchronize_stream(stream, "cudaStreamSynchronize");
    return cudaSuccess;
}
cudaError_t cudaDeviceSynchronize(void) {
    synchronize_device(current_device(), "cudaDeviceSynchronize");
    return cudaSuccess;
}
cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned flags) {
    *event = new CUevent_st{std::make_shared<CUevent_st::State>(), (flags & cudaEventDisableTiming) == 0};
    (*event)->state->device = current_device();
    return cudaSuccess;
}
cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return cudaEventCreateWithFlags(event, cudaEventDefault);
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
    delete event;  // what is queued keeps the state
    return cudaSuccess;
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    auto state = event->state;
    const uint64_t version = ++state->recorded;
    if (stream_of(stream)->device != state->device) {
        return error(cudaErrorInvalidResourceHandle,
                     "cudaEventRecord: an event of device %d in a stream of device %d", state->device,
                     stream_of(stream)->device);
    }
    enqueue(stream, "event", [=] {
        state->done = version > state->done ? version : state->done;
        state->time_s = now_s();
        return true;
    });
    return cudaSuccess;
}
// Waits for the latest record before this call; none: for nothing.
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    auto state = event->state;
    const uint64_t version = state->recorded;
    enqueue(
        stream, "wait for event", [=] { return state->done >= version; },
        [=] { return "(record " + std::to_string(version) + " of it)"; });
    return cudaSuccess;
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    auto state = event->state;
    const uint64_t version = state->recorded;
    run_until([=] { return state->done >= version; }, "cudaEventSynchronize");
    return cudaSuccess;
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
    if (event->state->done < event->state->recorded) { run_one_step(); }
    return event->state->done < event->state->recorded ? cudaErrorNotReady : cudaSuccess;
}
// Of the CPU that stands in for the device.
cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t begin, cudaEvent_t end) {
    for (cudaEvent_t event : {begin, end}) {
        if (!event->timing) {
            return error(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime: cudaEventDisableTiming");
        }
        if (event->state->recorded == 0) {
            return error(cudaErrorInvalidResourceHandle, "cudaEventElapsedTime: not recorded");
        }
        if (event->state->done < event->state->recorded) { return cudaErrorNotReady; }
    }
    *ms = (float)(1e3 * (end->state->time_s - begin->state->time_s));
    return cudaSuccess;
}

cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* argument) {
    enqueue(stream, "host function", [=] {
        function(argument);
        return true;
    });
    return cudaSuccess;
}

}  // extern "C"
