// cost_model.c -- evaluation and check of cost formulas; the only place where doubles become ns and bytes.
#include "cost_model.h"

#include <math.h>
#include <string.h>

const char* const cost_part_names[PIECE_COUNT] = {"embedding", "enc_layer", "dec_layer",    "head",
                                                  "stage_enc", "stage_dec", "stage_enc_end"};
const char* const cost_mode_names[RECOMPUTE_COUNT] = {"none", "selective", "full"};
const char* const cost_feature_names[FEATURE_COUNT] = {
    "seqs", "enc_tokens", "enc_squares", "dec_tokens", "dec_squares", "cross_products", "supervised"};
const char* const cost_job_names[JOB_COUNT] = {"F", "B", "W", "R"};

// Every step below is monotone in v also after floating-point rounding, the clamps included, so a larger
// micro-batch never costs less.
double cost_curve_value(const CostCurve* curve, double v) {
    int n = curve->num_knots;
    const double *x = curve->x, *y = curve->y;
    if (n == 0) { return 0; }
    if (n == 1) { return v * (y[0] / x[0]); }
    double value;
    if (v <= x[0]) {
        value = y[0] + (v - x[0]) * ((y[1] - y[0]) / (x[1] - x[0]));
        return value > 0 ? value : 0;
    }
    if (v >= x[n - 1]) { return y[n - 1] + (v - x[n - 1]) * ((y[n - 1] - y[n - 2]) / (x[n - 1] - x[n - 2])); }
    int i = 0;
    while (v >= x[i + 1]) { i++; }
    value = y[i] + (v - x[i]) * ((y[i + 1] - y[i]) / (x[i + 1] - x[i]));
    return value < y[i + 1] ? value : y[i + 1];
}

void cost_shape_features(double out[FEATURE_COUNT], const MbShape* shape) {
    out[FEATURE_SEQS] = (double)shape->num_seqs;
    out[FEATURE_ENC_TOKENS] = (double)shape->enc_tokens;
    out[FEATURE_ENC_SQUARES] = (double)shape->enc_squares;
    out[FEATURE_DEC_TOKENS] = (double)shape->dec_tokens;
    out[FEATURE_DEC_SQUARES] = (double)shape->dec_squares;
    out[FEATURE_CROSS_PRODUCTS] = (double)shape->cross_products;
    out[FEATURE_SUPERVISED] = (double)shape->supervised_tokens;
}

static double formula_value(const CostFormula* formula, const double v[FEATURE_COUNT]) {
    double value = formula->constant;
    for (int f = 0; f < FEATURE_COUNT; f++) {
        if (formula->curves[f].num_knots > 0) { value += cost_curve_value(&formula->curves[f], v[f]); }
    }
    return value > formula->floor ? value : formula->floor;
}

double cost_formula_value(const CostFormula* formula, const MbShape* shape) {
    double v[FEATURE_COUNT];
    cost_shape_features(v, shape);
    return formula_value(formula, v);
}

void cost_formula_add_line(CostFormula* formula, CostFeature feature, double slope) {
    CostCurve* curve = &formula->curves[feature];
    if (curve->num_knots == 0) { *curve = (CostCurve){.num_knots = 1, .x = {1}}; }
    for (int i = 0; i < curve->num_knots; i++) { curve->y[i] += slope * curve->x[i]; }
}

// extra + sum of count * value: the same order of additions wherever a stage is priced.
static int64_t pieces_round(double extra, const int32_t count[PIECE_COUNT], const double value[PIECE_COUNT]) {
    double sum = extra;
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        if (count[piece] > 0) { sum += count[piece] * value[piece]; }
    }
    return cost_round(sum);
}

static const CostFormula* part_formula(const CostModel* model, RecomputeMode mode, int part, int quantity) {
    const CostPartMode* m = &model->parts[mode][part];
    return quantity == COST_STORED    ? &m->stored_bytes
           : quantity == COST_FORWARD ? &m->forward_bytes
                                      : &m->time_ns[quantity];
}

