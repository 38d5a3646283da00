// kernels.cu -- the kernel language and the tensor-core instructions, against plain loops on the host.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdlib.h>

#include "../../test.h"

// Memory that both sides can read: pinned.
template <class T> static T* shared_array(size_t num_values) {
    void* memory = nullptr;
    CHECK_EQ(cudaMallocHost(&memory, num_values * sizeof(T)), cudaSuccess);
    return (T*)memory;
}

// --- threads, barriers -----------------------------------------------------------------------
template <int THREADS> __global__ static void block_sums(float* sums, const float* values, int n) {
    __shared__ float part[THREADS];
    float sum = 0.0f;
    for (int i = (int)threadIdx.x; i < n; i += THREADS) { sum += values[(int)blockIdx.x * n + i]; }
    part[threadIdx.x] = sum;
#pragma unroll
    for (int half = THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) { part[threadIdx.x] += part[threadIdx.x + half]; }
    }
    if (threadIdx.x == 0) { sums[blockIdx.x] = part[0]; }
}

static void blocks_sum_in_shared_memory(void) {
    enum { BLOCKS = 5, N = 700 };
    float *values = shared_array<float>(BLOCKS * N), *sums = shared_array<float>(3 * BLOCKS);
    for (int i = 0; i < BLOCKS * N; i++) { values[i] = (float)(i % 17 - 5); }
    block_sums<32><<<BLOCKS, 32>>>(sums, values, N);
    block_sums<256><<<BLOCKS, 256>>>(sums + BLOCKS, values, N);
    block_sums<1024><<<dim3(BLOCKS), dim3(1024), 0, 0>>>(sums + 2 * BLOCKS,  // comments may stand here
                                                         values, N);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int b = 0; b < BLOCKS; b++) {
        float sum = 0.0f;
        for (int i = 0; i < N; i++) { sum += values[b * N + i]; }
        for (int k = 0; k < 3; k++) { CHECK_EQ((int)sums[k * BLOCKS + b], (int)sum); }
    }
}

__global__ static void indices(int* seen, int* count, dim3 grid) {
    const int block = (int)((blockIdx.z * grid.y + blockIdx.y) * grid.x + blockIdx.x);
    const int thread = (int)((threadIdx.z * blockDim.y + threadIdx.y) * blockDim.x + threadIdx.x);
    atomicAdd(&seen[block * 60 + thread], 1);
    const int num_even = __syncthreads_count(thread % 2 == 0);
    if (num_even == 30 && __syncthreads_or(thread == 59) && !__syncthreads_and(thread != 3)) {
        atomicAdd(count, 1);
    }
}

static void every_thread_of_every_block_runs_once(void) {
    int *seen = shared_array<int>(24 * 60), *count = shared_array<int>(1);
    memset(seen, 0, 24 * 60 * sizeof(int));
    *count = 0;
    const dim3 grid(4, 3, 2), block(5, 4, 3);
    indices<<<grid, block>>>(seen, count, grid);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 24 * 60; i++) { CHECK_EQ(seen[i], 1); }
    CHECK_EQ(*count, 24 * 60);
}

// --- warps -------------------------------------------------------------------------------------
__global__ static void shuffles(int* out) {
    const int lane = (int)threadIdx.x;
    int* mine = out + lane * 8;
    mine[0] = __shfl_sync(~0u, lane * 10, 5);
    mine[1] = __shfl_sync(~0u, lane * 10, 3, 8);
    mine[2] = __shfl_xor_sync(~0u, lane * 10, 9);
    mine[3] = __shfl_down_sync(~0u, lane * 10, 3, 16);
    mine[4] = __shfl_up_sync(~0u, lane * 10, 2);
    mine[5] = (int)__ballot_sync(~0u, lane % 3 == 0);
    mine[6] = lane < 16 ? (int)__ballot_sync(0x0000ffff, lane % 2) : __reduce_add_sync(0xffff0000, lane);
    const double wide = __shfl_xor_sync(~0u, lane + 0.5, 1);
    mine[7] = __any_sync(~0u, lane == 31) + 2 * __all_sync(~0u, lane < 31) + 4 * (wide == (lane ^ 1) + 0.5);
}

