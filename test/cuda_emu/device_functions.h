/*
device_functions.h -- what one thread calls: atomics, loads and stores with hints, intrinsics, and the C++
forms of runtime calls that nvcc's headers add.

Fast approximations (__expf ...) are the exact functions here: a test's tolerance must leave room for them.
*/
#pragma once

#include <ctime>
#include <type_traits>

namespace emu {
[[noreturn]] void trap();
unsigned occupancy(const void* function, int block_threads, size_t shared_bytes);
cudaError_t set_function_attribute(const void* function, cudaFuncAttribute attribute, int value);
}  // namespace emu

// --- atomics: one thread runs at a time ------------------------------------------------------
#define EMU_ATOMIC(name, expression)                                                     \
    template <class T> static inline T name(T* address, std::type_identity_t<T> value) { \
        const T old = *address;                                                          \
        *address = (T)(expression);                                                      \
        return old;                                                                      \
    }
EMU_ATOMIC(atomicAdd, old + value)
EMU_ATOMIC(atomicSub, old - value)
EMU_ATOMIC(atomicMax, value > old ? value : old)
EMU_ATOMIC(atomicMin, value < old ? value : old)
EMU_ATOMIC(atomicExch, value)
EMU_ATOMIC(atomicAnd, old& value)
EMU_ATOMIC(atomicOr, old | value)
EMU_ATOMIC(atomicXor, old ^ value)
EMU_ATOMIC(atomicInc, old >= value ? 0 : old + 1)
EMU_ATOMIC(atomicDec, old == 0 || old > value ? value : old - 1)
template <class T>
static inline T atomicCAS(T* address, std::type_identity_t<T> compare, std::type_identity_t<T> value) {
    const T old = *address;
    if (old == compare) { *address = value; }
    return old;
}
#define atomicAdd_block atomicAdd
#define atomicAdd_system atomicAdd

// --- loads and stores ------------------------------------------------------------------------
#define EMU_LOAD(name)                                         \
    template <class T> static inline T name(const T* source) { \
        return *source;                                        \
    }
#define EMU_STORE(name)                                                                           \
    template <class T> static inline void name(T* target, const std::type_identity_t<T>& value) { \
        *target = value;                                                                          \
    }
EMU_LOAD(__ldg)
EMU_LOAD(__ldcs)
EMU_LOAD(__ldcg)
EMU_LOAD(__ldca)
EMU_LOAD(__ldlu)
EMU_LOAD(__ldcv)
EMU_STORE(__stcs)
EMU_STORE(__stcg)
EMU_STORE(__stwb)
EMU_STORE(__stwt)
static inline uint32_t __cvta_generic_to_shared(const void* pointer) {  // only to be compared, or printed
    return (uint32_t)(uintptr_t)pointer;
}

