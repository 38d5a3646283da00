/*
philox.cuh -- random bits from a counter: Philox4x32-10 (Salmon, Moraes, Dror, Shaw 2011, "Parallel random
numbers: as easy as 1, 2, 3", section 5.3). No state: the same counter and key give the same 4 x 32 bits on
any thread.
*/
#pragma once

#include <stdint.h>

static __device__ __forceinline__ uint4 philox4x32(uint4 counter, uint2 key) {
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)0xd2511f53u * counter.x, b = (uint64_t)0xcd9e8d57u * counter.z;
        counter = make_uint4((unsigned)(b >> 32) ^ counter.y ^ key.x, (unsigned)b,
                             (unsigned)(a >> 32) ^ counter.w ^ key.y, (unsigned)a);
        key.x += 0x9e3779b9u;
        key.y += 0xbb67ae85u;
    }
    return counter;
}
