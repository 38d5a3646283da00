/*
thread.h -- launching kernels, and everything threads do together: barriers, shuffles, votes.

A thread that has to wait for others gives the CPU to one of them (grid.cpp). What a warp does together goes
through exchange(): every lane puts down 16 bytes, and goes on when all are there.
*/
#pragma once

#include <source_location>
#include <tuple>
#include <type_traits>
#include <utility>

namespace emu {

using Where = std::source_location;
#define EMU_HERE emu::Where where = emu::Where::current()

// --- launch ----------------------------------------------------------------------------------
struct Config {  // what stands between <<< and >>>
    dim3 grid, block;
    size_t shared_bytes;
    cudaStream_t stream;
    Config(dim3 grid_, dim3 block_, size_t shared_bytes_ = 0, cudaStream_t stream_ = nullptr)
        : grid(grid_), block(block_), shared_bytes(shared_bytes_), stream(stream_) {
    }
};

// `function` tells cudaFuncSetAttribute's kernels apart; nullptr for templates whose arguments were deduced.
// run(closure) is one thread; destroy(closure) follows the last.
void launch_closure(const char* name, const Config& config, const void* function, void (*run)(void*),
                    void (*destroy)(void*), void* closure);

// Arguments are copied now, as CUDA does; the kernel runs later.
template <class Call, class... Args>
void launch(const char* name, const Config& config, const void* function, Call call, Args&&... args) {
    struct Closure {
        Call call;
        std::tuple<std::decay_t<Args>...> args;
    };
    auto run = [](void* closure) { std::apply(((Closure*)closure)->call, ((Closure*)closure)->args); };
    auto destroy = [](void* closure) { delete (Closure*)closure; };
    launch_closure(name, config, function, run, destroy,
                   new Closure{call, std::tuple<std::decay_t<Args>...>(std::forward<Args>(args)...)});
}

struct TakeAddress {
    template <class Function> const void* operator()(Function* function) const {
        return (const void*)function;
    }
};

}  // namespace emu

// A kernel as two arguments of launch(): its address (where the name is that of one function), and a call of
// it.
#define EMU_KERNEL(...)                                  \
    [&](auto take) -> const void* {                      \
        if constexpr (requires { take(__VA_ARGS__); }) { \
            return take(__VA_ARGS__);                    \
        } else {                                         \
            return nullptr;                              \
        }                                                \
    }(emu::TakeAddress{}),                               \
        [=](auto... kernel_args) { __VA_ARGS__(kernel_args...); }

namespace emu {

// --- shared memory ---------------------------------------------------------------------------
void* dynamic_shared();
extern uint64_t block_number;  // of this block, counted over the process
void begin_static_shared(void* variable, size_t num_bytes);
#define EMU_SHARED(variable)                                         \
    {                                                                \
        static uint64_t block_seen;                                  \
        if (block_seen != emu::block_number) {                       \
            block_seen = emu::block_number;                          \
            emu::begin_static_shared(&(variable), sizeof(variable)); \
        }                                                            \
    }

// --- what a warp does together ---------------------------------------------------------------
extern int lane;  // of the running thread

struct alignas(16) Slot {
    unsigned char bytes[16];
    template <class T> static Slot of(const T& value) {
        static_assert(sizeof(T) <= 16 && std::is_trivially_copyable_v<T>, "at most 16 plain bytes per lane");
        Slot slot = {};
        memcpy(&slot, &value, sizeof(T));
        return slot;
    }
    template <class T> T as() const {
        T value;
        memcpy((void*)&value, this, sizeof(T));
        return value;
    }
};

// The slots of all lanes in `mask` (of others: NaN bytes), valid until this lane's next exchange. `finish`:
// run once, by the last lane to come, when all slots are there and before anybody goes on.
const Slot* exchange(uint32_t mask, const Slot& mine, const char* what, Where where,
                     void (*finish)(const Slot* slots) = nullptr);
uint32_t live_lanes();

enum BlockVote { VOTE_NONE, VOTE_AND, VOTE_OR, VOTE_COUNT };
int block_barrier(BlockVote vote, int predicate, Where where);

template <class T> T shuffle(uint32_t mask, T value, int source, const char* what, Where where) {
    const Slot& slot = exchange(mask, Slot::of(value), what, where)[source & 31];
    return slot.as<T>();
}

}  // namespace emu

