/*
source_stock.h -- fixed-length batches, and a check that a one-process program was not started several times
by mpirun or srun: each process would do the same work and overwrite the others' files.
*/
#pragma once

#include "../dataloader/streams.h"
#include "../llmc/model.h"
#include "../llmc/train_flags.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- batches of fixed length -------------------------------------------------------------------------------
/*
Batches of one shape, for the stock trainer: rows x -t consecutive tokens (streams.h), or for an
encoder-decoder rows of an input and a target, padded to -t and --target-tokens.

Errors end the program with one message.
*/

typedef struct {
    TokenStream* tokens;  // one of the two is used
    PairStream* pairs;
    int rows, seq_tokens, target_tokens;
    int32_t *inputs, *targets, *positions, *every_row, *cu_seqlens;  // one allocation; of `tokens`
    uint32_t* keys;                                                  // of dropout; NULL without
    uint64_t seed;
} StockStream;

#ifdef __cplusplus
}
#endif
