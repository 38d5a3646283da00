// test_cuda_adamw.c -- adamw.cu: the float32 update is the CPU's; in bf16 its rounding is the one that Philox
// says, keeps the mean, and does not depend on how the array is cut.
#include "cuda_test.h"

#include <math.h>

#define FLOAT_EPS 6e-8
// The update rounds some ten times on either side, contracted differently; it is smaller than a parameter or
// as large.
#define UPDATE_TOLERANCE (16 * FLOAT_EPS)

static const size_t num_params_of[] = {0, 1, 3, 4, 5, 255, 1024, 4099};
enum { NUM_LENGTHS = sizeof num_params_of / sizeof *num_params_of };

static AdamwUpdate update_of_step(int t) {
    return (AdamwUpdate){.lr = 0.01f,
                         .beta1 = 0.9f,
                         .beta2 = 0.95f,
                         .eps = 1e-8f,
                         .weight_decay = 0.1f,
                         .grad_scale = 0.7f,
                         .t = t,
                         .seed = 1234};
}

typedef struct {
    Pair params, master, m, v, grads;
    size_t n;
} State;

// Second moments as of gradients like these, so that steps are about lr.
static State state_of(size_t n) {
    State s = {pair_random(n, 1.0), pair_random_floats(n, 1.0),  pair_random_floats(n, 0.01),
               pair_floats(n, 0),   pair_random_floats(n, 0.01), n};
    for (size_t i = 0; i < n; i++) {
        const float g = s.grads.host[i], m = s.m.host[i];
        s.v.host[i] = 0.5f * (g * g + m * m) + 1e-6f;
    }
    pair_to_device(s.v);
    return s;
}

static void update(const State* s, bool with_master, size_t begin, size_t end, int64_t first_idx,
                   const AdamwUpdate* about) {
    adamw_update(pair_x(s->params) + begin, with_master ? pair_f(s->master) + begin : NULL,
                 pair_f(s->m) + begin, pair_f(s->v) + begin, pair_f(s->grads) + begin, end - begin,
                 first_idx + (int64_t)begin, about, cuda_test_ops);
}

#ifndef LLMC_BF16
static void float32_update_equals_the_cpus(void) {
    for (int i = 0; i < NUM_LENGTHS; i++) {
        State s = state_of(num_params_of[i]);
        for (int t = 1; t <= 3; t++) {
            const AdamwUpdate about = update_of_step(t);
            update(&s, false, 0, s.n, 17, &about);
            cpu_adamw_update(s.params.host, s.m.host, s.v.host, s.grads.host, s.n, &about);
        }
        CHECK_PAIR(s.params, 3 * UPDATE_TOLERANCE);
        CHECK_PAIR(s.m, 3 * UPDATE_TOLERANCE);
        CHECK_PAIR(s.v, 3 * UPDATE_TOLERANCE);
        pair_release();
    }
}
#else
static uint32_t bits_of(float value) {
    uint32_t bits;
    memcpy(&bits, &value, sizeof bits);
    return bits;
}

// Salmon et al. 2011, written as in the paper: (R, L) of two Feistel-like halves.
static void philox(uint32_t c[4], uint32_t k0, uint32_t k1) {
    for (int round = 0; round < 10; round++) {
        const uint64_t p0 = (uint64_t)c[0] * 0xd2511f53u, p1 = (uint64_t)c[2] * 0xcd9e8d57u;
        const uint32_t next[4] = {(uint32_t)(p1 >> 32) ^ c[1] ^ k0, (uint32_t)p1,
                                  (uint32_t)(p0 >> 32) ^ c[3] ^ k1, (uint32_t)p0};
        memcpy(c, next, sizeof next);
        k0 += 0x9e3779b9u;
        k1 += 0xbb67ae85u;
    }
}

// Of the authors' known answers (Random123, kat_vectors).
static void philox_gives_the_known_answers(void) {
    uint32_t zeros[4] = {0, 0, 0, 0}, ones[4] = {~0u, ~0u, ~0u, ~0u};
    philox(zeros, 0, 0);
    philox(ones, ~0u, ~0u);
    const uint32_t of_zeros[4] = {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8};
    const uint32_t of_ones[4] = {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd};
    CHECK(memcmp(zeros, of_zeros, sizeof zeros) == 0);
    CHECK(memcmp(ones, of_ones, sizeof ones) == 0);
}

