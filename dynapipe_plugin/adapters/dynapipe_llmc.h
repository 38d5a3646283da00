/*
dynapipe_llmc.h -- a run of the plugin inside a trainer of llm.c's family: what its CPU and CUDA adapters
share, and, below, the adapter for CPU trainers.

    DynapipeLlmc* run = dynapipe_llmc_open(&argc, &argv, has_options);
    if (!dynapipe_llmc_is_on(run)) { ... their own loop, as ever (--fixed-length) ... }
    dynapipe_llmc_open_data(run, &about, ...);
    num = dynapipe_llmc_place(run, &blocks, ranges);    // measures the model, chooses this rank's ranges
    dynapipe_llmc_begin(run, &tree, log_dir);           // where the values of these ranges are
    for each range: dynapipe_llmc_attach(run, i, &api, range, &params);
    dynapipe_llmc_resume(run, directory);
    for (;;) {
        loss = dynapipe_llmc_step(run);
        norm = dynapipe_llmc_norm(run);
        ... their optimizer on this rank's values ...
        dynapipe_llmc_end_step(run);
        dynapipe_llmc_save_if_due(run);
        dynapipe_llmc_end_if_told(run);
    }
    status = dynapipe_llmc_close(run);

It behaves like a part of the program: an error is printed once, on rank 0, and ends the program on all ranks.
The functions know nothing of llm.c; types and kernels are the including file's.
*/
#ifndef DYNAPIPE_LLMC_H
#define DYNAPIPE_LLMC_H

#include "../dynapipe.h"

#ifdef __cplusplus
extern "C" {
#endif

// === tensors ========================================================================================
/*
The family keeps a model as one array: tensor after tensor in a fixed order, in each all layers one after the
other (what a checkpoint's body is, too). A slice, what a rank has, is the same with fewer layers and without
the tensors that its blocks do not use: those have 0 values.
*/
enum { DYNAPIPE_MAX_TENSORS = 64 };

// Which ranges have a tensor: the one with the embedding, those with layers (a part of it each), the one with
// the final norm, those with the head or a share of it. FIRST | HEAD: tied, a copy in each of these.
enum {
    DYNAPIPE_TENSOR_FIRST = 1,
    DYNAPIPE_TENSOR_LAYERS = 2,
    DYNAPIPE_TENSOR_NORM = 4,
    DYNAPIPE_TENSOR_HEAD = 8,
};

typedef struct {
    int32_t num_tensors, num_layers;
    int32_t where[DYNAPIPE_MAX_TENSORS];
    int64_t count[DYNAPIPE_MAX_TENSORS];  // values of tensor i; with LAYERS: of one layer of it
} DynapipeTensors;

typedef struct {
    int32_t num_layers, has_first, has_norm, has_head;
    int32_t num_runs;  // of layers: [run_begin, run_end) of the model's; in a tensor those of the first run
                       // come first
    int32_t run_begin[DYNAPIPE_MAX_RANGES], run_end[DYNAPIPE_MAX_RANGES];
    int64_t num_values;
    int64_t begin[DYNAPIPE_MAX_TENSORS];  // where tensor i begins in the slice's arrays
    int64_t count[DYNAPIPE_MAX_TENSORS];  // its values there, 0: not in this slice
    int32_t num_tied;
    DynapipeTied tied[DYNAPIPE_MAX_TENSORS];
} DynapipeSlice;

// What one range of blocks does, and where its layers are in its rank's slice.
typedef struct {
    int32_t first_layer, num_layers;
    int32_t has_first, has_norm;
    int32_t has_head;         // all of it
    int32_t feeds, is_share;  // a head that is shared by rows
} DynapipeRole;

// sizes_of_1, sizes_of_2: values of each tensor of this model with 1 and with 2 layers. Those that grow are
// of the layers, whatever `where` has; the others are where it says. num_values: of the whole model by the
// tree's own count. 0, or an error whose message dynapipe_error() has.
int dynapipe_tensors_init(DynapipeTensors* out, int32_t num_tensors, int32_t num_layers,
                          const size_t* sizes_of_1, const size_t* sizes_of_2, const int32_t* where,
                          size_t num_values);
int64_t dynapipe_tensors_total(const DynapipeTensors* tensors);  // values of the whole model
DynapipeSlice dynapipe_tensors_slice(const DynapipeTensors* tensors, const DynapipeRange* ranges,
                                     int32_t num_ranges);
DynapipeRole dynapipe_tensors_role(const DynapipeTensors* tensors, DynapipeRange blocks, int32_t first_layer);
// Pointers to the tensors of an array of the slice's values, those of layers at layer first_layer of the
// slice's. A tensor of no values gets an address of its own that nobody reads.
void dynapipe_tensors_point(const DynapipeTensors* tensors, const DynapipeSlice* slice, void* pointers,
                            void* values, int32_t value_bytes, int32_t first_layer);
void* dynapipe_tensors_nowhere(int32_t i);  // that address
// Of a view of one layer: its tensors' pointers, which are those of the first, `num_layers` further.
void dynapipe_tensors_advance(const DynapipeTensors* tensors, void* pointers, int32_t value_bytes,
                              int32_t num_layers);
// Copies the slice's values from the whole model's array. copy: NULL for host memory.
void dynapipe_tensors_copy(const DynapipeTensors* tensors, const DynapipeSlice* slice, void* to,
                           const void* whole, int32_t value_bytes,
                           void (*copy)(void* to, const void* from, size_t num_bytes));

// === a run ==========================================================================================
typedef struct DynapipeLlmc DynapipeLlmc;

// What a trainer without flags of its own is told by --options. What was not given is 0 or NULL.
typedef struct {
    const char *train_data, *val_data;  // patterns of files; NULL: those that the program names itself
    const char* model;                  // checkpoint to begin with; NULL: the program's
    int64_t batch_tokens;               // of a step over all ranks
    int32_t max_tokens;                 // of a sample
    int32_t steps;                      // 0: one pass over the data (--fixed-length: the program's)
    int32_t val_samples;                // of a validation; -1: all
    double lr;                          // 0: the program's
    const char* output_dir;             // checkpoints, metrics.jsonl
    const char* checkpoint_every;       // steps, or a time (util/program.h); NULL: not given
    int32_t resume;                     // 1: from the newest checkpoint in output_dir; > 1: from that step's
    int32_t verify;                     // 0: checkpoints and data are taken without comparing their sums
    int32_t overwrite;                  // 1: a new run may replace an earlier one's checkpoints
    int32_t check_model;                // 1: dynapipe_check_model() in place of training
} DynapipeLlmcOptions;

// The arrays of this rank's slice, all with the same layout.
typedef struct {
    int32_t value_bytes;  // of a parameter, and of its gradient
    void *params, *grads;
    float *m, *v, *master;  // master: NULL: none
    void* rng_states[2];    // 8 bytes each, of llm.c's state file: the model's, before the last update; NULL:
                            // none
    const void* header;     // what a model file begins with, of the whole model
    int32_t header_bytes;
} DynapipeLlmcArrays;

typedef struct {
    const DynapipeTensors* tensors;
    const DynapipeSlice* slice;
    // Where the arrays are now. beside: a path in a folder for temporary files; NULL: no header is needed.
    void (*arrays)(DynapipeLlmcArrays* out, const char* beside);
    double (*sum_squares)(const void* values, int64_t num_values);
    // Values to and from host memory; NULL: they are there.
    void (*to_host)(void* host, const void* values, size_t num_bytes);
    void (*from_host)(void* values, const void* host, size_t num_bytes);
} DynapipeLlmcTree;

// --- session ---------------------------------------------------------------------------------------------

// Takes --fixed-length, the options above (without has_options: the last four) and the plugin's own out of
// argv. With
// --fixed-length nothing is opened: MPI, too, is left to the program.
DynapipeLlmc* dynapipe_llmc_open_as(int32_t header_interface, int* argc, char*** argv, int has_options);
static inline DynapipeLlmc* dynapipe_llmc_open(int* argc, char*** argv, int has_options) {
    return dynapipe_llmc_open_as(DYNAPIPE_INTERFACE, argc, argv, has_options);
}
int dynapipe_llmc_is_on(const DynapipeLlmc* run);  // NULL: no
// NULL ends the program in these two: the tree lacks the line that opens the run.
const DynapipeLlmcOptions* dynapipe_llmc_options(const DynapipeLlmc* run);
Dynapipe* dynapipe_llmc_session(const DynapipeLlmc* run);  // NULL where it is not on
// The last call about it; NULL is allowed. The program's exit status: EXIT_FAILURE where the last checkpoint,
// lines of metrics.jsonl or standard output were lost, of which a warning was printed at the time.
int dynapipe_llmc_close(DynapipeLlmc* run);
// Ends the program on all ranks: after a dynapipe_*() call, if its code is not 0; or with a message of one's
// own.
void dynapipe_llmc_check(DynapipeLlmc* run, int code);
void dynapipe_llmc_die(DynapipeLlmc* run, const char* format, ...);
// A line that rank 0 prints once a run.
void dynapipe_llmc_say_once(DynapipeLlmc* run, const char* literal);

// --- is the tree what the adapter takes it for? ----------------------------------------------------------

// After a forward or backward of theirs: was each wrapped function called as often as a slice needs? Ends the
// program where one was not. wanted: < 0: not looked at.
void dynapipe_llmc_expect_calls(DynapipeLlmc* run, const char* function, int32_t num,
                                const char* const* names, const int* calls, const int* wanted);
// |ours - theirs| <= limit, both finite numbers, or the program ends. (Compiled here, as trees use
// -ffast-math.)
void dynapipe_llmc_expect_close(DynapipeLlmc* run, double ours, double theirs, double limit,
                                const char* what);
// A made-up microbatch of windows of these lengths, every token supervised. free() it.
DynapipeBatch* dynapipe_llmc_made_up(const int* lengths, int num_seqs, int vocab);

// --- data, model -----------------------------------------------------------------------------------------

// Remembers a loader of theirs: the first is the training's, the second the validation's. rows, tokens: their
// B and T.
void dynapipe_llmc_loader(DynapipeLlmc* run, const char* pattern, int rows, int tokens);
// about: what is 0 or NULL there comes from these loaders. model_tokens, model_vocab: longest sequence and
// ids of the model, which the data has to keep to.
void dynapipe_llmc_open_data(DynapipeLlmc* run, const DynapipeRun_v1* about, int32_t model_tokens,
                             int32_t model_vocab);
int32_t dynapipe_llmc_num_steps(const DynapipeLlmc* run);
// A model file to begin with: have all ranks the same one, and if it is sealed, is it what was saved, for the
// vocabulary of the data that is opened later? Its kind and shape are the program's to check, and so is a
// file that no rank can open. A collective.
void dynapipe_llmc_check_model_file(DynapipeLlmc* run, const char* path);
// This rank's ranges; returns how many.
int32_t dynapipe_llmc_place(DynapipeLlmc* run, const DynapipeBlocks_v1* blocks,
                            DynapipeRange out[DYNAPIPE_MAX_RANGES]);
void dynapipe_llmc_begin(DynapipeLlmc* run, const DynapipeLlmcTree* tree,
                         const char* log_dir);  // NULL: no folder
// params: of all ranges of this rank together, with range 0.
void dynapipe_llmc_attach(DynapipeLlmc* run, int32_t idx, const DynapipeModel_v1* api, void* model,
                          const DynapipeParams_v1* params);
// Can this rank run the whole model (to sample from it, for example)? If not, that is printed once.
int dynapipe_llmc_is_whole(DynapipeLlmc* run);

// --- training --------------------------------------------------------------------------------------------

// Gradients of the mean loss over the supervised tokens of the next batch; the loss. A loss, or a norm below,
// that is no finite number ends the program before it is used.
float dynapipe_llmc_step(DynapipeLlmc* run);
int dynapipe_llmc_has_stepped(const DynapipeLlmc* run);  // a step is made, and not ended yet
DynapipeReport_v1*
dynapipe_llmc_report(DynapipeLlmc* run);  // of that step, to be filled in; dynapipe_llmc_* fill the rest
// Norm of the gradients of the whole model. Writes --debug dump-gradients=FILE after the first step.
float dynapipe_llmc_norm(DynapipeLlmc* run);
// After the update: shares parameters, prints the step's line, writes metrics.jsonl. Nothing if no step was
// made.
void dynapipe_llmc_end_step(DynapipeLlmc* run);
int32_t dynapipe_llmc_num_done(const DynapipeLlmc* run);  // updates so far, those before this run included
// dynapipe_validate(), once for each step; NaN where there is no validation data.
float dynapipe_llmc_validate(DynapipeLlmc* run, int32_t max_samples);

// --- checkpoints -----------------------------------------------------------------------------------------

// llm.c's: model_%08d.bin of the whole model and state_%08d_00000.bin of one process, with the position in
// the data after it, and an empty DONE_%08d when both are complete. All ranks write their slices and read so:
// what 4 stages wrote 2 x 2 go on from, and so does llm.c (a fixed-length run starts at its own data's
// begin).
void dynapipe_llmc_save(DynapipeLlmc* run,
                        const char* directory);  // of a step that is saved already: nothing
// By --checkpoint-every, where a signal ends the run, and with has_options at the last step.
void dynapipe_llmc_save_if_due(DynapipeLlmc* run);
// Goes on from the newest step that is DONE, or --resume's: values and position in the data. 0: there is
// none, a new run begins. Damaged files end the program, unless --verify 0.
int dynapipe_llmc_resume(DynapipeLlmc* run, const char* directory);
// If a signal came: saves, prints how to go on, and ends the program.
void dynapipe_llmc_end_if_told(DynapipeLlmc* run);

#ifdef __cplusplus
}
#endif
#endif

