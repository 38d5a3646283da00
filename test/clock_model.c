#include "clock_model.h"

#include <stdlib.h>
#include <string.h>

static _Thread_local int64_t passed_ns;

// Pieces in a range.
typedef struct {
    ClockModel* about;
    int32_t enc, dec;
    bool embedding, dec_embedding, head, ends_enc;
    void* memory;  // of params
    DynapipeTied tied[3];
} Range;

int64_t clock_model_ns(void) {
    return passed_ns;
}

// --- time --------------------------------------------------------------------------------------------------

static bool is_quadratic(int feature) {
    return feature == FEATURE_ENC_SQUARES || feature == FEATURE_DEC_SQUARES ||
           feature == FEATURE_CROSS_PRODUCTS;
}

double clock_model_part_ns(const ClockModel* model, int part, int job, const MbShape* shape) {
    const bool joint = model->api.backward_weights == NULL;
    double value[FEATURE_COUNT], ns = 0;
    cost_shape_features(value, shape);
    for (int f = 0; f < FEATURE_COUNT; f++) {
        double of_weights = is_quadratic(f) ? 0 : 0.5;
        double passes = job == JOB_F ? 1 : job == JOB_B ? 2 + joint * of_weights : joint ? 0 : of_weights;
        ns += passes * model->ns[part][f] * value[f];
    }
    return ns * model->slower;
}

static bool side_is_wrong(const ClockModel* about, const int32_t* cu_seqlens, const int32_t* tokens,
                          const int32_t* positions, int32_t num_seqs, int32_t num_tokens, int64_t squares) {
    const DynapipeShapes_v1* shapes = &about->blocks.shapes;
    int64_t sum = 0;
    bool wrong =
        cu_seqlens == NULL || tokens == NULL || positions == NULL || cu_seqlens[num_seqs] != num_tokens;
    for (int32_t i = 0; i < num_seqs && !wrong; i++) {
        int32_t length = cu_seqlens[i + 1] - cu_seqlens[i];
        sum += (int64_t)length * length;
        wrong |=
            length < 1 || positions[cu_seqlens[i]] != 0 || positions[cu_seqlens[i + 1] - 1] != length - 1;
        if (shapes->padded) { wrong |= length != cu_seqlens[1] || length % shapes->seq_multiple != 0; }
    }
    if (shapes->padded) { wrong |= num_tokens % shapes->tokens_multiple != 0; }
    if (shapes->max_squares > 0) { wrong |= squares > shapes->max_squares; }
    if (shapes->max_tokens > 0) { wrong |= num_tokens > shapes->max_tokens; }
    if (shapes->max_seqs > 0) { wrong |= num_seqs > shapes->max_seqs; }
    for (int32_t i = 0; i < num_tokens && !wrong; i++) { wrong |= tokens[i] >= about->blocks.vocab; }
    return wrong || sum != squares;
}

static void check_batch(ClockModel* about, const DynapipeBatch* b) {
    bool has_dec = about->blocks.num_dec_layers > 0;
    bool wrong = side_is_wrong(about, b->cu_seqlens, b->tokens, b->positions, b->num_seqs, b->num_tokens,
                               b->num_squares);
    if (has_dec) {
        wrong |= side_is_wrong(about, b->dec_cu_seqlens, b->dec_tokens, b->dec_positions, b->num_seqs,
                               b->num_dec_tokens, b->num_dec_squares);
        wrong |= b->dec_token_keys == NULL;
    }
    int32_t most = has_dec ? b->num_dec_tokens : b->num_tokens;
    for (int32_t i = 0; i < b->num_rows; i++) {
        wrong |= b->rows[i] < 0 || b->rows[i] >= most || b->targets[i] >= about->blocks.vocab ||
                 b->row_tasks[i] != 0 || (i > 0 && b->rows[i] <= b->rows[i - 1]);
    }
    about->num_wrong += wrong || b->loss_scale <= 0 || b->token_keys == NULL;
}

