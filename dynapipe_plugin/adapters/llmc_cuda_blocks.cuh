/*
llmc_cuda_blocks.cuh -- a model of llm.c's CUDA trainer as a chain that can be cut: ranges made for measuring,
and this rank's range, which takes the whole model's place. Part of llmc_cuda_main.cuh.

Their builder has made the whole model on every rank (any checkpoint, any start); values are copied from it.
*/
#pragma once

#include "llmc_cuda_model.cuh"

// Place of a tensor in their table, which is that of its pointer (dynapipe_cuda_check_params()).
#define DYNAPIPE_CUDA_SLOT(tensor) (offsetof(ParameterTensors, tensor) / sizeof(floatX*))
static_assert(
    sizeof(ParameterTensors) == NUM_PARAMETER_TENSORS * sizeof(floatX*),
    "ParameterTensors has other tensors than NUM_PARAMETER_TENSORS says ---> the plugin takes it for "
    "pointers alone, one for each tensor of fill_in_parameter_sizes()");

static void dynapipe_cuda_sizes(size_t* sizes, DYNAPIPE_TREE_CONFIG config, int num_layers) {
    size_t sizeofs[NUM_PARAMETER_TENSORS];
    config.num_layers = num_layers;
    fill_in_parameter_sizes(sizes, sizeofs, config);
}

static int dynapipe_cuda_tensors(DynapipeTensors* out, const DYNAPIPE_TREE_CONFIG* config) {
    size_t sizes_of_1[NUM_PARAMETER_TENSORS], sizes_of_2[NUM_PARAMETER_TENSORS];
    int32_t where[NUM_PARAMETER_TENSORS];
    dynapipe_cuda_sizes(sizes_of_1, *config, 1);
    dynapipe_cuda_sizes(sizes_of_2, *config, 2);
    memset(where, 0, sizeof where);  // of the layers, or unknown
    where[DYNAPIPE_CUDA_SLOT(wte)] = where[DYNAPIPE_CUDA_SLOT(DYNAPIPE_TREE_POSITIONS)] =
        DYNAPIPE_TENSOR_FIRST;
    where[DYNAPIPE_CUDA_SLOT(lnfw)] = where[DYNAPIPE_CUDA_SLOT(lnfb)] = DYNAPIPE_TENSOR_LAST;
    where[DYNAPIPE_CUDA_SLOT(DYNAPIPE_TREE_HEAD)] |= DYNAPIPE_TENSOR_LAST;
    return dynapipe_tensors_init(out, NUM_PARAMETER_TENSORS, config->num_layers, sizes_of_1, sizes_of_2,
                                 where);
}

// Values of the slice's tensors from the whole model's array.
static void dynapipe_cuda_copy_slice(void* to, const void* whole, const DynapipeSlice* slice) {
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        if (slice->count[i] == 0) { continue; }
        cudaCheck(cudaMemcpyAsync((floatX*)to + slice->begin[i], (const floatX*)whole + slice->whole[i],
                                  sizeof(floatX) * (size_t)slice->count[i], cudaMemcpyDeviceToDevice,
                                  dynapipe_cuda_model.stream));
    }
    cudaCheck(cudaStreamSynchronize(dynapipe_cuda_model.stream));
}

static void* dynapipe_cuda_values(size_t num_values) {
    void* values;
    cudaCheck(cudaMalloc(&values, std::max(num_values, (size_t)1) * sizeof(floatX)));
    return values;
}

// Their model becomes one of the slice's layers; its arrays are the caller's.
static void dynapipe_cuda_shrink(DYNAPIPE_TREE_MODEL* model, const DynapipeSlice* slice) {
    model->config.num_layers = slice->num_layers;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { model->param_elements[i] = (size_t)slice->count[i]; }
    model->num_parameters = (size_t)slice->num_values;
    model->num_parameters_bytes = (size_t)slice->num_values * sizeof(floatX);
}

static DynapipeParams_v1 dynapipe_cuda_params(const DynapipeCudaRange* range) {
    DynapipeParams_v1 params = {};
    params.params = range->view.params_memory;
    params.grads = range->view.grads_memory;
    params.num_params = range->slice.num_values;
    params.param_type = params.grad_type = sizeof(floatX) == 4                ? DYNAPIPE_FLOAT32
                                           : PRECISION_MODE == PRECISION_BF16 ? DYNAPIPE_BFLOAT16
                                                                              : DYNAPIPE_FLOAT16;
    params.num_tied = range->slice.num_tied;
    params.tied = range->slice.tied;
    return params;
}

// --- what a step ends with -------------------------------------------------------------------------------

