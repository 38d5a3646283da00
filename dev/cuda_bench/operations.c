/*
operations.c -- every operation of ops.h at the shapes of GPT-2, attention also at T5's, and those of a head
shared by vocabulary among 8 ranks: time, and share of the card's measured peak.

    cuda_bench_operations [--sizes tiny|few] [--seconds 0.02]

Peaks are measured first. Bytes are those that must move at least once (arrays read + arrays written), not the
actual traffic; flops of attention are 4 HS per pair of query and visible key forward, 2.5 times as many
backward (Dao 2023, section 3.3). Prints Markdown; the last column shows whether a target is met.
*/
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/options.h"
#include "../../util/numbers.h"
#include "bench.h"

enum { MAX_T = 1024, V = 50257, NUM_SHARES = 8, TARGET_PERCENT = 80 };

typedef struct {
    int32_t sizes;  // index into all_sizes
    double seconds;
} Options;

typedef struct {
    int T, NH, shrink;              // attention: tokens, heads, what lengths are divided by
    int num_seqs, t5_NH, enc, dec;  // T5's: sequences, heads, tokens of both stacks
    int first_model, end_model;
} Sizes;
static const Sizes all_sizes[] = {{65536, 12, 1, 128, 12, 512, 114, 0, 3},  // gpt2, tiny, few
                                  {96, 2, 128, 2, 2, 40, 9, 3, 4},
                                  {1024, 2, 8, 1, 2, 512, 114, 4, 5}};

static const OptionSpec specs[] = {
    {"--sizes", OPTION_CHOICE, offsetof(Options, sizes), "gpt2", 0, 0, "gpt2|tiny|few", NULL,
     "for the emulator: tiny, or few tokens of GPT-2's width (dev/count_kernels.sh)"},
    {"--seconds", OPTION_DOUBLE, offsetof(Options, seconds), "0.02", 0, 100, NULL, "S", "for one point"},
};
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

// One model's arrays. Sizes in values; x: floatX, f: float32.
typedef struct {
    const char* name;
    int T, C, NH, V, Vp, rows, num_seqs, max_len;
    int64_t num_params, num_pairs, num_distinct;  // pairs (query, key) that attend; different tokens
    floatX *x4a, *x4b, *x4c, *x4d;                // (T, 4C)
    floatX *weight, *bias, *wpe, *logits;         // (Vp, C), (4C), (MAX_T, C), (rows, Vp)
    float *mean, *rstd, *losses, *lse;            // (T), (T), (rows), (NH, T)
    float *f_weight, *f_bias, *f_wpe;             // gradients of weight, bias, wpe
    float *master, *m, *v, *grads;                // (num_params)
    floatX* params;
    int32_t *tokens, *positions, *targets, *row_idx, *cu;
    void *embedding_scratch, *attention_scratch;
    Attention causal;
    // a rank's share of the head, with Vs ids, and what it combines as the rank with the hidden states
    int Vs;
    floatX *sums[NUM_SHARES], *target_rows[NUM_SHARES];  // (rows, C)
    float *stats[NUM_SHARES], *factors[NUM_SHARES];      // (rows, 3), (rows, 2)
    OpsContext* ops;
} Work;

// WIDE: bytes of an elementwise or normalising operation, which should go at the speed of a copy.
typedef enum { WIDE, BYTES, FLOPS } Unit;

