/*
dynapipe_llmc.cuh -- llm.c's CUDA trainer on a slice of its model: the calls of gpt2_forward(),
gpt2_backward_and_reduce() and gpt2_update() that a slice makes in another way.

Included in the tree's train_gpt2.cu after its other headers, and again, after #define DYNAPIPE_MAIN, before
main(). What lies between is not edited: the calls named below are wrapped by macros that do as ever unless a
slice is at work.

Embedding: of the range that has it only. Products with the head's weights, the gradient of the final norm,
the classifier: of the range with the head; elsewhere the gradient of the range's output takes their place.
Each of these is counted in every job, so that a tree which calls it by another name is told so.

cudaMemcpy, cudaMemset and cudaDeviceSynchronize go in the order of the stream, while the host goes on.
random_u32 has a state of its own in a job: the model's seeds the rounding of parameters, the same on every
rank. adamw_update and init_from_master pass over a tensor that a slice lacks: it has no values, which no grid
has either. matmul_backward adds to the gradient of a bias also where llm.c's overwrites it.

A slice is a model struct of theirs ("view") with its layers only; its activations have the sizes that their
own table says, so what a fork adds there works. Without -DDYNAPIPE this file is empty. Other names than
llm.c's (DYNAPIPE_LLAMA3): DYNAPIPE_TREE and what stands with it, defined before.
*/
#ifdef DYNAPIPE
#define DYNAPIPE_LLMC_CUDA
#include "dynapipe_llmc.h"
#ifndef DYNAPIPE_MAIN
#ifdef DYNAPIPE_LLAMA3
#define DYNAPIPE_TREE(function) llama3_##function
#define DYNAPIPE_TREE_MODEL LLama3
#define DYNAPIPE_TREE_CONFIG LLama3Config
#define DYNAPIPE_TREE_NAME "llama3"
#define DYNAPIPE_TREE_HEAD wlmhead
#define DYNAPIPE_TREE_POSITIONS wte
#define DYNAPIPE_TREE_PREPARE(model, T) dynapipe_llama3_prepare(model, T)
#endif
#ifndef DYNAPIPE_TREE
#define DYNAPIPE_TREE(function) gpt2_##function  // their functions on a model
#define DYNAPIPE_TREE_MODEL GPT2                 // its struct
#define DYNAPIPE_TREE_CONFIG GPT2Config
#define DYNAPIPE_TREE_NAME "gpt2"
#define DYNAPIPE_TREE_HEAD wte           // the tensor that logits are made with
#define DYNAPIPE_TREE_POSITIONS wpe      // the embedding's second tensor; wte: it has none
#define DYNAPIPE_TREE_PREPARE(model, T)  // what their allocate_state() makes besides
#endif

// Functions that a job must see called: without one of them a slice would do something else than the whole
// model.
enum {
    DYNAPIPE_CUDA_ENCODER,
    DYNAPIPE_CUDA_HEAD,
    DYNAPIPE_CUDA_CLASSIFIER,  // and on: of their backward
    DYNAPIPE_CUDA_HEAD_BACKWARD,
    DYNAPIPE_CUDA_NORM_BACKWARD,
    DYNAPIPE_CUDA_ENCODER_BACKWARD,
    DYNAPIPE_CUDA_NUM_CALLS
};

// The call of their forward or backward that is running.
typedef struct {
    int calls[DYNAPIPE_CUDA_NUM_CALLS];
    cudaStream_t stream;
    bool has_first, has_norm, has_head;  // has_head: logits are made, or were
    const void *head, *dhead, *dlnf;     // tensors of the view that tell calls apart
    const void* dout;                    // gradient of the range's output, dout_bytes
    size_t dout_bytes;
    const int*
        row_of;  // where dout is of rows, for a shared head: (num_tokens) number of the token's row, + 1
    int num_tokens, channels;
    const void *inputs, *targets;  // the view's, on the device: filled already
    unsigned long long random;
} DynapipeCudaJob;

static DynapipeCudaJob* dynapipe_cuda_job;  // NULL: their own loop
static DynapipeLlmc* dynapipe_cuda_run;

// Rows (num_rows, C) of tokens (num_tokens, C) that have one; or back, tokens without one becoming 0.
__global__ static void dynapipe_cuda_rows(floatX* rows, floatX* tokens, const int* row_of, int C,
                                          bool is_back) {
    const int row = row_of[blockIdx.x] - 1;
    for (int c = (int)threadIdx.x; c < C; c += (int)blockDim.x) {
        floatX* at = tokens + (size_t)blockIdx.x * C + c;
        if (is_back) {
            *at = row < 0 ? (floatX)0.0f : rows[(size_t)row * C + c];
        } else if (row >= 0) {
            rows[(size_t)row * C + c] = *at;
        }
    }
}

// --- calls of a job --------------------------------------------------------------------------------------

static inline cudaError_t dynapipe_cuda_copy(void* to, const void* from, size_t num_bytes,
                                             cudaMemcpyKind kind) {
    const DynapipeCudaJob* job = dynapipe_cuda_job;
    if (job == NULL) { return cudaMemcpy(to, from, num_bytes, kind); }
    if (to == job->inputs || to == job->targets) { return cudaSuccess; }
    cudaError_t code = cudaMemcpyAsync(to, from, num_bytes, kind, job->stream);
    // the host's side may be read, or written anew, as soon as this returns
    bool is_of_host = kind != cudaMemcpyDeviceToDevice;
    return code == cudaSuccess && is_of_host ? cudaStreamSynchronize(job->stream) : code;
}

static inline cudaError_t dynapipe_cuda_fill(void* values, int byte, size_t num_bytes) {
    const DynapipeCudaJob* job = dynapipe_cuda_job;
    return job == NULL ? cudaMemset(values, byte, num_bytes)
                       : cudaMemsetAsync(values, byte, num_bytes, job->stream);
}

static inline cudaError_t dynapipe_cuda_synchronize(void) {
    return dynapipe_cuda_job == NULL ? cudaDeviceSynchronize() : cudaSuccess;
}

// splitmix64 (Steele, Lea, Flood 2014)
static inline unsigned int dynapipe_cuda_random(unsigned long long* state) {
    unsigned long long bits = *state += 0x9e3779b97f4a7c15ull;
    bits = (bits ^ bits >> 30) * 0xbf58476d1ce4e5b9ull;
    bits = (bits ^ bits >> 27) * 0x94d049bb133111ebull;
    return (unsigned int)(bits >> 32);
}

// Counts a call of a job. True: there is one.
static inline bool dynapipe_cuda_counts(int call) {
    DynapipeCudaJob* job = dynapipe_cuda_job;
    if (job != NULL) { job->calls[call]++; }
    return job != NULL;
}

static inline bool dynapipe_cuda_lacks_encoder(int call) {
    return dynapipe_cuda_counts(call) && !dynapipe_cuda_job->has_first;
}

static inline bool dynapipe_cuda_lacks_head(const void* weight) {
    const DynapipeCudaJob* job = dynapipe_cuda_job;
    return job != NULL && weight == job->head && dynapipe_cuda_counts(DYNAPIPE_CUDA_HEAD) && !job->has_head;
}

// Its backward; for a shared head the gradient of the final norm's output comes from the shares.
static inline bool dynapipe_cuda_lacks_head_backward(void* dinp, const void* dweight) {
    const DynapipeCudaJob* job = dynapipe_cuda_job;
    if (job == NULL || dweight != job->dhead) { return false; }
    if (dynapipe_cuda_counts(DYNAPIPE_CUDA_HEAD_BACKWARD) && job->has_head) { return false; }
    if (job->has_norm) {
        dynapipe_cuda_rows<<<job->num_tokens, 256, 0, job->stream>>>((floatX*)job->dout, (floatX*)dinp,
                                                                     job->row_of, job->channels, true);
        cudaCheck(cudaGetLastError());
    }
    return true;
}

// In place of the final norm's backward: what comes from the next range. True: that was it.
static inline bool dynapipe_cuda_takes_dout(void* dresidual, const void* dweight) {
    const DynapipeCudaJob* job = dynapipe_cuda_job;
    if (job == NULL || dweight != job->dlnf) { return false; }
    if (dynapipe_cuda_counts(DYNAPIPE_CUDA_NORM_BACKWARD) && job->has_norm) { return false; }
    cudaCheck(cudaMemcpyAsync(dresidual, job->dout, job->dout_bytes, cudaMemcpyDeviceToDevice, job->stream));
    return true;
}

// After num_calls calls of their function in this job: has it made what it is known by?
static inline void dynapipe_cuda_expect(const DynapipeCudaJob* job, bool is_forward, int num_calls) {
    static const char* const names[DYNAPIPE_CUDA_NUM_CALLS] = {
        "encoder_forward()",
        "matmul_forward_cublaslt() with the head's weights",
        "fused_classifier()",
        "matmul_backward() with the head's weights",
        "layernorm_backward() or rmsnorm_backward() of the final norm",
        "encoder_backward()"};
    int wanted[DYNAPIPE_CUDA_NUM_CALLS];
    for (int i = 0; i < DYNAPIPE_CUDA_NUM_CALLS; i++) {
        wanted[i] = is_forward == (i < DYNAPIPE_CUDA_CLASSIFIER) ? num_calls : -1;
    }
    dynapipe_llmc_expect_calls(dynapipe_cuda_run,
                               is_forward ? DYNAPIPE_TREE_NAME "_forward()"
                                          : DYNAPIPE_TREE_NAME "_backward_and_reduce()",
                               DYNAPIPE_CUDA_NUM_CALLS, names, job->calls, wanted);
}