// Sums of squares of a range's values, one for each block: the same for the same values.
enum { DYNAPIPE_SQUARE_BLOCKS = 64, DYNAPIPE_SQUARE_THREADS = 256 };
__global__ static void dynapipe_cuda_squares(double* sums, const floatX* values, size_t num_values) {
    __shared__ double part[DYNAPIPE_SQUARE_THREADS];
    double sum = 0.0;
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < num_values;
         i += (size_t)gridDim.x * blockDim.x) {
        float value = (float)values[i];
        sum += (double)value * value;
    }
    part[threadIdx.x] = sum;
    for (int half = DYNAPIPE_SQUARE_THREADS / 2; half > 0; half /= 2) {
        __syncthreads();
        if ((int)threadIdx.x < half) { part[threadIdx.x] += part[threadIdx.x + half]; }
    }
    if (threadIdx.x == 0) { sums[blockIdx.x] = part[0]; }
}

static double dynapipe_cuda_sum_squares(const void* values, DynapipeSpan span) {
    static double *there, here[DYNAPIPE_SQUARE_BLOCKS];
    cudaStream_t stream = dynapipe_cuda_model.stream;
    if (there == NULL) { cudaCheck(cudaMalloc((void**)&there, sizeof here)); }
    dynapipe_cuda_squares<<<DYNAPIPE_SQUARE_BLOCKS, DYNAPIPE_SQUARE_THREADS, 0, stream>>>(
        there, (const floatX*)values + span.begin, (size_t)(span.end - span.begin));
    cudaCheck(cudaGetLastError());
    cudaCheck(cudaMemcpyAsync(here, there, sizeof here, cudaMemcpyDeviceToHost, stream));
    cudaCheck(cudaStreamSynchronize(stream));
    double sum = 0.0;
    for (int i = 0; i < DYNAPIPE_SQUARE_BLOCKS; i++) { sum += here[i]; }
    return sum;
}

// Master weights begin as the parameters.
__global__ static void dynapipe_cuda_widen(float* to, const floatX* from, size_t num_values) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < num_values;
         i += (size_t)gridDim.x * blockDim.x) {
        to[i] = (float)from[i];
    }
}

// What their first update would do, tensor by tensor.
static void dynapipe_cuda_begin_state(DYNAPIPE_TREE_MODEL* model) {
    size_t num_bytes = model->num_parameters * sizeof(float);
    cudaCheck(cudaMemset(model->m_memory, 0, num_bytes));
    cudaCheck(cudaMemset(model->v_memory, 0, num_bytes));
    if (model->master_weights != NULL) {
        dynapipe_cuda_widen<<<1024, 256, 0, dynapipe_cuda_model.stream>>>(
            model->master_weights, (const floatX*)model->params_memory, model->num_parameters);
        cudaCheck(cudaGetLastError());
    }
    cudaCheck(cudaDeviceSynchronize());
    model->init_state = false;
}

// A step of no length. A fork whose update has other parameters defines this before.
#ifndef DYNAPIPE_TREE_UPDATE
#define DYNAPIPE_TREE_UPDATE(model) \
    DYNAPIPE_TREE(update)(model, 0.0f, 0.9f, 0.95f, 1e-8f, 0.0f, 1.0f, 1, &multi_gpu_config)
#endif

static float* dynapipe_cuda_floats(size_t num_values) {
    float* values;
    cudaCheck(cudaMalloc((void**)&values, std::max(num_values, (size_t)1) * sizeof(float)));
    return values;
}

// Only ranges that are measured with it have its state: most are not.
static int dynapipe_cuda_time_update(void* ctx, void* model) {
    (void)ctx;
    DynapipeCudaRange* range = (DynapipeCudaRange*)model;
    DYNAPIPE_TREE_MODEL* view = &range->view;
    if (view->m_memory == NULL) {
        view->m_memory = dynapipe_cuda_floats(view->num_parameters);
        view->v_memory = dynapipe_cuda_floats(view->num_parameters);
        if (view->use_master_weights) { view->master_weights = dynapipe_cuda_floats(view->num_parameters); }
        dynapipe_cuda_begin_state(view);
    }
    dynapipe_cuda_sum_squares(view->grads_memory, {0, range->slice.num_values});
    DYNAPIPE_TREE_UPDATE(view);
    return 0;
}

// --- DynapipeBlocks_v1 -----------------------------------------------------------------------------------

static void dynapipe_cuda_drop(void* ctx, void* model) {
    (void)ctx;
    DynapipeCudaRange* range = (DynapipeCudaRange*)model;
    if (range->owns_values) {
        cudaCheck(cudaFree(range->view.params_memory));
        cudaCheck(cudaFree(range->view.grads_memory));
        cudaCheck(cudaFree(range->view.m_memory));
        cudaCheck(cudaFree(range->view.v_memory));
        cudaCheck(cudaFree(range->view.master_weights));
    }
    free(range);
}

