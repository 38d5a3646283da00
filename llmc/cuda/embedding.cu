// embedding.cu -- embedding and its gradient, for which tokens are sorted by id.
#include "embedding_sort.h"
#include "launch.cuh"

// A stable radix sort, least significant digit first (Knuth, The Art of Computer
// Programming 3, section 5.2.5): three digits of 8 bits.
//
// For each digit two kernels: blocks of consecutive tokens count their digits; then each block finds its
// places from the counts of all blocks (at most 64), and moves. Integers only, so any order of execution
// gives the same result. Time and scratch are linear in T.

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

// --- embedding ---------------------------------------------------------------------------------------------
// Sum of token and position embedding; backward adds rows where tokens repeat, in a fixed order.
//
// Backward sorts the numbers of the tokens by id (above: linear, stable), so that what goes to
// one row of wte lies together, oldest first. Chunks of that order are summed side by side:
//
//     chunk 0: a a a b | chunk 1: b b b b | chunk 2: b c c d
//                        head               head
//
// A run that begins in a chunk is added to the gradient there; what a chunk has of a run that began before is
// a head, kept in partials, and a second kernel adds the heads of a run, in order, to the row that the chunk
// where it began has written. No row is written by two threads, no float is added atomically. The same for
// positions and wpe.

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
static __device__ __forceinline__ Pointer of_sums(const Pointer (&tables)[NUM_TABLES]) {
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
    const int32_t *order = of_sums(about.order), *ids = of_sums(about.ids);
    float *grads = of_sums(about.grads) + c,
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
    const int32_t *order = of_sums(about.order), *ids = of_sums(about.ids);
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
    add_to(of_sums(about.grads) + (size_t)run * (size_t)C + c, sum);
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
        launch_sums<16 / sizeof(float)>(&about, ops);  // wider ones of dout have float4s apart
    } else {
        launch_sums<1>(&about, ops);
    }
}
