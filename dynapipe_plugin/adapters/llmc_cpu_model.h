/*
llmc_cpu_model.h -- the model of llm.c's CPU trainer as DynapipeModel_v1 and DynapipeBlocks_v1, over their
gpt2_forward() and gpt2_backward() as llmc_cpu.h wraps them. Part of llmc_cpu_main.h, behind their functions.

acts:    their activations of n tokens | att (L, NH * squares) | inputs of the head (rows, C) |
         inputs, targets (n each)
scratch: gradients of activations | preatt, or dpreatt and datt, of one window | gradient of the head's inputs
Without a backward to come (validation, a forward that is made again) the activations are of one layer: their
gpt2_forward() is called for one after the other.
*/
#pragma once
#ifdef DYNAPIPE

#include <stdint.h>
#include <stdio.h>
#include "llmc_cpu.h"

#undef encoder_forward
#undef attention_forward
#undef layernorm_forward
#undef matmul_forward
#undef softmax_forward
#undef crossentropy_forward
#undef crossentropy_softmax_backward
#undef matmul_backward
#undef layernorm_backward
#undef attention_backward
#undef encoder_backward

enum {
    DYNAPIPE_CPU_PARAMS = sizeof(ParameterTensors) / sizeof(float*),
    DYNAPIPE_CPU_ACTS = sizeof(ActivationTensors) / sizeof(float*),
};
// Members of their structs by number, and of which of their slots (fill_in_*_sizes) each is.
#define DYNAPIPE_CPU_PARAM(name) (offsetof(ParameterTensors, name) / sizeof(float*))
#define DYNAPIPE_CPU_ACT(name) (offsetof(ActivationTensors, name) / sizeof(float*))

typedef struct {
    const GPT2* whole;  // its parameters are where ranges have theirs from; until the model is cut
    GPT2Config config;  // of the whole
    DynapipeTensors tensors;
    int param_slot[DYNAPIPE_CPU_PARAMS], act_slot[DYNAPIPE_CPU_ACTS];
    int num_threads;
    char signature[192];
    char why[256];  // the last make(), forward() or backward failed
} DynapipeCpuModel;

static DynapipeCpuModel dynapipe_cpu_model;
// Where a tensor points that a slice has nothing of: not NULL, and no other tensor's address.
static float dynapipe_cpu_nothing[DYNAPIPE_MAX_TENSORS];

// --- their tables ----------------------------------------------------------------------------------------

// With one value in each slot, a tensor's place is its slot. Returns 1 if each slot is one tensor's.
static inline int dynapipe_cpu_slots(int* slot, float* const* members, int num_members, const float* memory) {
    char is_taken[DYNAPIPE_MAX_TENSORS];
    memset(is_taken, 0, sizeof is_taken);
    for (int i = 0; i < num_members; i++) {
        uintptr_t at = ((uintptr_t)members[i] - (uintptr_t)memory) / sizeof(float);
        if (at >= (uintptr_t)num_members || is_taken[at]) { return 0; }
        is_taken[at] = 1;
        slot[i] = (int)at;
    }
    return 1;
}

static inline int dynapipe_cpu_find_slots(DynapipeCpuModel* model) {
    size_t ones[DYNAPIPE_MAX_TENSORS];
    ParameterTensors params;
    ActivationTensors acts;
    memset(&params, 0, sizeof params);
    memset(&acts, 0, sizeof acts);
    if (DYNAPIPE_CPU_PARAMS != NUM_PARAMETER_TENSORS || DYNAPIPE_CPU_ACTS != NUM_ACTIVATION_TENSORS ||
        (int)DYNAPIPE_CPU_ACTS > (int)DYNAPIPE_MAX_TENSORS ||
        (int)DYNAPIPE_CPU_PARAMS > (int)DYNAPIPE_MAX_TENSORS) {
        return -1;
    }
    for (int i = 0; i < DYNAPIPE_MAX_TENSORS; i++) { ones[i] = 1; }
    float* params_memory = malloc_and_point_parameters(&params, ones);
    float* acts_memory = malloc_and_point_activations(&acts, ones);
    int are_slots =
        dynapipe_cpu_slots(model->param_slot, (float**)&params, DYNAPIPE_CPU_PARAMS, params_memory) &&
        dynapipe_cpu_slots(model->act_slot, (float**)&acts, DYNAPIPE_CPU_ACTS, acts_memory);
    free(params_memory);
    free(acts_memory);
    return are_slots ? 0 : -1;
}

