// sample_order.c -- merge sort by a comparison that never ties (ids differ), then the snake.
#include "sample_order.h"

#include <string.h>

typedef enum { BY_ENC, BY_DEC, BY_DEC_ASCENDING } OrderKey;

// Does sample a come before sample b?
static bool comes_first(const PlanSample* samples, int32_t a, int32_t b, OrderKey key) {
    const PlanSample *x = &samples[a], *y = &samples[b];
    if (key == BY_DEC_ASCENDING) {
        if (x->dec_tokens != y->dec_tokens) { return x->dec_tokens < y->dec_tokens; }
        return x->enc_tokens != y->enc_tokens ? x->enc_tokens < y->enc_tokens : a < b;
    }
    int32_t x1 = key == BY_DEC ? x->dec_tokens : x->enc_tokens,
            x2 = key == BY_DEC ? x->enc_tokens : x->dec_tokens;
    int32_t y1 = key == BY_DEC ? y->dec_tokens : y->enc_tokens,
            y2 = key == BY_DEC ? y->enc_tokens : y->dec_tokens;
    if (x1 != y1) { return x1 > y1; }
    return x2 != y2 ? x2 > y2 : a > b;
}

static void merge_sort(int32_t* ids, int32_t* spare, int32_t num, const PlanSample* samples, OrderKey key) {
    for (int64_t width = 1; width < num; width *= 2) {
        for (int64_t begin = 0; begin < num; begin += 2 * width) {
            int64_t mid = begin + width < num ? begin + width : num, i = begin, j = mid;
            int64_t end = begin + 2 * width < num ? begin + 2 * width : num;
            for (int64_t k = begin; k < end; k++) {
                bool left = j == end || (i < mid && !comes_first(samples, ids[j], ids[i], key));
                spare[k] = left ? ids[i++] : ids[j++];
            }
        }
        memcpy(ids, spare, (size_t)num * sizeof *ids);
    }
}

Status sample_order_sorted(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena) {
    int32_t* spare = ARENA_NEW(arena, int32_t, num_samples);
    if (!spare) { return FAIL(STATUS_NO_MEMORY, "sample order of %d samples", num_samples); }
    for (int32_t i = 0; i < num_samples; i++) { order[i] = i; }
    merge_sort(order, spare, num_samples, samples, BY_ENC);
    return STATUS_OK;
}

// A band holds the samples whose encoder length is within an eighth (or 16 tokens) of its longest.
static int32_t band_end(const int32_t* order, const PlanSample* samples, int32_t begin, int32_t num_samples) {
    int32_t longest = samples[order[begin]].enc_tokens, end = begin + 1;
    int32_t width = longest / 8 > 16 ? longest / 8 : 16;
    while (end < num_samples && longest - samples[order[end]].enc_tokens < width) { end++; }
    return end;
}

Status sample_order_make(int32_t* order, const PlanSample* samples, int32_t num_samples, Arena* arena) {
    TRY(sample_order_sorted(order, samples, num_samples, arena));
    bool decoder = false;
    for (int32_t i = 0; i < num_samples; i++) { decoder |= samples[i].dec_tokens > 0; }
    if (!decoder) { return STATUS_OK; }
    int32_t* spare = ARENA_NEW(arena, int32_t, num_samples);
    if (!spare) { return FAIL(STATUS_NO_MEMORY, "sample order of %d samples", num_samples); }
    OrderKey turn = BY_DEC;
    for (int32_t begin = 0, end; begin < num_samples; begin = end) {
        end = band_end(order, samples, begin, num_samples);
        merge_sort(order + begin, spare, end - begin, samples, turn);
        turn = turn == BY_DEC ? BY_DEC_ASCENDING : BY_DEC;
    }
    return STATUS_OK;
}
