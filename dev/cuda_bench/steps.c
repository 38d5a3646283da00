/*
steps.c -- whole training steps of GPT-2, T5 and Llama on one card, random tokens: tokens/s, share of the
card's measured product rate (MFU), and where the time goes.

    cuda_bench_steps [--models d12,d24,d48,t5:base,tinyllama:1.1b] [--tokens 1024] [--target-tokens 256]
                     [--steps 8] [--sizes tiny]

A step: gradients to zero; microbatches of as many sequences as fit in memory (64 at most), each forward,
backward of inputs, of weights; global norm; AdamW. Flops of a token: 6 N + 6 L C T (Narayanan et al. 2021,
attention causal, as in llm.c; N has Llama's embedding, too, 6 % of tinyllama:1.1b); of a T5, where not every
token uses every parameter: 6 for each used pair, and 12 I for each query and key. Prints the best step after
the first two, and the spread.
*/
#include <cuda_runtime.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../../util/program.h"
#include "../../util/options.h"
#include "../../util/numbers.h"
#include "../../llmc/cuda/context.h"
#include "../../llmc/kinds.h"
#include "../../llmc/llmc_error.h"
#include "../../llmc/optimizer.h"
#include "bench.h"

typedef struct {
    const char *models, *sizes;
    int32_t seq_tokens, target_tokens, num_steps;
} Options;

// clang-format off
static const OptionSpec specs[] = {
    {"--models", OPTION_STRING, offsetof(Options, models),     "d12,d24,d48,t5:base,tinyllama:1.1b", 0, 0, NULL, "D,D,..", "as the trainer's -e"},
    {"--tokens", OPTION_INT,    offsetof(Options, seq_tokens), "1024", 1, 1e6, NULL, "T", "of a sequence"},
    {"--target-tokens", OPTION_INT, offsetof(Options, target_tokens), "256", 1, 1e6, NULL, "T", "of a T5's target"},
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
    int32_t *tokens, *dec_tokens, *targets;  // one array, host memory, with all else that the batch points to
    float* losses;
    void *acts, *scratch;
    int num_micro;
    Rng rng;
    cudaEvent_t at[3 * MAX_MICRO + 3];
    int num_events;
} Trainer;

// The counts of n sequences; target_tokens: of a model with a decoder.
static ModelBatch batch_of(const Model* model, int n, int seq_tokens, int target_tokens) {
    ModelBatch batch = {.num_seqs = n,
                        .num_tokens = n * seq_tokens,
                        .num_rows = n * seq_tokens,
                        .max_seq_tokens = seq_tokens};
    if (model->config.kind->has_decoder) {
        batch.num_rows = batch.num_dec_tokens = n * target_tokens;
        batch.max_dec_seq_tokens = target_tokens;
    }
    return batch;
}

static int64_t acts_bytes(const Model* model, const ModelBatch* batch) {
    return model_acts_bytes(model, batch, MODEL_KEEP | MODEL_HEAD);
}

// The most sequences of a microbatch that fit in memory, leaving a tenth of the free memory.
static ModelBatch fitting_batch(const Model* model, int seq_tokens, int target_tokens, int most) {
    size_t free_bytes = 0, total_bytes = 0;
    CUDA_CHECK(cudaMemGetInfo(&free_bytes, &total_bytes));
    ModelBatch batch = batch_of(model, most, seq_tokens, target_tokens);
    while (batch.num_seqs > 1 && (double)(acts_bytes(model, &batch) + model_scratch_bytes(model, &batch)) >
                                     0.9 * (double)free_bytes) {
        batch = batch_of(model, batch.num_seqs / 2, seq_tokens, target_tokens);
    }
    return batch;
}

