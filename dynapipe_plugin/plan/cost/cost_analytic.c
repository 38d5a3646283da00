/*
cost_analytic.c -- costs of a GPT-2 or a T5 from its shape: a roofline that stands in where nobody
has measured.

    time  = launch + max(bytes of weights / bandwidth, flops / rate + bytes of activations / bandwidth)

Flops of one layer's forward, multiply and add, I = heads * head size, F2 = F, or 2 F where gated:
    GPT-2     24 C^2 per token, 2 C T^2 per sequence (scores and values, causal half)
    encoder   2 (4 C I + C F2 + F C) per token, 4 I T^2 per sequence
    decoder   2 (6 C I + C F2 + F C) per token, 2 I T^2 and 4 I T_enc T per sequence
              4 C I per *encoder* token (keys and values of cross-attention)
B repeats the matrix products for inputs and 5/2 of attention (scores again, dV, dP, dQ, dK), W repeats them
for weights. Head: 2 C Vp per supervised row for each of F, B, W. The decoder's embedding is priced with the
encoder's.

Bytes are those that llmc/gpt2 and llmc/t5 keep (gpt2_acts.h, t5_acts.h), counts rounded up to 16.
*/
#include <math.h>
#include <string.h>

#include "cost_model.h"

static const double ROUND_UP = 16;  // llmc/gpt2 rounds rows of every buffer up to this

// Bytes that grow with a token count rounded up to 16: never less than what is allocated.
static void add_rounded_line(CostFormula* formula, CostFeature feature, double bytes_per_unit) {
    cost_formula_add_line(formula, feature, bytes_per_unit);
    formula->constant += ROUND_UP * bytes_per_unit;
}

// What a layer computes and keeps, per token of its own side and of the encoder's.
typedef struct {
    double flops, enc_flops;           // of matrix products
    double square_flops, cross_flops;  // of attention, per squared length and cross product
    double stored_bytes, enc_stored_bytes;
    double num_params;
    CostFeature tokens, squares;
} Layer;

static void layer_costs(CostPartMode* part, const CostAnalytic* a, const Layer* layer) {
    double weights_ns = layer->num_params * a->bytes_per_value / a->bytes_per_ns;
    // what is kept is written once and read once
    double token_ns = layer->flops / a->flops_per_ns + 2 * layer->stored_bytes / a->bytes_per_ns;
    double enc_ns = layer->enc_flops / a->flops_per_ns + 2 * layer->enc_stored_bytes / a->bytes_per_ns;
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        CostFormula* time = &part->time_ns[kind];
        time->constant = a->launch_ns;
        time->floor = a->launch_ns + weights_ns;
        cost_formula_add_line(time, layer->tokens, token_ns);
        if (enc_ns > 0) { cost_formula_add_line(time, FEATURE_ENC_TOKENS, enc_ns); }
        if (kind == JOB_W) { continue; }
        double pass_ns = (kind == JOB_B ? 2.5 : 1) / a->attention_flops_per_ns;
        cost_formula_add_line(time, layer->squares, pass_ns * layer->square_flops);
        if (layer->cross_flops > 0) {
            cost_formula_add_line(time, FEATURE_CROSS_PRODUCTS, pass_ns * layer->cross_flops);
        }
    }
    add_rounded_line(&part->stored_bytes, layer->tokens, layer->stored_bytes);
    if (layer->enc_stored_bytes > 0) {
        add_rounded_line(&part->stored_bytes, FEATURE_ENC_TOKENS, layer->enc_stored_bytes);
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
    double traffic_ns = (3 * Vp + 4 * C) * value / a->bytes_per_ns;  // softmax passes; gathered rows, norm
    for (int kind = 0; kind < JOB_COUNT; kind++) {
        CostFormula* time = &part->time_ns[kind];
        time->constant = a->launch_ns;
        time->floor = a->launch_ns + weights_ns;
        cost_formula_add_line(time, FEATURE_SUPERVISED, matmul_ns + traffic_ns);
    }
    add_rounded_line(&part->stored_bytes, FEATURE_SUPERVISED, (Vp + 2 * C) * value + floats_per_row * 4);
}

// Without recomputation R does not exist; with it, everything from R on is as without. What a forward that
// drops activations needs, the model's file says.
static void modes_finish(CostModel* out) {
    memcpy(out->parts[RECOMPUTE_FULL], out->parts[RECOMPUTE_NONE], sizeof out->parts[RECOMPUTE_FULL]);
    out->recompute_is_job[RECOMPUTE_FULL] = true;
    for (int part = 0; part < PART_COUNT; part++) {
        CostPartMode *none = &out->parts[RECOMPUTE_NONE][part], *full = &out->parts[RECOMPUTE_FULL][part];
        none->offered = full->offered = true;
        memset(&none->time_ns[JOB_R], 0, sizeof none->time_ns[JOB_R]);
    }
}

