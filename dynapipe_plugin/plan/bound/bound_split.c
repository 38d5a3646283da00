// bound_split.c -- see bound_split.h.
#include "bound_split.h"

#include <math.h>
#include <string.h>

#include "../types/mb_shape.h"
#include "bound_memory.h"

// Of every part. F, BACK and TURN are those of the lightest sample; SHARES of the samples of one replica.
typedef enum {
    PRICE_F,
    PRICE_BACK,  // what must follow upstream: B, with W where no plan in question splits backward
    PRICE_TURN,  // F and that
    PRICE_WORK_SHARE,
    PRICE_FB_SHARE,
    PRICE_BW_SHARE,
    PRICE_REDUCE,  // of one more layer
    PRICE_COUNT
} Price;

typedef struct {
    double part[PRICE_COUNT][PART_COUNT];
    double (*before)[PRICE_COUNT];  // [L + 1] layers before this one, without embedding
} SplitPrices;

typedef struct {
    const BoundLines* lines;
    int32_t P, L, num_enc;
    SplitPrices* prices;                // [1 + P]: on the fastest of all ranks; on the ranks of stage s
    double reduce_ns[PLAN_MAX_STAGES];  // of a stage without layers
    double links_ns[PLAN_MAX_STAGES];   // of the lightest sample, one way, over all boundaries before a stage
    double* time_ns;                    // (P, L + 1, L + 1) of range begin, end as stage s; NULL: too many
    bool* known;                        // (P, L + 1, L + 1) was memory looked at?
    int32_t* from;                      // (P, L + 1) where stage s begins if it ends at this layer
    double *best, *next;                // [L + 1]
    double (*stored)[RECOMPUTE_COUNT][PART_COUNT];  // [num_stored] bytes of the largest samples
    double* stored_once;                            // [num_stored]
    double* received;                               // [num_stored] bytes of the input of a stage
    int32_t num_stored;
    Arena* scratch;
} Split;

enum { MOST_TABLE = 1 << 20, MOST_STORED = 16, MOST_RANGES = 64 };

double bound_share(const BoundLines* lines, const BoundLine* line) {
    double R = lines->problem->R, num_mbs = lines->extent.total[FEATURE_ENC_TOKENS] / lines->largest_tokens;
    return bound_line_total(line, &lines->extent, 0) / R + line->constant * fmax(1, num_mbs / R);
}

// --- prices ----------------------------------------------------------------------------------------------

static MbShape shape_of(const PlanSample* sample) {
    MbShape shape = {0};
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    return shape;
}

static void lower(double* value, double by) {
    *value = by < *value ? by : *value;
}

// Where ranks are alike, one row is for all.
static const SplitPrices* prices_of(const Split* split, int32_t s) {
    return &split->prices[split->lines->problem->differs ? 1 + s : 0];
}

static void lower_prices(SplitPrices* prices, const BoundSpeed* speed, bool joint_backward,
                         const CostParts* parts) {
    for (int part = 0; part < PART_COUNT; part++) {
        double ns[JOB_COUNT];
        for (int kind = 0; kind < JOB_COUNT; kind++) {
            ns[kind] = parts->part[part][kind] * (speed == NULL ? 1 : speed->least[kind]);
        }
        double back = ns[JOB_B] + (joint_backward ? ns[JOB_W] : 0);
        lower(&prices->part[PRICE_F][part], ns[JOB_F]);
        lower(&prices->part[PRICE_BACK][part], back);
        lower(&prices->part[PRICE_TURN][part], ns[JOB_F] + back);
    }
}

