// test_cuda_classifier_share.c -- classifier_share.cu against the CPU's, share by share, and all shares
// together against the CPU's whole classifier: the vocabulary cut anywhere, targets at the edges of shares,
// shares without a target, of padding alone, of no columns.
#include "cuda_test.h"

#include <math.h>
#include <string.h>

#define FLOAT_EPS 6e-8
// exp (2 ulp in float32; 2^-21 and |x| 2^-24 where bf16 takes the short one: 16 eps here), sums in another
// order.
#define SUM_TOLERANCE (64 * FLOAT_EPS)
#define VALUE_TOLERANCE (FLOATX_EPS + SUM_TOLERANCE)

enum { MAX_SHARES = 6, MAX_ROWS = 40, WIDTH = 8 };

// Share r has the columns [begin[r], begin[r + 1]) of Vp; ids from V on are padding.
typedef struct {
    int num_rows, V, Vp, num_shares, begin[MAX_SHARES + 1];
} Shape;

// A row of a share in shared memory (GPT-2's), one longer than that, rows that begin between two vectors, a
// share of padding alone, a share without columns.
static const Shape chosen[] = {
    {3, 50257, 50304, 4, {0, 12576, 25152, 37728, 50304}},
    {1, 140001, 140016, 2, {0, 16, 140016}},
    {4, 700, 701, 3, {0, 233, 467, 701}},
    {5, 100, 144, 4, {0, 16, 96, 112, 144}},
    {2, 40, 40, 3, {0, 16, 16, 40}},
    {40, 1, 16, 1, {0, 16}},
};
enum { NUM_CHOSEN = sizeof chosen / sizeof *chosen, NUM_SHAPES = NUM_CHOSEN + 14 };

static Shape shape_of(int i) {
    if (i < NUM_CHOSEN) { return chosen[i]; }
    const int step = i % 3 == 0 ? 1 : 16;
    Shape s = {.num_rows = i == NUM_CHOSEN ? 1 : rng_between(&cuda_test_rng, 1, MAX_ROWS)};
    s.V = rng_between(&cuda_test_rng, 2, 900);
    s.Vp = (s.V + step - 1) / step * step + step * rng_between(&cuda_test_rng, 0, 2);
    s.num_shares = rng_between(&cuda_test_rng, 1, MAX_SHARES);
    for (int r = 1; r < s.num_shares; r++) {
        s.begin[r] = s.begin[r - 1] + step * rng_between(&cuda_test_rng, 0, (s.Vp - s.begin[r - 1]) / step);
    }
    s.begin[s.num_shares] = s.Vp;
    return s;
}

static int num_columns(const Shape* s, int r) {
    return s->begin[r + 1] - s->begin[r];
}

static int num_ids(const Shape* s, int r) {
    const int end = s->begin[r + 1] < s->V ? s->begin[r + 1] : s->V;
    return end > s->begin[r] ? end - s->begin[r] : 0;
}

// The first id of a share, the last, any.
static Pair random_targets(const Shape* s) {
    int32_t targets[MAX_ROWS];
    for (int row = 0; row < s->num_rows; row++) {
        const int r = (int)rng_below(&cuda_test_rng, (uint32_t)s->num_shares);
        const int edge = s->begin[r] - row % 2;
        const bool is_edge = row % 3 != 0 && edge >= 0 && edge < s->V;
        targets[row] = is_edge ? edge : (int32_t)rng_below(&cuda_test_rng, (uint32_t)s->V);
    }
    return pair_ints(targets, (size_t)s->num_rows);
}

// (num_rows, Vp). Every third row is sure of its target, every third sure of another word.
static Pair random_logits(const Shape* s, const int32_t* targets) {
    Pair logits = pair_random((size_t)s->num_rows * (size_t)s->Vp, 4.0);
    for (int row = 0; row < s->num_rows; row++) {
        float* x = logits.host + (size_t)row * (size_t)s->Vp;
        if (row % 3 == 1) { x[targets[row]] += 40.0f; }
        if (row % 3 == 2) { x[rng_below(&cuda_test_rng, (uint32_t)s->V)] += 40.0f; }
    }
    pair_to_device(logits);
    return logits;
}