// name, unit, how many, the call. W: the arrays, TC: T x C, X: bytes of a floatX.
#define OPERATIONS(DO)                                                                                       \
    DO(embedding_forward, BYTES, X*(TC + (double)(W->num_distinct + MAX_T) * W->C),                          \
       embedding_forward(W->x4a, W->tokens, W->positions, W->weight, W->wpe, W->T, W->C, W->ops))            \
    DO(embedding_backward, BYTES, X* TC + 8.0 * (double)(W->num_distinct + MAX_T) * W->C,                    \
       embedding_backward(W->f_weight, W->f_wpe, W->embedding_scratch, W->x4a, W->tokens, W->positions,      \
                          W->T, W->C, W->ops))                                                               \
    DO(layernorm_forward, WIDE, 2 * X * TC + 8.0 * W->T,                                                     \
       layernorm_forward(W->x4a, W->mean, W->rstd, W->x4b, W->bias, W->bias, 1e-5f, W->T, W->C, W->ops))     \
    DO(residual_layernorm_forward, WIDE, 4 * X * TC + 8.0 * W->T,                                            \
       residual_layernorm_forward(W->x4a, W->x4b, W->mean, W->rstd, W->x4c, W->x4d, W->bias, W->bias, 1e-5f, \
                                  W->T, W->C, W->ops))                                                       \
    DO(layernorm_backward, WIDE, 4 * X * TC + 8.0 * W->T,                                                    \
       layernorm_backward(W->x4a, W->f_bias, W->f_bias + W->C, W->x4b, W->x4c, W->x4d, W->bias, W->mean,     \
                          W->rstd, W->T, W->C, W->ops))                                                      \
    DO(residual_forward, WIDE, 3 * X * TC, residual_forward(W->x4a, W->x4b, W->x4c, (size_t)TC, W->ops))     \
    DO(gelu_forward, WIDE, 8 * X * TC, gelu_forward(W->x4a, W->x4b, 4 * (size_t)TC, W->ops))                 \
    DO(gelu_backward, WIDE, 12 * X * TC, gelu_backward(W->x4a, W->x4b, W->x4c, 4 * (size_t)TC, W->ops))      \
    DO(exact_gelu_forward, WIDE, 8 * X * TC, exact_gelu_forward(W->x4a, W->x4b, 4 * (size_t)TC, W->ops))     \
    DO(exact_gelu_backward, WIDE, 12 * X * TC,                                                               \
       exact_gelu_backward(W->x4a, W->x4b, W->x4c, 4 * (size_t)TC, W->ops))                                  \
    DO(rmsnorm_forward, WIDE, 2 * X * TC + 4.0 * W->T,                                                       \
       rmsnorm_forward(W->x4a, W->rstd, W->x4b, W->bias, 1, 0, W->T, W->C, W->ops))                          \
    DO(residual_rmsnorm_forward, WIDE, 4 * X * TC + 4.0 * W->T,                                              \
       residual_rmsnorm_forward(W->x4a, W->x4b, W->rstd, W->x4c, W->x4d, W->bias, 1, 0, W->T, W->C, W->ops)) \
    DO(rmsnorm_backward, WIDE, 4 * X * TC + 4.0 * W->T,                                                      \
       rmsnorm_backward(W->x4a, W->f_bias, W->x4b, W->x4c, W->x4d, W->bias, W->rstd, 1.0f, W->T, W->C,       \
                        W->ops))                                                                             \
    DO(relu_forward, WIDE, 8 * X * TC, relu_forward(W->x4a, W->x4b, 4 * (size_t)TC, W->ops))                 \
    DO(relu_backward, WIDE, 12 * X * TC, relu_backward(W->x4a, W->x4b, W->x4c, 4 * (size_t)TC, W->ops))      \
    DO(gated_gelu_forward, WIDE, 6 * X * TC, gated_gelu_forward(W->x4a, W->x4b, W->T, 2 * W->C, W->ops))     \
    DO(gated_gelu_backward, WIDE, 10 * X * TC,                                                               \
       gated_gelu_backward(W->x4a, W->x4c, W->x4b, W->T, 2 * W->C, W->ops))                                  \
    DO(gated_silu_forward, WIDE, 6 * X * TC, gated_silu_forward(W->x4a, W->x4b, W->T, 2 * W->C, W->ops))     \
    DO(gated_silu_backward, WIDE, 10 * X * TC,                                                               \
       gated_silu_backward(W->x4a, W->x4c, W->x4b, W->T, 2 * W->C, W->ops))                                  \
    DO(rope_forward, WIDE, 6 * X * TC,                                                                       \
       rope_forward(W->x4a, W->x4b, W->positions, &(Rope){W->NH, W->NH, W->C / W->NH, {1}}, W->T, W->ops))   \
    DO(rope_backward, WIDE, 6 * X * TC,                                                                      \
       rope_backward(W->x4a, W->x4b, W->positions, &(Rope){W->NH, W->NH, W->C / W->NH, {1}}, W->T, W->ops))  \
    DO(dropout_apply, WIDE, 8 * X * TC,                                                                      \
       dropout_apply(W->x4a, W->x4b, (const uint32_t*)W->tokens, 1, 0.1f, W->T, 4 * W->C, W->ops))           \
    DO(gather_rows, WIDE, 2 * X * (double)W->rows * W->C,                                                    \
       gather_rows(W->x4a, W->x4b, W->row_idx, W->rows, W->C, W->ops))                                       \
    DO(scatter_rows, WIDE, X*(TC + (double)W->rows * W->C),                                                  \
       scatter_rows(W->x4a, W->x4b, W->row_idx, W->rows, W->T, W->C, W->ops))                                \
    DO(fused_classifier, WIDE, 2 * X * (double)W->rows * W->Vp,                                              \
       fused_classifier(W->losses, W->logits, W->targets, 1e-3f, W->rows, W->V, W->Vp, W->ops))              \
    DO(classifier_share, WIDE, 2 * X * (double)W->rows * W->Vs,                                              \
       classifier_share(W->stats[0], W->logits, W->targets, true, W->rows, 0, W->Vs, W->Vs, W->ops))         \
    DO(classifier_share_losses, WIDE, X*(double)W->rows * W->Vs,                                             \
       classifier_share(W->stats[0], W->logits, W->targets, false, W->rows, 0, W->Vs, W->Vs, W->ops))        \
    DO(target_rows, WIDE, X*(double)W->rows * W->C * (1 + 1.0 / NUM_SHARES),                                 \
       target_rows(W->target_rows[0], W->weight, W->targets, W->rows, 0, W->Vs, W->C, W->ops))               \
    DO(classifier_combine, BYTES, 20.0 * NUM_SHARES * W->rows,                                               \
       classifier_combine(W->losses, W->factors, (const float* const*)W->stats, 1e-3f, W->rows, NUM_SHARES,  \
                          W->ops))                                                                           \
    DO(combine_parts, WIDE, X*(double)W->rows * W->C * (NUM_SHARES + 2),                                     \
       combine_parts(W->x4a, (const floatX* const*)W->sums, (const floatX* const*)W->target_rows,            \
                     (const float* const*)W->factors, W->rows, W->C, NUM_SHARES, W->ops))                    \
    DO(classifier_factors, WIDE, 2 * X * (double)W->rows * W->C,                                             \
       classifier_factors(W->logits, W->x4a, W->factors[0], W->targets, W->rows, W->C, 0, W->Vs, W->Vs,      \
                          W->ops))                                                                           \
    DO(adamw_update, WIDE, (2 * X + 28) * (double)W->num_params, run_adamw(W))                               \
    DO(sum_of_squares, WIDE, 4 * (double)W->num_params,                                                      \
       (void)sum_of_squares(W->grads, (size_t)W->num_params, W->ops))                                        \
    DO(matmul_qkv, FLOPS, 6 * TC * W->C,                                                                     \
       matmul_forward(W->x4a, W->x4b, W->weight, W->bias, W->T, W->C, 3 * W->C, W->ops))                     \
    DO(matmul_attproj, FLOPS, 2 * TC * W->C,                                                                 \
       matmul_forward(W->x4a, W->x4b, W->weight, W->bias, W->T, W->C, W->C, W->ops))                         \
    DO(matmul_gelu_fc, FLOPS, 8 * TC * W->C,                                                                 \
       matmul_gelu_forward(W->x4a, W->x4b, W->x4c, W->weight, W->bias, W->T, W->C, 4 * W->C, W->ops))        \
    DO(matmul_fcproj, FLOPS, 8 * TC * W->C,                                                                  \
       matmul_forward(W->x4a, W->x4b, W->weight, W->bias, W->T, 4 * W->C, W->C, W->ops))                     \
    DO(matmul_head, FLOPS, 2 * (double)W->rows * W->Vp * W->C,                                               \
       matmul_forward(W->logits, W->x4b, W->weight, NULL, W->rows, W->C, W->Vp, W->ops))                     \
    DO(matmul_input_qkv, FLOPS, 6 * TC * W->C,                                                               \
       matmul_backward_input(W->x4a, W->x4b, W->weight, W->T, W->C, 3 * W->C, W->ops))                       \
    DO(matmul_gelu_input_fcproj, FLOPS, 8 * TC * W->C,                                                       \
       matmul_gelu_backward_input(W->x4a, W->x4b, W->x4d, W->x4c, W->weight, W->T, 4 * W->C, W->C, W->ops))  \
    DO(matmul_input_fc, FLOPS, 8 * TC * W->C,                                                                \
       matmul_backward_input(W->x4a, W->x4b, W->weight, W->T, W->C, 4 * W->C, W->ops))                       \
    DO(matmul_weight_qkv, FLOPS, 6 * TC * W->C,                                                              \
       matmul_backward_weight(W->f_weight, W->f_bias, W->x4a, W->x4b, W->T, W->C, 3 * W->C, W->ops))         \
    DO(matmul_weight_fc, FLOPS, 8 * TC * W->C,                                                               \
       matmul_backward_weight(W->f_weight, W->f_bias, W->x4a, W->x4b, W->T, W->C, 4 * W->C, W->ops))         \
    DO(matmul_weight_fcproj, FLOPS, 8 * TC * W->C,                                                           \
       matmul_backward_weight(W->f_weight, W->f_bias, W->x4a, W->x4b, W->T, 4 * W->C, W->C, W->ops))         \
    DO(matmul_weight_head, FLOPS, 2 * (double)W->rows * W->Vp * W->C,                                        \
       matmul_backward_weight(W->f_weight, NULL, W->logits, W->x4b, W->rows, W->C, W->Vp, W->ops))           \
    DO(attention_forward, FLOPS, 4 * (double)W->C * (double)W->num_pairs,                                    \
       attention_forward(W->x4a, W->lse, &W->causal, W->ops))                                                \
    DO(attention_backward, FLOPS, 10 * (double)W->C * (double)W->num_pairs,                                  \
       attention_backward(W->x4d, W->x4d + W->C, W->x4d + 2 * W->C, NULL, W->attention_scratch, W->x4c,      \
                          W->x4a, W->lse, &W->causal, W->ops))

