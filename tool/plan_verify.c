#include "plan_verify.h"

#include <string.h>

#include "../dynapipe_plugin/plan/draft/replica_problem.h"
#include "../dynapipe_plugin/plan/lists/plan_words.h"
#include "../dynapipe_plugin/plan/lists/replica_lists.h"
#include "../dynapipe_plugin/plan/pipe/pipe_schedule.h"
#include "plan_memory.h"

// --- structure -------------------------------------------------------------------------------------------

// One sample of a micro-batch stands for all its supervised tokens, one of a window for all its decoder
// tokens: the plan tells no more, and plan_check only adds them up.
static void take_samples(const Plan* plan, const PlanMicrobatch* mb, PlanSample* samples) {
    int64_t supervised = mb->shape.supervised_tokens;
    for (int32_t i = mb->sequence_begin; i < mb->sequence_end; i++) {
        const PlanSequence* seq = &plan->sequences[i];
        for (int32_t k = seq->segment_begin; k < seq->segment_end; k++) {
            int32_t id = plan->segments[k].sample_idx;
            if (id < 0 || id >= plan->N) { continue; }
            samples[id].enc_tokens = plan->segments[k].num_tokens;
            samples[id].dec_tokens = k == seq->segment_begin ? seq->dec_tokens : 0;
            samples[id].supervised_tokens = supervised < INT32_MAX ? (int32_t)supervised : INT32_MAX;
            supervised = 0;
        }
    }
}

Status plan_verify_structure(const Plan* plan, Arena* arena) {
    if (plan->N < 1 || plan->N > plan->num_segments) {
        return FAIL(STATUS_INVALID_PLAN, "plan: %d samples in %d segments ---> every sample needs one",
                    plan->N, plan->num_segments);
    }
    PlanSample* samples;
    ARENA_TRY_NEW(samples, arena, PlanSample, plan->N);
    for (int32_t m = 0; m < plan->M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[m];
        bool sane = mb->sequence_begin >= 0 && mb->sequence_begin <= mb->sequence_end &&
                    mb->sequence_end <= plan->num_sequences;
        for (int32_t i = mb->sequence_begin; sane && i < mb->sequence_end; i++) {
            const PlanSequence* seq = &plan->sequences[i];
            sane = seq->segment_begin >= 0 && seq->segment_end <= plan->num_segments;
        }
        if (sane) { take_samples(plan, mb, samples); }  // else plan_check says what is wrong
    }
    return plan_check(plan, samples, plan->N);
}

// --- against a problem -----------------------------------------------------------------------------------

static Status verify_stages(const Plan* plan, const Problem* problem) {
    const CostModel* costs = &problem->costs;
    int32_t num_layers = costs->num_enc_layers + costs->num_dec_layers;
    if (plan->P != problem->request.P || plan->R != problem->request.R) {
        return FAIL(
            STATUS_INVALID_PLAN,
            "plan: %d stages x %d replicas, the problem has %d x %d ---> give the problem it was made for",
            plan->P, plan->R, problem->request.P, problem->request.R);
    }
    int32_t layer_end = plan->placement.chunks[plan->placement.num_chunks - 1].layer_end;
    if (layer_end != num_layers) {
        return FAIL(STATUS_INVALID_PLAN,
                    "plan: its chunks have %d layers, the problem has %d ---> give the "
                    "problem it was made for",
                    layer_end, num_layers);
    }
    CostRank has[PLAN_MAX_STAGES];
    cost_ranks_make(has, costs, &plan->placement, plan->P);
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        int64_t state_bytes = cost_rank_state_bytes(costs, &has[r % plan->P]);
        if (plan->ranks[r].state_bytes == state_bytes) { continue; }
        return FAIL(
            STATUS_INVALID_PLAN,
            "rank %d: %lld bytes of model state, the problem's costs give %lld ---> give the problem it "
            "was made for",
            r, (long long)plan->ranks[r].state_bytes, (long long)state_bytes);
    }
    return STATUS_OK;
}

