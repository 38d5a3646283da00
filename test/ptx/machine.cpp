/*
machine.cpp -- a grid of translated PTX (translate.py) on one CPU thread: checked memory, fibers, warps, barriers.

An access must be aligned to its width and lie within an allocation or a shared variable. Shared memory must have been written
before it is read. Of two accesses by different threads of which one writes, bar.sync must stand between them, or within a warp
bar.warp.sync; between blocks nothing helps. cp.async copies when its thread waits for it, and until then nobody may touch the
target. A lane's value can be had while it is in the mask and has not ended. What breaks these rules ends the program. EMU_SEED: the order of blocks, warps and lanes.
*/
#include "test/ptx/ptx.h"

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <cxxabi.h>
#include <map>
#include <string>
#include <sys/mman.h>
#include <vector>

#include "test/cuda_emu/runtime.h"
#include "test/ptx/machine.h"

uint32_t ptx_ntid[3], ptx_ctaid[3], ptx_nctaid[3], ptx_shared_begin[64], ptx_dynamic_begin, ptx_launch, ptx_epoch, ptx_warp_epoch[32];
bool ptx_alone;
alignas(4096) char ptx_shared_memory[PTX_SHARED_BYTES];
PtxShadow ptx_shared_shadow[PTX_SHARED_BYTES / 2];

static PtxKernel* kernel;
static const char* params;
static int param_bytes;

// --- reports -------------------------------------------------------------------------------------------------------
void ptx_fail(const PtxThread* t, int line, const char* format, ...) {
    char text[512], source[320] = "", thread[64] = "";
    va_list args;
    va_start(args, format);
    vsnprintf(text, sizeof text, format, args);
    va_end(args);
    for (int i = 0; i < kernel->num_places && kernel->places[i].line <= line; i++) {
        if (kernel->places[i].source_line != 0) {
            snprintf(source, sizeof source, " (%s:%d)", kernel->places[i].source, kernel->places[i].source_line);
        }
    }
    if (t != nullptr) { snprintf(thread, sizeof thread, ", thread (%u,%u,%u)", t->tid[0], t->tid[1], t->tid[2]); }
    const char* name = abi::__cxa_demangle(kernel->name, nullptr, nullptr, nullptr);
    emu::report("kernel %s, %s:%d%s", name != nullptr ? name : kernel->name, kernel->path, line, source);
    emu::fail("block (%u,%u,%u)%s: %s", ptx_ctaid[0], ptx_ctaid[1], ptx_ctaid[2], thread, text);
}
void ptx_trap(PtxThread* t, int line) {
    ptx_fail(t, line, "trap");
}
uint64_t ptx_clock() {
    timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
}

// --- races ---------------------------------------------------------------------------------------------------------
static uint32_t block_epoch, launch_epoch;  // when they began

