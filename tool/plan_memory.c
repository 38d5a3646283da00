#include "plan_memory.h"

#include <stdlib.h>

#include "../util/program.h"
#include "../dynapipe_plugin/plan/cost/cost_share.h"
#include "../dynapipe_plugin/plan/lists/plan_words.h"
#include "problem_machine.h"

// What prices of a plan's jobs depend on.
typedef struct {
    const Plan* plan;
    const CostModel* costs;
    CostTable table;
    CostStage chunks[PLAN_MAX_CHUNKS];
    CostRank has[PLAN_MAX_STAGES];  // of the model
} Prices;

static void prices_init(Prices* out, const Plan* plan, const CostModel* costs) {
    out->plan = plan;
    out->costs = costs;
    cost_table_init(&out->table, costs);
    cost_ranks_make(out->has, costs, &plan->placement, plan->P);
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        out->chunks[k] = cost_chunk_make(costs, &plan->placement, k);
    }
}

// Of a job's chunk or share of the head. Says whether its F keeps nothing.
static bool price(CostJobs* out, const Prices* prices, const PlanInstr* job) {
    const Placement* placement = &prices->plan->placement;
    const PlanMicrobatch* mb = &prices->plan->mbs[job->mb];
    CostParts parts;
    if (job->chunk >= placement->num_chunks) {
        cost_parts(&parts, &prices->table, RECOMPUTE_NONE, &mb->shape);
        cost_jobs_of_share(out, prices->costs, cost_share_of(placement, job->chunk - placement->num_chunks),
                           &parts);
        return false;
    }
    RecomputeMode mode = (RecomputeMode)mb->recompute[job->chunk];
    cost_parts(&parts, &prices->table, mode, &mb->shape);
    cost_jobs_of_stage(out, prices->costs, &prices->chunks[job->chunk], &parts);
    return mode != RECOMPUTE_NONE && prices->costs->recompute_is_job[mode];
}

// Nothing of what it is about is held behind it.
static bool is_last_job(const Prices* prices, const PlanRank* rank, int32_t i) {
    const PlanInstr* job = &rank->instrs[i];
    bool splits = job->chunk >= prices->plan->placement.num_chunks;  // does a W of it follow?
    for (int32_t k = i + 1; k < rank->num_instrs && job->kind == INSTR_BWD && !splits; k++) {
        const PlanInstr* other = &rank->instrs[k];
        splits = other->kind == INSTR_WGT && other->mb == job->mb && other->chunk == job->chunk;
    }
    return job->kind == INSTR_WGT || (job->kind == INSTR_BWD && !splits);
}

// A stage runs one job after the other, so its list is the order of time.
static void hold_activations(PlanMemory* out, const Prices* prices, int32_t r) {
    const PlanRank* rank = &prices->plan->ranks[r];
    int32_t num_held = 0;
    int64_t held_bytes = 0;
    for (int32_t i = 0; i < rank->num_instrs; i++) {
        const PlanInstr* instr = &rank->instrs[i];
        if (!plan_instr_is_job((InstrKind)instr->kind)) { continue; }
        CostJobs jobs;
        bool drops = price(&jobs, prices, instr), is_last = is_last_job(prices, rank, i);
        int64_t during_bytes = held_bytes;  // while this job runs
        bool takes = instr->kind == (drops ? INSTR_REC : INSTR_FWD);
        if (instr->kind == INSTR_FWD) { num_held++; }
        if (takes) { during_bytes = held_bytes += jobs.stored_bytes; }
        if (drops && instr->kind == INSTR_FWD) { during_bytes += jobs.forward_bytes; }
        if (num_held > out->most_held) { out->most_held = num_held; }
        if (during_bytes > out->peak_bytes) {
            out->peak_bytes = during_bytes;
            out->peak_ns = instr->begin_ns;
            out->peak_mb = instr->mb;
        }
        held_bytes -= is_last ? jobs.stored_bytes : 0;
        num_held -= is_last;
    }
}