static void run_adamw(const Work* w) {
    const AdamwUpdate about = {.lr = 1e-4f,
                               .beta1 = 0.9f,
                               .beta2 = 0.95f,
                               .eps = 1e-8f,
                               .weight_decay = 0.1f,
                               .grad_scale = 1.0f,
                               .t = 10,
                               .seed = 1};
    adamw_update(w->params, w->master, w->m, w->v, w->grads, (size_t)w->num_params, 0, &about, w->ops);
}

#define W w
#define TC ((double)w->T * w->C)
#define X ((double)sizeof(floatX))
#define DO(name, unit, amount, call)             \
    static void run_##name(void* ctx) {          \
        const Work* w = ctx;                     \
        call;                                    \
    }                                            \
    static double amount_##name(const Work* w) { \
        return amount;                           \
    }
OPERATIONS(DO)
#undef DO
#undef W
#undef TC
#undef X

typedef struct {
    const char* name;
    Unit unit;
    double (*amount)(const Work* w);
    BenchRun* run;
} Operation;

#define DO(name, unit, amount, call) {#name, unit, amount_##name, run_##name},
static const Operation operations[] = {OPERATIONS(DO)};
#undef DO
enum { NUM_OPERATIONS = sizeof operations / sizeof operations[0] };

// --- one model's arrays ------------------------------------------------------------------------------------

