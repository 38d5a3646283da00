// source_stock.c -- gradients from llm.c's loop: fixed-length batches of rows x tokens, one process.
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "../dataloader/token_stream.h"
#include "../llmc/llmc_error.h"
#include "../llmc/token_text.h"
#include "source.h"

enum { STOCK_SEED = 42 };

struct Source {
    const ModelKind* kind;
    TrainFlags flags;
    OpsContext* ops;
    Model* model;
    TokenStream *train, *val;
    TokenText text;
    int num_steps, micro_steps;  // of the run; per optimizer step
    int step;                    // done
    int64_t position;            // batches drawn
    struct timespec begin;       // of the step at hand
    // one batch; the losses of all batches of a step; and, on the device, the buffers of forward and backward
    int32_t *inputs, *targets, *positions, *rows, *cu_seqlens;
    float* losses;
    void *acts, *scratch;
};

void source_die(Source* source, const char* why) {
    (void)source;
    fprintf(stderr, "error: %s\n", why);
    exit(EXIT_FAILURE);
}

static void check(Source* source, Status status) {
    if (status != STATUS_OK) { source_die(source, status_message()); }
}

Source* source_open(int* argc, char*** argv, const ModelKind* kind) {
    (void)argc;
    (void)argv;
    Source* source = (Source*)calloc(1, sizeof(Source));
    if (source == NULL) { exit(EXIT_FAILURE); }
    source->kind = kind;
    return source;
}

void source_close(Source* source) {
    token_stream_close(source->train);
    token_stream_close(source->val);
    token_text_free(&source->text);
    if (source->ops != NULL) {
        ops_release(source->ops, source->acts);
        ops_release(source->ops, source->scratch);
    }
    ops_free(source->ops);
    free(source->inputs);
    free(source->losses);
    free(source);
}

void source_print_usage(FILE* out, const ModelKind* kind) {
    fprintf(out,
            "usage: ./train_%s -i FILES [flags]\n"
            "Trains a %s on fixed-length batches in one process. `make train_%s DYNAPIPE=1` builds the\n"
            "trainer of task mixtures on a dynamic pipeline, with --options.\n",
            kind->name, kind->title, kind->name);
}

void source_print_options(FILE* out) {
    (void)out;
}

bool source_is_main(const Source* source) {
    (void)source;
    return true;
}

// inputs, targets, positions, rows and cu_seqlens lie in one allocation.
static void allocate_batch(Source* source) {
    int B = source->flags.rows, T = source->flags.seq_tokens;
    size_t n = (size_t)B * (size_t)T;
    source->inputs = (int32_t*)llmc_alloc((4 * n + (size_t)B + 1) * sizeof(int32_t), "a batch");
    source->losses = (float*)llmc_alloc(n * (size_t)source->micro_steps * sizeof(float), "losses");
    source->targets = source->inputs + n;
    source->positions = source->targets + n;
    source->rows = source->positions + n;
    source->cu_seqlens = source->rows + n;
    for (size_t i = 0; i < n; i++) {
        source->positions[i] = (int32_t)(i % (size_t)T);
        source->rows[i] = (int32_t)i;
    }
    for (int b = 0; b <= B; b++) { source->cu_seqlens[b] = b * T; }
}

void source_open_data(Source* source, const TrainFlags* flags) {
    source->flags = *flags;
    int64_t rows_tokens = (int64_t)flags->rows * flags->seq_tokens;
    int64_t batch_tokens = flags->batch_tokens > 0 ? flags->batch_tokens : rows_tokens;
    if (batch_tokens % rows_tokens != 0) {
        char why[160];
        snprintf(why, sizeof why, "-d %lld: not a multiple of -b %d x -t %d ---> give one",
                 (long long)batch_tokens, flags->rows, flags->seq_tokens);
        source_die(source, why);
    }
    if (flags->zero_stage > 0) {
        source_die(source, "-z 1: nothing to share with in one process ---> leave -z out");
    }
    source->micro_steps = (int)(batch_tokens / rows_tokens);
    check(source, token_stream_open(&source->train, flags->train_pattern, flags->rows, flags->seq_tokens,
                                    true, STOCK_SEED));
    if (flags->val_pattern != NULL) {
        check(source,
              token_stream_open(&source->val, flags->val_pattern, flags->rows, flags->seq_tokens, false, 0));
        int val_vocab = token_stream_vocab(source->val), train_vocab = token_stream_vocab(source->train);
        if (val_vocab != train_vocab) {
            char why[160];
            snprintf(why, sizeof why,
                     "-j: vocabulary of %d, but the training data has %d ---> prepare both with the same "
                     "tokenizer",
                     val_vocab, train_vocab);
            source_die(source, why);
        }
    }
    int64_t epoch_steps = token_stream_num_batches(source->train) / source->micro_steps;
    source->num_steps = flags->steps >= 0 ? flags->steps : (int)epoch_steps;
    token_text_find(&source->text, flags->train_pattern);
    allocate_batch(source);
    printf("%lld training tokens, %lld batches of %d x %d\n",
           (long long)token_stream_num_tokens(source->train),
           (long long)token_stream_num_batches(source->train), flags->rows, flags->seq_tokens);
}

