/*
dynapipe_llmc.h -- a run of the plugin inside a trainer of llm.c's family: what its CPU and CUDA adapters
share.

    DynapipeLlmc* run = dynapipe_llmc_open(&argc, &argv, has_options);
    if (!dynapipe_llmc_is_on(run)) { ... their own loop, as ever (--fixed-length) ... }
    dynapipe_llmc_open_data(run, &about);
    num = dynapipe_llmc_place(run, &model, ranges);     // measures it, chooses this rank's blocks
    for each of them: dynapipe_llmc_attach(run, i, &api, slice, &params);
    step = dynapipe_llmc_latest(run, directory);        // dynapipe_llmc_resume() where there is one
    for (;;) {
        loss = dynapipe_llmc_step(run);
        ... their optimizer on the slice ...
        dynapipe_llmc_end_step(run, &report);
        if (dynapipe_llmc_is_due(run, step)) { dynapipe_llmc_save(run, &checkpoint, step); }
        if (dynapipe_llmc_is_told_to_end(run)) { dynapipe_llmc_end(run, directory, step); }
    }
    status = dynapipe_llmc_close(run);

Belongs to a program, so it behaves like one: what fails is said once, on rank 0, and the program ends.
Includes nothing of llm.c and calls nothing of it: kernels and types are the including file's.
*/
#ifndef DYNAPIPE_LLMC_H
#define DYNAPIPE_LLMC_H

#include "../dynapipe.h"

