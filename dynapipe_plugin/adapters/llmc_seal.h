/*
llmc_seal.h -- what a checkpoint's file says of itself, so that a damaged, edited or foreign one is told.

The last 12 of a header's 256 ints, zeros in llm.c's own files, which does not look at them:
    [244] magic 0x5ea1ed01   [245] version 1   [246..247] sum of the body   [248..249] hash of the data's
    vocabulary, 0: unknown   [250..251] state file: sum of the model file's body   [252] step
    [253] 0                  [254..255] sum over the ints [0, 254)
A sum is that of a mix of index and bits over all values, mod 2^64; the hash of a state's record counts as two
more values. A state keeps the first 40 ints of its model file's header in [200..239]. The same as
llmc/checkpoint_seal.h, which this repository's own trainers have; test_llmc_seal.c compares them.
*/
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "../../util/status.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { DYNAPIPE_SEAL_HEADER_INTS = 256 };
enum { DYNAPIPE_SEAL_BEGIN = 244, DYNAPIPE_SEAL_STATE_MODEL = 200, DYNAPIPE_SEAL_STATE_MODEL_INTS = 40 };

typedef struct {
    int32_t is_sealed;  // 0: llm.c wrote it, or another program
    int32_t step;
    uint64_t body_sum, vocab_hash, model_sum;
    uint64_t header_sum;
} DynapipeSeal;

// *sum += the sum of values [first, first + num_values) of a body, of 2 or 4 bytes each.
void dynapipe_seal_add(uint64_t* sum, int64_t first, const void* values, int64_t num_values,
                       int32_t value_bytes);
void dynapipe_seal_write(int32_t* header, const DynapipeSeal* seal);  // header_sum is made
// path: for messages. A header that is not the one that was sealed is STATUS_BAD_FORMAT.
Status dynapipe_seal_read(DynapipeSeal* out, const int32_t* header, const char* path);
// Do two sealed files belong together, and to this step, which their names say?
Status dynapipe_seal_check_pair(const int32_t* model_header, const char* model_path,
                                const int32_t* state_header, const char* state_path, int32_t step);
// sum: of the whole body, as it was read.
Status dynapipe_seal_check(const DynapipeSeal* seal, const char* path, uint64_t sum);

#ifdef __cplusplus
}
#endif
