#include "cuda_test.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_ARRAYS = 512, GUARD_BYTES = 256, GUARD = 0x5a };

OpsContext* cuda_test_ops;
Rng cuda_test_rng;
static Pair pairs[MAX_ARRAYS];
static int num_pairs;
static void* downloads[MAX_ARRAYS];
static int num_downloads;

void cuda_test_begin(int argc, char** argv) {
    cuda_test_rng = rng_seed(test_seed(argc, argv));
    cuda_test_ops = ops_create(1);
}

void cuda_test_end(void) {
    ops_free(cuda_test_ops);
}

static void* must_alloc(size_t num_bytes) {
    void* memory = calloc(1, num_bytes + 64);
    if (memory == NULL) {
        printf("out of memory\n");
        exit(1);
    }
    return memory;
}

static Pair pair_new(size_t num_values, int bytes_per_value) {
    if (num_pairs == MAX_ARRAYS) {
        printf("too many arrays\n");
        exit(1);
    }
    size_t num_bytes = num_values * (size_t)bytes_per_value;
    Pair pair = {.num_values = num_values, .bytes_per_value = bytes_per_value};
    pair.host = must_alloc(num_values * sizeof(float));
    pair.host_ints = (int32_t*)pair.host;
    pair.device = ops_alloc(cuda_test_ops, num_bytes + GUARD_BYTES, "a test");
    unsigned char guard[GUARD_BYTES];
    memset(guard, GUARD, sizeof guard);
    ops_upload(cuda_test_ops, (char*)pair.device + num_bytes, guard, sizeof guard);
    return pairs[num_pairs++] = pair;
}

void pair_to_device(Pair pair) {
    if (pair.bytes_per_value == 4) {
        ops_upload(cuda_test_ops, pair.device, pair.host, pair.num_values * 4);
        return;
    }
    floatX* rounded = must_alloc(pair.num_values * sizeof(floatX));
    floatx_from_floats(rounded, pair.host, pair.num_values);
    floatx_to_floats(pair.host, rounded, pair.num_values);
    ops_upload(cuda_test_ops, pair.device, rounded, pair.num_values * sizeof(floatX));
    free(rounded);
}

// Roughly normal: the sum of four uniform numbers.
static void fill_random(Pair pair, double deviation) {
    for (size_t i = 0; i < pair.num_values; i++) {
        double sum = -2.0;
        for (int k = 0; k < 4; k++) { sum += (double)(rng_u64(&cuda_test_rng) >> 11) * 0x1p-53; }
        pair.host[i] = (float)(sum * deviation * 1.7320508);
    }
    pair_to_device(pair);
}

static void fill(Pair pair, float value) {
    for (size_t i = 0; i < pair.num_values; i++) { pair.host[i] = value; }
    pair_to_device(pair);
}

Pair pair_random(size_t num_values, double deviation) {
    Pair pair = pair_new(num_values, sizeof(floatX));
    fill_random(pair, deviation);
    return pair;
}

Pair pair_random_floats(size_t num_values, double deviation) {
    Pair pair = pair_new(num_values, sizeof(float));
    fill_random(pair, deviation);
    return pair;
}

Pair pair_filled(size_t num_values, float value) {
    Pair pair = pair_new(num_values, sizeof(floatX));
    fill(pair, value);
    return pair;
}

Pair pair_floats(size_t num_values, float value) {
    Pair pair = pair_new(num_values, sizeof(float));
    fill(pair, value);
    return pair;
}

Pair pair_ints(const int32_t* values, size_t num_values) {
    Pair pair = pair_new(num_values, sizeof(int32_t));
    memcpy(pair.host_ints, values, num_values * sizeof(int32_t));
    pair_to_device(pair);
    return pair;
}

Pair pair_copy_of(Pair from) {
    Pair pair = pair_new(from.num_values, from.bytes_per_value);
    memcpy(pair.host, from.host, from.num_values * sizeof(float));
    pair_to_device(pair);
    return pair;
}

float* pair_download(Pair pair) {
    float* values = downloads[num_downloads++ % MAX_ARRAYS] = must_alloc(pair.num_values * sizeof(float));
    if (pair.bytes_per_value == 4) {
        ops_download(cuda_test_ops, values, pair.device, pair.num_values * 4);
        return values;
    }
    floatX* raw = must_alloc(pair.num_values * sizeof(floatX));
    ops_download(cuda_test_ops, raw, pair.device, pair.num_values * sizeof(floatX));
    floatx_to_floats(values, raw, pair.num_values);
    free(raw);
    return values;
}

void pair_release(void) {
    for (int i = 0; i < num_pairs; i++) {
        unsigned char guard[GUARD_BYTES];
        size_t num_bytes = pairs[i].num_values * (size_t)pairs[i].bytes_per_value;
        ops_download(cuda_test_ops, guard, (char*)pairs[i].device + num_bytes, sizeof guard);
        bool whole = true;
        for (int k = 0; k < GUARD_BYTES; k++) { whole &= guard[k] == GUARD; }
        CHECK(whole);  // something was written behind the array
        ops_release(cuda_test_ops, pairs[i].device);
        free(pairs[i].host);
    }
    num_pairs = 0;
    for (int i = 0; i < num_downloads && i < MAX_ARRAYS; i++) { free(downloads[i]); }
    num_downloads = 0;
}

bool pair_close(Pair pair, double tolerance, const char* what) {
    const float *got = pair_download(pair), *ref = pair.host;
    double squares = 0.0, worst = 0.0;
    size_t worst_idx = 0;
    for (size_t i = 0; i < pair.num_values; i++) { squares += (double)ref[i] * (double)ref[i]; }
    const double rms = pair.num_values > 0 ? sqrt(squares / (double)pair.num_values) : 0.0;
    for (size_t i = 0; i < pair.num_values; i++) {
        const double unit = fmax(fmax(rms, fabs((double)ref[i])), 1e-30);
        const double error = fabs((double)got[i] - (double)ref[i]) / unit;
        if (!(error <= worst)) {  // NaN too
            worst = isnan(error) ? (double)INFINITY : error;
            worst_idx = i;
        }
    }
    if (getenv("OPS_TEST_VERBOSE") != NULL) { printf("     %-12s %9.2e of %9.2e\n", what, worst, tolerance); }
    if (worst <= tolerance) { return true; }
    printf("%s[%zu of %zu]: %g, the CPU has %g: off by %.3g of the values' size, tolerance %.3g\n", what,
           worst_idx, pair.num_values, (double)got[worst_idx], (double)ref[worst_idx], worst, tolerance);
    return false;
}

bool pair_same_bits(Pair a, Pair b) {
    return memcmp(pair_download(a), pair_download(b), a.num_values * sizeof(float)) == 0;
}

int ragged_random(int32_t* cu_seqlens, int num_seqs, int max_len) {
    cu_seqlens[0] = 0;
    for (int i = 0; i < num_seqs; i++) {
        const int len = rng_below(&cuda_test_rng, 4) == 0 ? 1 : rng_between(&cuda_test_rng, 1, max_len);
        cu_seqlens[i + 1] = cu_seqlens[i] + len;
    }
    return cu_seqlens[num_seqs];
}
