// train_gpt2.c -- a made-up trainer of llm.c's family for test/test_adapter_cpu.sh: its names and roles of
// functions and structs, written here, in plain loops. What no other tree has is there on purpose: a gate on
// each layer's feed-forward (gatew, behind lnfb), an activation of its own (gated), and weights of tokens.
#include <assert.h>
#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include "ops.h"

// ----------------------------------------------------------------------------------------------------------
// operations besides those of ops.h; every backward adds to its outputs

#define GELU_SLOPE 0.79788456f  // sqrt(2 / pi)

void gelu_forward(float* out, float* inp, int N) {
    for (int i = 0; i < N; i++) {
        float x = inp[i];
        out[i] = 0.5f * x * (1 + tanhf(GELU_SLOPE * (x + 0.044715f * x * x * x)));
    }
}

void gelu_backward(float* dinp, float* inp, float* dout, int N) {
    for (int i = 0; i < N; i++) {
        float x = inp[i], s = tanhf(GELU_SLOPE * (x + 0.044715f * x * x * x));
        float slope = GELU_SLOPE * (1 + 3 * 0.044715f * x * x);
        dinp[i] += dout[i] * 0.5f * (1 + s + x * (1 - s * s) * slope);
    }
}

void gate_forward(float* out, float* inp, float* gate, int N, int C) {
    for (int i = 0; i < N; i++) { out[i] = inp[i] * gate[i % C]; }
}

void gate_backward(float* dinp, float* dgate, float* dout, float* inp, float* gate, int N, int C) {
    for (int i = 0; i < N; i++) {
        dinp[i] += dout[i] * gate[i % C];
        dgate[i % C] += dout[i] * inp[i];
    }
}

void residual_forward(float* out, float* a, float* b, int N) {
    for (int i = 0; i < N; i++) { out[i] = a[i] + b[i]; }
}

void residual_backward(float* da, float* db, float* dout, int N) {
    for (int i = 0; i < N; i++) {
        da[i] += dout[i];
        db[i] += dout[i];
    }
}

void softmax_forward(float* probs, float* logits, int B, int T, int V, int Vp) {
    for (int n = 0; n < B * T; n++) {
        float sum = 0;
        for (int i = 0; i < Vp; i++) { probs[n * Vp + i] = i < V ? expf(logits[n * Vp + i]) : 0; }
        for (int i = 0; i < V; i++) { sum += probs[n * Vp + i]; }
        for (int i = 0; i < V; i++) { probs[n * Vp + i] /= sum; }
    }
}

void crossentropy_forward(float* losses, float* probs, int* targets, int B, int T, int Vp) {
    for (int n = 0; n < B * T; n++) { losses[n] = -logf(probs[n * Vp + targets[n]]); }
}

void crossentropy_softmax_backward(float* dlogits, float* dlosses, float* probs, int* targets, int B, int T,
                                   int V, int Vp) {
    for (int n = 0; n < B * T; n++) {
        for (int i = 0; i < V; i++) {
            dlogits[n * Vp + i] += dlosses[n] * (probs[n * Vp + i] - (i == targets[n]));
        }
    }
}

// ----------------------------------------------------------------------------------------------------------
// the model

typedef struct {
    int max_seq_len, vocab_size, padded_vocab_size, num_layers, num_heads, channels;
} GPT2Config;

#define NUM_PARAMETER_TENSORS 17
typedef struct {
    float *wte, *wpe, *ln1w, *ln1b, *qkvw, *qkvb, *attprojw, *attprojb, *ln2w, *ln2b, *fcw, *fcb, *fcprojw,
        *fcprojb;
    float *lnfw, *lnfb, *gatew;
} ParameterTensors;

#define NUM_ACTIVATION_TENSORS 24
typedef struct {
    float *encoded, *ln1, *ln1_mean, *ln1_rstd, *qkv, *atty, *preatt, *att, *attproj, *residual2, *ln2,
        *ln2_mean;
    float *ln2_rstd, *fch, *fch_gelu, *fcproj, *gated, *residual3, *lnf, *lnf_mean, *lnf_rstd, *logits,
        *probs, *losses;
} ActivationTensors;

