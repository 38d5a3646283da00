// cost_table.c -- see cost_table.h. A line's slope is divided once, not each time; what is zero is left out.
#include "cost_table.h"

#include <string.h>

// Slots: part[][], stage[] and once[][] of CostParts in their order, then these.
enum { SLOT_STAGE = PART_COUNT * COST_QUANTITIES, SLOT_ONCE = SLOT_STAGE + COST_QUANTITIES };
enum { SLOT_REST = SLOT_ONCE + 2 * ONCE_COUNT };
enum { SLOT_BOUNDARY = SLOT_REST, SLOT_DEC_BOUNDARY, SLOT_SCRATCH };
enum { SLOT_HEAD_IN = SLOT_SCRATCH + 1, SLOT_HEAD_PART, SLOT_HEAD_FACTOR };

// --- making a table ---------------------------------------------------------------------------------------

static void add_formula(CostModeTable* table, const CostFormula* formula, int32_t slot) {
    CostSum sum = {
        .constant = formula->constant, .floor = formula->floor, .term_begin = table->num_terms, .slot = slot};
    for (int32_t f = 0; f < FEATURE_COUNT; f++) {
        const CostCurve* curve = &formula->curves[f];
        if (curve->num_knots == 0) { continue; }
        bool is_line = curve->num_knots == 1;
        table->terms[table->num_terms++] = (CostTerm){
            .slope = is_line ? curve->y[0] / curve->x[0] : 0, .curve = is_line ? NULL : curve, .feature = f};
    }
    sum.term_end = table->num_terms;
    bool is_zero = sum.constant == 0 && sum.floor == 0 && sum.term_begin == sum.term_end;
    if (!is_zero) { table->sums[table->num_sums++] = sum; }
}

static void mode_init(CostModeTable* table, const CostModel* model, RecomputeMode mode) {
    bool has_enc = model->num_enc_layers > 0, has_dec = model->num_dec_layers > 0;
    bool has[PIECE_COUNT] = {true, has_enc, has_dec, true, has_enc, has_dec, has_enc && has_dec, true};
    bool is_job = model->recompute_is_job[mode];
    table->num_sums = table->num_terms = 0;
    for (int32_t part = 0; part < PART_COUNT; part++) {
        const CostPartMode* m = &model->parts[mode][part];
        int32_t slot = part * COST_QUANTITIES;
        if (!has[part]) { continue; }
        for (int32_t kind = 0; kind < JOB_COUNT; kind++) {
            if (kind != JOB_R || is_job) { add_formula(table, &m->time_ns[kind], slot + kind); }
        }
        add_formula(table, &m->stored_bytes, slot + COST_STORED);
        if (is_job) { add_formula(table, &m->forward_bytes, slot + COST_FORWARD); }
    }
    const CostPartMode* head = &model->parts[mode][PART_HEAD];
    for (int32_t kind = 0; kind < JOB_COUNT; kind++) {
        table->head_constant[kind] = head->time_ns[kind].constant;
    }
    table->head_constant[COST_STORED] = head->stored_bytes.constant;
    table->head_constant[COST_FORWARD] = head->forward_bytes.constant;
    int32_t num_others = table->num_sums;
    for (int32_t i = 0; i < ONCE_COUNT; i++) {
        if (!has[PART_COUNT + i]) { continue; }
        add_formula(table, &model->once_stored_bytes[i], SLOT_ONCE + 2 * i);
        if (is_job) { add_formula(table, &model->once_forward_bytes[i], SLOT_ONCE + 2 * i + 1); }
    }
    table->has_once = table->num_sums > num_others;
    add_formula(table, &model->stage_stored_bytes, SLOT_STAGE + COST_STORED);
    if (is_job) { add_formula(table, &model->stage_forward_bytes, SLOT_STAGE + COST_FORWARD); }
    add_formula(table, &model->boundary_bytes, SLOT_BOUNDARY);
    add_formula(table, &model->dec_boundary_bytes, SLOT_DEC_BOUNDARY);
    add_formula(table, &model->scratch_bytes, SLOT_SCRATCH);
    add_formula(table, &model->head_in_bytes, SLOT_HEAD_IN);
    add_formula(table, &model->head_part_bytes, SLOT_HEAD_PART);
    add_formula(table, &model->head_factor_bytes, SLOT_HEAD_FACTOR);
}

void cost_table_init(CostTable* out, const CostModel* model) {
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        mode_init(&out->modes[mode], model, (RecomputeMode)mode);
    }
}

// --- one micro-batch --------------------------------------------------------------------------------------

