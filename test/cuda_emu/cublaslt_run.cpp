// cublaslt_run.cpp -- the product on OpenBLAS, in float32, and its epilogues.
#include "cublaslt.h"

#include <cblas.h>
#include <cmath>
#include <cstring>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "runtime.h"

namespace emu {

size_t type_bytes(int type) {
    switch (type) {
        case CUDA_R_32F: return 4;
        case CUDA_R_16BF:
        case CUDA_R_16F: return 2;
        default: return 0;
    }
}

static float load(const void* data, size_t i, int type) {
    switch (type) {
        case CUDA_R_16BF: return __bfloat162float(((const __nv_bfloat16*)data)[i]);
        case CUDA_R_16F: return __half2float(((const __half*)data)[i]);
        default: return ((const float*)data)[i];
    }
}

static void store(void* data, size_t i, int type, float value) {
    switch (type) {
        case CUDA_R_16BF: ((__nv_bfloat16*)data)[i] = __float2bfloat16_rn(value); break;
        case CUDA_R_16F: ((__half*)data)[i] = __float2half_rn(value); break;
        default: ((float*)data)[i] = value; break;
    }
}

// TF32 keeps 10 bits behind the point (round to nearest, ties away).
static float round_tf32(float value) {
    uint32_t bits;
    memcpy(&bits, &value, 4);
    if ((bits & 0x7f800000) != 0x7f800000) { bits = (bits + 0x1000) & ~0x1fffu; }
    memcpy(&value, &bits, 4);
    return value;
}

// A batch's matrix as packed floats.
static std::vector<float> read_matrix(const void* data, const MatrixLayout& layout, int batch, bool tf32) {
    std::vector<float> values(layout.rows * layout.columns);
    const char* begin =
        (const char*)data + (size_t)batch * (size_t)layout.batch_stride * type_bytes(layout.type);
    for (size_t j = 0; j < layout.columns; j++) {
        float* column = values.data() + j * layout.rows;
        if (layout.type == CUDA_R_32F) {
            memcpy(column, begin + j * (size_t)layout.ld * 4, layout.rows * 4);
        } else {
            for (size_t i = 0; i < layout.rows; i++) {
                column[i] = load(begin, j * (size_t)layout.ld + i, layout.type);
            }
        }
    }
    if (tf32) {
        for (float& value : values) { value = round_tf32(value); }
    }
    return values;
}

// GELU, tanh approximation (Hendrycks, Gimpel 2016), and its derivative.
static constexpr float GELU_SCALE = 0.7978845608f, GELU_CUBE = 0.044715f;
static float gelu(float x) {
    return 0.5f * x * (1.0f + tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x)));
}
static float gelu_derivative(float x) {
    const float t = tanhf(GELU_SCALE * (x + GELU_CUBE * x * x * x));
    return 0.5f * (1.0f + t) + 0.5f * x * (1.0f - t * t) * GELU_SCALE * (1.0f + 3.0f * GELU_CUBE * x * x);
}

// bias[i] = sums of op(A)'s rows (bgrad_a) or op(B)'s columns, over k.
static void sum_over_k(const Matmul& call, const std::vector<float>& values, size_t rows, size_t num_sums,
                       bool along_rows) {
    const size_t k = call.k();
    const int type = call.about.bias_type >= 0 ? call.about.bias_type : call.d.type;
    for (size_t i = 0; i < num_sums; i++) {
        float sum = 0.0f;
        for (size_t q = 0; q < k; q++) { sum += along_rows ? values[i * rows + q] : values[q * rows + i]; }
        store(call.about.bias, i, type, sum);
    }
}

static void run_batch(const Matmul& call, int batch) {
    const MatmulDesc& about = call.about;
    const Epilogue parts = epilogue_parts(about.epilogue);
    const bool tf32 = about.compute == CUBLAS_COMPUTE_32F_FAST_TF32 && call.a.type == CUDA_R_32F;
    const size_t m = call.m(), n = call.n(), k = call.k();
    const std::vector<float> a = read_matrix(call.a_data, call.a, batch, tf32),
                             b = read_matrix(call.b_data, call.b, batch, tf32);
    std::vector<float> product(m * n, 0.0f);
    const bool ta = about.transa != CUBLAS_OP_N, tb = about.transb != CUBLAS_OP_N;
    cblas_sgemm(CblasColMajor, ta ? CblasTrans : CblasNoTrans, tb ? CblasTrans : CblasNoTrans, (int)m, (int)n,
                (int)k, call.alpha, a.data(), (int)call.a.rows, b.data(), (int)call.b.rows, 0.0f,
                product.data(), (int)m);

    const int d_type = call.d.type;
    const int bias_type = about.bias_type >= 0 ? about.bias_type : d_type,
              aux_type = about.aux_type >= 0 ? about.aux_type : d_type;
    char* d = (char*)call.d_data + (size_t)batch * (size_t)call.d.batch_stride * type_bytes(d_type);
    const char* c =
        (const char*)call.c_data + (size_t)batch * (size_t)call.c.batch_stride * type_bytes(call.c.type);
    std::vector<float> row_sums(parts.bgrad_d ? m : 0, 0.0f);
    for (size_t j = 0; j < n; j++) {
        for (size_t i = 0; i < m; i++) {
            const size_t in_aux = j * (size_t)about.aux_ld + i;
            float value = product[j * m + i];
            if (call.beta != 0.0f) { value += call.beta * load(c, j * (size_t)call.c.ld + i, call.c.type); }
            if (parts.bias) { value += load(about.bias, i, bias_type); }
            if (parts.aux_out) { store(about.aux, in_aux, aux_type, value); }
            if (parts.gelu) { value = gelu(value); }
            if (parts.dgelu) { value *= gelu_derivative(load(about.aux, in_aux, aux_type)); }
            if (parts.bgrad_d) { row_sums[i] += value; }
            store(d, j * (size_t)call.d.ld + i, d_type, value);
        }
    }
    for (size_t i = 0; i < row_sums.size(); i++) { store(about.bias, i, bias_type, row_sums[i]); }
    if (parts.bgrad_a) { sum_over_k(call, a, call.a.rows, m, ta); }
    if (parts.bgrad_b) { sum_over_k(call, b, call.b.rows, n, !tb); }
}

void matmul_run(const Matmul& call) {
    if (call.workspace_bytes > 0) {
        memset(call.workspace, 0xff, call.workspace_bytes);
    }  // it is ours until we end
    for (int batch = 0; batch < call.d.num_batches; batch++) { run_batch(call, batch); }
}

}  // namespace emu
