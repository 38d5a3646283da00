/*
embedding_sort.cu -- a stable radix sort, least significant digit first (Knuth, The Art of Computer
Programming 3, section 5.2.5): three digits of 8 bits.

For each digit two kernels: blocks of consecutive tokens count their digits; then each block finds its places
from the counts of all blocks (at most 64), and moves. Integers only, so any order of execution gives the same
result. Time and scratch are linear in T.
*/
#include "embedding_sort.h"
#include "launch.cuh"

constexpr int SORT_THREADS = 256, SORT_WARPS = SORT_THREADS / WARP_THREADS, SORT_BITS = 8, SORT_PASSES = 3;
constexpr int SORT_DIGITS = 1 << SORT_BITS;  // = SORT_THREADS: a thread for each
constexpr int SORT_MAX_BLOCKS = 64, SORT_BLOCK_TOKENS = 1024;
static_assert(SORT_DIGITS == SORT_THREADS && OPS_MAX_IDS == 1 << SORT_BITS * SORT_PASSES);

typedef struct {
    const int32_t* ids[SORT_TABLES];   // (T)
    const int32_t* from[SORT_TABLES];  // (T) order so far; NULL: 0 .. T-1
    int32_t* to[SORT_TABLES];          // (T)
    int32_t* counts[SORT_TABLES];      // (num_blocks, SORT_DIGITS)
    int T, block_tokens, shift;
} SortPass;

// Chosen, not indexed: an index would put the kernel's parameters into local memory.
template <class Pointer>
static __device__ __forceinline__ Pointer of_table(const Pointer (&tables)[SORT_TABLES]) {
    return blockIdx.y == 0 ? tables[0] : tables[1];
}

static __device__ __forceinline__ int sort_digit(int32_t id, int shift) {
    return (int)((uint32_t)id >> shift) & (SORT_DIGITS - 1);
}

__global__ static void __launch_bounds__(SORT_THREADS) sort_count_kernel(SortPass pass) {
    __shared__ int32_t counts[SORT_DIGITS];
    const int begin = (int)blockIdx.x * pass.block_tokens;
    const int end = begin + pass.block_tokens < pass.T ? begin + pass.block_tokens : pass.T;
    const int32_t *ids = of_table(pass.ids), *from = of_table(pass.from);
    counts[threadIdx.x] = 0;
    __syncthreads();
    for (int j = begin + (int)threadIdx.x; j < end; j += SORT_THREADS) {
        atomicAdd(&counts[sort_digit(ids[from != NULL ? from[j] : j], pass.shift)], 1);
    }
    __syncthreads();
    of_table(pass.counts)[(size_t)blockIdx.x * SORT_DIGITS + threadIdx.x] = counts[threadIdx.x];
}

// Where this block's first token of digit threadIdx.x goes: behind all smaller digits, and behind the same
// digit of the blocks before.
static __device__ __forceinline__ int32_t sort_place(const int32_t* counts, int num_blocks, int32_t* shared) {
    const int digit = (int)threadIdx.x;
    int32_t before = 0, all = 0;
#pragma unroll 8
    for (int b = 0; b < num_blocks; b++) {
        const int32_t count = counts[b * SORT_DIGITS + digit];
        before += b < (int)blockIdx.x ? count : 0;
        all += count;
    }
    int32_t up_to = all;  // inclusive sum over the digits of a warp, then over warps
#pragma unroll
    for (int lanes = 1; lanes < WARP_THREADS; lanes *= 2) {
        const int32_t other = __shfl_up_sync(0xffffffffu, up_to, lanes);
        up_to += warp_lane() >= lanes ? other : 0;
    }
    if (warp_lane() == WARP_THREADS - 1) { shared[warp_idx()] = up_to; }
    __syncthreads();
    int32_t warps_before = 0;
    for (int w = 0; w < warp_idx(); w++) { warps_before += shared[w]; }
    return warps_before + up_to - all + before;
}