static int take_time(const Range* range, const DynapipeBatch* b, int job) {
    ClockModel* about = range->about;
    MbShape shape = {b->num_seqs,        b->num_tokens, b->num_squares, b->num_dec_tokens,
                     b->num_dec_squares, b->num_cross,  b->num_rows};
    MbShape enc_side = {.enc_tokens = shape.enc_tokens}, dec_side = {.dec_tokens = shape.dec_tokens};
    check_batch(about, b);
    double ns = range->enc * clock_model_part_ns(about, PART_ENC_LAYER, job, &shape) +
                range->dec * clock_model_part_ns(about, PART_DEC_LAYER, job, &shape);
    if (range->embedding) { ns += clock_model_part_ns(about, PART_EMBEDDING, job, &enc_side); }
    if (range->dec_embedding) { ns += clock_model_part_ns(about, PART_EMBEDDING, job, &dec_side); }
    if (range->head) { ns += clock_model_part_ns(about, PART_HEAD, job, &shape); }
    passed_ns += (int64_t)ns;
    return ++about->num_jobs == about->fails_at ? 7 : 0;
}

static int forward(void* model, const DynapipeBatch* batch, const void* in, void* out, void* acts,
                   void* scratch, float* losses, int flags) {
    Range* range = model;
    range->about->num_wrong += (in == NULL) != range->embedding || (out == NULL) != range->head;
    range->about->num_wrong += acts == NULL || scratch == NULL || losses == NULL || flags != 3;
    return take_time(range, batch, JOB_F);
}

static int backward_inputs(void* model, const DynapipeBatch* batch, const void* in, void* acts,
                           const void* dout, void* din, void* scratch) {
    Range* range = model;
    range->about->num_wrong += (in == NULL) != range->embedding || (din == NULL) != range->embedding;
    range->about->num_wrong += (dout == NULL) != range->head || acts == NULL || scratch == NULL;
    return take_time(range, batch, JOB_B);
}

static int backward_weights(void* model, const DynapipeBatch* batch, void* acts, const void* dout,
                            void* scratch) {
    (void)acts, (void)dout, (void)scratch;
    return take_time(model, batch, JOB_W);
}

static void zero_gradients(void* model) {
    (void)model;
    passed_ns += 1000;
}

// --- bytes -------------------------------------------------------------------------------------------------

static int64_t up(int64_t n, int64_t multiple) {
    return (n + multiple - 1) / multiple * multiple;
}

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

// Of one side: tokens and squares as the layout's kernels count them.
typedef struct {
    int64_t T, S;
} Count;

static Count count_of(const ClockModel* about, int64_t num_seqs, int64_t longest, int64_t tokens,
                      int64_t squares) {
    if (!about->blocks.shapes.padded) { return (Count){up(tokens, 16), squares}; }
    return (Count){num_seqs * longest, num_seqs * longest * longest};
}

// Tensors of a layer, each aligned; scores of all heads; a workspace that is the largest of three.
static int64_t layer_bytes(Count q, Count k, int64_t cross) {
    int64_t work = larger(5000, larger(20 * q.T, 12 * k.T));
    return up(4 * 24 * q.T, 256) + up(4 * q.T, 256) + up(4 * 2 * (q.S + cross), 256) + up(work, 256) + 64;
}