#ifdef __cplusplus
extern "C" {
#endif

// === tensors ========================================================================================
/*
the tensors of a model of llm.c's family, and the part of them that a range of blocks has.

The family keeps a model as one array: tensor after tensor in a fixed order, in each all layers one after the
other (what a checkpoint's body is, too). A slice is the same with fewer layers, and without the tensors that
its blocks do not use: they have 0 values there, everything else of the family's code stays as it is.

    DynapipeTensors tensors;        // once, from fill_in_parameter_sizes() of the tree
    dynapipe_tensors_init(&tensors, NUM_PARAMETER_TENSORS, num_layers, sizes_of_1_layer, sizes_of_2, where);
    DynapipeSlice slice = dynapipe_tensors_slice(&tensors, ranges, num_ranges);
    dynapipe_tensors_pieces(): which values of the whole model's array they are

Knows nothing of how values are computed, of what type they are, or where they live.
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

// What a rank's ranges of blocks have together. Its arrays (parameters, gradients, m, v) have num_values
// values each; in a tensor of layers those of the first run come first.
typedef struct {
    int32_t num_layers;
    int32_t has_first, has_norm, has_head;
    int32_t num_runs;  // of layers: [run_begin, run_end) of the model's
    int32_t run_begin[DYNAPIPE_MAX_RANGES], run_end[DYNAPIPE_MAX_RANGES];
    int64_t num_values;
    int64_t begin[DYNAPIPE_MAX_TENSORS];  // where tensor i begins in the slice's arrays
    int64_t count[DYNAPIPE_MAX_TENSORS];  // its values there, 0: not in this slice
    int32_t num_tied;
    DynapipeTied tied[DYNAPIPE_MAX_TENSORS];
} DynapipeSlice;

// Values [begin, begin + count) of the slice's arrays are [whole, whole + count) of the whole model's.
typedef struct {
    int64_t begin, whole, count;
} DynapipeTensorPiece;

// sizes_of_1, sizes_of_2: values of each tensor of this model with 1 and with 2 layers. Those that grow are
// of the layers, whatever `where` says of them; the others are where it says. Returns 0, or an error if
// dynapipe_error() has to say something of these numbers.
int dynapipe_tensors_init(DynapipeTensors* out, int32_t num_tensors, int32_t num_layers,
                          const size_t* sizes_of_1, const size_t* sizes_of_2, const int32_t* where);
int64_t dynapipe_tensors_total(const DynapipeTensors* tensors);  // values of the whole model
DynapipeSlice dynapipe_tensors_slice(const DynapipeTensors* tensors, const DynapipeRange* ranges,
                                     int32_t num_ranges);
// The pieces of tensor i; returns how many.
int32_t dynapipe_tensors_pieces(const DynapipeTensors* tensors, const DynapipeSlice* slice, int32_t i,
                                DynapipeTensorPiece out[DYNAPIPE_MAX_RANGES]);

// How values get to and from host memory; NULL in place of the struct: they are in host memory.
typedef struct {
    void (*to_host)(void* host, const void* values, size_t num_bytes);
    void (*from_host)(void* values, const void* host, size_t num_bytes);
} DynapipeCopies;

// The whole model's values in a file, from byte `at` on. *sum grows by that of the values that go by
// (util/checkpoint_files.h), as values of a body that begins at byte file_at; without a tied tensor's copy.
// NULL: nobody asks.
typedef struct {
    int64_t at;
    int32_t value_bytes;
    int64_t file_at;
    uint64_t* sum;
} DynapipeBody;

// The slice's values to PATH.tmp, and from PATH. Of a tied tensor only the first range's copy is written. The
// file is there and long enough.
int dynapipe_tensors_write(const char* path, const DynapipeBody* body, const DynapipeSlice* slice,
                           const DynapipeTensors* tensors, const void* values, const DynapipeCopies* copies);
int dynapipe_tensors_read(const char* path, const DynapipeBody* body, const DynapipeSlice* slice,
                          const DynapipeTensors* tensors, void* values, const DynapipeCopies* copies);

// === a run ==========================================================================================
typedef struct DynapipeLlmc DynapipeLlmc;

// What a trainer without flags of its own is told by --options (dynapipe_llmc_open with has_options). What
// was not given is 0, NULL or as said here.
typedef struct {
    const char *train_data, *val_data;  // patterns of files; NULL: those that the program names itself
    const char* model;                  // checkpoint to begin with; NULL: the program's
    int64_t batch_tokens;               // of a step over all ranks
    int32_t max_tokens;                 // of a sample
    int32_t steps;                      // 0: one pass over the data (--fixed-length: the program's)
    int32_t val_batches;                // of a validation; -1: all
    double lr;                          // 0: the program's
    const char* output_dir;             // checkpoints, metrics.jsonl
    const char* checkpoint_every;       // steps, or a time (util/program.h); NULL: not given
    int32_t resume;                     // 1: go on from the newest checkpoint in output_dir; > 1: that step's
    int32_t verify;                     // 0: checkpoints and data are taken without a look at their sums
    int32_t overwrite;                  // 1: a new run may replace an earlier one's checkpoints
    int32_t check_model;                // 1: dynapipe_check_model() in place of training
} DynapipeLlmcOptions;

// --- session ---------------------------------------------------------------------------------------------

// Takes --fixed-length, with has_options those above (without: the last four), and the plugin's own out of
// argv. With --fixed-length nothing is opened: MPI, too, is left to the program.
DynapipeLlmc* dynapipe_llmc_open_as(int32_t header_interface, int* argc, char*** argv, int has_options);
static inline DynapipeLlmc* dynapipe_llmc_open(int* argc, char*** argv, int has_options) {
    return dynapipe_llmc_open_as(DYNAPIPE_INTERFACE, argc, argv, has_options);
}
int dynapipe_llmc_is_on(const DynapipeLlmc* run);  // NULL: no
// Of these two NULL ends the program: the tree lacks the line that opens the run.
const DynapipeLlmcOptions* dynapipe_llmc_options(const DynapipeLlmc* run);
Dynapipe* dynapipe_llmc_session(const DynapipeLlmc* run);  // NULL where it is not on
// The last call about it; NULL is fine. The program's exit status: EXIT_FAILURE where the last checkpoint,
// lines of metrics.jsonl or standard output were lost, which was warned of when it happened.
int dynapipe_llmc_close(DynapipeLlmc* run);
// Ends the program on all ranks: `code` of a dynapipe_*() call, if it is not 0; or for a reason of one's own.
void dynapipe_llmc_check(DynapipeLlmc* run, int code);
void dynapipe_llmc_die(DynapipeLlmc* run, const char* why);
// A line that rank 0 prints, once a run for each text (a pointer to a literal).
void dynapipe_llmc_say_once(DynapipeLlmc* run, const char* line);
// |a - b| <= limit, and all are finite numbers. Here, as trees are compiled with -ffast-math.
int dynapipe_llmc_is_close(double a, double b, double limit);

// --- data, model -----------------------------------------------------------------------------------------

// Opens the data and says what is in it. model_tokens, model_vocab: longest sequence and ids of the model,
// which the data has to keep to.
void dynapipe_llmc_open_data(DynapipeLlmc* run, const DynapipeRun_v1* about, int32_t model_tokens,
                             int32_t model_vocab);
int32_t dynapipe_llmc_num_steps(const DynapipeLlmc* run);
// This rank's ranges; returns how many.
int32_t dynapipe_llmc_place(DynapipeLlmc* run, const DynapipeBlocks_v1* blocks,
                            DynapipeRange out[DYNAPIPE_MAX_RANGES]);
// The model of range idx. params: of all ranges of this rank together.
void dynapipe_llmc_attach(DynapipeLlmc* run, int32_t idx, const DynapipeModel_v1* api, void* model,
                          const DynapipeParams_v1* params);
// Can this rank run the whole model (to sample from it, say)? If not, that is said once.
int dynapipe_llmc_is_whole(DynapipeLlmc* run);

// --- training --------------------------------------------------------------------------------------------

// Gradients of the mean loss over the supervised tokens of the next batch; the loss. A loss, or norm below,
// that is no finite number ends the program, before anything is made of it.
double dynapipe_llmc_step(DynapipeLlmc* run);
// Norm of the gradients of the whole model, from the squares that this rank counts (dynapipe_counted()).
double dynapipe_llmc_norm(DynapipeLlmc* run, double counted_squares);
// After the update: shares parameters, prints the step's line, writes metrics.jsonl.
void dynapipe_llmc_end_step(DynapipeLlmc* run, const DynapipeReport_v1* report);
// Mean loss over the validation data; NaN, said once, where there is none. step: updates made so far.
double dynapipe_llmc_validate(DynapipeLlmc* run, int32_t max_batches, int32_t step, const char* log_dir);

// --- checkpoints -----------------------------------------------------------------------------------------

// llm.c's: model_%08d.bin of the whole model and state_%08d_00000.bin of one process, with the position in
// the data behind it, and an empty DONE_%08d when both are there. Written by all ranks together, each its
// slice, and read so: what 4 stages wrote 2 x 2 go on from, and llm.c, too (a fixed-length run starts at its
// own data's begin).
typedef struct {
    const char* directory;
    const DynapipeTensors* tensors;
    const DynapipeSlice* slice;
    const void* model_header;  // what a model file begins with, of the whole model
    int32_t model_header_bytes;
    int32_t param_bytes;  // of a value of params
    void* params;         // the slice's
    float *m, *v;         // the slice's
    float* master;        // the slice's; NULL: none
    const DynapipeCopies* copies;
    uint64_t rng_states[2];  // of llm.c's state file: the model's, and before the last update; 0: none
} DynapipeLlmcCheckpoint;

// A new run, before its first step: refused where the folder has finished checkpoints, unless --overwrite 1.
// Nothing after dynapipe_llmc_latest(), a second time, or without a folder.
void dynapipe_llmc_begin(DynapipeLlmc* run, const char* directory);
// A model file to begin with: have all ranks the same one, and if it is sealed, is it what was saved, of the
// vocabulary of the data that is opened later? Its kind and shape are the program's to look at, and so is a
// file that no rank can open. A collective.
void dynapipe_llmc_check_model_file(DynapipeLlmc* run, const char* path);
// Of a step that is saved already: nothing. Marks of later steps, another run's, go.
void dynapipe_llmc_save(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* checkpoint, int32_t step);
// The newest step that is DONE, or --resume's; -1: none, then a run starts afresh.
int32_t dynapipe_llmc_latest(DynapipeLlmc* run, const char* directory);
// Reads that step into the arrays (and rng_states), and goes to its position in the data. What is not what
// was saved (util/checkpoint_files.h) ends the program, unless --verify 0.
void dynapipe_llmc_resume(DynapipeLlmc* run, DynapipeLlmcCheckpoint* checkpoint, int32_t step);
// Where --dump-gradients FILE is given: the slice's gradients (param_bytes a value) in a file like a model's.
// After the first step; otherwise nothing happens.
void dynapipe_llmc_dump_gradients(DynapipeLlmc* run, const DynapipeLlmcCheckpoint* checkpoint,
                                  const void* grads);

// --- ending early ----------------------------------------------------------------------------------------

// Is a checkpoint of `step` due, by --checkpoint-every or as a signal ends the run? For runs with a folder.
int dynapipe_llmc_is_due(DynapipeLlmc* run, int32_t step);
// A signal came, and all ranks know it: `step` is to be saved, and then
int dynapipe_llmc_is_told_to_end(const DynapipeLlmc* run);
// says what happened and how to go on, closes the run and ends the program. directory: NULL: none.
void dynapipe_llmc_end(DynapipeLlmc* run, const char* directory, int32_t step);

#ifdef __cplusplus
}
#endif
#endif

#if defined DYNAPIPE && !defined DYNAPIPE_LLMC_CUDA
#ifndef DYNAPIPE_MAIN

// === CPU: above gpt2_forward() ======================================================================
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
/*
llm.c's CPU trainer on a slice of its model: the calls of gpt2_forward() and gpt2_backward()
that a slice makes in another way.

Included in the tree's train_gpt2.c before gpt2_forward(), and again, after #define DYNAPIPE_MAIN, before
main(). What lies between is not edited: the calls named below are wrapped by macros that do as ever unless a
slice is at work.

    encoder_*        the range with the embedding only, window by window (positions begin anew)
    attention_*      window by window: tokens of all windows lie one after the other, without padding
    final layernorm, head, softmax, cross entropy: the range with the head only; all but the layernorm on
                     supervised tokens only

A slice is a GPT2 of theirs ("view") with its layers only, with a micro-batch of n tokens as B = n, T = 1: all
else that they compute is token by token. Tensors of activations have the places and sizes that their own
tables say, so what a fork adds there works. A call that is not made under these names would be computed with
T = 1, so each of them is counted. Without -DDYNAPIPE this file is empty.
*/
// A range of blocks: their model with its layers, whose tensors lie in the arrays of the whole part.
typedef struct DynapipeCpuPart DynapipeCpuPart;
typedef struct {
    DynapipeCpuPart* part;
    int has_first, has_norm, has_head, feeds, is_share;
    GPT2 model;
} DynapipeCpuRange;

// What a rank has: its ranges, and their parameters as one model.
struct DynapipeCpuPart {
    DynapipeSlice slice;
    GPT2 model;
    int num_ranges;
    DynapipeCpuRange ranges[DYNAPIPE_MAX_RANGES];
};

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
    softmax_forward(v->acts.probs, v->acts.logits, job->batch->num_rows, 1, v->config.vocab_size,
                    v->config.padded_vocab_size);
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
                                  job->batch->num_rows, 1, v->config.vocab_size, v->config.padded_vocab_size);
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
#ifdef _OPENMP
#include <omp.h>
#endif
#include <math.h>
#include <stdio.h>

