/*
argmax.cu -- the largest logit of each row and where it is, for generation: of a whole row, or of a share of
the vocabulary.

A block per row; of equal values the first counts, in whatever order they meet.
*/
#include "launch.cuh"

constexpr int ARGMAX_THREADS = 512;

typedef struct {
    float value;
    int32_t idx;
} Largest;

static __device__ __forceinline__ Largest larger(Largest a, Largest b) {
    return b.value > a.value || (b.value == a.value && b.idx < a.idx) ? b : a;
}

static __device__ __forceinline__ Largest warp_largest(Largest mine) {
    for (int lanes = WARP_THREADS / 2; lanes > 0; lanes /= 2) {
        const Largest other = {__shfl_xor_sync(0xffffffffu, mine.value, lanes),
                               __shfl_xor_sync(0xffffffffu, mine.idx, lanes)};
        mine = larger(mine, other);
    }
    return mine;
}

// Of the first V of each row's num_columns values: the largest, and begin + its index; where nothing is above
// -inf, the last index.
__global__ static void __launch_bounds__(ARGMAX_THREADS)
    argmax_kernel(float* values, int32_t* ids, const floatX* logits, int begin, int V, int num_columns) {
    __shared__ Largest of_warps[WARP_THREADS];
    const floatX* row = logits + (size_t)blockIdx.x * (size_t)num_columns;
    Largest mine = {-INFINITY, V - 1};
    for (int v = (int)threadIdx.x; v < V; v += (int)blockDim.x) {
        mine = larger(mine, Largest{(float)row[v], v});
    }
    mine = warp_largest(mine);
    if (warp_lane() == 0) { of_warps[warp_idx()] = mine; }
    __syncthreads();
    if (warp_idx() > 0) { return; }
    const bool is_warp = warp_lane() < (int)blockDim.x / WARP_THREADS;
    mine = warp_largest(is_warp ? of_warps[warp_lane()] : Largest{-INFINITY, V - 1});
    if (warp_lane() > 0) { return; }
    values[blockIdx.x] = mine.value;
    ids[blockIdx.x] = begin + mine.idx;
}

// values NULL: nobody wants them.
static void download_largest(float* values, int32_t* ids, const floatX* logits, int num_rows, int begin,
                             int V, int num_columns, OpsContext* ops) {
    constexpr int MAX_ROWS = OPS_PARTIAL_FLOATS / 2;
    for (int first = 0; first < num_rows; first += MAX_ROWS) {  // once
        const int num = min_int(num_rows - first, MAX_ROWS);
        float* found_values = ops->partials;
        int32_t* found_ids = (int32_t*)(ops->partials + MAX_ROWS);
        argmax_kernel<<<(unsigned)num, ARGMAX_THREADS, 0, ops->stream>>>(
            found_values, found_ids, logits + (size_t)first * (size_t)num_columns, begin, V, num_columns);
        CHECK_LAUNCH();
        ops_download(ops, ids + first, found_ids, (size_t)num * sizeof *ids);
        if (values == NULL) { continue; }
        ops_download(ops, values + first, found_values, (size_t)num * sizeof *values);
    }
}

void argmax_rows(int32_t* out, const floatX* logits, int num_rows, int V, int Vp, OpsContext* ops) {
    download_largest(NULL, out, logits, num_rows, 0, V, Vp, ops);
}

void argmax_share(float* values, int32_t* ids, const floatX* logits, int num_rows, int begin, int V, int Vs,
                  OpsContext* ops) {
    if (V > 0) { return download_largest(values, ids, logits, num_rows, begin, V, Vs, ops); }
    for (int row = 0; row < num_rows; row++) {
        values[row] = -INFINITY;
        ids[row] = begin;
    }
}