#if defined DYNAPIPE && !defined DYNAPIPE_LLMC_CUDA
#ifndef DYNAPIPE_MAIN

// === CPU: above gpt2_forward() ======================================================================
/*
Included in the tree's train_gpt2.c before gpt2_forward(), and again, after #define DYNAPIPE_MAIN, before
main(). What is between is not edited: macros wrap the functions named below; unless a slice is at work they
do as ever.

    encoder_*        only in the range with the embedding, window by window (positions begin anew)
    attention_*      window by window: tokens of all windows follow one another, without padding
    final layernorm, head, softmax, cross entropy: only in the range with the head; all but the layernorm only
on supervised tokens

A slice is a GPT2 of theirs ("view") with its layers only, and a microbatch of n tokens as B = n, T = 1: all
else that they compute is token by token. Tensors of activations have the places and sizes of their own
tables, so what a fork adds there works. A function that is called by another name would compute with T = 1,
so wrapped calls are counted.
*/
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

// Trees of the first weeks, which install.sh tells by these words: DYNAPIPE_UNPADDED (April 2024): the
// vocabulary is not padded, a model file is of version 1. DYNAPIPE_NO_PARAMETER_SIZES (to early May 2024):
// gpt2_build_from_checkpoint() has the sizes of parameters to itself.
#ifdef DYNAPIPE_UNPADDED
#define padded_vocab_size vocab_size
#define DYNAPIPE_CPU_PADDED(Vp)
enum { DYNAPIPE_CPU_FILE_VERSION = 1 };
#else
#define DYNAPIPE_CPU_PADDED(Vp) , Vp
enum { DYNAPIPE_CPU_FILE_VERSION = 3 };
#endif
#ifdef DYNAPIPE_NO_PARAMETER_SIZES
#if NUM_PARAMETER_TENSORS != 16
#error \
    "sizes of this tree's own parameters are not known ---> put them into a fill_in_parameter_sizes(), as later llm.c's have it"
#endif
static inline void fill_in_parameter_sizes(size_t* sizes, GPT2Config config) {
    const size_t V = (size_t)config.padded_vocab_size, L = (size_t)config.num_layers,
                 C = (size_t)config.channels, maxT = (size_t)config.max_seq_len;
    // wte, wpe; ln1, qkv, attproj, ln2, fc, fcproj: weights and biases; lnf
    const size_t all[NUM_PARAMETER_TENSORS] = {
        V * C, maxT * C, L * C,         L * C,     3 * L * C * C, 3 * L * C, L * C * C, L * C,
        L * C, L * C,    4 * L * C * C, 4 * L * C, 4 * L * C * C, L * C,     C,         C};
    memcpy(sizes, all, sizeof all);
}
#endif

// A range of blocks: their model with its layers, whose tensors are in the arrays of the whole part.
typedef struct {
    struct DynapipeCpuPart* part;
    DynapipeRole role;
    GPT2 model;
} DynapipeCpuRange;

// What a rank has: its ranges, and their parameters as one model.
typedef struct DynapipeCpuPart {
    DynapipeSlice slice;
    GPT2 model;
    DynapipeCpuRange ranges[DYNAPIPE_MAX_RANGES];
} DynapipeCpuPart;

// Wrapped calls of one forward or backward.
enum {
    DYNAPIPE_CPU_ENCODER,
    DYNAPIPE_CPU_ATTENTION,
    DYNAPIPE_CPU_FINAL_NORM,
    DYNAPIPE_CPU_HEAD,
    DYNAPIPE_CPU_SOFTMAX,
    DYNAPIPE_CPU_LOSS,
    DYNAPIPE_CPU_CALLS
};

// One call of their forward or backward.
typedef struct {
    const DynapipeCpuRange* range;
    const DynapipeBatch* batch;
    int has_first;  // the embedding is a part of it
    int has_norm;   // the final norm is
    int has_head;   // losses are asked for, or came from here
    float* fed;     // (num_rows, C) rows for a shared head, or their gradient; NULL: the head is not shared
    GPT2 view;
    float* att;        // (L, NH * num_squares) kept from forward to backward
    float* rows;       // (num_rows, C) inputs of the head, of supervised tokens; kept
    float* attention;  // (2, NH, T, T) scratch for the longest window
    float* drows;      // (num_rows, C) scratch
    float* losses;     // (num_rows) of forward
    int calls[DYNAPIPE_CPU_CALLS];
} DynapipeCpuJob;

static DynapipeCpuJob* dynapipe_cpu_job;  // NULL: their own loop

// --- calls of their forward ------------------------------------------------------------------------------

static inline int dynapipe_cpu_window(const DynapipeCpuJob* job, int i, int* num_tokens) {
    *num_tokens = job->batch->cu_seqlens[i + 1] - job->batch->cu_seqlens[i];
    return job->batch->cu_seqlens[i];
}

static inline void dynapipe_cpu_encode(DynapipeCpuJob* job) {
    job->calls[DYNAPIPE_CPU_ENCODER]++;
    const GPT2* v = &job->view;
    int C = v->config.channels, T;
    for (int i = 0; i < job->batch->num_seqs && job->has_first; i++) {
        int t = dynapipe_cpu_window(job, i, &T);
        float* wpe = v->params.wpe + (size_t)job->batch->positions[t] * C;
        encoder_forward(v->acts.encoded + (size_t)t * C, v->inputs + t, v->params.wte, wpe, 1, T, C);
    }
}

