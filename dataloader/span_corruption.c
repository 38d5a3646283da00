#include "span_corruption.h"

#include <math.h>
#include <stdbool.h>
#include <string.h>

#include "../util/numbers.h"

static int32_t clamp(double x, int32_t least, int32_t most) {
    int32_t rounded = x < (double)SPAN_CORRUPTION_MAX_TOKENS ? (int32_t)rint(x) : SPAN_CORRUPTION_MAX_TOKENS;
    if (rounded > most) { rounded = most; }
    return rounded < least ? least : rounded;
}

SpanLengths span_corruption_lengths(const SpanCorruption* spans, int32_t num_tokens) {
    int32_t num_noise = clamp(num_tokens * spans->noise_density, 1, num_tokens - 1);
    int32_t num_kept = num_tokens - num_noise;
    int32_t most = spans->num_sentinels < num_kept ? spans->num_sentinels : num_kept;
    int32_t num_spans = clamp(num_noise / spans->mean_span, 1, most);
    return (SpanLengths){.num_noise = num_noise,
                         .num_spans = num_spans,
                         .n_input = num_kept + num_spans + 1,
                         .n_target = num_noise + num_spans + 1};
}

int32_t span_corruption_longest(const SpanCorruption* spans, int32_t max_input_tokens,
                                int32_t max_target_tokens) {
    int64_t too_long = (int64_t)max_input_tokens + max_target_tokens;  // both sides have all tokens, and more
    if (too_long > SPAN_CORRUPTION_MAX_TOKENS) { too_long = SPAN_CORRUPTION_MAX_TOKENS; }
    int32_t fits = 0, beyond = too_long > 0 ? (int32_t)too_long : 1;
    while (beyond - fits > 1) {
        int32_t middle = fits + (beyond - fits) / 2;
        SpanLengths lengths = span_corruption_lengths(spans, middle);
        bool fit = lengths.n_input <= max_input_tokens && lengths.n_target <= max_target_tokens;
        *(fit ? &fits : &beyond) = middle;
    }
    return fits;
}

// num_tokens divided into num_parts, each at least 1 long and every division as likely as another: of the
// gaps between tokens num_parts - 1 are chosen, one gap after the other (Knuth, TAOCP 2, 3.4.2, algorithm S).
typedef struct {
    Rng rng;
    int32_t num_tokens, num_parts;  // that are left
} Division;

static int32_t next_part(Division* left) {
    int32_t length = 0;
    do {
        if (left->num_parts == 1) {
            length += left->num_tokens;
            left->num_tokens = 0;
            break;
        }
        length++;
        left->num_tokens--;
    } while (rng_below(&left->rng, (uint32_t)left->num_tokens) >= (uint32_t)left->num_parts - 1);
    left->num_parts--;
    return length;
}

void span_corruption_apply(const SpanCorruption* spans, uint64_t key, const int32_t* text, int32_t num_tokens,
                           int32_t* input, int32_t* target) {
    SpanLengths lengths = span_corruption_lengths(spans, num_tokens);
    Division kept = {rng_seed(rng_mix(key)), num_tokens - lengths.num_noise, lengths.num_spans};
    Division noise = {rng_seed(rng_mix(key + 1)), lengths.num_noise, lengths.num_spans};
    for (int32_t i = 0; i < lengths.num_spans; i++) {
        int32_t sentinel = spans->sentinel_first + i * spans->sentinel_step;
        int32_t num_kept = next_part(&kept), num_noise = next_part(&noise);
        memcpy(input, text, sizeof *text * (size_t)num_kept);
        input += num_kept;
        *input++ = *target++ = sentinel;
        memcpy(target, text + num_kept, sizeof *text * (size_t)num_noise);
        target += num_noise;
        text += num_kept + num_noise;
    }
    *input = *target = spans->eot_token;
}
