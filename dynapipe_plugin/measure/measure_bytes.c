#include "measure_bytes.h"

#include <math.h>
#include <stdlib.h>

#include "../../util/numbers.h"
#include "measure_lines.h"
#include "measure_pieces.h"
#include "measure_shapes.h"

// --- shapes to ask at --------------------------------------------------------------------------------------

enum {
    NUM_SHAPES = 1500,
    NUM_EDGES = 4,
    EDGE_ROWS = 3,
    NUM_POWERS = 13,
    NUM_STEPS = 8,
    MOST_TOKENS = 1 << 17
};

// Counts to ask with, arrays NULL; and what the planner sees of such a micro-batch.
typedef struct {
    DynapipeBatch batch;
    double x[FEATURE_COUNT];
} AskShape;

// A whole number up to `most`, all magnitudes alike; half of them at powers of two and right beside them.
static int32_t draw_count(Rng* rng, int32_t most) {
    int32_t power = 0;
    while (power < 30 && (1 << (power + 1)) <= most) { power++; }
    int32_t n = 1 << rng_between(rng, 0, power);
    n += rng_below(rng, 2) ? rng_between(rng, 0, n - 1) : rng_between(rng, -1, 1);
    return n < 1 ? 1 : n > most ? most : n;
}

static int32_t at_most(int32_t n, int32_t most) {
    return n < most ? n : most;
}

// All windows but one may be shorter.
static MeasureSide draw_side(Rng* rng, int32_t num_seqs, int32_t longest) {
    MeasureSide side = {.num_seqs = num_seqs};
    side.long_tokens = draw_count(rng, longest);
    side.short_tokens = rng_below(rng, 2) ? side.long_tokens : draw_count(rng, side.long_tokens);
    side.short_tokens = at_most(side.short_tokens, MOST_TOKENS / num_seqs);
    return side;
}

// Few and many windows, of a token, short and long ones, on either side: the edges of what there can be.
static MeasureSide edge_side(int32_t which, int32_t num_seqs, int32_t longest) {
    const int32_t windows[NUM_EDGES] = {1, at_most(17, longest), at_most(129, longest), longest};
    int32_t window = at_most(windows[which % NUM_EDGES], MOST_TOKENS / num_seqs);
    return (MeasureSide){num_seqs, window, window};
}

static const int32_t many[NUM_EDGES] = {1, 17, 257, 8192};

// i < EDGE_ROWS * NUM_EDGES^2 (two sides: ^3)
static void edge_make(MeasureShape* out, const MeasureLengths* lengths, int32_t i) {
    int32_t num_seqs = many[i / EDGE_ROWS % NUM_EDGES], rest = i / EDGE_ROWS / NUM_EDGES;
    out->enc = edge_side(rest, num_seqs, lengths->seq_tokens);
    if (lengths->target_tokens > 0) {
        out->dec = edge_side(rest / NUM_EDGES, num_seqs, lengths->target_tokens);
    }
}

// About so many tokens in as few windows as that takes.
static MeasureSide few_windows(int32_t num_tokens, int32_t longest) {
    int32_t num_seqs = (num_tokens + longest - 1) / longest, window = num_tokens / num_seqs;
    return (MeasureSide){num_seqs, num_tokens - (num_seqs - 1) * window, window};
}

// Tokens in as few windows as that takes on one side, windows of a token on the other; or on both: eight
// steps from each power of two to the next, and one token more, where kernels may begin to work in another
// way.
static void threshold_make(MeasureShape* out, const MeasureLengths* lengths, int32_t i) {
    int32_t power = i / 2 / NUM_STEPS % NUM_POWERS, step = i / 2 % NUM_STEPS;
    int32_t num_tokens = (NUM_STEPS + step) * (1 << (power + 1)) + i % 2;
    int32_t sides = i / 2 / NUM_STEPS / NUM_POWERS;
    const MeasureSide none = {0};
    MeasureSide enc = few_windows(num_tokens, lengths->seq_tokens);
    MeasureSide dec = lengths->target_tokens > 0 ? few_windows(num_tokens, lengths->target_tokens) : none;
    int32_t num_seqs =
        sides == 1 || (sides == 2 && dec.num_seqs > enc.num_seqs) ? dec.num_seqs : enc.num_seqs;
    const MeasureSide ones = {num_seqs, 1, 1};
    out->enc = sides == 1 ? ones : enc;
    out->dec = dec.num_seqs == 0 ? none : sides == 0 ? ones : dec;
    out->enc.num_seqs = num_seqs;
    if (out->dec.num_seqs > 0) { out->dec.num_seqs = num_seqs; }
}