// Of which layer their pointer into a tensor of (L, n, NH) values is: that is all they use it for here.
static inline size_t dynapipe_cpu_layer(const DynapipeCpuJob* job, const float* att) {
    size_t layer_values = (size_t)job->batch->num_tokens * job->view.config.num_heads;
    return (size_t)(att - job->view.acts.att) / layer_values;
}

static inline void dynapipe_cpu_attend(DynapipeCpuJob* job, float* out, const float* att, float* qkv) {
    job->calls[DYNAPIPE_CPU_ATTENTION]++;
    int C = job->view.config.channels, NH = job->view.config.num_heads, T;
    float* place = job->att + dynapipe_cpu_layer(job, att) * NH * (size_t)job->batch->num_squares;
    for (int i = 0; i < job->batch->num_seqs; i++) {
        size_t t = (size_t)dynapipe_cpu_window(job, i, &T);
        attention_forward(out + t * C, job->attention, place, qkv + t * 3 * C, 1, T, C, NH);
        place += (size_t)NH * T * T;
    }
}

static inline void dynapipe_cpu_head(DynapipeCpuJob* job, const float* lnf, float* weight) {
    job->calls[DYNAPIPE_CPU_HEAD]++;
    int C = job->view.config.channels, num_rows = job->batch->num_rows;
    float* rows = job->fed != NULL ? job->fed : job->rows;
    if (!job->has_norm || num_rows == 0) { return; }
    for (int i = 0; i < num_rows; i++) {
        memcpy(rows + (size_t)i * C, lnf + (size_t)job->batch->rows[i] * C, sizeof(float) * (size_t)C);
    }
    if (!job->has_head) { return; }
    matmul_forward(job->view.acts.logits, job->rows, weight, NULL, num_rows, 1, C,
                   job->view.config.padded_vocab_size);
}

static inline void dynapipe_cpu_softmax(DynapipeCpuJob* job) {
    job->calls[DYNAPIPE_CPU_SOFTMAX]++;
    const GPT2* v = &job->view;
    if (!job->has_head || job->batch->num_rows == 0) { return; }
    softmax_forward(v->acts.probs, v->acts.logits, job->batch->num_rows, 1,
                    v->config.vocab_size DYNAPIPE_CPU_PADDED(v->config.padded_vocab_size));
}

static inline void dynapipe_cpu_losses(DynapipeCpuJob* job) {
    job->calls[DYNAPIPE_CPU_LOSS]++;
    if (!job->has_head || job->batch->num_rows == 0) { return; }
    crossentropy_forward(job->losses, job->view.acts.probs, (int*)job->batch->targets, job->batch->num_rows,
                         1, job->view.config.padded_vocab_size);
}

// The final layernorm, of forward and backward: is it passed over?
static inline int dynapipe_cpu_passes_norm(DynapipeCpuJob* job) {
    job->calls[DYNAPIPE_CPU_FINAL_NORM]++;
    return !job->has_norm;
}

// --- calls of their backward -----------------------------------------------------------------------------

static inline void dynapipe_cpu_dlogits(DynapipeCpuJob* job, float* dlosses) {
    job->calls[DYNAPIPE_CPU_LOSS]++;
    const GPT2* v = &job->view;
    if (!job->has_head || job->batch->num_rows == 0) { return; }
    for (int i = 0; i < job->batch->num_rows; i++) { dlosses[i] = job->batch->loss_scale; }
    crossentropy_softmax_backward(v->grads_acts.logits, dlosses, v->acts.probs, (int*)job->batch->targets,
                                  job->batch->num_rows, 1,
                                  v->config.vocab_size DYNAPIPE_CPU_PADDED(v->config.padded_vocab_size));
}

static inline void dynapipe_cpu_head_backward(DynapipeCpuJob* job, float* dlnf, float* dweight,
                                              float* weight) {
    job->calls[DYNAPIPE_CPU_HEAD]++;
    int C = job->view.config.channels, num_rows = job->batch->num_rows;
    const float* drows = job->fed != NULL ? job->fed : job->drows;
    if (!job->has_norm || num_rows == 0) { return; }
    if (job->has_head) {
        memset(job->drows, 0, sizeof(float) * (size_t)num_rows * C);
        matmul_backward(job->drows, dweight, NULL, job->view.grads_acts.logits, job->rows, weight, num_rows,
                        1, C, job->view.config.padded_vocab_size);
    }
    for (int i = 0; i < num_rows; i++) {
        memcpy(dlnf + (size_t)job->batch->rows[i] * C, drows + (size_t)i * C, sizeof(float) * (size_t)C);
    }
}

static inline void dynapipe_cpu_attend_backward(DynapipeCpuJob* job, float* dqkv, float* dout, float* qkv,
                                                const float* att) {
    job->calls[DYNAPIPE_CPU_ATTENTION]++;
    int C = job->view.config.channels, NH = job->view.config.num_heads, T;
    float* place = job->att + dynapipe_cpu_layer(job, att) * NH * (size_t)job->batch->num_squares;
    for (int i = 0; i < job->batch->num_seqs; i++) {
        size_t t = (size_t)dynapipe_cpu_window(job, i, &T), num_values = (size_t)NH * T * T;
        memset(job->attention, 0, sizeof(float) * 2 * num_values);
        attention_backward(dqkv + t * 3 * C, job->attention, job->attention + num_values, dout + t * C,
                           qkv + t * 3 * C, place, 1, T, C, NH);
        place += num_values;
    }
}

static inline void dynapipe_cpu_encode_backward(DynapipeCpuJob* job) {
    job->calls[DYNAPIPE_CPU_ENCODER]++;
    const GPT2* v = &job->view;
    int C = v->config.channels, T;
    for (int i = 0; i < job->batch->num_seqs && job->has_first; i++) {
        int t = dynapipe_cpu_window(job, i, &T);
        float* dwpe = v->grads.wpe + (size_t)job->batch->positions[t] * C;
        encoder_backward(v->grads.wte, dwpe, v->grads_acts.encoded + (size_t)t * C, v->inputs + t, 1, T, C);
    }
}

// --- their names, until the part above main() --------------------------------------------------------

// Is this the view's own tensor? A tensor that a slice lacks has an address of its own all the same.
#define DYNAPIPE_CPU_IS(pointer, tensor) \
    (dynapipe_cpu_job != NULL && (pointer) == dynapipe_cpu_job->view.tensor)
#define DYNAPIPE_CPU_PASSES(pointer, tensor) \
    (DYNAPIPE_CPU_IS(pointer, tensor) && dynapipe_cpu_passes_norm(dynapipe_cpu_job))

#define encoder_forward(...) \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_encode(dynapipe_cpu_job) : (encoder_forward)(__VA_ARGS__))
#define attention_forward(out, preatt, att, qkv, ...)                                \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_attend(dynapipe_cpu_job, out, att, qkv) \
                              : (attention_forward)(out, preatt, att, qkv, __VA_ARGS__))
// (without layers the final norm works on what comes in)
#define DYNAPIPE_CPU_OR_IN(is_final, theirs, tensor) \
    ((is_final) && dynapipe_cpu_job->view.config.num_layers == 0 ? dynapipe_cpu_job->view.tensor : (theirs))
#define layernorm_forward(out, mean, rstd, inp, ...)                                                  \
    (DYNAPIPE_CPU_PASSES(out, acts.lnf)                                                               \
         ? (void)0                                                                                    \
         : (layernorm_forward)(out, mean, rstd,                                                       \
                               DYNAPIPE_CPU_OR_IN(DYNAPIPE_CPU_IS(out, acts.lnf), inp, acts.encoded), \
                               __VA_ARGS__))
#define matmul_forward(out, inp, weight, ...)                                             \
    (DYNAPIPE_CPU_IS(out, acts.logits) ? dynapipe_cpu_head(dynapipe_cpu_job, inp, weight) \
                                       : (matmul_forward)(out, inp, weight, __VA_ARGS__))
#define softmax_forward(...) \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_softmax(dynapipe_cpu_job) : (softmax_forward)(__VA_ARGS__))
#define crossentropy_forward(...) \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_losses(dynapipe_cpu_job) : (crossentropy_forward)(__VA_ARGS__))

#define crossentropy_softmax_backward(dlogits, dlosses, ...)                    \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_dlogits(dynapipe_cpu_job, dlosses) \
                              : (crossentropy_softmax_backward)(dlogits, dlosses, __VA_ARGS__))
#define matmul_backward(dinp, dweight, dbias, dout, inp, weight, ...)          \
    (DYNAPIPE_CPU_IS(dinp, grads_acts.lnf)                                     \
         ? dynapipe_cpu_head_backward(dynapipe_cpu_job, dinp, dweight, weight) \
         : (matmul_backward)(dinp, dweight, dbias, dout, inp, weight, __VA_ARGS__))
#define layernorm_backward(dinp, dweight, dbias, dout, inp, ...)                                             \
    (DYNAPIPE_CPU_PASSES(dweight, grads.lnfw)                                                                \
         ? (void)0                                                                                           \
         : (layernorm_backward)(DYNAPIPE_CPU_OR_IN(DYNAPIPE_CPU_IS(dweight, grads.lnfw), dinp,               \
                                                   grads_acts.encoded),                                      \
                                dweight, dbias, dout,                                                        \
                                DYNAPIPE_CPU_OR_IN(DYNAPIPE_CPU_IS(dweight, grads.lnfw), inp, acts.encoded), \
                                __VA_ARGS__))
