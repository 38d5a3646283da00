#include "../pipe/pipe_schedule.h"
#include "plan_check_parts.h"
#include "plan_words.h"

static Status check_shares(const Plan* plan) {
    const Placement* placement = &plan->placement;
    if (placement->head >= HEAD_COUNT) {
        return FAIL(STATUS_INVALID_PLAN, "plan: no such split of the head");
    }
    if (placement->head == HEAD_WHOLE) { return STATUS_OK; }
    bool is_all = placement->head_begin[0] == 0 && placement->head_begin[plan->P] == HEAD_UNITS;
    for (int32_t s = 0; s < plan->P && is_all; s++) {
        is_all = placement->head_begin[s] <= placement->head_begin[s + 1];
    }
    return is_all ? STATUS_OK
                  : FAIL(STATUS_INVALID_PLAN, "plan: shares of the head are not %d units, stage by stage",
                         (int)HEAD_UNITS);
}

static Status check_placement(const Plan* plan) {
    const Placement* placement = &plan->placement;
    int32_t K = placement->num_chunks;
    bool is_used[PLAN_MAX_STAGES] = {false};
    if (K < 1 || K > PLAN_MAX_CHUNKS) {
        return FAIL(STATUS_INVALID_PLAN, "plan: %d chunks are out of range", K);
    }
    for (int32_t k = 0; k < K; k++) {
        LayerRange layers = placement->chunks[k];
        if (layers.layer_begin != (k > 0 ? placement->chunks[k - 1].layer_end : 0) ||
            !stage_may_have(&layers, k, K, false)) {
            return FAIL(STATUS_INVALID_PLAN,
                        "plan: chunk %d has layers %d ... %d, not next to those before it", k,
                        layers.layer_begin, layers.layer_end);
        }
        if (placement->stage_of[k] < 0 || placement->stage_of[k] >= plan->P) {
            return FAIL(STATUS_INVALID_PLAN, "plan: chunk %d lies on stage %d, there are %d", k,
                        placement->stage_of[k], plan->P);
        }
        is_used[placement->stage_of[k]] = true;
    }
    TRY(check_shares(plan));
    for (int32_t s = 0; s < plan->P; s++) {
        if (is_used[s] || placement_has_share(placement, s)) { continue; }
        return FAIL(STATUS_INVALID_PLAN, "plan: stage %d has no chunk and no share of the head", s);
    }
    return STATUS_OK;
}

static Status check_head(const Plan* plan, int32_t num_samples) {
    if (plan->P < 1 || plan->P > PLAN_MAX_STAGES || plan->R < 1 || plan->R > PLAN_MAX_REPLICAS) {
        return FAIL(STATUS_INVALID_PLAN, "plan: %d stages x %d replicas is out of range", plan->P, plan->R);
    }
    if (plan->M < 0 || plan->num_sequences < 0 || plan->num_segments < 0 || plan->N != num_samples) {
        return FAIL(STATUS_INVALID_PLAN, "plan: made for %d samples, the batch has %d", plan->N, num_samples);
    }
    if (!plan_name_is_valid(plan->policy) || !plan_name_is_valid(plan->schedule)) {
        return FAIL(STATUS_INVALID_PLAN,
                    "plan: names of policy and schedule must be words of a-z 0-9 _ - + .");
    }
    TRY(check_placement(plan));
    if (plan->bound_ns < 0 || plan->makespan_ns < plan->bound_ns) {
        return FAIL(STATUS_INVALID_PLAN, "plan: makespan %lld ns is below the bound of %lld ns",
                    (long long)plan->makespan_ns, (long long)plan->bound_ns);
    }
    return STATUS_OK;
}

// Padding of one sequence, as the layout of its micro-batch allows.
static Status check_sequence(const Plan* plan, int32_t m, int32_t i, const PlanSample* samples, bool* seen,
                             MbShape* shape) {
    const PlanSequence* seq = &plan->sequences[i];
    const PlanMicrobatch* mb = &plan->mbs[m];
    int64_t enc_tokens = 0, dec_tokens = 0;
    for (int32_t k = seq->segment_begin; k < seq->segment_end; k++) {
        PlanSegment segment = plan->segments[k];
        if (segment.sample_idx < 0 || segment.sample_idx >= plan->N) {
            return FAIL(STATUS_INVALID_PLAN, "micro-batch %d, sequence %d: there is no sample %d", m, i,
                        segment.sample_idx);
        }
        if (seen[segment.sample_idx]) {
            return FAIL(STATUS_INVALID_PLAN, "micro-batch %d, sequence %d: sample %d is there twice", m, i,
                        segment.sample_idx);
        }
        seen[segment.sample_idx] = true;
        const PlanSample* sample = &samples[segment.sample_idx];
        if (segment.first_token != 0 || segment.num_tokens != sample->enc_tokens) {
            return FAIL(STATUS_INVALID_PLAN, "micro-batch %d, sequence %d: sample %d is not whole", m, i,
                        segment.sample_idx);
        }
        enc_tokens += sample->enc_tokens;
        dec_tokens += sample->dec_tokens;
        shape->supervised_tokens += sample->supervised_tokens;
    }
    int32_t num_segments = seq->segment_end - seq->segment_begin;
    bool padded = mb->layout == LAYOUT_PADDED, packed = mb->layout == LAYOUT_PACKED;
    const PlanSequence* first = &plan->sequences[mb->sequence_begin];
    bool is_exact = seq->enc_tokens == enc_tokens && seq->dec_tokens == dec_tokens;
    bool is_longer = seq->enc_tokens >= enc_tokens && seq->dec_tokens >= dec_tokens;
    bool as_first = seq->enc_tokens == first->enc_tokens && seq->dec_tokens == first->dec_tokens;
    bool lengths_ok = packed ? is_longer : padded ? is_longer && as_first : is_exact;
    if (num_segments < 1 || (num_segments > 1 && !packed) || !lengths_ok) {
        return FAIL(STATUS_INVALID_PLAN,
                    "micro-batch %d, sequence %d: %d + %d tokens for %d samples of %lld + %lld is not %s", m,
                    i, seq->enc_tokens, seq->dec_tokens, num_segments, (long long)enc_tokens,
                    (long long)dec_tokens, plan_layout_words[mb->layout]);
    }
    shape->num_seqs++;
    shape->enc_tokens += seq->enc_tokens;
    shape->enc_squares += (int64_t)seq->enc_tokens * seq->enc_tokens;
    shape->dec_tokens += seq->dec_tokens;
    shape->dec_squares += (int64_t)seq->dec_tokens * seq->dec_tokens;
    shape->cross_products += (int64_t)seq->enc_tokens * seq->dec_tokens;
    return STATUS_OK;
}

