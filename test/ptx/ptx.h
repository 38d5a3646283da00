/*
ptx.h -- what translated PTX (translate.py) calls: one thread's instructions here, memory and warps in
machine.cpp.

Semantics by the PTX ISA manual 9.0, chapter 9. Addresses: global memory has the host's; shared memory has
offsets, and local memory too, both with a window for generic addresses.
*/
#pragma once

#include <algorithm>
#include <bit>
#include <cfenv>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <type_traits>

struct PtxThread {
    uint32_t tid[3];
    int lane, warp, index;
};
struct PtxVariable {
    int offset, num_bytes, align;
};
struct PtxPlace {  // where a line of PTX comes from (-lineinfo)
    int line;
    const char* source;
    int source_line;
};
enum { PTX_MEMORY, PTX_MMA, PTX_SHUFFLE, PTX_BARRIER, PTX_FLOAT, PTX_OTHER, PTX_NUM_CLASSES };
struct PtxBlock {  // a basic block: its first line, and how many instructions of each class it has
    int line, counts[PTX_NUM_CLASSES];
};
struct PtxKernel {
    const char *name, *path;
    void (*run)(PtxThread*);
    int max_threads, exact_threads;  // of a block: .maxntid, .reqntid; 0: not given
    int dynamic_align;
    const PtxVariable* params;
    int num_params;
    const PtxVariable* shared;
    int num_shared;
    const PtxBlock* blocks;
    const uint64_t* counts;  // how often a thread went through each block
    int num_blocks;
    const PtxPlace* places;
    int num_places;
    long num_launches = 0;
};
struct PtxRegister {
    explicit PtxRegister(PtxKernel* kernel);
};

constexpr uint64_t PTX_SHARED_WINDOW = 0x5a00000000000000u, PTX_LOCAL_WINDOW = 0x5b00000000000000u;

extern uint32_t ptx_ntid[3], ptx_ctaid[3], ptx_nctaid[3];
extern uint32_t ptx_shared_begin[64], ptx_dynamic_begin;  // of the running kernel's variables
extern uint32_t ptx_launch;                               // counts up
extern bool ptx_alone;                                    // it has one thread, which races with none

// Of a program that PTX leaves undefined: prints where, and ends. `line` is the PTX file's everywhere.
[[noreturn]] void ptx_fail(const PtxThread* t, int line, const char* format, ...)
    __attribute__((format(printf, 3, 4)));
[[noreturn]] void ptx_trap(PtxThread* t, int line);
uint64_t ptx_clock();

// --- memory: the place of an access, or the end ------------------------------------------------
// Epochs count up over the process: of all with each bar.sync and block, of a warp with each bar.warp.sync of
// all its lanes.
extern uint32_t ptx_epoch, ptx_warp_epoch[32];
struct PtxShadow {     // of two bytes: who has accessed them last (machine.cpp: touch)
    uint64_t readers;  // since they were written: epoch 32 | warp 6 | lane 6 (63: several) | two flags |
                       // warp's epoch 18
    uint64_t writer;   // epoch 32 | thread 12 | warp's epoch 19 | atomic 1
};
constexpr uint64_t PTX_WARPS = 63u << 26, PTX_LANES = 63u << 20, PTX_BY_NC = 1u << 19,
                   PTX_OTHER_BLOCK = 1u << 18, PTX_READER_EPOCH = (1u << 18) - 1;
constexpr uint64_t PTX_WRITER_EPOCH = (1u << 19) - 1, PTX_ATOMIC_WRITER = 1;
constexpr uint32_t PTX_SHARED_BYTES = 256 << 10;
extern char ptx_shared_memory[PTX_SHARED_BYTES];
extern PtxShadow ptx_shared_shadow[PTX_SHARED_BYTES / 2];
struct PtxSpan {  // the allocation that an instruction found last
    uint64_t begin, num_bytes;
    PtxShadow* shadow;
    uint32_t launch;
};
enum PtxAccess { PTX_READ, PTX_READ_ONLY, PTX_WRITE, PTX_ATOMIC };  // READ_ONLY: ld.global.nc
const char* ptx_param(PtxThread* t, uint64_t address, int num_bytes, int line);
char* ptx_local(PtxThread* t, char* local, uint64_t local_bytes, uint64_t address, int num_bytes, int line);
char* ptx_check_shared(PtxThread* t, uint64_t address, int num_bytes, PtxAccess how, int line);
char* ptx_check_global(PtxThread* t, uint64_t address, int num_bytes, PtxAccess how, int line, PtxSpan* span);