// The job lists of one replica, micro-batches counted from its first.
static Status schedule_make(PipeSchedule* out, const Plan* plan, int32_t r, int32_t first_mb,
                            const PipeProblem* pipe, Arena* arena) {
    TRY(pipe_schedule_init(out, pipe, arena));
    for (int32_t s = 0; s < plan->P; s++) {
        const PlanRank* rank = &plan->ranks[r * plan->P + s];
        for (int32_t i = 0; i < rank->num_instrs; i++) {
            const PlanInstr* instr = &rank->instrs[i];
            if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
            pipe_schedule_push(out, s, plan_instr_job((InstrKind)instr->kind), instr->chunk,
                               instr->mb - first_mb);
        }
    }
    return STATUS_OK;
}

// Simulates micro-batches [begin, end) of the plan, replica r: what its lists take.
static Status replica_simulate(int64_t* makespan_ns, const Plan* plan, const PlanProblem* batch, int32_t r,
                               int32_t begin, int32_t end, Arena* arena) {
    int32_t M = end - begin;
    Microbatch* mbs;
    int32_t* places;
    uint8_t* modes;
    ARENA_TRY_NEW(mbs, arena, Microbatch, M);
    ARENA_TRY_NEW(places, arena, int32_t, M);
    int32_t K = plan->placement.num_chunks;
    ARENA_TRY_NEW(modes, arena, uint8_t, (int64_t)K * M);
    for (int32_t m = 0; m < M; m++) {
        const PlanMicrobatch* mb = &plan->mbs[begin + m];
        mbs[m] = (Microbatch){.layout = (MbLayout)mb->layout, .replica = r, .shape = mb->shape};
        places[m] = m;
        for (int32_t k = 0; k < K; k++) { modes[(int64_t)k * M + m] = mb->recompute[k]; }
    }
    MicrobatchList list = {.num_mbs = M, .mbs = mbs};
    ReplicaProblem replica;
    PipeSchedule schedule;
    PipeTimeline timeline;
    TRY(replica_problem_make(&replica, batch, &list, r, places, M, modes, arena));
    TRY(schedule_make(&schedule, plan, r, begin, &replica.pipe, arena));
    TRY(pipe_simulate(&timeline, &replica.pipe, &schedule, arena));
    *makespan_ns = replica_lists_makespan(plan->ranks + r * plan->P, &replica.pipe, &schedule, &timeline);
    return STATUS_OK;
}

static Status verify_makespan(const Plan* plan, const Problem* problem, Arena* arena) {
    PlanRequest request = problem->request;
    PlanProblem batch;
    int64_t slowest_ns = 0;
    int32_t begin = 0;
    request.placement = plan->placement;
    TRY(plan_problem_init(&batch, &request, &problem->costs, problem->samples, problem->num_samples));
    for (int32_t r = 0; r < plan->R; r++) {
        int32_t end = begin;
        int64_t ns = 0;
        while (end < plan->M && plan->mbs[end].replica == r) { end++; }
        TRY(replica_simulate(&ns, plan, &batch, r, begin, end, arena));
        if (ns > slowest_ns) { slowest_ns = ns; }
        begin = end;
    }
    if (slowest_ns == plan->makespan_ns) { return STATUS_OK; }
    return FAIL(
        STATUS_INVALID_PLAN,
        "plan: says %lld ns, the simulator finds %lld with the problem's costs ---> give the problem it was "
        "made for, or plan again",
        (long long)plan->makespan_ns, (long long)slowest_ns);
}

Status plan_verify_problem(const Plan* plan, const Problem* problem, Arena* arena) {
    TRY(plan_check(plan, problem->samples, problem->num_samples));
    TRY(verify_stages(plan, problem));
    TRY(verify_makespan(plan, problem, arena));
    PlanMemory* memory;
    ARENA_TRY_NEW(memory, arena, PlanMemory, plan->P * plan->R);
    TRY(plan_memory_make(memory, plan, &problem->costs, problem->request.memory_rule));
    return plan_memory_check(memory, plan, &problem->request);
}