static int64_t acts_bytes(void* model, const DynapipeBatch* b, int flags) {
    const Range* range = model;
    Count enc = count_of(range->about, b->num_seqs, b->max_seq_tokens, b->num_tokens, b->num_squares);
    Count dec =
        count_of(range->about, b->num_seqs, b->max_dec_seq_tokens, b->num_dec_tokens, b->num_dec_squares);
    int64_t cross = range->about->blocks.shapes.padded
                        ? (int64_t)b->num_seqs * b->max_seq_tokens * b->max_dec_seq_tokens
                        : b->num_cross;
    int32_t num_enc = range->enc, num_dec = range->dec;
    if ((flags & DYNAPIPE_FORWARD_KEEP) == 0) { num_enc = num_enc > 0, num_dec = num_dec > 0; }
    int64_t bytes = range->about->more_bytes;
    bytes += num_enc * layer_bytes(enc, enc, 0) + num_dec * layer_bytes(dec, enc, cross);
    if (range->enc > 0) { bytes += up(8 * enc.T, 64) + up(b->num_seqs, 16) * 3000; }
    if (range->dec > 0) { bytes += up(8 * dec.T, 64) + up(16 * enc.T, 64); }
    if (range->embedding) { bytes += larger(3000, 12 * enc.T); }
    if (range->ends_enc) { bytes += up(96 * enc.T, 256); }
    bool losses = range->head && flags & DYNAPIPE_FORWARD_HEAD;
    if (losses) { bytes += up(b->num_rows, 16) * 4000 + larger(100 * b->num_seqs, 2000); }
    return bytes;
}

static int64_t scratch_bytes(void* model, const DynapipeBatch* b) {
    const Range* range = model;
    Count enc = count_of(range->about, b->num_seqs, b->max_seq_tokens, b->num_tokens, b->num_squares);
    int64_t longest = larger(b->max_seq_tokens, b->max_dec_seq_tokens);
    int64_t bytes = larger(larger(enc.T * 40, 4096), longest * 100);
    if (range->head) { bytes = larger(bytes, up(b->num_rows, 64) * 48 + up(b->num_seqs, 128) * 8); }
    return bytes + range->about->more_bytes;
}

static int64_t boundary_bytes(void* model, const DynapipeBatch* b, int is_behind) {
    const Range* range = model;
    Count enc = count_of(range->about, b->num_seqs, b->max_seq_tokens, b->num_tokens, b->num_squares);
    Count dec =
        count_of(range->about, b->num_seqs, b->max_dec_seq_tokens, b->num_dec_tokens, b->num_dec_squares);
    bool both = is_behind ? range->dec > 0 : range->dec > 0 && !range->dec_embedding;
    return range->about->more_bytes +
           96 * (enc.T + (both || (range->head && range->enc + range->dec == 0) ? dec.T : 0));
}

// --- ranges ------------------------------------------------------------------------------------------------

// A layer has 100 values, what a stack has once 7 of them tied; the embedding 500, tied to the head's.
static int64_t fill_params(Range* range) {
    int64_t n = 100 * (range->enc + range->dec);
    int32_t num_tied = 0;
    if (range->enc > 0) { range->tied[num_tied++] = (DynapipeTied){0, n, 7}, n += 7; }
    if (range->dec > 0) { range->tied[num_tied++] = (DynapipeTied){1, n, 7}, n += 7; }
    if (range->ends_enc) { n += 10; }
    if (range->embedding || range->dec_embedding || range->head) {
        range->tied[num_tied++] = (DynapipeTied){2, n, 500}, n += 500;
    }
    if (range->head) { n += 10; }
    return n;
}

static int32_t within(int32_t begin, int32_t end, int32_t from, int32_t to) {
    int32_t a = begin > from ? begin : from, b = end < to ? end : to;
    return b > a ? b - a : 0;
}

