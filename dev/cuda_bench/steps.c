/*
steps.c -- whole training steps of GPT-2 on one card, random tokens: tokens/s, share of the card's measured
product rate (MFU), and where the time goes.

    cuda_bench_steps [--models d12,d24,d48] [--tokens 1024] [--steps 8] [--sizes tiny]

A step: gradients to zero; micro-batches of as many sequences as memory takes (64 at most), each forward,
backward of inputs, of weights; global norm; AdamW. Flops of a token: 6 N + 6 L C T (Narayanan et al. 2021,
attention causal, as in llm.c). The best of the steps behind the first two counts, their spread is printed.
*/
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../dynapipe_plugin/base/clock.h"
#include "../../dynapipe_plugin/base/options.h"
#include "../../dynapipe_plugin/base/rng.h"
#include "../../llmc/cuda/context.h"
#include "../../llmc/gpt2.h"
#include "../../llmc/llmc_error.h"
#include "../../llmc/optimizer.h"
#include "bench.h"

typedef struct {
    const char *models, *sizes;
    int32_t seq_tokens, num_steps;
} Options;

// clang-format off
static const OptionSpec specs[] = {
    {"--models", OPTION_STRING, offsetof(Options, models),     "d12,d24,d48", 0, 0, NULL, "D,D,..", "as the trainer's -e"},
    {"--tokens", OPTION_INT,    offsetof(Options, seq_tokens), "1024", 1, 1e6, NULL, "T", "of a sequence"},
    {"--steps",  OPTION_INT,    offsetof(Options, num_steps),  "8",    3, 1e6, NULL, "N", "steps, the first two uncounted"},
    {"--sizes",  OPTION_STRING, offsetof(Options, sizes),      "gpt2", 0, 0,   NULL, "gpt2|tiny", "tiny: for the emulator"},
};
// clang-format on
enum { NUM_SPECS = sizeof specs / sizeof specs[0], SKIP_STEPS = 2, MAX_SEQS = 64, MAX_MICRO = 64 };

#define PHASES(X) X(forward) X(backward_inputs) X(backward_weights) X(zero_norm_update)
#define X(name) PHASE_##name,
enum { PHASES(X) NUM_PHASES };
#undef X

// Tokens/s that the card should reach (one H200; Llm.c's runs on H100 are the anchor).
static const struct {
    const char* model;
    double tokens_per_s;
} targets[] = {{"d12", 400e3}, {"d48", 45e3}};

typedef struct {
    Bench* bench;
    OpsContext* ops;
    Model model;
    Optimizer optimizer;
    ModelBatch batch;
    int32_t* tokens;  // tokens, targets, positions, rows, cu_seqlens: host memory
    float* losses;
    void *acts, *scratch;
    int num_micro;
    Rng rng;
    cudaEvent_t at[3 * MAX_MICRO + 3];
    int num_events;
} Trainer;

// The most sequences of a micro-batch that memory takes, with a tenth of what is free left alone.
static int fitting_seqs(const Model* model, int seq_tokens, int most) {
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    int n = most;
    while (n > 1 && (double)(gpt2_acts_bytes(model, n * seq_tokens, n * seq_tokens, MODEL_KEEP | MODEL_HEAD) +
                             gpt2_scratch_bytes(model, n * seq_tokens, n * seq_tokens, seq_tokens)) >
                        0.9 * (double)free_bytes) {
        n /= 2;
    }
    return n;
}