// count.cpp
extern bool ptx_counting;
void ptx_count(const PtxThread* t, uint64_t address, int num_bytes, int line);

inline uint64_t ptx_reader(const PtxThread* t) {
    return (uint64_t)ptx_epoch << 32 | (uint64_t)t->warp << 26 | (uint64_t)t->lane << 20 |
           (ptx_warp_epoch[t->warp] & PTX_READER_EPOCH);
}
inline uint64_t ptx_writer(const PtxThread* t) {
    return (uint64_t)ptx_epoch << 32 | (uint64_t)t->index << 20 |
           (ptx_warp_epoch[t->warp] & PTX_WRITER_EPOCH) << 1;
}
// Is such an access on record already, and nothing that it could meet since?
template <int N, PtxAccess HOW> inline bool ptx_known(const PtxThread* t, const PtxShadow* s) {
    if (HOW == PTX_ATOMIC) { return false; }
    const uint64_t me = HOW == PTX_WRITE ? ptx_writer(t) : ptx_reader(t), several = me >> 26 | 63;
    for (int i = 0; i < std::max(1, N / 2); i++) {
        const uint64_t r = s[i].readers & ~(PTX_BY_NC | PTX_OTHER_BLOCK);
        const bool known = HOW == PTX_WRITE ? s[i].writer == me && s[i].readers == 0
                                            : r == me || r == (me | PTX_LANES) || r >> 26 == several;
        if (!known || (HOW == PTX_READ_ONLY && (s[i].readers & PTX_BY_NC) == 0)) { return false; }
    }
    return true;
}
template <int N, PtxAccess HOW> char* ptx_shared(PtxThread* t, uint64_t address, int line) {
    if (ptx_counting) { ptx_count(t, address, N, line); }
    if (address < PTX_SHARED_BYTES && address % N == 0 &&
        ptx_known<N, HOW>(t, &ptx_shared_shadow[address / 2])) {
        return ptx_shared_memory + address;
    }
    return ptx_check_shared(t, address, N, HOW, line);
}
template <int N, PtxAccess HOW> char* ptx_global(PtxThread* t, uint64_t address, int line, PtxSpan* span) {
    if (ptx_counting) { ptx_count(t, address, N, line); }
    const uint64_t at = address - span->begin;
    if (span->launch == ptx_launch && span->num_bytes >= N && at <= span->num_bytes - N && address % N == 0 &&
        (ptx_alone || ptx_known<N, HOW>(t, span->shadow + at / 2))) {
        return (char*)address;
    }
    return ptx_check_global(t, address, N, HOW, line, span);
}
template <int N, PtxAccess HOW>
char* ptx_generic(PtxThread* t, char* local, uint64_t local_bytes, uint64_t address, int line,
                  PtxSpan* span) {
    if (address < PTX_SHARED_WINDOW) { return ptx_global<N, HOW>(t, address, line, span); }
    if (address < PTX_LOCAL_WINDOW) { return ptx_shared<N, HOW>(t, address - PTX_SHARED_WINDOW, line); }
    return ptx_local(t, local, local_bytes, address - PTX_LOCAL_WINDOW, N, line);
}
void ptx_copy(PtxThread* t, uint64_t to, uint64_t from, int num_bytes, uint32_t source_bytes, int line,
              PtxSpan* span);  // cp.async
void ptx_copy_commit(PtxThread* t);
void ptx_copy_wait(PtxThread* t, int groups);  // -1: all

// --- warps and blocks --------------------------------------------------------------------------
enum PtxShuffle { PTX_UP, PTX_DOWN, PTX_BFLY, PTX_IDX };
enum PtxVoteKind { PTX_BALLOT, PTX_ANY, PTX_ALL, PTX_UNI };
struct PtxVote {
    uint32_t ballot, members;
};
struct PtxBarrier {
    uint32_t count, threads;  // for which the predicate held; all
};
enum PtxFold { PTX_ADD, PTX_MIN, PTX_MAX, PTX_AND, PTX_OR, PTX_XOR, PTX_EXCH, PTX_CAS };
uint32_t ptx_shuffle(PtxThread* t, PtxShuffle how, uint32_t value, uint32_t b, uint32_t c, uint32_t mask,
                     bool* valid, int line);
