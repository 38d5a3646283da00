// list_check.c -- see list_check.h.
#include "list_check.h"

#include "../dynapipe_plugin/plan/types.h"

static Status sequence_check(const MicrobatchList* list, const PlanProblem* problem, int32_t q, bool* seen,
                             MbShape* shape) {
    const PlanSequence* sequence = &list->sequences[q];
    int64_t enc = 0, dec = 0, supervised = 0;
    if (sequence->segment_begin < 0 || sequence->segment_end <= sequence->segment_begin ||
        sequence->segment_end > list->num_segments) {
        return FAIL(STATUS_INVALID_PLAN, "sequence %d: segments out of range", q);
    }
    for (int32_t i = sequence->segment_begin; i < sequence->segment_end; i++) {
        int32_t id = list->segments[i].sample_idx;
        if (id < 0 || id >= problem->num_samples || seen[id]) {
            return FAIL(STATUS_INVALID_PLAN, "sequence %d: sample %d is unknown or used twice", q, id);
        }
        const PlanSample* sample = &problem->samples[id];
        seen[id] = true;
        enc += sample->enc_tokens;
        dec += sample->dec_tokens;
        supervised += sample->supervised_tokens;
        if (list->segments[i].first_token != 0 || list->segments[i].num_tokens != sample->enc_tokens) {
            return FAIL(STATUS_INVALID_PLAN, "sequence %d: sample %d is not whole", q, id);
        }
    }
    if (sequence->enc_tokens < enc || sequence->dec_tokens < dec) {
        return FAIL(STATUS_INVALID_PLAN, "sequence %d: shorter than its samples", q);
    }
    mb_shape_add(shape, sequence->enc_tokens, sequence->dec_tokens, 0);
    shape->supervised_tokens += supervised;
    return STATUS_OK;
}

static bool shape_equal(const MbShape* a, const MbShape* b) {
    return a->num_seqs == b->num_seqs && a->enc_tokens == b->enc_tokens && a->enc_squares == b->enc_squares &&
           a->dec_tokens == b->dec_tokens && a->dec_squares == b->dec_squares &&
           a->cross_products == b->cross_products && a->supervised_tokens == b->supervised_tokens;
}

Status list_check(const MicrobatchList* list, const PlanProblem* problem, Arena* arena) {
    bool* seen = ARENA_NEW(arena, bool, problem->num_samples);
    if (!seen) { return FAIL(STATUS_NO_MEMORY, "check of %d samples", problem->num_samples); }
    int32_t next = 0;
    for (int32_t m = 0; m < list->num_mbs; m++) {
        const Microbatch* mb = &list->mbs[m];
        MbShape shape = {0};
        if (mb->sequence_begin != next || mb->sequence_end <= next ||
            mb->sequence_end > list->num_sequences) {
            return FAIL(STATUS_INVALID_PLAN, "microbatch %d: sequences out of range", m);
        }
        for (; next < mb->sequence_end; next++) { TRY(sequence_check(list, problem, next, seen, &shape)); }
        MicrobatchCost cost = microbatch_cost(problem, mb->mode, SHARE_ALONE, &shape);
        if (!shape_equal(&shape, &mb->shape) || cost.work_ns != mb->work_ns) {
            return FAIL(STATUS_INVALID_PLAN, "microbatch %d: shape, work or replica is not what it says", m);
        }
        if (!cost.fits_alone) {
            return FAIL(STATUS_INVALID_PLAN, "microbatch %d: does not fit in memory", m);
        }
    }
    for (int32_t i = 0; i < problem->num_samples; i++) {
        if (!seen[i]) { return FAIL(STATUS_INVALID_PLAN, "sample %d is in no microbatch", i); }
    }
    return next == list->num_sequences
               ? STATUS_OK
               : FAIL(STATUS_INVALID_PLAN, "%d sequences in no microbatch", list->num_sequences - next);
}
