/*
dynapipe_llmc.cuh -- llm.c's CUDA trainer on a slice of its model: the calls of gpt2_forward(),
gpt2_backward_and_reduce() and gpt2_update() that a slice makes in another way.

Included in the tree's train_gpt2.cu after its other headers, and again, after #define DYNAPIPE_MAIN, before main(). What
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
                 "trained as the whole ---> call it by llm.c's name after dynapipe_llmc.cuh, or wrap its name "
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

// --- their names, until the part above main() ----------------------------------------------------------

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
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

// Behind their functions the names are their own again.
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

// === staging ========================================================================================
/*
pinned memory between a batch and the device: ids and targets on their way there,
losses on their way back; and what their backward of the embedding prepares on the host.

Nothing is given back before finish(), so the host never waits in between; there it all begins anew. More is
asked of the driver only where a step needs more than any step before.
*/
typedef struct {
    float* losses;        // (num_rows) of the caller
    const float* values;  // (num_tokens) pinned
    const int32_t* rows;  // [num_rows] of the batch
    int32_t num_rows;
} DynapipeDelivery;

typedef struct {
    char** chunks;  // pinned
    size_t* chunk_bytes;
    int num_chunks, chunk;  // chunk: the one in use
    size_t used_bytes;      // of it
    DynapipeDelivery* deliveries;
    int num_deliveries, max_deliveries;
} DynapipeCudaStaging;

template <class T> static void dynapipe_staging_grow(T** list, int num_items) {
    *list = (T*)realloc((void*)*list, sizeof(T) * (size_t)num_items);
    if (*list == NULL) {
        fprintf(stderr, "no memory for a list of %d\n", num_items);
        exit(EXIT_FAILURE);
    }
}

static void* dynapipe_staging_take(DynapipeCudaStaging* s, size_t num_bytes) {
    num_bytes = (num_bytes + 63) / 64 * 64;
    while (s->chunk < s->num_chunks && s->used_bytes + num_bytes > s->chunk_bytes[s->chunk]) {
        s->chunk++;
        s->used_bytes = 0;
    }
    if (s->chunk == s->num_chunks) {
        size_t chunk_bytes = std::max(num_bytes, (size_t)1 << 20);
        dynapipe_staging_grow(&s->chunks, s->num_chunks + 1);
        dynapipe_staging_grow(&s->chunk_bytes, s->num_chunks + 1);
        cudaCheck(cudaMallocHost((void**)&s->chunks[s->num_chunks], chunk_bytes));
        s->chunk_bytes[s->num_chunks++] = chunk_bytes;
    }
    void* taken = s->chunks[s->chunk] + s->used_bytes;
    s->used_bytes += num_bytes;
    return taken;
}

// inputs: (num_tokens), targets: (2, num_tokens) the id to predict, and whether there is one; NULL: not
// needed.
static void dynapipe_staging_ids(DynapipeCudaStaging* s, int* inputs, int* targets,
                                 const DynapipeBatch* batch, cudaStream_t stream) {
    size_t n = (size_t)batch->num_tokens;
    if (inputs != NULL) {
        int* ids = (int*)dynapipe_staging_take(s, sizeof(int) * n);
        memcpy(ids, batch->tokens, sizeof(int) * n);
        cudaCheck(cudaMemcpyAsync(inputs, ids, sizeof(int) * n, cudaMemcpyHostToDevice, stream));
    }
    if (targets != NULL) {
        int* ids = (int*)dynapipe_staging_take(s, 2 * sizeof(int) * n);
        memset(ids, 0, 2 * sizeof(int) * n);
        for (int i = 0; i < batch->num_rows; i++) {
            ids[batch->rows[i]] = batch->targets[i];
            ids[n + (size_t)batch->rows[i]] = 1;
        }
        cudaCheck(cudaMemcpyAsync(targets, ids, 2 * sizeof(int) * n, cudaMemcpyHostToDevice, stream));
    }
}

// values (num_tokens), on the device: those of the batch's rows are in `losses` after finish().
static void dynapipe_staging_deliver(DynapipeCudaStaging* s, float* losses, const float* values,
                                     const DynapipeBatch* batch, cudaStream_t stream) {
    size_t num_bytes = sizeof(float) * (size_t)batch->num_tokens;
    float* there = (float*)dynapipe_staging_take(s, num_bytes);
    cudaCheck(cudaMemcpyAsync(there, values, num_bytes, cudaMemcpyDeviceToHost, stream));
    if (s->num_deliveries == s->max_deliveries) {
        s->max_deliveries = 2 * s->max_deliveries + 64;
        dynapipe_staging_grow(&s->deliveries, s->max_deliveries);
    }
    s->deliveries[s->num_deliveries++] = {losses, there, batch->rows, batch->num_rows};
}