static bool is_write(PtxAccess how) {
    return how == PTX_WRITE || how == PTX_ATOMIC;
}
// Memory has been written in this block or launch: was it by somebody whom nothing has ordered before this access?
static void check_writer(const PtxShadow& s, PtxThread* t, const char* what, uint64_t address, PtxAccess how, int line) {
    if (how == PTX_ATOMIC && (s.writer & PTX_ATOMIC_WRITER) != 0) { return; }
    const uint32_t write_epoch = (uint32_t)(s.writer >> 32);
    if (write_epoch < block_epoch) { ptx_fail(t, line, "race between blocks: %s of global memory at %#lx that another block wrote", what, (long)address); }
    if (how == PTX_READ_ONLY) { ptx_fail(t, line, "ld.global.nc of memory at %#lx that this launch wrote", (long)address); }
    const int writer = (int)(s.writer >> 20 & 0xfff);
    const bool same_warp = writer / 32 == t->warp, same_warp_epoch = ((s.writer ^ ptx_writer(t)) >> 1 & PTX_WRITER_EPOCH) == 0;
    if (write_epoch == ptx_epoch && writer != t->index && (!same_warp || same_warp_epoch)) {
        ptx_fail(t, line, "race: %s of memory at %#lx that thread %d of the block wrote, without %s between", what, (long)address, writer,
                 same_warp ? "bar.warp.sync" : "bar.sync");
    }
}
// since: what was before (another launch; in shared memory, another block) does not count.
static void touch_read(PtxShadow& s, PtxThread* t, uint32_t since, uint64_t address, PtxAccess how, uint64_t me, int line) {
    const uint32_t write_epoch = (uint32_t)(s.writer >> 32), read_epoch = (uint32_t)(s.readers >> 32);
    if (write_epoch >= since) { check_writer(s, t, "read", address, how, line); }
    uint64_t readers = me | (how == PTX_READ_ONLY ? PTX_BY_NC : 0);
    if (read_epoch == ptx_epoch) {
        const uint64_t differs = s.readers ^ me;
        readers |= s.readers & (PTX_BY_NC | PTX_OTHER_BLOCK);
        if ((differs & PTX_WARPS) != 0) {
            readers |= PTX_WARPS;
        } else if ((differs & PTX_READER_EPOCH) == 0 && (differs & PTX_LANES) != 0) {
            readers |= PTX_LANES;
        }
    } else if (read_epoch >= since) {
        readers |= (s.readers & (PTX_BY_NC | PTX_OTHER_BLOCK)) | (read_epoch < block_epoch ? PTX_OTHER_BLOCK : 0);
    }
    s.readers = readers;
}
static void touch_write(PtxShadow& s, PtxThread* t, uint32_t since, uint64_t address, PtxAccess how, uint64_t me, int line) {
    const uint32_t write_epoch = (uint32_t)(s.writer >> 32), read_epoch = (uint32_t)(s.readers >> 32);
    if (write_epoch >= since) { check_writer(s, t, "write", address, how, line); }
    if (read_epoch >= since) {
        if (read_epoch < block_epoch || (s.readers & PTX_OTHER_BLOCK) != 0) {
            ptx_fail(t, line, "race between blocks: write of global memory at %#lx that another block read", (long)address);
        }
        const uint64_t differs = s.readers ^ me;
        if (read_epoch == ptx_epoch && ((differs & PTX_WARPS) != 0 || ((differs & PTX_READER_EPOCH) == 0 && (differs & PTX_LANES) != 0))) {
            ptx_fail(t, line, "race: write of memory at %#lx that another thread of the block read, without a barrier between", (long)address);
        }
        if ((s.readers & PTX_BY_NC) != 0) { ptx_fail(t, line, "write of global memory at %#lx that this launch read by ld.global.nc", (long)address); }
    }
    s = {0, ptx_writer(t) | (how == PTX_ATOMIC ? PTX_ATOMIC_WRITER : 0)};
}
static void touch(PtxShadow* s, PtxThread* t, uint32_t since, uint64_t address, int num_bytes, PtxAccess how, int line) {
    const uint64_t me = ptx_reader(t);
    for (int i = 0; i < num_bytes; i += 2, s++) {
        if (is_write(how)) {
            touch_write(*s, t, since, address + (uint64_t)i, how, me, line);
        } else {
            touch_read(*s, t, since, address + (uint64_t)i, how, me, line);
        }
    }
}

static void check_aligned(PtxThread* t, const char* space, uint64_t address, int num_bytes, int line) {
    if ((address & (uint64_t)(num_bytes - 1)) != 0) { ptx_fail(t, line, "%d bytes of %s memory at %#lx: not aligned", num_bytes, space, (long)address); }
}

// --- shared memory -------------------------------------------------------------------------------------------------
constexpr uint64_t COPYING = 1u << 31;  // of a shadow's writer, the first bit of the thread: its cp.async is under way
struct Range {
    uint32_t begin, end;
};
static std::vector<Range> ranges;  // of the kernel's variables

char* ptx_check_shared(PtxThread* t, uint64_t address, int num_bytes, PtxAccess how, int line) {
    check_aligned(t, "shared", address, num_bytes, line);
    if (std::none_of(ranges.begin(), ranges.end(), [=](Range r) { return address >= r.begin && address + (uint64_t)num_bytes <= r.end; })) {
        ptx_fail(t, line, "%d bytes of shared memory at %#lx: in no variable (dynamic memory: %#x to %#x)", num_bytes, (long)address, ranges.back().begin,
                 ranges.back().end);
    }
    for (uint64_t i = address / 2; i <= (address + (uint64_t)num_bytes - 1) / 2; i++) {
        const uint64_t writer = ptx_shared_shadow[i].writer;
        if (writer >> 32 < block_epoch) {
            if (!is_write(how)) { ptx_fail(t, line, "read of shared memory at %#lx that this block has not written", (long)(2 * i)); }
        } else if ((writer & COPYING) != 0) {
            ptx_fail(t, line, "%s of shared memory at %#lx: cp.async of thread %d is under way there", is_write(how) ? "write" : "read", (long)(2 * i),
                     (int)(writer >> 20 & 0x7ff));
        }
    }
    touch(&ptx_shared_shadow[address / 2], t, block_epoch, address, num_bytes, how, line);
    return ptx_shared_memory + address;
}

