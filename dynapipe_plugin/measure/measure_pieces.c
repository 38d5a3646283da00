#include "measure_pieces.h"

#include <math.h>

static void add(MeasureRanges* r, int32_t which, MeasureSlice slice, bool wanted) {
    r->slices[which] = slice;
    r->valid[which] = wanted && measure_slice_valid(r->blocks, slice);
}

static void count_pieces(MeasureRanges* r) {
    for (int32_t i = 0; i < RANGE_COUNT; i++) {
        if (!r->valid[i]) { continue; }
        CostStage stage = measure_slice_stage(r->blocks, r->slices[i]);
        cost_stage_count(r->count[i], r->blocks->num_layers, r->blocks->num_dec_layers, &stage);
    }
}

void measure_ranges_find(MeasureRanges* out, const DynapipeBlocks_v1* blocks) {
    const int32_t L = measure_num_layers(blocks), E = blocks->num_layers;
    const bool has_dec = blocks->num_dec_layers > 0;
    *out = (MeasureRanges){.blocks = blocks};
    add(out, RANGE_WHOLE, (MeasureSlice){0, L, true}, true);
    add(out, RANGE_FIRST, (MeasureSlice){0, 1, false}, true);
    add(out, RANGE_FIRST_TWO, (MeasureSlice){0, 2, false}, E >= 2);
    add(out, RANGE_ENC, (MeasureSlice){1, 2, false}, E >= 2 + has_dec);
    add(out, RANGE_ENC_TWO, (MeasureSlice){1, 3, false}, E >= 3 + has_dec);
    add(out, RANGE_ENC_END, (MeasureSlice){E - 1, E, false}, has_dec && E >= 2);
    add(out, RANGE_ACROSS, (MeasureSlice){E - 1, E + 1, false}, has_dec);
    add(out, RANGE_DEC_FIRST, (MeasureSlice){E, E + 1, false}, has_dec);
    add(out, RANGE_DEC_FIRST_TWO, (MeasureSlice){E, E + 2, false}, has_dec);
    add(out, RANGE_DEC, (MeasureSlice){E + 1, E + 2, false}, has_dec);
    add(out, RANGE_DEC_TWO, (MeasureSlice){E + 1, E + 3, false}, has_dec);
    add(out, RANGE_DEC_HEAD, (MeasureSlice){E, L, true}, has_dec);
    add(out, RANGE_LAST, (MeasureSlice){L - 1, L, true}, L >= 2);
    add(out, RANGE_HEAD, (MeasureSlice){L, L, true}, L >= 2);
    const MeasureSlice others[] = {
        {0, E, false},     {0, L, false},     {0, L / 2, false}, {L / 2, L, true},
        {1, L, true},      {1, L, false},     {E - 1, L, true},  {1, E, false},
        {0, E + 1, false}, {E / 2, L, false}, {L - 2, L, true},  {L - 2, L, false},
    };
    for (int32_t i = 0; i < RANGE_COUNT - RANGE_OTHERS; i++) { add(out, RANGE_OTHERS + i, others[i], true); }
    count_pieces(out);
}

// --- pieces ------------------------------------------------------------------------------------------------

typedef struct {
    const MeasureRanges* ranges;
    const double* value;
    double* piece;
} Apart;

static bool has(const Apart* a, int32_t range) {
    return a->ranges->valid[range];
}

static double beyond(double value, double known) {
    return fmax(value - known, 0);
}

// One layer more, of the first stack.
static double enc_layer(const Apart* a) {
    const double* v = a->value;
    if (has(a, RANGE_ENC_TWO) && has(a, RANGE_ENC)) { return beyond(v[RANGE_ENC_TWO], v[RANGE_ENC]); }
    if (has(a, RANGE_FIRST_TWO) && has(a, RANGE_FIRST)) { return beyond(v[RANGE_FIRST_TWO], v[RANGE_FIRST]); }
    if (a->ranges->blocks->num_layers > 1) { return beyond(v[RANGE_WHOLE], v[RANGE_LAST]); }
    return has(a, RANGE_FIRST) ? v[RANGE_FIRST] : v[RANGE_WHOLE];
}

static void take_enc(Apart* a) {
    const double* v = a->value;
    double layer = a->piece[PART_ENC_LAYER] = enc_layer(a);
    double once = has(a, RANGE_ENC)       ? beyond(v[RANGE_ENC], layer)
                  : has(a, RANGE_ENC_END) ? beyond(v[RANGE_ENC_END], layer)
                                          : 0;
    a->piece[ONCE_ENC] = once;
    a->piece[PART_EMBEDDING] = has(a, RANGE_FIRST) ? beyond(v[RANGE_FIRST], layer + once) : 0;
    if (has(a, RANGE_ENC_END)) { a->piece[ONCE_ENC_END] = beyond(v[RANGE_ENC_END], layer + once); }
}

static double dec_layer(const Apart* a) {
    const double* v = a->value;
    if (has(a, RANGE_DEC_TWO) && has(a, RANGE_DEC)) { return beyond(v[RANGE_DEC_TWO], v[RANGE_DEC]); }
    if (has(a, RANGE_DEC_FIRST_TWO) && has(a, RANGE_DEC_FIRST)) {
        return beyond(v[RANGE_DEC_FIRST_TWO], v[RANGE_DEC_FIRST]);
    }
    if (a->ranges->blocks->num_dec_layers > 1) { return beyond(v[RANGE_DEC_HEAD], v[RANGE_LAST]); }
    return has(a, RANGE_DEC_FIRST) ? v[RANGE_DEC_FIRST] : v[RANGE_DEC_HEAD];
}

static void take_dec(Apart* a) {
    const double* v = a->value;
    double layer = a->piece[PART_DEC_LAYER] = dec_layer(a);
    double one = has(a, RANGE_DEC) ? v[RANGE_DEC] : 0;
    if (has(a, RANGE_DEC_FIRST)) { one = fmax(one, v[RANGE_DEC_FIRST]); }
    a->piece[ONCE_DEC] = beyond(one, layer);
}

static double sum_of(const Apart* a, int32_t range) {
    double sum = 0;
    for (int32_t p = 0; p < PIECE_COUNT; p++) { sum += a->ranges->count[range][p] * a->piece[p]; }
    return sum;
}

// Which piece takes what a range has beyond the sum of its pieces.
static int32_t piece_for_rest(const int32_t count[PIECE_COUNT]) {
    return count[PART_HEAD]        ? PART_HEAD
           : count[ONCE_ENC_END]   ? ONCE_ENC_END
           : count[PART_DEC_LAYER] ? ONCE_DEC
           : count[PART_EMBEDDING] ? PART_EMBEDDING
                                   : ONCE_ENC;
}

void measure_pieces(double piece[PIECE_COUNT], const MeasureRanges* ranges, const double value[RANGE_COUNT]) {
    Apart a = {ranges, value, piece};
    for (int32_t p = 0; p < PIECE_COUNT; p++) { piece[p] = 0; }
    take_enc(&a);
    if (ranges->blocks->num_dec_layers > 0) { take_dec(&a); }
    for (int32_t with_head = 0; with_head < 2; with_head++) {  // the head takes what nothing before it does
        for (int32_t i = 0; i < RANGE_COUNT; i++) {
            if (!ranges->valid[i] || ranges->slices[i].has_head != with_head) { continue; }
            piece[piece_for_rest(ranges->count[i])] += beyond(value[i], sum_of(&a, i));
        }
    }
}
