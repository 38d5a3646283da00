/*
tile.c -- the register kernel of tile.h: TILE_ROWS x PANEL_VECTORS accumulators, one broadcast and a few
multiply-adds per value of a (the scheme of Goto, van de Geijn 2008, without packing: tiles are small).
*/
#include "tile.h"

#if defined(__AVX512F__)
enum { VECTOR = 16, PANEL_VECTORS = 4 };  // 24 accumulators of 32 registers
#elif defined(__AVX__)
enum { VECTOR = 8, PANEL_VECTORS = 2 };  // 12 of 16
#else
enum { VECTOR = 4, PANEL_VECTORS = 2 };
#endif

typedef float Vector __attribute__((vector_size(VECTOR * sizeof(float)), aligned(4), may_alias));
typedef float Quad __attribute__((vector_size(16), aligned(4), may_alias));

typedef struct {
    float* c;
    const float *a, *b;
    size_t c_stride, a_row_stride, a_col_stride, b_stride;
    int k;
    bool add;
} Block;

// rows and vectors are constants after inlining, so acc stays in registers.
static inline __attribute__((always_inline)) void block_product(const Block* x, const int rows,
                                                                const int vectors) {
    Vector acc[TILE_ROWS][PANEL_VECTORS];
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vectors; j++) {
            acc[i][j] = x->add ? *(const Vector*)(x->c + (size_t)i * x->c_stride + j * VECTOR) : (Vector){0};
        }
    }
    const float *a = x->a, *b = x->b;
    for (int k = 0; k < x->k; k++, a += x->a_col_stride, b += x->b_stride) {
        Vector row[PANEL_VECTORS];
        for (int j = 0; j < vectors; j++) { row[j] = *(const Vector*)(b + j * VECTOR); }
        for (int i = 0; i < rows; i++) {
            const float value = a[(size_t)i * x->a_row_stride];
            for (int j = 0; j < vectors; j++) { acc[i][j] += value * row[j]; }
        }
    }
    for (int i = 0; i < rows; i++) {
        for (int j = 0; j < vectors; j++) {
            *(Vector*)(x->c + (size_t)i * x->c_stride + j * VECTOR) = acc[i][j];
        }
    }
}

#if defined(__AVX512F__)
#define WITH_VECTORS(rows)                         \
    switch (vectors) {                             \
        case 1: block_product(x, rows, 1); break;  \
        case 2: block_product(x, rows, 2); break;  \
        case 3: block_product(x, rows, 3); break;  \
        default: block_product(x, rows, 4); break; \
    }
#else
#define WITH_VECTORS(rows)                         \
    switch (vectors) {                             \
        case 1: block_product(x, rows, 1); break;  \
        default: block_product(x, rows, 2); break; \
    }
#endif

static void block_product_any(const Block* x, int rows, int vectors) {
    switch (rows) {
        case 1: WITH_VECTORS(1); break;
        case 2: WITH_VECTORS(2); break;
        case 3: WITH_VECTORS(3); break;
        case 4: WITH_VECTORS(4); break;
        case 5: WITH_VECTORS(5); break;
        default: WITH_VECTORS(6); break;
    }
}

static int min_int(int a, int b) {
    return a < b ? a : b;
}

void tile_product(float* c, size_t c_stride, const float* a, size_t a_row_stride, size_t a_col_stride,
                  const float* b, size_t b_stride, int m, int n, int k, bool add, TileShape shape) {
    const int n_end = tile_round_up(n), panel = VECTOR * PANEL_VECTORS;
    for (int i = 0; i < m; i += TILE_ROWS) {
        const int n_begin = shape == TILE_C_UPPER ? tile_upper_begin(i) : 0;
        const int k_begin = shape == TILE_A_UPPER ? min_int(i, k) : 0;
        const int k_end = shape == TILE_A_LOWER ? min_int(i + TILE_ROWS, k) : k;
        for (int j = n_begin; j < n_end; j += panel) {
            const Block x = {.c = c + (size_t)i * c_stride + (size_t)j,
                             .a = a + (size_t)i * a_row_stride + (size_t)k_begin * a_col_stride,
                             .b = b + (size_t)k_begin * b_stride + (size_t)j,
                             .c_stride = c_stride,
                             .a_row_stride = a_row_stride,
                             .a_col_stride = a_col_stride,
                             .b_stride = b_stride,
                             .k = k_end - k_begin,
                             .add = add};
            block_product_any(&x, min_int(TILE_ROWS, m - i), min_int(panel, n_end - j) / VECTOR);
        }
    }
}

