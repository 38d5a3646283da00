/*
embedding.cu -- sum of token and position embedding; backward adds rows where tokens repeat, in a fixed order.

Backward sorts the numbers of the tokens by id (embedding_sort.cu: linear, stable), so that what goes to one
row of wte lies together, oldest first. Chunks of that order are summed side by side:

    chunk 0: a a a b | chunk 1: b b b b | chunk 2: b c c d
                       head               head

A run that begins in a chunk is added to the gradient there; what a chunk has of a run that began before is a
head, kept in partials,
and a second kernel adds the heads of a run, in order, to the row that the chunk where it began has written.
No row is written by two threads, no float is added atomically. The same for positions and wpe.
*/
#include "embedding_sort.h"
#include "launch.cuh"

constexpr int EMBED_THREADS = 256, EMBED_WARPS = EMBED_THREADS / WARP_THREADS, EMBED_UNROLL = 4;
constexpr int CHUNK_TOKENS_MIN = 32, NUM_TABLES = SORT_TABLES;  // wte, wpe

// --- forward: a warp per token -----------------------------------------------------------------------------
template <int N, bool POSITIONS>
__global__ static void __launch_bounds__(EMBED_THREADS)
    embedding_forward_kernel(floatX* out, const int32_t* tokens, const int32_t* positions, const floatX* wte,
                             const floatX* wpe, int T, int C) {
    const int t = (int)blockIdx.x * EMBED_WARPS + warp_idx();
    if (t >= T) { return; }
    const floatX *a = wte + (size_t)tokens[t] * (size_t)C,
                 *b = POSITIONS ? wpe + (size_t)positions[t] * (size_t)C : NULL;
    floatX* o = out + (size_t)t * (size_t)C;
#pragma unroll 4
    for (int c = warp_lane() * N; c < C; c += WARP_THREADS * N) {
        Floats<N> sum = load_floats<N, LOAD_READ_ONLY>(a + c);
        if (POSITIONS) {
            const Floats<N> other = load_floats<N, LOAD_READ_ONLY>(b + c);
#pragma unroll
            for (int i = 0; i < N; i++) { sum[i] += other[i]; }
        }
        store_floats(o + c, sum);
    }
}

template <int N, bool POSITIONS>
static void launch_forward(floatX* out, const int32_t* tokens, const int32_t* positions, const floatX* wte,
                           const floatX* wpe, int T, int C, OpsContext* ops) {
    embedding_forward_kernel<N, POSITIONS>
        <<<blocks_for((size_t)T, EMBED_WARPS), EMBED_THREADS, 0, ops->stream>>>(out, tokens, positions, wte,
                                                                                wpe, T, C);
    CHECK_LAUNCH();
}

void embedding_forward(floatX* out, const int32_t* tokens, const int32_t* positions, const floatX* wte,
                       const floatX* wpe, int T, int C, OpsContext* ops) {
    if (T == 0) { return; }
    const bool whole = vectors_fit(C, out, wte, wpe);
    const auto launch = wpe != NULL
                            ? (whole ? launch_forward<FLOATX_PER_LOAD, true> : launch_forward<1, true>)
                            : (whole ? launch_forward<FLOATX_PER_LOAD, false> : launch_forward<1, false>);
    launch(out, tokens, positions, wte, wpe, T, C, ops);
}

// --- backward ----------------------------------------------------------------------------------------------
typedef struct {
    int num_tables;                    // 1: no positions
    float* grads[NUM_TABLES];          // dwte, dwpe
    const int32_t* ids[NUM_TABLES];    // (T) tokens, positions
    const int32_t* order[NUM_TABLES];  // (T) numbers of tokens, by id and then as they come
    float* heads;                      // (num_tables, num_chunks, C)
    const floatX* dout;                // (T, C)
    int T, C, chunk_tokens, num_chunks;
} EmbeddingSums;

// Chosen, not indexed: an index would put the kernel's parameters into local memory.
template <class Pointer>
static __device__ __forceinline__ Pointer of_table(const Pointer (&tables)[NUM_TABLES]) {
    return blockIdx.z == 0 ? tables[0] : tables[1];
}

template <int N> static __device__ __forceinline__ void add_to(float* to, const Floats<N>& sum) {
    Floats<N> now = load_vec<N>(to);
#pragma unroll
    for (int i = 0; i < N; i++) { now[i] += sum[i]; }
    store_vec(to, now);
}

