#include "shape_rules.h"

#include <stdio.h>

int64_t shape_greatest_divisor(int64_t a, int64_t b) {
    while (b != 0) {
        int64_t rest = a % b;
        a = b;
        b = rest;
    }
    return a;
}

static int64_t at_least_one(int32_t multiple) {
    return multiple > 1 ? multiple : 1;
}

int64_t shape_rules_multiple(const ShapeRules* rules, int64_t num_seqs) {
    int64_t seq = at_least_one(rules->seq_multiple), tokens = at_least_one(rules->tokens_multiple);
    int64_t rest = tokens / shape_greatest_divisor(tokens, num_seqs);
    return seq / shape_greatest_divisor(seq, rest) * rest;
}

static int64_t round_up(int64_t num_tokens, int64_t multiple) {
    return (num_tokens + multiple - 1) / multiple * multiple;
}

int64_t shape_rules_round(const ShapeRules* rules, int64_t num_tokens, int64_t num_seqs) {
    return round_up(num_tokens, shape_rules_multiple(rules, num_seqs));
}

int32_t shape_rules_pad(const ShapeRules* rules, int32_t num_tokens, int64_t num_seqs, int64_t max_tokens) {
    bool asked = rules->seq_multiple > 0 || rules->tokens_multiple > 0;
    int64_t multiple = asked ? shape_rules_multiple(rules, num_seqs) : PAD_MULTIPLE;
    int64_t rounded = round_up(num_tokens, multiple);
    if (asked || max_tokens <= 0 || max_tokens > rounded) { return (int32_t)rounded; }
    return (int32_t)(max_tokens < num_tokens ? num_tokens : max_tokens);
}

// --- limits ----------------------------------------------------------------------------------------------

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t most_tokens(const MbShape* shape) {
    return larger(shape->enc_tokens, shape->dec_tokens);
}

static int64_t most_squares(const MbShape* shape) {
    return larger(larger(shape->enc_squares, shape->dec_squares), shape->cross_products);
}

static bool is_within(int64_t count, int64_t most) {
    return most <= 0 || count <= most;
}

bool shape_rules_allow(const ShapeRules* rules, const MbShape* shape) {
    return is_within(shape->num_seqs, rules->max_seqs) && is_within(most_tokens(shape), rules->max_tokens) &&
           is_within(most_squares(shape), rules->max_squares);
}

bool shape_rules_limit(const ShapeRules* rules) {
    return rules->max_seqs > 0 || rules->max_tokens > 0 || rules->max_squares > 0;
}

void shape_rules_say(char out[SHAPE_WORDS], const ShapeRules* rules, const MbShape* shape) {
    if (!is_within(shape->num_seqs, rules->max_seqs)) {
        snprintf(out, SHAPE_WORDS, "%lld sequences, the model's kernels take %lld (max_seqs)",
                 (long long)shape->num_seqs, (long long)rules->max_seqs);
    } else if (!is_within(most_tokens(shape), rules->max_tokens)) {
        snprintf(out, SHAPE_WORDS, "%lld + %lld tokens, the model's kernels take %lld of each (max_tokens)",
                 (long long)shape->enc_tokens, (long long)shape->dec_tokens, (long long)rules->max_tokens);
    } else {
        snprintf(out, SHAPE_WORDS,
                 "squared lengths of %lld and %lld, products of %lld; the model's kernels count up to %lld "
                 "of each (max_squares)",
                 (long long)shape->enc_squares, (long long)shape->dec_squares,
                 (long long)shape->cross_products, (long long)rules->max_squares);
    }
}

static int64_t parts_of(int64_t count, int64_t most) {
    return most > 0 ? (count + most - 1) / most : 0;
}

int64_t shape_rules_least_mbs(const ShapeRules* rules, const MbShape* all) {
    int64_t of_seqs = parts_of(all->num_seqs, rules->max_seqs);
    int64_t of_tokens = parts_of(most_tokens(all), rules->max_tokens);
    return larger(larger(of_seqs, of_tokens), parts_of(most_squares(all), rules->max_squares));
}

// --- a request -------------------------------------------------------------------------------------------

// A sequence of max_tokens is padded to itself, alone or among others: then none is padded beyond it.
static Status check_longest(const ShapeRules* rules, const char* option, int64_t max_tokens) {
    int64_t multiple = shape_rules_multiple(rules, 1), below = max_tokens / multiple * multiple;
    bool asked = rules->seq_multiple > 0 || rules->tokens_multiple > 0;
    if (!asked || max_tokens <= 0 || below == max_tokens) { return STATUS_OK; }
    char shorter[64] = "";
    if (below > 0) { snprintf(shorter, sizeof shorter, "%s %lld or ", option, (long long)below); }
    return FAIL(STATUS_BAD_OPTION,
                "%s %lld: the model's kernels take windows of a multiple of %lld tokens (seq_multiple %d, "
                "tokens_multiple %d) ---> %s%s %lld",
                option, (long long)max_tokens, (long long)multiple, rules->seq_multiple,
                rules->tokens_multiple, shorter, option, (long long)(below + multiple));
}

static Status check_padded(const PlanRequest* request) {
    static const char* const ragged[BATCHING_COUNT] = {
        [BATCHING_PACKED] = "packed", [BATCHING_PACKED_RAGGED] = "packed-ragged", [BATCHING_KK] = "kk"};
    const char* name = ragged[request->batching];
    if (name != NULL) {
        return FAIL(STATUS_BAD_OPTION,
                    "--batching %s: the model's kernels take padded windows only, one sample in each ---> "
                    "--batching dynamic, dynapipe, padded or tokens",
                    name);
    }
    TRY(check_longest(&request->rules, "-t", request->max_seq_tokens));
    return check_longest(&request->rules, "--target-tokens", request->max_target_tokens);
}

Status shape_rules_valid(const ShapeRules* rules) {
    bool in_range = rules->seq_multiple >= 0 && rules->seq_multiple <= SHAPE_MAX_MULTIPLE &&
                    rules->tokens_multiple >= 0 && rules->tokens_multiple <= SHAPE_MAX_MULTIPLE;
    bool is_ragged = !rules->padded && (rules->seq_multiple > 1 || rules->tokens_multiple > 1);
    if (!in_range || is_ragged) {
        return FAIL(
            STATUS_OUT_OF_RANGE,
            "shapes of the model: seq_multiple %d, tokens_multiple %d, padded %d ---> multiples of 0 to %d, "
            "of padded windows only",
            rules->seq_multiple, rules->tokens_multiple, rules->padded, SHAPE_MAX_MULTIPLE);
    }
    if (rules->max_squares < 0 || rules->max_tokens < 0 || rules->max_seqs < 0) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "shapes of the model: max_squares %lld, max_tokens %lld, max_seqs %lld ---> 0 or more; "
                    "0 means that any will do",
                    (long long)rules->max_squares, (long long)rules->max_tokens, (long long)rules->max_seqs);
    }
    int64_t window = shape_rules_multiple(rules, 1);
    if (window > SHAPE_MAX_WINDOW) {
        return FAIL(STATUS_OUT_OF_RANGE,
                    "shapes of the model: seq_multiple %d and tokens_multiple %d ask a window alone for a "
                    "multiple of %lld tokens ---> of %d at most",
                    rules->seq_multiple, rules->tokens_multiple, (long long)window, SHAPE_MAX_WINDOW);
    }
    return STATUS_OK;
}

Status shape_rules_check(const PlanRequest* request) {
    TRY(shape_rules_valid(&request->rules));
    return request->rules.padded ? check_padded(request) : STATUS_OK;
}