// --- other memory --------------------------------------------------------------------------------------------------
const char* ptx_param(PtxThread* t, uint64_t address, int num_bytes, int line) {
    check_aligned(t, "parameter", address, num_bytes, line);
    if (address + (uint64_t)num_bytes > (uint64_t)param_bytes) { ptx_fail(t, line, "parameters: byte %ld of %d", (long)address, param_bytes); }
    return params + address;
}
char* ptx_local(PtxThread* t, char* local, uint64_t local_bytes, uint64_t address, int num_bytes, int line) {
    check_aligned(t, "local", address, num_bytes, line);
    if (address + (uint64_t)num_bytes > local_bytes) { ptx_fail(t, line, "local memory: byte %ld of %ld", (long)address, (long)local_bytes); }
    return local + address;
}
char* ptx_check_global(PtxThread* t, uint64_t address, int num_bytes, PtxAccess how, int line, PtxSpan* span) {
    if (address >= PTX_SHARED_WINDOW) { ptx_fail(t, line, "global memory at %#lx, an address of another space", (long)address); }
    if (span->launch != ptx_launch || address - span->begin >= span->num_bytes) {
        const emu::Allocation* found = emu::find_allocation((const void*)address);
        if (found == nullptr) {
            ptx_fail(t, line, "%s of %d bytes of global memory at %#lx: in no allocation", is_write(how) ? "write" : "read", num_bytes, (long)address);
        }
        *span = {(uint64_t)found->begin, found->num_bytes, (PtxShadow*)emu::shadow_of(found), ptx_launch};
    }
    const uint64_t at = address - span->begin;
    if (at + (uint64_t)num_bytes > span->num_bytes) {
        ptx_fail(t, line, "%s of %d bytes of global memory at byte %ld of %ld", is_write(how) ? "write" : "read", num_bytes, (long)at, (long)span->num_bytes);
    }
    check_aligned(t, "global", address, num_bytes, line);
    if (!ptx_alone) { touch(span->shadow + at / 2, t, launch_epoch, address, num_bytes, how, line); }
    return (char*)address;
}

// --- cp.async ------------------------------------------------------------------------------------------------------
struct Copy {
    uint32_t to;
    uint64_t from;
    int num_bytes, source_bytes, group, line;
};
static std::vector<Copy> copies[1024];  // of each thread
static int copy_group[1024];

void ptx_copy(PtxThread* t, uint64_t to, uint64_t from, int num_bytes, uint32_t source_bytes, int line, PtxSpan* span) {
    if (source_bytes > (uint32_t)num_bytes) { ptx_fail(t, line, "cp.async of %d bytes from %u", num_bytes, source_bytes); }
    ptx_check_shared(t, (uint32_t)to, num_bytes, PTX_WRITE, line);
    if (ptx_counting) {
        ptx_count(t, (uint32_t)to, num_bytes, -line);  // its own request
        ptx_count(t, from, (int)source_bytes, line);
    }
    check_aligned(t, "global", from, source_bytes > 0 ? num_bytes : 1, line);
    for (uint32_t i = 0; i < source_bytes; i += 2) { ptx_check_global(t, from + i, 2, PTX_READ, line, span); }
    for (uint32_t i = (uint32_t)to / 2; i < ((uint32_t)to + (uint32_t)num_bytes) / 2; i++) { ptx_shared_shadow[i] = {0, ptx_writer(t) | COPYING}; }
    copies[t->index].push_back({(uint32_t)to, from, num_bytes, (int)source_bytes, copy_group[t->index], line});
}
void ptx_copy_commit(PtxThread* t) {
    copy_group[t->index]++;
}
void ptx_copy_wait(PtxThread* t, int groups) {
    if (groups < 0) { copy_group[t->index]++, groups = 0; }
    std::erase_if(copies[t->index], [=](const Copy& c) {
        if (c.group >= copy_group[t->index] - groups) { return false; }
        memcpy(ptx_shared_memory + c.to, (const void*)c.from, (size_t)c.source_bytes);
        memset(ptx_shared_memory + c.to + c.source_bytes, 0, (size_t)(c.num_bytes - c.source_bytes));
        for (uint32_t i = c.to / 2; i < (c.to + (uint32_t)c.num_bytes) / 2; i++) { ptx_shared_shadow[i] = {0, ptx_writer(t)}; }
        return true;
    });
}