static int dynapipe_staging_finish(DynapipeCudaStaging* s, cudaStream_t stream) {
    cudaError_t code = cudaStreamSynchronize(stream);
    for (int i = 0; i < s->num_deliveries; i++) {
        const DynapipeDelivery* d = &s->deliveries[i];
        for (int k = 0; k < d->num_rows; k++) { d->losses[k] = d->values[d->rows[k]]; }
    }
    s->num_deliveries = s->chunk = 0;
    s->used_bytes = 0;
    return (int)code;
}

static void dynapipe_staging_free(DynapipeCudaStaging* s) {
    for (int i = 0; i < s->num_chunks; i++) { cudaCheck(cudaFreeHost(s->chunks[i])); }
    free(s->chunks);
    free(s->chunk_bytes);
    free(s->deliveries);
    memset(s, 0, sizeof *s);
}

// --- their preparation of the embedding's gradient -------------------------------------------------------

// Written by the host, then read in the order of the stream: two by turns, so the host waits for the job
// before the last one at most, which leaves work to the device.
enum { DYNAPIPE_NUM_ROOMS = 2 };
typedef struct {
    int* indices;  // (capacity) pinned
    int4* buckets;
    size_t capacity;
    cudaEvent_t is_read;  // NULL: never used
} DynapipeRoom;

typedef struct {
    DynapipeRoom rooms[DYNAPIPE_NUM_ROOMS];
    int next;
} DynapipeRooms;

static void dynapipe_room_free(DynapipeRoom* room) {
    if (room->capacity == 0) { return; }
    cudaCheck(cudaFreeHost(room->indices));
    cudaCheck(cudaFreeHost(room->buckets));
    room->capacity = 0;
}

// Record is_read behind the copies.
static DynapipeRoom* dynapipe_rooms_next(DynapipeRooms* all, size_t num_items) {
    DynapipeRoom* room = &all->rooms[all->next];
    all->next = (all->next + 1) % DYNAPIPE_NUM_ROOMS;
    if (room->is_read == NULL) {
        cudaCheck(cudaEventCreateWithFlags(&room->is_read, cudaEventDisableTiming));
    } else {
        cudaCheck(cudaEventSynchronize(room->is_read));
    }
    if (num_items <= room->capacity) { return room; }
    dynapipe_room_free(room);
    room->capacity = num_items + num_items / 2;
    cudaCheck(cudaMallocHost((void**)&room->indices, room->capacity * sizeof(int)));
    cudaCheck(cudaMallocHost((void**)&room->buckets, room->capacity * sizeof(int4)));
    return room;
}

static void dynapipe_rooms_free(DynapipeRooms* all) {
    for (DynapipeRoom& room : all->rooms) {
        if (room.is_read != NULL) { cudaCheck(cudaEventDestroy(room.is_read)); }
        dynapipe_room_free(&room);
        room = {};
    }
}

// === model ==========================================================================================
/*
a model of llm.c's CUDA trainer behind the plugin's interface: ranges of its blocks,
their places in the caller's buffers, forward and backward.

    acts     kept from forward to backward: their tensors, layer by layer, attention too; ids and targets
    scratch  of one call: what stands behind `output` in their table, `output` without logits, and what their
             recompute (-r) makes again

Without a backward to come (validation, a forward that is made again) acts are of one layer: their forward is
called for one after the other.

The first range reads ids, the others find their input in `in`; the gradient of the residual stream grows in
`din`. Losses and dlogits of tokens that are not supervised are cleared behind their classifier.
*/
// A range of blocks: their model with its layers, which lie from first_layer on in arrays that hold all that
// `slice` says: what this rank has.
typedef struct {
    DynapipeSlice slice;
    int num_layers, first_layer;
    bool has_first, has_head;
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

// Place of a tensor in their table, which is that of its pointer (dynapipe_cuda_check_params()).
#define DYNAPIPE_CUDA_SLOT(tensor) (offsetof(ParameterTensors, tensor) / sizeof(floatX*))

// What the pointers of a tensor tell apart where a range lacks it; nobody reads there.
static floatX* dynapipe_cuda_nowhere(int tensor) {
    return (floatX*)(uintptr_t)(4096 * (tensor + 1));
}

// Points tensors (params or grads) into one array, those of layers at first_layer of the slice's.
static void dynapipe_cuda_point(ParameterTensors* tensors, const DynapipeSlice* slice, void* values,
                                int first_layer) {
    const DynapipeTensors* all = &dynapipe_cuda_model.tensors;
    floatX** pointers = (floatX**)tensors;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        bool is_of_layers = all->where[i] == DYNAPIPE_TENSOR_LAYERS;
        int64_t at = slice->begin[i] + (is_of_layers ? first_layer * all->count[i] : 0);
        pointers[i] = slice->count[i] > 0 ? (floatX*)values + at : dynapipe_cuda_nowhere(i);
    }
}

