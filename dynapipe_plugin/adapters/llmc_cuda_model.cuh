/*
llmc_cuda_model.cuh -- a model of llm.c's CUDA trainer behind the plugin's interface: ranges of its blocks,
their places in the caller's buffers, forward and backward. Part of llmc_cuda_main.cuh.

    acts     kept from forward to backward: their tensors, layer by layer, attention too; ids and targets
    scratch  of one call: what stands behind `output` in their table, `output` without logits, and what their
             recompute (-r) makes again

Without a backward to come (validation, a forward that is made again) acts are of one layer: their forward is
called for one after the other.

The first range reads ids, the others find their input in `in`; the gradient of the residual stream grows in
`din`. Losses and dlogits of tokens that are not supervised are cleared behind their classifier.
*/
#pragma once

#include "llmc_cuda_staging.cuh"

// A range of blocks: their model with so many layers, its tensors where `slice` says.
typedef struct {
    DynapipeSlice slice;
    DYNAPIPE_TREE_MODEL view;
    bool owns_values;
} DynapipeCudaRange;

// Their whole model, and what is the same for all ranges of it.
typedef struct {
    DYNAPIPE_TREE_MODEL* whole;
    int max_tokens;  // of a sequence: what their state is made for
    cudaStream_t stream;
    DynapipeTensors tensors;
    DynapipeCudaStaging staging;
    DynapipeRooms rooms;
    char signature[512], why[256];
} DynapipeCudaModel;

static DynapipeCudaModel dynapipe_cuda_model;

// What the pointers of a tensor tell apart where a range lacks it; nobody reads there.
static floatX* dynapipe_cuda_nowhere(int tensor) {
    return (floatX*)(uintptr_t)(4096 * (tensor + 1));
}

// Points the tensors of a view (params or grads) into one array.
static void dynapipe_cuda_point(ParameterTensors* tensors, const DynapipeSlice* slice, void* values) {
    floatX** pointers = (floatX**)tensors;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        pointers[i] = slice->count[i] > 0 ? (floatX*)values + slice->begin[i] : dynapipe_cuda_nowhere(i);
    }
}

// The final norm is fused with the last layer of every range; its result is used by the last range only.
static void dynapipe_cuda_point_view(DYNAPIPE_TREE_MODEL* view, const DynapipeSlice* slice) {
    dynapipe_cuda_point(&view->params, slice, view->params_memory);
    dynapipe_cuda_point(&view->grads, slice, view->grads_memory);
    if (slice->has_last) { return; }
    view->params.lnfw = view->params.ln1w;
    view->params.lnfb = view->params.ln1b;
}

// --- places ----------------------------------------------------------------------------------------------

typedef struct {
    int64_t acts, scratch;  // bytes so far
    int *inputs, *targets, *rows;
    floatX* between;  // what a layer leaves to the next, where one place serves all
} DynapipeCudaPlaces;

enum { DYNAPIPE_CUDA_BACKWARD = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD };

static bool dynapipe_cuda_has_head(const DynapipeSlice* slice, int flags) {
    return slice->has_last && (flags & DYNAPIPE_FORWARD_HEAD) != 0;
}

// Layers with activations of their own.
static int dynapipe_cuda_kept_layers(const DynapipeSlice* slice, int flags) {
    return (flags & DYNAPIPE_FORWARD_KEEP) != 0 ? slice->num_layers : 1;
}

static char* dynapipe_cuda_place(char* base, int64_t* num_bytes, int64_t more) {
    char* at = base == NULL ? NULL : base + *num_bytes;
    *num_bytes += (more + 255) / 256 * 256;
    return at;
}

// Their backward of norms keeps sums of every block in `output`, however few tokens there are: 2 blocks of
// 512 threads for each multiprocessor, weight and bias; the bias kernel a part of that.
static int64_t dynapipe_cuda_output_bytes(int channels) {
    int64_t rounded =
        (channels + 32 * (int64_t)x128::size - 1) / (32 * (int64_t)x128::size) * 32 * (int64_t)x128::size;
    return 4 * (256 + 4 * (int64_t)deviceProp.multiProcessorCount * rounded);
}