static inline int dynapipe_cpu_find_tensors(DynapipeCpuModel* model) {
    size_t sizes_of_1[DYNAPIPE_CPU_PARAMS], sizes_of_2[DYNAPIPE_CPU_PARAMS];
    int32_t where[DYNAPIPE_CPU_PARAMS];
    GPT2Config config = model->config;
    config.num_layers = 1;
    fill_in_parameter_sizes(sizes_of_1, config);
    config.num_layers = 2;
    fill_in_parameter_sizes(sizes_of_2, config);
    memset(where, 0, sizeof where);
    where[model->param_slot[DYNAPIPE_CPU_PARAM(wte)]] = DYNAPIPE_TENSOR_FIRST | DYNAPIPE_TENSOR_LAST;
    where[model->param_slot[DYNAPIPE_CPU_PARAM(wpe)]] = DYNAPIPE_TENSOR_FIRST;
    where[model->param_slot[DYNAPIPE_CPU_PARAM(lnfw)]] = DYNAPIPE_TENSOR_LAST;
    where[model->param_slot[DYNAPIPE_CPU_PARAM(lnfb)]] = DYNAPIPE_TENSOR_LAST;
    int code = dynapipe_tensors_init(&model->tensors, DYNAPIPE_CPU_PARAMS, model->config.num_layers,
                                     sizes_of_1, sizes_of_2, where);
    if (code != 0) { return code; }
    return (size_t)dynapipe_tensors_total(&model->tensors) == model->whole->num_parameters ? 0 : -1;
}

// --- memory of a micro-batch -----------------------------------------------------------------------------

enum { DYNAPIPE_CPU_BACKWARD = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD };

// Layers with activations of their own. Where nothing is kept for a backward, one serves all of them.
static inline int dynapipe_cpu_kept_layers(const DynapipeCpuRange* range, int flags) {
    return (flags & DYNAPIPE_FORWARD_KEEP) != 0 ? range->slice.num_layers : 1;
}

// Rows of which the head's activations are there.
static inline size_t dynapipe_cpu_num_rows(const DynapipeCpuRange* range, const DynapipeBatch* batch,
                                           int flags) {
    return range->slice.has_last && flags != 0 ? (size_t)batch->num_rows : 0;
}

// Values of each slot, of activations or of their gradients; in *total of all. Their own numbers, but where
// llmc_cpu.h has another place (att), nothing to keep, or supervised tokens only.
static inline void dynapipe_cpu_act_sizes(size_t* sizes, size_t* total, const DynapipeCpuRange* range,
                                          const DynapipeBatch* batch, int flags, int is_gradient) {
    GPT2Config config = range->model.config;
    const int* slot = dynapipe_cpu_model.act_slot;
    size_t num_rows = dynapipe_cpu_num_rows(range, batch, flags), Vp = (size_t)config.padded_vocab_size;
    config.num_layers = dynapipe_cpu_kept_layers(range, flags);
    fill_in_activation_sizes(sizes, config, batch->num_tokens, 1);
    // (what a layer leaves to the next, too, where one place serves all)
    if (!range->slice.has_first && (flags & DYNAPIPE_FORWARD_KEEP) != 0) {
        sizes[slot[DYNAPIPE_CPU_ACT(encoded)]] = 0;
    }
    if (!range->slice.has_last || flags == 0) {
        sizes[slot[DYNAPIPE_CPU_ACT(lnf)]] = 0;
        sizes[slot[DYNAPIPE_CPU_ACT(lnf_mean)]] = 0;
        sizes[slot[DYNAPIPE_CPU_ACT(lnf_rstd)]] = 0;
    }
    sizes[slot[DYNAPIPE_CPU_ACT(logits)]] = num_rows * Vp;
    sizes[slot[DYNAPIPE_CPU_ACT(probs)]] = is_gradient ? 0 : num_rows * Vp;
    *total = 0;
    for (int i = 0; i < DYNAPIPE_CPU_ACTS; i++) { *total += sizes[i]; }
}

static inline void dynapipe_cpu_point(float** members, int num_members, const int* slot, const size_t* sizes,
                                      float* memory) {
    size_t begin[DYNAPIPE_MAX_TENSORS], at = 0;
    for (int i = 0; i < num_members; i++) {
        begin[i] = at;
        at += sizes[i];
    }
    for (int i = 0; i < num_members; i++) {
        members[i] = sizes[slot[i]] > 0 ? memory + begin[slot[i]] : &dynapipe_cpu_nothing[slot[i]];
    }
}