PtxVote ptx_vote(PtxThread* t, PtxVoteKind kind, bool predicate, uint32_t mask, int line);
uint32_t ptx_redux_bits(PtxThread* t, PtxFold how, bool is_signed, uint32_t value, uint32_t mask, int line);
void ptx_warp_sync(PtxThread* t, uint32_t mask, int line);
PtxBarrier ptx_barrier(PtxThread* t, uint32_t number, uint32_t threads, bool predicate, int line);
void ptx_mma(PtxThread* t, float d[4], const uint32_t a[4], const uint32_t b[2], const float c[4], int line);
void ptx_ldmatrix(PtxThread* t, uint32_t d[4], int count, bool transposed, uint64_t address, int line);

// --- bits --------------------------------------------------------------------------------------
inline float float_of(uint32_t x) {
    return std::bit_cast<float>(x);
}
inline double double_of(uint64_t x) {
    return std::bit_cast<double>(x);
}
inline uint32_t bits_of(float x) {
    return std::bit_cast<uint32_t>(x);
}
inline uint64_t bits_of(double x) {
    return std::bit_cast<uint64_t>(x);
}
template <class T> inline T load(const char* p) {
    T x;
    memcpy(&x, p, sizeof x);
    return x;
}
template <class T> inline void store(char* p, T x) {
    memcpy(p, &x, sizeof x);
}
// Shifts by the width or more.
template <class T> inline T ptx_shl(T x, uint32_t n) {
    return n >= 8 * sizeof(T) ? (T)0 : (T)(x << n);
}
template <class T> inline T ptx_shr(T x, uint32_t n) {
    return n < 8 * sizeof(T) ? (T)(x >> n) : x < 0 ? (T)-1 : (T)0;
}
inline uint32_t ptx_prmt(uint32_t a, uint32_t b, uint32_t c) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    uint32_t d = 0;
    for (int i = 0; i < 4; i++) {
        const uint32_t selector = c >> (4 * i) & 15, byte = (uint32_t)(bytes >> (8 * (selector & 7))) & 255;
        d |= ((selector & 8) != 0 ? (byte >> 7) * 255u : byte) << (8 * i);
    }
    return d;
}
inline uint32_t ptx_lop3(uint32_t a, uint32_t b, uint32_t c, uint32_t table) {
    uint32_t d = 0;
    for (int i = 0; i < 8; i++) {
        if ((table >> i & 1) != 0) {
            d |= ((i & 4) != 0 ? a : ~a) & ((i & 2) != 0 ? b : ~b) & ((i & 1) != 0 ? c : ~c);
        }
    }
    return d;
}
// `length` bits of a go into b, at bit `at`.
template <class T> inline T ptx_bfi(T a, T b, uint32_t at, uint32_t length) {
    at &= 255, length &= 255;
    const T mask = (T)(ptx_shl((T)1, length) - 1);
    return (T)((b & ~ptx_shl(mask, at)) | ptx_shl((T)(a & mask), at));
}
template <class T> inline T ptx_bfe(T a, uint32_t at, uint32_t length) {
    using U = std::make_unsigned_t<T>;
    constexpr uint32_t width = 8 * sizeof(T);
    at &= 255, length &= 255;
    if (length == 0) { return 0; }
    const U mask = (U)(ptx_shl((U)1, length) - 1), x = (U)(ptx_shr((U)a, at) & mask);
    const bool negative = std::is_signed_v<T> && ((U)a >> std::min(at + length - 1, width - 1) & 1) != 0;
    const U has =
        at >= width ? 0 : (U)(ptx_shl((U)1, std::min(length, width - at)) - 1);  // bits of a that are there
    return (T)(negative ? x | (U)~has : x);
}
template <class T> inline T ptx_brev(T x) {
    T y = 0;
    for (size_t i = 0; i < 8 * sizeof(T); i++) { y |= (T)(x >> i & 1) << (8 * sizeof(T) - 1 - i); }
    return y;
}
template <class T> inline T ptx_divide(PtxThread* t, T a, T b, int line) {
    if (b == 0) { ptx_fail(t, line, "division by 0"); }
    return std::is_signed_v<T> && b == (T)-1 ? (T)(0 - (std::make_unsigned_t<T>)a) : (T)(a / b);
}
template <class T> inline T ptx_remainder(PtxThread* t, T a, T b, int line) {
    if (b == 0) { ptx_fail(t, line, "remainder of a division by 0"); }
    return std::is_signed_v<T> && b == (T)-1 ? (T)0 : (T)(a % b);
}