// --- barriers --------------------------------------------------------------------------------
static inline void __syncthreads(EMU_HERE) {
    emu::block_barrier(emu::VOTE_NONE, 0, where);
}
static inline int __syncthreads_and(int predicate, EMU_HERE) {
    return emu::block_barrier(emu::VOTE_AND, predicate, where);
}
static inline int __syncthreads_or(int predicate, EMU_HERE) {
    return emu::block_barrier(emu::VOTE_OR, predicate, where);
}
static inline int __syncthreads_count(int predicate, EMU_HERE) {
    return emu::block_barrier(emu::VOTE_COUNT, predicate, where);
}
static inline void __syncwarp(uint32_t mask = ~0u, EMU_HERE) {
    emu::exchange(mask, emu::Slot{}, "__syncwarp", where);
}
static inline void __threadfence() {
}
static inline void __threadfence_block() {
}
static inline void __threadfence_system() {
}

// --- shuffles: `width` lanes that follow each other are a group; a source outside of it is oneself ---
template <class T> static inline T __shfl_sync(uint32_t mask, T value, int source, int width = 32, EMU_HERE) {
    const int first = emu::lane & ~(width - 1);
    return emu::shuffle(mask, value, first | (source & (width - 1)), "__shfl_sync", where);
}
template <class T>
static inline T __shfl_xor_sync(uint32_t mask, T value, int bits, int width = 32, EMU_HERE) {
    const int source = emu::lane ^ bits;  // of this group or one before
    const bool there = (source & ~(width - 1)) <= (emu::lane & ~(width - 1));
    return emu::shuffle(mask, value, there ? source : emu::lane, "__shfl_xor_sync", where);
}
template <class T>
static inline T __shfl_down_sync(uint32_t mask, T value, unsigned delta, int width = 32, EMU_HERE) {
    const int source = emu::lane + (int)delta;
    const bool there = (source & ~(width - 1)) == (emu::lane & ~(width - 1));
    return emu::shuffle(mask, value, there ? source : emu::lane, "__shfl_down_sync", where);
}
template <class T>
static inline T __shfl_up_sync(uint32_t mask, T value, unsigned delta, int width = 32, EMU_HERE) {
    const int source = emu::lane - (int)delta;
    const bool there = source >= (emu::lane & ~(width - 1));
    return emu::shuffle(mask, value, there ? source : emu::lane, "__shfl_up_sync", where);
}

// --- votes, reductions over a mask -----------------------------------------------------------
namespace emu {
// fold(result, lane's value, lane) over the lanes of the mask that are there.
template <class T, class R, class Fold>
R fold_lanes(uint32_t mask, T value, R result, const char* what, Where where, Fold fold) {
    const uint32_t there = mask & live_lanes();
    const Slot* slots = exchange(mask, Slot::of(value), what, where);
    for (int i = 0; i < 32; i++) {
        if (there >> i & 1) { result = fold(result, slots[i].as<T>(), i); }
    }
    return result;
}
}  // namespace emu

static inline uint32_t __ballot_sync(uint32_t mask, int predicate, EMU_HERE) {
    return emu::fold_lanes(mask, predicate, 0u, "__ballot_sync", where,
                           [](uint32_t sum, int value, int i) { return sum | (uint32_t)(value != 0) << i; });
}
static inline int __any_sync(uint32_t mask, int predicate, EMU_HERE) {
    return emu::fold_lanes(mask, predicate, 0, "__any_sync", where,
                           [](int sum, int value, int) { return sum | (value != 0); });
}
static inline int __all_sync(uint32_t mask, int predicate, EMU_HERE) {
    return emu::fold_lanes(mask, predicate, 1, "__all_sync", where,
                           [](int sum, int value, int) { return sum & (value != 0); });
}
template <class T> static inline uint32_t __match_any_sync(uint32_t mask, T value, EMU_HERE) {
    return emu::fold_lanes(mask, value, 0u, "__match_any_sync", where, [=](uint32_t sum, T other, int i) {
        return sum | (uint32_t)(other == value) << i;
    });
}
#define EMU_REDUCE(name, expression)                                                 \
    template <class T> static inline T name(uint32_t mask, T value, EMU_HERE) {      \
        const T mine = value;                                                        \
        bool first = true;                                                           \
        return emu::fold_lanes(mask, value, mine, #name, where, [&](T a, T b, int) { \
            if (first) {                                                             \
                first = false;                                                       \
                return b;                                                            \
            }                                                                        \
            return (T)(expression);                                                  \
        });                                                                          \
    }
EMU_REDUCE(__reduce_add_sync, a + b)
EMU_REDUCE(__reduce_max_sync, a > b ? a : b)
EMU_REDUCE(__reduce_min_sync, a < b ? a : b)
EMU_REDUCE(__reduce_and_sync, a& b)
EMU_REDUCE(__reduce_or_sync, a | b)
EMU_REDUCE(__reduce_xor_sync, a ^ b)

static inline uint32_t __activemask() {
    return emu::live_lanes();
}