// The final norm is fused with the last layer of every range; its result is used by the last range only.
static void dynapipe_cuda_point_view(DynapipeCudaRange* range) {
    DYNAPIPE_TREE_MODEL* view = &range->view;
    dynapipe_cuda_point(&view->params, &range->slice, view->params_memory, range->first_layer);
    dynapipe_cuda_point(&view->grads, &range->slice, view->grads_memory, range->first_layer);
    if (range->has_head) { return; }
    view->params.lnfw = view->params.ln1w;
    view->params.lnfb = view->params.ln1b;
    view->grads.lnfw = dynapipe_cuda_nowhere(DYNAPIPE_CUDA_SLOT(lnfw));
}

// The range of these blocks, whose layers are first_layer and on of `slice`. Its view is the caller's to
// fill. Returns the layer behind it.
static int dynapipe_cuda_range(DynapipeCudaRange* range, const DynapipeSlice* slice, DynapipeRange blocks,
                               int first_layer) {
    DynapipeSlice own = dynapipe_tensors_slice(&dynapipe_cuda_model.tensors, &blocks, 1);
    range->slice = *slice;
    range->num_layers = own.num_layers;
    range->first_layer = first_layer;
    range->has_first = own.has_first != 0;
    range->has_head = own.has_head != 0;
    return first_layer + own.num_layers;
}

// --- places ----------------------------------------------------------------------------------------------

typedef struct {
    int64_t acts, scratch;  // bytes so far
    int *inputs, *targets, *rows;
    floatX* between;  // what a layer leaves to the next, where one place serves all
} DynapipeCudaPlaces;

enum { DYNAPIPE_CUDA_BACKWARD = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD };

static bool dynapipe_cuda_has_head(const DynapipeCudaRange* range, int flags) {
    return range->has_head && (flags & DYNAPIPE_FORWARD_HEAD) != 0;
}

// Layers with activations of their own.
static int dynapipe_cuda_kept_layers(const DynapipeCudaRange* range, int flags) {
    return (flags & DYNAPIPE_FORWARD_KEEP) != 0 ? range->num_layers : 1;
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

static DynapipeCudaPlaces dynapipe_cuda_lay_out(const DynapipeCudaRange* range, DYNAPIPE_TREE_MODEL* view, int B,
                                                int T, int flags, char* acts, char* scratch) {
    DYNAPIPE_TREE_CONFIG config = view->config;
    bool has_head = dynapipe_cuda_has_head(range, flags);
    config.num_layers = dynapipe_cuda_kept_layers(range, flags);
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
        if (!range->has_first && (is_in || pointer == (void**)&view->acts.scratch_btc)) {
            num_bytes = 0;  // the caller's in and din
        }
        bool is_scratch = is_behind || is_again || ((is_output || is_lnf) && !has_head);
        *pointer = is_scratch ? dynapipe_cuda_place(scratch, &places.scratch, num_bytes)
                              : dynapipe_cuda_place(acts, &places.acts, num_bytes);
        is_behind |= is_output;
    }
    int64_t id_bytes = (int64_t)sizeof(int) * B * T;
    if (range->has_first) { places.inputs = (int*)dynapipe_cuda_place(acts, &places.acts, id_bytes); }
    if (has_head) { places.targets = (int*)dynapipe_cuda_place(acts, &places.acts, 2 * id_bytes); }
    places.rows = places.targets == NULL ? NULL : places.targets + (size_t)B * T;
    places.between = (floatX*)view->acts.encoded;
    return places;
}