// cu_seqlens of sequences of min_len ... max_len until there are T tokens; returns their number.
static int cut_sequences(int32_t* cu, int T, int min_len, int max_len, Rng* rng) {
    int num_seqs = 0;
    for (cu[0] = 0; cu[num_seqs] < T; num_seqs++) {
        int len = rng_between(rng, min_len, max_len), left = T - cu[num_seqs];
        cu[num_seqs + 1] = cu[num_seqs] + (len < left ? len : left);
    }
    return num_seqs;
}

static void set_sequences(Work* w, Bench* bench, const int32_t* cu, int num_seqs) {
    w->num_seqs = num_seqs;
    w->num_pairs = 0;
    w->max_len = 0;
    for (int i = 0; i < num_seqs; i++) {
        int64_t len = cu[i + 1] - cu[i];
        w->num_pairs += len * (len + 1) / 2;
        w->max_len = len > w->max_len ? (int)len : w->max_len;
    }
    w->cu = bench_ints(bench, cu, (size_t)num_seqs + 1);
    w->causal = (Attention){.q = w->x4b,
                            .k = w->x4b + w->C,
                            .v = w->x4b + 2 * w->C,
                            .q_stride = 3 * w->C,
                            .kv_stride = 3 * w->C,
                            .cu_q = w->cu,
                            .cu_k = w->cu,
                            .num_seqs = num_seqs,
                            .num_q_tokens = w->T,
                            .num_k_tokens = w->T,
                            .num_heads = w->NH,
                            .head_size = w->C / w->NH,
                            .causal = 1,
                            .scale = 1.0f / sqrtf((float)(w->C / w->NH))};
    w->attention_scratch = bench_memory(bench, attention_scratch_bytes(&w->causal, w->ops));
}

static int32_t* allocate_ints(size_t num_values) {
    int32_t* values = malloc(num_values * sizeof *values);
    if (values == NULL) { exit(EXIT_FAILURE); }
    return values;
}