static float rounded_by_philox(float value, int64_t idx, const AdamwUpdate* about) {
    uint32_t c[4] = {(uint32_t)(idx / 4), (uint32_t)((uint64_t)(idx / 4) >> 32), (uint32_t)about->t, 0};
    philox(c, about->seed, 0);
    return half_from_bfloat16((uint16_t)((bits_of(value) + (c[idx % 4] & 0xffffu)) >> 16));
}

// Exactly predicted from the master copy, at any beginning, over indices of more than 32 bits too.
static void master_is_the_cpus_and_params_its_rounding_by_philox(void) {
    const int64_t first_of[] = {0, 4, 17, ((int64_t)1 << 34) + 4, ((int64_t)1 << 34) + 5};
    for (int i = 0; i < NUM_LENGTHS; i++) {
        State s = state_of(num_params_of[i]);
        const int64_t first_idx = first_of[i % 5];
        const AdamwUpdate about = update_of_step(1 + i);
        update(&s, true, 0, s.n, first_idx, &about);
        cpu_adamw_update(s.master.host, s.m.host, s.v.host, s.grads.host, s.n, &about);
        CHECK_PAIR(s.master, UPDATE_TOLERANCE);
        CHECK_PAIR(s.m, UPDATE_TOLERANCE);
        CHECK_PAIR(s.v, UPDATE_TOLERANCE);
        const float *master = pair_download(s.master), *params = pair_download(s.params);
        size_t num_wrong = 0;
        for (size_t k = 0; k < s.n; k++) {
            num_wrong += params[k] != rounded_by_philox(master[k], first_idx + (int64_t)k, &about);
        }
        CHECK_EQ(num_wrong, 0);
        pair_release();
    }
}

// lr 0: the master copy stays `value`, and only the rounding is left.
static State rounding_of(float value, size_t n, uint32_t seed, int t) {
    State s = {pair_filled(n, NAN), pair_floats(n, value), pair_floats(n, 0),
               pair_floats(n, 0),   pair_floats(n, 0),     n};
    AdamwUpdate about = update_of_step(t);
    about.lr = 0.0f;
    about.seed = seed;
    update(&s, true, 0, n, 0, &about);
    return s;
}

static void rounding_takes_a_neighbour_and_keeps_the_mean(void) {
    enum { N = 20000 };
    const double fractions[] = {0.0, 1.0 / 256, 0.25, 0.5, 0.9, 1.0 - 1.0 / 256};
    for (int i = 0; i < 12; i++) {
        const double fraction = fractions[i % 6], sign = i < 6 ? 1.0 : -1.0, lower = 1.5, unit = 0x1p-7;
        const float value = (float)(sign * (lower + fraction * unit));
        const float* params = pair_download(rounding_of(value, N, (uint32_t)i, 1).params);
        size_t num_up = 0, num_strange = 0;
        for (size_t k = 0; k < N; k++) {
            num_up += (double)params[k] == sign * (lower + unit);
            num_strange += (double)params[k] != sign * (lower + unit) && (double)params[k] != sign * lower;
        }
        CHECK_EQ(num_strange, 0);
        // binomial; 5 deviations: once in two million tests
        CHECK_NEAR((double)num_up, N * fraction, 5.0 * sqrt(N * fraction * (1.0 - fraction)) + 1e-9);
        pair_release();
    }
}

static void what_bf16_holds_stays(void) {
    const size_t n = 5000;
    State s = state_of(n);
    memcpy(s.master.host, s.params.host, n * sizeof(float));
    pair_to_device(s.master);
    AdamwUpdate about = update_of_step(3);
    about.lr = 0.0f;
    update(&s, true, 0, n, 0, &about);
    CHECK_PAIR(s.params, 0);
    update(&s, false, 0, n, 0, &about);
    CHECK_PAIR(s.params, 0);
    pair_release();
}