static void lanes_exchange_values(void) {
    int* out = shared_array<int>(32 * 8);
    shuffles<<<1, 32>>>(out);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int lane = 0; lane < 32; lane++) {
        const int* mine = out + lane * 8;
        CHECK_EQ(mine[0], 50);
        CHECK_EQ(mine[1], 10 * (lane / 8 * 8 + 3));
        CHECK_EQ(mine[2], 10 * (lane ^ 9));
        CHECK_EQ(mine[3], lane % 16 + 3 < 16 ? 10 * (lane + 3) : 10 * lane);
        CHECK_EQ(mine[4], lane >= 2 ? 10 * (lane - 2) : 10 * lane);
        CHECK_EQ(mine[5], 0x49249249);
        CHECK_EQ(mine[6], lane < 16 ? 0xaaaa : 16 * 47 / 2);
        CHECK_EQ(mine[7], 1 + 4);
    }
}

// --- what a launch may ask for ------------------------------------------------------------------
template <class T> __global__ static void reverse(T* values, int n) {
    extern __shared__ __align__(16) unsigned char bytes[];
    T* copy = reinterpret_cast<T*>(bytes);
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) { copy[i] = values[i]; }
    __syncthreads();
    for (int i = (int)threadIdx.x; i < n; i += (int)blockDim.x) { values[i] = copy[n - 1 - i]; }
}

static void shared_memory_has_its_limits(void) {
    const int n = 25000;
    const size_t num_bytes = n * sizeof(float);
    float* values = shared_array<float>(n);
    for (int i = 0; i < n; i++) { values[i] = (float)i; }
    reverse<float><<<1, 100, num_bytes>>>(values, n);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    int num_blocks = -1;
    CHECK_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&num_blocks, reverse<float>, 100, num_bytes),
             cudaSuccess);
    CHECK_EQ(num_blocks, 0);
    CHECK_EQ(cudaFuncSetAttribute(reverse<float>, cudaFuncAttributeMaxDynamicSharedMemorySize, 227 << 10),
             cudaSuccess);
    CHECK_EQ(
        cudaFuncSetAttribute(reverse<float>, cudaFuncAttributeMaxDynamicSharedMemorySize, (227 << 10) + 1),
        cudaErrorInvalidValue);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidValue);
    CHECK_EQ(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&num_blocks, reverse<float>, 100, num_bytes),
             cudaSuccess);
    CHECK_EQ(num_blocks, 2);
    reverse<float><<<1, 100, num_bytes>>>(values, n);
    reverse<<<1, 64, 400>>>(values, 100);  // the template's argument is deduced
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < n; i++) { CHECK_EQ((int)values[i], i < 100 ? n - 100 + i : n - 1 - i); }
    reverse<float><<<1, 1025>>>(values, n);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
    reverse<float><<<0, 32>>>(values, n);
    CHECK_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
    CHECK_EQ(cudaGetLastError(), cudaSuccess);
}

__global__ static void never_written(float* out) {
    extern __shared__ float dynamic[];
    __shared__ float fixed[4];
    out[threadIdx.x] = threadIdx.x < 4 ? fixed[threadIdx.x] : dynamic[threadIdx.x];
    __syncthreads();
    fixed[threadIdx.x % 4] = dynamic[threadIdx.x] = 1.0f;  // the next block must not see it
}

static void shared_memory_starts_as_nan(void) {
    float* out = shared_array<float>(8);
    never_written<<<3, 8, 8 * sizeof(float)>>>(out);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 8; i++) { CHECK(out[i] != out[i]); }
}

