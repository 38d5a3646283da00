// Laws of a head shared by vocabulary: cut anywhere, all shares together give the losses, the logits'
// gradient and the hidden rows' gradient of the whole one, against a double reference; small losses keep
// their digits wherever the target is; a share without ids, without targets, without rows; a NaN is not
// swallowed.
#include "ops_test.h"

static OpsContext* ops;

enum { MAX_SHARES = 6, C = 20 };

// One head, whole and cut: share r has columns [begin[r], begin[r + 1]) of Vp; ids from V on are padding.
typedef struct {
    int num_rows, V, Vp, num_shares, begin[MAX_SHARES + 1];
    float scale;
    float *logits, *weight;  // (num_rows, Vp), (Vp, C)
    int32_t* targets;
    double *losses, *dlogits, *dinp;  // of the reference: (num_rows), (num_rows, Vp), (num_rows, C)
} Head;

// What the shares make of it.
typedef struct {
    float *losses, *dinp;
    float *dlogits[MAX_SHARES], *stats[MAX_SHARES], *factors[MAX_SHARES];
} Shared;

static int num_ids(const Head* h, int r) {
    const int end = h->begin[r + 1] < h->V ? h->begin[r + 1] : h->V;
    return end > h->begin[r] ? end - h->begin[r] : 0;
}

static void make_reference(Head* h) {
    h->losses = ops_test_zero_doubles((size_t)h->num_rows);
    h->dlogits = ops_test_zero_doubles((size_t)(h->num_rows * h->Vp));
    h->dinp = ops_test_zero_doubles((size_t)(h->num_rows * C));
    for (int i = 0; i < h->num_rows; i++) {
        const float* x = h->logits + i * h->Vp;
        const double at_target = (double)x[h->targets[i]];
        double others = 0.0;  // relative to the target
        for (int v = 0; v < h->V; v++) { others += v == h->targets[i] ? 0.0 : exp((double)x[v] - at_target); }
        h->losses[i] = log1p(others);
        for (int v = 0; v < h->V; v++) {
            const double p = exp((double)x[v] - at_target) / (1.0 + others);
            const double d = (double)h->scale * (v == h->targets[i] ? -others / (1.0 + others) : p);
            h->dlogits[i * h->Vp + v] = d;
            for (int c = 0; c < C; c++) { h->dinp[i * C + c] += d * (double)h->weight[v * C + c]; }
        }
    }
}

// cut: columns at which shares begin, ascending; equal ones make a share without any.
static Head head_make(int num_rows, int V, int Vp, const int* cut, int num_shares, double deviation) {
    Head h = {.num_rows = num_rows, .V = V, .Vp = Vp, .num_shares = num_shares, .scale = 0.37f};
    for (int r = 0; r < num_shares; r++) { h.begin[r] = r == 0 ? 0 : cut[r]; }
    h.begin[num_shares] = Vp;
    h.logits = ops_test_random((size_t)(num_rows * Vp), deviation);
    h.weight = ops_test_random((size_t)(Vp * C), 1.0);
    h.targets = ops_test_alloc((size_t)num_rows * sizeof *h.targets);
    for (int i = 0; i < num_rows; i++) { h.targets[i] = (int32_t)rng_below(&ops_test_rng, (uint32_t)V); }
    return h;
}

static float* share_logits(const Head* h, int r) {
    const int Vs = h->begin[r + 1] - h->begin[r];
    float* x = ops_test_floats((size_t)(h->num_rows * Vs) + 1);
    for (int i = 0; i < h->num_rows; i++) {
        memcpy(x + i * Vs, h->logits + i * h->Vp + h->begin[r], (size_t)Vs * sizeof *x);
    }
    return x;
}

static Shared run_shares(const Head* h) {
    Shared s = {.losses = ops_test_floats((size_t)h->num_rows + 1),
                .dinp = ops_test_floats((size_t)(h->num_rows * C) + 1)};
    const float *sums[MAX_SHARES], *rows[MAX_SHARES];
    for (int r = 0; r < h->num_shares; r++) {
        const int Vs = h->begin[r + 1] - h->begin[r], V = num_ids(h, r);
        const float* weight = h->weight + h->begin[r] * C;
        float *sum = ops_test_floats((size_t)(h->num_rows * C) + 1),
              *own = ops_test_floats((size_t)(h->num_rows * C) + 1);
        s.dlogits[r] = share_logits(h, r);
        s.stats[r] = ops_test_floats((size_t)h->num_rows * 3 + 1);
        s.factors[r] = ops_test_floats((size_t)h->num_rows * 2 + 1);
        classifier_share(s.stats[r], s.dlogits[r], h->targets, true, h->num_rows, h->begin[r], V, Vs, ops);
        memset(sum, 0, (size_t)(h->num_rows * C) * sizeof *sum);
        if (Vs > 0 && h->num_rows > 0) {
            matmul_backward_input(sum, s.dlogits[r], weight, h->num_rows, C, Vs, ops);
        }
        target_rows(own, weight, h->targets, h->num_rows, h->begin[r], V, C, ops);
        sums[r] = sum;
        rows[r] = own;
    }
    classifier_combine(s.losses, s.factors, (const float* const*)s.stats, h->scale, h->num_rows,
                       h->num_shares, ops);
    combine_parts(s.dinp, sums, rows, (const float* const*)s.factors, h->num_rows, C, h->num_shares, ops);
    for (int r = 0; r < h->num_shares; r++) {
        classifier_factors(s.dlogits[r], s.factors[r], h->targets, h->num_rows, h->begin[r], num_ids(h, r),
                           h->begin[r + 1] - h->begin[r], ops);
    }
    return s;
}

