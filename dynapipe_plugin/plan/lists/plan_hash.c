// plan_hash.c -- a plan as one number: every field of plan.h, in the order of the text form.
#include "../../../util/numbers.h"
#include "plan.h"

static void add(uint64_t* hash, int64_t value) {
    *hash = hash_bytes(*hash, &value, sizeof value);
}

static void add_name(uint64_t* hash, const char* name) {
    size_t length = strlen(name);
    add(hash, (int64_t)length);
    *hash = hash_bytes(*hash, name, length);
}

static void add_placement(uint64_t* hash, const Plan* plan) {
    const Placement* placement = &plan->placement;
    add(hash, placement->num_chunks);
    for (int32_t k = 0; k < placement->num_chunks; k++) {
        add(hash, placement->stage_of[k]);
        add(hash, placement->chunks[k].layer_begin);
        add(hash, placement->chunks[k].layer_end);
    }
    add(hash, placement->head);
    for (int32_t s = 0; s <= plan->P && placement->head != HEAD_WHOLE; s++) {
        add(hash, placement->head_begin[s]);
    }
}

static void add_microbatch(uint64_t* hash, const Plan* plan, const PlanMicrobatch* mb) {
    add(hash, mb->replica);
    add(hash, mb->layout);
    add(hash, mb->sequence_begin);
    add(hash, mb->sequence_end);
    add(hash, mb->shape.num_seqs);
    add(hash, mb->shape.enc_tokens);
    add(hash, mb->shape.enc_squares);
    add(hash, mb->shape.dec_tokens);
    add(hash, mb->shape.dec_squares);
    add(hash, mb->shape.cross_products);
    add(hash, mb->shape.supervised_tokens);
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) { add(hash, mb->recompute[k]); }
}

static void add_rank(uint64_t* hash, const PlanRank* rank) {
    add(hash, rank->num_instrs);
    add(hash, rank->num_buffers);
    add(hash, rank->arena_bytes);
    add(hash, rank->state_bytes);
    if (rank->own_limit_bytes > 0) { add(hash, rank->own_limit_bytes); }
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        add(hash, instr->kind);
        add(hash, instr->chunk);
        add(hash, instr->mb);
        add(hash, instr->peer);
        add(hash, instr->begin_ns);
        add(hash, instr->end_ns);
    }
    for (int32_t i = 0; i < rank->num_buffers; i++) {
        const PlanBuffer* buffer = &rank->buffers[i];
        add(hash, buffer->kind);
        add(hash, buffer->chunk);
        add(hash, buffer->mb);
        add(hash, buffer->offset_bytes);
        add(hash, buffer->num_bytes);
        add(hash, buffer->instr_begin);
        add(hash, buffer->instr_end);
    }
}

static uint64_t decisions(const Plan* plan) {
    uint64_t hash = HASH_SEED;
    add(&hash, plan->P);
    add(&hash, plan->R);
    add(&hash, plan->M);
    add(&hash, plan->N);
    add(&hash, plan->num_sequences);
    add(&hash, plan->num_segments);
    add_name(&hash, plan->policy);
    add_name(&hash, plan->schedule);
    if (plan->pulls) { add(&hash, 1); }
    add(&hash, plan->memory_limit_bytes);
    add(&hash, plan->makespan_ns);
    add(&hash, plan->bound_ns);
    add_placement(&hash, plan);
    for (int32_t m = 0; m < plan->M; m++) { add_microbatch(&hash, plan, &plan->mbs[m]); }
    for (int32_t i = 0; i < plan->num_sequences; i++) {
        add(&hash, plan->sequences[i].segment_begin);
        add(&hash, plan->sequences[i].segment_end);
        add(&hash, plan->sequences[i].enc_tokens);
        add(&hash, plan->sequences[i].dec_tokens);
    }
    for (int32_t i = 0; i < plan->num_segments; i++) {
        add(&hash, plan->segments[i].sample_idx);
        add(&hash, plan->segments[i].first_token);
        add(&hash, plan->segments[i].num_tokens);
    }
    return hash;
}

uint64_t plan_hash(const Plan* plan) {
    uint64_t hash = decisions(plan);
    for (int32_t r = 0; r < plan->P * plan->R; r++) { add_rank(&hash, &plan->ranks[r]); }
    return hash_finish(hash);
}

uint64_t plan_hash_decisions(const Plan* plan) {
    return hash_finish(decisions(plan));
}

uint64_t plan_hash_replica(const Plan* plan, int32_t replica) {
    uint64_t hash = HASH_SEED;
    for (int32_t s = 0; s < plan->P; s++) { add_rank(&hash, &plan->ranks[replica * plan->P + s]); }
    return hash_finish(hash);
}
