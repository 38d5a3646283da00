// Laws of every operation but attention, on the CPU and (built with BACKEND=emu or cuda) on a GPU:
// ops_test.h. Below, each with its formula in double; then what those laws do not cover.
#include "ops_test.h"

#include "../llmc/dropout_bits.h"
#ifdef LLMC_CUDA
enum { ROUNDS = 2 };  // the emulator is slow
#include "../llmc/cuda/context.h"
#include "../llmc/cuda/embedding_sort.h"
#include "../llmc/cuda/matmul.h"
#else
enum { ROUNDS = 3 };
#include "../llmc/cpu/fast_math.h"
#endif

// --- embedding ---------------------------------------------------------------------------------------------
// One token; one id only; chunks of 32, full and not; several blocks of a sort; ids of three bytes; long
// runs; long rows.
static void embedding_shape(Case* c) {
    static const int chosen[][4] = {
        {5, 13, 7, 6},    {0, 8, 5, 5},        {1, 8, 3, 1},       {2, 9, 1, 1},      {33, 1032, 1, 33},
        {64, 264, 64, 2}, {3000, 8, 70000, 9}, {3000, 7, 2, 3000}, {1025, 8, 400, 1}, {97, 1032, 3, 97}};
    const int* s = chosen[c->i < 9 ? c->i + 1 : 1];
    c->T = s[0], c->C = s[1], c->OC = s[2], c->S = s[3];
    if (c->i >= 9) {
        c->T = between(1, 200), c->C = between(8, 300), c->OC = between(1, 700), c->S = between(1, 200);
    }
    if (c->i >= 9 && c->i % 2 == 0) { c->C = c->C / 8 * 8; }
    c->flag = c->i % 4 == 3;  // no positions
}

static void embedding_make(Case* c) {
    embedding_shape(c);
    out_x(c, (size_t)c->T * (size_t)c->C);
    in_i(c, (size_t)c->T, c->OC), in_i(c, (size_t)c->T, c->S);
    in_x(c, (size_t)c->OC * (size_t)c->C, 1.0), in_x(c, (size_t)c->S * (size_t)c->C, 1.0);
}
static void embedding_call(const Case* c, OpsContext* context) {
    embedding_forward(AX(0), AI(1), c->flag ? NULL : AI(2), AX(3), c->flag ? NULL : AX(4), c->T, c->C,
                      context);
}
static void embedding_reference(Case* c) {
    for (int t = 0; t < c->T; t++) {
        for (int k = 0; k < c->C; k++) {
            R(0)[t * c->C + k] = R(3)[INTS(1)[t] * c->C + k] + (c->flag ? 0.0 : R(4)[INTS(2)[t] * c->C + k]);
        }
    }
    c->a[0].tolerance = c->flag ? 0.0 : FLOATX_EPS;
}

// Every third case adds small integers, whose sums are exact: nothing is lost or counted twice.
static void dembedding_make(Case* c) {
    embedding_shape(c);
    both_f(c, (size_t)c->OC * (size_t)c->C), both_f(c, (size_t)c->S * (size_t)c->C);
    Array* dout = in_x(c, (size_t)c->T * (size_t)c->C, 1.0);
    in_i(c, (size_t)c->T, c->OC), in_i(c, (size_t)c->T, c->S);
    add_scratch(c, embedding_backward_scratch_bytes(c->T, c->C, ops));
    for (size_t i = 0; i < dout->n && c->i % 3 == 1; i++) { dout->host[i] = (float)between(-100, 100); }
    for (int k = 0; k < 2 && c->i % 3 == 1; k++) {
        for (size_t i = 0; i < c->a[k].n; i++) { c->a[k].host[i] = 0.5f; }
    }
}
static void dembedding_call(const Case* c, OpsContext* context) {
    embedding_backward(AF(0), c->flag ? NULL : AF(1), c->scratch, AX(2), AI(3), c->flag ? NULL : AI(4), c->T,
                       c->C, context);
}
static void dembedding_reference(Case* c) {
    for (int t = 0; t < c->T; t++) {
        for (int k = 0; k < c->C; k++) {
            R(0)[INTS(3)[t] * c->C + k] += R(2)[t * c->C + k];
            R(1)[INTS(4)[t] * c->C + k] += c->flag ? 0.0 : R(2)[t * c->C + k];
        }
    }
    const double tolerance = c->i % 3 == 1 ? 0.0 : FLOAT_EPS * (8 + 4 * sqrt((double)c->T));
    c->a[0].tolerance = c->a[1].tolerance = tolerance;
}

// --- norms -------------------------------------------------------------------------------------------------
// Every kernel of a GPU, in both precisions. A negative C is in units of what a warp has in vectors of 16
// bytes, not quite full. Each fourth case begins at any address (op_check_case).
static void norm_shape(Case* c) {
    static const int chosen[][2] = {{5, 13},   {0, 24},   {1, 9},   {2, 300},  {150, 96}, {5, -2},
                                    {2, -3},   {199, 24}, {2, -4},  {26, -6},  {2, -8},   {2, 264},
                                    {14, -12}, {2, -16},  {2, -24}, {6, 5575}, {199, 24}, {2, -32},
                                    {6, -48},  {64, 40},  {2, -64}, {1, -65}};
    const int num = sizeof chosen / sizeof *chosen, vector = 16 / (int)sizeof(floatX);
    c->T = between(1, 200), c->C = between(16, 300);
    if (c->i + 1 < num) { c->T = chosen[c->i + 1][0], c->C = chosen[c->i + 1][1]; }
    if (c->C < 0) { c->C = (-32 * c->C - 3) * vector; }
    c->scale = (float[]){1.0f, 0.03608439f, 1.0f, -2.5f}[(c->i + 4) % 4];  // 768^-1/2
    c->flag = c->i % 9 == 6;                                               // no gradient of the residual
}

// Roundings of float32 to a value of the outputs' size, then one to floatX; a sum is off by sqrt(C / lanes).
static double row_tolerance(void) {
    return FLOATX_EPS + 16 * FLOAT_EPS;
}
static double sum_tolerance(const Case* c) {
    return 4 * FLOAT_EPS * (4 + sqrt((double)c->C / 8));
}
static double weight_tolerance(const Case* c) {
    return FLOAT_EPS * (16 + 2 * sqrt((double)c->T));
}

static void add_mean(Array* a, float mean) {
    for (size_t i = 0; i < a->n; i++) { a->host[i] += mean; }
}

static double layernorm_eps(const Case* c) {
    return c->i % 3 == 0 ? 1e-2 : 1e-5;
}
static void norm_moments(double* mean, double* rstd, const double* x, int C, double eps) {
    double sum = 0.0, squares = 0.0;
    for (int k = 0; k < C; k++) { sum += x[k] / C; }
    for (int k = 0; k < C; k++) { squares += (x[k] - sum) * (x[k] - sum) / C; }
    *mean = sum, *rstd = 1.0 / sqrt(squares + eps);
}
static void layernorm_rows(Case* c, double* out, double* mean, double* rstd, const double* x, const double* w,
                           const double* b) {
    for (int t = 0; t < c->T; t++, x += c->C, out += c->C) {
        norm_moments(&mean[t], &rstd[t], x, c->C, layernorm_eps(c));
        for (int k = 0; k < c->C; k++) { out[k] = (x[k] - mean[t]) * rstd[t] * w[k] + b[k]; }
    }
}

static void layernorm_make(Case* c) {
    norm_shape(c);
    const size_t T = (size_t)c->T, C = (size_t)c->C;
    out_x(c, T * C), out_f(c, T), out_f(c, T);
    add_mean(in_x(c, T * C, 1.0), 3.0f);  // a variance by a difference of squares would show
    in_x(c, C, 1.0), in_x(c, C, 1.0);
}
static void layernorm_call(const Case* c, OpsContext* context) {
    layernorm_forward(AX(0), AF(1), AF(2), AX(3), AX(4), AX(5), (float)layernorm_eps(c), c->T, c->C, context);
}
static void layernorm_reference(Case* c) {
    layernorm_rows(c, R(0), R(1), R(2), R(3), R(4), R(5));
    c->a[1].tolerance = c->a[2].tolerance = sum_tolerance(c);
    c->a[1].cancelled = FLOAT_EPS;  // a mean near 0 of values near 1
    c->a[0].tolerance = row_tolerance() + 9 * sum_tolerance(c);
}

// The norm is of the sum as it is written: in bf16, rounded.
static void residual_layernorm_make(Case* c) {
    norm_shape(c);
    const size_t T = (size_t)c->T, C = (size_t)c->C;
    out_x(c, T * C), out_x(c, T * C), out_f(c, T), out_f(c, T);
    in_x(c, T * C, 1.0), in_x(c, T * C, 1.0), in_x(c, C, 1.0), in_x(c, C, 1.0);
}
static void residual_layernorm_call(const Case* c, OpsContext* context) {
    residual_layernorm_forward(AX(0), AX(1), AF(2), AF(3), AX(4), AX(5), AX(6), AX(7),
                               (float)layernorm_eps(c), c->T, c->C, context);
}
static void written_sum(double* out, const double* a, const double* b, size_t n) {
    for (size_t i = 0; i < n; i++) { out[i] = (double)as_x((double)((float)a[i] + (float)b[i])); }
}
static void residual_layernorm_reference(Case* c) {
    written_sum(R(0), R(4), R(5), c->a[0].n);
    layernorm_rows(c, R(1), R(2), R(3), R(0), R(6), R(7));
    c->a[2].tolerance = c->a[3].tolerance = sum_tolerance(c);
    c->a[2].cancelled = FLOAT_EPS;
    c->a[1].tolerance = row_tolerance() + sum_tolerance(c);
}

