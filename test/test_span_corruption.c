// test_span_corruption.c -- a corrupted text can be undone, has the promised lengths, and any spans may be
// noise.
#include "../dataloader/loader.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#include "../util/numbers.h"
#include "test.h"

static uint64_t seed;

enum { EOT = 1, FIRST_SENTINEL = 32099, TEXT_VOCAB = 32000, LONGEST = 3000 };

static SpanCorruption t5_spans(void) {
    return (SpanCorruption){0.15, 3, FIRST_SENTINEL, -1, 100, EOT};
}

static SpanCorruption random_spans(Rng* rng) {
    return (SpanCorruption){.noise_density = rng_between(rng, 1, 99) / 100.0,
                            .mean_span = rng_between(rng, 2, 40) / 2.0,
                            .sentinel_first = 50000,
                            .sentinel_step = rng_below(rng, 2) ? 1 : -1,
                            .num_sentinels = rng_below(rng, 3) ? rng_between(rng, 1, 12) : 1000,
                            .eot_token = EOT};
}

// What a corrupted text is, read back: its spans, and the text.
typedef struct {
    int32_t num_spans, num_tokens;
    int32_t kept[LONGEST], noise[LONGEST];  // lengths, of what is before span i and of span i
    int32_t text[LONGEST];
} Undone;

static int32_t sentinel_of(const SpanCorruption* spans, int32_t token) {
    int32_t i = (token - spans->sentinel_first) * spans->sentinel_step;
    return i >= 0 && i < spans->num_sentinels ? i : -1;
}

static bool undo(Undone* out, const SpanCorruption* spans, const int32_t* input, int32_t n_input,
                 const int32_t* target, int32_t n_target) {
    out->num_spans = out->num_tokens = 0;
    int32_t t = 0, num_kept = 0;
    if (input[n_input - 1] != EOT || target[n_target - 1] != EOT) { return false; }
    for (int32_t i = 0; i < n_input - 1; i++) {
        int32_t s = sentinel_of(spans, input[i]);
        if (s < 0) {
            out->text[out->num_tokens++] = input[i];
            num_kept++;
            continue;
        }
        if (s != out->num_spans || target[t++] != input[i]) { return false; }
        int32_t num_noise = 0;
        for (; t < n_target - 1 && sentinel_of(spans, target[t]) < 0; t++, num_noise++) {
            out->text[out->num_tokens++] = target[t];
        }
        out->kept[out->num_spans] = num_kept;
        out->noise[out->num_spans++] = num_noise;
        num_kept = 0;
    }
    return t == n_target - 1 && num_kept == 0;  // the text ends with noise
}

static void corrupt_and_undo(Undone* out, const SpanCorruption* spans, uint64_t key, int32_t num_tokens) {
    static int32_t text[LONGEST], sides[4 * LONGEST];
    for (int32_t i = 0; i < num_tokens; i++) {
        text[i] = 2 + (int32_t)(rng_mix((uint64_t)i + seed) % (TEXT_VOCAB - 2));
    }
    SpanLengths lengths = span_corruption_lengths(spans, num_tokens);
    int32_t n = lengths.n_input + lengths.n_target;
    for (int32_t i = 0; i <= n; i++) { sides[i] = -7; }
    span_corruption_apply(spans, key, text, num_tokens, sides, sides + lengths.n_input);
    CHECK_EQ(sides[n], -7);
    CHECK(undo(out, spans, sides, lengths.n_input, sides + lengths.n_input, lengths.n_target));
    CHECK_EQ(out->num_tokens, num_tokens);
    CHECK(memcmp(out->text, text, sizeof *text * (size_t)num_tokens) == 0);
    CHECK_EQ(out->num_spans, lengths.num_spans);
    int32_t num_noise = 0;
    for (int32_t i = 0; i < out->num_spans; i++) {
        CHECK(out->noise[i] >= 1);
        CHECK(out->kept[i] >= 1 || num_tokens == 1);
        num_noise += out->noise[i];
    }
    CHECK_EQ(num_noise, lengths.num_noise);
}

static void undoing_gives_back_the_text(void) {
    Rng rng = rng_seed(seed);
    static Undone undone;
    for (int round = 0; round < 2000 && test_failures == 0; round++) {
        SpanCorruption spans = round % 4 == 0 ? t5_spans() : random_spans(&rng);
        int32_t num_tokens = round % 3 ? rng_between(&rng, 1, 40) : rng_between(&rng, 1, LONGEST);
        if (round < 20) { num_tokens = round + 1; }
        corrupt_and_undo(&undone, &spans, rng_u64(&rng), num_tokens);
    }
}

// The share of noise and the mean span are as asked wherever the text is long enough, and nothing shrinks.
static void lengths_are_as_asked(void) {
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 60; round++) {
        SpanCorruption spans = round == 0 ? t5_spans() : random_spans(&rng);
        SpanLengths before = {0};
        for (int32_t n = 1; n <= LONGEST && test_failures == 0; n++) {
            SpanLengths now = span_corruption_lengths(&spans, n);
            double noise = n * spans.noise_density, wanted = now.num_noise / spans.mean_span;
            bool least = now.num_noise == 1 && noise < 1, most = now.num_noise == n - 1 && noise > n - 1;
            CHECK(fabs(now.num_noise - noise) <= 0.5 || least || most || n == 1);
            CHECK(now.num_noise >= 1 && (now.num_noise < n || n == 1));
            bool no_more = now.num_spans == spans.num_sentinels || now.num_spans == n - now.num_noise;
            CHECK(fabs(now.num_spans - wanted) <= 0.5 || (now.num_spans == 1 && wanted < 1) ||
                  (no_more && wanted > now.num_spans) || n == 1);
            CHECK(now.num_spans >= 1 && now.num_spans <= spans.num_sentinels);
            CHECK_EQ(now.n_input, n - now.num_noise + now.num_spans + 1);
            CHECK_EQ(now.n_target, now.num_noise + now.num_spans + 1);
            CHECK(now.n_input >= before.n_input && now.n_target >= before.n_target);
            before = now;
        }
    }
    SpanCorruption few = t5_spans();
    few.num_sentinels = 10;
    CHECK_EQ(span_corruption_lengths(&few, 568).num_noise, 85);  // the share stays: fewer, longer spans
    CHECK_EQ(span_corruption_lengths(&few, 568).num_spans, 10);
}