static void trainer_init(Trainer* t, Bench* bench, const char* descriptor, int seq_tokens) {
    char error[LLMC_ERROR_CHARS];
    ModelConfig config;
    bool tiny = bench_tiny(bench);
    if (!model_parse(&config, &gpt2_kind, descriptor, tiny ? 300 : 0, seq_tokens, error)) {
        fprintf(stderr, "cuda_bench_steps: --models: %s\n", error);
        exit(EXIT_FAILURE);
    }
    t->bench = bench;
    t->ops = bench_ops(bench);
    t->rng = rng_seed(1);
    model_init(&t->model, &config, 0, config.num_layers, true, t->ops);
    bench_fill(bench, t->model.params, (size_t)t->model.num_params, 0.02);
    model_alloc_grads(&t->model);
    optimizer_init(&t->optimizer, OPTIMIZER_ADAMW, 0, t->model.num_params, 0.1f, 42, t->ops);
    const int B = fitting_seqs(&t->model, seq_tokens, tiny ? 2 : MAX_SEQS), S = seq_tokens, T = B * S;
    t->tokens = llmc_alloc(((size_t)T * 4 + (size_t)B + 1) * sizeof(int32_t), "tokens");
    int32_t *targets_at = t->tokens + T, *positions = targets_at + T, *rows = positions + T, *cu = rows + T;
    for (int i = 0; i < T; i++) {
        positions[i] = i % S;
        rows[i] = i;
    }
    for (int b = 0; b <= B; b++) { cu[b] = b * S; }
    t->batch = (ModelBatch){.num_seqs = B,
                            .num_tokens = T,
                            .num_rows = T,
                            .max_seq_tokens = S,
                            .cu_seqlens = cu,
                            .tokens = t->tokens,
                            .positions = positions,
                            .rows = rows,
                            .targets = targets_at};
    t->losses = llmc_alloc((size_t)T * MAX_MICRO * sizeof(float), "losses");
    t->acts =
        ops_alloc(t->ops, (size_t)gpt2_acts_bytes(&t->model, T, T, MODEL_KEEP | MODEL_HEAD), "activations");
    t->scratch = ops_alloc(t->ops, (size_t)gpt2_scratch_bytes(&t->model, T, T, S), "scratch");
    for (int i = 0; i < 3 * MAX_MICRO + 3; i++) { CUDA_CHECK(cudaEventCreate(&t->at[i])); }
}

static void trainer_free(Trainer* t) {
    for (int i = 0; i < 3 * MAX_MICRO + 3; i++) { CUDA_CHECK(cudaEventDestroy(t->at[i])); }
    ops_release(t->ops, t->acts);
    ops_release(t->ops, t->scratch);
    free(t->tokens);
    free(t->losses);
    optimizer_free(&t->optimizer);
    model_free(&t->model);
}

static void mark(Trainer* t) {
    CUDA_CHECK(cudaEventRecord(t->at[t->num_events++], t->ops->stream));
}

static double between_ms(const Trainer* t, int from, int to) {
    float ms = 0;
    CUDA_CHECK(cudaEventElapsedTime(&ms, t->at[from], t->at[to]));
    return (double)ms;
}

// Wall time; phase_ms: of the device. Returns the mean loss.
static double step(Trainer* t, int number, double* wall_ms, double phase_ms[NUM_PHASES]) {
    Model* model = &t->model;
    const ModelBatch* batch = &t->batch;
    const int T = batch->num_tokens;
    t->batch.loss_scale = 1.0f / (float)(T * t->num_micro);
    int64_t begin_ns = clock_now_ns();
    t->num_events = 0;
    mark(t);
    model_zero_grads(model);
    mark(t);
    for (int micro = 0; micro < t->num_micro; micro++) {
        for (int i = 0; i < 2 * T; i++) {  // tokens and targets; a job's arrays may change once it is queued
            t->tokens[i] = (int32_t)rng_below(&t->rng, (uint32_t)model->config.vocab);
        }
        gpt2_forward(model, batch, NULL, NULL, t->acts, t->scratch, t->losses + (size_t)micro * (size_t)T,
                     MODEL_KEEP | MODEL_HEAD);
        mark(t);
        gpt2_backward_inputs(model, batch, NULL, t->acts, NULL, NULL, t->scratch);
        mark(t);
        gpt2_backward_weights(model, batch, t->acts, NULL, t->scratch);
        mark(t);
    }
    double norm = sqrt(optimizer_sum_of_squares(&t->optimizer, model));
    optimizer_update(&t->optimizer, model, 1e-4f, number, optimizer_clip_scale(norm, 1.0f));
    mark(t);
    ops_sync(t->ops);
    *wall_ms = (double)(clock_now_ns() - begin_ns) / 1e6;
    memset(phase_ms, 0, NUM_PHASES * sizeof *phase_ms);
    for (int micro = 0; micro < t->num_micro; micro++) {
        for (int phase = 0; phase < 3; phase++) {
            phase_ms[phase] += between_ms(t, 1 + 3 * micro + phase, 2 + 3 * micro + phase);
        }
    }
    int last = t->num_events - 1;
    phase_ms[PHASE_zero_norm_update] = between_ms(t, 0, 1) + between_ms(t, last - 1, last);
    double loss = 0;
    for (int i = 0; i < T * t->num_micro; i++) { loss += (double)t->losses[i] / (T * t->num_micro); }
    return loss;
}