int source_vocab(const Source* source) {
    return token_stream_vocab(source->train);
}

bool source_has_byt5_tokens(const Source* source) {
    return token_stream_tokenizer(source->train) == TOKENIZER_BYT5;
}

int source_num_steps(const Source* source) {
    return source->num_steps;
}

uint32_t source_seed(const Source* source) {
    (void)source;
    return STOCK_SEED;
}

OpsContext* source_ops(Source* source) {
    if (source->ops == NULL) { source->ops = ops_create(0); }
    return source->ops;
}

void source_layers(Source* source, const ModelConfig* config, int* layer_begin, int* layer_end,
                   bool* is_last) {
    (void)source;
    *layer_begin = 0;
    *layer_end = config->num_layers;
    *is_last = true;
}

static ModelBatch batch_of(const Source* source, float loss_scale) {
    int B = source->flags.rows, T = source->flags.seq_tokens;
    return (ModelBatch){
        .num_seqs = B,
        .num_tokens = B * T,
        .num_rows = B * T,
        .max_seq_tokens = T,
        .cu_seqlens = source->cu_seqlens,
        .tokens = source->inputs,
        .positions = source->positions,
        .rows = source->rows,
        .targets = source->targets,
        .loss_scale = loss_scale,
    };
}

void source_attach(Source* source, Model* model) {
    source->model = model;
    ModelBatch batch = batch_of(source, 0);
    source->acts =
        ops_alloc(source->ops, (size_t)model->config.kind->acts_bytes(model, &batch, MODEL_KEEP | MODEL_HEAD),
                  "activations");
    source->scratch =
        ops_alloc(source->ops, (size_t)model->config.kind->scratch_bytes(model, &batch), "scratch");
}

static float* losses_of(const Source* source, int micro) {
    return source->losses + (size_t)micro * (size_t)source->flags.rows * (size_t)source->flags.seq_tokens;
}

static double mean_loss(const Source* source, int micro) {
    int n = source->flags.rows * source->flags.seq_tokens;
    double sum = 0;
    for (int i = 0; i < n; i++) { sum += losses_of(source, micro)[i]; }
    return sum / n;
}

double source_step(Source* source) {
    clock_gettime(CLOCK_MONOTONIC, &source->begin);
    double num_rows = (double)source->flags.rows * source->flags.seq_tokens * source->micro_steps;
    ModelBatch batch = batch_of(source, (float)(1.0 / num_rows));
    const ModelKind* kind = source->kind;
    double loss = 0;
    model_zero_grads(source->model);
    if (source->flags.overfit) { token_stream_reset(source->train); }
    for (int micro = 0; micro < source->micro_steps; micro++) {
        check(source, token_stream_next_batch(source->train, source->inputs, source->targets));
        source->kind->forward(source->model, &batch, NULL, NULL, source->acts, source->scratch,
                              losses_of(source, micro), MODEL_KEEP | MODEL_HEAD);
        kind->backward_inputs(source->model, &batch, NULL, source->acts, NULL, NULL, source->scratch);
        kind->backward_weights(source->model, &batch, source->acts, NULL, source->scratch);
    }
    ops_sync(source->ops);
    for (int micro = 0; micro < source->micro_steps; micro++) {
        loss += mean_loss(source, micro) / source->micro_steps;
    }
    source->position = token_stream_position(source->train);
    return loss;
}