// Minima over samples and modes: no micro-batch has a shorter one, as jobs only grow with their shape.
static void lightest_make(Split* out) {
    const BoundLines* lines = out->lines;
    const PlanProblem* problem = lines->problem;
    const BoundBatch* batch = lines->batch;
    int32_t num_rows = problem->differs ? 1 + out->P : 1;
    int64_t sent_bytes = COST_LIMIT;
    for (int32_t row = 0; row < num_rows; row++) {
        for (int part = 0; part < PART_COUNT; part++) {
            double(*price)[PART_COUNT] = out->prices[row].part;
            price[PRICE_F][part] = price[PRICE_BACK][part] = price[PRICE_TURN][part] = INFINITY;
        }
    }
    for (int32_t i = 0; i < batch->num_least; i++) {
        MbShape shape = shape_of(&batch->samples[batch->least[i]]);
        for (int k = 0; k < problem->num_modes; k++) {
            CostParts parts;
            cost_parts(&parts, &problem->table, problem->modes[k], &shape);
            if (parts.enc_boundary_bytes < sent_bytes) { sent_bytes = parts.enc_boundary_bytes; }
            for (int32_t row = 0; row < num_rows; row++) {
                const BoundSpeed* speed = row > 0 ? &lines->stage[row - 1] : &lines->all;
                lower_prices(&out->prices[row], problem->differs ? speed : NULL, lines->joint_backward,
                             &parts);
            }
        }
    }
    for (int32_t s = 1; s < out->P; s++) {
        int64_t ns = machine_transfer_ns(bound_lightest(lines, s - 1), problem->costs, sent_bytes);
        out->links_ns[s] = out->links_ns[s - 1] + (double)ns;
    }
}

// The reduction of a stage adds up over its layers, but for rounding: half a nanosecond for each term. What
// stages of one stack share besides is left out.
static void reductions_make(Split* out) {
    const PlanProblem* problem = out->lines->problem;
    for (int32_t s = 0; s < out->P; s++) {
        CostStage bare = {.has_embedding = s == 0, .has_head = s == out->P - 1};
        double ns_per_byte = cost_reduce_ns_per_byte(problem->costs, problem->R);
        out->reduce_ns[s] = fmax((double)cost_reduce_ns(problem->costs, &bare, problem->R) - 1, 0);
        SplitPrices* prices = &out->prices[problem->differs ? 1 + s : 0];
        for (int part = PART_ENC_LAYER; part <= PART_DEC_LAYER; part++) {
            double ns = (double)problem->costs->part_param_bytes[part] * ns_per_byte;
            prices->part[PRICE_REDUCE][part] = fmax(ns - 0.5, 0);
        }
    }
}

static void shares_make(SplitPrices* out, const BoundLines* lines, int32_t s) {
    for (int part = 0; part < PART_COUNT; part++) {
        BoundPart scaled;
        bound_part_scale(&scaled, lines, part, s, true);
        BoundLine forward_backward = scaled.F;
        bound_line_add(&forward_backward, 1, &scaled.B);
        out->part[PRICE_WORK_SHARE][part] = bound_share(lines, &scaled.work);
        out->part[PRICE_FB_SHARE][part] = bound_share(lines, &forward_backward);
        out->part[PRICE_BW_SHARE][part] = bound_share(lines, &scaled.BW);
    }
}

static void prices_make(Split* out) {
    int32_t num_rows = out->lines->problem->differs ? 1 + out->P : 1;
    lightest_make(out);
    reductions_make(out);
    for (int32_t row = 0; row < num_rows; row++) {
        SplitPrices* prices = &out->prices[row];
        shares_make(prices, out->lines, row > 0 ? row - 1 : BOUND_ANY_STAGE);
        for (int32_t l = 0; l < out->L; l++) {
            int part = l < out->num_enc ? PART_ENC_LAYER : PART_DEC_LAYER;
            for (int q = 0; q < PRICE_COUNT; q++) {
                prices->before[l + 1][q] = prices->before[l][q] + prices->part[q][part];
            }
        }
    }
}

// --- one range of layers as one stage --------------------------------------------------------------------

static double own_price(const Split* split, Price q, int32_t s, int32_t begin, int32_t end) {
    const SplitPrices* prices = prices_of(split, s);
    double sum = prices->before[end][q] - prices->before[begin][q];
    if (s == 0) { sum += prices->part[q][PART_EMBEDDING]; }
    if (s == split->P - 1) { sum += prices->part[q][PART_HEAD]; }
    return sum;
}

// Of the layers below `begin`, by the links between: the way there or back.
static double below_price(const Split* split, Price q, int32_t s, int32_t begin) {
    const SplitPrices* any = &split->prices[0];
    return s == 0 ? 0 : any->before[begin][q] + any->part[q][PART_EMBEDDING] + split->links_ns[s];
}

// After the last job of this stage.
static double after_ns(const Split* split, int32_t s, int32_t begin, int32_t end) {
    const SplitPrices* prices = prices_of(split, s);
    double layers = prices->before[end][PRICE_REDUCE] - prices->before[begin][PRICE_REDUCE];
    double reduce = split->reduce_ns[s] + layers, back = below_price(split, PRICE_BACK, s, begin);
    return split->lines->joint_backward && back > reduce ? back : reduce;
}