static int64_t state_bytes(const CostAnalytic* a, int64_t num_params) {
    int64_t shards = a->zero_stage >= 1 && a->num_replicas > 1 ? a->num_replicas : 1;
    int64_t moments = (2 * num_params + shards - 1) / shards;  // Adam's m and v, float32
    return 2 * num_params * a->bytes_per_value + 4 * moments;
}

static void machine_costs(CostModel* out, const CostAnalytic* a, const int64_t params[PIECE_COUNT]) {
    out->num_enc_layers = a->num_layers;
    out->num_dec_layers = a->num_dec_layers;
    out->comm_latency_ns = a->comm_latency_ns;
    out->comm_bytes_per_ns = a->comm_bytes_per_ns;
    out->reduce_bytes_per_ns = a->comm_bytes_per_ns;
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        out->part_param_bytes[piece] = params[piece] * a->bytes_per_value;
        out->part_state_bytes[piece] = state_bytes(a, params[piece]);
    }
}

// A forward keeps one layer's slot at a time, plus what head and embedding need.
void cost_model_analytic_gpt(CostModel* out, const CostAnalytic* a) {
    static const double embedding_rows[JOB_COUNT] = {3, 0, 4, 3};
    memset(out, 0, sizeof *out);
    const double C = a->channels, value = a->bytes_per_value;
    CostPartMode *parts = out->parts[RECOMPUTE_NONE], *full = out->parts[RECOMPUTE_FULL];
    const Layer layer = {.flops = 24 * C * C,
                         .square_flops = 2 * C,
                         .stored_bytes = 16 * C * value + (4 + a->num_heads) * 4.0,
                         .num_params = 12 * C * C,
                         .tokens = FEATURE_ENC_TOKENS,
                         .squares = FEATURE_ENC_SQUARES};
    embedding_costs(&parts[PART_EMBEDDING], a, FEATURE_ENC_TOKENS, embedding_rows);
    add_rounded_line(&parts[PART_EMBEDDING].stored_bytes, FEATURE_ENC_TOKENS, C * value);
    layer_costs(&parts[PART_ENC_LAYER], a, &layer);
    head_costs(&parts[PART_HEAD], a, 4);
    modes_finish(out);
    full[PART_EMBEDDING].forward_bytes = full[PART_EMBEDDING].stored_bytes;
    full[PART_HEAD].forward_bytes = full[PART_HEAD].stored_bytes;
    full[PART_DEC_LAYER].forward_bytes = full[PART_DEC_LAYER].stored_bytes;
    out->stage_forward_bytes = parts[PART_ENC_LAYER].stored_bytes;
    add_rounded_line(&out->stage_stored_bytes, FEATURE_ENC_TOKENS, 3 * C * value);  // spare qkv slot
    add_rounded_line(&out->stage_forward_bytes, FEATURE_ENC_TOKENS, 3 * C * value);
    add_rounded_line(&out->boundary_bytes, FEATURE_ENC_TOKENS, C * value);
    add_rounded_line(&out->scratch_bytes, FEATURE_ENC_TOKENS, 12 * C * value);
    add_rounded_line(&out->scratch_bytes, FEATURE_SUPERVISED, 2 * C * value);
    const int64_t channels = a->channels, matrix = channels * channels;
    const int64_t params[PIECE_COUNT] = {
        [PART_EMBEDDING] = (a->padded_vocab + (int64_t)a->max_tokens) * channels,
        [PART_ENC_LAYER] = 12 * matrix + 13 * channels,
        // the last stage's copy of the tied embedding, and ln_f
        [PART_HEAD] = a->padded_vocab * channels + 2 * channels,
    };
    machine_costs(out, a, params);
}

// --- T5 ----------------------------------------------------------------------------------------------------

static const double NUM_BUCKETS = 32;  // of the position bias

static void t5_layers(CostPartMode* parts, const CostAnalytic* a) {
    const double C = a->channels, F = a->ffn_channels, F2 = a->gated ? 2 * F : F, value = a->bytes_per_value;
    const double I = (double)a->num_heads * a->head_size, ffn = C * F2 + F * C;
    // norms, qkv, attention's output, feed-forward before and behind its activation, the stream twice
    const double stored = (4 * C + 4 * I + F2 + F) * value;
    const Layer enc = {.flops = 2 * (4 * C * I + ffn),
                       .square_flops = 4 * I,
                       .stored_bytes = stored + (a->num_heads + 2) * 4.0,
                       .num_params = 4 * C * I + ffn,
                       .tokens = FEATURE_ENC_TOKENS,
                       .squares = FEATURE_ENC_SQUARES};
    const Layer dec = {.flops = 2 * (6 * C * I + ffn),
                       .enc_flops = 4 * C * I,
                       .square_flops = 2 * I,
                       .cross_flops = 4 * I,
                       .stored_bytes = stored + (2 * C + 2 * I) * value + (2 * a->num_heads + 3) * 4.0,
                       .enc_stored_bytes = 2 * I * value,
                       .num_params = 8 * C * I + ffn,
                       .tokens = FEATURE_DEC_TOKENS,
                       .squares = FEATURE_DEC_SQUARES};
    layer_costs(&parts[PART_ENC_LAYER], a, &enc);
    layer_costs(&parts[PART_DEC_LAYER], a, &dec);
}

