// Training steps of one process on random tokens, timed: zero gradients, forward, backward of inputs and of
// weights, global norm, AdamW. One step for each line of standard input, so that several programs can take
// turns (dev/bench_single.sh); one JSON line each.
//
//     yes | head -5 | bench_single [-e d12] [-b 4] [-t 64]      threads: OMP_NUM_THREADS
//     yes | head -5 | bench_single -e t5:small [-b 4] [-t 128] [--target 32] [--lengths 512+96,16+4]
//
// -t and --target: tokens of each of the -b inputs and targets; --lengths: of every sequence instead.
// --export DIR: the model as it begins, for transformers.
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../llmc/kinds.h"
#include "../llmc/hf.h"
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

enum { MAX_SEQS = 1024, MAX_SEQ_TOKENS = 65536 };

typedef struct {
    const ModelKind* kind;
    const char *model, *export_dir;  // export_dir NULL: no
    int num_seqs;
    int tokens[MAX_SEQS], targets[MAX_SEQS];  // of each sequence; targets: T5's
} Options;

typedef struct {
    Model model;
    Optimizer optimizer;
    ModelBatch batch;
    int32_t *tokens, *positions, *cu_seqlens, *dec_tokens, *dec_positions, *dec_cu_seqlens, *targets, *rows;
    float* losses;
    void *acts, *scratch;
    Mt19937 random;
} Trainer;

static double now_ms(clockid_t clock) {
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec * 1e3 + (double)now.tv_nsec * 1e-6;
}

static void usage(const char* option, const char* value) {
    fprintf(stderr,
            "bench_single: %s %s ---> [-e d12] [-b 4] [-t 64], or -e t5:small [-b 4] [-t 128] [--target 32] "
            "[--lengths 512+96,16+4] [--export DIR]\n",
            option, value);
    exit(1);
}

static int count(const char* option, const char* value, int most) {
    char* end;
    long number = strtol(value, &end, 10);
    if (*end != '\0' || number < 1 || number > most) { usage(option, value); }
    return (int)number;
}

// "512+96,16+4"
static void parse_lengths(Options* options, const char* value) {
    options->num_seqs = 0;
    for (const char* at = value; *at != '\0' && options->num_seqs < MAX_SEQS; options->num_seqs++) {
        int tokens, targets, num_chars = 0;
        if (sscanf(at, "%d+%d%n", &tokens, &targets, &num_chars) != 2 || tokens < 1 || targets < 1 ||
            tokens > MAX_SEQ_TOKENS || targets > MAX_SEQ_TOKENS ||
            (at[num_chars] != ',' && at[num_chars] != '\0')) {
            usage("--lengths", value);
        }
        options->tokens[options->num_seqs] = tokens;
        options->targets[options->num_seqs] = targets;
        at += num_chars + (at[num_chars] == ',');
    }
}

static Options parse(int argc, char** argv) {
    Options options = {.model = "d12", .num_seqs = 4};
    const char* lengths = NULL;
    int tokens = 0, targets = 32;
    for (int i = 1; i < argc; i += 2) {
        const char *option = argv[i], *value = i + 1 < argc ? argv[i + 1] : "";
        if (strcmp(option, "-e") == 0) {
            options.model = value;
        } else if (strcmp(option, "-b") == 0) {
            options.num_seqs = count(option, value, MAX_SEQS);
        } else if (strcmp(option, "-t") == 0) {
            tokens = count(option, value, MAX_SEQ_TOKENS);
        } else if (strcmp(option, "--target") == 0) {
            targets = count(option, value, MAX_SEQ_TOKENS);
        } else if (strcmp(option, "--lengths") == 0) {
            lengths = value;
        } else if (strcmp(option, "--export") == 0) {
            options.export_dir = value;
        } else {
            usage(option, value);
        }
    }
    options.kind = models_kind_of(options.model);
    for (int b = 0; b < options.num_seqs; b++) {
        options.tokens[b] = tokens > 0 ? tokens : options.kind == &t5_kind ? 128 : 64;
        options.targets[b] = targets;
    }
    if (lengths != NULL) { parse_lengths(&options, lengths); }
    return options;
}

static void fail(const char* why) {
    fprintf(stderr, "bench_single: %s\n", why);
    exit(1);
}

