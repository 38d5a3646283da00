#include "measure_points.h"

enum { SHORT_TOKENS = 32 };

typedef enum { ENCODER, DECODER } Side;  // a model with one stack has the first

// --- shapes ------------------------------------------------------------------------------------------------

static CostFeature tokens_of(Side side) {
    return side == ENCODER ? FEATURE_ENC_TOKENS : FEATURE_DEC_TOKENS;
}

// Windows of seq_tokens; the other side's, where there is one, have other_seq_tokens each.
static MeasureShape side_shape(const Measure* m, Side side, int32_t num_tokens, int32_t seq_tokens,
                               int32_t other_seq_tokens) {
    int32_t longest = side == ENCODER ? m->lengths.seq_tokens : m->lengths.target_tokens;
    int32_t window = seq_tokens < num_tokens ? seq_tokens : num_tokens;
    window = window < longest ? window : longest;
    int32_t num_seqs = (num_tokens + window - 1) / window;
    MeasureSide one = {num_seqs, window, window}, other = {num_seqs, other_seq_tokens, other_seq_tokens};
    MeasureShape shape = {.enc = side == ENCODER ? one : other, .dec = side == ENCODER ? other : one};
    if (m->lengths.target_tokens == 0) { shape.dec = (MeasureSide){0}; }
    measure_shape_fit(&shape, m->blocks, &m->lengths);
    return shape;
}

double measure_points_feature(const MeasureShape* shape, CostFeature feature) {
    double value[FEATURE_COUNT];
    DynapipeBatch batch;
    measure_shape_counts(&batch, shape);
    MbShape features = measure_batch_shape(&batch);
    cost_shape_features(value, &features);
    return value[feature];
}

// Token counts to measure: `first`, twice that and so on, half steps between from 4 * 32 (a GPU: 4 * 64) on,
// and the largest. A GPU is not filled by fewer than 64 tokens: one time for all of them.
typedef struct {
    int num_counts;
    int32_t tokens[COST_MAX_KNOTS];
    bool is_between[COST_MAX_KNOTS];
} Counts;

static void add_count(Counts* counts, int32_t tokens, bool is_between) {
    if (counts->num_counts == COST_MAX_KNOTS - (is_between ? 2 : 1)) { return; }
    counts->is_between[counts->num_counts] = is_between;
    counts->tokens[counts->num_counts++] = tokens;
}

static Counts token_counts(const Measure* m, int32_t max_tokens) {
    Counts counts = {0};
    int32_t first = measure_is_gpu(m) ? 2 * SHORT_TOKENS : 8;
    int32_t halves_from = first < SHORT_TOKENS ? 4 * SHORT_TOKENS : 4 * first;
    for (int32_t t = first; t < max_tokens && t < 1 << 29; t *= 2) {
        add_count(&counts, t, false);
        if (t >= halves_from && t + t / 2 < max_tokens) { add_count(&counts, t + t / 2, true); }
    }
    if (counts.num_counts == COST_MAX_KNOTS - 1) { counts.num_counts--; }
    add_count(&counts, max_tokens, false);
    return counts;
}

static void add_point(MeasurePoints* p, MeasureShape shape, CostFeature feature, const Counts* counts,
                      int i) {
    enum { SMALL_TOKENS = 4 * SHORT_TOKENS };
    double x = measure_points_feature(&shape, feature);
    for (int32_t k = 0; k < p->num_points; k++) {  // padding made it one that there is
        const MeasuredPoint* point = &p->points[k];
        if (point->feature == feature && measure_points_feature(&point->shape, feature) >= x) { return; }
    }
    if (p->num_points == MEASURE_MAX_POINTS) { return; }
    p->points[p->num_points++] = (MeasuredPoint){.shape = shape,
                                                 .feature = feature,
                                                 .is_small = counts->tokens[i] <= SMALL_TOKENS,
                                                 .is_between = counts->is_between[i]};
}

static void add_tokens(MeasurePoints* p, const Measure* m, Side side, bool with_between) {
    Counts counts = token_counts(m, m->max_tokens);
    for (int i = 0; i < counts.num_counts; i++) {
        if (counts.is_between[i] && !with_between) { continue; }
        add_point(p, side_shape(m, side, counts.tokens[i], SHORT_TOKENS, 1), tokens_of(side), &counts, i);
    }
}

// A long window, of which one does not fill a GPU: as many as a micro-batch holds.
static int32_t num_long(const Measure* m, int32_t seq_tokens) {
    int32_t num_seqs = m->max_tokens / seq_tokens;
    return measure_is_gpu(m) && num_seqs > 1 ? num_seqs : 1;
}

static void add_squares(MeasurePoints* p, const Measure* m, Side side) {
    int32_t longest = side == ENCODER ? m->lengths.seq_tokens : m->lengths.target_tokens;
    Counts counts = token_counts(m, longest);
    for (int i = 0; i < counts.num_counts; i++) {
        int32_t S = counts.tokens[i];
        if (S < 2 * SHORT_TOKENS) { continue; }
        add_point(p, side_shape(m, side, num_long(m, S) * S, S, 1),
                  side == ENCODER ? FEATURE_ENC_SQUARES : FEATURE_DEC_SQUARES, &counts, i);
    }
}

