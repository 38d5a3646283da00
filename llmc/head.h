/*
head.h -- the head shared by the ranks of a replica: what each share does, and what makes one of their parts.

    range that feeds the head           each share of it (model_share_view)
    forward: hidden states of rows ---> H: forward(KEEP | HEAD, in: rows), backward_inputs(din: its part)
    head_combine()  <------------------ part
      losses, gradient of the rows
      factors (by vocabulary)  -------> V: backward_weights(dout: factors), any time
    backward_inputs(dout: gradient)

Hidden states are those behind the final norm (and what follows it: dropout, T5's C^-1/2), of the supervised
rows (num_rows, C). By rows a share gets those of its own places, as its whole batch, with their targets; its
part is their losses and gradient, its V needs no factors (dout NULL). By vocabulary a share gets all rows and
does its ids (Yeung et al. 2025; ops.h has the formulas). Nothing of a share depends on the kind of model, and
scratch is not used.

Of a share's forward the losses are NULL; without KEEP (validation) `out` is its part, of losses alone.
*/
#pragma once

#include "model.h"

#ifdef __cplusplus
extern "C" {
#endif

// --- who has what ------------------------------------------------------------------------------------------

bool head_has_share(const ModelHead* head, int stage);
// The row of the padded matrix at which a place begins: a multiple of 16, or all of them.
int head_matrix_row(const ModelConfig* config, int place);
// Of a micro-batch's supervised rows, the one at which a place begins.
static inline int head_batch_row(int num_rows, int place) {
    return (int)((int64_t)num_rows * place / HEAD_PLACES);
}

// --- messages, in bytes ------------------------------------------------------------------------------------

// Of hidden states and of their gradient; num_rows rows lie side by side.
int64_t head_rows_bytes(const ModelConfig* config, int num_rows);
// num_rows: of the share's batch. flags as of its forward.
int64_t head_part_bytes(const ModelConfig* config, HeadSharing sharing, int num_rows, int flags);
int64_t head_factors_bytes(int num_rows);

// --- where the hidden states come from ---------------------------------------------------------------------

// parts, factors: [num_stages] on the device, NULL where a stage has no share. losses (num_rows): host
// memory, there after ops_sync(). With KEEP: dout (num_rows, C), for backward_inputs, and, by vocabulary,
// `factors`; else neither is looked at. `view`: the one that feeds the head.
void head_combine(Model* view, const ModelBatch* batch, const void* const* parts, void* dout,
                  void* const* factors, float* losses, int flags);

// --- generation --------------------------------------------------------------------------------------------

typedef struct {
    float logit;
    int32_t id;
} HeadAnswer;
// The likeliest of a share's ids for each of so many rows of hidden states; waits for them.
int64_t head_answer_bytes(const Model* share, int num_rows);  // of scratch
void head_answer(const Model* share, int num_rows, const void* in, void* scratch, HeadAnswer* answers);
// answers: [num_stages], NULL where a stage has no share: of its rows, or of all where it has some of the
// ids. The first of equals, as argmax_rows().
void head_choose(const ModelHead* head, const HeadAnswer* const* answers, int num_rows, int32_t* next);

// --- a share's jobs, for the kinds -------------------------------------------------------------------------

int64_t head_acts_bytes(const Model* share, const ModelBatch* batch, int flags);
void head_forward(const Model* share, const ModelBatch* batch, const void* in, void* out, void* acts,
                  int flags);
void head_backward_inputs(const Model* share, const ModelBatch* batch, void* acts, void* din);
void head_backward_weights(const Model* share, const ModelBatch* batch, void* acts, const void* dout);

#ifdef __cplusplus
}
#endif
