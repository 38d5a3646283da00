/*
peak_flops.h -- peak FLOP/s of graphics cards by name, the denominator of MFU.

    peak_flops("NVIDIA H200", PEAK_BF16)  ->  989.4e12
*/
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// Products of bf16 values with float32 sums, of float32 values rounded to TF32, of float32 values.
typedef enum { PEAK_BF16, PEAK_TF32, PEAK_FP32 } PeakPrecision;

// FLOP/s of dense matrices at boost clock from the maker's data sheet; a multiply-add is two. 0: unknown,
// as for a part of a card (MIG), or a laptop's, whose power limit varies.
double peak_flops(const char* card, PeakPrecision precision);

#ifdef __cplusplus
}
#endif
