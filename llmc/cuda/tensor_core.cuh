/*
tensor_core.cuh -- the PTX that attention needs, one instruction a function.

PTX ISA 8.0: 9.7.13 (mma, ldmatrix), 9.7.8.22 (cp.async); all from sm_80 on. Fragments of mma.m16n8k16, lane =
4 g + t, each register two bf16 (the lower index in the lower half):
    a[0] rows g, columns 2t 2t+1 of A (16 x 16)   a[1] rows g+8   a[2] columns 2t+8 ..   a[3] both
    b[0] rows 2t 2t+1, column g of B (16 x 8)     b[1] rows 2t+8 ..
    c[0] c[1] row g, columns 2t 2t+1 of C (16 x 8, float)   c[2] c[3] row g+8
ldmatrix: lanes 8i .. 8i+7 name the rows (16 bytes) of matrix i; lane gets elements (g, 2t), (g, 2t+1) of it,
with _trans of its transpose.
*/
#pragma once

#include <cuda_bf16.h>
#include <stdint.h>

// c += a b
static __device__ __forceinline__ void mma_bf16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0,
                                                uint32_t b1) {
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, "
                 "{%0,%1,%2,%3};"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
}

// A place in shared memory as ldmatrix wants it: 32 bits, cheap to compute with.
typedef uint32_t SharedAddress;
static __device__ __forceinline__ SharedAddress shared_address(const void* smem) {
    return (SharedAddress)__cvta_generic_to_shared(smem);
}

static __device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

static __device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], SharedAddress row) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
}

// 16 bytes from global to shared memory; num_bytes 0: zeros, gmem is not read.
static __device__ __forceinline__ void cp_async_16(void* smem, const void* gmem, int num_bytes) {
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;"
                 :
                 : "r"(shared_address(smem)), "l"(gmem), "r"(num_bytes)
                 : "memory");
}

// 4 bytes; 0: zero.
static __device__ __forceinline__ void cp_async_4(void* smem, const void* gmem, int num_bytes) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;"
                 :
                 : "r"(shared_address(smem)), "l"(gmem), "r"(num_bytes)
                 : "memory");
}

// All copies of this thread so far have arrived (those of others: after a barrier behind this).
static __device__ __forceinline__ void cp_async_wait_all() {
    asm volatile("cp.async.wait_all;" ::: "memory");
}

// 2^x, relative error 2^-22; -infinity gives 0.
static __device__ __forceinline__ float exp2_approx(float x) {
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

static __device__ __forceinline__ uint32_t pack_bf16(float low, float high) {
    const __nv_bfloat162 pair = __floats2bfloat162_rn(low, high);
    return *reinterpret_cast<const uint32_t*>(&pair);
}

static __device__ __forceinline__ char* dynamic_shared() {
    extern __shared__ __align__(128) char dynamic_shared_memory[];
    return dynamic_shared_memory;
}
