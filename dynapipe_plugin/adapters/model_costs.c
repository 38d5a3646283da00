// model_costs.c -- what a slice of GPT-2 costs: bytes asked of the model itself, times measured or estimated.
#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>

#include "../plan/cost_model.h"
#include "../run/session.h"
#include "card_rates.h"
#include "../../llmc/gpt2.h"
#include "llmc_model.h"

// A slice without parameters, good for asking how many bytes it would need.
static Model probe(const ModelConfig* config, int num_layers, bool is_first, bool is_last, OpsContext* ops) {
    return (Model){.config = *config,
                   .layer_begin = 0,
                   .layer_end = num_layers,
                   .is_first = is_first,
                   .is_last = is_last,
                   .ops = ops};
}

// A straight line through what `ask` says at two counts that are multiples of the model's rounding (16), plus
// 16 steps of slope, so that it is never below for a count in between; nor below for few tokens, where a part
// of constant size (the embedding's sort on a GPU) may be the largest.
typedef int64_t Ask(const Model* model, int num_tokens, int num_rows);

static void fit_line(CostFormula* out, Ask* ask, const Model* model, CostFeature feature) {
    enum { LOW = 1600, HIGH = 3200, ROUNDING = 16 };
    bool rows = feature == FEATURE_SUPERVISED;
    int64_t low = ask(model, rows ? 0 : LOW, rows ? LOW : 0);
    int64_t high = ask(model, rows ? 0 : HIGH, rows ? HIGH : 0);
    double slope = (double)(high - low) / (HIGH - LOW);
    double constant = (double)low - slope * LOW + slope * ROUNDING;
    double least = (double)ask(model, rows ? 0 : ROUNDING, rows ? ROUNDING : 0);
    if (least > constant) { constant = least; }
    out->constant += constant > 0 ? constant : 0;
    out->curves[feature] = (CostCurve){.num_knots = 1, .x = {1}, .y = {slope}};
}

static int64_t ask_kept(const Model* model, int num_tokens, int num_rows) {
    return gpt2_acts_bytes(model, num_tokens, num_rows, MODEL_KEEP | MODEL_HEAD);
}

static int64_t ask_dropped(const Model* model, int num_tokens, int num_rows) {
    return gpt2_acts_bytes(model, num_tokens, num_rows, 0);
}

static int64_t ask_scratch(const Model* model, int num_tokens, int num_rows) {
    return gpt2_scratch_bytes(model, num_tokens, num_rows, num_tokens);
}

static int64_t ask_boundary(const Model* model, int num_tokens, int num_rows) {
    (void)num_rows;
    return gpt2_boundary_bytes(model, num_tokens);
}

static CostFormula formula_minus(const CostFormula* a, const CostFormula* b) {
    CostFormula out = *a;
    out.constant = a->constant > b->constant ? a->constant - b->constant : 0;
    double slope_b = b->curves[FEATURE_ENC_TOKENS].num_knots > 0 ? b->curves[FEATURE_ENC_TOKENS].y[0] : 0;
    out.curves[FEATURE_ENC_TOKENS].y[0] -= slope_b;
    return out;
}

// The parts' bytes from slices that differ by that part: one layer more, with embedding, with head.
static void fill_part_bytes(CostModel* model, RecomputeMode mode, Ask* ask, bool forward_only,
                            const ModelConfig* config, OpsContext* ops) {
    Model one = probe(config, 1, false, false, ops), two = probe(config, 2, false, false, ops);
    Model first = probe(config, 1, true, false, ops), last = probe(config, 1, false, true, ops);
    CostFormula of_one = {0}, of_two = {0}, of_first = {0}, of_rows = {0}, of_last = {0};
    fit_line(&of_one, ask, &one, FEATURE_ENC_TOKENS);
    fit_line(&of_two, ask, &two, FEATURE_ENC_TOKENS);
    fit_line(&of_first, ask, &first, FEATURE_ENC_TOKENS);
    fit_line(&of_last, ask, &last, FEATURE_ENC_TOKENS);
    fit_line(&of_rows, ask, &last, FEATURE_SUPERVISED);
    CostFormula layer = formula_minus(&of_two, &of_one);
    CostFormula stage = formula_minus(&of_one, &layer);
    CostFormula embedding = formula_minus(&of_first, &of_one);
    CostFormula head = formula_minus(&of_last, &of_one);
    head.curves[FEATURE_SUPERVISED] = of_rows.curves[FEATURE_SUPERVISED];
    head.constant += of_rows.constant;
    *(forward_only ? &model->stage_forward_bytes : &model->stage_stored_bytes) = stage;
    const CostFormula* of_part[PART_COUNT] = {
        [PART_EMBEDDING] = &embedding,
        [PART_ENC_LAYER] = &layer,
        [PART_HEAD] = &head,
    };
    for (int part = 0; part < PART_COUNT; part++) {
        if (of_part[part] == NULL) { continue; }
        CostPartMode* about = &model->parts[mode][part];
        *(forward_only ? &about->forward_bytes : &about->stored_bytes) = *of_part[part];
    }
}