// The shares' columns side by side again.
static float* joined(const Head* h, float* const* parts) {
    float* out = ops_test_floats((size_t)(h->num_rows * h->Vp) + 1);
    for (int r = 0; r < h->num_shares; r++) {
        const int Vs = h->begin[r + 1] - h->begin[r];
        for (int i = 0; i < h->num_rows; i++) {
            memcpy(out + i * h->Vp + h->begin[r], parts[r] + i * Vs, (size_t)Vs * sizeof *out);
        }
    }
    return out;
}

static void check_head(Head* h, double deviation) {
    const double tolerance = 16.0 * (double)FLT_EPSILON * (1.0 + deviation);
    make_reference(h);
    const Shared s = run_shares(h);
    CHECK_CLOSE(s.losses, h->losses, (size_t)h->num_rows, tolerance);
    CHECK_CLOSE(joined(h, s.dlogits), h->dlogits, (size_t)(h->num_rows * h->Vp), tolerance);
    CHECK_CLOSE(s.dinp, h->dinp, (size_t)(h->num_rows * C), 4.0 * tolerance);
    for (int r = 0; r < h->num_shares; r++) {
        const int Vs = h->begin[r + 1] - h->begin[r];
        for (int i = 0; i < h->num_rows; i++) {
            for (int v = num_ids(h, r); v < Vs; v++) { CHECK(s.dlogits[r][i * Vs + v] == 0.0f); }
        }
    }
}

// 1 to 6 shares of any size: some without a target, some without an id, some of padding alone.
static void shares_equal_the_whole(void) {
    for (int k = 0; k < 40; k++) {
        const int V = rng_between(&ops_test_rng, 1, 600), Vp = V + rng_between(&ops_test_rng, 0, 90);
        const int num_shares = rng_between(&ops_test_rng, 1, MAX_SHARES);
        int cut[MAX_SHARES] = {0};
        for (int r = 1; r < num_shares; r++) { cut[r] = rng_between(&ops_test_rng, cut[r - 1], Vp); }
        const double deviation = k % 3 == 0 ? 20.0 : 1.0;
        Head h = head_make(rng_between(&ops_test_rng, 0, 12), V, Vp, cut, num_shares, deviation);
        check_head(&h, deviation);
        ops_test_release();
    }
}

static void targets_at_the_edges_of_shares(void) {
    const int cut[] = {0, 16, 32, 96}, edges[] = {0, 15, 16, 31, 32, 95, 96, 99};
    Head h = head_make(8, 100, 128, cut, 4, 1.0);
    for (int i = 0; i < 8; i++) { h.targets[i] = edges[i]; }
    check_head(&h, 1.0);
    ops_test_release();
}

// A target that is nearly certain, in each of the shares; even where the others' exponentials are too small
// for a float beside it.
static void small_losses_keep_their_digits(void) {
    const int cut[] = {0, 16, 32};
    const float lead[] = {3.0f, 12.0f, 40.0f, 120.0f, 300.0f};
    for (int k = 0; k < 15; k++) {
        Head h = head_make(1, 48, 48, cut, 3, 1.0);
        h.targets[0] = (k % 3) * 16 + 7;
        h.logits[h.targets[0]] = lead[k / 3];
        make_reference(&h);
        const Shared s = run_shares(&h);
        const float* dlogits = joined(&h, s.dlogits);
        if (h.losses[0] > 1e-37) {
            CHECK_NEAR((double)s.losses[0] / h.losses[0], 1.0, 1e-6);
            CHECK_NEAR((double)dlogits[h.targets[0]] / h.dlogits[h.targets[0]], 1.0, 1e-6);
            CHECK_CLOSE(s.dinp, h.dinp, C, 1e-5);
        } else {
            CHECK(s.losses[0] >= 0.0f && s.losses[0] < 1e-37f);
            CHECK(dlogits[h.targets[0]] <= 0.0f && dlogits[h.targets[0]] > -1e-37f);
        }
        ops_test_release();
    }
}

