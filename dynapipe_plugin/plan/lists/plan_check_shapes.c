// plan_check_shapes.c -- does a plan keep to what the model's kernels ask of a micro-batch (shape_rules.h)?
#include "../problem/shape_rules.h"
#include "plan.h"

static bool is_multiple(int64_t num_tokens, int32_t multiple) {
    return multiple <= 1 || num_tokens % multiple == 0;
}

// One window's side among those of its micro-batch.
static bool side_is_padded(const ShapeRules* rules, int32_t num_tokens, int32_t first_tokens,
                           int64_t num_seqs) {
    return num_tokens == first_tokens && is_multiple(num_tokens, rules->seq_multiple) &&
           is_multiple(num_tokens * num_seqs, rules->tokens_multiple);
}

static Status check_microbatch(const Plan* plan, const ShapeRules* rules, int32_t m) {
    const PlanMicrobatch* mb = &plan->mbs[m];
    if (!shape_rules_allow(rules, &mb->shape)) {
        char words[SHAPE_WORDS];
        shape_rules_say(words, rules, &mb->shape);
        return FAIL(STATUS_INVALID_PLAN, "micro-batch %d: %s", m, words);
    }
    const PlanSequence* first = &plan->sequences[mb->sequence_begin];
    for (int32_t i = mb->sequence_begin; i < mb->sequence_end && rules->padded; i++) {
        const PlanSequence* seq = &plan->sequences[i];
        bool is_whole = seq->segment_end - seq->segment_begin == 1;
        if (!is_whole || !side_is_padded(rules, seq->enc_tokens, first->enc_tokens, mb->shape.num_seqs) ||
            !side_is_padded(rules, seq->dec_tokens, first->dec_tokens, mb->shape.num_seqs)) {
            return FAIL(STATUS_INVALID_PLAN,
                        "micro-batch %d, sequence %d: %d + %d tokens, one of %lld, are not what the kernels "
                        "take",
                        m, i, seq->enc_tokens, seq->dec_tokens, (long long)mb->shape.num_seqs);
        }
    }
    return STATUS_OK;
}

Status plan_check_shapes(const Plan* plan, const ShapeRules* rules) {
    if (!stage_may_have(&plan->placement.chunks[plan->P - 1], plan->P - 1, plan->P, rules->head_has_layer)) {
        return FAIL(STATUS_INVALID_PLAN, "plan: the last stage has the head alone, which needs a layer");
    }
    for (int32_t m = 0; m < plan->M; m++) { TRY(check_microbatch(plan, rules, m)); }
    return STATUS_OK;
}
