// cost_model.c -- evaluation and check of cost formulas; the only place where doubles become ns and bytes.
#include "cost_model.h"

#include <math.h>
#include <string.h>
#include "../../util/numbers.h"

const char* const cost_part_names[PIECE_COUNT] = {"embedding",        "enc_block1",       "enc_block2",
                                                  "enc_block3",       "dec_block1",       "dec_block2",
                                                  "dec_block3",       "last_block",       "head",
                                                  "stage_enc",        "stage_dec",        "stage_enc_block1",
                                                  "stage_enc_block2", "stage_enc_block3", "stage_dec_block1",
                                                  "stage_dec_block2", "stage_dec_block3", "stage_enc_end",
                                                  "chain_end"};
const char* const cost_mode_names[RECOMPUTE_COUNT] = {"none", "selective", "full"};
const char* const cost_feature_names[FEATURE_COUNT] = {"seqs",       "enc_tokens",     "enc_squares",
                                                       "dec_tokens", "dec_squares",    "cross_products",
                                                       "supervised", "prefix_products"};
const char* const cost_job_names[JOB_COUNT] = {"F", "B", "W", "R"};
const char* const cost_bytes_names[COST_NUM_BYTES] = {"boundary",
                                                      "dec_boundary",
                                                      "scratch",
                                                      "stage_stored",
                                                      "stage_forward",
                                                      "stage_enc_stored",
                                                      "stage_enc_forward",
                                                      "stage_dec_stored",
                                                      "stage_dec_forward",
                                                      "stage_enc_block1_stored",
                                                      "stage_enc_block1_forward",
                                                      "stage_enc_block2_stored",
                                                      "stage_enc_block2_forward",
                                                      "stage_enc_block3_stored",
                                                      "stage_enc_block3_forward",
                                                      "stage_dec_block1_stored",
                                                      "stage_dec_block1_forward",
                                                      "stage_dec_block2_stored",
                                                      "stage_dec_block2_forward",
                                                      "stage_dec_block3_stored",
                                                      "stage_dec_block3_forward",
                                                      "stage_enc_end_stored",
                                                      "stage_enc_end_forward",
                                                      "chain_end_stored",
                                                      "chain_end_forward",
                                                      "head_in",
                                                      "head_part",
                                                      "head_factor"};

CostFormula* cost_part_formula(const CostModel* model, int mode, int part, int quantity) {
    CostPartMode* m = (CostPartMode*)&model->parts[mode][part];
    return quantity == COST_STORED    ? &m->stored_bytes
           : quantity == COST_FORWARD ? &m->forward_bytes
                                      : &m->time_ns[quantity];
}

CostFormula* cost_bytes_formula(const CostModel* model, int i) {
    CostModel* m = (CostModel*)model;
    CostFormula* const formulas[] = {&m->boundary_bytes, &m->dec_boundary_bytes, &m->scratch_bytes,
                                     &m->stage_stored_bytes, &m->stage_forward_bytes};
    CostFormula* const of_head[] = {&m->head_in_bytes, &m->head_part_bytes, &m->head_factor_bytes};
    if (i < COST_BYTES_ONCE) { return formulas[i]; }
    if (i >= COST_BYTES_HEAD) { return of_head[i - COST_BYTES_HEAD]; }
    int once = (i - COST_BYTES_ONCE) / 2;
    return i % 2 != 0 ? &m->once_stored_bytes[once] : &m->once_forward_bytes[once];
}

// Every step below is monotone in v, clamps and floating-point rounding included, so a larger microbatch
// never costs less.
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
    out[FEATURE_PREFIX_PRODUCTS] = (double)shape->prefix_products;
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

int64_t cost_transfer_ns(const CostModel* model, int64_t num_bytes) {
    if (model->comm_bytes_per_ns <= 0) { return 0; }
    return cost_round(model->comm_latency_ns + (double)num_bytes / model->comm_bytes_per_ns);
}

bool cost_mode_offered(const CostModel* model, RecomputeMode mode) {
    const CostPartMode* parts = model->parts[mode];
    int32_t count[PART_COUNT];
    bool offered = true;
    cost_model_count(count, &model->chain);
    for (int part = 0; part < PART_COUNT; part++) { offered &= count[part] == 0 || parts[part].offered; }
    return offered;
}

// Of blocks [0, end) of a stack, those that are block j of `num` of their layer.
static inline int32_t count_before(int32_t end, int32_t j, int32_t num) {
    return (end + num - 1 - j) / num;
}

static void count_blocks(CostStage* stage, int first, int once, int32_t num, int32_t begin, int32_t end) {
    for (int32_t j = 0; j < num && begin < end; j++) {
        stage->count[first + j] = count_before(end, j, num) - count_before(begin, j, num);
        stage->count[once + j] = stage->count[first + j] > 0;
    }
}

CostStage cost_stage_make(const PlanChain* chain, const BlockRange* blocks, bool has_embedding,
                          bool has_head) {
    const int32_t first_dec = plan_chain_first_dec(chain);
    const int32_t begin = blocks->begin, end = blocks->end;
    const bool has_dec = end > first_dec && end > begin, begins_dec = has_dec && begin <= first_dec;
    const bool has_last = chain->last_in_rows && begin < end && end == plan_chain_num_blocks(chain);
    const int32_t usual_end = end - has_last;
    CostStage stage = {.blocks = *blocks, .has_dec_embedding = begins_dec && !has_embedding};
    count_blocks(&stage, PART_ENC_BLOCK, ONCE_ENC_BLOCK, chain->enc_blocks, begin,
                 usual_end < first_dec ? usual_end : first_dec);
    count_blocks(&stage, PART_DEC_BLOCK, ONCE_DEC_BLOCK, chain->dec_blocks,
                 begin < first_dec ? 0 : begin - first_dec, usual_end - first_dec);
    stage.count[PART_LAST_BLOCK] = has_last;
    stage.count[PART_EMBEDDING] = has_embedding;
    stage.count[PART_HEAD] = has_head;
    stage.count[ONCE_ENC] = begin < first_dec && begin < end;
    stage.count[ONCE_DEC] = has_dec;
    stage.count[ONCE_ENC_END] = chain->num_dec_layers > 0 && begin < first_dec && end >= first_dec;
    return stage;
}

CostStage cost_chunk_make(const CostModel* model, const Placement* placement, int32_t k) {
    bool is_last = k == placement->num_chunks - 1;
    CostStage stage = cost_stage_make(&model->chain, &placement->chunks[k], k == 0,
                                      is_last && placement->head == HEAD_WHOLE);
    stage.count[ONCE_CHAIN_END] = is_last && placement->head != HEAD_WHOLE;
    return stage;
}