// Each row has its target in one share: the others have an x_t of -inf.
static void make_shares(Work* w, Bench* bench, const int32_t* targets) {
    const size_t rows = (size_t)w->rows, num_hidden = rows * (size_t)w->C;
    float* stats = malloc(3 * rows * sizeof *stats);
    if (stats == NULL) { exit(EXIT_FAILURE); }
    w->Vs = w->Vp / NUM_SHARES / 16 * 16;
    for (int r = 0; r < NUM_SHARES; r++) {
        w->sums[r] = bench_random(bench, num_hidden, 1);
        w->target_rows[r] = bench_random(bench, num_hidden, 0.02);
        w->stats[r] = bench_random_floats(bench, 3 * rows, 1);
        w->factors[r] = bench_memory(bench, 2 * rows * sizeof(float));
        ops_download(w->ops, stats, w->stats[r], 3 * rows * sizeof *stats);
        for (size_t i = 0; i < rows; i++) {
            if (targets[i] / w->Vs != r) { stats[3 * i + 2] = -INFINITY; }
        }
        ops_upload(w->ops, w->stats[r], stats, 3 * rows * sizeof *stats);
    }
    free(stats);
}

// Tokens, positions within MAX_T, targets; every second row is supervised when rows = T / 2.
static void make_tokens(Work* w, Bench* bench, Rng* rng) {
    size_t T = (size_t)w->T;
    int32_t *tokens = allocate_ints(T), *other = allocate_ints(T);
    bool* seen = calloc((size_t)w->V, 1);
    w->num_distinct = 0;
    for (size_t t = 0; t < T; t++) {
        tokens[t] = (int32_t)rng_below(rng, (uint32_t)w->V);
        if (seen != NULL && !seen[tokens[t]]) { w->num_distinct++; }
        if (seen != NULL) { seen[tokens[t]] = true; }
    }
    w->tokens = bench_ints(bench, tokens, T);
    for (size_t t = 0; t < T; t++) { other[t] = (int32_t)(t % MAX_T); }
    w->positions = bench_ints(bench, other, T);
    for (int r = 0; r < w->rows; r++) { other[r] = r * (w->T / w->rows); }
    w->row_idx = bench_ints(bench, other, (size_t)w->rows);
    w->targets = bench_ints(bench, tokens, (size_t)w->rows);
    make_shares(w, bench, tokens);
    free(seen);
    free(tokens);
    free(other);
}

static void make_work(Work* w, Bench* bench) {
    Rng rng = rng_seed(1);
    size_t T = (size_t)w->T, C = (size_t)w->C, rows = (size_t)w->rows, Vp = (size_t)w->Vp;
    w->ops = bench_ops(bench);
    w->x4a = bench_random(bench, 4 * T * C, 1);
    w->x4b = bench_random(bench, 4 * T * C, 1);
    w->x4c = bench_random(bench, 4 * T * C, 1);
    w->x4d = bench_random(bench, 4 * T * C, 1);
    size_t largest_weight = Vp > 4 * C ? Vp * C : 4 * C * C;
    w->weight = bench_random(bench, largest_weight, 0.02);
    w->bias = bench_random(bench, 4 * C, 0.5);
    w->wpe = bench_random(bench, MAX_T * C, 0.02);
    w->logits = bench_random(bench, rows * Vp, 1);
    w->mean = bench_memory(bench, T * sizeof(float));
    w->rstd = bench_random_floats(bench, T, 1);
    w->losses = bench_memory(bench, rows * sizeof(float));
    w->lse = bench_memory(bench, (size_t)w->NH * T * sizeof(float));
    w->f_weight = bench_memory(bench, largest_weight * sizeof(float));
    w->f_bias = bench_memory(bench, 4 * C * sizeof(float));
    w->f_wpe = bench_memory(bench, MAX_T * C * sizeof(float));
    size_t n = (size_t)w->num_params;
    w->params = bench_random(bench, n, 0.02);
    w->master = bench_random_floats(bench, n, 0.02);
    w->m = bench_memory(bench, n * sizeof(float));
    w->v = bench_memory(bench, n * sizeof(float));
    w->grads = bench_random_floats(bench, n, 1e-3);
    w->embedding_scratch = bench_memory(bench, embedding_backward_scratch_bytes(w->T, w->C, w->ops));
    make_tokens(w, bench, &rng);
    int32_t* cu = allocate_ints(T + 1);
    int longest = w->T < MAX_T ? w->T : MAX_T;
    set_sequences(w, bench, cu, cut_sequences(cu, w->T, 1, longest, &rng));
    free(cu);
}