#define attention_backward(dqkv, dpreatt, datt, dout, qkv, att, ...)                                 \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_attend_backward(dynapipe_cpu_job, dqkv, dout, qkv, att) \
                              : (attention_backward)(dqkv, dpreatt, datt, dout, qkv, att, __VA_ARGS__))
#define encoder_backward(...)                                                  \
    (dynapipe_cpu_job != NULL ? dynapipe_cpu_encode_backward(dynapipe_cpu_job) \
                              : (encoder_backward)(__VA_ARGS__))

#else
// === CPU: above main() ==============================================================================
/*
Their model as DynapipeModel_v1 and DynapipeBlocks_v1, over their gpt2_forward() and gpt2_backward() as
wrapped above.

    acts     their activations of n tokens | att (L, NH * squares) | inputs of the head (rows, C) | inputs,
targets (n each) scratch  gradients of activations | preatt, or dpreatt and datt, of one window | gradient of
the head's inputs

Without a backward to come (validation, a forward that is recomputed) the activations are of one layer: their
gpt2_forward() is called for one after the other.
*/
#ifdef _OPENMP
#include <omp.h>
#endif
#include <math.h>
#include <stdio.h>
#include <unistd.h>

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

enum { DYNAPIPE_CPU_ACTS = sizeof(ActivationTensors) / sizeof(float*) };
// Members of their structs by number, which is that of their sizes (dynapipe_cpu_check_tables()).
#define DYNAPIPE_CPU_PARAM(name) (offsetof(ParameterTensors, name) / sizeof(float*))
#define DYNAPIPE_CPU_ACT(name) (offsetof(ActivationTensors, name) / sizeof(float*))

static struct {
    DynapipeLlmc* run;
    GPT2* whole;        // theirs; its values are where ranges have theirs from, until the model is cut
    GPT2Config config;  // of the whole
    DynapipeTensors tensors;
    size_t act_sizes[DYNAPIPE_CPU_ACTS], layer_act_sizes[DYNAPIPE_CPU_ACTS];  // of one token: without layers,
                                                                              // and in each layer
    DynapipeModel_v1 api;
    DynapipeCpuPart* mine;                           // NULL before DYNAPIPE_FIRST
    const void *train_loader, *val_loader, *loader;  // the last: whose batch was asked for last
    int* no_tokens[2];                               // (B, T) zeros: what loaders hold, training's and other
    float loss;                                      // of the step
    char signature[192];
} dynapipe_cpu;

static inline int dynapipe_cpu_is_on(void) {
    return dynapipe_llmc_is_on(dynapipe_cpu.run);
}

static inline Dynapipe* dynapipe_cpu_session(void) {
    return dynapipe_llmc_session(dynapipe_cpu.run);
}

static inline const DynapipeLlmcOptions* dynapipe_cpu_options(void) {
    return dynapipe_llmc_options(dynapipe_cpu.run);
}

// Zeros.
static inline void* dynapipe_cpu_memory(int64_t num_bytes) {
    void* memory = calloc(1, num_bytes > 0 ? (size_t)num_bytes : 1);
    if (memory == NULL) {
        dynapipe_llmc_die(dynapipe_cpu.run, "no memory for %lld bytes of the model", (long long)num_bytes);
    }
    return memory;
}

// --- their tables ----------------------------------------------------------------------------------------

// Tensors come in the order of their tables. With one value in each, tensor i is at value i.
static inline void dynapipe_cpu_check_tables(void) {
    size_t ones[DYNAPIPE_MAX_TENSORS];
    ParameterTensors params;
    ActivationTensors acts;
    int is_alike = sizeof params == NUM_PARAMETER_TENSORS * sizeof(float*) &&
                   sizeof acts == NUM_ACTIVATION_TENSORS * sizeof(float*) &&
                   NUM_PARAMETER_TENSORS <= DYNAPIPE_MAX_TENSORS &&
                   (int)DYNAPIPE_CPU_ACTS <= DYNAPIPE_MAX_TENSORS;
    for (int i = 0; i < DYNAPIPE_MAX_TENSORS; i++) { ones[i] = 1; }
    if (is_alike) {
        float *params_memory = malloc_and_point_parameters(&params, ones),
              *acts_memory = malloc_and_point_activations(&acts, ones);
        for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
            is_alike &= ((float**)&params)[i] == params_memory + i;
        }
        for (int i = 0; i < NUM_ACTIVATION_TENSORS; i++) {
            is_alike &= ((float**)&acts)[i] == acts_memory + i;
        }
        free(params_memory);
        free(acts_memory);
    }
    if (is_alike) { return; }
    dynapipe_llmc_die(dynapipe_cpu.run,
                      "ParameterTensors or ActivationTensors are not one tensor for each of their sizes, in "
                      "that order: this model cannot be cut ---> doc/porting.md");
}

static inline int dynapipe_cpu_find_tensors(void) {
    size_t sizes_of_1[NUM_PARAMETER_TENSORS], sizes_of_2[NUM_PARAMETER_TENSORS];
    int32_t where[NUM_PARAMETER_TENSORS];
    GPT2Config config = dynapipe_cpu.config;
    config.num_layers = 1;
    fill_in_parameter_sizes(sizes_of_1, config);
    config.num_layers = 2;
    fill_in_parameter_sizes(sizes_of_2, config);
    memset(where, 0, sizeof where);
    where[DYNAPIPE_CPU_PARAM(wte)] = DYNAPIPE_TENSOR_FIRST | DYNAPIPE_TENSOR_HEAD;
    where[DYNAPIPE_CPU_PARAM(wpe)] = DYNAPIPE_TENSOR_FIRST;
    where[DYNAPIPE_CPU_PARAM(lnfw)] = where[DYNAPIPE_CPU_PARAM(lnfb)] = DYNAPIPE_TENSOR_NORM;
    return dynapipe_tensors_init(&dynapipe_cpu.tensors, NUM_PARAMETER_TENSORS, dynapipe_cpu.config.num_layers,
                                 sizes_of_1, sizes_of_2, where, dynapipe_cpu.whole->num_parameters);
}

// Their own forward of a token on a copy of their struct, with all layers and with one, says how large
// activations are. (Of a model of one layer all count as without layers: more than is needed.)
static inline void dynapipe_cpu_find_acts(void) {
    size_t* all = dynapipe_cpu.act_sizes;
    int token = 0, num_layers = dynapipe_cpu.config.num_layers;
    for (int is_one = 0; is_one < 2; is_one++) {
        GPT2 model = *dynapipe_cpu.whole;
        if (is_one) { model.config.num_layers = 1; }
        model.acts_memory = NULL;
        gpt2_forward(&model, &token, NULL, 1, 1);
        for (int i = 0; i < DYNAPIPE_CPU_ACTS; i++) {
            size_t more = num_layers > 1 ? (all[i] - model.act_sizes[i]) / (size_t)(num_layers - 1) : 0;
            dynapipe_cpu.layer_act_sizes[i] = more;
            all[i] = is_one ? model.act_sizes[i] - more : model.act_sizes[i];
        }
        free(model.acts_memory);
        if (model.inputs != dynapipe_cpu.whole->inputs) { free(model.inputs); }
        if (model.targets != dynapipe_cpu.whole->targets) { free(model.targets); }
    }
}

// --- memory of a microbatch -----------------------------------------------------------------------------

enum { DYNAPIPE_CPU_BACKWARD = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD };

// Layers with activations of their own. Where nothing is kept for a backward, one serves all of them.
static inline int dynapipe_cpu_kept_layers(const DynapipeCpuRange* range, int flags) {
    return (flags & DYNAPIPE_FORWARD_KEEP) != 0 || range->role.num_layers == 0 ? range->role.num_layers : 1;
}

// Values of each tensor of activations, or of their gradients; returns their sum. Their own numbers, but
// where the wrapped calls have another place (att), nothing to keep, or supervised tokens only.
static inline size_t dynapipe_cpu_act_sizes(size_t* sizes, const DynapipeCpuRange* range,
                                            const DynapipeBatch* batch, int flags, int is_gradient) {
    const size_t num_layers = (size_t)dynapipe_cpu_kept_layers(range, flags);
    size_t num_rows = range->role.has_head && flags != 0 ? (size_t)batch->num_rows : 0, total = 0;
    for (int i = 0; i < DYNAPIPE_CPU_ACTS; i++) {
        sizes[i] = (size_t)batch->num_tokens *
                   (dynapipe_cpu.act_sizes[i] + num_layers * dynapipe_cpu.layer_act_sizes[i]);
    }
    // (what a layer leaves to the next, too, where one place serves all)
    if (!range->role.has_first && (flags & DYNAPIPE_FORWARD_KEEP) != 0) {
        sizes[DYNAPIPE_CPU_ACT(encoded)] = 0;
    }
    if (!range->role.has_norm || (flags == 0 && !range->role.feeds)) {
        sizes[DYNAPIPE_CPU_ACT(lnf)] = sizes[DYNAPIPE_CPU_ACT(lnf_mean)] = sizes[DYNAPIPE_CPU_ACT(lnf_rstd)] =
            0;
    }
    sizes[DYNAPIPE_CPU_ACT(logits)] = num_rows * (size_t)range->model.config.padded_vocab_size;
    sizes[DYNAPIPE_CPU_ACT(probs)] = is_gradient ? 0 : sizes[DYNAPIPE_CPU_ACT(logits)];
    for (int i = 0; i < DYNAPIPE_CPU_ACTS; i++) { total += sizes[i]; }
    return total;
}