void cost_model_count(int32_t count[PART_COUNT], const PlanChain* chain) {
    for (int part = 0; part < PART_COUNT; part++) {
        int enc = part - (int)PART_ENC_BLOCK, dec = part - (int)PART_DEC_BLOCK;
        count[part] = part == PART_EMBEDDING || part == PART_HEAD ? 1
                      : part == PART_LAST_BLOCK                   ? chain->last_in_rows
                      : dec < 0 ? (enc < chain->enc_blocks ? chain->num_enc_layers : 0)
                                : (dec < chain->dec_blocks ? chain->num_dec_layers : 0);
    }
    if (chain->last_in_rows) { count[cost_usual_last_part(chain)]--; }
}

// --- check -------------------------------------------------------------------------------------------

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

static Status rates_check(const CostModel* model) {
    const int64_t *state = model->part_state_bytes, *params = model->part_param_bytes;
    const struct {
        const char* name;
        double value, most;
    } rates[] = {{"comm latency_ns", model->comm_latency_ns, LARGEST},
                 {"comm bytes_per_ns", model->comm_bytes_per_ns, LARGEST},
                 {"reduce bytes_per_ns", model->reduce_bytes_per_ns, LARGEST},
                 {"reduce update_ns_per_byte", model->update_ns_per_byte, LARGEST},
                 {"reduce tied_bytes", (double)model->tied_param_bytes, (double)COST_LIMIT},
                 {"tied stack_bytes", (double)model->tied_stack_bytes, (double)COST_LIMIT},
                 {"reduce optimizer_part", model->optimizer_part, 1},
                 {"head state_bytes", (double)model->head_state_bytes, (double)COST_LIMIT},
                 {"head params", (double)model->head_param_bytes, (double)COST_LIMIT},
                 {"head vocab", (double)model->head_vocab, INT32_MAX}};
    for (size_t i = 0; i < sizeof rates / sizeof *rates; i++) {
        if (!(rates[i].value >= 0 && rates[i].value <= rates[i].most)) {
            return FAIL(STATUS_BAD_FORMAT, "%s is %g ---> give a finite number, 0 to %g", rates[i].name,
                        rates[i].value, rates[i].most);
        }
    }
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        if (state[piece] < 0 || state[piece] > COST_LIMIT || params[piece] < 0 ||
            params[piece] > COST_LIMIT) {
            return FAIL(STATUS_BAD_FORMAT, "state %s: %lld and %lld bytes ---> give 0 to %lld",
                        cost_part_names[piece], (long long)state[piece], (long long)params[piece],
                        (long long)COST_LIMIT);
        }
    }
    for (int i = 0; i < 2 * CHAIN_MAX_BLOCKS; i++) {
        const CostKept* kept = &model->kept[i / CHAIN_MAX_BLOCKS][i % CHAIN_MAX_BLOCKS];
        if (kept->bytes >= 0 && kept->enc_bytes >= 0) { continue; }
        return FAIL(STATUS_BAD_FORMAT, "kept: %d and %d bytes ---> give 0 or more", kept->bytes,
                    kept->enc_bytes);
    }
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
    const PlanChain* chain = &model->chain;
    int32_t enc = chain->num_enc_layers, dec = chain->num_dec_layers;
    if (enc < 0 || dec < 0 || enc > COST_MAX_LAYERS || dec > COST_MAX_LAYERS || enc + dec < 1) {
        return FAIL(STATUS_BAD_FORMAT, "layers: %d and %d ---> give 1 to %d layers", enc, dec,
                    COST_MAX_LAYERS);
    }
    if (chain->enc_blocks < 1 || chain->enc_blocks > CHAIN_MAX_BLOCKS || chain->dec_blocks < 1 ||
        chain->dec_blocks > CHAIN_MAX_BLOCKS) {
        return FAIL(STATUS_BAD_FORMAT, "layers: of %d and %d blocks ---> give 1 to %d", chain->enc_blocks,
                    chain->dec_blocks, CHAIN_MAX_BLOCKS);
    }
    if (!cost_mode_offered(model, RECOMPUTE_NONE)) {
        return FAIL(STATUS_BAD_FORMAT, "mode none is not offered by every part ---> give costs without "
                                       "recomputation for embedding, blocks and head");
    }
    if (model->recompute_is_job[RECOMPUTE_NONE]) {
        return FAIL(STATUS_BAD_FORMAT, "recompute none: has no job of its own ---> write \"inside\"");
    }
    for (int i = 0; i < RECOMPUTE_COUNT * PART_COUNT * COST_QUANTITIES; i++) {
        int quantity = i % COST_QUANTITIES, part = i / COST_QUANTITIES % PART_COUNT;
        int mode = i / COST_QUANTITIES / PART_COUNT;
        char where[80];
        if (!model->parts[mode][part].offered) { continue; }
        snprintf(where, sizeof where, "part %s mode %s %s%s", cost_part_names[part], cost_mode_names[mode],
                 quantity < JOB_COUNT ? "time " : "",
                 quantity < JOB_COUNT      ? cost_job_names[quantity]
                 : quantity == COST_STORED ? "stored"
                                           : "forward");
        TRY(formula_check(cost_part_formula(model, mode, part, quantity), where));
    }
    for (int i = 0; i < COST_NUM_BYTES; i++) {
        TRY(formula_check(cost_bytes_formula(model, i), cost_bytes_names[i]));
    }
    return rates_check(model);
}

// --- tables for inner loops --------------------------------------------------------------------------

// Slots: part[][] of CostParts, then the formulas of bytes.
enum { SLOT_BYTES = PART_COUNT * COST_QUANTITIES, SLOT_SCRATCH = SLOT_BYTES + 2 };

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
    int32_t count[PART_COUNT];
    cost_model_count(count, &model->chain);
    table->num_sums = table->num_terms = 0;
    for (int slot = 0; slot < SLOT_BYTES; slot++) {
        int part = slot / COST_QUANTITIES, quantity = slot % COST_QUANTITIES;
        const CostFormula* formula = cost_part_formula(model, mode, part, quantity);
        if (part == PART_HEAD) { table->head_constant[quantity] = formula->constant; }
        if (count[part] > 0 && cost_mode_has(model, mode, quantity)) { add_formula(table, formula, slot); }
    }
    table->has_once = false;
    for (int i = 0; i < COST_NUM_BYTES; i++) {
        bool is_once = i >= COST_BYTES_ONCE && i < COST_BYTES_HEAD;
        bool is_forward = i >= COST_BYTES_STAGE && i < COST_BYTES_HEAD && i % 2 == 0;
        int32_t before = table->num_sums;
        if (is_forward && !model->recompute_is_job[mode]) { continue; }
        add_formula(table, cost_bytes_formula(model, i), SLOT_BYTES + i);
        table->has_once |= is_once && table->num_sums > before;
    }
}

void cost_table_init(CostTable* out, const CostModel* model) {
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        mode_init(&out->modes[mode], model, (RecomputeMode)mode);
    }
}

// --- one microbatch --------------------------------------------------------------------------------------

// A microbatch of later pieces has no tokens for an encoder; pieces may have no supervised ones.
static bool is_idle(int part, const MbShape* shape) {
    return part == PART_HEAD || part == PART_LAST_BLOCK ? shape->supervised_tokens == 0
                                                        : part < PART_DEC_BLOCK && shape->enc_tokens == 0;
}

