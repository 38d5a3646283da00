/*
cpu_ops.h -- the CPU's operations beside the GPU's in one program: float32 in host memory, with cpu_ before
the name.

cpu_ops.c wraps them; the Makefile hides every other symbol of llmc/cpu in one object (cpu_ops.o). An
Attention
("about") is passed as const void*: its pointers are to float there.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

// clang-format off
#define CPU_OPS(X) \
    X(void, embedding_forward, (float* out, const int32_t* tokens, const int32_t* positions, const float* wte, const float* wpe, int T, int C), (out, tokens, positions, wte, wpe, T, C, cpu)) \
    X(void, embedding_backward, (float* dwte, float* dwpe, const float* dout, const int32_t* tokens, const int32_t* positions, int T, int C), (dwte, dwpe, NULL, dout, tokens, positions, T, C, cpu)) \
    X(void, layernorm_forward, (float* out, float* mean, float* rstd, const float* inp, const float* weight, const float* bias, int T, int C), (out, mean, rstd, inp, weight, bias, T, C, cpu)) \
    X(void, residual_layernorm_forward, (float* residual, float* out, float* mean, float* rstd, const float* a, const float* b, const float* weight, const float* bias, int T, int C), (residual, out, mean, rstd, a, b, weight, bias, T, C, cpu)) \
    X(void, residual_forward, (float* out, const float* a, const float* b, size_t num_values), (out, a, b, num_values, cpu)) \
    X(void, layernorm_backward, (float* dinp, float* dweight, float* dbias, const float* dresidual, const float* dout, const float* inp, const float* weight, const float* mean, const float* rstd, int T, int C), (dinp, dweight, dbias, dresidual, dout, inp, weight, mean, rstd, T, C, cpu)) \
    X(void, rmsnorm_forward, (float* out, float* rstd, const float* inp, const float* weight, float scale, int T, int C), (out, rstd, inp, weight, scale, T, C, cpu)) \
    X(void, residual_rmsnorm_forward, (float* residual, float* out, float* rstd, const float* a, const float* b, const float* weight, float scale, int T, int C), (residual, out, rstd, a, b, weight, scale, T, C, cpu)) \
    X(void, rmsnorm_backward, (float* dinp, float* dweight, const float* dresidual, const float* dout, const float* inp, const float* weight, const float* rstd, float scale, int T, int C), (dinp, dweight, dresidual, dout, inp, weight, rstd, scale, T, C, cpu)) \
    X(void, matmul_forward, (float* out, const float* inp, const float* weight, const float* bias, int T, int C, int OC), (out, inp, weight, bias, T, C, OC, cpu)) \
    X(void, matmul_backward_input, (float* dinp, const float* dout, const float* weight, int T, int C, int OC), (dinp, dout, weight, T, C, OC, cpu)) \
    X(void, matmul_backward_weight, (float* dweight, float* dbias, const float* dout, const float* inp, int T, int C, int OC), (dweight, dbias, dout, inp, T, C, OC, cpu)) \
    X(void, matmul_gelu_forward, (float* out, float* pre_gelu, const float* inp, const float* weight, const float* bias, int T, int C, int OC), (out, pre_gelu, inp, weight, bias, T, C, OC, cpu)) \
    X(void, matmul_gelu_backward_input, (float* dinp, const float* pre_gelu, void* scratch, const float* dout, const float* weight, int T, int C, int OC), (dinp, pre_gelu, scratch, dout, weight, T, C, OC, cpu)) \
    X(void, gelu_forward, (float* out, const float* inp, size_t num_values), (out, inp, num_values, cpu)) \
    X(void, gelu_backward, (float* dinp, const float* dout, const float* inp, size_t num_values), (dinp, dout, inp, num_values, cpu)) \
    X(void, relu_forward, (float* out, const float* inp, size_t num_values), (out, inp, num_values, cpu)) \
    X(void, relu_backward, (float* dinp, const float* dout, const float* inp, size_t num_values), (dinp, dout, inp, num_values, cpu)) \
    X(void, gated_gelu_forward, (float* out, const float* inp, int T, int F), (out, inp, T, F, cpu)) \
    X(void, gated_gelu_backward, (float* dinp, const float* dout, const float* inp, int T, int F), (dinp, dout, inp, T, F, cpu)) \
    X(void, dropout_apply, (float* out, const float* inp, const uint32_t* keys, uint32_t place, float p, int T, int C), (out, inp, keys, place, p, T, C, cpu)) \
    X(void, attention_forward, (float* out, float* lse, const void* about), (out, lse, about, cpu)) \
    X(size_t, attention_scratch_bytes, (const void* about), (about, cpu)) \
    X(void, attention_backward, (float* dq, float* dk, float* dv, float* dbias, void* scratch, const float* dout, const float* out, const float* lse, const void* about), (dq, dk, dv, dbias, scratch, dout, out, lse, about, cpu)) \
    X(void, gather_rows, (float* out, const float* inp, const int32_t* rows, int num_rows, int C), (out, inp, rows, num_rows, C, cpu)) \
    X(void, scatter_rows, (float* out, const float* inp, const int32_t* rows, int num_rows, int T, int C), (out, inp, rows, num_rows, T, C, cpu)) \
    X(void, fused_classifier, (float* losses, float* logits, const int32_t* targets, float dlogits_scale, int num_rows, int V, int Vp), (losses, logits, targets, dlogits_scale, num_rows, V, Vp, cpu)) \
    X(void, argmax_rows, (int32_t* out, const float* logits, int num_rows, int V, int Vp), (out, logits, num_rows, V, Vp, cpu)) \
    X(void, classifier_share, (float* stats, float* logits, const int32_t* targets, bool with_grads, int num_rows, int begin, int V, int Vs), (stats, logits, targets, with_grads, num_rows, begin, V, Vs, cpu)) \
    X(void, target_rows, (float* out, const float* weight, const int32_t* targets, int num_rows, int begin, int V, int C), (out, weight, targets, num_rows, begin, V, C, cpu)) \
    X(void, classifier_combine, (float* losses, float* const* factors, const float* const* stats, float scale, int num_rows, int num_shares), (losses, factors, stats, scale, num_rows, num_shares, cpu)) \
    X(void, combine_parts, (float* dinp, const float* const* sums, const float* const* targets, const float* const* factors, int num_rows, int C, int num_shares), (dinp, sums, targets, factors, num_rows, C, num_shares, cpu)) \
    X(void, classifier_factors, (float* e, float* rows, const float* factors, const int32_t* targets, int num_rows, int C, int begin, int V, int Vs), (e, rows, factors, targets, num_rows, C, begin, V, Vs, cpu)) \
    X(void, argmax_share, (float* values, int32_t* ids, const float* logits, int num_rows, int begin, int V, int Vs), (values, ids, logits, num_rows, begin, V, Vs, cpu)) \
    X(void, place_rows, (float* dst, int dst_stride, const float* src, int src_stride, const int32_t* rows, int num_rows, int width), (dst, dst_stride, src, src_stride, rows, num_rows, width, cpu)) \
    X(void, adamw_update, (float* params, float* m, float* v, const float* grads, size_t num_params, const void* about), (params, NULL, m, v, grads, num_params, 0, about, cpu)) \
    X(double, sum_of_squares, (const float* values, size_t num_values), (values, num_values, cpu))
// clang-format on

#define X(type, name, params, args) type cpu_##name params;
CPU_OPS(X)
#undef X
