/*
checkpoint.h -- llm.c's checkpoints, written and read by any number of ranks: 4 stages write, 2 x 2 read.

    rank 0:      checkpoint_create_model(model_path, ...), checkpoint_create_state(state_path, ...)
    -- barrier --
    each rank:   checkpoint_write(model_path, CHECKPOINT_PARAMS, ...) of its slice (one replica is enough),
                 checkpoint_write(state_path, CHECKPOINT_M, ...) of its range; _V; _MASTER if any
    -- barrier, with "did all succeed?"; the sums of all ranks are added --
    rank 0:      checkpoint_seal_write() and checkpoint_file_rename() of both, checkpoint_mark_done()
                 or, if a rank failed, checkpoint_file_remove_tmp() of both

Resuming: checkpoint_seal_check_pair() of both headers; every value is read and summed once (by its writer's
rule); the sums of all ranks are added, checkpoint_seal_check() of both.

Files, seals, the state file and the record after it: util/checkpoint_files.h. Model file, little-endian: 256
int32 (magic and config of its kind, [1] the version), then the kind's tensors in their order, each with all
its layers: float32 in version 3, bfloat16 in version 5. GPT-2's is llm.c's: magic 20240326, version, maxT, V,
L, NH, C, Vp, zeros, and 16 tensors in the order of GPT2_TENSORS (a GPT-2 that differs in other numbers has
another magic, and them after Vp). A build writes the version of its floatX and
reads both. Bodies of a state file are in the model file's order.

`values` are memory of the device: floatX for CHECKPOINT_PARAMS, float32 for the others.
*/
#pragma once

#include "../util/checkpoint_files.h"
#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef enum {
    CHECKPOINT_PARAMS,  // of a model file
    CHECKPOINT_M,       // of a state file
    CHECKPOINT_V,
    CHECKPOINT_MASTER,
    CHECKPOINT_FLOATS,  // of a model file, but float32 in memory: gradients; initial master weights
} CheckpointBody;

// Metadata of a run besides weights and optimizer.
typedef struct {
    int step;         // updates made
    bool has_master;  // the state file has master weights
    CheckpointRecord record;
} CheckpointRun;

Status checkpoint_create_model(const char* path, const ModelConfig* config);
// Gradients in the format of a model file (for comparing runs), in float32: CHECKPOINT_FLOATS of
// model->grads.
Status checkpoint_create_gradients(const char* path, const ModelConfig* config);
// *sum, here and below, is increased by the sum of what this call has written or read; each value is
// counted by the one slice that writes it. NULL: not needed.
Status checkpoint_create_state(const char* path, const ModelConfig* config, const CheckpointRun* run,
                               uint64_t* sum);
// values[i] belongs to model->params[begin + i], begin + i < end: parameters, gradients, or a replica's
// shard of m or v. Only the first slice writes a tied tensor. Synced to disk on return; on failure PATH.tmp
// is removed.
Status checkpoint_write(const char* path, CheckpointBody body, const Model* model, const void* values,
                        int64_t begin, int64_t end, uint64_t* sum);

// These check header and length. Of a model file, which must be of this kind (NULL: any):
Status checkpoint_read_config(ModelConfig* out, const ModelKind* kind, const char* path);
// Reads what checkpoint_write() writes, and tied copies too. PARAMS and FLOATS from a model file, whose
// shape must be model->config, the others from a state file; MASTER only if it has one. A NaN or infinite
// value is an error. `values` may be partly filled on failure.
Status checkpoint_read(const char* path, CheckpointBody body, const Model* model, void* values, int64_t begin,
                       int64_t end, uint64_t* sum);
// position stays NULL if llm.c wrote the file. *sum: the record's part, for one rank only.
Status checkpoint_read_run(CheckpointRun* out, const char* path, const ModelConfig* config, uint64_t* sum);

#ifdef __cplusplus
}
#endif
