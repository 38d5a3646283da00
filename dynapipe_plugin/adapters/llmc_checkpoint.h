/*
llmc_checkpoint.h -- the files of a checkpoint, as llmc_checkpoint.c writes and llmc_resume.c reads them;
llmc_steps.c: which there are.

State file: 256 int32 (magic 20240527, version 1, processes 1, rank 0, has master weights, loader shuffles
0, [10] step, [20..23] two uint64 states of the model's random numbers, [200..239] the first 40 of its model
file's), then float32 m, v and maybe master weights, and the run's record (llmc_record.h). Both files' headers
end with a seal (llmc_seal.h), where the tree's model file begins with 256 ints.
*/
#pragma once

#include <stdio.h>

#include "llmc_record.h"
#include "llmc_seal.h"
#include "llmc_session.h"

enum { LLMC_PATH_CHARS = 4096, LLMC_HEADER_INTS = DYNAPIPE_SEAL_HEADER_INTS };
enum { LLMC_HEADER_BYTES = 4 * LLMC_HEADER_INTS };
enum { STATE_MAGIC = 20240527, STATE_VERSION = 1 };
enum { STATE_PROCESSES = 2, STATE_RANK, STATE_MASTER, STATE_SHUFFLES, STATE_STEP = 10, STATE_RNG = 20 };

typedef struct {
    char model[LLMC_PATH_CHARS], state[LLMC_PATH_CHARS], done[LLMC_PATH_CHARS];
} LlmcPaths;

static inline LlmcPaths llmc_paths_of(const char* directory, int32_t step) {
    enum { DIRECTORY_CHARS = LLMC_PATH_CHARS - 64 };
    LlmcPaths paths;
    snprintf(paths.model, LLMC_PATH_CHARS, "%.*s/model_%08d.bin", DIRECTORY_CHARS, directory, step);
    snprintf(paths.state, LLMC_PATH_CHARS, "%.*s/state_%08d_00000.bin", DIRECTORY_CHARS, directory, step);
    snprintf(paths.done, LLMC_PATH_CHARS, "%.*s/DONE_%08d", DIRECTORY_CHARS, directory, step);
    return paths;
}

// Values of a state file's body: m, v, maybe master weights.
static inline int64_t llmc_state_values(const DynapipeLlmcCheckpoint* c) {
    return (c->master != NULL ? 3 : 2) * dynapipe_tensors_total(c->tensors);
}

// Of these two files; whoever writes or reads has its part, rank 0 the record's.
typedef struct {
    uint64_t model, state;
} LlmcSums;

static inline DynapipeBody llmc_model_body(const DynapipeLlmcCheckpoint* c, uint64_t* sum) {
    return (DynapipeBody){c->model_header_bytes, c->param_bytes, c->model_header_bytes, sum};
}

// i: 0 m, 1 v, 2 master weights.
static inline DynapipeBody llmc_state_body(const DynapipeLlmcCheckpoint* c, int i, uint64_t* sum) {
    int64_t at = LLMC_HEADER_BYTES + 4 * i * dynapipe_tensors_total(c->tensors);
    return (DynapipeBody){at, (int32_t)sizeof(float), LLMC_HEADER_BYTES, sum};
}

// Over all ranks, mod 2^64; did all succeed?
bool dynapipe_llmc_add_sums(DynapipeLlmc* run, bool ok, LlmcSums* sums);

// The largest step below `below` that is marked done in the folder; -1: none.
int32_t dynapipe_llmc_done_before(const char* directory, int32_t below);
// Marks of later steps go.
void dynapipe_llmc_unmark_later(const char* directory, int32_t step);