// The last of its jobs, and what follows, cannot end before.
static double range_ns(const Split* split, int32_t s, int32_t begin, int32_t end) {
    double arrival = below_price(split, PRICE_F, s, begin), after = after_ns(split, s, begin, end);
    double longest = own_price(split, PRICE_WORK_SHARE, s, begin, end) + after;
    const SplitPrices* any = &split->prices[0];
    double turn = own_price(split, PRICE_F, s, begin, end) + any->before[split->L][PRICE_TURN] -
                  any->before[end][PRICE_TURN] + 2 * (split->links_ns[split->P - 1] - split->links_ns[s]);
    if (s < split->P - 1) { turn += any->part[PRICE_TURN][PART_HEAD]; }
    double backward = turn + own_price(split, PRICE_BW_SHARE, s, begin, end) + after;
    longest = backward > longest ? backward : longest;
    if (!split->lines->joint_backward) {
        double tail = below_price(split, PRICE_BACK, s, begin);
        tail += own_price(split, PRICE_FB_SHARE, s, begin, end);
        longest = tail > longest ? tail : longest;
    }
    return arrival + longest;
}

// --- memory of a range -----------------------------------------------------------------------------------

static void layer_counts(int32_t count[PART_COUNT], const Split* split, int32_t s, int32_t begin,
                         int32_t end) {
    int32_t enc_end = end < split->num_enc ? end : split->num_enc;
    count[PART_ENC_LAYER] = enc_end > begin ? enc_end - begin : 0;
    count[PART_DEC_LAYER] = end - begin - count[PART_ENC_LAYER];
    count[PART_EMBEDDING] = s == 0;
    count[PART_HEAD] = s == split->P - 1;
}

static double state_bytes(const Split* split, int32_t s, int32_t begin, int32_t end) {
    const CostModel* costs = split->lines->problem->costs;
    LayerRange layers = {begin, end};
    CostStage stage = cost_stage_make(costs, &layers, s, split->P);
    return (double)cost_state_bytes(costs, &stage);
}

static void stored_make(Split* out) {
    const PlanProblem* problem = out->lines->problem;
    const BoundBatch* batch = out->lines->batch;
    out->num_stored = batch->num_most < MOST_STORED ? batch->num_most : MOST_STORED;
    for (int32_t i = 0; i < out->num_stored; i++) {
        MbShape shape = shape_of(&batch->samples[batch->most[i]]);
        for (int k = 0; k < problem->num_modes; k++) {
            CostParts parts;
            cost_parts(&parts, &problem->table, problem->modes[k], &shape);
            for (int part = 0; part < PART_COUNT; part++) {
                out->stored[i][k][part] = parts.part[part][COST_STORED];
            }
            out->stored_once[i] = parts.stage[COST_STORED];
            out->received[i] = problem->count_buffers ? (double)parts.enc_boundary_bytes : 0;
        }
    }
}

// Model state, and the largest samples one at a time, each in the mode that keeps least of it.
static bool range_fits(const Split* split, int32_t s, int32_t begin, int32_t end) {
    const PlanProblem* problem = split->lines->problem;
    int32_t count[PART_COUNT];
    layer_counts(count, split, s, begin, end);
    if (problem->most_limit_bytes[s] == 0) { return true; }
    double free_bytes = (double)problem->most_limit_bytes[s] - state_bytes(split, s, begin, end);
    if (free_bytes <= 0) { return false; }
    for (int32_t i = 0; i < split->num_stored; i++) {
        double least = INFINITY;
        for (int k = 0; k < problem->num_modes; k++) {
            const double* part_bytes = split->stored[i][k];
            double sum = split->stored_once[i];
            for (int part = 0; part < PART_COUNT; part++) {
                if (count[part] > 0) { sum += count[part] * part_bytes[part]; }
            }
            lower(&least, sum);
        }
        if (least + (s > 0 ? split->received[i] : 0) - 1 > free_bytes) { return false; }
    }
    return true;
}