static DynapipeCudaPlaces dynapipe_cuda_lay_out(const DynapipeSlice* slice, DYNAPIPE_TREE_MODEL* view, int B,
                                                int T, int flags, char* acts, char* scratch) {
    DYNAPIPE_TREE_CONFIG config = view->config;
    bool has_head = dynapipe_cuda_has_head(slice, flags);
    config.num_layers = dynapipe_cuda_kept_layers(slice, flags);
    if (!has_head) { config.padded_vocab_size = 0; }
    TensorSpec specs[NUM_ACTIVATION_TENSORS];
    fill_in_activation_sizes(&view->acts, specs, B, T, config, view->recompute);
    DynapipeCudaPlaces places = {};
    bool is_behind = false;  // `output`
    for (int i = 0; i < NUM_ACTIVATION_TENSORS; i++) {
        void** pointer = specs[i].ptr;
        int64_t num_bytes = (int64_t)(specs[i].size * sizeof_dtype(specs[i].type));
        bool is_output = pointer == (void**)&view->acts.output, is_lnf = pointer == (void**)&view->acts.lnf;
        bool is_again = pointer == (void**)&view->acts.fch_gelu && view->recompute >= 1;
        if (is_output) { num_bytes = std::max(num_bytes, dynapipe_cuda_output_bytes(config.channels)); }
        bool is_in = pointer == (void**)&view->acts.encoded && (flags & DYNAPIPE_FORWARD_KEEP) != 0;
        if (!slice->has_first && (is_in || pointer == (void**)&view->acts.scratch_btc)) {
            num_bytes = 0;  // the caller's in and din
        }
        bool is_scratch = is_behind || is_again || ((is_output || is_lnf) && !has_head);
        *pointer = is_scratch ? dynapipe_cuda_place(scratch, &places.scratch, num_bytes)
                              : dynapipe_cuda_place(acts, &places.acts, num_bytes);
        is_behind |= is_output;
    }
    int64_t id_bytes = (int64_t)sizeof(int) * B * T;
    if (slice->has_first) { places.inputs = (int*)dynapipe_cuda_place(acts, &places.acts, id_bytes); }
    if (has_head) { places.targets = (int*)dynapipe_cuda_place(acts, &places.acts, 2 * id_bytes); }
    places.rows = places.targets == NULL ? NULL : places.targets + (size_t)B * T;
    places.between = (floatX*)view->acts.encoded;
    return places;
}

static DynapipeCudaPlaces dynapipe_cuda_bytes(void* model, const DynapipeBatch* batch, int flags) {
    DynapipeCudaRange* range = (DynapipeCudaRange*)model;
    DYNAPIPE_TREE_MODEL view = range->view;
    return dynapipe_cuda_lay_out(&range->slice, &view, batch->num_seqs, batch->max_seq_tokens, flags, NULL,
                                 NULL);
}

static int64_t dynapipe_cuda_acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    return dynapipe_cuda_bytes(model, batch, flags).acts;
}

static int64_t dynapipe_cuda_scratch_bytes(void* model, const DynapipeBatch* batch) {
    return dynapipe_cuda_bytes(model, batch, DYNAPIPE_FORWARD_KEEP).scratch;  // without a head: `output`, too
}

static int64_t dynapipe_cuda_boundary_bytes(void* model, const DynapipeBatch* batch, int is_behind) {
    (void)is_behind;
    return (int64_t)sizeof(floatX) * batch->num_tokens * ((DynapipeCudaRange*)model)->view.config.channels;
}

// --- jobs ------------------------------------------------------------------------------------------------

