// bound_batch.c -- see bound_batch.h.
#include "bound_batch.h"

#include <stdlib.h>

// How many of the extreme samples so far the next one is compared with: enough for real batches, and a few
// too many in `least` or `most` do no harm.
enum { MOST_COMPARED = 64 };

typedef struct {
    PlanSample sample;
    int32_t count, first;
} Distinct;

static int compare_tokens(int32_t a, int32_t b) {
    return (a > b) - (a < b);
}

static int compare_samples(const void* a, const void* b) {
    const Distinct *x = a, *y = b;
    int by = compare_tokens(x->sample.enc_tokens, y->sample.enc_tokens);
    if (by == 0) { by = compare_tokens(x->sample.dec_tokens, y->sample.dec_tokens); }
    if (by == 0) { by = compare_tokens(x->sample.supervised_tokens, y->sample.supervised_tokens); }
    return by != 0 ? by : compare_tokens(x->first, y->first);
}

static int compare_dec(const void* a, const void* b) {
    const Distinct *x = a, *y = b;
    int by = compare_tokens(x->sample.dec_tokens, y->sample.dec_tokens);
    return by != 0 ? by : compare_samples(a, b);
}

static bool is_equal(const PlanSample* a, const PlanSample* b) {
    return a->enc_tokens == b->enc_tokens && a->dec_tokens == b->dec_tokens &&
           a->supervised_tokens == b->supervised_tokens;
}

// Sorted; equal ones added up in place. Returns how many are left.
static int32_t distinct_make(Distinct* out, const PlanSample* samples, int32_t num_samples) {
    int32_t num = 0;
    for (int32_t i = 0; i < num_samples; i++) { out[i] = (Distinct){samples[i], 1, i}; }
    qsort(out, (size_t)num_samples, sizeof *out, compare_samples);
    for (int32_t i = 0; i < num_samples; i++) {
        if (num > 0 && is_equal(&out[num - 1].sample, &out[i].sample)) {
            out[num - 1].count++;
        } else {
            out[num++] = out[i];
        }
    }
    return num;
}

// Encoder lengths ascend with the index, so only the other two are compared.
static void extremes_make(BoundBatch* out) {
    for (int32_t i = 0; i < out->num; i++) {
        const PlanSample* s = &out->samples[i];
        bool beaten = false;
        for (int32_t k = 0; k < out->num_least && k < MOST_COMPARED && !beaten; k++) {
            const PlanSample* other = &out->samples[out->least[k]];
            beaten = other->dec_tokens <= s->dec_tokens && other->supervised_tokens <= s->supervised_tokens;
        }
        if (!beaten) { out->least[out->num_least++] = i; }
    }
    for (int32_t i = out->num - 1; i >= 0; i--) {
        const PlanSample* s = &out->samples[i];
        bool beaten = false;
        for (int32_t k = 0; k < out->num_most && k < MOST_COMPARED && !beaten; k++) {
            const PlanSample* other = &out->samples[out->most[k]];
            beaten = other->dec_tokens >= s->dec_tokens && other->supervised_tokens >= s->supervised_tokens;
        }
        if (!beaten) { out->most[out->num_most++] = i; }
    }
}

static void corner_add(BoundBatch* out, const Distinct* distinct, int32_t num) {
    PlanSample corner = distinct[0].sample;
    int32_t count = 0;
    for (int32_t i = 0; i < num; i++) {
        const PlanSample* s = &distinct[i].sample;
        if (s->enc_tokens < corner.enc_tokens) { corner.enc_tokens = s->enc_tokens; }
        if (s->dec_tokens < corner.dec_tokens) { corner.dec_tokens = s->dec_tokens; }
        if (s->supervised_tokens < corner.supervised_tokens) {
            corner.supervised_tokens = s->supervised_tokens;
        }
        count += distinct[i].count;
    }
    out->corners[out->num_corners] = corner;
    out->corner_count[out->num_corners++] = count;
}

// Slices of similar encoder lengths, each cut again by decoder lengths (or by encoder lengths where those are
// equal). Sorts the slices.
static void corners_make(BoundBatch* out, Distinct* distinct) {
    enum { SLICES = 16, PIECES = BOUND_MAX_CLASSES / SLICES };
    int64_t num = out->num;
    if (num <= BOUND_MAX_CLASSES) {
        for (int32_t i = 0; i < num; i++) { corner_add(out, &distinct[i], 1); }
        return;
    }
    for (int32_t slice = 0; slice < SLICES; slice++) {
        int64_t begin = num * slice / SLICES, own = num * (slice + 1) / SLICES - begin;
        qsort(distinct + begin, (size_t)own, sizeof *distinct, compare_dec);
        for (int32_t piece = 0; piece < PIECES; piece++) {
            int64_t from = own * piece / PIECES, to = own * (piece + 1) / PIECES;
            if (from < to) { corner_add(out, distinct + begin + from, (int32_t)(to - from)); }
        }
    }
}

Status bound_batch_make(BoundBatch* out, const PlanSample* samples, int32_t num_samples, Arena* arena) {
    Distinct* distinct = ARENA_NEW(arena, Distinct, num_samples);
    if (distinct == NULL) { return FAIL(STATUS_NO_MEMORY, "lower bound: no host memory left"); }
    int32_t num = distinct_make(distinct, samples, num_samples);
    *out = (BoundBatch){.num = num,
                        .samples = ARENA_NEW(arena, PlanSample, num),
                        .count = ARENA_NEW(arena, int32_t, num),
                        .first = ARENA_NEW(arena, int32_t, num),
                        .least = ARENA_NEW(arena, int32_t, num),
                        .most = ARENA_NEW(arena, int32_t, num)};
    if (!out->samples || !out->count || !out->first || !out->least || !out->most) {
        return FAIL(STATUS_NO_MEMORY, "lower bound: no host memory left");
    }
    for (int32_t i = 0; i < num; i++) {
        out->samples[i] = distinct[i].sample;
        out->count[i] = distinct[i].count;
        out->first[i] = distinct[i].first;
    }
    extremes_make(out);
    corners_make(out, distinct);
    return STATUS_OK;
}
