#include "refit.h"

#include <math.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

// a += w t t', b += w t y, for n unknowns.
static void least_squares_add(double* a, double* b, int32_t n, const double* t, double y, double w) {
    for (int32_t i = 0; i < n; i++) {
        if (t[i] == 0) { continue; }
        double wt = w * t[i];
        double* row = &a[least_squares_at(i, 0)];
        for (int32_t j = 0; j <= i; j++) { row[j] += wt * t[j]; }
        b[i] += wt * y;
    }
}

// out = A v
static void least_squares_times(double* out, const double* a, int32_t n, const double* v) {
    for (int32_t i = 0; i < n; i++) {
        out[i] = 0;
        for (int32_t j = 0; j < n; j++) { out[i] += a[least_squares_at(i, j)] * v[j]; }
    }
}

// A = L L' (Cholesky), then L z = b, L' x = z.
static void least_squares_solve(double* x, const double* a, const double* b, int32_t n) {
    double l[LEAST_SQUARES_PACKED];
    memcpy(l, a, (size_t)least_squares_at(n, 0) * sizeof *l);
    for (int32_t i = 0; i < n; i++) {
        for (int32_t j = 0; j <= i; j++) {
            double sum = l[least_squares_at(i, j)];
            for (int32_t k = 0; k < j; k++) { sum -= l[least_squares_at(i, k)] * l[least_squares_at(j, k)]; }
            double pivot = i == j ? 0 : l[least_squares_at(j, j)];
            bool has_pivot = i == j ? sum > 1e-12 * a[least_squares_at(i, i)] : pivot > 0;
            l[least_squares_at(i, j)] = !has_pivot ? 0 : i == j ? sqrt(sum) : sum / pivot;
        }
    }
    for (int32_t i = 0; i < n; i++) {
        double sum = b[i], pivot = l[least_squares_at(i, i)];
        for (int32_t k = 0; k < i; k++) { sum -= l[least_squares_at(i, k)] * x[k]; }
        x[i] = pivot > 0 ? sum / pivot : 0;
    }
    for (int32_t i = n - 1; i >= 0; i--) {
        double sum = x[i], pivot = l[least_squares_at(i, i)];
        for (int32_t k = i + 1; k < n; k++) { sum -= l[least_squares_at(k, i)] * x[k]; }
        x[i] = pivot > 0 ? sum / pivot : 0;
    }
}

// --- sums over measured jobs -------------------------------------------------------------------------

enum { WEIGH_ROUNDS = 6, WEIGH_LEAST_JOBS = 8 };

static const double FIRST_RATIO = 2.5;  // from the median: more cannot be explained by the shapes of jobs
static const double LEAST_SCATTER = 0.003, USUAL_SCATTER = 0.05;
static const double HUBER = 2.5, FAR = 6;  // times the scatter: counts less, not at all
static const double WEIGH_PRIOR = 0.01;    // of factors around 1, in jobs

static double predicted_ns(const RefitJob* job, int32_t n) {
    double sum = 0;
    for (int32_t c = 0; c < n; c++) { sum += job->term[c]; }
    return sum;
}

void refit_sums_add(RefitSums* sums, RefitSide side, const RefitJob* job, double kept, double scatter) {
    int32_t n = refit_side_columns(side);
    double predicted = predicted_ns(job, n);
    if (!(predicted > 0 && kept > 0)) { return; }
    double w = kept / predicted;
    least_squares_add(sums->a, sums->b, n, job->term, job->measured_ns, w);
    for (int32_t c = 0; c < n; c++) { sums->term_ns[c] += kept * job->term[c]; }
    sums->noise_ns += kept * predicted * scatter * scatter;
    sums->num_jobs += kept;
    sums->predicted_ns += kept * predicted;
}

void refit_sums_merge(RefitSums* to, double old, const RefitSums* from) {
    double* sum = (double*)to;
    const double* add = (const double*)from;
    for (size_t i = 0; i < sizeof *to / sizeof *sum; i++) { sum[i] = old * sum[i] + add[i]; }
}

// --- outliers --------------------------------------------------------------------------------------------

static int compare_doubles(const void* a, const void* b) {
    double x = *(const double*)a, y = *(const double*)b;
    return (x > y) - (x < y);
}

static double median(double* values, int32_t num) {
    qsort(values, (size_t)num, sizeof *values, compare_doubles);
    return values[num / 2];
}

