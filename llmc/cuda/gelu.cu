// gelu.cu -- GELU, tanh approximation (Hendrycks, Gimpel 2016, section 2).
#include "context.h"

__global__ static void gelu_forward_kernel(floatX* out, const floatX* inp, size_t n) {
    size_t i = (size_t)blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= n) { return; }
    float x = (float)inp[i];
    out[i] = (floatX)(x / (1.0f + __expf(-1.5957691216f * x * (1.0f + 0.044715f * x * x))));
}

void gelu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops) {
    gelu_forward_kernel<<<(unsigned)((num_values + 255) / 256), 256, 0, ops->stream>>>(out, inp, num_values);
}
