/*
values.cu -- floatX to float32 on the device, for small tables that kernels read as floats. One value a
thread.
*/
#include "launch.cuh"

constexpr int VALUES_THREADS = 256;

__global__ static void __launch_bounds__(VALUES_THREADS)
    values_to_floats_kernel(float* out, const floatX* inp, size_t num_values) {
    const size_t i = (size_t)blockIdx.x * VALUES_THREADS + threadIdx.x;
    if (i < num_values) { out[i] = (float)inp[i]; }
}

void values_to_floats(float* out, const floatX* inp, size_t num_values, OpsContext* ops) {
    if (num_values == 0) { return; }
    values_to_floats_kernel<<<blocks_for(num_values, VALUES_THREADS), VALUES_THREADS, 0, ops->stream>>>(
        out, inp, num_values);
    CHECK_LAUNCH();
}