// What a padded column holds must not matter.
static Pair logits_of_share(const Shape* s, const float* logits, int r) {
    const int Vs = num_columns(s, r);
    Pair part = pair_filled((size_t)s->num_rows * (size_t)Vs, 1000.0f);
    for (int row = 0; row < s->num_rows; row++) {
        memcpy(part.host + (size_t)row * (size_t)Vs,
               logits + (size_t)row * (size_t)s->Vp + (size_t)s->begin[r],
               (size_t)num_ids(s, r) * sizeof(float));
    }
    pair_to_device(part);
    return part;
}

// Maxima and targets' logits are values of the row, so exact; -inf where there are none.
static bool stats_close(Pair stats, int num_rows) {
    const float *got = pair_download(stats), *ref = stats.host;
    for (int i = 0; i < num_rows; i++, got += 3, ref += 3) {
        const double error = fabs((double)got[1] - (double)ref[1]);
        if (got[0] == ref[0] && got[2] == ref[2] && error <= SUM_TOLERANCE * (double)ref[1]) { continue; }
        printf("row %d: %g %g %g, the CPU has %g %g %g\n", i, (double)got[0], (double)got[1], (double)got[2],
               (double)ref[0], (double)ref[1], (double)ref[2]);
        return false;
    }
    return true;
}

// --- a share -----------------------------------------------------------------------------------------------
static void a_share_is_the_cpus(void) {
    for (int i = 0; i < 2 * NUM_SHAPES; i++) {
        const Shape s = shape_of(i / 2);
        const bool with_grads = i % 2 == 0;
        Pair targets = random_targets(&s), logits = random_logits(&s, targets.host_ints);
        for (int r = 0; r < s.num_shares; r++) {
            const int begin = s.begin[r], V = num_ids(&s, r), Vs = num_columns(&s, r);
            Pair part = logits_of_share(&s, logits.host, r);
            Pair stats = pair_floats((size_t)s.num_rows * 3, NAN);
            classifier_share(pair_f(stats), pair_x(part), pair_i(targets), with_grads, s.num_rows, begin, V,
                             Vs, cuda_test_ops);
            cpu_classifier_share(stats.host, part.host, targets.host_ints, with_grads, s.num_rows, begin, V,
                                 Vs);
            CHECK(stats_close(stats, s.num_rows));
            CHECK_PAIR(part, with_grads ? VALUE_TOLERANCE : 0);
        }
        pair_release();
    }
}

// Some rows with a factor that is too small, some with none at all.
static void factors_go_where_the_cpus_go(void) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        const Shape s = shape_of(i);
        const int C =
            i % 2 == 0 ? 8 * rng_between(&cuda_test_rng, 1, 40) : rng_between(&cuda_test_rng, 1, 300);
        Pair targets = random_targets(&s);
        for (int r = 0; r < s.num_shares; r++) {
            const int begin = s.begin[r], V = num_ids(&s, r), Vs = num_columns(&s, r);
            Pair part = pair_random((size_t)s.num_rows * (size_t)Vs, 1.0);
            Pair rows = pair_random((size_t)s.num_rows * (size_t)C, 1.0);
            Pair factors = pair_random_floats((size_t)s.num_rows * 2, 1.0);
            for (int row = 0; row < s.num_rows; row++) {
                float* f = &factors.host[2 * row];
                *f = row % 5 == 2 ? 1e-35f : row % 5 == 4 ? 0.0f : 0.5f + fabsf(*f);
            }
            for (size_t k = 0; k < part.num_values; k++) {
                part.host[k] *= (int)(k % (size_t)Vs) < V;  // as classifier_share() leaves it
            }
            pair_to_device(factors);
            pair_to_device(part);
            classifier_factors(pair_x(part), pair_x(rows), pair_f(factors), pair_i(targets), s.num_rows, C,
                               begin, V, Vs, cuda_test_ops);
            cpu_classifier_factors(part.host, rows.host, factors.host, targets.host_ints, s.num_rows, C,
                                   begin, V, Vs);
            CHECK_PAIR(part, FLOATX_EPS);
            CHECK_PAIR(rows, FLOATX_EPS);
        }
        pair_release();
    }
}

