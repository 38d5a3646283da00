/*
head.h -- the head shared by the ranks of a replica: the work of each share, and how their parts are combined.

    range that feeds the head           each share of it (model_share_view)
    forward: hidden states of rows ---> H: forward(KEEP | HEAD, in: rows), backward_inputs(din: its part)
    head_combine() (by vocabulary)  <-- part
      losses, gradient of the rows
      factors  -----------------------> V: backward_weights(dout: factors), any time
    backward_inputs(dout: gradient)

Hidden states are those of the supervised rows after the final norm (and after dropout and T5's C^-1/2),
(num_rows, C). By rows: a share gets the rows of its places, with their targets, as its whole batch. It
computes their losses, and its part is their gradient (num_rows, C), adjacent to the others', so nothing is
combined and dout of V is NULL. By vocabulary: a share gets all rows and processes its ids (Yeung et al. 2025;
formulas: ops.h). It leaves `losses` unchanged, and without KEEP (validation) its `out` is a part with losses
only. Shares do not depend on the kind of model, and only generation uses scratch.
*/
#pragma once

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- division of the head ---------------------------------------------------------------------------------

// places: [num_stages + 1] at which stages begin, ascending, 0 to MODEL_HEAD_PLACES. By vocabulary the
// corresponding rows of the matrix: multiples of 16, or all of them.
ModelHead head_of_places(const ModelConfig* config, ModelSharing sharing, int num_stages,
                         const int32_t* places);
// The supervised row of a micro-batch at which a place begins.
static inline int head_batch_row(int num_rows, int place) {
    return (int)((int64_t)num_rows * place / MODEL_HEAD_PLACES);
}

// --- messages, in bytes ------------------------------------------------------------------------------------

// Bytes of hidden states and of their gradient; num_rows rows are contiguous.
int64_t head_rows_bytes(const ModelConfig* config, int num_rows);
// By vocabulary; flags as in the share's forward. A part with losses only is the beginning of one with
// gradients.
int64_t head_part_bytes(const ModelConfig* config, int num_rows, int flags);
int64_t head_factor_bytes(int num_rows);

// --- the rank with the hidden states ----------------------------------------------------------------------

// By vocabulary; `view` is the range that feeds the head. parts: of all stages with a share, ascending, on
// the device. losses (num_rows): host memory, valid after ops_sync(). dout (num_rows, C), for
// backward_inputs, and every share's factors; both NULL: only losses.
void head_combine(Model* view, const ModelBatch* batch, int num_parts, const void* const* parts, void* dout,
                  void* const* factors, float* losses);

// --- generation --------------------------------------------------------------------------------------------

// A share's infer() takes one row of hidden states per sequence and writes its picks to `out`, on the
// device: its most likely id, and the logit. By rows every share has all ids, so one share suffices.
int64_t head_pick_bytes(const ModelBatch* batch);
// Combines picks of shares, ascending: the most likely ids, the first of equals, to `next` (num_seqs,
// host).
void head_pick(const Model* view, const ModelBatch* batch, int num_picks, const void* const* picks,
               int32_t* next);

// --- jobs of a share, called by the kinds -----------------------------------------------------------------

int64_t head_acts_bytes(const Model* share, const ModelBatch* batch, int flags);
void head_forward(const Model* share, const ModelBatch* batch, const void* in, void* out, void* acts,
                  float* losses, int flags);
void head_backward_inputs(const Model* share, const ModelBatch* batch, void* acts, void* din);
void head_backward_weights(const Model* share, const ModelBatch* batch, void* acts, const void* dout);
int64_t head_infer_bytes(const Model* share, const ModelBatch* batch);
void head_infer(const Model* share, const ModelBatch* batch, const void* in, void* out, void* scratch);

#ifdef __cplusplus
}
#endif
