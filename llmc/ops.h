/*
ops.h -- every operation of the trainer, with shapes.

Two implementations: cpu/ (float32, OpenBLAS + OpenMP; the reference) and cuda/ (bf16 or float32).
Conventions:

    T           tokens of a microbatch, of all sequences together, laid one after the other; no padding
    C           channels; NH heads, HS = C / NH; OC output channels of a matrix
    V           vocabulary; Vp its padded row length
    cu_seqlens  (num_seqs + 1) sequence i is the rows [cu_seqlens[i], cu_seqlens[i + 1])
    weights     (OC, C) row-major as in llm.c's checkpoints: y = x W^T + b

Attention stays inside a sequence. Gradients of parameters and of inputs marked += are added, all other
outputs are overwritten. Input gradient and weight gradient of a matrix are separate calls, so a schedule can
use the second one to fill idle time. Gradients of parameters are float32 in every build: a step sums many
microbatches, and bf16 would lose the small ones. Everything is deterministic: the same call gives the same
bits (for the same number of threads).

Pointers are device memory: on a GPU from ops_alloc(), on a CPU any. Operations are queued in the order of the
calls and complete on a CPU on return, on a GPU after ops_sync(). Only ops_alloc() allocates; scratch comes
from the caller.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

// The type of parameters and activations. Build flags: LLMC_CUDA (kernels of cuda/), LLMC_BF16 with it.
#if !defined(LLMC_BF16)
typedef float floatX;
#elif defined(__CUDACC__)
#include <cuda_bf16.h>
typedef __nv_bfloat16 floatX;
#else
typedef struct {
    uint16_t bits;
} floatX;  // C code only moves them; floatx.h converts
#endif

#ifdef __cplusplus
extern "C" {
#endif

typedef struct OpsContext OpsContext;  // CPU: number of threads; CUDA: stream, handles, workspace

void ops_print_version(FILE* out);  // one line: the libraries of the operations, for --version
// num_threads 0: OMP_NUM_THREADS or all cores; ignored on a GPU (the current device). On an unsuitable
// machine: a message, and exit status 2.
OpsContext* ops_create(int num_threads);
void ops_free(OpsContext* ops);
int ops_num_threads(const OpsContext* ops);          // 1 on a GPU
void* ops_stream(const OpsContext* ops);             // cudaStream_t of all operations; NULL on a CPU
const char* ops_device_name(const OpsContext* ops);  // "NVIDIA H200"; "cpu"
double ops_peak_flops(const OpsContext* ops);  // FLOP/s of its products in this build; 0: unknown, as on CPUs

// --- memory, order -----------------------------------------------------------------------------------------
// Zeroed device memory; on failure the program ends with a message that includes `what`.
void* ops_alloc(OpsContext* ops, size_t num_bytes, const char* what);
// Uninitialised, for callers that write all of it: on a CPU no page is touched.
void* ops_alloc_raw(OpsContext* ops, size_t num_bytes, const char* what);
void ops_release(OpsContext* ops, void* memory);  // NULL is allowed
void ops_zero(OpsContext* ops, void* memory, size_t num_bytes);
// Between host and device; both wait for completion. A download sees all operations queued before.
void ops_upload(OpsContext* ops, void* memory, const void* host, size_t num_bytes);
void ops_download(OpsContext* ops, void* host, const void* memory, size_t num_bytes);
// A copy of `host` for operations queued after this call, without waiting (CPU: `host` itself). `host` may
// change after return. Valid for operations queued before the second following ops_stage_begin(): the
// arrays of one job lie between two of these calls.
void ops_stage_begin(OpsContext* ops);
const int32_t* ops_stage(OpsContext* ops, const int32_t* host, size_t num_values);
// Memory for losses until the second following ops_stage_begin() (CPU: `host` itself) ...
float* ops_results(OpsContext* ops, float* host, size_t num_values);
// ... and the copy to `host`, queued after their operations, valid after ops_sync().
void ops_deliver(OpsContext* ops, float* host, const float* results, size_t num_values);
void ops_sync(OpsContext* ops);
// Queued like an operation; both on the device, not overlapping.
void ops_copy(OpsContext* ops, void* to, const void* from, size_t num_bytes);
// The same, into float32: for parameter tables that kernels read as float32.
void values_to_floats(float* out, const floatX* inp, size_t num_values, OpsContext* ops);

// --- embedding ---------------------------------------------------------------------------------------------
enum { OPS_MAX_IDS = 1 << 24 };                // of tokens, of positions: a GPU sorts by three bytes of them
void embedding_forward(floatX* out,            // (T, C)  wte[tokens] + wpe[positions]
                       const int32_t* tokens,  // (T)     0 <= id < V <= OPS_MAX_IDS
                       const int32_t* positions,  // (T)     not read where wpe is NULL
                       const floatX* wte,         // (Vp, C)
                       const floatX* wpe,         // (maxT, C), or NULL: no positions (T5)
                       int T, int C, OpsContext* ops);
size_t embedding_backward_scratch_bytes(int T, int C, const OpsContext* ops);
void embedding_backward(float* dwte, float* dwpe,  // +=; dwpe NULL: no positions
                        void* scratch,
                        const floatX* dout,  // (T, C)
                        const int32_t* tokens, const int32_t* positions, int T, int C, OpsContext* ops);

// --- layernorm ---------------------------------------------------------------------------------------------
void layernorm_forward(floatX* out,  // (T, C)  (inp - mean) * rstd * weight + bias
                       float* mean,  // (T)     kept for backward
                       float* rstd,  // (T)     (variance + eps)^-1/2
                       const floatX* inp, const floatX* weight, const floatX* bias, float eps, int T, int C,
                       OpsContext* ops);
// residual = a + b, out = layernorm(residual): one pass over memory.
void residual_layernorm_forward(floatX* residual, floatX* out, float* mean, float* rstd, const floatX* a,
                                const floatX* b, const floatX* weight, const floatX* bias, float eps, int T,
                                int C, OpsContext* ops);
void residual_forward(floatX* out, const floatX* a, const floatX* b, size_t num_values, OpsContext* ops);
// dinp (T, C) = dresidual + gradient through the norm (dresidual may be dinp itself, or NULL for zero);
// dweight, dbias (C) +=
void layernorm_backward(floatX* dinp, float* dweight, float* dbias, const floatX* dresidual,
                        const floatX* dout, const floatX* inp, const floatX* weight, const float* mean,
                        const float* rstd, int T, int C, OpsContext* ops);

// --- RMS norm (Zhang, Sennrich 2019; T5's and Llama's) ----------------------------------------------------
// out (T, C) = inp * rstd * weight * scale; rstd (T) = (mean of squares + eps)^-1/2 in float32. `scale` is
// 1, or a following factor (T5's tied head: C^-1/2). bf16: inp * rstd is rounded before the weight, as in
// Hugging Face's T5LayerNorm and LlamaRMSNorm.
void rmsnorm_forward(floatX* out, float* rstd, const floatX* inp, const floatX* weight, float scale,
                     float eps, int T, int C, OpsContext* ops);
// residual = a + b, out = rmsnorm(residual): one pass over memory.
void residual_rmsnorm_forward(floatX* residual, floatX* out, float* rstd, const floatX* a, const floatX* b,
                              const floatX* weight, float scale, float eps, int T, int C, OpsContext* ops);
// dinp (T, C) = dresidual + gradient through the norm (dresidual may be dinp itself, or NULL for zero);
// dweight (C) +=
void rmsnorm_backward(floatX* dinp, float* dweight, const floatX* dresidual, const floatX* dout,
                      const floatX* inp, const floatX* weight, const float* rstd, float scale, int T, int C,
                      OpsContext* ops);

// --- matrix products ---------------------------------------------------------------------------------------
void matmul_forward(floatX* out,           // (T, OC)  inp W^T + bias
                    const floatX* inp,     // (T, C)
                    const floatX* weight,  // (OC, C)
                    const floatX* bias,    // (OC) or NULL
                    int T, int C, int OC, OpsContext* ops);
void matmul_backward_input(floatX* dinp,  // (T, C)  dout W
                           const floatX* dout, const floatX* weight, int T, int C, int OC, OpsContext* ops);
void matmul_backward_weight(float* dweight,  // (OC, C) += dout^T inp
                            float* dbias,    // (OC) += column sums of dout; or NULL
                            const floatX* dout, const floatX* inp, int T, int C, int OC, OpsContext* ops);

// pre_gelu (T, OC) = inp W^T + bias, out = gelu(pre_gelu): one pass where the library can.
void matmul_gelu_forward(floatX* out, floatX* pre_gelu, const floatX* inp, const floatX* weight,
                         const floatX* bias, int T, int C, int OC, OpsContext* ops);
// dinp (T, C) = (dout W) * gelu'(pre_gelu), pre_gelu (T, C) may be dinp; scratch: (T, C) values.
void matmul_gelu_backward_input(floatX* dinp, const floatX* pre_gelu, void* scratch, const floatX* dout,
                                const floatX* weight, int T, int C, int OC, OpsContext* ops);

// --- GELU, tanh approximation ------------------------------------------------------------------------------
void gelu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops);
// dinp = dout * gelu'(inp); dinp may be dout or inp itself.
void gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values, OpsContext* ops);
// The same without the approximation: x Phi(x), Phi the normal distribution.
void exact_gelu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops);
void exact_gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values,
                         OpsContext* ops);

// --- ReLU; gated GELU (Shazeer 2020: GEGLU, tanh approximation) and SiLU (SwiGLU) -------------------------
void relu_forward(floatX* out, const floatX* inp, size_t num_values, OpsContext* ops);
// dinp = inp > 0 ? dout : 0; dinp may be dout or inp itself.
void relu_backward(floatX* dinp, const floatX* dout, const floatX* inp, size_t num_values, OpsContext* ops);
// inp (T, 2F): a | b in each row. out (T, F) = gelu(a) * b
void gated_gelu_forward(floatX* out, const floatX* inp, int T, int F, OpsContext* ops);
// dinp (T, 2F) may be inp itself.
void gated_gelu_backward(floatX* dinp, const floatX* dout, const floatX* inp, int T, int F, OpsContext* ops);
// The same with silu(a) = a / (1 + exp(-a)).
void gated_silu_forward(floatX* out, const floatX* inp, int T, int F, OpsContext* ops);
void gated_silu_backward(floatX* dinp, const floatX* dout, const floatX* inp, int T, int F, OpsContext* ops);

// --- dropout (Srivastava et al. 2014) ---------------------------------------------------------------------
// The mask is a hash (dropout_bits.h) of a token key, the place in the model and the column: no state,
// nothing kept for backward, independent of the rest of the microbatch. Remaining values are divided by
// (1 - p). keys (T): one number for each token of a sample in a step, from the data loader. place: one number
// for each dropout of the model. out may be inp; backward is the same call on the gradient. p 0: a copy.
void dropout_apply(floatX* out, const floatX* inp, const uint32_t* keys, uint32_t place, float p, int T,
                   int C, OpsContext* ops);

// --- rotary positions (RoFormer: Su et al. 2021), grouped heads of keys (GQA: Ainslie et al. 2023) ---------
// From what the matrix of q, k and v makes to what attention reads: q and k turned by their positions, k and
// v once for each head of q that reads them. So attention needs no other kernels; it reads, keeps and caches
// NH / NKV times the keys. Backward turns back and adds up each group, in float32. Channels c and c + HS/2 of
// a head are turned together: Hugging Face's pairs; the paper's are adjacent.
enum { ROPE_MAX_PAIRS = 128 };
typedef struct {
    int num_heads, num_kv_heads, head_size;  // NH a multiple of NKV, HS even
    float rates[ROPE_MAX_PAIRS];             // of each pair, in radians per position
} Rope;
void rope_forward(floatX* out,               // (T, 3 NH HS)
                  const floatX* inp,         // (T, (NH + 2 NKV) HS)
                  const int32_t* positions,  // (T)
                  const Rope* about, int T, OpsContext* ops);
void rope_backward(floatX* dinp, const floatX* dout, const int32_t* positions, const Rope* about, int T,
                   OpsContext* ops);

// --- attention: two ragged sides, online softmax, no T x T in memory; T5's position bias ------------------
// Does this device support these heads (in both forms) and this bias (num_buckets 0: none)? false: `error`
// (256 characters) lists what it supports. Call it before building a model: the operations end the program.
bool attention_check(int head_size, int num_buckets, int max_distance);

// Sequence 0 may be a piece of a sample that is cut along its tokens, whose keys and values are kept from
// piece to piece: its keys are rows [0, num_keys) of k, v here instead of Attention.k, v. They come first
// among all keys (cu_k[1] == num_keys; k_keys). Those from own_begin on are this batch's: key t of all keys
// is row t - own_begin of Attention.k, v and of dk, dv, which lack the keys before. Forward reads the rows
// here, where the caller has copied the piece's own ones. Backward is for the last piece first; c_j is the
// gradient of row j from this piece's queries:
//     j <  own_begin   dk[j] here = (is_last ? 0 : dk[j]) + c_j
//     j >= own_begin   dk[j - own_begin] of the batch = c_j + (is_last ? 0 : dk[j] here)
// and dv likewise. No sequence is padded (k_lens NULL).
typedef struct {
    const floatX *k, *v;  // row j at k + j * stride; NULL: no piece
    int stride;
    int num_keys;
    int own_begin;   // of self-attention q_start; of cross-attention 0 in the first piece, then num_keys
    int q_start;     // the place of its first query among its keys (causal mask, bias)
    float *dk, *dv;  // at the same places, in values; backward only
    bool is_last;
} AttentionKept;

typedef struct {
    const floatX *q, *k, *v;     // token t's row begins at q + t * q_stride; heads side by side
    int q_stride, kv_stride;     // values
    const int32_t *cu_q, *cu_k;  // (num_seqs + 1); the same array for self-attention
    int num_seqs, num_q_tokens, num_k_tokens, num_heads, head_size;  // attention_check()
    // (num_seqs) tokens of each sequence that are keys; the following ones are padding, which is masked and
    // has dk, dv 0. With k_lens only the begins are read from cu_k, which need not be adjacent (a cache of
    // keys and values). NULL: all.
    const int32_t* k_lens;
    // (num_seqs) the place among its keys of each sequence's first query (decoding with a cache; forward
    // only). NULL: 0.
    const int32_t* q_starts;
    int causal;   // the query at place i of a sequence sees its keys 0 .. i only
    float scale;  // of q k; T5: 1
    // T5 (Raffel et al. 2020): bias[bucket(j - i)][head] is added to the scaled score. NULL: none.
    const float* bias;              // (num_buckets, num_heads), finite: masked pairs add it too
    int num_buckets, max_distance;  // 32, 128
    int bias_bidirectional;         // half the buckets for j > i (encoder); else these count as distance 0
    // Dropout of the probabilities (after the softmax, not renormalised); 0: none. The bits are a hash of
    // both tokens' keys, place and head.
    float dropout;
    uint32_t dropout_place;
    const uint32_t *q_keys, *k_keys;  // (num_q_tokens), (num_k_tokens)
    AttentionKept kept;
} Attention;
void attention_forward(floatX* out,  // (num_q_tokens, num_heads * head_size)
                       float* lse,   // (num_heads, num_q_tokens)
                       const Attention* about, OpsContext* ops);
size_t attention_scratch_bytes(const Attention* about, const OpsContext* ops);
// dq, dk, dv have the strides of q, k, v and may not overlap them; dbias (num_buckets, num_heads) +=, or
// NULL.
void attention_backward(floatX* dq, floatX* dk, floatX* dv, float* dbias, void* scratch, const floatX* dout,
                        const floatX* out, const float* lse, const Attention* about, OpsContext* ops);

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
// out (num_rows), host memory: the index of each row's largest value, the first of equals; waits for it.
void argmax_rows(int32_t* out, const floatX* logits, int num_rows, int V, int Vp, OpsContext* ops);
// dst[rows[i] * dst_stride + c] = src[i * src_stride + c] for c < width: new keys and values into a cache.
void place_rows(floatX* dst, int dst_stride, const floatX* src, int src_stride, const int32_t* rows,
                int num_rows, int width, OpsContext* ops);

// --- a head shared by vocabulary (Yeung et al. 2025: Vocabulary Parallelism, one barrier) ------------------
// Share r has the ids [begin, begin + V) as the first V of the Vs rows of its part W_r of the matrix; the
// remaining rows are padding (V 0: all of them). Each id is in exactly one share. For each row with logits
// x over all ids and target t,
//     m_r = max of x, o_r = sum of exp(x - m_r), both over the share's ids but t
//     m = max of all m_r and x_t,  others = sum of o_r exp(m_r - m),  sum = others + exp(x_t - m)
//     loss = log(sum) + m - x_t,  f_r = scale exp(m_r - m) / sum,  g = -scale others / sum
// so that the logits' gradient is f_r exp(x - m_r), at t g. The target is separate, so a loss and a
// gradient near 0 keep their digits.
enum { OPS_MAX_SHARES = 128 };

// stats (num_rows, 3): m_r (-inf: no other id), o_r, x_t (-inf: another share's target). with_grads: logits
// (num_rows, Vs) become E = exp(x - m_r) in place, 0 at t and in columns V..Vs-1; otherwise unchanged.
void classifier_share(float* stats, floatX* logits, const int32_t* targets, bool with_grads, int num_rows,
                      int begin, int V, int Vs, OpsContext* ops);
// out (num_rows, C) = weight[target - begin] if the target is in the share; else 0.
void target_rows(floatX* out,
                 const floatX* weight,  // (Vs, C)
                 const int32_t* targets, int num_rows, int begin, int V, int C, OpsContext* ops);
// From all shares' stats: losses (num_rows), and with scale != 0 the factors (num_rows, 2) of each share:
// f_r, and g (0: another share's target). The pointer tables are host memory, free after return.
void classifier_combine(float* losses, float* const* factors, const float* const* stats, float scale,
                        int num_rows, int num_shares, OpsContext* ops);
// dinp (num_rows, C) = sum over shares of f_r G_r + g W_t, in float32, in the order of the shares.
void combine_parts(floatX* dinp,
                   const floatX* const* sums,     // of each share (num_rows, C)  G_r = E W_r
                   const floatX* const* targets,  // of each share (num_rows, C)  its target_rows()
                   const float* const* factors, int num_rows, int C, int num_shares, OpsContext* ops);
// Prepares the product for the matrix' gradient, in place: if f_r >= OPS_LEAST_FACTOR, a row of hidden
// states (C) is scaled by f_r and E's value at t becomes g / f_r, which avoids a pass over E; otherwise the
// row is unchanged and E becomes f_r E, at t g.
#define OPS_LEAST_FACTOR 1e-30f        // so that g / f_r and small values times f_r stay within float32
void classifier_factors(floatX* e,     // (num_rows, Vs)
                        floatX* rows,  // (num_rows, C)
                        const float* factors, const int32_t* targets, int num_rows, int C, int begin, int V,
                        int Vs, OpsContext* ops);
// values, ids (num_rows), host memory: each row's largest logit and its id, the first of equals; waits for
// it. V 0: -inf and `begin`.
void argmax_share(float* values, int32_t* ids, const floatX* logits, int num_rows, int begin, int V, int Vs,
                  OpsContext* ops);

// --- optimizer ---------------------------------------------------------------------------------------------
// Decoupled weight decay (Loshchilov, Hutter 2019), bias-corrected; t counts from 1. grads are multiplied
// by grad_scale first (clipping). With floatX = bf16 the update is made on `master` (float32) and params
// are its stochastic rounding, up or down with the probability that keeps the mean; random bits are a hash
// of seed and index, the same on every run. master NULL: params are updated and rounded directly.
typedef struct {
    float lr, beta1, beta2, eps, weight_decay, grad_scale;
    int t;
    uint32_t seed;
} AdamwUpdate;
void adamw_update(floatX* params, float* master, float* m, float* v, const float* grads, size_t num_params,
                  int64_t first_idx,  // of params[0] in the whole array: for random bits
                  const AdamwUpdate* about, OpsContext* ops);
double sum_of_squares(const float* values, size_t num_values,
                      OpsContext* ops);  // summed in double, fixed order; waits for the result

#ifdef __cplusplus
}
#endif