static inline void dynapipe_cpu_point_acts(ActivationTensors* out, const size_t* sizes, float* memory) {
    for (int i = 0; i < DYNAPIPE_CPU_ACTS; memory += sizes[i++]) {
        ((float**)out)[i] = sizes[i] > 0 ? memory : (float*)dynapipe_tensors_nowhere(i);
    }
}

static inline size_t dynapipe_cpu_att_values(const DynapipeCpuRange* range, const DynapipeBatch* batch,
                                             int flags) {
    return (size_t)dynapipe_cpu_kept_layers(range, flags) * range->model.config.num_heads *
           (size_t)batch->num_squares;
}

static inline size_t dynapipe_cpu_row_values(const DynapipeCpuRange* range, const DynapipeBatch* batch,
                                             int flags) {
    return range->role.has_head && flags != 0 ? (size_t)batch->num_rows * range->model.config.channels : 0;
}

static inline int64_t dynapipe_cpu_acts_bytes(void* range_, const DynapipeBatch* batch, int flags) {
    const DynapipeCpuRange* range = (const DynapipeCpuRange*)range_;
    size_t sizes[DYNAPIPE_CPU_ACTS], num_values;
    if (range->role.is_share) {  // logits, probabilities
        return (int64_t)sizeof(float) * batch->num_rows * 2 * range->model.config.padded_vocab_size;
    }
    num_values = dynapipe_cpu_act_sizes(sizes, range, batch, flags, 0) +
                 dynapipe_cpu_att_values(range, batch, flags) + dynapipe_cpu_row_values(range, batch, flags);
    return (int64_t)(num_values * sizeof(float) + 2 * (size_t)batch->num_tokens * sizeof(int));
}

static inline int64_t dynapipe_cpu_scratch_bytes(void* range_, const DynapipeBatch* batch) {
    const DynapipeCpuRange* range = (const DynapipeCpuRange*)range_;
    size_t sizes[DYNAPIPE_CPU_ACTS], T = (size_t)batch->max_seq_tokens;
    if (range->role.is_share) {  // gradients of losses and logits
        return (int64_t)sizeof(float) * batch->num_rows * (1 + range->model.config.padded_vocab_size);
    }
    return (int64_t)(sizeof(float) * (dynapipe_cpu_act_sizes(sizes, range, batch, DYNAPIPE_CPU_BACKWARD, 1) +
                                      2 * (size_t)range->model.config.num_heads * T * T +
                                      dynapipe_cpu_row_values(range, batch, DYNAPIPE_CPU_BACKWARD)));
}

static inline int64_t dynapipe_cpu_boundary_bytes(void* range_, const DynapipeBatch* batch, int is_behind) {
    const DynapipeCpuRange* range = (const DynapipeCpuRange*)range_;
    int is_rows = range->role.is_share || (range->role.feeds && is_behind);
    return (int64_t)sizeof(float) * (is_rows ? batch->num_rows : batch->num_tokens) *
           range->model.config.channels;
}

// --- forward and backward --------------------------------------------------------------------------------

// The view on this memory, of all layers or of the first. Returns the values of the gradients of activations,
// which scratch begins with.
static inline size_t dynapipe_cpu_begin(DynapipeCpuJob* job, const DynapipeCpuRange* range,
                                        const DynapipeBatch* batch, void* acts_, void* scratch_, int flags) {
    float *acts = (float*)acts_, *scratch = (float*)scratch_;
    size_t sizes[DYNAPIPE_CPU_ACTS], total, total_grads, T = (size_t)batch->max_seq_tokens;
    GPT2* view = &job->view;
    memset(job, 0, sizeof *job);
    job->range = range;
    job->batch = batch;
    job->has_first = range->role.has_first;
    *view = range->model;
    view->config.num_layers = dynapipe_cpu_kept_layers(range, flags);
    view->batch_size = batch->num_tokens;
    view->seq_len = 1;
    view->mean_loss = 0.0f;  // to their backward: a forward was there
    total = dynapipe_cpu_act_sizes(sizes, range, batch, flags, 0);
    dynapipe_cpu_point_acts(&view->acts, sizes, acts);
    view->acts_memory = acts;
    view->num_activations = total;
    job->att = acts + total;
    job->rows = job->att + dynapipe_cpu_att_values(range, batch, flags);
    view->inputs = (int*)(job->rows + dynapipe_cpu_row_values(range, batch, flags));
    view->targets = view->inputs + batch->num_tokens;
    total_grads = dynapipe_cpu_act_sizes(sizes, range, batch, DYNAPIPE_CPU_BACKWARD, 1);
    dynapipe_cpu_point_acts(&view->grads_acts, sizes, scratch);
    view->grads_acts_memory = scratch;
    job->attention = scratch + total_grads;
    job->drows = job->attention + 2 * (size_t)view->config.num_heads * T * T;
    return total_grads;
}

// A forward or backward makes the same calls whatever its range has; those of losses only where these are
// asked for.
static inline void dynapipe_cpu_expect(const DynapipeCpuJob* job, int is_forward) {
    static const char* const forward[] = {"encoder_forward()",
                                          "attention_forward()",
                                          "layernorm_forward() to acts.lnf",
                                          "matmul_forward() to acts.logits",
                                          "softmax_forward()",
                                          "crossentropy_forward()"};
    static const char* const backward[] = {"encoder_backward()",
                                           "attention_backward()",
                                           "layernorm_backward() to grads.lnfw",
                                           "matmul_backward() to grads_acts.lnf",
                                           "",
                                           "crossentropy_softmax_backward()"};
    int wanted[] = {1, job->view.config.num_layers,          1,
                    1, job->has_head && is_forward ? 1 : -1, job->has_head ? 1 : -1};
    dynapipe_llmc_expect_calls(dynapipe_cpu.run, is_forward ? "gpt2_forward()" : "gpt2_backward()",
                               DYNAPIPE_CPU_CALLS, is_forward ? forward : backward, job->calls, wanted);
}

// The last layer of a (L, n, C) tensor.
static inline float* dynapipe_cpu_last_layer(const DynapipeCpuJob* job, float* tensor) {
    size_t layer_values = (size_t)job->batch->num_tokens * job->view.config.channels;
    return tensor + (size_t)(job->view.config.num_layers - 1) * layer_values;
}

// By their own products, on rows that are there alone.
static inline void dynapipe_cpu_share_forward(const DynapipeCpuRange* range, const DynapipeBatch* batch,
                                              const void* in, float* logits, float* losses) {
    int R = batch->num_rows, C = range->model.config.channels, Vp = range->model.config.padded_vocab_size;
    float* probs = logits + (size_t)R * Vp;
    matmul_forward(logits, (float*)in, range->model.params.wte, NULL, R, 1, C, Vp);
    softmax_forward(probs, logits, R, 1, range->model.config.vocab_size DYNAPIPE_CPU_PADDED(Vp));
    crossentropy_forward(losses, probs, (int*)batch->targets, R, 1, Vp);
}

static inline void dynapipe_cpu_share_backward(const DynapipeCpuRange* range, const DynapipeBatch* batch,
                                               const void* in, float* logits, void* din, float* dlosses) {
    int R = batch->num_rows, C = range->model.config.channels, Vp = range->model.config.padded_vocab_size;
    float *probs = logits + (size_t)R * Vp, *dlogits = dlosses + R;
    for (int i = 0; i < R; i++) { dlosses[i] = batch->loss_scale; }
    memset(dlogits, 0, sizeof(float) * (size_t)R * Vp);
    memset(din, 0, sizeof(float) * (size_t)R * C);
    crossentropy_softmax_backward(dlogits, dlosses, probs, (int*)batch->targets, R, 1,
                                  range->model.config.vocab_size DYNAPIPE_CPU_PADDED(Vp));
    matmul_backward((float*)din, range->model.grads.wte, NULL, dlogits, (float*)in, range->model.params.wte,
                    R, 1, C, Vp);
}

static inline int dynapipe_cpu_forward(void* range_, const DynapipeBatch* batch, const void* in, void* out,
                                       void* acts, void* scratch, float* losses, int flags) {
    DynapipeCpuJob job;
    const DynapipeCpuRange* range = (const DynapipeCpuRange*)range_;
    if (range->role.is_share) {
        if (batch->num_rows > 0 && flags != 0) {
            dynapipe_cpu_share_forward(range, batch, in, (float*)acts, losses);
        }
        return 0;
    }
    int num_layers = range->role.num_layers, kept = dynapipe_cpu_kept_layers(range, flags),
        feeds = range->role.feeds;
    int has_head = range->role.has_head && (flags & DYNAPIPE_FORWARD_HEAD) != 0;
    int* tokens = (int*)batch->tokens;  // legal targets, too
    size_t num_bytes = (size_t)dynapipe_cpu_boundary_bytes(range_, batch, 0);
    dynapipe_cpu_begin(&job, range, batch, acts, scratch, flags);
    float *between = job.view.acts.encoded, *last = dynapipe_cpu_last_layer(&job, job.view.acts.residual3);
    if (in != NULL) { job.view.acts.encoded = (float*)in; }
    job.losses = losses;
    if (has_head) { memset(job.view.acts.losses, 0, sizeof(float) * (size_t)batch->num_tokens); }  // they add
    int l = 0;
    do {
        if (l > 0) {  // the view goes on to the next layer
            dynapipe_tensors_advance(&dynapipe_cpu.tensors, &job.view.params, sizeof(float), 1);
            job.has_first = 0;
            job.view.acts.encoded = (float*)memcpy(between, last, num_bytes);
        }
        job.has_head = has_head && l + kept == num_layers;
        job.fed = feeds && l + kept == num_layers ? (float*)out : NULL;
        job.has_norm = job.has_head || job.fed != NULL;
        memset(job.calls, 0, sizeof job.calls);
        dynapipe_cpu_job = &job;
        gpt2_forward(&job.view, tokens, job.has_head ? tokens : NULL, batch->num_tokens, 1);
        dynapipe_cpu_job = NULL;
        dynapipe_cpu_expect(&job, 1);
        l += kept;
    } while (l < num_layers);
    if (out != NULL && !feeds) { memcpy(out, last, num_bytes); }
    return 0;
}