static inline float dynapipe_cuda_float_sum(float value) {
    double sum = value;
    dynapipe_llmc_check(dynapipe_cuda_run, dynapipe_sum(dynapipe_llmc_session(dynapipe_cuda_run), &sum, 1));
    return (float)sum;
}

// --- gradients of biases ---------------------------------------------------------------------------------

__global__ static void dynapipe_cuda_add(floatX* sums, const floatX* values, int num_values) {
    int i = (int)(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < num_values) { sums[i] = (floatX)((float)sums[i] + (float)values[i]); }
}

// llm.c's False is a true one (cuda_common.h), which its bias kernel takes for a buffer of partial sums to be
// overwritten. Where one row of blocks fills the GPU, this "buffer" is the gradient itself: that of the last
// microbatch remains.
static inline bool dynapipe_cuda_overwrites_bias(int OC) {
    if (!(bool)False) { return false; }
    int block_size = deviceProp.maxThreadsPerMultiProcessor == 1536 ? 768 : 1024;
    int num_columns = (OC + 8 * (int)x128::size - 1) / (8 * (int)x128::size);
    return deviceProp.maxThreadsPerMultiProcessor * deviceProp.multiProcessorCount <
           2 * block_size * num_columns;
}

template <class... Rest>
static void dynapipe_cuda_matmul_backward(floatX* dinp, floatX* dweight, floatX* dbias, floatX* dout,
                                          floatX* inp, floatX* weight, float* buffer, int B, int T, int C,
                                          int OC, cudaStream_t stream, Rest... rest) {
    bool adds = dbias != NULL && dynapipe_cuda_job != NULL && dynapipe_cuda_overwrites_bias(OC);
    floatX* into = adds ? (floatX*)buffer : dbias;  // unused by theirs then
    matmul_backward(dinp, dweight, into, dout, inp, weight, buffer, B, T, C, OC, stream, rest...);
    if (!adds) { return; }
    dynapipe_cuda_add<<<(OC + 255) / 256, 256, 0, stream>>>(dbias, into, OC);
    cudaCheck(cudaGetLastError());
}

// --- their names, until the part above main() ----------------------------------------------------------

#define encoder_forward(...) \
    (dynapipe_cuda_lacks_encoder(DYNAPIPE_CUDA_ENCODER) ? (void)0 : (encoder_forward)(__VA_ARGS__))
#define encoder_backward(...) \
    (dynapipe_cuda_lacks_encoder(DYNAPIPE_CUDA_ENCODER_BACKWARD) ? (void)0 : (encoder_backward)(__VA_ARGS__))
#define matmul_forward_cublaslt(out, inp, weight, ...) \
    (dynapipe_cuda_lacks_head(weight) ? (void)0 : matmul_forward_cublaslt(out, inp, weight, __VA_ARGS__))
#define matmul_backward(dinp, dweight, ...)           \
    (dynapipe_cuda_lacks_head_backward(dinp, dweight) \
         ? (void)0                                    \
         : dynapipe_cuda_matmul_backward(dinp, dweight, __VA_ARGS__))
#define layernorm_backward(dinp, dweight, ...) \
    (dynapipe_cuda_takes_dout(dinp, dweight) ? (void)0 : layernorm_backward(dinp, dweight, __VA_ARGS__))
#define rmsnorm_backward(dinp, dweight, ...) \
    (dynapipe_cuda_takes_dout(dinp, dweight) ? (void)0 : rmsnorm_backward(dinp, dweight, __VA_ARGS__))
#define fused_classifier(...) \
    (dynapipe_cuda_counts(DYNAPIPE_CUDA_CLASSIFIER) ? (void)0 : fused_classifier(__VA_ARGS__))

#define cudaMemcpy(...) dynapipe_cuda_copy(__VA_ARGS__)
#define cudaMemset(...) dynapipe_cuda_fill(__VA_ARGS__)
#define cudaDeviceSynchronize() dynapipe_cuda_synchronize()
#define random_u32(state) \
    (dynapipe_cuda_job != NULL ? dynapipe_cuda_random(&dynapipe_cuda_job->random) : random_u32(state))

#define adamw_update(params, master, grads, m, v, num_values, ...) \
    ((num_values) == 0 ? (void)0 : adamw_update(params, master, grads, m, v, num_values, __VA_ARGS__))
#define init_from_master(params, master, num_values, ...) \
    ((num_values) == 0 ? (void)0 : init_from_master(params, master, num_values, __VA_ARGS__))
#define multi_gpu_cpu_float_sum(value, ...)                                  \
    (dynapipe_llmc_is_on(dynapipe_cuda_run) ? dynapipe_cuda_float_sum(value) \
                                            : multi_gpu_cpu_float_sum(value, __VA_ARGS__))

#ifdef DYNAPIPE_LLAMA3
// Their model before it has a state, for T positions.
template <class Model> static void dynapipe_llama3_prepare(Model* model, int T) {
    int num_dims = model->config.channels / model->config.num_heads;
    size_t num_bytes = (size_t)T * num_dims * sizeof(floatX);
    floatX* table = (floatX*)mallocCheck(num_bytes);
    precompute_freqs_cis(table, num_dims, T, model->config.rope_theta, model->config.use_scaled_rope);
    if (model->freqs_cis != NULL) { cudaCheck(cudaFree(model->freqs_cis)); }
    cudaCheck(cudaMalloc((void**)&model->freqs_cis, num_bytes));
    cudaCheck(cudaMemcpy(model->freqs_cis, table, num_bytes, cudaMemcpyHostToDevice));
    free(table);
}
#endif

#else
// === above main() ===================================================================================
/*
Their model as DynapipeModel_v1 and DynapipeBlocks_v1: ranges of its blocks, their places in the plugin's
buffers.

    acts     kept from forward to backward: their tensors, layer by layer, attention too; ids and targets
    scratch  of one call: what is after `output` in their table, `output` without logits, and what their
recompute (-r) makes again

Without a backward to come (validation, a forward that is recomputed) acts are of one layer: their forward is
called for one after the other. The first range reads ids, the others find their input in `in`; the gradient
of the residual stream grows in `din`. Losses and dlogits of tokens that are not supervised are cleared after
their classifier. Of a head shared by rows, a share calls their products and their classifier on its rows.
*/
#include <unistd.h>
#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

// After their functions the names are their own again.
#undef encoder_forward
#undef encoder_backward
#undef matmul_forward_cublaslt
#undef matmul_backward
#undef layernorm_backward
#undef rmsnorm_backward
#undef fused_classifier
#undef cudaMemcpy
#undef cudaMemset
#undef cudaDeviceSynchronize
#undef random_u32
#undef adamw_update
#undef init_from_master

static_assert(sizeof(ParameterTensors) == NUM_PARAMETER_TENSORS * sizeof(floatX*),
              "ParameterTensors has other tensors than NUM_PARAMETER_TENSORS ---> the plugin takes it for "
              "pointers alone, one "
              "for each tensor of fill_in_parameter_sizes()");

// A range of blocks: their model with its layers, in arrays that hold all of `slice`.
typedef struct {
    DynapipeSlice slice;
    DynapipeRole role;
    DYNAPIPE_TREE_MODEL view;
} DynapipeCudaRange;

static struct {
    DYNAPIPE_TREE_MODEL* whole;   // theirs: the whole model until it is cut, this rank's part then
    DYNAPIPE_TREE_CONFIG config;  // of the whole
    int max_tokens;               // of a sequence: what their state is made for
    cudaStream_t stream;
    DynapipeTensors tensors;
    DynapipeModel_v1 api;
    DynapipeSlice slice;                          // what this rank has, and
    DynapipeCudaRange mine[DYNAPIPE_MAX_RANGES];  // its ranges: views of their model, with other activations
    int num_ranges;
    DataLoader *train_loader, *val_loader;
    int loader_tokens;     // -t
    int64_t batch_tokens;  // of a step over all ranks, at most
    int val_max_batches;
    char signature[512];
} dynapipe_cuda;

static inline bool dynapipe_cuda_is_on(void) {
    return dynapipe_llmc_is_on(dynapipe_cuda_run) != 0;
}

static Dynapipe* dynapipe_cuda_session(void) {
    return dynapipe_llmc_session(dynapipe_cuda_run);
}

// --- staging ---------------------------------------------------------------------------------------------
// Pinned memory between a step's batches and the device: ids and targets on their way there, losses on their
// way back, what their backward of the embedding prepares on the host. Nothing is given back before finish(),
// so the host never waits in between; there it all begins anew.
typedef struct {
    float* losses;        // of the caller
    const float* values;  // pinned
    const int32_t* rows;  // losses[i] is values[rows[i]]; NULL: values[i]
    int num_rows;
} DynapipeDelivery;

static struct {
    std::vector<std::pair<char*, size_t>> chunks;
    size_t chunk, used_bytes;  // the one in use
    std::vector<DynapipeDelivery> deliveries;
} dynapipe_staging;

static void* dynapipe_staging_take(size_t num_bytes) {
    auto& s = dynapipe_staging;
    num_bytes = (num_bytes + 63) / 64 * 64;
    while (s.chunk < s.chunks.size() && s.used_bytes + num_bytes > s.chunks[s.chunk].second) {
        s.chunk++;
        s.used_bytes = 0;
    }
    if (s.chunk == s.chunks.size()) {
        size_t chunk_bytes = std::max(num_bytes, (size_t)1 << 20);
        void* memory;
        cudaCheck(cudaMallocHost(&memory, chunk_bytes));
        s.chunks.push_back({(char*)memory, chunk_bytes});
    }
    s.used_bytes += num_bytes;
    return s.chunks[s.chunk].first + s.used_bytes - num_bytes;
}