static void dlayernorm_make(Case* c) {
    norm_shape(c);
    const size_t T = (size_t)c->T, C = (size_t)c->C;
    out_x(c, T * C), both_f(c, C), both_f(c, C), in_x(c, T * C, 1.0), in_x(c, T * C, 1.0);
    Array* inp = in_x(c, T * C, 1.0);
    in_x(c, C, 1.0);
    Array *mean = in_f(c, T, 0), *rstd = in_f(c, T, 0);
    add_mean(inp, 0.5f);
    array_upload(inp);  // rounds
    for (size_t t = 0; t < T; t++) {
        for (size_t k = 0; k < C; k++) { inp->ref[k] = (double)inp->host[t * C + k]; }
        norm_moments(&mean->ref[t], &rstd->ref[t], inp->ref, (int)C, layernorm_eps(c));
        mean->host[t] = (float)mean->ref[t], rstd->host[t] = (float)rstd->ref[t];
    }
}
static void dlayernorm_call(const Case* c, OpsContext* context) {
    layernorm_backward(AX(0), AF(1), AF(2), c->flag ? NULL : AX(3), AX(4), AX(5), AX(6), AF(7), AF(8), c->T,
                       c->C, context);
}
static double dlayernorm_loss(Case* c) {
    double* out = must(malloc((c->a[0].n + 1) * sizeof *out));
    double* zeros = must(calloc((size_t)c->C + 1, sizeof *zeros));
    layernorm_rows(c, out, R(7), R(8), R(5), R(6), zeros);
    double loss = 0.0;
    for (size_t i = 0; i < c->a[0].n; i++) { loss += out[i] * R(4)[i] + (c->flag ? 0.0 : R(5)[i] * R(3)[i]); }
    free(out);
    free(zeros);
    return loss;
}
static void dlayernorm_reference(Case* c) {
    for (int t = 0; t < c->T; t++) {
        const double *x = R(5) + t * c->C, *d = R(4) + t * c->C;
        double mean, rstd, sum_g = 0.0, sum_gx = 0.0;
        norm_moments(&mean, &rstd, x, c->C, layernorm_eps(c));
        for (int k = 0; k < c->C; k++) {
            const double g = d[k] * R(6)[k], xhat = (x[k] - mean) * rstd;
            sum_g += g / c->C, sum_gx += g * xhat / c->C;
            R(1)[k] += d[k] * xhat, R(2)[k] += d[k];
        }
        for (int k = 0; k < c->C; k++) {
            R(0)
            [t * c->C + k] = rstd * (d[k] * R(6)[k] - sum_g - (x[k] - mean) * rstd * sum_gx) +
                             (c->flag ? 0.0 : R(3)[t * c->C + k]);
        }
    }
    c->a[0].tolerance = row_tolerance() + 2 * FLOAT_EPS * sqrt((double)c->C);
    c->a[1].tolerance = c->a[2].tolerance = weight_tolerance(c);
}

static float rms_eps(const Case* c) {
    return c->i % 2 == 0 ? 1e-6f : 1e-5f;
}
static void rms_rows(Case* c, double* out, double* rstd, const double* x, const double* w) {
    for (int t = 0; t < c->T; t++, x += c->C, out += c->C) {
        double squares = 0.0;
        for (int k = 0; k < c->C; k++) { squares += x[k] * x[k] / c->C; }
        rstd[t] = 1.0 / sqrt(squares + (double)rms_eps(c));
        for (int k = 0; k < c->C; k++) { out[k] = x[k] * rstd[t] * w[k] * (double)c->scale; }
    }
}
// Rows of all sizes, from far below the root of eps to large; one of zeros. Each has a unit of its own.
static Array* rms_input(Case* c) {
    Array* a = in_x(c, (size_t)c->T * (size_t)c->C, 1.0);
    static const float sizes[] = {1.0f, 1e-4f, 300.0f, 1.0f, 0.02f, 0.0f};
    for (size_t i = 0; i < a->n && c->i >= 0; i++) {
        a->host[i] = (a->host[i] + 0.5f) * sizes[i / (size_t)c->C % 6];
    }
    return a;
}

static void rmsnorm_make(Case* c) {
    norm_shape(c);
    out_x(c, (size_t)c->T * (size_t)c->C)->row = (size_t)c->C;
    out_f(c, (size_t)c->T)->row = 1;
    rms_input(c);
    in_x(c, (size_t)c->C, 1.0);
}
static void rmsnorm_call(const Case* c, OpsContext* context) {
    rmsnorm_forward(AX(0), AF(1), AX(2), AX(3), c->scale, rms_eps(c), c->T, c->C, context);
}
static void rmsnorm_reference(Case* c) {
    rms_rows(c, R(0), R(1), R(2), R(3));
    c->a[1].tolerance = sum_tolerance(c);
    c->a[0].tolerance = FLOATX_EPS + row_tolerance() + sum_tolerance(c);
}

static void residual_rmsnorm_make(Case* c) {
    norm_shape(c);
    const size_t T = (size_t)c->T, C = (size_t)c->C;
    out_x(c, T * C), out_x(c, T * C)->row = C, out_f(c, T);
    rms_input(c);
    in_x(c, T * C, 1.0), in_x(c, C, 1.0);
}
static void residual_rmsnorm_call(const Case* c, OpsContext* context) {
    residual_rmsnorm_forward(AX(0), AX(1), AF(2), AX(3), AX(4), AX(5), c->scale, rms_eps(c), c->T, c->C,
                             context);
}
static void residual_rmsnorm_reference(Case* c) {
    written_sum(R(0), R(3), R(4), c->a[0].n);
    rms_rows(c, R(1), R(2), R(0), R(5));
    c->a[2].tolerance = sum_tolerance(c);
    c->a[1].tolerance = FLOATX_EPS + row_tolerance() + sum_tolerance(c);
}

static void drmsnorm_make(Case* c) {
    norm_shape(c);
    const size_t T = (size_t)c->T, C = (size_t)c->C;
    out_x(c, T * C)->row = C, both_f(c, C), in_x(c, T * C, 1.0), in_x(c, T * C, 1.0);
    Array* inp = rms_input(c);
    in_x(c, C, 1.0);
    Array* rstd = in_f(c, T, 0);
    array_upload(inp);
    for (size_t t = 0; t < T; t++) {
        double squares = 0.0;
        for (size_t k = 0; k < C; k++) { squares += pow((double)inp->host[t * C + k], 2.0) / (double)C; }
        rstd->host[t] = (float)(1.0 / sqrt(squares + (double)rms_eps(c)));
    }
}
static void drmsnorm_call(const Case* c, OpsContext* context) {
    rmsnorm_backward(AX(0), AF(1), c->flag ? NULL : AX(2), AX(3), AX(4), AX(5), AF(6), c->scale, c->T, c->C,
                     context);
}
static double drmsnorm_loss(Case* c) {
    double *out = must(malloc((c->a[0].n + 1) * sizeof *out)), loss = 0.0;
    rms_rows(c, out, R(6), R(4), R(5));
    for (size_t i = 0; i < c->a[0].n; i++) { loss += out[i] * R(3)[i] + (c->flag ? 0.0 : R(4)[i] * R(2)[i]); }
    free(out);
    return loss;
}
static void drmsnorm_reference(Case* c) {
    for (int t = 0; t < c->T; t++) {
        const double *x = R(4) + t * c->C, *d = R(3) + t * c->C;
        double squares = 0.0, mean = 0.0;
        for (int k = 0; k < c->C; k++) { squares += x[k] * x[k] / c->C; }
        const double rstd = 1.0 / sqrt(squares + (double)rms_eps(c)), scale = (double)c->scale;
        for (int k = 0; k < c->C; k++) {
            R(1)[k] += d[k] * scale * x[k] * rstd;
            mean += d[k] * scale * R(5)[k] * x[k] * rstd / c->C;
        }
        for (int k = 0; k < c->C; k++) {
            R(0)
            [t * c->C + k] =
                rstd * (d[k] * scale * R(5)[k] - x[k] * rstd * mean) + (c->flag ? 0.0 : R(2)[t * c->C + k]);
        }
    }
    c->a[0].tolerance = row_tolerance() + 2 * FLOAT_EPS * sqrt((double)c->C);
    c->a[1].tolerance = weight_tolerance(c);
}

// --- matrix products ---------------------------------------------------------------------------------------
// Ragged ones, and of a real layer, where a library's own blocking starts and bias sums are cut into chunks.
static void matmul_shape(Case* c) {
    static const int chosen[][3] = {
        {5, 6, 7},
        {0, 8, 8},
        {257, 192, 320},
        {1, 768, 640},
        {130, 33, 1000},
        {17, 33, 1},
        {1, 1, 16},
        {2049, 8, 9},
        {3000, 8, 264}
#ifndef LLMC_CUDA
        ,
        {200, 5000, 48},
        {70, 17000, 8}  // more than the tiles of all threads
#endif
    };
    static const int tokens[] = {1, 2, 7, 16, 17, 33, 64, 65, 100, 127, 150};
    static const int channels[] = {8, 16, 24, 48, 64, 72, 96, 136, 200}, odd[] = {1, 3, 9, 20, 50, 65, 77};
    c->T = tokens[below(11)];
    c->C = below(3) == 0 ? odd[below(7)] : channels[below(9)];
    c->OC = below(3) == 0 ? odd[below(7)] : channels[below(9)];
    if (c->i + 1 < (int)(sizeof chosen / sizeof *chosen)) {
        c->T = chosen[c->i + 1][0], c->C = chosen[c->i + 1][1], c->OC = chosen[c->i + 1][2];
    }
#ifdef LLMC_CUDA
    if (matmul_restrictions(ops) & MATMUL_NO_LIBRARY) {  // tiles of 16 x 16: three are as good as many
        c->T = c->T < 40 ? c->T : 40, c->C = c->C < 50 ? c->C : 50, c->OC = c->OC < 44 ? c->OC : 44;
    }
#endif
    c->flag = c->i % 3 == 2;  // no bias
}

// A sum of `terms`, each rounded once, in units of its spread; few outputs may all be near zero.
static double product_tolerance(int terms, size_t num_outputs) {
    return FLOAT_EPS * 12 * sqrt(terms + 1.0) * (1.0 + 200.0 / (double)(num_outputs + 1));
}
static double rounded_tolerance(int terms, size_t num_outputs) {
    return 3 * FLOATX_EPS + product_tolerance(terms, num_outputs);
}

