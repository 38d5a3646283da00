/*
shares.c -- the operations of a head shared by vocabulary among 8 ranks, at GPT-2's shapes: time, and share of
the card's copy rate. A share's rows are an eighth as long as those in operations.c.

    cuda_bench_shares [--sizes tiny] [--seconds 0.02]

Bytes are those that must move at least once, as in operations.c. Prints Markdown.
*/
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "../../util/options.h"
#include "../../util/numbers.h"
#include "bench.h"

enum { NUM_SHARES = 8, MAX_ROWS = 8192, TARGET_PERCENT = 80 };

typedef struct {
    const char* sizes;
    double seconds;
} Options;

static const OptionSpec specs[] = {
    {"--sizes", OPTION_STRING, offsetof(Options, sizes), "gpt2", 0, 0, NULL, "gpt2|tiny",
     "tiny: for the emulator"},
    {"--seconds", OPTION_DOUBLE, offsetof(Options, seconds), "0.02", 0, 100, NULL, "S", "for one point"},
};
enum { NUM_SPECS = sizeof specs / sizeof specs[0] };

// One rank's arrays: its share, and as the rank that combines the others'.
typedef struct {
    const char* name;
    int rows, C, Vs;                                          // ids of the share: all but the last 6 rows
    floatX *logits, *weight, *dinp;                           // (rows, Vs), (Vs, C), (rows, C)
    floatX *sums[NUM_SHARES], *target_rows[NUM_SHARES];       // (rows, C)
    float *stats[NUM_SHARES], *factors[NUM_SHARES], *losses;  // (rows, 3), (rows, 2), (rows)
    int32_t* targets;                                         // of the whole vocabulary: an eighth are mine
    OpsContext* ops;
} Work;

// name, bytes, the call. W: the arrays, X: bytes of a floatX, RC: rows x C, RV: rows x Vs.
#define OPERATIONS(DO)                                                                                       \
    DO(classifier_share, 2 * X * RV,                                                                         \
       classifier_share(W->stats[0], W->logits, W->targets, true, W->rows, 0, W->Vs - 6, W->Vs, W->ops))     \
    DO(classifier_share_losses, X* RV,                                                                       \
       classifier_share(W->stats[0], W->logits, W->targets, false, W->rows, 0, W->Vs - 6, W->Vs, W->ops))    \
    DO(target_rows, X* RC*(1 + 1.0 / NUM_SHARES),                                                            \
       target_rows(W->target_rows[0], W->weight, W->targets, W->rows, 0, W->Vs - 6, W->C, W->ops))           \
    DO(classifier_combine, 20.0 * NUM_SHARES * W->rows,                                                      \
       classifier_combine(W->losses, W->factors, (const float* const*)W->stats, 1e-3f, W->rows, NUM_SHARES,  \
                          W->ops))                                                                           \
    DO(combine_parts, X* RC*(NUM_SHARES + 2),                                                                \
       combine_parts(W->dinp, (const floatX* const*)W->sums, (const floatX* const*)W->target_rows,           \
                     (const float* const*)W->factors, W->rows, W->C, NUM_SHARES, W->ops))                    \
    DO(classifier_factors, 2 * X * RC,                                                                       \
       classifier_factors(W->logits, W->dinp, W->factors[0], W->targets, W->rows, W->C, 0, W->Vs - 6, W->Vs, \
                          W->ops))

#define W w
#define X ((double)sizeof(floatX))
#define RC ((double)w->rows * w->C)
#define RV ((double)w->rows * w->Vs)
#define DO(name, bytes, call)                   \
    static void run_##name(void* ctx) {         \
        const Work* w = ctx;                    \
        call;                                   \
    }                                           \
    static double bytes_##name(const Work* w) { \
        return bytes;                           \
    }
OPERATIONS(DO)
#undef DO
#undef W
#undef X
#undef RC
#undef RV

static const struct {
    const char* name;
    double (*bytes)(const Work* w);
    BenchRun* run;
} operations[] = {
#define DO(name, bytes, call) {#name, bytes_##name, run_##name},
    OPERATIONS(DO)
#undef DO
};
enum { NUM_OPERATIONS = sizeof operations / sizeof operations[0] };

