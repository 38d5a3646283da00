/*
trainer.h -- the trainer, for any kind of model: parse, build, loop, free. A program calls trainer_main() with
its kind.

Gradients come from source.h: source_dynapipe.c (the plugin) or source_stock.c.
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

// The model's origin: a descriptor, a checkpoint, Hugging Face's files, -o's newest checkpoint.
typedef enum { MODEL_NEW, MODEL_CHECKPOINT, MODEL_HF, MODEL_RESUMED } ModelSource;

// The seals of the initial files, and the sums of what this rank read of them.
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
    double* squares;  // of parameters by tensor; NULL if not needed
    LrSchedule lr_schedule;
    Logger logger;
    int export_lock;        // of --export-hf's folder; -1: none
    bool warned_of_output;  // standard output is lost
    Outlier loss_outlier, norm_outlier;
    int step, num_steps;  // optimizer steps done, of the run
    int resume_step;      // of the checkpoint in -o to resume from; -1: none
    Verification begun;
    SaveInterval save_every;
    int saved_step;          // last saved or resumed
    double saved_s;          // when, by source_seconds()
    CheckpointTimed timed;   // without -n and -nk: saved by the clock or on a signal
    bool warned_of_model;    // a difference of -e was reported
    char* saved_model_name;  // at the begin of the resumed run; NULL: the flag's
    bool replaces_earlier;   // --overwrite 1, and nothing saved yet: the earlier run still exists
    bool save_failed;        // the last checkpoint could not be written
    bool has_kept_tokens;    // the data's tokenizer lies beside the checkpoints
} Trainer;

// The exit status of main().
int trainer_main(int argc, char** argv, const ModelKind* kind);

// Between two steps: if layers move, rebuilds this rank's model and optimizer.
void trainer_resplit(Trainer* t);

#ifdef __cplusplus
}
#endif