// The batch's arrays but for the tokens, which step() draws: tokens, decoder tokens, targets lie side by
// side.
static void batch_alloc(Trainer* t) {
    ModelBatch* batch = &t->batch;
    const int T = batch->num_tokens, Td = batch->num_dec_tokens, R = batch->num_rows, B = batch->num_seqs;
    t->tokens = llmc_alloc(((size_t)(2 * T + Td + 2 * R) + 2 * (size_t)(B + 1)) * sizeof(int32_t), "tokens");
    t->dec_tokens = t->tokens + T;
    t->targets = t->dec_tokens + Td;
    int32_t *positions = t->targets + R, *rows = positions + T, *cu = rows + R, *dec_cu = cu + B + 1;
    for (int i = 0; i < T; i++) { positions[i] = i % batch->max_seq_tokens; }
    for (int i = 0; i < R; i++) { rows[i] = i; }
    for (int b = 0; b <= B; b++) {
        cu[b] = b * batch->max_seq_tokens;
        dec_cu[b] = b * batch->max_dec_seq_tokens;
    }
    batch->tokens = t->tokens;
    batch->targets = t->targets;
    batch->positions = positions;
    batch->rows = rows;
    batch->cu_seqlens = cu;
    batch->dec_tokens = t->dec_tokens;
    batch->dec_cu_seqlens = dec_cu;
}

