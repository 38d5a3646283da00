#include "refit_case.h"

#include <stdlib.h>

#include "../dynapipe_plugin/plan/cost_model.h"
#include "../dynapipe_plugin/plan/plan_text.h"
#include "cost_one.h"

void refit_case_costs(CostModel* out, RefitCaseModel model) {
    CostAnalytic about = {.num_layers = 8,
                          .channels = model.channels,
                          .ffn_channels = 4 * model.channels,
                          .tied_head = true,
                          .num_heads = 4,
                          .padded_vocab = model.padded_vocab,
                          .max_tokens = 2048,
                          .bytes_per_value = 4,
                          .flops_per_ns = 40,
                          .attention_flops_per_ns = 15,
                          .bytes_per_ns = 10,
                          .launch_ns = 20000,
                          .comm_latency_ns = model.comm_latency_ns,
                          .comm_bytes_per_ns = model.comm_bytes_per_ns};
    cost_model_analytic_gpt(out, &about);
}

static int64_t share_job_ns(const Plan* plan, const PlanInstr* instr, const CostModel* costs) {
    const Placement* placement = &plan->placement;
    static CostTable table;
    CostParts parts;
    CostJobs jobs;
    cost_table_init(&table, costs);
    cost_parts(&parts, &table, RECOMPUTE_NONE, &plan->mbs[instr->mb].shape);
    cost_jobs_of_share(&jobs, costs, cost_share_of(placement, instr->chunk - placement->num_chunks), &parts);
    return jobs.job_ns[plan_instr_job((InstrKind)instr->kind)];
}

static int64_t chunk_job_ns(const Plan* plan, int32_t rank, const PlanInstr* instr, const CostModel* costs) {
    const PlanMicrobatch* mb = &plan->mbs[instr->mb];
    RecomputeMode mode = (RecomputeMode)mb->recompute[instr->chunk];
    JobKind kind = plan_instr_job((InstrKind)instr->kind);
    CostStage stage = cost_chunk_make(costs, &plan->placement, instr->chunk);
    int64_t job_ns = cost_job_ns(costs, &stage, kind, mode, &mb->shape);
    bool has_weights = false;
    for (int32_t i = 0; i < plan->ranks[rank].num_instrs; i++) {
        const PlanInstr* other = &plan->ranks[rank].instrs[i];
        has_weights |= other->kind == INSTR_WGT && other->mb == instr->mb && other->chunk == instr->chunk;
    }
    if (kind == JOB_B && !has_weights) { job_ns += cost_job_ns(costs, &stage, JOB_W, mode, &mb->shape); }
    return job_ns;
}

static int64_t true_ns(const Plan* plan, int32_t rank, const PlanInstr* instr, const RefitTruth* truth) {
    bool of_share = instr->chunk >= plan->placement.num_chunks;
    int64_t job_ns =
        of_share ? share_job_ns(plan, instr, truth->costs) : chunk_job_ns(plan, rank, instr, truth->costs);
    return truth->slow != NULL ? (int64_t)((double)job_ns * truth->slow[rank]) : job_ns;
}

// Sum of four uniforms: about normal.
static double normal(Rng* rng) {
    double sum = -2;
    for (int i = 0; i < 4; i++) { sum += (double)rng_below(rng, 1 << 20) / (1 << 20); }
    return sum * 1.7320508;
}

Status refit_case_trace(TraceRank* out, const Plan* plan, int32_t rank, const RefitTruth* truth, Rng* rng,
                        Arena* arena) {
    const PlanRank* list = &plan->ranks[rank];
    *out = (TraceRank){.rank = rank, .events = ARENA_NEW(arena, TraceEvent, list->num_instrs)};
    if (out->events == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory for a trace"); }
    for (int32_t i = 0; i < list->num_instrs; i++) {
        const PlanInstr* instr = &list->instrs[i];
        TraceEvent event = {.kind = instr->kind,
                            .chunk = instr->chunk,
                            .mb = instr->mb,
                            .peer = instr->peer,
                            .begin_ns = out->end_ns,
                            .end_ns = out->end_ns};
        if (plan_instr_is_job((InstrKind)instr->kind)) {
            double job_ns = (double)true_ns(plan, rank, instr, truth);
            job_ns *= 1 + truth->noise * normal(rng);
            bool is_interrupted = truth->one_in > 0 && rng_below(rng, (uint32_t)truth->one_in) == 0;
            if (is_interrupted) { job_ns *= 3 + (double)rng_below(rng, 8); }
            event.end_ns += (int64_t)job_ns;
            out->end_ns = event.end_ns;
        }
        out->events[out->num_events++] = event;
    }
    return STATUS_OK;
}

void refit_case_wrong(CostModel* out, const CostModel* truth, double head, double attention) {
    CostScale scale = cost_scale_one();
    for (int pass = 0; pass < PASS_COUNT; pass++) {
        for (int g = 0; g < TERM_GROUPS; g++) {
            scale.factor[pass][PART_HEAD * TERM_GROUPS + g] = cost_scale_round(head);
        }
        for (int part = PART_ENC_BLOCK; part < PART_HEAD; part++) {
            scale.factor[pass][part * TERM_GROUPS + TERM_SQUARES] = cost_scale_round(attention);
        }
    }
    cost_scale_apply(out, truth, &scale);
}

void refit_case_fit(CostScale* scale, RefitRank* ranks, TraceJobs* jobs, int32_t num_ranks,
                    RefitSums history[SIDE_COUNT]) {
    RefitShared shared = refit_shared_one();
    double* room = malloc((size_t)num_ranks * sizeof *room);
    RefitSums(*blocks)[SIDE_COUNT] = malloc((size_t)num_ranks * sizeof *blocks);
    for (int32_t r = 0; r < num_ranks; r++) { ranks[r] = refit_rank_one(); }
    for (int round = 0; round < REFIT_WEIGHINGS * REFIT_ROUNDS; round++) {
        RefitSums all[SIDE_COUNT] = {0}, mine[SIDE_COUNT];
        for (int32_t r = 0; r < num_ranks; r++) {
            bool weighs = round % REFIT_ROUNDS == 0;
            if (weighs) { trace_jobs_sum(blocks[r], &jobs[r], round > 0 ? &shared : NULL, &ranks[r]); }
            refit_share(mine, blocks[r], &shared, &ranks[r]);
            for (int side = 0; side < SIDE_COUNT; side++) { refit_sums_merge(&all[side], 1, &mine[side]); }
        }
        refit_solve(&shared, all, history);
        for (int32_t r = 0; r < num_ranks; r++) { refit_rank_solve(&ranks[r], blocks[r], &shared); }
    }
    RefitSums all[SIDE_COUNT] = {0}, mine[SIDE_COUNT];
    for (int32_t r = 0; r < num_ranks; r++) {
        refit_alike(mine, blocks[r], &ranks[r]);
        for (int side = 0; side < SIDE_COUNT; side++) { refit_sums_merge(&all[side], 1, &mine[side]); }
    }
    for (int side = 0; side < SIDE_COUNT; side++) {
        refit_sums_merge(&history[side], REFIT_REMEMBERED, &all[side]);
    }
    refit_publish(scale, ranks, num_ranks, &shared, room);
    for (int32_t r = 0; r < num_ranks; r++) { trace_jobs_forget(&jobs[r]); }
    free(blocks);
    free(room);
}