static Status memory_ns(double* time_ns, const Split* split, int32_t s, int32_t begin, int32_t end,
                        double enough_ns) {
    const BoundLines* lines = split->lines;
    int32_t own[PART_COUNT], below[PART_COUNT];
    BoundPart downstream;
    BoundPiece piece = {.has_input = s > 0, .weight = 1};
    BoundStage stage = {.num_pieces = 1, .pieces = &piece};
    *time_ns = 0;
    if (lines->problem->most_limit_bytes[s] == 0) { return STATUS_OK; }
    layer_counts(own, split, s, begin, end);
    layer_counts(below, split, -1, end, split->L);
    below[PART_EMBEDDING] = 0;
    below[PART_HEAD] = own[PART_HEAD] == 0;
    bound_part_sum(&piece.own, lines, own, s, false);
    bound_part_sum(&downstream, lines, below, BOUND_ANY_STAGE, false);
    piece.away = downstream.turn;
    for (int32_t k = s; k < split->P - 1; k++) { bound_link_add(&piece.away, lines, k, k + 1); }
    stage.free_bytes = (double)lines->problem->most_limit_bytes[s] - state_bytes(split, s, begin, end);
    return bound_memory_stage(time_ns, lines, &stage, enough_ns, split->scratch);
}

// --- the program -----------------------------------------------------------------------------------------

static int64_t at(const Split* split, int32_t s, int32_t begin, int32_t end) {
    int64_t row = split->L + 1;
    return (s * row + begin) * row + end;
}

// Ranges that stage s may have: [first, last] of begins, and of ends for one of them.
static int32_t begin_first(const Split* split, int32_t s) {
    (void)split;
    return s;
}

static int32_t begin_last(const Split* split, int32_t s) {
    bool may_be_bare = s == split->P - 1 && s > 0;
    return s == 0 ? 0 : split->L - !may_be_bare;
}

static int32_t end_first(const Split* split, int32_t s, int32_t begin) {
    return s == split->P - 1 ? split->L : begin + 1;
}

static double slowest_of_best(Split* split) {
    int32_t L = split->L;
    for (int32_t l = 0; l <= L; l++) { split->best[l] = INFINITY; }
    for (int32_t s = 0; s < split->P; s++) {
        for (int32_t l = 0; l <= L; l++) { split->next[l] = INFINITY, split->from[s * (L + 1) + l] = s; }
        for (int32_t begin = begin_first(split, s); begin <= begin_last(split, s); begin++) {
            double before = s == 0 ? 0 : split->best[begin];
            if (before == INFINITY) { continue; }
            for (int32_t end = end_first(split, s, begin); end <= L; end++) {
                if (before >= split->next[end]) { continue; }
                double own = split->time_ns ? split->time_ns[at(split, s, begin, end)]
                                            : range_ns(split, s, begin, end);
                double slowest = own > before ? own : before;
                if (slowest < split->next[end]) {
                    split->next[end] = slowest;
                    split->from[s * (L + 1) + end] = begin;
                }
            }
        }
        double* before = split->best;
        split->best = split->next;
        split->next = before;
    }
    return split->best[L];
}

static void ranges_make(Split* out) {
    for (int32_t s = 0; s < out->P; s++) {
        for (int32_t begin = begin_first(out, s); begin <= begin_last(out, s); begin++) {
            for (int32_t end = end_first(out, s, begin); end <= out->L; end++) {
                out->time_ns[at(out, s, begin, end)] = range_ns(out, s, begin, end);
            }
        }
    }
}

// What fits only shrinks with more layers: where one end does not fit, none behind it does, nor before the
// same begin moved forward.
static void impossible_ranges(Split* split) {
    for (int32_t s = 0; s < split->P; s++) {
        int32_t fits_to = 0;
        for (int32_t begin = begin_first(split, s); begin <= begin_last(split, s); begin++) {
            int32_t end = end_first(split, s, begin);
            if (end < fits_to) { end = fits_to; }
            while (end <= split->L && range_fits(split, s, begin, end)) { end++; }
            fits_to = end;
            for (; end <= split->L; end++) { split->time_ns[at(split, s, begin, end)] = INFINITY; }
        }
    }
}