// The view with its tensors in the caller's buffers, for B sequences of T tokens each; without KEEP of the
// first layer.
static int dynapipe_cuda_begin(DynapipeCudaJob* job, DynapipeCudaPlaces* places, DynapipeCudaRange* range,
                               const DynapipeBatch* batch, const void* in, void* acts, void* scratch,
                               int flags) {
    DYNAPIPE_TREE_MODEL* view = &range->view;
    int B = batch->num_seqs, T = batch->max_seq_tokens;
    if ((int64_t)B * T != batch->num_tokens) {
        snprintf(
            dynapipe_cuda_model.why, sizeof dynapipe_cuda_model.why,
            "%d windows of at most %d tokens are %d tokens ---> these kernels want them padded to one length "
            "(DynapipeShapes_v1)",
            B, T, batch->num_tokens);
        return 1;
    }
    *places = dynapipe_cuda_lay_out(&range->slice, view, B, T, flags, (char*)acts, (char*)scratch);
    if (!range->slice.has_first) { view->acts.encoded = (floatX*)in; }
    view->config.num_layers = dynapipe_cuda_kept_layers(&range->slice, flags);
    dynapipe_cuda_point_view(view, &range->slice);
    view->batch_size = B;
    view->seq_len = T;
    view->inputs = places->inputs;
    view->targets = places->targets;
    *job = {};
    job->stream = dynapipe_cuda_model.stream;
    job->has_first = range->slice.has_first;
    job->has_head = dynapipe_cuda_has_head(&range->slice, flags);
    job->head = view->params.DYNAPIPE_TREE_HEAD;
    job->dhead = view->grads.DYNAPIPE_TREE_HEAD;
    job->dlnf = view->grads.lnfw;
    job->dout_bytes = (size_t)dynapipe_cuda_boundary_bytes(range, batch, 1);
    job->inputs = places->inputs;
    job->targets = places->targets;
    job->random = batch->token_keys != NULL ? batch->token_keys[0] : 0;  // the same whenever it runs
    return 0;
}

// dlogits (num_tokens, Vp): none of tokens that are not supervised, nor behind the vocabulary, where their
// classifier leaves the logits: 0 only as long as that part of the table is.
__global__ static void dynapipe_cuda_mask(floatX* dlogits, const int* is_row, size_t V, size_t Vp) {
    floatX* row = dlogits + blockIdx.x * Vp;
    for (size_t i = (is_row[blockIdx.x] != 0 ? V : 0) + threadIdx.x; i < Vp; i += blockDim.x) {
        row[i] = (floatX)0.0f;
    }
}

// Their classifier, which makes dlogits of logits at once.
static void dynapipe_cuda_classify(DynapipeCudaRange* range, const DynapipeCudaPlaces* places,
                                   const DynapipeBatch* batch, float* losses) {
    DYNAPIPE_TREE_MODEL* view = &range->view;
    DynapipeCudaModel* all = &dynapipe_cuda_model;
    int n = batch->num_tokens, Vp = view->config.padded_vocab_size;
    cudaCheck(cudaMemsetAsync(view->acts.losses, 0, sizeof(float) * (size_t)n, all->stream));
    fused_classifier(view->acts.output, view->acts.losses, batch->loss_scale, view->targets, batch->num_seqs,
                     batch->max_seq_tokens, view->config.vocab_size, Vp, True, all->stream);
    dynapipe_cuda_mask<<<n, 256, 0, all->stream>>>(view->acts.output, places->rows,
                                                   (size_t)view->config.vocab_size, (size_t)Vp);
    cudaCheck(cudaGetLastError());
    if (losses != NULL) {
        dynapipe_staging_deliver(&all->staging, losses, view->acts.losses, batch, all->stream);
    }
}

// A view of one layer goes on to layer l of the range, whose input the one before has left in `last`.
static void dynapipe_cuda_next_layer(DynapipeCudaRange* range, DynapipeCudaJob* job, floatX* between,
                                     const floatX* last, int l) {
    const DynapipeTensors* tensors = &dynapipe_cuda_model.tensors;
    floatX** params = (floatX**)&range->view.params;
    dynapipe_cuda_point_view(&range->view, &range->slice);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        if (tensors->where[i] == DYNAPIPE_TENSOR_LAYERS) { params[i] += l * tensors->count[i]; }
    }
    cudaCheck(cudaMemcpyAsync(between, last, job->dout_bytes, cudaMemcpyDeviceToDevice, job->stream));
    range->view.acts.encoded = between;
    job->has_first = false;
}