static DynapipeCudaPlaces dynapipe_cuda_bytes(void* model, const DynapipeBatch* batch, int flags) {
    DynapipeCudaRange* range = (DynapipeCudaRange*)model;
    DYNAPIPE_TREE_MODEL view = range->view;
    return dynapipe_cuda_lay_out(range, &view, batch->num_seqs, batch->max_seq_tokens, flags, NULL,
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
    *places = dynapipe_cuda_lay_out(range, view, B, T, flags, (char*)acts, (char*)scratch);
    if (!range->has_first) { view->acts.encoded = (floatX*)in; }
    view->config.num_layers = dynapipe_cuda_kept_layers(range, flags);
    dynapipe_cuda_point_view(range);
    view->batch_size = B;
    view->seq_len = T;
    view->inputs = places->inputs;
    view->targets = places->targets;
    *job = {};
    job->stream = dynapipe_cuda_model.stream;
    job->has_first = range->has_first;
    job->has_head = dynapipe_cuda_has_head(range, flags);
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
    dynapipe_cuda_point_view(range);
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
    bool has_head = dynapipe_cuda_has_head(range, flags);
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
    for (int l = 0; l < range->num_layers; l += kept) {
        if (l > 0) { dynapipe_cuda_next_layer(range, &job, places.between, last, l); }
        job.has_head = has_head && l + kept == range->num_layers;
        dynapipe_cuda_job = &job;
        DYNAPIPE_TREE(forward)(view, (int*)batch->tokens, B, T);
        dynapipe_cuda_job = NULL;
    }
    dynapipe_cuda_expect(&job, true, range->num_layers / kept);
    view->config.num_layers = range->num_layers;
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
    if (!range->has_first) { range->view.acts.scratch_btc = (floatX*)din; }
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

// === blocks =========================================================================================
/*
a model of llm.c's CUDA trainer as a chain that can be cut: ranges made for measuring,
and this rank's range, which takes the whole model's place.

Their builder has made the whole model on every rank (any checkpoint, any start); values are copied from it.
*/
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
    where[DYNAPIPE_CUDA_SLOT(lnfw)] = where[DYNAPIPE_CUDA_SLOT(lnfb)] = DYNAPIPE_TENSOR_NORM;
    where[DYNAPIPE_CUDA_SLOT(DYNAPIPE_TREE_HEAD)] |= DYNAPIPE_TENSOR_HEAD;
    return dynapipe_tensors_init(out, NUM_PARAMETER_TENSORS, config->num_layers, sizes_of_1, sizes_of_2,
                                 where);
}

// Values of the slice's tensors from the whole model's array.
static void dynapipe_cuda_copy_slice(void* to, const void* whole, const DynapipeSlice* slice) {
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        DynapipeTensorPiece pieces[DYNAPIPE_MAX_RANGES];
        int num = dynapipe_tensors_pieces(&dynapipe_cuda_model.tensors, slice, i, pieces);
        for (int k = 0; k < num; k++) {
            cudaCheck(cudaMemcpyAsync((floatX*)to + pieces[k].begin, (const floatX*)whole + pieces[k].whole,
                                      sizeof(floatX) * (size_t)pieces[k].count, cudaMemcpyDeviceToDevice,
                                      dynapipe_cuda_model.stream));
        }
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
    DynapipeSlice slice = dynapipe_tensors_slice(&all->tensors, &blocks, 1);
    dynapipe_cuda_range(range, &slice, blocks, 0);
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
    dynapipe_cuda_point_view(range);
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

// --- this rank's part ----------------------------------------------------------------------------------

// Their model becomes what this rank has. Where that is the whole model, its parameters stay where they are.
static void dynapipe_cuda_cut(DYNAPIPE_TREE_MODEL* model, const DynapipeSlice* slice) {
    if (slice->num_values < dynapipe_tensors_total(&dynapipe_cuda_model.tensors) || slice->num_runs > 1) {
        void* values = dynapipe_cuda_values((size_t)slice->num_values);
        dynapipe_cuda_copy_slice(values, model->params_memory, slice);
        cudaCheck(cudaFree(model->params_memory));
        model->params_memory = values;
    }
    dynapipe_cuda_shrink(model, slice);
    dynapipe_cuda_point(&model->params, slice, model->params_memory, 0);
}

// === check ==========================================================================================
/*
is this tree what the adapter takes it for? Its tables of tensors, and its own
gpt2_validate() against the plugin's forward, each loss of a small made-up batch.

Before the model is cut, on every rank. A tree in which something is missing ends in words, never in a model
trained wrongly.
*/
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
    DynapipeRange all = {0, dynapipe_cuda_model.tensors.num_layers + 2};
    DynapipeSlice slice = dynapipe_tensors_slice(&dynapipe_cuda_model.tensors, &all, 1);
    dynapipe_cuda_range(&range, &slice, blocks, blocks.begin > 0 ? blocks.begin - 1 : 0);
    range.view = *whole;
    range.view.config.num_layers = range.num_layers;
    dynapipe_cuda_point_view(&range);
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
    DynapipeRange blocks = {0, all->tensors.num_layers + 2}, one = {0, 3};
    DynapipeCudaRange range = dynapipe_cuda_part(blocks);
    floatX* const* values = (floatX* const*)&all->whole->params;
    const int num_layers = all->tensors.num_layers;
    all->tensors.num_layers = 1;
    DynapipeSlice slice = dynapipe_tensors_slice(&all->tensors, &one, 1);
    dynapipe_cuda_range(&range, &slice, one, 0);
    all->tensors.num_layers = num_layers;
    dynapipe_cuda_shrink(&range.view, &range.slice);
    range.view.params_memory = dynapipe_cuda_values((size_t)range.slice.num_values);
    range.view.grads_memory = dynapipe_cuda_values((size_t)range.slice.num_values);
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        cudaCheck(cudaMemcpy((floatX*)range.view.params_memory + range.slice.begin[i], values[i],
                             sizeof(floatX) * (size_t)range.slice.count[i], cudaMemcpyDeviceToDevice));
    }
    dynapipe_cuda_point_view(&range);
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
                 "their forward does what no slice of it would ---> wrap what is new there, as dynapipe_llmc.cuh "
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

// === run ============================================================================================
/*
a run of llm.c's CUDA trainer with the plugin: what its main() calls in place of their
functions.
*/
typedef struct {
    DynapipeModel_v1 api;
    DynapipeSlice slice;                            // what this rank has, and
    DynapipeCudaRange mine[DYNAPIPE_MAX_RANGES];  // its ranges: views of their model, with other activations
    int num_ranges;
    int num_layers;          // of the whole model
    const char *train_pattern, *val_pattern, *log_dir;
    DataLoader *train_loader, *val_loader;
    int rows, max_tokens;  // -b, -t
    int64_t batch_tokens;  // of a step over all ranks, at most
    int val_max_batches;
    int num_steps;             // made and reported so far
    bool is_open;              // a step is made, and not reported yet
    DynapipeReport_v1 report;  // of that step
    int first_step;            // made before this run
    DYNAPIPE_TREE_MODEL* model;
    bool has_validated;  // val_loss is of now
    float val_loss;
} DynapipeCudaMain;

static DynapipeCudaMain dynapipe_cuda;

static inline bool dynapipe_cuda_is_on(void) {
    return dynapipe_llmc_is_on(dynapipe_cuda_run) != 0;
}

static Dynapipe* dynapipe_cuda_session(void) {
    return dynapipe_llmc_session(dynapipe_cuda_run);
}

// --- before the model ------------------------------------------------------------------------------------

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
    if (dynapipe_cuda.train_pattern == NULL) {
        dynapipe_cuda.train_pattern = pattern;
        dynapipe_cuda.train_loader = loader;
        dynapipe_cuda.rows = B;
        dynapipe_cuda.max_tokens = T;
    } else {
        dynapipe_cuda.val_pattern = pattern;
        dynapipe_cuda.val_loader = loader;
    }
}

