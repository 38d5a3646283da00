/*
llmc_cuda.cuh -- llm.c's CUDA trainer on a slice of its model: the calls of gpt2_forward(),
gpt2_backward_and_reduce() and gpt2_update() that a slice makes in another way.

Included in the tree's train_gpt2.cu behind its other headers, with llmc_cuda_main.cuh before main(). What
lies between is not edited: the calls named below are wrapped by macros that do as ever unless a slice is at
work.

Embedding: of the range that has it only. Products with the head's weights, the gradient of the final norm,
the classifier: of the range with the head; elsewhere the gradient of the range's output takes their place.
Each of these is counted in every job, so that a tree which calls it by another name is told so.

cudaMemcpy, cudaMemset and cudaDeviceSynchronize go in the order of the stream, while the host goes on.
random_u32 has a state of its own in a job: the model's seeds the rounding of parameters, the same on every
rank. adamw_update and init_from_master pass over a tensor that a slice lacks: it has no values, which no grid
has either. matmul_backward adds to the gradient of a bias also where llm.c's overwrites it.

A slice is a model struct of theirs ("view") with its layers only; its activations have the sizes that their
own table says, so what a fork adds there works. Without -DDYNAPIPE this file is empty. Other names than
llm.c's (llmc_llama3.cuh): DYNAPIPE_TREE and what stands with it, defined before.
*/
#pragma once
#ifdef DYNAPIPE

#include "llmc_run.h"

#ifndef DYNAPIPE_TREE
#define DYNAPIPE_TREE(function) gpt2_##function  // their functions on a model
#define DYNAPIPE_TREE_MODEL GPT2                 // its struct
#define DYNAPIPE_TREE_CONFIG GPT2Config
#define DYNAPIPE_TREE_NAME "gpt2"
#define DYNAPIPE_TREE_HEAD wte           // the tensor that logits are made with
#define DYNAPIPE_TREE_POSITIONS wpe      // the embedding's second tensor; wte: it has none
#define DYNAPIPE_TREE_PREPARE(model, T)  // what their allocate_state() makes besides
#endif

// Calls that a job must see: without one of them a slice would do something else than the whole model.
enum {
    DYNAPIPE_CUDA_ENCODER,
    DYNAPIPE_CUDA_HEAD,
    DYNAPIPE_CUDA_CLASSIFIER,
    DYNAPIPE_CUDA_HEAD_BACKWARD,
    DYNAPIPE_CUDA_NORM_BACKWARD,
    DYNAPIPE_CUDA_ENCODER_BACKWARD,
    DYNAPIPE_CUDA_NUM_CALLS,
    DYNAPIPE_CUDA_NUM_FORWARD_CALLS = DYNAPIPE_CUDA_CLASSIFIER  // theirs; the others are of their backward
};

// The call of their forward or backward that is running.
typedef struct {
    int calls[DYNAPIPE_CUDA_NUM_CALLS];
    cudaStream_t stream;
    bool has_first, has_head;         // has_head: logits are made, or were
    const void *head, *dhead, *dlnf;  // tensors of the view that tell calls apart
    const void* dout;                 // gradient of the range's output, dout_bytes
    size_t dout_bytes;
    const void *inputs, *targets;  // the view's, on the device: filled already
    unsigned long long random;
} DynapipeCudaJob;

static DynapipeCudaJob* dynapipe_cuda_job;  // NULL: their own loop
static DynapipeLlmc* dynapipe_cuda_run;

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

// weight: of a product; `head` in a forward, its gradient in a backward.
static inline bool dynapipe_cuda_lacks_head(const void* weight, int call) {
    const DynapipeCudaJob* job = dynapipe_cuda_job;
    if (job == NULL || weight != (call == DYNAPIPE_CUDA_HEAD ? job->head : job->dhead)) { return false; }
    return dynapipe_cuda_counts(call) && !job->has_head;
}

// In place of the final norm's backward: what comes from the range behind. True: that was it.
static inline bool dynapipe_cuda_takes_dout(void* dresidual, const void* dweight) {
    const DynapipeCudaJob* job = dynapipe_cuda_job;
    if (job == NULL || dweight != job->dlnf) { return false; }
    if (dynapipe_cuda_counts(DYNAPIPE_CUDA_NORM_BACKWARD) && job->has_head) { return false; }
    cudaCheck(cudaMemcpyAsync(dresidual, job->dout, job->dout_bytes, cudaMemcpyDeviceToDevice, job->stream));
    return true;
}

// After num_calls calls of their `function` in this job: has it made what it is known by?
static inline void dynapipe_cuda_expect(const DynapipeCudaJob* job, bool is_forward, int num_calls) {
    static const char* const names[DYNAPIPE_CUDA_NUM_CALLS] = {
        "encoder_forward()",
        "matmul_forward_cublaslt() with the head's weights",
        "fused_classifier()",
        "matmul_backward() with the head's weights",
        "layernorm_backward() or rmsnorm_backward() of the final norm",
        "encoder_backward()"};
    int begin = is_forward ? 0 : DYNAPIPE_CUDA_NUM_FORWARD_CALLS;
    int end = is_forward ? DYNAPIPE_CUDA_NUM_FORWARD_CALLS : DYNAPIPE_CUDA_NUM_CALLS;
    for (int i = begin; i < end; i++) {
        if (job->calls[i] == num_calls) { continue; }
        char why[512];
        snprintf(why, sizeof why,
                 "%s_%s() made %d calls of %s, expected were %d: a slice of this tree's model would not be "
                 "trained as the whole ---> call it by llm.c's name behind llmc_cuda.cuh, or wrap its name "
                 "there (doc/porting.md)",
                 DYNAPIPE_TREE_NAME, is_forward ? "forward" : "backward_and_reduce", job->calls[i], names[i],
                 num_calls);
        dynapipe_llmc_die(dynapipe_cuda_run, why);
    }
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
// micro-batch remains.
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

// --- their names, until llmc_cuda_main.cuh ---------------------------------------------------------------

#define encoder_forward(...) \
    (dynapipe_cuda_lacks_encoder(DYNAPIPE_CUDA_ENCODER) ? (void)0 : (encoder_forward)(__VA_ARGS__))
#define encoder_backward(...) \
    (dynapipe_cuda_lacks_encoder(DYNAPIPE_CUDA_ENCODER_BACKWARD) ? (void)0 : (encoder_backward)(__VA_ARGS__))
#define matmul_forward_cublaslt(out, inp, weight, ...)    \
    (dynapipe_cuda_lacks_head(weight, DYNAPIPE_CUDA_HEAD) \
         ? (void)0                                        \
         : matmul_forward_cublaslt(out, inp, weight, __VA_ARGS__))
#define matmul_backward(dinp, dweight, ...)                         \
    (dynapipe_cuda_lacks_head(dweight, DYNAPIPE_CUDA_HEAD_BACKWARD) \
         ? (void)0                                                  \
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

#endif
