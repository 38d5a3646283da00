// microbatch.c -- what the batching passes share: the problem, prices of a shape, building and checking
// lists.
#include "microbatch.h"

#include <string.h>

#include "../types/mb_shape.h"
#include "shape_rules.h"

// --- the problem ------------------------------------------------------------------------------------------

static Status modes_choose(MicrobatchProblem* out) {
    static const bool allowed[][RECOMPUTE_COUNT] = {
        [RECOMPUTE_CHOICE_NONE] = {[RECOMPUTE_NONE] = true},
        [RECOMPUTE_CHOICE_FULL] = {[RECOMPUTE_FULL] = true},
        [RECOMPUTE_CHOICE_AUTO] = {true, true, true},
    };
    for (int mode = 0; mode < RECOMPUTE_COUNT; mode++) {
        if (allowed[out->request->recompute][mode] && cost_mode_offered(out->costs, (RecomputeMode)mode)) {
            out->modes[out->num_modes++] = (RecomputeMode)mode;
        }
    }
    if (out->num_modes == 0) {
        return FAIL(STATUS_BAD_OPTION,
                    "--recompute: the cost model has no such mode ---> choose another, or run "
                    "./profile_costs again");
    }
    return STATUS_OK;
}

static Status samples_check(const PlanSample* samples, int32_t num_samples) {
    for (int32_t i = 0; i < num_samples; i++) {
        if (samples[i].enc_tokens < 1 || samples[i].dec_tokens < 0 || samples[i].supervised_tokens < 0) {
            return FAIL(STATUS_OUT_OF_RANGE,
                        "sample %d: %d + %d tokens, %d supervised ---> drop empty samples", i,
                        samples[i].enc_tokens, samples[i].dec_tokens, samples[i].supervised_tokens);
        }
    }
    return num_samples > 0
               ? STATUS_OK
               : FAIL(STATUS_OUT_OF_RANGE, "a batch of %d samples ---> give at least one", num_samples);
}

static int64_t jobs_work_ns(const CostJobs* jobs) {
    return jobs->job_ns[JOB_F] + jobs->job_ns[JOB_B] + jobs->job_ns[JOB_W] + jobs->job_ns[JOB_R];
}

void microbatch_jobs(CostJobs* out, const MicrobatchProblem* problem, RecomputeMode mode,
                     const MbShape* shape) {
    CostParts parts;
    cost_parts(&parts, &problem->table, mode, shape);
    cost_jobs_of_stages(out, problem->costs, problem->stages, problem->P, &parts);
}

const MachineRank* microbatch_ranks(const MicrobatchProblem* problem, int32_t replica) {
    return machine_replica(problem->request->machine, replica * problem->P);
}

int64_t microbatch_available(const MicrobatchProblem* problem, const MachineRank* rank,
                             const CostStage* stage) {
    int64_t limit_bytes = machine_limit_bytes(rank, problem->request->memory_limit_bytes);
    return limit_bytes > 0 ? limit_bytes - cost_state_bytes(problem->costs, stage) : COST_LIMIT;
}

void microbatch_problem_limit(MicrobatchProblem* out) {
    out->has_limit = false;
    memset(out->limit_bytes, 0, sizeof out->limit_bytes);
    memset(out->most_limit_bytes, 0, sizeof out->most_limit_bytes);
    int32_t num_replicas = microbatch_ranks(out, 0) == NULL ? 1 : out->R;  // one stands for all
    for (int32_t s = 0; s < out->P; s++) {
        bool is_free = false;
        for (int32_t r = 0; r < num_replicas; r++) {
            const MachineRank* rank = machine_stage(microbatch_ranks(out, r), s);
            int64_t limit_bytes = machine_limit_bytes(rank, out->request->memory_limit_bytes);
            int64_t least_bytes = out->limit_bytes[s], most_bytes = out->most_limit_bytes[s];
            is_free |= limit_bytes == 0;
            if (limit_bytes == 0) { continue; }
            out->has_limit = true;
            out->limit_bytes[s] = least_bytes > 0 && least_bytes < limit_bytes ? least_bytes : limit_bytes;
            out->most_limit_bytes[s] = most_bytes > limit_bytes ? most_bytes : limit_bytes;
        }
        if (is_free) { out->most_limit_bytes[s] = 0; }
    }
}