// Keys and values, of encoder tokens, in every decoder layer; scores, of long windows on both sides.
static void add_cross(MeasurePoints* p, const Measure* m) {
    Counts counts = token_counts(m, m->max_tokens);
    for (int i = 0; i < counts.num_counts; i++) {
        if (counts.tokens[i] < SHORT_TOKENS) { continue; }
        add_point(p, side_shape(m, ENCODER, counts.tokens[i], SHORT_TOKENS, 1), FEATURE_ENC_TOKENS, &counts,
                  i);
    }
    counts = token_counts(m, m->lengths.seq_tokens);
    for (int i = 0; i < counts.num_counts; i++) {
        int32_t S = counts.tokens[i], D = m->lengths.target_tokens < S ? m->lengths.target_tokens : S;
        if (S < 2 * SHORT_TOKENS) { continue; }
        add_point(p, side_shape(m, ENCODER, num_long(m, S) * S, S, D), FEATURE_CROSS_PRODUCTS, &counts, i);
    }
}

// Per token: the gradient of the head's inputs is zero but for the supervised rows. The rest is per row.
static void add_head(MeasurePoints* p, const Measure* m, Side side) {
    Counts counts = token_counts(m, m->max_tokens);
    MeasureShape all = side_shape(m, side, m->max_tokens, SHORT_TOKENS, 1);
    add_point(p, all, tokens_of(side), &counts, 0);
    for (int i = 0; i < counts.num_counts; i++) {
        MeasureShape shape = side_shape(m, side, counts.tokens[i], SHORT_TOKENS, 1);
        shape.num_rows = measure_side_tokens(side == ENCODER ? &shape.enc : &shape.dec);
        add_point(p, shape, FEATURE_SUPERVISED, &counts, i);
    }
}

// --- ranges ------------------------------------------------------------------------------------------------

// Layer `second` of a stack where that can be a range, else its first with the embedding, else all there is.
static MeasureSlice layer_slice(const DynapipeBlocks_v1* blocks, int32_t first) {
    MeasureSlice slices[] = {{first + 1, first + 2, false}, {first, first + 1, false}};
    bool in_stack = first > 0 ? blocks->num_dec_layers > 1 : blocks->num_layers > 1;
    for (int i = !in_stack; i < 2; i++) {
        if (measure_slice_valid(blocks, slices[i])) { return slices[i]; }
    }
    return (MeasureSlice){first, measure_num_layers(blocks), true};
}

// Several layers behind the first of a stack, where layer_slice() takes one of these: not an encoder's last,
// behind which it ends. Empty where there are no two.
static MeasureSlice deep_slice(const DynapipeBlocks_v1* blocks, MeasureSlice one, int32_t first) {
    enum { MOST_LAYERS = 4 };
    int32_t L = measure_num_layers(blocks), stack_end = first > 0 ? L : blocks->num_layers;
    bool has_last = stack_end == L && !blocks->shapes.head_has_layer;
    int32_t most = has_last ? stack_end : stack_end - 1;
    MeasureSlice deep = {one.begin, one.begin + MOST_LAYERS < most ? one.begin + MOST_LAYERS : most, false};
    bool serves = one.begin > first && deep.end > one.begin + 1 && measure_slice_valid(blocks, deep);
    return serves ? deep : (MeasureSlice){0};
}

static void list_stack(MeasurePoints* layer, MeasurePoints* embedding, const Measure* m, Side side) {
    int32_t first = side == ENCODER ? 0 : m->blocks->num_layers;
    layer->slice = layer_slice(m->blocks, first);
    layer->deep = deep_slice(m->blocks, layer->slice, first);
    layer->part = side == ENCODER ? PART_ENC_LAYER : PART_DEC_LAYER;
    layer->main = tokens_of(side);
    layer->share = 4;
    add_tokens(layer, m, side, true);
    add_squares(layer, m, side);
    if (side == DECODER) { add_cross(layer, m); }
    if (layer->slice.begin == first) { return; }  // the embedding is in it
    *embedding = (MeasurePoints){.slice = {first, first + 1, false}, .part = PART_EMBEDDING};
    embedding->main = tokens_of(side);
    embedding->share = 1;
    embedding->base = layer->part;
    embedding->has_base = true;
    add_tokens(embedding, m, side, false);
}

static void list_head(MeasurePoints* head, const Measure* m, Side side) {
    int32_t L = measure_num_layers(m->blocks);
    head->slice = (MeasureSlice){L, L, true};
    head->part = PART_HEAD;
    head->main = FEATURE_SUPERVISED;
    head->share = 4;
    if (!measure_slice_valid(m->blocks, head->slice)) {
        head->slice = (MeasureSlice){L - 1, L, true};
        head->base = side == ENCODER ? PART_ENC_LAYER : PART_DEC_LAYER;
        head->has_base = true;
    }
    add_head(head, m, side);
}

void measure_points_list(MeasurePoints* out, const Measure* m) {
    const bool has_dec = m->blocks->num_dec_layers > 0;
    list_stack(&out[LIST_LAYER], &out[LIST_EMBEDDING], m, ENCODER);
    if (has_dec) { list_stack(&out[LIST_DEC_LAYER], &out[LIST_DEC_EMBEDDING], m, DECODER); }
    list_head(&out[LIST_HEAD], m, has_dec ? DECODER : ENCODER);
}
