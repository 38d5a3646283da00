// train_gpt2.cu -- a made-up CUDA trainer of llm.c's family for test/test_adapter_cuda.sh: its names and
// roles of functions and structs, written here. What no other tree has is there on purpose: a gate on each
// layer's feed-forward (gatew, behind lnfb) and an activation of its own (gated).
#include "kernels.cuh"
#include "trainer.cuh"

cudaDeviceProp deviceProp;
cudaStream_t main_stream;

typedef struct {
    int max_seq_len, vocab_size, padded_vocab_size, num_layers, num_heads, channels;
} GPT2Config;

constexpr int NUM_PARAMETER_TENSORS = 17;
typedef struct {
    floatX *wte, *wpe, *ln1w, *ln1b, *qkvw, *qkvb, *attprojw, *attprojb, *ln2w, *ln2b, *fcw, *fcb, *fcprojw;
    floatX *fcprojb, *lnfw, *lnfb, *gatew;
} ParameterTensors;

constexpr int NUM_ACTIVATION_TENSORS = 23;
typedef struct {
    floatX* encoded;
    floatX *ln1, *qkvr, *atty, *att, *residual2, *ln2, *fch, *fch_gelu, *fcproj, *gated, *residual3;
    float *ln1_mean, *ln1_rstd, *ln2_mean, *ln2_rstd;
    floatX* lnf;
    float *lnf_mean, *lnf_rstd, *losses;
    floatX *output, *scratch_bt4c, *scratch_btc;
} ActivationTensors;

enum class DType : uint8_t { FP32 };
size_t sizeof_dtype(DType) {
    return 4;
}
struct TensorSpec {
    void** ptr;
    size_t size;
    DType type;
};

typedef struct {
    GPT2Config config;
    ParameterTensors params, grads;
    size_t param_elements[NUM_PARAMETER_TENSORS], param_sizeof[NUM_PARAMETER_TENSORS];
    size_t num_parameters, num_parameters_bytes;
    void *params_memory, *grads_memory, *acts_memory;
    float *m_memory, *v_memory, *master_weights;
    ActivationTensors acts;
    int batch_size, seq_len, *inputs, *targets;
    float mean_loss, *cpu_losses;
    unsigned long long rng_state, rng_state_last_update;
    int use_master_weights, recompute, gelu_fusion;
    bool init_state;
    int* workload_indices;
    int4* bucket_info;
} GPT2;

void fill_in_parameter_sizes(size_t* sizes, size_t* sizeofs, GPT2Config config) {
    size_t C = config.channels, L = config.num_layers;
    size_t all[NUM_PARAMETER_TENSORS] = {config.padded_vocab_size * C,
                                         config.max_seq_len * C,
                                         L * C,
                                         L * C,
                                         L * 3 * C * C,
                                         L * 3 * C,
                                         L * C * C,
                                         L * C,
                                         L * C,
                                         L * C,
                                         L * 4 * C * C,
                                         L * 4 * C,
                                         L * C * 4 * C,
                                         L * C,
                                         C,
                                         C,
                                         L * C};
    memcpy(sizes, all, sizeof all);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { sizeofs[i] = sizeof(floatX); }
}

void fill_in_activation_sizes(const ActivationTensors* acts, TensorSpec (&specs)[NUM_ACTIVATION_TENSORS],
                              size_t B, size_t T, GPT2Config config, int recompute) {
    size_t N = B * T, L = config.num_layers, C = config.channels, NH = config.num_heads;
    size_t Vp = config.padded_vocab_size, work = std::max(NH * T, std::max(4 * C, Vp)), LNC = L * N * C;
    size_t all[NUM_ACTIVATION_TENSORS] = {N * C,
                                          LNC,
                                          3 * LNC,
                                          LNC,
                                          L * N * NH * T,
                                          LNC,
                                          LNC,
                                          4 * LNC,
                                          recompute >= 1 ? 4 * N * C : 4 * LNC,
                                          LNC,
                                          LNC,
                                          LNC,
                                          L * N,
                                          L * N,
                                          L * N,
                                          L * N,
                                          N * C,
                                          N,
                                          N,
                                          N,
                                          N * work,
                                          4 * N * C,
                                          N * C};
    for (int i = 0; i < NUM_ACTIVATION_TENSORS; i++) { specs[i] = {(void**)acts + i, all[i], DType::FP32}; }
}

