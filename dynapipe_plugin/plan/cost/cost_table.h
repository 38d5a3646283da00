/*
cost_table.h -- a cost model made ready for inner loops: what is zero is left out, the rest lies together.

    CostTable   one cost model, all recompute modes                    once per batch
    CostParts   one micro-batch in one mode: every quantity per piece  once per micro-batch and mode
    CostJobs    that micro-batch on one stage, in integers             once per stage, or per move of a layer

A CostModel is 200 KiB, most of it knots that are not there; a table holds 16 KiB and touches about 2. The
numbers are those of cost_job_ns and its kin, to the last bit (test_cost_table).
*/
#pragma once

#include "cost_model.h"

// ns or bytes; 0 where the mode has no such job, or the model no such layers.
typedef struct {
    double part[PART_COUNT][COST_QUANTITIES];  // of one such part
    double stage[COST_QUANTITIES];             // on every stage (bytes only)
    double once[ONCE_COUNT][2];                // stored, forward bytes of ONCE_ENC + i, where has_once
    bool has_once;
    int64_t enc_boundary_bytes;  // sent behind a stage that ends within encoder layers ...
    int64_t dec_boundary_bytes;  // ... and behind one that ends within decoder layers
    int64_t scratch_bytes;
} CostParts;

// One micro-batch on one stage.
typedef struct {
    int64_t job_ns[JOB_COUNT];
    int64_t stored_bytes, forward_bytes, boundary_bytes, scratch_bytes;
} CostJobs;

// slope * feature, or a curve of several knots.
typedef struct {
    double slope;
    const CostCurve* curve;  // borrowed from the model; NULL: the straight line
    int32_t feature;         // CostFeature
} CostTerm;

// max(floor, constant + its terms); terms of feature ascending, as cost_formula_value adds them.
typedef struct {
    double constant, floor;
    int32_t term_begin, term_end;  // into CostModeTable.terms
    int32_t slot;                  // which value this is (cost_table.c)
} CostSum;

enum { COST_TABLE_SLOTS = (PART_COUNT + 1) * COST_QUANTITIES + 2 * ONCE_COUNT + 3 };

typedef struct {
    int32_t num_sums, num_terms;
    bool has_once;  // is there anything that a stage has once?
    CostSum sums[COST_TABLE_SLOTS];
    CostTerm terms[COST_TABLE_SLOTS * FEATURE_COUNT];
} CostModeTable;

typedef struct {
    CostModeTable modes[RECOMPUTE_COUNT];
} CostTable;

// Borrows the model, which must not change afterwards. May be copied.
void cost_table_init(CostTable* out, const CostModel* model);

void cost_parts(CostParts* out, const CostTable* table, RecomputeMode mode, const MbShape* shape);
void cost_jobs_of_stage(CostJobs* out, const CostModel* model, const CostStage* stage,
                        const CostParts* parts);
// Of all P stages.
void cost_jobs_of_stages(CostJobs* out, const CostModel* model, const CostStage* stages, int32_t P,
                         const CostParts* parts);

// The same from a model without a table (slow: it makes one for this mode).
void cost_stages(CostJobs* out, const CostModel* model, const CostStage* stages, int32_t P,
                 RecomputeMode mode, const MbShape* shape);