static void fill_bytes(CostModel* model, const ModelConfig* config, OpsContext* ops) {
    for (RecomputeMode mode = RECOMPUTE_NONE; mode < RECOMPUTE_COUNT; mode++) {
        if (mode == RECOMPUTE_SELECTIVE) { continue; }
        fill_part_bytes(model, mode, ask_kept, false, config, ops);
    }
    fill_part_bytes(model, RECOMPUTE_FULL, ask_dropped, true, config, ops);
    Model whole = probe(config, config->num_layers, true, true, ops);
    model->boundary_bytes = (CostFormula){0};
    model->scratch_bytes = (CostFormula){0};
    fit_line(&model->boundary_bytes, ask_boundary, &whole, FEATURE_ENC_TOKENS);
    fit_line(&model->scratch_bytes, ask_scratch, &whole, FEATURE_ENC_TOKENS);
    CostFormula rows = {0};
    fit_line(&rows, ask_scratch, &whole, FEATURE_SUPERVISED);
    model->scratch_bytes.curves[FEATURE_SUPERVISED] = rows.curves[FEATURE_SUPERVISED];
    model->scratch_bytes.constant += rows.constant;
}

// Per parameter: itself (floatX) and, in float32, its gradient, m, v, and its master where floatX is bf16;
// the replicas share the last three with zero_stage 1. Of a tied embedding the head has a copy of its own
// where it lies on another stage.
enum { OPTIMIZER_FLOATS = sizeof(floatX) < sizeof(float) ? 3 : 2 };

static void fill_state(CostModel* model, const Dynapipe* dp, const ModelConfig* config, int zero_stage) {
    int64_t C = config->channels;
    int64_t layer = 12 * C * C + 13 * C;
    int64_t wte = (int64_t)config->padded_vocab * C;
    int64_t values[PART_COUNT] = {0};
    values[PART_ENC_LAYER] = layer;
    values[PART_EMBEDDING] = wte + (int64_t)config->max_seq_len * C;
    values[PART_HEAD] = (dp->num_stages > 1 ? wte : 0) + 2 * C;
    model->tied_param_bytes = wte * (int64_t)sizeof(float);  // their gradients travel
    for (int part = 0; part < PART_COUNT; part++) {
        int64_t optimizer = OPTIMIZER_FLOATS * values[part];
        if (zero_stage > 0) { optimizer = (optimizer + dp->num_replicas - 1) / dp->num_replicas; }
        model->part_param_bytes[part] = values[part] * (int64_t)sizeof(float);
        model->part_state_bytes[part] =
            values[part] * (int64_t)sizeof(floatX) + (values[part] + optimizer) * (int64_t)sizeof(float);
    }
}

static bool is_gpu(const OpsContext* ops) {
    return ops_stream(ops) != NULL;
}