static const char* target_text(const char* model, double tokens_per_s, bool counts) {
    static char text[64];
    snprintf(text, sizeof text, " | ");
    for (size_t i = 0; counts && i < sizeof targets / sizeof targets[0]; i++) {
        if (strcmp(targets[i].model, model) == 0) {
            snprintf(text, sizeof text, "%.0f | %s", targets[i].tokens_per_s,
                     tokens_per_s >= targets[i].tokens_per_s ? "yes" : "**no**");
        }
    }
    return text;
}

// num_micro micro-batches a step: one, and as many as make half a million tokens (llm.c's step).
static void measure(Trainer* t, const char* name, int num_steps, double ceiling) {
    const ModelConfig* c = &t->model.config;
    double flops = 6.0 * (double)t->model.num_params +
                   6.0 * c->num_layers * c->channels * (double)t->batch.max_seq_tokens;
    double best_ms = INFINITY, worst_ms = 0, wall_ms, phase_ms[NUM_PHASES], best_phase_ms[NUM_PHASES] = {0};
    double loss = 0;
    for (int n = 1; n <= num_steps; n++) {
        loss = step(t, n, &wall_ms, phase_ms);
        if (n <= SKIP_STEPS) { continue; }
        if (wall_ms < best_ms) { memcpy(best_phase_ms, phase_ms, sizeof phase_ms); }
        best_ms = fmin(best_ms, wall_ms);
        worst_ms = fmax(worst_ms, wall_ms);
    }
    double tokens = (double)t->batch.num_tokens * t->num_micro, per_s = 1e3 * tokens / best_ms;
    printf("| %s | %d x %d x %d | %.1f | %.1f | %.0f | %.0f | %.0f %% |", name, t->num_micro,
           t->batch.num_seqs, t->batch.max_seq_tokens, best_ms, worst_ms, per_s, per_s * flops / 1e12,
           100 * per_s * flops / 1e9 / ceiling);
    for (int p = 0; p < NUM_PHASES; p++) { printf(" %.1f |", best_phase_ms[p]); }
    printf(" %.3f | %s |\n", loss, target_text(name, per_s, t->num_micro > 1 && !bench_tiny(t->bench)));
    fflush(stdout);
}

static Status parse(Options* options, int argc, char** argv) {
    TRY(options_defaults(specs, NUM_SPECS, options));
    TRY(options_take(specs, NUM_SPECS, options, &argc, argv, NULL));
    if (argc > 1) { return FAIL(STATUS_BAD_OPTION, "%s: no such option ---> one of these", argv[1]); }
    return STATUS_OK;
}

int main(int argc, char** argv) {
    Options options;
    if (parse(&options, argc, argv) != STATUS_OK) {
        fprintf(stderr, "cuda_bench_steps: %s\n", status_message());
        options_print(specs, NUM_SPECS, stderr);
        return 1;
    }
    bool tiny = strcmp(options.sizes, "tiny") == 0;
    Bench* bench = bench_open(tiny, 0.1);
    double ceiling = bench_matmul_flops_per_ns(bench);
    printf("## Training steps on %s\n\nMFU is of the measured %.0f TFLOP/s (large product, %s).\n\n",
           ops_device_name(bench_ops(bench)), ceiling / 1e3, sizeof(floatX) == 2 ? "bf16" : "float32");
    printf(
        "| model | micro-batches x sequences x tokens | best step, ms | worst | tokens/s | TFLOP/s | MFU |");
#define X(name) printf(" " #name " |");
    PHASES(X)
#undef X
    printf(" loss | target | met |\n|---|---|");
    for (int i = 0; i < 6 + NUM_PHASES + 1; i++) { printf("---:|"); }
    printf("---|\n");
    char models[256];
    snprintf(models, sizeof models, "%s", tiny ? "l2c64h2" : options.models);
    char* rest = models;
    for (char* name; (name = strsep(&rest, ",")) != NULL;) {
        Trainer* t = calloc(1, sizeof *t);
        if (t == NULL) { exit(EXIT_FAILURE); }
        trainer_init(t, bench, name, tiny ? 16 : options.seq_tokens);
        const int half_million = (1 << 19) / t->batch.num_tokens;
        t->num_micro = 1;
        measure(t, name, options.num_steps, ceiling);
        t->num_micro = tiny ? 2 : half_million < 1 ? 1 : half_million > MAX_MICRO ? MAX_MICRO : half_million;
        measure(t, name, SKIP_STEPS + 2, ceiling);
        trainer_free(t);
        free(t);
    }
    bench_close(bench);
    return 0;
}
