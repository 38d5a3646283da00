// plan_problem.c -- see plan_problem.h.
#include "plan_problem.h"

#include <string.h>

#include "../types/mb_shape.h"
#include "microbatch_cost.h"
#include "placement_make.h"

static Status modes_choose(PlanProblem* out) {
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

const MachineRank* plan_problem_ranks(const PlanProblem* problem, int32_t replica) {
    return machine_replica(problem->request->machine, replica * problem->P);
}

int64_t plan_problem_available(const PlanProblem* problem, const MachineRank* rank, const CostRank* has) {
    int64_t limit_bytes = machine_limit_bytes(rank, problem->request->memory_limit_bytes);
    return limit_bytes > 0 ? limit_bytes - cost_rank_state_bytes(problem->costs, has) : COST_LIMIT;
}

void plan_problem_limit(PlanProblem* out) {
    out->has_limit = false;
    memset(out->limit_bytes, 0, sizeof out->limit_bytes);
    memset(out->most_limit_bytes, 0, sizeof out->most_limit_bytes);
    int32_t num_replicas = plan_problem_ranks(out, 0) == NULL ? 1 : out->R;  // one stands for all
    for (int32_t s = 0; s < out->P; s++) {
        bool is_free = false;
        for (int32_t r = 0; r < num_replicas; r++) {
            const MachineRank* rank = machine_stage(plan_problem_ranks(out, r), s);
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
static double replica_ns(const PlanProblem* problem, int32_t r, const CostJobs* jobs) {
    const MachineRank* ranks = plan_problem_ranks(problem, r);
    const Placement* placement = &problem->placement;
    double slowest_ns = 1, job_ns[PLAN_MAX_STAGES] = {0}, link_ns[PLAN_MAX_STAGES] = {0};
    for (int32_t row = 0; row < problem->num_rows; row++) {
        int32_t s = placement_stage_of(placement, row), k = row + 1;
        job_ns[s] += machine_slow(&ranks[s]) * (double)microbatch_jobs_ns(&jobs[row]);
        if (k >= problem->K) { continue; }
        double send_ns = (double)machine_between_ns(ranks, problem->costs, s, placement->stage_of[k],
                                                    jobs[row].boundary_bytes);
        link_ns[s] += send_ns;
        link_ns[placement->stage_of[k]] += send_ns;
    }
    for (int32_t s = 0; s < problem->P; s++) {
        if (job_ns[s] > slowest_ns) { slowest_ns = job_ns[s]; }
        if (link_ns[s] > slowest_ns) { slowest_ns = link_ns[s]; }
    }
    return slowest_ns;
}

static void speeds_set(PlanProblem* out) {
    CostJobs jobs[PLAN_MAX_ROWS];
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
        for (int32_t r = 0; r < out->R; r++) { sum += machine_slow(&plan_problem_ranks(out, r)[s]); }
        out->stage_slow[s] = sum / out->R;
    }
}

const char* plan_problem_limit_words(char out[MACHINE_LIMIT_CHARS], const PlanProblem* problem,
                                     int32_t stage) {
    int64_t common_bytes = problem->request->memory_limit_bytes;
    const MachineRank* least = NULL;
    int32_t replica = 0;
    for (int32_t r = 0; r < problem->R; r++) {
        const MachineRank* rank = machine_stage(plan_problem_ranks(problem, r), stage);
        if (machine_limit_bytes(rank, common_bytes) != problem->limit_bytes[stage]) { continue; }
        least = rank, replica = r;
        break;
    }
    return machine_limit_words(out, least, replica * problem->P + stage);
}

static Status place(PlanProblem* out) {
    const PlanRequest* request = out->request;
    const CostModel* costs = out->costs;
    out->placement = request->placement;
    if (out->placement.num_chunks == 0) {
        placement_linear(&out->placement, request->placement.chunks, out->P);
    }
    TRY(placement_check(&out->placement, out->P, costs->num_enc_layers + costs->num_dec_layers,
                        request->rules.head_has_layer));
    out->K = out->placement.num_chunks;
    out->num_rows = placement_num_rows(&out->placement, out->P);
    for (int32_t k = 0; k < out->K; k++) { out->chunks[k] = cost_chunk_make(costs, &out->placement, k); }
    cost_ranks_make(out->has, costs, &out->placement, out->P);
    return STATUS_OK;
}

Status plan_problem_init(PlanProblem* out, const PlanRequest* request, const CostModel* costs,
                         const PlanSample* samples, int32_t num_samples) {
    if (request->P < 1 || request->P > PLAN_MAX_STAGES || request->R < 1 || request->R > PLAN_MAX_REPLICAS) {
        return FAIL(STATUS_OUT_OF_RANGE, "--stages %d --replicas %d ---> give 1 to %d and 1 to %d",
                    request->P, request->R, PLAN_MAX_STAGES, PLAN_MAX_REPLICAS);
    }
    TRY(samples_check(samples, num_samples));
    *out = (PlanProblem){.request = request,
                         .costs = costs,
                         .samples = samples,
                         .count_buffers = request->memory_rule == MEMORY_BUFFERS,
                         .num_samples = num_samples,
                         .P = request->P,
                         .R = request->R};
    TRY(machine_check(request->machine, request->P * request->R));
    TRY(place(out));
    cost_table_init(&out->table, costs);
    plan_problem_limit(out);
    for (int32_t s = 0; s < out->P; s++) {
        int64_t state_bytes = cost_rank_state_bytes(costs, &out->has[s]), limit = out->limit_bytes[s];
        out->available_bytes[s] = limit > 0 ? limit - state_bytes : COST_LIMIT;
        if (out->available_bytes[s] <= 0) {
            char words[MACHINE_LIMIT_CHARS];
            return FAIL(STATUS_INFEASIBLE,
                        "%s: parameters, gradients and optimizer of stage %d take %lld bytes, %lld over "
                        "---> raise the limit, %suse more --stages",
                        plan_problem_limit_words(words, out, s), s, (long long)state_bytes,
                        (long long)-out->available_bytes[s],
                        request->choose_stages || out->P == 1 ? "or "
                                                              : "give it fewer layers (--stage-split), or ");
        }
    }
    speeds_set(out);
    return modes_choose(out);
}
