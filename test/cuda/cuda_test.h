/*
cuda_test.h -- what the tests of llmc/cuda share: arrays that live on host and device, rounded alike.

    Pair x = pair_random(T * C, 1.0);        // host: float values that floatX holds exactly; device: floatX
    layernorm_forward(pair_x(out), ..., pair_x(x), ..., ops);
    cpu_layernorm_forward(out.host, ..., x.host, ...);
    CHECK_PAIR(out, FLOATX_EPS);             // device against host

CHECK_PAIR: the largest difference in units of the host's root mean square (of the value where it is larger)
is within the tolerance. Every array has a guard behind it, checked by pair_release(): a kernel that writes
one value too many fails.
*/
#pragma once

#include <stdbool.h>
#include "../../util/numbers.h"
#include "../../llmc/floatx.h"
#include "../../llmc/ops.h"
#include "../test.h"
#include "cpu_ops.h"

#ifdef LLMC_BF16
#define FLOATX_EPS 0.00390625  // half a unit in the last place, relative: 2^-8
#else
#define FLOATX_EPS 6e-8
#endif

typedef struct {
    size_t num_values;
    int bytes_per_value;  // on the device: sizeof(floatX), or 4 for float32 and int32
    float* host;
    int32_t* host_ints;  // the same memory
    void* device;
} Pair;

extern OpsContext* cuda_test_ops;
extern Rng cuda_test_rng;

void cuda_test_begin(int argc, char** argv);  // seed (printed), context
void cuda_test_end(void);

Pair pair_random(size_t num_values, double deviation);  // floatX on the device
Pair pair_filled(size_t num_values, float value);       // floatX; NaN: shows what was never written
Pair pair_floats(size_t num_values, float value);       // float32 on the device
Pair pair_random_floats(size_t num_values, double deviation);
Pair pair_ints(const int32_t* values, size_t num_values);
Pair pair_copy_of(Pair from);    // of the host's values
void pair_to_device(Pair pair);  // after the host's values were changed (rounds them to floatX)
void pair_release(void);         // all of them; fails where a guard was overwritten

static inline floatX* pair_x(Pair pair) {
    return (floatX*)pair.device;
}
static inline float* pair_f(Pair pair) {
    return (float*)pair.device;
}
static inline int32_t* pair_i(Pair pair) {
    return (int32_t*)pair.device;
}

// The device's values, in host memory until pair_release(); waits for the device.
float* pair_download(Pair pair);
bool pair_close(Pair pair, double tolerance, const char* what);
// The same values on the device, bit for bit.
bool pair_same_bits(Pair a, Pair b);
#define CHECK_PAIR(pair, tolerance) CHECK(pair_close((pair), (tolerance), #pair))

// cu_seqlens (num_seqs + 1) of random lengths 1 .. max_len, every fourth of them 1; returns the tokens in
// all.
int ragged_random(int32_t* cu_seqlens, int num_seqs, int max_len);
