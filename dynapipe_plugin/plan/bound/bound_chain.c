// bound_chain.c -- see bound_chain.h.
#include "bound_chain.h"

#include <string.h>

#include "../types/mb_shape.h"

// Of one sample: a chunk's jobs and the boundary behind it; a share's forward with its gradient of inputs.
typedef struct {
    int64_t *F, *B, *W, *transfer;  // [K]
    int64_t share[PLAN_MAX_STAGES], weights[PLAN_MAX_STAGES];
    int64_t there[PLAN_MAX_STAGES], back[PLAN_MAX_STAGES];  // hidden states to the share, its part back
    CostJobs* jobs;                                         // [K] of one mode
} Chain;

static int64_t larger(int64_t a, int64_t b) {
    return a > b ? a : b;
}

static int64_t smaller(int64_t a, int64_t b) {
    return a < b ? a : b;
}

static Status chain_alloc(Chain* out, int32_t K, Arena* arena) {
    int64_t** arrays[] = {&out->F, &out->B, &out->W, &out->transfer};
    out->jobs = ARENA_NEW(arena, CostJobs, K);
    bool ok = out->jobs != NULL;
    for (int i = 0; i < 4; i++) {
        *arrays[i] = ARENA_NEW(arena, int64_t, K);
        ok &= *arrays[i] != NULL;
    }
    return ok ? STATUS_OK : FAIL(STATUS_NO_MEMORY, "lower bound: no host memory left");
}

// By rows a message may shrink by a row when the micro-batch grows by one: of it the latency alone counts.
static void shares_make(Chain* out, const BoundLines* lines, const MbShape* shape) {
    const PlanProblem* problem = lines->problem;
    const Placement* placement = &problem->placement;
    bool by_rows = placement->head == HEAD_BY_ROWS;
    CostParts parts;
    if (placement->head == HEAD_WHOLE) { return; }
    cost_parts(&parts, &problem->table, RECOMPUTE_NONE, shape);
    for (int32_t s = 0; s < problem->P; s++) {
        const MachineRank* rank = bound_lightest(lines, s);
        int32_t last = placement->stage_of[problem->K - 1];
        CostJobs jobs;
        if (!placement_has_share(placement, s)) { continue; }
        cost_jobs_of_share(&jobs, problem->costs, cost_share_of(placement, s), &parts);
        out->share[s] = machine_job_ns(rank, JOB_F, jobs.job_ns[JOB_F]);
        out->weights[s] = machine_job_ns(rank, JOB_W, jobs.job_ns[JOB_W]);
        out->there[s] = bound_between_ns(lines, last, s, by_rows ? 0 : jobs.boundary_bytes);
        out->back[s] = bound_between_ns(lines, s, last, by_rows ? 0 : jobs.part_bytes);
    }
}

static void chain_make(Chain* out, const BoundLines* lines, const PlanSample* sample) {
    const PlanProblem* problem = lines->problem;
    MbShape shape = {0};
    mb_shape_add(&shape, sample->enc_tokens, sample->dec_tokens, sample->supervised_tokens);
    shares_make(out, lines, &shape);
    for (int mode = 0; mode < problem->num_modes; mode++) {
        CostParts parts;
        cost_parts(&parts, &problem->table, problem->modes[mode], &shape);
        cost_jobs_of_stages(out->jobs, problem->costs, problem->chunks, problem->K, &parts);
        for (int32_t k = 0; k < problem->K; k++) {
            const int16_t* stage_of = &problem->placement.stage_of[k];
            const MachineRank* rank = bound_lightest(lines, stage_of[0]);
            int64_t ns[JOB_COUNT];
            for (int i = 0; i < JOB_COUNT; i++) {
                ns[i] = machine_job_ns(rank, (JobKind)i, out->jobs[k].job_ns[i]);
            }
            out->F[k] = mode > 0 ? smaller(out->F[k], ns[JOB_F]) : ns[JOB_F];
            out->B[k] = mode > 0 ? smaller(out->B[k], ns[JOB_B]) : ns[JOB_B];
            out->W[k] = mode > 0 ? smaller(out->W[k], ns[JOB_W]) : ns[JOB_W];
            if (k == problem->K - 1) { continue; }
            out->transfer[k] = bound_between_ns(lines, stage_of[0], stage_of[1], out->jobs[k].boundary_bytes);
        }
    }
}

