#include "random_plan.h"
#include "../dynapipe_plugin/plan/simulate.h"

#undef NDEBUG
#include <assert.h>
#include <stdio.h>
#include <stdlib.h>

#include "../dynapipe_plugin/plan/schedule.h"

static int64_t pick(Rng* rng, int64_t lo, int64_t hi) {
    return lo + (int64_t)(rng_u64(rng) % (uint64_t)(hi - lo + 1));
}

static PipeCost draw_cost(Rng* rng, const RandomPipe* about, int64_t scale) {
    PipeCost cost = {0};
    int64_t least = about->zero_times && rng_below(rng, 4) == 0 ? 0 : 1;
    for (int32_t k = 0; k < JOB_COUNT; k++) { cost.job_ns[k] = pick(rng, least, 20 * least + 1) * scale; }
    cost.stored_bytes = pick(rng, 0, 50) * scale;
    return cost;
}

PipeProblem random_placed_pipe(Rng* rng, int32_t P, int32_t M, const Placement* placement,
                               const RandomPipe* about, Arena* arena) {
    PipeProblem problem = {.P = P, .M = M, .placement = placement};
    int32_t K = pipe_num_chunks(&problem), num_rows = pipe_num_rows(&problem);
    PipeCost* costs = ARENA_NEW(arena, PipeCost, (int64_t)num_rows * M);
    assert(costs != NULL);
    problem.cost = costs;
    PipeCost one = {
        .job_ns = {[JOB_F] = pick(rng, 1, 50), [JOB_B] = pick(rng, 1, 50), [JOB_W] = pick(rng, 1, 50)},
        .stored_bytes = 100};
    for (int32_t s = 0; s < P; s++) { problem.memory_limit_bytes[s] = INT64_MAX; }
    if (about->pieces) {
        int32_t* before = ARENA_NEW(arena, int32_t, M);
        for (int32_t m = 0; m < M; m++) { before[m] = m > 0 && rng_below(rng, 3) == 0 ? m - 1 : -1; }
        problem.piece_before = before;
    }
    for (int32_t m = 0; m < M; m++) {
        bool is_first =
            about->pieces && problem.piece_before[m] < 0 && m + 1 < M && problem.piece_before[m + 1] == m;
        int64_t scale = pick(rng, 1, 9), boundary_bytes = pick(rng, 1, 40);
        for (int32_t row = 0; row < num_rows; row++) {
            PipeCost* cost = &costs[(int64_t)row * M + m];
            *cost = one;
            if (about->equal) { continue; }
            *cost = draw_cost(rng, about, scale);
            bool sends = row != K - 1 &&
                         !(row < K && pipe_stage_of(&problem, row) == pipe_stage_of(&problem, row + 1));
            cost->input_bytes = row > 0 && row < K ? boundary_bytes : 0;
            cost->boundary_bytes = row < K - 1 ? boundary_bytes : 0;
            cost->transfer_ns = about->transfers && sends ? pick(rng, 0, 15) : 0;
            cost->part_ns = about->transfers && row >= K ? pick(rng, 0, 15) : 0;
            cost->factor_ns = about->transfers && row >= K ? pick(rng, 0, 3) : 0;
            if (is_first && row < K) {
                cost->kept_bytes = pick(rng, 0, 60), cost->kept_grad_bytes = pick(rng, 0, 90);
            }
            cost->drops = row < K && (int32_t)rng_below(rng, 100) < about->drops_percent;
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

PipeProblem random_pipe(Rng* rng, int32_t P, int32_t M, const RandomPipe* about, Arena* arena) {
    if (!about->placed) { return random_placed_pipe(rng, P, M, NULL, about, arena); }
    Placement* placement = ARENA_NEW(arena, Placement, 1);
    assert(placement != NULL);
    random_placement(placement, rng, P, 3 * P);
    return random_placed_pipe(rng, P, M, placement, about, arena);
}

void random_pipe_limit(PipeProblem* problem, Rng* rng, int32_t least_tenths, int32_t most_tenths) {
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t most = 0;
        for (int32_t m = 0; m < problem->M; m++) {
            int64_t bytes = pipe_alone_bytes(problem, s, m);
            most = bytes > most ? bytes : most;
        }
        problem->memory_limit_bytes[s] = most * rng_between(rng, least_tenths, most_tenths) / 10;
    }
}

// --- placements ------------------------------------------------------------------------------------------

// Shares that sum up to all units; about one in three is nothing.
static void draw_shares(Placement* out, Rng* rng, int32_t P) {
    out->head = (uint8_t)rng_below(rng, HEAD_COUNT);
    if (out->head == HEAD_WHOLE) { return; }
    int64_t weights[PLAN_MAX_STAGES], sum = 0, before = 0;
    for (int32_t s = 0; s < P; s++) {
        weights[s] = rng_below(rng, 3) == 0 ? 0 : rng_between(rng, 1, 10);
        sum += weights[s];
    }
    if (sum == 0) { sum = weights[P - 1] = 1; }
    for (int32_t s = 0; s < P; s++) {
        before += weights[s];
        out->head_begin[s + 1] = (int16_t)(before * HEAD_UNITS / sum);
    }
}

void random_placement(Placement* out, Rng* rng, int32_t P, int32_t num_layers) {
    *out = (Placement){0};
    draw_shares(out, rng, P);
    bool head_alone = P > 1 && out->head == HEAD_WHOLE && rng_below(rng, 3) == 0;
    int32_t most = num_layers + head_alone, shape = rng_between(rng, 0, 3), K = shape == 0 ? P : 2 * P;
    if (shape == 3) { K = P + rng_between(rng, 0, 2 * P); }
    if (K > most || K < P) { K = most < P ? P : most; }
    out->num_chunks = K;
    for (int32_t k = 0; k < K; k++) {
        int32_t with_layers = K - head_alone;
        out->chunks[k].begin = k < with_layers ? num_layers * k / with_layers : num_layers;
        out->chunks[k].end = k < with_layers ? num_layers * (k + 1) / with_layers : num_layers;
        int32_t lap = k / P, place = k % P;
        out->stage_of[k] = (int16_t)(shape == 2 && lap % 2 == 1 ? P - 1 - place : place);
    }
    for (int32_t k = K - 1; k > 0 && shape == 3; k--) {  // anywhere
        int32_t other = (int32_t)rng_below(rng, (uint32_t)k + 1);
        int16_t stage = out->stage_of[k];
        out->stage_of[k] = out->stage_of[other];
        out->stage_of[other] = stage;
    }
}

typedef struct {
    const PipeProblem* problem;
    uint8_t* done;   // [rows * M] a bit per JobKind
    bool* is_split;  // [rows * M]
} Draw;

static bool is_done(const Draw* draw, int32_t row, int32_t m, JobKind kind) {
    return draw->done[(int64_t)row * draw->problem->M + m] >> kind & 1;
}

static bool shares_are_done(const Draw* draw, int32_t m) {
    int32_t K = pipe_num_chunks(draw->problem);
    for (int32_t row = K; row < pipe_num_rows(draw->problem); row++) {
        if (pipe_has_row(draw->problem, row) && !is_done(draw, row, m, JOB_F)) { return false; }
    }
    return true;
}

// The next job of this kind can run as soon as its messages are there.
static bool can_run(const Draw* draw, int32_t row, int32_t m, JobKind kind) {
    int32_t K = pipe_num_chunks(draw->problem);
    bool is_share = row >= K, drops = pipe_cost(draw->problem, row, m)->drops;
    const int32_t before = is_share ? -1 : pipe_piece_before(draw->problem, m);
    if (is_done(draw, row, m, kind)) { return false; }
    if (kind == JOB_F && before >= 0 && !is_done(draw, row, before, JOB_F)) { return false; }
    for (int32_t i = 0; i < draw->problem->M && kind == JOB_B && !is_share; i++) {
        if (pipe_piece_before(draw->problem, i) == m && !is_done(draw, row, i, JOB_B)) { return false; }
    }
    if (kind == JOB_F) { return row == 0 || is_done(draw, is_share ? K - 1 : row - 1, m, JOB_F); }
    if (!is_done(draw, row, m, JOB_F)) { return false; }
    if (kind == JOB_R) { return drops && !is_share; }
    if (kind == JOB_B) {
        bool has_acts = !is_share && (!drops || is_done(draw, row, m, JOB_R));
        return has_acts && (row == K - 1 ? shares_are_done(draw, m) : is_done(draw, row + 1, m, JOB_B));
    }
    if (!is_share) {
        return draw->is_split[(int64_t)row * draw->problem->M + m] && is_done(draw, row, m, JOB_B);
    }
    return draw->problem->placement->head == HEAD_BY_ROWS || is_done(draw, K - 1, m, JOB_B);
}

PipeSchedule random_jobs(Rng* rng, const PipeProblem* problem, Arena* arena) {
    PipeSchedule schedule;
    int32_t num_rows = pipe_num_rows(problem), M = problem->M;
    Draw draw = {problem, ARENA_NEW(arena, uint8_t, (int64_t)num_rows * M),
                 ARENA_NEW(arena, bool, (int64_t)num_rows* M)};
    for (int32_t i = 0; i < num_rows * M; i++) { draw.is_split[i] = rng_below(rng, 2); }
    Status status = pipe_schedule_init(&schedule, problem, arena);
    assert(status == STATUS_OK);
    for (;;) {
        int32_t num = 0, row = 0, m = 0;
        JobKind kind = JOB_F;
        for (int32_t i = 0; i < num_rows * M * JOB_COUNT; i++) {
            int32_t one_row = i / JOB_COUNT / M, one_m = i / JOB_COUNT % M;
            JobKind one_kind = (JobKind)(i % JOB_COUNT);
            if (!pipe_has_row(problem, one_row) || !can_run(&draw, one_row, one_m, one_kind)) { continue; }
            if (rng_below(rng, (uint32_t)++num) > 0) { continue; }
            row = one_row;
            m = one_m;
            kind = one_kind;
        }
        if (num == 0) { return schedule; }
        draw.done[(int64_t)row * M + m] |= (uint8_t)(1 << kind);
        pipe_schedule_push(&schedule, pipe_stage_of(problem, row), kind, row, m);
    }
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

int32_t* random_pipe_order(Rng* rng, const PipeProblem* problem, Arena* arena) {
    int32_t *firsts = random_order(rng, problem->M, arena), *order = ARENA_NEW(arena, int32_t, problem->M);
    for (int32_t i = 0, num = 0; i < problem->M; i++) {
        if (pipe_piece_before(problem, firsts[i]) >= 0) { continue; }
        for (int32_t m = firsts[i]; m == firsts[i] || (m < problem->M && pipe_piece_before(problem, m) >= 0);
             m++) {
            order[num++] = m;
        }
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
    mb_shape_add(&mb->shape, seq->enc_tokens, 0, 0);
}

static void end_microbatch(Plan* plan, Rng* rng, const RandomPlan* about) {
    PlanMicrobatch* mb = &plan->mbs[plan->M++];
    mb->sequence_end = plan->num_sequences;
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        mb->recompute[k] = about->recompute && rng_below(rng, 2) ? RECOMPUTE_FULL : RECOMPUTE_NONE;
    }
}

// Piece by piece, each in a microbatch of its own, but the last, which is the next one's first sequence.
static void cut_sample(Plan* plan, Rng* rng, const RandomPlan* about, const PlanSample* samples, int32_t id,
                       int32_t replica) {
    int32_t tokens = samples[id].enc_tokens, num = rng_between(rng, 2, tokens < 4 ? tokens : 4);
    for (int32_t k = 0, begin = 0; k < num; k++) {
        int32_t end = k == num - 1 ? tokens : rng_between(rng, begin + 1, tokens - (num - 1 - k));
        PlanMicrobatch* mb = &plan->mbs[plan->M];
        *mb = (PlanMicrobatch){.replica = replica,
                               .layout = LAYOUT_RAGGED,
                               .continues = k > 0,
                               .sequence_begin = plan->num_sequences};
        plan->sequences[plan->num_sequences++] = (PlanSequence){.segment_begin = plan->num_segments,
                                                                .segment_end = plan->num_segments + 1,
                                                                .enc_tokens = end - begin};
        plan->segments[plan->num_segments++] = (PlanSegment){id, begin, end - begin};
        mb_shape_add_piece(&mb->shape, &samples[id], begin, end);
        begin = end;
        if (k < num - 1) { end_microbatch(plan, rng, about); }
    }
}

// Samples [begin, end) of ids as the next microbatch; where the first one is cut, the last of several.
static void add_microbatch(Plan* plan, Rng* rng, const RandomPlan* about, const PlanSample* samples,
                           const int32_t* ids, int32_t num_ids, int32_t replica) {
    bool is_cut = about->pieces && samples[ids[0]].enc_tokens > 1 && rng_below(rng, 2) == 0;
    if (is_cut) { cut_sample(plan, rng, about, samples, ids[0], replica); }
    PlanMicrobatch* mb = &plan->mbs[plan->M];
    if (!is_cut) {
        *mb = (PlanMicrobatch){.replica = replica, .sequence_begin = plan->num_sequences};
        mb->layout = (uint8_t)rng_below(rng, about->packed ? LAYOUT_COUNT : LAYOUT_PACKED);
    }
    int32_t longest = 0;
    for (int32_t i = 0; i < num_ids; i++) {
        if (samples[ids[i]].enc_tokens > longest) { longest = samples[ids[i]].enc_tokens; }
    }
    for (int32_t i = is_cut; i < num_ids;) {
        int32_t num = mb->layout == LAYOUT_PACKED ? rng_between(rng, 1, num_ids - i) : 1;
        add_sequence(plan, samples, ids + i, num, mb->layout == LAYOUT_PADDED ? longest : 0);
        i += num;
    }
    end_microbatch(plan, rng, about);
}

// Of a row of microbatch m; chunks are drawn in their order, shares behind them.
static void draw_bytes(RankBytes* bytes, Rng* rng, const Plan* plan, int32_t M, int32_t row, int32_t m) {
    const Placement* placement = &plan->placement;
    int32_t K = placement->num_chunks;
    RankBytes* cell = &bytes[(int64_t)row * M + m];
    *cell = (RankBytes){.acts_bytes = pick(rng, 0, 9000)};
    if (row < K) {
        bool has_out = row < K - 1 || placement->head != HEAD_WHOLE;
        cell->forward_bytes = pick(rng, 0, 9000);
        cell->in_bytes = row > 0 ? bytes[(int64_t)(row - 1) * M + m].out_bytes : 0;
        cell->out_bytes = has_out ? pick(rng, 1, 2000) : 0;
        return;
    }
    int64_t all_bytes = bytes[(int64_t)(K - 1) * M + m].out_bytes;
    int32_t begin = placement->head_begin[row - K], end = placement->head_begin[row - K + 1];
    bool by_rows = placement->head == HEAD_BY_ROWS;
    cell->in_bytes = by_rows ? all_bytes * end / HEAD_UNITS - all_bytes * begin / HEAD_UNITS : all_bytes;
    cell->part_bytes = by_rows ? cell->in_bytes : pick(rng, 0, 4000);
    cell->factor_bytes = by_rows ? 0 : pick(rng, 0, 200);
}

// Again with less memory; what fits has that as its limit.
static void tighten(PlanRank* ranks, Rng* rng, PipeTimeline* timeline, ReplicaListsInput* input,
                    Arena* arena) {
    for (int32_t s = 0; s < input->problem->P; s++) {
        input->enough_bytes[s] = ranks[s].arena_bytes * rng_between(rng, 70, 110) / 100 + 1;
    }
    Status status = replica_lists_make(ranks, timeline, input, arena);
    assert(status == STATUS_OK);
    for (int32_t s = 0; s < input->problem->P; s++) {
        bool fits = ranks[s].arena_bytes <= input->enough_bytes[s];
        if (fits) { ranks[s].own_limit_bytes = input->enough_bytes[s] + ranks[s].state_bytes; }
    }
}

static void set_ranks(Plan* plan, Rng* rng, const RandomPlan* about, int32_t replica, int32_t first_mb,
                      Arena* arena) {
    static const PipePolicy* const policies[] = {&pipe_policy_gpipe, &pipe_policy_1f1b,
                                                 &pipe_policy_adaptive};
    int32_t P = plan->P, M = plan->M - first_mb;
    const Placement* placement = about->placed ? &plan->placement : NULL;
    PipeProblem problem =
        random_placed_pipe(rng, P, M, placement, &(RandomPipe){.transfers = rng_below(rng, 2)}, arena);
    problem.pulls = plan->pulls;
    int32_t* before = ARENA_NEW(arena, int32_t, M);
    bool has_pieces = false;
    for (int32_t m = 0; m < M; m++) {
        before[m] = plan->mbs[first_mb + m].continues ? m - 1 : -1;
        has_pieces |= before[m] >= 0;
    }
    if (has_pieces) { problem.piece_before = before; }
    int32_t num_rows = pipe_num_rows(&problem);
    RankBytes* bytes = ARENA_NEW(arena, RankBytes, (int64_t)num_rows * M);
    int64_t scratch_bytes[PLAN_MAX_STAGES] = {0};
    for (int32_t m = 0; m < M; m++) {
        for (int32_t row = 0; row < num_rows; row++) {
            if (!pipe_has_row(&problem, row)) { continue; }
            RankBytes* cell = &bytes[(int64_t)row * M + m];
            int64_t scratch = pick(rng, 0, 3000);
            int32_t s = pipe_stage_of(&problem, row);
            draw_bytes(bytes, rng, plan, M, row, m);
            if (about->bytes != NULL) {
                about->bytes(cell, &scratch, plan, first_mb + m, row, about->context);
            }
            if (scratch > scratch_bytes[s]) { scratch_bytes[s] = scratch; }
            PipeCost* cost = (PipeCost*)(uintptr_t)pipe_cost(&problem, row, m);
            cost->mode = row < plan->placement.num_chunks
                             ? (RecomputeMode)plan->mbs[first_mb + m].recompute[row]
                             : RECOMPUTE_NONE;
            cost->drops = cost->mode == RECOMPUTE_FULL;
            cost->stored_bytes = cell->acts_bytes;
            cost->input_bytes = cell->in_bytes;
            cost->forward_bytes = cell->forward_bytes;
            if (row >= plan->placement.num_chunks || before[m] >= 0 || m + 1 == M || before[m + 1] < 0) {
                continue;
            }
            cost->kept_bytes = cell->kept_bytes = pick(rng, 0, 3000);
            cost->kept_grad_bytes = cell->kept_grad_bytes = pick(rng, 0, 6000);
        }
    }
    int32_t* order = ARENA_NEW(arena, int32_t, M);
    for (int32_t m = 0; m < M; m++) { order[m] = m; }
    int32_t way = (int32_t)rng_below(rng, 3);
    if (has_pieces && !about->placed) { way = 2; }
    PipeSchedule schedule;
    PipeTimeline timeline;
    Status status = STATUS_OK;
    if (about->placed && way < 2) {
        schedule = random_jobs(rng, &problem, arena);
    } else {
        status = policies[way]->build(&schedule, &problem, order, rng_below(rng, 2), arena);
    }
    assert(status == STATUS_OK);
    status = pipe_simulate(&timeline, &problem, &schedule, arena);
    assert(status == STATUS_OK);
    ReplicaListsInput input = {.problem = &problem,
                               .schedule = &schedule,
                               .bytes = bytes,
                               .scratch_bytes = scratch_bytes,
                               .first_mb = first_mb,
                               .first_rank = replica * P,
                               .with_slack = (P + M) % 3 > 0};
    PlanRank* ranks = &plan->ranks[replica * P];
    for (int32_t s = 0; s < P; s++) {
        input.enough_bytes[s] = INT64_MAX;
        ranks[s].state_bytes = pick(rng, 0, 1000);
    }
    status = replica_lists_make(ranks, &timeline, &input, arena);
    assert(status == STATUS_OK);
    if (about->tight && rng_below(rng, 2)) { tighten(ranks, rng, &timeline, &input, arena); }
    if (timeline.makespan_ns > plan->makespan_ns) { plan->makespan_ns = timeline.makespan_ns; }
}

PlanSample* random_plan(Plan* out, Rng* rng, const RandomPlan* about, Arena* arena) {
    int32_t N = about->num_samples, next = 0;
    Plan plan = {.P = about->P, .R = about->R, .N = N, .policy = "random", .schedule = "random"};
    plan.chain = plan_chain_whole(about->num_layers, 0);
    plan.pulls = (plan.P + N) % 3 == 1;  // without a draw: other things stay as they are
    PlanSample* samples = ARENA_NEW(arena, PlanSample, N);
    int32_t* ids = random_order(rng, N, arena);
    plan.mbs = ARENA_NEW(arena, PlanMicrobatch, 4 * N);
    plan.sequences = ARENA_NEW(arena, PlanSequence, 4 * N);
    plan.segments = ARENA_NEW(arena, PlanSegment, 4 * N);
    plan.ranks = ARENA_NEW(arena, PlanRank, plan.P * plan.R);
    for (int32_t i = 0; i < N; i++) {
        samples[i].enc_tokens = rng_between(rng, 1, about->max_tokens);
        samples[i].supervised_tokens = rng_between(rng, 0, samples[i].enc_tokens);
    }
    bool head_alone = !about->placed && plan.P > 1 && rng_below(rng, 3) == 0;
    if (about->placed) {
        random_placement(&plan.placement, rng, plan.P, about->num_layers);
    } else {
        BlockRange stages[PLAN_MAX_STAGES];
        for (int32_t s = 0, P = plan.P - head_alone; s < plan.P; s++) {
            stages[s].begin = s < P ? about->num_layers * s / P : about->num_layers;
            stages[s].end = s < P ? about->num_layers * (s + 1) / P : about->num_layers;
        }
        placement_linear(&plan.placement, stages, plan.P);
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

bool plan_text_is(const Plan* plan, const char* name, uint64_t hash) {
    char path[64], *text = NULL;
    size_t num_bytes;
    FILE* file = open_memstream(&text, &num_bytes);
    plan_print(plan, file);
    fclose(file);
    snprintf(path, sizeof path, "build/%s.txt", name);
    if ((file = fopen(path, "w")) != NULL) {
        fwrite(text, 1, num_bytes, file);
        fclose(file);
    }
    uint64_t found = hash_bytes(HASH_SEED, text, num_bytes);
    free(text);
    if (found == hash) { return true; }
    printf("%s: the text has the hash 0x%016llx ---> compare it with the one of the commit before; right: "
           "write this hash into the test\n",
           path, (unsigned long long)found);
    return false;
}
