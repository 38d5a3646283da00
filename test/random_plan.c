#include "random_plan.h"

#undef NDEBUG
#include <assert.h>
#include <stdio.h>

static int64_t pick(Rng* rng, int64_t lo, int64_t hi) {
    return lo + (int64_t)(rng_u64(rng) % (uint64_t)(hi - lo + 1));
}

PipeProblem random_pipe(Rng* rng, int32_t P, int32_t M, const RandomPipe* about, Arena* arena) {
    PipeCost* costs = ARENA_NEW(arena, PipeCost, (int64_t)P * M);
    assert(costs != NULL);
    PipeCost one = {
        .job_ns = {[JOB_F] = pick(rng, 1, 50), [JOB_B] = pick(rng, 1, 50), [JOB_W] = pick(rng, 1, 50)},
        .stored_bytes = 100};
    PipeProblem problem = {.P = P, .M = M, .cost = costs};
    for (int32_t s = 0; s < P; s++) { problem.memory_limit_bytes[s] = INT64_MAX; }
    for (int32_t m = 0; m < M; m++) {
        int64_t scale = pick(rng, 1, 9), boundary_bytes = pick(rng, 1, 40);
        for (int32_t s = 0; s < P; s++) {
            PipeCost* cost = &costs[(int64_t)s * M + m];
            *cost = one;
            if (about->equal) { continue; }
            int64_t least = about->zero_times && rng_below(rng, 4) == 0 ? 0 : 1;
            for (int32_t k = 0; k < JOB_COUNT; k++) {
                cost->job_ns[k] = pick(rng, least, 20 * least + 1) * scale;
            }
            cost->stored_bytes = pick(rng, 0, 50) * scale;
            cost->input_bytes = s > 0 ? boundary_bytes : 0;
            cost->boundary_bytes = s < P - 1 ? boundary_bytes : 0;
            cost->transfer_ns = about->transfers && s < P - 1 ? pick(rng, 0, 15) : 0;
            cost->drops = (int32_t)rng_below(rng, 100) < about->drops_percent;
            if (cost->drops) {
                cost->mode = RECOMPUTE_FULL;
                cost->forward_bytes = pick(rng, 0, 50);
            } else {
                cost->job_ns[JOB_R] = 0;
            }
        }
    }
    return problem;
}

int32_t* random_order(Rng* rng, int32_t M, Arena* arena) {
    int32_t* order = ARENA_NEW(arena, int32_t, M);
    assert(order != NULL);
    for (int32_t i = 0; i < M; i++) {
        int32_t j = (int32_t)rng_below(rng, (uint32_t)i + 1);
        order[i] = order[j];
        order[j] = i;
    }
    return order;
}

// --- whole plans -----------------------------------------------------------------------------------------

static void add_sequence(Plan* plan, const PlanSample* samples, const int32_t* ids, int32_t num_ids,
                         int32_t pad_to) {
    PlanMicrobatch* mb = &plan->mbs[plan->M];
    PlanSequence* seq = &plan->sequences[plan->num_sequences++];
    *seq = (PlanSequence){.segment_begin = plan->num_segments};
    for (int32_t i = 0; i < num_ids; i++) {
        int32_t num_tokens = samples[ids[i]].enc_tokens;
        plan->segments[plan->num_segments++] = (PlanSegment){ids[i], 0, num_tokens};
        seq->enc_tokens += num_tokens;
        mb->shape.supervised_tokens += samples[ids[i]].supervised_tokens;
    }
    if (pad_to > 0) { seq->enc_tokens = pad_to; }
    seq->segment_end = plan->num_segments;
    mb->shape.num_seqs++;
    mb->shape.enc_tokens += seq->enc_tokens;
    mb->shape.enc_squares += (int64_t)seq->enc_tokens * seq->enc_tokens;
}

// Samples [begin, end) of ids as the next micro-batch.
static void add_microbatch(Plan* plan, Rng* rng, const RandomPlan* about, const PlanSample* samples,
                           const int32_t* ids, int32_t num_ids, int32_t replica) {
    PlanMicrobatch* mb = &plan->mbs[plan->M];
    *mb = (PlanMicrobatch){.replica = replica, .sequence_begin = plan->num_sequences};
    mb->layout = (uint8_t)rng_below(rng, about->packed ? LAYOUT_COUNT : LAYOUT_PACKED);
    int32_t longest = 0;
    for (int32_t i = 0; i < num_ids; i++) {
        if (samples[ids[i]].enc_tokens > longest) { longest = samples[ids[i]].enc_tokens; }
    }
    for (int32_t i = 0; i < num_ids;) {
        int32_t num = mb->layout == LAYOUT_PACKED ? rng_between(rng, 1, num_ids - i) : 1;
        add_sequence(plan, samples, ids + i, num, mb->layout == LAYOUT_PADDED ? longest : 0);
        i += num;
    }
    mb->sequence_end = plan->num_sequences;
    for (int32_t s = 0; s < about->P; s++) {
        mb->recompute[s] = about->recompute && rng_below(rng, 2) ? RECOMPUTE_FULL : RECOMPUTE_NONE;
    }
    plan->M++;
}

