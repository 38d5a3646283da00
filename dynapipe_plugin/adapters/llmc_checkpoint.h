/*
llmc_checkpoint.h -- the files of a checkpoint, as llmc_checkpoint.c writes and llmc_resume.c reads them;
llmc_steps.c: which there are.

State file: 256 int32 (magic 20240527, version 1, processes 1, rank 0, has master weights, loader shuffles
0, [10] step, [20..23] two uint64 states of the model's random numbers, [200..239] the first 40 of its model
file's), then float32 m, v and maybe master weights. Behind them, where llm.c does not look, the run's record:
8 bytes "llmcrun3", uint64 bytes of the position in the data, uint64 0 (bytes of settings, which this
repository's own trainers have there), uint64 FNV-1a hash of both numbers and the position, and the position.
Both files' headers end with a seal (llmc_seal.h), where the tree's model file begins with 256 ints.
*/
#pragma once

#include <stdio.h>

#include "llmc_seal.h"
#include "llmc_session.h"

enum { LLMC_PATH_CHARS = 4096, LLMC_HEADER_INTS = DYNAPIPE_SEAL_HEADER_INTS };
enum { LLMC_HEADER_BYTES = 4 * LLMC_HEADER_INTS };
enum { STATE_MAGIC = 20240527, STATE_VERSION = 1 };
enum { STATE_PROCESSES = 2, STATE_RANK, STATE_MASTER, STATE_SHUFFLES, STATE_STEP = 10, STATE_RNG = 20 };

typedef struct {
    char magic[8];
    uint64_t position_bytes, settings_bytes, hash;
} LlmcRecord;
#define LLMC_RECORD_MAGIC "llmcrun3"

static inline uint64_t llmc_fnv1a(uint64_t hash, const void* bytes, size_t num_bytes) {
    const uint8_t* at = (const uint8_t*)bytes;
    for (size_t i = 0; i < num_bytes; i++) { hash = (hash ^ at[i]) * 0x100000001b3u; }
    return hash;
}

// Of both lengths and the position.
static inline uint64_t llmc_record_hash(const LlmcRecord* record, const void* position) {
    uint64_t hash = llmc_fnv1a(0xcbf29ce484222325u, &record->position_bytes, sizeof record->position_bytes);
    hash = llmc_fnv1a(hash, &record->settings_bytes, sizeof record->settings_bytes);
    return llmc_fnv1a(hash, position, record->position_bytes);
}

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