// The factors by the jobs that count, with a weak prior towards 1.
static void fit_alone(double factor[REFIT_COLUMNS], RefitSide side, const RefitJob* jobs, const double* kept,
                      int32_t num_jobs) {
    int32_t n = refit_side_columns(side);
    RefitSums sums = {0};
    for (int32_t i = 0; i < num_jobs; i++) {  // one vote a job: a long one may be the interrupted one
        refit_sums_add(&sums, side, &jobs[i], kept[i] / predicted_ns(&jobs[i], n), 0);
    }
    for (int32_t c = 0; c < n; c++) {
        sums.a[least_squares_at(c, c)] += WEIGH_PRIOR;
        sums.b[c] += WEIGH_PRIOR;
    }
    least_squares_solve(factor, sums.a, sums.b, n);
}

static void weigh_first(double* kept, double* ratios, RefitSide side, const RefitJob* jobs,
                        int32_t num_jobs) {
    int32_t n = refit_side_columns(side);
    for (int32_t i = 0; i < num_jobs; i++) { ratios[i] = jobs[i].measured_ns / predicted_ns(&jobs[i], n); }
    double middle = median(ratios, num_jobs);
    for (int32_t i = 0; i < num_jobs; i++) {
        double ratio = jobs[i].measured_ns / predicted_ns(&jobs[i], n) / middle;
        double off = ratio > 1 ? ratio : 1 / ratio;
        kept[i] = off <= FIRST_RATIO ? 1 : FIRST_RATIO / off / off;
    }
}

double refit_sums_weigh_by(double* kept, double* errors, RefitSide side, const RefitJob* jobs,
                           int32_t num_jobs, const double factor[REFIT_COLUMNS]) {
    int32_t n = refit_side_columns(side);
    for (int32_t i = 0; i < num_jobs; i++) {
        double fitted = 0;
        for (int32_t c = 0; c < n; c++) { fitted += factor[c] * jobs[i].term[c]; }
        kept[i] = errors[i] = fabs(jobs[i].measured_ns - fitted) / predicted_ns(&jobs[i], n);
    }
    double scatter = num_jobs > 0 ? fmax(1.4826 * median(errors, num_jobs), LEAST_SCATTER) : 1;
    for (int32_t i = 0; i < num_jobs; i++) {
        double off = kept[i] / scatter;
        kept[i] = off <= HUBER ? 1 : off <= FAR ? HUBER / off : 0;
    }
    return scatter;
}

double refit_sums_weigh(double* kept, double* errors, RefitSide side, const RefitJob* jobs,
                        int32_t num_jobs) {
    for (int32_t i = 0; i < num_jobs; i++) { kept[i] = 1; }
    double scatter = USUAL_SCATTER;
    if (num_jobs < WEIGH_LEAST_JOBS) { return scatter; }
    weigh_first(kept, errors, side, jobs, num_jobs);
    for (int round = 0; round < WEIGH_ROUNDS; round++) {
        double factor[REFIT_COLUMNS];
        fit_alone(factor, side, jobs, kept, num_jobs);
        scatter = refit_sums_weigh_by(kept, errors, side, jobs, num_jobs, factor);
    }
    return scatter;
}

// --- factors -----------------------------------------------------------------------------------------

// Usual deviations from 1, and of W's factors from B's, which joint backward passes do not separate.
static const double PRIOR_FACTOR = 0.1, PRIOR_FACTOR_PAIR = 0.2;
static const double PRIOR_SLOW = 0.002, PRIOR_SLOW_PAIR = 0.02;
// Relative errors of jobs: the range that is accepted.
static const double LEAST_NOISE = 0.002, MOST_NOISE = 0.2;

RefitShared refit_shared_one(void) {
    RefitShared shared = {0};
    for (int side = 0; side < SIDE_COUNT; side++) {
        for (int32_t c = 0; c < REFIT_COLUMNS; c++) { shared.factor[side][c] = 1; }
    }
    return shared;
}

RefitRank refit_rank_one(void) {
    return (RefitRank){{1, 1, 1}};
}

static double clamped(double value, double least, double most) {
    return value > least ? value < most ? value : most : least;
}

// --- one rank --------------------------------------------------------------------------------------------

// Of a job: w * error^2.
static double job_noise_ns(const RefitSums* sums) {
    double mean_ns = sums->predicted_ns / sums->num_jobs;
    return clamped(sums->noise_ns / sums->num_jobs, LEAST_NOISE * LEAST_NOISE * mean_ns,
                   MOST_NOISE * MOST_NOISE * mean_ns);
}

// Of one side: the linear model around (factor, slow): y = D t f + sum over passes k of ds_k (t f)_k.
typedef struct {
    int32_t n, num_passes;  // columns; 1 or 2
    CostPass pass[2];
    double speed[REFIT_COLUMNS];     // D: the column's slow
    double cross[2][REFIT_COLUMNS];  // A f_k, f_k being the factors of pass k alone
    double own[3], right[2];         // packed (s, s) and right-hand side for ds, with their prior
    double noise_ns;
} Around;