static void a_shares_largest_is_the_cpus(void) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        const Shape s = shape_of(i);
        const int32_t no_targets[MAX_ROWS] = {0};
        Pair logits = random_logits(&s, no_targets);
        for (size_t k = 0; k < logits.num_values && i % 2 == 1; k++) {
            logits.host[k] = (float)rng_below(&cuda_test_rng, 4);  // equal ones
        }
        for (int r = 0; r < s.num_shares; r++) {
            const int begin = s.begin[r], V = num_ids(&s, r), Vs = num_columns(&s, r);
            Pair part = logits_of_share(&s, logits.host, r);
            float values[MAX_ROWS], ref_values[MAX_ROWS];
            int32_t ids[MAX_ROWS], ref_ids[MAX_ROWS];
            argmax_share(values, ids, pair_x(part), s.num_rows, begin, V, Vs, cuda_test_ops);
            cpu_argmax_share(ref_values, ref_ids, part.host, s.num_rows, begin, V, Vs);
            CHECK(memcmp(ids, ref_ids, (size_t)s.num_rows * sizeof *ids) == 0);
            CHECK(memcmp(values, ref_values, (size_t)s.num_rows * sizeof *values) == 0);
        }
        pair_release();
    }
}

// --- all of them -------------------------------------------------------------------------------------------
typedef struct {
    // ones: rows of hidden states, that tell what they were multiplied by
    Pair parts[MAX_SHARES], ones[MAX_SHARES], stats[MAX_SHARES], factors[MAX_SHARES], losses;
} Shares;

// scale 0: no gradients.
static Shares run_shares(const Shape* s, Pair targets, const float* logits, float scale) {
    Shares all = {.losses = pair_floats((size_t)s->num_rows, NAN)};
    float *stats[MAX_SHARES], *factors[MAX_SHARES];
    for (int r = 0; r < s->num_shares; r++) {
        all.parts[r] = logits_of_share(s, logits, r);
        all.ones[r] = pair_filled((size_t)s->num_rows * WIDTH, 1.0f);
        all.stats[r] = pair_floats((size_t)s->num_rows * 3, NAN);
        all.factors[r] = pair_floats((size_t)s->num_rows * 2, NAN);
        stats[r] = pair_f(all.stats[r]);
        factors[r] = pair_f(all.factors[r]);
        classifier_share(stats[r], pair_x(all.parts[r]), pair_i(targets), scale != 0.0f, s->num_rows,
                         s->begin[r], num_ids(s, r), num_columns(s, r), cuda_test_ops);
    }
    classifier_combine(pair_f(all.losses), scale != 0.0f ? factors : NULL, (const float* const*)stats, scale,
                       s->num_rows, s->num_shares, cuda_test_ops);
    for (int r = 0; r < s->num_shares && scale != 0.0f; r++) {
        classifier_factors(pair_x(all.parts[r]), pair_x(all.ones[r]), factors[r], pair_i(targets),
                           s->num_rows, WIDTH, s->begin[r], num_ids(s, r), num_columns(s, r), cuda_test_ops);
    }
    return all;
}

static const float* columns_of(const Shape* s, const float* whole, int row, int r) {
    return whole + (size_t)row * (size_t)s->Vp + (size_t)s->begin[r];
}

