/*
tile.h -- products of small tiles in the first- and second-level cache, the building block of attention.

    c (m, n)  =  or  +=  a (m, k) b (k, n)

b and c are row-major with rows padded to TILE_LANES floats (n is rounded up; the padding is computed but
unused). a is read with two strides, so a transposed a costs nothing. Each value of c is the sum over k in
ascending order for any shape: results do not depend on how rows are grouped.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>

enum {
    TILE = 64,        // tokens on a side of an attention tile
    TILE_LANES = 16,  // padding of rows, in floats
};

static inline int tile_round_up(int n) {
    return (n + TILE_LANES - 1) / TILE_LANES * TILE_LANES;
}

// Work that a tile on the diagonal (causal mask) can skip.
typedef enum {
    TILE_DENSE,
    TILE_C_UPPER,  // only c (i, j) with j >= i is needed; others are undefined
    TILE_A_LOWER,  // a (i, k) = 0 for k > i; such a are not read beyond the row's block of TILE_ROWS
    TILE_A_UPPER,  // a (i, k) = 0 for k < i; likewise
} TileShape;

enum { TILE_ROWS = 6 };  // rows of c held in registers at a time

void tile_product(float* c, size_t c_stride, const float* a, size_t a_row_stride, size_t a_col_stride,
                  const float* b, size_t b_stride, int m, int n, int k, bool add, TileShape shape);

// First column of c that TILE_C_UPPER writes in row i.
static inline int tile_upper_begin(int i) {
    return i / TILE_ROWS * TILE_ROWS / TILE_LANES * TILE_LANES;
}

// Prefetches rows: those of one head are too far apart for the hardware prefetcher.
static inline void tile_prefetch(const float* rows, size_t stride, int num_rows, int C) {
    for (int t = 0; t < num_rows; t++) {
        for (int c = 0; c < C; c += TILE_LANES) { __builtin_prefetch(rows + (size_t)t * stride + c); }
    }
}

// out (C, out_stride) = scale * transpose of inp (num_rows, C); columns num_rows .. round_up(num_rows) are 0.
void tile_transpose(float* out, size_t out_stride, const float* inp, size_t inp_stride, int num_rows, int C,
                    float scale);
// out (n, m) = transpose of inp (m, n) + bias (m) in each row; bias may be NULL. Nothing is padded.
void tile_transpose_back(float* out, size_t out_stride, const float* inp, size_t inp_stride, int m, int n,
                         const float* bias);
// out (num_rows, round_up(C)) = scale * inp (num_rows, C), padded with 0.
void tile_pack(float* out, const float* inp, size_t inp_stride, int num_rows, int C, float scale);