// A piece needs no more scratch than with all tokens of its sample that are in earlier ones.
static void add_earlier(double v[FEATURE_COUNT], const MbShape* shape) {
    const bool has_dec = shape->dec_tokens > 0;
    double before = (double)shape->prefix_tokens, enc = (double)shape->prefix_enc_tokens;
    v[has_dec ? FEATURE_DEC_TOKENS : FEATURE_ENC_TOKENS] += before;
    v[has_dec ? FEATURE_DEC_SQUARES : FEATURE_ENC_SQUARES] +=
        before * before + 2 * (double)shape->prefix_products;
    v[FEATURE_ENC_TOKENS] += enc;
    v[FEATURE_ENC_SQUARES] += enc * enc;
    v[FEATURE_CROSS_PRODUCTS] += before * enc;
}

static void parts_evaluate(CostParts* out, const CostModeTable* table, const MbShape* shape) {
    double value[COST_TABLE_SLOTS] = {0}, v[FEATURE_COUNT], all[FEATURE_COUNT];
    cost_shape_features(v, shape);
    memcpy(all, v, sizeof all);
    add_earlier(all, shape);
    for (int32_t i = 0; i < table->num_sums; i++) {
        const CostSum* sum = &table->sums[i];
        const double* feature = sum->slot == SLOT_SCRATCH ? all : v;
        double total = sum->constant;
        for (int32_t k = sum->term_begin; k < sum->term_end; k++) {
            const CostTerm* term = &table->terms[k];
            double x = feature[term->feature];
            total += term->curve == NULL ? x * term->slope : cost_curve_value(term->curve, x);
        }
        value[sum->slot] = total > sum->floor ? total : sum->floor;
    }
    const double* bytes = value + SLOT_BYTES;
    memset(out->stage, 0, sizeof out->stage);
    memcpy(out->part, value, sizeof out->part);
    memcpy(out->stage + COST_STORED, bytes + COST_BYTES_STAGE, 2 * sizeof *bytes);
    memcpy(out->once, bytes + COST_BYTES_ONCE, sizeof out->once);
    memcpy(out->head_constant, table->head_constant, sizeof out->head_constant);
    for (int part = 0; part < PART_COUNT; part++) {
        for (int kind = 0; kind < JOB_COUNT && is_idle(part, shape); kind++) { out->part[part][kind] = 0; }
    }
    for (int kind = 0; kind < JOB_COUNT && is_idle(PART_HEAD, shape); kind++) {
        out->head_constant[kind] = 0;
    }
    out->has_once = table->has_once;
    out->enc_boundary_bytes = cost_round(bytes[0]);
    out->dec_boundary_bytes = cost_round(bytes[0] + bytes[1]);
    out->scratch_bytes = cost_round(bytes[2]);
    out->head_in_bytes = bytes[COST_BYTES_HEAD];
    out->head_part_bytes = bytes[COST_BYTES_HEAD + 1];
    out->head_factor_bytes = bytes[COST_BYTES_HEAD + 2];
    out->num_rows = shape->supervised_tokens;
}

void cost_parts(CostParts* out, const CostTable* table, RecomputeMode mode, const MbShape* shape) {
    parts_evaluate(out, &table->modes[mode], shape);
}

static int64_t round_up_16(int64_t count) {
    return (count + 15) / 16 * 16;
}

static int64_t boundary_of_stage(const CostModel* model, const CostStage* stage, const CostParts* parts) {
    if (stage->count[PART_HEAD] > 0) { return 0; }
    bool has_rows =
        model->chain.last_in_rows && stage->blocks.end >= plan_chain_num_blocks(&model->chain) - 1;
    if (has_rows || stage->count[ONCE_CHAIN_END] > 0) { return cost_round(parts->head_in_bytes); }
    bool dec = stage->blocks.end > plan_chain_first_dec(&model->chain);
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
    jobs_of_counts(out, stage->count, parts);
    out->boundary_bytes = boundary_of_stage(model, stage, parts);
}