// A warp: one chunk, WARP_THREADS * N columns, one table.
template <int N>
__global__ static void __launch_bounds__(EMBED_THREADS) sum_chunks_kernel(EmbeddingSums about) {
    const int chunk = (int)blockIdx.x * EMBED_WARPS + warp_idx(), table = (int)blockIdx.z, C = about.C;
    const int c = ((int)blockIdx.y * WARP_THREADS + warp_lane()) * N;
    if (chunk >= about.num_chunks || c >= C) { return; }
    const int begin = chunk * about.chunk_tokens;
    const int end = begin + about.chunk_tokens < about.T ? begin + about.chunk_tokens : about.T;
    const int32_t *order = of_table(about.order), *ids = of_table(about.ids);
    float *grads = of_table(about.grads) + c,
          *head = about.heads + ((size_t)table * about.num_chunks + chunk) * C + c;
    int32_t run = ids[order[begin]];
    bool is_head = begin > 0 && ids[order[begin - 1]] == run;
    Floats<N> sum = floats_of<N>(0.0f);
    for (int j0 = begin; j0 < end; j0 += EMBED_UNROLL) {
        int32_t id[EMBED_UNROLL];
        Vec<floatX, N> row[EMBED_UNROLL];
#pragma unroll
        for (int k = 0; k < EMBED_UNROLL; k++) {
            if (j0 + k >= end) { continue; }
            const int32_t t = order[j0 + k];
            id[k] = ids[t];
            row[k] = load_vec<N, LOAD_ONCE>(about.dout + (size_t)t * (size_t)C + c);
        }
#pragma unroll
        for (int k = 0; k < EMBED_UNROLL; k++) {
            if (j0 + k >= end) { continue; }
            if (id[k] != run) {
                if (is_head) {
                    store_vec(head, sum);
                } else {
                    add_to(grads + (size_t)run * (size_t)C, sum);
                }
                run = id[k];
                is_head = false;
                sum = floats_of<N>(0.0f);
            }
            const Floats<N> d = to_floats(row[k]);
#pragma unroll
            for (int i = 0; i < N; i++) { sum[i] += d[i]; }
        }
    }
    if (is_head) {
        store_vec(head, sum);
    } else {
        add_to(grads + (size_t)run * (size_t)C, sum);
    }
}

// The warp of the first chunk that has a head of a run adds up all heads of this run.
template <int N>
__global__ static void __launch_bounds__(EMBED_THREADS) add_heads_kernel(EmbeddingSums about) {
    const int chunk = (int)blockIdx.x * EMBED_WARPS + warp_idx(), table = (int)blockIdx.z, C = about.C;
    const int c = ((int)blockIdx.y * WARP_THREADS + warp_lane()) * N;
    if (chunk == 0 || chunk >= about.num_chunks || c >= C) { return; }
    const int32_t *order = of_table(about.order), *ids = of_table(about.ids);
    const int begin = chunk * about.chunk_tokens;
    const int32_t run = ids[order[begin]];
    if (ids[order[begin - 1]] != run) { return; }  // no head
    if (chunk > 1 && ids[order[begin - about.chunk_tokens - 1]] == run) {
        return;
    }  // an earlier chunk has one, too
    const float* head = about.heads + ((size_t)table * about.num_chunks + chunk) * C + c;
    Floats<N> sum = load_vec<N, LOAD_ONCE>(head);
    // the next chunk's first token is of this run where the run fills this chunk: its order is sorted
#pragma unroll 4
    for (int next = begin + about.chunk_tokens; next < about.T && ids[order[next]] == run;
         next += about.chunk_tokens) {
        head += C;
        const Floats<N> more = load_vec<N, LOAD_ONCE>(head);
#pragma unroll
        for (int i = 0; i < N; i++) { sum[i] += more[i]; }
    }
    add_to(of_table(about.grads) + (size_t)run * (size_t)C + c, sum);
}

template <int N> static void launch_sums(const EmbeddingSums* about, OpsContext* ops) {
    const dim3 grid(blocks_for((size_t)about->num_chunks, EMBED_WARPS),
                    blocks_for((size_t)about->C, WARP_THREADS * N), (unsigned)about->num_tables);
    sum_chunks_kernel<N><<<grid, EMBED_THREADS, 0, ops->stream>>>(*about);
    CHECK_LAUNCH();
    if (about->num_chunks == 1) { return; }
    add_heads_kernel<N><<<grid, EMBED_THREADS, 0, ops->stream>>>(*about);
    CHECK_LAUNCH();
}

size_t embedding_backward_scratch_bytes(int T, int C, const OpsContext* ops) {
    (void)C, (void)ops;
    return embedding_sort_bytes(T);
}

void embedding_backward(float* dwte, float* dwpe, void* scratch, const floatX* dout, const int32_t* tokens,
                        const int32_t* positions, int T, int C, OpsContext* ops) {
    if (T == 0) { return; }
    const int num_tables = dwpe != NULL ? NUM_TABLES : 1;
    EmbeddingSums about = {
        num_tables, {dwte, dwpe}, {tokens, positions}, {NULL, NULL}, ops->partials, dout, T, C, 0, 0};
    embedding_sort(about.order, about.ids, num_tables, scratch, T, ops);
    const int max_chunks = OPS_PARTIAL_FLOATS / (num_tables * C);
    const int tokens_at_least = (T + max_chunks - 1) / max_chunks;
    about.chunk_tokens = tokens_at_least > CHUNK_TOKENS_MIN ? tokens_at_least : CHUNK_TOKENS_MIN;
    about.num_chunks = (T + about.chunk_tokens - 1) / about.chunk_tokens;
    if (vectors_fit(C, dout, dwte, dwpe, ops->partials)) {
        launch_sums<FLOATX_PER_LOAD>(&about, ops);
    } else {
        launch_sums<1>(&about, ops);
    }
}