typedef struct {
    GPT2Config config;
    ParameterTensors params, grads;
    size_t param_sizes[NUM_PARAMETER_TENSORS], num_parameters;
    float *params_memory, *grads_memory, *m_memory, *v_memory;
    ActivationTensors acts, grads_acts;
    size_t act_sizes[NUM_ACTIVATION_TENSORS], num_activations;
    float *acts_memory, *grads_acts_memory;
    int batch_size, seq_len;
    int *inputs, *targets;
    float mean_loss;
    const float* token_weights;  // (B, T) of their losses in the gradient; NULL: all alike
} GPT2;

void fill_in_parameter_sizes(size_t* sizes, GPT2Config config) {
    size_t C = config.channels, L = config.num_layers, Vp = config.padded_vocab_size,
           maxT = config.max_seq_len;
    size_t all[NUM_PARAMETER_TENSORS] = {Vp * C,        maxT * C, L * C, L * C, L * 3 * C * C, L * 3 * C,
                                         L * C * C,     L * C,    L * C, L * C, L * 4 * C * C, L * 4 * C,
                                         L * C * 4 * C, L * C,    C,     C,     L * C};
    memcpy(sizes, all, sizeof all);
}

void activation_sizes(size_t* sizes, GPT2Config config, int B, int T) {
    size_t N = (size_t)B * T, L = config.num_layers, LN = L * N, C = config.channels,
           Vp = config.padded_vocab_size;
    size_t squares = LN * config.num_heads * T;
    size_t all[NUM_ACTIVATION_TENSORS] = {N * C,   LN * C,     LN,         LN,     LN * 3 * C, LN * C,
                                          squares, squares,    LN * C,     LN * C, LN * C,     LN,
                                          LN,      LN * 4 * C, LN * 4 * C, LN * C, LN * C,     LN * C,
                                          N * C,   N,          N,          N * Vp, N * Vp,     N};
    memcpy(sizes, all, sizeof all);
}

static float* malloc_and_point(float** tensors, const size_t* sizes, int num_tensors) {
    size_t total = 0;
    for (int i = 0; i < num_tensors; i++) { total += sizes[i]; }
    float *memory = (float*)calloc(total, sizeof(float)), *at = memory;
    assert(memory != NULL);
    for (int i = 0; i < num_tensors; at += sizes[i++]) { tensors[i] = at; }
    return memory;
}

float* malloc_and_point_parameters(ParameterTensors* params, size_t* sizes) {
    return malloc_and_point(&params->wte, sizes, NUM_PARAMETER_TENSORS);
}

float* malloc_and_point_activations(ActivationTensors* acts, size_t* sizes) {
    return malloc_and_point(&acts->encoded, sizes, NUM_ACTIVATION_TENSORS);
}