// --- tables ------------------------------------------------------------------------------------------------

typedef struct {
    double copy, matmul;  // bytes per ns, flops per ns
    bool judges;          // not on the emulator
    int num_met, num_missed;
} Verdict;

static const char* verdict(Verdict* all, double value, double target) {
    bool met = value >= target;
    if (!all->judges) { return ""; }
    if (met) {
        all->num_met++;
    } else {
        all->num_missed++;
    }
    return met ? "yes" : "**no**";
}

static void measure_model(Work* w, Bench* bench, Verdict* all) {
    make_work(w, bench);
    printf("\n### GPT-2 %s: T = %d tokens, C = %d, %d supervised rows, %.0f M parameters\n\n", w->name, w->T,
           w->C, w->rows, (double)w->num_params / 1e6);
    printf("| operation | time, us | rate | of the ceiling | of a copy of as many bytes | target | met |\n");
    printf("|---|---:|---:|---:|---:|---:|---|\n");
    for (int i = 0; i < NUM_OPERATIONS; i++) {
        const Operation* op = &operations[i];
        double amount = op->amount(w), ns = bench_ns(bench, op->run, w, true), rate = amount / ns;
        if (op->unit == FLOPS) {
            printf("| %s | %.1f | %.0f TFLOP/s | %.0f %% | | | |\n", op->name, ns / 1e3, rate / 1e3,
                   100 * rate / all->matmul);
        } else {
            double equal = bench_copy_bytes_per_ns(bench, (size_t)(amount / 2) + 1);
            double percent = 100 * rate / all->copy;
            printf("| %s | %.1f | %.0f GB/s | %.0f %% | %.0f %% |", op->name, ns / 1e3, rate, percent,
                   100 * rate / equal);
            if (op->unit == WIDE) {
                printf(" %d %% | %s |\n", TARGET_PERCENT, verdict(all, percent, TARGET_PERCENT));
            } else {
                printf(" | |\n");
            }
        }
        fflush(stdout);
    }
    bench_free_memory(bench);
}

// Causal attention of head size 64 on 64k tokens, several mixtures of lengths.
static void measure_attention(Bench* bench, const Sizes* sizes, Verdict* all) {
    // Targets: TFLOP/s that these kernels should reach on an H200, less for short sequences, whose diagonal
    // tiles are half empty. dev/gpu_check.sh replaces them by PyTorch's of the same run, if available.
    static const struct {
        const char* what;
        int min_len, max_len;
        double target[2];
    } kinds[] = {{"all 1024", 1024, 1024, {190, 135}},
                 {"1 ... 2048", 1, 2048, {180, 130}},
                 {"1 ... 8192", 1, 8192, {220, 155}},
                 {"all 8192", 8192, 8192, {250, 175}}};
    Work w = {.T = sizes->T, .C = 64 * sizes->NH, .NH = sizes->NH, .ops = bench_ops(bench)};
    size_t T = (size_t)w.T, C = (size_t)w.C;
    w.lse = bench_memory(bench, (size_t)w.NH * T * sizeof(float));
    w.x4a = bench_random(bench, T * C, 1);
    w.x4b = bench_random(bench, 3 * T * C, 1);
    w.x4c = bench_random(bench, T * C, 1);
    w.x4d = bench_random(bench, 3 * T * C, 1);
    printf("\n### Causal attention, head size %d, %d heads, %d tokens\n\n", w.C / w.NH, w.NH, w.T);
    printf("| lengths | sequences | pass | time, us | TFLOP/s | of the ceiling | target | met |\n");
    printf("|---|---:|---|---:|---:|---:|---:|---|\n");
    for (int k = 0; k < 4; k++) {
        Rng rng = rng_seed(7);
        int32_t* cu = allocate_ints(T + 1);
        int shrink = sizes->shrink;
        int min_len = kinds[k].min_len / shrink + 1, max_len = kinds[k].max_len / shrink + 1;
        if (shrink == 1) {
            min_len--;
            max_len--;
        }
        set_sequences(&w, bench, cu, cut_sequences(cu, w.T, min_len, max_len, &rng));
        free(cu);
        for (int pass = 0; pass < 2; pass++) {
            BenchRun* run = pass == 0 ? run_attention_forward : run_attention_backward;
            double amount = pass == 0 ? amount_attention_forward(&w) : amount_attention_backward(&w);
            double ns = bench_ns(bench, run, &w, true);
            printf("| %s | %d | %s | %.0f | %.0f | %.0f %% | %.0f | %s |\n", kinds[k].what, w.num_seqs,
                   pass == 0 ? "forward" : "backward", ns / 1e3, amount / ns / 1e3,
                   100 * amount / ns / all->matmul, kinds[k].target[pass],
                   verdict(all, amount / ns, 1e3 * kinds[k].target[pass]));
            fflush(stdout);
        }
    }
    bench_free_memory(bench);
}