// --- the model -------------------------------------------------------------------------------------------

// llm.c's classifier never ends where a row has fewer than 1024 packs of 16 bytes. A tree with another one
// defines this as 1.
#ifndef DYNAPIPE_TREE_LEAST_VOCAB
#define DYNAPIPE_TREE_LEAST_VOCAB (1024 * (int)x128::size)
#endif

static void dynapipe_cuda_check_model(const DYNAPIPE_TREE_MODEL* model) {
    if (model->config.vocab_size >= DYNAPIPE_TREE_LEAST_VOCAB) { return; }
    dynapipe_llmc_die(dynapipe_cuda_run,
                      "llm.c's fused_classifier() never ends on so small a vocabulary (under 4096 ids "
                      "in float32, 8192 in 16 bits) ---> a larger one");
}

static DynapipeRun_v1 dynapipe_cuda_about(int max_steps, int64_t batch_tokens, int overfit) {
    DynapipeRun_v1 about = {};
    about.train_pattern = dynapipe_cuda.train_pattern;
    about.val_pattern = dynapipe_cuda.val_pattern;
    about.batch_tokens = batch_tokens;
    about.max_seq_tokens = dynapipe_cuda_model.max_tokens;
    about.rows = dynapipe_cuda.rows;
    about.num_steps = max_steps;
    about.overfit = overfit;
    return about;
}

// Model and patterns are there: opens the data, measures, cuts.
static void dynapipe_cuda_start(DYNAPIPE_TREE_MODEL* model, int max_steps, int64_t batch_tokens,
                                int val_max_batches, int overfit, const char* log_dir) {
    DynapipeCudaModel* all = &dynapipe_cuda_model;
    if (!dynapipe_cuda_is_on()) { return; }
    dynapipe_cuda_check_model(model);
    all->whole = model;
    dynapipe_cuda.model = model;
    all->stream = main_stream;
    all->max_tokens = std::min(dynapipe_cuda.max_tokens, model->config.max_seq_len / 8 * 8);
    dynapipe_cuda.num_layers = model->config.num_layers;
    dynapipe_cuda.batch_tokens = batch_tokens;
    dynapipe_cuda.val_max_batches = val_max_batches;
    dynapipe_cuda.log_dir = log_dir;
    dynapipe_llmc_check(dynapipe_cuda_run, dynapipe_cuda_tensors(&all->tensors, &model->config));
    dynapipe_cuda_check_params(model);
    dynapipe_cuda_check_acts(model);
    dynapipe_llmc_check(dynapipe_cuda_run, dynapipe_use_stream(dynapipe_cuda_session(), main_stream));
    DynapipeRun_v1 about = dynapipe_cuda_about(max_steps, batch_tokens, overfit);
    dynapipe_llmc_open_data(dynapipe_cuda_run, &about, model->config.max_seq_len, model->config.vocab_size);
    dynapipe_cuda.val_loader->num_tokens = (size_t)batch_tokens;  // so that they count one batch
    dynapipe_cuda.train_loader->num_tokens =
        (size_t)dynapipe_llmc_num_steps(dynapipe_cuda_run) * (size_t)batch_tokens;
    DYNAPIPE_TREE_PREPARE(model, all->max_tokens);
    dynapipe_cuda.api = dynapipe_cuda_api();
    DynapipeBlocks_v1 blocks = dynapipe_cuda_blocks(all, &dynapipe_cuda.api);
    dynapipe_cuda_check_tree(&blocks.shapes);
    DynapipeRange ranges[DYNAPIPE_MAX_RANGES];
    int num_ranges = dynapipe_llmc_place(dynapipe_cuda_run, &blocks, ranges), num_layers = 0;
    dynapipe_cuda.slice = dynapipe_tensors_slice(&all->tensors, ranges, num_ranges);
    for (int i = 0; i < num_ranges; i++) {
        num_layers = dynapipe_cuda_range(&dynapipe_cuda.mine[i], &dynapipe_cuda.slice, ranges[i], num_layers);
    }
    dynapipe_cuda.num_ranges = num_ranges;
    dynapipe_cuda_cut(model, &dynapipe_cuda.slice);
}

