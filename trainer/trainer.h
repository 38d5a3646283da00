/*
trainer.h -- the trainer, for any kind of model: parse, build, loop, free. A program is trainer_main() of its
kind.

    trainer.c             build, loop, free
    trainer_model.c       the model that -e describes or names; --export-hf
    trainer_checkpoint.c  saving, going on, gradients to a file
    trainer_resplit.c     layers that move to another rank in mid-run
    trainer_verify.c      is what the run begins with what was saved, and the same on every rank?
    trainer_output.c      the folder of -o, its logs and the run's settings
    source.h              where a step's gradients come from: source_dynapipe.c (the plugin) or source_stock.c
*/
#pragma once

#include "../util/program.h"
#include "../llmc/checkpoint.h"
#include "../llmc/checkpoint_timed.h"
#include "../llmc/hf_checkpoint.h"
#include "../llmc/lr_schedule.h"
#include "../llmc/model.h"
#include "../llmc/optimizer.h"
#include "../llmc/outlier.h"
#include "../llmc/train_flags.h"
#include "logger.h"
#include "source.h"

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

// trainer_model.c
// This rank's layers of the model that -e or the checkpoint to resume from describes, filled.
ModelSource trainer_build_model(Trainer* t);
// The float32 weights behind the parameters, where the optimizer keeps them and the model was read.
bool trainer_read_first_master(Trainer* t, ModelSource source, char* error);
// --export-hf, if it was given.
void trainer_export(Trainer* t);
// The folder of the data's files: where prepare_data put the tokenizer's.
const char* trainer_data_folder(const Trainer* t, char out[CHECKPOINT_PATH_CHARS]);

// trainer_checkpoint.c
// Every rank learns whether all succeeded; the first that failed says why.
bool trainer_all_succeeded(Trainer* t, bool ok, const char* what, const char* error);
// Written aside, renamed when every rank's part is on disk. A full disk costs this checkpoint, not the run.
void trainer_save(Trainer* t);
// On the main rank, where it takes long (slow_notice.h): "saving step 100". step < 0: none; num_bytes 0:
// unknown.
SlowNotice* trainer_notice(const Trainer* t, const char* doing, int step, int64_t num_bytes);
// Goes on from resume_step, whose model is there.
void trainer_resume(Trainer* t);
// The float32 weights behind a model file's: of its state, where that has them, else of the file itself.
bool trainer_read_master(Trainer* t, const char* model_path, const char* state_path, bool state_has_master,
                         char* error);
// --dump-gradients. Asked for by name, so a run that cannot write them has failed.
void trainer_dump_gradients(Trainer* t);

// trainer_resplit.c
// Between two steps: where layers move, this rank's model and optimizer are of its new layers.
void trainer_resplit(Trainer* t);

// trainer_verify.c. What fails ends the run on all ranks.
// Sets resume_step; all ranks found the same files. A collective.
void trainer_find_begin(Trainer* t, ModelSource source);
// Of a checkpoint: its header, with -y its state's, are those that were sealed, of one checkpoint, and of the
// data's vocabulary.
void trainer_read_seals(Trainer* t, ModelSource source, const char* model_path);
// Once all values were read: are they those that were saved? state_path: NULL without. A collective.
void trainer_check_sums(Trainer* t, const char* model_path, const char* state_path);
// This checkpoint cannot be gone on from; which one can.
void trainer_die_of_checkpoint(Trainer* t, const char* error);
// The sums over all ranks, mod 2^64; are all `ok`? A collective.
bool trainer_add_sums(Trainer* t, bool ok, uint64_t* model_sum, uint64_t* state_sum);

// trainer_output.c
// Locks -o for this run, and refuses the place of an earlier one unless that is wanted. Nothing of it is
// touched but what a killed run left unfinished.
void trainer_open_output(Trainer* t);
// All is well, the first step is next: what the new run takes the place of goes; a resumed one's logs go back
// to its step.
// The first checkpoint of a run with --overwrite 1 is saved: what the earlier run left in -o goes.
void trainer_replace_earlier(Trainer* t);
void trainer_begin_output(Trainer* t, ModelSource source);
// For checkpoints (CheckpointRun.settings); NULL: no memory. What differs is said by the main rank.
char* trainer_settings(const Trainer* t);
void trainer_compare_settings(Trainer* t, const char* saved);
void trainer_check_printed(Trainer* t);   // once a step
bool trainer_has_lost(const Trainer* t);  // lines of a log
void trainer_close_output(Trainer* t);

#ifdef __cplusplus
}
#endif
