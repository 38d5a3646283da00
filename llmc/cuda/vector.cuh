/*
vector.cuh -- what kernels share: N values per thread in accesses of up to 16 bytes, and sums over a warp or
block.

    Floats<8> x = load_floats<8, LOAD_ONCE>(inp + i);   // 8 floatX by one 16-byte load, as float
    store_floats(out + i, x);                           // rounded to nearest even, one 16-byte store

The address must be a multiple of the access: sizeof(T) * N bytes up to 16 (launch.cuh: vectors_fit). N = 1 is
the scalar form of the same kernel. Sums are in a fixed order, and every thread gets them.
*/
#pragma once

#include <cuda_bf16.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "../ops.h"

constexpr int FLOATX_PER_LOAD = 16 / sizeof(floatX), WARP_THREADS = 32;

// LOAD_ONCE: this data is not wanted again soon, evict it first. LOAD_READ_ONLY: no thread of this kernel
// writes it, many read it (weights). The default may be read and written in place.
typedef enum { LOAD_NORMAL, LOAD_ONCE, LOAD_READ_ONLY } LoadHint;
typedef enum { STORE_NORMAL, STORE_ONCE } StoreHint;

template <class T, int N> struct alignas(sizeof(T) * N < 16 ? sizeof(T) * N : 16) Vec {
    T at[N];
    __device__ __forceinline__ T& operator[](int i) {
        return at[i];
    }
    __device__ __forceinline__ const T& operator[](int i) const {
        return at[i];
    }
};
template <int N> using Floats = Vec<float, N>;

// --- loads and stores --------------------------------------------------------------------------------------
template <LoadHint hint, class Word> static __device__ __forceinline__ Word load_word(const Word* from) {
    if constexpr (hint == LOAD_ONCE) { return __ldcs(from); }
    if constexpr (hint == LOAD_READ_ONLY) { return __ldg(from); }
    return *from;
}

template <StoreHint hint, class Word> static __device__ __forceinline__ void store_word(Word* to, Word word) {
    if constexpr (hint == STORE_ONCE) {
        __stcs(to, word);
    } else {
        *to = word;
    }
}

template <int num_bytes> struct AccessWord { typedef uint4 Type; };
template <> struct AccessWord<2> { typedef unsigned short Type; };
template <> struct AccessWord<4> { typedef unsigned Type; };
template <> struct AccessWord<8> { typedef uint2 Type; };

template <int N, LoadHint hint = LOAD_NORMAL, class T>
static __device__ __forceinline__ Vec<T, N> load_vec(const T* from) {
    typedef typename AccessWord<sizeof(Vec<T, N>)>::Type Word;
    Vec<T, N> vec;
#pragma unroll
    for (int i = 0; i < (int)(sizeof vec / sizeof(Word)); i++) {
        Word word = load_word<hint>((const Word*)from + i);
        memcpy((char*)&vec + i * sizeof word, &word, sizeof word);
    }
    return vec;
}

template <StoreHint hint = STORE_NORMAL, class T, int N>
static __device__ __forceinline__ void store_vec(T* to, const Vec<T, N>& vec) {
    typedef typename AccessWord<sizeof(Vec<T, N>)>::Type Word;
#pragma unroll
    for (int i = 0; i < (int)(sizeof vec / sizeof(Word)); i++) {
        Word word;
        memcpy(&word, (const char*)&vec + i * sizeof word, sizeof word);
        store_word<hint>((Word*)to + i, word);
    }
}

// To shared memory by one instruction: nvcc may split a plain store of what it has in parts, and then lanes
// 16 bytes apart meet in the same banks.
template <class T, int N>
static __device__ __forceinline__ void store_shared_vec(T* to, const Vec<T, N>& vec) {
    static_assert(sizeof vec == sizeof(uint4));
    uint4 word;
    memcpy(&word, &vec, sizeof word);
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"((unsigned)__cvta_generic_to_shared(to)),
                 "r"(word.x), "r"(word.y), "r"(word.z), "r"(word.w)
                 : "memory");
}

// --- conversion --------------------------------------------------------------------------------------------
template <int N> static __device__ __forceinline__ Floats<N> to_floats(const Vec<float, N>& vec) {
    return vec;
}

template <int N> static __device__ __forceinline__ Floats<N> to_floats(const Vec<__nv_bfloat16, N>& vec) {
    Floats<N> floats;
    if constexpr (N % 2 == 0) {  // two by two, so that vec stays in registers of 32 bits: a shift, a mask
#pragma unroll
        for (int i = 0; i < N; i += 2) {
            unsigned pair;
            memcpy(&pair, (const char*)&vec + i * sizeof vec[0], sizeof pair);
            floats[i] = __uint_as_float(pair << 16);
            floats[i + 1] = __uint_as_float(pair & 0xffff0000u);
        }
    } else {
#pragma unroll
        for (int i = 0; i < N; i++) { floats[i] = __bfloat162float(vec[i]); }
    }
    return floats;
}

