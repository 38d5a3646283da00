/*
checkpoint.h -- llm.c's checkpoints, written and read by any number of ranks: 4 stages write, 2 x 2 read.

    rank 0:      checkpoint_create_model(model_path, ...), checkpoint_create_state(state_path, ...)
    -- barrier --
    each rank:   checkpoint_write(model_path, CHECKPOINT_PARAMS, ...) of its slice (one replica is enough),
                 checkpoint_write(state_path, CHECKPOINT_M, ...) of its range; _V; _MASTER if any
    -- barrier, with "did all succeed?"; the sums of all ranks are added --
    rank 0:      checkpoint_seal_write() of both, checkpoint_commit() of both, checkpoint_mark_done()
                 or, where somebody failed, checkpoint_abort() of both

Going on: checkpoint_seal_read() of both files and checkpoint_seal_check_pair(); every value is read and
summed once (as it was written); the sums of all ranks are added, checkpoint_seal_check() of both.

Gradients in the form of a model file (for comparing runs): as model_path, with checkpoint_create_gradients()
and CHECKPOINT_FLOATS of model->grads. Files are written as PATH.tmp and renamed by commit, so that an old
file survives whatever happens. Nothing here ends the program: false means that `error` (256 characters) names
the file, the field and the remedy.

Model file, little-endian: 256 int32 (magic and config of its kind, [1] the version), then the kind's tensors
in their order, each with all its layers: float32 in version 3, bfloat16 in version 5. A header's last 12 ints
are its seal (checkpoint_seal.h), zeros where llm.c wrote the file. GPT-2's is llm.c's:
magic 20240326, version, maxT, V, L, NH, C, Vp, zeros, and 16 tensors in the order of GPT2_TENSORS. A build
writes the version of its floatX and reads both. State file (llm.c's, of a single process): 256 int32 (magic
20240527, version 1, processes 1, rank 0, has master weights, loader shuffles 0, [10] step, [200..239] the
first 40 of its model file's, zeros), float32 m, float32 v, and float32 master weights where floatX is bf16,
all in the model file's order. Behind them, where llm.c does not look: 8 bytes "llmcrun3", uint64 bytes of the
position, uint64 bytes of the settings, uint64 FNV-1a hash of both numbers and both texts, and both texts.

`values` are memory of the device: floatX for CHECKPOINT_PARAMS, float32 for the others.
*/
#pragma once

#include "checkpoint_file.h"
#include "checkpoint_seal.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    CHECKPOINT_PARAMS,  // of a model file
    CHECKPOINT_M,       // of a state file
    CHECKPOINT_V,
    CHECKPOINT_MASTER,
    CHECKPOINT_FLOATS,  // of a model file, but float32 in memory: gradients; a master's first values
} CheckpointBody;

// What a run needs beside weights and optimizer.
typedef struct {
    int step;         // updates made
    bool has_master;  // the state file has master weights
    uint8_t*
        position;  // opaque, e.g. where the data loader stands; borrowed for create, free() it after read
    size_t position_bytes;  // 0: none
    char* settings;         // lines "name=value" of the run's options; as position; NULL: none
} CheckpointRun;

// model_%08d.bin, state_%08d_00000.bin, DONE_%08d in `directory`.
enum { CHECKPOINT_STEP_DIGITS = 8 };  // at least
typedef enum { CHECKPOINT_MODEL_FILE, CHECKPOINT_STATE_FILE, CHECKPOINT_DONE_FILE } CheckpointName;
void checkpoint_path(char out[CHECKPOINT_PATH_CHARS], const char* directory, CheckpointName name, int step);
// How many characters at `text` are a step as it is written with at least so many digits; 0: none are.
int checkpoint_step_parse(const char* text, int least_digits, int* step);

// --- writing ---------------------------------------------------------------------------------------------
bool checkpoint_create_model(const char* path, const ModelConfig* config, char* error);
bool checkpoint_create_gradients(const char* path, const ModelConfig* config, char* error);  // version 3
// *sum, here and below, grows by the sum of what this call has written or read (checkpoint_seal.h), each
// value of the file counted by the one slice that writes it; NULL: nobody asks.
bool checkpoint_create_state(const char* path, const ModelConfig* config, const CheckpointRun* run,
                             uint64_t* sum, char* error);
// values[i] belongs to model->params[begin + i], begin + i < end: parameters, gradients, or a replica's shard
// of m or v. A tied copy is left to the first slice. Synced to disk on return; on failure PATH.tmp is
// removed.
bool checkpoint_write(const char* path, CheckpointBody body, const Model* model, const void* values,
                      int64_t begin, int64_t end, uint64_t* sum, char* error);
bool checkpoint_commit(const char* path, char* error);
void checkpoint_abort(const char* path);

// --- reading ---------------------------------------------------------------------------------------------
// Header and length are checked by each of these.
// Of a model file, which must be of this kind.
bool checkpoint_read_config(ModelConfig* out, const ModelKind* kind, const char* path, char* error);
// As checkpoint_write; a tied copy is read too. PARAMS and FLOATS of a model file, whose shape must be
// model->config, the others of a state file; MASTER only where it has one. A value that is NaN or infinite is
// an error. `values` may be half filled on failure.
bool checkpoint_read(const char* path, CheckpointBody body, const Model* model, void* values, int64_t begin,
                     int64_t end, uint64_t* sum, char* error);
// position stays NULL where llm.c wrote the file. *sum: the record's part, for one rank of all.
bool checkpoint_read_run(CheckpointRun* out, const char* path, const ModelConfig* config, uint64_t* sum,
                         char* error);

// --- a directory of checkpoints --------------------------------------------------------------------------
bool checkpoint_mark_done(const char* directory, int step, char* error);
// Before a step is committed over an earlier run's: a mark never stands beside a model of one run and a state
// of the other.
void checkpoint_unmark(const char* directory, int step);
// A step's files, its mark first.
void checkpoint_remove(const char* directory, int step);
// Once `step` is written, later checkpoints are of a run that was left (-y STEP, --overwrite): they go,
// before the mark of `step` comes, so that the newest mark is always one of the run that wrote last. Returns
// how many.
int checkpoint_remove_later(const char* directory, int step);
// Steps that are marked done, ascending; free() the array. Returns how many (0: or no such directory).
int checkpoint_list_done(const char* directory, int** out);
int checkpoint_find_latest(const char* directory);            // -1: none
int checkpoint_find_before(const char* directory, int step);  // the largest below `step`; -1: none
bool checkpoint_has_done(const char* directory, int step);
// Of the steps up to `step`, delete what is done but not among the newest `keep_newest` (0: keep all) and not
// a multiple of `keep_multiples_of` (0: no such exception). A step loses its mark first. Later steps are an
// earlier run's: they neither count nor go.
void checkpoint_prune(const char* directory, int step, int keep_newest, int keep_multiples_of);
// Files that were never renamed, as a killed run leaves them; not while a run is at work there. How many
// went.
int checkpoint_remove_leftovers(const char* directory);
// Of every step but this one, marked done or not; the marks first. How many were marked.
int checkpoint_remove_others(const char* directory, int step);

#ifdef __cplusplus
}
#endif