static int32_t num_edges(const MeasureLengths* lengths) {
    return EDGE_ROWS * NUM_EDGES * NUM_EDGES * (lengths->target_tokens > 0 ? NUM_EDGES : 1);
}

// Edges come first, then thresholds, the others are drawn.
static bool is_edge(const MeasureLengths* lengths, int32_t i) {
    return i < num_edges(lengths);
}

static bool is_threshold(const MeasureLengths* lengths, int32_t i) {
    return !is_edge(lengths, i) &&
           i - num_edges(lengths) < 2 * NUM_POWERS * NUM_STEPS * (lengths->target_tokens > 0 ? 3 : 1);
}

static void shape_make(MeasureShape* out, Rng* rng, const MeasureLengths* lengths, int32_t i) {
    const bool has_dec = lengths->target_tokens > 0;
    *out = (MeasureShape){0};
    if (is_edge(lengths, i)) {
        edge_make(out, lengths, i);
        return;
    }
    if (is_threshold(lengths, i)) {
        threshold_make(out, lengths, i - num_edges(lengths));
        return;
    }
    int32_t num_seqs = draw_count(rng, rng_below(rng, 2) ? 64 : 8192);
    out->enc = draw_side(rng, num_seqs, lengths->seq_tokens);
    if (has_dec) { out->dec = draw_side(rng, num_seqs, lengths->target_tokens); }
    out->crossed = rng_below(rng, 2) > 0;
}

// Tokens become what padded kernels take by more windows (measure_shape_fit) or by longer ones: here.
static void lengthen(MeasureShape* shape, const DynapipeBlocks_v1* blocks) {
    shape->enc.long_tokens = measure_padded_tokens(blocks, shape->enc.long_tokens);
    shape->dec.long_tokens = measure_padded_tokens(blocks, shape->dec.long_tokens);
}

static void shapes_make(AskShape shapes[NUM_SHAPES], const DynapipeBlocks_v1* blocks,
                        const MeasureLengths* wanted) {
    Rng rng = rng_seed(1);
    const MeasureLengths padded = {measure_padded_tokens(blocks, wanted->seq_tokens),
                                   measure_padded_tokens(blocks, wanted->target_tokens)};
    const MeasureLengths* lengths = &padded;
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        MeasureShape shape;
        shape_make(&shape, &rng, lengths, i);
        if (i / 2 % 2) { lengthen(&shape, blocks); }
        measure_shape_fit(&shape, blocks, lengths);
        int32_t num_tokens = measure_side_tokens(lengths->target_tokens > 0 ? &shape.dec : &shape.enc);
        const int32_t rows[EDGE_ROWS] = {0, 1, num_tokens};
        int32_t drawn = rng_below(&rng, 3) ? draw_count(&rng, num_tokens) : num_tokens;
        shape.num_rows = is_edge(lengths, i) ? rows[i % EDGE_ROWS] : is_threshold(lengths, i) ? 0 : drawn;
        measure_shape_counts(&shapes[i].batch, &shape);
        MbShape features = measure_batch_shape(&shapes[i].batch);
        cost_shape_features(shapes[i].x, &features);
    }
}

// --- asking ------------------------------------------------------------------------------------------------

typedef int64_t Ask(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts);

static int64_t ask_kept(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts) {
    return api->acts_bytes(model, counts, DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD);
}