// --- threads are fibers ----------------------------------------------------------------------------------------------
extern "C" void ptx_switch(void** from, void* to);
#if defined(__x86_64__)
asm(R"(
    .text
    .globl ptx_switch
    .type ptx_switch, @function
ptx_switch:
    pushq %rbp
    pushq %rbx
    pushq %r12
    pushq %r13
    pushq %r14
    pushq %r15
    movq %rsp, (%rdi)
    movq %rsi, %rsp
    popq %r15
    popq %r14
    popq %r13
    popq %r12
    popq %rbx
    popq %rbp
    ret
)");
#else
#error "machine.cpp ---> ptx_switch() for this processor: save what a call keeps, change stacks"
#endif
static constexpr size_t STACK_BYTES = 1 << 20;
static PtxThread threads[1024];
static void* stacks[1024];  // stack pointers of those that do not run
static void* program_stack;
static PtxThread* running;
static int num_threads, num_warps, num_live;
static uint32_t exists[32], ended[32], ready[32], ready_warps;  // lanes; warps
static int running_warp;
static struct {
    const char* what;
    int line;
} waits[1024];

static int choose(uint32_t mask) {  // a bit of it, in an order that changes now and then
    static uint32_t turn, left;
    if (left-- == 0) { turn = emu::random_bits(), left = 16 + (turn >> 8 & 63); }
    const uint32_t turned = std::rotr(mask, (int)(turn & 31));
    return (int)(((turn & 32) != 0 ? 31 - std::countl_zero(turned) : std::countr_zero(turned)) + (turn & 31)) & 31;
}
static PtxThread* next_thread() {
    if (ready_warps == 0) { return nullptr; }
    if (ready[running_warp] == 0 || (emu::random_bits() & 63) == 0) { running_warp = choose(ready_warps); }
    const int lane = choose(ready[running_warp]);
    ready[running_warp] &= ~(1u << lane);
    if (ready[running_warp] == 0) { ready_warps &= ~(1u << running_warp); }
    return &threads[running_warp * 32 + lane];
}
static void make_ready(int warp, uint32_t lanes) {
    ready[warp] |= lanes;
    if (ready[warp] != 0) { ready_warps |= 1u << warp; }
}
[[noreturn]] static void fail_deadlock() {
    std::map<std::pair<std::string, int>, std::vector<int>> places;
    for (int i = 0; i < num_threads; i++) {
        if ((ended[i / 32] >> (i % 32) & 1) == 0) { places[{waits[i].what, waits[i].line}].push_back(i); }
    }
    std::string text;
    for (const auto& [place, who] : places) {
        text += "; " + std::to_string(who.size()) + " in " + place.first + " at line " + std::to_string(place.second) + ", first thread " + std::to_string(who[0]);
    }
    ptx_fail(nullptr, places.begin()->first.second, "all threads wait, %d have ended%s ---> all of a block must reach a barrier, all lanes of a mask the same operation",
             num_threads - num_live, text.c_str());
}
static void wait(PtxThread* t, const char* what, int line) {
    waits[t->index] = {what, line};
    PtxThread* next = next_thread();
    if (next == nullptr) { fail_deadlock(); }
    running = next;
    if (next != t) { ptx_switch(&stacks[t->index], stacks[next->index]); }
}

// --- what a warp does together -------------------------------------------------------------------------------------
enum Kind { SHUFFLE, VOTE, REDUX, WARP_SYNC, MMA, LDMATRIX };
static const char* const KIND_NAMES[] = {"shfl.sync", "vote.sync", "redux.sync", "bar.warp.sync", "mma.sync", "ldmatrix"};
struct Lane {  // its part in an operation
    uint32_t in[6] = {}, out[4] = {};
    float c[4] = {}, d[4] = {};
    int mode = 0;
    bool valid = false;
};
struct WarpOp {
    Kind kind;
    uint32_t mask, arrived;
    int mode, line, warp;
    Lane* lanes[32];
    void (*run)(WarpOp&);
};
static WarpOp operations[32][8];