// out (M, N) += a (M, K) b^T, strides of rows and columns in b.
static void product(double* out, const double* a, const double* b, size_t M, size_t N, size_t K, size_t row,
                    size_t column) {
    for (size_t m = 0; m < M; m++) {
        for (size_t n = 0; n < N; n++) {
            double sum = 0.0;
            for (size_t k = 0; k < K; k++) { sum += a[m * K + k] * b[n * row + k * column]; }
            out[m * N + n] += sum;
        }
    }
}
static void linear(Case* c, double* out, const double* x, const double* w, const double* b) {
    for (size_t i = 0; i < (size_t)c->T * (size_t)c->OC; i++) {
        out[i] = b == NULL ? 0.0 : b[i % (size_t)c->OC];
    }
    product(out, x, w, (size_t)c->T, (size_t)c->OC, (size_t)c->C, (size_t)c->C, 1);
}

static void matmul_make(Case* c) {
    matmul_shape(c);
    const size_t T = (size_t)c->T, C = (size_t)c->C, OC = (size_t)c->OC;
    out_x(c, T * OC), in_x(c, T * C, 1.0), in_x(c, OC * C, 1.0), in_x(c, OC, 1.0);
}
static void matmul_call(const Case* c, OpsContext* context) {
    matmul_forward(AX(0), AX(1), AX(2), c->flag ? NULL : AX(3), c->T, c->C, c->OC, context);
}
static void matmul_reference(Case* c) {
    linear(c, R(0), R(1), R(2), c->flag ? NULL : R(3));
    c->a[0].tolerance = rounded_tolerance(c->C, c->a[0].n);
}

static void dmatmul_input_make(Case* c) {
    matmul_shape(c);
    const size_t T = (size_t)c->T, C = (size_t)c->C, OC = (size_t)c->OC;
    out_x(c, T * C), in_x(c, T * OC, 1.0), in_x(c, OC * C, 1.0);
}
static void dmatmul_input_call(const Case* c, OpsContext* context) {
    matmul_backward_input(AX(0), AX(1), AX(2), c->T, c->C, c->OC, context);
}
static void input_gradient(Case* c, double* dinp, const double* dout, const double* w) {
    for (int i = 0; i < c->T * c->C; i++) { dinp[i] = 0.0; }
    product(dinp, dout, w, (size_t)c->T, (size_t)c->C, (size_t)c->OC, 1, (size_t)c->C);
}
static void dmatmul_input_reference(Case* c) {
    input_gradient(c, R(0), R(1), R(2));
    c->a[0].tolerance = rounded_tolerance(c->OC, c->a[0].n);
}

static void dmatmul_weight_make(Case* c) {
    matmul_shape(c);
    const size_t T = (size_t)c->T, C = (size_t)c->C, OC = (size_t)c->OC;
    both_f(c, OC * C), both_f(c, OC), in_x(c, T * OC, 1.0), in_x(c, T * C, 1.0);
}
static void dmatmul_weight_call(const Case* c, OpsContext* context) {
    matmul_backward_weight(AF(0), c->flag ? NULL : AF(1), AX(2), AX(3), c->T, c->C, c->OC, context);
}
static void dmatmul_weight_reference(Case* c) {
    for (int t = 0; t < c->T; t++) {
        for (int o = 0; o < c->OC; o++) {
            const double g = R(2)[t * c->OC + o];
            R(1)[o] += c->flag ? 0.0 : g;
            for (int k = 0; k < c->C; k++) { R(0)[o * c->C + k] += g * R(3)[t * c->C + k]; }
        }
    }
    c->a[0].tolerance = product_tolerance(c->T, c->a[0].n),
    c->a[1].tolerance = product_tolerance(c->T, c->a[1].n);
}

// --- activations -------------------------------------------------------------------------------------------
static void elementwise_shape(Case* c) {
    static const int chosen[][2] = {{3, 5}, {0, 8},  {1, 1},   {1, 7},    {1, 8},    {3, 7},
                                    {2, 9}, {5, 64}, {33, 40}, {7, 1000}, {257, 24}, {1, 20011}};
    c->T = between(1, 60), c->C = between(1, 300);
    if (c->i < 11) { c->T = chosen[c->i + 1][0], c->C = chosen[c->i + 1][1]; }
}

// The tanh approximation, written so that its tails are relatively accurate.
static double gelu_exponent(double x) {
    return 2.0 * sqrt(2.0 / M_PI) * (x + 0.044715 * x * x * x);
}
static double gelu(double x) {
    return x / (1.0 + exp(-gelu_exponent(x)));
}
static double gelu_slope(double x) {
    const double s = 1.0 / (1.0 + exp(-gelu_exponent(x)));
    return s + x * s * (1.0 - s) * 2.0 * sqrt(2.0 / M_PI) * (1.0 + 3 * 0.044715 * x * x);
}
// Relative: roundings, exp, and the exponent's own six, which exp makes relative ones. e overflows to 1e-31.
static double gelu_most(double x, double ref) {
    const double relative = FLOATX_EPS + FLOAT_EPS * (12.0 + 6.0 * fmin(fabs(gelu_exponent(x)), 88.0));
    return relative * fabs(ref) + 1e-29;
}
// Tails, and a NaN, which must not be swallowed.
static void add_ends(const Case* c, Array* a) {
    const float ends[] = {0.0f, -40.0f, 1e4f, -1e4f, NAN};
    for (size_t i = 0; i < a->n && i < 5 && c->i > 3; i++) { a->host[i] = ends[i]; }
}

static void matmul_gelu_make(Case* c) {
    matmul_shape(c);
    const size_t T = (size_t)c->T, C = (size_t)c->C, OC = (size_t)c->OC;
    out_x(c, T * OC), out_x(c, T * OC), in_x(c, T * C, 1.0), in_x(c, OC * C, 0.1), in_x(c, OC, 1.0);
}
static void matmul_gelu_call(const Case* c, OpsContext* context) {
    matmul_gelu_forward(AX(0), AX(1), AX(2), AX(3), AX(4), c->T, c->C, c->OC, context);
}
static void matmul_gelu_reference(Case* c) {
    linear(c, R(1), R(2), R(3), R(4));
    for (size_t i = 0; i < c->a[0].n; i++) { R(0)[i] = gelu(R(1)[i]); }
    c->a[1].tolerance = rounded_tolerance(c->C, c->a[1].n), c->a[0].tolerance = 2 * c->a[1].tolerance;
}

static void dmatmul_gelu_make(Case* c) {
    matmul_shape(c);
    const size_t T = (size_t)c->T, C = (size_t)c->C, OC = (size_t)c->OC;
    out_x(c, T * C), in_x(c, T * C, 1.0), in_x(c, T * OC, 1.0), in_x(c, OC * C, 0.1);
    add_scratch(c, T * C * sizeof(floatX));
}
static void dmatmul_gelu_call(const Case* c, OpsContext* context) {
    matmul_gelu_backward_input(AX(0), AX(1), c->scratch, AX(2), AX(3), c->T, c->C, c->OC, context);
}
static void dmatmul_gelu_reference(Case* c) {
    input_gradient(c, R(0), R(2), R(3));
    for (size_t i = 0; i < c->a[0].n; i++) { R(0)[i] *= gelu_slope(R(1)[i]); }
    c->a[0].tolerance = 2 * rounded_tolerance(c->OC, c->a[0].n);
}

// x Phi(x) by erfc, which is relatively accurate in the negative tail; there float32's argument is not: 2 x^2
// of its roundings.
static double exact_gelu(double x) {
    return x * 0.5 * erfc(-x / sqrt(2.0));
}
static double exact_gelu_slope(double x) {
    return 0.5 * erfc(-x / sqrt(2.0)) + x * exp(-0.5 * x * x) / sqrt(2.0 * M_PI);
}
static double exact_gelu_most(double x, double ref) {
    const double relative = FLOATX_EPS + FLOAT_EPS * (12.0 + 2.0 * fmin(x * x, 200.0));
    return relative * fabs(ref) + 1e-29;
}
static double relu(double x) {
    return x <= 0.0 ? 0.0 : x;
}
static double relu_slope(double x) {
    return x > 0.0 ? 1.0 : 0.0;
}
static double silu(double x) {
    return x / (1.0 + exp(-x));
}
static double silu_slope(double x) {
    const double s = 1.0 / (1.0 + exp(-x));
    return s + x * s * (1.0 - s);
}
static double silu_most(double x, double ref) {
    return gelu_most(fmin(fabs(x), 88.0), ref);
}

typedef struct {
    double (*value)(double x), (*slope)(double x);
    double (*most)(double x, double ref);  // NULL: exact
    void (*forward)(floatX* out, const floatX* inp, size_t num_values, OpsContext* context);
    void (*backward)(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values,
                     OpsContext* context);
    // of gated ones, instead: value(a) * b, a | b in each row of (T, 2C)
    void (*gated_forward)(floatX* out, const floatX* inp, int T, int C, OpsContext* context);
    void (*gated_backward)(floatX* dinp, const floatX* dout, const floatX* inp, int T, int C,
                           OpsContext* context);
} Activation;

static const Activation gelus = {gelu, gelu_slope, gelu_most, gelu_forward, gelu_backward, NULL, NULL},
                        exact_gelus = {exact_gelu,
                                       exact_gelu_slope,
                                       exact_gelu_most,
                                       exact_gelu_forward,
                                       exact_gelu_backward,
                                       NULL,
                                       NULL},
                        relus = {relu, relu_slope, NULL, relu_forward, relu_backward, NULL, NULL},
                        gated_gelus = {gelu, gelu_slope,         gelu_most,          NULL,
                                       NULL, gated_gelu_forward, gated_gelu_backward},
                        gated_silus = {silu, silu_slope,         silu_most,          NULL,
                                       NULL, gated_silu_forward, gated_silu_backward};

static const Activation* activation_of(const Case* c) {
    return (const Activation*)c->about;
}
static bool is_gated(const Case* c) {
    return activation_of(c)->gated_forward != NULL;
}
// Of output value i: where its a is, and its b (not gated: 1).
static size_t gate_of(const Case* c, size_t i) {
    return is_gated(c) ? i / (size_t)c->C * 2 * (size_t)c->C + i % (size_t)c->C : i;
}
static double factor_of(const Case* c, const double* inp, size_t i) {
    return is_gated(c) ? inp[gate_of(c, i) + (size_t)c->C] : 1.0;
}