// Four by four values: two rounds of pairwise interleaving.
static inline void transpose_quads(float* out, size_t out_stride, const float* inp, size_t inp_stride,
                                   float scale, Quad shift) {
    Quad r[4];
    for (int i = 0; i < 4; i++) { r[i] = *(const Quad*)(inp + (size_t)i * inp_stride) * scale; }
    const Quad a = __builtin_shufflevector(r[0], r[1], 0, 4, 1, 5);
    const Quad b = __builtin_shufflevector(r[2], r[3], 0, 4, 1, 5);
    const Quad c = __builtin_shufflevector(r[0], r[1], 2, 6, 3, 7);
    const Quad d = __builtin_shufflevector(r[2], r[3], 2, 6, 3, 7);
    *(Quad*)(out + 0 * out_stride) = __builtin_shufflevector(a, b, 0, 1, 4, 5) + shift;
    *(Quad*)(out + 1 * out_stride) = __builtin_shufflevector(a, b, 2, 3, 6, 7) + shift;
    *(Quad*)(out + 2 * out_stride) = __builtin_shufflevector(c, d, 0, 1, 4, 5) + shift;
    *(Quad*)(out + 3 * out_stride) = __builtin_shufflevector(c, d, 2, 3, 6, 7) + shift;
}

void tile_transpose(float* out, size_t out_stride, const float* inp, size_t inp_stride, int num_rows, int C,
                    float scale) {
    const int whole_rows = num_rows / 4 * 4, whole_columns = C / 4 * 4, end = tile_round_up(num_rows);
    for (int t = 0; t < whole_rows; t += 4) {
        for (int c = 0; c < whole_columns; c += 4) {
            transpose_quads(out + (size_t)c * out_stride + t, out_stride, inp + (size_t)t * inp_stride + c,
                            inp_stride, scale, (Quad){0});
        }
    }
    for (int c = 0; c < C; c++) {
        for (int t = c < whole_columns ? whole_rows : 0; t < end; t++) {
            out[(size_t)c * out_stride + t] = t < num_rows ? inp[(size_t)t * inp_stride + c] * scale : 0.0f;
        }
    }
}

void tile_transpose_back(float* out, size_t out_stride, const float* inp, size_t inp_stride, int m, int n,
                         const float* bias) {
    const int whole_m = m / 4 * 4, whole_n = n / 4 * 4;
    for (int i = 0; i < whole_m; i += 4) {
        const Quad shift = bias != NULL ? *(const Quad*)(bias + i) : (Quad){0};
        for (int j = 0; j < whole_n; j += 4) {
            transpose_quads(out + (size_t)j * out_stride + i, out_stride, inp + (size_t)i * inp_stride + j,
                            inp_stride, 1.0f, shift);
        }
    }
    for (int j = 0; j < n; j++) {
        for (int i = j < whole_n ? whole_m : 0; i < m; i++) {
            out[(size_t)j * out_stride + i] =
                inp[(size_t)i * inp_stride + j] + (bias != NULL ? bias[i] : 0.0f);
        }
    }
}

void tile_pack(float* out, const float* inp, size_t inp_stride, int num_rows, int C, float scale) {
    const size_t out_stride = (size_t)tile_round_up(C);
    for (int t = 0; t < num_rows; t++) {
        const float* x = inp + (size_t)t * inp_stride;
        float* y = out + (size_t)t * out_stride;
#pragma omp simd
        for (int c = 0; c < C; c++) { y[c] = x[c] * scale; }
        for (size_t c = (size_t)C; c < out_stride; c++) { y[c] = 0.0f; }
    }
}
