/*
llmc_cuda_check.cuh -- is this tree what the adapter takes it for? Its tables of tensors, and its own
gpt2_validate() against the plugin's forward, each loss of a small made-up batch. Part of llmc_cuda_main.cuh.

Before the model is cut, on every rank. A tree in which something is missing ends in words, never in a model
trained wrongly.
*/
#pragma once

#include "llmc_cuda_blocks.cuh"

static void dynapipe_cuda_unlike(const char* format, int number) {
    char why[512];
    snprintf(why, sizeof why, format, number);
    dynapipe_llmc_die(dynapipe_cuda_run, why);
}

// --- tables ----------------------------------------------------------------------------------------------

// Their model lies as their table says, pointer after pointer.
static void dynapipe_cuda_check_params(const DYNAPIPE_TREE_MODEL* model) {
    size_t sizes[NUM_PARAMETER_TENSORS], sizeofs[NUM_PARAMETER_TENSORS], begin = 0;
    floatX* const* pointers = (floatX* const*)&model->params;
    fill_in_parameter_sizes(sizes, sizeofs, model->config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; begin += sizes[i++]) {
        if (pointers[i] != (const floatX*)model->params_memory + begin) {
            dynapipe_cuda_unlike("pointer %d of ParameterTensors is not at that tensor of "
                                 "fill_in_parameter_sizes() ---> the same order in both, and no gaps between "
                                 "tensors",
                                 i);
        }
        if (sizes[i] != model->param_elements[i] || sizeofs[i] != sizeof(floatX)) {
            dynapipe_cuda_unlike("parameter tensor %d is not as fill_in_parameter_sizes() says ---> of that "
                                 "many floatX, like all of them",
                                 i);
        }
    }
    if (begin != model->num_parameters ||
        (int64_t)begin != dynapipe_tensors_total(&dynapipe_cuda_model.tensors)) {
        dynapipe_cuda_unlike("the sizes of %d parameter tensors do not add up to num_parameters ---> all of "
                             "the model's in fill_in_parameter_sizes()",
                             NUM_PARAMETER_TENSORS);
    }
}

// Their table of activations has those that a range treats in its own way, once each.
static void dynapipe_cuda_check_acts(const DYNAPIPE_TREE_MODEL* model) {
    ActivationTensors acts;
    TensorSpec specs[NUM_ACTIVATION_TENSORS];
    void* const known[] = {&acts.encoded, &acts.att,      &acts.residual3,   &acts.lnf,         &acts.losses,
                           &acts.output,  &acts.fch_gelu, &acts.scratch_btc, &acts.scratch_bt4c};
    fill_in_activation_sizes(&acts, specs, 16, 16, model->config, model->recompute);
    for (void* tensor : known) {
        int num = 0;
        for (const TensorSpec& spec : specs) { num += (void*)spec.ptr == tensor; }
        if (num == 1) { continue; }
        dynapipe_cuda_unlike("fill_in_activation_sizes() does not name pointer %d of ActivationTensors once "
                             "---> each activation in its table",
                             (int)((char*)tensor - (char*)&acts) / (int)sizeof(void*));
    }
}

// --- a small batch ---------------------------------------------------------------------------------------

// Windows of T tokens, all supervised.
typedef struct {
    std::vector<int32_t> tokens, targets, places, windows;
    DynapipeBatch batch;
} DynapipeCudaTrial;

static void dynapipe_cuda_make_trial(DynapipeCudaTrial* trial, const DynapipeShapes_v1* shapes) {
    enum { MOST_TOKENS = 64 };  // of a window
    int vocab = dynapipe_cuda_model.whole->config.vocab_size, multiple = shapes->seq_multiple;
    int T = std::max(std::min((int)MOST_TOKENS, dynapipe_cuda_model.max_tokens) / multiple, 1) * multiple;
    int B = shapes->tokens_multiple / (int)dynapipe_cuda_common_divisor(shapes->tokens_multiple, T);
    if (B == 1) { B = 2; }
    unsigned long long random = 1;
    for (int i = 0; i < B * T; i++) {
        trial->tokens.push_back((int32_t)(dynapipe_cuda_random(&random) % (unsigned)vocab));
        trial->targets.push_back((int32_t)(dynapipe_cuda_random(&random) % (unsigned)vocab));
        trial->places.push_back(i);
    }
    for (int i = 0; i <= B; i++) { trial->windows.push_back(i * T); }
    DynapipeBatch* batch = &trial->batch;
    *batch = {};
    batch->num_seqs = B;
    batch->num_tokens = batch->num_rows = B * T;
    batch->max_seq_tokens = T;
    batch->num_squares = (int64_t)B * T * T;
    batch->cu_seqlens = trial->windows.data();
    batch->tokens = trial->tokens.data();
    batch->targets = trial->targets.data();
    batch->rows = trial->places.data();
    batch->loss_scale = 1.0f / (float)(B * T);
}