static bool all_there(const WarpOp& op) {
    return op.arrived != 0 && op.arrived == (op.mask & exists[op.warp] & ~ended[op.warp]);
}
static void complete(WarpOp& op, uint32_t but) {
    op.run(op);
    make_ready(op.warp, op.arrived & ~but);
    op.arrived = 0;
}
template <class Body> static void for_lanes(const WarpOp& op, Body body) {
    for (uint32_t rest = op.arrived; rest != 0; rest &= rest - 1) { body(std::countr_zero(rest), *op.lanes[std::countr_zero(rest)]); }
}
static void together(PtxThread* t, Kind kind, uint32_t mask, int line, Lane* mine, void (*run)(WarpOp&)) {
    const bool whole = kind == MMA || kind == LDMATRIX;  // of the whole warp, at one instruction
    const uint32_t bit = 1u << t->lane;
    if ((mask & bit) == 0) { ptx_fail(t, line, "%s: lane %d is not in its mask %#x", KIND_NAMES[kind], t->lane, mask); }
    if (whole && (exists[t->warp] != ~0u || ended[t->warp] != 0)) { ptx_fail(t, line, "%s in a warp of which lanes have ended or never were", KIND_NAMES[kind]); }
    WarpOp *op = nullptr, *unused = nullptr;
    for (WarpOp& candidate : operations[t->warp]) {
        if (candidate.arrived == 0) {
            unused = &candidate;
        } else if (candidate.kind == kind && candidate.mode == mine->mode && candidate.mask == mask && (!whole || candidate.line == line)) {
            op = &candidate;
        }
    }
    if (op == nullptr) {
        if (unused == nullptr) { fail_deadlock(); }
        op = unused;
        op->kind = kind, op->mode = mine->mode, op->mask = mask, op->line = line, op->warp = t->warp, op->run = run;
    }
    op->arrived |= bit;
    op->lanes[t->lane] = mine;
    if (all_there(*op)) {
        complete(*op, bit);
    } else {
        wait(t, KIND_NAMES[kind], line);
    }
}

static void run_shuffle(WarpOp& op) {
    for_lanes(op, [&](int lane, Lane& me) {
        const int b = (int)(me.in[1] & 31), c = (int)(me.in[2] & 31), segment = (int)(me.in[2] >> 8 & 31);
        const int bound = (lane & segment) | (c & ~segment);
        const int from = me.mode == PTX_UP ? lane - b : me.mode == PTX_DOWN ? lane + b : me.mode == PTX_BFLY ? lane ^ b : (lane & segment) | (b & ~segment);
        me.valid = me.mode == PTX_UP ? from >= bound : from <= bound;
        const int source = me.valid ? from : lane;
        if ((op.arrived >> source & 1) == 0) {
            ptx_fail(&threads[op.warp * 32 + lane], op.line, "shfl.sync of lane %d, which has ended or is not in the mask %#x", source, op.mask);
        }
        me.out[0] = op.lanes[source]->in[0];
    });
}
uint32_t ptx_shuffle(PtxThread* t, PtxShuffle how, uint32_t value, uint32_t b, uint32_t c, uint32_t mask, bool* valid, int line) {
    Lane mine = {.in = {value, b, c}, .mode = how};
    together(t, SHUFFLE, mask, line, &mine, run_shuffle);
    *valid = mine.valid;
    return mine.out[0];
}
static void run_vote(WarpOp& op) {
    uint32_t ballot = 0;
    for_lanes(op, [&](int lane, Lane& me) { ballot |= me.in[0] << lane; });
    for_lanes(op, [&](int, Lane& me) { me.out[0] = ballot, me.out[1] = op.arrived; });
}
PtxVote ptx_vote(PtxThread* t, PtxVoteKind kind, bool predicate, uint32_t mask, int line) {
    Lane mine = {.in = {predicate}, .mode = kind};
    together(t, VOTE, mask, line, &mine, run_vote);
    return {mine.out[0], mine.out[1]};
}
static void run_redux(WarpOp& op) {
    const Lane& first = *op.lanes[std::countr_zero(op.arrived)];
    uint32_t result = first.in[0];
    for_lanes(op, [&](int, Lane& me) {
        if (&me == &first) { return; }
        result = me.in[1] != 0 ? (uint32_t)ptx_fold<int32_t>((PtxFold)me.mode, (int32_t)result, (int32_t)me.in[0])
                               : ptx_fold<uint32_t>((PtxFold)me.mode, result, me.in[0]);
    });
    for_lanes(op, [&](int, Lane& me) { me.out[0] = result; });
}
uint32_t ptx_redux_bits(PtxThread* t, PtxFold how, bool is_signed, uint32_t value, uint32_t mask, int line) {
    Lane mine = {.in = {value, is_signed}, .mode = how};
    together(t, REDUX, mask, line, &mine, run_redux);
    return mine.out[0];
}
static void run_warp_sync(WarpOp& op) {
    ptx_warp_epoch[op.warp] += op.arrived == (exists[op.warp] & ~ended[op.warp]);  // of part of a warp: orders nothing here
}
void ptx_warp_sync(PtxThread* t, uint32_t mask, int line) {
    Lane mine;
    together(t, WARP_SYNC, mask, line, &mine, run_warp_sync);
}

// PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type". Sums are exact, then truncated as cards do.
static void run_mma(WarpOp& op) {
    double a[16][16], b[16][8];
    auto element = [](uint32_t two, int i) { return (double)float_of((two >> (16 * i)) << 16); };
    for_lanes(op, [&](int lane, Lane& me) {
        const int group = lane / 4, pair = lane % 4 * 2;
        for (int i = 0; i < 8; i++) { a[group + (i & 2) * 4][pair + (i & 1) + (i & 4) * 2] = element(me.in[i / 2], i & 1); }
        for (int i = 0; i < 4; i++) { b[pair + (i & 1) + (i & 2) * 4][group] = element(me.in[4 + i / 2], i & 1); }
    });
    double product[16][8] = {};
    for (int i = 0; i < 16; i++) {
        for (int k = 0; k < 16; k++) {
            for (int j = 0; j < 8; j++) { product[i][j] += a[i][k] * b[k][j]; }
        }
    }
    for_lanes(op, [&](int lane, Lane& me) {
        for (int i = 0; i < 4; i++) {
            const double sum = product[lane / 4 + (i & 2) * 4][lane % 4 * 2 + (i & 1)] + (double)me.c[i];
            const float d = (float)sum;
            me.d[i] = std::fabs((double)d) > std::fabs(sum) ? std::nextafter(d, 0.0f) : d;
        }
    });
}
void ptx_mma(PtxThread* t, float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], int line) {
    Lane mine;
    memcpy(mine.in, a, 16);
    memcpy(mine.in + 4, b, 8);
    memcpy(mine.c, c, 16);
    together(t, MMA, ~0u, line, &mine, run_mma);
    memcpy(d, mine.d, 16);
}
// Lanes 8 m to 8 m + 7 have the addresses of the rows of matrix m; lane i gets elements 2 (i % 4) and the next of row i / 4, or transposed.
static void run_ldmatrix(WarpOp& op) {
    const int count = op.mode & 7;
    const bool transposed = op.mode > 7;
    for (int m = 0; m < count; m++) {
        uint16_t rows[8][8];
        for (int r = 0; r < 8; r++) { memcpy(rows[r], ptx_shared<16, PTX_READ>(&threads[op.warp * 32 + 8 * m + r], op.lanes[8 * m + r]->in[0], op.line), 16); }
        for_lanes(op, [&](int lane, Lane& me) {
            const int row = lane / 4, column = 2 * (lane % 4);
            me.out[m] = transposed ? (uint32_t)rows[column + 1][row] << 16 | rows[column][row] : (uint32_t)rows[row][column + 1] << 16 | rows[row][column];
        });
    }
}
void ptx_ldmatrix(PtxThread* t, uint32_t d[4], int count, bool transposed, uint64_t address, int line) {
    Lane mine = {.in = {(uint32_t)address}, .mode = count | (transposed ? 8 : 0)};
    together(t, LDMATRIX, ~0u, line, &mine, run_ldmatrix);
    memcpy(d, mine.out, 16);
}

// --- barriers of the block -----------------------------------------------------------------------------------------
struct Barrier {
    int arrived, wanted;
    uint32_t count, lanes[32];
};
static Barrier barriers[16];
static PtxBarrier barrier_results[1024];