static int make(void* ctx, DynapipeRange blocks, int has_values, void** model, DynapipeParams_v1* params) {
    ClockModel* about = ctx;
    const int32_t Le = about->blocks.num_layers, Ld = about->blocks.num_dec_layers;
    const int32_t head = Le + Ld + 1 + (Ld > 0);
    Range* range = calloc(1, sizeof *range);
    range->about = about;
    range->embedding = blocks.begin == 0;
    range->enc = within(blocks.begin, blocks.end, 1, Le + 1);
    range->dec = Ld > 0 ? within(blocks.begin, blocks.end, Le + 2, head) : 0;
    range->dec_embedding = Ld > 0 && within(blocks.begin, blocks.end, Le + 1, Le + 2) > 0;
    range->head = blocks.end == head + 1;
    range->ends_enc = Ld > 0 && within(blocks.begin, blocks.end, Le, Le + 1) > 0;
    bool alone = range->enc + range->dec == 0;
    bool cuts_badly = blocks.begin == 1 || (Ld > 0 && blocks.begin == Le + 2) || blocks.end > head + 1 ||
                      (Ld > 0 && blocks.end == Le + 2) || blocks.end <= blocks.begin;
    bool no_head = about->blocks.shapes.head_has_layer;
    if (cuts_badly || (alone && !range->head) || (no_head && (alone || blocks.end == head))) {
        about->num_wrong++;
    }
    *params = (DynapipeParams_v1){.num_params = fill_params(range), .tied = range->tied};
    params->num_tied =
        (range->enc > 0) + (range->dec > 0) + (range->embedding || range->dec_embedding || range->head);
    about->num_made += has_values;
    *model = range;
    return 0;
}

static void drop(void* ctx, void* model) {
    (void)ctx;
    free(model);
}

static int update(void* ctx, void* model) {
    (void)ctx;
    passed_ns += 10 * fill_params(model);
    return 0;
}

static const char* why(void* ctx) {
    (void)ctx;
    return "the clock stands still";
}

void clock_model_init(ClockModel* out, int32_t num_layers, int32_t num_dec_layers, bool padded,
                      bool head_has_layer) {
    static const double truth[PART_COUNT][FEATURE_COUNT] = {
        [PART_EMBEDDING] = {[FEATURE_ENC_TOKENS] = 200, [FEATURE_DEC_TOKENS] = 300},
        [PART_ENC_LAYER] = {[FEATURE_ENC_TOKENS] = 1000, [FEATURE_ENC_SQUARES] = 0.8},
        [PART_DEC_LAYER] = {[FEATURE_ENC_TOKENS] = 400,
                            [FEATURE_DEC_TOKENS] = 1500,
                            [FEATURE_DEC_SQUARES] = 0.9,
                            [FEATURE_CROSS_PRODUCTS] = 0.7},
        [PART_HEAD] = {[FEATURE_ENC_TOKENS] = 100, [FEATURE_SUPERVISED] = 2000},
    };
    *out = (ClockModel){.slower = 1};
    memcpy(out->ns, truth, sizeof truth);
    if (num_dec_layers > 0) {
        out->ns[PART_HEAD][FEATURE_DEC_TOKENS] = out->ns[PART_HEAD][FEATURE_ENC_TOKENS];
        out->ns[PART_HEAD][FEATURE_ENC_TOKENS] = 0;
    }
    out->api = (DynapipeModel_v1){.name = "clock",
                                  .acts_bytes = acts_bytes,
                                  .scratch_bytes = scratch_bytes,
                                  .boundary_bytes = boundary_bytes,
                                  .forward = forward,
                                  .backward_inputs = backward_inputs,
                                  .backward_weights = backward_weights,
                                  .zero_gradients = zero_gradients};
    out->blocks = (DynapipeBlocks_v1){.api = &out->api,
                                      .ctx = out,
                                      .signature = "clock C 24",
                                      .num_layers = num_layers,
                                      .num_dec_layers = num_dec_layers,
                                      .vocab = 100,
                                      .optimizer_bytes = 8,
                                      .make = make,
                                      .drop = drop,
                                      .update = update,
                                      .why = why};
    out->blocks.shapes.head_has_layer = head_has_layer;
    if (padded) {
        out->blocks.shapes.padded = 1;
        out->blocks.shapes.seq_multiple = 4;
        out->blocks.shapes.tokens_multiple = 16;
        out->blocks.shapes.max_squares = 1 << 28;
    }
}