void dynapipe_llmc_signature(char* out, size_t out_bytes, const ModelConfig* config, const OpsContext* ops) {
    int n = snprintf(out, out_bytes, "gpt2 C %d NH %d Vp %d ", config->channels, config->num_heads,
                     config->padded_vocab);
    if (n < 0 || (size_t)n >= out_bytes) { return; }
    if (!is_gpu(ops)) {
        snprintf(out + n, out_bytes - (size_t)n, "threads %d", ops_num_threads(ops));
        return;
    }
    n += snprintf(out + n, out_bytes - (size_t)n, "%s ", sizeof(floatX) == 2 ? "bf16" : "fp32");
    const char* name = ops_device_name(ops);
    for (; *name != '\0' && (size_t)n + 1 < out_bytes; name++) {
        out[n++] = isalnum((unsigned char)*name) || *name == '-' || *name == '.' ? *name : '_';
        out[n] = '\0';
    }
}

// Bytes read and written per parameter of an update: zeroing, norm and AdamW (gradient read; parameter, m and
// v read and written) in float32, on bf16 the master in the parameter's place, and the parameter written.
static const double UPDATE_BYTES =
    9.0 * sizeof(float) + (sizeof(floatX) < sizeof(float) ? sizeof(floatX) : 0);

// Of its data sheet's rates, what kernels reach on large micro-batches, roughly; a layer's job is some eight
// launches.
static void fill_card_rates(CostAnalytic* out, const OpsContext* ops) {
    const CardRates* card = card_rates_find(ops_device_name(ops));
    double tflop_per_s = sizeof(floatX) == 2 ? card->bf16_tflop_per_s : card->fp32_tflop_per_s;
    out->flops_per_ns = 0.6 * tflop_per_s * 1e3;
    out->attention_flops_per_ns = 0.3 * tflop_per_s * 1e3;
    out->bytes_per_ns = 0.8 * card->memory_gb_per_s;
    out->launch_ns = 25e3;
    out->comm_bytes_per_ns = 0.8 * card->link_gb_per_s;
}

// On a CPU, rates of a present-day server core. All only set how the parts compare, until ./profile_costs has
// measured.
static CostAnalytic analytic(const Dynapipe* dp, const ModelConfig* config, int zero_stage,
                             const OpsContext* ops) {
    CostAnalytic about = {
        .num_layers = config->num_layers,
        .channels = config->channels,
        .num_heads = config->num_heads,
        .padded_vocab = config->padded_vocab,
        .max_tokens = config->max_seq_len,
        .bytes_per_value = (int32_t)sizeof(floatX),
        .flops_per_ns = 60.0 * dp->plan_threads,
        .attention_flops_per_ns = 15.0 * dp->plan_threads,
        .bytes_per_ns = 8.0,
        .launch_ns = 20e3,
        .comm_latency_ns = 20e3,
        .comm_bytes_per_ns = 3.0,
        .num_replicas = dp->num_replicas,
        .zero_stage = zero_stage,
    };
    if (is_gpu(ops)) { fill_card_rates(&about, ops); }
    return about;
}

int dynapipe_llmc_costs(DynapipeCosts** out, const Dynapipe* dp, const ModelConfig* config, int zero_stage) {
    DynapipeCosts* costs = calloc(1, sizeof(DynapipeCosts));
    if (costs == NULL) { return (int)FAIL(STATUS_NO_MEMORY, "no memory for a cost model"); }
    Status status = STATUS_OK;
    OpsContext* ops = ops_create(dp->plan_threads);
    if (dp->options.costs != NULL) {
        char signature[400];
        dynapipe_llmc_signature(signature, sizeof signature, config, ops);
        status = cost_model_load(&costs->model, dp->options.costs, signature);
    } else {
        CostAnalytic about = analytic(dp, config, zero_stage, ops);
        cost_model_analytic_gpt(&costs->model, &about);
        costs->model.update_ns_per_byte = UPDATE_BYTES / sizeof(float) / about.bytes_per_ns;
    }
    if (status != STATUS_OK) {
        ops_free(ops);
        free(costs);
        return (int)status;
    }
    costs->model.num_enc_layers = config->num_layers;  // a profile is of layers, however many there are
    costs->model.num_dec_layers = 0;
    fill_bytes(&costs->model, config, ops);
    ops_free(ops);
    fill_state(&costs->model, dp, config, zero_stage);
    if (zero_stage > 0) { costs->model.update_ns_per_byte /= dp->num_replicas; }
    *out = costs;
    return 0;
}