// NULL: nothing.
static const CostFormula* once_formula(const CostModel* model, int piece, int quantity) {
    return quantity == COST_STORED    ? &model->once_stored_bytes[piece - PART_COUNT]
           : quantity == COST_FORWARD ? &model->once_forward_bytes[piece - PART_COUNT]
                                      : NULL;
}

static bool quantity_used(const CostModel* model, RecomputeMode mode, int quantity) {
    return model->recompute_is_job[mode] || (quantity != COST_FORWARD && quantity != (int)JOB_R);
}

static double stage_extra(const CostModel* model, int quantity, const double v[FEATURE_COUNT]) {
    return quantity == COST_STORED    ? formula_value(&model->stage_stored_bytes, v)
           : quantity == COST_FORWARD ? formula_value(&model->stage_forward_bytes, v)
                                      : 0;
}

static int64_t stage_quantity(const CostModel* model, const CostStage* stage, RecomputeMode mode,
                              int quantity, const MbShape* shape) {
    if (!quantity_used(model, mode, quantity)) { return 0; }
    double v[FEATURE_COUNT], value[PIECE_COUNT] = {0};
    int32_t count[PIECE_COUNT];
    cost_shape_features(v, shape);
    cost_stage_parts(count, model, stage);
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        const CostFormula* formula = piece < PART_COUNT ? part_formula(model, mode, piece, quantity)
                                                        : once_formula(model, piece, quantity);
        if (count[piece] > 0 && formula != NULL) { value[piece] = formula_value(formula, v); }
    }
    return pieces_round(stage_extra(model, quantity, v), count, value);
}

int64_t cost_job_ns(const CostModel* model, const CostStage* stage, JobKind kind, RecomputeMode mode,
                    const MbShape* shape) {
    return stage_quantity(model, stage, mode, (int)kind, shape);
}

int64_t cost_stored_bytes(const CostModel* model, const CostStage* stage, RecomputeMode mode,
                          const MbShape* shape) {
    return stage_quantity(model, stage, mode, COST_STORED, shape);
}

int64_t cost_forward_bytes(const CostModel* model, const CostStage* stage, RecomputeMode mode,
                           const MbShape* shape) {
    return stage_quantity(model, stage, mode, COST_FORWARD, shape);
}

int64_t cost_scratch_bytes(const CostModel* model, const CostStage* stage, const MbShape* shape) {
    (void)stage;  // one workspace serves whatever the stage has
    return cost_round(cost_formula_value(&model->scratch_bytes, shape));
}

// Does the head do with the copy of the embedding that its stage has anyhow?
static bool head_has_no_copy(const CostModel* model, const CostStage* stage) {
    return stage->has_head && model->tied_head_state_bytes > 0 &&
           (stage->has_embedding || stage->has_dec_embedding);
}

int64_t cost_state_bytes(const CostModel* model, const CostStage* stage) {
    int32_t count[PIECE_COUNT];
    double sum = 0;
    cost_stage_parts(count, model, stage);
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        sum += count[piece] * (double)model->part_state_bytes[piece];
    }
    if (stage->has_dec_embedding) { sum += (double)model->part_state_bytes[PART_EMBEDDING]; }
    if (head_has_no_copy(model, stage)) { sum -= (double)model->tied_head_state_bytes; }
    return cost_round(sum);
}

int64_t cost_boundary_bytes(const CostModel* model, const CostStage* stage, const MbShape* shape) {
    if (stage->has_head) { return 0; }
    double sum = cost_formula_value(&model->boundary_bytes, shape);
    if (stage->layers.layer_end > model->num_enc_layers) {
        sum += cost_formula_value(&model->dec_boundary_bytes, shape);
    }
    return cost_round(sum);
}

