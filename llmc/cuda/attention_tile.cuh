/*
attention_tile.cuh -- tiles in shared memory and products of tiles on tensor cores, for attention in bf16.

A tile has rows of D bf16 in chunks of 16 bytes. Chunk c of row r lies at place c ^ f(r) of the row: the 8
rows that one ldmatrix phase reads then lie in 8 different groups of 4 banks, and so do 8 chunks of a row. A
warp has MT x 16 rows of the products; f32 accumulators of a product are the A fragments of the next one.
*/
#pragma once

#include "attention.cuh"

// Bytes from the tile's start to chunk `chunk` (8 values) of row `row`.
template <int D> static __device__ __forceinline__ int tile_at(int row, int chunk) {
    constexpr int chunks = D / 8;
    static_assert(chunks % 4 == 0, "");
    const int turn = chunks % 8 == 0 ? row & 7 : (row >> 1) & 3;
    return (row * chunks + (chunk ^ turn)) * 16;
}

// Rows 0 .. ROWS - 1 of `from` (head size HS, row to row `stride` values), asynchronously; zeros beyond
// num_rows, HS. `width` threads share a row, each with the same chunk of every width: what differs from copy
// to copy are constants and the row's address.
template <int D, int ROWS, int THREADS>
static __device__ __forceinline__ void tile_load(char* tile, const floatX* from, int stride, int num_rows,
                                                 int HS) {
    constexpr int chunks = D / 8, width = chunks & -chunks, step = THREADS / width;  // rows of one copy
    static_assert(ROWS % step == 0);
    const int row = (int)(threadIdx.x / width), chunk = (int)(threadIdx.x % width);
    const floatX* at = from + (size_t)row * (size_t)stride + chunk * 8;
    char* to = tile + tile_at<D>(row, chunk);
#pragma unroll
    for (int c = 0; c < chunks; c += width) {
        const int num_left = (c + chunk) * 8 < HS ? num_rows - row : 0;
#pragma unroll
        for (int r = 0; r < ROWS; r += step) {
            // the row's turn of chunks comes again after 8 rows
            char* place = step % 8 == 0 ? to + (r * chunks + c) * 16 : tile + tile_at<D>(row + r, chunk + c);
            cp_async_16(place, at + (size_t)r * (size_t)stride + c * 8, r < num_left ? 16 : 0);
        }
    }
}

// Address of chunk 2 k + c of a row (c 0 or 1, k constant) from that of chunk c: the row's turn is of the
// lowest bits, which tiles at multiples of 128 bytes leave to it, so a constant is flipped there and another
// added. One address a lane is all that a product keeps, then; one a chunk, kept from step to step, took too
// many registers.
template <int D> static __device__ __forceinline__ SharedAddress tile_further(SharedAddress at, int k) {
    constexpr int turning = D / 8 % 8 == 0 ? 4 : 2;  // pairs of chunks
    return (at ^ (SharedAddress)(k % turning * 32)) + (SharedAddress)(k / turning * turning * 32);
}

// This lane's address for A fragments of rows row0 .. row0 + 15; also for B fragments by ldmatrix_x4_trans.
template <int D> static __device__ __forceinline__ SharedAddress lane_of_a(const char* tile, int row0) {
    const int lane = (int)threadIdx.x % 32;
    return shared_address(tile + tile_at<D>(row0 + lane % 16, lane / 16));
}

// A fragments of MT x 16 rows by D: kept in registers, or read again for every product.
template <int D, int MT, bool IN_REGISTERS> struct RowFragments {
    SharedAddress at;  // lane_of_a()
    uint32_t kept[IN_REGISTERS ? D / 16 : 1][MT][4];

    __device__ __forceinline__ void load() {
        if constexpr (IN_REGISTERS) {
#pragma unroll
            for (int k = 0; k < D / 16; k++) {
#pragma unroll
                for (int m = 0; m < MT; m++) { read(kept[k][m], m, k); }
            }
        }
    }
    __device__ __forceinline__ void get(uint32_t (&a)[MT][4], int k) const {
#pragma unroll
        for (int m = 0; m < MT; m++) {
            if constexpr (IN_REGISTERS) {
#pragma unroll
                for (int i = 0; i < 4; i++) { a[m][i] = kept[k][m][i]; }
            } else {
                read(a[m], m, k);
            }
        }
    }
    __device__ __forceinline__ void read(uint32_t (&a)[4], int m, int k) const {
        ldmatrix_x4(a, tile_further<D>(at, k) + m * 16 * D * 2);
    }
};

// c (16 MT, N) = rows x (rows row0 .. row0 + N - 1 of tile b)^T
template <int D, int MT, int N, bool IN_REGISTERS>
static __device__ __forceinline__ void product_transposed(float (&c)[MT][N / 8][4],
                                                          const RowFragments<D, MT, IN_REGISTERS>& rows,
                                                          const char* b, int row0) {
    const int lane = (int)threadIdx.x % 32;
    const SharedAddress at = shared_address(b + tile_at<D>(row0 + lane % 8 + lane / 16 * 8, lane / 8 % 2));
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < N / 8; n++) { c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0.0f; }
    }
#pragma unroll IN_REGISTERS ? D / 16 : 2  // 4 at once spill in attention_dkv.cu
    for (int k = 0; k < D / 16; k++) {
        uint32_t a[MT][4];
        rows.get(a, k);
#pragma unroll
        for (int n = 0; n < N / 16; n++) {
            uint32_t r[4];
            ldmatrix_x4(r, tile_further<D>(at, k) + n * 16 * D * 2);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_bf16(c[m][2 * n], a[m], r[0], r[1]);
                mma_bf16(c[m][2 * n + 1], a[m], r[2], r[3]);
            }
        }
    }
}