static void activation_make(Case* c) {
    elementwise_shape(c);
    const size_t n = (size_t)(c->T * c->C);
    out_x(c, n);
    Array* inp = is_gated(c) ? in_x(c, 2 * n, 2.0) : in_x(c, n, 3.0);
    add_ends(c, inp);
    for (size_t i = 5; i < inp->n && activation_of(c)->most == NULL; i += 5) {
        inp->host[i] = i % 2 == 0 ? 0.0f : -0.0f;
    }
}
static void activation_call(const Case* c, OpsContext* context) {
    if (is_gated(c)) {
        activation_of(c)->gated_forward(AX(0), AX(1), c->T, c->C, context);
    } else {
        activation_of(c)->forward(AX(0), AX(1), c->a[0].n, context);
    }
}
static void activation_reference(Case* c) {
    const Activation* about = activation_of(c);
    double* most = most_of(c, 0);
    for (size_t i = 0; i < c->a[0].n; i++) {
        const double a = R(1)[gate_of(c, i)];
        R(0)[i] = about->value(a) * factor_of(c, R(1), i);
        most[i] = about->most != NULL ? about->most(a, R(0)[i]) : 0.0;
    }
}

static void dactivation_make(Case* c) {
    elementwise_shape(c);
    const size_t n = (size_t)(c->T * c->C), num_inputs = is_gated(c) ? 2 * n : n;
    out_x(c, num_inputs), in_x(c, n, 1.0);
    Array* inp = in_x(c, num_inputs, is_gated(c) ? 1.5 : 2.5);
    if (!is_gated(c)) { add_ends(c, inp); }
}
static void dactivation_call(const Case* c, OpsContext* context) {
    if (is_gated(c)) {
        activation_of(c)->gated_backward(AX(0), AX(1), AX(2), c->T, c->C, context);
    } else {
        activation_of(c)->backward(AX(0), AX(1), AX(2), c->a[0].n, context);
    }
}
static double dactivation_loss(Case* c) {
    double loss = 0.0;
    for (size_t i = 0; i < c->a[1].n; i++) {
        loss += R(1)[i] * activation_of(c)->value(R(2)[gate_of(c, i)]) * factor_of(c, R(2), i);
    }
    return loss;
}
static void dactivation_reference(Case* c) {
    const Activation* about = activation_of(c);
    for (size_t i = 0; i < c->a[1].n; i++) {
        const size_t at = gate_of(c, i);
        R(0)[at] = R(1)[i] * factor_of(c, R(2), i) * about->slope(R(2)[at]);
        if (is_gated(c)) { R(0)[at + (size_t)c->C] = R(1)[i] * about->value(R(2)[at]); }
    }
    if (about->most != NULL) { c->a[0].tolerance = FLOATX_EPS + 32 * FLOAT_EPS; }
}

// --- rotary positions --------------------------------------------------------------------------------------
static Rope rope_about(const Case* c) {
    static const Rope chosen[] = {{4, 2, 8, {0}},  {3, 3, 16, {0}}, {8, 1, 32, {0}},
                                  {6, 3, 64, {0}}, {5, 1, 2, {0}},  {2, 1, 256, {0}}};
    Rope out = chosen[(c->i + 6) % 6];
    for (int k = 0; k < out.head_size / 2; k++) {
        out.rates[k] = powf(5e5f, -2.0f * (float)k / (float)out.head_size);
    }
    return out;
}
static size_t rope_width(const Case* c, bool is_wide) {
    const Rope about = rope_about(c);
    return (size_t)((is_wide ? 3 * about.num_heads : about.num_heads + 2 * about.num_kv_heads) *
                    about.head_size);
}
static void rope_arrays(Case* c, bool is_backward) {
    static const int tokens[] = {3, 0, 1, 40, 7, 130};
    c->T = c->i < 5 ? tokens[c->i + 1] : between(1, 60);
    out_x(c, (size_t)c->T * rope_width(c, !is_backward));
    in_x(c, (size_t)c->T * rope_width(c, is_backward), 1.0);
    in_i(c, (size_t)c->T, c->i % 2 == 0 ? 4000 : 50);
}
static void rope_make(Case* c) {
    rope_arrays(c, false);
}
static void drope_make(Case* c) {
    rope_arrays(c, true);
}
static void rope_call(const Case* c, OpsContext* context) {
    const Rope about = rope_about(c);
    rope_forward(AX(0), AX(1), AI(2), &about, c->T, context);
}
static void drope_call(const Case* c, OpsContext* context) {
    const Rope about = rope_about(c);
    rope_backward(AX(0), AX(1), AI(2), &about, c->T, context);
}
// wide = narrow turned and repeated, or narrow += the transposed map of wide.
static void rope_map(const Case* c, double* wide, double* narrow, bool is_backward) {
    const Rope x = rope_about(c);
    const int HS = x.head_size, group = x.num_heads / x.num_kv_heads;
    for (int t = 0; t < c->T; t++) {
        for (int h = 0; h < 3 * x.num_heads; h++) {
            const int part = h / x.num_heads, head = h % x.num_heads;
            const int from = part == 0 ? head : x.num_heads + (part - 1) * x.num_kv_heads + head / group;
            double* w = wide + (size_t)t * rope_width(c, true) + (size_t)(h * HS);
            double* n = narrow + (size_t)t * rope_width(c, false) + (size_t)(from * HS);
            for (int k = 0; k < HS / 2; k++) {
                const float angle = (float)INTS(2)[t] * x.rates[k];
                const double cosine = part == 2 ? 1.0 : cos((double)angle);
                const double sine = part == 2 ? 0.0 : sin((double)angle);
                if (is_backward) {
                    n[k] += w[k] * cosine + w[k + HS / 2] * sine;
                    n[k + HS / 2] += w[k + HS / 2] * cosine - w[k] * sine;
                } else {
                    w[k] = n[k] * cosine - n[k + HS / 2] * sine;
                    w[k + HS / 2] = n[k + HS / 2] * cosine + n[k] * sine;
                }
            }
        }
    }
}
static void rope_reference(Case* c) {
    rope_map(c, R(0), R(1), false);
    c->a[0].tolerance = FLOATX_EPS + 32 * FLOAT_EPS;
}
static void drope_reference(Case* c) {
    for (size_t i = 0; i < c->a[0].n; i++) { R(0)[i] = 0.0; }
    rope_map(c, R(1), R(0), true);
    c->a[0].tolerance = FLOATX_EPS + 32 * FLOAT_EPS;
}

static void residual_make(Case* c) {
    elementwise_shape(c);
    const size_t n = (size_t)(c->T * c->C);
    out_x(c, n), in_x(c, n, 1.0), in_x(c, n, 1.0);
}
static void residual_call(const Case* c, OpsContext* context) {
    residual_forward(AX(0), AX(1), AX(2), c->a[0].n, context);
}
static void residual_reference(Case* c) {
    written_sum(R(0), R(1), R(2), c->a[0].n);
}

// --- dropout -----------------------------------------------------------------------------------------------
static void dropout_make(Case* c) {
    elementwise_shape(c);
    const size_t n = (size_t)(c->T * c->C);
    out_x(c, n), in_x(c, n, 1.0), in_keys(c, (size_t)c->T);
    c->S = between(0, 300);
    c->scale = (float[]){0.1f, 0.5f, 0.05f, 0.9f, 0.0f}[(c->i + 5) % 5];
}
static void dropout_call(const Case* c, OpsContext* context) {
    dropout_apply(AX(0), AX(1), (const uint32_t*)AI(2), (uint32_t)c->S, c->scale, c->T, c->C, context);
}
static void dropout_reference(Case* c) {
    double* most = most_of(c, 0);
    for (size_t i = 0; i < c->a[0].n; i++) {
        const uint32_t row = dropout_row((uint32_t)INTS(2)[i / (size_t)c->C], (uint32_t)c->S);
        const bool falls =
            (double)dropout_bits(row, (uint32_t)(i % (size_t)c->C)) < (double)c->scale * 4294967296.0;
        R(0)[i] = falls ? 0.0 : R(1)[i] / (1.0 - (double)c->scale);
        most[i] = falls || c->scale == 0.0f ? 0.0 : (FLOATX_EPS + 8 * FLOAT_EPS) * fabs(R(0)[i]);
    }
}

// --- rows --------------------------------------------------------------------------------------------------
// OC distinct rows of T, in any order; none, all and one among the first cases.
static Array* in_rows(Case* c) {
    c->T = c->i == 2 ? 1 : between(1, 200), c->C = c->i == 4 ? 1608 : c->i == 5 ? 1611 : between(8, 300);
    if (c->i % 2 == 0) { c->C = c->C / 8 * 8; }
    c->OC = c->i == 0 ? 0 : c->i < 3 ? c->T : between(0, c->T);
    int32_t rows[200];
    for (int t = 0; t < c->T; t++) { rows[t] = t; }
    for (int t = c->T - 1; t > 0; t--) {
        const int other = below(t + 1);
        const int32_t row = rows[t];
        rows[t] = rows[other], rows[other] = row;
    }
    Array* a = in_i(c, (size_t)c->OC, 0);
    memcpy(a->host, rows, (size_t)c->OC * sizeof *rows);
    return a;
}
static void gather_make(Case* c) {
    in_rows(c);
    out_x(c, (size_t)(c->OC * c->C)), in_x(c, (size_t)(c->T * c->C), 1.0);
}
static void gather_call(const Case* c, OpsContext* context) {
    gather_rows(AX(1), AX(2), AI(0), c->OC, c->C, context);
}
static void gather_reference(Case* c) {
    for (int i = 0; i < c->OC * c->C; i++) { R(1)[i] = R(2)[INTS(0)[i / c->C] * c->C + i % c->C]; }
}
static void scatter_make(Case* c) {
    in_rows(c);
    out_x(c, (size_t)(c->T * c->C)), in_x(c, (size_t)(c->OC * c->C), 1.0);
}
static void scatter_call(const Case* c, OpsContext* context) {
    scatter_rows(AX(1), AX(2), AI(0), c->OC, c->T, c->C, context);
}
static void scatter_reference(Case* c) {
    for (int i = 0; i < c->T * c->C; i++) { R(1)[i] = 0.0; }
    for (int i = 0; i < c->OC * c->C; i++) { R(1)[INTS(0)[i / c->C] * c->C + i % c->C] = R(2)[i]; }
}
// Columns beside `width`, and rows that are not named, stay. S: the first column; strides are wider by S.
static void place_make(Case* c) {
    in_rows(c);
    c->S = c->i % 3 * (c->i % 2 == 0 ? 8 : 1) + (c->i < 0);
    both_x(c, (size_t)(c->T * (c->C + 2 * c->S))), in_x(c, (size_t)(c->OC * (c->C + c->S)), 1.0);
}
static void place_call(const Case* c, OpsContext* context) {
    place_rows(AX(1) + c->S, c->C + 2 * c->S, AX(2) + (c->OC > 0 ? c->S : 0), c->C + c->S, AI(0), c->OC, c->C,
               context);
}
static void place_reference(Case* c) {
    for (int i = 0; i < c->OC * c->C; i++) {
        R(1)
        [INTS(0)[i / c->C] * (c->C + 2 * c->S) + c->S + i % c->C] =
            R(2)[i / c->C * (c->C + c->S) + c->S + i % c->C];
    }
}
static void copy_make(Case* c) {
    elementwise_shape(c);
    const size_t n = c->i == 11 ? 2400001 : (size_t)(c->T * c->C);  // of one piece, and of several
    out_x(c, n), out_f(c, n), in_x(c, n, 1.0);
}
static void copy_call(const Case* c, OpsContext* context) {
    ops_copy(context, AX(0), AX(2), c->a[0].n * sizeof(floatX));
    values_to_floats(AF(1), AX(2), c->a[0].n, context);
}
static void copy_reference(Case* c) {
    for (size_t i = 0; i < c->a[0].n; i++) { R(0)[i] = R(1)[i] = R(2)[i]; }
}

