/*
kernels.h -- the operations of train_llama, each with its backward: plain loops, float32, one thread or
OpenMP.

Rows (N) are tokens in any arrangement, except where a T says that they are one sequence. Backward functions
add to the gradients they are given (zero them first), unless a comment says otherwise.
*/
#pragma once

void embedding_forward(float* out, const int* tokens, const float* wte, int N, int C);
void embedding_backward(float* dwte, const int* tokens, const float* dout, int N, int C);

// out = x / rms(x) * weight; rstd (N) is kept for backward.
void rmsnorm_forward(float* out, float* rstd, const float* inp, const float* weight, int N, int C);
void rmsnorm_backward(float* dinp, float* dweight, const float* dout, const float* inp, const float* weight,
                      const float* rstd, int N, int C);

// out (N, OC) = inp (N, C) times the rows of weight (OC, C). Backward: dinp or dweight may be NULL.
void matmul_forward(float* out, const float* inp, const float* weight, int N, int C, int OC);
void matmul_backward(float* dinp, float* dweight, const float* dout, const float* inp, const float* weight,
                     int N, int C, int OC);

// Turns the heads of a sequence x (T, NH, HS) by their positions, in place; direction -1: back (the
// backward).
void rope(float* x, int T, int NH, int HS, int direction);

// Causal, of one sequence: q and out (T, NH, HS), k and v (T, NKV, HS), att (NH, T, T). Heads share keys and
// values in groups of NH / NKV. Backward: datt (T) is room to work in.
void attention_forward(float* out, float* att, const float* q, const float* k, const float* v, int T, int NH,
                       int NKV, int HS);
void attention_backward(float* dq, float* dk, float* dv, float* datt, const float* dout, const float* q,
                        const float* k, const float* v, const float* att, int T, int NH, int NKV, int HS);

// out = gate * sigmoid(gate) * up, (n). Backward turns gate and up into their gradients, in place.
void swiglu_forward(float* out, const float* gate, const float* up, int n);
void swiglu_backward(float* gate, float* up, const float* dout, int n);

// logits (N, V) become gradients of scale * loss; losses (N) in nats.
void crossentropy_forward_backward(float* losses, float* logits, const int* targets, float scale, int N,
                                   int V);