// Their backward is one, so there is no backward_weights.
static inline int dynapipe_cpu_backward(void* range_, const DynapipeBatch* batch, const void* in, void* acts,
                                        const void* dout, void* din, void* scratch) {
    DynapipeCpuJob job;
    const DynapipeCpuRange* range = (const DynapipeCpuRange*)range_;
    if (range->role.is_share) {
        if (batch->num_rows > 0) {
            dynapipe_cpu_share_backward(range, batch, in, (float*)acts, din, (float*)scratch);
        }
        return 0;
    }
    size_t num_bytes = (size_t)dynapipe_cpu_boundary_bytes(range_, batch, 0);
    size_t num_grads = dynapipe_cpu_begin(&job, range, batch, acts, scratch, DYNAPIPE_CPU_BACKWARD);
    if (in != NULL) { job.view.acts.encoded = (float*)in; }
    job.has_head = range->role.has_head;
    job.has_norm = range->role.has_norm;
    job.fed = range->role.feeds ? (float*)dout : NULL;
    memset(scratch, 0, sizeof(float) * num_grads);
    if (dout != NULL && !range->role.feeds) {
        memcpy(dynapipe_cpu_last_layer(&job, job.view.grads_acts.residual3), dout, num_bytes);
    }
    if (din != NULL) { job.view.grads_acts.encoded = (float*)memset(din, 0, num_bytes); }
    dynapipe_cpu_job = &job;
    gpt2_backward(&job.view);
    dynapipe_cpu_job = NULL;
    dynapipe_cpu_expect(&job, 0);
    return 0;
}

static inline void dynapipe_cpu_zero_gradients(void* range) {
    const DynapipeCpuPart* part = ((const DynapipeCpuRange*)range)->part;
    memset(part->model.grads_memory, 0, sizeof(float) * (size_t)part->slice.num_values);
}

// --- ranges ----------------------------------------------------------------------------------------------

static inline void dynapipe_cpu_point(GPT2* model, const DynapipeCpuPart* part, int first_layer) {
    const DynapipeTensors* all = &dynapipe_cpu.tensors;
    const GPT2* values = &part->model;
    if (values->params_memory == NULL) { return; }
    dynapipe_tensors_point(all, &part->slice, &model->params, values->params_memory, sizeof(float),
                           first_layer);
    dynapipe_tensors_point(all, &part->slice, &model->grads, values->grads_memory, sizeof(float),
                           first_layer);
}

static inline void dynapipe_cpu_drop(void* ctx, void* range) {
    DynapipeCpuPart* part = ((DynapipeCpuRange*)range)->part;
    float* arrays[] = {part->model.params_memory, part->model.grads_memory, part->model.m_memory,
                       part->model.v_memory};
    (void)ctx;
    for (int i = 0; i < 4; i++) { free(arrays[i]); }
    free(part);
}

static inline DynapipeCpuPart* dynapipe_cpu_make_part(const DynapipeRange* blocks, int num_ranges,
                                                      int has_values, DynapipeParams_v1* params) {
    DynapipeCpuPart* part = (DynapipeCpuPart*)dynapipe_cpu_memory(sizeof *part);
    DynapipeSlice* slice = &part->slice;
    GPT2* model = &part->model;
    int num_layers = 0;
    *slice = dynapipe_tensors_slice(&dynapipe_cpu.tensors, blocks, num_ranges);
    *model = *dynapipe_cpu.whole;  // what a fork has there besides, too
    model->params_memory = model->grads_memory = model->m_memory = model->v_memory = NULL;
    model->config.num_layers = slice->num_layers;
    model->num_parameters = (size_t)slice->num_values;
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { model->param_sizes[i] = (size_t)slice->count[i]; }
    if (has_values) {
        model->params_memory = (float*)dynapipe_cpu_memory(slice->num_values * (int64_t)sizeof(float));
        model->grads_memory = (float*)dynapipe_cpu_memory(slice->num_values * (int64_t)sizeof(float));
        dynapipe_tensors_copy(&dynapipe_cpu.tensors, slice, model->params_memory,
                              dynapipe_cpu.whole->params_memory, sizeof(float), NULL);
    }
    dynapipe_cpu_point(model, part, 0);
    for (int i = 0; i < num_ranges; i++) {
        DynapipeCpuRange* range = &part->ranges[i];
        range->part = part;
        range->role = dynapipe_tensors_role(&dynapipe_cpu.tensors, blocks[i], num_layers);
        range->model = *model;
        range->model.config.num_layers = range->role.num_layers;
        dynapipe_cpu_point(&range->model, part, num_layers);
        num_layers += range->role.num_layers;
    }
    memset(params, 0, sizeof *params);
    params->params = model->params_memory;
    params->grads = model->grads_memory;
    params->num_params = slice->num_values;
    params->param_type = params->grad_type = DYNAPIPE_FLOAT32;
    params->num_tied = slice->num_tied;
    params->tied = slice->tied;
    return part;
}

static inline int dynapipe_cpu_make(void* ctx, DynapipeRange blocks, int has_values, void** out,
                                    DynapipeParams_v1* params) {
    (void)ctx;
    *out = &dynapipe_cpu_make_part(&blocks, 1, has_values, params)->ranges[0];
    return 0;
}

static inline double dynapipe_cpu_sum_squares(const void* values_, int64_t num_values) {
    const float* values = (const float*)values_;
    double squares = 0;
    for (int64_t i = 0; i < num_values; i++) { squares += (double)values[i] * values[i]; }
    return squares;
}

// A step of no length, after the norm of the gradients. Their update makes its memory at the first call.
static inline int dynapipe_cpu_time_update(void* ctx, void* range) {
    GPT2* model = &((DynapipeCpuRange*)range)->part->model;
    volatile double squares = dynapipe_cpu_sum_squares(model->grads_memory, (int64_t)model->num_parameters);
    (void)ctx, (void)squares;  // (volatile: it is to be computed)
    gpt2_update(model, 0.0f, 0.9f, 0.999f, 1e-8f, 0.0f, 1);
    return 0;
}

static inline DynapipeBlocks_v1 dynapipe_cpu_blocks(void) {
    DynapipeModel_v1* api = &dynapipe_cpu.api;
    DynapipeBlocks_v1 blocks;
    GPT2Config* config = &dynapipe_cpu.config;
    memset(api, 0, sizeof *api);
    api->name = "llm.c, CPU";
    api->acts_bytes = dynapipe_cpu_acts_bytes;
    api->scratch_bytes = dynapipe_cpu_scratch_bytes;
    api->boundary_bytes = dynapipe_cpu_boundary_bytes;
    api->forward = dynapipe_cpu_forward;
    api->backward_inputs = dynapipe_cpu_backward;
    api->zero_gradients = dynapipe_cpu_zero_gradients;
    memset(&blocks, 0, sizeof blocks);
    snprintf(dynapipe_cpu.signature, sizeof dynapipe_cpu.signature,
             "llm.c CPU C %d NH %d Vp %d threads %d, compiler %.60s", config->channels, config->num_heads,
             config->padded_vocab_size, dynapipe_threads(dynapipe_cpu_session()), __VERSION__);
    blocks.api = api;
    blocks.signature = dynapipe_cpu.signature;
    blocks.num_layers = config->num_layers;
    blocks.vocab = config->vocab_size;
    blocks.max_seq_tokens = config->max_seq_len;
    blocks.optimizer_bytes = 2 * (int32_t)sizeof(float);
    blocks.shapes.head_by_rows = 1;
    blocks.make = dynapipe_cpu_make;
    blocks.drop = dynapipe_cpu_drop;
    blocks.update = dynapipe_cpu_time_update;
    return blocks;
}

// --- is a slice what their trainer computes? -------------------------------------------------------------
/*
Before the model is cut: two short made-up sequences of different lengths through their own gpt2_forward() and
gpt2_backward(), each alone as B = 1, and through a range of all blocks, together as B = n, T = 1. This finds
what
--check-model cannot see, as that compares slices with slices: rotary positions, a loss of their own, whatever
knows of T and is not wrapped. Losses have to agree within 1e-4, norms of gradients within 1e-3.
*/
static inline void dynapipe_cpu_norms(double* out, const DynapipeSlice* slice, const float* grads) {
    for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
        out[i] = sqrt(dynapipe_cpu_sum_squares(grads + slice->begin[i], slice->count[i]));
    }
}

// Window i alone, as ever, on a copy of their struct, so that theirs stays as unused as it is. norms: NULL:
// not needed.
static inline double dynapipe_cpu_their_loss(const DynapipeBatch* batch, int i, const DynapipeSlice* slice,
                                             double* norms) {
    const GPT2* whole = dynapipe_cpu.whole;
    GPT2 model = *whole;
    int t = batch->cu_seqlens[i], T = batch->cu_seqlens[i + 1] - t;
    model.acts_memory = model.grads_memory = model.grads_acts_memory = NULL;
    gpt2_forward(&model, (int*)batch->tokens + t, (int*)batch->targets + t, 1, (size_t)T);
    if (norms != NULL) {
        gpt2_backward(&model);
        dynapipe_cpu_norms(norms, slice, model.grads_memory);
        free(model.grads_memory);
        free(model.grads_acts_memory);
    }
    free(model.acts_memory);
    if (model.inputs != whole->inputs) { free(model.inputs); }
    if (model.targets != whole->targets) { free(model.targets); }
    return (double)model.mean_loss;
}

