// Training steps of GPT-2 in one process on random tokens, timed: zero gradients, forward, backward of inputs
// and of weights, global norm, AdamW. One step for each line of standard input, so that several programs can
// take turns (dev/bench_single.sh); one JSON line each. Linked twice: with llmc/cpu, and with
// dev/naive_ops.c.
//
//     yes | head -5 | bench_single [-e d12] [-b 4] [-t 64]      threads: OMP_NUM_THREADS
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../llmc/gpt2.h"
#include "../llmc/llmc_error.h"
#include "../llmc/mt19937.h"
#include "../llmc/optimizer.h"

#define PHASES(X) X(zero) X(forward) X(backward_inputs) X(backward_weights) X(norm) X(adamw)
#define X(name) PHASE_##name,
enum { PHASES(X) NUM_PHASES };
#undef X
#define X(name) #name,
static const char* const phase_names[NUM_PHASES] = {PHASES(X)};
#undef X

typedef struct {
    int num_seqs, seq_tokens;
    const char* model;
} Options;

typedef struct {
    Model model;
    Optimizer optimizer;
    ModelBatch batch;
    int32_t *tokens, *positions, *targets, *rows, *cu_seqlens;
    float* losses;
    void *acts, *scratch;
    Mt19937 random;
} Trainer;

