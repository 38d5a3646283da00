/*
card_rates.h -- what a GPU can do by its data sheet, roughly: enough to compare the parts of a model until
./profile_costs has measured.

Dense rates (no sparsity), matrix products of bf16 with float32 sums; fp32 without tensor cores. Links: NVLink
one way where such cards usually have it, else PCIe. NVIDIA's data sheets of the cards, 2020 to 2025.
*/
#pragma once

typedef struct {
    const char* name;         // what the driver's name of the card contains
    double bf16_tflop_per_s;  // 1e12 a second
    double fp32_tflop_per_s;
    double memory_gb_per_s;
    double link_gb_per_s;
} CardRates;

// Of the first in the list that fits; a card of its own where none does.
const CardRates* card_rates_find(const char* device_name);