// State of theirs for the slice. Activations of their own serve samples of text, which only a whole model
// has.
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
        mine->view.config.num_layers = mine->num_layers;
        dynapipe_cuda_point_view(mine);
        DynapipeParams_v1 params = dynapipe_cuda_params(mine);
        dynapipe_llmc_attach(dynapipe_cuda_run, i, &dynapipe_cuda.api, mine, &params);
    }
}

// --- the end of a step -----------------------------------------------------------------------------------

// Parameters and report of the step made last. Called by all ranks: behind the update, or where that was
// passed over (an outlier) at their next call.
static void dynapipe_cuda_end_step(void) {
    if (!dynapipe_cuda.is_open) { return; }
    DynapipeReport_v1* report = &dynapipe_cuda.report;
    report->step = ++dynapipe_cuda.num_steps;
    report->log_dir = dynapipe_cuda.log_dir;
    dynapipe_cuda.is_open = false;
    dynapipe_llmc_end_step(dynapipe_cuda_run, report);
}

// --- checkpoints -----------------------------------------------------------------------------------------

static void dynapipe_cuda_to_host(void* host, const void* values, size_t num_bytes) {
    cudaCheck(cudaMemcpy(host, values, num_bytes, cudaMemcpyDeviceToHost));
}

static void dynapipe_cuda_from_host(void* values, const void* host, size_t num_bytes) {
    cudaCheck(cudaMemcpy(values, host, num_bytes, cudaMemcpyHostToDevice));
}

// header: what its model file begins with.
static DynapipeLlmcCheckpoint dynapipe_cuda_checkpoint(DYNAPIPE_TREE_MODEL* model, const char* directory,
                                                       const std::string& header) {
    static const DynapipeCopies copies = {dynapipe_cuda_to_host, dynapipe_cuda_from_host};
    DynapipeLlmcCheckpoint checkpoint = {};
    checkpoint.directory = directory;
    checkpoint.tensors = &dynapipe_cuda_model.tensors;
    checkpoint.slice = &dynapipe_cuda.slice;
    checkpoint.model_header = header.data();
    checkpoint.model_header_bytes = (int32_t)header.size();
    checkpoint.param_bytes = (int32_t)sizeof(floatX);
    checkpoint.params = model->params_memory;
    checkpoint.m = model->m_memory;
    checkpoint.v = model->v_memory;
    checkpoint.master = model->master_weights;
    checkpoint.copies = &copies;
    checkpoint.rng_states[0] = model->rng_state;
    checkpoint.rng_states[1] = model->rng_state_last_update;
    return checkpoint;
}

// What a model file of theirs begins with: their writer, on a model of all layers and no values.
static std::string dynapipe_cuda_header(const DYNAPIPE_TREE_MODEL* model, const std::string& beside) {
    std::string path = beside + ".header" + std::to_string(multi_gpu_config.process_rank);
    DYNAPIPE_TREE_MODEL empty = *model;
    empty.config.num_layers = dynapipe_cuda.num_layers;
    empty.num_parameters_bytes = 0;
    DYNAPIPE_TREE(write_to_checkpoint)(&empty, path.c_str());
    std::string header;
    FILE* file = fopenCheck(path.c_str(), "rb");
    for (int c = fgetc(file); c != EOF; c = fgetc(file)) { header += (char)c; }
    fcloseCheck(file);
    remove(path.c_str());
    return header;
}