int64_t cost_transfer_ns(const CostModel* model, int64_t num_bytes) {
    if (model->comm_bytes_per_ns <= 0) { return 0; }
    return cost_round(model->comm_latency_ns + (double)num_bytes / model->comm_bytes_per_ns);
}

// Does the stage have a copy of the embedding, and another stage one too?
static bool shares_embedding(const CostModel* model, const CostStage* stage) {
    bool head_is_tied = model->tied_head_state_bytes > 0;
    if (!stage->has_embedding) { return stage->has_dec_embedding || (stage->has_head && head_is_tied); }
    bool decoder_begins_later =
        model->num_dec_layers > 0 && stage->layers.layer_end <= model->num_enc_layers &&
        stage->layers.layer_end > 0;  // a stage without layers (bounds) says nothing of those behind it
    return decoder_begins_later || (head_is_tied && !stage->has_head);
}

// Gradients that the stage exchanges with other stages of its replica.
static double tied_bytes(const CostModel* model, const CostStage* stage, const int32_t count[PIECE_COUNT]) {
    double bytes = shares_embedding(model, stage) ? (double)model->tied_param_bytes : 0;
    bool shares_enc = count[PART_ENC_LAYER] > 0 && count[PART_ENC_LAYER] < model->num_enc_layers;
    bool shares_dec = count[PART_DEC_LAYER] > 0 && count[PART_DEC_LAYER] < model->num_dec_layers;
    return bytes + (shares_enc + shares_dec) * (double)model->tied_stack_bytes;
}

// A ring all-reduce, every rank sends 2 (R - 1) / R of the bytes.
double cost_reduce_ns_per_byte(const CostModel* model, int32_t num_replicas) {
    if (num_replicas < 2 || model->reduce_bytes_per_ns <= 0) { return 0; }
    return 2.0 * (num_replicas - 1) / num_replicas / model->reduce_bytes_per_ns;
}

static double gradient_bytes(const CostModel* model, const CostStage* stage,
                             const int32_t count[PIECE_COUNT]) {
    double bytes = 0;
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        bytes += count[piece] * (double)model->part_param_bytes[piece];
    }
    if (stage->has_dec_embedding) { bytes += (double)model->part_param_bytes[PART_EMBEDDING]; }
    if (head_has_no_copy(model, stage)) { bytes = fmax(bytes - (double)model->tied_param_bytes, 0); }
    return bytes;
}

// First the copies of tied parameters become one sum.
int64_t cost_reduce_ns(const CostModel* model, const CostStage* stage, int32_t num_replicas) {
    int32_t count[PIECE_COUNT];
    double tied_ns = 0;
    cost_stage_parts(count, model, stage);
    if (model->reduce_bytes_per_ns > 0) {
        tied_ns = 2 * tied_bytes(model, stage, count) / model->reduce_bytes_per_ns;  // there and back
    }
    double bytes = gradient_bytes(model, stage, count);
    return cost_round(tied_ns + bytes * cost_reduce_ns_per_byte(model, num_replicas));
}

int64_t cost_update_ns(const CostModel* model, const CostStage* stage, double slow) {
    int32_t count[PIECE_COUNT];
    cost_stage_parts(count, model, stage);
    return cost_round(gradient_bytes(model, stage, count) * model->update_ns_per_byte * slow);
}

bool cost_mode_offered(const CostModel* model, RecomputeMode mode) {
    const CostPartMode* parts = model->parts[mode];
    return parts[PART_EMBEDDING].offered && parts[PART_HEAD].offered &&
           (model->num_enc_layers == 0 || parts[PART_ENC_LAYER].offered) &&
           (model->num_dec_layers == 0 || parts[PART_DEC_LAYER].offered);
}