// --- classifier --------------------------------------------------------------------------------------------
// A row in a block's shared memory (GPT-2's), a longer one, one that only some cards have room for, rows that
// begin between two vectors.
static void classifier_make(Case* c) {
    static const int chosen[][3] = {{3, 9, 12},    {0, 7, 8},        {1, 2, 8},           {3, 2, 2},
                                    {2, 7, 8},     {2, 1000, 1024},  {1, 50257, 50304},   {1, 120001, 120008},
                                    {3, 700, 701}, {1, 1, 8},        {1, 120001, 120008}, {3, 700, 704},
                                    {2, 30, 32},   {1, 60001, 60008}};
    c->T = between(1, 40), c->C = between(2, 700);
    c->OC = c->i % 3 == 0 ? c->C : (c->C + 7) / 8 * 8 + (c->i % 3 == 1 ? 64 : 0);
    if (c->i < 13) { c->T = chosen[c->i + 1][0], c->C = chosen[c->i + 1][1], c->OC = chosen[c->i + 1][2]; }
    c->scale = c->i % 4 == 3 ? 0.0f : 1.0f / (float)(c->T + 1);
    out_f(c, (size_t)c->T);
    Array *logits = both_x(c, (size_t)c->T * (size_t)c->OC), *targets = in_i(c, (size_t)c->T, c->C);
    for (int t = 0; t < c->T; t++) {
        float* x = logits->host + (size_t)t * (size_t)c->OC;
        for (int v = 0; v < c->OC; v++) {
            x[v] = v < c->C ? 4.0f * x[v] : 1000.0f;
        }  // padding must not matter
        // sure of its target; of another id; nothing is left of the others
        if (t % 4 == 1) { x[((int32_t*)targets->host)[t]] += 40.0f; }
        if (t % 4 == 2) { x[below(c->C)] += 40.0f; }
        if (t % 16 == 3) { x[below(c->C)] = NAN; }
    }
}
static void classifier_call(const Case* c, OpsContext* context) {
    fused_classifier(AF(0), AX(1), AI(2), c->scale, c->T, c->C, c->OC, context);
}
// A loss, and the logits' gradient, relative to the target: a loss near 0 keeps its digits.
static double classifier_row(double* d, const double* x, int target, double scale, int V) {
    double others = 0.0, max = x[0];
    for (int v = 0; v < V; v++) { max = x[v] > max || isnan(x[v]) ? x[v] : max; }
    for (int v = 0; v < V; v++) { others += v == target ? 0.0 : exp(x[v] - max); }
    const double own = exp(x[target] - max),
                 loss = own > 0.5 ? log1p(others / own) : log(others + own) + max - x[target];
    for (int v = 0; v < V; v++) { d[v] = scale * (v == target ? -others : exp(x[v] - max)) / (others + own); }
    return loss;
}
static double loss_most(double loss) {
    return 64 * FLOAT_EPS * (loss + (loss > 0.5 ? 4.0 : 0.0)) + 1e-37;
}
static void classifier_reference(Case* c) {
    double *d = must(calloc((size_t)c->OC, sizeof *d)), *losses = most_of(c, 0), *most = most_of(c, 1);
    for (int t = 0; t < c->T; t++) {
        double* x = R(1) + (size_t)t * (size_t)c->OC;
        R(0)[t] = classifier_row(d, x, INTS(2)[t], (double)c->scale, c->C);
        losses[t] = loss_most(R(0)[t]);
        for (int v = 0; v < c->OC && c->scale != 0.0f; v++) {
            x[v] = d[v],
            most[(size_t)t * (size_t)c->OC + (size_t)v] = (FLOATX_EPS + 128 * FLOAT_EPS) * fabs(d[v]) + 1e-37;
        }
    }
    free(d);
}

// --- optimizer ---------------------------------------------------------------------------------------------
// Five steps with these gradients. In bf16 `master` is float32 and params are its rounding, either way.
static const int NUM_STEPS = 5;
static AdamwUpdate adamw_about(int t) {
    return (AdamwUpdate){.lr = 0.01f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .grad_scale = 0.7f,
                         .t = t,
                         .seed = 1234};
}
static void adamw_make(Case* c) {
    static const int counts[] = {33, 0, 1, 3, 4, 5, 255, 1024, 4099, 9001};
    c->T = counts[(c->i + 1) % 10], c->C = 1;
    const size_t n = (size_t)c->T;
    both_x(c, n), both_f(c, n), in_f(c, n, 0.01);
    Array *m = both_f(c, n), *v = both_f(c, n);
    for (size_t i = 0; i < n; i++) {
        const float g = c->a[2].host[i] *=
            c->i % 2 ? 1.0f : 1e4f;  // a step has the length lr, whatever the gradient
        m->host[i] *= 0.01f * (c->i % 2 ? 1.0f : 1e4f);
        v->host[i] = 0.5f * (g * g + m->host[i] * m->host[i]) + 1e-6f;
    }
}
// Parameters [begin, end) of the case, which are those from first_idx + begin on of the model.
static void adamw_slice(const Case* c, size_t begin, size_t end, int64_t first_idx, const AdamwUpdate* about,
                        OpsContext* context) {
    adamw_update(AX(0) + begin, sizeof(floatX) == 2 ? AF(1) + begin : NULL, AF(3) + begin, AF(4) + begin,
                 AF(2) + begin, end - begin, first_idx + (int64_t)begin, about, context);
}
// On a GPU in vectors of 4, or one by one.
static void adamw_call(const Case* c, OpsContext* context) {
    for (int t = 1; t <= NUM_STEPS; t++) {
        const AdamwUpdate about = adamw_about(t);
        adamw_slice(c, 0, (size_t)c->T, 16 + c->i % 2, &about, context);
    }
}
static void adamw_reference(Case* c) {
    const AdamwUpdate u = adamw_about(1);
    const double beta1 = (double)u.beta1, beta2 = (double)u.beta2;
    for (int i = 0; i < c->T; i++) {
        double p = R(sizeof(floatX) == 2)[i];
        for (int t = 1; t <= NUM_STEPS; t++) {
            const double g = R(2)[i] * (double)u.grad_scale;
            R(3)[i] = beta1 * R(3)[i] + (1.0 - beta1) * g;
            R(4)[i] = beta2 * R(4)[i] + (1.0 - beta2) * g * g;
            const double step =
                R(3)[i] / (1.0 - pow(beta1, t)) / (sqrt(R(4)[i] / (1.0 - pow(beta2, t))) + (double)u.eps);
            p -= (double)u.lr * (step + (double)u.weight_decay * p);
        }
        R(0)[i] = p;
        if (sizeof(floatX) == 2) { R(1)[i] = p; }
    }
    for (int k = 0; k < 5; k++) { c->a[k].tolerance = 16 * FLOAT_EPS * NUM_STEPS; }
    c->a[3].cancelled = c->a[3].tolerance * (c->i % 2 ? 0.01 : 100.0);
    if (sizeof(floatX) == 2) { c->a[0].tolerance += 2 * FLOATX_EPS; }
}

// --- all of them -------------------------------------------------------------------------------------------
#define ANYWHERE .shift_in = true, .shift_out = true
#define SAME_ANYWHERE ANYWHERE, .same_anywhere = true
#define OP(text, stem) .name = text, .make = stem##_make, .call = stem##_call, .reference = stem##_reference
#define ACTIVATION(text, of) OP(text, activation), .about = &(of), SAME_ANYWHERE
#define DACTIVATION(text, of) \
    OP(text, dactivation), .about = &(of), .loss = dactivation_loss, .grads = {{2, 0}}, SAME_ANYWHERE
