#include "shuffle.h"

#include "../util/numbers.h"

// Few bits make a weak round function, so small domains get more rounds than the four of the theorem.
enum { NUM_ROUNDS = 8, MIN_HALF_BITS = 3 };

uint64_t shuffle_index(uint64_t n, uint64_t key, uint64_t i) {
    if (n <= 1) { return 0; }
    int half_bits = MIN_HALF_BITS;
    while (((uint64_t)1 << 2 * half_bits) < n) { half_bits++; }
    uint64_t mask = ((uint64_t)1 << half_bits) - 1;
    uint64_t round_keys[NUM_ROUNDS];
    Rng rng = rng_seed(key);
    for (int r = 0; r < NUM_ROUNDS; r++) { round_keys[r] = rng_u64(&rng); }
    do {
        uint64_t left = i >> half_bits, right = i & mask;
        for (int r = 0; r < NUM_ROUNDS; r++) {
            uint64_t next = left ^ (rng_mix(right + round_keys[r]) & mask);
            left = right;
            right = next;
        }
        i = left << half_bits | right;
    } while (i >= n);
    return i;
}
