// Drawing a token: frequencies are the softmax's, within what top-k and top-p leave; temperature 0 is greedy.
#include "../llmc/completion.h"

#include <math.h>
#include <stdbool.h>

#include "test.h"

enum { VOCAB = 40, DRAWS = 20000 };

static void make_logits(float* logits, uint32_t seed) {
    Mt19937 generator;
    mt19937_seed(&generator, seed);
    mt19937_normal(&generator, logits, VOCAB, 0, 2);
}

// Of DRAWS draws, how many gave each id.
static void draw(int* counts, const float* logits, Sampling sampling, uint32_t seed) {
    SamplingPlace work[VOCAB];
    Mt19937 generator;
    mt19937_seed(&generator, seed);
    memset(counts, 0, sizeof *counts * VOCAB);
    for (int i = 0; i < DRAWS; i++) { counts[sampling_pick(logits, VOCAB, &sampling, &generator, work)]++; }
}

// Independent of the module: rank by counting larger ones, and sums in any order.
static int rank_of(const float* logits, int id) {
    int rank = 0;
    for (int i = 0; i < VOCAB; i++) { rank += logits[i] > logits[id] || (logits[i] == logits[id] && i < id); }
    return rank;
}

static void expected(double* p, const float* logits, Sampling s) {
    double weights[VOCAB], whole = 0, sum = 0;
    int top_k = s.top_k > 0 ? s.top_k : VOCAB;
    for (int i = 0; i < VOCAB; i++) {
        weights[i] = rank_of(logits, i) < top_k ? exp((double)logits[i] / s.temperature) : 0;
        whole += weights[i];
    }
    for (int i = 0; i < VOCAB; i++) {
        double before = 0;  // of the likelier ones
        for (int j = 0; j < VOCAB; j++) {
            before += rank_of(logits, j) < rank_of(logits, i) ? weights[j] : 0;
        }
        p[i] = before < s.top_p * whole ? weights[i] : 0;
        sum += p[i];
    }
    for (int i = 0; i < VOCAB; i++) { p[i] /= sum; }
}

static void frequencies_are_the_softmax(void) {
    const Sampling ways[] = {{1, 0, 1},   {0.5, 0, 1},   {2, 0, 1}, {1, 3, 1},
                             {1, 0, 0.7}, {1.5, 8, 0.9}, {1, 1, 1}, {1, 0, 1e-9}};
    for (size_t w = 0; w < sizeof ways / sizeof ways[0]; w++) {
        float logits[VOCAB];
        double p[VOCAB];
        int counts[VOCAB], num_possible = 0;
        make_logits(logits, 5 + (uint32_t)w);
        logits[7] = logits[3];  // a tie
        expected(p, logits, ways[w]);
        draw(counts, logits, ways[w], 11);
        for (int i = 0; i < VOCAB; i++) {
            // five standard deviations of a binomial
            CHECK_NEAR(counts[i] / (double)DRAWS, p[i], 5 * sqrt(p[i] * (1 - p[i]) / DRAWS) + 1e-12);
            num_possible += p[i] > 0;
        }
        CHECK(num_possible >= 1 && (ways[w].top_k != 1 || num_possible == 1));
    }
}

static void temperature_zero_is_the_first_of_the_likeliest(void) {
    SamplingPlace work[VOCAB];
    for (uint32_t seed = 0; seed < 50; seed++) {
        float logits[VOCAB];
        Mt19937 generator, untouched;
        mt19937_seed(&generator, 3);
        untouched = generator;
        make_logits(logits, seed);
        int best = 0;
        for (int i = 0; i < VOCAB; i++) { best = rank_of(logits, i) == 0 ? i : best; }
        if (best + 1 < VOCAB) { logits[best + 1] = logits[best]; }
        CHECK_EQ(sampling_pick(logits, VOCAB, &(Sampling){0, 0, 1}, &generator, work), best);
        CHECK_EQ(memcmp(&generator, &untouched, sizeof generator), 0);
    }
}

// Of equals the lower ids are kept.
static void ties_are_cut_by_id(void) {
    SamplingPlace work[VOCAB];
    Mt19937 generator;
    const float logits[VOCAB] = {0};
    bool seen[VOCAB] = {false};
    mt19937_seed(&generator, 2);
    for (int i = 0; i < 500; i++) {
        seen[sampling_pick(logits, VOCAB, &(Sampling){1, i % 2 == 0 ? 5 : 0, i % 2 == 0 ? 1 : 5.0 / VOCAB},
                           &generator, work)] = true;
    }
    for (int i = 0; i < VOCAB; i++) { CHECK_EQ(seen[i], i < 5); }
}

static void large_logits_are_no_trouble(void) {
    SamplingPlace work[3];
    Mt19937 generator;
    const float logits[3] = {-3e38f, 1e4f, 9.99e3f};
    mt19937_seed(&generator, 1);
    for (int i = 0; i < 100; i++) {
        CHECK_EQ(sampling_pick(logits, 3, &(Sampling){1e-3, 0, 1}, &generator, work), 1);
    }
}

int main(void) {
    RUN(frequencies_are_the_softmax);
    RUN(temperature_zero_is_the_first_of_the_likeliest);
    RUN(ties_are_cut_by_id);
    RUN(large_logits_are_no_trouble);
    return test_end();
}