static void around_make(Around* out, RefitSide side, const RefitSums* block, const RefitShared* shared,
                        const RefitRank* rank) {
    *out = (Around){.n = refit_side_columns(side),
                    .num_passes = side == SIDE_FORWARD ? 1 : 2,
                    .pass = {side == SIDE_FORWARD ? PASS_FORWARD : PASS_INPUTS, PASS_WEIGHTS}};
    out->noise_ns = job_noise_ns(block);
    for (int32_t c = 0; c < out->n; c++) { out->speed[c] = rank->slow[refit_column_pass(side, c)]; }
    double alone[2][REFIT_COLUMNS] = {{0}};
    for (int k = 0; k < out->num_passes; k++) {
        for (int32_t c = 0; c < out->n; c++) {
            alone[k][c] = refit_column_pass(side, c) == out->pass[k] ? shared->factor[side][c] : 0;
        }
        least_squares_times(out->cross[k], block->a, out->n, alone[k]);
    }
    double pair = out->num_passes == 2 ? out->noise_ns / (PRIOR_SLOW_PAIR * PRIOR_SLOW_PAIR) : 0;
    for (int k = 0; k < out->num_passes; k++) {
        double slow = rank->slow[out->pass[k]], other = rank->slow[out->pass[out->num_passes - 1 - k]];
        double prior = out->noise_ns / (PRIOR_SLOW * PRIOR_SLOW + (slow - 1) * (slow - 1));
        for (int l = 0; l <= k; l++) {
            double sum = 0;
            for (int32_t c = 0; c < out->n; c++) { sum += alone[l][c] * out->cross[k][c]; }
            out->own[least_squares_at(k, l)] = sum + (k == l ? prior + pair : -pair);
        }
        out->right[k] = prior * (1 - slow) + pair * (other - slow);
        for (int32_t c = 0; c < out->n; c++) { out->right[k] += alone[k][c] * block->b[c]; }
    }
    for (int k = 0; k < out->num_passes; k++) {
        for (int32_t c = 0; c < out->n; c++) { out->cross[k][c] *= out->speed[c]; }
    }
}

static void share_side(RefitSums* out, RefitSide side, const RefitSums* block, const RefitShared* shared,
                       const RefitRank* rank) {
    Around around;
    *out = (RefitSums){
        .noise_ns = block->noise_ns, .num_jobs = block->num_jobs, .predicted_ns = block->predicted_ns};
    memcpy(out->term_ns, block->term_ns, sizeof out->term_ns);
    if (!(block->num_jobs > 0)) { return; }
    around_make(&around, side, block, shared, rank);
    double taken[2], by_column[REFIT_COLUMNS][2];
    least_squares_solve(taken, around.own, around.right, around.num_passes);
    for (int32_t c = 0; c < around.n; c++) {
        double column[2] = {around.cross[0][c], around.cross[1][c]};
        least_squares_solve(by_column[c], around.own, column, around.num_passes);
    }
    for (int32_t i = 0; i < around.n; i++) {
        out->b[i] = around.speed[i] * block->b[i];
        for (int k = 0; k < around.num_passes; k++) { out->b[i] -= around.cross[k][i] * taken[k]; }
        for (int32_t j = 0; j <= i; j++) {
            double a = around.speed[i] * around.speed[j] * block->a[least_squares_at(i, j)];
            for (int k = 0; k < around.num_passes; k++) { a -= around.cross[k][i] * by_column[j][k]; }
            out->a[least_squares_at(i, j)] = a;
        }
    }
}

void refit_share(RefitSums out[SIDE_COUNT], const RefitSums block[SIDE_COUNT], const RefitShared* shared,
                 const RefitRank* rank) {
    for (int side = 0; side < SIDE_COUNT; side++) {
        share_side(&out[side], (RefitSide)side, &block[side], shared, rank);
    }
}

void refit_rank_solve(RefitRank* rank, const RefitSums block[SIDE_COUNT], const RefitShared* shared) {
    RefitRank next = *rank;
    for (int side = 0; side < SIDE_COUNT; side++) {
        Around around;
        double change[2];
        if (!(block[side].num_jobs > 0)) { continue; }
        around_make(&around, (RefitSide)side, &block[side], shared, rank);
        // At the new factors the model is linear in slow alone.
        for (int k = 0; k < around.num_passes; k++) {
            for (int32_t c = 0; c < around.n; c++) {
                around.right[k] -= around.cross[k][c] * shared->factor[side][c];
            }
        }
        least_squares_solve(change, around.own, around.right, around.num_passes);
        for (int k = 0; k < around.num_passes; k++) {
            next.slow[around.pass[k]] = clamped(rank->slow[around.pass[k]] + change[k], 0.05, 50);
        }
    }
    *rank = next;
}