static bool is_full(const Barrier& b) {
    return b.arrived > 0 && b.arrived == (b.wanted != 0 ? b.wanted : num_live);
}
static void open_barrier(Barrier& b, const PtxThread* but) {
    for (int w = 0; w < num_warps; w++) {
        int line = -1;
        for (uint32_t rest = b.lanes[w]; rest != 0; rest &= rest - 1) {
            const int i = w * 32 + std::countr_zero(rest);
            if (line >= 0 && waits[i].line != line) { ptx_fail(&threads[i], waits[i].line, "bar.sync: lanes of one warp at different instructions"); }
            line = waits[i].line;
            barrier_results[i] = {b.count, (uint32_t)b.arrived};
        }
        make_ready(w, b.lanes[w] & ~(but != nullptr && but->warp == w ? 1u << but->lane : 0));
    }
    b = {};
    ptx_epoch++;
}
PtxBarrier ptx_barrier(PtxThread* t, uint32_t number, uint32_t wanted, bool predicate, int line) {
    Barrier& b = barriers[number & 15];
    b.wanted = wanted == (uint32_t)num_threads ? 0 : (int)wanted;
    b.arrived++;
    b.count += predicate;
    b.lanes[t->warp] |= 1u << t->lane;
    waits[t->index] = {"bar.sync", line};
    if (is_full(b)) {
        open_barrier(b, t);
    } else {
        wait(t, "bar.sync", line);
    }
    return barrier_results[t->index];
}

// --- blocks --------------------------------------------------------------------------------------------------------
static void fiber() {
    for (;;) {  // a thread of one block after the other
        PtxThread* t = running;
        kernel->run(t);
        if (!copies[t->index].empty()) { ptx_fail(t, copies[t->index][0].line, "a thread ends while its cp.async is under way"); }
        num_live--;
        ended[t->warp] |= 1u << t->lane;
        for (WarpOp& op : operations[t->warp]) {
            if (op.arrived != 0 && (op.kind == MMA || op.kind == LDMATRIX)) { ptx_fail(t, op.line, "%s, but a lane of the warp has ended", KIND_NAMES[op.kind]); }
            if (all_there(op)) { complete(op, 0); }
        }
        for (Barrier& b : barriers) {
            if (is_full(b)) { open_barrier(b, nullptr); }
        }
        PtxThread* next = next_thread();
        if (next == nullptr && num_live > 0) { fail_deadlock(); }
        running = next;
        ptx_switch(&stacks[t->index], next != nullptr ? stacks[next->index] : program_stack);
    }
}
static void make_fiber(int i) {
    char* memory = (char*)mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED || mprotect(memory, 4096, PROT_NONE) != 0) { emu::fail("no memory for a thread's stack"); }
    void** top = (void**)(memory + STACK_BYTES - (size_t)(i * 5 % 61) * 64);  // not all in the same lines of the cache
    top -= 8;  // what ptx_switch takes from it; aligned as after a call
    memset(top, 0, 8 * sizeof *top);
    top[6] = (void*)fiber;
    stacks[i] = top;
}

static void run_block() {
    num_live = num_threads;
    block_epoch = ++ptx_epoch;
    ready_warps = 0;
    for (int w = 0; w < num_warps; w++) {
        ended[w] = ready[w] = 0;
        ptx_warp_epoch[w]++;
        make_ready(w, exists[w]);
    }
    running = next_thread();
    ptx_switch(&program_stack, stacks[running->index]);
}

// Variables no better aligned than they ask for, with room between them.
static uint32_t place_shared(uint32_t at, int align_, size_t num_bytes) {
    const uint32_t align = (uint32_t)align_;
    at = (at / align + 1) * align;
    if (at / align % 2 == 0) { at += align; }
    ranges.push_back({at, at + (uint32_t)num_bytes});
    if (ranges.back().end > PTX_SHARED_BYTES) { emu::fail("%s: %u bytes of shared memory", kernel->name, ranges.back().end); }
    return at;
}