static void infinity_and_nan_stay_what_they_are(void) {
    CHECK(isinf(pair_download(rounding_of(INFINITY, 64, 1, 1).params)[63]));
    float nan_of_all_ones;
    const uint32_t bits = 0x7fffffffu;
    memcpy(&nan_of_all_ones, &bits, sizeof bits);
    const float* params = pair_download(rounding_of(nan_of_all_ones, 64, 1, 1).params);
    for (int i = 0; i < 64; i++) { CHECK(isnan(params[i])); }
    pair_release();
}

static size_t num_different(Pair a, Pair b) {
    const float *x = pair_download(a), *y = pair_download(b);
    size_t num = 0;
    for (size_t i = 0; i < a.num_values; i++) { num += x[i] != y[i]; }
    return num;
}

// Half way between two neighbours: of independent choices half agree.
static void bits_depend_on_seed_step_and_index_only(void) {
    enum { N = 4000 };
    const float half_way = 1.5f + 0x1p-8f;
    State s = rounding_of(half_way, N, 5, 2), again = rounding_of(half_way, N, 5, 2);
    CHECK_EQ(num_different(s.params, again.params), 0);
    CHECK_NEAR(num_different(s.params, rounding_of(half_way, N, 6, 2).params), N / 2, 5 * sqrt(N / 4.0));
    CHECK_NEAR(num_different(s.params, rounding_of(half_way, N, 5, 3).params), N / 2, 5 * sqrt(N / 4.0));
    pair_release();
}

// Replicas share the update by ranges: the same bits as in one call.
static void any_cut_gives_the_same_bits(void) {
    const size_t n = 3000, cuts[] = {0, 1, 6, 8, 777, 2048, 3000};
    const AdamwUpdate about = update_of_step(7);
    State whole = state_of(n), parts = state_of(n);
    Pair *from = &whole.params, *to = &parts.params;
    for (int i = 0; i < 5; i++) {  // params, master, m, v, grads
        memcpy(to[i].host, from[i].host, n * sizeof(float));
        pair_to_device(to[i]);
    }
    update(&whole, true, 0, n, 40, &about);
    for (int i = 0; i < 6; i++) { update(&parts, true, cuts[i], cuts[i + 1], 40, &about); }
    CHECK_EQ(num_different(whole.params, parts.params), 0);
    CHECK_EQ(num_different(whole.master, parts.master), 0);
    pair_release();
}

// Without a master copy steps of an eighth of a unit still arrive, in the mean.
static void small_steps_are_not_lost_without_master(void) {
    enum { N = 4000, NUM_STEPS = 16 };
    State s = {pair_filled(N, 1.0f), pair_floats(0, 0),     pair_floats(N, -1.0f),
               pair_floats(N, 1.0f), pair_floats(N, -1.0f), N};
    for (int t = 1; t <= NUM_STEPS;
         t++) {  // m = -1, v = 1 stay, so every step is +lr but for bias correction
        AdamwUpdate about = update_of_step(1000 + t);
        about.lr = 0x1p-10f;  // a unit above 1 is 2^-7
        about.grad_scale = 1.0f;
        about.weight_decay = 0.0f;
        update(&s, false, 0, N, 0, &about);
    }
    const float* params = pair_download(s.params);
    double sum = 0.0;
    for (int i = 0; i < N; i++) { sum += (double)params[i] - 1.0; }
    // Each step's rounding is off by at most sqrt(1/4) units, independently.
    const double deviation = 0x1p-7 * 0.5 * sqrt((double)NUM_STEPS / N);
    CHECK_NEAR(sum / N, NUM_STEPS * 0x1p-10, 5 * deviation);
    pair_release();
}
#endif

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
#ifdef LLMC_BF16
    RUN(philox_gives_the_known_answers);
    RUN(master_is_the_cpus_and_params_its_rounding_by_philox);
    RUN(rounding_takes_a_neighbour_and_keeps_the_mean);
    RUN(what_bf16_holds_stays);
    RUN(infinity_and_nan_stay_what_they_are);
    RUN(bits_depend_on_seed_step_and_index_only);
    RUN(any_cut_gives_the_same_bits);
    RUN(small_steps_are_not_lost_without_master);
#else
    RUN(float32_update_equals_the_cpus);
#endif
    cuda_test_end();
    return test_end();
}