static bool shapes_are_equal(const MbShape* a, const MbShape* b) {
    return a->num_seqs == b->num_seqs && a->enc_tokens == b->enc_tokens && a->enc_squares == b->enc_squares &&
           a->dec_tokens == b->dec_tokens && a->dec_squares == b->dec_squares &&
           a->cross_products == b->cross_products && a->supervised_tokens == b->supervised_tokens;
}

Status plan_check_batches(const Plan* plan, const PlanSample* samples, int32_t num_samples, Arena* arena) {
    TRY(check_head(plan, num_samples));
    bool* seen;
    ARENA_TRY_NEW(seen, arena, bool, num_samples);
    int32_t next_seq = 0, next_segment = 0, replica = 0;
    for (int32_t m = 0; m < plan->M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[m];
        if (mb->replica < replica || mb->replica >= plan->R || mb->layout >= LAYOUT_COUNT) {
            return FAIL(STATUS_INVALID_PLAN, "micro-batch %d: replica %d, layout %d: out of order or range",
                        m, mb->replica, mb->layout);
        }
        replica = mb->replica;
        for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
            if (mb->recompute[k] >= RECOMPUTE_COUNT) {
                return FAIL(STATUS_INVALID_PLAN, "micro-batch %d, chunk %d: no such recompute mode", m, k);
            }
        }
        if (mb->sequence_begin != next_seq || mb->sequence_end <= next_seq ||
            mb->sequence_end > plan->num_sequences) {
            return FAIL(STATUS_INVALID_PLAN, "micro-batch %d: sequences %d ... %d are not the next ones", m,
                        mb->sequence_begin, mb->sequence_end);
        }
        MbShape shape = {0};
        for (; next_seq < mb->sequence_end; next_seq++) {
            const PlanSequence* seq = &plan->sequences[next_seq];
            if (seq->segment_begin != next_segment || seq->segment_end < next_segment ||
                seq->segment_end > plan->num_segments) {
                return FAIL(STATUS_INVALID_PLAN,
                            "micro-batch %d, sequence %d: segments are not the next ones", m, next_seq);
            }
            next_segment = seq->segment_end;
            TRY(check_sequence(plan, m, next_seq, samples, seen, &shape));
        }
        if (!shapes_are_equal(&shape, &mb->shape)) {
            return FAIL(STATUS_INVALID_PLAN, "micro-batch %d: its shape is not that of its sequences", m);
        }
    }
    if (next_seq != plan->num_sequences || next_segment != plan->num_segments) {
        return FAIL(STATUS_INVALID_PLAN, "plan: sequences or segments belong to no micro-batch");
    }
    for (int32_t i = 0; i < num_samples; i++) {
        if (!seen[i]) { return FAIL(STATUS_INVALID_PLAN, "plan: sample %d is in no micro-batch", i); }
    }
    return STATUS_OK;
}

// Which micro-batches each replica has, and room for where their instructions are.
static Status replicas_init(PlanReplicaPlaces** out, const Plan* plan, Arena* arena) {
    PlanReplicaPlaces* replicas;
    ARENA_TRY_NEW(replicas, arena, PlanReplicaPlaces, plan->R);
    for (int32_t r = 0, m = 0; r < plan->R; r++) {
        replicas[r].mb_begin = m;
        while (m < plan->M && plan->mbs[m].replica == r) { m++; }
        replicas[r].mb_end = m;
        int64_t num_mbs = plan_has_replica(plan, r) ? m - replicas[r].mb_begin : 0;
        ARENA_TRY_NEW(replicas[r].places, arena, PlanPlaces,
                      plan_num_places(&plan->placement, plan->P) * num_mbs);
    }
    *out = replicas;
    return STATUS_OK;
}

static Status check_all(const Plan* plan, const PlanSample* samples, int32_t num_samples, Arena* arena,
                        Arena* scratch) {
    PlanReplicaPlaces* replicas = NULL;
    TRY(plan_check_batches(plan, samples, num_samples, arena));
    TRY(replicas_init(&replicas, plan, arena));
    for (int32_t rank = 0; rank < plan->P * plan->R; rank++) {
        if (!plan_has_replica(plan, rank / plan->P)) { continue; }
        arena_reset(scratch);
        TRY(plan_check_rank(plan, rank, &replicas[rank / plan->P], scratch));
    }
    return plan_check_comm(plan, replicas, arena);
}

Status plan_check(const Plan* plan, const PlanSample* samples, int32_t num_samples) {
    Arena arena = {0}, scratch = {0};
    Status status = check_all(plan, samples, num_samples, &arena, &scratch);
    arena_free(&arena);
    arena_free(&scratch);
    return status;
}
