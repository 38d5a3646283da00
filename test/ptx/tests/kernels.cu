// kernels.cu -- warps, barriers, launches and the instructions of tensor cores, against plain loops on the
// host.
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <stdint.h>
#include <stdlib.h>

#include "../../../llmc/cuda/tensor_core.cuh"
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

static void the_device_is_as_large_as_asked(void) {
    const char* asked = getenv("EMU_SMS");
    int num_sms = 0;
    CHECK_EQ(cudaDeviceGetAttribute(&num_sms, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    CHECK_EQ(num_sms, asked != nullptr ? atoi(asked) : 4);
}

// --- tensor cores ---------------------------------------------------------------------------------
// out (16 x 8) = 1 + a (16 x 16) b (16 x 8): a by cp.async and ldmatrix, b row-major (.trans) and
// column-major; zeros behind it.
__global__ static void tensor_product(float* out, const __nv_bfloat16* a, const __nv_bfloat16* b,
                                      float* differs) {
    __shared__ __align__(16) __nv_bfloat16 a_tile[16 * 16], b_tile[32 * 8], b_columns[8 * 32];
    const int lane = (int)threadIdx.x;
    cp_async_16(&a_tile[lane * 8], &a[lane * 8], 16);
    cp_async_16(&b_tile[lane * 8], &b[lane * 8], lane < 16 ? 16 : 0);
    for (int i = lane; i < 256; i += 32) {
        b_columns[i % 8 * 32 + i / 8] = i < 128 ? b[i] : __float2bfloat16(0.0f);
    }
    cp_async_wait_all();
    __syncwarp();
    uint32_t ra[4], rows[4], columns[4];
    ldmatrix_x4(ra, shared_address(&a_tile[lane % 16 * 16 + lane / 16 * 8]));
    ldmatrix_x4_trans(rows, shared_address(&b_tile[lane * 8]));
    ldmatrix_x4(columns, shared_address(&b_columns[lane % 8 * 32 + lane / 8 * 8]));
    for (int i = 0; i < 4; i++) {
        differs[lane * 4 + i] = (float)(rows[i] != columns[i] || (i >= 2 && rows[i] != 0));
    }
    float sum[4] = {1.0f, 1.0f, 1.0f, 1.0f};
    mma_bf16(sum, ra, rows[0], rows[1]);
    for (int i = 0; i < 4; i++) { out[(lane / 4 + 8 * (i / 2)) * 8 + 2 * (lane % 4) + i % 2] = sum[i]; }
}

static void tensor_cores_multiply(void) {
    __nv_bfloat16 *a = shared_array<__nv_bfloat16>(256), *b = shared_array<__nv_bfloat16>(128);
    float *out = shared_array<float>(128), *differs = shared_array<float>(128);
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
    for (int i = 0; i < 128; i++) { CHECK_EQ((int)differs[i], 0); }
}

int main(void) {
    RUN(blocks_sum_in_shared_memory);
    RUN(every_thread_of_every_block_runs_once);
    RUN(lanes_exchange_values);
    RUN(shared_memory_has_its_limits);
    RUN(the_device_is_as_large_as_asked);
    RUN(tensor_cores_multiply);
    return test_end();
}
