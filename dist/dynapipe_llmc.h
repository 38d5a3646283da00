#pragma once
/*
llmc_tensors.h -- the tensors of a model of llm.c's family, and the part of them that a range of blocks has.

The family keeps a model as one array: tensor after tensor in a fixed order, in each all layers one after the
other (what a checkpoint's body is, too). A slice is the same with fewer layers, and without the tensors that
its blocks do not use: they have 0 values there, everything else of the family's code stays as it is.

    DynapipeTensors tensors;        // once, from fill_in_parameter_sizes() of the tree
    dynapipe_tensors_init(&tensors, NUM_PARAMETER_TENSORS, num_layers, sizes_of_1_layer, sizes_of_2, where);
    DynapipeSlice slice = dynapipe_tensors_slice(&tensors, blocks);
    for each tensor i of the slice: values [slice.begin[i], + slice.count[i]) are [slice.whole[i], ...) of all

Knows nothing of how values are computed, of what type they are, or where they live.
*/


#include "dynapipe.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DYNAPIPE_MAX_TENSORS = 64 };

// Which ranges have a tensor: the one with the embedding, those with layers (a part of it each), the one with
// the head. FIRST | LAST: a tied copy in each of the two.
enum { DYNAPIPE_TENSOR_FIRST = 1, DYNAPIPE_TENSOR_LAYERS = 2, DYNAPIPE_TENSOR_LAST = 4 };

typedef struct {
    int32_t num_tensors, num_layers;
    int32_t where[DYNAPIPE_MAX_TENSORS];
    int64_t count[DYNAPIPE_MAX_TENSORS];  // values of tensor i; with LAYERS: of one layer of it
} DynapipeTensors;

// What a range of blocks has. Its arrays (parameters, gradients, m, v) have num_values values each.
typedef struct {
    int32_t num_layers;
    int32_t has_first, has_last;
    int64_t num_values;
    int64_t begin[DYNAPIPE_MAX_TENSORS];  // where tensor i begins in the slice's arrays
    int64_t count[DYNAPIPE_MAX_TENSORS];  // its values there, 0: not in this slice
    int64_t whole[DYNAPIPE_MAX_TENSORS];  // where these values begin in the whole model's arrays
    int32_t num_tied;
    DynapipeTied tied[DYNAPIPE_MAX_TENSORS];  // of the tensors that first and last have, where this is one
} DynapipeSlice;

// sizes_of_1, sizes_of_2: values of each tensor of this model with 1 and with 2 layers. Those that grow are
// of the layers, whatever `where` says of them; the others are where it says. Returns 0, or an error if
// dynapipe_error() has to say something of these numbers.
int dynapipe_tensors_init(DynapipeTensors* out, int32_t num_tensors, int32_t num_layers,
                          const size_t* sizes_of_1, const size_t* sizes_of_2, const int32_t* where);
int64_t dynapipe_tensors_total(const DynapipeTensors* tensors);  // values of the whole model
DynapipeSlice dynapipe_tensors_slice(const DynapipeTensors* tensors, DynapipeRange blocks);

// How values get to and from host memory; NULL in place of the struct: they are in host memory.
typedef struct {
    void (*to_host)(void* host, const void* values, size_t num_bytes);
    void (*from_host)(void* values, const void* host, size_t num_bytes);
} DynapipeCopies;

// The whole model's values in a file, from byte `at` on. *sum grows by that of the values that go by
// (llmc_seal.h), as values of a body that begins at byte file_at; without a tied tensor's copy. NULL: nobody
// asks.
typedef struct {
    int64_t at;
    int32_t value_bytes;
    int64_t file_at;
    uint64_t* sum;
} DynapipeBody;

// The slice's values to and from such a file. Of a tied tensor the last's copy is read but not written (the
// first's is). The file is there and long enough.
int dynapipe_tensors_write(const char* path, const DynapipeBody* body, const DynapipeSlice* slice,
                           const DynapipeTensors* tensors, const void* values, const DynapipeCopies* copies);
int dynapipe_tensors_read(const char* path, const DynapipeBody* body, const DynapipeSlice* slice,
                          const DynapipeTensors* tensors, void* values, const DynapipeCopies* copies);

#ifdef __cplusplus
}
#endif
/*
llmc_run.h -- a run of the plugin inside a trainer of llm.c's family: what its CPU and CUDA adapters share.

    DynapipeLlmc* run = dynapipe_llmc_open(&argc, &argv, has_options);
    if (!dynapipe_llmc_is_on(run)) { ... their own loop, as ever (--fixed-length) ... }
    dynapipe_llmc_open_data(run, &about);
    blocks = dynapipe_llmc_place(run, &model);          // measures it, chooses this rank's blocks
    dynapipe_llmc_attach(run, &api, slice, &params);
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



#ifdef __cplusplus
extern "C" {
#endif

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
    const char* checkpoint_every;       // steps, or a time (base/save_interval.h); NULL: not given
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
DynapipeRange dynapipe_llmc_place(DynapipeLlmc* run, const DynapipeBlocks_v1* blocks);
void dynapipe_llmc_attach(DynapipeLlmc* run, const DynapipeModel_v1* api, void* model,
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
// was saved (llmc_seal.h) ends the program, unless --verify 0.
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