static inline size_t dynapipe_cpu_att_values(const DynapipeCpuRange* range, const DynapipeBatch* batch,
                                             int flags) {
    return (size_t)dynapipe_cpu_kept_layers(range, flags) * range->model.config.num_heads *
           (size_t)batch->num_squares;
}

static inline size_t dynapipe_cpu_row_values(const DynapipeCpuRange* range, const DynapipeBatch* batch,
                                             int flags) {
    return dynapipe_cpu_num_rows(range, batch, flags) * range->model.config.channels;
}

static inline int64_t dynapipe_cpu_acts_bytes(void* range_, const DynapipeBatch* batch, int flags) {
    const DynapipeCpuRange* range = (const DynapipeCpuRange*)range_;
    size_t sizes[DYNAPIPE_CPU_ACTS], total;
    dynapipe_cpu_act_sizes(sizes, &total, range, batch, flags, 0);
    total += dynapipe_cpu_att_values(range, batch, flags) + dynapipe_cpu_row_values(range, batch, flags);
    return (int64_t)(total * sizeof(float) + 2 * (size_t)batch->num_tokens * sizeof(int));
}

static inline int64_t dynapipe_cpu_scratch_bytes(void* range_, const DynapipeBatch* batch) {
    const DynapipeCpuRange* range = (const DynapipeCpuRange*)range_;
    size_t sizes[DYNAPIPE_CPU_ACTS], total, T = (size_t)batch->max_seq_tokens;
    dynapipe_cpu_act_sizes(sizes, &total, range, batch, DYNAPIPE_CPU_BACKWARD, 1);
    total += 2 * (size_t)range->model.config.num_heads * T * T +
             dynapipe_cpu_row_values(range, batch, DYNAPIPE_CPU_BACKWARD);
    return (int64_t)(total * sizeof(float));
}

static inline int64_t dynapipe_cpu_boundary_bytes(void* range, const DynapipeBatch* batch, int is_behind) {
    (void)is_behind;
    return (int64_t)batch->num_tokens * ((const DynapipeCpuRange*)range)->model.config.channels *
           (int64_t)sizeof(float);
}

// --- forward and backward --------------------------------------------------------------------------------

// The view on this memory, of all layers or of the first. Returns the values of the gradients of activations,
// which scratch begins with.
static inline size_t dynapipe_cpu_begin(DynapipeCpuJob* job, const DynapipeCpuRange* range,
                                        const DynapipeBatch* batch, void* acts_, void* scratch_, int flags) {
    float *acts = (float*)acts_, *scratch = (float*)scratch_;
    const int* slot = dynapipe_cpu_model.act_slot;
    size_t sizes[DYNAPIPE_CPU_ACTS], total, total_grads, T = (size_t)batch->max_seq_tokens;
    GPT2* view = &job->view;
    memset(job, 0, sizeof *job);
    job->range = range;
    job->batch = batch;
    *view = range->model;
    job->has_first = range->slice.has_first;
    view->config.num_layers = dynapipe_cpu_kept_layers(range, flags);
    view->batch_size = batch->num_tokens;
    view->seq_len = 1;
    view->mean_loss = 0.0f;  // to their backward: a forward was there
    dynapipe_cpu_act_sizes(sizes, &total, range, batch, flags, 0);
    dynapipe_cpu_point((float**)&view->acts, DYNAPIPE_CPU_ACTS, slot, sizes, acts);
    view->acts_memory = acts;
    view->num_activations = total;
    job->att = acts + total;
    job->rows = job->att + dynapipe_cpu_att_values(range, batch, flags);
    view->inputs = (int*)(job->rows + dynapipe_cpu_row_values(range, batch, flags));
    view->targets = view->inputs + batch->num_tokens;
    dynapipe_cpu_act_sizes(sizes, &total_grads, range, batch, DYNAPIPE_CPU_BACKWARD, 1);
    dynapipe_cpu_point((float**)&view->grads_acts, DYNAPIPE_CPU_ACTS, slot, sizes, scratch);
    view->grads_acts_memory = scratch;
    job->attention = scratch + total_grads;
    job->drows = job->attention + 2 * (size_t)view->config.num_heads * T * T;
    return total_grads;
}