// Memory of one range, and what it says of those with more layers that begin no later (bound_memory.h).
static Status look_at_range(Split* split, int32_t s, int32_t begin, int32_t end, double known_ns) {
    int32_t own[PART_COUNT], other[PART_COUNT];
    double base = below_price(split, PRICE_F, s, begin) + after_ns(split, s, begin, end);
    double needed, state = state_bytes(split, s, begin, end);
    TRY(memory_ns(&needed, split, s, begin, end, known_ns - base));
    split->known[at(split, s, begin, end)] = true;
    if (base + needed <= split->time_ns[at(split, s, begin, end)]) { return STATUS_OK; }
    layer_counts(own, split, s, begin, end);
    for (int32_t b = begin_first(split, s); b <= begin; b++) {
        double arrival = below_price(split, PRICE_F, s, b);
        int32_t first = end_first(split, s, b);
        for (int32_t e = split->L; e >= first; e--) {
            layer_counts(other, split, s, b, e);
            if (other[PART_ENC_LAYER] < own[PART_ENC_LAYER] || other[PART_DEC_LAYER] < own[PART_DEC_LAYER]) {
                break;
            }
            double* time = &split->time_ns[at(split, s, b, e)];
            double raised = arrival + needed + after_ns(split, s, b, e);
            if (raised > *time && state_bytes(split, s, b, e) >= state) { *time = raised; }
        }
    }
    return STATUS_OK;
}

// The slowest range of the best split that was not looked at; -1: all were.
static int32_t slowest_unknown(int32_t* begin, int32_t* end, const Split* split) {
    int32_t found = -1;
    double slowest = -1;
    for (int32_t s = split->P - 1, e = split->L; s >= 0; s--) {
        int32_t b = split->from[s * (split->L + 1) + e];
        int64_t i = at(split, s, b, e);
        if (!split->known[i] && split->time_ns[i] > slowest) {
            slowest = split->time_ns[i], found = s, *begin = b, *end = e;
        }
        e = b;
    }
    return found;
}

static Status slowest_with_memory(double* out, Split* split) {
    double slowest = slowest_of_best(split);
    for (int32_t i = 0; i < MOST_RANGES && slowest < INFINITY; i++) {
        int32_t begin = 0, end = 0, s = slowest_unknown(&begin, &end, split);
        if (s < 0) { break; }
        TRY(look_at_range(split, s, begin, end, slowest));
        if (split->time_ns[at(split, s, begin, end)] > slowest) { slowest = slowest_of_best(split); }
    }
    *out = slowest < INFINITY ? slowest : 0;
    return STATUS_OK;
}

static Status split_alloc(Split* out, Arena* arena) {
    size_t L = (size_t)out->L + 1, P = (size_t)out->P, num = P * L * L;
    bool has_table = num <= MOST_TABLE;
    size_t num_rows = out->lines->problem->differs ? 1 + P : 1;
    out->prices = ARENA_NEW(arena, SplitPrices, num_rows);
    bool ok = out->prices != NULL;
    for (size_t row = 0; row < num_rows && ok; row++) {
        out->prices[row].before = arena_alloc_array(arena, L, sizeof *out->prices[row].before);
        ok = out->prices[row].before != NULL;
    }
    out->from = ARENA_NEW(arena, int32_t, P * L);
    out->best = ARENA_NEW(arena, double, L);
    out->next = ARENA_NEW(arena, double, L);
    out->stored = arena_alloc_array(arena, MOST_STORED, sizeof *out->stored);
    out->stored_once = ARENA_NEW(arena, double, MOST_STORED);
    out->received = ARENA_NEW(arena, double, MOST_STORED);
    ok = ok && out->from && out->best && out->next && out->stored && out->stored_once && out->received;
    if (ok && has_table) {
        out->time_ns = ARENA_NEW(arena, double, num);
        out->known = ARENA_NEW(arena, bool, num);
        ok = out->time_ns != NULL && out->known != NULL;
    }
    return ok ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "lower bound: no host memory left");
}

Status bound_split_best(double* stage_ns, double* with_memory_ns, const BoundLines* lines, Arena* arena,
                        Arena* scratch) {
    const PlanProblem* problem = lines->problem;
    const CostModel* costs = problem->costs;
    Split split = {.lines = lines,
                   .P = problem->P,
                   .L = costs->num_enc_layers + costs->num_dec_layers,
                   .num_enc = costs->num_enc_layers,
                   .scratch = scratch};
    TRY(split_alloc(&split, arena));
    prices_make(&split);
    if (split.time_ns) { ranges_make(&split); }
    *stage_ns = slowest_of_best(&split);
    *with_memory_ns = 0;
    if (problem->has_limit && split.time_ns) {
        stored_make(&split);
        impossible_ranges(&split);
        TRY(slowest_with_memory(with_memory_ns, &split));
    }
    return STATUS_OK;
}