static void trainer_init(Trainer* t, Bench* bench, const char* descriptor, int seq_tokens,
                         int target_tokens) {
    ModelConfig config;
    bool tiny = bench_tiny(bench);
    const ModelKind* kind = models_kind_of(descriptor);
    if (!model_parse(&config, kind, descriptor, tiny ? 300 : 0, seq_tokens)) {
        fprintf(stderr, "cuda_bench_steps: --models: %s\n", status_message());
        exit(EXIT_FAILURE);
    }
    t->bench = bench;
    t->ops = bench_ops(bench);
    t->rng = rng_seed(1);
    model_init(&t->model, &config, 0, model_num_blocks(&config), true, t->ops);
    bench_fill(bench, t->model.params, (size_t)t->model.num_params, 0.02);
    model_alloc_grads(&t->model);
    optimizer_init(&t->optimizer, OPTIMIZER_ADAMW, 0, t->model.num_params, 0.1f, 42, t->ops);
    t->batch = fitting_batch(&t->model, seq_tokens, target_tokens, tiny ? 2 : MAX_SEQS);
    batch_alloc(t);
    t->losses = llmc_alloc((size_t)t->batch.num_rows * MAX_MICRO * sizeof(float), "losses");
    t->acts = ops_alloc(t->ops, (size_t)acts_bytes(&t->model, &t->batch), "activations");
    t->scratch = ops_alloc(t->ops, (size_t)model_scratch_bytes(&t->model, &t->batch), "scratch");
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
    const int R = batch->num_rows, num_drawn = batch->num_tokens + batch->num_dec_tokens + R;
    t->batch.loss_scale = 1.0f / (float)(R * t->num_micro);
    int64_t begin_ns = clock_now_ns();
    t->num_events = 0;
    mark(t);
    model_zero_grads(model);
    mark(t);
    for (int micro = 0; micro < t->num_micro; micro++) {
        for (int i = 0; i < num_drawn; i++) {  // a job's arrays may change once it is queued
            t->tokens[i] = (int32_t)rng_below(&t->rng, (uint32_t)model->config.vocab);
        }
        model_forward(model, batch, NULL, NULL, t->acts, t->scratch, t->losses + (size_t)micro * (size_t)R,
                      MODEL_KEEP | MODEL_HEAD);
        mark(t);
        model_backward_inputs(model, batch, NULL, t->acts, NULL, NULL, t->scratch);
        mark(t);
        model_backward_weights(model, batch, t->acts, NULL, t->scratch);
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
    for (int i = 0; i < R * t->num_micro; i++) { loss += (double)t->losses[i] / (R * t->num_micro); }
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

// Of forward and backward of one microbatch.
static double batch_flops(const Model* model, const ModelBatch* batch) {
    const ModelConfig* c = &model->config;
    const double B = batch->num_seqs, Te = batch->num_tokens, Td = batch->num_dec_tokens;
    const double S = batch->max_seq_tokens, Sd = batch->max_dec_seq_tokens, C = c->channels;
    if (!c->kind->has_decoder) {
        return Te * (6.0 * (double)model->num_params + 6.0 * c->num_layers * C * S);
    }
    const double I = (double)c->num_heads * c->head_size, Le = c->num_layers, Ld = c->num_dec_layers;
    const double ffn = (c->gated ? 3.0 : 2.0) * c->ffn_channels * C;
    const double enc_values =
        Le * (4.0 * I * C + ffn) + Ld * 2.0 * I * C;  // keys and values of cross-attention
    const double dec_values = Ld * (6.0 * I * C + ffn) + c->padded_vocab * C;
    const double pairs = B * (Le * S * S + Ld * (Sd * Sd / 2 + S * Sd));
    return 6.0 * (enc_values * Te + dec_values * Td) + 12.0 * I * pairs;
}

// "8 x 64 x 1024 + 256"
static const char* batch_text(const Trainer* t) {
    static char text[64];
    int used =
        snprintf(text, sizeof text, "%d x %d x %d", t->num_micro, t->batch.num_seqs, t->batch.max_seq_tokens);
    if (t->batch.num_dec_tokens > 0) {
        snprintf(text + used, sizeof text - (size_t)used, " + %d", t->batch.max_dec_seq_tokens);
    }
    return text;
}

// num_micro microbatches a step: one, and as many as make half a million tokens (llm.c's step).
static void measure(Trainer* t, const char* name, int num_steps, double ceiling) {
    double best_ms = INFINITY, worst_ms = 0, wall_ms, phase_ms[NUM_PHASES], best_phase_ms[NUM_PHASES] = {0};
    double loss = 0;
    for (int n = 1; n <= num_steps; n++) {
        loss = step(t, n, &wall_ms, phase_ms);
        if (n <= SKIP_STEPS) { continue; }
        if (wall_ms < best_ms) { memcpy(best_phase_ms, phase_ms, sizeof phase_ms); }
        best_ms = fmin(best_ms, wall_ms);
        worst_ms = fmax(worst_ms, wall_ms);
    }
    const double tokens = (double)(t->batch.num_tokens + t->batch.num_dec_tokens) * t->num_micro;
    const double per_s = 1e3 * tokens / best_ms;
    const double flops_per_ns = 1e-6 * batch_flops(&t->model, &t->batch) * t->num_micro / best_ms;
    printf("| %s | %s | %.1f | %.1f | %.0f | %.0f | %.0f %% |", name, batch_text(t), best_ms, worst_ms, per_s,
           flops_per_ns / 1e3, 100 * flops_per_ns / ceiling);
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
    Options options = {0};
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
        "| model | microbatches x sequences x tokens | best step, ms | worst | tokens/s | TFLOP/s | MFU |");
#define X(name) printf(" " #name " |");
    PHASES(X)
#undef X
    printf(" loss | target | met |\n|---|---|");
    for (int i = 0; i < 6 + NUM_PHASES + 1; i++) { printf("---:|"); }
    printf("---|\n");
    char models[256];
    snprintf(models, sizeof models, "%s", tiny ? "l2c64h2,t5:l2c64h2,llama:l2c64h2g1" : options.models);
    char* rest = models;
    for (char* name; (name = strsep(&rest, ",")) != NULL;) {
        Trainer* t = calloc(1, sizeof *t);
        if (t == NULL) { exit(EXIT_FAILURE); }
        trainer_init(t, bench, name, tiny ? 16 : options.seq_tokens, tiny ? 5 : options.target_tokens);
        const int half_million = (1 << 19) / (t->batch.num_tokens + t->batch.num_dec_tokens);
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