static int64_t ask_dropped(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts) {
    return api->acts_bytes(model, counts, 0);
}

static int64_t ask_scratch(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts) {
    return api->scratch_bytes(model, counts);
}

static int64_t ask_behind(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts) {
    return api->boundary_bytes(model, counts, 1);
}

typedef struct {
    const DynapipeBlocks_v1* blocks;
    MeasureRanges ranges;
    MeasureModel models[RANGE_COUNT];
    MeasureModel of_head[MEASURE_HEAD_COUNT];  // where it can be shared
    AskShape shapes[NUM_SHAPES];
    MeasurePoint points[PIECE_COUNT][NUM_SHAPES];
} Asker;

static void ask_all(double value[RANGE_COUNT], const Asker* a, Ask* ask, const DynapipeBatch* counts) {
    for (int32_t r = 0; r < RANGE_COUNT; r++) {
        value[r] = a->ranges.valid[r] ? (double)ask(a->blocks->api, a->models[r].model, counts) : 0;
    }
}

static void set_point(Asker* a, int32_t piece, int32_t i, double y) {
    for (int f = 0; f < FEATURE_COUNT; f++) { a->points[piece][i].x[f] = a->shapes[i].x[f]; }
    a->points[piece][i].y = y;
}

static Status fit_pieces(CostFormula out[PIECE_COUNT], Asker* a, Ask* ask) {
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        double value[RANGE_COUNT], piece[PIECE_COUNT];
        ask_all(value, a, ask, &a->shapes[i].batch);
        measure_pieces(piece, &a->ranges, value);
        for (int32_t p = 0; p < PIECE_COUNT; p++) { set_point(a, p, i, piece[p]); }
    }
    for (int32_t p = 0; p < PIECE_COUNT; p++) { TRY(measure_lines_fit(&out[p], a->points[p], NUM_SHAPES)); }
    return STATUS_OK;
}

// The most that any range asks for.
static Status fit_scratch(CostFormula* out, Asker* a) {
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        double value[RANGE_COUNT], most = 0;
        ask_all(value, a, ask_scratch, &a->shapes[i].batch);
        for (int32_t r = 0; r < RANGE_COUNT; r++) { most = fmax(most, value[r]); }
        for (int h = 0; h < MEASURE_HEAD_COUNT; h++) {
            const MeasureModel* of_head = &a->of_head[h];
            const DynapipeBatch* counts = &a->shapes[i].batch;
            if (of_head->model == NULL) { continue; }
            most = fmax(most, (double)ask_scratch(a->blocks->api, of_head->model, counts));
        }
        set_point(a, 0, i, most);
    }
    return measure_lines_fit(out, a->points[0], NUM_SHAPES);
}

// Behind ranges that end in the first stack, and what there is more behind those that end in the second.
static Status fit_boundaries(CostModel* out, Asker* a) {
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        double value[RANGE_COUNT], most[2] = {0};
        ask_all(value, a, ask_behind, &a->shapes[i].batch);
        for (int32_t r = 0; r < RANGE_COUNT; r++) {
            bool in_second = a->ranges.slices[r].end > a->blocks->num_layers;
            if (!a->ranges.slices[r].has_head) { most[in_second] = fmax(most[in_second], value[r]); }
        }
        set_point(a, 0, i, most[0]);
        set_point(a, 1, i, fmax(most[1] - most[0], 0));
    }
    TRY(measure_lines_fit(&out->boundary_bytes, a->points[0], NUM_SHAPES));
    return measure_lines_fit(&out->dec_boundary_bytes, a->points[1], NUM_SHAPES);
}

// --- a shared head -----------------------------------------------------------------------------------------
static int64_t ask_part(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts) {
    return api->part_bytes(model, counts, DYNAPIPE_FORWARD_KEEP | DYNAPIPE_FORWARD_HEAD);
}