static void export_model(const Model* model, const char* directory) {
    const HfTokens tokens = {0};
    if (!hf_checkpoint_create(directory, &model->config, NULL, &tokens) ||
        !hf_checkpoint_write(directory, model) || !hf_checkpoint_commit(directory)) {
        fail(status_message());
    }
}

static int32_t* ints(int num_values) {
    return llmc_alloc((size_t)num_values * sizeof(int32_t), "the batch");
}

// One side of the batch: where sequences begin, and the positions in them. Returns all tokens.
static int lay_out(const int* lengths, int num_seqs, int32_t** cu_seqlens, int32_t** positions,
                   int* longest) {
    int32_t* cu = *cu_seqlens = ints(num_seqs + 1);
    *longest = 0;
    for (int b = 0; b < num_seqs; b++) {
        cu[b + 1] = cu[b] + lengths[b];
        if (lengths[b] > *longest) { *longest = lengths[b]; }
    }
    *positions = ints(cu[num_seqs]);
    for (int b = 0; b < num_seqs; b++) {
        for (int t = cu[b]; t < cu[b + 1]; t++) { (*positions)[t] = t - cu[b]; }
    }
    return cu[num_seqs];
}

static void batch_init(Trainer* trainer, const Options* options) {
    const int B = options->num_seqs;
    ModelBatch* batch = &trainer->batch;
    *batch = (ModelBatch){.num_seqs = B};
    batch->num_tokens =
        lay_out(options->tokens, B, &trainer->cu_seqlens, &trainer->positions, &batch->max_seq_tokens);
    batch->cu_seqlens = trainer->cu_seqlens;
    batch->positions = trainer->positions;
    batch->tokens = trainer->tokens = ints(batch->num_tokens);
    batch->num_rows = batch->num_tokens;
    if (options->kind->has_decoder) {
        batch->num_dec_tokens = lay_out(options->targets, B, &trainer->dec_cu_seqlens,
                                        &trainer->dec_positions, &batch->max_dec_seq_tokens);
        batch->dec_cu_seqlens = trainer->dec_cu_seqlens;
        batch->dec_positions = trainer->dec_positions;
        batch->dec_tokens = trainer->dec_tokens = ints(batch->num_dec_tokens);
        batch->num_rows = batch->num_dec_tokens;
    }
    batch->targets = trainer->targets = ints(batch->num_rows);
    batch->rows = trainer->rows = ints(batch->num_rows);
    for (int i = 0; i < batch->num_rows; i++) { trainer->rows[i] = i; }
    batch->loss_scale = 1.0f / (float)batch->num_rows;
    trainer->losses = llmc_alloc((size_t)batch->num_rows * sizeof(float), "losses");
}

static void trainer_init(Trainer* trainer, const Options* options, OpsContext* ops) {
    ModelConfig config;
    if (!model_parse(&config, options->kind, options->model, 0, 0)) { fail(status_message()); }
    Model* model = &trainer->model;
    model_init(model, &config, 0, model_num_blocks(&config), true, ops);
    model_init_random(model, 42);
    if (options->export_dir != NULL) { export_model(model, options->export_dir); }
    model_alloc_grads(model);
    optimizer_init(&trainer->optimizer, OPTIMIZER_ADAMW, 0, model->num_params, 0.1f, 42, ops);
    mt19937_seed(&trainer->random, 1);
    batch_init(trainer, options);
    const int64_t acts_bytes = model_acts_bytes(model, &trainer->batch, MODEL_KEEP | MODEL_HEAD);
    trainer->acts = llmc_alloc((size_t)acts_bytes, "activations");
    trainer->scratch = llmc_alloc((size_t)model_scratch_bytes(model, &trainer->batch), "scratch");
}

static void trainer_free(Trainer* trainer) {
    int32_t* arrays[] = {trainer->tokens,     trainer->positions,     trainer->cu_seqlens,
                         trainer->dec_tokens, trainer->dec_positions, trainer->dec_cu_seqlens,
                         trainer->targets,    trainer->rows};
    for (size_t i = 0; i < sizeof arrays / sizeof arrays[0]; i++) { free(arrays[i]); }
    free(trainer->losses);
    free(trainer->acts);
    free(trainer->scratch);
    optimizer_free(&trainer->optimizer);
    model_free(&trainer->model);
}

