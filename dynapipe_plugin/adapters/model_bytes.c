#include "model_bytes.h"

#include <math.h>
#include <string.h>

// --- slices to ask -----------------------------------------------------------------------------------------

// Of a model with SAMPLE layers in each stack (bytes of one do not depend on how many there are), layers
// [begin, end) without parameters: good for asking.
enum { SAMPLE = 4 };

static Model probe(const ModelConfig* config, int begin, int end, bool is_last, OpsContext* ops) {
    Model model = {.config = *config, .layer_begin = begin, .layer_end = end, .is_first = begin == 0};
    model.config.num_layers = SAMPLE;
    model.config.num_dec_layers = config->num_dec_layers > 0 ? SAMPLE : 0;
    model.is_last = is_last;
    model.ops = ops;
    return model;
}

// --- bytes as straight lines -------------------------------------------------------------------------------

// constant + sum of slope * count, in bytes.
typedef struct {
    double constant, slope[FEATURE_COUNT];
} Lines;

typedef int64_t Ask(const Model* model, const ModelBatch* counts);

static int64_t ask_kept(const Model* model, const ModelBatch* counts) {
    return model->config.kind->acts_bytes(model, counts, MODEL_KEEP | MODEL_HEAD);
}

static int64_t ask_dropped(const Model* model, const ModelBatch* counts) {
    return model->config.kind->acts_bytes(model, counts, 0);
}

static int64_t ask_scratch(const Model* model, const ModelBatch* counts) {
    return model->config.kind->scratch_bytes(model, counts);
}

static int64_t ask_boundary_behind(const Model* model, const ModelBatch* counts) {
    return model->config.kind->boundary_bytes(model, counts, 1);
}

// All tokens may be of one sequence.
static void set_count(ModelBatch* counts, CostFeature feature, int count) {
    switch (feature) {
        case FEATURE_SEQS: counts->num_seqs = count; break;
        case FEATURE_ENC_TOKENS: counts->num_tokens = counts->max_seq_tokens = count; break;
        case FEATURE_DEC_TOKENS: counts->num_dec_tokens = counts->max_dec_seq_tokens = count; break;
        default: counts->num_rows = count;
    }
}

static double ask_at(Ask* ask, const Model* model, ModelBatch others, CostFeature feature, int count) {
    set_count(&others, feature, count);
    return (double)ask(model, &others);
}

// One feature at a time: bytes are sums, or the largest of several sums, so that together they need no more.
// The slope is that of many, with nothing of the others or with some of each, whichever is steeper (attention
// has shares of queries only where there are many keys). To the constant goes what there is above that line
// at few (a part of constant size, the embedding's sort on a GPU, may be the largest) and the model's
// rounding.
static void fit_feature(Lines* out, Ask* ask, const Model* model, CostFeature feature,
                        const ModelBatch* some) {
    enum { MANY = 1 << 20, ROUNDING = 16 };
    const ModelBatch others[2] = {{0}, *some};
    double slope = 0, above = 0;
    for (int i = 0; i < 2; i++) {
        double rise =
            ask_at(ask, model, others[i], feature, MANY) - ask_at(ask, model, others[i], feature, MANY / 2);
        slope = fmax(slope, rise / (MANY / 2));
    }
    const double nothing = ask_at(ask, model, others[0], feature, 0);
    for (int power = ROUNDING; power <= MANY; power *= 2) {
        for (int count = power; count <= power + ROUNDING; count += ROUNDING) {  // at a threshold, and beyond
            double more = ask_at(ask, model, others[0], feature, count) - nothing;
            above = fmax(above, more - slope * count);
        }
    }
    out->slope[feature] = slope;
    out->constant += above + slope * ROUNDING;
}

static Lines fit(Ask* ask, Model model) {
    static const CostFeature features[] = {FEATURE_SEQS, FEATURE_ENC_TOKENS, FEATURE_DEC_TOKENS,
                                           FEATURE_SUPERVISED};
    enum { SOME = 4096 };
    ModelBatch none = {0}, some = {0};
    Lines lines = {.constant = (double)ask(&model, &none)};
    for (int i = 0; i < 4; i++) { set_count(&some, features[i], SOME); }
    if (!model.config.kind->has_decoder) { set_count(&some, FEATURE_DEC_TOKENS, 0); }
    for (int i = 0; i < 4; i++) { fit_feature(&lines, ask, &model, features[i], &some); }
    return lines;
}

