/*
tiny_chain.h -- a small smooth model as DynapipeBlocks_v1, and the mistakes that one who writes such a model
makes.

Layer: x_t += tanh(W x_t + U mean(x_0 .. x_t of its window) + b); before the first one x_t is a row of the
embedding, behind the last one logits are products with its rows (tied) and a row's loss is their cross
entropy. W in backward_weights, b in backward_inputs.
*/
#pragma once

#include <stdbool.h>

#include "../dynapipe_plugin/dynapipe.h"

// clang-format off
#define TINY_FAULTS(X)                                                                                           \
    X(NONE) X(SCRATCH_OVERRUN) X(ACTS_TOO_FEW) X(LOSS_FOR_EACH_TOKEN) X(WRITES_BEFORE_OUT) X(CHANGES_IN)           \
    X(FEWER_BYTES_FOR_MORE_ROWS) X(BYTES_FROM_ARRAYS) X(BOUNDARIES_DISAGREE) X(NEGATIVE_BYTES)                     \
    X(OUT_IS_ADDED_TO) X(FORWARD_COUNTS) X(FLAGS_0_LEAVE_OUT_BIAS) X(FORWARD_ADDS_GRADIENTS) X(NO_ACTS_WITHOUT_OUT) \
    X(STATE_IN_MODEL) X(STATE_IN_SCRATCH) X(WEIGHTS_READ_IN) X(GRADIENTS_ASSIGNED) X(ZEROES_HALF)                  \
    X(LOSS_IS_SCALED) X(MEAN_OVER_ROWS) X(TIED_NOT_LISTED) X(TIED_ELSEWHERE) X(DIN_OFF) X(LAYERS_FROM_0)        \
    X(HEAD_NOT_ALONE) X(NO_PARAMS) X(FEWER_PARAMS_WITHOUT_VALUES) X(ACROSS_WINDOWS) X(ROWS_REVERSED)               \
    X(POINTER_IN_ACTS) X(ONE_STAGING) X(BIAS_GRADIENT_3_PERCENT)               \
    X(PADDING_IS_SEEN) X(NO_BIAS_GRADIENT) X(SLOPE_OF_TANH) X(NO_GRADIENT_OF_MEAN) X(FORWARD_FAILS)                 \
    X(FLAGS_0_STAY_AT_A_LAYER)                                                                                     \
    X(NUM_TINY_FAULTS)
// clang-format on
#define X(name) TINY_##name,
typedef enum { TINY_FAULTS(X) } TinyFault;
#undef X

typedef struct {
    TinyFault fault;
    bool no_weights_job;  // backward_inputs does all
    bool is_queued;       // jobs are done in finish(), as if there were a device
    int32_t param_type;
    int32_t max_tokens, max_seqs;  // of a batch; 0: any
    DynapipeModel_v1 api;
} Tiny;

// `tiny` stays behind the blocks.
DynapipeBlocks_v1 tiny_blocks(Tiny* tiny);