static void set_ranks(Plan* plan, Rng* rng, const RandomPlan* about, int32_t replica, int32_t first_mb,
                      Arena* arena) {
    static const PipePolicy* const policies[] = {&pipe_policy_gpipe, &pipe_policy_1f1b,
                                                 &pipe_policy_adaptive};
    int32_t P = plan->P, M = plan->M - first_mb;
    PipeProblem problem = random_pipe(rng, P, M, &(RandomPipe){.transfers = rng_below(rng, 2)}, arena);
    problem.pulls = plan->pulls;
    RankBytes* bytes = ARENA_NEW(arena, RankBytes, (int64_t)P * M);
    int64_t scratch_bytes[PLAN_MAX_STAGES] = {0};
    for (int32_t m = 0; m < M; m++) {
        int64_t in_bytes = 0;
        for (int32_t s = 0; s < P; s++) {
            RankBytes* cell = &bytes[(int64_t)s * M + m];
            int64_t scratch = pick(rng, 0, 3000);
            *cell = (RankBytes){pick(rng, 0, 9000), pick(rng, 0, 9000), in_bytes,
                                s < P - 1 ? pick(rng, 1, 2000) : 0};
            if (about->bytes != NULL) { about->bytes(cell, &scratch, plan, first_mb + m, s, about->context); }
            in_bytes = cell->out_bytes;
            if (scratch > scratch_bytes[s]) { scratch_bytes[s] = scratch; }
            PipeCost* cost = (PipeCost*)(uintptr_t)pipe_cost(&problem, s, m);
            cost->mode = (RecomputeMode)plan->mbs[first_mb + m].recompute[s];
            cost->drops = cost->mode == RECOMPUTE_FULL;
            cost->stored_bytes = cell->acts_bytes;
            cost->input_bytes = cell->in_bytes;
            cost->forward_bytes = cell->forward_bytes;
        }
    }
    int32_t* order = ARENA_NEW(arena, int32_t, M);
    for (int32_t m = 0; m < M; m++) { order[m] = m; }
    const PipePolicy* policy = policies[rng_below(rng, 3)];
    PipeSchedule schedule;
    PipeTimeline timeline;
    CommOrder comm;
    Status status = policy->build(&schedule, &problem, order, rng_below(rng, 2), arena);
    assert(status == STATUS_OK);
    status = pipe_simulate(&timeline, &problem, &schedule, arena);
    assert(status == STATUS_OK);
    status = comm_order_make(&comm, &problem, &schedule, &timeline, arena);
    assert(status == STATUS_OK);
    RankListInput input = {&problem, &schedule, &timeline,   &comm,
                           bytes,    first_mb,  replica * P, .with_slack = (P + M) % 3 > 0};
    for (int32_t s = 0; s < P; s++) {
        PlanRank* rank = &plan->ranks[replica * P + s];
        rank->state_bytes = pick(rng, 0, 1000);
        status = rank_list_make(rank, &input, s, scratch_bytes[s], INT64_MAX, arena);
        assert(status == STATUS_OK);
    }
    if (timeline.makespan_ns > plan->makespan_ns) { plan->makespan_ns = timeline.makespan_ns; }
}

PlanSample* random_plan(Plan* out, Rng* rng, const RandomPlan* about, Arena* arena) {
    int32_t N = about->num_samples, next = 0;
    Plan plan = {.P = about->P, .R = about->R, .N = N, .policy = "random", .schedule = "random"};
    plan.pulls = (plan.P + N) % 3 == 1;  // without a draw: other things stay as they are
    PlanSample* samples = ARENA_NEW(arena, PlanSample, N);
    int32_t* ids = random_order(rng, N, arena);
    plan.mbs = ARENA_NEW(arena, PlanMicrobatch, N);
    plan.sequences = ARENA_NEW(arena, PlanSequence, N);
    plan.segments = ARENA_NEW(arena, PlanSegment, N);
    plan.ranks = ARENA_NEW(arena, PlanRank, plan.P * plan.R);
    for (int32_t i = 0; i < N; i++) {
        samples[i].enc_tokens = rng_between(rng, 1, about->max_tokens);
        samples[i].supervised_tokens = rng_between(rng, 0, samples[i].enc_tokens);
    }
    bool head_alone = plan.P > 1 && rng_below(rng, 3) == 0;
    for (int32_t s = 0, P = plan.P - head_alone; s < plan.P; s++) {
        plan.placement.chunks[s].layer_begin = s < P ? about->num_layers * s / P : about->num_layers;
        plan.placement.chunks[s].layer_end = s < P ? about->num_layers * (s + 1) / P : about->num_layers;
    }
    for (int32_t r = 0; r < plan.R; r++) {
        int32_t first_mb = plan.M, most = r == plan.R - 1 ? N - next : rng_between(rng, 0, N - next);
        for (int32_t end = next + most; next < end;) {
            int32_t num = rng_between(rng, 1, end - next < 4 ? end - next : 4);
            add_microbatch(&plan, rng, about, samples, ids + next, num, r);
            next += num;
        }
        set_ranks(&plan, rng, about, r, first_mb, arena);
    }
    Status status = plan_check(&plan, samples, N);
    if (status != STATUS_OK) { fprintf(stderr, "random_plan: %s\n", status_message()); }
    assert(status == STATUS_OK);
    *out = plan;
    return samples;
}