static Lines minus(Lines a, Lines b) {
    Lines out = {.constant = fmax(a.constant - b.constant, 0)};
    for (int f = 0; f < FEATURE_COUNT; f++) { out.slope[f] = fmax(a.slope[f] - b.slope[f], 0); }
    return out;
}

static Lines larger(Lines a, Lines b) {
    Lines out = {.constant = fmax(a.constant, b.constant)};
    for (int f = 0; f < FEATURE_COUNT; f++) { out.slope[f] = fmax(a.slope[f], b.slope[f]); }
    return out;
}

static CostFormula formula_of(Lines lines) {
    CostFormula out = {.constant = lines.constant};
    for (int f = 0; f < FEATURE_COUNT; f++) {
        if (lines.slope[f] > 0) { cost_formula_add_line(&out, (CostFeature)f, lines.slope[f]); }
    }
    return out;
}

// --- pieces from slices ------------------------------------------------------------------------------------

typedef struct {
    Lines piece[PIECE_COUNT];
    Lines stage;  // on every stage
} Pieces;

static void decoder_pieces(Pieces* out, Ask* ask, const ModelConfig* config, OpsContext* ops) {
    const int E = SAMPLE, L = 2 * SAMPLE;
    Lines enc = fit(ask, probe(config, 1, 2, false, ops));
    Lines one = fit(ask, probe(config, E + 1, E + 2, false, ops));
    Lines first = fit(ask, probe(config, E, E + 1, false, ops));
    Lines end = fit(ask, probe(config, E - 1, E, false, ops));
    Lines both = fit(ask, probe(config, E - 1, E + 1, false, ops));
    Lines last = fit(ask, probe(config, L - 1, L, true, ops));
    Lines alone = fit(ask, probe(config, L, L, true, ops));
    Lines layer = minus(fit(ask, probe(config, E + 1, E + 3, false, ops)), one);
    out->piece[PART_DEC_LAYER] = layer;
    out->piece[ONCE_DEC] = minus(larger(one, first), layer);
    out->piece[ONCE_ENC_END] = larger(minus(end, enc), minus(minus(both, enc), larger(one, first)));
    out->piece[PART_HEAD] = larger(minus(last, one), alone);
}

// One stack: every stage has what a slice has once. (Of the head alone that is too much.) Two: as its layers.
static Pieces pieces_make(Ask* ask, const ModelConfig* config, OpsContext* ops) {
    Pieces out = {0};
    Lines one = fit(ask, probe(config, 1, 2, false, ops));
    Lines layer = minus(fit(ask, probe(config, 1, 3, false, ops)), one);
    out.piece[PART_ENC_LAYER] = layer;
    out.piece[PART_EMBEDDING] = minus(fit(ask, probe(config, 0, 1, false, ops)), one);
    if (config->kind->has_decoder) {
        out.piece[ONCE_ENC] = minus(one, layer);
        decoder_pieces(&out, ask, config, ops);
    } else {
        out.stage = minus(one, layer);
        out.piece[PART_HEAD] = minus(fit(ask, probe(config, SAMPLE - 1, SAMPLE, true, ops)), one);
    }
    return out;
}

static void fill_stored(CostModel* out, const Pieces* kept, const Pieces* dropped) {
    out->stage_stored_bytes = formula_of(kept->stage);
    out->stage_forward_bytes = formula_of(dropped->stage);
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        CostFormula stored = formula_of(kept->piece[piece]), forward = formula_of(dropped->piece[piece]);
        if (piece >= PART_COUNT) {
            out->once_stored_bytes[piece - PART_COUNT] = stored;
            out->once_forward_bytes[piece - PART_COUNT] = forward;
            continue;
        }
        out->parts[RECOMPUTE_NONE][piece].stored_bytes = out->parts[RECOMPUTE_FULL][piece].stored_bytes =
            stored;
        out->parts[RECOMPUTE_FULL][piece].forward_bytes = forward;
    }
}

void model_bytes_fill(CostModel* out, const ModelConfig* config, OpsContext* ops) {
    const bool has_dec = config->kind->has_decoder;
    Pieces kept = pieces_make(ask_kept, config, ops), dropped = pieces_make(ask_dropped, config, ops);
    fill_stored(out, &kept, &dropped);
    Lines boundary = fit(ask_boundary_behind, probe(config, 1, 2, false, ops)), dec = {0};
    if (has_dec) {
        dec = minus(fit(ask_boundary_behind, probe(config, SAMPLE + 1, SAMPLE + 2, false, ops)), boundary);
    }
    out->boundary_bytes = formula_of(boundary);
    out->dec_boundary_bytes = formula_of(dec);
    out->scratch_bytes =
        formula_of(fit(ask_scratch, probe(config, 0, has_dec ? 2 * SAMPLE : SAMPLE, true, ops)));
}