// --- all ranks -------------------------------------------------------------------------------------------

// What columns i and j have in common: (x_i - x_j)^2.
static void add_pair(RefitSums* sums, int32_t i, int32_t j, double prior) {
    sums->a[least_squares_at(i, i)] += prior;
    sums->a[least_squares_at(j, j)] += prior;
    sums->a[least_squares_at(i, j)] -= prior;
}

// 1 with a deviation; W's terms like B's, and fixed terms like those that grow with lengths, where nothing is
// known.
static void add_prior(RefitSums* sums, RefitSide side, const double* before, double noise_ns) {
    double pair = noise_ns / (PRIOR_FACTOR_PAIR * PRIOR_FACTOR_PAIR);
    int32_t n = refit_side_columns(side);
    for (int32_t c = 0; c < n; c++) {
        double prior = noise_ns / (PRIOR_FACTOR * PRIOR_FACTOR + (before[c] - 1) * (before[c] - 1));
        sums->a[least_squares_at(c, c)] += prior;
        sums->b[c] += prior;
        if (c % TERM_GROUPS == TERM_FIXED) { add_pair(sums, c, c - TERM_FIXED + TERM_LENGTHS, pair); }
    }
    for (int32_t c = 0; c + PASS_TERMS < n; c++) { add_pair(sums, c, c + PASS_TERMS, pair); }
}

void refit_solve(RefitShared* shared, const RefitSums all[SIDE_COUNT], const RefitSums history[SIDE_COUNT]) {
    for (int side = 0; side < SIDE_COUNT; side++) {
        RefitSums sums = all[side];
        if (!(sums.num_jobs > 0)) { continue; }
        double noise_ns = job_noise_ns(&sums);
        refit_sums_merge(&sums, 1, &history[side]);
        add_prior(&sums, (RefitSide)side, shared->factor[side], noise_ns);
        least_squares_solve(shared->factor[side], sums.a, sums.b, refit_side_columns((RefitSide)side));
    }
}

void refit_alike(RefitSums out[SIDE_COUNT], const RefitSums block[SIDE_COUNT], const RefitRank* rank) {
    for (int side = 0; side < SIDE_COUNT; side++) {
        int32_t n = refit_side_columns((RefitSide)side);
        out[side] = block[side];
        for (int32_t i = 0; i < n; i++) {
            double slow = rank->slow[refit_column_pass((RefitSide)side, i)];
            out[side].b[i] *= slow;
            for (int32_t j = 0; j <= i; j++) {
                out[side].a[least_squares_at(i, j)] *=
                    slow * rank->slow[refit_column_pass((RefitSide)side, j)];
            }
        }
    }
}

void refit_publish(CostScale* scale, RefitRank* ranks, int32_t num_ranks, const RefitShared* shared,
                   double* room) {
    double middle[PASS_COUNT];
    for (int pass = 0; pass < PASS_COUNT; pass++) {
        for (int32_t r = 0; r < num_ranks; r++) { room[r] = ranks[r].slow[pass]; }
        qsort(room, (size_t)num_ranks, sizeof *room, compare_doubles);
        middle[pass] = room[(num_ranks - 1) / 2];
        for (int32_t r = 0; r < num_ranks; r++) { ranks[r].slow[pass] /= middle[pass]; }
    }
    for (int side = 0; side < SIDE_COUNT; side++) {
        for (int32_t c = 0; c < refit_side_columns((RefitSide)side); c++) {
            CostPass pass = refit_column_pass((RefitSide)side, c);
            scale->factor[pass][c % PASS_TERMS] = cost_scale_round(shared->factor[side][c] * middle[pass]);
        }
    }
}

RefitRank refit_smooth(const RefitRank* before, const RefitRank* now) {
    RefitRank out = *now;
    for (int pass = 0; pass < PASS_COUNT; pass++) {
        double ratio = now->slow[pass] / before->slow[pass];
        if (fabs(ratio - 1) <= 0.1) { out.slow[pass] = (now->slow[pass] + before->slow[pass]) / 2; }
    }
    return out;
}

double refit_round_slow(double slow) {
    if (fabs(slow - 1) < 0.01) { return 1; }
    return (double)cost_scale_round(slow) / SCALE_ONE;
}