static void* dynapipe_cuda_zeros(int64_t num_bytes) {
    void* values;
    cudaCheck(cudaMalloc(&values, (size_t)std::max(num_bytes, (int64_t)1)));
    cudaCheck(cudaMemset(values, 0, (size_t)std::max(num_bytes, (int64_t)1)));
    cudaCheck(cudaDeviceSynchronize());
    return values;
}

// --- their way -------------------------------------------------------------------------------------------

// Of the whole model, with activations to throw away.
static std::vector<float> dynapipe_cuda_their_losses(const DynapipeCudaTrial* trial) {
    DYNAPIPE_TREE_MODEL view = *dynapipe_cuda_model.whole;
    TensorSpec specs[NUM_ACTIVATION_TENSORS];
    size_t B = (size_t)trial->batch.num_seqs, T = (size_t)trial->batch.max_seq_tokens;
    fill_in_activation_sizes(&view.acts, specs, B, T, view.config, view.recompute);
    for (const TensorSpec& spec : specs) {
        *spec.ptr = dynapipe_cuda_zeros((int64_t)(spec.size * sizeof_dtype(spec.type)));
    }
    view.batch_size = (int)B;
    view.seq_len = (int)T;
    view.inputs = (int*)dynapipe_cuda_zeros((int64_t)(B * T * sizeof(int)));
    view.targets = (int*)dynapipe_cuda_zeros((int64_t)(B * T * sizeof(int)));
    cudaCheck(cudaMallocHost((void**)&view.cpu_losses, B * T * sizeof(float)));
    DYNAPIPE_TREE(validate)(&view, trial->tokens.data(), trial->targets.data(), B, T);
    std::vector<float> losses(B * T);
    cudaCheck(cudaMemcpy(losses.data(), view.acts.losses, B * T * sizeof(float), cudaMemcpyDeviceToHost));
    for (const TensorSpec& spec : specs) { cudaCheck(cudaFree(*spec.ptr)); }
    cudaCheck(cudaFree(view.inputs));
    cudaCheck(cudaFree(view.targets));
    cudaCheck(cudaFreeHost(view.cpu_losses));
    return losses;
}

// --- the plugin's ----------------------------------------------------------------------------------------

// A range of the whole model, its values where they are.
static DynapipeCudaRange dynapipe_cuda_part(DynapipeRange blocks) {
    const DYNAPIPE_TREE_MODEL* whole = dynapipe_cuda_model.whole;
    DynapipeCudaRange range = {};
    range.slice = dynapipe_tensors_slice(&dynapipe_cuda_model.tensors, blocks);
    range.view = *whole;
    dynapipe_cuda_shrink(&range.view, &range.slice);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {  // in place of its own array
        range.slice.begin[i] = range.slice.whole[i];
    }
    dynapipe_cuda_point_view(&range.view, &range.slice);
    return range;
}

// Of two ranges, cut behind layer `cut`; 0: of one.
static std::vector<float> dynapipe_cuda_our_losses(const DynapipeCudaTrial* trial, int cut, int flags) {
    const DynapipeBatch* batch = &trial->batch;
    int end = dynapipe_cuda_model.tensors.num_layers + 2;
    DynapipeRange parts[2] = {{0, cut + 1}, {cut > 0 ? cut + 1 : 0, end}};
    std::vector<float> losses((size_t)batch->num_tokens);
    void* between = NULL;
    for (int i = cut > 0 ? 0 : 1; i < 2; i++) {
        DynapipeCudaRange range = dynapipe_cuda_part(parts[i]);
        void* acts = dynapipe_cuda_zeros(dynapipe_cuda_acts_bytes(&range, batch, flags));
        void* scratch = dynapipe_cuda_zeros(dynapipe_cuda_scratch_bytes(&range, batch));
        void* in = between;
        between = i == 0 ? dynapipe_cuda_zeros(dynapipe_cuda_boundary_bytes(&range, batch, 1)) : NULL;
        dynapipe_llmc_check(dynapipe_cuda_run,
                            dynapipe_cuda_forward(&range, batch, in, between, acts, scratch,
                                                  i == 1 ? losses.data() : NULL, flags));
        cudaCheck((cudaError_t)dynapipe_cuda_finish(&range));
        cudaCheck(cudaFree(acts));
        cudaCheck(cudaFree(scratch));
        if (in != NULL) { cudaCheck(cudaFree(in)); }
    }
    return losses;
}

