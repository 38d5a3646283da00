/*
ops.h -- every operation of the trainer, with shapes: the kernel manual.

Two implementations: cpu/ (float32, OpenBLAS + OpenMP; the reference) and cuda/. Conventions:
  T    tokens of a micro-batch, of all sequences together, laid one after the other; no padding is assumed
  C    channels, NH heads, HS = C / NH; OC output channels of a matrix; V vocabulary, Vp its padded row length
  cu_seqlens (num_seqs + 1): sequence i is the rows [cu_seqlens[i], cu_seqlens[i + 1]); attention stays inside
  weights are (OC, C) row-major as in llm.c's checkpoints: y = x W^T + b
Gradients of parameters and of inputs marked += are added, all other outputs are overwritten. Input gradient
and weight gradient of a matrix are separate calls, so a schedule can put the second one where time is idle.
Everything is deterministic: the same call gives the same bits (for the same number of threads).
Nothing here allocates; scratch comes from the caller.
*/
#pragma once

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef float floatX;  // CPU build; the CUDA build makes it bf16

typedef struct OpsContext OpsContext;  // CPU: number of threads; CUDA: stream, handles, workspace

// num_threads 0: OMP_NUM_THREADS or all cores. Exits with a message where the machine cannot serve.
OpsContext* ops_create(int num_threads);
void ops_free(OpsContext* ops);
int ops_num_threads(const OpsContext* ops);

// --- embedding ---------------------------------------------------------------------------------------------
void embedding_forward(floatX* out,               // (T, C)  wte[tokens] + wpe[positions]
                       const int32_t* tokens,     // (T)     0 <= id < V
                       const int32_t* positions,  // (T)
                       const floatX* wte,         // (Vp, C)
                       const floatX* wpe,         // (maxT, C)
                       int T, int C, OpsContext* ops);
void embedding_backward(floatX* dwte, floatX* dwpe,  // +=
                        const floatX* dout,          // (T, C)
                        const int32_t* tokens, const int32_t* positions, int T, int C, OpsContext* ops);

// --- layernorm (eps 1e-5) ----------------------------------------------------------------------------------
void layernorm_forward(floatX* out,  // (T, C)  (inp - mean) * rstd * weight + bias
                       float* mean,  // (T)     kept for backward
                       float* rstd,  // (T)
                       const floatX* inp, const floatX* weight, const floatX* bias, int T, int C,
                       OpsContext* ops);
// residual = a + b, out = layernorm(residual): one pass over memory.
void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                                const floatX* b, const floatX* weight, const floatX* bias, int T, int C,
                                OpsContext* ops);
void residual_forward(floatX* out, const floatX* a, const floatX* b, size_t num_values, OpsContext* ops);
// dinp (T, C) = dresidual + gradient through the norm (dresidual may be dinp itself, or NULL for zero);
// dweight, dbias (C) +=
void layernorm_backward(floatX* dinp, floatX* dweight, floatX* dbias, const floatX* dresidual,
                        const floatX* dout, const floatX* inp, const floatX* weight, const float* mean,
                        const float* rstd, int T, int C, OpsContext* ops);

// --- matrix products ---------------------------------------------------------------------------------------
void matmul_forward(floatX* out,           // (T, OC)  inp W^T + bias
                    const floatX* inp,     // (T, C)
                    const floatX* weight,  // (OC, C)
                    const floatX* bias,    // (OC) or NULL
                    int T, int C, int OC, OpsContext* ops);
void matmul_backward_input(floatX* dinp,  // (T, C)  dout W
                           const floatX* dout, const floatX* weight, int T, int C, int OC, OpsContext* ops);
void matmul_backward_weight(floatX* dweight,  // (OC, C) += dout^T inp
                            floatX* dbias,    // (OC) += column sums of dout; or NULL
                            const floatX* dout, const floatX* inp, int T, int C, int OC, OpsContext* ops);

// --- GELU, tanh approximation ------------------------------------------------------------------------------
void gelu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops);
// dinp = dout * gelu'(inp); dinp may be dout or inp itself.
void gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values, OpsContext* ops);

// --- causal self-attention over ragged sequences, online softmax, no T x T in memory ---------------------
void attention_forward(floatX* out,        // (T, C)
                       float* lse,         // (NH, T)  log-sum-exp of the scaled scores, for backward
                       const floatX* qkv,  // (T, 3C)  q | k | v, heads side by side in each
                       const int32_t* cu_seqlens, int num_seqs, int T, int C, int NH, OpsContext* ops);
size_t attention_backward_scratch_bytes(int T, int C, int NH, int max_seq_tokens, const OpsContext* ops);
void attention_backward(floatX* dqkv,  // (T, 3C); may not overlap qkv
                        void* scratch, const floatX* dout, const floatX* qkv, const floatX* out,
                        const float* lse, const int32_t* cu_seqlens, int num_seqs, int T, int C, int NH,
                        OpsContext* ops);

// --- rows, classifier --------------------------------------------------------------------------------------
void gather_rows(floatX* out,  // (num_rows, C)  inp[rows]
                 const floatX* inp, const int32_t* rows, int num_rows, int C, OpsContext* ops);
// out (T, C) = 0, then out[rows] = inp
void scatter_rows(floatX* out, const floatX* inp, const int32_t* rows, int num_rows, int T, int C,
                  OpsContext* ops);
// losses (num_rows) = cross entropy over V; with dlogits_scale != 0, logits (num_rows, Vp) become
// (softmax - onehot) * dlogits_scale in place, columns V..Vp-1 zero.
void fused_classifier(float* losses, floatX* logits, const int32_t* targets, float dlogits_scale,
                      int num_rows, int V, int Vp, OpsContext* ops);
int32_t argmax_row(const floatX* logits, int V, OpsContext* ops);

// --- optimizer ---------------------------------------------------------------------------------------------
// Decoupled weight decay (Loshchilov, Hutter 2019), bias-corrected; t counts from 1. grads are multiplied by
// grad_scale first (clipping).
void adamw_update(float* params, float* m, float* v, const floatX* grads, size_t num_params, float lr,
                  float beta1, float beta2, int t, float eps, float weight_decay, float grad_scale,
                  OpsContext* ops);
double sum_of_squares(const floatX* values, size_t num_values,
                      OpsContext* ops);  // summed in double, fixed order

#ifdef __cplusplus
}
#endif