// All forwards, the head's shares, backwards down to each chunk, its weight gradients, the reduction there:
// the longest of these. Lowers the minima.
static int64_t chain_ns(const Chain* chain, BoundChains* ends, const BoundLines* lines) {
    const Placement* placement = &lines->problem->placement;
    bool joint = lines->joint_backward, seen[PLAN_MAX_STAGES] = {false};
    int32_t P = lines->problem->P, K = placement->num_chunks;
    int64_t time_ns = 0, longest = 0, head_ns = 0, behind = 0;
    for (int32_t k = 0; k < K; k++) {
        int32_t s = placement->stage_of[k];
        if (!seen[s]) { ends->arrival_ns[s] = smaller(ends->arrival_ns[s], time_ns); }
        seen[s] = true;
        time_ns += chain->F[k] + chain->transfer[k];
    }
    for (int32_t s = 0; s < P; s++) {
        int64_t begin_ns = time_ns + chain->there[s], end_ns = begin_ns + chain->share[s];
        if (!placement_has_share(placement, s)) { continue; }
        if (!seen[s]) { ends->arrival_ns[s] = smaller(ends->arrival_ns[s], begin_ns); }
        head_ns = larger(head_ns, end_ns + chain->back[s] - time_ns);
        longest = larger(longest, end_ns + chain->weights[s] + ends->reduce_ns[s]);
    }
    time_ns += head_ns;
    memset(seen, 0, sizeof seen);
    for (int32_t k = K - 1; k >= 0; k--) {
        int32_t s = placement->stage_of[k];
        time_ns += chain->transfer[k];
        if (!seen[s]) { ends->turn_ns[s] = smaller(ends->turn_ns[s], time_ns); }
        seen[s] = true;
        time_ns += chain->B[k] + (joint ? chain->W[k] : 0);
        longest = larger(longest, time_ns + (joint ? 0 : chain->W[k]) + ends->reduce_ns[s]);
    }
    int32_t first = placement->stage_of[0];
    memset(seen, 0, sizeof seen);
    for (int32_t k = 0; k < K; k++) {
        int32_t s = placement->stage_of[k];
        int64_t last = s == first ? 0 : (joint ? 0 : chain->W[0]) + ends->reduce_ns[first];
        if (!seen[s]) { ends->tail_ns[s] = smaller(ends->tail_ns[s], behind + last); }
        seen[s] = true;
        behind += chain->B[k] + (joint ? chain->W[k] : 0) + chain->transfer[k];
    }
    for (int32_t s = 0; s < P; s++) {
        if (seen[s]) { continue; }  // a share of the head and nothing else: all backwards follow
        int64_t last = (joint ? 0 : chain->W[0]) + ends->reduce_ns[first];
        ends->tail_ns[s] = smaller(ends->tail_ns[s], chain->back[s] + behind + last);
    }
    return longest;
}

// Minima over all samples are those over the least, maxima those over the most.
Status bound_chains_make(BoundChains* out, const BoundLines* lines, Arena* arena) {
    const BoundBatch* batch = lines->batch;
    Chain chain = {.share = {0}};
    TRY(chain_alloc(&chain, lines->problem->K, arena));
    *out = (BoundChains){.longest_ns = 0};
    for (int32_t s = 0; s < lines->problem->P; s++) {
        out->arrival_ns[s] = out->turn_ns[s] = out->tail_ns[s] = INT64_MAX;
        out->reduce_ns[s] =
            cost_rank_reduce_ns(lines->problem->costs, &lines->problem->has[s], lines->problem->R);
    }
    for (int32_t i = 0; i < batch->num_least + batch->num_most; i++) {
        int32_t at = i < batch->num_least ? batch->least[i] : batch->most[i - batch->num_least];
        chain_make(&chain, lines, &batch->samples[at]);
        int64_t longest = chain_ns(&chain, out, lines);
        if (longest > out->longest_ns) { out->longest_ns = longest, out->longest_sample = batch->first[at]; }
    }
    for (int32_t s = 0; s < lines->problem->P; s++) {
        if (out->turn_ns[s] == INT64_MAX) { out->turn_ns[s] = 0; }
    }
    return STATUS_OK;
}