static const Op embeddings = {OP("embedding_forward", embedding), ANYWHERE};
static const Op dembeddings = {OP("embedding_backward", dembedding), ANYWHERE};
static const Op norms[] = {
    {OP("layernorm_forward", layernorm), ANYWHERE},
    {OP("residual_layernorm_forward", residual_layernorm), .aliases = {{0, 4}, {0, 5}}, ANYWHERE},
    {OP("layernorm_backward", dlayernorm), .loss = dlayernorm_loss, .grads = {{5, 0}, {6, 1}},
     .aliases = {{0, 3}, {0, 4}}, ANYWHERE},
    {OP("rmsnorm_forward", rmsnorm), ANYWHERE},
    {OP("residual_rmsnorm_forward", residual_rmsnorm), .aliases = {{0, 3}, {0, 4}}, ANYWHERE},
    {OP("rmsnorm_backward", drmsnorm), .loss = drmsnorm_loss, .grads = {{4, 0}, {5, 1}},
     .aliases = {{0, 2}, {0, 3}}, ANYWHERE},
};
static const Op products[] = {
    {OP("matmul_forward", matmul), .product = true, .shift_in = true},
    {OP("matmul_backward_input", dmatmul_input), .product = true, .shift_in = true},
    {OP("matmul_backward_weight", dmatmul_weight), .product = true, .shift_in = true},
    {OP("matmul_gelu_forward", matmul_gelu), .product = true, .shift_in = true},
    {OP("matmul_gelu_backward_input", dmatmul_gelu), .aliases = {{0, 1}}, .product = true},
};
static const Op elementwise[] = {
    {ACTIVATION("gelu_forward", gelus)},
    {DACTIVATION("gelu_backward", gelus), .aliases = {{0, 1}, {0, 2}}},
    {ACTIVATION("exact_gelu_forward", exact_gelus)},
    {DACTIVATION("exact_gelu_backward", exact_gelus), .aliases = {{0, 1}, {0, 2}}},
    {ACTIVATION("relu_forward", relus), .aliases = {{0, 1}}},
    {OP("relu_backward", dactivation), .about = &relus, .aliases = {{0, 1}, {0, 2}}, SAME_ANYWHERE},
    {ACTIVATION("gated_gelu_forward", gated_gelus)},
    {DACTIVATION("gated_gelu_backward", gated_gelus), .aliases = {{0, 2}}},
    {ACTIVATION("gated_silu_forward", gated_silus)},
    {DACTIVATION("gated_silu_backward", gated_silus), .aliases = {{0, 2}}},
    {OP("rope_forward", rope), SAME_ANYWHERE},
    {OP("rope_backward", drope), SAME_ANYWHERE},
    {OP("residual_forward", residual), .aliases = {{0, 1}, {0, 2}}, SAME_ANYWHERE},
    {OP("dropout_apply", dropout), .aliases = {{0, 1}}, SAME_ANYWHERE},
    {OP("copy, values_to_floats", copy)},
};
static const Op rows[] = {
    {OP("gather_rows", gather), SAME_ANYWHERE},
    {OP("scatter_rows", scatter), SAME_ANYWHERE},
    {OP("place_rows", place), SAME_ANYWHERE},
};
static const Op classifier = {OP("fused_classifier", classifier), ANYWHERE};
static const Op adamw = {OP("adamw_update", adamw)};

#define CHECK_ALL(list, num_cases) \
    for (size_t op_ = 0; op_ < sizeof(list) / sizeof *(list); op_++) { op_check(&(list)[op_], num_cases); }

static void embeddings_equal_the_reference(void) {
    op_check(&embeddings, 17);
    op_check(&dembeddings, 17);
}
static void norms_equal_the_reference(void) {
    CHECK_ALL(norms, 17 + 3 * ROUNDS);
}
static void products_equal_the_reference(void) {
#ifdef LLMC_CUDA
    const int as_created = matmul_restrictions(ops);
    const int restrictions[] = {as_created, MATMUL_NO_IN_PLACE, MATMUL_NO_EPILOGUES, MATMUL_NO_LIBRARY};
    for (int k = 0; k < 4; k++) {
        matmul_restrict(ops, restrictions[k]);
        matmul_restrict(other_ops, restrictions[k]);
        for (int op = 0; op < 5; op++) {  // in quick runs each case meets some of the restrictions
            for (int i = -1; i < (k == 1 ? 24 : 14); i++) {
                if ((i + k) % test_stride() < 2) { CHECK(op_check_case(&products[op], i)); }
            }
            op_check_places(&products[op]);
        }
    }
    matmul_restrict(ops, as_created);
    matmul_restrict(other_ops, as_created);
#else
    CHECK_ALL(products, 40);
#endif
}
static void elementwise_ops_equal_the_reference(void) {
    CHECK_ALL(elementwise, 18);
}
static void rows_are_where_they_belong(void) {
    CHECK_ALL(rows, 24);
}
static void losses_and_gradients_equal_the_reference(void) {
    op_check(&classifier, 26);
}
static void updates_equal_the_reference(void) {
    op_check(&adamw, 20);
}

// Replicas update slices that begin anywhere: their values must not drift apart. Half of the models begin two
// values before a multiple of 4, where addresses and indices never are multiples of 4 together.
static void any_cut_of_an_update_gives_the_same_bits(void) {
    for (int i = 1; i < 20; i++) {
        static Case of_update;
        Case* c = &of_update;
        *c = (Case){.i = i};
        adamw_make(c);
        case_upload(c);
        const AdamwUpdate about = adamw_about(i);
        const size_t n = (size_t)c->T;
        const int64_t first_idx = i % 2 * 2;
        adamw_slice(c, 0, n, first_idx, &about, ops);
        float* whole[5];
        for (int k = 0; k < 5; k++) { whole[k] = array_download(&c->a[k]); }
        if (i % 3 == 0) { array_shift(c, i / 3 % 5, 1); }
        case_upload(c);
        for (size_t at = 0, end; at < n; at = end) {
            end = at + (size_t)between(1, (int)n / 3 + 1);
            end = end < n ? end : n;
            adamw_slice(c, at, end, first_idx, &about, other_ops);
        }
        for (int k = 0; k < 5; k++) {
            CHECK(array_is(&c->a[k], whole[k]));
            free(whole[k]);
        }
        CHECK(case_release(c));
    }
}

// --- a head shared by vocabulary ---------------------------------------------------------------------------
// Cut anywhere (shares of one id, of padding, of nothing), all shares together give the losses, the logits'
// gradient and the hidden rows' gradient of the whole one.
typedef struct {
    int num_rows, V, Vp, num_shares, begin[OPS_MAX_SHARES + 1], C;
} Cut;

static int num_ids(const Cut* s, int r) {
    const int end = s->begin[r + 1] < s->V ? s->begin[r + 1] : s->V;
    return end > s->begin[r] ? end - s->begin[r] : 0;
}

// `whole`: arrays 0 logits (num_rows, Vp), 1 weight (Vp, C), 2 targets.
static void check_shares(const Cut* s, const Case* whole, double scale) {
    static Case shares;
    Case* c = &shares;
    *c = (Case){.i = 0};
    const size_t n = (size_t)s->num_rows, Vp = (size_t)s->Vp, C = (size_t)s->C;
    const float *x = whole->a[0].host, *w = whole->a[1].host;
    const int32_t *targets = (const int32_t*)whole->a[2].device, *ids = (const int32_t*)whole->a[2].host;
    const floatX *sums[OPS_MAX_SHARES], *own[OPS_MAX_SHARES];
    float *stats[OPS_MAX_SHARES], *tried[OPS_MAX_SHARES], *factors[OPS_MAX_SHARES];
    Array *losses = out_f(c, n), *dinp = out_x(c, n * C);
    for (int r = 0; r < s->num_shares; r++) {
        const int begin = s->begin[r], Vs = s->begin[r + 1] - begin;
        Array *part = in_x(c, n * (size_t)Vs, 0), *weight = in_x(c, (size_t)Vs * C, 0),
              *ones = in_x(c, n * 8, 0);
        for (size_t t = 0; t < n; t++) {
            for (int v = 0; v < Vs; v++) {
                part->host[t * (size_t)Vs + (size_t)v] =
                    begin + v < s->V ? x[t * Vp + (size_t)(begin + v)] : 1000.0f;
            }
        }
        memcpy(weight->host, w + (size_t)begin * C, weight->n * sizeof(float));
        for (size_t i = 0; i < n * 8; i++) { ones->host[i] = 1.0f; }
        out_f(c, n * 3), out_f(c, n * 3), out_f(c, n * 2), out_x(c, n * C), out_x(c, n * C);
    }
    enum { PART, WEIGHT, ONES, STATS, TRIED, FACTORS, SUM, OWN, ARRAYS };
    const int kinds[] = {PART, WEIGHT, ONES, SUM, OWN}, kind = (whole->i / 2 + 6) % 7;  // 5: dinp; 6: none
    for (int r = 0; r < s->num_shares && kind < 5; r++) {  // begins between two vectors
        array_shift(c, 2 + r * ARRAYS + kinds[kind], 2);
    }
    if (kind == 5) { array_shift(c, 1, 2); }
    case_upload(c);
    for (int r = 0; r < s->num_shares; r++) {
        Array* a = &c->a[2 + r * ARRAYS];
        const int begin = s->begin[r], Vs = s->begin[r + 1] - begin, V = num_ids(s, r);
        stats[r] = a[STATS].device, tried[r] = a[TRIED].device, factors[r] = a[FACTORS].device;
        sums[r] = a[SUM].device, own[r] = a[OWN].device;
        classifier_share(tried[r], a[PART].device, targets, false, s->num_rows, begin, V, Vs, ops);
        CHECK(array_is(&a[PART], a[PART].host));  // without gradients: unchanged
        classifier_share(stats[r], a[PART].device, targets, true, s->num_rows, begin, V, Vs, ops);
        ops_zero(ops, a[SUM].device, n * C * sizeof(floatX));
        if (Vs > 0 && n > 0) {
            matmul_backward_input(a[SUM].device, a[PART].device, a[WEIGHT].device, s->num_rows, s->C, Vs,
                                  ops);
        }
        target_rows(a[OWN].device, a[WEIGHT].device, targets, s->num_rows, begin, V, s->C, ops);
    }
    float* kept = NULL;
    classifier_combine(losses->device, NULL, (const float* const*)tried, 0.0f, s->num_rows, s->num_shares,
                       ops);
    kept = array_download(losses);
    classifier_combine(losses->device, factors, (const float* const*)stats, (float)scale, s->num_rows,
                       s->num_shares, ops);
    CHECK(array_is(losses, kept));
    combine_parts(dinp->device, sums, own, (const float* const*)factors, s->num_rows, s->C, s->num_shares,
                  ops);

    double *d = must(calloc((n + 1) * Vp, sizeof *d)), *row = must(malloc(Vp * sizeof *row));
    double* most = most_of(c, 0);
    for (size_t t = 0; t < n; t++) {
        for (size_t v = 0; v < Vp; v++) { row[v] = (double)x[t * Vp + v]; }
        losses->ref[t] = classifier_row(d + t * Vp, row, ids[t], scale, s->V),
        most[t] = loss_most(losses->ref[t]);
        for (int k = 0; k < s->C; k++) { dinp->ref[t * C + (size_t)k] = 0.0; }
        for (size_t v = 0; v < (size_t)s->V; v++) {
            for (int k = 0; k < s->C; k++) {
                dinp->ref[t * C + (size_t)k] += d[t * Vp + v] * (double)w[v * C + (size_t)k];
            }
        }
    }
    CHECK(array_close(losses, "losses of shares"));
    dinp->row = C;
    dinp->tolerance = (sizeof(floatX) == 2 ? 0.02 : 1e-4);
    CHECK(array_close(dinp, "gradient of hidden rows"));

    // E times what a row of hidden states was multiplied by is the gradient of the logits, rounded twice
    for (int r = 0; r < s->num_shares; r++) {
        Array* a = &c->a[2 + r * ARRAYS];
        const size_t Vs = (size_t)(s->begin[r + 1] - s->begin[r]);
        classifier_factors(a[PART].device, a[ONES].device, factors[r], targets, s->num_rows, 8, s->begin[r],
                           num_ids(s, r), (int)Vs, ops);
        float *e = array_download(&a[PART]), *ones = array_download(&a[ONES]);
        for (size_t i = 0; i < n * Vs; i++) {
            const double got = (double)e[i] * (double)ones[i / Vs * 8 + i % 8];
            const double ref = d[i / Vs * Vp + (size_t)s->begin[r] + i % Vs];
            const double most_of_value = 2 * (FLOATX_EPS + 128 * FLOAT_EPS) * fabs(ref) + 1e-37;
            if ((isnan(got) && isnan(losses->ref[i / Vs])) || fabs(got - ref) <= most_of_value) { continue; }
            printf("share %d of %d, row %zu, column %zu: %g, expected %g\n", r, s->num_shares, i / Vs, i % Vs,
                   got, ref);
            CHECK(!"gradient of the logits");
            break;
        }
        free(e);
        free(ones);
    }
    free(kept);
    free(d);
    free(row);
    CHECK(case_release(c));
}