static int dynapipe_cuda_forward(void* model, const DynapipeBatch* batch, const void* in, void* out,
                                 void* acts, void* scratch, float* losses, int flags) {
    DynapipeCudaRange* range = (DynapipeCudaRange*)model;
    DYNAPIPE_TREE_MODEL* view = &range->view;
    DynapipeCudaModel* all = &dynapipe_cuda_model;
    bool has_head = dynapipe_cuda_has_head(&range->slice, flags);
    DynapipeCudaJob job;
    DynapipeCudaPlaces places;
    int code = dynapipe_cuda_begin(&job, &places, range, batch, in, acts, scratch, flags);
    if (code != 0) { return code; }
    int B = view->batch_size, T = view->seq_len, kept = view->config.num_layers;
    const floatX* last = view->acts.residual3 + (size_t)(kept - 1) * B * T * view->config.channels;
    dynapipe_staging_ids(&all->staging, places.inputs, places.targets, batch, all->stream);
#ifndef ENABLE_CUDNN
    // they write what lies on and below the diagonal, and multiply by all of it
    cudaCheck(cudaMemsetAsync(
        view->acts.att, 0, sizeof(floatX) * kept * B * view->config.num_heads * (size_t)T * T, all->stream));
#endif
    for (int l = 0; l < range->slice.num_layers; l += kept) {
        if (l > 0) { dynapipe_cuda_next_layer(range, &job, places.between, last, l); }
        job.has_head = has_head && l + kept == range->slice.num_layers;
        dynapipe_cuda_job = &job;
        DYNAPIPE_TREE(forward)(view, (int*)batch->tokens, B, T);
        dynapipe_cuda_job = NULL;
    }
    dynapipe_cuda_expect(&job, true, range->slice.num_layers / kept);
    view->config.num_layers = range->slice.num_layers;
    if (out != NULL) {
        cudaCheck(cudaMemcpyAsync(out, last, job.dout_bytes, cudaMemcpyDeviceToDevice, all->stream));
    }
    if (has_head) { dynapipe_cuda_classify(range, &places, batch, losses); }
    return 0;
}

// All of their backward. grad_accum_steps and micro_step: neither the first of a step, which would clear
// gradients, nor the last, which would reduce them.
static int dynapipe_cuda_backward(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                                  const void* dout, void* din, void* scratch) {
    DynapipeCudaRange* range = (DynapipeCudaRange*)model;
    DynapipeCudaJob job;
    DynapipeCudaPlaces places;
    int code = dynapipe_cuda_begin(&job, &places, range, batch, in, acts, scratch, DYNAPIPE_CUDA_BACKWARD);
    if (code != 0) { return code; }
    job.dout = dout;
    if (!range->slice.has_first) { range->view.acts.scratch_btc = (floatX*)din; }
    DYNAPIPE_TREE_MODEL* view = &range->view;
    int num_groups = CEIL_DIV(view->config.channels, 32 * (int)x128::size);
    DynapipeRoom* room =
        dynapipe_rooms_next(&dynapipe_cuda_model.rooms, (size_t)batch->num_tokens * num_groups);
    view->bucket_info = room->buckets;
    view->workload_indices = room->indices;
    dynapipe_cuda_job = &job;
    DYNAPIPE_TREE(backward_and_reduce)(view, (int*)batch->tokens, batch->tokens, 3, 1);
    dynapipe_cuda_job = NULL;
    dynapipe_cuda_expect(&job, false, 1);
    cudaCheck(cudaEventRecord(room->is_read, job.stream));
    return 0;
}

static void dynapipe_cuda_zero_gradients(void* model) {
    DYNAPIPE_TREE_MODEL* view = &((DynapipeCudaRange*)model)->view;
    cudaCheck(cudaMemsetAsync(view->grads_memory, 0, view->num_parameters * sizeof(floatX),
                              dynapipe_cuda_model.stream));
}

static int dynapipe_cuda_finish(void* model) {
    (void)model;
    return dynapipe_staging_finish(&dynapipe_cuda_model.staging, dynapipe_cuda_model.stream);
}

static DynapipeModel_v1 dynapipe_cuda_api(void) {
    DynapipeModel_v1 api = {};
    api.name = DYNAPIPE_TREE_NAME;
    api.acts_bytes = dynapipe_cuda_acts_bytes;
    api.scratch_bytes = dynapipe_cuda_scratch_bytes;
    api.boundary_bytes = dynapipe_cuda_boundary_bytes;
    api.forward = dynapipe_cuda_forward;
    api.backward_inputs = dynapipe_cuda_backward;
    api.zero_gradients = dynapipe_cuda_zero_gradients;
    api.finish = dynapipe_cuda_finish;
    return api;
}