CostStage cost_stage_make(const CostModel* model, const LayerRange* layers, int32_t s, int32_t P) {
    int32_t first_dec = model->num_enc_layers;
    bool begins_dec =
        model->num_dec_layers > 0 && layers->layer_begin <= first_dec && first_dec < layers->layer_end;
    return (CostStage){.layers = *layers,
                       .has_embedding = s == 0,
                       .has_head = s == P - 1,
                       .has_dec_embedding = begins_dec && s > 0};
}

// --- check ------------------------------------------------------------------------------------------------

// Bounds far beyond any machine, so that no sum or product of checked numbers overflows a double.
static const double LARGEST = 1e18, STEEPEST = 1e30;

static bool number_ok(double v) {
    return v >= 0 && v <= LARGEST;  // false for NaN
}

static Status curve_check(const CostCurve* curve, const char* where, const char* feature) {
    int32_t n = curve->num_knots;
    if (n < 0 || n > COST_MAX_KNOTS) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %s has %d knots ---> give 0 to %d", where, feature, n,
                    COST_MAX_KNOTS);
    }
    for (int i = 0; i < n; i++) {
        if (!number_ok(curve->x[i]) || !number_ok(curve->y[i])) {
            return FAIL(STATUS_BAD_FORMAT, "%s: %s knot %d is %g:%g ---> give finite numbers, 0 to %g", where,
                        feature, i, curve->x[i], curve->y[i], LARGEST);
        }
    }
    if (n == 1 && !(curve->x[0] > 0 && curve->y[0] / curve->x[0] < STEEPEST)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: %s single knot at %g ---> a straight line needs a point beyond 0",
                    where, feature, curve->x[0]);
    }
    for (int i = 1; i < n; i++) {
        double dx = curve->x[i] - curve->x[i - 1], dy = curve->y[i] - curve->y[i - 1];
        if (!(dx > 0 && dy >= 0 && dy / dx < STEEPEST)) {
            return FAIL(STATUS_BAD_FORMAT,
                        "%s: %s knots %g:%g and %g:%g do not ascend ---> sort them, and measure "
                        "again if the cost falls",
                        where, feature, curve->x[i - 1], curve->y[i - 1], curve->x[i], curve->y[i]);
        }
    }
    return STATUS_OK;
}

static Status formula_check(const CostFormula* formula, const char* where) {
    if (!number_ok(formula->constant)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: const is %g ---> give a finite number, 0 to %g", where,
                    formula->constant, LARGEST);
    }
    if (!number_ok(formula->floor)) {
        return FAIL(STATUS_BAD_FORMAT, "%s: floor is %g ---> give a finite number, 0 to %g", where,
                    formula->floor, LARGEST);
    }
    for (int f = 0; f < FEATURE_COUNT; f++) {
        TRY(curve_check(&formula->curves[f], where, cost_feature_names[f]));
    }
    return STATUS_OK;
}

static Status part_check(const CostModel* model, int mode, int part) {
    const CostPartMode* m = &model->parts[mode][part];
    char where[80];
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        snprintf(where, sizeof where, "part %s mode %s time %s", cost_part_names[part], cost_mode_names[mode],
                 cost_job_names[kind]);
        TRY(formula_check(&m->time_ns[kind], where));
    }
    snprintf(where, sizeof where, "part %s mode %s stored", cost_part_names[part], cost_mode_names[mode]);
    TRY(formula_check(&m->stored_bytes, where));
    snprintf(where, sizeof where, "part %s mode %s forward", cost_part_names[part], cost_mode_names[mode]);
    return formula_check(&m->forward_bytes, where);
}