// Of so many layers each forward and backward makes its calls, whatever the slice does in them; those of the
// losses only where these are asked for. Returns 0, or 1: some are missing or too many, so that this tree
// computes in another way than the slice takes it for.
static inline int dynapipe_cpu_check_calls(const DynapipeCpuJob* job, const char* function,
                                           const char* const names[DYNAPIPE_CPU_CALLS]) {
    for (int i = 0; i < DYNAPIPE_CPU_CALLS; i++) {
        int is_of_losses = i == DYNAPIPE_CPU_SOFTMAX || i == DYNAPIPE_CPU_LOSS;
        int wanted = i == DYNAPIPE_CPU_ATTENTION ? job->view.config.num_layers : 1;
        if (names[i] == NULL || job->calls[i] == wanted || (is_of_losses && !job->has_head)) { continue; }
        snprintf(
            dynapipe_cpu_model.why, sizeof dynapipe_cpu_model.why,
            "%s() made %d calls of %s, its slice of %d layers needs %d: this tree's model is computed in "
            "another way ---> doc/porting.md, CPU trainer",
            function, job->calls[i], names[i], job->view.config.num_layers, wanted);
        return 1;
    }
    return 0;
}

static inline int dynapipe_cpu_check_forward(const DynapipeCpuJob* job) {
    static const char* const names[DYNAPIPE_CPU_CALLS] = {"encoder_forward()",
                                                          "attention_forward()",
                                                          "layernorm_forward() to acts.lnf",
                                                          "matmul_forward() to acts.logits",
                                                          "softmax_forward()",
                                                          "crossentropy_forward()"};
    return dynapipe_cpu_check_calls(job, "gpt2_forward", names);
}

static inline int dynapipe_cpu_check_backward(const DynapipeCpuJob* job) {
    static const char* const names[DYNAPIPE_CPU_CALLS] = {"encoder_backward()",
                                                          "attention_backward()",
                                                          "layernorm_backward() to grads.lnfw",
                                                          "matmul_backward() to grads_acts.lnf",
                                                          NULL,
                                                          "crossentropy_softmax_backward()"};
    return dynapipe_cpu_check_calls(job, "gpt2_backward", names);
}

// What the last of the layers is of a (L, n, C) tensor.
static inline float* dynapipe_cpu_last_layer(const DynapipeCpuJob* job, float* tensor) {
    size_t layer_values = (size_t)job->batch->num_tokens * job->view.config.channels;
    return tensor + (size_t)(job->view.config.num_layers - 1) * layer_values;
}

// A view of one layer goes on to layer l of the range.
static inline void dynapipe_cpu_next_layer(DynapipeCpuJob* job, int l, float* in) {
    const DynapipeCpuModel* all = &dynapipe_cpu_model;
    const ParameterTensors* begin = &job->range->model.params;
    for (int i = 0; i < DYNAPIPE_CPU_PARAMS; i++) {
        int slot = all->param_slot[i];
        if (all->tensors.where[slot] != DYNAPIPE_TENSOR_LAYERS) { continue; }
        ((float**)&job->view.params)[i] = ((float* const*)begin)[i] + l * all->tensors.count[slot];
    }
    job->has_first = 0;
    job->view.acts.encoded = in;
}

static inline void dynapipe_cpu_call_forward(DynapipeCpuJob* job) {
    int* tokens = (int*)job->batch->tokens;  // legal targets, too
    dynapipe_cpu_job = job;
    gpt2_forward(&job->view, tokens, job->has_head ? tokens : NULL, job->batch->num_tokens, 1);
    dynapipe_cpu_job = NULL;
}

static inline int dynapipe_cpu_forward(void* range, const DynapipeBatch* batch, const void* in, void* out,
                                       void* acts, void* scratch, float* losses, int flags) {
    DynapipeCpuJob job;
    const DynapipeCpuRange* mine = (const DynapipeCpuRange*)range;
    int num_layers = mine->slice.num_layers, kept = dynapipe_cpu_kept_layers(mine, flags);
    int has_head = mine->slice.has_last && (flags & DYNAPIPE_FORWARD_HEAD) != 0;
    size_t num_bytes = (size_t)dynapipe_cpu_boundary_bytes(range, batch, 1);
    dynapipe_cpu_begin(&job, mine, batch, acts, scratch, flags);
    float *between = job.view.acts.encoded, *last = dynapipe_cpu_last_layer(&job, job.view.acts.residual3);
    if (in != NULL) { job.view.acts.encoded = (float*)in; }
    job.losses = losses;
    memset(job.view.acts.losses, 0, sizeof(float) * (size_t)batch->num_tokens);  // they add these up
    for (int l = 0; l < num_layers; l += kept) {
        if (l > 0) { dynapipe_cpu_next_layer(&job, l, (float*)memcpy(between, last, num_bytes)); }
        job.has_head = has_head && l + kept == num_layers;
        memset(job.calls, 0, sizeof job.calls);
        dynapipe_cpu_call_forward(&job);
        if (dynapipe_cpu_check_forward(&job) != 0) { return 1; }
    }
    if (out != NULL) { memcpy(out, last, num_bytes); }
    return 0;
}