// --- T5's attention: position bias, two sides, padding, dropout --------------------------------------------
typedef struct {
    Attention about;
    floatX *out, *dout, *dq, *dkv;
    float *lse, *dbias;
    void* scratch;
    OpsContext* ops;
} General;

static void run_general_forward(void* ctx) {
    const General* x = ctx;
    attention_forward(x->out, x->lse, &x->about, x->ops);
}

static void run_general_backward(void* ctx) {
    const General* x = ctx;
    attention_backward(x->dq, x->dkv, x->dkv + x->about.num_heads * x->about.head_size, x->dbias, x->scratch,
                       x->dout, x->out, x->lse, &x->about, x->ops);
}

// (num_seqs + 1) beginnings of equal sequences.
static int32_t* equal_sequences(Bench* bench, int num_seqs, int len) {
    int32_t* cu = allocate_ints((size_t)num_seqs + 1);
    for (int i = 0; i <= num_seqs; i++) { cu[i] = i * len; }
    int32_t* memory = bench_ints(bench, cu, (size_t)num_seqs + 1);
    free(cu);
    return memory;
}

typedef struct {
    const char* what;
    int num_q, num_k, causal, bias;  // tokens of each sequence
    bool padded;                     // a quarter of the keys
    float dropout;
} GeneralKind;

// Arrays of one kind; returns how many pairs (query, key) attend.
static double make_general(General* x, Bench* bench, const GeneralKind* kind, int num_seqs, int NH) {
    const int C = 64 * NH, num_keys = kind->padded ? kind->num_k * 3 / 4 : kind->num_k;
    const size_t Tq = (size_t)(num_seqs * kind->num_q), Tk = (size_t)(num_seqs * kind->num_k);
    int32_t* lens = allocate_ints(Tq > Tk ? Tq : Tk);
    for (size_t i = 0; i < Tq || i < Tk; i++) { lens[i] = num_keys; }
    floatX* kv = bench_random(bench, 2 * Tk * (size_t)C, 1);
    const uint32_t* keys = (const uint32_t*)bench_random_floats(bench, Tq > Tk ? Tq : Tk, 1);
    *x = (General){.about = {.q = bench_random(bench, Tq * (size_t)C, 0.125),
                             .k = kv,
                             .v = kv + C,
                             .q_stride = C,
                             .kv_stride = 2 * C,
                             .cu_q = equal_sequences(bench, num_seqs, kind->num_q),
                             .cu_k = equal_sequences(bench, num_seqs, kind->num_k),
                             .num_seqs = num_seqs,
                             .num_q_tokens = (int)Tq,
                             .num_k_tokens = (int)Tk,
                             .num_heads = NH,
                             .head_size = 64,
                             .q_starts = kind->num_q > 1 ? NULL : equal_sequences(bench, num_seqs, 0),
                             .k_lens = kind->padded ? bench_ints(bench, lens, (size_t)num_seqs) : NULL,
                             .causal = kind->causal,
                             .scale = 1.0f,
                             .bias = kind->bias ? bench_random_floats(bench, 32 * (size_t)NH, 1) : NULL,
                             .num_buckets = 32,
                             .max_distance = 128,
                             .bias_bidirectional = !kind->causal,
                             .dropout = kind->dropout,
                             .q_keys = keys,
                             .k_keys = keys},
                   .out = bench_random(bench, Tq * (size_t)C, 1),
                   .dout = bench_random(bench, Tq * (size_t)C, 1),
                   .dq = bench_random(bench, Tq * (size_t)C, 1),
                   .dkv = bench_random(bench, 2 * Tk * (size_t)C, 1),
                   .lse = bench_memory(bench, Tq * (size_t)NH * sizeof(float)),
                   .dbias = bench_memory(bench, 32 * (size_t)NH * sizeof(float)),
                   .ops = bench_ops(bench)};
    x->scratch = bench_memory(bench, attention_scratch_bytes(&x->about, x->ops));
    free(lens);
    const double len = kind->num_q;
    return num_seqs * (kind->causal ? len * (len + 1) / 2 : len * num_keys);
}

