#include "mt19937.h"

#include <math.h>

enum { SHIFT = 397, BLOCK = 16 };

static const double PI = 3.14159265358979323846;

void mt19937_seed(Mt19937* generator, uint32_t seed) {
    generator->words[0] = seed;
    for (uint32_t i = 1; i < MT19937_NUM_WORDS; i++) {
        uint32_t previous = generator->words[i - 1];
        generator->words[i] = 1812433253u * (previous ^ (previous >> 30)) + i;
    }
    generator->next = MT19937_NUM_WORDS;
    generator->has_spare = false;
}

// x_{k+n} = x_{k+m} xor (upper bit of x_k, lower bits of x_{k+1}) A, in place.
static void twist(uint32_t* words) {
    for (int i = 0; i < MT19937_NUM_WORDS; i++) {
        uint32_t following = words[i + 1 < MT19937_NUM_WORDS ? i + 1 : 0];
        uint32_t mixed = (words[i] & 0x80000000u) | (following & 0x7fffffffu);
        int far = i + SHIFT < MT19937_NUM_WORDS ? i + SHIFT : i + SHIFT - MT19937_NUM_WORDS;
        words[i] = words[far] ^ (mixed >> 1) ^ (following & 1u ? 0x9908b0dfu : 0u);
    }
}

uint32_t mt19937_u32(Mt19937* generator) {
    if (generator->next == MT19937_NUM_WORDS) {
        twist(generator->words);
        generator->next = 0;
    }
    uint32_t y = generator->words[generator->next++];
    y ^= y >> 11;
    y ^= (y << 7) & 0x9d2c5680u;
    y ^= (y << 15) & 0xefc60000u;
    return y ^ (y >> 18);
}

float mt19937_uniform(Mt19937* generator) {
    return (float)(mt19937_u32(generator) & 0xffffffu) * 0x1p-24f;
}

static double uniform_double(Mt19937* generator) {
    uint64_t high = mt19937_u32(generator);
    uint64_t bits = high << 32 | mt19937_u32(generator);
    return (double)(bits & ((1ull << 53) - 1)) * 0x1p-53;
}

// llm.c adds 1e-12 to the logarithm's argument, which changes about 300 of 124M values.
static void normal_block(float* values, float mean, float std) {
    for (int i = 0; i < BLOCK / 2; i++) {
        float radius = sqrtf(-2.0f * logf(1.0f - values[i] + 1e-12f));
        float angle = (float)(2.0 * PI * values[i + BLOCK / 2]);
        values[i] = radius * cosf(angle) * std + mean;
        values[i + BLOCK / 2] = radius * sinf(angle) * std + mean;
    }
}

static double normal_double(Mt19937* generator) {
    if (generator->has_spare) {
        generator->has_spare = false;
        return generator->spare;
    }
    double angle = 2.0 * PI * uniform_double(generator);
    double radius = sqrt(-2.0 * log1p(-uniform_double(generator)));
    generator->spare = radius * sin(angle);
    generator->has_spare = true;
    return radius * cos(angle);
}

void mt19937_normal(Mt19937* generator, float* out, size_t num_values, float mean, float std) {
    if (num_values < BLOCK) {
        for (size_t i = 0; i < num_values; i++) {
            out[i] = (float)(normal_double(generator) * (double)std + (double)mean);
        }
        return;
    }
    for (size_t i = 0; i < num_values; i++) { out[i] = mt19937_uniform(generator); }
    for (size_t i = 0; i + BLOCK <= num_values; i += BLOCK) { normal_block(out + i, mean, std); }
    if (num_values % BLOCK != 0) {
        float* tail = out + num_values - BLOCK;
        for (int i = 0; i < BLOCK; i++) { tail[i] = mt19937_uniform(generator); }
        normal_block(tail, mean, std);
    }
}

void mt19937_normal_skip(Mt19937* generator, size_t num_values) {
    if (num_values < BLOCK) {
        for (size_t i = 0; i < num_values; i++) { (void)normal_double(generator); }
        return;
    }
    size_t num_words = num_values + (num_values % BLOCK != 0 ? BLOCK : 0);
    for (;;) {
        size_t left = (size_t)(MT19937_NUM_WORDS - generator->next);
        if (num_words <= left) { break; }
        num_words -= left;
        twist(generator->words);
        generator->next = 0;
    }
    generator->next += (int)num_words;
}