// Of T5: inputs of 512 tokens are made of 568 and have targets of 114.
static void the_longest_text_is_the_longest(void) {
    SpanCorruption spans = t5_spans();
    CHECK_EQ(span_corruption_longest(&spans, 512, 1000), 568);
    CHECK_EQ(span_corruption_longest(&spans, 512, 114), 568);
    CHECK(span_corruption_longest(&spans, 512, 113) < 568);
    SpanLengths lengths = span_corruption_lengths(&spans, 568);
    CHECK(lengths.num_noise == 85 && lengths.num_spans == 28);
    CHECK(lengths.n_input == 512 && lengths.n_target == 114);
    CHECK_EQ(span_corruption_longest(&spans, 2, 3), 1);
    CHECK_EQ(span_corruption_longest(&spans, 1, 100), 0);
    CHECK_EQ(span_corruption_longest(&spans, 100, 2), 0);
    CHECK(span_corruption_longest(&spans, INT32_MAX - 1, INT32_MAX - 1) > 1 << 29);
    Rng rng = rng_seed(seed);
    for (int round = 0; round < 300; round++) {
        spans = random_spans(&rng);
        int32_t max_input = rng_between(&rng, 1, 300), max_target = rng_between(&rng, 1, 300), longest = 0;
        for (int32_t n = 1; n <= max_input + max_target; n++) {
            lengths = span_corruption_lengths(&spans, n);
            if (lengths.n_input <= max_input && lengths.n_target <= max_target) { longest = n; }
        }
        CHECK_EQ(span_corruption_longest(&spans, max_input, max_target), longest);
    }
}

// 12 tokens, 6 of them noise, in 3 spans: 10 divisions of the kept ones times 10 of the noise, all as often.
static void every_division_is_as_likely(void) {
    enum { DRAWS = 40000, CELLS = 100 };
    SpanCorruption spans = {0.5, 2, 50000, 1, 100, EOT};
    static Undone undone;
    int32_t count[36][36] = {0}, num_cells = 0;
    for (int32_t i = 0; i < DRAWS; i++) {
        corrupt_and_undo(&undone, &spans, seed * 1000003u + (uint64_t)i, 12);
        CHECK_EQ(undone.num_spans, 3);
        if (test_failures > 0) { return; }
        count[undone.kept[0] * 6 + undone.kept[1]][undone.noise[0] * 6 + undone.noise[1]]++;
    }
    double expected = (double)DRAWS / CELLS, chi_square = 0;
    for (int k = 0; k < 36; k++) {
        for (int n = 0; n < 36; n++) {
            if (count[k][n] == 0) { continue; }
            num_cells++;
            chi_square += (count[k][n] - expected) * (count[k][n] - expected) / expected;
        }
    }
    CHECK_EQ(num_cells, CELLS);
    CHECK(chi_square < CELLS - 1 + 6 * sqrt(2.0 * (CELLS - 1)));  // six standard deviations above its mean
}

// The same key gives the same spans; another one others; every place of a text is noise about as often.
static void keys_choose_the_spans(void) {
    enum { TOKENS = 200, DRAWS = 4000 };
    static Undone a, b;
    static int32_t noise_at[TOKENS];
    SpanCorruption spans = t5_spans();
    int32_t num_equal = 0;
    for (int32_t k = 0; k < DRAWS; k++) {
        corrupt_and_undo(&a, &spans, (uint64_t)k, TOKENS);
        corrupt_and_undo(&b, &spans, (uint64_t)k, TOKENS);
        CHECK(memcmp(a.noise, b.noise, sizeof(int32_t) * (size_t)a.num_spans) == 0);
        corrupt_and_undo(&b, &spans, (uint64_t)k + DRAWS, TOKENS);
        num_equal += memcmp(a.kept, b.kept, sizeof(int32_t) * (size_t)a.num_spans) == 0;
        for (int32_t i = 0, at = 0; i < a.num_spans; i++) {
            at += a.kept[i];
            for (int32_t n = 0; n < a.noise[i]; n++) { noise_at[at++]++; }
        }
    }
    CHECK(num_equal < 3);
    for (int32_t i = 40; i < TOKENS - 40; i++) { CHECK_NEAR(noise_at[i], 0.15 * DRAWS, 0.05 * DRAWS); }
    CHECK(noise_at[0] == 0 && noise_at[TOKENS - 1] == DRAWS);
}

int main(int argc, char** argv) {
    seed = test_seed(argc, argv);
    RUN(undoing_gives_back_the_text);
    RUN(lengths_are_as_asked);
    RUN(the_longest_text_is_the_longest);
    RUN(every_division_is_as_likely);
    RUN(keys_choose_the_spans);
    return test_end();
}