// Lanes of the warp with the same digit, of those that have a token.
static __device__ __forceinline__ unsigned sort_peers(int digit, bool live) {
    unsigned peers = __ballot_sync(0xffffffffu, live);
#pragma unroll
    for (int bit = 0; bit < SORT_BITS; bit++) {
        const bool set = (digit >> bit & 1) != 0;
        const unsigned have = __ballot_sync(0xffffffffu, set);
        peers &= set ? have : ~have;
    }
    return peers;
}

__global__ static void __launch_bounds__(SORT_THREADS) sort_move_kernel(SortPass pass) {
    __shared__ int32_t places[SORT_DIGITS], counts[SORT_WARPS][SORT_DIGITS], shared[SORT_WARPS];
    const int begin = (int)blockIdx.x * pass.block_tokens;
    const int end = begin + pass.block_tokens < pass.T ? begin + pass.block_tokens : pass.T;
    const int32_t *ids = of_table(pass.ids), *from = of_table(pass.from);
    places[threadIdx.x] = sort_place(of_table(pass.counts), (int)gridDim.x, shared);
    for (int w = 0; w < SORT_WARPS; w++) { counts[w][threadIdx.x] = 0; }
    __syncthreads();
    for (int j0 = begin; j0 < end; j0 += SORT_THREADS) {
        const int j = j0 + (int)threadIdx.x;
        const bool live = j < end;
        const int32_t t = !live ? 0 : from != NULL ? from[j] : j;
        const int digit = live ? sort_digit(ids[t], pass.shift) : 0;
        const unsigned peers = sort_peers(digit, live);
        const int rank = __popc(peers & ((1u << warp_lane()) - 1u));
        if (live && rank == 0) { counts[warp_idx()][digit] = __popc(peers); }
        __syncthreads();
        int32_t place = places[threadIdx.x];  // of digit threadIdx.x: counts become each warp's first place
        for (int w = 0; w < SORT_WARPS; w++) {
            const int32_t count = counts[w][threadIdx.x];
            counts[w][threadIdx.x] = place;
            place += count;
        }
        places[threadIdx.x] = place;
        __syncthreads();
        if (live) { of_table(pass.to)[counts[warp_idx()][digit] + rank] = t; }
        __syncthreads();
        for (int w = 0; w < SORT_WARPS; w++) { counts[w][threadIdx.x] = 0; }
        __syncthreads();
    }
}

// A table's two orders, to sort from one to the other, begin at multiples of this; then its counts.
static size_t order_bytes(int T) {
    return ((size_t)T * sizeof(int32_t) + 255) / 256 * 256;
}

static size_t table_bytes(int T) {
    return 2 * order_bytes(T) + (size_t)SORT_MAX_BLOCKS * SORT_DIGITS * sizeof(int32_t);
}

size_t embedding_sort_bytes(int T) {
    return SORT_TABLES * table_bytes(T);
}

void embedding_sort(const int32_t* order[SORT_TABLES], const int32_t* const ids[SORT_TABLES], int num_tables,
                    void* scratch, int T, OpsContext* ops) {
    const int most = (T + SORT_MAX_BLOCKS - 1) / SORT_MAX_BLOCKS;
    SortPass pass = {};
    pass.T = T;
    pass.block_tokens = most > SORT_BLOCK_TOKENS ? most : SORT_BLOCK_TOKENS;
    const dim3 grid(blocks_for((size_t)T, (size_t)pass.block_tokens), (unsigned)num_tables);
    for (int digit = 0; digit < SORT_PASSES; digit++) {
        pass.shift = digit * SORT_BITS;
        for (int i = 0; i < num_tables; i++) {
            char* own = (char*)scratch + (size_t)i * table_bytes(T);
            pass.ids[i] = ids[i];
            pass.from[i] = digit == 0 ? NULL : pass.to[i];
            pass.to[i] = (int32_t*)(own + (size_t)(digit % 2) * order_bytes(T));
            pass.counts[i] = (int32_t*)(own + 2 * order_bytes(T));
            order[i] = pass.to[i];
        }
        sort_count_kernel<<<grid, SORT_THREADS, 0, ops->stream>>>(pass);
        CHECK_LAUNCH();
        sort_move_kernel<<<grid, SORT_THREADS, 0, ops->stream>>>(pass);
        CHECK_LAUNCH();
    }
}