// Without a look at what is open: `step` is made and reported.
static void dynapipe_cuda_write(const char* directory, int step, DYNAPIPE_TREE_MODEL* model) {
    std::string header = dynapipe_cuda_header(model, std::string(directory) + "/model");
    DynapipeLlmcCheckpoint checkpoint = dynapipe_cuda_checkpoint(model, directory, header);
    cudaCheck(cudaDeviceSynchronize());
    dynapipe_llmc_save(dynapipe_cuda_run, &checkpoint, step);
}

// By the clock, or as a signal ends the run.
static void dynapipe_cuda_save_if_due(void) {
    int step = dynapipe_cuda.num_steps;
    if (dynapipe_cuda.log_dir == NULL || step == dynapipe_cuda.first_step) { return; }
    if (!dynapipe_llmc_is_due(dynapipe_cuda_run, step)) { return; }
    dynapipe_cuda_write(dynapipe_cuda.log_dir, step, dynapipe_cuda.model);
}

// Told to end by a signal: saves what is not saved yet, and does not return. Where their loop calls us next,
// behind its own lines about the step.
static void dynapipe_cuda_end_if_told(void) {
    if (!dynapipe_llmc_is_told_to_end(dynapipe_cuda_run)) { return; }
    dynapipe_cuda_end_step();
    dynapipe_cuda_save_if_due();
    cudaCheck(cudaDeviceSynchronize());
    dynapipe_llmc_end(dynapipe_cuda_run, dynapipe_cuda.log_dir, dynapipe_cuda.num_steps);
}

static void dynapipe_cuda_save(const char* directory, int step, DYNAPIPE_TREE_MODEL* model) {
    dynapipe_cuda_end_step();
    dynapipe_cuda_write(directory, step, model);
    dynapipe_cuda_end_if_told();
}

// filename: of their state in the checkpoint's folder; which step is looked up there.
static void dynapipe_cuda_resume(int* step, DYNAPIPE_TREE_MODEL* model, const char* filename) {
    std::string directory(filename);
    directory.resize(directory.rfind('/'));
    std::string header = dynapipe_cuda_header(model, directory + "/model");
    DynapipeLlmcCheckpoint checkpoint = dynapipe_cuda_checkpoint(model, directory.c_str(), header);
    *step = dynapipe_llmc_latest(dynapipe_cuda_run, directory.c_str());
    dynapipe_llmc_resume(dynapipe_cuda_run, &checkpoint, *step);
    model->rng_state = checkpoint.rng_states[0];
    model->rng_state_last_update = checkpoint.rng_states[1];
    dynapipe_cuda.num_steps = dynapipe_cuda.first_step = *step;
}

// --- the loop --------------------------------------------------------------------------------------------

static void dynapipe_cuda_step(DYNAPIPE_TREE_MODEL* model, int micro_step) {
    if (micro_step > 0) { return; }
    dynapipe_cuda_end_step();
    dynapipe_cuda_end_if_told();
    dynapipe_llmc_begin(dynapipe_cuda_run, dynapipe_cuda.log_dir);
    model->mean_loss = (float)dynapipe_llmc_step(dynapipe_cuda_run);
    dynapipe_cuda.report = {};
    dynapipe_cuda.report.norm = dynapipe_cuda.report.loss_z = dynapipe_cuda.report.norm_z = NAN;
    dynapipe_cuda.is_open = true;
}

// A z-score of theirs: of the loss, or behind the norm of that.
static double dynapipe_cuda_z(double z) {
    DynapipeReport_v1* report = &dynapipe_cuda.report;
    (std::isnan(report->norm) ? report->loss_z : report->norm_z) = (float)z;
    return z;
}

template <class Rate, class... Rest>
static void dynapipe_cuda_update(DYNAPIPE_TREE_MODEL* model, Rate rate, Rest... rest) {
    DYNAPIPE_TREE(update)(model, rate, rest...);
    if (!dynapipe_cuda_is_on()) { return; }
    dynapipe_cuda.report.lr = (float)rate;
    dynapipe_cuda_end_step();
    dynapipe_cuda_save_if_due();
}

// That a rank works on, for the flops of its slice.
static int dynapipe_cuda_rank_tokens(int num_tokens) {
    if (!dynapipe_cuda_is_on()) { return num_tokens; }
    return (int)(dynapipe_cuda.batch_tokens / dynapipe_num_replicas(dynapipe_cuda_session()));
}

static void dynapipe_cuda_reset(void) {
    dynapipe_cuda_end_if_told();
    dynapipe_cuda.has_validated = false;
}

// All of the validation at the first call behind a reset; the same for each batch that they count.
static float dynapipe_cuda_validate(void) {
    dynapipe_cuda_end_step();
    if (!dynapipe_cuda.has_validated) {
        dynapipe_cuda.val_loss = (float)dynapipe_llmc_validate(
            dynapipe_cuda_run, dynapipe_cuda.val_max_batches, dynapipe_cuda.num_steps, dynapipe_cuda.log_dir);
        dynapipe_cuda_end_if_told();
    }
    dynapipe_cuda.has_validated = true;
    return dynapipe_cuda.val_loss;
}

