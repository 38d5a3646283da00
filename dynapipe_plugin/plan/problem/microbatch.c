// microbatch.c -- see microbatch.h: building lists.
#include "microbatch.h"

#include "../types/mb_shape.h"
#include "shape_rules.h"

Status microbatch_list_reserve(MicrobatchList* list, int32_t max_mbs, int32_t num_samples, Arena* arena) {
    *list = (MicrobatchList){.mbs = ARENA_NEW(arena, Microbatch, max_mbs),
                             .sequences = ARENA_NEW(arena, PlanSequence, num_samples),
                             .segments = ARENA_NEW(arena, PlanSegment, num_samples)};
    if (!list->mbs || !list->sequences || !list->segments) {
        return FAIL(STATUS_NO_MEMORY, "micro-batches of %d samples", num_samples);
    }
    return STATUS_OK;
}

void microbatch_list_open(MicrobatchList* list, MbLayout layout, RecomputeMode mode) {
    list->mbs[list->num_mbs] = (Microbatch){.layout = layout,
                                            .mode = mode,
                                            .replica = -1,
                                            .sequence_begin = list->num_sequences,
                                            .sequence_end = list->num_sequences};
}

void microbatch_list_add(MicrobatchList* list, const PlanProblem* problem, const int32_t* ids, int32_t num,
                         int32_t enc_tokens, int32_t dec_tokens) {
    Microbatch* mb = &list->mbs[list->num_mbs];
    PlanSequence* sequence = &list->sequences[list->num_sequences++];
    int64_t supervised = 0;
    sequence->segment_begin = list->num_segments;
    for (int32_t i = 0; i < num; i++) {
        const PlanSample* sample = &problem->samples[ids[i]];
        list->segments[list->num_segments++] =
            (PlanSegment){.sample_idx = ids[i], .first_token = 0, .num_tokens = sample->enc_tokens};
        supervised += sample->supervised_tokens;
    }
    sequence->segment_end = list->num_segments;
    sequence->enc_tokens = enc_tokens;
    sequence->dec_tokens = dec_tokens;
    mb_shape_add(&mb->shape, enc_tokens, dec_tokens, 0);
    mb->shape.supervised_tokens += supervised;
    mb->sequence_end = list->num_sequences;
}

void microbatch_list_close(MicrobatchList* list, const PlanProblem* problem) {
    Microbatch* mb = &list->mbs[list->num_mbs++];
    mb->work_ns = microbatch_work_ns(problem, mb->mode, &mb->shape);
}

int32_t microbatch_pad_tokens(const PlanProblem* problem, int32_t num_tokens, int64_t num_seqs) {
    const PlanRequest* request = problem->request;
    return shape_rules_pad(&request->rules, num_tokens, num_seqs, request->max_seq_tokens);
}

int32_t microbatch_pad_targets(const PlanProblem* problem, int32_t num_tokens, int64_t num_seqs) {
    const PlanRequest* request = problem->request;
    if (request->max_target_tokens <= 0) { return microbatch_pad_tokens(problem, num_tokens, num_seqs); }
    return shape_rules_pad(&request->rules, num_tokens, num_seqs, request->max_target_tokens);
}

void microbatch_list_append(MicrobatchList* list, const PlanProblem* problem, MbLayout layout,
                            RecomputeMode mode, const int32_t* ids, int32_t num) {
    int32_t enc = 0, dec = 0;
    for (int32_t i = 0; i < num; i++) {
        const PlanSample* sample = &problem->samples[ids[i]];
        enc = sample->enc_tokens > enc ? sample->enc_tokens : enc;
        dec = sample->dec_tokens > dec ? sample->dec_tokens : dec;
    }
    enc = microbatch_pad_tokens(problem, enc, num);
    dec = microbatch_pad_targets(problem, dec, num);
    microbatch_list_open(list, layout, mode);
    for (int32_t i = 0; i < num; i++) {
        const PlanSample* sample = &problem->samples[ids[i]];
        bool padded = layout == LAYOUT_PADDED;
        microbatch_list_add(list, problem, &ids[i], 1, padded ? enc : sample->enc_tokens,
                            padded ? dec : sample->dec_tokens);
    }
    microbatch_list_close(list, problem);
}
