/*
mt19937.h -- PyTorch's (and llm.c's) CPU random numbers, for equal initial weights.

Mersenne Twister (Matsumoto, Nishimura 1998), 32 bits. Normals: Box-Muller (1958) in the arrangement of
torch.Tensor.normal_: from 16 values on, uniforms are drawn for all, and each block of 16 pairs its first 8
with its last 8; a tail shorter than 16 draws the last 16 values again. Below 16 values: one pair at a time in
double. Integers and uniforms are PyTorch's bit for bit. Normals are llm.c's scalar form of it; PyTorch's
vectorised code rounds the angle differently, which shows in the last two or three bits.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { MT19937_NUM_WORDS = 624 };

typedef struct {
    uint32_t words[MT19937_NUM_WORDS];
    int next;        // next word; MT19937_NUM_WORDS: generate new ones first
    bool has_spare;  // of the pairs drawn below 16 values
    double spare;    // standard normal
} Mt19937;

void mt19937_seed(Mt19937* generator, uint32_t seed);  // torch.manual_seed(seed)
uint32_t mt19937_u32(Mt19937* generator);
float mt19937_uniform(Mt19937* generator);  // [0, 1), 24 bits
void mt19937_normal(Mt19937* generator, float* out, size_t num_values, float mean, float std);
// Skips num_values of mt19937_normal, much faster than drawing them.
void mt19937_normal_skip(Mt19937* generator, size_t num_values);

#ifdef __cplusplus
}
#endif