// Spare slots of a stack, and what its forward has where nothing is kept.
static void t5_stage_bytes(CostModel* out, const CostAnalytic* a) {
    const double C = a->channels, F = a->ffn_channels, F2 = a->gated ? 2 * F : F, value = a->bytes_per_value;
    const double I = (double)a->num_heads * a->head_size, heads = (a->num_heads + 1) * 4.0;
    const double shared = (3 * C + fmax(F2, 4 * I)) * value + heads;
    CostFormula *enc = &out->once_stored_bytes[ONCE_ENC - PART_COUNT],
                *dec = &out->once_stored_bytes[ONCE_DEC - PART_COUNT],
                *enc_end = &out->once_stored_bytes[ONCE_ENC_END - PART_COUNT],
                *enc_once = &out->once_forward_bytes[ONCE_ENC - PART_COUNT],
                *dec_once = &out->once_forward_bytes[ONCE_DEC - PART_COUNT],
                *end_once = &out->once_forward_bytes[ONCE_ENC_END - PART_COUNT];
    add_rounded_line(enc, FEATURE_ENC_TOKENS, (3 * I + C) * value);
    add_rounded_line(dec, FEATURE_DEC_TOKENS, (4 * I + 3 * C) * value);
    add_rounded_line(dec, FEATURE_ENC_TOKENS, (2 * I + C) * value);  // keys and values; enc_out
    add_rounded_line(enc_end, FEATURE_ENC_TOKENS, C * value + 4);
    add_rounded_line(enc_once, FEATURE_ENC_TOKENS, shared);
    add_rounded_line(dec_once, FEATURE_DEC_TOKENS, shared + C * value);
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

void cost_model_analytic_t5(CostModel* out, const CostAnalytic* a) {
    static const double embedding_rows[JOB_COUNT] = {2, 0, 3, 2};
    memset(out, 0, sizeof *out);
    const double C = a->channels, value = a->bytes_per_value;
    CostPartMode* parts = out->parts[RECOMPUTE_NONE];
    embedding_costs(&parts[PART_EMBEDDING], a, FEATURE_ENC_TOKENS, embedding_rows);
    embedding_costs(&parts[PART_EMBEDDING], a, FEATURE_DEC_TOKENS, embedding_rows);
    add_rounded_line(&parts[PART_EMBEDDING].stored_bytes, FEATURE_ENC_TOKENS, C * value);
    t5_layers(parts, a);
    head_costs(&parts[PART_HEAD], a, 2);
    add_rounded_line(&parts[PART_HEAD].stored_bytes, FEATURE_DEC_TOKENS, C * value);
    modes_finish(out);
    t5_stage_bytes(out, a);
    const int64_t channels = a->channels, inner = (int64_t)a->num_heads * a->head_size;
    const int64_t ffn = channels * a->ffn_channels * (a->gated ? 3 : 2);
    const int64_t embedding = a->padded_vocab * channels, biases = (int64_t)NUM_BUCKETS * a->num_heads;
    const int64_t params[PIECE_COUNT] = {
        [PART_EMBEDDING] = embedding,
        [PART_ENC_LAYER] = 4 * channels * inner + ffn + 2 * channels,
        [PART_DEC_LAYER] = 8 * channels * inner + ffn + 3 * channels,
        [PART_HEAD] = embedding + channels,  // tied or not
        [ONCE_ENC] = biases,
        [ONCE_DEC] = biases,
        [ONCE_ENC_END] = channels,
    };
    machine_costs(out, a, params);
    out->tied_param_bytes = out->part_param_bytes[PART_EMBEDDING];
    out->tied_stack_bytes = out->part_param_bytes[ONCE_ENC];
    out->tied_head_state_bytes = a->tied_head ? out->part_state_bytes[PART_EMBEDDING] : 0;
}

void cost_model_analytic(CostModel* out, const CostAnalytic* about) {
    (about->num_dec_layers > 0 ? cost_model_analytic_t5 : cost_model_analytic_gpt)(out, about);
}