/*
the model of llm.c's CPU trainer as DynapipeModel_v1 and DynapipeBlocks_v1, over their
gpt2_forward() and gpt2_backward() as the part above gpt2_forward() wraps them.

acts:    their activations of n tokens | att (L, NH * squares) | inputs of the head (rows, C) |
         inputs, targets (n each)
scratch: gradients of activations | preatt, or dpreatt and datt, of one window | gradient of the head's inputs
Without a backward to come (validation, a forward that is made again) the activations are of one layer: their
gpt2_forward() is called for one after the other.
*/
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
    where[model->param_slot[DYNAPIPE_CPU_PARAM(wte)]] = DYNAPIPE_TENSOR_FIRST | DYNAPIPE_TENSOR_HEAD;
    where[model->param_slot[DYNAPIPE_CPU_PARAM(wpe)]] = DYNAPIPE_TENSOR_FIRST;
    where[model->param_slot[DYNAPIPE_CPU_PARAM(lnfw)]] = DYNAPIPE_TENSOR_NORM;
    where[model->param_slot[DYNAPIPE_CPU_PARAM(lnfb)]] = DYNAPIPE_TENSOR_NORM;
    int code = dynapipe_tensors_init(&model->tensors, DYNAPIPE_CPU_PARAMS, model->config.num_layers,
                                     sizes_of_1, sizes_of_2, where);
    if (code != 0) { return code; }
    return (size_t)dynapipe_tensors_total(&model->tensors) == model->whole->num_parameters ? 0 : -1;
}

// --- memory of a micro-batch -----------------------------------------------------------------------------

enum { DYNAPIPE_CPU_BACKWARD = DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD };

// Layers with activations of their own. Where nothing is kept for a backward, one serves all of them.
static inline int dynapipe_cpu_kept_layers(const DynapipeCpuRange* range, int flags) {
    int num_layers = range->model.config.num_layers;
    return (flags & DYNAPIPE_FORWARD_KEEP) != 0 || num_layers == 0 ? num_layers : 1;
}

// Rows of which the head's activations are there.
static inline size_t dynapipe_cpu_num_rows(const DynapipeCpuRange* range, const DynapipeBatch* batch,
                                           int flags) {
    return range->has_head && flags != 0 ? (size_t)batch->num_rows : 0;
}

