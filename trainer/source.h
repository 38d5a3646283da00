/*
source.h -- the source of a training step's gradients.

Two implementations, one is linked: source_dynapipe.c (the plugin: a task mixture on a pipeline of ranks) and
source_stock.c (llm.c's loop: fixed-length batches, one process). Any failure ends the program with one
message from one rank, so no function returns a status.
*/
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "../llmc/model.h"
#include "../llmc/train_flags.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct Source Source;

typedef struct {
    double loss;  // mean over the step's supervised tokens
    double norm, lr, loss_z, norm_z;
} SourceStep;

// Removes the implementation's own --options from argv (as MPI_Init does) and joins the ranks, if there are
// any.
Source* source_open(int* argc, char*** argv, const ModelKind* kind);
void source_close(Source* source);
void source_print_usage(FILE* out, const ModelKind* kind);  // how to start the program
void source_print_options(FILE* out);                       // the --options
void source_print_version(FILE* out);                       // its libraries; before source_open()
bool source_is_main(const Source* source);                  // the rank that prints and logs, rank 0
int source_rank(const Source* source);
int source_num_ranks(const Source* source);
int source_stop_signal(const Source* source);         // agreed by all ranks; 0: none
double source_seconds(const Source* source);          // wall clock at the last report, equal on all ranks
void source_die(Source* source, const char* why);     // on every rank; does not return
void source_refuse(Source* source, const char* why);  // the same for wrong flags: exit status 2

// Opens the data of the flags. Vocabulary for a new model; steps of the run.
void source_open_data(Source* source, const TrainFlags* flags);
int source_vocab(const Source* source);
uint64_t source_vocab_hash(const Source* source);  // of all tokens' bytes; 0: unknown
bool source_has_byt5_tokens(const Source* source);
int source_eot_token(const Source* source);
int source_pad_token(const Source* source);  // -1: none; then a decoder starts with the end-of-text token
int source_num_steps(const Source* source);
int64_t source_batch_tokens(const Source* source);  // of a step, over all ranks
uint32_t source_seed(const Source* source);

// This rank's part of the model, and the model made from it.
OpsContext* source_ops(Source* source);
ModelPart source_part(Source* source, const ModelConfig* config);
void source_attach(Source* source, Model* model);

// Gradients of the mean loss, summed over all ranks that share them; *loss. The optimizer then updates
// [begin, end).
double source_step(Source* source);
void source_shard(const Source* source, int64_t* begin, int64_t* end);
void source_share_params(Source* source);
void source_report(Source* source, int step, const SourceStep* about);  // prints the step line

// After source_report() and source_restore(), on all ranks: do layers move between ranks? If so, returns
// this rank's new layers: call source_attach() with a model of them, and source_move() for each array of
// the old model and its optimizer.
bool source_resplit(Source* source, const ModelConfig* config, ModelPart* part);
// values[i] belongs to model->params[begin + i], begin + i < end.
typedef struct {
    const Model* model;
    int64_t begin, end;
    void* values;
} SourceArray;
// `want` is filled from the ranks that have the array, which has the same number on all ranks.
void source_move(Source* source, int array, size_t bytes_per_value, const SourceArray* have,
                 const SourceArray* want);

// Lost lines of its own logs; on the main rank.
int64_t source_lost_lines(const Source* source);

// Sums over all ranks, bit-identical everywhere.
void source_sums(Source* source, double* values, int num_values);
static inline double source_sum(Source* source, double value) {
    source_sums(source, &value, 1);
    return value;
}
bool source_owns_params(const Source* source);  // of all ranks with these parameters, the one that saves them
bool source_owns_moments(const Source* source);  // of all ranks with this shard, the one that saves it

// After `step` steps; NaN without validation data or if interrupted by a signal. The plugin also answers
// questions of it.
double source_validate(Source* source, int step, int max_batches);
// Prints the model's answers to validation samples from `idx` on, on the main rank.
void source_show_samples(Source* source, int idx, int num_samples, int max_tokens);

// Before a checkpoint, on every rank: checks this rank's part of the data.
void source_verify_data(Source* source);
// Position in the data, for checkpoints. Valid until the next step.
void source_position(const Source* source, const void** out, size_t* num_bytes);
void source_restore(Source* source, const void* position, size_t num_bytes, int step);

const char* source_dump_gradients(const Source* source);  // file for the first step's gradients, or NULL

#ifdef __cplusplus
}
#endif
