/*
trainer.h -- the trainer, for any kind of model: parse, build, loop, free. A program is trainer_main() of its
kind.

What a step's gradients come from is source.h: source_dynapipe.c (the plugin) or source_stock.c.
*/
#pragma once

#include "../llmc/checkpoint.h"
#include "checkpoint_timed.h"
#include "../llmc/hf.h"
#include "../llmc/model.h"
#include "../llmc/optimizer.h"
#include "../llmc/train_flags.h"
#include "logger.h"
#include "source.h"
#include "../util/program.h"

#ifdef __cplusplus
extern "C" {
#endif

// Where the model comes from: a descriptor, a checkpoint, Hugging Face's files, -o's newest checkpoint.
typedef enum { MODEL_NEW, MODEL_CHECKPOINT, MODEL_HF, MODEL_RESUMED } ModelSource;

// The seals of the files that a run begins with, and the sums of what this rank read of them.
typedef struct {
    CheckpointSeal model, state;
    uint64_t model_sum, state_sum;
} Verification;

typedef struct {
    const ModelKind* kind;
    TrainFlags flags;
    Source* source;
    Model model;
    HfConfig like;  // of the files that the model was read from ...
    bool has_like;  // ... if these were Hugging Face's
    Optimizer optimizer;
    double* squares;  // of parameters by tensor; NULL where the optimizer does not ask
    LrSchedule lr_schedule;
    Logger logger;
    int export_lock;        // of --export-hf's folder; -1: none
    bool warned_of_output;  // standard output is lost
    Outlier loss_outlier, norm_outlier;
    int step, num_steps;  // optimizer steps done, of the run
    int resume_step;      // of the checkpoint in -o that the run goes on from; -1: none
    Verification begun;
    SaveInterval save_every;
    int saved_step;          // the last that was saved, or gone on from
    double saved_s;          // when, by source_seconds()
    CheckpointTimed timed;   // without -n and -nk, else what these say: saved by the clock or for a signal
    bool warned_of_model;    // -e was said to differ, with its shape
    char* saved_model_name;  // that the run which goes on began with; NULL: the flag's
    bool replaces_earlier;   // --overwrite 1, and nothing saved yet: the earlier run is still there
    bool save_failed;        // the last checkpoint could not be written
    bool has_kept_tokens;    // the data's tokenizer lies beside the checkpoints
} Trainer;

// What main() returns.
int trainer_main(int argc, char** argv, const ModelKind* kind);

// Between two steps: where layers move, this rank's model and optimizer are of its new layers.
void trainer_resplit(Trainer* t);

#ifdef __cplusplus
}
#endif