// A program of C++17 may have a lerp, and a device as many multiprocessors as the run says.
__device__ static float lerp(float a, float b, float weight) {
    return b + weight * (a - b);
}
__global__ static void mix(float* out) {
    out[threadIdx.x] = lerp((float)threadIdx.x, 8.0f, 0.5f);
}
static void programs_have_their_own_names(void) {
    float* out = shared_array<float>(8);
    mix<<<1, 8>>>(out);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int i = 0; i < 8; i++) { CHECK_EQ((int)(2 * out[i]), i + 8); }
}
static void the_device_is_as_large_as_asked(void) {
    const char* asked = getenv("EMU_SMS");
    int num_sms = 0;
    CHECK_EQ(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    CHECK_EQ(num_sms, asked != nullptr ? atoi(asked) : 4);
}

// --- tensor cores ---------------------------------------------------------------------------------
// out (16 x 8) = a (16 x 16) b (16 x 8): a by cp.async and ldmatrix, b row-major (.trans) and column-major.
__global__ static void tensor_product(float* out, const __nv_bfloat16* a, const __nv_bfloat16* b,
                                      float* differs) {
    __shared__ __align__(16) __nv_bfloat16 a_tile[16 * 16], b_tile[16 * 8], b_columns[8 * 16];
    const int lane = (int)threadIdx.x;
    emu::cp_async_16(&a_tile[lane * 8], &a[lane * 8], 16);
    emu::cp_async_commit();
    for (int i = lane; i < 128; i += 32) {
        b_tile[i] = b[i];
        b_columns[i % 8 * 16 + i / 8] = b[i];
    }
    emu::cp_async_wait(0);
    __syncwarp();
    uint32_t ra[4], rb[2], rc[2], quad[4];
    emu::ldmatrix_x4(ra, &a_tile[lane % 16 * 16 + lane / 16 * 8]);
    emu::ldmatrix_x2_trans(rb, &b_tile[lane % 16 * 8]);
    emu::ldmatrix_x2(rc, &b_columns[lane % 8 * 16 + lane / 8 % 2 * 8]);
    emu::ldmatrix_x4_trans(quad, &b_tile[lane % 16 * 8]);  // lanes 16 .. 31 name the same rows again
    differs[lane] = rb[0] != rc[0] || rb[1] != rc[1] || quad[2] != rb[0] || quad[1] != rb[1];
    float sum[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    emu::mma_m16n8k16(sum, ra, rb, sum);
    for (int i = 0; i < 4; i++) { out[(lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2] = sum[i]; }
}

static void tensor_cores_multiply(void) {
    __nv_bfloat16 *a = shared_array<__nv_bfloat16>(256), *b = shared_array<__nv_bfloat16>(128);
    float *out = shared_array<float>(128), *differs = shared_array<float>(32);
    for (int i = 0; i < 256; i++) { a[i] = __float2bfloat16((float)(i * 37 % 19 - 9)); }
    for (int i = 0; i < 128; i++) { b[i] = __float2bfloat16((float)(i * 53 % 23 - 11)); }
    tensor_product<<<1, 32>>>(out, a, b, differs);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    for (int row = 0; row < 16; row++) {
        for (int column = 0; column < 8; column++) {
            float sum = 1.0f;
            for (int k = 0; k < 16; k++) {
                sum += __bfloat162float(a[row * 16 + k]) * __bfloat162float(b[k * 8 + column]);
            }
            CHECK_EQ((int)out[row * 8 + column], (int)sum);
        }
    }
    for (int lane = 0; lane < 32; lane++) { CHECK_EQ((int)differs[lane], 0); }
}

__global__ static void copy_groups(uint4* out, const uint4* in) {
    __shared__ uint4 tile[4];
    for (int i = 0; i < 3; i++) {
        emu::cp_async_16(&tile[i], &in[i], i == 2 ? 4 : 16);
        emu::cp_async_commit();
    }
    emu::cp_async_wait(2);
    out[0] = tile[0];
    out[1] = tile[1];  // still under way
    emu::cp_async_4(&tile[3].x, &in[1].y, 4);
    emu::cp_async_4(&tile[3].y, &in[1].z, 0);
    out[4] = tile[3];
    emu::cp_async_wait_all();
    out[2] = tile[1];
    out[3] = tile[2];
    out[5] = tile[3];
}

static void copies_are_pending_until_waited_for(void) {
    uint4 *in = shared_array<uint4>(3), *out = shared_array<uint4>(6);
    for (unsigned i = 0; i < 3; i++) { in[i] = make_uint4(4 * i, 4 * i + 1, 4 * i + 2, 4 * i + 3); }
    copy_groups<<<1, 1>>>(out, in);
    CHECK_EQ(cudaDeviceSynchronize(), cudaSuccess);
    CHECK_EQ(out[0].w, 3);
    CHECK_EQ(out[1].x, 0xffffffff);
    CHECK_EQ(out[2].y, 5);
    CHECK_EQ(out[3].x, 8);
    CHECK_EQ(out[3].y, 0);
    CHECK_EQ(out[4].x, 0xffffffff);
    CHECK_EQ(out[5].x, 5);
    CHECK_EQ(out[5].y, 0);
    CHECK_EQ(out[5].z, 0xffffffff);  // 4 bytes and no more
}

int main(void) {
    RUN(blocks_sum_in_shared_memory);
    RUN(every_thread_of_every_block_runs_once);
    RUN(lanes_exchange_values);
    RUN(shared_memory_has_its_limits);
    RUN(shared_memory_starts_as_nan);
    RUN(programs_have_their_own_names);
    RUN(the_device_is_as_large_as_asked);
    RUN(tensor_cores_multiply);
    RUN(copies_are_pending_until_waited_for);
    return test_end();
}