void gpt2_build_from_checkpoint(GPT2* model, const char* checkpoint_path) {
    int header[256];
    FILE* file = fopen(checkpoint_path, "rb");
    if (file == NULL || fread(header, sizeof(int), 256, file) != 256 || header[0] != 20240326 ||
        header[1] != 3) {
        printf("%s is no checkpoint\n", checkpoint_path);
        exit(1);
    }
    memset(model, 0, sizeof *model);
    GPT2Config config = {header[2], header[3], header[7], header[4], header[5], header[6]};
    model->config = config;
    fill_in_parameter_sizes(model->param_sizes, config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { model->num_parameters += model->param_sizes[i]; }
    model->params_memory = malloc_and_point_parameters(&model->params, model->param_sizes);
    size_t num_read = fread(model->params_memory, sizeof(float), model->num_parameters, file);
    fclose(file);
    if (num_read != model->num_parameters) {
        printf("%s ends too early\n", checkpoint_path);
        exit(1);
    }
    printf("layers: %d, parameters: %zu\n", config.num_layers, model->num_parameters);
}

static void allocate_activations(GPT2* model, int B, int T) {
    if (model->acts_memory != NULL) {
        if (model->batch_size == B && model->seq_len == T) { return; }
        printf("made for %d x %d tokens, not for %d x %d\n", model->batch_size, model->seq_len, B, T);
        exit(1);
    }
    model->batch_size = B;
    model->seq_len = T;
    activation_sizes(model->act_sizes, model->config, B, T);
    model->num_activations = 0;
    for (int i = 0; i < NUM_ACTIVATION_TENSORS; i++) { model->num_activations += model->act_sizes[i]; }
    model->acts_memory = malloc_and_point_activations(&model->acts, model->act_sizes);
    model->inputs = (int*)malloc(sizeof(int) * (size_t)B * T);
    model->targets = (int*)malloc(sizeof(int) * (size_t)B * T);
}

// Forward of the whole batch; targets may be NULL, then there is no loss.
void gpt2_forward(GPT2* model, int* inputs, int* targets, size_t B, size_t T) {
    size_t C = model->config.channels, NH = model->config.num_heads, Vp = model->config.padded_vocab_size,
           N = B * T;
    int V = model->config.vocab_size, L = model->config.num_layers;
    for (size_t i = 0; i < N; i++) {
        assert(inputs[i] >= 0 && inputs[i] < V && (targets == NULL || (targets[i] >= 0 && targets[i] < V)));
    }
    allocate_activations(model, (int)B, (int)T);
    memcpy(model->inputs, inputs, sizeof(int) * N);
    if (targets != NULL) { memcpy(model->targets, targets, sizeof(int) * N); }
    ParameterTensors p = model->params;
    ActivationTensors a = model->acts;
    float* residual = a.encoded;
    encoder_forward(a.encoded, inputs, p.wte, p.wpe, B, T, C);
    for (int l = 0; l < L; l++) {
        float *att = a.att + l * B * NH * T * T, *preatt = a.preatt + l * B * NH * T * T;
        float *ln1 = a.ln1 + l * N * C, *qkv = a.qkv + l * N * 3 * C, *atty = a.atty + l * N * C;
        float *attproj = a.attproj + l * N * C, *residual2 = a.residual2 + l * N * C,
              *ln2 = a.ln2 + l * N * C;
        float *fch = a.fch + l * N * 4 * C, *fch_gelu = a.fch_gelu + l * N * 4 * C,
              *fcproj = a.fcproj + l * N * C;
        float *gated = a.gated + l * N * C, *residual3 = a.residual3 + l * N * C;
        layernorm_forward(ln1, a.ln1_mean + l * N, a.ln1_rstd + l * N, residual, p.ln1w + l * C,
                          p.ln1b + l * C, B, T, C);
        matmul_forward(qkv, ln1, p.qkvw + l * 3 * C * C, p.qkvb + l * 3 * C, B, T, C, 3 * C);
        attention_forward(atty, preatt, att, qkv, B, T, C, NH);
        matmul_forward(attproj, atty, p.attprojw + l * C * C, p.attprojb + l * C, B, T, C, C);
        residual_forward(residual2, residual, attproj, N * C);
        layernorm_forward(ln2, a.ln2_mean + l * N, a.ln2_rstd + l * N, residual2, p.ln2w + l * C,
                          p.ln2b + l * C, B, T, C);
        matmul_forward(fch, ln2, p.fcw + l * 4 * C * C, p.fcb + l * 4 * C, B, T, C, 4 * C);
        gelu_forward(fch_gelu, fch, N * 4 * C);
        matmul_forward(fcproj, fch_gelu, p.fcprojw + l * C * 4 * C, p.fcprojb + l * C, B, T, 4 * C, C);
        gate_forward(gated, fcproj, p.gatew + l * C, N * C, C);
        residual_forward(residual3, residual2, gated, N * C);
        residual = residual3;
    }
    layernorm_forward(a.lnf, a.lnf_mean, a.lnf_rstd, residual, p.lnfw, p.lnfb, B, T, C);
    matmul_forward(a.logits, a.lnf, p.wte, NULL, B, T, C, Vp);
    softmax_forward(a.probs, a.logits, B, T, V, Vp);
    model->mean_loss = -1;
    if (targets == NULL) { return; }
    crossentropy_forward(a.losses, a.probs, targets, B, T, Vp);
    model->mean_loss = 0;
    for (size_t i = 0; i < N; i++) { model->mean_loss += a.losses[i] / N; }
}

void gpt2_zero_grad(GPT2* model) {
    if (model->grads_memory != NULL) {
        memset(model->grads_memory, 0, sizeof(float) * model->num_parameters);
    }
    if (model->grads_acts_memory != NULL) {
        memset(model->grads_acts_memory, 0, sizeof(float) * model->num_activations);
    }
}

void gpt2_backward(GPT2* model) {
    size_t B = model->batch_size, T = model->seq_len, C = model->config.channels, N = B * T;
    size_t NH = model->config.num_heads, Vp = model->config.padded_vocab_size;
    int V = model->config.vocab_size;
    if (model->mean_loss == -1) {
        printf("no loss to go back from\n");
        exit(1);
    }
    if (model->grads_memory == NULL) {
        model->grads_memory = malloc_and_point_parameters(&model->grads, model->param_sizes);
        model->grads_acts_memory = malloc_and_point_activations(&model->grads_acts, model->act_sizes);
    }
    ParameterTensors p = model->params, d = model->grads;
    ActivationTensors a = model->acts, g = model->grads_acts;
    for (size_t i = 0; i < N; i++) {
        g.losses[i] = model->token_weights != NULL ? model->token_weights[i] : 1.0f / N;
    }
    crossentropy_softmax_backward(g.logits, g.losses, a.probs, model->targets, B, T, V, Vp);
    matmul_backward(g.lnf, d.wte, NULL, g.logits, a.lnf, p.wte, B, T, C, Vp);
    int last = model->config.num_layers - 1;
    layernorm_backward(g.residual3 + last * N * C, d.lnfw, d.lnfb, g.lnf, a.residual3 + last * N * C, p.lnfw,
                       a.lnf_mean, a.lnf_rstd, B, T, C);
    for (int l = last; l >= 0; l--) {
        size_t x = l * N * C, x4 = 4 * x, x3 = 3 * x, s = l * B * NH * T * T,
               n = l * N;  // where layer l begins
        float* residual = l == 0 ? a.encoded : a.residual3 + x - N * C;
        float* dresidual = l == 0 ? g.encoded : g.residual3 + x - N * C;
        residual_backward(g.residual2 + x, g.gated + x, g.residual3 + x, N * C);
        gate_backward(g.fcproj + x, d.gatew + l * C, g.gated + x, a.fcproj + x, p.gatew + l * C, N * C, C);
        matmul_backward(g.fch_gelu + x4, d.fcprojw + l * 4 * C * C, d.fcprojb + l * C, g.fcproj + x,
                        a.fch_gelu + x4, p.fcprojw + l * 4 * C * C, B, T, 4 * C, C);
        gelu_backward(g.fch + x4, a.fch + x4, g.fch_gelu + x4, N * 4 * C);
        matmul_backward(g.ln2 + x, d.fcw + l * 4 * C * C, d.fcb + l * 4 * C, g.fch + x4, a.ln2 + x,
                        p.fcw + l * 4 * C * C, B, T, C, 4 * C);
        layernorm_backward(g.residual2 + x, d.ln2w + l * C, d.ln2b + l * C, g.ln2 + x, a.residual2 + x,
                           p.ln2w + l * C, a.ln2_mean + n, a.ln2_rstd + n, B, T, C);
        residual_backward(dresidual, g.attproj + x, g.residual2 + x, N * C);
        matmul_backward(g.atty + x, d.attprojw + l * C * C, d.attprojb + l * C, g.attproj + x, a.atty + x,
                        p.attprojw + l * C * C, B, T, C, C);
        attention_backward(g.qkv + x3, g.preatt + s, g.att + s, g.atty + x, a.qkv + x3, a.att + s, B, T, C,
                           NH);
        matmul_backward(g.ln1 + x, d.qkvw + l * 3 * C * C, d.qkvb + l * 3 * C, g.qkv + x3, a.ln1 + x,
                        p.qkvw + l * 3 * C * C, B, T, C, 3 * C);
        layernorm_backward(dresidual, d.ln1w + l * C, d.ln1b + l * C, g.ln1 + x, residual, p.ln1w + l * C,
                           a.ln1_mean + n, a.ln1_rstd + n, B, T, C);
    }
    encoder_backward(d.wte, d.wpe, g.encoded, model->inputs, B, T, C);
}

// AdamW
void gpt2_update(GPT2* model, float rate, float beta1, float beta2, float eps, float decay, int t) {
    if (model->m_memory == NULL) {
        model->m_memory = (float*)calloc(model->num_parameters, sizeof(float));
        model->v_memory = (float*)calloc(model->num_parameters, sizeof(float));
    }
    for (size_t i = 0; i < model->num_parameters; i++) {
        float g = model->grads_memory[i], *m = &model->m_memory[i], *v = &model->v_memory[i];
        *m += (1 - beta1) * (g - *m);
        *v += (1 - beta2) * (g * g - *v);
        float step = *m / (1 - powf(beta1, t)) / (sqrtf(*v / (1 - powf(beta2, t))) + eps);
        model->params_memory[i] -= rate * (step + decay * model->params_memory[i]);
    }
}

void gpt2_free(GPT2* model) {
    float* memory[] = {model->params_memory, model->grads_memory, model->m_memory,
                       model->v_memory,      model->acts_memory,  model->grads_acts_memory};
    for (size_t i = 0; i < sizeof memory / sizeof memory[0]; i++) { free(memory[i]); }
    free(model->inputs);
    free(model->targets);
}

#ifndef TESTING
#include "tokens.h"

int main(void) {
    GPT2 model;
    gpt2_build_from_checkpoint(&model, "model.bin");
    int B = 2, T = 32, num_val_batches = 3;
    DataLoader train_loader, val_loader;
    dataloader_init(&train_loader, "train.tok", B, T, 0, 1, 1);
    dataloader_init(&val_loader, "val.tok", B, T, 0, 1, 0);
    printf("train dataset num_batches: %zu\n", train_loader.num_tokens / (size_t)(B * T));
    Tokenizer tokenizer;
    tokenizer_init(&tokenizer, "tokenizer.bin");
    int* text = (int*)calloc((size_t)B * T, sizeof(int));
    for (int step = 0; step < 9; step++) {
        if (step % 4 == 0) {
            float loss = 0;
            dataloader_reset(&val_loader);
            for (int i = 0; i < num_val_batches; i++) {
                dataloader_next_batch(&val_loader);
                gpt2_forward(&model, val_loader.inputs, val_loader.targets, B, T);
                loss += model.mean_loss / num_val_batches;
            }
            printf("val loss %.9g\n", loss);
        }
        if (step > 0 && step % 8 == 0) {
            for (int t = 1; t < T; t++) {
                gpt2_forward(&model, text, NULL, B, T);
                float* probs = model.acts.probs + (t - 1) * model.config.padded_vocab_size;
                for (int i = 1; i < model.config.vocab_size; i++) {
                    text[t] = probs[i] > probs[text[t]] ? i : text[t];
                }
                printf("%d ", text[t]);
            }
            printf("are the likeliest tokens%s\n", tokenizer.init_ok ? ", and words" : "");
        }
        dataloader_next_batch(&train_loader);
        gpt2_forward(&model, train_loader.inputs, train_loader.targets, B, T);
        gpt2_zero_grad(&model);
        gpt2_backward(&model);
        gpt2_update(&model, 1e-3f, 0.9f, 0.999f, 1e-8f, 0.0f, step + 1);
        printf("step %d: train loss %.9g\n", step, model.mean_loss);
    }
    dataloader_free(&train_loader);
    dataloader_free(&val_loader);
    gpt2_free(&model);
    free(text);
    return 0;
}
#endif