// --- parameters --------------------------------------------------------------------------------------------

static int64_t slice_values(const ModelConfig* config, int begin, int end, bool is_last) {
    Model slice = probe(config, begin, end, is_last, NULL);
    const ModelKind* kind = config->kind;
    int64_t num_values = 0;
    for (int t = 0; t < kind->num_tensors; t++) {
        TensorInfo info = kind->tensor(config, t);
        int copies = info.place == TENSOR_PER_LAYER       ? model_enc_end(&slice) - model_enc_begin(&slice)
                     : info.place == TENSOR_PER_DEC_LAYER ? model_dec_end(&slice) - model_dec_begin(&slice)
                                                          : kind->has_tensor(&slice, t);
        num_values += copies * info.rows * info.cols;
    }
    return num_values;
}

// Values of the tied tensors that this slice and (`other`) that one have.
static int64_t tied_values(const ModelConfig* config, Model slice, Model other, bool others_too) {
    const ModelKind* kind = config->kind;
    int64_t num_values = 0;
    for (int t = 0; t < kind->num_tensors; t++) {
        TensorInfo info = kind->tensor(config, t);
        if (info.place != TENSOR_WHOLE || info.rows == 0 || !kind->is_tied(config, t)) { continue; }
        bool is_in = kind->has_tensor(&slice, t) && kind->has_tensor(&other, t) == others_too;
        num_values += is_in ? info.rows * info.cols : 0;
    }
    return num_values;
}

static void decoder_values(int64_t values[PIECE_COUNT], const ModelConfig* config) {
    const int E = SAMPLE, L = 2 * SAMPLE;
    int64_t one = slice_values(config, E + 1, E + 2, false);
    values[PART_DEC_LAYER] = slice_values(config, E + 1, E + 3, false) - one;
    values[ONCE_DEC] = one - values[PART_DEC_LAYER];
    values[ONCE_ENC_END] = slice_values(config, E - 1, E, false) - slice_values(config, 1, 2, false);
    values[PART_HEAD] = slice_values(config, L, L, true);
}

void model_bytes_fill_state(CostModel* out, const ModelConfig* config, int32_t optimizer_floats,
                            int32_t num_replicas, int32_t zero_stage) {
    int64_t values[PIECE_COUNT] = {0};
    const int64_t one = slice_values(config, 1, 2, false), shards = zero_stage > 0 ? num_replicas : 1;
    const bool has_dec = config->kind->has_decoder;
    const int L = has_dec ? 2 * SAMPLE : SAMPLE;
    values[PART_ENC_LAYER] = slice_values(config, 1, 3, false) - one;
    values[ONCE_ENC] = one - values[PART_ENC_LAYER];
    values[PART_EMBEDDING] = slice_values(config, 0, 1, false) - one;
    values[PART_HEAD] = slice_values(config, L, L, true);
    if (has_dec) { decoder_values(values, config); }
    for (int piece = 0; piece < PIECE_COUNT; piece++) {
        int64_t optimizer = (optimizer_floats * values[piece] + shards - 1) / shards;
        out->part_param_bytes[piece] = values[piece] * (int64_t)sizeof(float);
        out->part_state_bytes[piece] =
            values[piece] * (int64_t)sizeof(floatX) + (values[piece] + optimizer) * (int64_t)sizeof(float);
    }
    // What the first slice shares with others, but not with those in the middle of its stack, is the
    // embedding; what it shares with these goes round in the stack.
    Model first = probe(config, 0, 1, false, NULL), middle = probe(config, 1, 2, false, NULL);
    Model head = probe(config, L, L, true, NULL);
    int64_t of_head = tied_values(config, first, head, true);
    out->tied_param_bytes = tied_values(config, first, middle, false) * (int64_t)sizeof(float);
    out->tied_stack_bytes = tied_values(config, first, middle, true) * (int64_t)sizeof(float);
    out->tied_head_state_bytes = of_head * (int64_t)sizeof(floatX) +
                                 (of_head + optimizer_floats * of_head / shards) * (int64_t)sizeof(float);
}
