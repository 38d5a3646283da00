/*
grid.cpp -- a kernel, block by block: which thread runs next, barriers, exchanges between the lanes of a warp.

Threads run until they must wait or end, then hand the CPU on directly, without a scheduler in between. A
thread has a stack only from its first statement to its last: where no thread ever waits, all run on one
stack, one after the other. The order of blocks, of warps and of lanes is random (EMU_SEED) wherever CUDA
leaves it open.
*/
#include "cuda_emu.h"

#include <algorithm>
#include <cstdarg>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "fiber.h"
#include "runtime.h"
#ifdef EMU_ASAN
#include <sanitizer/asan_interface.h>
#endif

uint3 threadIdx, blockIdx;
dim3 blockDim, gridDim;

namespace emu {

struct Exchange {  // of the lanes in `mask`: one at a time, slots of the last one stay readable meanwhile
    uint32_t mask = 0, arrived = 0;
    unsigned count = 0;
    Where where;
    void (*finish)(const Slot*) = nullptr;
    Slot slots[2][32];
};

struct Warp {
    uint32_t all, live, ready, at_barrier;  // lanes that: exist; have not ended; can run; wait for the block
    Exchange whole;
    std::vector<std::unique_ptr<Exchange>> parts;  // of other masks, as they come up
};

struct Thread {
    uint3 index;
    int warp, lane;
    Fiber* fiber;      // nullptr: not begun, or ended
    const char* what;  // it waits in
    Where where;
};

const char* running_kernel;
uint64_t block_number;
int lane;

static Warp warps[32];
static Thread threads[1024];
static Thread* running;
static int num_threads, num_warps;
static int num_live;                           // threads of the block
static uint32_t ready_warps;                   // with a lane that can run
static int warp_idx;                           // of the running thread
static Fiber program;                          // the stack we came from
static auto& idle = *new std::vector<Fiber*>;  // whose threads have ended
static const Kernel* kernel;
static uint64_t block_begin, block_step, blocks_done, num_blocks;  // order of blocks
static struct {
    int arrived, predicates, result_count, result_arrived;
    Where where;
} barrier;
static size_t static_shared_bytes;  // of this block so far

// --- order -----------------------------------------------------------------------------------
static struct {
    int first;
    bool down;
} order;

static void draw_order() {
    if (settings().eager) { return; }
    const uint32_t bits = random_bits();
    order = {(int)(bits & 31), (bits >> 5 & 1) != 0};
}

// A bit of `mask` (not 0), in the present order.
static inline int choose(uint32_t mask) {
    const uint32_t turned = (mask >> order.first) | (mask << ((32 - order.first) & 31));
    const int bit = order.down ? 31 - __builtin_clz(turned) : __builtin_ctz(turned);
    return (bit + order.first) & 31;
}

// The next thread to run, nullptr if none can. A warp goes on until all its lanes wait.
static inline Thread* choose_thread() {
    if (warps[warp_idx].ready == 0) {
        if (ready_warps == 0) { return nullptr; }
        draw_order();
        warp_idx = choose(ready_warps);
    }
    Warp& warp = warps[warp_idx];
    const int chosen = choose(warp.ready);
    warp.ready &= ~(1u << chosen);
    if (warp.ready == 0) { ready_warps &= ~(1u << warp_idx); }
    return &threads[warp_idx * 32 + chosen];
}

static void make_ready(int warp, uint32_t lanes) {
    warps[warp].ready |= lanes;
    if (lanes != 0) { ready_warps |= 1u << warp; }
}

// --- reports ---------------------------------------------------------------------------------
[[noreturn]] static void fail_in_kernel(const char* format, ...) __attribute__((format(printf, 1, 2)));
static void fail_in_kernel(const char* format, ...) {
    char text[1024];
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    fail("kernel %s, block (%u,%u,%u), thread (%u,%u,%u): %s", kernel->name, blockIdx.x, blockIdx.y,
         blockIdx.z, threadIdx.x, threadIdx.y, threadIdx.z, text);
}

void trap() {
    fail_in_kernel("__trap()");
}

// Everybody waits: who waits where.
[[noreturn]] static void fail_divergent() {
    std::map<std::pair<std::string, unsigned>, std::vector<int>> places;
    for (int i = 0; i < num_threads; i++) {
        if (threads[i].fiber == nullptr) { continue; }
        places[{std::string(threads[i].what) + " at " + threads[i].where.file_name(),
                threads[i].where.line()}]
            .push_back(i);
    }
    report("kernel %s, block (%u,%u,%u): %d of %d threads have ended, the others wait:", kernel->name,
           blockIdx.x, blockIdx.y, blockIdx.z, num_threads - num_live, num_threads);
    for (const auto& [place, who] : places) {
        std::string numbers;
        for (size_t i = 0; i < who.size() && i < 8; i++) { numbers += " " + std::to_string(who[i]); }
        if (who.size() > 8) { numbers += " ... " + std::to_string(who.back()); }
        report("  %zu in %s:%u: thread%s", who.size(), place.first.c_str(), place.second, numbers.c_str());
    }
    fail("kernel %s: divergent barrier ---> all threads of a block must reach the same __syncthreads(), all "
         "lanes of a "
         "mask the same exchange",
         kernel->name);
}

static void check_same_place(const Where& first, const Where& mine, const char* what) {
    if (first.line() == mine.line()) { return; }
    fail_in_kernel("%s at %s:%u, while others are at %s:%u: divergent ---> one place for all of them", what,
                   mine.file_name(), mine.line(), first.file_name(), first.line());
}

// --- switching -------------------------------------------------------------------------------
static void thread_entry();

static inline void become(Thread* thread) {
    running = thread;
    threadIdx = thread->index;
    lane = thread->lane;
    if (thread->fiber == nullptr) {
        if (idle.empty()) { idle.push_back(fiber_new(thread_entry)); }
        thread->fiber = idle.back();
        idle.pop_back();
    }
}

// The running thread waits, until somebody makes it ready again.
static void suspend(const char* what, const Where& where) {
    Thread* me = running;
    me->what = what;
    me->where = where;
    Thread* next = choose_thread();
    if (next == nullptr) { fail_divergent(); }
    become(next);
    if (next != me) { fiber_switch(me->fiber, next->fiber); }
}

// --- exchanges -------------------------------------------------------------------------------
static void complete(int warp, Exchange& exchange) {
    Slot* slots = exchange.slots[exchange.count & 1];
    if (exchange.arrived != ~0u) {
        for (int i = 0; i < 32; i++) {
            if ((exchange.arrived >> i & 1) == 0) { memset(&slots[i], 0xff, sizeof(Slot)); }
        }
    }
    if (exchange.finish != nullptr) { exchange.finish(slots); }
    make_ready(warp, exchange.arrived);
    exchange.arrived = 0;
    exchange.count++;
}

static Exchange& exchange_of(Warp& warp, uint32_t mask) {
    if (mask == warp.all) { return warp.whole; }
    for (auto& part : warp.parts) {
        if (part->mask == mask) { return *part; }
    }
    warp.parts.push_back(std::make_unique<Exchange>());
    warp.parts.back()->mask = mask;
    return *warp.parts.back();
}

const Slot* exchange(uint32_t mask, const Slot& mine, const char* what, Where where,
                     void (*finish)(const Slot*)) {
    Thread* me = running;
    Warp& warp = warps[me->warp];
    const uint32_t bit = 1u << me->lane;
    if ((mask & bit) == 0) {
        fail_in_kernel("%s at %s:%u: lane %d is not in its own mask %08x", what, where.file_name(),
                       where.line(), me->lane, mask);
    }
    mask &= warp.all;
    Exchange& exchange = exchange_of(warp, mask);
    if (exchange.arrived == 0) {
        exchange.where = where;
        exchange.finish = finish;
    } else {
        check_same_place(exchange.where, where, what);
    }
    Slot* slots = exchange.slots[exchange.count & 1];
    slots[me->lane] = mine;
    exchange.arrived |= bit;
    if (exchange.arrived != (mask & warp.live)) {
        suspend(what, where);
        return slots;
    }
    complete(me->warp, exchange);
    warp.ready &= ~bit;  // it never stopped
    if (warp.ready == 0) { ready_warps &= ~(1u << me->warp); }
    return slots;
}

uint32_t live_lanes() {
    return warps[running->warp].live;
}

// --- barriers --------------------------------------------------------------------------------
static void open_barrier() {
    for (int w = 0; w < num_warps; w++) {
        if (warps[w].at_barrier != 0 && warps[w].at_barrier != warps[w].all) {
            fail_in_kernel("__syncthreads() at %s:%u, but %d lanes of warp %d have ended: divergent ---> let "
                           "them wait too, "
                           "or end whole warps",
                           barrier.where.file_name(), barrier.where.line(),
                           __builtin_popcount(warps[w].all & ~warps[w].at_barrier), w);
        }
        make_ready(w, warps[w].at_barrier);
        warps[w].at_barrier = 0;
    }
    barrier.result_count = barrier.predicates;
    barrier.result_arrived = barrier.arrived;
    barrier.arrived = barrier.predicates = 0;
}

int block_barrier(BlockVote vote, int predicate, Where where) {
    Thread* me = running;
    Warp& warp = warps[me->warp];
    if (barrier.arrived == 0) {
        barrier.where = where;
    } else {
        check_same_place(barrier.where, where, "__syncthreads()");
    }
    warp.at_barrier |= 1u << me->lane;
    barrier.predicates += predicate != 0;
    if (++barrier.arrived == num_live) {
        open_barrier();
        draw_order();
        warp.ready &= ~(1u << me->lane);
        if (warp.ready == 0) { ready_warps &= ~(1u << me->warp); }
    } else {
        suspend("__syncthreads()", where);
    }
    switch (vote) {
        case VOTE_AND: return barrier.result_count == barrier.result_arrived;
        case VOTE_OR: return barrier.result_count != 0;
        default: return barrier.result_count;
    }
}

// The running thread has ended: nobody need wait for it any longer.
static void end_thread() {
    Thread* me = running;
    Warp& warp = warps[me->warp];
    me->fiber = nullptr;
    warp.live &= ~(1u << me->lane);
    num_live--;
    if (warp.whole.arrived != 0 && warp.whole.arrived == warp.live) { complete(me->warp, warp.whole); }
    for (auto& part : warp.parts) {
        if (part->arrived != 0 && part->arrived == (part->mask & warp.live)) { complete(me->warp, *part); }
    }
    if (num_live > 0 && barrier.arrived == num_live) { open_barrier(); }
}

// --- blocks ----------------------------------------------------------------------------------
static char* shared_memory;
static constexpr size_t SHARED_LIMIT = 227 << 10, CANARY_BYTES = 64;

static void begin_dynamic_shared(size_t num_bytes) {
#ifdef EMU_ASAN
    ASAN_UNPOISON_MEMORY_REGION(shared_memory, SHARED_LIMIT);
    memset(shared_memory, 0xff, num_bytes);
    ASAN_POISON_MEMORY_REGION(shared_memory + num_bytes, SHARED_LIMIT - num_bytes);
#else
    memset(shared_memory, 0xff, num_bytes);
    memset(shared_memory + num_bytes, 0xa5, CANARY_BYTES);
#endif
}

static void check_dynamic_shared(size_t num_bytes) {
#ifdef EMU_ASAN
    (void)num_bytes;
#else
    for (size_t i = 0; i < CANARY_BYTES; i++) {
        if ((unsigned char)shared_memory[num_bytes + i] != 0xa5) {
            fail_in_kernel(
                "byte %zu of %zu bytes of dynamic shared memory was written ---> ask for more at the launch",
                num_bytes + i, num_bytes);
        }
    }
#endif
}

void* dynamic_shared() {
    return shared_memory;
}

void begin_static_shared(void* variable, size_t num_bytes) {
    memset(variable, 0xff, num_bytes);
    static_shared_bytes += num_bytes;
    if (static_shared_bytes > 48 << 10) {
        fail_in_kernel("%zu bytes of static shared memory; a GPU has 49152 ---> extern __shared__",
                       static_shared_bytes);
    }
}

// Prepares the next block; false: there is none.
static bool begin_block() {
    if (blocks_done == num_blocks) { return false; }
    const uint64_t i = (block_begin + blocks_done++ * block_step) % num_blocks;
    blockIdx.x = (unsigned)(i % gridDim.x);
    blockIdx.y = (unsigned)(i / gridDim.x % gridDim.y);
    blockIdx.z = (unsigned)(i / gridDim.x / gridDim.y);
    block_number++;
    num_live = num_threads;
    static_shared_bytes = 0;
    barrier.arrived = barrier.predicates = 0;
    for (int w = 0; w < num_warps; w++) {
        Warp& warp = warps[w];
        warp.live = warp.ready = warp.all;
        warp.at_barrier = warp.whole.arrived = 0;
        if (!warp.parts.empty()) { warp.parts.clear(); }
    }
    ready_warps = num_warps == 32 ? ~0u : (1u << num_warps) - 1;
    draw_order();
    warp_idx = choose(ready_warps);
    begin_dynamic_shared(kernel->shared_bytes);
    return true;
}

static void end_block() {
    check_dynamic_shared(kernel->shared_bytes);
}

// Every fiber is in here: runs threads that have not begun, one after the other, for as long as there are
// any.
static void thread_entry() {
    fiber_entered(&program);
    for (;;) {
        kernel->run(kernel->closure);
        Fiber* here = running->fiber;
        end_thread();
        Thread* next = choose_thread();
        if (next == nullptr) {
            if (num_live > 0) { fail_divergent(); }
            end_block();
            next = begin_block() ? choose_thread() : nullptr;
        }
        if (next == nullptr) {
            idle.push_back(here);
            running = nullptr;
            fiber_switch(here, &program);  // comes back with a thread of a later kernel
        } else if (next->fiber == nullptr) {
            next->fiber = here;
            become(next);
        } else {
            idle.push_back(here);
            become(next);
            fiber_switch(here, next->fiber);
        }
    }
}

// Once per launch: which thread is which.
static void number_threads() {
    static dim3 numbered(0, 0, 0);
    num_threads = (int)(blockDim.x * blockDim.y * blockDim.z);
    num_warps = (num_threads + 31) / 32;
    if (numbered.x == blockDim.x && numbered.y == blockDim.y && numbered.z == blockDim.z) { return; }
    numbered = blockDim;
    for (int i = 0; i < num_threads; i++) {
        const unsigned u = (unsigned)i;
        threads[i] = {{u % blockDim.x, u / blockDim.x % blockDim.y, u / blockDim.x / blockDim.y},
                      i / 32,
                      i % 32,
                      nullptr,
                      "",
                      {}};
    }
    for (int w = 0; w < num_warps; w++) {
        const int lanes = std::min(32, num_threads - w * 32);
        warps[w].all = lanes == 32 ? ~0u : (1u << lanes) - 1;
    }
}

void run_grid(const Kernel& about) {
    if (shared_memory == nullptr) { shared_memory = (char*)aligned_alloc(1024, SHARED_LIMIT + 1024); }
    kernel = &about;
    running_kernel = about.name;
    blockDim = about.block;
    gridDim = about.grid;
    number_threads();
    num_blocks = (uint64_t)gridDim.x * gridDim.y * gridDim.z;
    blocks_done = 0;
    const bool shuffled = !settings().eager;
    block_begin = shuffled ? random_bits() % num_blocks : 0;
    block_step = shuffled && (random_bits() & 1) != 0 ? num_blocks - 1 : 1;  // downwards, or up
    if (begin_block()) {
        Thread* first = choose_thread();
        become(first);
        fiber_switch(&program, first->fiber);
    }
    running_kernel = nullptr;
}

}  // namespace emu