// Without gradients: the same losses, the logits as they were.
static void losses_alone_leave_the_logits(void) {
    const int cut[] = {0, 64, 80};
    Head h = head_make(9, 300, 384, cut, 3, 4.0);
    const Shared with = run_shares(&h);
    float *stats[3], losses[9];
    for (int r = 0; r < 3; r++) {
        const int Vs = h.begin[r + 1] - h.begin[r];
        float *x = share_logits(&h, r), *kept = ops_test_copy(x, (size_t)(9 * Vs));
        stats[r] = ops_test_floats(27);
        classifier_share(stats[r], x, h.targets, false, 9, h.begin[r], num_ids(&h, r), Vs, ops);
        CHECK_SAME_BITS(x, kept, (size_t)(9 * Vs));
        CHECK_SAME_BITS(stats[r], with.stats[r], 27);
    }
    classifier_combine(losses, NULL, (const float* const*)stats, 0.0f, 9, 3, ops);
    CHECK_SAME_BITS(losses, with.losses, 9);
    ops_test_release();
}

static void a_nan_reaches_the_loss(void) {
    const int cut[] = {0, 16, 32}, places[] = {3, 20, 47};
    for (int k = 0; k < 6; k++) {
        Head h = head_make(1, 48, 48, cut, 3, 1.0);
        h.targets[0] = k < 3 ? places[k] : 9;  // the target itself; another id
        h.logits[places[k % 3]] = NAN;
        CHECK(isnan(run_shares(&h).losses[0]));
        ops_test_release();
    }
    Head h = head_make(1, 48, 48, cut, 3, 1.0);
    h.targets[0] = 9;
    for (int v = 16; v < 32; v++) { h.logits[v] = NAN; }  // a share that has nothing else
    CHECK(isnan(run_shares(&h).losses[0]));
    ops_test_release();
}

// The largest of all shares' answers, the first of equals, is the whole row's.
static void answers_of_shares_make_the_whole_rows(void) {
    for (int k = 0; k < 20; k++) {
        const int V = rng_between(&ops_test_rng, 1, 200), Vp = V + rng_between(&ops_test_rng, 0, 40);
        const int cut[] = {0, Vp / 3, Vp / 3, Vp - Vp / 4};
        Head h = head_make(7, V, Vp, cut, 4, 1.0);
        for (int i = 0; i < 7; i++) {  // some with two that are equal, padding above all
            h.logits[i * Vp + (int)rng_below(&ops_test_rng, (uint32_t)V)] = 9.0f;
            if (i % 2) { h.logits[i * Vp + (int)rng_below(&ops_test_rng, (uint32_t)V)] = 9.0f; }
            for (int v = V; v < Vp; v++) { h.logits[i * Vp + v] = 99.0f; }
        }
        int32_t whole[7], best[7], ids[7];
        float values[7], best_values[7];
        argmax_rows(whole, h.logits, 7, V, Vp, ops);
        for (int r = 0; r < 4; r++) {
            const int Vs = h.begin[r + 1] - h.begin[r];
            argmax_share(values, ids, share_logits(&h, r), 7, h.begin[r], num_ids(&h, r), Vs, ops);
            for (int i = 0; i < 7; i++) {
                if (r > 0 && values[i] <= best_values[i]) { continue; }
                best[i] = ids[i];
                best_values[i] = values[i];
            }
        }
        for (int i = 0; i < 7; i++) { CHECK_EQ(best[i], whole[i]); }
        ops_test_release();
    }
}

static void threads_do_not_change_bits(void) {
    const int cut[] = {0, 496, 1008};
    OpsContext *several = ops, *one = ops_create(1);
    Head h = head_make(9, 1500, 1504, cut, 3, 2.0);
    const Shared a = run_shares(&h);
    ops = one;
    const Shared b = run_shares(&h);
    ops = several;
    ops_free(one);
    CHECK_SAME_BITS(a.losses, b.losses, 9);
    for (int r = 0; r < 3; r++) {
        CHECK_SAME_BITS(a.dlogits[r], b.dlogits[r], (size_t)(9 * (h.begin[r + 1] - h.begin[r])));
    }
    ops_test_release();
}

int main(int argc, char** argv) {
    ops_test_rng = rng_seed(test_seed(argc, argv));
    ops = ops_create(2);
    RUN(shares_equal_the_whole);
    RUN(targets_at_the_edges_of_shares);
    RUN(small_losses_keep_their_digits);
    RUN(losses_alone_leave_the_logits);
    RUN(a_nan_reaches_the_loss);
    RUN(answers_of_shares_make_the_whole_rows);
    RUN(threads_do_not_change_bits);
    ops_free(ops);
    return test_end();
}
