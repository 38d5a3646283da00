/*
dropout.cu -- dropout (Srivastava et al. 2014) of rows, by bits that depend on nothing but a token's key, the
place in the model and the column (../dropout_bits.h): nothing is kept for backward.

Some 10 instructions of the integer units a value: counted, not measured, 1.5e12 values a second on an H200,
whose memory reads and writes 1.1e12.
*/
#include "../dropout_bits.h"
#include "launch.cuh"

constexpr int DROPOUT_THREADS = 256;

typedef struct {
    floatX* out;
    const floatX* inp;  // may be out
    const uint32_t* keys;
    uint32_t place, threshold;  // bits below it fall
    float scale;                // of what stays
    unsigned num_vectors, C;    // of all rows; values of a row
} Dropout;

// A thread's vector: N values of one row.
template <int N> __global__ static void dropout_kernel(Dropout about) {
    const unsigned i = blockIdx.x * DROPOUT_THREADS + threadIdx.x, row_vectors = about.C / N;
    if (i >= about.num_vectors) { return; }
    const unsigned t = i / row_vectors, c = (i - t * row_vectors) * N;
    Floats<N> x = load_floats<N>(about.inp + (size_t)i * N);
    const uint32_t row = dropout_row(__ldg(about.keys + t), about.place);
#pragma unroll
    for (int j = 0; j < N; j++) {
        x[j] = dropout_bits(row, c + (unsigned)j) < about.threshold ? 0.0f : x[j] * about.scale;
    }
    store_floats(about.out + (size_t)i * N, x);
}

template <int N> static void dropout_launch(Dropout about, int T, OpsContext* ops) {
    const size_t num_vectors = (size_t)T * (about.C / N);
    about.num_vectors = (unsigned)num_vectors;
    dropout_kernel<N><<<blocks_for(num_vectors, DROPOUT_THREADS), DROPOUT_THREADS, 0, ops->stream>>>(about);
    CHECK_LAUNCH();
}

void dropout_apply(floatX* out, const floatX* inp, const uint32_t* keys, uint32_t place, float p, int T,
                   int C, OpsContext* ops) {
    if (T == 0) { return; }
    if (p == 0.0f) {
        if (out != inp) { ops_copy(ops, out, inp, (size_t)T * (size_t)C * sizeof *out); }
        return;
    }
    const Dropout about = {out, inp, keys, place, dropout_threshold(p), 1.0f / (1.0f - p), 0, (unsigned)C};
    if (vectors_fit(C, out, inp)) {
        dropout_launch<FLOATX_PER_LOAD>(about, T, ops);
    } else {
        dropout_launch<1>(about, T, ops);
    }
}