// E times the rows' factors is the gradient of the logits: the whole one's columns, within `tolerance` of
// each value or of 2^-24 of the largest.
static bool gradient_close(const Shape* s, const Shares* all, int r, const float* whole, double tolerance) {
    const float *e = pair_download(all->parts[r]), *ones = pair_download(all->ones[r]);
    const size_t Vs = (size_t)num_columns(s, r);
    for (int row = 0; row < s->num_rows; row++) {
        const float* ref = columns_of(s, whole, row, r);
        for (size_t v = 0; v < Vs; v++) {
            const double got = (double)e[(size_t)row * Vs + v] * (double)ones[row * WIDTH + (int)v % WIDTH];
            const double most = tolerance * fabs((double)ref[v]) + 0x1p-24 / s->num_rows;
            if (fabs(got - (double)ref[v]) <= most) { continue; }
            printf("row %d, column %zu of share %d: %g, the whole has %g\n", row, v, r, got, (double)ref[v]);
            return false;
        }
    }
    return true;
}

// The gradient is rounded twice: as exp(x - m_r), and times f_r.
static void shares_are_the_whole_classifier(void) {
    for (int i = 0; i < NUM_SHAPES; i++) {
        const Shape s = shape_of(i);
        const float scale = 1.0f / (float)s.num_rows;
        Pair targets = random_targets(&s), logits = random_logits(&s, targets.host_ints);
        Shares all = run_shares(&s, targets, logits.host, scale);
        Shares tried = run_shares(&s, targets, logits.host, 0.0f);
        cpu_fused_classifier(all.losses.host, logits.host, targets.host_ints, scale, s.num_rows, s.V, s.Vp);
        memcpy(tried.losses.host, all.losses.host, (size_t)s.num_rows * sizeof(float));
        CHECK_PAIR(all.losses, SUM_TOLERANCE);
        CHECK_PAIR(tried.losses, SUM_TOLERANCE);
        CHECK(pair_same_bits(all.losses, tried.losses));
        for (int r = 0; r < s.num_shares; r++) {
            CHECK(gradient_close(&s, &all, r, logits.host, 2 * VALUE_TOLERANCE));
        }
        pair_release();
    }
}

static void combined_stats_are_the_cpus(void) {
    for (int i = 0; i < 20; i++) {
        const int num_rows = i == 0 ? 1 : rng_between(&cuda_test_rng, 1, 300);
        const int num_shares = i == 1 ? OPS_MAX_SHARES : rng_between(&cuda_test_rng, 1, 9);
        const size_t n = (size_t)num_rows;
        float *on_device[OPS_MAX_SHARES], *factors[OPS_MAX_SHARES], *host[OPS_MAX_SHARES],
            *host_factors[OPS_MAX_SHARES];
        Pair of_shares[OPS_MAX_SHARES], losses = pair_floats(n, NAN);
        for (int r = 0; r < num_shares; r++) {
            Pair stats = pair_random_floats(n * 3, 20.0);
            for (int row = 0; row < num_rows; row++) {
                float* of_row = stats.host + 3 * row;
                const bool is_empty = num_shares > 1 && (row + r) % 5 == 0;
                of_row[0] = is_empty ? -INFINITY : of_row[0];
                of_row[1] = is_empty ? 0.0f : 1.0f + fabsf(of_row[1]);
                of_row[2] = row % num_shares == r ? of_row[2] : -INFINITY;
            }
            pair_to_device(stats);
            of_shares[r] = pair_floats(n * 2, NAN);
            on_device[r] = pair_f(stats);
            host[r] = stats.host;
            factors[r] = pair_f(of_shares[r]);
            host_factors[r] = of_shares[r].host;
        }
        classifier_combine(pair_f(losses), factors, (const float* const*)on_device, 0.7f, num_rows,
                           num_shares, cuda_test_ops);
        cpu_classifier_combine(losses.host, host_factors, (const float* const*)host, 0.7f, num_rows,
                               num_shares);
        CHECK_PAIR(losses, SUM_TOLERANCE);
        for (int r = 0; r < num_shares; r++) { CHECK_PAIR(of_shares[r], SUM_TOLERANCE); }
        pair_release();
    }
}