void cost_jobs_of_stages(CostJobs* out, const CostModel* model, const CostStage* stages, int32_t num,
                         const CostParts* parts) {
    for (int32_t s = 0; s < num; s++) {
        const int32_t* count = stages[s].count;
        if (s > 0 && memcmp(count, stages[s - 1].count, sizeof stages[s].count) == 0) {
            out[s] = out[s - 1];
        } else {
            jobs_of_counts(&out[s], count, parts);
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

bool cost_takes_pieces(const CostModel* model) {
    bool takes = false;
    for (int j = 0; j < CHAIN_MAX_BLOCKS; j++) { takes |= model->kept[0][j].bytes > 0; }
    return takes;
}

int64_t cost_kept_bytes(const CostModel* model, const CostStage* stage, const PlanSample* sample,
                        bool gradients) {
    const int causal = cost_causal_part(&model->chain);
    const bool is_pair = causal == PART_DEC_BLOCK;
    int64_t tokens = round_up_16(plan_sample_tokens(sample)), bytes = 0;
    for (int j = 0; j < CHAIN_MAX_BLOCKS; j++) {
        const CostKept* kept = &model->kept[gradients][j];
        int64_t of_enc = is_pair ? round_up_16(sample->enc_tokens) * kept->enc_bytes : 0;
        bytes += stage->count[causal + j] * (tokens * kept->bytes + of_enc);
    }
    return bytes;
}

// --- machines ----------------------------------------------------------------------------------------

Status machine_check(const Machine* machine, int32_t num_ranks) {
    if (machine == NULL || machine->num_ranks == 0) { return STATUS_OK; }
    if (machine->num_ranks != num_ranks) {
        return FAIL(STATUS_OUT_OF_RANGE, "machine: tells of %d ranks, there are %d ---> one entry for each",
                    machine->num_ranks, num_ranks);
    }
    for (int32_t r = 0; r < num_ranks; r++) {
        const MachineRank* rank = &machine->ranks[r];
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            if (!(rank->slow[kind] >= MACHINE_LEAST_SLOW && rank->slow[kind] <= MACHINE_MOST_SLOW)) {
                return FAIL(STATUS_OUT_OF_RANGE,
                            "machine: rank %d takes %g times as long for %s ---> a number from %g to %g", r,
                            rank->slow[kind], cost_job_names[kind], MACHINE_LEAST_SLOW, MACHINE_MOST_SLOW);
            }
        }
        if (rank->memory_limit_bytes < 0 || rank->memory_limit_bytes > COST_LIMIT) {
            return FAIL(STATUS_OUT_OF_RANGE, "machine: rank %d has %lld bytes ---> 0 (as all) or more", r,
                        (long long)rank->memory_limit_bytes);
        }
        bool is_sane = rank->link_bytes_per_ns >= 0 && rank->link_bytes_per_ns < 1e9 &&
                       rank->link_latency_ns >= 0 && rank->link_latency_ns < 1e12;
        if (!is_sane) {
            return FAIL(STATUS_OUT_OF_RANGE,
                        "machine: the link behind rank %d has %g bytes a ns after %g ns ---> numbers of at "
                        "least 0",
                        r, rank->link_bytes_per_ns, rank->link_latency_ns);
        }
    }
    return STATUS_OK;
}

MachineRank machine_rank(const Machine* machine, int32_t rank) {
    if (machine == NULL || rank >= machine->num_ranks) { return (MachineRank){.slow = {1, 1, 1, 1}}; }
    return machine->ranks[rank];
}

static bool rank_differs(const MachineRank* rank) {
    bool differs = rank->memory_limit_bytes != 0 || rank->link_bytes_per_ns > 0;
    for (int kind = 0; kind < JOB_COUNT; kind++) { differs = differs || rank->slow[kind] != 1; }
    return differs;
}

bool machine_differs(const Machine* machine) {
    bool differs = false;
    for (int32_t r = 0; machine != NULL && r < machine->num_ranks && !differs; r++) {
        differs = rank_differs(&machine->ranks[r]);
    }
    return differs;
}

const MachineRank* machine_replica(const Machine* machine, int32_t first_rank) {
    return machine == NULL || machine->num_ranks == 0 ? NULL : machine->ranks + first_rank;
}

int64_t machine_job_ns(const MachineRank* rank, JobKind kind, int64_t job_ns) {
    double slow = rank == NULL ? 1 : rank->slow[kind];
    return slow == 1 ? job_ns : cost_round((double)job_ns * slow);
}

int64_t machine_transfer_ns(const MachineRank* rank, const CostModel* costs, int64_t num_bytes) {
    if (rank == NULL || rank->link_bytes_per_ns <= 0) { return cost_transfer_ns(costs, num_bytes); }
    return cost_round(rank->link_latency_ns + (double)num_bytes / rank->link_bytes_per_ns);
}

int64_t machine_between_ns(const MachineRank* replica, const CostModel* costs, int32_t from, int32_t to,
                           int64_t num_bytes) {
    int32_t first = from < to ? from : to, last = from < to ? to : from;
    int64_t slowest_ns = 0;
    if (replica == NULL) { return from == to ? 0 : cost_transfer_ns(costs, num_bytes); }
    for (int32_t s = first; s < last; s++) {
        int64_t link_ns = machine_transfer_ns(&replica[s], costs, num_bytes);
        slowest_ns = link_ns > slowest_ns ? link_ns : slowest_ns;
    }
    return slowest_ns;
}

int64_t machine_limit_bytes(const MachineRank* rank, int64_t common_bytes) {
    return rank == NULL || rank->memory_limit_bytes == 0 ? common_bytes : rank->memory_limit_bytes;
}

const char* machine_limit_words(char out[MACHINE_LIMIT_CHARS], const MachineRank* rank, int32_t rank_idx) {
    if (machine_limit_bytes(rank, 0) == 0) {
        snprintf(out, MACHINE_LIMIT_CHARS, "--memory-limit");
    } else {
        snprintf(out, MACHINE_LIMIT_CHARS, "rank %d's own memory (./dynapipe plan: --rank-memory)", rank_idx);
    }
    return out;
}

double machine_slow(const MachineRank* rank) {
    return rank == NULL ? 1 : (rank->slow[JOB_F] + rank->slow[JOB_B] + rank->slow[JOB_W]) / 3;
}

uint64_t machine_hash(const Machine* machine) {
    if (machine == NULL || (machine->num_ranks == 0 && !machine->pulls)) { return 0; }
    uint64_t hash = hash_bytes(HASH_SEED, &machine->num_ranks, sizeof machine->num_ranks);
    uint8_t pulls = machine->pulls;
    hash = hash_bytes(hash, &pulls, sizeof pulls);
    for (int32_t r = 0; r < machine->num_ranks; r++) {  // field by field: padding bytes are undefined
        const MachineRank* rank = &machine->ranks[r];
        hash = hash_bytes(hash, rank->slow, sizeof rank->slow);
        hash = hash_bytes(hash, &rank->memory_limit_bytes, sizeof rank->memory_limit_bytes);
        hash = hash_bytes(hash, &rank->link_latency_ns, sizeof rank->link_latency_ns);
        hash = hash_bytes(hash, &rank->link_bytes_per_ns, sizeof rank->link_bytes_per_ns);
    }
    hash = hash_finish(hash);
    return hash != 0 ? hash : 1;
}

// --- shares of the head ------------------------------------------------------------------------------

static double cost_share_of_matrix(const CostModel* model, CostShare share) {
    int64_t vocab = model->head_vocab;
    if (share.end <= share.begin) { return 0; }
    if (share.by == HEAD_BY_ROWS) { return 1; }
    if (vocab == 0) { return (double)(share.end - share.begin) / HEAD_UNITS; }
    return (double)(cost_share_ids(vocab, share.end) - cost_share_ids(vocab, share.begin)) / (double)vocab;
}

// Its part of the work of all supervised rows. By rows the parts of all shares add up to all rows.
static double of_rows(double all, CostShare share, int64_t num_rows) {
    if (num_rows == 0) { return 0; }
    double end = (double)cost_share_rows(num_rows, share.end) / (double)num_rows;
    double begin = (double)cost_share_rows(num_rows, share.begin) / (double)num_rows;
    return (double)(cost_round(all * end) - cost_round(all * begin));
}

// A job of a share: its part of the whole head's and all of the constant. By rows all of the matrix is read
// for however few of them, so it takes no less than a head of these rows alone.
static double of_head(const CostModel* model, int kind, CostShare share, const CostParts* parts) {
    double part = (double)(share.end - share.begin) / HEAD_UNITS;
    double whole = parts->part[PART_HEAD][kind], constant = parts->head_constant[kind];
    double time_ns = constant + part * (whole - constant);
    int64_t rows =
        cost_share_rows(parts->num_rows, share.end) - cost_share_rows(parts->num_rows, share.begin);
    if (share.by != HEAD_BY_ROWS || rows == 0) { return time_ns; }
    const CostFormula* formula = &model->parts[RECOMPUTE_NONE][PART_HEAD].time_ns[kind];
    const double alone[FEATURE_COUNT] = {[FEATURE_SUPERVISED] = (double)rows};
    return fmax(time_ns, formula_value(formula, alone));
}

static void bytes_by_rows(CostJobs* out, CostShare share, const CostParts* parts) {
    double constant = parts->head_constant[COST_STORED], whole = parts->part[PART_HEAD][COST_STORED];
    out->stored_bytes = cost_round(constant + of_rows(whole - constant, share, parts->num_rows));
    out->boundary_bytes = cost_round(of_rows(parts->head_in_bytes, share, parts->num_rows));
    out->part_bytes = out->boundary_bytes;
}

static void bytes_by_vocabulary(CostJobs* out, const CostModel* model, CostShare share,
                                const CostParts* parts) {
    double part = cost_share_of_matrix(model, share);
    double constant = parts->head_constant[COST_STORED], whole = parts->part[PART_HEAD][COST_STORED];
    // its logits, and of all rows the hidden states and its part of the result
    out->stored_bytes = cost_round(constant + part * (whole - constant) + parts->head_in_bytes +
                                   2 * parts->head_factor_bytes);
    out->boundary_bytes = cost_round(parts->head_in_bytes);
    out->part_bytes = cost_round(parts->head_part_bytes);
    out->factor_bytes = cost_round(parts->head_factor_bytes);
}

void cost_jobs_of_share(CostJobs* out, const CostModel* model, CostShare share, const CostParts* parts) {
    *out = (CostJobs){.scratch_bytes = parts->scratch_bytes};
    if (share.end <= share.begin) { return; }
    out->job_ns[JOB_F] =
        cost_round(of_head(model, JOB_F, share, parts) + of_head(model, JOB_B, share, parts));
    out->job_ns[JOB_W] = cost_round(of_head(model, JOB_W, share, parts));
    if (share.by == HEAD_BY_ROWS) {
        bytes_by_rows(out, share, parts);
    } else {
        bytes_by_vocabulary(out, model, share, parts);
    }
}

// --- ranks -------------------------------------------------------------------------------------------

static void add_chunk(CostRank* rank, const CostStage* stage) {
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        bool adds = piece >= PART_ENC_BLOCK && piece < PART_HEAD;
        int32_t more = stage->count[piece];
        rank->count[piece] = adds ? rank->count[piece] + more : rank->count[piece] | more;
    }
    rank->count[PART_EMBEDDING] |= stage->has_dec_embedding;
}

// Which part of the embedding's matrix, or of a copy of it, the rank has.
static double tied_part(const CostModel* model, const CostRank* rank) {
    bool has_copy = rank->count[PART_HEAD] > 0 && model->tied_head_state_bytes > 0;
    if (rank->count[PART_EMBEDDING] > 0 || has_copy) { return 1; }
    return model->head_is_tied ? rank->matrix : 0;
}

// Position biases and the like, of a stack that other ranks have blocks of, too.
static double stack_bytes(const CostModel* model, const CostRank* rank) {
    int32_t all[PART_COUNT], enc = 0, dec = 0;
    cost_model_count(all, &model->chain);
    *(model->chain.num_dec_layers > 0 ? &dec : &enc) = all[PART_LAST_BLOCK] - rank->count[PART_LAST_BLOCK];
    for (int j = 0; j < CHAIN_MAX_BLOCKS; j++) {
        enc += all[PART_ENC_BLOCK + j] - rank->count[PART_ENC_BLOCK + j];
        dec += all[PART_DEC_BLOCK + j] - rank->count[PART_DEC_BLOCK + j];
    }
    bool shares_enc = rank->count[ONCE_ENC] > 0 && enc > 0, shares_dec = rank->count[ONCE_DEC] > 0 && dec > 0;
    return (shares_enc + shares_dec) * (double)model->tied_stack_bytes;
}

// What of `part` other ranks have too, where all together have `sum` of the matrix.
static double shared_part(double part, double sum) {
    double others = sum - part;
    return others < part ? others : part;
}

void cost_ranks_make(CostRank* out, const CostModel* model, const Placement* placement, int32_t P) {
    double tied_sum = 0, head_sum = 0;
    memset(out, 0, sizeof *out * (size_t)P);
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        CostStage stage = cost_chunk_make(model, placement, k);
        add_chunk(&out[placement->stage_of[k]], &stage);
    }
    for (int32_t s = 0; s < P; s++) {
        bool has_it = model->head_is_tied && out[s].count[PART_EMBEDDING] > 0;
        if (placement_has_share(placement, s) && !has_it) {
            out[s].matrix = cost_share_of_matrix(model, cost_share_of(placement, s));
        }
        tied_sum += tied_part(model, &out[s]);
        head_sum += model->head_is_tied ? 0 : out[s].matrix;
    }
    for (int32_t s = 0; s < P; s++) {
        out[s].tied_bytes =
            shared_part(tied_part(model, &out[s]), tied_sum) * (double)model->tied_param_bytes +
            stack_bytes(model, &out[s]);
        if (!model->head_is_tied && placement->head == HEAD_BY_ROWS) {
            out[s].tied_bytes += shared_part(out[s].matrix, head_sum) * (double)model->head_param_bytes;
        }
    }
}

