#include "cost_scale.h"

#include <string.h>

static const TermGroup group_of[FEATURE_COUNT] = {
    [FEATURE_SEQS] = TERM_FIXED,          [FEATURE_ENC_TOKENS] = TERM_LENGTHS,
    [FEATURE_ENC_SQUARES] = TERM_SQUARES, [FEATURE_DEC_TOKENS] = TERM_LENGTHS,
    [FEATURE_DEC_SQUARES] = TERM_SQUARES, [FEATURE_CROSS_PRODUCTS] = TERM_SQUARES,
    [FEATURE_SUPERVISED] = TERM_LENGTHS,
};

CostScale cost_scale_one(void) {
    CostScale scale;
    for (int pass = 0; pass < PASS_COUNT; pass++) {
        for (int i = 0; i < PASS_TERMS; i++) { scale.factor[pass][i] = SCALE_ONE; }
    }
    return scale;
}

int32_t cost_scale_round(double factor) {
    double scaled = factor * SCALE_ONE + 0.5;
    if (!(scaled > SCALE_LEAST)) { return SCALE_LEAST; }
    return scaled < SCALE_MOST ? (int32_t)scaled : SCALE_MOST;
}

// --- terms -----------------------------------------------------------------------------------------------

static void formula_terms(double term[TERM_GROUPS], const CostFormula* formula,
                          const double feature[FEATURE_COUNT]) {
    double sum = formula->constant;
    memset(term, 0, TERM_GROUPS * sizeof *term);
    term[TERM_FIXED] = formula->constant;
    for (int f = 0; f < FEATURE_COUNT; f++) {
        double value = cost_curve_value(&formula->curves[f], feature[f]);
        term[group_of[f]] += value;
        sum += value;
    }
    if (sum >= formula->floor) { return; }
    memset(term, 0, TERM_GROUPS * sizeof *term);
    term[TERM_FIXED] = formula->floor;
}

void cost_scale_terms(double term[PASS_TERMS], const CostModel* model, const CostStage* stage, JobKind kind,
                      RecomputeMode mode, const MbShape* shape) {
    double feature[FEATURE_COUNT];
    int32_t count[PIECE_COUNT];
    memset(term, 0, PASS_TERMS * sizeof *term);
    if (kind == JOB_R && !model->recompute_is_job[mode]) { return; }
    cost_shape_features(feature, shape);
    cost_stage_parts(count, model, stage);
    for (int part = 0; part < PART_COUNT; part++) {
        if (count[part] == 0) { continue; }
        formula_terms(&term[part * TERM_GROUPS], &model->parts[mode][part].time_ns[kind], feature);
        for (int g = 0; g < TERM_GROUPS; g++) { term[part * TERM_GROUPS + g] *= count[part]; }
    }
}

// --- a model made of them --------------------------------------------------------------------------------

static void formula_apply(CostFormula* formula, const int32_t factor[TERM_GROUPS]) {
    double fixed = (double)factor[TERM_FIXED] / SCALE_ONE;
    formula->constant *= fixed;
    formula->floor *= fixed;
    for (int f = 0; f < FEATURE_COUNT; f++) {
        CostCurve* curve = &formula->curves[f];
        double times = (double)factor[group_of[f]] / SCALE_ONE;
        for (int32_t k = 0; k < curve->num_knots; k++) { curve->y[k] *= times; }
    }
}

void cost_scale_apply(CostModel* out, const CostModel* in, const CostScale* scale) {
    if (out != in) { *out = *in; }
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            for (int kind = 0; kind < JOB_COUNT; kind++) {
                const int32_t* factor = scale->factor[cost_pass((JobKind)kind)];
                formula_apply(&out->parts[mode][part].time_ns[kind], &factor[part * TERM_GROUPS]);
            }
        }
    }
}