// The first step's gradients, where --dump-gradients asks for them.
static void dynapipe_cuda_dump(DYNAPIPE_TREE_MODEL* model) {
    const char* path = dynapipe_option(dynapipe_cuda_session(), "--dump-gradients");
    static bool has_dumped;
    if (path == NULL || has_dumped) { return; }
    has_dumped = true;
    std::string header = dynapipe_cuda_header(model, path);
    DynapipeLlmcCheckpoint checkpoint = dynapipe_cuda_checkpoint(model, NULL, header);
    dynapipe_llmc_dump_gradients(dynapipe_cuda_run, &checkpoint, model->grads_memory);
}

// Of all ranks, each parameter once.
static float dynapipe_cuda_norm(DYNAPIPE_TREE_MODEL* model) {
    enum { MAX_SPANS = 256 };
    DynapipeSpan spans[MAX_SPANS];
    int32_t num_spans;
    dynapipe_llmc_check(dynapipe_cuda_run,
                        dynapipe_counted(dynapipe_cuda_session(), spans, MAX_SPANS, &num_spans));
    double squares = 0.0;
    for (int i = 0; i < num_spans; i++) {
        squares += dynapipe_cuda_sum_squares(model->grads_memory, spans[i]);
    }
    dynapipe_cuda_dump(model);
    return dynapipe_cuda.report.norm = (float)dynapipe_llmc_norm(dynapipe_cuda_run, squares);
}

// --- the end ---------------------------------------------------------------------------------------------

// While the stream still lives.
static void dynapipe_cuda_close(void) {
    dynapipe_cuda_end_step();
    cudaCheck(cudaDeviceSynchronize());
    dynapipe_staging_free(&dynapipe_cuda_model.staging);
    dynapipe_rooms_free(&dynapipe_cuda_model.rooms);
    const int status = dynapipe_llmc_close(dynapipe_cuda_run);
    dynapipe_cuda_run = NULL;
    if (status != 0) { exit(status); }  // their main() would return 0
}

// === main() =========================================================================================
/*
llm.c's CUDA trainer with the plugin: what main() says, and what its calls mean then.

Included in the tree's train_gpt2.cu (train_llama3.cu) just before main(), behind llmc_cuda.cuh. In main():

    DYNAPIPE_OPEN(argc, argv)                        // first; takes the --options out of argv
    DYNAPIPE_BATCH(tokens_per_fwdbwd, total_batch_size)  // -d may be any number: one call makes a whole step
    ...                                              // model and loaders are there:
    DYNAPIPE_START(model, max_steps, total_batch_size, val_max_steps, overfit_single_batch, output_log_dir)
    if (DYNAPIPE_WHOLE(...)) { ... }                 // what needs the whole model on this rank
    DYNAPIPE_TOKENS(tokens_processed)                // of a step

The loop's calls keep their names and mean: multi_gpu_config_*: the plugin's ranks; dataloader_*: nothing, the
plugin has the data (-i, -j: sample files or llm.c's); gpt2_forward() and gpt2_backward_and_reduce() on
training tokens: together one step of all ranks, its loss in mean_loss; gpt2_validate(): the validation; the
norm: of all ranks; gpt2_update(): theirs, on this rank's slice, and the end of the step (where it is passed
over, the next call of all ranks is that); write_checkpoint(), load_state(): files of one process, written and
read by all. With --fixed-length all of them are theirs. Without -DDYNAPIPE the words above mean nothing and
cost nothing.
*/

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
#define dataloader_reset(loader) DYNAPIPE_OR(dynapipe_cuda_reset(), dataloader_reset(loader))
#define dataloader_next_batch(loader) DYNAPIPE_OR(dynapipe_cuda_end_if_told(), dataloader_next_batch(loader))
#define dataloader_free(loader) DYNAPIPE_OR((void)0, dataloader_free(loader))
#define update_detector(...) dynapipe_cuda_z(update_detector(__VA_ARGS__))
#define write_checkpoint(directory, step, model, ...)       \
    DYNAPIPE_OR(dynapipe_cuda_save(directory, step, model), \
                write_checkpoint(directory, step, model, __VA_ARGS__))
#define load_state(step, model, loader, filename) \
    DYNAPIPE_OR(dynapipe_cuda_resume(step, model, filename), load_state(step, model, loader, filename))

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
    DYNAPIPE_OR(dynapipe_cuda_norm(model), gpt2_calculate_grad_norm(model, config))
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
    DYNAPIPE_OR(dynapipe_cuda_norm(model), llama3_calculate_grad_norm(model, config))
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