static int64_t ask_factors(const DynapipeModel_v1* api, void* model, const DynapipeBatch* counts) {
    return api->factor_bytes(model, counts);
}

// Of the range that feeds the head, beyond what `without` says; NULL: all.
static Status fit_feeding(CostFormula* out, Asker* a, Ask* ask, const MeasureModel* without) {
    const DynapipeModel_v1* api = a->blocks->api;
    for (int32_t i = 0; i < NUM_SHAPES; i++) {
        const DynapipeBatch* counts = &a->shapes[i].batch;
        double all = (double)ask(api, a->of_head[MEASURE_FEEDS].model, counts);
        set_point(a, 0, i, without == NULL ? all : fmax(all - (double)ask(api, without->model, counts), 0));
    }
    return measure_lines_fit(out, a->points[0], NUM_SHAPES);
}

// What the last chunk has where it feeds the head, what it hands on, and what comes back.
static Status fit_shared_head(CostModel* out, Asker* a) {
    const int once = ONCE_CHAIN_END - PART_COUNT;
    const MeasureModel* plain = &a->of_head[MEASURE_PLAIN];
    TRY(fit_feeding(&out->once_stored_bytes[once], a, ask_kept, plain));
    TRY(fit_feeding(&out->once_forward_bytes[once], a, ask_dropped, plain));
    TRY(fit_feeding(&out->head_in_bytes, a, ask_behind, NULL));
    TRY(fit_feeding(&out->head_part_bytes, a, ask_part, NULL));
    return fit_feeding(&out->head_factor_bytes, a, ask_factors, NULL);
}

static Status make_models(Asker* a) {
    for (int32_t r = 0; r < RANGE_COUNT; r++) {
        if (a->ranges.valid[r]) { TRY(measure_make(&a->models[r], a->blocks, a->ranges.slices[r], false)); }
    }
    for (int h = 0; h < MEASURE_HEAD_COUNT && measure_shares_head(a->blocks); h++) {
        TRY(measure_make_head(&a->of_head[h], a->blocks, (MeasureHead)h));
    }
    return STATUS_OK;
}

// --- all of it ---------------------------------------------------------------------------------------------
static Status fit_all(CostModel* out, Asker* a) {
    CostFormula kept[PIECE_COUNT], dropped[PIECE_COUNT];
    TRY(fit_pieces(kept, a, ask_kept));
    TRY(fit_pieces(dropped, a, ask_dropped));
    for (int part = 0; part < PART_COUNT; part++) {
        out->parts[RECOMPUTE_NONE][part].stored_bytes = out->parts[RECOMPUTE_FULL][part].stored_bytes =
            kept[part];
        out->parts[RECOMPUTE_FULL][part].forward_bytes = dropped[part];
    }
    for (int once = 0; once < ONCE_COUNT; once++) {
        out->once_stored_bytes[once] = kept[PART_COUNT + once];
        out->once_forward_bytes[once] = dropped[PART_COUNT + once];
    }
    out->stage_stored_bytes = out->stage_forward_bytes = (CostFormula){0};
    TRY(fit_scratch(&out->scratch_bytes, a));
    TRY(fit_boundaries(out, a));
    return measure_shares_head(a->blocks) ? fit_shared_head(out, a) : STATUS_OK;
}

Status measure_bytes_fill(CostModel* out, const DynapipeBlocks_v1* blocks, const MeasureLengths* lengths) {
    Asker* a = calloc(1, sizeof *a);
    if (a == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to ask a model for its bytes"); }
    a->blocks = blocks;
    measure_ranges_find(&a->ranges, blocks);
    shapes_make(a->shapes, blocks, lengths);
    Status status = make_models(a);
    if (status == STATUS_OK) { status = fit_all(out, a); }
    for (int32_t r = 0; r < RANGE_COUNT; r++) { measure_drop(blocks, &a->models[r]); }
    for (int h = 0; h < MEASURE_HEAD_COUNT; h++) { measure_drop(blocks, &a->of_head[h]); }
    free(a);
    return status;
}