// Does the head use an embedding that the rank has anyway?
static bool head_has_no_copy(const CostModel* model, const CostRank* rank) {
    return rank->count[PART_HEAD] > 0 && rank->count[PART_EMBEDDING] > 0 && model->tied_head_state_bytes > 0;
}

static int32_t num_shards(const CostModel* model) {
    return model->num_shards > 1 ? model->num_shards : 1;
}

int64_t cost_rank_state_bytes(const CostModel* model, const CostRank* rank) {
    double sum = rank->matrix * (double)model->head_state_bytes;
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        sum += rank->count[piece] * (double)model->part_state_bytes[piece];
    }
    if (head_has_no_copy(model, rank)) { sum -= (double)model->tied_head_state_bytes; }
    return cost_round(ceil(sum - sum * model->optimizer_part * (1 - 1.0 / num_shards(model))));
}

// A ring all-reduce, every rank sends 2 (R - 1) / R of the bytes.
double cost_reduce_ns_per_byte(const CostModel* model, int32_t num_replicas) {
    if (num_replicas < 2 || model->reduce_bytes_per_ns <= 0) { return 0; }
    return 2.0 * (num_replicas - 1) / num_replicas / model->reduce_bytes_per_ns;
}

static double gradient_bytes(const CostModel* model, const CostRank* rank) {
    double bytes = rank->matrix * (double)model->head_param_bytes;
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        bytes += rank->count[piece] * (double)model->part_param_bytes[piece];
    }
    return head_has_no_copy(model, rank) ? fmax(bytes - (double)model->tied_param_bytes, 0) : bytes;
}

// First the copies of tied parameters become one sum.
int64_t cost_rank_reduce_ns(const CostModel* model, const CostRank* rank, int32_t num_replicas) {
    double tied_ns = 0;
    if (model->reduce_bytes_per_ns > 0) {
        tied_ns = 2 * rank->tied_bytes / model->reduce_bytes_per_ns;  // there and back
    }
    return cost_round(tied_ns + gradient_bytes(model, rank) * cost_reduce_ns_per_byte(model, num_replicas));
}

int64_t cost_rank_update_ns(const CostModel* model, const CostRank* rank, double slow) {
    double update_ns = gradient_bytes(model, rank) * model->update_ns_per_byte;
    return cost_round(update_ns * slow / num_shards(model));
}

int64_t cost_state_bytes(const CostModel* model, const CostStage* stage) {
    CostRank rank = {.matrix = 0};
    add_chunk(&rank, stage);
    return cost_rank_state_bytes(model, &rank);
}

// --- analytic estimates ------------------------------------------------------------------------------