// Ours comes first: its counts find a call that is missing. Of one window the gradients, too.
static inline void dynapipe_cpu_probe_windows(DynapipeCpuRange* range, int num_seqs) {
    int max_tokens = dynapipe_cpu.config.max_seq_len,
        flags = DYNAPIPE_FORWARD_HEAD | (num_seqs == 1 ? DYNAPIPE_FORWARD_KEEP : 0);
    int lengths[2] = {max_tokens < 9 ? max_tokens : 9, max_tokens < 6 ? max_tokens : 6};
    double ours[NUM_PARAMETER_TENSORS], theirs[NUM_PARAMETER_TENSORS], total = 0;
    char what[128];
    DynapipeBatch* batch = dynapipe_llmc_made_up(lengths, num_seqs, dynapipe_cpu.config.vocab_size);
    void* acts = dynapipe_cpu_memory(dynapipe_cpu_acts_bytes(range, batch, flags));
    void* scratch = dynapipe_cpu_memory(dynapipe_cpu_scratch_bytes(range, batch));
    float losses[16];
    dynapipe_cpu_forward(range, batch, NULL, NULL, acts, scratch, losses, flags);
    if (num_seqs == 1) { dynapipe_cpu_backward(range, batch, NULL, acts, NULL, NULL, scratch); }
    for (int i = 0; i < num_seqs; i++) {
        double mean = 0;
        for (int t = batch->cu_seqlens[i]; t < batch->cu_seqlens[i + 1]; t++) {
            mean += losses[t] / lengths[i];
        }
        double their = dynapipe_cpu_their_loss(batch, i, &range->part->slice, num_seqs == 1 ? theirs : NULL);
        dynapipe_llmc_expect_close(dynapipe_cpu.run, mean, their, 1e-4 * fabs(their),
                                   "the loss of a made-up sequence");
    }
    if (num_seqs == 1) {
        dynapipe_cpu_norms(ours, &range->part->slice, range->part->model.grads_memory);
        for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) { total += theirs[i] * theirs[i]; }
        for (int i = 0; i < NUM_PARAMETER_TENSORS; i++) {
            snprintf(what, sizeof what, "the norm of a made-up sequence's gradients of parameter tensor %d",
                     i);
            dynapipe_llmc_expect_close(dynapipe_cpu.run, ours[i], theirs[i],
                                       1e-3 * theirs[i] + 1e-6 * sqrt(total), what);
        }
    }
    free(acts);
    free(scratch);
    free(batch);
}

// By rank 0, as all have the same model; the others wait, or end with it.
static inline void dynapipe_cpu_probe(void) {
    double done = 0;
    if (dynapipe_rank(dynapipe_cpu_session()) == 0) {
        DynapipeRange all;
        DynapipeParams_v1 params;
        memset(&all, 0, sizeof all);
        all.end = dynapipe_cpu.config.num_layers + 2;
        DynapipeCpuRange* range = &dynapipe_cpu_make_part(&all, 1, 1, &params)->ranges[0];
        dynapipe_cpu_probe_windows(range, 1);
        dynapipe_cpu_probe_windows(range, 2);
        dynapipe_cpu_drop(NULL, range);
    }
    dynapipe_llmc_check(dynapipe_cpu.run, dynapipe_sum(dynapipe_cpu_session(), &done, 1));
    if (dynapipe_cpu_options()->check_model) {
        printf(
            "ok   sequences alone in the program's own gpt2_forward() and gpt2_backward() give the same\n");
    }
}

// === CPU: main() ====================================================================================
/*
In main():

    int main(int argc, char** argv) {
        DYNAPIPE_OPEN(argc, argv)                // joins the ranks, takes the --options out of argv
        ...                                      // model and data loaders, as ever
        for (int step = DYNAPIPE_FIRST(&model, 0); DYNAPIPE_STEPS_OR(step) step <= 40; step++) {
            if (DYNAPIPE_WHOLE_AND step > 0 && step % 20 == 0) { ... samples of the model's text ... }

DYNAPIPE_FIRST checks and measures the model, leaves this rank its slice of it, and resumes if told to.

The loop's calls keep their names: dataloader_*: nothing, the plugin has the data; gpt2_forward() on training
tokens: the first after an update is a step of all ranks, mean_loss its loss, the others nothing; on
validation tokens: the validation; without targets: theirs; gpt2_zero_grad(), gpt2_backward(): done in the
step; gpt2_update(): theirs, on this rank's slice, then the report and maybe a checkpoint. With --fixed-length
all of them are theirs. Without -DDYNAPIPE the words above mean nothing and cost nothing.
*/
static inline void dynapipe_cpu_open(int* argc, char*** argv) {
    dynapipe_cpu.run = dynapipe_llmc_open(argc, argv, 1);
    if (!dynapipe_cpu_is_on()) { return; }
#ifndef DYNAPIPE_SIMULATED  // (where all ranks are one process)
    // what other ranks print to the terminal would be rank 0's lines again
    if (dynapipe_rank(dynapipe_cpu_session()) != 0 && freopen("/dev/null", "w", stdout) == NULL) {
        dynapipe_llmc_die(dynapipe_cpu.run, "no /dev/null");
    }
#endif
#ifdef _OPENMP
    omp_set_num_threads(dynapipe_threads(dynapipe_cpu_session()));
#endif
}

static inline const char* dynapipe_cpu_model_path(const char* theirs) {
    const char* path = dynapipe_cpu_options()->model;
    if (path == NULL) { path = theirs; }
    if (dynapipe_cpu_is_on()) { dynapipe_llmc_check_model_file(dynapipe_cpu.run, path); }
    return path;
}

static inline const char* dynapipe_cpu_data(const void* loader, const char* theirs) {
    const DynapipeLlmcOptions* options = dynapipe_cpu_options();
    const char* path = loader == dynapipe_cpu.train_loader ? options->train_data : options->val_data;
    return path != NULL ? path : theirs;
}

// The first loader is the training's, the second the validation's. Returns 1: theirs is not to be opened.
static inline int dynapipe_cpu_loader(void* loader, size_t loader_bytes, const char* pattern, int B, int T,
                                      ...) {
    int is_train = dynapipe_cpu.train_loader == NULL;
    *(is_train ? &dynapipe_cpu.train_loader : &dynapipe_cpu.val_loader) = loader;
    if (!dynapipe_cpu_is_on()) { return 0; }
    dynapipe_llmc_loader(dynapipe_cpu.run, pattern, B, T);
    memset(loader, 0, loader_bytes);
    int** no_tokens = &dynapipe_cpu.no_tokens[!is_train];
    if (*no_tokens == NULL) { *no_tokens = (int*)dynapipe_cpu_memory((int64_t)sizeof(int) * B * T); }
    return 1;
}

static inline int dynapipe_cpu_next_batch(const void* loader) {
    dynapipe_cpu.loader = loader;
    return dynapipe_cpu_is_on();
}

static inline void dynapipe_cpu_arrays(DynapipeLlmcArrays* out, const char* beside) {
    static int32_t header[256];
    const GPT2Config* config = &dynapipe_cpu.config;
    GPT2* model = dynapipe_cpu.whole;
    int32_t fields[] = {20240326,           DYNAPIPE_CPU_FILE_VERSION, config->max_seq_len,
                        config->vocab_size, config->num_layers,        config->num_heads,
                        config->channels,   config->padded_vocab_size};
    (void)beside;
    if (model->m_memory == NULL) {  // as their first update would
        model->m_memory = (float*)dynapipe_cpu_memory((int64_t)(model->num_parameters * sizeof(float)));
        model->v_memory = (float*)dynapipe_cpu_memory((int64_t)(model->num_parameters * sizeof(float)));
    }
    memcpy(header, fields, sizeof fields);
    memset(out, 0, sizeof *out);
    out->value_bytes = (int32_t)sizeof(float);
    out->params = model->params_memory;
    out->grads = model->grads_memory;
    out->m = model->m_memory;
    out->v = model->v_memory;
    out->header = header;
    out->header_bytes = (int32_t)sizeof header;
}

// From here on their struct is this rank's slice: what they update, zero and free.
static inline void dynapipe_cpu_cut(GPT2* model) {
    DynapipeRange ranges[DYNAPIPE_MAX_RANGES];
    DynapipeParams_v1 params;
    DynapipeLlmcTree tree;
    dynapipe_cpu.whole = model;
    dynapipe_cpu.config = model->config;
    dynapipe_cpu_check_tables();
    dynapipe_llmc_check(dynapipe_cpu.run, dynapipe_cpu_find_tensors());
    dynapipe_cpu_find_acts();
    dynapipe_cpu_probe();
    DynapipeBlocks_v1 blocks = dynapipe_cpu_blocks();
    int num_ranges = dynapipe_llmc_place(dynapipe_cpu.run, &blocks, ranges);
    dynapipe_cpu.mine = dynapipe_cpu_make_part(ranges, num_ranges, 1, &params);
    free(model->params_memory);
    *model = dynapipe_cpu.mine->model;
    memset(&tree, 0, sizeof tree);
    tree.tensors = &dynapipe_cpu.tensors;
    tree.slice = &dynapipe_cpu.mine->slice;
    tree.arrays = dynapipe_cpu_arrays;
    tree.sum_squares = dynapipe_cpu_sum_squares;
    dynapipe_llmc_begin(dynapipe_cpu.run, &tree, dynapipe_cpu_options()->output_dir);
    for (int i = 0; i < num_ranges; i++) {
        dynapipe_llmc_attach(dynapipe_cpu.run, i, &dynapipe_cpu.api, &dynapipe_cpu.mine->ranges[i], &params);
    }
}

