/*
head.h -- the head shared by the ranks of a replica: what each share does, and what makes one of their parts.

    range that feeds the head           each share of it (model_share_view)
    forward: hidden states of rows ---> H: forward(KEEP | HEAD, in: rows), backward_inputs(din: its part)
    head_combine() (by vocabulary)  <-- part
      losses, gradient of the rows
      factors  -----------------------> V: backward_weights(dout: factors), any time
    backward_inputs(dout: gradient)

Hidden states are those after the final norm (and what follows it: dropout, T5's C^-1/2), of the supervised
rows (num_rows, C). By rows a share gets those of its own places, with their targets, as its whole batch; it
has their losses, and its part is their gradient (num_rows, C), which lies side by side with the others':
there is nothing to combine, and dout of V is NULL. By vocabulary a share gets all rows and does its ids
(Yeung et al. 2025; ops.h has the formulas); it leaves `losses` alone, and without KEEP (validation) its `out`
is a part, of losses alone. Nothing of a share depends on the kind of model, and scratch is not used but by
generation.
*/
#pragma once

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- who has what ------------------------------------------------------------------------------------------

// places: [num_stages + 1] at which stages begin, ascending, 0 to MODEL_HEAD_PLACES. By vocabulary the rows
// of the matrix that they are: multiples of 16, or all of them.
ModelHead head_of_places(const ModelConfig* config, ModelSharing sharing, int num_stages,
                         const int32_t* places);
// Of a micro-batch's supervised rows, the one at which a place begins.
static inline int head_batch_row(int num_rows, int place) {
    return (int)((int64_t)num_rows * place / MODEL_HEAD_PLACES);
}

// --- messages, in bytes ------------------------------------------------------------------------------------

// Of hidden states and of their gradient; num_rows rows lie side by side.
int64_t head_rows_bytes(const ModelConfig* config, int num_rows);
// By vocabulary; flags as of the share's forward. Losses come first: such a part is the other's beginning.
int64_t head_part_bytes(const ModelConfig* config, int num_rows, int flags);
int64_t head_factor_bytes(int num_rows);

// --- where the hidden states come from ---------------------------------------------------------------------

// By vocabulary, `view` being the one that feeds the head. parts: of all stages that have a share, ascending,
// on the device. losses (num_rows): host memory, there after ops_sync(). dout (num_rows, C), for
// backward_inputs, and every share's factors; both NULL: losses alone.
void head_combine(Model* view, const ModelBatch* batch, int num_parts, const void* const* parts, void* dout,
                  void* const* factors, float* losses);

// --- generation --------------------------------------------------------------------------------------------

// A share's infer() takes hidden states of one row for each sequence and writes its picks to `out`, on the
// device: its likeliest id, and the logit. By rows it has all ids: any one share will do.
int64_t head_pick_bytes(const ModelBatch* batch);
// From picks of shares, ascending: the likeliest ids, the first of equals, to `next` (num_seqs, host).
void head_pick(const Model* view, const ModelBatch* batch, int num_picks, const void* const* picks,
               int32_t* next);

// --- a share's jobs, for the kinds -------------------------------------------------------------------------

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