static void measure_t5_attention(Bench* bench, const Sizes* sizes, const Verdict* all) {
    const int num_seqs = sizes->num_seqs, NH = sizes->t5_NH, enc = sizes->enc, dec = sizes->dec;
    const GeneralKind kinds[] = {{"encoder, without bias", enc, enc, 0, 0, false, 0},
                                 {"encoder", enc, enc, 0, 1, false, 0},
                                 {"encoder, dropout", enc, enc, 0, 1, false, 0.1f},
                                 {"encoder, a quarter padding", enc, enc, 0, 1, true, 0},
                                 {"decoder", dec, dec, 1, 1, false, 0},
                                 {"decoder, dropout", dec, dec, 1, 1, false, 0.1f},
                                 {"cross", dec, enc, 0, 0, false, 0},
                                 {"cross, dropout", dec, enc, 0, 0, false, 0.1f},
                                 {"a decoder's step", 1, enc, 0, 0, false, 0}};
    printf("\n### T5's attention, head size 64, %d heads, %d sequences of %d and %d tokens\n\n", NH, num_seqs,
           enc, dec);
    printf("| kind | pass | time, us | TFLOP/s | of the ceiling |\n|---|---|---:|---:|---:|\n");
    for (size_t k = 0; k < sizeof kinds / sizeof *kinds; k++) {
        General x;
        const double num_pairs = make_general(&x, bench, &kinds[k], num_seqs, NH);
        for (int pass = 0; pass < (kinds[k].num_q > 1 ? 2 : 1); pass++) {  // no gradient of what a cache has
            const double amount = (pass == 0 ? 4 : 10) * 64.0 * NH * num_pairs;
            const double ns =
                bench_ns(bench, pass == 0 ? run_general_forward : run_general_backward, &x, true);
            printf("| %s | %s | %.0f | %.0f | %.0f %% |\n", kinds[k].what, pass == 0 ? "forward" : "backward",
                   ns / 1e3, amount / ns / 1e3, 100 * amount / ns / all->matmul);
            fflush(stdout);
        }
        bench_free_memory(bench);
    }
}

int main(int argc, char** argv) {
    Options options = {0};
    if (options_defaults(specs, NUM_SPECS, &options) != STATUS_OK ||
        options_take(specs, NUM_SPECS, &options, &argc, argv, NULL) != STATUS_OK || argc > 1) {
        fprintf(stderr, "cuda_bench_operations: %s\n",
                argc > 1 ? "no such option ---> see below" : status_message());
        options_print(specs, NUM_SPECS, stderr);
        return 1;
    }
    const Sizes* sizes = &all_sizes[options.sizes];
    bool tiny = sizes->shrink > 1;
    Bench* bench = bench_open(tiny, options.seconds);
    Verdict all = {.judges = !tiny,
                   .copy = bench_large_copy_bytes_per_ns(bench),
                   .matmul = bench_matmul_flops_per_ns(bench)};
    printf("## Operations on %s\n\nCeilings, measured: copy %.0f GB/s (read + written), %s product %.0f "
           "TFLOP/s.\n",
           ops_device_name(bench_ops(bench)), all.copy, sizeof(floatX) == 2 ? "bf16" : "float32",
           all.matmul / 1e3);
    Work models[] = {
        {.name = "124M", .T = 16384, .C = 768, .NH = 12, .num_params = 124475904},
        {.name = "350M", .T = 8192, .C = 1024, .NH = 16, .num_params = 354871296},
        {.name = "1.5B", .T = 8192, .C = 1600, .NH = 25, .num_params = 1557686400 / 4},  // a quarter: memory
        {.name = "tiny", .T = 48, .C = 64, .NH = 2, .num_params = 5000, .V = 200},
        {.name = "few tokens", .T = 128, .C = 768, .NH = 12, .num_params = 1 << 20},
    };
    measure_attention(bench, sizes, &all);
    measure_t5_attention(bench, sizes, &all);
    for (int i = sizes->first_model; i < sizes->end_model; i++) {
        if (models[i].V == 0) { models[i].V = V; }
        models[i].Vp = (models[i].V + 127) / 128 * 128;
        models[i].rows = models[i].T / 2;
        measure_model(&models[i], bench, &all);
    }
    if (all.judges) printf("\nTargets met: %d of %d.\n", all.num_met, all.num_met + all.num_missed);
    bench_close(bench);
    return 0;
}