static void dynapipe_staging_send(int* to, const int* values, int num_values) {
    int* there = (int*)dynapipe_staging_take(sizeof(int) * (size_t)num_values);
    memcpy(there, values, sizeof(int) * (size_t)num_values);
    cudaCheck(cudaMemcpyAsync(to, there, sizeof(int) * (size_t)num_values, cudaMemcpyHostToDevice,
                              dynapipe_cuda.stream));
}

// targets: (2, num_tokens) the id to predict, and the number of the token's row, + 1. Either may be NULL.
static void dynapipe_staging_ids(int* inputs, int* targets, const DynapipeBatch* batch) {
    const int n = batch->num_tokens;
    if (inputs != NULL) { dynapipe_staging_send(inputs, batch->tokens, n); }
    if (targets == NULL) { return; }
    std::vector<int> ids(2 * (size_t)n);
    for (int i = 0; i < batch->num_rows; i++) {
        ids[batch->rows[i]] = batch->targets[i];
        ids[n + batch->rows[i]] = i + 1;
    }
    dynapipe_staging_send(targets, ids.data(), 2 * n);
}

// values (num_values) on the device: in `losses` after finish().
static void dynapipe_staging_deliver(float* losses, const float* values, int num_values, const int32_t* rows,
                                     int num_rows) {
    size_t num_bytes = sizeof(float) * (size_t)num_values;
    float* there = (float*)dynapipe_staging_take(num_bytes);
    cudaCheck(cudaMemcpyAsync(there, values, num_bytes, cudaMemcpyDeviceToHost, dynapipe_cuda.stream));
    dynapipe_staging.deliveries.push_back({losses, there, rows, num_rows});
}

static int dynapipe_cuda_finish(void* model) {
    (void)model;
    auto& s = dynapipe_staging;
    cudaError_t code = cudaStreamSynchronize(dynapipe_cuda.stream);
    for (const DynapipeDelivery& d : s.deliveries) {
        for (int i = 0; i < d.num_rows; i++) { d.losses[i] = d.values[d.rows != NULL ? d.rows[i] : i]; }
    }
    s.deliveries.clear();
    s.chunk = s.used_bytes = 0;
    return (int)code;
}

// --- ranges ----------------------------------------------------------------------------------------------

// Number of a tensor in their table, which is that of its pointer (dynapipe_cuda_check_params()).
#define DYNAPIPE_CUDA_SLOT(tensor) (offsetof(ParameterTensors, tensor) / sizeof(floatX*))

// The final norm is fused with the last layer of every range, which may have none.
static void dynapipe_cuda_point(DynapipeCudaRange* range) {
    DYNAPIPE_TREE_MODEL* view = &range->view;
    const DynapipeTensors* all = &dynapipe_cuda.tensors;
    int first = range->role.first_layer;
    dynapipe_tensors_point(all, &range->slice, &view->params, view->params_memory, sizeof(floatX), first);
    dynapipe_tensors_point(all, &range->slice, &view->grads, view->grads_memory, sizeof(floatX), first);
    if (range->role.has_norm) { return; }
    view->params.lnfw = view->params.ln1w;
    view->params.lnfb = view->params.ln1b;
}

// A range of `blocks` in arrays with all of `slice`, whose layers begin at first_layer there: model's.
static void dynapipe_cuda_range(DynapipeCudaRange* range, const DYNAPIPE_TREE_MODEL* model,
                                const DynapipeSlice& slice, DynapipeRange blocks, int first_layer) {
    range->slice = slice;
    range->role = dynapipe_tensors_role(&dynapipe_cuda.tensors, blocks, first_layer);
    range->view = *model;
    range->view.config.num_layers = range->role.num_layers;
    dynapipe_cuda_point(range);
}

static void* dynapipe_cuda_memory(int64_t num_bytes) {
    void* memory;
    cudaCheck(cudaMalloc(&memory, (size_t)std::max(num_bytes, (int64_t)1)));
    return memory;
}

static void dynapipe_cuda_copy_values(void* to, const void* from, size_t num_bytes) {
    cudaCheck(cudaMemcpyAsync(to, from, num_bytes, cudaMemcpyDeviceToDevice, dynapipe_cuda.stream));
}