static Cut cut_of(int i) {
    static const Cut chosen[] = {{3, 50257, 50304, 4, {0, 12576, 25152, 37728, 50304}, 24},
                                 {1, 141001, 141016, 3, {0, 16, 25016, 141016}, 21},
                                 {4, 7000, 7001, 3, {0, 2333, 4670, 7001}, 24},
                                 {5, 100, 144, 4, {0, 16, 96, 112, 144}, 1033},
                                 {2, 40, 40, 3, {0, 16, 16, 40}, 1032},
                                 {40, 1, 16, 1, {0, 16}, 21},
                                 {0, 20, 32, 2, {0, 16, 32}, 24}};
    enum { NUM_CHOSEN = sizeof chosen / sizeof *chosen };
    if (i < NUM_CHOSEN) { return chosen[i]; }
    const int step = i % 3 == 0 ? 1 : 16;
    Cut s = {.num_rows = between(1, 30),
             .C = i % 2 ? 21 : 24,
             .V = between(2, 900),
             .num_shares = i == NUM_CHOSEN ? OPS_MAX_SHARES : between(1, 6)};
    s.Vp = (s.V + step - 1) / step * step + step * between(0, 2);
    for (int r = 1; r < s.num_shares; r++) {
        s.begin[r] = s.begin[r - 1] + step * (s.num_shares > 6 ? s.begin[r - 1] < s.V
                                                               : between(0, (s.Vp - s.begin[r - 1]) / step));
    }
    for (int r = 1; r < s.num_shares; r++) { s.begin[r] = s.begin[r] < s.Vp ? s.begin[r] : s.Vp; }
    s.begin[s.num_shares] = s.Vp;
    return s;
}

static void shares_are_the_whole_head(void) {
    for (int i = 0; i < 12 * ROUNDS; i++) {
        static Case whole;
        whole = (Case){.i = i};
        const Cut s = cut_of(i);
        Array* x = in_x(&whole, (size_t)s.num_rows * (size_t)s.Vp, 2.0);
        in_x(&whole, (size_t)s.Vp * (size_t)s.C, 1.0);
        int32_t* targets = (int32_t*)in_i(&whole, (size_t)s.num_rows, s.V)->host;
        for (int t = 0; t < s.num_rows; t++) {
            float* row = x->host + (size_t)t * (size_t)s.Vp;
            const int edge =
                s.begin[below(s.num_shares)] - t % 2;  // the first id of a share, the last of one
            if (t % 3 != 0 && edge >= 0 && edge < s.V) { targets[t] = edge; }
            if (t % 4 == 1) { row[targets[t]] += (float[]){3, 12, 40, 120}[t / 4 % 4]; }  // a loss near 0
            if (t % 4 == 2) { row[below(s.V)] += 40.0f; }
            if (t % 16 == 3) { row[below(s.V)] = NAN; }
            for (int v = 0; v < s.V && t % 16 == 7; v++) {
                row[v] = v == targets[t] || v < s.V / 3 ? row[v] : -INFINITY;
            }
        }
        case_upload(&whole);
        check_shares(&s, &whole, i % 5 == 4 ? 0.37 : 1.0 / (s.num_rows + 1));
        CHECK(case_release(&whole));
    }
}

// Rows' largest, the first of equals, and the largest of the shares' largest; padding above all must not
// matter.
static void largest_of_shares_is_the_rows(void) {
    for (int i = 0; i < 10 * ROUNDS; i++) {
        static Case c;
        c = (Case){.i = i};
        const Cut s = cut_of(i);
        const size_t Vp = (size_t)s.Vp;
        Array* x = in_x(&c, (size_t)s.num_rows * Vp, 1.0);
        int32_t first[50], got[50], ids[50];
        float largest[50], values[50], most[50];
        for (int t = 0; t < s.num_rows; t++) {
            float* row = x->host + (size_t)t * Vp;
            for (int v = 0; v < s.Vp; v++) {
                row[v] = v >= s.V ? 1000.0f : t % 2 ? (float)below(4) : (float)as_x((double)row[v]);
            }
            first[t] = 0;
            for (int v = 1; v < s.V; v++) { first[t] = row[v] > row[first[t]] ? v : first[t]; }
            largest[t] = row[first[t]], most[t] = -INFINITY;
        }
        case_upload(&c);
        argmax_rows(got, c.a[0].device, s.num_rows, s.V, s.Vp, ops);
        CHECK(memcmp(got, first, (size_t)s.num_rows * sizeof *got) == 0);
        for (int r = 0; r < s.num_shares; r++) {
            static Case share;
            share = (Case){.i = i};
            const size_t Vs = (size_t)(s.begin[r + 1] - s.begin[r]);
            Array* part = in_x(&share, (size_t)s.num_rows * Vs, 0);
            for (size_t k = 0; k < part->n; k++) {
                part->host[k] = x->host[k / Vs * Vp + (size_t)s.begin[r] + k % Vs];
            }
            case_upload(&share);
            argmax_share(values, ids, part->device, s.num_rows, s.begin[r], num_ids(&s, r), (int)Vs, ops);
            for (int t = 0; t < s.num_rows; t++) {
                if (values[t] > most[t]) { most[t] = values[t], got[t] = ids[t]; }
            }
            CHECK(case_release(&share));
        }
        CHECK(memcmp(got, first, (size_t)s.num_rows * sizeof *got) == 0);
        CHECK(memcmp(most, largest, (size_t)s.num_rows * sizeof *most) == 0);
        CHECK(case_release(&c));
    }
}

// --- what else ---------------------------------------------------------------------------------------------
// Where a stage begins, the sum of its first norm has been written by another: the same norm as of a fused
// addition.
static void a_norm_of_a_written_sum_is_the_fused_one(void) {
    for (int i = 1; i < 2 * 22; i++) {
        static Case of_norm;
        Case* c = &of_norm;
        *c = (Case){.i = i / 2};
        const bool rms = i % 2;
        rms ? residual_rmsnorm_make(c) : residual_layernorm_make(c);
        case_upload(c);
        rms ? residual_rmsnorm_call(c, ops) : residual_layernorm_call(c, ops);
        float *out = array_download(&c->a[1]), *rstd = array_download(&c->a[rms ? 2 : 3]);
        if (rms) {
            rmsnorm_forward(AX(1), AF(2), AX(0), AX(5), c->scale, rms_eps(c), c->T, c->C, ops);
        } else {
            layernorm_forward(AX(1), AF(2), AF(3), AX(0), AX(6), AX(7), (float)layernorm_eps(c), c->T, c->C,
                              ops);
        }
        CHECK(array_is(&c->a[1], out) && array_is(&c->a[rms ? 2 : 3], rstd));
        free(out);
        free(rstd);
        CHECK(case_release(c));
    }
}

// In double, from any beginning, whatever the number of threads; 2^28 beside many ones: float32 would lose
// those.
static void a_sum_of_squares_is_exact_enough(void) {
    static const int counts[] = {0, 1, 2, 3, 7, 511, 512, 513, 9000, 100003, 1000000};
    for (int i = 0; i < 22; i++) {
        static Case c;
        c = (Case){.i = i};
        const size_t n = (size_t)counts[i / 2], past = (size_t)(i % 5);
        Array* x = in_f(&c, n + past, 3.0);
        if (n > 0) { x->host[past] = 16384.0f; }
        double ref = 0.0;
        for (size_t k = past; k < n + past; k++) {
            x->host[k] = i % 2 == 1 && k > past ? 1.0f : x->host[k];
            ref += (double)x->host[k] * (double)x->host[k];
        }
        case_upload(&c);
        const double got = sum_of_squares((float*)x->device + past, n, ops);
        CHECK_NEAR(got, ref, i % 2 ? 0.0 : 1e-12 * ref);
        CHECK(got == sum_of_squares((float*)x->device + past, n, other_ops));
        CHECK(case_release(&c));
    }
}

