/*
shuffle.h -- a random permutation of 0 ... n - 1 that needs no memory.

A Feistel network (Luby & Rackoff, SIAM J. Computing 1988) permutes the 2b-bit numbers, 4^b >= n; a value that
falls outside is permuted again until it lies inside ("cycle walking", Black & Rogaway, CT-RSA 2002), which
leaves a permutation of 0 ... n - 1. Less than four rounds of walking are expected once n >= 16.
*/
#pragma once

#include <stdint.h>

// Place i of the permutation named by `key`; i < n, 1 <= n <= 2^62.
uint64_t shuffle_index(uint64_t n, uint64_t key, uint64_t i);