static Status rates_check(const CostModel* model) {
    const struct {
        const char* name;
        double value;
    } rates[] = {{"comm latency_ns", model->comm_latency_ns},
                 {"comm bytes_per_ns", model->comm_bytes_per_ns},
                 {"reduce bytes_per_ns", model->reduce_bytes_per_ns},
                 {"reduce update_ns_per_byte", model->update_ns_per_byte}};
    for (int i = 0; i < 4; i++) {
        if (!number_ok(rates[i].value)) {
            return FAIL(STATUS_BAD_FORMAT, "%s is %g ---> give a finite number, 0 to %g (rate 0: free)",
                        rates[i].name, rates[i].value, LARGEST);
        }
    }
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        int64_t state = model->part_state_bytes[piece], params = model->part_param_bytes[piece];
        if (state < 0 || state > COST_LIMIT || params < 0 || params > COST_LIMIT) {
            return FAIL(STATUS_BAD_FORMAT, "state %s: %lld and %lld bytes ---> give 0 to %lld",
                        cost_part_names[piece], (long long)state, (long long)params, (long long)COST_LIMIT);
        }
    }
    return STATUS_OK;
}

static Status tied_check(const CostModel* model) {
    const int64_t gradients[] = {model->tied_param_bytes, model->tied_stack_bytes};
    for (int i = 0; i < 2; i++) {
        if (gradients[i] < 0 || gradients[i] > COST_LIMIT) {
            return FAIL(STATUS_BAD_FORMAT, "%s is %lld ---> give a number of bytes",
                        i == 0 ? "reduce tied_bytes" : "tied stack_bytes", (long long)gradients[i]);
        }
    }
    const int64_t *state = model->part_state_bytes, *params = model->part_param_bytes;
    int64_t copy = model->tied_head_state_bytes, tied = copy > 0 ? model->tied_param_bytes : 0;
    if (copy >= 0 && copy <= state[PART_HEAD] && copy <= state[PART_EMBEDDING] && tied <= params[PART_HEAD] &&
        tied <= params[PART_EMBEDDING]) {
        return STATUS_OK;
    }
    return FAIL(STATUS_BAD_FORMAT,
                "tied head_state_bytes %lld, tied_bytes %lld ---> a tied head's copy is part of head and of "
                "embedding: give at most their state %lld and %lld, params %lld and %lld",
                (long long)copy, (long long)tied, (long long)state[PART_HEAD],
                (long long)state[PART_EMBEDDING], (long long)params[PART_HEAD],
                (long long)params[PART_EMBEDDING]);
}

Status cost_model_check(const CostModel* model) {
    int32_t enc = model->num_enc_layers, dec = model->num_dec_layers;
    if (enc < 0 || dec < 0 || enc > COST_MAX_LAYERS || dec > COST_MAX_LAYERS || enc + dec < 1) {
        return FAIL(STATUS_BAD_FORMAT, "layers: %d and %d ---> give 1 to %d layers", enc, dec,
                    COST_MAX_LAYERS);
    }
    if (!cost_mode_offered(model, RECOMPUTE_NONE)) {
        return FAIL(STATUS_BAD_FORMAT, "mode none is not offered by every part ---> give costs without "
                                       "recomputation for embedding, layers and head");
    }
    if (model->recompute_is_job[RECOMPUTE_NONE]) {
        return FAIL(STATUS_BAD_FORMAT, "recompute none: has no job of its own ---> write \"inside\"");
    }
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        for (int part = 0; part < PART_COUNT; part++) {
            if (model->parts[mode][part].offered) { TRY(part_check(model, mode, part)); }
        }
    }
    TRY(formula_check(&model->stage_stored_bytes, "stage_stored"));
    TRY(formula_check(&model->stage_forward_bytes, "stage_forward"));
    for (int i = 0; i < ONCE_COUNT; i++) {
        TRY(formula_check(&model->once_stored_bytes[i], cost_part_names[PART_COUNT + i]));
        TRY(formula_check(&model->once_forward_bytes[i], cost_part_names[PART_COUNT + i]));
    }
    TRY(formula_check(&model->boundary_bytes, "boundary"));
    TRY(formula_check(&model->dec_boundary_bytes, "dec_boundary"));
    TRY(formula_check(&model->scratch_bytes, "scratch"));
    TRY(rates_check(model));
    return tied_check(model);
}