// c (16 MT, D) += p (16 MT, K), rounded to bf16, x rows row0 .. row0 + K - 1 of tile b
template <int D, int MT, int K>
static __device__ __forceinline__ void product_add(float (&c)[MT][D / 8][4], const float (&p)[MT][K / 8][4],
                                                   const char* b, int row0) {
    const SharedAddress at = lane_of_a<D>(b, row0);
#pragma unroll
    for (int k = 0; k < K / 16; k++) {
        uint32_t a[MT][4];
#pragma unroll
        for (int m = 0; m < MT; m++) {
            a[m][0] = pack_bf16(p[m][2 * k][0], p[m][2 * k][1]);
            a[m][1] = pack_bf16(p[m][2 * k][2], p[m][2 * k][3]);
            a[m][2] = pack_bf16(p[m][2 * k + 1][0], p[m][2 * k + 1][1]);
            a[m][3] = pack_bf16(p[m][2 * k + 1][2], p[m][2 * k + 1][3]);
        }
#pragma unroll
        for (int n = 0; n < D / 16; n++) {
            uint32_t r[4];
            ldmatrix_x4_trans(r, tile_further<D>(at, n) + k * 16 * D * 2);
#pragma unroll
            for (int m = 0; m < MT; m++) {
                mma_bf16(c[m][2 * n], a[m], r[0], r[1]);
                mma_bf16(c[m][2 * n + 1], a[m], r[2], r[3]);
            }
        }
    }
}

template <int D, int MT> static __device__ __forceinline__ void accumulators_zero(float (&c)[MT][D / 8][4]) {
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < D / 8; n++) { c[m][n][0] = c[m][n][1] = c[m][n][2] = c[m][n][3] = 0.0f; }
    }
}

// Accumulators of scores with keys k0 .. of this lane's queries: those beyond num_k or in the future are
// -infinity.
template <int MT, int N>
static __device__ __forceinline__ void mask_scores(float (&s)[MT][N / 8][4], int row0, int k0, int num_k,
                                                   int causal) {
    const int g = (int)threadIdx.x % 32 / 4, t = (int)threadIdx.x % 4;
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < N / 8; n++) {
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const int key = k0 + 8 * n + 2 * t + i % 2, row = row0 + 16 * m + g + 8 * (i / 2);
                if (key >= num_k || (causal && key > row)) { s[m][n][i] = -INFINITY; }
            }
        }
    }
}

// c (16 MT, D), row r times factor[m][r / 8], to rows [from_row, num_rows) of `to`, in whole chunks through
// rows row0 .. of a tile that only this warp still uses.
template <int D, int MT>
static __device__ __forceinline__ void
accumulators_store(floatX* to, int stride, int num_rows, int HS, char* tile, int row0,
                   const float (&c)[MT][D / 8][4], const float (&factor)[MT][2], int from_row = 0) {
    const int lane = (int)threadIdx.x % 32;
    __syncwarp();
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int n = 0; n < D / 8; n++) {
#pragma unroll
            for (int half = 0; half < 2; half++) {
                const int row = row0 + 16 * m + 8 * half + lane / 4;
                *reinterpret_cast<uint32_t*>(tile + tile_at<D>(row, n) + lane % 4 * 4) =
                    pack_bf16(c[m][n][2 * half] * factor[m][half], c[m][n][2 * half + 1] * factor[m][half]);
            }
        }
    }
    __syncwarp();
    constexpr int chunks = D / 8;
    for (int i = lane; i < 16 * MT * chunks; i += 32) {
        const int row = i / chunks, chunk = i % chunks;
        if (row >= from_row && row < num_rows && chunk * 8 < HS) {
            *reinterpret_cast<uint4*>(to + (size_t)row * (size_t)stride + chunk * 8) =
                *reinterpret_cast<const uint4*>(tile + tile_at<D>(row0 + row, chunk));
        }
    }
}

// --- dropout -----------------------------------------------------------------------------------------------
// The keys of N key tokens from `token` (of all) on, asynchronously; 0 beyond num_tokens.
template <int N, int THREADS>
static __device__ __forceinline__ void load_k_keys(uint32_t* to, const AttentionCall& x, int token,
                                                   int num_tokens) {
    static_assert(N <= THREADS);
    const int i = (int)threadIdx.x;
    if (i < N) { cp_async_4(to + i, x.about.k_keys + token + i, i < num_tokens ? 4 : 0); }
}

// Hashes of this lane's rows of 16 MT queries, from query `first` of the sequence on.
template <int MT>
static __device__ __forceinline__ void load_drop_rows(uint32_t (&rows)[MT][2], const AttentionCall& x,
                                                      const AttentionPlace& place, int first) {
#pragma unroll
    for (int m = 0; m < MT; m++) {
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const int i = first + 16 * m + 8 * half + (int)threadIdx.x % 32 / 4;
            rows[m][half] = i < place.num_q ? drop_row(x, place.q_begin + i, place.h) : 0;
        }
    }
}

// Shared memory that a block of any card from sm_80 on can have (8.6, 8.9 and 12.0 have no more); the
// kernels' tiles stay within, so that one shape serves all cards.
enum { SHARED_BYTES_OF_ALL_CARDS = 99 << 10 };

// launch<D>(call, ops), D the head size padded: what the kernels are compiled for.
#define ATTENTION_BY_HEAD_SIZE(HS, launch, call, ops) \
    ((HS) <= 32    ? launch<32>(call, ops)            \
     : (HS) <= 64  ? launch<64>(call, ops)            \
     : (HS) <= 96  ? launch<96>(call, ops)            \
     : (HS) <= 128 ? launch<128>(call, ops)           \
     : (HS) <= 192 ? launch<192>(call, ops)           \
                   : launch<256>(call, ops))