void ptx_run(PtxKernel* k, const uint32_t grid[3], const uint32_t block[3], size_t dynamic_bytes, const char* param_values, int num_param_bytes) {
    kernel = k, params = param_values, param_bytes = num_param_bytes;
    k->num_launches++;
    ptx_launch++;
    launch_epoch = ++ptx_epoch;
    memcpy(ptx_ntid, block, sizeof ptx_ntid);
    memcpy(ptx_nctaid, grid, sizeof ptx_nctaid);
    num_threads = (int)(block[0] * block[1] * block[2]);
    num_warps = (num_threads + 31) / 32;
    ptx_alone = num_threads == 1 && grid[0] * grid[1] * grid[2] == 1;
    for (int i = 0; i < num_threads; i++) {
        const uint32_t u = (uint32_t)i;
        threads[i] = {{u % block[0], u / block[0] % block[1], u / block[0] / block[1]}, i % 32, i / 32, i};
        if (stacks[i] == nullptr) { make_fiber(i); }
    }
    for (int w = 0; w < num_warps; w++) { exists[w] = num_threads - 32 * w >= 32 ? ~0u : (1u << (num_threads - 32 * w)) - 1; }
    ranges.clear();
    uint32_t at = 1024;
    for (int i = 0; i < k->num_shared; i++) {
        ptx_shared_begin[i] = place_shared(at, k->shared[i].align, (size_t)k->shared[i].num_bytes);
        at = ranges.back().end + 16;
    }
    ptx_dynamic_begin = place_shared(at, k->dynamic_align > 0 ? k->dynamic_align : 16, dynamic_bytes);
    const uint64_t num_blocks = (uint64_t)grid[0] * grid[1] * grid[2];
    const uint64_t first = emu::random_bits() % num_blocks, step = emu::random_bits() % 2 != 0 ? 1 : num_blocks - 1;
    for (uint64_t i = 0; i < num_blocks; i++) {
        const uint64_t n = (first + i * step) % num_blocks;
        ptx_ctaid[0] = (uint32_t)(n % grid[0]), ptx_ctaid[1] = (uint32_t)(n / grid[0] % grid[1]), ptx_ctaid[2] = (uint32_t)(n / grid[0] / grid[1]);
        run_block();
        if (ptx_counting) { ptx_count_block(k); }
    }
    if (ptx_counting) { ptx_count_launch(k); }
    kernel = nullptr;
}

// --- floating point ------------------------------------------------------------------------------------------------
template <class Body> static float rounded(int mode, Body body) {
    fesetround(mode);
    const volatile float y = body();
    fesetround(FE_TONEAREST);
    return y;
}
float ptx_add_rounded(int mode, float a, float b) {
    const volatile float x = a, y = b;
    return rounded(mode, [&] { return x + y; });
}
float ptx_sub_rounded(int mode, float a, float b) {
    const volatile float x = a, y = b;
    return rounded(mode, [&] { return x - y; });
}
float ptx_mul_rounded(int mode, float a, float b) {
    const volatile float x = a, y = b;
    return rounded(mode, [&] { return x * y; });
}
float ptx_fma_rounded(int mode, float a, float b, float c) {
    const volatile float x = a, y = b, z = c;
    return rounded(mode, [&] { return std::fma((float)x, (float)y, (float)z); });
}
// `error`: relative, the largest that the manual allows.
static float inexact(double exact, double error, uint32_t bits) {
    if (!std::isfinite(exact) || exact == 0) { return (float)exact; }
    return (float)(exact * (1 + error * ((double)(bits * 2654435761u >> 24) - 127.5) / 127.5));
}
float ptx_ex2_approx(float x) {  // of whole numbers exact on cards
    return x == std::floor(x) ? std::exp2(x) : inexact(std::exp2((double)x), 0x1p-22, bits_of(x));
}
float ptx_lg2_approx(float x) {  // this error is absolute
    const double y = std::log2((double)x);
    return std::isfinite(y) && x != 1 ? (float)(y + ((bits_of(x) * 2654435761u >> 31) != 0 ? 0x1p-22 : -0x1p-22)) : (float)y;
}
float ptx_rsqrt_approx(float x) {
    return inexact(1 / std::sqrt((double)x), 0x1.6p-23, bits_of(x));
}
float ptx_rcp_approx(float x) {
    return inexact(1 / (double)x, 0x1p-23, bits_of(x));
}
float ptx_sqrt_approx(float x) {
    return inexact(std::sqrt((double)x), 0x1p-23, bits_of(x));
}
float ptx_tanh_approx(float x) {
    return inexact(std::tanh((double)x), 0x1p-11, bits_of(x));
}
float ptx_sin_approx(float x) {
    return (float)std::sin((double)x);
}
float ptx_cos_approx(float x) {
    return (float)std::cos((double)x);
}
float ptx_div_approx(float a, float b) {
    if (std::fabs(b) > 0x1p126f && std::isfinite(b)) { return std::isinf(a) ? NAN : std::copysign(0.0f, std::signbit(a) != std::signbit(b) ? -1.0f : 1.0f); }
    return ptx_div_full(a, b);
}
float ptx_div_full(float a, float b) {
    return inexact((double)a / (double)b, 0x1p-22, bits_of(a) ^ bits_of(b) * 31);
}