static void* allocate_parameters(ParameterTensors* tensors, const size_t* sizes) {
    size_t total = 0;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { total += sizes[i]; }
    floatX *memory, **pointers = (floatX**)tensors;
    cudaCheck(cudaMalloc((void**)&memory, total * sizeof(floatX)));
    floatX* at = memory;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; at += sizes[i++]) { pointers[i] = at; }
    return memory;
}

void gpt2_init_common(GPT2* model) {
    memset((void*)model, 0, sizeof *model);
    model->rng_state = 4711 + multi_gpu_config.process_rank;
    model->init_state = true;
}

void gpt2_build_from_checkpoint(GPT2* model, const char* path) {
    int header[256];
    FILE* file = fopenCheck(path, "rb");
    if (fread(header, sizeof(int), 256, file) != 256 || header[0] != 20240326 || header[1] != 3) { exit(1); }
    model->config = {header[2], header[3], header[7], header[4], header[5], header[6]};
    fill_in_parameter_sizes(model->param_elements, model->param_sizeof, model->config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { model->num_parameters += model->param_elements[i]; }
    model->num_parameters_bytes = model->num_parameters * sizeof(floatX);
    model->params_memory = allocate_parameters(&model->params, model->param_elements);
    void* values = mallocCheck(model->num_parameters_bytes);
    if (fread(values, 1, model->num_parameters_bytes, file) != model->num_parameters_bytes) { exit(1); }
    cudaCheck(cudaMemcpy(model->params_memory, values, model->num_parameters_bytes, cudaMemcpyHostToDevice));
    free(values);
    fcloseCheck(file);
}

void gpt2_write_to_checkpoint(GPT2* model, const char* path) {
    GPT2Config c = model->config;
    int header[256] = {20240326,     3,           c.max_seq_len, c.vocab_size,
                       c.num_layers, c.num_heads, c.channels,    c.padded_vocab_size};
    FILE* file = fopenCheck(path, "wb");
    fwrite(header, sizeof(int), 256, file);
    void* values = mallocCheck(model->num_parameters_bytes + 1);
    cudaCheck(cudaMemcpy(values, model->params_memory, model->num_parameters_bytes, cudaMemcpyDeviceToHost));
    fwrite(values, 1, model->num_parameters_bytes, file);
    free(values);
    fcloseCheck(file);
}

void gpt2_allocate_state(GPT2* model, int B, int T) {
    TensorSpec specs[NUM_ACTIVATION_TENSORS];
    size_t total = 0, state_bytes = multi_gpu_config.shard_num_parameters * sizeof(float);
    model->grads_memory = allocate_parameters(&model->grads, model->param_elements);
    model->batch_size = B;
    model->seq_len = T;
    fill_in_activation_sizes(&model->acts, specs, B, T, model->config, model->recompute);
    for (TensorSpec& spec : specs) { total += spec.size; }
    cudaCheck(cudaMalloc(&model->acts_memory, total * sizeof(floatX)));
    cudaCheck(cudaMemset(model->acts_memory, 0, total * sizeof(floatX)));
    floatX* at = (floatX*)model->acts_memory;
    for (TensorSpec& spec : specs) {
        *spec.ptr = at;
        at += spec.size;
    }
    cudaCheck(cudaMalloc((void**)&model->inputs, sizeof(int) * B * T));
    cudaCheck(cudaMalloc((void**)&model->targets, sizeof(int) * B * T));
    cudaCheck(cudaMallocHost((void**)&model->cpu_losses, sizeof(float) * B * T));
    model->workload_indices = (int*)mallocCheck(sizeof(int) * B * T);
    model->bucket_info = (int4*)mallocCheck(sizeof(int4) * B * T);
    cudaCheck(cudaMalloc((void**)&model->m_memory, state_bytes));
    cudaCheck(cudaMalloc((void**)&model->v_memory, state_bytes));
    if (model->use_master_weights) { cudaCheck(cudaMalloc((void**)&model->master_weights, state_bytes)); }
    float num_ranks = multi_gpu_cpu_float_sum(1.0f, &multi_gpu_config);
    printf0("%g ranks have a state\n", num_ranks);
}

void gpt2_forward(GPT2* model, const int* inputs, size_t B, size_t T) {
    size_t C = model->config.channels, NH = model->config.num_heads, L = model->config.num_layers, N = B * T;
    size_t Vp = model->config.padded_vocab_size;
    if (B > (size_t)model->batch_size || T > (size_t)model->seq_len) { exit(1); }
    cudaCheck(cudaMemcpy(model->inputs, inputs, sizeof(int) * N, cudaMemcpyHostToDevice));
    ParameterTensors p = model->params;
    ActivationTensors a = model->acts;
    encoder_forward(a.encoded, model->inputs, p.wte, p.wpe, B, T, C, main_stream);
    for (size_t l = 0; l < L; l++) {
        size_t x = l * N * C;
        floatX *residual = l == 0 ? a.encoded : a.residual3 + x - N * C, *att = a.att + l * N * NH * T;
        floatX* fch_gelu = model->recompute >= 1 ? a.fch_gelu : a.fch_gelu + 4 * x;
        if (T != (size_t)model->seq_len) { cudaCheck(cudaMemset(att, 0, sizeof(floatX) * N * NH * T)); }
        layernorm_forward(a.ln1 + x, a.ln1_mean + l * N, a.ln1_rstd + l * N, residual, p.ln1w + l * C,
                          p.ln1b + l * C, B, T, C, main_stream);
        matmul_forward_cublaslt(a.qkvr + 3 * x, a.ln1 + x, p.qkvw + l * 3 * C * C, p.qkvb + l * 3 * C, B, T,
                                C, 3 * C, main_stream);
        attention_forward(a.atty + x, a.qkvr + 3 * x, att, B, T, C, NH, main_stream);
        matmul_forward_cublaslt(a.output, a.atty + x, p.attprojw + l * C * C, p.attprojb + l * C, B, T, C, C,
                                main_stream);
        FOR_EACH(add, N * C, main_stream, a.residual2 + x, residual, a.output);
        layernorm_forward(a.ln2 + x, a.ln2_mean + l * N, a.ln2_rstd + l * N, a.residual2 + x, p.ln2w + l * C,
                          p.ln2b + l * C, B, T, C, main_stream);
        matmul_forward_cublaslt(a.fch + 4 * x, a.ln2 + x, p.fcw + l * 4 * C * C, p.fcb + l * 4 * C, B, T, C,
                                4 * C, main_stream);
        FOR_EACH(gelu, N * 4 * C, main_stream, fch_gelu, a.fch + 4 * x);
        matmul_forward_cublaslt(a.fcproj + x, fch_gelu, p.fcprojw + l * 4 * C * C, p.fcprojb + l * C, B, T,
                                4 * C, C, main_stream);
        FOR_EACH(gate, N * C, main_stream, a.gated + x, a.fcproj + x, p.gatew + l * C, (int)C);
        FOR_EACH(add, N * C, main_stream, a.residual3 + x, a.residual2 + x, a.gated + x);
    }
    // as theirs, the last norm is a part of the last layer
    layernorm_forward(a.lnf, a.lnf_mean, a.lnf_rstd, a.residual3 + (L - 1) * N * C, p.lnfw, p.lnfb, B, T, C,
                      main_stream);
    matmul_forward_cublaslt(a.output, a.lnf, p.wte, NULL, B, T, C, Vp, main_stream);
    cudaCheck(cudaDeviceSynchronize());
}

static float classify_batch(GPT2* model, const int* targets, float dloss, bool is_backward) {
    size_t N = (size_t)model->batch_size * model->seq_len;
    int B = model->batch_size, T = model->seq_len, V = model->config.vocab_size,
        Vp = model->config.padded_vocab_size;
    float sum = 0;
    cudaCheck(cudaMemset(model->acts.losses, 0, sizeof(float) * N));
    cudaCheck(cudaMemcpy(model->targets, targets, sizeof(int) * N, cudaMemcpyHostToDevice));
    if (is_backward) {
        fused_classifier(model->acts.output, model->acts.losses, dloss, model->targets, B, T, V, Vp, True,
                         main_stream);
    } else {
        fused_classifier(model->acts.output, model->acts.losses, dloss, model->targets, B, T, V, Vp, False,
                         main_stream);
    }
    cudaCheck(cudaMemcpyAsync(model->cpu_losses, model->acts.losses, sizeof(float) * N,
                              cudaMemcpyDeviceToHost, main_stream));
    cudaCheck(cudaStreamSynchronize(main_stream));
    for (size_t i = 0; i < N; i++) { sum += model->cpu_losses[i] / N; }
    return sum;
}

float gpt2_validate(GPT2* model, const int* inputs, const int* targets, size_t B, size_t T) {
    gpt2_forward(model, inputs, B, T);
    return classify_batch(model, targets, 0, false);
}

void gpt2_backward_and_reduce(GPT2* model, int* inputs, const int* targets, int grad_accum_steps,
                              int micro_step) {
    size_t B = model->batch_size, T = model->seq_len, C = model->config.channels,
           NH = model->config.num_heads;
    size_t L = model->config.num_layers, N = B * T, V = model->config.vocab_size,
           Vp = model->config.padded_vocab_size;
    ParameterTensors p = model->params, d = model->grads;
    ActivationTensors a = model->acts;
    if (micro_step == 0) {
        cudaCheck(
            cudaMemsetAsync(model->grads_memory, 0, model->num_parameters * sizeof(floatX), main_stream));
        cudaCheck(cudaMemset(a.losses, 0, sizeof(float) * N));
        model->mean_loss = 0;
    }
    cudaCheck(cudaMemcpy(model->targets, targets, sizeof(int) * N, cudaMemcpyHostToDevice));
    fused_classifier(a.output, a.losses, 1.0f / (float)(N * grad_accum_steps), model->targets, B, T, V, Vp,
                     True, main_stream);
    floatX *dresidual = a.scratch_btc, *d4 = a.scratch_bt4c;
    cudaCheck(cudaMemset(dresidual, 0, sizeof(floatX) * N * C));
    matmul_backward(d4, d.wte, NULL, a.output, a.lnf, p.wte, NULL, B, T, C, Vp, main_stream);
    layernorm_backward(dresidual, d.lnfw, d.lnfb, a.output, d4, a.residual3 + (L - 1) * N * C, p.lnfw,
                       a.lnf_mean, a.lnf_rstd, B, T, C, main_stream);
    floatX* dl = a.residual3 + (L - 1) * N * C;  // as theirs: not needed any more
    for (size_t l = L; l-- > 0;) {
        size_t x = l * N * C;
        floatX *residual = l == 0 ? a.encoded : a.residual3 + x - N * C, *att = a.att + l * N * NH * T;
        floatX* fch_gelu = model->recompute >= 1 ? a.fch_gelu : a.fch_gelu + 4 * x;
        if (model->recompute >= 1) { FOR_EACH(gelu, N * 4 * C, main_stream, fch_gelu, a.fch + 4 * x); }
        FOR_EACH(gate_back, C, main_stream, dl, d.gatew + l * C, dresidual, a.fcproj + x, p.gatew + l * C,
                 (int)N);
        matmul_backward(d4, d.fcprojw + l * 4 * C * C, d.fcprojb + l * C, dl, fch_gelu,
                        p.fcprojw + l * 4 * C * C, a.output, B, T, 4 * C, C, main_stream);
        FOR_EACH(gelu_back, N * 4 * C, main_stream, d4, a.fch + 4 * x);
        matmul_backward(dl, d.fcw + l * 4 * C * C, d.fcb + l * 4 * C, d4, a.ln2 + x, p.fcw + l * 4 * C * C,
                        a.output, B, T, C, 4 * C, main_stream);
        layernorm_backward(dresidual, d.ln2w + l * C, d.ln2b + l * C, a.output, dl, a.residual2 + x,
                           p.ln2w + l * C, a.ln2_mean + l * N, a.ln2_rstd + l * N, B, T, C, main_stream);
        matmul_backward(dl, d.attprojw + l * C * C, d.attprojb + l * C, dresidual, a.atty + x,
                        p.attprojw + l * C * C, a.output, B, T, C, C, main_stream);
        attention_backward(d4, a.output, dl, a.qkvr + 3 * x, att, B, T, C, NH, main_stream);
        matmul_backward(dl, d.qkvw + l * 3 * C * C, d.qkvb + l * 3 * C, d4, a.ln1 + x, p.qkvw + l * 3 * C * C,
                        a.output, B, T, C, 3 * C, main_stream);
        layernorm_backward(dresidual, d.ln1w + l * C, d.ln1b + l * C, a.output, dl, residual, p.ln1w + l * C,
                           a.ln1_mean + l * N, a.ln1_rstd + l * N, B, T, C, main_stream);
    }
    encoder_backward(d.wte, d.wpe, a.output, model->workload_indices, model->bucket_info, dresidual,
                     model->inputs, inputs, B, T, C, random_u32(&model->rng_state), main_stream);
    if (micro_step == grad_accum_steps - 1) {
        cudaCheck(cudaMemcpy(model->cpu_losses, a.losses, sizeof(float) * N, cudaMemcpyDeviceToHost));
        for (size_t i = 0; i < N; i++) {
            model->mean_loss += model->cpu_losses[i] / (float)(N * grad_accum_steps);
        }
    }
    cudaCheck(cudaDeviceSynchronize());
}

float gpt2_calculate_grad_norm(GPT2* model, MultiGpuConfig* config) {
    (void)config;
    floatX* values = (floatX*)mallocCheck(model->num_parameters * sizeof(floatX));
    cudaCheck(cudaMemcpy(values, model->grads_memory, model->num_parameters * sizeof(floatX),
                         cudaMemcpyDeviceToHost));
    double squares = 0;
    for (size_t i = 0; i < model->num_parameters; i++) { squares += (double)values[i] * values[i]; }
    free(values);
    return (float)sqrt(squares);
}

void gpt2_update(GPT2* model, float rate, float beta1, float beta2, float eps, float decay, float scale,
                 int t, MultiGpuConfig* config) {
    size_t state_bytes = config->shard_num_parameters * sizeof(float), at = 0;
    bool is_new = model->init_state;
    model->init_state = false;
    if (is_new) {
        cudaCheck(cudaMemset(model->m_memory, 0, state_bytes));
        cudaCheck(cudaMemset(model->v_memory, 0, state_bytes));
    }
    if (is_new && model->master_weights != NULL) {
        cudaCheck(
            cudaMemcpy(model->master_weights, model->params_memory, state_bytes, cudaMemcpyDeviceToDevice));
    }
    model->rng_state_last_update = model->rng_state;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; at += model->param_elements[i++]) {
        unsigned int seed = random_u32(&model->rng_state);
        float* master = model->master_weights != NULL ? model->master_weights + at : NULL;
        adamw_update((floatX*)model->params_memory + at, master, (floatX*)model->grads_memory + at,
                     model->m_memory + at, model->v_memory + at, model->param_elements[i], rate, beta1, beta2,
                     t, eps, decay, scale, seed, main_stream);
    }
    cudaCheck(cudaDeviceSynchronize());
}

