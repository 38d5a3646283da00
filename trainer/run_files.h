/*
run_files.h -- the folder of a run (-o): main.log, and the checkpoints that all its ranks write and read
together (llmc/checkpoint.h). Functions that return are collective; an error that a run cannot go on after
ends all ranks, with one line of rank 0.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include "../dynapipe_plugin/dynapipe.h"
#include "../llmc/checkpoint.h"
#include "../llmc/optimizer.h"
#include "../util/files.h"
#include "../util/program.h"
#include "train_flags.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- main.log ----------------------------------------------------------------------------------------------

/*
In llm.c's form, which its plotting scripts read:

    s:0 tel:11.0231                          validation loss
    s:0 trl:11.0104 lr:0.000300 norm:15.38   training loss, learning rate, gradient norm

Until DIRECTORY/main.log is closed no other run can open it, so that two runs never mix their checkpoints. A
log that is not open writes nothing.
*/
Status main_log_open(LineLog* log, const char* directory);
void main_log_train(LineLog* log, int step, float loss, float lr, float norm);
void main_log_val(LineLog* log, int step, float loss);

// --- the folder --------------------------------------------------------------------------------------------

// Borrowed up to is_main; model and optimizer are this rank's part.
typedef struct {
    Dynapipe* dp;
    const TrainFlags* flags;
    const Model* model;
    Optimizer* optimizer;
    bool is_main;                           // rank 0, which prints and logs
    uint64_t vocab_hash;                    // of the data
    LineLog log;                            // of rank 0
    int resume_step;                        // of the checkpoint to resume from; -1: none
    CheckpointSeal model_seal, state_seal;  // of the files that the run begins with ...
    uint64_t model_sum, state_sum;          // ... and the sums of what this rank read of them
    bool made_output, made_export;          // this run made -o, --export-hf
    bool replaces_earlier;  // --overwrite 1, and nothing saved yet: the earlier run's checkpoints still exist
    bool save_failed;       // the last checkpoint could not be written
} RunFiles;

__attribute__((format(printf, 3, 4), noreturn)) void run_end(RunFiles* r, int exit_status, const char* format,
                                                             ...);
void run_check(RunFiles* r, int code);  // of the plugin: every rank finds the same errors
// Sums over all ranks, the same bits everywhere.
void run_sums(RunFiles* r, double* values, int num_values);
double run_sum(RunFiles* r, double value);
void run_agree(RunFiles* r, Status status);                            // an error on any rank ends all
bool run_all_succeeded(RunFiles* r, Status status, const char* what);  // else each that did not prints why

// Of all ranks with the same parameters, or the same shard, is this the one that saves them?
bool run_owns_params(const RunFiles* r);
bool run_owns_moments(const RunFiles* r);
// Progress lines on rank 0: "saving step 100". step < 0: none; num_bytes 0: unknown.
SlowNotice* run_notice_begin(const RunFiles* r, const char* doing, int step, int64_t num_bytes);

// Makes both folders and locks main.log; refuses to replace an earlier run unless the flags say so.
void run_folder_open(RunFiles* r);
bool run_has_bytes(const char* directory, const char* name);  // a file that is not empty
// Finds resume_step; all ranks must see the same files there, or as the flags' model (is_file).
void run_find_begin(RunFiles* r, bool is_file);
// Once all is read, before the first step: cuts the logs back to `step`, of a resumed run.
void run_folder_begin(RunFiles* r, int step);

// --- checkpoints -------------------------------------------------------------------------------------------

// The last error was of the checkpoint to resume from: names the newest one before it.
__attribute__((noreturn)) void run_end_of_checkpoint(RunFiles* r);
// Checks that the headers of a model file (and of the state of resume_step) are as sealed, belong together,
// and match the data's vocabulary.
void run_read_seals(RunFiles* r, const char* model_path);
// After all values have been read. state_path: NULL without.
void run_check_sums(RunFiles* r, const char* model_path, const char* state_path);
// Moments, master weights and record of resume_step, whose model has been read.
void run_read_state(RunFiles* r, CheckpointRun* out);
// The float32 master weights of -e, if the optimizer has them. is_hf: Hugging Face's files.
Status run_read_first_master(RunFiles* r, bool is_hf);

// Writes temporary files, renamed when every rank's part is on disk: a full disk loses this checkpoint
// (save_failed), not the run. timed: by the clock or on a signal. settings: of the record.
void run_save(RunFiles* r, int step, const char* settings, bool timed);
// A file without a state, of parameters (CHECKPOINT_PARAMS) or gradients (CHECKPOINT_FLOATS).
bool run_save_alone(RunFiles* r, const char* path, CheckpointBody body, int step, const char* what);

#ifdef __cplusplus
}
#endif
