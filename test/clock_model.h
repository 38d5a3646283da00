/*
clock_model.h -- a model that computes nothing: its jobs move a clock by what they are said to take, and its
bytes are sums, maxima and roundings as other people's models have them. For tests of measuring.

Two layouts: ragged ones read sums (num_tokens, num_squares, num_cross); padded ones read num_seqs and the
longest lengths, as kernels on (B, T, C) do.
*/
#pragma once

#include "../dynapipe_plugin/dynapipe.h"
#include "../dynapipe_plugin/plan/cost_model.h"

typedef struct {
    DynapipeBlocks_v1 blocks;  // what dynapipe_measure() gets; ctx is the ClockModel
    DynapipeModel_v1 api;
    double ns[PART_COUNT][FEATURE_COUNT];  // of a job F; B takes twice that, W half of what is not quadratic
    double slower;                         // times that: another rank's share of a machine
    int64_t more_bytes;                    // that acts, scratch, boundaries ask for: another rank's kernels
    int32_t num_made;                      // ranges with values
    int32_t num_jobs;
    int32_t num_wrong;  // calls with a batch, a buffer or a range that must not be
    int32_t fails_at;   // the job that returns an error; 0: none
} ClockModel;

// num_dec_layers 0: one stack.
void clock_model_init(ClockModel* out, int32_t num_layers, int32_t num_dec_layers, bool padded,
                      bool head_has_layer);

// ns that the jobs of this thread's models took.
int64_t clock_model_ns(void);
// What a part takes for a shape.
double clock_model_part_ns(const ClockModel* model, int part, int job, const MbShape* shape);