static void make_work(Work* w, Bench* bench) {
    static int32_t targets[MAX_ROWS];
    Rng rng = rng_seed(1);
    const size_t rows = (size_t)w->rows, C = (size_t)w->C, Vs = (size_t)w->Vs;
    for (size_t i = 0; i < rows; i++) { targets[i] = (int32_t)rng_below(&rng, NUM_SHARES * (uint32_t)Vs); }
    w->ops = bench_ops(bench);
    w->targets = bench_ints(bench, targets, rows);
    w->logits = bench_random(bench, rows * Vs, 1);
    w->weight = bench_random(bench, Vs * C, 0.02);
    w->dinp = bench_random(bench, rows * C, 1);
    w->losses = bench_memory(bench, rows * sizeof(float));
    for (int r = 0; r < NUM_SHARES; r++) {
        w->sums[r] = bench_random(bench, rows * C, 1);
        w->target_rows[r] = bench_random(bench, rows * C, 0.02);
        w->stats[r] = bench_random_floats(bench, 3 * rows, 1);
        w->factors[r] = bench_memory(bench, 2 * rows * sizeof(float));
    }
    // Each row has its target in one share: the others have an x_t of -inf.
    static float stats[3 * MAX_ROWS];
    for (int r = 0; r < NUM_SHARES; r++) {
        ops_download(w->ops, stats, w->stats[r], 3 * rows * sizeof(float));
        for (size_t i = 0; i < rows; i++) {
            if (targets[i] / w->Vs != r) { stats[3 * i + 2] = -INFINITY; }
        }
        ops_upload(w->ops, w->stats[r], stats, 3 * rows * sizeof(float));
    }
}

static void measure(Work* w, Bench* bench, double ceiling) {
    make_work(w, bench);
    printf("\n### A head shared by %d, %s: %d supervised rows, C = %d, %d ids a share\n\n", NUM_SHARES,
           w->name, w->rows, w->C, w->Vs - 6);
    printf(
        "| operation | time, us | rate | of the ceiling | target | met |\n|---|---:|---:|---:|---:|---|\n");
    for (int i = 0; i < NUM_OPERATIONS; i++) {
        const double bytes = operations[i].bytes(w), ns = bench_ns(bench, operations[i].run, w, true);
        const double percent = 100 * bytes / ns / ceiling;
        const bool is_wide = bytes > 1e7, is_met = percent >= TARGET_PERCENT;
        printf("| %s | %.1f | %.0f GB/s | %.0f %% | %s | %s |\n", operations[i].name, ns / 1e3, bytes / ns,
               percent, is_wide ? "80 %" : "",
               !is_wide ? ""
               : is_met ? "yes"
                        : "**no**");
        fflush(stdout);
    }
    bench_free_memory(bench);
}

int main(int argc, char** argv) {
    Options options;
    if (options_defaults(specs, NUM_SPECS, &options) != STATUS_OK ||
        options_take(specs, NUM_SPECS, &options, &argc, argv, NULL) != STATUS_OK || argc > 1) {
        fprintf(stderr, "cuda_bench_shares: %s\n",
                argc > 1 ? "no such option ---> see below" : status_message());
        options_print(specs, NUM_SPECS, stderr);
        return 1;
    }
    const bool tiny = strcmp(options.sizes, "tiny") == 0;
    Bench* bench = bench_open(tiny, options.seconds);
    const double ceiling = bench_large_copy_bytes_per_ns(bench);
    Work models[] = {{.name = "124M", .rows = 8192, .C = 768, .Vs = 6288},
                     {.name = "1.5B", .rows = 4096, .C = 1600, .Vs = 6288},
                     {.name = "tiny", .rows = 24, .C = 64, .Vs = 48}};
    for (int i = tiny ? 2 : 0; i < (tiny ? 3 : 2); i++) { measure(&models[i], bench, ceiling); }
    bench_close(bench);
    return 0;
}