// Their backward, on a model of the first layer alone (gradients of all layers may be more than there is room
// for): that it makes the calls it is known by.
static void dynapipe_cuda_try_backward(const DynapipeCudaTrial* trial) {
    enum { FLAGS = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD };
    DynapipeCudaModel* all = &dynapipe_cuda_model;
    DynapipeTensors tensors = all->tensors;
    DynapipeCudaRange range = dynapipe_cuda_part({0, tensors.num_layers + 2});
    floatX* const* values = (floatX* const*)&all->whole->params;
    tensors.num_layers = 1;
    range.slice = dynapipe_tensors_slice(&tensors, {0, 3});
    dynapipe_cuda_shrink(&range.view, &range.slice);
    range.view.params_memory = dynapipe_cuda_values((size_t)range.slice.num_values);
    range.view.grads_memory = dynapipe_cuda_values((size_t)range.slice.num_values);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        cudaCheck(cudaMemcpy((floatX*)range.view.params_memory + range.slice.begin[i], values[i],
                             sizeof(floatX) * (size_t)range.slice.count[i], cudaMemcpyDeviceToDevice));
    }
    dynapipe_cuda_point_view(&range.view, &range.slice);
    dynapipe_cuda_zero_gradients(&range);
    void* acts = dynapipe_cuda_zeros(dynapipe_cuda_acts_bytes(&range, &trial->batch, FLAGS));
    void* scratch = dynapipe_cuda_zeros(dynapipe_cuda_scratch_bytes(&range, &trial->batch));
    dynapipe_cuda_forward(&range, &trial->batch, NULL, NULL, acts, scratch, NULL, FLAGS);
    dynapipe_cuda_backward(&range, &trial->batch, NULL, acts, NULL, NULL, scratch);
    cudaCheck((cudaError_t)dynapipe_cuda_finish(&range));
    void* used[] = {acts, scratch, range.view.params_memory, range.view.grads_memory};
    for (void* memory : used) { cudaCheck(cudaFree(memory)); }
}

// --- both ------------------------------------------------------------------------------------------------

static void dynapipe_cuda_compare(const std::vector<float>& ours, const std::vector<float>& theirs) {
    float tolerance = sizeof(floatX) == 4 ? 1e-4f : 2e-2f;
    for (size_t i = 0; i < ours.size(); i++) {
        if (std::fabs(ours[i] - theirs[i]) <= tolerance * std::max(1.0f, std::fabs(theirs[i]))) { continue; }
        char why[512];
        snprintf(why, sizeof why,
                 "a made-up token's loss is %.6g with the plugin, %.6g by %s_validate() on the whole model: "
                 "their forward does what no slice of it would ---> wrap what is new there, as llmc_cuda.cuh "
                 "does (doc/porting.md)",
                 (double)ours[i], (double)theirs[i], DYNAPIPE_TREE_NAME);
        dynapipe_llmc_die(dynapipe_cuda_run, why);
    }
}

static void dynapipe_cuda_check_tree(const DynapipeShapes_v1* shapes) {
    enum { WITHOUT_BACKWARD = DYNAPIPE_FORWARD_HEAD, ALL = WITHOUT_BACKWARD | DYNAPIPE_FORWARD_KEEP };
    DynapipeCudaTrial trial;
    dynapipe_cuda_make_trial(&trial, shapes);
    std::vector<float> theirs = dynapipe_cuda_their_losses(&trial);
    int cut = dynapipe_cuda_model.tensors.num_layers / 2;
    dynapipe_cuda_compare(dynapipe_cuda_our_losses(&trial, 0, ALL), theirs);
    dynapipe_cuda_compare(dynapipe_cuda_our_losses(&trial, cut, ALL), theirs);
    dynapipe_cuda_compare(dynapipe_cuda_our_losses(&trial, cut, WITHOUT_BACKWARD), theirs);
    dynapipe_cuda_try_backward(&trial);
    if (dynapipe_llmc_options(dynapipe_cuda_run)->check_model != 0 && multi_gpu_config.process_rank == 0) {
        printf("ok   losses are those of %s_validate(), in one range and in two\n", DYNAPIPE_TREE_NAME);
    }
}