static int dynapipe_cuda_make(void* ctx, DynapipeRange blocks, int has_values, void** model,
                              DynapipeParams_v1* params) {
    const DynapipeCudaModel* all = (const DynapipeCudaModel*)ctx;
    DynapipeCudaRange* range = (DynapipeCudaRange*)mallocCheck(sizeof(DynapipeCudaRange));
    range->slice = dynapipe_tensors_slice(&all->tensors, blocks);
    range->view = *all->whole;
    range->owns_values = has_values != 0;
    range->view.params_memory = range->view.grads_memory = NULL;
    range->view.m_memory = range->view.v_memory = range->view.master_weights = NULL;
    dynapipe_cuda_shrink(&range->view, &range->slice);
    if (has_values) {
        range->view.params_memory = dynapipe_cuda_values((size_t)range->slice.num_values);
        range->view.grads_memory = dynapipe_cuda_values((size_t)range->slice.num_values);
        dynapipe_cuda_copy_slice(range->view.params_memory, all->whole->params_memory, &range->slice);
        dynapipe_cuda_zero_gradients(range);
    }
    dynapipe_cuda_point_view(&range->view, &range->slice);
    *params = dynapipe_cuda_params(range);
    *model = range;
    return 0;
}

static const char* dynapipe_cuda_why(void* ctx) {
    return ((const DynapipeCudaModel*)ctx)->why;
}

static int64_t dynapipe_cuda_common_divisor(int64_t a, int64_t b) {
    return b == 0 ? a : dynapipe_cuda_common_divisor(b, a % b);
}

// What their kernels ask: attention works in fours of a window's tokens and counts in int; GELU in whole
// blocks of 512 times 16 bytes, of (tokens, width of the feed-forward); residual sums in rows of 8.
static DynapipeShapes_v1 dynapipe_cuda_shapes(const DynapipeCudaModel* all) {
    enum { GELU_BLOCK = 512 * (int)x128::size, SUM_ROWS = 16 };
    const DYNAPIPE_TREE_CONFIG* config = &all->whole->config;
    int64_t width = all->tensors.count[DYNAPIPE_CUDA_SLOT(fcprojw)] / config->channels;
    int64_t tokens = GELU_BLOCK / dynapipe_cuda_common_divisor(GELU_BLOCK, width);
    DynapipeShapes_v1 shapes = {};
    shapes.padded = 1;
#ifdef ENABLE_CUDNN
    shapes.seq_multiple = 64;  // a graph for each shape
#else
    shapes.seq_multiple = 8;
    shapes.max_squares = INT32_MAX / config->num_heads;
#endif
    shapes.tokens_multiple = (int32_t)std::max(tokens, (int64_t)SUM_ROWS);  // powers of 2
    shapes.head_has_layer = 1;
    return shapes;
}

static DynapipeBlocks_v1 dynapipe_cuda_blocks(DynapipeCudaModel* all, const DynapipeModel_v1* api) {
    const DYNAPIPE_TREE_MODEL* model = all->whole;
    const char* type = sizeof(floatX) == 4 ? "fp32" : PRECISION_MODE == PRECISION_BF16 ? "bf16" : "fp16";
    snprintf(all->signature, sizeof all->signature,
             "%s C %d NH %d Vp %d layer %lld %s recompute %d gelu %d %s", DYNAPIPE_TREE_NAME,
             model->config.channels, model->config.num_heads, model->config.padded_vocab_size,
             (long long)all->tensors.count[DYNAPIPE_CUDA_SLOT(fcw)], type, model->recompute,
             model->gelu_fusion, deviceProp.name);
    DynapipeBlocks_v1 blocks = {};
    blocks.api = api;
    blocks.ctx = all;
    blocks.signature = all->signature;
    blocks.num_layers = model->config.num_layers;
    blocks.vocab = model->config.vocab_size;
    blocks.max_seq_tokens = all->max_tokens;
    blocks.optimizer_bytes =
        2 * (int32_t)sizeof(float) + (model->use_master_weights ? (int32_t)sizeof(float) : 0);
    blocks.shapes = dynapipe_cuda_shapes(all);
    blocks.make = dynapipe_cuda_make;
    blocks.drop = dynapipe_cuda_drop;
    blocks.update = dynapipe_cuda_time_update;
    blocks.why = dynapipe_cuda_why;
    return blocks;
}

// --- this rank's range -----------------------------------------------------------------------------------

// Their model becomes that range. Where it is the whole model, its parameters stay where they are.
static DynapipeSlice dynapipe_cuda_cut(DYNAPIPE_TREE_MODEL* model, DynapipeRange blocks) {
    const DynapipeTensors* tensors = &dynapipe_cuda_model.tensors;
    DynapipeSlice slice = dynapipe_tensors_slice(tensors, blocks);
    if (slice.num_values < dynapipe_tensors_total(tensors)) {
        void* values = dynapipe_cuda_values((size_t)slice.num_values);
        dynapipe_cuda_copy_slice(values, model->params_memory, &slice);
        cudaCheck(cudaFree(model->params_memory));
        model->params_memory = values;
    }
    dynapipe_cuda_shrink(model, &slice);
    dynapipe_cuda_point(&model->params, &slice, model->params_memory);
    return slice;
}