// The target in a share of its own or among others: loss and gradient are -others, not 1 - p.
static void a_loss_near_zero_keeps_its_digits(void) {
    const Shape s = {2, 300, 304, 3, {0, 16, 32, 304}};
    const int32_t sure[] = {17, 200};
    Pair targets = pair_ints(sure, 2), logits = pair_filled(2 * 304, 0);
    for (int row = 0; row < 2; row++) { logits.host[row * 304 + sure[row]] = 24.0f; }
    Shares all = run_shares(&s, targets, logits.host, 1.0f);
    const double others = 299 * exp(-24.0);
    for (int row = 0; row < 2; row++) {
        const int r = row + 1;
        const int at = sure[row] - s.begin[r];
        const float* e = pair_download(all.parts[r]) + (size_t)(row * num_columns(&s, r));
        const double dtarget = (double)e[at] * (double)pair_download(all.ones[r])[row * WIDTH];
        CHECK_NEAR((double)pair_download(all.losses)[row] / log1p(others), 1.0, SUM_TOLERANCE);
        CHECK_NEAR(dtarget / (-others / (1 + others)), 1.0, 2 * VALUE_TOLERANCE);
    }
    pair_release();
}

static void a_nan_reaches_the_loss(void) {
    const Shape s = {3, 60, 64, 3, {0, 16, 48, 64}};
    const int32_t at[] = {3, 20, 50};
    Pair targets = pair_ints(at, 3), logits = pair_random(3 * 64, 1.0);
    logits.host[50] = NAN;       // of another share than the target
    logits.host[64 + 20] = NAN;  // the target
    Shares all = run_shares(&s, targets, logits.host, 1.0f);
    const float* losses = pair_download(all.losses);
    CHECK(isnan(losses[0]) && isnan(losses[1]) && isfinite(losses[2]));
    pair_release();
}

// Forbidden ids: a share of nothing else has no maximum, and no NaN.
static void logits_of_minus_infinity_are_nobodys(void) {
    const Shape s = {1, 60, 64, 3, {0, 16, 48, 64}};
    const int32_t at = 50;
    Pair targets = pair_ints(&at, 1), logits = pair_random(64, 1.0);
    for (int v = 16; v < 64; v++) { logits.host[v] = v == at ? 1.0f : -INFINITY; }
    Shares all = run_shares(&s, targets, logits.host, 1.0f);
    cpu_fused_classifier(all.losses.host, logits.host, targets.host_ints, 1.0f, 1, s.V, s.Vp);
    CHECK_PAIR(all.losses, SUM_TOLERANCE);
    for (int r = 0; r < s.num_shares; r++) {
        CHECK(gradient_close(&s, &all, r, logits.host, 2 * VALUE_TOLERANCE));
    }
    pair_release();
}

static void no_rows_is_no_work(void) {
    Pair x = pair_filled(16, 1), f = pair_floats(4, 1);
    classifier_share(pair_f(f), pair_x(x), NULL, true, 0, 0, 16, 16, cuda_test_ops);
    classifier_combine(pair_f(f), NULL, NULL, 1.0f, 0, 0, cuda_test_ops);
    classifier_factors(pair_x(x), pair_x(x), pair_f(f), NULL, 0, 16, 0, 16, 16, cuda_test_ops);
    argmax_share(NULL, NULL, pair_x(x), 0, 0, 16, 16, cuda_test_ops);
    CHECK_PAIR(x, 0);
    CHECK_PAIR(f, 0);
    pair_release();
}

int main(int argc, char** argv) {
    cuda_test_begin(argc, argv);
    RUN(a_share_is_the_cpus);
    RUN(factors_go_where_the_cpus_go);
    RUN(a_shares_largest_is_the_cpus);
    RUN(shares_are_the_whole_classifier);
    RUN(combined_stats_are_the_cpus);
    RUN(a_loss_near_zero_keeps_its_digits);
    RUN(a_nan_reaches_the_loss);
    RUN(logits_of_minus_infinity_are_nobodys);
    RUN(no_rows_is_no_work);
    cuda_test_end();
    return test_end();
}