// The slice's values of the whole model.
static void* dynapipe_cuda_slice_values(const DynapipeSlice* slice) {
    void* values = dynapipe_cuda_memory(slice->num_values * (int64_t)sizeof(floatX));
    dynapipe_tensors_copy(&dynapipe_cuda.tensors, slice, values, dynapipe_cuda.whole->params_memory,
                          sizeof(floatX), dynapipe_cuda_copy_values);
    cudaCheck(cudaStreamSynchronize(dynapipe_cuda.stream));
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

// --- places ----------------------------------------------------------------------------------------------

typedef struct {
    int64_t acts, scratch;  // bytes so far
    int *inputs, *targets, *row_of;
    floatX* between;  // what a layer leaves to the next, where one place serves all
} DynapipeCudaPlaces;

enum { DYNAPIPE_CUDA_BACKWARD = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD };

static bool dynapipe_cuda_has_head(const DynapipeCudaRange* range, int flags) {
    return range->role.has_head && (flags & DYNAPIPE_FORWARD_HEAD) != 0;
}

// Layers with activations of their own.
static int dynapipe_cuda_kept_layers(const DynapipeCudaRange* range, int flags) {
    return (flags & DYNAPIPE_FORWARD_KEEP) != 0 ? range->role.num_layers : 1;
}

static char* dynapipe_cuda_place(char* base, int64_t* num_bytes, int64_t more) {
    char* at = base == NULL ? NULL : base + *num_bytes;
    *num_bytes += (more + 255) / 256 * 256;
    return at;
}

// Their backward of norms keeps sums of every block in `output`, however few tokens there are: 2 blocks of
// 512 threads for each multiprocessor, weight and bias; the bias kernel a part of that.
static int64_t dynapipe_cuda_output_bytes(int channels) {
    enum { PACK = 32 * (int)x128::size };
    return 4 * (256 + 4 * (int64_t)deviceProp.multiProcessorCount * CEIL_DIV(channels, (int)PACK) * PACK);
}

// acts: NULL: only bytes are asked for.
static DynapipeCudaPlaces dynapipe_cuda_lay_out(const DynapipeCudaRange* range, DYNAPIPE_TREE_MODEL* view,
                                                const DynapipeBatch* batch, int flags, void* acts_,
                                                void* scratch_) {
    char *acts = (char*)acts_, *scratch = (char*)scratch_;
    int B = batch->num_seqs, T = batch->max_seq_tokens;
    bool has_head = dynapipe_cuda_has_head(range, flags), is_behind = false;  // `output`
    DYNAPIPE_TREE_CONFIG config = view->config;
    TensorSpec specs[NUM_ACTIVATION_TENSORS];
    DynapipeCudaPlaces places = {};
    config.num_layers = dynapipe_cuda_kept_layers(range, flags);
    if (!has_head) { config.padded_vocab_size = 0; }
    fill_in_activation_sizes(&view->acts, specs, B, T, config, view->recompute);
    for (int i = 0; i < NUM_ACTIVATION_TENSORS; i++) {
        void** pointer = specs[i].ptr;
        int64_t num_bytes = (int64_t)(specs[i].size * sizeof_dtype(specs[i].type));
        bool is_output = pointer == (void**)&view->acts.output, is_lnf = pointer == (void**)&view->acts.lnf;
        bool is_again = pointer == (void**)&view->acts.fch_gelu && view->recompute >= 1;
        bool is_in = pointer == (void**)&view->acts.encoded && (flags & DYNAPIPE_FORWARD_KEEP) != 0;
        if (is_output) { num_bytes = std::max(num_bytes, dynapipe_cuda_output_bytes(config.channels)); }
        if (!range->role.has_first && (is_in || pointer == (void**)&view->acts.scratch_btc)) {
            num_bytes = 0;  // the caller's in and din
        }
        bool is_scratch = is_behind || is_again || ((is_output || is_lnf) && !has_head);
        *pointer = is_scratch ? dynapipe_cuda_place(scratch, &places.scratch, num_bytes)
                              : dynapipe_cuda_place(acts, &places.acts, num_bytes);
        is_behind |= is_output;
    }
    int64_t id_bytes = (int64_t)sizeof(int) * B * T;
    if (range->role.has_first) { places.inputs = (int*)dynapipe_cuda_place(acts, &places.acts, id_bytes); }
    if (has_head || range->role.feeds) {
        places.targets = (int*)dynapipe_cuda_place(acts, &places.acts, 2 * id_bytes);
    }
    places.row_of = places.targets == NULL ? NULL : places.targets + (size_t)B * T;
    places.between = (floatX*)view->acts.encoded;
    return places;
}

// Of a share: logits, losses, targets.
typedef struct {
    int64_t num_bytes;
    floatX* logits;
    float* losses;
    int* targets;
} DynapipeCudaShare;

static DynapipeCudaShare dynapipe_cuda_share(const DynapipeCudaRange* range, int num_rows, void* acts) {
    DynapipeCudaShare share = {};
    int64_t Vp = range->view.config.padded_vocab_size, n = num_rows;
    share.logits =
        (floatX*)dynapipe_cuda_place((char*)acts, &share.num_bytes, n * Vp * (int64_t)sizeof(floatX));
    share.losses = (float*)dynapipe_cuda_place((char*)acts, &share.num_bytes, n * (int64_t)sizeof(float));
    share.targets = (int*)dynapipe_cuda_place((char*)acts, &share.num_bytes, n * (int64_t)sizeof(int));
    return share;
}

static DynapipeCudaPlaces dynapipe_cuda_bytes(void* model, const DynapipeBatch* batch, int flags) {
    DynapipeCudaRange* range = (DynapipeCudaRange*)model;
    DYNAPIPE_TREE_MODEL view = range->view;
    DynapipeCudaPlaces places = {};
    if (!range->role.is_share) { return dynapipe_cuda_lay_out(range, &view, batch, flags, NULL, NULL); }
    places.acts = dynapipe_cuda_share(range, batch->num_rows, NULL).num_bytes;
    return places;
}

static int64_t dynapipe_cuda_acts_bytes(void* model, const DynapipeBatch* batch, int flags) {
    return dynapipe_cuda_bytes(model, batch, flags).acts;
}

static int64_t dynapipe_cuda_scratch_bytes(void* model, const DynapipeBatch* batch) {
    return dynapipe_cuda_bytes(model, batch, DYNAPIPE_FORWARD_KEEP).scratch;  // without a head: `output`, too
}

static int64_t dynapipe_cuda_boundary_bytes(void* model, const DynapipeBatch* batch, int is_behind) {
    const DynapipeCudaRange* range = (const DynapipeCudaRange*)model;
    bool is_rows = range->role.is_share || (range->role.feeds && is_behind);
    return (int64_t)sizeof(floatX) * (is_rows ? batch->num_rows : batch->num_tokens) *
           range->view.config.channels;
}

// --- jobs ------------------------------------------------------------------------------------------------

// The view with its tensors in the caller's buffers, for B sequences of T tokens each; without KEEP of the
// first layer.
static DynapipeCudaPlaces dynapipe_cuda_begin(DynapipeCudaJob* job, DynapipeCudaRange* range,
                                              const DynapipeBatch* batch, const void* in, void* acts,
                                              void* scratch, int flags) {
    DYNAPIPE_TREE_MODEL* view = &range->view;
    DynapipeCudaPlaces places = dynapipe_cuda_lay_out(range, view, batch, flags, acts, scratch);
    if (!range->role.has_first) { view->acts.encoded = (floatX*)in; }
    view->config.num_layers = dynapipe_cuda_kept_layers(range, flags);
    dynapipe_cuda_point(range);
    view->batch_size = batch->num_seqs;
    view->seq_len = batch->max_seq_tokens;
    view->inputs = places.inputs;
    view->targets = places.targets;
    *job = {};
    job->stream = dynapipe_cuda.stream;
    job->has_first = range->role.has_first != 0;
    job->has_norm = range->role.has_norm != 0;
    job->has_head = dynapipe_cuda_has_head(range, flags);
    job->head = view->params.DYNAPIPE_TREE_HEAD;
    job->dhead = view->grads.DYNAPIPE_TREE_HEAD;
    job->dlnf = view->grads.lnfw;
    job->dout_bytes = sizeof(floatX) * (size_t)batch->num_tokens * view->config.channels;
    job->row_of = places.row_of;
    job->num_tokens = batch->num_tokens;
    job->channels = view->config.channels;
    job->inputs = places.inputs;
    job->targets = places.targets;
    job->random = batch->token_keys != NULL ? batch->token_keys[0] : 0;  // the same whenever it runs
    return places;
}

// dlogits (num_tokens, Vp): none of tokens that are not supervised, nor after the vocabulary, where their
// classifier leaves the logits: 0 only as long as that part of the table is. row_of: NULL: all are
// supervised.
__global__ static void dynapipe_cuda_mask(floatX* dlogits, const int* row_of, size_t V, size_t Vp) {
    floatX* row = dlogits + blockIdx.x * Vp;
    bool is_row = row_of == NULL || row_of[blockIdx.x] != 0;
    for (size_t i = (is_row ? V : 0) + threadIdx.x; i < Vp; i += blockDim.x) { row[i] = (floatX)0.0f; }
}

// Their classifier, which makes dlogits of logits at once.
static void dynapipe_cuda_classify(const DynapipeCudaRange* range, const DynapipeBatch* batch, floatX* logits,
                                   float* values, const int* targets, const int* row_of, int B, int T,
                                   float* losses) {
    const int V = range->view.config.vocab_size, Vp = range->view.config.padded_vocab_size;
    cudaStream_t stream = dynapipe_cuda.stream;
    cudaCheck(cudaMemsetAsync(values, 0, sizeof(float) * (size_t)B * T, stream));
    fused_classifier(logits, values, batch->loss_scale, targets, B, T, V, Vp, True, stream);
    dynapipe_cuda_mask<<<B * T, 256, 0, stream>>>(logits, row_of, (size_t)V, (size_t)Vp);
    cudaCheck(cudaGetLastError());
    if (losses == NULL) { return; }
    dynapipe_staging_deliver(losses, values, B * T, row_of != NULL ? batch->rows : NULL, batch->num_rows);
}

static void dynapipe_cuda_share_forward(DynapipeCudaRange* range, const DynapipeBatch* batch, const void* in,
                                        void* acts, float* losses) {
    const int R = batch->num_rows;
    DynapipeCudaShare share = dynapipe_cuda_share(range, R, acts);
    matmul_forward_cublaslt(share.logits, (floatX*)in, range->view.params.DYNAPIPE_TREE_HEAD, NULL, 1, R,
                            range->view.config.channels, range->view.config.padded_vocab_size,
                            dynapipe_cuda.stream);
    dynapipe_staging_send(share.targets, batch->targets, R);
    dynapipe_cuda_classify(range, batch, share.logits, share.losses, share.targets, NULL, 1, R, losses);
}

static int dynapipe_cuda_forward(void* model, const DynapipeBatch* batch, const void* in, void* out,
                                 void* acts, void* scratch, float* losses, int flags) {
    DynapipeCudaRange* range = (DynapipeCudaRange*)model;
    DYNAPIPE_TREE_MODEL* view = &range->view;
    const bool has_head = dynapipe_cuda_has_head(range, flags);
    const int num_layers = range->role.num_layers, B = batch->num_seqs, T = batch->max_seq_tokens;
    cudaStream_t stream = dynapipe_cuda.stream;
    DynapipeCudaJob job;
    if (range->role.is_share) {
        if (batch->num_rows > 0 && flags != 0) {
            dynapipe_cuda_share_forward(range, batch, in, acts, losses);
        }
        return 0;
    }
    DynapipeCudaPlaces places = dynapipe_cuda_begin(&job, range, batch, in, acts, scratch, flags);
    const int kept = view->config.num_layers;
    const floatX* last = view->acts.residual3 + (size_t)(kept - 1) * B * T * view->config.channels;
    dynapipe_staging_ids(places.inputs, places.targets, batch);
#ifndef ENABLE_CUDNN
    // they write what lies on and below the diagonal, and multiply by all of it
    cudaCheck(cudaMemsetAsync(view->acts.att, 0,
                              sizeof(floatX) * kept * B * view->config.num_heads * (size_t)T * T, stream));
#endif
    for (int l = 0; l < num_layers; l += kept) {
        if (l > 0) {  // the view goes on to the next layer
            dynapipe_cuda_point(range);
            dynapipe_tensors_advance(&dynapipe_cuda.tensors, &view->params, sizeof(floatX), l);
            dynapipe_cuda_copy_values(places.between, last, job.dout_bytes);
            view->acts.encoded = places.between;
            job.has_first = false;
        }
        job.has_head = has_head && l + kept == num_layers;
        dynapipe_cuda_job = &job;
        DYNAPIPE_TREE(forward)(view, (int*)batch->tokens, B, T);
        dynapipe_cuda_job = NULL;
    }
    dynapipe_cuda_expect(&job, true, num_layers / kept);
    view->config.num_layers = num_layers;
    if (out != NULL && range->role.feeds) {
        dynapipe_cuda_rows<<<batch->num_tokens, 256, 0, stream>>>((floatX*)out, view->acts.lnf, places.row_of,
                                                                  view->config.channels, false);
        cudaCheck(cudaGetLastError());
    } else if (out != NULL) {
        dynapipe_cuda_copy_values(out, last, job.dout_bytes);
    }
    if (has_head) {
        dynapipe_cuda_classify(range, batch, view->acts.output, view->acts.losses, view->targets,
                               places.row_of, B, T, losses);
    }
    return 0;
}

// All of their backward. grad_accum_steps and micro_step: neither the first of a step, which would clear
// gradients, nor the last, which would reduce them.
static int dynapipe_cuda_backward(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                                  const void* dout, void* din, void* scratch) {
    DynapipeCudaRange* range = (DynapipeCudaRange*)model;
    DYNAPIPE_TREE_MODEL* view = &range->view;
    DynapipeCudaJob job;
    if (range->role.is_share) {
        if (batch->num_rows == 0) { return 0; }
        matmul_backward((floatX*)din, view->grads.DYNAPIPE_TREE_HEAD, NULL,
                        dynapipe_cuda_share(range, batch->num_rows, acts).logits, (floatX*)in,
                        view->params.DYNAPIPE_TREE_HEAD, NULL, 1, batch->num_rows, view->config.channels,
                        view->config.padded_vocab_size, dynapipe_cuda.stream);
        return 0;
    }
    dynapipe_cuda_begin(&job, range, batch, in, acts, scratch, DYNAPIPE_CUDA_BACKWARD);
    job.dout = dout;
    if (!range->role.has_first) { view->acts.scratch_btc = (floatX*)din; }
    size_t num_items = (size_t)batch->num_tokens * CEIL_DIV(view->config.channels, 32 * (int)x128::size);
    view->bucket_info = range->role.has_first ? (int4*)dynapipe_staging_take(sizeof(int4) * num_items) : NULL;
    view->workload_indices =
        range->role.has_first ? (int*)dynapipe_staging_take(sizeof(int) * num_items) : NULL;
    dynapipe_cuda_job = &job;
    DYNAPIPE_TREE(backward_and_reduce)(view, (int*)batch->tokens, batch->tokens, 3, 1);
    dynapipe_cuda_job = NULL;
    dynapipe_cuda_expect(&job, false, 1);
    return 0;
}

static void dynapipe_cuda_zero_gradients(void* model) {
    DYNAPIPE_TREE_MODEL* view = &((DynapipeCudaRange*)model)->view;
    cudaCheck(
        cudaMemsetAsync(view->grads_memory, 0, view->num_parameters * sizeof(floatX), dynapipe_cuda.stream));
}

// --- what a step ends with -------------------------------------------------------------------------------

// Sums of squares of some values, one for each block: the same for the same values.
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

static double dynapipe_cuda_sum_squares(const void* values, int64_t num_values) {
    static double *there, here[DYNAPIPE_SQUARE_BLOCKS];
    cudaStream_t stream = dynapipe_cuda.stream;
    if (there == NULL) { there = (double*)dynapipe_cuda_memory(sizeof here); }
    dynapipe_cuda_squares<<<DYNAPIPE_SQUARE_BLOCKS, DYNAPIPE_SQUARE_THREADS, 0, stream>>>(
        there, (const floatX*)values, (size_t)num_values);
    cudaCheck(cudaGetLastError());
    cudaCheck(cudaMemcpyAsync(here, there, sizeof here, cudaMemcpyDeviceToHost, stream));
    cudaCheck(cudaStreamSynchronize(stream));
    double sum = 0.0;
    for (double part : here) { sum += part; }
    return sum;
}

__global__ static void dynapipe_cuda_widen(float* to, const floatX* from, size_t num_values) {
    for (size_t i = blockIdx.x * blockDim.x + threadIdx.x; i < num_values;
         i += (size_t)gridDim.x * blockDim.x) {
        to[i] = (float)from[i];
    }
}

// What their first update would do tensor by tensor, with an empty grid for one that a slice lacks.
static void dynapipe_cuda_begin_state(DYNAPIPE_TREE_MODEL* model) {
    size_t num_bytes = model->num_parameters * sizeof(float);
    cudaCheck(cudaMemset(model->m_memory, 0, num_bytes));
    cudaCheck(cudaMemset(model->v_memory, 0, num_bytes));
    if (model->master_weights != NULL) {  // they begin as the parameters
        dynapipe_cuda_widen<<<1024, 256, 0, dynapipe_cuda.stream>>>(
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

// Only ranges that are measured with it have its state: most are not.
static int dynapipe_cuda_time_update(void* ctx, void* model) {
    (void)ctx;
    DYNAPIPE_TREE_MODEL* view = &((DynapipeCudaRange*)model)->view;
    if (view->m_memory == NULL) {
        int64_t num_bytes = (int64_t)(view->num_parameters * sizeof(float));
        view->m_memory = (float*)dynapipe_cuda_memory(num_bytes);
        view->v_memory = (float*)dynapipe_cuda_memory(num_bytes);
        if (view->use_master_weights) { view->master_weights = (float*)dynapipe_cuda_memory(num_bytes); }
        dynapipe_cuda_begin_state(view);
    }
    dynapipe_cuda_sum_squares(view->grads_memory, (int64_t)view->num_parameters);
    DYNAPIPE_TREE_UPDATE(view);
    return 0;
}

// --- DynapipeBlocks_v1 -----------------------------------------------------------------------------------

static void dynapipe_cuda_drop(void* ctx, void* model) {
    (void)ctx;
    DynapipeCudaRange* range = (DynapipeCudaRange*)model;
    DYNAPIPE_TREE_MODEL* view = &range->view;
    void* arrays[] = {view->params_memory, view->grads_memory, view->m_memory, view->v_memory,
                      view->master_weights};
    for (void* array : arrays) { cudaCheck(cudaFree(array)); }
    free(range);
}

static int dynapipe_cuda_make(void* ctx, DynapipeRange blocks, int has_values, void** model,
                              DynapipeParams_v1* params) {
    (void)ctx;
    DynapipeCudaRange* range = (DynapipeCudaRange*)mallocCheck(sizeof(DynapipeCudaRange));
    DynapipeSlice slice = dynapipe_tensors_slice(&dynapipe_cuda.tensors, &blocks, 1);
    DYNAPIPE_TREE_MODEL part = *dynapipe_cuda.whole;
    part.params_memory = part.grads_memory = NULL;
    part.m_memory = part.v_memory = part.master_weights = NULL;
    dynapipe_cuda_shrink(&part, &slice);
    if (has_values) {
        part.params_memory = dynapipe_cuda_slice_values(&slice);
        part.grads_memory = dynapipe_cuda_memory(slice.num_values * (int64_t)sizeof(floatX));
    }
    dynapipe_cuda_range(range, &part, slice, blocks, 0);
    if (has_values) { dynapipe_cuda_zero_gradients(range); }
    *params = dynapipe_cuda_params(range);
    *model = range;
    return 0;
}

static int64_t dynapipe_cuda_common_divisor(int64_t a, int64_t b) {
    return b == 0 ? a : dynapipe_cuda_common_divisor(b, a % b);
}

// Of a tree whose products take whole tiles only, their tokens: a power of 2. Residual sums work in rows of 8.
enum { DYNAPIPE_CUDA_SUM_TOKENS = 16 };
#ifndef DYNAPIPE_TREE_TOKENS_MULTIPLE
#define DYNAPIPE_TREE_TOKENS_MULTIPLE DYNAPIPE_CUDA_SUM_TOKENS
#endif
static_assert((DYNAPIPE_TREE_TOKENS_MULTIPLE & (DYNAPIPE_TREE_TOKENS_MULTIPLE - 1)) == 0,
              "DYNAPIPE_TREE_TOKENS_MULTIPLE is a power of 2");

// What their kernels ask: attention works in fours of a window's tokens and counts in int; GELU in whole
// blocks of 512 times 16 bytes, of (tokens, width of the feed-forward).
static DynapipeShapes_v1 dynapipe_cuda_shapes(void) {
    enum { GELU_BLOCK = 512 * (int)x128::size };
    const DYNAPIPE_TREE_CONFIG* config = &dynapipe_cuda.config;
    int64_t width = dynapipe_cuda.tensors.count[DYNAPIPE_CUDA_SLOT(fcprojw)] / config->channels;
    int64_t tokens = GELU_BLOCK / dynapipe_cuda_common_divisor(GELU_BLOCK, width);
    DynapipeShapes_v1 shapes = {};
    shapes.padded = 1;
#ifdef ENABLE_CUDNN
    shapes.seq_multiple = 64;                                               // a graph for each shape
#else
    shapes.seq_multiple = 8;
    shapes.max_squares = INT32_MAX / config->num_heads;
#endif
    // powers of 2
    shapes.tokens_multiple = (int32_t)std::max(tokens, (int64_t)DYNAPIPE_TREE_TOKENS_MULTIPLE);
    shapes.head_has_layer = 1;
    // a share has any number of rows
    shapes.head_by_rows =
        DYNAPIPE_TREE_TOKENS_MULTIPLE <= DYNAPIPE_CUDA_SUM_TOKENS &&
        (dynapipe_cuda.tensors.where[DYNAPIPE_CUDA_SLOT(DYNAPIPE_TREE_HEAD)] & DYNAPIPE_TENSOR_FIRST) != 0;
    return shapes;
}

static DynapipeBlocks_v1 dynapipe_cuda_blocks(void) {
    const DYNAPIPE_TREE_MODEL* model = dynapipe_cuda.whole;
    const char* type = sizeof(floatX) == 4 ? "fp32" : PRECISION_MODE == PRECISION_BF16 ? "bf16" : "fp16";
    snprintf(dynapipe_cuda.signature, sizeof dynapipe_cuda.signature,
             "%s C %d NH %d Vp %d layer %lld %s recompute %d gelu %d %s", DYNAPIPE_TREE_NAME,
             model->config.channels, model->config.num_heads, model->config.padded_vocab_size,
             (long long)dynapipe_cuda.tensors.count[DYNAPIPE_CUDA_SLOT(fcw)], type, model->recompute,
             model->gelu_fusion, deviceProp.name);
    DynapipeModel_v1* api = &dynapipe_cuda.api;
    *api = {};
    api->name = DYNAPIPE_TREE_NAME;
    api->acts_bytes = dynapipe_cuda_acts_bytes;
    api->scratch_bytes = dynapipe_cuda_scratch_bytes;
    api->boundary_bytes = dynapipe_cuda_boundary_bytes;
    api->forward = dynapipe_cuda_forward;
    api->backward_inputs = dynapipe_cuda_backward;
    api->zero_gradients = dynapipe_cuda_zero_gradients;
    api->finish = dynapipe_cuda_finish;
    DynapipeBlocks_v1 blocks = {};
    blocks.api = api;
    blocks.signature = dynapipe_cuda.signature;
    blocks.num_layers = model->config.num_layers;
    blocks.vocab = model->config.vocab_size;
    blocks.padded_vocab = model->config.padded_vocab_size;
    blocks.max_seq_tokens = dynapipe_cuda.max_tokens;
    blocks.optimizer_bytes = (model->use_master_weights ? 3 : 2) * (int32_t)sizeof(float);
    blocks.shapes = dynapipe_cuda_shapes();
    blocks.make = dynapipe_cuda_make;
    blocks.drop = dynapipe_cuda_drop;
    blocks.update = dynapipe_cuda_time_update;
    return blocks;
}

// --- is this tree what the adapter takes it for? ---------------------------------------------------------
// Before the model is cut, on every rank: its tables of tensors; its own gpt2_validate() against the plugin's
// forward, each loss of a small made-up batch; and that its backward makes the calls that it is known by.

// llm.c's classifier never ends where a row has fewer than 1024 packs of 16 bytes. A tree with another
// defines this as 1.
#ifndef DYNAPIPE_TREE_LEAST_VOCAB
#define DYNAPIPE_TREE_LEAST_VOCAB (1024 * (int)x128::size)
#endif

// Their model lies as their table has it, pointer after pointer.
static void dynapipe_cuda_check_params(void) {
    const DYNAPIPE_TREE_MODEL* model = dynapipe_cuda.whole;
    size_t sizes[2][NUM_PARAMETER_TENSORS], all[NUM_PARAMETER_TENSORS], sizeofs[NUM_PARAMETER_TENSORS],
        begin = 0;
    int32_t where[NUM_PARAMETER_TENSORS] = {};  // of the layers, or unknown
    DYNAPIPE_TREE_CONFIG config = model->config;
    if (config.vocab_size < DYNAPIPE_TREE_LEAST_VOCAB) {
        dynapipe_llmc_die(dynapipe_cuda_run,
                          "llm.c's fused_classifier() never ends on so small a vocabulary (under 4096 ids "
                          "in float32, 8192 in 16 bits) ---> a larger one");
    }
    for (int L = 1; L <= 2; L++) {
        config.num_layers = L;
        fill_in_parameter_sizes(sizes[L - 1], sizeofs, config);
    }
    where[DYNAPIPE_CUDA_SLOT(wte)] = where[DYNAPIPE_CUDA_SLOT(DYNAPIPE_TREE_POSITIONS)] =
        DYNAPIPE_TENSOR_FIRST;
    where[DYNAPIPE_CUDA_SLOT(lnfw)] = where[DYNAPIPE_CUDA_SLOT(lnfb)] = DYNAPIPE_TENSOR_NORM;
    where[DYNAPIPE_CUDA_SLOT(DYNAPIPE_TREE_HEAD)] |= DYNAPIPE_TENSOR_HEAD;
    dynapipe_llmc_check(dynapipe_cuda_run,
                        dynapipe_tensors_init(&dynapipe_cuda.tensors, NUM_PARAMETER_TENSORS,
                                              model->config.num_layers, sizes[0], sizes[1], where,
                                              model->num_parameters));
    fill_in_parameter_sizes(all, sizeofs, model->config);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; begin += all[i++]) {
        const floatX* pointer = ((floatX* const*)&model->params)[i];
        if (pointer == (const floatX*)model->params_memory + begin && all[i] == model->param_elements[i] &&
            sizeofs[i] == sizeof(floatX)) {
            continue;
        }
        dynapipe_llmc_die(
            dynapipe_cuda_run,
            "pointer %d of ParameterTensors is not at that tensor of fill_in_parameter_sizes() ---> the same "
            "order and sizes in both, of floatX, without gaps",
            i);
    }
}

// Their table of activations has those that a range treats in its own way, once each.
static void dynapipe_cuda_check_acts(void) {
    const DYNAPIPE_TREE_MODEL* model = dynapipe_cuda.whole;
    ActivationTensors acts;
    TensorSpec specs[NUM_ACTIVATION_TENSORS];
    void* const known[] = {&acts.encoded, &acts.att,      &acts.residual3,   &acts.lnf,         &acts.losses,
                           &acts.output,  &acts.fch_gelu, &acts.scratch_btc, &acts.scratch_bt4c};
    fill_in_activation_sizes(&acts, specs, 16, 16, model->config, model->recompute);
    for (void* tensor : known) {
        int num = 0;
        for (const TensorSpec& spec : specs) { num += (void*)spec.ptr == tensor; }
        if (num == 1) { continue; }
        dynapipe_llmc_die(
            dynapipe_cuda_run,
            "fill_in_activation_sizes() does not name pointer %d of ActivationTensors once ---> each "
            "activation in its table",
            (int)((char*)tensor - (char*)&acts) / (int)sizeof(void*));
    }
}

// Device memory until the end of its scope.
struct DynapipeCudaZeros {
    char* memory;
    explicit DynapipeCudaZeros(int64_t num_bytes) : memory((char*)dynapipe_cuda_memory(num_bytes)) {
        cudaCheck(cudaMemset(memory, 0, (size_t)std::max(num_bytes, (int64_t)1)));
        cudaCheck(cudaDeviceSynchronize());
    }
    DynapipeCudaZeros(const DynapipeCudaZeros&) = delete;
    ~DynapipeCudaZeros() {
        cudaCheck(cudaFree(memory));
    }
};

// Of the whole model, with activations to throw away.
static std::vector<float> dynapipe_cuda_their_losses(const DynapipeBatch* batch) {
    DYNAPIPE_TREE_MODEL view = *dynapipe_cuda.whole;
    TensorSpec specs[NUM_ACTIVATION_TENSORS];
    size_t B = (size_t)batch->num_seqs, T = (size_t)batch->max_seq_tokens;
    int64_t num_bytes = 0, id_bytes = (int64_t)(B * T * sizeof(int)), at = 0;
    fill_in_activation_sizes(&view.acts, specs, B, T, view.config, view.recompute);
    for (const TensorSpec& spec : specs) {
        dynapipe_cuda_place(NULL, &num_bytes, (int64_t)(spec.size * sizeof_dtype(spec.type)));
    }
    DynapipeCudaZeros acts(num_bytes), inputs(id_bytes), targets(id_bytes);
    for (const TensorSpec& spec : specs) {
        *spec.ptr = dynapipe_cuda_place(acts.memory, &at, (int64_t)(spec.size * sizeof_dtype(spec.type)));
    }
    view.batch_size = (int)B;
    view.seq_len = (int)T;
    view.inputs = (int*)inputs.memory;
    view.targets = (int*)targets.memory;
    view.cpu_losses = (float*)dynapipe_staging_take(B * T * sizeof(float));
    DYNAPIPE_TREE(validate)(&view, batch->tokens, batch->targets, B, T);
    std::vector<float> losses(B * T);
    cudaCheck(cudaMemcpy(losses.data(), view.acts.losses, B * T * sizeof(float), cudaMemcpyDeviceToHost));
    return losses;
}

// Of two ranges, cut after layer `cut`; 0: of one. Their values are the whole model's, where they are.
static std::vector<float> dynapipe_cuda_our_losses(const DynapipeBatch* batch, int cut, int flags) {
    const int end = dynapipe_cuda.tensors.num_layers + 2;
    const DynapipeRange all = {0, end, 0, 0, 0},
                        parts[2] = {{0, cut + 1, 0, 0, 0}, {cut > 0 ? cut + 1 : 0, end, 0, 0, 0}};
    const DynapipeSlice slice = dynapipe_tensors_slice(&dynapipe_cuda.tensors, &all, 1);
    std::vector<float> losses((size_t)batch->num_tokens);
    DynapipeCudaZeros between((int64_t)sizeof(floatX) * batch->num_tokens * dynapipe_cuda.config.channels);
    for (int i = cut > 0 ? 0 : 1; i < 2; i++) {
        DynapipeCudaRange range;
        dynapipe_cuda_range(&range, dynapipe_cuda.whole, slice, parts[i], i == 0 ? 0 : cut);
        DynapipeCudaZeros acts(dynapipe_cuda_acts_bytes(&range, batch, flags));
        DynapipeCudaZeros scratch(dynapipe_cuda_scratch_bytes(&range, batch));
        dynapipe_cuda_forward(&range, batch, cut > 0 && i == 1 ? between.memory : NULL,
                              i == 0 ? between.memory : NULL, acts.memory, scratch.memory,
                              i == 1 ? losses.data() : NULL, flags);
        cudaCheck((cudaError_t)dynapipe_cuda_finish(&range));
    }
    return losses;
}

// On a model of one layer (gradients of all may be more than there is room for), whose values are of no
// interest.
static void dynapipe_cuda_try_backward(const DynapipeBatch* batch) {
    const int num_layers = dynapipe_cuda.tensors.num_layers;
    const DynapipeRange all = {0, 3, 0, 0, 0};
    void* range;
    DynapipeParams_v1 params;
    dynapipe_cuda.tensors.num_layers = 1;
    dynapipe_cuda_make(NULL, all, 1, &range, &params);
    DynapipeCudaZeros acts(dynapipe_cuda_acts_bytes(range, batch, DYNAPIPE_CUDA_BACKWARD));
    DynapipeCudaZeros scratch(dynapipe_cuda_scratch_bytes(range, batch));
    dynapipe_cuda_forward(range, batch, NULL, NULL, acts.memory, scratch.memory, NULL,
                          DYNAPIPE_CUDA_BACKWARD);
    dynapipe_cuda_backward(range, batch, NULL, acts.memory, NULL, NULL, scratch.memory);
    cudaCheck((cudaError_t)dynapipe_cuda_finish(range));
    dynapipe_cuda_drop(NULL, range);
    dynapipe_cuda.tensors.num_layers = num_layers;
}

static void dynapipe_cuda_check_tree(const DynapipeShapes_v1* shapes) {
    enum { MOST_TOKENS = 64 };  // of a window
    const int multiple = shapes->seq_multiple, cut = dynapipe_cuda.tensors.num_layers / 2;
    const double tolerance = sizeof(floatX) == 4 ? 1e-4 : 2e-2;
    int T = std::max(std::min((int)MOST_TOKENS, dynapipe_cuda.max_tokens) / multiple, 1) * multiple;
    int B = shapes->tokens_multiple / (int)dynapipe_cuda_common_divisor(shapes->tokens_multiple, T);
    const std::vector<int> lengths((size_t)std::max(B, 2), T);
    DynapipeBatch* batch =
        dynapipe_llmc_made_up(lengths.data(), (int)lengths.size(), dynapipe_cuda.config.vocab_size);
    std::vector<float> theirs = dynapipe_cuda_their_losses(batch);
    for (int i = 0; i < 2; i++) {  // whole, and cut without a backward to come
        std::vector<float> ours = dynapipe_cuda_our_losses(
            batch, i * cut, DYNAPIPE_FORWARD_HEAD | (i == 0 ? DYNAPIPE_FORWARD_KEEP : 0));
        for (size_t k = 0; k < ours.size(); k++) {
            dynapipe_llmc_expect_close(dynapipe_cuda_run, (double)ours[k], (double)theirs[k],
                                       tolerance * std::max(1.0, (double)theirs[k]),
                                       "a made-up token's loss by " DYNAPIPE_TREE_NAME "_validate()");
        }
    }
    dynapipe_cuda_try_backward(batch);
    free(batch);
    if (dynapipe_llmc_options(dynapipe_cuda_run)->check_model != 0 && multi_gpu_config.process_rank == 0) {
        printf("ok   losses are those of %s_validate(), in one range and in two\n", DYNAPIPE_TREE_NAME);
    }
}

// === main() =========================================================================================
/*
In main():

    DYNAPIPE_OPEN(argc, argv)                        // first; takes the --options out of argv
    DYNAPIPE_BATCH(tokens_per_fwdbwd, total_batch_size)  // -d may be any number: one call makes a whole step
    ...                                              // model and loaders are there:
    DYNAPIPE_START(model, max_steps, total_batch_size, val_max_steps, overfit_single_batch, output_log_dir)
    if (DYNAPIPE_WHOLE(...)) { ... }                 // what needs the whole model on this rank
    DYNAPIPE_TOKENS(tokens_processed)                // of a step

The loop's calls keep their names: multi_gpu_config_*: the plugin's ranks; dataloader_*: nothing, the plugin
has the data
(-i, -j: sample files or llm.c's); gpt2_forward() and gpt2_backward_and_reduce() on training tokens: together
one step of all ranks, its loss in mean_loss; gpt2_validate(): the validation; the norm: of all ranks;
gpt2_update(): theirs, on this rank's slice, and the end of the step (where it is passed over, the next call
of all ranks is that); write_checkpoint(), load_state(): files of one process, written and read by all. With
--fixed-length all of them are theirs. Without -DDYNAPIPE the words above mean nothing and cost nothing.
*/

// num_processes is what main() reckons with; their own communication sees none of it, nor NCCL's handles.
static MultiGpuConfig dynapipe_cuda_config(void) {
    MultiGpuConfig config = {};
    config.process_rank = dynapipe_rank(dynapipe_cuda_session());
    config.num_processes = dynapipe_num_ranks(dynapipe_cuda_session());
    cudaCheck(cudaGetDevice(&config.local_device_idx));
    return config;
}

static int dynapipe_cuda_zero_stage(int zero_stage) {
    if (!dynapipe_cuda_is_on() || zero_stage == 0) { return zero_stage; }
    dynapipe_llmc_say_once(dynapipe_cuda_run,
                           "| ZeRO with the plugin: their update takes whole tensors, so each replica "
                           "keeps all of its stage (-z 0)");
    return 0;
}

// The first is for training, the second for validation. Nothing is opened.
static void dynapipe_cuda_loader(DataLoader* loader, const char* pattern, int B, int T) {
    memset((void*)loader, 0, sizeof *loader);
    (dynapipe_cuda.train_loader == NULL ? dynapipe_cuda.train_loader : dynapipe_cuda.val_loader) = loader;
    dynapipe_cuda.loader_tokens = T;
    dynapipe_llmc_loader(dynapipe_cuda_run, pattern, B, T);
}

// What a model file of theirs begins with: their writer, on a model of all layers and no values.
static std::string dynapipe_cuda_header(const std::string& beside) {
    std::string path = beside + ".header" + std::to_string(multi_gpu_config.process_rank), header;
    DYNAPIPE_TREE_MODEL empty = *dynapipe_cuda.whole;
    empty.config.num_layers = dynapipe_cuda.tensors.num_layers;
    empty.num_parameters_bytes = 0;
    DYNAPIPE_TREE(write_to_checkpoint)(&empty, path.c_str());
    FILE* file = fopenCheck(path.c_str(), "rb");
    for (int c = fgetc(file); c != EOF; c = fgetc(file)) { header += (char)c; }
    fcloseCheck(file);
    remove(path.c_str());
    return header;
}

static void dynapipe_cuda_arrays(DynapipeLlmcArrays* out, const char* beside) {
    static std::string header;
    DYNAPIPE_TREE_MODEL* model = dynapipe_cuda.whole;
    *out = {};
    out->value_bytes = (int32_t)sizeof(floatX);
    out->params = model->params_memory;
    out->grads = model->grads_memory;
    out->m = model->m_memory;
    out->v = model->v_memory;
    out->master = model->master_weights;
    out->rng_states[0] = &model->rng_state;
    out->rng_states[1] = &model->rng_state_last_update;
    if (beside == NULL) { return; }
    header = dynapipe_cuda_header(beside);
    out->header = header.data();
    out->header_bytes = (int32_t)header.size();
    cudaCheck(cudaDeviceSynchronize());
}

static void dynapipe_cuda_to_host(void* host, const void* values, size_t num_bytes) {
    cudaCheck(cudaMemcpy(host, values, num_bytes, cudaMemcpyDeviceToHost));
}

static void dynapipe_cuda_from_host(void* values, const void* host, size_t num_bytes) {
    cudaCheck(cudaMemcpy(values, host, num_bytes, cudaMemcpyHostToDevice));
}

// Their model becomes what this rank has. Where that is the whole model, its parameters stay where they are.
static void dynapipe_cuda_cut(const DynapipeRange* ranges, int num_ranges) {
    DYNAPIPE_TREE_MODEL* model = dynapipe_cuda.whole;
    DynapipeSlice* slice = &dynapipe_cuda.slice;
    *slice = dynapipe_tensors_slice(&dynapipe_cuda.tensors, ranges, num_ranges);
    if (slice->num_values < dynapipe_tensors_total(&dynapipe_cuda.tensors) || slice->num_runs > 1) {
        void* values = dynapipe_cuda_slice_values(slice);
        cudaCheck(cudaFree(model->params_memory));
        model->params_memory = values;
    }
    dynapipe_cuda_shrink(model, slice);
    dynapipe_tensors_point(&dynapipe_cuda.tensors, slice, &model->params, model->params_memory,
                           sizeof(floatX), 0);
    dynapipe_cuda.num_ranges = num_ranges;
    for (int i = 0, num_layers = 0; i < num_ranges; num_layers += dynapipe_cuda.mine[i++].role.num_layers) {
        dynapipe_cuda_range(&dynapipe_cuda.mine[i], model, *slice, ranges[i], num_layers);
    }
}

// Model and patterns are there: opens the data, measures, cuts.
static void dynapipe_cuda_start(DYNAPIPE_TREE_MODEL* model, int max_steps, int64_t batch_tokens,
                                int val_max_batches, int overfit, const char* log_dir) {
    if (!dynapipe_cuda_is_on()) { return; }
    dynapipe_cuda.whole = model;
    dynapipe_cuda.config = model->config;
    dynapipe_cuda.stream = main_stream;
    dynapipe_cuda.max_tokens = std::min(dynapipe_cuda.loader_tokens, model->config.max_seq_len / 8 * 8);
    dynapipe_cuda.batch_tokens = batch_tokens;
    dynapipe_cuda.val_max_batches = val_max_batches;
    dynapipe_cuda_check_params();
    dynapipe_cuda_check_acts();
    dynapipe_llmc_check(dynapipe_cuda_run, dynapipe_use_stream(dynapipe_cuda_session(), main_stream));
    DynapipeRun_v1 about = {};
    about.batch_tokens = batch_tokens;
    about.max_seq_tokens = dynapipe_cuda.max_tokens;
    about.num_steps = max_steps;
    about.overfit = overfit;
    dynapipe_llmc_open_data(dynapipe_cuda_run, &about, model->config.max_seq_len, model->config.vocab_size);
    dynapipe_cuda.val_loader->num_tokens = (size_t)batch_tokens;  // so that they count one batch
    dynapipe_cuda.train_loader->num_tokens =
        (size_t)dynapipe_llmc_num_steps(dynapipe_cuda_run) * (size_t)batch_tokens;
    DYNAPIPE_TREE_PREPARE(model, dynapipe_cuda.max_tokens);
    DynapipeBlocks_v1 blocks = dynapipe_cuda_blocks();
    dynapipe_cuda_check_tree(&blocks.shapes);
    DynapipeRange ranges[DYNAPIPE_MAX_RANGES];
    dynapipe_cuda_cut(ranges, dynapipe_llmc_place(dynapipe_cuda_run, &blocks, ranges));
    DynapipeLlmcTree tree = {&dynapipe_cuda.tensors,    &dynapipe_cuda.slice,  dynapipe_cuda_arrays,
                             dynapipe_cuda_sum_squares, dynapipe_cuda_to_host, dynapipe_cuda_from_host};
    dynapipe_llmc_begin(dynapipe_cuda_run, &tree, log_dir);
}

// Their state for the slice. Activations of their own serve samples of text, which only a whole model has.
static void dynapipe_cuda_allocate(DYNAPIPE_TREE_MODEL* model, int B, int T) {
    bool is_ours = dynapipe_cuda_is_on();
    DYNAPIPE_TREE(allocate_state)
    (model, is_ours && dynapipe_num_stages(dynapipe_cuda_session()) > 1 ? 1 : B, T);
    if (!is_ours) { return; }
    model->rng_state -= (unsigned long long)multi_gpu_config.process_rank;  // all ranks round alike
    dynapipe_cuda_begin_state(model);
    for (int i = 0; i < dynapipe_cuda.num_ranges; i++) {
        DynapipeCudaRange* mine = &dynapipe_cuda.mine[i];
        mine->view = *model;
        mine->view.config.num_layers = mine->role.num_layers;
        dynapipe_cuda_point(mine);
        DynapipeParams_v1 params = dynapipe_cuda_params(mine);
        dynapipe_llmc_attach(dynapipe_cuda_run, i, &dynapipe_cuda.api, mine, &params);
    }
}

static void dynapipe_cuda_save(const char* directory) {
    dynapipe_llmc_end_step(dynapipe_cuda_run);
    dynapipe_llmc_save(dynapipe_cuda_run, directory);
    dynapipe_llmc_end_if_told(dynapipe_cuda_run);
}

// filename: of their state in the checkpoint's folder; which step is looked up there.
static void dynapipe_cuda_resume(int* step, const char* filename) {
    std::string directory(filename);
    directory.resize(directory.rfind('/'));
    dynapipe_llmc_resume(dynapipe_cuda_run, directory.c_str());
    *step = dynapipe_llmc_num_done(dynapipe_cuda_run);
}

static void dynapipe_cuda_step(DYNAPIPE_TREE_MODEL* model, int micro_step) {
    if (micro_step > 0) { return; }
    dynapipe_llmc_end_step(dynapipe_cuda_run);
    dynapipe_llmc_end_if_told(dynapipe_cuda_run);
    model->mean_loss = dynapipe_llmc_step(dynapipe_cuda_run);
}

// A z-score of theirs: of the loss, or, after the norm, of that.
static double dynapipe_cuda_z(double z) {
    DynapipeReport_v1* report = dynapipe_cuda_is_on() ? dynapipe_llmc_report(dynapipe_cuda_run) : NULL;
    if (report != NULL) { (std::isnan(report->norm) ? report->loss_z : report->norm_z) = (float)z; }
    return z;
}

template <class Rate, class... Rest>
static void dynapipe_cuda_update(DYNAPIPE_TREE_MODEL* model, Rate rate, Rest... rest) {
    DYNAPIPE_TREE(update)(model, rate, rest...);
    if (!dynapipe_cuda_is_on()) { return; }
    dynapipe_llmc_report(dynapipe_cuda_run)->lr = (float)rate;
    dynapipe_llmc_end_step(dynapipe_cuda_run);
    dynapipe_llmc_save_if_due(dynapipe_cuda_run);
}

// That a rank works on, for the flops of its slice.
static int dynapipe_cuda_rank_tokens(int num_tokens) {
    if (!dynapipe_cuda_is_on()) { return num_tokens; }
    return (int)(dynapipe_cuda.batch_tokens / dynapipe_num_replicas(dynapipe_cuda_session()));
}

static float dynapipe_cuda_validate(void) {
    dynapipe_llmc_end_step(dynapipe_cuda_run);
    DynapipeDataInfo_v1 info;  // -m batches as they are in training
    dynapipe_data_info(dynapipe_cuda_session(), &info);
    double num_samples = (double)dynapipe_cuda.val_max_batches * (double)dynapipe_cuda.batch_tokens *
                         (double)info.num_samples / (double)info.num_tokens;
    return dynapipe_llmc_validate(dynapipe_cuda_run, num_samples < 2e9 ? (int32_t)num_samples : -1);
}

// While the stream still lives.
static void dynapipe_cuda_close(void) {
    dynapipe_llmc_end_step(dynapipe_cuda_run);
    cudaCheck(cudaDeviceSynchronize());
    for (auto& chunk : dynapipe_staging.chunks) { cudaCheck(cudaFreeHost(chunk.first)); }
    dynapipe_staging.chunks.clear();
    const int status = dynapipe_llmc_close(dynapipe_cuda_run);
    dynapipe_cuda_run = NULL;
    if (status != 0) { exit(status); }  // their main() would return 0
}

// --- their names in main() -------------------------------------------------------------------------------

#define DYNAPIPE_OPEN(argc, argv) dynapipe_cuda_run = dynapipe_llmc_open(&(argc), &(argv), 0);
#define DYNAPIPE_BATCH(tokens_per_call, batch_tokens) \
    if (dynapipe_cuda_is_on() && (batch_tokens) > 0) { tokens_per_call = batch_tokens; }
#define DYNAPIPE_TOKENS(tokens) \
    if (dynapipe_cuda_is_on()) { tokens = (size_t)dynapipe_cuda.batch_tokens; }
#define DYNAPIPE_START(model, ...) dynapipe_cuda_start(&(model), __VA_ARGS__);
#define DYNAPIPE_WHOLE(condition) \
    ((condition) && (!dynapipe_cuda_is_on() || dynapipe_llmc_is_whole(dynapipe_cuda_run)))

#define DYNAPIPE_OR(ours, theirs) (dynapipe_cuda_is_on() ? (ours) : (theirs))
#define multi_gpu_config_init(...) DYNAPIPE_OR(dynapipe_cuda_config(), multi_gpu_config_init(__VA_ARGS__))
#define multi_gpu_config_free(config) DYNAPIPE_OR(dynapipe_cuda_close(), multi_gpu_config_free(config))
#define set_zero_configs(config, zero_stage, ...) \
    set_zero_configs(config, dynapipe_cuda_zero_stage(zero_stage), __VA_ARGS__)
#define dataloader_init(loader, pattern, B, T, ...)          \
    DYNAPIPE_OR(dynapipe_cuda_loader(loader, pattern, B, T), \
                dataloader_init(loader, pattern, B, T, __VA_ARGS__))
#define dataloader_reset(loader) \
    DYNAPIPE_OR(dynapipe_llmc_end_if_told(dynapipe_cuda_run), dataloader_reset(loader))
#define dataloader_next_batch(loader) \
    DYNAPIPE_OR(dynapipe_llmc_end_if_told(dynapipe_cuda_run), dataloader_next_batch(loader))
#define dataloader_free(loader) DYNAPIPE_OR((void)0, dataloader_free(loader))
#define tokenizer_init(tokenizer, path) /* without a file as theirs, but unsaid */ \
    (dynapipe_cuda_is_on() && access(path, R_OK) != 0                             \
         ? (void)memset((void*)(tokenizer), 0, sizeof *(tokenizer))               \
         : tokenizer_init(tokenizer, path))
#define update_detector(...) dynapipe_cuda_z(update_detector(__VA_ARGS__))
#define write_checkpoint(directory, step, model, ...) \
    DYNAPIPE_OR(dynapipe_cuda_save(directory), write_checkpoint(directory, step, model, __VA_ARGS__))
#define load_state(step, model, loader, filename) \
    DYNAPIPE_OR(dynapipe_cuda_resume(step, filename), load_state(step, model, loader, filename))

// For both families' names; only the tree's own are functions. Calls without tokens are those on the
// plugin's.
#define DYNAPIPE_UNLESS_OURS(inputs, ours, theirs) \
    (dynapipe_cuda_is_on() && (inputs) == NULL ? (ours) : (theirs))
#define gpt2_allocate_state(model, B, T) dynapipe_cuda_allocate(model, B, T)
#define gpt2_forward(model, inputs, ...) \
    DYNAPIPE_UNLESS_OURS(inputs, (void)0, gpt2_forward(model, inputs, __VA_ARGS__))
#define gpt2_backward_and_reduce(model, inputs, targets, num_steps, micro_step) \
    DYNAPIPE_UNLESS_OURS(inputs, dynapipe_cuda_step(model, micro_step),         \
                         gpt2_backward_and_reduce(model, inputs, targets, num_steps, micro_step))
#define gpt2_validate(model, inputs, ...) \
    DYNAPIPE_UNLESS_OURS(inputs, dynapipe_cuda_validate(), gpt2_validate(model, inputs, __VA_ARGS__))
#define gpt2_calculate_grad_norm(model, config) \
    DYNAPIPE_OR(dynapipe_llmc_norm(dynapipe_cuda_run), gpt2_calculate_grad_norm(model, config))
#define gpt2_update(...) dynapipe_cuda_update(__VA_ARGS__)
#define gpt2_estimate_mfu(model, num_tokens, seconds) \
    gpt2_estimate_mfu(model, dynapipe_cuda_rank_tokens(num_tokens), seconds)
#define llama3_allocate_state(model, B, T) dynapipe_cuda_allocate(model, B, T)
#define llama3_forward(model, inputs, ...) \
    DYNAPIPE_UNLESS_OURS(inputs, (void)0, llama3_forward(model, inputs, __VA_ARGS__))
#define llama3_backward_and_reduce(model, inputs, targets, num_steps, micro_step) \
    DYNAPIPE_UNLESS_OURS(inputs, dynapipe_cuda_step(model, micro_step),           \
                         llama3_backward_and_reduce(model, inputs, targets, num_steps, micro_step))
#define llama3_validate(model, inputs, ...) \
    DYNAPIPE_UNLESS_OURS(inputs, dynapipe_cuda_validate(), llama3_validate(model, inputs, __VA_ARGS__))
#define llama3_calculate_grad_norm(model, config) \
    DYNAPIPE_OR(dynapipe_llmc_norm(dynapipe_cuda_run), llama3_calculate_grad_norm(model, config))
#define llama3_update(...) dynapipe_cuda_update(__VA_ARGS__)
#define llama3_estimate_mfu(model, num_tokens, seconds) \
    llama3_estimate_mfu(model, dynapipe_cuda_rank_tokens(num_tokens), seconds)

#endif
#endif

#if !defined DYNAPIPE && defined DYNAPIPE_MAIN
#define DYNAPIPE_OPEN(argc, argv)
#define DYNAPIPE_BATCH(tokens_per_call, batch_tokens)
#define DYNAPIPE_START(...)
#define DYNAPIPE_TOKENS(tokens)
#define DYNAPIPE_WHOLE(condition) condition
#endif