/*
Costs of a GPT-2 or a T5 from its shape: a roofline, used where nothing was measured.

    time  = launch + max(bytes of weights / bandwidth, flops / rate + bytes of activations / bandwidth)

Flops of one block's forward, multiply and add, I = heads * head size, F2 = F, or 2 F where gated:
    GPT-2     attention 8 C^2 per token, 2 C T^2 per sequence (scores and values, causal half)
              feed-forward 16 C^2 per token
    T5        self-attention 8 C I per token, 4 I T^2 per sequence, a decoder's 2 I T^2
              cross-attention 4 C I per token, 4 C I per *encoder* token (keys and values), 4 I T_enc T per
              sequence; feed-forward 2 (C F2 + F C) per token
B repeats the matrix products for inputs and 5/2 of attention (scores again, dV, dP, dQ, dK), W repeats them
for weights. The last feed-forward is computed for supervised rows. Head: 2 C Vp per supervised row for each
of F, B, W. The decoder's embedding is priced with the encoder's.

Bytes are those that llmc/gpt2 and llmc/t5 keep (transformer.c), counts rounded up to 16.
*/

static const double ROUND_UP = 16;  // llmc/gpt2 rounds rows of every buffer up to this

// Bytes that grow with a token count rounded up to 16: never fewer than are allocated.
static void add_rounded_line(CostFormula* formula, CostFeature feature, double bytes_per_unit) {
    cost_formula_add_line(formula, feature, bytes_per_unit);
    formula->constant += ROUND_UP * bytes_per_unit;
}

// What a block computes and keeps, per token of its own side and of the encoder's.
typedef struct {
    double flops, enc_flops;           // of matrix products
    double square_flops, cross_flops;  // of attention, per squared length and cross product; of a piece, each
    double prefix_flops;               // pair with a token before it: twice the former in causal layers
    double stored_bytes, enc_stored_bytes;
    double spare, enc_spare;  // values that a chunk with such blocks has once
    double kept, enc_kept;    // values that pieces of a sample keep
    int64_t weights, params;  // of matrices; of norms and biases
} Block;

typedef struct {
    int num_blocks;
    CostFeature tokens, squares;
    Block blocks[CHAIN_MAX_BLOCKS];
} Stack;

static void block_costs(CostPartMode* part, const CostAnalytic* a, const Stack* stack, const Block* block) {
    const double launch_ns = a->launch_ns / stack->num_blocks;
    double weights_ns = (double)block->weights * a->bytes_per_value / a->bytes_per_ns;
    // what is kept is written once and read once
    double token_ns = block->flops / a->flops_per_ns + 2 * block->stored_bytes / a->bytes_per_ns;
    double enc_ns = block->enc_flops / a->flops_per_ns + 2 * block->enc_stored_bytes / a->bytes_per_ns;
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        CostFormula* time = &part->time_ns[kind];
        time->constant += launch_ns;
        time->floor += launch_ns + weights_ns;
        cost_formula_add_line(time, stack->tokens, token_ns);
        if (enc_ns > 0) { cost_formula_add_line(time, FEATURE_ENC_TOKENS, enc_ns); }
        if (kind == JOB_W) { continue; }
        const struct {
            CostFeature feature;
            double flops;
        } pairs[] = {{stack->squares, block->square_flops},
                     {FEATURE_PREFIX_PRODUCTS, block->prefix_flops},
                     {FEATURE_CROSS_PRODUCTS, block->cross_flops}};
        for (int i = 0; i < 3; i++) {
            double ns = (kind == JOB_B ? 2.5 : 1) / a->attention_flops_per_ns * pairs[i].flops;
            if (ns > 0) { cost_formula_add_line(time, pairs[i].feature, ns); }
        }
    }
    add_rounded_line(&part->stored_bytes, stack->tokens, block->stored_bytes);
    if (block->enc_stored_bytes > 0) {
        add_rounded_line(&part->stored_bytes, FEATURE_ENC_TOKENS, block->enc_stored_bytes);
    }
}

// Each block as a part, the last one in rows, or all of a layer as one.
static void stack_costs(CostModel* out, int64_t params[PIECE_COUNT], const CostAnalytic* a,
                        const Stack* stack) {
    const bool is_dec = stack->tokens == FEATURE_DEC_TOKENS, is_last = is_dec == (a->num_dec_layers > 0);
    const double value = a->bytes_per_value;
    const int first = is_dec ? PART_DEC_BLOCK : PART_ENC_BLOCK,
              once = is_dec ? ONCE_DEC_BLOCK : ONCE_ENC_BLOCK;
    *(is_dec ? &out->chain.dec_blocks : &out->chain.enc_blocks) = a->by_blocks ? stack->num_blocks : 1;
    for (int i = 0; i < stack->num_blocks; i++) {
        const Block* block = &stack->blocks[i];
        const int j = a->by_blocks ? i : 0;
        CostFormula* spare = &out->once_stored_bytes[once + j - PART_COUNT];
        block_costs(&out->parts[RECOMPUTE_NONE][first + j], a, stack, block);
        if (block->spare > 0) { add_rounded_line(spare, stack->tokens, block->spare * value); }
        if (block->enc_spare > 0) { add_rounded_line(spare, FEATURE_ENC_TOKENS, block->enc_spare * value); }
        params[first + j] += block->weights + block->params;
        if (a->by_blocks && is_last && i == stack->num_blocks - 1) {
            const Stack rows = {.num_blocks = stack->num_blocks, .tokens = FEATURE_SUPERVISED};
            block_costs(&out->parts[RECOMPUTE_NONE][PART_LAST_BLOCK], a, &rows, block);
            params[PART_LAST_BLOCK] = block->weights + block->params;
            out->chain.last_in_rows = true;
        }
        for (int gradients = 0; gradients < 2 && is_last; gradients++) {
            const int32_t bytes = gradients ? 4 : a->bytes_per_value;
            out->kept[gradients][j].bytes += (int32_t)block->kept * bytes;
            out->kept[gradients][j].enc_bytes += (int32_t)block->enc_kept * bytes;
        }
    }
}

// rows: read and written per token, by F, B, W and R
static void embedding_costs(CostPartMode* part, const CostAnalytic* a, CostFeature tokens,
                            const double rows[JOB_COUNT]) {
    double bytes = (double)a->channels * a->bytes_per_value;
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        if (rows[kind] > 0) {
            cost_formula_add_line(&part->time_ns[kind], tokens, rows[kind] * bytes / a->bytes_per_ns);
        }
    }
}

static void head_costs(CostPartMode* part, const CostAnalytic* a, double floats_per_row) {
    double C = a->channels, Vp = a->padded_vocab, value = a->bytes_per_value;
    double matmul_ns = 2 * C * Vp / a->flops_per_ns, weights_ns = C * Vp * value / a->bytes_per_ns;
    double traffic_ns = (3 * Vp + 4 * C) * value / a->bytes_per_ns;  // softmax passes; norm
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        CostFormula* time = &part->time_ns[kind];
        time->constant = a->launch_ns;
        time->floor = a->launch_ns + weights_ns;
        cost_formula_add_line(time, FEATURE_SUPERVISED, matmul_ns + traffic_ns);
    }
    add_rounded_line(&part->stored_bytes, FEATURE_SUPERVISED, (Vp + 2 * C) * value + floats_per_row * 4);
}