static void parts_evaluate(CostParts* out, const CostModeTable* table, const MbShape* shape) {
    double value[COST_TABLE_SLOTS] = {0}, v[FEATURE_COUNT];
    cost_shape_features(v, shape);
    for (int32_t i = 0; i < table->num_sums; i++) {
        const CostSum* sum = &table->sums[i];
        double total = sum->constant;
        for (int32_t k = sum->term_begin; k < sum->term_end; k++) {
            const CostTerm* term = &table->terms[k];
            double x = v[term->feature];
            total += term->curve == NULL ? x * term->slope : cost_curve_value(term->curve, x);
        }
        value[sum->slot] = total > sum->floor ? total : sum->floor;
    }
    memcpy(out->part, value, sizeof out->part);
    memcpy(out->stage, value + SLOT_STAGE, sizeof out->stage);
    memcpy(out->once, value + SLOT_ONCE, sizeof out->once);
    out->has_once = table->has_once;
    out->enc_boundary_bytes = cost_round(value[SLOT_BOUNDARY]);
    out->dec_boundary_bytes = cost_round(value[SLOT_BOUNDARY] + value[SLOT_DEC_BOUNDARY]);
    out->scratch_bytes = cost_round(value[SLOT_SCRATCH]);
    memcpy(out->head_constant, table->head_constant, sizeof out->head_constant);
    out->head_in_bytes = value[SLOT_HEAD_IN];
    out->head_part_bytes = value[SLOT_HEAD_PART];
    out->head_factor_bytes = value[SLOT_HEAD_FACTOR];
    out->num_rows = shape->supervised_tokens;
}

void cost_parts(CostParts* out, const CostTable* table, RecomputeMode mode, const MbShape* shape) {
    parts_evaluate(out, &table->modes[mode], shape);
}

static int64_t boundary_of_stage(const CostModel* model, const CostStage* stage, const CostParts* parts) {
    if (stage->has_head) { return 0; }
    if (stage->feeds_head) { return cost_round(parts->head_in_bytes); }
    bool dec = stage->layers.layer_end > model->num_enc_layers;
    return dec ? parts->dec_boundary_bytes : parts->enc_boundary_bytes;
}

// All but boundary_bytes, which does not depend on counts alone.
static void jobs_of_counts(CostJobs* out, const int32_t count[PIECE_COUNT], const CostParts* parts) {
    double sum[COST_QUANTITIES];
    memcpy(sum, parts->stage, sizeof sum);
    for (int part = 0; part < PART_COUNT; part++) {
        if (count[part] == 0) { continue; }
        for (int q = 0; q < COST_QUANTITIES; q++) { sum[q] += count[part] * parts->part[part][q]; }
    }
    for (int i = 0; parts->has_once && i < ONCE_COUNT; i++) {
        if (count[PART_COUNT + i] == 0) { continue; }
        sum[COST_STORED] += parts->once[i][0];
        sum[COST_FORWARD] += parts->once[i][1];
    }
    for (int kind = 0; kind < JOB_COUNT; kind++) { out->job_ns[kind] = cost_round(sum[kind]); }
    out->stored_bytes = cost_round(sum[COST_STORED]);
    out->forward_bytes = cost_round(sum[COST_FORWARD]);
    out->scratch_bytes = parts->scratch_bytes;
    out->part_bytes = out->factor_bytes = 0;
}

void cost_jobs_of_stage(CostJobs* out, const CostModel* model, const CostStage* stage,
                        const CostParts* parts) {
    int32_t count[PIECE_COUNT];
    cost_stage_parts(count, model, stage);
    jobs_of_counts(out, count, parts);
    out->boundary_bytes = boundary_of_stage(model, stage, parts);
}

void cost_jobs_of_stages(CostJobs* out, const CostModel* model, const CostStage* stages, int32_t num,
                         const CostParts* parts) {
    int32_t count[2][PIECE_COUNT];
    for (int32_t s = 0; s < num; s++) {
        int32_t *here = count[s % 2], *before = count[(s + 1) % 2];
        cost_stage_parts(here, model, &stages[s]);
        if (s > 0 && memcmp(here, before, sizeof count[0]) == 0) {
            out[s] = out[s - 1];
        } else {
            jobs_of_counts(&out[s], here, parts);
        }
        out[s].boundary_bytes = boundary_of_stage(model, &stages[s], parts);
    }
}

void cost_stages(CostJobs* out, const CostModel* model, const CostStage* stages, int32_t num,
                 RecomputeMode mode, const MbShape* shape) {
    CostModeTable table;
    CostParts parts;
    mode_init(&table, model, mode);
    parts_evaluate(&parts, &table, shape);
    cost_jobs_of_stages(out, model, stages, num, &parts);
}

int64_t cost_boundary_bytes(const CostModel* model, const CostStage* stage, const MbShape* shape) {
    CostJobs jobs;
    cost_stages(&jobs, model, stage, 1, RECOMPUTE_NONE, shape);
    return jobs.boundary_bytes;
}