// Values of each slot, of activations or of their gradients; in *total of all. Their own numbers, but where
// the wrapped calls have another place (att), nothing to keep, or supervised tokens only.
static inline void dynapipe_cpu_act_sizes(size_t* sizes, size_t* total, const DynapipeCpuRange* range,
                                          const DynapipeBatch* batch, int flags, int is_gradient) {
    GPT2Config config = range->model.config;
    const int* slot = dynapipe_cpu_model.act_slot;
    size_t num_rows = dynapipe_cpu_num_rows(range, batch, flags), Vp = (size_t)config.padded_vocab_size;
    config.num_layers = dynapipe_cpu_kept_layers(range, flags);
    fill_in_activation_sizes(sizes, config, batch->num_tokens, 1);
    // (what a layer leaves to the next, too, where one place serves all)
    if (!range->has_first && (flags & DYNAPIPE_FORWARD_KEEP) != 0) {
        sizes[slot[DYNAPIPE_CPU_ACT(encoded)]] = 0;
    }
    if (!range->has_norm || (flags == 0 && !range->feeds)) {
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

// Of a share of the head: inputs, logits, probabilities; in scratch losses and gradients of logits.
static inline int64_t dynapipe_cpu_share_bytes(const DynapipeCpuRange* range, const DynapipeBatch* batch,
                                               int is_gradient) {
    size_t C = (size_t)range->model.config.channels, Vp = (size_t)range->model.config.padded_vocab_size;
    size_t values = is_gradient ? 1 + Vp : C + 2 * Vp;
    return (int64_t)(sizeof(float) * (size_t)batch->num_rows * values);
}

static inline int64_t dynapipe_cpu_acts_bytes(void* range_, const DynapipeBatch* batch, int flags) {
    const DynapipeCpuRange* range = (const DynapipeCpuRange*)range_;
    size_t sizes[DYNAPIPE_CPU_ACTS], total;
    if (range->is_share) { return dynapipe_cpu_share_bytes(range, batch, 0); }
    dynapipe_cpu_act_sizes(sizes, &total, range, batch, flags, 0);
    total += dynapipe_cpu_att_values(range, batch, flags) + dynapipe_cpu_row_values(range, batch, flags);
    return (int64_t)(total * sizeof(float) + 2 * (size_t)batch->num_tokens * sizeof(int));
}

static inline int64_t dynapipe_cpu_scratch_bytes(void* range_, const DynapipeBatch* batch) {
    const DynapipeCpuRange* range = (const DynapipeCpuRange*)range_;
    size_t sizes[DYNAPIPE_CPU_ACTS], total, T = (size_t)batch->max_seq_tokens;
    if (range->is_share) { return dynapipe_cpu_share_bytes(range, batch, 1); }
    dynapipe_cpu_act_sizes(sizes, &total, range, batch, DYNAPIPE_CPU_BACKWARD, 1);
    total += 2 * (size_t)range->model.config.num_heads * T * T +
             dynapipe_cpu_row_values(range, batch, DYNAPIPE_CPU_BACKWARD);
    return (int64_t)(total * sizeof(float));
}

static inline int64_t dynapipe_cpu_boundary_bytes(void* range_, const DynapipeBatch* batch, int is_behind) {
    const DynapipeCpuRange* range = (const DynapipeCpuRange*)range_;
    int is_rows = range->is_share || (range->feeds && is_behind);
    return (int64_t)(is_rows ? batch->num_rows : batch->num_tokens) * range->model.config.channels *
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
    job->has_first = range->has_first;
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

// By their own products, on rows that are there alone.
static inline void dynapipe_cpu_share_forward(const DynapipeCpuRange* range, const DynapipeBatch* batch,
                                              const void* in, float* acts, float* losses, int flags) {
    int R = batch->num_rows, C = range->model.config.channels, Vp = range->model.config.padded_vocab_size;
    float *rows = acts, *logits = rows + (size_t)R * C, *probs = logits + (size_t)R * Vp;
    if (R == 0 || flags == 0) { return; }
    memcpy(rows, in, sizeof(float) * (size_t)R * C);
    matmul_forward(logits, rows, range->model.params.wte, NULL, R, 1, C, Vp);
    softmax_forward(probs, logits, R, 1, range->model.config.vocab_size, Vp);
    crossentropy_forward(losses, probs, (int*)batch->targets, R, 1, Vp);
}

static inline void dynapipe_cpu_share_backward(const DynapipeCpuRange* range, const DynapipeBatch* batch,
                                               float* acts, void* din, float* scratch) {
    int R = batch->num_rows, C = range->model.config.channels, Vp = range->model.config.padded_vocab_size;
    float *rows = acts, *probs = rows + (size_t)R * C + (size_t)R * Vp, *dlogits = scratch + R;
    if (R == 0) { return; }
    for (int i = 0; i < R; i++) { scratch[i] = batch->loss_scale; }
    memset(dlogits, 0, sizeof(float) * (size_t)R * Vp);
    memset(din, 0, sizeof(float) * (size_t)R * C);
    crossentropy_softmax_backward(dlogits, scratch, probs, (int*)batch->targets, R, 1,
                                  range->model.config.vocab_size, Vp);
    matmul_backward((float*)din, range->model.grads.wte, NULL, dlogits, rows, range->model.params.wte, R, 1,
                    C, Vp);
}

static inline int dynapipe_cpu_forward(void* range, const DynapipeBatch* batch, const void* in, void* out,
                                       void* acts, void* scratch, float* losses, int flags) {
    DynapipeCpuJob job;
    const DynapipeCpuRange* mine = (const DynapipeCpuRange*)range;
    if (mine->is_share) {
        dynapipe_cpu_share_forward(mine, batch, in, (float*)acts, losses, flags);
        return 0;
    }
    int num_layers = mine->model.config.num_layers, kept = dynapipe_cpu_kept_layers(mine, flags);
    int has_head = mine->has_head && (flags & DYNAPIPE_FORWARD_HEAD) != 0;
    size_t num_bytes = (size_t)dynapipe_cpu_boundary_bytes(range, batch, 0);
    dynapipe_cpu_begin(&job, mine, batch, acts, scratch, flags);
    float *between = job.view.acts.encoded, *last = dynapipe_cpu_last_layer(&job, job.view.acts.residual3);
    if (in != NULL) { job.view.acts.encoded = (float*)in; }
    job.losses = losses;
    if (has_head) { memset(job.view.acts.losses, 0, sizeof(float) * (size_t)batch->num_tokens); }  // they add
    int l = 0;
    do {
        if (l > 0) { dynapipe_cpu_next_layer(&job, l, (float*)memcpy(between, last, num_bytes)); }
        job.has_head = has_head && l + kept == num_layers;
        job.fed = mine->feeds && l + kept == num_layers ? (float*)out : NULL;
        job.has_norm = job.has_head || job.fed != NULL;
        memset(job.calls, 0, sizeof job.calls);
        dynapipe_cpu_call_forward(&job);
        if (dynapipe_cpu_check_forward(&job) != 0) { return 1; }
        l += kept;
    } while (l < num_layers);
    if (out != NULL && !mine->feeds) { memcpy(out, last, num_bytes); }
    return 0;
}

static inline int dynapipe_cpu_backward(void* range, const DynapipeBatch* batch, const void* in, void* acts,
                                        const void* dout, void* din, void* scratch) {
    DynapipeCpuJob job;
    const DynapipeCpuRange* mine = (const DynapipeCpuRange*)range;
    if (mine->is_share) {
        dynapipe_cpu_share_backward(mine, batch, (float*)acts, din, (float*)scratch);
        return 0;
    }
    size_t num_bytes = (size_t)dynapipe_cpu_boundary_bytes(range, batch, 0);
    size_t num_grads = dynapipe_cpu_begin(&job, mine, batch, acts, scratch, DYNAPIPE_CPU_BACKWARD);
    if (in != NULL) { job.view.acts.encoded = (float*)in; }
    job.has_head = mine->has_head;
    job.has_norm = mine->has_norm;
    job.fed = mine->feeds ? (float*)dout : NULL;
    memset(scratch, 0, sizeof(float) * num_grads);
    if (dout != NULL && !mine->feeds) {
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

static inline void dynapipe_cpu_zero_gradients(void* range) {
    const DynapipeCpuPart* part = ((const DynapipeCpuRange*)range)->part;
    memset(part->model.grads_memory, 0, sizeof(float) * (size_t)part->slice.num_values);
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

// The part's tensors, those of layers from layer `first_layer` of the part on.
static inline void dynapipe_cpu_point_params(ParameterTensors* out, const DynapipeSlice* slice, float* memory,
                                             int first_layer) {
    const DynapipeCpuModel* all = &dynapipe_cpu_model;
    for (int i = 0; i < DYNAPIPE_CPU_PARAMS; i++) {
        int slot = all->param_slot[i];
        int64_t at = slice->begin[slot];
        if (all->tensors.where[slot] == DYNAPIPE_TENSOR_LAYERS) {
            at += first_layer * all->tensors.count[slot];
        }
        ((float**)out)[i] = slice->count[slot] > 0 ? memory + at : &dynapipe_cpu_nothing[slot];
    }
}

static inline int dynapipe_cpu_fill(DynapipeCpuPart* part) {
    const DynapipeSlice* slice = &part->slice;
    GPT2* model = &part->model;
    model->params_memory = (float*)malloc(sizeof(float) * (size_t)slice->num_values);
    model->grads_memory = (float*)calloc((size_t)slice->num_values, sizeof(float));
    if (model->params_memory == NULL || model->grads_memory == NULL) { return 1; }
    for (int i = 0; i < DYNAPIPE_CPU_PARAMS; i++) {
        DynapipeTensorPiece pieces[DYNAPIPE_MAX_RANGES];
        int num = dynapipe_tensors_pieces(&dynapipe_cpu_model.tensors, slice, i, pieces);
        for (int k = 0; k < num; k++) {
            memcpy(model->params_memory + pieces[k].begin,
                   dynapipe_cpu_model.whole->params_memory + pieces[k].whole,
                   sizeof(float) * (size_t)pieces[k].count);
        }
        model->param_sizes[i] = (size_t)slice->count[i];
    }
    model->num_parameters = (size_t)slice->num_values;
    dynapipe_cpu_point_params(&model->params, slice, model->params_memory, 0);
    dynapipe_cpu_point_params(&model->grads, slice, model->grads_memory, 0);
    return 0;
}

static inline void dynapipe_cpu_drop(void* ctx, void* range) {
    DynapipeCpuPart* part = ((DynapipeCpuRange*)range)->part;
    (void)ctx;
    free(part->model.params_memory);
    free(part->model.grads_memory);
    free(part->model.m_memory);
    free(part->model.v_memory);
    free(part);
}

// Their model with the range's layers and what of the part's tensors it uses. Returns its layers.
static inline int dynapipe_cpu_view(DynapipeCpuRange* range, DynapipeCpuPart* part, DynapipeRange blocks,
                                    int first_layer) {
    DynapipeSlice own = dynapipe_tensors_slice(&dynapipe_cpu_model.tensors, &blocks, 1);
    range->part = part;
    range->has_first = own.has_first;
    range->has_norm = own.has_norm;
    range->feeds = blocks.head == DYNAPIPE_HEAD_FEEDS;
    range->is_share = blocks.head == DYNAPIPE_HEAD_BY_ROWS;
    range->has_head = own.has_head && !range->is_share;
    range->model = part->model;
    range->model.config.num_layers = own.num_layers;
    if (part->model.params_memory == NULL) { return own.num_layers; }
    dynapipe_cpu_point_params(&range->model.params, &part->slice, part->model.params_memory, first_layer);
    dynapipe_cpu_point_params(&range->model.grads, &part->slice, part->model.grads_memory, first_layer);
    return own.num_layers;
}

// NULL: no memory.
static inline DynapipeCpuPart* dynapipe_cpu_make_part(const DynapipeRange* blocks, int num_ranges,
                                                      int has_values, DynapipeParams_v1* params) {
    DynapipeCpuPart* part = (DynapipeCpuPart*)calloc(1, sizeof *part);
    int num_layers = 0;
    if (part == NULL) { return NULL; }
    part->slice = dynapipe_tensors_slice(&dynapipe_cpu_model.tensors, blocks, num_ranges);
    part->model = *dynapipe_cpu_model.whole;  // what a fork has there besides, too
    part->model.params_memory = part->model.grads_memory = NULL;
    part->model.m_memory = part->model.v_memory = NULL;
    part->model.config.num_layers = part->slice.num_layers;
    part->num_ranges = num_ranges;
    part->ranges[0].part = part;
    if (has_values && dynapipe_cpu_fill(part) != 0) {
        dynapipe_cpu_drop(NULL, &part->ranges[0]);
        return NULL;
    }
    for (int i = 0; i < num_ranges; i++) {
        num_layers += dynapipe_cpu_view(&part->ranges[i], part, blocks[i], num_layers);
    }
    memset(params, 0, sizeof *params);
    params->params = part->model.params_memory;
    params->grads = part->model.grads_memory;
    params->num_params = part->slice.num_values;
    params->param_type = params->grad_type = DYNAPIPE_FLOAT32;
    params->num_tied = part->slice.num_tied;
    params->tied = part->slice.tied;
    return part;
}

static inline int dynapipe_cpu_make(void* ctx, DynapipeRange blocks, int has_values, void** out,
                                    DynapipeParams_v1* params) {
    DynapipeCpuPart* part = dynapipe_cpu_make_part(&blocks, 1, has_values, params);
    (void)ctx;
    if (part == NULL) { return 1; }
    *out = &part->ranges[0];
    return 0;
}

static inline double dynapipe_cpu_sum_squares(const float* values, int64_t num_values) {
    double squares = 0;
    for (int64_t i = 0; i < num_values; i++) { squares += (double)values[i] * values[i]; }
    return squares;
}

// A step of no length, behind the norm of the gradients. Their update makes its memory at the first call.
static inline int dynapipe_cpu_time_update(void* ctx, void* range) {
    GPT2* model = &((DynapipeCpuRange*)range)->part->model;
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
    blocks.shapes.head_by_rows = 1;
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

// === CPU: probe =====================================================================================
/*
is a slice what their trainer computes? Before the model is cut: two short made-up
sequences of different lengths through their own gpt2_forward() and gpt2_backward(), each alone as B = 1, and
through the slice of all blocks, one after the other as B = n, T = 1.

Finds in every run what --check-model cannot see as it compares slices with slices: an attention of another
name, rotary positions, a loss of their own, whatever knows of T and is not wrapped.
*/
enum { DYNAPIPE_PROBE_SEQS = 2, DYNAPIPE_PROBE_LONG = 9, DYNAPIPE_PROBE_SHORT = 6 };
enum { DYNAPIPE_PROBE_TOKENS = DYNAPIPE_PROBE_LONG + DYNAPIPE_PROBE_SHORT };

typedef struct {
    DynapipeBatch batch;  // every token of it is supervised
    int32_t cu_seqlens[DYNAPIPE_PROBE_SEQS + 1];
    int32_t tokens[DYNAPIPE_PROBE_TOKENS], positions[DYNAPIPE_PROBE_TOKENS], rows[DYNAPIPE_PROBE_TOKENS];
    int32_t targets[DYNAPIPE_PROBE_TOKENS], row_tasks[DYNAPIPE_PROBE_TOKENS];
    double theirs[DYNAPIPE_PROBE_SEQS], ours[DYNAPIPE_PROBE_SEQS];          // mean losses of the sequences
    double their_norm[DYNAPIPE_CPU_PARAMS], our_norm[DYNAPIPE_CPU_PARAMS];  // of gradients, by tensor
    DynapipeCpuPart part;                                                   // all blocks, their parameters
} DynapipeCpuProbe;

// --- what is computed ------------------------------------------------------------------------------------

static inline void dynapipe_probe_make_up(DynapipeCpuProbe* probe, int num_seqs) {
    static const int lengths[DYNAPIPE_PROBE_SEQS] = {DYNAPIPE_PROBE_LONG, DYNAPIPE_PROBE_SHORT};
    const GPT2Config* config = &dynapipe_cpu_model.config;
    DynapipeBatch* batch = &probe->batch;
    uint32_t noise = 1;
    memset(batch, 0, sizeof *batch);
    for (int i = 0; i < num_seqs; i++) {
        int T = lengths[i] < config->max_seq_len ? lengths[i] : config->max_seq_len, n = batch->num_tokens;
        for (int t = 0; t < T; t++, n++) {
            noise = noise * 1664525u + 1013904223u;
            probe->tokens[n] = (int32_t)((noise >> 8) % (uint32_t)config->vocab_size);
            noise = noise * 1664525u + 1013904223u;
            probe->targets[n] = (int32_t)((noise >> 8) % (uint32_t)config->vocab_size);
            probe->positions[n] = t;
            probe->rows[n] = n;
        }
        batch->num_tokens = probe->cu_seqlens[i + 1] = n;
        batch->num_squares += T * T;
        batch->max_seq_tokens = T > batch->max_seq_tokens ? T : batch->max_seq_tokens;
    }
    batch->num_seqs = num_seqs;
    batch->num_rows = batch->num_tokens;
    batch->cu_seqlens = probe->cu_seqlens;
    batch->tokens = probe->tokens;
    batch->positions = probe->positions;
    batch->rows = probe->rows;
    batch->targets = probe->targets;
    batch->row_tasks = probe->row_tasks;
    batch->loss_scale = 1.0f / (float)batch->num_rows;
}

static inline void dynapipe_probe_norms(double* out, const DynapipeCpuProbe* probe) {
    const DynapipeSlice* slice = &probe->part.slice;
    for (int i = 0; i < DYNAPIPE_CPU_PARAMS; i++) {
        double squares = 0;
        for (int64_t k = slice->begin[i]; k < slice->begin[i] + slice->count[i]; k++) {
            squares += (double)probe->part.model.grads_memory[k] * probe->part.model.grads_memory[k];
        }
        out[i] = sqrt(squares);
    }
}

// One sequence alone, as ever, on a copy of their struct, so that theirs stays as unused as it is. Of the
// first the gradients, too.
static inline void dynapipe_probe_theirs(DynapipeCpuProbe* probe, const GPT2* whole, int i) {
    GPT2 model = *whole;
    int t = probe->cu_seqlens[i], T = probe->cu_seqlens[i + 1] - t;
    model.acts_memory = model.grads_memory = model.grads_acts_memory = NULL;
    gpt2_forward(&model, probe->tokens + t, probe->targets + t, 1, (size_t)T);
    probe->theirs[i] = (double)model.mean_loss;
    if (i == 0) {
        gpt2_backward(&model);
        probe->part.model.grads_memory = model.grads_memory;
        dynapipe_probe_norms(probe->their_norm, probe);
    }
    free(model.acts_memory);
    free(model.grads_acts_memory);
    if (model.inputs != whole->inputs) { free(model.inputs); }
    if (model.targets != whole->targets) { free(model.targets); }
}

// Returns 0, or what forward() or backward() do.
static inline int dynapipe_probe_ours(DynapipeCpuProbe* probe, void* acts, void* scratch, int has_gradients) {
    const DynapipeBatch* batch = &probe->batch;
    float losses[DYNAPIPE_PROBE_TOKENS];
    int flags = DYNAPIPE_FORWARD_HEAD | (has_gradients ? DYNAPIPE_FORWARD_KEEP : 0);
    if (dynapipe_cpu_forward(&probe->part.ranges[0], batch, NULL, NULL, acts, scratch, losses, flags) != 0) {
        return 1;
    }
    for (int i = 0; i < batch->num_seqs; i++) {
        int T = probe->cu_seqlens[i + 1] - probe->cu_seqlens[i];
        probe->ours[i] = 0;
        for (int t = probe->cu_seqlens[i]; t < probe->cu_seqlens[i + 1]; t++) {
            probe->ours[i] += (double)losses[t] / T;
        }
    }
    if (!has_gradients) { return 0; }
    dynapipe_cpu_zero_gradients(&probe->part.ranges[0]);
    if (dynapipe_cpu_backward(&probe->part.ranges[0], batch, NULL, acts, NULL, NULL, scratch) != 0) {
        return 1;
    }
    dynapipe_probe_norms(probe->our_norm, probe);
    return 0;
}

// --- what is compared ------------------------------------------------------------------------------------

static inline int dynapipe_probe_losses(const DynapipeCpuProbe* probe) {
    for (int i = 0; i < probe->batch.num_seqs; i++) {
        if (dynapipe_llmc_is_close(probe->ours[i], probe->theirs[i], 1e-4 * fabs(probe->theirs[i]))) {
            continue;
        }
        snprintf(
            dynapipe_cpu_model.why, sizeof dynapipe_cpu_model.why,
            "gpt2_forward() of a sequence has the loss %.7g by itself, %.7g as a slice's microbatch (%d "
            "sequences, T = 1): it is not computed token by token but for the calls of llm.c ---> "
            "doc/porting.md, CPU trainer",
            probe->theirs[i], probe->ours[i], probe->batch.num_seqs);
        return 1;
    }
    return 0;
}

static inline int dynapipe_probe_gradients(const DynapipeCpuProbe* probe) {
    double total = 0;
    for (int i = 0; i < DYNAPIPE_CPU_PARAMS; i++) { total += probe->their_norm[i] * probe->their_norm[i]; }
    for (int i = 0; i < DYNAPIPE_CPU_PARAMS; i++) {
        double limit = 1e-3 * probe->their_norm[i] + 1e-6 * sqrt(total);
        if (dynapipe_llmc_is_close(probe->our_norm[i], probe->their_norm[i], limit)) { continue; }
        snprintf(
            dynapipe_cpu_model.why, sizeof dynapipe_cpu_model.why,
            "gpt2_backward() of a sequence has gradients of norm %.7g for parameter tensor %d by itself, "
            "%.7g as a slice's microbatch (T = 1) ---> doc/porting.md, CPU trainer",
            probe->their_norm[i], i, probe->our_norm[i]);
        return 1;
    }
    return 0;
}

// Theirs comes behind ours: a call that is missing there is known before.
static inline int dynapipe_probe_with(DynapipeCpuProbe* probe, const GPT2* whole, void* acts, void* scratch) {
    probe->part.model.grads_memory = (float*)calloc(whole->num_parameters, sizeof(float));
    if (probe->part.model.grads_memory == NULL) { return 1; }
    probe->part.ranges[0].model.grads_memory = probe->part.model.grads_memory;
    dynapipe_cpu_point_params(&probe->part.ranges[0].model.grads, &probe->part.slice,
                              probe->part.model.grads_memory, 0);
    dynapipe_probe_make_up(probe, 1);
    int code = dynapipe_probe_ours(probe, acts, scratch, 1);
    free(probe->part.model.grads_memory);
    probe->part.model.grads_memory = NULL;
    if (code != 0) { return code; }
    dynapipe_probe_theirs(probe, whole, 0);
    free(probe->part.model.grads_memory);
    if (dynapipe_probe_losses(probe) != 0 || dynapipe_probe_gradients(probe) != 0) { return 1; }
    dynapipe_probe_make_up(probe, DYNAPIPE_PROBE_SEQS);
    if (dynapipe_probe_ours(probe, acts, scratch, 0) != 0) { return 1; }
    dynapipe_probe_theirs(probe, whole, 1);
    return dynapipe_probe_losses(probe);
}

// Behind dynapipe_cpu_describe(). Returns 0, or 1 and dynapipe_cpu_model.why. Takes a forward and backward of
// 9 tokens twice, a forward of 15 and of 6, and for so long the memory of the model's gradients.
static inline int dynapipe_probe(const GPT2* whole) {
    DynapipeCpuProbe* probe = (DynapipeCpuProbe*)calloc(1, sizeof(DynapipeCpuProbe));
    DynapipeRange all;
    memset(&all, 0, sizeof all);
    all.end = dynapipe_cpu_model.config.num_layers + 2;
    if (probe == NULL) { return 1; }
    probe->part.slice = dynapipe_tensors_slice(&dynapipe_cpu_model.tensors, &all, 1);
    probe->part.model = *whole;
    dynapipe_cpu_view(&probe->part.ranges[0], &probe->part, all, 0);
    dynapipe_probe_make_up(probe, DYNAPIPE_PROBE_SEQS);
    int head = DYNAPIPE_FORWARD_HEAD, keep = head | DYNAPIPE_FORWARD_KEEP;
    int64_t kept_bytes = dynapipe_cpu_acts_bytes(&probe->part.ranges[0], &probe->batch, keep);
    int64_t passing_bytes = dynapipe_cpu_acts_bytes(&probe->part.ranges[0], &probe->batch, head);
    void* acts = malloc((size_t)(kept_bytes > passing_bytes ? kept_bytes : passing_bytes));
    void* scratch = malloc((size_t)dynapipe_cpu_scratch_bytes(&probe->part.ranges[0], &probe->batch));
    int code = acts == NULL || scratch == NULL ? 1 : dynapipe_probe_with(probe, whole, acts, scratch);
    free(acts);
    free(scratch);
    free(probe);
    return code;
}

// === CPU: main() ====================================================================================
/*
llm.c's CPU trainer behind the plugin's interface, and what main() says to it.

Included in the tree's train_gpt2.c just before main(). In main():

    int main(int argc, char** argv) {
        DYNAPIPE_OPEN(argc, argv)                // joins the ranks, takes the --options out of argv
        ...                                      // model and data loaders, as ever
        for (int step = DYNAPIPE_FIRST(&model, 0); DYNAPIPE_STEPS_OR(step) step <= 40; step++) {
            if (DYNAPIPE_WHOLE_AND step > 0 && step % 20 == 0) { ... samples of the model's text ... }

DYNAPIPE_FIRST checks and measures the model, leaves this rank its slice of it, and goes on
from a checkpoint if told to.

The loop's calls keep their names and mean: dataloader_*: nothing, the plugin has the data; gpt2_forward() on
training tokens: the first after an update is a step of all ranks, and mean_loss its loss, the others nothing;
on validation tokens: the validation; without targets: theirs; gpt2_zero_grad(), gpt2_backward(): done in the
step; gpt2_update(): theirs, on this rank's slice, then the report and maybe a checkpoint. With --fixed-length
all of them are theirs. Without -DDYNAPIPE the words above mean nothing and cost nothing.
*/

typedef struct {
    DynapipeLlmc* run;
    int is_on;  // 0: --fixed-length
    DynapipeModel_v1 api;
    DynapipeCpuPart* mine;                           // NULL before DYNAPIPE_FIRST
    const GPT2* whole;                               // their struct: of this rank's slice, since then
    const char *train_pattern, *val_pattern;         // the tree's, where no option names others
    const void *train_loader, *val_loader, *loader;  // the last: whose batch was asked for last
    int rows, seq_tokens;                            // the tree's B and T
    int first_step, step;                            // updates made before this run, and by now
    int validated_step;                              // that val_loss is of; -1: none
    int has_stepped;                                 // since the last update
    int* no_tokens[2];                               // (B, T) zeros: what loaders hold, training's and other
    float val_loss, loss, norm, lr;
} DynapipeCpuMain;

static DynapipeCpuMain dynapipe_cpu;

static inline int dynapipe_cpu_is_on(void) {
    return dynapipe_cpu.is_on;
}

// Both --fixed-length and the plugin take these options; before DYNAPIPE_OPEN there are none.
static inline const DynapipeLlmcOptions* dynapipe_cpu_options(void) {
    return dynapipe_llmc_options(dynapipe_cpu.run);
}

// What other ranks print to the terminal would be rank 0's lines again.
static inline void dynapipe_cpu_open(int* argc, char*** argv) {
    dynapipe_cpu.run = dynapipe_llmc_open(argc, argv, 1);
    dynapipe_cpu.is_on = dynapipe_llmc_is_on(dynapipe_cpu.run);
    dynapipe_cpu.validated_step = -1;
    if (!dynapipe_cpu_is_on()) { return; }
#ifndef DYNAPIPE_SIMULATED  // (where all ranks are one process)
    if (dynapipe_rank(dynapipe_llmc_session(dynapipe_cpu.run)) != 0 &&
        freopen("/dev/null", "w", stdout) == NULL) {
        dynapipe_llmc_die(dynapipe_cpu.run, "no /dev/null");
    }
#endif
#ifdef _OPENMP
    omp_set_num_threads(dynapipe_threads(dynapipe_llmc_session(dynapipe_cpu.run)));
#endif
}

// --- model and data --------------------------------------------------------------------------------------

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
    if (dynapipe_cpu.train_loader == NULL) {
        dynapipe_cpu.train_loader = loader;
        dynapipe_cpu.train_pattern = pattern;
        dynapipe_cpu.rows = B;
        dynapipe_cpu.seq_tokens = T;
    } else {
        dynapipe_cpu.val_loader = loader;
        dynapipe_cpu.val_pattern = pattern;
    }
    if (!dynapipe_cpu_is_on()) { return 0; }
    memset(loader, 0, loader_bytes);
    int** no_tokens = &dynapipe_cpu.no_tokens[loader == dynapipe_cpu.val_loader];
    if (*no_tokens == NULL) { *no_tokens = (int*)calloc((size_t)B * (size_t)T, sizeof(int)); }
    if (*no_tokens == NULL) { dynapipe_llmc_die(dynapipe_cpu.run, "no memory for a batch"); }
    return 1;
}

static inline int dynapipe_cpu_next_batch(const void* loader) {
    dynapipe_cpu.loader = loader;
    return dynapipe_cpu_is_on();
}

static inline void dynapipe_cpu_open_data(const GPT2* model) {
    const DynapipeLlmcOptions* options = dynapipe_cpu_options();
    int num_ranks = dynapipe_num_ranks(dynapipe_llmc_session(dynapipe_cpu.run));
    int64_t rows = dynapipe_cpu.rows, seq_tokens = dynapipe_cpu.seq_tokens;
    DynapipeRun_v1 about;
    memset(&about, 0, sizeof about);
    about.train_pattern = options->train_data != NULL ? options->train_data : dynapipe_cpu.train_pattern;
    about.val_pattern = options->val_data;
    if (options->train_data == NULL && about.val_pattern == NULL) {
        about.val_pattern = dynapipe_cpu.val_pattern;
    }
    about.max_seq_tokens = options->max_tokens > 0 ? options->max_tokens : (int32_t)seq_tokens;
    about.rows = (int32_t)rows;
    about.batch_tokens = options->batch_tokens > 0 ? options->batch_tokens : rows * seq_tokens * num_ranks;
    about.num_steps = options->steps > 0 ? options->steps : -1;
    dynapipe_llmc_open_data(dynapipe_cpu.run, &about, model->config.max_seq_len, model->config.vocab_size);
}

// --- the cut ---------------------------------------------------------------------------------------------

// By rank 0, as all have the same model; the others wait, or end with it.
static inline void dynapipe_cpu_probe(const GPT2* model) {
    Dynapipe* session = dynapipe_llmc_session(dynapipe_cpu.run);
    double done = 0;
    if (dynapipe_rank(session) == 0 && dynapipe_probe(model) != 0) {
        dynapipe_llmc_die(dynapipe_cpu.run, dynapipe_cpu_why(NULL));
    }
    dynapipe_llmc_check(dynapipe_cpu.run, dynapipe_sum(session, &done, 1));
    if (dynapipe_cpu_options()->check_model) {
        printf(
            "ok   sequences alone in the program's own gpt2_forward() and gpt2_backward() give the same\n");
    }
}

// From here on their struct is this rank's slice: what they update, zero and free.
static inline void dynapipe_cpu_cut(GPT2* model) {
    DynapipeRange ranges[DYNAPIPE_MAX_RANGES];
    DynapipeParams_v1 params;
    int num_threads = 1;
#ifdef _OPENMP
    num_threads = dynapipe_threads(dynapipe_llmc_session(dynapipe_cpu.run));
#endif
    int code = dynapipe_cpu_describe(model, num_threads);
    if (code < 0) {
        dynapipe_llmc_die(dynapipe_cpu.run,
                          "ParameterTensors or ActivationTensors are not one tensor for each "
                          "size that fill_in_*_sizes() says, or these are not "
                          "num_parameters: this model cannot be cut ---> doc/porting.md");
    }
    dynapipe_llmc_check(dynapipe_cpu.run, code);
    dynapipe_cpu_probe(model);
    dynapipe_cpu.api = dynapipe_cpu_api();
    DynapipeBlocks_v1 description = dynapipe_cpu_blocks(&dynapipe_cpu.api);
    int num_ranges = dynapipe_llmc_place(dynapipe_cpu.run, &description, ranges);
    dynapipe_cpu.mine = dynapipe_cpu_make_part(ranges, num_ranges, 1, &params);
    if (dynapipe_cpu.mine == NULL) { dynapipe_llmc_die(dynapipe_cpu.run, dynapipe_cpu_why(NULL)); }
    free(model->params_memory);
    *model = dynapipe_cpu.mine->model;
    for (int i = 0; i < num_ranges; i++) {
        dynapipe_llmc_attach(dynapipe_cpu.run, i, &dynapipe_cpu.api, &dynapipe_cpu.mine->ranges[i], &params);
    }
}

// --- checkpoints -----------------------------------------------------------------------------------------

static inline DynapipeLlmcCheckpoint dynapipe_cpu_checkpoint(const GPT2* model, int32_t header[256]) {
    const GPT2Config* config = &dynapipe_cpu_model.config;
    int32_t fields[8] = {20240326,
                         3,
                         config->max_seq_len,
                         config->vocab_size,
                         config->num_layers,
                         config->num_heads,
                         config->channels,
                         config->padded_vocab_size};
    DynapipeLlmcCheckpoint checkpoint;
    memset(header, 0, 256 * sizeof(int32_t));
    memcpy(header, fields, sizeof fields);
    memset(&checkpoint, 0, sizeof checkpoint);
    checkpoint.directory = dynapipe_cpu_options()->output_dir;
    checkpoint.tensors = &dynapipe_cpu_model.tensors;
    checkpoint.slice = &dynapipe_cpu.mine->slice;
    checkpoint.model_header = header;
    checkpoint.model_header_bytes = 256 * (int32_t)sizeof(int32_t);
    checkpoint.param_bytes = (int32_t)sizeof(float);
    checkpoint.params = model->params_memory;
    checkpoint.m = model->m_memory;
    checkpoint.v = model->v_memory;
    return checkpoint;
}

static inline void dynapipe_cpu_save(const GPT2* model) {
    const DynapipeLlmcOptions* options = dynapipe_cpu_options();
    int32_t header[256];
    int is_last = dynapipe_cpu.step == dynapipe_llmc_num_steps(dynapipe_cpu.run);
    if (options->output_dir == NULL || dynapipe_cpu.step == dynapipe_cpu.first_step) { return; }
    if (!dynapipe_llmc_is_due(dynapipe_cpu.run, dynapipe_cpu.step) && !is_last) { return; }
    DynapipeLlmcCheckpoint checkpoint = dynapipe_cpu_checkpoint(model, header);
    dynapipe_llmc_save(dynapipe_cpu.run, &checkpoint, dynapipe_cpu.step);
}

static inline void dynapipe_cpu_resume(GPT2* model) {
    int32_t header[256];
    int32_t step = dynapipe_llmc_latest(dynapipe_cpu.run, dynapipe_cpu_options()->output_dir);
    if (step < 0) { return; }
    model->m_memory = (float*)calloc(model->num_parameters, sizeof(float));
    model->v_memory = (float*)calloc(model->num_parameters, sizeof(float));
    if (model->m_memory == NULL || model->v_memory == NULL) {
        dynapipe_llmc_die(dynapipe_cpu.run, "no memory for the optimizer");
    }
    DynapipeLlmcCheckpoint checkpoint = dynapipe_cpu_checkpoint(model, header);
    dynapipe_llmc_resume(dynapipe_cpu.run, &checkpoint, step);
    dynapipe_cpu.step = step;
}

// Told to end by a signal: saves what is not saved yet, and does not return.
static inline void dynapipe_cpu_end_if_told(const GPT2* model) {
    if (!dynapipe_llmc_is_told_to_end(dynapipe_cpu.run)) { return; }
    dynapipe_cpu_save(model);
    dynapipe_llmc_end(dynapipe_cpu.run, dynapipe_cpu_options()->output_dir, dynapipe_cpu.step);
}

// --- the loop --------------------------------------------------------------------------------------------

static inline void dynapipe_cpu_need_model(void) {
    if (!dynapipe_cpu_is_on() || dynapipe_cpu.mine != NULL) { return; }
    dynapipe_llmc_die(dynapipe_cpu.run,
                      "a step before the model is cut: DYNAPIPE_FIRST is missing in the training "
                      "loop ---> dynapipe_plugin/install.sh --check says where");
}

static inline int dynapipe_cpu_first(GPT2* model, int first) {
    if (!dynapipe_cpu_is_on()) { return first; }
    dynapipe_cpu_open_data(model);
    dynapipe_cpu_cut(model);
    if (dynapipe_cpu_options()->resume) { dynapipe_cpu_resume(model); }
    dynapipe_llmc_begin(dynapipe_cpu.run, dynapipe_cpu_options()->output_dir);
    dynapipe_cpu.whole = model;
    dynapipe_cpu.first_step = dynapipe_cpu.step;
    return dynapipe_cpu.step;
}

static inline int dynapipe_cpu_counts_steps(void) {
    dynapipe_cpu_need_model();
    return dynapipe_cpu_is_on() || dynapipe_cpu_options()->steps > 0;
}

// Their loop's condition: behind the last step's report and their line of it.
static inline int dynapipe_cpu_has_step(int step) {
    if (dynapipe_cpu_is_on()) { dynapipe_cpu_end_if_told(dynapipe_cpu.whole); }
    return step <
           (dynapipe_cpu_is_on() ? dynapipe_llmc_num_steps(dynapipe_cpu.run) : dynapipe_cpu_options()->steps);
}

// Sampling and the like is rank 0's, and only where it has all of the model.
static inline int dynapipe_cpu_whole(void) {
    return !dynapipe_cpu_is_on() || (dynapipe_llmc_is_whole(dynapipe_cpu.run) &&
                                     dynapipe_rank(dynapipe_llmc_session(dynapipe_cpu.run)) == 0);
}

// All of their batches of a validation are one of the plugin's.
static inline float dynapipe_cpu_validate(void) {
    if (dynapipe_cpu.validated_step != dynapipe_cpu.step) {
        const DynapipeLlmcOptions* options = dynapipe_cpu_options();
        dynapipe_cpu.val_loss = (float)dynapipe_llmc_validate(dynapipe_cpu.run, options->val_batches,
                                                              dynapipe_cpu.step, options->output_dir);
        dynapipe_cpu_end_if_told(dynapipe_cpu.whole);
        dynapipe_cpu.validated_step = dynapipe_cpu.step;
    }
    return dynapipe_cpu.val_loss;
}

// What it is by the values of its arguments: `inputs` are no_tokens where they are a loader's.
static inline void dynapipe_cpu_check_forward_args(const int* inputs, const int* targets) {
    int is_loaders = inputs == dynapipe_cpu.no_tokens[0] || inputs == dynapipe_cpu.no_tokens[1];
    if (targets == NULL && inputs != NULL && is_loaders) {
        dynapipe_llmc_die(dynapipe_cpu.run,
                          "gpt2_forward() of a loader's tokens without targets: the plugin has the data, and "
                          "tokens only in its steps ---> run that with --fixed-length");
    }
    if (targets == NULL && !dynapipe_llmc_is_whole(dynapipe_cpu.run)) {
        dynapipe_llmc_die(dynapipe_cpu.run,
                          "a forward pass of the whole model, which is cut: DYNAPIPE_WHOLE_AND is "
                          "missing ---> dynapipe_plugin/install.sh --check says where");
    }
    if (targets != NULL && dynapipe_cpu.loader == NULL) {
        dynapipe_llmc_die(dynapipe_cpu.run,
                          "gpt2_forward() with targets before dataloader_next_batch(): is it "
                          "a step or validation? ---> ask a loader first");
    }
}

// The first training forward after an update has all of its tokens, however often they go on to accumulate.
static inline float dynapipe_cpu_train(void) {
    if (dynapipe_cpu.has_stepped) {
        dynapipe_llmc_say_once(dynapipe_cpu.run,
                               "several training batches for one gpt2_update(): the first is a step of "
                               "--batch-tokens tokens, the others are passed over");
    } else {
        dynapipe_cpu.loss = (float)dynapipe_llmc_step(dynapipe_cpu.run);
        dynapipe_cpu.has_stepped = 1;
    }
    return dynapipe_cpu.loss;
}

// Whose targets these are; where they were copied, those of the loader that was asked last.
static inline int dynapipe_cpu_is_validation(const int* targets) {
    if (targets == dynapipe_cpu.no_tokens[0] || targets == dynapipe_cpu.no_tokens[1]) {
        return targets == dynapipe_cpu.no_tokens[1];
    }
    return dynapipe_cpu.loader == dynapipe_cpu.val_loader;
}

// Returns 1: done; 0: theirs is to run.
static inline int dynapipe_cpu_run_forward(GPT2* model, const int* inputs, const int* targets) {
    if (!dynapipe_cpu_is_on()) { return 0; }
    dynapipe_cpu_need_model();
    dynapipe_cpu_check_forward_args(inputs, targets);
    if (targets == NULL) { return 0; }
    model->mean_loss = dynapipe_cpu_is_validation(targets) ? dynapipe_cpu_validate() : dynapipe_cpu_train();
    return 1;
}

static inline float dynapipe_cpu_norm(const GPT2* model) {
    enum { MOST_SPANS = DYNAPIPE_MAX_TENSORS + 1 };
    DynapipeSpan spans[MOST_SPANS];
    int32_t num_spans;
    double squares = 0;
    dynapipe_llmc_check(dynapipe_cpu.run, dynapipe_counted(dynapipe_llmc_session(dynapipe_cpu.run), spans,
                                                           MOST_SPANS, &num_spans));
    for (int32_t s = 0; s < num_spans; s++) {
        squares +=
            dynapipe_cpu_sum_squares(model->grads_memory + spans[s].begin, spans[s].end - spans[s].begin);
    }
    return (float)dynapipe_llmc_norm(dynapipe_cpu.run, squares);
}

static inline float dynapipe_cpu_rate(float theirs) {
    double given = dynapipe_cpu_options()->lr;
    return dynapipe_cpu.lr = given > 0 ? (float)given : theirs;
}

static inline void dynapipe_cpu_before_update(const GPT2* model) {
    if (!dynapipe_cpu_is_on()) { return; }
    if (!dynapipe_cpu.has_stepped) {
        dynapipe_llmc_die(dynapipe_cpu.run,
                          "gpt2_update() without a gpt2_forward() of training tokens since the last one: no "
                          "gradients ---> ask the training loader, then forward, backward, update");
    }
    int32_t header[256];
    DynapipeLlmcCheckpoint checkpoint = dynapipe_cpu_checkpoint(model, header);
    dynapipe_llmc_dump_gradients(dynapipe_cpu.run, &checkpoint, model->grads_memory);
    dynapipe_cpu.norm = dynapipe_cpu_norm(model);
}

static inline void dynapipe_cpu_after_update(const GPT2* model) {
    if (!dynapipe_cpu_is_on()) { return; }
    DynapipeReport_v1 report;
    memset(&report, 0, sizeof report);
    dynapipe_cpu.has_stepped = 0;
    report.step = ++dynapipe_cpu.step;
    report.norm = dynapipe_cpu.norm;
    report.lr = dynapipe_cpu.lr;
    report.loss_z = report.norm_z = NAN;
    report.log_dir = dynapipe_cpu_options()->output_dir;
    dynapipe_llmc_end_step(dynapipe_cpu.run, &report);
    dynapipe_cpu_save(model);
}

static inline void dynapipe_cpu_close(void) {
    int status = dynapipe_llmc_close(dynapipe_cpu.run);
    for (int i = 0; i < 2; i++) {
        free(dynapipe_cpu.no_tokens[i]);
        dynapipe_cpu.no_tokens[i] = NULL;
    }
    free(dynapipe_cpu.mine);  // what it points to is the model's
    dynapipe_cpu.run = NULL;
    dynapipe_cpu.mine = NULL;
    if (status != 0) { exit(status); }  // their main() would return 0
}

// --- main's words, and what its calls mean ---------------------------------------------------------------

#define DYNAPIPE_OPEN(argc, argv) dynapipe_cpu_open(&argc, &argv);
#define DYNAPIPE_FIRST(model, first) dynapipe_cpu_first(model, first)
#define DYNAPIPE_STEPS_OR(step) dynapipe_cpu_counts_steps() ? dynapipe_cpu_has_step(step):
#define DYNAPIPE_WHOLE_AND dynapipe_cpu_whole()&&

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
#define gpt2_update(model, rate, ...)                                                               \
    (dynapipe_cpu_before_update(model), (gpt2_update)(model, dynapipe_cpu_rate(rate), __VA_ARGS__), \
     dynapipe_cpu_after_update(model))
#define gpt2_free(model) (dynapipe_cpu_close(), (gpt2_free)(model))

#endif
#endif

#if !defined DYNAPIPE && defined DYNAPIPE_MAIN && !defined DYNAPIPE_LLMC_CUDA
#define DYNAPIPE_OPEN(argc, argv)
#define DYNAPIPE_FIRST(model, first) first
#define DYNAPIPE_STEPS_OR(step)
#define DYNAPIPE_WHOLE_AND
#endif