// --- floating point ----------------------------------------------------------------------------
inline float ftz(float x) {
    return std::fabs(x) < 0x1p-126f ? std::copysign(0.0f, x) : x;
}
template <class T> inline T saturate(T x) {
    return x > 0 ? std::min(x, (T)1) : (T)0;  // NaN: 0
}
template <class T> inline T ptx_min(T a, T b) {  // a NaN gives way; -0 < +0
    return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? a : b) : a < b ? a : b;
}
template <class T> inline T ptx_max(T a, T b) {
    return std::isnan(a) ? b : std::isnan(b) ? a : a == b ? (std::signbit(a) ? b : a) : a > b ? a : b;
}
template <class T> inline T ptx_min(T a, T b, T c) {
    return ptx_min(ptx_min(a, b), c);
}
template <class T> inline T ptx_max(T a, T b, T c) {
    return ptx_max(ptx_max(a, b), c);
}
template <class T> inline T ptx_min_nan(T a, T b) {
    return std::isnan(a) || std::isnan(b) ? (T)NAN : ptx_min(a, b);
}
template <class T> inline T ptx_max_nan(T a, T b) {
    return std::isnan(a) || std::isnan(b) ? (T)NAN : ptx_max(a, b);
}
inline uint16_t ptx_bf16(float x) {  // to nearest, ties to even
    const uint32_t u = bits_of(x);
    return std::isnan(x) ? 0x7fff : (uint16_t)((u + 0x7fff + (u >> 16 & 1)) >> 16);
}
template <class T> inline T ptx_whole(T x, char how) {
    return how == 'n'   ? std::nearbyint(x)
           : how == 'z' ? std::trunc(x)
           : how == 'm' ? std::floor(x)
                        : std::ceil(x);
}
template <class I, class F> inline I ptx_integer(F x, char how) {  // clamps; NaN: 0, of 64 bits 2^63
    using Limits = std::make_unsigned_t<I>;
    constexpr int bits = 8 * sizeof(I) - std::is_signed_v<I>;
    const F y = ptx_whole(x, how);
    if (std::isnan(y)) { return sizeof(I) == 8 ? (I)(1ull << 63) : (I)0; }
    if (y >= std::ldexp((F)1, bits)) { return (I)((Limits)-1 >> std::is_signed_v<I>); }
    if (y < (std::is_signed_v<I> ? -std::ldexp((F)1, bits) : (F)0)) {
        return (I)(std::is_signed_v<I> ? (Limits)1 << bits : 0);
    }
    return (I)y;
}
template <class To, class From> inline To ptx_clamp(From x) {
    const __int128 low = std::is_signed_v<To> ? -((__int128)1 << (8 * sizeof(To) - 1)) : 0,
                   high = ((__int128)1 << (8 * sizeof(To) - std::is_signed_v<To>)) - 1;
    return (To)std::clamp((__int128)x, low, high);
}
// Rounded as `mode` of <cfenv> says.
float ptx_add_rounded(int mode, float a, float b), ptx_sub_rounded(int mode, float a, float b),
    ptx_mul_rounded(int mode, float a, float b);
float ptx_fma_rounded(int mode, float a, float b, float c);
// Off by up to what the manual allows, one way or the other by the bits of the argument.
float ptx_ex2_approx(float), ptx_lg2_approx(float), ptx_rsqrt_approx(float), ptx_rcp_approx(float),
    ptx_sqrt_approx(float), ptx_tanh_approx(float);
float ptx_sin_approx(float), ptx_cos_approx(float), ptx_div_approx(float, float), ptx_div_full(float, float);

// --- atomics -----------------------------------------------------------------------------------
template <class T> inline T ptx_fold(PtxFold how, T old, T x) {
    if constexpr (std::is_floating_point_v<T>) {
        return how == PTX_ADD   ? old + x
               : how == PTX_MIN ? ptx_min(old, x)
               : how == PTX_MAX ? ptx_max(old, x)
                                : x;
    } else {
        switch (how) {
            case PTX_ADD: return (T)((std::make_unsigned_t<T>)old + (std::make_unsigned_t<T>)x);
            case PTX_MIN: return std::min(old, x);
            case PTX_MAX: return std::max(old, x);
            case PTX_AND: return old & x;
            case PTX_OR: return old | x;
            case PTX_XOR: return old ^ x;
            default: return x;
        }
    }
}
template <class T> inline T ptx_atomic(char* place, PtxFold how, T x, T y = T()) {
    const T old = load<T>(place);
    store<T>(place, how != PTX_CAS ? ptx_fold(how, old, x) : old == x ? y : old);
    return old;
}
template <class T> inline T ptx_redux(PtxThread* t, PtxFold how, T x, uint32_t mask, int line) {
    return (T)ptx_redux_bits(t, how, std::is_signed_v<T>, (uint32_t)x, mask, line);
}
