/*
norm_backward.cu -- the last sum of the norms' gradients: of what each block has left in ops->partials.
*/
#include "norm_backward.cuh"

constexpr int SUM_COLUMNS = 32, SUM_SLICES = 16;

// first, second (C) += column sums of partials (num_blocks, width), width C (first alone) or 2 C: SUM_SLICES
// of the blocks side by side.
__global__ static void __launch_bounds__(SUM_COLUMNS* SUM_SLICES)
    sum_partials_kernel(float* first, float* second, const float* partials, int num_blocks, int C,
                        int width) {
    __shared__ float slices[SUM_SLICES][SUM_COLUMNS];
    const int column = (int)threadIdx.x % SUM_COLUMNS, slice = (int)threadIdx.x / SUM_COLUMNS;
    const int c = (int)blockIdx.x * SUM_COLUMNS + column;
    float sum = 0.0f;
    if (c < width) {
#pragma unroll 8
        for (int b = slice; b < num_blocks; b += SUM_SLICES) {
            sum += partials[(size_t)b * (size_t)width + c];
        }
    }
    slices[slice][column] = sum;
    __syncthreads();
    if (slice != 0 || c >= width) { return; }
    for (int s = 1; s < SUM_SLICES; s++) { sum += slices[s][column]; }
    float* to = c < C ? first + c : second + (c - C);
    *to += sum;
}

void norm_sum_partials(float* first, float* second, int num_blocks, int C, OpsContext* ops) {
    const int width = second != NULL ? 2 * C : C;
    sum_partials_kernel<<<blocks_for((size_t)width, SUM_COLUMNS), SUM_COLUMNS * SUM_SLICES, 0, ops->stream>>>(
        first, second, ops->partials, num_blocks, C, width);
    CHECK_LAUNCH();
}