static inline int dynapipe_cpu_first(GPT2* model, int first) {
    const DynapipeLlmcOptions* options = dynapipe_cpu_options();
    DynapipeRun_v1 about;
    if (!dynapipe_cpu_is_on()) { return first; }
    memset(&about, 0, sizeof about);
    dynapipe_llmc_open_data(dynapipe_cpu.run, &about, model->config.max_seq_len, model->config.vocab_size);
    dynapipe_cpu_cut(model);
    if (options->resume) { dynapipe_llmc_resume(dynapipe_cpu.run, options->output_dir); }
    return dynapipe_llmc_num_done(dynapipe_cpu.run);
}

static inline void dynapipe_cpu_need_model(void) {
    if (!dynapipe_cpu_is_on() || dynapipe_cpu.mine != NULL) { return; }
    dynapipe_llmc_die(dynapipe_cpu.run,
                      "a step before the model is cut: DYNAPIPE_FIRST is missing in the training loop "
                      "---> dynapipe_plugin/install.sh --check prints where");
}

static inline int dynapipe_cpu_counts_steps(void) {
    dynapipe_cpu_need_model();
    return dynapipe_cpu_is_on() || dynapipe_cpu_options()->steps > 0;
}

// Their loop's condition: after the last step's report and their line of it.
static inline int dynapipe_cpu_has_step(int step) {
    if (!dynapipe_cpu_is_on()) { return step < dynapipe_cpu_options()->steps; }
    dynapipe_llmc_end_if_told(dynapipe_cpu.run);
    return step < dynapipe_llmc_num_steps(dynapipe_cpu.run);
}

// Sampling and the like is rank 0's, and only where it has all of the model.
static inline int dynapipe_cpu_whole(void) {
    return !dynapipe_cpu_is_on() ||
           (dynapipe_llmc_is_whole(dynapipe_cpu.run) && dynapipe_rank(dynapipe_cpu_session()) == 0);
}

// Their loaders' tokens are no_tokens.
static inline int dynapipe_cpu_is_loaders(const int* tokens) {
    return tokens != NULL && (tokens == dynapipe_cpu.no_tokens[0] || tokens == dynapipe_cpu.no_tokens[1]);
}

static inline void dynapipe_cpu_check_forward(const int* inputs, const int* targets) {
    const char* why = NULL;
    dynapipe_cpu_need_model();
    if (targets == NULL && dynapipe_cpu_is_loaders(inputs)) {
        why = "gpt2_forward() of a loader's tokens without targets: the plugin has the data, and tokens only "
              "in its steps "
              "---> run that with --fixed-length";
    } else if (targets == NULL && !dynapipe_llmc_is_whole(dynapipe_cpu.run)) {
        why = "a forward pass of the whole model, which is cut: DYNAPIPE_WHOLE_AND is missing ---> "
              "dynapipe_plugin/install.sh --check prints where";
    } else if (targets != NULL && dynapipe_cpu.loader == NULL) {
        why = "gpt2_forward() with targets before dataloader_next_batch(): is it a step or validation? ---> "
              "ask a loader "
              "first";
    }
    if (why != NULL) { dynapipe_llmc_die(dynapipe_cpu.run, "%s", why); }
}

// The first training forward after an update has all of its tokens, however often they go on to accumulate.
static inline float dynapipe_cpu_train(void) {
    if (dynapipe_llmc_has_stepped(dynapipe_cpu.run)) {
        dynapipe_llmc_say_once(dynapipe_cpu.run,
                               "several training batches for one gpt2_update(): the first is a step of "
                               "--batch-tokens tokens, the others are passed over");
        return dynapipe_cpu.loss;
    }
    return dynapipe_cpu.loss = dynapipe_llmc_step(dynapipe_cpu.run);
}

// What a forward is follows from whose targets these are; where they were copied, from the loader that was
// asked last. Returns 1: done; 0: theirs is to run.
static inline int dynapipe_cpu_run_forward(GPT2* model, const int* inputs, const int* targets) {
    if (!dynapipe_cpu_is_on()) { return 0; }
    dynapipe_cpu_check_forward(inputs, targets);
    if (targets == NULL) { return 0; }
    int is_validation = dynapipe_cpu_is_loaders(targets) ? targets == dynapipe_cpu.no_tokens[1]
                                                         : dynapipe_cpu.loader == dynapipe_cpu.val_loader;
    model->mean_loss = is_validation
                           ? dynapipe_llmc_validate(dynapipe_cpu.run, dynapipe_cpu_options()->val_samples)
                           : dynapipe_cpu_train();
    return 1;
}

// The learning rate of the update.
static inline float dynapipe_cpu_before_update(float theirs) {
    float rate = dynapipe_cpu_options()->lr > 0 ? (float)dynapipe_cpu_options()->lr : theirs;
    if (!dynapipe_cpu_is_on()) { return rate; }
    if (!dynapipe_llmc_has_stepped(dynapipe_cpu.run)) {
        dynapipe_llmc_die(dynapipe_cpu.run,
                          "gpt2_update() without a gpt2_forward() of training tokens since the last one: "
                          "no gradients ---> ask the training loader, then forward, backward, update");
    }
    dynapipe_llmc_norm(dynapipe_cpu.run);
    dynapipe_llmc_report(dynapipe_cpu.run)->lr = rate;
    return rate;
}

static inline void dynapipe_cpu_after_update(void) {
    if (!dynapipe_cpu_is_on()) { return; }
    dynapipe_llmc_end_step(dynapipe_cpu.run);
    dynapipe_llmc_save_if_due(dynapipe_cpu.run);
}

static inline void dynapipe_cpu_close(void) {
    int status = dynapipe_llmc_close(dynapipe_cpu.run);
    free(dynapipe_cpu.no_tokens[0]);
    free(dynapipe_cpu.no_tokens[1]);
    free(dynapipe_cpu.mine);  // what it points to is the model's
    memset(&dynapipe_cpu, 0, sizeof dynapipe_cpu);
    if (status != 0) { exit(status); }  // their main() would return 0
}

// --- main's words, and what its calls mean ---------------------------------------------------------------

#define DYNAPIPE_OPEN(argc, argv) dynapipe_cpu_open(&argc, &argv);
#define DYNAPIPE_FIRST(model, first) dynapipe_cpu_first(model, first)
#define DYNAPIPE_STEPS_OR(step) dynapipe_cpu_counts_steps() ? dynapipe_cpu_has_step(step):
#define DYNAPIPE_WHOLE_AND dynapipe_cpu_whole()&&

// Of a file that only samples of text want: no warning.
#define tokenizer_init(tokenizer, path)                                                                \
    (dynapipe_cpu_is_on() && access(path, R_OK) != 0 ? (void)memset(tokenizer, 0, sizeof *(tokenizer)) \
                                                     : (tokenizer_init)(tokenizer, path))
#define gpt2_build_from_checkpoint(model, path) \
    (gpt2_build_from_checkpoint)(model, dynapipe_cpu_model_path(path))
#define dataloader_init(loader, pattern, ...)                                      \
    (dynapipe_cpu_loader(loader, sizeof *(loader), pattern, __VA_ARGS__)           \
         ? (void)((loader)->inputs = (loader)->targets =                           \
                      dynapipe_cpu.no_tokens[(loader) == dynapipe_cpu.val_loader]) \
         : (dataloader_init)(loader, dynapipe_cpu_data(loader, pattern), __VA_ARGS__))
#define dataloader_reset(loader) (dynapipe_cpu_is_on() ? (void)0 : (dataloader_reset)(loader))
#define dataloader_next_batch(loader) \
    (dynapipe_cpu_next_batch(loader) ? (void)0 : (dataloader_next_batch)(loader))
#define dataloader_free(loader) (dynapipe_cpu_is_on() ? (void)0 : (dataloader_free)(loader))
#define gpt2_forward(model, inputs, targets, ...)               \
    (dynapipe_cpu_run_forward(model, inputs, targets) ? (void)0 \
                                                      : (gpt2_forward)(model, inputs, targets, __VA_ARGS__))
#define gpt2_zero_grad(model) (dynapipe_cpu_is_on() ? (void)0 : (gpt2_zero_grad)(model))
#define gpt2_backward(model) (dynapipe_cpu_is_on() ? (void)0 : (gpt2_backward)(model))
#define gpt2_update(model, rate, ...) \
    ((gpt2_update)(model, dynapipe_cpu_before_update(rate), __VA_ARGS__), dynapipe_cpu_after_update())
#define gpt2_free(model) (dynapipe_cpu_close(), (gpt2_free)(model))

#endif
#endif

#if !defined DYNAPIPE && defined DYNAPIPE_MAIN && !defined DYNAPIPE_LLMC_CUDA
#define DYNAPIPE_OPEN(argc, argv)
#define DYNAPIPE_FIRST(model, first) first
#define DYNAPIPE_STEPS_OR(step)
#define DYNAPIPE_WHOLE_AND
#endif