static double now_ms(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static Options parse(int argc, char** argv) {
    Options options = {.num_seqs = 4, .seq_tokens = 64, .model = "d12"};
    for (int i = 1; i < argc; i += 2) {
        const char* value = i + 1 < argc ? argv[i + 1] : "";
        int number = atoi(value);
        bool known = true;
        if (strcmp(argv[i], "-e") == 0) {
            options.model = value;
            number = 1;
        } else if (strcmp(argv[i], "-b") == 0) {
            options.num_seqs = number;
        } else if (strcmp(argv[i], "-t") == 0) {
            options.seq_tokens = number;
        } else {
            known = false;
        }
        if (!known || number < 1 || number > 65536) {
            fprintf(stderr, "bench_single: %s %s ---> [-e d12] [-b 4] [-t 64]\n", argv[i], value);
            exit(1);
        }
    }
    return options;
}

static void trainer_init(Trainer* trainer, const Options* options, OpsContext* ops) {
    char error[LLMC_ERROR_CHARS];
    ModelConfig config;
    if (!model_parse(&config, &gpt2_kind, options->model, 0, 0, error)) {
        fprintf(stderr, "%s\n", error);
        exit(1);
    }
    const int B = options->num_seqs, S = options->seq_tokens, T = B * S;
    Model* model = &trainer->model;
    model_init(model, &config, 0, config.num_layers, true, ops);
    gpt2_init_random(model, 42);
    model_alloc_grads(model);
    optimizer_init(&trainer->optimizer, OPTIMIZER_ADAMW, 0, model->num_params, 0.1f, 42, ops);
    mt19937_seed(&trainer->random, 1);
    size_t num_bytes = (size_t)T * sizeof(int32_t);
    trainer->tokens = llmc_alloc(num_bytes, "tokens");
    trainer->positions = llmc_alloc(num_bytes, "positions");
    trainer->targets = llmc_alloc(num_bytes, "targets");
    trainer->rows = llmc_alloc(num_bytes, "rows");
    trainer->losses = llmc_alloc(num_bytes, "losses");
    trainer->cu_seqlens = llmc_alloc((size_t)(B + 1) * sizeof(int32_t), "sequences");
    for (int t = 0; t < T; t++) {
        trainer->positions[t] = t % S;
        trainer->rows[t] = t;
    }
    for (int b = 0; b <= B; b++) { trainer->cu_seqlens[b] = b * S; }
    trainer->batch = (ModelBatch){
        .num_seqs = B,
        .num_tokens = T,
        .num_rows = T,
        .max_seq_tokens = S,
        .cu_seqlens = trainer->cu_seqlens,
        .tokens = trainer->tokens,
        .positions = trainer->positions,
        .rows = trainer->rows,
        .targets = trainer->targets,
        .loss_scale = 1.0f / (float)T,
    };
    trainer->acts = llmc_alloc((size_t)gpt2_acts_bytes(model, T, T, MODEL_KEEP | MODEL_HEAD), "activations");
    trainer->scratch = llmc_alloc((size_t)gpt2_scratch_bytes(model, T, T, S), "scratch");
}

static void trainer_free(Trainer* trainer) {
    free(trainer->tokens);
    free(trainer->positions);
    free(trainer->targets);
    free(trainer->rows);
    free(trainer->losses);
    free(trainer->cu_seqlens);
    free(trainer->acts);
    free(trainer->scratch);
    optimizer_free(&trainer->optimizer);
    model_free(&trainer->model);
}

static double step(Trainer* trainer, int t, double phase_ms[NUM_PHASES]) {
    Model* model = &trainer->model;
    const ModelBatch* batch = &trainer->batch;
    const int T = batch->num_tokens;
    const uint32_t V = (uint32_t)model->config.vocab;
    for (int i = 0; i < T; i++) {
        trainer->tokens[i] = (int32_t)(mt19937_u32(&trainer->random) % V);
        trainer->targets[i] = (int32_t)(mt19937_u32(&trainer->random) % V);
    }
    double at_ms[NUM_PHASES + 1];
    at_ms[PHASE_zero] = now_ms(CLOCK_MONOTONIC);
    model_zero_grads(model);
    at_ms[PHASE_forward] = now_ms(CLOCK_MONOTONIC);
    gpt2_forward(model, batch, NULL, NULL, trainer->acts, trainer->scratch, trainer->losses,
                 MODEL_KEEP | MODEL_HEAD);
    at_ms[PHASE_backward_inputs] = now_ms(CLOCK_MONOTONIC);
    gpt2_backward_inputs(model, batch, NULL, trainer->acts, NULL, NULL, trainer->scratch);
    at_ms[PHASE_backward_weights] = now_ms(CLOCK_MONOTONIC);
    gpt2_backward_weights(model, batch, trainer->acts, NULL, trainer->scratch);
    at_ms[PHASE_norm] = now_ms(CLOCK_MONOTONIC);
    double norm = sqrt(optimizer_sum_of_squares(&trainer->optimizer, model));
    at_ms[PHASE_adamw] = now_ms(CLOCK_MONOTONIC);
    optimizer_update(&trainer->optimizer, model, 3e-4f, t, optimizer_clip_scale(norm, 1.0f));
    at_ms[NUM_PHASES] = now_ms(CLOCK_MONOTONIC);
    for (int p = 0; p < NUM_PHASES; p++) { phase_ms[p] = at_ms[p + 1] - at_ms[p]; }
    double loss = 0.0;
    for (int i = 0; i < T; i++) { loss += (double)trainer->losses[i] / T; }
    return loss;
}

int main(int argc, char** argv) {
    Options options = parse(argc, argv);
    const char* slash = strrchr(argv[0], '/');
    OpsContext* ops = ops_create(0);
    Trainer trainer;
    trainer_init(&trainer, &options, ops);
    double phase_ms[NUM_PHASES];
    double loss = step(&trainer, 1, phase_ms);  // touches all memory
    printf("{\"program\": \"%s\", \"threads\": %d, \"tokens\": %d, \"loss\": %.6f}\n",
           slash ? slash + 1 : argv[0], ops_num_threads(ops), trainer.batch.num_tokens, loss);
    fflush(stdout);
    char line[80];
    for (int t = 2; fgets(line, sizeof line, stdin) != NULL; t++) {
        double cpu_ms = -now_ms(CLOCK_PROCESS_CPUTIME_ID), step_ms = 0.0;
        loss = step(&trainer, t, phase_ms);
        cpu_ms += now_ms(CLOCK_PROCESS_CPUTIME_ID);
        for (int p = 0; p < NUM_PHASES; p++) { step_ms += phase_ms[p]; }
        printf("{\"step_ms\": %.1f, \"cpu_ms\": %.1f, \"tokens_per_s\": %.1f, \"loss\": %.6f", step_ms,
               cpu_ms, 1e3 * trainer.batch.num_tokens / step_ms, loss);
        for (int p = 0; p < NUM_PHASES; p++) { printf(", \"%s_ms\": %.1f", phase_names[p], phase_ms[p]); }
        printf("}\n");
        fflush(stdout);
    }
    trainer_free(&trainer);
    ops_free(ops);
    return 0;
}