static inline int dynapipe_cpu_backward(void* range, const DynapipeBatch* batch, const void* in, void* acts,
                                        const void* dout, void* din, void* scratch) {
    DynapipeCpuJob job;
    size_t num_bytes = (size_t)dynapipe_cpu_boundary_bytes(range, batch, 1);
    const DynapipeCpuRange* mine = (const DynapipeCpuRange*)range;
    size_t num_grads = dynapipe_cpu_begin(&job, mine, batch, acts, scratch, DYNAPIPE_CPU_BACKWARD);
    if (in != NULL) { job.view.acts.encoded = (float*)in; }
    job.has_head = mine->slice.has_last;
    memset(scratch, 0, sizeof(float) * num_grads);
    if (dout != NULL) {
        memcpy(dynapipe_cpu_last_layer(&job, job.view.grads_acts.residual3), dout, num_bytes);
    }
    if (din != NULL) {
        job.view.grads_acts.encoded = (float*)din;
        memset(din, 0, num_bytes);
    }
    dynapipe_cpu_job = &job;
    gpt2_backward(&job.view);
    dynapipe_cpu_job = NULL;
    return dynapipe_cpu_check_backward(&job);
}

static inline void dynapipe_cpu_zero_gradients(void* range_) {
    DynapipeCpuRange* range = (DynapipeCpuRange*)range_;
    memset(range->model.grads_memory, 0, sizeof(float) * (size_t)range->slice.num_values);
}

// Their backward is one, so there is no backward_weights.
static inline DynapipeModel_v1 dynapipe_cpu_api(void) {
    DynapipeModel_v1 api;
    memset(&api, 0, sizeof api);
    api.name = "llm.c, CPU";
    api.acts_bytes = dynapipe_cpu_acts_bytes;
    api.scratch_bytes = dynapipe_cpu_scratch_bytes;
    api.boundary_bytes = dynapipe_cpu_boundary_bytes;
    api.forward = dynapipe_cpu_forward;
    api.backward_inputs = dynapipe_cpu_backward;
    api.zero_gradients = dynapipe_cpu_zero_gradients;
    return api;
}

// --- ranges ----------------------------------------------------------------------------------------------

static inline void dynapipe_cpu_point_params(ParameterTensors* out, const DynapipeSlice* slice,
                                             float* memory) {
    size_t sizes[DYNAPIPE_CPU_PARAMS];
    for (int i = 0; i < DYNAPIPE_CPU_PARAMS; i++) { sizes[i] = (size_t)slice->count[i]; }
    dynapipe_cpu_point((float**)out, DYNAPIPE_CPU_PARAMS, dynapipe_cpu_model.param_slot, sizes, memory);
}

static inline int dynapipe_cpu_fill_range(DynapipeCpuRange* range) {
    const DynapipeSlice* slice = &range->slice;
    GPT2* model = &range->model;
    model->params_memory = (float*)malloc(sizeof(float) * (size_t)slice->num_values);
    model->grads_memory = (float*)calloc((size_t)slice->num_values, sizeof(float));
    if (model->params_memory == NULL || model->grads_memory == NULL) { return 1; }
    for (int i = 0; i < DYNAPIPE_CPU_PARAMS; i++) {
        memcpy(model->params_memory + slice->begin[i],
               dynapipe_cpu_model.whole->params_memory + slice->whole[i],
               sizeof(float) * (size_t)slice->count[i]);
        model->param_sizes[i] = (size_t)slice->count[i];
    }
    model->num_parameters = (size_t)slice->num_values;
    dynapipe_cpu_point_params(&model->params, slice, model->params_memory);
    dynapipe_cpu_point_params(&model->grads, slice, model->grads_memory);
    return 0;
}

