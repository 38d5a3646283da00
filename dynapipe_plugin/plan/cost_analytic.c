/*
cost_analytic.c -- costs of a GPT-2 from its shape: a roofline that stands in until ./profile_costs has
measured.

    time  = launch + max(bytes of weights / bandwidth, flops / rate + bytes of activations / bandwidth)
    flops of one layer's forward: 24 C^2 per token (12 C^2 weights, multiply and add), 2 C T^2 per sequence
    (scores and values, causal half); B repeats the matrix products for inputs and 5/2 of attention (scores
again, dV, dP, dQ, dK), W repeats them for weights. Head: 2 C Vp per supervised row for each of F, B, W.

Bytes are those that llmc/gpt2 keeps (its header), token counts rounded up to 16.
*/
#include <string.h>

#include "cost_model.h"

static const double ROUND_UP = 16;  // llmc/gpt2 rounds rows of every buffer up to this

// Bytes that grow with a token count rounded up to 16: never less than what is allocated.
static void add_rounded_line(CostFormula* formula, CostFeature feature, double bytes_per_unit) {
    cost_formula_add_line(formula, feature, bytes_per_unit);
    formula->constant += ROUND_UP * bytes_per_unit;
}

static void layer_costs(CostPartMode* part, const CostAnalytic* a) {
    double C = a->channels, matmul_ns = 24 * C * C / a->flops_per_ns;
    double attention_ns = 2 * C / a->attention_flops_per_ns;
    double value = a->bytes_per_value, stored = 16 * C * value + (4 + a->num_heads) * 4.0;
    double traffic_ns = 2 * stored / a->bytes_per_ns;  // each is written once and read once
    double weights_ns = 12 * C * C * value / a->bytes_per_ns;
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        CostFormula* time = &part->time_ns[kind];
        time->constant = a->launch_ns;
        time->floor = a->launch_ns + weights_ns;
        cost_formula_add_line(time, FEATURE_ENC_TOKENS, matmul_ns + traffic_ns);
        double passes = kind == JOB_W ? 0 : kind == JOB_B ? 2.5 : 1;
        if (passes > 0) { cost_formula_add_line(time, FEATURE_ENC_SQUARES, passes * attention_ns); }
    }
    add_rounded_line(&part->stored_bytes, FEATURE_ENC_TOKENS, stored);
}

static void embedding_costs(CostPartMode* part, const CostAnalytic* a) {
    double bytes = (double)a->channels * a->bytes_per_value;
    static const double rows[JOB_COUNT] = {3, 0, 4, 3};  // read and written per token
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        if (rows[kind] > 0) {
            cost_formula_add_line(&part->time_ns[kind], FEATURE_ENC_TOKENS,
                                  rows[kind] * bytes / a->bytes_per_ns);
        }
    }
    add_rounded_line(&part->stored_bytes, FEATURE_ENC_TOKENS, bytes);
}

static void head_costs(CostPartMode* part, const CostAnalytic* a) {
    double C = a->channels, Vp = a->padded_vocab, value = a->bytes_per_value;
    double matmul_ns = 2 * C * Vp / a->flops_per_ns, weights_ns = C * Vp * value / a->bytes_per_ns;
    double traffic_ns = (3 * Vp + 4 * C) * value / a->bytes_per_ns;  // softmax passes; gathered rows, norm
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        CostFormula* time = &part->time_ns[kind];
        time->constant = a->launch_ns;
        time->floor = a->launch_ns + weights_ns;
        cost_formula_add_line(time, FEATURE_SUPERVISED, matmul_ns + traffic_ns);
    }
    add_rounded_line(&part->stored_bytes, FEATURE_SUPERVISED, (Vp + 2 * C) * value + 4 * 4.0);
}

// Without recomputation R does not exist; with it, a forward keeps one layer's slot at a time, plus what head
// and embedding need, and everything from R on is as without.
static void modes_finish(CostModel* out) {
    memcpy(out->parts[RECOMPUTE_FULL], out->parts[RECOMPUTE_NONE], sizeof out->parts[RECOMPUTE_FULL]);
    out->recompute_is_job[RECOMPUTE_FULL] = true;
    for (int part = 0; part < PART_COUNT; part++) {
        CostPartMode *none = &out->parts[RECOMPUTE_NONE][part], *full = &out->parts[RECOMPUTE_FULL][part];
        none->offered = full->offered = true;
        memset(&none->time_ns[JOB_R], 0, sizeof none->time_ns[JOB_R]);
        if (part != PART_ENC_LAYER) { full->forward_bytes = full->stored_bytes; }
    }
    out->stage_forward_bytes = out->parts[RECOMPUTE_NONE][PART_ENC_LAYER].stored_bytes;
}

static int64_t state_bytes(const CostAnalytic* a, int64_t num_params) {
    int64_t shards = a->zero_stage >= 1 && a->num_replicas > 1 ? a->num_replicas : 1;
    int64_t moments = (2 * num_params + shards - 1) / shards;  // Adam's m and v, float32
    return 2 * num_params * a->bytes_per_value + 4 * moments;
}

void cost_model_analytic_gpt(CostModel* out, const CostAnalytic* a) {
    memset(out, 0, sizeof *out);
    int64_t C = a->channels;
    double value = a->bytes_per_value;
    out->num_enc_layers = a->num_layers;
    CostPartMode* parts = out->parts[RECOMPUTE_NONE];
    embedding_costs(&parts[PART_EMBEDDING], a);
    layer_costs(&parts[PART_ENC_LAYER], a);
    head_costs(&parts[PART_HEAD], a);
    modes_finish(out);
    add_rounded_line(&out->stage_stored_bytes, FEATURE_ENC_TOKENS, 3 * (double)C * value);  // spare qkv slot
    add_rounded_line(&out->stage_forward_bytes, FEATURE_ENC_TOKENS, 3 * (double)C * value);
    add_rounded_line(&out->boundary_bytes, FEATURE_ENC_TOKENS, (double)C * value);
    add_rounded_line(&out->scratch_bytes, FEATURE_ENC_TOKENS, 12 * (double)C * value);
    add_rounded_line(&out->scratch_bytes, FEATURE_SUPERVISED, 2 * (double)C * value);
    out->comm_latency_ns = a->comm_latency_ns;
    out->comm_bytes_per_ns = a->comm_bytes_per_ns;
    out->reduce_bytes_per_ns = a->comm_bytes_per_ns;
    int64_t params[PART_COUNT] = {
        [PART_EMBEDDING] = (a->padded_vocab + (int64_t)a->max_tokens) * C,
        [PART_ENC_LAYER] = 12 * C * C + 13 * C,
        [PART_HEAD] = a->padded_vocab * C + 2 * C,  // the last stage's copy of the tied embedding, and ln_f
    };
    for (int part = 0; part < PART_COUNT; part++) {
        out->part_param_bytes[part] = params[part] * a->bytes_per_value;
        out->part_state_bytes[part] = state_bytes(a, params[part]);
    }
}