template <class T, int N> struct FromFloats;
template <int N> struct FromFloats<float, N> {
    static __device__ __forceinline__ Vec<float, N> convert(const Floats<N>& floats) {
        return floats;
    }
};
template <int N> struct FromFloats<__nv_bfloat16, N> {
    static __device__ __forceinline__ Vec<__nv_bfloat16, N> convert(const Floats<N>& floats) {
        Vec<__nv_bfloat16, N> vec;
        if constexpr (N % 2 == 0) {  // one instruction for two
#pragma unroll
            for (int i = 0; i < N; i += 2) {
                __nv_bfloat162 pair = __floats2bfloat162_rn(floats[i], floats[i + 1]);
                memcpy((char*)&vec + i * sizeof vec[0], &pair, sizeof pair);
            }
        } else {
#pragma unroll
            for (int i = 0; i < N; i++) { vec[i] = __float2bfloat16_rn(floats[i]); }
        }
        return vec;
    }
};
template <class T, int N> static __device__ __forceinline__ Vec<T, N> from_floats(const Floats<N>& floats) {
    return FromFloats<T, N>::convert(floats);
}

// Hides from the compiler that `vec` is what it was: it converts again instead of keeping N floats in N
// registers.
template <class T, int N> static __device__ __forceinline__ void keep_packed(Vec<T, N>& vec) {
    static_assert(sizeof vec % sizeof(unsigned) == 0);
#pragma unroll
    for (int i = 0; i < (int)(sizeof vec / sizeof(unsigned)); i++) {
        unsigned word;
        memcpy(&word, (char*)&vec + i * sizeof word, sizeof word);
        asm volatile("" : "+r"(word));
        memcpy((char*)&vec + i * sizeof word, &word, sizeof word);
    }
}

template <int N, LoadHint hint = LOAD_NORMAL, class T>
static __device__ __forceinline__ Floats<N> load_floats(const T* from) {
    return to_floats(load_vec<N, hint>(from));
}

template <StoreHint hint = STORE_NORMAL, class T, int N>
static __device__ __forceinline__ void store_floats(T* to, const Floats<N>& floats) {
    store_vec<hint>(to, from_floats<T>(floats));
}

template <int N> static __device__ __forceinline__ Floats<N> floats_of(float value) {
    Floats<N> floats;
#pragma unroll
    for (int i = 0; i < N; i++) { floats[i] = value; }
    return floats;
}

// exp as exact as floatX deserves: 2 ulp in float32; in bf16 one multiplication and one instruction of the
// special function unit, relative error below 2^-21 + |x| 2^-24.
static __device__ __forceinline__ float floatx_exp(float x) {
#ifdef LLMC_BF16
    return __expf(x);
#else
    return expf(x);
#endif
}

// --- sums --------------------------------------------------------------------------------------------------
static __device__ __forceinline__ int warp_lane() {
    return (int)(threadIdx.x % WARP_THREADS);
}

static __device__ __forceinline__ int warp_idx() {
    return (int)(threadIdx.x / WARP_THREADS);
}

template <class T> static __device__ __forceinline__ T warp_sum(T value) {
#pragma unroll
    for (int lanes = WARP_THREADS / 2; lanes > 0; lanes /= 2) {
        value += __shfl_xor_sync(0xffffffffu, value, lanes);
    }
    return value;
}

static __device__ __forceinline__ float warp_max(float value) {
#pragma unroll
    for (int lanes = WARP_THREADS / 2; lanes > 0; lanes /= 2) {
        value = fmaxf(value, __shfl_xor_sync(0xffffffffu, value, lanes));
    }
    return value;
}

// Of a whole block of full warps; shared: 32 values that the next call may use again.
template <class T> static __device__ __forceinline__ T block_sum(T value, T* shared) {
    value = warp_sum(value);
    if (warp_lane() == 0) { shared[warp_idx()] = value; }
    __syncthreads();
    const bool mine = warp_lane() < (int)blockDim.x / WARP_THREADS;
    value = warp_sum(mine ? shared[warp_lane()] : (T)0);
    __syncthreads();
    return value;
}

static __device__ __forceinline__ float block_max(float value, float* shared) {
    value = warp_max(value);
    if (warp_lane() == 0) { shared[warp_idx()] = value; }
    __syncthreads();
    const bool mine = warp_lane() < (int)blockDim.x / WARP_THREADS;
    value = warp_max(mine ? shared[warp_lane()] : -INFINITY);
    __syncthreads();
    return value;
}
