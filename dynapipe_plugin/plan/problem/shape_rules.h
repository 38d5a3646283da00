/*
shape_rules.h -- what a model's kernels ask of a micro-batch (ShapeRules), as the passes ask it.

    T(B) = the longest of B samples, rounded up to lcm(seq_multiple, tokens_multiple / gcd(tokens_multiple,
B))

so that T is a multiple of seq_multiple and B T one of tokens_multiple. Where kernels ask for neither, padding
goes to a multiple of PAD_MULTIPLE, but not beyond the longest sequence that the model takes. Rules may let a
short T(B) grow with a smaller B: passes that take more samples for more tokens are then right, if not
always the best.
*/
#pragma once

#include "../../../util/status.h"
#include "../types/plan_request.h"

enum { PAD_MULTIPLE = 8, SHAPE_MAX_MULTIPLE = 1 << 16, SHAPE_MAX_WINDOW = 1 << 24, SHAPE_WORDS = 256 };

int64_t shape_greatest_divisor(int64_t a, int64_t b);  // of both; that of 0 and b is b
// What T(num_seqs) is a multiple of; num_seqs 0: the least of any number of sequences.
int64_t shape_rules_multiple(const ShapeRules* rules, int64_t num_seqs);
// num_tokens rounded up to that.
int64_t shape_rules_round(const ShapeRules* rules, int64_t num_tokens, int64_t num_seqs);
// T. max_tokens: the longest sequence that the model takes (0: any), which rules keep to by themselves
// (shape_rules_check).
int32_t shape_rules_pad(const ShapeRules* rules, int32_t num_tokens, int64_t num_seqs, int64_t max_tokens);
// Sequences, tokens, squares and products within what the kernels take.
bool shape_rules_allow(const ShapeRules* rules, const MbShape* shape);
// Is there such a limit at all?
bool shape_rules_limit(const ShapeRules* rules);
// What of a shape that is not allowed is too much: "5 sequences, the model's kernels take 4 (max_seqs)".
void shape_rules_say(char out[SHAPE_WORDS], const ShapeRules* rules, const MbShape* shape);
// At least so many micro-batches for all of this.
int64_t shape_rules_least_mbs(const ShapeRules* rules, const MbShape* all);

// Can a model have such rules?
Status shape_rules_valid(const ShapeRules* rules);

// Can the request keep its own rules? STATUS_BAD_OPTION names the option that does not.
Status shape_rules_check(const PlanRequest* request);
