/*
peak_flops.h -- what graphics cards compute at most, by their names: what model FLOPs are a share of (MFU).

    peak_flops("NVIDIA H200", PEAK_BF16)  ->  989.4e12
*/
#pragma once

#ifdef __cplusplus
extern "C" {
#endif

// Products of bf16 values with float32 sums, of float32 values rounded to TF32, of float32 values.
typedef enum { PEAK_BF16, PEAK_TF32, PEAK_FP32 } PeakPrecision;

// FLOP/s of dense matrices at boost clock, as the maker's data sheet has it, a multiply and an add counted as
// two. 0: not known, as of a part of a card (MIG), or a laptop's, whose power is anybody's guess.
double peak_flops(const char* card, PeakPrecision precision);

#ifdef __cplusplus
}
#endif