#ifndef LLMC_CUDA
// Every 97th float of [-87.3, 88.3]: the bound that fast_math.h states. Then its ends.
static void exp_is_accurate_everywhere(void) {
    double worst = 0.0;
    for (int sign = 0; sign < 2; sign++) {
        for (uint32_t bits = 0; bits < 0x42b09999u; bits += 97) {  // up to 88.3
            float x;
            const uint32_t word = bits | (uint32_t)sign << 31;
            memcpy(&x, &word, sizeof x);
            if (x < -87.3f) { break; }
            worst = fmax(worst, fabs((double)fast_expf(x) / exp((double)x) - 1.0));
        }
    }
    CHECK_NEAR(worst, 0.0, 1.2e-7);
    CHECK(fast_expf(0.0f) == 1.0f && fast_expf(-87.4f) == 0.0f && fast_expf(-INFINITY) == 0.0f);
    CHECK(fast_expf(INFINITY) == fast_expf(88.3f) && fast_expf(INFINITY) < FLT_MAX && isnan(fast_expf(NAN)));
}

// A share p falls (5 standard deviations), and masks of other keys, places, columns, rows and heads are
// independent: correlations of N values are 0, give or take 1 / sqrt(N). Keys that are hardly random, too.
enum { MASK_T = 200, MASK_C = 400, MASK_N = MASK_T * MASK_C };
static void mask_of(float* mask, const uint32_t* keys, uint32_t place, uint32_t head, float p) {
    for (int i = 0; i < MASK_N; i++) {
        const uint32_t key = keys[i / MASK_C],
                       row = head > 0 ? dropout_head_row(key, place, head) : dropout_row(key, place);
        mask[i] = dropout_bits(row, (uint32_t)(i % MASK_C)) < dropout_threshold(p) ? -1.0f : 1.0f;
    }
}
static double correlation(const float* a, const float* b, int n) {
    double sum = 0.0;
    for (int i = 0; i < n; i++) { sum += (double)a[i] * (double)b[i]; }
    return sum / n * sqrt((double)n);
}
static void masks_are_fair_and_independent(void) {
    static float mask[MASK_N], other[MASK_N];
    uint32_t keys[MASK_T], next[MASK_T];
    for (int round = 0; round < 2; round++) {
        for (uint32_t t = 0; t < MASK_T; t++) {
            next[t] = (keys[t] = round ? t : (uint32_t)rng_u64(&test_rng)) + (round ? 1000 : 1);
        }
        for (int i = 0; i < 4; i++) {
            const double p = (double[]){0.05, 0.1, 0.5, 0.9}[i];
            double fallen = 0.0;
            mask_of(mask, keys, (uint32_t)i, 0, (float)p);
            for (int k = 0; k < MASK_N; k++) { fallen += mask[k] < 0.0f; }
            CHECK_NEAR(fallen / MASK_N, p, 5.0 * sqrt(p * (1.0 - p) / MASK_N));
        }
        mask_of(mask, keys, 17, 0, 0.5f);
        for (uint32_t place = 0; place < 48; place++) {
            mask_of(other, place == 17 ? next : keys, place < 40 ? place : 17, place < 40 ? 0 : place - 39,
                    0.5f);
            CHECK_NEAR(correlation(mask, other, MASK_N), 0.0, 5.0);
        }
        static const int away[] = {1, 2, 3, 8, 16, 64, 128, MASK_C, 2 * MASK_C, 64 * MASK_C};
        for (int i = 0; i < 10; i++) {
            CHECK_NEAR(correlation(mask, mask + away[i], MASK_N - away[i]), 0.0, 5.0);
        }
    }
}
#else
// On a card of 132 SMs a last sum goes over more blocks than it has slices, in several turns.
static void many_blocks_add_up(void) {
    const int num_sms = ops->num_sms;
    ops->num_sms = other_ops->num_sms = 132;
    CHECK(op_check_case(&norms[2], 6));
    CHECK(op_check_case(&norms[5], 6));
    ops->num_sms = other_ops->num_sms = num_sms;
}

// inp * rstd becomes a floatX before the product with the weight, on every path.
static void the_norm_is_rounded_before_the_weight(void) {
    for (int i = 1; i < 21; i++) {
        static Case of_norm;
        Case* c = &of_norm;
        *c = (Case){.i = i};
        rmsnorm_make(c);
        case_upload(c);
        rmsnorm_call(c, ops);
        float *got = array_download(&c->a[0]), *rstd = array_download(&c->a[1]);
        int num_wrong = 0;
        for (int k = 0; k < c->T * c->C; k++) {
            const float xhat = as_x((double)(c->a[2].host[k] * rstd[k / c->C]));
            num_wrong += as_x((double)(xhat * c->a[3].host[k % c->C] * c->scale)) != got[k];
        }
        CHECK_EQ(num_wrong, 0);
        free(got);
        free(rstd);
        CHECK(case_release(c));
    }
}

// The law on which "no row is written by two threads" rests. Ids that differ in one byte, in two, in three.
static void sort_is_by_id_and_stable(void) {
    static const int lengths[] = {1, 31, 257, 1024, 2500}, limits[] = {2, 300, 3 << 16, 1 << 24},
                     strides[] = {1, 256, 4352};
    for (int i = 0; i < 18; i++) {
        static Case c;
        c = (Case){.i = i};
        const int T = i == 5 ? 66000 : lengths[i % 5], limit = limits[i % 4],
                  stride = limit > 4352 ? strides[i % 3] : 1;
        Array* ids = in_i(&c, (size_t)T, 0);
        int32_t *host = (int32_t*)ids->host, *got = must(malloc((size_t)T * sizeof *got));
        for (int t = 0; t < T; t++) { host[t] = below(limit / stride) * stride; }
        add_scratch(&c, embedding_sort_bytes(T));
        case_upload(&c);
        const int32_t *order[SORT_TABLES], *const both[SORT_TABLES] = {ids->device, ids->device};
        embedding_sort(order, both, SORT_TABLES, c.scratch, T, ops);
        for (int table = 0; table < SORT_TABLES; table++) {
            ops_download(ops, got, order[table], (size_t)T * sizeof *got);
            int num_wrong =
                got[0] < 0 || got[0] >= T;  // strictly ascending pairs (id, t): sorted, stable, each once
            for (int k = 1; k < T && num_wrong == 0; k++) {
                num_wrong += got[k] < 0 || got[k] >= T || host[got[k - 1]] > host[got[k]] ||
                             (host[got[k - 1]] == host[got[k]] && got[k - 1] >= got[k]);
            }
            CHECK_EQ(num_wrong, 0);
        }
        free(got);
        CHECK(case_release(&c));
    }
    const size_t none = embedding_backward_scratch_bytes(1, 768, ops);
    CHECK(none <= 256 << 10 && embedding_backward_scratch_bytes(1 << 20, 768, ops) - none <= (size_t)16
                                                                                                 << 20);
}
#endif

#ifdef LLMC_BF16
// Salmon et al. 2011, written as in the paper.
static void philox(uint32_t c[4], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)c[0] * 0xd2511f53u, p1 = (uint64_t)c[2] * 0xcd9e8d57u;
        const uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1,
                                  (uint32_t)(p0 >> 32) ^ c[3] ^ k1, (uint32_t)p0};
        memcpy(c, next, sizeof next);
        k0 += 0x9e3779b9u, k1 += 0xbb67ae85u;
    }
}
static float rounded_by_philox(float value, int64_t idx, const AdamwUpdate* about) {
    uint32_t bits, c[4] = {(uint32_t)(idx / 4), (uint32_t)((uint64_t)(idx / 4) >> 32), (uint32_t)about->t, 0};
    philox(c, about->seed, 0);
    memcpy(&bits, &value, sizeof bits);
    return half_from_bfloat16((uint16_t)((bits + (c[idx % 4] & 0xffffu)) >> 16));
}

// Predicted exactly: of the master copy, for any seed and step, over indices of more than 32 bits;
// infinity and NaN stay what they are.
static void params_are_rounded_by_philox(void) {
    uint32_t known[4] = {~0u, ~0u, ~0u, ~0u};
    philox(known, ~0u, ~0u);  // Random123, kat_vectors
    CHECK(known[0] == 0x408f276d && known[1] == 0x41c83b0e && known[2] == 0xa20bc7c6 &&
          known[3] == 0x6d5451fd);
    static const int64_t firsts[] = {0, 4, 17, ((int64_t)1 << 34) + 4, ((int64_t)1 << 34) + 5};
    for (int i = 1; i < 20; i++) {
        static Case of_update;
        Case* c = &of_update;
        *c = (Case){.i = i};
        adamw_make(c);
        AdamwUpdate about = adamw_about(i);
        about.seed = (uint32_t)i;
        if (c->T > 7) {
            c->a[1].host[5] = INFINITY, c->a[1].host[6] = NAN, c->a[2].host[5] = c->a[2].host[6] = 0.0f;
        }
        case_upload(c);
        const size_t n = (size_t)c->T;
        adamw_slice(c, 0, n, firsts[i % 5], &about, ops);
        float *params = array_download(&c->a[0]), *master = array_download(&c->a[1]);
        int num_wrong = 0;
        for (size_t k = 0; k < n; k++) {
            const float ref = rounded_by_philox(master[k], firsts[i % 5] + (int64_t)k, &about);
            num_wrong += isfinite(master[k]) ? params[k] != ref
                         : isnan(master[k])  ? !isnan(params[k])
                                             : !isinf(params[k]);
        }
        CHECK_EQ(num_wrong, 0);
        free(params);
        free(master);
        CHECK(case_release(c));
    }
}
#endif

int main(int argc, char** argv) {
    ops_test_begin(argc, argv);
    RUN(embeddings_equal_the_reference);
    RUN(norms_equal_the_reference);
    RUN(products_equal_the_reference);
    RUN(elementwise_ops_equal_the_reference);
    RUN(rows_are_where_they_belong);
    RUN(losses_and_gradients_equal_the_reference);
    RUN(updates_equal_the_reference);
    RUN(any_cut_of_an_update_gives_the_same_bits);
    RUN(shares_are_the_whole_head);
    RUN(largest_of_shares_is_the_rows);
    RUN(a_norm_of_a_written_sum_is_the_fused_one);
    RUN(a_sum_of_squares_is_exact_enough);
#ifndef LLMC_CUDA
    RUN(exp_is_accurate_everywhere);
    RUN(masks_are_fair_and_independent);
#else
    RUN(many_blocks_add_up);
    RUN(the_norm_is_rounded_before_the_weight);
    RUN(sort_is_by_id_and_stable);
#endif
#ifdef LLMC_BF16
    RUN(params_are_rounded_by_philox);
#endif
    return ops_test_end();
}