Status plan_memory_make(PlanMemory* out, const Plan* plan, const CostModel* costs, MemoryRule rule) {
    Prices* prices = malloc(sizeof *prices);
    if (prices == NULL) { return FAIL(STATUS_NO_MEMORY, "no memory to count a plan's memory"); }
    prices_init(prices, plan, costs);
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        int64_t state_bytes = cost_rank_state_bytes(costs, &prices->has[r % plan->P]);
        out[r] = (PlanMemory){.state_bytes = state_bytes, .peak_mb = -1};
        hold_activations(&out[r], prices, r);
        if (rule == MEMORY_ACTIVATIONS) { continue; }
        out[r].peak_bytes = plan->ranks[r].arena_bytes;
        out[r].peak_ns = 0;
        out[r].peak_mb = -1;
    }
    free(prices);
    return STATUS_OK;
}

int32_t plan_memory_fullest(const PlanMemory* memory, const Plan* plan, int32_t s) {
    int32_t fullest = s;
    for (int32_t r = s; r < plan->P * plan->R; r += plan->P) {
        if (memory[r].peak_bytes > memory[fullest].peak_bytes) { fullest = r; }
    }
    return fullest;
}

Status plan_memory_check(const PlanMemory* memory, const Plan* plan, const PlanRequest* request) {
    for (int32_t r = 0; r < plan->P * plan->R; r++) {
        int64_t limit_bytes = problem_limit_bytes(request, r);
        int64_t over_bytes = memory[r].state_bytes + memory[r].peak_bytes - limit_bytes;
        if (limit_bytes == 0 || over_bytes <= 0) { continue; }
        return FAIL(
            STATUS_INFEASIBLE,
            "replica %d, stage %d: holds %lld bytes of activations beside %lld of model state, %lld over "
            "the limit ---> raise --memory-limit, allow --recompute auto, or use more stages",
            r / plan->P, r % plan->P, (long long)memory[r].peak_bytes, (long long)memory[r].state_bytes,
            (long long)over_bytes);
    }
    return STATUS_OK;
}

static void print_bar(int64_t num_bytes, int64_t limit_bytes, FILE* out) {
    enum { WIDTH = 4 };  // so that a row has 100 columns
    int64_t filled = limit_bytes > 0 ? num_bytes * WIDTH / limit_bytes : 0;
    fprintf(out, "  |");
    for (int i = 0; i < WIDTH; i++) { fputc(i < filled ? '#' : '.', out); }
    fprintf(out, "|%4.0f %%", 100.0 * (double)num_bytes / (double)limit_bytes);
}

static int32_t layers_of(const Plan* plan, int32_t s) {
    int32_t num_layers = 0;
    for (int32_t k = 0; k < plan->placement.num_chunks; k++) {
        const LayerRange* layers = &plan->placement.chunks[k];
        if (plan->placement.stage_of[k] == s) { num_layers += layers->layer_end - layers->layer_begin; }
    }
    return num_layers;
}

static double share_percent(const Placement* placement, int32_t s) {
    return 100.0 * (placement->head_begin[s + 1] - placement->head_begin[s]) / HEAD_UNITS;
}

void plan_memory_print(const PlanMemory* memory, const Plan* plan, const PlanRequest* request, FILE* out) {
    fprintf(out, "memory of each stage at its peak; %s\n",
            request->memory_rule == MEMORY_ACTIVATIONS
                ? "what backward needs, buffers of transfers not counted"
                : "every buffer, as laid out");
    bool shares = plan->placement.head != HEAD_WHOLE;
    fprintf(out, "  stage  layers%s  replica     state  activations  together     limit  in flight\n",
            shares ? "    head" : "");
    for (int32_t s = 0; s < plan->P; s++) {
        int32_t r = plan_memory_fullest(memory, plan, s);
        const PlanMemory* stage = &memory[r];
        int64_t together_bytes = stage->state_bytes + stage->peak_bytes;
        int64_t limit_bytes = problem_limit_bytes(request, r);
        fprintf(out, "  %5d  %6d", s, layers_of(plan, s));
        if (shares) { fprintf(out, "  %4.1f %%", share_percent(&plan->placement, s)); }
        fprintf(out, "  %7d  %8s  %11s  %8s", r / plan->P, BYTES_TEXT(stage->state_bytes),
                BYTES_TEXT(stage->peak_bytes), BYTES_TEXT(together_bytes));
        if (limit_bytes > 0) {
            fprintf(out, "  %8s  %9d", BYTES_TEXT(limit_bytes), stage->most_held);
            print_bar(together_bytes, limit_bytes, out);
        } else {
            fprintf(out, "      none  %9d", stage->most_held);
        }
        fprintf(out, "\n");
    }
}