// --- floating point; glibc owns the names __expf ..., hence macros ---------------------------
#define __expf(x) expf(x)
#define __exp10f(x) powf(10.0f, x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __powf(x, y) powf(x, y)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __tanhf(x) tanhf(x)
#define __sincosf(x, s, c) sincosf(x, s, c)
// clang-format off
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline double rsqrt(double x) { return 1.0 / sqrt(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline float __fadd_rn(float a, float b) { return a + b; }
static inline float __fsub_rn(float a, float b) { return a - b; }
static inline float __fmul_rn(float a, float b) { return a * b; }
static inline float __fdiv_rn(float a, float b) { return a / b; }
static inline float __fmaf_rn(float a, float b, float c) { return fmaf(a, b, c); }
static inline float __frcp_rn(float a) { return 1.0f / a; }
static inline float __fsqrt_rn(float a) { return sqrtf(a); }
static inline float __frsqrt_rn(float a) { return 1.0f / sqrtf(a); }
static inline float __saturatef(float a) { return a > 0.0f ? (a < 1.0f ? a : 1.0f) : 0.0f; }
static inline double __dadd_rn(double a, double b) { return a + b; }
static inline double __dmul_rn(double a, double b) { return a * b; }

// --- conversions, bits -----------------------------------------------------------------------
static inline float __int_as_float(int x) { float y; memcpy(&y, &x, 4); return y; }
static inline float __uint_as_float(unsigned x) { float y; memcpy(&y, &x, 4); return y; }
static inline int __float_as_int(float x) { int y; memcpy(&y, &x, 4); return y; }
static inline unsigned __float_as_uint(float x) { unsigned y; memcpy(&y, &x, 4); return y; }
static inline long long __double_as_longlong(double x) { long long y; memcpy(&y, &x, 8); return y; }
static inline double __longlong_as_double(long long x) { double y; memcpy(&y, &x, 8); return y; }
static inline int __float2int_rn(float x) { return (int)nearbyintf(x); }
static inline int __float2int_rz(float x) { return (int)x; }
static inline int __float2int_rd(float x) { return (int)floorf(x); }
static inline int __float2int_ru(float x) { return (int)ceilf(x); }
static inline unsigned __float2uint_rn(float x) { return (unsigned)nearbyintf(x); }
static inline unsigned __float2uint_rz(float x) { return (unsigned)x; }
static inline float __int2float_rn(int x) { return (float)x; }
static inline float __uint2float_rn(unsigned x) { return (float)x; }
static inline float __double2float_rn(double x) { return (float)x; }
static inline int __popc(unsigned x) { return __builtin_popcount(x); }
static inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
static inline int __clz(int x) { return x != 0 ? __builtin_clz((unsigned)x) : 32; }
static inline int __clzll(long long x) { return x != 0 ? __builtin_clzll((unsigned long long)x) : 64; }
static inline int __ffs(int x) { return __builtin_ffs(x); }
static inline int __ffsll(long long x) { return __builtin_ffsll(x); }
static inline int __mulhi(int a, int b) { return (int)(((int64_t)a * b) >> 32); }
static inline unsigned __umulhi(unsigned a, unsigned b) { return (unsigned)(((uint64_t)a * b) >> 32); }
static inline unsigned long long __umul64hi(unsigned long long a, unsigned long long b) {
    return (unsigned long long)((unsigned __int128)a * b >> 64);
}
static inline int __mul24(int a, int b) { return (int)((unsigned)((a << 8) >> 8) * (unsigned)((b << 8) >> 8)); }
static inline unsigned __umul24(unsigned a, unsigned b) { return (a & 0xffffff) * (b & 0xffffff); }
static inline unsigned __brev(unsigned x) {
    unsigned y = 0;
    for (int i = 0; i < 32; i++) { y |= (x >> i & 1) << (31 - i); }
    return y;
}
static inline unsigned __byte_perm(unsigned a, unsigned b, unsigned selector) {
    const uint64_t bytes = (uint64_t)b << 32 | a;
    unsigned y = 0;
    for (int i = 0; i < 4; i++) {
        const unsigned byte = (unsigned)(bytes >> (8 * (selector >> (4 * i) & 7))) & 0xff;
        y |= ((selector >> (4 * i) & 8) != 0 ? (byte & 0x80) != 0 ? 0xffu : 0u : byte) << (8 * i);
    }
    return y;
}
static inline unsigned __funnelshift_l(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) << (shift & 31) >> 32);
}
static inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned shift) {
    return (unsigned)(((uint64_t)high << 32 | low) >> (shift & 31));
}
// clang-format on

// --- time, traps -----------------------------------------------------------------------------
static inline long long clock64() {
    timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return t.tv_sec * 1000000000ll + t.tv_nsec;
}
static inline void __nanosleep(unsigned) {
}
static inline void __trap() {
    emu::trap();
}

// --- as CUDA has them in the global namespace, for two types that differ ---------------------
template <class A, class B> static inline std::common_type_t<A, B> max(A a, B b) {
    using Common = std::common_type_t<A, B>;
    return (Common)a < (Common)b ? (Common)b : (Common)a;
}
template <class A, class B> static inline std::common_type_t<A, B> min(A a, B b) {
    using Common = std::common_type_t<A, B>;
    return (Common)b < (Common)a ? (Common)b : (Common)a;
}

// --- C++ forms of runtime calls: nvcc's cuda_runtime.h has them ------------------------------
template <class Function>
static inline cudaError_t cudaFuncSetAttribute(Function* function, cudaFuncAttribute attribute, int value) {
    return emu::set_function_attribute((const void*)function, attribute, value);
}
template <class Function>
static inline cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* about, Function* function) {
    return cudaFuncGetAttributes(about, (const void*)function);
}
template <class Function>
static inline cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* num_blocks, Function* function,
                                                                        int block_threads,
                                                                        size_t shared_bytes) {
    *num_blocks = (int)emu::occupancy((const void*)function, block_threads, shared_bytes);
    return cudaSuccess;
}
template <class T>
static inline cudaError_t cudaMemcpyToSymbol(T& symbol, const void* source, size_t num_bytes,
                                             size_t offset = 0) {
    return cudaMemcpy((char*)&symbol + offset, source, num_bytes, cudaMemcpyDefault);
}
template <class T>
static inline cudaError_t cudaMemcpyFromSymbol(void* target, const T& symbol, size_t num_bytes,
                                               size_t offset = 0) {
    return cudaMemcpy(target, (const char*)&symbol + offset, num_bytes, cudaMemcpyDefault);
}
template <class T> static inline cudaError_t cudaGetSymbolAddress(void** pointer, const T& symbol) {
    *pointer = (void*)&symbol;
    return cudaSuccess;
}