// A decoder's tokens are its targets, shifted by one, after the start token 0.
static void draw_tokens(Trainer* trainer) {
    const ModelBatch* batch = &trainer->batch;
    const uint32_t V = (uint32_t)trainer->model.config.vocab;
    if (batch->dec_tokens == NULL) {
        for (int i = 0; i < batch->num_tokens; i++) {
            trainer->tokens[i] = (int32_t)(mt19937_u32(&trainer->random) % V);
            trainer->targets[i] = (int32_t)(mt19937_u32(&trainer->random) % V);
        }
        return;
    }
    for (int i = 0; i < batch->num_tokens; i++) {
        trainer->tokens[i] = (int32_t)(mt19937_u32(&trainer->random) % V);
    }
    for (int i = 0; i < batch->num_dec_tokens; i++) {
        trainer->targets[i] = (int32_t)(mt19937_u32(&trainer->random) % V);
        trainer->dec_tokens[i] = batch->dec_positions[i] > 0 ? trainer->targets[i - 1] : 0;
    }
}

static double step(Trainer* trainer, int t, double phase_ms[NUM_PHASES]) {
    Model* model = &trainer->model;

    const ModelBatch* batch = &trainer->batch;
    draw_tokens(trainer);
    double at_ms[NUM_PHASES + 1];
    at_ms[PHASE_zero] = now_ms(CLOCK_MONOTONIC);
    model_zero_grads(model);
    at_ms[PHASE_forward] = now_ms(CLOCK_MONOTONIC);
    model_forward(model, batch, NULL, NULL, trainer->acts, trainer->scratch, trainer->losses,
                  MODEL_KEEP | MODEL_HEAD);
    at_ms[PHASE_backward_inputs] = now_ms(CLOCK_MONOTONIC);
    model_backward_inputs(model, batch, NULL, trainer->acts, NULL, NULL, trainer->scratch);
    at_ms[PHASE_backward_weights] = now_ms(CLOCK_MONOTONIC);
    model_backward_weights(model, batch, trainer->acts, NULL, trainer->scratch);
    at_ms[PHASE_norm] = now_ms(CLOCK_MONOTONIC);
    double norm = sqrt(optimizer_sum_of_squares(&trainer->optimizer, model));
    at_ms[PHASE_adamw] = now_ms(CLOCK_MONOTONIC);
    optimizer_update(&trainer->optimizer, model, 3e-4f, t, optimizer_clip_scale(norm, 1.0f));
    at_ms[NUM_PHASES] = now_ms(CLOCK_MONOTONIC);
    for (int p = 0; p < NUM_PHASES; p++) { phase_ms[p] = at_ms[p + 1] - at_ms[p]; }
    double loss = 0.0;
    for (int i = 0; i < batch->num_rows; i++) { loss += (double)trainer->losses[i] / batch->num_rows; }
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
    const int num_tokens = trainer.batch.num_tokens + trainer.batch.num_dec_tokens;
    printf("{\"program\": \"%s\", \"threads\": %d, \"tokens\": %d, \"loss\": %.6f}\n",
           slash ? slash + 1 : argv[0], ops_num_threads(ops), num_tokens, loss);
    fflush(stdout);
    char line[80];
    for (int t = 2; fgets(line, sizeof line, stdin) != NULL; t++) {
        double cpu_ms = -now_ms(CLOCK_PROCESS_CPUTIME_ID), step_ms = 0.0;
        loss = step(&trainer, t, phase_ms);
        cpu_ms += now_ms(CLOCK_PROCESS_CPUTIME_ID);
        for (int p = 0; p < NUM_PHASES; p++) { step_ms += phase_ms[p]; }
        printf("{\"step_ms\": %.1f, \"cpu_ms\": %.1f, \"tokens_per_s\": %.1f, \"loss\": %.6f", step_ms,
               cpu_ms, 1e3 * num_tokens / step_ms, loss);
        for (int p = 0; p < NUM_PHASES; p++) { printf(", \"%s_ms\": %.1f", phase_names[p], phase_ms[p]); }
        printf("}\n");
        fflush(stdout);
    }
    trainer_free(&trainer);
    ops_free(ops);
    return 0;
}