// All samples as one micro-batch on replica r: the slowest of its stages and of its links, which send both
// ways.
static double replica_ns(const MicrobatchProblem* problem, int32_t r, const CostJobs* jobs) {
    const MachineRank* ranks = microbatch_ranks(problem, r);
    double slowest_ns = 1, before_ns = 0;
    for (int32_t s = 0; s < problem->P; s++) {
        double job_ns = machine_slow(&ranks[s]) * (double)jobs_work_ns(&jobs[s]);
        double send_ns = (double)machine_transfer_ns(&ranks[s], problem->costs, jobs[s].boundary_bytes);
        if (s == problem->P - 1) { send_ns = 0; }
        if (job_ns > slowest_ns) { slowest_ns = job_ns; }
        if (before_ns + send_ns > slowest_ns) { slowest_ns = before_ns + send_ns; }
        before_ns = send_ns;
    }
    return slowest_ns;
}

static void speeds_set(MicrobatchProblem* out) {
    CostJobs jobs[PLAN_MAX_STAGES];
    MbShape all = {0};
    double sum_ns = 0;
    out->differs = machine_differs(out->request->machine);
    for (int32_t s = 0; s < out->P; s++) { out->stage_slow[s] = 1; }
    for (int32_t r = 0; r < out->R; r++) { out->replica_slow[r] = 1; }
    if (!out->differs) { return; }
    for (int32_t i = 0; i < out->num_samples; i++) {
        const PlanSample* sample = &out->samples[i];
        mb_shape_add(&all, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    }
    microbatch_jobs(jobs, out, RECOMPUTE_NONE, &all);
    for (int32_t r = 0; r < out->R; r++) { sum_ns += out->replica_slow[r] = replica_ns(out, r, jobs); }
    for (int32_t r = 0; r < out->R; r++) { out->replica_slow[r] *= out->R / sum_ns; }
    for (int32_t s = 0; s < out->P; s++) {
        double sum = 0;
        for (int32_t r = 0; r < out->R; r++) { sum += machine_slow(&microbatch_ranks(out, r)[s]); }
        out->stage_slow[s] = sum / out->R;
    }
}

// Of the rank of this stage that has least, in the words of options.
static const char* limit_words(char out[MACHINE_LIMIT_CHARS], const MicrobatchProblem* problem,
                               int32_t stage) {
    int64_t common_bytes = problem->request->memory_limit_bytes;
    const MachineRank* least = NULL;
    int32_t replica = 0;
    for (int32_t r = 0; r < problem->R; r++) {
        const MachineRank* rank = machine_stage(microbatch_ranks(problem, r), stage);
        if (machine_limit_bytes(rank, common_bytes) != problem->limit_bytes[stage]) { continue; }
        least = rank, replica = r;
        break;
    }
    return machine_limit_words(out, least, replica * problem->P + stage);
}

Status microbatch_problem_init(MicrobatchProblem* out, const PlanRequest* request, const CostModel* costs,
                               const PlanSample* samples, int32_t num_samples) {
    if (request->P < 1 || request->P > PLAN_MAX_STAGES || request->R < 1 || request->R > PLAN_MAX_REPLICAS) {
        return FAIL(STATUS_OUT_OF_RANGE, "--stages %d --replicas %d ---> give 1 to %d and 1 to %d",
                    request->P, request->R, PLAN_MAX_STAGES, PLAN_MAX_REPLICAS);
    }
    TRY(samples_check(samples, num_samples));
    *out = (MicrobatchProblem){.request = request,
                               .costs = costs,
                               .samples = samples,
                               .count_buffers = request->memory_rule == MEMORY_BUFFERS,
                               .num_samples = num_samples,
                               .P = request->P,
                               .R = request->R};
    TRY(machine_check(request->machine, request->P * request->R));
    cost_table_init(&out->table, costs);
    microbatch_problem_limit(out);
    for (int32_t s = 0; s < out->P; s++) {
        out->stages[s] = cost_stage_make(costs, &request->placement.chunks[s], s, out->P);
        int64_t state_bytes = cost_state_bytes(costs, &out->stages[s]), limit = out->limit_bytes[s];
        out->available_bytes[s] = limit > 0 ? limit - state_bytes : COST_LIMIT;
        if (out->available_bytes[s] <= 0) {
            char words[MACHINE_LIMIT_CHARS];
            return FAIL(
                STATUS_INFEASIBLE,
                "%s: parameters, gradients and optimizer of stage %d take %lld bytes, %lld over "
                "---> raise the limit, %suse more --stages",
                limit_words(words, out, s), s, (long long)state_bytes, (long long)-out->available_bytes[s],
                request->choose_stages || out->P == 1 ? "or " : "give it fewer layers (--stage-split), or ");
        }
    }
    speeds_set(out);
    return modes_choose(out);
}

// --- prices -----------------------------------------------------------------------------------------------

// in_bytes: received from the stage before
static int64_t held_bytes(const MicrobatchProblem* problem, const CostJobs* jobs, int64_t in_bytes) {
    return jobs->stored_bytes + (problem->count_buffers ? in_bytes : 0);
}

static int64_t alone_bytes(const MicrobatchProblem* problem, RecomputeMode mode, const CostJobs* jobs,
                           int64_t in_bytes) {
    int64_t backward = jobs->stored_bytes;
    int64_t forward = problem->costs->recompute_is_job[mode] ? jobs->forward_bytes : jobs->stored_bytes;
    int64_t fixed = 0;
    if (problem->count_buffers) {
        backward += 2 * in_bytes + jobs->boundary_bytes;
        forward += in_bytes + jobs->boundary_bytes;
        fixed = jobs->scratch_bytes + 5 * PLAN_BUFFER_ALIGN;
    }
    return (backward > forward ? backward : forward) + fixed;
}

MicrobatchCost microbatch_cost(const MicrobatchProblem* problem, RecomputeMode mode, MicrobatchShare share,
                               const MbShape* shape) {
    CostJobs jobs[PLAN_MAX_STAGES];
    MicrobatchCost cost = {.fits_alone = shape_rules_allow(&problem->request->rules, shape),
                           .fits_held = true};
    microbatch_jobs(jobs, problem, mode, shape);
    for (int32_t s = 0; s < problem->P; s++) {
        int64_t work_ns = microbatch_stage_ns(problem, s, jobs_work_ns(&jobs[s]));
        int64_t in_bytes = s > 0 ? jobs[s - 1].boundary_bytes : 0;
        int64_t parts = share == SHARE_PIPELINE ? problem->P - s : share == SHARE_UNIFORM ? problem->P : 1;
        cost.work_ns = work_ns > cost.work_ns ? work_ns : cost.work_ns;
        cost.fits_alone &= alone_bytes(problem, mode, &jobs[s], in_bytes) <= problem->available_bytes[s];
        cost.fits_held &= held_bytes(problem, &jobs[s], in_bytes) <= problem->available_bytes[s] / parts;
    }
    cost.fits_held &= cost.fits_alone;
    return cost;
}

int64_t microbatch_work_ns(const MicrobatchProblem* problem, RecomputeMode mode, const MbShape* shape) {
    return microbatch_cost(problem, mode, SHARE_ALONE, shape).work_ns;
}

int64_t microbatch_alone_bytes(const MicrobatchProblem* problem, int32_t s, RecomputeMode mode,
                               const MbShape* shape) {
    CostJobs jobs[PLAN_MAX_STAGES];
    microbatch_jobs(jobs, problem, mode, shape);
    return alone_bytes(problem, mode, &jobs[s], s > 0 ? jobs[s - 1].boundary_bytes : 0);
}

static Status kernels_cannot(const MicrobatchProblem* problem, const MbShape* shape, const char* what) {
    char words[SHAPE_WORDS];
    shape_rules_say(words, &problem->request->rules, shape);
    return FAIL(STATUS_INFEASIBLE,
                "%s (%lld + %lld tokens with padding): %s ---> a smaller -t, or cut samples shorter", what,
                (long long)shape->enc_tokens, (long long)shape->dec_tokens, words);
}

Status microbatch_infeasible(const MicrobatchProblem* problem, const MbShape* shape, const char* what) {
    if (!shape_rules_allow(&problem->request->rules, shape)) { return kernels_cannot(problem, shape, what); }
    RecomputeMode best_mode = problem->modes[0];
    int64_t best_over = INT64_MAX, best_alone = 0;
    int32_t best_stage = 0;
    for (int k = 0; k < problem->num_modes; k++) {  // the mode that comes closest, its worst stage
        int64_t worst_over = INT64_MIN, worst_alone = 0;
        int32_t worst_stage = 0;
        for (int32_t s = 0; s < problem->P; s++) {
            int64_t alone = microbatch_alone_bytes(problem, s, problem->modes[k], shape);
            int64_t over = alone - problem->available_bytes[s];
            if (over > worst_over) { worst_over = over, worst_alone = alone, worst_stage = s; }
        }
        if (worst_over < best_over) {
            best_over = worst_over, best_alone = worst_alone, best_stage = worst_stage;
            best_mode = problem->modes[k];
        }
    }
    bool could_recompute = best_mode == RECOMPUTE_NONE && problem->num_modes == 1 &&
                           cost_mode_offered(problem->costs, RECOMPUTE_FULL);
    for (int32_t s = 0; s < problem->P && could_recompute; s++) {
        could_recompute =
            microbatch_alone_bytes(problem, s, RECOMPUTE_FULL, shape) <= problem->available_bytes[s];
    }
    char words[MACHINE_LIMIT_CHARS];
    return FAIL(
        STATUS_INFEASIBLE,
        "%s (%lld tokens, %lld supervised) needs %lld bytes on stage %d with recompute %s: %lld bytes over "
        "---> raise %s, use more --stages%s, or cut samples shorter",
        what, (long long)(shape->enc_tokens + shape->dec_tokens), (long long)shape->supervised_tokens,
        (long long)best_alone, best_stage, cost_mode_names[best_mode], (long long)best_over,
        limit_words(words, problem, best_stage), could_recompute ? ", --recompute auto" : "");
}

// --- lists ------------------------------------------------------------------------------------------------

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

void microbatch_list_add(MicrobatchList* list, const MicrobatchProblem* problem, const int32_t* ids,
                         int32_t num, int32_t enc_tokens, int32_t dec_tokens) {
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

void microbatch_list_close(MicrobatchList* list, const MicrobatchProblem* problem) {
    Microbatch* mb = &list->mbs[list->num_mbs++];
    mb->work_ns = microbatch_work_ns(problem, mb->mode, &mb->shape);
}

int32_t microbatch_pad_tokens(const MicrobatchProblem* problem, int32_t num_tokens, int64_t num_seqs) {
    const PlanRequest* request = problem->request;
    return shape_rules_pad(&request->rules, num_tokens, num_seqs, request->max_seq_tokens);
}

int32_t microbatch_pad_targets(const MicrobatchProblem* problem, int32_t num_tokens, int64_t num_seqs) {
    const PlanRequest* request = problem->request;
    if (request->max_target_tokens <= 0) { return microbatch_pad_tokens(problem, num_tokens, num_seqs); }
    return shape_rules_pad(&request->rules, num_tokens, num_seqs, request->max_target_tokens);
}

void microbatch_list_append(MicrobatchList* list, const MicrobatchProblem* problem, MbLayout layout,
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

// --- check ------------------------------------------------------------------------------------------------

static Status sequence_check(const MicrobatchList* list, const MicrobatchProblem* problem, int32_t q,
                             bool* seen, MbShape* shape) {
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

Status microbatch_list_check(const MicrobatchList* list, const MicrobatchProblem* problem, Arena* arena) {
    bool* seen = ARENA_NEW(arena, bool, problem->num_samples);
    if (!seen) { return FAIL(STATUS_NO_MEMORY, "check of %d samples", problem->num_samples); }
    int32_t next = 0;
    for (int32_t m = 0; m < list->num_mbs; m++) {
        const Microbatch* mb = &list->mbs[m];
        MbShape shape = {0};
        if (mb->sequence_begin != next || mb->sequence_end <= next ||
            mb->sequence_end > list->num_sequences) {
            return FAIL(STATUS_INVALID_PLAN, "micro-batch %d: sequences out of range", m);
        }
        for (; next < mb->sequence_end; next++) { TRY(sequence_check(list, problem, next, seen, &shape)); }
        MicrobatchCost cost = microbatch_cost(problem, mb->mode, SHARE_ALONE, &shape);
        if (!shape_equal(&shape, &mb->shape) || cost.work_ns != mb->work_ns || mb->replica >= problem->R) {
            return FAIL(STATUS_INVALID_PLAN, "micro-batch %d: shape, work or replica is not what it says", m);
        }
        if (!cost.fits_alone) {
            return FAIL(STATUS_INVALID_PLAN, "micro-batch %d: does not fit in memory", m);
        }
    }
    for (int32_t i = 0; i < problem->num_samples; i++) {
        if (!seen[i]) { return FAIL(STATUS_INVALID_PLAN, "sample %d is in no micro-batch", i); }
    }
    return next == list->num_sequences
               ? STATUS_OK
               : FAIL(STATUS_INVALID_PLAN, "%d sequences in no micro-batch", list->num_sequences - next);
}