// Of a shared head (llmc/model.h): normed rows go to the shares. By rows their gradient comes back; by
// vocabulary two terms of the gradient and three numbers a row, for which two are sent back. The chain then
// ends with the norm's numbers and the gradient of its input.
static void shared_head_costs(CostModel* out, const CostAnalytic* a) {
    const double row = (double)a->channels * a->bytes_per_value;
    CostFormula* end = &out->once_stored_bytes[ONCE_CHAIN_END - PART_COUNT];
    cost_formula_add_line(&out->head_in_bytes, FEATURE_SUPERVISED, row);
    add_rounded_line(&out->head_part_bytes, FEATURE_SUPERVISED, 2 * row + 3 * 4);
    add_rounded_line(&out->head_factor_bytes, FEATURE_SUPERVISED, 2 * 4);
    add_rounded_line(end, FEATURE_SUPERVISED, row + 2 * 4);
    out->once_forward_bytes[ONCE_CHAIN_END - PART_COUNT] = *end;
    out->head_vocab = a->padded_vocab;
}

// Without recomputation there is no R; with it, everything from R on is as without. The bytes of a forward
// that drops activations are set with the model's other bytes.
static void modes_finish(CostModel* out) {
    memcpy(out->parts[RECOMPUTE_FULL], out->parts[RECOMPUTE_NONE], sizeof out->parts[RECOMPUTE_FULL]);
    out->recompute_is_job[RECOMPUTE_FULL] = true;
    for (int part = 0; part < PART_COUNT; part++) {
        CostPartMode *none = &out->parts[RECOMPUTE_NONE][part], *full = &out->parts[RECOMPUTE_FULL][part];
        none->offered = full->offered = true;
        memset(&none->time_ns[JOB_R], 0, sizeof none->time_ns[JOB_R]);
    }
}

static int64_t adam_state_bytes(const CostAnalytic* a, int64_t num_params) {
    return 2 * num_params * (a->bytes_per_value + 4);  // Adam's m and v are float32
}

static void machine_costs(CostModel* out, const CostAnalytic* a, const int64_t params[PIECE_COUNT]) {
    shared_head_costs(out, a);
    out->comm_latency_ns = a->comm_latency_ns;
    out->comm_bytes_per_ns = a->comm_bytes_per_ns;
    out->reduce_bytes_per_ns = a->comm_bytes_per_ns;
    out->optimizer_part = 4.0 / (a->bytes_per_value + 4);
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        out->part_param_bytes[piece] = params[piece] * a->bytes_per_value;
        out->part_state_bytes[piece] = adam_state_bytes(a, params[piece]);
    }
}

static void tied_costs(CostModel* out, const CostAnalytic* a, int64_t num_values, bool tied_head) {
    out->tied_param_bytes = out->head_param_bytes = num_values * a->bytes_per_value;
    out->head_state_bytes = adam_state_bytes(a, num_values);
    out->head_is_tied = tied_head;
    out->tied_head_state_bytes = tied_head ? out->head_state_bytes : 0;
}

// GPT-2, or Llama: gated, no biases to speak of, one number a row of a norm. A forward keeps one layer's slot
// at a time, plus what head and embedding need.
void cost_model_analytic_gpt(CostModel* out, const CostAnalytic* a) {
    const bool is_llama = a->num_kv_heads > 0;
    const double tables = is_llama ? 1 : 2;  // of embeddings, read where a token's sum is written
    const double embedding_rows[JOB_COUNT] = {1 + tables, 0, 2 + tables, 1 + tables};
    const double C = a->channels, value = a->bytes_per_value, norm = (is_llama ? 1 : 2) * 4.0;
    const int64_t channels = a->channels, norm_params = (is_llama ? 1 : 2) * channels;
    const int64_t inner = is_llama ? (int64_t)a->num_heads * a->head_size : channels,
                  qkv = inner + 2 * (is_llama ? (int64_t)a->num_kv_heads * a->head_size : channels),
                  ffn = a->ffn_channels, up = is_llama ? 2 * ffn : ffn;
    const double I = (double)inner, W = (double)qkv, F = (double)ffn, F2 = (double)up;
    CostPartMode *parts = out->parts[RECOMPUTE_NONE], *full = out->parts[RECOMPUTE_FULL];
    const Stack stack = {.num_blocks = 2,
                         .tokens = FEATURE_ENC_TOKENS,
                         .squares = FEATURE_ENC_SQUARES,
                         .blocks = {{.flops = 2 * C * (W + I),
                                     .square_flops = 2 * I,
                                     .prefix_flops = 4 * I,
                                     .stored_bytes = (2 * C + W + I) * value + norm + a->num_heads * 4.0,
                                     .spare = W,
                                     .kept = 2 * I,
                                     .weights = channels * (qkv + inner),
                                     .params = norm_params + (is_llama ? 0 : qkv + channels)},
                                    {.flops = 2 * C * (F2 + F),
                                     .stored_bytes = (2 * C + F2 + F) * value + norm,
                                     .weights = channels * (up + ffn),
                                     .params = norm_params + (is_llama ? 0 : ffn + channels)}}};
    int64_t params[PIECE_COUNT] = {
        [PART_EMBEDDING] = (a->padded_vocab + (int64_t)(is_llama ? 0 : a->max_tokens)) * channels,
        // the last stage's copy of the tied embedding, or the head's own matrix, and the final norm
        [PART_HEAD] = a->padded_vocab * channels + norm_params,
        [ONCE_CHAIN_END] = norm_params,
    };
    memset(out, 0, sizeof *out);
    out->chain = plan_chain_whole(a->num_layers, 0);
    embedding_costs(&parts[PART_EMBEDDING], a, FEATURE_ENC_TOKENS, embedding_rows);
    add_rounded_line(&parts[PART_EMBEDDING].stored_bytes, FEATURE_ENC_TOKENS, C * value);
    stack_costs(out, params, a, &stack);
    head_costs(&parts[PART_HEAD], a, is_llama ? 1 : 2);
    modes_finish(out);
    full[PART_EMBEDDING].forward_bytes = full[PART_EMBEDDING].stored_bytes;
    full[PART_HEAD].forward_bytes = full[PART_HEAD].stored_bytes;
    add_rounded_line(&out->stage_forward_bytes, FEATURE_ENC_TOKENS,
                     (3 * C + (is_llama ? fmax(F2, 4 * I) : 4 * F)) * value + 2 * norm + a->num_heads * 4.0);
    add_rounded_line(&out->boundary_bytes, FEATURE_ENC_TOKENS, C * value);
    // Llama's: queries, keys and values that are turned, and their gradients
    add_rounded_line(&out->scratch_bytes, FEATURE_ENC_TOKENS,
                     (is_llama ? C + 6 * I + fmax(F, fmax(C, I)) : 8 * C + F) * value);
    add_rounded_line(&out->scratch_bytes, FEATURE_SUPERVISED, 2 * C * value);
    machine_costs(out, a, params);
    tied_costs(out, a, a->padded_vocab * channels, a->tied_head);
}