void source_shard(const Source* source, int64_t* begin, int64_t* end) {
    *begin = 0;
    *end = source->model->num_params;
}

void source_share_params(Source* source) {
    (void)source;
}

// Nothing until there are enough steps to say how far one lies off.
static const char* z_text(char* out, size_t out_bytes, double z) {
    out[0] = '\0';
    if (!isnan(z)) { snprintf(out, out_bytes, " (%+.2fz)", z); }
    return out;
}

void source_report(Source* source, int step, const SourceStep* about) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    double ms = (double)(now.tv_sec - source->begin.tv_sec) * 1e3 +
                (double)(now.tv_nsec - source->begin.tv_nsec) / 1e6;
    double tokens = (double)source->micro_steps * source->flags.rows * source->flags.seq_tokens;
    char loss_z[24], norm_z[24];
    printf("step %4d/%d | loss %7.6f%s | norm %6.4f%s | lr %.2e | %.2f ms | %.0f tok/s\n", step,
           source->num_steps, about->loss, z_text(loss_z, sizeof loss_z, about->loss_z), about->norm,
           z_text(norm_z, sizeof norm_z, about->norm_z), about->lr, ms, tokens * 1e3 / ms);
    fflush(stdout);
}

void source_sums(Source* source, double* values, int num_values) {
    (void)source;
    (void)values;
    (void)num_values;
}

bool source_owns_params(const Source* source) {
    (void)source;
    return true;
}

bool source_owns_moments(const Source* source) {
    (void)source;
    return true;
}

double source_validate(Source* source, int step, int max_batches) {
    (void)step;
    if (source->val == NULL) { return NAN; }
    int64_t available = token_stream_num_batches(source->val);
    int num_batches = max_batches < 0 || max_batches > available ? (int)available : max_batches;
    ModelBatch batch = batch_of(source, 0);
    double loss = 0;
    token_stream_reset(source->val);
    for (int i = 0; i < num_batches; i++) {
        check(source, token_stream_next_batch(source->val, source->inputs, source->targets));
        source->kind->forward(source->model, &batch, NULL, NULL, source->acts, source->scratch,
                              source->losses, MODEL_HEAD);
        ops_sync(source->ops);
        loss += mean_loss(source, 0) / num_batches;
    }
    printf("val loss %f\n", loss);
    return loss;
}

// As in llm.c: text that begins with nothing but the end-of-text token. Greedy, so that two runs compare.
void source_show_samples(Source* source, int idx, int num_samples, int max_tokens) {
    (void)idx;
    (void)num_samples;
    int limit = source->flags.seq_tokens < max_tokens ? source->flags.seq_tokens : max_tokens;
    source->inputs[0] = token_stream_eot_token(source->train);
    int32_t row = 0, target = 0, cu_seqlens[2] = {0, 0};
    int num_tokens = 1;
    while (num_tokens < limit) {
        row = num_tokens - 1;
        cu_seqlens[1] = num_tokens;
        ModelBatch batch = {1,    num_tokens, 1, num_tokens, cu_seqlens, source->inputs, source->positions,
                            &row, &target};
        source->kind->forward(source->model, &batch, NULL, NULL, source->acts, source->scratch,
                              source->losses, MODEL_HEAD);
        source->inputs[num_tokens++] =
            argmax_row(source->model->last_logits, source->model->config.vocab, source->ops);
    }
    printf("  sample  ");
    token_text_print(&source->text, stdout, source->inputs + 1, num_tokens - 1);
    printf("\n");
}

void source_position(const Source* source, const void** out, size_t* num_bytes) {
    *out = &source->position;
    *num_bytes = sizeof source->position;
}

void source_restore(Source* source, const void* position, size_t num_bytes, int step) {
    if (num_bytes != sizeof source->position) {
        source_die(
            source,
            "the checkpoint was saved by the plugin's build ---> resume with it: make train_gpt2 DYNAPIPE=1");
    }
    memcpy(&source->position, position, num_bytes);
    source->step = step;
    token_stream_seek(source->train, source->position);
}

const char* source_dump_gradients(const Source* source) {
    (void)source;
    return NULL;
}