float gpt2_estimate_mfu(GPT2* model, int num_tokens, float seconds) {
    return 6.0f * (float)model->num_parameters * (float)num_tokens / seconds;
}

void gpt2_free(GPT2* model) {
    void* memory[] = {model->params_memory, model->grads_memory,   model->acts_memory, model->m_memory,
                      model->v_memory,      model->master_weights, model->inputs,      model->targets};
    for (void* part : memory) { cudaCheck(cudaFree(part)); }
    cudaCheck(cudaFreeHost(model->cpu_losses));
    free(model->workload_indices);
    free(model->bucket_info);
}

// Of this tree's own state nothing is kept: with the plugin a checkpoint has all.
void write_checkpoint(const char* directory, int step, GPT2* model, DataLoader* loader,
                      MultiGpuConfig* config) {
    (void)loader, (void)config;
    char path[512];
    snprintf(path, sizeof path, "%s/model_%08d.bin", directory, step);
    gpt2_write_to_checkpoint(model, path);
}
void load_state(int* step, GPT2* model, DataLoader* loader, const char* path) {
    (void)step, (void)model, (void)loader;
    printf("%s: this trainer cannot go on by itself\n", path);
    exit(1);
}

#ifndef TESTING
int main(int argc, char* argv[]) {
    const char *train_data_pattern = "train.tok", *val_data_pattern = "val.tok", *load_filename = "model.bin";
    const char* output_log_dir = NULL;
    int B = 2, T = 32, total_batch_size = -1, max_steps = 6, checkpoint_every = 0, resume = 0, recompute = 1;
    int val_max_steps = 2, overfit_single_batch = 0, sample_every = 0, zero_stage = 0, hellaswag_eval = 0;
    float learning_rate = 1e-3f;
    for (int i = 1; i < argc; i += 2) {
        if (i + 1 == argc || argv[i][0] != '-' || strlen(argv[i]) != 2) {
            printf("usage: train_gpt2cu [-i FILE] [-j FILE] [-e FILE] [-o DIR] [-b B] [-t T] [-d N] [-x N] "
                   "[-l X] [-n N] [-y 1] ...\n");
            return 1;
        }
        const char* value = argv[i + 1];
        switch (argv[i][1]) {
            case 'i': train_data_pattern = value; break;
            case 'j': val_data_pattern = value; break;
            case 'e': load_filename = value; break;
            case 'o': output_log_dir = value; break;
            case 'b': B = atoi(value); break;
            case 't': T = atoi(value); break;
            case 'd': total_batch_size = atoi(value); break;
            case 'x': max_steps = atoi(value); break;
            case 'l': learning_rate = strtof(value, NULL); break;
            case 'n': checkpoint_every = atoi(value); break;
            case 'y': resume = atoi(value); break;
            case 'r': recompute = atoi(value); break;
            case 's': sample_every = atoi(value); break;
            case 'z': zero_stage = atoi(value); break;
            default: return 1;
        }
    }
    multi_gpu_config = multi_gpu_config_init(1, 0);
    cudaCheck(cudaGetDeviceProperties(&deviceProp, multi_gpu_config.local_device_idx));
    cudaCheck(cudaStreamCreate(&main_stream));
    int tokens_per_fwdbwd = B * T * multi_gpu_config.num_processes;
    if (total_batch_size == -1) { total_batch_size = tokens_per_fwdbwd; }
    assert(total_batch_size % tokens_per_fwdbwd == 0);
    int grad_accum_steps = total_batch_size / tokens_per_fwdbwd;

    GPT2 model;
    gpt2_init_common(&model);
    gpt2_build_from_checkpoint(&model, load_filename);
    model.use_master_weights = 1;
    model.recompute = recompute;
    DataLoader train_loader, val_loader;
    dataloader_init(&train_loader, train_data_pattern, B, T, multi_gpu_config.process_rank,
                    multi_gpu_config.num_processes, 1);
    dataloader_init(&val_loader, val_data_pattern, B, T, multi_gpu_config.process_rank,
                    multi_gpu_config.num_processes, 0);
    Tokenizer tokenizer;
    tokenizer_init(&tokenizer, "tokenizer.bin");
    int train_num_batches = max_steps;
    const bool hellaswag_available = false, run_hellaswag = hellaswag_eval && hellaswag_available;
    set_zero_configs(&multi_gpu_config, zero_stage, model.num_parameters);
    printf0("%zu parameters here%s\n", model.num_parameters, run_hellaswag ? ", questions" : "");
    Logger logger = {multi_gpu_config.process_rank == 0};
    if (output_log_dir != NULL) { mkdir(output_log_dir, 0777); }
    int step = 0;
    gpt2_allocate_state(&model, B, T);
    if (resume == 1) {
        char path[512];
        snprintf(path, sizeof path, "%s/state", output_log_dir);
        load_state(&step, &model, &train_loader, path);
    }
    int* gen_tokens = (int*)mallocCheck(sizeof(int) * B * T);
    memset(gen_tokens, 0, sizeof(int) * B * T);
    for (; step <= train_num_batches; step++) {
        int last_step = step == train_num_batches;
        if (step % 3 == 0) {
            float val_loss = 0.0f;
            dataloader_reset(&val_loader);
            for (int i = 0; i < val_max_steps; i++) {
                dataloader_next_batch(&val_loader);
                val_loss +=
                    gpt2_validate(&model, val_loader.inputs, val_loader.targets, B, T) / val_max_steps;
            }
            val_loss = multi_gpu_cpu_float_sum(val_loss, &multi_gpu_config) / multi_gpu_config.num_processes;
            printf0("val loss %.6f\n", val_loss);
        }
        if (multi_gpu_config.process_rank == 0 && sample_every > 0 && (step + 1) % sample_every == 0) {
            gpt2_forward(&model, gen_tokens, 1, T);
            floatX logit;
            cudaCheck(cudaMemcpy(&logit, model.acts.output, sizeof logit, cudaMemcpyDeviceToHost));
            printf("the first token's logit %.6f\n", logit);
        }
        if (checkpoint_every > 0 && step > 0 && (step % checkpoint_every == 0 || last_step)) {
            write_checkpoint(output_log_dir, step, &model, &train_loader, &multi_gpu_config);
        }
        if (last_step) { break; }
        for (int micro_step = 0; micro_step < grad_accum_steps; micro_step++) {
            dataloader_next_batch(&train_loader);
            gpt2_forward(&model, train_loader.inputs, B, T);
            gpt2_backward_and_reduce(&model, train_loader.inputs, train_loader.targets, grad_accum_steps,
                                     micro_step);
        }
        float zloss = NAN, zgrad = NAN;
        float grad_norm = gpt2_calculate_grad_norm(&model, &multi_gpu_config);
        gpt2_update(&model, learning_rate, 0.9f, 0.999f, 1e-8f, 0.0f, 1.0f, step + 1, &multi_gpu_config);
        size_t tokens_processed = (size_t)multi_gpu_config.num_processes * B * T * grad_accum_steps;
        printf0("%zu tokens, %.1f %s\n", tokens_processed,
                gpt2_estimate_mfu(&model, B * T, 1.0f) > 0 ? zloss : zgrad, "z");
        logger_log_train(&logger, step, model.mean_loss, learning_rate, grad_norm);
    }
    dataloader_free(&train_loader);
    dataloader_free(&val_loader);
    free(gen_tokens);
    multi_gpu_config_free(&multi_gpu_config);
    gpt2_free(&model);
    cudaCheck(cudaStreamDestroy(main_stream));
    return 0;
}
#endif