// --- T5 ----------------------------------------------------------------------------------------------------

static const double NUM_BUCKETS = 32;  // of the position bias

static void t5_stacks(CostModel* out, int64_t params[PIECE_COUNT], const CostAnalytic* a) {
    const double C = a->channels, F = a->ffn_channels, F2 = a->gated ? 2 * F : F, value = a->bytes_per_value;
    const int64_t channels = a->channels, inner = (int64_t)a->num_heads * a->head_size;
    const double I = (double)inner, heads = (a->num_heads + 1) * 4.0;
    // kept: the norm, q, k and v, attention's output, the stream; the norm, before and after the activation
    // ..
    const Block self = {.flops = 2 * 4 * C * I,
                        .square_flops = 4 * I,
                        .stored_bytes = (2 * C + 4 * I) * value + heads,
                        .spare = 3 * I,
                        .weights = 4 * channels * inner,
                        .params = channels};
    const Block cross = {.flops = 2 * 2 * C * I,
                         .enc_flops = 4 * C * I,
                         .cross_flops = 4 * I,
                         .stored_bytes = (2 * C + 2 * I) * value + heads,
                         .enc_stored_bytes = 2 * I * value,
                         .spare = I,
                         .enc_spare = 2 * I,  // keys and values
                         .enc_kept = 2 * I,
                         .weights = 4 * channels * inner,
                         .params = channels};
    const Block ffn = {.flops = 2 * (C * F2 + F * C),
                       .stored_bytes = (2 * C + F2 + F) * value + 4,
                       .weights = channels * a->ffn_channels * (a->gated ? 3 : 2),
                       .params = channels};
    const Stack enc = {2, FEATURE_ENC_TOKENS, FEATURE_ENC_SQUARES, {self, ffn}};
    Stack dec = {3, FEATURE_DEC_TOKENS, FEATURE_DEC_SQUARES, {self, cross, ffn}};
    dec.blocks[0].square_flops = 2 * I;
    dec.blocks[0].prefix_flops = 4 * I;
    dec.blocks[0].kept = 2 * I;
    stack_costs(out, params, a, &enc);
    stack_costs(out, params, a, &dec);
}

// What a stack has once, and the buffers of a forward that keeps nothing.
static void t5_stage_bytes(CostModel* out, const CostAnalytic* a) {
    const double C = a->channels, F = a->ffn_channels, F2 = a->gated ? 2 * F : F, value = a->bytes_per_value;
    const double I = (double)a->num_heads * a->head_size, heads = (a->num_heads + 1) * 4.0;
    const double shared = (3 * C + fmax(F2, 4 * I)) * value + heads;
    CostFormula *dec = &out->once_stored_bytes[ONCE_DEC - PART_COUNT],
                *enc_end = &out->once_stored_bytes[ONCE_ENC_END - PART_COUNT],
                *enc_once = &out->once_forward_bytes[ONCE_ENC - PART_COUNT],
                *dec_once = &out->once_forward_bytes[ONCE_DEC - PART_COUNT],
                *end_once = &out->once_forward_bytes[ONCE_ENC_END - PART_COUNT];
    add_rounded_line(dec, FEATURE_DEC_TOKENS, C * value);
    add_rounded_line(dec, FEATURE_ENC_TOKENS, C * value);  // enc_out
    add_rounded_line(enc_end, FEATURE_ENC_TOKENS, 2 * C * value + 4);
    add_rounded_line(enc_once, FEATURE_ENC_TOKENS, shared);
    add_rounded_line(dec_once, FEATURE_DEC_TOKENS, shared);
    add_rounded_line(dec_once, FEATURE_ENC_TOKENS, 2 * I * value);
    add_rounded_line(end_once, FEATURE_ENC_TOKENS, C * value);
    add_rounded_line(&out->boundary_bytes, FEATURE_ENC_TOKENS, C * value);
    add_rounded_line(&out->dec_boundary_bytes, FEATURE_DEC_TOKENS, C * value);
    const double wide = fmax(F, fmax(C, I)) * value;
    add_rounded_line(&out->scratch_bytes, FEATURE_ENC_TOKENS, C * value + wide);
    add_rounded_line(&out->scratch_bytes, FEATURE_DEC_TOKENS, C * value + wide);
    add_rounded_line(&out->scratch_bytes, FEATURE_SUPERVISED, 2 * C * value);
    // of attention: sums of biases and turns of each head, and of a thread up to 512 keys and their gradients
    cost_formula_add_line(&out->scratch_bytes, FEATURE_SEQS, (NUM_BUCKETS * 8 + 4) * a->num_heads);
    out->scratch_bytes.constant += 2 * NUM_BUCKETS * a->num_heads * 4 + 512.0 * 3 * 4 * a->head_size;
}

static void cost_model_analytic_t5(CostModel* out, const CostAnalytic* a) {
    static const double embedding_rows[JOB_COUNT] = {2, 0, 3, 2};
    const double C = a->channels, value = a->bytes_per_value;
    const int64_t embedding = (int64_t)a->padded_vocab * a->channels,
                  biases = (int64_t)NUM_BUCKETS * a->num_heads;
    CostPartMode* parts = out->parts[RECOMPUTE_NONE];
    int64_t params[PIECE_COUNT] = {
        [PART_EMBEDDING] = embedding,
        [PART_HEAD] = embedding + a->channels,  // tied or not
        [ONCE_ENC] = biases,
        [ONCE_DEC] = biases,
        [ONCE_ENC_END] = a->channels,
        [ONCE_CHAIN_END] = a->channels,
    };
    memset(out, 0, sizeof *out);
    out->chain = plan_chain_whole(a->num_layers, a->num_dec_layers);
    embedding_costs(&parts[PART_EMBEDDING], a, FEATURE_ENC_TOKENS, embedding_rows);
    embedding_costs(&parts[PART_EMBEDDING], a, FEATURE_DEC_TOKENS, embedding_rows);
    add_rounded_line(&parts[PART_EMBEDDING].stored_bytes, FEATURE_ENC_TOKENS, C * value);
    t5_stacks(out, params, a);
    head_costs(&parts[PART_HEAD], a, 1);
    modes_finish(out);
    t5_stage_bytes(out, a);
    machine_costs(out, a, params);
    tied_costs(out, a, embedding, a->tied_head);
    out->tied_stack_bytes = out->part_param_bytes[ONCE_ENC];
}

void cost_model_analytic(CostModel* out, const CostAnalytic* about) {
    (about->num_dec_layers > 0 ? cost_model_analytic_t5 : cost_model_analytic_gpt)(out, about);
}