static inline void dynapipe_cpu_drop(void* ctx, void* range_) {
    DynapipeCpuRange* range = (DynapipeCpuRange*)range_;
    (void)ctx;
    free(range->model.params_memory);
    free(range->model.grads_memory);
    free(range->model.m_memory);
    free(range->model.v_memory);
    free(range);
}

static inline int dynapipe_cpu_make(void* ctx, DynapipeRange blocks, int has_values, void** out,
                                    DynapipeParams_v1* params) {
    DynapipeCpuRange* range = (DynapipeCpuRange*)calloc(1, sizeof(DynapipeCpuRange));
    if (range == NULL) { return 1; }
    range->slice = dynapipe_tensors_slice(&dynapipe_cpu_model.tensors, blocks);
    range->model = *dynapipe_cpu_model.whole;  // what a fork has there besides, too
    range->model.params_memory = range->model.grads_memory = NULL;
    range->model.m_memory = range->model.v_memory = NULL;
    range->model.config.num_layers = range->slice.num_layers;
    if (has_values && dynapipe_cpu_fill_range(range) != 0) {
        dynapipe_cpu_drop(ctx, range);
        return 1;
    }
    memset(params, 0, sizeof *params);
    params->params = range->model.params_memory;
    params->grads = range->model.grads_memory;
    params->num_params = range->slice.num_values;
    params->param_type = params->grad_type = DYNAPIPE_FLOAT32;
    params->num_tied = range->slice.num_tied;
    params->tied = range->slice.tied;
    *out = range;
    return 0;
}

static inline double dynapipe_cpu_sum_squares(const float* values, int64_t num_values) {
    double squares = 0;
    for (int64_t i = 0; i < num_values; i++) { squares += (double)values[i] * values[i]; }
    return squares;
}

// A step of no length, behind the norm of the gradients. Their update makes its memory at the first call.
static inline int dynapipe_cpu_time_update(void* ctx, void* range) {
    GPT2* model = &((DynapipeCpuRange*)range)->model;
    volatile double squares = dynapipe_cpu_sum_squares(model->grads_memory, (int64_t)model->num_parameters);
    (void)ctx, (void)squares;  // (volatile: it is to be computed)
    gpt2_update(model, 0.0f, 0.9f, 0.999f, 1e-8f, 0.0f, 1);
    return 0;
}

static inline const char* dynapipe_cpu_why(void* ctx) {
    (void)ctx;
    return dynapipe_cpu_model.why[0] != '\0' ? dynapipe_cpu_model.why : "no memory for a range of the model";
}

static inline DynapipeBlocks_v1 dynapipe_cpu_blocks(const DynapipeModel_v1* api) {
    DynapipeBlocks_v1 blocks;
    GPT2Config* config = &dynapipe_cpu_model.config;
    memset(&blocks, 0, sizeof blocks);
    snprintf(dynapipe_cpu_model.signature, sizeof dynapipe_cpu_model.signature,
             "llm.c CPU C %d NH %d Vp %d threads %d, compiler %.60s", config->channels, config->num_heads,
             config->padded_vocab_size, dynapipe_cpu_model.num_threads, __VERSION__);
    blocks.api = api;
    blocks.signature = dynapipe_cpu_model.signature;
    blocks.num_layers = config->num_layers;
    blocks.vocab = config->vocab_size;
    blocks.max_seq_tokens = config->max_seq_len;
    blocks.optimizer_bytes = 2 * (int32_t)sizeof(float);
    blocks.shapes.head_has_layer = 1;
    blocks.make = dynapipe_cpu_make;
    blocks.drop = dynapipe_cpu_drop;
    blocks.update = dynapipe_cpu_time_update;
    blocks.why = dynapipe_cpu_why;
    return blocks;
}

// Ranges of `whole` from now on. Returns 0, or an error as dynapipe_tensors_init(); -1: this tree's structs
// are others than its tables, or than its num_parameters.
static inline int dynapipe_cpu_describe(const GPT2* whole, int num_threads) {
    memset(&dynapipe_cpu_model, 0, sizeof dynapipe_cpu_model);
    dynapipe_cpu_model.whole = whole;
    dynapipe_cpu_model.config = whole->config;
    dynapipe_cpu_model.num_threads = num_threads;
    return dynapipe_cpu_find_slots(&dynapipe_cpu_model) != 0 ? -1
                                                             : dynapipe_cpu_find_tensors(&dynapipe_cpu_model);
}

#endif
