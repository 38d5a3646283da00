/*
checkpoint_seal.h -- what a checkpoint's file says of itself, so that a damaged, edited or foreign one is
told.

The last 12 of a header's 256 ints, zeros in llm.c's own files, which does not look at them:
    [244] magic 0x5ea1ed01   [245] version 1   [246..247] sum of the body   [248..249] hash of the data's
    vocabulary, 0: unknown   [250..251] state file: sum of the model file's body   [252] step
    [253] 0                  [254..255] sum over the ints [0, 254)
A sum is that of mix(index, bits) over all values, mod 2^64: any change of a single value changes it, and two
values that change places do (but for 1 in 2^64). Ranks sum what they write or read, in any layout, and add
their sums. A state's record counts as two more values, its hash. dynapipe_plugin/adapters/llmc_seal.h is the
same for trees that have not this one; test_llmc_seal.c compares them.
*/
#pragma once

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

// Where a state keeps the first ints of its model file's header: shape and heads, of which its length says
// little.
enum { CHECKPOINT_STATE_MODEL = 200, CHECKPOINT_STATE_MODEL_INTS = 40 };

typedef struct {
    bool is_sealed;  // false: llm.c wrote it, or another program
    int step;        // updates made
    uint64_t body_sum;
    uint64_t vocab_hash;  // 0: unknown
    uint64_t model_sum;   // in a state: body_sum of the model file beside it
} CheckpointSeal;

// *sum += the sum of values [first, first + num_values) of a body, as the file has them: 2 or 4 bytes each.
void checkpoint_seal_add(uint64_t* sum, int64_t first, const void* values, int64_t num_values,
                         int64_t bytes_per_value);

// Into PATH.tmp, whose header is there; then on disk.
bool checkpoint_seal_write(const char* path, const CheckpointSeal* seal, char* error);
// false: the file cannot be read, or its header is not what was sealed.
bool checkpoint_seal_read(CheckpointSeal* out, const char* path, char* error);
// sum: of the whole body, as it was read.
bool checkpoint_seal_check(const CheckpointSeal* seal, const char* path, uint64_t sum, char* error);
// Do these two belong together, and to `step`, which their names say? Model files of one kind.
bool checkpoint_seal_check_pair(const CheckpointSeal* model, const char* model_path,
                                const CheckpointSeal* state, const char* state_path, const ModelKind* kind,
                                int step, char* error);

// A number that differs where two files (or folders of Hugging Face's files) differ in length, header or one
// of 64 blocks of 4 KiB spread over each file. 0: cannot be read.
uint64_t checkpoint_fingerprint(const char* path);

#ifdef __cplusplus
}
#endif
